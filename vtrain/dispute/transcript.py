"""A game as the list of its moves with their times, from which anyone comes to the same verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vtrain.dispute.game import advance, apply, start
from vtrain.dispute.state import Game
from vtrain.errors import MoveRefusedError, VtrainError
from vtrain.wire.dispute import Genesis, SignedMove


@dataclass(frozen=True)
class TimedMove:
    """A move made at ``at`` (milliseconds of the game's clock); None says that time alone passed."""

    at: int
    move: SignedMove | None


def replay(genesis: Genesis, entries: Iterable[TimedMove]) -> Game:
    """The game that ``entries`` make of ``genesis``.

    SignatureError when the genesis is not signed by its solver; MoveRefusedError, whose ``where``
    counts the entries from 0, for a move that the rules do not allow where it stands.
    """
    game = start(genesis)
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
