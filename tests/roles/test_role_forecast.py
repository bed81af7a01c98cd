"""What tests of roles will take: the words that they read, of every part, and what a dry run says."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import headwise as hw
from headwise.cli import app
from headwise.data.embedded import write_treebank
from headwise.roles.role_forecast import role_forecast
from tasks.askers import asker


@pytest.fixture
def trees(tmp_path: Path) -> hw.Treebank:
    return hw.Treebank.read(write_treebank(tmp_path / "dev.conllu", 20))


def test_parts_are_by_the_words_that_are_read(trees: hw.Treebank) -> None:
    """Twice the trees to confirm are the trees again; an encoder has no probes."""
    words = sum(len(sentence.words) for sentence in trees)
    found = role_forecast(asker("bert"), trees, confirm=trees)
    assert [part.name for part in found.parts] == ["trees", "examples"]
    first, last = found.parts
    short = sum(len(sentence.words) for sentence in trees if 6 <= len(sentence.words) <= 16)
    # a first look at the trees, all of them, and those that confirm
    assert first.seconds / last.seconds == pytest.approx(3 * words / short)
    assert found.seconds == pytest.approx(first.seconds + last.seconds)
    causal = [part.name for part in role_forecast(asker("gpt2"), trees, untrained=1).parts]
    assert causal == ["trees", "repeated tokens and templates", "examples", "controls"]


def test_sentences_that_do_not_fit_are_said(trees: hw.Treebank) -> None:
    model = asker("bert", max_position_embeddings=12)
    _, line = role_forecast(model, trees).reads
    assert " longer than 12 tokens" in line


def test_a_dry_run_writes_nothing(trees: hw.Treebank, tmp_path: Path) -> None:
    asker("bert").save(tmp_path / "model")
    words = ["roles", str(tmp_path / "model"), "--treebank", str(tmp_path / "dev.conllu")]
    out = tmp_path / "out"
    said = CliRunner().invoke(app, [*words, "--out", str(out), "--dry-run"]).stdout
    assert all(words in said for words in ("dev.conllu: 20 sentences, ", "  trees ", "This takes"))
    assert said.endswith("Nothing was written.\n")
    assert not out.exists()
