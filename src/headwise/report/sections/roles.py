"""What each head does: the roles that were found, beside the paper's, with their evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from headwise.heads import KINDS
from headwise.report.parts import Row, Section, Table
from headwise.report.run import Roles, Run
from headwise.report.sections.attention_maps import attention_maps
from headwise.report.sections.role_charts import function_grids, layer_patterns, offsets, rare_tokens
from headwise.report.words import HEADS_OF_KIND, NONE, capital, listed, percent, signed
from headwise.roles.label import ABOVE_BASELINE, AT_LEAST, NO_ROLE, SYNTAX, Bar, category, wording

PAPER = Path(__file__).parent.parent / "papers" / "voita2019_roles.csv"  # figures 1c, 2b and 2d
HEAD = ["kind", "layer", "head"]


def build(run: Run) -> dict[str, Any] | None:
    """All about roles; the section is left out without them."""
    found = run.roles
    if found is None:
        return None
    syntax = syntax_table(found)
    return {
        "groups": _groups(found),
        "claims": claims(found),
        "grids": function_grids(run),
        "patterns": layer_patterns(found),
        "shares": share_table(found),
        "syntax": syntax,
        "left_out": 0 if syntax is None else _syntactic(found)["measure"].nunique() - len(syntax.rows),
        "offsets": offsets(found),
        "rare": rare_tokens(found),
        "maps": attention_maps(found),
        "absent": found.facts["absent"],
        "bars": _bars(found),
    }


def kinds_of(found: Roles) -> list[str]:
    """The kinds of heads that were tested."""
    return [kind for kind in KINDS if kind in set(found.labels["kind"])]


def of_kind(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The rows of one kind of heads."""
    return table[table["kind"] == kind]


def _by_sort(roles: pd.DataFrame) -> pd.DataFrame:
    """The roles with the sort of each, the best of each head and sort first."""
    sorts = roles.assign(sort=[category(measure) for measure in roles["measure"]])
    return sorts.sort_values("value", ascending=False, kind="stable").drop_duplicates([*HEAD, "sort"])


def in_short(run: Run) -> list[tuple[str, str, str]]:
    """How many heads have a role, kind by kind, for the opening."""
    facts = []
    for kind in kinds_of(run.roles) if run.roles is not None else []:
        assert run.roles is not None
        roles, total = of_kind(run.roles.roles, kind), len(of_kind(run.roles.labels, kind))
        counts = _by_sort(roles)["sort"].value_counts()
        sorts = " · ".join(f"{sort} {count}" for sort, count in counts.items())
        text = f"{len(roles[HEAD].drop_duplicates())} of {total} have a role that two halves of the text confirm"
        facts.append((capital(HEADS_OF_KIND[kind]), f"{text}{f': {sorts}' if sorts else ''}", ""))
    return facts


def _groups(found: Roles) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Facts for each kind of heads and for the text."""
    groups = []
    for kind in kinds_of(found):
        roles, total = of_kind(found.roles, kind), len(of_kind(found.labels, kind))
        count = len(roles[HEAD].drop_duplicates())
        facts = [("With a role", f"{count} of {total} ({percent(count / total)})", "")]
        by_sort = _by_sort(roles)
        for sort in by_sort["sort"].value_counts().index:
            part = by_sort[by_sort["sort"] == sort]
            best, layers = part.iloc[0], listed([str(layer) for layer in sorted(set(part["layer"]))])
            clearest = f"{best['kind']}/{best['layer']}/{best['head']}, {best['text']}"
            where = f"layer{'s' if len(set(part['layer'])) > 1 else ''} {layers}"
            facts.append((capital(str(sort)), f"{len(part)} in {where}; clearest {clearest}", ""))
        groups.append((capital(HEADS_OF_KIND[kind]), facts))
    text = []
    for name, part in found.facts["coverage"].items():
        split = part["split_words"] / max(part["words"], 1)
        unknown = part["unknown_subwords"] / max(part["subwords"], 1)
        used = f"{part['used']:,} of {part['sentences']:,} sentences used, {part['words']:,} words"
        text.append(
            (capital(name), f"{used}; {percent(split)} in several subwords, {percent(unknown, 1)} unknown subwords", "")
        )
    text += [("Note", warning, "") for warning in found.facts["warnings"]]
    seldom = list(dict.fromkeys(_topic(measure) for measure in found.facts["seldom"]))
    text += [("Too rare to be scored", listed(seldom), "")] if seldom else []
    return [*groups, ("The text", text)]


def _topic(measure: str) -> str:
    """What a measure is about: a relation, or its own name."""
    first, _, rest = measure.partition(".")
    return rest.split(".")[0] if first in ("syntactic", "attachment") else measure


def claims(found: Roles) -> Table | None:
    """What Voita et al. (2019) found in encoders, and whether this model has it; None without encoder heads."""
    if "encoder-self" not in kinds_of(found):
        return None
    roles = of_kind(found.roles, "encoder-self")
    have, total = set(roles["measure"]), len(of_kind(found.labels, "encoder-self"))
    relations = list(dict.fromkeys(measure.split(".")[1] for measure in SYNTAX))
    along = {rel: {f"syntactic.{rel}.{way}" for way in ("to-governor", "to-dependent")} & have for rel in relations}
    rare = ((roles["measure"] == "rare.two-rarest") & (roles["layer"] == 0)).any()
    held = [
        ("a head for the token before", "positional.-1" in have),
        ("a head for the token after", "positional.1" in have),
        *((f"a head along {rel}", bool(there)) for rel, there in along.items()),
        ("a head for rare tokens in the first layer", bool(rare)),
        ("no known role in most heads", 2 * len(roles[HEAD].drop_duplicates()) < total),
    ]
    return Table(
        "Beside the paper", ["Voita et al. (2019), encoder", "here"], [Row([c, "yes" if h else "no"]) for c, h in held]
    )


def _bars(found: Roles) -> dict[str, str]:
    """The numbers of the rule by which roles are decided."""
    signature, asked = found.facts.get("signature", {}), set(found.table["measure"])
    bar = Bar(**signature.get("bar", {}))
    other = signature.get("confirmed_on", "the other half")
    above = f"{100 * bar.margin:g}{' % of it' if bar.relative else ' points'} above the baseline"
    held = [sort for sort in ABOVE_BASELINE if any(measure.startswith(sort) for measure in asked)]
    bars = [f"positional {AT_LEAST['positional']:g} of the tokens at one offset"]
    bars += [f"{listed(held)} {above}"] if held else []
    bars += [f"{wording(measure)} {least:g}" for measure, least in AT_LEAST.items() if measure in asked]
    first = "one half of the documents" if other == "the other half" else "the text"
    return {"bars": "; ".join(bars), "first": first, "other": other, "rate": percent(bar.rate)}


def _syntactic(found: Roles) -> pd.DataFrame:
    return found.table[found.table["measure"].str.startswith("syntactic.")]


def syntax_table(found: Roles) -> Table | None:
    """Best head against baseline for each relation and direction: the paper's four, then others with a role."""
    table = _syntactic(found).dropna(subset=["value"])
    if table.empty:
        return None
    held = set(found.roles[[*HEAD, "measure"]].itertuples(index=False, name=None))
    others = found.roles[found.roles["measure"].isin(set(table["measure"]) - set(SYNTAX))]
    gain = (others["value"] - others["baseline"]).groupby(others["measure"]).max().sort_values(ascending=False)
    rows = []
    for measure in (*SYNTAX, *gain.index):
        if len(part := table[table["measure"] == measure]):
            best = part.sort_values("value").iloc[-1]
            is_role = (*(best[name] for name in HEAD), measure) in held
            ends = "" if pd.isna(best["low"]) else f"\n[{best['low']:.2f}, {best['high']:.2f}]"
            above = [f"{best['baseline']:.2f}", signed(best["value"] - best["baseline"])]
            cells = [
                wording(measure), "/".join(str(best[name]) for name in HEAD), f"{best['value']:.2f}{ends}",
                *([NONE, NONE] if pd.isna(best["baseline"]) else above), f"{best['n']:,.0f}",
                "yes" if is_role else "no",
            ]  # fmt: skip
            rows.append(Row(cells, badge="role" if is_role else "", code=measure))
    columns = ["relation", "best head", "score", "baseline", "difference", "words", "confirmed"]
    return Table("Best head against baseline", columns, rows)


def share_table(found: Roles) -> Table:
    """Shares of each sort of role, beside the paper's three models where encoder heads were tested."""
    kinds = kinds_of(found)
    paper = pd.read_csv(PAPER, index_col="role") if "encoder-self" in kinds else pd.DataFrame()
    sorts = [*paper.index[:-1], *_by_sort(found.roles)["sort"].value_counts().index, NO_ROLE]
    rows = []
    for sort in dict.fromkeys(sorts):
        counts = []
        for kind in kinds:
            patterns = of_kind(found.patterns, kind)
            counts.append((patterns.loc[patterns["role"] == sort, "heads"].sum(), len(of_kind(found.labels, kind))))
        counts += [(paper.loc[sort, pair], 48) if sort in paper.index else (None, 48) for pair in paper.columns]
        cells = [NONE if count is None else f"{percent(count / total)}\n{count} of {total}" for count, total in counts]
        rows.append(Row([capital(str(sort)), *cells]))
    columns = ["role", *(HEADS_OF_KIND[kind] for kind in kinds), *(f"Voita et al., {pair}" for pair in paper.columns)]
    return Table("Shares of roles", columns, rows)


SECTION = Section("roles", "Roles", "What each head does", build)
