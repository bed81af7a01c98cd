"""What a control is made from, and what its function may give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwise.core.heads import Head, HeadMap, Kind
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture, Unit
from headwise.models.model import Model


@dataclass(frozen=True)
class Case:
    """What a control is made from.

    full: the full model. mask: the heads that the pruned model keeps; None for a control of a whole sweep. kinds, unit:
    which heads may be removed, and which of them together. seed: for what is drawn. importance: a number for every
    head, the higher the more important, measured when it is called. pruned: loads the pruned model. untrained: a model
    of some shape with random weights, and shape that of the full model, where the study trained it. train: trains a
    model as the full one was, and gives facts of the training.
    """

    full: Model
    mask: HeadMask | None
    kinds: Sequence[Kind]
    unit: Unit | None
    seed: int
    importance: Callable[[], Mapping[Head, float]]
    pruned: Callable[[], Model]
    untrained: Callable[[Architecture], Model]
    shape: Architecture | None
    train: Callable[[Model], dict[str, Any]]

    @property
    def heads(self) -> HeadMap:
        """The heads of the full model."""
        return self.full.heads


@dataclass(frozen=True)
class Trained:
    """A control that the function has trained itself. facts: for the record and, as `notes`, for the report."""

    model: Model
    facts: dict[str, Any] = field(default_factory=dict)
