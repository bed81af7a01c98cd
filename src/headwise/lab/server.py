"""The server of the lab: a page, and questions about one model that are answered in turns.

It is for this machine: it binds loopback unless asked otherwise, lets in those who know its address (`guard.py`), and
its page may load nothing from anywhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from headwise.errors import HeadwiseError
from headwise.lab.files import page_files
from headwise.lab.guard import Guard, host_names, is_loopback
from headwise.lab.questions import Lab
from headwise.lab.turns import Turns, Work

BODY = 1 << 17  # bytes of a question
READING = 10.0  # seconds in which a question must have arrived
SECONDS = {"look": 30.0, "ablate": 120.0, "smallest": 300.0}
LOG = logging.getLogger(__name__)


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
                        return JSONResponse(
                            {"error": f"A question has at most {BODY:,} bytes: shorten the text."},
                            413,
                        )
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
        return (
            Response("There is no such file.", 404)
            if found is None
            else Response(found[0], media_type=found[1])
        )

    app.add_route("/ask/{name}", ask, ["POST"])
    app.add_route("/{name:path}", file, ["GET"])
    return Guard(app, token, hosts)


async def answered(
    lab: Lab,
    turns: Turns,
    thread: ThreadPoolExecutor,
    user: str,
    name: str,
    given: Mapping[str, Any],
    gone: Callable[[], Awaitable[bool]],
) -> AsyncIterator[str]:
    """Lines of JSON: `waiting` (questions before this one), `progress` and `note`, at last `answer` or `error`."""
    loop, lines, work = (
        asyncio.get_running_loop(),
        asyncio.Queue[dict[str, Any]](),
        Work(SECONDS.get(name, 30.0)),
    )

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
        work.stopped = (
            True  # the thread notices at the next layer, and only then another turn begins
        )
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
    lab: Lab,
    host: str = "127.0.0.1",
    port: int = 0,
    show: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the lab until it is interrupted. show: open the browser. say: gets the address."""
    import uvicorn

    opened = listening(host, port)
    number, token = opened.getsockname()[1], secrets.token_urlsafe(16)
    name = (
        "127.0.0.1"
        if is_loopback(host)
        else socket.gethostname()
        if host in ("0.0.0.0", "::")
        else host
    )
    address = f"http://{f'[{name}]' if ':' in name else name}:{number}/{token}/"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            say(address)
            if show:
                webbrowser.open(address)

    config = uvicorn.Config(
        application(lab, token, host_names(host, number)),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=400,
        timeout_graceful_shutdown=2,
        lifespan="off",
    )
    Server(config).run(sockets=[opened])
