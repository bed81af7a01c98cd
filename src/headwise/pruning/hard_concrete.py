"""Pruning with Hard Concrete gates: from the converged model, train on with L = L_xent + λ L_C, then decide every gate
(Voita et al. 2019, section 6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from transformers import PreTrainedModel
from transformers.trainer_callback import TrainerCallback

from headwise.attention import capture, masked
from headwise.heads import HeadMask, Kind, write_text
from headwise.model import Model
from headwise.pruning.gates import Gates, HardConcrete, Rule, Scale
from headwise.translation.batches import Encoded
from headwise.translation.train import SCHEDULES, Recipe, average, dev_loss, fit, loss_forward


class GateRecipe(BaseModel):
    """How to prune with gates. Both rates climb for `warmup` updates and then fall to 0, so that gates settle.

    Gates have a rate of their own and no weight decay.
    """

    model_config = ConfigDict(extra="forbid")

    penalty_scale: Scale = Field(default="paper", description="paper: λ Σ over heads; code: λ mean over layers of Σ")
    epochs: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0)
    gate_learning_rate: float = Field(default=0.05, gt=0)
    warmup: int = Field(default=50, ge=0)
    schedule: str = Field(default="linear", pattern=SCHEDULES)
    temperature: float = Field(default=0.33, gt=0)
    start: float = Field(default=3.0, description="log α at the start; from 2.4 on step 0 is the converged model")
    rule: Rule = "sign"
    average: int = Field(default=1, ge=1, description="how many of the last checkpoints are averaged, gates included")


@dataclass(frozen=True)
class Pruned:
    """What a pruning run gives.

    soft_loss, decided_loss: on dev, before and after every gate was opened or shut. undecided: the share of gates that
    had not settled. notes: sentences for the report. cost: seconds and updates.
    """

    mask: HeadMask
    model: Model
    soft_loss: float
    decided_loss: float
    undecided: float
    notes: list[str]
    cost: dict[str, float]


class GateLog(TrainerCallback):
    """Writes P(open) of every head every few updates (`step,kind,layer,head,p_open`), for report and animation.

    After a resume the file is cut back to the checkpoint.
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
    """Freeze the decoder when only encoder heads are pruned, so that functions cannot move there (section 6.2).

    The encoder and the source embeddings train; embeddings that are also the decoder's or the output layer's stay
    frozen. Returns notes on what was done.
    """
    if set(kinds) != {"encoder-self"}:
        return []
    encoder = {id(p) for p in model.get_encoder().parameters()}
    decoder = {id(p) for part in (model.get_decoder(), model.get_output_embeddings()) for p in part.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in encoder - decoder and parameter.requires_grad)
    if encoder & decoder:
        return ["The decoder was frozen, and with it the source embeddings, which are tied to its own."]
    return ["The decoder was frozen; encoder, source embeddings and gates trained."]


def prune_by_gates(
    model: Model, data: Encoded, dev: Encoded, penalty: float, kinds: tuple[Kind, ...], recipe: GateRecipe,
    training: Recipe, work: Path, seed: int, progress: Callable[[float, str], None] = lambda share, text: None,
) -> Pruned:  # fmt: skip
    """Gates on every head of `kinds`, fine-tuning with λ = `penalty`, decision, real removal.

    Trains `model` in place; resumes from `work`.
    """
    gates = Gates(model.heads.only(kinds), HardConcrete(recipe.temperature), recipe.start).to(model.hf.device)
    trained = {parameter: parameter.requires_grad for parameter in model.hf.parameters()}
    notes = freeze(model.hf, kinds)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.requires_grad], "lr": recipe.learning_rate},
        {"params": [gates.log_alpha], "lr": recipe.gate_learning_rate, "weight_decay": 0.0},
    ]
    changes = {name: getattr(recipe, name) for name in ("epochs", "learning_rate", "warmup", "schedule")}
    tuning = training.model_copy(update=changes)

    def cost() -> Tensor:
        return penalty * gates.penalty(recipe.penalty_scale)

    model.hf.add_module("headwise_gates", gates)
    try:
        spent = fit(
            model.hf, model.tokenizer, model.found, data, dev, tuning, work, seed, gates=gates.by_site(),
            before=gates.draw, penalty=cost, groups=groups, callbacks=[GateLog(gates, work / "gates.csv")],
            keep=max(recipe.average, 2), progress=progress,
        )  # fmt: skip
        average(model.hf, work, recipe.average)
    finally:
        del model.hf.headwise_gates
        for parameter, state in trained.items():
            parameter.requires_grad_(state)
    return decide(model, gates, dev, recipe.rule, training.batch_tokens, notes, spent)


def decide(
    model: Model, gates: Gates, dev: Encoded, rule: Rule, tokens: int, notes: list[str], cost: dict[str, float]
) -> Pruned:
    """Open or shut every gate, compare the dev loss before and after, and cut the shut heads out."""
    gates.eval()
    gates.draw()
    p = gates.distribution.p_open(gates.log_alpha.detach())
    undecided = float(((p > 0.1) & (p < 0.9)).float().mean())
    if undecided > 0.1:
        notes.append(f"The gates had not settled: {undecided:.0%} were still between 0.1 and 0.9. Train longer.")
    mask = gates.mask(model.heads, rule)
    for kind in gates.heads.kinds:
        if mask.count(kind) == 0:
            notes.append(f"No {kind} head is left: λ is so large that only the residual path remains there.")
    with torch.no_grad(), loss_forward(model.hf):
        with capture(model.hf, model.found, gates=gates.by_site()):
            soft = dev_loss(model.hf, dev, model.tokenizer, tokens)
        with masked(model.hf, model.found, mask):
            hard = dev_loss(model.hf, dev, model.tokenizer, tokens)
    return Pruned(mask, model.remove(mask), soft, hard, undecided, notes, cost)
