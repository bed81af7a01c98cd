"""Attention statistics: scores of every head from one forward pass.

    confidence          mean_q max_k A[q, k]                    Voita et al. 2019, section 4
    entropy             mean_q −Σ_k A[q, k] ln A[q, k]          nats; Clark et al. 2019; Vig & Belinkov 2019, eq. 7
    attention-to-end    mean_q Σ_{k: end of sentence} A[q, k]   Clark et al. 2019: attention to [SEP]
    attention-to-first  mean_q A[q, first token]                Vig & Belinkov 2019: "null" attention
    dormancy            mean_q ‖c_h W_h‖ / Σ_h' mean_q ‖c_h' W_h'‖

In dormancy c_h (of D) is the head's output at a token and W_h (D M) its slice of the output projection; the sum is over
the heads of the layer, so 1/H is average and 0 dormant. Sandoval-Segura et al. 2025 ("Identifying and evaluating
inactive heads in pretrained LLMs") find the mean norm of a head's output, relative to its layer, a better sign of
inactive heads than attention weights.

Queries q are words: neither padding nor special tokens count. Weights are not renormalised.
Nothing of size query × key is kept after its layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from headwise.core.heads import Site
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery, evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.offload import device_of
from headwise.models.attention.output import run_layers
from headwise.models.attention.projection import output_weights
from headwise.models.attention.sides import Side, sides_of_site
from headwise.models.evaluation.sums import SentenceSums, add_all, relative
from headwise.models.model import Model
from headwise.models.processes import gather_values
from headwise.models.tasks.batches import Batches, Fold
from headwise.models.tasks.objective import inputs_of, on_device, query_masks, token_masks

Statistic = Literal["confidence", "entropy", "attention-to-end", "attention-to-first", "dormancy"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)


def attention_statistics(
    model: Model, batches: Batches | Fold, names: Sequence[Statistic]
) -> dict[str, SentenceSums]:
    """The statistics of a model's attention on a text, end of sentence and padding left out."""
    special = special_ids(model.tokenizer)
    return read_statistics(model.hf, model.discovery, batches.intact(), special, names)


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of tokens that are no words: start, end, padding. An unknown word is a word."""
    if tokenizer is None:
        return set()
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def read_statistics(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    special: Iterable[int],
    measures: Iterable[Statistic] = STATISTICS,
) -> dict[str, SentenceSums]:
    """Several statistics of every head from one pass over the text: sums by name.

    special: the ids of end of sentence, start, padding, which are left out as keys of confidence and as queries of all
    statistics. A decoder's first position, which can attend only to itself, counts as special. `attention-to-end` has no
    decoder-self heads, which do not see the end of a sentence, and is missing for a source text without end tokens.
    """
    collected: dict[str, SentenceSums] = {}
    for name in measures:
        kinds = list(discovery.heads.kinds)
        # no word of a decoder sees the end of its own sentence
        if name == "attention-to-end" and "decoder-self" in kinds:
            kinds.remove("decoder-self")
        if kinds:
            scale = relative if name == "dormancy" else None
            collected[name] = SentenceSums(discovery.heads.only(kinds), scale)
    ids = torch.tensor(sorted(special), dtype=torch.long, device=device_of(model))
    # the only statistic that reads weights of the model
    forms = squares(model, discovery) if "dormancy" in collected else {}
    now: dict[str, Side] = {}
    parts: list[tuple[SentenceSums, Site, Tensor, Tensor]] = []

    def hook(call: AttentionCall) -> None:
        queries, keys = sides_of_site(call.site)
        for name, sums in collected.items():
            if call.site in sums.parts:
                found = statistic_of(name, call, now[queries], now[keys], forms)
                parts.append((sums, call.site, *found))

    # attention weights cost memory and the fast kernels, so only where they are read
    weights = any(name != "dormancy" for name in collected)
    ended = False
    with evaluating(model), torch.no_grad(), capture(model, discovery, hook=hook, weights=weights):
        for batch in batches:
            tensors = on_device(model, batch)
            now.update(batch_sides(tensors, ids))
            ended = ended or bool(now["source"].end.any())
            run_layers(model, inputs_of(tensors))
            # once a batch: each transfer waits for the device
            add_all(parts)
            parts.clear()
    if "attention-to-end" in collected:
        # one process may have no sentence, or none with an end
        shares = gather_values((bool(now), ended))
        if any(some for some, _ in shares) and not any(end for _, end in shares):
            del collected["attention-to-end"]
    return collected


def statistic_of(
    name: str, call: AttentionCall, queries: Side, keys: Side, forms: Mapping[Site, Tensor]
) -> tuple[Tensor, Tensor]:
    """A statistic of one call: sums B H and counts B."""
    asked = queries.counted & queries.words
    if name == "dormancy":
        return contribution(call.output, forms[call.site], asked)
    assert call.weights is not None
    if name == "confidence":
        return largest_weights(call.weights, keys.words, asked)
    if name == "entropy":
        return spreading(call.weights, asked)
    places = keys.end if name == "attention-to-end" else keys.first
    # queries that see none of these places do not count
    return sharing(call.weights, places, call.visible(asked, places).any(-1).any(1))


def batch_sides(batch: Mapping[str, Tensor], special: Tensor) -> dict[str, Side]:
    """The two sides of a batch; for a model of one stack, of the same text."""
    there = token_masks(batch)
    counted = query_masks(batch)
    ids = batch.get("input_ids")
    if ids is None:
        # batches without ids, such as recordings: −1 is never special
        ids = torch.full_like(there["source"], -1, dtype=torch.long)
    source = side(ids, there["source"], special)
    target = side(batch.get("decoder_input_ids", ids), there["target"], special)
    # the first position attends only to itself, whatever the head does
    words = target.words & ~target.first
    return {
        "source": replace(source, counted=counted["source"]),
        "target": replace(target, words=words, counted=counted["target"]),
    }


def side(ids: Tensor, there: Tensor, special: Tensor) -> Side:
    """A side from ids and there, B N. A sentence ends at its last token if that is special, and at the same token
    inside it (between the two sentences of a BERT pair)."""
    marked = there & torch.isin(ids, special)
    place = there.cumsum(1)
    first = there & (place == 1)
    last = there & (place == place[:, -1:])
    # the id of this sentence's own end, -1 where it has none
    closing = torch.where(marked & last, ids, -1).amax(1, keepdim=True)
    return Side(there & ~marked, first, there & ~first & (ids == closing), there)


def largest_weights(weights: Tensor, keys: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """The largest weight on an allowed key, summed over the allowed queries of each sentence, and their number.

    weights B H Q K, keys B K, queries B Q; returns B H and B.
    """
    return sum_and_count(queries, (weights * keys[:, None, None, :]).amax(-1))


def spreading(weights: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """The entropy of the weights over all keys, in nats; 0 ln 0 = 0. weights B H Q K, queries B Q; returns B H and B.

    A learned sink (gpt-oss) is not a key and has no term.
    """
    # in place, because this is as large as the weights
    surprise = weights.clamp_min(torch.finfo(weights.dtype).tiny).log_().neg_()
    return sum_and_count(queries, torch.einsum("bhqk,bhqk->bhq", weights, surprise))


def sharing(weights: Tensor, keys: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """The total weight on some keys. weights B H Q K, keys B K, queries B Q; returns B H and B."""
    return sum_and_count(queries, (weights * keys[:, None, None, :]).sum(-1))


def sum_and_count(queries: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values B H Q summed over queries B Q, and the number of queries."""
    return (values * queries[:, None, :]).sum(-1), queries.sum(-1)


def squares(model: nn.Module, discovery: Discovery) -> dict[Site, Tensor]:
    """W_h W_hᵀ of every head, H D D by site: ‖c W‖² = c (W Wᵀ) cᵀ needs no H × M numbers per token."""
    forms = {}
    for site, weight in output_weights(model, discovery).items():
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        forms[site] = (wide @ wide.transpose(1, 2)).to(device_of(model))
    return forms


def contribution(output: Tensor, forms: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """‖c_h W_h‖ of every head, summed over the queries of each sentence, and the number of queries.

    output B Q H D, forms H D D, queries B Q; returns B H and B.
    """
    output = output.to(forms.dtype)
    # rounding makes a square below 0 where the output is almost 0
    sizes = (torch.einsum("bqhd,hde->bqhe", output, forms) * output).sum(-1).clamp_min(0).sqrt()
    return (sizes * queries[..., None]).sum(1), queries.sum(-1)
