"""Annotated text from files: sentences with their trees, parts of speech and, where a file has it, coreference.

A treebank streams from disk whenever it is walked through, so it may be larger than memory. Every sentence is read and
checked once when it is opened, so that a fault in the last one shows before any work.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Self

from headwise.data.annotated import Annotated, Mention, Word
from headwise.data.conllu_file import read_conllu
from headwise.data.lines import existing_file, read_lines
from headwise.data.store import file_key
from headwise.errors import HeadwiseError

__all__ = ["Annotated", "Counts", "Mention", "Treebank", "Word"]


@dataclass(frozen=True)
class Counts:
    """What a treebank holds. A chain is an entity with two mentions or more."""

    sentences: int = 0
    words: int = 0
    documents: int = 0
    mentions: int = 0
    entities: int = 0
    chains: int = 0
    skipped_mentions: int = 0


class Treebank:
    """Sentences of one or more CoNLL-U files: `for sentence in treebank`, `len(treebank)`, `.documents()`, `.counts`.

    name: the files' names. language: as the caller gave it.
    """

    def __init__(self, files: tuple[Path, ...], language: str | None = None) -> None:
        self.files = files
        self.language = language
        self.name = "+".join(file.name for file in files)
        self._key = file_key("treebank", *files)
        self.counts = self._count()

    @classmethod
    def read(cls, *paths: str | PathLike[str], language: str | None = None) -> Self:
        """The sentences of these CoNLL-U files, gzip or plain, in this order.

        Raises HeadwiseError, in one sentence with file and line, for a file that is not there or is not CoNLL-U.
        """
        if not paths:
            raise HeadwiseError("A treebank was asked for without a file: name one CoNLL-U file or more.")
        return cls(tuple(existing_file(path) for path in paths), language)

    def __len__(self) -> int:
        return self.counts.sentences

    def __repr__(self) -> str:
        return f"Treebank({self.name!r}, sentences={len(self):,}, words={self.counts.words:,})"

    def __iter__(self) -> Iterator[Annotated]:
        return (sentence for document in self._by_document() for sentence in document)

    def documents(self) -> Iterator[list[Annotated]]:
        """The sentences of one document after the other; a sentence that is in none is a document of its own."""
        return map(list, self._by_document())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the lines of the files, in hexadecimal, whatever their compression and line ends."""
        digest = hashlib.sha256()
        for file in self.files:
            for line in read_lines(file):
                digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    def _by_document(self) -> Iterator[Iterator[Annotated]]:
        if file_key("treebank", *self.files) != self._key:
            raise HeadwiseError(f"'{self.name}' has changed on disk since it was opened: open it again.")
        for file in self.files:
            for _, sentences in groupby(read_conllu(file), lambda sentence: sentence.document):
                yield sentences

    def _count(self) -> Counts:
        total: Counter[str] = Counter()
        for document in self._by_document():
            entities: Counter[str] = Counter()
            for sentence in document:
                total["sentences"] += 1
                total["words"] += len(sentence.words)
                total["skipped_mentions"] += sentence.skipped_mentions
                entities.update(mention.entity for mention in sentence.mentions)
            total["documents"] += 1
            total["mentions"] += entities.total()
            total["entities"] += len(entities)
            total["chains"] += sum(count > 1 for count in entities.values())
        if not total["sentences"]:
            raise HeadwiseError(f"There is no sentence in '{self.name}', only comments and blank lines.")
        return Counts(**total)
