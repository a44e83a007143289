"""The escrow of examples/marketplace: what it pays for, and what it does not."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.dispute.arena import make_key
from tests.dispute.log_claims import (
    BROKEN,
    HONEST,
    LIAR,
    Hands,
    LogPlayer,
    bond,
    get_task,
    make_claim,
    make_log,
)
from tests.examples.running import run
from vtrain.attest.keys import public_key
from vtrain.dispute.arbiter import Arbiter, describe_bond, make_settlement
from vtrain.dispute.game import apply
from vtrain.dispute.problems import BondRefusedError, TermsError
from vtrain.dispute.state import Game
from vtrain.errors import MoveRefusedError, SignatureError

CLIENT, HOST, OTHER = map(make_key, (9, 8, 7))


class Place:
    """The market of the example with its arbiter, in a time that the test turns.

    Client, solver (the liar), an honest party and another have 200 each; the solver has a deal.
    """

    def __init__(self, market: Any) -> None:
        self.market, self.hands = market, Hands()
        self.escrow = market.Escrow({public_key(k): 200 for k in (CLIENT, LIAR, HONEST, OTHER)})
        self.arbiter = Arbiter(HOST, self.escrow, self.hands)
        self.escrow.post(get_task().task_id, public_key(CLIENT), public_key(LIAR))

    def deliver(self, signed: Any) -> bytes:
        return bytes(self.escrow.deliver(self.arbiter, get_task(), signed))

    def play(self, game: bytes, players: Sequence[LogPlayer] = ()) -> Game:
        while (wait := self.arbiter.tick()) is not None:
            before = self.arbiter.game(game)
            for move in [move for player in players for move in player.moves(before)]:
                self.hands.at += 1
                with suppress(MoveRefusedError):
                    self.arbiter.submit(move)
            if self.arbiter.game(game).moves == before.moves:
                self.hands.at += wait
        return self.arbiter.game(game)

    @property
    def money(self) -> list[int]:
        """Of client, solver, honest and other party; of all, nothing is made or lost."""
        escrow = self.escrow
        found = [escrow.accounts[public_key(k)] for k in (CLIENT, LIAR, HONEST, OTHER)]
        assert sum(found) + escrow.held + escrow.burned == 800
        return found


@pytest.fixture
def place(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.syspath_prepend(repository / "examples" / "marketplace")
    return Place(importlib.import_module("market"))


@pytest.mark.slow
def test_a_market_settles_by_verdicts(repository: Path) -> None:
    out = run(repository, "marketplace/three_deliveries.py")
    ledgers = [
        {name: int(amount) for name, amount in re.findall(r"(\w+) (\d+)", line)}
        for line in out.splitlines()
        if line.startswith("   client ")
    ]
    assert all(sum(ledger.values()) == 2500 and ledger["escrow"] == 0 for ledger in ledgers)
    begin, believed, attacked, false = ledgers
    assert [ledger["burned"] for ledger in ledgers] == [0, 0, 0, 25]
    assert begin["solver"] == begin["client"] == 500
    assert (believed["solver"], believed["client"]) == (600, 400)
    assert attacked["solver"] == believed["solver"] + 100 + 2 * 30
    assert attacked["mallory"] == attacked["trudy"] == 470
    assert attacked["alice"] == 500
    assert false["client"] == attacked["client"]
    assert false["solver"] == attacked["solver"] - 50
    assert false["alice"] == 500 + 25 + 30
    assert false["trudy"] == attacked["trudy"] - 30
    assert "fell: refuted at step 7," in out
    page = (repository / "examples" / "marketplace" / "README.md").read_text()
    assert out in page


def test_a_cheat_that_challenges_itself_loses_the_burn(place: Place) -> None:
    game = place.deliver(make_claim(make_log(BROKEN)))
    players = [LogPlayer(LIAR, make_log(BROKEN)), LogPlayer(HONEST, make_log())]
    place.play(game, players)
    client, liar, friend, _ = place.money
    assert client == 200
    assert liar + friend == 400 - place.market.BURN
    assert (place.escrow.held, place.escrow.burned) == (0, place.market.BURN)


def test_a_claim_of_one_step_is_no_delivery(place: Place) -> None:
    """It may well be true, and nobody would dispute it."""
    with pytest.raises(TermsError, match="of 1 steps and not of all 40"):
        place.deliver(make_claim(make_log(steps=1)))
    place.play(place.deliver(make_claim(make_log())))
    assert place.money == [100, 300, 200, 200]


def test_a_game_about_another_claim_neither_pays_nor_blocks(place: Place) -> None:
    task = get_task()
    terms = {"clocks": place.market.CLOCKS, "bonds": place.market.BONDS}
    for signed in (make_claim(make_log(loss=1)), make_claim(make_log(loss=1), key=OTHER)):
        with pytest.raises(BondRefusedError, match="nobody pays for this claim"):
            place.arbiter.open(task.spec, task.graph, signed, **terms)
    with pytest.raises(BondRefusedError, match="nobody pays this solver"):
        place.deliver(make_claim(make_log(loss=1), key=OTHER))
    game = place.deliver(make_claim(make_log()))
    with pytest.raises(BondRefusedError):
        place.arbiter.open(task.spec, task.graph, make_claim(make_log(loss=1)), **terms)
    place.play(game)
    assert place.money == [100, 300, 200, 200]


def test_nobody_delivers_in_the_name_of_a_solver(place: Place) -> None:
    forged = replace(make_claim(make_log(BROKEN)), signature=bytes(64))
    with pytest.raises(SignatureError):
        place.deliver(forged)
    place.play(place.deliver(make_claim(make_log())))
    assert place.money == [100, 300, 200, 200]


def test_a_solver_delivers_once(place: Place) -> None:
    first = make_claim(make_log(BROKEN))
    game = place.deliver(first)
    with pytest.raises(BondRefusedError, match="another claim is delivered already"):
        place.deliver(make_claim(make_log()))
    assert place.deliver(first) == game
    end = place.play(game, [LogPlayer(HONEST, make_log())])
    accounts = place.money
    place.escrow.settle(make_settlement(end))
    assert place.money == accounts
    with pytest.raises(BondRefusedError, match="posted already"):
        place.escrow.post(get_task().task_id, public_key(CLIENT), public_key(LIAR))


def test_one_game_pays_whoever_opens_another(place: Place) -> None:
    """As anybody may at a service, at another host, or after a restart."""
    signed = make_claim(make_log())
    first = place.deliver(signed)
    again = Arbiter(make_key(5), place.escrow, Hands())
    with pytest.raises(BondRefusedError, match="has game"):
        place.escrow.deliver(again, get_task(), signed)
    place.play(first)
    with pytest.raises(BondRefusedError, match="has game"):
        place.escrow.deliver(again, get_task(), signed)
    assert place.money == [100, 300, 200, 200]


def test_a_game_has_the_terms_of_the_market(place: Place) -> None:
    """In shorter clocks nobody could join, dearer bonds nobody could pay."""
    task, signed, market = get_task(), make_claim(make_log()), place.market
    place.escrow.accept(signed)
    clocks = replace(market.CLOCKS, join=1)
    bonds = replace(market.BONDS, log=10**6)
    for terms in (
        {"clocks": clocks, "bonds": market.BONDS},
        {"clocks": market.CLOCKS, "bonds": bonds},
    ):
        with pytest.raises(BondRefusedError, match="this market has"):
            place.arbiter.open(task.spec, task.graph, signed, **terms)


def test_a_client_without_money_posts_nothing(place: Place) -> None:
    parties = public_key(OTHER), public_key(make_key(6))
    with pytest.raises(BondRefusedError, match="needs 50"):
        place.escrow.post(b"t" * 32, *parties)
    assert place.money == [100, 150, 200, 200]


def test_two_copies_of_a_bond_are_locked_once_and_released_one_by_one(place: Place) -> None:
    """As a service of several processes asks of its market."""
    game = place.arbiter.game(place.deliver(make_claim(make_log(BROKEN))))
    signed = bond(game, HONEST, make_log().root)
    claim = describe_bond(game, apply(game, signed, game.now), signed)
    for _ in range(2):
        place.escrow.lock(claim)
    place.escrow.release(claim)
    assert place.money[2] == 200 - place.market.BONDS.log
    place.escrow.release(claim)
    place.escrow.release(claim)
    assert place.money[2] == 200
