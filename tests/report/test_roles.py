"""What the report says of roles: sentences and tables from the numbers, the grid, the evidence, the attention maps."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.errors import HeadwiseError
from headwise.heads import HeadMap
from headwise.report.attention_maps import attention_maps
from headwise.report.figure import Figure
from headwise.report.page import draw, render
from headwise.report.role_figures import SORTS, layer_patterns, offsets, rare_tokens
from headwise.report.role_grid import function_grids, in_cell
from headwise.report.roles import decided, in_short, others_left_out, sentences, share_table, syntax_table
from headwise.report.run import Run, read_run
from headwise.report.summary import summarise
from headwise.report.table import Table
from headwise.report.theme import DARK, LIGHT, Palette
from headwise.roles.label import ABOVE_BASELINE, AT_LEAST, labels, patterns, category
from report.made_roles import ROLES
from report.test_figures import channels, contrast, data_of


def role_figures(run: Run) -> list[Figure]:
    some = (layer_patterns(run), offsets(run), rare_tokens(run), attention_maps(run))
    return [*function_grids(run), *(figure for figure in some if figure is not None)]


def without_roles(folder: Path, heads: HeadMap | None = None) -> Run:
    """A run in which no head has a role."""
    heads = heads or HeadMap({"encoder-self": (8, 8, 8)})
    none = pd.read_csv(folder / "roles" / "roles.csv").head(0)
    none.to_csv(folder / "roles" / "roles.csv", index=False)
    labels(heads, none).to_csv(folder / "roles" / "labels.csv", index=False)
    patterns(heads, none).to_csv(folder / "roles" / "patterns.csv", index=False)
    (folder / "roles" / "examples.json").write_text("[]")
    return read_run(folder)


def lines_of(table: Table | None) -> dict[str, list[str]]:
    assert table is not None
    return {line.cells[0]: line.cells[1:] for line in table.lines}


def test_the_sentences(run_folder: Path) -> None:
    told = dict(sentences(read_run(run_folder)))
    assert told["Roles found"].startswith("6 of 24 encoder heads (25\u202f%) have a role; the other 18 do nothing")
    assert "Positional: 3, most clearly encoder-self/0/3, positional −1 (0.97)." in told["Roles found"]
    assert "Coreference: 1, most clearly encoder-self/2/0, coreference (0.68 vs 0.50)." in told["Roles found"]
    assert told["Where they live"] == (
        "Encoder self-attention (layers 0 to 2): positional in layers 0 to 2; syntactic in layers 1 and 2; "
        "rare tokens in layer 0; coreference in layer 2."
    )
    assert told["Beside the paper"] == (
        "Of what Voita et al. (2019) found in the encoders of translation models, this model has a head for the token "
        "before, a head for the token after, heads along nsubj and obj, a head for rare tokens in the first layer and "
        "no known role in most heads; not found: heads along amod and advmod."
    )
    assert told["The text"] == (
        "Of the treebank, 588 of 600 sentences were used (7,629 words; 17\u202f% of them in several pieces, "
        "0.2\u202f% unknown pieces). 12 of 600 sentences of the treebank are too long and were left out. "
        "Too seldom here to be scored: expl and coreference.proper."
    )


def test_one_line_in_the_summary(run_folder: Path) -> None:
    told = {paragraph.lead: paragraph.text for paragraph in summarise(read_run(run_folder)).paragraphs}
    assert told["What the heads do"] == (
        "6 of 24 encoder heads have a role that two halves of text confirm (positional 3, syntactic 3, rare tokens 1 "
        "and coreference 1; the clearest: positional −1 (0.97) at encoder-self/0/3)."
    )


def test_no_role_is_told_and_drawn(run_folder: Path) -> None:
    run = without_roles(run_folder)
    told = dict(sentences(run))
    assert told["Roles found"] == "No encoder head of 24 has a role that holds on both halves of the text."
    assert (
        "this model has no known role in most heads; not found: a head for the token before" in told["Beside the paper"]
    )
    assert "Where they live" not in told
    assert in_short(run).startswith("0 of 24 encoder heads have a role")
    names = [figure.name for figure in role_figures(run)]
    assert names == ["functions-encoder-self", "offsets", "rare-tokens"]
    grid, where, rare = role_figures(run)
    assert grid.title == "Encoder self-attention: 0 of 24 heads have a role"
    assert where.title == "No head is positional; the nearest" and len(where.panels) == 3
    assert rare.title == "No head looks at rare tokens; the nearest"
    assert "What each head does" in render(run, draw(run))


def test_without_the_folder_there_is_no_section(run_folder: Path) -> None:
    shutil.rmtree(run_folder / "roles")
    run = read_run(run_folder)
    assert run.roles is None
    page = render(run, draw(run))
    assert "What each head does" not in page and 'href="#roles"' not in page and "What the heads do" not in page
    assert role_figures(run) == [] and sentences(run) == []
    assert (syntax_table(run), share_table(run), decided(run), others_left_out(run)) == (None, None, "", 0)


@pytest.mark.parametrize(
    "name", ["table.csv", "roles.csv", "labels.csv", "patterns.csv", "facts.json", "examples.json"]
)
def test_a_folder_that_is_not_whole_is_refused(run_folder: Path, name: str) -> None:
    (run_folder / "roles" / name).unlink()
    with pytest.raises(HeadwiseError, match=rf"roles has no {name}: run the stage of roles again"):
        read_run(run_folder)
    (run_folder / "roles" / name).write_text("3")
    with pytest.raises(HeadwiseError, match=name):
        read_run(run_folder)


def test_the_grid_has_every_head_and_every_role_once(run_folder: Path) -> None:
    (grid,) = function_grids(read_run(run_folder))
    cells = [row for row in data_of(grid) if "rank" in row]
    assert len({cell["address"] for cell in cells}) == 24
    written = {(c["address"], c["role"], c["score"]) for c in cells if c["role"]}
    expected = {
        (f"encoder-self/{layer}/{head}", in_cell(measure), f"{value:.2f}")
        for (layer, head, measure), value in ROLES.items()
        if not (layer == 2 and head == 0 and measure.startswith("syntactic.nmod"))  # a fourth role has no room
    }
    assert written == expected
    assert {cell["head"] for cell in cells if cell["address"] == "encoder-self/2/0"} == {"h0 · 1 more"}
    assert {cell["rank"] for cell in cells if cell["address"] == "encoder-self/0/6"} == {1}
    assert "the head of highest LRP-Ding first" in grid.note
    for layer in range(3):
        assert sorted({cell["rank"] for cell in cells if cell["layer"] == layer}) == list(range(1, 9))


def test_parts_of_cells_lie_below_one_another_and_layers_too(run_folder: Path) -> None:
    (grid,) = function_grids(read_run(run_folder))
    cells = [row for row in data_of(grid) if "rank" in row]
    parts = sorted((c["top"], c["bottom"]) for c in cells if c["address"] == "encoder-self/2/0")
    assert len(parts) == 3
    assert all(above[1] <= below[0] for above, below in pairwise(parts))
    for layer in range(2):
        here, after = ([c for c in cells if c["layer"] == one] for one in (layer, layer + 1))
        assert max(c["foot"] for c in here) < min(c["top"] for c in after)


def test_without_relevance_heads_stand_by_confidence_or_by_their_numbers(run_folder: Path) -> None:
    scores = pd.read_csv(run_folder / "heads.csv")
    scores[scores["measure"] == "confidence"].to_csv(run_folder / "heads.csv", index=False)
    (grid,) = function_grids(read_run(run_folder))
    assert "the head of highest confidence first" in grid.caption
    (run_folder / "heads.csv").unlink()
    (grid,) = function_grids(read_run(run_folder))
    assert "heads by their numbers" in grid.caption
    assert all(row["rank"] == int(row["head"][1]) + 1 for row in data_of(grid) if "rank" in row)


def test_many_heads_are_coloured_but_not_written_on(run_folder: Path) -> None:
    (grid,) = function_grids(without_roles(run_folder, HeadMap({"decoder-self": (32,) * 4})))
    assert grid.panels[0].narrowest < 400
    assert "mark_text" not in str(grid.panels[0].chart) and '"text"' not in json.dumps(grid.specification()["concat"])
    told = dict(sentences(read_run(run_folder)))
    assert "Beside the paper" not in told  # it is about encoders


@pytest.mark.parametrize(
    ("measure", "text"),
    [("positional.-1", "−1"), ("positional.0", "0"), ("positional.2", "+2"), ("syntactic.obj.to-governor", "obj→"),
     ("syntactic.obj.to-dependent", "→obj"), ("rare.two-rarest", "rare"), ("coreference", "coref"), ("sink", "sink"),
     ("duplicate-token", "duplicate")],
)  # fmt: skip
def test_roles_in_few_letters(measure: str, text: str) -> None:
    assert in_cell(measure) == text


def test_the_best_head_of_each_relation_against_its_baseline(run_folder: Path) -> None:
    run = read_run(run_folder)
    lines = lines_of(syntax_table(run))
    assert list(lines) == [
        "nsubj→verb", "verb→nsubj", "obj→verb", "verb→obj", "amod→noun", "noun→amod", "advmod→verb", "verb→advmod",
        "det→noun", "nmod→governor",
    ]  # fmt: skip
    assert lines["obj→verb"] == ["encoder-self/1/5", "0.84\n[0.81, 0.87]", "0.46", "+0.38", "812", "yes"]
    assert lines["det→noun"][0] == "encoder-self/2/0"
    assert lines["amod→noun"][3].startswith("−") and lines["amod→noun"][5] == "no"
    table = pd.read_csv(run_folder / "roles" / "table.csv")
    best = table[table["measure"] == "syntactic.obj.to-dependent"]["value"].max()
    assert lines["verb→obj"][1].startswith(f"{best:.2f}")
    assert others_left_out(run) == 2  # noun→det and governor→nmod


def test_shares_beside_the_papers(run_folder: Path) -> None:
    table = share_table(read_run(run_folder))
    assert table is not None
    assert table.columns[1:] == ["encoder heads", "Voita et al., EN-RU", "Voita et al., EN-DE", "Voita et al., EN-FR"]
    lines = lines_of(table)
    assert lines["Positional"] == [
        "12\u202f%\n3 of 24",
        "10\u202f%\n5 of 48",
        "10\u202f%\n5 of 48",
        "8\u202f%\n4 of 48",
    ]
    assert lines["Coreference"][1:] == ["–", "–", "–"]
    assert [cell.split("\n")[0] for cell in lines["No known role"]] == [f"{x}\u202f%" for x in (75, 71, 69, 75)]


def test_how_roles_are_decided(run_folder: Path) -> None:
    told = decided(read_run(run_folder))
    assert "positional 0.9 of the tokens at one offset" in told and "rare tokens 0.5)" in told
    assert "syntactic and coreference 10 points above the baseline" in told and "sink" not in told
    assert "One half of the documents finds roles" in told and "at most 5\u202f%" in told
    path = run_folder / "roles" / "facts.json"
    facts = json.loads(path.read_text())
    facts["signature"] = {"bar": {"margin": 0.2, "relative": True, "rate": 0.01}, "confirmed_on": "pud.conllu"}
    path.write_text(json.dumps(facts))
    told = decided(read_run(run_folder))
    assert "20 % of it above the baseline" in told and "at most 1\u202f%" in told
    assert "The text finds roles" in told and "pud.conllu confirms them" in told


def test_offsets_of_positional_heads(run_folder: Path) -> None:
    figure = offsets(read_run(run_folder))
    assert figure is not None
    assert [panel.title for panel in figure.panels] == [
        "encoder-self/0/3 · −1: 0.97", "encoder-self/1/2 · +1: 0.94", "encoder-self/2/4 · −1: 0.93",
    ]  # fmt: skip
    bars = [row for row in data_of(figure) if "offset" in row]
    assert [bar["offset"] for bar in bars] == ["−3", "−2", "−1", "0", "+1", "+2", "+3"]
    assert [bar["value"] for bar in bars if bar["which"] == "highest"] == [0.97]


def test_rare_tokens_have_their_baseline_and_the_best_head_first(run_folder: Path) -> None:
    figure = rare_tokens(read_run(run_folder))
    assert figure is not None and figure.title == "1 head looks at rare tokens"
    rows = [row for row in data_of(figure) if row.get("which") == "one of the two rarest"]
    assert len(rows) == 9 and {row["baseline"] for row in rows} == {0.13}
    assert max(rows, key=lambda row: row["value"])["address"] == "encoder-self/0/6"


def test_layer_patterns_count_heads(run_folder: Path) -> None:
    figure = layer_patterns(read_run(run_folder))
    assert figure is not None and "Heads of several sorts count for each: 2." in figure.caption
    counts = {(row["layer"], row["sort"]): row["heads"] for row in data_of(figure)}
    assert counts[0, "no known role"] == 6 and counts[2, "syntactic"] == 2 and counts[1, "positional"] == 1


def test_words_of_the_text_stay_words(run_folder: Path) -> None:
    run = read_run(run_folder)
    page = render(run, draw(run))
    assert '"cat"</script>' not in page.replace("\\u003c", "<").split("<script")[0]
    charts = re.search(r'id="charts">(.*?)</script>', page, flags=re.DOTALL)
    assert charts is not None
    found: dict[str, Any] = json.loads(charts[1])
    assert {"functions-encoder-self-0", "attention-maps-3", "offsets-2", "rare-tokens-0"} <= set(found)


def test_figures_are_written_and_name_no_colour(run_folder: Path, tmp_path: Path) -> None:
    figures = role_figures(read_run(run_folder))
    for figure in figures:
        figure.save(tmp_path)
        for panel in figure.panels:
            specification = panel.specification()
            del specification["datasets"], specification["config"]
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(", json.dumps(specification)), figure.name
    assert len(list(tmp_path.glob("*.png"))) == len(figures) == 5


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_sort_of_role_has_a_colour_of_its_own_that_can_be_written_on(palette: Palette) -> None:
    colours = [palette.accent, palette.quiet, palette.second, *palette.sorts]
    assert len(set(colours)) == len(colours) == len(SORTS)
    assert {category(measure) for measure in (*AT_LEAST, *ABOVE_BASELINE)} <= set(SORTS)
    for colour in [palette.accent, palette.second, *palette.sorts]:
        assert contrast(channels(palette.on_high), channels(colour)) > 4.5
