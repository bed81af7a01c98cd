"""The whole story on one's own data: the nodes of a plan done in order, or by many workers; then the report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState

from headwise.errors import HeadwiseError
from headwise.model import load
from headwise.roles.alignment import need_eflomal
from headwise.study.estimate import Estimate
from headwise.study.folders import claim, refuse_others
from headwise.study.graph import Outcome, costs_about, plan_lines, run_graph, sentence
from headwise.study.member import Member
from headwise.study.nodes import STAGES, Work, all_nodes, estimates, known_members
from headwise.study.plan import Plan, refuse_counts
from headwise.study.progress import Progress
from headwise.study.stage import opened
from headwise.study.stages import Study, translator
from headwise.study.tables import write, write_grid

FEW = 5  # models: of so many and a short text the bars tell enough
LONG = 10000  # pairs


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
    if workers not in (None, "ray"):
        raise HeadwiseError(
            f"--workers {workers} was asked for, but nodes can be shared out by ray only: --workers ray."
        )
    threads = threads or (1 if workers else None)
    wanted = STAGES if only is None else STAGES[: STAGES.index(only) + 1]
    out, main = Path(out), PartialState(cpu=device == "cpu").is_main_process
    progress = progress if main else Progress(quiet=True)
    progress.say(f"headwise: {plan.name} in {out}")
    members = known_members(plan, out, progress)
    with threads_set(threads), ExitStack() as stack:
        runs = [stack.enter_context(opened(out / folder, progress)) for folder in dict.fromkeys([".", *members])]
        if main:
            refuse_others(plan, out)
            claim(plan, out)
            for run in runs:
                run.forget_failures()
        runs[0].wait()
        refuse_late_surprises(plan, device)
        if "evaluate" in wanted:
            for name, texts in (plan.pairs or {"": plan.data}).items():
                if texts.embedded is None and texts.test is None:
                    where = f"[pairs.{name}]" if name else "[data]"
                    progress.say(f"  {where} names no test text: the report has dev numbers only.")
        outcome = at_work(plan, out, progress, device, wanted, workers, threads)
        if main:
            if "evaluate" in wanted and not outcome.failed:
                for line in unfilled(known_members(plan, out, progress)):
                    progress.say(f"  {line}")
            finish(plan, out, progress, device, report if only in (None, "score", "roles") else None)
        outcome.check()
    return out


def at_work(
    plan: Plan, out: Path, progress: Progress, device: str, wanted: Sequence[str], workers: str | None,
    threads: int | None,
) -> Outcome:  # fmt: skip
    """Do all nodes, here or by workers."""
    members = known_members(plan, out, progress, estimated(plan, out, progress, device, wanted))
    listed, work = partial(all_nodes, members, wanted), partial(Work, plan, out, device)
    here = work(progress)

    def note(name: str, why: str) -> None:
        folder, node = here.split(name)
        if members[folder].run.failure(node) is None:
            members[folder].run.fail(node, why)

    if workers is None:
        return run_graph(listed, here, progress, note=note)
    from headwise.study.cluster import crew

    with crew(work, progress, threads or 1, device) as hands:
        return run_graph(listed, here, progress, hands, note)


def estimated(plan: Plan, out: Path, progress: Progress, device: str, wanted: Sequence[str]) -> dict[str, Estimate]:
    """What the steps of the members will take, where it is worth the seconds that measuring it takes: there are several
    models to be made, and they are many, or of several members, or their text is long."""
    members = known_members(plan, out, progress)
    nodes = [node for member in members.values() for node in member.nodes(wanted)]
    models = [node for node in nodes if not node.done and node.name.partition("/")[0] in ("train", "prune", "order")]
    if progress.console.quiet or len(models) < 2:
        return {}
    try:
        if len(members) > 1 or len(models) > FEW or is_long(Study(plan, members["."].run, device)):
            return estimates(plan, out, device)
    except Exception as error:  # whatever is wrong, the node that it matters to will tell: others may go on
        if len(members) == 1 and isinstance(error, HeadwiseError):
            raise
        progress.say(f"  How long it will take is not known: {sentence(error)}")
    return {}


def is_long(study: Study) -> bool:
    """Whether the training text is the user's own, and no small one."""
    return study.plan.data.embedded is None and len(study.train_text) >= LONG


@contextmanager
def threads_set(count: int | None) -> Iterator[None]:
    """So many threads in the block, where a number is given."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def refuse_late_surprises(plan: Plan, device: str) -> None:
    """What would only show after hours is looked at first: programs that must be there, heads that a model has."""
    if plan.roles.pairs:
        need_eflomal()
    if isinstance(plan.model, str) and any(sweep.keep for sweep in plan.pruning):
        heads = translator(load(plan.model, device)).heads
        for sweep in plan.pruning:
            try:
                refuse_counts(sweep, heads)
            except ValueError as error:
                raise HeadwiseError(f"{str(error).capitalize()} in {plan.model}: give fewer.") from None


def unfilled(members: Mapping[str, Member]) -> list[str]:
    """Which sweeps could not fill in as many λ as `refine` asks for, when all they have are evaluated."""
    lines = []
    for folder, member in members.items():
        for place, sweep in enumerate(member.plan.pruning):
            if (found := len(member.filled(place, sweep))) < sweep.refine:
                where = " of ".join(name for name in (sweep.name, folder.strip(".")) if name)
                lines.append(
                    f"refine = {sweep.refine} was asked for{f' ({where})' if where else ''}, and {found} λ filled in: "
                    "no other two neighbours keep more than one head apart, or their middle was tried."
                )
    return lines


def finish(plan: Plan, out: Path, progress: Progress, device: str, report: Callable[[Path], Path] | None) -> None:
    """The tables of and over all members, whatever failed, and the pages."""
    folders = [out / folder for folder in plan.members]
    for member in known_members(plan, out, Progress(quiet=True)).values():
        if member.run.record("train"):
            with member.run.alone():
                write(Study(member.plan, member.run, device), member.settings())
    if folders != [out / "."]:
        write_grid(plan, out)
    else:
        for table in ("grid.json", "grid.csv", "across.csv"):  # of a plan of several that came to nothing here
            (out / table).unlink(missing_ok=True)
    told = [folder for folder in dict.fromkeys([*folders, out]) if (folder / "run.json").exists()]
    told += [out] if (out / "grid.csv").exists() else []
    if report and told:
        with progress.stage("report"):
            for folder in told:
                report(folder)


def dry_run(plan: Plan, out: str | Path, device: str = "cpu") -> list[str]:
    """The graph of a plan in lines: what is done already, and what the rest will cost, as far as it is known by now."""
    refuse_others(plan, Path(out))
    with tempfile.TemporaryDirectory() as work:
        cost = estimates(plan, Path(work), device)
    members = known_members(plan, Path(out), Progress(quiet=True), cost)
    return [*plan_lines(all_nodes(members, STAGES)), *by_sort(members)]


def by_sort(members: Mapping[str, Member]) -> list[str]:
    """What is left to do in one line, by the sorts of nodes: `left: prune 12 (about 40 min), evaluate 12 (…)`."""
    left: dict[str, list[float]] = {}
    for node in (node for member in members.values() for node in member.nodes(STAGES) if not node.done):
        left.setdefault(node.name.partition("/")[0], []).append(node.seconds)
    parts = [f"{sort} {len(costs)} ({costs_about(sum(costs))})" for sort, costs in left.items()]
    lines = [f"left: {', '.join(parts)}"] if parts else []
    known = [(member, place, sweep) for member in members.values() for place, sweep in enumerate(member.plan.pruning)]
    hidden = sum(max(0, sweep.refine - len(member.filled(place, sweep))) for member, place, sweep in known)
    return [*lines, f"not in it: {hidden} λ of refine, which only results reveal"] if hidden else lines
