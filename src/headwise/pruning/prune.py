"""One smaller model, to a penalty, a number of heads, or a loss of quality: with gates, or in the order of a score."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.layout import HeadMask
from headwise.core.options import Gates, Greedy, TopK, Training, several, too_few
from headwise.core.progress import Report, part
from headwise.core.units import left_by_step, units
from headwise.models.attention.offload import refuse_offloaded
from headwise.models.model import Model
from headwise.models.tasks import AnyText, Task
from headwise.models.tasks.own_translations import LIKE_OWN
from headwise.models.training.trainer import TrainingRun
from headwise.pruning.fine_tuning import tune, tuned_further
from headwise.pruning.gate_training import Pruned, train_gates, updates_of
from headwise.pruning.gates import HardConcrete, PenaltyGates, glorot_uniform
from headwise.pruning.greedy import mask_without, most_within, removal_order, removal_score
from headwise.pruning.removal_scores import removal_scores
from headwise.pruning.repair import repaired_on
from headwise.pruning.target_count import WITHIN, CountedGates, settle_share
from headwise.pruning.top_k import TopGates

APART = 0.5  # share of the progress of gates that is followed by training of the weights
ORDER = 0.7  # share of the progress of a greedy removal that is choosing, where it is followed by repair
REMOVAL = 0.2  # share of the progress of a greedy removal that is followed by training


def smaller_model(
    model: Model,
    text: AnyText,
    dev: AnyText,
    options: Gates | TopK | Greedy,
    training: Training,
    seed: int,
    work: str | Path | None,
    report: Report,
) -> Model:
    """A smaller model by the one goal of the options, whose kinds are named; the given one stays as it is.

    training: how weights and gates train, where the options do. work: a folder in which a killed run goes on. Warns
    when gates had not settled or missed the target.
    """
    if isinstance(options, Greedy):
        removal = part(report, 0.0, REMOVAL) if options.train else report
        mask = greedy_mask(model, text, dev, options, seed, part(removal, 0.0, ORDER))
        # The mask obeys the unit that was asked for: if that lets the cache grow, the user wants it.
        start = (
            repaired_on(model, mask, text, dev, part(removal, ORDER, 1.0))
            if options.repair
            else model.remove(mask, grow=True)
        )
        if not options.train:
            return start
        report = part(report, REMOVAL, 1.0)
    with tempfile.TemporaryDirectory() as scratch:
        data = model.task.training_data(text, training.batch_tokens)
        own_dev = model.task.dev_of_training(text, dev)
        if own_dev is not dev and not text.made:
            warnings.warn(LIKE_OWN, stacklevel=3)
        dev_data = model.task.training_data(own_dev, training.batch_tokens)
        run = TrainingRun(data, dev_data, training, Path(work or scratch), seed, report)
        if isinstance(options, Greedy):
            return tune(model, run, options, tuple(options.kinds or ()), mask, start).model
        if isinstance(options, Gates) and options.penalty:
            few = too_few(options, updates_of(run, options.of_gates))
            if few:
                warnings.warn(few, stacklevel=3)
        # A copy is trained: the given model stays as it is.
        copy = model.remove(HeadMask.full(model.heads), grow=True)
        pruned = prune_by_training(copy, run, options)
    for note in pruned.doubts:
        warnings.warn(note, stacklevel=3)
    return pruned.model


def prune_by_training(model: Model, run: TrainingRun, options: Gates | TopK) -> Pruned:
    """Train gates on the heads of the options' kinds beside the weights of `model`, in place, to the one penalty or target
    count of the options; or apart: first gates, then the weights of the smaller model. Resumes from `run.work`."""
    if options.train == "apart":
        refuse_offloaded(model.hf, "Training weights after gates (train = 'gates' trains none)")
        half = replace(run, progress=part(run.progress, 0.0, APART))
        pruned = prune_by_training(model, half, options.of_gates)
        rest = replace(run, work=run.work / "weights", progress=part(run.progress, APART, 1.0))
        return tuned_further(pruned, rest, options)
    kinds = tuple(options.kinds or ())
    heads = model.heads.only(kinds)
    start = glorot_uniform(heads, run.seed) if options.start == "glorot" else options.start
    if isinstance(options, Gates) and options.penalty is not None:
        (penalty,) = several(options.penalty)
        pruned = train_gates(
            model,
            run,
            options,
            PenaltyGates(heads, options, start, penalty),
            settle_share(options, to_count=False),
        )
        for kind in kinds:
            if pruned.mask.count(kind) == 0:
                pruned.notes.append(
                    f"No {kind} head is left: λ is so large that only the residual connection remains."
                )
        return pruned

    (keep,) = several(options.keep)
    settle = settle_share(options, to_count=True)
    if isinstance(options, TopK):
        top = TopGates(heads, start, keep, settle, options.unit)
        return train_gates(model, run, options, top, settle)
    gates = CountedGates(heads, HardConcrete(options.temperature), start, keep, options.unit)
    pruned = train_gates(model, run, options, gates, settle)
    if gates.missed() <= WITHIN:
        return pruned
    # `missed` counts units, and the sentence is about heads.
    missed = gates.missed() * float(gates.heads_in.max())
    note = (
        f"The expected count was still {missed:.1f} heads away from the target count when the gates were decided, "
        f"so the order of log α chose the heads: {updates_of(run, options)} updates are too few. "
        "Train longer."
    )
    notes = [*pruned.notes, note]
    return replace(pruned, notes=notes, doubts=[*pruned.doubts, note])


def greedy_mask(
    model: Model, text: AnyText, dev: AnyText, options: Greedy, seed: int, progress: Report
) -> HeadMask:
    """What is left when heads go in the order of a score on `text`; the quality for `max_drop` is measured on `dev`, of
    repaired models where the options repair."""
    scores = removal_scores(several(options.measure) or [model.task.usual_score])
    if len(scores) > 1:
        raise HeadwiseError(
            f"prune: heads are removed in the order of one score, but '{options.measure}' names several."
        )
    full = HeadMask.full(model.heads)

    # Heads that cannot be removed are refused before anything is scored.
    first = units(model.heads.only(options.kinds or ()), options.unit)[0]
    with warnings.catch_warnings(action="ignore"):
        model.remove(full.without(first), grow=True)

    first_half = part(progress, 0.0, 0.5)
    replicate = int(scores[0] == "random")
    score = removal_score(model, text, scores[0], options.rescore, seed, replicate, first_half)
    order = removal_order(score, options)

    def cut(mask: HeadMask) -> Task:
        if options.repair:
            return repaired_on(model, mask, text, dev).task
        return model.remove(mask, grow=True).task

    def without(removed: int) -> HeadMask:
        return mask_without(model.heads, order, removed)

    if options.max_drop is None:
        return without(sum(map(len, order)))
    total = model.heads.only(options.kinds or model.heads.kinds).total
    steps = [total - left for left in left_by_step(model.heads, options)]
    rest = part(progress, 0.5, 1.0)
    translates = model.task.generates
    # CTranslate2 knows no silent heads, so translations are those of smaller models.
    apart = translates or options.repair
    dev_batches = model.task.quality_batches(dev, rest, options.search)
    whole: Answers | None = None

    def losses(numbers: Sequence[int]) -> list[float]:
        nonlocal whole
        masks = [without(removed) for removed in numbers]
        measured = model.task.answers(dev_batches, masks, cut if apart else None, whole)
        whole = measured.of(0)
        limit = options.max_drop
        if translates and limit is not None and limit > whole.value():
            warnings.warn(too_generous("max_drop", limit, whole.value()), stacklevel=5)
        # Place 0 is the whole model, which all others are compared with.
        changes = [measured.difference(place) for place in range(1, len(masks) + 1)]
        # A gain is a negative loss; of perplexity less is better.
        return [-measured.quality.better * change for change in changes]

    return without(most_within(order, steps, losses, options.max_drop))


def too_generous(option: str, limit: float, whole: float) -> str:
    """A sentence for a limit of more BLEU than the whole model has."""
    return (
        f"{option} is {limit:g}, but the whole model has only {whole:.1f} BLEU on dev, so any model is within it: the "
        "limit is in BLEU, not in %."
    )
