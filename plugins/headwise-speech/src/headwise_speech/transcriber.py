"""The transcripts of a speech model, with some of its heads turned down.

The encoder always reads a whole window (30 seconds for Whisper), which takes most of the time. So its states are kept: a
change of decoder heads alone does not encode again. Transcripts are written by greedy search, as in `headwise evaluate`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.faces.lab.predictor import (
    NO_CHANGE,
    Change,
    Prediction,
    Predictor,
    Prompt,
    one_thread,
)
from headwise.models.attention.kernel import AttentionCall
from headwise.models.model import Model
from headwise_speech.heard import Heard, Recording, recordings_by_name, usual_offsets
from headwise_speech.recordings import Speech, Utterance
from headwise_speech.whisper import prompt_of, transcribed, transcript_tokens
from headwise_speech.word_errors import normaliser, word_errors

ENCODINGS = 8  # of recordings under gates of the encoder, that are kept
MOST_LETTERS = 80  # letters of a name in a message


@dataclass(frozen=True)
class HeardPrompt(Prompt):
    """inputs: of the encoder 1 F T, of the decoder 1 T. heard: the encoder's states, which `read` gives in place of the
    recording."""

    heard: Heard = field(kw_only=True)

    @property
    def read(self) -> dict[str, Any]:
        target = self.inputs["decoder_input_ids"]
        return {"encoder_outputs": (self.heard.states,), "decoder_input_ids": target}

    @property
    def source_positions(self) -> int:
        return self.heard.recording.positions


def heard_in(prompt: Prompt) -> Heard:
    """What the encoder made of the recording of a prompt."""
    assert isinstance(prompt, HeardPrompt)
    return prompt.heard


class Transcriber(Predictor):
    """A speech model and the recordings that it may be asked about, by name."""

    patience: ClassVar[float] = 10.0
    cached_sentences: ClassVar[int] = 16

    def __init__(self, model: Model, speech: Speech) -> None:
        super().__init__(model)
        self.table = speech.name
        self.utterances = recordings_by_name(speech)
        self.said = {name: utterance.text for name, utterance in self.utterances.items()}
        self.encodings: OrderedDict[tuple[Any, ...], Heard] = OrderedDict()

    def utterance(self, name: str) -> Utterance:
        """Raises HeadwiseError where there is no recording of that name."""
        if name not in self.utterances:
            shown = name if len(name) <= MOST_LETTERS else f"{name[:MOST_LETTERS]}…"
            raise HeadwiseError(
                f"'{shown}' is no recording of {self.table}, and a speech model reads no text: pick one of its "
                f"{len(self.utterances)} recordings, such as {next(iter(self.utterances))}."
            )
        return self.utterances[name]

    def recording(self, name: str) -> Recording:
        """Raises HeadwiseError where there is none of that name, or the model cannot hear it."""
        return Recording.read(self.hf, self.utterance(name))

    def predict_unchanged(
        self, text: str, beam: int, position: int | None
    ) -> tuple[Prompt, Prediction]:
        """text: the name of a recording."""
        recording = self.recording(text)
        means: dict[Site, Tensor] = {}
        heard = self.encode(recording, NO_CHANGE, means)
        prompt: Prompt = HeardPrompt(
            {"input_features": recording.features}, recording.sentence(), heard=heard
        )

        with self.changed(NO_CHANGE):
            prompt = self.with_target(prompt, self.translate(prompt, beam))

        # The means of `ablation.mean`: over the frames of the sound, and over the positions that predict.
        return self.answered(prompt, means, first=self.given(prompt) - 1)

    def encode(
        self, recording: Recording, change: Change, means: dict[Site, Tensor] | None = None
    ) -> Heard:
        """Run the encoder alone. means: gets every head's mean output over the frames of the sound."""
        maps: dict[Site, Tensor] = {}
        offsets: dict[str, tuple[int, float]] = {}

        def keep(call: AttentionCall) -> None:
            assert call.weights is not None
            weights = call.weights[0].float()
            maps[call.site] = recording.pooled(weights, call.site.kind).cpu()
            for head, offset in enumerate(usual_offsets(weights, recording.frames)):
                offsets[str(Head(*call.site, head))] = offset
            if means is not None:
                means[call.site] = call.output[0, : recording.frames].float().mean(0)

        with self.changed(change, keep):
            states = self.hf.get_encoder()(recording.features).last_hidden_state
        return Heard(recording, states, maps, offsets)

    def encoded(self, prompt: Prompt, change: Change) -> Prompt:
        assert isinstance(prompt, HeardPrompt)
        of_encoder = {
            head: gate for head, gate in change.gates.items() if head.kind == "encoder-self"
        }
        if not of_encoder:
            return prompt
        recording = prompt.heard.recording
        key = (recording.utterance, change.ablation, frozenset(of_encoder.items()))
        if key not in self.encodings:
            self.encodings[key] = self.encode(recording, replace(change, gates=of_encoder))
            if len(self.encodings) > ENCODINGS:
                self.encodings.popitem(last=False)
        # What is used stays longest.
        self.encodings.move_to_end(key)
        return replace(prompt, heard=self.encodings[key])

    def translate(self, prompt: Prompt, beam: int) -> list[int]:
        """The ids of a transcript: those that begin it, those that the model writes, and the end where it wrote one."""
        encoded = heard_in(prompt)
        utterance = encoded.recording.utterance
        longest = int(self.hf.config.max_target_positions)
        first = prompt_of(self.hf, self.tokenizer, utterance)  # refuses what `generate` cannot do
        heard = BaseModelOutput(encoded.states)
        with one_thread():
            written = transcribed(
                self.hf, self.tokenizer, [utterance.language], encoder_outputs=heard
            )
        ids = [*first, *written[0].tolist()]
        # `generate` cuts the end token off; a transcript that fills the decoder has none.
        if len(ids) < longest:
            ids.append(transcript_tokens(self.hf, self.tokenizer, utterance)[-1])
        return ids

    def with_target(self, prompt: Prompt, ids: Sequence[int]) -> Prompt:
        """The tokens that begin a transcript are given, so they are not asked for."""
        prompt = super().with_target(prompt, ids)
        given = self.given(prompt) - 1
        return replace(prompt, predicted_tokens=prompt.predicted_tokens[given:])

    def given(self, prompt: Prompt) -> int:
        """How many tokens begin a transcript."""
        return len(prompt_of(self.hf, self.tokenizer, heard_in(prompt).recording.utterance))

    def maps_of_encoder(self, prompt: Prompt) -> Mapping[Site, Tensor]:
        return heard_in(prompt).maps

    def sound(self, name: str) -> dict[str, Any]:
        recording = self.recording(name)
        return {"wav": recording.wav(), **recording.to_json()}

    def map_of(self, prompt: Prompt, call: AttentionCall) -> Tensor:
        """A map of the decoder. For cross-attention only the rows that write what is said."""
        weights = super().map_of(prompt, call)
        if call.site.kind != "cross":
            return weights
        return heard_in(prompt).recording.pooled(weights[:, self.given(prompt) - 1 :], "cross")

    def sound_json(self, prompt: Prompt, before: str, after: str) -> dict[str, Any]:
        """The recording for the page: see `Recording.to_json`. given: how many tokens begin the transcript. errors: the
        word errors of two transcripts, and how many words were said."""
        heard = heard_in(prompt)
        normalise = normaliser(self.model.task, heard.recording.utterance)
        said = normalise(heard.recording.utterance.text).split()
        errors: Mapping[str, int] = {
            "before": word_errors(said, normalise(before).split()),
            "after": word_errors(said, normalise(after).split()),
            "words": len(said),
        }
        return {
            **heard.recording.to_json(),
            "given": self.given(prompt),
            "errors": errors,
            "offsets": dict(heard.offsets),
        }
