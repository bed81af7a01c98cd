"""What each head does, told: sentences and tables made from the numbers of the roles that were found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from headwise.heads import KINDS
from headwise.report.run import RolesFound, Run
from headwise.report.table import Line, Table
from headwise.report.wording import HEADS_OF_KIND, KIND_NAMES, NONE, listed, percent, sentence
from headwise.roles.label import ABOVE_BASELINE, AT_LEAST, NO_ROLE, SYNTAX, Bar, wording, wording_of_sort

# Voita et al. 2019, figures 1c, 2b and 2d: of 48 encoder heads, positional, syntactic, rare tokens, no known role.
PAPER = {"EN-RU": (5, 8, 1, 34), "EN-DE": (5, 9, 1, 33), "EN-FR": (4, 7, 1, 36)}
PAPER_SORTS = ("positional", "syntactic", "rare tokens", NO_ROLE)
HEAD = ["kind", "layer", "head"]


def sentences(run: Run) -> list[tuple[str, str]]:
    """What the roles are, where they live and what the paper found, each under its lead; none without roles."""
    found = run.roles
    if found is None:
        return []
    told = [("Roles found", " ".join(_found_in(found, kind) for kind in _kinds(found)))]
    if not found.roles.empty:
        told.append(("Where they live", _layers(found)))
    if "encoder-self" in _kinds(found):
        told.append(("Beside the paper", _beside_the_paper(found)))
    return [*told, ("The text", " ".join(_text(found)))]


def in_short(run: Run) -> str:
    """The roles in one sentence; nothing where none were asked for."""
    if run.roles is None:
        return ""
    parts = []
    for kind in _kinds(run.roles):
        roles, heads = _of(run.roles.roles, kind), len(_of(run.roles.labels, kind))
        best = roles.sort_values("value").iloc[-1] if len(roles) else None
        counts = _sorts(roles)
        told = f"{_heads_with_role(roles)} of {heads} {HEADS_OF_KIND[kind]} have a role that two halves of text confirm"
        if best is not None:
            sorts = listed([f"{sort} {count}" for sort, count in counts.items()])
            told += f" ({sorts}; the clearest: {best['text']} at {_address(best)})"
        parts.append(told)
    return f"{'; '.join(parts)}."


def _kinds(found: RolesFound) -> list[str]:
    return [kind for kind in KINDS if kind in set(found.labels["kind"])]


def _of(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    return table[table["kind"] == kind]


def _address(row: Any) -> str:
    return f"{row['kind']}/{row['layer']}/{row['head']}"


def _heads_with_role(roles: pd.DataFrame) -> int:
    return len(roles[HEAD].drop_duplicates())


def _sorts(roles: pd.DataFrame) -> dict[str, int]:
    """Heads of each sort of role, the most frequent first."""
    counts = Counter(wording_of_sort(row["measure"]) for row in _heads_by_sort(roles).to_dict("records"))
    return dict(counts.most_common())


def _heads_by_sort(roles: pd.DataFrame) -> pd.DataFrame:
    return roles.assign(sort=[wording_of_sort(measure) for measure in roles["measure"]]).drop_duplicates(
        [*HEAD, "sort"]
    )


def _found_in(found: RolesFound, kind: str) -> str:
    """How many heads have a role, of which sorts, and the clearest head of each."""
    roles, heads = _of(found.roles, kind), len(_of(found.labels, kind))
    if roles.empty:
        return (
            f"No {HEADS_OF_KIND[kind].removesuffix('s')} of {heads} has a role that holds on both halves of the text."
        )
    count = _heads_with_role(roles)
    told = [
        f"{count} of {heads} {HEADS_OF_KIND[kind]} ({percent(count / heads)}) have a role; the other "
        f"{heads - count} do nothing that these tests know."
    ]
    for sort, number in _sorts(roles).items():
        best = roles[roles["measure"].map(wording_of_sort) == sort].sort_values("value").iloc[-1]
        told.append(f"{sentence(sort)}: {number}, most clearly {_address(best)}, {best['text']}.")
    return " ".join(told)


def _layers(found: RolesFound) -> str:
    """`Positional heads: layers 0 to 2.`"""
    told = []
    for kind in _kinds(found):
        roles = _heads_by_sort(_of(found.roles, kind))
        parts = []
        for sort in _sorts(roles):
            layers = sorted(set(roles.loc[roles["sort"] == sort, "layer"]))
            parts.append(f"{sort} in {_spelled(layers)}")
        if parts:
            last = _of(found.labels, kind)["layer"].max()
            told.append(f"{sentence(KIND_NAMES[kind])} (layers 0 to {last}): {'; '.join(parts)}.")
    return " ".join(told)


def _spelled(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1:
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {listed([str(layer) for layer in layers])}"


def _beside_the_paper(found: RolesFound) -> str:
    """Which findings of Voita et al. 2019 hold on this model, and which do not."""
    roles = _of(found.roles, "encoder-self")
    have = set(roles["measure"])
    relations = list(dict.fromkeys(measure.split(".")[1] for measure in SYNTAX))
    along = [rel for rel in relations if {f"syntactic.{rel}.to-governor", f"syntactic.{rel}.to-dependent"} & have]
    claims = [
        ("a head for the token before", "positional.-1" in have),
        ("a head for the token after", "positional.1" in have),
        (f"heads along {listed(along)}", bool(along)),
        (f"heads along {listed([rel for rel in relations if rel not in along])}", False),
        ("a head for rare tokens in the first layer", _has_first(roles, "rare.two-rarest")),
        ("no known role in most heads", 2 * _heads_with_role(roles) < len(_of(found.labels, "encoder-self"))),
    ]
    known = [(claim, holds) for claim, holds in claims if not claim.endswith("along ")]
    yes, no = ([claim for claim, holds in known if holds is held] for held in (True, False))
    told = "Of what Voita et al. (2019) found in the encoders of translation models, this model has"
    if not yes:
        return f"{told} nothing: {listed(no)} are missing."
    return f"{told} {listed(yes)}" + (f"; not found: {listed(no)}." if no else ".")


def _has_first(roles: pd.DataFrame, measure: str) -> bool:
    return bool(((roles["measure"] == measure) & (roles["layer"] == 0)).any())


def _text(found: RolesFound) -> list[str]:
    """What became of the text, and what to be careful with."""
    told = []
    for name, text in found.facts["coverage"].items():
        part = (
            f"Of the {name}, {text['used']:,} of {text['sentences']:,} sentences were used ({text['words']:,} words; "
        )
        part += f"{percent(text['split_words'] / max(text['words'], 1))} of them in several pieces"
        share = text["unknown_subwords"] / max(text["subwords"], 1)
        told.append(f"{part}, {percent(share, 1) if share else 'no'} unknown pieces).")
    told += [warning if warning.endswith((".", "?")) else f"{warning}." for warning in found.facts["warnings"]]
    seldom = list(dict.fromkeys(_topic(measure) for measure in found.facts["seldom"]))
    return [*told, f"Too seldom here to be scored: {listed(seldom)}."] if seldom else told


def _topic(measure: str) -> str:
    """What a measure is about: a relation, or its own name."""
    first, _, rest = measure.partition(".")
    return rest.split(".")[0] if first in ("syntactic", "attachment") else measure


def decided(run: Run) -> str:
    """How roles are decided, in three sentences."""
    if run.roles is None:
        return ""
    signature, asked = run.roles.facts.get("signature", {}), set(run.roles.table["measure"])
    bar, other = Bar(**signature.get("bar", {})), signature.get("confirmed_on", "the other half")
    above = f"{100 * bar.margin:g}{' % of it' if bar.relative else ' points'} above the baseline"
    bars = [f"positional {AT_LEAST['positional']:g} of the tokens at one offset"]
    held = [sort for sort in ABOVE_BASELINE if any(measure.startswith(sort) for measure in asked)]
    bars += [f"{listed(held)} {above}"] if held else []
    bars += [f"{wording(measure)} {value:g}" for measure, value in AT_LEAST.items() if measure in asked]
    first = "One half of the documents finds" if other == "the other half" else "The text finds"
    return (
        f"A head has a role when its score reaches the bar of the role ({'; '.join(bars)}) and is better than the "
        f"role's baseline beyond chance. {first} roles, the p-values of all heads and roles corrected together "
        f"(Benjamini-Hochberg: on average at most {percent(bar.rate)} of the roles found are false), and {other} "
        "confirms them by the same test. The baseline of syntax is the best fixed offset between words on the same "
        "text, so that a head which only points at a neighbour is not taken for a grammarian; of coreference it is the "
        "nearest mention, of alignment the diagonal, of all others a token drawn at random."
    )


def syntax_table(run: Run) -> Table | None:
    """Best head against baseline for each relation and direction: the paper's four, then others with a role."""
    if run.roles is None:
        return None
    table = run.roles.table[run.roles.table["measure"].str.startswith("syntactic.")].dropna(subset=["value"])
    if table.empty:
        return None
    roles = run.roles.roles
    held = {(row["measure"], _address(row)) for row in roles.to_dict("records")}
    confirmed = roles[roles["measure"].isin(set(table["measure"]) - set(SYNTAX))]
    gain = (confirmed["value"] - confirmed["baseline"]).groupby(confirmed["measure"]).max()
    order = [*SYNTAX, *gain.sort_values(ascending=False).index]
    lines = []
    for measure in order:
        rows = table[table["measure"] == measure].sort_values("value")
        if len(rows):
            best = rows.iloc[-1].to_dict()
            is_role = (measure, _address(best)) in held
            cells = [wording(measure), _address(best), _score(best), *_against(best), f"{best['n']:,.0f}"]
            lines.append(Line([*cells, "yes" if is_role else "no"], badge="role" if is_role else "", code=measure))
    columns = ["relation", "best head", "score", "baseline", "difference", "words", "confirmed"]
    return Table("Best head against baseline", columns, lines)


def _score(row: dict[Any, Any]) -> str:
    told = f"{row['value']:.2f}"
    return told if pd.isna(row["low"]) else f"{told}\n[{row['low']:.2f}, {row['high']:.2f}]"


def _against(row: dict[Any, Any]) -> tuple[str, str]:
    if pd.isna(row["baseline"]):
        return NONE, NONE
    gain = row["value"] - row["baseline"]
    return f"{row['baseline']:.2f}", f"{'−' if gain < 0 else '+'}{abs(gain):.2f}"


def others_left_out(run: Run) -> int:
    """Relations and directions that were scored and are not in the table: none of their heads has a role."""
    shown = syntax_table(run)
    if run.roles is None or shown is None:
        return 0
    asked = {m for m in run.roles.table["measure"] if m.startswith("syntactic.")}
    return len(asked - {line.code for line in shown.lines})


def share_table(run: Run) -> Table | None:
    """Shares of each sort of role, beside the paper's three models where encoder heads were tested."""
    if run.roles is None:
        return None
    found, kinds = run.roles, _kinds(run.roles)
    paper = "encoder-self" in kinds
    sorts = [*(_sorts(found.roles)), NO_ROLE]
    sorts = list(dict.fromkeys([*(PAPER_SORTS[:-1] if paper else ()), *sorts]))
    lines = []
    for sort in sorts:
        cells = []
        for kind in kinds:
            heads = _of(found.labels, kind)
            patterns = _of(found.patterns, kind)
            count = int(patterns.loc[patterns["role"] == sort, "heads"].sum())
            cells.append(f"{percent(count / len(heads))}\n{count} of {len(heads)}")
        if paper:
            theirs = [counts[PAPER_SORTS.index(sort)] if sort in PAPER_SORTS else None for counts in PAPER.values()]
            cells += [NONE if count is None else f"{percent(count / 48)}\n{count} of 48" for count in theirs]
        lines.append(Line([sentence(sort), *cells]))
    columns = ["role", *(HEADS_OF_KIND[kind] for kind in kinds)]
    return Table("Shares of roles", [*columns, *(f"Voita et al., {pair}" for pair in PAPER if paper)], lines)
