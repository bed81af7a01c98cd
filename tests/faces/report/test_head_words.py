"""The words that a model no longer says without a head: the section, the first screen."""

from __future__ import annotations

from dataclasses import replace

from faces.report.made import emptied
from headwise.faces.report.head_words import head_words_section, word_facts
from headwise.faces.report.run_folder import FinishedRun


def test_only_confirmed_words_are_shown(run: FinishedRun) -> None:
    content = head_words_section(run)
    assert (content["words"], content["heads"]) == (1, 1)
    (row,) = content["found"].rows
    said = " ".join(row.cells)
    assert "encoder-self/1/2" in said and "20 of 40" in said and "10%" in said
    ((head, text, _),) = word_facts(run)
    assert head == "encoder-self/1/2" and "“<a>” in 20 of 40 sentences" in text


def test_a_run_without_words_and_one_without_confirmed_words(run: FinishedRun) -> None:
    assert not any(head_words_section(emptied(run, "words")).values())
    assert word_facts(emptied(run, "words")) == []
    content = head_words_section(replace(run, words=run.words[run.words["p"] > 0.1]))
    assert content["found"] is None and content["tried"] == 1
