"""Perplexity of long documents: every token counted once, and nothing left out in silence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.core.answers import Answers
from headwise.models.evaluation import quality
from headwise.models.evaluation.losses import measure_losses
from headwise.models.tasks import language_model
from models.tasks.askers import asker, lines, pairs, sentences
from models.training.letters import LETTERS, letters

SIZES = (1, 3, 40, 25, 11, 10, 61, 1)  # letters of each document
LONGEST = 10


def documents() -> list[str]:
    """Long and short ones; the tokenizer adds nothing, so that two have a single token."""
    return [" ".join(LETTERS[place % 26] for place in range(size)) for size in SIZES]


def reader(family: str = "gpt2") -> hw.Model:
    model = asker(family)
    model.tokenizer = letters("$A")
    return hw.Model(model.hf, letters("$A"), "reader")


def slow_perplexity(model: hw.Model, stride: int) -> tuple[float, int]:
    """One forward for each token, over what is before it in its window, on the stock model."""
    lost, count = 0.0, 0
    for document in documents():
        ids = model.tokenizer(document)["input_ids"]
        for place in range(1, len(ids)):
            start = 0  # of the first window that holds the token
            while start + LONGEST <= place:
                start += stride
            with torch.no_grad():
                logits = model.hf(torch.tensor([ids[start:place]])).logits[0, -1]
            lost -= float(logits.log_softmax(-1)[ids[place]])
            count += 1
    return math.exp(lost / count), count


def of_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.models.tasks.task.MOST_SENTENCE_TOKENS", LONGEST)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_perplexity_of_long_documents(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_longest(monkeypatch)
    model = reader(family)
    wanted, count = slow_perplexity(model, LONGEST // 2)
    quality = hw.evaluate(model, hw.Text.from_lines(documents()))
    assert count == sum(SIZES) - len(SIZES)
    assert quality.of("reader", "perplexity") == pytest.approx(wanted, rel=1e-5)


def test_what_is_read_and_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_longest(monkeypatch)
    file = tmp_path / "text"
    file.write_text("\n\n".join(documents()) + "\n")
    shares: list[tuple[float, str]] = []
    model = reader()
    quality = hw.evaluate(
        model, hw.Text.open(file), progress=lambda share, what: shares.append((share, what))
    )
    said = quality.table.set_index("measure").made["perplexity"]
    assert said == (
        f"bootstrap over 6 sentences, {sum(SIZES) - 8} predicted tokens, long ones in windows of 10 tokens, each 5 "
        "after the last; left out: 7 blank, 2 without a token to predict"
    )
    assert "left out: 7 blank" in quality.save(tmp_path / "out")[0].read_text()
    windows = 1 + 1 + 7 + 4 + 2 + 12
    assert shares[-1] == (
        1.0,
        f"{windows} of {windows} windows; left out: 7 blank, 2 without a token to predict",
    )
    scored = hw.score(model, hw.Text.open(file), ["confidence"])
    assert scored.signature["left_out"] == "7 blank, 2 without a token to predict"
    assert scored.signature["windows"] == "long ones in windows of 10 tokens, each 5 after the last"


def test_a_masked_model_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    of_longest(monkeypatch)
    quality = hw.evaluate(asker("bert"), hw.Text.from_lines(documents()))
    said = quality.table.set_index("measure").made["perplexity"]
    assert said.startswith("bootstrap over 3 sentences")
    assert said.endswith("left out: 5 longer than 10 tokens")


def test_a_document_counts_once_in_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its windows are no units of their own: sums and tokens are those of whole documents."""
    of_longest(monkeypatch)
    model = reader()
    text = hw.Text.from_lines(documents())
    found = measure_losses(model.task, model.task.quality_batches(text), [])
    assert sorted(found.weights) == sorted(size - 1 for size in SIZES if size > 1)


def test_the_forecast_counts_steps_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a step takes a second: a translation has about as many tokens as its source."""
    monkeypatch.setattr(quality, "best", lambda run, device: float(quality.TIMED_STEPS))
    model, text = asker(), pairs(30)
    lengths = sorted(len(model.tokenizer(source).input_ids) for source in text.sources)
    steps = lengths[-1] + lengths[-11] + lengths[-21]  # the longest of three batches
    steps += 3 * quality.TIMED_ROUNDS * quality.TIMED_TOKENS
    found = quality.evaluation_forecast([model], text, hw.Search(batch=10))
    assert found.seconds == steps


def test_a_text_in_memory_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """To hash the vocabulary of Gemma takes seconds."""
    monkeypatch.setattr("headwise.models.training.token_batches.key", pytest.fail)
    assert len(asker("gpt2").task.batches(lines(3)).data) == 3


def test_sentences_that_fit_are_read_as_ever() -> None:
    """Windows change no number of a text that needs none, to the last bit."""
    model = asker("gpt2")
    text = lines(50)
    whole = measure_losses(model.task, model.task.batches(text), [])
    windows = measure_losses(model.task, model.task.quality_batches(text), [])
    assert np.array_equal(whole.stats, windows.stats)


def test_greedy_removal_measures_whole_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """`max_drop` is a limit of the whole text's perplexity: texts of long documents only can be read."""
    of_longest(monkeypatch)
    long = [" ".join([line] * 4) for line in sentences(12, 0)]
    seen: list[Any] = []

    def noted(*given: Any) -> Answers:
        found = measure_losses(*given)
        seen.append(found.made[found.quality])
        return found

    monkeypatch.setattr(language_model, "measure_losses", noted)
    options = hw.Greedy(max_drop=50.0, measure="gradient")
    hw.prune(asker("gpt2"), lines(20), options, dev=hw.Text.from_lines(long))
    assert seen, "the whole model and what is left of it"
    for made in seen:
        assert made.startswith("bootstrap over 12 sentences") and "left out" not in made
