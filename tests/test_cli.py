"""The commands: what they write and print; bad input in one sentence with exit status 1; quick help."""

from __future__ import annotations

import importlib
import io
import json
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import datasets
import pandas as pd
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    CodeGenConfig,
    CodeGenForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    XLNetConfig,
    XLNetLMHeadModel,
)
from typer.main import get_command

import headwise as hw
from headwise.core.folders import Folder
from headwise.core.measured import choose_smallest
from headwise.core.options import (
    FULL_LENGTH,
    METHODS,
    Architecture,
    Choice,
    FineTuning,
    Greedy,
    Options,
    Pruning,
    Search,
    Training,
)
from headwise.core.progress import Progress
from headwise.core.tables import CURVES, FAITHFULNESS
from headwise.data.embedded import write_parallel
from headwise.faces import cli
from headwise.importance.measures import usual
from headwise.study import plan_of_prune
from headwise.study.plan import make_plan
from headwise.study.plan_of_prune import usual_controls
from headwise.study.study import run_study
from models.tasks.askers import asker, lines
from study.studies import measured_in

SHAPE = [
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.heads=4",
    "model.width=32",
    "model.feedforward=32",
]
SHAPE += ["model.max_length=48"]
SMALL = [
    *SHAPE,
    "model.vocabulary=300",
    "training.epochs=2",
    "training.batch_tokens=1260",
    "training.dtype=float32",
]
FAST = [
    "pruning.epochs=1",
    "pruning.gate_learning_rate=2.0",
    "pruning.warmup=1",
    "training.batch_tokens=1260",
]
LIGHT = ["search.beam=1", "speed.sentences=3", "speed.rounds=1", "training.dtype=float32"]
TINY = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
GPT2 = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **TINY)
BERT = BertConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=64,
    **TINY,
)


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def both(place: Path, split: str, option: str = "--text") -> list[str]:
    """A text of pairs, as options."""
    return [option, f"{place}/{split}.en", option, f"{place}/{split}.fr"]


@pytest.fixture(scope="module", autouse=True)
def quiet_libraries() -> None:
    """As the environment does for a command, when the libraries are loaded later."""
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts (`train.en` …) and a trained model in `run/model`, not to be changed."""
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
    return both(place, "train") + both(place, "dev", "--dev")


@pytest.fixture
def pairs(place: Path) -> list[str]:
    return both(place, "dev")


@pytest.fixture
def language_model(model: str, tmp_path: Path) -> Callable[[PreTrainedModel], Path]:
    """Saves a model with another one's tokenizer."""

    def save(given: PreTrainedModel) -> Path:
        given.save_pretrained(tmp_path / "given")
        tokenizer = hw.load(model).tokenizer
        tokenizer.mask_token = tokenizer.unk_token
        tokenizer.save_pretrained(tmp_path / "given")
        return tmp_path / "given"

    return save


Call = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]


def following(err: str) -> list[str]:
    """The command that another one recommends, without its first word."""
    (line,) = [line for line in err.splitlines() if line.startswith("Next: headwise ")]
    return shlex.split(line.removeprefix("Next: headwise "))


class TestCommands:
    def test_train(self, call: Call, texts: list[str], place: Path, tmp_path: Path) -> None:
        status, out, err = call("train", *texts, "--out", tmp_path / "a run", *sets(*SMALL))
        assert status == 0 and out == f"{tmp_path}/a run/model\n" and "train" in err
        mine, same = (
            load_file(folder / "model.safetensors")
            for folder in (Path(out.strip()), place / "run/model")
        )
        assert all(torch.equal(mine[name], same[name]) for name in mine), (
            "the same code as a study's task"
        )
        assert pd.read_csv(tmp_path / "a run/train/log.csv").measure.nunique() == 3
        assert (
            "On dev: loss " in err
            and "bleu " in err
            and (tmp_path / "a run/translations/dev/full.txt").exists()
        )

    def test_epochs(self, call: Call, refused: Refused, texts: list[str], tmp_path: Path) -> None:
        words = [
            "train",
            *texts,
            "--out",
            tmp_path / "run",
            "--quiet",
            *sets(*(s for s in SMALL if "epochs" not in s and "width" not in s)),
            "--width",
            32,
        ]
        assert call(*words, "--epochs", 1) == (0, f"{tmp_path}/run/model\n", "")
        assert pd.read_csv(tmp_path / "run/train/log.csv").measure.eq("dev_loss").sum() == 1
        assert not (tmp_path / "run/translations").exists(), "nobody reads what it is worth"
        assert "--epochs and --set training.epochs=3 were given" in refused(
            *words, "--epochs", 1, *sets("training.epochs=3")
        )

    def test_score(self, call: Call, pairs: list[str], model: str, tmp_path: Path) -> None:
        words = ["score", model, *pairs, "--out", tmp_path]
        status, out, err = call(*words)
        assert status == 0 and out == f"{tmp_path}/heads.csv\n" and "Next: headwise score" in err
        assert (
            f"Wrote {tmp_path}/heads.csv, heads.json, lrp.csv." in err
            and "arrived at the embeddings" in err
        )
        table = pd.read_csv(tmp_path / "heads.csv")
        assert (table.groupby("measure").value.count() == 12).all()
        for _, rows in table.groupby("measure"):
            assert f"{rows.value.min():.3g} … {rows.value.max():.3g}" in err, (
                "the table in the terminal"
            )
        measures = json.loads((tmp_path / "heads.json").read_text())["measures"]
        assert set(measures) == set(table.measure) == {*usual(), "lrp.ding.signed"}
        assert call(*words, "--quiet", "--measure", "confidence") == (0, out, "")
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {".lock", "heads.csv", "heads.json", "SHA256SUMS"}, (
            "lrp.csv was of the first scores"
        )

    def test_the_first_sentences_alone(
        self, call: Call, pairs: list[str], model: str, tmp_path: Path
    ) -> None:
        """--limit reads the same as a file of as many lines."""
        few = []
        for number, name in enumerate(pairs[1::2]):
            lines = Path(name).read_text(encoding="utf-8").splitlines(keepends=True)
            (tmp_path / f"few.{number}").write_text("".join(lines[:4]), encoding="utf-8")
            few += ["--text", tmp_path / f"few.{number}"]
        for command, table in (("score", "heads.csv"), ("evaluate", "quality.csv")):
            words = [command, model, *(["--measure", "gradient"] if command == "score" else [])]
            results = []
            for place, text in (("head", [*pairs, "--limit", 4]), ("file", few)):
                assert call(*words, *text, "--quiet", "--out", tmp_path / command / place)[0] == 0
                found = pd.read_csv(tmp_path / command / place / table)
                results.append(found[found.get("measure") != "tokens_per_second"])
            pd.testing.assert_frame_equal(*results)

    def test_score_and_judge(
        self, call: Call, pairs: list[str], model: str, tmp_path: Path
    ) -> None:
        words = ["score", model, *pairs, "--out", tmp_path, "--judge"]
        status, out, err = call(*words, "--measure", "gradient", "--measure", "ablation")
        assert (
            status == 0
            and out == f"{tmp_path}/heads.csv\n"
            and f"Next: headwise prune {model}" in err
        )
        assert "Which score to trust" in err and "gradient: loss " in err
        assert (
            "  Trust gradient when you remove several heads" in err
            or "  Trust ablation.zero" in err
        )
        verdict = pd.read_csv(tmp_path / "faithfulness.csv")
        assert list(verdict.columns) == list(FAITHFULNESS.names) and {"gradient", "random"} <= set(
            verdict.measure
        )
        assert list(pd.read_csv(tmp_path / "curves.csv").columns) == list(CURVES.names)

    @pytest.mark.parametrize("kind", ["decoder-self", "encoder-self"])
    def test_score_a_language_model(
        self, call: Call, place: Path, language_model: Any, tmp_path: Path, kind: str
    ) -> None:
        given = language_model(
            GPT2LMHeadModel(GPT2) if kind == "decoder-self" else BertForMaskedLM(BERT)
        )
        status, out, err = call(
            "score", given, "--text", place / "train.fr", "--out", tmp_path / "out", "--judge"
        )
        assert status == 0 and out == f"{tmp_path}/out/heads.csv\n"
        status, _, said = call(*following(err), "--out", tmp_path / "next")
        assert status == 0, said
        table = pd.read_csv(tmp_path / "out/heads.csv")
        assert set(table.kind) == {kind} and (table.groupby("measure").value.count() == 4).all()

    def test_a_model_that_predicts_no_words(
        self, call: Call, refused: Refused, place: Path, language_model: Any, tmp_path: Path
    ) -> None:
        """Such as one of sentence embeddings: scored and pruned by what needs no prediction."""
        given, text = language_model(BertModel(BERT)), ["--text", place / "train.en"]
        status, out, err = call("score", given, *text, "--out", tmp_path / "scores")
        table = pd.read_csv(out.strip())
        assert status == 0 and "confidence" in set(table.measure) and "highest" in err
        best = table[table.measure == "confidence"].sort_values("value").iloc[-1]
        head = f"{best['kind']}/{best['layer']}/{best['head']}"
        assert f"confidence: highest {head} {best['value']:.3g}" in err
        status, out, err = call(*following(err), "--out", tmp_path / "by advice")
        assert status == 0 and hw.load(out.strip()).heads.total == 2
        status, out, err = call(
            "prune",
            given,
            *text,
            "--keep",
            3,
            "--measure",
            "weight-norm",
            "--out",
            tmp_path / "small",
        )
        assert (
            status == 0
            and out == f"{tmp_path}/small/pruned/greedy-weight-norm-3\n"
            and "encoder heads removed: similarity" in err
        )
        assert hw.load(out.strip()).heads.total == 3
        for words, reason in (
            (["--penalty", 1], "method = 'gates' trains by a loss"),
            (["--keep", 2, "--epochs", 3], "epochs would mean nothing"),
            (["--keep", 2, "--measure", "gradient"], "'gradient' needs a loss"),
        ):
            assert reason in refused("prune", given, *text, *words, "--out", tmp_path / "none")
        assert "predicts no words" in refused(
            "score", given, *text, "--measure", "lrp", "--out", tmp_path / "none"
        )

    def test_evaluate(
        self, call: Call, pairs: list[str], place: Path, model: str, tmp_path: Path
    ) -> None:
        status, out, err = call(
            "evaluate", model, place / "run", *pairs, "--out", tmp_path, "--beam", "1"
        )
        table = pd.read_csv(tmp_path / "quality.csv")
        assert (
            status == 0
            and out == f"{tmp_path}/quality.csv\n"
            and "bleu" in err
            and "  from " in err
        )
        assert list(table.columns) == [
            "model",
            "measure",
            "reference",
            "value",
            "low",
            "high",
            "p",
            "units",
            "made",
        ]
        difference = table[table.reference.notna()]
        bleu = table[table.measure == "bleu"].iloc[0]
        shown = re.search(r"bleu +model +(\S+) \[(\S+), (\S+)\]", err)
        assert shown and "\x1b" not in err
        # Both are rounded, the table to six digits and the terminal to four: the last may differ by one.
        expected = [bleu.value, bleu.low, bleu.high]
        assert [float(number) for number in shown.groups()] == pytest.approx(expected, rel=5.1e-4)
        assert difference.value.tolist() == [0.0] and difference.p.tolist() == [1.0]
        assert bleu.made.split(", ")[-1].startswith("transformers ")

    def test_evaluate_one_sided_text(
        self, call: Call, place: Path, language_model: Any, tmp_path: Path
    ) -> None:
        given = language_model(GPT2LMHeadModel(GPT2))
        words = [
            "evaluate",
            given,
            "--text",
            place / "dev.fr",
            "--out",
            tmp_path / "out",
            "--quiet",
        ]
        assert call(*words) == (0, f"{tmp_path}/out/quality.csv\n", "")
        assert "perplexity" in set(pd.read_csv(tmp_path / "out/quality.csv").measure)

    def test_translate_from_standard_input_and_to_a_file(
        self,
        call: Call,
        refused: Refused,
        place: Path,
        model: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def piped(text: bytes) -> None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

        lines = (place / "dev.en").read_text().splitlines()
        expected = "".join(f"{line}\n" for line in hw.load(model).translate(lines, beam=2))
        piped("\n".join(lines).encode())
        status, out, err = call("translate", model, "--beam", "2")
        assert (status, out) == (0, expected) and "12 of 12 translations do not end" in err
        written = tmp_path / "new" / "out.txt"
        words = ["translate", model, "--beam", 2, "--text", place / "dev.en", "--out", written]
        assert call(*words)[:2] == (0, "") and written.read_text() == expected
        piped(b"")
        assert call("translate", model) == (0, "", "")
        piped(b"a\n\xff")
        assert "Standard input is not UTF-8" in refused("translate", model)
        piped(b"a")
        status, _, error = call("translate", model, "--engine", "marian")
        assert status == 2 and "--engine" in error and "'transformers', 'ct2'" in error

    @pytest.mark.campaign
    def test_demo_takes_changes(self, call: Call, tmp_path: Path) -> None:
        small = [
            "data.embedded.train=150",
            "data.embedded.dev=10",
            "data.embedded.test=10",
            "pruning.penalty=[1.0]",
        ]
        small += ["scoring.untrained=1", "scoring.random_orders=2", "scoring.interactions=2"]
        words = [
            "demo",
            "--toy",
            "--out",
            tmp_path,
            "--seed",
            3,
            "--quiet",
            *sets(*SMALL, *FAST, *LIGHT, *small),
        ]
        assert call(*words) == (0, f"{tmp_path}/report.html\n", "")
        words.remove("--quiet")
        _, _, brief = call(*words)  # a finished study says its outcome again
        assert f"Lab: headwise lab {tmp_path}" in brief
        assert json.loads((tmp_path / "run.json").read_text())["signature"]["seed"] == 3

    def test_study(
        self, call: Call, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("plan.toml").write_text(
            'name = "mine"\n[data.embedded]\ntrain = 150\ndev = 10\ntest = 10\n'
        )
        status, out, _ = call("run", "plan.toml", "--dry-run", "--out", "dry")
        assert status == 0 and "train" in out and not Path("dry").exists()
        train = ["run", "plan.toml", "--only", "train"]
        assert call(*train, "--seed", 5, "--quiet", *sets(*SMALL)) == (0, "runs/mine\n", "")
        assert "seed = 5" in Path("runs/mine/plan.toml").read_text()
        assert "there is ray" in refused(
            *train, "--out", "dask", "--workers", "dask", *sets(*SMALL)
        )
        assert "stages are train, score, roles, prune, eval" in refused(
            *train[:3], "all", "--out", "new"
        )
        assert "seeds" in refused(*train, "--out", "new", "--seed", 2, *sets("seeds=[1, 2]"))
        assert not Path("new").exists() and "does not exist" in refused("run", "no.toml")
        given: dict[str, Any] = {}
        monkeypatch.setattr(
            "headwise.study.study.run_study", lambda *words, **options: given.update(options)
        )
        call(*train, "--out", "with-ray", "--workers", "ray", "--threads", "1")
        assert given == {"given": None, "workers": "ray", "threads": 1}

    def test_data_list(self, call: Call) -> None:
        status, out, _ = call("data", "list")
        rows = [line for line in out.splitlines() if not line.startswith(" ")]
        assert status == 0
        assert any(row.startswith("multi30k") for row in rows)

    def test_the_readme_lines_in_python(self, place: Path, model: str, tmp_path: Path) -> None:
        loaded = hw.load(model)
        text = hw.ParallelText.read(place / "train.en", place / "train.fr")
        held_out = hw.ParallelText.read(place / "dev.en", place / "dev.fr")
        assert list(hw.score(loaded, held_out).table.kind.unique()) == [
            "encoder-self",
            "decoder-self",
            "cross",
        ]
        options = hw.Gates(penalty=1.5, warmup=1, epochs=1, gate_learning_rate=2.0, train="apart")
        training = hw.Training(batch_tokens=1260, dtype="float32")
        small = hw.prune(loaded, text, options, dev=held_out, training=training)
        small.save(tmp_path / "small")
        again = hw.load(tmp_path / "small")
        assert again.heads.query["encoder-self"] == (0,) and len(again.translate(["Hello."])) == 1
        table = hw.evaluate([hw.load(model), again], held_out, search=hw.Search(beam=1)).table
        sizes = {"parameters", "memory", "cache_bytes", "tokens_per_second"}
        assert set(table.measure) == {"bleu", "chrf", *sizes}
        speed = table[table.measure == "tokens_per_second"]
        assert (speed.low <= speed.value).all() and (speed.value <= speed.high).all()


class TestTheFolderOfAStudy:
    """Stands for its model with its texts."""

    def test_files(
        self, call: Call, refused: Refused, place: Path, pairs: list[str], tmp_path: Path
    ) -> None:
        out = ["--quiet", "--out", tmp_path]
        assert call("score", place / "run", *out, "--measure", "confidence")[0] == 0
        own = (tmp_path / "heads.csv").read_bytes()
        assert call("score", place / "run", *pairs, *out, "--measure", "confidence")[0] == 0
        assert (tmp_path / "heads.csv").read_bytes() == own, "the dev text"
        on_dev = call("evaluate", place / "run", *out, "--beam", "1")  # there is no test text
        assert on_dev == (0, f"{tmp_path}/quality.csv\n", "")
        words = [
            "prune",
            place / "run",
            "--method",
            "greedy",
            "--keep",
            "2",
            *sets(*LIGHT),
            "--quiet",
        ]
        assert call(*words, "--out", tmp_path / "small")[0] == 0
        assert f"{place}/dev.en" in (tmp_path / "small" / "plan.toml").read_text()
        assert "none were given" in refused("roles", place / "run", *out)
        assert "No text was given" in refused("score", place / "run" / "model", *out)

    def test_the_embedded_corpus(self, call: Call, tmp_path: Path) -> None:
        data = {"embedded": {"train": 150, "dev": 12, "test": 11}}
        run_study(
            make_plan({"data": data}, SMALL), tmp_path / "run", Progress(quiet=True), only="train"
        )
        out = ["--quiet", "--out", tmp_path / "out"]
        assert call("score", tmp_path / "run", *out, "--measure", "confidence")[0] == 0
        assert json.loads((tmp_path / "out/heads.json").read_text())["sentences"] == 12
        assert call("roles", tmp_path / "run", *out) == (0, f"{tmp_path}/out/labels.csv\n", "")
        sides = [tmp_path / "run/corpus" / f"dev.{language}" for language in ("en", "fr")]
        words = [*out]
        for side in sides:
            words += ["--sets", side, "--words", str(side).replace("dev", "train")]
        assert call("roles", tmp_path / "run", *words)[0] == 0
        assert (tmp_path / "out/sets.csv").read_text().startswith("kind,role,heads,")
        assert (tmp_path / "out/words.csv").read_text().startswith("kind,layer,head,word,")
        words = [
            "prune",
            tmp_path / "run",
            "--method",
            "greedy",
            "--keep",
            "2",
            *sets(*LIGHT),
            "--quiet",
        ]
        assert call(*words, "--out", tmp_path / "small")[0] == 0
        bleu = {("test", "bleu", ""), ("dev", "bleu", "")}
        assert bleu <= measured_in(tmp_path / "small"), "test text, too"

    def test_one_sided_text(
        self, call: Call, place: Path, language_model: Any, tmp_path: Path
    ) -> None:
        words = [
            "prune",
            language_model(GPT2LMHeadModel(GPT2)),
            "--text",
            place / "train.fr",
            "--keep",
            "2",
        ]
        assert call(*words, "--quiet", "--out", tmp_path / "run")[0] == 0
        assert (
            call(
                "score",
                tmp_path / "run",
                "--quiet",
                "--out",
                tmp_path / "score",
                "--measure",
                "entropy",
            )[0]
            == 0
        )
        signature = json.loads((tmp_path / "score/heads.json").read_text())
        assert signature["sentences"] + signature["dropped"] == 15, "every tenth"
        words = ["prune", tmp_path / "run", "--keep", "1", "--quiet", "--out", tmp_path / "one"]
        assert call(*words) == (0, f"{tmp_path}/one/pruned/greedy-repair-1\n", "")


class TestPruning:
    @pytest.mark.campaign
    def test_gates_report_and_translate(
        self, call: Call, texts: list[str], place: Path, model: str, tmp_path: Path
    ) -> None:
        words = [
            "prune",
            model,
            *texts,
            "--penalty",
            "1.5",
            "--penalty",
            "0",
            "--out",
            tmp_path / "out",
        ]
        status, out, err = call(
            *words, "--max-drop", "100", "-v", *sets(*FAST, *LIGHT, "pruning.epochs=8")
        )
        assert status == 0 and out == f"{tmp_path}/out/pruned/lambda-1.5\n"
        assert "4 of 4 encoder heads removed" in err and "lambda-1.5: 0 of 4 heads left" in err
        assert "max_drop is 100, but the whole model has only" in err
        assert f"headwise translate {tmp_path}/out/pruned/lambda-1.5" in err
        table = pd.read_csv(tmp_path / "out/pruning.csv").groupby("setting").kept.first().to_dict()
        assert table.keys() == {"full", "lambda-1.5", "lambda-0"}
        assert (table["full"], table["lambda-1.5"]) == (4, 0) and table["lambda-0"] > 0
        page = tmp_path / "out/report.html"
        page.unlink()
        assert call("report", tmp_path / "out") == (0, f"{page}\n", "") and page.exists()
        status, out, _ = call(
            "translate", tmp_path / "out/pruned/lambda-1.5", "--text", place / "dev.en"
        )
        assert status == 0 and len(out.splitlines()) == 12

    @pytest.mark.parametrize("further", [["--dry-run"], []], ids=["dry", "real"])
    def test_one_plan_and_one_load_of_the_weights(
        self, call: Call, tmp_path: Path, further: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a language model: the kinds of its heads are known by its weights alone."""
        asker("bert").save(tmp_path / "model")
        text = tmp_path / "text.txt"
        text.write_text("\n".join(lines(20).lines) + "\n")
        loads, plans = list[str](), list[Any]()
        load, make = PreTrainedModel.from_pretrained.__func__, plan_of_prune.make_plan

        def loaded(cls: Any, name: Any, *given: Any, **named: Any) -> Any:
            loads.append(Path(name).name)
            return load(cls, name, *given, **named)

        def made(*given: Any) -> Any:
            plans.append(make(*given))
            return plans[-1]

        monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(loaded))
        monkeypatch.setattr(plan_of_prune, "make_plan", made)
        dev = tmp_path / "dev.txt"
        dev.write_text("\n".join(lines(12, seed=1).lines) + "\n")
        words = ["prune", tmp_path / "model", "--text", text, "--dev", dev, "--keep", 3]
        status, out, _ = call(*words, "--out", tmp_path / "out", *further)
        assert status == 0 and "greedy-repair-3" in out
        assert loads == ["model"] and len(plans) == 1

    def test_the_usual_controls_are_those_of_python(
        self, call: Call, texts: list[str], model: str
    ) -> None:
        words = ["prune", model, *texts, "--keep", "2", "--dry-run", "--method", "greedy"]
        for train in ("all", "distil"):
            _, out, _ = call(*words, "--train", train, "--set", "pruning.compare=[]")
            number = 1 + len(usual_controls("greedy", cast(Any, train)))
            assert f"{number} models: " in out

    def test_controls(self, call: Call, refused: Refused, texts: list[str], model: str) -> None:
        words = ["prune", model, *texts, "--keep", "2", "--dry-run"]
        named = ["--control", "random", "--control", "fine-tuned"]
        assert "would learn nothing" in refused(*words, *named, "--train", "distil")
        status, out, _ = call(*words, *named, "--method", "gates", "--train", "apart")
        assert status == 0 and "3 models: fine-tuned, keep-2, keep-2.random" in out
        # Steps have names that only plans explain.
        assert "evaluate/" not in out and len(out.splitlines()) < 8
        _, out, _ = call("prune", model, *texts, "--keep", "50%", "--dry-run")
        assert "2 models: greedy-repair-2, greedy-random.1-2" in out
        unknown = refused(*words, "--control", "nonsense")
        assert "--control: 'nonsense'" in unknown and "from-scratch" in unknown

    @pytest.mark.campaign
    def test_several_target_counts(
        self, call: Call, texts: list[str], model: str, tmp_path: Path
    ) -> None:
        words = [
            "prune",
            model,
            *texts,
            "--keep",
            "1",
            "--keep",
            "2",
            "--method",
            "top-k",
            "--out",
            tmp_path / "out",
        ]
        status, out, _ = call(*words, *sets(*FAST, *LIGHT))
        assert status == 0 and out == f"{tmp_path}/out/pruned/top-1\n", "within the usual 0.5 BLEU"
        table = pd.read_csv(tmp_path / "out/pruning.csv")
        assert table.groupby("setting").kept.first().to_dict() == {
            "full": 4,
            "top-1": 1,
            "top-2": 2,
        }
        plan = (tmp_path / "out/plan.toml").read_text()
        assert 'method = "top-k"' in plan and "max_drop = 0.5" in plan

    def test_one_target_count_gives_that_model(
        self,
        call: Call,
        texts: list[str],
        model: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Whatever it costs: here BLEU falls by 40 on paper. With a limit, there is none."""
        monkeypatch.setattr(
            "headwise.study.evaluation_steps.choose_smallest",
            lambda lost, heads, limit: choose_smallest(dict.fromkeys(lost, 40.0), heads, limit),
        )
        words = ["prune", model, *texts, "--out", tmp_path / "out", *sets(*FAST, *LIGHT)]
        words += ["--keep", "encoder-self=1", "--keep", "cross=3", "--train", "all"]
        words += ["--method", "gates"]
        status, out, err = call(*words)
        small = f"{tmp_path}/out/pruned/keep-encoder-self-1+cross-3"
        assert (status, out) == (0, f"{small}\n") and f"headwise translate {small}" in err
        assert "4 of 8" in err
        layout = hw.HeadMask.read(tmp_path / "out/layouts/keep-encoder-self-1+cross-3.json")
        assert {kind: layout.count(kind) for kind in ("encoder-self", "cross")} == {
            "encoder-self": 1,
            "cross": 3,
        }
        facts = json.loads((tmp_path / "out/run.json").read_text())
        assert (facts["chosen"], facts["max_drop"]) == (Path(small).name, None)
        status, out, err = call(*words, "--max-drop", 1)
        assert (status, out) == (0, f"{tmp_path}/out/report.html\n")
        assert json.loads((tmp_path / "out/run.json").read_text())["chosen"] is None

    @pytest.mark.campaign
    def test_greedily(
        self, call: Call, texts: list[str], place: Path, model: str, tmp_path: Path
    ) -> None:
        words = [
            "prune",
            model,
            *texts,
            *both(place, "test", "--test"),
            "--method",
            "greedy",
            "--out",
            tmp_path,
        ]
        kept = ["--keep", "encoder-self=1", "--keep", "cross=3"]
        status, out, err = call(*words, *kept, *sets(*LIGHT))
        assert status == 0 and out == f"{tmp_path}/pruned/greedy-repair-4\n"
        assert (
            "4 of 8" in err
            and "BLEU on dev" in err
            and f"headwise translate {tmp_path}/pruned/greedy-grad" in err
        )
        kept = json.loads((tmp_path / "layouts/greedy-gradient-4.json").read_text())["kept"]
        (signs,) = (line.split()[1:] for line in err.splitlines() if line.startswith("  cross/0 "))
        assert [head for head, sign in enumerate(signs) if sign == "■"] == kept["cross"][0] and len(
            signs
        ) == 4
        small = hw.load(tmp_path / "pruned/greedy-gradient-4")
        assert small.heads.query == {"encoder-self": (1,), "decoder-self": (4,), "cross": (3,)}
        tested = {("test", "bleu", ""), ("test", "chrf", ""), ("test", "bleu", "full")}
        assert {*tested, ("dev", "bleu", ""), ("dev", "loss", "")} <= measured_in(tmp_path)
        table = pd.read_csv(tmp_path / "pruning.csv")
        orders = ("gradient", "confidence", "weight-norm", "random.1", "random.2", "random.3")
        compared = {f"greedy-{order}-4" for order in orders}
        assert set(table[table.split == "test"].setting) == {"full", *compared}
        assert "Random orders: better than" in err and "Best other measure on dev: " in err

    def test_as_many_heads_as_there_are(
        self, call: Call, texts: list[str], model: str, tmp_path: Path
    ) -> None:
        words = [
            "prune",
            model,
            *texts,
            "--method",
            "greedy",
            "--out",
            tmp_path,
            "--keep",
            "4",
            *sets(*LIGHT),
        ]
        status, out, err = call(*words)
        assert (status, out) == (
            0,
            f"{tmp_path}/pruned/greedy-repair-4\n",
        ) and "0 of 4 encoder heads removed" in err

    @pytest.mark.parametrize("given", [GPT2, BERT], ids=["causal", "masked"])
    @pytest.mark.campaign
    def test_a_language_model(
        self,
        call: Call,
        place: Path,
        language_model: Any,
        tmp_path: Path,
        given: transformers.PretrainedConfig,
    ) -> None:
        kind = GPT2LMHeadModel if given is GPT2 else BertForMaskedLM
        words = ["prune", language_model(kind(given)), "--text", place / "train.fr"]
        more = ["--max-drop", "1000", "--measure", "confidence", "--rescore", "--repair"]
        status, out, err = call(*words, "--out", tmp_path / "out", *more)
        assert status == 0 and out == f"{tmp_path}/out/pruned/greedy-confidence-1\n"
        assert "every tenth line" in err and "perplexity on dev" in err and "headwise score" in err
        assert hw.load(tmp_path / "out/pruned/greedy-confidence-1").heads.total == 1
        two = tmp_path / "two"
        status, out, err = call(
            *words, "--keep", "2", "--dev", place / "dev.fr", "--quiet", "--out", two
        )
        assert (status, out, err) == (0, f"{two}/pruned/greedy-gradient-2\n", "")
        table = pd.read_csv(two / "pruning.csv")
        kept = table.groupby("setting").kept.first().to_dict()
        assert kept.pop("full") == 4 and kept["greedy-gradient-2"] == 2
        assert len(kept) == 6 and {*kept.values()} == {2}, "the result, and other orders"
        dev = {("dev", "perplexity", ""), ("dev", "perplexity", "full"), ("dev", "loss", "")}
        assert {*dev, ("", "parameters", "")} <= measured_in(two)

    def test_a_language_model_by_gates(
        self, call: Call, refused: Refused, place: Path, language_model: Any, tmp_path: Path
    ) -> None:
        """By method, or by a penalty alone; a model that predicts no words is refused."""
        words = ["--text", place / "train.fr", "--dev", place / "dev.fr", "--quiet"]
        light = sets("pruning.epochs=2", "training.batch_tokens=256", "pruning.train=gates")
        given, out = language_model(GPT2LMHeadModel(GPT2)), tmp_path / "out"
        status, _, err = call(
            "prune", given, *words, "--method", "gates", "--keep", "2", "--out", out, *light
        )
        assert (status, err) == (0, "") and hw.load(out / "pruned/keep-2").heads.total == 2
        dev = {("dev", "perplexity", ""), ("dev", "perplexity", "full")}
        assert {*dev, ("", "undecided_gates", "")} <= measured_in(out)
        more = [*light, *sets("pruning.gate_learning_rate=2.0", "pruning.warmup=1")]
        status, _, _ = call(
            "prune", given, *words, "--penalty", "50", "--out", tmp_path / "penalty", *more
        )
        assert status == 0 and (tmp_path / "penalty/pruned/lambda-50").is_dir()
        wordless = ["prune", language_model(BertModel(BERT)), *words, "--out", tmp_path / "none"]
        assert "method = 'gates' trains by a loss" in refused(
            *wordless, "--method", "gates", "--keep", "2"
        )

    def test_what_is_wrong_in_the_words_is_said_before_a_model_is_loaded(
        self, refused: Refused, place: Path, texts: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "thesis.txt").write_text("words")
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "config.json").write_text("{}")
        for words, expected in (
            (["--out", tmp_path], "there is something else (broken, thesis.txt)"),
            (["--out", tmp_path / "thesis.txt" / "out"], "could not be written"),
            (["--measure", "fame"], "the measure 'fame' is unknown"),
            (["--measure", "random", "--rescore"], "rescore would change nothing"),
            (["--kinds", "crosss"], "--kinds: 'crosss' does not fit: choose 'encoder-self',"),
        ):
            given = [
                "prune",
                broken,
                *texts,
                "--method",
                "greedy",
                "--keep",
                "3",
                "--out",
                tmp_path / "new",
            ]
            assert expected in refused(*given, *words), words
        assert "There is no file" in refused("score", broken, "--text", place / "nowhere.en")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "thesis.txt"]

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("--penalty -1", "greater than or equal to 0"),
            ("--kinds cross,heads", "--kinds: 'heads' does not fit: choose 'encoder-self',"),
            ("--max-drop -2", "at least 0"),
            ("--max-drop nan --keep 2", "at least 0"),
            (
                "--keep ten",
                "--keep ten was given: write a number of heads, a share such as 50%, or KIND=NUMBER.",
            ),
            ("--keep =3", "--keep =3 was given"),
            ("--keep cross=3 --keep 4", "give each kind one number, or all heads one"),
            ("--keep 0", "greater than or equal to 1"),
            ("--keep encoder=3", "'encoder' is no kind of heads (did you mean 'encoder-self'?)"),
            (
                "--keep cross=2 --kinds encoder-self",
                "keep names cross, but the kinds are encoder-self",
            ),
            (
                "--keep 3 --set pruning.keep=[2]",
                "--keep and --set pruning.keep=[2] were given: say it once",
            ),
            ("--method top-k", "keep is needed"),
            ("--method top-k --keep 2 --penalty 1", "--penalty means nothing with --method top-k"),
            ("--text dev.en", "--text was given 3 times: a text is one file, or two"),
            ("--dev dev.en --method greedy", "--dev was given 3 times"),
            ("--test dev.fr --keep 2", "There is no file 'dev.fr'"),
            (
                "--method greedy --penalty 1",
                "--penalty means nothing with --method greedy, only with gates",
            ),
            ("--method greedy --temperature 1", "--temperature means nothing with --method greedy"),
            ("--penalty 1 --clip 0", "--clip: 0.0 does not fit: input should be"),
            ("--penalty 1 --settle 0.5", "less than or equal to 0.4"),
            ("--penalty 1 --start soon", "--start: 'soon' does not fit"),
            ("--penalty 1 --train gates --settle 0.1", "freezes all weights, so settle would"),
            ("--penalty 1 --beam 2 --set search.beam=3", "--beam and --set search.beam=3 were"),
            ("--penalty 1 --beam 1001", "less than or equal to 1000"),
            ("--method greedy --measure fame", "the measure 'fame' is unknown"),
            (
                "--method greedy --keep 2 --epochs 5",
                "--epochs, --keep: epochs would mean nothing without train: set train, or leave it out.",
            ),
            (
                "--keep 2 --rule sign --kinds cross --test no.en",
                "There is no file 'no.en': check its",
            ),
        ],
    )
    def test_options(
        self,
        refused: Refused,
        texts: list[str],
        model: str,
        tmp_path: Path,
        words: str,
        expected: str,
    ) -> None:
        assert expected in refused(
            "prune", model, *texts, *words.split(), "--out", tmp_path / "out"
        )
        assert not (tmp_path / "out").exists()

    def test_a_field_that_is_given_reaches_the_plan_and_no_other(
        self,
        refused: Refused,
        texts: list[str],
        model: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Also where it is as by default: what a user says holds whatever the model's task would choose."""
        plans: list[dict[str, Any]] = []

        def keep_plan(given: dict[str, Any], *_: Any) -> None:
            plans.append(given)
            raise hw.HeadwiseError("That is enough.")

        monkeypatch.setattr("headwise.study.plan_of_prune.make_plan", keep_plan)
        words = "--method greedy --keep 3 --measure random --measure gradient --kinds cross,cross"
        words += " --step 0.2 --label-smoothing 0.1 --beam 5 --max-drop any --rescore --start 2"
        assert refused("prune", model, *texts, *words.split()) == "That is enough."
        (plan,) = plans
        assert plan["pruning"] == {
            "method": "greedy",
            "keep": [3],
            "measure": ["random", "gradient"],
            "kinds": ["cross"],
            "step": 0.2,
            "rescore": True,
            "start": 2.0,
        }
        assert plan["training"] == {"label_smoothing": 0.1}
        assert plan["search"] == {"beam": 5}
        assert plan["choice"] == {"max_drop": "any"}
        refused("prune", model, *texts, "--penalty", 1, "--penalty", 2, "--start", "glorot")
        assert plans[1]["pruning"] == {"method": "gates", "penalty": [1.0, 2.0], "start": "glorot"}
        assert plans[1]["choice"] == {} and not {"training", "search"} & plans[1].keys()

    def test_texts_and_counts_that_do_not_fit_the_model(
        self, refused: Refused, texts: list[str], place: Path, model: str, tmp_path: Path
    ) -> None:
        assert "No text was given" in refused(
            "prune", model, "--method", "greedy", "--keep", "3", "--out", tmp_path
        )
        for method in ("gates", "greedy"):
            words = [
                "prune",
                model,
                *texts,
                "--keep",
                "5",
                "--method",
                method,
                "--out",
                tmp_path / method,
            ]
            assert "5 heads cannot be kept: there are 4 heads" in refused(*words, *sets(*LIGHT))


class TestStart:
    def test_version(self, call: Call) -> None:
        assert call("--version")[:2] == (0, f"{hw.__version__}\n")

    def test_help_and_import_are_quick(self) -> None:
        """Everything heavy is loaded when it is used."""
        heavy = "[m for m in ('torch', 'transformers', 'datasets', 'pandas') if m in sys.modules]"
        code = "import sys, headwise.faces.cli; assert callable(headwise.report)"
        code = f"{code}; assert dir(headwise); assert {heavy} == []"
        for words in (
            ["-c", code],
            ["-m", "headwise", "--help"],
            ["-m", "headwise", "prune", "--help"],
        ):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2

    def test_every_public_name_is_there(self) -> None:
        assert all(getattr(hw, name) for name in hw.__all__) and set(dir(hw)) == set(hw.__all__)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            hw.nothing  # type: ignore[attr-defined]  # noqa: B018
        importlib.import_module("headwise.faces.report.page")
        assert callable(hw.report), "the room of the same name does not hide the function"

    @pytest.mark.parametrize("words", [[], ["--help"], ["run", "--help"]])
    def test_help(self, call: Call, words: list[str]) -> None:
        status, out, err = call(*words)
        assert status in (0, 2) and "Usage: headwise" in out + err

    @pytest.mark.parametrize(
        "example", [example for group in cli.GROUPS.values() for example in group.values()]
    )
    def test_every_command_has_an_example_that_it_understands(
        self, call: Call, example: str
    ) -> None:
        name, *words = shlex.split(example.removeprefix("headwise "))
        status, out, _ = call(name, "-h")
        assert status == 0
        assert f"Example: headwise {name}" in " ".join(out.split())
        commands: Any = get_command(cli.app)
        command = commands.commands[name]
        parser = command.make_parser(command.context_class(command))
        parser.parse_args(list(words))  # refuses an option that is not there

    @pytest.mark.parametrize(
        ("name", "classes", "elsewhere"),
        [
            ("prune", [*METHODS.values(), Choice, Search], {"search"}),
            ("prune", [Training], {"patience", "dtype"}),
            ("train", [Architecture, Training], set()),
            ("evaluate", [Search], set()),
        ],
    )
    def test_options_are_the_fields_of_the_options_classes(
        self, name: str, classes: list[type[Options]], elsewhere: set[str]
    ) -> None:
        """Name, default and help; `elsewhere`: what the command says by another option, or not at all."""
        commands: Any = get_command(cli.app)
        options = {option.name: option for option in commands.commands[name].params}
        for kind in classes:
            for key, field in kind.model_fields.items():
                if key in elsewhere or (issubclass(kind, Pruning) and key == "max_drop"):
                    continue
                option = options[key]
                if kind is Greedy and key == "train":  # the help of gates names it, too
                    assert "Greedy removal trains" in option.help
                    continue
                if kind is Training and name == "prune" and key in FULL_LENGTH:
                    assert option.help.startswith(FineTuning.model_fields[key].description)
                    continue
                assert option.help.startswith(field.description), key
                assert option.default == field.default or option.default == str(field.default), key

    def test_the_groups_of_an_option_are_the_methods_that_have_it(self, call: Call) -> None:
        _, out, _ = call("prune", "--help-all")
        headings = ["Every method", "gates and top-k", "gates", "greedy", "Training with gates"]
        places = [out.index(f"─ {heading} ─") for heading in headings]
        assert places == sorted(places)
        for option, place in (("--kinds", 0), ("--epochs", 0), ("--rule", 2), ("--rescore", 3)):
            assert places[place] < out.index(f"│ {option} ") < places[place + 1]
        assert "the larger, the fewer heads stay (at least 0; repeatable)" in " ".join(
            out.replace("│", " ").split()
        )

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("paint", "No such command 'paint'"),
            ("prune x --keep 2 --method magic", "'magic' is not one of 'gates', 'top-k', 'greedy'"),
            ("score", "Missing argument 'MODEL'"),
            ("demo --sed 3", "No such option: --sed"),
            ("demo --seed three", "'--seed': Input should be a valid integer"),
            ("demo --seed -1", "'--seed': Input should be greater than or equal to 0"),
            ("scroe x", "Did you mean 'score'"),
            ("data gte multi30k", "Did you mean 'get'"),
            ("score x --measures gradient", "No such option: --measures: write --measure"),
            ("roles x --treebnk trees.conllu", "(Possible options: --treebank)"),
            (
                "prune x --unit groups",
                "Invalid value for '--unit': 'groups' is not one of 'head', 'balanced', 'group', 'uniform'.",
            ),
            (
                "translate x --engine c2t",
                "Invalid value for '--engine': 'c2t' is not one of 'transformers', 'ct2'.",
            ),
        ],
    )
    def test_what_was_mistyped(self, call: Call, words: str, expected: str) -> None:
        status, out, err = call(*words.split())
        said = " ".join(err.replace("│", " ").split())
        assert (status, out) == (2, "")
        assert expected in said

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (
                "training.epoch=3",
                "--set training.epoch=3: unknown key 'training.epoch' (did you mean 'epochs'?); allowed here:",
            ),
            ("training.epochs=many", "--set training.epochs=many: 'many' does not fit"),
            ("pruning.penalty=[-1]", "greater than or equal to 0"),
            (
                "pruning.kinds=['decoder']",
                "--set pruning.kinds=['decoder']: 'decoder' does not fit: choose 'encoder-self',",
            ),
            ("model.decoder_layers=99999999", "less than or equal to 1000"),
            ("model.vocabulary=10000000", "less than or equal to 1000000"),
            ("model={encoder_layers=1000, width=65536}", "is the most that is trained here"),
            ("pruning=['a']", "--set pruning=['a']: 'a' does not fit"),
            ("pruning.method=['gates']", "is none of gates, top-k, greedy"),
            ("pruning.method={a=1}", "is none of gates, top-k, greedy"),
            ("pruning=[3]", "--set pruning=[3]: 3 does not fit"),
            ("model=$NOWHERE_AT_ALL/x", "$NOWHERE_AT_ALL"),
            ("epochs", "it should read key=value"),
            (
                "trainig.epochs=3",
                "--set trainig.epochs=3: unknown key 'trainig' (did you mean 'training'?)",
            ),
        ],
    )
    def test_changes_of_a_plan(
        self, refused: Refused, tmp_path: Path, change: str, expected: str
    ) -> None:
        with quick_and_small():
            assert expected in refused("demo", "--toy", "--out", tmp_path / "out", "--set", change)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("score MODEL TEXT --measure ablaton.zero", "(did you mean 'ablation.zero'?)"),
            ("score MODEL TEXT --measure Gradient", "(did you mean 'gradient'?)"),
            ("score MODEL TEXT --measure lpr", "(did you mean 'lrp'?)"),
            ("score MODEL TEXT --dtype flaot32", "(did you mean 'float32'?)"),
            ("score MODEL --text multi30/val.en-de", "(did you mean 'multi30k'?)"),
            ("score MODEL --text multi30k/vall.en", "(did you mean 'multi30k/val.en'?)"),
            ("evaluate MODEL TEXT --beam 0", "--beam: 0 does not fit"),
            ("translate MODEL --beam 0", "--beam: 0 does not fit"),
            ("export MODEL --to ggf", "(did you mean 'gguf'?)"),
            ("export MODEL --to llama.cpp", "gguf (llama.cpp)"),
            ("data get Multi30K", "(did you mean 'multi30k'?)"),
            ("train TEXT --set model.head=3", "(did you mean 'heads'?)"),
            ("train TEXT --heads 0", "--heads: 0 does not fit"),
        ],
    )
    def test_a_misspelled_name_is_guessed(
        self, refused: Refused, pairs: list[str], model: str, words: str, expected: str
    ) -> None:
        text = " ".join(pairs)
        assert expected in refused(*words.replace("MODEL", model).replace("TEXT", text).split())

    def test_other_options(
        self, refused: Refused, pairs: list[str], place: Path, model: str, tmp_path: Path
    ) -> None:
        score = ["score", model, *pairs, "--out", tmp_path / "score"]
        assert "the measure 'fame' is unknown; there is confidence" in refused(
            *score, "--measure", "fame"
        )
        assert not (tmp_path / "score").exists()
        assert "not among the measures" in refused(*score, "--judge", "--measure", "lrp")
        assert "The device quantum was asked for, but torch" in refused(
            "translate", model, "--device", "quantum"
        )
        if not torch.cuda.is_available():
            assert "The device cuda was asked for" in refused(
                "translate", model, "--device", "cuda"
            )


class TestText:
    @pytest.fixture
    def train(self, refused: Refused, place: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
        def run(source: bytes | None, target: bytes | None, *more: str) -> str:
            for name, content in (("train.en", source), ("train.fr", target)):
                if content is not None:
                    (tmp_path / name).write_bytes(content)
            words = [
                *both(tmp_path, "train"),
                *both(place, "dev", "--dev"),
                "--out",
                tmp_path / "out",
            ]
            return refused("train", *words, *sets(*SMALL), *more)

        yield run
        assert not (tmp_path / "out" / "model").exists()

    @pytest.mark.parametrize(
        ("source", "target", "expected"),
        [
            (b"a\nb\nc\n", b"a\nb\n", ("has 3 lines", "has 2")),
            (b"a\n\xff\n", b"a\nb\n", ("Line 2 of", "not UTF-8")),
            (b"a\n", b"", ("/train.fr' is empty",)),
            (b"\n\n", b"\n\n", ("are blank",)),
            (b"a\n", None, ("There is no file '", "/train.fr'")),
        ],
    )
    def test_unusable(
        self,
        train: Callable[..., str],
        source: bytes,
        target: bytes | None,
        expected: tuple[str, ...],
    ) -> None:
        sentence = train(source, target)
        assert all(part in sentence for part in expected), sentence

    def test_for_the_shape(self, train: Callable[..., str]) -> None:
        long, short = (
            (b"She sleeps well. " * 9, b"Elle dort. " * 9),
            (b"She sleeps.\n" * 9, b"Elle dort.\n" * 9),
        )
        assert "longer than max_length = 4" in train(*long, *sets("model.max_length=4"))
        assert "A width of 32 cannot be divided by 5 heads" in train(*short, *sets("model.heads=5"))

    def test_none_or_the_wrong_kind(
        self, refused: Refused, model: str, pairs: list[str], place: Path, tmp_path: Path
    ) -> None:
        score = ["score", model, "--out", tmp_path / "out"]
        assert "--text FILE" in refused(*score) and "No text was given" in refused(
            "train", "--out", tmp_path / "out"
        )
        assert "--text was given 3 times" in refused(*score, *pairs, "--text", place / "dev.en")
        (tmp_path / "pairs.csv").write_text("a,b\n")
        assert "No sentences" in refused(*score, "--text", tmp_path / "pairs.csv")
        (tmp_path / "empty").write_text("")
        empty = tmp_path / "empty"
        also_empty = tmp_path / "also-empty"
        also_empty.write_text("")
        assert "is empty" in refused(*score, "--text", empty, "--text", also_empty)
        assert not (tmp_path / "out" / "heads.csv").exists()


@contextmanager
def quick_and_small() -> Iterator[None]:
    """Fails where what is done in the block takes 5 seconds, or 500 MB."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    yield
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500_000


def unsealed(model: str, folder: Path) -> Path:
    """A copy of a model that another program saved, so that no sums say what its files were."""
    shutil.copytree(model, folder)
    (folder / "SHA256SUMS").unlink()
    content = json.loads((folder / "config.json").read_text())
    content.pop("headwise_sums", None)
    (folder / "config.json").write_text(json.dumps(content))
    return folder


class TestModels:
    def test_nothing_there(self, refused: Refused, pairs: list[str], tmp_path: Path) -> None:
        assert "no config.json" in refused("score", tmp_path, *pairs, "--out", tmp_path / "out")
        assert "no folder" in refused("report", tmp_path / "nothing")

    @pytest.mark.parametrize("kind", ["XLNetLMHeadModel", "CodeGenForCausalLM"])
    def test_outside_the_seam(
        self, refused: Refused, pairs: list[str], language_model: Any, tmp_path: Path, kind: str
    ) -> None:
        given: PreTrainedModel
        if kind == "XLNetLMHeadModel":
            given = XLNetLMHeadModel(
                XLNetConfig(vocab_size=300, d_model=16, n_layer=1, n_head=2, d_inner=16)
            )
        else:
            shape = {
                "n_embd": 16,
                "n_layer": 1,
                "n_head": 4,
                "n_positions": 64,
                "n_ctx": 64,
                "rotary_dim": 4,
            }
            given = CodeGenForCausalLM(CodeGenConfig(vocab_size=300, **shape))
        sentence = refused("score", language_model(given), *pairs, "--out", tmp_path / "out")
        assert (
            kind in sentence
            and "attention" in sentence
            and not (tmp_path / "out" / "heads.csv").exists()
        )

    @pytest.mark.parametrize("kind", ["BertModel", "GPT2LMHeadModel"])
    def test_no_translation_model(
        self,
        refused: Refused,
        place: Path,
        pairs: list[str],
        texts: list[str],
        language_model: Any,
        tmp_path: Path,
        kind: str,
    ) -> None:
        given = language_model(BertModel(BERT) if kind == "BertModel" else GPT2LMHeadModel(GPT2))
        out = ["--out", tmp_path / "out"]
        for command in ("evaluate", "prune"):
            words = [command, given, *([*texts, "--keep", "1"] if command == "prune" else pairs)]
            assert "One-sided text is one file, but 2 were given" in refused(*words, *out), command
        score = ["score", given, *pairs, "--out", tmp_path / "scores"]
        assert "One-sided text is one file" in refused(*score)
        assert f"is a {kind}" in refused("translate", given, "--text", place / "dev.en")

    def test_a_model_without_a_tokenizer(
        self, refused: Refused, place: Path, pairs: list[str], model: str, tmp_path: Path
    ) -> None:
        bare = Path(shutil.copytree(model, tmp_path / "bare"))
        for file in (*bare.glob("*token*"), bare / "SHA256SUMS"):
            file.unlink()
        config = json.loads((bare / "config.json").read_text())
        del config["headwise_sums"]
        (bare / "config.json").write_text(json.dumps(config))
        assert "has no tokenizer" in refused("score", bare, *pairs, "--out", tmp_path / "out")
        assert "has no tokenizer" in refused("translate", bare, "--text", place / "dev.en")

    @pytest.mark.parametrize(
        ("file", "key", "value", "expected"),
        [
            (
                "generation_config.json",
                "decoder_start_token_id",
                "x",
                "is 'x', which names none of",
            ),
            (
                "generation_config.json",
                "decoder_start_token_id",
                10**30,
                "names none of the model's",
            ),
            ("generation_config.json", "decoder_start_token_id", [], "names none of the model's"),
            (
                "generation_config.json",
                "eos_token_id",
                -1,
                "eos_token_id in generation_config.json",
            ),
            ("generation_config.json", "forced_bos_token_id", 1.5, "names none of the model's"),
            ("generation_config.json", "forced_eos_token_id", True, "names none of the model's"),
            ("generation_config.json", "bos_token_id", {}, "names none of the model's"),
            ("generation_config.json", "suppress_tokens", ["a"], "names none of the model's"),
            ("generation_config.json", "begin_suppress_tokens", 0, "which is no list of words"),
            ("generation_config.json", "max_length", "x", "which is no number of tokens"),
            ("generation_config.json", "sequence_bias", "x", "mend that file"),
            ("tokenizer_config.json", "model_input_names", ["a"], "without input_ids"),
            ("tokenizer_config.json", "model_input_names", [], "without input_ids"),
            ("tokenizer_config.json", "pad_token", None, "has no padding token"),
            ("tokenizer_config.json", "unk_token", "", "tokenizer"),
            ("tokenizer_config.json", "model_max_length", "x", "which is no number of tokens"),
        ],
    )
    def test_a_damaged_setting(
        self,
        refused: Refused,
        place: Path,
        model: str,
        tmp_path: Path,
        file: str,
        key: str,
        value: Any,
        expected: str,
    ) -> None:
        """Of how a model reads and writes."""
        bad = unsealed(model, tmp_path / "bad")
        content = json.loads((bad / file).read_text())
        (bad / file).write_text(json.dumps({**content, key: value}))
        assert expected in refused("translate", bad, "--text", place / "dev.en", "--beam", 2)

    def test_the_length_is_ours_whatever_a_generation_configuration_says(
        self, call: Call, place: Path, model: str, tmp_path: Path
    ) -> None:
        """max_new_tokens of a billion was a translation without end."""
        other = unsealed(model, tmp_path / "other")
        file = other / "generation_config.json"
        settings = {"max_new_tokens": 10**9, "min_new_tokens": 10**9}
        settings["return_dict_in_generate"] = True
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
        words = ["--text", place / "dev.en", "--beam", 2]
        assert call("translate", other, *words) == call("translate", model, *words)

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"decoder_layers": 500}, "decoder_layers = 500, but its weights are of 1 layers"),
            ({"encoder_layers": 99_999_999}, "num_hidden_layers = 99999999"),
            ({"vocab_size": 10_000_000}, "numbers, but its file has"),
            ({"max_position_embeddings": 99_999_999}, "such as vocab_size or max_position"),
            ({"vocab_size": -1}, "negative dimension -1"),
        ],
    )
    @pytest.mark.parametrize("command", ["translate", "prune"])
    def test_a_configuration_of_another_size_is_refused_by_the_headers(
        self,
        refused: Refused,
        place: Path,
        texts: list[str],
        model: str,
        tmp_path: Path,
        change: dict[str, int],
        expected: str,
        command: str,
    ) -> None:
        bad = unsealed(model, tmp_path / "bad")
        content = json.loads((bad / "config.json").read_text())
        (bad / "config.json").write_text(json.dumps(content | change))
        words = ["translate", bad, "--text", place / "dev.en"]
        if command == "prune":
            words = ["prune", bad, *texts, "--keep", 2, "--out", tmp_path / "out"]
        with quick_and_small():
            assert expected in refused(*words)

    def test_a_tokenizer_of_millions_of_words_is_not_read(
        self, refused: Refused, place: Path, model: str, tmp_path: Path
    ) -> None:
        bad = unsealed(model, tmp_path / "bad")
        with (bad / "tokenizer.json").open("r+b") as file:
            file.truncate(200_000_000)  # without taking room on the disk
        with quick_and_small():
            assert "tokenizer.json has 200,000,000 bytes" in refused(
                "translate", bad, "--text", place / "dev.en"
            )

    def test_a_name_that_none_can_have(self, refused: Refused, pairs: list[str]) -> None:
        assert "cannot be the name of a model (File name too long)" in refused(
            "score", "x" * 300, *pairs
        )

    @pytest.mark.parametrize(
        "damage", ["{", "[]", '{"format": "headwise-layout", "version": 2}', "kept"]
    )
    def test_a_broken_layout(
        self, refused: Refused, place: Path, model: str, tmp_path: Path, damage: str
    ) -> None:
        loaded = hw.load(model)
        loaded.only(hw.HeadMask(loaded.heads, frozenset({hw.Head("encoder-self", 0, 1)}))).save(
            tmp_path / "small"
        )
        config = tmp_path / "small" / "config.json"
        content = json.loads(config.read_text())
        content["headwise_layout"]["kept"]["encoder-self"] = [[17]]
        del content["headwise_sums"]
        config.write_text(
            json.dumps(content if damage == "kept" else content | {"headwise_layout": damage})
        )
        (tmp_path / "small" / "SHA256SUMS").unlink()
        assert (
            "layout" in refused("translate", tmp_path / "small", "--text", place / "dev.en").lower()
        )

    def test_damaged_weights(
        self, refused: Refused, place: Path, model: str, tmp_path: Path
    ) -> None:
        bad = Path(shutil.copytree(model, tmp_path / "bad"))
        weights = (bad / "model.safetensors").read_bytes()
        (bad / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        assert refused("translate", bad, "--text", place / "dev.en")


class TestPlaces:
    def test_out_cannot_be_written(
        self,
        refused: Refused,
        place: Path,
        texts: list[str],
        pairs: list[str],
        model: str,
        tmp_path: Path,
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        out = tmp_path / "file" / "out"
        for command in (
            ["score", model, *pairs],
            ["evaluate", model, *pairs],
            ["prune", model, *texts],
        ):
            assert "could not be written (Not a directory)" in refused(*command, "--out", out)
        assert "could not be written" in refused("train", *texts, "--out", tmp_path / "file")
        assert "could not be written" in refused("demo", "--out", "/proc/headwise")
        assert "cannot be written" in refused(
            "translate", model, "--text", place / "dev.en", "--out", out
        )
        assert (tmp_path / "file").read_text() == "in the way"

    def test_two_runs_in_one_folder(
        self, refused: Refused, texts: list[str], tmp_path: Path
    ) -> None:
        with Folder(tmp_path).lock():
            assert "Another process is working on" in refused(
                "train", *texts, "--out", tmp_path, *sets(*SMALL)
            )
