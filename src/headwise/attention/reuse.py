"""Running a model many times from the middle on: what lies before a changed layer is computed once and kept.

A block is the outermost part of a model that holds an attention layer and stands in a list of layers
(`nn.ModuleList`). `recording` keeps what each call of a block gives in a whole forward; inside `trying` a forward of
the batch, repeated once for every trial, takes what it can from there, and each trial changes heads of its own.
A model without such lists runs whole, every time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from headwise.attention import kernel
from headwise.attention.capture import capture
from headwise.attention.discover import Discovery
from headwise.attention.kernel import Seen
from headwise.errors import HeadwiseError
from headwise.heads import Site

Trial = Mapping[Site, Callable[[Seen], Tensor]]  # by site, from what its heads did to another output, both B Q H D


@dataclass
class Call:
    """One call of a block: the list of layers it stands in, the sites that worked inside, and what it returned."""

    stack: nn.Module
    sites: list[Site] = field(default_factory=list)
    output: Any = None


@dataclass
class Recording:
    """The calls of all blocks in one forward of a batch of `size` sentences, in the order in which they ran."""

    size: int
    calls: list[Call] = field(default_factory=list)

    def first(self, sites: Sequence[Site]) -> int:
        """The number of calls that come before every one of some sites; a site outside all blocks has none."""
        places = {site: place for place, call in enumerate(self.calls) for site in call.sites}
        return min((places.get(site, 0) for site in sites), default=len(self.calls))


def blocks(model: nn.Module, found: Discovery) -> dict[nn.Module, nn.Module]:
    """The blocks of a model, and the list of layers that each stands in."""
    parts = dict(model.named_modules())
    outermost: dict[nn.Module, nn.Module] = {}
    for name in found.names.values():
        words = name.split(".")
        for end in range(1, len(words) + 1):
            stack = parts[".".join(words[: end - 1])]
            if isinstance(stack, nn.ModuleList):
                outermost[parts[".".join(words[:end])]] = stack
                break
    return outermost


@contextmanager
def recording(model: nn.Module, found: Discovery, size: int, watch: Callable[[Seen], None]) -> Iterator[Recording]:
    """A block for one forward of a batch of `size` sentences, whose calls are kept; `watch` sees every site."""
    kept, now = Recording(size), list[Call]()

    def run(stack: nn.Module, usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = Call(stack)
        kept.calls.append(call)
        now.append(call)
        call.output = usual(*args, **kwargs)
        now.pop()
        return call.output

    def note(seen: Seen) -> None:
        if now:
            now[-1].sites.append(seen.site)
        watch(seen)

    forwards = {block: partial(run, stack, block.forward) for block, stack in blocks(model, found).items()}
    with capture(model, found, watch=note), patched(forwards):
        yield kept


@contextmanager
def trying(model: nn.Module, found: Discovery, kept: Recording, trials: Sequence[Trial]) -> Iterator[None]:
    """A block for one forward of the recorded batch, repeated whole for each trial: trial t has rows t·B to (t+1)·B.

    What ran before the first site that any trial changes is not computed again.
    """
    first = kept.first([site for trial in trials for site in trial])
    skipped = kept.calls[:first]
    last = {call.stack: call for call in skipped}  # only what a stack gave in the end is read by somebody
    ran = 0

    def run(usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal ran
        ran += 1
        if ran > first:
            return usual(*args, **kwargs)
        call = skipped[ran - 1]
        for site in call.sites:  # a module that serves several layers counts its passes
            found.modules[site].__dict__[kernel.NAME].calls += 1
        return repeated(call.output, kept.size, len(trials)) if call is last[call.stack] else call.output

    changes: dict[Site, dict[int, Callable[[Seen], Tensor]]] = defaultdict(dict)
    for place, trial in enumerate(trials):
        for site, change in trial.items():
            changes[site][place] = change
    orders = {site: partial(changed, here, kept.size) for site, here in changes.items()}
    forwards = {block: partial(run, block.forward) for block in blocks(model, found)}
    with capture(model, found, replace=orders), patched(forwards):
        yield


def changed(changes: Mapping[int, Callable[[Seen], Tensor]], size: int, seen: Seen) -> Tensor:
    """The outputs of a repeated batch, each repetition with its own change; `size` sentences a repetition."""
    output = seen.output.clone()
    for place, change in changes.items():
        rows = slice(place * size, (place + 1) * size)
        mask = seen.mask if seen.mask is None or len(seen.mask) == 1 else seen.mask[rows]
        output[rows] = change(
            replace(
                seen, query=seen.query[rows], key=seen.key[rows], value=seen.value[rows], mask=mask,
                output=seen.output[rows],
            )
        )  # fmt: skip
    return output


def repeated(output: Any, size: int, times: int) -> Any:
    """What a block returned, for a batch that is repeated; what is the same for all sentences (T5's bias) stays."""
    if output is None or times == 1 or (isinstance(output, Tensor) and len(output) != size):
        return output
    if isinstance(output, Tensor):
        return output.repeat(times, *[1] * (output.dim() - 1))
    if isinstance(output, tuple):
        return tuple(repeated(part, size, times) for part in output)
    raise HeadwiseError(
        f"A layer of this model returns a {type(output).__name__}, which headwise cannot repeat: "
        "its heads cannot be ablated together."
    )


@contextmanager
def patched(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Other forwards for some modules; their own are back at the end, after an error too."""
    before = {module: module.__dict__.get("forward") for module in forwards}
    for module, forward in forwards.items():
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module, own in before.items():
            del module.__dict__["forward"]
            if own is not None:
                module.__dict__["forward"] = own
