"""What roles and alignment refuse: the call, and the words that say what was found and what to do."""

from __future__ import annotations

import copy
import json
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
from headwise.roles.matching import match
from models.tasks.askers import asker, lines
from refusals import refuses
from roles.aligning import PROMPT, copies, listener, pairs, prompted_translator, spoken, translator


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


HEADER = "audio,word,start,end"


def table(folder: Path, text: str, name: str = "a.csv") -> hw.Speech:
    spoken(folder, 1)
    return hw.Speech.read(write(folder / name, text))


def no_audio(folder: Path, words: int) -> object:
    row = {"audio": "0.wav", "word": "w1", "end": 1, "language": "en"}
    rows = [json.dumps(row | {"start": n / 10}) for n in range(words)]
    (folder / "0.wav").write_bytes(b"RIFF nothing")
    return align(listener(), hw.Speech.read(write(folder / "a.jsonl", "\n".join(rows))))


def cut_off(folder: Path) -> object:
    file = spoken(folder, 2)
    (folder / "0.wav").write_bytes((folder / "0.wav").read_bytes()[:9999])
    return align(listener(), hw.Speech.read(file))


def no_language(folder: Path) -> object:
    file = spoken(folder, 1)
    file.write_text(file.read_text().replace(",en\n", ",\n"))
    return align(listener(), hw.Speech.read(file))


def trees(folder: Path) -> Treebank:
    return Treebank.read(write_treebank(folder / "dev.conllu", 20))


def speech(folder: Path) -> hw.Speech:
    return hw.Speech.read(spoken(folder, 2))


def other_tokens() -> hw.Model:
    model = asker("llama")
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.add_tokens([" "])
    return hw.Model(model.hf, tokenizer, "other tokens")


def matched(one: str, other: str | hw.Model, count: int = 300) -> object:
    return match(asker(one), asker(other) if isinstance(other, str) else other, lines(count))


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    # alignment heads: how a model is asked
    (lambda f: prompted(f, None), "say how it is asked to translate"),
    (lambda f: prompted(f, "Translate: {source}"), "must have {source} once"),
    (lambda f: prompted(f, "{target} of {source}"), "{target} once after it"),
    (lambda f: prompted(f, "{source} {target} {target}"), "{target} once after it"),
    (lambda f: apart(f, prompt=PROMPT), "reads source and target apart"),
    (lambda f: apart(f, asker("bert"), prompt=PROMPT), "does not translate"),
    # alignment heads: texts and links
    (lambda f: apart(f, listener()), "--audio"),
    (lambda f: align(translator(), speech(f)), "sentence pairs"),
    (one_pair, "no second half"),
    (lambda f: linked(f, "0-0 1:1"), "Line 1"),
    (lambda f: linked(f, "0-9"), "0-9"),
    (lambda f: linked(f, "0-0\n0-0"), "2 sentence pairs"),
    # speech
    (
        lambda f: table(f, "audio,word,start\n0.wav,w1,0"),
        "has the columns audio, word, start: it needs audio, text",
    ),
    (lambda f: table(f, f"{HEADER}\n0.wav,w1,soon,1"), "Line 2 … times soon"),
    (lambda f: table(f, f"{HEADER}\n0.wav,w1,1,0.5"), "Line 2"),
    (lambda f: table(f, f"{HEADER}\n0.wav,w1,1,1.5\n0.wav,w2,0.5,0.7"), "Line 3 … before"),
    (lambda f: table(f, f"{HEADER}\nmissing.wav,w1,1,1.5"), "There is no file"),
    (lambda f: table(f, HEADER), "no rows"),
    (lambda f: table(f, f"{HEADER}\r,language\n0.wav,w1,0,1,en"), "is no line of a table"),
    (lambda f: table(f, 'audio,text\n0.wav,"one\n0.wav,two'), "is no line of a table"),
    (lambda f: table(f, "[1]", "a.jsonl"), "Line 1"),
    (lambda f: no_audio(f, 2), "0.wav cannot be read as audio"),
    (cut_off, "0.wav cannot be read as audio"),
    (lambda f: no_audio(f, 1), "can be used"),  # a recording of one word is left out
    (no_language, "language"),
    # roles: texts that do not fit the model
    (lambda f: hw.roles(listener(), trees(f)), "tested on speech (--audio FILE)"),
    (lambda f: hw.roles(translator(), speech(f)), "tested on a treebank … Speech was given"),
    (lambda f: hw.roles(asker("llama"), ["a b", "c d"]), "treebank, and list was given"),  # type: ignore[arg-type]
    (lambda f: hw.roles(listener(), speech(f), training={1: 2}), "tested without other text"),
    (lambda f: hw.roles(asker("llama"), trees(f), seed=-1), "The seed is -1: … at least 0"),
    (lambda f: lost_words(asker("bert"), lines(9), seed=-1), "The seed is -1"),
    (lambda f: apart(f, seed=-1), "The seed is -1"),
    (lambda f: match(asker("bert"), asker("bert"), lines(9), seed=-1), "The seed is -1"),
    # heads of two models
    (lambda f: matched("bert", "llama"), "there is none to match"),
    (lambda f: matched("bert", "bert", 12), "have another one of the same number of tokens"),
    (lambda f: matched("llama", other_tokens()), "as different tokens"),
    (lambda f: match(asker("bert"), asker("bert"), [{}]), "Heads are matched on text"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_one_sentence_says_what_was_found(
    call: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    refuses(lambda: call(tmp_path), words)
