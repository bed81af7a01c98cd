"""The report of a run, or of a grid of runs: figures, tables and one self-contained page.

`page.py` lists the sections of a page; each is a file of `sections/` with its template beside it.
"""

from pathlib import Path


def write(run: str | Path) -> Path:
    """Write `report.html` and its figures into the folder of a run, or of a grid of runs; returns its path."""
    from headwise.report.page import write as write_page  # the charts' libraries take a second to load

    return write_page(Path(run))


__all__ = ["write"]
