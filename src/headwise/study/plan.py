"""The plan of a study: what a TOML file may say, with defaults; unknown keys and wrong types are refused by name."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from headwise.errors import HeadwiseError
from headwise.heads import Kind
from headwise.pruning.hard_concrete import GateRecipe
from headwise.translation.build import Architecture
from headwise.translation.decode import Search
from headwise.translation.train import Recipe

Spec = str | list[str]  # two files | one .tsv or .jsonl file | "datasets:NAME"


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
    """Which of the pruned models is chosen: the one with the fewest heads that loses at most `max_drop` BLEU on dev."""

    max_drop: float = Field(default=0.5, ge=0)


class Pruning(GateRecipe):
    """A sweep of gates over penalties λ."""

    penalties: list[float] = Field(default=[0.005, 0.01, 0.02, 0.04])
    kinds: list[Kind] = Field(default=["encoder-self"])

    @field_validator("penalties")
    @classmethod
    def positive(cls, values: list[float]) -> list[float]:
        if not values or any(not 0 <= value < float("inf") for value in values):
            raise ValueError("penalties must be numbers of at least 0, and at least one")
        return values


class Speed(Strict):
    """How decoding speed is measured: every model translates the same dev sentences, in turn, `rounds` times."""

    sentences: int = Field(default=100, ge=1)
    rounds: int = Field(default=3, ge=1)


class Plan(Strict):
    """A whole study."""

    name: str = Field(default="study", pattern=r"^[\w.-]+$")
    seed: int = Field(default=1, ge=0)
    data: Data = Data()
    model: Architecture | str = Architecture()
    training: Recipe = Recipe()
    pruning: Pruning = Pruning()
    choice: Choice = Choice()
    search: Search = Search()
    speed: Speed = Speed()


def read_plan(path: str | Path, settings: Sequence[str] = ()) -> Plan:
    """Read a plan from TOML; `settings` are `key=value` changes on top, such as `training.epochs=3`."""
    path = Path(path)
    if not path.is_file():
        raise HeadwiseError(f"The plan {path} does not exist: give the path of a TOML file (examples/ has some).")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HeadwiseError(f"The plan {path} is not valid TOML: {error}.") from None
    return make_plan(data, settings, str(path))


def make_plan(data: dict[str, Any], settings: Sequence[str] = (), source: str = "the plan") -> Plan:
    """A plan from a dictionary, checked, with environment variables in its paths filled in."""
    for setting in settings:
        change(data, setting)
    try:
        plan = Plan.model_validate(expand(data))
    except ValidationError as error:
        raise HeadwiseError(f"{source}: {explain(error)}") from None
    if plan.data.embedded is None and plan.data.dev is None:
        raise HeadwiseError(f"{source}: [data] needs dev (and train, test) texts, or [data.embedded].")
    if plan.data.embedded is None and plan.data.train is None:
        raise HeadwiseError(f"{source}: [data] needs a train text: pruning trains on it, and so does a new model.")
    return plan


def change(data: dict[str, Any], setting: str) -> None:
    """Put one `key=value` into the plan; the value is read as TOML, or else as a plain word."""
    key, equals, value = setting.partition("=")
    if not equals or not key:
        raise HeadwiseError(f"'--set {setting}' was given, but it should read key=value, for example training.epochs=3.")
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
            raise HeadwiseError(f"The plan names ${missing[1]}, but no such environment variable is set: export {missing[1]}=FOLDER.")
    return value


def explain(error: ValidationError) -> str:
    """A validation error in one sentence: the key, what was found, what is allowed."""
    problem = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    path = [str(part) for part in problem["loc"] if str(part) not in ("Architecture", "str", "list[str]")]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        allowed = ", ".join(fields_of(path[:-1]))
        return f"unknown key '{key}'; allowed here: {allowed}."
    return f"'{key}' is {problem['input']!r}, which does not fit: {problem['msg'][0].lower()}{problem['msg'][1:]}."


def fields_of(path: Sequence[str]) -> list[str]:
    """The keys a table of the plan may have."""
    table: type[BaseModel] = Plan
    for part in path:
        annotation = table.model_fields[part].annotation
        table = next(t for t in (annotation, *get_args(annotation)) if isinstance(t, type) and issubclass(t, BaseModel))
    return sorted(table.model_fields)
