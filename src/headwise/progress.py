"""How a long computation reports its progress: the share that is done (0 to 1), and a word on what happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[float, str], None]


def silent(share: float, what: str) -> None:
    """Report to nobody."""


@contextmanager
def shown(name: str, report: Report | None) -> Iterator[Report]:
    """The caller's report; where there is none, a bar for the time of the block, in a terminal or notebook."""
    if report is not None:
        yield report
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (console.is_terminal or console.is_jupyter)) as bars:
        row = bars.add_task(name, total=1.0)
        yield lambda share, what: bars.update(row, completed=share, description=f"{name}: {what}" if what else name)


def part(report: Report, start: float, end: float) -> Report:
    """Progress of a part, as progress of the whole from `start` to `end`."""
    return lambda share, what: report(start + (end - start) * share, what)
