"""An HTTP transport whose requests end: httpx limits each read alone, so that a peer can drip."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import httpcore
import httpx

from vtrain.commit.timed import Deadline, TimedStream

TOTAL: Final = "total"
"""Extension of a request: seconds for all of it, from the first connection to the last byte."""

_Options = Iterable[Any] | None


class TimedTransport(httpx.HTTPTransport):
    """Sends requests that take as long as their extension ``TOTAL`` says, or ``seconds``.

    httpx.TimeoutException after that, whatever the peer still sends.  An answer is read in the
    thread that asked; resolving a name is as slow as the system's resolver.
    """

    def __init__(self, seconds: float) -> None:
        context = _make_context()
        super().__init__(verify=context)
        self._seconds, self._deadline = seconds, Deadline()
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_Backend(self._deadline),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it, and have its time run."""
        self._deadline.start(request.extensions.get(TOTAL, self._seconds))
        return super().handle_request(request)


@cache
def _make_context() -> ssl.SSLContext:
    """One for all transports of a process: its certificates take longer to read than an answer."""
    return httpx.create_ssl_context(trust_env=False)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, deadline: Deadline) -> None:
        self._deadline, self._inner = deadline, httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: _Options = None,
    ) -> httpcore.NetworkStream:
        timeout = self._deadline.bound(httpcore.ConnectTimeout, timeout)
        stream = self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return TimedStream(stream, self._deadline)
