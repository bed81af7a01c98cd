"""The two halves of a text: roles are found on the first and confirmed on the second.

A document is in one half only, because its sentences are alike. Both halves have about as many sentences.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwise.data.annotated import Annotated

Half = int  # 0: where roles are found, 1: where they are confirmed
Halved = tuple[Half, Annotated]  # a sentence with its half
SMALLEST = 0.25  # of the sentences: with fewer in a half, documents are not what is split
BLOCK = 10  # sentences of a block, at most
BLOCKS = 10  # of a short text


@dataclass(frozen=True)
class Halves:
    """How a text is split.

    by_document: the half of every document; None where blocks of `block` neighbouring sentences alternate. sizes: the
    sentences of each half.
    """

    sizes: tuple[int, int]
    by_document: Mapping[str, Half] | None = None
    block: int = BLOCK

    def of(self, number: int, document: str) -> Half:
        """The half of a sentence: of its number in the text, and the name of its document."""
        if self.by_document is None:
            return number // self.block % 2
        return self.by_document[document]

    def split(self, sentences: Iterable[Annotated]) -> Iterator[Halved]:
        """Every sentence of the text, in its order, with its half."""
        for number, sentence in enumerate(sentences):
            yield self.of(number, document_of(sentence)), sentence

    def warnings(self, text: str) -> list[str]:
        """A sentence for readers where documents were not split. text: its name."""
        if self.by_document is not None:
            return []
        return [
            f"Nearly all {sum(self.sizes)} sentences of the {text} are of one document: its halves are blocks of "
            f"{self.block} neighbouring sentences ({self.sizes[0]} and {self.sizes[1]}), which are less independent "
            "than documents. Confirm roles on another text."
        ]


def halve(documents: Iterable[str], seed: int = 0) -> Halves:
    """Split a text into halves of about equally many sentences.

    Documents are taken from the largest to the smallest, and each is added to the half that has fewer sentences so far;
    a hash of its name and the seed orders documents of one size. Where a half would have less than SMALLEST of the
    sentences, as with a single document, blocks of neighbouring sentences alternate instead. documents: the name of the
    document of every sentence.
    """
    counts = Counter(documents)

    def place(document: str) -> tuple[int, bytes]:
        return -counts[document], hashlib.sha256(f"{seed} {document}".encode()).digest()

    sizes = [0, 0]
    by_document = {}
    for document in sorted(counts, key=place):
        smaller = int(sizes[1] < sizes[0])
        by_document[document] = smaller
        sizes[smaller] += counts[document]
    total = sum(sizes)
    if min(sizes) >= SMALLEST * total:
        return Halves((sizes[0], sizes[1]), by_document)

    block = block_of(total)
    second = sum(number // block % 2 for number in range(total))
    return Halves((total - second, second), None, block)


def block_of(sentences: int) -> int:
    """How many neighbouring sentences make a block."""
    return max(1, min(BLOCK, sentences // BLOCKS))


def random_half(sentences: int, generator: np.random.Generator) -> np.ndarray:
    """Half of the blocks of neighbouring sentences, which are mostly of one document: a boolean for each sentence."""
    block = np.arange(sentences) // block_of(sentences)
    order = generator.permutation(block[-1] + 1)
    chosen: np.ndarray = order[block] < len(order) / 2
    return chosen


def halves_of(documents: Sequence[str], seed: int = 0) -> list[Half]:
    """The half of every sentence, or recording, by the names of their documents."""
    halves = halve(documents, seed)
    return [halves.of(number, document) for number, document in enumerate(documents)]


def document_of(sentence: Annotated) -> str:
    """The name of a sentence's document; without any its id or text."""
    return sentence.document or sentence.id or sentence.text


def in_half(half: Half, sentences: Iterable[Annotated]) -> Iterator[Halved]:
    """All sentences as those of one half."""
    for sentence in sentences:
        yield half, sentence


def in_turn(texts: Iterable[Annotated]) -> Iterator[Halved]:
    """Generated texts in the two halves in turn, by the number that their name begins with."""
    for text in texts:
        yield int(text.id.split()[0]) & 1, text
