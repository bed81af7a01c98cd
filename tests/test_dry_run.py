"""Dry runs of commands that are no study: they say what would be read and what it takes, and write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwise.faces.cli import app
from models.tasks.askers import asker, lines


@pytest.fixture
def words(tmp_path: Path) -> dict[str, str]:
    """The names of a model, a text and a folder."""
    asker("gpt2").save(tmp_path / "lm")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines(20).lines))
    return {name: str(tmp_path / name) for name in ("lm", "text", "out")}


def test_of_evaluate(words: dict[str, str]) -> None:
    given = ["evaluate", words["lm"], words["lm"], "--text", words["text"], "--out", words["out"]]
    result = CliRunner().invoke(app, [*given, "--dry-run"])
    assert result.exit_code == 0, result.output
    for part in ["lm: 8 heads", "text: 20 sentences", "left out: nothing", "This takes about "]:
        assert part in result.stdout
    assert result.stdout.endswith("Nothing was written.\n")
    assert not Path(words["out"]).exists()
