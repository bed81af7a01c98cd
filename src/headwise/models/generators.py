"""The random generators that all code of a process shares: Python's, NumPy's, and torch's on every device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import numpy as np
import torch

from headwise.core.errors import HeadwiseError, shown_value


def check_seed(seed: int) -> None:
    """Raise HeadwiseError for a seed that NumPy does not take."""
    if not isinstance(seed, Integral) or seed < 0:
        raise HeadwiseError(f"The seed is {shown_value(seed)}: give a whole number of at least 0.")


@contextmanager
def unchanged_generators() -> Iterator[None]:
    """After the block every generator continues as if the block had drawn and seeded nothing."""
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002 - the one that all code shares
    # To ask for the state of a GPU would start CUDA, after which a process cannot fork.
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """In the block torch draws from this seed on the CPU; afterwards its generator is as before. Generators of other
    devices are left alone, unlike by `torch.manual_seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
