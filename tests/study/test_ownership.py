"""To whom a folder belongs: one plan, which may grow, whether it has members or none; one process at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import HeadwiseError
from headwise.study import Progress, make_plan, run_study
from headwise.study.folders import claim, refuse_others
from headwise.study.stage import opened
from headwise.study.study import dry_run

TEXTS = {"embedded": {"train": 30, "dev": 4, "test": 4}}


@pytest.fixture
def told(tiny: dict[str, Any]) -> dict[str, Any]:
    """A plan of two seeds and two sweeps."""
    sweeps = [{"name": "low", "penalties": [0.1]}, {"name": "high", "penalties": [1.0]}]
    return {**tiny, "seeds": [1, 2], "pruning": sweeps}


def done(told: dict[str, Any], out: Path, stage: str = "train") -> Path:
    """A folder in which every member of a plan has finished one stage."""
    plan = make_plan(told)
    claim(plan, out)
    for folder in plan.members:
        (out / folder / f".stages/{stage}.json").write_text(json.dumps({"name": stage.replace(".", "/"), "key": "x"}))
    return out


def refused(told: dict[str, Any], out: Path, match: str) -> None:
    """By a run and by a dry run, before anything is written."""
    before = {path: path.read_bytes() for path in out.rglob("plan.toml")}
    for run in (lambda: run_study(make_plan(told), out, Progress(quiet=True)), lambda: dry_run(make_plan(told), out)):
        with pytest.raises(HeadwiseError, match=match) as caught:
            run()
        assert "hoose another --out" in str(caught.value) and "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in out.rglob("plan.toml")}


def test_a_plan_of_several_members_may_grow(told: dict[str, Any], tmp_path: Path) -> None:
    out = done(told, tmp_path)
    more = [*told["pruning"], {"name": "more", "penalties": [2.0]}]
    for change in ({}, {"seeds": [1, 2, 3]}, {"pruning": more}, {"choice": {"max_drop": 3}}, {"name": "other"}):
        refuse_others(make_plan({**told, **change}), out)
    pairs = {**told, "seeds": [], "data": {}, "pairs": {"en-fr": TEXTS}}
    out = done(pairs, tmp_path / "pairs")
    refuse_others(make_plan({**pairs, "pairs": {"en-fr": TEXTS, "en-de": TEXTS}}), out)


def test_a_member_a_sweep_or_an_option_may_not_go_or_change(told: dict[str, Any], tmp_path: Path) -> None:
    out = done(told, tmp_path)
    low, high = told["pruning"]
    refused({**told, "seeds": [2, 3]}, out, "another plan: seed-1 was one of its members and is not any more")
    refused({**told, "pruning": [high]}, out, "the sweep 'low' of seed-1 is not in it any more; the sweep 'low' of se")
    refused({**told, "pruning": [{**low, "seeds": [1]}, high]}, out, "plan: the sweep 'low' of seed-2 is not in it")
    refused({**told, "search": {"beam": 3}}, out, r"seed-1 holds .*search\.beam was 2 and is 3")
    pairs = {"en-fr": TEXTS}
    refused({**told, "data": {}, "pairs": pairs}, out, "seed-1 was one of its members and is not any more; seed-2 was")


def test_a_change_is_found_where_the_members_that_have_results_do_not_tell(
    told: dict[str, Any], tmp_path: Path
) -> None:
    out = done(told, tmp_path)
    for seed in (1, 2):
        (out / f"seed-{seed}/plan.toml").unlink()
    refused({**told, "search": {"beam": 3}}, out, r"another plan: search\.beam was 2 and is 3")


def test_plans_with_and_without_members_do_not_share_a_folder(told: dict[str, Any], tmp_path: Path) -> None:
    alone = {**told, "seeds": []}
    refused(
        alone, done(told, tmp_path / "grid"), r"of a plan of several members \(seed-1, seed-2\), but this plan has ne"
    )
    refused(told, done(alone, tmp_path / "one"), r"of a plan of one seed .*several members \(seed-1, seed-2\)")
    member = {**alone, "seed": 1}
    refuse_others(make_plan(member), tmp_path / "grid/seed-1")  # which is a study like any other


def test_a_folder_that_was_made_before_it_kept_the_whole_plan(told: dict[str, Any], tmp_path: Path) -> None:
    out = done(told, tmp_path)
    (out / "plan.toml").unlink()
    refuse_others(make_plan(told), out)
    listed = [{"folder": f"seed-{seed}", "data": "", "seed": seed} for seed in (1, 2)]
    (out / "grid.json").write_text(json.dumps({"name": "tiny", "members": listed}))
    refuse_others(make_plan({**told, "seeds": [1, 2, 3]}), out)
    refused({**told, "seeds": [2]}, out, "seed-1 was one of its members")
    refused({**told, "seeds": []}, out, "of several members")


@pytest.mark.parametrize("stage", [None, "corpus.train"])
@pytest.mark.parametrize("seeds", [[], [1, 2]])
def test_a_folder_without_results_is_anybodys(
    told: dict[str, Any], tmp_path: Path, stage: str | None, seeds: list[int]
) -> None:
    """Such as after a first mistake: the training failed, and the plan was mended."""
    out = done({**told, "seeds": seeds}, tmp_path, stage or "nothing")
    for record in [] if stage else out.rglob("nothing.json"):
        record.unlink()
    for version in out.rglob("headwise"):
        version.write_text("0.0.1")
    for change in ({"search": {"beam": 3}}, {"seeds": [3]}, {"seeds": []}, {"pruning": told["pruning"][:1]}):
        plan = make_plan({**told, "seeds": seeds, **change})
        refuse_others(plan, out)
        claim(plan, out)


def test_the_result_of_greedy_pruning_is_not_written_over(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    refused(tiny, tmp_path, "holds smaller models that no plan made")


def test_one_process_at_a_time_works_in_the_whole(told: dict[str, Any], tmp_path: Path) -> None:
    """Also with other members than the first, for they share the tables."""
    with (
        opened(tmp_path, Progress(quiet=True)),
        pytest.raises(HeadwiseError, match=f"Another process is working on {tmp_path}: wait for it"),
    ):
        run_study(make_plan({**told, "seeds": [3]}), tmp_path, Progress(quiet=True))
    assert not (tmp_path / "seed-3").exists()


def test_a_difference_names_its_sweep(told: dict[str, Any], tmp_path: Path) -> None:
    out = done(told, tmp_path)
    low, high = told["pruning"]
    refused(
        {**told, "pruning": [low, {**high, "epochs": 7}]}, out, r"in the sweep 'high' pruning\.epochs was \d+ and is 7"
    )


def test_the_folder_of_a_model_is_no_place_for_a_study(told: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    refused(told, tmp_path, "is the folder of a model, in which no study is written: choose another --out")
