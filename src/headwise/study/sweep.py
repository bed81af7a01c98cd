"""A sweep of a plan: settings of one method of pruning over the same kinds of heads, and the controls beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from headwise.errors import HeadwiseError
from headwise.heads import KINDS, Kind
from headwise.importance.gating import GATINGS
from headwise.pruning.hard_concrete import GateRecipe
from headwise.pruning.wanted_count import Keep
from headwise.study.scoring import BLEU, chosen

Method = Literal["gates", "top-k", "greedy"]
Control = Literal["further", "random", "one-per-layer", "one-per-layer-random", "from-scratch", "narrower"]
OF_A_SWEEP: tuple[Control, ...] = ("further", "one-per-layer", "one-per-layer-random")
TRAINED_ANEW: tuple[Control, ...] = ("from-scratch", "narrower")
UNSCORED = ("random", "weight-norm")  # orders of removal that look at no text
HELD = ("pruned", "further", "random", "uncompensated")  # words for what models are held against, beside the full one
OF_GATES = ("start", "settle", "gate_learning_rate")
OF_GREEDY = ("rescore", "tune", "step", "orders", "compensate")
GRID = (0.005, 0.01, 0.02, 0.04)


@dataclass(frozen=True)
class Setting:
    """One model of a study, made from the full one.

    value: λ, or the wanted number of heads, of a setting with gates. order, kept: the greedy order and how many heads
    it leaves. control: which control it is; of: the setting it is the twin of, None for controls of a whole sweep.
    """

    name: str
    sweep: int
    method: str
    value: float | Keep | None = None
    order: str | None = None
    kept: int | None = None
    control: Control | None = None
    of: str | None = None

    @property
    def greedy(self) -> bool:
        return self.order is not None


class Pruning(GateRecipe):
    """One sweep. `name` stands before the names of its settings, and is needed where a plan has several.

    gates: λ of `penalties`, and numbers of heads of `keep` (in total, or one a kind). top-k: `keep`. greedy: `scores`,
    in steps of `step`, asked once or anew after every step (`rescore`); `orders` random ones; `tune`: fine-tuned after.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = Field(default="", pattern=r"^[\w-]*$")
    kinds: list[Kind] = Field(default=["encoder-self"], min_length=1)
    method: Method = "gates"
    penalties: list[float] = Field(default=list(GRID))
    refine: int = Field(default=0, ge=0)
    keep: list[int | dict[Kind, int]] = Field(default=[])
    scores: list[str] = Field(default=[])
    rescore: bool = False
    step: float = Field(default=0.1, gt=0, le=1)
    orders: int = Field(default=3, ge=1)
    tune: bool = False
    compensate: bool = False
    controls: list[Control] = Field(default=[])
    seeds: list[int] = Field(default=[])

    @model_validator(mode="before")
    @classmethod
    def only_what_is_asked(cls, data: Any) -> Any:
        """λ are taken by default only where nothing else says how far to prune; scores only by greedy removal."""
        if isinstance(data, dict):
            greedy = data.get("method") == "greedy"
            if "penalties" not in data and (data.get("keep") or data.get("method") in ("greedy", "top-k")):
                data = {**data, "penalties": []}
            if greedy and not data.get("scores"):
                data = {**data, "scores": ["gradient", "random"]}
        return data

    @field_validator("penalties", mode="before")
    @classmethod
    def spread(cls, told: Any) -> Any:
        """A range, such as {from = 0.002, to = 0.1, count = 6}, as so many λ in equal ratios."""
        if not isinstance(told, dict):
            return told
        if set(told) != {"from", "to", "count"}:
            raise ValueError("a range of penalties has the keys from, to and count")
        low, high, count = told["from"], told["to"], told["count"]
        numbers = all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high))
        if not (numbers and isinstance(count, int) and count >= 2 and 0 < low < high):
            raise ValueError("a range of penalties needs numbers 0 < from < to, and a count of at least 2")
        return [float(f"{low * (high / low) ** (i / (count - 1)):.3g}") for i in range(count)]

    @field_validator("*", mode="before")
    @classmethod
    def numbers(cls, told: Any, info: ValidationInfo) -> Any:
        """`true` would pass for 1 where a number is asked for."""
        inner = told if isinstance(told, list) else [told]
        every = [value for one in inner for value in (one.values() if isinstance(one, dict) else [one])]
        switch = cls.model_fields[str(info.field_name)].annotation is bool
        if not switch and any(isinstance(value, bool) for value in every):
            raise ValueError("true and false mean nothing here")
        return told

    @field_validator("kinds")
    @classmethod
    def once(cls, kinds: list[Kind]) -> list[Kind]:
        if len(set(kinds)) < len(kinds):
            raise ValueError("no kind may be there twice")
        return kinds

    @field_validator("penalties")
    @classmethod
    def positive(cls, values: list[float]) -> list[float]:
        if any(value < 0 for value in values):
            raise ValueError("penalties must be numbers of at least 0")
        if len({f"{value:g}" for value in values}) < len(values):
            raise ValueError("no penalty may be there twice (six digits count)")
        return values

    @field_validator("keep", mode="before")
    @classmethod
    def of_known_kinds(cls, wanted: Any) -> Any:
        """Numbers by kind are looked at first: the type (a number or a table) would only miss a number."""
        for keep in wanted if isinstance(wanted, list) else ():
            if isinstance(keep, dict) and (other := [kind for kind in keep if kind not in KINDS]):
                raise ValueError(f"'{other[0]}' is no kind of heads; there is {', '.join(KINDS)}")
            if isinstance(keep, dict) and (other := [kind for kind in keep if not isinstance(keep[kind], int)]):
                raise ValueError(f"how many heads of {other[0]} stay must be a whole number")
        return wanted

    @field_validator("keep")
    @classmethod
    def some_heads(cls, wanted: list[int | dict[Kind, int]]) -> list[int | dict[Kind, int]]:
        for keep in wanted:
            if any(count < 1 for count in (keep.values() if isinstance(keep, dict) else [keep])):
                raise ValueError("at least 1 head must be kept")
        if len({keep_name(keep) for keep in wanted}) < len(wanted):
            raise ValueError("no number of heads may be there twice")
        return wanted

    @field_validator("scores")
    @classmethod
    def known(cls, names: list[str]) -> list[str]:
        try:
            found = [full for name in names for full in ([name] if name in UNSCORED else chosen([name]))]
        except HeadwiseError as error:
            raise ValueError(f"{error} Here there are {' and '.join(UNSCORED)}, too.") from None
        if other := [name for name in found if name in (*GATINGS, BLEU)]:
            raise ValueError(f"{other[0]} takes too long to give an order of removal")
        return list(dict.fromkeys(found))

    @model_validator(mode="after")
    def fits(self) -> Pruning:
        """Options that would be ignored are refused."""
        wanted = {"gates": ("penalties", "keep"), "top-k": ("keep",), "greedy": ("scores",)}
        offered = {option for options in wanted.values() for option in options}
        unfit = [option for option in sorted(offered) if getattr(self, option) and option not in wanted[self.method]]
        ignored = [*(OF_GREEDY if self.method != "greedy" else OF_GATES)]
        ignored += [] if self.penalties else ["refine", "rule", "penalty_scale"]
        ignored += [] if self.method == "gates" else ["temperature"]
        unfit += [option for option in ignored if getattr(self, option) != type(self).model_fields[option].default]
        if unfit:
            raise ValueError(f"{', '.join(unfit)} would mean nothing for the method '{self.method}' as it is asked for")
        if not any(getattr(self, option) for option in wanted[self.method]):
            raise ValueError(f"at least one of {' or '.join(wanted[self.method])} is needed")
        if self.tune and self.compensate:
            raise ValueError("compensate replaces fine-tuning, so tune cannot be set as well")
        if self.refine and len(self.penalties) < 2:
            raise ValueError("refine fills in between penalties: give at least two")
        if self.method == "greedy" and not self.tune and self.controls:
            raise ValueError("controls stand beside models that were fine-tuned: set tune, or leave controls out")
        for keep in self.keep:
            if isinstance(keep, dict) and set(keep) != set(self.kinds):
                raise ValueError(f"keep names {', '.join(keep)}, but the kinds are {', '.join(self.kinds)}")
        return self

    @property
    def recipe(self) -> dict[str, Any]:
        """What goes into a model beside its own setting."""
        return self.model_dump(include={*GateRecipe.model_fields, "kinds"})

    @property
    def learning(self) -> dict[str, Any]:
        """How weights are trained on, whatever becomes of gates."""
        return self.model_dump(include={*GateRecipe.model_fields, "kinds"} - {*GATES_ONLY})


GATES_ONLY = ("penalty_scale", "gate_learning_rate", "temperature", "start", "rule", "settle")


def keep_name(keep: Keep) -> str:
    """What a wanted number of heads is called: `10`, `encoder-self-4+cross-6`."""
    if isinstance(keep, int):
        return str(keep)
    return "+".join(f"{kind}-{count}" for kind, count in keep.items())


def titled(sweep: Pruning, name: str) -> str:
    return f"{sweep.name}.{name}" if sweep.name else name


def gate_settings(sweep: Pruning, place: int, filled: Sequence[float] = ()) -> Iterator[Setting]:
    """The settings of a sweep with gates, in the order of the plan. filled: λ that were filled in."""
    for penalty in [*sweep.penalties, *filled]:
        yield Setting(titled(sweep, f"lambda-{penalty:g}"), place, "hard-concrete", value=penalty)
    method, word = ("top-k", "top") if sweep.method == "top-k" else ("wanted-count", "keep")
    for keep in sweep.keep:
        yield Setting(titled(sweep, f"{word}-{keep_name(keep)}"), place, method, value=keep)


def orders(sweep: Pruning) -> dict[str, str]:
    """The greedy orders of a sweep: what each is called, and the measure (or `random`) behind it."""
    if sweep.method != "greedy":
        return {}
    named: dict[str, str] = {}
    for score in sweep.scores:
        if score == "random":
            named |= {titled(sweep, f"greedy-random.{turn}"): score for turn in range(1, sweep.orders + 1)}
        else:
            named[titled(sweep, f"greedy-{score}")] = score
    return named


def greedy_setting(sweep: Pruning, place: int, order: str, score: str, kept: int) -> Setting:
    """What is left after some steps of a greedy order."""
    again = ".rescored" if sweep.rescore and score not in UNSCORED else ""
    return Setting(f"{order}-{kept}", place, f"greedy.{score}{again}", order=order, kept=kept)


def sweep_controls(sweep: Pruning, place: int) -> Iterator[Setting]:
    """The controls that a whole sweep has once."""
    for control in OF_A_SWEEP:
        if control in sweep.controls:
            yield Setting(titled(sweep, control), place, f"control.{control}", control=control)


def held_against(sweeps: Sequence[Pruning], setting: Setting) -> dict[str, str]:
    """The models beside the full one that a model is held against, each by the word that tables have for it.

    pruned: of a control the model whose twin it is. further: the full model, trained on as long. random: of the best
    head of each layer a random one of each. uncompensated: the same removal without the mean outputs of removed heads.
    """
    own = sweeps[setting.sweep]

    def control(name: Control) -> str | None:
        """That of the sweep, or of one that trains alike."""
        having = [sweep for sweep in (own, *sweeps) if name in sweep.controls]
        return next((titled(sweep, name) for sweep in having if sweep.learning == own.learning), None)

    untrained = setting.control in ("further", *TRAINED_ANEW) or (setting.greedy and not own.tune)
    found = {
        "pruned": setting.of, "further": None if untrained else control("further"),
        "random": control("one-per-layer-random") if setting.control == "one-per-layer" else None,
        "uncompensated": uncompensated(sweeps, setting),
    }  # fmt: skip
    return {word: name for word, name in found.items() if name}


def uncompensated(sweeps: Sequence[Pruning], setting: Setting) -> str | None:
    """The same heads removed in the same order, without mean outputs, where a sweep has it."""
    own = sweeps[setting.sweep]
    if not (setting.order and own.compensate):
        return None
    order = setting.order.removeprefix(f"{own.name}.")
    for sweep in sweeps:
        same = {*sweep.kinds} == {*own.kinds} and (sweep.step, sweep.rescore) == (own.step, own.rescore)
        if same and not sweep.tune and not sweep.compensate and titled(sweep, order) in orders(sweep):
            return f"{titled(sweep, order)}-{setting.kept}"
    return None


def twin_controls(sweep: Pruning, place: int, setting: Setting) -> Iterator[Setting]:
    """The controls of one setting: as many heads, or as many parameters, got otherwise."""
    for control in get_args(Control):
        if control in sweep.controls and control not in OF_A_SWEEP:
            yield Setting(f"{setting.name}.{control}", place, f"control.{control}", control=control, of=setting.name)
