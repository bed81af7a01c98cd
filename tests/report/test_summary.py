"""The first screen: which comparison leads, what the facts say, and what is said where there is nothing to compare."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pandas as pd
import pytest

import headwise as hw
from headwise.report import summary
from headwise.report.run_folder import read_run
from report.made_language import make_language
from report.made_sweeps import write_sweeps


def facts_of(folder: Path) -> dict[str, dict[str, tuple[str, str]]]:
    groups = summary.summary_section(read_run(folder))["groups"]
    return {
        lead: {label: (text, verdict) for label, text, verdict in facts} for lead, facts in groups
    }


def edit(folder: Path, **facts: object) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_the_facts_are_the_numbers_of_the_tables(whole: Path) -> None:
    found = summary.summary_section(read_run(whole))
    assert found["headline"] == (
        "15 of 24 encoder heads removed; −0.31 BLEU [−0.71, +0.11] to the full model, not distinguishable"
    )
    assert found["tiles"][-1] == ("BLEU on test", "−0.31", "38.21 → 37.90")
    facts = facts_of(whole)
    assert facts["What was saved"]["Heads removed"][0] == "15 of 24 encoder heads (62\u202f%)"
    assert facts["What was saved"]["Decoding speed, tokens/s"][1] == "not distinguishable"
    text = "38.21 → 37.90: −0.31 [−0.71, +0.11], p\u00a0= 0.14"
    assert facts["What it cost"]["BLEU to the untouched full model"] == (
        text,
        "not distinguishable",
    )
    assert facts["How it was chosen"]["Chosen"][0].endswith(
        "9 heads in the whole model, the fewest within the limit"
    )
    assert facts["How it was chosen"]["Fewer heads, on dev"][0] == "−2.62 with 4"
    assert (
        facts["What is left"]["Encoder self-attention"][0]
        == "9 of 24 heads; layer by layer 3 · 2 · 4 of 8"
    )
    assert facts["Which score is faithful"]["Most faithful score"][0] == "Gradient"
    assert facts["What the heads do"]["Encoder heads"][0].startswith("6 of 24 have a role")


def test_equal_further_training_leads_where_it_was_measured(tmp_path: Path) -> None:
    folder = write_sweeps(tmp_path)
    run = read_run(folder)
    assert run.chosen is not None
    table = pd.read_csv(folder / "pruning.csv")
    own = table[table["setting"] == "encoder.lambda-0.08"].set_index("measure")
    rows, ends = own["value"], own.loc["bleu_difference_to_fine-tuned", ["low", "high"]]
    lost, (low, high) = rows["bleu_difference_to_fine-tuned"], ends
    found = summary.summary_section(run)
    assert found["headline"].endswith(
        f"; {minus(lost)} BLEU [{minus(low)}, {minus(high)}] to equal further training"
    )
    label, value, detail = found["tiles"][-1]
    assert label == "BLEU on test, to equal further training" and value == f"−{abs(lost):.2f}"
    assert "to the full model" in detail and "[" in detail
    first, second = list(facts_of(folder)["What it cost"].items())
    assert first[0] == "BLEU to equal further training without pruning" and first[1][1] == "worse"
    assert second[0] == "BLEU to the untouched full model"


def minus(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


def test_the_page_says_what_pruning_csv_says(tmp_path: Path) -> None:
    """Headline, tile, cost and table of controls have the same difference with the same interval, and the verdict that
    interval and p give."""
    folder = write_sweeps(tmp_path)
    page = re.sub(
        r"\s+",
        " ",
        html.unescape(re.sub("<[^>]+>", " ", hw.report(folder).read_text(encoding="utf-8"))),
    )
    table = pd.read_csv(folder / "pruning.csv")
    chosen = json.loads((folder / "run.json").read_text())["chosen"]
    own = table[table["setting"] == chosen].set_index("measure")
    for word, least in (("_to_fine-tuned", 4), ("", 2)):
        value, low, high = own.loc[f"bleu_difference{word}", ["value", "low", "high"]]
        assert page.count(f"[{minus(low)}, {minus(high)}]") >= least and minus(value) in page
    lead, p = own.loc["bleu_difference_to_fine-tuned"], own.loc["p_value_to_fine-tuned", "value"]
    clear = p < 0.05 and not lead["low"] <= 0 <= lead["high"]
    headline = page[page.index("heads removed;") :][:120]
    assert (
        "to equal further training" in headline and ("not distinguishable" in headline) is not clear
    )


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"chosen": None}, "not named"),
        ({"chosen": "full"}, "full chosen"),
        ({"chosen": None, "max_drop": 0.1}, "over the limit"),
        ({"chosen": None, "unsettled": ["lambda-0.05"]}, "not settled"),
    ],
)
def test_without_a_choice_it_says_why(run_folder: Path, facts: dict[str, object], why: str) -> None:
    edit(run_folder, **facts)
    found = summary.summary_section(read_run(run_folder))
    assert (found["why"], found["tiles"]) == (why, [])
    assert found["headline"] == "3 pruned models, none of them chosen"


def test_a_run_without_pruning_or_full_model(run_folder: Path) -> None:
    table = pd.read_csv(run_folder / "pruning.csv")
    table[table["setting"] != "full"].to_csv(run_folder / "pruning.csv", index=False)
    assert summary.summary_section(read_run(run_folder))["why"] == "no full model"
    (run_folder / "pruning.csv").unlink()
    found = summary.summary_section(read_run(run_folder))
    assert (found["why"], found["headline"]) == ("nothing pruned", "24 attention heads, scored")


def test_a_language_model_has_perplexity(tmp_path: Path) -> None:
    run = read_run(make_language(tmp_path / "run"))
    found = summary.summary_section(run)
    assert found["headline"] == (
        "15 of 24 decoder heads removed; +3.10\u202f% perplexity [+2.10, +4.10] to the full model"
    )
    assert found["tiles"][-1] == ("Perplexity on test", "+3.10\u202f%", "12.00 → 12.37")
    facts = {title: {label: text for label, text, _ in group} for title, group in found["groups"]}
    assert facts["What it cost"] == {
        "Perplexity to the untouched full model": "12.00 → 12.37: +3.10\u202f% [+2.10, +4.10]"
    }
    chosen = facts["How it was chosen"]
    assert chosen["Loss allowed on dev"] == "10 % of perplexity"
    assert chosen["On dev"] == "perplexity 12.00 → 12.49 (+4.10\u202f%)"
    assert chosen["Fewer heads, on dev"] == "+26.20\u202f% with 4"
    assert chosen["Text"] == "dev only; test text had no part in it"


def test_doubts_about_the_gates_are_shown(run_folder: Path) -> None:
    edit(run_folder, doubts={"lambda-0.05": ["The gates had not settled."]})
    assert facts_of(run_folder)["How it was chosen"]["Doubt"][0] == "The gates had not settled."
