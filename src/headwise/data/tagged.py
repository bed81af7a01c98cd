"""Sentences with a tag for each word (names of persons, parts of speech): `TaggedText`, in the formats of CoNLL's tasks
and of `datasets`."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from os import PathLike
from pathlib import Path
from typing import Any, Self

from headwise.core.errors import HeadwiseError, shown_value
from headwise.data.conll import read_conllu
from headwise.data.lines import ends_with, existing_file, is_table, whole_lines
from headwise.data.store import file_key
from headwise.data.text import DATASETS, TextRows, dataset_named, records_of

WORDS = ("tokens", "words")  # what the columns of words and of tags are called
TAGS = ("ner_tags", "tags", "labels")
SENTENCE = (
    "sentence_id"  # the column with the number of a word's sentence, in tables with a word a row
)
LOOKED_AT = 200  # lines that show whether a file has a word a line
COMMENT = re.compile(r"#\s*(id|sent_id|text|newdoc|newpar)\b|#[^\t]*\s=\s")
COUNTED = 3  # lines that begin with 1, 2, 3 have no words there
TREE_ROW = re.compile(r"[0-9]+\t[^\t]+(\t[^\t]*){8}")
DOCUMENT = "-DOCSTART-"  # in place of a word, in files of CoNLL 2003

# Between two words of a list as NumPy prints it, which a table made by pandas has, and as Python does.
WITHOUT_COMMAS = re.compile(r"""['"]\s+['"]""")
WITH_COMMAS = re.compile(r"""['"]\s*,""")

Row = tuple[list[str], list[str]]  # the words of a sentence and their tags


class TaggedText(TextRows):
    """Sentences with a tag for each word: `len(text)`, iteration over (words, tags), `.lines`, `.head(n)`,
    `.take(indices)`, `.fingerprint`. Tags are names of a model's classes, or all are their numbers."""

    columns = ("words", "tags")  # with tabs between them

    @classmethod
    def open(cls, spec: Any, cache: str | PathLike[str] | None = None) -> Self:
        """A file with a word a line, its tag in the last column and a blank line behind each sentence (CoNLL); or a table
        (.jsonl, .csv, .tsv), or a data set ("datasets:…"), with columns `tokens` and `ner_tags`, `tags` or `labels`; or a
        treebank (CoNLL-U), whose tags are its parts of speech (UPOS). gzip or plain.

        Raises HeadwiseError, with the line, for a sentence with another number of tags than words.
        """
        names = [spec] if isinstance(spec, str | PathLike) else list(spec)
        if len(names) != 1:
            raise HeadwiseError(f"Tagged text is one file, but {len(names)} were given: {names}.")
        if str(names[0]).startswith(DATASETS):
            dataset, name, _ = dataset_named(names[0])
            return cls.from_rows(dataset, name, cache)
        file = existing_file(names[0])
        rows = tree_rows(file) if is_tree(file) else column_rows(file)
        if is_table(file) and not has_columns(file):
            rows = table_rows(file)
        return cls._write(map(stored, rows), file.name, cache, file_key("tagged", file))

    @classmethod
    def from_rows(
        cls, rows: Iterable[Any], name: str = "rows", cache: str | PathLike[str] | None = None
    ) -> Self:
        """Rows that are already in Python: (words, tags), or by name, as those of `datasets`. Numbers of tags stay
        numbers, unless the data set names them."""
        features = getattr(rows, "features", None)
        numbered = ((row, f"Row {number}") for number, row in enumerate(rows, start=1))
        return cls._write(map(stored, rows_of(numbered, features)), name, cache)

    def __iter__(self) -> Iterator[Row]:  # type: ignore[override]
        for words, tags in self.rows():
            yield words.split("\t"), tags.split("\t")

    def row(self, index: int) -> Row:
        words, tags = super().row(index)
        return words.split("\t"), tags.split("\t")

    @property
    def lines(self) -> Sequence[str]:
        """The sentences, with a blank between words."""
        return [" ".join(words) for words, _ in self]


def is_tagged(spec: Any) -> bool:
    """Whether a user names tagged sentences: a table or a data set with such columns, a treebank, or a word a line with as
    many columns in all lines, at least two. A table without any text is one, which `TaggedText` refuses."""
    names = [spec] if isinstance(spec, str | PathLike) else list(spec)
    if len(names) != 1:
        return False
    if str(names[0]).startswith(DATASETS):
        _, _, query = str(names[0]).partition("?")
        # A column that is named holds text.
        return "text=" not in query and any(
            name in dataset_named(names[0])[0].column_names for name in WORDS
        )
    file = existing_file(names[0])
    if is_table(file) and not has_columns(file):
        first = next(iter(whole_lines(file)))
        return any(name in first for name in WORDS) or "text" not in first
    return is_tree(file) or has_columns(file)


def is_tree(file: Path) -> bool:
    """Whether a file is in CoNLL-U."""
    lines = (line.rstrip("\r\n") for line in islice(whole_lines(file), LOOKED_AT))
    return any(map(TREE_ROW.fullmatch, lines))


def has_columns(file: Path) -> bool:
    """Whether a file has a word a line, with as many columns in all lines, at least two. One that ends like a table must
    have blank lines between sentences."""
    lines = [columns_of(line) for line in islice(whole_lines(file), LOOKED_AT)]
    if is_table(file) and (not ends_with(file, ".tsv") or [] not in lines[:-1]):
        return False
    counts = {len(columns) for columns in lines if columns and columns[0] not in (DOCUMENT, "#")}
    return len(counts) == 1 and min(counts) >= 2


def columns_of(line: str) -> list[str]:
    """The columns of a line, at its tabs where it has some: a word may hold blanks ("10 000")."""
    columns = line.split("\t") if "\t" in line.strip() else line.split()
    columns = [" ".join(column.split()) for column in columns]
    return columns if any(columns) else []


def stored(row: Row) -> tuple[str, str]:
    """A sentence as it is kept."""
    words, tags = row
    return "\t".join(words), "\t".join(tags)


def tree_rows(file: Path) -> Iterator[Row]:
    """The words and parts of speech of a treebank."""
    for sentence in read_conllu(file):
        untagged = [word.form for word in sentence.words if not word.upos]
        if untagged:
            raise HeadwiseError(
                f"'{untagged[0]}' in sentence {sentence.id} of '{file}' has no part of speech (UPOS): give a word and its "
                "tag a line."
            )
        yield [word.form for word in sentence.words], [word.upos for word in sentence.words]


def column_rows(file: Path) -> Iterator[Row]:
    """The sentences of a file with a word a line."""
    words: list[str] = []
    tags: list[str] = []
    width = 0
    for number, line in enumerate(whole_lines(file), start=1):
        columns = columns_of(line)
        if not any(columns) or columns[0] == DOCUMENT:
            if words:
                yield words, tags
            words, tags = [], []
            continue
        if not words and COMMENT.match(line):
            continue
        width = width or len(columns)
        if len(columns) != width or width < 2 or not columns[0] or not columns[-1]:
            raise HeadwiseError(
                f"Line {number} of '{file}' has {len(columns)} columns: there must be a word and its tag, in as many "
                f"columns as in the first line{f' ({width})' if width > 1 else ''}, and a blank line behind each sentence."
            )
        words.append(columns[0])
        tags.append(columns[-1])
        numbered = words == [str(place) for place in range(1, len(words) + 1)]
        if numbered and len(words) == COUNTED:
            raise HeadwiseError(
                f"Line {number} of '{file}' has the numbers of words in its first column: leave them out, so that each "
                "line has the word first and its tag last."
            )
    if words:
        yield words, tags


def table_rows(file: Path) -> Iterator[Row]:
    """The sentences of a table."""
    return rows_of((record, where) for record, where in records_of(file) if record)


def rows_of(records: Iterable[tuple[Any, str]], features: Any = None) -> Iterator[Row]:
    """The sentences of rows in Python, and where each stands: one a row, or a word a row with the number of its sentence
    (`sentence_id`). features: as of `row_of`. Raises HeadwiseError for a word a row without such a number."""
    stream = iter(records)
    beginning = list(islice(stream, LOOKED_AT))
    if not is_by_word([row for row, _ in beginning]):
        for row, where in chain(beginning, stream):
            yield row_of(row, where, features)
        return
    seen = set[str]()
    for number, group in groupby(chain(beginning, stream), key=sentence_number):
        words: list[str] = []
        tags: list[str] = []
        for row, where in group:
            if not number or (not words and number in seen):
                found = f"is again of sentence {number}" if number else "is one word"
                raise HeadwiseError(
                    f"{where} {found}: give a sentence a row, or a word a row, in order, with the number of its sentence in "
                    f"a column {SENTENCE}."
                )
            # In lists, because a word may be a bracket, which begins a list in text.
            word, tag = row_of({name: [cell] for name, cell in row.items()}, where, features)
            words += word
            tags += tag
            seen.add(number)
        yield words, tags


def sentence_number(record: tuple[Any, str]) -> str:
    """Which sentence a word of a table is of; empty where the row does not say."""
    row, _ = record
    number = row.get(SENTENCE) if isinstance(row, Mapping) else None
    return "" if number is None else str(number)


def is_by_word(rows: Sequence[Any]) -> bool:
    """Whether rows have text of a single word each, and no lists: a word a row."""
    cells = []
    for row in rows:
        column = (
            next((name for name in WORDS if name in row), None)
            if isinstance(row, Mapping)
            else None
        )
        cells.append(None if column is None else row[column] or "")
    words = [cell.split() for cell in cells if isinstance(cell, str)]
    are_lists = all(word[0].startswith("[") for word in words if word)
    return len(words) == len(rows) > 1 and all(len(word) < 2 for word in words) and not are_lists


def row_of(row: Any, where: str, features: Any = None) -> Row:
    """The words and tags of a row in Python. features: of a data set, which may name the numbers of tags."""
    if isinstance(row, Mapping):
        column = next((name for name in WORDS if name in row), None)
        tags_of_row = [name for name in TAGS if name in row]
        if len(tags_of_row) > 1:
            raise HeadwiseError(
                f"{where} has {' and '.join(tags_of_row)}: leave all but one out, that of the tags which the model learned."
            )
        tagged = next(iter(tags_of_row), None)
        if column is None or tagged is None:
            raise HeadwiseError(
                f"{where} has {', '.join(map(str, row)) or 'no column'}: give tokens and ner_tags, tags or labels."
            )
        words, tags = listed(row[column]), listed(row[tagged])
        names = getattr(getattr((features or {}).get(tagged), "feature", None), "names", None)
        if names:
            tags = [names[tag] for tag in tags]
    elif isinstance(row, list | tuple) and len(row) == 2:
        words, tags = map(listed, row)
    else:
        raise HeadwiseError(f"{where} is {shown_value(row)}: give its words and their tags.")
    if len(words) != len(tags):
        raise HeadwiseError(
            f"{where} has {len(words)} words and {len(tags)} tags: there must be a tag for each word."
        )
    clean = [" ".join(str(word).split()) for word in words]
    named = [" ".join(str(tag).split()) for tag in tags]
    # A word of blanks alone is none that a tokenizer sees.
    both = [(word, tag) for word, tag in zip(clean, named, strict=True) if word and tag]
    return [word for word, _ in both], [tag for _, tag in both]


def listed(cell: Any) -> list[Any]:
    """The words of a cell: a list, or text of one (`['EU', 'rejects']`), or words with blanks between them."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        if WITHOUT_COMMAS.search(cell) and not WITH_COMMAS.search(cell):
            # Python would read 'EU' 'rejects' as one word.
            return shlex.split(cell.strip()[1:-1])
        try:
            cell = ast.literal_eval(cell.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            cell = cell.strip().strip("[]")  # as NumPy writes numbers: [0 3 0]
    if cell is None:
        return []
    return cell.split() if isinstance(cell, str) else list(cell)
