"""How a command ends that is stopped: by Ctrl-C (SIGINT) or by `kill` (SIGTERM), with a sentence and a status."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """A signal came. No KeyboardInterrupt, which typer and other libraries take for theirs. number: which signal."""

    def __init__(self, number: int) -> None:
        super().__init__("Stopped.")
        self.number = number

    @property
    def status(self) -> int:
        """What a shell says of a command that this signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


@contextmanager
def stoppable() -> Iterator[None]:
    """In the block both signals raise Stopped, unless whoever started the command has them ignored.

    One process of several, which `torchrun` ends when another has failed, may be waiting for that one outside Python,
    where nothing can be raised: there SIGTERM stays what it is.
    """
    owner, before = os.getpid(), {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    alone = os.environ.get("WORLD_SIZE", "1") == "1"

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker that was forked off
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Stopped(number)

    ours = (signal.SIGINT, signal.SIGTERM) if alone else (signal.SIGINT,)
    for number in (one for one in ours if before[one] is not signal.SIG_IGN):
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, now in before.items():
            signal.signal(number, now)
