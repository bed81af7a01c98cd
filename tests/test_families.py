"""The table of families: the page explains its columns, and a test of some families gives its rows again."""

from __future__ import annotations

from html import escape
from pathlib import Path

import pytest

from fences import families
from headwise.models.families import family_rows
from models.attention.every_family import ABILITIES, WRITTEN, family_row

RUN_AGAIN = ("bert", "bloom", "qwen3", "marian", "olmo2", "xlnet")


def test_the_page_explains_every_column() -> None:
    page = (Path(__file__).parents[1] / "docs" / "families.md").read_text(encoding="utf-8")
    for column in [*family_rows()[0]][2:-1]:
        assert f"**{column}**" in page, column


def test_the_site_s_table_has_every_family_and_its_reasons() -> None:
    page, rows = families(), family_rows()
    assert page.count('<span class="name">') == len(rows)
    reasons = [reason for row in rows for reason in row["why"].split("; ") if reason]
    assert page.count("<li>") == len(reasons)
    assert escape(reasons[0]) in page and "✓" in page


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
    for column in row:
        if column not in (*WRITTEN, "why"):
            assert fresh[column] == row[column], column
