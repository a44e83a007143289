"""Who may use how much at once: fair turns, bytes that are held, and tokens, by address and by key.

All of it lives in one event loop and is no thread's but the loop's.  An address is what one party
can be assumed to have one of: an IPv4 address, or the /64 that an IPv6 address is in.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Final

from vtrain.dispute.problems import LimitedError

_BUCKETS: Final = 1 << 16


@lru_cache(4096)
def group_address(host: str) -> str:
    """The address that a connection counts for; what is no IP address counts as itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


class Turns:
    """``slots`` turns at a time, given to those who wait in rotation over their keys.

    Within a key first come is first served.  LimitedError when ``waiting`` of one key wait already:
    so whoever asks much waits for itself alone.
    """

    def __init__(self, slots: int, waiting: int) -> None:
        self._free, self._waiting = slots, waiting
        self._queues: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a turn and hold it."""
        if self._free and not self._queues:
            self._free -= 1
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._free += 1
            self._pass_on()

    async def _wait(self, key: Hashable) -> None:
        queue = self._queues.setdefault(key, deque())
        if len(queue) >= self._waiting:
            raise LimitedError("too many of your requests wait; send it again", where="service")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free += 1
                self._pass_on()
            else:
                queue.remove(turn)
                if not queue:
                    self._queues.pop(key, None)
            raise

    def _pass_on(self) -> None:
        while self._free and self._queues:
            key, queue = next(iter(self._queues.items()))
            turn = queue.popleft()
            if queue:
                self._queues.move_to_end(key)
            else:
                del self._queues[key]
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


class Budget:
    """Bytes that are held for requests: ``most`` in all, ``each`` for one address."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._held: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def account(self, address: str) -> Iterator[Callable[[int], None]]:
        """A function that takes so many bytes more, LimitedError when they are not to be had.

        All are given back in the end.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self._held[address] + count > self._each or self._total + count > self._most:
                raise LimitedError("too many bytes are on their way; send it again", where="body")
            self._held[address] += count
            self._total += count
            taken += count

        try:
            yield take
        finally:
            self._total -= taken
            self._held[address] -= taken
            if not self._held[address]:
                del self._held[address]


class Buckets:
    """A bucket of ``burst`` tokens for each key, into which one comes every ``seconds``."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float]) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._full: OrderedDict[Hashable, float] = OrderedDict()
        """When each bucket is full again; one that is full is not kept."""

    def take(self, key: Hashable) -> None:
        """Take a token; LimitedError when there is none."""
        now = self._clock()
        full = max(self._full.get(key, now), now) + self._seconds
        if full - now > self._burst * self._seconds:
            raise LimitedError(f"at most one in {self._seconds:g} s; wait", where="address")
        self._full[key] = full
        self._full.move_to_end(key)
        while self._full and (len(self._full) > _BUCKETS or next(iter(self._full.values())) <= now):
            self._full.popitem(last=False)
