"""The word errors of transcripts under several masks at once: the quality of a speech model.

The word error rate is the least number of words that must be replaced, removed or inserted to make the transcript what
was said, over the number of words that were said (Morris et al. 2004, equation 1). Both are normalised as by Whisper
(Radford et al. 2022, appendix C): case, punctuation, numbers, and for English spelling and contractions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.whisper.english_normalizer import (
    BasicTextNormalizer,
    EnglishTextNormalizer,
)

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.qualities import WORD_ERROR_RATE
from headwise.models.attention.discover import evaluating
from headwise.models.processes import failing_together, gather_batches
from headwise.models.tasks import Task
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.objective import on_device
from headwise_speech.recordings import Speech, Utterance
from headwise_speech.whisper import complete_settings, transcribed


def answer_recordings(task: Task, text: Batches) -> Answers:
    """The word errors of transcripts by greedy search, by recording, and the words that were said. Raises HeadwiseError
    for a text without words."""
    stats = counted_errors(task, text.text, transcripts(task, text))
    words = stats[:, 1]
    if not words.sum():
        raise HeadwiseError(
            f"Nothing is said in '{text.text.name}' but marks: an error rate needs words."
        )
    made = (
        f"word error rate in % of {len(words)} recordings with {int(words.sum())} words, bootstrap over recordings; "
        f"greedy search and Whisper's normaliser of transformers {transformers.__version__}"
    )
    return Answers({WORD_ERROR_RATE: text.made_on(made)}, stats[:, None], words)


def transcripts(task: Task, text: Batches) -> dict[int, str]:
    """What a model writes of each recording that is read, by its row, from all processes: greedy search."""
    hf: Any = task.hf
    parts: list[list[tuple[int, str]]] = []
    with failing_together(), evaluating(hf), torch.no_grad():
        for batch in text:
            rows = batch["rows"].tolist()
            languages = [text.text.utterances[row].language for row in rows]
            heard = on_device(hf, {"input_features": batch["input_features"]})
            written = transcribed(hf, task.tokenizer, languages, **heard)
            lines = task.tokenizer.batch_decode(written, skip_special_tokens=True)
            parts.append([(row, line.strip()) for row, line in zip(rows, lines, strict=True)])
        parts = gather_batches(parts)
    return {row: line for each in parts for row, line in each}


def counted_errors(task: Task, text: Speech, written: dict[int, str]) -> np.ndarray:
    """The word errors of transcripts, by row, and how many words were said: recordings x 2, in the order of the text."""
    counts = []
    # Processes finish in any order.
    for row in sorted(written):
        utterance = text.utterances[row]
        normalise = normaliser(task, utterance)
        said = normalise(utterance.text).split()
        counts.append((word_errors(said, normalise(written[row]).split()), len(said)))
    return np.array(counts, dtype=np.float64)


def normaliser(task: Task, utterance: Utterance) -> Callable[[str], str]:
    """What makes transcripts in the language of a recording alike that differ in writing only."""
    # OpenAI's evaluation takes the English normaliser for English alone.
    multilingual = complete_settings(task.hf, task.tokenizer, [utterance.language]).is_multilingual
    made: Callable[[str], str]
    if multilingual and utterance.language != "en":
        made = BasicTextNormalizer()
    else:
        spellings = getattr(task.tokenizer, "english_spelling_normalizer", None)
        made = EnglishTextNormalizer(spellings or {})
    return made


def word_errors(said: Sequence[str], written: Sequence[str]) -> int:
    """The least number of words that are replaced, removed or inserted to make one text of the other (Levenshtein)."""
    places = np.arange(len(written) + 1)
    others = np.array(written, dtype=object)
    row = places
    for number, word in enumerate(said, start=1):
        same_or_replaced = row[:-1] + (others != word)
        removed = row[1:] + 1
        best = np.concatenate([[number], np.minimum(same_or_replaced, removed)])
        # Words inserted one after the other: the least of all cells to the left, and a step for each.
        row = np.minimum.accumulate(best - places) + places
    return int(row[-1])
