"""The page of a run, of a grid, or of two runs side by side: its sections in order, one file that needs no other.

Sections are declared by `@section(…)` in the files of this package; `sections_of` has those of a page. They are made of
figures (`charts.py`) and tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headwise.core.declarations import Declaration, Declarations
from headwise.core.theme import DARK, FONT, LIGHT, css_variables
from headwise.faces.report.captions import making, making_of_runs, with_making
from headwise.faces.report.charts import VEGA_LITE, Figure, vega_config
from headwise.faces.report.format import NONE
from headwise.faces.report.glossary import Term, glossary, relation_terms
from headwise.faces.report.run_folder import RunContents


@dataclass(frozen=True, kw_only=True)
class Section(Declaration):
    """A section of a page, declared by `@section(NAME, …)` on the function that collects its content.

    The function takes a RunContents (Runs, of a grid or two runs) and returns what the template
    `templates/NAME.html.j2` needs; None leaves the section out. A section of another package or of a
    script has no template: its figures, tables and sentences are shown in their order.

    heading: its name, in the menu of the page too; the first screen has none. question: what it answers. story: whether
    it stands open; the others are evidence, and folded under their heading and question. pages: those it is on: `run`,
    `grid` or `comparison`. order: its place there, the story first. files: what it is made from, in the folder of
    the run. template: the template's name, where it is another's. papers: what its figures and tables correspond to in
    the papers, such as `Voita fig. 7`, by the name of the figure or the title of the table (`*` stands for any text).
    brought_by: what a run needs for it, in words. qualities: the measures of quality of the tasks that can have it; none
    given: every task.
    """

    heading: str = ""
    question: str
    story: bool = False
    pages: tuple[str, ...] = ("run",)
    order: int
    files: tuple[str, ...] = ()
    template: str = ""
    papers: Mapping[str, str] = field(default_factory=dict)
    brought_by: str = ""
    qualities: tuple[str, ...] = ()


section = Declarations("section", Section, "headwise.faces.report", "headwise.sections")


def sections_of(page: str) -> list[Section]:
    """The sections of a page in their order."""
    on_page = (one for one in section.values() if page in one.pages)
    # The first screen has no heading: it leads although it is not declared as story.
    return sorted(on_page, key=lambda one: (bool(one.heading) and not one.story, one.order))


def paper_of(name: str) -> str:
    """The figure or table of a paper that one of ours corresponds to, as its section declares; empty without one."""
    for declared in section.values():
        for pattern, paper in declared.papers.items():
            if fnmatchcase(name, pattern):
                return paper
    return ""


@dataclass(frozen=True)
class Row:
    """Cells of a table. Text after a line break is smaller. A `badge` marks the row; `code`: its name in files."""

    cells: list[str]
    badge: str = ""
    code: str = ""


@dataclass(frozen=True)
class PageTable:
    """Rows under their columns; `label` names the table for screen readers."""

    label: str
    columns: list[str]
    rows: list[Row]


# A table: the title of each column, and a function of what a row is about.
Columns = dict[str, Callable[[Any], str]]


def table(
    label: str,
    items: Iterable[Any],
    columns: Columns,
    badge: Callable[[Any], str] = lambda _: "",
    code: Callable[[Any], str] = lambda _: "",
) -> PageTable | None:
    """A table with one row for each item. columns: the title of each, and the function that writes
    its cell for an item; an empty text is an empty cell.

    A column of empty cells is left out, except the first. None where there are no items.
    """
    row_items = list(items)
    cells = {}
    for title, write in columns.items():
        cells[title] = [write(item) or NONE for item in row_items]

    used = []
    for i, title in enumerate(cells):
        if not i or set(cells[title]) != {NONE}:
            used.append(title)

    rows = []
    for i, item in enumerate(row_items):
        rows.append(Row([cells[title][i] for title in used], badge(item), code(item)))
    return PageTable(label, used, rows) if rows else None


def chosen_badge(model: Mapping[str, Any] | None) -> str:
    """The badge of the row of a model."""
    return "chosen" if model is not None and model["chosen"] else ""


def figures_in(content: Any) -> list[Figure]:
    """Every figure in a section's content, in lists and mappings too."""
    if isinstance(content, Figure):
        return [content]
    if isinstance(content, dict):
        content = content.values()
    elif not isinstance(content, list | tuple):
        return []
    figures: list[Figure] = []
    for part in content:
        figures += figures_in(part)
    return figures


class PageSubject(Protocol):
    """What a page is about: a RunContents, or Runs. page: its page, as sections declare it."""

    @property
    def page(self) -> str: ...

    @property
    def name(self) -> str: ...


PAGE_FILES = ("report.html", "figures/")


def page_files(subject: PageSubject) -> dict[str, str | bytes]:
    """What `figures/*.png|svg`, their captions and `report.html` hold, by name; the page comes last.

    A section without data is left out, and the page's end names it.
    """
    content = collect(subject)
    files: dict[str, str | bytes] = {}
    with ThreadPoolExecutor() as threads:  # drawing leaves Python to the other threads
        drawn = threads.map(Figure.files, figures_in(list(content.values())))
        text = render(subject, content)
        for pictures in drawn:  # raises what drawing raised
            for name, picture in pictures.items():
                files[f"figures/{name}"] = picture
    captions = [f"## {one.name}\n\n{one.caption}\n" for one in figures_in(list(content.values()))]
    if captions:
        files["figures/captions.md"] = "\n".join(captions)
    files["report.html"] = text
    return files


def collect(subject: PageSubject) -> dict[str, dict[str, Any]]:
    """The content of every section that has data, by its name."""
    collected = {}
    for declared in sections_of(subject.page):
        content = declared.function(subject)
        if content is not None and any(content.values()):
            if isinstance(subject, RunContents):
                made = making(subject, declared.files)
            else:
                runs = [*getattr(subject, "runs", {}).values()]
                made = making_of_runs(runs, declared.files, subject.page == "grid")
            content = with_making(content, made)
            collected[declared.name] = content
    return collected


def render(subject: PageSubject, content: dict[str, dict[str, Any]]) -> str:
    """The HTML of the page. Everything that comes from the run is escaped by the templates."""
    environment = _templates()
    shown = []
    left_out = []
    for declared in sections_of(subject.page):
        if declared.name in content:
            shown.append(declared)
        elif can_apply(declared, subject):
            left_out.append((declared.heading, declared.brought_by))

    bodies = {}
    for declared in shown:
        # The section's own template has escaped it: twice would show the tags as text.
        bodies[declared.name] = Markup(body_of(declared, content[declared.name], subject.name))

    terms = terms_in(bodies.values())
    charts = {}
    for figure in figures_in(list(content.values())):
        for at, panel in enumerate(figure.panels):
            charts[f"{figure.name}-{at}"] = packed(panel.specification())

    return environment.get_template("frame.html.j2").render(
        name=subject.name,
        # The first screen is on every page, and alone has a headline.
        title=content[shown[0].name]["headline"],
        first=bodies[shown[0].name],
        sections=shown[1:],
        left_out=left_out,
        bodies=bodies,
        colours={"light": css_variables(LIGHT), "dark": css_variables(DARK)},
        font=FONT,
        charts=charts,
        configurations={"light": vega_config(LIGHT), "dark": vega_config(DARK)},
        library=_library(),
        terms=terms,
        spellings=spellings(terms),
    )


def can_apply(declared: Section, subject: PageSubject) -> bool:
    """Whether a run of this task can have a section: a model of embeddings has no translations."""
    if not isinstance(subject, RunContents):
        return True
    return not declared.qualities or subject.quality.name in declared.qualities


def terms_in(texts: Iterable[str]) -> list[Term]:
    """The terms of the glossary, and the relations, that some texts use."""
    whole = " ".join(texts)
    terms = (*glossary(), *relation_terms())
    return [term for term in terms if any(word in whole for word in term.spellings)]


def spellings(terms: Sequence[Term]) -> dict[str, int]:
    """The number of the term that each spelling stands for."""
    known = {}
    for number, term in enumerate(terms):
        for spelling in term.spellings:
            known[spelling] = number
    return known


def body_of(declared: Section, content: dict[str, Any], name: str) -> str:
    """The HTML of a section's content. One without a template shows its figures, its tables and its sentences."""
    environment = _templates()
    if declared.name in section.own:
        template = environment.get_template(f"{declared.template or declared.name}.html.j2")
        return template.render(name=name, **content)
    parts = list(content.values())
    return environment.get_template("plain.html.j2").render(
        figures=figures_in(parts),
        tables=[part for part in parts if isinstance(part, PageTable)],
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
        # By default Jinja writes nothing for a misspelt name.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Jinja's tojson would put a blank behind every comma of the data.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    environment.globals["paper_of"] = paper_of
    macros: Any = environment.get_template("components.html.j2").module
    for name in ("chip", "drawing", "fold", "table", "titled", "rows_of", "fact_list"):
        environment.globals[name] = getattr(macros, name)
    return environment


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, made safe to stand inside a script element."""
    import vl_convert  # of the extra `report`

    bundle: str = vl_convert.javascript_bundle(
        "window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE
    )
    # A browser ends or hides a script at these letters, even within a string.
    return re.sub(r"<(?=/script|!--)", r"\\x3C", bundle, flags=re.IGNORECASE)
