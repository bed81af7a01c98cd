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
from headwise.report.comparison import (
    control_sentences,
    controls_table,
    health_notes,
    health_table,
    health_words,
    kinds_tables,
)
from headwise.report.curve_figures import gate_curves, training_curve
from headwise.report.drift import drift
from headwise.report.drift_figures import drift_figures
from headwise.report.examples import choose_examples
from headwise.report.faithfulness import judge_table, verdicts
from headwise.report.figure import VEGA_LITE, Figure
from headwise.report.gate_animation import animation
from headwise.report.gate_animation import lede as gates_lede
from headwise.report.greedy_figures import greedy_curves
from headwise.report.head_figures import head_map, heads_by_layer
from headwise.report.kind_figures import decoder_layers, heads_by_kind
from headwise.report.pruning_figures import bleu_by_heads
from headwise.report.relevance import conservation_table, pooled_sentences
from headwise.report.removal_figures import removal_curves
from headwise.report.role_figures import layer_patterns, offsets, rare_tokens
from headwise.report.role_grid import function_grids
from headwise.report.run import Run, read_run
from headwise.report.score_drift import score_drift
from headwise.report.score_figures import score_lede, score_maps
from headwise.report.single_heads import single_heads
from headwise.report.summary import summarise
from headwise.report.table import settings_table
from headwise.report.theme import DARK, FONT, LIGHT, vega_config
from headwise.report.wording import duration

MANY = 25  # stages whose times are told one by one


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
        "bleu": bleu_by_heads(run),
        "greedy": greedy_curves(run),
        "layers": [f for f in [heads_by_layer(run), heads_by_kind(run), decoder_layers(run)] if f is not None],
        "drift": drift_figures(run),
        "score-drift": [f for f in [score_drift(run)] if f is not None],
        "training": [f for f in [training_curve(run)] if f is not None],
    }


def render(run: Run, figures: Mapping[str, list[Figure]]) -> str:
    """The HTML of the page. Everything that comes from the run is escaped by the template."""
    return html(
        "page.html.j2",
        figures,
        name=run.folder.resolve().name,
        summary=summarise(run),
        examples=choose_examples(run),
        chosen=run.chosen,
        pruned=bool(run.settings),
        settings=settings_table(run),
        compared=kinds_tables(run),
        controls=controls_table(run),
        controlled=control_sentences(run),
        health=health_table(run),
        health_words=health_words(run),
        noted=health_notes(run),
        drift=drift(run),
        film=animation(run),
        gates_lede=gates_lede(run),
        concrete=any(s.name in run.gates and s.method != "top-k" for s in run.pruned),
        scratched=any(s.control == "from-scratch" for s in run.controls),
        by_kind=any(isinstance(s.asked.get("value"), Mapping) for s in run.pruned),
        text=run.text,
        single=single_heads(run),
        lede=score_lede(run),
        judged=judge_table(run),
        verdicts=verdicts(run),
        pooled=pooled_sentences(run),
        conserved=conservation_table(run),
        roles=_roles(run),
        facts=_facts(run),
        plan=run.plan,
    )


def html(template: str, figures: Mapping[str, list[Figure]], **told: Any) -> str:
    """A page from its template: what it tells, its charts, and the frame that draws them light and dark."""
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
    return environment.get_template(template).render(
        figures=figures,
        light=LIGHT,
        dark=DARK,
        font=FONT,
        charts=charts,
        configurations={"light": vega_config(LIGHT), "dark": vega_config(DARK)},
        library=_library(),
        **told,
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
    facts = {name: value for name, value in run.facts.items() if name not in ("settings", "notes")}
    groups = [
        ("Signature", _flat(facts.pop("signature", None))),
        ("Versions", _flat(facts.pop("versions", None))),
        ("Time taken", _flat(_by_sort(facts.pop("seconds", None)), number=duration)),
        ("Evaluation and run", _flat(facts)),
    ]
    return [(title, pairs) for title, pairs in groups if pairs]


def _by_sort(seconds: Mapping[str, float] | None) -> Mapping[str, float] | None:
    """The time of all stages; of many models, the sum of each sort of stage: `prune (9)`."""
    if seconds is None or len(seconds) <= MANY:
        return seconds
    sorts: dict[str, list[float]] = {}
    for name, value in seconds.items():
        sorts.setdefault(name.partition("/")[0], []).append(value)
    return {f"{sort} ({len(part)})" if len(part) > 1 else sort: sum(part) for sort, part in sorts.items()}


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
