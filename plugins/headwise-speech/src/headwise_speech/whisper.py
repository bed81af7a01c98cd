"""Whisper: its input of audio, the tokens of its transcripts, and how it writes them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, WhisperFeatureExtractor
from transformers.models.whisper.generation_whisper import TASK_IDS
from transformers.models.whisper.tokenization_whisper import LANGUAGES
from transformers.utils import logging

from headwise.core.errors import HeadwiseError
from headwise_speech.recordings import Utterance

FRAME = 0.02  # seconds between the states of Whisper's encoder


def extractor_of(hf: Any) -> WhisperFeatureExtractor:
    """What makes the encoder's input of audio."""
    return WhisperFeatureExtractor(
        feature_size=hf.config.num_mel_bins,
        chunk_length=round(hf.config.max_source_positions * FRAME),
    )


def features_of(extractor: WhisperFeatureExtractor, audio: Any) -> Tensor:
    """What the encoder reads of the samples of a recording, or of several: B F T."""
    rate = extractor.sampling_rate
    features: Tensor = extractor(audio, sampling_rate=rate, return_tensors="pt").input_features
    return features


def prompt_of(hf: Any, tokenizer: Any, utterance: Utterance) -> list[int]:
    """The tokens that begin a transcript without time stamps."""
    names = ["<|startoftranscript|>", "<|notimestamps|>"]
    multilingual = complete_settings(hf, tokenizer, [utterance.language]).is_multilingual
    # An English-only Whisper was trained without both.
    if multilingual and utterance.language:
        names[1:1] = [f"<|{utterance.language}|>", "<|transcribe|>"]
    elif multilingual:
        raise HeadwiseError(
            f"This Whisper knows several languages: give that of {utterance.audio} in a column `language`."
        )
    vocabulary = tokenizer.get_vocab()
    for name in names:
        if name not in vocabulary:
            is_language = name == f"<|{utterance.language}|>"
            remedy = ": write the code of a language that it knows, such as en" * is_language
            raise HeadwiseError(
                f"{name}, which {utterance.audio} needs, is no token of this model{remedy}."
            )
    return [vocabulary[name] for name in names]


def transcribed(hf: Any, tokenizer: Any, languages: Sequence[str], **heard: Any) -> Tensor:
    """The ids that Whisper writes of B recordings by greedy search, without time stamps: B T.

    languages: a code of each. heard: `input_features` B F T, or `encoder_outputs`. Raises HeadwiseError for settings in
    generation_config.json that transformers cannot use.
    """
    options: dict[str, Any] = {}
    settings = complete_settings(hf, tokenizer, languages)
    if settings.is_multilingual:
        options = {"language": list(languages), "task": "transcribe"}
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # transformers warns of settings and masks that its own Whisper lacks
    try:
        # The model's own settings may ask for beams or sampling.
        written: Tensor = hf.generate(
            generation_config=settings,
            num_beams=1,
            do_sample=False,
            return_timestamps=False,
            max_length=hf.config.max_target_positions,
            **heard,
            **options,
        )
        return written
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise HeadwiseError(
            f"transformers cannot transcribe by this model's generation_config.json ({problem:.200}): take that file "
            "from the checkpoint that the model was trained from."
        ) from error
    finally:
        logging.set_verbosity(verbosity)


def complete_settings(hf: Any, tokenizer: Any, languages: Sequence[str]) -> GenerationConfig:
    """The settings of generation. Those that old fine-tuned checkpoints lack follow from the vocabulary, and from whether
    recordings name their language."""
    # A copy: the model keeps its own settings.
    settings = copy.deepcopy(hf.generation_config)
    vocabulary = tokenizer.get_vocab()
    language_names = [f"<|{code}|>" for code in LANGUAGES]
    usual = {
        "is_multilingual": any(languages),
        "lang_to_id": {name: vocabulary[name] for name in language_names if name in vocabulary},
        "task_to_id": {task: vocabulary.get(f"<|{task}|>") for task in TASK_IDS},
        "no_timestamps_token_id": vocabulary.get("<|notimestamps|>"),
        "decoder_start_token_id": vocabulary.get("<|startoftranscript|>"),
    }
    for name, value in usual.items():
        if getattr(settings, name, None) is None and value is not None:
            setattr(settings, name, value)
    return settings


def transcript_tokens(hf: Any, tokenizer: Any, utterance: Utterance) -> list[int]:
    """The tokens of what is said, with the blank in front that Whisper writes, and the token that ends it."""
    end = hf.generation_config.eos_token_id
    last = end[0] if isinstance(end, list) and end else end
    # `True` is an `int` for isinstance.
    if type(last) is not int:
        raise HeadwiseError(
            f"eos_token_id in generation_config.json is {end!r:.60}, which ends no transcript: mend that file."
        )
    return [*tokenizer(f" {utterance.text}", add_special_tokens=False).input_ids, last]
