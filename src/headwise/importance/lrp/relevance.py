"""Head relevance by layer-wise relevance propagation (Voita et al. 2019, section 4 and appendix A).

Relevance starts as 1 at one logit of a target position, under teacher forcing, and is propagated by a rule (`rules`) to
every head's output. A head's score is its share of its layer's relevance, 1/heads on average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.importance.lrp.rules import RULES, Rule
from headwise.importance.lrp.steps import Addition, Linear, rescaled
from headwise.importance.lrp.tape import Tape, Walk
from headwise.importance.measurement import Measurement
from headwise.importance.measures import STARTS
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery, evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.evaluation.soundness import refuse_unsound
from headwise.models.evaluation.sums import SentenceSums, add_all, to_numpy
from headwise.models.model import Model
from headwise.models.processes import gather_values
from headwise.models.tasks.batches import Batches, Fold, share_within
from headwise.models.tasks.objective import differentiable, on_device, predict, token_masks
from headwise.models.token_rows import IGNORED, batch_spans

Mode = Literal["per-step", "pooled"]
# Rows are positions x starts. So many are propagated together: as many as a processor's cache holds; on a GPU GPU_ROWS.
ROWS = 1024
# Where a rule spreads biases, every walk builds rows x outputs x inputs: few walks matter more than the cache.
SPREAD_ROWS = 8192
GPU_ROWS = 65_536
POSITIONS = 64  # of a part of a batch, at most; a longer sentence is alone


@dataclass
class Relevance:
    """Sums by measure name, and where the relevance went, as shares of the start. Where it started at some positions
    only, balance also has their share as `positions`."""

    sums: dict[str, SentenceSums]
    balance: dict[str, float]


def relevance_measure(model: Model, batches: Batches | Fold, names: Sequence[str]) -> Measurement:
    """The relevance of a model's heads on a text by the rule of a name; its other reading comes with it."""
    # a rule is a pass of its own, so it is asked for alone
    (name,) = names
    rule, _, pooled = name.removeprefix("lrp.").partition(".")
    mode: Mode = "pooled" if pooled else "per-step"
    shares = relevance(model.hf, model.discovery, batches, RULES[rule], mode)
    balances = {name: shares.balance} if shares.balance else {}
    return Measurement(dict(shares.sums), balances=balances)


def relevance(
    model: nn.Module,
    discovery: Discovery,
    batches: Iterable[Mapping[str, Tensor]],
    rule: Rule,
    mode: Mode = "per-step",
) -> Relevance:
    """Every head's share of its layer's relevance, mean over all target positions of a text.

    mode: `per-step`, as in the paper: one start per target position; shares are averaged over positions. In a sentence
        with more than STARTS positions, so many of them, evenly spread, are used: the time grows with the square of the
        sentence's length, not with the cube. `pooled`: all positions of a sentence start together, and shares are of
        the sum; faster.
    Relevance starts at the highest logit of each position. Positions from which no relevance arrives in a layer do not
    count there; where none arrives from a whole batch (all heads that lead there are silenced), all shares are 0.
    Silenced heads have none.
    A head's relevance is summed over queries and neurons, signed or absolute as the rule says; the other sum has the
    suffix `.signed` or `.absolute`. Half precision is propagated in float32. Raises HeadwiseError for operations
    without a rule, and for values that are not finite.
    """
    refuse_inline(model, discovery)
    name = f"lrp.{rule.name}" + (".pooled" if mode == "pooled" else "")
    # both readings are kept: the rule's own under the plain name, the other with a suffix
    names = {
        True: name + ("" if rule.signed else ".signed"),
        False: name + (".absolute" if rule.signed else ""),
    }
    collected = {
        names[reading]: SentenceSums(discovery.heads) for reading in (rule.signed, not rule.signed)
    }
    balance: dict[str, float] = defaultdict(float)
    on_share = share_within(batches)
    with differentiable(model):
        for batch in batches:
            tensors = on_device(model, batch)
            for what, total in score_batch(
                model, discovery, tensors, rule, mode, names, collected, on_share
            ).items():
                balance[what] += total
    whole: dict[str, float] = defaultdict(float)
    for share in gather_values(dict(balance)):  # every process has a share of the text
        for what, total in share.items():
            whole[what] += total
    started = whole.pop("started", 0.0)
    predicted = whole.pop("predicted", 0.0)
    if not started:
        raise HeadwiseError(
            f"'{name}' cannot be computed: the text has no token to predict. Give longer text."
        )
    balance = {what: total / started for what, total in whole.items()}
    # long sentences started at some positions only: the signature says at how many
    if started < predicted:
        balance["positions"] = started / predicted
    return Relevance(collected, balance)


def refuse_inline(model: nn.Module, discovery: Discovery) -> None:
    """Raise HeadwiseError for a model whose layers compute attention in their own code."""
    if discovery.inline:
        raise HeadwiseError(
            f"{type(model).__name__} computes attention in its own code, where headwise sees no queries and keys: "
            "relevance cannot be propagated through it. Score it by gradient, ablation or confidence."
        )


def score_batch(
    model: nn.Module,
    discovery: Discovery,
    batch: Mapping[str, Tensor],
    rule: Rule,
    mode: Mode,
    names: Mapping[bool, str],
    collected: Mapping[str, SentenceSums],
    on_share: Callable[[float], None],
) -> dict[str, float]:
    """Score one batch: add to the sums, and return the balance of relevance. on_share: gets the share that is done."""
    every = (batch["labels"] != IGNORED).sum(1)
    if not every.any():
        return {"started": 0.0}
    balance: dict[str, float] = defaultdict(float)
    shares: dict[tuple[bool, Site], tuple[Tensor, Tensor]] = {}
    done = 0
    # A pooled walk has one start, so that all positions of a batch are few rows.
    most = POSITIONS if on_processor(batch) and mode == "per-step" else GPU_ROWS
    for sentences, part in parts_of_like_length(batch, most):

        def within(share: float, done: int = done, size: int = len(sentences)) -> None:
            on_share((done + share * size) / len(every))

        flows, found = score_part(model, discovery, part, rule, mode, within)
        done += len(sentences)
        for what, total in flows.items():
            balance[what] += total
        for place, (whole, counts) in found.items():
            if place not in shares:
                shape = (len(every), whole.shape[1])
                shares[place] = whole.new_zeros(shape), counts.new_zeros(len(every))
            # parts are sorted by length; their sums go back to where the batch has the sentences
            shares[place][0][sentences] = whole
            shares[place][1][sentences] = counts
    parts: list[tuple[SentenceSums, Site, Tensor, Tensor]] = []
    for site in discovery.heads.sites:
        for signed, name in names.items():
            none = every.new_zeros(len(every), discovery.heads.count(site), dtype=torch.float32)
            whole, counts = shares.get((signed, site), (none, torch.zeros_like(every)))
            # where no relevance arrives from the whole batch, shares of 0 count
            parts.append((collected[name], site, whole, torch.where(counts.any(), counts, every)))
    add_all(parts)
    return dict(balance)


def parts_of_like_length(
    batch: Mapping[str, Tensor], most: int
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """A batch in parts of sentences of like length with at most so many positions, each without the padding behind its
    longest sentence, and their places in the batch. Every start carries the relevance of a whole part through the model:
    padding would cost as words do."""
    there = token_masks(batch)
    ends = {side: last_places(mask) for side, mask in there.items()}
    lengths = torch.stack([*ends.values()]).amax(0)
    order = lengths.argsort(stable=True)
    for span in batch_spans(lengths[order].tolist(), most):
        sentences = order[span]
        part = {name: tensor[sentences] for name, tensor in batch.items()}
        for side, mask in there.items():
            end = int(ends[side][sentences].max())
            for name, tensor in part.items():
                of_target = name == "labels" or name.startswith("decoder_")
                in_side = len(there) == 1 or of_target == (side == "target")
                if in_side and tensor.dim() == 2 and tensor.shape[1] == mask.shape[1]:
                    part[name] = tensor[:, :end]
        yield sentences, part


def last_places(there: Tensor) -> Tensor:
    """How many positions B of each sentence there are up to its last token."""
    number = torch.arange(1, there.shape[1] + 1, device=there.device)
    return (there * number).amax(1)


def score_part(
    model: nn.Module,
    discovery: Discovery,
    batch: Mapping[str, Tensor],
    rule: Rule,
    mode: Mode,
    on_share: Callable[[float], None],
) -> tuple[dict[str, float], dict[tuple[bool, Site], tuple[Tensor, Tensor]]]:
    """The balance of relevance, and by reading (signed or not) and site the sums of the shares of heads B H, and over how
    many positions B."""
    places, asked = predicted_positions(batch["labels"])
    if not places.shape[1]:
        return {}, {}
    every = asked.sum(1)
    if mode == "per-step":
        places, asked = spread_positions(places, every)
    # with all positions used it is 1
    weight = every / asked.sum(1).clamp_min(1)  # positions of a sentence for which one stands
    sums: dict[tuple[bool, Site], tuple[Any, Any]] = {}
    with evaluating(model), torch.no_grad():
        tape, logits = record_tape(model, discovery, batch)
        number, rows = first_rows(tape, model, logits, rule)
        flows: list[tuple[str, Tensor]] = [("predicted", every.sum().to(rows.dtype))]
        for steps in chunks(places.shape[1], batch, rule, mode):
            start = begin(rows, places[:, steps], asked[:, steps], mode)
            there = every[None].to(rows.dtype)
            if mode == "per-step":
                there = (asked[:, steps] * weight[:, None]).T.to(rows.dtype)

            def arrive(site: Site, at: Tensor, there: Tensor = there) -> None:
                for signed in (True, False):
                    heads = (at if signed else at.abs()).sum((2, 4))  # P B H
                    layer = heads.sum(-1, keepdim=True)
                    # R_h / Σ R over the layer's heads: 1/heads on average (Voita et al. 2019, section 4)
                    share = torch.where(layer == 0, 0, heads / layer) * there[..., None]
                    # a position from which nothing arrives counts neither above nor below the line
                    reached = (there * (layer[..., 0] != 0)).sum(0)
                    before, times = sums.get((signed, site), (0, 0))
                    sums[signed, site] = before + share.sum(0), times + reached

            # one forward, many walks: the tape keeps what every walk needs
            walk = Walk(tape, rule, {number: start}, arrive)
            flows += [(what, total.sum()) for what, total in walk.balance.items()]
            flows += [("started", asked[:, steps].sum().to(rows.dtype)), ("handed on", start.sum())]
            on_share(min(1.0, steps.stop / places.shape[1]))
    balance: dict[str, float] = defaultdict(float)
    for (what, _), total in zip(flows, to_numpy([total for _, total in flows]), strict=True):
        balance[what] += float(total)
    # absorbed by the biases of the logits
    balance["bias"] += balance["started"] - balance.pop("handed on")
    return dict(balance), sums


def record_tape(
    model: nn.Module, discovery: Discovery, batch: Mapping[str, Tensor]
) -> tuple[Tape, Tensor]:
    """The tape of one forward, and the logits B T V."""
    tape = Tape()

    def show(call: AttentionCall) -> None:
        tape.shown = call

    with capture(model, discovery, hook=show, weights=True), tape.recording(model):
        logits = predict(model, batch)
    refuse_unsound(tape.sound)
    return tape, logits


def predicted_positions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of predicted tokens by sentence, B P, and which of them are there."""
    asked = labels != IGNORED
    # stable: positions stay in the order of the sentence
    order = torch.argsort((~asked).to(torch.int8), dim=1, stable=True)[:, : int(asked.sum(1).max())]
    return order, asked.gather(1, order)


def spread_positions(places: Tensor, every: Tensor) -> tuple[Tensor, Tensor]:
    """At most STARTS of the positions of each sentence, in the middle of parts of equal length: B P, and which of them
    are there. places B N: the positions, of which a sentence has so many (every B)."""
    number = torch.arange(min(STARTS, places.shape[1]), device=places.device).expand(
        len(places), -1
    )
    middle = ((number + 0.5) * every[:, None] / STARTS).long()
    chosen = torch.where(every[:, None] > STARTS, middle, number)
    return places.gather(1, chosen), number < every[:, None]


def chunks(steps: int, batch: Mapping[str, Tensor], rule: Rule, mode: Mode) -> list[slice]:
    """Slices of steps that are propagated together."""
    if mode == "pooled":
        return [slice(0, steps)]
    # each start carries the relevance of a whole batch through the model
    rows = SPREAD_ROWS if rule.bias == "spread" else ROWS
    rows = rows if on_processor(batch) else GPU_ROWS
    size = max(1, rows // max(batch["input_ids"].numel(), batch["labels"].numel()))
    return [slice(first, first + size) for first in range(0, steps, size)]


def on_processor(batch: Mapping[str, Tensor]) -> bool:
    return batch["labels"].device.type == "cpu"


def begin(rows: Tensor, places: Tensor, asked: Tensor, mode: Mode) -> Tensor:
    """The relevance of the states before the output layer, P B T M, from the row of each position, B T M."""
    if mode == "pooled":
        chosen = torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device).scatter(
            1, places, asked
        )
        return (rows * chosen[..., None])[None]
    width = rows.shape[-1]
    chosen = rows.gather(1, places[..., None].expand(-1, -1, width)) * asked[..., None]  # B P M
    start = rows.new_zeros(places.shape[1], *rows.shape)
    return start.scatter_(
        2, places.T[..., None, None].expand(-1, -1, 1, width), chosen.transpose(0, 1)[:, :, None]
    )


def first_rows(tape: Tape, model: nn.Module, logits: Tensor, rule: Rule) -> tuple[int, Tensor]:
    """The step of the output layer for the highest logit of each position: the states' tensor number, and relevance B T M.

    A relevance of 1 at a logit needs only that logit's row of the output matrix, so nothing of the size of positions x
    vocabulary is propagated.
    """
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[operator]
    # by its weight, because an operation does not know its module
    record = next(
        (
            r
            for r in tape.records
            if isinstance(r.step, Linear) and r.step.weight is getattr(head, "weight", None)
        ),
        None,
    )
    if record is None:
        raise HeadwiseError(
            f"{type(model).__name__} has no output layer where relevance can start."
        )
    layer = record.step
    assert isinstance(layer, Linear) and layer.weight is not None
    x = layer.x.to(torch.promote_types(layer.x.dtype, torch.float32))
    # the highest logit, whatever the right word is: relevance is of what the model says
    chosen = logits.topk(1, -1).indices[..., 0]
    weight = layer.weight[chosen].to(x.dtype)
    bias = logit_bias(tape, layer, logits, chosen).to(x.dtype)
    return record.inputs[0], output_row(rule, x, weight, bias)


def output_row(rule: Rule, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A relevance of 1 at x · weight + bias, propagated to x. x and weight B T M, bias B T."""
    # z_i = w_i x_i: what each input adds to the logit
    impact = weight * x
    sums = impact.sum(-1, keepdim=True) + bias[..., None]
    if rule.bias == "spread":
        impact = impact + bias[..., None] / x.shape[-1]
    absolutes = impact.abs().sum(-1, keepdim=True) + (
        bias[..., None].abs() if rule.bias == "absorbed" else 0
    )
    one = torch.ones_like(sums)
    # R_i = c1 z_i + c2 |z_i|, the form of every rule here
    c1, c2 = rule.share(one, sums, absolutes)
    found = c1 * impact + (0 if c2 is None else c2 * impact.abs())
    if rule.rescale:
        for _ in range(2):  # in the row, and in the sentence, which has only this row
            (found,) = rescaled(rule, one, found, axes=found.dim() - 1)
    return found


def logit_bias(tape: Tape, layer: Linear, logits: Tensor, chosen: Tensor) -> Tensor:
    """The constants in the chosen logits, B T: the layer's bias, and a bias that is added later (Marian, BART)."""
    bias = (
        torch.zeros_like(chosen, dtype=logits.dtype) if layer.bias is None else layer.bias[chosen]
    )
    # the operation right before the logits, where a bias of its own would be added
    last = tape.records[-1].step
    if isinstance(last, Addition) and last.carried == 1 and last.operands[0] is layer.out:
        bias = bias + last.operands[1].expand_as(logits).gather(-1, chosen[..., None])[..., 0]
    return bias
