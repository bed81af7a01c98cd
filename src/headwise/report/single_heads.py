"""One head switched off, and one head alone in its layer: the tables of Michel et al. 2019 (tables 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from headwise.heads import KINDS
from headwise.report.run import Run
from headwise.report.table import Line, Table
from headwise.report.wording import KIND_NAMES, NONE, listed, sentence, signed

BLEU, LOSS, ALONE = "ablation.bleu", "ablation.zero", "ablation.all-but-one"
CHANCE = 0.05  # how often a 95 % interval leaves 0 out by chance


@dataclass(frozen=True)
class Effect:
    """What a head's absence changes. sure: its 95 % interval leaves 0 out; gain: the model is better without it."""

    head: int
    value: float
    text: str
    told: str
    sure: bool
    gain: bool


@dataclass(frozen=True)
class OneHeadTable:
    """The effects of one attention kind: a line a layer, a column a head."""

    title: str
    heads: list[int]
    layers: list[tuple[int, dict[int, Effect]]]

    @property
    def effects(self) -> list[Effect]:
        return [effect for _, found in self.layers for effect in found.values()]


def single_heads(run: Run) -> dict[str, Any] | None:
    """What the page tells of single heads; None where neither was measured."""
    measure = next((name for name in (BLEU, LOSS) if _measured(run, name) is not None), None)
    tables = [] if measure is None else list(one_head_tables(run, measure))
    alone = alone_table(run)
    if not tables and alone is None:
        return None
    return {
        "tables": tables,
        "unit": "Δ BLEU" if measure == BLEU else "Δ loss, in thousandths of a nat a token",
        "read": _how_to_read(measure),
        "told": [_one_head_sentence(table, measure) for table in tables],
        "alone": alone,
        "alone_told": _alone_sentence(run),
    }


def _measured(run: Run, measure: str) -> pd.DataFrame | None:
    if run.heads is None:
        return None
    table = run.heads[run.heads["measure"] == measure].dropna(subset=["value"])
    return None if table.empty else table


def one_head_tables(run: Run, measure: str) -> Iterator[OneHeadTable]:
    """Δ BLEU (below 0 is a loss) or Δ loss (above 0 is a loss) without each head, a table a kind."""
    table = _measured(run, measure)
    assert table is not None
    for kind in (kind for kind in KINDS if kind in set(table["kind"])):
        of_kind = table[table["kind"] == kind].sort_values(["layer", "head"])
        layers: dict[int, dict[int, Effect]] = {}
        for row in of_kind.to_dict("records"):
            layers.setdefault(row["layer"], {})[row["head"]] = _effect(row, measure)
        yield OneHeadTable(sentence(KIND_NAMES[kind]), sorted(set(of_kind["head"])), list(layers.items()))


def _effect(row: dict[Any, Any], measure: str) -> Effect:
    """`ablation.bleu` counts points lost, so that the change of BLEU is its negative."""
    value, low, high = row["value"], row["low"], row["high"]
    if measure == BLEU:
        value, low, high = -value, -high, -low
    scale, digits = (1, 2) if measure == BLEU else (1000, 1)
    address = f"{row['kind']}/{row['layer']}/{row['head']}"
    ends = "" if pd.isna(low) else f" [{signed(scale * low, digits)}, {signed(scale * high, digits)}]"
    text = signed(scale * value, digits)
    gain = value > 0 if measure == BLEU else value < 0
    return Effect(row["head"], value, text, f"{address}: {text}{ends}", bool(low > 0 or high < 0), gain)


def _how_to_read(measure: str | None) -> str:
    if measure == BLEU:
        return (
            "The change of BLEU when one head alone is switched off, nothing retrained (Michel et al. 2019, table 1): "
            "below 0, the head was of use. Bold: the 95 % interval (paired bootstrap) leaves 0 out (orange: better "
            "without the head); the paper's bold is p < 0.01, which is stricter."
        )
    return (
        "What the loss gains when one head alone is switched off, nothing retrained: above 0, the head was of use. "
        "Michel et al. (2019, table 1) tell the change of BLEU, which this run did not measure (ablation.bleu). "
        "Bold: the 95 % interval over sentences leaves 0 out (orange: better without the head)."
    )


def _one_head_sentence(table: OneHeadTable, measure: str | None) -> str:
    effects = table.effects
    sure = [effect for effect in effects if effect.sure]
    gains = sum(effect.gain for effect in sure)
    what = "BLEU" if measure == BLEU else "the loss"
    order = sorted(effects, key=lambda effect: effect.value)
    better = "none of them for the better" if not gains else f"{gains} of them for the better"
    told = (
        f"{table.title}: {len(sure)} of {len(effects)} heads change {what} beyond chance"
        + (f", {better}" if sure else "")
        + f" (if no head mattered, about {CHANCE * len(effects):.0f} would seem to); "
        f"from {order[0].text} to {order[-1].text}."
    )
    if measure == BLEU and table.title == sentence(KIND_NAMES["encoder-self"]):
        told += " Michel et al.: 8 of 96, 4 of them for the better, from −0.53 to +0.24."
    return told


def alone_table(run: Run) -> Table | None:
    """For every layer the head that does best alone, and what the loss gains (Michel et al. 2019, table 2)."""
    best = _best_alone(run)
    if not best:
        return None
    kinds = [kind for kind in KINDS if any(key[0] == kind for key in best)]
    lines = []
    for layer in sorted({layer for _, layer in best}):
        cells = [_alone_cell(best.get((kind, layer))) for kind in kinds]
        lines.append(Line([str(layer), *cells]))
    return Table("One head alone in its layer", ["layer", *(KIND_NAMES[kind] for kind in kinds)], lines)


def _best_alone(run: Run) -> dict[tuple[str, int], dict[Any, Any]]:
    """The row of the best lone head of each layer that has more than one."""
    table = _measured(run, ALONE)
    if table is None:
        return {}
    several = table[table.groupby(["kind", "layer"])["head"].transform("size") > 1]
    ordered = several.sort_values("value", kind="stable").drop_duplicates(["kind", "layer"])
    return {(str(row["kind"]), int(row["layer"])): row for row in ordered.to_dict("records")}


def _alone_cell(row: dict[Any, Any] | None) -> str:
    if row is None:
        return NONE
    ends = "" if pd.isna(row["low"]) else f" [{signed(row['low'], 3)}, {signed(row['high'], 3)}]"
    return f"{signed(row['value'], 3)}{ends}\nh{row['head']}"


def _alone_sentence(run: Run) -> str:
    best = _best_alone(run)
    if not best:
        return ""
    enough = [key for key, row in best.items() if row["low"] <= 0]
    (kind, layer), worst = max(best.items(), key=lambda item: item[1]["value"])
    told = (
        "Every head of a layer but one is switched off, one layer at a time, nothing retrained. The number is what the "
        "loss gains (nats a token) with the best head alone, and its 95 % interval; that head is chosen on the text "
        "it is measured on, which flatters it. "
    )
    if enough:
        names = listed([f"{KIND_NAMES[kind]} {layer}" for kind, layer in sorted(enough, key=_place)])
        told += f"In {len(enough)} of {len(best)} layers one head alone loses nothing beyond chance ({names}). "
    else:
        told += f"In none of {len(best)} layers does one head alone suffice. "
    told += f"Most is lost in {KIND_NAMES[kind]} {layer}: {signed(worst['value'], 3)} with the best of its heads. "
    return (
        told + "Michel et al. (2019, table 2) found one head enough in most layers, and the last layer of "
        "cross-attention the great exception (−13.56 BLEU)."
    )


def _place(key: tuple[str, int]) -> tuple[int, int]:
    return [str(kind) for kind in KINDS].index(key[0]), key[1]
