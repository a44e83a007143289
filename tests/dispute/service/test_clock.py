"""The service's clock, whatever the host's does."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

from tests.dispute.service.conftest import Bench
from tests.dispute.service.logs import CLOCKS, make_log_genesis, make_opening
from vtrain.dispute.clock import ServiceClock
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.limits import LIMITS
from vtrain.errors import StorageError


def test_ticks_that_jump() -> None:
    ticks = [1_000]
    clock = ServiceClock(lambda: ticks[0], 50, gap=100)
    for tick, time in ((1_010, 60), (9_000, 160), (8_000, 160), (8_005, 165), (-5, 165), (15, 185)):
        ticks[0] = tick
        now, read = clock.read()
        clock.keep(now, read)
        assert now == time


def test_another_process_is_ahead() -> None:
    ticks = [0]
    clock = ServiceClock(lambda: ticks[0], 0, gap=100)
    clock.keep(5_000, 0)
    ticks[0] = 10
    assert clock.read()[0] == 5_010


def test_time_that_is_not_stored_runs_on_nobodys_clock(
    bench: Bench, service: GameService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that takes no commit for hours: no player could move meanwhile."""
    game = service.open_game(make_opening(make_log_genesis()))[0].receipt.game
    before = service.state(game).now

    def fail(connection: Connection) -> None:
        raise StorageError("the disk is full", where="database")

    with monkeypatch.context() as patch:
        patch.setattr(GameService, "_flush", lambda *_: fail(_[1]))
        for _ in range(100):
            bench.hands.ticks += 10 * LIMITS.beat
            with pytest.raises(StorageError):
                service.beat()
    service.beat()
    assert service.state(game).now - before <= LIMITS.gap
    assert not service.state(game).over
    assert CLOCKS.join < 1000 * LIMITS.beat
