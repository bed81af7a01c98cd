"""The first screen: which comparison leads, what facts say, what is said without any; and the model card."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml
from transformers import MarianMTModel

import headwise as hw
from headwise.cli.outcome import outcome
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask
from headwise.hub import HUB_RESULTS
from headwise.model import Model
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
        "15 of 24 encoder heads removed: 2.6\u202f% fewer weights, no faster; "
        "−0.31 BLEU [−0.71, +0.11] to the full model, not distinguishable; "
        "within the limit of 1 on dev and test"
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


def test_what_a_study_says_at_its_end(whole: Path, tmp_path: Path) -> None:
    ended = outcome(whole)
    assert ended.headline.endswith(
        "to the full model, not distinguishable; within the limit of 1 on dev and test."
    )
    assert ended.verdict == "not distinguishable"
    assert any("BLEU to the untouched full model: 38.21" in fact for fact in ended.facts)
    assert ended.model is not None and list(ended.layouts) == [ended.model.name]
    assert ended.next_lines[-1].endswith(f"headwise translate {ended.model}")
    # pruning that costs more than equal further training
    assert outcome(write_sweeps(tmp_path)).verdict == "worse"


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
    headline = page[page.index("heads removed: ") :][:160]
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
        "15 of 24 decoder heads removed: only 2.6\u202f% fewer weights; "
        "+3.10\u202f% perplexity [+2.10, +4.10] to the full model; "
        "within the limit of 10\u202f% on dev and test"
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


LITTLE_SAVED = "Not worth shipping (less than 10\u202f% saved, speed not measured, surely worse): "
MORE_LOST = "Not worth shipping (a sure loss of at least {}\u202f%, more than it saves): "


@pytest.mark.parametrize(
    ("low", "cache", "limit", "says"),
    [
        (2.5, None, None, LITTLE_SAVED),
        (2.7, None, None, MORE_LOST.format("2.7")),
        (2.7, 0.5, None, ""),
        (60.0, 0.5, None, MORE_LOST.format("60.0")),
        # What the plan allows is not judged, unless test surely exceeds it.
        (2.7, None, 10.0, ""),
        (60.0, 0.5, 10.0, MORE_LOST.format("60.0")),
    ],
)
def test_a_bad_bargain_is_called_one_with_its_reason(
    tmp_path: Path, low: float, cache: float | None, limit: float | None, says: str
) -> None:
    """2.6 % of the weights are saved, or half of the key/value cache; by the interval more than that is lost."""
    folder = make_language(tmp_path / "run")
    edit(folder, max_drop=limit)
    table = pd.read_csv(folder / "pruning.csv")
    chosen = json.loads((folder / "run.json").read_text())["chosen"]
    lost = (table["setting"] == chosen) & (table["measure"] == "perplexity_change")
    table.loc[lost, ["value", "low", "high"]] = [low + 1, low, low + 2]
    if cache is not None:
        weights = table[table["measure"] == "parameters"]
        shares = weights["setting"].map(lambda name: cache if name == chosen else 1.0)
        table = pd.concat([table, weights.assign(measure="cache_bytes", value=512 * shares)])
    table.to_csv(folder / "pruning.csv", index=False)
    headline = summary.summary_section(read_run(folder))["headline"]
    saved = "2.6\u202f% fewer weights" if cache is None else "50.0\u202f% less key/value cache"
    only = "only " if limit and not says else ""
    assert headline.startswith(f"{says}15 of 24 decoder heads removed: {only}{saved}; ")
    assert f"; +{low + 1:.2f}" in headline


def test_more_than_the_limit_lost_to_equal_further_training_is_no_bargain(tmp_path: Path) -> None:
    """The limit counts from the full model, which training without pruning may improve."""
    folder = write_sweeps(tmp_path)
    table = pd.read_csv(folder / "pruning.csv")
    lost = table["measure"] == "bleu_difference_to_fine-tuned"
    table.loc[lost, ["value", "low", "high"]] = [-3.0, -3.5, -2.6]
    table.to_csv(folder / "pruning.csv", index=False)
    for limit, bad in ((2.5, True), (2.7, False)):
        edit(folder, max_drop=limit)
        headline = summary.summary_section(read_run(folder))["headline"]
        assert headline.startswith("Not worth shipping (") == bad
        end = f"further training; compared with the full model within the limit of {limit} on dev and test"
        assert headline.endswith(end)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (None, "to the full model, not distinguishable"),
        (0.5, "; within the limit of 0.5 on dev and test"),
        (0.41, "; within the limit of 0.41 on dev and test"),  # all of it lost on dev
        (0.35, "; within the limit of 0.35 on test, over it on dev"),
        (0.2, "; over the limit of 0.2 on dev and test"),
    ],
)
def test_the_headline_says_whether_the_limit_was_kept(
    run_folder: Path, limit: float | None, says: str
) -> None:
    """On dev 0.41 BLEU are lost, on test 0.31."""
    edit(run_folder, max_drop=limit)
    assert summary.summary_section(read_run(run_folder))["headline"].endswith(says)


def test_doubts_stand_under_the_headline(run_folder: Path) -> None:
    edit(
        run_folder,
        doubts={"lambda-0.05": ["The gates had not settled."]},
        sentences={"dev": 49, "test": 50},
    )
    table = pd.read_csv(run_folder / "pruning.csv")
    table.loc[(table["setting"] == "full") & (table["measure"] == "bleu"), "value"] = 9.9
    table.to_csv(run_folder / "pruning.csv", index=False)
    assert summary.summary_section(read_run(run_folder))["doubts"] == [
        "The dev text has 49 sentences: too few to tell. Give at least 50.",
        "The full model has 9.9 BLEU: it does not translate yet. Train it on more text or for more epochs before "
        "heads are removed.",
        "The gates had not settled.",
    ]


def test_the_tiles_are_size_speed_and_quality(whole: Path) -> None:
    labels = [label for label, _, _ in summary.summary_section(read_run(whole))["tiles"]]
    assert labels == ["Parameters", "Decoding speed, tokens/s", "BLEU on test"]


DATA = """
model = "them/opus-mt-en-fr"

[data]
train = ["/home/anna/private/train.en", "/home/anna/private/train.fr"]
test = "datasets:wmt/wmt14?config=fr-en&split=test&source=en&target=fr"
"""


@pytest.fixture
def run(
    run_folder: Path, tiny_marian: Callable[..., MarianMTModel], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A finished run with two of its pruned models, away from any hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    whole = Model(tiny_marian(), None, "whole")
    mask = HeadMask(
        whole.heads, frozenset(head for head in whole.heads if head.layer != 1 and head.head > 0)
    )
    for name in ("lambda-0.02", "lambda-0.05"):
        whole.remove(mask).save(run_folder / "pruned" / name)
    return run_folder


def test_a_run_stands_for_its_chosen_model_with_cost_and_intervals(run: Path) -> None:
    upload = hw.push(run, "me/small")
    assert "0.05" in upload.card.partition("How it was made")[2]
    assert "15 of 24 encoder heads removed" in upload.card
    assert "−0.31 [−0.71, +0.11]" in upload.card and "not distinguishable" in upload.card
    assert "| 1 | 0 of 4 | 0 of 4 | 0 of 4 |" in upload.card
    for fact in (
        "toy-3f2a91",
        "nrefs:1|case:mixed".replace("|", "\\|"),
        "transformers 5.23.0",
        "| method | gates |",
    ):
        assert fact in upload.card
    assert {item.content for item in upload.items if item.name == "config.json"} == {
        run / "pruned" / "lambda-0.05" / "config.json"
    }


def test_another_model_of_a_run_has_its_own_numbers(run: Path) -> None:
    card = hw.push(run / "pruned" / "lambda-0.02", "me/small").card
    assert "7 of 24 encoder heads removed" in card and "How it was chosen" not in card


def test_the_plan_gives_base_model_and_names_of_texts_without_folders(run: Path) -> None:
    unknown = hw.push(run, "me/small")
    assert not [item for item in unknown.items if item.name == HUB_RESULTS] and HUB_RESULTS in str(
        unknown
    )
    (run / "plan.toml").write_text(DATA)
    upload = hw.push(run, "me/small")
    assert yaml.safe_load(upload.card.split("---\n")[1])["base_model"] == "them/opus-mt-en-fr"
    assert "train.en, train.fr" in upload.card and "anna" not in str(upload)
    (entry,) = yaml.safe_load(
        next(item.content for item in upload.items if item.name == HUB_RESULTS)
    )
    assert entry["dataset"] == {"id": "wmt/wmt14", "task_id": "fr-en"}
    assert entry["value"] == 37.9 and "bleu" in entry["notes"] and "nrefs:1" in entry["notes"]


def test_doubts_are_in_the_card(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(
        json.dumps(facts | {"doubts": {"lambda-0.05": ["The gates had not settled."]}})
    )
    assert "- The gates had not settled." in hw.push(run, "me/small").card


def test_a_run_without_a_choice_is_refused(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"chosen": None}))
    with pytest.raises(HeadwiseError, match="chose no smaller model"):
        hw.push(run, "me/small")


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ((0.0, 0.0), "no faster"),  # one round is its own range
        ((-1.0, 1.0), "8\u202f% faster"),
        ((-60.0, 60.0), "no faster"),
    ],
)
def test_a_speed_is_a_difference_where_the_rounds_say_so(
    run_folder: Path, ends: tuple[float, float], says: str
) -> None:
    table = pd.read_csv(run_folder / "pruning.csv")
    for setting, speed in (("full", 1000.0), ("lambda-0.05", 1080.0)):
        row = (table["setting"] == setting) & (table["measure"] == "tokens_per_second")
        table.loc[row, ["value", "low", "high"]] = [speed, speed + ends[0], speed + ends[1]]
    table.to_csv(run_folder / "pruning.csv", index=False)
    assert f", {says}; " in summary.summary_section(read_run(run_folder))["headline"]
