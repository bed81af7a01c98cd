"""The steps that evaluate models: their answers and what these are worth, their size and speed, and the choice of
one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from headwise.core.answers import Answers, Similarities, read_answers
from headwise.core.folders import below, write_text
from headwise.core.layout import HeadMask
from headwise.core.measured import choose_smallest
from headwise.core.qualities import Number, said_itself
from headwise.data.embedded import Split
from headwise.data.lines import read_lines
from headwise.importance.work import TRANSLATION
from headwise.models.decoding.translator import cut_note, speeds
from headwise.models.model_files import WEIGHTS
from headwise.models.tasks import Task
from headwise.models.tasks.translation import Translation, answers_to
from headwise.study.model_steps import OneModelStep, full_model, model_of, model_step, prune_step
from headwise.study.records import STAGING, StepResult
from headwise.study.run_context import RunContext
from headwise.study.step import Step
from headwise.study.variants import FULL, Variant
from headwise.study.watches import LENGTH, doubts_of, length_ratio

WORSE_TEXTS = 5  # of a model, that the report shows
LONGEST_SHOWN = 300  # letters of them
UNDECIDED_SHARE = 0.5  # share of undecided gates from which on a model is no result


@dataclass(frozen=True)
class Answer(Step, ABC, stage="evaluate", name_format=""):
    """What models answer on a split: translations, or the losses of sentences."""

    split: Split

    @property
    def after_prefixes(self) -> tuple[str, ...]:
        return ("choose",) if self.split == "test" else ()

    @property
    @abstractmethod
    def of_full(self) -> Answer:
        """The step that has the answers of the full model beside these."""

    @abstractmethod
    def read(self, run: RunContext, variant: Variant) -> Answers:
        """The answers of one model, from the files."""

    def doubts(self, run: RunContext) -> list[str]:
        """Sentences about what of the text was not read."""
        return []

    def further_numbers(self, own: Answers, full: Answers) -> dict[str, tuple[float | None, ...]]:
        """What else is worth a number of a model's answers, beside those of the full model."""
        return {}

    def worse(
        self, run: RunContext, variant: Variant, own: Answers, full: Answers
    ) -> list[dict[str, Any]]:
        """Some texts on which a model is worse than the full one, with what both make of them."""
        return []


@dataclass(frozen=True)
class Translate(OneModelStep, Answer, name_format="translate/{0.split}/{0.variant.name}"):
    """A split in one model's translation, with sources and references beside it, in translations/."""

    variant: Variant

    @property
    def of_full(self) -> Answer:
        return Translate(self.split, FULL)

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return {"text": run.text(self.split).fingerprint, "search": run.plan.search.model_dump()}

    def outputs(self, run: RunContext) -> list[str]:
        names = (self.variant.name, "source", "reference")
        return [translation_file(self.split, name) for name in names]

    def forwards(self, run: RunContext) -> float:
        return run.sentences_of(self.split) * TRANSLATION * run.plan.search.beam

    def make(self, run: RunContext, work: Path) -> StepResult:
        task = model_of(run, self.variant).task
        assert isinstance(task, Translation)
        text = run.pairs(self.split)
        batches = task.quality_batches(text, run.progress, run.plan.search)
        lines, cost = task.translations(batches)
        sides = {self.variant.name: lines, "source": text.sources, "reference": text.targets}
        for name, side in sides.items():
            one_a_line = (" ".join(line.splitlines()) for line in side)
            content = "".join(f"{line}\n" for line in one_a_line)
            write_text(below(work / STAGING, translation_file(self.split, name)), content)
        cut = len(cost["cut"])
        note = cut_note(cut, len(lines), batches.limit) if cut else ""
        return {**cost, "cut": note, "endless": len(cost["endless"])}

    def doubts(self, run: RunContext) -> list[str]:
        # Once, as all models of a run read as much.
        found = self.result(run) or {}
        return [found["cut"]] if self.variant == FULL and found.get("cut") else []

    def read(self, run: RunContext, variant: Variant) -> Answers:
        return read_translations(run.folder, self.split, variant.name, run.pairs(self.split).made)

    def further_numbers(self, own: Answers, full: Answers) -> dict[str, tuple[float | None, ...]]:
        return {LENGTH: astuple(Number(length_ratio(own, full)))}


def translation_file(split: str, name: str) -> str:
    """Where a run has a side of a split. name: of a model, `source` or `reference`."""
    return f"translations/{split}/{name}.txt"


def read_translations(folder: Path, split: str, name: str, made: str = "") -> Answers:
    """A model's translations of a split in the folder of a run, as they compare with the references. made: how a model
    made these, in words."""
    lines, references = (
        list(read_lines(below(folder, translation_file(split, side))))
        for side in (name, "reference")
    )
    return answers_to(references, lines, made)


@dataclass(frozen=True)
class MeasureLosses(
    Answer,
    name_format="losses/{0.split}/{0.ranking}",
    distributed=True,
    writes=["{0.name}.npz"],
):
    """The loss of every sentence under all steps of a greedy order, or under one model, in losses/."""

    VERSION = 4  # nearest neighbours

    variants: tuple[Variant, ...]  # of one order, or one without; none: the full model alone

    @property
    def of_full(self) -> Answer:
        return self  # all are measured together with the full model

    @property
    def ranking(self) -> str:
        """The name of the variants' ranking, or of the one variant."""
        first = self.variants[0] if self.variants else FULL
        return first.name if first.ranking is None or first.between_steps else first.ranking.name

    def dependencies(self, run: RunContext) -> list[Step]:
        steps = [model_step(variant) for variant in (FULL, *self.variants)]
        whole = self.whole(run)
        return steps if whole is None else [*steps, whole]

    def whole(self, run: RunContext) -> MeasureLosses | None:
        """The step that measures the full model, where its numbers are taken from there: what is written takes long."""
        if run.task.answer_forwards <= 1 or not self.variants:
            return None
        return MeasureLosses(self.split, ())

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return {"text": run.text(self.split).fingerprint}

    def forwards(self, run: RunContext) -> float:
        models = len(self.variants) + (self.whole(run) is None)
        return run.sentences_of(self.split) * models * run.task.answer_forwards

    def make(self, run: RunContext, work: Path) -> StepResult:
        masks = [run.mask(variant) for variant in self.variants]

        def cut(mask: HeadMask) -> Task:
            return model_of(run, self.variants[masks.index(mask)]).task

        # Models without own weights are measured by switching heads off in the full one, without a copy.
        own = any(prune_step(variant).has_own_weights(run) for variant in self.variants)
        task = full_model(run).task
        text = task.quality_batches(run.text(self.split), run.progress)
        step = self.whole(run)
        whole = None
        if step is not None:
            step.get_or_make(run)
            whole = read_answers(below(run.folder, f"{step.name}.npz"))
        answers = task.answers(text, masks, cut if own else None, whole)
        if run.main:
            answers.save(below(work / STAGING, f"{self.name}.npz"))
        return {}

    def read(self, run: RunContext, variant: Variant) -> Answers:
        answers = read_answers(below(run.folder, f"{self.name}.npz"))
        return answers.of((FULL, *self.variants).index(variant))

    def worse(
        self, run: RunContext, variant: Variant, own: Answers, full: Answers
    ) -> list[dict[str, Any]]:
        text: Any = run.text(self.split)  # each sort has rows of its own
        lines = [in_words(row) for row in text]
        # Windows of long documents are no rows of the text.
        if len(lines) != (len(own.nearest) if isinstance(own, Similarities) else len(own.weights)):
            return []
        rows: list[dict[str, Any]] = []
        for number, before, after in full.beside(own).worse(1, 0, WORSE_TEXTS):
            shown: tuple[float | str, float | str] = before, after
            if isinstance(own, Similarities):
                shown = lines[int(before)], lines[int(after)]
            row = (number + 1, lines[number], *shown)
            rows.append(dict(zip(("number", "text", "before", "after"), row, strict=True)))
        if run.task.output == "causal-lm" and rows:
            whole, small = (model_of(run, one).task for one in (FULL, variant))
            for found in rows:
                found |= continuations(whole, small, found["text"])
        return rows


def continuations(full: Task, smaller: Task, text: str) -> dict[str, str]:
    """The first half of a text, and how two models continue it; nothing of models that continue none."""
    tokens = full.tokenizer(text, add_special_tokens=False)["input_ids"]
    begin = full.tokenizer.decode(tokens[: len(tokens) // 2])
    if not begin:  # a text of one token has no first half
        return {}
    said, own = full.continued(begin), smaller.continued(begin)
    return {} if said is None or own is None else {"begin": begin, "full": said, "own": own}


def in_words(row: Any) -> str:
    """A row of a text, as it is read: its sentences, words and labels; of a recording what is said in it."""
    parts = row if isinstance(row, list | tuple) else [getattr(row, "text", row)]
    said = [" ".join(part) if isinstance(part, list | tuple) else str(part) for part in parts]
    text = " · ".join(said)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


@dataclass(frozen=True)
class CompareAnswers(Step, ABC, stage="evaluate", name_format=""):
    """A model's answers on a split, and those of other models. others: these models, and the steps that have their
    answers. Numbers in its result are those of `Number`."""

    split: Split
    variant: Variant
    answer: Answer
    others: tuple[tuple[Variant, Answer], ...] = ()

    def dependencies(self, run: RunContext) -> list[Step]:
        # The answers of several models are one step, which goes on without those that cannot be made.
        return [model_step(self.variant), self.answer, *(answer for _, answer in self.others)]

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return run.seed_and()

    def change(self, run: RunContext, own: Answers, other: Answers) -> tuple[float | None, ...]:
        """The paired change from another model to this one."""
        return astuple(own.beside(other).change(0, 1, run.plan.seed))


@dataclass(frozen=True)
class Evaluate(
    CompareAnswers, name_format="evaluate/{0.split}/{0.variant.name}", may_add_steps=True
):
    """The quality of a model's answers, and how it changed from others, of which the full model is the first.

    The result: `numbers` by measure, `signatures`, how many `sentences`, `against`: the change from each other by name,
    `doubts`: sentences about what went wrong, and `worse`: some texts on which the model is worse than the full one.
    """

    VERSION = 7  # continuations of a language model

    def make(self, run: RunContext, work: Path) -> StepResult:
        own = self.answer.read(run, self.variant)
        numbers = {}
        signatures = {}
        for quality, made in own.made.items():
            number = own.by(quality).number(seed=run.plan.seed)
            if self.variant == FULL:
                number = said_itself(number, quality)
            numbers[quality.name] = astuple(number)
            signatures[f"{quality.name}_signature"] = made
        against = {}
        worse = []
        for other, answer in self.others:
            others = answer.read(run, other)
            against[other.name] = self.change(run, own, others)
            # Once, not for each of the others: they are facts of this model beside the full one.
            if other == FULL:
                numbers |= self.answer.further_numbers(own, others)
                worse = self.answer.worse(run, self.variant, own, others)

        def training() -> Mapping[str, Any] | None:
            return model_step(self.variant).result(run)

        return {
            "numbers": numbers,
            "doubts": [
                *doubts_of(run, self.variant, numbers, against, training),
                *self.answer.doubts(run),
                *self.about_whole(run, own),
            ],
            "signatures": signatures,
            "sentences": len(own.weights),
            "against": against,
            "worse": worse,
        }

    def about_whole(self, run: RunContext, own: Answers) -> list[str]:
        """What is doubtful about the whole model itself; nothing of others."""
        if self.variant != FULL:
            return []
        return run.task.doubts_about(run.text(self.split), own.number(seed=run.plan.seed))


def gain(run: RunContext, result: StepResult) -> float:
    """What a model gains on the full one, by the result of its `Evaluate`: below 0 where it is worse."""
    change: float = result["against"][FULL.name][0]
    return run.quality.better * change


@dataclass(frozen=True)
class CompareOrders(CompareAnswers, name_format="orders/{0.split}/{0.variant.name}"):
    """A model of greedy removal, compared with those that other orders leave with as many heads.

    The result: `against`: the change from each, by `reference`; `best`: the other measure whose model is best on this
    text.
    """

    VERSION = 2  # units

    def make(self, run: RunContext, work: Path) -> StepResult:
        own = self.answer.read(run, self.variant)
        against = {}
        worth = {}
        for other, answer in self.others:
            assert other.ranking is not None
            answers = answer.read(run, other)
            against[other.ranking.reference] = self.change(run, own, answers)
            # Random heads are a yardstick, no measure: the best of several draws would be luck.
            if other.ranking.score != "random":
                worth[other.ranking.reference] = run.quality.better * answers.value()
        return {"against": against, "best": max(worth, key=worth.__getitem__, default=None)}


@dataclass(frozen=True)
class MeasureSavings(OneModelStep, stage="evaluate", name_format="measure/{0.variant.name}"):
    """What removal saves in weights, on disk (where saved), in memory and key/value cache, and its dev loss."""

    VERSION = 3  # the bytes of the key/value cache

    variant: Variant

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return run.fingerprints_of("dev")

    def forwards(self, run: RunContext) -> float:
        return len(run.texts["dev"]) * float(run.generates)

    def make(self, run: RunContext, work: Path) -> StepResult:
        model = model_of(run, self.variant)
        facts: dict[str, Any] = {}
        loss = model.task.dev_loss(run.text("dev"))
        if loss is not None:
            facts["dev_loss"] = loss
        facts["parameters"] = model.parameters

        folder = "model" if self.variant == FULL else f"pruned/{self.variant.name}"
        weights = below(run.folder, folder) / WEIGHTS
        # A model that is a layout alone, or that stays in memory, has no file.
        if weights.exists():
            facts["bytes"] = weights.stat().st_size
        return {**facts, "memory": model.weight_bytes, "cache_bytes": model.cache_bytes}


@dataclass(frozen=True)
class MeasureSpeed(Step, stage="evaluate", name_format="speed", exclusive=True):
    """Tokens per second of decoding (median, least, most), by name."""

    variants: tuple[Variant, ...]

    after_everything_else = True
    after_prefixes = ("choose", "save")

    def dependencies(self, run: RunContext) -> list[Step]:
        return [model_step(variant) for variant in self.variants]

    def inputs(self, run: RunContext) -> dict[str, Any]:
        plan = run.plan
        speed = plan.speed.model_dump()
        search = plan.search.model_dump()
        return {"speed": speed, "search": search, **run.fingerprints_of("dev")}

    def make(self, run: RunContext, work: Path) -> StepResult:
        search = run.plan.search
        speed = run.plan.speed
        sentences = list(run.pairs("dev").sources)[: speed.sentences]
        translators = {}
        for variant in self.variants:
            translators[variant.name] = model_of(run, variant).translator(search.engine)
        rates = speeds(translators, sentences, search, speed.tokens, speed.rounds, run.progress)
        return {**rates}


@dataclass(frozen=True)
class Choose(Step, stage="evaluate", name_format="choose", may_add_steps=True):
    """The variant with the fewest heads that loses at most `max_drop` on dev.

    A model of whose gates at least half were undecided is never chosen: other heads might have stayed, had it trained
    longer. The exception is a target count without a limit: that model was asked for. `unsettled`: names left out.
    """

    VERSION = 4

    candidates: tuple[Evaluate, ...]

    after_everything_else = True
    after_prefixes = ("evaluate/dev/",)

    def dependencies(self, run: RunContext) -> list[Step]:
        return [*self.candidates]

    def inputs(self, run: RunContext) -> dict[str, Any]:
        return run.plan.choice.model_dump()

    def make(self, run: RunContext, work: Path) -> StepResult:
        return self.choice(run)

    def choice(self, run: RunContext) -> StepResult:
        """The choice among the candidates that are evaluated by now."""
        limit = run.plan.choice.limit
        lost: dict[str, float] = {}
        kept: dict[str, int] = {}
        unsettled: list[str] = []
        for step in self.candidates:
            variant = step.variant
            result = step.result(run)
            if not result:
                continue
            facts = model_step(variant).result(run) or {}
            asked_for = limit is None and variant.keep is not None
            if facts.get("undecided", 0.0) >= UNDECIDED_SHARE and not asked_for:
                unsettled.append(variant.name)
                continue
            lost[variant.name] = -gain(run, result)
            kept[variant.name] = len(run.mask(variant))
        chosen = choose_smallest(lost, kept, limit)
        return {"chosen": chosen, "max_drop": limit, "unsettled": unsettled}


@dataclass(frozen=True)
class SaveChosen(
    OneModelStep, stage="evaluate", name_format="save", writes=["pruned/{0.variant.name}"]
):
    """The weights of a chosen model that was cut without training, so it was not saved yet."""

    VERSION = 2  # the folder knows the train text again

    variant: Variant

    def make(self, run: RunContext, work: Path) -> StepResult:
        model_of(run, self.variant).save(below(work / STAGING / "pruned", self.variant.name))
        return {}
