"""`hw.prune`: one smaller model, and how far to go: to a penalty, a number of heads, or a loss of quality.

It is the study of one model. With controls it is a whole one, in a folder that stays; without, only the steps that lead
to the model are made, in a folder that is gone afterwards. The plan of `headwise prune` is made here, too.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from headwise.core.answers import refuse_too_short
from headwise.core.errors import HeadwiseError, called_as, shown_value
from headwise.core.folders import as_path, below
from headwise.core.heads import Kind
from headwise.core.layout import HeadMask
from headwise.core.options import (
    FULL_LENGTH,
    SEED,
    Gates,
    GateTraining,
    Greedy,
    Pruning,
    TopK,
    Training,
    refuse_other_options,
    several,
)
from headwise.core.progress import InnerProgress, OnProgress, Progress, shown
from headwise.core.qualities import BLEU
from headwise.core.removal_units import refuse_counts
from headwise.data.embedded import Split
from headwise.data.lines import named_files
from headwise.data.text import Text
from headwise.models.attention.offload import device_of
from headwise.models.generators import check_seed
from headwise.models.known_text import known_lines
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import AnyText, Given, held_out
from headwise.pruning.greedy import too_generous
from headwise.pruning.removal_scores import removal_scores
from headwise.study.model_steps import model_of, prune_step
from headwise.study.overlap import refuse_same_files, shared_sentences
from headwise.study.plan import Plan
from headwise.study.plan_of_prune import (
    plan_of,
    refuse_irremovable,
    usual_choice,
    usual_controls,
)
from headwise.study.records import Record, Store
from headwise.study.run_context import InMemory
from headwise.study.study import make_model, run_study
from headwise.study.variants import own_models

GOALS = ("penalty", "keep")
METHOD = {Gates: "gates", TopK: "top-k", Greedy: "greedy"}


INSTEAD = {
    **dict.fromkeys(
        (*Gates.model_fields, *TopK.model_fields, *Greedy.model_fields, "method"),
        "say it in the options, as in hw.prune(model, text, hw.Greedy(keep=4)) or hw.Gates(keep=4)",
    ),
    **{
        name: f"write training=hw.Training({name}=…)"
        for name in Training.model_fields
        if name not in FULL_LENGTH
    },
}


@called_as("hw.prune(model, text, hw.Greedy(keep=0.5))", INSTEAD)
def prune(
    model: AnyModel,
    text: AnyText | Given,
    options: Gates | TopK | Greedy | None = None,
    *,
    dev: AnyText | Given | int | None = None,
    test: AnyText | Given | None = None,
    training: Training | None = None,
    controls: bool | Sequence[str] = False,
    seed: int = SEED,
    work: str | PathLike[str] | None = None,
    progress: OnProgress | None = None,
) -> Model:
    """A smaller model; the given one stays as it is.

    options: the method, and how far to prune:

        hw.Gates(penalty=0.01)    gates under a penalty λ, whatever number of heads that leaves (Voita et al. 2019)
        hw.Gates(keep=10)         gates, and exactly so many heads, in total or of every kind: {"cross": 4}
        hw.TopK(keep=10)          exactly so many gates open in every step (Li et al. 2021)
        hw.Greedy(keep=10)        the heads go whose work the others can take over, and they do (repair); with a measure, in
                                  its order, and nothing else changes (Michel et al. 2019, section 4.2)
        hw.Greedy(max_drop=0.5)   the smallest model that loses at most so much: BLEU of a translation model, % of
                                  perplexity of a language model, points of accuracy of a classifier, points of
                                  similarity of a model of embeddings
        hw.Greedy(keep=10, train="lora")   then a short training of what is left
        hw.Gates(keep=10, max_drop=0.5)    by any method: the model of that size if it loses at most so much on dev, and
                                  else the whole one, with a warning

    text: gates and weights train on it, or heads are scored on it; a translation model translates a text without targets
    itself. dev: choices are made on it; a number takes so many pairs or sentences of `text`, none every tenth, which then
    are left out there. training: how weights train with gates, such as hw.Training(batch_tokens=2000); the options say
    for how long. work: a folder in which a killed run goes on; the model is read from there. progress: gets the share
    that is done, and of what; by default a bar. What the smaller model lost shows on text that pruning did not read:
    `hw.prune(model, text[:200], options)`, then `hw.evaluate([model, smaller], text[200:])`.

    controls: True, or names from the table of controls. Then `work` becomes the folder of a study of this one model: it
    and its controls (as many random heads and, unless train is 'distil', all heads, trained as long; of heads removed
    without training, other orders) are compared on dev and, once, on `test`, with intervals; hw.Run(work) opens it. The
    model is the same as without controls. The study shows its own progress, unless `progress` is given: then that only
    gets the end.

    Where no kinds are named, the heads are those of the kinds that `keep` names, or `encoder-self` of a translation
    model and all heads of any other. Training needs memory for the weights once more. Warns when gates had not settled
    or missed the target. Raises HeadwiseError for options, texts and models that do not fit together.
    """
    check_seed(seed)
    folder = None if work is None else as_path(work)
    model = as_model(model)
    # What is wrong with the options alone is said before anything reads a text.
    options = checked(options, training, controls, folder, test)
    options = completed_by(model, options)
    texts = texts_of(model, options, text, dev, test)
    # From here on it is a study: a whole one, or of one model, whose folder may be gone afterwards.
    plan = plan_of_options(model, texts, options, training, controls, seed)
    if controls:
        assert folder is not None
        return with_controls(plan, InMemory(model, texts), folder, progress)

    # What is held out shares sentences only where a text repeats itself.
    apart = dev is not None and type(dev) is not int
    lines = [*shared_sentences(texts)] if apart else []
    for split, read in texts.items():
        if split != "dev" or apart:
            lines += known_lines([model], read, f"the {split} text")
    for line in lines:
        warnings.warn(line, stacklevel=3)
    refuse_irremovable(model, options)
    if options.max_drop is not None:
        line = refuse_too_short("dev", len(texts["dev"]), model.task.quality.over, not apart)
        if line:
            warnings.warn(line, stacklevel=3)
    with shown("prune", progress) as on_progress:
        if folder is not None:
            return alone(plan, InMemory(model, texts), folder, on_progress)
        with scratch() as place:
            return alone(plan, InMemory(model, texts, trained={}), place, on_progress)


def checked(
    options: object,
    training: Training | None,
    controls: bool | Sequence[str],
    folder: Path | None,
    test: AnyText | Given | None,
) -> Gates | TopK | Greedy:
    """The options of `prune`. Raises HeadwiseError for what does not fit together, whatever the model and the texts are."""
    if not isinstance(options, Gates | TopK | Greedy):
        raise HeadwiseError(
            f"prune: the options are {shown_value(options)}: give hw.Gates(…), hw.TopK(…) or hw.Greedy(…), such as "
            "hw.Greedy(keep=0.5)."
        )
    refuse_goals(options)
    refuse_idle_training(options, training, None if controls else folder)
    if controls and folder is None:
        raise HeadwiseError(
            "prune: controls need a folder for what they are compared by: give work, such as work='runs/prune'."
        )
    if test is not None and not controls:
        raise HeadwiseError(
            "prune: test is read where models are compared: give controls=True with it, or leave it out."
        )
    return options


def completed_by(model: Model, options: Gates | TopK | Greedy) -> Gates | TopK | Greedy:
    """The options with what they leave to the model: the kinds of heads, how these are chosen, what trains. Raises
    HeadwiseError for what the model does not allow."""
    options = options.model_copy(update={"kinds": options.kinds or usual_kinds(model, options)})
    if isinstance(options, Greedy) and not options.measure:
        how, note = usual_choice(model, options.repair)
        options = options.model_copy(update=how)
        if note:
            warnings.warn(note, stacklevel=4)
    try:
        if isinstance(options, GateTraining) or options.train:
            options = options.with_train(model.task.train_of(options))
        refuse_counts(model.heads, options)
    except ValueError as error:
        raise HeadwiseError(f"prune: {error}") from None
    return options


def texts_of(
    model: Model,
    options: Gates | TopK | Greedy,
    text: AnyText | Given,
    dev: AnyText | Given | int | None,
    test: AnyText | Given | None,
) -> dict[Split, AnyText]:
    """The texts by split, with what a model must add to them. Without a dev text it is a part of `text`: so many sentences,
    or every tenth."""
    # Not isinstance: True is no number of sentences.
    count = dev if type(dev) is int else None
    given: Any = None if count is not None else dev
    named = {"training": text, "dev": given, "test": test}
    refuse_same_files(
        {split: files for split, some in named.items() if (files := named_files(some))}
    )
    # Where no target is read, a translation model need not write any; what is held out as dev always has some.
    reads_targets = options.reads_targets or given is None
    train = model.task.completed(text) if reads_targets else model.task.unread(text)
    if given is None:
        train, given = held_out(train, count)
    texts: dict[Split, AnyText] = {"train": train, "dev": model.task.completed(given)}
    if test is not None:
        texts["test"] = model.task.completed(test)
    return texts


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone after the block; of several processes one for all."""
    processes = PartialState()
    with tempfile.TemporaryDirectory(prefix="headwise-") as own:
        names = [own]
        if processes.num_processes > 1:
            broadcast_object_list(names)
        yield Path(names[0])
        processes.wait_for_everyone()  # then each removes its own


def alone(plan: Plan, memory: InMemory, folder: Path, on_progress: OnProgress) -> Model:
    """The model of a plan, by the steps that lead to it."""
    (sweep,) = plan.pruning
    limit = plan.choice.limit
    # The only model, or the smallest step of an order.
    variant = own_models(sweep, 0, memory.model.heads)[-1]
    making = prune_step(variant).name
    progress = InnerProgress(on_progress)
    study = make_model(plan, folder, progress, memory, making if limit is None else "choose")
    progress(1.0, "")
    run = study.runs["."]
    if limit is None:
        for doubt in doubts_in(run.store.record(making)):
            warnings.warn(doubt, stacklevel=4)
        return model_of(run, variant)

    numbers = run.store.record("evaluate/dev/full")["result"]["numbers"]
    if BLEU.name in numbers and limit > numbers[BLEU.name][0]:
        warnings.warn(too_generous("max_drop", limit, numbers[BLEU.name][0]), stacklevel=4)
    # Of a limit: the smallest model within it; None where there is none.
    chosen = study.schedule(".").models.chosen
    return unpruned(memory.model, limit) if chosen is None else model_of(run, chosen)


def with_controls(plan: Plan, memory: InMemory, work: Path, progress: OnProgress | None) -> Model:
    """The model that a plan chooses, by all of its study, which stays in a folder."""
    device = str(device_of(memory.model.hf))
    shows = Progress(quiet=progress is not None)
    run_study(plan, work, shows, device=device, memory=memory)
    if progress is not None:
        progress(1.0, "")
    store = Store(work, shows)
    for name, record in store.records().items():
        for doubt in doubts_in(record) if name.startswith("prune/") else ():
            warnings.warn(f"{name}: {doubt}", stacklevel=4)
    chosen = store.record("choose")["result"]["chosen"]
    if chosen is None:
        return unpruned(memory.model, plan.choice.limit)
    return memory.read(below(work / "pruned", chosen), device)


def doubts_in(record: Record) -> Sequence[str]:
    """What went wrong while a model was made, in sentences."""
    return list(record["result"].get("doubts", []))


def unpruned(model: Model, limit: float | None) -> Model:
    """The whole model, where none that is smaller loses little enough."""
    warnings.warn(
        f"No smaller model loses at most {limit:g} on dev, so no head was removed.", stacklevel=5
    )
    return model.only(HeadMask.full(model.heads), grow=True)


def plan_of_options(
    model: Model,
    texts: Mapping[Split, AnyText],
    options: Gates | TopK | Greedy,
    training: Training | None,
    controls: bool | Sequence[str],
    seed: int,
) -> Plan:
    """The plan of a study of one model, whose texts are in memory."""
    tables: dict[str, dict[str, Any]] = {
        "data": {split: name_of(split, text) for split, text in texts.items()},
        "training": training.model_dump(exclude_unset=True) if training else {},
        # These two have sections of their own in a plan.
        "pruning": options.model_dump(exclude_unset=True, exclude={"max_drop", "search"}),
    }
    if isinstance(options, Greedy):
        if options.repair and controls:
            # Each other order is one more repair.
            tables["pruning"]["compare"] = ["random"]
        (score,) = removal_scores(several(options.measure))
        tables["pruning"] |= {"measure": [score], "orders": 1}
        if options.search is not None:
            tables["search"] = options.search.model_dump()
        # Models of other orders are controls, too.
        if not controls:
            tables["pruning"]["compare"] = []
    if options.max_drop is not None:
        tables["choice"] = {"max_drop": options.max_drop}
    method = METHOD[type(options)]
    names = usual_controls(method, options.train) if controls is True else controls or ()
    tables["pruning"]["controls"] = [*names]
    return plan_of(model.name, method, tables, seed, in_memory=True)


def name_of(split: Split, text: AnyText) -> str | list[str]:
    """What a plan calls a text in memory: one name where it is one-sided, as files are named."""
    one_sided = isinstance(text, Text) or bool(text.made)
    return split if one_sided else [f"{split}.source", f"{split}.target"]


def refuse_goals(options: Gates | TopK | Greedy) -> None:
    """Raise HeadwiseError unless exactly one option says, once, how far to prune. Greedy removal may also go as far as
    max_drop allows."""
    possible = [name for name in GOALS if name in type(options).model_fields]
    given = [name for name in possible if several(getattr(options, name))]
    if isinstance(options, Greedy) and not given:
        possible.append("max_drop")
        if options.max_drop is not None:
            return
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
    options: Gates | TopK | Greedy, training: Training | None, work: Path | None
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
    if isinstance(options, Greedy) and options.max_drop is not None and options.keep is None:
        raise HeadwiseError(
            "prune: max_drop alone chooses before anything trains, so it cannot be given with train: give keep, too, or "
            "let a study compare the trained models."
        )
    if training is None:
        return
    refuse_other_options(training, Training, "prune: training", "batch_tokens=2000")
    twice = [name for name in FULL_LENGTH if name in training.model_fields_set]
    if twice:
        raise HeadwiseError(
            f"prune: training names {', '.join(twice)}, but for how long pruning trains is said in "
            f"hw.{type(options).__name__}(…): leave it out of hw.Training(…)."
        )


def usual_kinds(model: Model, options: Pruning) -> tuple[Kind, ...]:
    """The kinds of heads that are pruned where none is named: those for which `keep` has a number, or the task's."""
    for keep in several(options.keep):
        if isinstance(keep, Mapping):
            return tuple(keep)
    return model.task.usual_kinds
