"""A study as a graph of nodes: whatever is ready is done, in the order of the list; a failure stays with its node.

The engine keeps nothing on disk. A node that was finished before returns at once (`RunFolder.stage` has its files):
a graph that was stopped goes on where it was. This process does one node at a time; `cluster` does several, elsewhere.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Protocol

from accelerate import PartialState
from safetensors import SafetensorError

from headwise.errors import HeadwiseError
from headwise.study.progress import Progress

SHORT = 1.0  # seconds: a node done sooner says nothing about the pace


@dataclass(frozen=True)
class Node:
    """One step of a study: what it waits for, about how many seconds it takes, whether it wants the machine to itself
    (timings), and whether results of it are there, whatever they were made from.
    """

    name: str
    after: tuple[str, ...] = ()
    seconds: float = 0.0
    alone: bool = False
    done: bool = False


Nodes = Callable[[], Sequence[Node]]  # asked anew after every node: what is finished may reveal more of them
Work = Callable[[str], None]  # does the node of that name
Note = Callable[[str, str], None]  # is told which node failed, and why, before the nodes are asked for again


@dataclass
class Outcome:
    """What became of a graph: nodes in the order they ended, a sentence for each that failed, a reason for each that
    therefore never ran.
    """

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    error: Exception | None = None

    def check(self) -> None:
        """Raise what failed: a single failure as it was, with its node's name; several as one HeadwiseError."""
        if len(self.failed) == 1 and self.error:
            raise with_place(self.error, *self.failed)
        if self.failed:
            every = len(self.done) + len(self.failed) + len(self.skipped)
            reasons = " ".join(f"{name}: {sentence}" for name, sentence in self.failed.items())
            raise HeadwiseError(
                f"{len(self.failed)} of {every} nodes failed, and {len(self.skipped)} that wait for them were left out "
                f"(the rest is done, and is kept when the same command is run again). {reasons}"
            )

    @property
    def ended(self) -> set[str]:
        return {*self.done, *self.failed, *self.skipped}


@dataclass(frozen=True)
class Ended:
    """One node's end. error and trace: what it raised, if anything. made: False where all its files were there."""

    name: str
    error: Exception | None = None
    trace: str = ""
    made: bool = True


class Crew(Protocol):
    """Who does the nodes, at most `slots` at once."""

    slots: int

    def start(self, node: Node, heading: str) -> None:
        """Begin a node; the heading is shown once something is made in it."""

    def wait(self) -> Ended:
        """The next node that ends."""


class Here:
    """This process, one node at a time. Of several processes none may go on after a failure alone: it is raised."""

    slots = 1

    def __init__(self, work: Work, progress: Progress) -> None:
        self.work, self.progress = work, progress
        self.name = ""

    def start(self, node: Node, heading: str) -> None:
        self.name = node.name
        self.progress.ahead = heading

    def wait(self) -> Ended:
        error, trace = None, ""
        try:
            self.work(self.name)
        except Exception as raised:
            if PartialState().num_processes > 1:
                raise
            error, trace = raised, traceback.format_exc()
        made, self.progress.ahead = not self.progress.ahead, ""
        return Ended(self.name, error, trace, made)


def run_graph(
    nodes: Nodes, work: Work, progress: Progress, crew: Crew | None = None, note: Note = lambda name, why: None
) -> Outcome:
    """Do every node once all it waits for is done; the first ready one of the list first.

    A node that raises fails: its sentence is kept, what waits for it is skipped, all else goes on. crew: who does the
    work instead of this process. note: keeps a failure where `nodes` looks, for a process that was killed cannot.
    Raises HeadwiseError when the nodes form no graph.
    """
    crew = crew or Here(work, progress)
    course = Course(progress)
    outcome, running = course.outcome, course.running
    graph = checked(nodes())
    while True:
        node = next_ready(graph, outcome, running, crew.slots)
        if course.untold and (node or running):
            course.tell()
        if node:
            heading = course.heading(node, graph, crew.slots)
            course.begin(node)
            crew.start(node, heading)
        elif running:
            ended = crew.wait()
            course.end(ended)
            if ended.error is not None:
                note(ended.name, outcome.failed[ended.name])
            graph = checked(nodes())
            skip(graph, outcome)
        else:
            course.close()
            return outcome


def checked(nodes: Sequence[Node]) -> Sequence[Node]:
    """The nodes as they are; raises HeadwiseError where two have one name, one waits for none of them, or in a ring."""
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise HeadwiseError(
            f"The study has several nodes of the name {', '.join(twice)}: every name may be there once."
        )
    for node in nodes:
        if missing := sorted(set(node.after) - set(names)):
            raise HeadwiseError(f"The node {node.name} waits for {', '.join(missing)}, but the study has no such node.")
    in_order(nodes)
    return nodes


def in_order(nodes: Iterable[Node]) -> list[str]:
    """The names, each after all it waits for."""
    try:
        return list(TopologicalSorter({node.name: node.after for node in nodes}).static_order())
    except CycleError as error:
        ring = " → ".join(error.args[1])
        raise HeadwiseError(f"The study's nodes wait for each other in a ring: {ring}.") from None


def next_ready(graph: Sequence[Node], outcome: Outcome, running: Mapping[str, Node], slots: int) -> Node | None:
    """The first node of the list that may start now. One that wants the machine alone starts when nothing runs."""
    if len(running) >= slots or any(node.alone for node in running.values()):
        return None
    begun, done = outcome.ended | running.keys(), set(outcome.done)
    ready = (node for node in graph if node.name not in begun and done.issuperset(node.after))
    return next((node for node in ready if not (node.alone and running)), None)


def skip(graph: Sequence[Node], outcome: Outcome) -> None:
    """Leave out every node that waits, however far away, for a failed one."""
    after = {node.name: node.after for node in graph}
    for name in in_order(graph):
        lost = next((parent for parent in after[name] if parent in outcome.failed or parent in outcome.skipped), None)
        if lost and name not in outcome.ended:
            outcome.skipped[name] = f"{lost} failed" if lost in outcome.failed else outcome.skipped[lost]


class Course:
    """How far a graph is, how long the rest will take, and what of it is told.

    The pace is the seconds that the nodes made so far took, over those that were estimated for them.
    """

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress, self.clock = progress, clock
        self.outcome = Outcome()
        self.running: dict[str, Node] = {}
        self.begun: dict[str, float] = {}
        self.untold: list[Ended] = []
        self.as_before, self.took, self.estimated = 0, 0.0, 0.0

    def begin(self, node: Node) -> None:
        self.running[node.name], self.begun[node.name] = node, self.clock()

    def end(self, ended: Ended) -> None:
        """Note how a node ended."""
        node, outcome = self.running.pop(ended.name), self.outcome
        seconds = self.clock() - self.begun.pop(ended.name)
        if ended.error is None:
            outcome.done.append(node.name)
            self.as_before += not ended.made
            if ended.made and seconds >= SHORT and node.seconds:
                self.took, self.estimated = self.took + seconds, self.estimated + node.seconds
        else:
            outcome.failed[node.name] = sentence(ended.error)
            outcome.error = ended.error
            self.untold.append(ended)

    def heading(self, node: Node, graph: Sequence[Node], slots: int) -> str:
        """What is shown above a node, such as `[5 of 40] prune/lambda-0.01 · about 1 h 10 min left`."""
        place = f"[{len(self.outcome.ended) + len(self.running) + 1} of {len(graph)}] {node.name}"
        left = self.left(graph, slots)
        return f"{place} · about {about(left)} left" if left >= SHORT else place

    def left(self, graph: Sequence[Node], slots: int) -> float:
        """Seconds until all is done: the work shared out to the slots, or the longest way through what is left."""
        pace, now, ended = self.took / self.estimated if self.estimated else 1.0, self.clock(), self.outcome.ended
        rest = [node for node in graph if node.name not in ended]
        cost = {n.name: max(0.0, n.seconds * pace - (now - self.begun.get(n.name, now))) for n in rest}
        alone = sum(cost[node.name] for node in rest if node.alone)
        longest = sum(cost[name] for name in longest_way(rest, cost))
        return max((sum(cost.values()) - alone) / slots + alone, longest)

    def tell(self) -> None:
        """Say what failed, with the way to an error that nobody foresaw."""
        for ended in self.untold:
            if ended.trace and not foreseen(ended.error):
                self.progress.say(ended.trace.rstrip())
            self.progress.say(f"  {ended.name} failed: {self.outcome.failed[ended.name]}")
        self.untold.clear()

    def close(self) -> None:
        """The last words. A single failure at the very end is left to the caller, who raises it."""
        if len(self.outcome.failed) > 1:
            self.tell()
        if self.as_before:
            self.progress.say(f"  {self.as_before} of {len(self.outcome.ended)} nodes: as before")


def foreseen(error: Exception | None) -> bool:
    """Whether an error needs no traceback: a wrong input, or files that cannot be read or written."""
    return isinstance(error, HeadwiseError | OSError | SafetensorError)


def sentence(error: Exception) -> str:
    """An error in a sentence; one that nobody foresaw with its type."""
    return str(error) if foreseen(error) else f"{type(error).__name__}: {error}"


def with_place(error: Exception, name: str) -> Exception:
    """The error itself, whose sentence says in which node it was; one that nobody foresaw with a note to its way."""
    if isinstance(error, OSError) and error.strerror:
        error.strerror = f"{error.strerror}, in {name}"
    elif foreseen(error):
        error.args = (f"{name} failed: {error}",)
    else:
        error.add_note(f"{name} failed.")
    return error


def about(seconds: float) -> str:
    """A rough duration: `40 s`, `12 min`, `1 h 10 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    whole = round(seconds / 60)
    return f"{whole} min" if whole < 60 else f"{whole // 60} h {whole % 60} min"


def longest_way(nodes: Sequence[Node], cost: Mapping[str, float]) -> list[str]:
    """The way through the graph that costs most in all, along nodes that wait for each other (the critical path)."""
    known = {node.name: [parent for parent in node.after if parent in cost] for node in nodes}
    total, before = dict[str, float](), dict[str, str | None]()
    for name in in_order(Node(name, tuple(after)) for name, after in known.items()):
        before[name] = max(known[name], key=lambda parent: total[parent], default=None)
        last = before[name]
        total[name] = cost[name] + (total[last] if last else 0.0)
    way, at = list[str](), max(total, key=lambda name: total[name], default=None)
    while at:
        way.append(at)
        at = before[at]
    return way[::-1]


def plan_lines(nodes: Sequence[Node]) -> list[str]:
    """The graph in words: every node with its estimated cost and what it waits for, the sum, and the longest way."""
    graph = checked(nodes)
    left = {node.name: node.seconds for node in graph if not node.done}
    cost = {node.name: "done" if node.done else costs_about(node.seconds) for node in graph}
    names, costs = max(map(len, cost), default=0), max(map(len, cost.values()), default=0)
    lines = []
    for node in graph:
        waits = [name for name in node.after if name in left and not node.done]
        after = f"  after {shortened(waits)}" if waits else ""
        lines.append(f"{node.name:<{names}}  {cost[node.name]:>{costs}}{after}{'  (alone)' if node.alone else ''}")
    done = len(graph) - len(left)
    count = f"{len(graph)} nodes, {done} of them done" if done else f"{len(graph)} nodes"
    if not any(left.values()):
        return [*lines, count]
    way = longest_way([node for node in graph if not node.done], left)
    return [
        *lines,
        f"{count}, {'the rest ' if done else ''}one after another: about {about(sum(left.values()))}",
        f"the longest way: about {about(sum(left[name] for name in way))} ({' → '.join(way)})",
    ]


def costs_about(seconds: float) -> str:
    return f"about {about(seconds)}" if seconds else "–"


def shortened(names: Sequence[str], most: int = 3) -> str:
    """A list that stays on its line: `a, b and 40 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
