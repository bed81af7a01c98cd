"""To which plan a folder belongs: one plan, which may grow; what is not a run's is never touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder
from headwise.faces.report.run_folder import read_run
from headwise.study.ownership import claim, plan_changes, plan_of_study, refuse_others
from headwise.study.study import dry_run, run_study
from study.studies import QUIET, TINY, plan_of

TEXTS = {"embedded": {"train": 30, "dev": 6, "test": 6}}
LOW, HIGH = {"name": "low", "penalty": [0.1]}, {"name": "high", "penalty": [1.0]}
GRID = {**TINY, "seeds": [1, 2], "pruning": [LOW, HIGH]}


def done(values: dict[str, Any], out: Path, results: bool = True) -> Path:
    """A folder that belongs to a plan, where every run has finished its training, or nothing yet."""
    plan = plan_of(values)
    claim(plan, out)
    for folder in dict.fromkeys([".", *plan.runs]):
        (out / folder / ".lock").touch()
    for folder in plan.runs if results else ():
        (out / folder / ".steps").mkdir(exist_ok=True)
        record = {
            "name": "train",
            "key": "x",
            "dependencies": {},
            "seconds": 1,
            "texts": {},
        }
        Folder(out / folder, record=".steps/train.json").note({}, **record, result={})
    return out


def refused(values: dict[str, Any], out: Path, reason: str) -> None:
    """By a run and by a dry run, before anything is written."""
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for run in (
        lambda: run_study(plan_of(values), out, QUIET),
        lambda: dry_run(plan_of(values), out),
    ):
        with pytest.raises(HeadwiseError, match=reason) as caught:
            run()
        assert "--out" in str(caught.value) and "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_plan_may_grow(tmp_path: Path) -> None:
    out = done(GRID, tmp_path / "grid")
    more = [LOW, HIGH, {"name": "more", "penalty": [2.0]}]
    for change in (
        {},
        {"seeds": [1, 2, 3]},
        {"pruning": more},
        {"choice": {"max_drop": 3}},
        {"name": "other"},
        {"weights": "chosen"},
        {"pruning": [{**LOW, "penalty": [0.2], "keep": [3]}, HIGH]},
        {"pruning": [HIGH]},
    ):
        refuse_others(plan_of(GRID, **change), out)
    pairs = {**GRID, "seeds": [], "data": {}, "languages": {"en-fr": TEXTS}}
    out = done(pairs, tmp_path / "pairs")
    refuse_others(plan_of(pairs, languages={"en-fr": TEXTS, "en-de": TEXTS}), out)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"seeds": [2, 3]},
            "another plan: of seed-1, seed-2, where this one has seed-2, seed-3",
        ),
        (
            {"pruning": [LOW, {**HIGH, "epochs": 7}]},
            r"in the sweep 'high' pruning\.epochs was \d+ and is 7",
        ),
        ({"search": {"beam": 3}}, r"seed-1 holds .*search\.beam was 2 and is 3"),
        (
            {"data": {}, "languages": {"en-fr": TEXTS}},
            "of seed-1, seed-2, where this one has en-fr/seed-1, en-fr/seed-2",
        ),
        ({"seeds": []}, "of seed-1, seed-2, where this one has one run"),
    ],
)
def test_what_results_were_made_from_may_not_change(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    refused({**GRID, **change}, done(GRID, tmp_path), reason)


def test_a_change_is_found_where_the_runs_that_have_results_do_not_say(tmp_path: Path) -> None:
    out = done(GRID, tmp_path)
    for seed in (1, 2):
        (out / f"seed-{seed}/plan.toml").unlink()
    with pytest.raises(HeadwiseError, match=r"another plan: search\.beam was 2 and is 3"):
        refuse_others(plan_of(GRID, search={"beam": 3}), out)


def test_a_plan_of_one_run_and_one_of_several_do_not_share_a_folder(tmp_path: Path) -> None:
    alone = {**GRID, "seeds": []}
    refused(
        GRID,
        done(alone, tmp_path / "one"),
        "another plan: of one run, where this one has seed-1, seed-2",
    )
    done(GRID, tmp_path / "grid")
    refuse_others(
        plan_of(alone, seed=1), tmp_path / "grid/seed-1"
    )  # which is a study like any other


@pytest.mark.parametrize("seeds", [[], [1, 2]])
def test_a_folder_without_results_is_anybodys(tmp_path: Path, seeds: list[int]) -> None:
    """As after a first mistake: the training failed, and the plan was mended."""
    out = done({**GRID, "seeds": seeds}, tmp_path, results=False)
    for change in ({"search": {"beam": 3}}, {"seeds": [3]}, {"seeds": []}, {"pruning": [LOW]}):
        refuse_others(plan_of(GRID, **{"seeds": seeds, **change}), out)


def test_texts_may_lie_elsewhere_under_the_same_names() -> None:
    before, moved, other = (
        {"data": {"train": [f"{place}.en", f"{place}.de"]}} for place in ("/a/x", "/b/x", "/a/y")
    )
    assert list(plan_changes(before, moved)) == []
    assert [line.partition(" was ")[0] for line in plan_changes(before, other)] == ["data.train"]


@pytest.mark.parametrize(
    "name", ["thesis.txt", "run.json", "model/weights.bin", "plan.toml", "seed-1/notes.txt"]
)
def test_a_folder_with_other_files_is_refused_and_nothing_goes(tmp_path: Path, name: str) -> None:
    """Whatever lies there, even a plan.toml that no study wrote; also below a plan of several runs."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("words")
    refused(GRID, tmp_path, "there is something else")
    assert file.read_text() == "words"


def test_the_folder_of_a_model_is_no_place_for_a_study(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    refused(
        GRID,
        tmp_path,
        r"there is something else \(config\.json\): choose a new or empty folder",
    )


def test_one_process_at_a_time_works_in_the_whole(tmp_path: Path) -> None:
    """Also on other runs than the first: they share the tables."""
    with (
        Folder(tmp_path).lock(),
        pytest.raises(HeadwiseError, match=f"process is working on {tmp_path}: wait"),
    ):
        run_study(plan_of(GRID, seeds=[3]), tmp_path, QUIET)
    assert not (tmp_path / "seed-3").exists()


def test_killed_while_it_claims_a_folder_the_study_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("put", "remove"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Folder, step, killed)
            claim(plan_of(TINY), tmp_path)
        refuse_others(plan_of(TINY), tmp_path)
    claim(plan_of(TINY), tmp_path)
    assert plan_of_study(tmp_path).name == "tiny"


@pytest.mark.parametrize("mine", ["model", "train", "roles"])
@pytest.mark.parametrize("extra", [[], [".steps/plan.json"]])
def test_a_plan_and_a_lock_make_no_folder_ours(tmp_path: Path, mine: str, extra: list[str]) -> None:
    """Only a record does, and a damaged one does not."""
    (tmp_path / mine).mkdir()
    (tmp_path / mine / "work.txt").write_text("years")
    for name in ("plan.toml", ".lock", *extra):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    refused(TINY, tmp_path, "there is something else")
    assert (tmp_path / mine / "work.txt").read_text() == "years"


def test_a_page_of_the_user_in_the_folder_of_a_run_stays(tmp_path: Path) -> None:
    out = done(TINY, tmp_path / "run")
    (out / "report.html").write_text("mine")
    with pytest.raises(HeadwiseError, match=r"report\.html is in the way"):
        run_study(plan_of(TINY), out, QUIET)
    assert (out / "report.html").read_text() == "mine"


@pytest.mark.parametrize("damage", ["halved", "emptied", "changed", "removed"])
def test_a_damaged_plan_is_noticed_and_healed(tmp_path: Path, damage: str) -> None:
    out = done(TINY, tmp_path / "run")
    plan = out / "plan.toml"
    text = plan.read_text()
    damaged = {"halved": text[: len(text) // 2], "emptied": "", "changed": f"{text}\n"}
    plan.unlink() if damage == "removed" else plan.write_text(damaged[damage])
    (out / "run.json").write_text("{}")
    for read in (read_run, plan_of_study):
        with pytest.raises(HeadwiseError, match=r"plan\.toml (has changed|is missing)"):
            read(out)
    with pytest.raises(HeadwiseError, match=r"another plan: search\.beam was 2 and is 3"):
        refuse_others(plan_of(TINY, search={"beam": 3}), out)
    claim(plan_of(TINY), out)
    assert plan.read_text() == text and plan_of_study(out).name == "tiny"
