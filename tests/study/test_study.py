"""A whole study: what it leaves, what it makes again, that it goes on after a kill, and that test text is read last."""

from __future__ import annotations

import json
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

import headwise as hw
from headwise.core.folders import Folder
from headwise.core.layout import HeadMask
from headwise.core.qualities import QualityMeasure
from headwise.data.embedded import write_parallel
from headwise.faces.cli.outcome import outcome
from headwise.faces.report import report
from headwise.faces.report.model_card import origin_rows
from headwise.faces.report.run_folder import read_run
from headwise.models.decoding.bleu import translation_answers
from headwise.study import evaluation_steps, model_steps
from headwise.study.head_steps import ScorePass
from headwise.study.plan import make_plan
from headwise.study.run_context import RunContext
from headwise.study.study import Study, dry_run, run_study, thread_count
from own_process import Running, headwise
from study.studies import (
    BARELY,
    NUMBER,
    QUIET,
    TINY,
    again,
    different,
    facts,
    measured_in,
    numbers,
    numbers_of,
    plan_of,
)


def of_weights(found: dict[str, Any], there: bool = False) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name.endswith("safetensors") == there}


class TestFinished:
    def test_the_tables(self, finished: Path) -> None:
        heads = pd.read_csv(finished / "heads.csv")
        assert list(heads.columns) == [
            "kind",
            "layer",
            "head",
            "measure",
            "value",
            "low",
            "high",
            "n",
            "baseline",
            "units",
            "p",
        ]
        measures = {"confidence", "lrp.ding", "lrp.ding.signed", "gradient", "ablation.zero"}
        assert len(heads) == 2 * 4 * 3 * len(measures) and set(heads.measure) == measures
        pruning = pd.read_csv(finished / "pruning.csv")
        assert list(pruning.columns) == [
            "method",
            "kinds",
            "setting",
            "penalty",
            "seed",
            "kept",
            "total",
            "split",
            "measure",
            "reference",
            "value",
            "low",
            "high",
            "p",
            "units",
        ]
        assert not pruning.duplicated(NUMBER).any()
        found = pruning.groupby("setting")[["method", "penalty"]].first().sort_index()
        assert list(found.index) == ["full", "lambda-0.005", "lambda-1"]
        assert list(found.method) == ["none", "gates", "gates"] and list(found.penalty[1:]) == [
            0.005,
            1.0,
        ]
        quality = {("bleu", ""), ("chrf", ""), ("bleu", "full"), ("length_ratio", "")}
        losses = {(measure, "") for measure in ("loss", "soft_loss", "decided_loss")}
        numbers = numbers_of(finished)
        own = numbers.loc["lambda-1"]
        assert {*own.loc["test"].index} == quality and {*own.loc["dev"].index} == quality | losses
        assert {measure for measure, _ in own.loc[""].index} == {
            "parameters",
            "bytes",
            "memory",
            "cache_bytes",
            "tokens_per_second",
            "undecided_gates",
            "expected_heads",
            "settled",
            "updates",
            "seconds",
        }

    def test_every_interval_says_on_how_many_sentences_and_every_change_has_its_p(
        self, finished: Path
    ) -> None:
        """Sentences differ in length, so 20 of them say as much as fewer of one length."""
        numbers = numbers_of(finished).drop("tokens_per_second", level="measure")
        assert (numbers.low.notna() == numbers.units.notna()).all()
        assert (numbers.p.notna() == (numbers.index.get_level_values("reference") != "")).all()
        for split in ("test", "dev"):
            (units,) = {*numbers.xs(split, level="split").units.dropna()}
            lines = (finished / f"translations/{split}/reference.txt").read_text().splitlines()
            assert units == pytest.approx(translation_answers([lines], lines).units, rel=1e-7)
            assert 1 < units < len(lines)

    def test_layout_model_and_table_agree(self, finished: Path) -> None:
        pruning = pd.read_csv(finished / "pruning.csv").groupby("setting").first()
        for setting in ("lambda-0.005", "lambda-1"):
            mask = HeadMask.read(finished / "layouts" / f"{setting}.json")
            model = hw.load(finished / "pruned" / setting)
            assert model.layout == mask and pruning.kept[setting] == mask.count("encoder-self")
            assert model.heads.total == len(mask) and pruning.total[setting] == 8
        assert pruning.kept["full"] == 8 and pruning.kept["lambda-1"] == 0

    def test_run_json(self, finished: Path) -> None:
        found = facts(finished)
        assert (
            found["signature"]["seed"] == 3 and found["threads"] == 1 and found["versions"]["torch"]
        )
        assert found["chosen"] in (None, "lambda-0.005", "lambda-1") and found["max_drop"] == 0.5
        assert found["bleu_signature"].startswith("nrefs:1") and found["chrf_signature"].startswith(
            "nrefs:1"
        )
        assert all(
            found["seconds"][step] > 0
            for step in ("train", "prune/lambda-1", "translate/test/full")
        )
        assert found["settings"]["lambda-1"] == {
            "sweep": "",
            "kinds": ["encoder-self"],
            "unit": "head",
            "method": "gates",
            "penalty": 1.0,
            "keep": None,
            "score": None,
            "ranking": None,
            "replicate": None,
            "control": None,
            "reference": None,
            "comparison": False,
            "train": "all",
            "repair": False,
            "settle": 0.0,
            "against": {},
            "best_other": None,
        }
        assert any("No encoder-self head is left" in note for note in found["notes"]["lambda-1"])

    def test_a_damaged_table_is_refused_by_the_report(self, copied: Path) -> None:
        for name in ("heads.csv", "pruning.csv", "rescored/lambda-1/heads.csv", "run.json"):
            content = (copied / name).read_text()
            (copied / name).write_text(content.replace("e", "a", 1))
            with pytest.raises(
                hw.HeadwiseError,
                match=f"is damaged: {name} has changed. Run the same study again to heal it",
            ):
                hw.report(copied)
            (copied / name).write_text(content)
        (copied / "lrp.csv").unlink()
        with pytest.raises(hw.HeadwiseError, match=r"lrp\.csv is missing"):
            hw.report(copied)

    def test_the_report_can_be_written(self, copied: Path) -> None:
        assert "lambda" in hw.report(copied).read_text(encoding="utf-8").lower()


def left(plan: Any, out: Path) -> list[str]:
    """The steps that are not done."""
    return [job.name for job in Study(plan, out, "cpu", QUIET).jobs() if not job.done_before]


class TestDryRun:
    def test_of_a_finished_study_everything_is_done(
        self, copied: Path, tiny: dict[str, Any]
    ) -> None:
        before = sorted(copied.rglob("*"))
        lines = dry_run(make_plan(tiny), copied)
        assert left(make_plan(tiny), copied) == []
        (number,) = [place for place, line in enumerate(lines) if "steps, " in line]
        assert re.fullmatch(r"(\d+) steps, \1 of them done", lines[number])
        assert all("(done)" in line for line in lines[:number])
        assert sorted(copied.rglob("*")) == before

    def test_after_a_measure_was_added(self, copied: Path, tiny: dict[str, Any]) -> None:
        tiny["scoring"]["measures"] = [
            "confidence",
            "lrp.ding",
            "gradient",
            "ablation.zero",
            "ablation.mean",
        ]
        plan = make_plan(tiny)
        assert (
            left(plan, copied)
            == ["scores/ablation.mean", "untrained", "score", "judge"]
            == again(plan, copied).made
        )
        assert left(plan, copied) == []

    def test_after_the_version_of_a_task_was_raised(
        self, copied: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not what merely stands behind it in the list."""
        monkeypatch.setattr(ScorePass, "VERSION", ScorePass.VERSION + 1)
        passes = [
            "scores/attention-statistics",
            "scores/gradients",
            "scores/lrp.ding",
            "scores/ablation.zero",
        ]
        assert left(make_plan(tiny), copied) == [*passes, "score", "judge"]
        monkeypatch.undo()
        monkeypatch.setattr(
            model_steps.PruneByGates,
            "VERSION",
            model_steps.PruneByGates.VERSION + 1,
            raising=False,
        )
        found = left(make_plan(tiny), copied)
        assert {
            "prune/lambda-1",
            "measure/lambda-1",
            "translate/test/lambda-0.005",
            "choose",
            "speed",
        } <= {*found}
        assert not {"train", "score", "roles", "evaluate/dev/full", "translate/test/full"} & {
            *found
        }

    def test_of_a_new_folder(self, tiny: dict[str, Any], tmp_path: Path) -> None:
        tiny["pruning"]["refine"] = 1
        lines = dry_run(plan_of(tiny, seeds=[1, 2]), tmp_path / "out")
        assert "seed-1/prune by gates: lambda-0.005, lambda-1" in lines
        assert "without 2 λ of refine: results of this study decide them" in lines
        assert lines[-1].startswith("This takes about ")
        assert not (tmp_path / "out").exists()

    def test_models_that_the_choice_will_ask_for(
        self, tiny: dict[str, Any], tmp_path: Path
    ) -> None:
        compared = {"measure": ["gradient"], "compare": ["confidence", "random"], "orders": 2}
        tiny["pruning"] = {"method": "greedy", **compared}
        lines = dry_run(plan_of(tiny), tmp_path / "out")
        assert any("then 3 models of other orders" in line for line in lines)
        tiny["pruning"]["keep"] = [4]
        lines = dry_run(plan_of(tiny), tmp_path / "out")
        assert not any("of other orders" in line for line in lines)
        assert any("greedy-confidence-4" in line for line in lines)


def test_a_model_that_does_not_translate_is_named_once_and_before_pruning(
    copied: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bleu = numbers_of(copied).value["full", "dev", "bleu", ""]
    study = Study(make_plan(tiny), copied, "cpu", QUIET)
    steps = [job.name for job in study.jobs()]
    assert steps.index("evaluate/dev/full") < steps.index("prune/lambda-0.005")

    def warnings() -> list[str]:
        lines = again(make_plan(tiny), copied).lines
        return [line for line in lines if "does not translate yet" in line]

    (warning,) = warnings()
    assert f"The full model has {bleu:.1f} BLEU on dev" in warning
    assert "Train it longer or on more text, or give a better model." in warning
    monkeypatch.setattr(QualityMeasure, "is_too_low", lambda quality, value: False)
    assert not warnings()


class TestMadeAgain:
    def test_nothing_is_made_twice(self, copied: Path, tiny: dict[str, Any]) -> None:
        before = {
            path: path.stat().st_mtime_ns for path in copied.rglob("*") if path.suffix != ".lock"
        }
        before = {
            path: when for path, when in before.items() if not {".work", "corpus"} & {*path.parts}
        }
        notes = again(make_plan(tiny), copied)
        assert notes.made == [] and notes.lines[-1].endswith("steps: as before")
        changed = {
            path.name
            for path, when in before.items()
            if path.is_file() and path.stat().st_mtime_ns != when
        }
        assert changed <= {"plan.toml", "plan.json", "pruning.csv", "run.json", "tables.json"}, (
            "written from what is known, never made again"
        )

    def test_a_full_disk_stops_no_finished_study(
        self, copied: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
        assert again(make_plan(tiny), copied).made == []

    def test_a_new_penalty_makes_only_that(self, copied: Path, tiny: dict[str, Any]) -> None:
        tiny["pruning"]["penalty"] = [0.005, 0.5]
        notes = again(make_plan(tiny), copied)
        steps = (
            "prune",
            "translate/dev",
            "evaluate/dev",
            "measure",
            "rescored",
            "translate/test",
            "evaluate/test",
        )
        assert {*notes.made} == {f"{step}/lambda-0.5" for step in steps} | {"choose", "speed"}
        assert not any("damaged" in line for line in notes.lines)
        assert {*pd.read_csv(copied / "pruning.csv").setting} == {
            "full",
            "lambda-0.005",
            "lambda-0.5",
        }

    def test_a_lost_output_makes_its_task(self, copied: Path, tiny: dict[str, Any]) -> None:
        before = numbers(copied)
        shutil.rmtree(copied / "pruned/lambda-1")
        (copied / "translations/test/full.txt").unlink()
        assert {*again(make_plan(tiny), copied).made} == {"prune/lambda-1", "translate/test/full"}
        assert different(numbers(copied), before) == []

    def test_a_changed_plan_is_refused(self, copied: Path, tiny: dict[str, Any]) -> None:
        before = (copied / "plan.toml").read_text()
        for change, reason in (
            ({"seed": 4}, "seed was 3 and is 4"),
            ({"pruning": {**tiny["pruning"], "epochs": 4}}, "pruning.epochs was 3 and is 4"),
            ({"model": str(copied / "model")}, "model was "),
            (
                {"data": {"embedded": {"train": 301, "dev": 20, "test": 20}}},
                "data.embedded.train was 300 and is 301",
            ),
        ):
            with pytest.raises(hw.HeadwiseError, match=reason):
                again(plan_of(tiny, **change), copied)
        assert (copied / "plan.toml").read_text() == before

    def test_only_stops_after_its_stage(self, copied: Path, tiny: dict[str, Any]) -> None:
        scored = ["scores/gradients", "untrained", "score", "interactions", "judge"]
        every = {
            "train": ["train"],
            "score": scored,
            "roles": ["roles"],
            "prune": ["prune/lambda-1"],
        }
        for name in (*(name for names in every.values() for name in names), "translate/dev/full"):
            folder = Folder(copied, record=f".steps/{name.replace('/', '.')}.json")
            folder.note(**{**folder.read(), "key": "of another plan"})
        assert {only: again(make_plan(tiny), copied, only).made for only in every} == every

    def test_only_with_a_wrong_name(self, tiny: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(
            hw.HeadwiseError,
            match="--only all was asked for, but the stages are train, score, roles,",
        ):
            run_study(make_plan(tiny), tmp_path / "out", QUIET, only="all")
        assert not (tmp_path / "out").exists()


class TestOnlyChosenWeights:
    def test_others_go_and_are_made_again_only_when_needed(
        self, copied: Path, tiny: dict[str, Any]
    ) -> None:
        before, chosen = of_weights(numbers(copied)), facts(copied)["chosen"]
        gone = "lambda-0.005" if chosen == "lambda-1" else "lambda-1"
        weights, plan = (
            (copied / f"pruned/{gone}/model.safetensors").read_bytes(),
            plan_of(tiny, weights="chosen"),
        )
        assert again(plan, copied).made == []
        assert {path.name for path in (copied / "pruned").iterdir()} == {chosen} - {None}
        shutil.rmtree(copied / "model")
        assert again(plan, copied).made == [] and left(plan, copied) == []
        (copied / f"translations/test/{gone}.txt").unlink()
        assert {*again(plan, copied).made} == {"train", f"prune/{gone}", f"translate/test/{gone}"}
        assert different(of_weights(numbers(copied)), before) == []
        again(make_plan(tiny), copied)
        assert (copied / f"pruned/{gone}/model.safetensors").read_bytes() == weights

    def test_a_model_that_is_chosen_later_is_made_again(
        self, copied: Path, tiny: dict[str, Any]
    ) -> None:
        tiny |= {"choice": {"max_drop": 100}}
        tiny["pruning"]["penalty"] = [0.5, 1.0]
        again(make_plan(tiny), copied)
        before, chosen = of_weights(numbers(copied), there=True), facts(copied)["chosen"]
        again(plan_of(tiny, weights="chosen"), copied)
        other = "lambda-0.5" if chosen == "lambda-1" else "lambda-1"
        assert (copied / "pruned" / chosen).exists() and not (copied / "pruned" / other).exists()
        tiny["pruning"]["penalty"] = [0.5 if chosen == "lambda-1" else 1.0]
        assert f"prune/{other}" in again(plan_of(tiny, weights="chosen"), copied).made
        weights = f"pruned/{other}/model.safetensors"
        assert (copied / weights).read_bytes() == before[weights]

    def test_a_model_whose_gates_had_not_settled_is_never_chosen(
        self, copied: Path, tiny: dict[str, Any]
    ) -> None:
        """Of lambda-0.005 half of the gates are undecided; it is the only one left to choose."""
        tiny |= {"choice": {"max_drop": "any"}}
        tiny["pruning"]["penalty"] = [0.005]
        again(make_plan(tiny), copied)
        assert facts(copied)["chosen"] is None and facts(copied)["unsettled"] == ["lambda-0.005"]
        ended = outcome(copied)
        assert ended.model is None
        assert any("gates of lambda-0.005 had not settled" in line for line in ended.lines)
        assert "had not settled when" in hw.report(copied).read_text(encoding="utf-8")


def given(tiny: dict[str, Any], copied: Path, tmp_path: Path, **pruning: Any) -> dict[str, Any]:
    """A plan that takes a trained model and makes one smaller one."""
    sweep = pruning or {"penalty": [1.0], "epochs": 1, "warmup": 0, "gate_learning_rate": 1.0}
    place = Path(shutil.copytree(copied / "model", tmp_path / "given"))
    return {
        **tiny,
        "model": str(place),
        "pruning": sweep,
        "scoring": {**BARELY, "pruned": ["gradient"]},
    }


def test_no_table_holds_results_of_two_models(
    copied: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model is given under the same name, and then all pruning fails: nothing of the old one is left."""
    plan, out = make_plan(given(tiny, copied, tmp_path)), tmp_path / "out"
    run_study(plan, out, QUIET)
    assert {*pd.read_csv(out / "pruning.csv").setting} == {"full", "lambda-1"} and (
        out / "rescored/lambda-1"
    ).exists()
    assert again(plan, out).made == []
    hw.load(copied / "pruned/lambda-0.005").save(tmp_path / "given")

    def fails(*_: Any) -> Any:
        raise hw.HeadwiseError("This one was made to fail.")

    monkeypatch.setattr(model_steps, "prune_by_training", fails)
    with pytest.raises(hw.HeadwiseError, match="made to fail"):
        run_study(plan, out, QUIET)
    table = pd.read_csv(out / "pruning.csv")
    assert {*table.setting} == {"full"} and ("test", "bleu", "") in measured_in(out)
    assert not (out / "pruned/lambda-1").exists() and not (out / "rescored/lambda-1").exists()
    assert list(table[table.measure == "parameters"].value) == [
        hw.load(tmp_path / "given").parameters
    ]
    assert facts(out)["chosen"] is None and facts(out)["failed"] == {
        "prune/lambda-1": "This one was made to fail."
    }


class TestChoice:
    def test_a_model_that_was_only_cut_is_saved_where_it_is_chosen(
        self, copied: Path, tiny: dict[str, Any], tmp_path: Path
    ) -> None:
        greedy = {
            "method": "greedy",
            "measure": ["weight-norm", "random"],
            "orders": 1,
            "step": 0.9,
        }
        values = {
            **given(tiny, copied, tmp_path, **greedy),
            "choice": {"max_drop": "any"},
            "weights": "chosen",
        }
        for _ in range(2):
            run_study(make_plan(values), tmp_path / "out", QUIET)
            assert facts(tmp_path / "out")["chosen"] == "greedy-weight-norm-1", (
                "a random order is a baseline"
            )
            assert (
                hw.load(tmp_path / "out/pruned/greedy-weight-norm-1")
                .heads.only(["encoder-self"])
                .total
                == 1
            )
            shutil.rmtree(tmp_path / "out/pruned")

    def test_run_json_names_the_limit_that_the_choice_was_made_with(
        self, copied: Path, tiny: dict[str, Any]
    ) -> None:
        again(plan_of(tiny, choice={"max_drop": "any"}), copied)
        assert facts(copied)["max_drop"] is None and facts(copied)["chosen"] == "lambda-1"

    def test_test_text_is_read_after_the_choice(
        self, copied: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before it, its sentences are only counted."""
        order: list[str] = []
        texts = {}
        for split, count in (("train", 300), ("dev", 40), ("test", 40)):
            texts[split] = [str(path) for path in write_parallel(tmp_path, split, count)]  # type: ignore[arg-type]
        text, real = RunContext.text, evaluation_steps.choose_smallest

        def noted(self: RunContext, split: Any) -> Any:
            order.append(split)
            return text(self, split)

        monkeypatch.setattr(RunContext, "text", noted)
        monkeypatch.setattr(
            evaluation_steps, "choose_smallest", lambda *a: order.append("choose") or real(*a)
        )
        notes = again(plan_of(given(tiny, copied, tmp_path), data=texts), tmp_path / "out")
        assert order.index("test") > order.index("choose") > order.index("dev")
        after = notes.made[notes.made.index("choose") + 1 :]
        assert {step.split("/")[0] for step in after} == {"translate", "evaluate", "speed"}
        assert not any("/dev/" in step for step in after)

    def test_without_test_text_there_are_dev_numbers(
        self, copied: Path, tiny: dict[str, Any], tmp_path: Path
    ) -> None:
        texts = {
            split: [str(copied / f"corpus/{split}.{side}") for side in ("en", "fr")]
            for split in ("train", "dev")
        }
        notes = again(plan_of(given(tiny, copied, tmp_path), data=texts), tmp_path / "out")
        assert any("No test text is named" in line for line in notes.lines)
        splits = {split for split, measure, _ in measured_in(tmp_path / "out") if measure == "bleu"}
        assert splits == {"dev"}
        assert hw.report(tmp_path / "out").exists()


def test_threads_are_set_for_a_study_and_back(copied: Path, tiny: dict[str, Any]) -> None:
    with thread_count(3):
        shutil.rmtree(copied / "scores/gradients")
        run_study(make_plan(tiny), copied, QUIET, "score", threads=1)
        assert torch.get_num_threads() == 3
    assert (
        json.loads((copied / ".steps/scores.gradients.json").read_text())["environment"]["threads"]
        == 1
    )
    for file in (copied / ".steps").glob("*.json"):
        record = json.loads(file.read_text())
        assert "key" not in record or record["dtype"] in ("float32", "bfloat16"), file.name


def kill_when(plan: Path, out: Path, reached: Callable[[], bool]) -> None:
    """Start a study, and kill -9 it as soon as it has got there."""
    folder = Path(tempfile.mkdtemp(dir=plan.parent))
    process = Running(folder / "process", headwise, "run", plan, "--out", out, "--only", "evaluate")
    process.wait_until(reached)
    process.send(signal.SIGKILL)
    assert process.end()[0] == -signal.SIGKILL


def markers(out: Path, step: str) -> list[Path]:
    return sorted(
        out.glob(f".work/{step}-*/checkpoint-*/complete"),
        key=lambda p: int(p.parent.name.split("-")[1]),
    )


def sign(marker: Path) -> None:
    """Let a checkpoint say that it took a thousand seconds: who goes on from it adds to them."""
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "seconds": 1000.0}))


@pytest.mark.slow
@pytest.mark.campaign
def test_killed_again_and_again_ends_with_the_same_numbers(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """kill -9 in training, in the gate phase and in evaluation; dropout is on."""
    plan, unbroken, broken = tmp_path / "plan.toml", tmp_path / "unbroken", tmp_path / "broken"
    values = plan_of(tiny, scoring=BARELY)
    plan.write_text(values.to_toml())
    again(values, unbroken, "evaluate")

    kill_when(plan, broken, lambda: len(markers(broken, "train")) >= 1)
    last = markers(broken, "train")[-1]
    sign(last)
    half = last.parent.with_name("checkpoint-1000000")  # a later one, killed while it was written
    shutil.copytree(last.parent, half)
    (half / "complete").unlink()
    (half / "model.safetensors").write_bytes(b"half")
    assert not (broken / "model").exists()

    kill_when(plan, broken, lambda: len(markers(broken, "prune.lambda-1")) >= 1)
    sign(markers(broken, "prune.lambda-1")[-1])
    assert (broken / "pruned/lambda-0.005").exists() and not (broken / "pruned/lambda-1").exists()
    assert ("dev", "bleu", "") in measured_in(broken), "an unfinished study is already a result"

    kill_when(plan, broken, lambda: (broken / "translations/test/full.txt").exists())
    places = [broken / folder for folder in ("model", "pruned/lambda-0.005", "pruned/lambda-1")]
    made = [place.stat().st_mtime_ns for place in places]
    assert any(" steps: as before" in line for line in again(values, broken, "evaluate").lines)
    assert made == [place.stat().st_mtime_ns for place in places]
    seconds = facts(broken)["seconds"]
    assert (
        seconds["train"] > 1000 and seconds["prune/lambda-1"] > 1000 > seconds["prune/lambda-0.005"]
    )
    assert different(numbers(broken), numbers(unbroken)) == []
    assert list((broken / ".work").iterdir()) == [broken / ".work/text"]


def test_tables_say_where_the_work_was_done(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where they are written: a finished study that is looked at under another torch, and one done in two places."""
    before = facts(copied)
    there = before["versions"]["torch"]
    elsewhere = {"versions": {"torch": "99"}, "threads": 64, "machine": "Other", "kernel": "NONE"}
    monkeypatch.setattr("headwise.models.environment.version", lambda name: "99")
    monkeypatch.setattr("headwise.study.results.environment_info", lambda: elsewhere)
    again(plan_of(TINY), copied)
    assert facts(copied) == before

    folder = Folder(copied, record=".steps/score.json")
    record = folder.read()
    assert record["environment"]["kernel"] == torch.backends.cpu.get_cpu_capability()
    folder.note(**{**record, "environment": elsewhere})
    again(plan_of(TINY), copied)
    after = facts(copied)
    assert after["versions"]["torch"] == f"{there} and 99" and after["threads"] == "1 and 64"
    assert after["versions"]["python"] == before["versions"]["python"]
    assert after["signature"]["kernel"] == " and ".join(
        sorted(["NONE", before["signature"]["kernel"]])
    )
    report(copied)
    run = read_run(copied)
    assert f"torch {there} and 99" in str(origin_rows(run, run.pruned[0])), "the model card"
    assert f"{there} and 99" in (copied / "report.html").read_text()
