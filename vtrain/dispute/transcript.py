"""A game as the list of its moves with their times, from which anyone comes to the same verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vtrain.dispute.game import advance, apply, start
from vtrain.dispute.state import DisputedGraph, Game
from vtrain.dispute.statement import compose
from vtrain.errors import MoveRefusedError, VtrainError
from vtrain.wire.dispute import Genesis, Open, SignedMove, decode_move
from vtrain.wire.graph import StepGraph


@dataclass(frozen=True)
class TimedMove:
    """A move made at ``at`` (milliseconds of the game); None says that time alone passed."""

    at: int
    move: SignedMove | None


def replay(
    genesis: Genesis, graph: StepGraph | DisputedGraph, entries: Iterable[TimedMove]
) -> Game:
    """The game that ``entries`` make of ``genesis``.

    SignatureError when the genesis is not signed by its solver; MoveRefusedError, whose ``where``
    counts the entries from 0, for a move that the rules do not allow where it stands.
    """
    game = start(genesis, graph)
    for index, entry in enumerate(entries):
        game = make(game, entry, f"entry {index}")
    return game


def make(game: Game, entry: TimedMove, where: str) -> Game:
    """One entry of a transcript; MoveRefusedError names ``where`` and why."""
    try:
        if entry.move is None:
            return advance(game, entry.at)
        return apply(game, entry.move, entry.at)
    except VtrainError as error:
        raise MoveRefusedError(str(error), where=where) from error


def find_statements(
    genesis: Genesis, graph: StepGraph | DisputedGraph, entries: Iterable[TimedMove]
) -> list[bytes]:
    """What the referee was asked in a game, in order; ``vtrain referee`` judges it again.

    One for each accepted opening.  Errors are those of :func:`replay`.
    """
    game, found = start(genesis, graph), []
    for index, entry in enumerate(entries):
        after = make(game, entry, f"entry {index}")
        if entry.move is not None:
            move = decode_move(entry.move.move)
            if isinstance(move, Open):
                before = advance(game, entry.at)
                ((contest, dispute),) = before.asked[entry.move.about].where
                found.append(compose(before, contest, dispute, move))
        game = after
    return found
