"""What is timed for a forecast."""

from __future__ import annotations

import pytest
import torch

from headwise import forecast
from headwise.forecast import FEWEST_POSITIONS, Forecast, Part, batch_positions, best, few_sentences
from tasks.askers import asker, lines, pairs


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_a_short_text_is_read_several_times_at_once(family: str) -> None:
    model = asker(family)
    batch = few_sentences(model, pairs(3) if family == "marian" else lines(3))
    assert FEWEST_POSITIONS / 2 < batch_positions(batch) <= FEWEST_POSITIONS
    for tensor in batch.values():
        times = len(tensor) // 3
        assert torch.equal(tensor, tensor[:3].repeat(times, *[1] * (tensor.dim() - 1)))


def test_what_takes_long_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    best(lambda: runs.append(1), "cpu")
    assert len(runs) == 4
    monkeypatch.setattr(forecast, "SLOW", 0.0)
    runs.clear()
    best(lambda: runs.append(1), "cpu")
    assert len(runs) == 1


def test_in_words() -> None:
    found = Forecast(("a text",), (Part("trees", 30.0), Part("pairs", 90.0)), 2.5e9, "timed")
    sentence = "This takes about 2 min and 2.5 GB of memory on this machine: timed."
    assert str(found) == sentence
    assert found.lines() == [
        "a text",
        "  trees  about 30 s",
        "  pairs  about 2 min",
        sentence,
        "Nothing was written.",
    ]
