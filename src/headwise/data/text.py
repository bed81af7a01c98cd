"""Text for training and scoring: sentence pairs (`ParallelText`), monolingual text (`Text`), texts with a class each
(`LabelledText`) and prompts with a counterpart each (`PromptPairs`), in common formats.

Files are read once, line by line, into a memory-mapped Arrow file (see `store`), so a corpus may be larger than memory.
Rows with a blank side are left out and counted in `.blank`. Equal sentences have an equal `.fingerprint`, whatever
their format. Not here: subwords, filters by length, batches.
"""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import zip_longest
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from urllib.parse import parse_qs

from headwise.core.errors import HeadwiseError, called_as, did_you_mean, shown_value
from headwise.core.heads import as_rows
from headwise.data.lines import (
    JSON_LINES,
    ends_with,
    existing_file,
    is_file,
    is_table,
    named_table,
    read_lines,
    side_files,
    whole_lines,
)
from headwise.data.plain import are_names_of_sides, sentence_lines
from headwise.data.store import StoredText, file_key

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

__all__ = ["LabelledText", "ParallelText", "PromptPairs", "Text", "read_lines"]

# Before the name of a data set of the Hugging Face hub.
DATASETS = "datasets:"
# Cells of a .tsv whose quotes may be a spreadsheet's: a single one may be a sentence in quotes.
FEWEST_QUOTED = 2
SAVED = ("state.json", "dataset_dict.json")  # in folders of `save_to_disk`
AnyPath = str | PathLike[str]
TextSpec = AnyPath | Sequence[AnyPath]  # a text as a user names it: a file, two, or a data set
Records = Iterator[tuple[Mapping[str, Any], str]]  # rows by column, and where each stands
AnyStored = TypeVar("AnyStored", bound=StoredText)


class Text(StoredText):
    """Monolingual text, a sentence a line: `len(text)`, iteration, `text[3]`, `.lines`, `.head(n)`, `.fingerprint`."""

    columns = ("text",)

    @classmethod
    def open(cls, spec: TextSpec, cache: AnyPath | None = None) -> Self:
        """Text as a user names it: a file, "datasets:NAME", or a file of the catalogue.

        Options may follow a data set's name: "datasets:stas/openwebtext-10k?split=train&text=text".
        """
        spec = one_spec(spec, "One-sided text")
        return _read_dataset(cls, spec, cache) if _is_dataset(spec) else cls.read(spec, cache)

    @classmethod
    def read(cls, path: AnyPath, cache: AnyPath | None = None) -> Self:
        """The sentences of a file, gzip or plain: a sentence a line, or the column `text` of a table (.tsv, .csv,
        .jsonl). `cache`: a folder for the memory-mapped copy. Raises HeadwiseError for a file that begins as another
        format (mark-up, JSON, trees, subtitles)."""
        file = existing_file(path)
        if cache is not None and Path(cache).is_file():
            raise HeadwiseError(
                f"Text.read was given two files, '{file}' and '{cache}', and reads one side: sentence pairs are "
                "hw.ParallelText.read(source, target)."
            )
        if is_table(file):
            return _read_table(cls, file, cache)
        lines = ((line,) for line in sentence_lines(file))
        return cls._write(lines, file.name, cache, file_key("text", file))

    @classmethod
    def from_lines(
        cls, lines: Iterable[str], name: str = "lines", cache: AnyPath | None = None
    ) -> Self:
        """Sentences that are already in Python; a newline inside a sentence becomes a blank."""
        if isinstance(lines, str):
            raise HeadwiseError(
                f"One string was given, {shown_value(lines)}: give a list, even of one sentence."
            )
        return cls._write(rows_in_python(lines, cls), name, cache)

    def __iter__(self) -> Iterator[str]:
        for (line,) in self.rows():
            yield line

    def row(self, index: int) -> str:
        return str(self.dataset[index]["text"])


class TextRows(StoredText):
    """Text of several columns: rows are tuples."""

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return self.rows()


class TableText(TextRows):
    """Text of a table with named columns. what: in messages."""

    what: ClassVar[str]

    @classmethod
    def open(cls, spec: TextSpec, cache: AnyPath | None = None) -> Self:
        """A file ending in .tsv, .csv (its first line names the columns) or .jsonl (.gz may follow), or "datasets:…".

        Options may follow a data set's name: "datasets:stanfordnlp/sst2?split=validation&text=sentence". Quotes
        in a .tsv are read, and HeadwiseError is raised, as by `ParallelText`. A newline inside a text becomes a blank.
        """
        spec = one_spec(spec, cls.what.capitalize())
        if _is_dataset(spec):
            return _read_dataset(cls, spec, cache)
        if not is_table(Path(spec)):
            *others, last = cls.columns
            raise HeadwiseError(
                f"The format of {cls.what} '{spec}' is not clear: give one file ending in .tsv, .csv or .jsonl with the "
                f"columns {', '.join(others)} and {last}, or datasets:NAME."
            )
        return _read_table(cls, existing_file(spec), cache)

    @classmethod
    def read(cls, path: AnyPath, cache: AnyPath | None = None) -> Self:
        """A file, as `open` reads it."""
        return cls.open(existing_file(path), cache)

    @classmethod
    def from_rows(
        cls, rows: Iterable[Sequence[Any]], name: str = "rows", cache: AnyPath | None = None
    ) -> Self:
        """Rows that are already in Python, each with all columns."""
        return cls._write(rows_in_python(rows, cls), name, cache)


class LabelledText(TableText):
    """Texts with a label each, for models that classify: `len(text)`, iteration over (text, label), `text[3]`,
    `.head(n)`, `.take(indices)`, `.fingerprint`, and the `datasets.Dataset` behind it as `.dataset`. Labels are
    strings: names of a model's classes, or their numbers."""

    what = "labelled text"
    columns = ("text", "label")
    numbered = True


class PromptPairs(TableText):
    """Prompts with a counterpart each, for causal language models: `len(pairs)`, iteration over (clean, corrupted,
    answer, wrong answer), `pairs[3]`, `.head(n)`, `.take(indices)`, `.fingerprint`, and the `datasets.Dataset` behind
    it as `.dataset`.

    clean: a prompt that the answer follows after a blank. corrupted: the same with a change that takes the answer away,
    such as another name. wrong_answer: what the answer is compared with, often that of the corrupted prompt.
    """

    what = "a table of prompts"
    columns = ("clean", "corrupted", "answer", "wrong_answer")

    @classmethod
    def is_named_by(cls, spec: Any) -> bool:
        """Whether a user names a table with the columns clean and corrupted: a file ending in .tsv, .csv or .jsonl."""
        table = named_table(spec)
        first = "" if table is None else next(read_lines(table), "")
        return "clean" in first and "corrupted" in first


class ParallelText(TextRows):
    """Sentence pairs: `len(text)`, iteration over (source, target), `text[3]`, `.sources`, `.targets`, `.head(n)`,
    `.take(indices)`, `.fingerprint`, and the `datasets.Dataset` behind it as `.dataset`.

    Every constructor takes `cache`, a folder for the memory-mapped copy (default: a temporary folder until Python
    ends), and raises HeadwiseError, in one sentence that names the file and line, for input it cannot use.
    """

    columns = ("source", "target")

    @classmethod
    def open(cls, spec: TextSpec, cache: AnyPath | None = None) -> Self:
        """Text as a user names it: two files, one file ending in .tsv, .csv (its first line names `source` and `target`) or
        .jsonl (.gz may follow), "datasets:NAME", or two sides of the catalogue, as "multi30k/val.en-de".

        Options may follow the name: "datasets:wmt/wmt14?config=de-en&split=validation&source=en&target=de".
        """
        if isinstance(spec, str | PathLike):
            spec = [spec]
        refuse_no_names(spec)
        if len(spec) == 1:
            # A name of the catalogue may stand for both sides.
            spec = side_files(spec[0])
        if len(spec) == 2:
            return cls.read(spec[0], spec[1], cache)
        if len(spec) != 1:
            raise HeadwiseError(
                f"Parallel text is two files, source and target, but {len(spec)} were given: {list(spec)}."
            )
        (name,) = spec
        if _is_dataset(name):
            return _read_dataset(cls, name, cache)
        if ends_with(name, ".tsv"):
            return cls.from_tsv(name, cache)
        if ends_with(name, ".csv"):
            return _read_table(cls, existing_file(name), cache)
        if ends_with(name, *JSON_LINES):
            return cls.from_jsonl(name, cache=cache)
        raise HeadwiseError(
            f"The format of the parallel text '{name}' is not clear: "
            "give two files, one file ending in .tsv, .csv or .jsonl, or datasets:NAME."
        )

    @classmethod
    @called_as("hw.ParallelText.read('dev.en', 'dev.de')")
    def read(cls, source: AnyPath, target: AnyPath, cache: AnyPath | None = None) -> Self:
        """Line k of one file with line k of the other; gzip or plain."""
        files = existing_file(source), existing_file(target)
        if files[0].samefile(files[1]):
            raise HeadwiseError(
                f"'{files[0]}' was given as source and as target: give the file of each side."
            )
        return cls._write(
            _line_pairs(*files),
            f"{files[0].name}+{files[1].name}",
            cache,
            file_key("pairs", *files),
        )

    @classmethod
    def from_tsv(cls, path: AnyPath, cache: AnyPath | None = None) -> Self:
        """One pair a line, source and target separated by one tab; gzip or plain. Quotes are ordinary characters, but for
        those of a program around a cell with quotes (`"A ""warm"" film."`).

        A first line that is `source` and `target`, in either order, names the columns.
        """
        file = existing_file(path)
        return cls._write(_tsv_rows(file), file.name, cache, file_key("tsv", file))

    @classmethod
    def from_jsonl(
        cls,
        path: AnyPath,
        source_key: str = "source",
        target_key: str = "target",
        cache: AnyPath | None = None,
    ) -> Self:
        """One JSON object a line, the sides under these keys, or under these keys of its "translation"; gzip or plain.

        Null counts as a blank side; a newline inside a sentence becomes a blank.
        """
        file = existing_file(path)
        keys = (source_key, target_key)
        rows = cells_of(_json_records(file, *keys), keys)
        return cls._write(
            rows, file.name, cache, file_key(f"jsonl {source_key} {target_key}", file)
        )

    @classmethod
    def from_dataset(
        cls,
        dataset: str | Dataset | DatasetDict,
        source_key: str = "source",
        target_key: str = "target",
        split: str = "train",
        *,
        config: str | None = None,
        cache: AnyPath | None = None,
    ) -> Self:
        """A `datasets` name or object: columns with these names, or these languages of a `translation` column."""
        name = dataset if isinstance(dataset, str) else "dataset"
        if isinstance(dataset, str):
            dataset = _loaded(dataset, config, split)
        # A DatasetDict. To ask by its class would load `datasets`.
        if isinstance(dataset, Mapping):
            dataset = split_of(dataset, split)
        keys = (source_key, target_key)
        rows = cells_of(_dataset_records(dataset, name, keys), keys)
        return cls._write(rows, f"{name}[{split}]", cache)

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[tuple[str, str]], name: str = "pairs", cache: AnyPath | None = None
    ) -> Self:
        """Pairs that are already in Python; a newline inside a sentence becomes a blank."""
        return cls._write(rows_in_python(pairs, cls), name, cache)

    @property
    def sources(self) -> Sequence[str]:
        """The source sentences as a list-like column, read from disk on access."""
        return self.dataset["source"]  # type: ignore[no-any-return]

    @property
    def targets(self) -> Sequence[str]:
        """The target sentences as a list-like column, read from disk on access."""
        return self.dataset["target"]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((source, target) for source, target in self.rows())


def made_text(given: Any, wanted: type[StoredText]) -> Any:
    """A text, of what a user has in Python: sentences, rows, a data set of `datasets` or a slice of it, or a table or a
    column of pandas, polars or NumPy. Anything else stays as it is.

    wanted: the class that a model reads; sentences alone are a `Text`. A row has the columns of its class, in order or by
    name. Raises HeadwiseError for a data set or a table without these columns, and for several splits.
    """
    if isinstance(given, Mapping) and any(
        hasattr(split, "column_names") for split in given.values()
    ):
        raise HeadwiseError(
            f"A data set of the splits {', '.join(map(str, given))} was given: give one of them, "
            f"data['{next(iter(given))}']."
        )
    if not hasattr(given, "column_names"):
        given = as_rows(given)
    refuse_conversations(given)
    if isinstance(given, Mapping) and any(
        isinstance(column, list) and isinstance(next(iter(column), None), str)
        for column in given.values()
    ):
        rows = zip(*given.values(), strict=False)  # a slice of a data set
        given = [dict(zip(given, row, strict=True)) for row in rows]
    named = getattr(given, "column_names", None) is not None
    if not named and not (isinstance(given, list | tuple) and given):
        return given
    if not named and all(isinstance(row, str) for row in given):
        return Text.from_lines(given)
    if not named and all(isinstance(row, list | tuple) for row in given):
        columns = wanted.columns
        if all(len(row) == len(columns) and isinstance(row[0], str) for row in given):
            given = [dict(zip(columns, row, strict=True)) for row in given]
    is_rows = all(isinstance(row, Mapping) for row in given) and any(map(_has_text, given))
    if not named and not is_rows:
        return given
    # A table of pandas without names has numbers for them.
    there = [str(name) for name in (given.column_names if named else given[0])]
    # One-sided rows: the model writes the targets itself.
    if wanted is ParallelText and there == ["text"]:
        wanted = Text
    if missing := [column for column in wanted.columns if column not in there]:
        remedy = f"rename its columns to {' and '.join(wanted.columns)}"
        if len(there) < len(wanted.columns):
            remedy = f"add {' and '.join(missing)}"
        if wanted is ParallelText and "translation" in there:
            remedy = "make hw.ParallelText.from_dataset(data, 'en', 'de') of it, with its languages"
        raise HeadwiseError(
            f"Rows with {', '.join(there)} were given, without {missing[0]}: {remedy}."
        )
    name = "dataset" if named else "rows"
    records = _dataset_records(given, name, wanted.columns) if named else _numbered(given)
    cells = cells_of(records, wanted.columns, wanted.numbered)
    return wanted._write(cells, name, None, classes=declared_classes(given, wanted.columns[-1]))


def refuse_conversations(given: Any) -> None:
    """Raise HeadwiseError for conversations, whose text depends on the model's template: lists of {"role", "content"}, or
    rows or a data set with `messages`."""
    columns: Any = getattr(given, "column_names", None)
    first = next(iter(given), None) if isinstance(given, list | tuple) else None
    if isinstance(first, list | tuple) and first:
        first = first[0]
    names = first if columns is None and isinstance(first, Mapping) else columns or ()
    if "messages" in names or ("role" in names and "content" in names):
        raise HeadwiseError(
            "Conversations were given, which each model writes in its own form: make texts of them, "
            "[model.tokenizer.apply_chat_template(each, tokenize=False).removeprefix(model.tokenizer.bos_token or '') "
            "for each in conversations]."
        )


def _has_text(row: Mapping[str, Any]) -> bool:
    """Whether a row has a string, perhaps inside a translation: batches have tensors alone."""
    return any(isinstance(value, str | Mapping) for value in row.values())


def _numbered(rows: Iterable[Mapping[str, Any]]) -> Records:
    return ((row, f"Row {number}") for number, row in enumerate(rows, start=1))


def declared_classes(dataset: Any, column: str) -> Sequence[str]:
    """What a data set calls the numbers of a column of classes (`datasets.ClassLabel`); nothing where it does not say."""
    features: Any = getattr(dataset, "features", None) or {}
    return getattr(features.get(column), "names", None) or ()


def one_spec(spec: TextSpec, what: str) -> AnyPath:
    """The only name of a text that is one file or one data set."""
    if isinstance(spec, str | PathLike):
        return spec
    refuse_no_names(spec)
    if len(spec) != 1:
        raise HeadwiseError(
            f"{what} is one file, but {len(spec)} were given: {list(spec)}: give one."
        )
    return spec[0]


def refuse_no_names(spec: Any) -> None:
    """Raise HeadwiseError for what is in Python already, in place of names of files."""
    names = spec if isinstance(spec, list | tuple) else [None]
    are_names = all(isinstance(name, str | PathLike) for name in names)
    # A sentence has a blank, and no ending as files have.
    sentences = [" " in str(name) and not re.search(r"\.\w+$", str(name)) for name in names]
    if not are_names or (names and all(sentences) and not any(map(is_file, names))):
        raise HeadwiseError(
            f"{shown_value(spec)} was given in place of a file: give what is in Python already to the function itself, as a "
            "list, such as hw.score(model, list(rows)), or make a text of it by from_lines, from_pairs or from_rows."
        )


def _is_dataset(spec: object) -> bool:
    return isinstance(spec, str) and spec.startswith(DATASETS)


def _read_table(wanted: type[AnyStored], file: Path, cache: AnyPath | None) -> AnyStored:
    """The text of a table with named columns."""
    rows = cells_of(records_of(file, *wanted.columns), wanted.columns, wanted.numbered)
    return wanted._write(rows, file.name, cache, file_key(f"{wanted.__name__} of a table", file))


def _read_dataset(wanted: type[AnyStored], spec: AnyPath, cache: AnyPath | None) -> AnyStored:
    """The text of "datasets:NAME?option=value"."""
    dataset, name, options = dataset_named(spec, wanted.columns)
    keys = [options.get(column, column) for column in wanted.columns]
    rows = cells_of(_dataset_records(dataset, name, keys), keys, wanted.numbered)
    return wanted._write(rows, name, cache, classes=declared_classes(dataset, keys[-1]))


def dataset_named(
    spec: AnyPath, columns: Sequence[str] = ()
) -> tuple[Dataset, str, dict[str, str]]:
    """The data set of "datasets:NAME?option=value", its name and split for people, and the options: `split`, `config` and
    these columns, each with its name in the data set."""
    name, _, query = str(spec).removeprefix(DATASETS).partition("?")
    # An option that is given twice counts as the last one.
    options = {key: values[-1] for key, values in parse_qs(query, keep_blank_values=True).items()}
    allowed = (*columns, "split", "config")
    unknown = options.keys() - {*allowed}
    if unknown:
        wrong = min(unknown)
        raise HeadwiseError(
            f"'{wrong}' in '{spec}' is not an option{did_you_mean(wrong, allowed)}: there are {', '.join(allowed)}."
        )
    split = options.get("split", "train")
    return _loaded(name, options.get("config"), split), f"{name}[{split}]", options


def records_of(file: Path, *keys: str) -> Records:
    """The records of a table with named columns, and where each stands. keys: what a blank line of .jsonl has, blank."""
    if ends_with(file, *JSON_LINES):
        return _json_records(file, *keys)
    return _table_records(file)


def _table_records(file: Path) -> Records:
    tabs = ends_with(file, ".tsv")
    text_of = reader_of_cells(file) if tabs else str
    reader = csv.reader(
        whole_lines(file),
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )
    columns: list[str] | None = None
    while True:
        # A cell in quotes may go over several lines.
        where = f"Line {reader.line_num + 1} of '{file}'"
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise HeadwiseError(f"{where} is no line of a table ({error}).") from error
        row = [*map(text_of, row)]
        if columns is None:
            columns = row
            # As Excel writes it where the comma is in numbers.
            if len(row) == 1 and ";" in row[0] and not tabs:
                raise HeadwiseError(
                    f"The columns of '{file}' are separated by semicolons ({row[0][:60]}), those of a .csv by commas: "
                    "save it with commas, or as a .tsv with tabs."
                )
            refuse_same_names(columns, f"'{file}'")
        elif row and len(row) != len(columns):
            raise HeadwiseError(
                f"{where} has another number of columns than the first line, which names "
                f"{', '.join(columns)}."
            )
        elif row:
            yield dict(zip(columns, row, strict=True)), where


def reader_of_cells(file: Path) -> Callable[[str], str]:
    """What makes its text of a cell of a .tsv. Warns where quotes are those that a program put around cells: around all of
    them, or around each that has a comma, and no other, as spreadsheets do."""
    every = spreadsheet = file.is_file()  # a pipe can be read once only
    cells = commas = 0
    # Most texts have a cell that shows neither soon, and are read no further.
    for line in whole_lines(file) if every else ():
        for cell in line.rstrip("\r\n").split("\t"):
            inside = cell[1:-1]
            is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
            is_quoted = is_quoted and '"' not in inside.replace('""', "")
            needed = "," in cell or '"' in (inside if is_quoted else cell)
            every = every and is_quoted
            spreadsheet = spreadsheet and is_quoted == needed
            cells += 1
            commas += "," in cell
        if not every and not spreadsheet:
            return unquoted
    if every:
        said = f"All {cells:,} cells of '{file}' are in quotes"
    elif commas >= FEWEST_QUOTED:
        said = f"The {commas:,} cells of '{file}' with a comma are in quotes, as a spreadsheet writes them"
    else:
        return unquoted
    warnings.warn(f"{said}: they are read without these.", stacklevel=5)

    def text_of(cell: str) -> str:
        return cell[1:-1].replace('""', '"') if every or "," in cell else unquoted(cell)

    return text_of


def unquoted(cell: str) -> str:
    """A cell of a .tsv without the quotes that a program put around it because of others inside, which it doubled, as
    pandas does. Other quotes are ordinary characters."""
    inside = cell[1:-1]
    is_quoted = cell[:1] == cell[-1:] == '"' and '""' in inside
    return inside.replace('""', '"') if is_quoted and '"' not in inside.replace('""', "") else cell


def cells_of(
    records: Records, keys: Sequence[str], numbered: bool = False
) -> Iterator[tuple[str, ...]]:
    """The text of each record under these keys. numbered: whether that of the last may be a whole number."""
    for record, where in records:
        last: Any = record.get(keys[-1])
        if getattr(last, "ndim", None) == 0:  # a number of NumPy or PyTorch
            last = last.item()
        # pandas makes such numbers of a column with a gap.
        if numbered and isinstance(last, float) and last.is_integer():
            last = int(last)
        # True and False are integers to Python.
        if numbered and isinstance(last, int) and not isinstance(last, bool):
            record = {**record, keys[-1]: str(last)}
        yield tuple(side_of(record, key, where) for key in keys)


def _line_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    sources = sentence_lines(source)
    targets = sentence_lines(target)
    for number, (left, right) in enumerate(zip_longest(sources, targets), start=1):
        if left is None or right is None:
            # The longer file is read to its end, to say how long it is.
            source_count = number - 1 if left is None else number + sum(1 for _ in sources)
            target_count = number - 1 if right is None else number + sum(1 for _ in targets)
            raise HeadwiseError(
                f"'{source}' has {source_count:,} lines but '{target}' has {target_count:,}: "
                "parallel files need the same number of lines."
            )
        yield left, right


def _tsv_rows(file: Path) -> Iterator[tuple[str, str]]:
    turned = False  # the target is the first column
    text_of = reader_of_cells(file)
    for number, line in enumerate(whole_lines(file), start=1):
        sides = line.split("\t") if line.strip() else ["", ""]
        if len(sides) != 2:
            raise HeadwiseError(
                f"Line {number} of '{file}' has {len(sides)} columns: "
                "there must be 2, source and target, with a tab between them."
            )
        source, target = (text_of(side.strip()) for side in sides)
        if number == 1 and {source, target} == {*ParallelText.columns}:
            # Its first line names the columns, and is no pair.
            turned = source == ParallelText.columns[1]
        elif number == 1 and are_names_of_sides(source, target):
            raise HeadwiseError(
                f"The first line of '{file}' names columns, {source} and {target}: call them source and target, or leave "
                "the line out."
            )
        else:
            yield (target, source) if turned else (source, target)


def _json_records(file: Path, *keys: str) -> Records:
    """The object of every line, and which line it is; of a blank line, one that is blank under all keys."""
    for number, line in enumerate(read_lines(file), start=1):
        where = f"Line {number} of '{file}'"
        try:
            record = dict.fromkeys(keys, "")
            if line:
                # With the hook a name that stands twice is refused; json would keep the last one.
                record = json.loads(line, object_pairs_hook=partial(_object, where))
        except (ValueError, RecursionError) as error:  # also: a number of more than 4,300 digits
            raise HeadwiseError(
                f"{where} is not JSON ({error}): write one object a line."
            ) from error
        if not isinstance(record, dict):
            fields = ", ".join(f'"{key}": ...' for key in keys)
            raise HeadwiseError(f"{where} is not a JSON object: write {{{fields}}} a line.")
        yield record, where


def _object(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON."""
    refuse_same_names([name for name, _ in pairs], where)
    return dict(pairs)


def refuse_same_names(names: Sequence[str], where: str) -> None:
    """Raise HeadwiseError for two columns of one name: which of them is meant?"""
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise HeadwiseError(f"{where} has two columns '{twice}': rename one of them.")


def _dataset_records(dataset: Dataset, name: str, keys: Sequence[str]) -> Records:
    """The rows of a data set, with the columns of these names and `translation`, and where each stands."""
    wanted = [*dict.fromkeys([*keys, "translation"])]
    used = [column for column in dataset.column_names if column in wanted]
    missing = [key for key in keys if key not in used]
    if missing and "translation" not in used:
        others = [column for column in dataset.column_names if column not in used]
        named = zip(missing, others + ["COLUMN"] * len(missing), strict=False)
        query = "&".join(f"{key}={column}" for key, column in named)
        listed = "', '".join(missing)
        raise HeadwiseError(
            f"The dataset '{name}' has no column '{listed}': it has {', '.join(dataset.column_names)}. Rename its columns, "
            f"or say which they are, such as {DATASETS}NAME?{query}."
        )
    number = 0
    # In batches, because `datasets` takes long for each single row.
    for batch in dataset.with_format(None).select_columns(used).iter(batch_size=1000):
        for values in zip(*(batch[column] for column in used), strict=True):
            number += 1
            yield dict(zip(used, values, strict=True)), f"Row {number} of the dataset '{name}'"


def side_of(record: Mapping[str, Any], key: str, where: str) -> str:
    """One side of a pair from a record or from its "translation"; null counts as blank."""
    inner = record.get("translation")
    fields = inner if key not in record and isinstance(inner, dict) else record
    if key not in fields:
        raise HeadwiseError(
            f"{where} has no '{key}': it has {', '.join(fields) or 'nothing'}. Give a table with '{key}'."
        )
    value = fields[key]
    if value is not None and not isinstance(value, str):
        raise HeadwiseError(
            f"{where} has no text under '{key}' but {type(value).__name__}: {str(value)[:40]!r}."
        )
    return on_one_line(value or "")


def rows_in_python(rows: Any, wanted: type[StoredText]) -> Iterator[tuple[str, ...]]:
    """Rows that are already in Python, each cell on one line; sentences for a text of one column. Raises HeadwiseError for
    what cannot be gone through, and, with its number, for a row with other cells."""
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise HeadwiseError(f"Rows are {shown_value(rows)}: give a list of them.")
    columns = wanted.columns
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Mapping) and all(column in row for column in columns):
            row = [row[column] for column in columns] if len(columns) > 1 else row[columns[0]]
        # A mapping gives the names of its columns, a set its items in any order.
        is_row = len(columns) > 1 and isinstance(row, Iterable)
        is_row = is_row and not isinstance(row, str | bytes | Mapping | Set)
        cells = [*row] if is_row else [row]
        last = cells[-1] if cells else None
        is_number = isinstance(last, Real) and not isinstance(last, bool)
        texts = cells[:-1] if wanted.numbered and is_number else cells
        if len(cells) != len(columns) or not all(isinstance(cell, str) for cell in texts):
            given = f"({', '.join(columns)})" if len(columns) > 1 else "a string"
            raise HeadwiseError(f"Row {number} is {shown_value(row)}: give {given} for each row.")
        yield tuple(on_one_line(str(cell)) for cell in cells)


def on_one_line(sentence: str) -> str:
    """The sentence on one line, without blanks at either end: tables and translations have a sentence a line."""
    lines = [line.strip() for line in sentence.split("\n")]
    return " ".join(line for line in lines if line)


def split_of(dataset: Any, split: str) -> Any:
    """A split of a `DatasetDict`. Raises HeadwiseError for one that it does not have."""
    if split not in dataset:
        raise HeadwiseError(
            f"The dataset has no split '{split}'{did_you_mean(split, dataset)}: it has {', '.join(dataset)}."
        )
    return dataset[split]


def _loaded(name: str, config: str | None, split: str) -> Dataset:
    # Here, because it takes a second, and much bad input is refused without it.
    from datasets import Dataset, ReadInstruction, load_dataset, load_from_disk

    path = Path(name)
    try:
        if path.suffix == ".parquet" and path.is_file():
            return Dataset.from_parquet(name)
        if path.is_file() and ends_with(path, ".arrow", ".feather"):
            raise HeadwiseError(
                f"'{name}' is one file of a data set: give the folder that it lies in, as save_to_disk made it."
            )
        if path.is_file() and ends_with(path, ".csv", ".tsv"):
            # As without `datasets:`, because to pandas a quote that begins a cell goes on in later lines.
            table = Dataset.from_list([row for row, _ in _table_records(path)])
            parts = ReadInstruction.from_spec(split).to_absolute({"train": len(table)})
            return table.select([n for part in parts for n in range(part.from_, part.to)])
        if path.is_file() and ends_with(path, *JSON_LINES):
            return load_dataset("json", data_files=name, split=split)
        if any((path / file).is_file() for file in SAVED):
            saved = load_from_disk(name)
            return split_of(saved, split) if isinstance(saved, Mapping) else saved
        return load_dataset(name, config, split=split)
    except HeadwiseError:
        raise
    # The hub, the disk and the loader each raise their own kinds.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise HeadwiseError(
            f"`datasets` cannot load '{name}' (split '{split}'): {reason}"
        ) from error
