"""The words that a model no longer says without a head.

The loss says how much a head matters, a role where it looks; this says what it is for. On a text with its targets (of
one-sided text, the model's own translations) each head is silent in turn. A word is lost in a sentence where the model
alone predicts it, after the right words before it, and without the head predicts another. Greedy search would write
that other word there.

Half of the sentences finds, for each head, the words that it loses more often than others; the other half confirms them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import binom, hypergeom

from headwise.attention import evaluating
from headwise.environment import environment_info
from headwise.errors import HeadwiseError
from headwise.heads import Head, table_files
from headwise.importance.ablation import (
    FORWARD_POSITIONS,
    RecordedBatch,
    recordings,
    repeated,
    tried,
)
from headwise.importance.processes import failing_together, gather_batches
from headwise.importance.untrained import sample_text
from headwise.model import Model
from headwise.progress import Report, shown
from headwise.result import Result
from headwise.roles.role_sets import silent_heads
from headwise.statistics import corrected, proportion_interval
from headwise.tasks import AnyText
from headwise.tasks.batches import reporter
from headwise.tasks.objective import chosen_words, vocabulary_of

SENTENCES = 300  # of the text, that heads are switched off on, at most
LEAST = 3  # sentences of the first half in which a word must be lost
OF_A_HEAD = 3  # words that the first half may find for a head
SHOWN = 12  # words that the terminal says
ERROR = 0.05
WORDS = (
    "kind",
    "layer",
    "head",
    "word",
    "value",
    "low",
    "high",
    "lost",
    "units",
    "others",
    "p",
    "instead",
    "times",
    "example",
)
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class LostWords(Result):
    """The words that a model no longer says without a head.

    table: a row for each word that one half of the sentences found for a head, columns WORDS, the surest first. Of the
    other half: in how many of the `units` sentences with the word it is `lost`; value: their share, with Wilson's 95 %
    interval; others: the share of all other words that are lost; p: of the word being lost no more often than they are
    (Fisher's exact test, one-sided, corrected over all rows by Benjamini and Hochberg 1995). instead: what is predicted
    there most often, and how many times; example: a sentence, up to the word. signature: how it was made.
    """

    table: pd.DataFrame
    signature: dict[str, Any]

    FILES = ("words.csv", "words.json")

    @property
    def confirmed(self) -> pd.DataFrame:
        """The rows that the other half confirms."""
        return self.table[self.table["p"] < ERROR]

    def lines(self) -> list[str]:
        """A line for each confirmed word, the surest first."""
        made = f" ({self.signature['made']})" if self.signature["made"] else ""
        rows = self.confirmed
        if rows.empty:
            return [f"  No word is lost with a head more often than others{made}."]
        heads = len(rows.drop_duplicates(["kind", "layer", "head"]))
        lines = [f"  Words that are lost without a head, {len(rows)} with {heads} heads{made}:"]
        for row in rows.head(SHOWN).to_dict("records"):
            head = f"{row['kind']}/{row['layer']}/{row['head']}"
            lines.append(
                f"    {head}: {row['word']} in {row['lost']} of {row['units']} sentences (other words: {row['others']:.0%}),"
                f" most often for {row['instead']}"
            )
        return lines

    def files(self) -> dict[str, str]:
        return table_files(self.table, self.signature, "words")


@dataclass(frozen=True)
class Said:
    """What one sentence loses, of the words that the whole model says in it.

    lost: by word, the heads without which it is lost, H booleans; instead: by head and word, what is said in its place;
    before: by word, the sentence up to it.
    """

    lost: dict[str, np.ndarray]
    instead: dict[tuple[int, str], str]
    before: dict[str, str]


def lost_words(
    model: Model, text: AnyText, *, seed: int = 0, progress: Report | None = None
) -> LostWords:
    """The words that a model no longer says without a head (module docstring), on at most SENTENCES sentences of a text.

    progress: gets the share that is done; by default a bar. Raises HeadwiseError for a model that predicts no words.
    """
    if not isinstance(model, Model) or not isinstance(text, AnyText):
        raise HeadwiseError(
            "lost_words takes a model of hw.load(…) and a text of hw.Text.read(FILE) or hw.ParallelText.read(FILE, FILE), "
            f"and was given a {type(model).__name__} and a {type(text).__name__}."
        )
    check_words(model, text)
    few = model.task.completed(sample_text(text, SENTENCES), progress)
    with shown("lost words", progress) as report:
        batches = model.task.batches(few, lambda share, _: report(share, "lost words"))
        sentences = said_words(model, batches)
    signature = {
        "model": model.name,
        "heads": model.heads.to_json(),
        "text": few.fingerprint,
        "made": getattr(few, "made", ""),
        "sentences": len(sentences),
        "seed": seed,
        **environment_info(),
    }
    return LostWords(rows_of(list(model.heads), sentences, seed), signature)


def check_words(model: Model, text: AnyText) -> None:
    """Raise HeadwiseError for a model that predicts no words, and text that it does not read."""
    if not vocabulary_of(model.hf) or model.tokenizer is None:
        raise HeadwiseError(
            f"{model.name}, a {type(model.hf).__name__}, predicts no words, so it loses none without a head: leave the text "
            "for lost words out."
        )
    model.task.completed(text, outline=True)


def said_words(model: Model, batches: Any) -> list[Said]:
    """What each sentence loses with each head, in the order of the heads of the model."""
    trials = [silent_heads([head]) for head in model.heads]
    found: list[list[Said]] = []
    within = reporter(batches)
    with failing_together(), evaluating(model.hf), torch.no_grad():
        for batch in recordings(model.hf, model.discovery, batches):

            def choices(copies: int, batch: RecordedBatch = batch) -> torch.Tensor:
                return chosen_words(model.hf, *repeated(batch, copies)).view(copies, -1)

            whole = choices(1)[0]
            others = tried(
                model.hf, model.discovery, batch, trials, FORWARD_POSITIONS, choices, whole, within
            )
            gold = batch.tensors["labels"][batch.places]
            found.append(
                of_batch(model.tokenizer, batch, *(t.cpu().numpy() for t in (gold, whole, others)))
            )
        found = gather_batches(found)
    return [said for of_one in found for said in of_one]


def of_batch(
    tokenizer: Any, batch: RecordedBatch, gold: np.ndarray, whole: np.ndarray, others: np.ndarray
) -> list[Said]:
    """The sentences of a batch. gold N: its predicted pieces; whole N, others H N: what is said there."""
    sentences, positions = (place.cpu().numpy() for place in batch.places)
    found = []
    for sentence in np.unique(sentences):
        (places,) = np.nonzero(sentences == sentence)
        pieces = gold[places].tolist()
        words = words_of_pieces(tokenizer, pieces, positions[places])
        right = whole[places] == gold[places]
        wrong = others[:, places] != gold[places]
        said = Said({}, {}, {})
        for word, own in words:
            if not right[own].all():
                continue
            lost = wrong[:, own].any(1)
            said.lost[word] = said.lost.get(word, False) | lost
            said.before.setdefault(word, decoded(tokenizer, pieces[: own[-1] + 1]))
            for head in np.nonzero(lost)[0].tolist():
                first = own[int(wrong[head, own].argmax())]
                other = decoded(tokenizer, [int(others[head, places[first]])])
                said.instead.setdefault((head, word), other)
        found.append(said)
    return found


def words_of_pieces(
    tokenizer: Any, pieces: Sequence[int], positions: Sequence[int] | np.ndarray
) -> list[tuple[str, list[int]]]:
    """The words of a sentence in small letters, each with the places of its pieces. A special token is a word of its own,
    and a word ends before a gap: of masked models only hidden tokens are predicted."""
    texts: list[str] = []
    numbers = []
    run: list[int] = []  # pieces that belong together
    first = 0  # the number of their first word
    special = set(tokenizer.all_special_ids)
    for place, piece in enumerate(pieces):
        gap = place > 0 and positions[place] != positions[place - 1] + 1
        if gap or piece in special or not run:
            run = []
            first = len(texts)
        if piece in special:
            texts.append(tokenizer.convert_ids_to_tokens(piece))
        else:
            run.append(piece)
            texts[first:] = WORD.findall(tokenizer.decode(run)) or [""]
        numbers.append(len(texts) - 1)
    places_of: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        places_of.setdefault(number, []).append(place)
    return [(texts[number].lower(), places) for number, places in places_of.items()]


def decoded(tokenizer: Any, pieces: Sequence[int]) -> str:
    """Pieces as text; the end of a sentence as its token."""
    text: str = tokenizer.decode(pieces, skip_special_tokens=True).strip()
    return text or tokenizer.convert_ids_to_tokens(pieces[-1])


def rows_of(heads: Sequence[Head], sentences: Sequence[Said], seed: int) -> pd.DataFrame:
    """The table, columns WORDS."""
    words = sorted({word for said in sentences for word in said.lost})
    number = {word: place for place, word in enumerate(words)}
    half = np.random.default_rng(seed).permutation(len(sentences)) % 2
    there = np.zeros((2, len(words)), dtype=int)
    lost = np.zeros((2, len(heads), len(words)), dtype=int)
    for which, said in zip(half, sentences, strict=True):
        for word, heads_that_lose in said.lost.items():
            there[which, number[word]] += 1
            lost[which, :, number[word]] += heads_that_lose

    rows = []
    chances = []
    finding, confirming = lost
    all_there = there[1].sum()
    for place, head in enumerate(heads):
        all_lost = confirming[place].sum()
        for column in found_words(finding[place], there[0], there[1]):
            word, units, times = words[column], there[1, column], confirming[place, column]
            low, high = proportion_interval(times, units)
            others = (all_lost - times) / max(1, all_there - units)
            chances.append(hypergeom.sf(times - 1, all_there, all_lost, units))
            instead = Counter(
                said.instead[place, word] for said in sentences if (place, word) in said.instead
            )
            example = next(said.before[word] for said in sentences if (place, word) in said.instead)
            values = (times / units, float(low), float(high), times, units, others)
            rows.append((*head, word, *values, *instead.most_common(1)[0], example))
    table = pd.DataFrame(rows, columns=[name for name in WORDS if name != "p"])
    table.insert(WORDS.index("p"), "p", corrected(np.array(chances)) if chances else [])
    return table.sort_values("p", kind="stable", ignore_index=True)


def found_words(lost: np.ndarray, there: np.ndarray, again: np.ndarray) -> list[int]:
    """The words that one half finds for a head: lost more often than the head's other words (binomial test), the surest
    first. lost, there: in how many of its sentences; again: of the other half's."""
    rate = (lost.sum() - lost + 1) / (there.sum() - there + 2)
    chance = binom.sf(lost - 1, there, rate)
    chance[(lost < LEAST) | (again == 0)] = 1.0
    surest = np.argsort(chance, kind="stable")[:OF_A_HEAD]
    return [int(column) for column in surest if chance[column] < ERROR]
