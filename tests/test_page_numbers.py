"""Every number of a page of results is the cell of a table, rounded once."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from derived_numbers import RESULTS, derived
from page_numbers import (
    NO_TABLE,
    PAGES,
    ROOT,
    PageNumber,
    Source,
    complaints,
    fits,
    numbers_of,
    read_numbers,
    read_table,
)

ROWS = read_table()
PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def rows_of(page: Path) -> list[tuple[str, Source]]:
    return ROWS.get(str(page.relative_to(ROOT)), [])


@PAGE
def test_numbers_of_a_page_are_those_of_its_tables(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not complaints(text, rows_of(page)), "run `make numbers`"


@PAGE
def test_a_wrong_digit_is_found_on_every_page(page: Path) -> None:
    """Also where numbers.csv is told the wrong digit, because the table says another."""
    text, rows = page.read_text(encoding="utf-8"), rows_of(page)
    numbers = numbers_of(page)
    of_tables = [at for at, (_, source) in enumerate(rows) if source.file not in NO_TABLE]
    assert of_tables
    for at in of_tables[:: max(1, len(of_tables) // 10)]:
        number = numbers[at]
        digit = str((int(number.text[-1]) + 3) % 10)
        wrong = number.text[:-1] + digit
        planted = text[: number.end - 1] + digit + text[number.end :]
        assert complaints(planted, rows), number
        told = [*rows[:at], (wrong, rows[at][1]), *rows[at + 1 :]]
        (said,) = complaints(planted, told)
        assert wrong in said


def test_a_number_is_rounded_once(tmp_path: Path) -> None:
    """−1.648 is −1.6, and −1.65 that is rounded again would be −1.7."""
    file = tmp_path / "table.csv"
    file.write_text("name,value\none,-1.648\n")
    source = Source(str(file), "name=one", "value", "1")

    def number(text: str) -> PageNumber:
        (found,) = read_numbers(f"lost {text} BLEU")
        return found

    assert fits(number("−1.6"), source) and fits(number("−1.65"), source)
    assert not fits(number("−1.7"), source) and not fits(number("+1.6"), source)


def test_what_is_a_number_and_what_is_not() -> None:
    text = "\n".join(
        [
            "**en-pt** 5/5 loses 1.1 BLEU [0.6, 1.6], −3 of 48, 99 % (−1, 1,090.5) with torch 2.13.0 `0.7`",
            "| [4.5](a/b-1.2.csv) | 16 | +0.031 [0.026,",
            "",
            "```console",
            "$ headwise prune --rate 0.5",
            "```",
        ]
    )
    found = [one.text for one in read_numbers(text)]
    assert found == ["1.1", "0.6", "1.6", "−3", "99", "−1", "1,090.5", "4.5", "+0.031", "0.026"]


def test_derived_numbers_are_those_of_their_tables() -> None:
    made = derived()
    table = pd.read_csv(RESULTS / "derived.csv")
    assert list(made["name"]) == list(table["name"])
    for name in ("value", "low", "high"):
        pd.testing.assert_series_equal(made[name].astype(float), table[name], rtol=1e-5)
