"""The table of controls: other models that a pruned one is compared with, each to isolate one cause.

Our own are in `control_table.py`. Plans, the schedule of a study, its tables, the report and docs/methods/controls.md
read them. How a function of
your own becomes a control: docs/howto/own-control.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headwise.core.declarations import Declaration, Declarations
from headwise.core.errors import HeadwiseError

if TYPE_CHECKING:
    pass

CONTROL_NAME = re.compile(r"[\w-]+")  # it is also part of a folder's name


@dataclass(frozen=True, kw_only=True)
class Control(Declaration):
    """What there is to know of a control.

    title: its name for a reader. what: what it is. question: what it tests. better, worse: what it says where the
    pruned model is better or worse than it.
    of: whether every pruned model has one (`model`), or a whole sweep (`sweep`).
    random_weights: trained from random weights, as the full model was; others are fine-tuned as long as pruning took.
    layout: whether it keeps heads of the full model. narrower: another shape, which does not.
    compared_by_all: whether all models that were trained as long are compared with it.
    against: the control that it is compared with; by default the pruned model that it belongs to.
    reference: what tables call it where another model is compared with it; by default its name.
    timed: whether its decoding speed is measured.
    mark: the shape of its points in figures, of Vega.
    version: raise it when the function gives other models, so that studies make the control again.
    """

    title: str = ""
    what: str = ""
    question: str = ""
    better: str = ""
    worse: str = ""
    of: Literal["model", "sweep"] = "model"
    random_weights: bool = False
    layout: bool = True
    compared_by_all: bool = False
    against: str = ""
    reference: str = ""
    timed: bool = False
    mark: str = "triangle-right"
    version: int = 1

    def __post_init__(self) -> None:
        if not CONTROL_NAME.fullmatch(self.name):
            raise HeadwiseError(
                f"A control cannot be called '{self.name[:100]}': choose letters, digits and hyphens."
            )
        if self.of not in ("model", "sweep"):
            raise HeadwiseError(
                f"of of the control '{self.name}' is '{self.of}': say 'model' or 'sweep'."
            )
        for name, usual in {"title": self.name.replace("-", " "), "reference": self.name}.items():
            if not getattr(self, name):
                # The dataclass is frozen, and these defaults follow from another field.
                object.__setattr__(self, name, usual)


control = Declarations("control", Control, "headwise.pruning", "headwise.controls", "control_table")


def control_facts(name: str) -> Control:
    """The facts of a control, also of one that is declared nowhere, as in a table from elsewhere."""
    return control.entries.get(name) or Control(name="undeclared", title=name, reference=name)


def compared_by_all() -> list[Control]:
    """The controls that all models which were trained as long are compared with."""
    return [facts for facts in control.values() if facts.compared_by_all]
