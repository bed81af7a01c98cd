"""Everything that the report says about some made-up runs, as the text of sentences.txt.

`make sentences` writes that file again after a change of words; what `git diff` shows of it is read before the commit.
"""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from faces.report.conftest import data_of
from faces.report.made import (
    APART,
    causal,
    change,
    make_language,
    make_other,
    make_run,
    rescored,
)
from faces.report.made_sweeps import write_greedy, write_grid, write_sweeps
from headwise.faces.report.comparison import read_comparison
from headwise.faces.report.page import PageSubject, collect, figures_in, render
from headwise.faces.report.run_folder import read_run
from headwise.faces.report.runs import read_grid

FILE = Path(__file__).with_name("sentences.txt")
LONGEST = 12  # rows of a table that are shown whole
SHOWN = 3  # rows of a longer one


def run_page(folder: Path) -> PageSubject:
    return read_run(make_run(folder, rescored() | {"roles/causal.csv": causal()}))


def comparison_page(folder: Path) -> PageSubject:
    return read_comparison(make_run(folder / "first"), make_other(folder / "second"))


def apart_page(folder: Path) -> PageSubject:
    other = make_other(folder / "second", **APART)
    return read_comparison(make_run(folder / "first"), other)


def speech_page(folder: Path) -> PageSubject:
    def renamed(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(measure=table["measure"].str.replace("perplexity", "wer"))

    make_language(folder, sentences={"dev": 3, "test": 50})
    return read_run(change(folder, {"pruning.csv": renamed}))


def dev_page(folder: Path) -> PageSubject:
    def on_dev(table: pd.DataFrame) -> pd.DataFrame:
        return table[(table["measure"] != "bleu") | (table["split"] == "dev")]

    return read_run(change(write_sweeps(folder), {"pruning.csv": on_dev, "layouts": None}))


def scored_page(folder: Path) -> PageSubject:
    gone = ("pruning.csv", "translations", "gates", "layouts", "train", "faithfulness.csv")
    return read_run(make_run(folder, dict.fromkeys(gone)))


PAGES: dict[str, Callable[[Path], PageSubject]] = {
    "a run with everything": run_page,
    "two sweeps": lambda folder: read_run(write_sweeps(make_run(folder))),
    "only dev text": dev_page,
    "nothing pruned": scored_page,
    "a language model": lambda folder: read_run(make_language(folder)),
    "a speech model": speech_page,
    "a model of embeddings": lambda folder: read_run(write_greedy(folder)),
    "a grid": lambda folder: read_grid(write_grid(folder)),
    "two runs of a model": comparison_page,
    "two models trained apart": apart_page,
}


def sentences() -> str:
    """The text of all pages. Of what an earlier page says too, only the number of lines is written."""
    written: list[str] = []
    before: set[str] = set()
    for name, make in PAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            lines = lines_of(make(Path(folder) / "run"))
        written += ["", f"===== {name} =====", ""]
        known = 0
        for line in [*lines, ""]:
            if line in before:
                known += 1
                continue
            if known:
                written.append(f"({known} lines as above)")
            known = 0
            written.append(line)
        before |= set(lines)
    return "\n".join(written).strip() + "\n"


def lines_of(subject: PageSubject) -> list[str]:
    """The lines of a page, then what each of its charts draws."""
    content = collect(subject)
    lines = page_lines(render(subject, content))
    for figure in figures_in(list(content.values())):
        lines.append(f"chart {figure.name}: {figure.note}")
        for at, panel in enumerate(figure.panels):
            rows = data_of(figure, at)
            numbers = [cell for row in rows for cell in row.values() if isinstance(cell, float)]
            mean = sum(numbers) / max(len(numbers), 1)
            lines.append(f"  {panel.title}: {len(rows)} rows, mean of all numbers {mean:.4g}")
    return lines


def page_lines(page: str) -> list[str]:
    """A line for each block of text, cells of a row side by side; a long table has its first rows only."""
    page = re.sub(r"<(script|style|button|option)\b.*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(r"<tbody>.*?</tbody>", first_rows, page, flags=re.DOTALL)
    page = re.sub(r"\s+", " ", page)
    page = re.sub(r'<div class="table[^>]*aria-label="([^"]*)"[^>]*>', r"\nTable: \1\n", page)
    page = re.sub(r"</(td|th)>", " | ", page)
    page = re.sub(r"</dt>", ": ", page)
    page = page.replace("</span><span", "</span>: <span")
    page = re.sub(r'<(br|span class="(who|badge)")[^>]*>', " ", page)
    page = re.sub(
        r"</?(p|h\d|li|dl|dt|tr|div|figcaption|summary|section|title)\b[^>]*>", "\n", page
    )
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    lines = (" ".join(line.split()).strip(" |") for line in text.split("\n"))
    return [line for line in lines if line]


def first_rows(body: re.Match[str]) -> str:
    rows = body[0].split("</tr>")
    if len(rows) <= LONGEST:
        return body[0]
    return "</tr>".join([*rows[:SHOWN], f"<tr>… {len(rows) - 1} rows</tr></tbody>"])


if __name__ == "__main__":
    FILE.write_text(sentences(), encoding="utf-8")
