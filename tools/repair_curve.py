"""What repair gives a translation model whose encoder loses heads: BLEU and chrF of the model cut, repaired, and trained.

    python tools/repair_curve.py firefox/en-pt mono.en dev.en test.en test.pt work curve.csv 24 16 10

Heads are those of `hw.Greedy(keep=N)`, fitted on mono.en, which needs no targets, and tried on dev.en; with --seed on
other sentences of mono.en. `cut` are the same heads without repair. --sentences: the same heads repaired on so many
sentences of mono.en. --random: as many random heads, repaired. --train: trained from the repaired model, as
`train="distil"`, on a text; its seconds are of the training. A row for each model and quality, of greedy search on test:
its value, its change to the whole model and to the repaired one, with 95 % intervals, and processor seconds.
Models, and their translations of each test, are kept in the work folder, so that a killed run goes on and another test is
read by the same models; the table has all that are there.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.options import Greedy
from headwise.core.qualities import BLEU, CHRF
from headwise.models.decoding.bleu import translation_answers
from headwise.models.evaluation.last_states import Inputs
from headwise.models.model import Model
from headwise.models.training.trainer import TrainingSetup
from headwise.pruning.fine_tuning import tune
from headwise.pruning.greedy import RemovalScore, mask_without, removal_orders, removal_score
from headwise.pruning.repair import DEV_TOKENS, Repairs, inputs_of_text

TRAINING = hw.Training(batch_tokens=2520)


class Known(RemovalScore):
    """A score whose values were computed before."""

    values: dict[Head, float]

    def __call__(self, mask: HeadMask) -> dict[Head, float]:
        return self.values


def read(file: str) -> list[str]:
    return Path(file).read_text(encoding="utf-8").splitlines()


def order(model: Model, text: Any, file: Path) -> Known:
    """The measure `repair` of all heads, kept in a file."""
    score = removal_score(model, text, "repair", rescore=False, seed=1)
    if not file.exists():
        start = time.process_time()
        values = score(HeadMask.full(model.heads))
        found = {
            "seconds": time.process_time() - start,
            "values": {str(h): v for h, v in values.items()},
        }
        file.write_text(json.dumps(found))
    known = Known(model, score.text, "repair", False, 1)
    values = json.loads(file.read_text())["values"]
    known.values = {Head.parse(name): value for name, value in values.items()}
    return known


def models(options: argparse.Namespace, model: Model, work: Path) -> dict[str, Any]:
    """What makes each model, and says in how many processor seconds, by name."""
    lines = read(options.text)
    random.Random(options.seed).shuffle(lines)
    text, dev = (hw.Text.from_lines(some) for some in (lines, read(options.dev)))
    unread, held = model.task.unread(text), model.task.unread(dev)

    def repairs() -> Repairs:
        """Made for each model, whose seconds are counted."""
        return Repairs.on(model, unread, held)

    def mask_of(count: int) -> HeadMask:
        place = work / f"{count}.seed-{options.seed}.json"
        if not place.exists():
            known = order(model, unread, work / f"order.seed-{options.seed}.json")
            how = Greedy(keep=count, kinds=["encoder-self"], measure="repair", repair=True)
            total = model.heads.only(["encoder-self"]).total
            masks = [
                mask_without(model.heads, one, total - count) for one in removal_orders(known, how)
            ]
            repairs().nearest(masks).save(place)
        return HeadMask.read(place)

    def cut(count: int) -> Model:
        return model.only(mask_of(count))

    def repaired(count: int) -> Model:
        return repairs().repaired_or_cut(mask_of(count))

    def of_random(count: int) -> Model:
        of_kind = list(model.heads.only(["encoder-self"]))
        gone = random.Random(options.seed).sample(of_kind, len(of_kind) - count)
        return repairs().repaired_or_cut(HeadMask.full(model.heads).without(gone))

    def refitted(count: int, sentences: int) -> Model:
        some = Inputs.of(model, model.task.batches(unread.head(sentences)).intact().whole())
        return Repairs(model, some, inputs_of_text(model, held, DEV_TOKENS)).repaired_or_cut(
            mask_of(count)
        )

    def trained(count: int, sentences: list[str]) -> Model:
        task = model.task
        read_once = task.unread(hw.Text.from_lines(sentences))
        how = Greedy(
            keep=count,
            kinds=["encoder-self"],
            measure="repair",
            repair=True,
            train="distil",
            epochs=options.epochs,
        )
        data, judged = (
            task.training_data(one, TRAINING.batch_tokens)
            for one in (read_once, task.completed(dev))
        )
        start = hw.load(work / f"{count}.repaired.seed-{options.seed}")
        with tempfile.TemporaryDirectory() as folder:
            run = TrainingSetup(data, judged, TRAINING, Path(folder), options.seed)
            return tune(model, run, how, ("encoder-self",), mask_of(count), start).model

    ways: dict[str, Any] = {"cut": cut, "repaired": repaired}
    if options.random:
        ways["random"] = of_random
    if options.sentences:
        ways[f"repaired-{options.sentences}"] = partial(refitted, sentences=options.sentences)
    if options.train:
        again = read(options.train)
        name = "trained" if options.train == options.text else f"trained-{len(again)}"
        ways[name] = partial(trained, sentences=again)
    return ways


def main(options: argparse.Namespace) -> None:
    model = hw.load(options.model)
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    sources, references = read(options.test), read(options.references)

    test = Path(options.test).name

    def note(name: str, make: Any) -> None:
        place, folder = work / f"{name}.{test}.json", work / name
        if place.exists():
            return
        made: Model
        if (folder / "seconds.json").exists():
            made, seconds = hw.load(folder), json.loads((folder / "seconds.json").read_text())
        else:
            start = time.process_time()
            made = make()
            seconds = time.process_time() - start
            made.save(folder)
            (folder / "seconds.json").write_text(json.dumps(seconds))
        written = made.translate(sources, beam=1, batch=50)
        place.write_text(json.dumps({"seconds": seconds, "translations": written}))

    note("whole", lambda: model)
    for count in options.counts:
        for way, make in models(options, model, work).items():
            note(f"{count}.{way}.seed-{options.seed}", lambda make=make, count=count: make(count))

    places = sorted(
        work.glob(f"*.{test}.json"), key=lambda place: not place.name.startswith("whole")
    )
    found = [json.loads(place.read_text()) for place in places]
    answers = translation_answers([one["translations"] for one in found], references, (BLEU, CHRF))
    rows = []
    for quality in (BLEU, CHRF):
        own = answers.by(quality)
        for number, place in enumerate(places):
            kept, way, seed = place.name.split(".")[:3] if number else ["48", "whole", "-"]
            row = {"kept": int(kept), "model": way, "seed": seed.removeprefix("seed-")}
            row |= {"quality": quality.name, "value": own.value(number)}
            row |= {"seconds": found[number]["seconds"]}
            if number:
                change = own.change(number, 0)
                row |= {"change": change.value, "low": change.low, "high": change.high}
                repaired = work / f"{kept}.repaired.{seed}.{test}.json"
                if way != "repaired" and repaired in places:
                    more = own.change(number, places.index(repaired))
                    row |= {"to_repaired": more.value}
                    row |= {"to_repaired_low": more.low, "to_repaired_high": more.high}
            rows.append(row)
    table = pd.DataFrame(rows).sort_values(["quality", "kept", "model", "seed"])
    table.to_csv(options.out, index=False, float_format="%.4g")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name in ("model", "text", "dev", "test", "references", "work", "out"):
        parser.add_argument(name)
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--train", metavar="TEXT")
    parser.add_argument("--epochs", type=int, default=1)
    main(parser.parse_args())
