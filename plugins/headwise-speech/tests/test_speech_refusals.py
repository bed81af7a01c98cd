"""What is refused of recordings: the call, and the words that say what was found and what to do."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import headwise as hw
from headwise.data.embedded import write_treebank
from headwise.data.treebank import Treebank
from headwise.roles.alignment import LinkedText
from headwise.roles.alignment_heads import align
from headwise_speech import Speech
from headwise_speech.recordings import samples
from hearers import hearer, recordings
from listening import listener, spoken
from refusals import refuses
from roles.aligning import pairs, translator


def write(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    return path


def pairs_to_hear(folder: Path) -> object:
    return align(listener(), LinkedText.read(*pairs(folder, 4)))


def trees(folder: Path) -> Treebank:
    return Treebank.read(write_treebank(folder / "dev.conllu", 20))


def speech(folder: Path) -> Speech:
    return Speech.read(spoken(folder, 2))


HEADER = "audio,word,start,end"


def table(folder: Path, text: str, name: str = "a.csv") -> Speech:
    spoken(folder, 1)
    return Speech.read(write(folder / name, text))


def no_audio(folder: Path, words: int) -> object:
    row = {"audio": "0.wav", "word": "w1", "end": 1, "language": "en"}
    rows = [json.dumps(row | {"start": n / 10}) for n in range(words)]
    (folder / "0.wav").write_bytes(b"RIFF nothing")
    return align(listener(), Speech.read(write(folder / "a.jsonl", "\n".join(rows))))


def cut_off(folder: Path) -> object:
    file = spoken(folder, 2)
    (folder / "0.wav").write_bytes((folder / "0.wav").read_bytes()[:9999])
    return align(listener(), Speech.read(file))


def no_language(folder: Path) -> object:
    file = spoken(folder, 1)
    file.write_text(file.read_text().replace(",en\n", ",\n"))
    return align(listener(), Speech.read(file))


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: pairs_to_hear(f), "--audio"),
    (lambda f: align(translator(), speech(f)), "sentence pairs"),
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
    (lambda f: hw.roles(listener(), trees(f)), "tested on speech (--audio FILE)"),
    (lambda f: hw.roles(translator(), speech(f)), "tested on a treebank … Speech was given"),
    (lambda f: hw.roles(listener(), speech(f), training={1: 2}), "tested without other text"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_one_sentence_says_what_was_found(
    call: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    refuses(lambda: call(tmp_path), words)


MISTAKES = [
    ("evaluate hears --audio said;.csv", "separated by semicolons (audio;text"),
    ("evaluate hears --audio common.csv", "has the columns path, sentence … needs audio, text"),
    (
        "evaluate hears --audio 0.wav",
        "no table: give a .csv, .tsv or .jsonl with the columns audio, text",
    ),
    ("evaluate hears --audio held.csv", "is a folder, not a file"),
    ("evaluate hears --audio gone.csv", "There is no file 'gone.wav'"),
]


@pytest.mark.parametrize(("words", "answer"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_on_the_command_line_is_answered(
    words: str,
    answer: str,
    tmp_path: Path,
    call: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hearer().save(tmp_path / "hears")
    said = recordings(tmp_path, 2).read_text()
    write(tmp_path / "said;.csv", said.replace(",", ";"))
    write(tmp_path / "common.csv", said.replace("audio,text", "path,sentence"))
    write(tmp_path / "held.csv", "audio,text\nhears,a b")
    write(tmp_path / "gone.csv", "audio,text\ngone.wav,a b")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    status, out, err = call(*shlex.split(words.replace(";", "\\;")))
    found = " ".join((out + err).split())
    assert status in (1, 2) and "Traceback" not in err and "mistake in headwise" not in err, err
    place = 0
    for part in answer.split(" … "):
        assert part in found[place:], found
        place = found.index(part, place) + len(part)


def test_audio_that_is_no_wav_needs_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    refuses(lambda: samples(tmp_path / "a.flac", 8000), "pip install 'headwise-speech[audio]'")
