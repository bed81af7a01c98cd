"""The opening sentences: right numbers, and no claim that the numbers do not carry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.heads import HeadMap, HeadMask
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
    assert "measured in one round" in text["What was saved"]
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
    set_measure(run_folder, "lambda-0.05", "bleu_difference", low=-0.6, high=-0.1)
    text = told(run_folder)["What it cost"]
    assert "p\u00a0< 0.001" in text
    assert "it is real" in text


def test_speeds_whose_intervals_overlap_are_no_gain(run_folder: Path) -> None:
    set_measure(run_folder, "full", "tokens_per_second", low=1190.0, high=1230.0)
    set_measure(run_folder, "lambda-0.05", "tokens_per_second", low=1220.0, high=1240.0)
    assert "no real difference can be claimed" in told(run_folder)["What was saved"]


def test_a_large_speed_gain_stands_without_a_warning(run_folder: Path) -> None:
    set_measure(run_folder, "full", "tokens_per_second", low=1190.0, high=1230.0)
    set_measure(run_folder, "lambda-0.05", "tokens_per_second", value=2000.0, low=1900.0, high=2100.0)
    assert "can be claimed" not in told(run_folder)["What was saved"]


def test_a_choice_that_the_numbers_do_not_explain_is_not_explained(run_folder: Path) -> None:
    set_fact(run_folder, chosen="lambda-0.02")
    text = told(run_folder)["How it was chosen"]
    assert "the fewest" not in text
    assert "run.json names λ\u00a0=\u00a00.02" in text


def test_a_price_that_is_no_chance_is_in_the_headline(run_folder: Path) -> None:
    set_measure(run_folder, "lambda-0.05", "bleu_difference", low=-0.6, high=-0.1)
    set_measure(run_folder, "lambda-0.05", "p_value", value=0.01)
    assert summarise(read_run(run_folder)).headline == "15 of 24 encoder heads removed for 0.3 BLEU"


def test_on_the_edge_of_chance_both_are_told(run_folder: Path) -> None:
    set_measure(run_folder, "lambda-0.05", "bleu_difference", low=-0.61, high=-0.05)
    summary = summarise(read_run(run_folder))
    assert summary.headline == "15 of 24 encoder heads removed for 0.3 BLEU"
    assert "on the edge of what chance makes" in told(run_folder)["What it cost"]


def test_gates_that_had_not_settled_are_told_with_the_choice(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "pruning.csv")
    row = table[table.setting == "lambda-0.05"].iloc[:1].assign(measure="settled", value=0.0, low=None, high=None)
    pd.concat([table, row]).to_csv(run_folder / "pruning.csv", index=False)
    assert told(run_folder)["How it was chosen"].startswith("Its gates had not settled")


def test_better_bleu_is_not_called_a_price(run_folder: Path) -> None:
    set_fact(run_folder, chosen="lambda-0.02")
    set_measure(run_folder, "lambda-0.02", "bleu_difference", value=0.1, low=0.05, high=0.2)
    set_measure(run_folder, "lambda-0.02", "p_value", value=0.01)
    assert summarise(read_run(run_folder)).headline == "7 of 24 encoder heads removed; BLEU rose by 0.1"


def test_nothing_within_the_allowed_loss(run_folder: Path) -> None:
    set_fact(run_folder, chosen="full", max_drop=0.1)
    (run_folder / "faithfulness.csv").unlink()
    shutil.rmtree(run_folder / "roles")
    assert told(run_folder) == {
        "Pruning": "No pruned model stayed within 0.1 BLEU of the full one on dev text: it was kept, nothing is saved."
    }


def test_without_a_limit_nothing_is_said_to_have_missed_it(run_folder: Path) -> None:
    set_fact(run_folder, chosen="full", max_drop=None)
    assert "named" not in told(run_folder)["Pruning"] and "within" not in told(run_folder)["Pruning"]
    set_fact(run_folder, chosen="lambda-0.2", max_drop=None)
    text = told(run_folder)["How it was chosen"]
    assert "λ\u00a0=\u00a00.2 has 4 heads, the fewest of all: no limit to the loss was set" in text
    set_fact(run_folder, chosen="full", max_drop=1.0)  # two of the models lose less than that
    assert "within" not in told(run_folder)["Pruning"]


def test_without_test_text_the_cost_is_on_dev_and_no_test_is_claimed(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "pruning.csv")
    dev = table[table["measure"].isin(["bleu_difference", "p_value"])].assign(measure=lambda t: "dev_" + t["measure"])
    gone = table["measure"].isin(["bleu", "chrf", "bleu_difference", "p_value"])
    pd.concat([table[~gone], dev]).to_csv(run_folder / "pruning.csv", index=False)
    summary = summarise(read_run(run_folder))
    text = {paragraph.lead: paragraph.text for paragraph in summary.paragraphs}
    assert summary.headline.endswith("no measurable change in BLEU on dev")
    assert summary.tiles[-1].label == "BLEU on dev"
    assert "BLEU on dev text, on which it was chosen (no test text was translated), went from" in text["What it cost"]
    assert "read once" not in " ".join(text.values())


def test_the_choice_is_among_heads_of_the_whole_model(run_folder: Path) -> None:
    """Fewest heads of its own kinds is not fewest of all: another kind may have lost more."""
    heads = HeadMap({"encoder-self": (8, 8, 8), "cross": (8, 8)})
    for setting, kept in (("lambda-0.02", 30), ("lambda-0.05", 33), ("lambda-0.2", 28)):
        HeadMask(heads, frozenset(list(heads)[:kept])).save(run_folder / "layouts" / f"{setting}.json")
    assert "run.json names λ\u00a0=\u00a00.05" in told(run_folder)["How it was chosen"]


def test_a_language_model_is_told_by_its_perplexity(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "pruning.csv")
    table = table[~table["measure"].str.contains("bleu|chrf|p_value")]
    for setting, value in {"full": 20.0, "lambda-0.02": 20.2, "lambda-0.05": 20.9, "lambda-0.2": 24.0}.items():
        start = table[table["setting"] == setting].iloc[:1]
        change = start.assign(measure="dev_perplexity_change", value=5 * value - 100, low=-1.0, high=9.0)
        table = pd.concat([table, start.assign(measure="dev_perplexity", value=value), change])
    table.to_csv(run_folder / "pruning.csv", index=False)
    set_fact(run_folder, max_drop=5.0)
    text = told(run_folder)
    assert text["What it cost"] == (
        "Perplexity on dev text went from 20.00 to 20.90: +4.50\u202f%, 95 % interval [−1.00, +9.00]."
    )
    assert (
        "the fewest of those that lose at most 5 % of perplexity on dev; there perplexity changed by +4.50\u202f%."
        in text["How it was chosen"]
    )


def test_no_choice_and_no_pruning(run_folder: Path) -> None:
    set_fact(run_folder, chosen=None)
    assert "names no chosen setting" in told(run_folder)["Pruning"]
    (run_folder / "pruning.csv").unlink()
    summary = summarise(read_run(run_folder))
    assert summary.headline == "24 attention heads, scored"
    assert "Nothing has been pruned" in summary.paragraphs[0].text
