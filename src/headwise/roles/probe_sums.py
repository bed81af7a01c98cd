"""The answers to many probes about all heads of one kind, summed over text, and the statistics made from them.

`importance.sums` has one measure. Here are a hundred, most of them about few sentences, each with a baseline on the
same sentences. Memory does not grow with the text: neighbouring sentences become one unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
import pandas as pd
from torch import Tensor

from headwise.heads import Kind, Site
from headwise.importance.sums import check_finite, merge_neighbours, to_numpy
from headwise.roles.probe import Probe
from headwise.statistics import jackknife_p, ratio_interval

UNITS = 500  # from twice as many on, neighbouring units are merged
COUNTS, BASELINE = "counts", "baseline"


class AnswerSums:
    """Sums and counts for one kind of attention over units of text (U units, M measures, N baseline rules).

    parts: arrays of some units each, COUNTS u M, BASELINE u N M, and under every layer's number sums u H M.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.columns: dict[str, int] = {}
        self.ruled: set[str] = set()  # measures that have a baseline
        self.per: dict[
            str, str
        ] = {}  # a measure, and the measure it is divided by instead of its count
        self.parts: dict[str | int, list[np.ndarray]] = defaultdict(list)

    @property
    def layers(self) -> list[int]:
        return sorted(key for key in self.parts if isinstance(key, int))

    @property
    def units(self) -> int:
        return sum(map(len, self.parts[COUNTS]))

    def add(self, probes: Sequence[Probe], sums: Mapping[int, Sequence[Tensor]]) -> None:
        """Add a batch: the probes, and by layer the answers B H M to each probe."""
        counts, baseline, *layers = regrouped(
            [
                [probe.counts for probe in probes],
                [probe.baseline for probe in probes],
                *sums.values(),
            ]
        )
        for layer, answers in zip(sums, layers, strict=True):
            for answer in answers:
                check_finite(Site(self.kind, layer), answer)
        for probe in probes:
            for name in probe.measures:
                self.columns.setdefault(name, len(self.columns))
            if probe.per:
                self.per.update(dict.fromkeys(set(probe.measures) - {probe.per}, probe.per))
            if probe.baseline.shape[1]:
                self.ruled.update(probe.measures)
        names = [probe.measures for probe in probes]
        for key, values in ((COUNTS, counts), (BASELINE, baseline)):
            self.parts[key].append(self.placed(names, values))
        for layer, answers in zip(sums, layers, strict=True):
            self.parts[layer].append(self.placed(names, answers))
        if self.units >= 2 * UNITS:
            self.parts |= {key: [merge_neighbours(self.whole(key))] for key in self.parts}

    def placed(self, names: Sequence[Sequence[str]], values: Sequence[np.ndarray]) -> np.ndarray:
        """Values … m of several probes in the columns of their measures: … M, zero elsewhere."""
        shape = [max(each.shape[axis] for each in values) for axis in range(values[0].ndim - 1)]
        out = np.zeros((*shape, len(self.columns)), dtype=np.float32)
        for measures, each in zip(names, values, strict=True):
            columns = [self.columns[name] for name in measures]
            out[..., : each.shape[-2], columns] = each
        return out

    def whole(self, key: str | int) -> np.ndarray:
        """All parts as one array U … M. Early parts may have fewer measures or baseline rules."""
        parts = self.parts[key]
        sizes = [max(part.shape[axis] for part in parts) for axis in range(1, parts[0].ndim - 1)]
        sizes.append(len(self.columns))
        filled = (
            np.pad(
                part,
                [
                    (0, 0),
                    *((0, size - have) for size, have in zip(sizes, part.shape[1:], strict=True)),
                ],
            )
            for part in parts
        )
        return np.concatenate(list(filled))

    def table(self, seed: int | None = None) -> pd.DataFrame:
        """A row per head and measure: kind, layer, head, measure, value, low, high, n, baseline, units, p.

        low, high: 95 % bootstrap interval over units, only with a seed. n: tokens asked about, in `units` sentences (or
        groups of them). p: of the hypothesis that the head is no better than the baseline (`jackknife_p`).
        """
        counts, rule = self.whole(COUNTS), self.best_rule()
        names = [name for name in self.columns if name not in self.per.values()]
        columns = [self.columns[name] for name in names]
        tables = []
        for layer in self.layers:
            every = self.whole(layer)
            sums, size = every[..., columns], every.shape[1]
            if not size:
                continue  # a layer without heads
            divisors = self.divisors(counts, every)[..., columns]
            with np.errstate(invalid="ignore", divide="ignore"):
                value = sums.sum(0) / divisors.sum(0)
                p = jackknife_p(sums - rule[:, None, columns], counts[:, None, columns])
                low, high = (
                    ratio_interval(sums, divisors, value, seed)
                    if seed is not None
                    else (value * np.nan,) * 2
                )
                baseline = (rule.sum(0) / counts.sum(0))[columns]
            shared = {
                "n": counts.sum(0)[columns],
                "baseline": baseline,
                "units": (counts > 0).sum(0)[columns],
            }
            tables.append(
                pd.DataFrame(
                    {
                        "kind": self.kind,
                        "layer": layer,
                        "head": np.repeat(np.arange(size), len(names)),
                        "measure": names * size,
                        "value": value.ravel(),
                        "low": low.ravel(),
                        "high": high.ravel(),
                        **{name: np.tile(numbers, size) for name, numbers in shared.items()},
                        "p": p.ravel(),
                    }
                )
            )
        return pd.concat(tables, ignore_index=True)

    def divisors(self, counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """The divisors of sums, U H M: counts, or the sums of another measure."""
        divisors = np.broadcast_to(counts[:, None], sums.shape).copy()
        for name, other in self.per.items():
            divisors[..., self.columns[name]] = sums[..., self.columns[other]]
        return divisors

    def best_rule(self) -> np.ndarray:
        """The answers of the best baseline rule of each measure, U M; NaN for measures without a rule."""
        rules = self.whole(BASELINE)
        if not rules.shape[1]:
            return np.full((len(rules), rules.shape[2]), np.nan)
        best = rules.sum(0).argmax(0)
        chosen: np.ndarray = np.take_along_axis(rules, best[None, None], axis=1)[:, 0]
        chosen[:, [column for name, column in self.columns.items() if name not in self.ruled]] = (
            np.nan
        )
        return chosen


def regrouped(groups: Sequence[Sequence[Tensor]]) -> list[list[np.ndarray]]:
    """Groups of tensors as arrays, which come from their device together."""
    arrays = iter(to_numpy([tensor for group in groups for tensor in group]))
    return [list(islice(arrays, len(group))) for group in groups]


def together(several: Sequence[AnswerSums]) -> AnswerSums:
    """The answers on several texts, of one kind of attention, as those on one text."""
    out = AnswerSums(several[0].kind)
    for one in several:
        out.per.update(one.per)
        out.ruled.update(one.ruled)
        for name in one.columns:
            out.columns.setdefault(name, len(out.columns))
    for one in several:
        for key in one.parts:
            out.parts[key].append(out.placed([list(one.columns)], [one.whole(key)]))
    return out
