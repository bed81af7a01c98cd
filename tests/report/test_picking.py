"""The report in the hands of a reader: heads picked, tables sorted, figures taken away as CSV, in a real browser."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.report.gate_history import penalty_line
from headwise.report.page import collect, render
from headwise.report.run_folder import read_run
from report.conftest import data_of
from report.made_large import make_large
from report.visits import Visit, visit

CELL = "#chart-functions-encoder-self-1 svg path[data-head='{}']"
MARKED = "document.querySelectorAll('.is-picked').length"
PICKED = "[...new Set([...document.querySelectorAll('.is-picked')].map(one => one.dataset.head))]"


@pytest.fixture
def seen(browser: Any, report_page: Path) -> Iterator[Visit]:
    """The open report; it must say nothing in the console and ask for nothing but itself."""
    opened = visit(browser, report_page, 1280, "light")
    yield opened
    assert opened.console == []
    assert {url for url in opened.requests if not url.startswith("blob:")} == {report_page.as_uri()}
    opened.page.context.close()


def card_of(page: Any) -> Any:
    return page.locator("#picked")


def test_a_picked_head_is_marked_everywhere_and_the_address_says_so(seen: Visit) -> None:
    page = seen.page
    assert card_of(page).is_hidden()
    page.locator(CELL.format("encoder-self/1/5")).click(force=True)  # its number lies on it
    card_of(page).wait_for()
    assert page.evaluate("location.hash") == "#head=encoder-self/1/5"
    assert page.evaluate(PICKED) == ["encoder-self/1/5"]
    figures = page.evaluate(
        "[...document.querySelectorAll('figure:has(.is-picked)')].map(f => f.id)"
    )
    about_it = {
        "figure-head-map",
        "figure-scores-encoder-self",
        "figure-functions-encoder-self",
        "figure-attention-maps",
        "gate-animation",
        *(f"figure-gates-lambda-{x}" for x in ("0.02", "0.05", "0.2")),
    }
    assert about_it <= set(figures)
    assert page.evaluate("[...document.querySelectorAll('.table:has(.is-picked)')].length") >= 3
    assert (
        page.evaluate(
            f'getComputedStyle(document.querySelector("{CELL.format("encoder-self/1/5")}")).strokeWidth'
        )
        == "3.5px"
    )
    before = page.evaluate(MARKED)
    page.locator("#every_head a[data-head='encoder-self/2/0']").click()
    page.wait_for_function(f"{PICKED}.join() === 'encoder-self/2/0'")
    assert page.evaluate("location.hash") == "#head=encoder-self/2/0"
    page.go_back()
    page.wait_for_function(
        f"{MARKED} === {before} && document.querySelector('#picked h2').textContent.endsWith('1/5')"
    )
    page.keyboard.press("Escape")
    assert (page.evaluate(MARKED), page.evaluate("location.hash"), card_of(page).is_hidden()) == (
        0,
        "",
        True,
    )


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


def test_the_numbers_of_the_card_are_those_of_the_files(seen: Visit, report_page: Path) -> None:
    page, run = seen.page, read_run(report_page.parent)
    assert run.heads is not None and run.roles is not None
    page.evaluate("location.hash = 'head=encoder-self/1/5'")
    card_of(page).wait_for()
    rows = run.heads[(run.heads["layer"] == 1) & (run.heads["head"] == 5)]
    values = page.evaluate(
        "[...document.querySelectorAll('#picked data')].map(d => Number(d.value))"
    )
    assert values == pytest.approx(list(rows["value"]), rel=1e-5)
    shown = page.evaluate(
        "[...document.querySelectorAll('#picked tbody td:nth-child(2)')].map(d => d.textContent)"
    )
    texts = [float(text.replace("−", "-")) for text in shown]
    assert texts == pytest.approx(values, abs=1e-3)
    ends = page.evaluate(
        "[...document.querySelectorAll('#picked tbody td:nth-child(3)')].map(d => d.textContent)"
    )
    for text, low, high in zip(ends, rows["low"], rows["high"], strict=True):
        assert [
            float(end) for end in text.replace("−", "-").strip("[]").split(", ")
        ] == pytest.approx([low, high], abs=1e-3)
    confidence = run.heads[run.heads["measure"] == "confidence"].set_index(["layer", "head"])[
        "value"
    ]
    place = int(confidence.rank(ascending=False)[(1, 5)])
    text = card_of(page).inner_text()
    assert f"{place} of 24" in text
    for evidence in run.roles.roles.query("layer == 1 and head == 5")["text"]:
        assert evidence in text
    assert "Kept by 2 of 3 models that could be chosen" in text
    loss = rows[rows["measure"] == "ablation.zero"].iloc[0]
    assert (
        f"+{1000 * loss['value']:.1f} [+{1000 * loss['low']:.1f}, +{1000 * loss['high']:.1f}]"
        in text
    )
    copied = page.evaluate(
        "document.querySelector('#picked .examples svg')?.querySelectorAll('path').length"
    )
    drawn = "document.querySelector('#chart-attention-maps-1 svg').querySelectorAll('path').length"
    assert copied == page.evaluate(drawn) > 100  # the map of its example, whole
    assert page.evaluate("document.querySelectorAll('#picked .examples [data-head]').length") == 0
    log = run.gates["lambda-0.2"].query("layer == 1 and head == 5").set_index("step")["p_open"]
    line = penalty_line()
    shut = int(log[log > line].index.max()) + 20
    assert f"its gate shut at step {shut:,}" in text


def test_heads_are_picked_with_the_keyboard(seen: Visit) -> None:
    page = seen.page
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


def test_tables_are_sorted_by_any_column(seen: Visit, report_page: Path) -> None:
    page, scores = seen.page, pd.read_csv(report_page.parent / "heads.csv")
    table = page.locator("#every_head table")
    addresses = "[...document.querySelectorAll('#every_head tbody tr')].map(row => row.cells[0].textContent)"
    start = page.evaluate(addresses)
    for measure, title in (("gradient", "gradient"), ("ablation.zero", "zero ablation")):
        found = scores[scores["measure"] == measure].sort_values("value", ascending=False)
        order = [f"{r.kind}/{r.layer}/{r.head}" for r in found.itertuples()]
        header = table.locator("th", has=page.get_by_role("button", name=title, exact=True))
        header.get_by_role("button").click()
        assert (header.get_attribute("aria-sort"), page.evaluate(addresses)) == (
            "descending",
            order,
        )
        header.get_by_role("button").click()
        assert (header.get_attribute("aria-sort"), page.evaluate(addresses)) == (
            "ascending",
            order[::-1],
        )
    header.get_by_role("button").click()
    assert (header.get_attribute("aria-sort"), page.evaluate(addresses)) == ("none", start)
    models = page.locator(".table[aria-label='All models']")
    models.get_by_role("button", name="size on disk").click()
    sizes = models.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => row.cells[0].textContent)"
    )
    assert sizes[0].startswith("full model") and sizes[-1].startswith("λ\u00a0=\u00a00.2")


def test_a_figure_gives_the_rows_it_draws(seen: Visit, report_page: Path) -> None:
    page, run = seen.page, read_run(report_page.parent)
    figure = collect(run)["functions"]["figures"]["encoder-self"]
    with page.expect_download() as waiting:
        page.locator("#figure-functions-encoder-self").get_by_role("button", name="CSV").click()
    assert waiting.value.suggested_filename == "functions-encoder-self.csv"
    rows = list(csv.DictReader(Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()))
    drawn = [row for panel in range(2) for row in data_of(figure, panel) if "address" in row]
    read = [row for row in rows if row["address"] and row["value"]]
    assert [(row["address"], float(row["value"]), float(row["low"])) for row in read] == [
        (row["address"], row["value"], row["low"]) for row in drawn
    ]
    titles = list(
        dict.fromkeys(row["panel"] for row in read)
    )  # heads, and those that are within the untrained range
    assert titles == [panel.title for panel in figure.panels[:2]]
    with page.expect_download() as waiting:
        page.locator("#gate-animation").get_by_role("button", name="CSV").click()
    history = pd.read_csv(waiting.value.path())
    log = run.gates["lambda-0.2"].query("layer == 2 and head == 7").set_index("step")["p_open"]
    shown = (
        history[(history["layer"] == 2) & (history["head"] == 7)]
        .groupby("model", sort=False)
        .get_group("λ\u00a0=\u00a00.2")
    )
    assert list(shown["p_open"]) == pytest.approx(list(log[shown["step"]]), abs=0.0051)


def test_words_with_commas_quotes_and_markup_stay_whole_in_the_csv(seen: Visit) -> None:
    with seen.page.expect_download() as waiting:
        seen.page.locator("#figure-attention-maps").get_by_role("button", name="CSV").click()
    assert '"cat"</script>' in set(pd.read_csv(waiting.value.path())["to"].dropna())


def test_a_figure_fills_the_screen_and_comes_back(seen: Visit) -> None:
    page = seen.page
    figure = page.locator("#figure-offsets")
    before = page.locator("#chart-offsets-0 svg").bounding_box()["width"]
    figure.get_by_role("button", name="Full screen").click()
    page.wait_for_function("document.fullscreenElement?.id === 'figure-offsets'")
    page.wait_for_function(
        f"document.querySelector('#chart-offsets-0 svg').getBoundingClientRect().width > {before}"
    )
    figure.get_by_role("button", name="Full screen").click()
    page.wait_for_function("document.fullscreenElement === null")
    width = "document.querySelector('#chart-offsets-0 svg').getBoundingClientRect().width"
    page.wait_for_function(f"Math.abs({width} - {before}) <= 2")


def test_144_heads_are_picked_at_once_and_kinds_are_hidden(browser: Any, tmp_path: Path) -> None:
    run = read_run(make_large(tmp_path / "run"))
    page = tmp_path / "run" / "report.html"
    page.write_text(render(run, collect(run)), encoding="utf-8")
    assert page.stat().st_size < 3_000_000
    opened = visit(browser, page, 1280, "light")
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
    shown = (
        "[...document.querySelectorAll('#every_head tbody tr')].filter(row => !row.hidden).length"
    )
    assert opened.page.evaluate(shown) == 144
    opened.page.get_by_role("checkbox", name="cross-attention").uncheck()
    assert opened.page.evaluate(shown) == 96
    assert opened.console == []
    opened.page.context.close()


def test_a_run_without_scores_still_shows_and_marks_its_heads(
    browser: Any, run_folder: Path
) -> None:
    (run_folder / "heads.csv").unlink()
    run, page = read_run(run_folder), run_folder / "report.html"
    page.write_text(render(run, collect(run)), encoding="utf-8")
    opened = visit(browser, page, 1280, "light", "#head=encoder-self/0/3")
    assert opened.page.locator("#figure-head-map [data-head]").count() == 24
    assert opened.page.locator("#figure-head-map .is-picked").count() == 1
    assert "positional" in card_of(opened.page).inner_text()
    assert opened.console == []
    opened.page.context.close()
