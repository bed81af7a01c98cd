"""Roles of a model that hears: where frames of sound attend, tokens of the transcript, and tokens to sound.

A frame is a state of the encoder (FRAME seconds). The frames of a recording are those of its sound: the silence behind
it, up to what the model hears at once, is left out as queries and as keys, like the padding of a text. So are the
tokens of the prompt. Each recording is read alone, and is a unit of the statistics.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.core.heads import KINDS, Kind
from headwise.models.attention.offload import device_of
from headwise.roles.halves import Half, halves_of
from headwise.roles.observation import ByHalf, CountWords, PassageBatch, Subject, observe, tests_on
from headwise.roles.passage import Passage, View, at_keys, moved
from headwise.roles.probe import REACH, Probe, mean_over_queries, sum_over_queries
from headwise.roles.role import RANDOM_WORDS
from headwise.roles.role_data import RoleData
from headwise_speech.alignment import SpeechRecording, fitting_recordings, measure_length
from headwise_speech.recordings import Speech, Utterance
from headwise_speech.whisper import FRAME, extractor_of, features_of

MOST_RECORDINGS = 100  # that controls are tested on
NEAR_FRAMES = 2  # frames to either side that are on the diagonal
STEP = 5  # frames between the shifts of an even pace


def diagonal(sound: Passage) -> Probe:
    """How often frames attend to themselves or a neighbour, the diagonal heads of Yang et al. (2020).

    diagonal = share of frames q of the sound with |argmax_k A_h[q, k] − q| ≤ NEAR_FRAMES, k in the sound. Baseline: a random
    frame of the sound.
    """
    frames = sound.words
    positions = torch.arange(frames.shape[1], device=frames.device)
    last = frames.sum(1, keepdim=True) - 1
    near = torch.minimum(positions + NEAR_FRAMES, last) - (positions - NEAR_FRAMES).clamp_min(0) + 1
    chance = (near / (last + 1).clamp_min(1) * frames).sum(1)

    def hits(view: View) -> Tensor:
        return (view.attended - positions).abs() <= NEAR_FRAMES

    return mean_over_queries("diagonal", frames, chance[:, None], hits)


def spoken_word(target: Passage, sound: Passage) -> Probe:
    """How often the position that writes a token attends most to a frame in which its word is spoken.

    spoken-word = share of tokens t with argmax_s A_h[t, s] between the start of t's word and that of the next word. The
    queries are the decoder's positions that *write* the tokens. target: `word_of` has the word that each position
    writes; sound: the word that is spoken in each frame. Baseline: the best of an even pace through the sound, shifted
    by a fixed time, and a random frame.
    """
    queries = target.words
    written = target.word_of
    spoken = sound.word_of
    frames = sound.words.sum(1, keepdim=True)
    first = sound.words.int().argmax(1, keepdim=True)

    number = queries.cumsum(1) - 1
    # A token is at the middle of its share of the sound.
    pace = first + (number + 0.5) / queries.sum(1, keepdim=True).clamp_min(1) * frames
    shifts = STEP * torch.arange(-REACH, REACH + 1, device=spoken.device)
    shifted = pace.long()[:, None] + shifts[:, None]  # B R T
    inside = (shifted >= 0) & (shifted < spoken.shape[1])
    at_pace = at_keys(spoken, shifted.clamp(0, spoken.shape[1] - 1)) == written[:, None]
    even = sum_over_queries(queries, at_pace & inside)
    of_word = (spoken[:, None] == written[:, :, None]).sum(-1)
    chance = (of_word / frames.clamp_min(1) * queries).sum(1, keepdim=True)

    def hits(view: View) -> Tensor:
        return at_keys(spoken, view.attended) == written[:, None]

    return mean_over_queries("spoken-word", queries, torch.cat([even, chance], 1), hits)


@dataclass
class SoundBatch(PassageBatch):
    """A recording: the frames of its sound, and the tokens that are read and written. spoken: its number of words."""

    spoken: int

    @property
    def words(self) -> int:
        """How many words are spoken."""
        return self.spoken


@dataclass(frozen=True)
class RoleRecordings(RoleData):
    """Recordings that heads are tested on. noise: the control: white noise as loud as the sound in place of it, and random
    words in place of those of the transcript (`random_transcripts`)."""

    speech: Speech
    noise: bool = False

    def main_pass(self, subject: Subject, count: CountWords, seed: int = 0) -> ByHalf:
        """The tests of all kinds of attention, in one pass. seed: of the halves, and of the noise."""
        speech = self.speech
        utterances = random_transcripts(list(speech), seed) if self.noise else list(speech)
        recordings = fitting_recordings(subject, speech, utterances)
        # By the names of files: the same wherever their folder is.
        halves = halves_of([recording.utterance.audio.name for recording in recordings], seed)
        if not speech.has_word_times:
            subject.warnings.append(
                f"Cross heads were not tested: {speech.name} does not say when words start (columns word, start, end)."
            )
        tests = {kind: tests_on("speech", kind, {}) for kind in KINDS}
        generator = np.random.default_rng(seed) if self.noise else None

        def batches() -> Iterator[SoundBatch]:
            for recording, half in zip(recordings, halves, strict=True):
                yield sound_batch(subject, recording, half, generator)

        return observe(subject.model, subject.discovery, batches(), tests, count)

    def main_words(self, subject: Subject) -> int:
        """At most so many are read."""
        return self.speech.words

    def changed(self, seed: int) -> dict[str, RoleRecordings]:
        return {RANDOM_WORDS: replace(self, noise=True)}

    def sampled(self) -> RoleRecordings:
        """At most MOST_RECORDINGS recordings."""
        step = math.ceil(len(self.speech) / MOST_RECORDINGS)
        return RoleRecordings(self.speech.take(range(0, len(self.speech), step)))

    def few(self) -> RoleRecordings:
        return RoleRecordings(self.speech.head(1))

    def lines(self) -> list[str]:
        return [f"{self.speech.name}: {len(self.speech):,} recordings, {self.speech.words:,} words"]

    def facts(self) -> dict[str, Any]:
        return {
            "speech": self.speech.name,
            "fingerprint": self.speech.fingerprint,
            "confirmed_on": "the other half",
        }


def sound_batch(
    subject: Subject, recording: SpeechRecording, half: Half, noise: np.random.Generator | None
) -> SoundBatch:
    """A recording as the model reads it. noise: draws what is heard in place of the sound; None for the sound."""
    model = subject.model
    device = device_of(model)
    extractor = extractor_of(model)
    audio = measure_length(extractor, recording)
    # With the same power, so that loudness tells nothing.
    if noise is not None:
        loudness = float(np.sqrt(np.mean(audio**2)))
        audio = noise.normal(0, loudness, len(audio)).astype(np.float32)

    ids = [*recording.prompt]
    word_of = [-1] * len(ids)
    for number, tokens in enumerate(recording.words):
        ids += tokens
        word_of += [number] * len(tokens)
    token_ids = torch.tensor([ids], device=device)
    read_words = torch.tensor([word_of], device=device)
    written_words = moved(read_words, -1, -1)  # the last position writes the end
    mask = torch.ones_like(token_ids, dtype=torch.bool)
    read = Passage(token_ids, mask, read_words, causal=True)
    written = Passage(token_ids, mask, written_words)

    numbers = torch.arange(recording.frames, device=device)[None]
    # Each frame is a word of its own, so that tests of positions are the same as on text.
    sound = Passage(numbers, torch.ones_like(numbers, dtype=torch.bool), numbers)
    sides: dict[Kind, tuple[Passage, ...]] = {"encoder-self": (sound,), "decoder-self": (read,)}
    if recording.utterance.starts:
        starts = torch.tensor(recording.utterance.starts, device=device)
        # A frame belongs to the last word that has started; −1 before the first one.
        spoken = torch.searchsorted((starts / FRAME).round().long(), numbers, right=True) - 1
        sides["cross"] = (written, Passage(numbers, spoken >= 0, spoken))

    inputs = {
        "input_features": features_of(extractor, audio).to(device, model.dtype),
        "decoder_input_ids": token_ids,
    }
    return SoundBatch(half, inputs, sides, len(recording.words))


def random_transcripts(speech: Sequence[Utterance], seed: int) -> list[Utterance]:
    """Every word as a random word of the text, at the time of the word that it replaces."""
    draw = random.Random(seed)
    forms: list[str] = []
    for utterance in speech:
        forms += utterance.text.split()
    changed = []
    for utterance in speech:
        words = [draw.choice(forms) for _ in utterance.words or utterance.text.split()]
        changed.append(replace(utterance, words=tuple(words)))
    return changed
