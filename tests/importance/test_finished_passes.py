"""A score that was killed goes on after the last pass that was finished, and gives what it would have given."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tokenizers.normalizers import Lowercase

import headwise as hw
from headwise.core.options import SEED
from headwise.importance import gating, passes
from headwise.importance.finished_passes import FOLDER, FinishedPasses
from headwise.importance.gating import gate_heads
from headwise.importance.measures import measure
from headwise.importance.measures import passes as passes_of
from headwise.importance.passes import run_pass, run_passes
from models.tasks.askers import asker, lines
from own_process import Running, headwise

MEASURES = ["confidence", "gradient", "lrp.ding", "ablation.zero"]


def finished(place: Path, model: hw.Model, text: hw.Text, seed: int = SEED) -> FinishedPasses:
    return FinishedPasses(place, model, model.task.batches(text), seed)


def scored(place: Path, model: hw.Model, text: hw.Text, measures: list[str]) -> Any:
    batches = model.task.batches(text)
    return run_passes(model, batches, measures, 0, finished=finished(place, model, text))


def test_only_what_is_not_finished_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, where relevance went and seconds are the same."""
    ran: list[str] = []

    def noted(model: hw.Model, text: Any, names: list[str], *given: Any) -> Any:
        ran.extend(names)
        return run_pass(model, text, names, *given)

    monkeypatch.setattr(passes, "run_pass", noted)
    whole = run_passes(asker("gpt2"), asker("gpt2").task.batches(lines(12)), MEASURES, 0)
    first = scored(tmp_path, asker("gpt2"), lines(12), MEASURES[:3])
    ran.clear()
    again = scored(tmp_path, asker("gpt2"), lines(12), MEASURES)
    assert ran == ["ablation.zero"]
    assert again.all_rows(0) == whole.all_rows(0)
    assert again.balances == whole.balances != {}
    for label, seconds in first.seconds.items():
        assert again.seconds[label] == seconds
    assert list(again.seconds) == list(passes_of(MEASURES))


def test_rows_without_sums_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = ["gating.irrelevant"]
    monkeypatch.setattr(gating, "gate_heads", partial(gate_heads, steps=3))
    made = scored(tmp_path, asker("gpt2"), lines(3), measure)
    monkeypatch.setattr(passes, "run_pass", None)
    assert scored(tmp_path, asker("gpt2"), lines(3), measure).rows == made.rows


@pytest.mark.parametrize(
    "other",
    [
        "weights",
        "buffers",
        "configuration",
        "tokenizer",
        "text",
        "seed",
        "threads",
        "damage",
        "version",
    ],
)
def test_of_anything_else_nothing_is_taken(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = asker("gpt2")
    text = lines(12)
    scored(tmp_path, model, text, ["confidence"])
    assert finished(tmp_path, asker("gpt2"), lines(12)).left(["confidence"]) == []
    seed = SEED
    if other == "weights":
        with torch.no_grad():
            next(model.hf.parameters())[0, 0] += 1e-6
    elif other == "buffers":
        model.hf.register_buffer("another", torch.ones(1))
    elif other == "configuration":
        model.hf.config.layer_norm_epsilon *= 2
    elif other == "tokenizer":
        model.tokenizer.backend_tokenizer.normalizer = Lowercase()
    elif other == "text":
        text = lines(6, seed=1)
    elif other == "seed":
        seed = SEED + 1
    elif other == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    elif other == "damage":
        (file,) = (tmp_path / FOLDER).rglob("*.npz")
        file.write_bytes(file.read_bytes()[:-1])
    else:
        monkeypatch.setattr(type(measure["confidence"]), "version", 7)
        monkeypatch.setitem(measure["confidence"].__dict__, "version", 7)
    assert finished(tmp_path, model, text, seed).left(["confidence"]) == ["confidence"]


def test_a_finished_score_leaves_the_passes_of_others(tmp_path: Path) -> None:
    for text in (lines(12), lines(6, seed=1)):
        scored(tmp_path, asker("gpt2"), text, ["confidence"])
    finished(tmp_path, asker("gpt2"), lines(12)).discard()
    assert finished(tmp_path, asker("gpt2"), lines(12)).left(["confidence"]) == ["confidence"]
    other = finished(tmp_path, asker("gpt2"), lines(6, seed=1))
    assert other.left(["confidence"]) == []
    other.discard()
    assert not (tmp_path / FOLDER).exists()


def test_a_killed_command_goes_on(tmp_path: Path) -> None:
    """Killed by SIGKILL after the first of two passes; then the same command, and one that was never killed."""
    asker("gpt2", n_layer=3).save(tmp_path / "model")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines(600).lines))
    words = ["score", tmp_path / "model", "--text", tmp_path / "text"]
    words += ["--measure", "confidence", "--measure", "ablation.zero", "--device", "cpu"]
    out = tmp_path / "out"
    process = Running(tmp_path / "killed", headwise, *words, "--out", out)
    process.wait_until(lambda: [*(out / FOLDER).glob("*/attention-statistics-*.json")])
    process.send(signal.SIGKILL)
    assert process.end()[0] == -signal.SIGKILL
    assert not (out / "heads.csv").exists()

    status, result, said = Running(tmp_path / "again", headwise, *words, "--out", out).end()
    assert status == 0, said
    assert result.strip() == str(out / "heads.csv")
    assert not (out / FOLDER).exists()
    other = tmp_path / "other"
    status, _, said = Running(tmp_path / "whole", headwise, *words, "--out", other).end()
    assert status == 0, said
    pd.testing.assert_frame_equal(pd.read_csv(out / "heads.csv"), pd.read_csv(other / "heads.csv"))


def test_a_dry_run_says_what_is_finished_and_writes_nothing(tmp_path: Path) -> None:
    asker("gpt2").save(tmp_path / "model")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines(30).lines))
    words = ["score", tmp_path / "model", "--text", tmp_path / "text", "--device", "cpu"]
    words += ["--measure", "confidence", "--measure", "gradient", "--dry-run"]
    new = tmp_path / "new"
    status, said, _ = Running(tmp_path / "first", headwise, *words, "--out", new).end()
    assert status == 0
    assert not new.exists()
    parts = ["attention-statistics (confidence)", "gradients (gradient)", "float32 on cpu"]
    for part in (*parts, "text: 30 sentences, ", "left out: nothing", "This takes about "):
        assert part in said
    assert said.endswith("Nothing was written.\n")

    model = hw.load(tmp_path / "model")
    scored(tmp_path / "out", model, hw.Text.open(tmp_path / "text"), ["confidence"])
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    words += ["--out", tmp_path / "out"]
    status, said, _ = Running(tmp_path / "second", headwise, *words, OMP_NUM_THREADS="1").end()
    assert status == 0
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before
    if torch.get_num_threads() == 1:  # else the scores were not made as the command would
        assert "Finished before: confidence." in said
        assert "attention-statistics" not in said
