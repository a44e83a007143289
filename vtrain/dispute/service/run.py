"""Running a service: ``vtrain serve``."""

from __future__ import annotations

import asyncio
import math
import resource
import socket
import sys
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import uvicorn
from fastapi import FastAPI

from vtrain.attest.keys import PrivateKey
from vtrain.commit.files import read_file
from vtrain.dispute.market import Market
from vtrain.dispute.service.admission import group_address
from vtrain.dispute.service.app import create_app
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.ledger import Ledger
from vtrain.dispute.service.limits import LIMITS as SERVICE_LIMITS
from vtrain.dispute.service.limits import Limits
from vtrain.dispute.service.protocol import Connections
from vtrain.dispute.service.settler import Settler
from vtrain.dispute.service.store import Store
from vtrain.dispute.service.webhooks import Courier
from vtrain.errors import StorageError
from vtrain.limits import LIMITS

_GRACE_SECONDS = 5
_SWEEP_SECONDS = 1.0
_FILES = 160
"""Files that are no connections: the database's, webhooks' and the process's own."""
_SWITCH_SECONDS = 0.0005
"""For which a thread may keep the others from running: the loop answers between two moves."""


def serve(
    db: str,
    key: PrivateKey,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    market: Market,
    ledger: Ledger | None = None,
    free: bool = False,
    token: str = "",
    allow_private_webhooks: bool = False,
    proxies: Collection[str] = (),
    limits: Limits = SERVICE_LIMITS,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the database at the URL ``db`` until the process is told to stop (SIGINT, SIGTERM).

    ``market`` holds the bonds; a ``ledger``, which may be the same, is what the operator enters
    deposits in; without ``free`` no game is hosted whose bonds cost nothing.  ``proxies`` are the
    addresses of reverse proxies, whose word on where a request comes from is taken.  ``ready`` is
    called with the service's URL once it listens; port 0 takes a free one.  StorageError when the
    database or the address cannot be had.
    """
    limits = fit_files(limits)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with closing(Store(db)) as store:
        service = GameService(store, key, market, limits=limits, free=free)
        with closing(service), closing(Settler(service)) as settler:
            courier = Courier(service, store, allow_private=allow_private_webhooks)
            with closing(courier):
                app = create_app(service, courier, token, ledger)
                running = Running(app, limits, host=host, port=port, proxies=proxies, ready=ready)
                settler.start()
                courier.start()
                running.run()


class Running(uvicorn.Server):
    """Serves ``app`` at ``url`` once it is ``run``, until ``stop`` is called or a signal comes.

    StorageError when the address cannot be had.
    """

    def __init__(
        self,
        app: FastAPI,
        limits: Limits = SERVICE_LIMITS,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        proxies: Collection[str] = (),
        ready: Callable[[str], None] = lambda url: None,
    ) -> None:
        self.connections = Connections(
            most=limits.connections,
            each=limits.connections_each,
            head=limits.head_seconds,
            whole=limits.whole_seconds,
            clock=time.monotonic,
            proxies=frozenset(map(group_address, proxies)),
        )
        super().__init__(
            uvicorn.Config(
                app,
                # What strangers send is no line of the log each.
                log_level="error",
                access_log=False,
                http=cast("type[asyncio.Protocol]", self.connections.make),
                ws="none",
                timeout_keep_alive=math.ceil(limits.head_seconds),
                timeout_graceful_shutdown=_GRACE_SECONDS,
                server_header=False,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=list(proxies),
            )
        )
        self._listener = _listen(host, port)
        self.url = _get_url(self._listener)
        self._ready, self._bell = ready, app.state.parts.bell

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; blocks."""
        with closing(self._listener):
            super().run(sockets=[self._listener])

    def stop(self) -> None:
        """Have ``run`` return soon; from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say that it listens."""
        await super().startup(sockets=sockets)
        self._sweeping = asyncio.create_task(self._sweep())
        self._ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests that wait for events end first."""
        self._sweeping.cancel()
        self._bell.close()
        await super().shutdown(sockets=sockets)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.connections.sweep()


def fit_files(limits: Limits) -> Limits:
    """As many connections as this process may have files open; it asks for more where it may."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _FILES
    if most != resource.RLIM_INFINITY and most < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return replace(limits, connections=max(1, most - _FILES))
    return limits


def _listen(host: str, port: int) -> socket.socket:
    try:
        ((family, *_, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # asyncio sets TCP_NODELAY only on sockets that say they are TCP: else answers wait 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise StorageError(f"cannot listen: {error}", where=f"{host}:{port}") from error
    return listener


def _get_url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def read_token(path: Path) -> str:
    """The operator's token in a file: at least 16 printable characters; StorageError."""
    data = read_file(path, LIMITS.token_bytes, error=StorageError).strip()
    if len(data) < 16 or not data.isascii() or not data.decode().isprintable():
        raise StorageError("needs 16 to 1024 printable characters", where=str(path))
    return data.decode()
