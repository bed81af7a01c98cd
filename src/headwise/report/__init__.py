"""The report of a run, or of a grid of runs: figures, tables and one self-contained page."""

from pathlib import Path


def write(run: str | Path) -> Path:
    """Write `report.html` and its figures into the folder of a study, or of a grid of studies; returns its path."""
    if (Path(run) / "grid.json").is_file():
        from headwise.report.grid_page import write as write_page  # the charts' libraries take a second to load
    else:
        from headwise.report.page import write as write_page

    return write_page(Path(run))


__all__ = ["write"]
