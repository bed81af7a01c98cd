"""Language pairs side by side: the difference to the full model of each."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.report import models
from headwise.report.models import DIFFERENCE, Model, value
from headwise.report.parts import Figure, Row, Section, Table
from headwise.report.run import Grid
from headwise.report.sections.cost_charts import pair_points, pairs_panel
from headwise.report.sections.grid_opening import data_of
from headwise.report.sections.grid_seeds import means_of
from headwise.report.words import NONE, capital


def build(grid: Grid) -> dict[str, Any] | None:
    """The figure and the table; None for one pair."""
    means = {data: found for data in data_of(grid) if (found := means_of(grid, data)) is not None}
    if len(means) < 2:
        return None
    part = models.text_prefix(grid.models)
    return {"pairs": pairs_figure(means, part), "by_pair": pairs_table(means, part), "text": "dev" if part else "test"}


def pairs_figure(means: dict[str, pd.DataFrame], part: str) -> Figure | None:
    """BLEU above or below the full model against the share of heads kept, a panel a method."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for data, frame in means.items():
        for kinds in models.groups(frame):
            for name, line in models.lines(models.of_kinds(frame, kinds)):
                if line["learned"].all():
                    title = f"{capital(models.group_name(kinds))} · {name}"
                    panels.setdefault(title, []).extend(pair_points(data, line, part))
    drawn = {title: pd.DataFrame(points) for title, points in panels.items() if len(points) > 1}
    if not drawn:
        return None
    text = "dev" if part else "test"
    return Figure(
        name="pairs",
        title="Language pairs side by side",
        note="difference to the full model of the same pair · bars: 95 % interval, over seeds where there are several",
        panels=[pairs_panel(points, list(means), title, text) for title, points in drawn.items()],
        columns=min(2, len(drawn)),
    )


def pairs_table(means: dict[str, pd.DataFrame], part: str) -> Table:
    """A model a row, a language pair a column: difference to the full model, and heads kept."""
    by_name = [{m["setting"]: m for m in models.ordered(frame) if m["learned"]} for frame in means.values()]
    full = [value(models.full_model(frame), f"{part}bleu") for frame in means.values()]
    rows = [Row(["full model, BLEU", *(NONE if number is None else f"{number:.2f}" for number in full)])]
    for name in dict.fromkeys(name for known in by_name for name in known):
        found = [known.get(name) for known in by_name]
        label = next(model["label"] for model in found if model is not None)
        rows.append(Row([label, *(NONE if model is None else _cell(model, part) for model in found)], code=name))
    return Table("Language pairs side by side", ["model", *means], rows)


def _cell(model: Model, part: str) -> str:
    heads = f"{model['kept']} of {model['total']} heads"
    seeds = f", {model['seeds']} seeds" if model["seeds"] > 1 else ""
    return f"{models.difference(model, part + DIFFERENCE) or NONE}\n{heads}{seeds}"


SECTION = Section("grid_pairs", "Side by side", "Language pairs side by side", build)
