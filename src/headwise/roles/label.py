"""From scores to roles: which head does what, beyond chance, on text it was not chosen on.

A head has a role when, on both halves of the text, its score reaches the bar of the role *and* it is better than the
role's baseline. The first half finds: p-values of all heads and roles are corrected together by Benjamini and Hochberg
(1995), at 5 %. The second half confirms: those found are tested again, corrected in the same way. Benjamini-Hochberg
and not Holm, because a map of hundreds of heads is read as a whole: of the roles found, at most one in twenty is false
on average, and when no head has any role the chance of finding one is at most 5 % (before it is confirmed).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from headwise.heads import Head, HeadMap
from headwise.statistics import corrected

KEY = ["kind", "layer", "head", "measure"]
NO_ROLE = "no known role"
RATE = 0.05
ENOUGH = 30, 10  # a measure is asked about on a half with so many tokens, in so many sentences, or more
# What a score must reach: a share of its own, or so much above the baseline.
AT_LEAST = {
    "positional": 0.9,  # Voita et al. 2019
    "rare.two-rarest": 0.5,  # the least of what Voita et al. 2019 report
    "sink": 0.5, "previous-token": 0.5, "duplicate-token": 0.5, "induction": 0.5,  # Clark et al. 2019: over half
}  # fmt: skip
ABOVE_BASELINE = ("syntactic", "coreference", "alignment")
PUNCTUATION = "syntactic.punct."  # scored, but no role: a head that likes full stops knows no syntax
GOVERNORS = {"nsubj": "verb", "obj": "verb", "iobj": "verb", "advmod": "verb", "amod": "noun", "det": "noun"}
SELF = ["positional.-1", "positional.1"]
SYNTAX = [
    f"syntactic.{rel}.{way}" for rel in ("nsubj", "obj", "amod", "advmod") for way in ("to-governor", "to-dependent")
]
EXPECTED = {
    "encoder-self": [*SELF, *SYNTAX, "rare.two-rarest", "coreference"],
    "decoder-self": ["positional.-1"],
    "cross": ["alignment"],
    "language model": ["previous-token", "duplicate-token", "induction", "sink", *SYNTAX],
}


@dataclass(frozen=True)
class Bar:
    """What a head must reach for a role. margin: above the baseline, in points (0.10), or as a share of the baseline
    with `relative` (Voita's "10 %" can be read both ways; their Table 1 speaks for points)."""

    margin: float = 0.10
    relative: bool = False
    rate: float = RATE

    def of(self, measure: str, baseline: np.ndarray | float) -> np.ndarray | float:
        """The score from which on a measure makes a role."""
        sort = family(measure)
        if sort is None or sort in ABOVE_BASELINE:
            return baseline * (1 + self.margin) if self.relative else baseline + self.margin
        return AT_LEAST[sort]


def family(measure: str) -> str | None:
    """The name under which a measure's bar is found; None for measures that make no role."""
    if measure in AT_LEAST or measure in ABOVE_BASELINE:
        return measure
    first = measure.partition(".")[0]
    return first if first in ("positional", "syntactic") and not measure.startswith(PUNCTUATION) else None


def wording(measure: str) -> str:
    """A role in a reader's words."""
    parts = measure.split(".")
    if parts[0] == "positional":
        return f"positional {int(parts[1]):+d}".replace("-", "−").replace("+0", "0")
    if parts[0] == "syntactic":
        governor = GOVERNORS.get(parts[1], "governor")
        return f"{parts[1]}→{governor}" if parts[2] == "to-governor" else f"{governor}→{parts[1]}"
    return "rare tokens" if parts[0] == "rare" else measure.replace("-", " ")


def find(whole: pd.DataFrame, first: pd.DataFrame, second: pd.DataFrame, bar: Bar) -> pd.DataFrame:
    """The roles found on the first half and confirmed on the second.

    The three tables have a row a head and measure (`Ledger.table`), of the whole text and of its halves. Returns the
    rows of the whole text that are roles, with the columns `role` (its name), `text` (name and evidence) and `p` (on
    the first half, corrected), the highest value of each head first.
    """
    asked = first.merge(second, on=KEY, suffixes=("", "_again"))
    asked = asked[asked["measure"].map(family).notna()]
    for end in ("", "_again"):
        asked = asked[(asked[f"n{end}"] >= ENOUGH[0]) & (asked[f"units{end}"] >= ENOUGH[1])]
        asked = asked[asked[f"baseline{end}"].notna()]
    asked = passed(asked, "", bar)
    asked = passed(asked, "_again", bar)
    roles = whole.drop(columns="p").merge(asked[[*KEY, "p"]], on=KEY)
    roles["role"] = roles["measure"].map(wording)
    roles["text"] = [evidence(row["measure"], row["value"], row["baseline"]) for row in roles.to_dict("records")]
    return roles.sort_values([*KEY[:3], "value"], ascending=[True, True, True, False], ignore_index=True)


def passed(asked: pd.DataFrame, end: str, bar: Bar) -> pd.DataFrame:
    """Those that reach the bar and are better than the baseline, the p-values of all that were asked corrected."""
    if asked.empty:
        return asked
    p = corrected(asked[f"p{end}"].to_numpy())
    reach = np.array([bar.of(m, b) for m, b in zip(asked["measure"], asked[f"baseline{end}"], strict=True)])
    kept = (p <= bar.rate) & (asked[f"value{end}"] >= reach)
    out: pd.DataFrame = asked.assign(**{f"p{end}": p})[kept]
    return out


def evidence(measure: str, value: float, baseline: float) -> str:
    """`positional −1 (0.97)`, `obj→verb (0.84 vs 0.46)`."""
    held = f" vs {baseline:.2f}" if family(measure) in ABOVE_BASELINE else ""
    return f"{wording(measure)} ({value:.2f}{held})"


def labels(heads: HeadMap, roles: pd.DataFrame) -> pd.DataFrame:
    """One row a head: kind, layer, head, label (`positional −1 (0.97), obj→verb (0.84 vs 0.46)` or no known role)."""
    texts = roles.groupby(KEY[:3])["text"].agg(", ".join).to_dict()
    rows = [(*head, texts.get(tuple(head), NO_ROLE)) for head in heads]
    return pd.DataFrame(rows, columns=[*KEY[:3], "label"])


def patterns(heads: HeadMap, roles: pd.DataFrame) -> pd.DataFrame:
    """Which sort of role lives in which layer: kind, layer, role, heads, share (of the layer's heads).

    A head with two roles counts for both; `no known role` is a row of its own. Sums over layers are the shares of the
    model.
    """
    sorts: dict[Head, set[str]] = {}
    for row in roles.to_dict("records"):
        sorts.setdefault(Head(row["kind"], row["layer"], row["head"]), set()).add(wording_of_sort(row["measure"]))
    counts = Counter((head.kind, head.layer, sort) for head in heads for sort in sorted(sorts.get(head, {NO_ROLE})))
    rows = [(*key, count, count / heads.query[key[0]][key[1]]) for key, count in counts.items()]
    return pd.DataFrame(rows, columns=["kind", "layer", "role", "heads", "share"])


def wording_of_sort(measure: str) -> str:
    """The sort of role a measure speaks of: positional, syntactic, rare tokens, …"""
    sort = measure.partition(".")[0]
    return sort if sort in ("positional", "syntactic") else wording(measure)


def absent(whole: pd.DataFrame, roles: pd.DataFrame, bar: Bar) -> list[str]:
    """The roles one would expect in attention of these kinds that no head has, each with the reason in words."""
    told = []
    for kind in whole["kind"].unique():
        here = whole[whole["kind"] == kind]
        decoder_only = kind == "decoder-self" and "induction" in set(here["measure"])
        for measure in EXPECTED["language model" if decoder_only else kind]:
            if not ((roles["kind"] == kind) & (roles["measure"] == measure)).any():
                told.append(f"{kind}: no head for {wording(measure)} ({reason(here, measure, bar)})")
    return told


def reason(here: pd.DataFrame, measure: str, bar: Bar) -> str:
    """Why a role was not found: not measured, seen too rarely, below the bar, or not beyond chance."""
    rows = here[here["measure"] == measure]
    if rows.empty:
        return "not measured on this text"
    best = rows.sort_values("value").iloc[-1]
    needed = bar.of(measure, best["baseline"])
    if not best["n"]:
        return "this text never asks about it"
    if best["n"] < 2 * ENOUGH[0] or best["units"] < 2 * ENOUGH[1]:
        return f"seen only {best['n']:.0f} times"
    if needed > 1:
        return f"the baseline itself reaches {best['baseline']:.2f} on this text, which leaves no room to be better"
    name = f"{kind_of_head(best)} reaches {best['value']:.2f}"
    return f"{name}, {needed:.2f} is needed" if best["value"] < needed else f"{name}, but not surely on both halves"


def kind_of_head(row: pd.Series) -> str:
    return f"{row['kind']}/{row['layer']}/{row['head']}"
