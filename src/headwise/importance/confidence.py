"""Confidence: how sharply a head points (Voita et al. 2019, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from headwise.attention import Discovery
from headwise.importance.reading import Exclude, read
from headwise.importance.tally import Tally


def confidence(
    model: nn.Module, found: Discovery, batches: Iterable[Mapping[str, Tensor]], special: Iterable[int],
    exclude: Exclude = "keyquery",
) -> Tally:  # fmt: skip
    """The mean over query tokens of the largest attention weight: `read` for this measure alone."""
    return read(model, found, batches, special, ["confidence"], exclude)["confidence"]
