"""The table of engines: read without torch, written in the documentation, and open to engines of one's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pruned import language_model, uneven

import headwise as hw
from headwise.core.folders import Folder
from headwise.models.engines.engine import engine
from headwise.models.families import family_rows


def test_the_table_of_families_has_every_engine_of_ours() -> None:
    """But Marian's, which takes no family of transformers."""
    assert set(engine.own) - {"marian"} <= family_rows()[0].keys(), "run `make families`"


def test_the_names_are_known_without_torch() -> None:
    code = "import sys; from headwise.models.engines.engine import engine; assert 'gguf' in engine"
    code = f"{code} and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that a script declares."""
    monkeypatch.setattr(engine, "added", {})

    def refusal(model: hw.Model) -> str | None:
        return None if model.name == "llama" else "it runs Llamas only"

    @engine("mine", title="My engine", types=("float32", "float16"), refusal=refusal)
    def write(model: hw.Model, folder: Path, dtype: str) -> list[str]:
        (folder / "heads.txt").write_text(f"{model.heads.total} {dtype}")
        return ["counted"]


@pytest.mark.usefixtures("own")
def test_an_engine_of_ones_own_is_exported_to(tmp_path: Path, capsys: Any) -> None:
    small = uneven(language_model("llama"))
    assert hw.export(small, "mine", tmp_path / "out") == tmp_path / "out"
    assert (tmp_path / "out/heads.txt").read_text() == f"{small.heads.total} float32"
    assert "heads.txt" in Folder(tmp_path / "out").files and capsys.readouterr().out == "counted\n"
    with pytest.raises(hw.HeadwiseError, match="mine is written as float32, float16"):
        hw.export(small, "mine", tmp_path / "other", "q8_0")
    with pytest.raises(hw.HeadwiseError, match="cannot be exported to mine: it runs Llamas only"):
        hw.export(language_model("qwen2"), "mine", tmp_path / "other")


@pytest.mark.usefixtures("own")
def test_an_engine_of_ones_own_is_in_the_lists(tmp_path: Path) -> None:
    from headwise.faces.cli.smaller_models import engine_lines

    lines = engine_lines(uneven(language_model("qwen2")))
    assert lines[-1] == "  mine   My engine     no: it runs Llamas only"
    with pytest.raises(hw.HeadwiseError, match="did you mean 'mine'"):
        hw.export(language_model("llama"), "mime", tmp_path / "out")
