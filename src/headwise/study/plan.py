"""The plan of a study: what a TOML file may say, with defaults; unknown keys and wrong types are refused by name."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from headwise.data.lines import existing_file
from headwise.errors import HeadwiseError
from headwise.heads import HeadMap
from headwise.study.scoring import USUAL, chosen
from headwise.study.sweep import TRAINED_ANEW
from headwise.study.sweep import Pruning as Pruning
from headwise.translation.build import Architecture
from headwise.translation.decode import Search
from headwise.translation.train import Recipe

Spec = str | list[str]  # two files | one .tsv or .jsonl file | "datasets:NAME"
Checked = TypeVar("Checked", bound=BaseModel)
KINDS_OF_VALUES = ("Architecture", "str", "list[str]", "int", "float", "dict[str,int]")  # in the place of an error


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Embedded(Strict):
    """The embedded grammar corpus: how many pairs of each split to draw."""

    train: int = Field(default=20000, ge=1)
    dev: int = Field(default=500, ge=1)
    test: int = Field(default=500, ge=1)


class Data(Strict):
    """Parallel text. Either files for train, dev and test, or the embedded corpus."""

    train: Spec | None = None
    dev: Spec | None = None
    test: Spec | None = None
    embedded: Embedded | None = None


class Choice(Strict):
    """Which pruned model is chosen: the one with the fewest heads that loses at most `max_drop` BLEU on dev, or `any`
    BLEU."""

    max_drop: float | Literal["any"] = 0.5

    @field_validator("max_drop", mode="before")
    @classmethod
    def bounded(cls, lost: Any) -> Any:
        number = isinstance(lost, int | float) and not isinstance(lost, bool)
        if lost != "any" and not (number and 0 <= lost < math.inf):
            raise ValueError("give a number of at least 0, or any")
        return lost

    @property
    def limit(self) -> float | None:
        """How much BLEU may be lost on dev; None: any."""
        return None if self.max_drop == "any" else float(self.max_drop)


class Scoring(Strict):
    """Which measures every head is scored by (docs/methods), on the dev text, and whether they are judged: scores of
    one half of it held against exact ablation of the other half, beside so many random orders of removal. `pruned`:
    the measures that heads of pruned models are scored by again."""

    measures: list[str] = Field(default=list(USUAL), min_length=1)
    judge: bool = True
    random_orders: int = Field(default=5, ge=1)
    pruned: list[str] = Field(default=["confidence", "lrp.ding.pooled", "gradient"])

    @field_validator("measures", "pruned")
    @classmethod
    def known(cls, names: list[str]) -> list[str]:
        try:
            return chosen(names)
        except HeadwiseError as error:
            raise ValueError(str(error)) from None


class Roles(Strict):
    """Where heads are tested for roles: treebanks (CoNLL-U files) to find them on and, if given, others to confirm them
    on instead of the other half; and how many dev pairs cross attention is tested on (which takes eflomal; 0: none).
    The embedded corpus brings its own trees."""

    treebank: list[str] = Field(default=[])
    confirm: list[str] = Field(default=[])
    pairs: int = Field(default=0, ge=0)


class Speed(Strict):
    """How decoding speed is measured: every model writes `tokens` tokens for the same dev sentences, `rounds` times."""

    sentences: int = Field(default=100, ge=1)
    tokens: int = Field(default=16, ge=1)
    rounds: int = Field(default=3, ge=1)


class Plan(Strict):
    """A whole study."""

    name: str = Field(default="study", pattern=r"^[\w.-]+$")
    seed: int = Field(default=1, ge=0, lt=2**32)
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = []
    data: Data = Data()
    pairs: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], Data] = {}
    model: Architecture | str = Architecture()
    training: Recipe = Recipe()
    scoring: Scoring = Scoring()
    roles: Roles = Roles()
    pruning: list[Pruning] = [Pruning()]
    choice: Choice = Choice()
    weights: Literal["all", "chosen"] = "all"
    search: Search = Search()
    speed: Speed = Speed()

    @field_validator("pruning", mode="before")
    @classmethod
    def one_or_several(cls, sweeps: Any) -> Any:
        return [sweeps] if isinstance(sweeps, dict) else sweeps

    @model_validator(mode="after")
    def told_apart(self) -> Plan:
        """Sweeps by their names, seeds by themselves."""
        names = [sweep.name for sweep in self.pruning]
        if not names or len(set(names)) < len(names) or (len(names) > 1 and "" in names):
            raise ValueError("every [[pruning]] of several needs a name of its own")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("no seed may be there twice")
        lost = {seed for sweep in self.pruning for seed in sweep.seeds} - {*(self.seeds or [self.seed])}
        if lost:
            raise ValueError(f"a sweep is for the seeds {sorted(lost)}, which are not among the plan's seeds")
        anew = {control for sweep in self.pruning for control in sweep.controls} & {*TRAINED_ANEW}
        if anew and isinstance(self.model, str):
            raise ValueError(
                f"the control {', '.join(anew)} trains from random weights, but this plan takes a trained model"
            )
        if isinstance(self.model, Architecture):
            for sweep in self.pruning:
                refuse_counts(sweep, self.model.head_map)
        return self

    @property
    def members(self) -> dict[str, Plan]:
        """The studies of one seed and one language pair each, by folder; a plan of only one is its own, at `.`."""
        pairs = self.pairs or {"": self.data}
        seeds = self.seeds or [self.seed]
        found = {}
        for pair, seed in product(pairs, seeds):
            sweeps = [s.model_copy(update={"seeds": []}) for s in self.pruning if not s.seeds or seed in s.seeds]
            changes = {"seed": seed, "seeds": [], "data": pairs[pair], "pairs": {}, "pruning": sweeps}
            parts = [pair] * bool(self.pairs) + [f"seed-{seed}"] * bool(self.seeds)
            found["/".join(parts) or "."] = self.model_copy(update=changes)
        return found

    def to_toml(self) -> str:
        """The plan with all defaults filled in, as TOML: plain values first, then tables."""
        lines: list[str] = []

        def table(prefix: str, values: dict[str, Any]) -> None:
            inner = {key: value for key, value in values.items() if holds_tables(value)}
            for key, value in values.items():
                if key not in inner:
                    lines.append(f"{key} = {inline(value)}")
            for key, value in inner.items():
                for one in [value] if isinstance(value, dict) else value:
                    name = f"{prefix}{key}"
                    lines.extend(["", f"[{name}]" if isinstance(value, dict) else f"[[{name}]]"])
                    table(f"{name}.", one)

        found = self.model_dump(exclude_none=True)
        if len(found["pruning"]) == 1:
            found["pruning"] = found["pruning"][0]
        if not found["pairs"]:
            del found["pairs"]
        table("", found)
        return "\n".join(lines) + "\n"


def holds_tables(value: Any) -> bool:
    """Whether a value is written as a table of its own, or as several."""
    several = isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "kinds" in one for one in value)
    return isinstance(value, dict) or several


def inline(value: Any) -> str:
    """A value in one line of TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def refuse_counts(sweep: Pruning, heads: HeadMap) -> None:
    """More heads than there are cannot be kept; said before anything is trained."""
    for keep in sweep.keep:
        for kinds, wanted in [(sweep.kinds, keep)] if isinstance(keep, int) else [([k], n) for k, n in keep.items()]:
            total = heads.only(kinds).total
            if wanted > total:
                raise ValueError(f"{wanted} heads were to be kept, but there are {total} of {', '.join(kinds)}")


def read_plan(path: str | Path, settings: Sequence[str] = ()) -> Plan:
    """Read a plan from TOML; `settings` are `key=value` changes on top, such as `training.epochs=3`."""
    path = Path(path)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        own = f", such as {path / 'plan.toml'}" if (path / "plan.toml").is_file() else " (examples/ has some)"
        raise HeadwiseError(f"The plan {path} {found}: give the path of a TOML file{own}.")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeadwiseError(f"The plan {path} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise HeadwiseError(f"The plan {path} is no text (UTF-8): give the path of a TOML file.") from None
    except tomllib.TOMLDecodeError as error:
        raise HeadwiseError(f"The plan {path} is not valid TOML: {error}.") from None
    return make_plan(data, settings, f"The plan {path}")


def make_plan(data: dict[str, Any], settings: Sequence[str] = (), source: str = "The plan") -> Plan:
    """A plan from a dictionary, checked, with environment variables in its paths filled in."""
    for setting in settings:
        change(data, setting)
    plan = checked(Plan, expand(data), source)
    if plan.pairs and (plan.data != Data()):
        raise HeadwiseError(f"{source}: [data] names texts and [pairs] as well: leave one of them out.")
    for name, texts in (plan.pairs or {"": plan.data}).items():
        refuse_texts(texts, f"{source}: [{f'pairs.{name}' if name else 'data'}]")
    for spec in (plan.roles.treebank, plan.roles.confirm):
        refuse_lost(spec)
    return plan


def refuse_texts(texts: Data, where: str) -> None:
    """Texts must be named once, and be there."""
    files = (texts.train, texts.dev, texts.test)
    if texts.embedded is None and (texts.train is None or texts.dev is None):
        raise HeadwiseError(f"{where} needs train and dev texts (and best a test text), or [data.embedded].")
    if texts.embedded is not None and any(files):
        raise HeadwiseError(f"{where} names texts and the embedded corpus as well: leave one of them out.")
    for spec in files:
        refuse_lost(spec)


def refuse_lost(spec: Spec | None) -> None:
    for file in [spec] if isinstance(spec, str) else spec or []:
        if not file.startswith("datasets:"):
            existing_file(file)


def change(data: dict[str, Any], setting: str) -> None:
    """Put one `key=value` into the plan; the value is read as TOML, or else as a plain word."""
    key, equals, value = setting.partition("=")
    if not equals or not key:
        raise HeadwiseError(f"'--set {setting}' was given, but it should read key=value, such as training.epochs=3.")
    *tables, last = key.strip().split(".")
    for table in tables:
        inner = data.setdefault(table, {})
        if isinstance(inner, list):
            raise HeadwiseError(f"'--set {setting}' was given, but {table} is several tables: change the plan's file.")
        if not isinstance(inner, dict):
            raise HeadwiseError(f"'--set {setting}' was given, but {table} is not a table in this plan.")
        data = inner
    try:
        data[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        data[last] = value


def expand(value: Any) -> Any:
    """Fill in $NAME and ${NAME} in every text of the plan."""
    if isinstance(value, dict):
        return {key: expand(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [expand(inner) for inner in value]
    if isinstance(value, str):
        value = os.path.expandvars(value)
        missing = re.search(r"\$\{?(\w+)", value)
        if missing:
            name = missing[1]
            raise HeadwiseError(f"The plan names ${name}, but no such variable is set: export {name}=FOLDER.")
    return value


def checked(kind: type[Checked], values: dict[str, Any], source: str) -> Checked:
    """Options as `kind` has them; raises HeadwiseError with the key, what was found and what is allowed."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problem = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    loc = problem["loc"]
    if loc[:1] == ("pruning",) and isinstance(values.get("pruning"), dict):
        loc = (*loc[:1], *loc[2:])  # one table was written, so it has no number
    path = [str(part) for part in loc if str(part) not in KINDS_OF_VALUES]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        raise HeadwiseError(f"{source}: unknown key '{key}'; allowed here: {', '.join(fields_of(kind, path[:-1]))}.")
    reason = problem["msg"].removeprefix("Value error, ").rstrip(".")
    reason = reason[0].lower() + reason[1:] if reason[1:2].islower() else reason
    if isinstance(problem["input"], dict):
        about = f"'{key}' does not fit: " if key else ""
        raise HeadwiseError(f"{source}: {about}{reason}.")
    raise HeadwiseError(f"{source}: '{key}' is {problem['input']!r}, which does not fit: {reason}.")


def fields_of(table: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that a table of a plan may have."""
    for part in path:
        if part in table.model_fields:  # else a number of several tables, or a name of the user's own
            annotation = table.model_fields[part].annotation
            kinds = (annotation, *get_args(annotation))
            table = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return sorted(table.model_fields)
