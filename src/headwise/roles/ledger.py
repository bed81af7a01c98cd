"""Per-sentence sums and counts of many measures at once, for all heads of one kind, and the statistics made from them.

`importance.tally` keeps one measure; tests of roles ask a hundred at once, of which most sentences answer few, and hold
each against a baseline on the same sentences. Memory does not grow with the text: sentences become units of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.heads import Kind
from headwise.roles.question import Question
from headwise.statistics import jackknife_p, ratio_interval

UNITS = 500  # from twice so many on, neighbouring sentences are put together


class Ledger:
    """Sums and counts of one kind of attention over units of text (U units, M measures, N baseline rules).

    counts U M, baseline U N M, sums of every layer U H M.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.columns: dict[str, int] = {}
        self.ruled: set[str] = set()  # measures that have a baseline
        self.per: dict[str, str] = {}  # a measure, and the measure it is divided by instead of its count
        self.counts: list[np.ndarray] = []
        self.baseline: list[np.ndarray] = []
        self.sums: dict[int, list[np.ndarray]] = {}
        self.units = 0

    def add(self, questions: Sequence[Question], sums: Mapping[int, Sequence[Tensor]]) -> None:
        """One batch: what was asked, and by layer the answers B H M to each question."""
        for layer, answers in sums.items():
            if not all(bool(answer.isfinite().all()) for answer in answers):
                where = f"{self.kind} layer {layer}"
                raise HeadwiseError(
                    f"{where} gave values that are not numbers (NaN or infinite): the model is broken there."
                )
        for question in questions:
            for name in question.measures:
                self.columns.setdefault(name, len(self.columns))
            if question.per:
                self.per.update(dict.fromkeys(set(question.measures) - {question.per}, question.per))
            if question.baseline.shape[1]:
                self.ruled.update(question.measures)
        names = [question.measures for question in questions]
        self.counts.append(self.placed(names, [question.counts for question in questions]))
        self.baseline.append(self.placed(names, [question.baseline for question in questions]))
        for layer, answers in sums.items():
            self.sums.setdefault(layer, []).append(self.placed(names, answers))
        self.units += len(self.counts[-1])
        if self.units >= 2 * UNITS:
            self.halve()

    def placed(self, names: Sequence[Sequence[str]], values: Sequence[Tensor]) -> np.ndarray:
        """Values … m of several questions in the columns of their measures: … M, zero elsewhere."""
        shape = [max(tensor.shape[axis] for tensor in values) for axis in range(values[0].dim() - 1)]
        out = np.zeros((*shape, len(self.columns)), dtype=np.float32)
        for measures, tensor in zip(names, values, strict=True):
            columns = [self.columns[name] for name in measures]
            out[..., : tensor.shape[-2], columns] = tensor.cpu().numpy()
        return out

    def halve(self) -> None:
        """Put every two neighbouring units together."""
        for parts in (self.counts, self.baseline, *self.sums.values()):
            whole = self.whole(parts)
            parts[:] = [np.add.reduceat(whole, np.arange(0, len(whole), 2))]
        self.units = len(self.counts[0])

    def whole(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Parts u … m, recorded when fewer measures or baseline rules were known, as one U … M."""
        sizes = [max(part.shape[axis] for part in parts) for axis in range(1, parts[0].ndim - 1)]
        sizes.append(len(self.columns))
        filled = (
            np.pad(part, [(0, 0), *((0, size - have) for size, have in zip(sizes, part.shape[1:], strict=True))])
            for part in parts
        )
        return np.concatenate(list(filled))

    def table(self, seed: int | None = None) -> pd.DataFrame:
        """A row a head and measure: kind, layer, head, measure, value, low, high, n, baseline, units, p.

        low and high: 95 % of a bootstrap over units, only with a seed. n: tokens asked about, in `units` sentences (or
        groups of them). p: the chance to be so far above the baseline with a head no better than it, see `jackknife_p`.
        """
        counts, chosen = self.whole(self.counts), self.chosen_rule()
        names = [name for name in self.columns if name not in self.per.values()]
        columns = [self.columns[name] for name in names]
        tables = []
        for layer, parts in sorted(self.sums.items()):
            sums = self.whole(parts)[..., columns]
            if not sums.shape[1]:
                continue  # a layer that lost all its heads
            divisors = self.divisors(counts, self.whole(parts))[..., columns]
            with np.errstate(invalid="ignore", divide="ignore"):
                value = sums.sum(0) / divisors.sum(0)
                p = jackknife_p(sums - chosen[:, None, columns], counts[:, None, columns])
                low, high = ratio_interval(sums, divisors, value, seed) if seed is not None else (value * np.nan,) * 2
                baseline = (chosen.sum(0) / counts.sum(0))[columns]
            size = len(value)
            whole = {"n": counts.sum(0)[columns], "baseline": baseline, "units": (counts > 0).sum(0)[columns]}
            tables.append(pd.DataFrame({
                "kind": self.kind, "layer": layer, "head": np.repeat(np.arange(size), len(names)),
                "measure": names * size, "value": value.ravel(), "low": low.ravel(), "high": high.ravel(),
                **{name: np.tile(numbers, size) for name, numbers in whole.items()}, "p": p.ravel(),
            }))  # fmt: skip
        return pd.concat(tables, ignore_index=True)

    def divisors(self, counts: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """What sums are divided by, U H M: counts, or the sums of another measure."""
        divisors = np.broadcast_to(counts[:, None], sums.shape).copy()
        for name, other in self.per.items():
            divisors[..., self.columns[name]] = sums[..., self.columns[other]]
        return divisors

    def chosen_rule(self) -> np.ndarray:
        """What the best baseline rule of each measure answers, U M; NaN for measures without a rule."""
        rules = self.whole(self.baseline)
        unruled = [column for name, column in self.columns.items() if name not in self.ruled]
        if not rules.shape[1]:
            return np.full((len(rules), rules.shape[2]), np.nan)
        best = rules.sum(0).argmax(0)
        chosen: np.ndarray = np.take_along_axis(rules, best[None, None], axis=1)[:, 0]
        chosen[:, unruled] = np.nan
        return chosen


def together(ledgers: Sequence[Ledger]) -> Ledger:
    """One ledger of the units of several, of one kind of attention."""
    out = Ledger(ledgers[0].kind)
    for ledger in ledgers:
        out.per.update(ledger.per)
        out.ruled.update(ledger.ruled)
        for name in ledger.columns:
            out.columns.setdefault(name, len(out.columns))
    for ledger in ledgers:
        names = [list(ledger.columns)]

        def moved(parts: Sequence[np.ndarray], ledger: Ledger = ledger, names: list[list[str]] = names) -> np.ndarray:
            return out.placed(names, [torch.from_numpy(ledger.whole(parts))])

        out.counts.append(moved(ledger.counts))
        out.baseline.append(moved(ledger.baseline))
        for layer, parts in ledger.sums.items():
            out.sums.setdefault(layer, []).append(moved(parts))
        out.units += ledger.units
    return out
