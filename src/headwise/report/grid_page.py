"""The page of a grid: all seeds and language pairs of a plan in one HTML file, with its figures as files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from headwise.heads import write_text
from headwise.report.figure import Figure
from headwise.report.grid import ENDINGS, Grid, Member, pooled, read_grid
from headwise.report.grid_figures import pairs_figure, seed_figures, slug
from headwise.report.page import html
from headwise.report.setting import CONTROLS, Measured, Setting
from headwise.report.summary import Paragraph
from headwise.report.table import Line, Table
from headwise.report.wording import NONE, count, interval, listed, signed


def write(run: Path) -> Path:
    """Write `report.html` and `figures/*.png|svg` into the folder of a grid; returns the path of the page.

    Members that are not there yet, or failed, are named. Raises HeadwiseError when grid.json is none.
    """
    grid = read_grid(run)
    figures = draw(grid)
    for figure in (f for group in figures.values() for f in group):
        figure.save(run / "figures")
    page = run / "report.html"
    write_text(page, render(grid, figures))
    return page


def draw(grid: Grid) -> dict[str, list[Figure]]:
    """All figures: `pairs`, and those of every data set by its place in the grid."""
    pairs = pairs_figure(grid)
    return {
        "pairs": [] if pairs is None else [pairs],
        **{f"data-{i}": seed_figures(grid, data) for i, data in enumerate(grid.data)},
    }


def render(grid: Grid, figures: dict[str, list[Figure]]) -> str:
    """The HTML of the page."""
    return html(
        "grid.html.j2",
        figures,
        name=grid.name,
        text=grid.text,
        headline=headline(grid),
        paragraphs=paragraphs(grid),
        pairs=pairs_table(grid),
        parts=[
            {
                "anchor": f"data-{i}",
                "title": data or "All seeds",
                "slug": slug(data),
                "table": means_table(grid, data),
                "untrained": means_table(grid, data, trained=False),
            }
            for i, data in enumerate(grid.data)
        ],
        members=[_told(grid, member) for member in grid.members],
        failures=[(member.name, failure) for member in grid.members for failure in member.failures],
    )


def headline(grid: Grid) -> str:
    """`2 language pairs, 3 seeds: 5 of 6 studies have results`."""
    seeds, pairs = len({member.seed for member in grid.members}), len(grid.data)
    what = [f"{pairs} language pairs"] if pairs > 1 else []
    what += [f"{seeds} seeds"] if seeds > 1 else []
    done, total = sum(bool(member.settings) for member in grid.members), len(grid.members)
    start = ", ".join(what) or "One study"
    if total < 3 and done == total:
        return f"{start}: {'it has' if total == 1 else 'both studies have'} results"
    return f"{start}: {'all' if done == total else f'{done} of'} {count(total, 'study')} have results"


def paragraphs(grid: Grid) -> list[Paragraph]:
    """What came of every data set, and what is missing."""
    told = []
    for data in grid.data:
        chosen = [(member, member.chosen) for member in grid.of(data)]
        parts = [_choice(grid, member, setting) for member, setting in chosen if setting is not None]
        kept = [member.name for member, setting in chosen if setting is None]
        text = f"Chosen on dev text: {'; '.join(parts)}." if parts else ""
        text += f" Nothing chosen yet, or the full model kept: {listed(kept)}." if kept else ""
        told.append(Paragraph(data or "What was chosen", text.strip() or "No results yet."))
    absent = [f"{member.name} ({member.state})" for member in grid.members if not member.settings]
    if absent:
        told.append(Paragraph("Still missing", f"No results yet of {listed(absent)}. The page tells what is there."))
    failed = [member.name for member in grid.members if member.failures]
    if failed:
        told.append(Paragraph("Failed", f"Some stages of {listed(failed)}: the reasons stand under Studies."))
    return told


def _choice(grid: Grid, member: Member, chosen: Setting) -> str:
    change = chosen.measures.get(f"{grid.part}bleu_difference")
    cost = f", BLEU on {grid.text} {_difference(change)}" if change else ""
    found = f"{chosen.label}, chosen from {count(member.tried, 'setting')}"
    return f"seed {member.seed} keeps {chosen.kept} of {chosen.total} {chosen.heads} ({found}{cost})"


def means_table(grid: Grid, data: str, trained: bool = True) -> Table | None:
    """Every setting with gates and every control: means over its seeds, with intervals; None before any result. Not
    `trained`: the settings without gates, with the full model first; None where the first table has them.
    """
    run = pooled(grid, data)
    if run is None:
        return None
    columns = ["model", "seeds", "heads kept", f"BLEU on {grid.text}", "difference [95 %]"]
    columns += ["to its control", "to trained on", "to random heads", "to removal without mean outputs"]
    found = [s for s in run.ordered if s.is_full or s.learned or s.control in CONTROLS]
    shown = found if any(s.learned for s in found) else run.ordered
    if not trained:
        shown = [s for s in run.ordered if s.is_full or s not in shown]
        if len(shown) < 2:
            return None
    rows = [(setting, _cells(setting, grid.part)) for setting in shown]
    used = [i for i, _ in enumerate(columns) if i < 5 or any(cells[i] != NONE for _, cells in rows)]
    lines = [Line([cells[i] for i in used]) for _, cells in rows]
    what = "Means over seeds" if trained else "Removal without gates, means over seeds"
    return Table(f"{what}, {data or grid.name}", [columns[i] for i in used], lines)


def _cells(setting: Setting, part: str) -> list[str]:
    low, high = setting.asked.get("kept", (setting.kept, setting.kept))
    kept = f"{setting.mean_kept:.1f} ({low}–{high})" if low < high else f"{setting.kept}"
    bleu = setting.value(f"{part}bleu")
    return [
        setting.label,
        str(setting.asked["seeds"]),
        f"{kept} of {setting.total}",
        NONE if bleu is None else f"{bleu:.2f}",
        *(_difference(setting.measures.get(f"{part}bleu_difference{ending}")) for ending in ENDINGS),
    ]


def _difference(found: Measured | None) -> str:
    return NONE if found is None else f"{signed(found.value)} {interval(found.low, found.high)}".strip()


def pairs_table(grid: Grid) -> Table | None:
    """A setting a row, a language pair a column: difference to the full model, and heads kept; None for one pair."""
    runs = {data: run for data in grid.data if (run := pooled(grid, data)) is not None}
    if len(runs) < 2:
        return None
    by_name = {data: {s.name: s for s in run.ordered if s.learned} for data, run in runs.items()}
    names = list(dict.fromkeys(name for found in by_name.values() for name in found))
    lines = []
    for name in names:
        settings = [found.get(name) for found in by_name.values()]
        label = next(s.label for s in settings if s is not None)
        lines.append(Line([label, *(NONE if s is None else _side(s, grid.part) for s in settings)]))
    full = [f"{value:.2f}" if (value := _bleu(run.full, grid.part)) is not None else NONE for run in runs.values()]
    return Table("Language pairs side by side", ["model", *runs], [Line(["full model, BLEU", *full]), *lines])


def _bleu(setting: Setting | None, part: str) -> float | None:
    return None if setting is None else setting.value(f"{part}bleu")


def _side(setting: Setting, part: str) -> str:
    seeds, found = setting.asked["seeds"], setting.measures.get(f"{part}bleu_difference")
    return f"{_difference(found)}\n{setting.kept} of {setting.total} heads" + (f", {seeds} seeds" if seeds > 1 else "")


def _told(grid: Grid, member: Member) -> dict[str, Any]:
    """A row of the table of studies."""
    full, chosen = member.full, member.chosen
    before = _bleu(full, grid.part)
    change = chosen.measures.get(f"{grid.part}bleu_difference") if chosen else None
    return {
        "name": member.name,
        "page": quote(f"{member.place}/report.html") if member.page else "",
        "state": member.state,
        "full": NONE if before is None else f"{before:.2f}",
        "chosen": NONE if chosen is None else f"{chosen.label}, {chosen.kept} of {chosen.total} heads",
        "difference": _difference(change),
    }
