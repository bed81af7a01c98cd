"""What roles and alignment refuse: the call, and the words that say what was found and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.data.embedded import write_treebank
from headwise.data.treebank import Treebank
from headwise.roles.alignment import LinkedText
from headwise.roles.alignment_heads import align
from headwise.roles.lost_words import lost_words
from models.tasks.askers import asker, lines
from refusals import refuses
from roles.aligning import PROMPT, copies, pairs, prompted_translator, translator


def write(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    return path


def prompted(folder: Path, prompt: str | None = PROMPT, **options: Any) -> object:
    options |= {} if prompt is None else {"prompt": prompt}
    return align(prompted_translator(), LinkedText.read(*copies(folder, 4)), **options)


def apart(folder: Path, model: hw.Model | None = None, **options: Any) -> object:
    return align(model or translator(), LinkedText.read(*pairs(folder, 4)), **options)


def linked(folder: Path, text: str) -> object:
    source, links = pairs(folder, 1)
    return align(translator(), LinkedText.read(source, write(links, text)))


def one_pair(folder: Path) -> object:
    text, links = pairs(folder, 2)
    first = write(folder / "one", links.read_text().splitlines()[0])
    return align(translator(), LinkedText.read(text.head(1), first))


def trees(folder: Path) -> Treebank:
    return Treebank.read(write_treebank(folder / "dev.conllu", 20))


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    # alignment heads: how a model is asked
    (lambda f: prompted(f, None), "say how it is asked to translate"),
    (lambda f: prompted(f, "Translate: {source}"), "must have {source} once"),
    (lambda f: prompted(f, "{target} of {source}"), "{target} once after it"),
    (lambda f: prompted(f, "{source} {target} {target}"), "{target} once after it"),
    (lambda f: apart(f, prompt=PROMPT), "reads source and target apart"),
    (lambda f: apart(f, asker("bert"), prompt=PROMPT), "does not translate"),
    # alignment heads: texts and links
    (one_pair, "no second half"),
    (lambda f: linked(f, "0-0 1:1"), "Line 1"),
    (lambda f: linked(f, "0-9"), "0-9"),
    (lambda f: linked(f, "0-0\n0-0"), "2 sentence pairs"),
    # roles: texts that do not fit the model
    (lambda f: hw.roles(asker("llama"), ["a b", "c d"]), "treebank, and list was given"),  # type: ignore[arg-type]
    (lambda f: hw.roles(asker("llama"), trees(f), seed=-1), "The seed is -1: … at least 0"),
    (lambda f: lost_words(asker("bert"), lines(9), seed=-1), "The seed is -1"),
    (lambda f: apart(f, seed=-1), "The seed is -1"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_one_sentence_says_what_was_found(
    call: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    refuses(lambda: call(tmp_path), words)
