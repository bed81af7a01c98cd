"""The report of a run that only removed heads of a model of embeddings: nothing was scored, and no gates were trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.report.every_head import every_head_section
from headwise.report.page import collect, render, section
from headwise.report.quality_curves import quality_figures
from headwise.report.run_folder import FinishedRun, read_run
from report.conftest import data_of
from report.made_greedy import write_greedy
from report.visits import visit


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return read_run(write_greedy(tmp_path_factory.mktemp("greedy") / "run"))


def test_the_first_chart_shows_what_it_has(run: FinishedRun) -> None:
    (figure,) = quality_figures(run.models, run.facts)
    for panel, lowest in enumerate((90.1, 90.3)):
        specification = figure.panels[panel].specification()
        (x,) = {str(scale) for scale in values_of(specification, "scale", "x")}
        cells = data_of(figure, panel)
        low, high = values_of(specification, "domain", "y")[0]
        assert low < lowest < 100 < high, "the other orders at the chosen count are in the panel"
        intervals = [cell for cell in cells if "low" in cell and cell["kept"] < 36]
        assert "'domain': [3" in x and len(intervals) == 3, "28, 14 and 1: only for the line"
    assert "Not in these panels, as they lose more: 3 points of “greedy, dormancy”." in figure.facts


def values_of(part: Any, key: str, channel: str) -> list[Any]:
    """All values of a key of the scales of a channel."""
    found = []
    if isinstance(part, list):
        for one in part:
            found += values_of(one, key, channel)
    if isinstance(part, dict):
        scale = part.get(channel, {}).get("scale") if isinstance(part.get(channel), dict) else None
        if scale:
            found.append(scale if key == "scale" else scale[key])
        for one in part.values():
            found += values_of(one, key, channel)
    return found


def test_heads_are_counted_in_models_that_could_be_chosen(run: FinishedRun) -> None:
    content = every_head_section(run)
    assert content is not None
    assert (content["model_count"], content["order"]) == (8, "dormancy")
    assert content["absent"] == "scores and roles"
    rows = {row["address"]: (row["in_chosen"], row["kept"]) for row in content["rows"]}
    assert rows["encoder-self/0/0"] == ("kept", "8")
    assert rows["encoder-self/5/11"] == ("removed", "0")
    assert content["details"]["heads"]["encoder-self/0/0"]["roles"] is None
    assert [
        model["label"] for model in content["details"]["models"] if "random" in model["label"]
    ] == []


def test_what_is_left_out_is_what_this_task_could_have(run: FinishedRun) -> None:
    page = render(run, collect(run))
    listed = page[page.index('<div class="left-out">') :]
    listed = listed[: listed.index("</div>")]
    assert "<b>How much each head matters</b>: scoring.measures</li>" in listed
    for name in ("translations", "gates", "training", "paper_claims", "after_pruning"):
        assert section[name].heading not in listed


def test_it_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    page = hw.report(write_greedy(tmp_path / "run"))
    seen = visit(browser, page, 400, "light", "#head=encoder-self/0/0", unfolded=False)
    assert "Roles: not measured." in seen.page.locator("#picked").inner_text()
    wider = "(one) => one.scrollWidth > one.clientWidth + 1"
    boxes = "[...document.querySelectorAll('nav ul, #figure-head-map .scroll')]"
    assert seen.page.evaluate(f"{boxes}.filter({wider}).length") == 0
    assert seen.console == []
    seen.page.context.close()
