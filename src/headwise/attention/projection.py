"""The weights of the output projection, through which each head's output reaches the residual stream.

Modeling files name and shape this projection differently (`out_proj`, `o`, `c_proj`, BERT's in the parent module), so
it is found by its input: it is the linear layer that receives the heads' outputs unchanged.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headwise.attention import kernel
from headwise.attention.discover import Discovery, attention_interface, probe
from headwise.attention.offload import loaded
from headwise.errors import HeadwiseError
from headwise.heads import Site


def output_weights(model: nn.Module, discovery: Discovery) -> dict[Site, Tensor]:
    """The output projection of every attention layer, head by head: W of H D M, a view of the model's own weights.

    Head h adds c_h W_h to its layer's output, where c_h (of D) is its row of `AttentionCall.output`, without the bias.
    Runs one small forward. Raises HeadwiseError for a layer whose heads go through something else first.
    """
    weights: dict[Site, Tensor] = {}
    given: kernel.AttentionCall | None = None

    def hook(call: kernel.AttentionCall) -> None:
        nonlocal given
        given = call

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal given
        if given is None or not inputs or inputs[0].data_ptr() != given.output.data_ptr():
            return
        if inputs[0].numel() == given.output.numel():
            weight: Any = loaded(module)
            by_input = weight if isinstance(module, Conv1D) else weight.t()
            weights[given.site] = by_input.detach().unflatten(0, tuple(given.output.shape[2:]))
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
        if site not in weights:
            raise HeadwiseError(
                f"The output projection of {name} ({type(discovery.modules[site]).__name__}) was to be read, but no linear "
                "layer takes the outputs of its heads unchanged: what a head adds there is unknown."
            )
    return weights
