"""The model card of a run: what it says, and what it keeps to itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from transformers import MarianMTModel

import headwise as hw
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask
from headwise.hub import RESULTS
from headwise.model import Model

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
    assert not [item for item in unknown.items if item.name == RESULTS] and RESULTS in str(unknown)
    (run / "plan.toml").write_text(DATA)
    upload = hw.push(run, "me/small")
    assert yaml.safe_load(upload.card.split("---\n")[1])["base_model"] == "them/opus-mt-en-fr"
    assert "train.en, train.fr" in upload.card and "anna" not in str(upload)
    (entry,) = yaml.safe_load(next(item.bytes for item in upload.items if item.name == RESULTS))
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
