"""The words that a model no longer says without a head: the section, the first screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import headwise as hw
from faces.report.made import emptied, make_run
from faces.report.made_roles import words
from faces.report.made_sweeps import write_grid
from headwise.faces.lab.details import head_details
from headwise.faces.opened_run import Run
from headwise.faces.report.head_words import head_words_section, word_facts
from headwise.faces.report.model_card import card_sections
from headwise.faces.report.models import values
from headwise.faces.report.run_folder import RunContents, read_run
from headwise.faces.report.runs import read_grid
from headwise.faces.report.summary import verdict_sentences


def test_only_confirmed_words_are_shown(run: RunContents) -> None:
    content = head_words_section(run)
    assert (content["words"], content["heads"]) == (1, 1)
    (row,) = content["found"].rows
    said = " ".join(row.cells)
    assert "encoder-self/1/2" in said and "20 of 40" in said and "10%" in said
    ((head, text, _),) = word_facts(run)
    assert head == "encoder-self/1/2" and "“<a>” in 20 of 40 sentences" in text


def test_a_run_without_words_and_one_without_confirmed_words(run: RunContents) -> None:
    assert not any(head_words_section(emptied(run, "words")).values())
    assert word_facts(emptied(run, "words")) == []
    content = head_words_section(replace(run, words=run.words[run.words["p"] > 0.1]))
    assert content["found"] is None and content["tried"] == 1


@pytest.mark.parametrize(("read", "said"), [(0, "too short"), (300, "No head loses a word")])
def test_a_search_that_found_no_word_is_said_and_not_left_out(
    tmp_path: Path, read: int, said: str
) -> None:
    none = words().iloc[:0]
    files = {"words.csv": none, "words.json": {"sentences": read, "made": ""}}
    page = hw.report(make_run(tmp_path / "run", files)).read_text(encoding="utf-8")
    assert said in page and "roles.words" not in page


WORDS_OF_PANDAS = ["null", "NA", "None", "nan", "n/a"]


def test_words_that_pandas_takes_for_nothing_are_said_everywhere(tmp_path: Path) -> None:
    """In the page, the first screen, `Run` and the lab: a text on programming has such words."""
    written = pd.concat([words().head(1)] * len(WORDS_OF_PANDAS), ignore_index=True)
    written["word"] = WORDS_OF_PANDAS
    written["instead"] = WORDS_OF_PANDAS[::-1]
    folder = make_run(tmp_path / "run", {"words.csv": written, "words.json": {"made": ""}})
    run = read_run(folder)
    content = head_words_section(run)
    assert [row.cells[1] for row in content["found"].rows] == WORDS_OF_PANDAS
    assert "“null”" in " ".join(text for _, text, _ in word_facts(run))
    assert Run(folder).lost_words.table["word"].to_list() == WORDS_OF_PANDAS
    roles = head_details(run)["roles"]["encoder-self/1/2"]
    lost = [role for role in roles if role["measure"].startswith("word.")]
    assert [role["role"] for role in lost] == [f"says “{word}”" for word in WORDS_OF_PANDAS]
    assert all("“n" in role["meaning"] or "“N" in role["meaning"] for role in lost)


@pytest.mark.parametrize("name", WORDS_OF_PANDAS[:-1])  # a name has no slash
def test_settings_of_such_names_are_models(name: str, tmp_path: Path) -> None:
    """In the page, `Run` and the card of the hub."""
    folder = make_run(tmp_path / "run")
    for file in ("pruning.csv", "run.json"):
        text = (folder / file).read_text().replace("lambda-0.05", name)
        (folder / file).write_text(text)
    run = Run(folder)
    assert run.chosen == name and name in run.models["model"].to_list()
    assert name in set(run.pruning["setting"])
    read = read_run(folder)
    assert read.chosen is not None and card_sections(read, read.chosen)
    assert verdict_sentences(read, read.chosen)[0].startswith(
        "15 of 24 encoder heads removed: BLEU"
    )


@pytest.mark.parametrize("name", WORDS_OF_PANDAS[:-1])  # a name has no slash
def test_a_data_set_of_such_a_name_has_its_means(name: str, tmp_path: Path) -> None:
    folder = write_grid(tmp_path / "grid")
    before = read_grid(folder)
    (folder / "en-de").rename(folder / name)
    for file in ("grid.json", "across.csv"):
        (folder / file).write_text((folder / file).read_text().replace("en-de", name))
    after = read_grid(folder)
    assert [*after.parts] == [name, "en-fr"]
    both = [
        values(found.parts[data], "bleu", "test", "full")
        for found, data in ((before, "en-de"), (after, name))
    ]
    pd.testing.assert_series_equal(*both)
    assert both[0].notna().any()
