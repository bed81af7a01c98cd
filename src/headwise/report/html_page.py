"""The page of a run, of a grid, or of two runs side by side: its sections in order, one file that needs no other.

Sections are declared by `@section(…)` in the files of this package; `sections_of` has those of a page.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headwise.heads import write_text
from headwise.report import components
from headwise.report.charts import vega_config
from headwise.report.comparison import Comparison
from headwise.report.components import VEGA_LITE, Figure, Section, Table, figures_in, sections_of
from headwise.report.run_folder import FinishedRun, Grid, read_grid, read_run
from headwise.theme import COLOURS, DARK, FONT, LIGHT

Found = FinishedRun | Grid | Comparison


def read_folder(folder: Path) -> Found:
    """The folder of a run or of a grid."""
    return read_grid(folder) if (folder / "grid.json").is_file() else read_run(folder)


def write_page(found: Found, out: Path) -> Path:
    """Write `report.html` and `figures/*.png|svg` into a folder; returns the path of the page.

    A section without data (pruning, translations) says so or is left out. Raises HeadwiseError when the page cannot be
    written.
    """
    content = collect(found)
    page = out / "report.html"
    with ThreadPoolExecutor() as threads:  # drawing leaves Python to the other threads
        drawn = threads.map(
            lambda figure: figure.save(out / "figures"), figures_in(list(content.values()))
        )
        text = render(found, content)
        list(drawn)  # raises what drawing raised
    write_text(page, text)
    return page


def collect(found: Found) -> dict[str, dict[str, Any]]:
    """The content of every section that there is, by its name."""
    collected = {}
    for section in sections_of(page_of(found)):
        content = section.function(found)
        if content is not None:
            collected[section.name] = content
    return collected


def page_of(found: Found) -> str:
    """The name of a page by what it is about, as sections declare it."""
    if isinstance(found, Comparison):
        return "comparison"
    return "grid" if isinstance(found, Grid) else "run"


def render(found: Found, content: dict[str, dict[str, Any]]) -> str:
    """The HTML of the page. Everything that comes from the run is escaped by the templates."""
    environment = _templates()
    shown = [section for section in sections_of(page_of(found)) if section.name in content]
    bodies = {}
    for section in shown:
        bodies[section.name] = Markup(body_of(section, content[section.name], found.name))
    figures: list[Figure] = figures_in(list(content.values()))
    return environment.get_template("frame.html.j2").render(
        name=found.name,
        title=content[shown[0].name]["headline"],
        first=bodies[shown[0].name],
        sections=shown[1:],
        bodies=bodies,
        colours={
            name: " ".join(f"--{colour}: {palette[colour]};" for colour in COLOURS)
            for name, palette in (("light", LIGHT), ("dark", DARK))
        },
        font=FONT,
        charts={
            f"{f.name}-{i}": packed(panel.specification())
            for f in figures
            for i, panel in enumerate(f.panels)
        },
        configurations={"light": vega_config(LIGHT), "dark": vega_config(DARK)},
        library=_library(),
    )


def body_of(section: Section, content: dict[str, Any], name: str) -> str:
    """The HTML of a section's content. One without a template shows its figures, its tables and its sentences."""
    environment = _templates()
    if section.name in components.section.own:
        template = environment.get_template(f"{section.template or section.name}.html.j2")
        return template.render(name=name, **content)
    parts = list(content.values())
    return environment.get_template("plain.html.j2").render(
        figures=figures_in(parts),
        tables=[part for part in parts if isinstance(part, Table)],
        sentences=[part for part in parts if isinstance(part, str)],
    )


def packed(chart: dict[str, Any]) -> dict[str, Any]:
    """A specification whose rows do not repeat the names of their columns: the names, then a list a row (None: not
    there). The page's script unpacks it.
    """
    sets = {}
    for name, rows in chart["datasets"].items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        sets[name] = [columns, *([row.get(column) for column in columns] for row in rows)]
    return chart | {"datasets": sets}


@cache
def _templates() -> Environment:
    """The templates, each compiled once for all pages."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    macros: Any = environment.get_template("components.html.j2").module
    environment.globals |= {
        name: getattr(macros, name) for name in ("drawing", "table", "titled", "fact_list")
    }
    return environment


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, made safe to stand inside a script element."""
    bundle: str = vl_convert.javascript_bundle(
        "window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE
    )
    return re.sub(r"<(?=/script|!--)", r"\\x3C", bundle, flags=re.IGNORECASE)
