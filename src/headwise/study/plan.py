"""The plan of a study: what a TOML file may say, with defaults. Unknown keys and wrong types are refused by name."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import as_path
from headwise.core.heads import Kind
from headwise.core.options import (
    SEED,
    TARGETLESS_ORDERS,
    Architecture,
    Choice,
    Counts,
    FineTuning,
    Gates,
    Greedy,
    Penalty,
    Pruning,
    Search,
    TopK,
    Train,
    Training,
    option,
    validated,
)
from headwise.core.removal_units import refuse_counts
from headwise.data.embedded import PAIR_COUNTS
from headwise.data.lines import existing_file, one_sided
from headwise.importance.options import Scoring
from headwise.pruning.controls import control
from headwise.pruning.removal_scores import removal_scores
from headwise.roles.options import Trees

TextNames = (
    str | list[str]
)  # two files | one .tsv, .csv or .jsonl file | "datasets:NAME" | one-sided text: one file


LONGEST_PLAN = 50_000  # characters
# Where a plan does not name them, they are as usual for the task of the models.
LEFT_TO_TASK = {"training": {"label_smoothing"}, "scoring": {"measures", "pruned"}}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


def changed(options: type[BaseModel], name: str, default: Any) -> Any:
    """A field of a class of options, with another default."""
    # A copy: the class of Python keeps its own default.
    field = copy(options.model_fields[name])
    field.default = default
    return field


class Embedded(Strict):
    """The embedded corpus: how many pairs of each split to take."""

    train: int = option(20000, "training pairs", ge=1, le=PAIR_COUNTS["train"])
    dev: int = option(500, "dev pairs", ge=1, le=PAIR_COUNTS["dev"])
    test: int = option(500, "test pairs", ge=1, le=PAIR_COUNTS["test"])


class DataSection(Strict):
    """The texts: files for train, dev and test, or the embedded corpus.

    The model's task says what they are: pairs for a translation model, or one-sided text, whose targets a given model
    writes itself; a file each for the others, one-sided text for language models, labelled text for classifiers.
    """

    train: TextNames | None = option(
        None,
        "required. Trains the model and fine-tunes pruned ones; greedy removal ranks heads on it",
        page="data.md",
    )
    dev: TextNames | None = option(
        None,
        "every choice is made on it: when to stop, whether to average, which model. Without it, `held_out` "
        "sentences of train are",
    )
    held_out: int | None = option(
        None,
        "where no dev text is named: how many sentences of train are left out there and are the dev text; every tenth",
        ge=1,
    )
    test: TextNames | None = option(
        None,
        "read once, at the end: for the models that the plan names, and of the steps of greedy removal for the chosen "
        "one. Without it the report has dev numbers only",
    )
    embedded: Embedded | None = option(
        None,
        "use the embedded corpus in place of the three texts",
        page="data.md#the-embedded-corpus",
    )

    @model_validator(mode="after")
    def one_dev_text(self) -> DataSection:
        if self.held_out is not None and (self.dev is not None or self.embedded is not None):
            raise ValueError("held_out is for texts without dev: leave one of the two out")
        return self

    @property
    def one_sided(self) -> set[bool]:
        """Whether its texts are one-sided: empty without texts, of two answers where they differ."""
        named = (self.train, self.dev, self.test)
        return {one_sided(spec) for spec in named if spec is not None}

    @property
    def has_test(self) -> bool:
        return self.embedded is not None or self.test is not None


class ScoringSection(Scoring):
    """How every head of the full model is scored, on the dev text: the options of `headwise score`, most of them in use,
    and what only a plan has."""

    judge: bool = changed(Scoring, "judge", True)
    untrained: int = changed(Scoring, "untrained", 3)
    interactions: int = changed(Scoring, "interactions", 20)
    pruned: list[str] = option(
        ["confidence", "lrp.ding.pooled", "gradient"],
        "measures that score the heads of every model pruned by gates. Unset: lrp in translation only",
    )


class RolesSection(Trees):
    """Where heads are tested for roles. The embedded corpus has its own trees; with other data, no treebank and no
    recordings mean no roles."""

    pairs: int = option(
        0,
        "dev pairs that cross attention is tested on. 0: none",
        page="howto/roles.md#a-translation-model",
        ge=0,
    )
    words: bool = option(
        False,
        "whether the words are looked for that the model stops saying without each head, on dev",
        page="methods/roles.md#the-words-of-a-head",
    )
    recordings: int = option(
        0,
        "dev recordings that the heads of a speech model are tested on, at least 20. 0: none",
        ge=0,
    )


class Speed(Strict):
    """How decoding speed is measured: of all models in turn, on the same dev sentences."""

    sentences: int = option(100, "the first sentences of dev", ge=1)
    tokens: int = option(
        16,
        "tokens that each model writes for a sentence: equally many, so that speeds compare",
        ge=1,
    )
    rounds: int = option(
        3, "measurements: the median is reported, with the slowest and the fastest", ge=1
    )


def known_control(name: str) -> str:
    """The name of a control that is declared."""
    if name not in control:
        raise ValueError(control.unknown(name))
    return name


class Sweep(Pruning, FineTuning):
    """A section [[pruning]]: models pruned by one method over the same kinds of heads, each from the same full model.

    The options are those of Python; here `keep`, `penalty` and `measure` may name several models. What only a plan has:
    """

    name: str = option(
        "",
        "letters, digits, _ and -. Prefix of the sweep's settings; required when a plan has several sweeps",
        pattern=r"^[\w-]*$",
    )
    kinds: Sequence[Kind] = option(
        ["encoder-self"],
        "kinds of the heads that may be removed; models with others that do not translate need them named. "
        "With encoder-self alone the decoder is frozen",
        min_length=1,
    )
    keep: list[Counts] = option(
        [],
        "target counts, in total or by kind: [10, {encoder-self = 4, cross = 6}]",
        page="methods/target-count.md",
    )
    controls: list[Annotated[str, AfterValidator(known_control)]] = option(
        [], "names of controls: models to compare with", page="methods/controls.md"
    )
    seeds: list[int] = option([], "only these of the plan's seeds")

    @field_validator("keep", "penalty", "measure", mode="before", check_fields=False)
    @classmethod
    def listed(cls, value: Any) -> Any:
        """One value is a list of one; a range of penalties is so many λ in equal ratios."""
        # Any of its keys: a range that lacks one is refused as a range.
        if isinstance(value, dict) and {"from", "to", "count"} & {*value}:
            return penalty_range(value)
        return value if isinstance(value, list) else [value]

    @field_validator("seeds", "controls")
    @classmethod
    def once_each(cls, values: list[Any]) -> list[Any]:
        if len({*values}) < len(values):
            raise ValueError("nothing may be there twice")
        return values

    @field_validator("max_drop")
    @classmethod
    def said_elsewhere(cls, value: float | None) -> None:
        if value is not None:
            raise ValueError("a plan says it once for all models, in [choice]")

    @property
    def trains(self) -> bool:
        """Whether its models are trained."""
        return True

    @property
    def training_options(self) -> dict[str, Any]:
        """What goes into a fine-tuned model besides the variant itself."""
        # Those two tell the variants of a sweep apart.
        return self.model_dump(include={*Gates.model_fields} - {"keep", "penalty", "max_drop"})

    @property
    def weight_training(self) -> dict[str, Any]:
        """How weights are fine-tuned, whatever happens to gates: equal for models that compare fairly."""
        return self.model_dump(include={*FineTuning.model_fields, "kinds", "train"})

    def refuse_frozen_controls(self, train: Train | None) -> None:
        if train == "gates" and self.controls:
            raise ValueError(
                "controls train weights, so they compare with no model of train = 'gates'"
            )

    def titled(self, name: str) -> str:
        """The name of a variant, after the sweep's own."""
        return f"{self.name}.{name}" if self.name else name


class GateSweep(Sweep, Gates):
    """Hard Concrete gates: a model for every λ of `penalty` and every target count of `keep`."""

    method: Literal["gates"] = option(
        "gates", "gates, top-k or greedy; it decides which options exist", page="methods/gates.md"
    )
    penalty: list[Penalty] = option(
        [0.005, 0.01, 0.02, 0.04],
        "values of λ, or a range in equal ratios: {from = 0.002, to = 0.1, count = 6}. With keep, only those given",
        page="methods/gates.md",
    )
    refine: int = option(
        0,
        "more λ, one after another, between the neighbours where quality on dev changes most",
        ge=0,
    )

    @model_validator(mode="before")
    @classmethod
    def penalty_unless_counts(cls, data: Any) -> Any:
        """The default λ apply only where no target count says how far to prune."""
        if isinstance(data, dict) and "penalty" not in data and data.get("keep"):
            return {**data, "penalty": []}
        return data

    @field_validator("penalty")
    @classmethod
    def usable_penalties(cls, values: list[float]) -> list[float]:
        if len({f"{value:g}" for value in values}) < len(values):
            raise ValueError("no penalty may be there twice (six digits count)")
        return values

    @model_validator(mode="after")
    def consistent(self) -> GateSweep:
        if not self.penalty and not self.keep:
            raise ValueError("at least one of penalty or keep is needed")
        if not self.penalty and self.refine:
            raise ValueError("refine would mean nothing without a penalty")
        if self.refine and len(self.penalty) < 2:
            raise ValueError("refine fills in between penalties: give at least two")
        self.refuse_frozen_controls(self.train)
        return self


class TopKSweep(Sweep, TopK):
    """Relaxed top-K gates: a model for every number of heads in `keep`."""

    method: Literal["top-k"] = option(
        "top-k", "exactly k gates are open in every step", page="methods/target-count.md"
    )

    @model_validator(mode="after")
    def consistent(self) -> TopKSweep:
        if not self.keep:
            raise ValueError("keep is needed: the numbers of heads that stay")
        self.refuse_frozen_controls(self.train)
        return self


class GreedySweep(Sweep, Greedy):
    """Greedy removal: heads are removed in the order of each of `measure`, a share of `step` at a time.

    Every step is a model; with `keep` only those with so many heads.
    """

    method: Literal["greedy"] = option(
        "greedy", "heads are removed in the order of a score", page="methods/greedy.md"
    )
    keep: list[Counts] = option(
        [],
        "target counts, steps of one order: only these models are made. Without any, one model for every step",
    )
    measure: list[str] = option(
        ["gradient", "random"],
        "orders of removal: measures, weight-norm or random",
        page="howto/score.md#choose-a-measure",
        min_length=1,
    )
    compare: list[str] = option(
        ["gradient", "confidence", "weight-norm", "random"],
        "other orders: what they leave with as many heads is compared with the result",
        page="methods/greedy.md#what-a-result-is-compared-with",
    )
    orders: int = option(3, "random orders", ge=1)

    @property
    def trains(self) -> bool:
        return self.train is not None

    @property
    def reads_targets(self) -> bool:
        return super().reads_targets or not {*self.compare} <= {*TARGETLESS_ORDERS}

    @field_validator("keep")
    @classmethod
    def in_one_order(cls, keep: list[Counts]) -> list[Counts]:
        if len(keep) > 1 and any(isinstance(count, dict) for count in keep):
            raise ValueError(
                "several target counts are steps of one order, which has no numbers by kind: give numbers in total, or "
                "one count by kind"
            )
        return keep

    @field_validator("measure", "compare")
    @classmethod
    def rankable(cls, names: list[str]) -> list[str]:
        try:
            return removal_scores(names)
        except HeadwiseError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def consistent(self) -> GreedySweep:
        if self.search is not None:
            raise ValueError("a plan says once for all models how to search, in [search]")
        if not self.train and self.controls:
            raise ValueError(
                "controls stand beside models that were fine-tuned: set train, or leave controls out"
            )
        return self


SWEEPS: dict[str, type[Sweep]] = {"gates": GateSweep, "top-k": TopKSweep, "greedy": GreedySweep}


AnySweep = Annotated[GateSweep | TopKSweep | GreedySweep, Field(discriminator="method")]


def penalty_range(ends: dict[str, Any]) -> list[float]:
    """A range of penalties, such as {from = 0.002, to = 0.1, count = 6}, as so many λ in equal ratios."""
    if {*ends} != {"from", "to", "count"}:
        raise ValueError("a range of penalties has the keys from, to and count")
    low, high, count = ends["from"], ends["to"], ends["count"]
    numbers = all(type(end) in (int, float) and math.isfinite(end) for end in (low, high))
    if not (numbers and isinstance(count, int) and 2 <= count <= 1000 and 0 < low < high):
        raise ValueError(
            "a range of penalties needs numbers 0 < from < to, and a count from 2 to 1000"
        )
    # λ_i = low (high / low)^(i / (n − 1)), in three digits, as names of models have it.
    return [float(f"{low * (high / low) ** (i / (count - 1)):.3g}") for i in range(count)]


class Plan(Strict):
    """A whole study: a table for each of its parts, and what concerns all of them."""

    name: str = option(
        "study",
        "letters, digits and _ . -; the run folder is runs/NAME unless --out names another",
        pattern=r"^[\w.-]*[\w-][\w.-]*$",
    )
    seed: int = option(
        SEED, "seed of weights, batch order, dropout and gates. --seed changes it", ge=0, lt=2**32
    )
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = option(
        [],
        "several seeds: one run each, in seed-N/, and a report over all",
        page="howto/many-runs.md",
    )
    data: DataSection = DataSection()
    languages: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], DataSection] = option(
        {},
        "[languages.en-de], [languages.en-fr] … in place of [data], with the same keys: one run each",
    )
    model: Architecture | str = option(
        Architecture(),
        "the shape of a model to train, or a string: a folder, a hub id, a pruned model, a finished study",
    )
    training: Training = Training()
    scoring: ScoringSection = ScoringSection()
    roles: RolesSection = RolesSection()
    pruning: list[AnySweep] = [GateSweep()]
    choice: Choice = Choice()
    weights: Literal["all", "chosen"] = option(
        "all",
        "which weights the run folder keeps: all, or chosen, which after measuring removes all but those of the trained "
        "and the chosen model",
    )
    search: Search = Search()
    speed: Speed = Speed()

    @field_validator("pruning", mode="before")
    @classmethod
    def one_or_several(cls, sweeps: Any) -> Any:
        """One table is a list of one; a method that does not exist is named, rather than all classes that do not fit."""
        if isinstance(sweeps, dict):
            sweeps = [sweeps]
        for sweep in sweeps if isinstance(sweeps, list) else ():
            # The default is put in: the method says which class a section is of.
            if isinstance(sweep, dict) and sweep.setdefault("method", "gates") not in list(SWEEPS):
                named = str(sweep["method"])
                guess = did_you_mean(named, SWEEPS)
                raise ValueError(f"the method '{named}'{guess} is none of {', '.join(SWEEPS)}")
        return sweeps

    @model_validator(mode="after")
    def names_sweeps(self) -> Plan:
        names = [sweep.name for sweep in self.pruning]
        if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
            raise ValueError("every [[pruning]] of several needs a name of its own")
        return self

    @model_validator(mode="after")
    def names_seeds(self) -> Plan:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("no seed may be there twice")
        wanted = {seed for sweep in self.pruning for seed in sweep.seeds}
        unknown = wanted - {*(self.seeds or [self.seed])}
        if unknown:
            raise ValueError(
                f"a sweep is for the seeds {sorted(unknown)}, which are not among the plan's seeds"
            )
        return self

    @model_validator(mode="after")
    def keeps_folders_apart(self) -> Plan:
        # Some file systems take A and a for one folder.
        for names in (list(self.languages), [sweep.name for sweep in self.pruning if sweep.name]):
            small = [name.lower() for name in names]
            twice = [name for name in names if small.count(name.lower()) > 1]
            if len(set(twice)) > 1:
                raise ValueError(f"{' and '.join(twice)} would share a folder: name them apart")
        return self

    @model_validator(mode="after")
    def fits_its_model(self) -> Plan:
        named = {name for sweep in self.pruning for name in sweep.controls}
        untrained = sorted(name for name in named if control[name].random_weights)
        if untrained and isinstance(self.model, str):
            raise ValueError(
                f"the control {', '.join(untrained)} trains from random weights, but this plan takes a trained model"
            )
        # The heads of a given model are known when it is loaded, and checked then.
        if isinstance(self.model, Architecture):
            for sweep in self.pruning:
                refuse_counts(self.model.head_map, sweep)
        return self

    @model_validator(mode="after")
    def fills_in_what_trains(self) -> Plan:
        """The one validator that changes the plan: of a model that is trained here, gates train all weights where nothing
        else is said. Of a given model its task says it (`RunContext.sweeps`)."""
        if isinstance(self.model, Architecture):
            for number, sweep in enumerate(self.pruning):
                if isinstance(sweep, GateSweep | TopKSweep):
                    self.pruning[number] = sweep.with_train(sweep.train or "all")
        return self

    @model_validator(mode="after")
    def trains_on_pairs(self) -> Plan:
        texts = (self.data, *self.languages.values())
        if isinstance(self.model, Architecture) and any(True in data.one_sided for data in texts):
            raise ValueError(
                "translation models are trained on pairs, but a text is one-sided: name both of its files"
            )
        return self

    @property
    def runs(self) -> dict[str, Plan]:
        """The plans of one seed and one language pair each, by folder; a plan of only one is its own, at `.`."""
        pairs = self.languages or {"": self.data}
        seeds = self.seeds or [self.seed]
        plans: dict[str, Plan] = {}
        for pair, seed in product(pairs, seeds):
            sweeps = []
            for sweep in self.pruning:
                if not sweep.seeds or seed in sweep.seeds:
                    # A run has one seed, so nothing is left to choose.
                    sweeps.append(sweep.model_copy(update={"seeds": []}))
            folders = []
            if self.languages:
                folders.append(pair)
            if self.seeds:
                folders.append(f"seed-{seed}")
            plans["/".join(folders) or "."] = self.model_copy(
                update={
                    "seed": seed,
                    "seeds": [],
                    "data": pairs[pair],
                    "languages": {},
                    "pruning": sweeps,
                }
            )
        return plans

    def to_toml(self) -> str:
        """The plan with all defaults filled in. What it leaves to the task of a given model stays open."""
        # TOML has no word for nothing.
        values = self.model_dump(exclude_none=True)
        if isinstance(self.model, str):
            for section, fields in LEFT_TO_TASK.items():
                for field in fields - getattr(self, section).model_fields_set:
                    values[section].pop(field, None)
            for sweep, written in zip(self.pruning, values["pruning"], strict=True):
                # The rate follows from what trains, which the task decides.
                if (
                    sweep.trains
                    and "train" not in written
                    and "learning_rate" not in sweep.model_fields_set
                ):
                    # Written down, it would stay when what trains is decided otherwise.
                    del written["learning_rate"]
        if len(values["pruning"]) == 1:
            values["pruning"] = values["pruning"][0]
        if not values["languages"]:
            del values["languages"]
        # As `expand` reads it.
        return tomli_w.dumps(change_texts(values, lambda text: text.replace("$", "$$")))


def read_plan(path: str | os.PathLike[str], settings: Sequence[str] = ()) -> Plan:
    """Read a plan from TOML; `settings` are `key=value` changes on top, such as `training.epochs=3`."""
    path = as_path(path)
    return make_plan(read_toml(path), settings, f"The plan {path}")


def read_toml(path: Path) -> dict[str, Any]:
    """A plan's file as a dictionary, with the variables of its texts filled in."""
    try:
        return from_toml(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        trouble = "is a folder" if path.is_dir() else "does not exist"
        inside = (path / "plan.toml").is_file()
        hint = f", such as {path / 'plan.toml'}" if inside else " (examples/ has some)"
        raise HeadwiseError(
            f"The plan {path} {trouble}: give the path of a TOML file{hint}."
        ) from None
    except OSError as error:  # such as a name that is too long, which nobody wants to read whole
        raise HeadwiseError(
            f"The plan {str(path)[:100]!r} cannot be read ({error.strerror})."
        ) from None
    except UnicodeDecodeError:
        raise HeadwiseError(
            f"The plan {path} is no text (UTF-8): give the path of a TOML file."
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise HeadwiseError(f"The plan {path} is not valid TOML: {error}.") from None


def from_toml(text: str) -> dict[str, Any]:
    """A plan's TOML as a dictionary, with the variables of its texts filled in. Raises ValueError for one so long that
    reading its keys, which takes the square of their number, would not end."""
    if len(text) > LONGEST_PLAN:
        raise ValueError(f"it has {len(text):,} characters, and {LONGEST_PLAN:,} are the most")
    filled: dict[str, Any] = change_texts(tomllib.loads(text), expand)
    return filled


def make_plan(
    data: dict[str, Any],
    settings: Sequence[str] = (),
    source: str = "The plan",
    typed: Mapping[str, str] | None = None,
) -> Plan:
    """A plan from a dictionary, checked.

    settings: `key=value` changes on top. typed: the options of the command line that keys were given by.
    """
    typed = dict(typed or {})
    for setting in settings:
        change_setting(data, setting)
        # So that an error names what was typed, not a line of a file that nobody wrote.
        typed[setting.partition("=")[0].strip()] = f"--set {setting}"
    try:
        plan = validated(Plan, data, source, typed)
    except RecursionError:
        raise HeadwiseError(
            f"{source} has tables inside tables without an end: a plan needs three levels."
        ) from None
    if plan.languages and (plan.data != DataSection()):
        raise HeadwiseError(
            f"{source}: [data] names texts and [languages] as well: leave one of them out."
        )
    for name, texts in (plan.languages or {"": plan.data}).items():
        where = f"{source}: [{f'languages.{name}' if name else 'data'}]"
        refuse_texts(texts, where, only_scores=not plan.pruning and isinstance(plan.model, str))
    for spec in (plan.roles.treebank, plan.roles.confirm):
        refuse_missing(spec or [])
    return plan


def refuse_texts(texts: DataSection, where: str, only_scores: bool) -> None:
    """Texts must be named once, and exist. only_scores: whether nothing is trained or chosen on them."""
    files = [spec for spec in (texts.train, texts.dev, texts.test) if spec is not None]
    if texts.embedded is None and texts.train is None:
        raise HeadwiseError(
            f"{where} needs a train text (and best dev and test texts), or [data.embedded]"
            f"{': where heads are only scored, it may be the dev text' if only_scores else ''}."
        )
    if texts.embedded is not None and files:
        raise HeadwiseError(
            f"{where} names texts and the embedded corpus as well: leave one of them out."
        )
    for spec in files:
        refuse_missing(spec)


def refuse_missing(spec: TextNames) -> None:
    for file in [spec] if isinstance(spec, str) else spec:
        if not file.startswith("datasets:"):
            existing_file(file)


def change_setting(data: dict[str, Any], setting: str) -> None:
    """Put one `key=value` into the plan; the value is read as TOML, or else as a plain word."""
    key, equals, value = setting.partition("=")
    if not equals or not key:
        raise HeadwiseError(
            f"'--set {setting}' was given, but it should read key=value, such as training.epochs=3."
        )
    *tables, last = key.strip().split(".")
    for table in tables:
        inner = data.setdefault(table, {})
        if isinstance(inner, list):
            raise HeadwiseError(
                f"'--set {setting}' was given, but {table} is several tables: change the plan's file."
            )
        if not isinstance(inner, dict):
            raise HeadwiseError(
                f"'--set {setting}' was given, but {table} is not a table in this plan."
            )
        data = inner
    try:
        # 3, true and [1, 2] by the rules of TOML.
        data[last] = change_texts(tomllib.loads(f"value = {value}")["value"], expand)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        data[last] = expand(value)


def change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same plan with every text changed."""
    if isinstance(value, dict):
        return {key: change_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [change_texts(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


def expand(text: str) -> str:
    """Fill in $NAME and ${NAME}; $$ is a dollar sign."""

    def filled(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            return "$"
        if name not in os.environ:
            raise HeadwiseError(
                f"The plan names ${name}, but no such variable is set: export {name}=FOLDER."
            )
        return os.environ[name]

    return re.sub(r"\$\$|\$(\w+)|\$\{(\w+)\}?", filled, text)
