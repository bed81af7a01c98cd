"""Whether what heads give is finite numbers, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.heads import Site
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.sides import sides_of_site
from headwise.models.evaluation.sums import (
    check_finite,
    to_numpy,
)


def sound(call: AttentionCall, there: Mapping[str, Tensor]) -> Tensor:
    """Whether a layer's outputs are finite numbers wherever a token is, as one truth value on the device."""
    sums = call.output.detach().sum((2, 3), dtype=torch.float32)
    return sums.masked_fill(~there[sides_of_site(call.site)[0]], 0).isfinite().all()


def refuse_unsound(layers: Mapping[Site, Tensor], losses: Tensor | None = None) -> None:
    """Raise HeadwiseError for the first layer of a forward that is not `sound`, or for losses that are no numbers."""
    flags: dict[Any, Tensor] = {**layers}  # by a layer, or words
    if losses is not None:
        flags["The loss, though all attention is finite,"] = losses.isfinite().all()
    for source, flag in zip(flags, to_numpy([*flags.values()]), strict=True):
        # the first broken layer is the cause, later ones follow from it
        check_finite(source, np.where(flag, 0.0, np.nan))
