"""The papers' claims, and what a run says of each: numbers of its own tables, and a verdict that they carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks.papers import claims as paper_claims
from benchmarks.papers.claims import (
    CONTRADICTS,
    IN_PART,
    NOT_REACHED,
    NOT_TESTED,
    SUPPORTS,
    UNSURE,
)

from faces.report.conftest import data_of
from faces.report.made import cells, change, make_language, make_run, without
from faces.report.made_sweeps import write_sweeps
from headwise.core.heads import Site
from headwise.faces.report.page import collect, render
from headwise.faces.report.run_folder import RunContents, read_run


def verdicts(run: RunContents) -> dict[str, tuple[str, str]]:
    """Of each claim what was found here, and the verdict."""
    found = paper_claims.claims_table(run)
    assert found is not None and found.columns == ["claim", "theirs", "here", "verdict"]
    return {row.cells[0]: (row.cells[2], row.cells[3]) for row in found.rows}


def verdict_of(run: RunContents, start: str) -> tuple[str, str]:
    (found,) = (said for claim, said in verdicts(run).items() if claim.startswith(start))
    return found


def test_every_claim_has_a_row_and_its_place_in_a_paper(run: RunContents) -> None:
    found = verdicts(run)
    assert len(found) == len(paper_claims.ASK) == 12
    assert all("Voita" in claim or "Michel" in claim for claim in found)
    known = {SUPPORTS, CONTRADICTS, NOT_REACHED, IN_PART, UNSURE, NOT_TESTED, "none found"}
    assert {said for _, said in found.values()} <= known


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((-0.14, 0.11), SUPPORTS),
        ((-0.64, -0.01), SUPPORTS),  # a loss that shows, and is within 0.5 of the paper's own 0.15
        ((-0.71, 0.11), UNSURE),
        ((-1.71, -0.64), UNSURE),
        ((-1.71, 0.61), UNSURE),
        ((-1.71, -0.66), NOT_REACHED),  # by this training: no contradiction
    ],
)
def test_most_encoder_heads_go_for_little_where_the_interval_says_so(
    tmp_path: Path, ends: tuple[float, float], said: str
) -> None:
    half = ["lambda-0.05", "lambda-0.2"]

    def lost(table: pd.DataFrame) -> pd.DataFrame:
        p = 0.001 if ends[1] < 0 else 0.5
        return cells((-0.31, *ends, p), setting=half, measure="bleu", reference="full")(table)

    folder = make_run(tmp_path, {"pruning.csv": lost})
    here, found = verdict_of(read_run(folder), "Most encoder heads")
    assert found == said and f"[{ends[0]:+.2f}".replace("-", "−") in here
    change(folder, {"pruning.csv": without(setting=half)})
    assert verdict_of(read_run(folder), "Most encoder heads")[1] == NOT_TESTED


def test_the_best_model_is_chosen_by_other_text_than_the_one_it_is_reported_on(
    tmp_path: Path,
) -> None:
    """The better one of two by noise would be that of test; dev prefers the other."""
    half = ["lambda-0.05", "lambda-0.2"]

    def lost(table: pd.DataFrame) -> pd.DataFrame:
        for setting, on_test, on_dev in ((half[0], -0.1, 30.0), (half[1], -0.6, 36.0)):
            test: dict[str, Any] = {
                "setting": [setting],
                "measure": "bleu",
                "reference": "full",
                "split": "test",
            }
            dev: dict[str, Any] = {
                "setting": [setting],
                "measure": "bleu",
                "reference": None,
                "split": "dev",
            }
            table = cells((on_test, on_test - 0.1, on_test + 0.1, 0.5), **test)(table)
            table = cells((on_dev, on_dev - 1, on_dev + 1, None), **dev)(table)
        return table

    here, _ = verdict_of(read_run(make_run(tmp_path, {"pruning.csv": lost})), "Most encoder heads")
    assert "−0.6" in here


def test_every_class_of_heads_is_counted(run: RunContents) -> None:
    assert verdict_of(run, "Positional, syntactic") == ("3, 3, 1 of 24", SUPPORTS)


def test_heads_with_roles_are_counted_and_compared_with_the_others(run: RunContents) -> None:
    having, others = paper_claims.encoder_heads_with_roles(run) or (set(), set())
    assert (len(having), len(others)) == (6, 18)
    learned = [model for model in run.pruned if model["learned"]]
    kept = set(run.layouts[min(learned, key=lambda model: model["kept"])["setting"]].kept)
    here, _ = verdict_of(run, "Heads with a role stay")
    assert f"{len(having & kept)} of 6 with a role and {len(others & kept)} of 18 others" in here
    assert "6 heads with a role" in verdict_of(run, "Relevance and confidence")[0]


def test_a_score_that_follows_the_layer_marks_no_head(tmp_path: Path) -> None:
    """All heads with a role but one are in the last layer, where every head is confident: over all heads confidence
    tells them from the others, and among the heads of a layer it does not."""
    able = [(2, head) for head in range(6)] + [(1, 0)]

    def confident(table: pd.DataFrame) -> pd.DataFrame:
        rows = (table["kind"] == "encoder-self") & table["measure"].str.match("confidence|lrp")
        last = table["layer"] == 2
        # within the layers the heads with a role have the lowest values
        return table.assign(value=table["value"].mask(rows, last + table["head"] / 100))

    def roles(table: pd.DataFrame) -> pd.DataFrame:
        first = table.iloc[:1]
        return pd.concat([first.assign(layer=layer, head=head) for layer, head in able])

    changed = {"heads.csv": confident, "roles/roles.csv": roles}
    here, verdict = verdict_of(read_run(make_run(tmp_path, changed)), "Relevance and confidence")
    assert verdict == CONTRADICTS
    assert here.count("within layers") == 1 and here.count("0 of 19 pairs, 0.00") == 2
    assert here.count("(over all heads 0.76") == 2


def test_what_carries_no_verdict(tmp_path: Path) -> None:
    """A model that does not translate supports and contradicts nothing; nor do roles where no head has one."""
    bad = make_run(
        tmp_path / "bad", {"pruning.csv": cells(3.1, setting="full", split="test", measure="bleu")}
    )
    said = {said for _, said in verdicts(read_run(bad)).values()}
    assert said == {paper_claims.NO_TRANSLATOR, NOT_TESTED}
    roles = {
        "roles/roles.csv": without(kind="encoder-self"),
        "roles/labels.csv": cells({"label": "no known role"}),
    }
    without_roles = read_run(make_run(tmp_path / "none", roles))
    for start in ("Relevance and confidence", "Heads with a role stay"):
        assert verdict_of(without_roles, start) == ("no encoder head has a role", NOT_TESTED)
    assert paper_claims.paper_claims_section(read_run(make_language(tmp_path / "language"))) is None


def test_all_kinds_scratch_and_greedy_models_are_asked(swept: RunContents) -> None:
    for start in ("Encoder heads are removed first", "Pruned is better", "A fifth of the heads"):
        here, said = verdict_of(swept, start)
        assert said != NOT_TESTED and not here.startswith("needs"), start
    assert " of 72 by gradient: BLEU " in here  # not the sweep of encoder heads alone


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((0.5, 1.1), SUPPORTS),
        ((-0.5, -1.1), CONTRADICTS),
        ((-0.5, 0.1), CONTRADICTS),
        ((-0.5, 1.1), IN_PART),
        ((0.5, 0.1), UNSURE),
    ],
)
def test_pruned_is_better_than_from_scratch_where_it_is_above(
    tmp_path: Path, differences: tuple[float, float], said: str
) -> None:
    """With the reference `pruned` a control says how much the pruned model is above it."""
    settings = [f"encoder.lambda-{penalty}.from-scratch" for penalty in ("0.04", "0.16")]

    def compared(table: pd.DataFrame) -> pd.DataFrame:
        scratch = table["setting"].str.endswith(".from-scratch")
        table = table[~scratch | table["setting"].isin(settings)]
        for setting, value in zip(settings, differences, strict=True):
            p = 0.01 if abs(value) > 0.4 else 0.6
            change = (value, value - 0.4, value + 0.4, p)
            table = cells(change, setting=setting, reference="pruned")(table)
        return table

    folder = change(write_sweeps(tmp_path), {"pruning.csv": compared})
    here, found = verdict_of(read_run(folder), "Pruned is better")
    assert found == said
    assert here.startswith("pruned minus from scratch: encoder.lambda-0.04 ")
    assert f" {differences[0]:+.2f} [".replace("-", "−") in here


def with_scores(folder: Path, measure: str, rows: list[tuple[Any, ...]]) -> RunContents:
    """The base run with more scores: kind, layer, head, value and the ends of its interval."""
    names = ["kind", "layer", "head", "value", "low", "high"]
    more = pd.DataFrame(rows, columns=names).assign(measure=measure, n=200)
    return read_run(make_run(folder, {"heads.csv": lambda table: pd.concat([table, more])}))


@pytest.mark.parametrize(
    ("changed", "half", "said"),
    [(3, 0.2, SUPPORTS), (3, 0.9, UNSURE), (13, 0.2, CONTRADICTS)],
)
def test_heads_that_change_bleu_alone_are_counted_both_ways(
    tmp_path: Path, changed: int, half: float, said: str
) -> None:
    rows: list[tuple[Any, ...]] = [("cross", 0, 0, 9.0, 8.0, 10.0)]  # not an encoder head
    for number in range(24):
        value = 0.0 if number >= changed else 2.0 if number else -2.0
        rows.append(("encoder-self", *divmod(number, 8), value, value - half, value + half))
    scored = with_scores(tmp_path, "ablation.bleu", rows)
    here, verdict = verdict_of(scored, "Few encoder heads change BLEU")
    assert verdict == said
    assert here.startswith(f"{changed} of 24 change BLEU, 1 for the better")
    assert f"±{half:.2f}" in here


@pytest.mark.parametrize(
    ("last", "said"),
    [((0.8, 0.7, 0.9), IN_PART), ((0.3, 0.1, 0.5), UNSURE), ((0.01, 0.0, 0.02), CONTRADICTS)],
)
def test_the_last_cross_attention_is_compared_by_the_best_head_of_each_layer(
    tmp_path: Path, last: tuple[float, float, float], said: str
) -> None:
    rows: list[tuple[Any, ...]] = []
    for kind in ("encoder-self", "decoder-self", "cross"):
        for layer in range(2):
            ends = last if (kind, layer) == ("cross", 1) else (0.2, 0.15, 0.25)
            rows += [(kind, layer, 0, *ends), (kind, layer, 1, 5.0, 4.0, 6.0)]  # not the best
    scored = with_scores(tmp_path, "ablation.all-but-one", rows)
    here, verdict = verdict_of(scored, "One head is enough")
    assert verdict == said
    assert f"last cross-attention +{last[0]:.2f}" in here and "others +0.20 to +0.20" in here


def test_the_decoders_thirds_come_from_the_smallest_joint_model(swept: RunContents) -> None:
    smallest = paper_claims.smallest_joint(swept)
    assert smallest is not None
    mask = swept.layouts[smallest["setting"]]
    low, high = (len(mask.of(Site("cross", layer))) for layer in (0, 2))
    here, verdict = verdict_of(swept, "Low decoder layers keep")
    assert f"cross-attention {low} in the lowest, {high} in the highest" in here
    lowest, highest = (len(mask.of(Site("decoder-self", layer))) for layer in (0, 2))
    agreeing = (lowest > highest) + (high > low)
    assert verdict == (CONTRADICTS, IN_PART, SUPPORTS)[agreeing]


def test_the_papers_points_are_drawn_around_those_of_the_gates(
    run: RunContents, swept: RunContents, tmp_path: Path
) -> None:
    figure = paper_claims.published_curves(run)
    drawn = data_of(figure)
    ours = {row["kept"]: row["value"] for row in drawn if row.get("data") == paper_claims.THIS_RUN}
    assert ours == {100: 0.0, 70.83: 0.09, 37.5: -0.31, 16.67: -2.44}
    line = "Voita et al., WMT English-Russian"
    theirs = [row["value"] for row in drawn if row.get("data") == line]
    assert -0.15 in theirs and min(theirs) == -1.34  # figure 7, ten heads and two
    both = paper_claims.published_curves(swept)
    assert figure is not None and both is not None
    assert (len(figure.panels), len(both.panels)) == (1, 2)  # heads of all kinds were lost there
    assert paper_claims.published_curves(read_run(make_language(tmp_path))) is None


def test_the_page_has_the_section_where_it_is_declared(run: RunContents) -> None:
    assert "paper_claims" not in collect(run)
    paper_claims.declare()
    page = render(run, collect(run))
    assert "Compared with the papers" in page
    assert "read from its plots" in page
