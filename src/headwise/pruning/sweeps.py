"""A sweep: models pruned by one method over the same kinds of heads. Gates, top-k and greedy removal each have a class
with only their own options; plan files, Python and the command line all build these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from headwise.errors import HeadwiseError
from headwise.heads import KINDS, HeadMap, Kind
from headwise.importance.measures import facts, resolve_measures
from headwise.options import Control, GateOptions, Keep, TuningOptions, Unit
from headwise.units import sizes, target_counts, units

Count = Annotated[int, Field(ge=1)]
WITHOUT_TEXT = ("random", "weight-norm")  # orders of removal that look at no text


class Sweep(TuningOptions):
    """What all sweeps have. `name` stands before the names of its variants; a plan of several sweeps needs it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    name: str = Field(default="", pattern=r"^[\w-]*$")
    kinds: list[Kind] = Field(default=["encoder-self"], min_length=1)
    unit: Unit | None = None
    keep: list[Count | dict[Kind, Count]] = Field(default=[])
    controls: list[Control] = Field(default=[])
    seeds: list[int] = Field(default=[])

    @field_validator("keep", mode="before")
    @classmethod
    def known_kinds(cls, keeps: Any) -> Any:
        """Checked before the type: a number or a table would only miss a number."""
        named = (
            (kind for keep in keeps if isinstance(keep, dict) for kind in keep)
            if isinstance(keeps, list)
            else ()
        )
        if other := [kind for kind in named if kind not in KINDS]:
            raise ValueError(f"'{other[0]}' is no kind of heads; there is {', '.join(KINDS)}")
        return keeps

    @field_validator("kinds", "keep", "seeds", "controls")
    @classmethod
    def distinct(cls, values: list[Any]) -> list[Any]:
        if any(value in values[:place] for place, value in enumerate(values)):
            raise ValueError("nothing may be there twice")
        return values

    @model_validator(mode="after")
    def same_kinds(self) -> Sweep:
        for keep in self.keep:
            if isinstance(keep, dict) and set(keep) != set(self.kinds):
                raise ValueError(
                    f"keep names {', '.join(keep)}, but the kinds are {', '.join(self.kinds)}"
                )
        return self

    @property
    def training_options(self) -> dict[str, Any]:
        """What goes into a fine-tuned model beside the variant itself."""
        return self.model_dump(include={*GateOptions.model_fields, "kinds"})

    @property
    def weight_training(self) -> dict[str, Any]:
        """How weights are fine-tuned, whatever happens to gates: equal for models that compare fairly."""
        return {
            "train": "all",
            **self.model_dump(include={*TuningOptions.model_fields, "kinds", "train"}),
        }

    def refuse_other_training(self, train: str) -> None:
        if train != "all" and self.controls:
            raise ValueError(
                f"controls train all weights, so they compare with no model of train = '{train}'"
            )

    def titled(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name

    def refuse_counts(self, heads: HeadMap) -> None:
        """Raise ValueError for more heads than there are, and for numbers that the unit cannot give."""
        some = heads.only(self.kinds)
        try:
            units(some, self.unit)  # which some layers cannot form
            for keep in self.keep:
                target_counts(some, keep, 1, self.unit)
        except HeadwiseError as error:
            raise ValueError(str(error)) from None

    def refuse_ignored(self, options: Sequence[str], method: str) -> None:
        if unfit := [
            option
            for option in options
            if getattr(self, option) != type(self).model_fields[option].default
        ]:
            raise ValueError(
                f"{', '.join(unfit)} would mean nothing for the method '{method}' as it is asked for"
            )


class GateSweep(Sweep, GateOptions):
    """Hard Concrete gates: a model for every λ of `penalties` and every target count of `keep`."""

    method: Literal["gates"] = "gates"
    penalties: list[Annotated[float, Field(ge=0)]] = Field(default=[0.005, 0.01, 0.02, 0.04])
    refine: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def penalties_unless_counts(cls, data: Any) -> Any:
        """The default λ apply only where no target count says how far to prune."""
        if isinstance(data, dict) and "penalties" not in data and data.get("keep"):
            return {**data, "penalties": []}
        return data

    @field_validator("penalties", mode="before")
    @classmethod
    def spread(cls, value: Any) -> Any:
        """A range, such as {from = 0.002, to = 0.1, count = 6}, as so many λ in equal ratios."""
        if not isinstance(value, dict):
            return value
        if set(value) != {"from", "to", "count"}:
            raise ValueError("a range of penalties has the keys from, to and count")
        low, high, count = value["from"], value["to"], value["count"]
        numbers = all(
            type(end) in (int, float) and math.isfinite(end) for end in (low, high)
        )  # no booleans
        if not (numbers and isinstance(count, int) and 2 <= count <= 1000 and 0 < low < high):
            raise ValueError(
                "a range of penalties needs numbers 0 < from < to, and a count from 2 to 1000"
            )
        return [float(f"{low * (high / low) ** (i / (count - 1)):.3g}") for i in range(count)]

    @field_validator("penalties")
    @classmethod
    def usable_penalties(cls, values: list[float]) -> list[float]:
        if len({f"{value:g}" for value in values}) < len(values):
            raise ValueError("no penalty may be there twice (six digits count)")
        return values

    @model_validator(mode="after")
    def consistent(self) -> GateSweep:
        if not self.penalties and not self.keep:
            raise ValueError("at least one of penalties or keep is needed")
        if not self.penalties:
            self.refuse_ignored(("refine", "rule", "penalty_scale"), self.method)
        self.refuse_other_training(self.train)
        if self.refine and len(self.penalties) < 2:
            raise ValueError("refine fills in between penalties: give at least two")
        return self


class TopKSweep(Sweep, GateOptions):
    """Relaxed top-K gates: a model for every number of heads in `keep`."""

    method: Literal["top-k"] = "top-k"

    @model_validator(mode="after")
    def consistent(self) -> TopKSweep:
        if not self.keep:
            raise ValueError("keep is needed: the numbers of heads that stay")
        self.refuse_ignored(("rule", "penalty_scale", "temperature"), self.method)
        self.refuse_other_training(self.train)
        return self


class GreedySweep(Sweep):
    """Greedy removal: heads go in the order of each of `scores`, a share of `step` at a time.

    Every step is a model; with `keep` only the one with that many heads. rescore: scored again after every step.
    orders: how many random ones. tune: fine-tuned afterwards. compensate: mean outputs stay in the output's bias.
    """

    method: Literal["greedy"] = "greedy"
    keep: list[Count | dict[Kind, Count]] = Field(default=[], max_length=1)
    scores: list[str] = Field(default=["gradient", "random"], min_length=1)
    rescore: bool = False
    step: float = Field(default=0.1, gt=0, le=1)
    orders: int = Field(default=3, ge=1)
    tune: bool = False
    compensate: bool = False

    @field_validator("scores")
    @classmethod
    def rankable(cls, names: list[str]) -> list[str]:
        try:
            full = [
                name
                for given in names
                for name in ([given] if given in WITHOUT_TEXT else resolve_measures([given]))
            ]
        except HeadwiseError as error:
            raise ValueError(f"{error} Here there are {' and '.join(WITHOUT_TEXT)}, too.") from None
        if other := [name for name in full if facts(name).expensive]:
            raise ValueError(f"{other[0]} takes too long to give an order of removal")
        return list(dict.fromkeys(full))

    @model_validator(mode="after")
    def consistent(self) -> GreedySweep:
        if self.tune and self.compensate:
            raise ValueError("compensate replaces fine-tuning, so tune cannot be set as well")
        if not self.tune and self.controls:
            raise ValueError(
                "controls stand beside models that were fine-tuned: set tune, or leave controls out"
            )
        if not self.tune:
            self.refuse_ignored(tuple(TuningOptions.model_fields), f"{self.method}' without 'tune")
        if self.rescore and set(self.scores) <= {*WITHOUT_TEXT}:
            raise ValueError(
                f"rescore would change nothing: {', '.join(self.scores)} stays as it is"
            )
        return self

    def counts(self, heads: HeadMap) -> list[int]:
        """How many heads of the sweep's kinds every step leaves, falling; where all are to stay, all."""
        least = (
            1
            if not self.keep
            else self.keep[0]
            if isinstance(self.keep[0], int)
            else sum(self.keep[0].values())
        )
        some = heads.only(self.kinds)
        return sizes(units(some, self.unit), self.step, least) or [some.total]


AnySweep = Annotated[
    Annotated[GateSweep, Tag("gates")]
    | Annotated[TopKSweep, Tag("top-k")]
    | Annotated[GreedySweep, Tag("greedy")],
    Discriminator(
        lambda data: data.get("method", "gates") if isinstance(data, dict) else data.method
    ),
]
SWEEPS: dict[str, type[Sweep]] = {"gates": GateSweep, "top-k": TopKSweep, "greedy": GreedySweep}


def keep_name(keep: Keep) -> str:
    """What a target count is called: `10`, `encoder-self-4+cross-6`."""
    return (
        str(keep)
        if isinstance(keep, int)
        else "+".join(f"{kind}-{count}" for kind, count in keep.items())
    )
