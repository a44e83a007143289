"""Games of many, all of whom move at the same time, and what they took.

``tests.dispute.arena`` lets one move after another, so that its clock counts moves; here the clock
tells how long a game takes however many play it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.dispute.arena import Actor, make_key
from tests.dispute.toy import CLOCKS, Lie, ToyProvider, ToyRun, make_toy_genesis
from vtrain.attest.keys import public_key
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.players import Player
from vtrain.dispute.state import Game, Verdict
from vtrain.errors import MoveRefusedError
from vtrain.wire import structs
from vtrain.wire.dispute import Bond, Clocks, Genesis, Move, Open, Reveal, SignedMove, decode_move


class Silent:
    """Whoever bonds as ``player`` does, and then says nothing."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def moves(self, game: Game) -> Iterable[SignedMove]:
        for signed in self._player.moves(game):
            if isinstance(decode_move(signed.move), Bond):
                yield signed


class Accomplice:
    """One of a gang: of two of its claims in a match the greater root wins, by the other's silence.

    So half of them are left after each round, the most that there can be, to meet whoever plays
    against all.
    """

    def __init__(self, player: Player, gang: set[bytes]) -> None:
        self._player, self._gang = player, gang
        gang.add(player.party)

    def moves(self, game: Game) -> Iterable[SignedMove]:
        for signed in self._player.moves(game):
            move = decode_move(signed.move)
            if isinstance(move, Bond) or not self._yields(game, move):
                yield signed

    def _yields(self, game: Game, move: Move) -> bool:
        if not isinstance(move, Reveal | Open):
            return False
        match = game.matches[move.match]
        tournament = game.tournaments[match.tournament]
        mine = tournament.backed_by(self._player.party)
        (other,) = (entry for entry in match.sides if entry != mine)
        theirs = tournament.entries[other]
        return self._gang.issuperset(theirs.backers) and tournament.entries[mine].root < theirs.root


@dataclass
class Record:
    """What a game took: accepted moves and all bytes sent, by party; seconds of thinking by actor,
    and of the machine and its referee.

    ``opening`` is the last one accepted, with the game that it was made in.
    """

    game: Game
    verdict: Verdict
    moves: Counter[bytes] = field(default_factory=Counter)
    sent_bytes: Counter[bytes] = field(default_factory=Counter)
    refused: Counter[bytes] = field(default_factory=Counter)
    thinking: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    judging: float = 0.0
    opening: tuple[Game, SignedMove] | None = None

    def count_matches(self, party: bytes) -> int:
        """Matches of claims that ``party`` stood behind."""
        return sum(
            self.game.tournaments[match.tournament].backed_by(party) in match.sides
            for match in self.game.matches
        )

    def count_claims(self) -> dict[str, int]:
        """The most claims in a tournament about the log, about a trace and about a fold."""
        counts = {"log": 0, "trace": 0, "terms": 0}
        for tournament in self.game.tournaments:
            tree = tournament.tree
            counts[tree] = max(counts[tree], len(tournament.entries))
        return counts

    def bound_matches(self) -> int:
        """The most matches of whoever backs a true claim: docs/dispute.md.

        In a tournament of n claims ceil(log2(n)), each with a nested one, and so on.
        """
        bound = 0
        for count in reversed(self.count_claims().values()):
            bound = (count - 1).bit_length() * (1 + bound) if count else 0
        return bound

    def count_rounds(self) -> int:
        """Exchanges of a game between two claims.

        In a round all that is asked for at one time is answered: both sides' frontiers, both
        sides' sub-claims, or an opening, which either side may send.
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
                record.sent_bytes[signed.party] += len(structs.encode(signed))
                try:
                    after = apply(game, signed, now)
                except MoveRefusedError:
                    record.refused[signed.party] += 1
                    continue
                if isinstance(decode_move(signed.move), Open):
                    record.opening = (game, signed)
                game = after
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


HONEST_KEY = make_key(1)
HONEST = public_key(HONEST_KEY)


def play_pair(run: ToyRun, arity: int = 16) -> Record:
    """An honest solver against a challenger with a false product, to the end."""
    honest, liar = ToyProvider(run), ToyProvider(run, Lie(run.real[0], loss=1, product=1))
    genesis = make_toy_genesis(honest, HONEST_KEY, arity=arity)
    return play_together(genesis, [Player(honest, HONEST_KEY), Player(liar, make_key(2))])


def play_gang(
    run: ToyRun,
    lies: Sequence[Lie],
    *,
    hijacked: bool = False,
    clocks: Clocks = CLOCKS,
    latency: int = 1,
) -> Record:
    """An honest party against a gang, each with a lie of their own.

    Hijackers, whose claim the game is about then, back the honest claim and its true sub-claims
    before the honest party does and never move for them, and bond false sub-claims in its name.
    """
    truth, step, gang = ToyProvider(run), run.real[0], set[bytes]()
    hijackers = [Lie(step), Lie(step, product=-1), Lie(step, detour=1)] if hijacked else []
    actors: list[Actor] = [
        Silent(Player(ToyProvider(run, lie), make_key(2 + i))) for i, lie in enumerate(hijackers)
    ]
    actors.append(Player(truth, HONEST_KEY))
    for number, lie in enumerate(lies, start=100):
        actors.append(Accomplice(Player(ToyProvider(run, lie), make_key(number)), gang))
    genesis = make_toy_genesis(truth, make_key(2) if hijacked else HONEST_KEY, clocks=clocks)
    return play_together(genesis, actors, latency=latency)
