"""Alignment heads: which cross heads tell what a target word, or a spoken word, belongs to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from headwise.data.speech import Speech
from headwise.data.subwords import Coverage
from headwise.data.text import ParallelText
from headwise.environment import environment_info
from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.model import Model
from headwise.progress import Report, silent
from headwise.roles.alignment import read_links
from headwise.roles.alignment_error import pair_trials
from headwise.roles.alignment_heads import AlignmentHeads, Trials, choose
from headwise.roles.passes import Reading, Subject
from headwise.roles.word_times import speech_trials


def alignment_heads(
    model: Model,
    text: ParallelText | Speech,
    links: str | PathLike[str] | None = None,
    one_layer: bool = False,
    seed: int = 0,
    progress: Report = silent,
) -> AlignmentHeads:
    """Rank the cross heads of an encoder-decoder by how well they align, and choose a set of them.

    text: sentence pairs, or for Whisper speech with word times. links: a file of reference links (`0-0 1-2`, possible
    ones `1p3`) for pairs; without it those of eflomal. one_layer: only heads of one layer, as CTranslate2 and Marian
    average them. Heads are chosen on one half of the text and confirmed on the other. To keep them in a model:
    `model.alignment_heads = found.heads`, then `model.save(folder)`.
    """
    if "cross" not in model.heads.kinds:
        raise HeadwiseError(
            f"{model.name} has no cross attention, which alignment is read from: give another model."
        )
    spoken = getattr(model.hf, "main_input_name", "") == "input_features"
    if spoken != isinstance(text, Speech):
        needed = (
            "speech with word times (--audio)"
            if spoken
            else "sentence pairs (--source and --target)"
        )
        raise HeadwiseError(
            f"{model.name} is a {type(model.hf).__name__}: alignment heads are found on {needed}."
        )
    if spoken and links is not None:
        raise HeadwiseError("Links were given for speech, which has word times: leave them out.")
    model.task.check_tokenizer()
    coverage: dict[str, Coverage] = {}
    trials: Trials
    if isinstance(text, Speech):
        trials = speech_trials(
            model.hf, model.tokenizer, list(text), coverage.setdefault("speech", Coverage())
        )
    else:
        subject = Subject(
            model.hf, model.tokenizer, model.found, Reading(max_length=model.task.longest), coverage
        )
        pairs: Sequence[Any] = list(text)
        trials = pair_trials(subject, pairs, None if links is None else read_links(links))
    found = choose(
        model.hf, model.found, counted(trials, progress), model.alignment_heads, one_layer, seed
    )
    found.table.attrs["signature"] = {
        "model": model.name,
        "heads": model.heads.to_json(),
        "text": text.name,
        "links": None if links is None else str(links),
        "one_layer": one_layer,
        "seed": seed,
        "coverage": {name: asdict(each) for name, each in coverage.items()},
        **environment_info(),
    }
    return found


def counted(trials: Trials, progress: Report) -> Trials:
    """Trials that say how many batches went by: how often the text is read shows only at the end."""
    done = 0

    def count(half: int) -> Any:
        nonlocal done
        for trial in trials(half):
            yield trial
            done += 1
            progress(done / (done + 20), f"{done} batches")

    return count


def save_alignment(found: AlignmentHeads, folder: Path) -> None:
    """Write alignment.csv, a row per head and measure, alignment-sets.csv and alignment.json."""
    write_text(folder / "alignment.csv", found.table.to_csv(index=False, float_format="%.6g"))
    write_text(folder / "alignment-sets.csv", found.sets.to_csv(index=False, float_format="%.6g"))
    facts = {
        "alignment_heads": [[head.layer, head.head] for head in found.heads],
        "confirmed": found.confirmed,
        "signature": found.table.attrs["signature"],
    }
    write_text(folder / "alignment.json", json.dumps(facts, indent=1) + "\n")
