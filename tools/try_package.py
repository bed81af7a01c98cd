"""Try an installed headwise as a user meets it. Run this with the Python of its environment, outside the repository.

Imports every module, runs the commands that need no model, a refusal, and a small study, without extras: its page is
refused. Exits with an error where one of them does not do what it should.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import headwise
from headwise.core.errors import HeadwiseError

SMALL = (  # the toy demo's plan, cut to half a minute
    "data.embedded={train=300, dev=20, test=20}",
    "model.width=32",
    "model.feedforward=64",
    "model.vocabulary=300",
    "training.epochs=1",
    'scoring.measures=["confidence"]',
    "scoring.judge=false",
    "pruning.penalty=[0.01]",
    "pruning.epochs=1",
    "pruning.controls=[]",
    "search.beam=1",
)


def import_all() -> int:
    """Import every module, and return their number. A module may refuse with a sentence that names its extra."""
    names = [module.name for module in pkgutil.walk_packages(headwise.__path__, "headwise.")]
    for name in names:
        if not name.endswith("__main__"):
            try:
                importlib.import_module(name)
            except HeadwiseError as refusal:
                assert "pip install" in str(refusal), f"{name}: {refusal}"
    return len(names)


def run(*words: str, fails: bool = False) -> str:
    """What `headwise WORDS` prints; it must end well, or with `fails` in one sentence."""
    command = Path(sys.executable).with_name("headwise")
    done = subprocess.run([command, *words], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert (done.returncode != 0) is fails, (
        f"headwise {' '.join(words)} ended with {done.returncode}:\n{said}"
    )
    assert "Traceback" not in said, said
    if fails:
        assert done.stderr.startswith("headwise: ") and done.stderr.count("\n") == 1, done.stderr
    return said


def main() -> None:
    here = Path(headwise.__file__).resolve()
    assert here.is_relative_to(Path(sys.prefix).resolve()), f"{here} is not the installed headwise"
    print(f"{import_all()} modules load from {here.parent}")
    assert run("--version").strip() == version("headwise")
    for words in ("--help", "demo --help", "data list"):
        run(*words.split())
    print(run("score", "nowhere", fails=True), end="")
    changes = [word for change in SMALL for word in ("--set", change)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "demo")
        said = run("demo", "--toy", "--out", str(out), *changes)
        assert (out / "pruning.csv").stat().st_size and "No report.html" in said, said
        print(run("report", str(out), fails=True), end="")
    print("the commands, a refusal and a small demo work")


if __name__ == "__main__":
    main()
