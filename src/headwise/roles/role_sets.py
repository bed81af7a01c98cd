"""Heads of one role together: what the model loses without them, and whether their pattern is all they do.

A role says where a head looks. Two experiments on the loss say what follows from it.

* **off**: all heads of the role are silent at once, beside random sets with as many heads of the same layers. Heads
  stand in for one another, so a set can matter where none of its heads does ("specialized heads do the heavy lifting",
  Voita et al. 2019, section 5, is a claim about sets).
* **pattern**: each head keeps its values, and its attention is replaced by the pattern of its role: all weight on the
  token at its offset, or of a `sink` on the first or last token. What is then not lost, the pattern explains. The
  control is a wrong pattern, two tokens before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Kind, Site, head_of
from headwise.core.options import SEED
from headwise.core.progress import OnProgress, shown
from headwise.core.result import TableResult, ends
from headwise.core.statistics import ratio_interval
from headwise.core.tables import SETS
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.offload import device_of
from headwise.models.attention.reuse import Trial
from headwise.models.attention.sides import sides_of_site
from headwise.models.environment import signature_of
from headwise.models.evaluation.recorded_batch import RecordedBatch
from headwise.models.evaluation.without_heads import silent_heads, trial_losses
from headwise.models.generators import check_seed
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import AnyText, Given
from headwise.models.tasks.task import sample_text
from headwise.roles.role import category
from headwise.roles.role_tests import Roles

SENTENCES = 200  # of the text, that heads are switched off on, at most
RANDOM_SETS = 20  # that a set is compared with, at most
ELSEWHERE = -2  # the wrong pattern is so many tokens from the right one
OFF, PATTERN, WRONG = CHANGES = ("off", "pattern", "wrong pattern")
Offsets = Mapping[
    Head, float
]  # by head, where its pattern looks: tokens from the query; ±inf: the last or first token


@dataclass(frozen=True, repr=False)
class RoleSets(TableResult):
    """What the heads of each role do together.

    table: a row for each role and change (CHANGES), and for each of its heads alone where the role has a pattern; columns
    SETS. value: what the loss gains, in nats per token, with its 95 % bootstrap interval over so many `units` (sentences).
    random: of sets drawn at random, the mean, the least and the largest value; p: the share of them, and of the set
    itself, that cost as much. signature: how it was made.
    """

    TABLE = SETS
    TOP = ("kind", "role", "change", "value", "low", "high")

    @property
    def summary(self) -> str:
        sets = self.table[["kind", "role"]].drop_duplicates()
        return f"{len(sets)} sets of heads"

    def ranked(self) -> pd.DataFrame:
        """Of each role, the whole set."""
        return self.table.drop_duplicates(["kind", "role", "change"])

    def lines(self) -> list[str]:
        """A line for each role, and its pattern behind it."""
        if self.table.empty:
            return ["  No head has a role: there are no heads of one role to switch off together."]
        made = f"; {self.signature['made']}" if self.signature["made"] else ""
        lines = [f"  Heads of one role, together (nats per token{made}):"]
        for (kind, role), rows in self.ranked().groupby(["kind", "role"], sort=False):
            said = []
            for row in rows.to_dict("records"):
                interval = ends(row["low"], row["high"], "+.3f")
                found = f"{row['change']} {row['value']:+.3f} {interval}"
                if row["change"] == OFF and row["random_sets"]:
                    found += f" (random sets {row['random_low']:+.3f} to {row['random_high']:+.3f}, p = {row['p']:.2g})"
                said.append(found)
            lines.append(f"    {kind}, {role}, heads {rows['heads'].iloc[0]}: {'; '.join(said)}")
        return lines


@dataclass(frozen=True)
class Experiment:
    """One set of heads, changed in one way. random: sets like it, silent. offsets: of its pattern."""

    kind: Kind
    role: str
    heads: tuple[Head, ...]
    change: str
    random: Sequence[tuple[Head, ...]] = ()
    offsets: Offsets | None = None


def role_sets(
    model: AnyModel,
    roles: Roles,
    text: AnyText | Given,
    *,
    seed: int = SEED,
    progress: OnProgress | None = None,
) -> RoleSets:
    """What the heads of each role do together (module docstring), on at most SENTENCES sentences of a text.

    roles: what `roles` found; heads should have been found on other text. progress: gets the share that is done; by
    default a bar. Where no head has a role, the table is empty. Raises HeadwiseError for a model that predicts nothing.
    """
    if not isinstance(roles, Roles):
        raise HeadwiseError(
            f"role_sets takes a model, its roles and a text, and was given a {type(roles).__name__} in place of what "
            "hw.roles(model, treebank) makes."
        )
    check_seed(seed)
    model = as_model(model)
    text = model.task.text_of(text)
    check_sets(model, text)
    experiments = list(experiments_of(model, roles, seed))
    few = model.task.completed(sample_text(text, SENTENCES), progress)
    device = device_of(model.hf)

    def trials(batch: RecordedBatch) -> list[Trial]:
        # The first trial changes nothing: it is the loss that the others are compared with.
        tried: list[Trial] = [{}]
        for experiment in experiments:
            if experiment.offsets is None:
                tried.append(silent_heads(experiment.heads, device))
            else:
                tried.append(at_offsets(experiment.offsets, batch.there))
            tried += [silent_heads(heads, device) for heads in experiment.random]
        return tried

    table = SETS.of()
    if experiments:
        with shown("sets of heads", progress) as on_progress:
            batches = model.task.batches(few, lambda share, _: on_progress(share, "sets of heads"))
            lost, tokens = trial_losses(model.hf, model.discovery, batches, trials)
        table = rows_of(experiments, lost - lost[:, :1], tokens, seed)
    made = getattr(few, "made", "")
    return RoleSets(table, signature_of(model, text=few.fingerprint, made=made, seed=seed))


def check_sets(model: Model, text: AnyText) -> None:
    """Raise HeadwiseError for a model that predicts nothing, and text that it does not read: before roles are found."""
    if not model.task.has_loss:
        raise HeadwiseError(
            f"{model.name}, a {type(model.hf).__name__}, predicts nothing, so heads that are off cost nothing: leave the "
            "text for sets out."
        )
    model.task.completed(text, outline=True)


def experiments_of(model: Model, roles: Roles, seed: int) -> Iterable[Experiment]:
    """The sets of a model, in the order in which they are tried: by role all of its heads, then each one alone."""
    random = np.random.default_rng(seed)
    sets_of_roles: dict[tuple[Kind, str], dict[Head, float | None]] = {}
    for row in roles.roles.to_dict("records"):  # the highest value of each head comes first
        head = head_of(row)
        patterns = sets_of_roles.setdefault((head.kind, category(row["measure"])), {})
        patterns.setdefault(head, offset_of(row["measure"], head.kind))
    for (kind, role), patterns in sets_of_roles.items():
        heads = tuple(sorted(patterns))
        # Together first; each alone only where a pattern can be tried for all of them.
        sets: list[tuple[Head, ...]] = [heads]
        if None not in patterns.values() and len(heads) > 1:
            sets += [(head,) for head in heads]
        for chosen in sets:
            yield Experiment(kind, role, chosen, OFF, sets_like(chosen, model, random))
            offsets = {}
            for head in chosen:
                offset = patterns[head]
                if offset is not None:
                    offsets[head] = offset
            if len(offsets) < len(chosen):
                continue
            # The right pattern, then a wrong one as its control.
            yield Experiment(kind, role, chosen, PATTERN, offsets=offsets)
            # Two tokens before the first or the last one is the same place.
            if all(map(math.isfinite, offsets.values())):
                wrong = {head: offset + ELSEWHERE for head, offset in offsets.items()}
                yield Experiment(kind, role, chosen, WRONG, offsets=wrong)


def offset_of(measure: str, kind: Kind) -> float | None:
    """Where the pattern of a role looks, in tokens from the query; None for a role without one."""
    name, _, offset = measure.partition(".")
    if name == "positional":
        return float(offset)
    if name == "previous-token":
        return -1.0
    # Encoders end with a token that is no word, decoders begin with one.
    if name == "sink" and kind != "cross":
        return math.inf if kind == "encoder-self" else -math.inf
    return None


def sets_like(
    heads: Sequence[Head], model: Model, random: np.random.Generator
) -> list[tuple[Head, ...]]:
    """At most RANDOM_SETS different sets with as many heads of the same layers: of other heads where a layer has enough,
    else of all its heads. None where there is no other set."""
    choices: list[list[Head]] = []
    sizes = []
    for site in dict.fromkeys(Site(head.kind, head.layer) for head in heads):
        own = [head for head in heads if Site(head.kind, head.layer) == site]
        layer = [head for head in model.heads if Site(head.kind, head.layer) == site]
        others = [head for head in layer if head not in own]
        choices.append(others if len(others) >= len(own) else layer)
        sizes.append(len(own))
    possible = math.prod(
        math.comb(len(layer), size) for layer, size in zip(choices, sizes, strict=True)
    )
    drawn: dict[tuple[Head, ...], None] = {}
    own_set = tuple(sorted(heads))
    # So few are listed: drawing them at random would take long for the last one.
    if possible <= RANDOM_SETS:
        every: list[tuple[Head, ...]] = [()]
        for layer, size in zip(choices, sizes, strict=True):
            # All choices of a layer with all choices of the layers before it.
            every = [(*one, *more) for one in every for more in combinations(layer, size)]
        return [one for one in map(tuple, map(sorted, every)) if one != own_set]
    while len(drawn) < RANDOM_SETS:
        one: list[Head] = []
        for layer, size in zip(choices, sizes, strict=True):
            one += [layer[place] for place in random.choice(len(layer), size, replace=False)]
        if tuple(sorted(one)) != own_set:
            drawn[tuple(sorted(one))] = None
    return list(drawn)


def at_offsets(offsets: Offsets, there: Mapping[str, Tensor]) -> Trial:
    """A trial in which heads attend to the token at an offset alone. there: by side, where a token is."""
    by_site: dict[Site, dict[int, float]] = {}
    for head, offset in offsets.items():
        by_site.setdefault(Site(head.kind, head.layer), {})[head.head] = offset
    trial: dict[Site, Callable[[AttentionCall], Tensor]] = {}
    for site, of_heads in by_site.items():
        sides = [there[side] for side in sides_of_site(site)]
        trial[site] = partial(pattern_outputs, offsets=of_heads, queries=sides[0], keys=sides[1])
    return trial


def pattern_outputs(
    call: AttentionCall, offsets: Mapping[int, float], queries: Tensor, keys: Tensor
) -> Tensor:
    """The outputs B Q H D of a call, of some heads with all attention on the visible token nearest to the one at an offset.

    queries B Q, keys B K: where a token is.
    """
    visible = call.visible(queries, keys)[:, 0]
    length = visible.shape[-1]
    places = torch.arange(length, device=visible.device)
    output = call.output.clone()
    for head, offset in offsets.items():
        # An infinite offset is the first or last token.
        wanted = places[:, None] + max(-length, min(length, offset))
        distance = (places - wanted).abs().expand_as(visible)
        # 4 · length is more than any distance, so that no hidden token is the nearest.
        nearest = distance.masked_fill(~visible, 4 * length).argmin(-1)
        # With grouped queries several heads share one head of values.
        group = head * call.value.shape[1] // output.shape[2]
        value = call.value[:, group]
        output[:, :, head] = value.gather(1, nearest[..., None].expand(-1, -1, value.shape[-1]))
    return output


def rows_of(
    experiments: Sequence[Experiment], gained: np.ndarray, tokens: np.ndarray, seed: int
) -> pd.DataFrame:
    """The table, columns SETS. gained: what the loss of each sentence gains, sentences x (the whole model, then each
    experiment and its random sets); tokens: of each sentence."""
    # All sets are tried on the same tokens.
    divisors = np.broadcast_to(tokens[:, None], gained.shape)
    values = gained.sum(0) / tokens.sum()
    low, high = ratio_interval(gained, divisors, values, seed)
    rows = []
    column = 1
    for experiment in experiments:
        # The random sets of an experiment stand right behind it.
        random = values[column + 1 : column + 1 + len(experiment.random)]
        numbers = [math.nan] * 3
        p = math.nan
        if len(random):
            numbers = [random.mean(), random.min(), random.max()]
            # The set itself counts as one of the draws, so that p is never 0 (Phipson & Smyth 2010).
            p = (1 + (random >= values[column]).sum()) / (1 + len(random))
        rows.append(
            (
                experiment.kind,
                experiment.role,
                " ".join(f"{head.layer}/{head.head}" for head in experiment.heads),
                len(experiment.heads),
                experiment.change,
                values[column],
                low[column],
                high[column],
                len(tokens),
                *numbers,
                len(random),
                p,
            )
        )
        column += 1 + len(experiment.random)
    return SETS.of(rows)
