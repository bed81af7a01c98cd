"""Downloads from a local server that can hang up, lie, shorten and refuse; and the catalogue itself."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headwise.data import catalogue as module
from headwise.data.catalogue import DataSet, RemoteFile, catalogue, get, listing
from refusals import refuses

CONTENT = random.Random(5).randbytes(300_000)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Server:
    """What the local server serves as /set/data.bin, how it misbehaves, and the requests it received."""

    content: bytes = CONTENT
    break_after: int | None = None  # bytes sent before an answer hangs up
    length: bool = True  # says how long the body is
    requests: int = 0
    url: str = ""

    def entry(self, **changes: object) -> DataSet:
        file = RemoteFile("data.bin", f"{self.url}/set/data.bin", len(CONTENT), sha256(CONTENT))
        return DataSet("set", "made up", "none", ("nowhere @ 0",), (replace(file, **changes),))  # type: ignore[arg-type]


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests += 1
            if self.path != "/set/data.bin":
                self.send_error(404)
                return
            self.send_response(200)
            if server.length:
                self.send_header("Content-Length", str(len(server.content)))
            self.end_headers()
            self.wfile.write(server.content[: server.break_after])
            self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    state = Server()
    web = ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    state.url = f"http://127.0.0.1:{web.server_port}"
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield state
    web.shutdown()
    web.server_close()
    thread.join()


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def put(folder: Path, content: bytes) -> Path:
    """The file of the set, as it was left by an earlier run."""
    (folder / "set").mkdir()
    (folder / "set" / "data.bin").write_bytes(content)
    return folder


def fetch(server: Server, folder: Path, **changes: object) -> bytes:
    return (get("set", folder, entries=[server.entry(**changes)]) / "data.bin").read_bytes()


def test_a_whole_file_arrives_and_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    home = get("set", tmp_path, [server.entry()])
    assert home == tmp_path / "set"
    assert (home / "data.bin").read_bytes() == CONTENT
    fetch(server, tmp_path)
    assert server.requests == 1
    assert left_in(tmp_path) == {"data.bin"}


def test_a_complete_folder_needs_no_network(server: Server, tmp_path: Path) -> None:
    fetch(server, put(tmp_path, CONTENT), url="http://127.0.0.1:9/data.bin")


def test_a_changed_file_is_fetched_again(server: Server, tmp_path: Path) -> None:
    assert fetch(server, put(tmp_path, b"something else")) == CONTENT


def test_a_broken_connection_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.break_after = 200_000
    refuses(
        lambda: fetch(server, tmp_path), "data.bin could not be downloaded … the same command again"
    )
    assert left_in(tmp_path) == set()
    server.break_after = None
    assert fetch(server, tmp_path) == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:5000] + b"!" + CONTENT[5001:], CONTENT[:200_000]])
@pytest.mark.parametrize("length", [True, False])
def test_a_corrupted_file_is_refused_and_removed(
    server: Server, tmp_path: Path, content: bytes, length: bool
) -> None:
    """Or one that is cut off, whether or not the server says how long it is."""
    server.content, server.length = content, length
    refuses(
        lambda: fetch(server, tmp_path), f"data.bin is damaged and was removed … {sha256(CONTENT)}"
    )
    assert left_in(tmp_path) == set()


@pytest.mark.parametrize("known", [True, False])
def test_no_more_arrives_than_was_promised(server: Server, tmp_path: Path, known: bool) -> None:
    server.content, server.length = bytes(20 << 20), False
    words = "data.bin is too long and was removed: expected 300,000 bytes"
    refuses(lambda: fetch(server, tmp_path, **({} if known else {"sha256": None})), words)
    assert left_in(tmp_path) == set()


def test_a_file_the_server_does_not_have(server: Server, tmp_path: Path) -> None:
    moved = f"{server.url}/moved.bin"
    refuses(lambda: fetch(server, tmp_path, url=moved), "data.bin: it answered 404")
    assert left_in(tmp_path) == set()


def test_no_server_is_one_sentence_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    nobody = Server(url=f"http://127.0.0.1:{port}")
    refuses(
        lambda: fetch(nobody, tmp_path), f"data.bin could not be downloaded from 127.0.0.1:{port}"
    )
    assert time.monotonic() - start < 1
    assert left_in(tmp_path) == set()


def test_a_file_without_checksum_is_named_in_a_warning(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entry = server.entry(sha256=None, bytes=200_000)
    with caplog.at_level(logging.WARNING):
        get("set", tmp_path, entries=[entry])
    assert "set: no checksum is known for data.bin" in caplog.text
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT


def test_several_at_once_do_not_disturb_each_other(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda _: fetch(server, tmp_path), range(4))
    assert [*found] == [CONTENT] * 4
    assert left_in(tmp_path) == {"data.bin"}


def test_the_catalogue_is_whole() -> None:
    """An address names a commit, never a branch."""
    entries = catalogue()
    names = [entry.name for entry in entries]
    assert names == ["multi30k", "ud_english_ewt", "ud_english_gum", "pud"]
    for entry in entries:
        assert entry.licence and entry.content and entry.origin
        assert len({file.name for file in entry.files}) == len(entry.files)
        commits = [origin.split(" @ ")[1] for origin in entry.origin]
        for file in entry.files:
            assert any(f"/{commit}/" in file.url for commit in commits)
            assert file.url.startswith("https://") and file.url.endswith("/" + file.name)
            assert file.sha256 is None or len(file.sha256) == 64
    unchecked = [file.name for entry in entries for file in entry.files if file.sha256 is None]
    assert unchecked == ["en_ewt-ud-train.conllu", "en_gum-ud-train.conllu"]


def test_the_catalogue_agrees_with_the_published_list(data_dir: Path) -> None:
    published = {item["url"]: item for item in json.loads((data_dir / "upstream.json").read_text())}
    files = [file for entry in catalogue() for file in entry.files]
    assert {file.url for file in files} == set(published)
    for file in files:
        facts = published[file.url]
        assert file.bytes == facts["bytes"]
        assert file.sha256 == (None if "note" in facts else facts["sha256"])


def test_real_files_are_recognised_without_network(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.pooch, "HTTPDownloader", lambda **_: pytest.fail)
    assert get("multi30k", data_dir) == data_dir / "multi30k"


def test_the_listing_counts_what_is_here(tmp_path: Path) -> None:
    (tmp_path / "pud").mkdir()
    (tmp_path / "pud" / "en_pud-ud-test.conllu").touch()
    rows = {row["name"]: row for row in listing(tmp_path)}
    assert rows["pud"].pop("content") == catalogue()[3].content
    assert rows["pud"].pop("licence") == "CC BY-SA 3.0"
    assert rows["pud"] == {"name": "pud", "files": 4, "here": 1, "MiB": 6.5, "checksums": 4}
    assert rows["ud_english_gum"]["checksums"] == 2
    assert rows["multi30k"]["here"] == 0
