"""Downloads from a local server that can interrupt, lie, shorten and refuse; and the catalogue itself."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headwise.data import catalogue as module
from headwise.data.catalogue import Entry, RemoteFile, catalogue, get, listing
from headwise.errors import HeadwiseError

CONTENT = random.Random(5).randbytes(300_000)


@dataclass
class Server:
    """What the local server serves as /set/data.bin, how it misbehaves, and the requests it received."""

    content: bytes = CONTENT
    ranges: bool = True  # understands Range
    break_after: list[int] = field(
        default_factory=list
    )  # for each answer in turn, bytes sent before it hangs up
    length: bool = True  # says how long the body is
    requested: list[str] = field(default_factory=list)  # the Range header of every request
    url: str = ""

    def entry(self, **changes: object) -> Entry:
        file = RemoteFile(
            "data.bin",
            f"{self.url}/set/data.bin",
            len(CONTENT),
            hashlib.sha256(CONTENT).hexdigest(),
        )
        return Entry("set", "made up", "none", ("nowhere @ 0",), (replace(file, **changes),))  # type: ignore[arg-type]


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            server.requested.append(wanted)
            start = (
                int(wanted.removeprefix("bytes=").removesuffix("-"))
                if wanted and server.ranges
                else 0
            )
            if self.path != "/set/data.bin":
                self.send_error(404)
                return
            if start >= len(server.content):
                self.send_error(416)
                return
            body = server.content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header(
                    "Content-Range",
                    f"bytes {start}-{len(server.content) - 1}/{len(server.content)}",
                )
            if server.length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: server.break_after.pop(0)] if server.break_after else body)
            self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(
        "pooch.core.time.sleep", lambda seconds: None
    )  # pooch waits between its tries
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
    return {path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def one_sentence(error: pytest.ExceptionInfo[HeadwiseError]) -> str:
    text = str(error.value)
    assert "\n" not in text and text.endswith(".") and ". " not in text, text
    return text


def test_a_whole_file_arrives_and_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    home = get("set", tmp_path, lambda *step: seen.append(step), [server.entry()])
    assert home == tmp_path / "set"
    assert (home / "data.bin").read_bytes() == CONTENT
    assert seen[-1] == ("data.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen}), (
        "progress only grows"
    )
    get("set", tmp_path, entries=[server.entry()])
    assert server.requested == [""]
    assert left_in(tmp_path) == {"data.bin"}


def test_a_complete_folder_needs_no_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.bin").write_bytes(CONTENT)
    get("set", tmp_path, entries=[server.entry(url="http://127.0.0.1:9/data.bin")])
    assert not (tmp_path / "set" / ".lock").exists(), "a folder one may only read is enough"


def test_a_changed_file_is_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.bin").write_bytes(b"something else")
    get("set", tmp_path, entries=[server.entry()])
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT


def test_a_part_is_continued_from_where_it_stopped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.bin.part").write_bytes(CONTENT[:100_001])
    get("set", tmp_path, entries=[server.entry()])
    assert server.requested == ["bytes=100001-"]
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT
    assert left_in(tmp_path) == {"data.bin"}


def test_a_finished_part_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.bin.part").write_bytes(CONTENT)
    get("set", tmp_path, entries=[server.entry()])
    assert server.requested == []
    assert left_in(tmp_path) == {"data.bin"}


@pytest.mark.parametrize("length", [True, False])
def test_a_broken_connection_is_resumed(server: Server, tmp_path: Path, length: bool) -> None:
    server.length = length
    server.break_after = [2 * module.CHUNK, module.CHUNK]
    get("set", tmp_path, entries=[server.entry()])
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT
    assert server.requested == ["", f"bytes={2 * module.CHUNK}-", f"bytes={3 * module.CHUNK}-"]


def test_a_connection_that_keeps_breaking_leaves_the_part_for_the_next_run(
    server: Server, tmp_path: Path
) -> None:
    server.break_after = [module.CHUNK + 10] * 3  # a chunk that is not whole is asked for again
    with pytest.raises(HeadwiseError) as error:
        get("set", tmp_path, entries=[server.entry()])
    assert "data.bin stopped at 196,608 of 300,000 bytes" in one_sentence(error)
    assert left_in(tmp_path) == {"data.bin.part"}
    get("set", tmp_path, entries=[server.entry()])
    assert server.requested[-1] == "bytes=196608-"
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_from_the_beginning(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.break_after = [module.CHUNK]
    get("set", tmp_path, entries=[server.entry()])
    assert server.requested == ["", f"bytes={module.CHUNK}-"]
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT


def test_a_corrupted_file_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:5000] + b"!" + CONTENT[5001:]
    with pytest.raises(HeadwiseError) as error:
        get("set", tmp_path, entries=[server.entry()])
    text = one_sentence(error)
    assert hashlib.sha256(CONTENT).hexdigest() in text
    assert hashlib.sha256(server.content).hexdigest() in text
    assert "data.bin" in text
    assert left_in(tmp_path) == set()


@pytest.mark.parametrize(("size", "requested"), [(1000, ["bytes=1000-", ""]), (400_000, [""])])
def test_a_part_of_another_file_heals_itself(
    server: Server, tmp_path: Path, size: int, requested: list[str]
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.bin.part").write_bytes(b"x" * size)
    get("set", tmp_path, entries=[server.entry()])
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT
    assert server.requested == requested, (
        "the joined file is wrong, so the second try starts from zero"
    )


@pytest.mark.parametrize("length", [True, False])
def test_a_truncated_file_is_refused_and_removed(
    server: Server, tmp_path: Path, length: bool
) -> None:
    server.content = CONTENT[:200_000]
    server.length = length
    with pytest.raises(HeadwiseError) as error:
        get("set", tmp_path, entries=[server.entry()])
    assert (
        "data.bin is truncated and was removed: expected 300,000 bytes, found 200,000"
        in one_sentence(error)
    )
    assert server.requested == ([""] if length else ["", "bytes=200000-"]), (
        "a complete answer is not requested again"
    )
    assert left_in(tmp_path) == set()


def test_a_file_the_server_does_not_have(server: Server, tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError, match=r"data\.bin: it answered 404"):
        get("set", tmp_path, entries=[server.entry(url=f"{server.url}/moved.bin")])
    assert server.requested == [""], "asking again would not help"
    assert left_in(tmp_path) == set()


def test_no_server_is_one_sentence_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(HeadwiseError) as error:
        get("set", tmp_path, entries=[Server(url=f"http://127.0.0.1:{port}").entry()])
    assert f"Cannot reach 127.0.0.1:{port} to download data.bin" in one_sentence(error)
    assert time.monotonic() - start < 1
    assert left_in(tmp_path) == set()


def test_a_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HeadwiseError) as error:
        get("set", tmp_path / "file", entries=[server.entry()])
    assert "Cannot keep 'set' in" in one_sentence(error)


def test_a_file_without_checksum_is_named_in_a_warning(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entry = server.entry(sha256=None, bytes=200_000)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.bin.part").write_bytes(CONTENT[:1000])
    with caplog.at_level(logging.WARNING):
        get("set", tmp_path, entries=[entry])
    assert "set: no checksum is known for data.bin" in caplog.text
    assert server.requested == [""], "a continuation could not be checked"
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT
    assert entry.unchecked == ("data.bin",)


def test_without_a_checksum_that_of_the_first_download_is_kept(
    server: Server, tmp_path: Path
) -> None:
    entry, file = server.entry(sha256=None), tmp_path / "set" / "data.bin"
    get("set", tmp_path, entries=[entry])
    assert (
        tmp_path / "set" / "data.bin.sha256"
    ).read_text() == f"{hashlib.sha256(CONTENT).hexdigest()}  data.bin\n"
    file.write_bytes(CONTENT[:-1])
    get("set", tmp_path, entries=[entry])
    assert file.read_bytes() == CONTENT, "a file that changed here is fetched again"
    file.write_bytes(CONTENT[:-1])
    server.content = CONTENT[::-1]
    with pytest.raises(
        HeadwiseError, match=f"damaged .* expected SHA-256 {hashlib.sha256(CONTENT).hexdigest()}"
    ):
        get("set", tmp_path, entries=[entry])


@pytest.mark.parametrize("known", [True, False])
def test_no_more_arrives_than_was_promised(server: Server, tmp_path: Path, known: bool) -> None:
    server.content = bytes(20 << 20)
    server.length = False
    with pytest.raises(HeadwiseError) as error:
        get("set", tmp_path, entries=[server.entry() if known else server.entry(sha256=None)])
    assert "data.bin is too long and was removed: expected 300,000 bytes" in one_sentence(error)
    assert server.requested == [""] and left_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": "../../x"}, "0.name"),
        ({"name": "/etc/x"}, "0.name"),
        ({"name": ".."}, "0.name"),
        (
            {"files": [{"name": "../x", "url": "https://a/x", "bytes": 5, "sha256": None}]},
            "0.files.0.name",
        ),
        (
            {"files": [{"name": "a\\b", "url": "https://a/x", "bytes": 5, "sha256": None}]},
            "0.files.0.name",
        ),
        (
            {"files": [{"name": "x", "url": "file:///etc/x", "bytes": 5, "sha256": None}]},
            "0.files.0.url",
        ),
        (
            {"files": [{"name": "x", "url": "https://a/x", "bytes": -1, "sha256": None}]},
            "0.files.0.bytes",
        ),
        (
            {"files": [{"name": "x", "url": "https://a/x", "bytes": 5, "sha256": "abc"}]},
            "0.files.0.sha256",
        ),
        ({"files": 5}, "0.files"),
    ],
)
def test_a_list_that_leads_out_of_its_folder_is_refused(
    tmp_path: Path, change: dict[str, object], where: str
) -> None:
    entry = {"name": "set", "content": "", "licence": "", "origin": [], "files": []}
    path = tmp_path / "list.json"
    path.write_text(json.dumps([entry]))
    assert [one.name for one in catalogue(path)] == ["set"]
    path.write_text(json.dumps([entry | change]))
    with pytest.raises(HeadwiseError, match=f"cannot be used as a catalogue: {where}: "):
        catalogue(path)


def test_several_at_once_do_not_disturb_each_other(server: Server, tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=get, args=("set", tmp_path, None, [server.entry()]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "set" / "data.bin").read_bytes() == CONTENT
    assert server.requested == [""], "the others waited and found the file"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(HeadwiseError) as error:
        get("multi30")
    assert (
        "(did you mean 'multi30k'?); it has multi30k, ud_english_ewt, ud_english_gum, pud"
        in one_sentence(error)
    )


def test_the_catalogue_is_whole() -> None:
    entries = catalogue()
    assert [entry.name for entry in entries] == [
        "multi30k",
        "ud_english_ewt",
        "ud_english_gum",
        "pud",
    ]
    for entry in entries:
        assert entry.licence and entry.content and entry.origin
        assert len({file.name for file in entry.files}) == len(entry.files)
        commits = [origin.split(" @ ")[1] for origin in entry.origin]
        for file in entry.files:
            assert any(f"/{commit}/" in file.url for commit in commits), (
                "an address names a commit, never a branch"
            )
            assert file.url.startswith("https://") and file.url.endswith("/" + file.name)
            assert file.sha256 is None or len(file.sha256) == 64
    assert [name for entry in entries for name in entry.unchecked] == [
        "en_ewt-ud-train.conllu",
        "en_gum-ud-train.conllu",
    ]


def test_the_catalogue_agrees_with_the_published_list(data_dir: Path) -> None:
    published = {item["url"]: item for item in json.loads((data_dir / "upstream.json").read_text())}
    files = [file for entry in catalogue() for file in entry.files]
    assert {file.url for file in files} == set(published)
    for file in files:
        assert file.bytes == published[file.url]["bytes"]
        assert file.sha256 == (
            None if "note" in published[file.url] else published[file.url]["sha256"]
        )


def test_real_files_are_recognised_without_network(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module.requests, "get", lambda *_, **__: pytest.fail("nothing had to be fetched")
    )
    assert get("multi30k", data_dir) == data_dir / "multi30k"


def test_the_listing_counts_what_is_here(tmp_path: Path) -> None:
    (tmp_path / "pud").mkdir()
    (tmp_path / "pud" / "en_pud-ud-test.conllu").touch()
    rows = {row["name"]: row for row in listing(tmp_path)}
    assert rows["pud"] == {
        "name": "pud",
        "content": catalogue()[3].content,
        "files": 4,
        "here": 1,
        "MiB": 6.5,
        "checksums": 4,
        "licence": "CC BY-SA 3.0",
    }
    assert rows["ud_english_gum"]["checksums"] == 2
    assert rows["multi30k"]["here"] == 0
