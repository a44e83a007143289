"""Games of many, all of whom move at the same time, and what they took.

``tests.dispute.arena`` lets one move after another, so that its clock counts moves; here the clock
tells how long a game takes however many play it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.dispute.arena import Actor
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.players import Player
from vtrain.dispute.state import Game, Verdict
from vtrain.errors import MoveRefusedError
from vtrain.wire import structs
from vtrain.wire.dispute import Bond, Genesis, Open, Reveal, SignedMove, decode_move


class Silent:
    """Whoever bonds as ``player`` does, and then says nothing."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def moves(self, game: Game) -> Iterable[SignedMove]:
        for signed in self._player.moves(game):
            if isinstance(decode_move(signed.move), Bond):
                yield signed


@dataclass
class Record:
    """What a game took: accepted moves and all bytes sent, by party; seconds of thinking by actor,
    and of the machine and its referee."""

    game: Game
    verdict: Verdict
    moves: Counter[bytes] = field(default_factory=Counter)
    sent_bytes: Counter[bytes] = field(default_factory=Counter)
    longest: Counter[str] = field(default_factory=Counter)
    refused: Counter[bytes] = field(default_factory=Counter)
    thinking: Counter[int] = field(default_factory=Counter)
    judging: float = 0.0

    def count_matches(self, party: bytes) -> int:
        """Matches of claims that ``party`` stood behind."""
        return sum(
            self.game.tournaments[match.tournament].backed_by(party) in match.sides
            for match in self.game.matches
        )

    def count_rounds(self) -> int:
        """Exchanges of a game between two claims: see docs/dispute.md.

        A match asks for its frontiers, and for an opening, ``round`` times after the first; a
        nested tournament is one exchange of bonds.
        """
        exchanges = sum(match.round + 1 for match in self.game.matches)
        return exchanges + len(self.game.tournaments) - 1


def play_together(
    genesis: Genesis, actors: Sequence[Actor], *, latency: int = 1, limit: int = 100_000
) -> Record:
    """Let all move at once until there is a verdict; an exchange takes ``latency`` milliseconds."""
    game = start(genesis)
    record = Record(game, Verdict(b"", b"", None, (), ()))
    for _ in range(limit):
        accepted, now = 0, game.now + latency
        for index, actor in enumerate(actors):
            begin = time.perf_counter()
            sent = list(actor.moves(game))
            record.thinking[index] += time.perf_counter() - begin
            begin = time.perf_counter()
            for signed in sent:
                size = len(structs.encode(signed))
                record.sent_bytes[signed.party] += size
                kind = type(decode_move(signed.move)).__name__
                record.longest[kind] = max(record.longest[kind], size)
                try:
                    game = apply(game, signed, now)
                except MoveRefusedError:
                    record.refused[signed.party] += 1
                else:
                    accepted += 1
                    record.moves[signed.party] += 1
            record.judging += time.perf_counter() - begin
        verdict = find_verdict(game)
        if verdict is not None:
            record.game, record.verdict = game, verdict
            return record
        if accepted == 0:
            due = find_deadline(game)
            assert due is not None, "a game that goes on has a deadline"
            game = advance(game, max(due[0], game.now))
    raise AssertionError(f"no verdict after {limit} rounds")
