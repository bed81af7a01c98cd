"""Several processes that share a text: what each measured, put together, and failures that end all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import gather_object

from headwise.core.errors import HeadwiseError

KNOWN = "All processes know of this."


def gather_values(value: Any) -> list[Any]:
    """The value of every process. Raises HeadwiseError in all of them when one has failed inside `failing_together`."""
    values = []
    for reason, given in gather_object([(None, value)]):
        if reason:
            error = HeadwiseError(reason)
            error.add_note(KNOWN)
            raise error
        values.append(given)
    return values


@contextmanager
def failing_together() -> Iterator[None]:
    """In the block, a failure of one process is one of all: otherwise the others would wait for it for ever. It meets
    them where they next exchange something, at the end of the block at the latest."""
    try:
        yield
        gather_values(None)
    except Exception as error:
        # where all processes have raised this error, nobody waits for it
        if KNOWN not in getattr(error, "__notes__", ()):
            reason = str(error)
            if not isinstance(error, HeadwiseError):
                reason = f"{type(error).__name__}: {error}"
            error.add_note(KNOWN)
            gather_object([(reason, None)])
        raise


def gather_batches(parts: list[Any]) -> list[Any]:
    """The result of every batch, from n processes with every n-th batch each, in the order of a single process."""
    shares = gather_values(parts)
    in_order = []
    # batches were dealt out in turn, and the first processes may have one more
    for number in range(max(len(share) for share in shares)):
        for share in shares:
            if number < len(share):
                in_order.append(share[number])
    return in_order
