"""The migrations make exactly the tables that the code works with."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tests.dispute.service.conftest import Bench
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.store import metadata


def test_nothing_is_left_to_migrate(bench: Bench, service: GameService) -> None:
    with bench.store(service).read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_service_starts_on_a_migrated_database(bench: Bench, service: GameService) -> None:
    again = bench.start()
    assert again.list_games(0, 10) == service.list_games(0, 10) == []
