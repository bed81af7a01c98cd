"""Relevance told in sentences and a table: where it parts from other scores, how its two modes differ, what it lost."""

from __future__ import annotations

import pandas as pd

from headwise.report.run import Run
from headwise.report.table import Line, Table
from headwise.report.wording import NONE, listed, measure_name, number, ordinal, percent

RELEVANCE = {
    "started": "went in",
    "arrived": "arrived at the embeddings",
    "bias": "biases",
    "norm": "norms",
    "softmax": "softmax",
    "other": "other",
}
FAR = 0.5  # of a layer's places: from here on a head is an exception


def parting(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """How far two scores of the same kind of heads agree within layers, and at which heads they part."""
    both = one.merge(other, on=["layer", "head"], suffixes=("_one", "_other"))
    first, second = (measure_name(str(table["measure"].iloc[0])) for table in (one, other))
    ranks = both.groupby("layer")[["value_one", "value_other"]].rank(ascending=False)
    size = both.groupby("layer")["head"].transform("size")
    inside = [part["value_one"].corr(part["value_other"]) for _, part in ranks.groupby(both["layer"])]
    agreed = pd.Series(inside, dtype=float).mean()
    if pd.isna(agreed):
        return ""
    told = f"{first} and {second} have a rank correlation of {number(agreed, 0.5)} within layers."
    places = (ranks["value_one"] - ranks["value_other"]).abs() / (size - 1).clip(lower=1)
    far = places[places >= FAR].sort_values(ascending=False, kind="stable").index[:3]
    heads = [
        f"h{both.loc[i, 'head']} of layer {both.loc[i, 'layer']} ({ordinal(round(ranks.loc[i, 'value_one']))} of "
        f"{size[i]} by {first}, {ordinal(round(ranks.loc[i, 'value_other']))} by {second})"
        for i in far
    ]
    return f"{told} They part most at {listed(heads)}." if heads else told


def pooled_sentences(run: Run) -> list[str]:
    """How far relevance of all positions started at once is from that of one position after the other."""
    if run.heads is None:
        return []
    heads = run.heads.dropna(subset=["value"]).set_index(["kind", "layer", "head"])
    told = []
    for measure in sorted(set(heads["measure"])):
        pooled = heads.loc[heads["measure"] == f"{measure}.pooled", "value"]
        steps = heads.loc[heads["measure"] == measure, "value"].reindex(pooled.index).dropna()
        if not measure.startswith("lrp") or len(steps) < 2:
            continue
        apart = (pooled - steps).abs().dropna()
        kind, layer, head = apart.idxmax()
        at = (kind, layer, head)
        told.append(
            f"{measure_name(measure)}: per step and pooled have a rank correlation of "
            f"{number(pooled.rank().corr(steps.rank()), 0.5)}; they are furthest apart at {kind}/{layer}/{head}, "
            f"{number(steps[at], steps[at], 1)} against {number(pooled[at], steps[at], 1)}."
        )
    return told


def conservation_table(run: Run) -> Table | None:
    """Of the relevance that went in, what arrived and what was absorbed on the way; None without lrp.csv."""
    if run.lrp is None or run.lrp.dropna(subset=["value"]).empty:
        return None
    table = run.lrp.dropna(subset=["value"])
    known = [what for what in RELEVANCE if what in set(table["what"])]
    lines = []
    for (name, mode), part in table.groupby(["measure", "mode"], sort=False):
        measure = str(name)
        values = dict(zip(part["what"], part["value"], strict=True))
        cells = [percent(values[what], 1).replace("-", "−") if what in values else NONE for what in known]
        lines.append(Line([f"{measure_name(measure)}, {mode}", *cells], code=measure))
    return Table("What became of relevance", ["rule", *(RELEVANCE[what] for what in known)], lines)
