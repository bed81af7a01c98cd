"""A recording as a model hears it: its sound in steps of time, its words, and a file for a player."""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from scipy.io import wavfile
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.faces.lab.sentence import Sentence
from headwise_speech.recordings import Speech, Utterance, audio_seconds, samples
from headwise_speech.whisper import FRAME, extractor_of, features_of

MAP_STEPS = 64  # of time that a map shows, at most
MOST_RECORDINGS = 500  # recordings to pick
SILENCE = "silence"  # behind the recording, up to what the model hears at once


@dataclass(frozen=True)
class Recording:
    """A recording that the model can hear. features: what the encoder reads, 1 F T. frames: states of the encoder that
    the sound fills, `positions` with the silence behind it. audio: its samples."""

    utterance: Utterance
    features: Tensor
    frames: int
    positions: int
    audio: np.ndarray
    rate: int

    @classmethod
    def read(cls, hf: Any, utterance: Utterance) -> Recording:
        """Raises HeadwiseError for a recording without a sample, and one longer than the model hears."""
        extractor = extractor_of(hf)
        rate = extractor.sampling_rate
        seconds = audio_seconds(utterance.audio)
        # before hours of sound are in memory
        if seconds > extractor.chunk_length:
            raise HeadwiseError(
                f"{utterance.audio} is {seconds:.0f} s long, and the model hears {extractor.chunk_length} s at "
                "once: cut it, or pick another recording."
            )
        audio = samples(utterance.audio, rate)
        if not len(audio):
            raise HeadwiseError(f"{utterance.audio} has no sound in it: pick another recording.")
        features = features_of(extractor, audio)
        frames = math.ceil(len(audio) / (FRAME * rate))
        positions = int(hf.config.max_source_positions)
        return cls(utterance, features.to(hf.device, hf.dtype), frames, positions, audio, int(rate))

    @property
    def step(self) -> int:
        """How many frames are one step of time."""
        return math.ceil(self.frames / MAP_STEPS)

    @cached_property
    def sizes(self) -> list[int]:
        """How many frames each step of time has; the last one is the silence behind the sound, where there is any."""
        sizes = []
        for start in range(0, self.frames, self.step):
            sizes.append(min(self.step, self.frames - start))
        if self.frames < self.positions:
            sizes.append(self.positions - self.frames)
        return sizes

    def pooled(self, weights: Tensor, kind: str) -> Tensor:
        """Attention over steps of time, H Q K: to a step the sum over its frames, from a step the mean."""
        # Attention to a step is that to its frames together; the rows still sum to 1.
        shorter = torch.stack([part.sum(-1) for part in weights.split(self.sizes, -1)], -1)
        if kind == "encoder-self":
            shorter = torch.stack([part.mean(-2) for part in shorter.split(self.sizes, -2)], -2)
        return shorter

    def sentence(self) -> Sentence:
        """The steps of time in place of tokens: each has the second at which it begins."""
        names = []
        for number in range(len(self.sizes)):
            names.append(f"{number * self.step * FRAME:.2f} s")
        if self.frames < self.positions:
            names[-1] = SILENCE
        steps = list(range(len(names)))
        return Sentence(steps, names, steps)

    def wav(self) -> str:
        """The samples for a player: a WAV file in base64."""
        file = io.BytesIO()
        # Resampled sound may go a little beyond ±1.
        whole = np.clip(self.audio * 32767, -32768, 32767)
        wavfile.write(file, self.rate, whole.astype(np.int16))
        return base64.b64encode(file.getvalue()).decode()

    def to_json(self) -> dict[str, Any]:
        """What the page draws (page/sound.js). step, seconds: of a step of time, and of the recording. words: with their
        starts in seconds. loudness: the loudest sample of each step, over that of all."""
        size = round(self.step * FRAME * self.rate)  # samples of a step
        peaks = []
        for start in range(0, len(self.audio), size):
            peaks.append(float(np.abs(self.audio[start : start + size]).max()))
        loudest = max(peaks) or 1.0  # silence stays silent
        return {
            "step": round(self.step * FRAME, 2),
            "seconds": len(self.audio) / self.rate,
            "silence": self.frames < self.positions,
            "said": self.utterance.text,
            "words": list(zip(self.utterance.words, self.utterance.starts, strict=True)),
            "loudness": [round(peak / loudest, 3) for peak in peaks],
        }


@dataclass(frozen=True)
class Heard:
    """The encoder's view of a recording: its states, 1 S M; its maps over steps of time, H Q K by site; and by head the
    most frequent distance to the frame with the largest attention, with the share of frames (`usual_offsets`)."""

    recording: Recording
    states: Tensor
    maps: Mapping[Site, Tensor]
    offsets: Mapping[str, tuple[int, float]]


def usual_offsets(weights: Tensor, frames: int) -> list[tuple[int, float]]:
    """By head, the most frequent distance in frames from a frame of the sound to the frame that it attends to most, and
    the share of frames with it. weights: H Q K."""
    attended = weights[:, :frames].argmax(-1).cpu()
    distances = attended - torch.arange(frames)
    found = []
    for of_head in distances:
        values, counts = of_head.unique(return_counts=True)
        best = int(counts.argmax())
        found.append((int(values[best]), int(counts[best]) / frames))
    return found


def recordings_by_name(speech: Speech) -> dict[str, Utterance]:
    """The first recordings of a table, by their paths from their common folder; a file that comes again gets a number."""
    utterances = list(islice(speech, MOST_RECORDINGS))
    # The page shows these names, and nobody there needs the folders of the server.
    shared = os.path.commonpath([utterance.audio.parent.absolute() for utterance in utterances])
    by_name: dict[str, Utterance] = {}
    for utterance in utterances:
        path = utterance.audio.absolute().relative_to(shared).as_posix()
        name = path
        count = 1
        while name in by_name:
            count += 1
            name = f"{path} ({count})"
        by_name[name] = utterance
    return by_name
