"""The table of families: the page is made from it, and a test of some families gives its rows again."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attention.every_family import GRAPHS, family_row
from headwise.cli import app
from headwise.errors import HeadwiseError
from headwise.families import ABILITIES, COLUMNS, PAGE, family_rows, page

RUN_AGAIN = ("bert", "bloom", "qwen3", "marian", "olmo2", "xlnet")


def test_the_page_is_made_from_the_table() -> None:
    assert (Path(__file__).parents[1] / PAGE).read_text(encoding="utf-8") == page(family_rows())


def test_the_table_has_many_families_and_a_reason_for_every_no() -> None:
    rows = family_rows()
    assert len({row["family"] for row in rows}) == len(rows) >= 60
    for row in rows:
        assert all(
            f"{column}: " in row["why"] for column in ABILITIES if row[column] in ("no", "partly")
        ), row


@pytest.mark.parametrize("family", RUN_AGAIN)
def test_the_table_says_what_a_fresh_run_gives(family: str) -> None:
    (row,) = (row for row in family_rows() if row["family"] == family)
    fresh = family_row(family, layouts=2, files=False)
    for column in COLUMNS:
        if column not in (*GRAPHS, "why"):
            assert fresh[column] == row[column], column


def test_the_command_prints_the_families_that_match() -> None:
    shown = CliRunner().invoke(app, ["families", "qwen3"])
    lines = shown.output.splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert all("qwen3" in line for line in lines[1:])
    assert len(lines) > 1


def test_an_unknown_family_is_said() -> None:
    with pytest.raises(HeadwiseError, match="No family in the table is called 'nothing'"):
        family_rows("nothing")
