"""A run: the study of one seed and one language pair at work in its folder. And the base of all tasks.

Every task is a small frozen dataclass: what it needs, what else goes into it, what it writes. Its key is a hash of all
that, so nearly every key is known before anything runs. `Run.need(task)` gives its result, made at most once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import PartialState

from headwise.data import embedded
from headwise.data.text import ParallelText, Text
from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.heads import HeadMap, HeadMask
from headwise.loading import load
from headwise.model import Model
from headwise.options import Architecture
from headwise.study.estimate import Estimate
from headwise.study.plan import Plan, Sweep, one_sided
from headwise.study.progress import Progress
from headwise.study.store import Making, Result, Store, digest
from headwise.study.variants import Variant
from headwise.tasks import AnyText, held_out

Split = embedded.Split


@dataclass(frozen=True)
class Spec:
    """needs: the tasks whose results go in. inputs: all else that does: options, seeds, fingerprints of texts (a value,
    or a function that gives it once the key is asked for: no test text is opened before the choice).
    outputs: what is written below the run folder; weights: those outputs that hold a model."""

    needs: Sequence[Task] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    weights: Sequence[str] = ()


@dataclass(frozen=True)
class Task(ABC):
    """One step of a study. Subclasses say, beside their fields:

    stage: the word that `--only` knows. names: how a task is named by its fields, uniquely in a run. shared: several
    processes do it together, else the main one alone. exclusive: nothing else may run meanwhile (timings). repeatable:
    made again, it must give the same. VERSION is part of the key: raise it when the code changes so that results do.
    """

    VERSION: ClassVar[int] = 1
    stage: ClassVar[str]
    names: ClassVar[str]
    shared: ClassVar[bool] = False
    exclusive: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False

    def __init_subclass__(cls, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(cls, name, value)

    @property
    def name(self) -> str:
        return self.names.format(self)

    @abstractmethod
    def spec(self, run: Run) -> Spec:
        """What the task is made from, and what it writes."""

    @abstractmethod
    def make(self, run: Run, work: Path) -> Result:
        """Do it: write the outputs below `work / MADE`, and give what is worth recording."""

    def seconds(self, run: Run, estimate: Estimate) -> float:
        """About how long it takes."""
        return 0.0


def device_name(device: str) -> str:
    """A device in words that say what it is: `cpu`, `NVIDIA H200`."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


class Run:
    """What tasks work with: the plan, the folder, the texts, the full model.

    cache: where memory-mapped texts lie; by default in the run folder.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        progress: Progress,
        device: str = "cpu",
        cache: Path | None = None,
    ) -> None:
        self.plan, self.folder, self.progress, self.device = plan, folder, progress, device
        self.store = Store(folder, progress)
        self.cache = cache or folder / ".work" / "text"
        self.specs: dict[Task, Spec] = {}
        self.keys: dict[Task, str] = {}
        self.texts: dict[Split, AnyText] = {}
        self.expected_heads: HeadMap | None = None  # of a given model that was looked at beforehand

    # Tasks

    def spec(self, task: Task) -> Spec:
        if task not in self.specs:
            self.specs[task] = task.spec(self)
        return self.specs[task]

    def key(self, task: Task) -> str:
        """The hash of everything that goes into a task."""
        if task not in self.keys:
            spec = self.spec(task)
            needs = [self.key(needed) for needed in spec.needs]
            inputs = {
                name: value() if callable(value) else value for name, value in spec.inputs.items()
            }
            self.keys[task] = digest([task.name, task.VERSION, inputs, needs])
        return self.keys[task]

    def done(self, task: Task, whole: bool = False) -> bool:
        """Whether the store holds a task's outputs; weights that the plan does not keep need not be there, but for
        `whole`."""
        recorded = bool(
            self.store.record(task.name)
        )  # without a record no key is needed, and no text for it
        return recorded and self.store.holds(task.name, self.key(task), self.required(task, whole))

    def required(self, task: Task, whole: bool) -> list[str]:
        spec = self.spec(task)
        return [
            path
            for path in spec.outputs
            if whole or self.plan.weights == "all" or path not in spec.weights
        ]

    def need(self, task: Task, whole: bool = False) -> Result:
        """The result of a task, made now unless the store holds it. whole: its weights must be there, too."""
        if (
            not self.store.together
            and task.shared
            and PartialState().num_processes > 1
            and not self.done(task, whole)
        ):
            raise HeadwiseError(
                f"{task.name} must be made again, which several processes cannot do here: run one."
            )
        spec = self.spec(task)
        making = Making(
            task.name,
            self.key(task),
            {self.key(needed): needed.name for needed in spec.needs},
            spec.outputs,
            make=lambda work: task.make(self, work),
            exact=self.device == "cpu",
            lasting=(spec.weights or spec.outputs) if task.repeatable else (),
            device=device_name(self.device),
            texts=lambda: {split: text.fingerprint for split, text in self.texts.items()},
        )
        return self.store.obtain(making, self.required(task, whole))

    def result(self, task: Task) -> Result | None:
        """The result of a task that is done; None of one that is not."""
        return dict(self.store.record(task.name)["result"]) if self.done(task) else None

    # Texts

    def text(self, split: Split) -> AnyText:
        """One split. Choices are made on train and dev; test is read for the numbers that are reported.

        Raises HeadwiseError for another text than the one that the results in the folder were made from.
        """
        if split not in self.texts:
            text = self.opened(split)
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

    def opened(self, split: Split) -> AnyText:
        data = self.plan.data
        if data.embedded:
            pairs = embedded.pairs(split, getattr(data.embedded, split))
            return ParallelText.from_pairs(pairs, f"{split}.en+{split}.fr", cache=self.cache)
        if data.dev is None and split != "test":
            return held_out(self.read(data.train))[split == "dev"]
        return self.read(getattr(data, split))

    def read(self, spec: Any) -> AnyText:
        if isinstance(spec, str) and one_sided(spec):
            return Text.read(spec, cache=self.cache)
        return ParallelText.open(spec, cache=self.cache)

    def pairs(self, split: Split) -> ParallelText:
        """A split for what only works on sentence pairs."""
        text = self.text(split)
        assert isinstance(text, ParallelText)
        return text

    def fingerprint(self, split: Split) -> str:
        return self.text(split).fingerprint

    @cached_property
    def treebanks(self) -> tuple[Treebank, Treebank | None] | None:
        """The trees that roles are found on, and those that confirm them; None where the plan has none."""
        roles, corpus = self.plan.roles, self.plan.data.embedded
        if not roles.treebank and corpus is None:
            return None
        own = (
            [str(embedded.write_treebank(self.cache / "dev.conllu", corpus.dev))] if corpus else []
        )
        confirm = Treebank.read(*roles.confirm) if roles.confirm else None
        return Treebank.read(*(roles.treebank or own)), confirm

    @property
    def translates(self) -> bool:
        """Whether the texts are pairs, so that models are measured by BLEU; others are by perplexity."""
        return not self.plan.data.one_sided

    # Models

    @cached_property
    def full(self) -> Model:
        """The full model, which nobody changes; `Train` must be done."""
        return self.fresh()

    def fresh(self) -> Model:
        """The full model, to be trained on."""
        return load(self.folder / "model", self.device)

    @property
    def heads(self) -> HeadMap | None:
        """The heads of the full model: of the plan's shape, or of a given model that was recorded."""
        if isinstance(self.plan.model, Architecture):
            return self.plan.model.head_map
        heads = self.store.record("train").get("result", {}).get("heads")
        return HeadMap(heads["query"], heads["key_value"]) if heads else self.expected_heads

    def mask(self, variant: Variant) -> HeadMask:
        """The heads of the full model that a variant keeps; all of them where it has no layout."""
        layout = self.folder / "layouts" / f"{variant.name}.json"
        if layout.exists():
            return HeadMask.read(layout)
        assert self.heads is not None
        return HeadMask.full(self.heads)

    def sweep(self, variant: Variant) -> Sweep:
        return self.plan.pruning[variant.sweep_index]

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.store.main
