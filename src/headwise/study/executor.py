"""Runs the jobs of a study: whatever is ready is done, in the order of the list; a failure stays with its job.

A job is a step in its run (`step.py`); what people read says "step". `run_jobs` decides what comes next, an executor does
it. Nothing here is kept on disk: a job that was done before is started all the same, and finds in the store what it
wrote, so a study that was stopped goes on where it was. The executor of this file does one job at a time, in this
process; `ray_executor` does several.
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
from headwise.study.step import Job

# Lists the jobs of a study; called again after a job that failed, or whose result may add some.
ListJobs = Callable[[], Sequence[Job]]
DoJob = Callable[[Job], None]  # does a job


@dataclass
class StudyOutcome:
    """How a study ended, or how far it is: the names of jobs that are done, in the order in which they ended; a sentence
    for each that failed; those that were skipped, because they wait for a failed one. error: what the last failure
    raised."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    error: Exception | None = None

    def check(self) -> None:
        """Raise what failed: a single failure as it was, with its job's name; several as one HeadwiseError. Called once:
        the error itself gets the name."""
        if len(self.failed) == 1 and self.error:
            (name,) = self.failed
            raise with_step_name(self.error, name)
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
class JobEnd:
    """One job's end. error and trace: what it raised, if anything."""

    name: str
    error: Exception | None = None
    trace: str = ""


class Executor(Protocol):
    """Who does the jobs, at most `slots` at once."""

    slots: int

    def start(self, job: Job, share_before: float, share_after: float) -> None:
        """Begin a job. share_before, share_after: how much of the study is done before and after it."""

    def wait(self) -> JobEnd:
        """The next job that ends."""


class LocalExecutor:
    """This process, one job at a time: `start` notes it, `wait` does it. With several processes (torchrun) a failure is
    raised: if one went on alone, the others would wait for it for ever."""

    slots = 1

    def __init__(self, work: DoJob, progress: Progress) -> None:
        self.work = work
        self.progress = progress
        self.started: tuple[Job, float, float] | None = None

    def start(self, job: Job, share_before: float, share_after: float) -> None:
        self.started = job, share_before, share_after

    def wait(self) -> JobEnd:
        assert self.started is not None
        job, share_before, share_after = self.started
        error: Exception | None = None
        trace = ""
        with self.progress.step(job.words, share_before, share_after):
            try:
                self.work(job)
            except Exception as raised:
                if PartialState().num_processes > 1:
                    raise
                error = raised
                trace = traceback.format_exc()
        return JobEnd(job.name, error, trace)


def run_jobs(
    list_jobs: ListJobs,
    executor: Executor,
    progress: Progress,
    after_job: Callable[[Job, StudyOutcome], None] = lambda job, outcome: None,
    forwards_of: Callable[[Job], float] = lambda job: 0.0,
) -> StudyOutcome:
    """Do every job once all it waits for is done; the first ready one of the list first.

    A job that raises fails: its sentence is kept, what waits for it is skipped, all else goes on. after_job: called
    after every job, before what waits for it is skipped and the list is asked for again: by it alone the list learns of a
    failure. forwards_of: how much work a job is, in sentences read
    forward (`Step.forwards`), for the time left. Raises HeadwiseError when the jobs form no graph.
    """
    outcome = StudyOutcome()
    forwards = 0.0  # the work of the jobs that were started, without those that were done before
    share = 0.0  # of the study; never falls, whatever jobs are added
    running: dict[str, Job] = {}
    unsaid: list[
        JobEnd
    ] = []  # failures not yet said; a single one at the end is its caller's to raise
    unchanged = 0  # jobs that were done before
    graph = checked_jobs(list_jobs())
    while True:
        job = next_ready(graph, outcome, running, executor.slots)
        if unsaid and (job or running):
            say_failures(unsaid, outcome, progress)
        if job:
            started = outcome.ended | running.keys()
            left = [other for other in graph if other.name not in started and not other.done_before]
            # As far as is known by now: models may still be added.
            total = forwards + sum(map(forwards_of, left))
            forwards += 0.0 if job.done_before else forwards_of(job)
            # The bar may stand still when work is added, but never goes back.
            before, share = share, max(share, forwards / total if total else 0.0)
            running[job.name] = job
            executor.start(job, before, share)
        elif running:
            end = executor.wait()
            job = running.pop(end.name)
            if end.error is None:
                outcome.done.append(job.name)
                unchanged += job.done_before
            else:
                outcome.failed[job.name] = error_sentence(end.error)
                outcome.error = end.error
                unsaid.append(end)
            after_job(job, outcome)
            # Without a model whose job failed the others are compared; a result, such as a λ, may add models.
            if end.error is not None or (job.may_add_steps and not job.done_before):
                graph = checked_jobs(list_jobs())
                skip(graph, outcome)
        else:
            # A single failure at the very end is left to the caller, who raises it.
            if len(outcome.failed) > 1:
                say_failures(unsaid, outcome, progress)
            if unchanged:
                progress.say(f"  {unchanged} of {len(outcome.ended)} steps: as before")
            return outcome


def say_failures(unsaid: list[JobEnd], outcome: StudyOutcome, progress: Progress) -> None:
    """Say what failed, with the traceback of an unexpected error."""
    for end in unsaid:
        if end.trace and not expected(end.error):
            progress.say(end.trace.rstrip())
        progress.say(f"  {end.name} failed: {outcome.failed[end.name]}")
    unsaid.clear()


def checked_jobs(jobs: Sequence[Job]) -> Sequence[Job]:
    """The jobs as they are; raises HeadwiseError where two have one name, one waits for a job that is not among them, or
    some wait for each other in a ring."""
    counts = Counter(job.name for job in jobs)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise HeadwiseError(
            f"The study has several steps of the name {', '.join(twice)}. {OUR_MISTAKE}."
        )
    for job in jobs:
        missing = sorted(set(job.waits_for) - counts.keys())
        if missing:
            raise HeadwiseError(
                f"The step {job.name} needs {', '.join(missing)}, but the study has no such step. {OUR_MISTAKE}."
            )
    job_order(jobs)
    return jobs


def job_order(jobs: Iterable[Job]) -> list[str]:
    """The names, each after all it waits for."""
    try:
        return list(TopologicalSorter({job.name: job.waits_for for job in jobs}).static_order())
    except CycleError as error:
        ring = " → ".join(error.args[1])
        raise HeadwiseError(
            f"The study's steps wait for each other in a ring: {ring}. {OUR_MISTAKE}."
        ) from None


def next_ready(
    graph: Sequence[Job], outcome: StudyOutcome, running: Mapping[str, Job], slots: int
) -> Job | None:
    """The first job of the list that may start now. An exclusive one starts when nothing runs,
    and nothing starts while it runs."""
    if len(running) >= slots or any(job.exclusive for job in running.values()):
        return None
    started = outcome.ended | running.keys()
    done = set(outcome.done)
    for job in graph:
        ready = job.name not in started and done.issuperset(job.waits_for)
        if ready and not (job.exclusive and running):
            return job
    return None


def skip(graph: Sequence[Job], outcome: StudyOutcome) -> None:
    """Note as skipped every job that waits, however far away, for a failed one."""
    waits_for = {job.name: job.waits_for for job in graph}
    for name in job_order(graph):
        # Asked again for each: in this order what a job waits for was looked at before it.
        not_done = {*outcome.failed, *outcome.skipped}
        if name not in outcome.ended and not not_done.isdisjoint(waits_for[name]):
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
