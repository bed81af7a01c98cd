"""All options of training, search and pruning. They are checked when they are read, long before torch is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headwise.heads import HeadMap, Kind

SCHEDULES = "^(inverse_sqrt|constant_with_warmup|linear|cosine)$"
Scale = Literal["paper", "code"]
Rule = Literal["sign", "deterministic"]
Unit = Literal["head", "balanced", "group", "uniform"]
Train = Literal["all", "gates", "lora"]
Keep = int | Mapping[Kind, int]
Control = Literal[
    "fine-tuned", "random", "one-per-layer", "one-per-layer-random", "from-scratch", "narrower"
]
OF_A_SWEEP: tuple[Control, ...] = (
    "fine-tuned",
    "one-per-layer",
    "one-per-layer-random",
)  # others: of every model
Engine = Literal["transformers", "ct2"]
FROM_RANDOM_WEIGHTS: tuple[Control, ...] = ("from-scratch", "narrower")


class Architecture(BaseModel):
    """The shape of a Transformer to train (Vaswani et al. 2017).

    norm: "post" builds Marian, "pre" builds M2M100, which is nearest to the paper's code.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    norm: Literal["post", "pre"] = "post"
    encoder_layers: int = Field(default=3, ge=1)
    decoder_layers: int = Field(default=3, ge=1)
    heads: int = Field(default=8, ge=1)
    width: int = Field(default=256, ge=4)
    feedforward: int = Field(default=1024, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    vocabulary: int = Field(default=8000, ge=10)
    max_length: int = Field(
        default=128, ge=4, description="longest sentence in tokens, end of sentence included"
    )

    @property
    def head_map(self) -> HeadMap:
        """The heads of a model of this shape."""
        encoder, decoder = (self.heads,) * self.encoder_layers, (self.heads,) * self.decoder_layers
        return HeadMap({"encoder-self": encoder, "decoder-self": decoder, "cross": decoder})


class Recipe(BaseModel):
    """How to train. The rate rises to `learning_rate` in `warmup` updates, then falls with the inverse square root of
    the update (Vaswani et al. 2017)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    epochs: int = Field(default=40, ge=1)
    batch_tokens: int = Field(
        default=5040, ge=16, description="positions a side in one batch, padding included"
    )
    accumulate: int = Field(default=1, ge=1, description="batches per update, over all processes")
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=1000, ge=0)
    schedule: str = Field(default="inverse_sqrt", pattern=SCHEDULES)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, gt=0)
    patience: int = Field(
        default=10, ge=1, description="epochs without a better dev loss before training stops"
    )
    average: int = Field(
        default=5, ge=1, description="how many of the last checkpoints are averaged"
    )
    dtype: str = Field(
        default="auto", pattern="^(auto|fp32|bf16)$", description="auto: bf16 where it is native"
    )


class Search(BaseModel):
    """Beam search. `length_penalty` α divides a hypothesis' score by its length to the power α (0: no correction).
    `engine`: what searches: transformers' `generate`, or CTranslate2 (docs/howto/export.md)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    beam: int = Field(default=5, ge=1)
    length_penalty: float = 1.0
    batch: int = Field(default=25, ge=1, description="sentences decoded at once")
    engine: Engine = "transformers"


class TuningOptions(BaseModel):
    """How to fine-tune a trained model. The rate climbs for `warmup` updates and then falls to 0."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    epochs: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0)
    warmup: int = Field(default=50, ge=0)
    schedule: str = Field(default="linear", pattern=SCHEDULES)
    average: int = Field(
        default=1, ge=1, description="how many of the last checkpoints are averaged, gates included"
    )

    def within(self, recipe: Recipe) -> Recipe:
        """`recipe` with the length, rate and schedule of fine-tuning."""
        changes = {
            name: getattr(self, name) for name in ("epochs", "learning_rate", "warmup", "schedule")
        }
        return recipe.model_copy(update=changes)


class GateOptions(TuningOptions):
    """How to prune with gates. They have a learning rate of their own and no weight decay."""

    train: Train = Field(
        default="all",
        description="beside the gates: all weights; gates: none; lora: low-rank changes of linear layers",
    )
    penalty_scale: Scale = Field(
        default="paper", description="paper: λ Σ over heads; code: λ mean over layers of Σ"
    )
    gate_learning_rate: float = Field(default=0.05, gt=0)
    temperature: float = Field(default=0.33, gt=0)
    start: float | Literal["glorot"] = Field(
        default=3.0,
        description="log α at the start; from 2.4 on step 0 is the converged model; glorot: as released",
    )
    rule: Rule = "sign"
    unit: Unit | None = Field(
        default=None, description="what goes at once; unset: what keeps groups equally large"
    )
    settle: float | None = Field(
        default=None,
        ge=0,
        le=0.4,
        description="share of the run, at its end, with decided gates; unset: 0 (as in the "
        "paper), and a quarter with a target count",
    )

    @model_validator(mode="after")
    def refuse_idle(self) -> Self:
        """With frozen weights some options would do nothing."""
        usual = GateOptions.model_fields
        idle = [
            name
            for name in ("settle", "learning_rate")
            if getattr(self, name) != usual[name].default
        ]
        if self.train == "gates" and idle:
            raise ValueError(
                f"train = 'gates' freezes all weights, so {' and '.join(idle)} would change nothing"
            )
        return self


def too_few(options: GateOptions, updates: int, exactly: bool = True) -> str:
    """A sentence where a run has too few updates for gates to close, or to settle, under a penalty; else nothing.

    Adam moves log α by about the learning rate an update, so over a run by the sum of the rates at most. To settle, a
    gate goes from `start` to −`start`. exactly: whether the updates are counted, not estimated.
    """
    if isinstance(options.start, str):
        return ""
    mean = (
        0.5 if options.schedule in ("linear", "cosine") else 1.0
    )  # of the rate over a run, in its maximum
    enough = math.ceil(2 * options.start / (options.gate_learning_rate * mean))
    epochs = math.ceil(options.epochs * enough / updates)
    found = f"{'' if exactly else 'about '}{updates} updates"
    advice = (
        f"a gate needs {enough} to settle: set epochs to {epochs}, or a higher gate_learning_rate"
    )
    if updates < enough / 2:
        return f"Pruning trains for {found}, in which no gate can close; {advice}."
    return (
        f"Pruning trains for {found}, in which gates may not settle; {advice}."
        if updates < enough
        else ""
    )
