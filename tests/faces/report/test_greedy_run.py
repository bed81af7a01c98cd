"""The report of a run that only removed heads of a model of embeddings: nothing was scored, and no gates were trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from faces.report.conftest import data_of
from faces.report.made_sweeps import CHOSEN, SIMILARITY, write_greedy
from faces.report.visits import visit
from headwise.core.qualities import Number
from headwise.faces.report.every_head import every_head_section
from headwise.faces.report.quality_curves import greedy_figures, quality_figures
from headwise.faces.report.run_folder import RunContents, read_run
from headwise.faces.report.summary import summary_section


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> RunContents:
    return read_run(write_greedy(tmp_path_factory.mktemp("greedy") / "run"))


def test_where_no_gates_were_trained_the_first_figure_has_every_order(greedy: RunContents) -> None:
    (figure,) = quality_figures(greedy.model_table, greedy.facts)
    assert figure.name == "greedy-curves" and greedy_figures(greedy.model_table, greedy.facts) == []
    for panel, better in enumerate((0, 0.2)):
        drawn = {row["model"]: row for row in data_of(figure, panel) if "model" in row}
        for kept, similarity in SIMILARITY.items():
            row = drawn[f"dormancy, {kept}\u00a0left"]
            assert row["value"] == pytest.approx(similarity + better)
            assert row["low"] < row["value"] < row["high"]
            assert row["sort"] == ("chosen" if kept == CHOSEN else "model")
        assert drawn["mean of 2 random orders"]["low"] == pytest.approx(93.9 + better)


def test_heads_are_counted_in_models_that_could_be_chosen(greedy: RunContents) -> None:
    content = every_head_section(greedy)
    assert content is not None
    assert (content["model_count"], content["order"]) == (8, "dormancy")
    rows = {row["address"]: (row["in_chosen"], row["kept"]) for row in content["rows"]}
    assert rows["encoder-self/0/0"] == ("kept", "8")
    assert rows["encoder-self/5/11"] == ("removed", "0")
    assert not any("random" in model["label"] for model in content["details"]["models"])


@pytest.mark.parametrize(("high", "doubted"), [(-0.4, True), (0.4, False)])
def test_random_heads_that_do_better_are_a_doubt(
    tmp_path: Path, high: float, doubted: bool
) -> None:
    """They stand on the first screen, and nothing is shipped."""
    run = read_run(write_greedy(tmp_path / "run"))
    assert run.chosen is not None
    run.chosen["against"] = {"random.1": f"greedy-random.1-{CHOSEN}"}
    run.chosen["numbers"]["test", "similarity", "random.1"] = Number(-1.5, -2.6, high, units=50)
    said = summary_section(run)
    assert any("As many random heads do better" in doubt for doubt in said["doubts"]) == doubted
    assert said["advice"].startswith("No conclusion yet: there are doubts") == doubted


def test_it_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    page = hw.report(write_greedy(tmp_path / "run"))
    seen = visit(browser, page, 400, "light", "#head=encoder-self/0/0", unfolded=False)
    assert "Roles: not measured." in seen.page.locator("#picked").inner_text()
    wider = "(one) => one.scrollWidth > one.clientWidth + 1"
    boxes = "[...document.querySelectorAll('nav ul, #figure-head-map .scroll')]"
    assert seen.page.evaluate(f"{boxes}.filter({wider}).length") == 0
    assert seen.console == []
    seen.page.context.close()
