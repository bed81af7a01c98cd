"""Options by name, checked: one sentence for what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from headwise.errors import HeadwiseError
from headwise.pruning.sweeps import SWEEPS

Options = TypeVar("Options", bound=BaseModel)
TYPE_NAMES = (
    "Architecture",
    "str",
    "list[str]",
    "int",
    "float",
    "dict[str,int]",
    *SWEEPS,
)  # in the place of an error


def checked(kind: type[Options], values: dict[str, Any], source: str) -> Options:
    """Options as `kind` has them; raises HeadwiseError with the key, what was found and what is allowed."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problem = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    loc = problem["loc"]
    if loc[:1] == ("pruning",) and isinstance(values.get("pruning"), dict):
        loc = (*loc[:1], *loc[2:])  # one table was written, so it has no number
    path = [
        str(part) for part in loc if str(part) not in TYPE_NAMES and "constrained" not in str(part)
    ]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        method = next((str(part) for part in loc if part in SWEEPS), "")
        table = SWEEPS[method] if method else table_at(kind, path[:-1])
        where = f" with method '{method}'" if method else " here"
        raise HeadwiseError(
            f"{source}: unknown key '{key}'; allowed{where}: {', '.join(sorted(table.model_fields))}."
        )
    reason = problem["msg"].removeprefix("Value error, ").rstrip(".")
    reason = reason[0].lower() + reason[1:] if reason[1:2].islower() else reason
    if isinstance(problem["input"], dict | BaseModel):
        about = f"'{key}' does not fit: " if key else ""
        raise HeadwiseError(f"{source}: {about}{reason}.")
    found = repr(problem["input"])
    found = found if len(found) <= 200 else f"{found[:200]} …"
    raise HeadwiseError(f"{source}: '{key}' is {found}, which does not fit: {reason}.")


def table_at(table: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    """The table of a plan at a path of keys."""
    for part in path:
        if (
            part in table.model_fields
        ):  # else a number of several tables, or a name of the user's own
            annotation = table.model_fields[part].annotation
            kinds = (annotation, *get_args(annotation))
            table = next(
                kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)
            )
    return table
