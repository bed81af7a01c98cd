"""The papers' curves and tables of pruning: right numbers in right places, and nothing where there is nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.heads import Kind
from headwise.report.comparison import control_sentences, controls_table, health_notes, health_table, kinds_tables
from headwise.report.figure import Figure
from headwise.report.greedy_figures import greedy_curves
from headwise.report.head_figures import heads_by_layer
from headwise.report.kind_figures import PAPER_KINDS, PAPER_LAYERS, THIRDS, decoder_layers, heads_by_kind
from headwise.report.page import draw, render
from headwise.report.pruning_figures import bleu_by_heads, columns_for
from headwise.report.run import Run, read_run
from headwise.report.setting import series
from headwise.report.table import settings_table
from report.made_sweeps import GATES, JOINT, STEPS, Made, write_sweeps


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    (folder / "run.json").write_text(json.dumps({"max_drop": 1.0}))
    return write_sweeps(folder)


@pytest.fixture(scope="module")
def run(swept: Path) -> Run:
    return read_run(swept)


def cells_of(figure: Figure, panel: int = 0) -> list[dict[str, Any]]:
    sets = figure.panels[panel].specification()["datasets"].values()
    return [row for rows in sets for row in rows]


def figures_of(run: Run) -> list[Figure]:
    some = [heads_by_kind(run), decoder_layers(run), heads_by_layer(run)]
    return [*bleu_by_heads(run), *greedy_curves(run), *(f for f in some if f is not None)]


def test_lines_are_methods_and_learned_ones_come_first(run: Run) -> None:
    lines = series(s for s in run.pruned if s.kinds == ("encoder-self",))
    assert [line.label for line in lines] == [
        "gates, λ",
        "gates, wanted count",
        "top-k gates",
        "greedy, gradient",
        "greedy, confidence",
        "greedy, zero ablation",
        "greedy, weight norm",
        "random orders",
    ]
    assert [s.kept for s in lines[0].settings] == sorted(GATES.values(), reverse=True)
    assert len(lines[-1].settings) == 3 * len(STEPS)
    assert run.groups == [("encoder-self",), ("encoder-self", "decoder-self", "cross")]


def test_settings_as_a_reader_says_them(run: Run) -> None:
    told = {s.name: s.label.replace("\u00a0", " ") for s in run.settings}
    assert told["encoder.lambda-0.04"] == "encoder: λ = 0.04"
    assert told["encoder.keep-12"] == "encoder: 12 wanted"
    assert told["encoder.top-6"] == "encoder: top 6"
    assert told["encoder.greedy-weight-norm-7"] == "encoder: weight norm, 7 left"
    assert told["encoder.greedy-random.2-7"] == "encoder: random 2, 7 left"
    assert told["encoder.lambda-0.04.from-scratch"] == "encoder: λ = 0.04, same layout from scratch"
    assert told["all.further"] == "all: trained on, not pruned"


def test_figure_7_has_every_model_with_its_interval_and_cuts_what_falls_out(run: Run) -> None:
    encoder, everything = bleu_by_heads(run)
    assert [panel.title for panel in encoder.panels] == ["test", "dev (where the setting is chosen)"]
    full = run.full
    assert full is not None
    for panel, part in enumerate(("", "dev_")):
        cells = cells_of(encoder, panel)
        for name in ("encoder.lambda-0.04", "encoder.keep-6", "encoder.greedy-gradient-7"):
            (setting,) = [s for s in run.pruned if s.name == name]
            (cell,) = [c for c in cells if c.get("model") == setting.label]
            difference, base = setting.measures[f"{part}bleu_difference"], full.value(f"{part}bleu")
            assert difference.low is not None
            assert base is not None
            assert cell["value"] == setting.value(f"{part}bleu")
            assert cell["low"] == pytest.approx(base + difference.low)
            assert abs(cell["x"] - setting.kept) <= 0.2
        assert sum(c.get("sort") == "chosen" for c in cells) == 1
        assert {c["control"] for c in cells if "control" in c} == {
            "random heads", "same layout from scratch", "narrower model", "best head of each layer",
        }  # fmt: skip
    lowest = min(c["value"] for c in cells_of(encoder) if c.get("sort") == "learned")
    domain = json.loads(json.dumps(encoder.panels[0].specification()))["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert lowest - 4 < domain[0] < lowest
    assert "falls out of the panels" in encoder.caption
    assert "dotted line" in encoder.caption
    assert "ring" not in everything.caption


def test_marks_of_as_many_heads_do_not_cover_each_other(run: Run) -> None:
    cells = [c for c in cells_of(bleu_by_heads(run)[0]) if c.get("kept") == 12 and c.get("sort") == "learned"]
    assert len(cells) == 3
    assert len({c["x"] for c in cells}) == 3


def test_however_many_marks_of_as_many_heads_still_read_as_that_number(run: Run) -> None:
    for figure, furthest in zip(bleu_by_heads(run), (0.2, 0.006 * 72), strict=True):
        for panel in range(2):
            marks = [c for c in cells_of(figure, panel) if "x" in c]
            assert max(abs(c["x"] - c["kept"]) for c in marks) == pytest.approx(furthest, abs=1e-3)


def test_lines_across_a_panel_are_named_below_it(run: Run) -> None:
    for figure in bleu_by_heads(run):
        for panel, names in zip(figure.panels, (2, 3), strict=True):
            layers = panel.specification()["layer"]
            assert not any(layer["mark"]["type"] == "text" for layer in layers)
            (dashed,) = [layer for layer in layers if "strokeDash" in layer["encoding"]]
            scale = dashed["encoding"]["strokeDash"]["scale"]
            assert scale["domain"] == ["full model", "trained on, not pruned", "allowed loss"][:names]
            assert len({str(dash) for dash in scale["range"]}) == names


def test_legends_fit_a_phone() -> None:
    assert columns_for(["gates, λ", "gates, wanted count", "greedy, gradient"]) == 2
    assert columns_for(["gates, λ", "gates, wanted count", "greedy, gradient, mean outputs kept"]) == 1
    assert columns_for(["full model"]) == 2


def test_random_orders_are_a_range_and_a_mean(run: Run) -> None:
    by_score, by_kind = greedy_curves(run)
    values = [s.value("bleu") or 0.0 for s in run.pruned if s.method == "greedy.random" and s.kept == 12]
    (cell,) = [c for c in cells_of(by_score) if c["line"] == "random orders" and c["kept"] == 12]
    assert (cell["low"], cell["high"]) == (min(values), max(values))
    assert cell["value"] == pytest.approx(sum(values) / 3)
    assert cell["gone"] == 50
    starts = [c for c in cells_of(by_score) if c["gone"] == 0]
    assert {c["value"] for c in starts} == {38.2}
    assert {c["line"] for c in cells_of(by_kind)} == {"encoder heads", "attention heads"}


def test_figures_9_and_10_count_what_layouts_keep(run: Run) -> None:
    kinds, layers = heads_by_kind(run), decoder_layers(run)
    assert kinds is not None
    assert layers is not None
    assert [panel.title.split(",")[0] for panel in kinds.panels] == ["gates", *["Voita et al. 2019"] * 2]
    shares = {(c["name"], round(c["gone"], 2)): c["left"] for c in cells_of(kinds)}
    for counts in JOINT.values():
        gone = round(100 * (1 - sum(counts) / 72), 2)
        got = [shares[kind, gone] for kind in ("encoder-self", "decoder-self", "cross")]
        assert got == pytest.approx([100 * count / 24 for count in counts], abs=0.01)
    cells = cells_of(layers)
    assert {c["name"] for c in cells} == set(THIRDS)
    mask = run.layouts["all.lambda-0.02"]
    gone = round(100 * (1 - mask.count("decoder-self") / 24), 2)
    lowest = sum(h.kind == "decoder-self" and h.layer == 0 for h in mask.kept)
    assert [c["told"] for c in cells if c["name"] == THIRDS[0] and c["gone"] == gone] == [f"{lowest} of 8"]
    assert len(layers.panels) == 4


def test_the_papers_numbers_add_up() -> None:
    """The rows of figure 10 sum to the decoder's counts of figure 9: read twice from two pictures."""
    counts = [tuple(map(int, row.split("/"))) for row in PAPER_KINDS["WMT"].split()]
    for place, kind in ((1, "decoder-self"), (2, "cross")):
        thirds = [sum(map(int, row.split("/"))) for row in PAPER_LAYERS[kind].split()]  # type: ignore[index]
        assert thirds == [row[place] for row in counts]


def test_a_wanted_count_for_each_kind_says_nothing_of_kinds(swept: Path, tmp_path: Path) -> None:
    folder = write_sweeps(tmp_path)
    facts = json.loads((folder / "run.json").read_text())
    for name, asked in facts["settings"].items():
        if name.startswith("all."):
            asked["value"] = {"encoder-self": 4, "decoder-self": 4, "cross": 6}
    (folder / "run.json").write_text(json.dumps(facts))
    run = read_run(folder)
    assert (heads_by_kind(run), decoder_layers(run)) == (None, None)
    assert "those numbers were given, not found" in render(run, draw(run))


def test_table_2(run: Run) -> None:
    (_, single), (title, several) = kinds_tables(run)
    assert "encoder-self, decoder-self, cross" in title
    assert several.columns[1] == "enc/dec/cross"
    whole, *lines = [line.cells for line in several.lines]
    assert whole[:4] == ["full model", "24/24/24", "72", "38.20"]
    assert [cells[1] for cells in lines] == ["/".join(map(str, counts)) for counts in JOINT.values()]
    assert all(cells[5].startswith("+0.50 [+0.10, +0.90]\np = 0.010") for cells in lines)
    assert all(len(cells) == len(several.columns) for cells in (whole, *lines))
    assert sum(line.badge == "chosen" for line in single.lines) == 1


def test_controls_say_what_the_intervals_carry(run: Run) -> None:
    told = dict(control_sentences(run))
    assert told["Random heads"].startswith("All 2 pruned models are better, beyond chance")
    assert "which heads stay matters" in told["Random heads"]
    assert told["Narrower model"].startswith("All 2 pruned models are not to be told apart")
    assert "worse, beyond chance" in told["Trained on, not pruned"]
    table = controls_table(run)
    assert table is not None
    assert len(table.lines) == len(run.controls) == 2 * 3 + 2 + 5 + 1


def test_whatever_models_are_held_against_is_told(tmp_path: Path) -> None:
    """Random heads beside further training, the best head of a layer beside a random one, mean outputs beside none."""
    folder, made = write_sweeps(tmp_path), Made(0, 0.0)
    kinds: tuple[Kind, ...] = ("encoder-self",)
    twin = {"bleu_difference_to_pruned": 1.0, "bleu_difference_to_further": -2.0, "p_value_to_further": 0.004}
    made.add("encoder.keep-12.random", "control.random", kinds, 12, 1.5, measures=twin, control="random",
             of="encoder.keep-12")  # fmt: skip
    best = {"measures": {"bleu_difference_to_random": 0.7}, "against": {"random": "encoder.one-per-layer-random"}}
    made.add("encoder.one-per-layer", "control.one-per-layer", kinds, 3, 1.9, control="one-per-layer", **best)
    chance = {"control": "one-per-layer-random"}
    made.add("encoder.one-per-layer-random", "control.one-per-layer-random", kinds, 3, 2.6, **chance)
    for kept, change in ((7, 1.4), (4, 0.1), (2, 2.5)):
        held = {"measures": {"bleu_difference_to_uncompensated": change}, "compensate": True, "sweep": "mean"}
        made.add(f"mean.greedy-gradient-{kept}", "greedy.gradient", kinds, kept, 5, **held,
                 against={"uncompensated": f"encoder.greedy-gradient-{kept}"})  # fmt: skip
    before = pd.read_csv(folder / "pruning.csv")
    whole = [before[before["setting"] != "encoder.one-per-layer"], pd.DataFrame(made.rows, columns=before.columns)]
    pd.concat(whole).to_csv(folder / "pruning.csv", index=False)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "settings": facts["settings"] | made.settings}))
    run = read_run(folder)
    told, table = dict(control_sentences(run)), controls_table(run)
    assert told["A random head of each layer"].startswith("The one model with the best head of each layer is better")
    assert told["Removal without mean outputs"].startswith("2 of 3 pruned models are better, beyond chance")
    assert table is not None and table.columns[-1] == "to trained on"
    rows = {(line.cells[0].replace("\u00a0", " "), line.cells[1]): line.cells for line in table.lines}
    assert rows["encoder: 12 wanted", "random heads"][-1] == "−2.00 [−2.40, −1.60]\np = 0.004"
    chance_row = rows["encoder: best head of each layer", "a random head of each layer"]
    assert chance_row[5] == "+0.70 [+0.30, +1.10]" and chance_row[-1] == "–"
    plain = rows["mean: gradient, 2 left", "removal without mean outputs"]
    bleu = {s.name: f"{s.value('bleu'):.2f}" for s in run.settings}
    assert plain[2:5] == ["2", bleu["mean.greedy-gradient-2"], bleu["encoder.greedy-gradient-2"]]
    assert plain[5] == "+2.50 [+2.10, +2.90]"
    render(run, draw(run))


def test_what_the_interval_and_p_do_not_both_say_is_not_beyond_chance(swept: Path, tmp_path: Path) -> None:
    folder = write_sweeps(tmp_path)
    table = pd.read_csv(folder / "pruning.csv")
    table.loc[(table["measure"] == "p_value_to_pruned") & (table["value"] < 0.05), "value"] = 0.12
    table.to_csv(folder / "pruning.csv", index=False)
    told = dict(control_sentences(read_run(folder)))
    assert told["Random heads"].startswith("All 2 pruned models are not to be told apart")


def test_without_test_text_tables_are_of_dev_and_say_so(tmp_path: Path) -> None:
    folder = write_sweeps(tmp_path)
    table = pd.read_csv(folder / "pruning.csv")
    test = table["measure"].str.match("bleu|p_value")
    dev = table[test & table["measure"].str.contains("_to_")].assign(measure=lambda t: "dev_" + t["measure"])
    pd.concat([table[~test], dev]).to_csv(folder / "pruning.csv", index=False)
    run = read_run(folder)
    models, (_, kinds) = settings_table(run), kinds_tables(run)[1]
    assert models is not None and models.columns[2] == "dev BLEU" and models.columns.count("dev BLEU") == 1
    full, (setting,) = run.full, [s for s in run.pruned if s.name == "all.lambda-0.02"]
    assert full is not None and kinds.lines[0].cells[3] == f"{full.value('dev_bleu'):.2f}"
    assert any(
        line.cells[0] == setting.label and f"{setting.value('dev_bleu'):.2f}" in line.cells for line in kinds.lines
    )
    assert dict(control_sentences(run))["Random heads"].startswith("All 2 pruned models are better, beyond chance")
    page = render(run, draw(run))
    assert "are on dev text (no test text was translated)" in page and "test sentences" not in page


def test_gate_health(run: Run) -> None:
    table = health_table(run)
    assert table is not None
    assert len(table.lines) == len(GATES) + len(JOINT)
    (line,) = [line.cells for line in table.lines if line.cells[0].endswith("0.32")]
    assert line[1:] == ["1 of 24", "20\u202f%", "1.2", "no", "2.0180", "2.0200", "2.0200"]
    notes = health_notes(run)
    assert [n for n in notes if "frozen" in n] == ["The decoder was frozen."]
    assert any(re.match("encoder: λ\u00a0=\u00a00.32: 20 %", note) for note in notes)


def test_the_table_of_all_goes_kinds_by_kinds(run: Run) -> None:
    table = settings_table(run)
    assert table is not None
    names = [line.cells[0].split(":")[0] for line in table.lines]
    assert names == ["full model", *sorted(names[1:], reverse=True)]


def test_an_old_run_has_none_of_it(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert [figure.name for figure in bleu_by_heads(run)] == ["bleu-by-heads"]
    assert (greedy_curves(run), heads_by_kind(run), decoder_layers(run)) == ([], None, None)
    assert (kinds_tables(run), controls_table(run), control_sentences(run), health_notes(run)) == ([], None, [], [])


def test_an_unfinished_run_is_drawn_as_far_as_it_is(tmp_path: Path) -> None:
    folder = write_sweeps(tmp_path)
    table = pd.read_csv(folder / "pruning.csv")
    first = table["setting"].isin(["full", "encoder.lambda-0.04", "encoder.greedy-gradient-7"])
    table[first & table["measure"].str.startswith("dev_")].to_csv(folder / "pruning.csv", index=False)
    for path in (folder / "layouts").iterdir():
        path.unlink()
    run = read_run(folder)
    assert [panel.title for figure in bleu_by_heads(run) for panel in figure.panels] == [
        "dev (where the setting is chosen)"
    ]
    for figure in (*bleu_by_heads(run), *greedy_curves(run)):
        axes = {layer["encoding"]["y"]["title"] for layer in figure.panels[0].specification()["layer"]}
        assert axes == {"BLEU on dev"}
        assert "on dev" in figure.title
    assert "dev text" in greedy_curves(run)[0].caption
    for figure in figures_of(run):
        json.dumps([panel.specification() for panel in figure.panels], allow_nan=False)


def test_no_figure_names_a_colour(run: Run) -> None:
    for figure in figures_of(run):
        for panel in figure.panels:
            specification = panel.specification()
            del specification["datasets"], specification["config"]
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(", json.dumps(specification)), figure.name
