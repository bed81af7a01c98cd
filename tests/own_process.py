"""Commands and scripts in processes of their own, forked from a server that imports the libraries once (five seconds).

They are killed, stopped and joined like any other. `two` are joined as `torchrun` joins them.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import random
import re
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

FORKING = get_context("forkserver")
PATIENCE = 200  # seconds until a process that hangs is killed, before its test is
FORKING.set_forkserver_preload(
    ["transformers.trainer_seq2seq", "headwise.faces.cli", "headwise.study.study"]
)


class Running:
    """A process that calls `function(*given)`; what it prints goes to files in a folder of its own."""

    def __init__(
        self, folder: Path, function: Callable[..., Any], *given: Any, **environment: str
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        # A thread of Arrow's allocator in the server might hold a lock while it forks.
        with mock.patch.dict(
            os.environ, OMP_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false"
        ):
            self.process = FORKING.Process(
                target=begin, args=(folder, environment, function, given)
            )
            self.process.start()
        atexit.register(self.process.kill)  # else it would be waited for, where its test was ended

    def wait_until(self, reached: Callable[[], Any]) -> None:
        until = time.monotonic() + PATIENCE
        while not reached():
            assert self.process.is_alive() and time.monotonic() < until, self.end()
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int | None, str, str]:
        """Exit status (minus the number of the signal that killed it), standard output, error output."""
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.send(signal.SIGABRT)  # its stacks go to its error output
            self.process.join(10)
            self.process.kill()
            self.process.join()
        return (
            self.process.exitcode,
            (self.folder / "out").read_text(),
            re.sub("Extension modules: .*", "", (self.folder / "err").read_text()),
        )


def begin(
    folder: Path, environment: dict[str, str], function: Callable[..., Any], given: tuple[Any, ...]
) -> None:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background would not hear Ctrl-C
    os.environ.update(environment)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    faulthandler.enable()
    function(*given)


def headwise(*words: Any) -> None:
    from headwise.faces import cli

    sys.argv = ["headwise", *map(str, words)]
    cli.main()


def script(path: Path, *words: Any) -> None:
    sys.argv = [str(path), *map(str, words)]
    runpy.run_path(str(path), run_name="__main__")


def unused_port() -> int:
    """A port that is not given to processes that ask for any: they get one above 32767."""
    while True:
        port = random.SystemRandom().randrange(20000, 32768)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def two(
    folder: Path, function: Callable[..., Any], *given: Any
) -> list[tuple[int | None, str, str]]:
    """Both processes of a pair that works together, ended."""
    port = str(unused_port())
    both = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    pair = [
        Running(folder / rank, function, *given, RANK=rank, LOCAL_RANK=rank, **both)
        for rank in ("0", "1")
    ]
    return [one.end() for one in pair]
