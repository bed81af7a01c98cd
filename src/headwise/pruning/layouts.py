"""Layouts that controls keep: which heads, chosen another way than by pruning. The models are then fine-tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMap, HeadMask, Kind, Site
from headwise.options import Keep, Unit
from headwise.pruning.controls import Case, control
from headwise.pruning.greedy import least_important_first, random_scores
from headwise.units import first_units, target_counts, units


@control(
    "fine-tuned",
    title="fine-tuned, not pruned",
    what="all heads, trained as long as pruning took",
    question="the gain of more training",
    better="pruning gains more than training on alone",
    worse="training on without pruning does better",
    of="sweep",
    compared_by_all=True,
)
def all_heads(case: Case) -> HeadMask:
    """The full model's layout."""
    return HeadMask.full(case.heads)


@control(
    "random",
    title="random heads",
    what="as many random heads of each kind",
    question="whether it matters *which* heads stay",
    better="which heads stay matters",
    worse="random heads do better",
    mark="cross",
)
def random_heads(case: Case) -> HeadMask:
    """As many heads of every kind as the pruned model has."""
    if case.mask is None:
        raise HeadwiseError("The control 'random' belongs to a pruned model, but none was given.")
    counts = {kind: case.mask.count(kind) for kind in case.kinds}
    return at_random(case.heads, case.kinds, counts, case.seed, case.unit)


@control(
    "one-per-layer",
    title="best head of each layer",
    what="the best head of every layer, by a score",
    question="whether one head per layer is enough",
    better="the best head of a layer beats a random one",
    worse="random heads do better",
    of="sweep",
    against="one-per-layer-random",
    mark="diamond",
)
def best_of_each_layer(case: Case) -> HeadMask:
    """The most important head of every layer (Michel et al. 2019, section 3.3)."""
    return one_per_layer(case.heads, case.kinds, case.importance())


@control(
    "one-per-layer-random",
    title="a random head of each layer",
    what="a random head of every layer",
    question="the control of `one-per-layer`",
    of="sweep",
    ending="random",
    mark="triangle-down",
)
def random_of_each_layer(case: Case) -> HeadMask:
    """A random head of every layer."""
    return one_per_layer(case.heads, case.kinds, random_scores(case.heads, case.seed))


def at_random(
    heads: HeadMap, kinds: Sequence[Kind], keep: Keep, seed: int, unit: Unit | None = None
) -> HeadMask:
    """A mask with `keep` random heads of `kinds`, in whole units, and all heads of other kinds.

    keep: a number in total, or one for each of `kinds`. With one kind both are the same draw.
    """
    chosen = heads.only(kinds)
    scores, removed = random_scores(chosen, seed), list[Head]()
    for own, count in target_counts(chosen, keep, 0, unit).items():
        some = chosen.only(own)
        drawn = sorted(units(some, unit), key=lambda together: scores[together[0]])
        removed += [
            head for together in first_units(drawn, some.total - count) for head in together
        ]
    return HeadMask.full(heads).without(removed)


def one_per_layer(heads: HeadMap, kinds: Sequence[Kind], score: Mapping[Head, float]) -> HeadMask:
    """A mask with the best head by `score` of every layer of `kinds`, and all heads of other kinds.

    Higher is better; of equal heads the last stays. Michel et al. 2019 do this to one layer at a time. Raises
    HeadwiseError for a score that lacks a head or is not a number.
    """
    chosen = heads.only(kinds)
    best = {
        Site(head.kind, head.layer): head for head in least_important_first(score, list(chosen))
    }
    return HeadMask.full(heads).without(set(chosen) - set(best.values()))
