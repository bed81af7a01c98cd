"""Exports of what cannot be trusted, exports that end half-way, and exports that are taken for models."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pruned import language_model, uneven

import headwise as hw
from headwise.core.folders import SUMS
from headwise.models.engines import gguf_file
from headwise.models.engines.engine import engine


def small() -> hw.Model:
    return uneven(language_model("qwen3", tie_word_embeddings=True), empty=None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small().save(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to tamper with, without the sums that would show it."""
    shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "model" / SUMS).unlink()
    change(tmp_path / "model" / "config.json", headwise_sums=False)
    return tmp_path / "model"


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


class TestTampered:
    def test_damage_is_seen_by_the_sums(self, saved: Path, tmp_path: Path) -> None:
        shutil.copytree(saved, tmp_path / "model")
        change(tmp_path / "model/config.json", rms_norm_eps=1.0)
        with pytest.raises(hw.HeadwiseError, match=r"config\.json has changed"):
            hw.export(hw.load(tmp_path / "model"), "gguf", tmp_path / "out")

    def test_a_layout_of_another_model(self, folder: Path) -> None:
        layout = json.loads((folder / "config.json").read_text())["headwise_layout"]
        for kept in ([[0], [0], [0]], [[0, 1, 2, 3, 4, 5, 6, 7]] * 3, [[0], [0]]):
            change(
                folder / "config.json", headwise_layout={**layout, "kept": {"decoder-self": kept}}
            )
            with pytest.raises(hw.HeadwiseError, match="layout"):
                hw.load(folder)

    def test_weights_of_another_model(self, folder: Path, tmp_path: Path) -> None:
        other = uneven(language_model("qwen3", tie_word_embeddings=True), empty=None, seed=7)
        other.save(tmp_path / "other")
        shutil.copy(tmp_path / "other/model.safetensors", folder / "model.safetensors")
        with pytest.raises(hw.HeadwiseError, match="do not fit its layout"):
            hw.load(folder)
        llama = language_model("llama")
        llama.save(tmp_path / "llama")
        shutil.copy(tmp_path / "llama/model.safetensors", folder / "model.safetensors")
        with pytest.raises(hw.HeadwiseError, match="do not fit its layout"):
            hw.load(folder)

    @pytest.mark.parametrize("name", ["../../../evil", "/etc/evil", "a/b"])
    def test_a_chat_template_that_is_a_path(self, folder: Path, name: str) -> None:
        """Saving or exporting the tokenizer writes a file of this name."""
        templates = [{"name": "default", "template": "x"}, {"name": name, "template": "y"}]
        change(folder / "tokenizer_config.json", chat_template=templates)
        with pytest.raises(hw.HeadwiseError, match="a name cannot be a path"):
            hw.load(folder)

    def test_several_chat_templates_are_no_danger(self, folder: Path, tmp_path: Path) -> None:
        templates = [{"name": "default", "template": "x"}, {"name": "tools", "template": "y"}]
        change(folder / "tokenizer_config.json", chat_template=templates)
        hw.load(folder).save(tmp_path / "out")
        assert (tmp_path / "out/additional_chat_templates/tools.jinja").read_text() == "y"


class TestPlaces:
    @pytest.mark.parametrize("name", ["a\0b", "x" * 300, ".", "..", "new/.."])
    def test_names_that_are_no_new_folder(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/file").write_text("mine")
        monkeypatch.chdir(tmp_path / "mine")
        with pytest.raises(hw.HeadwiseError, match=r"cannot be a folder|there is something else"):
            hw.export(small(), "gguf", name)
        assert files(tmp_path) == {"mine/file": b"mine"} and [*tmp_path.iterdir()] == [
            tmp_path / "mine"
        ]

    def test_links(self, tmp_path: Path) -> None:
        """A link to an empty folder, or to none, leads where the export goes; one to files is refused."""
        model = small()
        (tmp_path / "empty").mkdir()
        (tmp_path / "full").mkdir()
        (tmp_path / "full/file").write_text("mine")
        for name in ("empty", "full", "none", "circle"):
            (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
        (tmp_path / "circle").symlink_to(tmp_path / "to-circle")
        for name in ("empty", "none"):
            hw.export(model, "gguf", tmp_path / f"to-{name}")
            assert (tmp_path / name / "model.gguf").exists() and (
                tmp_path / f"to-{name}"
            ).is_symlink()
        for name in ("full", "circle"):
            with pytest.raises(
                hw.HeadwiseError, match=r"there is something else|cannot be a folder"
            ):
                hw.export(model, "gguf", tmp_path / f"to-{name}")
        assert files(tmp_path / "full") == {"file": b"mine"} and not [*tmp_path.glob(".*")]

    def test_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(hw.HeadwiseError, match="could not be written"):
            hw.export(small(), "gguf", tmp_path / "file/new")
        assert files(tmp_path) == {"file": b"mine"}

    def test_an_earlier_export_is_never_replaced(self, tmp_path: Path) -> None:
        model = small()
        hw.export(model, "gguf", tmp_path / "out")
        before = files(tmp_path)
        with pytest.raises(hw.HeadwiseError, match="there is something else"):
            hw.export(model, "gguf", tmp_path / "out")
        assert files(tmp_path) == before

    def test_what_came_there_while_it_was_written_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = gguf_file.write_gguf

        def slow(model: hw.Model, folder: Path, dtype: str) -> list[str]:
            (tmp_path / "out").mkdir()
            (tmp_path / "out/file").write_text("mine")
            return write(model, folder, dtype)

        monkeypatch.setitem(vars(engine["gguf"]), "function", slow)
        with pytest.raises(hw.HeadwiseError, match="could not be written"):
            hw.export(small(), "gguf", tmp_path / "out")
        assert files(tmp_path) == {"out/file": b"mine"}


class TestHalfWritten:
    @pytest.mark.parametrize(
        "error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("x")]
    )
    def test_any_end_leaves_nothing(
        self, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(model: hw.Model, folder: Path, dtype: str) -> list[str]:
            (folder / "model.gguf").write_text("half")
            raise error

        monkeypatch.setitem(vars(engine["gguf"]), "function", broken)
        with pytest.raises((type(error), hw.HeadwiseError)):
            hw.export(small(), "gguf", tmp_path / "out")
        assert not [*tmp_path.iterdir()]

    def test_kill_in_the_middle(self, saved: Path, tmp_path: Path) -> None:
        """kill -9 after the weights are written: there is no export, and the next one is whole."""
        program = (
            "import os, signal, sys; import headwise as hw; from gguf import GGUFWriter as Writer; "
            "close = Writer.close; "
            "Writer.close = lambda self: (close(self), os.kill(os.getpid(), signal.SIGKILL)); "
            "hw.export(hw.load(sys.argv[1]), 'gguf', sys.argv[2])"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program, saved, tmp_path / "out"], env=os.environ, check=False
        )
        assert ended.returncode == -signal.SIGKILL
        assert any(path.name == "model.gguf" for path in tmp_path.rglob("*")), (
            "it was in the middle"
        )
        assert not (tmp_path / "out").exists()
        hw.export(hw.load(saved), "gguf", tmp_path / "out")
        assert "model.gguf" in files(tmp_path / "out")


def test_an_export_is_no_model(saved: Path, tmp_path: Path) -> None:
    hw.export(hw.load(saved), "gguf", tmp_path / "gguf")
    with pytest.raises(hw.HeadwiseError) as refusal:
        hw.load(tmp_path / "gguf")
    assert "\n" not in str(refusal.value)
