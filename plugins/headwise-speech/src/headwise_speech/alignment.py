"""Recordings as alignment heads of Whisper are ranked on them: the moments at which words start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.whisper.generation_whisper import _median_filter

from headwise.core.errors import HeadwiseError
from headwise.core.progress import OnProgress, parts, silent
from headwise.data.subwords import Coverage
from headwise.models.attention.discover import evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.offload import device_of
from headwise.models.forecast import best
from headwise.models.model import Model
from headwise.roles.alignment_heads import EXPECTED_ROUNDS, AlignmentData, readings
from headwise.roles.halves import Half, halves_of
from headwise.roles.head_sets import AlignmentBatch, AlignmentBatches
from headwise.roles.observation import Subject
from headwise_speech.recordings import Speech, Utterance, audio_seconds, samples
from headwise_speech.whisper import FRAME, extractor_of, features_of, prompt_of

STATES = 2**30  # bytes of encoder states that are kept: 350 recordings of Whisper base
ENCODING_COST = 6.5  # readings of a recording that encoding it takes as long as


@dataclass(frozen=True)
class AlignmentRecordings(AlignmentData):
    """Recordings with the times of their words.

    The states of the encoder are kept (S × D numbers a recording, STATES bytes in all) until heads are chosen; the encoder
    runs on further recordings whenever they are read.
    """

    speech: Speech

    def batches(
        self, subject: Subject, progress: OnProgress
    ) -> tuple[AlignmentBatches, Sequence[Half], OnProgress]:
        recordings = fitting_recordings(subject, self.speech, list(self.speech))
        # By the names of files: the same wherever their folder is.
        halves = halves_of([recording.utterance.audio.name for recording in recordings])
        weights = {
            "encoding": ENCODING_COST * len(halves),
            "reading": readings(halves, EXPECTED_ROUNDS),
        }
        progress_of = parts(progress, weights)
        encode_recordings(subject.model, recordings, progress_of["encoding"])

        def batches(half: Half) -> Iterator[AlignmentBatch]:
            for recording, its_half in zip(recordings, halves, strict=True):
                if its_half == half:
                    yield recording_batch(subject.model, recording)

        return batches, halves, progress_of["reading"]

    def forecast(self, model: Model, times: float) -> tuple[str, float]:
        subject = Subject(model.hf, model.tokenizer, model.discovery)
        recordings = fitting_recordings(subject, self.speech, list(self.speech))
        encoding = best(
            lambda: encode_recordings(model.hf, recordings[:1], silent), model.hf.device.type
        )
        line = f"{self.name}: {len(recordings)} of {len(self.speech)} recordings"
        return line, len(recordings) * encoding * (1 + times / ENCODING_COST)


@dataclass
class SpeechRecording:
    """An utterance in tokens, and what the encoder makes of its audio.

    prompt: the tokens that begin the transcription. words: the tokens of each word. states: those of the encoder,
    1 S D, kept for all heads and sets; None where they would take too much memory. seconds: the length of the audio;
    frames: its encoder states, the others are of the silence behind it.
    """

    utterance: Utterance
    prompt: list[int]
    words: list[list[int]]
    states: Tensor | None = None
    seconds: float = 0.0
    frames: int = 0


def fitting_recordings(
    subject: Subject, speech: Speech, utterances: Sequence[Utterance]
) -> list[SpeechRecording]:
    """Utterances of a table in tokens. Those with more tokens than the model writes, or fewer than two words, are left out
    and counted. Raises HeadwiseError where none is left."""
    model: Any = subject.model
    tokenizer = subject.tokenizer
    coverage = subject.coverage.setdefault("speech", Coverage())
    coverage.sentences += len(utterances)
    note = f"{speech.blank} recordings of {speech.name} have no text and were left out."
    if speech.blank and note not in subject.warnings:
        subject.warnings.append(note)
    fitting = []
    for utterance in utterances:
        prompt = prompt_of(model, tokenizer, utterance)
        words = tokens_by_word(tokenizer, utterance)
        if len(prompt) + sum(map(len, words)) > model.config.max_target_positions:
            coverage.too_long += 1
        elif len(words) < 2 or not all(words):
            coverage.unalignable += 1
        else:
            coverage.used += 1
            coverage.words += len(words)
            coverage.split_words += sum(len(word) > 1 for word in words)
            coverage.subwords += sum(map(len, words))
            fitting.append(SpeechRecording(utterance, prompt, words))
    if not fitting:
        raise HeadwiseError(
            f"None of the {len(utterances)} recordings of {speech.name} can be used: each needs at least two words, and no "
            "more than the model writes."
        )
    return fitting


def encode_recordings(
    model: Any, recordings: Sequence[SpeechRecording], progress: OnProgress
) -> None:
    """Measure every recording, run the encoder on the first ones, and keep its states up to STATES bytes."""
    extractor = extractor_of(model)
    size = model.config.max_source_positions * model.config.d_model * model.dtype.itemsize
    for number, recording in enumerate(recordings, start=1):
        measure_length(extractor, recording)
        # Further recordings are encoded whenever they are read.
        if number * size <= STATES:
            recording.states = encoder_states(model, recording.utterance)
        progress(number / len(recordings), f"{number} of {len(recordings)} recordings encoded")


def measure_length(extractor: Any, recording: SpeechRecording) -> np.ndarray:
    """Note the length of a recording; returns its samples. Raises HeadwiseError where it is longer than the model hears,
    or shorter than its words."""
    utterance = recording.utterance
    seconds = audio_seconds(utterance.audio)
    last = utterance.starts[-1] if utterance.starts else 0.0
    # before hours of sound are in memory
    if seconds > extractor.chunk_length or last > seconds:
        raise HeadwiseError(
            f"{utterance.audio} has {seconds:.2f} s, its last word starts at {last:.2f} s, and the model hears "
            f"{extractor.chunk_length} s: cut the audio, and correct the times."
        )
    audio = samples(utterance.audio, extractor.sampling_rate)
    recording.seconds = len(audio) / extractor.sampling_rate
    # The encoder's second convolution has stride 2.
    recording.frames = len(audio) // extractor.hop_length // 2
    return audio


def encoder_states(model: Any, utterance: Utterance) -> Tensor:
    """What the encoder makes of a recording: 1 S D."""
    extractor = extractor_of(model)
    features = features_of(extractor, samples(utterance.audio, extractor.sampling_rate))
    with evaluating(model), torch.no_grad():
        output = model.get_encoder()(features.to(device_of(model), model.dtype))
    states: Tensor = output.last_hidden_state
    return states


def tokens_by_word(tokenizer: Any, utterance: Utterance) -> list[list[int]]:
    """The tokens of each word, with the blank in front. Without word times, blanks separate words."""
    words = utterance.words or utterance.text.split()
    return [tokenizer(f" {word}", add_special_tokens=False).input_ids for word in words]


def recording_batch(model: PreTrainedModel, recording: SpeechRecording) -> AlignmentBatch:
    """One recording.

    alignment.seconds = mean over words of |start that is read − start of the reference|. Rule: tokens follow
    each other evenly from the beginning of the audio to its end.
    """
    device = device_of(model)
    states = recording.states
    if states is None:
        states = encoder_states(model, recording.utterance)
    tokens: list[int] = []
    first_tokens = []  # of each word
    for word in recording.words:
        first_tokens.append(len(tokens))
        tokens += word
    first = torch.tensor(first_tokens, device=device)
    expected = torch.tensor(recording.utterance.starts, device=device)
    inputs: dict[str, Any] = {
        "encoder_outputs": BaseModelOutput(last_hidden_state=states),
        "decoder_input_ids": torch.tensor([[*recording.prompt, *tokens]], device=device),
    }

    def answers(mixed: Tensor) -> Tensor:
        # Row 0 is the last position of the prompt, which predicts token 0.
        return (token_starts(-mixed[0])[:, first] * FRAME)[None]

    def counted(starts: Tensor) -> dict[str, Tensor]:
        wrong = (starts - expected).abs().sum(-1)
        return {
            "alignment.seconds": torch.stack([wrong, torch.full_like(wrong, len(expected))], -1)
        }

    width = int(model.config.median_filter_width)
    rule = first / len(tokens) * recording.seconds
    maps = partial(smoothed_maps, len(recording.prompt), recording.frames, width)
    return AlignmentBatch(inputs, maps, answers, rule[None, None], counted)


def smoothed_maps(prompt: int, frames: int, width: int, call: AttentionCall) -> Tensor:
    """Attention over time, normalised over tokens and smoothed: 1 H T+1 frames, of the positions that predict the T
    tokens behind the prompt, and of the one that predicts the end."""
    assert call.weights is not None
    weights = call.weights[:, :, prompt - 1 :, :frames].float()
    if not weights.shape[1]:
        return weights
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    # Where all tokens weigh a frame alike, the deviation is 0.
    smooth: Tensor = _median_filter(((weights - mean) / std).nan_to_num(0), width)
    return smooth


def token_starts(costs: Tensor) -> Tensor:
    """The frame at which each token begins on the cheapest monotonic path, C N, through costs C N M.

    Dynamic time warping as in transformers' `_dynamic_time_warping` (the same choice among equal paths), for C matrices
    at once, an anti-diagonal at a time.
    """
    count, rows, columns = costs.shape
    steps = rows + columns - 1
    inf = torch.inf

    # Cell (i, j) moves to (i, i + j), so that an anti-diagonal is a column.
    padded = torch.nn.functional.pad(costs.float(), (0, rows), value=inf)
    skewed = padded.flatten(1)[:, : rows * steps].view(count, rows, steps)

    # The costs of the cheapest paths one and two anti-diagonals back; row 0 is the border.
    before = costs.new_full((count, rows + 1), inf, dtype=torch.float32)
    before[:, 0] = 0
    last = torch.full_like(before, inf)
    moves = torch.empty((count, rows, steps), dtype=torch.uint8, device=costs.device)
    for step in range(steps):
        diagonal = before[:, :-1]
        up = last[:, :-1]
        left = last[:, 1:]
        is_diagonal = (diagonal < up) & (diagonal < left)
        is_up = (up < diagonal) & (up < left)
        moves[:, :, step] = torch.where(is_diagonal, 0, torch.where(is_up, 1, 2))
        cheapest = torch.where(is_diagonal, diagonal, torch.where(is_up, up, left))
        before = last
        last = torch.nn.functional.pad(cheapest + skewed[:, :, step], (1, 0), value=inf)

    # The paths backwards, from the last token in the last frame: the last frame written is the first of the token.
    starts = torch.zeros((count, rows), dtype=torch.long, device=costs.device)
    row = torch.full((count, 1), rows - 1, device=costs.device)
    column = torch.full((count, 1), columns - 1, device=costs.device)
    flat = moves.flatten(1)
    for _ in range(steps):
        starts.scatter_(1, row, column)
        move = flat.gather(1, row * steps + row + column)
        row = (row - (move != 2).long()).clamp_min(0)
        column = (column - (move != 1).long()).clamp_min(0)
    return starts
