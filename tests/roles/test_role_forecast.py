"""What tests of roles will take: the words that they read, of every part, and what a dry run says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headwise as hw
from headwise.data.embedded import write_treebank
from headwise.faces.cli import app
from headwise.roles import role_forecast as role_forecast_module
from headwise.roles.role_data import TIMED_TREES
from headwise.roles.role_forecast import role_forecast
from models.tasks.askers import asker


@pytest.fixture
def trees(tmp_path: Path) -> hw.Treebank:
    return hw.Treebank.read(write_treebank(tmp_path / "dev.conllu", 20))


def test_the_time_is_by_the_words_that_are_read(
    trees: hw.Treebank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second for each word: those of the trees, of a first look at them, of examples, and of trees to confirm."""
    timed = list(trees)[:TIMED_TREES]
    seconds = float(3 * sum(len(sentence.words) for sentence in timed))
    monkeypatch.setattr(role_forecast_module, "best", lambda run, device: seconds)
    words = sum(len(sentence.words) for sentence in trees)
    short = sum(len(sentence.words) for sentence in trees if 6 <= len(sentence.words) <= 16)
    assert role_forecast(asker("bert"), trees).seconds == pytest.approx(2 * words + short)
    confirmed = role_forecast(asker("bert"), trees, confirm=trees)
    assert confirmed.seconds == pytest.approx(3 * words + short)
    assert confirmed.parts == [f"tests that read {3 * words + short:,} words"]
    alone = role_forecast(asker("gpt2"), trees).seconds
    assert role_forecast(asker("gpt2"), trees, untrained=1).seconds > alone > 2 * words


def test_a_dry_run_writes_nothing(trees: hw.Treebank, tmp_path: Path) -> None:
    asker("bert").save(tmp_path / "model")
    words = ["roles", str(tmp_path / "model"), "--treebank", str(tmp_path / "dev.conllu")]
    out = tmp_path / "out"
    said = CliRunner().invoke(app, [*words, "--out", str(out), "--dry-run"]).stdout
    assert all(
        words in said
        for words in ("dev.conllu: 20 sentences, ", "To do: tests that read ", "This takes")
    )
    assert said.endswith("Nothing was written.\n")
    assert not out.exists()


def test_a_limit_shortens_texts_alone(
    trees: hw.Treebank, tmp_path: Path, call: Any, refused: Any
) -> None:
    """What is generated for a language model is as long with it, and the forecast says how long."""
    asker("gpt2").save(tmp_path / "model")
    words = ("roles", tmp_path / "model", "--limit", "5", "--dry-run")
    assert "was given without a text" in refused(*words)
    file = write_treebank(tmp_path / "dev.conllu", 20)
    status, out, err = call(*words, "--treebank", file)
    assert status == 0 and "5 sentences" in out and "generated texts: about" in out, err
