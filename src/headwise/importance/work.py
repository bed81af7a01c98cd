"""How much work is, in forwards over a text: for the time that it will take, and for its progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwise.core.heads import HeadMap
from headwise.core.options import Search
from headwise.importance.measures import STARTS, Cost, measure, passes
from headwise.models.tasks.batches import Batches

UPDATE = 3.0  # forwards that an update of training takes as long as
# What is below a changed head is not computed again: half of the model on average.
WITHOUT_HEADS = 0.5  # forwards that one without some heads takes as long as
TRANSLATION = 6.0  # forwards that greedy search takes as long as, a beam for each hypothesis
UPDATE_TOKENS = 4096  # of the batch of an update, about


@dataclass(frozen=True)
class Workload:
    """What measures of a model read: its heads, and how many sentences of how many tokens, on average."""

    heads: HeadMap
    sentences: int
    tokens: float = 25.0

    def of_passes(self, measures: Iterable[str]) -> dict[str, float]:
        """About how many forwards over the text each pass takes, by its label."""
        each: dict[Cost, float] = {
            "forwards": 1.0,
            "forwards per head": self.heads.total,
            "forwards per layer": len(self.heads.sites),
            "forwards per token": min(STARTS, self.tokens),
            # an update reads one batch, however long the text is
            "updates": UPDATE * min(1.0, UPDATE_TOKENS / (self.sentences * self.tokens)),
            "translations per head": TRANSLATION * Search().beam * self.heads.total,
        }
        forwards = {}
        for label, names in passes(measures).items():
            # all measures of a pass share its cost
            cost = measure[names[0]].cost
            forwards[label] = sum(count * each[what] for what, count in cost.items())
        return forwards

    def of_measures(self, measures: Iterable[str]) -> float:
        """The forwards over the text of all passes."""
        return sum(self.of_passes(measures).values())


def work_on(heads: HeadMap, text: Batches) -> Workload:
    """What measures of a model with these heads read of a text."""
    return Workload(heads, text.sentences, text.total / text.sentences)
