"""Connections of the lab's server: those that ask nothing are closed, so that nobody shuts the user out.

uvicorn counts connections, refuses questions beyond a limit, and waits for the headers of a request without end: 400
idle connections of a program that lacks the token would be all that the server has.
"""

from __future__ import annotations

import asyncio
from typing import Any

HEADERS_SECONDS = 10.0  # seconds in which the headers of a request must have arrived
IDLE = 100  # connections without a request; of more, the one that waits longest is closed


def connection_class() -> Any:
    """The class of the server's connections, for uvicorn, which may not be installed."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """A connection with a limit on the time and the number of those that ask nothing."""

        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.deadline = self.loop.call_later(HEADERS_SECONDS, self.close)
            # At each new one, so that there are never many.
            close_longest_idle(self.connections)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self.is_idle and self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.is_idle and self.deadline is None and not self.transport.is_closing():
                self.deadline = self.loop.call_later(HEADERS_SECONDS, self.close)

        def connection_lost(self, exc: Exception | None) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
            super().connection_lost(exc)

        @property
        def is_idle(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def close(self) -> None:
            self.transport.close()

    return Connection


def close_longest_idle(connections: Any) -> None:
    """Close the idle connection that waits longest, where there are more than IDLE."""
    idle = []
    for connection in connections:
        if connection.is_idle and not connection.transport.is_closing():
            idle.append(connection)
    if len(idle) > IDLE:
        min(idle, key=lambda one: one.deadline.when() if one.deadline else 0.0).close()
