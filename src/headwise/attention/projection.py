"""How each head's output reaches the residual stream: the weights of the output projection, read, never changed.

Modeling files name and shape this projection differently (`out_proj`, `o`, `c_proj`, BERT's in the parent module). It
is found by what flows into it instead: the linear layer that is given the heads' outputs just as they left attention.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headwise.attention import kernel
from headwise.attention.discover import Discovery, installed, probe, routed
from headwise.errors import HeadwiseError
from headwise.heads import Site


def output_weights(model: nn.Module, found: Discovery) -> dict[Site, Tensor]:
    """The output projection of every attention layer, head by head: W of H D M, a view of the model's own weights.

    Head h adds c_h W_h to its layer's output, where c_h (of D) is its row of `Seen.output`; the projection's bias comes
    on top. Runs one small forward. Raises HeadwiseError for a layer whose heads go through something else first.
    """
    weights: dict[Site, Tensor] = {}
    given: kernel.Seen | None = None

    def watch(seen: kernel.Seen) -> None:
        nonlocal given
        given = seen

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal given
        if given is None or not inputs or inputs[0].data_ptr() != given.output.data_ptr():
            return
        if inputs[0].numel() == given.output.numel():
            weight: Any = module.weight
            by_input = weight if isinstance(module, Conv1D) else weight.t()
            weights[given.site] = by_input.detach().unflatten(0, tuple(given.output.shape[2:]))
            given = None

    slots: dict[nn.Module, kernel.Slot] = {}
    for site, module in found.modules.items():
        slots.setdefault(module, kernel.Slot()).passes.append((site, [kernel.Orders(watch=watch)]))
    with ExitStack() as block:
        for module in model.modules():
            if isinstance(module, (nn.Linear, Conv1D)):
                block.callback(module.register_forward_pre_hook(note).remove)
        block.enter_context(routed(model))
        block.enter_context(installed(slots))
        probe(model)
    for site, name in found.names.items():
        if site not in weights:
            raise HeadwiseError(
                f"The output projection of {name} ({type(found.modules[site]).__name__}) was to be read, but no linear "
                "layer takes the outputs of its heads as they are: what a head adds there cannot be told."
            )
    return weights
