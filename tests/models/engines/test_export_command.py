"""`headwise export`: the table of engines, a folder written, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from pruned import translator, uneven
from typer.testing import CliRunner

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder
from headwise.faces import cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return uneven(translator("pre")).save(tmp_path_factory.mktemp("models") / "small")


def call(*words: object) -> str:
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_table_says_which_engine_takes_the_model_and_why_not(folder: Path) -> None:
    lines = {line.split()[0]: line for line in call("export", folder, "--list").splitlines()}
    assert set(lines) == {"gguf", "ct2", "onnx", "torch", "marian", "stock"}
    assert lines["ct2"].endswith("yes") and "m2m_100" in lines["gguf"]
    assert "read from files of Marian" in lines["marian"]


def test_a_folder_is_written_for_an_engine(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")
    printed = call("export", folder, "--to", "ct2", "--out", tmp_path / "new")
    assert "heads of zeros" in printed and printed.splitlines()[-1] == str(tmp_path / "new")
    assert (
        "model.bin" in Folder(tmp_path / "new").files and (tmp_path / "new" / "model.bin").exists()
    ), "what headwise push may send"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "No engine was named"),
        (["--to", "gguf"], "other families"),
        (["--to", "ct2", "--dtype", "f8"], "f8"),
    ],
)
def test_refusals_write_nothing(folder: Path, tmp_path: Path, words: list[str], why: str) -> None:
    with pytest.raises(HeadwiseError, match=why):
        call("export", folder, *words, "--out", tmp_path / "new")
    assert not list(tmp_path.iterdir())
