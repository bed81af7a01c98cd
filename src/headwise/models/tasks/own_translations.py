"""One-sided text for a translation model: the targets are the model's own translations."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pooch
from filelock import FileLock
from transformers import PreTrainedModel

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder, below, digest
from headwise.core.options import Search
from headwise.core.progress import OnProgress, part
from headwise.data.text import ParallelText, Text
from headwise.models.attention.offload import refuse_offloaded
from headwise.models.decoding.translator import Generate, translate
from headwise.models.fingerprint import fingerprint

FORMAT = 1  # part of every key: raise it when the same text would be translated differently
AT_ONCE = 500  # sentences between two files: what a killed run translates again, at most
GREEDY = Search(beam=1, batch=50)

LIKE_OWN = (
    "The targets of the training text are nearly the model's own translations, so dev losses are measured on its own "
    "translations of the dev text, not on the references there. Give such text without targets to be sure of it."
)


class OwnTranslations(ParallelText):
    """Sentence pairs whose targets a model wrote itself, by greedy search."""

    made = "targets: the model's own translations"


def own_translations(
    hf: PreTrainedModel, tokenizer: Any, name: str, text: Text, progress: OnProgress, outline: bool
) -> OwnTranslations:
    """The sentences of a text with a model's own translations of them, made once: they are kept in the user's cache folder,
    by the fingerprints of model and text, and a killed run goes on there. Pairs with an empty translation are left out,
    and counted as blank.

    name: of the model. outline: for an estimate; where no translations are there, each sentence stands for its own.
    """
    refuse_offloaded(hf, "Translating one-sided text")
    folder = Path(pooch.os_cache("headwise")) / "translations"
    key = digest([FORMAT, fingerprint(hf, tokenizer, None), text.fingerprint, GREEDY.model_dump()])
    parts = below(folder, key)
    label = f"{text.name}, translated by {name}"
    if outline and not below(folder, f"{key}.json").is_file():
        return OwnTranslations.from_pairs(zip(text, text, strict=True), label)

    def pairs() -> Iterator[tuple[str, str]]:
        translator = Generate(hf, tokenizer)
        for first in range(0, len(text), AT_ONCE):
            sources = text.lines[first : first + AT_ONCE]
            file = Folder(parts, record=f"{first}.json")
            written = file.read().get("lines")
            share = part(progress, first / len(text), (first + len(sources)) / len(text))
            if written is None:
                written, _ = translate(translator, sources, GREEDY, share)
                file.note({}, lines=written)
            yield from zip(sources, written, strict=True)

    try:
        parts.mkdir(parents=True, exist_ok=True)
        with FileLock(below(folder, f"{key}.lock")):  # other processes wait, and find them
            made = OwnTranslations._write(pairs(), label, folder, key)
        # Not before all are in one file: a killed run goes on from the parts.
        shutil.rmtree(parts, ignore_errors=True)
    except OSError as error:
        raise HeadwiseError(
            f"The translations of {text.name} cannot be kept in {folder} ({error.strerror or error}): free some space "
            "there, or name another cache folder by XDG_CACHE_HOME."
        ) from error
    made.blank += text.blank
    return made
