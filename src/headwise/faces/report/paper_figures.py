"""Figures of the papers as files for a paper: by what they show, from any folders of one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_lowercase

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import write_file
from headwise.core.head_panels import (
    COLUMN,
    PAGE,
    Function,
    HeadPanel,
    HeadPanels,
    picture_bytes,
    picture_path,
)
from headwise.core.heads import Head, head_of
from headwise.core.tables import MODELS, SCORES
from headwise.core.theme import DARK, LIGHT
from headwise.faces.report.after_pruning import changes, functions_left
from headwise.faces.report.captions import ROLES, making
from headwise.faces.report.charts import Figure
from headwise.faces.report.format import kinds_among, listed
from headwise.faces.report.gate_history import gate_curves, gate_histories
from headwise.faces.report.head_rows import heads_in, of_kind
from headwise.faces.report.kept_heads import heads_by_kind, heads_by_layer
from headwise.faces.report.quality_curves import greedy_figures, quality_figures
from headwise.faces.report.role_charts import confirmed_roles, in_cell
from headwise.faces.report.run_folder import RunContents
from headwise.faces.report.score_maps import leading_measures
from headwise.importance.score_panels import score_panels
from headwise.roles.label import DRAWS
from headwise.roles.role import category, category_colour

Drawn = HeadPanels | list[Figure]


@dataclass(frozen=True)
class Wanted:
    """What a figure was asked with. kind: of heads. measures: those to show; none: the usual ones. sort: the measure that
    orders the heads of a layer, by default the first."""

    kind: str
    measures: Sequence[str] = ()
    sort: str = ""


@dataclass(frozen=True)
class PaperFigure:
    """A figure. shows: in a line. paper: what it corresponds to. needs: what the folders must have. files: what it is made
    from. draw: makes it; nothing where they lack that."""

    shows: str
    paper: str
    needs: str
    files: tuple[str, ...]
    draw: Callable[[RunContents, Wanted], Drawn]


def draw_importance(run: RunContents, wanted: Wanted) -> Drawn:
    """Scores of heads, and their functions where roles are known."""
    return head_panels(run, wanted, list(wanted.measures) or leading_measures(run, wanted.kind))


def draw_roles(run: RunContents, wanted: Wanted) -> Drawn:
    """The functions of heads, and the score that orders them where there is one."""
    if of_kind(run.roles.labels, wanted.kind).empty:
        return []
    usual = leading_measures(run, wanted.kind)[:1]
    return head_panels(run, wanted, list(wanted.measures) or usual)


def head_panels(run: RunContents, wanted: Wanted, measures: Sequence[str]) -> Drawn:
    """The panels of heads of one kind; nothing without scores and roles of it."""
    kind = wanted.kind
    if of_kind(run.roles.labels, kind).empty and of_kind(run.heads, kind).empty:
        return []
    more = []
    said = ""
    if not of_kind(run.roles.labels, kind).empty:
        functions = functions_of(run, kind)
        more.append(HeadPanel("Function", "how often, of a sink how much", functions=functions))
        letter = f"({ascii_lowercase[len(measures)]}) " * bool(measures)
        said = f" {letter}{functions_text(functions)}"
    panels = score_panels(run.heads, kind, measures, wanted.sort, more, run.quality.each)
    return replace(panels, caption=panels.caption + said)


def functions_text(functions: Mapping[Head, Sequence[Function]]) -> str:
    """What a panel of functions shows, for a caption."""
    found = [one for own in functions.values() for one in own]
    with_one = sum(map(bool, functions.values()))
    parts = [
        f"Functions, which {with_one} of {len(functions)} heads have: how often a head looks where its function wants "
        "(of a sink, the weight there)"
    ]
    if any(one.group == "syntactic" for one in found):
        parts.append("obj→: an object attends to its governor, →obj: the governor to it")
    if any(len(own) > 2 for own in functions.values()):
        parts.append("+2: two more")
    if any(one.confirmed for one in found):
        parts.append("✓: confirmed with the head off")
    if not all(one.sure for one in found):
        parts.append("dot: not in every random half of the text")
    return f"{'; '.join([*parts, 'grey: none known'])}."


def functions_of(run: RunContents, kind: str) -> dict[Head, list[Function]]:
    """The functions of the heads of a kind, the clearest first."""
    rows = of_kind(run.roles.roles, kind).sort_values("value", ascending=False, kind="stable")
    found: dict[Head, list[Function]] = {
        head: [] for head in heads_in(of_kind(run.roles.labels, kind))
    }
    confirmed = confirmed_roles(run.roles)
    for row in rows.to_dict("records"):
        sure = not row.get("draws", DRAWS) < DRAWS  # a table without draws has none that failed
        head, measure = head_of(row), row["measure"]
        off = (*head, measure) in confirmed
        group = category(measure)
        one = Function(group, category_colour(group), in_cell(measure), row["value"], sure, off)
        found[head].append(one)
    return found


def draw_quality(run: RunContents, wanted: Wanted) -> Drawn:
    return quality_figures(run.model_table, run.facts) or greedy_figures(run.model_table, run.facts)


def draw_kept(run: RunContents, wanted: Wanted) -> Drawn:
    found = changes(run, wanted.kind)
    return [functions_left(run.roles, wanted.kind, found)] if found else []


def draw_kinds(run: RunContents, wanted: Wanted) -> Drawn:
    return [figure for figure in [heads_by_kind(run)] if figure]


def draw_layers(run: RunContents, wanted: Wanted) -> Drawn:
    return [figure for figure in [heads_by_layer(run)] if figure]


def draw_gates(run: RunContents, wanted: Wanted) -> Drawn:
    return gate_curves(run, gate_histories(run)[:1])


PAPER_FIGURES = {
    "importance": PaperFigure(
        "which heads matter, and what they do",
        "Voita fig. 1",
        "scores (headwise score), and for its last panel roles (headwise roles)",
        (SCORES.file, ROLES),
        draw_importance,
    ),
    "roles": PaperFigure(
        "what heads do, beside their relevance",
        "Voita fig. 2",
        "roles (headwise roles)",
        (SCORES.file, ROLES),
        draw_roles,
    ),
    "quality": PaperFigure(
        "quality against the heads kept",
        "Voita fig. 7, Michel fig. 3",
        "pruned models (headwise prune)",
        (MODELS.file,),
        draw_quality,
    ),
    "kept": PaperFigure(
        "what the heads that stay do",
        "Voita fig. 8",
        "roles of the full model and of those that gates pruned (headwise story --method gates --treebank FILE)",
        (ROLES,),
        draw_kept,
    ),
    "kinds": PaperFigure(
        "how many heads of each kind stay",
        "Voita fig. 9",
        "models of which several kinds of heads were pruned together (headwise prune --kinds)",
        (),
        draw_kinds,
    ),
    "layers": PaperFigure(
        "how many heads each layer keeps",
        "Voita fig. 10",
        "pruned models (headwise prune)",
        (),
        draw_layers,
    ),
    "gates": PaperFigure(
        "how the gates close",
        "the film of the blog",
        "models pruned by gates (headwise prune --method gates)",
        (),
        draw_gates,
    ),
}


def figure_named(name: str) -> PaperFigure:
    """A figure by its name. Raises HeadwiseError for another name."""
    if name not in PAPER_FIGURES:
        names = [f"{one} ({made.paper})" for one, made in PAPER_FIGURES.items()]
        raise HeadwiseError(
            f"There is no figure '{name}'{did_you_mean(name, PAPER_FIGURES)}: choose {listed(names)}."
        )
    return PAPER_FIGURES[name]


# In place of the ending of a figure's file.
CAPTION = ".caption.txt"
LATEX = ".caption.tex"
LATEX_READS = (".pdf", ".png")


def write_figure(
    run: RunContents, name: str, out: Path, wanted: Wanted, width: float, dark: bool
) -> Path:
    """Draw a figure into a file, and write its caption beside it, also as LaTeX; width: in inches. Raises HeadwiseError
    where the run lacks what it needs."""
    made = figure_named(name)
    place = picture_path(out)
    kinds = kinds_among([*run.heads["kind"], *run.roles.labels["kind"]])
    if not wanted.kind and kinds:
        wanted = Wanted(kinds[0], wanted.measures, wanted.sort)
    drawn = made.draw(run, wanted)
    if not drawn:
        raise HeadwiseError(f"{run.folder} has not what the figure {name} needs: {made.needs}.")
    tables = {SCORES.file: run.heads, ROLES: run.roles.labels}
    empty = {file for file, table in tables.items() if of_kind(table, wanted.kind).empty}
    how = making(run, [file for file in made.files if file not in empty])
    if isinstance(drawn, HeadPanels):
        svg = drawn.svg(width, dark=dark)
        caption = f"{drawn.caption} {how}"
    else:
        points = 72 * width
        figure = replace(drawn[0], made=how)
        columns = 1 if points < 1.5 * COLUMN else min(figure.columns, len(figure.panels))
        svg = figure.printed(points, DARK if dark else LIGHT, columns)
        caption = figure.caption
    write_file(caption_of(place), f"{caption.strip()}\n".encode())
    if place.suffix.lower() in LATEX_READS:
        latex = latex_figure(place.name, name, caption.strip(), wide=72 * width > 1.5 * COLUMN)
        write_file(place.with_name(place.stem + LATEX), latex.encode())
    return write_file(place, picture_bytes(svg, place))


def caption_of(picture: Path) -> Path:
    """The file of the caption of a picture."""
    return picture.with_name(picture.stem + CAPTION)


# What has a meaning of its own in LaTeX, and letters that its usual fonts lack.
IN_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{letter: f"\\{letter}" for letter in "{}$&#%_"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{
            letter: f"$\\{name}$"
            for letter, name in {
                "→": "rightarrow",
                "±": "pm",
                "×": "times",
                "α": "alpha",
                "β": "beta",
                "λ": "lambda",
                "✓": "surd",
            }.items()
        },
        "−": "$-$",
    }
)


def latex_figure(file: str, name: str, caption: str, wide: bool) -> str:
    """A figure as LaTeX has it. file: the picture. wide: across both columns of a page."""
    kind, width = ("figure*", r"\textwidth") if wide else ("figure", r"\columnwidth")
    words = caption.translate(IN_LATEX)
    return (
        f"\\begin{{{kind}}}\n\\centering\n\\includegraphics[width={width}]{{{file}}}\n"
        f"\\caption{{{words}}}\n\\label{{fig:{name}}}\n\\end{{{kind}}}\n"
    )


WIDTHS = {"column": COLUMN / 72, "page": PAGE / 72}
