"""The report of a run, of a grid of runs, or of two runs side by side: figures, tables and one self-contained page.

`page.py` puts a page together from its sections, which are declared by `@section(…)` in the files beside it.
"""

from pathlib import Path

from headwise.errors import HeadwiseError
from headwise.files import below


def report(run: str | Path) -> Path:
    """Write `report.html` and its figures into the folder of a run, or of a grid of runs; returns its path.

    Raises HeadwiseError for a folder that is no run, whose files cannot be read, or that cannot be written.
    """
    # The libraries of charts take a second to load.
    from headwise.report.page import write_page
    from headwise.report.run_folder import read_run
    from headwise.report.run_grid import read_grid

    folder = Path(run)
    if (folder / "grid.json").is_file():
        return write_page(read_grid(folder), folder)
    return write_page(read_run(folder), folder)


def compare(run: str | Path, other: str | Path, out: str | Path = Path("runs/comparison")) -> Path:
    """Write a page of what differs between two runs into the folder `out`; returns its path.

    Raises HeadwiseError as `report` does, for two runs that are one or have nothing to compare, and for a folder `out`
    that is itself a run.
    """
    from headwise.report.comparison import read_comparison
    from headwise.report.page import write_page

    both = read_comparison(Path(run), Path(other))
    folder = Path(out)
    if any(below(folder, name).exists() for name in ("run.json", "grid.json")):
        raise HeadwiseError(
            f"{folder} is the folder of a run, which has a report of its own: name another folder."
        )
    return write_page(both, folder)


def animate(run: str | Path, file: str | Path) -> Path:
    """Write how the gates of a run closed as an animation: a GIF (`.gif`) or a video (`.mp4`); returns its path.

    Raises HeadwiseError for another ending, for a run without gates, and when `.mp4` lacks imageio-ffmpeg
    (`pip install "headwise[video]"`).
    """
    from headwise.report.gate_history import write_animation

    return write_animation(Path(run), Path(file))


__all__ = ["animate", "compare", "report"]
