"""Progress: the share of a long computation that is done (0 to 1), a word on what happens, and how both are shown."""

from __future__ import annotations

import math
import sys
import textwrap
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from headwise.core.errors import HeadwiseError, shown_value

LINE_SECONDS = 10.0  # seconds between the lines of a task where no bar can move
NOTE_SECONDS = 0.5  # seconds between two notes of how far a task is
OnProgress = Callable[
    [float, str], None
]  # gets the share that is done and a word: `progress` of every function


def silent(share: float, what: str) -> None:
    """Show nothing."""


def silent_share(share: float) -> None:
    """Show nothing of a batch."""


class Bars(RichProgress):
    """Bars of tasks whose total is 1. Where bars cannot move, such as in a log file, each task has a line now and then:
    the share that is done, the time it took, and the time left."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self.in_lines = not (self.console.is_interactive or self.console.is_jupyter)
        # When each task had its last line, in seconds of its own time.
        self.told: dict[TaskID, float] = {}

    def update(self, task_id: TaskID, **fields: Any) -> None:
        super().update(task_id, **fields)
        task = self._tasks[task_id]
        taken = task.elapsed or 0.0
        # Rich's own time left goes by the last seconds, in which work of uneven steps may stand still.
        history = task.fields.setdefault("history", [])
        if not history or taken - history[-1][0] >= NOTE_SECONDS:
            history.append((taken, task.percentage / 100))
        if not self.in_lines or task.finished or taken - self.told.get(task_id, 0.0) < LINE_SECONDS:
            return
        self.told[task_id] = taken
        left = time_left(history, taken)
        words = [f"{task.description}: {task.percentage:.0f}% after {clock(taken)}"]
        words += [f"{clock(left)} left"] if left is not None else []
        words += [str(task.fields["note"])] if task.fields.get("note") else []
        self.console.print(f"  {', '.join(words)}", markup=False, soft_wrap=True)


def time_left(
    history: Sequence[tuple[float, float]], now: float, whole: float = 1.0
) -> float | None:
    """The seconds that are left, at the pace of the later half of the time so far; None before there is a pace.

    history: at some moments, in seconds, how much of the whole was done.
    """
    if not history:
        return None
    seconds, done = history[-1]
    # The later half: early steps are often slower, and the last seconds alone say too little.
    place = bisect(history, (seconds / 2, math.inf))
    before, done_before = history[place - 1] if place else (0.0, 0.0)
    if seconds < 1 or done <= done_before:
        return None
    pace = (seconds - before) / (done - done_before)
    return max(0.0, pace * (whole - done) - (now - seconds))


class TimeLeftColumn(ProgressColumn):
    """The time left of each task."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        history = task.fields.get("history", [])
        left = 0.0 if task.finished else time_left(history, task.elapsed or 0.0)
        return Text("-:--:--" if left is None else clock(left), style="progress.remaining")


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: `0:05:12`."""
    return str(timedelta(seconds=round(seconds)))


def parts(on_progress: OnProgress, weights: Mapping[str, float]) -> dict[str, OnProgress]:
    """Progress of several parts, one after another, as progress of the whole. weights: how much work each is."""
    total = sum(weights.values()) or 1.0  # of no work, no time
    done = 0.0
    progress_of = {}
    for name, weight in weights.items():
        progress_of[name] = part(on_progress, done / total, (done + weight) / total)
        done += weight
    return progress_of


def about(seconds: float) -> str:
    """A rough duration: `40 s`, `12 min`, `1 h 10 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    whole = round(seconds / 60)
    return f"{whole} min" if whole < 60 else f"{whole // 60} h {whole % 60} min"


def write(console: Console, text: str, style: str = "") -> None:
    """Print lines. On a terminal they break between words, and go on further in; elsewhere they stay whole."""
    if console.is_terminal:
        text = "\n".join(fitted(line, console.width) for line in text.split("\n"))
    console.print(text, markup=False, emoji=False, soft_wrap=True, style=style)


def fitted(line: str, width: int) -> str:
    """A line that breaks between words; what follows is two characters further in."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def refuse_other_progress(on_progress: object) -> None:
    """Raise HeadwiseError for what was given in place of a function for progress."""
    if not callable(on_progress):
        raise HeadwiseError(
            f"progress is {shown_value(on_progress)}: give a function that gets the share that is done and a word, or leave "
            "it out for a bar."
        )


@contextmanager
def without_bars() -> Iterator[None]:
    """A block in which datasets and transformers show no bars of their own; those of downloads stay."""
    # Libraries that are not loaded show none, and take seconds to load.
    datasets = sys.modules.get("datasets")
    transformers = sys.modules.get("transformers.utils.logging")
    hub = sys.modules.get("huggingface_hub.utils")
    of_datasets = bool(datasets and not datasets.are_progress_bars_disabled())
    of_transformers = bool(transformers and transformers.is_progress_bar_enabled())
    of_downloads = bool(hub and not hub.are_progress_bars_disabled())
    if datasets and of_datasets:
        datasets.disable_progress_bars()
    if transformers and of_transformers:
        transformers.disable_progress_bar()  # those of downloads, too
    if hub and of_downloads:
        hub.enable_progress_bars()
    try:
        yield
    finally:
        if datasets and of_datasets:
            datasets.enable_progress_bars()
        if transformers and of_transformers:
            transformers.enable_progress_bar()
        if hub and not of_downloads:
            hub.disable_progress_bars()


@contextmanager
def shown(name: str, on_progress: OnProgress | None) -> Iterator[OnProgress]:
    """The caller's function; where there is none, a bar for the time of the block, on the error stream."""
    if on_progress is not None:
        refuse_other_progress(on_progress)
        yield on_progress
        return
    bars = Bars(
        *Bars.get_default_columns()[:-1],
        TimeLeftColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    bars.disable = bars.in_lines  # a library call is silent in a log file
    with bars:
        row = bars.add_task(name, total=1.0)
        yield lambda share, what: bars.update(
            row, completed=share, description=f"{name}: {what}" if what else name
        )


def part(on_progress: OnProgress, start: float, end: float) -> OnProgress:
    """Progress of a part, as progress of the whole from `start` to `end`."""
    return lambda share, what: on_progress(start + (end - start) * share, what)


def turn(on_progress: OnProgress, number: int, count: int) -> OnProgress:
    """Progress of one of several equal parts; the first has the number 0."""
    return part(on_progress, number / count, (number + 1) / count)


class Progress:
    """One live line on the error stream; silent when `quiet`. Call it with the share of the present task."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.on_progress: OnProgress = silent
        self.live: Bars | None = None  # while there is a bar
        # What a step is called and where it starts, held back until something is made in it.
        self.heading: tuple[str, float] | None = None

    def __call__(self, share: float, what: str) -> None:
        self.on_progress(share, what)

    def say(self, text: str) -> None:
        write(self.console, text)

    def recommend(self, what: str, command: str) -> None:
        """Say a command to try. It breaks nowhere, so that it can be copied."""
        apart = self.console.is_terminal and len(f"{what} {command}") > self.console.width
        self.console.print(
            f"{what}\n  {command}" if apart else f"{what} {command}", markup=False, soft_wrap=True
        )

    def expect(self, forecast: Callable[[], object]) -> None:
        """Say what a command will take before it starts. forecast: called only where somebody reads it."""
        if not self.console.quiet:
            self.say(str(forecast()))

    def bars(self) -> Bars:
        """Bars without any task yet: each has a share, the time it takes, and a note. What does not fit on the line is
        cut from the name and from the note."""
        name = Column(no_wrap=True, width=max(22, self.console.width // 2 - 8))  # so nothing jumps
        share, time = Column(min_width=4), Column(no_wrap=True, min_width=7)
        columns = (
            TextColumn("  {task.description}", table_column=name),
            BarColumn(8, table_column=Column(min_width=8)),
            TextColumn("{task.percentage:>3.0f}%", table_column=share),
            TimeElapsedColumn(time),
            TextColumn("left"),
            TimeLeftColumn(table_column=time),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, ratio=1)),
        )
        return Bars(
            *columns, console=self.console, refresh_per_second=2, expand=True, transient=True
        )

    @contextmanager
    def bar(self, name: str) -> Iterator[None]:
        """A bar for the time of the block, which `__call__` moves. A block inside another one has none of its own."""
        if self.live is not None:
            if self.heading:
                words, start = self.heading
                self.heading = None
                (row, *_) = self.live.task_ids
                self.live.told[row] = -math.inf  # its line is due
                self.live.update(row, description=words, completed=start, note="")
            yield
            return
        with self.bars() as bars:
            row = bars.add_task(name, total=1.0, note="")
            self.on_progress = lambda share, what: bars.update(row, completed=share, note=what)
            self.live = bars
            try:
                yield
            finally:
                self.live = None
                self.on_progress = silent

    @contextmanager
    def step(self, name: str, start: float, end: float) -> Iterator[None]:
        """A step of the work that the bar shows, which is done from the share `start` to `end` by it. It has the bar's line
        once something is made in it."""
        whole = self.on_progress
        self.on_progress = part(whole, start, end)
        self.heading = name, start
        try:
            yield
        finally:
            self.heading = None
            self.on_progress = whole


class InnerProgress(Progress):
    """The progress of work inside a call: it shows and says nothing itself, and only moves that of the call."""

    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__(quiet=True)
        self.on_progress = on_progress

    @contextmanager
    def bar(self, name: str) -> Iterator[None]:
        yield
