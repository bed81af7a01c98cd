"""A step of a study, and its build in a run.

A step is a small frozen dataclass: which steps it needs, what else goes into it, what it writes, how it is made. It
belongs to no run. A build is a step in one run: the run gives it a key, a hash of all that goes into it, so that nearly
every key is known before anything is made. The store keeps what was made, under its key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwise.study.records import Result, digest
from headwise.study.variants import Variant

if TYPE_CHECKING:
    from headwise.study.estimate import Estimate
    from headwise.study.run import Run


@dataclass(frozen=True)
class Step(ABC):
    """One step of a study. Subclasses say, beside their fields:

    stage: the word that `--only` knows. names: how a step is named by its fields, uniquely in a run. shared: several
    processes do it together, else the main one alone. exclusive: nothing else may run meanwhile (timings). repeatable:
    made again, it must give the same. VERSION is part of the key: raise it when the code changes so that results do.

    Where a step stands in the order of a study: follows: the starts of the names of steps that it comes after, though
    it does not need their results. last: all runs come to it after everything else. once: the first run makes it early,
    the others after everything else. costly: it takes long enough that a study of several wants an estimate.
    """

    VERSION: ClassVar[int] = 1
    stage: ClassVar[str]
    names: ClassVar[str]
    shared: ClassVar[bool] = False
    exclusive: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False
    once: ClassVar[bool] = False
    costly: ClassVar[bool] = False

    def __init_subclass__(cls, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(cls, name, value)

    @property
    def name(self) -> str:
        return self.names.format(self)

    @property
    def model(self) -> Variant | None:
        """The model that it makes or measures, where it is about a single one."""
        return getattr(self, "variant", None)

    @property
    def follows(self) -> tuple[str, ...]:
        return ()

    @property
    def last(self) -> bool:
        return self.model is not None and self.model.from_random_weights

    @abstractmethod
    def needs(self, run: Run) -> Sequence[Step]:
        """The steps whose results go in."""

    def inputs(self, run: Run) -> Mapping[str, Any]:
        """All else that goes in: options, seeds, fingerprints of texts. Asked for only when the key is: no test text
        is opened before the choice."""
        return {}

    def outputs(self, run: Run) -> Sequence[str]:
        """What is written below the run folder."""
        return ()

    def weights(self, run: Run) -> Sequence[str]:
        """Those outputs that hold a model."""
        return ()

    @abstractmethod
    def make(self, run: Run, work: Path) -> Result:
        """Do it: write the outputs below `work / MADE`, and give what is worth recording."""

    def seconds(self, run: Run, estimate: Estimate) -> float:
        """About how long it takes."""
        return 0.0


@dataclass(frozen=True)
class Build:
    """A step in its run. Where a study lists its builds: after: the names of those that it waits for, seconds: about
    how long it takes, done: whether the store held it by then."""

    step: Step
    run: Run
    after: tuple[str, ...] = ()
    seconds: float = 0.0
    done: bool = False

    @property
    def name(self) -> str:
        """Unique in a study of several runs."""
        return f"{self.run.prefix}{self.step.name}"

    @property
    def exclusive(self) -> bool:
        return self.step.exclusive

    @property
    def key(self) -> str:
        """The hash of everything that goes into it."""
        keys = self.run.keys
        if self.step not in keys:
            needs = [self.run.build(needed).key for needed in self.step.needs(self.run)]
            inputs = dict(self.step.inputs(self.run))
            keys[self.step] = digest([self.step.name, self.step.VERSION, inputs, needs])
        return keys[self.step]

    @property
    def needs(self) -> dict[str, str]:
        """The names of the steps that it uses, by their keys."""
        return {self.run.build(needed).key: needed.name for needed in self.step.needs(self.run)}

    @property
    def outputs(self) -> list[str]:
        return list(self.step.outputs(self.run))

    def required(self, whole: bool = False) -> list[str]:
        """The outputs that must be there. whole: with weights that the plan does not keep."""
        if whole or self.run.plan.weights == "all":
            return self.outputs
        weights = self.step.weights(self.run)
        return [path for path in self.outputs if path not in weights]

    @property
    def reproducible(self) -> list[str]:
        """The outputs that must be the same when they are made again, or all that was derived from them would be of
        another model."""
        if not self.step.repeatable:
            return []
        return list(self.step.weights(self.run)) or self.outputs

    def make(self, work: Path) -> Result:
        return self.step.make(self.run, work)
