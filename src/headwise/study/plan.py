"""The plan of a study: what a TOML file may say, with defaults; unknown keys and wrong types are refused by name."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from headwise.data.lines import existing_file
from headwise.errors import HeadwiseError
from headwise.heads import Kind
from headwise.pruning.hard_concrete import GateRecipe
from headwise.study.scoring import USUAL, chosen
from headwise.translation.build import Architecture
from headwise.translation.decode import Search
from headwise.translation.train import Recipe

Spec = str | list[str]  # two files | one .tsv or .jsonl file | "datasets:NAME"
Checked = TypeVar("Checked", bound=BaseModel)


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
    """Which pruned model is chosen: the one with the fewest heads that loses at most `max_drop` BLEU on dev."""

    max_drop: float = Field(default=0.5, ge=0)


class Pruning(GateRecipe):
    """A sweep of gates over penalties λ."""

    penalties: list[float] = Field(default=[0.005, 0.01, 0.02, 0.04])
    kinds: list[Kind] = Field(default=["encoder-self"], min_length=1)

    @field_validator("penalties")
    @classmethod
    def positive(cls, values: list[float]) -> list[float]:
        if not values or any(not 0 <= value < float("inf") for value in values):
            raise ValueError("penalties must be numbers of at least 0, and at least one")
        if len({setting_name(value) for value in values}) < len(values):
            raise ValueError("no penalty may be there twice (six digits count)")
        return values


class Scoring(Strict):
    """Which measures every head is scored by (docs/methods), on the dev text, and whether they are judged: scores of
    one half of it held against exact ablation of the other half, beside so many random orders of removal."""

    measures: list[str] = Field(default=list(USUAL), min_length=1)
    judge: bool = True
    random_orders: int = Field(default=5, ge=1)

    @field_validator("measures")
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
    data: Data = Data()
    model: Architecture | str = Architecture()
    training: Recipe = Recipe()
    scoring: Scoring = Scoring()
    roles: Roles = Roles()
    pruning: Pruning = Pruning()
    choice: Choice = Choice()
    search: Search = Search()
    speed: Speed = Speed()

    def to_toml(self) -> str:
        """The plan with all defaults filled in, as TOML: plain values first, then tables."""
        lines: list[str] = []

        def table(prefix: str, values: dict[str, Any]) -> None:
            inner = {key: value for key, value in values.items() if isinstance(value, dict)}
            for key, value in values.items():
                if key not in inner:
                    lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
            for key, value in inner.items():
                lines.extend(["", f"[{prefix}{key}]"])
                table(f"{prefix}{key}.", value)

        table("", self.model_dump(exclude_none=True))
        return "\n".join(lines) + "\n"


def setting_name(penalty: float) -> str:
    """What a penalty is called in tables and folders."""
    return f"lambda-{penalty:g}"


def read_plan(path: str | Path, settings: Sequence[str] = ()) -> Plan:
    """Read a plan from TOML; `settings` are `key=value` changes on top, such as `training.epochs=3`."""
    path = Path(path)
    if not path.is_file():
        raise HeadwiseError(f"The plan {path} does not exist: give the path of a TOML file (examples/ has some).")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HeadwiseError(f"The plan {path} is not valid TOML: {error}.") from None
    return make_plan(data, settings, f"The plan {path}")


def make_plan(data: dict[str, Any], settings: Sequence[str] = (), source: str = "The plan") -> Plan:
    """A plan from a dictionary, checked, with environment variables in its paths filled in."""
    for setting in settings:
        change(data, setting)
    plan = checked(Plan, expand(data), source)
    texts = plan.data
    files = {"train": texts.train, "dev": texts.dev, "test": texts.test}
    if texts.embedded is None and (texts.train is None or texts.dev is None):
        raise HeadwiseError(f"{source}: [data] needs train and dev texts (and best a test text), or [data.embedded].")
    if texts.embedded is not None and any(files.values()):
        raise HeadwiseError(f"{source}: [data] names texts and [data.embedded] as well: leave one of them out.")
    for spec in [*files.values(), plan.roles.treebank, plan.roles.confirm]:
        for file in [spec] if isinstance(spec, str) else spec or []:
            if not file.startswith("datasets:"):
                existing_file(file)
    return plan


def change(data: dict[str, Any], setting: str) -> None:
    """Put one `key=value` into the plan; the value is read as TOML, or else as a plain word."""
    key, equals, value = setting.partition("=")
    if not equals or not key:
        raise HeadwiseError(f"'--set {setting}' was given, but it should read key=value, such as training.epochs=3.")
    *tables, last = key.strip().split(".")
    for table in tables:
        inner = data.setdefault(table, {})
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
    path = [str(part) for part in problem["loc"] if str(part) not in ("Architecture", "str", "list[str]")]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        raise HeadwiseError(f"{source}: unknown key '{key}'; allowed here: {', '.join(fields_of(kind, path[:-1]))}.")
    reason = problem["msg"].removeprefix("Value error, ")
    found = f"'{key}' is {problem['input']!r}, which does not fit"
    raise HeadwiseError(f"{source}: {found}: {reason[0].lower()}{reason[1:]}.")


def fields_of(table: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that a table of a plan may have."""
    for part in path:
        annotation = table.model_fields[part].annotation
        kinds = (annotation, *get_args(annotation))
        table = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return sorted(table.model_fields)
