"""Families whose layers compute attention in their own code, past transformers' registry (Bloom, GPT-J, DeBERTa …).

There the heads' outputs are the product of softmax weights and values, and it reaches the output projection unchanged:
discovery checks that, number by number, so no family is named here. A recorder in the layer's forward sees weights
and values; a hook at the projection's input scales and replaces. Both go when the block ends. Queries and keys are not
seen, so relevance propagation is refused. Some families treat long text in another way than the probe's (BigBird): then
the product does not arrive, and hooks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention import kernel
from headwise.models.attention.matrices import projections

SOFTMAX = {nn.functional.softmax, torch.softmax, Tensor.softmax}
# The arguments of scaled_dot_product_attention, in order.
FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm}


@dataclass(frozen=True)
class Output:
    """Where the heads' outputs of such a layer arrive. size: of a head. time_first: whether states are Q B M (FSMT)."""

    projection: nn.Module
    size: int
    time_first: bool

    def heads(self, states: Tensor) -> Tensor:
        """The input of the projection as B Q H D."""
        whole: Tensor = states.unflatten(-1, (-1, self.size))
        return whole.transpose(0, 1) if self.time_first else whole

    def states(self, heads: Tensor) -> Tensor:
        """The heads' outputs B Q H D as the input of the projection."""
        return (heads.transpose(0, 1) if self.time_first else heads).flatten(2)


class Recorder(TorchFunctionMode):
    """What a forward multiplied last: softmax weights with values, or in PyTorch's own attention (Falcon)."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        self.scores: Tensor | None = None
        self.weights: Tensor | None = None
        self.value: Tensor | None = None
        self.product: Tensor | None = None
        self.fused: dict[str, Any] = {}

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        if function in SOFTMAX:
            # Before the softmax: where they are far below zero, the mask hid a key.
            self.scores = args[0] if args else (kwargs or {})["input"]
            self.weights = out
            self.product = None
        # The first product after the softmax; later ones, such as that of a projection, are others.
        elif function in PRODUCTS and self.weights is not None and self.product is None:
            self.value, self.product = args[1], out
        elif function is nn.functional.scaled_dot_product_attention:
            self.fused = dict(zip(FUSED, args, strict=False)) | (kwargs or {})
            self.value, self.product = self.fused["value"], out
        return out

    def call(self, site: Site, output: Tensor, weighed: bool) -> kernel.AttentionCall:
        """What was seen, for heads' outputs B Q H D; with weights when asked for. Queries and keys are NaN where only
        the weights were seen."""
        assert self.value is not None
        batch, queries, heads, size = output.shape
        # Some families put sentences and heads on one axis, B·H K D.
        value = self.value.reshape(batch, -1, *self.value.shape[-2:])
        if self.weights is not None and self.scores is not None:
            seen = self.weights.reshape(batch, heads, queries, -1)
            scores = self.scores.detach().reshape(seen.shape)
            # The mask is in the scores; a key is hidden where no head sees it.
            mask = (scores > kernel.HIDDEN).any(1, keepdim=True)
            # NaN, so that a hook that reads queries or keys all the same cannot go unnoticed.
            unseen = output.new_full((), torch.nan)
            query, key = unseen.expand(batch, heads, queries, size), unseen.expand(value.shape)
            return kernel.AttentionCall(site, query, key, value, mask, seen, output)
        query, key = self.fused["query"], self.fused["key"]
        every = torch.ones(1, 1, queries, key.shape[2], dtype=torch.bool, device=query.device)
        given: Tensor | None = self.fused.get("attn_mask")
        mask = (
            given if given is not None else every.tril() if self.fused.get("is_causal") else every
        )
        weights = kernel.weigh(query, key, mask, self.fused.get("scale"), {}) if weighed else None
        return kernel.AttentionCall(site, query, key, value, mask[:, :1], weights, output)


def recorded_forwards(
    recorders: Mapping[nn.Module, Recorder],
) -> dict[nn.Module, Callable[..., Any]]:
    """The forward of each module, with its recorder."""

    def run(recorder: Recorder, usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # What is left of a forward that failed must not pass for this one's.
        recorder.clear()
        with recorder:
            return usual(*args, **kwargs)

    return {
        module: partial(run, recorder, module.forward) for module, recorder in recorders.items()
    }


@contextmanager
def finding_inline(
    model: nn.Module, note: Callable[[nn.Module, Output, kernel.AttentionCall], None]
) -> Iterator[None]:
    """A `with` block for one forward, in which `note` gets every layer whose own code computes attention."""
    outs = dict(projections(model))
    recorders = {module: Recorder() for module in outs}

    def look(module: nn.Module, projection: nn.Module, inputs: tuple[Any, ...]) -> None:
        recorder = recorders[module]
        if recorder.product is not None:
            output = fit_product(projection, inputs[0], recorder.product)
            if output is not None:
                heads = output.heads(inputs[0])
                note(module, output, recorder.call(Site("encoder-self", 0), heads, False))
        recorder.clear()

    with kernel.patched("forward", recorded_forwards(recorders)), ExitStack() as block:
        for module, projection in outs.items():
            block.callback(projection.register_forward_pre_hook(partial(look, module)).remove)
        yield


def fit_product(projection: nn.Module, states: Tensor, product: Tensor) -> Output | None:
    """How a product of weights and values, B H Q D or B·H Q D, became the input of a projection; None if it did not."""
    # Most families have B Q M; FSMT has Q B M.
    for time_first in (False, True):
        batch, queries = states.shape[int(time_first)], states.shape[int(not time_first)]
        # Not even the numbers of this projection: no need to compare them.
        if product.shape[-2] != queries or product.numel() != states.numel():
            continue
        output = Output(projection, product.shape[-1], time_first)
        heads = product.reshape(batch, -1, *product.shape[-2:]).transpose(1, 2)
        # Equal bit by bit: a layer that changes the outputs on the way is another formula.
        if torch.equal(output.states(heads), states):
            return output
    return None


def arrive(
    module: nn.Module,
    state: kernel.HookState,
    output: Output,
    recorder: Recorder,
    _: nn.Module,
    inputs: tuple[Any, ...],
) -> Any:
    """The hooks of a site, at the input of its output projection. Only the innermost capture acts."""
    if module.__dict__.get(kernel.INTERFACE_NAME) is not state:
        return None
    site, opened = state.next()
    heads = output.heads(inputs[0])
    call = None
    if any(hooks.hook or hooks.replace for hooks in opened):
        if recorder.product is None or recorder.product.numel() != inputs[0].numel():
            raise HeadwiseError(
                f"A {type(module).__name__} of this model computes attention in another way for this text than for a "
                "short one: its heads can be masked and removed, but no hook can read them. Give shorter text."
            )
        call = recorder.call(site, heads, any(hooks.weights for hooks in opened))
    # The numbers of a layer are not kept until its next forward.
    recorder.clear()
    changed = kernel.hooked(opened, call, heads)
    touched = any(hooks.replace or hooks.gate is not None for hooks in opened)
    return (output.states(changed), *inputs[1:]) if touched else None
