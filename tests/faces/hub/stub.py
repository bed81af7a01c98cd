"""A hub on the loopback address that keeps what it is sent: repositories, commits, large files, downloads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".onnx", ".gguf")


class Hub(ThreadingHTTPServer):
    """files: by repository, the bytes by name. refused: the status that writing gets. asked: every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}
        self.refused: int | None = None
        self.ignored: set[str] = set()
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def written(self) -> list[str]:
        return [line for line in self.asked if not line.startswith(("GET", "HEAD"))]

    def commit(self, repo: str) -> str:
        state = sorted(
            (name, hashlib.sha1(data).hexdigest()) for name, data in self.files[repo].items()
        )
        return hashlib.sha1(json.dumps(state).encode()).hexdigest()


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, status: int, body: Any = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            self.describe(found[1])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/.*", path):
            self.reply(
                200, [self.entry(name, data) for name, data in self.server.files[found[1]].items()]
            )
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self.download(found[1], found[2])
        else:
            self.reply(404, {"error": "not here"}, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET

    def describe(self, repo: str) -> None:
        if repo not in self.server.files:
            self.reply(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return
        siblings = [
            {"rfilename": name, **self.entry(name, data)}
            for name, data in self.server.files[repo].items()
        ]
        for sibling in siblings:
            sibling["blobId"] = sibling["oid"]
        self.reply(
            200,
            {
                "id": repo,
                "modelId": repo,
                "sha": self.server.commit(repo),
                "siblings": siblings,
                "tags": [],
            },
        )

    def entry(self, name: str, data: bytes) -> dict[str, Any]:
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        digest = hashlib.sha256(data).hexdigest()
        lfs = {"sha256": digest, "oid": digest, "size": len(data), "pointerSize": 130}
        facts = {"type": "file", "path": name, "size": len(data), "oid": oid}
        return {**facts, "lfs": lfs} if name.endswith(LARGE) else facts

    def download(self, repo: str, name: str) -> None:
        data = self.server.files.get(repo, {}).get(name)
        if data is None:
            self.reply(404, {"error": "not here"}, X_Error_Code="EntryNotFound")
            return
        self.reply(
            200,
            data,
            ETag=f'"{hashlib.sha256(data).hexdigest()}"',
            X_Repo_Commit=self.server.commit(repo),
        )

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_PUT(self) -> None:
        self.server.asked.append(f"PUT {self.path}")
        self.server.large[self.path.rpartition("/")[2]] = self.body()
        self.reply(200)

    def do_POST(self) -> None:
        self.server.asked.append(f"POST {self.path}")
        path, body = unquote(urlsplit(self.path).path), self.body()
        if path == "/api/validate-yaml":
            self.reply(200, {"errors": [], "warnings": []})
            return
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.server.refused:
            self.reply(self.server.refused, {"error": "no"})
        elif path == "/api/repos/create":
            made = json.loads(body)
            repo = f"{made['organization']}/{made['name']}"
            self.server.private[repo] = made.get("visibility") == "private" or bool(
                made.get("private")
            )
            self.server.files[repo] = {".gitattributes": b"*.safetensors filter=lfs\n"}
            self.reply(200, {"url": f"{self.server.url}/{repo}"})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            self.reply(200, {"files": [self.mode(file["path"]) for file in files]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            self.reply(200, {"transfer": "basic", "objects": [self.place(one) for one in objects]})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            self.keep(found[1], [json.loads(line) for line in body.splitlines()])
        else:
            self.reply(404, {"error": "not here"})

    def mode(self, name: str) -> dict[str, Any]:
        kind = "lfs" if name.endswith(LARGE) else "regular"
        return {
            "path": name,
            "uploadMode": kind,
            "shouldIgnore": name in self.server.ignored,
            "oid": None,
        }

    def place(self, one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "actions": {"upload": {"href": f"{self.server.url}/large/{one['oid']}"}}}

    def keep(self, repo: str, lines: list[dict[str, Any]]) -> None:
        parent = lines[0]["value"].get("parentCommit")
        if parent not in (None, self.server.commit(repo)):
            self.reply(412, {"error": "changed meanwhile"})
            return
        for line in lines[1:]:
            file = line["value"]
            data = (
                base64.b64decode(file["content"])
                if line["key"] == "file"
                else self.server.large[file["oid"]]
            )
            self.server.files[repo][file["path"]] = data
        oid = self.server.commit(repo)
        self.reply(
            200,
            {
                "success": True,
                "commitOid": oid,
                "commitUrl": f"{self.server.url}/{repo}/commit/{oid}",
            },
        )


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
