"""The engine of a study: order, failures, rings, nodes that are revealed, the estimate, and what is told."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from accelerate import PartialState
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from headwise.errors import HeadsMissing, HeadwiseError
from headwise.study.graph import Course, Ended, Node, Outcome, about, longest_way, plan_lines, run_graph
from headwise.study.progress import Progress


class Told(Progress):
    """Progress whose lines can be read; bars go nowhere."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def doing(
    nodes: Sequence[Node], fail: dict[str, Exception] | None = None, progress: Progress | None = None
) -> tuple[list[str], Outcome]:
    """Run a fixed list of nodes: names in the order they were worked on, and the outcome."""
    worked: list[str] = []

    def work(name: str) -> None:
        worked.append(name)
        if fail and name in fail:
            raise fail[name]

    return worked, run_graph(lambda: nodes, work, progress or Told())


DIAMOND = [Node("end", ("left", "right")), Node("right", ("start",)), Node("left", ("start",)), Node("start")]


class TestOrder:
    def test_the_first_ready_node_of_the_list(self) -> None:
        worked, outcome = doing(DIAMOND)
        assert worked == ["start", "right", "left", "end"] == outcome.done
        outcome.check()

    def test_nothing_to_do(self) -> None:
        assert doing([]) == ([], Outcome())

    def test_what_is_finished_reveals_more(self) -> None:
        """A sweep that fills in: every point shows the next, until there are four."""
        points: list[str] = []

        def nodes() -> list[Node]:
            found = [Node(f"point-{i}", ("train",)) for i in range(min(4, len(points)) or 1)]
            return [Node("train"), *found, Node("report", tuple(node.name for node in found))]

        outcome = run_graph(nodes, points.append, Told())
        assert outcome.done == points == ["train", "point-0", "point-1", "point-2", "point-3", "report"]


class TestFailure:
    def test_only_what_waits_for_it_is_lost(self) -> None:
        nodes = [Node("a"), Node("b", ("a",)), Node("c", ("b",)), Node("d"), Node("e", ("c", "d")), Node("f", ("d",))]
        worked, outcome = doing(nodes, {"b": HeadwiseError("no room for b")})
        assert worked == ["a", "b", "d", "f"] and outcome.done == ["a", "d", "f"]
        assert outcome.failed == {"b": "no room for b"}
        assert outcome.skipped == {"c": "b failed", "e": "b failed"}

    def test_a_single_failure_comes_back_as_itself_and_names_its_node(self) -> None:
        error = HeadsMissing("64 of 96 heads were seen.")
        outcome = doing(DIAMOND, {"right": error})[1]
        with pytest.raises(HeadsMissing, match=r"^right failed: 64 of 96 heads were seen\.$") as caught:
            outcome.check()
        assert caught.value is error
        disk = OSError(28, "No space left on device", "model")
        with pytest.raises(OSError, match="No space left on device, in right: 'model'"):
            doing(DIAMOND, {"right": disk})[1].check()
        assert disk.errno == 28
        with pytest.raises(ZeroDivisionError) as unforeseen:
            doing(DIAMOND, {"right": ZeroDivisionError("odd")})[1].check()
        assert unforeseen.value.__notes__ == ["right failed."]

    def test_it_is_noted_before_the_nodes_are_asked_for_again(self) -> None:
        """Whoever lists the nodes leaves out what will never be there; a killed process cannot tell it itself."""
        noted: dict[str, str] = {}

        def nodes() -> list[Node]:
            branches = [name for name in ("left", "right") if name not in noted]
            return [Node("left"), Node("right"), Node("end", tuple(branches))]

        fail = {"right"}
        crew = Others(1, lambda running: running[0], fail)
        outcome = run_graph(nodes, lambda name: None, Told(), crew, noted.__setitem__)
        assert noted == outcome.failed == {"right": "right is bad"}
        assert outcome.done == ["left", "end"] and not outcome.skipped

    def test_several_failures_are_all_named(self) -> None:
        outcome = doing(DIAMOND, {"left": HeadwiseError("Too short."), "right": ValueError("odd")})[1]
        with pytest.raises(
            HeadwiseError, match=r"2 of 4 nodes failed, and 1 .* right: ValueError: odd left: Too short"
        ):
            outcome.check()

    def test_an_unforeseen_error_is_told_with_its_way(self) -> None:
        told = Told()
        outcome = doing(DIAMOND, {"right": ValueError("odd")}, told)[1]
        assert outcome.failed == {"right": "ValueError: odd"}
        assert told.lines[0].startswith("Traceback") and "raise fail[name]" in told.lines[0]
        assert told.lines[1] == "  right failed: ValueError: odd"

    def test_a_full_disk_needs_no_traceback(self) -> None:
        told = Told()
        doing(DIAMOND, {"right": OSError(28, "No space left on device")}, told)
        assert told.lines[0] == "  right failed: [Errno 28] No space left on device"

    def test_a_last_failure_is_left_to_the_caller(self) -> None:
        told = Told()
        doing(DIAMOND, {"start": HeadwiseError("The text is empty.")}, told)
        assert told.lines == []

    def test_a_stop_by_hand_goes_through(self) -> None:
        def work(name: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_graph(lambda: DIAMOND, work, Told())

    def test_processes_do_not_part_ways(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(PartialState(), "num_processes", 2)
        with pytest.raises(HeadwiseError, match="no room"):
            doing([Node("a"), Node("b")], {"a": HeadwiseError("no room")})


class TestNoGraph:
    @pytest.mark.parametrize(
        ("nodes", "told"),
        [
            (
                [Node("a", ("c",)), Node("b", ("a",)), Node("c", ("b",))],
                "ring: (a → b → c|b → c → a|c → a → b)",
            ),
            ([Node("a", ("a",))], "ring: a → a"),
            ([Node("a"), Node("b"), Node("a")], "several nodes of the name a:"),
            ([Node("a", ("z", "y"))], "a waits for y, z, but"),
        ],
        ids=["ring", "itself", "twice", "missing"],
    )
    def test_it_is_refused_by_name(self, nodes: list[Node], told: str) -> None:
        with pytest.raises(HeadwiseError, match=told):
            run_graph(lambda: nodes, lambda name: None, Told())


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    """Random graphs without a ring, their list in any order."""
    count = draw(st.integers(1, 9))
    nodes = []
    for i in range(count):
        before = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        nodes.append(Node(str(i), tuple(map(str, sorted(before))), draw(st.integers(0, 9)), draw(st.booleans())))
    return draw(st.permutations(nodes))


class Others:
    """A crew of several that does nothing; who ends next is drawn. Remembers what ran beside what."""

    def __init__(self, slots: int, draw: Callable[[list[str]], str], fail: set[str]) -> None:
        self.slots, self.draw, self.fail = slots, draw, fail
        self.running: dict[str, Node] = {}
        self.log: list[tuple[str, str]] = []

    def start(self, node: Node, heading: str) -> None:
        self.running[node.name] = node
        self.log.append(("start", node.name))
        assert len(self.running) <= self.slots
        assert len(self.running) == 1 or not any(n.alone for n in self.running.values())

    def wait(self) -> Ended:
        name = self.draw(sorted(self.running))
        del self.running[name]
        self.log.append(("end", name))
        return Ended(name, HeadwiseError(f"{name} is bad") if name in self.fail else None)


@settings(deadline=None, max_examples=60)
@given(graphs(), st.integers(1, 3), st.data())
def test_any_graph_with_any_failures(nodes: list[Node], slots: int, data: st.DataObject) -> None:
    """Every node after all it waits for; lost is exactly what is reached from a failure; the rest is done."""
    fail = data.draw(st.sets(st.sampled_from([node.name for node in nodes]), max_size=2))
    crew = Others(slots, lambda running: data.draw(st.sampled_from(running)), fail)
    outcome = run_graph(lambda: nodes, lambda name: None, Told(), crew)
    for node in nodes:
        if ("start", node.name) in crew.log:
            begun = crew.log.index(("start", node.name))
            assert all(crew.log.index(("end", parent)) < begun and parent not in fail for parent in node.after)
    lost: set[str] = set()
    for _ in nodes:  # the slow way: as often as there are nodes
        lost |= {node.name for node in nodes if set(node.after) & (lost | fail)}
    assert set(outcome.skipped) == lost and set(outcome.failed) == fail - lost
    assert set(outcome.done) == {node.name for node in nodes} - lost - fail
    assert len(crew.log) == 2 * (len(outcome.done) + len(outcome.failed))


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_in_one_process_the_first_ready_one_of_the_list(nodes: list[Node]) -> None:
    worked, done = doing(nodes)[0], list[str]()
    for name in worked:
        assert name == next(n.name for n in nodes if n.name not in done and set(n.after) <= set(done))
        done.append(name)


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_the_longest_way_is_the_longest_of_all(nodes: list[Node]) -> None:
    by_name = {node.name: node for node in nodes}

    def most(node: Node) -> float:
        return node.seconds + max((most(by_name[parent]) for parent in node.after), default=0)

    way = longest_way(nodes, {node.name: node.seconds for node in nodes})
    assert sum(by_name[name].seconds for name in way) == max(map(most, nodes))
    assert all(before in by_name[after].after for before, after in pairwise(way))


class TestTold:
    NODES = (Node("train", (), 100), Node("prune/a", ("train",), 50), Node("prune/b", ("train",), 50),
             Node("speed", ("prune/a", "prune/b"), 10, alone=True))  # fmt: skip

    def course(self) -> tuple[Course, Clock]:
        clock = Clock()
        return Course(Told(), clock), clock

    def test_the_estimate_follows_the_pace(self) -> None:
        """100 estimated seconds took 200: the 110 that are left are 220."""
        course, clock = self.course()
        assert course.heading(self.NODES[0], self.NODES, 1) == "[1 of 4] train · about 4 min left"
        assert course.left(self.NODES, 1) == 210
        course.begin(self.NODES[0])
        clock.now = 50
        assert course.left(self.NODES, 1) == 160
        clock.now = 200
        course.end(Ended("train"))
        assert course.left(self.NODES, 1) == 220
        assert course.heading(self.NODES[1], self.NODES, 1) == "[2 of 4] prune/a · about 4 min left"

    def test_two_at_once_take_half_the_time_but_alone_is_alone(self) -> None:
        course, clock = self.course()
        assert course.left(self.NODES, 2) == 160  # train, one of the two, speed: the longest way
        course.begin(self.NODES[0])
        clock.now = 100
        course.end(Ended("train"))
        assert course.left(self.NODES, 2) == (50 + 50) / 2 + 10

    @pytest.mark.parametrize("ended", [Ended("train", made=False), Ended("train", HeadwiseError("no"))])
    def test_cached_and_failed_nodes_say_nothing_about_the_pace(self, ended: Ended) -> None:
        course, clock = self.course()
        course.begin(self.NODES[0])
        clock.now = 5
        course.end(ended)
        assert course.left(self.NODES, 1) == 110

    def test_without_estimates_there_is_only_the_place(self) -> None:
        course, _ = self.course()
        nodes = [Node("a"), Node("b")]
        assert course.heading(nodes[0], nodes, 1) == "[1 of 2] a"

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(0.2, "1 s"), (89, "89 s"), (90, "2 min"), (59 * 60, "59 min"), (4200, "1 h 10 min"), (90000, "25 h 0 min")],
    )
    def test_rough_durations(self, seconds: float, words: str) -> None:
        assert about(seconds) == words

    def shown(self, quiet: bool, cached: Sequence[str] = ()) -> str:
        """What a run of four nodes writes, each with a stage, some of them as before."""
        progress, out = Progress(quiet), io.StringIO()
        progress.console = Console(file=out, quiet=quiet, highlight=False)

        def work(name: str) -> None:
            if name in cached:
                return progress.skip(name)
            with progress.stage(name):
                pass
            progress.skip("a part of it")

        run_graph(lambda: self.NODES, work, progress).check()
        return out.getvalue()

    def test_a_heading_for_what_is_made(self) -> None:
        lines = self.shown(quiet=False, cached=["train", "prune/b"]).splitlines()
        assert [line for line in lines if "left" not in line or "of 4" in line] == [
            "[2 of 4] prune/a · about 2 min left", "  a part of it: as before", "[4 of 4] speed · about 10 s left",
            "  a part of it: as before", "  2 of 4 nodes: as before",
        ]  # fmt: skip

    def test_a_finished_study_is_one_line(self) -> None:
        every = [node.name for node in self.NODES]
        assert self.shown(quiet=False, cached=every).splitlines() == ["  4 of 4 nodes: as before"]

    def test_quiet_is_quiet(self) -> None:
        assert self.shown(quiet=True) == ""


def test_a_plan_in_lines() -> None:
    assert plan_lines(TestTold.NODES) == [
        "train    about 2 min",
        "prune/a   about 50 s  after train",
        "prune/b   about 50 s  after train",
        "speed     about 10 s  after prune/a, prune/b  (alone)",
        "4 nodes, one after another: about 4 min",
        "the longest way: about 3 min (train → prune/a → speed)",
    ]
    assert plan_lines([Node("a"), Node("b", ("a",))]) == ["a  –", "b  –  after a", "2 nodes"]


def test_a_plan_of_which_a_part_is_done() -> None:
    """What is done costs nothing and is waited for by none; a node that waits for many stays on its line."""
    nodes = [replace(node, done=node.name in ("train", "prune/a")) for node in TestTold.NODES]
    assert plan_lines(nodes) == [
        "train          done",
        "prune/a        done",
        "prune/b  about 50 s",
        "speed    about 10 s  after prune/b  (alone)",
        "4 nodes, 2 of them done, the rest one after another: about 60 s",
        "the longest way: about 60 s (prune/b → speed)",
    ]
    assert plan_lines([replace(node, done=True) for node in nodes])[-1] == "4 nodes, 4 of them done"
    many = [Node(name) for name in "abcd"]
    assert plan_lines([*many, Node("e", tuple("abcd"))])[-2] == "e  –  after a, b and 2 more"
