"""The opening sentences: right numbers, and no claim that the numbers do not carry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.report.run import read_run
from headwise.report.summary import Summary, summarise


def told(folder: Path) -> dict[str, str]:
    return {paragraph.lead: paragraph.text for paragraph in summarise(read_run(folder)).paragraphs}


def set_fact(folder: Path, **facts: Any) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def set_measure(folder: Path, setting: str, measure: str, **cells: float) -> None:
    table = pd.read_csv(folder / "pruning.csv")
    row = (table["setting"] == setting) & (table["measure"] == measure)
    assert row.sum() == 1
    for column, value in cells.items():
        table.loc[row, column] = value
    table.to_csv(folder / "pruning.csv", index=False)


def test_savings_come_first_then_the_cost(run_folder: Path) -> None:
    summary = summarise(read_run(run_folder))
    assert isinstance(summary, Summary)
    assert summary.headline == "15 of 24 encoder heads removed; no measurable change in BLEU"
    assert [tile.label for tile in summary.tiles] == ["Parameters", "Size on disk", "Decoding speed", "BLEU on test"]
    assert summary.tiles[0].value == "−2.6\u202f%"
    assert [p.lead for p in summary.paragraphs] == [
        "What was saved",
        "What it cost",
        "How it was chosen",
        "What is left",
        "Which score to believe",
        "What the heads do",
    ]


def test_the_sentences(run_folder: Path) -> None:
    text = told(run_folder)
    assert "small part of a Transformer" in text["What was saved"]
    assert "9,472,512 to 9,226,272 parameters (−2.6\u202f%)" in text["What was saved"]
    assert "not to be counted on" in text["What was saved"]
    assert (
        "38.21 to 37.90: −0.31 (95 % interval [−0.71, +0.11], paired bootstrap, p\u00a0= 0.14)" in text["What it cost"]
    )
    assert "can be chance" in text["What it cost"]
    assert "has 9 heads, the fewest of those that lose at most 1 BLEU on dev" in text["How it was chosen"]
    assert "−2.62 with 4 heads" in text["How it was chosen"]
    assert text["What is left"].endswith(
        "Encoder self-attention, from the first layer to the last: 3, 2 and 4 of 8 heads."
    )


def test_the_score_to_believe_in_one_sentence(run_folder: Path) -> None:
    assert told(run_folder)["Which score to believe"] == (
        "Gradient: removing heads in its order costs 0.31 nats a token on average (random orders: 0.80) and its rank "
        "correlation with exact ablation is 0.71 (of the ablation with itself: 0.93)."
    )
    set_fact(run_folder, chosen=None)
    assert list(told(run_folder)) == ["Pruning", "Which score to believe", "What the heads do"]


def test_a_real_loss_is_called_real(run_folder: Path) -> None:
    set_measure(run_folder, "lambda-0.05", "p_value", value=0.0)
    text = told(run_folder)["What it cost"]
    assert "p\u00a0< 0.001" in text
    assert "it is real" in text


def test_speeds_whose_intervals_overlap_are_no_gain(run_folder: Path) -> None:
    set_measure(run_folder, "full", "tokens_per_second", low=1190.0, high=1230.0)
    set_measure(run_folder, "lambda-0.05", "tokens_per_second", low=1220.0, high=1240.0)
    assert "no real gain can be claimed" in told(run_folder)["What was saved"]


def test_a_large_speed_gain_stands_without_a_warning(run_folder: Path) -> None:
    set_measure(run_folder, "lambda-0.05", "tokens_per_second", value=2000.0)
    assert "counted on" not in told(run_folder)["What was saved"]


def test_a_choice_that_the_numbers_do_not_explain_is_not_explained(run_folder: Path) -> None:
    set_fact(run_folder, chosen="lambda-0.02")
    text = told(run_folder)["How it was chosen"]
    assert "the fewest" not in text
    assert "run.json names λ\u00a0=\u00a00.02" in text


def test_a_price_that_is_no_chance_is_in_the_headline(run_folder: Path) -> None:
    set_measure(run_folder, "lambda-0.05", "bleu_difference", low=-0.6, high=-0.1)
    assert summarise(read_run(run_folder)).headline == "15 of 24 encoder heads removed for 0.3 BLEU"


def test_better_bleu_is_not_called_a_price(run_folder: Path) -> None:
    set_fact(run_folder, chosen="lambda-0.02")
    set_measure(run_folder, "lambda-0.02", "bleu_difference", value=0.1, low=0.05, high=0.2)
    assert summarise(read_run(run_folder)).headline == "7 of 24 encoder heads removed; BLEU rose by 0.1"


def test_nothing_within_the_allowed_loss(run_folder: Path) -> None:
    set_fact(run_folder, chosen="full", max_drop=0.1)
    (run_folder / "faithfulness.csv").unlink()
    shutil.rmtree(run_folder / "roles")
    assert told(run_folder) == {
        "Pruning": "No pruned model stayed within 0.1 BLEU of the full one on dev text: it was kept, nothing is saved."
    }


def test_no_choice_and_no_pruning(run_folder: Path) -> None:
    set_fact(run_folder, chosen=None)
    assert "names no chosen setting" in told(run_folder)["Pruning"]
    (run_folder / "pruning.csv").unlink()
    summary = summarise(read_run(run_folder))
    assert summary.headline == "24 attention heads, scored"
    assert "Nothing has been pruned" in summary.paragraphs[0].text
