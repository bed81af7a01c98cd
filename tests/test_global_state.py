"""Nothing that a process shares changes: random generators, threads, warnings, environment, garbage collection."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.core.options import Architecture
from headwise.core.progress import Progress
from headwise.data.embedded import write_treebank
from headwise.importance.interactions import interactions
from headwise.importance.untrained import untrained
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.models.training.translation_model import build_model
from headwise.pruning.own_loop import GatedLoop
from headwise.roles.alignment import LinkedText
from headwise.roles.alignment_heads import align
from headwise.study.plan import make_plan
from headwise.study.study import run_study
from models.tasks.askers import asker, lines, pairs
from models.training.letters import letters
from roles import aligning

QUIET = Progress(quiet=True)
MEASURES = ["confidence", "gradient", "lrp", "ablation.zero", "gating.facilitating"]
FEW: dict[str, Any] = {"epochs": 1}
SMALL = hw.Training(batch_tokens=60)
STUDY = {
    "name": "toy",
    "data": {"embedded": {"train": 60, "dev": 10, "test": 10}},
    "model": {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "width": 16, "vocabulary": 200},
    "training": {"epochs": 1, "batch_tokens": 400, "average": 1},
    "scoring": {"measures": ["confidence"], "judge": False},
    "pruning": {"penalty": [0.05], "epochs": 1},
}


def state() -> dict[str, Any]:
    """Everything that other code of the process could notice, in comparable form."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "random": random.getstate(),
        "numpy.random": (name, keys.tolist(), *rest),  # type: ignore[union-attr]
        "torch": torch.random.get_rng_state().tolist(),
        "torch.cuda": [each.tolist() for each in torch.cuda.get_rng_state_all()]
        if torch.cuda.is_available()
        else None,
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch settings": (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        ),
        "numpy errors": np.geterr(),
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "logging": (logging.root.level, len(logging.root.handlers), logging.root.manager.disable),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "folder": str(Path.cwd()),
        "path": list(sys.path),
    }


def gated_loop(world: Any) -> None:
    ids = torch.tensor([[5, 6, 7, 8]])
    with GatedLoop(world.language, penalty=0.05) as gates:
        world.language.hf(ids, labels=ids).loss.backward()
        gates.step()
    gates.smaller()


def hooks(world: Any) -> None:
    discovery = discover(world.language.hf)
    ids = torch.tensor([[5, 6, 7, 8]])
    mask = hw.HeadMask.full(discovery.heads)
    with torch.no_grad(), capture(world.language.hf, discovery, weights=True):
        world.language.hf(ids)
    with torch.no_grad(), hw.masked(world.language.hf, only=mask):
        world.language.hf(ids)


def saved_and_loaded(world: Any) -> None:
    first = next(head for head in world.translator.heads if head.layer == 0)
    small = world.translator.only(hw.HeadMask.full(world.translator.heads).without([first]))
    small.save(world.folder / "small")
    hw.load(world.folder / "small").translate(["a b c"])
    hw.push(world.folder / "small", "me/small")


def files(world: Any) -> None:
    (world.folder / "text").write_text("a b\nb c\n")
    (world.folder / "labelled.tsv").write_text("text\tlabel\na b\t1\nb c\t0\n")
    hw.Text.open(world.folder / "text")
    (world.folder / "pairs.tsv").write_text("a b\tc d\n")
    hw.ParallelText.open(world.folder / "pairs.tsv")
    hw.LabelledText.open(world.folder / "labelled.tsv")
    hw.Treebank.read(write_treebank(world.folder / "trees.conllu", 3))


def study(world: Any) -> None:
    plan, folder = make_plan(STUDY), world.folder / "run"
    run_study(plan, folder, QUIET, report=hw.report)
    shutil.copytree(folder, world.folder / "other")
    hw.report(folder, world.folder / "other", out=world.folder / "comparison")


def aligned(world: Any) -> None:
    text, links = aligning.pairs(world.folder, 20)
    align(world.aligner, LinkedText.read(text, links))


def lab(world: Any) -> None:
    pytest.importorskip("anywidget", reason="anywidget is not installed (headwise[notebook])")
    widget = hw.lab(world.translator, "a b c")
    sent: list[Any] = []
    widget.send = sent.append
    question = {"text": "a b c"}
    widget._handle_custom_msg({"id": 1, "name": "inspect", "question": question}, [])
    assert "answer" in sent[-1], sent


def train(world: Any, options: Any) -> None:
    with warnings.catch_warnings(action="ignore"):  # so short a training does not settle
        hw.prune(world.translator, pairs(20), options, dev=pairs(6, 9), training=SMALL)


CALLS: dict[str, Callable[[Any], Any]] = {
    "files": files,
    "load, save, cut, translate, push": saved_and_loaded,
    "discover, capture, masked": hooks,
    "score": lambda world: hw.score(
        world.translator, pairs(6), MEASURES, judge=True, untrained=1, seed=3
    ),
    "score of one text": lambda world: hw.score(world.language, lines(6), ["confidence", "lrp"]),
    "roles": lambda world: hw.roles(world.language, world.treebank, untrained=1),
    "interactions": lambda world: interactions(world.language, lines(60), 3),
    "untrained": lambda world: untrained(world.language, seed=5),
    "evaluate": lambda world: hw.evaluate([world.translator, world.translator], pairs(4)),
    "prune, Gates": lambda world: train(world, hw.Gates(penalty=0.05, **FEW)),
    "prune, TopK": lambda world: train(world, hw.TopK(keep=4, **FEW)),
    "prune, lora": lambda world: train(world, hw.Gates(penalty=0.05, train="lora", **FEW)),
    "prune, Greedy": lambda world: hw.prune(
        world.language, lines(8), hw.Greedy(keep=4, measure="random"), dev=lines(4)
    ),
    "export": lambda world: hw.export(world.language, "torch", world.folder / "torch"),
    "a model from random weights": lambda world: build_model(
        Architecture(width=16, heads=2, encoder_layers=1, decoder_layers=1), letters(), seed=4
    ),
    "study, report, comparison": study,
    "align": aligned,
    "lab": lab,
}


@pytest.fixture(scope="module", autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    """The suite freezes its objects; here a call that freezes some would show."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("world")
    treebank = hw.Treebank.read(write_treebank(folder / "treebank.conllu", 4))
    return SimpleNamespace(
        folder=folder,
        translator=asker(),
        language=asker("llama"),
        treebank=treebank,
        aligner=aligning.translator(),
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_call_leaves_the_process_as_it_was(world: Any, name: str) -> None:
    torch.manual_seed(123)
    random.seed(456)
    np.random.seed(789)  # noqa: NPY002 - the generator that others share
    before = state()
    CALLS[name](world)
    after = state()
    assert [key for key in before if before[key] != after[key]] == []


def test_gates_in_a_loop_draw_from_torch(world: Any) -> None:
    """As dropout does: the loop is the caller's own."""
    before = state()
    gated_loop(world)
    after = state()
    assert [key for key in before if before[key] != after[key]] == ["torch"]


PROGRAM = """
import gc, os, random, sys, warnings
bare = sys.argv[1] == "bare"
if not bare:
    import accelerate, datasets, pandas, peft, rich.console, scipy.stats, torch, transformers
    from transformers import Seq2SeqTrainer

def state():
    torch = sys.modules.get("torch")
    return {
        "environment": dict(os.environ), "warnings": list(warnings.filters), "random": random.getstate(),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "torch": bare or (torch.get_num_threads(), torch.random.get_rng_state().tolist(), torch.get_default_dtype()),
    }

before = state()
import headwise as hw
if not bare:
    for name in hw.__all__:
        getattr(hw, name)
after = state()
print([key for key in before if before[key] != after[key]])
"""


@pytest.mark.parametrize("libraries", ["bare", "loaded"])
def test_importing_headwise_changes_nothing(libraries: str) -> None:
    """The libraries that it loads may change something; they are loaded before."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, libraries], capture_output=True, text=True, timeout=200
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr[-1000:]
