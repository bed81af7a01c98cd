"""How much measures read, in forwards over their text: for the time that they will take, and for their progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwise.forecast import TOGETHER, Amount, output_share
from headwise.heads import HeadMap
from headwise.importance.measures import STARTS, Cost, measure, passes
from headwise.model import Model
from headwise.tasks.batches import Batches

BACKWARD = 2.5  # forwards that one forward and backward takes as long as
TRANSLATION = 30.0  # forwards that a beam search takes as long as, where that was not measured


@dataclass(frozen=True)
class Workload:
    """What measures of a model read.

    heads: those of the model. text: how much there is. output: the share of a forward that the output layer takes.
    translation: forwards that a translation of the text takes as long as.
    """

    heads: HeadMap
    text: Amount
    output: float = 0.0
    translation: float = TRANSLATION

    def of_passes(self, measures: Iterable[str]) -> dict[str, float]:
        """The forwards over the text of each pass, by its label."""
        heads = self.heads.total
        each: dict[Cost, float] = {
            "forwards": 1.0,
            "layers": 1 - self.output,
            "layers per head": heads * (1 - self.output),
            "outputs per head": heads * self.output,
            "forwards per layer": len(self.heads.sites),
            "layers per token": min(STARTS, self.text.length * self.text.spread)
            * (1 - self.output),
            "updates": BACKWARD * min(1.0, TOGETHER / max(1.0, self.text.positions)),
            "translations per head": (heads + 1) * self.translation,
        }
        found = {}
        for label, names in passes(measures).items():
            cost = measure[names[0]].cost
            found[label] = sum(count * each[unit] for unit, count in cost.items())
        return found

    def of_measures(self, measures: Iterable[str]) -> float:
        """The forwards over the text of all passes."""
        return sum(self.of_passes(measures).values())


def work_on(model: Model, text: Batches) -> Workload:
    """What measures of a model read of a text."""
    return Workload(model.heads, Amount.of_batches(text), output_share(model))
