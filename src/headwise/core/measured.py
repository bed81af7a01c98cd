"""Numbers that were measured of models, and the choice of one of them.

A table of such numbers has the columns MEASURED. A number without a reference is the model's own. With a reference it is
the change of the measure from that model (of perplexity in %), such as `bleu` with the reference `full`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import astuple
from typing import Any, TypeVar

import pandas as pd

from headwise.core.qualities import Number
from headwise.core.tables import MEASURED

SPLITS = ("test", "dev")
UNPRUNED = "full"  # the reference that is the model before pruning
FINE_TUNED = "fine-tuned"  # the reference that was trained equally long, and not pruned
LIMIT_ROUNDING = 1e-5  # how far a loss may exceed the limit: tables have 8 digits, so one that equals it may be above

Name = TypeVar("Name", bound=Hashable)


NOT_MEASURED = Number()


class ModelNumbers(dict[tuple[str, str, str], Number]):
    """All numbers of one model, by split, measure and reference."""

    def of(self, measure: str, split: str = "", reference: str = "") -> Number:
        """One number. split: empty for what belongs to no text, such as `parameters`."""
        return self.get((split, measure, reference), NOT_MEASURED)

    def leading_change(self, measure: str, split: str) -> tuple[str, Number]:
        """The comparison that leads, its reference first: to equal further training where that was measured, else to the
        full model."""
        change = self.of(measure, split, FINE_TUNED)
        if change.value is not None:
            return FINE_TUNED, change
        return UNPRUNED, self.of(measure, split, UNPRUNED)

    def rows(self) -> list[tuple[Any, ...]]:
        """Its rows of a table, columns MEASURED."""
        return [(*key, *astuple(number)) for key, number in self.items()]


def numbers_by_setting(table: pd.DataFrame) -> dict[str, ModelNumbers]:
    """The numbers of each setting in a table with the columns `setting` and MEASURED."""
    by_setting = {setting: ModelNumbers() for setting in table["setting"]}
    rows = table[["setting", *MEASURED]].dropna(subset=["value"])
    for setting, split, measure, reference, *numbers in rows.itertuples(index=False, name=None):
        known = (None if pd.isna(each) else float(each) for each in numbers)
        by_setting[setting][split, measure, reference] = Number(*known)
    return by_setting


def is_within(lost: float, limit: float | None) -> bool:
    """Whether a loss of quality is at most the limit; without a limit any loss is."""
    return limit is None or lost <= limit + LIMIT_ROUNDING


def choose_smallest(
    lost: Mapping[Name, float], heads: Mapping[Name, int], limit: float | None
) -> Name | None:
    """The model with the fewest heads among those that lose at most `limit` (None: any loss), and of equally small ones
    the one that loses least; None where all lose more. lost: on dev. heads: the number that is left."""
    good = [name for name in lost if is_within(lost[name], limit)]
    return min(good, key=lambda name: (heads[name], lost[name]), default=None)
