"""Jobs in order: what waits for what, failures that stay where they are, the time left, a plan in lines."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from accelerate import PartialState
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from headwise.core.errors import HeadsMissing, HeadwiseError
from headwise.core.progress import Progress, about
from headwise.study.executor import JobEnd, LocalExecutor, StudyOutcome, run_jobs
from headwise.study.forecast import plan_lines
from study.studies import Notes
from study.toys import Toy

DIAMOND = [
    Toy("end", ("left", "right")),
    Toy("right", ("start",)),
    Toy("left", ("start",)),
    Toy("start"),
]


def do(
    jobs: Sequence[Toy] | Callable[[], Sequence[Toy]],
    fail: dict[str, Exception] | None = None,
    progress: Progress | None = None,
) -> tuple[list[str], StudyOutcome]:
    """Do jobs in this process: their names in order, and the outcome."""
    worked: list[str] = []

    def work(job: Toy) -> None:
        worked.append(job.name)
        if fail and job.name in fail:
            raise fail[job.name]

    progress = progress or Notes()
    listed = jobs if callable(jobs) else lambda: jobs
    return worked, run_jobs(listed, LocalExecutor(work, progress), progress)


class TestOrder:
    def test_the_first_ready_job_of_the_list(self) -> None:
        worked, outcome = do(DIAMOND)
        assert worked == ["start", "right", "left", "end"] == outcome.done
        outcome.check()
        assert do([]) == ([], StudyOutcome())

    def test_what_is_finished_reveals_more(self) -> None:
        """As a sweep that fills in: every point shows the next, until there are four."""
        points: list[str] = []

        def jobs() -> list[Toy]:
            found = [Toy(f"point-{i}", ("train",)) for i in range(min(4, len(points)) or 1)]
            return [Toy("train"), *found, Toy("report", tuple(job.name for job in found))]

        outcome = run_jobs(
            jobs, LocalExecutor(lambda job: points.append(job.name), Notes()), Notes()
        )
        assert (
            outcome.done
            == points
            == ["train", "point-0", "point-1", "point-2", "point-3", "report"]
        )

    @pytest.mark.parametrize(
        ("jobs", "reason"),
        [
            (
                [Toy("a", ("c",)), Toy("b", ("a",)), Toy("c", ("b",))],
                "ring: (a → b → c|b → c → a|c → a → b)",
            ),
            ([Toy("a", ("a",))], "ring: a → a"),
            ([Toy("a"), Toy("b"), Toy("a")], "several steps of the name a"),
            ([Toy("a", ("z", "y"))], "a needs y, z, but"),
        ],
        ids=["ring", "itself", "twice", "missing"],
    )
    def test_what_is_no_graph_is_refused_by_name(self, jobs: list[Toy], reason: str) -> None:
        with pytest.raises(HeadwiseError, match=reason):
            do(jobs)


class TestFailure:
    def test_only_what_waits_for_it_is_lost(self) -> None:
        jobs = [
            Toy("a"),
            Toy("b", ("a",)),
            Toy("c", ("b",)),
            Toy("d"),
            Toy("e", ("c", "d")),
            Toy("f", ("d",)),
        ]
        worked, outcome = do(jobs, {"b": HeadwiseError("no room for b")})
        assert worked == ["a", "b", "d", "f"] and outcome.done == ["a", "d", "f"]
        assert outcome.failed == {"b": "no room for b"} and outcome.skipped == ["c", "e"]

    def test_a_single_failure_comes_back_as_itself_and_names_its_job(self) -> None:
        error = HeadsMissing("64 of 96 heads were seen.")
        with pytest.raises(
            HeadsMissing, match=r"^right failed: 64 of 96 heads were seen\.$"
        ) as caught:
            do(DIAMOND, {"right": error})[1].check()
        assert caught.value is error
        disk = OSError(28, "No space left on device", "model")
        with pytest.raises(OSError, match="No space left on device, in right: 'model'"):
            do(DIAMOND, {"right": disk})[1].check()
        with pytest.raises(ZeroDivisionError) as unexpected:
            do(DIAMOND, {"right": ZeroDivisionError("odd")})[1].check()
        assert disk.errno == 28 and unexpected.value.__notes__ == ["right failed."]

    def test_several_failures_are_all_named(self) -> None:
        outcome = do(DIAMOND, {"left": HeadwiseError("Too short."), "right": ValueError("odd")})[1]
        with pytest.raises(
            HeadwiseError,
            match=r"2 of 4 steps failed, and 1 .* right: ValueError: odd left: Too short",
        ):
            outcome.check()

    def test_it_is_noted_before_the_jobs_are_asked_for_again(self) -> None:
        """Who lists the jobs leaves out what will never be there; a killed process cannot say so itself."""
        noted: dict[str, str] = {}

        def jobs() -> list[Toy]:
            return [Toy("left"), Toy("right"), Toy("end", tuple({"left", "right"} - {*noted}))]

        executor = Several(1, lambda names: names[0], {"right"})
        outcome = run_jobs(jobs, executor, Notes(), lambda job, so_far: noted.update(so_far.failed))
        assert noted == outcome.failed == {"right": "right is bad"}
        assert outcome.done == ["left", "end"] and not outcome.skipped

    def test_only_an_unexpected_error_comes_with_its_traceback(self) -> None:
        notes = Notes()
        do(DIAMOND, {"right": ValueError("odd")}, notes)
        assert notes.lines[0].startswith("Traceback") and "raise fail[job.name]" in notes.lines[0]
        assert notes.lines[1] == "  right failed: ValueError: odd"
        notes = Notes()
        do(DIAMOND, {"right": OSError(28, "No space left on device")}, notes)
        assert notes.lines[0] == "  right failed: [Errno 28] No space left on device"
        notes = Notes()
        do(DIAMOND, {"start": HeadwiseError("The text is empty.")}, notes)
        assert notes.lines == [], "a last failure is left to the caller"

    def test_a_stop_by_hand_goes_through(self) -> None:
        def work(job: Toy) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_jobs(lambda: DIAMOND, LocalExecutor(work, Notes()), Notes())

    def test_processes_do_not_part_ways(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(PartialState(), "num_processes", 2)
        with pytest.raises(HeadwiseError, match="no room"):
            do([Toy("a"), Toy("b")], {"a": HeadwiseError("no room")})


@st.composite
def graphs(draw: st.DrawFn) -> list[Toy]:
    """Random graphs without a ring, their list in any order."""
    jobs = []
    for i in range(draw(st.integers(1, 9))):
        before = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        jobs.append(
            Toy(
                str(i),
                tuple(map(str, sorted(before))),
                draw(st.integers(0, 9)),
                draw(st.booleans()),
            )
        )
    return draw(st.permutations(jobs))


class Several:
    """An executor of several slots that does nothing; who ends next is drawn. Remembers what ran beside what."""

    def __init__(self, slots: int, draw: Callable[[list[str]], str], fail: set[str]) -> None:
        self.slots, self.draw, self.fail = slots, draw, fail
        self.running: dict[str, Toy] = {}
        self.log: list[tuple[str, str]] = []

    def start(self, job: Toy, start: float, end: float) -> None:
        self.running[job.name] = job
        self.log.append(("start", job.name))
        assert len(self.running) <= self.slots
        assert len(self.running) == 1 or not any(other.exclusive for other in self.running.values())

    def wait(self) -> JobEnd:
        name = self.draw(sorted(self.running))
        del self.running[name]
        self.log.append(("end", name))
        return JobEnd(name, HeadwiseError(f"{name} is bad") if name in self.fail else None)


@settings(deadline=None, max_examples=60)
@given(graphs(), st.integers(1, 3), st.data())
def test_any_graph_with_any_failures(jobs: list[Toy], slots: int, data: st.DataObject) -> None:
    """Every job after all it waits for; lost is exactly what a failure reaches; the rest is done."""
    fail = data.draw(st.sets(st.sampled_from([job.name for job in jobs]), max_size=2))
    executor = Several(slots, lambda running: data.draw(st.sampled_from(running)), fail)
    outcome = run_jobs(lambda: jobs, executor, Notes())
    for job in jobs:
        if ("start", job.name) in executor.log:
            begun = executor.log.index(("start", job.name))
            assert all(
                executor.log.index(("end", parent)) < begun and parent not in fail
                for parent in job.waits_for
            )
    lost: set[str] = set()
    for _ in jobs:  # the slow way: as often as there are jobs
        lost |= {job.name for job in jobs if set(job.waits_for) & (lost | fail)}
    assert set(outcome.skipped) == lost and set(outcome.failed) == fail - lost
    assert set(outcome.done) == {job.name for job in jobs} - lost - fail
    assert len(executor.log) == 2 * (len(outcome.done) + len(outcome.failed))


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_one_process_takes_the_first_ready_one_of_the_list(jobs: list[Toy]) -> None:
    worked, done = do(jobs)[0], list[str]()
    for name in worked:
        assert name == next(
            job.name for job in jobs if job.name not in done and set(job.waits_for) <= set(done)
        )
        done.append(name)


BUILDS = (
    Toy("train", (), 100),
    Toy("prune/a", ("train",), 50),
    Toy("prune/b", ("train",), 50),
    Toy("speed", ("prune/a", "prune/b"), 10, exclusive=True),
)


class TestTimeLeft:
    @pytest.mark.parametrize(
        ("held", "lines"),
        [
            (
                "",
                [
                    "train: 0% after 0:00:00",
                    "prune/a: 48% after 0:03:20, 0:03:40 left",
                    "prune/b: 71% after 0:05:00, 0:02:00 left",
                    "speed: 95% after 0:06:40, 0:00:20 left",
                ],
            ),
            (
                "train",
                [
                    "prune/a: 0% after 0:00:00",
                    "prune/b: 45% after 0:01:40, 0:02:00 left",
                    "speed: 91% after 0:03:20, 0:00:20 left",
                ],
            ),
        ],
    )
    def test_it_follows_the_pace(self, held: str, lines: list[str]) -> None:
        """A forward takes two seconds; what the store held says nothing, and is not counted."""
        now = [0.0]
        progress, out = Progress(), io.StringIO()
        progress.console = Console(file=out, get_time=lambda: now[0], highlight=False)

        def work(job: Toy) -> None:
            if job.name != held:
                with progress.bar(job.name):  # shows the heading
                    now[0] += 2 * job.forwards

        jobs = [replace(job, done_before=job.name == held) for job in BUILDS]
        with progress.bar("study"):
            run_jobs(
                lambda: jobs,
                LocalExecutor(work, progress),
                progress,
                forwards_of=lambda job: job.forwards,
            ).check()
        shown = [line.strip() for line in out.getvalue().splitlines() if "%" in line]
        assert shown == lines

    def test_the_share_never_falls(self) -> None:
        """A study that grows while it runs, as one that fills in: its bar stands still, and never goes back."""
        made: list[str] = []
        shares: list[float] = []
        progress = Notes()
        progress.on_progress = lambda share, what: shares.append(share)

        def work(job: Toy) -> None:
            made.append(job.name)
            progress(1.0, "")

        def jobs() -> list[Toy]:
            return [Toy(f"point-{i}", forwards=1.0) for i in range(min(9, 2 * len(made) + 1))]

        run_jobs(jobs, LocalExecutor(work, progress), progress, forwards_of=lambda _: 1.0)
        assert len(made) == 9 and shares == sorted(shares) and shares[-1] == 1.0

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [
            (0.2, "1 s"),
            (89, "89 s"),
            (90, "2 min"),
            (59 * 60, "59 min"),
            (4200, "1 h 10 min"),
            (90000, "25 h 0 min"),
        ],
    )
    def test_rough_durations(self, seconds: float, words: str) -> None:
        assert about(seconds) == words


@pytest.mark.parametrize(
    ("held", "quiet", "lines"),
    [
        (
            ["train", "prune/b"],
            False,
            [
                "  prune/a: 0% after 0:00:00",
                "  speed: 0% after 0:00:00",
                "  2 of 4 steps: as before",
            ],
        ),
        ([job.name for job in BUILDS], False, ["  4 of 4 steps: as before"]),
        ([], True, []),
    ],
    ids=["a part", "finished", "quiet"],
)
def test_a_line_for_what_is_made(held: list[str], quiet: bool, lines: list[str]) -> None:
    progress, out = Progress(quiet), io.StringIO()
    progress.console = Console(file=out, quiet=quiet, highlight=False)

    def work(job: Toy) -> None:
        if job.name not in held:
            with progress.bar(job.name):
                pass

    jobs = [replace(job, done_before=job.name in held) for job in BUILDS]
    with progress.bar("study"):
        run_jobs(lambda: jobs, LocalExecutor(work, progress), progress).check()
    assert [line for line in out.getvalue().splitlines() if line.strip()] == lines


def test_a_terminal_has_one_live_line() -> None:
    """What a step is called takes the place of the one before, and nothing of it stays."""
    progress, out = Progress(), io.StringIO()
    progress.console = Console(file=out, force_terminal=True, force_interactive=True, width=80)
    seen = []

    def work(job: Toy) -> None:
        with progress.bar(job.name):
            assert progress.live is not None
            seen.append([task.description for task in progress.live.tasks])

    with progress.bar("study"):
        run_jobs(lambda: BUILDS, LocalExecutor(work, progress), progress).check()
    assert seen == [[job.name] for job in BUILDS]
    assert progress.live is None and out.getvalue().endswith("\x1b[2K")


def test_a_plan_in_lines() -> None:
    jobs = [Toy("train"), Toy("prune: a"), Toy("prune: b"), Toy("speed")]
    assert plan_lines(jobs) == ["train", "prune: a, b", "speed", "4 steps"]
    half = [replace(job, done_before=job.name in ("train", "prune: a")) for job in jobs]
    lines = ["train (done)", "prune (done): a", "prune: b", "speed", "4 steps, 2 of them done"]
    assert plan_lines(half) == lines
