"""Measuring every head of a model: the passes over a text, one after the other, and what they give."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site, head_of
from headwise.core.layout import HeadMask
from headwise.core.progress import OnProgress, parts, silent
from headwise.importance.finished_passes import FinishedPasses
from headwise.importance.measurement import Measurement
from headwise.importance.measures import MeasureNeed, measure, passes, resolve_measures, usual
from headwise.importance.work import work_on
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import evaluating, output_of
from headwise.models.attention.offload import is_offloaded, refuse_offloaded
from headwise.models.attention.sides import sides_of_site
from headwise.models.evaluation.sums import SENTENCE_SCALES, SentenceSums, head_values
from headwise.models.model import Model
from headwise.models.processes import failing_together
from headwise.models.tasks.batches import Batches, Fold
from headwise.models.tasks.objective import inputs_of, losses_of, on_device, query_masks


def run_pass(
    model: Model,
    text: Batches | Fold,
    names: list[str],
    seed: int = 0,
) -> Measurement:
    """One pass over a text, which makes these measures.

    The declared function gets the model and the batches and, if it has parameters of these names, `names` and `seed`.
    It either yields an array for each batch (`sums_of_measure`), as measures of users do, or returns sums by name or a
    Measurement. Sums are of this process, and of windows; `Measurement.gather` puts several together.
    """
    function = measure[names[0]].function
    wanted = inspect.signature(function).parameters
    possible = {"names": names, "seed": seed}
    extras = {name: value for name, value in possible.items() if name in wanted}
    # the protocol of users: they need no class of headwise
    if inspect.isgeneratorfunction(function):
        return Measurement({names[0]: sums_of_measure(model, text, names[0], extras)})
    result = function(model, text, **extras)
    if isinstance(result, Measurement):
        return result
    # a pass may make more than was asked for
    return Measurement({name: result[name] for name in names if name in result})


class DeviceBatches:
    """The batches of a text on the model's device, as the function of a measure reads them.

    A batch has the tensors of the model's forward, `labels` (at the positions of their logits, IGNORED elsewhere) and
    `rows` (the number of each sentence, −1 for an empty row, which a last batch may have). sentences: which rows are
    sentences, for each batch that was read.
    """

    def __init__(self, model: Model, batches: Iterable[Mapping[str, Tensor]]) -> None:
        self.model = model
        self.batches = batches
        self.sentences: list[np.ndarray] = []

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        # a measure may read the text twice
        self.sentences.clear()
        for batch in self.batches:
            self.sentences.append((batch["rows"] >= 0).numpy())
            yield on_device(self.model.hf, batch)

    def forward(self, batch: Mapping[str, Tensor]) -> Any:
        """The model's output for a batch."""
        return output_of(self.model.hf, inputs_of(batch))

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of each sentence, summed over its predicted tokens: nats, B."""
        return losses_of(self.model.hf, batch)

    def queries(self, batch: Mapping[str, Tensor], site: Site) -> Tensor:
        """Where a layer's queries are tokens and no padding, in windows of a long document each once: booleans B Q."""
        side, _ = sides_of_site(site)
        return query_masks(dict(batch))[side]


def sums_of_measure(
    model: Model, text: Batches | Fold, name: str, extras: Mapping[str, Any]
) -> SentenceSums:
    """The sums of a measure whose function yields an array for each batch: its sentences x heads, in the order of
    `model.heads`. The value of a head is the mean over sentences.

    The model is in evaluation mode, without gradients. A measure that does not need the loss sees the whole text of a
    masked model. Raises HeadwiseError for arrays of another shape, and for values that are not finite.
    """
    entry = measure[name]
    # hidden tokens would change attention for nothing
    batches = DeviceBatches(model, text if "loss" in entry.needs else text.intact())
    sums = SentenceSums(model.heads, SENTENCE_SCALES.get(entry.scale))
    sizes = [model.heads.count(site) for site in model.heads.sites]
    arrays = 0
    with evaluating(model.hf), torch.no_grad():
        for given in entry.function(model, batches, **extras):
            arrays += 1
            array = given.cpu().float().numpy() if isinstance(given, Tensor) else np.asarray(given)
            # an array before the first batch is refused below
            rows = batches.sentences[-1] if batches.sentences else np.zeros(0)
            if array.shape != (len(rows), model.heads.total) or arrays != len(batches.sentences):
                raise HeadwiseError(
                    f"The measure '{name}' gave array {arrays}, of shape {array.shape}, after {len(batches.sentences)} "
                    f"batches, the last of {len(rows)} rows, with {model.heads.total} heads in the model: yield one "
                    "array, rows x heads, after every batch."
                )
            # an empty row has no tokens, so its numbers may be NaN
            array = np.where(rows[:, None], array, 0)
            layers = np.split(array, np.cumsum(sizes)[:-1], axis=1)
            for site, layer in zip(model.heads.sites, layers, strict=True):
                sums.take(site, layer, rows)
    if arrays != len(batches.sentences):
        raise HeadwiseError(
            f"The measure '{name}' gave {arrays} arrays for {len(batches.sentences)} batches: yield one after every "
            "batch."
        )
    return sums


def run_passes(
    model: Model,
    text: Batches,
    measures: Iterable[str],
    seed: int,
    progress: OnProgress = silent,
    finished: FinishedPasses | None = None,
) -> Measurement:
    """Every pass after the other, gathered from all processes. finished: where passes are kept; those that it has are
    not run again. A time limit of the text is for all passes together that can read a sample."""
    whole = Measurement()
    todo = passes(measures)
    refuse_unscorable(model, resolve_measures(measures), text)
    kept: dict[str, Measurement] = {}
    if finished:
        for label, names in todo.items():
            if (measurement := finished.read(label, names)) is not None:
                kept[label] = measurement
    left = [name for label, names in todo.items() if label not in kept for name in names]
    progress_of = parts(progress, work_on(model.heads, text).of_passes(left))
    # each pass settles by itself, so the time is shared beforehand
    sampled = [label for label, names in todo.items() if measure[names[0]].sampled]
    share = None if text.time_limit is None else text.time_limit / max(1, len(sampled))
    for label, names in todo.items():
        if label in kept:
            whole.add(kept[label])
            continue
        start = time.perf_counter()
        on_progress = labelled(progress_of[label], label)
        # then a sentence takes as long as the square of its length
        by_token = "forwards per token" in measure[names[0]].cost
        with failing_together():
            batches = text.with_progress(on_progress, by_token)
            batches.time_limit = share if label in sampled else None
            measurement = run_pass(model, batches, names, seed)
            measurement.gather(text)
        measurement.seconds[label] = time.perf_counter() - start
        if finished:
            finished.keep(label, names, measurement)
        whole.add(measurement)
    return whole


def labelled(on_progress: OnProgress, label: str) -> OnProgress:
    """Progress that says which pass it is of."""
    return lambda share, what: on_progress(share, f"{label}: {what}")


def provided(model: Model, text: Batches | None = None) -> set[str]:
    """What a model and its text provide of what measures need."""
    given: set[str] = {*(model.task.provides if text is None else text.provides)}
    if not model.discovery.inline:
        given.add("attention")
    if not is_offloaded(model.hf):
        given.add("weights")
    return given


def usual_measures(model: Model, text: Batches | None = None) -> tuple[str, ...]:
    """The usual measures that a model and its text allow, for where none is named; for prompts in pairs, patching too."""
    given = provided(model, text)
    names = usual(given)
    # not `usual`, because only this kind of text has them
    names += [name for name, entry in measure.items() if "counterparts" in entry.needs]
    return tuple(name for name in names if given.issuperset(measure[name].needs))


def refuse_unscorable(model: Model, measures: Iterable[str], text: Batches | None = None) -> None:
    """Raise HeadwiseError for measures that need what the model and its text do not provide. text: None before it is read;
    then only what the model lacks is refused."""
    given = provided(model, text)
    if text is None:
        given |= {"text", "loss", "counterparts"}
    kind = type(model.hf).__name__
    free = [name for name, entry in measure.items() if not entry.needs]
    no_loss = (
        f"{model.name}, a {kind}, predicts no words, so '{{}}' cannot be computed: load it with its language-model head, or "
        f"choose from {', '.join(free)}."
    )
    if not model.task.measured:
        no_loss = (
            f"{model.name} is a {kind}, whose answers headwise does not measure, so '{{}}' cannot be computed: choose from "
            f"{', '.join(free)}."
        )
    if model.task.has_loss:
        no_loss = (
            f"The text says nothing that {model.name}, {model.task.noun}, should answer, so '{{}}' cannot be computed: give "
            f"{model.task.needs}, or choose from {', '.join(free)}."
        )
    sentences: dict[MeasureNeed, str] = {
        "text": "'{}' reads text, and recordings or batches were given: choose another measure, or give text.",
        "loss": no_loss,
        "attention": f"{kind} computes attention in its own code, where headwise sees no queries and keys, so '{{}}' "
        "cannot be computed: score it by gradient, ablation or confidence.",
        "words": f"{model.name} is a {kind}: '{{}}' starts at predicted words, not at classes; ask for gradient or "
        "ablation.",
        "counterparts": "'{}' takes the head's output for corrupted prompts: give a causal language model a table with the "
        "columns clean, corrupted, answer and wrong_answer.",
        "weights": "",
        "translations": f"{{}} needs translations, which {model.name}, a {kind}, does not write.",
    }
    names = list(measures)
    for need, sentence in sentences.items():
        for name in names:
            if need not in given and need in measure[name].needs:
                if need == "weights":
                    refuse_offloaded(model.hf, f"'{name}'")
                raise HeadwiseError(sentence.format(name))


def importance_values(
    model: Model, text: Batches | Fold, name: str, mask: HeadMask | None = None, seed: int = 0
) -> dict[Head, float]:
    """A measure's value for every head; with a mask, for every head of it, while only those are left."""
    refuse_unscorable(model, [name], text if isinstance(text, Batches) else text.batches)
    silenced = nullcontext() if mask is None else keeping(model.hf, model.discovery, mask)
    with failing_together(), silenced:
        measurement = run_pass(model, text, [name], seed)
        measurement.gather(text)
    if name in measurement.sums:
        values = head_values(measurement.sums[name])
    else:
        values = {head_of(row): float(row["value"]) for row in measurement.rows}
    if mask is None:
        return values
    return {head: value for head, value in values.items() if head in mask.kept}
