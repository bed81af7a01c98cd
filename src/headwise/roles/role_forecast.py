"""What `roles` will take: the words that all tests read, and the seconds of a word, from a few that are tested."""

from __future__ import annotations

from headwise.data.text import ParallelText, Text
from headwise.data.treebank import Treebank
from headwise.importance.work import WITHOUT_HEADS
from headwise.models.forecast import (
    Forecast,
    best,
    model_line,
    text_line,
    text_seconds,
)
from headwise.models.model import Model
from headwise.models.tasks import AnyText
from headwise.models.tasks.task import sample_text
from headwise.roles import lost_words, role_sets
from headwise.roles.alignment import LinkedText
from headwise.roles.observation import subject_of, uncounted
from headwise.roles.role_data import words_of_probes
from headwise.roles.role_tests import role_data, total_words

USUAL_TRIALS = 70  # of sets of heads: nobody knows beforehand which roles there are


def role_forecast(
    model: Model,
    text: Treebank | AnyText | None,
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
    data = role_data(model, text, confirm, pairs)
    subject = subject_of(model)
    few = data.few()
    seconds = best(lambda: few.main_pass(subject, uncounted), model.hf.device.type)
    total = total_words(model, data, untrained)
    seconds *= total / few.main_words(subject)
    reads = [model_line(model), *data.lines()]
    parts = [f"tests that read {total:,} words"]
    if probed := words_of_probes(subject):
        reads.append(f"generated texts: about {probed:,} words")

    silent = {
        "sets of heads": (sets, role_sets.SENTENCES, USUAL_TRIALS),
        "lost words": (words, lost_words.SENTENCES, model.heads.total),
    }
    for name, (of_trials, sentences, trials) in silent.items():
        if of_trials is not None:
            read_again = model.task.completed(sample_text(of_trials, sentences), outline=True)
            batches = model.task.batches(read_again)
            seconds += trials * WITHOUT_HEADS * text_seconds(model, batches)
            reads.append(text_line(batches))
            parts.append(name)
    return Forecast(reads, parts, seconds)
