"""A run: the study of one seed and one language pair at work in its folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from headwise.core.errors import HeadwiseError
from headwise.core.folders import below
from headwise.core.heads import HeadMap
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture, Training
from headwise.core.progress import Progress
from headwise.core.qualities import QualityMeasure
from headwise.data import embedded
from headwise.data.embedded import Split
from headwise.data.text import ParallelText
from headwise.data.treebank import Treebank
from headwise.importance.measures import measure, usual
from headwise.importance.passes import usual_measures
from headwise.importance.work import Workload
from headwise.models.attention.offload import is_offloaded
from headwise.models.known_text import KnownText
from headwise.models.loading import load, task_class
from headwise.models.model import Model
from headwise.models.tasks import AnyText, Task, held_out
from headwise.models.tasks.own_translations import LIKE_OWN
from headwise.models.tasks.translation import Translation
from headwise.models.training.trainer import bfloat16
from headwise.pruning.repair import Repairs
from headwise.study.plan import (
    LEFT_TO_TASK,
    GateSweep,
    GreedySweep,
    Plan,
    ScoringSection,
    TextNames,
    TopKSweep,
)
from headwise.study.records import Store
from headwise.study.variants import Variant


@dataclass(frozen=True)
class InMemory:
    """A loaded model and texts, which a run takes instead of the names in its plan.

    trained: the models that the run trains, by name, where they stay in memory, too; None: they are files.
    """

    model: Model
    texts: Mapping[Split, AnyText]
    trained: dict[str, Model] | None = None

    def read(self, folder: Path, device: str) -> Model:
        """Another model from its files, offloaded where the model in memory is: it may be larger than the device."""
        device_map = None
        if is_offloaded(self.model.hf):
            device_map = "disk" if device == "cpu" else "auto"
        return load(folder, device, device_map=device_map)


class GivenModel:
    """The model that a plan names: read where it is needed first, and kept for all runs until it is let go."""

    def __init__(self, plan: Plan, device: str, model: Model | None = None) -> None:
        self.plan = plan
        self.device = device
        self.model = model

    def __call__(self) -> Model:
        if self.model is None:
            assert isinstance(self.plan.model, str)
            self.model = load(self.plan.model, self.device)
        return self.model


class RunContext:
    """What steps work with: the plan, the folder, the texts, the full model.

    name: of the run in its study, a path; "." for a study of one. cache: where memory-mapped texts are; by default in
    the run folder. memory: a model and texts that are not read from files. given: the model that the plan names.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        progress: Progress,
        device: str = "cpu",
        name: str = ".",
        cache: Path | None = None,
        memory: InMemory | None = None,
        given: GivenModel | None = None,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.progress = progress
        self.device = device
        self.name = name
        self.cache = cache or folder / ".work" / "text"
        self.store = Store(folder, progress)
        self.keys: dict[Any, str] = {}  # of steps
        self.shared: list[str] = []  # sentences on texts that share some of theirs
        self.memory = memory
        self.texts: dict[Split, AnyText] = dict(memory.texts) if memory else {}
        self.load_given = given or GivenModel(plan, device, memory.model if memory else None)
        # Of a given model that was looked at beforehand.
        self.expected_heads: HeadMap | None = memory.model.heads if memory else None
        self.counts: dict[Split, int] = {}  # sentences of the texts, as far as `count` was asked
        self.outline = False  # whether texts are only for an estimate
        self.last_pruned: tuple[Any, Model | None] = ((), None)
        self.repairs: Repairs | None = None  # of the full model, once heads are repaired

    def __reduce__(self) -> tuple[Any, ...]:
        """A run is its plan and its folder: a worker that is sent one opens it again."""
        return RunContext.quiet, (self.plan, self.folder, self.device, self.name, self.cache)

    @classmethod
    def quiet(cls, plan: Plan, folder: Path, device: str, name: str, cache: Path) -> RunContext:
        """A run that shows nothing."""
        return cls(plan, folder, Progress(quiet=True), device, name, cache)

    @property
    def prefix(self) -> str:
        """What stands before the names of its steps in a study."""
        return "" if self.name == "." else f"{self.name}/"

    @property
    def workload(self) -> Workload:
        """What measures of the full model read of the dev text."""
        assert self.heads is not None
        return Workload(self.heads, len(self.text("dev")))

    def sentences_of(self, split: Split) -> int:
        """How many sentences a split has; of one that was not counted as many as dev."""
        return self.counts.get(split, len(self.text("dev")))

    @property
    def device_name(self) -> str:
        """The device in words that say what it is: `cpu`, `NVIDIA H200`."""
        cuda = self.device.startswith("cuda")
        return torch.cuda.get_device_name(self.device) if cuda else self.device

    @property
    def number_type(self) -> str:
        """In which numbers models train on this device: `float32` or `bfloat16`, also where the plan says `auto`."""
        half = bfloat16(self.plan.training.dtype, self.device.partition(":")[0])
        return "bfloat16" if half else "float32"

    @property
    def exact(self) -> bool:
        """Whether what is made again on this device is the same bit by bit."""
        return self.device == "cpu"

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the texts that were read so far, by split."""
        return {split: text.fingerprint for split, text in self.texts.items()}

    # Texts

    def text(self, split: Split) -> AnyText:
        """One split. Choices are made on train and dev; test is read for the numbers that are reported.

        Raises HeadwiseError for another text than the one that the results in the folder were made from.
        """
        if split not in self.texts:
            text = self.opened(split)
            # What finished steps have read: another text would mix two in one table.
            before = {record["texts"].get(split) for record in self.store.records().values()} - {
                None
            }
            if before - {text.fingerprint}:
                raise HeadwiseError(
                    f"The {split} text ({text.name}) is not the one that the results in {self.folder} were made from: "
                    "take that text again, or choose another --out."
                )
            self.texts[split] = text
        return self.texts[split]

    def count(self, split: Split) -> int:
        """How many sentences a split has. Does not ask for what a model must add to it, which is work."""
        if split not in self.counts:
            data = self.plan.data
            spec = getattr(data, split)
            if split in self.texts or (spec is None and not data.embedded):
                self.counts[split] = len(self.text(split))
            elif data.embedded:
                self.counts[split] = getattr(data.embedded, split)
            else:
                self.counts[split] = len(self.as_named(split))
        return self.counts[split]

    def as_named(self, split: Split) -> AnyText:
        """A split that the plan names, without what a model must add to it."""
        if split in self.texts:
            return self.texts[split]
        text: AnyText = self.task.read(getattr(self.plan.data, split), cache=self.cache)
        return text

    def opened(self, split: Split) -> AnyText:
        data = self.plan.data
        if data.embedded:
            pairs = embedded.pairs(split, getattr(data.embedded, split))
            return ParallelText.from_pairs(pairs, f"{split}.en+{split}.fr", cache=self.cache)
        if data.dev is None and split != "test":
            train: AnyText
            dev: AnyText
            # Read twice, for train and for dev: both halves come out the same each time.
            train, dev = held_out(self.completed(data.train), data.held_out)
            return train if split == "train" else dev
        return self.completed(getattr(data, split), split != "train" or self.reads_targets)

    def completed(self, spec: TextNames | None, reads_targets: bool = True) -> AnyText:
        """A text that the plan names, with what the given model must add to it."""
        text: AnyText = self.task.read(spec, cache=self.cache)
        # A text of the task's own sort lacks nothing, and models from random weights are given no other.
        if isinstance(text, (self.task.text_class, *self.task.also_reads)):
            return text
        given = self.load_given()
        if not reads_targets:
            unread: AnyText = given.task.unread(text)
            return unread
        with self.progress.bar("the model's own translations"):
            completed: AnyText = given.task.completed(text, self.progress, self.outline)
        return completed

    @cached_property
    def dev_of_training(self) -> AnyText:
        """What dev losses of training are measured on; `Train` must be done."""
        if isinstance(self.plan.model, Architecture):
            return self.text("dev")
        train, dev = self.text("train"), self.text("dev")
        own: AnyText = self.full.task.dev_of_training(train, dev)
        if own is not dev and not train.made:
            self.warn(LIKE_OWN)
        return own

    def warn(self, line: str) -> None:
        """Say what a user should know: a model that is made by itself, in memory, has no other place for it."""
        if self.trained_in_memory is None:
            self.progress.say(f"  {line}")
        else:
            warnings.warn(line, stacklevel=2)

    def pairs(self, split: Split) -> ParallelText:
        """A split for what only works on sentence pairs."""
        text = self.text(split)
        assert isinstance(text, ParallelText)
        return text

    @cached_property
    def known_train(self) -> KnownText | None:
        """The train text, as the smaller models of the run know it again."""
        return KnownText.of(self.text("train"))

    def fingerprints_of(self, *splits: Split) -> dict[str, str]:
        """The fingerprints of texts, which are read for them."""
        return {split: self.text(split).fingerprint for split in splits}

    def seed_and(self, *splits: Split) -> dict[str, Any]:
        """The seed and the texts that a step's result depends on."""
        return {"seed": self.plan.seed, **self.fingerprints_of(*splits)}

    @cached_property
    def treebanks(self) -> tuple[Treebank, Treebank | None] | None:
        """The trees that roles are found on, and those that confirm them; None where the plan has none."""
        roles = self.plan.roles
        corpus = self.plan.data.embedded
        files = roles.treebank
        if not files:
            if corpus is None:
                return None
            files = [str(embedded.write_treebank(self.cache / "dev.conllu", corpus.dev))]
        confirm = Treebank.read(*roles.confirm) if roles.confirm else None
        return Treebank.read(*files), confirm

    @cached_property
    def role_texts(self) -> tuple[Treebank | AnyText, Treebank | None] | None:
        """What roles are found on, trees or dev recordings, and the trees that confirm them; None where the plan has
        none."""
        count = self.plan.roles.recordings
        if not count:
            return self.treebanks
        return self.text("dev").head(count), None

    # What the models are for

    @cached_property
    def task(self) -> type[Task]:
        """The class of the models' task: a model that is trained from random weights translates; a given one says it in
        its configuration."""
        model = self.plan.model
        if self.memory:
            return type(self.memory.model.task)
        return Translation if isinstance(model, Architecture) else task_class(model)

    @property
    def generates(self) -> bool:
        """Whether the models write translations, which are searched for and timed; others have losses."""
        return "translations" in self.task.provides

    @property
    def quality(self) -> QualityMeasure:
        """What says how good a model is."""
        return self.task.quality

    def quality_on(self, split: Split) -> QualityMeasure:
        """What models are compared by on a text."""
        return self.task.quality_on(self.text(split))

    @cached_property
    def scoring(self) -> ScoringSection:
        """How heads are scored; measures that the plan leaves open are as usual for the models' task, and of a given model
        those that it allows: what its attention is, and where its weights are, no configuration says."""
        scoring = self.plan.scoring
        named = usual(self.task.provides)
        if "measures" not in scoring.model_fields_set and isinstance(self.plan.model, str):
            named = [*usual_measures(self.load_given())]
        families = {measure[name].family for name in named}
        of_task = {
            "measures": named,
            "pruned": [name for name in scoring.pruned if measure[name].family in families],
        }
        changes: dict[str, Any] = {}
        for field in LEFT_TO_TASK["scoring"] - scoring.model_fields_set:
            changes[field] = of_task[field]
        if "loss" not in self.task.provides and "interactions" not in scoring.model_fields_set:
            changes["interactions"] = 0
        return scoring.model_copy(update=changes)

    @property
    def measures(self) -> list[str]:
        """What is measured of every head of the full model."""
        return self.scoring.measures or []

    def allows(self, name: str) -> bool:
        """Whether the task provides what a measure needs of it."""
        # Those a task cannot say: discovery does.
        of_the_model = {"attention", "weights"}
        return {*measure[name].needs} - of_the_model <= self.task.provides

    @property
    def training(self) -> Training:
        """How models are trained: a given one without label smoothing, unless the plan names it."""
        training = self.plan.training
        named = "label_smoothing" in training.model_fields_set
        if named or isinstance(self.plan.model, Architecture):
            return training
        return training.model_copy(update={"label_smoothing": 0.0})

    # Models

    @property
    def trained_in_memory(self) -> dict[str, Model] | None:
        """The trained models of a run that writes no weights, by name; None for a run that does."""
        return self.memory.trained if self.memory else None

    @cached_property
    def full(self) -> Model:
        """The full model, which nobody changes; `Train` must be done."""
        given = self.load_given.model
        if given is None:
            return self.read(self.folder / "model")
        if self.trained_in_memory is not None:
            return given
        # Its weights are in memory already; all else is as in the copy of the run.
        # Shallow: the weights are the same ones.
        copied = copy(given)
        copied.name = str(self.folder / "model")
        copied.source = self.folder / "model"
        return copied

    def pruned(self, folder: str, files: Mapping[str, Any]) -> Model:
        """A model of the run with weights of its own, which nobody changes. files: what the store says of its files."""
        return self.kept((folder, files), lambda: self.read(below(self.folder, folder)))

    def kept(self, key: tuple[Any, ...], make: Callable[[], Model]) -> Model:
        """A smaller model, made where it is not the last one that was asked for. That stays in memory: it is evaluated,
        measured and scored step after step."""
        known, model = self.last_pruned
        if known != key or model is None:
            self.last_pruned = ((), None)  # before the next one is made
            model = make()
            self.last_pruned = (key, model)
        return model

    def read(self, folder: Path) -> Model:
        """A model of the run from its files."""
        if self.memory is not None:
            return self.memory.read(folder, self.device)
        return load(folder, self.device)

    def fresh(self) -> Model:
        """The full model, to be trained on. Those that nobody changes leave the memory until they are asked for."""
        if self.trained_in_memory is not None:
            return self.full.only(HeadMask.full(self.full.heads), grow=True)
        self.last_pruned = ((), None)
        self.repairs = None
        # A cached property: the next question reads it again.
        vars(self).pop("full", None)
        if self.memory is None:
            self.load_given.model = None
        return self.read(self.folder / "model")

    @property
    def heads(self) -> HeadMap | None:
        """The heads of the full model: of the plan's shape, or of a given model that was recorded."""
        if isinstance(self.plan.model, Architecture):
            return self.plan.model.head_map
        heads = self.store.record("train").get("result", {}).get("heads")
        return HeadMap(heads["query"], heads["key_value"]) if heads else self.expected_heads

    def mask(self, variant: Variant) -> HeadMask:
        """The heads of the full model that a variant keeps; all of them where it has no layout."""
        layout = below(self.folder / "layouts", f"{variant.name}.json")
        if layout.exists():
            return HeadMask.read(layout)
        assert self.heads is not None
        return HeadMask.full(self.heads)

    def sweep(self, variant: Variant) -> GateSweep | TopKSweep | GreedySweep:
        return self.sweeps[variant.sweep_index]

    @cached_property
    def sweeps(self) -> list[GateSweep | TopKSweep | GreedySweep]:
        """The plan's sweeps, with what trains where it leaves that open. Raises HeadwiseError for what cannot train so."""
        found = []
        for sweep in self.plan.pruning:
            if sweep.trains:
                try:
                    sweep = sweep.with_train(self.task.train_of(sweep))
                except ValueError as error:
                    raise HeadwiseError(f"[[pruning]] {error}") from None
            found.append(sweep)
        return found

    @property
    def reads_targets(self) -> bool:
        """Whether anything reads the targets of the training text: training, an order of heads, or roles, which count
        words there."""
        if any(sweep.reads_targets for sweep in self.sweeps):
            return True
        # Where none is named, the dev text is a part of the training text.
        return not self.sweeps or bool(self.plan.roles.treebank) or self.plan.data.dev is None

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.store.main
