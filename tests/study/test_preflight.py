"""What is refused or said before a study begins, with nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.importance.passes import usual_measures
from headwise.study.run_context import RunContext
from headwise.study.study import dry_run, run_study
from models.attention.families import TWO_STACKS, build
from models.tasks.askers import IDS, asker, lines, sentences
from models.training.letters import START, letters
from study.studies import QUIET, Notes, plan_of


def refusal(values: dict[str, Any], out: Path) -> str:
    """The sentence with which a study and its dry run are refused; no folder was claimed, nothing made."""
    notes = Notes()
    with pytest.raises(HeadwiseError) as real:
        run_study(plan_of(values), out, notes)
    with pytest.raises(HeadwiseError) as dry:
        dry_run(plan_of(values), out)
    assert str(real.value) == str(dry.value) and not notes.made and not (out / "plan.toml").exists()
    return str(real.value)


def said(values: dict[str, Any], out: Path, part: str) -> bool:
    """Whether a dry run says this."""
    return any(part in line for line in dry_run(plan_of(values), out))


def test_a_warm_up_longer_than_the_training(tiny: dict[str, Any], tmp_path: Path) -> None:
    assert not said(tiny, tmp_path / "out", "learning rate climbs")
    tiny["training"]["warmup"] = 1000
    assert said(
        tiny,
        tmp_path / "out",
        "updates, but its learning rate climbs for 1000 (training.warmup): set",
    )


@pytest.mark.parametrize("sweep", [{"keep": [3], "epochs": 3}, {"penalty": [0.1]}])
def test_a_text_shorter_than_an_update(
    tiny: dict[str, Any], tmp_path: Path, sweep: dict[str, Any]
) -> None:
    tiny["pruning"] = sweep
    assert not said(tiny, tmp_path / "out", "batches are smaller")
    tiny["training"]["batch_tokens"] = 50400
    assert said(tiny, tmp_path / "out", "tokens, fewer than one update reads (50400): batches are")


@pytest.mark.parametrize(
    ("rate", "says"), [(0.05, "no gate can close; a gate needs 240"), (0.3, "may not settle")]
)
def test_too_few_updates_for_gates(
    tiny: dict[str, Any], tmp_path: Path, rate: float, says: str
) -> None:
    tiny["pruning"] |= {"gate_learning_rate": rate}
    assert said(tiny, tmp_path / "out", says)
    tiny["pruning"] = {"keep": [3], "epochs": 3}
    assert not said(tiny, tmp_path / "out", "a gate needs"), (
        "to a target count all rates follow from the updates"
    )


@pytest.mark.parametrize("split", ["dev", "test"])
def test_too_short_a_text_is_refused_or_doubted(
    tiny: dict[str, Any], tmp_path: Path, split: str
) -> None:
    texts = {"train": 300, "dev": 60, "test": 60}
    tiny["data"] = {"embedded": {**texts, split: 49}}
    assert said(tiny, tmp_path / "out", f"The {split} text has 49 sentences: too few to tell.")
    tiny["data"] = {"embedded": {**texts, split: 5}}
    assert f"The {split} text has 5 sentences: too few" in refusal(tiny, tmp_path / "out")
    tiny["data"]["embedded"][split] = 50
    assert not said(tiny, tmp_path / "out", "too few to tell")


def disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))


def test_a_full_disk(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, 1000)
    assert "0.0 MB are free: free some, choose another --out" in refusal(tiny, tmp_path / "out")


def sides(folder: Path, name: str, lines: list[str]) -> list[str]:
    files = [folder / f"{name}.en", folder / f"{name}.fr"]
    for file in files:
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [str(file) for file in files]


def test_one_file_as_two_texts_is_refused_and_shared_sentences_are_said(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    lines = [f"the bird {number} sleeps" for number in range(400)]
    train, dev = sides(tmp_path, "train", lines[:200]), sides(tmp_path, "dev", lines[150:250])
    test = sides(tmp_path, "test", lines[300:])
    tiny["data"] = {"train": train, "dev": train, "test": test}
    assert "was given as train and as dev text" in refusal(tiny, tmp_path / "out")
    (tmp_path / "link.en").symlink_to(dev[0])
    tiny["data"] = {"train": train, "dev": dev, "test": [str(tmp_path / "link.en"), test[1]]}
    assert "was given as dev and as test text" in refusal(tiny, tmp_path / "out")
    tiny["data"] = {"train": train, "dev": dev, "test": test}
    both = len({*lines[:200]} & {*lines[150:250]})
    assert said(tiny, tmp_path / "out", f"{both} of 100 dev sentences are also in the train text")
    tiny["data"]["dev"] = sides(tmp_path, "dev", lines[200:299])
    assert not said(tiny, tmp_path / "out", "are also in")


def test_a_measure_that_the_model_cannot_have(tmp_path: Path) -> None:
    """Of a language model, whose words are no translations."""
    folder = asker("gpt2").save(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines(30)) + "\n")
    values = {
        "model": str(folder),
        "data": {"train": str(text), "dev": str(text)},
        "scoring": {"measures": ["ablation.bleu"]},
        "pruning": [],
    }
    assert "ablation.bleu needs translations" in refusal(values, tmp_path / "out")


def test_measures_that_a_plan_leaves_open_are_those_of_the_loaded_model(tmp_path: Path) -> None:
    """Relevance is usual in translation, and needs the queries and keys that FSMT computes in its own code."""
    shape = {"langs": ["en", "de"], "src_vocab_size": 31, "tgt_vocab_size": 31, **TWO_STACKS}
    del shape["vocab_size"], shape["forced_eos_token_id"]
    hf = build("FSMTForConditionalGeneration", **{**shape, **IDS, "decoder_start_token_id": START})
    model = hw.Model(hf, letters("$A </s>"))
    folder = model.save(tmp_path / "model")
    data = {split: sides(tmp_path, split, sentences(30, 0)) for split in ("train", "dev")}
    plan = plan_of({"model": str(folder), "data": data, "pruning": []})
    run = RunContext(plan, tmp_path / "out", QUIET)
    assert run.measures == [*usual_measures(model)]
    assert "gradient" in run.measures and "lrp.ding" not in run.measures
    assert dry_run(plan, tmp_path / "out")
