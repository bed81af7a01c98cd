"""The loss of a training without logits in memory, by the model's own forward up to its output layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.attention import classifies, device_of, evaluating
from headwise.attention.discover import output_of, without_cache
from headwise.attention.offload import loaded
from headwise.attention.output import constants
from headwise.errors import HeadwiseError
from headwise.training.labelled import refuse_other_class_loss, summed_class_loss
from headwise.training.loss import summed_loss
from headwise.training.token_batches import IGNORED, TrainingData


@contextlib.contextmanager
def loss_forward(
    model: PreTrainedModel,
    before: Callable[[], None] | None = None,
    extra: Callable[[], Tensor] | None = None,
) -> Iterator[None]:
    """Inside the block `model(**batch, smoothing=ε)` gives the summed loss of a batch, in one forward for data-parallel
    training. before: called first (gates draw their noise). extra: a penalty per target token, added to the loss.

    The model's own forward runs up to its output layer; a classifier's whole. Raises HeadwiseError when the loss is not
    that of the model's logits on a small batch: when the model does more after that layer than to add a bias or to cap
    the logits, or when a classifier's own loss is another.
    """
    stock, own, head = model.forward, vars(model).get("forward"), model.get_output_embeddings()
    uncached, classes = without_cache(model), classifies(model)

    def summed(labels: Tensor, smoothing: float, **inputs: Tensor) -> Tensor:
        if classes:
            return summed_class_loss(stock(**inputs, **uncached).logits, labels, smoothing)
        states = states_before(head, stock, {**inputs, **uncached})
        bias, cap = constants(model, head)
        return summed_loss(states, loaded(head).to(states.device), bias, labels, smoothing, cap)

    def forward(labels: Tensor, smoothing: float, **inputs: Tensor) -> Tensor:
        if before:
            before()
        loss = summed(labels, smoothing, **inputs)
        return loss + extra() * (labels != IGNORED).sum() if extra and model.training else loss

    if classes:
        refuse_other_class_loss(model)
    else:
        refuse_other_loss(model, head, summed)
    model.forward = forward
    try:
        yield
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own  # a hook that was there before


class AtHead(Exception):
    """Ends a forward where the output layer would begin."""


def states_before(
    head: nn.Module, forward: Callable[..., Any], inputs: Mapping[str, Any]
) -> Tensor:
    """What a forward gives to the output layer: B T M."""
    states: list[Tensor] = []

    def stop(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        states.append(given[0])
        raise AtHead

    hook = head.register_forward_pre_hook(stop)
    try:
        with contextlib.suppress(AtHead):
            forward(**inputs)
    finally:
        hook.remove()
    return states[0]


def refuse_other_loss(model: PreTrainedModel, head: Any, summed: Callable[..., Tensor]) -> None:
    """Compare the loss without logits with that of the model's logits, on two short sentences of any words."""
    kind = type(model).__name__
    if not isinstance(head, nn.Linear):
        raise HeadwiseError(
            f"headwise trains models that predict words by one output layer: {kind} is none."
        )
    words = torch.arange(12, device=device_of(model)).view(2, 6)
    sources, targets = (
        words % model.get_input_embeddings().num_embeddings,
        words.flip(1) % head.out_features,
    )
    inputs = {"input_ids": sources, "attention_mask": (words != 5).long()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = targets
    labels = targets.roll(-1, 1).masked_fill(words == 11, IGNORED)
    with evaluating(model), torch.no_grad():
        logits = output_of(model, inputs).logits
        expected = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), reduction="sum"
        )
        found = summed(labels, 0.0, **inputs)
    within = 1e-3 if logits.dtype in (torch.float32, torch.float64) else 2e-2
    if not abs(float(found) - float(expected)) <= within * float(expected):
        raise HeadwiseError(
            f"{kind} cannot be trained: its loss is {float(expected):.6g} on a small batch, headwise computes "
            f"{float(found):.6g}. It changes its logits in a way that headwise does not know, or they are not numbers."
        )


def dev_loss(
    model: PreTrainedModel, data: TrainingData, tokenizer: PreTrainedTokenizerBase, tokens: int
) -> float:
    """Cross-entropy per target token in nats, without smoothing. Inside `loss_forward`."""
    losses, count = list[Tensor](), 0
    with evaluating(model), torch.no_grad():
        for tensors in data.once(model, tokenizer, tokens):
            count += int((tensors["labels"] != IGNORED).sum())
            batch = {
                name: tensor.to(device_of(model))
                for name, tensor in tensors.items()
                if name != "rows"
            }
            losses.append(model(**batch, smoothing=0.0))
    total: float = sum(torch.stack(losses).tolist())
    return total / count
