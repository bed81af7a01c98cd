"""One part of the report on a page of its own: quick to open, and proof that the part needs nothing but the colours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from faces.report.visits import chromium
from headwise.core import theme
from headwise.faces.report import charts


@contextmanager
def part_page(folder: Path, template: str, **told: Any) -> Iterator[Any]:
    """The part open in a browser, on a phone where motion is unwanted; it must say nothing in the console."""
    loader = FileSystemLoader(Path(charts.__file__).parent / "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    part = environment.get_template(template).render(**told)
    colours = "; ".join(f"--{name}: {theme.LIGHT[name]}" for name in theme.COLOURS)
    style = f":root {{ {colours} }} * {{ box-sizing: border-box }}"
    file = folder / "part.html"
    head = f'<!doctype html><meta charset="utf-8"><style>{style}</style>'
    file.write_text(head + part, encoding="utf-8")
    said: list[str] = []
    with chromium() as browser:
        phone = {"width": 400, "height": 900}
        opened = browser.new_context(reduced_motion="reduce", viewport=phone).new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.goto(file.as_uri())
        yield opened
    assert said == []
