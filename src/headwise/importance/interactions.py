"""Interaction: what switching off two heads together costs, beyond what both cost alone.

    I_ab = Δ_ab − (Δ_a + Δ_b),    Δ_S = Σ (L(x; heads S silent) − L(x)) / number of predicted tokens

in nats per token. Above 0 the heads do the same work (each is the other's backup); below 0 they work together, so that
one is worth little without the other. As Δ_ab − Δ_a is the ablation score of b once a is gone, I_ab is also by how much
that score rises: above 0, b is a backup head of a (self-repair).

All pairs are tried on few sentences (the screen). The strongest are measured on other sentences, so that luck does
not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, head_of
from headwise.core.layout import HeadMask
from headwise.core.options import SEED
from headwise.core.progress import OnProgress, part, shown, silent
from headwise.core.result import TableResult, ends
from headwise.core.statistics import largest_t_p, means_with_intervals
from headwise.core.tables import INTERACTIONS
from headwise.importance.passes import importance_values
from headwise.importance.work import Workload
from headwise.models.environment import signature_of
from headwise.models.evaluation.without_heads import removal_losses
from headwise.models.generators import check_seed
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import AnyText, Given
from headwise.models.tasks.task import sample_text

MEASURED_PAIRS = 20  # that are measured
FEWEST_SENTENCES = 20  # sentences
SCREEN = 12  # sentences that all pairs are tried on
CONFIRMING_SENTENCES = 300  # sentences that the strongest are measured on
MOST_PAIRED_HEADS = 128  # heads that are paired
HeadPair = tuple[Head, Head]


@dataclass(frozen=True, repr=False)
class Interactions(TableResult):
    """Pairs of heads that do the same work, or that work together.

    table: one row per pair, columns INTERACTIONS, the strongest first. signature: how it was made.
    """

    TABLE = INTERACTIONS
    TOP = ("head", "other", "value", "low", "high")

    @property
    def measured(self) -> pd.DataFrame:
        """The pairs that were measured, not only screened."""
        return self.table[self.table["value"].notna()]

    @property
    def summary(self) -> str:
        return f"{len(self.measured)} of {len(self.table)} pairs measured"

    def ranked(self) -> pd.DataFrame:
        return self.measured

    def lines(self) -> list[str]:
        """The strongest pairs."""
        lines = [
            "  Pairs of heads, what both cost together beyond what they cost alone (nats per token):"
        ]
        for row in self.measured.head(5).to_dict("records"):
            interval = ends(float(row["low"]), float(row["high"]), "+.4f")
            heads = f"{head_of(row)} and {head_of(row, 'other_')}"
            lines.append(f"    {heads}: {row['value']:+.4f} {interval}")
        return lines


def interactions(
    model: AnyModel,
    text: AnyText | Given,
    count: int = MEASURED_PAIRS,
    *,
    seed: int = SEED,
    progress: OnProgress | None = None,
) -> Interactions:
    """What pairs of heads cost together, beyond what both cost alone (module docstring).

    text: as for `score`; SCREEN sentences of it screen all pairs (`screening_value`, nats per token),
    CONFIRMING_SENTENCES others measure the `count` pairs of the largest |screening_value|: `value` with its 95 % interval by
    a paired bootstrap over sentences, its two-sided `p` corrected over the pairs (`largest_t_p`), the costs `alone`,
    `other_alone` and `both`, on `n` predicted tokens. Pairs that are not measured have empty cells there. A model of
    more than MOST_PAIRED_HEADS heads is screened by those that add most to the output of their layer (`dormancy`).
    progress: gets the share that is done, and of what; by default a bar.

    Raises HeadwiseError for a model without a loss, and for a text of fewer than FEWEST_SENTENCES sentences.
    """
    if type(count) is not int or count < 1:
        raise HeadwiseError(f"count is {count!r}: give the number of pairs to measure, at least 1.")
    check_seed(seed)
    model = as_model(model)
    text = model.task.text_of(text)
    if not isinstance(text, AnyText):
        raise HeadwiseError(
            "Pairs of heads are measured on text, and batches were given: give text."
        )
    if not model.task.has_loss:
        raise HeadwiseError(
            f"{model.name}, a {type(model.hf).__name__}, predicts nothing, so pairs of heads cost nothing."
        )
    if len(text) < FEWEST_SENTENCES:
        raise HeadwiseError(
            f"Pairs of heads are screened and measured on different sentences, and the text has {len(text)}: give at "
            f"least {FEWEST_SENTENCES}."
        )
    with shown("pairs of heads", progress) as on_progress:
        first, second = screened_and_measured(text)
        # All of them in a model of usual size.
        heads = largest_outputs(model, first, seed)
        every = list(combinations(heads, 2))
        screen = removal_effects(
            model, first, heads, every, part(on_progress, 0.0, 0.6), "all pairs"
        )
        per_token = screen.interactions().sum(0) / screen.tokens.sum()
        screened = dict(zip(every, per_token, strict=True))

        # Both ways: backups cost more together, partners less.
        chosen = sorted(every, key=lambda pair: -abs(screened[pair]))[:count]
        paired = {head for pair in chosen for head in pair}
        # only heads of these pairs: each takes a forward
        needed = [head for head in heads if head in paired]
        share = part(on_progress, 0.6, 1.0)
        effects = removal_effects(model, second, needed, chosen, share, f"{len(chosen)} pairs")
        measured = effects.rows(seed)

    unmeasured = [pair for pair in every if pair not in measured]
    rows = []
    for pair in [*measured, *unmeasured]:
        rows.append({**address(pair), "screening_value": screened[pair], **measured.get(pair, {})})
    table = INTERACTIONS.of(rows)
    signature = signature_of(
        model,
        text=text.fingerprint,
        screened=len(first),
        sentences=len(second),
        longest=model.task.longest,
        seed=seed,
    )
    return Interactions(table, signature)


def work_of_pairs(work: Workload, pairs: int) -> float:
    """What so many pairs read, in forwards over the text: all pairs on a few sentences, the strongest on more, with
    both of their heads alone and together."""
    heads = min(MOST_PAIRED_HEADS, work.heads.total)
    screened = SCREEN * heads * (heads - 1) / 2
    measured = min(CONFIRMING_SENTENCES, work.sentences) * 3 * pairs
    return 0.5 * (screened + measured) / work.sentences


def screened_and_measured(text: AnyText) -> tuple[AnyText, AnyText]:
    """The sentences that screen and, apart from them, those that measure, both spread evenly over the text."""
    # at least as many sentences are left to measure on
    count = min(SCREEN, len(text) // 2)
    first = {number * len(text) // count for number in range(count)}
    rest: AnyText = text.take([place for place in range(len(text)) if place not in first])
    return text.take(sorted(first)), sample_text(rest, CONFIRMING_SENTENCES)


def largest_outputs(model: Model, text: AnyText, seed: int) -> list[Head]:
    """At most MOST_PAIRED_HEADS heads, in the order of the model: those that add most to the output of their layer."""
    if model.heads.total <= MOST_PAIRED_HEADS:
        return list(model.heads)
    # one forward for all heads
    shares = importance_values(model, model.task.batches(text), "dormancy", seed=seed)
    kept = set(sorted(shares, key=lambda head: -shares[head])[:MOST_PAIRED_HEADS])
    return [head for head in model.heads if head in kept]


@dataclass(frozen=True)
class PairLosses:
    """What each sentence loses (summed over its predicted tokens, of which it has `tokens`) without one head of each
    pair, without the other, and without both: sentences x pairs."""

    pairs: Sequence[HeadPair]
    one: np.ndarray
    other: np.ndarray
    both: np.ndarray
    tokens: np.ndarray

    def interactions(self) -> np.ndarray:
        """Sentences x pairs."""
        # I_ab = Δ_ab − Δ_a − Δ_b
        out: np.ndarray = self.both - self.one - self.other
        return out

    def rows(self, seed: int) -> dict[HeadPair, dict[str, Any]]:
        """The numbers of every pair per token, the strongest interaction first."""
        sums = self.interactions()
        count = self.tokens.sum()
        values, low, high, p_alone = means_with_intervals(sums, self.tokens, seed)
        columns = {
            "value": values,
            "low": low,
            "high": high,
            # never less than the p of a pair alone, which its interval shows
            "p": np.maximum(largest_t_p(sums, self.tokens, seed), p_alone),
            "alone": self.one.sum(0) / count,
            "other_alone": self.other.sum(0) / count,
            "both": self.both.sum(0) / count,
        }
        rows: dict[HeadPair, dict[str, Any]] = {}
        for number in np.argsort(-np.abs(values), kind="stable"):
            row = {name: column[number] for name, column in columns.items()}
            rows[self.pairs[number]] = {**row, "n": int(count)}
        return rows


def removal_effects(
    model: Model,
    text: AnyText,
    heads: Sequence[Head],
    pairs: Sequence[HeadPair],
    progress: OnProgress = silent,
    what: str = "",
) -> PairLosses:
    """Exact removal of single heads and of pairs on a text; layers before the first of them run once a batch."""
    whole = HeadMask.full(model.heads)
    masks = [
        whole,
        *(whole.without([head]) for head in heads),
        *(whole.without(pair) for pair in pairs),
    ]
    batches = model.task.batches(text, lambda share, _: progress(share, what))
    lost, tokens = removal_losses(model.hf, model.discovery, batches, masks)
    # From the whole model: first the heads alone, then the pairs.
    change = lost[:, 1:] - lost[:, :1]
    first = [heads.index(one) for one, _ in pairs]
    second = [heads.index(other) for _, other in pairs]
    return PairLosses(pairs, change[:, first], change[:, second], change[:, len(heads) :], tokens)


def address(pair: HeadPair) -> dict[str, Any]:
    """The first columns of a row."""
    one, other = pair
    columns = one._asdict()
    for name, value in other._asdict().items():
        columns[f"other_{name}"] = value
    return columns
