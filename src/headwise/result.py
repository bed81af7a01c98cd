"""What an analysis found: tables, and the signature of how they were made. Every result is written, said and shown alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwise.folders import Folder
from headwise.grid import HeadGrid
from headwise.heads import table_files

if TYPE_CHECKING:
    import pandas as pd


class Result(ABC):
    """A result. FILES: all files that results of its class may have, the main one first. CAPTION: of its pictures."""

    FILES: ClassVar[tuple[str, ...]]
    CAPTION: ClassVar[str] = "Heads in columns, layers in rows:"

    @abstractmethod
    def files(self) -> dict[str, str]:
        """What `save` writes, by name."""

    def save(self, folder: str | Path) -> list[Path]:
        """Write the tables into a folder, instead of those of an earlier result. Returns their paths. Raises
        HeadwiseError for a folder with files that headwise did not write there."""
        return Folder(folder).write(self.files(), self.FILES)

    def lines(self) -> list[str]:
        """What the terminal says of it."""
        return []

    def grids(self) -> Sequence[HeadGrid]:
        """Pictures of the heads."""
        return []


@dataclass(frozen=True)
class TableResult(Result):
    """A result of one table, and the signature of how it was made. FILES: the table, and its signature."""

    table: pd.DataFrame
    signature: dict[str, Any]

    def files(self) -> dict[str, str]:
        return table_files(self.table, self.signature, Path(self.FILES[0]).stem)
