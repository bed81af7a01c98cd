"""A plan of several seeds and sweeps: its nodes and tables, failures that stay where they are, and the same on Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

import headwise as hw
from headwise.heads import HeadMask
from headwise.study import Progress, make_plan, run_study
from headwise.study import making as making_models
from headwise.study.nodes import STAGES, all_nodes, known_members
from headwise.study.refine import steepest
from headwise.study.study import dry_run

RECIPE = {"epochs": 1, "gate_learning_rate": 1.0, "warmup": 2}  # so few updates shut gates only at such a rate
SWEEPS: list[dict[str, Any]] = [
    {"name": "encoder", "penalties": [0.005, 1.0], "refine": 1, "controls": ["further", "random"], **RECIPE},
    {"name": "all", "kinds": ["encoder-self", "decoder-self", "cross"], "keep": [9], "seeds": [1],
     "controls": ["from-scratch", "narrower", "one-per-layer", "one-per-layer-random"], **RECIPE},
    {"name": "top", "method": "top-k", "keep": [3], "seeds": [1], **RECIPE},
    {"name": "greedy", "method": "greedy", "scores": ["gradient", "random", "entropy"], "step": 0.5, "rescore": True,
     "orders": 1, "seeds": [2]},
    {"name": "tuned", "method": "greedy", "scores": ["weight-norm"], "step": 0.9, "tune": True, "epochs": 1,
     "seeds": [2]},
    {"name": "plain", "method": "greedy", "scores": ["gradient"], "step": 0.9, "seeds": [2]},
    {"name": "mean", "method": "greedy", "scores": ["gradient"], "step": 0.9, "compensate": True, "seeds": [2]},
]  # fmt: skip
TIMINGS = ("tokens_per_second", "seconds")


def smaller(tiny: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A plan that takes seconds: no scores to judge, one epoch of everything."""
    tiny["training"] |= {"epochs": 1, "average": 1}
    tiny["scoring"] = {"measures": ["gradient"], "judge": False, "pruned": ["gradient"]}
    return {**tiny, "seeds": [1, 2], "pruning": SWEEPS, **changes}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished grid, not to be changed."""
    from conftest import TINY

    plan = make_plan(smaller(json.loads(json.dumps(TINY))))
    return run_study(plan, tmp_path_factory.mktemp("grid") / "run", Progress(quiet=True))


@pytest.mark.slow
class TestGrid:
    def test_every_member_is_a_study_of_its_own(self, grid: Path) -> None:
        members = json.loads((grid / "grid.json").read_text())["members"]
        assert members == [{"folder": f"seed-{seed}", "data": "", "seed": seed} for seed in (1, 2)]
        for member in members:
            table = pd.read_csv(grid / member["folder"] / "pruning.csv")
            assert set(table.seed) == {member["seed"]} and not table.duplicated(["setting", "measure"]).any()
        whole = pd.read_csv(grid / "grid.csv")
        assert len(whole) == sum(len(pd.read_csv(grid / m["folder"] / "pruning.csv")) for m in members)
        across = pd.read_csv(grid / "across.csv")
        assert set(across[across.seeds == 2].setting) >= {"full", "encoder.lambda-1", "encoder.further"}

    def test_the_models_of_a_seed(self, grid: Path) -> None:
        table = pd.read_csv(grid / "seed-1/pruning.csv")
        kept = table.groupby("setting").kept.first()
        methods = table.groupby("setting").method.first()
        assert kept["all.keep-9"] == 9 == kept["all.keep-9.from-scratch"] and kept["top.top-3"] == 3
        assert kept["encoder.further"] == 8 and kept["all.one-per-layer"] == 6
        assert kept["encoder.lambda-0.005.random"] == kept["encoder.lambda-0.005"] < 8
        assert methods["top.top-3"] == "top-k" and methods["all.keep-9"] == "wanted-count"
        assert methods["all.keep-9.narrower"] == "control.narrower" and kept["all.keep-9.narrower"] == 24
        filled = [name for name in kept.index if name.startswith("encoder.lambda") and "random" not in name]
        assert len(filled) in (2, 3), "one λ more, unless no count lies between its neighbours"
        sizes = table[table.measure == "parameters"].set_index("setting").value
        assert abs(sizes["all.keep-9.narrower"] - sizes["all.keep-9"]) < 0.004 * sizes["all.keep-9"]

    def test_controls_are_held_against_their_twins(self, grid: Path) -> None:
        rows = pd.read_csv(grid / "seed-1/pruning.csv").set_index(["setting", "measure"])
        twin, control = "all.keep-9", "all.keep-9.from-scratch"
        for start in ("", "dev_"):
            bleu = {name: rows.value[name, f"{start}bleu"] for name in (twin, control)}
            row = rows.loc[(control, f"{start}bleu_difference_to_pruned")]
            assert row.value == pytest.approx(bleu[twin] - bleu[control], abs=1e-6) and row.low <= row.value <= row.high

    @pytest.mark.parametrize(
        ("seed", "setting", "word", "other"),
        [
            (1, "encoder.lambda-0.005", "further", "encoder.further"),
            (1, "encoder.lambda-1.random", "further", "encoder.further"),
            (1, "all.one-per-layer", "random", "all.one-per-layer-random"),
            (2, "mean.greedy-gradient-1", "uncompensated", "plain.greedy-gradient-1"),
        ],
    )
    def test_models_are_held_against_others(self, grid: Path, seed: int, setting: str, word: str, other: str) -> None:
        rows = pd.read_csv(grid / f"seed-{seed}/pruning.csv").set_index(["setting", "measure"])
        for start in ("", "dev_"):
            change = rows.value[setting, f"{start}bleu"] - rows.value[other, f"{start}bleu"]
            row = rows.loc[(setting, f"{start}bleu_difference_to_{word}")]
            assert row.value == pytest.approx(change, abs=1e-6) and row.low <= row.value <= row.high
            assert 0 < rows.value[setting, f"{start}p_value_to_{word}"] <= 1
        asked = json.loads((grid / f"seed-{seed}/run.json").read_text())["settings"]
        assert asked[setting]["against"][word] == other

    def test_greedy_orders_are_nested_and_not_stored_untuned(self, grid: Path) -> None:
        kept = pd.read_csv(grid / "seed-2/pruning.csv").groupby("setting").kept.first()
        for order in ("greedy.greedy-gradient", "greedy.greedy-random.1", "greedy.greedy-entropy"):
            masks = [HeadMask.read(grid / f"seed-2/layouts/{order}-{count}.json") for count in (4, 1)]
            assert masks[1].kept < masks[0].kept and kept[f"{order}-4"] == 4
            assert masks[0].count("cross") == 8
        chosen = json.loads((grid / "seed-2/run.json").read_text())["chosen"]
        stored = {path.name for path in (grid / "seed-2/pruned").iterdir()}
        assert {name for name in stored if name.startswith("greedy.")} <= {chosen}
        assert hw.load(grid / "seed-2/pruned/mean.greedy-gradient-1").heads.only(["encoder-self"]).total == 1
        assert "tuned.greedy-weight-norm-1" in stored

    def test_the_steps_of_greedy_orders_were_known_beforehand(
        self, grid: Path, tiny: dict[str, Any], tmp_path: Path
    ) -> None:
        members = [known_members(make_plan(smaller(tiny)), place, Progress(quiet=True)) for place in (tmp_path, grid)]
        before, after = ({n.name for n in all_nodes(found, STAGES) if ".greedy-" in n.name} for found in members)
        assert before == after and "seed-2/test/greedy.greedy-random.1-4" in before

    def test_pruned_models_are_scored_again_under_their_old_numbers(self, grid: Path) -> None:
        mask = HeadMask.read(grid / "seed-1/layouts/top.top-3.json")
        table = pd.read_csv(grid / "seed-1/after/top.top-3/heads.csv")
        encoder = table[table.kind == "encoder-self"]
        assert {(row.layer, row.head) for row in encoder.itertuples()} == {
            (head.layer, head.head) for head in mask.kept if head.kind == "encoder-self"
        }
        labels = pd.read_csv(grid / "seed-1/after/top.top-3/roles/labels.csv")
        assert len(labels[labels.kind == "encoder-self"]) == 3

    def test_run_json_says_what_every_setting_is(self, grid: Path) -> None:
        facts = json.loads((grid / "seed-1/run.json").read_text())
        assert facts["failed"] == {} and facts["settings"]["all.keep-9.from-scratch"]["of"] == "all.keep-9"
        assert facts["settings"]["encoder.lambda-1"]["value"] == 1.0
        assert facts["chosen"] is None or "control" not in facts["settings"][facts["chosen"]]["method"]

    def test_run_again_makes_nothing(self, grid: Path, tiny: dict[str, Any]) -> None:
        before = {path: path.stat().st_mtime_ns for path in (grid / "seed-1/.stages").glob("*.json")}
        run_study(make_plan(smaller(tiny)), grid, Progress(quiet=True))
        assert before == {path: path.stat().st_mtime_ns for path in (grid / "seed-1/.stages").glob("*.json")}

    def test_the_report_of_the_whole(self, grid: Path) -> None:
        hw.report(grid / "seed-2")
        page = hw.report(grid).read_text(encoding="utf-8")
        assert "seed-2/report.html" in page and "seed-1/report.html" not in page, "only pages that are there"


def test_what_is_trained_from_random_weights_comes_last(tiny: dict[str, Any], tmp_path: Path) -> None:
    plan = make_plan(smaller(tiny))
    nodes = all_nodes(known_members(plan, tmp_path, Progress(quiet=True)), STAGES)
    names = [node.name for node in nodes]
    assert names[0] == "seed-1/train" and len(set(names)) == len(names)
    scratch = names.index("seed-1/prune/all.keep-9.from-scratch")
    assert names.index("seed-2/prune/encoder.lambda-1") < scratch < names.index("seed-1/test/full")
    after = {node.name: node.after for node in nodes}
    assert after["seed-1/prune/all.keep-9.from-scratch"] == ("seed-1/prune/all.keep-9",)
    assert "seed-1/evaluate/encoder.further" in after["seed-1/evaluate/encoder.lambda-1"]
    assert [node.name for node in nodes if node.alone] == ["seed-1/speed", "seed-2/speed"]


def test_the_dry_run_tells_every_node_and_its_cost(tiny: dict[str, Any], tmp_path: Path) -> None:
    lines = dry_run(make_plan(smaller(tiny)), tmp_path / "out")
    assert any("seed-1/prune/encoder.lambda-1" in line and "after seed-1/train" in line for line in lines)
    assert "nodes, one after another: about" in lines[-4] and "the longest way" in lines[-3]
    assert lines[-2].startswith("left: train 2 (about ") and ", prune " in lines[-2]
    assert lines[-1] == "not in it: 2 λ of refine, which only results reveal"
    assert not (tmp_path / "out").exists()


def test_the_dry_run_of_a_folder_tells_what_is_done(tiny: dict[str, Any], tmp_path: Path) -> None:
    plan = make_plan(smaller(tiny, seeds=[1], pruning=[{**SWEEPS[0], "penalties": [1.0], "refine": 0, "controls": []}]))
    run_study(plan, tmp_path / "out", Progress(quiet=True), only="train")
    lines = dry_run(plan, tmp_path / "out")
    told = {name: rest.strip() for name, _, rest in (line.partition(" ") for line in lines)}
    assert told["seed-1/train"] == "done" and told["seed-1/prune/encoder.lambda-1"].startswith("about")
    assert f"{len(lines) - 3} nodes, 1 of them done, the rest one after another" in lines[-3]
    run_study(plan, tmp_path / "out", Progress(quiet=True))
    lines = dry_run(plan, tmp_path / "out")
    assert [line for line in lines[:-1] if " done" not in line] == [] and not lines[-1].startswith("left"), lines
    other = plan.model_copy(update={"training": plan.training.model_copy(update={"epochs": 9})})
    with pytest.raises(hw.HeadwiseError, match=r"another plan: training\.epochs"):
        dry_run(other, tmp_path / "out")


def test_the_steepest_gap_is_filled() -> None:
    points = {0.0: (24, 30.0), 0.01: (20, 29.9), 0.04: (10, 29.0), 0.16: (2, 28.5)}
    assert steepest(points) == 0.02
    assert steepest({0.01: (24, 30.0), 0.04: (23, 10.0)}) is None, "no number of heads lies between"
    assert steepest({0.0: (24, 30.0), 0.04: (3, 10.0)}) == 0.02
    assert steepest(points, taken=[0.02]) == 0.08, "one that was tried, or failed, is not tried again"


@pytest.mark.slow
def test_a_failed_node_does_not_lose_the_others(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model fails, so its random twin is never made; others are tested all the same, and the next run makes up."""
    gated = making_models.gated

    def fails(study: Any, sweep: Any, setting: Any, *rest: Any) -> Any:
        if setting.value == 1.0:
            raise hw.HeadwiseError("This one was made to fail.")
        return gated(study, sweep, setting, *rest)

    monkeypatch.setattr(making_models, "gated", fails)
    plan = make_plan(smaller(tiny, seeds=[1], pruning=[{**SWEEPS[0], "penalties": [1.0, 0.005], "refine": 0}]))
    with pytest.raises(hw.HeadwiseError, match="This one was made to fail"):
        run_study(plan, tmp_path / "out", Progress(quiet=True))
    table = pd.read_csv(tmp_path / "out/seed-1/pruning.csv")
    alive = {"full", "encoder.further", "encoder.lambda-0.005", "encoder.lambda-0.005.random"}
    assert set(table[table.measure == "bleu"].setting) == alive == set(table.setting)
    assert "tokens_per_second" in set(table.measure)
    facts = json.loads((tmp_path / "out/seed-1/run.json").read_text())
    assert list(facts["failed"].values()) == ["This one was made to fail."]
    monkeypatch.setattr(making_models, "gated", gated)
    run_study(plan, tmp_path / "out", Progress(quiet=True))
    table = pd.read_csv(tmp_path / "out/seed-1/pruning.csv")
    assert set(table[table.measure == "bleu"].setting) == alive | {"encoder.lambda-1", "encoder.lambda-1.random"}
    assert json.loads((tmp_path / "out/seed-1/run.json").read_text())["failed"] == {}


def by_ray(plan: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headwise", "study", str(plan), "--out", str(out), "--workers", "ray"]
    return subprocess.Popen(
        [*command, "--threads", "1"], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def kill_a_worker(driver: subprocess.Popen[str], out: Path) -> None:
    """kill -9 a worker that is in the middle of a training."""
    while not list(out.glob("seed-*/.work/prune.*/checkpoint-*")):
        assert driver.poll() is None, f"ended before a worker could be killed: {driver.stderr and driver.stderr.read()}"
        time.sleep(0.02)
    workers = [p for p in psutil.Process(driver.pid).children(recursive=True) if p.name().startswith("ray::do")]
    assert workers
    workers[0].kill()


def tables(out: Path) -> dict[str, Any]:
    """Everything that a study gives, timings aside."""
    files = [*out.glob("seed-*/layouts/*.json"), *out.glob("seed-*/gates/*.csv"), *out.glob("seed-*/**/heads.csv")]
    files += [*out.glob("seed-*/translations/**/*.txt"), *out.glob("seed-*/**/model.safetensors")]
    found: dict[str, Any] = {
        str(file.relative_to(out)): file.read_bytes() for file in files if ".work" not in str(file)
    }
    for seed in (1, 2):
        table = pd.read_csv(out / f"seed-{seed}/pruning.csv")
        found[f"seed-{seed}/pruning.csv"] = table[~table.measure.isin(TIMINGS)].to_csv()
    return found


@pytest.mark.slow
def test_two_workers_of_ray_give_the_same_numbers_also_when_one_is_killed(tiny: dict[str, Any], tmp_path: Path) -> None:
    """12 models of two seeds: full, further, two penalties, and two random twins of each."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    told = smaller(tiny, pruning=[{**SWEEPS[0], "refine": 0, "epochs": 3}])
    plan = tmp_path / "plan.toml"
    plan.write_text(make_plan(told).to_toml())
    alone = run_study(make_plan(told), tmp_path / "alone", Progress(quiet=True))
    driver = by_ray(plan, tmp_path / "shared")
    kill_a_worker(driver, tmp_path / "shared")
    errors = driver.communicate()[1]
    assert driver.returncode == 0, errors
    one, other = tables(alone), tables(tmp_path / "shared")
    assert one.keys() == other.keys() and len([name for name in one if name.endswith("model.safetensors")]) == 12
    assert [name for name in one if one[name] != other[name]] == []
