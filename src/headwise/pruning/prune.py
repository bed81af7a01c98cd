"""`prune`: one smaller model, and how far to go: to a penalty, a number of heads, or a loss of quality."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from headwise.data.text import ParallelText
from headwise.decoding.bleu import corpus_scores
from headwise.decoding.translator import translate
from headwise.engines.ct2_writer import writer_of
from headwise.errors import HeadwiseError
from headwise.evaluation.losses import Losses
from headwise.heads import HeadMask, Kind
from headwise.importance.ablation import mean_outputs
from headwise.model import Model
from headwise.options import GateOptions, Keep, Recipe, Search, Unit, too_few
from headwise.progress import Report, part, shown, silent
from headwise.pruning.gate_training import prune_by_gates
from headwise.pruning.greedy import smallest_within
from headwise.pruning.ranking import Ranking, greedy_masks
from headwise.pruning.sweeps import SWEEPS, GateSweep, GreedySweep, TopKSweep
from headwise.pruning.target_count import prune_to_count, updates_of
from headwise.pruning.top_k import prune_by_top_k
from headwise.tasks import AnyText, held_out
from headwise.training.trainer import Training
from headwise.units import units
from headwise.validation import checked

Method = Literal["gates", "top-k", "greedy"]


def prune(
    model: Model,
    text: AnyText,
    dev: AnyText | None = None,
    *,
    penalty: float | None = None,
    keep: Keep | None = None,
    max_drop: float | None = None,
    kinds: Sequence[Kind] | None = None,
    method: Method | None = None,
    seed: int = 1,
    work: str | Path | None = None,
    progress: Report | None = None,
    unit: Unit | None = None,
    score: str | None = None,
    rescore: bool | None = None,
    step: float | None = None,
    compensate: bool | None = None,
    search: Search | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    warmup: int | None = None,
    schedule: str | None = None,
    average: int | None = None,
    train: Literal["all", "gates", "lora"] | None = None,
    gate_learning_rate: float | None = None,
    penalty_scale: Literal["paper", "code"] | None = None,
    temperature: float | None = None,
    start: float | Literal["glorot"] | None = None,
    rule: Literal["sign", "deterministic"] | None = None,
    settle: float | None = None,
    batch_tokens: int | None = None,
    accumulate: int | None = None,
    label_smoothing: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    patience: int | None = None,
    dtype: str | None = None,
) -> Model:
    """A smaller model. One of three says how far to prune:

    penalty: λ of the gates, whatever number of heads that leaves. keep: exactly so many heads, in total or of every
    kind. max_drop: the smallest model that loses at most so much BLEU (of a language model: so many % of perplexity; of
    a classifier: so many points of accuracy).

    method: `gates` (Voita et al. 2019, section 6) and `top-k` (Li et al. 2021) train on `text` while heads go; the
    given model is fine-tuned in place. `greedy` trains nothing (Michel et al. 2019, section 4.2). By default gates
    under a penalty, and where the model translates and no max_drop is given; greedy otherwise.

    train: what trains with gates: `all` weights; no weight (`gates`), so that they say which heads the model as it is
    can do without; or low-rank changes of the linear layers (`lora`, needs peft).

    score, rescore, step, compensate: the order of greedy removal, by default `gradient`, or `confidence` of a model
    that predicts no words. search: how translations are searched for, to measure BLEU. All others, of gates and top-k:
    how they train, as in a plan (docs/plan.md), which also has the defaults.

    dev: what choices are made on; by default every tenth pair or sentence of `text`, which then is left out of it.
    unit: what goes at once (docs/methods/removal.md): `head`, `balanced`, `group` or `uniform`; by default `balanced`
    where query heads share key/value heads, else `head`. keep counts heads, whatever the unit.
    kinds: of which heads; by default those that `keep` names, or `encoder-self` of a translation model and all heads of
    any other. work: a folder in which a killed run goes on. progress: gets the share that is done, and of what; by
    default a bar. Warns when the gates of a run had not settled or missed the
    target. Raises HeadwiseError for options that mean nothing together.
    """
    options = {
        name: value for name, value in locals().items() if name in OPTIONS and value is not None
    }
    if not isinstance(model, Model):
        raise HeadwiseError(
            f"{model!r} was to be pruned, which is no model of headwise: hw.load(…) makes one."
        )
    goals = {"penalty": penalty, "keep": keep, "max_drop": max_drop}
    given = [name for name, value in goals.items() if value is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} were given together" if given else "none was given"
        raise HeadwiseError(
            f"prune needs one of {', '.join(goals)}, but {found}: say once how far to prune."
        )
    gated = penalty is not None or (model.hf.config.is_encoder_decoder and max_drop is None)
    method = method or ("gates" if gated else "greedy")
    if method not in SWEEPS:
        raise HeadwiseError(
            f"prune: method '{method}' was asked for; there is {', '.join(SWEEPS)}."
        )
    if not {"penalty": method == "gates", "keep": True, "max_drop": method == "greedy"}[given[0]]:
        raise HeadwiseError(
            f"prune: {given[0]} means nothing with method '{method}': see the help of hw.prune."
        )
    for name, value in (("penalty", penalty), ("max_drop", max_drop)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < math.inf
        ):
            raise HeadwiseError(f"prune: {name}={value!r} was given: give a number of at least 0.")
    if isinstance(kinds, str):
        raise HeadwiseError(
            f"prune: kinds is '{kinds}': give a list of kinds, such as ['encoder-self']."
        )
    if max_drop is not None and not model.task.has_loss:
        raise HeadwiseError(
            f"prune: {model.name} predicts neither words nor classes, so max_drop cannot be measured: give keep."
        )
    recipe = {
        name: options.pop(name)
        for name in list(options)
        if name in RECIPE_ONLY and method != "greedy"
    }
    sweep_options = {
        "method": method,
        "kinds": list(kinds if kinds is not None else usual_kinds(model, keep)),
        "keep": [] if keep is None else [dict(keep) if isinstance(keep, Mapping) else keep],
        **({} if penalty is None else {"penalties": [penalty]}),
        **options,
    }
    text, dev = (text, dev) if dev is not None else held_out(text)
    if method == "greedy":
        if work is not None:
            raise HeadwiseError(
                "prune: work means nothing with method 'greedy', which trains nothing: leave it out."
            )
        with shown("prune", progress) as report:
            return prune_greedily(model, text, dev, sweep_options, max_drop, seed, report)
    sweep = checked(SWEEPS[method], sweep_options, "prune")
    if not isinstance(text, ParallelText):
        recipe = {"label_smoothing": 0.0, **recipe}
    how = checked(Recipe, recipe, "prune")
    with shown("prune", progress) as report, tempfile.TemporaryDirectory() as scratch:
        data, apart = (model.task.training_data(split, how.batch_tokens) for split in (text, dev))
        training = Training(data, apart, how, Path(work or scratch), seed, report)
        kept = tuple(sweep.kinds)
        assert isinstance(sweep, GateSweep | TopKSweep)
        if penalty is not None:
            if penalty and (few := too_few(sweep, updates_of(training, sweep))):
                warnings.warn(few, stacklevel=2)
            pruned = prune_by_gates(model, training, sweep, kept, penalty)
        else:
            assert keep is not None
            to_count = prune_by_top_k if isinstance(sweep, TopKSweep) else prune_to_count
            pruned = to_count(model, training, sweep, kept, keep)
    for note in pruned.doubts:
        warnings.warn(note, stacklevel=2)
    return pruned.model


RECIPE_ONLY = {*Recipe.model_fields} - {*GateSweep.model_fields}
ORDER = {"score", "rescore", "step", "compensate", "search"}
OPTIONS = {*ORDER, *RECIPE_ONLY, *GateOptions.model_fields}


def prune_greedily(
    model: Model,
    text: AnyText,
    dev: AnyText,
    options: dict[str, Any],
    max_drop: float | None,
    seed: int,
    progress: Report,
) -> Model:
    """Heads go in the order of a score on `text`; quality, and so the choice of `max_drop`, is measured on `dev`."""
    search, score = (
        options.pop("search", None) or Search(),
        options.pop("score", None) or usual_score(model),
    )
    sweep = checked(GreedySweep, {**options, "scores": [score]}, "prune")
    if len(sweep.scores) > 1:
        raise HeadwiseError(
            f"prune: heads go in the order of one score, but '{score}' stands for several."
        )
    try:
        sweep.refuse_counts(model.heads)
    except ValueError as error:
        raise HeadwiseError(f"prune: {error}") from None
    first = units(model.heads.only(sweep.kinds), sweep.unit)[0]
    with warnings.catch_warnings(action="ignore"):
        model.remove(
            HeadMask.full(model.heads).without(first), grow=True
        )  # what cannot be cut out is refused at once
    batches = model.task.batches(text, part(progress, 0.0, 0.5))
    order = Ranking(model, batches, sweep.scores[0], sweep.rescore, seed)
    masks = [HeadMask.full(model.heads), *greedy_masks(order, sweep).values()]
    batches.progress = silent
    means = mean_outputs(model.hf, model.found, batches.intact()) if sweep.compensate else None
    cut = partial(
        model.remove, means=means, grow=True
    )  # the masks obey the unit that was asked for
    if max_drop is None:
        return cut(masks[-1])
    rest = part(progress, 0.5, 1.0)
    if isinstance(dev, ParallelText):
        sources, references = list(dev.sources), list(dev.targets)

        def bleu(mask: HeadMask) -> float:
            place = masks.index(mask)
            share = part(rest, place / len(masks), (place + 1) / len(masks))
            lines, _ = translate(writer_of(cut(mask), search.engine), sources, search, share)
            return corpus_scores(lines, references)[0].value

        if max_drop > (whole := bleu(masks[0])):
            warnings.warn(too_generous("max_drop", max_drop, whole), stacklevel=3)
        return cut(smallest_within(masks, bleu, max_drop)[0])
    losses = Losses.measure(
        model.task.batches(dev, rest), masks[1:], cut if sweep.compensate else None
    )
    return cut(smallest_within(masks, lambda mask: losses.gain(masks.index(mask)), max_drop)[0])


def too_generous(option: str, limit: float, whole: float) -> str:
    """A sentence where a model may lose more BLEU than the whole one has."""
    return (
        f"{option} is {limit:g}, but the whole model has only {whole:.1f} BLEU on dev, so any model is within it: the "
        "limit is in BLEU, not in %."
    )


def usual_score(model: Model) -> str:
    """The score that greedy removal goes by where none is named."""
    return "gradient" if model.task.has_loss else "confidence"


def usual_kinds(model: Model, keep: Keep | None = None) -> tuple[Kind, ...]:
    """The kinds of heads that are pruned where none is named: those with a number of their own; or encoder heads of a
    translation model, all heads of any other."""
    if isinstance(keep, Mapping):
        return tuple(keep)
    return ("encoder-self",) if model.hf.config.is_encoder_decoder else model.heads.kinds
