"""What a model answered on a text, and what these answers are worth: translations, or losses of sentences.

Both kinds have one interface, so that pruning and studies need not know which they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headwise.decoding.bleu import corpus_scores, paired_difference
from headwise.evaluation.losses import Change, Losses, Rows


class Answers(Protocol):
    """What one model answered on one text."""

    def rows(self, seed: int) -> Rows:
        """Quality with 95 % intervals: (measure, value, low, high)."""

    def signatures(self) -> dict[str, str]:
        """How scores were computed, by the name of a column."""

    def difference(self, other: Any, seed: int) -> Change:
        """The difference to another model's answers on the same text, paired over sentences."""


@dataclass(frozen=True)
class Translations:
    """The translations of a text, and its references."""

    lines: Sequence[str]
    references: Sequence[str]

    def rows(self, seed: int) -> Rows:
        scores = corpus_scores(self.lines, self.references)
        return [(score.name, score.value, score.low, score.high) for score in scores]

    def signatures(self) -> dict[str, str]:
        scores = corpus_scores(self.lines, self.references)
        return {f"{score.name}_signature": score.signature for score in scores}

    def difference(self, other: Translations, seed: int) -> Change:
        change = paired_difference(self.lines, other.lines, self.references)
        return change.value, change.low, change.high, change.p


@dataclass(frozen=True)
class LossesOfOne:
    """One model's column among losses that were measured together; column 0 is the whole model."""

    losses: Losses
    column: int

    def rows(self, seed: int) -> Rows:
        return self.losses.rows(self.column, seed)

    def signatures(self) -> dict[str, str]:
        name = "perplexity" if self.losses.right is None else "accuracy"
        return {f"{name}_signature": self.losses.made}

    def difference(self, other: LossesOfOne, seed: int) -> Change:
        return self.losses.change(self.column, other.losses, other.column, seed)
