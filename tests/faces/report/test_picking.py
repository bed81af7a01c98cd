"""The report in the hands of a reader: heads picked, tables sorted, figures taken away as CSV, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from faces.report.conftest import data_of
from faces.report.made import KEPT, LABELS, make_large, make_run, read
from faces.report.visits import Visit, visit
from headwise.faces.report.gate_history import penalty_line
from headwise.faces.report.page import collect, render
from headwise.faces.report.run_folder import read_run

CELL = "#chart-functions-encoder-self-1 svg path[data-head='{}']"
MARKED = "document.querySelectorAll('.is-picked').length"
PICKED = "[...new Set([...document.querySelectorAll('.is-picked')].map(one => one.dataset.head))]"


@pytest.fixture(scope="module")
def opened(browser: Any, report_page: Path) -> Iterator[Visit]:
    """The open report, for the tests of this file one after the other."""
    found = visit(browser, report_page, 1280, "light")
    yield found
    assert {url for url in found.requests if not url.startswith("blob:")} == {report_page.as_uri()}
    found.page.context.close()


@pytest.fixture
def page(opened: Visit) -> Iterator[Any]:
    """The page with no head picked; it must say nothing in the console and ask for nothing but itself."""
    opened.page.keyboard.press("Escape")
    opened.page.wait_for_function(f"{MARKED} === 0")
    yield opened.page
    assert opened.console == []


def card_of(page: Any) -> Any:
    return page.locator("#picked")


def test_a_picked_head_is_marked_everywhere_and_the_address_says_so(page: Any) -> None:
    assert card_of(page).is_hidden()
    page.locator(CELL.format("encoder-self/1/5")).click(force=True)  # its number lies on it
    card_of(page).wait_for()
    assert page.evaluate("location.hash") == "#head=encoder-self/1/5"
    assert page.evaluate(PICKED) == ["encoder-self/1/5"]
    figures = "[...document.querySelectorAll('figure:has(.is-picked)')].map(f => f.id)"
    names = ["head-map", "scores-encoder-self", "functions-encoder-self", "attention-maps"]
    names += [f"gates-{setting}" for setting in KEPT]
    about_it = {"gate-animation", *(f"figure-{name}" for name in names)}
    assert about_it <= set(page.evaluate(figures))
    assert page.evaluate("[...document.querySelectorAll('.table:has(.is-picked)')].length") >= 2
    cell = f'document.querySelector("{CELL.format("encoder-self/1/5")}")'
    assert page.evaluate(f"getComputedStyle({cell}).strokeWidth") == "3.5px"
    before = page.evaluate(MARKED)
    page.locator("#every_head a[data-head='encoder-self/2/0']").click()
    page.wait_for_function(f"{PICKED}.join() === 'encoder-self/2/0'")
    assert page.evaluate("location.hash") == "#head=encoder-self/2/0"
    page.go_back()
    page.wait_for_function(
        f"{MARKED} === {before} && document.querySelector('#picked h2').textContent.endsWith('1/5')"
    )
    page.keyboard.press("Escape")
    assert [page.evaluate(MARKED), page.evaluate("location.hash")] == [0, ""]
    assert card_of(page).is_hidden()


def test_an_address_restores_the_head_and_survives_another_theme(
    browser: Any, report_page: Path
) -> None:
    opened = visit(browser, report_page, 400, "light", "#head=encoder-self/2/4")
    page = opened.page
    assert card_of(page).get_attribute("aria-label") == "Head encoder-self/2/4"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    before = page.evaluate(MARKED)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.drawn === 'dark'")
    assert page.evaluate(MARKED) == before > 20
    page.evaluate("location.hash = 'head=cross/9/9'")
    page.wait_for_function("document.querySelector('#picked h2').textContent === 'cross/9/9'")
    assert "no head of this name" in card_of(page).inner_text()
    assert (page.evaluate(MARKED), opened.console) == (0, [])
    page.context.close()


def test_the_numbers_of_the_card_are_those_of_the_files(page: Any, report_page: Path) -> None:
    run = read_run(report_page.parent)
    page.evaluate("location.hash = 'head=encoder-self/1/5'")
    card_of(page).wait_for()
    rows = run.heads.query("layer == 1 and head == 5")

    def shown(column: int) -> list[list[float]]:
        """The numbers in each cell of a column of the card."""
        cells = f"[...document.querySelectorAll('#picked tbody td:nth-child({column})')]"
        texts = page.evaluate(f"{cells}.map(d => d.textContent)")
        parts = [text.replace("−", "-").strip("[]").split(", ") for text in texts]
        return [[float(number) for number in part] for part in parts]

    values = page.evaluate(
        "[...document.querySelectorAll('#picked data')].map(d => Number(d.value))"
    )
    assert values == pytest.approx(list(rows["value"]), rel=1e-5)
    assert [value for (value,) in shown(2)] == pytest.approx(values, abs=1e-3)
    for ends, low, high in zip(shown(3), rows["low"], rows["high"], strict=True):
        assert ends == pytest.approx([low, high], abs=1e-3)
    confidence = run.heads[run.heads["measure"] == "confidence"].set_index(["layer", "head"])
    place = int(confidence["value"].rank(ascending=False)[(1, 5)])
    text = card_of(page).inner_text()
    assert f"{place} of 24" in text
    for evidence in run.roles.roles.query("layer == 1 and head == 5")["text"]:
        assert evidence in text
    assert "Kept by 2 of 3 models that could be chosen" in text
    loss = rows[rows["measure"] == "ablation.zero"].iloc[0]
    value, low, high = (f"{1000 * loss[name]:+.1f}" for name in ("value", "low", "high"))
    assert f"{value} [{low}, {high}]" in text
    paths = "?.querySelectorAll('path').length"
    copied = page.evaluate(f"document.querySelector('#picked .examples svg'){paths}")
    drawn = page.evaluate(f"document.querySelector('#chart-attention-maps-1 svg'){paths}")
    assert copied == drawn > 100  # the map of its example, whole
    assert page.evaluate("document.querySelectorAll('#picked .examples [data-head]').length") == 0
    log = run.gates["lambda-0.2"].query("layer == 1 and head == 5").set_index("step")["p_open"]
    shut = int(log[log > penalty_line()].index.max()) + 20
    assert f"its gate shut at step {shut:,}" in text


def test_heads_are_picked_with_the_keyboard(page: Any) -> None:
    page.locator("#chart-head-map-0 svg path[data-head][tabindex='0']").focus()
    first = page.evaluate("document.activeElement.dataset.head")
    page.keyboard.press("ArrowRight")
    second = page.evaluate("document.activeElement.dataset.head")
    assert (first, second) == ("encoder-self/0/0", "encoder-self/0/1")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.head") == "encoder-self/1/1"
    named = page.evaluate(
        "[document.activeElement.role, document.activeElement.getAttribute('aria-label')]"
    )
    assert named[0] == "button" and "encoder-self/1/1" in named[1]
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'picked'")
    assert page.evaluate(PICKED) == ["encoder-self/1/1"]
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.head") == "encoder-self/1/1"


def test_tables_are_sorted_by_any_column(page: Any, report_page: Path) -> None:
    scores = read(report_page.parent / "heads.csv")
    table = page.locator("#every_head table")
    rows = "[...document.querySelectorAll('#every_head tbody tr')]"

    def state() -> tuple[str, list[str]]:
        addresses = page.evaluate(f"{rows}.map(row => row.cells[0].textContent)")
        return header.get_attribute("aria-sort"), addresses

    header = table.locator("th").first
    _, start = state()
    for measure, title in (("gradient", "gradient"), ("ablation.zero", "zero ablation")):
        found = scores[scores["measure"] == measure].sort_values("value", ascending=False)
        order = [f"{r.kind}/{r.layer}/{r.head}" for r in found.itertuples()]
        header = table.locator("th", has=page.get_by_role("button", name=title, exact=True))
        for expected in (("descending", order), ("ascending", order[::-1])):
            header.get_by_role("button").click()
            assert state() == expected
    header.get_by_role("button").click()
    assert state() == ("none", start)
    models = page.locator(".table[aria-label='All models']")
    models.get_by_role("button", name="size on disk").click()
    first = "rows => rows.map(row => row.cells[0].textContent)"
    sizes = models.locator("tbody tr").evaluate_all(first)
    assert sizes[0].startswith("full model") and sizes[-1].startswith(LABELS[-1])


def csv_of(page: Any, figure: str) -> Any:
    """The table that a figure's button gives."""
    with page.expect_download() as waiting:
        page.locator(f"#{figure}").get_by_role("button", name="CSV").click()
    assert waiting.value.suggested_filename == figure.removeprefix("figure-") + ".csv"
    return pd.read_csv(waiting.value.path())


def test_a_figure_gives_the_rows_it_draws(page: Any, report_page: Path) -> None:
    run = read_run(report_page.parent)
    figure = collect(run)["functions"]["figures"]["encoder-self"]
    drawn = [row for panel in range(2) for row in data_of(figure, panel) if "address" in row]
    given = csv_of(page, "figure-functions-encoder-self").dropna(subset=["address", "value"])
    for name in ("address", "value", "low"):
        assert list(given[name]) == [row[name] for row in drawn]
    # heads, and those that are within the untrained range
    assert list(given["panel"].unique()) == [panel.title for panel in figure.panels[:2]]
    history = csv_of(page, "gate-animation")
    log = run.gates["lambda-0.2"].query("layer == 2 and head == 7").set_index("step")["p_open"]
    head = history.query("layer == 2 and head == 7")
    shown = head[head["model"] == LABELS[-1]]
    assert list(shown["p_open"]) == pytest.approx(list(log[shown["step"]]), abs=0.0051)
    # Words with commas, quotes and mark-up stay whole.
    assert '"cat"</script>' in set(csv_of(page, "figure-attention-maps")["to"].dropna())


def test_a_figure_fills_the_screen_and_comes_back(page: Any) -> None:
    figure = page.locator("#figure-training")
    before = page.locator("#chart-training-0 svg").bounding_box()["width"]
    figure.get_by_role("button", name="Full screen").click()
    page.wait_for_function("document.fullscreenElement?.id === 'figure-training'")
    page.wait_for_function(
        f"document.querySelector('#chart-training-0 svg').getBoundingClientRect().width > {before}"
    )
    figure.get_by_role("button", name="Full screen").click()
    page.wait_for_function("document.fullscreenElement === null")
    width = "document.querySelector('#chart-training-0 svg').getBoundingClientRect().width"
    page.wait_for_function(f"Math.abs({width} - {before}) <= 2")


def written_page(folder: Path) -> Path:
    run, page = read_run(folder), folder / "report.html"
    page.write_text(render(run, collect(run)), encoding="utf-8")
    return page


def test_144_heads_are_picked_at_once_and_kinds_are_hidden(browser: Any, tmp_path: Path) -> None:
    place = written_page(make_large(tmp_path / "run"))
    assert place.stat().st_size < 3_000_000
    opened = visit(browser, place, 1280, "light")
    times = opened.page.evaluate(
        """async () => {
          const times = [];
          for (const one of [...document.querySelectorAll("#chart-functions-cross-0 svg path[data-head]")].slice(0, 9)) {
            const start = performance.now();
            one.dispatchEvent(new MouseEvent("click", { bubbles: true, detail: 1 }));
            await new Promise((shown) => addEventListener("hashchange", shown, { once: true }));
            document.body.getBoundingClientRect();
            times.push(performance.now() - start);
          }
          return times.sort((a, b) => a - b);
        }"""
    )
    assert times[0] < 50, "the fastest: the machine may be busy"
    rows = "[...document.querySelectorAll('#every_head tbody tr')]"
    shown = f"{rows}.filter(row => !row.hidden).length"
    assert opened.page.evaluate(shown) == 144
    opened.page.get_by_role("checkbox", name="cross-attention").uncheck()
    assert opened.page.evaluate(shown) == 96
    assert opened.console == []
    opened.page.context.close()


def test_a_run_without_scores_still_shows_and_marks_its_heads(browser: Any, tmp_path: Path) -> None:
    place = written_page(make_run(tmp_path, {"heads.csv": None}))
    opened = visit(browser, place, 1280, "light", "#head=encoder-self/0/3", unfolded=False)
    assert opened.page.locator("#figure-head-map [data-head]").count() == 24
    assert opened.page.locator("#figure-head-map .is-picked").count() == 1
    assert "positional" in card_of(opened.page).inner_text()
    assert opened.console == []
    opened.page.context.close()
