"""Annotated text from files: sentences with their trees, parts of speech and, where a file has it, coreference.

Every iteration reads from disk, so a treebank may be larger than memory. Opening it reads and checks every sentence
once, so that an error in the last one shows before any work.

Raw text gets its trees from the parser Stanza (Qi et al. 2020). They are written as CoNLL-U, so that it parses a text
only once. Stanza is an extra (`pip install "headwise[parse]"`), its models are separate downloads:
`stanza.download("en")`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from os import PathLike
from pathlib import Path
from typing import Any, Self

from headwise.core.errors import HeadwiseError, shown_value
from headwise.data.annotated import Annotated, Mention, Word
from headwise.data.conll import read_conllu
from headwise.data.lines import existing_file, named_files, read_lines
from headwise.data.plain import sentence_lines
from headwise.data.store import file_key, part_file, scratch_folder

__all__ = ["Annotated", "TreebankSize", "Mention", "Treebank", "Word"]
PARSED_AT_ONCE = 64  # sentences


@dataclass(frozen=True)
class TreebankSize:
    """The size of a treebank. A chain is an entity with two mentions or more. other_text: the sentences whose `# text` is
    not what their words make."""

    sentences: int = 0
    words: int = 0
    documents: int = 0
    mentions: int = 0
    entities: int = 0
    chains: int = 0
    skipped_mentions: int = 0
    other_text: int = 0


class Treebank:
    """Sentences of files: `for sentence in treebank`, `len(treebank)`, `.documents()`, `.counts`, `.fingerprint`.

    name: in results, by default the names of the files. first: how many sentences are read, by default all.
    """

    def __init__(
        self,
        files: tuple[Path, ...],
        name: str | None = None,
        first: int | None = None,
    ) -> None:
        if not isinstance(files, tuple):
            raise HeadwiseError(
                f"A treebank was made of {shown_value(files)}: write hw.Treebank.read('dev.conllu')."
            )
        self.files = files
        self.first = first
        self.name = name or "+".join(file.name for file in files)
        self._key = file_key("treebank", *files)
        self.counts = self._count()

    @classmethod
    def read(cls, *paths: str | PathLike[str]) -> Self:
        """The sentences of these CoNLL-U files, gzip or plain, in this order.

        Raises HeadwiseError, in one sentence with file and line, for a file that does not exist or is not CoNLL-U.
        """
        if not paths:
            raise HeadwiseError("A treebank needs a file: name one CoNLL-U file or more.")
        return cls(tuple(existing_file(path) for path in paths))

    @classmethod
    def parse(
        cls, path: str | PathLike[str], language: str, cache: str | PathLike[str] | None = None
    ) -> Self:
        """The sentences of a text file, one a line, with the trees that Stanza finds ("en", "ru": its language codes).

        The trees are written to a CoNLL-U file, in a temporary folder until Python ends or in `cache`, where a later
        run finds them again. Raises HeadwiseError when Stanza or its models are not installed.
        """
        file = existing_file(path)
        return cls((write_parsed(file, language, cache),), f"{file.name} (trees by Stanza)")

    def head(self, count: int) -> Treebank:
        """The first `count` sentences (all of them when there are fewer)."""
        return Treebank(self.files, self.name, count)

    def __len__(self) -> int:
        return self.counts.sentences

    def __repr__(self) -> str:
        return f"Treebank({self.name!r}, sentences={len(self):,}, words={self.counts.words:,})"

    def __iter__(self) -> Iterator[Annotated]:
        for document in self._by_document():
            yield from document

    def documents(self) -> Iterator[list[Annotated]]:
        """The sentences of one document after the other; a sentence outside any document is a document of its own."""
        return map(list, self._by_document())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the lines that are not blank, in hexadecimal: independent of compression and line ends."""
        digest = hashlib.sha256()
        # Without blank lines, whose number between sentences is free.
        for file in self.files:
            for line in filter(None, read_lines(file)):
                digest.update(line.encode() + b"\n")
        if self.first is not None:
            digest.update(f"first {self.first}".encode())
        return digest.hexdigest()

    def _by_document(self) -> Iterator[Iterator[Annotated]]:
        # Each pass reads from disk, and a pass must not see another text than the counts are of.
        if file_key("treebank", *self.files) != self._key:
            raise HeadwiseError(
                f"'{self.name}' has changed on disk since it was opened: open it again."
            )
        every = ((file, sentence) for file in self.files for sentence in read_conllu(file))
        read = islice(every, self.first)
        for _, document in groupby(read, lambda pair: (pair[0], pair[1].document)):
            yield (sentence for _, sentence in document)

    def _count(self) -> TreebankSize:
        total: Counter[str] = Counter()
        for document in self._by_document():
            entities: Counter[str] = Counter()
            for sentence in document:
                total["sentences"] += 1
                total["words"] += len(sentence.words)
                total["skipped_mentions"] += sentence.skipped_mentions
                total["other_text"] += sentence.other_text
                entities.update(mention.entity for mention in sentence.mentions)
            total["documents"] += 1
            total["mentions"] += entities.total()
            total["entities"] += len(entities)
            total["chains"] += sum(count > 1 for count in entities.values())
        if not total["sentences"]:
            raise HeadwiseError(
                f"There is no sentence in '{self.name}', only comments and blank lines."
            )
        return TreebankSize(**total)


TreeFiles = str | PathLike[str] | Sequence[str | PathLike[str]]  # as `read_trees` takes them


def read_trees(given: Any) -> Any:
    """A treebank, of its file, or of a list of files that are there; anything else stays as it is."""
    files = named_files(given)
    return given if files is None else Treebank.read(*files)


def write_parsed(file: Path, language: str, cache: str | PathLike[str] | None) -> Path:
    """The CoNLL-U file with a tree for every line of `file` that is not blank; `sent_id` is the number of the line."""
    try:
        stanza = importlib.import_module("stanza")
    except ImportError as error:
        raise HeadwiseError(
            f"Trees for '{file}' need Stanza, but Stanza is not installed ({error}): "
            'pip install "headwise[parse]", or give a treebank.'
        ) from error
    folder = scratch_folder() if cache is None else Path(cache).expanduser()
    # By Stanza's version, because another one finds other trees.
    key = file_key(f"parse {language} {stanza.__version__}", file)
    whole = folder / f"{file.name}-{key}.conllu"
    if whole.exists():
        return whole
    pipeline = _pipeline(stanza, language, file)
    try:
        with part_file(folder) as part:
            with part.open("w", encoding="utf-8") as out:
                out.writelines(_parsed(pipeline, file))
            part.replace(whole)
    except OSError as error:
        raise HeadwiseError(
            f"Cannot keep the trees of '{file}' in '{folder}': {error.strerror or error}; name another cache folder."
        ) from error
    return whole


def _pipeline(stanza: Any, language: str, file: Path) -> Any:
    """Stanza's parser of this language from the models on this machine, without a hidden download."""
    try:
        processors = "tokenize,pos,lemma,depparse"
        options = {"tokenize_no_ssplit": True, "download_method": None, "verbose": False}
        return stanza.Pipeline(language, processors=processors, **options)
    except (OSError, ValueError) as error:
        raise HeadwiseError(
            f"Trees for '{file}' need Stanza, which has no models for '{language}' here: "
            f'run python -c "import stanza; stanza.download({language!r})", or give a treebank.'
        ) from error


def _parsed(pipeline: Any, file: Path) -> Iterator[str]:
    """The CoNLL-U text, sentence after sentence."""
    numbered = ((number, line) for number, line in enumerate(sentence_lines(file), start=1) if line)
    while batch := list(islice(numbered, PARSED_AT_ONCE)):
        documents = pipeline.bulk_process([line for _, line in batch])
        for (number, line), document in zip(batch, documents, strict=True):
            # Stanza may split a line all the same: 7, 7.2, 7.3.
            for index, sentence in enumerate(document.sentences):
                id = f"{number}.{index + 1}" if index else f"{number}"
                yield f"# sent_id = {id}\n# text = {line}\n{sentence:c}\n\n"
