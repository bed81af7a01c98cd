"""What can be known before a study begins: what cannot end well is refused, what may not is said, in a sentence each.

Rough on purpose: pieces are counted on a sample of the text, so updates may be off by a tenth or two.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from headwise.core.answers import refuse_too_short
from headwise.core.errors import HeadwiseError
from headwise.core.heads import describe
from headwise.core.measured import FINE_TUNED
from headwise.core.options import TEXTLESS_ORDERS, Architecture, Training, smaller_batches, too_few
from headwise.core.qualities import BLEU
from headwise.core.removal_units import refuse_counts
from headwise.data.embedded import Split
from headwise.data.lines import one_sided
from headwise.data.text import ParallelText, PromptPairs
from headwise.importance.passes import refuse_unscorable
from headwise.models.decoding.bleu import refuse_short_references
from headwise.models.decoding.search_engines import refuse_engine, refuse_model
from headwise.models.forecast import expected_pieces
from headwise.models.known_text import known_lines
from headwise.models.model import Model
from headwise.pruning.control_models import count_weights
from headwise.study.model_steps import Prune, Train
from headwise.study.overlap import refuse_same_files, shared_sentences
from headwise.study.plan import GateSweep, GreedySweep, Plan, Sweep
from headwise.study.plan_of_prune import refuse_irremovable
from headwise.study.run_context import RunContext
from headwise.study.step import Job

SPLITS: tuple[Split, ...] = ("dev", "test")  # that models are compared on
CHECKPOINT = 3  # times the weights: they, and two moments of Adam
MB = 1e6


def preflight(
    plan: Plan,
    runs: Collection[RunContext],
    jobs: Collection[Job],
    device: str,
    load_given: Callable[[], Model],
) -> list[str]:
    """Sentences to say before the jobs begin. load_given: loads the plan's model, once, where it names one. Raises
    HeadwiseError for what would fail, or be worth nothing."""
    given = load_given if isinstance(plan.model, str) else None
    for run in runs:
        refuse_task(run)
    first = next(iter(runs))  # the others have texts of about the same size
    engine = plan.search.engine
    refuse_engine(engine, device)
    if given and engine != "transformers":
        refuse_model(engine, given().hf, given().tokenizer, given().discovery)
    if given and any(sweep.keep or sweep.unit for sweep in plan.pruning):
        refuse_heads(plan, given())
        # The dev text is of the same sort, or a part of it.
        if plan.data.train is not None:
            given().task.check_quality(first.as_named("train"))
    to_do = [job for job in jobs if not job.done_before]
    if given and to_do:
        refuse_unscorable(given(), first.measures)
        for options in plan.pruning:
            refuse_irremovable(given(), options)
    lines = [*missing_texts(plan), *own_targets(first)]
    if plan.pruning:
        # Seeds share their texts.
        lines += dict.fromkeys(line for run in runs for line in short_texts(run))
        for run in runs:
            run.shared = [*texts_in_common(run)]
        lines += dict.fromkeys(line for run in runs for line in run.shared)

    if given and to_do:
        lines += dict.fromkeys(line for run in runs for line in known_texts(run, given()))

    trains = False
    sweeps: dict[int, Sweep] = {}  # of the first run, whose models are to be made
    for job in to_do:
        if isinstance(job.step, Train):
            trains = isinstance(plan.model, Architecture)
        elif isinstance(job.step, Prune):
            index = job.step.variant.sweep_index
            if index < len(first.plan.pruning):
                sweeps[index] = first.sweep(job.step.variant)
    if trains or any(sweep.trains for sweep in sweeps.values()):
        positions = training_positions(first, given() if given else None)
        lines += filter(None, [smaller_batches(plan.training, positions, exactly=False)])
        if trains:
            lines += warmup_lines(plan.training, positions)
        for sweep in sweeps.values():
            lines += gate_lines(sweep, plan.training, positions)
    refuse_full_disk(plan, first.folder, to_do, given)
    return lines


def refuse_task(run: RunContext) -> None:
    """Raise HeadwiseError for what a plan asks of models whose task has no such thing."""
    for sweep in run.sweeps:
        if sweep.train == "distil" and FINE_TUNED in sweep.controls:
            raise HeadwiseError(
                f"The control '{FINE_TUNED}' would learn nothing: with train = 'distil', the default for encoder heads, "
                "smaller models learn from the whole one. Leave the control out, take 'random', or train = 'all'."
            )
    if PromptPairs in run.task.also_reads:
        refuse_prompts(run.plan)
    for what, instead in impossible(run):
        raise HeadwiseError(f"{what}, but {run.plan.model} is {run.task.noun}: {instead}.")


def impossible(run: RunContext) -> Iterator[tuple[str, str]]:
    """What a plan asks for that models of its task cannot do, and what to do instead."""
    plan = run.plan
    task = run.task
    if not run.generates:
        if len(plan.data.one_sided) > 1:
            yield (
                "[data] has one-sided text and tables",
                "give train, dev and test text of one kind",
            )
        for sweep in () if task.trains else plan.pruning:
            if sweep.trains:
                greedy = isinstance(sweep, GreedySweep)
                name = f"train = '{sweep.train}'" if greedy else f"method = '{sweep.method}'"
                yield (
                    f"[[pruning]] {name} trains by a loss",
                    "headwise does not train it, so take method = 'greedy' without train",
                )
        if "loss" not in task.provides:
            for sweep in plan.pruning:
                assert isinstance(sweep, GreedySweep)  # others train
                for score in sweep.measure:
                    if score not in TEXTLESS_ORDERS and not run.allows(score):
                        yield (
                            f"The score '{score}' needs a loss",
                            f"take '{task.usual_score}' (--measure, or measure in [[pruning]])",
                        )
            if run.scoring.interactions:
                yield "[scoring] interactions needs a loss", "leave it out"
        if plan.search.engine != "transformers":
            yield (
                f"The engine '{plan.search.engine}' translates",
                "leave --engine, or [search] engine of the plan, out",
            )
        if plan.roles.pairs:
            yield "[roles] pairs tests cross attention on sentence pairs", "leave it out"
    roles = plan.roles
    if task.reads_audio and (roles.treebank or roles.confirm):
        yield (
            "[roles] treebank and confirm (--treebank, --confirm) are text",
            "leave them out; a story tests heads on dev recordings, and so does a plan with recordings = N",
        )
    if roles.words and not (task.reads_audio or "words" in task.provides):
        yield "[roles] words needs a model that predicts words", "leave it out"
    if roles.recordings and not task.reads_audio:
        yield "[roles] recordings needs a speech model", "leave it out"


def refuse_prompts(plan: Plan) -> None:
    """Raise HeadwiseError for prompts in pairs, which are no text to train on or to have a perplexity of."""
    for texts in (plan.data, *plan.languages.values()):
        for split in ("train", "dev", "test"):
            spec = getattr(texts, split)
            if spec and PromptPairs.is_named_by(spec):
                raise HeadwiseError(
                    f"The {split} text {spec} has prompts in pairs, which heads are scored on: give one-sided text here."
                )


def refuse_heads(plan: Plan, model: Model) -> None:
    """Raise HeadwiseError for kinds and numbers of heads that a given model cannot keep, and where a plan leaves open
    which of several kinds may be removed: encoder heads alone are usual for models that translate."""
    model.task.check_quality()
    model.task.check_answers()
    usual = model.task.usual_kinds
    for sweep in plan.pruning:
        if "kinds" not in sweep.model_fields_set and tuple(sweep.kinds) != usual:
            raise HeadwiseError(
                f"[[pruning]] names no kinds of heads, but {plan.model} is {model.task.noun} with "
                f"{describe(model.heads)}: write kinds = {list(usual)}, or those of them that may be removed."
            )
        try:
            refuse_counts(model.heads, sweep)
        except ValueError as error:
            raise HeadwiseError(f"{plan.model}: {error}") from None


def missing_texts(plan: Plan) -> Iterator[str]:
    """What a plan without dev or test text means."""
    for name, texts in (plan.languages or {"": plan.data}).items():
        of = f" of {name}" if name else ""
        if texts.dev is None and texts.embedded is None:
            share = texts.held_out
            lines = "every tenth line of the training text is"
            if share is not None:
                lines = f"{share} lines of the training text are"
            yield f"No dev text{of} is named: {lines} held out for it."
        if not texts.has_test:
            yield f"No test text{of} is named: the report has dev numbers only."


def short_texts(run: RunContext) -> Iterator[str]:
    """Dev and test texts whose intervals will say little. Raises HeadwiseError for those that would have none."""
    for split in SPLITS:
        if split == "dev" or run.plan.data.has_test:
            data = run.plan.data
            is_part = split == "dev" and data.dev is None and data.embedded is None
            line = refuse_too_short(split, run.count(split), run.quality.over, is_part)
            if line:
                yield line
            spec = getattr(run.plan.data, split)
            text = run.texts.get(split)
            if run.quality == BLEU and text is None and spec is not None and not one_sided(spec):
                # the test text is not opened before the choice: its results are kept apart
                text = run.task.read(spec, cache=run.cache)
            # The model's own translations may not be made yet.
            if run.quality == BLEU and isinstance(text, ParallelText):
                refuse_short_references(text.targets)


def texts_in_common(run: RunContext) -> Iterator[str]:
    """Splits that share sentences. Raises HeadwiseError for those that are one file."""
    splits: list[Split] = ["train", *SPLITS]
    named = {split: getattr(run.plan.data, split) for split in splits}
    refuse_same_files(named)
    return shared_sentences({split: run.as_named(split) for split in splits if named[split]})


def known_texts(run: RunContext, model: Model) -> Iterator[str]:
    """Splits with sentences on which the plan's model itself was made."""
    splits: list[Split] = ["train", *SPLITS]
    for split in splits:
        if getattr(run.plan.data, split):
            yield from known_lines([model], run.as_named(split), f"the {split} text")


def own_targets(run: RunContext) -> Iterator[str]:
    """Which texts have targets that the given model writes itself."""
    data = run.plan.data
    named = {"train": data.train, "dev": data.dev, "test": data.test}
    splits = [split for split, spec in named.items() if spec is not None and one_sided(spec)]
    if not run.reads_targets:
        splits = [split for split in splits if split != "train"]
    if splits and run.task.text_class is ParallelText:
        texts = "text has" if len(splits) == 1 else "texts have"
        yield (
            f"The {' and '.join(splits)} {texts} one side: the model's own greedy translations stand for the other, and "
            "quality is agreement with them (100: all are equal), not BLEU."
        )


def training_positions(run: RunContext, given: Model | None) -> float:
    """About how many positions of batches the training text fills."""
    text = run.text("train")
    shape = run.plan.model
    if isinstance(shape, Architecture):
        return expected_pieces(text, shape.vocabulary)
    assert given is not None
    given.task.check(text)
    return expected_pieces(text, given.tokenizer)


def updates_in(recipe: Training, epochs: int, positions: float) -> int:
    """About how many updates so many epochs are."""
    return max(1, round(positions / (recipe.batch_tokens * recipe.accumulate))) * epochs


def warmup_lines(recipe: Training, positions: float) -> list[str]:
    """A training that ends while its learning rate still climbs has hardly begun."""
    updates = updates_in(recipe, recipe.epochs, positions)
    if updates >= recipe.warmup:
        return []
    return [
        f"Training ends after about {updates} updates, but its learning rate climbs for {recipe.warmup} "
        f"(training.warmup): set training.warmup to {max(1, updates // 10)} or so, or give more training.epochs or a "
        "smaller training.batch_tokens."
    ]


def gate_lines(sweep: Sweep, recipe: Training, positions: float) -> list[str]:
    """What the updates of a sweep allow gates under a penalty; to a target count all rates follow from the updates."""
    if not isinstance(sweep, GateSweep) or not any(sweep.penalty):
        return []
    updates = updates_in(recipe, sweep.of_gates.epochs, positions)
    line = too_few(sweep, updates, exactly=False)
    return [line] if line else []


def refuse_full_disk(
    plan: Plan, folder: Path, to_do: Collection[Job], given: Callable[[], Model] | None
) -> None:
    """Weights of all models that stay, and the checkpoints of one training."""
    trained = []
    for job in to_do:
        step = job.step
        if isinstance(step, Train) or (isinstance(step, Prune) and step.saves_weights(job.run)):
            trained.append(job)
    if not trained:
        return
    if isinstance(plan.model, Architecture):
        weights = 4 * count_weights(plan.model, plan.model.vocabulary)
    else:
        assert given is not None
        weights = given().weight_bytes
    stay = len(trained) if plan.weights == "all" else 2
    # A new checkpoint is written before the oldest one goes.
    need = weights * (stay + CHECKPOINT * (max(2, plan.training.average) + 1))
    disk = folder.absolute()
    while not disk.exists():
        disk = disk.parent
    free = shutil.disk_usage(disk).free
    if need > free:
        raise HeadwiseError(
            f"The study would write about {need / MB:,.1f} MB to {folder}, where {free / MB:,.1f} MB are free: free "
            "some, choose another --out, or set weights = 'chosen'."
        )
