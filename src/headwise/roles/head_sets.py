"""Which heads align: every head is ranked by its error, and a set of heads is chosen whose mean errs least.

What is averaged is the heads' attention maps, as the programs do that read alignments from a model. A set is grown
greedily on one half of the text and confirmed on the other. `alignment_heads.py` says how alignments
are read from maps, for text that is translated and for text that is spoken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Kind, Site
from headwise.core.statistics import effective_units, ratio_interval
from headwise.core.tables import ALIGNMENT, ALIGNMENT_SETS
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery, evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.offload import device_of
from headwise.models.evaluation.sums import to_numpy
from headwise.roles.halves import Half
from headwise.roles.observation import run_model

MOST_SET_HEADS = 10  # heads of a set
DIFFERENCES = ("difference", "difference_low", "difference_high")
Units = dict[str, np.ndarray]  # by measure, sums and divisors: units x candidates x 2


@dataclass
class AlignmentBatch:
    """A batch of B units of text, in which C candidates are asked for an alignment.

    maps: from a layer's call to its heads' attention maps, B H …, the means of which make sense. answers: what maps
    B C … say, B C K. rules: what rules without attention say, B R K. counted: by measure, sums and divisors of answers,
    B C 2; the first measure is an error, the least of which is best.
    """

    inputs: dict[str, Any]
    maps: Callable[[AttentionCall], Tensor]
    answers: Callable[[Tensor], Tensor]
    rules: Tensor
    counted: Callable[[Tensor], dict[str, Tensor]]


AlignmentBatches = Callable[[Half], Iterable[AlignmentBatch]]


def choose_heads(
    model: PreTrainedModel,
    discovery: Discovery,
    kind: Kind,
    batches: AlignmentBatches,
    named: Sequence[Head],
    one_layer: bool,
    seed: int,
) -> tuple[list[Head], str, pd.DataFrame, pd.DataFrame]:
    """Rank all heads of a kind, and grow a set of them: the chosen heads, their measure, and both tables of
    `AlignmentHeads`.

    batches: of each half of the text, as often as they are asked for. named: heads to compare with.
    one_layer: only sets within a layer. Raises HeadwiseError where a half has no text.
    """
    heads = list(discovery.heads.only([kind]))
    # Row n has head n alone.
    each_alone = np.eye(len(heads))
    first_counts, first_rules = counts_of(model, discovery, kind, batches(0), each_alone)
    second_counts, second_rules = counts_of(model, discovery, kind, batches(1), each_alone)
    if not first_counts or not second_counts:
        raise HeadwiseError(
            "The text has no second half to confirm alignment heads on: give more of it, at least two dozen sentences "
            "or recordings."
        )
    measure = next(iter(first_counts))
    alone = ratio(first_counts[measure])

    def errors(mixing: np.ndarray) -> np.ndarray:
        return ratio(counts_of(model, discovery, kind, batches(0), mixing)[0][measure])

    # Chosen on the first half …
    chosen = [heads[number] for number in grow(head_groups(heads, one_layer), alone, errors)]
    candidates = {"chosen": chosen, "best head": [heads[int(np.nanargmin(alone))]]}
    named_heads = [head for head in named if head in heads]
    if named_heads:
        candidates["own"] = named_heads

    # … and confirmed on the second.
    # One row a set: all candidates are read in one pass.
    mixing = np.zeros((len(candidates), len(heads)))
    for row, members in enumerate(candidates.values()):
        mixing[row, [heads.index(head) for head in members]] = 1
    counts, rules = counts_of(model, discovery, kind, batches(1), mixing)
    sets = candidate_rows(counts, rules, seed)
    sets = sets[sets["measure"] == measure]
    if named_heads:
        own = list(candidates).index("own")
        sets = sets.assign(**differences(counts[measure], own, seed))
    else:
        sets = sets.assign(**dict.fromkeys(DIFFERENCES, np.nan))
    addresses = [" ".join(map(str, members)) for members in candidates.values()]
    sets = sets.assign(set=list(candidates), heads=addresses)

    whole = {}
    baselines = {}
    for name in first_counts:
        whole[name] = np.concatenate([first_counts[name], second_counts[name]])
        baselines[name] = np.concatenate([first_rules[name], second_rules[name]])
    table = candidate_rows(whole, baselines, seed).assign(
        kind=kind,
        layer=[head.layer for head in heads] * len(whole),
        head=[head.head for head in heads] * len(whole),
    )
    columns = [*ALIGNMENT_SETS.names]
    return chosen, measure, table[[*ALIGNMENT.names]], sets[columns].reset_index(drop=True)


def head_groups(heads: Sequence[Head], one_layer: bool) -> list[list[int]]:
    """The numbers of the heads among which a set is chosen: all, or those of each layer."""
    if not one_layer:
        return [list(range(len(heads)))]
    layers: dict[int, list[int]] = {}
    for number, head in enumerate(heads):
        layers.setdefault(head.layer, []).append(number)
    return list(layers.values())


def grow(
    groups: list[list[int]],
    alone: np.ndarray,
    errors_of: Callable[[np.ndarray], np.ndarray],
) -> list[int]:
    """The set of least error that greedy growth finds inside any of the groups, in the order of choice.

    Every group begins with its best head and takes the one whose addition lowers the error most, until none does.
    alone: the error of each head. errors_of: of the sets of heads in the rows of a matrix.
    """
    total = len(alone)
    # A head about which nothing was counted is never the best.
    alone = np.where(np.isnan(alone), np.inf, alone)
    groups = [group for group in groups if group]
    # Every layer, or the whole model, grows a set of its own.
    sets = [[min(group, key=lambda n: alone[n])] for group in groups]
    errors = [alone[members[0]] for members in sets]
    growing = set(range(len(sets)))
    while growing:
        # Row n is head n together with the set of its group, so that one pass tries all additions.
        mixing = np.eye(total)
        for number in growing:
            mixing[np.ix_(groups[number], sets[number])] = 1
        together = errors_of(mixing)
        for number in sorted(growing):
            left = [n for n in groups[number] if n not in sets[number]]
            best = min(left, key=lambda n: together[n], default=None)
            # `not <` also ends a group whose error is no number.
            if best is None or not together[best] < errors[number]:
                growing.remove(number)
                continue
            sets[number].append(best)
            errors[number] = together[best]
            if len(sets[number]) == MOST_SET_HEADS:
                growing.remove(number)
    return sets[int(np.argmin(errors))]


def counts_of(
    model: PreTrainedModel,
    discovery: Discovery,
    kind: Kind,
    batches: Iterable[AlignmentBatch],
    mixing: np.ndarray,
) -> tuple[Units, Units]:
    """Sums and divisors of sets of heads, and of the rules without attention. mixing: sets x heads, 1 for a member."""
    sites = [site for site in discovery.heads.sites if site.kind == kind]
    of_sets: list[dict[str, Tensor]] = []
    of_rules: list[dict[str, Tensor]] = []
    current: list[AlignmentBatch] = []
    maps: dict[Site, Tensor] = {}

    def hook(call: AttentionCall) -> None:
        if call.site.kind == kind:
            maps[call.site] = current[-1].maps(call)

    weights = torch.tensor(mixing, dtype=torch.float32, device=device_of(model))
    with evaluating(model), torch.no_grad(), capture(model, discovery, hook=hook, weights=True):
        for batch in batches:
            current[:] = [batch]
            run_model(model, discovery, batch.inputs)
            all_maps = torch.cat([maps[site] for site in sites], 1).float()
            # A sum in place of the mean: the largest weight and the cheapest path are the same.
            mixed = torch.einsum("ct,bt...->bc...", weights, all_maps)
            of_sets.append(batch.counted(batch.answers(mixed)))
            of_rules.append(batch.counted(batch.rules))
    return collect_units(of_sets), collect_units(of_rules)


def collect_units(batches: Sequence[Mapping[str, Tensor]]) -> Units:
    """Batches of counts as arrays of units, fetched from their device together."""
    names = batches[0] if batches else ()
    tensors = [torch.cat([counts[name] for counts in batches]) for name in names]
    return {
        name: counts.astype(np.float64)
        for name, counts in zip(names, to_numpy(tensors), strict=True)
    }


def ratio(counts: np.ndarray) -> np.ndarray:
    """Σ sums / Σ divisors of every candidate; not a number where nothing was counted."""
    sums, divisors = counts.sum(0).T
    # Text without links counts nothing, and its value is NaN.
    with np.errstate(invalid="ignore", divide="ignore"):
        value: np.ndarray = sums / divisors
    return value


def candidate_rows(counts: Units, rules: Units, seed: int) -> pd.DataFrame:
    """A row for each measure and candidate: measure, value, low, high, n (what was counted), baseline (the best rule).

    The first measure is an error: its best rule has the least of it.
    """
    first = next(iter(counts))
    tables = []
    for name, units in counts.items():
        value = ratio(units)
        divisors = units[..., 1]
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high = ratio_interval(units[..., 0], divisors, value, seed, (0, 1))
        rule = ratio(rules[name])
        columns = {
            "measure": name,
            "value": value,
            "low": low,
            "high": high,
            "n": divisors.sum(0).astype(int),
            "baseline": np.nanmin(rule) if name == first else np.nanmax(rule),
            "units": effective_units(divisors),
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def differences(counts: np.ndarray, own: int, seed: int) -> dict[str, np.ndarray]:
    """By column, what each candidate errs more than the one numbered `own`, with the interval over paired units.

    All candidates have the same divisors.
    """
    more = counts.copy()
    # Unit by unit, so that what is hard for all is no difference.
    more[..., 0] -= counts[:, [own], 0]
    value = ratio(more)
    low, high = ratio_interval(more[..., 0], more[..., 1], value, seed, (-1, 1))
    return dict(zip(DIFFERENCES, (value, low, high), strict=True))
