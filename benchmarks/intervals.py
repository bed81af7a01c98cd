"""How often 95 % intervals leave out the truth: every interval of the package, on simulated texts.

    python benchmarks/intervals.py --out docs/methods/intervals.csv --page docs/methods/bleu.md

A row of the table is an interval, a kind of data, and a number of units (sentences, documents, clusters, heads). Texts
are drawn from a distribution whose true value is known, and the package's own function makes an interval of each.

    missed        % of the intervals that leave out the true value; the aim: at most 6
    error         the standard error of `missed`
    blank         % of the texts that get no interval
    width         the median width
    texts         how many texts were drawn

The page gets the table between its marks: the `missed` of every interval by the number of units. About 6 minutes of
processor time; `--texts 200` is quick and rough.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

from headwise.core.answers import Answers, Similarities
from headwise.core.folders import write_text
from headwise.core.heads import HeadMap, Site
from headwise.core.qualities import ACCURACY, BLEU, PERPLEXITY, SIMILARITY, WORD_ERROR_RATE
from headwise.core.statistics import (
    auroc_interval,
    over_seeds,
    rank_interval,
    ratio_interval,
    t_margin,
)
from headwise.faces.report.comparison import difference_of_changes
from headwise.importance.curves import Curve, area_rows, curve_steps
from headwise.importance.faithfulness import agreement
from headwise.importance.ranks import spearman
from headwise.models.evaluation.sums import SentenceSums
from headwise.roles.probe import value_interval

UNITS = (2, 3, 5, 10, 30, 200)
COLUMNS = 50  # heads that share the lengths of one text
START = "<!-- intervals: made by benchmarks/intervals.py -->"
END = "<!-- end -->"

Random = np.random.Generator
Ends = tuple[np.ndarray, np.ndarray]
Lengths = Callable[[Random, int], np.ndarray]


class Simulated(NamedTuple):
    """The intervals of some texts, and what they should hold."""

    low: np.ndarray
    high: np.ndarray
    truth: float


Simulation = Callable[[Random, int, int], Simulated]  # of so many units and texts


# How long units are, in tokens


def ones(random: Random, units: int) -> np.ndarray:
    return np.ones(units)


def sentences(random: Random, units: int) -> np.ndarray:
    lengths: np.ndarray = random.integers(3, 30, units).astype(float)
    return lengths


def words(random: Random, units: int) -> np.ndarray:
    lengths: np.ndarray = random.integers(1, 8, units).astype(float)
    return lengths


def documents(random: Random, units: int) -> np.ndarray:
    """Log-normal: a tenth of the documents has 4 times the median, or more."""
    lengths: np.ndarray = np.ceil(20 * np.exp(random.normal(0, 1, units)))
    return lengths


# Sums over units: of units of some lengths, in so many columns; their true mean is 0


def normal(random: Random, lengths: np.ndarray, columns: int) -> np.ndarray:
    """Sentences differ, and so do their tokens."""
    shape = (len(lengths), columns)
    of_units = 0.2 * lengths[:, None] * random.normal(size=shape)
    sums: np.ndarray = of_units + 0.5 * np.sqrt(lengths)[:, None] * random.normal(size=shape)
    return sums


def rare(random: Random, lengths: np.ndarray, columns: int) -> np.ndarray:
    """A tenth of the words is right, by either of two heads."""
    right = random.binomial(1, 0.1, (2, len(lengths), columns))
    sums: np.ndarray = (right[0] - right[1]).astype(float)
    return sums


def skewed(random: Random, lengths: np.ndarray, columns: int) -> np.ndarray:
    """Exponential: a few sentences cost much, most a little less than nothing."""
    sums: np.ndarray = lengths[:, None] * (random.exponential(1, (len(lengths), columns)) - 1)
    return sums


def heavy(random: Random, lengths: np.ndarray, columns: int) -> np.ndarray:
    """Log-normal: one sentence of 30 costs as much as all others."""
    drawn = np.exp(random.normal(0, 1, (len(lengths), columns)))
    sums: np.ndarray = lengths[:, None] * (drawn - np.exp(0.5))
    return sums


Sums = Callable[[Random, np.ndarray, int], np.ndarray]


def in_rounds(texts: int) -> range:
    """The numbers of rounds of COLUMNS texts each."""
    return range(-(-texts // COLUMNS))


def arrays(ends: tuple[float, float]) -> Ends:
    return np.array(ends[0]), np.array(ends[1])


def together(parts: list[Ends], truth: float) -> Simulated:
    low, high = (np.concatenate([np.ravel(part[end]) for part in parts]) for end in (0, 1))
    return Simulated(low.astype(float), high.astype(float), truth)


def scores(sums: Sums, lengths: Lengths) -> Simulation:
    """A measure of heads: `SentenceSums.rows`, of which differences and effects are made as well."""

    def simulate(random: Random, units: int, texts: int) -> Simulated:
        heads = HeadMap({"encoder-self": (COLUMNS,)})
        parts = []
        for number in in_rounds(texts):
            counts = lengths(random, units)
            collected = SentenceSums(heads)
            collected.take(Site("encoder-self", 0), sums(random, counts, COLUMNS), counts)
            rows = collected.rows("a measure", seed=number)
            low = np.array([row["low"] for row in rows])
            parts.append((low, np.array([row["high"] for row in rows])))
        return together(parts, 0.0)

    return simulate


def shares(share: float, alike: float, lengths: Lengths) -> Simulation:
    """Right answers of heads; those of one unit are alike, with this correlation: `value_interval` of roles."""

    def simulate(random: Random, units: int, texts: int) -> Simulated:
        size = (1 - alike) / alike
        parts = []
        for number in in_rounds(texts):
            counts = lengths(random, units).astype(int)
            skills = random.beta(share * size, (1 - share) * size, (units, COLUMNS))
            right = random.binomial(counts[:, None], skills)[..., None].astype(float)
            divisors = np.broadcast_to(counts[:, None, None], right.shape).astype(float)
            value = right.sum(0) / divisors.sum(0)
            parts.append(value_interval(right, divisors, value, number))
        return together(parts, share)

    return simulate


def of_answers(
    draw: Callable[[Random, int], Answers], truth: Callable[[], float], change: bool = False
) -> Simulation:
    """A quality of a model, or the change from the first model to the second."""

    def simulate(random: Random, units: int, texts: int) -> Simulated:
        parts = []
        for number in range(texts):
            answers = draw(random, units)
            found = answers.change(1, 0, number) if change else answers.number(0, number)
            ends = [np.nan if end is None else end for end in (found.low, found.high)]
            parts.append((np.array(ends[0]), np.array(ends[1])))
        return together(parts, truth())

    return simulate


def losses(random: Random, units: int) -> Answers:
    """Two models whose loss has the same mean; sentences are hard for both."""
    lengths = sentences(random, units)
    shared = random.gamma(4, 0.75, units)
    stats = np.empty((units, 2, 2))
    for model in range(2):
        stats[:, model, 0] = lengths * (shared + random.normal(0, 0.3, units))
        stats[:, model, 1] = lengths
    return Answers({PERPLEXITY: ""}, stats, lengths)


def classes(share: float) -> Callable[[Random, int], Answers]:
    """Two models that find the class of so many texts."""

    def draw(random: Random, units: int) -> Answers:
        right = random.random((units, 2)) < share
        stats = np.stack([np.ones((units, 2)), np.ones((units, 2)), right], 2)
        return Answers({ACCURACY: ""}, stats, np.ones(units))

    return draw


BLEU_ORDERS = 4


def bleu_stats(random: Random, units: int) -> np.ndarray:
    """sacreBLEU's statistics of translations of two models, of one quality: units x 2 x 10."""
    lengths = random.integers(6, 30, units)
    hard = random.normal(0, 0.5, units)
    stats = np.zeros((units, 2, 2 + 2 * BLEU_ORDERS))
    for model in range(2):
        written = np.maximum(4, lengths + random.integers(-2, 3, units))
        skill = 1 / (1 + np.exp(-(0.9 - hard + random.normal(0, 0.5, units))))
        stats[:, model, :2] = np.stack([written, lengths], 1)
        matches = written
        for order in range(BLEU_ORDERS):
            possible = np.maximum(0, written - order)
            matches = np.minimum(possible, random.binomial(matches, skill))
            stats[:, model, 2 + order] = matches
            stats[:, model, 2 + BLEU_ORDERS + order] = possible
    return stats


def translations(random: Random, units: int) -> Answers:
    stats = bleu_stats(random, units)
    return Answers({BLEU: ""}, stats, stats[:, 0, 1])


@cache
def true_bleu() -> float:
    """BLEU of a very long text."""
    sums = bleu_stats(np.random.default_rng(1), 400_000)[:, 0].sum(0)
    assert BLEU.value is not None
    return float(BLEU.value(sums[None])[0])


CORRELATED = 0.8


def ranked_pairs(random: Random, units: int) -> Answers:
    """How a model ranks rows of a table beside its right numbers."""
    right = random.normal(size=units)
    found = CORRELATED * right + (1 - CORRELATED**2) ** 0.5 * random.normal(size=units)
    return Similarities(
        {SIMILARITY: ""},
        found[:, None, None],
        np.ones(units),
        np.arange(units)[:, None],
        right,
        np.empty((0, 2), int),
    )


def spearman_of(pearson: float) -> float:
    """Spearman's correlation of a normal distribution with this Pearson's (Pearson 1907)."""
    return float(6 / np.pi * np.arcsin(pearson / 2))


def heads_ranked(random: Random, units: int, texts: int) -> Simulated:
    """Two measures of so many heads: `rank_interval`."""
    parts = []
    for _ in range(texts):
        one = random.normal(size=units)
        other = CORRELATED * one + (1 - CORRELATED**2) ** 0.5 * random.normal(size=units)
        value = float(spearman(one[None], other[None])[0])
        parts.append(arrays(rank_interval(value, units)))
    return together(parts, spearman_of(CORRELATED))


def areas(distance: float) -> Simulation:
    """Area under the ROC curve of so many heads, a quarter of them with a role: `auroc_interval`."""

    def simulate(random: Random, units: int, texts: int) -> Simulated:
        positives = max(1, units // 4)
        parts = []
        for _ in range(texts):
            ours = random.normal(distance, 1, positives)
            rest = random.normal(0, 1, units - positives)
            value = float((ours[:, None] > rest).mean())
            parts.append(arrays(auroc_interval(value, positives, len(rest))))
        return together(parts, float(norm.cdf(distance / 2**0.5)))

    return simulate


def judged(random: Random, units: int, texts: int) -> Simulated:
    """How a score ranks heads as exact ablation does, on so many sentences each: `agreement`, Spearman.

    The truth is the median of such texts, because noise lowers rank correlations.
    """
    heads = HeadMap({"encoder-self": (6, 6)})
    worth = np.random.default_rng(7).gamma(1.0, 1.0, heads.total)

    def measured(noise: float) -> SentenceSums:
        counts = sentences(random, units)
        collected = SentenceSums(heads)
        for number, site in enumerate(heads.sites):
            mine = worth[6 * number : 6 * (number + 1)]
            drawn = mine + noise * random.normal(size=(units, 6))
            collected.take(site, counts[:, None] * drawn, counts)
        return collected

    parts = []
    values = []
    for number in range(texts):
        rows = agreement({"gradient": measured(4.0)}, measured(2.0), number)
        found = next(row for row in rows if row["statistic"] == "spearman")
        values.append(found["value"])
        parts.append((np.array(found["low"]), np.array(found["high"])))
    return together(parts, float(np.median(values)))


def removal(statistic: str) -> Simulation:
    """The area of a removal curve over sentences: `area_rows`."""
    total = 20
    steps = curve_steps(total)
    rising = 3 + 2 * (np.array(steps) / total) ** 2

    def curve(counts: np.ndarray, losses: np.ndarray) -> Curve:
        return Curve("gradient", "once", None, "encoder-self", total, tuple(steps), losses, counts)

    def simulate(random: Random, units: int, texts: int) -> Simulated:
        one = np.ones(1)
        truth = curve(one, rising[None]).areas(rising)[statistic]
        parts = []
        for number in range(texts):
            counts = sentences(random, units)
            hard = random.gamma(4, 0.25, (units, 1))
            drawn = rising * hard + random.normal(0, 0.3, (units, len(steps)))
            rows = area_rows([curve(counts, counts[:, None] * drawn)], number)
            found = next(row for row in rows if row["statistic"] == statistic)
            parts.append((np.array(found["low"]), np.array(found["high"])))
        return together(parts, float(truth))

    return simulate


def seeds(apart: float) -> Simulation:
    """The mean over so many seeds of models that are tried on one text of 100 sentences: `over_seeds`. apart: how far
    seeds differ, in standard errors of one text."""
    count = 100

    def simulate(random: Random, units: int, texts: int) -> Simulated:
        table = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), 400)
        parts = []
        for _ in range(texts):
            shared = random.normal(size=count)
            models = apart / count**0.5 * random.normal(size=(units, 1))
            answers = models + shared + 0.5 * random.normal(size=(units, count))
            ends = over_seeds(answers.mean(1), answers @ table.T / count, count)
            parts.append(arrays(ends))
        return together(parts, 0.0)

    return simulate


def seeds_alone(random: Random, units: int, texts: int) -> Simulated:
    """The mean of numbers of so many seeds: `t_margin`."""
    values = random.normal(size=(units, texts))
    mean = values.mean(0)
    margin = t_margin(values)
    return Simulated(mean - margin, mean + margin, 0.0)


def ratios(random: Random, units: int, texts: int) -> Simulated:
    """Errors a word, of which sentences have some: `ratio_interval`, as of alignment, confirmed roles and sets of heads."""
    parts = []
    for number in in_rounds(texts):
        counts = np.broadcast_to(words(random, units)[:, None], (units, COLUMNS))
        hard = random.gamma(2, 0.5, (units, COLUMNS))
        wrong = counts * hard * random.gamma(2, 0.5, (units, COLUMNS))
        parts.append(ratio_interval(wrong, counts, wrong.sum(0) / counts.sum(0), number))
    return together(parts, 1.0)


def heard(random: Random, units: int) -> Answers:
    """How many words of recordings a model hears wrong: 15 %, of some recordings more."""
    spoken = random.integers(5, 20, units)
    wrong = random.binomial(spoken, random.beta(0.75, 4.25, units))
    stats = np.stack([wrong, spoken], 1)[:, None].astype(float)
    return Answers({WORD_ERROR_RATE: ""}, stats, spoken.astype(float))


def ranked_twice(random: Random, units: int) -> Answers:
    """Two models that rank rows of a table equally well."""
    right = random.normal(size=units)
    noise = (1 - CORRELATED**2) ** 0.5 * random.normal(size=(units, 2))
    found = CORRELATED * right[:, None] + noise
    rows = np.arange(units)[:, None]
    nearest = np.empty((0, 3), int)
    return Similarities({SIMILARITY: ""}, found[:, :, None], np.ones(units), rows, right, nearest)


def two_runs(random: Random, units: int, texts: int) -> Simulated:
    """What pruning changes in one run and in another, on a text each: `difference_of_changes`."""
    parts = []
    for number in range(texts):
        runs: list[Any] = []
        for _ in range(2):
            led = ("full", losses(random, units).change(1, 0, number))
            runs.append(
                (SimpleNamespace(split="test", leading_change=lambda _, led=led: led), None)
            )
        both = difference_of_changes(*runs)
        ends = (np.nan, np.nan) if both is None else (both[0].low, both[0].high)
        parts.append((np.array(ends[0]), np.array(ends[1])))
    return together(parts, 0.0)


def unchanged() -> float:
    """The true change of two models of one quality."""
    return 0.0


class Interval(NamedTuple):
    """A row of the page. texts: how many, as a share of those asked for."""

    name: str
    data: str
    simulation: Simulation
    texts: float = 1.0


INTERVALS = (
    Interval("means: scores, effects, sets", "normal", scores(normal, sentences)),
    Interval("", "normal, documents", scores(normal, documents)),
    Interval("", "rare words", scores(rare, ones)),
    Interval("", "exponential", scores(skewed, ones)),
    Interval("", "log-normal", scores(heavy, ones)),
    Interval("shares of a role", "0.5, alike 0.05", shares(0.5, 0.05, words)),
    Interval("", "0.9, alike 0.3", shares(0.9, 0.3, words)),
    Interval("", "0.97, alike 0.3", shares(0.97, 0.3, words)),
    Interval("", "0.97, alike 0.7", shares(0.97, 0.7, words)),
    Interval("", "0.9, alike 0.3, documents", shares(0.9, 0.3, documents)),
    Interval("accuracy", "0.9", of_answers(classes(0.9), lambda: 90.0)),
    Interval("", "0.99", of_answers(classes(0.99), lambda: 99.0)),
    Interval("change of accuracy", "0.9", of_answers(classes(0.9), unchanged, change=True)),
    Interval("perplexity", "gamma", of_answers(losses, lambda: float(np.exp(3.0)))),
    Interval("change of perplexity", "", of_answers(losses, unchanged, change=True)),
    Interval("BLEU", "", of_answers(translations, true_bleu), 0.25),
    Interval("change of BLEU", "", of_answers(translations, unchanged, change=True), 0.25),
    Interval(
        "similarity", "0.79", of_answers(ranked_pairs, lambda: 100 * spearman_of(CORRELATED)), 0.1
    ),
    Interval("removal curve: area", "", removal("area"), 0.5),
    Interval("removal curve: CPR", "", removal("cpr"), 0.5),
    Interval("judge: Spearman", "", judged, 0.1),
    Interval("ranks of heads", "0.79", heads_ranked),
    Interval("area under the ROC curve", "0.5", areas(0.0)),
    Interval("", "0.95", areas(2.33)),
    Interval("over seeds and sentences", "seeds alike", seeds(0.0), 0.5),
    Interval("", "as far apart as texts", seeds(1.0), 0.5),
    Interval("", "three times as far", seeds(3.0), 0.5),
    Interval("over seeds alone", "normal", seeds_alone),
    Interval("ratios: alignment, confirmed roles, sets", "skewed errors", ratios),
    Interval("word error rate", "0.15", of_answers(heard, lambda: 15.0)),
    Interval("change of similarity", "", of_answers(ranked_twice, unchanged, change=True), 0.1),
    Interval("difference of two runs", "perplexity", two_runs, 0.1),
)


def coverage(texts: int, units: tuple[int, ...] = UNITS) -> pd.DataFrame:
    """The table: a row per interval, data and number of units."""
    rows: list[dict[str, Any]] = []
    name = ""
    for each in INTERVALS:
        name = each.name or name
        for count in units:
            random = np.random.default_rng((count, len(rows)))
            low, high, truth = each.simulation(random, count, max(1, round(texts * each.texts)))
            made = ~(np.isnan(low) | np.isnan(high))
            missed = ((low > truth) | (high < truth))[made]
            share = float(missed.mean()) if made.any() else np.nan
            width = float(np.median((high - low)[made])) if made.any() else np.nan
            rows.append(
                {
                    "interval": name,
                    "data": each.data,
                    "units": count,
                    "missed": round(100 * share, 2),
                    "error": round(100 * float(share * (1 - share) / max(1, made.sum())) ** 0.5, 2),
                    "blank": round(100 * float(1 - made.mean()), 1),
                    "width": float(f"{width:.3g}"),
                    "texts": len(low),
                }
            )
            print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """The table of the page; – where no interval is made."""
    units = [*dict.fromkeys(table["units"])]
    lines = [
        "| interval | data | " + " | ".join(map(str, units)) + " |",
        "|---" * (2 + len(units)) + "|",
    ]
    for (name, data), rows in table.groupby(["interval", "data"], sort=False, dropna=False):
        cells = []
        for row in rows.to_dict("records"):
            cells.append("–" if row["blank"] > 50 else f"{row['missed']:.1f}")
        lines.append(f"| {name} | {data} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=2500)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    table = coverage(given.texts)
    text = markdown(table)
    if given.out:
        write_text(given.out, table.to_csv(index=False))
    if given.page:
        page = given.page.read_text(encoding="utf-8")
        before, rest = page.split(START)
        write_text(given.page, f"{before}{START}\n{text}\n{END}{rest.split(END, 1)[1]}")
    print(text)


if __name__ == "__main__":
    main()
