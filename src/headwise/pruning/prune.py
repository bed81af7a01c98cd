"""`prune`: one smaller model, and how far to go: to a penalty, a number of heads, or a loss of quality."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from headwise.attention.offload import refuse_offloaded
from headwise.data.text import ParallelText
from headwise.decoding.bleu import translation_answers
from headwise.decoding.translator import translate
from headwise.errors import HeadwiseError
from headwise.evaluation.measure import measure
from headwise.heads import HeadMask, Kind
from headwise.importance.mean_outputs import mean_outputs
from headwise.model import Model
from headwise.options import (
    FULL_LENGTH,
    Gates,
    GateTraining,
    Greedy,
    Pruning,
    Search,
    TopK,
    Training,
    several,
    too_few,
)
from headwise.progress import Report, part, shown, silent, turn
from headwise.pruning.fine_tuning import tune, tuned_further
from headwise.pruning.gate_training import Pruned, train_gates, updates_of
from headwise.pruning.gates import HardConcrete, PenaltyGates, glorot_uniform
from headwise.pruning.greedy import (
    Losses,
    RemovalScore,
    mask_without,
    most_within,
    removal_order,
)
from headwise.pruning.removal_scores import removal_scores
from headwise.pruning.target_count import WITHIN, CountedGates, settle_share
from headwise.pruning.top_k import TopGates
from headwise.tasks import AnyText, Given, held_out
from headwise.tasks.own_translations import LIKE_OWN
from headwise.training.trainer import TrainingRun
from headwise.units import left_by_step, refuse_counts, units

GOALS = ("penalty", "keep", "max_drop")
APART = 0.5  # share of the progress of gates that is followed by training of the weights
REMOVAL = 0.2  # share of the progress of a greedy removal that is followed by training


def prune(
    model: Model,
    text: AnyText | Given,
    options: Gates | TopK | Greedy,
    *,
    dev: AnyText | Given | None = None,
    training: Training | None = None,
    seed: int = 1,
    work: str | Path | None = None,
    progress: Report | None = None,
) -> Model:
    """A smaller model; the given one stays as it is.

    options: the method, and how far to prune:

        hw.Gates(penalty=0.01)    gates under a penalty λ, whatever number of heads that leaves (Voita et al. 2019)
        hw.Gates(keep=10)         gates, and exactly so many heads, in total or of every kind: {"cross": 4}
        hw.TopK(keep=10)          exactly so many gates open in every step (Li et al. 2021)
        hw.Greedy(keep=10)        in the order of a score, without training (Michel et al. 2019, section 4.2)
        hw.Greedy(max_drop=0.5)   the smallest model that loses at most so much: BLEU of a translation model, % of
                                  perplexity of a language model, points of accuracy of a classifier, points of
                                  similarity of a model of embeddings
        hw.Greedy(keep=10, train="lora")   then a short training of what is left

    text: gates and weights train on it, or heads are scored on it; a translation model translates a text without targets
    itself. dev: choices are made on it; by default every tenth pair or sentence of `text`, which then is left out there.
    training: how weights train with gates, such as hw.Training(batch_tokens=2000); the options say for how long. work: a
    folder in which a killed run goes on. progress: gets the share that is done, and of what; by default a bar.

    Where no kinds are named, the heads are those of the kinds that `keep` names, or `encoder-self` of a translation
    model and all heads of any other. Training needs memory for the weights once more. Warns when gates had not settled
    or missed the target. Raises HeadwiseError for options, texts and models that do not fit together.
    """
    if not isinstance(model, Model):
        raise HeadwiseError(
            f"{model!r} was to be pruned, which is no model of headwise: hw.load(…) makes one."
        )
    if not isinstance(options, Gates | TopK | Greedy):
        raise HeadwiseError(
            f"prune: the options are {options!r:.100}: give hw.Gates(…), hw.TopK(…) or hw.Greedy(…)."
        )
    refuse_goals(options)
    refuse_idle_training(options, training, work)
    kinds = options.kinds or usual_kinds(model, options)
    options = options.model_copy(update={"kinds": kinds})
    try:
        if isinstance(options, GateTraining):
            options = options.with_train(options.train or "apart")
        refuse_counts(model.heads, options)
    except ValueError as error:
        raise HeadwiseError(f"prune: {error}") from None
    train = model.task.completed(text)
    if dev is None:
        train, dev = held_out(train)
    chosen_on = model.task.completed(dev)
    with shown("prune", progress) as report:
        if isinstance(options, Greedy):
            removal = part(report, 0.0, REMOVAL) if options.train else report
            model = prune_greedily(model, train, chosen_on, options, seed, removal)
            if not options.train:
                return model
            report = part(report, REMOVAL, 1.0)
        with tempfile.TemporaryDirectory() as scratch:
            how = training or Training()
            # A given model was trained by somebody else: smoothing would move it away from where it converged.
            if "label_smoothing" not in how.model_fields_set:
                how = how.model_copy(update={"label_smoothing": 0.0})
            data = model.task.training_data(train, how.batch_tokens)
            own_dev = model.task.dev_of_training(train, chosen_on)
            if own_dev is not chosen_on and not train.made:
                warnings.warn(LIKE_OWN, stacklevel=2)
            dev_data = model.task.training_data(own_dev, how.batch_tokens)
            run = TrainingRun(data, dev_data, how, Path(work or scratch), seed, report)
            if isinstance(options, Greedy):
                # The heads are gone already: `tune` removes no more, and trains a copy.
                everything = HeadMask.full(model.heads)
                return tune(model, run, options, tuple(kinds), everything).model
            if isinstance(options, Gates) and options.penalty:
                few = too_few(options, updates_of(run, options.of_gates))
                if few:
                    warnings.warn(few, stacklevel=2)
            # A copy is trained: the given model stays as it is.
            copy = model.remove(HeadMask.full(model.heads), grow=True)
            pruned = prune_by_training(copy, run, options)
    for note in pruned.doubts:
        warnings.warn(note, stacklevel=2)
    return pruned.model


def refuse_goals(options: Gates | TopK | Greedy) -> None:
    """Raise HeadwiseError unless exactly one option says, once, how far to prune."""
    possible = [name for name in GOALS if name in type(options).model_fields]
    given = [name for name in possible if several(getattr(options, name))]
    if len(given) != 1:
        problem = f"{' and '.join(given)} were given together" if given else "none was given"
        raise HeadwiseError(
            f"prune needs {' or '.join(possible)} in hw.{type(options).__name__}(…), but {problem}: "
            "say once how far to prune."
        )
    values = several(getattr(options, given[0]))
    if len(values) > 1:
        raise HeadwiseError(
            f"prune makes one model, but {given[0]} has {len(values)} values: give one, or let a study make them all."
        )


def refuse_idle_training(
    options: Gates | TopK | Greedy, training: Training | None, work: str | Path | None
) -> None:
    """Raise HeadwiseError for options of training where nothing trains, and where the length of the training is given
    twice."""
    if isinstance(options, Greedy) and not options.train:
        for name, value in {"training": training, "work": work}.items():
            if value is not None:
                raise HeadwiseError(
                    f"prune: {name} means nothing with hw.Greedy(…) without train, which trains nothing: leave it out."
                )
        return
    if isinstance(options, Greedy) and options.max_drop is not None:
        raise HeadwiseError(
            "prune: max_drop chooses before anything trains, so it cannot be given with train: give keep, or let a "
            "study compare the trained models."
        )
    if training is None:
        return
    if not isinstance(training, Training):
        raise HeadwiseError(
            f"prune: training is {training!r:.100}: give hw.Training(…), such as hw.Training(batch_tokens=2000)."
        )
    twice = [name for name in FULL_LENGTH if name in training.model_fields_set]
    if twice:
        raise HeadwiseError(
            f"prune: training names {', '.join(twice)}, but for how long pruning trains is said in "
            f"hw.{type(options).__name__}(…): leave it out of hw.Training(…)."
        )


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
    return replace(pruned, settled=False, notes=notes, doubts=[*pruned.doubts, note])


def prune_greedily(
    model: Model, text: AnyText, dev: AnyText, options: Greedy, seed: int, progress: Report
) -> Model:
    """Heads are removed in the order of a score on `text`; the quality for `max_drop` is measured on `dev`."""
    scores = removal_scores(several(options.score) or [model.task.usual_score])
    if len(scores) > 1:
        raise HeadwiseError(
            f"prune: heads are removed in the order of one score, but '{options.score}' stands for several."
        )
    full = HeadMask.full(model.heads)

    # Heads that cannot be removed are refused before anything is scored.
    first = units(model.heads.only(options.kinds or ()), options.unit)[0]
    with warnings.catch_warnings(action="ignore"):
        model.remove(full.without(first), grow=True)

    batches = model.task.batches(text, part(progress, 0.0, 0.5))
    order = removal_order(RemovalScore(model, batches, scores[0], options.rescore, seed), options)
    means = None
    if options.compensate:
        means = mean_outputs(model.hf, model.discovery, batches.reporting(silent).intact())

    def cut(mask: HeadMask) -> Model:
        # The masks obey the unit that was asked for: if that lets the cache grow, the user wants it.
        return model.remove(mask, means=means, grow=True)

    def without(removed: int) -> HeadMask:
        return mask_without(model.heads, order, removed)

    if options.max_drop is None:
        return cut(without(sum(map(len, order))))
    total = model.heads.only(options.kinds or model.heads.kinds).total
    steps = [total - left for left in left_by_step(model.heads, options)]
    rest = part(progress, 0.5, 1.0)
    if model.task.generates:
        assert isinstance(dev, ParallelText)
        losses = lost_bleu(model, dev, options, lambda removed: cut(without(removed)), rest)
    else:
        dev_batches = model.task.quality_batches(dev, rest)

        def losses(numbers: Sequence[int]) -> list[float]:
            masks = [without(removed) for removed in numbers]
            measured = measure(dev_batches, masks, cut if options.compensate else None)
            # Place 0 is the whole model, which all others are compared with.
            changes = [measured.difference(place) for place in range(1, len(masks) + 1)]
            # A gain is a negative loss; of perplexity less is better.
            return [-measured.quality.better * change for change in changes]

    return cut(without(most_within(order, steps, losses, options.max_drop)))


def lost_bleu(
    model: Model,
    dev: ParallelText,
    options: Greedy,
    cut: Callable[[int], Model],
    progress: Report,
) -> Losses:
    """A function that gives the BLEU that models lose on dev. cut: makes the model without that number of heads."""
    search = options.search or Search()
    sources = list(dev.sources)
    references = list(dev.targets)

    def translated(some: Model, share: Report) -> list[str]:
        return translate(some.translator(search.engine), sources, search, share)[0]

    of_whole = translated(model, silent)
    whole = translation_answers([of_whole], references).value()
    assert options.max_drop is not None
    if options.max_drop > whole:
        warnings.warn(too_generous("max_drop", options.max_drop, whole), stacklevel=4)

    def losses(numbers: Sequence[int]) -> list[float]:
        found = []
        for place, removed in enumerate(numbers):
            share = turn(progress, place, len(numbers))
            lines = translated(cut(removed), share)
            found.append(whole - translation_answers([lines], references).value())
        return found

    return losses


def too_generous(option: str, limit: float, whole: float) -> str:
    """A sentence for a limit of more BLEU than the whole model has."""
    return (
        f"{option} is {limit:g}, but the whole model has only {whole:.1f} BLEU on dev, so any model is within it: the "
        "limit is in BLEU, not in %."
    )


def usual_kinds(model: Model, options: Pruning) -> tuple[Kind, ...]:
    """The kinds of heads that are pruned where none is named: those for which `keep` has a number, or the task's."""
    for keep in several(options.keep):
        if isinstance(keep, Mapping):
            return tuple(keep)
    return model.task.usual_kinds
