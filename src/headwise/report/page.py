"""The page of a run: one HTML file that needs nothing else, and its figures as files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headwise.heads import write_text
from headwise.report import roles
from headwise.report.attention_maps import attention_maps
from headwise.report.curve_figures import bleu_by_heads, gate_curves, training_curve
from headwise.report.examples import choose_examples
from headwise.report.faithfulness import judge_table, verdicts
from headwise.report.figure import VEGA_LITE, Figure
from headwise.report.head_figures import head_map, heads_by_layer
from headwise.report.relevance import conservation_table, pooled_sentences
from headwise.report.removal_figures import removal_curves
from headwise.report.role_figures import layer_patterns, offsets, rare_tokens
from headwise.report.role_grid import function_grids
from headwise.report.run import Run, read_run
from headwise.report.score_figures import score_lede, score_maps
from headwise.report.summary import summarise
from headwise.report.table import settings_table
from headwise.report.theme import DARK, FONT, LIGHT, vega_config
from headwise.report.wording import duration


def write(run: Path) -> Path:
    """Write `report.html` and `figures/*.png|svg` into a run folder and return the path of the page.

    What a run does not have yet (pruning, translations) leaves its section out, with a sentence that says so. Raises
    HeadwiseError when the folder is no run, when one of its files cannot be read, or when the page cannot be written.
    """
    found = read_run(Path(run))
    figures = draw(found)
    for figure in (f for group in figures.values() for f in group):
        figure.save(found.folder / "figures")
    page = found.folder / "report.html"
    write_text(page, render(found, figures))
    return page


def draw(run: Run) -> dict[str, list[Figure]]:
    """All figures, by the section they stand in."""
    chosen = run.chosen
    return {
        "head-map": [head_map(run, chosen)] if chosen is not None and chosen.name in run.layouts else [],
        "scores": score_maps(run),
        "removal": [f for f in [removal_curves(run)] if f is not None],
        "functions": function_grids(run),
        "patterns": [f for f in [layer_patterns(run)] if f is not None],
        "evidence": [f for f in [offsets(run), rare_tokens(run)] if f is not None],
        "attention-maps": [f for f in [attention_maps(run)] if f is not None],
        "gates": gate_curves(run),
        "bleu": [f for f in [bleu_by_heads(run)] if f is not None],
        "layers": [f for f in [heads_by_layer(run)] if f is not None],
        "training": [f for f in [training_curve(run)] if f is not None],
    }


def render(run: Run, figures: Mapping[str, list[Figure]]) -> str:
    """The HTML of the page. Everything that comes from the run is escaped by the template."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = {
        f"{figure.name}-{i}": panel.specification()
        for group in figures.values()
        for figure in group
        for i, panel in enumerate(figure.panels)
    }
    return environment.get_template("page.html.j2").render(
        name=run.folder.resolve().name,
        summary=summarise(run),
        figures=figures,
        examples=choose_examples(run),
        chosen=run.chosen,
        pruned=bool(run.settings),
        settings=settings_table(run),
        lede=score_lede(run),
        judged=judge_table(run),
        verdicts=verdicts(run),
        pooled=pooled_sentences(run),
        conserved=conservation_table(run),
        roles=_roles(run),
        facts=_facts(run),
        plan=run.plan,
        light=LIGHT,
        dark=DARK,
        font=FONT,
        charts=charts,
        configurations={"light": vega_config(LIGHT), "dark": vega_config(DARK)},
        library=_library(),
    )


def _roles(run: Run) -> dict[str, Any] | None:
    """What the section of roles tells beside its figures; None without roles, which leaves it out."""
    if run.roles is None:
        return None
    return {
        "sentences": roles.sentences(run),
        "decided": roles.decided(run),
        "syntax": roles.syntax_table(run),
        "left_out": roles.others_left_out(run),
        "shares": roles.share_table(run),
        "absent": run.roles.facts["absent"],
    }


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed as one script, made safe to stand inside a script element."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return re.sub(r"<(?=/script|!--)", r"\\x3C", bundle, flags=re.IGNORECASE)


def _facts(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """How the run was made, in groups of names and values."""
    facts = dict(run.facts)
    groups = [
        ("Signature", _flat(facts.pop("signature", None))),
        ("Versions", _flat(facts.pop("versions", None))),
        ("Time taken", _flat(facts.pop("seconds", None), number=duration)),
        ("Evaluation and run", _flat(facts)),
    ]
    return [(title, pairs) for title, pairs in groups if pairs]


def _flat(value: Any, name: str = "", number: Callable[[float], str] = json.dumps) -> list[tuple[str, str]]:
    """Nested settings as names with dots; `number` writes the numbers."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        inner = [(f"{name}.{key}" if name else str(key), below) for key, below in value.items()]
        return [pair for key, below in inner for pair in _flat(below, key, number)]
    if isinstance(value, str):
        return [(name, value)]
    return [(name, number(value) if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False))]
