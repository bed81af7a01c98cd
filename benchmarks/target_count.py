"""A target count of heads, tested: on the demo's model, targets from one head to all, beside a curve over λ.

    python benchmarks/target_count.py --out runs/target-count

Trains the model of `headwise demo --toy` once, then prunes copies of it: to 20 numbers of encoder heads and 4 of all kinds,
with the defaults and nothing tuned, and in between with λ, as many updates each: one epoch in batches of a quarter of
the demo's size (some 670 updates), so that the 34 runs take half an hour of processor time. A row of `runs.csv`
is a run:

    expected           Σ P(open) when the gates were last trained, before any was decided; the aim: within 0.5 of
                       the target
    jump               how the dev loss moves by deciding, in nats per token, at the moment the gates are decided and with
                       the same weights; the aim is below 0.02
    kept               the heads that are left
    seconds            processor time of the run, measuring the jump included; empty for one that was killed and went on
    undecided          the share of gates between 0.1 and 0.9 when they were last trained
    dev_bleu, lines    of the pruned model, and where its translations of the dev text are

The summary holds the BLEU and dev loss of each number beside the λ curve at the same number (linear in between; the
paired bootstrap draws the same sentences for all models), and the time of each run beside the λ runs next to it.
Give the same command again to go on with what is left.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sacrebleu.metrics.bleu import BLEU

from headwise.core.folders import write_text
from headwise.core.heads import KINDS, Kind
from headwise.core.options import Gates
from headwise.core.progress import Progress
from headwise.core.statistics import interval
from headwise.data.text import ParallelText, read_lines
from headwise.models.decoding.bleu import translation_answers
from headwise.models.decoding.translator import Generate, translate
from headwise.models.loading import load
from headwise.models.training.token_batches import Encoded
from headwise.models.training.trainer import TrainingSetup
from headwise.pruning.with_gates import prune_by_training
from headwise.study.plan import Plan, read_plan
from headwise.study.study import run_study

Wanted = int | Mapping[Kind, int]
ENCODER: tuple[Kind, ...] = ("encoder-self",)
TARGETS = (12, 1, 24, 6, 18, 3, 21, 9, 15, 2, 22, 4, 20, 8, 16, 5, 14, 10, 7, 11)
PENALTIES = (0.009, 0.0, 0.02, 0.004, 0.006, 0.014, 0.002, 0.05)
TUNING = {"epochs": 1, "learning_rate": 1e-3}
BATCH = 630
EVERYWHERE: tuple[Wanted, ...] = (20, 6, 45, {"encoder-self": 4, "decoder-self": 6, "cross": 8})


@dataclass(frozen=True)
class Run:
    """One run: to a target count, or with a penalty."""

    kinds: tuple[Kind, ...]
    keep: Wanted | None = None
    penalty: float | None = None

    @property
    def name(self) -> str:
        where = "encoder" if self.kinds == ENCODER else "all"
        if self.keep is None:
            return f"{where}-lambda-{self.penalty:g}"
        parts = [self.keep] if isinstance(self.keep, int) else self.keep.values()
        return f"{where}-keep-{'-'.join(map(str, parts))}"

    @property
    def target(self) -> int | None:
        return (
            self.keep
            if self.keep is None or isinstance(self.keep, int)
            else sum(self.keep.values())
        )


def schedule(
    targets: Sequence[int], penalties: Sequence[float], everywhere: Sequence[Wanted]
) -> list[Run]:
    """All runs, those with λ spread among the others."""
    runs = [Run(ENCODER, keep=target) for target in targets]
    stride = max(1, len(runs) // max(1, len(penalties) - 1))
    for place, penalty in enumerate(penalties):
        runs.insert(min(len(runs), place * (stride + 1)), Run(ENCODER, penalty=penalty))
    every: list[Run] = [Run(KINDS, keep=keep) for keep in everywhere]
    if every:
        runs += [Run(KINDS, penalty=0.006), *every, Run(KINDS, penalty=0.009)]
    return runs


class Bench:
    """The demo's plan, its trained model and its text."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan, self.out, self.folder = plan, out, out / "study"
        run_study(plan, self.folder, Progress(), only="train")
        model = load(self.folder / "model")
        train, self.dev_text = (
            ParallelText.read(
                self.folder / f"corpus/{split}.en", self.folder / f"corpus/{split}.fr"
            )
            for split in ("train", "dev")
        )
        self.data, self.dev = (
            Encoded(text, model.tokenizer, model.task.longest) for text in (train, self.dev_text)
        )

    def go(self, run: Run) -> dict[str, Any]:
        """One run, from the copy of the trained model to the BLEU of the pruned one."""
        model, work = load(self.folder / "model"), self.out / "work" / run.name
        fresh, start = not work.exists(), time.process_time()
        recipe = self.plan.training.model_copy(update={"batch_tokens": BATCH})
        training = TrainingSetup(self.data, self.dev, recipe, work, self.plan.seed)
        goal = {"penalty": run.penalty, "keep": run.keep, "kinds": list(run.kinds)}
        pruned = prune_by_training(model, training, Gates.model_validate(TUNING | goal))
        seconds = time.process_time() - start
        smaller = pruned.model
        lines, _ = translate(
            Generate(smaller.hf, smaller.tokenizer), list(self.dev_text.sources), self.plan.search
        )
        place = self.out / "lines" / f"{run.name}.txt"
        write_text(place, "".join(f"{line}\n" for line in lines))
        shutil.rmtree(work)
        counts = {kind: pruned.mask.count(kind) for kind in run.kinds}
        kept = sum(counts.values()) if isinstance(run.keep, int) else counts
        return {
            "run": run.name,
            "kinds": "+".join(run.kinds),
            "penalty": run.penalty,
            "target": run.target,
            "expected": pruned.expected,
            "undecided": pruned.undecided,
            "jump": pruned.decided_loss - pruned.soft_loss,
            "dev_loss": pruned.loss,
            "kept": sum(counts.values()),
            "exact": run.keep in (None, kept),
            "settled": pruned.settled,
            "updates": pruned.cost["updates"],
            "seconds": seconds if fresh else None,
            "dev_bleu": BLEU().corpus_score(lines, [list(self.dev_text.targets)]).score,
        }


def against_curve(table: pd.DataFrame, out: Path, references: list[str]) -> pd.DataFrame:
    """BLEU of each encoder run minus that of the λ curve at its number of heads, with a 95 % interval; and dev loss.

    Numbers outside the curve are left out. Several λ that keep as many heads count by their mean.
    """
    rows = table[table.kinds == "encoder-self"]
    lines = {name: list(read_lines(out / "lines" / f"{name}.txt")) for name in rows.run}
    answers = translation_answers([*lines.values()], references)
    bleu = {
        name: np.append(answers.value(place), answers.drawn(place))
        for place, name in enumerate(lines)
    }
    curve = rows[rows.target.isna()]
    kept = sorted(set(curve.kept))
    means = np.stack(
        [np.mean([bleu[name] for name in curve[curve.kept == count].run], axis=0) for count in kept]
    )
    losses = [curve[curve.kept == count].dev_loss.mean() for count in kept]
    made = []
    inside = rows[rows.target.between(kept[0], kept[-1])]
    for run, target, dev_loss in zip(inside.run, inside.target, inside.dev_loss, strict=True):
        between = np.array([np.interp(target, kept, column) for column in means.T])
        change = bleu[run] - between
        low, high = interval(change[1:], len(references))
        loss = dev_loss - np.interp(target, kept, losses)
        made.append(
            {
                "run": run,
                "curve": between[0],
                "difference": change[0],
                "low": low,
                "high": high,
                "loss": loss,
            }
        )
    return pd.DataFrame(made, columns=["run", "curve", "difference", "low", "high", "loss"])


def ratios(table: pd.DataFrame) -> list[float]:
    """Seconds of each run to a number, over the mean of the λ runs before and after it with gates on the same kinds."""
    found = []
    for _, rows in table[table.seconds.notna()].groupby("kinds", sort=False):
        places = [place for place, target in enumerate(rows.target) if np.isnan(target)]
        seconds = rows.seconds.to_numpy()
        for place, target in enumerate(rows.target):
            if not np.isnan(target) and places:
                near = [
                    max((p for p in places if p < place), default=None),
                    min((p for p in places if p > place), default=None),
                ]
                found.append(
                    seconds[place] / statistics.mean(seconds[p] for p in near if p is not None)
                )
    return found


def summary(table: pd.DataFrame, out: Path, references: list[str]) -> str:
    """The table, and what it says of the aims."""
    target = table[table.target.notna()]
    curve = against_curve(table, out, references)
    shown = table.merge(curve, on="run", how="left")
    missed = (target.expected - target.target).abs()
    lines = [
        shown.drop(columns=["kinds", "penalty"]).to_string(
            index=False, float_format=lambda value: f"{value:.3f}"
        ),
        f"exactly the target count: {int(target.exact.sum())} of {len(target)}",
        f"expected count within 0.5: {int((missed <= 0.5).sum())} of {len(target)}, worst {missed.max():.2f}",
    ]
    moved = target.jump.abs()
    lines.append(
        f"dev loss moved less than 0.02 by deciding: {int((moved < 0.02).sum())} of {len(target)}, "
        f"worst {moved.max():.4f}; gates settled: {int(target.settled.sum())} of {len(target)}"
    )
    if found := ratios(table):
        lines.append(
            f"seconds beside λ: median {statistics.median(found):.3f}, {min(found):.3f} to {max(found):.3f}"
        )
    if len(curve):
        good = int((curve.high >= 0).sum())
        lines.append(
            f"BLEU against the λ curve: mean {curve.difference.mean():+.2f}, from {curve.difference.min():+.2f} to "
            f"{curve.difference.max():+.2f}; not below it by more than the interval: {good} of {len(curve)}"
        )
        lines.append(
            f"dev loss against the λ curve: mean {curve.loss.mean():+.4f}, from {curve.loss.min():+.4f} to "
            f"{curve.loss.max():+.4f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/target-count"))
    parser.add_argument(
        "--small", action="store_true", help="a model of seconds, three targets: does it all work?"
    )
    options = parser.parse_args()
    changes, runs = ["training.epochs=8"], schedule(TARGETS, PENALTIES, EVERYWHERE)
    if options.small:
        changes = ["data.embedded.train=1000", "data.embedded.dev=50", "training.epochs=2"]
        runs = schedule((12, 3), (0.0, 0.5), EVERYWHERE[-1:])
    bench = Bench(read_plan(Path(str(files("headwise.study") / "toy.toml")), changes), options.out)
    place = options.out / "runs.csv"
    rows: list[dict[Any, Any]] = pd.read_csv(place).to_dict("records") if place.exists() else []
    for run in runs:
        if run.name not in {row["run"] for row in rows}:
            rows.append(bench.go(run))
            write_text(place, pd.DataFrame(rows).to_csv(index=False))
            print(rows[-1], flush=True)
    text = summary(pd.read_csv(place), options.out, list(bench.dev_text.targets))
    write_text(options.out / "summary.txt", text + "\n")
    print(text)


if __name__ == "__main__":
    main()
