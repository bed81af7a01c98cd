"""When spoken words start, as three readers say of the same attention: headwise, transformers and CTranslate2."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import pipeline

from headwise.core.heads import Head
from headwise.core.progress import silent
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.model import Model
from headwise.roles.observation import Subject
from headwise_speech.alignment import (
    encode_recordings,
    fitting_recordings,
    recording_batch,
    tokens_by_word,
)
from headwise_speech.recordings import Speech, Utterance, samples
from headwise_speech.whisper import FRAME, extractor_of, prompt_of


def starts_in_transformers(model: Model, speech: Iterable[Utterance]) -> list[list[float]]:
    """When the words of each utterance start, as transformers' pipeline says, which is made to write the true words."""
    names = ("<|endoftext|>", "<|notimestamps|>")
    end, no_times = model.tokenizer.convert_tokens_to_ids(list(names))
    recognizer = pipeline(
        "automatic-speech-recognition",
        model=model.hf,
        tokenizer=model.tokenizer,
        feature_extractor=extractor_of(model.hf),
    )
    starts = []
    for utterance in speech:
        text = "".join(f" {word}" for word in utterance.words)
        ids = model.tokenizer(text, add_special_tokens=False).input_ids
        audio = samples(utterance.audio, 16000)
        first_time = no_times + 1
        last_time = first_time + round(len(audio) / 16000 / FRAME)
        script = [first_time, *ids, last_time, end]

        # The prompt has three tokens: start, language and task.
        def scripted(written: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            forced = torch.full_like(scores, -torch.inf)
            forced[:, script[written.shape[1] - 3]] = 0  # noqa: B023
            return forced

        options = {
            "language": "en",
            "task": "transcribe",
            "logits_processor": [scripted],
            "max_new_tokens": len(script),
        }
        said = recognizer(
            {"raw": audio, "sampling_rate": 16000},
            return_timestamps="word",
            generate_kwargs=options,
        )
        assert [chunk["text"].strip() for chunk in said["chunks"]] == list(utterance.words)
        starts.append([chunk["timestamp"][0] for chunk in said["chunks"]])
    return starts


def ctranslate2_engine(folder: Path, heads: Sequence[Head]) -> Any:
    """A Whisper that was exported to a folder, with other alignment heads."""
    import ctranslate2

    config = json.loads((folder / "config.json").read_text())
    config["alignment_heads"] = [[head.layer, head.head] for head in heads]
    (folder / "config.json").write_text(json.dumps(config))
    return ctranslate2.models.Whisper(str(folder), compute_type="float32", intra_threads=1)


def heard_by_ctranslate2(
    engine: Any, model: Model, speech: Iterable[Utterance]
) -> list[np.ndarray]:
    """What CTranslate2's encoder makes of each utterance, 1 S D."""
    import ctranslate2

    extractor = extractor_of(model.hf)
    heard = []
    for utterance in speech:
        audio = samples(utterance.audio, 16000)
        read = extractor(audio, sampling_rate=16000, return_tensors="np").input_features
        view = ctranslate2.StorageView.from_array(np.ascontiguousarray(read))
        heard.append(np.array(engine.encode(view)))
    return heard


def starts_in_ctranslate2(
    engine: Any, model: Model, speech: Iterable[Utterance], heard: Iterable[np.ndarray]
) -> list[list[float]]:
    """When the words of each utterance start, as CTranslate2's `align` says, used as faster-whisper does. heard: what its
    encoder makes of them."""
    import ctranslate2

    starts = []
    for utterance, states in zip(speech, heard, strict=True):
        prompt = prompt_of(model.hf, model.tokenizer, utterance)
        words = tokens_by_word(model.tokenizer, utterance)
        tokens = [token for word in words for token in word]
        frames = len(samples(utterance.audio, 16000)) // extractor_of(model.hf).hop_length
        aligned = engine.align(
            ctranslate2.StorageView.from_array(states),
            prompt[:-1],  # it adds <|notimestamps|> itself
            [tokens],
            frames,
            median_filter_width=model.hf.config.median_filter_width,
        )
        first_frames: dict[int, int] = {}
        for token, frame in aligned[0].alignments:
            first_frames.setdefault(token, frame)
        of_words = []
        token = 0
        for word in words:
            of_words.append(first_frames[token] * FRAME)
            token += len(word)
        starts.append(of_words)
    return starts


def starts_in_headwise(
    model: Model, speech: Sequence[Utterance], heads: Sequence[Head]
) -> list[list[float]]:
    """When the words of each utterance start, as `align` reads them from a set of heads."""
    subject = Subject(model.hf, model.tokenizer, model.discovery)
    recordings = fitting_recordings(subject, Speech(tuple(speech), "speech"), speech)
    encode_recordings(model.hf, recordings, silent)
    starts = []
    for recording in recordings:
        batch = recording_batch(model.hf, recording)
        maps: dict[int, torch.Tensor] = {}

        def hook(call: AttentionCall) -> None:
            if call.site.kind == "cross":
                maps[call.site.layer] = batch.maps(call)  # noqa: B023

        with (
            evaluating(model.hf),
            torch.no_grad(),
            capture(model.hf, model.discovery, hook=hook, weights=True),
        ):
            model.hf(**batch.inputs)
        mean = torch.stack([maps[head.layer][:, head.head] for head in heads], 1).mean(1)
        starts.append(batch.answers(mean[:, None])[0, 0].tolist())
    return starts
