"""A plan of several seeds and sweeps: its models and tables, failures that stay where they are, the same on Ray."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

import headwise as hw
from headwise.core.layout import HeadMask
from headwise.study import model_steps
from headwise.study.plan import Plan, make_plan
from headwise.study.study import Study, dry_run, run_study
from own_process import headwise, two
from study.studies import (
    BARELY,
    NUMBER,
    QUIET,
    TINY,
    again,
    different,
    facts,
    numbers,
    numbers_of,
    plan_of,
)

# So few updates shut gates only at such a rate.
RECIPE = {"epochs": 1, "gate_learning_rate": 2.0, "warmup": 2}
SWEEPS: list[dict[str, Any]] = [
    {
        "name": "encoder",
        "penalty": [0.005, 1.0],
        "refine": 1,
        "controls": ["fine-tuned", "random"],
        **RECIPE,
    },
    {
        "name": "all",
        "kinds": ["encoder-self", "decoder-self", "cross"],
        "keep": [9],
        "seeds": [1],
        "controls": ["from-scratch", "narrower", "one-per-layer", "one-per-layer-random"],
        **RECIPE,
    },
    {"name": "top", "method": "top-k", "keep": [3], "seeds": [1], **RECIPE},
    {
        "name": "greedy",
        "method": "greedy",
        "measure": ["gradient", "random", "entropy"],
        "step": 0.5,
        "rescore": True,
        "orders": 1,
        "seeds": [2],
    },
    {
        "name": "tuned",
        "method": "greedy",
        "measure": ["weight-norm"],
        "step": 0.9,
        "train": "all",
        "epochs": 1,
        "seeds": [2],
    },
    {"name": "plain", "method": "greedy", "measure": ["gradient"], "step": 0.9, "seeds": [2]},
    {
        "name": "mean",
        "method": "greedy",
        "measure": ["gradient"],
        "step": 0.9,
        "repair": True,
        "seeds": [2],
    },
]
QUICK = {
    **TINY,
    "seeds": [1, 2],
    "pruning": SWEEPS,
    "training": {**TINY["training"], "epochs": 1, "average": 1, "batch_tokens": 630},
    "scoring": {**BARELY, "pruned": ["gradient"]},
    "search": {"beam": 1},
    "data": {"embedded": {"train": 150, "dev": 8, "test": 8}},
    "model": {**TINY["model"], "max_length": 32},
}
ENCODER = {**SWEEPS[0], "refine": 0}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished grid, not to be changed."""
    return run_study(plan_of(QUICK), tmp_path_factory.mktemp("grid") / "run", QUIET)


@pytest.mark.slow
class TestGrid:
    def test_every_run_is_a_study_of_its_own(self, grid: Path) -> None:
        runs = json.loads((grid / "grid.json").read_text())["runs"]
        assert runs == [{"folder": f"seed-{seed}", "data": "", "seed": seed} for seed in (1, 2)]
        tables = [pd.read_csv(grid / run["folder"] / "pruning.csv") for run in runs]
        for run, table in zip(runs, tables, strict=True):
            assert {*table.seed} == {run["seed"]} and not table.duplicated(NUMBER).any()
        assert len(pd.read_csv(grid / "grid.csv")) == sum(map(len, tables))
        across = pd.read_csv(grid / "across.csv")
        assert {*across[across.seeds == 2].setting} >= {
            "full",
            "encoder.lambda-1",
            "encoder.fine-tuned",
        }

    def test_the_models_of_a_seed(self, grid: Path) -> None:
        table = pd.read_csv(grid / "seed-1/pruning.csv")
        kept, methods = (
            table.groupby("setting").kept.first(),
            table.groupby("setting").method.first(),
        )
        assert kept["all.keep-9"] == 9 == kept["all.keep-9.from-scratch"] and kept["top.top-3"] == 3
        assert kept["encoder.fine-tuned"] == 8 and kept["all.one-per-layer"] == 6
        assert kept["encoder.lambda-0.005.random"] == kept["encoder.lambda-0.005"] < 8
        assert (
            methods["top.top-3"] == "top-k"
            and methods["all.keep-9"] == "gates" == methods["encoder.lambda-1"]
        )
        assert (
            methods["all.keep-9.narrower"] == "control.narrower"
            and kept["all.keep-9.narrower"] == 24
        )
        assert {*pd.read_csv(grid / "seed-2/pruning.csv").method} >= {
            "greedy.gradient",
            "greedy.gradient.rescored",
            "greedy.weight-norm",
        }
        filled = [
            name
            for name in kept.index
            if name.startswith("encoder.lambda") and "random" not in name
        ]
        assert len(filled) in (2, 3), "one λ more, unless no count lies between its neighbours"
        sizes = table[table.measure == "parameters"].set_index("setting").value
        assert abs(sizes["all.keep-9.narrower"] - sizes["all.keep-9"]) < 0.004 * sizes["all.keep-9"]

    @pytest.mark.parametrize(
        ("seed", "setting", "word", "other"),
        [
            (1, "all.keep-9.from-scratch", "pruned", "all.keep-9"),
            (1, "encoder.lambda-0.005", "fine-tuned", "encoder.fine-tuned"),
            (1, "encoder.lambda-1.random", "fine-tuned", "encoder.fine-tuned"),
            (1, "all.one-per-layer", "random", "all.one-per-layer-random"),
            (2, "mean.greedy-gradient-1", "unrepaired", "plain.greedy-gradient-1"),
        ],
    )
    def test_models_are_compared_with_others(
        self, grid: Path, seed: int, setting: str, word: str, other: str
    ) -> None:
        """A control by how much the model it belongs to is above it, all else the other way round."""
        rows, sign = numbers_of(grid / f"seed-{seed}"), -1 if word == "pruned" else 1
        for split in ("test", "dev"):
            own, its = (rows.value[name, split, "bleu", ""] for name in (setting, other))
            row = rows.loc[(setting, split, "bleu", word)]
            assert row.value == pytest.approx(sign * (own - its), abs=1e-6)
            assert row.low <= row.value <= row.high and 0 < row.p <= 1
            assert row.units == rows.units[setting, split, "bleu", ""] > 1
        assert facts(grid / f"seed-{seed}")["settings"][setting]["against"][word] == other

    def test_greedy_orders_are_nested_and_not_stored_untuned(self, grid: Path) -> None:
        kept = pd.read_csv(grid / "seed-2/pruning.csv").groupby("setting").kept.first()
        for order in ("greedy.greedy-gradient", "greedy.greedy-random.1", "greedy.greedy-entropy"):
            masks = [
                HeadMask.read(grid / f"seed-2/layouts/{order}-{count}.json") for count in (4, 1)
            ]
            assert (
                masks[1].kept < masks[0].kept
                and kept[f"{order}-4"] == 4
                and masks[0].count("cross") == 8
            )
        chosen = facts(grid / "seed-2")["chosen"]
        stored = {path.name for path in (grid / "seed-2/pruned").iterdir()}
        assert {name for name in stored if name.startswith(("greedy.", "plain."))} <= {chosen}
        assert (
            hw.load(grid / "seed-2/pruned/mean.greedy-gradient-1")
            .heads.only(["encoder-self"])
            .total
            == 1
        )
        assert "tuned.greedy-weight-norm-1" in stored

    def test_greedy_steps_were_known_beforehand(self, grid: Path, tmp_path: Path) -> None:
        def steps(folder: Path) -> set[str]:
            return {
                job.name
                for job in Study(plan_of(QUICK), folder, "cpu", QUIET).jobs()
                if ".greedy-" in job.name
            }

        before = steps(tmp_path)
        assert "seed-2/evaluate/dev/greedy.greedy-random.1-4" in before
        # What a result is compared with is known when it is chosen.
        assert before <= steps(grid)

    def test_pruned_models_are_scored_again_under_their_old_numbers(self, grid: Path) -> None:
        mask = HeadMask.read(grid / "seed-1/layouts/top.top-3.json")
        table = pd.read_csv(grid / "seed-1/rescored/top.top-3/heads.csv")
        encoder = table[table.kind == "encoder-self"]
        assert {(row.layer, row.head) for row in encoder.itertuples()} == {
            (head.layer, head.head) for head in mask.kept if head.kind == "encoder-self"
        }
        labels = pd.read_csv(grid / "seed-1/rescored/top.top-3/roles/labels.csv")
        assert len(labels[labels.kind == "encoder-self"]) == 3

    def test_run_json_says_what_every_setting_is(self, grid: Path) -> None:
        settings = facts(grid / "seed-1")["settings"] | facts(grid / "seed-2")["settings"]
        assert (
            settings["all.keep-9.from-scratch"]["reference"] == "all.keep-9"
            and settings["all.keep-9"]["keep"] == 9
        )
        assert settings["all.keep-9"]["settle"] > 0 == settings["encoder.lambda-1"]["settle"]
        random = settings["greedy.greedy-random.1-4"]
        assert (random["score"], random["ranking"], random["replicate"]) == (
            "random",
            "greedy.greedy-random.1",
            1,
        )
        assert (
            settings["mean.greedy-gradient-1"]["repair"]
            and settings["tuned.greedy-weight-norm-1"]["train"]
        )
        assert (
            facts(grid / "seed-1")["chosen"] is None
            or not settings[facts(grid / "seed-1")["chosen"]]["control"]
        )

    def test_run_again_makes_nothing(self, grid: Path) -> None:
        assert again(plan_of(QUICK), grid).made == []
        lines = dry_run(plan_of(QUICK), grid)
        (number,) = [place for place, line in enumerate(lines) if "steps, " in line]
        assert re.fullmatch(r"(\d+) steps, \1 of them done", lines[number])
        assert all("(done)" in line for line in lines[:number])

    def test_the_report_of_the_whole(self, grid: Path) -> None:
        hw.report(grid / "seed-2")
        page = hw.report(grid).read_text(encoding="utf-8")
        assert "seed-2/report.html" in page and "seed-1/report.html" not in page, (
            "only pages that are there"
        )


@pytest.mark.slow
def test_a_failed_task_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model fails, so its random control is never made; others are tested all the same, and the next run makes up."""
    real = model_steps.prune_by_training

    def fails(*given: Any) -> Any:
        if given[-1].penalty == 1.0:
            raise hw.HeadwiseError("This one was made to fail.")
        return real(*given)

    monkeypatch.setattr(model_steps, "prune_by_training", fails)
    plan, out = (
        plan_of(QUICK, seeds=[1], pruning=[{**ENCODER, "penalty": [1.0, 0.005]}]),
        tmp_path / "out",
    )
    with pytest.raises(
        hw.HeadwiseError, match=r"^seed-1/prune/encoder.lambda-1 failed: This one was made to fail"
    ):
        run_study(plan, out, QUIET)

    def tested() -> set[str]:
        table = pd.read_csv(out / "seed-1/pruning.csv")
        assert "tokens_per_second" in {*table.measure}
        return {*table[(table.measure == "bleu") & (table.split == "test")].setting}

    alive = {"full", "encoder.fine-tuned", "encoder.lambda-0.005", "encoder.lambda-0.005.random"}
    assert tested() == alive == {*pd.read_csv(out / "seed-1/pruning.csv").setting}
    assert facts(out / "seed-1")["failed"] == {
        "prune/encoder.lambda-1": "This one was made to fail."
    }
    monkeypatch.undo()
    made = again(plan, out).made
    assert not {"train", "prune/encoder.lambda-0.005", "translate/dev/full"} & {*made}
    assert tested() == alive | {"encoder.lambda-1", "encoder.lambda-1.random"}
    assert facts(out / "seed-1")["failed"] == {}


def by_ray(plan: Path, out: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "headwise",
        "run",
        str(plan),
        "--out",
        str(out),
        "--workers",
        "ray",
    ]
    return subprocess.Popen(
        [*command, "--threads", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_a_worker(driver: subprocess.Popen[str], out: Path) -> None:
    """kill -9 a worker that is in the middle of a training."""
    while not list(out.glob("seed-*/.work/prune.*/checkpoint-*")):
        assert driver.poll() is None, (
            f"ended before a worker could be killed: {driver.stderr and driver.stderr.read()}"
        )
        time.sleep(0.02)
    workers = [
        p
        for p in psutil.Process(driver.pid).children(recursive=True)
        if p.name().startswith("ray::do")
    ]
    assert workers
    workers[0].kill()


def written(plan: Plan, path: Path) -> Path:
    path.write_text(plan.to_toml())
    return path


@pytest.mark.slow
@pytest.mark.campaign
def test_two_workers_of_ray_give_the_same_numbers_also_when_one_is_killed(tmp_path: Path) -> None:
    """6 models of two seeds: full, one penalty, and its random control."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    data = {"embedded": {"train": 150, "dev": 20, "test": 20}}
    plan = plan_of(
        QUICK,
        data=data,
        scoring=BARELY,
        pruning=[{**ENCODER, "epochs": 3, "penalty": [1.0], "controls": ["random"]}],
    )
    alone = run_study(plan, tmp_path / "alone", QUIET)
    driver = by_ray(written(plan, tmp_path / "plan.toml"), tmp_path / "shared")
    kill_a_worker(driver, tmp_path / "shared")
    errors = driver.communicate()[1]
    assert driver.returncode == 0, errors
    one, other = numbers(alone), numbers(tmp_path / "shared")
    assert len([name for name in one if name.endswith("model.safetensors")]) == 6
    assert different(one, other) == [] and (tmp_path / "shared/across.csv").exists()
    assert (
        again(
            make_plan(json.loads(plan.model_dump_json(exclude_none=True))), tmp_path / "shared"
        ).made
        == []
    )


@pytest.mark.slow
@pytest.mark.campaign
def test_two_processes_give_one_result(tmp_path: Path) -> None:
    """Both train, score and prune; the main one does the rest, the roles of the pruned model too. The next run finds
    all of it."""
    training = {**QUICK["training"], "accumulate": 2, "batch_tokens": 630}
    sweep = {**ENCODER, "penalty": [0.005], "controls": []}
    plan = plan_of(QUICK, seeds=[], pruning=[sweep], weights="chosen", training=training)
    for status, _, errors in two(
        tmp_path,
        headwise,
        "run",
        written(plan, tmp_path / "plan.toml"),
        "--out",
        tmp_path / "out",
    ):
        assert status == 0, errors
    assert facts(tmp_path / "out")["failed"] == {} and again(plan, tmp_path / "out").made == []
    assert (tmp_path / "out/rescored/encoder.lambda-0.005/roles/roles.csv").exists()
    heads = pd.read_csv(tmp_path / "out/heads.csv").set_index(["kind", "layer", "head"]).value
    text = hw.ParallelText.read(tmp_path / "out/corpus/dev.en", tmp_path / "out/corpus/dev.fr")
    one = hw.score(hw.load(tmp_path / "out"), text, ["gradient"], seed=plan.seed).table
    alone = one.set_index(["kind", "layer", "head"]).value.astype(float)
    assert heads.to_dict() == pytest.approx(alone.to_dict(), rel=1e-4)
