"""Dormancy: how little a head adds to the residual stream.

    dormancy(h) = mean_q ‖c_h W_h‖ / Σ_h' mean_q ‖c_h' W_h'‖

c_h (of D) is the head's output at a token and W_h (D M) its slice of the output projection; the sum runs over the heads
of the layer. So 1/H is average and 0 is dormant. Sandoval-Segura et al. 2025 ("Identifying and evaluating inactive
heads in pretrained LLMs") find the mean norm of a head's output, relative to its layer, a better sign of inactive heads
than attention weights.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from headwise.attention import Discovery
from headwise.attention.projection import output_weights
from headwise.heads import Site


def squares(model: nn.Module, found: Discovery) -> dict[Site, Tensor]:
    """W_h W_hᵀ of every head, H D D by site: ‖c W‖² = c (W Wᵀ) cᵀ needs no H × M numbers per token."""
    forms = {}
    for site, weight in output_weights(model, found).items():
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        forms[site] = wide @ wide.transpose(1, 2)
    return forms


def contribution(output: Tensor, forms: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """‖c_h W_h‖ of every head, summed over the queries of each sentence, and the number of queries.

    output B Q H D, forms H D D, queries B Q; returns B H and B.
    """
    output = output.to(forms.dtype)
    sizes = (torch.einsum("bqhd,hde->bqhe", output, forms) * output).sum(-1).clamp_min(0).sqrt()
    return (sizes * queries[..., None]).sum(1), queries.sum(-1)


def relative(sizes: np.ndarray) -> np.ndarray:
    """Sizes … x heads of a layer as shares of their sum; all 0 where a layer adds nothing."""
    whole = sizes.sum(-1, keepdims=True)
    shares: np.ndarray = np.divide(sizes, whole, out=np.zeros_like(sizes), where=whole > 0)
    return shares
