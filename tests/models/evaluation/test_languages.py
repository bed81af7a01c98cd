"""Quality of translations into languages without blanks between words, by `evaluate` and by greedy removal."""

from __future__ import annotations

from typing import Any

import pytest
import sacrebleu

import headwise as hw
from headwise.models.tasks import translation
from models.decoding.test_bleu import CHINESE, JAPANESE
from models.tasks.askers import asker, sentences
from refusals import refuses


def pairs_with(targets: list[str]) -> hw.ParallelText:
    return hw.ParallelText.from_pairs(zip(sentences(len(targets), 0), targets, strict=True))


def without_ends(lines: list[str]) -> list[str]:
    return [line[:-3] for line in lines]


@pytest.mark.parametrize(("targets", "tokenize"), [(4 * CHINESE, "zh"), (4 * JAPANESE, "char")])
def test_evaluate_and_greedy_removal_part_words_as_the_references_do(
    targets: list[str], tokenize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole model writes the references; one with heads removed leaves the ends of sentences out."""
    model = asker()
    small = model.without(["encoder-self/0/1"])
    text = pairs_with(targets)

    calls: list[Any] = []

    def written(*given: Any) -> tuple[list[str], dict[str, str]]:
        calls.append(given)
        return targets if len(calls) == 1 else without_ends(targets), {
            "engine": "none",
            "cut": [],
            "endless": [],
        }

    monkeypatch.setattr(translation, "translate", written)
    found = hw.evaluate([model, small], text)
    theirs = sacrebleu.corpus_bleu(without_ends(targets), [targets], tokenize=tokenize).score
    first, second = dict.fromkeys(found.table["model"])
    assert found.of(first, "bleu") == pytest.approx(100)
    assert found.of(second, "bleu") == pytest.approx(theirs) and 20 < theirs < 90
    made = found.table.loc[found.table["measure"] == "bleu", "made"]
    assert all(f"tok:{tokenize}" in line or "ja-mecab" in line for line in made)

    calls.clear()
    kept = hw.prune(model, text, hw.Greedy(measure="random", max_drop=100 - theirs - 1), dev=text)
    assert kept.heads.total == model.heads.total, "any removal loses more"
    calls.clear()
    kept = hw.prune(model, text, hw.Greedy(measure="random", max_drop=100 - theirs + 1), dev=text)
    assert kept.heads.total < model.heads.total


def test_references_without_4_grams_are_refused_before_anything_is_translated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = pairs_with(["a cat", "the dog", "one house"] * 4)
    monkeypatch.setattr(translation, "translate", lambda *_: pytest.fail("translated"))
    model = asker()
    refuses(lambda: hw.evaluate(model, text), "None of the 12 references has 4 tokens")
    greedy = hw.Greedy(measure="random", max_drop=1)
    refuses(lambda: hw.prune(model, text, greedy, dev=text), "None of the 12 references")
