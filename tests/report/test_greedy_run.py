"""The report of a run that only removed heads of a model of embeddings: nothing was scored, and no gates were trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.report.every_head import every_head_section
from headwise.report.quality_curves import quality_figures
from headwise.report.run_folder import FinishedRun, read_run
from report.conftest import data_of
from report.made_sweeps import write_greedy
from report.visits import visit


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return read_run(write_greedy(tmp_path_factory.mktemp("greedy") / "run"))


def test_the_first_chart_shows_what_it_has(greedy: FinishedRun) -> None:
    (figure,) = quality_figures(greedy.models, greedy.facts)
    for panel, lowest in enumerate((90.1, 90.3)):
        specification = figure.panels[panel].specification()
        cells = data_of(figure, panel)
        low, high = scales(specification, "y")[0]["domain"]
        assert low < lowest < 100 < high, "the other orders at the chosen count are in the panel"
        intervals = [cell for cell in cells if "low" in cell and cell["kept"] < 36]
        assert len(intervals) == 3, "28, 14 and 1: only for the line"
        assert {scale["domain"][0] // 10 for scale in scales(specification, "x")} == {3}
    assert "as they lose more: 3 points of “greedy, dormancy”." in figure.facts


def scales(part: Any, channel: str) -> list[Any]:
    """All scales of a channel."""
    if isinstance(part, list):
        return [scale for one in part for scale in scales(one, channel)]
    if not isinstance(part, dict):
        return []
    own = part.get(channel)
    found = [own["scale"]] if isinstance(own, dict) and own.get("scale") else []
    return found + [scale for one in part.values() for scale in scales(one, channel)]


def test_heads_are_counted_in_models_that_could_be_chosen(greedy: FinishedRun) -> None:
    content = every_head_section(greedy)
    assert content is not None
    assert (content["model_count"], content["order"]) == (8, "dormancy")
    rows = {row["address"]: (row["in_chosen"], row["kept"]) for row in content["rows"]}
    assert rows["encoder-self/0/0"] == ("kept", "8")
    assert rows["encoder-self/5/11"] == ("removed", "0")
    assert not any("random" in model["label"] for model in content["details"]["models"])


def test_it_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    page = hw.report(write_greedy(tmp_path / "run"))
    seen = visit(browser, page, 400, "light", "#head=encoder-self/0/0", unfolded=False)
    assert "Roles: not measured." in seen.page.locator("#picked").inner_text()
    wider = "(one) => one.scrollWidth > one.clientWidth + 1"
    boxes = "[...document.querySelectorAll('nav ul, #figure-head-map .scroll')]"
    assert seen.page.evaluate(f"{boxes}.filter({wider}).length") == 0
    assert seen.console == []
    seen.page.context.close()
