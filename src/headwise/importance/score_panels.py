"""Scores as panels of the same heads, sorted within layers: figure 1a and 1b of Voita et al. (2019)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from string import ascii_lowercase

import pandas as pd

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.head_panels import HeadPanel, HeadPanels
from headwise.core.heads import Head, head_of
from headwise.importance.measures import facts

RELEVANCE = "lrp"  # the family of measures that readers call so


def score_panels(
    table: pd.DataFrame,
    kind: str,
    measures: Sequence[str],
    sort: str = "",
    more: Sequence[HeadPanel] = (),
    each: str = "token",
) -> HeadPanels:
    """A panel for each of some measures of the heads of a kind, and the panels `more`, whose heads stand in the same
    order. sort: the measure that orders the heads of a layer, by default the first. each: what the loss is a mean over.
    Raises HeadwiseError for a measure that no head of the kind was scored by."""
    rows = table[table["kind"] == kind].dropna(subset=["value"])
    known = list(dict.fromkeys(rows["measure"]))
    names = [measure_among(name, known) for name in measures]
    values: dict[str, dict[Head, float]] = {}
    for row in rows.to_dict("records"):
        values.setdefault(row["measure"], {})[head_of(row)] = row["value"]
    heads = {head for found in values.values() for head in found}
    for panel in more:
        heads |= {*(panel.functions or {})}
    first = measure_among(sort, known) if sort else next(iter(names), "")
    by = values.get(first, {})
    ordered = sorted(heads, key=lambda head: (head.layer, -by.get(head, -math.inf), head.head))

    sizes = {sum(head.layer == layer for head in heads) for layer in {head.layer for head in heads}}
    equal = 1 / sizes.pop() if len(sizes) == 1 else None
    panels = [score_panel(name, values[name], equal, each) for name in names]
    order = f", in each layer the highest {facts(first).title} first" if first else ""
    said = [
        f"The {kind} heads: layers in rows{order}; numbers in cells name the heads, and all count from 0."
    ]
    for letter, name in zip(ascii_lowercase, names, strict=False):
        half = ((rows["high"] - rows["low"]) / 2)[rows["measure"] == name].median()
        width = f" (95 %: ±{half:.2g}, median)" if math.isfinite(half) else ""
        made = f"{said_of(name, each) or 'a measure'}{reading(name, known)}{width}"
        own = f"{capital(facts(name).title)}, {made}."
        said.append(f"({letter}) {own}" if len(panels) + len(more) > 1 else own)
    return HeadPanels(ordered, [*panels, *more], " ".join(said))


def said_of(name: str, each: str) -> str:
    """The caption of a measure, of a model whose loss is a mean over tokens, labels, …"""
    return facts(name).caption.replace("per token", f"per {each}")


def reading(name: str, known: Collection[str]) -> str:
    """Whether the relevance of a head is the sum of signed or of absolute values; empty of other scores, and where a table
    has not both, as `lrp.ding` and `lrp.ding.signed`."""
    if name.endswith(".signed") or f"{name}.absolute" in known:
        return ", signed"
    if name.endswith(".absolute") or f"{name}.signed" in known:
        return ", of absolute values"
    return ""


def measure_among(name: str, known: Collection[str]) -> str:
    """A measure that heads were scored by, also by its family (`lrp`), or `relevance`. Raises HeadwiseError for another
    one."""
    family = RELEVANCE if name == "relevance" else name
    if family in known:
        return family
    members = [one for one in known if one.split(".")[0] == family]
    if not members:
        raise HeadwiseError(
            f"No head was scored by '{name}'{did_you_mean(name, known)}; there is "
            f"{', '.join(sorted(known)) or 'no score'}."
        )
    # The one that is called so for short; more dots in a name make a variant: lrp.ding.signed after lrp.ding.
    return min(members, key=lambda one: (facts(one).short != family, one.count("."), one))


def score_panel(name: str, values: dict[Head, float], equal: float | None, each: str) -> HeadPanel:
    """The panel of one measure. equal: the share of each head, where all layers have as many heads."""
    known = facts(name)
    if name.split(".")[0] == RELEVANCE:
        return HeadPanel(f"Relevance ({known.title})", "share of its layer", values, equal)
    caption = said_of(name, each)
    unit = caption.rpartition(", ")[2] if ", in " in caption else ""
    return HeadPanel(capital(known.title), unit, values)


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]
