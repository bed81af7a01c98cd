"""What a long command shows: a bar per stage with an estimate of the time left, a line for what was skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column


class Progress:
    """Bars on the terminal's error stream; silent when `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.report: Callable[[float, str], None] = lambda share, text: None
        self.ahead = ""  # a heading, held back until there is something below it

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def skip(self, name: str) -> None:
        """Tell that a stage was as before, unless all is so below the present heading."""
        if not self.ahead:
            self.say(f"  {name}: as before")

    def head(self) -> None:
        """Show the heading that was held back."""
        heading, self.ahead = self.ahead, ""
        if heading:
            self.say(heading)

    def __call__(self, share: float, text: str) -> None:
        """Report how far the present stage is (0 to 1), with a word on what is happening."""
        self.report(share, text)

    def bars(self) -> Bars:
        """Bars without any task yet: each has a share, the time it takes, and a note."""
        line, time = Column(no_wrap=True), Column(no_wrap=True, min_width=7)
        columns = (
            TextColumn("  {task.description:<20}", table_column=line), BarColumn(8),
            TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(time), TextColumn("left"),
            TimeRemainingColumn(table_column=time), TextColumn("{task.fields[note]}", table_column=line),
        )  # fmt: skip
        return Bars(*columns, console=self.console, refresh_per_second=2, speed_estimate_period=600)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A bar for the time of the block, which `__call__` moves."""
        self.head()
        with self.bars() as bars:
            task = bars.add_task(name, total=1.0, note="")
            self.report = lambda share, text: bars.update(task, completed=share, note=text)
            try:
                yield
                bars.update(task, completed=1.0)
            finally:
                self.report = lambda share, text: None
