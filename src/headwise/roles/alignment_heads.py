"""Alignment heads: which cross heads say what a target word, or a spoken word, belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.data.speech import Speech
from headwise.data.subwords import Coverage
from headwise.data.text import ParallelText
from headwise.environment import environment_info
from headwise.errors import HeadwiseError
from headwise.heads import Head, write_text
from headwise.model import Model
from headwise.progress import Report, silent
from headwise.roles.alignment import LinkedText
from headwise.roles.head_sets import AlignmentBatch, AlignmentBatches, choose_heads, pair_batches_of
from headwise.roles.passes import Half, Reading, Subject
from headwise.roles.word_times import speech_batches


@dataclass
class AlignmentHeads:
    """The result of `align`.

    heads: the chosen ones, the best first. measure: the error they were chosen by. table: a row per cross head and
    measure on the whole text, columns COLUMNS. sets: the error on the half that did not choose, a row for `chosen`,
    `best head`, and `now` where the model names alignment heads already; baseline: the best rule without attention.
    signature: how they were found.
    """

    heads: list[Head]
    measure: str
    table: pd.DataFrame
    sets: pd.DataFrame
    signature: dict[str, Any]

    @property
    def confirmed(self) -> bool:
        """Whether the chosen heads err less than the baseline on the other half: their interval is below it."""
        row = self.sets.iloc[0]
        return bool(row["high"] < row["baseline"])

    def save(self, folder: str | PathLike[str]) -> None:
        """Write alignment.csv, a row per head and measure, alignment-sets.csv and alignment.json."""
        out = Path(folder)
        table = self.table.to_csv(index=False, float_format="%.6g")
        sets = self.sets.to_csv(index=False, float_format="%.6g")
        facts = {
            "alignment_heads": [[head.layer, head.head] for head in self.heads],
            "confirmed": self.confirmed,
            "signature": self.signature,
        }
        write_text(out / "alignment.csv", table)
        write_text(out / "alignment-sets.csv", sets)
        write_text(out / "alignment.json", json.dumps(facts, indent=1) + "\n")

    def _repr_html_(self) -> str:
        """The error of the sets."""
        shown: str = self.sets.to_html(index=False, float_format="{:.3f}".format)
        return shown


def align(
    model: Model,
    text: ParallelText | LinkedText | Speech,
    *,
    one_layer: bool = False,
    seed: int = 0,
    progress: Report = silent,
) -> AlignmentHeads:
    """Rank the cross heads of an encoder-decoder by how well they align, and choose a set of them.

    text: sentence pairs (a `LinkedText` has their reference links; for others eflomal draws them), or for Whisper
    speech with word times. one_layer: only heads of one layer, as CTranslate2 and Marian average them. Heads are chosen
    on one half of the text and confirmed on the other. To keep them in a model: `model.alignment_heads = found.heads`,
    then `model.save(folder)`. Raises HeadwiseError for a model without cross attention, and for other text.
    """
    if "cross" not in model.heads.kinds:
        raise HeadwiseError(
            f"{model.name} has no cross attention, which alignment is read from: give another model."
        )
    hears = getattr(model.hf, "main_input_name", "") == "input_features"
    if hears != isinstance(text, Speech):
        needed = "speech with word times (--audio)" if hears else "sentence pairs (two files)"
        raise HeadwiseError(
            f"{model.name} is a {type(model.hf).__name__}: alignment heads are found on {needed}."
        )
    model.task.check_tokenizer()
    reading = Reading(max_length=model.task.longest)
    subject = Subject(model.hf, model.tokenizer, model.discovery, reading)
    links = None
    if isinstance(text, Speech):
        coverage = subject.coverage.setdefault("speech", Coverage())
        batches = speech_batches(model.hf, model.tokenizer, list(text), coverage)
    else:
        if isinstance(text, LinkedText):
            links = text
        gold = None if links is None else links.gold
        batches = pair_batches_of(subject, list(text), gold)
    sets = choose_heads(
        model.hf,
        model.discovery,
        reported(batches, progress),
        model.alignment_heads,
        one_layer,
        seed,
    )
    signature = {
        "model": model.name,
        "heads": model.heads.to_json(),
        "text": text.name,
        "links": None if links is None else links.file,
        "one_layer": one_layer,
        "seed": seed,
        "coverage": {name: asdict(each) for name, each in subject.coverage.items()},
        **environment_info(),
    }
    return AlignmentHeads(sets.heads, sets.measure, sets.table, sets.sets, signature)


def reported(batches: AlignmentBatches, progress: Report) -> AlignmentBatches:
    """Batches that say how many were read: how often the text is read shows only at the end."""
    done = 0

    def read(half: Half) -> Iterator[AlignmentBatch]:
        nonlocal done
        for batch in batches(half):
            yield batch
            done += 1
            progress(done / (done + 20), f"{done} batches")

    return read
