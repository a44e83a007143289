"""Tiny real games: two claims about logs made by hand, which differ in one record.

The liar's differing leaf is no record at all, so that its claim falls as "malformed" the moment it
is revealed: no engine is needed, and every move is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from tests.dispute.arena import make_key
from tests.tasks import make_tiny_task
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.consequences import get_depth
from vtrain.dispute.game import sign
from vtrain.dispute.genesis import FREE, make_genesis
from vtrain.dispute.provider import MerkleTree
from vtrain.dispute.receipts import Opening
from vtrain.dispute.state import DisputedGraph, Game, compute_fact_id
from vtrain.spec.domains import RUN_LOG
from vtrain.train.task import CompiledTask
from vtrain.wire import structs
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import Bond, Bonds, Clocks, Genesis, Reveal, SignedMove
from vtrain.wire.graph import encode_graph
from vtrain.wire.record import StepRecord, encode_record
from vtrain.wire.task import encode_task

SIZE = 300
COMMIT_EVERY = 5
BROKEN = 123
CLOCKS = Clocks(
    join=60_000,
    trace=60_000,
    terms=15_000,
    budget=60_000,
    grace=5_000,
    answer=0,
    opening=0,
    replay=0,
)
LEAST = Clocks(join=1, trace=1, terms=1, budget=1, grace=1, answer=0, opening=0, replay=0)
"""For services that host games as short as the rules allow."""
BONDS = Bonds(log=100, trace=10, terms=1)
SERVICE_KEY = make_key(99)
HOST = public_key(SERVICE_KEY)
LIAR, HONEST = make_key(1), make_key(2)


@cache
def get_task() -> CompiledTask:
    """The task that all these games are about."""
    return make_tiny_task("mlp", steps=SIZE, commit_every=COMMIT_EVERY)


@cache
def make_log(broken: int = -1) -> MerkleTree:
    """300 records; the one of index ``broken`` is none."""
    leaves = [
        encode_record(
            StepRecord(i + 1, bytes(32), i, bytes(32) if (i + 1) % COMMIT_EVERY == 0 else b"")
        )
        for i in range(SIZE)
    ]
    if broken >= 0:
        leaves[broken] = b"no record"
    return MerkleTree(RUN_LOG, leaves)


def make_log_genesis(
    number: int = 0,
    *,
    arity: int = 16,
    clocks: Clocks = CLOCKS,
    opened: int = 0,
    host: bytes = HOST,
    bonds: Bonds = FREE,
) -> Genesis:
    """Game ``number`` about the liar's log."""
    return replace(
        _make_genesis(host),
        arity=arity,
        clocks=clocks,
        bonds=bonds,
        opened=opened,
        nonce=number.to_bytes(32, "big"),
    )


@cache
def _make_genesis(host: bytes) -> Genesis:
    task, log = get_task(), make_log(BROKEN)
    claim = Claim(b"r" * 32, public_key(LIAR), task.task_id, log.size, log.root)
    return make_genesis(task.spec, task.graph, sign_claim(claim, LIAR), host=host, opened=0)


@cache
def get_graph() -> DisputedGraph:
    """The graph of all these games."""
    task = get_task()
    return DisputedGraph(task.graph, task.spec.graph_root)


def make_bond(game: bytes, root: bytes, key: PrivateKey) -> SignedMove:
    """A bond behind a claim of the log."""
    return sign(game, game, Bond(root, b"", ()), key)


def make_opening(genesis: Genesis) -> bytes:
    """The body that opens a game."""
    return structs.encode(Opening(genesis, *get_documents()))


def get_documents() -> tuple[bytes, bytes]:
    """Canonical task and graph."""
    task = get_task()
    return encode_task(task.spec), encode_graph(task.graph)


@dataclass
class LogPlayer:
    """Plays a log's claim as far as the log goes; ``key`` is number 1 for the liar, 2 honest."""

    number: int
    broken: int
    waits: ClassVar[bool] = False
    """It has everything at hand."""

    def moves(self, game: Game) -> Iterator[SignedMove]:
        key, log = make_key(self.number), make_log(self.broken)
        if game.over:
            return
        if (game.id, public_key(key)) not in game.stands:
            if game.round == 0 or log.root in game.logs:
                yield sign(game.id, game.id, Bond(log.root, b"", ()), key)
            return
        for group in game.groups:
            contest = game.contests[group]
            own = game.find_own(contest, public_key(key))
            for asking in contest.asking:
                dispute = contest.disputes[asking]
                for value, asked in dispute.classes.items():
                    if not dispute.leaf and asked.owing & own:
                        items = log.frontier(dispute.start, dispute.end, get_depth(game.genesis))
                        about = compute_fact_id(dispute, value)
                        yield sign(game.id, about, Reveal(items), key)


def make_players() -> tuple[LogPlayer, LogPlayer]:
    """The liar and the honest one."""
    return LogPlayer(1, BROKEN), LogPlayer(2, -1)


def spoil(signed: SignedMove) -> SignedMove:
    """The same move with one bit of its signature flipped."""
    return replace(signed, signature=bytes([signed.signature[0] ^ 1]) + signed.signature[1:])
