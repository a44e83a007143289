"""HTTP connections within bounds: so many, so many from one address, none idle or slow for ever.

uvicorn's own limits answer 503 once there are too many connections, whoever has them, and let one
that never sends a request stay.  Here the one that gives way is the idlest of the address that has
most; whoever proved to play for a claim gives way last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from vtrain.dispute.service.admission import group_address

CONNECTION: Final = "connection"
"""Name of the connection in the ``state`` of a request's scope."""


class Connections:
    """The open connections of one server.

    ``most`` in all and ``each`` of one address; the addresses ``proxies`` may have all.  A head
    must be there ``head`` seconds after the connection was made or the answer before it was done;
    a request must be answered, and its answer be taken, within ``whole`` seconds.
    """

    def __init__(
        self,
        *,
        most: int,
        each: int,
        head: float,
        whole: float,
        clock: Callable[[], float],
        proxies: frozenset[str] = frozenset(),
    ) -> None:
        self._most, self._each, self._head, self._whole = most, each, head, whole
        self._clock, self._proxies = clock, proxies
        self._of: dict[str, set[BoundedProtocol]] = {}
        self._count = 0

    def make(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], **more: Any
    ) -> BoundedProtocol:
        """A protocol for a new connection: what uvicorn calls."""
        return BoundedProtocol(self, config, server_state, app_state, **more)

    def add(self, protocol: BoundedProtocol) -> None:
        """A connection was made: another gives way when there are too many."""
        protocol.since = self._clock()
        own = self._of.setdefault(protocol.address, set())
        own.add(protocol)
        self._count += 1
        if len(own) > self._each and protocol.address not in self._proxies:
            self._drop_one(own)
        elif self._count > self._most:
            self._drop_one(max(self._of.values(), key=len))

    def remove(self, protocol: BoundedProtocol) -> None:
        """A connection is closed."""
        own = self._of.get(protocol.address, set())
        if protocol in own:
            own.remove(protocol)
            self._count -= 1
            if not own:
                del self._of[protocol.address]

    def touch(self, protocol: BoundedProtocol) -> None:
        """A request began or ended."""
        protocol.since = self._clock()

    def sweep(self) -> None:
        """Close what took too long."""
        now = self._clock()
        for own in list(self._of.values()):
            for protocol in list(own):
                if now - protocol.since > (self._whole if protocol.busy else self._head):
                    protocol.drop()

    def _drop_one(self, own: set[BoundedProtocol]) -> None:
        min(own, key=lambda each: (each.trusted, each.busy, each.since)).drop()


class BoundedProtocol(H11Protocol):
    """A connection that ``Connections`` knows of."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._known = connections
        self.address = ""
        self.since = 0.0
        self.busy = self.trusted = False
        """Is a request under way?  Did a move come this way by a party that backs a claim?"""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it."""
        super().connection_made(transport)
        self.address = group_address(self.client[0] if self.client else "")
        self._known.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        self._known.remove(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Notice when the head of a request is there."""
        super().handle_events()
        self._look()

    def on_response_complete(self) -> None:
        """Notice when the answer is done."""
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        busy = cycle is not None and not cycle.response_complete
        if busy != self.busy:
            self.busy = busy
            self._known.touch(self)

    def drop(self) -> None:
        """Close it at once."""
        self._known.remove(self)
        self.transport.abort()
