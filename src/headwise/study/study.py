"""A study: the steps of a plan, done in order or by many workers; then tables and report."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from accelerate import PartialState

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import Folder, as_path, below
from headwise.core.progress import Progress, about
from headwise.data import embedded
from headwise.models.attention.offload import device_of
from headwise.models.devices import usable
from headwise.models.model import Model
from headwise.study.evaluation_steps import Evaluate
from headwise.study.executor import Executor, LocalExecutor, StudyOutcome, job_order, run_jobs
from headwise.study.forecast import forwards_of, model_lines, plan_lines, seconds_of
from headwise.study.known_models import Results, models_after_choice, refined_penalties
from headwise.study.model_steps import FULL_MODEL, model_of, model_step
from headwise.study.ownership import claim, refuse_others
from headwise.study.plan import GateSweep, Plan
from headwise.study.preflight import preflight
from headwise.study.results import Tables, write_grid
from headwise.study.run_context import GivenModel, InMemory, RunContext
from headwise.study.schedule import STAGES, Schedule
from headwise.study.step import Job
from headwise.study.variants import FULL

WORKERS = ("ray",)  # the names of executors that do jobs elsewhere than in this process
ReportWriter = Callable[[Path], Path]


class Study:
    """A plan at work in a folder: its runs, what failed, and how a step is done. Ray's workers each make their own."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        device: str,
        progress: Progress,
        cache: Path | None = None,
        memory: InMemory | None = None,
        given: Model | None = None,
    ) -> None:
        self.plan = plan
        self.out = out
        self.device = device
        self.progress = progress
        self.failed: dict[str, dict[str, str]] = {}
        self.runs: dict[str, RunContext] = {}
        self.given = GivenModel(plan, device, memory.model if memory else given)
        for name, own in plan.runs.items():
            self.failed[name] = {}
            own_cache = below(cache, name) if cache else None
            self.runs[name] = RunContext(
                own, below(out, name), progress, device, name, own_cache, memory, self.given
            )

    def __call__(self, job: Job) -> None:
        """Do one job. With several processes, the main one alone does what is not shared."""
        run = self.runs[job.run.name]
        if job.step.distributed:
            job.step.get_or_make(run)
        elif run.main:
            with run.store.alone():
                job.step.get_or_make(run)
        run.store.wait()  # the steps that this one reveals are the same for all processes

    def schedule(self, name: str) -> Schedule:
        return Schedule(self.runs[name], self.failed[name])

    def jobs_before(self, goal: str) -> list[Job]:
        """The job of the name `goal`, and all that it waits for, however far away."""
        every = self.jobs()
        wanted = {goal}
        # From the end: what a wanted job waits for is looked at after it.
        for name in reversed(job_order(every)):
            job = next(job for job in every if job.name == name)
            if name in wanted:
                wanted.update(job.waits_for)
        return [job for job in every if job.name in wanted]

    def jobs(self, stages: Collection[str] = STAGES) -> list[Job]:
        """The jobs of all runs, one run after the other, but the expensive and the last ones at the end."""
        first = next(iter(self.runs))
        every = [job for name in self.runs for job in self.jobs_of(name, stages)]

        def is_late(job: Job) -> bool:
            later = job.step.late_in_other_runs and job.run.name != first
            return later or job.step.after_everything_else

        # Stable: the late ones behind, all else in its order.
        return sorted(every, key=is_late)

    def jobs_of(self, name: str, stages: Collection[str]) -> Iterator[Job]:
        """The jobs of one run, in the order of its schedule."""
        run = self.runs[name]
        schedule = self.schedule(name)
        steps = schedule.steps(stages)
        names = {step.name for step in steps}
        for step in steps:
            before = [other.name for other in step.dependencies(run)]
            before += schedule.steps_before(step, steps)
            # Steps of stages that were not asked for are not waited for: where they are needed, they are made.
            waits_for = [f"{run.prefix}{name}" for name in dict.fromkeys(before) if name in names]
            yield Job(step, run, tuple(waits_for), step.is_done(run))

    def after_job(self, job: Job, outcome: StudyOutcome) -> None:
        """Note a failure of the job, or write the tables of its run where they have grown."""
        run = self.runs[job.run.name]
        self.note_failure(job, outcome)
        if job.name not in outcome.failed and isinstance(job.step, Evaluate):
            if job.step.variant == FULL and job.step.split == "dev":
                self.warn_of_low_quality(run, job.step)
            if job.step.split == "dev":
                for doubt in run.store.record(job.step.name)["result"]["doubts"]:
                    self.progress.say(f"  {doubt}")
            if not job.done_before and run.main:
                self.write_tables(run.name)

    def note_failure(self, job: Job, outcome: StudyOutcome) -> None:
        """Note a failure of the job: the schedule goes on without it."""
        if job.name in outcome.failed:
            self.failed[job.run.name][job.step.name] = outcome.failed[job.name]

    def warn_of_low_quality(self, run: RunContext, evaluation: Evaluate) -> None:
        """Say where a full model is too poor to be pruned, once it is evaluated on dev: models are pruned after that."""
        numbers = run.store.record(evaluation.name)["result"]["numbers"]
        if run.quality.name not in numbers:  # agreement, which says nothing of how good it is
            return
        found = numbers[run.quality.name][0]
        if run.plan.pruning and run.quality.is_too_low(found):
            which = "" if run.name == "." else f" of {run.name}"
            self.progress.say(
                f"  The full model{which} has {found:.1f} {run.quality.title} on dev: it does not translate yet, so what "
                "its pruned models lose means little. Train it longer or on more text, or give a better model."
            )

    def write_tables(self, name: str) -> None:
        """The tables of one run, from what is known by now."""
        run = self.runs[name]
        if FULL_MODEL.result(run) is not None:
            Tables(run, self.schedule(name)).write()


def run_study(
    plan: Plan,
    out: str | PathLike[str],
    progress: Progress,
    only: str | None = None,
    device: str = "cpu",
    report: ReportWriter | None = None,
    workers: str | None = None,
    threads: int | None = None,
    memory: InMemory | None = None,
    given: Model | None = None,
) -> Path:
    """Run a plan in a folder; what is already there and unchanged is not made again. Returns the folder.

    only: stop after this stage (one of STAGES). report: called at the end with the folder. workers: "ray" shares the
    steps out to Ray's workers; threads: of every step. memory: a model and texts that are not read from files. given: the
    model that the plan names, where it is loaded already.

    With several processes (started by `torchrun` or `accelerate launch`) all train, score and prune; the main one does the
    rest. A step that fails does not stop the others; at the end HeadwiseError says what failed. Raises HeadwiseError for
    a folder that another plan was run in.
    """
    if only is not None and only not in STAGES:
        raise HeadwiseError(
            f"--only {only} was asked for{did_you_mean(only, STAGES)}, but the stages are {', '.join(STAGES)}."
        )
    if workers not in (None, *WORKERS):
        raise HeadwiseError(
            f"--workers {workers} was asked for{did_you_mean(workers, WORKERS)}; there is {', '.join(WORKERS)}."
        )
    device = usable(device)
    if workers and not threads:
        threads = 1  # as many workers as cores
    stages = STAGES if only is None else STAGES[: STAGES.index(only) + 1]
    out = as_path(out)
    main = PartialState(cpu=device == "cpu").is_main_process
    if not main:
        progress = Progress(quiet=True)
    progress.say(f"headwise: {plan.name} in {out}")
    is_new = not out.exists()
    with thread_count(threads), kept(plan, out, main):
        study = Study(plan, out, device, progress, memory=memory, given=given)
        try:
            lines = preflight(plan, [*study.runs.values()], study.jobs(stages), device, study.given)
        except HeadwiseError:
            # Nothing was made yet but the lock and copies of texts.
            if is_new and main:
                shutil.rmtree(out, ignore_errors=True)
            raise
        for line in lines:
            progress.say(f"  {line}")
        if main:
            claim(plan, out)
            write_corpora(study)
        PartialState().wait_for_everyone()
        list_jobs = partial(study.jobs, stages)
        with progress.bar(plan.name):
            with open_executor(workers, study, threads or 1, device) as executor:
                outcome = run_jobs(list_jobs, executor, progress, study.after_job, forwards_of)
            if main:
                finish(study, stages, outcome, report if only in (None, "score", "roles") else None)
        outcome.check()
    return out


@contextmanager
def open_executor(
    workers: str | None, study: Study, threads: int, device: str
) -> Iterator[Executor]:
    """The executor that `--workers` names; without a name, this process."""
    if workers is None:
        yield LocalExecutor(study, study.progress)
        return
    from headwise.study.ray_executor import ray_executor  # Ray is an extra

    # A worker's process opens the study again, from its plan and its folder.
    make_work = partial(Study, study.plan, study.out, device)
    with ray_executor(make_work, study.out, study.progress, threads, device) as executor:
        yield executor


def write_corpora(study: Study) -> None:
    """The embedded corpus as files that a user can look at."""
    for run in study.runs.values():
        if corpus := run.plan.data.embedded:
            for split in ("train", "dev", "test"):
                embedded.write_parallel(run.folder / "corpus", split, getattr(corpus, split))
            embedded.write_treebank(run.folder / "corpus" / "dev.conllu", corpus.dev)


@contextmanager
def thread_count(count: int | None) -> Iterator[None]:
    """So many threads in the block, where a number is given."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def finish(
    study: Study, stages: Collection[str], outcome: StudyOutcome, report: ReportWriter | None
) -> None:
    """The tables of and over all runs, whatever failed; weights that the plan does not keep; the pages."""
    plan = study.plan
    for folder, run in study.runs.items():
        # Also after a failure: what is there is a result.
        study.write_tables(folder)
        schedule = study.schedule(folder)
        if "evaluate" in stages and not outcome.failed:
            for line in schedule.refine_shortfall_notes():
                study.progress.say(f"  {line}")
            if plan.weights == "chosen":
                with run.store.alone():  # the other processes are through
                    keep_only_chosen(run, schedule)
    if list(plan.runs) != ["."]:
        write_grid(plan, study.out)
    if report:
        write_reports(study, report)


def write_reports(study: Study, report: ReportWriter) -> None:
    """The page of every run that has results, and that over all of them."""
    folders = []
    for name in study.runs:
        folder = below(study.out, name)
        if (folder / "run.json").exists():
            folders.append(folder)
    if list(study.runs) != ["."] and (study.out / "grid.csv").exists():
        folders.append(study.out)
    if not folders:
        return
    with study.progress.step("report", 1.0, 1.0), study.progress.bar("report"):
        for folder in folders:
            report(folder)


def keep_only_chosen(run: RunContext, schedule: Schedule) -> None:
    """Remove the weights of pruned models but the chosen one's, which are made again where they are gone."""
    variants = schedule.variants
    chosen = run.store.record("choose")["result"]["chosen"]
    for variant in variants:
        if variant.name == chosen and not below(run.folder / "pruned", chosen).exists():
            model_of(run, variant)
        elif variant.name != chosen and run.store.record(model_step(variant).name):
            run.store.remove(model_step(variant).name, f"pruned/{variant.name}/")


def make_model(plan: Plan, out: Path, progress: Progress, memory: InMemory, goal: str) -> Study:
    """Make one step of a study of one run, and what leads to it, with a model and texts in memory: no tables, no page.

    goal: the name of the step. Raises what the step that fails raises.
    """
    device = str(device_of(memory.model.hf))
    main = PartialState(cpu=device == "cpu").is_main_process
    study = Study(plan, out, device, progress, memory=memory)
    # Asked again after every step that may reveal more, as in a whole study.
    list_jobs = partial(study.jobs_before, goal)
    executor = LocalExecutor(study, progress)
    with kept(plan, out, main) if memory.trained is None else nullcontext():
        if main and memory.trained is None:
            claim(plan, out)
        outcome = run_jobs(list_jobs, executor, progress, study.note_failure, forwards_of)
    if outcome.error is not None:
        raise outcome.error
    return study


@contextmanager
def kept(plan: Plan, out: Path, main: bool) -> Iterator[None]:
    """The folder of a plan, for nobody else during the block. Raises HeadwiseError for one that another plan was run in."""
    # Before the locks: a foreign folder gets no file of ours.
    refuse_others(plan, out)
    with ExitStack() as stack:
        for folder in dict.fromkeys([".", *plan.runs]):
            stack.enter_context(Folder(below(out, folder)).lock(main))
        yield


def dry_run(
    plan: Plan,
    out: Path,
    device: str = "cpu",
    *,
    every_step: bool = True,
    given: Model | None = None,
) -> list[str]:
    """The jobs of a plan in lines: what is done and what is to do, and about how long it takes, as far as it is known
    by now. every_step: else only the models that it makes. given: the model that the plan names, where it is loaded."""
    refuse_others(plan, out)
    device = usable(device)
    with tempfile.TemporaryDirectory() as work:
        study = Study(plan, out, device, Progress(quiet=True), cache=Path(work), given=given)
        runs = [*study.runs.values()]
        for run in runs:
            run.outline = True
        lines = preflight(plan, runs, study.jobs(), device, study.given)
        given = study.given() if isinstance(plan.model, str) else None
        for run in runs:
            # Read here, though nothing is run: a wrong file is found before the night, not in it.
            texts = (run.text("train"), run.text("dev"))
            if given is not None:
                for text in texts:
                    given.task.check(text)
                run.expected_heads = given.heads
        jobs = study.jobs()
        to_do = [job for job in jobs if not job.done_before]
        lines = [*unknown_yet(study), *lines]
        seconds = seconds_of(to_do, runs[0], given)
        if seconds:
            lines.append(f"This takes about {about(seconds)} on this machine.")
    return [*(plan_lines(jobs) if every_step else model_lines(jobs)), *lines]


def unknown_yet(study: Study) -> list[str]:
    """What is not known before there are results."""
    lines = []
    unknown = 0
    models = 0
    for name, run in study.runs.items():
        models += models_after_choice(run)
        results = Results(run, study.failed[name])
        for index, sweep in enumerate(run.plan.pruning):
            if isinstance(sweep, GateSweep):
                unknown += max(0, sweep.refine - len(refined_penalties(results, index)))
    if unknown:
        lines.append(f"without {unknown} λ of refine: results of this study decide them")
    if models:
        lines.append(f"then {models} models of other orders, with as many heads as the chosen one")
    return lines
