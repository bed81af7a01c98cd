"""What `roles` will take: the words that all tests read, and the seconds of a word, from a few that are tested."""

from __future__ import annotations

from itertools import islice

from headwise.data.speech import Speech
from headwise.data.text import ParallelText, Text
from headwise.data.treebank import Treebank
from headwise.forecast import Forecast, best, model_line, text_line, text_seconds
from headwise.importance.untrained import sample_text
from headwise.model import Model
from headwise.roles import lost_words, role_sets
from headwise.roles.alignment import LinkedText
from headwise.roles.observation import on_treebank, uncounted, words_of_treebank
from headwise.roles.role_tests import RoleTexts, subject_of, total_words
from headwise.roles.sound import on_speech, words_of_speech
from headwise.tasks import AnyText

TIMED_TREES = 8  # sentences that are tested to measure
USUAL_TRIALS = 70  # of sets of heads: nobody knows beforehand which roles there are


def role_forecast(
    model: Model,
    text: Treebank | Speech,
    *,
    confirm: Treebank | None = None,
    pairs: ParallelText | Text | LinkedText | None = None,
    untrained: int = 0,
    sets: AnyText | None = None,
    words: AnyText | None = None,
) -> Forecast:
    """What `roles` will take, `role_sets` on the text `sets` and `lost_words` on the text `words`; takes a few seconds
    itself. Raises HeadwiseError for text that cannot be used."""
    model.task.check_tokenizer()
    texts = RoleTexts.of(model, text, confirm, pairs, None)
    subject = subject_of(model)
    device = model.hf.device.type
    reads = [model_line(model)]
    if isinstance(text, Speech):
        first = Speech(text.utterances[:1], text.name)
        timed_words = words_of_speech(first)
        seconds = best(lambda: on_speech(subject, first, uncounted), device)
        reads.append(f"{text.name}: {len(text):,} recordings, {words_of_speech(text):,} words")
    else:
        few = list(islice(text, TIMED_TREES))
        timed_words = words_of_treebank(subject, few, few)
        seconds = best(lambda: on_treebank(subject, few, few, None, uncounted), device)
        for treebank in (text, confirm):
            if treebank is not None:
                read = sum(len(sentence.words) for sentence in treebank)
                reads.append(f"{treebank.name}: {len(treebank):,} sentences, {read:,} words")
    if texts.pairs is not None:
        reads.append(f"{len(texts.pairs):,} sentence pairs")
    total = total_words(model, texts, untrained)
    seconds *= total / timed_words
    parts = [f"tests that read {total:,} words"]

    silent = {
        "sets of heads": (sets, role_sets.SENTENCES, USUAL_TRIALS),
        "lost words": (words, lost_words.SENTENCES, model.heads.total),
    }
    for name, (of_trials, sentences, trials) in silent.items():
        if of_trials is not None:
            read_again = model.task.completed(sample_text(of_trials, sentences), outline=True)
            batches = model.task.batches(read_again)
            seconds += trials / 2 * text_seconds(model, batches)
            reads.append(text_line(batches))
            parts.append(name)
    return Forecast(reads, parts, seconds)
