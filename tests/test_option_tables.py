"""The documentation's tables say what the classes and declarations say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from headwise.study.plan import Plan
from option_tables import filled, tables


@pytest.mark.parametrize("page", tables(), ids=lambda page: page.name)
def test_tables_are_as_the_classes_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, tables()[page]) == text, "run `make tables`"


def sections(annotation: Any) -> list[type[BaseModel]]:
    """The classes of options inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in sections(inner)]


def undescribed(options: type[BaseModel], table: str = "") -> list[str]:
    """The keys that say nothing of themselves; a key that only names a table needs no words."""
    keys = []
    for name, field in options.model_fields.items():
        inner = sections(field.annotation)
        if not field.description and not inner:
            keys.append(f"{table}{name}")
        for section in inner:
            keys += undescribed(section, f"{table}{name}.")
    return keys


def test_every_key_of_a_plan_is_described() -> None:
    assert undescribed(Plan) == []
