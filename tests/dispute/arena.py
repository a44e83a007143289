"""Games between players, on a clock that jumps to the next thing that happens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.provider import TraceProvider
from vtrain.dispute.state import DisputedGraph, Game, Verdict
from vtrain.dispute.transcript import TimedMove
from vtrain.errors import VtrainError
from vtrain.train.task import CompiledTask
from vtrain.wire import structs
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import Bonds, Clocks, Genesis, SignedMove
from vtrain.wire.graph import StepGraph

CLOCKS = Clocks(
    join=1000, trace=1000, terms=1000, budget=2000, grace=100, answer=1, opening=1, replay=50
)
BONDS = Bonds(log=1000, trace=100, terms=10)
HOST = bytes(32)
LATENCY = 1
"""Milliseconds that a move takes."""


class Actor(Protocol):
    """Whoever takes part: sees the game, and sends what it likes."""

    def moves(self, game: Game) -> Iterable[SignedMove]: ...


@runtime_checkable
class Sleeper(Protocol):
    """An actor who wants to be asked again at some time, when nobody else moves before."""

    def wakes(self, game: Game) -> int | None: ...


def make_key(number: int) -> PrivateKey:
    """Key number ``number``, the same in every test."""
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))


def make_game(
    task: CompiledTask,
    provider: TraceProvider,
    key: PrivateKey,
    *,
    clocks: Clocks = CLOCKS,
    arity: int = 16,
    group: int = 16,
    nonce: bytes = bytes(32),
) -> Genesis:
    """A game about the claim of ``provider``, signed by ``key``."""
    log = provider.log()
    claim = Claim(b"r" * 32, public_key(key), task.task_id, log.size, log.root)
    signed = sign_claim(claim, key)
    known = _CHECKED.get(id(task))
    if known is None or known[0].log_size != log.size:
        made = make_genesis(task.spec, task.graph, signed, host=HOST, opened=0)
        known = _CHECKED[id(task)] = (made, task)
    return replace(
        known[0],
        solver=claim.solver,
        log_root=claim.log_root,
        signature=signed.signature,
        clocks=clocks,
        arity=arity,
        group=group,
        bonds=BONDS,
        nonce=nonce,
    )


_CHECKED: dict[int, tuple[Genesis, CompiledTask]] = {}
"""A genesis of each task, which is held so that its id stays its own: checking a graph is slow."""


NO_VERDICT = Verdict(b"", b"", None, 0, 0, b"")


@dataclass
class Play:
    """A game that was played: its end, what it took, and the moves that were refused with why."""

    game: Game
    verdict: Verdict
    refused: int = 0
    moves: dict[bytes, int] = field(default_factory=dict)
    sent_bytes: dict[bytes, int] = field(default_factory=dict)
    transcript: list[TimedMove] = field(default_factory=list)
    errors: list[tuple[SignedMove, VtrainError]] = field(default_factory=list)


def play(
    genesis: Genesis,
    graph: StepGraph | DisputedGraph,
    actors: Sequence[Actor],
    *,
    limit: int = 100_000,
    wire: list[SignedMove] | None = None,
) -> Play:
    """Let all move, in turn, until there is a verdict; each move takes ``LATENCY``.

    When nobody moves, time goes on to the next deadline, or to when a ``Sleeper`` wakes.  ``wire``
    gets every move that is sent, also those that are refused.
    """
    game = start(genesis, graph)
    result = Play(game, NO_VERDICT)
    for _ in range(limit):
        accepted = 0
        for actor in actors:
            for signed in actor.moves(game):
                if wire is not None:
                    wire.append(signed)
                party = signed.party
                size = len(structs.encode(signed))
                result.sent_bytes[party] = result.sent_bytes.get(party, 0) + size
                try:
                    game = apply(game, signed, game.now + LATENCY)
                except VtrainError as error:
                    result.refused += 1
                    result.errors.append((signed, error))
                    continue
                accepted += 1
                result.moves[party] = result.moves.get(party, 0) + 1
                result.transcript.append(TimedMove(game.now, signed))
        verdict = find_verdict(game)
        if verdict is not None:
            result.game, result.verdict = game, verdict
            return result
        if accepted == 0:
            due = find_deadline(game)
            assert due is not None, "a game that goes on has a deadline"
            wakes = [actor.wakes(game) for actor in actors if isinstance(actor, Sleeper)]
            game = advance(game, min([due, *(at for at in wakes if at and at > game.now)]))
    raise AssertionError(f"no verdict after {limit} rounds")
