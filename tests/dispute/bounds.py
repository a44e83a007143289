"""How long a game takes at most, and what it costs an honest party: formulas from the rules alone.

With arity k = 2^d, a tree of n leaves is searched by R(n) = max(1, ceil(ceil(log2 n) / d)) answers,
the chunks of a tensor by C(n) = R(n) + 1, or 1 when there is one: a chunk is an answer of its own.
Let L, T, E be the leaves of log and trace and the blocks of a fold, and n the chunks of a tensor.

**Time.**  Take a group of m claims of the log, of which X is backed by an honest party, and let at
most S claims and sub-claims be alive in it.  An answer is due g = grace + S answer after it is
asked, an opening h = grace + S opening.

1. X and a rival Y are in one dispute at each depth.  Both are asked there at once, unless they were
   before; neither's demand lapses while both stand.  X answers in g, and Y, over all depths, in g
   each and its budget B, since a clock stops at no answer but runs once however much is overdue.
   So after R(L) g + B either Y has fallen or both are at the record that differs.  Whoever else
   comes to that dispute is a rival of X as well, or agrees with it there, and is there by then.
2. A side's window is extended only for claims that come to it: it ends W = trace + (m - 2) replay
   after the last came.  So do the windows of all sides, and no sub-claim comes after that, whether
   it is new or was made before and fell.  Until then nothing is overdue, and an extension renews a
   budget: from the end of the last window each sub-claim has one budget.
3. As in 1, an honest sub-claim and a rival are at an element, or the rival has fallen, after
   (R(T) + C(n)) g + B, and m replay more for the tensor, however often others came to it.
4. The same with W' = terms + S answer and R(E) g + B, where an element has more than one block.
5. The opening comes in h, since the honest party sends it.

    round(B) = (R(L) + R(T) + C(n) + R(E)) g + 3 B + W + m replay + W' + h

All of Y's sub-claims have fallen then and its window is over: so has Y.  In a group without honest
claims a pair of rivals can use up both their budgets, one after the other, and then both fall at
an opening that is overdue: round(2 B).  The next round begins when all groups are done, and
ceil(m / group) of m claims are left: with r rounds

    T = join + (r - 1) round(2 B) + round(B),

the honest claim being in one group of each round, and in the only one of the last.

**Work.**  An honest party answers once about what is under a hash.  Each rival of X takes at most
R(L) answers and one bond of a trace, each rival sub-claim of a trace R(T) + C(n) answers and one
bond of a fold (or the opening), each of a fold R(E) answers and an opening.  A rival meets X in one
round, since one of the two falls.
"""

from __future__ import annotations

from vtrain.dispute.consequences import get_depth
from vtrain.dispute.state import Game
from vtrain.wire.dispute import MAX_BOND, Genesis
from vtrain.wire.opening import CHUNK_LENGTH

ENVELOPE = 400
"""Bytes of a signed move besides the move."""


def compute_levels(leaves: int) -> int:
    """ceil(log2 n)."""
    return (leaves - 1).bit_length()


def compute_rounds(leaves: int, depth: int) -> int:
    """R(n)."""
    return max(1, -(-compute_levels(leaves) // depth))


def compute_chunk_rounds(chunks: int, depth: int) -> int:
    """C(n)."""
    return compute_rounds(chunks, depth) + (chunks > 1)


def count_rounds(claims: int, group: int) -> int:
    """r: the rounds until at most one of so many claims is left."""
    rounds = 0
    while claims > 1:
        claims = -(-claims // group)
        rounds += 1
    return rounds


class Bounds:
    """The bounds of a game with so many claims of the log, of traces and of folds.

    ``load``: of how many claims and sub-claims a group has, if that is not their sum.
    """

    def __init__(
        self,
        genesis: Genesis,
        *,
        claims: tuple[int, int, int],
        chunks: int = 1,
        blocks: int = 1,
        load: int | None = None,
    ) -> None:
        depth = get_depth(genesis)
        self.genesis, self.clocks = genesis, genesis.clocks
        self.log, self.trace, self.fold = claims
        self.members = min(self.log, genesis.group)
        self.load = self.members + self.trace + self.fold if load is None else load
        self.rounds = count_rounds(self.log, genesis.group)
        self.log_rounds = compute_rounds(genesis.log_size, depth)
        self.trace_rounds = compute_rounds(genesis.commit_every * genesis.nodes, depth)
        self.chunk_rounds = compute_chunk_rounds(chunks, depth)
        self.fold_rounds = compute_rounds(blocks, depth) if blocks > 1 else 0

    def compute_round(self, budgets: int = 1) -> int:
        """round(budgets * B)."""
        clocks = self.clocks
        answer = clocks.grace + self.load * clocks.answer
        asks = self.log_rounds + self.trace_rounds + self.chunk_rounds + self.fold_rounds
        time = asks * answer + clocks.grace + self.load * clocks.opening
        time += clocks.trace + clocks.replay * (max(0, self.members - 2) + max(2, self.members))
        if self.fold_rounds:
            time += clocks.terms + self.load * clocks.answer
        return time + (3 if self.fold_rounds else 2) * budgets * clocks.budget

    @property
    def time(self) -> int:
        """Milliseconds from the opening to the verdict, where an honest party answers in time."""
        if not self.rounds:
            return self.clocks.join
        before = (self.rounds - 1) * self.compute_round(2)
        return self.clocks.join + before + self.compute_round()

    @property
    def time_of_nobody(self) -> int:
        """The same where there is no honest party."""
        return self.clocks.join + self.rounds * self.compute_round(2)

    @property
    def moves(self) -> int:
        """Moves of an honest party."""
        return sum(self._count_moves())

    @property
    def bytes(self) -> int:
        """Bytes that she sends."""
        reveals, bonds, openings = self._count_moves()
        reveal = 64 + max(34 * self.genesis.arity, CHUNK_LENGTH + 3)
        return (
            reveals * (reveal + ENVELOPE)
            + bonds * (MAX_BOND + ENVELOPE)
            + openings * (self.genesis.leaf_bytes + ENVELOPE)
        )

    def _count_moves(self) -> tuple[int, int, int]:
        """Reveals, bonds and openings."""
        logs, traces, folds = self.log - 1, self.trace, self.fold
        reveals = logs * self.log_rounds + traces * (self.trace_rounds + self.chunk_rounds)
        if not self.fold_rounds:
            return reveals, 1 + logs, traces
        return reveals + folds * self.fold_rounds, 1 + logs + traces, folds


def make_bounds(game: Game, *, chunks: int, blocks: int) -> Bounds:
    """The bounds of a game with as many claims as it had."""
    counts = {"trace": 0, "terms": 0}
    loads: dict[bytes, int] = {}
    for contest in game.contests.values():
        loads[contest.group] = loads.get(contest.group, 0) + len(contest.claims)
        if contest.level != "log":
            counts[contest.level] += len(contest.claims)
    return Bounds(
        game.genesis,
        claims=(len(game.logs), counts["trace"], counts["terms"]),
        chunks=chunks,
        blocks=blocks,
        load=max(loads.values(), default=0),
    )
