"""The curve of a translation model to its last encoder head, in BLEU and chrF: the gradient's order, random orders and what
gates choose, all with equal training of the encoder.

    python tools/last_head.py firefox/en-pt mono.en dev.en devtest.en devtest.pt work devtest.csv
    python tools/last_head.py firefox/pt-en mono.pt dev.pt test.pt test.en work more.csv \
        --count 10 --chosen gradient --chosen "gates, cut" --seed 2 --gates curve.csv

The encoder learns the states of the whole one on mono.en, beside gates or after heads were removed (`train = "distil"`);
the gradient is that of dev.en, with the model's own translations. `gates` learn while the weights do; `gates, cut` are the
heads that gates chose in a former table, removed first and trained as long as the gradient's. `resampled N`: the gradient
of as many sentences of dev.en, drawn again with replacement. A random order is the same with every seed, which is that of
the batches. A model that is finished is kept in the work folder, so that a killed run goes on, and the table has all that
are there. `--untrained` makes the models with the weights of the whole one.

BLEU and chrF are of greedy search, their changes those to the whole model, with 95 % intervals; ahead is what the
gradient's order, with the same training and seed, has more; gained is what training adds to the same heads.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.qualities import BLEU, CHRF, Number
from headwise.data.text import Text
from headwise.models.decoding.bleu import translation_answers
from headwise.models.training.trainer import TrainingSetup
from headwise.pruning.fine_tuning import tune

COUNTS = [10, 24, 4, 16, 1]  # of encoder heads that stay
CHOSEN = ["gradient", "gates", "random 1", "random 2", "random 3"]
MORE = ["gates, cut", "resampled 1", "resampled 2", "resampled 3"]
TRAINING = hw.Training(batch_tokens=2520, label_smoothing=0.0)
WARMUP = 10  # updates


class Point(NamedTuple):
    """A model of the curve. chosen: how its heads were. seed: of the order of batches."""

    chosen: str
    kept: int
    seed: int
    trained: bool = True


def by_gradient(model: hw.Model, dev: hw.ParallelText, file: Path) -> list[Head]:
    """The encoder heads, the one with the smallest gradient first."""
    if not file.exists():
        gradient = hw.score(model, dev, ["gradient"]).of("gradient")
        order = sorted(model.heads.only(["encoder-self"]), key=lambda head: gradient[head])
        file.write_text(json.dumps([[head.layer, head.head] for head in order]))
    return [Head("encoder-self", *place) for place in json.loads(file.read_text())]


def chosen_by_gates(table: Path) -> dict[int, str]:
    """By their count, the encoder heads that gates of the lowest seed left."""
    found = pd.read_csv(table)
    found = found[found["chosen"] == "gates"].sort_values("seed").drop_duplicates("kept")
    return dict(zip(found["kept"], found["heads"], strict=True))


def resampled(text: hw.ParallelText, seed: int) -> hw.ParallelText:
    """As many pairs of a text, drawn with replacement."""
    pairs = list(zip(text.sources, text.targets, strict=True))
    return hw.ParallelText.from_pairs(random.Random(seed).choices(pairs, k=len(pairs)))


@dataclass(frozen=True)
class Curve:
    """What its points are made from. text: sentences whose encoder states are learnt. dev: sentences with the model's own
    translations. of_gates: by their count, the heads that gates left."""

    model: hw.Model
    text: hw.ParallelText
    dev: hw.ParallelText
    epochs: int
    work: Path
    of_gates: dict[int, str]

    def file(self, point: Point) -> Path:
        name = f"{point.chosen}-{point.kept}-{point.seed}-{self.epochs}.json"
        return self.work / (name if point.trained else f"untrained {name}")

    def made(self, whole: Point) -> dict[Point, dict[str, Any]]:
        """What every model in the work folder translates, the whole one first."""
        found: dict[Point, dict[str, Any]] = {whole: {}}
        for file in sorted(self.work.glob(f"*-{self.epochs}.json")):
            name, kept, seed, _ = file.stem.rsplit("-", 3)
            chosen = name.removeprefix("untrained ")
            found[Point(chosen, int(kept), int(seed), chosen == name)] = json.loads(
                file.read_text()
            )
        return found

    def smaller(self, point: Point) -> hw.Model:
        """The model with this number of encoder heads."""
        if point.chosen == "gates":
            how = hw.Gates(
                keep=point.kept, kinds=["encoder-self"], epochs=self.epochs, warmup=WARMUP
            )
            return hw.prune(
                self.model, self.text, how, dev=self.dev, seed=point.seed, training=TRAINING
            )
        gone = self.removed(point)
        return self.trained(gone, point.seed) if point.trained else self.model.without(gone)

    def removed(self, point: Point) -> Sequence[Head]:
        heads = list(self.model.heads.only(["encoder-self"]))
        if point.chosen == "gates, cut":
            stay = self.of_gates[point.kept].split()
            return [head for head in heads if f"{head.layer}/{head.head}" not in stay]
        how, _, number = point.chosen.partition(" ")
        if how == "random":
            draw = random.Random(1)
            order = [draw.sample(heads, len(heads)) for _ in range(int(number))][-1]
        else:
            dev = resampled(self.dev, int(number)) if number else self.dev
            order = by_gradient(self.model, dev, self.work / f"{point.chosen}.json")
        return order[: len(order) - point.kept]

    def trained(self, removed: Sequence[Head], seed: int) -> hw.Model:
        """The model without some heads, whose encoder was then trained."""
        task = self.model.task
        data, dev = (
            task.training_data(one, TRAINING.batch_tokens) for one in (self.text, self.dev)
        )
        how = hw.Greedy(kinds=["encoder-self"], train="distil", epochs=self.epochs, warmup=WARMUP)
        with tempfile.TemporaryDirectory() as folder:
            run = TrainingSetup(data, dev, TRAINING, Path(folder), seed)
            mask = HeadMask.full(self.model.heads).without(removed)
            return tune(self.model, run, how, ("encoder-self",), mask).model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    for name in ("mono", "dev", "source", "target", "work", "table"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--count", type=int, action="append")
    parser.add_argument("--chosen", choices=[*CHOSEN, *MORE], action="append")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--gates", type=Path, help="a table of this tool with models of gates")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    model = hw.load(given.model)
    text = model.task.unread(model.task.read(given.mono))
    pairs = hw.ParallelText.read(given.source, given.target)
    lines = given.dev.read_text(encoding="utf-8").splitlines()
    dev = model.task.completed(Text.from_lines(lines))
    of_gates = chosen_by_gates(given.gates) if given.gates else {}
    curve = Curve(model, text, dev, given.epochs, given.work, of_gates)

    points = [
        Point(chosen, count, seed)
        for count, chosen, seed in product(
            given.count or COUNTS, given.chosen or CHOSEN, given.seed or [1]
        )
    ]
    if given.untrained:
        points = [point._replace(trained=False) for point in points]
    whole = Point("whole", model.heads.only(["encoder-self"]).total, 0)
    for point in [whole, *points]:
        file = curve.file(point)
        if not file.exists():
            begun = time.process_time()
            small = model if point == whole else curve.smaller(point)
            spent = time.process_time() - begun
            left = sorted(set(small.heads_left.kept) & set(model.heads.only(["encoder-self"])))
            heads = " ".join(f"{head.layer}/{head.head}" for head in left)
            translations = small.translate(pairs.sources, beam=1)
            facts = {"translations": translations, "heads": heads, "processor_seconds": spent}
            file.write_text(json.dumps(facts))
    write(curve.made(whole), pairs, given.table)


def write(made: dict[Point, dict[str, Any]], pairs: hw.ParallelText, table: Path) -> None:
    places = {point: place for place, point in enumerate(made)}
    systems = [one["translations"] for one in made.values()]
    answers = translation_answers(systems, pairs.targets, (BLEU, CHRF))
    rows: list[dict[str, Any]] = []
    for point, place in places.items():
        row: dict[str, Any] = {**point._asdict(), "split": "test"}
        bleu, chrf = answers.number(place), answers.by(CHRF)
        row |= {"bleu": bleu.value, "low": bleu.low, "high": bleu.high}
        row |= {"chrf": chrf.value(place)}
        if place:
            change = answers.change(place)
            row |= named("difference", change) | {"p": change.p}
            row |= named("chrf_difference", chrf.change(place))
        for name, other in (
            ("ahead", point._replace(chosen="gradient")),
            ("gained", point._replace(trained=False, seed=1)),
        ):
            at = places.get(other, place)
            if at != place:
                better, worse = (at, place) if name == "ahead" else (place, at)
                row |= named(name, answers.change(better, worse))
        spent = {key: made[point].get(key) for key in ("processor_seconds", "heads")}
        rows.append(row | spent)
    pd.DataFrame(rows).to_csv(table, index=False, float_format="%.6g")


def named(name: str, change: Number) -> dict[str, float | None]:
    return {name: change.value, f"{name}_low": change.low, f"{name}_high": change.high}


if __name__ == "__main__":
    main()
