"""How a long computation reports its progress: the share that is done (0 to 1), and a word on what happens."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[float, str], None]


def silent(share: float, what: str) -> None:
    """Report to nobody."""


def part(report: Report, start: float, end: float) -> Report:
    """Progress of a part, as progress of the whole from `start` to `end`."""
    return lambda share, what: report(start + (end - start) * share, what)
