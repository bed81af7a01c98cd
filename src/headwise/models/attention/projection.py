"""The weights of the output projection, through which each head's output reaches the residual stream.

Modeling files name and shape this projection differently (`out_proj`, `o`, `c_proj`, BERT's in the parent module), so
it is found by its input: it is the linear layer that receives the heads' outputs unchanged.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention import kernel
from headwise.models.attention.discover import Discovery, attention_interface, probe
from headwise.models.attention.offload import loaded


@dataclass(frozen=True)
class LinearNorm:
    """The linear part of a norm: x → gain ⊙ x, where x is less its mean if the norm centres. What a norm divides by at a
    token is one number for all heads, and is left out; so is what it adds, bias."""

    gain: Tensor  # M
    centres: Tensor  # 1 or 0, on the device of the model, which nothing waits for
    bias: Tensor  # M

    @classmethod
    def of(cls, norm: nn.Module, like: Tensor) -> LinearNorm:
        """Measured on numbers of mean 0 and size 1, and on ones. like: what a forward gave the norm, … M."""
        # 1, −1, 1, −1 …: a norm only scales these, element by element.
        # Mean 0 and size 1, so neither centring nor scaling changes it.
        signs = torch.ones(like.shape[-1], dtype=like.dtype, device=like.device)
        ones = signs.clone()
        signs[1::2] = -1
        with torch.no_grad():
            # gain ⊙ s + bias and −gain ⊙ s + bias: half their sum is the bias, half their difference the gain.
            raised, lowered = norm(signs), norm(-signs)
            bias = (raised + lowered) / 2
            # A norm that centres makes zeros of ones.
            centres = ((norm(ones) - bias).abs() < 1e-3 * raised.abs().max()).all()
        return cls((raised - lowered) / 2 * signs, centres, bias)

    def __call__(self, weights: Tensor) -> Tensor:
        """Weights H D M, followed by the norm."""
        mean = weights.mean(-1, keepdim=True) * self.centres.to(weights)
        return (weights - mean) * self.gain.to(weights)


def direct_weights(model: nn.Module, discovery: Discovery) -> dict[Site, Tensor]:
    """`output_weights`, followed by the norms on the direct path from a head to the logits: the one that some families
    have before the residual stream (Gemma 2 and 3, OLMo 2), and in a decoder the final norm before the output layer.

    At a token, head h adds c_h W_h to the input of the output layer, up to a positive factor that all heads of the
    layer share.
    """
    weights = output_weights(model, discovery)
    modules = dict(model.named_modules())
    # The norms by their inputs: those that get what an attention layer returned.
    projected: dict[int, Site] = {}
    alive: list[Tensor] = []
    norms: dict[Site, LinearNorm] = {}
    # The final norm gives what the output layer gets.
    normed: dict[int, tuple[nn.Module, Tensor]] = {}
    final: list[LinearNorm] = []

    def note_output(site: Site, _: nn.Module, __: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        projected[states.data_ptr()] = site
        # Kept alive, so that no other tensor gets its place in memory.
        alive.append(states)

    def note_norm(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        site = projected.get(inputs[0].data_ptr()) if inputs else None
        if (
            site is not None
            and site not in norms
            and inputs[0].shape[-1] == weights[site].shape[-1]
        ):
            norms[site] = LinearNorm.of(norm, inputs[0])

    def note_normed(norm: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            normed[output.data_ptr()] = norm, output

    def note_final(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        norm, states = normed.get(inputs[0].data_ptr(), (None, None))
        if norm is not None and states is not None and not final:
            final.append(LinearNorm.of(norm, states))

    # None in an encoder without an output layer: then there is no final norm to follow.
    head = model.get_output_embeddings()  # type: ignore[operator]
    with ExitStack() as block:
        for site, name in discovery.names.items():
            attention = modules[name]
            hook = partial(note_output, site)
            block.callback(attention.register_forward_hook(hook).remove)
        for module in model.modules():
            if type(module).__name__.endswith("Norm"):
                block.callback(module.register_forward_pre_hook(note_norm).remove)
                block.callback(module.register_forward_hook(note_normed).remove)
        if head is not None:
            block.callback(head.register_forward_pre_hook(note_final).remove)
        probe(model)
    direct = {}
    for site, weight in weights.items():
        if site in norms:
            weight = norms[site](weight)
        # What encoder heads add goes to the decoder by attention, not straight to logits.
        if final and site.kind != "encoder-self":
            weight = final[0](weight)
        direct[site] = weight
    return direct


def output_weights(model: nn.Module, discovery: Discovery) -> dict[Site, Tensor]:
    """The output projection of every attention layer, head by head: W of H D M, a view of the model's own weights.

    Head h adds c_h W_h to its layer's output, where c_h (of D) is its row of `AttentionCall.output`, without the bias.
    Runs one small forward. Raises HeadwiseError for a layer whose heads go through something else first.
    """
    return {site: weight for site, (_, weight) in output_layers(model, discovery).items()}


def output_layers(model: nn.Module, discovery: Discovery) -> dict[Site, tuple[nn.Module, Tensor]]:
    """The module of every output projection, with its `output_weights`."""
    layers: dict[Site, tuple[nn.Module, Tensor]] = {}
    given: kernel.AttentionCall | None = None

    def hook(call: kernel.AttentionCall) -> None:
        nonlocal given
        given = call

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal given
        # The same memory, whatever the shape: layers flatten the heads before they project them.
        if given is None or not inputs or inputs[0].data_ptr() != given.output.data_ptr():
            return
        if inputs[0].numel() == given.output.numel():
            weight: Any = loaded(module)
            by_input = weight if isinstance(module, Conv1D) else weight.t()
            weight = by_input.detach().unflatten(0, tuple(given.output.shape[2:]))
            layers[given.site] = module, weight
            # Taken: the next linear layer has another input, even at the same place in memory.
            given = None

    states: dict[nn.Module, kernel.HookState] = {}
    for site, module in discovery.modules.items():
        states.setdefault(module, kernel.HookState()).passes.append(
            (site, [kernel.Hooks(hook=hook)])
        )
    with attention_interface(model, discovery, states), ExitStack() as block:
        for module in model.modules():
            if isinstance(module, (nn.Linear, Conv1D)):
                block.callback(module.register_forward_pre_hook(note).remove)
        probe(model)
    for site, name in discovery.names.items():
        if site not in layers:
            raise HeadwiseError(
                f"No linear layer takes the outputs of the heads of {name} ({type(discovery.modules[site]).__name__}) "
                "unchanged, so what a head adds there is unknown."
            )
    return layers
