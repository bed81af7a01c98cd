"""The nodes of a study as Ray tasks: several at once on the cores of this machine, or on the machines of a cluster.

Ray only maps: a task makes the work anew in a worker's process and does one node, and its files are the same cache that
one process alone would fill. A cluster's machines must therefore share the folders of the study. Every worker has the
same number of threads, so that no number depends on where a node ran.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import TaskID

from headwise.errors import HeadwiseError
from headwise.study.graph import Ended, Node, Work, about
from headwise.study.progress import Progress

Make = Callable[[Progress], Work]  # can be pickled: the work of a study, as made in a worker's process
TRIES = 3  # how often a node whose process was killed is tried again


@contextmanager
def crew(make: Make, progress: Progress, threads: int, device: str = "cpu") -> Iterator[RayCrew]:
    """A crew for `run_graph` whose nodes are Ray tasks with `threads` cores each, and a GPU where device is cuda.

    A local cluster is started, and shut down at the end; with RAY_ADDRESS set, that cluster is joined. What still runs
    when the block ends is stopped. Raises HeadwiseError without Ray, cluster, or room for a single task.
    """
    ray = imported()
    own = not ray.is_initialized()
    if own:
        connect(ray)
    try:
        gpus = int(device.startswith("cuda"))
        needs = {"CPU": threads, "GPU": gpus} if gpus else {"CPU": threads}
        found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        slots = sum(min(int(node.get(what, 0) // count) for what, count in needs.items()) for node in found)
        if not slots:
            raise HeadwiseError(
                f"Every node of the study needs {wording(needs)}, but no machine of Ray has so much "
                f"({'; '.join(wording(node) for node in found)}): ask for fewer threads, or for device cpu."
            )
        task = ray.remote(do).options(
            num_cpus=threads, num_gpus=gpus, max_retries=0, runtime_env={"env_vars": surroundings(threads)}
        )
        with progress.bars() as bars:
            yours = RayCrew(ray, Order(make, threads, str(Path.cwd())), task, board(ray), slots, progress, bars)
            try:
                yield yours
            finally:
                yours.stop()
    finally:
        if own:
            ray.shutdown()


@contextmanager
def undisturbed() -> Iterator[None]:
    """In the block the signals that stop a command are held back, and raised after it: Ray cannot be left half-way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = list[int]()
    stops = (signal.SIGINT, signal.SIGTERM)
    before = {stop: signal.signal(stop, lambda number, frame: came.append(number)) for stop in stops}
    try:
        yield
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)
        for number in came:
            signal.raise_signal(number)


def imported() -> Any:
    """The ray package; quiet, and without statistics sent home."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise HeadwiseError("Ray was asked for, but it is not installed: pip install 'headwise[ray]'.") from None
    return ray


def connect(ray: Any) -> None:
    """Join the cluster that RAY_ADDRESS names, or start one on this machine that nobody else can use."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if not address:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        options |= {"num_cpus": cores(), "include_dashboard": False, "object_store_memory": 100 * 2**20}
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    ends = signal.getsignal(signal.SIGTERM)  # Ray puts its own way there
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself tries for minutes
        ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, ValueError) as error:
        place = f"The Ray cluster {address} (RAY_ADDRESS)" if address else "A Ray cluster on this machine"
        raise HeadwiseError(f"{place} cannot be used: {error}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ends)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wording(resources: Mapping[str, float]) -> str:
    words = {"CPU": "cores", "GPU": "GPUs"}
    return " and ".join(f"{resources.get(what, 0):g} {word}" for what, word in words.items() if what in resources)


def surroundings(threads: int) -> dict[str, str]:
    """The environment of a worker: as many threads as it has cores, and the modules that this process finds."""
    path = os.pathsep.join(str(Path(place).absolute()) for place in sys.path)
    return {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}


@dataclass(frozen=True)
class Order:
    """What a worker needs to know besides the node's name."""

    make: Make
    threads: int
    folder: str


def do(order: Order, name: str, board: Any) -> tuple[Exception | None, str, int]:
    """Do one node in this worker; gives what it raised, the way there, and how much was told meanwhile."""
    progress = Distant(board, name)
    torch.set_num_threads(order.threads)
    try:
        enter(order.folder)
        order.make(progress)(name)
    except Exception as error:
        return carried(error), traceback.format_exc(), progress.told
    return None, "", progress.told


def enter(folder: str) -> None:
    """Work in the same folder as the command, so that relative paths mean the same."""
    try:
        os.chdir(folder)
    except OSError:
        raise HeadwiseError(
            f"The study was started in {folder}, but the Ray worker on {platform.node()} has no such folder: "
            "the machines of a cluster must share it."
        ) from None


def carried(error: Exception) -> Exception:
    """The error as it will arrive; one that cannot travel as a HeadwiseError that says what it was."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return HeadwiseError(f"{type(error).__name__}: {error}")
    return error


def board(ray: Any) -> Any:
    """Where workers write what they are at, and the command reads it: an actor of Ray.

    Its class is made here, so that it travels whole and its process needs to import nothing.
    """

    class Board:
        def __init__(self) -> None:
            self.notes: list[tuple[str, str, Any]] = []

        def tell(self, node: str, what: str, value: Any) -> None:
            self.notes.append((node, what, value))

        def read(self) -> list[tuple[str, str, Any]]:
            notes, self.notes = self.notes, []
            return notes

    return ray.remote(num_cpus=0, max_restarts=-1)(Board).remote()


class Distant(Progress):
    """The progress of one node, told to the board; at most one share in `every` seconds."""

    def __init__(self, board: Any, node: str, every: float = 0.5) -> None:
        super().__init__(quiet=True)
        self.board, self.node, self.every = board, node, every
        self.told, self.due = 0, 0.0
        self.report = self.share

    def tell(self, what: str, value: Any) -> None:
        self.told += 1
        self.board.tell.remote(self.node, what, value)

    def say(self, text: str) -> None:
        self.tell("say", text)

    def skip(self, name: str) -> None:
        """Nothing: what was made before is counted where the graph is run."""

    def share(self, share: float, text: str) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + self.every
            self.tell("share", (share, text))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.tell("stage", name)
        self.due = 0.0
        yield


class RayCrew:
    """Nodes as Ray tasks, `slots` at once, with a bar for each that runs."""

    def __init__(
        self, ray: Any, order: Order, task: Any, board: Any, slots: int, progress: Progress, bars: Any
    ) -> None:
        self.ray, self.task, self.board, self.slots = ray, task, board, slots
        self.order, self.progress, self.bars = ray.put(order), progress, bars
        self.names, self.headings = dict[Any, str](), dict[str, str]()
        self.rows, self.begun = dict[str, TaskID](), dict[str, float]()
        self.tries, self.heard = dict[str, int](), dict[str, int]()

    def start(self, node: Node, heading: str) -> None:
        self.headings[node.name], self.begun[node.name], self.tries[node.name] = heading, time.monotonic(), 0
        self.send(node.name)

    def send(self, name: str) -> None:
        self.heard[name] = 0
        self.names[self.task.remote(self.order, name, self.board)] = name

    def wait(self) -> Ended:
        """The next node that ends; one whose process was killed is first tried again, from its last checkpoint."""
        fault = self.ray.exceptions
        killed = (fault.WorkerCrashedError, fault.OutOfMemoryError, fault.NodeDiedError, fault.ObjectLostError)
        while True:
            with undisturbed():
                ready = self.ray.wait(list(self.names), timeout=0.5)[0]
                self.show()
            if not ready:
                continue
            name = self.names.pop(ready[0])
            try:
                error, trace, told = self.ray.get(ready[0])
            except killed as reason:
                self.tries[name] += 1
                if self.tries[name] <= TRIES:
                    self.progress.say(f"  {name}: its process was killed; it is tried again ({self.tries[name]})")
                    self.send(name)
                    continue
                error, trace = HeadwiseError(f"Its process was killed {TRIES + 1} times: {first_line(reason)}"), ""
            except fault.RayError as reason:
                error, trace = HeadwiseError(f"Ray could not run it: {first_line(reason)}"), str(reason)
            else:
                self.hear(name, told)
            return self.ended(name, error, trace)

    def hear(self, name: str, told: int, seconds: float = 5) -> None:
        """Show all that a node told before it ended; what is lost with the board is no reason to wait for longer."""
        end = time.monotonic() + seconds
        while self.heard[name] < told and time.monotonic() < end:
            self.show()

    def ended(self, name: str, error: Exception | None, trace: str) -> Ended:
        """Clear the bar of a node away; what was made is told in a line."""
        made, seconds = not self.headings.pop(name), time.monotonic() - self.begun.pop(name)
        if name in self.rows:
            self.bars.remove_task(self.rows.pop(name))
        if made and error is None:
            self.progress.say(f"  {name}: {about(seconds)}")
        return Ended(name, error, trace, made)

    def show(self) -> None:
        """Show what the workers told since the last time."""
        try:
            notes = self.ray.get(self.board.read.remote(), timeout=10)
        except self.ray.exceptions.RayError:
            return  # the board comes back by itself; the nodes do not need it
        for name, what, value in notes:
            if name not in self.headings:
                continue
            self.heard[name] += 1
            if self.headings[name]:
                self.progress.say(self.headings[name])
                self.headings[name] = ""
            if what == "say":
                self.progress.say(f"  {name}: {value.strip()}")
            elif what == "stage":
                if name in self.rows:
                    self.bars.remove_task(self.rows[name])
                self.rows[name] = self.bars.add_task(value, total=1.0, note="")
            elif name in self.rows:
                self.bars.update(self.rows[name], completed=value[0], note=value[1])

    def stop(self) -> None:
        """Stop what still runs, and the board."""
        for reference in self.names:
            self.ray.cancel(reference, force=True)
        self.ray.wait(list(self.names), num_returns=len(self.names), timeout=10) if self.names else None
        self.ray.kill(self.board)


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
