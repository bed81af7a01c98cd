"""A random sample of a text, for measures that take long: it grows until the ranks of the heads settle, or until a time
is spent."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import PartialState

from headwise.errors import HeadwiseError
from headwise.importance.ranks import stability
from headwise.importance.sums import SentenceSums
from headwise.tasks.batches import Batches, Shuffled, unreported_batches

SETTLED = 0.95  # rank correlation of all heads with another sample as large
FEWEST_SAMPLED = 32  # sentences before ranks can settle
SAMPLE_POSITIONS = 256  # positions in a batch of a sample
MEANS = 0.25  # of the time: what a reading for mean outputs takes, at most
TIME_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration_seconds(duration: str) -> float:
    """The seconds of a time such as `90s`, `10m` or `1.5h`. Raises HeadwiseError for other words, and in a run of several
    processes, which share a text and must stop together."""
    written = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(duration))
    if written is None or not float(written[1]):
        raise HeadwiseError(
            f"The time is '{str(duration)[:20]}': give a number and a unit, such as 90s, 10m or 1h."
        )
    # each would stop at another sentence
    if PartialState().num_processes > 1:
        raise HeadwiseError(
            "Several processes share the text and read all of it: leave the time out, or run one process."
        )
    return float(written[1]) * TIME_UNITS[written[2]]


class Sample:
    """The sentences of a text that a measure reads within some seconds, in the order in which it reads them.

    batches: the whole text in random order. `enough` is asked after every batch.
    """

    def __init__(self, text: Batches, seconds: float, seed: int) -> None:
        self.text = text
        self.seconds = seconds
        self.seed = seed
        # the clock starts here, so that means over the text and the first batch count
        self.start = time.perf_counter()
        self.last = 0.0  # when the batch before ended, in seconds since the start
        self.repeats = float("nan")
        self.ended = ""
        self.batches = Shuffled(text, seed, SAMPLE_POSITIONS, self.report)

    def beginning(self) -> Beginning:
        """The first batches of the sample, for mean outputs."""
        return Beginning(self)

    @property
    def taken(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def report(self, share: float, what: str) -> None:
        """Progress by the sentences that were read or by the time that is spent, whichever is further."""
        self.text.progress(max(share, min(1.0, self.taken / self.seconds)), what)

    def enough(self, collected: Mapping[str, SentenceSums]) -> bool:
        """Whether no other batch is to be read: ranks have settled, or another batch would take too long. collected:
        what was measured so far."""
        whole = [sums.by_document(self.batches.documents) for sums in collected.values()]
        # few sentences may agree at random
        if min(counted_sentences(sums) for sums in whole) >= FEWEST_SAMPLED:
            self.repeats = min(stability(sums, self.seed) for sums in whole)
        taken = self.taken
        another = taken - self.last
        self.last = taken
        if self.repeats >= SETTLED:
            self.ended = "ranks settled"
        # the next batch is taken to last as long as this one
        elif taken + another > self.seconds:
            self.ended = "time spent"
        return bool(self.ended)

    def facts(self, sums: SentenceSums) -> dict[str, Any]:
        """What was read of the text, and why no more: for the signature of scores."""
        return {
            "sentences": counted_sentences(sums),
            "of": self.text.sentences,
            "ended": self.ended or "whole text",
            # JSON has no NaN
            "repeats": None if math.isnan(self.repeats) else round(self.repeats, 3),
            "seconds": round(self.taken, 1),
            "limit": self.seconds,
        }


class Beginning:
    """The batches of a sample until MEANS of its time is spent, as often as wanted."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start = self.sample.taken
        for batch in unreported_batches(self.sample.batches):
            yield batch
            if self.sample.taken - start > MEANS * self.sample.seconds:
                break
        # the first batch that is measured begins now
        self.sample.last = self.sample.taken


def counted_sentences(sums: SentenceSums) -> int:
    """How many sentences have counted tokens."""
    _, counts = sums.whole(sums.heads.sites[0])
    return int((counts > 0).sum())
