"""Which cross heads align: every head is ranked by its error, and a set of heads is chosen whose mean errs least.

What is averaged is the heads' attention maps, as the programs do that read alignments from a model. A set is grown
greedily on one half of the text and confirmed on the other. Trials differ for text that is translated (`alignment.py`)
and text that is spoken (`word_times.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.attention import AttentionCall, Discovery, capture, device_of, evaluating
from headwise.errors import HeadwiseError
from headwise.heads import COLUMNS, Head, Site
from headwise.importance.sums import to_numpy
from headwise.roles.observe import Half, forward
from headwise.statistics import ratio_interval

MOST = 10  # heads of a set
Counts = Mapping[str, tuple[Tensor, Tensor]]  # by measure, sums and divisors, each B C


@dataclass
class Trial:
    """A batch of B units of text, in which C candidates are asked for an alignment.

    maps: from a layer's call to its heads' attention maps, B H …, the means of which make sense. answers: what maps
    B C … say, B C K. rules: what rules without attention say, B R K. judged: sums and divisors of every measure; the
    first is an error, the least of which is best.
    """

    inputs: dict[str, Tensor]
    maps: Callable[[AttentionCall], Tensor]
    answers: Callable[[Tensor], Tensor]
    rules: Tensor
    judged: Callable[[Tensor], Counts]


Trials = Callable[[Half], Iterable[Trial]]
Units = dict[
    str, tuple[np.ndarray, np.ndarray]
]  # by measure, sums and divisors, each units x candidates


@dataclass
class AlignmentHeads:
    """The result.

    heads: the chosen ones, the best first. measure: the error they were chosen by. table: a row per cross head and
    measure on the whole text, columns COLUMNS. sets: the error on the half that did not choose, a row for `chosen`,
    `best head`, and `now` where the model names alignment heads already. baseline: the best rule without attention.
    """

    heads: list[Head]
    measure: str
    table: pd.DataFrame
    sets: pd.DataFrame

    @property
    def confirmed(self) -> bool:
        """Whether the chosen heads err less than the baseline on the other half: their interval is below it."""
        row = self.sets.iloc[0]
        return bool(row["high"] < row["baseline"])


def choose(
    model: PreTrainedModel,
    found: Discovery,
    trials: Trials,
    now: Sequence[Head],
    one_layer: bool,
    seed: int,
) -> AlignmentHeads:
    """Rank all cross heads, and grow a set of them. trials: of each half of the text, as often as they are asked for.

    now: heads that the model names today. one_layer: only sets within a layer. Raises HeadwiseError where a half has
    no text.
    """
    heads = list(found.heads.only(["cross"]))
    halves = [ask(model, found, trials(half), np.eye(len(heads))) for half in (0, 1)]
    if not all(asked for asked, _ in halves):
        raise HeadwiseError(
            "The text has no second half to confirm alignment heads on: give more of it, at least two dozen sentences "
            "or recordings."
        )
    measure = next(iter(halves[0][0]))
    layers = [
        [n for n, head in enumerate(heads) if head.layer == layer]
        for layer in {head.layer: 0 for head in heads}
    ]
    groups = layers if one_layer else [list(range(len(heads)))]
    sets = grow(
        groups,
        ratio(halves[0][0][measure]),
        lambda mixing: ask(model, found, trials(0), mixing)[0][measure],
    )
    chosen = [heads[n] for n in sets]
    best = [heads[int(np.nanargmin(ratio(halves[0][0][measure])))]]
    named = {"chosen": chosen, "best head": best, "now": [head for head in now if head in heads]}
    named = {name: some for name, some in named.items() if some}
    mixing = np.array([[float(head in some) for head in heads] for some in named.values()])
    confirmed, rules = ask(model, found, trials(1), mixing)
    confirmation = (
        rows(confirmed, rules, seed)
        .query("measure == @measure")
        .assign(set=list(named), heads=[" ".join(map(str, some)) for some in named.values()])
    )
    whole, baselines = (joined([halves[half][side] for half in (0, 1)]) for side in (0, 1))
    table = rows(whole, baselines, seed).assign(
        kind="cross",
        layer=[head.layer for head in heads] * len(whole),
        head=[head.head for head in heads] * len(whole),
    )
    columns = ["set", "heads", *COLUMNS[3:]]
    return AlignmentHeads(
        chosen, measure, table[list(COLUMNS)], confirmation[columns].reset_index(drop=True)
    )


def grow(
    groups: list[list[int]],
    alone: np.ndarray,
    asked: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> list[int]:
    """The set of least error that greedy growth finds inside any of the groups, in the order of choice.

    Every group begins with its best head and takes the one whose addition lowers the error most, until none does.
    alone: the error of each head. asked: sums and divisors of the sets of heads in the rows of a matrix.
    """
    total = len(alone)
    alone = np.where(np.isnan(alone), np.inf, alone)
    sets = [[min(group, key=lambda n: alone[n])] for group in groups if group]
    errors = [alone[one[0]] for one in sets]
    groups = [group for group in groups if group]
    grown = set(range(len(sets)))
    while grown:
        mixing = np.eye(total)
        for number in grown:
            mixing[np.ix_(groups[number], sets[number])] = 1
        together = ratio(asked(mixing))
        for number in sorted(grown):
            left = [n for n in groups[number] if n not in sets[number]]
            best = min(left, key=lambda n: together[n], default=None)
            if best is None or not together[best] < errors[number]:
                grown.remove(number)
                continue
            sets[number].append(best)
            errors[number] = together[best]
            if len(sets[number]) == MOST:
                grown.remove(number)
    return sets[int(np.argmin(errors))]


def ask(
    model: PreTrainedModel, found: Discovery, trials: Iterable[Trial], mixing: np.ndarray
) -> tuple[Units, Units]:
    """Sums and divisors of sets of heads, and of the rules without attention. mixing: sets x heads, 1 for a member."""
    sites = [site for site in found.heads.sites if site.kind == "cross"]
    drawn: tuple[list[Counts], list[Counts]] = ([], [])
    now: list[Trial] = []
    maps: dict[Site, Tensor] = {}

    def watch(call: AttentionCall) -> None:
        if call.site.kind == "cross":
            maps[call.site] = now[-1].maps(call)

    weights = torch.tensor(mixing, dtype=torch.float32, device=device_of(model))
    with evaluating(model), torch.no_grad(), capture(model, found, watch=watch, weights=True):
        for trial in trials:
            now[:] = [trial]
            forward(model, trial.inputs)
            every = torch.cat([maps[site] for site in sites], 1).float()
            mixed = torch.einsum("ct,bt...->bc...", weights, every)
            drawn[0].append(trial.judged(trial.answers(mixed)))
            drawn[1].append(trial.judged(trial.rules))
    return units(drawn[0]), units(drawn[1])


def units(drawn: Sequence[Counts]) -> Units:
    """Batches of counts as arrays of units, to_numpy from their device together."""
    names = list(drawn[0]) if drawn else []
    parts = [
        torch.cat([counts[name][side] for counts in drawn]) for name in names for side in (0, 1)
    ]
    arrays = [np.asarray(part, dtype=np.float64) for part in to_numpy(parts)] if parts else []
    return {name: (arrays[2 * n], arrays[2 * n + 1]) for n, name in enumerate(names)}


def joined(several: Sequence[Units]) -> Units:
    return {
        name: (
            np.concatenate([one[name][0] for one in several]),
            np.concatenate([one[name][1] for one in several]),
        )
        for name in several[0]
    }


def ratio(counts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Σ sums / Σ divisors of every candidate; not a number where nothing was asked."""
    with np.errstate(invalid="ignore", divide="ignore"):
        value: np.ndarray = counts[0].sum(0) / counts[1].sum(0)
    return value


def rows(asked: Units, rules: Units, seed: int) -> pd.DataFrame:
    """A row for each measure and candidate: measure, value, low, high, n (what was asked), baseline (the best rule)."""
    first = next(iter(asked))
    tables = []
    for name, (sums, divisors) in asked.items():
        value = ratio((sums, divisors))
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high = ratio_interval(sums, divisors, value, seed)
        rule = ratio(rules[name])
        best = np.nanmin(rule) if name == first else np.nanmax(rule)
        tables.append(
            pd.DataFrame(
                {
                    "measure": name,
                    "value": value,
                    "low": low,
                    "high": high,
                    "n": divisors.sum(0).astype(int),
                    "baseline": best,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)
