"""Tables as they are written and read: what a text says stays, and what is no table of ours is refused."""

from __future__ import annotations

import csv
import io
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.core import tables
from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.core.tables import MODELS, SCORES, WORDS, Table
from headwise.importance.scores import Scores
from headwise.roles.lost_words import LostWords

# Words that pandas takes for a missing value unless it is told otherwise, and others that look like numbers.
WORDS_OF_PANDAS = [
    "null",
    "NA",
    "None",
    "nan",
    "n/a",
    "NULL",
    "NaN",
    "#N/A",
    "<NA>",
    "007",
    "1e5",
    "True",
    "",
]
EVERY = {name: table for name, table in vars(tables).items() if isinstance(table, Table)}
CELLS: dict[str, Any] = {
    "kind": "cross",
    "layer": 0,
    "head": 0,
    "whole": 3,
    "number": 0.25,
    "count": 3,
    "flag": True,
}


def with_texts(table: Table, words: list[str]) -> pd.DataFrame:
    """A row for each word, in every column with text; the rows are of different layers, steps or seeds."""
    rows = []
    for place, word in enumerate(words):
        row = {name: CELLS.get(cells, word) for name, cells in table.columns.items()}
        row |= {name: place for name in ("layer", "step", "seed") if name in row}
        rows.append(row)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("name", EVERY)
def test_every_word_stays_a_word_in_every_table(name: str, tmp_path: Path) -> None:
    table = EVERY[name]
    written = with_texts(table, WORDS_OF_PANDAS)
    path = tmp_path / Path(table.file).name.replace("*", "any")
    path.write_text(table.csv(written), encoding="utf-8")
    read = table.read(path)
    pd.testing.assert_frame_equal(read, written, check_dtype=False)
    # By a reader that is not ours.
    rows = [*csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))]
    for column in [column for column, cells in table.columns.items() if cells == "text"]:
        assert [row[column] for row in rows] == WORDS_OF_PANDAS == read[column].to_list()


@pytest.mark.parametrize("name", EVERY)
def test_every_table_is_read_by_a_class_and_described(name: str) -> None:
    table = EVERY[name]
    module, _, called = table.result.rpartition(".")
    reader = getattr(import_module(f"headwise.{module}"), called)
    if called != "Run":
        assert set(table.files) <= set(reader.FILES)
    assert {*table.key, *table.optional} <= {*table.columns}
    assert len(EVERY) == len({one.file for one in EVERY.values()})


def test_a_table_without_rows_has_columns_of_its_types(tmp_path: Path) -> None:
    for table in EVERY.values():
        empty = table.read_or_empty(tmp_path / "none.csv")
        assert tuple(empty.columns) == table.names and empty.empty
        path = tmp_path / "empty.csv"
        path.write_text(table.csv(empty))
        assert table.read(path).empty


def test_numbers_may_be_missing_or_infinite(tmp_path: Path) -> None:
    path = tmp_path / "heads.csv"
    path.write_text(f"{','.join(SCORES.names)}\ncross,0,0,a,inf,,nan,7,,\ncross,0,1,a,1,2,3,,,\n")
    read = SCORES.read(path)
    assert read["value"].to_list() == [math.inf, 1.0]
    assert read[["low", "high"]].isna().to_numpy().tolist() == [[True, True], [False, False]]
    assert read["n"].isna().tolist() == [False, True]


def test_a_row_twice_counts_once_and_two_that_differ_are_refused(tmp_path: Path) -> None:
    row = "none,cross,full,,1,4,4,test,bleu,,{},,,,\n"
    path = tmp_path / "pruning.csv"
    path.write_text(",".join(MODELS.names) + "\n" + row.format(30) * 2)
    assert len(MODELS.read(path)) == 1
    path.write_text(path.read_text() + row.format(31))
    with pytest.raises(
        HeadwiseError, match="two different rows for setting full, split test, measure bleu"
    ):
        MODELS.read(path)


def test_a_table_of_other_columns_is_not_written() -> None:
    right = with_texts(WORDS, ["a"])
    with pytest.raises(HeadwiseError, match=r"words\.csv cannot be written: .* lacks instead"):
        WORDS.csv(right.drop(columns="instead"))
    with pytest.raises(HeadwiseError, match="has insted, too"):
        WORDS.csv(right.assign(insted="b"))


def test_the_results_of_a_user_keep_the_words(tmp_path: Path) -> None:
    """Two lost words of one head that pandas would make one, with the piece that takes their place."""
    found = with_texts(WORDS, ["null", "NA", "None", "nan"]).assign(layer=0, instead="n/a")
    LostWords(found, {"made": "", "words": 4}).save(tmp_path)
    read = LostWords.read(tmp_path)
    assert read.table["word"].to_list() == ["null", "NA", "None", "nan"]
    assert set(read.table["instead"]) == {"n/a"}
    heads = HeadMap({"cross": (1,)})
    scores = with_texts(SCORES, ["null"])
    Scores(scores, {"heads": heads.to_json()}).save(tmp_path)
    assert Scores.read(tmp_path, heads).measures == ["null"]
