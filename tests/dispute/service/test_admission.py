"""Turns, bytes and tokens: whoever asks for much waits for itself alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from vtrain.dispute.problems import LimitedError
from vtrain.dispute.service.admission import Buckets, Budget, Turns, group_address


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(_as_coroutine(test), 60))


async def _as_coroutine(test: Callable[[], Awaitable[None]]) -> None:
    await test()


async def spin() -> None:
    """Let everything that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_turns_go_round_the_keys() -> None:
    async def test() -> None:
        turns, order, go_on = Turns(1, 100), list[str](), asyncio.Semaphore(0)

        async def work(key: str) -> None:
            async with turns.turn(key):
                order.append(key)
                await go_on.acquire()

        many = [asyncio.create_task(work("many")) for _ in range(10)]
        await spin()
        one = asyncio.create_task(work("one"))
        await spin()
        for _ in range(11):
            go_on.release()
        await asyncio.gather(*many, one)
        assert order.index("one") <= 2

    run(test)


def test_only_so_many_of_one_key_wait() -> None:
    async def test() -> None:
        turns, release = Turns(1, 2), asyncio.Event()

        async def work(key: str) -> None:
            async with turns.turn(key):
                await release.wait()

        tasks = [asyncio.create_task(work("a")) for _ in range(3)]
        await spin()
        with pytest.raises(LimitedError):
            await work("a")
        other = asyncio.create_task(work("b"))
        await spin()
        tasks[1].cancel()  # one that waits leaves its place
        await spin()
        again = asyncio.create_task(work("a"))
        await spin()
        release.set()
        await asyncio.gather(tasks[0], tasks[2], other, again)
        async with turns.turn("a"):
            pass

    run(test)


def test_a_turn_that_is_given_up_goes_to_the_next() -> None:
    async def test() -> None:
        turns = Turns(1, 9)
        first = turns.turn("a")
        await first.__aenter__()

        async def work() -> None:
            async with turns.turn("b"):
                pass

        waiting = [asyncio.create_task(work()) for _ in range(2)]
        await spin()
        await first.__aexit__(None, None, None)  # has given the turn to the first of them,
        waiting[0].cancel()  # which is cancelled before it wakes
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[1].exception() is None

    run(test)


def test_bytes_of_one_address_and_of_all() -> None:
    budget = Budget(100, 60)
    with budget.account("a") as take:
        take(50)
        with pytest.raises(LimitedError):
            take(20)
        with budget.account("b") as other:
            other(50)
            with budget.account("c") as third, pytest.raises(LimitedError):
                third(1)
        with budget.account("c") as third:
            third(50)
    with budget.account("a") as take:
        take(60)


def test_tokens_come_back_with_time() -> None:
    now = [0.0]
    buckets = Buckets(2, 10.0, lambda: now[0])
    for _ in range(2):
        buckets.take("a")
    with pytest.raises(LimitedError):
        buckets.take("a")
    buckets.take("b")
    now[0] += 10
    buckets.take("a")
    with pytest.raises(LimitedError):
        buckets.take("a")


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_groups_of_addresses(host: str, group: str) -> None:
    assert group_address(host) == group
