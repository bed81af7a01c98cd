"""The one trick: a block in which a model's attention heads can be watched, scaled, silenced or replaced.

After the block the model is as before. Blocks may lie in one another: the inner one sees the model that the outer one
makes, so watching a masked model is `with masked(...), capture(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from headwise.attention import kernel
from headwise.attention.discover import Discovery, installed, routed
from headwise.attention.kernel import Orders, Seen, Slot
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask, Site, describe

Gate = Tensor | Callable[[], Tensor]


@contextmanager
def capture(
    model: nn.Module,
    found: Discovery,
    *,
    watch: Callable[[Seen], None] | None = None,
    weights: bool = False,
    gates: Mapping[Site, Gate] | None = None,
    replace: Mapping[Site, Callable[[Seen], Tensor]] | None = None,
    explicit: bool = False,
) -> Iterator[None]:
    """Watch, scale or replace the heads of a model inside a `with` block; it comes back unchanged, after an error too.

    watch: called with a `Seen` at every site; `weights=True` fills `Seen.weights` (B H Q K, gone after the call).
    gates: by site, a tensor (H, or B H) or a function that gives one, multiplied with the heads' outputs (B Q H D)
        before the output projection: 0 silences a head, 1 changes nothing, bit for bit.
    replace: by site, a function from `Seen` to another output of the same shape; a gate comes after it.
    explicit: build the weights by plain matrix products even when nobody looks (for training on CPU).
    """
    gates, replace = gates or {}, replace or {}
    refuse_strangers(model, found, {*gates, *replace})
    slots: dict[nn.Module, Slot] = {}
    for site, module in found.modules.items():
        outer: Slot | None = module.__dict__.get(kernel.NAME)
        slot = slots.setdefault(module, Slot(explicit or (outer is not None and outer.explicit)))
        before = outer.passes[len(slot.passes)][1] if outer else []
        orders = Orders(watch, weights, _callable(gates.get(site)), replace.get(site))
        slot.passes.append((site, [*before, orders]))
    with routed(model), installed(slots), counted(model, slots.values()):
        yield


def refuse_strangers(model: nn.Module, found: Discovery, ordered: Iterable[Site]) -> None:
    """Orders that would reach nothing are an error, not silence."""
    for site in ordered:
        if site not in found.modules:
            raise HeadwiseError(
                f"Orders were given for {site.kind} layer {site.layer}, but this model has no such layer."
            )
    if not set(found.modules.values()) <= set(model.modules()):
        raise HeadwiseError(
            f"The map of heads belongs to another model than this {type(model).__name__} "
            "(a copy, or the same before heads were cut out): discover its heads anew."
        )


@contextmanager
def counted(model: nn.Module, slots: Iterable[Slot]) -> Iterator[None]:
    """Begin at the first pass in every forward, so that one that failed half-way shifts no layer of a shared module."""

    def restart(*_: object) -> None:
        for slot in slots:
            slot.calls = 0

    hook = model.register_forward_pre_hook(restart)
    try:
        yield
    finally:
        hook.remove()


def _callable(gate: Gate | None) -> Callable[[], Tensor] | None:
    if isinstance(gate, Tensor):
        tensor = gate
        return lambda: tensor
    return gate


@contextmanager
def masked(model: nn.Module, found: Discovery, mask: HeadMask) -> Iterator[None]:
    """The model with only the heads of a mask: all others' outputs are zero (Michel et al. 2019, section 2.3)."""
    refuse_other_heads(found, mask)
    parameter = next(model.parameters())
    gates: dict[Site, Gate] = {}
    for site in found.modules:
        gate = parameter.new_zeros(found.heads.count(site))
        gate[mask.of(site)] = 1
        gates[site] = gate
    with capture(model, found, gates=gates):
        yield


def refuse_other_heads(found: Discovery, mask: HeadMask) -> None:
    """A mask must be over exactly the heads that the model has."""
    if mask.heads.query != found.heads.query:
        raise HeadwiseError(
            f"The layout is for a model with {describe(mask.heads)} heads, but this one has {describe(found.heads)}."
        )
