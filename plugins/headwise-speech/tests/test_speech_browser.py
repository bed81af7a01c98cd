"""The lab of a speech model in a real browser."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from typing import Any

import pytest

from axe import serious
from faces.lab import test_lab_browser
from faces.lab.test_lab_browser import browser, change, export, served, settled, visit  # noqa: F401
from headwise.faces.lab.session import Session
from hearers import hearer, recordings

pytestmark = test_lab_browser.pytestmark


@pytest.fixture(scope="module")
def speech_address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a lab with a speech model in a folder, and two recordings with the times of their words."""
    folder = tmp_path_factory.mktemp("speech")
    recordings(folder, 2)
    lines = ["audio,word,start,end,language"]
    for name in ("0.wav", "1.wav"):
        lines += [f"{name},a,0.1,0.4,en", f"{name},<b>b</b>,0.5,0.9,en"]
    (folder / "times.csv").write_text("\n".join(lines) + "\n")
    model = hearer().save(folder / "hearer")
    return served(Session.open(model, audio=folder / "times.csv"))


def can_be_played(page: Any, seconds: float) -> None:
    """Wait until the player has a recording of this length."""
    page.evaluate(
        """(seconds) => new Promise((done) => {
            const look = () => Math.abs(document.querySelector("audio").duration - seconds) < 0.01
              ? done() : setTimeout(look, 50);
            look(); })""",
        seconds,
    )


def test_a_speech_model_is_asked_about_a_recording(
    visit: Any,  # noqa: F811
    speech_address: str,
) -> None:
    page = visit(speech_address + "#head=cross/1/2", theme="dark")
    can_be_played(page, 1.0)
    assert page.locator(".recording .said").inner_text() == "a <b>b</b>"
    page.get_by_label("Recording of times.csv").select_option("1.wav")
    can_be_played(page, 1.1)
    page.locator("[data-switch='cross/1/2']").click()
    settled(page)
    lines, said = page.locator(".python").inner_text(), io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(lines, {})
    transcript, logs = said.getvalue().splitlines()
    shown = page.locator(".said.after").evaluate(
        "e => [...e.childNodes].filter(n => n.nodeName !== 'DEL').map(n => n.textContent).join('')"
    )
    assert shown == transcript
    numbers = json.loads(logs.replace("'", '"'))
    expected = numbers["old_output_now"] - numbers["old_output"]
    assert change(page) == pytest.approx(expected, abs=0.006)

    # Words and seconds stand where they are on the axis of time: 1.1 s are 55 frames, and the silence a column.
    places = page.evaluate("""() => {
        const map = document.querySelector('.picked .cells').getBoundingClientRect();
        const share = (e) => (e.getBoundingClientRect().left - map.left) / map.width;
        return [...document.querySelectorAll('.picked .to li, .picked .seconds.columns li')].map(share); }""")
    steps = [0.1 / 0.02, 0.5 / 0.02, 55, 0, 12.5, 25, 37.5, 50]
    assert places == pytest.approx([step / 56 for step in steps], abs=0.01)
    rows = list(csv.DictReader(io.StringIO(export(page, "Map as CSV"))))
    assert [row["to"] for row in rows[:56]][::55] == ["0.00 s", "silence"]
    page.locator("[data-head='encoder-self/0/1']").click()
    assert page.get_by_text("Most often it attends to").count() == 1
    assert page.locator(".picked .seconds").count() == 2
    page.locator("table.effects").wait_for()
    assert serious(page) == []

    page.set_viewport_size({"width": 400, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.evaluate("location.hash = 'text=by+hand'")
    page.get_by_text("a speech model reads no text").wait_for()
