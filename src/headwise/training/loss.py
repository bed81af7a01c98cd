"""Label-smoothed cross-entropy from the decoder's states, without the logits of a whole batch in memory.

Positions × vocabulary is the largest tensor of a small translation model. Here the states are projected in chunks, and
the forward pass also computes each chunk's gradient, while its softmax is in the cache. On CPU only target positions
are projected; finding them would make the processor wait for a GPU, which projects padding as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.training.token_batches import IGNORED

CHUNK = (
    256  # positions projected at once on CPU; the last chunk is padded, so that there is one shape
)
LOGITS = 2**26  # logits at once elsewhere: 256 MB in float32


class FusedCrossEntropy(torch.autograd.Function):
    """Summed label-smoothed cross-entropy of `states @ weight.T + bias` against `labels`.

    (1 − ε) · (−log p[label]) + ε · mean over the vocabulary of −log p (Szegedy et al. 2016; ε/V on every type, as in
    torch). states N M, weight V M, bias V or None, labels N (IGNORED for padding). cap c: the logits x become
    c · tanh(x/c). size: positions in a chunk. The softmax is in float32 at least. There are no second derivatives.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        cap: float | None,
        size: int,
    ) -> Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        total = states.new_zeros((), dtype=wide)
        words = weight.shape[0]
        grad_states = torch.empty_like(states) if any(ctx.needs_input_grad) else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        grad_bias = weight.new_zeros(words, dtype=wide) if ctx.needs_input_grad[2] else None
        for start in range(0, len(labels), size):
            chunk, gold = states[start : start + size], labels[start : start + size, None]
            real = (gold != IGNORED).to(wide)
            gold = gold.clamp_min(0)
            logits = (chunk @ weight.t()).to(wide)
            if bias is not None:
                logits += bias
            if cap is not None:
                logits = logits.div_(cap).tanh_().mul_(cap)
            slope = (
                1 - (logits / cap).square() if cap is not None and grad_states is not None else None
            )
            norm = torch.logsumexp(logits, -1, keepdim=True)
            hit, mean = norm - logits.gather(1, gold), norm - logits.mean(1, keepdim=True)
            total += ((1 - smoothing) * hit + smoothing * mean).mul_(real).sum()
            if grad_states is None:
                continue
            grad = logits.sub_(norm).exp_().sub_(smoothing / words)
            grad.scatter_add_(1, gold, grad.new_full(gold.shape, smoothing - 1))
            grad = grad.mul_(real)
            if slope is not None:
                grad = grad.mul_(slope)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(weight.dtype)
            grad_states[start : start + size] = grad @ weight
            if grad_weight is not None:
                grad_weight += grad.t() @ chunk
        ctx.save_for_backward(grad_states, grad_weight, grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_weight, grad_bias = ctx.saved_tensors
        if grad_weight is not None:
            grad_weight = grad_weight * grads[0]
        if grad_bias is not None:
            grad_bias = grad_bias * grads[0]
        return (
            grad_states * grads[0].to(grad_states.dtype),
            grad_weight,
            grad_bias,
            None,
            None,
            None,
            None,
        )


def summed_loss(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    cap: float | None = None,
) -> Tensor:
    """The summed loss over the target positions of a batch: states B T M, labels B T, bias V or 1 V.

    With autocast the projection has autocast's dtype. Gradients are computed only with autograd on.
    """
    device = states.device.type
    chosen, gold = (target_positions if device == "cpu" else all_positions)(
        states.flatten(0, 1), labels.flatten()
    )
    size = CHUNK if device == "cpu" else max(CHUNK, LOGITS // len(weight))
    if not torch.is_grad_enabled():
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    bias = None if bias is None else bias.flatten()
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        chosen, weight = chosen.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        loss: Tensor = FusedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            chosen, weight, bias, gold, smoothing, cap, size
        )
    return loss


def target_positions(states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """States N M and labels N at positions with a target, filled up to whole chunks."""
    where = (labels != IGNORED).nonzero().squeeze(1)
    fill = -len(where) % CHUNK
    gold = torch.cat([labels[where], labels.new_full((fill,), IGNORED)])
    return states.index_select(0, torch.cat([where, where.new_zeros(fill)])), gold


def all_positions(states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """States N M and labels N as they are."""
    return states, labels
