"""The page in a real browser: nothing fetched, nothing in the console, nothing wider than the screen, both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from axe import serious
from faces.report.made import make_language
from faces.report.made_sweeps import write_grid
from faces.report.visits import Visit, visit, wait_until_drawn
from headwise.faces.report.page import collect, render
from headwise.faces.report.run_folder import read_run
from headwise.faces.report.runs import read_grid

CHARTS = 30  # head map, 4 scores, pairs, 6 removal curves, grid, 4 maps, more:
# 3 × 3 layers of gates, BLEU on test and dev, layers, training


Theme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def opened(browser: Any, report_page: Path) -> Iterator[Visit]:
    """The open report, for tests that point at something there."""
    seen = visit(browser, report_page, 1280, "light")
    yield seen
    seen.page.context.close()


@pytest.fixture
def page(opened: Visit) -> Iterator[Any]:
    opened.page.locator("h1").hover()
    yield opened.page
    assert opened.console == []
    opened.page.emulate_media(media="screen", color_scheme="light")
    wait_until_drawn(opened.page, "light")
    opened.page.set_viewport_size({"width": 1280, "height": 900})


def lightness(page: Any, selector: str) -> float:
    """Mean of the channels of an element's background, 0 to 1."""
    element = f"document.querySelector('{selector}')"
    colour = page.evaluate(f"getComputedStyle({element}).backgroundColor")
    return sum(int(channel) for channel in re.findall(r"\d+", colour)[:3]) / 765


def opens_cleanly(browser: Any, page: Path, width: int, theme: Theme, charts: int) -> Any:
    """Nothing in the console, nothing fetched, and nothing wider than the screen."""
    seen = visit(browser, page, width, theme)
    assert (seen.console, seen.requests) == ([], [page.as_uri()])
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = "[...document.querySelectorAll('.chart svg')]"
    sizes = seen.page.evaluate(f"{drawn}.map(s => [s.clientWidth, s.clientHeight])")
    assert len(sizes) == charts and all(wide > 100 and high > 80 for wide, high in sizes)
    for selector in ("body", ".card"):
        assert (lightness(seen.page, selector) < 0.2) == (theme == "dark")
    cards = "[...document.querySelectorAll('.scroll, .table')]"
    edges = seen.page.evaluate(f"{cards}.map(e => e.getBoundingClientRect().right)")
    assert len(edges) > charts and max(edges) <= width
    return seen.page


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_it_opens_cleanly_and_axe_finds_nothing_serious(
    browser: Any, report_page: Path, width: int, theme: Theme
) -> None:
    page = opens_cleanly(browser, report_page, width, theme, CHARTS)
    page.evaluate("location.hash = 'head=encoder-self/2/4'")
    page.locator("#picked").wait_for()
    assert serious(page) == []
    page.context.close()


def test_charts_follow_a_change_of_theme_and_of_width(page: Any) -> None:
    background = "document.querySelector('#chart-training-0 svg').style.backgroundColor"
    width = "document.querySelector('#chart-training-0 svg').clientWidth"
    before, wide = page.evaluate(background), page.evaluate(width)
    page.emulate_media(color_scheme="dark")
    wait_until_drawn(page, "dark")
    assert page.evaluate(background) != before
    assert page.evaluate("document.querySelectorAll('.chart svg').length") == CHARTS
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function(f"{width} < {wide / 2}")
    page.wait_for_function("document.documentElement.scrollWidth <= 500")


def test_wide_tables_fade_on_screens_and_are_whole_on_paper(page: Any) -> None:
    page.set_viewport_size({"width": 700, "height": 900})
    wide = "[...document.querySelectorAll('.table')].find((one) => one.scrollWidth > one.clientWidth + 9)"
    faded = f"getComputedStyle({wide}).maskImage"
    page.wait_for_function(f"{faded} !== 'none'")
    page.evaluate(f"{wide}.scrollLeft = 9999")
    page.wait_for_function(f"{faded} === 'none'")
    fitting = "[...document.querySelectorAll('.table')].filter((one) => one.scrollWidth <= one.clientWidth)"
    assert page.evaluate(f"{fitting}.some((one) => one.matches('.more'))") is False
    page.set_viewport_size({"width": 794, "height": 900})  # A4
    page.emulate_media(media="print")
    clipped = "[...document.querySelectorAll('.table')].filter((one) => one.scrollWidth > one.clientWidth + 1)"
    assert page.evaluate(f"{clipped}.map((one) => one.ariaLabel)") == []


def test_a_grid_opens_cleanly(browser: Any, tmp_path: Path) -> None:
    grid = read_grid(write_grid(tmp_path / "grid"))
    page = tmp_path / "grid" / "report.html"
    page.write_text(render(grid, collect(grid)), encoding="utf-8")
    charts = 2 + 2 * 4  # side by side, two sets of kinds; two data sets, test and dev
    opens_cleanly(browser, page, 1280, "light", charts).context.close()
    opens_cleanly(browser, page, 400, "dark", charts).context.close()


def test_axe_finds_nothing_serious_in_a_language_models_page(browser: Any, tmp_path: Path) -> None:
    """What that page alone has; its parts that are folded are those of the other page."""
    run, page = read_run(make_language(tmp_path / "language")), tmp_path / "language.html"
    page.write_text(render(run, collect(run)), encoding="utf-8")
    seen = visit(browser, page, 1280, "dark", "#head=decoder-self/2/4", unfolded=False)
    assert (serious(seen.page), seen.console) == ([], [])
    seen.page.context.close()


def test_pointing_at_a_cell_shows_its_interval(page: Any) -> None:
    page.locator(
        "#chart-functions-encoder-self-1 svg path[aria-roledescription='rect mark']"
    ).first.hover(force=True)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert "encoder-self/0/0" in tooltip.inner_text()
    assert "confidence" in tooltip.inner_text()
    assert "95 % interval" in tooltip.inner_text()


def test_a_head_is_outlined_in_all_panels_of_its_figure(page: Any) -> None:
    panel = "#chart-functions-encoder-self-{} svg path[data-head='encoder-self/{}']"
    outlined = (
        "[...document.querySelectorAll('.is-near')]"
        ".map((one) => [one.closest('.chart').id.slice(-1), one.dataset.head])"
    )
    page.locator(panel.format(1, "1/2")).hover(force=True)
    found = page.evaluate(outlined)
    assert {head for _, head in found} == {"encoder-self/1/2"}
    assert {at for at, _ in found} == {"0", "1", "2"}
    page.locator("h1").hover()
    assert page.evaluate(outlined) == []
    page.locator("#chart-functions-encoder-self-0 svg path[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("document.activeElement.dataset.head")
    found = page.evaluate(outlined)
    assert {at for at, head in found if head == focused} == {"0", "1", "2"}
    assert {head for _, head in found} == {focused}


def test_terms_explain_themselves_to_pointer_and_keyboard(page: Any) -> None:
    tip = page.locator("#term")
    assert tip.is_hidden()
    nats = page.locator("#faithfulness .term", has_text="nats").first
    nats.hover()
    tip.wait_for()
    meaning = "nat: a loss in natural logarithms: 1 nat per token is a perplexity of e"
    assert tip.inner_text() == meaning
    described = "document.getElementById(document.activeElement.getAttribute('aria-describedby')).textContent"
    page.locator("h1").hover()
    tip.wait_for(state="hidden")
    header = page.locator("#faithfulness th button[data-term]", has_text="rank correlation").first
    header.focus()
    tip.wait_for()
    assert tip.inner_text() == page.evaluate(described) and tip.inner_text().startswith("rank corr")
    page.mouse.wheel(0, 200)
    assert tip.is_visible()
    page.keyboard.press("Escape")
    tip.wait_for(state="hidden")
    once = "[...document.querySelectorAll('#faithfulness .term')].map((one) => one.dataset.term)"
    found = page.evaluate(once)
    assert len(set(found)) == len(found) > 2, "once in a section"


def test_marked_up_text_makes_no_elements(page: Any) -> None:
    assert page.locator(".example b, .example i, .example script").count() == 0
    assert page.locator(".example", has_text="<b>dog</b>").count() == 1


def test_evidence_is_folded_and_drawn_when_it_is_opened(browser: Any, report_page: Path) -> None:
    """The map stands beside the headline."""
    seen = visit(browser, report_page, 1280, "light", unfolded=False)
    headline = seen.page.locator("h1").bounding_box()
    heads = seen.page.locator("#figure-head-map").bounding_box()
    assert heads["x"] > headline["x"] + headline["width"]
    assert heads["y"] < headline["y"] + headline["height"]
    assert seen.page.locator(".tile").count() == 3
    drawn = "document.querySelectorAll('.chart svg').length"
    assert 0 < seen.page.evaluate(drawn) < CHARTS / 2
    assert seen.page.evaluate("document.documentElement.scrollHeight") < 8 * 900
    chips = seen.page.locator(".chip").all_text_contents()
    links = seen.page.locator("#papers a")
    assert {"Voita fig. 1", "Voita fig. 7", "Michel table 1"} <= set(chips)
    assert sorted(text.split(":")[0] for text in links.all_text_contents()) == sorted(chips)
    voita = [text for text in links.all_text_contents() if text.startswith("Voita")]
    assert links.all_text_contents()[: len(voita)] == voita  # one paper after the other
    menu = seen.page.evaluate(
        "[...document.querySelectorAll('nav a')].filter((a) => a.checkVisibility()).map((a) => a.textContent)"
    )
    shown = "[...document.querySelectorAll('section > h2, details.section > summary h3')]"
    assert menu == seen.page.evaluate(f"{shown}.map((one) => one.textContent)")
    counts = seen.page.evaluate(
        "[...document.querySelectorAll('.fold:has(> .table)')].map((one) => [one.querySelector('.count').textContent, "
        "one.querySelectorAll('tbody tr').length])"
    )
    named = [(text, rows) for text, rows in counts if "table" not in text]
    assert named and all(text.startswith(f"{rows} row") for text, rows in named)
    seen.page.locator("nav a", has_text="Which scores are faithful").click()
    seen.page.wait_for_function(
        "document.querySelectorAll('#faithfulness .chart svg').length === 6"
    )
    links.filter(has_text="Michel table 1").click()
    seen.page.wait_for_function(
        "document.querySelector('#figure-one-head-off-encoder-self').closest('details.fold').open"
        " && document.querySelector('#scores').open"
    )
    assert seen.console == []
    seen.page.context.close()
