"""A random sample of a text, for measures that take long: it grows until the ranks of the heads settle, or until a time
is spent."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head
from headwise.core.progress import silent
from headwise.importance.control_variate import controlled
from headwise.importance.ranks import agreement_of, halves, rank_errors
from headwise.models.evaluation.sums import MERGED_SENTENCES, SentenceSums
from headwise.models.tasks.batches import Batches, Shuffled, without_progress

SETTLED = 0.95  # rank correlation of all heads with another sample as large
FEWEST_SAMPLED = 32  # sentences before ranks can settle
SAMPLE_POSITIONS = 256  # positions in a batch of a sample
MEANS = 0.25  # of the time: what a reading for mean outputs takes, at most
FIRST_ORDER = 2.5  # forwards that a forward and a backward pass take


class Sample:
    """The sentences of a text that a measure reads within some seconds, in the order in which it reads them.

    measured: sums by measure, empty at first; tried: the tokens that each head was tried on; first_order: first orders of
    what is measured, of more sentences. batches: the whole text in random order; ahead, again: the same, for first orders
    and for heads that rested. forwards: about how many the measure takes of a sentence. `enough` is asked after every
    batch.
    """

    def __init__(
        self,
        text: Batches,
        measured: Mapping[str, SentenceSums],
        seconds: float,
        seed: int,
        forwards: float,
    ) -> None:
        self.text = text
        self.measured = measured
        self.tried = {name: SentenceSums(sums.heads) for name, sums in measured.items()}
        self.first_order = {name: SentenceSums(sums.heads) for name, sums in measured.items()}
        self.seconds = seconds
        self.seed = seed
        # the clock starts here, so that means over the text and the first batch count
        self.start = time.perf_counter()
        self.last = 0.0  # when the batch before ended, in seconds since the start
        self.repeats = float("nan")
        self.ended = ""
        self.batches = Shuffled(text, seed, SAMPLE_POSITIONS, self.on_progress)
        self.ahead = Shuffled(text, seed, SAMPLE_POSITIONS, silent)
        self.again = Shuffled(text, seed, SAMPLE_POSITIONS, silent)
        self.times = times_ahead(forwards)
        # what reading ahead costs, as a share of the measure, and how many times as many sentences it is worth
        self.price = self.times * FIRST_ORDER / forwards
        self.gain = 1.0
        self.gradients = 0  # sentences
        self.resting: set[Head] = set()
        self.rested: list[set[Head]] = []  # in each batch
        self.awake = 1.0  # the share of the sentences that a head was tried on, on average

    def beginning(self) -> Beginning:
        """The first batches of the sample, for mean outputs."""
        return Beginning(self)

    @property
    def taken(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def on_progress(self, share: float, what: str) -> None:
        """Progress by the sentences that were read or by the time that is spent, whichever is further."""
        self.text.progress(max(share, min(1.0, self.taken / self.seconds)), what)

    def read_ahead(self, first_order: Iterator[None]) -> None:
        """Read the first order of the batch that was measured, and of others. first_order: reads a batch of `ahead` each
        time that it is asked."""
        # So far, in all batches.
        read = read_sentences(self.batches)
        # in heads that rest there is nothing to be made more precise
        wanted = max(read, round(self.times * read * self.awake)) if self.times else 0
        try:
            while self.gradients < min(wanted, MERGED_SENTENCES):
                next(first_order)
                self.gradients = read_sentences(self.ahead)
        except StopIteration:  # the whole text was read
            pass
        except (HeadwiseError, RuntimeError):
            # no gradient passes through this model, or memory is too small for it: the sample is as good without
            self.times = 0

    def controlled(self) -> tuple[dict[str, SentenceSums], float]:
        """What was measured, made more precise by its first order of more text; a unit for each document. And the least
        gain of a measure by it."""
        documents = self.batches.documents
        of_ahead = self.ahead.documents if self.ahead.rows else None
        precise = {}
        gains = []
        for name, sums in self.measured.items():
            tried, known = self.tried[name], self.first_order[name]
            precise[name], gain = controlled(sums, tried, known, documents, of_ahead)
            gains.append(gain)
        return precise, min(gains)

    def enough(self) -> bool:
        """Whether no other batch is to be read: ranks have settled, or another batch would take too long."""
        self.rested.append(set(self.resting))
        precise, gain = self.controlled()
        # few sentences may agree at random
        if min(counted_sentences(sums) for sums in precise.values()) >= FEWEST_SAMPLED:
            self.look(precise)
            self.gain = gain
            # the time is better spent on more sentences
            if self.gain < 1 + self.price:
                self.times = 0
        taken = self.taken
        # How long the batch that just ended took.
        another = taken - self.last
        self.last = taken
        if self.repeats >= SETTLED:
            self.ended = "ranks settled"
        # the next batch is taken to last as long as this one
        elif taken + another > self.seconds:
            self.ended = "time spent"
        return bool(self.ended)

    def look(self, precise: Mapping[str, SentenceSums]) -> None:
        """Note how far ranks repeat, and which heads rest (`resting_heads`)."""
        repeats = []
        rests = []
        shares = []
        for name, sums in precise.items():
            # Two samples of half the size: how far they agree says how far another sample would.
            one, other = halves(sums, sums.heads, self.seed)
            repeats.append(agreement_of(one, other))
            tokens = tokens_of_heads(self.tried[name])
            rests.append(resting_heads(one, other, tokens))
            shares.append(share_tried(tokens))
        self.repeats = min(repeats)
        self.awake = float(np.mean(shares))
        self.resting.clear()
        self.resting.update(itertools.compress(sums.heads, np.all(rests, axis=0)))

    def rest_of_text(self) -> Iterator[None]:
        """Once the whole text was read and time is left: before each batch is read again. The heads that rested in it are
        tried, the others rest."""
        heads = next(iter(self.measured.values())).heads
        for rested in self.rested if not self.ended and any(self.rested) else []:
            if self.taken > self.seconds:
                self.ended = "time spent"
                return
            self.resting.clear()
            self.resting.update(head for head in heads if head not in rested)
            yield

    def facts(self, made: Mapping[str, SentenceSums]) -> dict[str, dict[str, Any]]:
        """What was read of the text, and why no more, by measure: for the signature of scores. tried: the share of the
        sentences that a head was tried on, on average; gradients: the sentences whose gradient was read; gain: how many
        times as many sentences would do without them, for the median head."""
        facts = {}
        for name, sums in made.items():
            facts[name] = {
                "sentences": counted_sentences(sums),
                "of": self.text.sentences,
                "ended": self.ended or "whole text",
                # JSON has no NaN
                "repeats": None if math.isnan(self.repeats) else round(self.repeats, 3),
                "seconds": round(self.taken, 1),
                "limit": self.seconds,
                "tried": round(share_tried(tokens_of_heads(self.tried[name])), 3),
                "gradients": self.gradients,
                "gain": round(self.gain, 2),
            }
        return facts


class Beginning:
    """The batches of a sample until MEANS of its time is spent, as often as wanted."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start = self.sample.taken
        for batch in without_progress(self.sample.batches):
            yield batch
            if self.sample.taken - start > MEANS * self.sample.seconds:
                break
        # the first batch that is measured begins now
        self.sample.last = self.sample.taken


def counted_sentences(sums: SentenceSums) -> int:
    """How many sentences have counted tokens."""
    _, counts = sums.whole(sums.heads.sites[0])
    return int((counts > 0).sum())


def read_sentences(batches: Shuffled) -> int:
    """How many sentences or windows were read so far."""
    return sum(len(rows) for rows in batches.rows)


def tokens_of_heads(tried: SentenceSums) -> np.ndarray:
    """How many tokens each head was tried on."""
    return np.concatenate([tried.whole(site)[0].sum(0) for site in tried.heads.sites])


def share_tried(tokens: np.ndarray) -> float:
    """The share of the tokens that a head was tried on, on average. tokens: of each head."""
    return float(tokens.mean() / max(1, tokens.max()))


def times_ahead(forwards: float) -> int:
    """How many times as many sentences the gradient is read of, for a measure that takes so many forwards of each: the
    best division of time where both correlate to √0.8 (Cochran 1977, section 12.6)."""
    # √(ρ² / (1 − ρ²)) is 2
    return max(1, round(2 * math.sqrt(forwards / FIRST_ORDER)))


def resting_heads(one: np.ndarray, other: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Which heads rest: those whose rank another sentence would settle less than that of the average head. one,
    other: the values of heads on halves of the sample; tokens: how many each was tried on."""
    # the error of a mean falls as 1 / n, so a sentence takes 1 / n of it
    gained = rank_errors(one, other) / tokens
    rests: np.ndarray = gained < gained.mean()
    return rests
