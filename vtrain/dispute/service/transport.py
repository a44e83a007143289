"""An HTTP transport whose requests end: httpx limits each read alone, so that a peer can drip."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import httpcore
import httpx

TOTAL: Final = "total"
"""Extension of a request: seconds for all of it, from the first connection to the last byte."""

_Options = Iterable[Any] | None


class TimedTransport(httpx.HTTPTransport):
    """Sends requests that take as long as their extension ``TOTAL`` says, or ``seconds``.

    httpx.TimeoutException after that, whatever the peer still sends.  An answer is read in the
    thread that asked; resolving a name is as slow as the system's resolver.
    """

    def __init__(self, seconds: float) -> None:
        context = httpx.create_ssl_context(trust_env=False)
        super().__init__(verify=context)
        self._seconds, self._deadline = seconds, _Deadline()
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_Backend(self._deadline),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it, and have its time run."""
        self._deadline.until = time.monotonic() + request.extensions.get(TOTAL, self._seconds)
        return super().handle_request(request)


class _Deadline(threading.local):
    until = 0.0

    def bound(self, timeout: float | None, error: type[Exception]) -> float:
        """What is left, ``timeout`` at most; ``error`` when nothing is."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise error("took too long in all")
        return left if timeout is None else min(left, timeout)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, deadline: _Deadline) -> None:
        self._deadline, self._inner = deadline, httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: _Options = None,
    ) -> httpcore.NetworkStream:
        timeout = self._deadline.bound(timeout, httpcore.ConnectTimeout)
        stream = self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._deadline.bound(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._deadline.bound(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        timeout = self._deadline.bound(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
