"""The whole story on one's own data: the tasks of a plan, done in order or by many workers; then tables and report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState

from headwise.data import embedded
from headwise.data.text import ParallelText
from headwise.devices import usable
from headwise.errors import HeadwiseError
from headwise.loading import load
from headwise.options import FROM_RANDOM_WEIGHTS
from headwise.study.estimate import Estimate, estimate
from headwise.study.executor import WORKERS, Outcome, open_executor, run_jobs, sentence
from headwise.study.jobs import Eta, Job, about, cost_in_words, plan_lines
from headwise.study.ownership import claim, refuse_others
from headwise.study.plan import GateSweep, Plan
from headwise.study.preflight import preflight
from headwise.study.progress import Progress
from headwise.study.run import Run, Task
from headwise.study.schedule import STAGES, Schedule
from headwise.study.store import locked_folder, remove
from headwise.study.tables import Tables, write_grid
from headwise.study.tasks.evaluate import (
    Choose,
    Evaluate,
    EvaluatePerplexity,
    MeasureLosses,
    MeasureSpeed,
    Translate,
)
from headwise.study.tasks.prune import Prune, RankHeads, model_of
from headwise.study.tasks.roles import FindRoles
from headwise.study.tasks.score import Interactions, Judge, Score, ScorePass, ScoreUntrained
from headwise.study.tasks.train import FULL_MODEL, Train

FEW = 5  # models: of so many and a short text the bars say enough
LONG = 10000  # pairs
Report = Callable[[Path], Path]


class Study:
    """A plan at work in a folder: its runs, what failed, and how a job is done. Ray's workers each build their own."""

    def __init__(
        self, plan: Plan, out: Path, device: str, progress: Progress, cache: Path | None = None
    ) -> None:
        self.plan, self.out, self.progress = plan, out, progress
        self.failed: dict[str, dict[str, str]] = {folder: {} for folder in plan.runs}
        self.runs = {
            folder: Run(own, out / folder, progress, device, cache / folder if cache else None)
            for folder, own in plan.runs.items()
        }
        self.estimates: dict[str, Estimate] = {}

    def __call__(self, job: Job) -> None:
        """Do one job. Of several processes the main one alone does what is not shared."""
        run, task = self.runs[job.folder], job.task
        if task.shared:
            run.need(task)
        elif run.main:
            with run.store.alone():
                run.need(task)
        run.store.wait()  # the tasks that this one reveals are the same for all processes

    def schedule(self, folder: str) -> Schedule:
        return Schedule(self.runs[folder], self.failed[folder])

    def jobs(self, stages: Collection[str] = STAGES) -> list[Job]:
        """The jobs of all runs, one run after the other, but the expensive and the last ones at the end."""
        early: list[Job] = []
        late: list[Job] = []
        for number, folder in enumerate(self.runs):
            for job in self.jobs_of(folder, stages):
                (late if comes_late(job.task, first=number == 0) else early).append(job)
        return [*early, *late]

    def jobs_of(self, folder: str, stages: Collection[str]) -> Iterator[Job]:
        run, estimate = self.runs[folder], self.estimates.get(folder)
        schedule = self.schedule(folder)
        tasks = schedule.tasks(stages)
        names = {task.name for task in tasks}
        prefix = "" if folder == "." else f"{folder}/"
        for task in tasks:
            after = [
                name
                for name in (
                    *(needed.name for needed in run.spec(task).needs),
                    *schedule.waits_of(task, tasks),
                )
            ]
            waits = tuple(f"{prefix}{name}" for name in dict.fromkeys(after) if name in names)
            done = run.done(task)
            seconds = task.seconds(run, estimate) if estimate and not done else 0.0
            yield Job(f"{prefix}{task.name}", waits, seconds, task.exclusive, done, folder, task)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """After a job: note its failure; write the tables of its run where they have grown."""
        if job.name in outcome.failed:
            self.failed[job.folder][job.task.name] = outcome.failed[job.name]
        elif (
            isinstance(job.task, Evaluate | EvaluatePerplexity)
            and not job.done
            and self.runs[job.folder].main
        ):
            self.write(job.folder)

    def write(self, folder: str) -> None:
        """The tables of one run, from what is known by now."""
        run = self.runs[folder]
        if run.result(FULL_MODEL) is not None:
            Tables(run, self.schedule(folder)).write()


def comes_late(task: Task, first: bool) -> bool:
    """What all runs wait with: training from random weights, the choice and after it, scores and roles of the second
    run and on."""
    untrained = task.variant.control in FROM_RANDOM_WEIGHTS if hasattr(task, "variant") else False
    test = (
        isinstance(task, Translate | Evaluate | EvaluatePerplexity | MeasureLosses)
        and task.split == "test"
    )
    return (
        untrained
        or test
        or isinstance(task, Choose | MeasureSpeed)
        or (
            not first
            and isinstance(
                task, ScorePass | ScoreUntrained | Score | Interactions | Judge | FindRoles
            )
        )
    )


def run_study(
    plan: Plan,
    out: str | Path,
    progress: Progress,
    only: str | None = None,
    device: str = "cpu",
    report: Report | None = None,
    workers: str | None = None,
    threads: int | None = None,
) -> Path:
    """Run a plan in a folder; what is already there and unchanged is not made again. Returns the folder.

    only: stop after this stage (one of STAGES). report: called at the end with the folder. workers: "ray" shares the
    tasks out to Ray's workers; threads: of every task. Of several processes (started by `torchrun` or `accelerate
    launch`) all train, score and prune; the main one does the rest. A task that fails does not stop the others; at the
    end HeadwiseError says what failed. Raises HeadwiseError for a folder that another plan was run in.
    """
    if only is not None and only not in STAGES:
        raise HeadwiseError(f"--only {only} was asked for, but the stages are {', '.join(STAGES)}.")
    if workers not in (None, *WORKERS):
        raise HeadwiseError(f"--workers {workers} was asked for; there is {', '.join(WORKERS)}.")
    device, threads = usable(device), threads or (1 if workers else None)
    stages = STAGES if only is None else STAGES[: STAGES.index(only) + 1]
    out, main = Path(out), PartialState(cpu=device == "cpu").is_main_process
    progress = progress if main else Progress(quiet=True)
    progress.say(f"headwise: {plan.name} in {out}")
    with thread_count(threads), ExitStack() as stack:
        refuse_others(plan, out)
        for folder in dict.fromkeys([".", *plan.runs]):
            stack.enter_context(locked_folder(out / folder, main))
        study = Study(plan, out, device, progress)
        for line in preflight(plan, [*study.runs.values()], study.jobs(stages), device):
            progress.say(f"  {line}")
        if main:
            claim(plan, out)
            write_corpora(study)
        PartialState().wait_for_everyone()
        study.estimates = estimated(study, stages)
        outcome = at_work(study, stages, workers, threads, device)
        if main:
            finish(study, stages, outcome, report if only in (None, "score", "roles") else None)
        outcome.check()
    return out


def at_work(
    study: Study, stages: Collection[str], workers: str | None, threads: int | None, device: str
) -> Outcome:
    """Do all jobs, here or by workers."""
    make_work, progress = partial(Study, study.plan, study.out, device), study.progress
    with open_executor(
        workers, study, make_work, study.out, progress, threads or 1, device
    ) as executor:
        seconds = Eta().left(study.jobs(stages), executor.slots)
        if seconds:
            progress.say(f"  This takes about {about(seconds)} on this machine.")
        return run_jobs(partial(study.jobs, stages), executor, progress, study.ended)


def write_corpora(study: Study) -> None:
    """The embedded corpus as files that a user can look at."""
    for run in study.runs.values():
        if corpus := run.plan.data.embedded:
            for split in ("train", "dev", "test"):
                embedded.write_parallel(run.folder / "corpus", split, getattr(corpus, split))
            embedded.write_treebank(run.folder / "corpus" / "dev.conllu", corpus.dev)


def estimates_of(study: Study) -> dict[str, Estimate]:
    """What the steps of every run will take, measured once for each language pair."""
    found: dict[str, Estimate] = {}
    by_pair: dict[str, Estimate] = {}
    for folder, run in study.runs.items():
        pair = run.plan.data.model_dump_json()
        train, dev = run.text("train"), run.text("dev")
        if not isinstance(train, ParallelText) or not isinstance(dev, ParallelText):
            assert isinstance(
                run.plan.model, str
            )  # no model is trained from random weights on one-sided text
            run.expected_heads = load(run.plan.model, run.device).heads
            continue
        if pair not in by_pair:
            plan = run.plan
            by_pair[pair] = estimate(plan.model, plan.training, plan.search, train, dev, run.device)
        found[folder] = by_pair[pair]
        run.expected_heads = by_pair[pair].heads
    return found


def estimated(study: Study, stages: Collection[str]) -> dict[str, Estimate]:
    """The estimates, where they are worth the seconds that measuring takes: several models are to be made, and they are
    many, or of several runs, or their text is long."""
    models = [
        j
        for j in study.jobs(stages)
        if not j.done and isinstance(j.task, Train | Prune | RankHeads)
    ]
    if study.progress.console.quiet or len(models) < 2:
        return {}
    try:
        long = len(next(iter(study.runs.values())).text("train")) >= LONG
        if len(study.runs) > 1 or len(models) > FEW or long:
            return estimates_of(study)
    except (
        Exception
    ) as error:  # whatever is wrong, the task that needs it will say: others may go on
        if len(study.runs) == 1 and isinstance(error, HeadwiseError):
            raise
        study.progress.say(f"  How long it will take is not known: {sentence(error)}")
    return {}


@contextmanager
def thread_count(count: int | None) -> Iterator[None]:
    """So many threads in the block, where a number is given."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def finish(study: Study, stages: Collection[str], outcome: Outcome, report: Report | None) -> None:
    """The tables of and over all runs, whatever failed; weights that the plan does not keep; the pages."""
    plan, out = study.plan, study.out
    for folder, run in study.runs.items():
        study.write(folder)
        schedule = study.schedule(folder)
        if "evaluate" in stages and not outcome.failed:
            for line in schedule.unfilled():
                study.progress.say(f"  {line}")
            if plan.weights == "chosen":
                with run.store.alone():  # the other processes are through
                    keep_only_chosen(run, schedule)
    if list(plan.runs) != ["."]:
        write_grid(plan, out)
    folders = [out / folder for folder in plan.runs if (out / folder / "run.json").exists()]
    folders += [out] if (out / "grid.csv").exists() and list(plan.runs) != ["."] else []
    with study.progress.task("report") if report and folders else nullcontext():
        for place in folders if report else ():
            assert report is not None
            report(place)


def keep_only_chosen(run: Run, schedule: Schedule) -> None:
    """Remove the weights of pruned models but the chosen one's, which are made again where they are gone."""
    variants = schedule.variants()
    chosen = run.store.record("choose")["result"]["chosen"]
    for variant in variants:
        if variant.name == chosen and not (run.folder / "pruned" / chosen).exists():
            model_of(run, variant)
        elif variant.name != chosen:
            remove(run.folder / "pruned" / variant.name)


def dry_run(plan: Plan, out: str | Path, device: str = "cpu") -> list[str]:
    """The jobs of a plan in lines: what is done, and what the rest will cost, as far as it is known by now."""
    refuse_others(plan, Path(out))
    device = usable(device)
    with tempfile.TemporaryDirectory() as work:
        study = Study(plan, Path(out), device, Progress(quiet=True), cache=Path(work))
        study.estimates = estimates_of(study)
        jobs = study.jobs()
        lines = preflight(plan, [*study.runs.values()], jobs, device)
    return [*plan_lines(jobs), *left_by_stage(study, jobs), *lines]


def left_by_stage(study: Study, jobs: Sequence[Job]) -> list[str]:
    """What is left to do in one line: `left: prune 12 (about 40 min), evaluate 12 (…)`."""
    left: dict[str, list[float]] = {}
    for job in jobs:
        if not job.done:
            left.setdefault(job.task.name.partition("/")[0], []).append(job.seconds)
    parts = [f"{name} {len(costs)} ({cost_in_words(sum(costs))})" for name, costs in left.items()]
    hidden = 0
    for folder in study.runs:
        schedule = study.schedule(folder)
        for index, sweep in enumerate(study.runs[folder].plan.pruning):
            if isinstance(sweep, GateSweep):
                hidden += max(0, sweep.refine - len(schedule.filled_in(index)))
    lines = [f"left: {', '.join(parts)}"] if parts else []
    return (
        [*lines, f"not in it: {hidden} λ of refine, which only results reveal"] if hidden else lines
    )
