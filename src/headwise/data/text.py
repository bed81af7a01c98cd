"""Text for training and scoring: sentence pairs (`ParallelText`), monolingual text (`Text`), texts with a class each
(`LabelledText`) and prompts with a counterpart each (`PromptPairs`), in common formats.

Files are read once, line by line, into a memory-mapped Arrow file (see `store`), so a corpus may be larger than memory.
Rows with a blank side are left out and counted in `.blank`. Equal sentences have an equal `.fingerprint`, whatever
their format. Not here: subwords, filters by length, batches.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs

from headwise.data.lines import existing_file, read_lines, side_files, whole_lines
from headwise.data.store import StoredText, file_key
from headwise.errors import HeadwiseError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

__all__ = ["LabelledText", "ParallelText", "PromptPairs", "Text", "read_lines"]

DATASETS = "datasets:"  # before the name of a data set of the Hugging Face hub
AnyPath = str | PathLike[str]
TextSpec = AnyPath | Sequence[AnyPath]  # a text as a user names it: a file, two, or a data set


class Text(StoredText):
    """Monolingual text, a sentence a line: `len(text)`, iteration, `text[3]`, `.lines`, `.head(n)`, `.fingerprint`."""

    columns = ("text",)

    @classmethod
    def open(cls, spec: TextSpec, text_key: str = "text", cache: AnyPath | None = None) -> Self:
        """Text as a user names it: a file, "datasets:NAME", or a file of the catalogue.

        Options may follow a data set's name: "datasets:stas/openwebtext-10k?split=train&text=text".
        """
        spec = _one_spec(spec, "One-sided text")
        if isinstance(spec, str) and spec.startswith(DATASETS):
            name, options = _dataset_spec(spec, ("text", "split", "config"))
            key = options.get("text", text_key)
            split = options.get("split", "train")
            dataset = _loaded(name, options.get("config"), split)
            return cls._write(_text_dataset(dataset, name, key), f"{name}[{split}]", cache)
        return cls.read(spec, cache)

    @classmethod
    def read(cls, path: AnyPath, cache: AnyPath | None = None) -> Self:
        """The sentences of a file, gzip or plain, a sentence a line. `cache`: a folder for the memory-mapped copy."""
        file = existing_file(path)
        rows = ((line,) for line in read_lines(file))
        return cls._write(rows, file.name, cache, file_key("text", file))

    @classmethod
    def from_lines(
        cls, lines: Iterable[str], name: str = "lines", cache: AnyPath | None = None
    ) -> Self:
        """Sentences that are already in Python; a newline inside a sentence becomes a blank."""
        return cls._write(((on_one_line(line),) for line in lines), name, cache)

    @property
    def lines(self) -> Sequence[str]:
        """The sentences as a list-like column, read from disk on access."""
        return self.dataset["text"]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        for (line,) in self.rows():
            yield line

    def __getitem__(self, index: int) -> str:
        return str(self.dataset[index]["text"])


class LabelledText(StoredText):
    """Texts with a label each, for models that classify: `len(text)`, iteration over (text, label), `text[3]`,
    `.head(n)`, `.take(indices)`, `.fingerprint`, and the `datasets.Dataset` behind it as `.dataset`. Labels are
    strings: names of a model's classes, or their numbers."""

    columns = ("text", "label")

    @classmethod
    def open(
        cls,
        spec: TextSpec,
        text_key: str = "text",
        label_key: str = "label",
        cache: AnyPath | None = None,
    ) -> Self:
        """A file ending in .tsv, .csv (its first line names the columns) or .jsonl (.gz may follow), or "datasets:…".

        Options may follow a data set's name: "datasets:stanfordnlp/sst2?split=validation&text=sentence". In a .tsv
        quotes are ordinary characters. A newline inside a text becomes a blank. Raises HeadwiseError as `ParallelText`.
        """
        spec = _one_spec(spec, "Labelled text")
        if isinstance(spec, str) and spec.startswith(DATASETS):
            name, options = _dataset_spec(spec, ("text", "label", "split", "config"))
            keys = options.get("text", text_key), options.get("label", label_key)
            split = options.get("split", "train")
            rows = _labelled_dataset(_loaded(name, options.get("config"), split), name, *keys)
            return cls._write(rows, f"{name}[{split}]", cache)
        if not is_table(Path(spec)):
            raise HeadwiseError(
                f"The format of the labelled text '{spec}' is not clear: give one file ending in .tsv, .csv or .jsonl "
                "with the columns text and label, or datasets:NAME."
            )
        file = existing_file(spec)
        rows = (
            _labelled(record, text_key, label_key, where)
            for record, where in records_of(file, text_key, label_key)
        )
        key = file_key(f"labelled {text_key} {label_key}", file)
        return cls._write(rows, file.name, cache, key)

    @classmethod
    def from_rows(
        cls, rows: Iterable[tuple[str, str | int]], name: str = "rows", cache: AnyPath | None = None
    ) -> Self:
        """(text, label) that are already in Python."""
        written = ((on_one_line(text), str(label)) for text, label in rows)
        return cls._write(written, name, cache)

    @property
    def lines(self) -> Sequence[str]:
        """The texts as a list-like column, read from disk on access."""
        return self.dataset["text"]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((text, label) for text, label in self.rows())

    def __getitem__(self, index: int) -> tuple[str, str]:
        row = self.dataset[index]
        return row["text"], row["label"]


class PromptPairs(StoredText):
    """Prompts with a counterpart each, for causal language models: `len(pairs)`, iteration over (clean, corrupted,
    answer, wrong answer), `pairs[3]`, `.head(n)`, `.take(indices)`, `.fingerprint`, and the `datasets.Dataset` behind
    it as `.dataset`.

    clean: a prompt that the answer follows after a blank. corrupted: the same with a change that takes the answer away,
    such as another name. wrong_answer: what the answer is compared with, often that of the corrupted prompt.
    """

    columns = ("clean", "corrupted", "answer", "wrong_answer")

    @classmethod
    def is_named_by(cls, spec: Any) -> bool:
        """Whether a user names a table with the columns clean and corrupted: a file ending in .tsv, .csv or .jsonl."""
        if not isinstance(spec, str | PathLike):
            return len(spec) == 1 and cls.is_named_by(spec[0])
        if str(spec).startswith(DATASETS) or not is_table(Path(spec)):
            return False
        first = next(read_lines(spec), "")
        return "clean" in first and "corrupted" in first

    @classmethod
    def open(cls, spec: TextSpec, cache: AnyPath | None = None) -> Self:
        """A file ending in .tsv, .csv (its first line names the columns clean, corrupted, answer and wrong_answer) or
        .jsonl (.gz may follow). Blanks at both ends of a cell go. Raises HeadwiseError as `ParallelText`."""
        spec = _one_spec(spec, "A table of prompts")
        if not is_table(Path(spec)):
            raise HeadwiseError(
                f"The format of the prompts '{spec}' is not clear: give one file ending in .tsv, .csv or .jsonl with "
                f"the columns {', '.join(cls.columns)}."
            )
        file = existing_file(spec)
        rows = (
            tuple(side_of(record, column, where) for column in cls.columns)
            for record, where in records_of(file, *cls.columns)
        )
        return cls._write(rows, file.name, cache, file_key("prompt pairs", file))

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[str, str, str, str]],
        name: str = "rows",
        cache: AnyPath | None = None,
    ) -> Self:
        """(clean, corrupted, answer, wrong answer) that are already in Python."""
        return cls._write((tuple(map(on_one_line, row)) for row in rows), name, cache)

    @property
    def lines(self) -> Sequence[str]:
        """The clean prompts as a list-like column, read from disk on access."""
        return self.dataset["clean"]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return self.rows()

    def __getitem__(self, index: int) -> tuple[str, ...]:
        row = self.dataset[index]
        return tuple(row[column] for column in self.columns)


class ParallelText(StoredText):
    """Sentence pairs: `len(text)`, iteration over (source, target), `text[3]`, `.sources`, `.targets`, `.head(n)`,
    `.take(indices)`, `.fingerprint`, and the `datasets.Dataset` behind it as `.dataset`.

    Every constructor takes `cache`, a folder for the memory-mapped copy (default: a temporary folder until Python
    ends), and raises HeadwiseError, in one sentence that names the file and line, for input it cannot use.
    """

    columns = ("source", "target")

    @classmethod
    def open(
        cls,
        spec: TextSpec,
        source_key: str = "source",
        target_key: str = "target",
        cache: AnyPath | None = None,
    ) -> Self:
        """Text as a user names it: two files, one file ending in .tsv or .jsonl (.gz may follow), "datasets:NAME", or
        two sides of the catalogue, as "multi30k/val.en-de".

        Options may follow the name: "datasets:wmt/wmt14?config=de-en&split=validation&source=en&target=de".
        """
        if isinstance(spec, str | PathLike):
            spec = [spec]
        if len(spec) == 1:
            spec = side_files(spec[0])
        if len(spec) == 2:
            return cls.read(spec[0], spec[1], cache)
        if len(spec) != 1:
            raise HeadwiseError(
                f"Parallel text is two files, source and target, but {len(spec)} were given: {list(spec)}."
            )
        (name,) = spec
        if isinstance(name, str) and name.startswith(DATASETS):
            dataset, options = _dataset_spec(name, ("source", "target", "split", "config"))
            keys = options.get("source", source_key), options.get("target", target_key)
            split = options.get("split", "train")
            return cls.from_dataset(
                dataset, *keys, split, config=options.get("config"), cache=cache
            )
        kind = Path(name).name.lower().removesuffix(".gz")
        if kind.endswith(".tsv"):
            return cls.from_tsv(name, cache)
        if kind.endswith(".jsonl"):
            return cls.from_jsonl(name, source_key, target_key, cache)
        raise HeadwiseError(
            f"The format of the parallel text '{name}' is not clear: "
            "give two files, one file ending in .tsv or .jsonl, or datasets:NAME."
        )

    @classmethod
    def read(cls, source: AnyPath, target: AnyPath, cache: AnyPath | None = None) -> Self:
        """Line k of one file with line k of the other; gzip or plain."""
        files = existing_file(source), existing_file(target)
        return cls._write(
            _line_pairs(*files),
            f"{files[0].name}+{files[1].name}",
            cache,
            file_key("pairs", *files),
        )

    @classmethod
    def from_tsv(cls, path: AnyPath, cache: AnyPath | None = None) -> Self:
        """One pair a line, source and target separated by one tab; quotes are ordinary characters; gzip or plain."""
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
        key = file_key(f"jsonl {source_key} {target_key}", file)
        return cls._write(_json_rows(file, source_key, target_key), file.name, cache, key)

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
        if isinstance(dataset, Mapping):  # a DatasetDict
            if split not in dataset:
                raise HeadwiseError(
                    f"The dataset has no split '{split}'{did_you_mean(split, dataset)}: it has {', '.join(dataset)}."
                )
            dataset = dataset[split]
        return cls._write(
            _dataset_rows(dataset, name, source_key, target_key), f"{name}[{split}]", cache
        )

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[tuple[str, str]], name: str = "pairs", cache: AnyPath | None = None
    ) -> Self:
        """Pairs that are already in Python; a newline inside a sentence becomes a blank."""
        rows = ((on_one_line(source), on_one_line(target)) for source, target in pairs)
        return cls._write(rows, name, cache)

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

    def __getitem__(self, index: int) -> tuple[str, str]:
        row = self.dataset[index]
        return row["source"], row["target"]


def _one_spec(spec: TextSpec, what: str) -> AnyPath:
    """The only name of a text that is one file or one data set."""
    if isinstance(spec, str | PathLike):
        return spec
    if len(spec) != 1:
        raise HeadwiseError(
            f"{what} is one file, but {len(spec)} were given: {list(spec)}: give one."
        )
    return spec[0]


def _dataset_spec(spec: str, allowed: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The name and the options of "datasets:NAME?option=value"."""
    name, _, query = spec.removeprefix(DATASETS).partition("?")
    options = {key: values[-1] for key, values in parse_qs(query, keep_blank_values=True).items()}
    unknown = options.keys() - {*allowed}
    if unknown:
        wrong = min(unknown)
        raise HeadwiseError(
            f"'{wrong}' in '{spec}'{did_you_mean(wrong, allowed)} is none of {', '.join(allowed)}."
        )
    return name, options


def is_table(file: Path) -> bool:
    """Whether a name ends as those of tables with named columns."""
    return file.name.lower().removesuffix(".gz").endswith((".tsv", ".csv", ".jsonl"))


def records_of(file: Path, *keys: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The records of a table with named columns, and where each stands. keys: those of a blank line of .jsonl."""
    if file.name.lower().removesuffix(".gz").endswith(".jsonl"):
        return _json_records(file, *keys)
    return _table_records(file)


def _table_records(file: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    tabs = file.name.lower().removesuffix(".gz").endswith(".tsv")
    reader = csv.DictReader(
        whole_lines(file),
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        for record in reader:
            where = f"Line {reader.line_num} of '{file}'"
            if None in record or None in record.values():
                raise HeadwiseError(
                    f"{where} has another number of columns than the first line, which names "
                    f"{', '.join(reader.fieldnames or ())}."
                )
            yield record, where
    except csv.Error as error:
        raise HeadwiseError(
            f"Line {reader.line_num} of '{file}' is no line of a table ({error})."
        ) from error


def _text_dataset(dataset: Dataset, name: str, text_key: str) -> Iterator[tuple[str]]:
    used = [text_key] if text_key in dataset.column_names else dataset.column_names
    rows = dataset.with_format(None).select_columns(used)
    for number, record in enumerate(rows, start=1):
        yield (side_of(record, text_key, f"Row {number} of the dataset '{name}'"),)


def _labelled_dataset(
    dataset: Dataset, name: str, text_key: str, label_key: str
) -> Iterator[tuple[str, str]]:
    used = [column for column in (text_key, label_key) if column in dataset.column_names]
    rows = dataset.with_format(None).select_columns(used or dataset.column_names)
    for number, record in enumerate(rows, start=1):
        yield _labelled(record, text_key, label_key, f"Row {number} of the dataset '{name}'")


def _labelled(
    record: Mapping[str, Any], text_key: str, label_key: str, where: str
) -> tuple[str, str]:
    """Text and label of a record; a whole number is a label, too."""
    text = side_of(record, text_key, where)
    label = record.get(label_key)
    if isinstance(label, int) and not isinstance(label, bool):
        return text, str(label)
    return text, side_of(record, label_key, where)


def _line_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    sources = read_lines(source)
    targets = read_lines(target)
    for number, (left, right) in enumerate(zip_longest(sources, targets), start=1):
        if left is None or right is None:
            source_count = number - 1 if left is None else number + sum(1 for _ in sources)
            target_count = number - 1 if right is None else number + sum(1 for _ in targets)
            raise HeadwiseError(
                f"'{source}' has {source_count:,} lines but '{target}' has {target_count:,}: "
                "parallel files need the same number of lines."
            )
        yield left, right


def _tsv_rows(file: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(whole_lines(file), start=1):
        sides = line.split("\t") if line.strip() else ["", ""]
        if len(sides) != 2:
            raise HeadwiseError(
                f"Line {number} of '{file}' has {len(sides)} columns: "
                "there must be 2, source and target, with a tab between them."
            )
        yield sides[0].strip(), sides[1].strip()


def _json_rows(file: Path, source_key: str, target_key: str) -> Iterator[tuple[str, str]]:
    for record, where in _json_records(file, source_key, target_key):
        yield side_of(record, source_key, where), side_of(record, target_key, where)


def _json_records(file: Path, *keys: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The object of every line, and which line it is; of a blank line, one that is blank under all keys."""
    for number, line in enumerate(read_lines(file), start=1):
        where = f"Line {number} of '{file}'"
        try:
            record = json.loads(line) if line else dict.fromkeys(keys, "")
        except (ValueError, RecursionError) as error:  # also: a number of more than 4,300 digits
            raise HeadwiseError(
                f"{where} is not JSON ({error}): write one object a line."
            ) from error
        if not isinstance(record, dict):
            fields = ", ".join(f'"{key}": ...' for key in keys)
            raise HeadwiseError(f"{where} is not a JSON object: write {{{fields}}} a line.")
        yield record, where


def _dataset_rows(
    dataset: Dataset, name: str, source_key: str, target_key: str
) -> Iterator[tuple[str, str]]:
    wanted = {source_key, target_key, "translation"}
    used = [column for column in dataset.column_names if column in wanted]
    if not used:
        raise HeadwiseError(
            f"The dataset '{name}' has no column '{source_key}', '{target_key}' or 'translation': "
            f"it has {', '.join(dataset.column_names)}."
        )
    number = 0
    for batch in dataset.with_format(None).select_columns(used).iter(batch_size=1000):
        for values in zip(*(batch[column] for column in used), strict=True):
            number += 1
            record = dict(zip(used, values, strict=True))
            where = f"Row {number} of the dataset '{name}'"
            yield side_of(record, source_key, where), side_of(record, target_key, where)


def side_of(record: Mapping[str, Any], key: str, where: str) -> str:
    """One side of a pair from a record or from its "translation"; null counts as blank."""
    inner = record.get("translation")
    fields = inner if key not in record and isinstance(inner, dict) else record
    if key not in fields:
        raise HeadwiseError(f"{where} has no '{key}': it has {', '.join(fields) or 'nothing'}.")
    value = fields[key]
    if value is not None and not isinstance(value, str):
        raise HeadwiseError(
            f"{where} has no text under '{key}' but {type(value).__name__}: {str(value)[:40]!r}."
        )
    return on_one_line(value or "")


def on_one_line(sentence: str) -> str:
    """The sentence on one line, without blanks at either end: tables and translations have a sentence a line."""
    lines = [line.strip() for line in sentence.split("\n")]
    return " ".join(line for line in lines if line)


def _loaded(name: str, config: str | None, split: str) -> Dataset:
    from datasets import load_dataset  # takes a second, and much bad input is refused without it

    try:
        return load_dataset(name, config, split=split)
    except Exception as error:  # the hub, the disk and the loader each raise their own kinds
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise HeadwiseError(
            f"`datasets` cannot load '{name}' (split '{split}'): {reason}"
        ) from error
