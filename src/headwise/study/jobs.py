"""The jobs of a study: how long they still take, in words, and their graph as the lines of a dry run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

SHORT = 1.0  # seconds: a job done sooner says nothing about the pace


@dataclass(frozen=True)
class Job:
    """A task of one run, as the executor sees it: what it waits for, about how many seconds it takes, whether it wants
    the machine to itself, whether the store holds it. folder: of its run."""

    name: str
    after: tuple[str, ...] = ()
    seconds: float = 0.0
    exclusive: bool = False
    done: bool = False
    folder: str = "."
    task: Any = None


class Eta:
    """The time left. The pace is the seconds that the jobs made so far took, over those estimated for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.begun: dict[str, float] = {}
        self.took, self.estimated = 0.0, 0.0

    def begin(self, job: Job) -> None:
        self.begun[job.name] = self.clock()

    def end(self, job: Job, made: bool) -> None:
        """made: whether it was really done, so that it says something about the pace."""
        seconds = self.clock() - self.begun.pop(job.name)
        if made and seconds >= SHORT and job.seconds:
            self.took, self.estimated = self.took + seconds, self.estimated + job.seconds

    def left(self, jobs: Sequence[Job], slots: int) -> float:
        """Seconds until these jobs are done: the work shared out to the slots, or the longest path through them."""
        pace, now = self.took / self.estimated if self.estimated else 1.0, self.clock()
        cost = {
            job.name: max(0.0, job.seconds * pace - (now - self.begun.get(job.name, now)))
            for job in jobs
        }
        exclusive = sum(cost[job.name] for job in jobs if job.exclusive)
        longest = sum(cost[name] for name in longest_path(jobs, cost))
        return max((sum(cost.values()) - exclusive) / slots + exclusive, longest)

    def left_in_words(self, jobs: Sequence[Job], slots: int) -> str:
        left = self.left(jobs, slots)
        return f" · about {about(left)} left" if left >= SHORT else ""


def longest_path(jobs: Sequence[Job], cost: Mapping[str, float]) -> list[str]:
    """The path through the graph that costs most, along jobs that wait for each other (the critical path)."""
    known = {job.name: [parent for parent in job.after if parent in cost] for job in jobs}
    total, before = dict[str, float](), dict[str, str | None]()
    for name in TopologicalSorter(known).static_order():
        last = before[name] = max(known[name], key=lambda parent: total[parent], default=None)
        total[name] = cost[name] + (total[last] if last else 0.0)
    path, at = list[str](), max(total, key=lambda name: total[name], default=None)
    while at:
        path.append(at)
        at = before[at]
    return path[::-1]


def plan_lines(jobs: Sequence[Job]) -> list[str]:
    """Every job with its estimated cost and what it waits for, the sum by stage, and the longest path."""
    left = {job.name: job.seconds for job in jobs if not job.done}
    cost = {job.name: "done" if job.done else cost_in_words(job.seconds) for job in jobs}
    names, costs = max(map(len, cost), default=0), max(map(len, cost.values()), default=0)
    lines = []
    for job in jobs:
        waits = [name for name in job.after if name in left and not job.done]
        after = f"  after {shortened(waits)}" if waits else ""
        lines.append(
            f"{job.name:<{names}}  {cost[job.name]:>{costs}}{after}{'  (exclusive)' if job.exclusive else ''}"
        )
    done = len(jobs) - len(left)
    count = f"{len(jobs)} tasks, {done} of them done" if done else f"{len(jobs)} tasks"
    if not any(left.values()):
        return [*lines, count]
    path = longest_path([job for job in jobs if not job.done], left)
    return [
        *lines,
        f"{count}, {'the rest ' if done else ''}one after another: about {about(sum(left.values()))}",
        f"the longest path: about {about(sum(left[name] for name in path))} ({' → '.join(path)})",
    ]


def about(seconds: float) -> str:
    """A rough duration: `40 s`, `12 min`, `1 h 10 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    whole = round(seconds / 60)
    return f"{whole} min" if whole < 60 else f"{whole // 60} h {whole % 60} min"


def cost_in_words(seconds: float) -> str:
    return f"about {about(seconds)}" if seconds else "–"


def shortened(names: Sequence[str], most: int = 3) -> str:
    """A list that stays on its line: `a, b and 40 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
