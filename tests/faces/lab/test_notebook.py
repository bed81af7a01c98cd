"""The lab as a widget, and the notebooks of examples/."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

import headwise as hw
from faces.report.visits import PATIENCE, chromium
from headwise.core.progress import Progress
from headwise.faces.lab import assets, notebook
from headwise.faces.lab.assets import one_module
from headwise.faces.lab.notebook import reply
from headwise.faces.lab.session import Question, Session
from headwise.models.model import Model
from headwise.study.plan import make_plan
from headwise.study.study import run_study
from models.tasks.askers import asker
from own_process import Running, script

EXAMPLES = Path(__file__).parents[3] / "examples"
# What a notebook gives a widget: the state of the model, changes of it, messages in both directions.
HOST = """<!doctype html><meta charset="utf-8"><style>%s</style><p id="cell">A cell</p><div id="out"></div>
<script type="module">
const heard = { "msg:custom": new Set(), "change:state": new Set() };
window.state = {"state": %s};
window.tell = (said) => heard["msg:custom"].forEach((call) => call(said));
window.changeState = (state) => { window.state.state = state; heard["change:state"].forEach((call) => call()); };
const model = {
  get: (name) => window.state[name], save_changes: () => {},
  set: (name, value) => { window.state[name] = value; heard[`change:${name}`].forEach((call) => call()); },
  on: (name, call) => heard[name].add(call), off: (name, call) => heard[name].delete(call),
  send: (asked) => window.ask(asked),
};
const source = await window.esm();
const made = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
made.default.render({ model, el: document.getElementById("out") });
</script>"""

BOOK = """import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import headwise as hw

    hw.lab("tiny", "a b c d")
    return
"""


@pytest.fixture(scope="module")
def model() -> Model:
    return asker("marian")


class Kept:
    """A widget that keeps what it is to send."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def send(self, said: dict[str, Any]) -> None:
        self.said.append(said)


class TestAnswers:
    def test_they_are_the_library_s(self, model: Model) -> None:
        kept, gates = Kept(), {"cross/0/1": 0.0}
        reply(
            Session(model),
            kept,
            {"id": "7-1", "name": "head_effects", "question": {"text": "a b c", "gates": gates}},
        )
        *progress, last = kept.said
        assert progress and all(0 <= line["progress"] <= 1 for line in progress)
        assert {line["id"] for line in kept.said} == {"7-1"}
        ours = Session(model).head_effects(Question(text="a b c", gates=gates))
        assert last["answer"]["total"] == json.loads(json.dumps(ours["total"]))

    @pytest.mark.parametrize(
        "asked",
        [
            {},
            {"name": "other"},
            {"name": "inspect", "question": {"text": 3}},
            {"name": "inspect", "question": []},
        ],
    )
    def test_what_cannot_be_answered(self, model: Model, asked: dict[str, Any]) -> None:
        kept = Kept()
        reply(Session(model), kept, {"id": "1", **asked})
        assert [set(line) for line in kept.said] == [{"id", "error"}]

    def test_the_stop_button_of_the_notebook(
        self, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*given: Any, **options: Any) -> None:
            raise KeyboardInterrupt

        kept, made = Kept(), Session(model)
        monkeypatch.setattr(made, "answer", interrupted)
        reply(made, kept, {"id": "1", "name": "inspect"})
        assert kept.said == [{"id": "1", "error": "Stopped."}]


def test_the_page_is_one_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = one_module("notebook.js", "widget")
    assert text.startswith("const modules") and text.endswith(
        'export default modules["notebook.js"].widget;\n'
    )
    monkeypatch.setattr(assets, "page_folder", lambda: tmp_path)
    (tmp_path / "star.js").write_text('import * as all from "./other.js";\n')
    with pytest.raises(ValueError, match=r"star\.js"):
        one_module("star.js", "all")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    with pytest.raises(hw.HeadwiseError, match=r"hw\.load"):
        hw.lab(3)  # type: ignore[arg-type]
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    with pytest.raises(hw.HeadwiseError, match=r"headwise\[notebook\]"):
        hw.lab(model)


def assert_fits(page: Any, width: float) -> None:
    """The layout depends on the widget's own width: heads can be hit, and nothing stands out of the column."""
    lab = page.locator(".headwise-lab")
    box = lab.bounding_box()
    assert abs(box["width"] - width) <= 25
    tiles = page.locator("[data-head]").evaluate_all(
        "tiles => tiles.map(tile => tile.getBoundingClientRect().width)"
    )
    assert min(tiles) >= 40, f"heads of {min(tiles)} px in a column of {width} px"
    inside = "[data-head], [data-switch], .picked, .output, .map, button, select, textarea"
    right = lab.locator(inside).evaluate_all(
        "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
    )
    assert right <= box["x"] + box["width"]


def switch_off_and_undo(page: Any) -> None:
    page.locator("[data-switch='cross/1/2']").click(timeout=60_000)
    page.locator("[data-switch='cross/1/2'][aria-checked=false]").wait_for()
    page.locator(".log-change").wait_for()
    page.get_by_role("button", name="Undo").click(timeout=60_000)
    page.get_by_text("All heads are on.").wait_for()
    page.locator(".log-change").wait_for(state="detached")
    page.locator(".output[aria-busy=false]").wait_for()
    assert page.get_by_role("button", name="Undo").count() == 0


class TestWidget:
    @pytest.fixture(scope="class")
    def browser(self) -> Iterator[Any]:
        pytest.importorskip("anywidget", reason="anywidget is not installed")
        with chromium() as started:
            yield started

    @pytest.fixture
    def page(self, model: Model, browser: Any) -> Iterator[Any]:
        """A page with the widget, whose questions reach the model as in a notebook; its console must stay empty."""
        widget = hw.lab(model, "a b c d")
        assert widget.state == urlencode({"text": "a b c d"})
        made, said = Session(model), list[str]()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))

        def ask(asked: dict[str, Any]) -> None:
            kept = Kept()
            reply(made, kept, asked)
            page.evaluate("said => { setTimeout(() => said.forEach(window.tell)) }", kept.said)

        page.expose_function("esm", lambda: widget._esm)
        page.expose_function("ask", ask)
        page.set_content(HOST % (widget._css, json.dumps(widget.state)))
        page.locator("[data-head] canvas").first.wait_for()
        yield page
        page.close()
        assert said == []

    def test_it_fits_a_narrow_column_of_a_wide_window(self, page: Any) -> None:
        page.locator("#out").evaluate("out => { out.style.width = '400px'; }")
        assert_fits(page, 400)
        switch_off_and_undo(page)

    def test_a_head_is_switched_off(self, page: Any, model: Model) -> None:
        assert page.evaluate("getComputedStyle(document.body).marginTop") == "8px", (
            "the notebook's page is left alone"
        )
        page.locator("[data-switch='cross/1/2']").click()
        page.wait_for_timeout(150)
        page.locator(".output[aria-busy=false]").wait_for()
        shown = float(page.locator(".log-change").inner_text().replace("−", "-"))
        logs = Session(model).inspect(Question(text="a b c d", gates={"cross/1/2": 0.0}))[
            "log_probability"
        ]
        assert shown == pytest.approx(logs["old_output_now"] - logs["old_output"], abs=0.005)
        assert "off=cross%2F1%2F2" in page.evaluate("window.state.state")
        page.evaluate("window.changeState('text=a+b+c+d')")
        page.get_by_text("All heads are on.").wait_for()
        page.locator(".effects").first.wait_for()
        page.get_by_role("button", name="Smallest set that changes the output").click()
        page.locator(".found").wait_for()
        found = Session(model).smallest(Question(text="a b c d"))
        assert page.locator(".found code").all_inner_texts() == found["heads"]

    def test_in_marimo(self, model: Model, browser: Any, tmp_path: Path) -> None:
        """In columns of the widths that notebooks have, whatever the page around it does to its elements."""
        marimo = pytest.importorskip("marimo", reason="marimo is not installed")
        model.save(tmp_path / "tiny")
        (tmp_path / "book.py").write_text(BOOK.replace("tiny", str(tmp_path / "tiny")))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        program = Path(marimo.__file__).with_name("__main__.py")
        options = ("--headless", "--no-token", "--host", "127.0.0.1", "--port", port)
        served = Running(
            tmp_path / "marimo", script, program, "run", tmp_path / "book.py", *options
        )

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    return True
            except OSError:
                return False

        errors: list[str] = []
        try:
            served.wait_until(answers)
            page = browser.new_page(viewport={"width": 744, "height": 900})
            page.set_default_timeout(PATIENCE)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"http://127.0.0.1:{port}")
            page.locator("[data-head] canvas").first.wait_for()
            for window, column in ((744, 600), (883, 710), (1023, 850), (1173, 1000)):
                page.set_viewport_size({"width": window, "height": 900})
                assert_fits(page, column)
                switch_off_and_undo(page)
            page.close()
        finally:
            served.process.kill()
            served.end()
        assert errors == []


class TestExamples:
    @pytest.fixture(scope="class")
    def place(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder with a trained model in runs/toy."""
        pytest.importorskip("anywidget", reason="anywidget is not installed")
        shape = [
            "encoder_layers=1",
            "decoder_layers=1",
            "heads=4",
            "width=32",
            "feedforward=32",
            "vocabulary=300",
        ]
        training = ["epochs=1", "batch_tokens=1260", "dtype=float32"]
        settings = [*(f"model.{one}" for one in shape), *(f"training.{one}" for one in training)]
        plan = make_plan({"data": {"embedded": {"train": 150, "dev": 12, "test": 11}}}, settings)
        place = tmp_path_factory.mktemp("place")
        run_study(plan, place / "runs" / "toy", Progress(quiet=True), only="train")
        return place

    @pytest.mark.campaign
    def test_jupyter(self) -> None:
        """The notebook runs again and gives what is saved in it, for readers who do not run it."""
        pytest.importorskip("ipykernel", reason="ipykernel is not installed")
        client = pytest.importorskip("nbclient", reason="nbclient is not installed")
        book = pytest.importorskip("nbformat", reason="nbformat is not installed").read(
            EXAMPLES / "heads_jupyter.ipynb", 4
        )
        saved = [said(cell) for cell in book.cells if cell.cell_type == "code"]
        client.NotebookClient(
            book, timeout=120, resources={"metadata": {"path": str(EXAMPLES)}}
        ).execute()
        code = [cell for cell in book.cells if cell.cell_type == "code"]
        assert [said(cell) for cell in code[:-1]] == saved[:-1]
        assert "o carro" in saved[2] and "32 of 64 heads" in saved[3]
        assert "application/vnd.jupyter.widget-view+json" in code[-1].outputs[-1].data

    def test_calls_of_transformer_lens(self) -> None:
        """Every cell prints what is saved in it."""
        book = json.loads((EXAMPLES / "from_transformer_lens.ipynb").read_text(encoding="utf-8"))
        cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        names: dict[str, Any] = {}
        with torch.random.fork_rng():
            for cell in cells:
                printed = io.StringIO()
                with redirect_stdout(printed):
                    exec("".join(cell["source"]), names)
                saved = "".join(text for output in cell["outputs"] for text in output["text"])
                assert words(printed.getvalue()) == words(saved)
        assert len(cells) == 8 and names["small"].heads.total == 3

    def test_marimo(self, place: Path, tmp_path: Path) -> None:
        pytest.importorskip("marimo", reason="marimo is not installed")
        code, said, wrong = Running(tmp_path / "run", run_app, place).end()
        assert code == 0, wrong
        assert "6 of 12 heads" in said and "Widget" in said


def said(cell: Any) -> str:
    """What a cell of a notebook prints and returns, as text; not its progress."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            parts.append(output.text)
        elif output.output_type == "execute_result":
            parts.append(output.data["text/plain"])
    return "".join(parts)


def words(text: str) -> list[str]:
    """A number that is rounded to zero has no sign."""
    return re.sub(r"-(0\.0+)\b", r"\1", text).split()


def run_app(place: Path) -> None:
    os.chdir(place)
    shown = runpy.run_path(str(EXAMPLES / "heads_marimo.py"))["app"].run()[0]
    print(shown[2], type(shown[3]))
