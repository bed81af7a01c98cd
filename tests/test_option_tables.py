"""The documentation's tables of options and controls say what the classes and declarations say."""

from __future__ import annotations

from pathlib import Path

import pytest

from option_tables import filled, tables


@pytest.mark.parametrize("page", tables(), ids=lambda page: page.name)
def test_tables_are_as_the_classes_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, tables()[page]) == text, "run `make tables`"
