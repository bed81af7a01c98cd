"""The papers' claims, and what a run says of each: numbers of its own tables, and a verdict that they carry."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from headwise.heads import Site
from headwise.report import paper_claims
from headwise.report.page import collect
from headwise.report.paper_claims import CONTRADICTS, IN_PART, NOT_TESTED, SUPPORTS, UNSURE
from headwise.report.run_folder import read_run
from report.conftest import data_of
from report.made_language import make_language
from report.made_sweeps import write_sweeps

FIFTH = "A fifth of the heads can be removed without training (Michel, figure 3)"


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    found = paper_claims.claims_table(read_run(folder))
    assert found is not None and found.columns == ["claim", "theirs", "here", "verdict"]
    return {row.cells[0]: (row.cells[2], row.cells[3]) for row in found.rows}


def verdict_of(folder: Path, start: str) -> tuple[str, str]:
    (found,) = (cells for claim, cells in verdicts(folder).items() if claim.startswith(start))
    return found


def change(folder: Path, setting: str, measure: str, value: float, low: float, high: float) -> None:
    table = pd.read_csv(folder / "pruning.csv")
    row = (table["setting"] == setting) & (table["measure"] == measure)
    assert row.sum() == 1
    table.loc[row, ["value", "low", "high"]] = [value, low, high]
    table.to_csv(folder / "pruning.csv", index=False)


def test_every_claim_has_a_row_and_its_place_in_a_paper(whole: Path) -> None:
    found = verdicts(whole)
    assert len(found) == len(paper_claims.CLAIMS)
    assert all("Voita" in claim or "Michel" in claim for claim in found)
    known = {SUPPORTS, CONTRADICTS, IN_PART, UNSURE, NOT_TESTED, "none found"}
    assert {said for _, said in found.values()} <= known
    assert "paper_claims" in collect(read_run(whole))


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((-0.71, 0.11), SUPPORTS),
        ((-0.71, -0.11), SUPPORTS),  # a loss that shows, and may be the paper's own 0.15
        ((-1.71, 0.61), UNSURE),
        ((-1.71, -0.11), UNSURE),
        ((-0.71, -0.21), CONTRADICTS),
    ],
)
def test_most_encoder_heads_go_for_little_where_the_interval_says_so(
    run_folder: Path, ends: tuple[float, float], said: str
) -> None:
    table = pd.read_csv(run_folder / "pruning.csv")
    p = 0.001 if ends[1] < 0 else 0.5
    for setting in ("lambda-0.05", "lambda-0.2"):
        change(run_folder, setting, "bleu_difference", -0.31, *ends)
        change(run_folder, setting, "p_value", p, float("nan"), float("nan"))
    here, found = verdict_of(run_folder, "Most encoder heads")
    assert found == said and f"[{ends[0]:+.2f}".replace("-", "−") in here
    table[~table["setting"].isin(["lambda-0.05", "lambda-0.2"])].to_csv(
        run_folder / "pruning.csv", index=False
    )
    assert verdict_of(run_folder, "Most encoder heads")[1] == NOT_TESTED  # less than half removed


def test_heads_with_roles_are_counted_and_compared_with_the_others(whole: Path) -> None:
    run = read_run(whole)
    assert run.roles is not None
    having, others = paper_claims.encoder_heads_with_roles(run) or (set(), set())
    assert (len(having), len(others)) == (6, 18)
    smallest = min(
        (model for model in run.pruned if model["learned"]), key=lambda model: model["kept"]
    )
    kept = set(run.layouts[smallest["setting"]].kept)
    here, _ = verdict_of(whole, "Heads with a role stay")
    assert f"{len(having & kept)} of 6 with a role and {len(others & kept)} of 18 others" in here
    assert "6 heads with a role" in verdict_of(whole, "Relevance and confidence")[0]


def test_a_model_that_does_not_translate_supports_and_contradicts_nothing(
    whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    table = pd.read_csv(folder / "pruning.csv")
    table.loc[(table["setting"] == "full") & (table["measure"] == "bleu"), "value"] = 3.1
    table.to_csv(folder / "pruning.csv", index=False)
    said = {said for _, said in verdicts(folder).values()}
    assert said == {paper_claims.NO_TRANSLATOR, NOT_TESTED}


def test_where_no_head_has_a_role_the_table_says_so(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    for file in ("roles", "labels"):
        path = folder / "roles" / f"{file}.csv"
        table = pd.read_csv(path)
        if file == "labels":
            table["label"] = "no known role"
        else:
            table = table[table["kind"] != "encoder-self"]
        table.to_csv(path, index=False)
    for start in ("Relevance and confidence", "Heads with a role stay"):
        assert verdict_of(folder, start) == ("no encoder head has a role", NOT_TESTED)


def test_all_kinds_scratch_and_greedy_models_are_asked(tmp_path: Path) -> None:
    found = verdicts(write_sweeps(tmp_path))
    for start in ("Encoder heads are removed first", "Pruned is better", "A fifth of the heads"):
        ((here, said),) = (cells for claim, cells in found.items() if claim.startswith(start))
        assert said != NOT_TESTED and not here.startswith("needs"), start
    assert " of 72 by gradient: BLEU " in found[FIFTH][0]  # not the sweep of encoder heads alone


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
    """`bleu_difference_to_pruned` of a control says how much the pruned model is above it."""
    folder = write_sweeps(tmp_path)
    table = pd.read_csv(folder / "pruning.csv")
    ending = ".from-scratch"
    scratch = table["setting"].str.endswith(ending)
    kept = table["setting"].isin([f"encoder.lambda-{name}{ending}" for name in ("0.04", "0.16")])
    table = table[~scratch | kept]
    for name, difference in zip(("0.04", "0.16"), differences, strict=True):
        setting = table["setting"] == f"encoder.lambda-{name}{ending}"
        row = setting & (table["measure"] == "bleu_difference_to_pruned")
        ends = [difference, difference - 0.4, difference + 0.4]
        table.loc[row, ["value", "low", "high"]] = ends
        chance = setting & (table["measure"] == "p_value_to_pruned")
        table.loc[chance, "value"] = 0.01 if abs(difference) > 0.4 else 0.6
    table.to_csv(folder / "pruning.csv", index=False)
    here, found = verdict_of(folder, "Pruned is better")
    assert found == said
    assert here.startswith("pruned minus from scratch: encoder.lambda-0.04 ")
    assert f" {differences[0]:+.2f} [".replace("-", "−") in here


def test_a_language_model_has_no_such_table(tmp_path: Path) -> None:
    assert "paper_claims" not in collect(read_run(make_language(tmp_path / "run")))


def with_scores(folder: Path, rows: list[tuple[str, int, int, str, float, float, float]]) -> Path:
    """The folder with more rows in heads.csv."""
    names = ["kind", "layer", "head", "measure", "value", "low", "high"]
    more = pd.DataFrame(rows, columns=names).assign(n=200)
    pd.concat([pd.read_csv(folder / "heads.csv"), more]).to_csv(folder / "heads.csv", index=False)
    return folder


@pytest.mark.parametrize(
    ("changed", "half", "said"),
    [(3, 0.2, SUPPORTS), (3, 0.9, UNSURE), (13, 0.2, CONTRADICTS)],
)
def test_heads_that_change_bleu_alone_are_counted_both_ways(
    whole: Path, tmp_path: Path, changed: int, half: float, said: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    rows = []
    for number in range(24):
        value = 0.0
        if number < changed:
            value = 2.0 if number else -2.0
        layer, head = divmod(number, 8)
        rows.append(
            ("encoder-self", layer, head, "ablation.bleu", value, value - half, value + half)
        )
    rows.append(("cross", 0, 0, "ablation.bleu", 9.0, 8.0, 10.0))  # not an encoder head
    here, verdict = verdict_of(with_scores(folder, rows), "Few encoder heads change BLEU")
    assert verdict == said
    assert here.startswith(f"{changed} of 24 change BLEU, 1 for the better")
    assert f"±{half:.2f}" in here


@pytest.mark.parametrize(
    ("last", "said"),
    [((0.8, 0.7, 0.9), IN_PART), ((0.3, 0.1, 0.5), UNSURE), ((0.01, 0.0, 0.02), CONTRADICTS)],
)
def test_the_last_cross_attention_is_compared_by_the_best_head_of_each_layer(
    whole: Path, tmp_path: Path, last: tuple[float, float, float], said: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    rows = []
    for kind in ("encoder-self", "decoder-self", "cross"):
        for layer in range(2):
            ends = last if (kind, layer) == ("cross", 1) else (0.2, 0.15, 0.25)
            rows.append((kind, layer, 0, "ablation.all-but-one", *ends))
            rows.append((kind, layer, 1, "ablation.all-but-one", 5.0, 4.0, 6.0))  # not the best
    here, verdict = verdict_of(with_scores(folder, rows), "One head is enough")
    assert verdict == said
    assert f"last cross-attention +{last[0]:.2f}" in here and "others +0.20 to +0.20" in here


def test_the_decoders_thirds_come_from_the_smallest_joint_model(tmp_path: Path) -> None:
    folder = write_sweeps(tmp_path)
    run = read_run(folder)
    smallest = paper_claims.smallest_joint(run)
    assert smallest is not None
    mask = run.layouts[smallest["setting"]]
    low, high = (len(mask.of(Site("cross", layer))) for layer in (0, 2))
    here, verdict = verdict_of(folder, "Low decoder layers keep")
    assert f"cross-attention {low} in the lowest, {high} in the highest" in here
    lowest, highest = (len(mask.of(Site("decoder-self", layer))) for layer in (0, 2))
    agreeing = (lowest > highest) + (high > low)
    assert verdict == (CONTRADICTS, IN_PART, SUPPORTS)[agreeing]


def test_the_papers_points_are_drawn_around_those_of_the_gates(
    run_folder: Path, tmp_path: Path
) -> None:
    figure = paper_claims.published_curves(read_run(run_folder))
    assert figure is not None
    drawn = data_of(figure)
    ours = {row["share"]: row["value"] for row in drawn if row["line"] == paper_claims.THIS_RUN}
    assert ours == {1.0: 0.0, 0.708333: 0.09, 0.375: -0.31, 0.166667: -2.44}
    theirs = [row["value"] for row in drawn if row["line"] == "Voita et al., WMT English-Russian"]
    assert -0.15 in theirs and min(theirs) == -1.34  # figure 7, ten heads and two
    assert len(figure.panels) == 1  # no model here lost heads of all kinds
    both = paper_claims.published_curves(read_run(write_sweeps(tmp_path)))
    assert both is not None and len(both.panels) == 2
    assert paper_claims.published_curves(read_run(make_language(tmp_path / "language"))) is None
