"""Deposits: entered by the operator, locked by bonds, shared by the verdict; none made or lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.dispute.arena import make_key
from tests.dispute.service.conftest import Bench
from tests.dispute.service.live import TOKEN, serving
from tests.dispute.service.logs import (
    BONDS,
    CLOCKS,
    HONEST,
    SERVICE_KEY,
    LogPlayer,
    make_bond,
    make_log,
    make_log_genesis,
    make_opening,
    make_players,
)
from tests.dispute.service.postgres import PostgresServer
from vtrain.attest.keys import public_key
from vtrain.cli import run as call
from vtrain.dispute.market import BondClaim, MemoryMarket
from vtrain.dispute.problems import (
    BondRefusedError,
    ConflictError,
    RequestError,
    find_refusal,
)
from vtrain.dispute.service.games import GameService
from vtrain.dispute.service.ledger import MOST, Balance, Ledger
from vtrain.dispute.service.store import Store
from vtrain.errors import StorageError
from vtrain.wire import structs

PARTY = bytes(range(32))


@pytest.fixture
def ledger(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    other = f"sqlite:///{tmp_path}/deposits.db"
    if url.startswith("postgres"):
        server: PostgresServer = request.getfixturevalue("postgres")
        other = server.make_database()
    with closing(Ledger(other)) as found:
        yield found


def make_claim(number: int, amount: int = 60) -> BondClaim:
    key = number.to_bytes(32, "big")
    return BondClaim(key, bytes(32), PARTY, "log", bytes(32), bytes(32), amount)


def test_entries_count_once(ledger: Ledger) -> None:
    assert ledger.enter(PARTY, 100, "wire 1") == Balance(100, 0)
    assert ledger.enter(PARTY, 100, "wire 1") == Balance(100, 0)
    with pytest.raises(ConflictError):
        ledger.enter(PARTY, 50, "wire 1")
    assert ledger.enter(PARTY, -30, "paid 1") == Balance(70, 0)
    for amount in (-71, MOST):
        with pytest.raises(RequestError):
            ledger.enter(PARTY, amount, f"too much {amount}")
    assert ledger.find(PARTY) == Balance(70, 0)


def test_locks_count(ledger: Ledger) -> None:
    ledger.enter(PARTY, 100, "wire 1")
    for _ in range(2):
        ledger.lock(make_claim(1))
    assert ledger.find(PARTY) == Balance(40, 60)
    with pytest.raises(BondRefusedError):
        ledger.lock(make_claim(2))
    with pytest.raises(RequestError):
        ledger.enter(PARTY, -41, "paid 1")
    ledger.release(make_claim(2))
    ledger.release(make_claim(1))
    assert ledger.find(PARTY) == Balance(40, 60)
    for _ in range(2):
        ledger.release(make_claim(1))
    assert ledger.find(PARTY) == Balance(100, 0)


def test_a_game_for_money(bench: Bench, ledger: Ledger) -> None:
    bench.market = ledger
    honest, liar = public_key(HONEST), public_key(make_key(4))
    ledger.enter(honest, 150, "1")
    ledger.enter(liar, 100, "2")
    service = bench.start()
    genesis = make_log_genesis(bonds=BONDS)
    game = service.open_game(make_opening(genesis))[0].receipt.game
    service.submit_move(game, structs.encode(make_bond(game, make_log(9).root, make_key(4))))
    poor = structs.encode(make_bond(game, make_log(7).root, make_key(5)))
    with pytest.raises(BondRefusedError) as caught:
        service.submit_move(game, poor)
    assert find_refusal(caught.value)
    service.submit_move(game, structs.encode(make_bond(game, make_log().root, HONEST))).result()
    assert (ledger.find(honest), ledger.find(liar)) == (Balance(50, 100), Balance(0, 100))
    players = (*make_players(), LogPlayer(4, 9))
    while not service.list_games(0, 1)[0][2]:
        sent = [
            service.submit_move(game, structs.encode(move)).result()
            for player in players
            for move in player.moves(service.state(game))
        ]
        if not sent:
            bench.pass_time(service, CLOCKS.join)
    for _ in range(2):
        assert service.settle_games() == []
    assert (ledger.find(honest), ledger.find(liar)) == (Balance(250, 0), Balance(0, 0))


def test_games_and_deposits_in_one_database(url: str) -> None:
    with closing(Store(url)), closing(Ledger(url)) as ledger:
        ledger.enter(PARTY, 1, "1")
    with closing(Store(url)), closing(Ledger(url)) as ledger:
        assert ledger.find(PARTY) == Balance(1, 0)


def test_deposits_are_not_served_for_free(url: str) -> None:
    """Whoever paid in would play for nothing, with others who filled the games for nothing."""
    with closing(Ledger(url)) as ledger, closing(Store(url)) as store:
        ledger.enter(PARTY, 5, "1")
        with pytest.raises(StorageError, match="holds deposits"):
            GameService(store, SERVICE_KEY, MemoryMarket(), free=True)
        ledger.lock(make_claim(1, amount=5))
        with pytest.raises(StorageError, match="holds deposits"):
            GameService(store, SERVICE_KEY, MemoryMarket(), free=True)
        ledger.release(make_claim(1, amount=5))
        ledger.enter(PARTY, -5, "2")
        GameService(store, SERVICE_KEY, MemoryMarket(), free=True).close()
        ledger.enter(PARTY, 5, "3")  # what is free already stays as it is
        GameService(store, SERVICE_KEY, MemoryMarket(), free=True).close()


def test_the_operator_enters_deposits(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    entry = {"party": PARTY.hex(), "amount": 5, "reference": "1"}
    with (
        closing(Ledger(f"sqlite:///{tmp_path}/deposits.db")) as ledger,
        serving(f"sqlite:///{tmp_path}/games.db", SERVICE_KEY, market=ledger) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert client.post("/v1/deposits", json=entry).status_code == 401
        assert client.get(f"/v1/deposits/{PARTY.hex()}").status_code == 401
        told = client.post("/v1/deposits", json=entry, headers=headers).json()
        assert told == {"party": PARTY.hex(), "free": 5, "locked": 0}
        assert client.get(f"/v1/deposits/{PARTY.hex()}", headers=headers).json() == told
        for bad in ({"amount": 6}, {"amount": "x"}, {"party": "0"}, {"amount": 2**60}):
            answer = client.post("/v1/deposits", json=entry | bad, headers=headers)
            assert answer.status_code in (409, 422)


def test_bonds_are_required_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key.pem"
    assert call(["key", "new", str(key)]) == 0
    line = ["serve", "--db", f"sqlite:///{tmp_path}/games.db", "--key", str(key)]
    deposits = ["--deposits", f"sqlite:///{tmp_path}/deposits.db"]
    for more in ([], [*deposits, "--free-bonds"], deposits):
        assert call([*line, *more]) == 2
    told = capsys.readouterr().err
    assert "--free-bonds" in told
    assert "--token" in told
