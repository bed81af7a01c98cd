"""What each head does: the roles that were found, and their evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pandas as pd

from headwise.core.heads import head_of
from headwise.core.tables import HEAD_COLUMNS
from headwise.faces.report.format import (
    HEADS_OF_KIND,
    capital,
    estimate,
    interval_text,
    listed,
    percent,
    signed,
    two_decimals,
)
from headwise.faces.report.head_rows import heads_in, of_kind
from headwise.faces.report.page import Columns, PageTable, section, table
from headwise.faces.report.role_charts import kinds_with_roles
from headwise.faces.report.run_folder import RolesFolder, RunContents
from headwise.roles.behaviour import NAMED, change_without
from headwise.roles.label import FALSE_ROLES, effect_sizes
from headwise.roles.role import (
    NO_ROLE,
    RANDOM_WORDS,
    SHUFFLED,
    UNTRAINED,
    category,
    display_name,
    expected_roles,
    is_of_speech,
    ordered_roles,
    role,
    role_of,
)


@section(
    "roles",
    heading="What each head does",
    question="Which heads have a role, and how sure is it?",
    order=27,
    files=("roles/",),
    papers={"Best head against baseline*": "Voita table 1"},
    brought_by="roles.treebank, a file of parsed sentences",
)
def role_tables_section(run: RunContents) -> dict[str, Any] | None:
    """All about roles; the section is left out without them."""
    found = run.roles
    if not found:
        return None
    best = best_heads_table(found)
    tested = [name for name in found.table["measure"].unique() if role_of(name)]
    return {
        "untrained_models": of_control(found, UNTRAINED)["control"].nunique(),
        "controlled": not found.controls.empty,
        "groups": _text_facts(found),
        "causal": causal_table(found),
        "shares": share_table(found),
        "best": best,
        "left_out": len(tested) - len(best.rows) if best else 0,
        "absent": found.facts["absent"],
        "rule": _rule(found),
    }


def of_control(found: RolesFolder, name: str) -> pd.DataFrame:
    """The tests of roles of untrained models, or of the model on changed text; no row without any."""
    return found.controls[found.controls["control"].str.startswith(name)]


def with_categories(roles: pd.DataFrame) -> pd.DataFrame:
    """Roles with the category of each, the highest score first; of a head the best of each category."""
    named = roles.assign(category=[category(measure) for measure in roles["measure"]])
    # So that of equal rows the best one stays below.
    ordered = named.sort_values("value", ascending=False, kind="stable")
    keys = [name for name in ("control", *HEAD_COLUMNS, "category") if name in ordered]
    return ordered.drop_duplicates(keys)


def role_facts(run: RunContents) -> list[tuple[str, str, str]]:
    """How many heads have a role, kind by kind, for the opening."""
    facts = []
    for kind in kinds_with_roles(run.roles):
        roles = of_kind(run.roles.roles, kind)
        counts = with_categories(roles)["category"].value_counts()
        text = f"{len(heads_in(roles))} of {len(of_kind(run.roles.labels, kind))} have a role"
        named = " · ".join(f"{name} {count}" for name, count in counts.items())
        facts.append((capital(HEADS_OF_KIND[kind]), ": ".join(filter(None, [text, named])), ""))
    return facts


def _text_facts(found: RolesFolder) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Facts for the text."""
    text = []
    for name, part in found.facts["coverage"].items():
        split = part["split_words"] / max(part["words"], 1)
        unknown = part["unknown_subwords"] / max(part["subwords"], 1)
        # What of the text was read at all: a low number says that the other numbers mean little.
        used = f"{part['used']:,} of {part['sentences']:,} sentences used, {part['words']:,} words"
        merged = part["merged_words"] / max(part["words"] + part["merged_words"], 1)
        shares = f"{percent(split)} in several subwords, {percent(unknown, 1)} unknown subwords"
        if part["merged_words"]:
            shares += f", {percent(merged, 1)} one with a neighbour by a subword of both"
        text.append((capital(name), f"{used}; {shares}", ""))

    for warning in found.facts["warnings"]:
        text.append(("Note", warning, ""))

    rare = listed(list(dict.fromkeys(_topic(measure) for measure in found.facts["low_support"])))
    text += [("Too rare to be scored", rare, "")] if rare else []
    return [("The text", text)]


def _topic(measure: str) -> str:
    """What a measure is about: a relation, or its own name."""
    first, _, rest = measure.partition(".")
    return rest.split(".")[0] if first in ("syntactic", "attachment") else measure


def reads_text(found: RolesFolder) -> bool:
    """Whether there are encoder heads that were tested on text, as in the paper."""
    of_speech = any(map(is_of_speech, found.table["measure"].unique()))
    return "encoder-self" in kinds_with_roles(found) and not of_speech


_BASELINES = {
    "syntactic": "of syntax the best fixed offset between words on the same text, so that a head which only points at a "
    "neighbour does not count as syntactic",
    "coreference": "of coreference the nearest mention",
    "alignment": "of alignment the diagonal",
}


def _rule(found: RolesFolder) -> dict[str, str]:
    """The numbers of the rule by which roles are decided."""
    other = found.facts.get("signature", {}).get("confirmed_on", "the other half")
    names = {
        declared.name for measure in set(found.table["measure"]) if (declared := role_of(measure))
    }
    rules = [f"positional {role['positional'].threshold:g} of the tokens at one offset"]
    # Roles with one margin are said together.
    margins: dict[float, list[str]] = {}
    for declared in ordered_roles():
        if declared.name in names and declared.margin is not None:
            margins.setdefault(declared.margin, []).append(declared.name)

    for margin, above in margins.items():
        rules.append(f"{listed(above)} {100 * margin:g} points above the baseline")

    for declared in ordered_roles():
        if declared.name in names - {"positional"} and declared.threshold is not None:
            rules.append(f"{declared.category} {declared.threshold:g}")

    return {
        "baselines": ", ".join(text for name, text in _BASELINES.items() if name in names),
        "thresholds": "; ".join(rules),
        "first": "one half of the documents" if other == "the other half" else "the text",
        "other": other,
        "rate": percent(FALSE_ROLES),
    }


def best_heads_table(found: RolesFolder) -> PageTable | None:
    """The best head of each role against its baseline: of the roles that the papers expect, then of others that a head
    has."""
    scored = found.table.dropna(subset=["value"]).sort_values("value", kind="stable")
    # Sorted upwards, so the last row of a measure is its best head.
    best = scored.drop_duplicates("measure", keep="last").set_index("measure", drop=False)
    confirmed = {(head_of(row), row["measure"]) for row in found.roles.to_dict("records")}
    # By how much the best head of each found role is above its baseline.
    gains = (found.roles["value"] - found.roles["baseline"]).groupby(found.roles["measure"]).max()
    shown = [name for kind in kinds_with_roles(found) for name in expected_roles(kind)]
    shown += [*gains.sort_values(ascending=False).index]
    untrained = of_control(found, UNTRAINED).dropna(subset=["value"])

    def best_untrained(row: Any) -> str:
        # The best head of each untrained model: what luck alone finds.
        own = of_kind(untrained[untrained["measure"] == row["measure"]], row["kind"])
        values = own.groupby("control")["value"].max()
        if values.empty:
            return ""
        return f"{two_decimals(values.mean())}\n{two_decimals(values.min())} to {two_decimals(values.max())}"

    def on_changed_text(control: str) -> Callable[[Any], str]:
        rows = of_control(found, control).dropna(subset=["value"]).to_dict("records")
        values = {(head_of(row), row["measure"]): two_decimals(row["value"]) for row in rows}
        return lambda row: values.get((head_of(row), row["measure"]), "")

    def of_baseline(write: Callable[[float, float], str]) -> Callable[[Any], str]:
        return lambda row: "" if pd.isna(row["baseline"]) else write(row["value"], row["baseline"])

    columns: Columns = {
        "role": lambda row: display_name(row["measure"]),
        "best head": lambda row: str(head_of(row)),
        "score": lambda row: estimate(row, two_decimals, "\n"),
        "baseline": of_baseline(lambda _, baseline: two_decimals(baseline)),
        "difference": of_baseline(lambda value, baseline: signed(value - baseline)),
        "effect (h)": of_baseline(lambda one, two: signed(effect_sizes([one], [two]).item())),
        "best untrained": best_untrained,
        "random words": on_changed_text(RANDOM_WORDS),
        "shuffled": on_changed_text(SHUFFLED),
        "asked": lambda row: f"{row['n']:,.0f}",
    }
    return table(
        "Best head against baseline, role by role",
        [best.loc[name].to_dict() for name in dict.fromkeys(shown) if name in best.index],
        columns,
        lambda row: "role" if (head_of(row), row["measure"]) in confirmed else "",
        lambda row: str(row["measure"]),
    )


def share_table(found: RolesFolder) -> PageTable | None:
    """The share of heads with each category of role, and of the controls."""
    roles = with_categories(found.roles)
    categories = [*roles["category"].value_counts().index, NO_ROLE]

    def depth(rows: pd.DataFrame, name: str) -> str:
        layers = [head.layer for head in heads_in(rows[rows["category"] == name])]
        if not layers:
            return ""
        if layers[0] == layers[-1]:
            return str(layers[0])
        return f"{layers[0]} to {layers[-1]}\nmean {sum(layers) / len(layers):.1f}"

    def share(rows: pd.DataFrame, total: int, tested: Collection[str], name: str) -> str:
        """Heads of several controls count one by one. tested: the categories that were."""
        if name not in tested:
            return ""
        have = rows if name == NO_ROLE else rows[rows["category"] == name]
        keys = [key for key in ("control", *HEAD_COLUMNS) if key in have]
        heads = len(have.drop_duplicates(keys))
        if name == NO_ROLE:
            heads = total - heads
        return f"{percent(heads / total)}\n{heads} of {total}"

    def clearest(name: str) -> str:
        best = roles[roles["category"] == name].head(1).to_dict("records")
        return f"{head_of(best[0])}\n{best[0]['text']}" if best else ""

    columns: Columns = {"role": capital}
    for kind in kinds_with_roles(found):
        total = len(of_kind(found.labels, kind))
        own = of_kind(roles, kind)
        columns[HEADS_OF_KIND[kind]] = partial(share, own, total, categories)
        columns[f"layers of {HEADS_OF_KIND[kind]}"] = partial(depth, own)
    columns["clearest"] = clearest
    controls = {
        UNTRAINED: "untrained",
        RANDOM_WORDS: "on random words",
        SHUFFLED: "on shuffled sentences",
    }
    for control, title in controls.items():
        rows = of_control(found, control)
        if len(rows):
            total = rows["control"].nunique() * len(found.labels)
            have = with_categories(rows[rows["found"] == 1])
            tested = {NO_ROLE, *rows["measure"].map(category)}
            columns[title] = partial(share, have, total, tested)
    return table("Shares of roles", categories, columns)


def causal_table(found: RolesFolder) -> PageTable | None:
    """What the model predicts with the head of each role off; None where that was not tested."""
    rows = found.causal.dropna(subset=["with_all", "value"])
    rows = rows.sort_values(["behaviour", "value"], ascending=[True, False], kind="stable")

    def moved(row: Any, change: float, low: float | None = None, high: float | None = None) -> str:
        interval = interval_text(low, high)
        return f"{row['with_all'] + change:.2f}\n{signed(change)} {interval}".strip()

    def without_others(row: Any) -> str:
        if pd.isna(row["others"]):
            return ""
        return moved(row, NAMED[row["behaviour"]].sign * row["others"])

    columns: Columns = {
        "head": lambda row: str(head_of(row)),
        "role": lambda row: display_name(row["measure"]),
        "predicted": lambda row: f"{row['behaviour']}\n{NAMED[row['behaviour']].unit}",
        "all heads": lambda row: f"{row['with_all']:.2f}",
        "this head off": lambda row: moved(row, *change_without(row)),
        "another of its layer off": without_others,
    }
    return table(
        "Roles with their head off",
        rows.to_dict("records"),
        columns,
        lambda row: "confirmed" if row["confirmed"] == 1 else "",
        lambda row: str(row["measure"]),
    )
