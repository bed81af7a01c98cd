"""What passes over a text gave, as they are put together and become rows of heads.csv."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headwise.core.heads import Row
from headwise.importance.measures import facts
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.tasks.batches import Batches, Fold


@dataclass
class Measurement:
    """What passes gave.

    sums: of every sentence, by measure. rows: of measures without such sums. balances: where the relevance of each rule
    went. seconds: of every pass. samples: by measure, what was read of the text, where that is not all of it.
    """

    sums: dict[str, SentenceSums] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    balances: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    samples: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, other: Measurement) -> None:
        """Add what another pass gave."""
        self.sums |= other.sums
        self.rows += other.rows
        self.balances |= other.balances
        self.seconds |= other.seconds
        self.samples |= other.samples

    def gather(self, text: Batches | Fold) -> None:
        """Put the sums of all processes together, with a unit for each document of the text, as samples have already."""
        for name, sums in self.sums.items():
            sums.gather()
            if name not in self.samples:
                self.sums[name] = sums.by_document(text.documents)

    def all_rows(self, seed: int) -> list[Row]:
        """Rows of heads.csv."""
        rows: list[Row] = []
        for name, sums in self.sums.items():
            of_heads = sums.rows(name, seed)
            if of_heads and facts(name).signed:
                for row, p in zip(of_heads, sums.p_of_heads(name, seed), strict=True):
                    row["p"] = p
            rows += of_heads
        return rows + self.rows
