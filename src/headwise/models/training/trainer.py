"""Training on Hugging Face's Seq2SeqTrainer, with four changes for small models on CPU.

1. batches of tokens in a few fixed shapes (`batches`); 2. explicit attention, whose backward pass on CPU is ten times
faster than sdpa's; 3. the loss without logits in memory (`loss_forward`); 4. fast dropout (`dropout`). Weights of half
precision train in float32. Afterwards the model is a stock model again, its weights of their own types. Only
checkpoints with a completion marker are resumed.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.torch import load_model, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)
from transformers.trainer_callback import PrinterCallback, TrainerCallback, TrainerState

from headwise.core.errors import HeadwiseError, WriteError
from headwise.core.folders import write_text
from headwise.core.heads import Site
from headwise.core.options import Training
from headwise.core.progress import OnProgress, silent
from headwise.models.attention.backward import passing_gradients
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery, evaluating
from headwise.models.attention.offload import device_of, reloading
from headwise.models.generators import unchanged_generators
from headwise.models.model_files import WEIGHTS
from headwise.models.training.dropout import fast_dropout
from headwise.models.training.loss import KnownStates, dev_loss, loss_forward
from headwise.models.training.token_batches import TrainingData

MARKER = "complete"
KEPT_STATES = 2**29  # bytes of a whole encoder's states, at most
LOGGED = {"loss": "loss", "learning_rate": "learning_rate", "eval_loss": "dev_loss"}


@dataclass(frozen=True)
class TrainingSetup:
    """What every training has in common: data, recipe, a folder for checkpoints, a seed, a progress reporter.

    say: gets sentences for the user while it trains. whole: the encoder whose states are learnt, in place of the text's
    targets.
    """

    data: TrainingData
    dev: TrainingData
    recipe: Training
    work: Path
    seed: int = 1
    progress: OnProgress = silent
    say: Callable[[str], None] = warnings.warn
    whole: nn.Module | None = None


@dataclass(frozen=True)
class Gated:
    """What a training with gates adds.

    gates: by site, as `capture` takes them. before: called before every forward, to draw the gates. penalty: a cost per
    target token. groups: parameter groups of the optimizer, those of the model included.
    """

    gates: Mapping[Site, Callable[[], Tensor]] | None = None
    before: Callable[[], None] | None = None
    penalty: Callable[[], Tensor] | None = None
    groups: list[dict[str, Any]] | None = None


UNGATED = Gated()


class TokenTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with token batches, a dev loss per token, a completion marker on checkpoints, and parameter groups
    with learning rates of their own.

    seconds: training time of interrupted runs, up to the checkpoint from which this one resumes.
    """

    def __init__(
        self,
        *,
        training: TrainingSetup,
        groups: list[dict[str, Any]] | None,
        seconds: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(train_dataset=training.data, eval_dataset=training.dev, **kwargs)
        self.data = training.data
        self.dev = training.dev
        self.recipe = training.recipe
        self.groups = groups
        self.begun = time.perf_counter() - seconds
        # Never called: that it is there makes the Trainer count target tokens for `compute_loss`.
        self.compute_loss_func = lambda *_: None
        # Our labels are at the positions of their logits, so all of them count.
        self._loss_shifts_labels = False

    def get_train_dataloader(self) -> Any:
        sampler = self.data.sampler(
            self.recipe.batch_tokens, self.args.seed, self.recipe.accumulate
        )
        collate = self.data.collator(self.model, sampler)
        dataset: Any = self.data
        ahead: Any = (
            {"num_workers": 2, "pin_memory": True} if self.args.device.type == "cuda" else {}
        )
        return self.accelerator.prepare(
            DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, **ahead)
        )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The mean loss over the target tokens of an update, including those of other batches and processes."""
        # `loss_forward` has replaced the forward: it gives a sum over tokens.
        loss = model(**inputs, smoothing=self.recipe.label_smoothing) / num_items_in_batch
        # Data-parallel training takes the mean of the processes' gradients; this makes it their sum.
        loss = loss * self.accelerator.num_processes
        return (loss, {}) if return_outputs else loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        # The betas and ε of Vaswani et al. 2017, section 5.3.
        groups = self.groups or [
            {"params": [p for p in self.model.parameters() if p.requires_grad]}
        ]
        rate, decay = self.recipe.learning_rate, self.recipe.weight_decay
        self.optimizer = torch.optim.AdamW(
            groups, lr=rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=decay, fused=True
        )
        return self.optimizer

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The dev loss; the mean over processes, so that all make the same decisions."""
        losses = gather_object([dev_loss(self.model, self.dev, self.recipe.batch_tokens)])
        loss = sum(losses) / len(losses)
        # What the Trainer's own `evaluate` does at its end; checkpoints and `Watch` rely on both.
        self.log({"eval_loss": loss})
        self.control: Any = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, {"eval_loss": loss}
        )
        return {"eval_loss": loss}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and stop all processes together when a loss diverged."""
        super().log(logs, start_time)
        for name in ("loss", "eval_loss"):
            refuse_diverged(logs.get(name, 0.0), self.state.global_step, self.recipe)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None
    ) -> None:
        """Only what trains is saved: with frozen weights a checkpoint is as small as the gates."""
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            tensors = trained_tensors(self.model)
            save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS
            )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise WriteError(
                f"The checkpoint {folder} could not be written ({error}): free some space."
            ) from None
        # The marker comes last, when every process has added its random state.
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            facts = {
                "seconds": time.perf_counter() - self.begun,
                "finished": self.control.should_training_stop,
            }
            write_text(folder / MARKER, json.dumps(facts))
        self.accelerator.wait_for_everyone()


@contextlib.contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Inside the block weights of half precision are float32: small updates would be lost in fewer bits. Afterwards
    each has its own type again."""
    tensors = [*model.parameters(), *model.buffers()]
    # Offloaded weights are on `meta`; they are frozen and load in their own type.
    half = {
        t: t.dtype for t in tensors if t.dtype in (torch.float16, torch.bfloat16) and not t.is_meta
    }
    try:
        for tensor in half:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in half.items():
            tensor.data = tensor.data.to(dtype)
            # It has another type than the weight now.
            tensor.grad = None


def refuse_diverged(loss: float, updates: int, recipe: Training) -> None:
    """Raise HeadwiseError for a loss that is not a finite number. One that is only high may fall again, and of a model that
    was given a lower rate is tried."""
    if not math.isfinite(loss):
        raise HeadwiseError(
            f"The training diverged: the loss is {loss:.3g} after {updates} updates; lower learning_rate, which is "
            f"{recipe.learning_rate:g}, or raise warmup, which is {recipe.warmup}."
        )


class Watch(TrainerCallback):
    """Reports progress, and stops when the dev loss has not fallen for `patience` epochs.

    It has no state: the history is in the checkpoints, so a resumed run stops where an uninterrupted one does.
    """

    def __init__(self, patience: int | None, progress: OnProgress) -> None:
        self.patience, self.progress = patience, progress

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        losses = dev_losses(state)
        best = f", loss {min(losses):.3f}" if losses else ""
        updates = f"update {state.global_step} of {state.max_steps}"
        self.progress(state.global_step / state.max_steps, f"{updates}{best}")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # A logged mean must not span a checkpoint: a resumed run would have another one.
        control.should_log = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        losses = dev_losses(state)
        if self.patience and len(losses) - 1 - losses.index(min(losses)) >= self.patience:
            control.should_training_stop = True


def dev_losses(state: TrainerState) -> list[float]:
    return [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]


@unchanged_generators()
def train_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    discovery: Discovery,
    training: TrainingSetup,
    gated: Gated = UNGATED,
    callbacks: Sequence[TrainerCallback] = (),
    patience: int | None = None,
    keep: int = 2,
) -> dict[str, float]:
    """Train a model in place, from the last complete checkpoint in `work` if there is one; writes `log.csv` there.
    Afterwards each of its modules is in its own mode (training or evaluation) again.

    patience: epochs without a better dev loss before training stops. keep: how many checkpoints stay. Returns the
    seconds it took (with those of interrupted runs up to their last checkpoint) and the number of updates. Raises
    HeadwiseError as soon as a training or dev loss is not a number; what was trained since is not kept.
    """
    recipe, work = training.recipe, training.work
    arguments = training_arguments(training, keep, device_of(model))
    # A loaded model's fixed positions never get a gradient.
    arguments.ddp_find_unused_parameters = gated is not UNGATED
    # The main process deletes incomplete checkpoints before the others look.
    with PartialState().main_process_first():
        # None where nothing was trained yet.
        resumed = resume_point(work)
    facts = read_marker(resumed)
    # Not strict, because a checkpoint has no frozen weights.
    if resumed and facts["finished"]:
        load_model(model, resumed / WEIGHTS, strict=False)
    else:
        caching = getattr(model.config, "use_cache", None)
        trainer = TokenTrainer(
            training=training,
            groups=gated.groups,
            seconds=facts["seconds"],
            model=model,
            args=arguments,
            processing_class=tokenizer,
            callbacks=[Watch(patience, training.progress), *callbacks],
        )
        # It prints every log entry.
        trainer.remove_callback(PrinterCallback)
        explicit = device_of(model).type == "cpu"
        try:
            # `evaluating` gives every module its mode back; the Trainer itself sets the model to training.
            with (
                evaluating(model),
                evaluating(training.whole or nn.Identity()),
                in_float32(model),
                in_float32(training.whole or nn.Identity()),
                reloading(model),
                passing_gradients(model),
                capture(model, discovery, gates=gated.gates, explicit=explicit),
                loss_forward(model, gated.before, gated.penalty, taught_by(training, model)),
                fast_dropout(model),
            ):
                trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
        except UnpicklingError:
            raise HeadwiseError(
                f"The checkpoint {resumed} is damaged: remove it, and training goes on from an earlier one."
            ) from None
        finally:
            # The Trainer turns it off.
            if caching is not None:
                model.config.use_cache = caching
    # Also where nothing ran just now: the numbers are those of its files.
    last = checkpoints(work)[-1]
    state = TrainerState.load_from_json(str(last / "trainer_state.json"))
    refuse_diverged(dev_losses(state)[-1], state.global_step, recipe)
    if PartialState().is_main_process:
        write_text(work / "log.csv", tidy(state))
    return {"seconds": read_marker(last)["seconds"], "updates": state.global_step}


def taught_by(training: TrainingSetup, model: PreTrainedModel) -> nn.Module | None:
    """The encoder whose states are learnt. Where the text is read several times, and its states are small enough to keep,
    the encoder reads it once; of several processes each has a part of the text, which changes."""
    whole, recipe = training.whole, training.recipe
    if whole is None or recipe.epochs == 1 or PartialState().num_processes > 1:
        return whole
    numbers = int(training.data.longest.sum()) * int(model.config.hidden_size)
    if 4 * numbers > KEPT_STATES:
        return whole
    return KnownStates(whole, lambda: training.data.once(model, recipe.batch_tokens))


def training_arguments(
    training: TrainingSetup, keep: int, device: torch.device
) -> Seq2SeqTrainingArguments:
    """The Trainer's arguments. `accumulate` counts batches per update over all processes, the Trainer those of one.

    A single process trains on `device` alone, whatever other GPUs there are: the Trainer would take the first one, and
    spread each batch over copies of the model on all.
    """
    recipe, seed = training.recipe, training.seed
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(training.work),
        num_train_epochs=recipe.epochs,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=recipe.schedule,
        warmup_steps=recipe.warmup,
        max_grad_norm=recipe.clip,
        seed=seed,
        data_seed=seed,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=keep,
        logging_strategy="steps",
        logging_steps=20,
        disable_tqdm=True,
        bf16=bfloat16(recipe.dtype, device.type),
        report_to="none",
        remove_unused_columns=False,
        # The sampler gives every process equally many batches; Accelerate would repeat rows.
        accelerator_config={"even_batches": False, "non_blocking": device.type == "cuda"},
        # Else the Trainer puts the last mean in place of a NaN, and no divergence shows.
        logging_nan_inf_filter=False,
        log_level="error",
        use_cpu=device.type == "cpu",
    )
    if arguments.world_size == 1:
        arguments._n_gpu = min(arguments.n_gpu, 1)
        arguments.__dict__["_setup_devices"] = arguments.distributed_state.device = device
    processes = arguments.world_size
    if recipe.accumulate % processes:
        raise HeadwiseError(
            f"accumulate = {recipe.accumulate} batches per update cannot be divided by {processes} processes."
        )
    # Together the processes see as many batches an update as one would alone.
    arguments.gradient_accumulation_steps = recipe.accumulate // processes
    return arguments


def checkpoints(work: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    folders = (marker.parent for marker in work.glob(f"checkpoint-*/{MARKER}"))
    return sorted(folders, key=lambda path: int(path.name.rpartition("-")[2]))


def resume_point(work: Path) -> Path | None:
    """The last complete checkpoint. Deletes incomplete ones."""
    complete = checkpoints(work)
    for path in set(work.glob("checkpoint-*")) - set(complete):
        shutil.rmtree(path)
    return complete[-1] if complete else None


def read_marker(checkpoint: Path | None) -> dict[str, Any]:
    """The content of a completion marker: seconds of training so far, and whether training was finished."""
    if checkpoint is None:
        return {"seconds": 0.0, "finished": False}
    facts: dict[str, Any] = json.loads((checkpoint / MARKER).read_text())
    return facts


def tidy(state: TrainerState) -> str:
    """The Trainer's log, as CSV."""
    lines = ["step,epoch,measure,value"]
    for entry in state.log_history:
        start = f"{entry['step']},{entry['epoch']:.4f}"
        lines += [
            f"{start},{LOGGED[name]},{value:.8g}" for name, value in entry.items() if name in LOGGED
        ]
    return "\n".join(lines) + "\n"


def average(model: PreTrainedModel, work: Path, count: int) -> int:
    """Load the mean of the last `count` checkpoints into the model (Vaswani et al. 2017, section 6.1); returns their
    number."""
    last = checkpoints(work)[-count:]
    total: dict[str, Tensor] = {}
    with in_float32(model):
        for path in last:
            load_model(model, path / WEIGHTS, strict=False)
            # The mean of one is itself, and it is loaded.
            if len(last) == 1:
                return 1
            for name, tensor in trained_tensors(model).items():
                # On the CPU, because not every device has float64 (Apple's).
                wide = tensor.to("cpu", torch.float64, copy=True)
                total[name] = total[name] + wide if name in total else wide
        dtypes = {name: tensor.dtype for name, tensor in trained_tensors(model).items()}
        mean = {name: (tensor / len(last)).to(dtypes[name]) for name, tensor in total.items()}
        model.load_state_dict(mean, strict=False)
    return len(last)


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that training may change: buffers, and weights that are not frozen, tied ones once.

    Offloaded weights are frozen.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        is_frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        # Tied weights are one parameter under two names.
        if is_frozen or tensor.is_meta or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        tensors[name] = tensor.detach()
    return tensors


def converge(
    hf: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    discovery: Discovery,
    training: TrainingSetup,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Train a fresh model to convergence, and use the mean of the last checkpoints if that lowers the dev loss.

    callbacks: of the Trainer, such as one that logs the heads. Returns what `train_model` does, the dev loss, and over
    how many checkpoints the model is averaged.
    """
    recipe = training.recipe
    keep = max(recipe.average, 2)
    cost = train_model(
        hf, tokenizer, discovery, training, callbacks=callbacks, patience=recipe.patience, keep=keep
    )
    with loss_forward(hf):
        last = dev_loss(hf, training.dev, recipe.batch_tokens)
        averaged = average(hf, training.work, recipe.average)
        mean = dev_loss(hf, training.dev, recipe.batch_tokens)
    # The mean is in the model now; the last checkpoint alone brings it back.
    if mean > last:
        averaged = average(hf, training.work, 1)
    return {**cost, "dev_loss": min(mean, last), "averaged": averaged}


def bfloat16(dtype: str, device: str) -> bool:
    """Whether to compute in bfloat16: `bfloat16`, or `auto` on a processor with native bfloat16 products."""
    if dtype != "auto":
        return dtype == "bfloat16"
    # A CPU without these instructions emulates bfloat16, far slower than float32.
    if device == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
