"""To whom a folder belongs: one plan, which may grow, and one version of headwise; anything else is refused.

A plan of several seeds or language pairs lies above the folders of its members, each of which has its own part of it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.study.plan import Plan
from headwise.study.stage import read_record

FREE = (  # what may be changed or added to a plan between two runs: how many models, and what is asked of them
    "name", "seeds", "pairs", "weights", "scoring", "roles", "choice", "speed",
    "pruning.penalties", "pruning.refine", "pruning.keep",
    "pruning.scores", "pruning.orders", "pruning.controls", "pruning.seeds",
)  # fmt: skip
ADVICE = "Choose another --out, or take the plan back to what it was."


def claim(plan: Plan, out: Path) -> None:
    """Write down, in its folders, which plan they belong to."""
    for folder, own in {".": plan, **plan.members}.items():
        write_text(out / folder / "plan.toml", own.to_toml())
    for made in (out / folder / ".stages" / "headwise" for folder in plan.members):
        if not made.exists() or made.read_text() != version("headwise"):
            write_text(made, version("headwise"))


def refuse_others(plan: Plan, out: Path) -> None:
    """Raise HeadwiseError where the folder of a plan, or of one of its members, holds results of another one, or a
    model.
    """
    if (out / "config.json").exists():
        raise HeadwiseError(f"{out} is the folder of a model, in which no study is written: choose another --out.")
    if (out / "run.json").exists() and not (out / ".stages").exists():
        raise HeadwiseError(f"{out} holds smaller models that no plan made (greedy pruning): choose another --out.")
    there = members_of(out)
    if several(plan):
        if has_results(out):
            raise HeadwiseError(
                f"{out} holds the results of a plan of one seed and one pair of texts, but this plan has several "
                f"members ({listed([*plan.members])}): choose another --out."
            )
    elif there:
        raise HeadwiseError(
            f"{out} holds the results of a plan of several members ({listed([*there])}), but this plan has neither "
            "seeds nor pairs: choose another --out, or give it the folder of one of them."
        )
    for folder, own in plan.members.items():
        refuse_other(own, out / folder)
    if there:
        changes, before = [*lost(plan, there)], read_plan_of(out)
        refuse(out, [*changes, *differences(before, tomllib.loads(plan.to_toml()))] if before else changes)


def refuse_other(plan: Plan, folder: Path) -> None:
    """The folder of one member belongs to its plan and to this version, as soon as it has results."""
    if not has_results(folder):
        return
    made = folder / ".stages" / "headwise"
    if made.exists() and made.read_text() != version("headwise"):
        raise HeadwiseError(
            f"{folder} was made by headwise {made.read_text()}, and this is {version('headwise')}, whose numbers may "
            "differ: choose another --out, or go on with that version."
        )
    if before := read_plan_of(folder):
        refuse(folder, [*differences(before, tomllib.loads(plan.to_toml()))])


def refuse(folder: Path, changes: list[str]) -> None:
    if changes:
        told = "; ".join(changes[:4]) + (" …" if len(changes) > 4 else "")
        raise HeadwiseError(f"{folder} holds the results of another plan: {told}. {ADVICE}")


def several(plan: Plan) -> bool:
    """Whether a plan has members in folders of their own."""
    return bool(plan.seeds or plan.pairs)


def has_results(folder: Path) -> bool:
    """Whether a stage was finished there; texts that were only drawn are no results."""
    return any(not path.name.startswith("corpus.") for path in (folder / ".stages").glob("*.json"))


def read_plan_of(folder: Path) -> dict[str, Any]:
    """The plan that a folder was last run with, as TOML has it; nothing where there is none."""
    place = folder / "plan.toml"
    return tomllib.loads(place.read_text(encoding="utf-8")) if place.exists() else {}


def members_of(out: Path) -> dict[str, set[str]]:
    """The members with results of the plan whose folder this is, and the names of their sweeps, where they are known.

    Folders that were made before they kept the whole plan have their members in grid.json.
    """
    found = {member["folder"]: set[str]() for member in read_record(out / "grid.json").get("members", [])}
    before = read_plan_of(out)
    if before.get("seeds") or before.get("pairs"):
        members = Plan.model_validate(before).members
        found |= {folder: {sweep.name for sweep in own.pruning} for folder, own in members.items()}
    return {folder: sweeps for folder, sweeps in found.items() if has_results(out / folder)}


def lost(plan: Plan, there: dict[str, set[str]]) -> Iterator[str]:
    """What would go out of the tables: members, and sweeps of members, that a plan has no more."""
    for folder, sweeps in there.items():
        if folder not in plan.members:
            yield f"{folder} was one of its members and is not any more"
        else:
            gone = sweeps - {sweep.name for sweep in plan.members[folder].pruning}
            yield from (f"the sweep '{name}' of {folder} is not in it any more" for name in sorted(gone))


def listed(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def differences(before: dict[str, Any], now: dict[str, Any], path: str = "") -> Iterator[str]:
    """What of a plan changed that results were made from: `training.epochs was 20 and is 30`."""
    for key in sorted({*before, *now}):
        name = f"{path}{key}"
        old, new = before.get(key), now.get(key)
        if name == "pruning":
            yield from sweep_differences(named(old), named(new))
        elif name in FREE or old == new or (path == "data." and names_of(old) == names_of(new)):
            continue
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{name}.")
        else:
            yield f"{name} was {old!r} and is {new!r}"


def names_of(files: Any) -> Any:
    """Files without their folders: a text may lie elsewhere; whether it is the same one, its fingerprint tells."""
    return [Path(file).name for file in files] if isinstance(files, list) else files


def named(sweeps: Any) -> dict[str, dict[str, Any]]:
    """Sweeps by their names."""
    return {sweep.get("name", ""): sweep for sweep in ([sweeps] if isinstance(sweeps, dict) else sweeps or [])}


def sweep_differences(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Of the sweeps that are in both plans; sweeps may come and go."""
    for name in before.keys() & now.keys():
        told = f"in the sweep '{name}' " if name else ""
        yield from (f"{told}{difference}" for difference in differences(before[name], now[name], "pruning."))
