"""Transcription: encoder-decoders that hear recordings and write what is said (Whisper). Quality is the word error rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.heads import HeadMap
from headwise.core.qualities import WORD_ERROR_RATE
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.task import Need, Task
from headwise.models.token_rows import IGNORED
from headwise_speech.alignment import AlignmentRecordings
from headwise_speech.recordings import WORD_COLUMNS, Speech, Utterance, audio_seconds, samples
from headwise_speech.sound import RoleRecordings
from headwise_speech.whisper import FRAME, extractor_of, features_of, prompt_of, transcript_tokens
from headwise_speech.word_errors import answer_recordings

POSITIONS = 4096  # states of the encoder in a batch, at most; a recording alone may have more


class Transcription(Task):
    """A model that writes what is said."""

    output = "transcription"
    noun = "a speech model"
    needs = "recordings: a table of audio and text, or of audio, word, start and end (--audio FILE, headwise_speech.Speech)"
    text_class = Speech
    provides: ClassVar[frozenset[Need]] = frozenset({"loss"})
    quality = WORD_ERROR_RATE
    trains = False
    samples_text = True
    answer_forwards = 5.0  # a step of the decoder for every token that is written
    reads_audio = True

    @classmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        return bool(hf.config.is_encoder_decoder) and hf.main_input_name == "input_features"

    @property
    def longest(self) -> int:
        """The states of the encoder, which are equally many for every recording."""
        return int(self.hf.config.max_source_positions)

    @classmethod
    def read(cls, spec: Any, cache: Path | None = None) -> Speech:
        """A table of recordings."""
        names = [spec] if isinstance(spec, str | Path) else list(spec)
        if len(names) != 1:
            raise HeadwiseError(f"Speech is one table, but {len(names)} files were given: {names}.")
        return Speech.read(names[0])

    def encoded(self, text: Speech) -> EncodedSpeech:
        return EncodedSpeech(self, text)

    def own_answers(self, batches: Batches) -> Answers:
        return answer_recordings(self, batches)

    def save_processor(self, folder: Path) -> None:
        extractor_of(self.hf).save_pretrained(folder)

    def role_data(self, text: Any, confirm: Any, pairs: Any, training: Any) -> RoleRecordings:
        if isinstance(text, str | PathLike):
            text = Speech.read(text)
        if not isinstance(text, Speech):
            raise HeadwiseError(
                f"{self.model_name} is {self.noun}: its heads are tested on speech (--audio FILE)."
            )
        if confirm is not None or pairs is not None or training is not None:
            raise HeadwiseError(
                "On speech heads are tested without other text: leave out the treebank to confirm roles on, the "
                "sentence pairs and the training text."
            )
        return RoleRecordings(text)

    def alignment_data(self, text: Any) -> AlignmentRecordings:
        if not isinstance(text, Speech):
            raise HeadwiseError(
                f"{self.model_name} is {self.noun}: alignment heads are found on speech with word times (--audio)."
            )
        if not text.has_word_times:
            raise HeadwiseError(
                f"{text.name} does not say when words start: alignment heads need a table with a row for each word, with "
                f"{', '.join(WORD_COLUMNS)}."
            )
        return AlignmentRecordings(text.name, text)

    def predictor_class(self) -> type:
        from headwise_speech.transcriber import Transcriber

        return Transcriber

    def no_loss(self) -> HeadwiseError:
        return HeadwiseError(
            f"{self.model_name} is a {type(self.hf).__name__}, and headwise trains no speech models: remove heads with "
            "hw.Greedy (method 'greedy') without train, or train gates in a loop of your own (GatedLoop)."
        )


class Transcript(NamedTuple):
    """A recording that is read. row: in the text. prompt: the tokens that begin the transcript. tokens: those of what is
    said, and the one that ends it."""

    row: int
    utterance: Utterance
    prompt: list[int]
    tokens: list[int]


class EncodedSpeech:
    """Recordings as a speech model is scored on them. Audio is read for every batch, and not kept.

    Left out and counted (`left_out`) are recordings that are longer than the model hears, and transcripts that are
    longer than it writes.
    """

    noun = "recordings"
    unit = "frames"  # that `longest` counts

    def __init__(self, task: Task, text: Speech) -> None:
        hf: Any = task.hf
        self.hf = hf
        self.extractor = extractor_of(hf)
        heard = float(self.extractor.chunk_length)
        written = int(hf.config.max_target_positions)
        too_long = f"longer than {heard:g} seconds"
        too_many = f"longer than {written} tokens"
        self.left_out = {too_long: 0, too_many: 0}
        self.transcripts: list[Transcript] = []
        for row, utterance in enumerate(text):
            prompt = prompt_of(hf, task.tokenizer, utterance)
            tokens = transcript_tokens(hf, task.tokenizer, utterance)
            if audio_seconds(utterance.audio) > heard:
                self.left_out[too_long] += 1
            # The end is predicted, and never read.
            elif len(prompt) + len(tokens) - 1 > written:
                self.left_out[too_many] += 1
            else:
                self.transcripts.append(Transcript(row, utterance, prompt, tokens))
        if not self.transcripts:
            why = ", ".join(f"{count} are {reason}" for reason, count in self.left_out.items())
            raise HeadwiseError(f"No recording of '{text.name}' can be used: {why}.")
        # Transcripts of like length share a batch, so that little is padded.
        self.transcripts.sort(key=lambda transcript: len(transcript.tokens))
        self.longest = np.full(len(self.transcripts), task.longest)

    def __len__(self) -> int:
        return len(self.transcripts)

    @property
    def rows(self) -> np.ndarray:
        """The recordings that are read, by their places in the text."""
        return np.array([transcript.row for transcript in self.transcripts])

    def batches(self, hide: bool = True) -> Iterator[dict[str, Any]]:
        """The recordings once, the shortest transcripts first; nothing is ever hidden.

        input_features B F T, decoder_input_ids and labels B T (none for the prompt), places B S: all frames, also the
        silent ones behind a recording, which the model reads; counted B S: those of the recording. rows B.
        """
        size = max(1, POSITIONS // int(self.longest[0]))
        for start in range(0, len(self), size):
            yield self.batch(self.transcripts[start : start + size])

    def batch(self, group: Sequence[Transcript]) -> dict[str, Tensor]:
        rate = self.extractor.sampling_rate
        audio = [samples(each.utterance.audio, rate) for each in group]
        lengths = torch.tensor([math.ceil(len(each) / (FRAME * rate)) for each in audio])
        longest = max(len(each.prompt) + len(each.tokens) - 1 for each in group)
        end = group[0].tokens[-1]
        read = torch.full((len(group), longest), end)
        labels = torch.full((len(group), longest), IGNORED)
        for number, each in enumerate(group):
            ids = torch.tensor([*each.prompt, *each.tokens])
            read[number, : len(ids) - 1] = ids[:-1]
            # A token is predicted where the one before it is read; the prompt is given, not scored.
            labels[number, len(each.prompt) - 1 : len(ids) - 1] = ids[len(each.prompt) :]
        frames = int(self.longest[0])
        return {
            "input_features": features_of(self.extractor, audio).to(self.hf.dtype),
            "decoder_input_ids": read,
            "labels": labels,
            "places": torch.ones(len(group), frames, dtype=torch.bool),
            "counted": torch.arange(frames) < lengths[:, None],
            "rows": torch.tensor([each.row for each in group]),
        }
