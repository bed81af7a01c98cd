"""A Whisper while headwise-speech is not installed: its own batches are scored, and what reads recordings is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.models.loading import task_class
from headwise.models.tasks import task_table
from headwise.models.tasks.without_package import SpeechWithoutPackage
from headwise.roles.alignment_heads import align
from models.tasks.test_own_batches import batches, speech
from refusals import refuses
from roles.aligning import WORDS
from roles.handmade import word_tokenizer


@pytest.fixture(autouse=True)
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_table, "tasks_of_packages", lambda: ())


def hearing() -> hw.Model:
    """With a tokenizer: it is no model of text all the same."""
    return hw.Model(speech().hf, word_tokenizer(WORDS), "tiny Whisper")


@pytest.mark.parametrize(
    "call",
    [
        lambda model: hw.score(model, "said.csv"),
        lambda model: hw.score(model, ["a b"]),
        lambda model: hw.evaluate([model], "said.csv"),
        lambda model: hw.roles(model, ["a b"]),
        lambda model: align(model, "said.csv"),
        lambda model: hw.prune(model, "said.csv", hw.Greedy(keep=4)),
        lambda model: hw.prune(model, "said.csv", hw.Gates(penalty=0.1)),
    ],
)
def test_the_package_is_named(call: Callable[[hw.Model], Any]) -> None:
    refuses(lambda: call(hearing()), "a speech model … pip install headwise-speech")


@pytest.mark.parametrize(
    "words", ["score {} --audio", "roles {} --audio", "align {} --audio", "lab {} --audio"]
)
def test_the_command_line_names_it(words: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    hearing().save(tmp_path / "hears")
    (tmp_path / "said.csv").write_text("audio,text\n0.wav,a b\n")
    said = refused(*words.format(tmp_path / "hears").split(), tmp_path / "said.csv")
    assert "pip install headwise-speech" in said, said


def test_batches_of_its_own_are_scored(tmp_path: Path) -> None:
    model = speech()
    found = hw.score(model, batches(model), ["gradient", "ablation.zero"]).table
    assert found["value"].notna().all() and len(found) == 2 * model.heads.total
    assert isinstance(model.task, SpeechWithoutPackage)
    model.save(tmp_path / "hears")
    assert task_class(tmp_path / "hears") is SpeechWithoutPackage
