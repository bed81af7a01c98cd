"""A question to attention heads about a batch of text: prepared once, answered for all heads of each layer at once.

A test is a function from a passage to a `Probe`. `AnswerSums` adds up the answers of all heads of one kind over a text,
and makes statistics of them. `importance.sums` has one measure; here are a hundred, most of them about few sentences,
each with a baseline on the same sentences. Memory does not grow with the text: neighbouring sentences become one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headwise.core.heads import Kind, Site
from headwise.core.statistics import clustered_proportion_interval, jackknife_p, ratio_interval
from headwise.models.evaluation.sums import UnitSums, check_finite, to_numpy
from headwise.roles.passage import Passage, View

REACH = 10  # the largest fixed offset of a baseline, in words to either side
MERGED_UNITS = 500  # from twice as many on, neighbouring units are merged
ROUNDING = 1e-5  # relative, of sums in float32
COUNTS = "counts"
BASELINE = "baseline"


@dataclass
class Probe:
    """M measures over B sentences. The value of a measure is Σ answers / Σ counts over the text.

    counts B M: how many tokens are asked about. baseline B N M: the answers of N rules without attention (the best rule
    is the baseline; N may be 0). answer: from a layer's view to sums B H M. per: the measure that replaces counts as
    the divisor of all others (it is not reported itself).
    """

    measures: Sequence[str]
    counts: Tensor
    baseline: Tensor
    answer: Callable[[View], Tensor]
    per: str | None = None


class Arc(NamedTuple):
    """A correct answer: in this sentence, the word `query` should attend most to the word `key`."""

    sentence: int
    query: int
    key: int
    measure: str


def pointing(
    arcs: Iterable[Arc],
    queries: Passage,
    keys: Passage,
    baseline: Literal["offset", "chance"],
    which: Literal["attended_words", "attending_words"] = "attended_words",
) -> Probe:
    """How often words attend most to a correct answer, any of several correct answers accepted.

    share(h) = mean over query words q with a correct answer of 1[argmax_k≠q A_h[q, k] is correct]; with which =
    `attending_words`, the argmax is over the words that attend to q. The baseline is `chance` (another random visible
    word) or, for `offset`, the best of three rules: a fixed offset k − q (between two texts, from the same relative
    position), chance, and uniform weights on all subwords, by which the longest visible word gets most. Answers that
    are not visible do not count.
    """
    names: dict[str, int] = {}
    rows = []
    for arc in arcs:
        number = names.setdefault(arc.measure, len(names))
        rows.append((arc.sentence, arc.query, arc.key, number))
    table = torch.tensor(rows, dtype=torch.long, device=queries.ids.device).view(-1, 4)
    # What a causal head cannot see is no question.
    table = table[visible(table, queries, keys, forward=which == "attending_words")]
    sentence, query, key, measure = table.T

    size = len(queries.ids)
    count = len(names)
    width = queries.subwords.shape[1]
    cell = sentence * count + measure  # a sentence and a measure as one number
    # Several answers to one query are one question.
    units = (cell * width + query).unique() // max(width, 1)
    ones = torch.ones_like(units, dtype=torch.float)
    counts = sum_by_index(units, ones, size * count).view(size, count)

    rules = []
    if baseline == "offset":
        # Where offset 0 is: the word itself, or the one as far along in the other text.
        diagonal = query if queries is keys else same_way(sentence, query, queries, keys)
        rules.append(fixed_offsets(sentence, key - diagonal, measure, (size, count)))
    # Where the argmax is over queries, another visible word is no rule.
    itself_hidden = queries is keys and which == "attended_words"
    if itself_hidden or baseline == "chance":
        chance = 1 / queries.visible[sentence, query].clamp_min(1)
        rules.append(sum_by_index(cell, chance, size * count).view(size, 1, count))
    if itself_hidden and baseline == "offset":
        uniform = longest_words(queries)[sentence, query, key]
        rules.append(sum_by_index(cell, uniform, size * count).view(size, 1, count))

    def answer(view: View) -> Tensor:
        # The argmax of every word in every head, B H W.
        chosen: Tensor = getattr(view, which)
        hits = (chosen[sentence, :, query] == key[:, None]).float()  # arcs x H
        sums: Tensor = hits.new_zeros(size * count, chosen.shape[1]).index_add_(0, cell, hits)
        return sums.view(size, count, chosen.shape[1]).transpose(1, 2)

    return Probe(list(names), counts, torch.cat(rules, 1), answer)


def visible(table: Tensor, queries: Passage, keys: Passage, forward: bool) -> Tensor:
    """Which answers (sentence, query, key, measure) connect two words that are there and, in causal attention, visible:
    the attending word (`forward`: the key) comes later."""
    sentence, query, key, _ = table.T
    if not len(table):
        return torch.zeros(0, dtype=torch.bool, device=table.device)
    present = (queries.subwords[sentence, query] > 0) & (keys.subwords[sentence, key] > 0)
    if not (queries is keys and queries.causal):
        return present
    later: Tensor = key > query if forward else key < query
    return present & later


def fixed_offsets(
    sentence: Tensor, offset: Tensor, measure: Tensor, shape: tuple[int, int]
) -> Tensor:
    """How many answers are at every offset up to REACH, by sentence and measure: B offsets M."""
    batch, measures = shape
    # Farther offsets are no rule, and their answers count for none.
    # Offsets are from −REACH to REACH; below they are counted from 0.
    near = offset.abs() <= REACH
    size = 2 * REACH + 1
    # Sentence, offset and measure as one number, so that one sum by index does it.
    index = (sentence * size + offset + REACH) * measures + measure
    sums = sum_by_index(index[near], near[near].float(), batch * size * measures)
    return sums.view(batch, size, measures)


def longest_words(passage: Passage) -> Tensor:
    """The argmax of uniform weights on subwords: for each query word, 1 on the longest other visible word, shared among
    several of that length. B W W."""
    size = passage.subwords.shape[1]
    # Attention of a word to itself does not count.
    sight = ~torch.eye(size, dtype=torch.bool, device=passage.ids.device)
    sizes = (passage.subwords[:, None, :] * (sight.tril() if passage.causal else sight)).float()
    best = (sizes == sizes.amax(-1, keepdim=True)) & (sizes > 0)
    shares: Tensor = best / best.sum(-1, keepdim=True).clamp_min(1)
    return shares


def same_way(sentence: Tensor, query: Tensor, queries: Passage, keys: Passage) -> Tensor:
    """The word of the other text at the same relative position."""
    last_query = (queries.subwords > 0).sum(1)[sentence] - 1
    last_key = (keys.subwords > 0).sum(1)[sentence] - 1
    return (query * last_key / last_query.clamp_min(1)).round().long()


def sum_by_index(indices: Tensor, values: Tensor, size: int) -> Tensor:
    """The sum of the values with every index: `size` numbers."""
    return values.new_zeros(size).index_add_(0, indices, values)


def sum_over_queries(queries: Tensor, hits: Tensor) -> Tensor:
    """hits B H Q summed over the chosen queries B Q: B H."""
    sums: Tensor = (hits * queries[:, None]).sum(-1)
    return sums


def mean_over_queries(
    measure: str, queries: Tensor, baseline: Tensor, values: Callable[[View], Tensor]
) -> Probe:
    """The mean of values B H Q over the chosen queries B Q. baseline B N: the sums of N rules over the queries."""

    def answer(view: View) -> Tensor:
        return sum_over_queries(queries, values(view))[..., None]

    return Probe([measure], queries.sum(1)[:, None].float(), baseline[..., None], answer)


class AnswerSums(UnitSums[str | int]):
    """Sums and counts for one kind of attention over units of text (U units, M measures, N baseline rules).

    parts: COUNTS u M, BASELINE u N M, and under every layer's number sums u H M.
    """

    def __init__(self, kind: Kind) -> None:
        super().__init__(MERGED_UNITS)
        self.kind = kind
        self.columns: dict[str, int] = {}
        self.ruled: set[str] = set()  # measures that have a baseline
        # A measure, and the measure that it is divided by instead of its count.
        self.per: dict[str, str] = {}

    @property
    def layers(self) -> list[int]:
        return sorted(key for key in self.parts if isinstance(key, int))

    @property
    def units(self) -> int:
        return sum(map(len, self.parts[COUNTS]))

    def add(self, probes: Sequence[Probe], sums: Mapping[int, Sequence[Tensor]]) -> None:
        """Add a batch: the probes, and by layer the answers B H M to each probe."""
        groups = [
            [probe.counts for probe in probes],
            [probe.baseline for probe in probes],
            *sums.values(),
        ]
        # From their device together: each transfer waits for all that was queued there.
        arrays = iter(to_numpy([tensor for group in groups for tensor in group]))
        counts, baseline, *layers = [list(islice(arrays, len(group))) for group in groups]
        for layer, answers in zip(sums, layers, strict=True):
            for answer in answers:
                check_finite(Site(self.kind, layer), answer)
        self.declare(probes)
        names = [probe.measures for probe in probes]
        self.append(COUNTS, self.placed(names, counts))
        self.append(BASELINE, self.placed(names, baseline))
        for layer, answers in zip(sums, layers, strict=True):
            self.append(layer, self.placed(names, answers))

    def declare(self, probes: Sequence[Probe]) -> None:
        """Give every measure a column, and note its divisor and whether it has a baseline."""
        for probe in probes:
            for name in probe.measures:
                self.columns.setdefault(name, len(self.columns))
                if probe.per and name != probe.per:
                    self.per[name] = probe.per
            if probe.baseline.shape[1]:
                self.ruled.update(probe.measures)

    def placed(self, names: Sequence[Sequence[str]], values: Sequence[np.ndarray]) -> np.ndarray:
        """Values … m of several probes in the columns of their measures: … M, zero elsewhere."""
        shape = np.max([array.shape[:-1] for array in values], axis=0)
        out = np.zeros((*shape, len(self.columns)), dtype=np.float32)
        for measures, array in zip(names, values, strict=True):
            columns = [self.columns[name] for name in measures]
            # Batches may have fewer rules than the longest: the others stay 0.
            out[..., : array.shape[-2], columns] = array
        return out

    def array(self, key: str | int) -> np.ndarray:
        """All parts as one array U … M. Early parts may have fewer measures or baseline rules."""
        arrays = self.parts[key]
        middle = np.max([array.shape[1:-1] for array in arrays], axis=0)
        sizes = np.array([*middle, len(self.columns)], dtype=int)
        padded = []
        for array in arrays:
            missing = sizes - array.shape[1:]
            padded.append(np.pad(array, [(0, 0), *((0, count) for count in missing)]))
        return np.concatenate(padded)

    def table(self, seed: int | None = None) -> pd.DataFrame:
        """A row per head and measure: kind, layer, head, measure, value, low, high, n, baseline, units, p.

        low, high: 95 % interval over units (`value_interval`), only with a seed. n: tokens asked about, in `units`
        sentences (or groups of them). p: of the hypothesis that the head is no better than the baseline (`jackknife_p`).
        """
        counts = self.array(COUNTS)
        rule = self.best_rule()
        # A divisor of other measures is no measure.
        names = [name for name in self.columns if name not in self.per.values()]
        columns = [self.columns[name] for name in names]
        tables = []
        for layer in self.layers:
            all_sums = self.array(layer)
            sums = all_sums[..., columns]
            size = sums.shape[1]
            if not size:
                continue  # a layer without heads
            # Usually counts; of a measure with `per` the sums of that other measure.
            divisors = self.divisors(counts, all_sums)[..., columns]
            with np.errstate(invalid="ignore", divide="ignore"):
                value = sums.sum(0) / divisors.sum(0)
                # Of the difference in every sentence: head and baseline answer the same questions.
                p = jackknife_p(sums - rule[:, None, columns], counts[:, None, columns])
                low = high = value * np.nan
                if seed is not None:
                    low, high = value_interval(sums, divisors, value, seed)
                baseline = (rule.sum(0) / counts.sum(0))[columns]
            # the same for every head: n, baseline and units
            rows = {
                "kind": self.kind,
                "layer": layer,
                "head": np.repeat(np.arange(size), len(names)),
                "measure": names * size,
                "value": value.ravel(),
                "low": low.ravel(),
                "high": high.ravel(),
                "n": np.tile(counts.sum(0)[columns], size),
                "baseline": np.tile(baseline, size),
                "units": np.tile((counts > 0).sum(0)[columns], size),
                "p": p.ravel(),
            }
            tables.append(pd.DataFrame(rows))
        return pd.concat(tables, ignore_index=True)

    def divisors(self, counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """The divisors of sums, U H M: counts, or the sums of another measure."""
        divisors = np.broadcast_to(counts[:, None], sums.shape).copy()
        for name, other in self.per.items():
            divisors[..., self.columns[name]] = sums[..., self.columns[other]]
        return divisors

    def best_rule(self) -> np.ndarray:
        """The answers of the best baseline rule of each measure, U M; NaN for measures without a rule."""
        rules = self.array(BASELINE)
        if not rules.shape[1]:
            return np.full((len(rules), rules.shape[2]), np.nan)
        # The best on the whole text: chosen by sentence it would be better than any rule.
        best = rules.sum(0).argmax(0)
        chosen: np.ndarray = np.take_along_axis(rules, best[None, None], axis=1)[:, 0]
        for name, column in self.columns.items():
            if name not in self.ruled:
                chosen[:, column] = np.nan
        return chosen


def value_interval(
    sums: np.ndarray, divisors: np.ndarray, value: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """95 % intervals of the values Σ sums / Σ divisors: U H M in, H M out.

    Measures that are shares (between 0 and 1 in every unit) get an exact interval for clusters: a bootstrap of few
    sentences is far too narrow near 0 and 1 (of 0.97 in 30 sentences it misses the truth in 15 to 40 %). All others get
    a bootstrap.
    """
    shares = np.minimum(sums, divisors)  # a sum of weights may be 1 and a rounding error
    # For all units and heads, or intervals of one measure would be of two sorts.
    is_share = ((sums >= 0) & (sums <= divisors * (1 + ROUNDING))).all((0, 1))
    low = np.full(value.shape, np.nan)
    high = low.copy()
    low[:, is_share], high[:, is_share] = clustered_proportion_interval(
        shares[..., is_share], divisors[..., is_share]
    )
    others = ~is_share
    if others.any():
        low[:, others], high[:, others] = ratio_interval(
            sums[..., others], divisors[..., others], value[:, others], seed
        )
    return low, high


def together(several: Sequence[AnswerSums]) -> AnswerSums:
    """The answers on several texts, of one kind of attention, as those on one text."""
    # All columns are known before the first array is placed, so that arrays have one width.
    joined = AnswerSums(several[0].kind)
    for answers in several:
        joined.per.update(answers.per)
        joined.ruled.update(answers.ruled)
        for name in answers.columns:
            joined.columns.setdefault(name, len(joined.columns))
    for answers in several:
        for key in answers.parts:
            array = joined.placed([list(answers.columns)], [answers.array(key)])
            joined.parts[key].append(array)  # halves as they are, merged no further
    return joined
