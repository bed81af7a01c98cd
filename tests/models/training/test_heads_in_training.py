"""examples/heads_in_training.py: what every head becomes, and the layout of a pruned model from random weights."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

from headwise import load
from headwise.core.layout import HeadMask
from headwise.data.embedded import write_parallel, write_treebank

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "heads_in_training.py"
PLAN = """
name = "tiny"
[data]
train = ["dev.en", "dev.de"]
dev = ["dev.en", "dev.de"]
test = ["dev.en", "dev.de"]
[model]
norm = "pre"
encoder_layers = 2
decoder_layers = 1
heads = 2
width = 16
feedforward = 16
[training]
epochs = 1
batch_tokens = 500
dtype = "float32"
[roles]
treebank = ["dev.conllu"]
confirm = ["dev.conllu"]
"""


def train(folder: Path, *words: str) -> None:
    """The script on the plan in a folder."""
    line = [str(SCRIPT), "plan.toml", "--every", "1", "--updates", "2", *words]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", line)
        runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, a plan, and in `whole` a model that the script trained."""
    folder = tmp_path_factory.mktemp("training")
    files = write_parallel(folder / "text", "dev", 60)
    for file, name in zip(files, ("dev.en", "dev.de"), strict=True):
        file.rename(folder / name)
    write_treebank(folder / "dev.conllu", 60)
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    train(folder, "--out", "whole")
    return folder


def test_every_head_is_recorded_at_every_offset(folder: Path) -> None:
    rows = pd.read_csv(folder / "whole" / "heads.csv")
    assert {*rows["step"]} == {1, 2} and {*rows["class"]} >= {"positional", "confidence"}
    assert len(rows[rows["class"] == "positional"]) == 2 * 4 * 7, "records x heads x offsets"
    assert rows["value"].between(-1, 1).all()


def test_the_layout_of_a_pruned_model_trains_from_random_weights(folder: Path) -> None:
    whole = load(folder / "whole" / "model")
    mask = HeadMask.full(whole.heads).without(["encoder-self/1/0", "cross/0/1"])
    whole.only(mask, grow=True).save(folder / "pruned")
    train(folder, "--out", "scratch", "--like", "pruned")
    assert load(folder / "scratch" / "model").layout == mask
    rows = pd.read_csv(folder / "scratch" / "heads.csv")
    assert len(rows.groupby(["layer", "head"])) == 3


@pytest.mark.parametrize(
    ("named", "says"),
    [("whole/model", "give a model that was pruned"), ("nowhere", "nowhere")],
)
def test_what_has_no_layout_to_train_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], named: str, says: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        train(folder, "--out", "other", "--like", named)
    assert stopped.value.code == 2 and says in capsys.readouterr().err
    assert not (folder / "other").exists()
