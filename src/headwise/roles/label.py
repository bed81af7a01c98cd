"""From scores to roles.

A head has a role when, on both halves of the text, its score reaches the threshold of the role *and* it is significantly
better than the role's baseline. The first half finds: p-values of all heads and roles are corrected together by
Benjamini and Hochberg (1995), at 5 %. The second half confirms: the roles found are tested again, corrected in the same
way. Benjamini-Hochberg and not Holm, because a map of hundreds of heads is read as a whole: on average at most one in
twenty of the roles found is false.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headwise.core.heads import Head, HeadMap, Kind, head_of
from headwise.core.statistics import cohen_h, corrected
from headwise.roles.role import (
    NO_ROLE,
    RoleTest,
    category,
    display_name,
    evidence,
    expected_roles,
    is_of_speech,
    role_of,
)

KEY = ["kind", "layer", "head", "measure"]
FALSE_ROLES = 0.05  # at most this share of the roles found is false, on average
ENOUGH_SUPPORT = 30, 10  # the least tokens and sentences on a half for a test
HALVES = {"": "first", "_again": "second"}  # by the end of their columns
DRAWS = 10  # of halves
MOST = 0.5  # a role is confirmed in more than this share of the draws
LEAST_ON_WORDS = 0.05  # of a head's weight, where a role counts its largest weights


def compare_halves(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """The tests of both halves side by side: a row per head and measure that can be a role.

    first, second: `AnswerSums.table` of each half. Columns `value`, `n`, `units`, `baseline`, `p` of the first half,
    with `_again` behind those of the second. `enough`: whether both halves have enough tokens and sentences. `on_words`:
    the weight of the head on words, on the half with less of it. A row is tested where there is enough, a baseline,
    and, for a role by the largest weight, LEAST_ON_WORDS. p and p_again are corrected: p over all tested rows, p_again
    over those that passed on the first half; NaN elsewhere. `confirmed`: whether the role holds on both halves.
    """
    # Only what both halves have: a role is seen on both.
    rows = first.merge(second, on=KEY, suffixes=("", "_again"))
    rows = rows[rows["measure"].map(role_of).notna()].reset_index(drop=True)
    rows["enough"] = True
    for end in HALVES:
        rows["enough"] &= supported(rows[f"n{end}"], rows[f"units{end}"])
    rows["on_words"] = np.fmin(weight_on_words(rows, first), weight_on_words(rows, second))
    passed = rows["enough"] & ~looks_elsewhere(rows)
    for end in HALVES:
        passed &= rows[f"baseline{end}"].notna()
    for end in HALVES:
        p = rows[f"p{end}"].where(passed)
        if passed.any():
            # Over the tests that are left: the second half tests only what the first one found.
            p[passed] = corrected(p[passed].to_numpy())
        rows[f"p{end}"] = p
        # Both must hold: sure to be better than the baseline, and large enough to matter.
        passed &= (p <= FALSE_ROLES) & (rows[f"value{end}"] >= thresholds(rows, end))
    rows["confirmed"] = passed
    return rows


def supported(tokens: pd.Series, sentences: pd.Series) -> pd.Series:
    """Whether a measure asks about enough tokens, in enough sentences."""
    return (tokens >= ENOUGH_SUPPORT[0]) & (sentences >= ENOUGH_SUPPORT[1])


def looks_elsewhere(rows: pd.DataFrame) -> pd.Series:
    """Whether a role counts the largest weights, and the head gives words nearly nothing."""
    rests = rows["measure"].map(lambda measure: tested_by(measure).rests_on_weight)
    return rests & (rows["on_words"] < LEAST_ON_WORDS)


def weight_on_words(rows: pd.DataFrame, table: pd.DataFrame) -> pd.Series:
    """The mean weight on words of the head of each row, by the measure `sink` of a table of scores; NaN without it."""
    sinks = table[table["measure"] == "sink"].drop_duplicates(KEY[:3]).set_index(KEY[:3])["value"]
    heads = pd.MultiIndex.from_frame(rows[KEY[:3]])
    return pd.Series(1 - sinks.reindex(heads).to_numpy(dtype=float), rows.index)


def find(
    whole: pd.DataFrame, tests: pd.DataFrame, draws: Sequence[pd.DataFrame] = ()
) -> pd.DataFrame:
    """The roles found on the first half and confirmed on the second, and in most draws of other halves.

    whole: `AnswerSums.table` of the whole text; tests: of its halves (`compare_halves`); draws: the same of halves that
    were drawn again. Returns the rows of the whole text that are roles, with the columns `role` (its name), `text` (name
    and evidence), `p` (on the first half, corrected), `effect` (Cohen's h of value and baseline), `on_words`
    (`weight_on_words`) and, with draws, `draws` (in how many the role is confirmed), the highest value of each head first.
    """
    rows = without_weaker(tests[tests["confirmed"]])
    # The p of the whole text would count the half that chose.
    roles = whole.drop(columns="p").merge(rows[[*KEY, "p"]], on=KEY)
    roles["effect"] = effect_sizes(roles["value"], roles["baseline"])
    roles["on_words"] = weight_on_words(roles, whole)
    roles["role"] = roles["measure"].map(display_name)
    if draws:
        times = Counter(key for drawn in draws for key in keys_of(drawn[drawn["confirmed"]]))
        roles["draws"] = [times[key] for key in keys_of(roles)]
        roles = roles[roles["draws"] > MOST * len(draws)]
    texts = []
    for row in roles.to_dict("records"):
        sure = row.get("draws", 0) == len(draws)
        more = "" if sure else f", in {row['draws']} of {len(draws)} draws"
        texts.append(evidence(row["measure"], row["value"], row["baseline"], more))
    roles["text"] = texts
    return roles.sort_values(
        [*KEY[:3], "value"], ascending=[True, True, True, False], ignore_index=True
    )


def keys_of(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Head and measure of every row."""
    return list(rows[KEY].itertuples(index=False, name=None))


def without_weaker(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without the roles of heads that have a stronger one (`weaker_than`)."""
    tests = set()
    for *head, measure in keys_of(rows):
        tests.add((*head, tested_by(measure).name))
    kept = []
    for *head, measure in keys_of(rows):
        # Of a role and a weaker form of it, the head has the stronger one alone.
        kept.append((*head, tested_by(measure).weaker_than) not in tests)
    out: pd.DataFrame = rows[pd.Series(kept, rows.index, dtype=bool)]
    return out


def tested_by(measure: str) -> RoleTest:
    """The test of a measure that can be a role."""
    declared = role_of(measure)
    assert declared is not None
    return declared


def thresholds(rows: pd.DataFrame, end: str) -> np.ndarray:
    """The score from which on each row of `compare_halves` is a role on a half."""
    pairs = zip(rows["measure"], rows[f"baseline{end}"], strict=True)
    return np.array([threshold(measure, baseline) for measure, baseline in pairs])


def threshold(measure: str, baseline: float) -> float:
    """The score from which on a head has the role of a measure."""
    return tested_by(measure).needed(baseline)


def effect_sizes(
    values: Sequence[float] | pd.Series, baselines: Sequence[float] | pd.Series
) -> np.ndarray:
    """The effect sizes of scores against their baselines: Cohen's h, as both are shares."""
    return cohen_h(np.asarray(values, dtype=float), np.asarray(baselines, dtype=float))


def labels(heads: HeadMap, roles: pd.DataFrame) -> pd.DataFrame:
    """One row per head: kind, layer, head, label (`positional −1 (0.97), obj→verb (0.84 vs 0.46)` or no known role)."""
    texts = roles.groupby(KEY[:3])["text"].agg(", ".join).to_dict()
    rows = [(*head, texts.get(tuple(head), NO_ROLE)) for head in heads]
    return pd.DataFrame(rows, columns=[*KEY[:3], "label"])


def patterns(heads: HeadMap, roles: pd.DataFrame) -> pd.DataFrame:
    """The categories of roles in every layer: kind, layer, role, heads, share (of the layer's heads).

    A head with two roles counts for both; `no known role` has its own rows.
    """
    categories: dict[Head, set[str]] = {}
    for row in roles.to_dict("records"):
        head = head_of(row)
        categories.setdefault(head, set()).add(category(row["measure"]))

    counts: Counter[tuple[Kind, int, str]] = Counter()
    for head in heads:
        for name in sorted(categories.get(head, {NO_ROLE})):
            counts[head.kind, head.layer, name] += 1

    rows = []
    for (kind, layer, name), count in counts.items():
        rows.append((kind, layer, name, count, count / heads.query[kind][layer]))
    return pd.DataFrame(rows, columns=["kind", "layer", "role", "heads", "share"])


def missing_roles(
    whole: pd.DataFrame,
    roles: pd.DataFrame,
    tests: pd.DataFrame,
    looking: pd.DataFrame,
    causal: pd.DataFrame,
) -> list[str]:
    """The expected roles that no head has, in words, each with the reason.

    tests: of the halves (`compare_halves`); looking: what `find` found; causal: `causal_effects`.
    """
    missing = []
    speech = any(is_of_speech(measure) for measure in whole["measure"].unique())
    for kind in whole["kind"].unique():
        here = whole[whole["kind"] == kind]
        decoder_only = kind == "decoder-self" and "induction" in set(here["measure"])
        for measure in expected_roles("language model" if decoder_only else kind, speech):
            if not ((roles["kind"] == kind) & (roles["measure"] == measure)).any():
                name = display_name(measure)
                found = {*looking.loc[looking["kind"] == kind, "measure"]}
                reason = why_missing(here, tests[tests["kind"] == kind], found, causal, measure)
                missing.append(f"{kind}: no head for {name} ({reason})")
    return missing


def why_missing(
    here: pd.DataFrame,
    tests: pd.DataFrame,
    found: Collection[str],
    causal: pd.DataFrame,
    measure: str,
) -> str:
    """Why a role was not found: of the head that scores highest on the whole text. found: the measures of heads that
    look where roles ask for."""
    rows = here[here["measure"] == measure]
    if rows.empty and measure.startswith("rare."):
        return "not measured: rarity is counted in training text, --training"
    if rows.empty:
        return "not measured on this text"
    looking = tests[(tests["measure"] == measure) & tests["confirmed"]]
    # From here on in the order in which a role is lost: draws, effect, text, threshold, p.
    if len(looking) and measure not in found:
        return "confirmed on the second half, but not in most draws of other halves"
    if len(looking):  # but nothing depends on it
        return why_not_causal(len(looking), causal[causal["measure"] == measure])
    best = rows.sort_values("value").iloc[-1]
    if not best["n"]:
        return "it does not occur in this text"
    halves = tests[(tests[KEY] == best[KEY]).all(axis=1)]
    if halves.empty:
        return "it does not occur in one half of this text"
    half = halves.iloc[0]
    if not half["enough"]:
        return (
            f"seen {half['n']:.0f} and {half['n_again']:.0f} times in {half['units']:.0f} and "
            f"{half['units_again']:.0f} sentences of the halves, {ENOUGH_SUPPORT[0]} times in {ENOUGH_SUPPORT[1]} "
            "sentences of each are needed"
        )
    # A share is at most 1, so that no head could have the role here.
    needed = threshold(measure, best["baseline"])
    if needed > 1:
        return f"the baseline already reaches {best['baseline']:.2f} on this text"
    name = f"{best['kind']}/{best['layer']}/{best['head']} reaches {best['value']:.2f}"
    if best["value"] < needed:
        return f"{name}, {needed:.2f} is needed"
    if looks_elsewhere(halves).any():
        return f"{name}, but gives words {half['on_words']:.1%} of its weight, {LEAST_ON_WORDS:.0%} are needed"
    for end, half_name in HALVES.items():
        needed = threshold(measure, half[f"baseline{end}"])
        if half[f"value{end}"] < needed:
            return f"{name}, but {half[f'value{end}']:.2f} on the {half_name} half, where {needed:.2f} is needed"
        if half[f"p{end}"] > FALSE_ROLES:
            return f"{name}, but p = {half[f'p{end}']:.2f} on the {half_name} half, {FALSE_ROLES} is needed"
    return name


def why_not_causal(count: int, causal: pd.DataFrame) -> str:
    """Why heads that look where a role asks for do not have it. causal: their effects."""
    heads = "1 head looks" if count == 1 else f"{count} heads look"
    if causal.empty:
        return f"{heads} there, but what depends on them could not be tested"
    best = causal.sort_values("difference").iloc[-1]
    name = f"{best['kind']}/{best['layer']}/{best['head']}"
    return (
        f"{heads} there, but nothing depends on them: with {name} off, the {best['behaviour']} is worse by "
        f"{best['value']:.2f}, without the others of its layer by {best['others']:.2f}, p = {best['p']:.2f}"
    )
