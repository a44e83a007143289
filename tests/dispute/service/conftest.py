"""Services to test: on a clock that the test turns, on every database there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.dispute.service.logs import SERVICE_KEY
from tests.dispute.service.postgres import PostgresServer, find_binaries
from vtrain.dispute.market import Market, MemoryMarket
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.limits import LIMITS, Limits
from vtrain.dispute.service.store import Store


class Hands:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.ticks = 0

    def __call__(self) -> int:
        return self.ticks


class Bench:
    """One database, and services on it that come and go."""

    def __init__(self, url: str) -> None:
        self.url, self.hands = url, Hands()
        self.market: Market = MemoryMarket()
        self._open: list[tuple[GameService, Store]] = []

    def start(self, limits: Limits = LIMITS) -> GameService:
        """One more service on the database."""
        store = Store(self.url)
        service = GameService(
            store, SERVICE_KEY, self.market, limits=limits, free=True, ticks=self.hands
        )
        self._open.append((service, store))
        return service

    def store(self, service: GameService) -> Store:
        return next(store for found, store in self._open if found is service)

    def stop(self, service: GameService) -> None:
        store = self.store(service)
        self._open.remove((service, store))
        service.close()
        store.close()

    def close(self) -> None:
        for service, _ in list(self._open):
            self.stop(service)

    def pass_time(self, service: GameService, milliseconds: int) -> None:
        """Let time go on in steps that the clock takes at once."""
        while milliseconds > 0:
            step = min(milliseconds, LIMITS.gap)
            self.hands.ticks += step
            milliseconds -= step
            service.beat()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process's own."""
    found, why = find_binaries()
    if found is None:
        pytest.skip(why)
    with closing(PostgresServer(found)) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/games.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.make_database()


@pytest.fixture
def bench(url: str) -> Iterator[Bench]:
    with closing(Bench(url)) as found:
        yield found


@pytest.fixture
def service(bench: Bench) -> GameService:
    return bench.start()


Starter = Callable[[Limits], GameService]
