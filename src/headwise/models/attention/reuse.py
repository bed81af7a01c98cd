"""Running a model many times from the middle on: what comes before a changed layer is computed once.

A block is the outermost part of a model that contains an attention layer and is an element of a list of layers
(`nn.ModuleList`). `recording` keeps the output of each block in a full forward. Inside `trying` the batch is repeated
once for every trial; the forward reuses the recorded outputs as far as possible, and each trial changes its own heads.
A model without such lists always runs in full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.core.progress import silent_share
from headwise.models.attention import kernel
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery
from headwise.models.attention.kernel import AttentionCall

Change = Callable[[AttentionCall], Tensor]  # gives another output, B Q H D
Trial = Mapping[Site, Change]


@dataclass
class BlockCall:
    """One call of a block: its list of layers, the sites inside it, and its output."""

    stack: nn.Module
    sites: list[Site] = field(default_factory=list)
    output: Any = None


@dataclass
class ForwardRecord:
    """The calls of all blocks in one forward of a batch of `size` sentences, in the order in which they ran."""

    size: int
    calls: list[BlockCall] = field(default_factory=list)

    def first(self, sites: Sequence[Site]) -> int:
        """The number of calls before the first of some sites; 0 for a site outside all blocks."""
        # A shared block (ALBERT) runs once a layer, so sites are found by calls, not by modules.
        places = {site: place for place, call in enumerate(self.calls) for site in call.sites}
        return min((places.get(site, 0) for site in sites), default=len(self.calls))


def blocks(model: nn.Module, discovery: Discovery) -> dict[nn.Module, nn.Module]:
    """The blocks of a model, each with its list of layers."""
    parts = dict(model.named_modules())
    outermost: dict[nn.Module, nn.Module] = {}
    for name in discovery.names.values():
        words = name.split(".")
        for end in range(1, len(words) + 1):
            # From the outside in: `model.layers.3.self_attn` is in the block `model.layers.3`.
            stack = parts[".".join(words[: end - 1])]
            if isinstance(stack, nn.ModuleList):
                outermost[parts[".".join(words[:end])]] = stack
                break
    return outermost


@contextmanager
def recording(
    model: nn.Module, discovery: Discovery, size: int, hook: Callable[[AttentionCall], None]
) -> Iterator[ForwardRecord]:
    """A `with` block for one forward of a batch of `size` sentences, which is recorded; `hook` sees every site."""
    kept, now = ForwardRecord(size), list[BlockCall]()

    def run(stack: nn.Module, usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = BlockCall(stack)
        kept.calls.append(call)
        # The block that runs now, so that `note` knows whose attention it sees.
        now.append(call)
        call.output = usual(*args, **kwargs)
        now.pop()
        return call.output

    def note(attention: AttentionCall) -> None:
        if now:
            now[-1].sites.append(attention.site)
        hook(attention)

    # Captures may also change forwards, so the blocks' own are looked up inside.
    with capture(model, discovery, hook=note):
        forwards = {
            block: partial(run, stack, block.forward)
            for block, stack in blocks(model, discovery).items()
        }
        with kernel.patched("forward", forwards):
            yield kept


def group_trials(kept: ForwardRecord, trials: Sequence[Trial], most: int) -> Iterator[list[int]]:
    """The numbers of the trials that share a forward: they start in the same block, and are at most `most`."""
    first = {place: kept.first(list(trial)) for place, trial in enumerate(trials) if trial}
    for _, places in groupby(sorted(first, key=first.__getitem__), key=first.__getitem__):
        waiting = list(places)
        yield from (waiting[start : start + most] for start in range(0, len(waiting), most))


def clear_unless_reusable(
    model: nn.Module,
    discovery: Discovery,
    kept: ForwardRecord,
    forward: Callable[[int], Tensor],
    expected: Tensor,
) -> bool:
    """Whether a forward that begins at the last recorded block gives what a whole one gave.

    forward: repeats the recorded batch so many times, and gives the numbers of each copy in a row of its own.
    expected: those numbers in the recorded forward. The recording is emptied where it cannot be used. Raises
    HeadwiseError where a whole forward gives other numbers as well.
    """
    if not kept.calls:
        return False
    # A trial that changes nothing, twice, so that a batch is repeated as in a real one.
    unchanged: Trial = {kept.calls[-1].sites[-1]: lambda call: call.output}
    near = torch.finfo(next(model.parameters()).dtype).eps ** 0.5
    for reuse in (True, False):
        try:
            with trying(model, discovery, kept, [unchanged, unchanged]):
                again = forward(2)
        # Some families assert shapes that a repeated output does not have (FSMT, whose states are time first).
        except (RuntimeError, AssertionError, HeadwiseError):
            if not reuse:
                raise
        else:
            if torch.allclose(again, expected.expand_as(again), rtol=near, atol=near):
                return reuse
        kept.calls.clear()
    raise HeadwiseError(
        f"{type(model).__name__} gives the same sentences another loss in another forward: headwise cannot ablate its "
        "heads."
    )


@contextmanager
def trying(
    model: nn.Module, discovery: Discovery, kept: ForwardRecord, trials: Sequence[Trial]
) -> Iterator[None]:
    """A `with` block for one forward of the recorded batch, repeated for each trial: trial t has rows t·B to (t+1)·B.

    Blocks before the first site that any trial changes are not computed again.
    """
    first = kept.first([site for trial in trials for site in trial])
    skipped = kept.calls[:first]
    # The model reads only the last output of a list of blocks, so only that is repeated.
    last = {call.stack: call for call in skipped}
    ran = 0

    def run(usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal ran
        ran += 1
        if ran > first:
            return usual(*args, **kwargs)
        call = skipped[ran - 1]
        # A module that serves several layers counts its passes, those that are skipped among them.
        for site in call.sites:
            discovery.modules[site].__dict__[kernel.INTERFACE_NAME].calls += 1
        if call is not last[call.stack]:
            return call.output
        return repeated(call.output, kept.size, len(trials))

    changes: dict[Site, dict[int, Change]] = defaultdict(dict)
    for place, trial in enumerate(trials):
        for site, change in trial.items():
            changes[site][place] = change
    replaced = {site: partial(changed_outputs, here, kept.size) for site, here in changes.items()}
    with capture(model, discovery, replace=replaced):
        forwards = {block: partial(run, block.forward) for block in blocks(model, discovery)}
        with kernel.patched("forward", forwards):
            yield


def tried(
    model: nn.Module,
    discovery: Discovery,
    kept: ForwardRecord,
    trials: Sequence[Trial],
    most: int,
    forward: Callable[[int], Tensor],
    unchanged: Tensor,
    on_share: Callable[[float], None] = silent_share,
) -> Tensor:
    """What a forward gives in each trial, T N. Trials that start in the same block share a forward.

    most: trials of one forward. forward: repeats the recorded batch so many times, and gives N numbers of each copy in a
    row of its own. unchanged: those of the recorded forward, N, for trials that change nothing. on_share: gets the share of
    the trials that is done.
    """
    # trials that change nothing are in no group
    out = unchanged.repeat(len(trials), 1)
    order: list[int] = []
    parts: list[Tensor] = []
    for group in group_trials(kept, trials, most):
        with trying(model, discovery, kept, [trials[number] for number in group]):
            parts.append(forward(len(group)))
        order += group
        on_share(len(order) / len(trials))
    if order:
        out[torch.tensor(order, device=out.device)] = torch.cat(parts)
    return out


def changed_outputs(changes: Mapping[int, Change], size: int, attention: AttentionCall) -> Tensor:
    """The outputs of a repeated batch, each repetition of `size` sentences with its own change."""
    output = attention.output.clone()
    for place, change in changes.items():
        rows = slice(place * size, (place + 1) * size)
        mask = attention.mask
        # A mask of the future alone is the same for all sentences.
        if mask is not None and len(mask) > 1:
            mask = mask[rows]
        output[rows] = change(
            replace(
                attention,
                query=attention.query[rows],
                key=attention.key[rows],
                value=attention.value[rows],
                mask=mask,
                output=attention.output[rows],
            )
        )
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
