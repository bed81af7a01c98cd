"""Counting, on a CPU, the operations that would make the processor wait for a GPU."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAIT = {  # their result, or its shape, is a number the processor needs
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten.equal,
    aten.is_nonzero,
    aten.allclose,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
}
OUR_CODE = str(Path(__file__).parents[1] / "src")


@contextmanager
def syncs() -> Iterator[list[str]]:
    """A `with` block that lists the synchronisations in it, each with its operation and the line of headwise it is in.

    Counts numbers read from a tensor (`item`, `bool`, `tolist`, `cpu`, `numpy`), tensors made from a Python list (also
    to index by it), and operations whose shape depends on values (`nonzero`, an index of booleans).
    """
    seen: list[str] = []

    def note(operation: str) -> None:
        lines = [
            frame for frame in traceback.extract_stack() if frame.filename.startswith(OUR_CODE)
        ]
        where = f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else "elsewhere"
        seen.append(f"{operation} in {where}")

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operation = function.overloadpacket
            if operation in WAIT:
                note(operation.__name__)
            elif operation is aten.lift_fresh and args[0].dim():
                note("a tensor from a list")
            elif operation in (aten.index, aten.index_put, aten.index_put_):
                if any(index is not None and index.dtype == torch.bool for index in args[1]):
                    note("an index of booleans")
            elif (
                function is aten.repeat_interleave.Tensor
                and (kwargs or {}).get("output_size") is None
            ):
                note("repeat_interleave")
            return function(*args, **(kwargs or {}))

    def counted(name: str) -> Any:
        usual = getattr(Tensor, name)

        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            note(name)
            return usual(self, *args, **kwargs)

        return mock.patch.object(Tensor, name, method)

    with ExitStack() as block:
        for name in ("tolist", "cpu", "numpy"):
            block.enter_context(counted(name))
        block.enter_context(Count())  # type: ignore[no-untyped-call]
        yield seen
