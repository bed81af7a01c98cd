"""Texts that must not be one: what trains or ranks heads, what choices are made on, and what is reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from os import PathLike
from pathlib import Path
from typing import Any

from headwise.core.errors import HeadwiseError
from headwise.data.embedded import Split
from headwise.data.lines import is_file
from headwise.models.known_text import LOOKED_AT, MANY
from headwise.models.tasks import AnyText
from headwise.models.tasks.task import source_sentences


def refuse_same_files(named: Mapping[Any, Any]) -> None:
    """Raise HeadwiseError where two texts are named by one file. named: the file or files of each, by train, dev, test."""
    first: dict[str, str] = {}
    for split, spec in named.items():
        names = [spec] if isinstance(spec, str | PathLike) else spec
        for name in names if isinstance(names, list | tuple) else ():
            place = str(Path(name).resolve()) if is_file(name) else str(name)
            if first.setdefault(place, split) != split:
                raise HeadwiseError(
                    f"'{name}' was given as {first[place]} and as {split} text: what a model is worth shows on sentences "
                    "that nothing was chosen on, so give a text of its own. Without dev text every tenth sentence of the "
                    "training text is held out."
                )


def shared_sentences(texts: Mapping[Split, AnyText]) -> Iterator[str]:
    """Sentences on texts that share many of what a model reads. texts: by train, dev, test."""
    for (one, other), (name, text) in combinations(texts.items(), 2):
        if not (hasattr(other, "lines") and hasattr(text, "lines")):
            continue  # recordings
        own = list(islice(source_sentences(text), LOOKED_AT))
        there = {*own}.intersection(islice(source_sentences(other), LOOKED_AT))
        shared = sum(sentence in there for sentence in own)
        if shared and shared >= MANY * len(own):
            yield (
                f"{shared:,} of {len(own):,} {name} sentences are also in the {one} text: on them a model shows what it "
                "learned or was chosen by, not what it is worth. Give texts that share no sentences."
            )
