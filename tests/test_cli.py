"""The commands: what they write and print, bad input in one sentence with exit status 1, quick help, two processes."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
import transformers
from headwise.study.scoring import USUAL
from headwise.study.stage import opened
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    PreTrainedModel,
)

import headwise as hw
from headwise import cli
from headwise.data.embedded import write_parallel
from headwise.importance.curves import CURVES
from headwise.importance.judge import FAITHFULNESS
from headwise.study import Progress, make_plan, run_study

SHAPE = ["model.encoder_layers=1", "model.decoder_layers=1", "model.heads=4", "model.width=32", "model.feedforward=32"]
SMALL = [*SHAPE, "model.vocabulary=300", "training.epochs=2", "training.batch_tokens=1260", "training.dtype=fp32"]
FAST = ["pruning.epochs=1", "pruning.gate_learning_rate=2.0", "pruning.warmup=1", "training.batch_tokens=1260"]
LIGHT = ["search.beam=1", "speed.sentences=3", "speed.rounds=1", "training.dtype=fp32"]


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts (`train.en` …) and a trained model in `run/model`, not to be changed."""
    torch.set_num_threads(1)
    datasets.disable_progress_bars()  # as the environment does for a command, when the libraries are loaded later
    transformers.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("place")
    for split, count in (("train", 150), ("dev", 12), ("test", 12)):
        write_parallel(folder, split, count)  # type: ignore[arg-type]
    data = {split: [f"{folder}/{split}.en", f"{folder}/{split}.fr"] for split in ("train", "dev")}
    run_study(make_plan({"data": data}, SMALL), folder / "run", Progress(quiet=True), only="train")
    return folder


@pytest.fixture
def model(place: Path) -> str:
    return str(place / "run" / "model")


@pytest.fixture
def texts(place: Path) -> list[str]:
    return both(place / "train.en", place / "train.fr") + dev(place)


def both(source: Path, target: Path) -> list[str]:
    return ["--source", str(source), "--target", str(target)]


def dev(place: Path) -> list[str]:
    return ["--dev-source", f"{place}/dev.en", "--dev-target", f"{place}/dev.fr"]


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line as a user would: exit status, standard output, error output."""

    def run(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headwise", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def refused(call: Call) -> Callable[..., str]:
    """Run a command that must fail: one sentence on the error stream, status 1, nothing on standard output."""

    def run(*words: Any) -> str:
        status, out, err = call(*words)
        last = err.splitlines()[-1]
        assert status == 1 and out == "" and "Traceback" not in err, err
        assert last.startswith("headwise: "), err
        return last.removeprefix("headwise: ")

    return run


class TestCommands:
    def test_train(self, call: Call, texts: list[str], place: Path, tmp_path: Path) -> None:
        status, out, err = call("train", *texts, "--out", tmp_path / "a run", *sets(*SMALL))
        assert status == 0 and out == f"{tmp_path}/a run/model\n" and "train" in err
        mine, same = (
            load_file(folder / "model.safetensors") for folder in (tmp_path / "a run/model", place / "run/model")
        )
        assert all(torch.equal(mine[name], same[name]) for name in mine), "the same code as a study's stage"
        assert pd.read_csv(tmp_path / "a run/train/log.csv").measure.nunique() == 3

    def test_score(self, call: Call, place: Path, model: str, tmp_path: Path) -> None:
        words = ["score", model, *both(place / "dev.en", place / "dev.fr"), "--out", tmp_path]
        status, out, err = call(*words)
        assert status == 0 and out == f"{tmp_path}/heads.csv\n" and "Next: the same command with --judge" in err
        assert f"Wrote {tmp_path}/heads.csv, heads.json, lrp.csv." in err and "arrived at the embeddings" in err
        table = pd.read_csv(tmp_path / "heads.csv")
        assert (table.groupby("measure").value.count() == 12).all()
        measures = json.loads((tmp_path / "heads.json").read_text())["measures"]
        assert set(measures) == set(table.measure) == {*USUAL, "lrp.ding.signed"}
        assert call(*words, "--quiet", "--measure", "confidence") == (0, out, "")
        assert {path.name for path in tmp_path.iterdir()} == {"heads.csv", "heads.json"}

    def test_score_and_judge(self, call: Call, place: Path, model: str, tmp_path: Path) -> None:
        words = ["score", model, *both(place / "dev.en", place / "dev.fr"), "--out", tmp_path, "--judge"]
        status, out, err = call(*words, "--measure", "gradient", "--measure", "ablation")
        assert status == 0 and out == f"{tmp_path}/heads.csv\n" and f"Next: headwise prune {model}" in err
        assert "gradient: rank correlation with exact ablation" in err
        verdict = pd.read_csv(tmp_path / "faithfulness.csv")
        assert list(verdict.columns) == list(FAITHFULNESS) and {"gradient", "random"} <= set(verdict.measure)
        assert list(pd.read_csv(tmp_path / "curves.csv").columns) == list(CURVES)

    @pytest.mark.parametrize("kind", ["causal", "masked"])
    def test_score_a_language_model(self, call: Call, place: Path, model: str, tmp_path: Path, kind: str) -> None:
        language_model(kind, model, tmp_path / "given")
        words = ["score", tmp_path / "given", "--text", place / "dev.fr", "--out", tmp_path / "out"]
        status, out, err = call(*words, "--judge")
        assert status == 0 and out == f"{tmp_path}/out/heads.csv\n" and "Next: headwise roles" in err
        table = pd.read_csv(tmp_path / "out/heads.csv")
        assert set(table.kind) == {"decoder-self" if kind == "causal" else "encoder-self"}
        assert (table.groupby("measure").value.count() == 4).all()

    def test_prune_report_and_translate(
        self, call: Call, texts: list[str], place: Path, model: str, tmp_path: Path
    ) -> None:
        words = ["prune", model, *texts, "--penalty", "1.5", "--penalty", "0", "--out", tmp_path / "out"]
        status, out, err = call(*words, "--max-drop", "100", *sets(*FAST, *LIGHT))
        assert status == 0 and out == f"{tmp_path}/out/pruned/lambda-1.5\n"
        assert "lambda-1.5: 0 of 4 heads stay (encoder-self): " in err
        assert "Chosen: lambda-1.5, the fewest heads of those that lose at most 100 BLEU on dev (--max-drop)." in err
        assert "--max-drop is 100, but the whole model has only" in err
        assert "No encoder-self head is left" in err and f"headwise translate {tmp_path}/out/pruned/lambda-1.5" in err
        table = pd.read_csv(tmp_path / "out/pruning.csv").groupby("setting").kept.first().to_dict()
        assert table.keys() == {"full", "lambda-1.5", "lambda-0"}
        assert (table["full"], table["lambda-1.5"]) == (4, 0) and table["lambda-0"] > 0
        page = tmp_path / "out/report.html"
        page.unlink()
        assert call("report", tmp_path / "out") == (0, f"{page}\n", "") and page.exists()
        status, out, _ = call("translate", tmp_path / "out/pruned/lambda-1.5", "--source", place / "dev.en")
        assert status == 0 and len(out.splitlines()) == 12

    def test_prune_to_a_number_with_gates(self, call: Call, texts: list[str], model: str, tmp_path: Path) -> None:
        words = ["prune", model, *texts, "--keep", "1", "--keep", "2", "--method", "top-k", "--out", tmp_path / "out"]
        status, out, _ = call(*words, *sets(*FAST, *LIGHT))
        assert status == 0 and out == f"{tmp_path}/out/pruned/top-1\n", "within the usual 0.5 BLEU"
        table = pd.read_csv(tmp_path / "out/pruning.csv")
        assert table.groupby("setting").kept.first().to_dict() == {"full": 4, "top-1": 1, "top-2": 2}
        plan = (tmp_path / "out/plan.toml").read_text()
        assert 'method = "top-k"' in plan and "keep = [1, 2]" in plan and "max_drop = 0.5" in plan

    def test_prune_to_one_number_gives_that_model(
        self, call: Call, texts: list[str], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever it costs: here BLEU falls by 40 on paper."""
        paper = {"full": 40.0}
        monkeypatch.setattr("headwise.study.tables.value_of", lambda run, stage, _: paper.get(stage.split("/")[2], 0.0))
        words = ["prune", model, *texts, "--out", tmp_path / "out", *sets(*FAST, *LIGHT)]
        words += ["--keep", "encoder-self=1", "--keep", "cross=3"]
        status, out, err = call(*words)
        small = f"{tmp_path}/out/pruned/keep-encoder-self-1+cross-3"
        assert (status, out) == (0, f"{small}\n") and f"headwise translate {small}" in err
        assert "4 of 8 heads stay (encoder-self 1 of 4, cross 3 of 4): " in err and "of the weights saved." in err
        facts = json.loads((tmp_path / "out/run.json").read_text())
        assert (facts["chosen"], facts["max_drop"]) == (Path(small).name, None)
        assert "No smaller model loses at most 1 BLEU on dev (--max-drop)" in call(*words, "--max-drop", 1)[2]

    def test_prune_greedily(self, call: Call, texts: list[str], place: Path, model: str, tmp_path: Path) -> None:
        words = [
            "prune",
            model,
            *texts,
            "--method",
            "greedy",
            "--kinds",
            "encoder-self,cross",
            "--out",
            tmp_path / "out",
        ]
        tested = ["--test-source", f"{place}/test.en", "--test-target", f"{place}/test.fr"]
        status, out, err = call(*words, "--keep", "encoder-self=1", "--keep", "cross=3", *tested)
        assert status == 0 and out == f"{tmp_path}/out/pruned/greedy-gradient-4\n"
        assert "4 of 8 heads stay (encoder-self 1 of 4, cross 3 of 4): " in err and "BLEU on dev, " in err
        assert f"Next: echo 'A sentence.' | headwise translate {tmp_path}/out/pruned/greedy-gradient-4" in err
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"pruning.csv", "layouts", "pruned", "run.json"}
        small = hw.load(tmp_path / "out/pruned/greedy-gradient-4")
        assert small.heads.query == {"encoder-self": (1,), "decoder-self": (4,), "cross": (3,)}
        table = pd.read_csv(tmp_path / "out/pruning.csv")
        assert {"bleu", "chrf", "loss", "bleu_difference", "dev_bleu", "dev_loss"} <= set(table.measure)
        assert set(table[table.measure == "bleu"].setting) == {"full", "greedy-gradient-4"}

    def test_prune_a_language_model(self, call: Call, place: Path, model: str, tmp_path: Path) -> None:
        language_model("masked", model, tmp_path / "given")
        words = ["prune", tmp_path / "given", "--text", place / "train.fr", "--out", tmp_path / "out"]
        status, out, err = call(*words, "--max-drop", "1000", "--score", "confidence", "--rescore", "--compensate")
        assert status == 0 and out == f"{tmp_path}/out/pruned/greedy-confidence-1\n"
        assert "every tenth sentence is held out" in err and "% perplexity on dev" in err
        assert hw.load(tmp_path / "out/pruned/greedy-confidence-1").heads.total == 1
        status, _, err = call(*words, "--keep", "2", "--dev-text", place / "dev.fr", "--quiet")
        assert (status, err) == (0, "") and (tmp_path / "out/pruned/greedy-gradient-2").is_dir()
        assert not (tmp_path / "out/pruned/greedy-confidence-1").exists(), "an earlier result is replaced as a whole"

    def test_evaluate(self, call: Call, place: Path, model: str, tmp_path: Path) -> None:
        words = [*both(place / "dev.en", place / "dev.fr"), "--out", tmp_path, "--beam", "1"]
        status, out, err = call("evaluate", model, place / "run", *words)
        table = pd.read_csv(tmp_path / "quality.csv")
        assert status == 0 and out == f"{tmp_path}/quality.csv\n" and "bleu_difference" in err
        assert list(table.columns) == ["model", "measure", "value", "low", "high", "made"]
        assert table[table.measure == "bleu_difference"].value.tolist() == [0.0]
        assert "p = 1.0000" in table[table.measure == "bleu_difference"].made.item()

    def test_translate_from_standard_input_and_to_a_file(
        self, call: Call, place: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = (place / "dev.en").read_text().splitlines()
        expected = "".join(f"{line}\n" for line in hw.load(model).translate(lines, beam=2))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        assert call("translate", model, "--beam", "2") == (0, expected, "")
        written = tmp_path / "new" / "out.txt"
        words = ["translate", model, "--beam", 2, "--source", place / "dev.en", "--out", written]
        assert call(*words) == (0, "", "") and written.read_text() == expected
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        assert call("translate", model) == (0, "", "")

    def test_demo_takes_changes(self, call: Call, tmp_path: Path) -> None:
        small = ["data.embedded.train=150", "data.embedded.dev=10", "data.embedded.test=10"]
        status, out, _ = call(
            "demo", "--out", tmp_path, "--seed", 3, "--quiet", *sets(*small, *SMALL, *FAST, *LIGHT),
            *sets("pruning.penalties=[1.0]"),
        )  # fmt: skip
        assert (status, out) == (0, f"{tmp_path}/report.html\n")
        assert json.loads((tmp_path / "run.json").read_text())["signature"]["seed"] == 3

    def test_study_with_only(self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("plan.toml").write_text('name = "mine"\n[data.embedded]\ntrain = 150\ndev = 10\n')
        status, out, _ = call("study", "plan.toml", "--only", "train", "--seed", 5, "--quiet", *sets(*SMALL))
        assert (status, out) == (0, "runs/mine\n")
        assert "seed = 5" in Path("runs/mine/plan.toml").read_text()

    def test_data_list(self, call: Call) -> None:
        status, out, _ = call("data", "list")
        assert status == 0 and "multi30k" in out


def test_nothing_but_the_result_is_printed(place: Path, model: str, texts: list[str], tmp_path: Path) -> None:
    """In processes of their own, where the libraries' bars and warnings would show: of loading, mapping, saving."""
    with (place / "dev.en").open() as lines:
        done = subprocess.run(command("translate", model), stdin=lines, env=ALONE, capture_output=True, check=True)
    assert done.stderr == b"" and len(done.stdout.splitlines()) == 12
    words = command("train", *texts, "--out", tmp_path, "--quiet", *sets(*SMALL))
    done = subprocess.run(words, env=ALONE, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/model\n".encode(), b"")


def test_what_is_wrong_in_the_words_is_told_before_a_model_is_loaded(
    refused: Callable[..., str], place: Path, texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("words")
    for words, told in (
        (["--out", tmp_path], "there is something else (thesis.txt)"),
        (["--out", tmp_path / "thesis.txt" / "out"], "is not possible"),
        (["--score", "fame"], "'fame' was asked for"),
        (["--score", "random", "--rescore"], "would stay as it is"),
        (["--kinds", "crosss"], "'crosss' is none of"),
    ):
        given = ["prune", "./no-model", *texts, "--method", "greedy", "--keep", "3", "--out", tmp_path / "new"]
        assert told in refused(*given, *words)
    assert "--target was given without --source" in refused("score", "./no-model", "--target", place / "dev.fr")
    assert "without --target: name both" in refused("score", "./no-model", "--source", place / "dev.en")


def test_all_heads_stay(
    call: Call, texts: list[str], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are were asked for, or no fewer are good enough: each is told as it is."""
    words = ["prune", model, *texts, "--method", "greedy", "--out", tmp_path / "out", "--keep", "4"]
    told = call(*words)[2]
    assert "4 of 4 heads stay (encoder-self), as was asked: nothing was removed." in told and "max-drop" not in told
    monkeypatch.setattr("headwise.study.cost.Cost.smallest", lambda cost, limit: cost.found[0])
    told = call(*words[:-2], "--max-drop", "0")[2]
    assert "All heads stay: no smaller model loses at most 0 BLEU on dev (--max-drop)" in told
    assert re.search(r"; greedy-gradient-[123] comes nearest with [-+]\d+\.\d\d\. Allow more", told)


def test_the_readme_lines_in_python(place: Path, model: str, tmp_path: Path) -> None:
    loaded = hw.load(model)
    text = hw.ParallelText.read(place / "train.en", place / "train.fr")
    held_out = hw.ParallelText.read(place / "dev.en", place / "dev.fr")
    heads = hw.score(loaded, held_out)
    assert list(heads.kind.unique()) == ["encoder-self", "decoder-self", "cross"]
    options: dict[str, Any] = {"epochs": 1, "gate_learning_rate": 2.0, "batch_tokens": 1260, "dtype": "fp32"}
    small = hw.prune(loaded, text, held_out, penalty=1.5, warmup=1, **options)
    small.save(tmp_path / "small")
    again = hw.load(tmp_path / "small")
    assert again.heads.query["encoder-self"] == (0,) and len(again.translate(["Hello."])) == 1
    table = hw.evaluate([hw.load(model), again], held_out, beam=1)
    assert set(table.measure) == {"bleu", "chrf", "bleu_difference", "tokens_per_second"}
    with pytest.raises(hw.HeadwiseError, match="unknown key 'beams'; allowed here"):
        hw.evaluate([loaded], text, beams=3)


class TestStart:
    def test_help_and_import_are_quick(self) -> None:
        """Everything heavy is loaded when it is used."""
        heavy = "[m for m in ('torch', 'transformers', 'datasets', 'pandas') if m in sys.modules]"
        code = f"import sys, headwise.cli; assert callable(headwise.report); assert dir(headwise); assert {heavy} == []"
        for words in (["-c", code], ["-m", "headwise", "--help"], ["-m", "headwise", "prune", "--help"]):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2

    def test_every_public_name_is_there(self) -> None:
        assert all(getattr(hw, name) for name in hw.__all__) and set(dir(hw)) == set(hw.__all__)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            hw.nothing  # type: ignore[attr-defined]  # noqa: B018
        importlib.import_module("headwise.report.page")
        assert callable(hw.report), "the room of the same name does not hide the function"

    @pytest.mark.parametrize("words", [[], ["--help"], ["study", "--help"]])
    def test_help(self, call: Call, words: list[str]) -> None:
        status, out, err = call(*words)
        assert status in (0, 2) and "Usage: headwise" in out + err

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["paint"], "No such command 'paint'"),
            (["score"], "Missing argument 'model'"),
            (["demo", "--sed", "3"], "No such option: --sed"),
            (["demo", "--seed", "three"], "'--seed': Input should be a valid integer"),
            (["demo", "--seed", "-1"], "'--seed': Input should be greater than or equal to 0"),
            (["translate", "x", "--beam", "0"], "'--beam': Input should be greater than or equal to 1"),
        ],
    )
    def test_what_was_mistyped(self, call: Call, words: list[str], expected: str) -> None:
        status, out, err = call(*words)
        assert status == 2 and out == "" and expected in err.splitlines()[-1]


class TestText:
    @pytest.fixture
    def train(self, refused: Callable[..., str], place: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
        def run(source: bytes | None, target: bytes | None, *more: str) -> str:
            for name, content in (("a", source), ("b", target)):
                if content is not None:
                    (tmp_path / name).write_bytes(content)
            words = both(tmp_path / "a", tmp_path / "b") + dev(place)
            return refused("train", *words, "--out", tmp_path / "out", *sets(*SMALL), *more)

        yield run
        assert not (tmp_path / "out" / "model").exists() and not list(tmp_path.glob("out/.work/text/*"))[6:]

    def test_line_counts_that_differ(self, train: Callable[..., str]) -> None:
        told = train(b"a\nb\nc\n", b"a\nb\n")
        assert "has 3 lines" in told and "has 2" in told

    def test_not_utf8(self, train: Callable[..., str]) -> None:
        assert "Line 2 of" in (told := train(b"a\n\xff\n", b"a\nb\n")) and "not UTF-8" in told

    def test_an_empty_file(self, train: Callable[..., str]) -> None:
        assert "/b' is empty" in train(b"a\n", b"")

    def test_only_blank_lines(self, train: Callable[..., str]) -> None:
        assert "are blank" in train(b"\n\n", b"\n\n")

    def test_a_path_that_does_not_exist(self, train: Callable[..., str], tmp_path: Path) -> None:
        assert f"There is no file '{tmp_path}/b'" in train(b"a\n", None)
        assert not (tmp_path / "out").exists()

    def test_a_corpus_shorter_than_a_batch(self, train: Callable[..., str]) -> None:
        told = train(b"She sleeps.\n" * 9, b"Elle dort.\n" * 9)
        assert "The training text has 9 pairs" in told and "give more text or lower batch_tokens" in told

    def test_sentences_all_too_long(self, train: Callable[..., str]) -> None:
        assert "longer than max_length = 4" in train(
            b"She sleeps well. " * 9, b"Elle dort. " * 9, *sets("model.max_length=4")
        )

    def test_heads_that_do_not_fit_the_width(self, train: Callable[..., str]) -> None:
        told = train(b"She sleeps.\n" * 9, b"Elle dort.\n" * 9, *sets("model.heads=5"))
        assert "5 heads were asked for in a width of 32" in told

    def test_no_text_at_all(self, refused: Callable[..., str], model: str, place: Path) -> None:
        assert "--source FILE --target FILE, or with --text FILE" in refused("score", model)
        assert "--dev-source FILE" in refused("train", *both(place / "dev.en", place / "dev.fr"))

    def test_one_sided_text_or_pairs(
        self, refused: Callable[..., str], model: str, place: Path, tmp_path: Path
    ) -> None:
        words, out = both(place / "dev.en", place / "dev.fr"), ["--out", tmp_path / "out"]
        assert "one-sided text, or pairs, not both" in refused("score", model, *words, "--text", place / "dev.en", *out)
        assert "scored on parallel text" in refused("score", model, "--text", place / "dev.en", *out)
        (tmp_path / "empty").write_text("")
        assert "is empty" in refused("score", model, "--text", tmp_path / "empty", *out)
        told = refused("score", model, *words, *out, "--judge", "--measure", "lrp")
        assert "judged by ablation.zero, which is not among the measures" in told

    def test_standard_input_that_is_not_utf8(
        self, refused: Callable[..., str], model: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff")))
        assert "Standard input is not UTF-8" in refused("translate", model)


class TestPlans:
    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ("training.epoch=3", "unknown key 'training.epoch'; allowed here: accumulate, average,"),
            ("training.epochs=many", "'training.epochs' is 'many'"),
            ("pruning.penalties=[-1]", "penalties must be numbers of at least 0"),
            (
                "pruning.kinds=['decoder']",
                "'pruning.kinds.0' is 'decoder', which does not fit: input should be 'encoder-s",
            ),
            ("model=$NOWHERE_AT_ALL/x", "$NOWHERE_AT_ALL"),
            ("epochs", "it should read key=value"),
        ],
    )
    def test_changes(self, refused: Callable[..., str], tmp_path: Path, change: str, expected: str) -> None:
        assert expected in refused("demo", "--out", tmp_path / "out", "--set", change)
        assert not (tmp_path / "out").exists()

    def test_options(self, refused: Callable[..., str], texts: list[str], model: str, tmp_path: Path) -> None:
        out = ["--out", tmp_path / "out"]
        assert "at least 0" in refused("prune", model, *texts, "--penalty", "-1", *out)
        assert "'heads' is none of encoder-self, decoder-self, cross" in refused(
            "prune", model, *texts, "--kinds", "cross,heads", *out
        )
        assert "--max-drop -2 was given" in refused("prune", model, *texts, "--max-drop", "-2", *out)
        assert "stages are train, score, roles, prune, eval" in refused(
            "study", plan_in(tmp_path), "--only", "all", *out
        )
        assert "The measure 'fame' was asked for; there is confidence" in refused(
            "score", model, *texts[:4], "--measure", "fame", "--out", tmp_path / "score"
        )
        assert "does not exist" in refused("study", tmp_path / "no.toml", *out)
        assert not (tmp_path / "out").exists()

    def test_options_of_pruning(
        self, refused: Callable[..., str], texts: list[str], place: Path, model: str, tmp_path: Path
    ) -> None:
        out = ["--out", tmp_path / "out"]
        for words, told in (
            (["--keep", "ten"], "--keep ten was given: write a number of heads, or KIND=NUMBER."),
            (["--keep", "=3"], "--keep =3 was given"),
            (["--keep", "cross=3", "--keep", "4"], "give each kind one number, or all heads one"),
            (["--keep", "0"], "at least one head must stay"),
            (["--keep", "encoder=3"], "but the kinds of heads are encoder-self, decoder-self, cross"),
            (
                ["--keep", "cross=2", "--kinds", "encoder-self"],
                "--kinds encoder-self was given, but --keep names numbers for cross",
            ),
            (["--method", "magic"], "--method magic was asked for; there is gates, top-k, greedy."),
            (["--method", "top-k"], "keep is needed"),
            (["--method", "top-k", "--keep", "2", "--penalty", "1"], "--penalty was given, which means nothing"),
            (["--score", "gradient"], "--score was given, which means nothing with --method gates"),
            (["--text", place / "dev.en"], "one-sided text, or pairs, not both"),
            (
                ["--text", place / "dev.en", "--method", "gates"],
                "--text was given with --method gates: one-sided text is for language models",
            ),
            (["--method", "greedy", "--keep", "3", "--max-drop", "1"], "how many heads stay, or how much may be lost"),
            (["--method", "greedy", "--keep", "3", "--keep", "2"], "goes to one number of heads"),
            (["--method", "greedy", "--keep", "9"], "9 heads were to be kept, but 4 can be pruned here"),
            (["--method", "greedy", "--penalty", "1"], "--penalty was given, which means nothing"),
            (["--method", "greedy", "--set", "seed=3"], "--set was given, which means nothing"),
            (["--keep", "3", "--set", "pruning.keep=[2]"], "--keep and --set pruning.keep=[2] were given: say it once"),
            (["--method", "greedy", "--keep", "3", "--score", "fame"], "The measure 'fame' was asked for"),
            (["--method", "greedy", "--keep", "3", "--kinds", "heads"], "'heads' is none of encoder-self"),
            (["--method", "greedy", "--max-drop", "-1"], "give a number of at least 0"),
            (["--max-drop", "nan", "--keep", "2"], "--max-drop nan was given"),
            (["--test-target", place / "dev.fr", "--keep", "2"], "--test-target was given without --test-source"),
            (["--dev-text", place / "dev.en", "--method", "greedy"], "--dev-text was given and --dev-source"),
        ):
            assert told in refused("prune", model, *texts, *words, *out), words
        assert "No text was given" in refused("prune", model, "--method", "greedy", "--keep", "3", *out)
        assert "scored on parallel text" in refused("prune", model, "--text", place / "dev.en", "--keep", "3", *out)
        assert not (tmp_path / "out").exists()
        told = refused("prune", model, *texts, "--keep", "5", "--out", tmp_path / "five", *sets(*LIGHT))
        assert "5 heads were to be kept, but there are 4 of encoder-self in" in told
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("words")
        told = refused("prune", model, *texts, "--method", "greedy", "--keep", "3", *out)
        assert "where there is something else (thesis.txt)" in told and len(list((tmp_path / "out").iterdir())) == 1

    def test_options_of_a_study(
        self, refused: Callable[..., str], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ["study", plan_in(tmp_path), "--out", tmp_path / "out"]
        status, out, _ = call(*words, "--dry-run")
        assert status == 0 and "train" in out and not (tmp_path / "out").exists()
        assert "ray only" in refused(*words, "--workers", "dask", *sets(*SMALL), "--only", "train")
        given: dict[str, Any] = {}
        monkeypatch.setattr("headwise.study.run_study", lambda *words, **options: given.update(options))
        call(*words, "--workers", "ray", "--threads", "1", "--only", "train")
        assert given == {"workers": "ray", "threads": 1}

    def test_an_animation_needs_gates(self, refused: Callable[..., str], place: Path, tmp_path: Path) -> None:
        assert "name a file that ends in .gif or .mp4" in refused("report", place / "run", "--animation", "film.avi")
        assert not Path("film.avi").exists()

    def test_devices(self, refused: Callable[..., str], model: str) -> None:
        assert "--device quantum was asked for, but torch" in refused("translate", model, "--device", "quantum")
        if not torch.cuda.is_available():
            assert "--device cuda was asked for" in refused("translate", model, "--device", "cuda")


def plan_in(folder: Path) -> Path:
    (folder / "plan.toml").write_text("[data.embedded]\ntrain = 150\ndev = 10\ntest = 10\n")
    return folder / "plan.toml"


class TestModels:
    def test_nothing_there(self, refused: Callable[..., str], place: Path, tmp_path: Path) -> None:
        words = both(place / "dev.en", place / "dev.fr")
        assert "no config.json" in refused("score", tmp_path, *words, "--out", tmp_path / "out")
        told = refused("report", tmp_path / "nothing")
        assert "that is no folder" in told

    @pytest.mark.parametrize("kind", ["deberta", "gptj"])
    def test_outside_the_seam(
        self, refused: Callable[..., str], place: Path, model: str, tmp_path: Path, kind: str
    ) -> None:
        saved(outsider(kind), model, tmp_path / kind)
        told = refused("score", tmp_path / kind, *both(place / "dev.en", place / "dev.fr"), "--out", tmp_path / "out")
        assert {"deberta": "DebertaV2Model", "gptj": "GPTJForCausalLM"}[kind] in told
        assert "attention" in told and not (tmp_path / "out" / "heads.csv").exists()

    @pytest.mark.parametrize("kind", ["BertModel", "GPT2LMHeadModel"])
    def test_no_translation_model(
        self, refused: Callable[..., str], place: Path, model: str, texts: list[str], tmp_path: Path, kind: str
    ) -> None:
        given, words = tmp_path / kind, both(place / "dev.en", place / "dev.fr")
        small = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
        bert = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, **small)
        gpt = GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=64, **small)
        saved(BertModel(bert) if kind == "BertModel" else GPT2LMHeadModel(gpt), model, given)
        out = ["--out", tmp_path / "out"]
        assert f"is a {kind}, but a translation model" in refused("evaluate", given, *words, *out)
        told = refused("prune", given, *texts, "--keep", "1", *out)
        assert f"is a {kind}, which does not translate" in told and "encoder-self" not in told
        pairs = {split: [str(place / f"dev.{side}") for side in ("en", "fr")] for split in ("train", "dev")}
        plan = json.dumps(str(given)), json.dumps(pairs["train"]), json.dumps(pairs["dev"])
        (tmp_path / "plan.toml").write_text(
            "model = {}\npruning.keep = [1]\ndata.train = {}\ndata.dev = {}\n".format(*plan)
        )
        assert f"is a {kind}, but a translation model" in refused("study", tmp_path / "plan.toml", *out)
        assert f"is a {kind}, which is scored on one-sided text" in refused("score", given, *words, *out)
        assert f"is a {kind}" in refused("translate", given, "--source", place / "dev.en")

    def test_a_model_without_a_tokenizer(
        self, refused: Callable[..., str], place: Path, model: str, tmp_path: Path
    ) -> None:
        bare = Path(shutil.copytree(model, tmp_path / "bare"))
        for file in bare.glob("*token*"):
            file.unlink()
        words = both(place / "dev.en", place / "dev.fr")
        assert "has no tokenizer" in refused("score", bare, *words, "--out", tmp_path / "out")
        assert "has no tokenizer" in refused("translate", bare, "--source", place / "dev.en")

    @pytest.mark.parametrize("damage", ["{", "[]", '{"format": "headwise-layout", "version": 2}', "kept"])
    def test_a_broken_layout(
        self, refused: Callable[..., str], place: Path, model: str, tmp_path: Path, damage: str
    ) -> None:
        loaded = hw.load(model)
        loaded.remove(hw.HeadMask(loaded.heads, frozenset({hw.Head("encoder-self", 0, 1)}))).save(tmp_path / "small")
        layout = tmp_path / "small" / "headwise.json"
        content = json.loads(layout.read_text())
        content["kept"]["encoder-self"] = [[17]]
        layout.write_text(json.dumps(content) if damage == "kept" else damage)
        assert "layout" in refused("translate", tmp_path / "small", "--source", place / "dev.en").lower()

    def test_damaged_weights(self, refused: Callable[..., str], place: Path, model: str, tmp_path: Path) -> None:
        bad = Path(shutil.copytree(model, tmp_path / "bad"))
        weights = (bad / "model.safetensors").read_bytes()
        (bad / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        assert refused("translate", bad, "--source", place / "dev.en")


def language_model(kind: str, tokenizer_of: str, folder: Path) -> None:
    """A tiny GPT-2, or BERT, of two layers with two heads, with another model's tokenizer."""
    small = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    given: PreTrainedModel = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **small))
    if kind == "masked":
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        given = BertForMaskedLM(BertConfig(max_position_embeddings=64, **shape, **small))
    given.save_pretrained(folder)
    tokenizer = hw.load(tokenizer_of).tokenizer
    tokenizer.mask_token = tokenizer.unk_token
    tokenizer.save_pretrained(folder)


def outsider(kind: str) -> PreTrainedModel:
    if kind == "deberta":
        shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        return DebertaV2Model(DebertaV2Config(vocab_size=300, hidden_size=16, pad_token_id=0, **shape))
    return GPTJForCausalLM(GPTJConfig(vocab_size=300, n_embd=16, n_layer=1, n_head=2, n_positions=64, rotary_dim=4))


def saved(model: PreTrainedModel, tokenizer_of: str, folder: Path) -> None:
    model.save_pretrained(folder)
    hw.load(tokenizer_of).tokenizer.save_pretrained(folder)


class TestPlaces:
    def test_out_cannot_be_written(
        self, refused: Callable[..., str], place: Path, texts: list[str], model: str, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        words, out = both(place / "dev.en", place / "dev.fr"), tmp_path / "file" / "out"
        for command in (["score", model, *words], ["evaluate", model, *words], ["prune", model, *texts]):
            assert "is not possible (Not a directory)" in refused(*command, "--out", out)
        assert "is not possible" in refused("train", *texts, "--out", tmp_path / "file")
        assert "is not possible" in refused("demo", "--out", "/proc/headwise")
        assert "could not be written" in refused("translate", model, "--source", place / "dev.en", "--out", out)
        assert (tmp_path / "file").read_text() == "in the way"

    def test_two_runs_in_one_folder(self, refused: Callable[..., str], texts: list[str], tmp_path: Path) -> None:
        with opened(tmp_path, Progress(quiet=True)):
            assert "Another process is working on" in refused("train", *texts, "--out", tmp_path, *sets(*SMALL))

    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, "No space left on device"),
            OSError(errno.EACCES, "Permission denied", "some/file"),
            SafetensorError("I/O error: No space left on device (os error 28)"),
        ],
        ids=str,
    )
    def test_whatever_fails_for_want_of_room(self, capsys: pytest.CaptureFixture[str], error: Exception) -> None:
        def fail() -> None:
            raise error

        assert cli.guarded(fail) == 1
        told = capsys.readouterr().err
        assert told.startswith("headwise: ") and "make room" in told and told.count("\n") == 1

    def test_other_errors_are_ours_and_keep_their_traceback(self) -> None:
        def fail() -> None:
            raise FileNotFoundError(errno.ENOENT, "no such file")

        with pytest.raises(FileNotFoundError):
            cli.guarded(fail)


def command(*words: Any, launch: bool = False) -> list[str]:
    """A command line; with `launch` in two processes (`accelerate launch --cpu` starts only one without mpirun)."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return [sys.executable, *(torchrun if launch else []), "-m", "headwise", *map(str, words)]


ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("kilobytes", [64, 400, 1200])
def test_a_full_disk(texts: list[str], tmp_path: Path, kilobytes: int) -> None:
    """A real one: training stops with a sentence wherever the disk fills up, and goes on when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        words = command("train", *texts, "--out", disk / "out", *sets(*SMALL))
        done = subprocess.run(words, env=ALONE, capture_output=True, text=True, check=False)
        assert (
            done.returncode == 1
            and done.stdout == ""
            and "the same command, given again" in done.stderr
            and "Traceback" not in done.stderr
        ), done.stderr
        assert done.stderr.splitlines()[-1].startswith("headwise: ") and "room" in done.stderr
        assert not (disk / "out/model").exists() and not list(disk.glob("out/**/*.partial"))
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        assert subprocess.run(words, env=ALONE, capture_output=True, check=False).returncode == 0
        assert hw.load(disk / "out").translate(["She sleeps."])
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_hand(texts: list[str], tmp_path: Path, number: signal.Signals, status: int) -> None:
    """Ctrl-C and `kill` say how to go on."""
    words = command("train", *texts, "--out", tmp_path, *sets(*SMALL, "training.epochs=1000"))
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job would not hear Ctrl-C
    process = subprocess.Popen(words, env=ALONE, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    while not list(tmp_path.glob(".work/train-*/checkpoint-*/complete")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    told = process.communicate()[1]
    assert process.returncode == status and "Traceback" not in told
    assert told.splitlines()[-1] == "headwise: Stopped. Run the same command again to go on where it was."


@pytest.mark.slow
def test_two_processes_train_as_one_does(texts: list[str], tmp_path: Path) -> None:
    """Dropout 0 and the same batches in every update: for 100 updates the same losses to 1e-5, and the same weights."""
    one, two = tmp_path / "one", tmp_path / "two"
    changes = sets(*SMALL, "model.dropout=0", "training.batch_tokens=630", "training.epochs=25", "training.warmup=20")
    changes += sets("training.accumulate=2", "training.patience=100")
    subprocess.run(command("train", *texts, *changes, "--out", one), env=ALONE, check=True, capture_output=True)
    launched = command("train", *texts, *changes, "--out", two, launch=True)
    done = subprocess.run(launched, env=ALONE, check=True, capture_output=True, text=True)
    assert done.stdout == f"{two}/model\n", "the second process says nothing"
    logs = [pd.read_csv(folder / "train/log.csv") for folder in (one, two)]
    assert logs[0].step.max() >= 100 and list(logs[0].step) == list(logs[1].step)
    assert (logs[0].measure == logs[1].measure).all() and "dev_loss" in set(logs[0].measure)
    assert (logs[0].value - logs[1].value).abs().max() < 1e-5
    weights = [load_file(folder / "model/model.safetensors") for folder in (one, two)]
    assert max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0]) < 1e-4
    assert not list(two.glob(".work/train*"))

    more = sets(*FAST, *LIGHT, "pruning.penalties=[1.5]", "training.accumulate=2", "training.batch_tokens=630")
    words = command("prune", two, *texts, *more, "--quiet", "--out", tmp_path / "small", launch=True)
    done = subprocess.run(words, env=ALONE, check=True, capture_output=True, text=True)
    assert done.stdout == f"{tmp_path}/small/pruned/lambda-1.5\n"
    assert hw.load(tmp_path / "small/pruned/lambda-1.5").heads.query["encoder-self"] == (0,)


@pytest.mark.slow
def test_two_processes_cannot_share_an_odd_number_of_batches(texts: list[str], tmp_path: Path) -> None:
    launched = command("train", *texts, "--out", tmp_path, *sets(*SMALL, "training.accumulate=3"), launch=True)
    done = subprocess.run(launched, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "headwise: accumulate = 3 batches per update cannot be shared out evenly to 2 processes." in done.stderr


@pytest.mark.slow
def test_two_processes_score_as_one_does(model: str, tmp_path: Path) -> None:
    """Text of several batches, of which each process takes every other one."""
    write_parallel(tmp_path, "test", 600)
    words = ["score", model, *both(tmp_path / "test.en", tmp_path / "test.fr"), "--judge"]
    for name in ("confidence", "gradient", "gradient.normalised", "ablation.zero", "ablation.mean", "lrp.ding.pooled"):
        words += ["--measure", name]
    for name, launch in (("one", False), ("two", True)):
        done = subprocess.run(
            command(*words, "--out", tmp_path / name, launch=launch), env=ALONE, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{tmp_path}/{name}/heads.csv\n", "the second process says nothing"
    for name in ("heads", "faithfulness", "curves"):
        one, two = (pd.read_csv(tmp_path / which / f"{name}.csv") for which in ("one", "two"))
        pd.testing.assert_frame_equal(one, two, rtol=2e-4, atol=2e-6)
