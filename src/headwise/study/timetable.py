"""The timetable of a study: how long its builds still take, in words, and their graph as the lines of a dry run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.study.step import Build

SHORT = 1.0  # seconds: a build done sooner says nothing about the pace


class TimeLeft:
    """The time left. The pace is the seconds that the builds made so far took, over those estimated for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.begun: dict[str, float] = {}
        self.took = 0.0
        self.estimated = 0.0

    def begin(self, build: Build) -> None:
        self.begun[build.name] = self.clock()

    def end(self, build: Build, made: bool) -> None:
        """made: whether it was really done, so that it says something about the pace."""
        seconds = self.clock() - self.begun.pop(build.name)
        if made and seconds >= SHORT and build.seconds:
            self.took += seconds
            self.estimated += build.seconds

    def left(self, builds: Sequence[Build], slots: int) -> float:
        """Seconds until these builds are done: the work shared out to the slots, or the longest path through them."""
        pace = self.took / self.estimated if self.estimated else 1.0
        now = self.clock()
        cost: dict[str, float] = {}
        for build in builds:
            spent = now - self.begun.get(build.name, now)
            cost[build.name] = max(0.0, build.seconds * pace - spent)
        exclusive = sum(cost[build.name] for build in builds if build.exclusive)
        longest = sum(cost[name] for name in longest_path(builds, cost))
        return max((sum(cost.values()) - exclusive) / slots + exclusive, longest)

    def left_in_words(self, builds: Sequence[Build], slots: int) -> str:
        left = self.left(builds, slots)
        return f" · about {about(left)} left" if left >= SHORT else ""


def longest_path(builds: Sequence[Build], cost: Mapping[str, float]) -> list[str]:
    """The path through the graph that costs most, along builds that wait for each other (the critical path)."""
    parents: dict[str, list[str]] = {}
    for build in builds:
        parents[build.name] = [name for name in build.after if name in cost]
    total: dict[str, float] = {}
    before: dict[str, str | None] = {}
    for name in TopologicalSorter(parents).static_order():
        last = max(parents[name], key=lambda parent: total[parent], default=None)
        before[name] = last
        total[name] = cost[name] + (total[last] if last else 0.0)

    path: list[str] = []
    name_at = max(total, key=lambda name: total[name], default=None)
    while name_at:
        path.append(name_at)
        name_at = before[name_at]
    return path[::-1]


def plan_lines(builds: Sequence[Build]) -> list[str]:
    """Every build with its estimated cost and what it waits for, the sum by stage, and the longest path."""
    left = {build.name: build.seconds for build in builds if not build.done}
    cost = {build.name: "done" if build.done else cost_in_words(build.seconds) for build in builds}
    names, costs = max(map(len, cost), default=0), max(map(len, cost.values()), default=0)
    lines = []
    for build in builds:
        waits = [name for name in build.after if name in left and not build.done]
        after = f"  after {name_some_steps(waits)}" if waits else ""
        lines.append(
            f"{build.name:<{names}}  {cost[build.name]:>{costs}}{after}{'  (exclusive)' if build.exclusive else ''}"
        )
    done = len(builds) - len(left)
    count = f"{len(builds)} steps, {done} of them done" if done else f"{len(builds)} steps"
    if not any(left.values()):
        return [*lines, count]
    path = longest_path([build for build in builds if not build.done], left)
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


def name_some_steps(names: Sequence[str], most: int = 3) -> str:
    """A list that stays on its line: `a, b and 40 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
