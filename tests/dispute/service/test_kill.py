"""A real server is killed with SIGKILL in mid-traffic and started again, several times."""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.dispute.service.logs import (
    HONEST,
    LEAST,
    LogPlayer,
    get_documents,
    make_bond,
    make_log,
    make_log_genesis,
    make_players,
)
from vtrain.attest.keys import generate_key, public_key
from vtrain.dispute.client import DisputeClient, Follower
from vtrain.dispute.game import find_verdict
from vtrain.dispute.problems import BusyError
from vtrain.dispute.receipts import SignedReceipt
from vtrain.dispute.state import compute_game_id
from vtrain.errors import MoveRefusedError
from vtrain.wire import structs
from vtrain.wire.dispute import Genesis, SignedMove

T = TypeVar("T")

GAMES = 6
KILLS = 3
DEADLINE = 240.0
SHORT = replace(LEAST, join=2_000, trace=2_000, terms=1_000, budget=600_000)


class Server:
    """``vtrain serve`` in a process of its own, always at the same port."""

    def __init__(self, db: str, key: Path) -> None:
        self._command = [
            *(sys.executable, "-m", "tests.dispute.service.serve_worker"),
            *(db, str(key)),
        ]
        self._port = 0
        self.url, self.key = "", b""
        self.is_up = threading.Event()
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*self._command, str(self._port)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[3],
        )
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(DEADLINE), "the service does not start"
        url, key = self._process.stdout.readline().decode().split()
        self.url, self.key = url, bytes.fromhex(key)
        self._port = int(url.rpartition(":")[2])
        self.is_up.set()

    def kill(self) -> None:
        self.is_up.clear()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Traffic:
    """Plays games through a client, and remembers every receipt."""

    def __init__(self, server: Server, genesis: list[Genesis], player: LogPlayer) -> None:
        self._server, self._genesis, self._player = server, genesis, player
        self.receipts: dict[bytes, SignedReceipt] = {}
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            client = DisputeClient(self._server.url, self._server.key, pause=self._wait)
            followers = [self._again(Follower, client, compute_game_id(g)) for g in self._genesis]
            while not all(follower.verdict for follower in followers):
                for follower in followers:
                    self._again(follower.poll)
                    for signed in self._player.moves(follower.game):
                        self._send(client, signed)
        except BaseException as error:
            self.error = error
            raise

    def _send(self, client: DisputeClient, signed: SignedMove) -> None:
        # Each move twice, as a client would that never heard the first answer.
        for _ in range(2):
            try:
                receipt = self._again(client.move, signed)
            except MoveRefusedError:
                assert structs.encode(signed) not in self.receipts, "an accepted move is refused"
                return
            assert self.receipts.setdefault(structs.encode(signed), receipt) == receipt

    def _wait(self, _: float = 0) -> None:
        """Until the server is started again, if it is down: not at all where it lives."""
        self._server.is_up.wait(DEADLINE)

    def _again(self, function: Callable[..., T], *arguments: Any) -> T:
        until = time.monotonic() + DEADLINE
        while True:
            try:
                return function(*arguments)
            except BusyError:
                assert time.monotonic() < until, "the service stays away"
                self._wait()


@pytest.fixture
def server(url: str, tmp_path: Path) -> Iterator[Server]:
    key = tmp_path / "service.pem"
    generate_key(key)
    found = Server(url, key)
    yield found
    found.kill()


@pytest.mark.slow
def test_no_move_is_lost_or_doubled(server: Server) -> None:
    client = DisputeClient(server.url, server.key)
    genesis = [make_log_genesis(i, arity=2, clocks=SHORT, host=server.key) for i in range(GAMES)]
    games = [_open(client, g) for g in genesis]
    traffic = [Traffic(server, genesis, player) for player in make_players()]
    for each in traffic:
        each.thread.start()
    for kill in range(1, KILLS + 1):
        _wait_for_moves(client, games, GAMES + kill * 20)
        server.kill()
        server.start()
    for each in traffic:
        each.thread.join(DEADLINE)
        assert not each.thread.is_alive()
        assert each.error is None
    answered = traffic[0].receipts | traffic[1].receipts
    stored: list[bytes] = []
    for game in games:
        follower = Follower(client, game)
        follower.poll()
        moves = [e for e in follower.events if e.signed.receipt.kind == "move"]
        stored += [event.body for event in moves]
        for event in moves:
            assert answered.get(event.body, event.signed) == event.signed
        verdict = find_verdict(follower.game)
        assert verdict is not None
        assert verdict.standing == make_log().root
        assert verdict == client.verdict(game)[0]
    assert len(stored) == len(set(stored)), "a move took effect twice"
    assert answered.keys() <= set(stored), "an accepted move is lost"
    assert len(stored) == 19 * GAMES


def _open(client: DisputeClient, genesis: Genesis) -> bytes:
    """Open a game that the honest player has joined: on a busy machine, time to join is short."""
    game = client.open(genesis, *get_documents()).receipt.game
    client.move(make_bond(game, make_log().root, HONEST))
    return game


def _wait_for_moves(client: DisputeClient, games: list[bytes], count: int) -> None:
    """Until the games have so many moves, or no more are to come."""
    until = time.monotonic() + DEADLINE
    while True:
        views = [client.view(game) for game in games]
        if sum(view["moves"] for view in views) >= count or all(v["verdict"] for v in views):
            return
        assert time.monotonic() < until, "no traffic"


def test_public_key_of_worker(server: Server, tmp_path: Path) -> None:
    from vtrain.attest.keys import load_key

    assert server.key == public_key(load_key(tmp_path / "service.pem"))
