"""Formulas of the site: a block of LaTeX, ```math, becomes MathML, which browsers draw without a program of ours."""

from __future__ import annotations

from typing import Any


def mathml(source: str, *_: Any, **__: Any) -> str:
    """The block as HTML. A formatter of pymdownx.superfences; mkdocs.yml names it."""
    from latex2mathml.converter import convert

    formula: str = convert(source, display="block")
    return f'<div class="formula">{formula}</div>'
