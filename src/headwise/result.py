"""What an analysis found: tables, and the signature of how they were made. Every result is written, said and shown alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from headwise.folders import Folder
from headwise.grid import HeadGrid


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
