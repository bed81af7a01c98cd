"""Path patching: what a change of one head does along some paths alone (Wang et al. 2023, section 3.1 and appendix B).

A path leads from a head through feed-forward layers and the residual stream to the logits, or to the queries, keys or
values of other heads, the receivers. All other heads give what they give in the unchanged run. To receivers it takes
two runs: one in which only the first head is changed, for what the receivers get, and one in which they get it and all
that follows them is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from headwise.core.errors import HeadwiseError, did_you_mean, shown_value
from headwise.core.heads import HeadMap, Site
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.reuse import Trial
from headwise.models.evaluation.corrupted_outputs import outputs_of
from headwise.models.evaluation.recorded_batch import RecordedBatch

LOGITS = "logits"
INPUTS = ("query", "key", "value")


@dataclass(frozen=True)
class Receivers:
    """Where paths end: in inputs of heads, by site pairs of a head's number and an input; in the logits where there are
    none."""

    inputs: Mapping[Site, Sequence[tuple[int, str]]] = field(default_factory=dict)

    @classmethod
    def named(cls, names: Iterable[str], heads: HeadMap) -> Receivers:
        """Receivers by name: `logits` alone, or inputs of heads, such as `L9H6.query` or `cross/2/0.key`.

        Raises HeadwiseError for other names."""
        if isinstance(names, str):
            names = [names]
        if not isinstance(names, Iterable):
            raise HeadwiseError(
                f"The receivers are {shown_value(names)}: name '{LOGITS}', or inputs such as L9H6.query."
            )
        names = list(names)
        if names == [LOGITS]:
            return cls()
        inputs: dict[Site, list[tuple[int, str]]] = defaultdict(list)
        for name in names:
            head, _, given = name.rpartition(".")
            if given not in INPUTS:
                raise HeadwiseError(
                    f"The receiver '{name}' names no input of a head{did_you_mean(given, INPUTS)}: write '{LOGITS}' "
                    "alone, or a head and query, key or value, such as L9H6.query."
                )
            for one in heads.named(head):
                inputs[Site(one.kind, one.layer)].append((one.head, given))
        if not inputs:
            raise HeadwiseError(
                f"There are no receivers: name '{LOGITS}', or inputs such as L9H6.query."
            )
        return cls(inputs)


def along_paths(
    batch: RecordedBatch,
    change: Callable[..., Tensor],
    receivers: Receivers,
    on_share: Callable[[float], None],
) -> dict[Site, Tensor]:
    """By site, the change of each sentence's loss when one of its heads is changed and only the receivers notice: B H.
    Heads that no path to a receiver begins at have 0. on_share: gets the share of the heads that is done."""
    outputs = outputs_of(batch.model, batch.discovery, batch.tensors)
    order = list(outputs)
    counts = [batch.discovery.heads.count(site) for site in order]
    trials: list[Trial] = []
    received: list[dict[Site, list[Tensor]]] = []
    for place, site in enumerate(order):
        later = order[place + 1 :]
        ends = [end for end in later if end in receivers.inputs]
        for head in range(counts[place]):
            # Filled while these trials run; the second ones read it.
            got: dict[Site, list[Tensor]] = {}
            # All heads behind give what they gave, so the change goes on past them alone.
            held: dict[Site, Callable[[AttentionCall], Tensor]] = {
                after: partial(hold, output=outputs[after]) for after in later
            }
            for end in ends:
                held[end] = partial(listen, receivers.inputs[end], outputs[end], got)
            # Without a receiver behind it a head has no path: nothing is changed, and its effect is 0.
            starts = ends or not receivers.inputs
            trials.append({site: partial(change, head=head), **held} if starts else {})
            received.append(got)
    if receivers.inputs:
        batch.tried(trials, batch.layers_again, batch.losses, lambda share: on_share(share / 2))
        # the parts that each receiver got stand for its own input
        trials = []
        for got in received:
            trial: dict[Site, Callable[[AttentionCall], Tensor]] = {}
            for end, parts in got.items():
                trial[end] = partial(given_inputs, receivers.inputs[end], parts)
            trials.append(trial)
    share_before = 0.5 if receivers.inputs else 0.0
    losses = batch.losses_in(
        trials, lambda share: on_share(share_before + (1 - share_before) * share)
    )
    changes = losses - batch.losses
    return dict(zip(order, changes.T.split(counts, 1), strict=True))


def hold(call: AttentionCall, output: Tensor) -> Tensor:
    """The output that a layer gave in the unchanged run."""
    return output


def listen(
    inputs: Sequence[tuple[int, str]],
    output: Tensor,
    got: dict[Site, list[Tensor]],
    call: AttentionCall,
) -> Tensor:
    """The output of the unchanged run, while what each receiver gets of a changed one is kept."""
    got[call.site] = [getattr(call, name)[:, group(call, name, head)] for head, name in inputs]
    return output


def given_inputs(
    inputs: Sequence[tuple[int, str]], parts: Sequence[Tensor], call: AttentionCall
) -> Tensor:
    """The output of a layer B Q H D in which receivers get other inputs, B Q D or B K D each."""
    of_head: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for (head, name), given in zip(inputs, parts, strict=True):
        whole = getattr(call, name).clone()
        whole[:, group(call, name, head)] = given
        of_head[head][name] = whole
    output = call.output.clone()
    for head, wholes in of_head.items():
        # the others that share a key or value keep their own
        output[:, :, head] = call.attended(**wholes)[:, :, head]
    return output


def group(call: AttentionCall, name: str, head: int) -> int:
    """The place of a head's query, or of the key or value that it shares."""
    places: int = getattr(call, name).shape[1]
    return head * places // call.output.shape[2]
