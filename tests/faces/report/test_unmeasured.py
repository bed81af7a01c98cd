"""What is said of a model whose answers are not measured, such as one of several labels: scores of attention alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.faces.report.run_folder import read_folders
from headwise.faces.report.summary import lead_of
from models.attention.families import STACK, build
from models.tasks.askers import asker, lines, sentences
from models.training.letters import letters


@pytest.fixture
def several() -> hw.Model:
    config = {**STACK, "num_labels": 3, "problem_type": "multi_label_classification"}
    return hw.Model(build("BertForSequenceClassification", **config), letters(), "several")


def test_the_page_of_its_scores_says_what_they_are(several: hw.Model, tmp_path: Path) -> None:
    hw.score(several, lines(12)).save(tmp_path / "scores")
    basis = lead_of(read_folders([tmp_path / "scores"]))["basis"]
    assert "BertForSequenceClassification" in basis and "not measured" in basis
    hw.score(asker("bert"), lines(12), measures=["gradient"]).save(tmp_path / "masked")
    assert not lead_of(read_folders([tmp_path / "masked"]))["basis"]


def test_its_story_is_refused_before_anything_is_said(
    several: hw.Model, tmp_path: Path, refused: Any
) -> None:
    several.save(tmp_path / "model")
    (tmp_path / "a.txt").write_text("\n".join(sentences(40, 0)) + "\n")
    place = tmp_path / "story"
    said = refused("story", tmp_path / "model", "--text", tmp_path / "a.txt", "--out", place)
    assert "headwise score" in said and not place.exists()


def test_the_card_of_a_model_without_a_study(several: hw.Model, tmp_path: Path) -> None:
    several.without(["L0H1"]).save(tmp_path / "small")
    assert "do not say what it cost" in hw.push(tmp_path / "small", "me/small").card
