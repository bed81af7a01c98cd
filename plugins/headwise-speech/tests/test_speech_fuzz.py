"""Damaged tables of recordings and damaged audio are read or refused in one sentence."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

import test_fuzz
from headwise_speech.recordings import Speech, samples
from test_fuzz import Read, write

SAID = b"audio,text,language\na.wav,A cat sleeps.,en\na.wav,It rains.,fr\n"
SPOKEN = b"audio,word,start,end\na.wav,A,0.0,0.2\na.wav,cat,0.2,0.5\n"


def wav_bytes() -> bytes:
    """A tenth of a second of two channels."""
    file = io.BytesIO()
    wavfile.write(file, 16_000, np.ones((1_600, 2), np.int16))
    return file.getvalue()


def read_speech(content: bytes, folder: Path) -> None:
    wavfile.write(folder / "a.wav", 16_000, np.zeros(16_000, np.int16))
    for recording in Speech.read(write(folder, "a.csv", content)):
        assert recording.text


READERS: dict[str, tuple[tuple[bytes, ...], Read]] = {
    "speech": ((SAID, SPOKEN), read_speech),
    "audio": (
        (wav_bytes(),),
        lambda content, folder: samples(write(folder, "a.wav", content), 16_000),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_refused_or_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(test_fuzz.READERS, name, READERS[name])
    test_fuzz.attack(name, 20, tmp_path, test_fuzz.refuse)


@pytest.mark.parametrize("name", READERS)
def test_the_good_input_is_read(name: str, tmp_path: Path) -> None:
    examples, read = READERS[name]
    read(examples[0], tmp_path)
