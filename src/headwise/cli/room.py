"""What writing fails with for want of room or leave, in whichever library it does."""

from __future__ import annotations

import errno
from pathlib import Path

from headwise.errors import HeadwiseError

WANTING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EPERM)
TORCH = "PytorchStreamWriter failed writing"  # what torch.save raises a RuntimeError with


def no_room(error: BaseException) -> bool:
    """Whether an error says that a file could not be written."""
    from safetensors import SafetensorError

    if isinstance(error, OSError):
        return error.errno in WANTING
    return isinstance(error, SafetensorError) or (isinstance(error, RuntimeError) and TORCH in str(error))


def said_of(error: BaseException) -> str:
    """Which file it was, where it is known, and why."""
    if isinstance(error, OSError):
        return f"{error.filename or 'A file'} could not be written ({error.strerror})"
    return f"A file of weights could not be read or written ({' '.join(str(error).split())[:200]})"


def resumable(error: Exception, out: Path) -> HeadwiseError | None:
    """The sentence for a run that wants room: what was done is kept. None for any other error.

    All sentences of headwise's own about a file that could not be written say `make room`.
    """
    if isinstance(error, HeadwiseError):
        told = str(error) if "make room" in str(error) else ""
    else:
        told = f"{said_of(error)}: make room." if no_room(error) else ""
    again = f"What is done is kept in {out}: the same command, given again, goes on where it was."
    return HeadwiseError(f"{told} {again}") if told else None
