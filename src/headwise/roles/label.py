"""From scores to roles.

A head has a role when, on both halves of the text, its score reaches the bar of the role *and* it is significantly
better than the role's baseline. The first half finds: p-values of all heads and roles are corrected together by
Benjamini and Hochberg (1995), at 5 %. The second half confirms: the roles found are tested again, corrected in the same
way. Benjamini-Hochberg and not Holm, because a map of hundreds of heads is read as a whole: on average at most one in
twenty of the roles found is false.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from headwise.heads import Head, HeadMap
from headwise.statistics import cohen_h, corrected

KEY = ["kind", "layer", "head", "measure"]
NO_ROLE = "no known role"
UNTRAINED, RANDOM_WORDS, SHUFFLED = "untrained", "random-words", "shuffled"  # controls of roles
RATE = 0.05
ENOUGH = 30, 10  # the least tokens and sentences on a half for a test
# The score that a role needs: a share, or a margin above the baseline.
AT_LEAST = {
    "positional": 0.9,  # Voita et al. 2019
    "rare.two-rarest": 0.5,  # the least of what Voita et al. 2019 report
    "sink": 0.5,
    "previous-token": 0.5,
    "duplicate-token": 0.5,
    "induction": 0.5,  # Clark et al. 2019: over half
    "delimiter": 0.5,
    "successor": 0.5,
    "name-mover": 0.5,
    "s-inhibition": 0.5,
}
ABOVE_BASELINE = (
    "syntactic",
    "coreference",
    "alignment",
    "retrieval",
)  # 0.1 in Wu et al. 2024, without a baseline
PUNCTUATION = "syntactic.punct."  # scored, but not a role: attention to full stops needs no syntax
GOVERNORS = {
    "nsubj": "verb",
    "obj": "verb",
    "iobj": "verb",
    "advmod": "verb",
    "amod": "noun",
    "det": "noun",
}
SELF = ["positional.-1", "positional.1"]
SYNTAX = [
    f"syntactic.{rel}.{way}"
    for rel in ("nsubj", "obj", "amod", "advmod")
    for way in ("to-governor", "to-dependent")
]
EXPECTED = {
    "encoder-self": [*SELF, *SYNTAX, "rare.two-rarest", "coreference"],
    "decoder-self": ["positional.-1"],
    "cross": ["alignment"],
    "language model": [
        "previous-token",
        "duplicate-token",
        "induction",
        "sink",
        "delimiter",
        "successor",
        "name-mover",
        "s-inhibition",
        "retrieval",
        *SYNTAX,
    ],
}


@dataclass(frozen=True)
class Bar:
    """What a role needs. margin: above the baseline, in points (0.10), or with `relative` as a share of the baseline
    (Voita's "10 %" can mean both; their Table 1 suggests points)."""

    margin: float = 0.10
    relative: bool = False
    rate: float = RATE

    def of(self, measure: str, baseline: np.ndarray | float) -> np.ndarray | float:
        """The score that a measure needs for a role."""
        name = family(measure)
        if name is None or name in ABOVE_BASELINE:
            return baseline * (1 + self.margin) if self.relative else baseline + self.margin
        return AT_LEAST[name]


def family(measure: str) -> str | None:
    """The name of a measure's bar; None for measures that define no role."""
    if measure in AT_LEAST or measure in ABOVE_BASELINE:
        return measure
    first = measure.partition(".")[0]
    return (
        first
        if first in ("positional", "syntactic") and not measure.startswith(PUNCTUATION)
        else None
    )


def wording(measure: str) -> str:
    """The name of a role for readers."""
    parts = measure.split(".")
    if parts[0] == "positional":
        return f"positional {int(parts[1]):+d}".replace("-", "−").replace("+0", "0")
    if parts[0] == "syntactic":
        governor = GOVERNORS.get(parts[1], "governor")
        return f"{parts[1]}→{governor}" if parts[2] == "to-governor" else f"{governor}→{parts[1]}"
    if parts[0] == "rare":
        return "rare tokens"
    return "S-inhibition" if measure == "s-inhibition" else measure.replace("-", " ")


def find(whole: pd.DataFrame, first: pd.DataFrame, second: pd.DataFrame, bar: Bar) -> pd.DataFrame:
    """The roles found on the first half and confirmed on the second.

    The three tables (`Answers.table`) are of the whole text and of its halves. Returns the rows of the whole text that
    are roles, with the columns `role` (its name), `text` (name and evidence), `p` (on the first half, corrected) and
    `effect` (Cohen's h of value and baseline), the highest value of each head first.
    """
    asked = first.merge(second, on=KEY, suffixes=("", "_again"))
    asked = asked[asked["measure"].map(family).notna()]
    for end in ("", "_again"):
        asked = asked[(asked[f"n{end}"] >= ENOUGH[0]) & (asked[f"units{end}"] >= ENOUGH[1])]
        asked = asked[asked[f"baseline{end}"].notna()]
    asked = passed(asked, "", bar)
    asked = passed(asked, "_again", bar)
    roles = whole.drop(columns="p").merge(asked[[*KEY, "p"]], on=KEY)
    roles["effect"] = effects(roles["value"], roles["baseline"])
    roles["role"] = roles["measure"].map(wording)
    roles["text"] = [
        evidence(row["measure"], row["value"], row["baseline"]) for row in roles.to_dict("records")
    ]
    return roles.sort_values(
        [*KEY[:3], "value"], ascending=[True, True, True, False], ignore_index=True
    )


def passed(asked: pd.DataFrame, end: str, bar: Bar) -> pd.DataFrame:
    """The rows that reach the bar and are better than the baseline, by p-values corrected over all rows."""
    if asked.empty:
        return asked
    p = corrected(asked[f"p{end}"].to_numpy())
    reach = np.array(
        [bar.of(m, b) for m, b in zip(asked["measure"], asked[f"baseline{end}"], strict=True)]
    )
    kept = (p <= bar.rate) & (asked[f"value{end}"] >= reach)
    out: pd.DataFrame = asked.assign(**{f"p{end}": p})[kept]
    return out


def effects(
    values: Sequence[float] | pd.Series, baselines: Sequence[float] | pd.Series
) -> np.ndarray:
    """The effect sizes of scores against their baselines: Cohen's h, as both are shares."""
    return cohen_h(np.asarray(values, dtype=float), np.asarray(baselines, dtype=float))


def evidence(measure: str, value: float, baseline: float) -> str:
    """`positional −1 (0.97)`, `obj→verb (0.84 vs 0.46)`."""
    compared = f" vs {baseline:.2f}" if family(measure) in ABOVE_BASELINE else ""
    return f"{wording(measure)} ({value:.2f}{compared})"


def labels(heads: HeadMap, roles: pd.DataFrame) -> pd.DataFrame:
    """One row per head: kind, layer, head, label (`positional −1 (0.97), obj→verb (0.84 vs 0.46)` or no known role)."""
    texts = roles.groupby(KEY[:3])["text"].agg(", ".join).to_dict()
    rows = [(*head, texts.get(tuple(head), NO_ROLE)) for head in heads]
    return pd.DataFrame(rows, columns=[*KEY[:3], "label"])


def patterns(heads: HeadMap, roles: pd.DataFrame) -> pd.DataFrame:
    """The categories of roles in every layer: kind, layer, role, heads, share (of the layer's heads).

    A head with two roles counts for both; `no known role` has its own rows.
    """
    found: dict[Head, set[str]] = {}
    for row in roles.to_dict("records"):
        found.setdefault(Head(row["kind"], row["layer"], row["head"]), set()).add(
            category(row["measure"])
        )
    counts = Counter(
        (head.kind, head.layer, name)
        for head in heads
        for name in sorted(found.get(head, {NO_ROLE}))
    )
    rows = [(*key, count, count / heads.query[key[0]][key[1]]) for key, count in counts.items()]
    return pd.DataFrame(rows, columns=["kind", "layer", "role", "heads", "share"])


def category(measure: str) -> str:
    """The category of a measure's role: positional, syntactic, rare tokens, …"""
    first = measure.partition(".")[0]
    return first if first in ("positional", "syntactic") else wording(measure)


def absent(whole: pd.DataFrame, roles: pd.DataFrame, bar: Bar) -> list[str]:
    """The expected roles that no head has, in words, each with the reason."""
    missing = []
    for kind in whole["kind"].unique():
        here = whole[whole["kind"] == kind]
        decoder_only = kind == "decoder-self" and "induction" in set(here["measure"])
        for measure in EXPECTED["language model" if decoder_only else kind]:
            if not ((roles["kind"] == kind) & (roles["measure"] == measure)).any():
                missing.append(
                    f"{kind}: no head for {wording(measure)} ({reason(here, measure, bar)})"
                )
    return missing


def reason(here: pd.DataFrame, measure: str, bar: Bar) -> str:
    """Why a role was not found."""
    rows = here[here["measure"] == measure]
    if rows.empty:
        return "not measured on this text"
    best = rows.sort_values("value").iloc[-1]
    needed = bar.of(measure, best["baseline"])
    if not best["n"]:
        return "it does not occur in this text"
    if best["n"] < 2 * ENOUGH[0] or best["units"] < 2 * ENOUGH[1]:
        return f"seen only {best['n']:.0f} times"
    if needed > 1:
        return f"the baseline already reaches {best['baseline']:.2f} on this text"
    name = f"{best['kind']}/{best['layer']}/{best['head']} reaches {best['value']:.2f}"
    return (
        f"{name}, {needed:.2f} is needed"
        if best["value"] < needed
        else f"{name}, but not significantly on both halves"
    )
