"""To which plan a folder belongs. A plan may grow; a folder with the results of another plan is refused, and so is one
that holds anything that is not a run.

A plan of several seeds or language pairs lies above the folders of its runs, each of which has its own part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headwise.core.errors import HeadwiseError, few_names
from headwise.core.folders import PAGES, Folder, below, is_inside
from headwise.study.plan import Plan, from_toml, read_plan, read_toml
from headwise.study.records import refuse_damaged, run_records

# What may be changed or added to a plan between two runs: how many models, and what is asked of them.
FREE_SETTINGS = (
    "name",
    "seeds",
    "languages",
    "weights",
    "scoring",
    "roles",
    "choice",
    "speed",
    "pruning.penalty",
    "pruning.refine",
    "pruning.keep",
    "pruning.measure",
    "pruning.orders",
    "pruning.compare",
    "pruning.controls",
    "pruning.seeds",
)
OF_PLAN = ".steps/plan.json"
ADVICE = "Choose another --out, or change the plan back."


def claim(plan: Plan, out: Path) -> None:
    """Record, in its folders, which plan they belong to, and write it there for readers."""
    for folder, own in {".": plan, **plan.runs}.items():
        text = own.to_toml()
        Folder(below(out, folder), record=OF_PLAN).publish({"plan.toml": text}, plan=text)


def refuse_others(plan: Plan, out: Path) -> None:
    """Raise HeadwiseError where the folder of a plan, or of one of its runs, holds anything else than its results."""
    for folder in dict.fromkeys([".", *plan.runs]):
        refuse_foreign_files(below(out, folder))
    before = plans_with_results(out)
    # A study may grow; results of a run that the plan does not have would be of no plan.
    if not before.keys() <= plan.runs.keys():
        raise HeadwiseError(
            f"{out} holds the results of another plan: of {name_runs(before)}, where this one has {name_runs(plan.runs)}. "
            f"{ADVICE}"
        )
    for folder, earlier in before.items():
        changes = [*plan_changes(earlier, from_toml(plan.runs[folder].to_toml()))]
        if earlier and changes:
            said = "; ".join(changes[:4]) + (" …" if len(changes) > 4 else "")
            raise HeadwiseError(
                f"{below(out, folder)} holds the results of another plan: {said}. {ADVICE}"
            )


def refuse_foreign_files(folder: Path) -> None:
    """A folder that is neither new, nor empty, nor a run's by its records keeps what is in it; so do pages of the user's
    in one that is a run's."""
    run = Folder(folder, record=OF_PLAN)
    if run.read() or has_results(folder):
        Folder(folder, PAGES).refuse_others(["report.html"])
    else:
        run.refuse_used()


def has_results(folder: Path) -> bool:
    """Whether a step was finished there."""
    return any("key" in run.read() for run in run_records(folder))


def plan_of_folder(folder: Path) -> dict[str, Any]:
    """The plan that a folder was last run with, as TOML has it; nothing where there is none. plan.toml only tells it
    where the record is damaged: anybody may have changed it."""
    recorded = Folder(folder, record=OF_PLAN).read().get("plan")
    if isinstance(recorded, str):
        return from_toml(recorded)
    place = folder / "plan.toml"
    return read_toml(place) if place.exists() else {}


def plan_of_study(folder: Path) -> Plan:
    """The plan in the folder of a study. Raises HeadwiseError where plan.toml is not as the study wrote it."""
    refuse_damaged(folder, "plan.json")
    return read_plan(folder / "plan.toml")


def plans_with_results(out: Path) -> dict[str, dict[str, Any]]:
    """The plans, as TOML has them, of the runs with results in the folder of a study, by their folders."""
    if has_results(out):
        return {".": plan_of_folder(out)}
    plans = {}
    # A run is a folder of a language pair or of a seed, or of a seed in that of a language pair.
    for steps in sorted([*out.glob("*/.steps"), *out.glob("*/*/.steps")]):
        name = steps.parent.relative_to(out).as_posix()
        if is_inside(name) and has_results(steps.parent):
            plans[name] = plan_of_folder(steps.parent)
    return plans


def name_runs(folders: Iterable[str]) -> str:
    names = [*folders]
    return "one run" if names == ["."] else few_names(names)


def plan_changes(before: dict[str, Any], now: dict[str, Any], path: str = "") -> Iterator[str]:
    """Changes of a plan that results were made from: `training.epochs was 20 and is 30`."""
    for key in sorted({*before, *now}):
        name = f"{path}{key}"
        old = before.get(key)
        new = now.get(key)
        # Texts may move to another folder or machine.
        moved = path == "data." and file_names(old) == file_names(new)
        if name == "pruning":
            yield from sweep_differences(by_name(old), by_name(new))
        elif name in FREE_SETTINGS or old == new or moved:
            continue
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from plan_changes(old, new, f"{name}.")
        else:
            yield f"{name} was {old!r} and is {new!r}"


def file_names(files: Any) -> Any:
    """Files without their folders: a text may lie elsewhere; its fingerprint says whether it is the same one."""
    return [Path(file).name for file in files] if isinstance(files, list) else files


def by_name(sweeps: Any) -> dict[str, dict[str, Any]]:
    """The sweeps of a plan's file, one table or a list of them or none, by their names."""
    listed = [sweeps] if isinstance(sweeps, dict) else sweeps or []
    return {sweep.get("name", ""): sweep for sweep in listed}


def sweep_differences(
    before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Changes of the sweeps that are in both plans; sweeps may come and go."""
    for name in before.keys() & now.keys():
        where = f"in the sweep '{name}' " if name else ""
        for change in plan_changes(before[name], now[name], "pruning."):
            yield f"{where}{change}"
