"""A `with` block in which a model's attention heads can be read, scaled, silenced or replaced.

After the block the model is as before. Blocks can be nested: the inner one sees the model that the outer one makes, so
reading a masked model is `with keeping(...), capture(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError, shown_value
from headwise.core.heads import Site, describe
from headwise.core.layout import HeadMask
from headwise.models.attention import kernel
from headwise.models.attention.discover import Discovery, attention_interface, refuse_no_module
from headwise.models.attention.kernel import AttentionCall, Gate, Hooks, HookState
from headwise.models.attention.offload import device_of


@contextmanager
def capture(
    model: nn.Module,
    discovery: Discovery,
    *,
    hook: Callable[[AttentionCall], None] | None = None,
    weights: bool = False,
    gates: Mapping[Site, Gate] | None = None,
    replace: Mapping[Site, Callable[[AttentionCall], Tensor]] | None = None,
    explicit: bool = False,
) -> Iterator[None]:
    """Read, scale or replace the heads of a model; after the block, or an error in it, the model is as before.

    hook: called at every site; with `weights=True` the call has its weights (B H Q K, freed after the call).
    gates: by site, a tensor (H, or B H) or a function that gives one, multiplied with the heads' outputs (B Q H D)
        before the output projection: 0 silences a head, 1 changes nothing, bit for bit.
    replace: by site, a function from `AttentionCall` to another output of the same shape; a gate comes after it.
    explicit: always compute attention by plain matrix products (for training on CPU).
    """
    refuse_no_module(model)
    if hook is not None and not callable(hook):
        raise HeadwiseError(
            f"hook is {shown_value(hook)}: give a function, which gets each AttentionCall."
        )
    gates, replace = gates or {}, replace or {}
    refuse_strangers(model, discovery, {*gates, *replace})
    states: dict[nn.Module, HookState] = {}
    # Gates alone need no calls: layers of own code then run without a recorder.
    calls = False
    for site, module in discovery.modules.items():
        outer: HookState | None = module.__dict__.get(kernel.INTERFACE_NAME)
        state = states.setdefault(
            module, HookState(explicit or (outer is not None and outer.explicit))
        )
        # Only the innermost state of a module acts, so it carries on the hooks of the blocks around it.
        before = outer.passes[len(state.passes)][1] if outer else []
        opened = [*before, Hooks(hook, weights, gates.get(site), replace.get(site))]
        state.passes.append((site, opened))
        calls = calls or any(hooks.hook or hooks.replace for hooks in opened)

    def restart(*_: object) -> None:
        """Every forward counts its passes from 0: one that failed half-way must not shift a shared module's layers."""
        for state in states.values():
            state.calls = 0

    with attention_interface(model, discovery, states, calls), ExitStack() as block:
        block.callback(model.register_forward_pre_hook(restart).remove)
        yield


def refuse_captured(model: nn.Module, what: str) -> None:
    """Raise HeadwiseError for what reads the weights alone, while heads are silenced or replaced."""
    if any(kernel.INTERFACE_NAME in vars(module) for module in model.modules()):
        raise HeadwiseError(
            f"{what} reads the weights of this {type(model).__name__}, but a `with` block reads or changes its "
            "heads: leave the block first."
        )


def refuse_strangers(model: nn.Module, discovery: Discovery, sites: Iterable[Site]) -> None:
    """Raise HeadwiseError for hooks on layers that the model does not have, and for another model's map of heads."""
    for site in sites:
        if site not in discovery.modules:
            raise HeadwiseError(
                f"A gate or replacement was given for {site}, but this model has no such layer."
            )
    if not set(discovery.modules.values()) <= set(model.modules()):
        raise HeadwiseError(
            f"The map of heads belongs to another model than this {type(model).__name__} "
            "(a copy, or the same before heads were removed): discover its heads again."
        )


@contextmanager
def keeping(model: nn.Module, discovery: Discovery, mask: HeadMask) -> Iterator[None]:
    """The model with only the heads of a mask: all others' outputs are zero (Michel et al. 2019, section 2.3)."""
    refuse_other_heads(discovery, mask)
    dtype = next(model.parameters()).dtype
    gates = {site: kept.to(dtype) for site, kept in kept_heads(model, discovery, mask).items()}
    with capture(model, discovery, gates=gates):
        yield


def kept_heads(model: nn.Module, discovery: Discovery, mask: HeadMask) -> dict[Site, Tensor]:
    """By site, whether a mask keeps each head: booleans H on the model's device, which get there in one transfer."""
    heads = discovery.heads
    kept = torch.tensor(
        [head in mask.kept for head in heads], dtype=torch.bool, device=device_of(model)
    )
    counts = [heads.count(site) for site in heads.sites]
    return dict(zip(heads.sites, kept.split(counts), strict=True))


def refuse_other_heads(discovery: Discovery, mask: HeadMask) -> None:
    """Raise HeadwiseError unless the mask is over exactly the heads that the model has."""
    if mask.heads.query != discovery.heads.query:
        raise HeadwiseError(
            f"The layout is for a model with {describe(mask.heads)} heads, but this one has "
            f"{describe(discovery.heads)}: give the layout of this model."
        )
