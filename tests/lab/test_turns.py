"""Users in turns: fair, bounded, and free again when one leaves."""

from __future__ import annotations

import asyncio

import pytest

from headwise.errors import HeadwiseError
from headwise.lab.turns import Turns, Work


async def use(turns: Turns, user: str, order: list[str]) -> None:
    async with turns.turn(user, lambda before: None):
        order.append(user)
        await asyncio.sleep(0)


def test_one_who_asks_much_does_not_hold_up_the_others() -> None:
    async def play() -> list[str]:
        turns, order = Turns(), list[str]()
        tasks = [
            asyncio.create_task(use(turns, user, order)) for user in ("a", "a", "a", "a", "b", "c")
        ]
        await asyncio.gather(*tasks)
        assert not turns.busy and not turns.waiting
        return order

    assert asyncio.run(play()) == ["a", "a", "b", "c", "a", "a"]


def test_too_many_are_refused() -> None:
    async def play() -> None:
        turns, order = Turns(each=1, most=2), list[str]()
        first = [asyncio.create_task(use(turns, user, order)) for user in ("a", "a", "b")]
        await asyncio.sleep(0)
        with pytest.raises(HeadwiseError, match="Too many"):
            await use(turns, "a", order)
        with pytest.raises(HeadwiseError, match="Too many"):
            await use(turns, "c", order)
        await asyncio.gather(*first)

    asyncio.run(play())


def test_one_who_leaves_gives_up_its_turn() -> None:
    async def play() -> list[str]:
        turns, order = Turns(), list[str]()
        tasks = [asyncio.create_task(use(turns, user, order)) for user in ("a", "b", "c")]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not turns.busy and not turns.waiting
        return order

    assert asyncio.run(play()) == ["a", "c"]


def test_work_ends_after_its_time() -> None:
    work = Work(0.0)
    work.start()
    with pytest.raises(HeadwiseError, match="longer than"):
        work.check()
