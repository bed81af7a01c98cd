"""The options of a score: those of `headwise score`, of `hw.score` and of a plan's [scoring]."""

from __future__ import annotations

import re
from typing import Any

from pydantic import field_validator

from headwise.core.errors import HeadwiseError
from headwise.core.options import Options, option
from headwise.importance.measures import resolve_measures

TIME_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Scoring(Options):
    """What is measured of every head, and what the measures are compared with."""

    measures: list[str] | None = option(
        None,
        "measures of `headwise score --list`, bare names, or all; in a plan an empty list is no scoring. Unset: "
        "confidence, gradient and ablation.zero, with lrp.ding for translation and attribution.zero for a language model; "
        "of a model without a loss confidence, entropy and dormancy",
        page="howto/score.md#choose-a-measure",
        flag="--measure",
    )
    judge: bool = option(
        False,
        "say which measure to believe: compare with exact ablation, ablation.zero among the measures",
        page="methods/judge.md",
    )
    random_orders: int = option(
        5, "random orders of removal, that the orders of the scores are compared with", ge=1
    )
    untrained: int = option(
        0,
        "randomly initialised copies of the model, the control of scores and roles. 0: none",
        page="methods/controls.md#controls-of-scores-and-roles",
        ge=0,
    )
    interactions: int = option(
        0,
        "pairs of heads that are switched off, both together. 0: none",
        page="methods/ablation.md#pairs",
        ge=0,
    )

    @field_validator("measures", "pruned", mode="before", check_fields=False)
    @classmethod
    def declared(cls, names: Any) -> Any:
        """Full names of measures; one name is a list of one."""
        if names is None:
            return None
        try:
            return resolve_measures([names] if isinstance(names, str) else names)
        except HeadwiseError as error:
            raise ValueError(str(error)) from None


class TimedScoring(Scoring):
    """Those of one score, which may end with its time; a study reads its whole text."""

    time: str | None = option(
        None,
        "what ablation may take, such as 10m: it reads sentences until the ranks of the heads settle. Unset: 2m for a "
        "language or speech model without named measures, and the whole text for others",
        value="TIME",
    )

    @field_validator("time", mode="before")
    @classmethod
    def duration(cls, time: Any) -> Any:
        if time is not None and seconds_of(time) is None:
            raise ValueError("give a number and a unit, such as 90s, 10m or 1h")
        return time

    @property
    def seconds(self) -> float | None:
        return None if self.time is None else seconds_of(self.time)


def seconds_of(time: Any) -> float | None:
    """The seconds of a time such as `90s`, `10m` or `1.5h`; None of anything else, and of no time at all."""
    written = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(time))
    return float(written[1]) * TIME_UNITS[written[2]] or None if written else None
