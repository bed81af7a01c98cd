"""Which score to trust, from what the judge found: for the report and the terminal, without torch."""

from __future__ import annotations

import math

import pandas as pd

STATED = {"area": "loss", "spearman": "rank", "spearman.within": "within layers"}


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of faithfulness.csv in which scores are compared with one truth; no row without any."""
    table = table.dropna(subset=["value"])
    ceilings = table.loc[table["statistic"] == "ceiling", "against"]
    ranked = (table["statistic"] == "spearman") & (table["measure"] != table["against"])
    truth = next(iter([*ceilings, *table.loc[ranked, "against"], "ablation.zero"]))
    compared = table["statistic"].str.match("spearman|kendall|precision")
    # Areas are about no truth, so all of them stay.
    found: pd.DataFrame = table[~compared | (table["against"] == truth)]
    return found


def faithfulness_statistics(table: pd.DataFrame) -> pd.DataFrame:
    """The statistics over all the kinds of heads it had: columns value, low, high, against; index measure and
    statistic."""
    table = judged(table)
    # Kinds are joined by +: the more of these, the more kinds.
    several = table["kinds"].str.count(r"\+")
    widest = several.groupby([table["statistic"], table["measure"]]).transform("max")
    found = table[several == widest].drop_duplicates(["measure", "statistic"])
    return found.set_index(["measure", "statistic"])


def by_measure(found: pd.DataFrame, statistic: str) -> pd.DataFrame:
    """A statistic by measure."""
    here: pd.DataFrame = found[found.index.get_level_values("statistic") == statistic].droplevel(
        "statistic"
    )
    return here


def most_faithful(found: pd.DataFrame) -> str | None:
    """The measure by which removal costs least; without removal curves, that of the highest rank correlation."""
    area = by_measure(found, "area")["value"].drop("random", errors="ignore")
    if len(area):
        return str(area.idxmin())
    rank = by_measure(found, "spearman")["value"]
    # An ablation would agree best with itself.
    rank = rank[~rank.index.str.startswith("ablation")]
    return str(rank.idxmax()) if len(rank) else None


def as_faithful(found: pd.DataFrame, best: str | None) -> list[str]:
    """The other measures whose area has an interval that overlaps that of the best."""
    area = by_measure(found, "area").drop("random", errors="ignore").dropna(subset=["low", "high"])
    if best is None or best not in area.index:
        return []
    low, high = area.loc[best, ["low", "high"]]
    near = area.index[(area["low"] <= high) & (area["high"] >= low)]
    return [str(name) for name in near if name != best]


def judge_lines(table: pd.DataFrame) -> list[str]:
    """What the terminal says: for each measure, how much loss removal in its order costs and how it ranks heads beside
    exact ablation; then which to trust."""
    found = faithfulness_statistics(table)
    values = found["value"].to_dict()
    lines = [
        "  Which score to trust. Loss: mean while heads are removed in its order, in nats per token; rank: correlation "
        "with exact ablation, over all heads and within layers:"
    ]

    def order(name: str) -> tuple[float, float]:
        return values.get((name, "area"), math.inf), -values.get((name, "spearman"), -1)

    for name in sorted(set(found.index.get_level_values("measure")), key=order):
        cells = []
        for statistic, title in STATED.items():
            if (name, statistic) in values:
                one = found.loc[(name, statistic)]
                ends = f" [{one['low']:.2f}, {one['high']:.2f}]" if one["low"] == one["low"] else ""
                cells.append(f"{title} {one['value']:.2f}{ends}")
        if cells:
            title = "random orders" if name == "random" else name
            lines.append(f"    {title}: {', '.join(cells)}")
    ceiling = next(iter(by_measure(found, "ceiling")["value"]), None)
    if ceiling is not None:
        lines.append(
            f"    On two halves of a text, exact ablation agrees with itself to {ceiling:.2f}."
        )
    best = most_faithful(found)
    if best is not None:
        others = as_faithful(found, best)
        doubt = f"; this text is too short to tell it from {', '.join(others)}" if others else ""
        lines.append(f"  Trust {best} when you remove several heads{doubt}.")
    return lines
