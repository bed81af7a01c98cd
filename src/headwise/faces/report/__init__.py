"""The report of a run, of a grid of runs, or of two runs side by side: figures, tables and one self-contained page.

`page.py` puts a page together from its sections, which are declared by `@section(…)` in the files beside it.
"""

from importlib.util import find_spec
from os import PathLike
from pathlib import Path

from headwise.core.errors import HeadwiseError, called_as
from headwise.core.folders import PAGES, Folder


def need_drawing() -> None:
    """Raise HeadwiseError where the package that draws pages and figures is not installed."""
    # Looked for, not imported: the library is large, and not every step draws.
    if find_spec("vl_convert") is None:
        raise HeadwiseError(
            "Pages are drawn by vl-convert-python, which is not installed: pip install 'headwise[report]'."
        )


@called_as("hw.report('runs/mine')")
def report(run: str | PathLike[str]) -> Path:
    """Write `report.html` and its figures into the folder of a run, or of a grid of runs; returns its path.

    run: the folder, or what `hw.Run` made of it.

    Raises HeadwiseError for a folder that is no run, whose files cannot be read, or that cannot be written, and for a
    page or a figure there that headwise did not write. It needs `pip install 'headwise[report]'`, as `compare`
    does.
    """
    need_drawing()
    # The libraries of charts take a second to load.
    from headwise.faces.report.page import PAGE_FILES, page_files
    from headwise.faces.report.run_folder import read_run
    from headwise.faces.report.runs import read_grid

    pages = Folder(run, PAGES)
    # Before the run is read: nobody waits for a page that cannot be written.
    pages.refuse_others(["report.html"])
    folder = pages.place
    subject = read_grid(folder) if (folder / "grid.json").is_file() else read_run(folder)
    pages.write(page_files(subject), PAGE_FILES)
    return folder / "report.html"


@called_as("hw.compare('runs/one', 'runs/other')")
def compare(
    run: str | PathLike[str],
    other: str | PathLike[str],
    out: str | PathLike[str] = Path("runs/comparison"),
) -> Path:
    """Write a page of what differs between two runs into the folder `out`; returns its path.

    Raises HeadwiseError as `report` does, for two runs that are one or have nothing to compare, and for a folder `out`
    with other files, such as a run's.
    """
    need_drawing()
    from headwise.faces.report.comparison import read_comparison
    from headwise.faces.report.page import PAGE_FILES, page_files

    folder = Folder(out)
    folder.refuse_others(["report.html"])
    both = read_comparison(Folder(run).place, Folder(other).place)
    folder.write(page_files(both), PAGE_FILES)
    return folder.place / "report.html"


__all__ = ["compare", "report"]
