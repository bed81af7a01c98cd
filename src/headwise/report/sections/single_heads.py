"""Part of scores: one head switched off, and one head alone in its layer (Michel et al. 2019, tables 1 and 2)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from headwise.heads import KINDS
from headwise.report.parts import Row, Table
from headwise.report.run import Run
from headwise.report.words import KIND_NAMES, NONE, capital, signed

BLEU, LOSS, ALONE = "ablation.bleu", "ablation.zero", "ablation.all-but-one"
FALSE_RATE = 0.05  # how often a 95 % interval leaves 0 out when nothing differs


def build(run: Run) -> dict[str, Any]:
    """`effects`: for each kind the change without each head, in BLEU or else in loss; `alone`: the best lone heads."""
    measure = next((name for name in (BLEU, LOSS) if len(_rows(run, name))), BLEU)
    table = _rows(run, measure)
    effects = [_effects(table[table["kind"] == kind], measure) for kind in KINDS if kind in set(table["kind"])]
    return {"effects": effects, "in_bleu": measure == BLEU, "alone": alone_table(run)}


def _rows(run: Run, measure: str) -> pd.DataFrame:
    if run.heads is None:
        return pd.DataFrame(columns=["kind"])
    return run.heads[run.heads["measure"] == measure].dropna(subset=["value"])


def _effects(table: pd.DataFrame, measure: str) -> dict[str, Any]:
    """A kind's change without each head, layer by layer. `ablation.bleu` counts points lost: its change is negative."""
    sign, scale, digits = (-1, 1, 2) if measure == BLEU else (1, 1000, 1)
    table = table.sort_values(["layer", "head"])
    table[["change", "low", "high"]] = (
        sign * scale * table[["value", *(("high", "low") if sign < 0 else ("low", "high"))]]
    )
    table["sure"] = (table["low"] > 0) | (table["high"] < 0)
    table["gain"] = table["change"] * sign < 0
    layers: dict[int, dict[int, dict[str, Any]]] = {}
    for row in table.to_dict("records"):
        text = signed(row["change"], digits)
        between = "" if pd.isna(row["low"]) else f" [{signed(row['low'], digits)}, {signed(row['high'], digits)}]"
        tip = f"{row['kind']}/{row['layer']}/{row['head']}: {text}{between}"
        layers.setdefault(row["layer"], {})[row["head"]] = {
            "text": text,
            "tip": tip,
            "sure": row["sure"],
            "gain": row["gain"],
        }
    kind, better = str(table["kind"].iloc[0]), (table["sure"] & table["gain"]).sum()
    low, high = (signed(end, digits) for end in (table["change"].min(), table["change"].max()))
    return {
        "kind": kind,
        "title": capital(KIND_NAMES[kind]),
        "heads": sorted(set(table["head"])),
        "layers": list(layers.items()),
        "facts": f"{table['sure'].sum()} of {len(table)} intervals leave 0 out, {better} of them for the better; "
        f"about {FALSE_RATE * len(table):.0f} would if no head mattered. From {low} to {high}.",
    }


def alone_table(run: Run) -> Table | None:
    """For every layer of several heads the head that does best alone, and what the loss gains; None without."""
    table = _rows(run, ALONE)
    if len(table):
        table = table[table.groupby(["kind", "layer"])["head"].transform("size") > 1]
    if table.empty:
        return None
    best = table.sort_values("value", kind="stable").drop_duplicates(["kind", "layer"]).set_index(["kind", "layer"])
    kinds = [kind for kind in KINDS if kind in best.index.get_level_values("kind")]
    rows = []
    for layer in sorted(set(best.index.get_level_values("layer"))):
        cells = [_cell(best.loc[(kind, layer)]) if (kind, layer) in best.index else NONE for kind in kinds]
        rows.append(Row([str(layer), *cells]))
    return Table("With one head alone", ["layer", *(KIND_NAMES[kind] for kind in kinds)], rows)


def _cell(row: Any) -> str:
    known = not pd.isna(row["low"])
    ends = f" [{signed(row['low'], 3)}, {signed(row['high'], 3)}]" if known else ""
    enough = " · one head is enough" if known and row["low"] <= 0 else ""
    return f"{signed(row['value'], 3)}{ends}\nh{row['head']:.0f}{enough}"
