"""The study of Voita et al. 2019 at their size, in sittings of some minutes, and what it makes of the processor.

    export HEADWISE_DATA=FOLDER HEADWISE_TARGET=de
    python benchmarks/paper_scale.py --device cuda --minutes 9 --pack results.tar.gz

The same command goes on where the last one stopped. It measures what the chip can do, runs the plan until the minutes
are over (at the next update or batch), watches the real training (no run of its own), and packs all but the weights.

`utilisation.json` has the speed of products on the card, a profile of 12 updates, and real operations per second
compared with the largest product. With d the width, f the feed-forward width, V the subwords, S and T source and target
positions, L the sentence length, E and D layers, an update has
6 [S (E (4 d² + 2 d f) + D 2 d²) + T (D (6 d² + 2 d f) + d V) + 2 d L (E S + 2 D T)] operations.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import tarfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from datasets import disable_progress_bars
from torch.profiler import ProfilerActivity, profile
from utilisation import Facts, chip, usage, where_time_goes

from headwise.core.errors import HeadwiseError
from headwise.core.folders import write_text
from headwise.core.options import Architecture
from headwise.core.progress import Progress
from headwise.faces.report import report as write_report
from headwise.study.known_models import Results, refined_penalties
from headwise.study.plan import GateSweep, Plan, read_plan
from headwise.study.run_context import RunContext
from headwise.study.schedule import Schedule
from headwise.study.study import run_study

EXAMPLE = Path(__file__).parents[1] / "examples" / "paper-scale.toml"
LEFT_BEHIND = (
    "model/",
    "pruned/",
    "scores/",
    "losses/",
    "rankings/",
    "corpus/",
    ".work/",
    ".lock",
)
SETTLED, PROFILED = (
    20,
    12,
)  # updates before anything is timed, and those that the profiler sees then
FIRST_LOOK = 60.0  # seconds of training after which the whole is projected
ENCODER_ALONE = 0.75  # an update with a frozen decoder, in whole updates
GUESSED = {  # seconds of a step before one like it was seen; of a training, what comes beside its epochs
    "train": 30.0,
    "scores": 4.0,
    "score": 1.0,
    "judge": 15.0,
    "roles": 15.0,
    "ranking": 10.0,
    "prune": 5.0,
    "translate": 8.0,
    "evaluate": 2.0,
    "losses": 5.0,
    "measure": 2.0,
    "rescored": 10.0,
    "choose": 1.0,
    "save": 1.0,
    "speed": 40.0,
    "untrained": 15.0,
    "interactions": 20.0,
}


class TimeIsUp(KeyboardInterrupt):
    """The minutes are over. Not an error: what is finished is kept, and the last checkpoint of what is not."""


class Meter(Progress):
    """Stops the study in time, and measures its trainings from within: every update of theirs passes by here.

    facts: by task that trained a model, its pace, its memory, and of the first one a profile.
    """

    def __init__(
        self,
        run: RunContext,
        deadline: float,
        device: str,
        facts: dict[str, Facts],
        sitting_ends: float = float("inf"),
    ) -> None:
        super().__init__()
        self.run, self.device, self.facts = run, device, facts
        self.deadline, self.sitting_ends = deadline, sitting_ends
        self.name, self.times, self.shares = "", list[float](), list[float]()
        self.profiler: profile | None = None
        self.profiled = any("profile" in found for found in facts.values())
        self.looked = False
        if device == "cuda":
            torch.cuda.init()  # else no memory can be asked about before a model is there

    @property
    def training(self) -> bool:
        """Whether the present task trains a model, and so reports every update."""
        return self.name == "train" or self.name.startswith("prune/")

    def in_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise TimeIsUp

    def __call__(self, share: float, text: str) -> None:
        super().__call__(share, text)
        if self.training:
            self.times.append(time.monotonic())
            self.shares.append(share)
            self.watch()
        self.in_time()

    @contextmanager
    def bar(self, name: str) -> Iterator[None]:
        self.in_time()
        self.name, self.times, self.shares = name, [], []
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            with super().bar(name):
                yield
        finally:
            self.stop_profiler()
            self.note()
            self.name = ""

    def watch(self) -> None:
        """Profile a few updates once, and project the whole after the first minute of training."""
        seen = len(self.times)
        if seen == SETTLED and not self.profiled:
            self.profiled = True
            self.profiler = profile(
                activities=[
                    ProfilerActivity.CUDA if self.device == "cuda" else ProfilerActivity.CPU
                ]
            )
            self.profiler.start()
        elif seen == SETTLED + PROFILED:
            self.stop_profiler()
            self.times[-1] = time.monotonic()
        elif (
            seen > 2 * (SETTLED + PROFILED)
            and not self.looked
            and self.times[-1] - self.times[0] > FIRST_LOOK
        ):
            self.looked = True
            self.note()
            self.tell()

    def stop_profiler(self) -> None:
        """Read what the profiler saw. One that cannot be read costs a line, and nothing else."""
        running, self.profiler = self.profiler, None
        if running is None:
            return
        try:
            running.stop()
            found = where_time_goes(running, self.device)
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
            self.say(f"  The profile of {self.name} could not be read ({found['failed']}).")
        self.facts.setdefault(self.name, {})["profile"] = found

    def note(self) -> None:
        """The pace of the present training: an update without what comes at the end of an epoch, and an epoch."""
        if not self.training or len(self.times) < SETTLED + PROFILED + 10:
            return
        steps = np.sort(
            np.diff(self.times[SETTLED + PROFILED - 1 :])
        )  # the profile's own reading left out
        per_share = (len(self.shares) - 1) / (self.shares[-1] - self.shares[0])
        ends = min(len(steps) - 1, round(epochs(self.run, self.name) * len(steps) / per_share))
        update = float(steps[: len(steps) - ends].mean())
        found = {
            "updates": round(per_share),
            "update_seconds": update,
            "seen_updates": len(self.times),
            "epoch_end_seconds": max(0.0, float(steps[len(steps) - ends :].mean()) - update)
            if ends
            else 0.0,
            "share": self.shares[-1],
        }
        if self.device == "cuda":
            found["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        self.facts.setdefault(self.name, {}).update(found)

    def tell(self) -> None:
        """What is still to be done, and whether the sitting is long enough for it."""
        waiting, now = left(self.run, self.facts, self.name), time.monotonic()
        total, here, whole = sum(waiting.values()), self.deadline - now, self.sitting_ends - now
        parts = ", ".join(f"{word} {seconds / 60:.1f}" for word, seconds in waiting.items())
        self.say(
            f"Projected: {total / 60:.1f} more minutes ({parts}); this command has {max(0.0, here) / 60:.1f}."
        )
        if total > whole:
            self.say(
                f"That will not fit: the sitting has {max(0.0, whole) / 60:.1f} minutes left. Leave out sweeps at the "
                "end of the plan (at any time), or start again in another --out with fewer epochs."
            )


def epochs(run: RunContext, task: str) -> int:
    """How many epochs the training of a task has."""
    variants = {f"prune/{variant.name}": variant for variant in Schedule(run).variants}
    if task in variants and not variants[task].from_random_weights:
        return run.sweep(variants[task]).epochs
    return run.plan.training.epochs


def left(run: RunContext, facts: dict[str, Facts], now: str = "") -> dict[str, float]:
    """Seconds of what is not done yet, by the first word of its tasks. Trainings by the pace of the first one, the rest
    by what others like it took. now: the task that is half done.
    """
    schedule, plan = Schedule(run), run.plan
    pace: dict[str, float] = facts.get("train", {})
    taken = {name: record["seconds"] for name, record in run.store.records().items()}
    variants = {f"prune/{variant.name}": variant for variant in schedule.variants}

    def training(task: str) -> float:
        """Updates and the ends of epochs."""
        count = epochs(run, task)
        tuned = task in variants and not variants[task].from_random_weights
        alone = tuned and run.sweep(variants[task]).kinds == ["encoder-self"]
        updates = pace.get("updates", 0) / plan.training.epochs * pace.get("update_seconds", 0.0)
        return count * (
            updates * (ENCODER_ALONE if alone else 1) + pace.get("epoch_end_seconds", 0.0)
        )

    def beside(word: str) -> float:
        """What a task takes beside training."""
        seen = {name: seconds for name, seconds in taken.items() if name.partition("/")[0] == word}
        found = [
            seconds - (training(name) if word == "prune" else 0) for name, seconds in seen.items()
        ]
        return max(0.0, sum(found) / len(found)) if found else GUESSED[word]

    waiting = defaultdict[str, float](float)
    for step in schedule.steps():
        word = step.name.partition("/")[0]
        if step.name not in taken:
            rest = 1 - facts.get(step.name, {}).get("share", 0.0) if step.name == now else 1.0
            waiting[word] += beside(word) + (
                rest * training(step.name) if word in ("train", "prune") else 0.0
            )
    results = Results(run)
    gates = [
        (index, sweep) for index, sweep in enumerate(plan.pruning) if isinstance(sweep, GateSweep)
    ]
    unknown = sum(sweep.refine - len(refined_penalties(results, index)) for index, sweep in gates)
    splits = 2 if plan.data.has_test else 1
    for word, times in (
        {"translate": splits, "evaluate": splits, "measure": 1, "rescored": 1}.items()
        if unknown
        else ()
    ):
        waiting[word] += unknown * times * beside(word)
    if unknown:
        waiting["prune"] += unknown * waiting["prune"] / max(1, len(variants))
    return dict(waiting)


def pack(folder: Path, file: Path) -> int:
    """Everything of a run folder but weights and unfinished work as one tar.gz, with a manifest: size and hash of each
    file. Returns its size in bytes.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in paths}
    kept = {
        name: path
        for name, path in names.items()
        if not name.startswith(LEFT_BEHIND) and not name.endswith(".lock")
    }
    manifest = {
        name: {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for name, path in kept.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        listed = json.dumps(
            {"folder": folder.name, "headwise": version("headwise"), "files": manifest}, indent=1
        ).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(listed)
        archive.addfile(entry, io.BytesIO(listed))
        for name, path in kept.items():
            archive.add(path, name)
    return file.stat().st_size


def sitting(
    plan: Plan,
    out: Path,
    minutes: tuple[float, float],
    device: str,
    size: int,
    packed: Path,
    page: bool = True,
) -> bool:
    """Go on with the study for some minutes; measure, pack. Returns whether it is finished.

    minutes: of this command and of the whole sitting. size: of the large matrix product. page: whether to write the
    report, too.
    """
    if list(plan.runs) != ["."]:
        raise HeadwiseError(
            "The plan has several seeds or pairs of languages, but a sitting is one study: leave one."
        )
    begun, place = time.monotonic(), out / "utilisation.json"
    facts: Facts = (
        json.loads(place.read_text()) if place.exists() else {"trainings": {}, "seconds": 0.0}
    )
    if "chip" not in facts:
        assert isinstance(plan.model, Architecture)
        facts["chip"] = chip(plan.model, plan.training, device, size)
    run = RunContext(plan, out, Progress(quiet=True), device)
    ends = [begun + 60 * minutes[0], begun + 60 * minutes[1] - facts["seconds"]]
    meter = Meter(run, ends[0], device, facts["trainings"], ends[1])
    finished = False
    try:
        run_study(plan, out, meter, device=device, report=write_report if page else None)
        finished = True
    except TimeIsUp:
        meter.say("The minutes are over: the same command goes on.")
        meter.tell()
    finally:
        facts["seconds"] += time.monotonic() - begun
        facts["use"] = reached = usage(run, facts)
        write_text(place, json.dumps(facts, indent=1) + "\n")
        meter.say(f"{packed}: {pack(out, packed) / 2**20:.1f} MiB of results, without weights")
        if reached:
            meter.say(
                f"{reached['target_tokens_per_second']:,.0f} target tokens per second, {reached['tflops']:.3g} TFLOP/s: "
                f"{reached['utilisation']:.1%} of what a large matrix product reaches here"
            )
    return finished


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, default=EXAMPLE)
    parser.add_argument("--out", type=Path, help="run folder (default: runs/NAME)")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this command (default: 9)")
    parser.add_argument(
        "--sitting", type=float, default=27.0, help="minutes of all commands together (default: 27)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--pack", type=Path, help="where the results are packed to (default: OUT.tar.gz)"
    )
    parser.add_argument(
        "--matmul", type=int, help="size of the large matrix product (default: 8192, on a CPU 512)"
    )
    parser.add_argument(
        "--no-report", action="store_true", help="leave the page to `headwise report` elsewhere"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the plan; repeatable",
    )
    options = parser.parse_args()
    if options.plan == EXAMPLE and not {"HEADWISE_DATA", "HEADWISE_TARGET"} <= os.environ.keys():
        print(
            "Skipped: set HEADWISE_DATA (a folder with en-de/ and so on) and HEADWISE_TARGET, or name a --plan."
        )
        return
    disable_progress_bars()
    try:
        plan = read_plan(options.plan, options.set)
        out = options.out or Path("runs") / plan.name
        size = options.matmul or (8192 if options.device == "cuda" else 512)
        packed = options.pack or out.with_name(f"{out.name}.tar.gz")
        minutes = options.minutes, options.sitting
        if sitting(plan, out, minutes, options.device, size, packed, not options.no_report):
            print(f"The study is finished: {out}")
    except HeadwiseError as error:
        raise SystemExit(f"headwise: {error}") from None


if __name__ == "__main__":
    main()
