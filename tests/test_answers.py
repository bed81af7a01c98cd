"""What models are worth, by every quality: values, intervals, changes and p against slow twins; and in files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from scipy.stats import binomtest, spearmanr

from headwise.core.answers import Answers, Similarities, read_answers
from headwise.core.errors import HeadwiseError
from headwise.core.qualities import (
    ACCURACY,
    BLEU,
    CHRF,
    LOSS,
    PERPLEXITY,
    SIMILARITY,
    WORD_ERROR_RATE,
    Number,
    QualityMeasure,
)
from headwise.core.statistics import (
    draws,
    effective_units,
    interval,
    paired_bootstrap_p,
    paired_proportion_interval,
    proportion_interval,
    units_for_share,
    unseen_share,
)
from headwise.models.decoding.bleu import translation_answers

SEED = 3
Worth = Callable[[int, np.ndarray], float]  # of a model on the units at some places
Made = Callable[[int], tuple[Answers, dict[QualityMeasure, Worth]]]  # of so many units


def losses(units: int) -> tuple[Answers, dict[QualityMeasure, Worth]]:
    random = np.random.default_rng(0)
    tokens = random.integers(1, 9, units).astype(float)
    summed = random.gamma(2.0, 1.0, (units, 3)) * tokens[:, None]
    stats = np.stack([summed, np.repeat(tokens[:, None], 3, 1)], 2)

    def loss(model: int, places: np.ndarray) -> float:
        return float(sum(summed[place, model] for place in places) / sum(tokens[places]))

    def perplexity(model: int, places: np.ndarray) -> float:
        return float(np.exp(loss(model, places)))

    answers = Answers({PERPLEXITY: "of losses", LOSS: "the same"}, stats, tokens)
    return answers, {PERPLEXITY: perplexity, LOSS: loss}


def classes(units: int) -> tuple[Answers, dict[QualityMeasure, Worth]]:
    random = np.random.default_rng(1)
    right = random.random((units, 3)) < (0.3, 0.6, 0.6)
    stats = np.stack([random.random((units, 3)), np.ones((units, 3)), right], 2)

    def accuracy(model: int, places: np.ndarray) -> float:
        return 100 * float(np.mean(right[places, model]))

    return Answers({ACCURACY: "of classes"}, stats, np.ones(units)), {ACCURACY: accuracy}


def recordings(units: int) -> tuple[Answers, dict[QualityMeasure, Worth]]:
    random = np.random.default_rng(2)
    words = random.integers(1, 12, units).astype(float)
    errors = random.integers(0, 5, (units, 3)).astype(float)

    def rate(model: int, places: np.ndarray) -> float:
        return 100 * float(sum(errors[places, model]) / sum(words[places]))

    stats = np.stack([errors, np.repeat(words[:, None], 3, 1)], 2)
    return Answers({WORD_ERROR_RATE: "of recordings"}, stats, words), {WORD_ERROR_RATE: rate}


def translations(units: int) -> tuple[Answers, dict[QualityMeasure, Worth]]:
    random = np.random.default_rng(3)
    references = [" ".join(random.choice(list("abcdef"), 5 + n % 4)) for n in range(units)]
    systems = []
    for share in (0.4, 0.2, 0.1):
        lines = [
            " ".join("x" if random.random() < share else word for word in line.split())
            for line in references
        ]
        systems.append(lines)

    def bleu(model: int, places: np.ndarray) -> float:
        lines, right = ([side[place] for place in places] for side in (systems[model], references))
        return sacrebleu.corpus_bleu(lines, [right]).score

    def chrf(model: int, places: np.ndarray) -> float:
        lines, right = ([side[place] for place in places] for side in (systems[model], references))
        return sacrebleu.corpus_chrf(lines, [right]).score

    return translation_answers(systems, references, (BLEU, CHRF)), {BLEU: bleu, CHRF: chrf}


MADE = (losses, classes, recordings, translations)


def change(quality: QualityMeasure, before: float, after: float) -> float:
    return 100 * (after / before - 1) if quality == PERPLEXITY else after - before


@pytest.mark.parametrize("made", MADE)
def test_numbers_against_a_slow_twin(made: Made) -> None:
    """The text is written out with every unit as often as it is drawn, and its value computed."""
    count = 30
    answers, worth = made(count)
    whole = np.arange(count)
    tables = np.concatenate([*draws(count, SEED)])
    for quality, value in worth.items():
        by = answers.by(quality)
        drawn = np.stack([by.drawn(model, SEED) for model in range(3)], 1)
        for row in (0, 17, 999):
            places = np.repeat(whole, tables[row].astype(int))
            assert drawn[row] == pytest.approx([value(model, places) for model in range(3)])
        units = effective_units(answers.weights)
        for model in range(3):
            number = by.number(model, SEED)
            assert number.value == pytest.approx(value(model, whole), rel=1e-12)
            low, high = interval(drawn[:, model], units)
            if quality == ACCURACY:
                right = answers.stats[:, model, 2].sum()
                low, high = (100 * end for end in proportion_interval(right, count))
            assert (number.low, number.high) == pytest.approx((float(low), float(high)))
            assert (number.p, number.units) == (None, units)
        found = by.change(2, 1, SEED)
        moved = np.array([change(quality, one, other) for _, one, other in drawn])
        wanted = change(quality, value(1, whole), value(2, whole))
        assert found.value == by.difference(2, 1) == pytest.approx(wanted)
        low, high = map(float, interval(moved, units))
        p = float(paired_bootstrap_p(moved, units))
        if quality == ACCURACY:
            right = answers.stats[:, :, 2]
            gained, lost = (int((right[:, a] > right[:, b]).sum()) for a, b in ((2, 1), (1, 2)))
            low, high = (100 * end for end in paired_proportion_interval(gained, lost, count))
            p = binomtest(gained, gained + lost).pvalue
        assert (found.low, found.high) == pytest.approx((low, high))
        assert found.p == pytest.approx(p)


@pytest.mark.parametrize("made", MADE[:3])
def test_the_units_on_which_a_model_is_worse(made: Made) -> None:
    """Against the quality of every unit alone."""
    answers, worth = made(12)
    quality = answers.quality
    alone = [[worth[quality](model, np.array([unit])) for unit in range(12)] for model in range(3)]
    lost = {unit: quality.better * (alone[0][unit] - alone[2][unit]) for unit in range(12)}
    worst = sorted((unit for unit in lost if lost[unit] > 0), key=lambda unit: -lost[unit])[:4]
    found = answers.worse(2, 0, 4)
    assert worst and [unit for unit, _, _ in found] == worst
    for unit, before, after in found:
        assert (before, after) == pytest.approx((alone[0][unit], alone[2][unit]))


@pytest.mark.parametrize("made", MADE)
def test_few_differing_units_are_tested_exactly(made: Made) -> None:
    """Every way of swapping them, in texts written out. p is the same both ways."""
    answers = made(30)[0]
    stats = answers.stats.copy()
    own = slice(*answers.quality.columns)
    same = np.flatnonzero((stats[:, 1, own] != stats[:, 2, own]).any(1))[4:]
    stats[same, 2, own] = stats[same, 1, own]
    few = Answers(answers.made, stats, answers.weights)
    differ = np.flatnonzero((stats[:, 1, own] != stats[:, 2, own]).any(1))
    quality = few.quality
    assert len(differ) == 4 and quality.value is not None
    apart = []
    for swaps in product((False, True), repeat=4):
        ours, theirs = stats[:, 2].copy(), stats[:, 1].copy()
        for place, swapped in zip(differ, swaps, strict=True):
            if swapped:
                ours[place], theirs[place] = stats[place, 1], stats[place, 2]
        one, other = quality.value(ours.sum(0)[own]), quality.value(theirs.sum(0)[own])
        apart.append(abs(np.log(one / other)) if quality.relative else abs(one - other))
    exact = np.mean(np.array(apart) >= apart[0] - 1e-12)
    moved = quality.change(few.drawn(1, SEED), few.drawn(2, SEED))
    found = few.change(2, 1, SEED)
    drawn = 0.0 if quality == ACCURACY else float(paired_bootstrap_p(moved, few.units))
    assert found.p == pytest.approx(max(exact, drawn)) and found.p >= 1 / 8
    assert few.change(1, 2, SEED).p == found.p


def test_a_single_unit_has_a_value_and_no_interval() -> None:
    for made in (losses, recordings, translations):
        answers = made(1)[0]
        assert answers.number(1) == Number(answers.value(1), units=1)
        assert answers.change(2, 1) == Number(answers.difference(2, 1), units=1)


@pytest.mark.parametrize("made", (losses, recordings, translations))
def test_few_units_have_values_but_neither_interval_nor_p(made: Made) -> None:
    """Intervals of two to five units left out the truth in 50 to 7 %, and a verdict would be read from them."""
    answers = made(5)[0]
    number = answers.number(1)
    change = answers.change(2, 1)
    assert number == Number(answers.value(1), units=answers.units)
    assert change == Number(answers.difference(2, 1), units=answers.units)
    assert change.finding(answers.quality) == ""


def test_texts_without_a_disagreement_say_as_much_as_their_number() -> None:
    """The score interval of 0 of n (Wilson 1927), z² / (n + z²): it is not empty, and needs 381 texts for a point."""
    for count, reach in ((8, 32.4), (50, 7.1), (80, 4.6), (381, 1.0)):
        for value in (0.5, 1.0):
            right = (np.arange(count) < value * count).astype(float)
            losses = np.random.default_rng(0).random((count, 2))  # which differ between the two
            stats = np.stack([losses, np.ones((count, 2)), np.stack([right, right], 1)], 2)
            change = Answers({ACCURACY: ""}, stats, np.ones(count)).change(1)
            assert change.value == 0 and change.p == 1
            assert change.high == pytest.approx(-change.low) == pytest.approx(reach, abs=0.05)
    assert units_for_share(0.01) == 381 and unseen_share(381) <= 0.01 < unseen_share(380)


def worded(found: np.ndarray) -> Answers:
    """Classes of words, four in each text: found, texts x models."""
    words = np.full(found.shape, 4.0)
    return Answers({ACCURACY: ""}, np.stack([words, words, found], 2), words[:, 0])


@pytest.mark.parametrize("kind", ["classes of words", "recordings", "translations"])
def test_units_that_are_all_alike_have_no_interval_without_width(kind: str) -> None:
    """The share of the text that n units do not show may be as bad as can be: a model that is worth v loses at most that
    share of v."""
    count = 10
    share = 100 * unseen_share(count)
    if kind == "classes of words":
        answers, value, low, high = worded(np.full((count, 2), 4.0)), 100, -share, 0.0
    elif kind == "recordings":
        stats = np.zeros((count, 2, 2))
        stats[:, :, 1] = 5
        answers = Answers({WORD_ERROR_RATE: ""}, stats, np.full(count, 5.0))
        value, low, high = 0, 0.0, share
    else:
        lines = ["the old man sees a small red house"] * count
        answers, value, low, high = translation_answers([lines, lines], lines), 100, -share, 0.0
    change = answers.change(1)
    assert (change.value, change.p) == (0, 1)
    assert (change.low, change.high) == pytest.approx((low, high))
    own = answers.number()
    assert own.value == pytest.approx(value)
    if kind == "classes of words":  # exact, a text counting as one
        low = -100 * (1 - 0.025 ** (1 / count))
    assert (own.low, own.high) == pytest.approx((value + low, value + high))


def test_equal_losses_have_no_interval() -> None:
    """Nothing bounds the loss of a sentence that was not seen."""
    answers = losses(30)[0]
    for quality in (PERPLEXITY, LOSS):
        assert answers.by(quality).change(1, 1) == Number(0.0, units=answers.units)
    same = Answers({LOSS: ""}, np.ones((30, 1, 2)), np.ones(30))
    assert same.number() == Number(1.0, units=30)


def test_shares_of_few_texts_keep_away_from_certainty() -> None:
    """The second model is right in 30 of 40 texts, the whole one in 10; a third one in all."""
    place = np.arange(40)
    right = np.stack([place < 10, place >= 10, place >= 0], 1)
    answers = Answers({ACCURACY: ""}, np.stack([right, np.ones((40, 3)), right], 2), np.ones(40))
    change = answers.change(1)
    assert change.value == 50 and change.low is not None and 0 < change.low < 50
    assert change.finding(ACCURACY) == "better"
    perfect = answers.number(2)
    assert perfect.value == perfect.high == 100 and perfect.low == pytest.approx(91.2, abs=0.1)


def test_a_change_is_paired_over_units() -> None:
    """Two models that err alike in every recording differ by nothing, though each rate is uncertain."""
    few = [[3.0, 3.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [4.0, 4.0, 2.0]]
    errors = np.array(2 * few)
    words = np.array(2 * [5.0, 6.0, 7.0, 8.0])
    stats = np.stack([errors, np.repeat(words[:, None], 3, 1)], 2)
    answers = Answers({WORD_ERROR_RATE: ""}, stats, words)
    rate = answers.number(1)
    assert rate.low is not None and rate.high is not None
    assert rate.value == pytest.approx(100 * 8 / 26) and rate.low < 100 * 8 / 26 < rate.high
    same = answers.change(1)
    assert (same.value, same.p) == (0, 1) and same.low is not None and same.low < 0 < same.high
    assert answers.change(2).value == pytest.approx(-100 * 6 / 26)


def ranked(table: bool = False) -> Similarities:
    """Of eight sentences, or rows of a table, and three models."""
    random = np.random.default_rng(4)
    members = np.array([(one, other) for one in range(8) for other in range(one)])
    if table:
        members = members[:, :1] * 8 + members[:, 1:]
    true = random.normal(size=len(members))
    noise = random.normal(size=(len(members), 3)) * (0.0, 0.3, 0.6)
    cosines = (true[:, None] + noise)[:, :, None]
    weights = np.ones(len(np.unique(members)))
    reference = random.normal(size=len(members)) if table else cosines[:, 0, 0]
    nearest = np.empty((0, 4), int)
    return Similarities({SIMILARITY: "ranks"}, cosines, weights, members, reference, nearest)


@pytest.mark.parametrize("table", [False, True])
def test_similarities_against_a_slow_twin(table: bool) -> None:
    """A pair counts as often as its sentences are drawn, the product of both."""
    answers = ranked(table)
    cosines = answers.stats[:, :, 0]
    tables = np.concatenate([*draws(len(answers.weights), SEED)]).astype(int)
    names = sorted(set(answers.members.ravel().tolist()))
    drawn = answers.drawn(1, SEED)
    for row in (0, 5, 999):
        count = dict(zip(names, tables[row].tolist(), strict=True))
        times = [int(np.prod([count[name] for name in pair])) for pair in answers.members.tolist()]
        both = (np.repeat(each, times) for each in (cosines[:, 1], answers.reference))
        assert drawn[row] == pytest.approx(100 * spearmanr(*both).statistic)
    for model in (1, 2):
        wanted = 100 * spearmanr(cosines[:, model], answers.reference).statistic
        number = answers.number(model)
        assert number.value == pytest.approx(wanted)
        assert number.low is not None and number.high is not None
        assert number.low < wanted < number.high <= 100 and number.units == len(names)
    change = answers.change(2, 1)
    assert change.value == pytest.approx(answers.value(2) - answers.value(1))
    assert change.p is not None and 0 < change.p <= 1
    if not table:
        assert answers.number(0) == Number(100.0), "compared with itself"


@pytest.mark.parametrize("answers", [losses(5)[0], classes(5)[0], ranked(), ranked(table=True)])
def test_what_was_saved_is_read(answers: Answers, tmp_path: Path) -> None:
    file = tmp_path / "losses" / "dev" / "one.npz"
    answers.save(file)
    again = read_answers(file)
    assert type(again) is type(answers) and vars(again).keys() == vars(answers).keys()
    assert again.made == answers.made and again.quality == answers.quality
    assert again.change(2, 1, SEED) == answers.change(2, 1, SEED)
    for model in range(3):
        assert again.number(model, SEED) == answers.number(model, SEED)


@pytest.mark.parametrize(
    ("one", "other"),
    [(losses(5)[0], losses(6)[0]), (losses(5)[0], classes(5)[0]), (ranked(), ranked(table=True))],
)
def test_other_texts_are_not_compared(one: Answers, other: Answers) -> None:
    with pytest.raises(HeadwiseError, match="measured on different texts"):
        one.beside(other)


def test_one_model_beside_others_is_what_it_was() -> None:
    for answers in (losses(9)[0], ranked()):
        both = answers.of(2).beside(answers.of(1))
        assert both.change(0, 1, SEED) == answers.change(2, 1, SEED)
        assert both.number(1, SEED) == answers.number(1, SEED)
