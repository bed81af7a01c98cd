"""What is timed for a forecast."""

from __future__ import annotations

import pytest

from headwise.models import forecast
from headwise.models.forecast import Forecast, batch_positions, best, few_sentences, text_seconds
from models.tasks.askers import asker, lines, pairs


def test_a_batch_is_not_too_long_to_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "TIMED_POSITIONS", 40)
    for model, text in ((asker("gpt2"), lines(30)), (asker(), pairs(30))):
        batch = few_sentences(model, model.task.batches(text))
        assert 0 < batch_positions(batch) <= 40


def test_time_grows_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that takes a second for its batch takes as many as there are such batches."""
    monkeypatch.setattr(forecast, "best", lambda run, device: 1.0)
    model = asker("gpt2")
    text = model.task.batches(lines(30))
    batch = few_sentences(model, text)
    assert text_seconds(model, text) == pytest.approx(text.total / text.weight(batch))


def test_a_cold_first_run_is_no_measure_of_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long is run again once, and what takes very long is not."""
    clock = [0.0]
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: clock[0])

    def timed(*seconds: float) -> tuple[float, int]:
        left = [*seconds]

        def run() -> None:
            clock[0] += left.pop(0)

        return best(run, "cpu"), len(seconds) - len(left)

    assert timed(0.9, 0.5, 0.6, 0.4) == pytest.approx((0.5, 3))
    assert timed(9.0, 2.0, 1.9) == pytest.approx((2.0, 2))
    assert timed(11.0, 2.0) == pytest.approx((11.0, 1))


def test_in_words() -> None:
    found = Forecast(["a text"], ["trees", "pairs"], 120.0)
    sentence = "This takes about 2 min on this machine."
    assert str(found) == sentence
    assert found.lines() == [
        "a text",
        "To do: trees, pairs.",
        sentence,
        "Nothing was written.",
    ]
