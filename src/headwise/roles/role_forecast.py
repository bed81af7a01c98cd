"""What `roles` will take: the words that all tests read, and the seconds of a word, from a few sentences that are
tested."""

from __future__ import annotations

from itertools import islice

from headwise.data.speech import Speech
from headwise.data.subwords import Coverage, align_subwords
from headwise.data.text import ParallelText, Text
from headwise.data.treebank import Treebank
from headwise.devices import peak_memory
from headwise.forecast import (
    Amount,
    Forecast,
    Part,
    best,
    forward_seconds,
    memory,
    model_line,
    where,
)
from headwise.importance.untrained import sample_text
from headwise.model import Model
from headwise.roles import lost_words, role_sets
from headwise.roles.alignment import LinkedText
from headwise.roles.examples import candidates_of
from headwise.roles.observation import (
    Subject,
    on_treebank,
    uncounted,
    words_of_probes,
    words_of_treebank,
)
from headwise.roles.role_tests import (
    RoleTexts,
    subject_of,
    words_of_changes,
    words_read,
)
from headwise.roles.sound import on_speech, words_of_speech
from headwise.tasks import AnyText

TIMED_TREES = 8  # sentences that are tested to measure
USUAL_TRIALS = 70  # of sets of heads: nobody knows beforehand which roles there are
DECODING = 1.5  # words of an encoder that a word of a sentence pair takes as long as


def role_forecast(
    model: Model,
    text: Treebank | Speech,
    *,
    confirm: Treebank | None = None,
    pairs: ParallelText | Text | LinkedText | None = None,
    untrained: int = 0,
    seed: int = 0,
    sets: AnyText | None = None,
    words: AnyText | None = None,
) -> Forecast:
    """What `roles` will take, `role_sets` on the text `sets` and `lost_words` on the text `words`; takes a few seconds
    itself. Raises HeadwiseError for text that cannot be used."""
    model.task.check_tokenizer()
    texts = RoleTexts.of(model, text, confirm, pairs, None)
    if isinstance(text, Speech):
        return speech_forecast(model, text, untrained)
    subject = subject_of(model)
    few = list(islice(text, TIMED_TREES))
    timed_words = words_of_treebank(subject, few, few)
    seconds = best(
        lambda: on_treebank(subject_of(model), few, few, None, uncounted),
        model.hf.device.type,
        most=1,
    )

    counted = {"trees": words_of_treebank(subject, text, confirm)}
    reads = [model_line(model), treebank_line(text, subject)]
    if confirm is not None:
        reads.append(f"{treebank_line(confirm, subject)}, to confirm")
    if texts.pairs is not None:
        both = sum(len(source.split()) + len(target.split()) for source, target in texts.pairs)
        counted["sentence pairs"] = round(DECODING * both)
        reads.append(f"{len(texts.pairs):,} sentence pairs, {both:,} words of both sides")
    if subject.kind == "decoder-self":
        counted["repeated tokens and templates"] = words_of_probes(subject, None, seed)
    counted["examples"] = sum(len(sentence.words) for sentence in candidates_of(text))
    if untrained:
        sample = texts.sampled(subject.options.context)
        counted["controls"] = words_of_changes(model, sample)
        counted["controls"] += untrained * words_read(model, sample, seed)

    parts = [Part(name, count * seconds / timed_words) for name, count in counted.items()]
    silent = {
        "sets of heads": (sets, role_sets.SENTENCES, USUAL_TRIALS),
        "lost words": (words, lost_words.SENTENCES, model.heads.total),
    }
    for name, (of_trials, sentences, trials) in silent.items():
        if of_trials is not None:
            read = model.task.completed(sample_text(of_trials, sentences), outline=True)
            forward, _ = forward_seconds(model, read)
            positions = Amount.of_batches(model.task.batches(read)).positions
            parts.append(Part(name, trials / 2 * positions * forward))
    made = f"testing {timed_words:,} words took {seconds:.2g} s here, {where(model)}"
    used = memory(model, Amount(1, min(subject.positions, sum(counted.values()))))
    return Forecast(tuple(reads), tuple(parts), used, made)


def speech_forecast(model: Model, speech: Speech, untrained: int) -> Forecast:
    """What `roles` will take on speech."""
    subject = subject_of(model)
    first = Speech(speech.utterances[:1], speech.name)
    seconds = best(
        lambda: on_speech(subject, first, uncounted), model.hf.device.type, most=1
    ) * len(speech)
    parts = [Part("recordings", seconds)]
    if untrained:
        parts.append(Part("controls", (1 + untrained) * seconds))
    made = f"testing {speech.utterances[0].audio.name} took {seconds / len(speech):.2g} s here, {where(model)}"
    line = f"{speech.name}: {len(speech):,} recordings, {words_of_speech(speech):,} words"
    return Forecast((model_line(model), line), tuple(parts), peak_memory(), made)


def treebank_line(treebank: Treebank, subject: Subject) -> str:
    """How many sentences of a treebank are read, and what is left out, in a line."""
    used = Coverage()
    for _ in align_subwords(subject.tokenizer, list(treebank), subject.limit, used):
        pass
    left_out = []
    if used.too_long:
        left_out.append(f"{used.too_long} longer than {subject.limit} tokens")
    if used.unalignable:
        left_out.append(f"{used.unalignable} that lose words in the tokenizer")
    read = f"{used.used:,} sentences, {used.words:,} words, {used.subwords:,} tokens"
    return f"{treebank.name}: {read}; left out: {', '.join(left_out) or 'nothing'}"
