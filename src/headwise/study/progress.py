"""What a long command shows: a bar per task with an estimate of the time left, a line for what was skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from headwise.progress import Bars, Report, silent


class Progress:
    """Bars on the error stream; silent when `quiet`. Call it with the share of the present task."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.report: Report = silent
        self.heading = ""  # held back until something is made below it

    def __call__(self, share: float, what: str) -> None:
        self.report(share, what)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def show_heading(self) -> None:
        """Show the heading that was held back."""
        heading, self.heading = self.heading, ""
        if heading:
            self.say(heading)

    def bars(self) -> Bars:
        """Bars without any task yet: each has a share, the time it takes, and a note. What does not fit on the line is
        cut from the name and from the note."""
        name = Column(no_wrap=True, min_width=22, max_width=max(22, self.console.width // 2 - 8))
        share, time = Column(min_width=4), Column(no_wrap=True, min_width=7)
        columns = (
            TextColumn("  {task.description}", table_column=name),
            BarColumn(8, table_column=Column(min_width=8)),
            TextColumn("{task.percentage:>3.0f}%", table_column=share),
            TimeElapsedColumn(time),
            TextColumn("left"),
            TimeRemainingColumn(table_column=time),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, ratio=1)),
        )
        return Bars(
            *columns,
            console=self.console,
            refresh_per_second=2,
            speed_estimate_period=600,
            expand=True,
        )

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        """A bar for the time of the block, which `__call__` moves. Blocks inside one another share the screen."""
        self.show_heading()
        outer = self.report
        if outer is not silent:  # a task made inside another one
            yield
            return
        with self.bars() as bars:
            row = bars.add_task(name, total=1.0, note="")
            self.report = lambda share, what: bars.update(row, completed=share, note=what)
            try:
                yield
                bars.update(row, completed=1.0)
            finally:
                self.report = outer
