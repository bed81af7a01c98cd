"""The lab's server without a browser: answers, and everything that it refuses."""

from __future__ import annotations

import json
import math
import queue
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

from headwise.core.errors import HeadwiseError
from headwise.core.folders import sha256
from headwise.faces.lab import connection, server
from headwise.faces.lab.guard import host_names
from headwise.faces.lab.server import BODY, application, listening, serve
from headwise.faces.lab.session import CancelToken, Question, Session
from models.tasks.askers import asker
from own_process import Running, headwise

testclient = pytest.importorskip("fastapi.testclient", reason="fastapi or httpx is not installed")
TOKEN, HOST = "secret", "http://127.0.0.1:8000"
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'&<b>",
    "שלום עולם",
    "👩‍👩‍👧 a\u0301\u200b\u202e",
    "x" * 10_000,
    "\x00\x07",
]


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(asker("marian"))


@pytest.fixture
def client(session: Session) -> Iterator[Any]:
    yield testclient.TestClient(
        application(session, TOKEN, host_names("127.0.0.1", 8000)), base_url=HOST
    )


@pytest.fixture
def address(session: Session) -> str:
    """Of a server in a thread."""
    said: queue.Queue[str] = queue.Queue()
    words = (session, "127.0.0.1", 0, False, said.put)
    threading.Thread(target=serve, args=words, daemon=True).start()
    return said.get(timeout=30)


def ask(client: Any, name: str, **question: Any) -> list[dict[str, Any]]:
    # Not by `json=`, which cannot send half of a character.
    kind = {"content-type": "application/json"}
    reply = client.post(f"/{TOKEN}/ask/{name}", content=json.dumps(question), headers=kind)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def test_answers_are_the_library_s(client: Any, session: Session) -> None:
    answer = ask(client, "inspect", text="a b c", gates={"cross/0/1": 0.5}, ablation="mean")[-1][
        "answer"
    ]
    question = Question(text="a b c", gates={"cross/0/1": 0.5}, ablation="mean")
    ours = Session(session.model).inspect(question)
    for timed in (answer, ours):
        del timed["head_effects_seconds"]
    assert answer == json.loads(json.dumps(ours))
    *progress, last = ask(client, "head_effects", text="a b c")
    assert progress and all(0 <= line["progress"] <= 1 for line in progress)
    assert len(last["answer"]["total"]) == session.model.heads.total
    about = ask(client, "about")[-1]["answer"]
    assert (about["task"], about["noun"]) == ("translation", "a translation model")
    assert ask(client, "smallest", text="a b c")[-1]["answer"]["old_output"] == answer["old_output"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(client: Any, text: str) -> None:
    last = ask(client, "inspect", text=text)[-1]
    assert "answer" in last or "type" in last["error"]
    if text == HOSTILE[0]:
        assert last["answer"]["source"]["tokens"]


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"text": 3},
        {"text": "a", "beam": 0},
        {"text": "a", "beam": 10**9},
        {"text": "a", "ablation": "none"},
        {"text": "a", "gates": {"cross/0/0": -1}},
        {"text": "a", "gates": {"../../etc": 0}},
        {"text": "a", "more": 1},
        {"text": "a", "model": "pruned"},
        {"text": ""},
        {"text": "\ud800"},
        {"text": "a", "gates": {"\ud800": 0}},
        {"text": "a", "\ud800": 0},
    ],
)
def test_a_wrong_question_gets_a_sentence(client: Any, question: dict[str, Any]) -> None:
    (line,) = ask(client, "inspect", **question)
    assert list(line) == ["error"] and line["error"].endswith(".")
    assert "answer" in ask(client, "inspect", text="a")[-1]


def test_an_unknown_question_gets_a_sentence(client: Any) -> None:
    assert "Unknown request" in ask(client, "delete", text="a")[-1]["error"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 403),
        ("/wrong/", {}, 403),
        ("/wrong/lab.js", {}, 403),
        ("/" + TOKEN[:-1] + "/", {}, 403),
        (f"/{TOKEN}/", {"Host": "evil.example"}, 421),
        (f"/{TOKEN}/", {"Host": "127.0.0.1:9999"}, 421),
        (f"/{TOKEN}/", {"Host": "127.0.0.1.evil.example:8000"}, 421),
        (f"/{TOKEN}/", {"Origin": "http://evil.example"}, 403),
        (f"/{TOKEN}/", {"Origin": "null"}, 403),
        (f"/{TOKEN}/", {"Sec-Fetch-Site": "cross-site"}, 403),
        (f"/{TOKEN}/../server.py", {}, 403),
        (f"/{TOKEN}/..%2fserver.py", {}, 404),
        (f"/{TOKEN}/nothing.js", {}, 404),
        (f"/{TOKEN}/", {}, 200),
        (f"/{TOKEN}/", {"Host": "localhost:8000"}, 200),
        (f"/{TOKEN}/vendor/preact-htm.js", {"Origin": HOST}, 200),
    ],
)
def test_only_its_own_page_with_the_token_is_let_in(
    client: Any, path: str, headers: dict[str, str], status: int
) -> None:
    reply = client.get(path, headers=headers)
    assert reply.status_code == status
    assert (
        "script-src 'self'" in reply.headers["content-security-policy"]
        and "unsafe" not in reply.headers["content-security-policy"]
    )


def test_what_is_no_question_is_refused(client: Any) -> None:
    path = f"/{TOKEN}/ask/inspect"
    assert (
        client.post(
            path, content=b'{"text": "a"}', headers={"content-type": "text/plain"}
        ).status_code
        == 415
    )
    assert (
        client.post(
            path, content=b"[" * 100_000, headers={"content-type": "application/json"}
        ).status_code
        == 400
    )
    assert client.post(path, json={"text": "a" * BODY}).status_code == 413
    assert client.get(path).status_code in (404, 405)
    assert client.post(f"/{TOKEN}/", json={}).status_code == 405


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("you tried to allocate 9 GB")],
)
def test_without_memory_the_server_lives_on(
    client: Any, session: Session, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(session, "inspect", fail)
        assert "memory" in ask(client, "inspect", text="a")[-1]["error"]
    assert "answer" in ask(client, "inspect", text="a")[-1]


def test_a_slow_question_is_stopped_and_the_server_lives_on(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as quick:
        quick.setitem(server.SECONDS, "head_effects", 0.0)
        assert "longer than" in ask(client, "head_effects", text="a b c d")[-1]["error"]
    assert "answer" in ask(client, "head_effects", text="a b c d")[-1]


def test_an_unforeseen_error_is_logged_and_the_server_lives_on(
    client: Any, session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(session, "inspect", lambda *_: 1 / 0)
        assert "ZeroDivisionError" in ask(client, "inspect", text="a")[-1]["error"]
    assert "A question failed" in caplog.text
    assert "answer" in ask(client, "inspect", text="a")[-1]


def test_a_number_that_is_not_finite_gets_a_sentence(
    client: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(session, "inspect", lambda *_: {"similarity": math.nan})
        assert "not finite" in ask(client, "inspect", text="a")[-1]["error"]
    assert "answer" in ask(client, "inspect", text="a")[-1]


@pytest.mark.parametrize("host", ["::1", "127.0.0.2", "localhost", "LOCALHOST"])
def test_the_address_that_is_announced_answers(session: Session, host: str) -> None:
    try:
        listening(host, 0).close()
    except HeadwiseError:
        pytest.skip(f"this machine has no {host}")
    said: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve, args=(session, host, 0, False, said.put), daemon=True).start()
    assert requests.get(said.get(timeout=30), timeout=10).status_code == 200


def test_a_host_s_capitals_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Lab-PC")
    monkeypatch.setattr(socket, "getfqdn", lambda: "Lab-PC.Example.org")
    ours = host_names("Lab.Example.org", 80)
    for name in ("lab-pc", "LAB-PC", "lab-pc.example.org", "lab.example.org"):
        assert ours(f"{name}:80")


def test_loopback_only_unless_asked() -> None:
    loopback, beyond = host_names("127.0.0.1", 80), host_names("0.0.0.0", 80)
    assert loopback("127.0.0.1:80") and loopback("localhost") and loopback("[::1]:80")
    assert not any(
        loopback(name)
        for name in ("192.168.0.7:80", "evil.example:80", "", ":80", "127.0.0.1:80:80")
    )
    assert beyond("192.168.0.7:80") and not beyond("evil.example:80")
    with listening("127.0.0.1", 0) as opened:
        assert opened.getsockname()[0] == "127.0.0.1"
        opened.listen()
        with pytest.raises(HeadwiseError, match="another --port"):
            listening("127.0.0.1", opened.getsockname()[1])


def test_the_page_names_no_other_place_and_has_no_inline_script() -> None:
    for path in sorted((Path(server.__file__).parent / "page").rglob("*")):
        if path.suffix in (".html", ".js", ".css"):
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
            assert (
                not re.search(
                    r"https?://|dangerouslySetInnerHTML=|\.innerHTML\s*=\s*[`\"']|eval\(", text
                )
                or path.parent.name == "vendor"
            ), path
            assert (
                not re.search(r"<script(?![^>]*\ssrc=)|\son\w+=\"", text) or path.suffix != ".html"
            )


def test_one_who_leaves_stops_the_work(
    session: Session, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def endless(question: Question, cancel: CancelToken, progress: Any) -> None:
        try:
            while True:
                cancel.raise_if_cancelled()
                progress(0.5, "on and on")
                time.sleep(0.05)
        finally:
            ended.set()

    monkeypatch.setattr(session, "head_effects", endless)
    with requests.post(
        f"{address}ask/head_effects", json={"text": "a"}, stream=True, timeout=10
    ) as reply:
        assert b"on and on" in next(reply.iter_lines())
    assert ended.wait(10)
    assert (
        b"answer" in requests.post(f"{address}ask/inspect", json={"text": "a"}, timeout=10).content
    )


def test_idle_connections_shut_nobody_out(address: str) -> None:
    """420 of them, without a token, are more than all that the server has."""
    port = int(address.split(":")[2].split("/")[0])
    idle = []
    for _ in range(420):
        idle.append(socket.create_connection(("127.0.0.1", port), timeout=10))
    try:
        for _ in range(3):
            assert requests.get(address, timeout=10).status_code == 200
    finally:
        for one in idle:
            one.close()


def test_headers_must_arrive_in_time(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a second request on a connection."""
    monkeypatch.setattr(connection, "HEADERS_SECONDS", 0.3)
    port = int(address.split(":")[2].split("/")[0])
    get = b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port
    for sent in (b"", b"GET / HTTP/1.1\r\nHos", get, get + b"GET /"):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
            one.sendall(sent)
            while one.recv(4096):
                pass  # an answer, and then the end
    assert requests.get(address, timeout=10).status_code == 200


def test_the_vendored_library_is_as_it_was_published() -> None:
    folder = Path(server.__file__).parent / "page" / "vendor"
    said = (folder / "LICENSES.txt").read_text(encoding="utf-8")
    assert f"sha256 of preact-htm.js: {sha256(folder / 'preact-htm.js')}" in said


def test_the_command_says_its_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    model = asker("gpt2").save(tmp_path / "tiny")
    process = Running(tmp_path / "process", headwise, "lab", model, "--no-open")
    said = tmp_path / "process/out"
    process.wait_until(lambda: said.exists() and said.read_text().endswith("\n"))
    address = said.read_text().strip()
    page = requests.get(address, timeout=10)
    assert page.status_code == 200 and "headwise lab" in page.text
    assert requests.get(address.rsplit("/", 2)[0] + "/", timeout=10).status_code == 403
    process.send(signal.SIGINT)
    assert process.end()[0] == 130
