"""The lab in a real browser: every view, the state in the address, exports, hostile text, nothing from elsewhere."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import queue
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwise as hw
from axe import serious
from faces.lab.floats import floats_of
from headwise.data.annotated import Annotated, Mention, Word
from headwise.faces.lab.server import serve
from headwise.faces.lab.session import Question, Session
from headwise.models.model import Model
from models.tasks.askers import asker, embedder
from models.tasks.test_classifiers import classifier

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
WAIT = 300_000  # milliseconds: tests share their machine


def word(form: str, governor: int, relation: str) -> Word:
    return Word(form, form, "X", governor, relation, relation, True)


TREE = Annotated(
    (word("c", 1, "nsubj"), word("d", -1, "root"), word("e", 1, "obj")),
    "1",
    "1",
    (Mention("e1", 0, 0, 1, 0, "nominal"), Mention("e1", 0, 2, 3, 2, "pronoun")),
)


def served(session: Session) -> str:
    """The address of a lab that is served until the tests end."""
    said: queue.Queue[str] = queue.Queue()
    threading.Thread(
        target=serve, args=(session, "127.0.0.1", 0, False, said.put), daemon=True
    ).start()
    return said.get(timeout=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asker("marian").save(tmp_path_factory.mktemp("lab") / "tiny")


def opened(folder: Path) -> Session:
    model = hw.load(folder)
    pruned = model.without([hw.Head("cross", 0, 1), hw.Head("cross", 0, 2)])
    return Session(model, pruned, trees={TREE.text: TREE})


@pytest.fixture(scope="module")
def library(folder: Path) -> Session:
    """The same models as the lab's, which may be at work on effects while a test asks."""
    return opened(folder)


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    made = opened(folder)
    heads = {
        str(head): [place / 10, place / 10 - 0.05, place / 10 + 0.05]
        for place, head in enumerate(made.model.heads)
    }
    made.about |= {
        "scores": [{"measure": "confidence", "name": "confidence", "heads": heads}],
        "roles": {
            "cross/0/1": [
                {
                    "role": "<b>nsubj</b>",
                    "measure": "syntactic",
                    "meaning": "nsubj: a subject",
                    "value": 0.9,
                    "low": 0.8,
                    "high": 0.95,
                    "n": 20,
                    "baseline": 0.4,
                }
            ]
        },
        "pruned": [
            {
                "setting": "one",
                "label": "λ = 0.01",
                "chosen": True,
                "bleu": 30.0,
                "kept": ["cross/0/0"],
                "closed": {"cross/0/1": 40},
            }
        ],
        "sentences": {"Yours": ["a b c d", TREE.text]},
        "opening": "a b c d",
    }
    return made


@pytest.fixture(scope="module")
def address(session: Session) -> str:
    return served(session)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        quiet = [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
        ]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Opens an address; at the end the console must be empty, and no request may have gone elsewhere."""
    contexts, said = [], list[str]()

    def open_page(url: str, width: int = 1280, theme: str = "light") -> Any:
        contexts.append(
            browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT)
        host = url.split("/")[2]
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request",
            lambda r: (
                said.append(r.url)
                if not r.url.startswith((f"http://{host}/", "blob:", "data:"))
                else None
            ),
        )
        page.goto(url)
        page.locator("[data-head] canvas").first.wait_for()
        return page

    yield open_page
    assert said == []
    for context in contexts:
        context.close()


def settled(page: Any) -> None:
    """Wait for the answer to the last change."""
    page.locator(".output[aria-busy=false]").wait_for()


def change(page: Any) -> float:
    return float(page.locator(".log-change").inner_text().replace("−", "-"))


def export(page: Any, name: str) -> str:
    with page.expect_download() as download:
        page.get_by_role("button", name=name, exact=True).click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_a_head_is_picked_switched_off_and_slid(visit: Any, address: str, library: Session) -> None:
    page = visit(address)
    page.locator("[data-head='cross/1/2']").click()
    assert page.locator(".picked h2").inner_text() == "cross/1/2"
    page.locator("[data-switch='cross/1/2']").click()
    settled(page)
    expected = library.inspect(Question(text="a b c d", gates={"cross/1/2": 0.0}))
    assert page.locator("[data-switch='cross/1/2']").get_attribute("aria-checked") == "false"
    shown = page.locator(".said.after").evaluate(
        "e => [...e.childNodes].filter(n => n.nodeName !== 'DEL').map(n => n.textContent).join('')"
    )
    assert shown == expected["new_output"]
    logs = expected["log_probability"]
    assert change(page) == pytest.approx(logs["old_output_now"] - logs["old_output"], abs=0.006)
    page.locator("[data-slider]").fill("0.5")
    settled(page)
    logs = library.inspect(Question(text="a b c d", gates={"cross/1/2": 0.5}))["log_probability"]
    assert change(page) == pytest.approx(logs["old_output_now"] - logs["old_output"], abs=0.006)
    page.get_by_label("An off head gives").select_option("mean")
    settled(page)
    logs = library.inspect(Question(text="a b c d", gates={"cross/1/2": 0.5}, ablation="mean"))[
        "log_probability"
    ]
    assert change(page) == pytest.approx(logs["old_output_now"] - logs["old_output"], abs=0.006)
    page.get_by_role("button", name="Switch all on").click()
    settled(page)
    assert page.locator(".log-change").count() == 0


def test_groups_of_heads_are_switched(visit: Any, address: str) -> None:
    page = visit(address)
    off = lambda: page.locator("[role=switch][aria-checked=false]").count()  # noqa: E731
    page.get_by_role("button", name="all off: layer 1, Cross-attention").click()
    assert off() == 4
    page.get_by_role("button", name="all off: Encoder self-attention", exact=True).click()
    assert off() == 12
    page.get_by_role("button", name="all on: Encoder self-attention", exact=True).click()
    assert off() == 4
    page.get_by_role("button", name="Switch all on").click()
    groups = page.get_by_label("Several at once")
    for group, share, count in (
        ("Role: <b>nsubj</b> (1)", 0, 1),
        ("Lowest by confidence (6)", 50, 12),
    ):
        groups.select_option(label=group)
        if share:
            page.get_by_label("Share, %").fill(str(share))
        page.get_by_role("button", name="Off", exact=True).click()
        assert off() == count
        page.get_by_role("button", name="Switch all on").click()
    settled(page)


def test_the_state_is_in_the_address(visit: Any, address: str) -> None:
    page = visit(address)
    page.get_by_label("Sentence", exact=True).fill("e f g & # ü")
    page.get_by_label("Sentence", exact=True).press("Enter")
    page.locator("[data-head='encoder-self/1/3']").click()
    page.locator("[data-switch='encoder-self/1/3']").click()
    page.get_by_label("Order").select_option("confidence")
    page.get_by_label("Beam").select_option("2")
    page.get_by_label("words").check()
    page.get_by_label("compare with the pruned model").check()
    settled(page)
    page.locator(".said.pruned").wait_for()
    before = page.locator(".output").inner_text()
    other = visit(page.url)
    other.locator(".said.pruned").wait_for()
    settled(other)
    assert other.locator(".output").inner_text() == before
    assert other.locator(".picked h2").inner_text() == "encoder-self/1/3"
    assert other.get_by_label("Order").input_value() == "confidence"
    assert [
        other.get_by_label(name).is_checked() for name in ("words", "compare with the pruned model")
    ] == [True, True]
    first = (
        other.get_by_label("Encoder self-attention", exact=True)
        .locator(".row")
        .first.locator("[data-head]")
        .evaluate_all("all => all.map(e => e.dataset.head)")
    )
    assert first == [f"encoder-self/0/{h}" for h in (3, 2, 1, 0)]  # the highest score first
    other.locator("[data-head='cross/0/1']").click()
    assert other.locator(".picked").get_by_text("This head was removed.").count() == 1
    assert other.locator(".picked").get_by_text("<b>nsubj</b>").count() == 1
    other.evaluate(
        "location.hash = 'text=a+b&off=cross/0/0,bad/head,cross/0/1:7&beam=99&sort=none&head=cross/9/9'"
    )
    other.wait_for_function(
        "document.querySelectorAll('[role=switch][aria-checked=false]').length === 1"
    )
    settled(other)


def test_effects_and_the_smallest_set(visit: Any, address: str, library: Session) -> None:
    page = visit(address)
    page.locator("table.effects").wait_for()
    ours = library.head_effects(Question(text="a b c d"))
    rows = list(csv.DictReader(io.StringIO(export(page, "Effects as CSV"))))
    values = np.array([float(row["change"]) for row in rows]).reshape(len(ours["heads"]), -1)
    np.testing.assert_allclose(values, ours["values"], atol=1e-5)
    biggest = ours["heads"][int(np.abs(ours["total"]).argmax())]
    assert page.locator("table.effects tbody th").first.inner_text() == biggest
    page.get_by_label("Order").select_option("effect")
    page.get_by_role("button", name="Smallest set that changes the output").click()
    page.get_by_role("button", name=re.compile("Switch (it|them) off")).click()
    settled(page)
    assert page.locator(".said.after ins").count() + page.locator(".said.after del").count() > 0


def test_the_exported_map_is_the_picture(visit: Any, address: str, library: Session) -> None:
    page = visit(address + "#text=a+b+c&head=cross/0/3")
    inspection = library.inspect(Question(text="a b c"))
    (site,) = [s for s in inspection["maps"] if (s["kind"], s["layer"]) == ("cross", 0)]
    weights = floats_of(site["data"], site["shape"])[3]
    rows = list(csv.DictReader(io.StringIO(export(page, "Map as CSV"))))
    np.testing.assert_allclose([float(row["weight"]) for row in rows], weights.ravel(), atol=1e-6)
    pixels = page.evaluate("""() => { const c = document.querySelector('.picked canvas');
        return [c.height, c.width, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; }""")
    assert tuple(pixels[:2]) == weights.shape
    red = np.array(pixels[2::4]).reshape(
        weights.shape
    )  # the scale darkens: the more attention, the less red
    assert (np.argsort(-weights[0], kind="stable")[0] == np.argmin(red[0])).all()
    page.get_by_label("words").check()
    held = json.loads(export(page, "Map as JSON"))
    assert held["head"] == "cross/0/3" and len(held["values"]) == held["rows"] * held["columns"]
    page.locator(".picked canvas").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".picked .pointer").count() == 1


def test_the_tree_is_drawn_with_the_picked_head(visit: Any, address: str, library: Session) -> None:
    page = visit(address)
    page.get_by_label("Pick a sentence").select_option(TREE.text)
    page.locator("[data-head='encoder-self/1/2']").click()
    page.locator(".arcs").wait_for()
    assert sorted(page.locator(".arc.dependency text").all_text_contents()) == ["nsubj", "obj"]
    assert page.locator(".arc.coreference").count() == 1
    hover = page.locator(".arc.dependency title", has_text="nsubj").text_content()
    assert hover.startswith("nsubj: c → d ") and hover.endswith(
        "a subject: “girls” in “girls sing”"
    )
    page.get_by_text("What the relations mean").click()
    meanings = page.locator(".picked details.more .plain li").all_inner_texts()
    assert [each.split(" ")[0] for each in meanings] == ["nsubj", "obj"]
    inspection = library.inspect(Question(text=TREE.text))
    (site,) = [s for s in inspection["maps"] if (s["kind"], s["layer"]) == ("encoder-self", 1)]
    map, words = floats_of(site["data"], site["shape"])[2], np.array(inspection["source"]["words"])
    between = lambda a, b: map[words == a][:, words == b].sum(1).mean()  # noqa: E731
    rows = {
        row["relation"]: row for row in csv.DictReader(io.StringIO(export(page, "Tree as CSV")))
    }
    for relation, one, other in (("nsubj", 0, 1), ("obj", 2, 1), ("same entity", 2, 0)):
        assert [float(rows[relation]["weight"]), float(rows[relation]["back"])] == pytest.approx(
            [between(one, other), between(other, one)], abs=1e-5
        )
    page.locator("[data-head='cross/0/0']").click()
    assert page.locator(".arcs").count() == 0
    page.get_by_label("Sentence", exact=True).fill("c d")
    page.get_by_label("Sentence", exact=True).press("Enter")
    page.locator("[data-head='encoder-self/1/2']").click()
    page.locator(".arcs").wait_for(state="detached")  # this sentence has no tree


def test_the_python_lines_give_the_same(visit: Any, address: str, library: Session) -> None:
    page = visit(
        address
        + "#text=a+%22b%22+%5C+%C3%BC+%F0%9F%99%82&off=cross/1/2,encoder-self/0/0:0.5&ablation=uniform&beam=2"
    )
    settled(page)
    lines, said = page.locator(".python").inner_text(), io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(lines, {})
    gates = {"cross/1/2": 0.0, "encoder-self/0/0": 0.5}
    inspection = library.inspect(
        Question(text='a "b" \\ ü 🙂', gates=gates, ablation="uniform", beam=2)
    )
    assert said.getvalue().splitlines() == [
        inspection["new_output"],
        str(inspection["log_probability"]),
    ]
    assert page.locator(".said.after").inner_text() != ""


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script> <img src=x onerror=alert(2)>",
        "שלום &amp; \u202e a\u0301 👩‍👩‍👧",
        "x" * 10_000,
    ],
)
def test_hostile_text_is_shown_as_text(visit: Any, folder: Path, text: str) -> None:
    model = hw.load(folder)
    words = model.tokenizer.backend_tokenizer.get_vocab()
    model.tokenizer.add_tokens([word for word in text.split() if word not in words])
    model.hf.resize_token_embeddings(
        max(len(model.tokenizer), model.hf.config.vocab_size), mean_resizing=False
    )
    session = Session(Model(model.hf, model.tokenizer, "<i>model</i>"))
    session.about |= {"sentences": {"Yours": [text]}, "opening": text}
    page = visit(served(session) + "#head=encoder-self/0/0")
    settled(page)
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert (
            page.evaluate("document.querySelectorAll('main script, main img, header i').length")
            == 0
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert (
            page.locator(".from li").first.get_attribute("title").startswith(text.split()[0][:20])
        )


@pytest.mark.parametrize("family", ["gpt2", "bert", "embedder", "classifier"])
def test_other_models_have_their_view(visit: Any, family: str) -> None:
    models = {"embedder": embedder, "classifier": classifier}
    model = models[family]() if family in models else asker(family)
    library = Session(copy.deepcopy(model))
    page = visit(served(Session(model)) + "#text=a+b+c+d+e")
    page.locator("[role=switch]").nth(1).click()
    settled(page)
    if family == "embedder":
        assert 0.9 < change(page) <= 1
    elif family == "classifier":
        assert page.locator("table.next tbody tr").count() == model.hf.config.num_labels
        assert page.locator("[data-position]").count() == 0
    else:
        assert page.locator("table.next tbody tr").count() >= 8
        page.locator("[data-position='2']").click()
        settled(page)
        assert "position=2" in page.url
        expected = library.inspect(
            Question(
                text="a b c d e",
                gates={next(iter(map(str, list(model.heads)[1:]))): 0.0},
                position=2,
            )
        )["log_probability"]
        assert change(page) == pytest.approx(
            expected["old_output_now"] - expected["old_output"], abs=0.006
        )
    page.locator("table.effects").wait_for()
    assert serious(page) == []


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_it_fits_the_screen_in_both_themes(
    visit: Any, address: str, width: int, theme: str
) -> None:
    page = visit(
        address + "#text=c+d+e&head=encoder-self/0/1&off=cross/0/1&compare=1", width, theme
    )
    page.locator(".said.pruned").wait_for()
    page.locator("table.effects").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    channels = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (sum(map(int, channels[:3])) < 200) == (theme == "dark")
    nameless = page.evaluate("""() => [...document.querySelectorAll('button, select, input, textarea')]
        .filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).length""")
    assert nameless == 0
    assert serious(page) == []


def test_an_error_is_a_sentence(
    visit: Any, address: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = visit(address)
    with monkeypatch.context() as broken:
        broken.setattr(session, "inspect", lambda *_: (_ for _ in ()).throw(MemoryError()))
        page.locator("[role=switch]").first.click()
        assert "memory" in page.locator("[role=alert]").inner_text()
    page.locator("[role=switch]").first.click()
    page.locator("[role=alert]").wait_for(state="detached")


def test_an_old_output_is_not_shown_for_a_new_question(visit: Any, address: str) -> None:
    """Neither without a server nor for an empty sentence."""
    page = visit(address)
    settled(page)
    page.evaluate(
        """() => {
            window.reached = window.fetch;
            window.fetch = () => Promise.reject(new TypeError("Failed to fetch"));
        }"""
    )
    page.locator("[data-switch='cross/0/0']").click()
    assert "still running" in page.locator("[role=alert]").inner_text()
    assert page.locator(".said, .numbers, .tokens").count() == 0
    page.evaluate("() => { window.fetch = window.reached; }")
    page.get_by_role("button", name="Try again").click()
    page.locator(".log-change").wait_for()
    assert page.locator("[role=alert]").count() == 0

    page.get_by_label("Sentence", exact=True).fill(" ")
    page.get_by_label("Sentence", exact=True).press("Enter")
    page.get_by_text("Type a sentence").wait_for()
    assert page.locator(".said, .numbers, .tokens, [role=alert]").count() == 0
    page.get_by_label("Sentence", exact=True).fill("a b")
    page.get_by_label("Sentence", exact=True).press("Enter")
    page.locator(".log-change").wait_for()


def test_heads_of_an_address_that_the_model_lacks_are_left_out(visit: Any, address: str) -> None:
    page = visit(address + "#text=a+b&off=cross/9/9,cross/0/1&head=cross/0/70&sort=none")
    settled(page)
    assert page.get_by_text("no head cross/9/9, cross/0/70.").count() == 1
    assert page.locator("[role=switch][aria-checked=false]").count() == 1
    assert "9" not in page.url.split("#")[1]


def test_white_space_is_written_in_signs(visit: Any, address: str) -> None:
    page = visit(address)
    shown = "async text => (await import('./text.js')).shown(text)"
    for text, expected in (
        ("\n\n", "↵↵"),
        ("\t", "⇥"),
        (" ", "␣"),
        ("", "∅"),
        ("\u200b", "U+200B"),
    ):
        assert page.evaluate(shown, text) == expected


def test_labels_do_not_overlap_or_hide_on_a_phone(visit: Any, address: str) -> None:
    page = visit(f"{address}#text={'+'.join('abcdef' * 5)}&head=encoder-self/0/0", width=400)
    settled(page)
    for side, edge, size in ((".from", "top", "height"), (".to", "left", "width")):
        edges, letters = page.locator(f".large {side} li").evaluate_all(
            """(all, [edge, size]) => [all.map(one => one.getBoundingClientRect()[edge]),
                all.map(one => parseFloat(getComputedStyle(one).fontSize))]""",
            [edge, size],
        )
        assert min(np.diff(edges)) >= 0.9 * max(letters) >= 8
    role = page.locator(".small .role").first
    assert role.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_words_of_the_glossary_explain_themselves(visit: Any, address: str) -> None:
    page = visit(address + "#head=cross/0/1")
    settled(page)
    tokens = page.locator(".tokens li").count()
    (note,) = page.locator(".numbers .note").all_inner_texts()
    assert note == f"The sum over its {tokens} tokens; 0 would be certainty."
    unit = page.locator(".numbers abbr").first
    assert unit.inner_text() == "nats" and "1 nat per token" in unit.get_attribute("title")
    assert page.locator(".kept abbr").all_inner_texts() == ["λ", "gate"]
    assert "multiplies" in page.locator(".kept abbr").last.get_attribute("title")
    assert page.locator(".about-head li small").first.inner_text() == "nsubj: a subject"
    assert "nsubj: a subject" in page.locator("[data-head='cross/0/1']").get_attribute("title")


def test_every_head_says_its_effect_role_and_fate(
    visit: Any, address: str, session: Session, library: Session
) -> None:
    """And the lab starts on the head that matters most, with an offer to switch it off."""
    page = visit(address)
    page.locator(".effect").first.wait_for()
    ours = library.head_effects(Question(text="a b c d"))
    shown = page.locator(".small:has(.effect)").evaluate_all(
        "all => all.map(e => [e.querySelector('[data-head]').dataset.head, e.querySelector('.effect').innerText])"
    )
    effects = {head: float(text.replace("−", "-")) for head, text in shown}
    np.testing.assert_allclose(
        [effects[head] for head in ours["heads"]], ours["total"], atol=0.0051
    )
    assert shown[0][0] == "cross/0/0"  # the kind that moves the output most is on the first screen
    most = ours["heads"][int(np.abs(ours["total"]).argmax())]
    assert page.locator(".picked h2").inner_text() == most

    named = page.locator(".small", has=page.locator("[data-head='cross/0/1']"))
    assert named.locator(".role").inner_text() == "<b>nsubj</b>"
    removed = page.locator(".switch", has_text="✂").evaluate_all(
        "all => all.map(one => one.dataset.switch)"
    )
    every = [str(head) for head in session.model.heads]
    assert set(removed) == set(every) - {"cross/0/0"}

    way = "falls" if min(ours["total"], key=lambda change: -abs(change)) < 0 else "rises"
    size = np.abs(ours["total"]).max()
    for said in (page.locator(".hint"), page.locator(".picked .fact")):
        sentence = said.inner_text()
        assert f"(nats) {way} by" in sentence
        assert float(sentence.split(" by ")[1].split()[0].rstrip(".")) == pytest.approx(
            size, rel=0.01
        )
    page.get_by_role("button", name="Switch it off").click()
    page.locator(".log-change").wait_for()
    page.locator(".all:not(.old)").wait_for()
    assert page.locator(".picked h2").inner_text() == most
    assert page.locator(f"[data-switch='{most}']").get_attribute("aria-checked") == "false"


def test_no_sentence_is_about_the_effects_of_another_text(
    visit: Any, address: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = visit(address)
    page.get_by_text("matters most here").wait_for()
    head_effects = session.head_effects
    begun, go_on = threading.Event(), threading.Event()

    def waiting(*given: Any) -> Any:
        begun.set()
        go_on.wait(20)
        return head_effects(*given)

    monkeypatch.setattr(session, "head_effects", waiting)
    page.get_by_label("Sentence", exact=True).fill("d c b a")
    page.get_by_label("Sentence", exact=True).press("Enter")
    assert begun.wait(20)
    page.locator(".all.old").wait_for()
    assert page.get_by_text("matters most here").count() == 0
    go_on.set()
    page.get_by_text("matters most here").wait_for()


def test_what_takes_long_is_not_started(
    visit: Any, address: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect = session.inspect
    slow = lambda *given: {**inspect(*given), "head_effects_seconds": 30.0}  # noqa: E731
    monkeypatch.setattr(session, "inspect", slow)
    page = visit(address)
    page.get_by_text("Switch a head off to see what changes.").wait_for()
    page.wait_for_timeout(500)
    assert page.locator(".effect").count() == 0
    last = list(session.model.heads)[-1]  # of the highest score of the run
    assert page.locator(".picked h2").inner_text() == str(last)

    start = page.get_by_role("button", name="Try every head")
    start.click()
    page.locator("table.effects").wait_for()
    assert start.count() == 0  # the table is there
    page.locator("[data-switch='cross/0/0']").click()
    start.wait_for()


def test_the_table_of_effects_has_no_scrollbar_of_its_own(
    visit: Any, address: str, session: Session
) -> None:
    """The heads that matter most, then on demand all, with digits that tell them apart."""
    page = visit(address)
    rows = page.locator("table.effects tbody tr")
    rows.first.wait_for()
    assert rows.count() == 12 < session.model.heads.total
    page.get_by_role("button", name=f"Show all {session.model.heads.total} heads").click()
    assert rows.count() == session.model.heads.total
    hidden = page.locator(".table:has(.effects)").evaluate(
        "one => one.scrollHeight - one.clientHeight"
    )
    assert hidden <= 0
    texts = rows.locator("td:nth-child(2)").all_inner_texts()
    sizes = [float(text.lstrip("−+")) for text in texts]
    assert sizes == sorted(sizes, reverse=True)
    for text in texts:
        digits = text.lstrip("−+").replace(".", "").lstrip("0")
        assert len(digits) >= 3 or len(text.partition(".")[2]) == 6
    assert page.get_by_role("button", name="Try every head").count() == 0


def test_on_a_phone_the_picked_head_is_one_click_away(visit: Any, address: str) -> None:
    page = visit(address + "#text=a+b&head=cross/1/3", width=400)
    settled(page)
    page.get_by_role("button", name="Go to the map of cross/1/3").click()
    page.wait_for_function("document.querySelector('.picked').getBoundingClientRect().top < 400")
    page.get_by_role("button", name="Back to the heads").click()
    page.wait_for_function(
        """() => {
            const box = document.querySelector("[data-switch='cross/1/3']").getBoundingClientRect();
            return box.top > 0 && box.bottom < innerHeight;
        }"""
    )
    assert page.locator(".python").evaluate("one => one.scrollWidth <= one.clientWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator(".jump").first.wait_for(state="hidden")


def test_heads_are_one_tab_stop(visit: Any, address: str) -> None:
    page = visit(address + "#text=a+b&head=encoder-self/0/1")
    settled(page)
    stops = page.locator(".heads :is([data-head], [data-switch]):not([tabindex='-1'])")
    assert stops.evaluate_all("all => all.map(one => one.dataset.head)") == ["encoder-self/0/1"]
    page.locator("[data-head='encoder-self/0/1']").focus()
    for key, head in (
        ("ArrowRight", "encoder-self/0/2"),
        ("ArrowUp", "decoder-self/0/2"),
        ("ArrowLeft", "decoder-self/0/1"),
        ("ArrowDown", "encoder-self/0/1"),
        ("End", "encoder-self/1/3"),
        ("ArrowRight", "encoder-self/1/3"),
    ):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.head") == head
        assert page.locator(".picked h2").inner_text() == head
    page.keyboard.press(" ")
    assert page.locator("[data-switch='encoder-self/1/3']").get_attribute("aria-checked") == "false"
    settled(page)


def test_back_undoes_a_step(visit: Any, address: str) -> None:
    page = visit(address)
    settled(page)
    off = page.locator("[role=switch][aria-checked=false]")
    page.locator("[data-switch='cross/1/2']").click()
    page.locator("[data-head='cross/1/1']").click()  # no step
    for share in ("0.6", "0.5", "0.4"):  # one step
        page.locator("[data-slider]").fill(share)
    page.get_by_label("Sentence", exact=True).fill("c d")
    page.get_by_label("Sentence", exact=True).press("Enter")
    page.wait_for_url(lambda url: "text=c+d" in url)
    page.go_back()
    page.wait_for_url(lambda url: "text=c+d" not in url)
    assert "cross%2F1%2F1%3A0.4" in page.url
    page.go_back()
    page.wait_for_url(lambda url: "%3A" not in url)
    assert off.count() == 1
    page.go_back()
    page.get_by_text("All heads are on.").wait_for()
    settled(page)


def test_back_twice_at_once_undoes_two_steps(visit: Any, address: str) -> None:
    page = visit(address + "#text=a+b")
    settled(page)
    page.locator("[data-switch='cross/1/2']").click()
    page.locator("[data-switch='cross/1/1']").click()
    page.get_by_text("2 of 24 heads off").wait_for()
    page.wait_for_url(lambda url: "cross%2F1%2F1" in url)
    page.evaluate(
        """() => {
            requestAnimationFrame = () => 0;  // a busy page: nothing is painted between the two
            addEventListener("hashchange", () => history.back(), {once: true});
            history.back();
        }"""
    )
    page.get_by_text("All heads are on.").wait_for()
    settled(page)
    assert "off=" not in page.url
    page.evaluate("history.go(2)")  # the steps are still there, forwards
    page.get_by_text("2 of 24 heads off").wait_for()


def test_the_pruned_model_s_changes_are_marked(visit: Any, address: str, library: Session) -> None:
    for text in "abcdef":
        full = library.inspect(Question(text=text))["old_output"]
        changes = library.inspect(Question(text=text, model="pruned"))["changes"]
        if any(what != "same" for what, _ in changes):
            break
    page = visit(f"{address}#text={text}&compare=1")
    page.locator(".said.pruned").wait_for()
    marks = page.locator(".said.pruned :is(ins, del)").all_inner_texts()
    assert marks == [text for what, text in changes if what != "same"] != []
    assert "".join(text for what, text in changes if what != "added") == full


def test_attention_is_drawn_as_lines(visit: Any, address: str, library: Session) -> None:
    page = visit(address + "#text=a+b+c&head=cross/0/3")
    page.get_by_label("Picture").select_option("lines")
    page.locator(".columns line").first.wait_for()
    (site,) = [
        each
        for each in library.inspect(Question(text="a b c"))["maps"]
        if (each["kind"], each["layer"]) == ("cross", 0)
    ]
    weights = floats_of(site["data"], site["shape"])
    lines = lambda: page.locator(".columns line").count()  # noqa: E731
    assert abs(lines() - (weights[3] >= 0.03).sum()) <= 1  # one may lie on the limit
    assert page.locator(".columns .from li").count() == weights.shape[1]

    page.locator(".columns .to li").nth(1).hover()
    assert page.locator(".columns .to .at").inner_text() == "b"
    assert abs(lines() - (weights[3][:, 1] > 0.001).sum()) <= 1
    page.locator(".columns").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    best = max(weights[3][0])
    assert f"{best:.2f}" in page.locator(".lines figcaption").inner_text()

    page.get_by_label("Picture").select_option("layer")
    page.locator(".legend button").nth(3).wait_for()
    page.mouse.move(0, 0)
    strongest = weights == weights.max(-1, keepdims=True)  # of each word and head
    assert abs(lines() - strongest.sum()) <= 2
    page.locator(".legend button").nth(2).hover()
    assert abs(lines() - (weights[2] >= 0.03).sum()) <= 1
    assert "view=layer" in page.url
    assert serious(page) == []


def test_several_sentences_have_a_row_each(visit: Any, address: str, library: Session) -> None:
    page = visit(address + "#off=cross/0/0")
    page.get_by_text("Compare with other sentences").click()
    page.get_by_label("One a line").fill("e f\n\nb")
    page.get_by_role("button", name="Translate").click()
    for row, text in enumerate(("a b c d", "e f", "b")):
        inspection = library.inspect(Question(text=text, gates={"cross/0/0": 0.0}))
        log = inspection["log_probability"]
        cells = page.locator(".others tbody tr").nth(row).locator("th, td")
        page.wait_for_function(
            "row => row.children.length === 4", arg=cells.first.locator("..").element_handle()
        )
        assert cells.nth(0).inner_text() == text
        assert cells.nth(1).inner_text() == inspection["old_output"]
        change = float(cells.nth(3).inner_text().replace("−", "-"))
        assert change == pytest.approx(log["old_output_now"] - log["old_output"], abs=0.006)
    assert page.locator(".others tbody tr").count() == 3
    assert "other=e+f&other=b" in page.url
    settled(page)
    assert serious(page) == []


def test_a_pair_of_prompts_shares_a_table(visit: Any) -> None:
    model = asker("gpt2")
    library = Session(copy.deepcopy(model))
    page = visit(served(Session(model)) + "#text=a+b+c&other=d+e+f&off=decoder-self/0/0")
    page.locator("table.next thead th").nth(4).wait_for()
    titles = page.locator("table.next thead th").all_inner_texts()
    assert titles[3:] == ["other text", "other, with your changes"]
    for row in library.inspect(Question(text="d e f", gates={"decoder-self/0/0": 0.0}))["next"][:3]:
        line = page.locator("table.next tbody tr", has=page.get_by_text(row["token"], exact=True))
        shares = line.locator("td").all_inner_texts()[2:]
        for share, expected in zip(shares, (row["before"], row["after"]), strict=True):
            assert float(share.split("\u202f")[0]) == pytest.approx(100 * expected, rel=0.05)


def test_an_embedding_model_is_compared_with_its_pruned_one(visit: Any) -> None:
    model = embedder()
    mask = hw.HeadMask.full(model.heads).without([hw.Head("encoder-self", 1, 0)])
    pruned = model.only(mask)
    library = Session(copy.deepcopy(model), copy.deepcopy(pruned))
    session = Session(model, pruned)
    session.about |= {"title": "tiny-embedder", "run": "small"}
    page = visit(served(session) + "#text=a+b+c+d+e")
    total = model.heads.total
    which, other = page.locator("header .kicker").all_inner_texts()
    assert (
        which
        == f"tiny-embedder · full model of the run small · a model of embeddings · {total} heads"
    )
    assert other.startswith(f"Its pruned model has {total - 1} of the {total} heads")

    page.locator("table.effects").wait_for()
    assert page.locator("table.effects thead th").all_inner_texts() == ["head", "similarity"]
    done = page.locator(".guide .done")
    assert done.count() == 0
    page.get_by_role("button", name="Switch it off").click()
    page.get_by_label("compare with the pruned model").check()
    page.locator(".similarity.pruned").wait_for()
    expected = library.inspect(Question(text="a b c d e", model="pruned"))["similarity"]
    assert float(page.locator(".similarity.pruned").inner_text()) == pytest.approx(
        expected, abs=1e-4
    )
    steps = page.locator(".guide li").all_inner_texts()
    assert [step.startswith("✓") for step in steps] == [True, True, True]
    assert not any("smallest set" in step for step in steps)
    settled(page)
    assert serious(page) == []


def test_the_badge_of_a_role_opens_its_evidence(visit: Any, address: str) -> None:
    page = visit(address + "#head=cross/0/0")
    settled(page)
    page.locator(".small button.role").first.click()
    page.locator(".picked h2", has_text="cross/0/1").wait_for()
    assert "nsubj" in page.locator(".about-head").inner_text()


def test_the_first_steps_are_shown_once(visit: Any, address: str) -> None:
    page = visit(address)
    steps = page.locator(".guide li")
    assert steps.count() == 3
    page.locator(".effect").first.wait_for()
    assert page.locator(".small .pick").first.bounding_box()["y"] < 640, "heads in the first screen"
    other = visit(address + "#text=a+b&off=cross/0/1&head=cross/0/1")  # of somebody else
    settled(other)
    assert other.locator(".guide .done").count() == 0
    page.locator("[data-head='cross/0/0']").click()
    page.locator("[data-switch='cross/0/0']").click()
    page.locator(".guide .done").nth(1).wait_for()
    page.get_by_role("button", name="Hide these steps").click()
    assert steps.count() == 0
    page.reload()
    page.locator("[data-head] canvas").first.wait_for()
    assert steps.count() == 0
    settled(page)
