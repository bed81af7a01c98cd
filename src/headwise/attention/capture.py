"""The one trick: a block in which a model's attention heads can be watched, scaled, silenced or replaced, and after which it is as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from headwise.attention.discover import Discovery, installed, routed
from headwise.attention.kernel import Orders, Seen, Slot
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask, Site

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
    """Watch, scale or replace the heads of a model inside a `with` block; the model comes back unchanged, after an error too.

    watch: called with a `Seen` at every site; `weights=True` fills `Seen.weights` (B H Q K, gone after the call).
    gates: by site, a tensor (H, or B H) or a function that gives one, multiplied with the heads' outputs (B Q H D) before the output
        projection: 0 silences a head, 1 changes nothing, bit for bit.
    replace: by site, a function from `Seen` to another output of the same shape.
    explicit: build the weights by plain matrix products even when nobody looks (for training on CPU).
    """
    unknown = [site for site in {**(gates or {}), **(replace or {})} if site not in found.modules]
    if unknown:
        raise HeadwiseError(f"Orders were given for {unknown[0].kind} layer {unknown[0].layer}, but this model has no such layer.")
    slots: dict[nn.Module, Slot] = {}
    for site, module in found.modules.items():
        slot = slots.setdefault(module, Slot([], explicit))
        slot.sites.append(site)
        gate = (gates or {}).get(site)
        slot.orders.append(Orders(watch, weights, _callable(gate), (replace or {}).get(site)))
    with routed(model), installed(slots):
        yield


def _callable(gate: Gate | None) -> Callable[[], Tensor] | None:
    if isinstance(gate, Tensor):
        tensor = gate
        return lambda: tensor
    return gate


@contextmanager
def masked(model: nn.Module, found: Discovery, mask: HeadMask) -> Iterator[None]:
    """The model with only the heads of a mask: every other head's output is zero (Michel et al. 2019, section 2.3)."""
    parameter = next(model.parameters())
    gates: dict[Site, Gate] = {}
    for site in found.modules:
        gate = parameter.new_zeros(found.heads.count(site))
        gate[mask.of(site)] = 1
        gates[site] = gate
    with capture(model, found, gates=gates):
        yield
