"""The curve of a translation model to its last encoder heads, in BLEU: what gates choose, the gradient's order and random
orders, all with equal training of the weights.

    python tools/last_head.py firefox/en-pt mono.en dev.en dev.pt test.en test.pt work last-head.csv
    python tools/last_head.py firefox/pt-en mono.pt dev.pt dev.en test.pt test.en work curve.csv \
        --count 24 --chosen gates --chosen "random 1" --seed 1 --seed 2 --seed 3

Targets of mono.en, and of dev for the dev loss, are the model's own translations. Gates: two epochs on frozen weights, then
one of the weights (`train = "apart"`); orders: heads are removed, then one epoch. A model that is finished is kept in the
work folder, so that a killed run goes on. BLEU is of the test text, greedy search, its change that to the whole model, with
95 % intervals; gates_ahead is what gates of the same seed have more than an order. `--untrained` compares the same heads
with the weights of the whole model, those of gates once their model is in the work folder.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

import headwise as hw
from headwise.data.text import Text
from headwise.decoding.bleu import translation_answers
from headwise.heads import Head
from headwise.layout import HeadMask
from headwise.pruning.fine_tuning import tune
from headwise.training.trainer import TrainingRun

COUNTS = [4, 1, 10, 24]  # of encoder heads that stay, the least known first
CHOSEN = ["gates", "gradient", "random 1", "random 2", "random 3"]
TRAINING = hw.Training(batch_tokens=2520, label_smoothing=0.0)
GATES: dict[str, Any] = {"train": "apart", "epochs": 3, "warmup": 10}
AFTERWARDS = hw.Greedy(kinds=["encoder-self"], train="all", epochs=1, learning_rate=1e-4, warmup=10)


def by_gradient(model: hw.Model, own: hw.ParallelText, work: Path) -> list[Head]:
    """The encoder heads, the one with the smallest gradient first."""
    file = work / "gradient.json"
    if not file.exists():
        gradient = hw.score(model, own, ["gradient"]).of("gradient")
        order = sorted(model.heads.only(["encoder-self"]), key=lambda head: gradient[head])
        file.write_text(json.dumps([[head.layer, head.head] for head in order]))
    return [Head("encoder-self", *place) for place in json.loads(file.read_text())]


def orders_of(model: hw.Model, seed: int) -> dict[str, list[Head]]:
    """Random orders of the encoder heads."""
    heads = list(model.heads.only(["encoder-self"]))
    draw = random.Random(seed)
    names = [name for name in CHOSEN if name.startswith("random")]
    return {name: draw.sample(heads, len(heads)) for name in names}


def trained(
    model: hw.Model, removed: Sequence[Head], own: hw.ParallelText, dev: hw.ParallelText, seed: int
) -> hw.Model:
    """The model without some heads, trained for an epoch."""
    data, dev_data = (model.task.training_data(text, TRAINING.batch_tokens) for text in (own, dev))
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(data, dev_data, TRAINING, Path(folder), seed)
        mask = HeadMask.full(model.heads).without(removed)
        return tune(model, run, AFTERWARDS, ("encoder-self",), mask).model


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
    parser.add_argument("--untrained", action="store_true")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    model = hw.load(given.model)
    own = model.task.completed(model.task.read(given.mono))
    dev = hw.ParallelText.read(given.dev_source, given.dev_target)
    own_dev = model.task.completed(Text.from_lines(dev.sources))
    test = hw.ParallelText.read(given.source, given.target)

    whole = {"lines": model.translate(test.sources, beam=1), "heads": ""}
    made: dict[tuple[str, int, int], dict[str, Any]] = {("whole", 48, 0): whole}
    for count, chosen, seed in product(
        given.count or COUNTS, given.chosen or CHOSEN, given.seed or [1]
    ):
        trained_file = given.work / f"{chosen}-{count}-{seed}.json"
        file = (
            trained_file.with_stem(f"untrained {trained_file.stem}")
            if given.untrained
            else trained_file
        )
        if not file.exists():
            if given.untrained and chosen == "gates":
                kept = json.loads(trained_file.read_text())["heads"].split()
                heads_of = model.heads.only(["encoder-self"])
                small = model.remove(
                    [head for head in heads_of if f"{head.layer}/{head.head}" not in kept]
                )
            elif chosen == "gates":
                how = hw.Gates(keep=count, kinds=["encoder-self"], **GATES)
                small = hw.prune(model, own, how, dev=own_dev, seed=seed, training=TRAINING)
            else:
                orders = orders_of(model, seed)
                order = orders.get(chosen) or by_gradient(model, own, given.work)
                gone = order[: len(order) - count]
                small = (
                    model.remove(gone)
                    if given.untrained
                    else trained(model, gone, own, own_dev, seed)
                )
            left = sorted(set(small.heads_left.kept) & set(model.heads.only(["encoder-self"])))
            heads = " ".join(f"{head.layer}/{head.head}" for head in left)
            lines = small.translate(test.sources, beam=1)
            file.write_text(json.dumps({"heads": heads, "lines": lines}))
        made[chosen, count, seed] = json.loads(file.read_text())
        write(made, test, given.table)


def write(
    made: dict[tuple[str, int, int], dict[str, Any]], test: hw.ParallelText, table: Path
) -> None:
    answers = translation_answers([one["lines"] for one in made.values()], test.targets)
    places = {which: place for place, which in enumerate(made)}
    rows = []
    for (chosen, count, seed), place in places.items():
        bleu, change = answers.number(place), answers.change(place)
        row = {"kept": count, "chosen": chosen, "seed": seed, "bleu": bleu.value}
        row |= {"low": bleu.low, "high": bleu.high, "difference": change.value}
        row |= {"difference_low": change.low, "difference_high": change.high, "p": change.p}
        gates = places.get(("gates", count, seed), place)
        if gates != place:
            ahead = answers.change(gates, place)
            row |= {"gates_ahead": ahead.value, "ahead_low": ahead.low, "ahead_high": ahead.high}
        rows.append(row | {"heads": made[chosen, count, seed]["heads"]})
    pd.DataFrame(rows).to_csv(table, index=False, float_format="%.4g")
    print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
