"""Every number of a page of results, and the cell of a CSV that it is rounded from: docs/results/numbers.csv.

    python tools/page_numbers.py            write again what differs from its cell, on the pages; find cells of new numbers
    python tools/page_numbers.py --find     the same, and drop the sources that no longer fit, to find others

A number is what has a decimal point, a sign, a percent sign or a place in brackets, outside code, links and addresses of
heads. numbers.csv has a row for each, in the order of its page: the number as it stands there, the file, the row (the cells
that name it) and the column it comes from, and the factor between both (100: per cent; −1: a loss). derived.csv has what
`derived_numbers.py` computes from other tables, measured.csv what was read from a terminal, with the command. What no table
of ours has is named in the column of the file: `setting` (of a command or a rule), `paper` (of others, whose source the page
names).
"""

from __future__ import annotations

import argparse
import csv
import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
TABLE = RESULTS / "numbers.csv"
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "methods" / "repair.md",
    *sorted(RESULTS.glob("*.md")),
]
NO_TABLE = ("setting", "paper")
OF_PAGES = ("derived.csv", "measured.csv")
FACTORS = ("1", "100", "-1", "-100")
MEASURED = re.compile(
    r"value|low|high|.*_low|.*_high|p|effect|baseline|bleu|difference|change|share|.*seconds|dev_loss|loss"
)
NO_MEASURES = (
    "n",
    "units",
    "random_sets",
    "times",
    "lost",
    "of",
    "kept",
    "total",
    "epochs",
    "step",
    "layer",
    "head",
)
FENCE = re.compile(r"^```")
# what holds digits and is no number: code, targets of links, tags, versions, signatures
NO_NUMBERS = re.compile(
    r"`[^`]*`|\]\([^)]*\)|<[^>]*>|\b\d+\.\d+\.\d+\b|(?:transformers|torch|Python|CTranslate2|version|Flickr) \d[\d.]*|"
    r"(?:CC BY-SA|Apache-2|Gemma|Apache) ?[\d.]*\d"
)
NUMBER = re.compile(
    r"(?<![\w./,−+-])(?P<number>[−+]?\d+(?:,\d{3})*(?:\.\d+)?)(?P<percent> ?%)?(?![\w/]|[.,]\d)"
)
ENDS = re.compile(r"\[[^\[\]]*\]|\([−+]?[\d.,]+ to [−+]?[\d.,]+\)")


class Source(NamedTuple):
    """Where a number comes from. row: the cells that name it, as column=cell, joined by blanks and semicolons."""

    file: str
    row: str = ""
    column: str = ""
    times: str = ""


@dataclass(frozen=True)
class PageNumber:
    """A number of a page. start, end: its place in the text. line: for people. about: the words around it. links: of its
    paragraph. place: 0, or 1 and 2 for the ends of an interval."""

    text: str
    start: int
    end: int
    line: int
    about: str
    links: tuple[str, ...]
    place: int
    percent: bool
    is_p: bool

    @property
    def decimals(self) -> int:
        return len(self.text.partition(".")[2])

    @property
    def value(self) -> Decimal:
        return Decimal(self.text.replace("−", "-").replace(",", ""))


def numbers_of(page: Path) -> list[PageNumber]:
    return list(read_numbers(page.read_text(encoding="utf-8")))


def read_numbers(text: str) -> Iterator[PageNumber]:
    inside = False
    start = 0
    lines = text.splitlines(keepends=True)
    paragraphs = paragraphs_of(lines)
    heading = ""
    links: tuple[str, ...] = ()
    for at, line in enumerate(lines):
        here, start = start, start + len(line)
        if FENCE.match(line):
            inside = not inside
        if inside or FENCE.match(line):
            continue
        block = "".join(lines[number] for number in paragraphs[at])
        # a table without links has those of the text above it
        links = tuple(re.findall(r"\]\(([^)#]+\.csv)\)", block)) or links
        plain = NO_NUMBERS.sub(lambda found: "\0" * len(found[0]), line)
        ends = [span.span() for span in ENDS.finditer(plain)]
        of_ends: dict[tuple[int, int], int] = {}
        if line.startswith("#"):
            heading, links = line, ()
        if line.startswith("|"):
            block = f"{lines[paragraphs[at][0]]} {line}"
        for found in NUMBER.finditer(plain):
            number = found["number"]
            span = next((one for one in ends if one[0] < found.start() < one[1]), None)
            if span:
                of_ends[span] = of_ends.get(span, 0) + 1
            if not (span or "." in number or number[0] in "−+" or found["percent"]):
                continue
            yield PageNumber(
                text=number,
                start=here + found.start("number"),
                end=here + found.end("number"),
                line=at + 1,
                about=f"{heading} {block}",
                links=links,
                place=of_ends[span] if span else 0,
                percent=bool(found["percent"]),
                is_p=line[: found.start()].endswith(("p = ", "p < ")),
            )


def paragraphs_of(lines: list[str]) -> list[list[int]]:
    """Of each line, the lines of its paragraph, entry of a list, or table."""
    groups: list[list[int]] = []
    found: list[list[int]] = []
    for at, line in enumerate(lines):
        fresh = not groups or not line.strip() or not lines[at - 1].strip()
        if fresh or re.match(r"[*\-] |\d+\. ", line):
            groups.append([])
        groups[-1].append(at)
        found.append(groups[-1])
    return found


@cache
def table_of(file: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / file, dtype=str, keep_default_na=False)


@cache
def cell(source: Source) -> str:
    """What stands there; raises KeyError where not just one row has these cells. Without any, the table has one row."""
    table = table_of(source.file)
    found = table
    for one in source.row.split("; ") if source.row else ():
        name, _, value = one.partition("=")
        found = found.iloc[[int(value)]] if name == "line" else found[found[name] == value]
    if len(found) != 1:
        raise KeyError(f"{source.file} has {len(found)} rows with {source.row}")
    return str(found[source.column].iloc[0])


def fits(number: PageNumber, source: Source) -> bool:
    """Whether the number is its cell, rounded once."""
    exact = Decimal(cell(source)) * Decimal(source.times)
    return abs(exact - number.value) <= Decimal(10) ** -number.decimals / 2


def rounded(number: PageNumber, source: Source) -> str:
    """The cell as the page would write it: with as many decimals, and the same sort of sign."""
    exact = Decimal(cell(source)) * Decimal(source.times)
    text = f"{exact:{'+' if number.text[0] == '+' else ''},.{number.decimals}f}"
    return text.replace("-", "−")


def complaints(text: str, rows: list[tuple[str, Source]]) -> list[str]:
    """What is wrong with the numbers of a page: those that are not in its rows, and those that are not their cells."""
    numbers = list(read_numbers(text))
    there = [one.text for one in numbers]
    if there != [one for one, _ in rows]:
        known = [one for one, _ in rows]
        changes = difflib.SequenceMatcher(None, known, there, autojunk=False).get_opcodes()
        _, a, b, c, d = next(change for change in changes if change[0] != "equal")
        at = f"line {numbers[min(c, len(numbers) - 1)].line}: " if numbers else ""
        return [f"{at}{known[a:b]} in numbers.csv, {there[c:d]} on the page"]
    found = []
    for number, (_, source) in zip(numbers, rows, strict=True):
        if source.file in NO_TABLE:
            continue
        if not source.file:
            found.append(f"line {number.line}: {number.text} has no source")
        elif not fits(number, source):
            found.append(f"line {number.line}: {number.text}, but {source} is {cell(source)}")
    return found


def read_table() -> dict[str, list[tuple[str, Source]]]:
    """By page, every number with its source."""
    found: dict[str, list[tuple[str, Source]]] = {}
    if TABLE.exists():
        with TABLE.open(encoding="utf-8", newline="") as file:
            for page, number, *source in list(csv.reader(file))[1:]:
                found.setdefault(page, []).append((number, Source(*source)))
    return found


def write_table(found: dict[str, list[tuple[str, Source]]]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["page", "number", *Source._fields])
        for page, rows in found.items():
            writer.writerows([page, number, *source] for number, source in rows)


class Cells:
    """All numbers of some CSV files."""

    def __init__(self, files: list[str], page: str) -> None:
        self.places: list[tuple[str, int, str]] = []
        values: list[float] = []
        self.words: dict[tuple[str, int], set[str]] = {}
        for file in files:
            table = table_of(file)
            for name in table.columns:
                column = pd.to_numeric(table[name], errors="coerce").to_numpy()
                there = np.isfinite(column)
                if Path(file).name in OF_PAGES:
                    there &= [page in pages.split() for pages in table["page"]]
                for row in np.flatnonzero(there):
                    self.places.append((file, int(row), name))
                    values.append(column[row])
        self.numbers = np.array(values)
        self.where = {place: number for number, place in enumerate(self.places)}

    def near(self, number: PageNumber, factor: str) -> np.ndarray:
        half = 0.5 * 10.0**-number.decimals * (1 + 1e-9)
        return np.flatnonzero(np.abs(self.numbers * float(factor) - float(number.value)) <= half)

    def keys(self, file: str, row: int) -> set[str]:
        """The words that name a row."""
        if (file, row) not in self.words:
            table = table_of(file)
            names = [name for name in table.columns if not MEASURED.fullmatch(name)]
            names = ["name"] if Path(file).name in OF_PAGES else names
            texts = [table[name].iloc[row] for name in names]
            self.words[file, row] = set(words(" ".join(texts)))
            here = table.iloc[row]
            if {"kind", "layer", "head"} <= set(table.columns):
                address = f"{here['layer']}/{here['head']}"
                self.words[file, row] |= {address}
        return self.words[file, row]


def words(text: str) -> list[str]:
    return re.findall(r"\d+/\d+|[a-zà-ÿ]+|\d+(?:\.\d+)?", text.lower())


def find_sources(page: Path, wanted: list[PageNumber]) -> list[tuple[Source, float] | None]:
    """The likeliest cell of each number among the tables of its page, and how likely: of its links, of its row's words, and
    such that an interval comes from one row."""
    text = page.read_text(encoding="utf-8")

    def files(links: Iterable[str]) -> set[str]:
        return {str((page.parent / link).resolve().relative_to(ROOT)) for link in links}

    linked = files(re.findall(r"\]\(([^)#]+\.csv)\)", text))
    own = {str(file.relative_to(ROOT)) for file in RESULTS.glob(f"{page.stem}*/**/*.csv")}
    of_pages = {str((RESULTS / name).relative_to(ROOT)) for name in OF_PAGES}
    cells = Cells(sorted(linked | own | of_pages), page.stem)
    found: list[tuple[Source, float] | None] = []
    last: tuple[str, int, int] | None = None
    for at, number in enumerate(wanted):
        group = [number]
        for after in wanted[at + 1 :]:
            if after.place != len(group) or after.line - number.line > 1:
                break
            group.append(after)
        near = files(number.links)
        about = set(words(number.about))
        best: tuple[float, Source, tuple[str, int, int]] | None = None
        for factor in FACTORS:
            for place in cells.near(number, factor):
                file, row, column = cells.places[place]
                if column in NO_MEASURES or (column.startswith("p") != number.is_p):
                    continue
                keys = cells.keys(file, row)
                score = 4.0 * (file in near) - 2 * (file not in linked)
                score += 3 * (file in of_pages)
                score -= {"1": 0, "100": 0 if number.percent else 2, "-1": 0.8, "-100": 3}[factor]
                score += len(keys & about) - 0.2 * len(keys - about)
                score += 0.5 * len(set(words(column.replace("_", " "))) & about)
                if number.place == 0 and len(group) == 3:
                    ends = ends_of(file, column)
                    # of a loss, the lower end of the change is the upper one
                    ends = ends[::-1] if factor.startswith("-") else ends
                    score += 6 * sum(
                        same(cells, (file, row, name), one, factor)
                        for one, name in zip(group[1:], ends, strict=False)
                    )
                    score -= 6 if not ends else 0
                elif number.place and last and (file, row) == last[:2]:
                    score += 12 + 3 * column.endswith(("", "low", "high")[number.place])
                elif number.place == 0 and column.endswith(("low", "high")):
                    score -= 3
                if last and last[2] >= number.line - 1:
                    score += 0.7 * (file == last[0]) + 0.7 * ((file, row) == last[:2])
                if best is None or score > best[0]:
                    source = Source(file, name_of(file, row), column, factor)
                    best = score, source, (file, row, number.line)
        found.append(best and (best[1], best[0]))
        last = best[2] if best else None
    return found


def ends_of(file: str, column: str) -> tuple[str, ...]:
    """The columns of the interval of a column."""
    columns = table_of(file).columns
    for pair in ((f"{column}_low", f"{column}_high"), ("low", "high")):
        if {*pair} <= {*columns} and column not in pair:
            return pair
    return ()


def same(cells: Cells, place: tuple[str, int, str], number: PageNumber, factor: str) -> bool:
    if place not in cells.where:
        return False
    half = 0.5 * 10.0**-number.decimals * (1 + 1e-9)
    found = float(cells.numbers[cells.where[place]]) * float(factor)
    return abs(found - float(number.value)) <= half


@cache
def name_of(file: str, row: int) -> str:
    """The fewest cells from the left that name a row."""
    table = table_of(file)
    there = pd.Series(True, index=table.index)
    parts = []
    for name in table.columns:
        if MEASURED.fullmatch(name) or "; " in table[name].iloc[row]:
            continue
        narrower = there & (table[name] == table[name].iloc[row])
        if narrower.sum() < there.sum():
            parts.append(f"{name}={table[name].iloc[row]}")
            there = narrower
        if there.sum() == 1:
            return "; ".join(parts)
    return f"line={row}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--find", action="store_true")
    given = parser.parse_args()
    old = read_table()
    made: dict[str, list[tuple[str, Source]]] = {}
    without = 0
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        text = page.read_text(encoding="utf-8")
        numbers = list(read_numbers(text))
        sources: list[Source | None] = [None] * len(numbers)
        before = old.get(name, [])
        matcher = difflib.SequenceMatcher(
            None, [one for one, _ in before], [one.text for one in numbers], autojunk=False
        )
        for tag, a, b, c, d in matcher.get_opcodes():
            # a number that was changed by hand keeps its source, and is written again
            if tag == "equal" or (tag == "replace" and b - a == d - c and not given.find):
                sources[c:d] = [source if source.file else None for _, source in before[a:b]]
        changes: list[tuple[PageNumber, str]] = []
        for at, (number, source) in enumerate(zip(numbers, sources, strict=True)):
            if source is None or source.file in NO_TABLE:
                continue
            try:
                fit = fits(number, source)
            except (KeyError, InvalidOperation, FileNotFoundError):
                sources[at] = None
                continue
            if not fit and given.find:
                sources[at] = None
            elif not fit:
                changes.append((number, rounded(number, source)))
        if None in sources:
            fresh = [one and one[0] for one in find_sources(page, numbers)]
            sources = [one or other for one, other in zip(sources, fresh, strict=True)]
        for number, after in reversed(changes):
            print(f"{name}:{number.line}: {number.text} → {after}")
            text = text[: number.start] + after + text[number.end :]
        if changes:
            page.write_text(text, encoding="utf-8")
        texts = [one.text for one in read_numbers(text)]
        for number, source in zip(numbers, sources, strict=True):
            if source is None:
                without += 1
                print(
                    f"{name}:{number.line}: {number.text} has no table: {number.about[-90:].strip()}"
                )
        made[name] = [
            (number, source or Source("")) for number, source in zip(texts, sources, strict=True)
        ]
    write_table(made)
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main())
