"""The device that tensors are on."""

from __future__ import annotations

from headwise.errors import HeadwiseError


def usable(device: str) -> str:
    """A device that torch can use now; `auto` is cuda where there is one, else mps, else cpu. Raises HeadwiseError."""
    if device == "cpu":  # without the second that torch takes to load
        return device
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=device).item()  # "meta" has tensors, but nothing in them
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise HeadwiseError(
            f"The device {device} was asked for, but torch cannot use it here ({reason}): give auto, cpu, cuda or mps."
        ) from None
    return device
