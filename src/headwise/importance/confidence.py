"""Confidence: how sharply a head points (Voita et al. 2019, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.attention import Discovery, Seen, capture, evaluating
from headwise.importance.tally import Tally

Exclude = Literal["none", "key", "query", "keyquery"]


def confidence(
    model: nn.Module, found: Discovery, batches: Iterable[Mapping[str, Tensor]], special: Iterable[int],
    exclude: Exclude = "keyquery",
) -> Tally:  # fmt: skip
    """How sharply each head points: the mean over query tokens of its largest attention weight.

    conf(h) = mean_q max_k A_h[q, k]; weights are not renormalised. `exclude` says where special tokens (end of
    sentence, start, padding; the ids in `special`) are left out: as keys and as queries (default), or only as one, or
    nowhere. Padding is always left out. A decoder's first position, which can only look at itself, counts as a
    special token. One pass over the text; nothing of size query × key is kept.
    """
    tally = Tally(found.heads)
    device = next(model.parameters()).device
    ids = torch.tensor(sorted(special), dtype=torch.long, device=device)
    now: dict[str, tuple[Tensor, Tensor]] = {}

    def watch(seen: Seen) -> None:
        queries, keys = sides(seen)
        key = now[keys][0 if exclude in ("key", "keyquery") else 1]
        query = now[queries][0 if exclude in ("query", "keyquery") else 1]
        assert seen.weights is not None
        tally.add(seen.site, *pointing(seen.weights, key, query))

    with evaluating(model), torch.no_grad(), capture(model, found, watch=watch, weights=True):
        for batch in batches:
            tensors = {name: tensor.to(device) for name, tensor in batch.items() if name != "rows"}
            now.update(tokens(tensors, ids))
            tensors.pop("labels", None)
            model(**tensors, **({"use_cache": False} if "decoder_input_ids" in tensors else {}))
    return tally


def sides(seen: Seen) -> tuple[str, str]:
    """Which side of the batch a site's queries and keys are; the text of a one-stack decoder is a target."""
    if seen.site.kind == "encoder-self":
        return "source", "source"
    return "target", "source" if seen.site.kind == "cross" else "target"


def tokens(batch: Mapping[str, Tensor], special: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """By side, which positions are words (no special token) and which are tokens at all (no padding). B S and B T.

    The first token of a target is no word: nothing else can be seen from there.
    """
    there = batch["attention_mask"].bool()
    words = there & ~torch.isin(batch["input_ids"], special)
    source = words, there
    if "decoder_input_ids" in batch:
        there = batch["labels"] != -100
        words = there & ~torch.isin(batch["decoder_input_ids"], special)
    return {"source": source, "target": (words & (there.cumsum(1) > 1), there)}


def pointing(weights: Tensor, keys: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """The largest weight on an allowed key, summed over the allowed queries of each sentence, and how many those are.

    weights B H Q K, keys B K, queries B Q; returns B H and B.
    """
    largest = weights.masked_fill(~keys[:, None, None, :], 0).amax(-1)
    return (largest * queries[:, None, :]).sum(-1), queries.sum(-1)
