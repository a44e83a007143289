"""The honest player: a few rules, each with its reason.

It plays for one claim, that of its trace provider.  If that is the true one, it never falls,
whatever all others do:

1. *Stand behind the claim.*  Nobody may answer for a claim but those who back it, and a claim that
   nobody backs in time is not in the game.
2. *Answer everything that is asked of the claim.*  The answer follows from the root, so that it
   cannot be wrong; only silence loses.
3. *Bond the true sub-claim for its side of each contest*, also when somebody else has: they may go
   silent.  Sub-claims of others are left alone: whether they are false or the same, they cannot
   make the true one fall.
4. *Open the leaf of each dispute of the claim.*  Everything to the left of the difference is
   agreed, hence true, hence known; the referee computes what the true claim says.

Nothing else: the disputes of others are theirs.  Whatever it says follows from its claim, so that a
player who crashes says the same again and needs no memory of what it said.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.consequences import get_depth
from vtrain.dispute.game import sign
from vtrain.dispute.provider import ClaimTree, PendingError, TraceProvider
from vtrain.dispute.state import (
    Contest,
    Dispute,
    Game,
    Place,
    compute_fact_id,
    compute_side_id,
    get_base_step,
)
from vtrain.wire.dispute import Bond, InputOpening, Member, Move, Open, Reveal, SignedMove

if TYPE_CHECKING:
    from vtrain.dispute.background import Background

About = tuple[bytes, Move]
"""A move, and what it answers."""
T = TypeVar("T")


class Player:
    """Plays for the claim of ``provider`` with ``key``, in one game.

    With a ``background`` for the provider, what needs a replay holds up nothing else; without one
    it is done as soon as it is owed.
    """

    def __init__(
        self, provider: TraceProvider, key: PrivateKey, background: Background | None = None
    ) -> None:
        self._provider, self._key, self._background = provider, key, background
        self._party = public_key(key)
        self._roots: dict[bytes, bytes] = {}
        self.waits = False
        """Was something owed that is still being computed, when moves were last asked for?"""

    @property
    def party(self) -> bytes:
        """The public key that this player signs with."""
        return self._party

    def moves(self, game: Game) -> Iterator[SignedMove]:
        """What the claim owes in ``game`` now: all of it may be sent in any order.

        What was asked first comes first.  What is still being computed is left out, and
        :attr:`waits` is set: it is owed still when moves are asked for again.
        """
        self.waits = False
        if self._background is not None:
            self._background.begin_turn()
        if game.over:
            return
        root = self._provider.log().root
        known = game.logs.get(root)
        if (game.id, self._party) not in game.stands:
            if game.round == 0 if known is None else known.fall is None:
                yield sign(game.id, game.id, Bond(root, b"", ()), self._key)
            return
        if known is None or known.fall is not None:
            return
        contests = [game.contests[group] for group in game.groups]
        asked: list[tuple[int, Contest, Dispute]] = []
        sides: list[tuple[Contest, bytes]] = []
        tensors: dict[tuple[int, int], None] = {}
        for contest in contests:
            if root in contest.index:
                self._look(game, contest, root, asked, sides, tensors)
        steps = [contest.place.step for contest, _ in sides if contest.level == "trace"]
        self._provider.want(traces=steps, tensors=list(tensors))
        # What is at hand first: whoever asks for a trace must not make everything else late.
        logs = [item for item in asked if item[1].level == "log"]
        yield from self._make(game, logs, [])
        yield from self._make(game, [item for item in asked if item[1].level != "log"], sides)
        for step, node in sorted(tensors):
            # Before it is asked for.
            self._find((step, node), partial(self._trace_tensor, step, node))

    def _find(self, key: Hashable, compute: Callable[[], T]) -> T | None:
        """What ``compute`` gives by the provider, or None where that is still being computed."""
        if self._background is None:
            return compute()
        try:
            return self._background.find(key, compute)
        except PendingError:
            self.waits = True
            return None

    def _trace_tensor(self, step: int, node: int) -> None:
        """Have a tensor at hand."""
        self._provider.chunks(step, node)

    def _make(
        self,
        game: Game,
        asked: list[tuple[int, Contest, Dispute]],
        sides: list[tuple[Contest, bytes]],
    ) -> Iterator[SignedMove]:
        """The moves that answer what is asked, and back sub-claims of sides."""
        asked.sort(key=lambda item: (item[0], item[2].id))
        for contest, value in sides:
            about = compute_side_id(contest.id, value)
            bond = self._find(about, partial(self._bond, game, contest))
            if bond is not None:
                yield sign(game.id, about, bond, self._key)
        answered: set[bytes] = set()
        for _, contest, dispute in asked:
            about = dispute.id
            if not dispute.leaf:
                about = compute_fact_id(dispute, self._get_value(game, contest, dispute))
            if about in answered:
                continue
            answered.add(about)
            move = self._find(about, partial(self._answer, game, contest, dispute))
            if move is not None:
                yield sign(game.id, about, move, self._key)

    def _answer(self, game: Game, contest: Contest, dispute: Dispute) -> Move:
        """What is asked of this player's claim in a dispute."""
        if dispute.leaf:
            return self._open(game, contest, dispute)
        tree = self._tree(dispute.tree, contest, dispute.place)
        return Reveal(tree.frontier(dispute.start, dispute.end, get_depth(game.genesis)))

    def _look(
        self,
        game: Game,
        contest: Contest,
        root: bytes,
        asked: list[tuple[int, Contest, Dispute]],
        sides: list[tuple[Contest, bytes]],
        tensors: dict[tuple[int, int], None],
    ) -> None:
        """Find what is asked of claim ``root`` of a contest, and where it needs sub-claims.

        A tensor is wanted as soon as it is in dispute, since others may answer for the claim: what
        is asked of this player then is due as if it had begun to trace when the dispute began.
        """
        own = 1 << contest.index[root]
        if not own & contest.live:
            return
        tensors.update(dict.fromkeys(_find_tensors(contest, own)))
        if game.find_own(contest, self._party) == own:
            for dispute_id in contest.asking:
                dispute = contest.disputes[dispute_id]
                for found in dispute.classes.values():
                    due = [at for owing, at in found.asked if owing & own]
                    if due:
                        asked.append((min(due), contest, dispute))
        for below in map(game.contests.__getitem__, contest.below):
            classes = contest.disputes[below.id].classes
            value = next((value for value, found in classes.items() if found.mask & own), None)
            side = None if value is None else below.sides.get(compute_side_id(below.id, value))
            if value is None or side is None:
                continue
            # Without rivals a side takes no sub-claims, but those of its own may be rivals still,
            # lower down: what is asked of one there is answered.
            if side.closes < 0 and (below.id, self._party) not in game.stands:
                continue
            sub_claim = self._roots.get(below.id)
            sub_claim = sub_claim or self._find(below.id, partial(self._get_root, below))
            if sub_claim is None:
                continue
            self._roots[below.id] = sub_claim
            known = below.index.get(sub_claim)
            claim = None if known is None else below.claims[known]
            if (below.id, self._party) not in game.stands:
                stands = claim is not None and claim.fall is None
                may_come = claim is None or claim.is_open
                if stands or (may_come and side.closes >= game.now):
                    sides.append((below, value))
            if known is not None:
                self._look(game, below, sub_claim, asked, sides, tensors)

    def _get_value(self, game: Game, contest: Contest, dispute: Dispute) -> bytes:
        """What this player's claim has where a dispute is."""
        own = game.find_own(contest, self._party)
        return next(value for value, found in dispute.classes.items() if found.mask & own)

    def _get_root(self, contest: Contest) -> bytes:
        """The root of this player's claim in a contest."""
        return self._tree(contest.level, contest, contest.place).root

    def _bond(self, game: Game, contest: Contest) -> Bond:
        """The true sub-claim, which ends in what its side claims."""
        tree = self._tree(contest.level, contest, contest.place)
        at = contest.size - 1
        if contest.level == "trace":
            at = contest.size - game.genesis.nodes + game.genesis.record_node
        return Bond(tree.root, tree.leaf(at), tree.path(at))

    def _open(self, game: Game, contest: Contest, dispute: Dispute) -> Open:
        trace, terms, before = contest, None, None
        place, nodes = dispute.place, game.genesis.nodes
        if contest.level == "terms":
            trace = game.contests[contest.above]
            if place.block > 0:
                tree = self._tree("terms", contest, place)
                terms, before = tree.root, _member(tree, place.block - 1)
        disputed = trace.place.step
        base = get_base_step(game.genesis.commit_every, disputed)
        offset = place.step - base - 1
        node = game.graph.get_node(place.node)
        leaf = self._provider.open(
            place.step, place.node, place.element, max(place.block, 0), first=offset == 0
        )
        tree = self._provider.trace(disputed)
        base_record = None
        if node.op != "state":
            positions = [offset * nodes + ref.node for ref in node.inputs]
        elif offset > 0:
            positions = [(offset - 1) * nodes + game.graph.get_source_of_state(place.node)]
        else:
            positions = []
            if base > 0:
                base_record = _member(self._provider.log(), base - 1)
        if positions:
            inputs = [
                InputOpening(tree.leaf(at), tree.path(at), chunks)
                for at, chunks in zip(positions, leaf.chunks, strict=True)
            ]
        else:
            digest = self._provider.chunks(place.step, place.node).root
            inputs = [InputOpening(digest, (), chunks) for chunks in leaf.chunks]
        return Open(
            log=self._provider.log().root,
            trace=tree.root,
            inputs=tuple(inputs),
            rows=leaf.rows,
            tokens=leaf.tokens,
            state_leaf=leaf.state_leaf,
            base=base_record,
            terms=terms,
            before=before,
        )

    def _tree(self, tree: str, contest: Contest, place: Place) -> ClaimTree:
        match tree:
            case "log":
                return self._provider.log()
            case "trace":
                return self._provider.trace(contest.place.step)
            case "chunks":
                return self._provider.chunks(place.step, place.node)
            case _:
                return self._provider.terms(place.step, place.node, contest.place.element)


def _find_tensors(contest: Contest, own: int) -> Iterator[tuple[int, int]]:
    """Tensors, by step and node, in which the claim with the bit ``own`` is against another."""
    for dispute in map(contest.disputes.__getitem__, contest.tensors):
        live = [found.mask & contest.live for found in dispute.classes.values()]
        if any(own & claims for claims in live) and contest.crosses(own, sum(live) & ~own):
            yield dispute.place.step, dispute.place.node


def _member(tree: ClaimTree, index: int) -> Member:
    return Member(tree.leaf(index), index, tree.size, tree.path(index))
