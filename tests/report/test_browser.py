"""The page in a real browser: nothing fetched, nothing in the console, nothing wider than the screen, both themes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest

from axe import serious
from headwise.report.page import collect, render
from headwise.report.run_folder import read_run
from headwise.report.run_grid import read_grid
from report.made_language import make_language
from report.made_sweeps import write_grid
from report.visits import visit, wait_until_drawn

CHARTS = 36  # head map, 4 scores, pairs, 6 removal curves, grid, patterns, 3 heads of offsets, rare tokens, 4 maps, more:
# 3 × 3 layers of gates, BLEU on test and dev, layers, training, BLEU by share
TABLES = 15


def lightness(page: Any, selector: str) -> float:
    """Mean of the channels of an element's background, 0 to 1."""
    colour = page.evaluate(
        f"getComputedStyle(document.querySelector('{selector}')).backgroundColor"
    )
    channels = [int(c) for c in re.findall(r"\d+", colour)[:3]]
    return sum(channels) / 765


def opens_cleanly(
    browser: Any, page: Path, width: int, theme: Literal["light", "dark"], charts: int
) -> None:
    seen = visit(browser, page, width, theme)
    assert (seen.console, seen.requests) == ([], [page.as_uri()])
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = seen.page.evaluate(
        "[...document.querySelectorAll('.chart svg')].map(s => [s.clientWidth, s.clientHeight])"
    )
    assert len(sizes) == charts and all(wide > 100 and high > 80 for wide, high in sizes)
    assert (
        (lightness(seen.page, "body") < 0.2)
        == (lightness(seen.page, ".card") < 0.2)
        == (theme == "dark")
    )
    seen.page.context.close()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_opens_cleanly(
    browser: Any, report_page: Path, width: int, theme: Literal["light", "dark"]
) -> None:
    opens_cleanly(browser, report_page, width, theme, CHARTS)


def test_a_grid_opens_cleanly(browser: Any, tmp_path: Path) -> None:
    grid = read_grid(write_grid(tmp_path / "grid"))
    page = tmp_path / "grid" / "report.html"
    page.write_text(render(grid, collect(grid)), encoding="utf-8")
    opens_cleanly(
        browser, page, 1280, "light", 4 + 2 * 4
    )  # pairs; two pairs, two sets of kinds, test and dev
    opens_cleanly(browser, page, 400, "dark", 4 + 2 * 4)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    browser: Any, report_page: Path, tmp_path: Path, theme: Literal["light", "dark"]
) -> None:
    run, page = read_run(make_language(tmp_path / "language")), tmp_path / "language.html"
    page.write_text(render(run, collect(run)), encoding="utf-8")
    for place, head in ((report_page, "encoder-self/2/4"), (page, "decoder-self/2/4")):
        seen = visit(browser, place, 1280, theme, f"#head={head}")
        assert seen.page.locator("#picked").is_visible()
        assert (serious(seen.page), seen.console) == ([], [])
        seen.page.context.close()


def test_charts_stay_inside_their_cards_on_a_phone(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 400, "light")
    edges = seen.page.evaluate(
        "[...document.querySelectorAll('.scroll, .table')].map(e => e.getBoundingClientRect().right)"
    )
    assert len(edges) == CHARTS + TABLES
    assert max(edges) <= 400
    seen.page.context.close()


def test_charts_follow_a_change_of_theme_and_of_width(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 1280, "light")
    background = "document.querySelector('#chart-training-0 svg').style.backgroundColor"
    width = "document.querySelector('#chart-training-0 svg').clientWidth"
    before, wide = seen.page.evaluate(background), seen.page.evaluate(width)
    seen.page.emulate_media(color_scheme="dark")
    wait_until_drawn(seen.page, "dark")
    assert seen.page.evaluate(background) != before
    assert seen.page.evaluate("document.querySelectorAll('.chart svg').length") == CHARTS
    seen.page.set_viewport_size({"width": 500, "height": 900})
    seen.page.wait_for_function(f"{width} < {wide / 2}")
    seen.page.wait_for_function("document.documentElement.scrollWidth <= 500")
    assert seen.console == []
    seen.page.context.close()


def test_pointing_at_a_cell_shows_its_interval(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 1280, "light")
    seen.page.locator(
        "#chart-functions-encoder-self-1 svg path[aria-roledescription='rect mark']"
    ).first.hover(force=True)
    tooltip = seen.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert "encoder-self/0/0" in tooltip.inner_text()
    assert "confidence" in tooltip.inner_text()
    assert "95 % interval" in tooltip.inner_text()
    seen.page.context.close()


def test_a_head_is_outlined_in_all_panels_of_its_figure(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 1280, "light", unfolded=False)
    panel = "#chart-functions-encoder-self-{} svg path[data-head='encoder-self/{}']"
    outlined = (
        "[...document.querySelectorAll('.is-near')]"
        ".map((one) => [one.closest('.chart').id.slice(-1), one.dataset.head])"
    )
    seen.page.locator(panel.format(1, "1/2")).hover(force=True)
    found = seen.page.evaluate(outlined)
    assert {head for _, head in found} == {"encoder-self/1/2"}
    assert {at for at, _ in found} == {"0", "1", "2"}
    seen.page.locator("h1").hover()
    assert seen.page.evaluate(outlined) == []
    seen.page.locator("#chart-functions-encoder-self-0 svg path[tabindex='0']").focus()
    seen.page.keyboard.press("ArrowRight")
    focused = seen.page.evaluate("document.activeElement.dataset.head")
    found = seen.page.evaluate(outlined)
    assert {at for at, head in found if head == focused} == {"0", "1", "2"}
    assert {head for _, head in found} == {focused}
    seen.page.context.close()


def test_figures_of_the_papers_are_named_and_indexed(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 1280, "light", unfolded=False)
    chips = seen.page.locator(".chip").all_text_contents()
    links = seen.page.locator("#papers a")
    assert {"Voita fig. 1", "Voita fig. 7", "Michel table 1"} <= set(chips)
    assert sorted(text.split(":")[0] for text in links.all_text_contents()) == sorted(chips)
    voita = [text for text in links.all_text_contents() if text.startswith("Voita")]
    assert links.all_text_contents()[: len(voita)] == voita  # one paper after the other
    links.filter(has_text="Michel table 1").click()
    seen.page.wait_for_function(
        "document.querySelector('.effects').closest('details.fold').open"
        " && document.querySelector('#scores').open"
    )
    assert seen.console == []
    seen.page.context.close()


def test_terms_explain_themselves_to_pointer_and_keyboard(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 1280, "light")
    page = seen.page
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
    assert seen.console == []
    page.context.close()


def test_a_wide_table_fades_where_more_lies_to_the_right(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 700, "light")
    wide = "[...document.querySelectorAll('.table')].find((one) => one.scrollWidth > one.clientWidth + 9)"
    faded = f"getComputedStyle({wide}).maskImage"
    seen.page.wait_for_function(f"{faded} !== 'none'")
    seen.page.evaluate(f"{wide}.scrollLeft = 9999")
    seen.page.wait_for_function(f"{faded} === 'none'")
    fitting = "[...document.querySelectorAll('.table')].filter((one) => one.scrollWidth <= one.clientWidth)"
    assert seen.page.evaluate(f"{fitting}.some((one) => one.matches('.more'))") is False
    seen.page.context.close()


def test_marked_up_text_makes_no_elements(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 1280, "light")
    assert seen.page.locator(".example b, .example i, .example script").count() == 0
    assert seen.page.locator(".example", has_text="<b>dog</b>").count() == 1
    seen.page.context.close()


def test_evidence_is_folded_and_drawn_when_it_is_opened(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 1280, "light", unfolded=False)
    drawn = "document.querySelectorAll('.chart svg').length"
    assert 0 < seen.page.evaluate(drawn) < CHARTS / 2
    assert seen.page.evaluate("document.documentElement.scrollHeight") < 8 * 900
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
    assert seen.console == []
    seen.page.context.close()


def test_the_map_stands_beside_the_headline(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 1280, "light", unfolded=False)
    headline = seen.page.locator("h1").bounding_box()
    heads = seen.page.locator("#figure-head-map").bounding_box()
    assert heads["x"] > headline["x"] + headline["width"]
    assert heads["y"] < headline["y"] + headline["height"]
    assert seen.page.locator(".tile").count() == 3
    seen.page.context.close()


def test_no_table_is_clipped_on_paper(browser: Any, report_page: Path) -> None:
    seen = visit(browser, report_page, 794, "light")  # A4
    seen.page.emulate_media(media="print")
    wide = "[...document.querySelectorAll('.table')].filter((one) => one.scrollWidth > one.clientWidth + 1)"
    assert seen.page.evaluate(f"{wide}.map((one) => one.ariaLabel)") == []
    seen.page.context.close()
