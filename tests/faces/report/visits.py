"""Visits of a page in a real browser: what it said in the console, and what it asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

CHROMIUM = shutil.which("chromium")
UNFOLD = "document.querySelectorAll('main details').forEach((one) => { one.open = true; })"
PATIENCE = 300_000  # milliseconds: tests share their machine
QUIET = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass
class Visit:
    """An open page, and what it said and asked for while it was loaded and drawn."""

    page: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser; the test is skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", *QUIET]
        )
        yield started
        started.close()


def visit(
    browser: Any,
    page: Path,
    width: int,
    theme: Literal["light", "dark"],
    place: str = "",
    unfolded: bool = True,
) -> Visit:
    """Open the report, at a place of it (`#head=…`), unfold everything, and wait until every chart is drawn."""
    opened = Visit(
        browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900}).new_page()
    )
    opened.page.set_default_timeout(PATIENCE)
    opened.page.on("console", lambda message: opened.console.append(message.text))
    opened.page.on("pageerror", lambda error: opened.console.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.goto(page.as_uri() + place)
    wait_until_drawn(opened.page, theme)
    if unfolded:
        opened.page.evaluate(UNFOLD)
        opened.page.wait_for_function(
            "document.querySelectorAll('.chart svg').length === document.querySelectorAll('.chart').length"
        )
        wait_until_drawn(opened.page, theme)
    return opened


def wait_until_drawn(page: Any, theme: str) -> None:
    page.wait_for_function(
        f"document.documentElement.dataset.drawn === '{theme}'", timeout=PATIENCE
    )
