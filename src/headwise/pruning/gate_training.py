"""Pruning with Hard Concrete gates: fine-tune the converged model with L = L_xent + λ L_C, then decide every gate
(Voita et al. 2019, section 6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from transformers import PreTrainedModel
from transformers.trainer_callback import TrainerCallback

from headwise.attention import capture, masked
from headwise.attention.discover import same_gradients
from headwise.heads import HeadMap, HeadMask, Kind, write_text
from headwise.model import Model
from headwise.pruning.gates import Gates, HardConcrete, Rule, Scale, glorot_uniform
from headwise.translation.batches import Encoded
from headwise.translation.train import SCHEDULES, Gated, Recipe, Training, average, dev_loss, fit, loss_forward

UNDECIDED = 0.1  # largest share of undecided gates in a run that has settled


class TuningOptions(BaseModel):
    """How to fine-tune a trained model. The rate climbs for `warmup` updates and then falls to 0."""

    model_config = ConfigDict(extra="forbid")

    epochs: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0)
    warmup: int = Field(default=50, ge=0)
    schedule: str = Field(default="linear", pattern=SCHEDULES)
    average: int = Field(default=1, ge=1, description="how many of the last checkpoints are averaged, gates included")

    def within(self, recipe: Recipe) -> Recipe:
        """`recipe` with the length, rate and schedule of fine-tuning."""
        changes = {name: getattr(self, name) for name in ("epochs", "learning_rate", "warmup", "schedule")}
        return recipe.model_copy(update=changes)


class GateOptions(TuningOptions):
    """How to prune with gates. They have a learning rate of their own and no weight decay."""

    penalty_scale: Scale = Field(default="paper", description="paper: λ Σ over heads; code: λ mean over layers of Σ")
    gate_learning_rate: float = Field(default=0.05, gt=0)
    temperature: float = Field(default=0.33, gt=0)
    start: float | Literal["glorot"] = Field(
        default=3.0, description="log α at the start; from 2.4 on step 0 is the converged model; glorot: as released"
    )
    rule: Rule = "sign"
    settle: float | None = Field(
        default=None,
        ge=0,
        le=0.4,
        description="share of the run, at its end, with decided gates; unset: 0 (as in the "
        "paper), and a quarter with a target count",
    )


@dataclass(frozen=True)
class Pruned:
    """The result of a pruning run.

    soft_loss, decided_loss: dev loss with the same weights, before and after every gate was set to 0 or 1, when the
    gates were decided. loss: dev loss of the pruned model; where gates are decided at the end it is `decided_loss`.
    expected, undecided: Σ P(open), and the share of gates between 0.1 and 0.9, when the gates were last trained.
    settled: at most UNDECIDED of the gates were undecided, and a target count was reached. notes: sentences for the
    report; doubts: those of them that say why the gates had not settled. cost: seconds and updates.
    """

    mask: HeadMask
    model: Model
    soft_loss: float
    decided_loss: float
    loss: float
    undecided: float
    expected: float
    settled: bool
    notes: list[str]
    doubts: list[str]
    cost: dict[str, float]


class GateLog(TrainerCallback):
    """Writes P(open) of every head every few updates (`step,kind,layer,head,p_open`).

    A resumed run removes the rows after its checkpoint.
    """

    def __init__(self, gates: Gates, path: Path, every: int = 10) -> None:
        self.gates, self.path, self.every = gates, path, every

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        text = self.path.read_text() if self.path.exists() else ""
        rows = text[: text.rfind("\n") + 1].splitlines()[1:]  # the last line may be half-written
        rows = [row for row in rows if int(row.partition(",")[0]) <= state.global_step]
        write_text(self.path, "".join(f"{line}\n" for line in ["step,kind,layer,head,p_open", *rows]))
        if not rows:
            self.write(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero and (
            state.global_step % self.every == 0 or state.global_step == state.max_steps
        ):
            self.write(state.global_step)

    def write(self, step: int) -> None:
        with self.path.open("a") as file:
            file.writelines(
                f"{step},{h.kind},{h.layer},{h.head},{p:.5f}\n" for h, p in self.gates.probabilities().items()
            )


def freeze(model: PreTrainedModel, kinds: tuple[Kind, ...]) -> list[str]:
    """Freeze the decoder when only encoder heads are pruned, so that it cannot take over their work (section 6.2).

    The encoder and the source embeddings train; embeddings that the decoder or the output layer shares are frozen.
    Returns notes for the report.
    """
    if set(kinds) != {"encoder-self"}:
        return []
    encoder = {id(p) for p in model.get_encoder().parameters()}
    decoder = {id(p) for part in (model.get_decoder(), model.get_output_embeddings()) for p in part.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in encoder - decoder and parameter.requires_grad)
    if encoder & decoder:
        return ["The decoder was frozen, and with it the source embeddings, which are tied to its own."]
    return ["The decoder was frozen; the encoder and the source embeddings trained."]


class GateSchedule(TrainerCallback):
    """Sets the share of the run that is over on the gates, and settles them in its last part, `settle` of it.

    kept: which gates stay open (H), called in every step: settling never changes it. loss: the dev loss with gates and
    weights as they are, measured when gates are decided.
    """

    def __init__(self, gates: Gates, settle: float, kept: Callable[[], Tensor], loss: Callable[[], float]) -> None:
        self.gates, self.settle, self.kept, self.loss = gates, settle, kept, loss

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, steps = state.global_step, state.max_steps
        self.gates.share = step / steps
        begin = steps - (max(1, round(self.settle * steps)) if self.settle else 0)
        if step == begin:
            self.gates.loose.copy_(self.gates.log_alpha.detach())
            soft = self.gates.soft()
            for place, gates in enumerate((soft, self.kept().to(soft))):
                with self.gates.held(gates):
                    self.gates.moment[place] = self.loss()
        if step >= begin:
            self.gates.settle(self.kept(), steps - step)


def start_of(options: GateOptions, heads: HeadMap, seed: int) -> float | Tensor:
    """log α at the start."""
    return glorot_uniform(heads, seed) if options.start == "glorot" else options.start


def prune_by_gates(
    model: Model, training: Training, options: GateOptions, kinds: tuple[Kind, ...], penalty: float
) -> Pruned:  # fmt: skip
    """Train gates on every head of `kinds` with λ = `penalty`, decide them, remove heads.

    Trains `model` in place; resumes from `training.work`. training: as the full model was trained.
    """
    heads = model.heads.only(kinds)
    start = start_of(options, heads, training.seed)
    gates = Gates(heads, HardConcrete(options.temperature), start).to(model.hf.device)
    pruned = train_gates(
        model, training, options, gates, cost=lambda: penalty * gates.penalty(options.penalty_scale),
        kept=lambda: gates.kept(options.rule), settle=options.settle or 0.0,
        groups=[{"params": [gates.log_alpha], "lr": options.gate_learning_rate, "weight_decay": 0.0}],
    )  # fmt: skip
    for kind in kinds:
        if pruned.mask.count(kind) == 0:
            pruned.notes.append(f"No {kind} head is left: λ is so large that only the residual connection remains.")
    return pruned


def train_gates(
    model: Model, training: Training, options: GateOptions, gates: Gates, cost: Callable[[], Tensor],
    kept: Callable[[], Tensor], groups: list[dict[str, Any]], settle: float,
) -> Pruned:  # fmt: skip
    """Train model and gates in place, decide the gates, remove heads.

    cost: the penalty per target token. kept: the decision (H). groups: parameter groups beside the model's weights.
    settle: the share of the run, at its end, with decided gates.
    """
    hf, dev, tokens, work = model.hf, training.dev, training.recipe.batch_tokens, training.work

    def loss() -> float:
        return dev_loss(hf, dev, model.tokenizer, tokens)

    with same_gradients(hf):
        notes = freeze(hf, gates.heads.kinds)
        own = {"params": [p for p in hf.parameters() if p.requires_grad], "lr": options.learning_rate}
        hf.add_module("headwise_gates", gates)
        try:
            spent = fit(
                hf, model.tokenizer, model.found, replace(training, recipe=options.within(training.recipe)),
                Gated(gates.by_site(), gates.draw, cost, [own, *groups]),
                [GateSchedule(gates, settle, kept, loss), GateLog(gates, work / "gates.csv")],
                keep=max(options.average, 2),
            )  # fmt: skip
            last = {name: tensor.clone() for name, tensor in gates.state_dict().items()}
            average(hf, work, options.average)
            if settle:
                gates.load_state_dict(last)  # not averaged with gates from before they settled
            else:
                gates.loose.copy_(gates.log_alpha.detach())
        finally:
            del hf.headwise_gates
    return decide(model, gates, dev, kept(), tokens, notes, spent, early=bool(settle))


def decide(
    model: Model, gates: Gates, dev: Encoded, kept: Tensor, tokens: int, notes: list[str], cost: dict[str, float],
    early: bool = False,
) -> Pruned:  # fmt: skip
    """Decide every gate, compare the dev loss before and after, and remove heads with closed gates. kept: H.

    early: the gates were decided, and the two losses measured, before the end of the run.
    """
    gates.eval()
    undecided, then = gates.undecided(), " when they were decided" if early else ""
    doubt = f"The gates had not settled: {undecided:.0%} were still between 0.1 and 0.9{then}. Train longer."
    doubts = [doubt] if undecided > UNDECIDED else []
    mask = gates.mask(model.heads, kept)
    with torch.no_grad(), loss_forward(model.hf):
        with masked(model.hf, model.found, mask):
            loss = dev_loss(model.hf, dev, model.tokenizer, tokens)
        if early:
            soft, decided = gates.moment.tolist()
        else:
            with capture(model.hf, model.found, gates=gates.by_site()), gates.held(gates.soft()):
                soft, decided = dev_loss(model.hf, dev, model.tokenizer, tokens), loss
    return Pruned(
        mask, model.remove(mask), soft_loss=soft, decided_loss=decided, loss=loss, undecided=undecided,
        expected=gates.expected(), settled=not doubts, notes=[*notes, *doubts], doubts=doubts, cost=cost,
    )  # fmt: skip
