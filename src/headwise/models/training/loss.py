"""The loss of a training, without the logits of a whole batch in memory.

The model's own forward runs up to its output layer; the loss is label-smoothed cross-entropy (`loss_forward`), or what
an encoder misses of another's states (`lost_states`).

Positions × vocabulary is the largest tensor of a small translation model. Here the states are projected in chunks, and
the forward pass also computes each chunk's gradient, while its softmax is in the cache. On CPU only target positions
are projected; finding them would make the processor wait for a GPU, which projects padding as well.

Scores have a loss of their own, by sentence (`tasks/objective.py`). Both read the output layer by `attention/output.py`.
One loss for both would change numbers: this one computes its gradient, also of the weights, with the sum; that one is
the cross-entropy of the model's own logits wherever they fit into memory. They differ in the last bits: in float32 by
up to 1.4e-7 of the largest gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from headwise.core.errors import HeadwiseError
from headwise.models.attention.discover import evaluating, logits_in, output_of, without_cache
from headwise.models.attention.offload import device_of, loaded
from headwise.models.attention.output import constants, states_before
from headwise.models.token_rows import IGNORED
from headwise.models.training.labelled import refuse_other_class_loss, summed_class_loss
from headwise.models.training.token_batches import TrainingData

# Positions projected at once on a CPU, where the last chunk is padded, so that all have one shape. Fewer where the
# vocabulary is so large that there would be more logits than CPU_LOGITS: 64 MB in float32.
CHUNK_ROWS = 256
CPU_LOGITS = 2**24
# Logits at once on other devices: 256 MB in float32.
LOGITS = 2**26
SOURCE = ("input_ids", "attention_mask")
ALIKE = 1e-3  # of the sum of squares of states: the least that their variance is taken for


class FusedCrossEntropy(torch.autograd.Function):
    """Summed label-smoothed cross-entropy of `states @ weight.T + bias` against `labels`.

    (1 − ε) · (−log p[label]) + ε · mean over the vocabulary of −log p (Szegedy et al. 2016; ε/V on every type, as in
    torch). states N M, weight V M, bias V or None, labels N (IGNORED for padding). cap c: the logits x become
    c · tanh(x/c). size: positions in a chunk. The softmax is in float32 at least. There are no second derivatives.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        cap: float | None,
        size: int,
    ) -> Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        # Sums over chunks are wide, also with states of bfloat16.
        total = states.new_zeros((), dtype=wide)
        words = weight.shape[0]
        grad_states = torch.empty_like(states) if any(ctx.needs_input_grad) else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        grad_bias = weight.new_zeros(words, dtype=wide) if ctx.needs_input_grad[2] else None
        for start in range(0, len(labels), size):
            chunk = states[start : start + size]
            gold = labels[start : start + size, None]
            # Positions without a target get word 0, and then the factor 0.
            real = (gold != IGNORED).to(wide)
            gold = gold.clamp_min(0)
            logits = (chunk @ weight.t()).to(wide)
            if bias is not None:
                logits += bias
            if cap is not None:
                logits = logits.div_(cap).tanh_().mul_(cap)
            # The cap's derivative, before the logits are overwritten.
            slope = (
                1 - (logits / cap).square() if cap is not None and grad_states is not None else None
            )
            # −log p(w) = log Σ exp(x) − x_w
            norm = torch.logsumexp(logits, -1, keepdim=True)
            lost = norm - logits.gather(1, gold)
            if smoothing:
                # The mean of −log p over the vocabulary is norm − mean(x).
                lost = (1 - smoothing) * lost + smoothing * (norm - logits.mean(1, keepdim=True))
            total += lost.mul_(real).sum()
            if grad_states is None:
                continue
            # In place: the logits of a chunk are not needed any more. The gradient is p − ε/V − (1 − ε) at the label.
            grad = logits.sub_(norm).exp_()
            if smoothing:
                grad.sub_(smoothing / words)
            # − (1 − ε) at the label
            grad.scatter_add_(1, gold, grad.new_full(gold.shape, smoothing - 1))
            # The states' gradient is masked below, where it is smaller.
            if grad_weight is not None or grad_bias is not None:
                grad.mul_(real)
            if slope is not None:
                grad = grad.mul_(slope)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(weight.dtype)
            grad_states[start : start + size] = (grad @ weight).mul_(real)
            if grad_weight is not None:
                grad_weight += grad.t() @ chunk
        ctx.save_for_backward(grad_states, grad_weight, grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_weight, grad_bias = ctx.saved_tensors
        if grad_weight is not None:
            grad_weight = grad_weight * grads[0]
        if grad_bias is not None:
            grad_bias = grad_bias * grads[0]
        return (
            grad_states * grads[0].to(grad_states.dtype),
            grad_weight,
            grad_bias,
            None,
            None,
            None,
            None,
        )


def summed_loss(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    cap: float | None = None,
) -> Tensor:
    """The summed loss over the target positions of a batch: states B T M, labels B T, bias V or 1 V.

    With autocast the projection has autocast's dtype. Gradients are computed only with autograd on.
    """
    device = states.device.type
    chosen = states.flatten(0, 1)
    gold = labels.flatten()
    size = max(CHUNK_ROWS, LOGITS // len(weight))
    if device == "cpu":
        size = min(CHUNK_ROWS, max(1, CPU_LOGITS // len(weight)))
        chosen, gold = target_positions(chosen, gold, size)
    if bias is not None:
        bias = bias.flatten()
    # `needs_input_grad` is also true under no_grad.
    if not torch.is_grad_enabled():
        weight = weight.detach()
        bias = None if bias is None else bias.detach()
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        chosen = chosen.to(dtype)
        weight = weight.to(dtype)
    with torch.autocast(device, enabled=False):
        loss: Tensor = FusedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            chosen, weight, bias, gold, smoothing, cap, size
        )
    return loss


def target_positions(states: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """States N M and labels N at positions with a target, filled up to whole chunks of `size`."""
    where = (labels != IGNORED).nonzero().squeeze(1)
    fill = -len(where) % size
    gold = torch.cat([labels[where], labels.new_full((fill,), IGNORED)])
    return states.index_select(0, torch.cat([where, where.new_zeros(fill)])), gold


@contextlib.contextmanager
def loss_forward(
    model: PreTrainedModel,
    before: Callable[[], None] | None = None,
    extra: Callable[[], Tensor] | None = None,
    whole: nn.Module | None = None,
) -> Iterator[None]:
    """Inside the block `model(**batch, smoothing=ε)` gives the summed loss of a batch, in one forward for data-parallel
    training. before: called first (gates draw their noise). extra: a penalty per target token, added to the loss. whole: an
    encoder whose states a model in training mode learns in place of the targets (`lost_states`).

    The model's own forward runs up to its output layer; a classifier's whole. Raises HeadwiseError when the loss is not
    that of the model's logits on a small batch: the model does more behind its output layer than add a bias and cap the
    logits, or a classifier has another loss of its own.
    """
    stock = model.forward
    # Accelerate hooks a model by a `forward` of its own; the class's needs no restoring.
    own = vars(model).get("forward")
    head = model.get_output_embeddings()
    uncached = without_cache(model)
    # A model without an output layer of words predicts classes: others do not get here.
    classes = head is None

    def summed(labels: Tensor, smoothing: float, **inputs: Tensor) -> Tensor:
        if classes:
            return summed_class_loss(stock(**inputs, **uncached).logits, labels, smoothing)
        states = states_before(head, stock, {**inputs, **uncached})
        bias, cap = constants(model, head)
        return summed_loss(states, loaded(head).to(states.device), bias, labels, smoothing, cap)

    def forward(labels: Tensor, smoothing: float, **inputs: Tensor) -> Tensor:
        if before:
            before()
        if whole is not None and model.training:
            loss = lost_states(model, whole, inputs) * (labels != IGNORED).sum()
        else:
            loss = summed(labels, smoothing, **inputs)
        # Times the targets, because the caller divides by their number.
        if extra and model.training:
            loss = loss + extra() * (labels != IGNORED).sum()
        return loss

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
            model.forward = own


def lost_states(model: PreTrainedModel, whole: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The share of the variance of a whole encoder's states that the model's encoder misses: 0 where all states are the
    same. The decoder does not run.

    whole: the encoder. inputs: of a batch, with input_ids and attention_mask B S.
    """
    seen = {name: each for name, each in inputs.items() if not name.startswith("decoder_")}
    states = model.get_encoder()(**seen).last_hidden_state.float()
    with torch.no_grad():
        wanted = whole(**seen).last_hidden_state.float()
        there = inputs["attention_mask"].unsqueeze(-1).float()
        mean = (wanted * there).sum((0, 1)) / there.sum()
        # Tokens that are all alike have no variance.
        least = ALIKE * (wanted.square() * there).sum()
        spread = torch.maximum(((wanted - mean).square() * there).sum(), least)
    missed: Tensor = ((states - wanted).square() * there).sum() / spread
    return missed


class KnownStates(nn.Module):
    """An encoder that reads the sources of a text once, before they are asked for, and keeps their states.

    text: the batches of the text, always the same ones, so that states do not depend on the order of a training, or on
    where it went on. What is not of the text is read by the encoder when it is asked for.
    """

    def __init__(self, encoder: nn.Module, text: Callable[[], Iterator[dict[str, Tensor]]]) -> None:
        super().__init__()
        self.encoder = encoder
        self.text = text
        self.known: dict[bytes, Tensor] = {}  # n M, by the tokens of a source

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:
        if not self.known:
            for batch in self.text():
                ids, mask = (batch[name].to(input_ids.device) for name in SOURCE)
                states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
                for key, row, there in zip(keys(ids, mask), states, mask.bool(), strict=True):
                    self.known[key] = row[there]
                self.known[b""] = states.new_zeros(0, states.shape[2])  # of empty rows
        found = [self.known.get(key) for key in keys(input_ids, attention_mask)]
        if any(states is None for states in found):
            whole: BaseModelOutput = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask
            )
            return whole
        rows = torch.cat([states for states in found if states is not None])
        filled = rows.new_zeros(*input_ids.shape, rows.shape[1])
        filled[attention_mask.bool()] = rows
        return BaseModelOutput(last_hidden_state=filled)


def keys(ids: Tensor, mask: Tensor) -> list[bytes]:
    """What tells each source of a batch from others: its tokens."""
    rows = zip(ids.cpu(), mask.bool().cpu(), strict=True)
    return [row[there].numpy().tobytes() for row, there in rows]


def refuse_other_loss(model: PreTrainedModel, head: Any, summed: Callable[..., Tensor]) -> None:
    """Raise HeadwiseError where the loss without logits is not the loss of the model's logits, on two short sentences."""
    kind = type(model).__name__
    if not isinstance(head, nn.Linear):
        raise HeadwiseError(
            f"headwise trains models that predict words by one linear output layer: {kind} has another."
        )
    # 0 to 11 in two rows: the first loses its last word by the mask, the second its last target.
    words = torch.arange(12, device=device_of(model)).view(2, 6)
    sources = words % model.get_input_embeddings().num_embeddings
    targets = words.flip(1) % head.out_features
    inputs = {"input_ids": sources, "attention_mask": (words != 5).long()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = targets
    labels = targets.roll(-1, 1).masked_fill(words == 11, IGNORED)
    with evaluating(model), torch.no_grad():
        logits = logits_in(output_of(model, inputs))
        assert logits is not None  # the model has an output layer
        expected = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), reduction="sum"
        )
        ours = float(summed(labels, 0.0, **inputs))
    within = 1e-3 if logits.dtype in (torch.float32, torch.float64) else 2e-2
    # Not `>`, which is false of NaN.
    if not abs(ours - float(expected)) <= within * float(expected):
        raise HeadwiseError(
            f"{kind} cannot be trained: its loss is {float(expected):.6g} on a small batch, headwise computes "
            f"{ours:.6g}. It changes its logits in a way that headwise does not know, or they are not numbers."
        )


def dev_loss(model: PreTrainedModel, data: TrainingData, tokens: int) -> float:
    """Cross-entropy per target token in nats, without smoothing. Inside `loss_forward`."""
    losses: list[Tensor] = []
    count = 0
    with evaluating(model), torch.no_grad():
        for tensors in data.once(model, tokens):
            count += int((tensors["labels"] != IGNORED).sum())
            device = device_of(model)
            batch = {name: each.to(device) for name, each in tensors.items() if name != "rows"}
            losses.append(model(**batch, smoothing=0.0))
    total: float = sum(torch.stack(losses).tolist())
    return total / count
