"""Scores that heads can be removed in the order of: measures, and two that look at no text."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.core.errors import HeadwiseError
from headwise.core.options import TEXTLESS_ORDERS
from headwise.importance.measures import facts, resolve_measures


def removal_scores(names: Sequence[str]) -> list[str]:
    """The full names of scores. Raises HeadwiseError for unknown ones, and for those that take too long."""
    full: list[str] = []
    for name in names:
        try:
            full += [name] if name in TEXTLESS_ORDERS else resolve_measures([name])
        except HeadwiseError as error:
            raise HeadwiseError(
                f"{error} Here there are {' and '.join(TEXTLESS_ORDERS)}, too."
            ) from None
    for name in full:
        if name not in TEXTLESS_ORDERS and facts(name).expensive:
            raise HeadwiseError(
                f"{name} takes too long to give an order of removal: choose another, such as gradient."
            )
    return list(dict.fromkeys(full))
