"""The device that tensors are on, and the most memory that was in use."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.core.errors import HeadwiseError

if TYPE_CHECKING:
    import torch

DEVICE_TYPES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla", "mtia")


def usable(device: str | torch.device) -> str:
    """A device that torch can use now; `auto` is cuda where there is one, else mps, else cpu. Raises HeadwiseError."""
    device = str(device)  # also a device of torch
    if device == "cpu":  # without the second that torch takes to load
        return device
    if device.partition(":")[0] not in DEVICE_TYPES:
        # Before torch, which has a list of types that no build of it supports.
        raise refused(device, f"it has {', '.join(DEVICE_TYPES)}")
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=device).item()  # "meta" has tensors, but nothing in them
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise refused(device, str(error).partition("\n")[0].rstrip(".")) from None
    return device


def refused(device: str, reason: str) -> HeadwiseError:
    return HeadwiseError(
        f"The device {device} was asked for, but torch cannot use it here ({reason}): give auto, cpu, cuda or mps."
    )


def peak_memory() -> int:
    """The most memory that this process has had so far, in bytes, with the pages of files that are mapped into it; 0
    where the system does not say."""
    status = Path("/proc/self/status")
    if status.exists():  # unlike ru_maxrss, not that of the process before `exec`
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        return int(found[1]) * 1024 if found else 0
    try:
        import resource
    except ImportError:  # Windows
        return 0
    # In bytes on macOS, in KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_line() -> str:
    """A line about the most memory of the process, and of each GPU that it used."""
    import torch

    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    used = {f"GPU {gpu}": torch.cuda.max_memory_allocated(gpu) for gpu in gpus}
    peaks = {"process": peak_memory(), **used}
    parts = ", ".join(f"{name} {peak / 2**20:,.0f} MB" for name, peak in peaks.items() if peak)
    return f"Peak memory: {parts or 'unknown'}."
