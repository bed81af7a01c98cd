"""A step of a study, and the job to do it in one run.

A step is a small frozen dataclass. It says which steps it depends on, what else goes into it, what
it writes, and how it is made. It belongs to no run.

A job is a step in one run: the same step is a job in each of several seeds. Only a job has a key, a
hash of all that goes in, so that nearly every key is known before anything is made. It is done when
the store holds what it wrote, whole and under its key. Users know steps alone: messages say "step".
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from accelerate import PartialState

from headwise.core.errors import HeadwiseError
from headwise.core.folders import digest
from headwise.study.records import StepResult
from headwise.study.run_context import RunContext
from headwise.study.variants import Variant


@dataclass(frozen=True)
class Step(ABC):
    """One step of a study. Its class says, as keywords of its definition:

    stage: the word that `--only` takes. name_format: the step's name, made from its fields; unique
    in a run. distributed: all processes of a run make it together; any other step is made by the
    main process alone. exclusive: nothing else may run at the same time (timings). reproducible:
    when it is made again from the same inputs, its model must be the same, or its outputs where it
    has no model. may_add_steps: its result may add steps to the schedule, which is asked again after it. writes: the
    files and folders that it writes, relative to the run folder, with fields as in name_format.

    Three attributes say when a study makes the step. after_everything_else: every run makes it at
    the end. late_in_other_runs: the first run makes it in the usual order, the others at the end,
    since the heads of one seed are enough to read at first. after_prefixes: it waits for the steps
    whose names begin with one of these, although it does not use their results.

    VERSION is part of the key: raise it when a change of the code changes results.
    """

    VERSION: ClassVar[int] = 1
    stage: ClassVar[str]
    name_format: ClassVar[str]
    distributed: ClassVar[bool] = False
    exclusive: ClassVar[bool] = False
    reproducible: ClassVar[bool] = False
    may_add_steps: ClassVar[bool] = False
    late_in_other_runs: ClassVar[bool] = False
    writes: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        # `class Train(Step, stage="train")` sets Train.stage: no field, because all steps of a
        # class have the same. A misspelt keyword would otherwise be ignored.
        for name, value in keywords.items():
            if name not in Step.__annotations__:
                known = ", ".join(Step.__annotations__)
                raise TypeError(f"{cls.__name__}: a step has no keyword '{name}', only {known}.")
            setattr(cls, name, value)

    @cached_property
    def name(self) -> str:
        return self.name_format.format(self)

    @property
    def words(self) -> str:
        """What it does, for people: the words of its class, and what of."""
        words = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).lower()
        match self.name.split("/"):
            case [_, of]:
                return f"{words}: {of}"
            case [_, split, of]:
                return f"{words}: {of} on {split}"
        return words

    @property
    def variant_or_none(self) -> Variant | None:
        """The model that the step makes or measures; None for a step of several models or of
        none."""
        return getattr(self, "variant", None)

    # A class whose steps all have the same answer sets these two as plain attributes, such as
    # `after_everything_else = True`. They replace the properties.

    @property
    def after_prefixes(self) -> tuple[str, ...]:
        return ()

    @property
    def after_everything_else(self) -> bool:
        variant = self.variant_or_none
        tested = getattr(self, "split", "") == "test"
        return tested or (variant is not None and variant.from_random_weights)

    @abstractmethod
    def dependencies(self, run: RunContext) -> Sequence[Step]:
        """The steps whose results go in."""

    def inputs(self, run: RunContext) -> Mapping[str, Any]:
        """All else that goes in: options, seeds, fingerprints of texts.

        Asked for only when the key is, so that no test text is opened before the choice.
        """
        return {}

    def outputs(self, run: RunContext) -> Sequence[str]:
        """What it writes in this run."""
        return [path.format(self) for path in self.writes]

    def model_outputs(self, run: RunContext) -> Sequence[str]:
        """The outputs that hold the weights of a model. A plan with `weights = "chosen"` does not
        keep them."""
        return ()

    def forwards(self, run: RunContext) -> float:
        """About how many sentences, read forward, it takes as long as. Asked for where the run knows
        its heads and its train and dev texts."""
        return 0.0

    @abstractmethod
    def make(self, run: RunContext, work: Path) -> StepResult:
        """Do the step: write the outputs below `work / STAGING`, and return what is worth
        recording.

        `work / STAGING` is an empty copy of the run folder: the output `roles/table.csv` is written
        to `work / STAGING / "roles/table.csv"`. The store moves it when all outputs are complete.
        """

    def is_done(self, run: RunContext, with_weights: bool = False) -> bool:
        """Whether the store of a run holds its outputs. with_weights: also the weights that the plan
        does not keep."""
        if not run.store.record(self.name):
            return False  # no key is needed, and no text for it
        job = Job(self, run)
        return run.store.holds(self.name, job.key, job.required_outputs(with_weights))

    def get_or_make(self, run: RunContext, with_weights: bool = False) -> StepResult:
        """Its result in a run, made now unless the store holds it. with_weights: its weights must be
        there, too."""
        alone = not run.store.synchronized and PartialState().num_processes > 1
        if alone and self.distributed and not self.is_done(run, with_weights):
            raise HeadwiseError(
                f"{self.name} must be made again, which several processes cannot do here: run one."
            )
        job = Job(self, run)
        return run.store.get_or_make(job, job.required_outputs(with_weights))

    def result(self, run: RunContext) -> StepResult | None:
        """Its result in a run where it is done, else None."""
        return dict(run.store.record(self.name)["result"]) if self.is_done(run) else None


@dataclass(frozen=True)
class Job:
    """A step in its run.

    The jobs that a study lists also have: waits_for, the names of the jobs that must be done
    before; done_before, whether it was done when the list was made, by an earlier command
    (`Step.is_done` says whether it is now).
    """

    step: Step
    run: RunContext
    waits_for: tuple[str, ...] = ()
    done_before: bool = False

    @property
    def name(self) -> str:
        """Unique in a study of several runs."""
        return f"{self.run.prefix}{self.step.name}"

    @property
    def words(self) -> str:
        """What it does, for people."""
        return f"{self.run.prefix}{self.step.words}"

    @property
    def exclusive(self) -> bool:
        return self.step.exclusive

    @property
    def may_add_steps(self) -> bool:
        return self.step.may_add_steps

    @property
    def key(self) -> str:
        """The hash of everything that goes in. The run remembers it: texts and options stay the
        same for a run."""
        keys = self.run.keys
        if self.step not in keys:
            parent_keys = []
            for step in self.step.dependencies(self.run):
                parent_keys.append(Job(step, self.run).key)

            # The name, not the class, goes in: it says which step of the class this is, and a class
            # that gets another name keeps its results. `digest` hashes JSON, so inputs must be
            # JSON.
            inputs = dict(self.step.inputs(self.run))
            keys[self.step] = digest([self.step.name, self.step.VERSION, inputs, parent_keys])
        return keys[self.step]

    @property
    def dependency_names(self) -> dict[str, str]:
        """The names of the steps whose results go in, by their keys."""
        names: dict[str, str] = {}
        for step in self.step.dependencies(self.run):
            names[Job(step, self.run).key] = step.name
        return names

    @property
    def outputs(self) -> list[str]:
        return list(self.step.outputs(self.run))

    def required_outputs(self, with_weights: bool = False) -> list[str]:
        """The outputs without which it is not done. with_weights: also the weights that the plan
        does not keep."""
        if with_weights or self.run.plan.weights == "all":
            return self.outputs
        weights = self.step.model_outputs(self.run)
        return [path for path in self.outputs if path not in weights]

    @property
    def reproducible_outputs(self) -> list[str]:
        """The outputs that must be the same when they are made again; otherwise all that was
        derived from them would be of another model."""
        if not self.step.reproducible:
            return []
        return list(self.step.model_outputs(self.run)) or self.outputs

    def make(self, work: Path) -> StepResult:
        return self.step.make(self.run, work)
