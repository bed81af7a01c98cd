"""The figures: what they draw, and that their colours are the theme's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.heads import HeadMap, HeadMask
from headwise.report.curve_figures import gate_curves, training_curve
from headwise.report.figure import Figure
from headwise.report.head_figures import head_map, heads_by_layer
from headwise.report.pruning_figures import bleu_by_heads
from headwise.report.removal_figures import removal_curves
from headwise.report.run import Run, read_run
from headwise.report.score_figures import TURN, score_maps
from headwise.report.theme import DARK, LIGHT, Palette


def data_of(figure: Figure, panel: int = 0) -> list[dict[str, Any]]:
    """All rows of a panel."""
    sets = figure.panels[panel].specification()["datasets"].values()
    return [row for rows in sets for row in rows]


def all_figures(run: Run) -> list[Figure]:
    assert run.chosen is not None
    found = [head_map(run, run.chosen), *score_maps(run), *gate_curves(run), *bleu_by_heads(run)]
    some = (removal_curves(run), heads_by_layer(run), training_curve(run))
    return found + [f for f in some if f is not None]


def test_every_figure_is_written_as_png_and_svg(run_folder: Path, tmp_path: Path) -> None:
    figures = all_figures(read_run(run_folder))
    for figure in figures:
        figure.save(tmp_path / "figures")
    names = {figure.name for figure in figures}
    assert len(names) == len(figures) == 9
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {f"{n}.{end}" for n in names for end in ("png", "svg")}
    assert (tmp_path / "figures" / "head-map.png").read_bytes().startswith(b"\x89PNG")
    assert "9 of 24 encoder heads kept" in (tmp_path / "figures" / "head-map.svg").read_text(encoding="utf-8").replace(
        "\u00a0", " "
    )


def test_no_figure_names_a_colour(run_folder: Path) -> None:
    for figure in all_figures(read_run(run_folder)):
        for panel in figure.panels:
            specification = panel.specification()
            del specification["datasets"], specification["config"]
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(", json.dumps(specification)), figure.name


def test_the_head_map_has_every_head_once(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert run.chosen is not None
    cells = [row for row in data_of(head_map(run, run.chosen)) if "fate" in row]
    assert len({cell["address"] for cell in cells}) == len(cells) == 24
    assert {c["address"] for c in cells if c["fate"] == "kept"} == {str(h) for h in run.layouts["lambda-0.05"].kept}
    assert all(cell["confidence"] is not None for cell in cells)


def test_only_kinds_that_could_be_pruned_are_in_the_map(run_folder: Path) -> None:
    heads = HeadMap({"encoder-self": (8, 8, 8), "cross": (8, 8)})
    kept = frozenset(h for h in heads if h.kind == "cross" or h.head < 3)
    HeadMask(heads, kept).save(run_folder / "layouts" / "lambda-0.05.json")
    run = read_run(run_folder)
    assert run.chosen is not None
    assert len(head_map(run, run.chosen).panels) == 1


def test_the_interval_stands_where_the_full_model_puts_it(run_folder: Path) -> None:
    (figure,) = bleu_by_heads(read_run(run_folder))
    (point,) = [row for row in data_of(figure) if row.get("kept") == 9]
    assert point["sort"] == "chosen"
    assert (point["low"], point["high"]) == pytest.approx((38.21 - 0.71, 38.21 + 0.11))


def test_a_model_without_heads_is_drawn_too(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "pruning.csv")
    table.loc[table["setting"] == "lambda-0.2", "kept"] = 0
    table.to_csv(run_folder / "pruning.csv", index=False)
    HeadMask(HeadMap({"encoder-self": (8, 8, 8)}), frozenset()).save(run_folder / "layouts" / "lambda-0.2.json")
    facts = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps({**facts, "chosen": "lambda-0.2"}))
    run = read_run(run_folder)
    layers, (bleu,) = heads_by_layer(run), bleu_by_heads(run)
    assert layers is not None
    assert run.chosen is not None
    for figure in (head_map(run, run.chosen), layers, bleu):
        figure.save(run_folder / "figures")
    assert "encoder self-attention 0, encoder self-attention 1 and encoder self-attention 2" in layers.caption


def test_long_gate_logs_are_thinned_and_keep_their_ends(run_folder: Path) -> None:
    steps = range(0, 30_001, 10)
    rows = [(step, "encoder-self", 0, head, 0.5) for step in steps for head in range(8)]
    table = pd.DataFrame(rows, columns=["step", "kind", "layer", "head", "p_open"])
    table.to_csv(run_folder / "gates" / "lambda-0.05.csv", index=False)
    figure = next(f for f in gate_curves(read_run(run_folder)) if f.name == "gates-lambda-0.05")
    drawn = {row["step"] for row in data_of(figure)}
    assert len(drawn) == 120
    assert {0, 30_000} <= drawn


def test_numbers_that_are_none_are_left_out_of_the_charts(run_folder: Path) -> None:
    with (run_folder / "train" / "log.csv").open("a") as file:
        file.write("6020,10.1,loss,inf\n6040,10.1,loss,nan\n")
    with (run_folder / "gates" / "lambda-0.05.csv").open("a") as file:
        file.write("2000,encoder-self,0,0,\n")
    for figure in all_figures(read_run(run_folder)):
        json.dumps([panel.specification() for panel in figure.panels], allow_nan=False)


def luminance(colour: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def channels(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def on_scale(scale: tuple[str, ...], share: float) -> list[float]:
    place = min(share * (len(scale) - 1), len(scale) - 1.000001)
    first, rest = int(place), place % 1
    return [a + (b - a) * rest for a, b in zip(channels(scale[first]), channels(scale[first + 1]), strict=True)]


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_numbers_can_be_read_on_every_cell_and_more_is_further_from_the_paper(palette: Palette) -> None:
    shares = [i / 100 for i in range(101)]
    for share in shares:
        text = palette.on_low if share < TURN else palette.on_high
        assert contrast(channels(text), on_scale(palette.heat, share)) > 3.4
    for scale in (palette.heat, palette.layers):
        steps = [luminance(on_scale(scale, share)) for share in shares]
        assert steps == sorted(steps, reverse=not palette.dark)
    for colour in (palette.ink, palette.muted, palette.second):
        assert contrast(channels(colour), channels(palette.paper)) > 4.5
