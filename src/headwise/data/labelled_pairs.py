"""Pairs of texts with a label each, for models that classify two texts at once (NLI, paraphrase, questions): does one
follow from the other, do both mean the same, is it an answer?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from headwise.core.errors import HeadwiseError
from headwise.core.heads import as_rows
from headwise.data.lines import existing_file, named_table
from headwise.data.store import file_key
from headwise.data.text import (
    DATASETS,
    AnyPath,
    TableText,
    TextSpec,
    cells_of,
    dataset_named,
    declared_classes,
    one_spec,
    records_of,
    rows_in_python,
)

# What the columns of the two texts are called, in GLUE and elsewhere, and that of the label.
SIDES = (
    ("text", "text_pair"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question", "sentence"),
    ("question1", "question2"),
    ("query", "passage"),
)
LABELS = ("label", "gold_label")


class LabelledPairs(TableText):
    """Pairs of texts with a label each: `len(text)`, iteration over (text, other, label), `.head(n)`, `.take(indices)`,
    `.fingerprint`. Labels are as those of `LabelledText`."""

    what = "a table of labelled pairs"
    columns = ("text", "text_pair", "label")
    numbered = True

    @classmethod
    def is_named_by(cls, spec: Any) -> bool:
        """Whether a user names a table, or a data set, with two texts a row."""
        name = spec if isinstance(spec, str) else spec[0] if isinstance(spec, list | tuple) else ""
        if str(name).startswith(DATASETS):
            named = parse_qs(str(name).partition("?")[2])
            # Columns that are named decide.
            if named.keys() & {"text", "text_pair"}:
                return "text_pair" in named
            return sides_of(dataset_named(name, cls.columns)[0].column_names) is not None
        table = named_table(spec)
        return table is not None and sides_of(names_in(existing_file(table))) is not None

    @classmethod
    def open(cls, spec: TextSpec, cache: AnyPath | None = None) -> Self:
        """A file ending in .tsv, .csv (its first line names the columns) or .jsonl (.gz may follow), with two texts as GLUE
        calls them, such as `premise` and `hypothesis`, and `label`; or "datasets:NAME?text=premise&text_pair=hypothesis".
        Raises HeadwiseError as `LabelledText.open`."""
        spec = one_spec(spec, cls.what.capitalize())
        if str(spec).startswith(DATASETS):
            dataset, name, options = dataset_named(spec, cls.columns)
            made = None if "text" in options else cls.made_of(dataset, name)
            return super().open(spec, cache) if made is None else made
        file = existing_file(spec)
        names = names_in(file)
        sides = sides_of(names)
        if sides is None:
            raise HeadwiseError(
                f"'{file}' has no two texts a row: name the columns text, text_pair and label."
            )
        keys = (*sides, next((name for name in LABELS if name in names), LABELS[0]))
        rows = cells_of(records_of(file, *keys), keys, numbered=True)
        return cls._write(rows, file.name, cache, file_key("labelled pairs", file))

    @classmethod
    def made_of(cls, given: Any, name: str = "rows") -> Self | None:
        """Such a text, of rows in Python: (text, other, label), or by name, a table, or a data set; None of anything
        else."""
        names: Sequence[Any] = getattr(given, "column_names", None) or ()
        rows: Any = given if names else as_rows(given)
        if not names and not (isinstance(rows, list | tuple) and rows):
            return None
        if not names and isinstance(rows[0], Mapping):
            names = list(rows[0])
        if names:
            sides = sides_of(names)
            label = next((name for name in LABELS if name in names), None)
            if sides is None or label is None:
                return None
            keys = (*sides, label)
            cells = rows_in_python([[row[key] for key in keys] for row in rows], cls)
            return cls._write(cells, name, None, classes=declared_classes(given, label))
        if all(isinstance(row, list | tuple) and len(row) == len(cls.columns) for row in rows):
            return cls.from_rows(rows)
        return None

    @property
    def lines(self) -> Sequence[str]:
        """Both texts of every pair, one behind the other."""
        return [f"{text} {other}" for text, other, _ in self.rows()]


def names_in(file: Path) -> list[str]:
    """The names of a table's columns."""
    first = next(iter(records_of(file)), None)
    return [] if first is None else list(first[0])


def sides_of(names: Iterable[Any]) -> tuple[str, str] | None:
    """What the columns of two texts are called; None where there are none. Raises HeadwiseError for a table with other
    texts beside them."""
    there = {*names}
    pairs = [pair for pair in SIDES if {*pair} <= there]
    others = [*pairs[1:], *([("text",)] if "text" in there and pairs[:1] != [SIDES[0]] else [])]
    if pairs and others:
        raise HeadwiseError(
            f"A table has {' and '.join(pairs[0])}, and also {' and '.join(others[0])}: leave out, or rename, what is not "
            "to be read."
        )
    return pairs[0] if pairs else None
