"""The report of a run: figures, tables and one self-contained page."""

from pathlib import Path


def write(run: str | Path) -> Path:
    """Write `report.html` and its figures into the folder of a finished study; returns the path of the page."""
    from headwise.report.page import write as write_page  # the charts' libraries take a second to load

    return write_page(Path(run))


__all__ = ["write"]
