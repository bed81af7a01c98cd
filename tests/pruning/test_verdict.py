"""The rule that says what follows from the numbers of a pruned model: by interval, limit, text and saving."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headwise.core.answers import Answers
from headwise.core.measured import FINE_TUNED, UNPRUNED, ModelNumbers
from headwise.core.qualities import ACCURACY, BLEU, PERPLEXITY, Number, QualityMeasure
from headwise.pruning.verdict import Outcome, Speed, Verdict, texts_needed, verdict_on

FULL_BLEU = 30.0


def numbers(
    quality: QualityMeasure,
    value: float,
    weights: float | None,
    speed: tuple[float | None, float | None, float | None],
) -> ModelNumbers:
    found = ModelNumbers()
    for split in ("dev", "test"):
        found[split, quality.name, ""] = Number(value)
    found["", "parameters", ""] = Number(weights)
    found["", "tokens_per_second", ""] = Number(*speed)
    return found


def verdict(
    change: Number | None = None,
    *,
    quality: QualityMeasure = BLEU,
    base: float = FULL_BLEU,
    limit: float | None = 1.0,
    weights: float | None = 60.0,
    speed: tuple[float | None, float | None, float | None] = (100.0, 95.0, 105.0),
    texts: int = 1000,
    **more: Any,
) -> Verdict:
    """Of a model with 40 % fewer weights, as fast, and a change of −0.1 [−0.4, 0.2] on 1000 sentences."""
    if change is None:
        change = Number(-0.1, -0.4, 0.2, 0.5, texts)
    full = numbers(quality, base, 100.0, (100.0, 95.0, 105.0))
    moved = quality.moved(base, change.value or 0.0)
    model = numbers(quality, moved, weights, speed)
    for split in ("dev", "test"):
        model[split, quality.name, UNPRUNED] = change
    options = {
        "quality_on_dev": quality,
        "split": "test",
        "counts": {"dev": 1000, "test": texts},
    } | more
    return verdict_on(full, model, quality=quality, limit=limit, **options)


def loss(value: float, low: float, high: float, units: float = 1000) -> Number:
    """A change of BLEU from −high to −low."""
    p = 0.001 if low > 0 or high < 0 else 0.5
    return Number(-value, -high, -low, p, units)


CASES = [
    # (change, what else), the outcome
    (Number(-0.1), {}, Outcome.NOT_COMPARED),
    (None, {"base": 9.0}, Outcome.NO_BASIS),
    (loss(13, 12.5, 14), {"limit": None}, Outcome.TOO_DEAR),  # 12.5 of 30 BLEU for 40 %
    (loss(2, 1.2, 3), {"limit": None, "weights": 95.0}, Outcome.WORSE_AND_LITTLE_SAVED),
    (loss(2, 1.2, 3), {"limit": None, "weights": 99.0}, Outcome.TOO_DEAR),
    # 1.2 of 30 BLEU for half of the time; and nothing follows where nothing was timed or weighed.
    (
        loss(2, 1.2, 3),
        {"limit": None, "weights": 99.0, "speed": (200.0, 195.0, 205.0)},
        Outcome.OPEN,
    ),
    (loss(2, 1.2, 3), {"limit": None, "weights": None, "speed": (None, None, None)}, Outcome.OPEN),
    (loss(2, 1.2, 3), {}, Outcome.OVER_LIMIT),
    (None, {"doubts": ["Its gates had not settled."]}, Outcome.DOUBTED),
    (None, {"texts": 49}, Outcome.TOO_SHORT),
    (None, {"texts": 49, "limit": None}, Outcome.TOO_SHORT),
    (loss(0.1, -0.2, 1.1), {}, Outcome.UNDECIDED),
    (loss(0.5, 0.1, 1.1), {}, Outcome.UNDECIDED),  # surely worse, perhaps within the limit
    # The interval says that more is lost than the limit, and an exact p that nothing may be.
    (Number(-2, -3, -1.2, 0.2, 1000), {}, Outcome.UNDECIDED),
    (None, {"limit": None}, Outcome.OPEN),
    (loss(2, 1.2, 3), {"limit": None}, Outcome.OPEN),
    (None, {"weights": 95.0}, Outcome.LITTLE_SAVED),
    (None, {"weights": 95.0, "speed": (120.0, 115.0, 125.0)}, Outcome.SHIP),
    (loss(-1, -2, -0.5), {"limit": None}, Outcome.SHIP),  # better
    (None, {}, Outcome.SHIP),
    (loss(0.5, 0.1, 0.9), {}, Outcome.SHIP),  # worse, and surely within the limit
]


@pytest.mark.parametrize(("change", "more", "outcome"), CASES)
def test_what_follows(change: Number | None, more: dict[str, Any], outcome: Outcome) -> None:
    assert verdict(change, **more).outcome == outcome


def test_every_outcome_has_a_case() -> None:
    assert {outcome for _, _, outcome in CASES} == set(Outcome)


def test_nothing_is_shipped_while_the_interval_reaches_past_the_limit() -> None:
    """Whatever the change, the text and the saving; and on a text that is too short."""
    generator = np.random.default_rng(0)
    outcomes = set()
    for _ in range(500):
        value, half = generator.normal(0, 1), generator.exponential(0.5)
        texts = int(generator.integers(6, 2000))
        change = replace(loss(value, value - half, value + half, texts))
        found = verdict(change, texts=texts, weights=generator.uniform(1, 100))
        outcomes.add(found.outcome)
        if found.outcome == Outcome.SHIP:
            assert value + half <= 1.0 + 1e-5 and texts >= 50
    assert Outcome.SHIP in outcomes and Outcome.UNDECIDED in outcomes


def test_without_a_disagreement_in_eight_texts_nothing_follows() -> None:
    """A classifier that answers as before on 8 texts: the interval is the exact one, 381 texts tell a point."""
    for texts, outcome in ((8, Outcome.TOO_SHORT), (300, Outcome.UNDECIDED), (400, Outcome.SHIP)):
        stats = np.ones((texts, 2, 3))
        change = Answers({ACCURACY: ""}, stats, np.ones(texts)).change(1)
        assert change.low is not None and change.low < 0.0
        found = verdict(change, quality=ACCURACY, base=100.0, texts=texts)
        assert found.outcome == outcome
        assert found.needed is not None and 300 <= found.needed <= 400


def test_so_many_texts_are_enough() -> None:
    """A bootstrap of as many texts as the rule asks for ends near the limit."""
    generator = np.random.default_rng(1)
    losses = generator.normal(0.0, 4.0, 400)
    losses += 0.2 - losses.mean()
    half = 1.96 * losses.std() / 20
    change = loss(losses.mean(), losses.mean() - half, losses.mean() + half, 400)
    needed = texts_needed([change], BLEU, 0.5)
    assert needed is not None and needed > 400
    again = 1.96 * losses.std() / np.sqrt(needed)
    assert losses.mean() + again == pytest.approx(0.5, abs=0.01)
    # At the limit already, no number of texts would do.
    assert texts_needed([loss(1, 0.5, 1.5)], BLEU, 1.0) == math.inf
    # The reader counts texts, an interval fewer of them where they differ in length.
    assert texts_needed([change], BLEU, 0.5, 800) == pytest.approx(2 * needed, abs=2)


def test_the_limit_counts_from_the_full_model_and_the_headline_from_equal_training() -> None:
    full = numbers(BLEU, 30, 100, (100, 95, 105))
    model = numbers(BLEU, 29.8, 60, (100, 95, 105))
    model["test", "bleu", UNPRUNED] = loss(0.2, -0.1, 0.5)
    options: dict[str, Any] = {
        "quality": BLEU,
        "quality_on_dev": BLEU,
        "split": "test",
        "limit": 1.0,
    }
    assert verdict_on(full, model, **options).outcome == Outcome.SHIP
    # What equal further training gains is lost, too.
    model["test", "bleu", FINE_TUNED] = loss(0.8, 0.4, 1.2)
    found = verdict_on(full, model, **options)
    assert (found.reference, found.outcome) == (FINE_TUNED, Outcome.UNDECIDED)
    assert found.most_loss == 1.2 and found.within == ("dev", "test")


def test_of_perplexity_a_rise_is_the_loss() -> None:
    change = Number(3.1, 2.1, 4.1, 0.001, 1000)
    found = verdict(change, quality=PERPLEXITY, base=20.0, limit=5.0)
    assert (found.least_loss, found.most_loss, found.outcome) == (2.1, 4.1, Outcome.SHIP)
    assert verdict(change, quality=PERPLEXITY, base=20.0, limit=4.0).outcome == Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("rounds", "speed"),
    [
        ((120.0, 115.0, 125.0), Speed.FASTER),
        ((80.0, 75.0, 85.0), Speed.SLOWER),
        ((103.0, 98.0, 108.0), Speed.SAME),
        ((120.0, 120.0, 120.0), Speed.ONCE),
    ],
)
def test_speeds_are_told_apart_by_their_rounds(
    rounds: tuple[float, float, float], speed: Speed
) -> None:
    found = verdict(speed=rounds)
    assert found.speed == speed and found.speed_up == pytest.approx(rounds[0] / 100 - 1)
