"""Pruning with Hard Concrete gates: from the converged model, train on with L = L_xent + λ L_C, then decide every gate (Voita et al. 2019, section 6)."""

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

from headwise.attention import masked
from headwise.heads import HeadMask, Kind
from headwise.model import Model
from headwise.pruning.gates import Gates, HardConcrete, Rule, Scale
from headwise.translation.batches import Encoded
from headwise.translation.train import Recipe, dev_loss, fit, loss_forward


class GateRecipe(BaseModel):
    """How to prune with gates. Rates are constant after a short warm-up; gates have a rate of their own and no decay."""

    model_config = ConfigDict(extra="forbid")

    penalty_scale: Scale = Field(default="paper", description="paper: λ times the sum over heads; code: times the mean over layers of their sums")
    epochs: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0)
    gate_learning_rate: float = Field(default=0.05, gt=0)
    warmup: int = Field(default=50, ge=0)
    temperature: float = Field(default=0.33, gt=0)
    start: float = Field(default=3.0, description="log α at the start; from 2.4 on the converged model is unchanged at step 0")
    rule: Rule = "sign"
    average: int = Field(default=1, ge=1)


@dataclass(frozen=True)
class Pruned:
    """What a pruning run gives: the mask, the smaller model, the dev loss with soft and with decided gates, and notes for the report."""

    mask: HeadMask
    model: Model
    soft_loss: float
    decided_loss: float
    undecided: float
    notes: list[str]


class GateLog(TrainerCallback):
    """Writes P(open) of every head every few updates (`step,kind,layer,head,p_open`), for the report and the animation."""

    def __init__(self, gates: Gates, path: Path, every: int = 10) -> None:
        self.gates, self.path, self.every = gates, path, every

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        lines = self.path.read_text().splitlines()[1:] if self.path.exists() else []
        lines = [line for line in lines if int(line.partition(",")[0]) <= state.global_step]
        self.path.write_text("step,kind,layer,head,p_open\n" + "".join(f"{line}\n" for line in lines))
        if not lines:
            self.write(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero and (state.global_step % self.every == 0 or state.global_step == state.max_steps):
            self.write(state.global_step)

    def write(self, step: int) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{step},{h.kind},{h.layer},{h.head},{p:.5f}\n" for h, p in self.gates.probabilities().items())


def trainable(model: PreTrainedModel, kinds: tuple[Kind, ...]) -> list[str]:
    """Freeze the decoder when only encoder heads are pruned, so that functions cannot move there (section 6.2); returns notes.

    The encoder and the source embeddings train; embeddings that are also the decoder's or the output layer's stay frozen.
    """
    if kinds != ("encoder-self",) or not model.config.is_encoder_decoder:
        return []
    encoder = {id(p) for p in model.get_encoder().parameters()}
    decoder = {id(p) for p in model.get_decoder().parameters()} | {id(p) for p in model.get_output_embeddings().parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in encoder - decoder and parameter.requires_grad)
    if encoder & decoder:
        return ["The source embeddings are tied to the decoder's and stayed frozen with it."]
    return ["The decoder was frozen; encoder, source embeddings and gates trained."]


def prune_by_gates(
    model: Model, data: Encoded, dev: Encoded, penalty: float, kinds: tuple[Kind, ...], recipe: GateRecipe, training: Recipe, work: Path, seed: int,
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> Pruned:  # fmt: skip
    """Gates on every head of `kinds`, fine-tuning with λ = `penalty`, decision, real removal. Trains `model` in place; resumes from `work`."""
    states = {name: parameter.requires_grad for name, parameter in model.hf.named_parameters()}
    notes = trainable(model.hf, kinds)
    gates = Gates(model.heads.only(kinds), HardConcrete(recipe.temperature), recipe.start).to(model.hf.device)
    weights = [p for p in model.hf.parameters() if p.requires_grad]
    model.hf.add_module("headwise_gates", gates)
    groups: list[dict[str, Any]] = [
        {"params": weights, "lr": recipe.learning_rate},
        {"params": [gates.log_alpha], "lr": recipe.gate_learning_rate, "weight_decay": 0.0},
    ]
    tuning = training.model_copy(
        update={"epochs": recipe.epochs, "learning_rate": recipe.learning_rate, "warmup": recipe.warmup, "schedule": "constant_with_warmup"}
    )
    work.mkdir(parents=True, exist_ok=True)

    def cost() -> Tensor:
        return penalty * gates.penalty(recipe.penalty_scale)

    try:
        fit(
            model.hf, model.tokenizer, model.found, data, dev, tuning, work, seed, gates=gates.by_site(), before=gates.draw, penalty=cost,
            groups=groups, callbacks=[GateLog(gates, work / "gates.csv")], progress=progress,
        )  # fmt: skip
    finally:
        del model.hf.headwise_gates
        for name, parameter in model.hf.named_parameters():
            parameter.requires_grad_(states[name])
    return decide(model, gates, dev, recipe, training, notes)


def decide(model: Model, gates: Gates, dev: Encoded, recipe: GateRecipe, training: Recipe, notes: list[str]) -> Pruned:
    """Open or shut every gate, compare the dev loss before and after, and cut the shut heads out."""
    from headwise.attention import capture

    gates.eval()
    gates.draw()
    settled = gates.distribution
    p = settled.p_open(gates.log_alpha.detach())
    undecided = float(((p > 0.1) & (p < 0.9)).float().mean())
    if undecided > 0.1:
        notes.append(f"The gates had not settled: {undecided:.0%} of them were still between 0.1 and 0.9. Train longer.")
    mask = gates.mask(model.heads, recipe.rule)
    for kind in gates.heads.kinds:
        if mask.count(kind) == 0:
            notes.append(f"No {kind} head is left: λ is so large that only the residual path remains there.")
    with torch.no_grad(), loss_forward(model.hf):
        with capture(model.hf, model.found, gates=gates.by_site()):
            soft = dev_loss(model.hf, dev, model.tokenizer, training.batch_tokens)
        with masked(model.hf, model.found, mask):
            hard = dev_loss(model.hf, dev, model.tokenizer, training.batch_tokens)
    return Pruned(mask, model.remove(mask), soft, hard, undecided, notes)
