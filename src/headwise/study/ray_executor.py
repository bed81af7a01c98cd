"""The jobs of a study as Ray tasks: several at once on the cores of this machine, or on the machines of a cluster.

Ray only maps: a worker's process opens the study again and does one job, into the same store that one process alone
would fill. A cluster's machines must therefore share the folders of the study. Every worker has the same number of
threads, so that no number depends on where a job ran. Workers report through a file per job in the shared folder.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import platform
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import TaskID

from headwise.core.errors import HeadwiseError
from headwise.core.folders import below
from headwise.core.progress import Bars, Progress, about
from headwise.study.executor import DoJob, JobEnd
from headwise.study.records import file_label
from headwise.study.step import Job

MakeWork = Callable[[Progress], DoJob]  # can be pickled: how a worker's process does jobs
OLDEST = (2, 52)  # the first Ray whose clusters know tokens
RETRIES = 3  # how often Ray tries a job again whose process was killed


@contextmanager
def ray_executor(
    make_work: MakeWork, folder: Path, progress: Progress, threads: int, device: str = "cpu"
) -> Iterator[RayExecutor]:
    """An executor whose jobs are Ray tasks with `threads` cores each, and a GPU where device is cuda.

    folder: shared by all workers, where they report. A local cluster is started, and shut down at the end: it listens
    on the loopback address only, and wants a token. With RAY_ADDRESS set, that cluster is joined. What still runs when
    the block ends is stopped. Raises HeadwiseError without Ray, cluster, or room for a single step, and for a GPU by
    number: a step sees only its own.
    """
    if device.startswith("cuda:"):
        raise HeadwiseError(
            f"With Ray every step gets a GPU of its own: give device cuda, not {device}."
        )
    ray = import_ray()
    own = not ray.is_initialized()
    with cluster(ray) if own else nullcontext():
        gpus = int(device.startswith("cuda"))
        needs = {"CPU": threads, "GPU": gpus} if gpus else {"CPU": threads}
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        slots = 0
        # Machine by machine: a step does not run on half of one and half of another.
        for machine in machines:
            slots += min(int(machine.get(what, 0) // count) for what, count in needs.items())
        if not slots:
            offers = "; ".join(in_words(machine) for machine in machines)
            raise HeadwiseError(
                f"Every step of the study needs {in_words(needs)}, but no machine of Ray has so much "
                f"({offers}): ask for fewer threads, or for device cpu."
            )
        # A worker uses as many threads as it gets cores, and finds the modules that this process finds.
        path = os.pathsep.join(str(Path(place).absolute()) for place in sys.path)
        worker_env = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}
        task = ray.remote(do_job).options(
            num_cpus=threads,
            num_gpus=gpus,
            max_retries=RETRIES,
            runtime_env={"env_vars": worker_env},
        )
        progress_files = folder.absolute() / ".work" / "progress"
        setup = WorkerSetup(make_work, threads, str(Path.cwd()), progress_files)
        executor = RayExecutor(ray, ray.put(setup), task, progress_files, slots, progress)
        try:
            yield executor
        finally:
            executor.stop()


@contextmanager
def signals_held() -> Iterator[None]:
    """In the block the signals that stop a command are held back, and raised after it: Ray cannot be left half-way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handlers[number] = signal.signal(number, lambda came, frame: held.append(came))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for came in held:
            signal.raise_signal(came)


def import_ray() -> Any:
    """The ray package; quiet, and without statistics sent home. What it reads from the environment when it is imported
    is set before: a cluster of our own listens on the loopback address, and wants a token."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not os.environ.get("RAY_ADDRESS"):
        # A node's address is then 127.0.0.1 everywhere.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise HeadwiseError(
            "Ray was asked for, but it is not installed: pip install 'headwise[ray]'."
        ) from None
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < OLDEST:
        raise HeadwiseError(
            f"Ray {ray.__version__} is installed, but headwise needs {'.'.join(map(str, OLDEST))} or newer, whose "
            "clusters want a token: pip install -U 'headwise[ray]'."
        )
    return ray


@contextmanager
def cluster(ray: Any) -> Iterator[None]:
    """A cluster for the time of the block. The session folder of one on this machine is removed at the end."""
    # A short path: Ray puts sockets in it, whose paths are limited.
    folder = Path(tempfile.mkdtemp(prefix="hw-ray-"))
    try:
        connect(ray, folder)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def connect(ray: Any, folder: Path) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine that nobody else can use, in a folder."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if not address:
        options |= {
            "num_cpus": cores(),
            "include_dashboard": False,
            # Jobs hand on words alone; models and texts go through files.
            "object_store_memory": 100 * 2**20,
            "_temp_dir": str(folder),
        }
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    handler = signal.getsignal(signal.SIGTERM)  # Ray installs its own
    try:
        if port.isdigit():
            # Is anybody there? Ray itself tries for minutes.
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, ValueError) as error:
        name = "A Ray cluster on this machine"
        if address:
            name = f"The Ray cluster {address} (RAY_ADDRESS)"
        raise HeadwiseError(f"{name} cannot be used: {error}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_words(resources: Mapping[str, float]) -> str:
    """Resources as Ray counts them, such as `2 cores and 1 GPUs`."""
    words = []
    if "CPU" in resources:
        words.append(f"{resources['CPU']:g} cores")
    if "GPU" in resources:
        words.append(f"{resources['GPU']:g} GPUs")
    return " and ".join(words)


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to know besides the job. folder: where the command runs; progress_files: where workers report."""

    make_work: MakeWork
    threads: int
    folder: str
    progress_files: Path


def do_job(setup: WorkerSetup, job: Job) -> tuple[Exception | None, str]:
    """Do one job in this worker; gives what it raised, and the traceback."""
    torch.set_num_threads(setup.threads)
    try:
        enter(setup.folder)
        setup.make_work(FileProgress(progress_file(setup.progress_files, job)))(job)
    except Exception as error:
        return portable(error), traceback.format_exc()
    return None, ""


def progress_file(progress_files: Path, job: Job) -> Path:
    """Where a worker reports on a job."""
    return below(progress_files, f"{file_label(job.name)}.jsonl")


def enter(folder: str) -> None:
    """Work in the same folder as the command, so that relative paths mean the same."""
    try:
        os.chdir(folder)
    except OSError:
        raise HeadwiseError(
            f"The study was started in {folder}, but the Ray worker on {platform.node()} has no such folder: "
            "the machines of a cluster must share it."
        ) from None


def portable(error: Exception) -> Exception:
    """The error, if it can be pickled; else a HeadwiseError that says what it was."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return HeadwiseError(f"{type(error).__name__}: {error}")
    return error


class FileProgress(Progress):
    """The progress of one job, a JSON line for each event; at most one share in `every` seconds."""

    def __init__(self, path: Path, every: float = 0.5) -> None:
        super().__init__(quiet=True)
        self.path = path
        self.every = every
        self.due = 0.0  # when the next share may be written

    def write(self, event: str, value: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([event, value]) + "\n")

    def __call__(self, share: float, what: str) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + self.every
            self.write("share", (share, what))

    def say(self, text: str) -> None:
        self.write("say", text)

    @contextmanager
    def bar(self, name: str) -> Iterator[None]:
        self.write("task", name)
        self.due = 0.0
        yield


@dataclass
class Running:
    """A job at a worker. end: the share of the study that is done with it. progress_file: what its worker writes. row:
    its bar; None while nothing is made in it."""

    job: Job
    end: float
    progress_file: Path
    started: float
    bytes_read: int = 0
    row: TaskID | None = None


@dataclass
class RayExecutor:
    """Jobs as Ray tasks, `slots` at once, with a bar for each that runs below that of the study."""

    ray: Any
    setup: Any
    task: Any
    progress_files: Path
    slots: int
    progress: Progress
    running: dict[Any, Running] = field(default_factory=dict)  # by Ray's reference

    @property
    def bars(self) -> Bars:
        assert self.progress.live is not None  # the study's
        return self.progress.live

    def start(self, job: Job, start: float, end: float) -> None:
        file = progress_file(self.progress_files, job)
        file.unlink(missing_ok=True)  # of a study that was killed
        running = Running(job, end, file, time.monotonic())
        self.running[self.task.remote(self.setup, job)] = running

    def wait(self) -> JobEnd:
        """The next job that ends; Ray tries one whose process was killed again, from its last checkpoint."""
        ready: list[Any] = []
        while not ready:
            # Short, so that bars move and a signal is answered.
            with signals_held():
                ready = self.ray.wait(list(self.running), timeout=0.5)[0]
            for running in self.running.values():
                self.poll(running)
        ended = self.running.pop(ready[0])
        try:
            error, trace = self.ray.get(ready[0])
        except self.ray.exceptions.WorkerCrashedError:
            error = HeadwiseError(f"Its process was killed {RETRIES + 1} times.")
            trace = ""
        except self.ray.exceptions.RayError as reason:
            trace = str(reason).strip()
            first_line = (trace or type(reason).__name__).splitlines()[0]
            error = HeadwiseError(f"Ray could not run it: {first_line}")
        self.progress(ended.end, "")
        if ended.row is None:
            return JobEnd(ended.job.name, error, trace)
        self.bars.remove_task(ended.row)
        if self.bars.in_lines and error is None:
            self.progress.say(f"  {ended.job.words}: {about(time.monotonic() - ended.started)}")
        return JobEnd(ended.job.name, error, trace)

    def poll(self, running: Running) -> None:
        """Show what a job's worker reported since the last time."""
        if not running.progress_file.exists():
            return
        with running.progress_file.open(encoding="utf-8") as file:
            file.seek(running.bytes_read)
            text = file.read()
        lines = text[: text.rfind("\n") + 1]  # the last one may still be written
        running.bytes_read += len(lines.encode())
        for event, value in map(json.loads, lines.splitlines()):
            if running.row is None:
                running.row = self.bars.add_task(running.job.words, total=1.0, note="")
            if event == "say":
                self.progress.say(f"  {running.job.words}: {value.strip()}")
            elif event == "share":
                self.bars.update(running.row, completed=value[0], note=value[1])

    def stop(self) -> None:
        """Stop what still runs."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=10)
        shutil.rmtree(self.progress_files, ignore_errors=True)
