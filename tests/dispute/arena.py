"""Games between players, on a clock that jumps to the next thing that happens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.genesis import make_genesis
from vtrain.dispute.provider import TraceProvider
from vtrain.dispute.state import Game, Verdict
from vtrain.errors import MoveRefusedError
from vtrain.train.task import CompiledTask
from vtrain.wire import structs
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import Clocks, Genesis, SignedMove

CLOCKS = Clocks(join=1000, trace=1000, terms=1000, match=2000, grace=100)
LATENCY = 1
"""Milliseconds that a move takes."""


class Actor(Protocol):
    """Whoever takes part: sees the game, and sends what it likes."""

    def moves(self, game: Game) -> Iterable[SignedMove]: ...


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
    nonce: bytes = bytes(32),
) -> Genesis:
    """A game about the claim of ``provider``, signed by ``key``."""
    log = provider.log()
    claim = Claim(b"r" * 32, public_key(key), task.task_id, log.size, log.root)
    signed = sign_claim(claim, key)
    return make_genesis(
        task.spec, task.graph, signed, opened=0, clocks=clocks, arity=arity, nonce=nonce
    )


@dataclass
class Play:
    """A game that was played: its end, and what it took."""

    game: Game
    verdict: Verdict
    refused: int
    moves: dict[bytes, int] = field(default_factory=dict)
    sent_bytes: dict[bytes, int] = field(default_factory=dict)
    transcript: list[tuple[int, SignedMove]] = field(default_factory=list)


def play(genesis: Genesis, actors: Sequence[Actor], *, limit: int = 100_000) -> Play:
    """Let all move, in turn, until there is a verdict; each move takes ``LATENCY``.

    When nobody moves, time goes on to the next deadline.
    """
    game = start(genesis)
    result = Play(game, Verdict(b"", b"", None, (), ()), 0)
    for _ in range(limit):
        accepted = 0
        for actor in actors:
            for signed in actor.moves(game):
                try:
                    game = apply(game, signed, game.now + LATENCY)
                except MoveRefusedError as error:
                    print(error)
                    result.refused += 1
                    continue
                finally:
                    size = len(structs.encode(signed))
                    party = signed.party
                    result.sent_bytes[party] = result.sent_bytes.get(party, 0) + size
                accepted += 1
                result.moves[signed.party] = result.moves.get(signed.party, 0) + 1
                result.transcript.append((game.now, signed))
        verdict = find_verdict(game)
        if verdict is not None:
            result.game, result.verdict = game, verdict
            return result
        if accepted == 0:
            due = find_deadline(game)
            assert due is not None, "a game that goes on has a deadline"
            game = advance(game, due[0])
    raise AssertionError(f"no verdict after {limit} rounds")
