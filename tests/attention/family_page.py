"""The table of families as a page of the docs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from headwise.families import SIGNS

PAGE = "docs/families.md"
ABILITIES = ("found", "scored", "roles", "gates", "removed")
FAMILY_COLUMNS = (
    "family",
    "class",
    "heads",
    *ABILITIES,
    "uniform",
)  # then one for each engine, and why
MOST_FAMILIES_NAMED = 20  # families that a line names
PAGE_TOP = """# Families

What headwise does with each family of models, as `headwise families` prints it. `make families` makes this page: of
each family it builds a small random model and tests every cell ([how](methods/removal.md)); an empty cell was not
tested. A family that is not here may work as well: headwise goes by no list, it looks at each model that it loads.

* **heads**: `registry`, the family calls transformers' attention registry; `own code`, it does not, and headwise
  hooks into its output projections. There relevance (LRP) is refused.
* **scored**: (✓) some measures only. **removed**: – masks and gates only.
* **uniform**: ✓ `from_pretrained` loads the model where all layers keep equally many heads; the others divide the width
  by the number of heads, or have heads of several kinds.
* **All others**: engines that take it with uneven heads ([export](howto/export.md)); `onnx`, `torch` and `stock` were
  written and compared, `gguf` and `ct2` are compared in tests of their own.

"""


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """The table as a page of the docs."""
    columns = [*rows[0]][:-1]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        lines.append(f"| {' | '.join(SIGNS.get(row[column], row[column]) for column in columns)} |")
    lines += ["", "## Why not", ""]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for reason in filter(None, row["why"].split("; ")):
            reasons.setdefault(general(reason, row), []).append(row["family"])
    for reason, names in reasons.items():
        line = (
            f"* {', '.join(names) if len(names) <= MOST_FAMILIES_NAMED else 'All others'}. {reason}"
        )
        lines.append(
            textwrap.fill(
                line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        )
    return PAGE_TOP + "\n".join(lines) + "\n"


def general(reason: str, row: Mapping[str, str]) -> str:
    """A reason in words that several families share."""
    reason = reason.replace(f"this {row['class']}", "it").replace(f"This {row['class']}", "It")
    reason = reason.replace(row["class"], "the model")
    return reason.replace(f" a {row['family']}", " it").replace(f" {row['family']}", " it")
