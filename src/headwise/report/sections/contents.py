"""Which sections a page has, in their order. A new section is a file beside this one, its template, and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.report.difference import Difference
from headwise.report.parts import Section
from headwise.report.run import Grid, Run
from headwise.report.sections import (
    believe,
    cost,
    difference,
    drift,
    every_head,
    gates,
    grid,
    layers,
    made,
    opening,
    pairs,
    roles,
    scores,
    translations,
)

RUN = (
    opening.SECTION,
    layers.HEAD_MAP,
    every_head.SECTION,
    scores.SECTION,
    believe.SECTION,
    pairs.SECTION,
    roles.SECTION,
    gates.SECTION,
    cost.SECTION,
    cost.CONTROLS_SECTION,
    layers.SECTION,
    drift.SECTION,
    translations.SECTION,
    gates.TRAINING,
    made.SECTION,
)


def sections_of(found: Run | Grid | Difference) -> Sequence[Section]:
    if isinstance(found, Difference):
        return difference.SECTIONS
    return grid.SECTIONS if isinstance(found, Grid) else RUN
