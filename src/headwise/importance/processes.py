"""Several processes that share a text: what each measured, put together, and failures that end all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import gather_object

from headwise.errors import HeadwiseError

KNOWN = "All processes know of this."


def gather_values(value: Any) -> list[Any]:
    """The value of every process. Raises HeadwiseError in all of them when one has failed inside `failing_together`."""
    shares = gather_object([(None, value)])
    if failures := [reason for reason, _ in shares if reason]:
        error = HeadwiseError(failures[0])
        error.add_note(KNOWN)
        raise error
    return [given for _, given in shares]


@contextmanager
def failing_together() -> Iterator[None]:
    """In the block, a failure of one process is one of all: otherwise the others would wait for it for ever. It meets
    them where they next exchange something, at the end of the block at the latest."""
    try:
        yield
        gather_values(None)
    except Exception as error:
        if KNOWN not in getattr(error, "__notes__", ()):
            reason = (
                str(error)
                if isinstance(error, HeadwiseError)
                else f"{type(error).__name__}: {error}"
            )
            error.add_note(KNOWN)
            gather_object([(reason, None)])
        raise


def gather_batches(parts: list[Any]) -> list[Any]:
    """The result of every batch, from n processes with every n-th batch each, in the order of a single process."""
    shares = gather_values(parts)
    turns = range(max(map(len, shares)))
    return [share[turn] for turn in turns for share in shares if turn < len(share)]
