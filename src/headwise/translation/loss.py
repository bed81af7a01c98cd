"""Label-smoothed cross-entropy from the decoder's states, without the logits of a whole batch in memory.

Positions × vocabulary is the largest tensor of a small translation model. Here only target positions are projected, in
chunks, and the forward pass also computes each chunk's gradient, while its softmax is in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.translation.batches import IGNORED

CHUNK = 512  # positions projected at once; the last chunk is padded, so that there is one shape


class FusedCrossEntropy(torch.autograd.Function):
    """Summed label-smoothed cross-entropy of `states @ weight.T + bias` against `labels`.

    (1 − ε) · (−log p[label]) + ε · mean over the vocabulary of −log p (Szegedy et al. 2016; ε/V on every type, as in
    torch). states N M, weight V M, bias V or None, labels N (IGNORED for padding). The softmax is in float32 at least.
    The bias gets no gradient; there are no second derivatives.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        total = states.new_zeros((), dtype=wide)
        size = weight.shape[0]
        grad_states = torch.empty_like(states) if any(ctx.needs_input_grad) else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        for start in range(0, len(labels), CHUNK):
            chunk, gold = states[start : start + CHUNK], labels[start : start + CHUNK, None]
            real = (gold != IGNORED).to(wide)
            gold = gold.clamp_min(0)
            logits = (chunk @ weight.t()).to(wide)
            if bias is not None:
                logits += bias
            norm = torch.logsumexp(logits, -1, keepdim=True)
            hit, mean = norm - logits.gather(1, gold), norm - logits.mean(1, keepdim=True)
            total += ((1 - smoothing) * hit + smoothing * mean).mul_(real).sum()
            if grad_states is None:
                continue
            grad = logits.sub_(norm).exp_().sub_(smoothing / size)
            grad.scatter_add_(1, gold, grad.new_full(gold.shape, smoothing - 1))
            grad = grad.mul_(real).to(weight.dtype)
            grad_states[start : start + CHUNK] = grad @ weight
            if grad_weight is not None:
                grad_weight += grad.t() @ chunk
        ctx.save_for_backward(grad_states, grad_weight)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_weight = ctx.saved_tensors
        if grad_weight is not None:
            grad_weight = grad_weight * grads[0]
        return grad_states * grads[0].to(grad_states.dtype), grad_weight, None, None, None


def summed_loss(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
    """The summed loss over the target positions of a batch: states B T M, labels B T.

    With autocast the projection has autocast's dtype. Gradients are computed only with autograd on.
    """
    where = (labels.flatten() != IGNORED).nonzero().squeeze(1)
    fill = -len(where) % CHUNK
    gold = torch.cat([labels.flatten()[where], labels.new_full((fill,), IGNORED)])
    where = torch.cat([where, where.new_zeros(fill)])
    chosen = states.flatten(0, 1).index_select(0, where)
    weight = weight if torch.is_grad_enabled() else weight.detach()
    device = states.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        chosen, weight = chosen.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        loss: Tensor = FusedCrossEntropy.apply(chosen, weight, bias, gold, smoothing)  # type: ignore[no-untyped-call]
    return loss
