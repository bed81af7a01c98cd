"""Running a model on a text layer by layer: what lies below the layer in work is not computed again.

Repair changes the layers from the bottom up, and every layer reads all of the text before the next one does. A model's
own forward runs one batch through all layers. Here it runs up to a layer and ends there; the blocks below give what
they gave before. So a family needs no code of its own: masks, positions and whatever else a model computes around its
blocks is computed by the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention.discover import (
    Discovery,
    evaluating,
    example_batch,
    output_of,
    probe,
)
from headwise.models.attention.projection import LinearNorm
from headwise.models.attention.removal import layer_at

NEAR = 1e-3  # of the largest number: how far apart sums may be that were rounded in another order


@dataclass(frozen=True)
class Sublayer:
    """An attention layer and what follows it, modules by their names.

    out: the output projection. block: the element of the model's list of layers; empty where there is none. branch: a
    norm between `out` and the residual stream (Gemma 2 and 3, OLMo 2). reader: the norm that reads the sum of the
    residual stream and what the layer adds, where one does. centres: whether that norm subtracts the mean, so that it
    divides by a standard deviation.
    """

    site: Site
    out: str
    block: str
    branch: str = ""
    reader: str = ""
    centres: bool = False


@dataclass(frozen=True)
class End:
    """Where the states are that count: before a module or after it; without one, at the end of the model."""

    module: str = ""
    before: bool = False


class Reached(Exception):
    """Ends a forward where nobody reads the rest."""


def first_tensor(given: Iterable[Any]) -> Tensor | None:
    """The first tensor among the arguments or results of a module."""
    return next((one for one in given if isinstance(one, Tensor)), None)


def given_states(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The hidden states that a module got."""
    named = kwargs.get("hidden_states")
    return named if isinstance(named, Tensor) else first_tensor((*args, *kwargs.values()))


def block_of(name: str, modules: Mapping[str, nn.Module]) -> str:
    """The element of the outermost list of modules in which a module is; empty where it is in none."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        if isinstance(modules.get(".".join(parts[:depth])), nn.ModuleList):
            return ".".join(parts[: depth + 1])
    return ""


def sublayers(model: nn.Module, discovery: Discovery) -> list[Sublayer]:
    """The attention layers of a model that have heads, in the order in which they run; without those whose projections have
    no known form, from which no head can be removed. Runs one small forward.

    The sum that the next norm reads is found without names: after the output projection gave o, it is the first norm
    whose input, less o (or less what a norm made of o), is a state that the layer or a norm of its block was given.
    Raises HeadwiseError where states are not sentences × tokens × width.
    """
    modules = dict(model.named_modules())
    names = {module: name for name, module in modules.items()}
    outs: dict[nn.Module, Site] = {}
    for site in discovery.heads.sites:
        if discovery.heads.count(site):
            with suppress(HeadwiseError):
                outs[layer_at(modules, discovery, site).out] = site
    sentences = len(next(iter(example_batch(model).values())))
    found: dict[Site, Sublayer] = {}
    known: list[Tensor] = []
    added: list[Tensor] = []  # of the layer that ran last, until its sum was found
    last: list[Site] = []

    def note_input(_: nn.Module, args: Any, kwargs: Any) -> None:
        states = given_states(args, kwargs)
        if states is not None:
            known.append(states.clone())

    def note_block(module: nn.Module, args: Any, kwargs: Any) -> None:
        # A block's own input is the first residual state that its norms may have read.
        known.clear()
        note_input(module, args, kwargs)

    def note_out(module: nn.Module, _: Any, output: Tensor) -> None:
        site = outs[module]
        # FSMT has tokens before sentences.
        if output.dim() != 3 or len(output) != sentences:
            raise HeadwiseError(
                f"{names[module]} of this {type(model).__name__} gives no states by sentence and token, so it cannot be "
                "fitted: remove heads without repair."
            )
        found[site] = Sublayer(site, names[module], block_of(names[module], modules))
        last[:], added[:] = [site], [output.clone()]

    def note_norm(norm: nn.Module, args: Any, kwargs: Any) -> None:
        states = given_states(args, kwargs)
        if states is None:
            return
        if added and states.shape == added[0].shape:
            layer = found[last[0]]
            # The norm got the layer's output itself: it stands on the branch (Gemma 2, OLMo 2).
            if not layer.branch and alike(states, added[0]):
                found[layer.site] = Sublayer(layer.site, layer.out, layer.block, names[norm])
                return
            # sum − o = a state that was there before: this norm reads the residual sum.
            if any(alike(states - added[0], state) for state in known):
                centres = bool(LinearNorm.of(norm, states).centres)
                found[layer.site] = Sublayer(
                    layer.site, layer.out, layer.block, layer.branch, names[norm], centres
                )
                added.clear()
        known.append(states.clone())

    def note_normed(norm: nn.Module, _: Any, output: Any) -> None:
        if added and isinstance(output, Tensor) and found[last[0]].branch == names[norm]:
            added[0] = output.clone()

    with ExitStack() as stack:
        for name in {block_of(names[out], modules) for out in outs} - {""}:
            hooked = modules[name].register_forward_pre_hook(note_block, with_kwargs=True)
            stack.callback(hooked.remove)
        for attention in {*discovery.modules.values()}:
            hooked = attention.register_forward_pre_hook(note_input, with_kwargs=True)
            stack.callback(hooked.remove)
        for module in modules.values():
            if type(module).__name__.endswith("Norm"):
                hooked = module.register_forward_pre_hook(note_norm, with_kwargs=True)
                stack.callback(hooked.remove)
                stack.callback(module.register_forward_hook(note_normed).remove)
        for out in outs:
            stack.callback(out.register_forward_hook(note_out).remove)
        probe(model)
    return list(found.values())


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two states are equal but for rounding."""
    if one.shape != other.shape:
        return False
    return float((one - other).abs().max()) <= NEAR * float(other.abs().max())


def stack_of(block: str) -> str:
    """The list of modules that a block is in."""
    return block.rpartition(".")[0]


class Stages:
    """A model that runs on a text up to a layer, again and again, each time from the last finished block on.

    batches: what the model's forward gets, by batch. Memory holds the output of one block for every batch.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Mapping[str, Tensor]]) -> None:
        self.model = model
        self.modules = dict(model.named_modules())
        self.batches = batches
        self.finished: list[str] = []
        # by stack, what its last finished block gave
        self.given: dict[str, list[Any]] = {}

    def look(
        self, number: int, names: Iterable[str], until: str, before: bool = False
    ) -> dict[str, tuple[Tensor, Any]]:
        """The input and output of some modules in the forward of a batch, by name.

        until: the module after which the forward ends; before it, with `before`: then the module has its input alone.
        """
        seen: dict[str, tuple[Tensor, Any]] = {}

        def note(name: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            states = given_states(args, kwargs)
            seen[name] = (states if states is not None else output, output)
            if name == until:
                raise Reached

        def stop(_: nn.Module, args: Any, kwargs: Any) -> None:
            states = given_states(args, kwargs)
            assert states is not None
            seen[until] = states, None
            raise Reached

        with ExitStack() as stack:
            for name in {*names, until}:
                module = self.modules[name]
                if name == until and before:
                    hooked = module.register_forward_pre_hook(stop, with_kwargs=True)
                else:
                    hooked = module.register_forward_hook(partial(note, name), with_kwargs=True)
                stack.callback(hooked.remove)
            self.run(number)
        return seen

    def run(self, number: int) -> Any:
        """One forward of a batch, in which finished blocks give what they gave."""
        with self.shortened(number), evaluating(self.model), torch.no_grad():
            try:
                return output_of(self.model, self.batches[number])
            except Reached:
                return None

    @contextmanager
    def shortened(self, number: int) -> Iterator[None]:
        """The model whose finished blocks give what the last of them gave for a batch."""
        # The last one's output is all that the blocks above read; what those below give is read by none.
        for name in self.finished:
            given = self.given[stack_of(name)][number]
            self.modules[name].forward = lambda *_, given=given, **__: given
        try:
            yield
        finally:
            for name in self.finished:
                del self.modules[name].forward

    def finish(self, block: str) -> None:
        """Keep what a block gives for every batch, so that no later forward runs it or what lies below."""
        if not block:
            return
        self.given[stack_of(block)] = [
            self.look(number, [], block)[block][1] for number in range(len(self.batches))
        ]
        self.finished.append(block)

    def last_states(self, number: int, end: End) -> Tensor:
        """The last states of a batch, as the next reader gets them: B S M, or B C of a model of classes."""
        if end.module:
            states, output = self.look(number, [], end.module, end.before)[end.module]
            given = states if end.before else output
        else:
            given = self.run(number)
        first = given if isinstance(given, Tensor) else given[0]
        assert isinstance(first, Tensor)
        return first


def look_at_sum(stages: Stages, layer: Sublayer, number: int) -> dict[str, tuple[Tensor, Any]]:
    """What the output projection of a layer got and gave for a batch, and what the norm behind it got, by their names."""
    if layer.reader:
        return stages.look(number, [layer.out], layer.reader, before=True)
    return stages.look(number, [], layer.out)


def error_weights(layer: Sublayer, seen: Mapping[str, tuple[Tensor, Any]]) -> Tensor:
    """How much an error of a layer counts at each token: 1 / what the norms behind divide by, B S. seen:
    `look_at_sum` of the whole model."""
    given = seen[layer.out][1].float()
    weights = torch.ones_like(given[..., 0])
    if layer.branch:
        weights = weights / given.square().mean(-1).sqrt()
    if layer.reader:
        total = seen[layer.reader][0].float()
        power = total.var(-1, correction=0) if layer.centres else total.square().mean(-1)
        weights = weights / power.sqrt()
    return weights
