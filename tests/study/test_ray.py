"""Jobs as Ray tasks: two workers on a local cluster, on toy jobs that write files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.progress import Progress as Bars

from headwise.core.errors import HeadsMissing, HeadwiseError
from headwise.core.progress import Progress
from headwise.study import ray_executor as cluster
from headwise.study.executor import DoJob, StudyOutcome, run_jobs
from study.studies import Notes
from study.toys import Toy

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install 'headwise[ray]'", allow_module_level=True)
ray = cluster.import_ray()


class Shown(Notes):
    """Progress whose lines can be read, and the updates of its bars."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[dict[str, object]] = []

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
        before, made, make = signal.getsignal(signal.SIGTERM), list[str](), tempfile.mkdtemp
        patch.setattr(
            tempfile,
            "mkdtemp",
            lambda *given, **by_name: made.append(make(*given, **by_name)) or made[-1],
        )
        with cluster.cluster(cluster.import_ray()):
            assert signal.getsignal(signal.SIGTERM) is before, (
                "a command that is stopped still says how to go on"
            )
            folders = [Path(folder) for folder in made if "hw-ray-" in folder]
            assert folders and all(folder.is_dir() for folder in folders)
            patch.setattr(tempfile, "mkdtemp", make)
            yield
        assert not any(folder.exists() for folder in folders), "the session folder is cleared away"


def processes(parent: int) -> list[int]:
    """A process and all that it started."""
    found = [parent]
    for step in Path(f"/proc/{parent}/task").glob("*/children"):
        found += [
            process for child in step.read_text().split() for process in processes(int(child))
        ]
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux what listens")
def test_a_local_cluster_listens_on_the_loopback_address_and_wants_a_token() -> None:
    ours = set()
    for process in processes(os.getpid()):
        with contextlib.suppress(OSError):
            ours |= {str(file.readlink()) for file in Path(f"/proc/{process}/fd").iterdir()}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    listening = [
        row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in ours
    ]
    assert listening and {*listening} <= {
        "0100007F",
        "00000000000000000000000001000000",
        "0000000000000000FFFF00000100007F",
    }
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) == 64


def toy(folder: Path, progress: Progress) -> DoJob:
    """A study whose jobs are kept as files, and do what their names say."""

    def work(job: Toy) -> None:
        name = job.name
        if (folder / name).exists():
            return
        with (folder / f"{name}.starts").open("a") as file:
            file.write(f"{os.getpid()}\n")
        with progress.bar(f"make {name}"):
            progress(0.5, "half")
            act(folder, name)
        (folder / name).write_text(
            f"{torch.get_num_threads()} {os.environ['OMP_NUM_THREADS']} {Path.cwd()}"
        )
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
    elif name == "exclusive":
        begun, ended = (
            {p.stem for p in folder.glob("*.starts")},
            {p.name for p in folder.glob("*[!s]")},
        )
        (folder / "exclusive.beside").write_text(" ".join(sorted(begun - ended - {"exclusive"})))
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


def run(folder: Path, jobs: list[Toy], shown: Shown) -> StudyOutcome:
    make_work = partial(toy, folder)
    with shown.bar("all"), cluster.ray_executor(make_work, folder, shown, threads=1) as executor:
        assert executor.slots == 2
        return run_jobs(lambda: jobs, executor, shown)


def starts(folder: Path, name: str) -> int:
    return len((folder / f"{name}.starts").read_text().splitlines())


@pytest.mark.campaign
def test_a_graph_on_two_workers(tmp_path: Path) -> None:
    """Two at once, one alone, three that fail: the rest is done, each in a process of one thread, in this folder."""
    jobs = [
        Toy("exclusive", ("first",), exclusive=True),
        Toy("first"),
        Toy("meet-a", ("first",)),
        Toy("meet-b", ("first",)),
        Toy("bad-input", ("first",)),
        Toy("bug", ("first",)),
        Toy("stubborn", ("first",)),
        Toy("last", ("meet-a", "meet-b", "exclusive")),
        Toy("lost", ("bug",)),
    ]
    shown = Shown()
    outcome = run(tmp_path, jobs, shown)
    done = ["first", "meet-a", "meet-b", "exclusive", "last"]
    assert (
        sorted(outcome.done) == sorted(done)
        and outcome.done[0] == "first"
        and outcome.done[-1] == "last"
    )
    assert outcome.failed == {
        "bad-input": "64 of 96 heads were seen.",
        "bug": "ValueError: odd",
        "stubborn": "Stubborn: onetwo",
    }
    assert outcome.skipped == ["lost"]
    assert {(tmp_path / name).read_text() for name in done} == {f"1 1 {Path.cwd()}"}
    assert (tmp_path / "exclusive.beside").read_text() == ""
    text = "\n".join(shown.lines)
    assert all(f"  {name}: note of {name}" in shown.lines for name in done)
    assert {"completed": 0.5, "note": "half"} in shown.shares
    assert (
        "in act" in text and "  bug failed: ValueError: odd" in text
    )  # the traceback of the unexpected error
    assert not (tmp_path / ".work/progress").exists(), "the reports of workers are cleared away"

    again = Shown()
    assert sorted(run(tmp_path, jobs[:4], again).done) == [
        "exclusive",
        "first",
        "meet-a",
        "meet-b",
    ]
    assert again.lines == ["  4 of 4 steps: as before"]
    assert all(starts(tmp_path, name) == 1 for name in done)


def test_an_error_keeps_its_type(tmp_path: Path) -> None:
    with pytest.raises(HeadsMissing, match="64 of 96"):
        run(tmp_path, [Toy("bad-input")], Shown()).check()


@pytest.mark.campaign
def test_a_killed_worker_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job goes on from its checkpoint, one that is killed each time fails, and nothing finished is done again."""
    monkeypatch.setattr(cluster, "RETRIES", 1)
    jobs = [
        Toy("first"),
        Toy("killed-once", ("first",)),
        Toy("killed-always", ("first",)),
        Toy("other"),
        Toy("last", ("killed-once", "other")),
    ]
    outcome = run(tmp_path, jobs, Shown())
    assert sorted(outcome.done) == ["first", "killed-once", "last", "other"]
    assert outcome.failed == {"killed-always": "Its process was killed 2 times."}
    assert [starts(tmp_path, job.name) for job in jobs] == [1, 2, 2, 1, 1]


def test_what_runs_is_stopped_at_the_end(tmp_path: Path) -> None:
    """Ctrl-C goes through, and no worker works on."""
    with (
        pytest.raises(KeyboardInterrupt),
        cluster.ray_executor(partial(toy, tmp_path), tmp_path, Shown(), threads=1) as executor,
    ):
        executor.start(Toy("meet-a"), 0.0, 1.0)  # waits for one that never comes
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
    def test_a_ray_without_tokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray, "__version__", "2.51.1")
        with pytest.raises(
            HeadwiseError, match=r"Ray 2.51.1 is installed, but headwise needs 2.52 or newer"
        ):
            cluster.import_ray()

    @pytest.mark.parametrize(
        ("threads", "device", "reason"),
        [(3, "cpu", "needs 3 cores"), (1, "cuda", "1 cores and 1 GPUs")],
    )
    def test_a_job_that_no_machine_can_hold(self, threads: int, device: str, reason: str) -> None:
        with (
            pytest.raises(
                HeadwiseError, match=f"{reason}, but no machine of Ray has so much .2 cores"
            ),
            cluster.ray_executor(partial(toy, Path()), Path(), Shown(), threads, device),
        ):
            pass

    def test_a_cluster_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        with pytest.raises(
            HeadwiseError,
            match=r"The Ray cluster 127.0.0.1:9 .RAY_ADDRESS. cannot be used: .*refused",
        ):
            cluster.connect(ray, Path())


def test_a_signal_waits_until_ray_has_answered() -> None:
    """Raised inside Ray's own waiting it would come out as a SystemError."""
    steps: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: steps.append("stopped"))
    try:
        with cluster.signals_held():
            signal.raise_signal(signal.SIGTERM)
            steps.append("answered")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == ["answered", "stopped"]


def test_a_gpu_by_number_is_refused(tmp_path: Path) -> None:
    """A task of Ray sees the GPU that it was given, under the number 0."""
    executor = cluster.ray_executor(
        partial(toy, tmp_path), tmp_path, Progress(quiet=True), 1, "cuda:1"
    )
    with pytest.raises(HeadwiseError, match="give device cuda, not cuda:1"), executor:
        pass
