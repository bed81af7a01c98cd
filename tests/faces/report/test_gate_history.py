"""The animation of gates: its numbers, and the player in a real browser."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from faces.report.made import LABELS
from faces.report.part_page import part_page
from headwise.core.heads import Head
from headwise.core.options import Rule
from headwise.faces.report.gate_history import (
    FRAMES,
    animation,
    closing_steps,
    closing_table,
    gate_histories,
    penalty_line,
    pruning_options,
)
from headwise.faces.report.run_folder import RunContents
from headwise.pruning.gates import HardConcrete


def test_every_model_is_played_from_its_first_step_to_its_last(run: RunContents) -> None:
    played = animation(gate_histories(run))
    assert [history["label"] for history in played["models"]] == LABELS
    assert len(played["steps"]) <= FRAMES
    assert (played["steps"][0], played["steps"][-1]) == (0, 2000)
    for history, model in zip(played["models"], run.pruned, strict=True):
        table = run.gates[model["setting"]].set_index(["step", "layer", "head"])["p_open"]
        frames = [[int(p) for p in frame.split(" ")] for frame in history["frames"]]
        assert [row for grid in history["grids"] for row in grid["layers"]] == [8, 8, 8]
        for step, frame in zip(played["steps"], frames, strict=True):
            logged = [table[step, layer, head] for layer in range(3) for head in range(8)]
            assert np.abs(np.array(frame) / 100 - logged).max() <= 0.0051
        assert sum(history["kept"]) == model["kept"]


def with_gates(run: RunContents, values: list[list[float]]) -> RunContents:
    """A run with a gate a column in its first pruned model, logged every ten steps."""
    rows = [
        (10 * i, "encoder-self", 0, h, p) for i, row in enumerate(values) for h, p in enumerate(row)
    ]
    table = pd.DataFrame(rows, columns=["step", "kind", "layer", "head", "p_open"])
    return replace(run, gates={run.pruned[0]["setting"]: table}, layouts={})


def test_many_heads_stay_far_below_a_megabyte(run: RunContents) -> None:
    draw = np.random.default_rng(0)
    many = with_gates(run, draw.random((300, 864)).tolist())
    assert len(json.dumps(animation(gate_histories(many)))) < 300_000


def test_when_gates_shut_is_counted_from_the_last_time_on(run: RunContents) -> None:
    values = [[0.9] * 4, [0.9, 0.4, 0.3, 0.9], [0.9, 0.3, 0.8, 0.75], [0.95, 0.05, 0.02, 0.75]]
    table = closing_table(gate_histories(with_gates(run, values)))
    assert table is not None  # the third head was shut at step 10 too, but opened again
    assert table.rows[0].cells[1:8] == ["4", "2", "10", "30", "1", "no", "1"]
    table = closing_table(gate_histories(with_gates(run, [[0.9, 0.9], [0.95, 0.99]])))
    assert table is not None and table.rows[0].cells[1:6] == ["2", "0", "0", "no", "0"]


def test_shut_gates_are_the_heads_that_were_removed(run: RunContents) -> None:
    """Also where a gate ends between ½ and the decision line, which is what 9 shut and 10 removed came from."""
    log = run.gates["lambda-0.05"].copy()
    last = log["step"] == log["step"].max()
    gone = (log["layer"] == 0) & (log["head"] == 1)
    log.loc[last & gone, "p_open"] = 0.6
    changed = replace(run, gates={**run.gates, "lambda-0.05": log})
    for history in gate_histories(changed):
        removed = history.model["total"] - history.model["kept"]
        assert len(history.closed) == removed
        assert history.open_at([2000]) == [history.model["kept"]]
        assert history.lines == {"encoder-self": pytest.approx(0.6881, abs=1e-4)}
    steps = closing_steps(changed)["lambda-0.05"]
    layout = run.layouts["lambda-0.05"]
    shut = {head for head, step in steps.items() if step is not None}
    assert shut == set(layout.heads) - layout.kept


def test_with_a_target_count_the_line_parts_the_heads_that_stay(run: RunContents) -> None:
    models = run.model_table.copy()
    models["penalty"] = math.nan
    *_, history = gate_histories(replace(run, model_table=models))
    last = history.opened.iloc[-1]
    kept = [p for head, p in last.items() if Head(*head) in run.layouts["lambda-0.2"].kept]
    others = sorted(set(last) - set(kept))
    assert history.lines["encoder-self"] == pytest.approx((min(kept) + others[-1]) / 2)
    assert len(history.closed) == 20


@pytest.mark.parametrize("temperature", [0.33, 0.5, 2 / 3])
@pytest.mark.parametrize("rule", ["sign", "deterministic"])
def test_the_decision_line_is_that_of_the_gates(temperature: float, rule: Rule) -> None:
    gates = HardConcrete(temperature)
    log_alpha = torch.linspace(-5, 5, 20_001)
    first = gates.p_open(log_alpha)[gates.kept(log_alpha, rule)][0]
    assert penalty_line(temperature, rule) == pytest.approx(float(first), abs=2e-4)


def test_the_plan_of_a_sweep_says_its_rule(run: RunContents) -> None:
    plan = """
        [[pruning]]
        name = "other"
        temperature = 2
        [[pruning]]
        temperature = 0.5
        rule = "deterministic"
    """
    planned = replace(run, plan=plan)
    assert pruning_options(planned, None) == {"temperature": 0.5, "rule": "deterministic"}
    assert pruning_options(planned, "other") == {"temperature": 2}
    assert pruning_options(replace(run, plan="pruning = 3"), None) == {}


def test_models_logged_at_other_steps_keep_their_last_value(run: RunContents) -> None:
    (history,) = gate_histories(with_gates(run, [[0.9], [0.5], [0.1]]))
    assert history.at([0, 5, 10, 25, 99]).ravel().tolist() == [0.9, 0.9, 0.5, 0.1, 0.1]


@pytest.fixture(scope="module")
def page(run: RunContents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder, played = tmp_path_factory.mktemp("part"), animation(gate_histories(run))
    with part_page(folder, "gate_animation.html.j2", animation=played) as opened:
        opened.wait_for_selector("#gate-animation .cells i")
        yield opened


def shades(page: Any) -> list[int]:
    found: list[int] = page.evaluate(
        "[...document.querySelectorAll('#gate-animation .maps > div:first-child i')]"
        ".map(cell => Number(cell.style.getPropertyValue('--p')))"
    )
    return found


def test_the_slider_shows_each_step_and_keys_move_it(page: Any) -> None:
    played = json.loads(page.locator("#gate-history").inner_text())
    frames = [[int(p) for p in frame.split(" ")] for frame in played["models"][0]["frames"]]
    assert shades(page) == frames[-1]
    slider = page.locator("#gate-animation input")
    slider.focus()
    page.keyboard.press("Home")
    assert shades(page) == frames[0]
    assert slider.get_attribute("aria-valuetext") == "step 0"
    page.keyboard.press("ArrowRight")
    assert shades(page) == frames[1]
    told = page.locator("#gate-animation .open").first.inner_text()
    is_open = played["models"][0]["open"][1]
    assert told == f"{is_open} of 24 open, {sum(frames[1]) / 100:.1f} expected"


def test_play_runs_from_the_beginning_to_the_end_and_pauses(page: Any) -> None:
    button, slider = page.locator("#gate-animation button"), page.locator("#gate-animation input")
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # from here the page's time is the test's
    slider.focus()
    page.keyboard.press("End")
    button.click()
    assert button.inner_text() == "Pause"
    page.clock.run_for(1000)
    slider.focus()
    page.keyboard.press(" ")
    assert button.inner_text() == "Play"
    stood = slider.input_value()
    page.clock.run_for(1000)
    assert slider.input_value() == stood and 0 < int(stood) < FRAMES - 1
    page.locator("#gate-animation select").select_option("4")
    button.click()
    page.clock.run_for(60_000)
    assert button.inner_text() == "Play" and int(slider.input_value()) == FRAMES - 1


def test_nothing_moves_by_itself_nor_glides_where_motion_is_unwanted(page: Any) -> None:
    cell = "getComputedStyle(document.querySelector('#gate-animation i'))"
    assert page.evaluate(f"{cell}.transitionDuration") == "0s"
    right = "document.querySelector('#gate-animation').getBoundingClientRect().right"
    assert page.evaluate(right) <= 400
