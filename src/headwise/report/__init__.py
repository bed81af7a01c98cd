"""The report of a run, of a grid of runs, or of two runs side by side: figures, tables and one self-contained page.

`page.py` lists the sections of a page; each is a file of `sections/` with its template beside it.
"""

from pathlib import Path

from headwise.errors import HeadwiseError


def write(run: str | Path, other: str | Path | None = None, out: str | Path | None = None) -> Path:
    """Write `report.html` and its figures into the folder of a run, or of a grid of runs; returns its path.

    other: another run; the page then shows what differs between the two, and stands in `out` (`runs/difference`).
    Raises HeadwiseError for a folder that is no run, whose files cannot be read, or that cannot be written; for two
    runs that are one, or have nothing to compare.
    """
    from headwise.report import page  # the charts' libraries take a second to load
    from headwise.report.difference import read_difference

    if other is None:
        if out is not None:
            raise HeadwiseError(
                f"The report of one run stands in its folder: name a second run, or leave out {out}."
            )
        return page.write(page.read(Path(run)), Path(run))
    found, folder = read_difference(Path(run), Path(other)), Path(out or "runs/difference")
    if any((folder / name).exists() for name in ("run.json", "grid.json")):
        raise HeadwiseError(
            f"{folder} is the folder of a run, which has a report of its own: name another folder."
        )
    return page.write(found, folder)


__all__ = ["write"]
