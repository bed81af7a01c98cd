"""A whole study: what it leaves, what it makes again, that it goes on after a kill, and that test text is read last."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import headwise as hw
from headwise.data.embedded import write_parallel
from headwise.heads import HeadMask
from headwise.study import Plan, Progress, make_plan, run_study
from headwise.study.folders import differences
from headwise.study.graph import Ended, Here
from headwise.study.nodes import STAGES
from headwise.study.stage import RunFolder
from headwise.study.stages import Study
from headwise.study.study import estimated, threads_set
from headwise.study.sweep import Setting
from headwise.study.tables import choose, choose_setting


class Notes(Progress):
    """Remembers which stages were made and which were skipped."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.made: list[str] = []
        self.skipped: list[str] = []
        self.told: list[str] = []

    def stage(self, name: str) -> Any:
        self.made.append(name)
        return super().stage(name)

    def skip(self, name: str) -> None:
        self.skipped.append(name)

    def say(self, text: str) -> None:
        self.told.append(text)


def again(plan: Plan, out: Path, only: str | None = None) -> Notes:
    notes = Notes()
    run_study(plan, out, notes, only)
    return notes


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def numbers(out: Path) -> dict[str, Any]:
    """Everything a run reports or that is made from it, but for times."""
    pruning = pd.read_csv(out / "pruning.csv")
    files = [
        "heads.csv",
        "train/log.csv",
        *(f"{place}/{name}" for place in ("layouts", "gates", "translations") for name in below(out / place)),
    ]
    weights = [path.relative_to(out) for path in sorted(out.glob("**/model.safetensors"))]
    return {
        "pruning": pruning[~pruning.measure.isin(["tokens_per_second", "seconds"])].to_csv(),
        **{file: (out / file).read_text() for file in files},
        **{str(path): (out / path).read_bytes() for path in weights},
        **{key: value for key, value in json.loads((out / "run.json").read_text()).items() if key != "seconds"},
    }  # fmt: skip


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


class TestFinished:
    def test_the_tables(self, finished: Path) -> None:
        heads = pd.read_csv(finished / "heads.csv")
        assert list(heads.columns) == ["kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline"]
        measures = {"confidence", "lrp.ding", "lrp.ding.signed", "gradient", "ablation.zero"}
        assert len(heads) == 2 * 4 * 3 * len(measures) and set(heads.measure) == measures
        pruning = pd.read_csv(finished / "pruning.csv")
        assert list(pruning.setting.unique()) == ["full", "lambda-0.005", "lambda-1"]
        assert not pruning.duplicated(["setting", "measure"]).any()
        measures = set(pruning[pruning.setting == "lambda-1"].measure)
        both = {"bleu", "chrf", "bleu_difference", "p_value"}
        rest = {"parameters", "bytes", "memory", "tokens_per_second", "dev_loss", "soft_dev_loss", "decided_dev_loss",
                "undecided_gates", "expected_heads", "settled", "updates", "seconds"}  # fmt: skip
        assert measures == both | {f"dev_{name}" for name in both} | rest
        assert pruning[pruning.measure == "bleu"].low.notna().all()

    def test_layout_model_and_table_agree(self, finished: Path) -> None:
        pruning = pd.read_csv(finished / "pruning.csv").groupby("setting").first()
        for setting in ("lambda-0.005", "lambda-1"):
            mask = HeadMask.read(finished / "layouts" / f"{setting}.json")
            model = hw.load(finished / "pruned" / setting)
            assert model.layout == mask and pruning.kept[setting] == mask.count("encoder-self")
            assert model.heads.total == len(mask) and pruning.total[setting] == 8
        assert pruning.kept["full"] == 8 and pruning.kept["lambda-1"] == 0

    def test_no_head_left_is_a_finished_result_with_a_warning(self, finished: Path) -> None:
        notes = json.loads((finished / "run.json").read_text())["notes"]["lambda-1"]
        assert any("No encoder-self head is left" in note for note in notes)
        lines = (finished / "translations/test/lambda-1.txt").read_text().splitlines()
        assert len(lines) == 40
        assert hw.load(finished / "pruned/lambda-1").translate(["She sees him."], beam=2)

    def test_run_json(self, finished: Path) -> None:
        facts = json.loads((finished / "run.json").read_text())
        assert facts["signature"]["seed"] == 3 and facts["threads"] == 1 and facts["versions"]["torch"]
        assert facts["chosen"] in (None, "lambda-0.005", "lambda-1") and facts["max_drop"] == 0.5
        assert facts["bleu_signature"].startswith("nrefs:1") and facts["chrf_signature"].startswith("nrefs:1")
        assert all(facts["seconds"][stage] > 0 for stage in ("train", "prune/lambda-1", "translate/test/full"))

    def test_the_report_can_be_written(self, copied: Path) -> None:
        assert "lambda" in hw.report(copied).read_text(encoding="utf-8").lower()


class TestCache:
    def test_nothing_is_made_twice(self, copied: Path, tiny: dict[str, Any]) -> None:
        shutil.copy(copied / "heads.csv", copied / "heads.before")
        before = {path: path.stat().st_mtime_ns for path in copied.glob("**/*") if path.suffix != ".lock"}
        notes = again(make_plan(tiny), copied)
        assert notes.made == []
        changed = {path.name for path, when in before.items() if path.is_file() and path.stat().st_mtime_ns != when}
        assert changed <= {"plan.toml", "pruning.csv", "run.json"}, "written from what is known, never made again"

    def test_a_new_penalty_makes_only_that(self, copied: Path, tiny: dict[str, Any]) -> None:
        tiny["pruning"]["penalties"] = [0.005, 0.5]
        notes = again(make_plan(tiny), copied)
        stages = ("prune", "translate/dev", "quality/dev", "measure", "after", "translate/test", "quality/test")
        assert set(notes.made) == {f"{stage}/lambda-0.5" for stage in stages} | {"choose", "speed"}
        assert set(pd.read_csv(copied / "pruning.csv").setting) == {"full", "lambda-0.005", "lambda-0.5"}

    def test_a_lost_output_makes_its_stage(self, copied: Path, tiny: dict[str, Any]) -> None:
        same_as = numbers(copied)
        shutil.rmtree(copied / "pruned/lambda-1")
        (copied / "translations/test/full.txt").unlink()
        notes = again(make_plan(tiny), copied)
        assert set(notes.made) == {"prune/lambda-1", "translate/test/full"}
        same(numbers(copied), same_as)

    def test_the_folder_of_another_plan_is_refused(self, copied: Path, finished: Path, tiny: dict[str, Any]) -> None:
        before = (copied / "plan.toml").read_text()
        for change, told in (
            ({"seed": 4}, "seed was 3 and is 4"),
            ({"search": {"beam": 1}}, "search.beam was 2 and is 1"),
            ({"pruning": {**tiny["pruning"], "epochs": 4}}, "pruning.epochs was 3 and is 4"),
            ({"model": str(finished / "model")}, "model was "),
            ({"data": {"embedded": {"train": 301, "dev": 40, "test": 40}}}, "data.embedded.train was 300 and is 301"),
        ):
            with pytest.raises(hw.HeadwiseError, match=told) as caught:
                again(make_plan({**tiny, **change}), copied)
            assert "Choose another --out" in str(caught.value) and "\n" not in str(caught.value)
        assert (copied / "plan.toml").read_text() == before

    def test_texts_may_lie_elsewhere_under_the_same_names(self) -> None:
        before, moved, other = (
            {"data": {"train": [f"{place}.en", f"{place}.de"]}} for place in ("/a/x", "/b/x", "/a/y")
        )
        assert list(differences(before, moved)) == []
        assert [told.partition(" was ")[0] for told in differences(before, other)] == ["data.train"]

    def test_the_folder_of_another_version_is_refused(self, copied: Path, tiny: dict[str, Any]) -> None:
        (copied / ".stages/headwise").write_text("0.0.1")
        with pytest.raises(hw.HeadwiseError, match=r"was made by headwise 0\.0\.1, and this is "):
            again(make_plan(tiny), copied)

    def test_weights_that_were_taken_away_are_made_again_only_when_needed(
        self, copied: Path, tiny: dict[str, Any]
    ) -> None:
        """Of a study that keeps only the chosen model, what is measured stays measured."""
        same_as = {name: content for name, content in numbers(copied).items() if "model.safetensors" not in name}
        chosen = json.loads((copied / "run.json").read_text())["chosen"]
        gone = "lambda-0.005" if chosen == "lambda-1" else "lambda-1"
        weights = (copied / f"pruned/{gone}/model.safetensors").read_bytes()
        notes = again(make_plan({**tiny, "weights": "chosen"}), copied)
        assert notes.made == ["scored"]
        assert {path.name for path in (copied / "pruned").iterdir()} == {chosen} - {None}
        shutil.rmtree(copied / "model")
        notes = again(make_plan({**tiny, "weights": "chosen"}), copied)
        assert notes.made == []
        (copied / f"translations/test/{gone}.txt").unlink()
        notes = again(make_plan({**tiny, "weights": "chosen"}), copied)
        assert set(notes.made) == {"train", f"prune/{gone}", f"translate/test/{gone}"}
        found = {name: content for name, content in numbers(copied).items() if "model.safetensors" not in name}
        same(found, same_as)
        again(make_plan(tiny), copied)
        assert (copied / f"pruned/{gone}/model.safetensors").read_bytes() == weights

    def test_a_model_that_is_chosen_later_is_made_again(self, copied: Path, tiny: dict[str, Any]) -> None:
        """Of a study that keeps only the chosen model, the plan's choice is always there to be loaded."""
        tiny |= {"weights": "chosen", "choice": {"max_drop": 100}}
        weights = (copied / "pruned/lambda-0.005/model.safetensors").read_bytes()
        again(make_plan(tiny), copied)
        assert below(copied / "pruned") == sorted(name for name in below(copied / "pruned") if "lambda-1/" in name)
        tiny["pruning"]["penalties"] = [0.005]
        notes = again(make_plan(tiny), copied)
        assert "prune/lambda-0.005" in notes.made and "prune/lambda-1" not in notes.made
        assert (copied / "pruned/lambda-0.005/model.safetensors").read_bytes() == weights

    def test_a_chosen_model_that_was_only_cut_is_saved_again(self, copied: Path, tiny: dict[str, Any]) -> None:
        """Its stage is known, but its folder went while another one was the choice."""
        run = RunFolder(copied, Progress(quiet=True), thin=True)
        for place in ("layouts/{}.json", ".stages/quality.dev.{}.json"):
            shutil.copy(copied / place.format("lambda-0.005"), copied / place.format("cut"))
        run.stage("prune/cut", {}, lambda work: {})
        cut = Setting("cut", 0, "greedy.gradient", order="some", kept=3)
        study = Study(make_plan({**tiny, "choice": {"max_drop": 100}}), run)
        for _ in range(2):
            assert choose_setting(study, [cut])["chosen"] == "cut"
            assert hw.load(copied / "pruned/cut").layout == study.mask("cut")
            shutil.rmtree(copied / "pruned/cut")
        drawn = Setting("cut", 0, "greedy.random", order="some", kept=3)
        assert choose_setting(study, [drawn])["chosen"] is None, "a random order is a baseline"

    def test_a_given_model_that_changed_is_taken_again(
        self, copied: Path, tmp_path: Path, tiny: dict[str, Any]
    ) -> None:
        given = Path(shutil.copytree(copied / "model", tmp_path / "given"))
        plan = make_plan({**tiny, "model": str(given)})
        assert "train" in again(plan, tmp_path / "out", only="train").made
        assert "train" in again(plan, tmp_path / "out", only="train").skipped
        hw.load(copied / "pruned/lambda-1").save(given)
        assert "train" in again(plan, tmp_path / "out", only="train").made
        assert hw.load(tmp_path / "out").heads.count(hw.load(given).heads.sites[0]) == 0


def test_no_table_holds_results_of_two_models(
    copied: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model is given under the same name, and then all pruning fails: nothing of the old one is left."""
    tiny["pruning"] |= {"penalties": [1.0], "epochs": 1, "warmup": 0}
    tiny["scoring"] = {"measures": ["gradient"], "judge": False, "pruned": ["gradient"]}
    given = Path(shutil.copytree(copied / "model", tmp_path / "given"))
    out = tmp_path / "out"
    plan = make_plan({**tiny, "model": str(given)})
    run_study(plan, out, Progress(quiet=True))
    assert set(pd.read_csv(out / "pruning.csv").setting) == {"full", "lambda-1"} and (out / "after/lambda-1").exists()
    hw.load(copied / "pruned/lambda-0.005").save(given)

    def fails(*_: Any) -> Any:
        raise hw.HeadwiseError("This one was made to fail.")

    monkeypatch.setattr("headwise.study.making.gated", fails)
    with pytest.raises(hw.HeadwiseError, match="made to fail"):
        run_study(plan, out, Progress(quiet=True))
    table = pd.read_csv(out / "pruning.csv")
    assert set(table.setting) == {"full"} and "bleu" in set(table.measure)
    assert not (out / "pruned/lambda-1").exists() and not (out / "after/lambda-1").exists()
    sizes = table[table.measure == "parameters"].value
    assert list(sizes) == [hw.load(given).parameters]
    assert json.loads((out / "run.json").read_text())["chosen"] is None


@pytest.mark.parametrize(
    ("only", "last"),
    [("train", "train"), ("score", "judge"), ("roles", "roles"), ("prune", "prune/lambda-1"), ("evaluate", None)],
)
def test_only_stops_after_its_stage(only: str, last: str | None, copied: Path, tiny: dict[str, Any]) -> None:
    notes = again(make_plan(tiny), copied, only)
    assert notes.skipped[-1] == (last or "speed")


def test_only_with_a_wrong_name(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        hw.HeadwiseError, match="--only all was asked for, but the stages are train, score, roles, prune, eva"
    ):
        run_study(make_plan(tiny), tmp_path / "out", Progress(quiet=True), only="all")
    assert not (tmp_path / "out").exists()


class Killer(Here):
    """Does every node but one, whose process is killed before it can note anything."""

    def wait(self) -> Ended:
        if self.name == "prune/lambda-0.5":
            return Ended(self.name, hw.HeadwiseError("Its process was killed."))
        return super().wait()


def test_a_killed_node_does_not_lose_the_end_of_the_study(
    copied: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice, speed, test and tables of the others are made all the same, and run.json says what failed."""
    notes = Notes()

    @contextmanager
    def crew(make: Any, *_: Any) -> Iterator[Killer]:
        yield Killer(make(notes), notes)

    monkeypatch.setattr("headwise.study.cluster.crew", crew)
    tiny["pruning"]["penalties"] = [0.005, 0.5]
    with pytest.raises(hw.HeadwiseError, match=r"^prune/lambda-0\.5 failed: Its process was killed\.$"):
        run_study(make_plan(tiny), copied, notes, workers="ray")
    assert notes.made == ["choose", "speed"]
    assert json.loads((copied / "run.json").read_text())["failed"] == {"prune.lambda-0.5": "Its process was killed."}


def test_threads_are_those_of_the_workers(copied: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the records do not tell, as those of an older run; and Python goes on with its own number."""
    notes = Notes()

    @contextmanager
    def crew(make: Any, progress: Progress, threads: int, device: str) -> Iterator[Here]:
        assert threads == 1
        yield Here(make(notes), notes)

    monkeypatch.setattr("headwise.study.cluster.crew", crew)
    record = copied / ".stages/train.json"
    told = json.loads(record.read_text())
    assert told.pop("threads") == 1
    record.write_text(json.dumps(told))
    with threads_set(3):
        run_study(make_plan(tiny), copied, notes, "evaluate", workers="ray")
        assert torch.get_num_threads() == 3
        assert json.loads((copied / "run.json").read_text())["threads"] == 1
        record.write_text(json.dumps({**told, "threads": 2}))
        run_study(make_plan(tiny), copied, notes, "evaluate")
        assert json.loads((copied / "run.json").read_text())["threads"] == 2


class TestTimeLeft:
    """It is measured where it is worth the seconds that this takes."""

    def measured(self, told: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch, *, shown: bool = True) -> bool:
        called: list[Path] = []
        monkeypatch.setattr("headwise.study.study.estimates", lambda plan, work, device: called.append(work) or {})
        progress = Notes()
        progress.console.quiet = not shown
        assert estimated(make_plan(told), out, progress, "cpu", STAGES) == {} and not progress.told
        return bool(called)

    def test_of_many_models(self, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not self.measured(tiny, tmp_path, monkeypatch)
        tiny["pruning"]["penalties"] = [0.1, 0.2, 0.3, 0.4, 0.5]
        assert self.measured(tiny, tmp_path, monkeypatch)
        assert not self.measured(tiny, tmp_path, monkeypatch, shown=False)
        (tmp_path / ".stages").mkdir()
        for penalty in tiny["pruning"]["penalties"]:
            (tmp_path / f".stages/prune.lambda-{penalty}.json").write_text("{}")
        assert not self.measured(tiny, tmp_path, monkeypatch), "they are made"

    def test_of_long_texts(self, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = {
            split: [str(file) for file in write_parallel(tmp_path, split, 10)]  # type: ignore[arg-type]
            for split in ("train", "dev")
        }
        told = {**tiny, "data": files}
        assert not self.measured(told, tmp_path / "out", monkeypatch)
        monkeypatch.setattr("headwise.study.study.LONG", 10)
        assert self.measured(told, tmp_path / "out", monkeypatch)

    def test_what_cannot_be_measured_stops_nothing(
        self, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: Any) -> Any:
            raise TypeError("no tokenizer")

        monkeypatch.setattr("headwise.study.study.estimates", fails)
        progress = Notes()
        progress.console.quiet = False
        assert estimated(make_plan({**tiny, "seeds": [1, 2]}), tmp_path, progress, "cpu", STAGES) == {}
        assert progress.told == ["  How long it will take is not known: TypeError: no tokenizer"]


class TestChoice:
    def test_dev_chooses_the_fewest_heads_within_the_drop(self) -> None:
        dev, kept = (
            {"full": 30.0, "a": 29.6, "b": 29.5, "c": 29.4, "d": 31.0},
            {"full": 8, "a": 3, "b": 2, "c": 1, "d": 5},
        )
        assert choose(dev, kept, 0.5) == "b"
        assert choose(dev, kept, 0.0) == "d" and choose(dev, kept, 9.0) == "c"
        assert choose({"full": 30.0, "a": 1.0}, {"full": 8, "a": 0}, 0.5) is None
        assert choose({"full": 30.0, "a": 1.0}, {"full": 8, "a": 0}, None) == "a", "whatever it loses"
        assert choose({"full": 30.0, "a": 30.0, "b": 31.0}, {"full": 8, "a": 3, "b": 3}, 0.5) == "b"

    def test_what_a_plan_of_several_left_behind_goes(self, copied: Path, tiny: dict[str, Any]) -> None:
        """A plan of several seeds that all failed leaves grid.json; a page of it is no page of this study."""
        (copied / "grid.json").write_text("{}")
        again(make_plan(tiny), copied)
        assert not (copied / "grid.json").exists() and (copied / "run.json").exists()

    def test_run_json_names_the_limit_that_the_choice_was_made_with(
        self, copied: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also when a later run with another limit was stopped before it chose."""
        before = json.loads((copied / "run.json").read_text())
        plan = make_plan({**tiny, "choice": {"max_drop": "any"}})
        again(plan, copied, "prune")
        facts = json.loads((copied / "run.json").read_text())
        assert facts["max_drop"] == before["max_drop"] == 0.5 and facts["chosen"] == before["chosen"]
        again(plan, copied)
        assert json.loads((copied / "run.json").read_text())["max_drop"] is None

    def test_test_text_is_opened_after_every_choice(
        self, copied: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []
        for split in ("train", "dev", "test"):
            write_parallel(tmp_path, split, 300 if split == "train" else 40)  # type: ignore[arg-type]
        texts = {split: [f"{tmp_path}/{split}.en", f"{tmp_path}/{split}.fr"] for split in ("train", "dev", "test")}
        watch_files(monkeypatch, tmp_path, order)
        monkeypatch.setattr("headwise.study.tables.choose", lambda *a: order.append("choose") or choose(*a))
        plan = make_plan({**tiny, "data": texts, "model": str(copied / "model")})
        notes = again(plan, tmp_path / "out")
        choices = [place for place, what in enumerate(order) if what == "choose"]
        assert order.index("test.en") > choices[-1] > choices[0] > order.index("dev.en")
        tested = notes.made.index("translate/test/full")
        assert {stage.split("/")[0] for stage in notes.made[tested:]} == {"translate", "quality", "speed"}
        assert not any("/dev/" in stage for stage in notes.made[tested:])

    def test_without_test_text_there_are_dev_numbers(self, copied: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
        files = [str(file) for file in write_parallel(tmp_path, "dev", 40)]
        tiny["pruning"] |= {"penalties": [1.0], "epochs": 1, "warmup": 0}
        data = {"train": [str(copied / "corpus/train.en"), str(copied / "corpus/train.fr")], "dev": files}
        notes = again(make_plan({**tiny, "data": data, "model": str(copied / "model")}), tmp_path / "out")
        assert any("names no test text" in line for line in notes.told)
        measures = set(pd.read_csv(tmp_path / "out/pruning.csv").measure)
        assert "dev_bleu" in measures and "bleu" not in measures
        assert hw.report(tmp_path / "out").exists()


def watch_files(monkeypatch: pytest.MonkeyPatch, folder: Path, order: list[str]) -> None:
    """Note the name of every file of a folder that is opened."""
    opened = Path.open

    def noted(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.parent == folder:
            order.append(self.name)
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", noted)


def started(plan: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headwise", "study", str(plan), "--out", str(out), "--only", "evaluate"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def completed(plan: Path, out: Path) -> str:
    process = started(plan, out)
    told = process.communicate()[1]
    assert process.returncode == 0, told
    return told


def killed_when(plan: Path, out: Path, reached: Callable[[], bool]) -> None:
    """Start a study, and kill -9 it as soon as it has got there."""
    process = started(plan, out)
    while not reached():
        assert process.poll() is None, f"ended before it could be killed: {process.stderr and process.stderr.read()}"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def markers(out: Path, stage: str) -> list[Path]:
    return sorted(out.glob(f".work/{stage}-*/checkpoint-*/complete"), key=lambda p: int(p.parent.name.split("-")[1]))


def signed(marker: Path) -> None:
    """Let a checkpoint say that it took a thousand seconds: who goes on from it adds to them."""
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "seconds": 1000.0}))


@pytest.mark.slow
def test_killed_again_and_again_ends_with_the_same_numbers(tiny: dict[str, Any], tmp_path: Path) -> None:
    """kill -9 in training, in the gate phase and in evaluation; dropout is on."""
    plan, unbroken, broken = tmp_path / "plan.toml", tmp_path / "unbroken", tmp_path / "broken"
    plan.write_text(make_plan(tiny).to_toml())
    completed(plan, unbroken)

    killed_when(plan, broken, lambda: len(markers(broken, "train")) >= 1)
    last = markers(broken, "train")[-1]
    signed(last)
    half = last.parent.with_name("checkpoint-1000000")  # a later one, killed while it was written
    shutil.copytree(last.parent, half)
    (half / "complete").unlink()
    (half / "model.safetensors").write_bytes(b"half")
    assert not (broken / "model").exists()

    killed_when(plan, broken, lambda: len(markers(broken, "prune.lambda-1")) >= 1)
    signed(markers(broken, "prune.lambda-1")[-1])
    assert (broken / "pruned/lambda-0.005").exists() and not (broken / "pruned/lambda-1").exists()

    killed_when(plan, broken, lambda: (broken / "translations/test/full.txt").exists())
    made = [(broken / folder).stat().st_mtime_ns for folder in ("model", "pruned/lambda-0.005", "pruned/lambda-1")]
    unfinished = pd.read_csv(broken / "pruning.csv")
    assert "dev_bleu" in set(unfinished.measure), "an unfinished study is already a result"

    told = completed(plan, broken)
    stages = "corpus/train train score prune/lambda-0.005 prune/lambda-1 translate/dev/full"
    assert [stage for stage in stages.split() if re.search(rf"^  {stage} ", told, re.MULTILINE)] == []
    assert " nodes: as before" in told
    assert made == [(broken / f).stat().st_mtime_ns for f in ("model", "pruned/lambda-0.005", "pruned/lambda-1")]
    seconds = json.loads((broken / "run.json").read_text())["seconds"]
    assert seconds["train"] > 1000 and seconds["prune/lambda-1"] > 1000 > seconds["prune/lambda-0.005"]
    same(numbers(broken), numbers(unbroken))
    assert list((broken / ".work").iterdir()) == [broken / ".work/text"]
