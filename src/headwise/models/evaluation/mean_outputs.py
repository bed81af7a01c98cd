"""The mean output of every head over a text: over all query tokens, or position by position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.output import run_layers
from headwise.models.attention.sides import sides_of_site
from headwise.models.evaluation.soundness import refuse_unsound, sound
from headwise.models.evaluation.sums import to_numpy
from headwise.models.processes import failing_together, gather_values
from headwise.models.tasks.objective import inputs_of, on_device, query_masks, token_masks

Totals = dict[Site, Tensor]


class PositionMeans(NamedTuple):
    """The mean outputs m of a layer's heads over the n tokens at each position of a text, N H D; and 1 / (n − 1), N, or 0
    where there are no others."""

    means: Tensor
    share: Tensor

    def of_others(self, own: Tensor, places: Tensor, counted: Tensor, head: int) -> Tensor:
        """The mean at the place of each token over all others there, m + (m − own) / (n − 1): B Q D. own: what the head
        gives, B Q D; places B Q; counted B Q: which tokens are in the means."""
        # sums stay with the processor
        means = self.means[:, head].to(own.device)[places]
        share = self.share.to(own.device)[places] * counted
        return means + (means - own) * share[..., None]


def mean_outputs(
    model: nn.Module, discovery: Discovery, batches: Iterable[Mapping[str, Tensor]]
) -> dict[Site, Tensor]:
    """The mean output of every head over all query tokens of the text, from all processes: H D by site. In windows of a
    long document each token counts once.

    Raises HeadwiseError for batches that can be read only once, and for outputs that are not finite.
    """
    sums, counts = summed_outputs(model, discovery, batches, by_position=False)
    # a layer that sees no counted token
    return {site: sums[site][0] / max(1, int(counts[site])) for site in sums}


def position_means(
    model: nn.Module, discovery: Discovery, batches: Iterable[Mapping[str, Tensor]]
) -> dict[Site, PositionMeans]:
    """The mean output of every head at each position of a sentence, from all processes, for sentences of at most N query
    tokens.

    A position that only one sentence reaches has the mean over all query tokens of the text: its own would be that
    sentence's output. Raises HeadwiseError as `mean_outputs`.
    """
    sums, counts = summed_outputs(model, discovery, batches, by_position=True)
    means = {}
    for site, total in sums.items():
        count = counts[site]
        of_all = total.sum(0) / count.sum().clamp_min(1)
        of_position = total / count.clamp_min(1)[:, None, None]
        several = count > 1
        mean = torch.where(several[:, None, None], of_position, of_all)
        share = torch.where(several, 1 / (count.double() - 1), 0.0)
        means[site] = PositionMeans(mean, share)
    return means


def positions(there: Tensor) -> Tensor:
    """The number of each token in its sentence, from 0, wherever the padding is: B N. there B N: where a token is."""
    return (there.cumsum(1) - 1).clamp_min(0)


def summed_outputs(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    by_position: bool,
) -> tuple[Totals, Totals]:
    """Sums of the heads' outputs over the text, from all processes, N H D by site, and of how many tokens, N. N is the
    longest sentence by position, else 1."""
    if isinstance(batches, Iterator):
        raise HeadwiseError(
            "A mean output needs the text twice, but these batches can be read only once: give a list of batches."
        )
    sums: Totals = {}
    counts: Totals = {}
    # of this batch: where tokens are and which count; by site whether it is sound, a sum, a count
    there: dict[str, Tensor] = {}
    counted: dict[str, Tensor] = {}
    parts: dict[Site, tuple[Tensor, Tensor, Tensor]] = {}

    def hook(call: AttentionCall) -> None:
        side = sides_of_site(call.site)[0]
        queries = counted[side]
        output = call.output * queries[..., None, None]
        # half precision cannot add up a text
        wide = torch.promote_types(output.dtype, torch.float32)
        if by_position:
            # padding may be on either side
            tokens_first = (~there[side]).long().argsort(dim=1, stable=True)
            rows = torch.arange(len(queries), device=queries.device)[:, None]
            total = output[rows, tokens_first].sum(0, dtype=wide)
            number = queries.gather(1, tokens_first).sum(0)
        else:
            total = output.sum((0, 1), dtype=wide)[None]
            number = queries.sum()[None]
        parts[call.site] = sound(call, there), total, number

    with failing_together(), capture(model, discovery, hook=hook):
        for batch in batches:
            tensors = on_device(model, batch)
            there.update(token_masks(tensors))
            # heads are replaced in a prompt, too
            counted.update(query_masks(tensors, prompts=True))
            run_layers(model, inputs_of(tensors))
            # before anything is added, with the name of the layer
            refuse_unsound({site: is_sound for site, (is_sound, _, _) in parts.items()})
            arrays = iter(to_numpy([tensor for _, *both in parts.values() for tensor in both]))
            for site in parts:
                # double: a text has more tokens than float32 counts one by one
                add_rows(sums, site, torch.from_numpy(next(arrays)).double())
                add_rows(counts, site, torch.from_numpy(next(arrays)))
            parts.clear()
        shares = gather_values((sums, counts))

    whole_sums: Totals = {}
    whole_counts: Totals = {}
    for site in discovery.modules:
        for some_sums, some_counts in shares:
            if site in some_sums:
                add_rows(whole_sums, site, some_sums[site])
                add_rows(whole_counts, site, some_counts[site])
    return whole_sums, whole_counts


def add_rows(totals: Totals, site: Site, rows: Tensor) -> None:
    """Add rows to the first ones of a site's total, which grows where it has fewer."""
    if site not in totals:
        totals[site] = rows.clone()
        return
    before = totals[site]
    if len(before) < len(rows):
        before, rows = rows.clone(), before
        totals[site] = before
    before[: len(rows)] += rows
