"""The whole story on one's own data: the nodes of a plan done in order, or by many workers; then the report."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.model import load
from headwise.roles.alignment import need_eflomal
from headwise.study.estimate import Estimate
from headwise.study.graph import Outcome, plan_lines, run_graph
from headwise.study.nodes import STAGES, Work, all_nodes, estimates, known_members
from headwise.study.plan import Plan, refuse_counts
from headwise.study.progress import Progress
from headwise.study.stage import opened
from headwise.study.stages import Study
from headwise.study.tables import write, write_grid

FREE = (  # what may be changed or added to a plan between two runs: how many models, and what is asked of them
    "name", "seeds", "pairs", "weights", "scoring", "roles", "choice", "speed",
    "pruning.penalties", "pruning.refine", "pruning.keep",
    "pruning.scores", "pruning.orders", "pruning.controls", "pruning.seeds",
)  # fmt: skip


def run_study(
    plan: Plan, out: str | Path, progress: Progress, only: str | None = None, device: str = "cpu",
    report: Callable[[Path], Path] | None = None, workers: str | None = None, threads: int | None = None,
) -> Path:  # fmt: skip
    """Run a plan in a folder; what is already there and unchanged is not made again. Returns the folder.

    only: stop after this stage (one of STAGES). report: called at the end with the folder. workers: "ray" shares the
    nodes out to Ray's workers; threads: of every node. Of several processes (started by `torchrun` or `accelerate
    launch`) all train, score and prune; the main one does the rest. A node that fails does not stop the others; at the
    end HeadwiseError says what failed. Raises HeadwiseError for a folder that another plan or version was run in.
    """
    if only is not None and only not in STAGES:
        raise HeadwiseError(f"--only {only} was asked for, but the stages are {', '.join(STAGES)}.")
    wanted = STAGES if only is None else STAGES[: STAGES.index(only) + 1]
    out, main = Path(out), PartialState(cpu=device == "cpu").is_main_process
    progress = progress if main else Progress(quiet=True)
    progress.say(f"headwise: {plan.name} in {out}")
    members = known_members(plan, out, progress)
    with ExitStack() as stack:
        for folder, member in members.items():
            run = stack.enter_context(opened(out / folder, progress))
            if run.main:
                refuse_other_plan(member.plan, run.folder)
                write_text(run.folder / "plan.toml", member.plan.to_toml())
                if not (run.folder / ".stages" / "headwise").exists():
                    write_text(run.folder / ".stages" / "headwise", version("headwise"))
                run.forget_failures()
            run.wait()
        refuse_late_surprises(plan, device)
        if "evaluate" in wanted:
            for name, texts in (plan.pairs or {"": plan.data}).items():
                if texts.embedded is None and texts.test is None:
                    where = f"[pairs.{name}]" if name else "[data]"
                    progress.say(f"  {where} names no test text: the report has dev numbers only.")
        outcome = at_work(plan, out, progress, device, wanted, workers, threads)
        if main:
            finish(plan, out, progress, device, report if only in (None, "score", "roles") else None)
        outcome.check()
    return out


def at_work(
    plan: Plan, out: Path, progress: Progress, device: str, wanted: Sequence[str], workers: str | None,
    threads: int | None,
) -> Outcome:  # fmt: skip
    """Do all nodes, here or by workers."""
    cost: dict[str, Estimate] = {}
    if len(plan.members) > 1 and not progress.console.quiet:  # of a single study its bars tell enough
        with tempfile.TemporaryDirectory() as scratch:
            cost = estimates(plan, Path(scratch), device)
    members = known_members(plan, out, progress, cost)
    listed, work = partial(all_nodes, members, wanted), partial(Work, plan, out, device)
    here = work(progress)

    def note(name: str, why: str) -> None:
        folder, node = here.split(name)
        if members[folder].run.failure(node) is None:
            members[folder].run.fail(node, why)

    if threads is not None:
        torch.set_num_threads(threads)
    if workers is None:
        return run_graph(listed, here, progress, note=note)
    if workers != "ray":
        raise HeadwiseError(
            f"--workers {workers} was asked for, but nodes can be shared out by ray only: --workers ray."
        )
    from headwise.study.cluster import crew

    with crew(work, progress, threads or 1, device) as hands:
        return run_graph(listed, here, progress, hands, note)


def refuse_late_surprises(plan: Plan, device: str) -> None:
    """What would only show after hours is looked at first: programs that must be there, heads that a model has."""
    if plan.roles.pairs:
        need_eflomal()
    if isinstance(plan.model, str) and any(sweep.keep for sweep in plan.pruning):
        heads = load(plan.model, device).heads
        for sweep in plan.pruning:
            try:
                refuse_counts(sweep, heads)
            except ValueError as error:
                raise HeadwiseError(f"{str(error).capitalize()} in {plan.model}: give fewer.") from None


def finish(plan: Plan, out: Path, progress: Progress, device: str, report: Callable[[Path], Path] | None) -> None:
    """The tables of and over all members, whatever failed, and the pages."""
    folders = [out / folder for folder in plan.members]
    for member in known_members(plan, out, Progress(quiet=True)).values():
        if member.run.record("train"):
            with member.run.alone():
                write(Study(member.plan, member.run, device), member.settings())
    if folders != [out / "."]:
        write_grid(plan, out)
    told = [folder for folder in dict.fromkeys([*folders, out]) if (folder / "run.json").exists()]
    told += [out] if (out / "grid.csv").exists() else []
    if report and told:
        with progress.stage("report"):
            for folder in told:
                report(folder)


def dry_run(plan: Plan, out: str | Path, device: str = "cpu") -> list[str]:
    """The graph of a plan in lines: what is done already, and what the rest will cost, as far as it is known by now."""
    for folder, own in plan.members.items():
        refuse_other_plan(own, Path(out) / folder)
    with tempfile.TemporaryDirectory() as work:
        cost = estimates(plan, Path(work), device)
    return plan_lines(all_nodes(known_members(plan, Path(out), Progress(quiet=True), cost), STAGES))


def refuse_other_plan(plan: Plan, folder: Path) -> None:
    """A run folder belongs to one plan, which may grow; another one, or another version, is refused."""
    made = folder / ".stages" / "headwise"
    if made.exists() and made.read_text() != version("headwise"):
        raise HeadwiseError(
            f"{folder} was made by headwise {made.read_text()}, and this is {version('headwise')}, whose numbers may "
            "differ: choose another --out, or go on with that version."
        )
    before = folder / "plan.toml"
    if not before.exists():
        return
    changes = list(differences(tomllib.loads(before.read_text(encoding="utf-8")), tomllib.loads(plan.to_toml())))
    if changes:
        raise HeadwiseError(
            f"{folder} holds the results of another plan: {'; '.join(changes[:4])}{' …' if len(changes) > 4 else ''}. "
            "Choose another --out, or take the plan back to what it was."
        )


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
        yield from differences(before[name], now[name], "pruning.")
