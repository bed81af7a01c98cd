"""When words start, by four sorts of alignment heads and two readers: docs/results/whisper-base/word-starts.csv.

    python tools/whisper_word_starts.py MODEL WORDS.csv word-starts.csv

Heads are chosen on one half of the recordings (`headwise align`, also with --one-layer); all numbers are of the other
half, where transformers' `return_timestamps="word"` and CTranslate2's `align` read the words that were said. Intervals
are of a bootstrap over recordings; differences from the published heads are paired.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import GenerationMixin

import headwise as hw
from headwise.core.heads import Head
from headwise.core.statistics import ratio_interval
from headwise.roles.alignment_heads import align
from headwise.roles.halves import halves_of
from headwise_speech.recordings import Speech, Utterance

sys.path.append(str(Path(__file__).parents[1] / "plugins" / "headwise-speech" / "tests"))
from word_starts import (
    ctranslate2_engine,
    heard_by_ctranslate2,
    starts_in_ctranslate2,
    starts_in_transformers,
)

RANDOM = 5  # draws of as many heads as are published
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("words", help="a table of audio, word, start, end, language")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    model = hw.load(options.model)
    speech = Speech.read(options.words)
    sets = head_sets(model, speech)
    held_out = other_half(speech)
    wrong = {
        "transformers": errors_in_transformers(model, held_out, sets),
        "CTranslate2": errors_in_ctranslate2(model, held_out, sets),
    }
    words = np.array([len(each.starts) for each in held_out], dtype=float)
    table = rows_of(sets, wrong, words)
    table.to_csv(options.out, index=False, float_format="%.4g")
    print(table.to_string())


def head_sets(model: hw.Model, speech: Speech) -> dict[str, list[Head]]:
    """The published heads, those that `align` chooses, also within one layer, and random ones."""
    published = list(model.alignment_heads)
    found = align(model, speech)
    print(found.sets.to_string(), flush=True)
    one_layer = align(model, speech, one_layer=True)
    print(one_layer.sets.to_string(), flush=True)
    sets = {"published": published, "chosen": found.heads, "one layer": one_layer.heads}
    draw = random.Random(SEED)
    cross = list(model.heads.only(["cross"]))
    for number in range(1, RANDOM + 1):
        sets[f"random {number}"] = sorted(draw.sample(cross, len(published)))
    return sets


def other_half(speech: Speech) -> list[Utterance]:
    """The recordings that did not choose."""
    halves = halves_of([each.audio.name for each in speech])
    return [each for each, half in zip(speech, halves, strict=True) if half == 1]


def errors_in_transformers(
    model: hw.Model, speech: Sequence[Utterance], sets: Mapping[str, Sequence[Head]]
) -> dict[str, np.ndarray]:
    """By set of heads, the sum of the errors in each recording, in seconds."""
    wrong: dict[str, list[float]] = {name: [] for name in sets}
    for utterance in speech:
        with transcribed_once():
            for name, heads in sets.items():
                model.alignment_heads = list(heads)
                (starts,) = starts_in_transformers(model, [utterance])
                wrong[name].append(error_of(utterance, starts))
    return {name: np.array(sums) for name, sums in wrong.items()}


@contextmanager
def transcribed_once() -> Iterator[None]:
    """A block in which one recording is transcribed once: sets of heads differ in what is read of that."""
    generate: Any = GenerationMixin.generate
    kept: list[Any] = []

    def generated(self: Any, *inputs: Any, **options: Any) -> Any:
        if not kept:
            kept.append(generate(self, *inputs, **options))
        return type(kept[0])(**kept[0])

    GenerationMixin.generate = generated
    try:
        yield
    finally:
        GenerationMixin.generate = generate


def errors_in_ctranslate2(
    model: hw.Model, speech: Sequence[Utterance], sets: Mapping[str, Sequence[Head]]
) -> dict[str, np.ndarray]:
    """By set of heads, the sum of the errors in each recording, in seconds."""
    wrong = {}
    heard: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "ct2"
        hw.export(model, "ct2", folder)
        for name, heads in sets.items():
            engine = ctranslate2_engine(folder, heads)
            heard = heard or heard_by_ctranslate2(engine, model, speech)
            sums = []
            read = starts_in_ctranslate2(engine, model, speech, heard)
            for utterance, starts in zip(speech, read, strict=True):
                sums.append(error_of(utterance, starts))
            wrong[name] = np.array(sums)
    return wrong


def error_of(utterance: Utterance, starts: Sequence[float]) -> float:
    """The sum of the errors of its words."""
    return float(np.abs(np.array(starts) - np.array(utterance.starts)).sum())


def rows_of(
    sets: Mapping[str, Sequence[Head]],
    wrong: Mapping[str, Mapping[str, np.ndarray]],
    words: np.ndarray,
) -> pd.DataFrame:
    """A row for each reader and set: the mean error, and its difference from that of the published heads. Also a row for
    the mean of the random sets."""
    rows = []
    for reader, of_sets in wrong.items():
        drawn = [sums for name, sums in of_sets.items() if name.startswith("random")]
        every = {**of_sets, "random, mean": np.mean(drawn, axis=0)}
        for name, sums in every.items():
            row: dict[str, Any] = {
                "reader": reader,
                "set": name,
                "heads": " ".join(map(str, sets.get(name, []))),
                "recordings": len(words),
                "words": int(words.sum()),
            }
            row |= bounded("seconds", sums, words)
            if name != "published":
                row |= bounded("difference", sums - of_sets["published"], words)
            rows.append(row)
    return pd.DataFrame(rows)


def bounded(name: str, sums: np.ndarray, words: np.ndarray) -> dict[str, float]:
    """Σ sums / Σ words with its 95 % interval."""
    value = np.array([sums.sum() / words.sum()])
    low, high = ratio_interval(sums[:, None], words[:, None], value, SEED)
    return {name: value[0], f"{name}_low": low[0], f"{name}_high": high[0]}


if __name__ == "__main__":
    main()
