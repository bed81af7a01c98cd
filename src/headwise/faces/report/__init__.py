"""The page of folders of results, of a grid of runs, or of two runs side by side, with its figures.

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
def report(*folders: str | PathLike[str], out: str | PathLike[str] | None = None) -> Path:
    """Write a page, `report.html`, and its figures; returns its path.

    folders: one of a study, of a grid of studies, of scores or of roles (or what `hw.Run` made of it), whose page is
    written into it; two of studies, whose page says what differs; or several of one model, such as its scores and its
    roles, whose page shows all of them. out: the folder of the page; of two or more by default `runs/comparison` or
    `runs/report`.

    Raises HeadwiseError for a folder that is none of these, whose files cannot be read, or that cannot be written, for
    studies that have nothing to compare, and for a page or a figure there that headwise did not write. It needs
    `pip install 'headwise[report]'`.
    """
    need_drawing()
    # The libraries of charts take a second to load.
    from headwise.faces.report.comparison import read_comparison
    from headwise.faces.report.page import PAGE_FILES, PageSubject, page_files
    from headwise.faces.report.run_folder import read_folders
    from headwise.faces.report.runs import read_grid

    places = [Folder(folder).place for folder in folders]
    differ = len(places) == 2 and all((place / "run.json").is_file() for place in places)
    if len(places) == 1 and out is None:
        pages = Folder(places[0], PAGES)
    else:
        pages = Folder(out or Path("runs/comparison" if differ else "runs/report"))
    # Before anything is read: nobody waits for a page that cannot be written.
    pages.refuse_others(["report.html"])
    subject: PageSubject
    if differ:
        subject = read_comparison(*places)
    elif len(places) == 1 and (places[0] / "grid.json").is_file():
        subject = read_grid(places[0])
    else:
        subject = read_folders(places)
    pages.write(page_files(subject), PAGE_FILES)
    return pages.place / "report.html"


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
    """Draw a figure of the papers into one file, .pdf, .svg or .png; returns its path. Fonts are embedded in PDF. Its
    caption is written beside it: of `fig1.pdf`, into `fig1.caption.txt`, and into `fig1.caption.tex` with the figure.

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


__all__ = ["figure", "report"]
