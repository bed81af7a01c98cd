"""Dry runs of commands that are no study: they say what would be read and what it takes, and write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwise.cli import app
from tasks.askers import asker, embedder, lines


@pytest.fixture
def words(tmp_path: Path) -> dict[str, str]:
    """The words that stand for two models, a text and a folder."""
    asker("gpt2").save(tmp_path / "lm")
    embedder().save(tmp_path / "embedder")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines(20).lines))
    return {name: str(tmp_path / name) for name in ("lm", "embedder", "text", "out")}


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("evaluate lm lm --text text", ["text: 20 sentences", "lm: 8 heads"]),
        ("prune embedder --text text --keep 3 --measure confidence", ["attention-statistics"]),
    ],
)
def test_nothing_is_written(command: str, parts: list[str], words: dict[str, str]) -> None:
    given = [words.get(word, word) for word in command.split()]
    result = CliRunner().invoke(app, [*given, "--out", words["out"], "--dry-run"])
    assert result.exit_code == 0, result.output
    for part in ["This takes about ", "left out: nothing", *parts]:
        assert part in result.stdout
    assert result.stdout.endswith("Nothing was written.\n")
    assert not Path(words["out"]).exists()
