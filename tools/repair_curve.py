"""What repair gives a translation model whose encoder loses heads: BLEU and chrF of the model cut, and repaired.

    python tools/repair_curve.py firefox/en-pt mono.en dev.en test.en test.pt curve.csv heads.csv 24 16 10

Layers are fitted on mono.en, which needs no targets, and repair must help on dev. Heads are those of `gradient` in
heads.csv (a curve.csv of docs/results/firefox) and those of the measure `repair` on mono.en. A row for each model and
quality, of greedy search on test: its value, and its change to the whole model and to the gradient's heads cut, with
95 % intervals; what the encoder's states miss on dev, as the decoder reads them; processor seconds of the repair.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pandas as pd

import headwise as hw
from headwise.core.heads import Head, Kind
from headwise.core.qualities import BLEU, CHRF
from headwise.models.decoding.bleu import translation_answers
from headwise.models.evaluation.last_states import Inputs
from headwise.models.model import Model
from headwise.pruning.repair import SENTENCES, TOKENS, repaired

KIND: Kind = "encoder-self"


def read(file: str) -> list[str]:
    return Path(file).read_text(encoding="utf-8").splitlines()


def inputs_of(model: Model, lines: list[str]) -> Inputs:
    text = model.task.unread(lines)
    return Inputs.of(model, model.task.batches(text).intact()).thinned(TOKENS)


def orders(model: Model, text: list[str], file: str) -> dict[str, dict[int, set[Head]]]:
    """The encoder heads that stay, by how they were chosen and how many they are."""
    table = pd.read_csv(file)
    table = table[(table.chosen == "gradient") & (table.seed == 1)].drop_duplicates("kept")
    given = {
        int(kept): {Head.parse(f"{KIND}/{name}") for name in names.split()}
        for kept, names in zip(table.kept, table.heads, strict=True)
    }
    values = hw.score(model, model.task.unread(text), ["repair"]).of("repair")
    ranked = sorted(model.heads.only([KIND]), key=lambda head: -values[head])
    chosen = {count: {*ranked[:count]} for count in range(len(ranked))}
    return {"gradient": given, "repair": chosen}


def main(options: argparse.Namespace) -> None:
    model = hw.load(options.model)
    text = read(options.text)[:SENTENCES]
    fitted, dev = inputs_of(model, text), inputs_of(model, read(options.dev))
    sources, references = read(options.test), read(options.references)
    systems = [model.translate(sources, beam=1)]
    facts: list[dict[str, object]] = [{"kept": model.heads.only([KIND]).total, "heads": "whole"}]
    chosen = orders(model, text, options.heads)
    for count in options.counts:
        for order, kept in chosen.items():
            gone = [head for head in model.heads.only([KIND]) if head not in kept[count]]
            mask = hw.HeadMask.full(model.heads).without(gone)
            start = time.process_time()
            made = repaired(model, mask, fitted, dev)
            seconds = time.process_time() - start
            fact = {"kept": count, "heads": order}
            if order == "gradient":
                facts.append({**fact, "repaired": False, "missed": made.before, "seconds": 0.0})
                systems.append(model.remove(mask).translate(sources, beam=1))
            facts.append({**fact, "repaired": True, "missed": made.after, "seconds": seconds})
            systems.append(made.model.translate(sources, beam=1))
    answers = translation_answers(systems, references, (BLEU, CHRF))
    rows = []
    for quality in (BLEU, CHRF):
        own = answers.by(quality)
        cut = 0
        for place, fact in enumerate(facts):
            if fact.get("repaired") is False:
                cut = place
            row = {**fact, "quality": quality.name, "value": own.value(place)}
            for name, to in (("whole", 0), ("cut", cut)):
                if place != to:
                    change = own.change(place, to)
                    row |= {
                        name: change.value,
                        f"{name}_low": change.low,
                        f"{name}_high": change.high,
                    }
            rows.append(row)
    pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.4g")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name in ("model", "text", "dev", "test", "references", "out", "heads"):
        parser.add_argument(name)
    parser.add_argument("counts", type=int, nargs="+")
    main(parser.parse_args())
