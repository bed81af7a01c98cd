"""The promises of SECURITY.md: each names tests that exist; here are those that belong to no package."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MarianMTModel

import headwise as hw

ROOT = Path(__file__).parents[1]
FORBIDDEN = {"allow_pickle", "trust_remote_code", "shell"}
RUNS = {"eval", "exec", "compile"}  # of Python
DATA_ALONE = (
    "weights_only=True)",
    "yaml.BaseLoader))",
)  # a call that ends so makes no objects but data
READS = {
    "pickle": "load",
    "dill": "load",
    "torch": "load",
    "joblib": "load",
    "yaml": "load",
    "marshal": "load",
}


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def names_in(path: Path) -> set[str]:
    """The tests of a file, as `name` or `Class::name`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {f"{prefix}{one.name}" for one in inner if isinstance(one, ast.FunctionDef)}
    return found


def test_every_promise_names_tests_that_exist() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    promises = page.partition("## Promises")[2].partition("\n## ")[0].split("\n* ")[1:]
    assert len(promises) >= 6
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", promise)
        assert named, f"no test keeps this promise: {promise[:60]}"
        for file, test in named:
            assert test in names_in(ROOT / file), f"{file}::{test}"


def test_a_pickle_in_a_model_folder_is_not_run(
    tiny_marian: Callable[..., MarianMTModel], tmp_path: Path
) -> None:
    model, folder, trace = tiny_marian(), tmp_path / "model", tmp_path / "trace"
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    weights = folder / "pytorch_model.bin"
    torch.save(model.state_dict(), weights)
    assert hw.load(folder).parameters == sum(p.numel() for p in model.parameters()), (
        "tensors alone are read"
    )
    torch.save({**model.state_dict(), "more": Evil(trace)}, weights)
    with pytest.raises(hw.HeadwiseError, match="are a pickled program"):
        hw.load(folder)
    assert not trace.exists()
    torch.load(weights, weights_only=False)
    assert trace.exists(), "it would have run"


def test_nothing_in_the_source_runs_what_it_reads() -> None:
    """Only an error of a job of Ray's is copied by pickle, to see whether another process can have it."""
    wrong = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.keyword)
                and node.arg in FORBIDDEN
                and ast.unparse(node.value) != "False"
            ):
                wrong.append(f"{path.name}: {node.arg}")
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                library, _, function = name.rpartition(".")
                if ast.unparse(node).endswith(DATA_ALONE):
                    continue
                if name in RUNS or (library in READS and function.startswith(READS[library])):
                    wrong.append(f"{path.name}: {name}")
    assert wrong == ["ray_executor.py: pickle.loads"]


def test_a_message_is_short_and_moves_no_cursor() -> None:
    """Whatever it quotes: files of other people have control characters and lines of 15 MB."""
    for quoted in ("x" * 15_000_000, "\x1b[2J\n\r\0\u2028" * 9_999, "\ud800" * 5_000):
        error = hw.HeadwiseError(f"The plan says '{quoted}', which does not fit: give a number.")
        assert len(str(error)) <= 1_000 and str(error).isprintable()
        assert str(error).startswith("The plan says '")
        assert str(error).endswith("which does not fit: give a number.")
    assert str(hw.HeadwiseError("Çа va → 猫.")) == "Çа va → 猫."
