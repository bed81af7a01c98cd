"""What fewer heads cost: figures, tables of models and controls, layers and kinds; and example translations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.report import cost, gate_history, kept_heads, models
from headwise.report.cost import choose_examples, similarity, word_differences
from headwise.report.page import collect, figures_in, render
from headwise.report.quality_curves import greedy_figures, quality_figures
from headwise.report.run_folder import FinishedRun, read_run
from report.conftest import data_of, make_run
from report.made_sweeps import GATES, JOINT, write_sweeps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return read_run(write_sweeps(make_run(tmp_path_factory.mktemp("swept"))))


def test_labels_and_lines_come_from_the_facts(run: FinishedRun) -> None:
    labels = {name: label.replace("\u00a0", " ") for name, label in run.models["label"].items()}
    for name, label in {
        "encoder.lambda-0.04": "encoder: λ = 0.04",
        "encoder.keep-12": "encoder: keep 12",
        "encoder.top-6": "encoder: top-k 6",
        "encoder.greedy-weight-norm-7": "encoder: weight norm, 7 left",
        "encoder.greedy-random.2-7": "encoder: random 2, 7 left",
        "encoder.lambda-0.04.from-scratch": "encoder: λ = 0.04, same layout from scratch",
        "all.fine-tuned": "all: fine-tuned, not pruned",
    }.items():
        assert labels[name] == label
    encoder = models.of_kinds(run.models, ("encoder-self",))
    names = [name for name, _ in models.lines(encoder)]
    assert (
        names[:3] == ["gates, λ", "gates, target count", "top-k gates"]
        and names[-1] == "random orders"
    )


def test_every_model_has_a_point_with_its_interval(run: FinishedRun) -> None:
    encoder, everything = quality_figures(run.models, run.facts)
    assert [panel.title for panel in encoder.panels] == ["test", "dev (where the model is chosen)"]
    for panel, part in enumerate(("", "dev_")):
        cells, base = data_of(encoder, panel), models.value(run.full, f"{part}bleu")
        assert base is not None
        compared = 0
        for name in ("encoder.lambda-0.04", "encoder.keep-6", "encoder.greedy-gradient-7"):
            (model,) = models.model_rows(run.models.loc[[name]])
            cell = next(c for c in cells if c.get("model") == model["label"])
            measure, start = f"{part}bleu_difference", base
            tuned = models.against(model, "fine-tuned")
            if models.value(model, f"{measure}_to_fine-tuned") is not None:
                measure += "_to_fine-tuned"
                start = float(run.models.loc[tuned, f"{part}bleu"])
                compared += 1
            low, _ = models.bounds(model, measure)
            assert low is not None and cell["value"] == pytest.approx(
                model[f"{part}bleu"], abs=1e-3
            )
            assert cell["low"] == pytest.approx(start + low, abs=1e-3)
            assert abs(cell["x"] - model["kept"]) <= 0.2
        assert compared == (0 if part else 1)  # made for test only
        assert {c["control"] for c in cells if "control" in c} == {
            "random heads",
            "same layout from scratch",
            "narrower model",
            "best head of each layer",
        }
        names = {c["name"] for c in cells if "name" in c}
        assert names == {
            "full model",
            "equal further training",
            *(["allowed loss"] if part else []),
        }
    assert (
        "Not in these panels, as they lose more: " in encoder.facts
        and "Chosen" not in everything.facts
    )


def test_marks_of_as_many_heads_do_not_cover_each_other(run: FinishedRun) -> None:
    cells = {
        c["model"]: c["x"]
        for c in data_of(quality_figures(run.models, run.facts)[0])
        if c.get("kept") == 12 and c.get("sort") == "learned"
    }
    assert len(cells) == 3 == len(set(cells.values())) and all(
        abs(x - 12) <= 0.2 for x in cells.values()
    )


def test_random_orders_are_a_range_and_a_mean(run: FinishedRun) -> None:
    by_score, by_kind = greedy_figures(run.models)
    values = [m["bleu"] for m in run.pruned if m["method"] == "greedy.random" and m["kept"] == 12]
    cell = next(c for c in data_of(by_score) if c["line"] == "random orders" and c["kept"] == 12)
    assert (cell["low"], cell["high"]) == pytest.approx((min(values), max(values)))
    assert cell["value"] == pytest.approx(sum(values) / 3) and cell["removed"] == 50
    assert {c["value"] for c in data_of(by_score) if c["removed"] == 0} == {38.2}
    assert {c["line"] for c in data_of(by_kind)} == {"encoder heads", "attention heads"}


def test_figures_9_and_10_count_what_layouts_keep(run: FinishedRun) -> None:
    content = kept_heads.kept_heads_section(run)
    assert content is not None
    shares = {(c["name"], c["removed"]): c["left"] for c in data_of(content["by_kind"])}
    for counts in JOINT.values():
        gone = round(100 * (1 - sum(counts) / 72), 2)
        got = [shares[kind, gone] for kind in ("encoder-self", "decoder-self", "cross")]
        assert got == pytest.approx([100 * count / 24 for count in counts], abs=0.01)
    mask = run.layouts["all.lambda-0.02"]
    lowest = sum(h.kind == "decoder-self" and h.layer == 0 for h in mask.kept)
    gone = round(100 * (1 - mask.count("decoder-self") / 24), 2)
    found = [
        c["text"]
        for c in data_of(content["decoder"])
        if c["name"] == kept_heads.THIRDS[0] and c["removed"] == gone
    ]
    assert set(found) == {f"{lowest} of 8"} and len(content["decoder"].panels) == 4


def test_the_papers_numbers_add_up() -> None:
    """The rows of figure 10 sum to the decoder's counts of figure 9: read twice from two pictures."""
    kinds, thirds = (
        pd.read_csv(kept_heads.PAPERS / f"voita2019_{name}.csv") for name in ("kinds", "layers")
    )
    for kind in ("decoder-self", "cross"):
        sums = thirds[thirds["kind"] == kind][list(kept_heads.THIRDS)].sum(axis=1).tolist()
        assert sums == kinds.loc[kinds["model"] == "WMT", kind].tolist()


def test_target_counts_for_each_kind_say_nothing_about_kinds(tmp_path: Path) -> None:
    folder = write_sweeps(make_run(tmp_path))
    facts = json.loads((folder / "run.json").read_text())
    for name, fact in facts["settings"].items():
        if name.startswith("all."):
            fact["keep"] = {"encoder-self": 4, "decoder-self": 4, "cross": 6}
    (folder / "run.json").write_text(json.dumps(facts))
    content = kept_heads.kept_heads_section(read_run(folder))
    assert content is not None and (content["by_kind"], content["decoder"]) == (None, None)


def test_table_2(run: FinishedRun) -> None:
    _, table = cost.compared_tables(run)
    whole, *rows = [row.cells for row in table.rows]
    assert table.columns[1] == "enc/dec/cross" and whole[:4] == [
        "full model",
        "24/24/24",
        "72",
        "38.20",
    ]
    assert [cells[1] for cells in rows] == ["/".join(map(str, counts)) for counts in JOINT.values()]
    assert all(cells[5].startswith("+0.50 [+0.10, +0.90]\np\u00a0= 0.010") for cells in rows)


def test_controls_are_counted_and_every_pruned_model_has_its_equal_training(
    run: FinishedRun,
) -> None:
    content = cost.build_controls(run)
    assert content is not None
    counts = {row.cells[0]: row.cells[1:4] for row in content["counts"].rows}
    assert counts["Random heads"] == ["2", "0", "0"] and counts["Narrower model"] == ["0", "0", "2"]
    rows = {
        (row.cells[0].replace("\u00a0", " "), row.cells[1]): row.cells
        for row in content["compared"].rows
    }
    with_tuning = [model for model, control in rows if control == "fine-tuned, not pruned"]
    assert len(with_tuning) == len(GATES) + len(JOINT)
    (model,) = models.model_rows(run.models.loc[["encoder.lambda-0.04"]])
    cells = rows["encoder: λ = 0.04", "fine-tuned, not pruned"]
    assert cells[5] == models.difference_text(
        model, "bleu_difference_to_fine-tuned", "p_value_to_fine-tuned"
    )
    assert rows["encoder: λ = 0.04", "random heads"][5] == "+0.90 [+0.50, +1.30]\np\u00a0= 0.001"


def test_what_the_interval_and_p_do_not_both_say_is_not_distinguishable(tmp_path: Path) -> None:
    folder = write_sweeps(tmp_path)
    table = pd.read_csv(folder / "pruning.csv")
    table.loc[(table["measure"] == "p_value_to_pruned") & (table["value"] < 0.05), "value"] = 0.12
    table.to_csv(folder / "pruning.csv", index=False)
    content = cost.build_controls(read_run(folder))
    assert content is not None
    assert next(
        row.cells[1:4] for row in content["counts"].rows if row.cells[0] == "Random heads"
    ) == ["0", "0", "2"]


def test_without_test_text_tables_are_of_dev_and_say_so(tmp_path: Path) -> None:
    folder = write_sweeps(tmp_path)
    table = pd.read_csv(folder / "pruning.csv")
    table[~table["measure"].str.match("bleu|p_value")].to_csv(folder / "pruning.csv", index=False)
    for path in (folder / "layouts").iterdir():
        path.unlink()
    run = read_run(folder)
    assert cost.models_table(run).columns[2] == "dev BLEU"
    content = collect(run)
    assert all(
        figure.title.startswith("BLEU on dev")
        for figure in figures_in([content["cost"]["quality"], content["cost"]["greedy"]])
    )
    assert "are on dev text (no test text was measured)" in render(run, content)


def test_gate_health_and_notes(run: FinishedRun) -> None:
    table = gate_history.health_table(run)
    assert table is not None and len(table.rows) == len(GATES) + len(JOINT)
    cells = next(row.cells for row in table.rows if row.cells[0].endswith("0.32"))
    assert cells[1:] == ["1 of 24", "20\u202f%", "1.2", "no", "2.0180", "2.0200", "2.0200"]
    notes = gate_history.pruning_notes(run)
    assert [n for n in notes if "frozen" in n] == ["The decoder was frozen."]
    assert any(re.match("encoder: λ\u00a0=\u00a00.32: 20 %", note) for note in notes)


def test_no_chart_names_a_colour(run: FinishedRun, whole: Path) -> None:
    for found in (run, read_run(whole)):
        for figure in figures_in(list(collect(found).values())):
            for panel in figure.panels:
                specification = panel.specification()
                del specification["datasets"]
                assert not re.search(
                    r"#[0-9a-fA-F]{3,8}\b|rgb\(", json.dumps(specification, allow_nan=False)
                ), figure.name


WORDS = st.lists(st.sampled_from(["le", "chien", "voit", "la", "lettre"]), max_size=8).map(" ".join)


@given(WORDS, WORDS)
def test_pieces_put_together_are_the_sentences(one: str, other: str) -> None:
    left, right = word_differences(one, other)
    assert (" ".join(p.text for p in left), " ".join(p.text for p in right)) == (one, other)
    assert [p.text for p in left if not p.differs] == [p.text for p in right if not p.differs]


def test_only_what_differs_is_marked() -> None:
    left, right = word_differences("le chien voit la lettre", "le chat voit une lettre")
    assert [(p.text, p.differs) for p in left] == [
        ("le", False),
        ("chien", True),
        ("voit", False),
        ("la", True),
        ("lettre", False),
    ]
    assert [p.text for p in right if p.differs] == ["chat", "une"]
    assert similarity("a b", "a  b") == 1
    assert similarity("a b", "c d") == 0


def test_some_unchanged_then_the_most_changed(run_folder: Path) -> None:
    run = read_run(run_folder)
    chosen = choose_examples(run)
    assert chosen is not None
    assert [example.same for example in chosen.shown] == [True] * 3 + [False] * 5
    full, pruned = run.translations["full"], run.translations["lambda-0.05"]
    alike = [similarity(a, b) for a, b in zip(full, pruned, strict=True)]
    shown = [alike[example.number - 1] for example in chosen.shown[3:]]
    assert shown == sorted(alike)[:5]
    assert (chosen.total, chosen.same) == (
        60,
        sum(a == b for a, b in zip(full, pruned, strict=True)),
    )
    assert choose_examples(run) == chosen


@pytest.mark.parametrize("name", ["source", "full", "lambda-0.05"])
def test_nothing_to_show_when_a_side_is_missing(run_folder: Path, name: str) -> None:
    (run_folder / "translations" / "test" / f"{name}.txt").unlink()
    assert choose_examples(read_run(run_folder)) is None


def test_models_that_were_not_saved_have_their_weights_in_memory(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    table = pd.read_csv(folder / "pruning.csv")
    weights = table[table["measure"] == "parameters"]
    in_memory = weights.assign(measure="memory", value=4 * weights["value"])
    unsaved = (table["measure"] == "bytes") & (table["setting"] == "lambda-0.2")
    pd.concat([table[~unsaved], in_memory]).to_csv(folder / "pruning.csv", index=False)
    run = read_run(folder)
    shown = cost.models_table(run)
    assert shown is not None and "size on disk" not in shown.columns
    at = shown.columns.index("weights in memory")
    assert [row.cells[at] for row in shown.rows][::3] == ["37.9\u202fMB", "36.6\u202fMB"]
    page = render(run, collect(run))
    assert "p is that of the difference" in page  # a column of the table
    assert "the full model trained on for as many steps" not in page  # nothing was trained on
