"""The two halves of a text: roles are found on the first and confirmed on the second.

A document is in one half only, because its sentences are alike. Both halves have about as many sentences.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from headwise.data.annotated import Annotated

Half = int  # 0: where roles are found, 1: where they are confirmed
Halved = tuple[Half, Annotated]  # a sentence with its half
SMALLEST = 0.25  # of the sentences: with fewer in a half, documents are not what is split
BLOCK = 10  # sentences of a block, at most
BLOCKS = 10  # of a short text


def halve(documents: Iterable[str], seed: int = 0) -> tuple[list[Half], int | None]:
    """The half of every sentence, where both halves have about equally many; and the size of blocks, if blocks are split.

    Documents are taken from the largest to the smallest, and each is added to the half that has fewer sentences so far;
    a hash of its name and the seed orders documents of one size. Where a half would have less than SMALLEST of the
    sentences, as with a single document, blocks of neighbouring sentences alternate instead. documents: the name of the
    document of every sentence.
    """
    names = list(documents)
    counts = Counter(names)

    def place(document: str) -> tuple[int, bytes]:
        # Python's own hash of a text differs between processes.
        return -counts[document], hashlib.sha256(f"{seed} {document}".encode()).digest()

    sizes = [0, 0]
    by_document = {}
    for document in sorted(counts, key=place):
        smaller = int(sizes[1] < sizes[0])
        by_document[document] = smaller
        sizes[smaller] += counts[document]
    if min(sizes) >= SMALLEST * len(names):
        return [by_document[name] for name in names], None
    block = block_of(len(names))
    return [number // block % 2 for number in range(len(names))], block


def block_of(sentences: int) -> int:
    """How many neighbouring sentences make a block."""
    # Short texts have smaller blocks, so that each half has several.
    return max(1, min(BLOCK, sentences // BLOCKS))


def random_half(sentences: int, generator: np.random.Generator) -> np.ndarray:
    """Half of the blocks of neighbouring sentences, which are mostly of one document: a boolean for each sentence."""
    block = np.arange(sentences) // block_of(sentences)
    order = generator.permutation(block[-1] + 1)
    chosen: np.ndarray = order[block] < len(order) / 2
    return chosen


def halves_of(documents: Iterable[str], seed: int = 0) -> list[Half]:
    """The half of every sentence, or recording, by the names of their documents."""
    return halve(documents, seed)[0]


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
