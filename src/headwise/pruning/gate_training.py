"""Pruning with Hard Concrete gates: fine-tune the converged model with L = L_xent + λ L_C, then decide every gate
(Voita et al. 2019, section 6).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.trainer_callback import TrainerCallback

from headwise.core.errors import HeadwiseError
from headwise.core.folders import write_text
from headwise.core.heads import Kind
from headwise.core.layout import HeadMask
from headwise.core.options import WITHOUT_DROPOUT, FineTuning, GateTraining, Train
from headwise.core.progress import part
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.discover import same_gradients
from headwise.models.attention.offload import device_of, refuse_offloaded, separate_copy
from headwise.models.model import Model
from headwise.models.training.loss import dev_loss, loss_forward
from headwise.models.training.token_batches import TrainingData
from headwise.models.training.trainer import Gated, TrainingSetup, average, in_float32, train_model
from headwise.pruning.gates import HeadGates
from headwise.pruning.harm import HarmWatch

RANK = 8  # of the low-rank changes of a linear layer
GATES_NAME = "headwise_gates"  # the name of the gates among the model's submodules
LOGGED = 10  # updates between two rows of a gate
UNDECIDED = 0.1  # the largest share of undecided gates with which a run has settled
TRAINING_SHARE = 0.95  # of the progress; the rest is for the losses by which gates are decided


@dataclass(frozen=True)
class Pruned:
    """The result of a pruning run.

    soft_loss, decided_loss: dev loss before and after every gate was set to 0 or 1, with the weights of that moment.
    loss: dev loss of the pruned model; equal to `decided_loss` where gates are decided at the end. expected, undecided:
    Σ P(open), and the share of gates between 0.1 and 0.9, when the gates were last trained. notes:
    sentences for the report. doubts: the notes that say why the gates had not settled. cost: seconds and updates.
    """

    mask: HeadMask
    model: Model
    soft_loss: float
    decided_loss: float
    loss: float
    undecided: float
    expected: float
    notes: list[str]
    doubts: list[str]
    cost: dict[str, float]

    @property
    def settled(self) -> bool:
        """Whether at most UNDECIDED of the gates were undecided, and a target count was reached."""
        return not self.doubts


class GateLog(TrainerCallback):
    """Writes P(open) of every head every LOGGED updates (`step,kind,layer,head,p_open`).

    A run that resumes removes the rows after its checkpoint.
    """

    def __init__(self, gates: HeadGates, path: Path) -> None:
        self.gates = gates
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        text = self.path.read_text() if self.path.exists() else ""
        whole_lines = text[: text.rfind("\n") + 1]  # the last line may be half-written
        rows = []
        for row in whole_lines.splitlines()[1:]:
            step = int(row.partition(",")[0])
            if step <= state.global_step:
                rows.append(row)
        write_text(self.path, "\n".join(["step,kind,layer,head,p_open", *rows]) + "\n")
        if not rows:
            self.write(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        last = state.global_step == state.max_steps
        due = state.global_step % LOGGED == 0
        if state.is_world_process_zero and (due or last):
            self.write(state.global_step)

    def write(self, step: int) -> None:
        with self.path.open("a") as file:
            for head, p_open in self.gates.probabilities().items():
                file.write(f"{step},{head.kind},{head.layer},{head.head},{p_open:.5f}\n")


def freeze(model: PreTrainedModel, kinds: tuple[Kind, ...]) -> list[str]:
    """Freeze a translation model's decoder when only encoder heads are pruned, so that it cannot take over their work
    (section 6.2).

    The encoder and the source embeddings train; embeddings that the decoder or the output layer shares are frozen.
    Returns notes for the report.
    """
    if set(kinds) != {"encoder-self"} or not model.config.is_encoder_decoder:
        return []
    # Tied weights are one parameter in several modules, so sets of parameters find them and names would not.
    # Parameters compare by identity, so these are sets of objects.
    encoder = set(model.get_encoder().parameters())
    decoder = {*model.get_decoder().parameters(), *model.get_output_embeddings().parameters()}
    for parameter in model.parameters():
        if parameter not in encoder or parameter in decoder:
            parameter.requires_grad_(False)
    if encoder & decoder:
        return [
            "The decoder was frozen, and with it the source embeddings, which are tied to its own."
        ]
    return ["The decoder was frozen; the encoder and the source embeddings trained."]


def to_train(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require a gradient."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@contextmanager
def trainable(
    model: PreTrainedModel, train: Train, kinds: tuple[Kind, ...], seed: int
) -> Iterator[list[str]]:
    """Inside the block the weights that `train` names require gradients; gives notes for the report.

    gates: all are frozen, and the gates alone are in training mode. distil, apart: all train, without dropout. lora: the
    linear layers that would train get low-rank changes, which at the end are added to their weights.
    """
    if train == "gates":
        model.requires_grad_(False)
        with without_dropout(model):
            yield ["All weights were frozen: only gates trained."]
        return
    refuse_offloaded(model, "Training weights beside gates (train = 'gates' trains none)")
    notes = freeze(model, kinds)
    if train in WITHOUT_DROPOUT:
        if train == "distil":
            notes = [*notes, "The encoder learnt the states of the whole one, without dropout."]
        with without_dropout(model):
            yield notes
        return
    if train == "all":
        yield notes
        return
    layers = lora_layers(model, seed)
    try:
        yield [
            *notes,
            f"{len(layers.targeted_module_names)} linear layers trained by low-rank changes of rank {RANK}.",
        ]
    except BaseException:
        # Also where the run is interrupted: the model must not keep modules of peft.
        layers.unload()
        raise
    tied = model.config.tie_word_embeddings
    with in_float32(model), warnings.catch_warnings(action="ignore"):  # of untied embeddings
        layers.merge_and_unload()
    # peft compares the output layer with the encoder's embeddings, and says they are not tied where
    # the decoder has embeddings of its own: a saved model would then miss the output layer's weights.
    model.config.tie_word_embeddings = tied


@contextmanager
def without_dropout(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block `model.train()` leaves all but gates in evaluation mode."""
    # Transformers' Trainer calls `model.train()` before every step, so setting the mode once would not last.
    vars(model)["train"] = partial(train_gates_alone, model)
    try:
        yield
    finally:
        del vars(model)["train"]


def train_gates_alone(model: nn.Module, mode: bool = True) -> nn.Module:
    """`model.train()` that leaves all but the gates, and the model's own flag, in evaluation mode."""
    for name, module in model.named_children():
        module.train(mode and name == GATES_NAME)
    model.training = mode
    return model


def lora_layers(model: PreTrainedModel, seed: int) -> Any:
    """Low-rank changes (Hu et al. 2021) of every linear layer whose weights train, but the output layer; all else is
    frozen. Raises HeadwiseError without peft, and where no linear layer trains."""
    try:
        from peft import LoraConfig, LoraModel
    except ImportError:
        raise HeadwiseError(
            "train = 'lora' needs peft, which is not installed: pip install 'headwise[lora]', or train = 'all'."
        ) from None
    output_layer = model.get_output_embeddings()
    linear: list[str] = []
    transposed = False
    for name, module in model.named_modules():
        is_linear = isinstance(module, nn.Linear | Conv1D) and module is not output_layer
        if is_linear and to_train(module):
            linear.append(name)
            transposed = transposed or isinstance(module, Conv1D)
    if not linear:
        raise HeadwiseError(
            f"{type(model).__name__} has no linear layer that could train: set train = 'all'."
        )
    # The start of the changes is drawn from torch's generator, which gates and dropout go on with. peft warns
    # where some layers are transposed and others are not.
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(seed)
        # lora_alpha / r scales the changes: here by 1.
        config = LoraConfig(
            r=RANK, lora_alpha=RANK, target_modules=linear, fan_in_fan_out=transposed
        )
        return LoraModel(model, config, "headwise")


class GateSchedule(TrainerCallback):
    """Sets the share of the run that is over on the gates, and settles them in its last part, `settle` of it.

    loss: the dev loss with gates and weights as they are, measured when gates are decided.
    """

    def __init__(self, gates: HeadGates, settle: float, loss: Callable[[], float]) -> None:
        self.gates = gates
        self.settle = settle
        self.loss = loss

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        steps = state.max_steps
        self.gates.progress = step / steps

        # The step at which gates are decided.
        begin = steps  # which no step reaches
        # Without it gates are decided after the run, by `decide`.
        if self.settle:
            begin -= max(1, round(self.settle * steps))
        if step == begin:
            self.gates.log_alpha_before.copy_(self.gates.log_alpha.detach())
            soft = self.gates.soft()
            with self.gates.held(soft):
                self.gates.losses_at_decision[0] = self.loss()
            with self.gates.held(self.gates.decided().to(soft)):
                self.gates.losses_at_decision[1] = self.loss()
        if step >= begin:
            # Decided in every step, so that a resumed run knows it: moving towards ±FAR never changes it.
            self.gates.settle(self.gates.decided(), steps - step)


def updates_of(training: TrainingSetup, options: FineTuning) -> int:
    """The number of updates of a run."""
    recipe = training.recipe
    batches = len(training.data.sampler(recipe.batch_tokens, training.seed, recipe.accumulate))
    return batches // recipe.accumulate * options.epochs


def train_gates(
    model: Model,
    training: TrainingSetup,
    options: GateTraining,
    gates: HeadGates,
    settle: float,
) -> Pruned:
    """Train model and gates in place, decide the gates, remove heads; resumes from `training.work`.

    training: as the full model was trained. settle: the share of the run, at its end, with decided gates.
    """
    hf = model.hf
    gates.to(device_of(hf))
    groups = gates.groups(options.gate_learning_rate, updates_of(training, options))
    tokens = training.recipe.batch_tokens

    def loss() -> float:
        return dev_loss(hf, training.dev, tokens)

    with (
        same_gradients(hf),
        trainable(hf, options.train or "all", gates.heads.kinds, training.seed) as notes,
    ):
        if options.train == "distil":
            training = replace(training, whole=separate_copy(hf.get_encoder()))
        weights = to_train(hf)
        recipe = options.within(training.recipe)
        callbacks: list[TrainerCallback] = [
            GateSchedule(gates, settle, loss),
            GateLog(gates, training.work / "gates.csv"),
        ]
        if weights:
            groups = [{"params": weights, "lr": options.learning_rate}, *groups]
            with loss_forward(hf):
                before = loss()
            watched = replace(training, recipe=recipe)
            callbacks.append(HarmWatch(hf, watched, options.train, before, gates))
        hf.add_module(GATES_NAME, gates)
        try:
            spent = train_model(
                hf,
                model.tokenizer,
                model.discovery,
                replace(
                    training,
                    recipe=recipe,
                    progress=part(training.progress, 0.0, TRAINING_SHARE),
                ),
                Gated(gates.by_site(), gates.draw, gates.cost, groups),
                callbacks,
                keep=max(options.average, 2),
            )
            # Checkpoints have the gates, too, so averaging loads them into the model.
            # Before the average is loaded over them.
            last = {name: tensor.clone() for name, tensor in gates.state_dict().items()}
            average(hf, training.work, options.average)
            if settle:
                gates.load_state_dict(last)  # not averaged with gates from before they settled
            else:
                gates.log_alpha_before.copy_(gates.log_alpha.detach())
        finally:
            delattr(hf, GATES_NAME)
    training.progress(TRAINING_SHARE, "deciding the gates")
    return decide(model, gates, training.dev, tokens, notes, spent, early=bool(settle))


def decide(
    model: Model,
    gates: HeadGates,
    dev: TrainingData,
    tokens: int,
    notes: list[str],
    cost: dict[str, float],
    early: bool = False,
) -> Pruned:
    """Decide every gate, compare the dev loss before and after, and remove heads with closed gates.

    early: the gates were decided, and the two losses measured, before the end of the run.
    """
    gates.eval()
    undecided = gates.undecided()
    doubts = []
    if undecided > UNDECIDED:
        when = " when they were decided" if early else ""
        doubts.append(
            f"The gates had not settled: {undecided:.0%} were still between 0.1 and 0.9{when}. "
            "Train longer."
        )

    mask = gates.mask(model.heads, gates.decided())
    with torch.no_grad(), loss_forward(model.hf):
        # Masked, not removed: the same numbers, and the model is whole for what follows.
        with keeping(model.hf, model.discovery, mask):
            loss = dev_loss(model.hf, dev, tokens)
        if early:
            # Of that moment: since then the weights trained on.
            soft, decided = gates.losses_at_decision.tolist()
        else:
            with (
                capture(model.hf, model.discovery, gates=gates.by_site()),
                gates.held(gates.soft()),
            ):
                soft = dev_loss(model.hf, dev, tokens)
            decided = loss
    return Pruned(
        mask,
        model.only(mask, grow=True),
        soft_loss=soft,
        decided_loss=decided,
        loss=loss,
        undecided=undecided,
        expected=gates.expected(),
        notes=[*notes, *doubts],
        doubts=doubts,
        cost=cost,
    )
