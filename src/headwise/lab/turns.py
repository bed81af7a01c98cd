"""Who may use the model next: one question at a time, users in turns, so that nobody waits for another's long line."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headwise.errors import HeadwiseError

EACH, ALL = 4, 200  # questions that wait, of a user and of all


class Turns:
    """A lock that goes from user to user: first to the one who has waited longest, not to the one who asks most."""

    def __init__(self, each: int = EACH, most: int = ALL) -> None:
        self.each, self.most = each, most
        self.busy = False
        self.waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, user: str, wait: Callable[[int], None]) -> AsyncIterator[None]:
        """A block in which this question has the model. wait: told how many wait before it, if any. Raises
        HeadwiseError when too many wait already."""
        if self.busy:
            await self.queue(user, wait)
        self.busy = True
        try:
            yield
        finally:
            self.hand_on()

    async def queue(self, user: str, wait: Callable[[int], None]) -> None:
        """Wait until it is this question's turn."""
        before = sum(map(len, self.waiting.values()))
        own = self.waiting.get(user, ())
        if before >= self.most or len(own) >= self.each:
            raise HeadwiseError("Too many questions are waiting already: try again in a moment.")
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(user, deque()).append(ticket)
        wait(before + 1)
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():  # its turn came as it left
                self.hand_on()
            elif user in self.waiting:
                self.waiting[user] = deque(one for one in self.waiting[user] if one is not ticket)
                if not self.waiting[user]:
                    del self.waiting[user]
            raise

    def hand_on(self) -> None:
        """Give the turn to the user who has waited longest since the last one; a user's others go to the end."""
        while self.waiting:
            user, tickets = self.waiting.popitem(last=False)
            ticket = tickets.popleft()
            if tickets:
                self.waiting[user] = tickets
            if not ticket.done():
                ticket.set_result(None)
                return
        self.busy = False


class Work:
    """A question that is being answered: whether it is still wanted, and how long it may take (seconds)."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.ends, self.started, self.stopped = seconds, 0.0, False, False

    def start(self) -> None:
        """Its turn has come: from now on its time counts."""
        self.started, self.ends = True, time.monotonic() + self.seconds

    def check(self) -> None:
        """Asked at every layer of every forward. Raises HeadwiseError when the work is to end."""
        if self.stopped:
            raise HeadwiseError("Stopped.")
        if time.monotonic() > self.ends:
            raise HeadwiseError(
                f"This took longer than {self.seconds:.0f} s and was stopped: give a shorter sentence."
            )
