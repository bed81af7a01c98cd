"""The tables of the documentation's page on the truth suite, in Markdown, and their place between two marks."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.truth.planted import DISTRACTOR

MARK = "<!-- {}: made by `make truth` -->"
ENDS = "<!-- end -->"
SHOWN = (
    "saturated",
    "redundant 1",
    "backup",
    "quiet",
    "induction",
    "sink",
    "loud",
    "unread",
    "harmful",
)


def markdown(table: pd.DataFrame) -> str:
    """A table of strings."""
    rows: list[list[str]] = [
        list(table.columns),
        ["---"] * len(table.columns),
        *table.to_numpy().tolist(),
    ]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def with_bounds(row: pd.Series) -> str:
    bounds = f" [{row['low']:.2f}, {row['high']:.2f}]" if pd.notna(row["low"]) else ""
    return f"{row['value']:.2f}{bounds}"


def auroc_table(areas: pd.DataFrame) -> pd.DataFrame:
    """AUROC by score, the best first: all models, and each."""
    shown = areas.assign(text=areas.apply(with_bounds, axis=1))
    best = areas[areas["model"] == "all"].sort_values("value", ascending=False, kind="stable")[
        "measure"
    ]
    wide = shown.pivot_table(
        index="measure", columns="model", values="text", aggfunc="first", sort=False
    )
    models = ["all", *(name for name in wide.columns if name != "all")]
    found: pd.DataFrame = wide.loc[best, models].reset_index()
    return found.fillna("").assign(measure="`" + found["measure"] + "`")


def trap_table(sides: pd.DataFrame) -> pd.DataFrame:
    """By score, the share of heads on the right side of some planted heads, mean over models; 1 is right, 0 is wrong."""
    some = sides[sides["planted"].isin(SHOWN)]
    mean = some.pivot_table(index="measure", columns="planted", values="value", sort=False)
    columns = [name for name in SHOWN if name in mean]
    text = mean[columns].map(lambda value: f"{value:.2f}").reset_index()
    return text.assign(measure="`" + text["measure"] + "`")


def role_table(hits: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall by role."""
    shown = hits.assign(text=hits.apply(with_bounds, axis=1))
    wide = shown.pivot_table(
        index="role", columns="statistic", values="text", aggfunc="first", sort=False
    )
    heads = hits[hits["statistic"] == "recall"].set_index("role")["n"]
    found: pd.DataFrame = (
        wide.assign(heads=heads.reindex(wide.index).fillna(0).astype(int)).reset_index().fillna("–")
    )
    return found


def head_table(sides: pd.DataFrame) -> pd.DataFrame:
    """The planted heads of all models, with what is true of them."""
    heads = sides.drop_duplicates(["model", "planted"])
    named = (
        heads[heads["planted"] != DISTRACTOR]
        .groupby(["planted", "truth"], sort=False)["model"]
        .agg(", ".join)
    )
    return named.reset_index()[["planted", "truth", "model"]]


def tables(areas: pd.DataFrame, sides: pd.DataFrame, hits: pd.DataFrame) -> dict[str, str]:
    """The tables by the name of their mark."""
    made = {
        "heads": head_table(sides),
        "scores": auroc_table(areas),
        "traps": trap_table(sides),
        "roles": role_table(hits),
    }
    return {name: markdown(table) for name, table in made.items()}


def fill_tables(page: Path, made: dict[str, str]) -> None:
    """Put every table between its mark and the next end. Raises HeadwiseError for a page without the marks."""
    text = page.read_text(encoding="utf-8")
    for name, table in made.items():
        before, mark, rest = text.partition(MARK.format(name))
        _, end, after = rest.partition(ENDS)
        if not mark or not end:
            raise HeadwiseError(
                f"{page} has no '{MARK.format(name)}' with '{ENDS}' below it: write both there."
            )
        text = f"{before}{mark}\n\n{table}\n{end}{after}"
    write_text(page, text)
