"""Which score to believe: the judge's table, and sentences made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headwise.report.run import Run
from headwise.report.setting import Measured
from headwise.report.table import Line, Table
from headwise.report.wording import KIND_NAMES, NONE, listed, measure_name, number, ordinal, percent, sentence

COLUMNS = {
    "area": "loss while heads go",
    "area.rescored": "scored again",
    "spearman": "rank correlation",
    "spearman.within": "within layers",
    "kendall": "Kendall",
    "precision@25%": "top quarter found",
    "stability": "on another text",
}


@dataclass(frozen=True)
class Judged:
    """What the judge measured over all the kinds of heads that it had, by (measure, statistic)."""

    truth: str
    found: Mapping[tuple[str, str], Measured]
    by_kind: Mapping[str, Mapping[str, float]]  # rank correlations, by kind and measure

    def of(self, statistic: str) -> dict[str, Measured]:
        """A statistic by measure."""
        return {measure: value for (measure, name), value in self.found.items() if name == statistic}


def judged(run: Run) -> Judged | None:
    """The numbers of faithfulness.csv that the report tells; None without any."""
    if run.faithfulness is None or run.faithfulness.dropna(subset=["value"]).empty:
        return None
    table = run.faithfulness.dropna(subset=["value"])
    truths = table.loc[table["statistic"] == "ceiling", "against"]
    compared = table[(table["statistic"] == "spearman") & (table["measure"] != table["against"])]
    truth = str(next(iter([*truths, *compared["against"], "ablation.zero"])))
    other = table["statistic"].str.match("spearman|kendall|precision") & (table["against"] != truth)
    table = table[~other]
    widest = table["kinds"].str.count(r"\+").groupby([table["statistic"], table["measure"]]).transform("max")
    whole = table[table["kinds"].str.count(r"\+") == widest].drop_duplicates(["measure", "statistic"])
    single = table[(table["statistic"] == "spearman") & table["kinds"].isin(KIND_NAMES)]
    return Judged(
        truth,
        {(str(row["measure"]), str(row["statistic"])): _measured(row) for _, row in whole.iterrows()},
        {str(kind): dict(zip(part["measure"], part["value"], strict=True)) for kind, part in single.groupby("kinds")},
    )


def _measured(row: pd.Series[Any]) -> Measured:
    bounds = (None if pd.isna(row[end]) else float(row[end]) for end in ("low", "high"))
    return Measured(float(row["value"]), *bounds)


def judge_table(run: Run) -> Table | None:
    """One row a score, the one by which removal costs least first; random orders stand where they belong."""
    found = judged(run)
    if found is None:
        return None
    known = [name for name in COLUMNS if found.of(name)]
    measures = {measure for measure, name in found.found if name in COLUMNS}
    area, rank = found.of("area"), found.of("spearman")
    far = Measured(float("inf"))
    order = sorted(measures, key=lambda m: (area.get(m, far).value, -rank.get(m, Measured(-1)).value, m))
    best = most_faithful(found)
    lines = [
        Line(
            [
                "Random order" if m == "random" else sentence(measure_name(m)),
                *(_cell(found, m, name) for name in known),
            ],
            badge="best" if m == best else "",
            code="" if m == "random" else m.removeprefix("-"),
        )
        for m in order
    ]
    ceilings = {"spearman": "ceiling", "spearman.within": "ceiling.within"}
    if found.of("ceiling"):
        cells = [_cell(found, found.truth, ceilings.get(name, "")) for name in known]
        lines.append(Line([f"{sentence(measure_name(found.truth))}, repeated", *cells]))
    return Table("Scores and how far to believe them", ["score", *(COLUMNS[name] for name in known)], lines)


def most_faithful(found: Judged) -> str | None:
    """The measure by which removal costs least; without removal curves, that of the highest rank correlation."""
    if area := {m: v.value for m, v in found.of("area").items() if m != "random"}:
        return min(area, key=lambda m: area[m])
    rank = {m: v.value for m, v in found.of("spearman").items() if not m.startswith("ablation")}
    return max(rank, key=lambda m: rank[m]) if rank else None


def _cell(found: Judged, measure: str, statistic: str) -> str:
    """A value, and its interval on a line of its own; of random orders, their range."""
    value = found.found.get((measure, statistic))
    if value is None:
        return NONE
    scale = min(0.5, abs(value.value)) if statistic.startswith("area") else 0.5
    if statistic.startswith("precision"):
        return percent(value.value)
    if value.low is None or value.high is None:
        return number(value.value, scale)
    ends = [number(end, scale) for end in (value.low, value.high)]
    return f"{number(value.value, scale)}\n{' to '.join(ends) if measure == 'random' else f'[{ends[0]}, {ends[1]}]'}"


def with_interval(value: Measured, scale: float = 0.5) -> str:
    """`0.71 [0.62, 0.78]`."""
    told = number(value.value, scale)
    if value.low is None or value.high is None:
        return told
    return f"{told} [{number(value.low, scale)}, {number(value.high, scale)}]"


def in_short(run: Run) -> str | None:
    """The best score in one sentence; None where nothing was judged."""
    found = judged(run)
    best = None if found is None else most_faithful(found)
    if found is None or best is None:
        return None
    told = []
    if area := found.found.get((best, "area")):
        random = found.found.get(("random", "area"))
        beside = f" (random orders: {number(random.value, min(0.5, abs(area.value)))})" if random else ""
        cost = number(area.value, min(0.5, abs(area.value)))
        told.append(f"removing heads in its order costs {cost} nats a token on average{beside}")
    if rank := found.found.get((best, "spearman")):
        ceiling = found.found.get((found.truth, "ceiling"))
        beside = f" (of the ablation with itself: {number(ceiling.value, 0.5)})" if ceiling else ""
        told.append(f"its rank correlation with exact ablation is {number(rank.value, 0.5)}{beside}")
    return f"{sentence(measure_name(best))}: {listed(told)}."


def verdicts(run: Run) -> list[tuple[str, str]]:
    """What the judge found, as a lead word and a few sentences each."""
    found = judged(run)
    if found is None:
        return []
    told = [("By removal", by_removal(found)), ("By agreement", by_agreement(found))]
    return [(lead, text) for lead, text in told if text]


def by_removal(found: Judged) -> str:
    """Which order of removal costs least, what cannot be told from it, and where random orders and ablation stand."""
    area, again = found.of("area"), found.of("area.rescored")
    random = area.pop("random", None)
    if not area:
        return ""
    order = sorted(area, key=lambda m: area[m].value)
    best, scale = area[order[0]], min(0.5, abs(area[order[0]].value))
    told = (
        f"Removing the heads of lowest {measure_name(order[0])} first costs least: {with_interval(best, scale)} nats a "
        "token above the whole model, on average over the steps."
    )
    if random is not None:
        told += " " + _beside_random(best, random, scale)
    near = [m for m in order[1:] if _overlap(area[m], best)]
    if near:
        names = listed([f"{measure_name(m)} ({number(area[m].value, scale)})" for m in near[:4]])
        told += f" {sentence(names)} cannot be told from it: the intervals overlap."
    if again:
        lowest = min(again, key=lambda m: again[m].value)
        told += f" Scored again after each step, {measure_name(lowest)} costs {with_interval(again[lowest], scale)}."
    if found.truth in order[1:]:
        place = f"{ordinal(order.index(found.truth) + 1)} of {len(order)} ({number(area[found.truth].value, scale)})"
        told += f" The order by exact ablation of one head at a time comes {place}."
        if found.truth not in near:
            told += " A head whose work another one can take over looks unimportant when it goes alone."
    return told


def _beside_random(best: Measured, random: Measured, scale: float) -> str:
    start = f"Random orders cost {number(random.value, scale)}"
    if random.low is not None and random.high is not None:
        start += f" ({number(random.low, scale)} to {number(random.high, scale)})"
    if random.low is not None and best.value >= random.low:
        return f"{start}: no better than the luckiest of them."
    return f"{start}."


def _overlap(one: Measured, other: Measured) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def by_agreement(found: Judged) -> str:
    """Which cheap score ranks heads most as exact ablation does, held against how far ablation agrees with itself."""
    rank = {m: v for m, v in found.of("spearman").items() if not m.startswith("ablation")}
    if not rank:
        return ""
    order = sorted(rank, key=lambda m: -rank[m].value)
    best, ceiling = rank[order[0]], found.found.get((found.truth, "ceiling"))
    value = f"rank correlation {with_interval(best)}"
    if best.low is not None and best.low <= 0:
        told = f"No score clearly ranks heads as exact ablation does; {measure_name(order[0])} comes nearest ({value}"
    else:
        told = f"{sentence(measure_name(order[0]))} agrees best with exact ablation of one head at a time ({value}"
    if ceiling is not None:
        told += (
            f"; the ablation, repeated on another text as long, would agree with itself to {number(ceiling.value, 0.5)}"
        )
    told += ")."
    near = [m for m in order[1:] if best.low is not None and rank[m].value >= best.low]
    if near:
        names = listed([f"{measure_name(m)} ({number(rank[m].value, 0.5)})" for m in near[:4]])
        told += f" Within that interval: {names}."
    upside_down = [measure_name(m) for m, v in rank.items() if v.high is not None and v.high < 0]
    if upside_down:
        told += f" The other way round: {listed(upside_down)}; heads that it ranks high matter less."
    kinds = {kind: {m: v for m, v in part.items() if m in rank} for kind, part in found.by_kind.items()}
    if len(kinds) > 1:
        tops = {kind: max(part, key=lambda m, p=part: p[m]) for kind, part in kinds.items() if part}  # type: ignore[misc]
        parts = [f"{KIND_NAMES[k]} {measure_name(m)} ({number(kinds[k][m], 0.5)})" for k, m in tops.items()]
        told += f" Kind by kind the highest are: {listed(parts)}."
    return told
