"""Nodes as Ray tasks: two workers on a local cluster, on toy nodes that write files."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.progress import Progress as Bars

from headwise.errors import HeadsMissing, HeadwiseError
from headwise.study import cluster
from headwise.study.graph import Node, Outcome, Work, run_graph
from headwise.study.progress import Progress

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'headwise[ray]'")


class Told(Progress):
    """Progress whose lines can be read, and what its bars are told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []
        self.shares: list[dict[str, object]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def bars(self) -> Bars:
        bars = super().bars()
        bars.update = lambda row, **what: self.shares.append(what)  # type: ignore[method-assign]
        return bars


class Stubborn(Exception):
    """Cannot be unpickled: it wants two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    """One local cluster of two cores for all tests, as the command itself starts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "cores", lambda: 2)
        patch.delenv("RAY_ADDRESS", raising=False)
        before = signal.getsignal(signal.SIGTERM)
        cluster.connect(cluster.imported())
        assert signal.getsignal(signal.SIGTERM) is before, "a command that is stopped still says how it goes on"
    yield
    ray.shutdown()


def toy(folder: Path, progress: Progress) -> Work:
    """A study whose nodes are kept as files, and do what their names say."""

    def work(name: str) -> None:
        if (folder / name).exists():
            return
        with (folder / f"{name}.starts").open("a") as file:
            file.write(f"{os.getpid()}\n")
        with progress.stage(f"make {name}"):
            progress(0.5, "half")
            act(folder, name)
        (folder / name).write_text(f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']} {Path.cwd()}")
        progress.say(f"note of {name}")

    return work


def act(folder: Path, name: str) -> None:
    if name.startswith("meet"):
        for other in ("meet-a", "meet-b"):  # both must run at once for either to end
            wait_for(folder / f"{other}.starts")
    elif name.startswith("killed"):
        checkpoint = folder / f"{name}.checkpoint"
        if name == "killed-always" or not checkpoint.exists():
            checkpoint.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    elif name == "alone":
        begun, ended = {p.stem for p in folder.glob("*.starts")}, {p.name for p in folder.glob("*[!s]")}
        (folder / "alone.beside").write_text(" ".join(sorted(begun - ended - {"alone"})))
    elif name == "bad-input":
        raise HeadsMissing("64 of 96 heads were seen.")
    elif name == "bug":
        raise ValueError("odd")
    elif name == "stubborn":
        raise Stubborn("one", "two")


def wait_for(path: Path, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.02)


def run(folder: Path, nodes: list[Node], told: Progress) -> Outcome:
    def here(name: str) -> None:
        raise AssertionError("no node is done in this process")

    with cluster.crew(partial(toy, folder), told, threads=1) as crew:
        assert crew.slots == 2
        return run_graph(lambda: nodes, here, told, crew)


def starts(folder: Path, name: str) -> int:
    return len((folder / f"{name}.starts").read_text().splitlines())


def test_a_graph_on_two_workers(tmp_path: Path) -> None:
    """Two at once, one alone, three that fail: the rest is done, each in a process of one thread, in this folder."""
    nodes = [
        Node("alone", ("first",), alone=True), Node("first"), Node("meet-a", ("first",)), Node("meet-b", ("first",)),
        Node("bad-input", ("first",)), Node("bug", ("first",)), Node("stubborn", ("first",)),
        Node("last", ("meet-a", "meet-b", "alone")), Node("lost", ("bug",)),
    ]  # fmt: skip
    told = Told()
    outcome = run(tmp_path, nodes, told)
    done = ["first", "meet-a", "meet-b", "alone", "last"]
    assert sorted(outcome.done) == sorted(done) and outcome.done[0] == "first" and outcome.done[-1] == "last"
    assert outcome.failed == {
        "bad-input": "64 of 96 heads were seen.", "bug": "ValueError: odd", "stubborn": "Stubborn: onetwo",
    }  # fmt: skip
    assert outcome.skipped == {"lost": "bug failed"}
    assert {(tmp_path / name).read_text() for name in done} == {f"1 1 {Path.cwd()}"}
    assert (tmp_path / "alone.beside").read_text() == ""
    text = "\n".join(told.lines)
    assert "[1 of 9] first" in told.lines and all(f"  {name}: note of {name}" in told.lines for name in done)
    assert {"completed": 0.5, "note": "half"} in told.shares
    assert "in act" in text and "  bug failed: ValueError: odd" in text  # the way to the unforeseen error

    again = Told()
    assert sorted(run(tmp_path, nodes[:4], again).done) == ["alone", "first", "meet-a", "meet-b"]
    assert again.lines == ["  4 of 4 nodes: as before"]
    assert all(starts(tmp_path, name) == 1 for name in done)


def test_an_error_keeps_its_type(tmp_path: Path) -> None:
    with pytest.raises(HeadsMissing, match="64 of 96"):
        run(tmp_path, [Node("bad-input")], Told()).check()


def test_a_killed_worker_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node goes on from its checkpoint, one that is killed each time fails, and nothing finished is done again."""
    monkeypatch.setattr(cluster, "TRIES", 1)
    nodes = [Node("first"), Node("killed-once", ("first",)), Node("killed-always", ("first",)), Node("other"),
             Node("last", ("killed-once", "other"))]  # fmt: skip
    told = Told()
    outcome = run(tmp_path, nodes, told)
    assert sorted(outcome.done) == ["first", "killed-once", "last", "other"]
    assert list(outcome.failed) == ["killed-always"] and "was killed 2 times" in outcome.failed["killed-always"]
    assert "  killed-once: its process was killed; it is tried again (1)" in told.lines
    names = [node.name for node in nodes]
    assert [starts(tmp_path, name) for name in names] == [1, 2, 2, 1, 1]


def test_what_runs_is_stopped_by_hand(tmp_path: Path) -> None:
    """Ctrl-C goes through, and no worker works on."""
    with pytest.raises(KeyboardInterrupt), cluster.crew(partial(toy, tmp_path), Told(), threads=1) as crew:
        crew.start(Node("meet-a"), "")  # waits for one that never comes
        wait_for(tmp_path / "meet-a.starts")
        raise KeyboardInterrupt
    process = int((tmp_path / "meet-a.starts").read_text())
    end = time.monotonic() + 10
    while alive(process):
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


class TestRefused:
    def test_without_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with (
            pytest.raises(HeadwiseError, match=r"it is not installed: pip install 'headwise\[ray\]'"),
            cluster.crew(partial(toy, Path()), Told(), threads=1),
        ):
            pass

    @pytest.mark.parametrize(
        ("threads", "device", "told"), [(3, "cpu", "needs 3 cores"), (1, "cuda", "1 cores and 1 GPUs")]
    )
    def test_a_node_that_no_machine_can_hold(self, threads: int, device: str, told: str) -> None:
        with (
            pytest.raises(HeadwiseError, match=f"{told}, but no machine of Ray has so much .2 cores"),
            cluster.crew(partial(toy, Path()), Told(), threads, device),
        ):
            pass

    def test_a_cluster_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        with pytest.raises(HeadwiseError, match=r"The Ray cluster 127.0.0.1:9 .RAY_ADDRESS. cannot be used: .*refused"):
            cluster.connect(ray)


def test_a_signal_waits_until_ray_has_answered() -> None:
    """Raised inside Ray's own waiting it would come out as a SystemError."""
    steps: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: steps.append("told"))
    try:
        with cluster.undisturbed():
            signal.raise_signal(signal.SIGTERM)
            steps.append("answered")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == ["answered", "told"]
