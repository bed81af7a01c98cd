"""What each head does: the roles that were found, the paper's for comparison, and their evidence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.report.format import HEADS_OF_KIND, capital, listed, percent, signed
from headwise.report.page import Columns, Table, section, table
from headwise.report.role_charts import (
    attention_maps,
    kinds_with_roles,
    layer_patterns,
    of_kind,
    of_untrained,
    offsets,
    rare_tokens,
)
from headwise.report.run_folder import HEAD_COLUMNS, FinishedRun, RolesFolder
from headwise.roles.behaviour import NAMED, change_without
from headwise.roles.label import FALSE_ROLES, effect_sizes
from headwise.roles.role import (
    HEARD,
    NO_ROLE,
    RANDOM_WORDS,
    SHUFFLED,
    category,
    display_name,
    expected_roles,
    ordered_roles,
    role,
    role_of,
)

PAPER = Path(__file__).parent / "papers" / "voita2019_roles.csv"  # figures 1c, 2b and 2d


def paper_syntax() -> list[str]:
    """The measures of the paper's four relations."""
    expected = expected_roles("encoder-self")
    measures: list[str] = []
    for measure in expected:
        if measure.startswith("syntactic."):
            measures.append(measure)
    return measures


@section(
    "roles",
    heading="What each head does",
    question="Which heads have a role, and how sure is it?",
    order=27,
    files=("roles/",),
    papers={"Best head against baseline*": "Voita table 1"},
    brought_by="roles.treebank, a file of parsed sentences",
)
def role_tables_section(run: FinishedRun) -> dict[str, Any] | None:
    """All about roles; the section is left out without them."""
    found = run.roles
    if found is None:
        return None
    syntax = syntax_table(found)
    untrained_models = of_untrained(found)["control"].nunique()
    return {
        "untrained_models": untrained_models,
        "controls": controls_table(found),
        "groups": _text_facts(found),
        "patterns": layer_patterns(run),
        "causal": causal_table(found),
        "shares": share_table(found),
        "in_encoder": reads_text(found),
        "syntax": syntax,
        "left_out": 0
        if syntax is None
        else _syntactic(found)["measure"].nunique() - len(syntax.rows),
        "offsets": offsets(found),
        "rare": rare_tokens(found),
        "maps": attention_maps(found),
        "absent": found.facts["absent"],
        "rule": _rule(found),
    }


def _best_by_category(roles: pd.DataFrame) -> pd.DataFrame:
    """The roles with the category of each: the best of each head and category, the highest first."""
    categories = [category(measure) for measure in roles["measure"]]
    roles = roles.assign(category=categories)
    return roles.sort_values("value", ascending=False, kind="stable").drop_duplicates(
        [*HEAD_COLUMNS, "category"]
    )


def role_facts(run: FinishedRun) -> list[tuple[str, str, str]]:
    """How many heads have a role, kind by kind, for the opening."""
    facts = []
    for kind in kinds_with_roles(run.roles) if run.roles is not None else []:
        assert run.roles is not None
        roles = of_kind(run.roles.roles, kind)
        total = len(of_kind(run.roles.labels, kind))
        counts = _best_by_category(roles)["category"].value_counts()
        categories = " · ".join(f"{name} {count}" for name, count in counts.items())
        text = f"{len(roles[HEAD_COLUMNS].drop_duplicates())} of {total} have a role that two halves of the text confirm"
        facts.append(
            (capital(HEADS_OF_KIND[kind]), f"{text}{f': {categories}' if categories else ''}", "")
        )
    return facts


def functions_found(found: RolesFolder) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Facts for each kind of heads."""
    groups = []
    for kind in kinds_with_roles(found):
        roles = of_kind(found.roles, kind)
        total = len(of_kind(found.labels, kind))
        count = len(roles[HEAD_COLUMNS].drop_duplicates())
        facts = [("With a role", f"{count} of {total} ({percent(count / total)})", "")]
        best_by_category = _best_by_category(roles)
        for name in best_by_category["category"].value_counts().index:
            of_category = best_by_category[best_by_category["category"] == name]
            best = of_category.iloc[0]
            layers = listed([str(layer) for layer in sorted(set(of_category["layer"]))])
            clearest = f"{best['kind']}/{best['layer']}/{best['head']}, {best['text']}"
            where = f"layer{'s' if len(set(of_category['layer'])) > 1 else ''} {layers}"
            facts.append(
                (capital(str(name)), f"{len(of_category)} in {where}; clearest {clearest}", "")
            )

        groups.append((capital(HEADS_OF_KIND[kind]), facts))
    return groups


def _text_facts(found: RolesFolder) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Facts for the text."""
    text = []
    for name, part in found.facts["coverage"].items():
        split = part["split_words"] / max(part["words"], 1)
        unknown = part["unknown_subwords"] / max(part["subwords"], 1)
        used = f"{part['used']:,} of {part['sentences']:,} sentences used, {part['words']:,} words"
        text.append(
            (
                capital(name),
                f"{used}; {percent(split)} in several subwords, {percent(unknown, 1)} unknown subwords",
                "",
            )
        )

    for warning in found.facts["warnings"]:
        text.append(("Note", warning, ""))

    low_support = list(dict.fromkeys(_topic(measure) for measure in found.facts["low_support"]))
    text += [("Too rare to be scored", listed(low_support), "")] if low_support else []
    return [("The text", text)]


def _topic(measure: str) -> str:
    """What a measure is about: a relation, or its own name."""
    first, _, rest = measure.partition(".")
    return rest.split(".")[0] if first in ("syntactic", "attachment") else measure


def reads_text(found: RolesFolder) -> bool:
    """Whether there are encoder heads that were tested on text, as in the paper."""
    return "encoder-self" in kinds_with_roles(found) and HEARD.isdisjoint(found.table["measure"])


_BASELINES = {
    "syntactic": "of syntax the best fixed offset between words on the same text, so that a head which only points at a "
    "neighbour does not count as syntactic",
    "coreference": "of coreference the nearest mention",
    "alignment": "of alignment the diagonal",
}


def _rule(found: RolesFolder) -> dict[str, str]:
    """The numbers of the rule by which roles are decided."""
    other = found.facts.get("signature", {}).get("confirmed_on", "the other half")
    tested = []
    for measure in found.table["measure"].drop_duplicates():
        tested.append(role_of(measure))

    names = set()
    for declared in tested:
        if declared is not None:
            names.add(declared.name)

    rules = [f"positional {role['positional'].threshold:g} of the tokens at one offset"]
    by_margin: dict[float, list[str]] = {}
    for declared in ordered_roles():
        if declared.name in names and declared.margin is not None:
            by_margin.setdefault(declared.margin, []).append(declared.name)

    for margin, above in by_margin.items():
        rules.append(f"{listed(above)} {100 * margin:g} points above the baseline")

    for declared in ordered_roles():
        if declared.name in names - {"positional"} and declared.threshold is not None:
            rules.append(f"{declared.category} {declared.threshold:g}")

    first = "one half of the documents" if other == "the other half" else "the text"
    baselines = [_BASELINES[name] for name in _BASELINES if name in names]
    return {
        "baselines": ", ".join(baselines),
        "thresholds": "; ".join(rules),
        "first": first,
        "other": other,
        "rate": percent(FALSE_ROLES),
    }


def _syntactic(found: RolesFolder) -> pd.DataFrame:
    return found.table[found.table["measure"].str.startswith("syntactic.")]


def syntax_table(found: RolesFolder) -> Table | None:
    """Best head against baseline for each relation and direction: the paper's four, then others with a role."""
    scores = _syntactic(found).dropna(subset=["value"]).groupby("measure")
    best = {}
    for measure, part in scores:
        best[measure] = part.sort_values("value").iloc[-1]

    held = set(found.roles[[*HEAD_COLUMNS, "measure"]].itertuples(index=False, name=None))
    others = found.roles[found.roles["measure"].isin(set(best) - set(paper_syntax()))]
    gain = (
        (others["value"] - others["baseline"])
        .groupby(others["measure"])
        .max()
        .sort_values(ascending=False)
    )

    def is_role(row: Any) -> bool:
        return (*(row[name] for name in HEAD_COLUMNS), row["measure"]) in held

    untrained, words, order = (
        best_untrained(found),
        *(on_changed_text(found, text) for text in (RANDOM_WORDS, SHUFFLED)),
    )

    def best_control(row: Any) -> str:
        best = untrained.get((row["kind"], row["measure"]))
        return "" if best is None else f"{best[0]:.2f}\n{best[1]:.2f} to {best[2]:.2f}"

    def changed(scores: Mapping[tuple[Any, ...], float], row: Any) -> str:
        value = scores.get((*(row[name] for name in HEAD_COLUMNS), row["measure"]))
        return "" if value is None else f"{value:.2f}"

    columns: Columns = {
        "relation": lambda row: display_name(row["measure"]),
        "best head": lambda row: "/".join(str(row[name]) for name in HEAD_COLUMNS),
        "score": lambda row: (
            f"{row['value']:.2f}"
            + ("" if pd.isna(row["low"]) else f"\n[{row['low']:.2f}, {row['high']:.2f}]")
        ),
        "baseline": lambda row: "" if pd.isna(row["baseline"]) else f"{row['baseline']:.2f}",
        "difference": lambda row: (
            "" if pd.isna(row["baseline"]) else signed(row["value"] - row["baseline"])
        ),
        "effect (h)": lambda row: (
            "" if pd.isna(row["baseline"]) else signed(effect_size(row["value"], row["baseline"]))
        ),
        "best untrained": best_control,
        "random words": partial(changed, words),
        "shuffled": partial(changed, order),
        "words": lambda row: f"{row['n']:,.0f}",
        "confirmed": lambda row: "yes" if is_role(row) else "no",
    }
    shown = []
    for measure in (*paper_syntax(), *gain.index):
        if measure in best:
            shown.append(best[measure])

    badge = {True: "role", False: ""}
    return table(
        "Best head against baseline",
        shown,
        columns,
        lambda row: badge[is_role(row)],
        lambda row: str(row["measure"]),
    )


def share_table(found: RolesFolder) -> Table | None:
    """Shares of each category of role, and of the paper's three models where encoder heads were tested."""
    kinds = kinds_with_roles(found)
    paper = pd.read_csv(PAPER, index_col="role") if reads_text(found) else pd.DataFrame()
    own_categories = _best_by_category(found.roles)["category"].value_counts().index
    categories = [*paper.index[:-1], *own_categories, NO_ROLE]

    def ours(kind: str, name: str) -> str:
        patterns = of_kind(found.patterns, kind)
        total = len(of_kind(found.labels, kind))
        heads = patterns.loc[patterns["role"] == name, "heads"].sum()
        return f"{percent(heads / total)}\n{heads} of {total}"

    def theirs(pair: str, name: str) -> str:
        heads = paper[pair].get(name)
        return "" if heads is None else f"{percent(heads / 48)}\n{heads} of 48"

    controls = of_untrained(found)
    held = controls[controls["found"] == 1]
    held = held.assign(category=[category(measure) for measure in held["measure"]])
    count = max(1, controls["control"].nunique())

    def untrained(kind: str, name: str) -> str:
        total = count * len(of_kind(found.labels, kind))
        have = of_kind(held, kind)
        rows = have if name == NO_ROLE else have[have["category"] == name]
        heads = len(rows[["control", *HEAD_COLUMNS]].drop_duplicates())
        return percent((total - heads if name == NO_ROLE else heads) / total)

    columns: Columns = {
        "role": capital,
        **{HEADS_OF_KIND[kind]: partial(ours, kind) for kind in kinds},
    }
    if len(controls):
        columns |= {f"untrained {HEADS_OF_KIND[kind]}": partial(untrained, kind) for kind in kinds}
    columns |= {f"Voita et al., {pair}": partial(theirs, pair) for pair in paper.columns}
    return table("Shares of roles", [str(name) for name in dict.fromkeys(categories)], columns)


def on_changed_text(found: RolesFolder, control: str) -> Mapping[tuple[Any, ...], float]:
    """The model's own scores on random words, or on shuffled sentences, by kind, layer, head and measure."""
    if found.controls is None:
        return {}
    rows = found.controls[found.controls["control"] == control].dropna(subset=["value"])
    keys = rows[["kind", "layer", "head", "measure"]].itertuples(index=False, name=None)
    return dict(zip(keys, rows["value"], strict=True))


def best_untrained(found: RolesFolder) -> Mapping[tuple[str, str], tuple[float, float, float]]:
    """By kind and measure the best head of every untrained model: mean, lowest and highest over these models."""
    best = (
        of_untrained(found)
        .dropna(subset=["value"])
        .groupby(["kind", "measure", "control"])["value"]
        .max()
    )
    groups = best.groupby(level=["kind", "measure"]).agg(["mean", "min", "max"])
    ranges: dict[tuple[str, str], tuple[float, float, float]] = {}
    for (kind, m), row in zip(groups.index, groups.to_numpy(), strict=True):
        ranges[(str(kind), str(m))] = (row[0], row[1], row[2])
    return ranges


def effect_size(value: float, baseline: float) -> float:
    """Cohen's h of two shares, as `effect` in roles.csv."""
    h: float = effect_sizes([value], [baseline]).item()
    return h


def causal_table(found: RolesFolder) -> Table | None:
    """What the model predicts with the head of each role off; None where that was not tested."""
    if found.causal is None:
        return None
    rows = found.causal.dropna(subset=["with_all", "value"])
    rows = rows.sort_values(["behaviour", "value"], ascending=[True, False], kind="stable")

    def without(row: Any) -> str:
        change, low, high = change_without(row)
        moved = f"{row['with_all'] + change:.2f}\n{signed(change)}"
        return moved if pd.isna(low) else f"{moved} [{signed(low)}, {signed(high)}]"

    def without_others(row: Any) -> str:
        if pd.isna(row["others"]):
            return ""
        change = NAMED[row["behaviour"]].sign * row["others"]
        return f"{row['with_all'] + change:.2f}\n{signed(change)}"

    columns: Columns = {
        "head": lambda row: "/".join(str(row[name]) for name in HEAD_COLUMNS),
        "role": lambda row: display_name(row["measure"]),
        "predicted": lambda row: f"{row['behaviour']}\n{NAMED[row['behaviour']].unit}",
        "all heads": lambda row: f"{row['with_all']:.2f}",
        "this head off": without,
        "another of its layer off": without_others,
    }
    badge = {True: "confirmed", False: ""}
    return table(
        "Roles with their head off",
        rows.to_dict("records"),
        columns,
        lambda row: badge[row["confirmed"] == 1],
        lambda row: str(row["measure"]),
    )


def controls_table(found: RolesFolder) -> Table | None:
    """How many heads have a role, of the model and of every control."""
    if found.controls is None or found.controls.empty:
        return None
    heads = len(found.labels)
    categories = list(dict.fromkeys(category(measure) for measure in found.roles["measure"]))
    for measure in of_role(found.controls)["measure"]:
        if category(measure) not in categories:
            categories.append(category(measure))

    def have(rows: pd.DataFrame, name: str = "") -> str:
        held = rows[rows["measure"].map(category) == name] if name else rows
        return str(len(held[HEAD_COLUMNS].drop_duplicates()))

    text: Columns = {
        "tested": lambda row: row[0],
        f"of {heads} heads with a role": lambda row: have(row[1]),
    }
    text |= {name: partial(lambda name, row: have(row[1], name), name) for name in categories}
    names = {
        RANDOM_WORDS: "the model, on random words",
        SHUFFLED: "the model, on shuffled sentences",
    }
    rows = [("the model", found.roles)]
    for control, part in found.controls.groupby("control", sort=False):
        rows.append(
            (
                names.get(str(control), f"untrained, seed {str(control).rpartition('.')[2]}"),
                of_role(part),
            )
        )
    return table("Roles in the controls", rows, text)


def of_role(controls: pd.DataFrame) -> pd.DataFrame:
    """The rows of controls that are roles."""
    return controls[controls["found"] == 1]
