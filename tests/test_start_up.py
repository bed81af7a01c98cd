"""What needs no model is refused before torch and transformers are imported: they take seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

CHILD = """
import sys
from headwise.faces.cli import main
try:
    main()
finally:
    print(",".join(name for name in ("torch", "transformers", "datasets") if name in sys.modules), file=sys.stdout)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("start")
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20)).save_pretrained(
        place / "model"
    )
    (place / "full").mkdir()
    (place / "full" / "letter.txt").write_text("dear\n")
    (place / "text.en").write_text("a\n")
    return place


@pytest.mark.parametrize(
    "command",
    [
        "score model --text nowhere.txt",
        "score model --text text.en --measure nothing",
        "score model --text text.en --device gpu",
        "score nowhere",
        "prune model --text nowhere.txt",
        "roles model --treebank text.en",
        "roles model --treebank nowhere.conllu",
        "roles model --text text.en --text text.en",
        "align model",
        "export model --to paper",
        "evaluate model --text nowhere.txt",
        "train --text text.en",
        "study nowhere.toml",
        "demo --out full",
        "report full",
        "translate nowhere text.en",
    ],
)
def test_a_refusal_imports_neither(command: str, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *command.split()],
        cwd=place,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode != 0
    assert done.stdout.strip() == "", f"{done.stdout} was imported to say {done.stderr}"
    assert "Traceback" not in done.stderr
    assert not (place / "runs").exists()
