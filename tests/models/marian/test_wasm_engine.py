"""Firefox's engine in WASM (the package bergamot-translator of npm) translates with files that headwise wrote, and puts
mark-up where the alignments say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_firefox import SENTENCES

import headwise as hw
from headwise.models.marian import files as marian_files

SCRIPT = Path(__file__).with_name("bergamot.mjs")
MARKED = "She did not see the <b>old red car</b>."


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, whose worker Node takes for a module unless a file says otherwise."""
    named = os.environ.get("HEADWISE_BERGAMOT")
    if not named or shutil.which("node") is None:
        pytest.skip(
            "needs Node, and HEADWISE_BERGAMOT, the folder of bergamot-translator: make engines"
        )
    place = tmp_path_factory.mktemp("bergamot") / "package"
    shutil.copytree(named, place)
    (place / "worker" / "package.json").write_text(json.dumps({"type": "commonjs"}))
    return place


def translations(model: hw.Model, package: Path, folder: Path, lines: list[str]) -> list[str]:
    out = hw.export(model, "marian", folder, "int8", say=lambda note: None)
    file = marian_files.marian_file(out)
    (shortlist,) = out.glob("lex.*")
    done = subprocess.run(
        ["node", SCRIPT, package, str(file), out / "vocab.spm", shortlist],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_whole_and_pruned_models_translate_there(
    firefox: hw.Model, package: Path, tmp_path: Path
) -> None:
    """Most sentences as here, where nothing is rounded; the words under a mark are those of the mark."""
    found = translations(firefox, package, tmp_path / "whole", [*SENTENCES, MARKED])
    here = firefox.translate(SENTENCES, beam=1)
    assert sum(one == other for one, other in zip(here, found, strict=False)) >= len(here) // 2
    assert "<b>velho carro vermelho</b>" in found[-1]

    # Heads beside the one whose weights are the alignments, and in the layer below.
    gone = [hw.Head("cross", 1, 1), hw.Head("cross", 0, 0), hw.Head("encoder-self", 5, 3)]
    small = firefox.without(gone)
    (marked,) = translations(small, package, tmp_path / "small", [MARKED])
    (plain,) = small.translate(["She did not see the old red car."], beam=1)
    assert "carro" in marked.partition("<b>")[2].partition("</b>")[0]
    assert marked.replace("<b>", "").replace("</b>", "") == plain
