"""Runs the builds of a study: whatever is ready is done, in the order of the list; a failure stays with its build.

The executor keeps nothing on disk: a build that was done before is found in the store, so a study that was stopped goes
on where it was. The executor of this file does one build at a time, in this process; `ray_executor` does several.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Protocol

from accelerate import PartialState
from safetensors import SafetensorError

from headwise.core.errors import OUR_MISTAKE, HeadwiseError
from headwise.core.progress import Progress
from headwise.study.step import Build

# Lists the builds of a study; called again after every build that failed or may reveal more of them.
ListBuilds = Callable[[], Sequence[Build]]
DoBuild = Callable[[Build], None]  # does a build


@dataclass
class StudyOutcome:
    """How a study ended: builds in the order in which they ended, a sentence for each that failed, and those that
    never ran because of them."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    error: Exception | None = None

    def check(self) -> None:
        """Raise what failed: a single failure as it was, with its build's name; several as one HeadwiseError."""
        if len(self.failed) == 1 and self.error:
            raise with_step_name(self.error, *self.failed)
        if self.failed:
            every = len(self.done) + len(self.failed) + len(self.skipped)
            reasons = " ".join(f"{name}: {sentence}" for name, sentence in self.failed.items())
            raise HeadwiseError(
                f"{len(self.failed)} of {every} steps failed, and {len(self.skipped)} that need them were left out "
                f"(the rest is done, and is kept when the same command is run again). {reasons}"
            )

    @property
    def ended(self) -> set[str]:
        return {*self.done, *self.failed, *self.skipped}


@dataclass(frozen=True)
class BuildResult:
    """One build's end. error and trace: what it raised, if anything."""

    name: str
    error: Exception | None = None
    trace: str = ""


class Executor(Protocol):
    """Who does the builds, at most `slots` at once."""

    slots: int

    def start(self, build: Build, start: float, end: float) -> None:
        """Begin a build, by which the study is done from the share `start` to `end`."""

    def wait(self) -> BuildResult:
        """The next build that ends."""


class LocalExecutor:
    """This process, one build at a time: `start` notes it, `wait` does it. With several processes, none may go on after a
    failure alone: it is raised."""

    slots = 1

    def __init__(self, work: DoBuild, progress: Progress) -> None:
        self.work = work
        self.progress = progress
        self.started: tuple[Build, float, float] | None = None

    def start(self, build: Build, start: float, end: float) -> None:
        self.started = build, start, end

    def wait(self) -> BuildResult:
        assert self.started is not None
        build, start, end = self.started
        error: Exception | None = None
        trace = ""
        with self.progress.step(build.words, start, end):
            try:
                self.work(build)
            except Exception as raised:
                if PartialState().num_processes > 1:
                    raise
                error = raised
                trace = traceback.format_exc()
        return BuildResult(build.name, error, trace)


def run_builds(
    list_builds: ListBuilds,
    executor: Executor,
    progress: Progress,
    after_build: Callable[[Build, StudyOutcome], None] = lambda build, outcome: None,
    forwards_of: Callable[[Build], float] = lambda build: 0.0,
) -> StudyOutcome:
    """Do every build once all it waits for is done; the first ready one of the list first.

    A build that raises fails: its sentence is kept, what waits for it is skipped, all else goes on. after_build: called
    after every build, before the builds are asked for again. forwards_of: how much work a build is, for the time left.
    Raises HeadwiseError when the builds form no graph.
    """
    outcome = StudyOutcome()
    forwards = 0.0  # of the builds that were made or run
    share = 0.0  # of the study, which never falls, whatever is revealed
    running: dict[str, Build] = {}
    unreported: list[BuildResult] = []
    unchanged = 0  # builds that the store held
    graph = checked_builds(list_builds())
    while True:
        build = next_ready(graph, outcome, running, executor.slots)
        if unreported and (build or running):
            report_failures(unreported, outcome, progress)
        if build:
            started = outcome.ended | running.keys()
            left = [other for other in graph if other.name not in started and not other.was_done]
            # What is done and what is left, as is known by now: models may still be added.
            whole = forwards + sum(map(forwards_of, left))
            forwards += 0.0 if build.was_done else forwards_of(build)
            # The bar may stand still when work is added, but never goes back.
            before, share = share, max(share, forwards / whole if whole else 0.0)
            running[build.name] = build
            executor.start(build, before, share)
        elif running:
            end = executor.wait()
            build = running.pop(end.name)
            if end.error is None:
                outcome.done.append(build.name)
                unchanged += build.was_done
            else:
                outcome.failed[build.name] = error_sentence(end.error)
                outcome.error = end.error
                unreported.append(end)
            after_build(build, outcome)
            # What was done when the builds were listed reveals no others.
            if end.error is not None or (build.may_add_steps and not build.was_done):
                graph = checked_builds(list_builds())
                skip(graph, outcome)
        else:
            # A single failure at the very end is left to the caller, who raises it.
            if len(outcome.failed) > 1:
                report_failures(unreported, outcome, progress)
            if unchanged:
                progress.say(f"  {unchanged} of {len(outcome.ended)} steps: as before")
            return outcome


def report_failures(
    unreported: list[BuildResult], outcome: StudyOutcome, progress: Progress
) -> None:
    """Say what failed, with the traceback of an unexpected error."""
    for end in unreported:
        if end.trace and not expected(end.error):
            progress.say(end.trace.rstrip())
        progress.say(f"  {end.name} failed: {outcome.failed[end.name]}")
    unreported.clear()


def checked_builds(builds: Sequence[Build]) -> Sequence[Build]:
    """The builds as they are; raises HeadwiseError where two have one name, one waits for none of them, or in a ring."""
    counts = Counter(build.name for build in builds)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise HeadwiseError(
            f"The study has several steps of the name {', '.join(twice)}. {OUR_MISTAKE}."
        )
    for build in builds:
        missing = sorted(set(build.waits_for) - counts.keys())
        if missing:
            raise HeadwiseError(
                f"The step {build.name} needs {', '.join(missing)}, but the study has no such step. {OUR_MISTAKE}."
            )
    build_order(builds)
    return builds


def build_order(builds: Iterable[Build]) -> list[str]:
    """The names, each after all it waits for."""
    try:
        return list(
            TopologicalSorter({build.name: build.waits_for for build in builds}).static_order()
        )
    except CycleError as error:
        ring = " → ".join(error.args[1])
        raise HeadwiseError(
            f"The study's steps wait for each other in a ring: {ring}. {OUR_MISTAKE}."
        ) from None


def next_ready(
    graph: Sequence[Build], outcome: StudyOutcome, running: Mapping[str, Build], slots: int
) -> Build | None:
    """The first build of the list that may start now. An exclusive one starts when nothing runs."""
    if len(running) >= slots or any(build.exclusive for build in running.values()):
        return None
    started = outcome.ended | running.keys()
    done = set(outcome.done)
    for build in graph:
        ready = build.name not in started and done.issuperset(build.waits_for)
        if ready and not (build.exclusive and running):
            return build
    return None


def skip(graph: Sequence[Build], outcome: StudyOutcome) -> None:
    """Leave out every build that waits, however far away, for a failed one."""
    waits_for = {build.name: build.waits_for for build in graph}
    for name in build_order(graph):
        # Grows as the loop goes on, in an order in which parents come first.
        without = {*outcome.failed, *outcome.skipped}
        if name not in outcome.ended and not without.isdisjoint(waits_for[name]):
            outcome.skipped.append(name)


def expected(error: Exception | None) -> bool:
    """Whether an error needs no traceback: a wrong input, or files that cannot be read or written."""
    return isinstance(error, HeadwiseError | OSError | SafetensorError)


def error_sentence(error: Exception) -> str:
    """An error in a sentence; an unexpected one with its type."""
    return str(error) if expected(error) else f"{type(error).__name__}: {error}"


def with_step_name(error: Exception, name: str) -> Exception:
    """The error itself, whose sentence says in which step it was; an unexpected one gets a note."""
    if isinstance(error, OSError) and error.strerror:
        error.strerror = f"{error.strerror}, in {name}"
    elif expected(error):
        error.args = (f"{name} failed: {error}",)
    else:
        error.add_note(f"{name} failed.")
    return error
