"""The requests that are answered: their address begins with a secret token, and `Host` and `Origin`
are the lab's own."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "media-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Guard:
    """Lets a request through that names this server, its token and no other origin; sets the
    headers of the page."""

    def __init__(self, app: Any, token: str, hosts: Callable[[str], bool]) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        if scope["type"] != "http":  # no websockets
            return
        # /TOKEN/page
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
        # A page of another site can have its own name resolve to this machine (DNS rebinding); its requests then
        # carry that name as Host.
        host = sent.get("host", [])
        if len(host) != 1 or not self.hosts(host[0]):
            return 421, "This address is not the lab's."
        # In a time that does not tell how much of the token is right.
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return 403, "The address lacks the token: open the one that the terminal shows."
        if any(origin != f"http://{host[0]}" for origin in sent.get("origin", [])):
            return 403, "Another page asked."
        # Browsers leave Origin out of some requests, such as those of an <img>, but say where they come from.
        if sent.get("sec-fetch-site", ["same-origin"])[0] not in ("same-origin", "none"):
            return 403, "Another page asked."
        return None


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def host_names(host: str, port: int) -> Callable[[str], bool]:
    """Whether a `Host` is this server's: loopback, also another address of it; bound beyond it,
    also the machine's name and plain addresses (a page of another origin needs a name of its own to
    get here)."""
    # What a browser on this machine may call the server.
    names = {"127.0.0.1", "localhost", "[::1]", host.lower()}
    beyond = not is_loopback(host)
    if beyond:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def is_ours(given: str) -> bool:
        # Browsers leave the usual port out.
        name, number = given, "80"
        if ":" in given and not given.endswith("]"):  # not an IPv6 address without a port
            name, _, number = given.rpartition(":")
        if number != str(port):
            return False
        return name.lower() in names or (beyond and is_address(name.strip("[]")))

    return is_ours


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback
