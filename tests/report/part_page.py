"""One part of the report on a page of its own: quick to open, and proof that the part needs nothing but the colours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headwise import theme
from headwise.report import charts

CHROMIUM = shutil.which("chromium")


@contextmanager
def part_page(folder: Path, template: str, **told: Any) -> Iterator[Any]:
    """The part open in a browser, on a phone where motion is unwanted; it must say nothing in the console."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    loader = FileSystemLoader(Path(charts.__file__).parent / "templates")
    part = (
        Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        .get_template(template)
        .render(**told)
    )
    colours = "; ".join(f"--{name}: {theme.LIGHT[name]}" for name in theme.COLOURS)
    style = f":root {{ {colours} }} * {{ box-sizing: border-box }}"
    file = folder / "part.html"
    file.write_text(
        f'<!doctype html><meta charset="utf-8"><style>{style}</style>{part}', encoding="utf-8"
    )
    said: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        opened = browser.new_context(
            reduced_motion="reduce", viewport={"width": 400, "height": 900}
        ).new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.goto(file.as_uri())
        yield opened
        browser.close()
    assert said == []
