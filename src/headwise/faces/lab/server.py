"""The server of the lab: a page, and questions about one model.

It is for this machine: it binds loopback unless asked otherwise, lets in those who know its address
(`guard.py`), and its page may load nothing from anywhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import torch

from headwise.core.errors import HeadwiseError
from headwise.core.progress import OnProgress
from headwise.faces.lab.assets import asset_files
from headwise.faces.lab.guard import Guard, host_names, is_loopback
from headwise.faces.lab.session import CancelToken, Session, json_text

BODY = 1 << 17  # bytes of a question
READING = 10.0  # seconds in which a question must have arrived
SECONDS = {"inspect": 30.0, "head_effects": 120.0, "smallest": 300.0}
LOG = logging.getLogger(__name__)


def application(session: Session, token: str, hosts: Callable[[str], bool]) -> Any:
    """The application (ASGI). token: the first part of every path. hosts: whether a `Host` is this
    server's."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response, StreamingResponse

    # Pages about the interface would load scripts from elsewhere.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    files = asset_files()

    def refusal(text: str, status: int) -> JSONResponse:
        return JSONResponse({"error": text}, status)

    async def ask(request: Request) -> Response:
        if not request.headers.get("content-type", "").startswith("application/json"):
            return refusal("A question must be JSON.", 415)
        body = b""
        try:
            async with asyncio.timeout(READING):
                # Piece by piece: a body that is too long is refused before it is read.
                async for part in request.stream():
                    body += part
                    if len(body) > BODY:
                        return refusal(
                            f"A question has at most {BODY:,} bytes: shorten the text.", 413
                        )
        except TimeoutError:
            return refusal("The question took too long to arrive.", 408)
        try:
            question = json.loads(body)
        except (ValueError, RecursionError):
            question = None
        if not isinstance(question, dict):
            return refusal("A question must be a JSON object.", 400)
        name = request.path_params["name"]
        lines = answer_lines(session, name, question, request.is_disconnected)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def file(request: Request) -> Response:
        name = request.path_params["name"] or "index.html"
        if name not in files:
            return Response("There is no such file.", 404)
        content, media_type = files[name]
        return Response(content, media_type=media_type)

    app.add_route("/ask/{name}", ask, ["POST"])
    app.add_route("/{name:path}", file, ["GET"])
    return Guard(app, token, hosts)


async def answer_lines(
    session: Session,
    name: str,
    question: Mapping[str, Any],
    disconnected: Callable[[], Awaitable[bool]],
) -> AsyncIterator[str]:
    """Lines of JSON: `progress` and `note`, at last `answer` or `error`. The computation is
    cancelled when the page does not wait for it any more."""
    loop = asyncio.get_running_loop()
    lines = asyncio.Queue[tuple[str, bool]]()  # each line, and whether it is the last one
    cancel = cancel_of(name)

    def send(line: str, last: bool = False) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, (line, last))

    def progress(share: float, note: str) -> None:
        send(json_text({"progress": round(share, 3), "note": note}))

    def compute() -> None:
        send(answer_text(session, name, question, cancel, progress), last=True)

    # The computation has a thread of its own, so that the server hears when the page is closed.
    loop.run_in_executor(None, compute)
    try:
        while True:
            try:
                # Twice a second somebody looks whether the page still waits.
                line, last = await asyncio.wait_for(lines.get(), 0.5)
            except TimeoutError:
                if await disconnected():
                    return
                continue
            yield line + "\n"
            if last:
                return
    finally:
        cancel.cancelled = True  # the computing thread sees it at the next layer


def cancel_of(name: str) -> CancelToken:
    """What ends the computation of a question after its time."""
    return CancelToken(SECONDS.get(name, SECONDS["inspect"]))


def answer_text(
    session: Session,
    name: str,
    question: Mapping[str, Any],
    cancel: CancelToken,
    progress: OnProgress,
) -> str:
    """A line of JSON: `answer`, or `error` for all that goes wrong."""
    try:
        return json_text({"answer": session.answer(name, question, cancel, progress)})
    except Exception as error:
        return json_text({"error": error_text(error)})


def error_text(error: Exception) -> str:
    """What went wrong, for the user; the server continues."""
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
        # Else a port stays taken for a minute after the lab was closed.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
    except OSError as error:
        raise HeadwiseError(
            f"The lab cannot listen on {host}, port {port} ({error.strerror}): give another --port."
        ) from None
    return opened


def serve(
    session: Session,
    host: str = "127.0.0.1",
    port: int = 0,
    show: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a session until it is interrupted. show: open the browser. say: gets the address."""
    import uvicorn

    from headwise.faces.lab.connection import connection_class

    opened = listening(host, port)
    number = opened.getsockname()[1]
    # 128 bits: nobody guesses the address.
    token = secrets.token_urlsafe(16)
    name = opened.getsockname()[0] if is_loopback(host) else host  # localhost may be ::1
    if host in ("0.0.0.0", "::"):
        # Bound to all addresses: others reach it by the machine's name.
        name = socket.gethostname()
    if ":" in name:
        name = f"[{name}]"
    address = f"http://{name}:{number}/{token}/"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            say(address)
            if show:
                webbrowser.open(address)

    config = uvicorn.Config(
        application(session, token, host_names(host, number)),
        http=connection_class(),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=400,
        timeout_graceful_shutdown=2,
        lifespan="off",
    )
    Server(config).run(sockets=[opened])
