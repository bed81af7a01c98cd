"""The server of the lab: a page, and questions about one model that are answered in turns.

It is for this machine: it binds loopback unless asked otherwise, every address begins with a secret token, `Host` and
`Origin` must be its own, and the page may load nothing from anywhere else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headwise.errors import HeadwiseError
from headwise.lab.bench import Bench
from headwise.lab.smallest import smallest
from headwise.lab.story import story
from headwise.lab.turns import Turns, Work
from headwise.model import Model
from headwise.report.run import Run
from headwise.report.theme import COLOURS, DARK, FONT, LIGHT, SCALES

BODY = 1 << 17  # bytes of a question
READING = 10.0  # seconds in which a question must have arrived
SECONDS = {"look": 30.0, "ablate": 120.0, "smallest": 300.0}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOG = logging.getLogger(__name__)
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Question(BaseModel):
    """What is asked of the model. gates: by head, 0 (off) to 1."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str
    gates: dict[str, float] = Field(default_factory=dict)
    ablation: Literal["zero", "mean", "uniform"] = "zero"
    beam: int = Field(default=5, ge=1, le=10)
    place: int | None = None
    model: Literal["full", "pruned"] = "full"


class Lab:
    """A model, perhaps the pruned one of its run, and what is known of its heads. `answer` is all that a page needs."""

    def __init__(self, model: Model, pruned: Model | None = None, run: Run | None = None) -> None:
        self.benches = {"full": Bench(model)} | ({"pruned": Bench(pruned)} if pruned else {})
        self.about = {
            "name": model.name,
            "title": run.folder.resolve().name if run else Path(model.name).name,
            "task": self.benches["full"].task,
            "heads": {kind: list(counts) for kind, counts in model.heads.query.items()},
            "most": self.benches["full"].asker.most,
            "compare": layout(model, pruned) if pruned else None,
            **story(run),
        }

    def answer(self, name: str, given: Mapping[str, Any], work: Work, progress: Callable[[float, str], None]) -> Any:
        """The answer to a question, ready for JSON. Raises HeadwiseError for one that cannot be answered."""
        if name == "about":
            return self.about
        try:
            asked = Question(**given)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise HeadwiseError(
                f"The question is not understood ({'.'.join(map(str, wrong['loc']))}: {wrong['msg']})."
            ) from None
        if asked.model not in self.benches:
            raise HeadwiseError("There is no pruned model to compare with: open the folder of a run that chose one.")
        bench, options = self.benches[asked.model], asked.model_dump(exclude={"model"})
        if name == "look":
            return bench.look(**options, check=work.check)
        if name == "ablate":
            return bench.ablate(**options, check=work.check, progress=progress)
        if name == "smallest":
            return smallest(bench, **options, check=work.check, progress=progress)
        raise HeadwiseError(f"There is no question '{name[:40]}'.")


def layout(model: Model, pruned: Model) -> dict[str, list[list[int]]]:
    """By kind and layer, which heads of the full model those of the pruned one are."""
    kept = pruned.layout
    if kept is None or kept.heads.query != model.heads.query:
        raise HeadwiseError(
            f"{pruned.name} was not pruned from {model.name}: they cannot stand side by side. "
            "Open the run's model/ folder instead."
        )
    return {kind: [kept.of(site) for site in model.heads.sites if site.kind == kind] for kind in model.heads.kinds}


def application(lab: Lab, token: str, hosts: Callable[[str], bool]) -> Any:
    """The application (ASGI). token: the first part of every path. hosts: whether a `Host` is this server's."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response, StreamingResponse

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    turns, thread = Turns(), ThreadPoolExecutor(1, "model")
    files = page_files()

    async def ask(request: Request) -> Response:
        if not request.headers.get("content-type", "").startswith("application/json"):
            return JSONResponse({"error": "A question must be JSON."}, 415)
        body = b""
        try:
            async with asyncio.timeout(READING):
                async for part in request.stream():
                    body += part
                    if len(body) > BODY:
                        return JSONResponse({"error": f"A question has at most {BODY:,} bytes: shorten the text."}, 413)
        except TimeoutError:
            return JSONResponse({"error": "The question took too long to arrive."}, 408)
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return JSONResponse({"error": "A question must be a JSON object."}, 400)
        user = request.headers.get("x-lab-user", "")[:64]
        name = request.path_params["name"]
        lines = answered(lab, turns, thread, user, name, given, request.is_disconnected)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"] or "index.html")
        return Response("There is no such file.", 404) if found is None else Response(found[0], media_type=found[1])

    app.add_route("/ask/{name}", ask, ["POST"])
    app.add_route("/{name:path}", file, ["GET"])
    return Guard(app, token, hosts)


async def answered(
    lab: Lab, turns: Turns, thread: ThreadPoolExecutor, user: str, name: str, given: Mapping[str, Any],
    gone: Callable[[], Awaitable[bool]],
) -> AsyncIterator[str]:  # fmt: skip
    """Lines of JSON: `waiting` (questions before this one), `progress` and `note`, at last `answer` or `error`."""
    loop, lines, work = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any]](), Work(SECONDS.get(name, 30.0))

    def progress(share: float, note: str) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, {"progress": round(share, 3), "note": note})

    async def run() -> None:
        try:
            async with turns.turn(user, lambda before: lines.put_nowait({"waiting": before})):
                work.start()
                answer = await loop.run_in_executor(thread, lab.answer, name, given, work, progress)
                lines.put_nowait({"answer": answer})
        except Exception as error:
            lines.put_nowait({"error": sentence(error)})

    task = asyncio.create_task(run())
    try:
        while True:
            try:
                line = await asyncio.wait_for(lines.get(), 0.5)
            except TimeoutError:
                if await gone():
                    return
                continue
            yield json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n"
            if "answer" in line or "error" in line:
                return
    finally:
        work.stopped = True  # the thread notices at the next layer, and only then another turn begins
        if not work.started:
            task.cancel()


def sentence(error: Exception) -> str:
    """What went wrong, for the user; the server goes on."""
    if isinstance(error, HeadwiseError):
        return str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error):
        return "There is not enough memory for this: give a shorter sentence or fewer beams."
    LOG.error("A question failed.", exc_info=error)
    return f"This could not be computed ({type(error).__name__}): the terminal says more."


class Guard:
    """Lets a request through that names this server, its token and no other origin; sets the headers of the page."""

    def __init__(self, app: Any, token: str, hosts: Callable[[str], bool]) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if scope["type"] != "http":  # no websockets
            return
        token, _, rest = str(scope["path"]).removeprefix("/").partition("/")
        refused = self.refusal(scope, token)
        if refused:
            status, text = refused
            await send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": encoded({**HEADERS, "Content-Type": "text/plain; charset=utf-8"}),
                }
            )
            await send({"type": "http.response.body", "body": text.encode()})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *encoded(HEADERS)]
            await send(message)

        path = f"/{rest}"
        await self.app({**scope, "path": path, "raw_path": path.encode()}, receive, with_headers)

    def refusal(self, scope: Message, token: str) -> tuple[int, str] | None:
        """Status and sentence for a request that is not answered."""
        sent: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            sent.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = sent.get("host", [])
        if len(host) != 1 or not self.hosts(host[0]):
            return 421, "This address is not the lab's."
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return 403, "The address lacks the token: open the one that the terminal shows."
        if any(origin != f"http://{host[0]}" for origin in sent.get("origin", [])):
            return 403, "Another page asked."
        if sent.get("sec-fetch-site", ["same-origin"])[0] not in ("same-origin", "none"):
            return 403, "Another page asked."
        return None


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def page_files() -> dict[str, tuple[bytes, str]]:
    """Every file of the page, with its type, by its path."""
    found = {"theme.css": (theme().encode(), "text/css; charset=utf-8")}
    with resources.as_file(resources.files("headwise.lab") / "page") as folder:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in TYPES:
                found[path.relative_to(folder).as_posix()] = (path.read_bytes(), f"{TYPES[path.suffix]}; charset=utf-8")
    return found


def theme(where: str = ":root") -> str:
    """The report's colours and font, light and dark, as variables of a part of the page."""
    light, dark = (" ".join(f"--{name}: {palette[name]};" for name in (*COLOURS, *SCALES)) for palette in (LIGHT, DARK))
    return f"{where} {{ --font: {FONT}; {light} }}\n@media (prefers-color-scheme: dark) {{ {where} {{ {dark} }} }}\n"


def host_names(host: str, port: int) -> Callable[[str], bool]:
    """Whether a `Host` is this server's: loopback; bound beyond it, also the machine's name and plain addresses (a page
    of another origin needs a name of its own to get here)."""
    names = {"127.0.0.1", "localhost", "[::1]"}
    beyond = not is_loopback(host)
    if beyond:
        names |= {host, socket.gethostname(), socket.getfqdn()}

    def known(given: str) -> bool:
        name, _, number = given.rpartition(":") if not given.endswith("]") else (given, "", "")
        name, number = (name, number) if name else (given, "80")
        return number == str(port) and (name.lower() in names or (beyond and is_address(name.strip("[]"))))

    return known


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def listening(host: str, port: int) -> socket.socket:
    """A socket on a port, or on a free one (0). Raises HeadwiseError when it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        opened = socket.socket(family)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
    except OSError as error:
        raise HeadwiseError(
            f"The lab cannot listen on {host}, port {port} ({error.strerror}): give another --port."
        ) from None
    return opened


def serve(
    lab: Lab, host: str = "127.0.0.1", port: int = 0, show: bool = True, say: Callable[[str], None] = print
) -> None:
    """Serve the lab until it is interrupted. show: open the browser. say: gets the address."""
    import uvicorn

    opened = listening(host, port)
    number, token = opened.getsockname()[1], secrets.token_urlsafe(16)
    name = "127.0.0.1" if is_loopback(host) else socket.gethostname() if host in ("0.0.0.0", "::") else host
    address = f"http://{f'[{name}]' if ':' in name else name}:{number}/{token}/"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            say(address)
            if show:
                webbrowser.open(address)

    config = uvicorn.Config(
        application(lab, token, host_names(host, number)), log_level="warning", access_log=False, server_header=False,
        limit_concurrency=400, timeout_graceful_shutdown=2, lifespan="off",
    )  # fmt: skip
    Server(config).run(sockets=[opened])
