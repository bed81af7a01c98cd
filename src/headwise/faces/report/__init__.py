"""The report of a run, of a grid of runs, or of two runs side by side: figures, tables and one self-contained page.

`page.py` puts a page together from its sections, which are declared by `@section(…)` in the files beside it.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

from headwise.core.errors import HeadwiseError, called_as, shown_value
from headwise.core.folders import PAGES, Folder
from headwise.core.head_panels import picture_path


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


@called_as("compare('runs/one', 'runs/other')")
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


@called_as("hw.figure('importance', 'runs/score/my-model', out='fig1.pdf')")
def figure(
    name: str,
    *folders: str | PathLike[str],
    out: str | PathLike[str],
    width: str | float = "page",
    kind: str = "",
    measures: Sequence[str] = (),
    sort: str = "",
    dark: bool = False,
) -> Path:
    """Draw a figure of the papers into one file, .pdf, .svg or .png; returns its path. Fonts are embedded in PDF.

    name: what it shows. `importance`: relevance, confidence and functions of heads (Voita et al. 2019, figure 1);
    `roles`: functions beside relevance (2); `quality` against the heads kept (7; Michel et al. 2019, figure 3); `kept`:
    what the heads that stay do (8); `kinds` and `layers` that keep their heads (9, 10); `gates`: how they close.
    folders: of one model, such as its scores and its roles; runs too. width: `column` (3.3 inches), `page` (7), or
    inches. kind: of heads, by default the encoder's where there are any. measures: those to show, by default relevance
    and confidence; sort: the measure that orders the heads of a layer, by default the first. dark: for dark slides.

    Raises HeadwiseError for another name or ending, for folders of different models, and where they lack what the
    figure needs.
    """
    need_drawing()
    from headwise.core.heads import KINDS
    from headwise.faces.report.paper_figures import WIDTHS, Wanted, figure_named, write_figure
    from headwise.faces.report.run_folder import read_folders

    figure_named(name)
    inches = WIDTHS.get(width, width) if isinstance(width, str) else width
    if not isinstance(inches, int | float) or not 1 <= inches <= 50:
        raise HeadwiseError(
            f"The width of a figure is column, page, or 1 to 50 inches, not {shown_value(width)}."
        )
    if kind and kind not in KINDS:
        raise HeadwiseError(f"There is no kind of heads '{kind}': choose {', '.join(KINDS)}.")
    place = picture_path(out)
    run = read_folders([Folder(folder).place for folder in folders])
    return write_figure(run, name, place, Wanted(kind, measures, sort), float(inches), dark)


__all__ = ["compare", "figure", "report"]
