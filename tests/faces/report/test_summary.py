"""The first screen: which comparison leads, whether the bargain is good, what is said without a choice; the model card."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from transformers import MarianMTModel

import headwise as hw
from faces.report.made import cells, change, make_run, read, without
from faces.report.made_sweeps import write_sweeps
from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.qualities import ACCURACY, Number
from headwise.faces.cli.outcome import outcome
from headwise.faces.report.run_folder import RunContents, read_run
from headwise.faces.report.score_maps import score_panels
from headwise.faces.report.summary import FOLLOWS, summary_section
from headwise.models.model import Model
from headwise.pruning.verdict import Outcome, Speed, Verdict

CHOSEN = "lambda-0.05"


def minus(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


def test_what_a_study_says_at_its_end(whole: Path, swept: RunContents) -> None:
    ended = outcome(whole)
    said = summary_section(read_run(whole))
    assert ended.headline == said["headline"] + "."
    assert ended.lines[:2] == [said["basis"], said["advice"]]
    assert ended.finding == "not distinguishable"
    assert ended.model is not None and list(ended.layouts) == [ended.model.name]
    assert ended.next_commands[-1][1].endswith(f"headwise translate {ended.model}")
    # pruning that costs more than equal further training
    assert outcome(swept.folder).finding == "worse"


def test_the_page_says_what_pruning_csv_says(tmp_path: Path) -> None:
    """Headline, tile, cost and table of controls have the same difference with the same interval, and the verdict that
    interval and p give; equal further training leads.
    """
    folder = write_sweeps(tmp_path)
    page = re.sub("<[^>]+>", " ", hw.report(folder).read_text(encoding="utf-8"))
    page = " ".join(html.unescape(page).split())
    own = read(folder / "pruning.csv").query("setting == 'encoder.lambda-0.08'")
    own = own[own["split"] == "test"].set_index("reference")
    for reference, least in (("fine-tuned", 4), ("full", 2)):
        value, low, high = own.loc[reference, ["value", "low", "high"]]
        assert page.count(f"[{minus(low)}, {minus(high)}]") >= least and minus(value) in page
    lead = own.loc["fine-tuned"]
    clear = lead["p"] < 0.05 and not lead["low"] <= 0 <= lead["high"]
    headline = page[page.index("heads removed: ") :][:160]
    assert f"BLEU {minus(lead['value'])} [" in headline and "equal further" in headline
    assert ("not distinguishable" in headline) is not clear
    costs = dict(summary_section(read_run(folder))["groups"])["What it cost"]
    assert [label.split()[2] for label, _, _ in costs[:2]] == ["equal", "the"]
    assert costs[0][2] == "worse"


@pytest.mark.parametrize(
    ("differences", "why"),
    [
        ({"run.json": {"chosen": None}}, "names no chosen model"),
        ({"run.json": {"chosen": "full"}}, "The full model was chosen"),
        ({"run.json": {"chosen": None, "max_drop": 0.1}}, "(max_drop); lambda-0.02 comes nearest"),
        ({"run.json": {"chosen": None, "unsettled": [CHOSEN]}}, f"gates of {CHOSEN} had not"),
        ({"pruning.csv": without(setting="full")}, "full model has not been evaluated"),
        (
            {"pruning.csv": None, "plan.toml": "[[pruning]]\nkeep = [4]\n"},
            "Nothing has been pruned",
        ),
    ],
)
def test_without_a_choice_it_says_why(tmp_path: Path, differences: Any, why: str) -> None:
    found = summary_section(read_run(make_run(tmp_path, differences)))
    assert why in found["why"] and not found["tiles"]
    nothing = why.startswith("Nothing")
    start = "" if nothing else "3 pruned models, none of them chosen"
    assert found["headline"].startswith(start)


def test_scores_alone_lead_with_the_head_that_matters_most(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, {"pruning.csv": None, "plan.toml": None}))
    found = summary_section(run)
    rows = run.heads[run.heads["measure"] == "ablation.zero"]
    top = rows.sort_values("value").to_dict("records")[-1]
    for fact in (
        f"{top['kind']}/{top['layer']}/{top['head']} ",
        "of 24 heads",
        f"{top['low']:.2g}",
    ):
        assert fact in found["headline"]
    assert not found["why"]
    harmful = run.heads.assign(value=-run.heads["value"].abs())
    assert "None of 24" in summary_section(replace(run, heads=harmful))["headline"]
    heads = run.heads[run.heads["measure"] == "confidence"]
    headline = summary_section(replace(run, heads=heads))["headline"]
    assert "highest confidence of 24 heads" in headline
    roles = summary_section(replace(run, heads=heads.iloc[:0]))["headline"]
    assert roles == "6 of 24 heads have a role"


def speeds(width: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """1000 and 1080 tokens a second, of rounds that differ by this much."""

    def changed(table: pd.DataFrame) -> pd.DataFrame:
        for setting, speed in (("full", 1000.0), (CHOSEN, 1080.0)):
            numbers = (speed, speed - width, speed + width)
            table = cells(numbers, setting=setting, measure="tokens_per_second")(table)
        return table

    return changed


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        # On dev 0.41 BLEU are lost, on test 0.31.
        ({"run.json": {"max_drop": 0.5}}, "within the limit of 0.5 BLEU on dev and test.$"),
        ({"run.json": {"max_drop": 0.41}}, "within the limit of 0.41 BLEU on dev and test.$"),
        ({"run.json": {"max_drop": 0.35}}, "the limit of 0.35 BLEU on test, over it on dev.$"),
        ({"run.json": {"max_drop": 0.2}}, "is over the limit of 0.2 BLEU on dev and test.$"),
        ({"pruning.csv": speeds(0.0)}, ", speed measured only once."),  # of one round
        ({"pruning.csv": speeds(1.0)}, ", 8\u202f% faster."),
        ({"pruning.csv": speeds(60.0)}, ", no faster."),
    ],
)
def test_the_first_screen_says_what_was_saved_and_whether_the_limit_was_kept(
    tmp_path: Path, differences: Any, words: str
) -> None:
    found = summary_section(read_run(make_run(tmp_path, differences)))
    assert re.search(words, found["basis"])
    assert "BLEU −0.31 [−0.71, +0.11], not distinguishable from the full" in found["headline"]


def test_without_a_limit_every_size_is_in_the_headline(tmp_path: Path) -> None:
    """Nobody said what may be lost, so no size leads and nothing follows for the smallest."""
    run = read_run(make_run(tmp_path, {"run.json": {"max_drop": None}}))
    found = summary_section(run)
    sizes = [each["total"] - each["kept"] for each in run.candidates]
    assert len(sizes) > 1
    assert all(f"without {removed}" in found["headline"] for removed in sizes)
    assert found["basis"].count("[") == len(sizes)
    assert "The smallest saves: " in found["basis"]
    assert found["advice"] == found["verdict"] == ""


def test_no_headline_speaks_of_shipping(tmp_path: Path) -> None:
    """What was found comes first; what follows is one line below."""
    found = summary_section(read_run(make_run(tmp_path)))
    assert found["headline"].startswith("15 of 24 encoder heads removed: BLEU")
    assert "ship" not in (found["headline"] + found["basis"]).lower()
    assert found["advice"].count(".") >= 1 and "\n" not in found["advice"]


def test_words_follow_from_the_outcome_alone() -> None:
    """All outcomes have words, and only one of them, whose interval allows it, advises to ship."""
    numbers = Number(-0.1, -0.4, 0.2, 0.5, 1000)
    found = Verdict(
        *(Outcome.SHIP, "full", numbers, "not distinguishable", -0.2, 0.4, 1.0, ("dev",), ()),
        *(1000, 381, "parameters", 0.4, Speed.FASTER, 0.2, ()),
    )
    assert {*FOLLOWS} == {*Outcome}
    for follows, words in FOLLOWS.items():
        for needed in (381, None):
            text = words(replace(found, outcome=follows, needed=needed), ACCURACY)
            assert text.startswith("Ship: ") == (follows == Outcome.SHIP), text
            assert "  " not in text and (text.endswith(".") or follows == Outcome.NOT_COMPARED)
    short = FOLLOWS[Outcome.TOO_SHORT](replace(found, texts=8), ACCURACY)
    assert "8 texts are too few to tell. To tell a loss of 1 point of accuracy" in short
    assert "takes about 390 texts." in short


def test_more_than_the_limit_lost_to_equal_further_training_is_no_bargain(tmp_path: Path) -> None:
    """The limit counts from the full model, which training without pruning may improve."""
    lost = cells((-3.0, -3.5, -2.6), measure="bleu", reference="fine-tuned")
    folder = change(write_sweeps(tmp_path), {"pruning.csv": lost})
    for limit, bad in ((2.5, True), (2.7, False)):
        change(folder, {"run.json": {"max_drop": limit}})
        said = summary_section(read_run(folder))
        assert said["advice"].startswith("Do not ship: ") == bad
        assert f"with the full model it is within the limit of {limit} BLEU on" in said["basis"]


def test_the_first_screen_says_what_matters_and_what_shows_little(run_folder: Path) -> None:
    run = read_run(run_folder)
    said = " ".join(summary_section(run)["findings"])
    off = run.heads[run.heads["measure"] == "ablation.zero"].set_index(["kind", "layer", "head"])
    worst = Head(*off["value"].idxmax())
    assert (
        f"in nats per token: {worst} (+" in said
        and "have a role" in said
        and "Score to trust" in said
    )
    wide = run.untrained.assign(value=run.untrained["value"] * 100)
    both = pd.concat([wide, run.untrained.assign(value=-100.0)])
    covered = " ".join(summary_section(replace(run, untrained=both))["findings"])
    total = (run.heads["measure"] == "lrp.ding").sum()
    assert f"LRP-Ding of {total} of {total} heads lies within the range of untrained" in covered


def test_the_loss_of_a_classifier_is_a_mean_over_labels(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    table = pd.read_csv(folder / "pruning.csv").replace({"measure": {"bleu": "accuracy"}})
    change(folder, {"pruning.csv": table})
    run = read_run(folder)
    said = str(summary_section(run)) + str(score_panels(run, "encoder-self", ["ablation.zero"]))
    assert "nats per label" in said and "nats per token" not in said
    hw.figure("importance", folder, out=tmp_path / "a.svg", measures=["ablation.zero"])
    assert "in nats per label" in (tmp_path / "a.caption.txt").read_text()


def test_a_doubted_model_is_not_shipped_yet(tmp_path: Path) -> None:
    folder = make_run(tmp_path, {"run.json": {"doubts": {CHOSEN: ["The gates had not settled."]}}})
    assert summary_section(read_run(folder))["advice"].startswith(
        "No conclusion yet: there are doubts"
    )


def test_doubts_stand_under_the_headline(tmp_path: Path) -> None:
    doubts = {CHOSEN: ["The gates had not settled."]}
    differences = {
        "run.json": {"doubts": doubts, "sentences": {"dev": 49, "test": 50}},
        "pruning.csv": cells(9.9, setting="full", split="test", measure="bleu"),
    }
    said = summary_section(read_run(make_run(tmp_path, differences)))["doubts"]
    assert [doubt[:28] for doubt in said] == [
        "The dev text has 49 sentence",
        "The full model has 9.9 BLEU:",
        "The gates had not settled.",
    ]


DATA = """
model = "them/opus-mt-en-fr"

[data]
train = ["/home/anna/private/train.en", "/home/anna/private/train.fr"]
test = "datasets:wmt/wmt14?config=fr-en&split=test&source=en&target=fr"
"""


@pytest.fixture
def published(
    run_folder: Path, tiny_marian: Callable[..., MarianMTModel], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A finished run with two of its pruned models, away from any hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = Model(tiny_marian(), None, "whole")
    kept = frozenset(head for head in model.heads if head.layer != 1 and head.head > 0)
    for name in ("lambda-0.02", CHOSEN):
        model.only(HeadMask(model.heads, kept)).save(run_folder / "pruned" / name)
    return run_folder


def test_a_run_stands_for_its_chosen_model_with_cost_intervals_and_doubts(published: Path) -> None:
    change(published, {"run.json": {"doubts": {CHOSEN: ["The gates had not settled."]}}})
    upload = hw.push(published, "me/small")
    assert "0.05" in upload.card.partition("How it was made")[2]
    for fact in (
        "15 of 24 encoder heads removed",
        "−0.31 [−0.71, +0.11]",
        "not distinguishable",
        "| 1 | 0 of 4 | 0 of 4 | 0 of 4 |",
        "toy-3f2a91",
        "nrefs:1\\|case:mixed",
        "transformers 5.23.0",
        "| method | gates |",
        "- The gates had not settled.",
    ):
        assert fact in upload.card
    configs = {item.path_or_fileobj for item in upload.items if item.path_in_repo == "config.json"}
    assert configs == {str(published / "pruned" / CHOSEN / "config.json")}


def test_another_model_of_a_run_has_its_own_numbers(published: Path) -> None:
    card = hw.push(published / "pruned" / "lambda-0.02", "me/small").card
    assert "7 of 24 encoder heads removed" in card and "How it was chosen" not in card
    change(published, {"run.json": {"chosen": None}})
    with pytest.raises(HeadwiseError, match="chose no smaller model"):
        hw.push(published, "me/small")


def test_the_plan_gives_base_model_and_names_of_texts_without_folders(published: Path) -> None:
    upload = hw.push(change(published, {"plan.toml": DATA}), "me/small")
    assert yaml.safe_load(upload.card.split("---\n")[1])["base_model"] == "them/opus-mt-en-fr"
    assert "train.en, train.fr" in upload.card and "anna" not in str(upload)
