"""The curve of a translation model to its last encoder head, in BLEU: the gradient's order, random orders and what gates
choose, all with equal training of the encoder.

    python tools/last_head.py firefox/en-pt mono.en dev.en dev.pt test.en test.pt work curve.csv
    python tools/last_head.py firefox/pt-en mono.pt dev.pt dev.en test.pt test.en work more.csv \
        --count 10 --chosen gradient --chosen gates --seed 2 --seed 3

The encoder learns the states of the whole one on mono.en, beside gates or after heads were removed (`train = "distil"`);
the gradient is that of the dev text, with the model's own translations. A model that is finished is kept in the work
folder, so that a killed run goes on. BLEU is of greedy search on dev and test, its change that to the whole model, with
95 % intervals; ahead is what the gradient's order of the same seed has more. `--untrained` compares the same heads with
the weights of the whole model, those of gates once their model is in the work folder.
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
from typing import Any

import pandas as pd

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.data.text import Text
from headwise.models.decoding.bleu import translation_answers
from headwise.models.training.trainer import TrainingRun
from headwise.pruning.fine_tuning import tune

COUNTS = [10, 24, 4, 16, 1]  # of encoder heads that stay
CHOSEN = ["gradient", "gates", "random 1", "random 2", "random 3"]
TRAINING = hw.Training(batch_tokens=2520, label_smoothing=0.0)
WARMUP = 10  # updates
Point = tuple[str, int, int]  # how the heads were chosen, how many stay, seed


def by_gradient(model: hw.Model, dev: hw.ParallelText, work: Path) -> list[Head]:
    """The encoder heads, the one with the smallest gradient first."""
    file = work / "gradient.json"
    if not file.exists():
        gradient = hw.score(model, dev, ["gradient"]).of("gradient")
        order = sorted(model.heads.only(["encoder-self"]), key=lambda head: gradient[head])
        file.write_text(json.dumps([[head.layer, head.head] for head in order]))
    return [Head("encoder-self", *place) for place in json.loads(file.read_text())]


def orders_of(model: hw.Model, seed: int) -> dict[str, list[Head]]:
    """Random orders of the encoder heads."""
    heads = list(model.heads.only(["encoder-self"]))
    draw = random.Random(seed)
    names = [name for name in CHOSEN if name.startswith("random")]
    return {name: draw.sample(heads, len(heads)) for name in names}


@dataclass(frozen=True)
class Curve:
    """What its points are made from. text: sentences whose encoder states are learnt. dev: sentences with the model's own
    translations."""

    model: hw.Model
    text: hw.ParallelText
    dev: hw.ParallelText
    epochs: int
    work: Path

    def file(self, chosen: str, count: int, seed: int) -> Path:
        return self.work / f"{chosen}-{count}-{seed}-{self.epochs}.json"

    def smaller(self, chosen: str, count: int, seed: int, trains: bool) -> hw.Model:
        """The model with this number of encoder heads."""
        if chosen == "gates" and trains:
            how = hw.Gates(keep=count, kinds=["encoder-self"], epochs=self.epochs, warmup=WARMUP)
            return hw.prune(self.model, self.text, how, dev=self.dev, seed=seed, training=TRAINING)
        if chosen == "gates":
            made = json.loads(self.file(chosen, count, seed).read_text())["heads"].split()
            heads = self.model.heads.only(["encoder-self"])
            gone = [head for head in heads if f"{head.layer}/{head.head}" not in made]
        else:
            orders = orders_of(self.model, seed)
            order = orders.get(chosen) or by_gradient(self.model, self.dev, self.work)
            gone = order[: len(order) - count]
        return self.trained(gone, seed) if trains else self.model.remove(gone)

    def trained(self, removed: Sequence[Head], seed: int) -> hw.Model:
        """The model without some heads, whose encoder was then trained."""
        task = self.model.task
        data, dev = (
            task.training_data(one, TRAINING.batch_tokens) for one in (self.text, self.dev)
        )
        how = hw.Greedy(kinds=["encoder-self"], train="distil", epochs=self.epochs, warmup=WARMUP)
        with tempfile.TemporaryDirectory() as folder:
            run = TrainingRun(data, dev, TRAINING, Path(folder), seed)
            mask = HeadMask.full(self.model.heads).without(removed)
            return tune(self.model, run, how, ("encoder-self",), mask).model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    for name in ("mono", "dev_source", "dev_target", "source", "target", "work", "table"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--count", type=int, action="append")
    parser.add_argument("--chosen", choices=CHOSEN, action="append")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--untrained", action="store_true")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    model = hw.load(given.model)
    text = model.task.unread(model.task.read(given.mono))
    splits = {
        "dev": hw.ParallelText.read(given.dev_source, given.dev_target),
        "test": hw.ParallelText.read(given.source, given.target),
    }
    own_dev = model.task.completed(Text.from_lines(splits["dev"].sources))
    curve = Curve(model, text, own_dev, given.epochs, given.work)

    def translated(one: hw.Model) -> dict[str, list[str]]:
        return {split: one.translate(pairs.sources, beam=1) for split, pairs in splits.items()}

    made: dict[Point, dict[str, Any]] = {("whole", 48, 0): {**translated(model), "heads": ""}}
    for count, chosen, seed in product(
        given.count or COUNTS, given.chosen or CHOSEN, given.seed or [1]
    ):
        file = curve.file(chosen, count, seed)
        if given.untrained:
            file = file.with_stem(f"untrained {file.stem}")
        if not file.exists():
            begun = time.process_time()
            small = curve.smaller(chosen, count, seed, not given.untrained)
            spent = time.process_time() - begun
            left = sorted(set(small.heads_left.kept) & set(model.heads.only(["encoder-self"])))
            heads = " ".join(f"{head.layer}/{head.head}" for head in left)
            facts = {**translated(small), "heads": heads, "processor_seconds": spent}
            file.write_text(json.dumps(facts))
        made[chosen, count, seed] = json.loads(file.read_text())
        write(made, splits, given.table)


def write(
    made: dict[Point, dict[str, Any]], splits: dict[str, hw.ParallelText], table: Path
) -> None:
    places = {point: place for place, point in enumerate(made)}
    rows = []
    for split, pairs in splits.items():
        answers = translation_answers([one[split] for one in made.values()], pairs.targets)
        for (chosen, count, seed), place in places.items():
            bleu, change = answers.number(place), answers.change(place)
            row = {"kept": count, "chosen": chosen, "seed": seed, "split": split}
            row |= {"bleu": bleu.value, "low": bleu.low, "high": bleu.high}
            row |= {"difference": change.value, "difference_low": change.low}
            row |= {"difference_high": change.high, "p": change.p}
            best = places.get(("gradient", count, seed), place)
            if best != place:
                ahead = answers.change(best, place)
                row |= {"ahead": ahead.value, "ahead_low": ahead.low}
                row |= {"ahead_high": ahead.high}
            own = made[chosen, count, seed]
            rows.append(
                row | {"processor_seconds": own.get("processor_seconds"), "heads": own["heads"]}
            )
    pd.DataFrame(rows).to_csv(table, index=False, float_format="%.4g")
    print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
