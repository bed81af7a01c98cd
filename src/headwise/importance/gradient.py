"""Gradient sensitivity (Michel et al. 2019) and related scores, from one forward and one backward pass per batch.

All follow from c_h, the output of head h before the output projection, and ∂L/∂c_h. A gate ξ_h on the head has the
derivative ∂L/∂ξ_h = Σ_q ⟨c_h[q], ∂L/∂c_h[q]⟩, and attention weights have ∂L/∂A_h = ∂L/∂c_h V_hᵀ, so neither gates nor
weights are computed. L is the negative log likelihood of a sentence, summed over its tokens. No parameter needs a
gradient: autograd starts at the output of the first attention layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.core.heads import Site
from headwise.models.attention.backward import refuse_no_gradients
from headwise.models.attention.capture import capture
from headwise.models.attention.direct import direct_paths
from headwise.models.attention.discover import Discovery, evaluating, same_gradients
from headwise.models.attention.kernel import AttentionCall, repeat
from headwise.models.attention.offload import reloading
from headwise.models.attention.sides import sides_of_site
from headwise.models.evaluation.corrupted_outputs import corrupted_outputs
from headwise.models.evaluation.soundness import refuse_unsound, sound
from headwise.models.evaluation.sums import (
    SentenceSums,
    add_all,
    to_unit_norm,
)
from headwise.models.model import Model
from headwise.models.tasks.batches import Batches, Fold, share_within
from headwise.models.tasks.objective import (
    asked_tokens,
    differentiable,
    losses_of,
    on_device,
    query_masks,
    source_places,
    token_masks,
    vocabulary_of,
)

GRADIENTS = (
    "gradient",
    "gradient.normalised",
    "gradient.token",
    "gradient.batch",
    "attention-gradient",
    "attribution.zero",
)
COUNTERPART = "attribution.counterpart"
KEPT_NUMBERS = 2.5  # numbers for each weight of a layer and each number of its input, that a backward pass keeps
MOST_KEPT_BYTES = {
    "cpu": 1 << 29,
    "other": 1 << 32,
}  # bytes that a backward pass may keep, by device


def gradient_measures(
    model: Model, batches: Batches | Fold, names: Sequence[str]
) -> dict[str, SentenceSums]:
    """All measures by gradient of a model's loss on a text."""
    patched = COUNTERPART in names
    return gradients(model.hf, model.discovery, batches, patched=patched)


def gradients(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    patched: bool = False,
) -> dict[str, SentenceSums]:
    """How much the loss changes when a head is scaled a little. With s_h = Σ_q ⟨c_h[q], ∂L/∂c_h[q]⟩ of a sentence:

    gradient: E|s_h| over sentences (Michel et al. 2019, equation 2); gradient.normalised: the same, divided by the ℓ2
        norm over the heads of its layer and kind (section 4.1), also in every resample of an interval.
    gradient.token: |·| at every query token, divided by the number of tokens (the authors' code).
    gradient.batch: |Σ s_h| over the sentences of a batch, mean over batches; smaller for larger batches (the mask of
        Hugging Face's run_bertology.py).
    attention-gradient: E|∂L/∂A_h| over pairs of a query and a visible key; another score than Michel's.
    attribution.zero: −Σ s_h per predicted token, signed: ablation.zero to first order (attribution patching).
    attribution.counterpart: with `patched`, Σ_q ⟨c'_h[q] − c_h[q], ∂L/∂c_h[q]⟩, c' for the corrupted prompt:
        ablation.counterpart to first order.

    A window of a long document counts as a sentence, in intervals all windows of a document as one.
    Evaluation mode. Raises HeadwiseError for values that are not finite.
    """
    names = [*GRADIENTS, COUNTERPART] if patched else GRADIENTS
    collected = {name: SentenceSums(discovery.heads) for name in names}
    collected["gradient.normalised"].scale = to_unit_norm
    on_share = share_within(batches)
    with tracing(model):
        for batch in batches:
            tensors = on_device(model, batch)
            parts: list[tuple[SentenceSums, Site, Tensor, Tensor]] = []
            of_batch: dict[Site, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for some, share in in_parts(model, tensors):
                for site, numbers in of_rows(model, discovery, some, patched).items():
                    # Apart, because its absolute value is of the whole batch.
                    of_batch[site].append(numbers.pop("gradient.batch"))
                    parts += [(collected[name], site, *both) for name, both in numbers.items()]
                on_share(share)
            for site, several in of_batch.items():
                # the absolute value is of the whole batch, however many passes it took
                total = torch.stack([total for total, _ in several]).sum(0)
                some_asked = torch.stack([asked for _, asked in several]).any(0)
                parts.append((collected["gradient.batch"], site, total.abs(), some_asked))
            add_all(parts)
    return collected


def direct_measure(model: Model, batches: Batches | Fold) -> dict[str, SentenceSums]:
    """Direct logit attribution of a model's heads on a text."""
    return direct_attributions(model.hf, model.discovery, batches)


def direct_attributions(
    model: nn.Module, discovery: Discovery, batches: Iterable[Mapping[str, Tensor]]
) -> dict[str, SentenceSums]:
    """attribution.direct: −Σ_q ⟨c_h[q], ∂L/∂c_h[q]⟩ per predicted token along direct paths alone (`direct_paths`), where
    attribution.zero has all paths.

    For prompts in pairs, L is a difference of logits, and this is direct logit attribution: what the head adds to the
    logit of the answer less what it adds to that of the wrong one, the scales of norms as they are (Elhage et al. 2021;
    Wang et al. 2023, section 3.1). For other text it is that to first order, each word's logit weighed by how the log
    likelihood moves with it. Evaluation mode. Raises HeadwiseError for values that are not finite, and for a layer
    whose heads reach no output projection unchanged.
    """
    sums = SentenceSums(discovery.heads)
    on_share = share_within(batches)
    with tracing(model), direct_paths(model, discovery):
        for batch in batches:
            parts = []
            for some, share in in_parts(model, on_device(model, batch)):
                asked = asked_tokens(some["labels"])
                traces = traced(model, discovery, some, token_masks(some))
                for site, (call, gradient) in traces.items():
                    parts.append((sums, site, -moves(call, gradient).sum(1), asked))
                on_share(share)
            add_all(parts)
    return {"attribution.direct": sums}


def in_parts(model: Any, batch: Mapping[str, Tensor]) -> Iterator[tuple[dict[str, Tensor], float]]:
    """A batch in parts that share a backward pass, with the share of its sentences that a part ends."""
    # a backward pass keeps all activations: a large model takes few sentences at once
    size = len(batch["labels"])
    together = rows_together(model, batch)
    for start in range(0, size, together):
        some = {name: tensor[start : start + together] for name, tensor in batch.items()}
        yield some, min(1.0, (start + together) / size)


def rows_together(model: Any, batch: Mapping[str, Tensor]) -> int:
    """How many sentences of a batch share a backward pass, by what it keeps."""
    longest = max(batch["labels"].shape[1], source_places(batch).shape[1])
    width = max(1, int(getattr(model.config.get_text_config(), "hidden_size", 1)))
    weights = sum(parameter.numel() for parameter in model.parameters())
    # embeddings are looked up, so a backward pass keeps nothing of them
    weights = max(width, weights - vocabulary_of(model) * width)
    sentence = KEPT_NUMBERS * weights / width * next(model.parameters()).itemsize * longest
    kept = MOST_KEPT_BYTES.get(batch["labels"].device.type, MOST_KEPT_BYTES["other"])
    return max(1, int(kept / sentence))


def of_rows(
    model: nn.Module, discovery: Discovery, batch: Mapping[str, Tensor], patched: bool
) -> dict[Site, dict[str, tuple[Tensor, Tensor]]]:
    """By layer, the sums and counts of every measure, B H and B, for sentences that share a backward pass;
    gradient.batch with its sign, 1 H and 1."""
    asked = asked_tokens(batch["labels"])
    there = token_masks(batch)
    queries = query_masks(batch)
    traces = traced(model, discovery, batch, there)
    corrupted = corrupted_outputs(model, discovery, batch) if patched else {}
    by_site = {}
    for site, (call, gradient) in traces.items():
        query_side, key_side = sides_of_site(site)
        numbers = reduced(call, gradient, queries[query_side], there[key_side], asked)
        if patched:
            changes = exchanged(call, gradient, corrupted[site])
            numbers[COUNTERPART] = changes.sum((1, 3)), asked
        by_site[site] = numbers
    return by_site


def traced(
    model: nn.Module, discovery: Discovery, batch: Mapping[str, Tensor], there: Mapping[str, Tensor]
) -> dict[Site, tuple[AttentionCall, Tensor]]:
    """The call of every attention layer on a batch, and the gradient of the loss at its output, B Q H D."""
    layers: dict[Site, AttentionCall] = {}

    def begin(call: AttentionCall) -> Tensor:
        layers[call.site] = call
        # a leaf in the first layer, where autograd begins, since no parameter has a gradient
        return call.output.requires_grad_()

    with capture(model, discovery, replace=dict.fromkeys(discovery.modules, begin)):
        losses = losses_of(model, batch)
    refuse_unsound({site: sound(call, there) for site, call in layers.items()}, losses)
    # In the order of the layers, which `steps` below keeps.
    outputs = [call.output for call in layers.values()]
    # one backward pass for all layers; a layer that does not reach the loss has zeros, but not all of them
    reached = losses.requires_grad
    steps = torch.autograd.grad(losses.sum(), outputs, allow_unused=True) if reached else ()
    refuse_no_gradients(model, any(step is not None for step in steps))
    traces = {}
    for (site, call), step in zip(layers.items(), steps, strict=True):
        traces[site] = call, torch.zeros_like(call.output) if step is None else step
    return traces


@torch.no_grad()
def reduced(
    call: AttentionCall, gradient: Tensor, queries: Tensor, keys: Tensor, asked: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """The sums and counts of every measure in one layer, B H and B.

    gradient B Q H D; queries B Q, which count; keys B K, where a token is; asked B, predicted tokens by sentence.
    """
    moved = moves(call, gradient)
    total = moved.sum(1)
    some = asked > 0
    values = repeat(call.value, gradient.shape[2])
    # ∂L/∂A without A: attention itself may stay in a fused kernel
    # ∂L/∂A = ∂L/∂c Vᵀ
    weights = torch.matmul(gradient.transpose(1, 2), values.transpose(-1, -2))
    pairs = call.visible(queries, keys)
    # |s_h|, once a sentence that has a predicted token
    once = total.abs(), some
    return {
        "gradient": once,
        "gradient.normalised": once,
        "gradient.token": ((moved.abs() * queries[..., None]).sum(1), queries.sum(1) * some),
        "gradient.batch": (total.sum(0, keepdim=True), some.any()[None]),
        "attention-gradient": (
            (weights.abs() * pairs).sum((2, 3), dtype=moved.dtype),
            pairs.sum((1, 2, 3)) * some,
        ),
        "attribution.zero": (-total, asked),
    }


@torch.no_grad()
def moves(call: AttentionCall, gradient: Tensor) -> Tensor:
    """⟨c_h[q], ∂L/∂c_h[q]⟩ of every query and head of a layer, B Q H, from the gradient B Q H D."""
    # half precision would lose small terms of these sums
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return (call.output.to(wide) * gradient.to(wide)).sum(-1)


@torch.no_grad()
def exchanged(call: AttentionCall, gradient: Tensor, other: Tensor) -> Tensor:
    """What the loss gains to first order when each number of the heads' outputs becomes another: B Q H D in and out."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return (other.to(wide) - call.output.to(wide)) * gradient.to(wide)


@contextmanager
def tracing(model: nn.Module) -> Iterator[None]:
    """In the block, autograd works on what the model computes, in evaluation mode; no parameter requires a gradient."""
    with (
        differentiable(model),
        evaluating(model),
        same_gradients(model),
        reloading(model),
        torch.enable_grad(),
    ):
        model.requires_grad_(False)
        yield
