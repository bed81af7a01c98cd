"""The output layer of a model that predicts words: logits of chosen positions and words, without those of a whole batch.

Positions × vocabulary is the largest tensor of a forward. The states before the output layer are small, and logits of a
few positions or words at once are made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headwise.core.errors import HeadwiseError
from headwise.models.attention.discover import output_of
from headwise.models.attention.offload import loaded

COMPARED_POSITIONS = 4  # positions whose logits the model itself computes, for comparison
BLOCK_WORDS = 2048  # of the vocabulary in a block, whose weights stay in the cache of a CPU
BLOCK_POSITIONS = 1024  # positions that meet a block together


def constants(model: nn.Module, layer: nn.Module) -> tuple[Tensor | None, float | None]:
    """What models add to their logits, V or 1 V, and the cap c of those that make x into c · tanh(x/c)."""
    # `final_logits_bias` is Marian's and BART's, a buffer of 1 V.
    biases = [
        bias
        for bias in (loaded(layer, "bias"), getattr(model, "final_logits_bias", None))
        if bias is not None
    ]
    config: Any = model.config
    cap: float | None = getattr(getattr(config, "decoder", config), "final_logit_softcapping", None)
    return (torch.stack([bias.flatten() for bias in biases]).sum(0) if biases else None), cap


@dataclass(frozen=True)
class Projection:
    """An output layer as most models have it: logits = cap · tanh((states weightᵀ + bias) / cap), or without a cap.

    weight V M, bias V or None.
    """

    weight: Tensor
    bias: Tensor | None
    cap: float | None

    def __call__(self, states: Tensor) -> Tensor:
        """The logits N V of states N M."""
        return self.capped(nn.functional.linear(states, self.weight, self.bias))

    def capped(self, logits: Tensor) -> Tensor:
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap

    def losses(self, states: Tensor, words: Tensor) -> Tensor:
        """The negative log likelihood of a word after each of the states: nats, N. states N M, words N.

        Memory does not grow with the vocabulary. Gradients are those of the states alone.
        """
        parts = []
        for rows, words_of_rows in zip(
            states.split(BLOCK_POSITIONS), words.split(BLOCK_POSITIONS), strict=True
        ):
            norms: Tensor = LogNorm.apply(rows, self)  # type: ignore[no-untyped-call]
            # −log p(word) = log Σ exp(logits) − logit(word).
            parts.append(norms - self.logits_of(rows, words_of_rows))
        return torch.cat(parts)

    def log_norms(self, states: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        """log Σ exp of the logits after each of the states, N, and with `slopes` its gradient, N M.

        Blocks of BLOCK_WORDS words are put together: the sums so far are scaled to the largest logit so far (Milakov and
        Gimelshein 2018, section 3).
        """
        largest, total = empty_sums(states)
        mean = torch.zeros_like(states, dtype=largest.dtype)
        for start in range(0, len(self.weight), BLOCK_WORDS):
            words = slice(start, start + BLOCK_WORDS)
            logits = self.block(states, words)
            # The first block scales zeros by exp(−∞) = 0.
            before = largest
            largest = torch.maximum(before, logits.amax(1))
            scale = (before - largest).exp()
            shares = (logits - largest[:, None]).exp_()
            total = total * scale + shares.sum(1)
            if slopes:
                if self.cap is not None:
                    # d/dx of c tanh(x/c) is 1 − tanh²(x/c).
                    shares *= 1 - (logits / self.cap).square()
                # ∂ log Σ exp / ∂ state = Σ p(word) · weight(word), here before it is divided by Σ.
                mean = mean * scale[:, None] + shares.to(states.dtype) @ self.weight[words]
        return total.log() + largest, mean / total[:, None]

    def logits_of(self, states: Tensor, words: Tensor) -> Tensor:
        """The logit of one word after each of the states, in float32 at least: N. states N M, words N."""
        # One row of the matrix a position, instead of all words.
        chosen = torch.einsum("nm,nm->n", states, self.weight.detach()[words])
        if self.bias is not None:
            chosen = chosen + self.bias[words]
        return self.capped(chosen).to(torch.promote_types(chosen.dtype, torch.float32))

    def losses_and_best(self, states: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """`losses`, without gradients, and the most likely word after each of the states, N, from the same logits."""
        parts = []
        for rows in states.detach().split(BLOCK_POSITIONS):
            largest, total = empty_sums(rows)
            best = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
            for start in range(0, len(self.weight), BLOCK_WORDS):
                logits = self.block(rows, slice(start, start + BLOCK_WORDS))
                values, likely = logits.max(1)
                # Among equal logits the earlier block wins.
                best = torch.where(values > largest, likely + start, best)
                before = largest
                largest = torch.maximum(before, values)
                shares = (logits - largest[:, None]).exp_()
                total = total * (before - largest).exp() + shares.sum(1)
            parts.append((total.log() + largest, best))
        norms, best = (torch.cat(each) for each in zip(*parts, strict=True))
        return norms - self.logits_of(states, words), best

    def block(self, states: Tensor, words: slice) -> Tensor:
        """The logits of some words, in float32 at least."""
        bias = None if self.bias is None else self.bias[words]
        logits = self.capped(nn.functional.linear(states, self.weight[words], bias))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def empty_sums(states: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit and the sum of exponentials of no words, N, in float32 at least."""
    wide = torch.promote_types(states.dtype, torch.float32)
    largest = states.new_full((len(states),), -torch.inf, dtype=wide)
    return largest, torch.zeros_like(largest)


class LogNorm(torch.autograd.Function):
    """`Projection.log_norms`, which computes its gradient in the forward pass, while the logits of a block are there.

    There is no second derivative.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, project: Projection) -> Tensor:
        # Without a gradient the slopes are zeros, which nobody reads.
        norms, slopes = project.log_norms(states, ctx.needs_input_grad[0])
        ctx.save_for_backward(slopes.to(states.dtype))
        return norms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return gradient[:, None].to(slopes.dtype) * slopes, None


def projection(model: nn.Module, device: torch.device) -> Projection | None:
    """The output layer of a model; None for a model with another sort of output layer."""
    layer: Any = model.get_output_embeddings()  # type: ignore[operator]
    if not isinstance(layer, nn.Linear):
        return None
    weight = loaded(layer).to(device)
    bias, cap = constants(model, layer)
    return Projection(weight, None if bias is None else bias.to(weight), cap)


@contextmanager
def few_logits(model: nn.Module) -> Iterator[list[Tensor]]:
    """In the block a forward computes logits of only the first few positions of the first sentence; the list gets the
    states before the output layer, B T M, of each forward."""
    seen: list[Tensor] = []

    def shorten(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(given[0])
        # A few, not none: the caller compares its own logits with these.
        return given[0][:1, :COMPARED_POSITIONS], *given[1:]

    hook = model.get_output_embeddings().register_forward_pre_hook(shorten)  # type: ignore[operator]
    try:
        yield seen
    finally:
        hook.remove()


def run_layers(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """One forward without a cache for its hooks alone: it ends before the output layer, whose logits nobody reads."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(head, nn.Linear):
        given_to(head, partial(output_of, model), {"inputs": inputs})
    else:
        output_of(model, inputs)


class AtOutputLayer(Exception):
    """Ends a forward where the output layer would begin."""


def states_before(
    layer: nn.Module, forward: Callable[..., Any], inputs: Mapping[str, Any]
) -> Tensor:
    """What a forward gives to the output layer: B T M. Raises HeadwiseError for a model that does not call it."""
    states = given_to(layer, forward, inputs)
    if not states:
        raise HeadwiseError(
            "This model uses the weights of its output layer without calling it, so headwise cannot train it."
        )
    return states[0]


def given_to(
    layer: nn.Module, forward: Callable[..., Any], inputs: Mapping[str, Any]
) -> list[Tensor]:
    """What a forward gives to a layer, where it ends: B T M; nothing where it does not call that layer (MobileBERT)."""
    states: list[Tensor] = []

    def stop(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        # Everything before the output layer has run; the rest is left out by an exception.
        states.append(given[0])
        raise AtOutputLayer

    hook = layer.register_forward_pre_hook(stop)
    try:
        with suppress(AtOutputLayer):
            forward(**inputs)
    finally:
        hook.remove()
    return states
