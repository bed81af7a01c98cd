"""What fewer heads cost: figures, tables of models and controls, layers and kinds; and example translations."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faces.report.conftest import data_of
from faces.report.made import change, make_run
from faces.report.made_sweeps import GATES, JOINT, write_sweeps
from headwise.core.theme import distinct
from headwise.faces.cli.outcome import changed_translations
from headwise.faces.report import cost, gate_history, kept_heads, models
from headwise.faces.report.cost import choose_examples, similarity, word_differences
from headwise.faces.report.page import collect, figures_in
from headwise.faces.report.quality_curves import greedy_figures, quality_figures
from headwise.faces.report.role_charts import GREY
from headwise.faces.report.run_folder import RunContents, read_run


def test_every_model_has_a_point_with_its_interval(swept: RunContents) -> None:
    encoder, everything = quality_figures(swept.model_table, swept.facts)
    removal = greedy_figures(swept.model_table, swept.facts)[0]
    for panel, split in enumerate(("test", "dev")):
        rows, start = data_of(encoder, panel), swept.quality_of(swept.full, split)
        assert not any("greedy" in row.get("line", "") for row in rows)
        assert start.value is not None
        compared = 0
        for name in ("encoder.lambda-0.04", "encoder.keep-6", "encoder.greedy-gradient-7"):
            (model,) = models.model_rows(swept.model_table.loc[[name]])
            every = [*rows, *data_of(removal, panel)]
            cell = next(c for c in every if c.get("model") == model["label"])
            change, base = swept.quality_of(model, split, "full"), start.value
            if swept.quality_of(model, split, "fine-tuned").value is not None:
                change = swept.quality_of(model, split, "fine-tuned")
                tuned = swept.model_table.loc[models.against(model, "fine-tuned"), "numbers"]
                base = tuned.of("bleu", split).value
                compared += 1
            assert change.low is not None
            drawn = [cell["value"], cell["low"]]
            own = swept.quality_of(model, split).value
            assert drawn == pytest.approx([own, base + change.low], abs=1e-3)
            assert abs(cell["x"] - model["kept"]) <= 0.2
        assert compared == (0 if split == "dev" else 1)  # made for test only
        assert len({c["control"] for c in rows if "control" in c}) == 4
        names = {c["name"] for c in rows if "name" in c}
        levels = {"full model", "equal further training"}
        assert names == levels | ({"allowed loss"} if split == "dev" else set())
    assert "Chosen: encoder" in encoder.facts and "Chosen" not in everything.facts


def test_marks_of_as_many_heads_do_not_cover_each_other(swept: RunContents) -> None:
    places = {}
    for row in data_of(quality_figures(swept.model_table, swept.facts)[0]):
        if row.get("kept") == 12 and row.get("sort") == "model":
            places[row["model"]] = row["x"]
    assert len(places) == 3 == len(set(places.values()))
    assert all(abs(x - 12) <= 0.2 for x in places.values())


def test_no_line_goes_to_a_single_model(swept: RunContents) -> None:
    """It would say that models lie between."""

    def has_lines(frame: pd.DataFrame) -> bool:
        layers = quality_figures(frame, swept.facts)[0].panels[0].chart["layer"]
        return any(layer["mark"]["type"] in ("line", "area") for layer in layers)

    gates = swept.model_table[swept.model_table["method"] == "gates"]
    whole = swept.model_table[swept.model_table["method"] == "none"]
    assert has_lines(pd.concat([whole, gates]))
    assert not has_lines(pd.concat([whole, gates.head(1)]))


def test_random_orders_are_a_range_and_a_mean(swept: RunContents) -> None:
    by_score, _, by_kind = greedy_figures(swept.model_table, swept.facts)
    orders = swept.model_table[
        swept.model_table["method"].eq("greedy.random") & swept.model_table["kept"].eq(12)
    ]
    values = list(models.values(orders, "bleu", "test"))
    drawn = data_of(by_score)
    cell = next(c for c in drawn if c.get("line") == "random orders" and c["kept"] == 12)
    ends = [cell["low"], cell["value"], cell["high"]]
    assert ends == pytest.approx([min(values), sum(values) / 3, max(values)])
    started = {c["value"] for c in drawn if c.get("sort") == "full"}
    assert cell["removed"] == 50 and started == {38.2}
    assert {c["line"] for c in data_of(by_kind)} == {"encoder heads", "attention heads"}


def test_kinds_count_what_layouts_keep(swept: RunContents) -> None:
    content = kept_heads.kept_heads_section(swept)
    assert content is not None
    shares = {(c["name"], c["removed"]): c["left"] for c in data_of(content["by_kind"])}
    for counts in JOINT.values():
        gone = round(100 * (1 - sum(counts) / 72), 2)
        got = [shares[kind, gone] for kind in ("encoder-self", "decoder-self", "cross")]
        assert got == pytest.approx([100 * count / 24 for count in counts], abs=0.01)


def test_target_counts_for_each_kind_say_nothing_about_kinds(swept: RunContents) -> None:
    frame = swept.model_table.copy()
    keep = {"encoder-self": 4, "decoder-self": 4, "cross": 6}
    frame["keep"] = [keep if name.startswith("all.") else None for name in frame.index]
    content = kept_heads.kept_heads_section(replace(swept, model_table=frame))
    assert content is not None and content["by_kind"] is None


def test_every_pruned_model_is_compared_with_its_equal_training(swept: RunContents) -> None:
    content = cost.build_controls(swept)
    assert content is not None
    rows = {}
    for row in content["compared"].rows:
        rows[row.cells[0].replace("\u00a0", " "), row.cells[2]] = row.cells
    tuned = [model for model, control in rows if control == "fine-tuned, not pruned"]
    assert len(tuned) == len(GATES) + len(JOINT)
    (model,) = models.model_rows(swept.model_table.loc[["encoder.lambda-0.04"]])
    written = models.tested_text(swept.change_of(model, "fine-tuned"))
    assert rows["encoder: λ = 0.04", "fine-tuned, not pruned"][5] == written


def test_what_the_interval_and_p_do_not_both_say_is_not_distinguishable(tmp_path: Path) -> None:
    """The intervals of both comparisons with random heads exclude 0, their p does not."""

    def unsure(table: pd.DataFrame) -> pd.DataFrame:
        sure = (table["reference"] == "pruned") & (table["p"] < 0.05)
        return table.assign(p=table["p"].mask(sure, 0.12))

    content = cost.build_controls(read_run(change(write_sweeps(tmp_path), {"pruning.csv": unsure})))
    assert content is not None
    counts = {row.cells[0]: row.cells[1:4] for row in content["counts"].rows}
    assert counts["Random heads"] == ["0", "0", "2"]


def test_gate_health_and_notes(swept: RunContents, run: RunContents) -> None:
    log = run.gates["lambda-0.05"]
    logs = {model["setting"]: log for model in swept.pruned if model["learned"]}
    table = gate_history.closing_table(gate_history.gate_histories(replace(swept, gates=logs)))
    assert table is not None and len(table.rows) == len(logs)
    shown = next(row.cells for row in table.rows if row.cells[0].endswith("0.32"))
    assert shown[-5:] == ["5", "no", "2.0180", "2.0200", "2.0200"]
    notes = gate_history.pruning_notes(swept)
    assert [note for note in notes if "frozen" in note] == ["The decoder was frozen."]
    assert any(re.match("encoder: λ\u00a0=\u00a00.32: 20 %", note) for note in notes)


def test_no_chart_names_a_colour(run: RunContents) -> None:
    """But for functions, whose colours are the same on any paper."""
    for figure in figures_in(list(collect(run).values())):
        for panel in figure.panels:
            specification = panel.specification()
            del specification["datasets"]
            text = json.dumps(specification, allow_nan=False)
            for colour in (GREY, *map(distinct, range(50))):
                text = text.replace(colour, "")
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(", text), figure.name


WORDS = st.lists(st.sampled_from(["le", "chien", "voit", "la", "lettre"]), max_size=8).map(" ".join)


@given(WORDS, WORDS)
def test_pieces_put_together_are_the_sentences(one: str, other: str) -> None:
    left, right = word_differences(one, other)
    assert (" ".join(p.text for p in left), " ".join(p.text for p in right)) == (one, other)
    assert [p.text for p in left if not p.differs] == [p.text for p in right if not p.differs]


def test_only_what_differs_is_marked() -> None:
    left, right = word_differences("le chien voit la lettre", "le chat voit une lettre")
    assert [piece.differs for piece in left] == [False, True, False, True, False]
    assert [piece.text for piece in right if piece.differs] == ["chat", "une"]
    assert similarity("a b", "a  b") == 1
    assert similarity("a b", "c d") == 0


def test_of_words_without_blanks_letters_are_marked() -> None:
    """Chinese, Japanese, Thai: a sentence is no single word."""
    one, other = "她没有看到那辆旧红车。", "她看到那辆红色的车。"
    left, right = word_differences(one, other)
    assert "".join(p.text + p.behind for p in left) == one and similarity(one, other) > 0.6
    assert "".join(p.text for p in right if p.differs) == "色的"
    assert similarity("ลูกบอลสีแดง", "ลูกบอลสีดำ") > 0.5
    assert [p.text for p in word_differences("Tokyo 東 is big", "Tokyo is big")[0]] == [
        "Tokyo",
        "東",
        "is big",
    ]


def test_some_unchanged_then_the_most_changed(run: RunContents) -> None:
    chosen = choose_examples(run)
    assert chosen is not None
    assert [example.same for example in chosen.shown] == [True] * 3 + [False] * 5
    full, pruned = run.translations["full"], run.translations["lambda-0.05"]
    alike = [similarity(a, b) for a, b in zip(full, pruned, strict=True)]
    shown = [alike[example.number - 1] for example in chosen.shown[3:]]
    assert shown == sorted(alike)[:5]
    same = sum(a == b for a, b in zip(full, pruned, strict=True))
    assert (chosen.total, chosen.same) == (60, same)
    assert choose_examples(run) == chosen


@pytest.mark.parametrize("name", ["source", "full", "lambda-0.05"])
def test_nothing_to_show_when_a_side_is_missing(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path, {f"translations/test/{name}.txt": None})
    assert choose_examples(read_run(folder)) is None


def test_models_that_were_not_saved_have_their_weights_in_memory(tmp_path: Path) -> None:
    def unsaved(table: pd.DataFrame) -> pd.DataFrame:
        weights = table[table["measure"] == "parameters"]
        gone = (table["measure"] == "bytes") & (table["setting"] == "lambda-0.2")
        in_memory = weights.assign(measure="memory", value=4 * weights["value"])
        return pd.concat([table[~gone], in_memory])

    shown = cost.models_table(
        read_run(make_run(tmp_path, {"pruning.csv": unsaved})).model_table, "test"
    )
    assert shown is not None and "size on disk" not in shown.columns
    at = shown.columns.index("weights in memory")
    assert [row.cells[at] for row in shown.rows][::3] == ["37.9\u202fMB", "36.6\u202fMB"]


def test_translations_of_dev_are_shown_where_there_is_no_test_text(tmp_path: Path) -> None:
    """Of one-sided text, whose reference is what the full model says, without a reference."""
    folder = make_run(tmp_path / "run")
    (folder / "translations" / "test").rename(folder / "translations" / "dev")
    full = (folder / "translations" / "dev" / "full.txt").read_text()
    (folder / "translations" / "dev" / "reference.txt").write_text(full)
    run = read_run(folder)
    examples = choose_examples(run)
    assert examples is not None and examples.split == "dev"
    assert not any(one.reference for one in examples.shown)
    lines = changed_translations(run)
    assert lines[0].startswith("38 of 60 dev translations differ") and len(lines) == 1 + 5 * 3
