"""How a command ends: stopped by Ctrl-C (SIGINT) or `kill` (SIGTERM), or unable to write a file."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from headwise.core.errors import HeadwiseError, WriteError

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EPERM)
TORCH = "PytorchStreamWriter failed writing"  # what torch.save raises a RuntimeError with


class Stopped(BaseException):
    """A signal came. No KeyboardInterrupt, which typer and other libraries handle themselves. number: of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__("Stopped.")
        self.number = number

    @property
    def status(self) -> int:
        """The status that a shell gives a command that this signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


@contextmanager
def stoppable() -> Iterator[None]:
    """In the block both signals raise Stopped, unless the command was started with them ignored.

    One process of several, which `torchrun` ends when another has failed, may be waiting for that one outside Python,
    where nothing can be raised: there SIGTERM keeps its handler.
    """
    owner = os.getpid()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    alone = os.environ.get("WORLD_SIZE", "1") == "1"

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker that was forked off
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Stopped(number)

    ours = (signal.SIGINT, signal.SIGTERM) if alone else (signal.SIGINT,)
    for number in ours:
        # `nohup` and background jobs of a shell start commands with a signal ignored.
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_error(error: BaseException) -> WriteError | None:
    """The sentence for a file that could not be written, whichever library failed; None for any other error."""
    from safetensors import SafetensorError

    if isinstance(error, WriteError):
        return error
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return WriteError(
            f"{error.filename or 'A file'} could not be written ({error.strerror}): free some space."
        )
    # Both are raised from outside Python, without the errno of what went wrong.
    if isinstance(error, SafetensorError) or (
        isinstance(error, RuntimeError) and TORCH in str(error)
    ):
        return WriteError(
            f"Weights could not be read or written ({' '.join(str(error).split())[:200]})."
        )
    return None


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """A command that is stopped in the block, or cannot write, says that the same command goes on where it was."""
    try:
        yield
    except Stopped as stop:
        stop.args = (
            "Stopped. Run the same command again: it goes on behind the last part that it finished.",
        )
        raise
    except Exception as error:
        failure = write_error(error)
        if failure is None:
            raise
        again = (
            f"What is done is kept in {out}: the same command, given again, goes on where it was."
        )
        raise HeadwiseError(f"{failure} {again}") from error
