"""The honest player: a few rules, each with its reason.

It plays for one claim, that of its trace provider.  If that is the true one, it never loses a
match, whatever all others do:

1. *Stand behind the claim.*  Nobody may move for a claim but those who back it, and a claim that
   nobody backs in time is not in the game.
2. *Answer every reveal that is asked of the claim.*  The answer follows from the root, so that it
   cannot be wrong; only silence loses.
3. *Bond the true sub-claim under each match of the claim that comes to a nested tournament*, also
   when somebody else has: they may go silent.  Sub-claims of others are left alone: whether they
   are false or the same, they cannot make the true one fall.
4. *Open the leaf of each match of the claim.*  Everything to the left of the difference is agreed,
   hence true, hence known; the referee computes what the true claim says.

Nothing else: the matches of others are theirs.  Claims, which are what bonds and reveals are, are
journalled before they are sent, so that a player who crashes repeats them and never contradicts
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.game import get_depth, sign
from vtrain.dispute.provider import ClaimTree, TraceProvider
from vtrain.dispute.state import Game, Match, Place, compute_position, get_base_step
from vtrain.errors import RunError
from vtrain.wire.dispute import Bond, InputOpening, Member, Move, Open, Reveal, SignedMove
from vtrain.wire.graph import decode_node


class Journal(Protocol):
    """Moves that were signed, by position, kept before they are sent."""

    def find(self, position: bytes) -> SignedMove | None:
        """What was signed at this position before, if anything."""
        ...

    def keep(self, signed: SignedMove) -> None:
        """Store a move durably; returns when it is."""
        ...


class MemoryJournal:
    """A journal for one process's life."""

    def __init__(self) -> None:
        self._moves: dict[bytes, SignedMove] = {}

    def find(self, position: bytes) -> SignedMove | None:
        return self._moves.get(position)

    def keep(self, signed: SignedMove) -> None:
        self._moves[signed.position] = signed


class Player:
    """Plays for the claim of ``provider`` with ``key``, in one game."""

    def __init__(
        self, provider: TraceProvider, key: PrivateKey, journal: Journal | None = None
    ) -> None:
        self._provider, self._key = provider, key
        self._journal: Journal = journal or MemoryJournal()
        self._party = public_key(key)

    @property
    def party(self) -> bytes:
        """The public key that this player signs with."""
        return self._party

    def moves(self, game: Game) -> Iterator[SignedMove]:
        """What the claim owes in ``game`` now: all of it may be sent in any order."""
        if game.over or self._party in game.barred:
            return
        for move in self._find_moves(game):
            if isinstance(move, Open):
                # It proves what it says and contradicts nothing; and what an older one was opened
                # against may not be what is disputed now.
                yield sign(game, move, self._key)
                continue
            signed = self._journal.find(compute_position(game, move))
            if signed is None:
                signed = sign(game, move, self._key)
                self._journal.keep(signed)
            yield signed

    def _find_moves(self, game: Game) -> Iterator[Move]:
        root = self._provider.log().root
        top = game.tournaments[0]
        mine = top.find(root)
        if top.backed_by(self._party) < 0 and (mine >= 0 or top.round == 0):
            yield Bond(0, root, 0, b"", ())
        if mine >= 0 and top.entries[mine].fall is None:
            yield from self._play(game, 0, mine)

    def _play(self, game: Game, tournament: int, entry: int) -> Iterator[Move]:
        """Moves for an entry of a tournament that is this player's own claim."""
        for index in game.tournaments[tournament].matches:
            match = game.matches[index]
            if entry not in match.sides or match.stage == "over":
                continue
            side = match.sides.index(entry)
            if match.stage == "claims":
                yield from self._defend(game, index, side)
            elif self._party not in game.tournaments[tournament].entries[entry].backers:
                continue
            elif match.stage == "open":
                yield self._open(game, index)
            elif not match.revealed[side]:
                yield self._reveal(game, index)

    def _defend(self, game: Game, index: int, side: int) -> Iterator[Move]:
        """Have the true sub-claim in the nested tournament, and play for it."""
        match = game.matches[index]
        nested = game.tournaments[match.nested]
        tree = self._tree(game, nested.tree, self._place(game, match))
        mine = nested.find(tree.root)
        if nested.backed_by(self._party) < 0 and (mine >= 0 or nested.round == 0):
            at = nested.size - 1
            if nested.tree == "trace":
                at = nested.size - game.genesis.nodes + game.genesis.record_node
            yield Bond(match.nested, tree.root, side, tree.leaf(at), tree.path(at))
        if mine >= 0 and nested.entries[mine].fall is None:
            yield from self._play(game, match.nested, mine)

    def _reveal(self, game: Game, index: int) -> Reveal:
        match = game.matches[index]
        tree = self._tree(game, match.tree, self._place(game, match))
        start, end = match.start, match.end
        site = None
        if match.tree == "chunks" and end - start == match.size:
            # The first round of a tensor.  Its node is opened whether or not the other side has
            # done so already: the answer to one position is always the same.
            site = self._provider.site(match.place.node)
            start, end = 0, tree.size
        return Reveal(index, tree.frontier(start, end, get_depth(game.genesis)), site)

    def _open(self, game: Game, index: int) -> Open:
        match = game.matches[index]
        outer = match
        before = None
        if match.tree == "terms":
            outer = game.matches[game.tournaments[match.tournament].parent]
            if match.place.block > 0:
                tree = self._tree(game, "terms", self._place(game, match))
                before = _member(tree, match.place.block - 1)
        disputed = game.matches[game.tournaments[outer.tournament].parent].place.step
        place, nodes = match.place, game.genesis.nodes
        base = get_base_step(game.genesis.commit_every, disputed)
        offset = place.step - base - 1
        if outer.site is None:
            raise RunError("no node is opened", where=f"match {index}")
        node = decode_node(outer.site.node.data, place.node)
        leaf = self._provider.open(
            place.step, place.node, place.element, max(place.block, 0), first=offset == 0
        )
        trace = self._provider.trace(disputed)
        source = base_record = None
        if node.op != "state":
            positions = [offset * nodes + ref.node for ref in node.inputs]
        elif offset > 0:
            source = self._provider.source_of_state(place.node)
            positions = [(offset - 1) * nodes + source.index]
        else:
            positions = []
            if base > 0:
                base_record = _member(self._provider.log(), base - 1)
        if positions:
            inputs = [
                InputOpening(trace.leaf(at), trace.path(at), chunks)
                for at, chunks in zip(positions, leaf.chunks, strict=True)
            ]
        else:
            digest = self._provider.chunks(place.step, place.node).root
            inputs = [InputOpening(digest, (), chunks) for chunks in leaf.chunks]
        return Open(index, tuple(inputs), leaf.rows, source, leaf.state_leaf, base_record, before)

    def _place(self, game: Game, match: Match) -> Place:
        """Where a match is: in a nested tournament, at least where its parent is."""
        while match.place.step < 0 and game.tournaments[match.tournament].parent >= 0:
            match = game.matches[game.tournaments[match.tournament].parent]
        return match.place

    def _tree(self, game: Game, tree: str, place: Place) -> ClaimTree:
        match tree:
            case "log":
                return self._provider.log()
            case "trace":
                return self._provider.trace(place.step)
            case "chunks":
                return self._provider.chunks(place.step, place.node)
            case _:
                return self._provider.terms(place.step, place.node, place.element)


def _member(tree: ClaimTree, index: int) -> Member:
    return Member(tree.leaf(index), index, tree.size, tree.path(index))
