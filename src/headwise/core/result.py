"""What an analysis found: tables, and the signature of how they were made. Every result is written, read, said and shown
alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from math import isnan
from numbers import Integral
from os import PathLike
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar, Self

from headwise.core.errors import HeadwiseError, NoSuchName, did_you_mean, shown_value
from headwise.core.folders import Folder, as_path
from headwise.core.grid import HeadGrid
from headwise.core.heads import named_heads
from headwise.core.tables import Table

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 80  # characters of a line
PRINTED = 5  # rows of a printed result
LISTED = 20  # rows of a notebook's table
MOST_PICTURES = 8  # of a notebook


class Result(ABC):
    """A result. FILES: all files that results of its class may have, the main one first. TOP: the columns of `top`.
    CAPTION: of its pictures."""

    FILES: ClassVar[tuple[str, ...]]
    TOP: ClassVar[tuple[str, ...]]
    CAPTION: ClassVar[str] = "Heads in columns, layers in rows:"

    table: pd.DataFrame

    @abstractmethod
    def files(self) -> dict[str, str]:
        """What `save` writes, by name."""

    @abstractmethod
    def ranked(self) -> pd.DataFrame:
        """The rows that readers want, the best first, with all columns."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """What it is, in a few words."""

    def save(self, folder: str | PathLike[str]) -> list[Path]:
        """Write the tables into a folder, instead of those of an earlier result. Returns their paths. Raises
        HeadwiseError for a folder with files that headwise did not write there."""
        return Folder(folder).write(self.files(), self.FILES)

    def __len__(self) -> int:
        return len(self.table)

    def __bool__(self) -> bool:
        return True  # also of a table without rows

    def __iter__(self) -> Any:
        raise HeadwiseError(
            f"{type(self).__name__} is no list: for row in scores.table.itertuples(): … goes through its rows."
        )

    def top(self, count: int = 10) -> pd.DataFrame:
        """So many rows, the best first, in the columns that matter most; a head is one name, `cross/0/5`, which all that
        takes heads understands. Raises HeadwiseError for another number than 1 or more."""
        return top_rows(self.ranked(), self.TOP, count)

    def lines(self) -> list[str]:
        """What the terminal says of it."""
        return []

    def notes(self) -> Sequence[str]:
        """What readers of the numbers should know."""
        return ()

    def grids(self) -> Sequence[HeadGrid]:
        """Pictures of the heads."""
        return ()

    def __getitem__(self, name: object) -> Any:
        raise HeadwiseError(
            f"{type(self).__name__} was asked for {shown_value(name)}, and is no table: .table is one, of pandas; .top(10) "
            "has its best rows."
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # protocols of Python and of notebooks
                raise AttributeError(name)
            near = did_you_mean(name, dir(type(self)))
            raise NoSuchName(
                f"{type(self).__name__} has no {name}{near}: its numbers are in .table, a table of pandas."
            )

    def __repr__(self) -> str:
        """The best rows, in lines of WIDTH characters."""
        title = shorten(f"{type(self).__name__}({self.summary})", WIDTH, placeholder=" …)")
        return f"{title}\n{printed(self.top(PRINTED))}"

    def _repr_html_(self) -> str:
        """The pictures, the best rows, and the notes."""
        pictures = "".join(grid.html() for grid in self.grids()[:MOST_PICTURES])
        rows = self.top(LISTED).to_html(index=False, na_rep="", float_format=plain_number)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes())
        side_by_side = "display: flex; flex-wrap: wrap; gap: 1em"
        return f'<div style="{side_by_side}">{pictures}</div>{rows}{notes}'


def ends(low: float, high: float, form: str) -> str:
    """An interval in words, such as `[+0.01, +0.20]`; form: of its ends."""
    # of few units, and of units that are all alike
    if isnan(low) or isnan(high):
        return "[no interval]"
    return f"[{low:{form}}, {high:{form}}]"


@dataclass(frozen=True, repr=False)
class TableResult(Result):
    """A result of one table, and the signature of how it was made. TABLE: what the table is."""

    table: pd.DataFrame
    signature: dict[str, Any]

    TABLE: ClassVar[Table]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.FILES = cls.TABLE.files

    @property
    def summary(self) -> str:
        return f"{len(self.table)} rows"

    def ranked(self) -> pd.DataFrame:
        return self.table

    def files(self) -> dict[str, str]:
        return self.TABLE.contents(self.table, self.signature)

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Self:
        """A result that `save`, the command line or a study wrote into a folder. Raises HeadwiseError for files that are
        missing or damaged."""
        return cls(*cls.TABLE.read_signed(as_path(folder) / cls.TABLE.file))


def top_rows(table: pd.DataFrame, columns: Sequence[str], count: int) -> pd.DataFrame:
    """So many rows of a table, in these columns, heads as names."""
    if not isinstance(count, Integral) or count < 1:
        raise HeadwiseError(
            f"A number of rows is {count!r:.60}: give a whole number of at least 1, such as top(10)."
        )
    return named_heads(table)[[*columns]].head(int(count)).reset_index(drop=True)


def printed(table: pd.DataFrame, width: int = WIDTH) -> str:
    """A table in lines of `width` characters; long words are cut, numbers are not."""
    text = ""
    # `to_string` limits words, not lines: the largest limit with which the lines fit.
    for widest in range(width, 5, -1):
        text = table.map(partial(end_of_path, most=widest)).to_string(
            index=False, na_rep="", max_colwidth=widest, float_format=plain_number
        )
        if max(map(len, text.splitlines())) <= width:
            break
    return text


def end_of_path(cell: Any, most: int) -> Any:
    """A cell whose end fits, where it is a path: models of one folder differ there."""
    is_long = isinstance(cell, str) and "/" in cell and len(cell) >= most
    return f"…{cell[2 - most :]}" if is_long else cell


def plain_number(value: float) -> str:
    """`0.1235`, `29,120`."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
