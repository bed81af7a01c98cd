"""The curve of a translation model to its last encoder heads, in BLEU: what gates choose, the gradient's order and random
orders, all with equal training of the weights.

    python tools/last_head.py firefox/en-pt mono.en dev.en dev.pt test.en test.pt work last-head.csv

Targets of mono.en, and of dev for the dev loss, are the model's own translations. Gates: two epochs on frozen weights, then
one of the weights (`train = "apart"`); orders: heads are removed, then one epoch. A model that is finished is kept in the
work folder, so that a killed run goes on. BLEU is of the test text, greedy search, its change that to the whole model, with
95 % intervals.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Sequence
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

COUNTS = (4, 1, 10, 24)  # of encoder heads that stay, the least known first
ORDERS = 3  # random ones
SEED = 1
TRAINING = hw.Training(batch_tokens=2520, label_smoothing=0.0)
GATES: dict[str, Any] = {"train": "apart", "epochs": 3, "warmup": 10}
AFTERWARDS = hw.Greedy(kinds=["encoder-self"], train="all", epochs=1, learning_rate=1e-4, warmup=10)


def orders_of(model: hw.Model, own: hw.ParallelText, work: Path) -> dict[str, list[Head]]:
    """The orders in which encoder heads are removed."""
    heads = list(model.heads.only(["encoder-self"]))
    file = work / "gradient.json"
    if not file.exists():
        gradient = hw.score(model, own, ["gradient"]).of("gradient")
        order = sorted(heads, key=lambda head: gradient[head])
        file.write_text(json.dumps([[head.layer, head.head] for head in order]))
    found = [Head("encoder-self", *place) for place in json.loads(file.read_text())]
    orders = {"gradient": found}
    draw = random.Random(SEED)
    for number in range(ORDERS):
        orders[f"random {number + 1}"] = draw.sample(heads, len(heads))
    return orders


def trained(
    model: hw.Model, removed: Sequence[Head], own: hw.ParallelText, dev: hw.ParallelText
) -> hw.Model:
    """The model without some heads, trained for an epoch."""
    data, dev_data = (model.task.training_data(text, TRAINING.batch_tokens) for text in (own, dev))
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(data, dev_data, TRAINING, Path(folder), SEED)
        mask = HeadMask.full(model.heads).without(removed)
        return tune(model, run, AFTERWARDS, ("encoder-self",), mask).model


def main(
    name: str, mono: str, dev_source: str, dev_target: str, source: str, target: str, *out: str
) -> None:
    work, table = map(Path, out)
    work.mkdir(parents=True, exist_ok=True)
    model = hw.load(name)
    own = model.task.completed(model.task.read(mono))
    dev = hw.ParallelText.read(dev_source, dev_target)
    own_dev = model.task.completed(Text.from_lines(dev.sources))
    test = hw.ParallelText.read(source, target)
    orders = orders_of(model, own, work)

    made: dict[tuple[str, int], dict[str, Any]] = {
        ("whole", 48): {"lines": model.translate(test.sources, beam=1), "heads": ""}
    }
    for count in COUNTS:
        for chosen in ("gates", *orders):
            file = work / f"{chosen}-{count}.json"
            if not file.exists():
                if chosen == "gates":
                    how = hw.Gates(keep=count, kinds=["encoder-self"], **GATES)
                    small = hw.prune(model, own, how, dev=own_dev, seed=SEED, training=TRAINING)
                else:
                    gone = orders[chosen][: len(orders[chosen]) - count]
                    small = trained(model, gone, own, own_dev)
                left = sorted(set(small.heads_left.kept) & set(orders["gradient"]))
                heads = " ".join(f"{head.layer}/{head.head}" for head in left)
                lines = small.translate(test.sources, beam=1)
                file.write_text(json.dumps({"heads": heads, "lines": lines}))
            made[chosen, count] = json.loads(file.read_text())
            write(made, test, table)


def write(made: dict[tuple[str, int], dict[str, Any]], test: hw.ParallelText, table: Path) -> None:
    answers = translation_answers([one["lines"] for one in made.values()], test.targets)
    rows = []
    for place, ((chosen, count), one) in enumerate(made.items()):
        bleu, change = answers.number(place), answers.change(place)
        row = {"kept": count, "chosen": chosen, "bleu": bleu.value}
        row |= {"low": bleu.low, "high": bleu.high, "difference": change.value}
        row |= {"difference_low": change.low, "difference_high": change.high, "p": change.p}
        rows.append(row | {"heads": one["heads"]})
    pd.DataFrame(rows).to_csv(table, index=False, float_format="%.4g")
    print(rows[-1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:9])
