"""A service that listens on a free port of the loopback, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from vtrain.attest.keys import PrivateKey
from vtrain.dispute.clock import Ticks, count_monotonic
from vtrain.dispute.market import Market, MemoryMarket
from vtrain.dispute.service.app import create_app
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.ledger import Ledger
from vtrain.dispute.service.limits import LIMITS, Limits
from vtrain.dispute.service.run import Running
from vtrain.dispute.service.settler import Settler
from vtrain.dispute.service.store import Store
from vtrain.dispute.service.webhooks import Courier

TOKEN = "a token of the operator"  # noqa: S105 - of a service that lives for one test
DEADLINE = 60.0


class Skipping:
    """The machine's clock, ahead by what a test does not wait for: up to ``LIMITS.gap`` at once."""

    def __init__(self) -> None:
        self._skipped = 0

    def __call__(self) -> int:
        return count_monotonic() + self._skipped

    def skip(self, milliseconds: int) -> None:
        self._skipped += milliseconds


@contextmanager
def serving(
    url: str,
    key: PrivateKey,
    *,
    market: Market | None = None,
    limits: Limits = LIMITS,
    ticks: Ticks = count_monotonic,
) -> Iterator[str]:
    """The URL of a service on the database ``url``."""
    with closing(Store(url)) as store:
        service = GameService(
            store, key, market or MemoryMarket(), limits=limits, free=True, ticks=ticks
        )
        with (
            closing(service),
            closing(Courier(service, store, allow_private=True)) as courier,
            closing(Settler(service)) as settler,
        ):
            courier.start()
            settler.start()
            listening = threading.Event()
            ledger = market if isinstance(market, Ledger) else None
            app = create_app(service, courier, TOKEN, ledger)
            running = Running(app, limits, ready=lambda _: listening.set())
            thread = threading.Thread(target=running.run)
            thread.start()
            try:
                assert listening.wait(DEADLINE), "the service does not listen"
                yield running.url
            finally:
                running.stop()
                thread.join(DEADLINE)
