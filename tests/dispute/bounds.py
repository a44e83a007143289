"""How many moves and how much time a game may take at most: a formula, from the rules alone.

With arity k = 2^d, a tree of n leaves is searched in R(n) = max(1, ceil(ceil(log2 n) / d)) rounds;
the chunks of a tensor in C(n) = R(n) + 1, or 1 when there is one: a chunk has a round of its own.
Let L, T, E be the leaves of log and trace and the blocks of a fold, n the chunks of a tensor, and
p, q, r the greatest numbers of claims in a tournament of logs, of traces and of folds.  A
tournament of p claims has at most lg p = ceil(log2 p) rounds, since one of each pair falls.

Moves that an honest player makes at most:

    1 + lg p (R(L) + traces),  traces = 1 + lg q (R(T) + C(n) + max(1, folds)),
    folds = 1 + lg r (R(E) + 1)

A match takes at most 2 (budget + asks * grace) at its own level, both sides using up their clocks
one after the other; it asks R - 1 times for a log, R(T) + C(n) times for a trace with its chunks
and opening, R(E) times for a fold.  Hence the time, with the windows J, W and V for claims about
logs, traces and folds, the budget M and the grace G:

    J + lg p (2 (M + (R(L) - 1) G) + traces),
    traces = W + lg q (2 (M + (R(T) + C(n)) G) + folds),
    folds = V + lg r 2 (M + R(E) G)

All parties together make at most one bond for each of them and each tournament, one accusation for
each party barred, and in each of the at most claims - 1 matches of a tournament two reveals a round
and one opening.
"""

from __future__ import annotations

from vtrain.dispute.game import get_depth
from vtrain.dispute.state import Game
from vtrain.wire.dispute import Genesis


def compute_levels(leaves: int) -> int:
    """ceil(log2 n)."""
    return (leaves - 1).bit_length()


def compute_rounds(leaves: int, depth: int) -> int:
    """R(n)."""
    return max(1, -(-compute_levels(leaves) // depth))


def compute_chunk_rounds(chunks: int, depth: int) -> int:
    """C(n)."""
    return compute_rounds(chunks, depth) + (chunks > 1)


class Bounds:
    """The bounds of a game whose tournaments had so many claims."""

    def __init__(
        self,
        genesis: Genesis,
        *,
        claims: tuple[int, int, int],
        chunks: int = 1,
        blocks: int = 1,
    ) -> None:
        depth = get_depth(genesis)
        self.clocks = genesis.clocks
        self.log, self.trace, self.fold = (compute_levels(count) for count in claims)
        self.log_rounds = compute_rounds(genesis.log_size, depth)
        self.trace_rounds = compute_rounds(genesis.commit_every * genesis.nodes, depth)
        self.chunk_rounds = compute_chunk_rounds(chunks, depth)
        self.fold_rounds = compute_rounds(blocks, depth)
        self.has_folds = blocks > 1

    @property
    def moves(self) -> int:
        """Moves of an honest player."""
        folds = 1 + self.fold * (self.fold_rounds + 1) if self.has_folds else 0
        traces = 1 + self.trace * (self.trace_rounds + self.chunk_rounds + max(1, folds))
        return 1 + self.log * (self.log_rounds + traces)

    @property
    def time(self) -> int:
        """Milliseconds from the opening to the verdict."""
        clocks = self.clocks
        budget, grace = clocks.match, clocks.grace
        folds = clocks.terms + self.fold * 2 * (budget + self.fold_rounds * grace)
        asks = self.trace_rounds + self.chunk_rounds
        match = 2 * (budget + asks * grace) + (folds if self.has_folds else 0)
        traces = clocks.trace + self.trace * match
        match = 2 * (budget + (self.log_rounds - 1) * grace) + traces
        return clocks.join + self.log * match

    def count_all_moves(self, game: Game) -> int:
        """Moves of all parties in ``game``."""
        per_match = {
            "log": 2 * self.log_rounds,
            "trace": 2 * (self.trace_rounds + self.chunk_rounds) + 1,
            "terms": 2 * self.fold_rounds + 1,
        }
        total = len(game.barred)
        for tournament in game.tournaments:
            total += sum(len(entry.backers) for entry in tournament.entries)
            total += per_match[tournament.tree] * max(len(tournament.entries) - 1, 0)
        return total


def make_bounds(game: Game, *, chunks: int, blocks: int) -> Bounds:
    """The bounds of a game with as many claims as it had."""
    claims = {"log": 1, "trace": 1, "terms": 1}
    for tournament in game.tournaments:
        claims[tournament.tree] = max(claims[tournament.tree], len(tournament.entries))
    return Bounds(
        game.genesis,
        claims=(claims["log"], claims["trace"], claims["terms"]),
        chunks=chunks,
        blocks=blocks,
    )
