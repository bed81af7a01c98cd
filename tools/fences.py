"""Blocks of these pages that the site shows as something else. mkdocs.yml names their formatters (pymdownx.superfences)."""

from __future__ import annotations

from html import escape
from typing import Any

WHY = "why"  # the column of reasons


def mathml(source: str, *_: Any, **__: Any) -> str:
    """```math: LaTeX becomes MathML, which browsers draw without a program of ours."""
    from latex2mathml.converter import convert

    formula: str = convert(source, display="block")
    return f'<div class="formula">{formula}</div>'


def families(*_: Any, **__: Any) -> str:
    """```families: the table of families with a search box (docs/site.js), a family's reasons under its name."""
    from headwise.models.families import SIGNS, family_rows

    rows = family_rows()
    columns = [name for name in rows[0] if name not in ("class", WHY)]
    lines = []
    for row in rows:
        name = f'<span class="name"><b>{escape(row["family"])}</b> {escape(row["class"])}</span>'
        if reasons := "".join(f"<li>{escape(why)}</li>" for why in row[WHY].split("; ") if why):
            name += f"<details><summary>why not</summary><ul>{reasons}</ul></details>"
        cells = [SIGNS.get(row[column], row[column]) for column in columns[1:]]
        lines.append("".join(f"<td>{cell}</td>" for cell in [name, *cells]))
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        '<div class="families"><input type="search" placeholder="A family or class, such as qwen3" '
        f'aria-label="Search the families"><table class="plain"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
