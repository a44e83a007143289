"""Running a service: ``vtrain serve``."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import uvicorn

from vtrain.attest.keys import PrivateKey
from vtrain.commit.files import read_file
from vtrain.dispute.service.app import create_app
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.limits import LIMITS as SERVICE_LIMITS
from vtrain.dispute.service.limits import Limits
from vtrain.dispute.service.market import Market, MemoryMarket
from vtrain.dispute.service.store import Store
from vtrain.dispute.service.webhooks import Courier
from vtrain.errors import StorageError
from vtrain.limits import LIMITS

_GRACE_SECONDS = 5


def serve(
    db: str,
    key: PrivateKey,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    market: Market | None = None,
    token: str = "",
    allow_private_webhooks: bool = False,
    limits: Limits = SERVICE_LIMITS,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the database at the URL ``db`` until the process is told to stop (SIGINT, SIGTERM).

    ``market`` defaults to one in memory that asks for nothing.  ``ready`` is called with the
    service's URL once it listens; port 0 takes a free one.  StorageError when the database or the
    address cannot be had.
    """
    with closing(Store(db)) as store:
        service = GameService(store, key, market or MemoryMarket(), limits=limits)
        with closing(service):
            courier = Courier(service, store, allow_private=allow_private_webhooks)
            with closing(courier):
                running = Running(service, courier, token, host=host, port=port, ready=ready)
                courier.start()
                running.run()


class Running(uvicorn.Server):
    """Serves ``service`` at ``url`` once it is ``run``, until ``stop`` is called or a signal comes.

    StorageError when the address cannot be had.
    """

    def __init__(
        self,
        service: GameService,
        courier: Courier,
        token: str = "",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ready: Callable[[str], None] = lambda url: None,
    ) -> None:
        app = create_app(service, courier, token)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                limit_concurrency=service.limits.connections,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                server_header=False,
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
        self._ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests that wait for events end first."""
        self._bell.close()
        await super().shutdown(sockets=sockets)


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
