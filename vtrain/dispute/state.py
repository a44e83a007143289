"""The state of a game: tournaments of claims, and matches between two of them.

All of it is frozen data with a canonical encoding (``vtrain.wire.structs``); what changes it is in
``vtrain.dispute.game``.  Times are milliseconds of the game's injected clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vtrain.spec import domains
from vtrain.spec.domains import compute_domain_hash
from vtrain.wire import cbor, structs
from vtrain.wire.dispute import Bond, Genesis, Move, Open, Reveal, Site
from vtrain.wire.structs import Between, Count, Digest

Tree = Literal["log", "trace", "chunks", "terms"]
"""The trees of a dispute, from the outermost in: step records; digests of every node's output in
the steps since the last agreed state; chunks of one tensor; fold states of one element."""

Stage = Literal["reveal", "claims", "open", "over"]
"""What a match waits for: both sides' frontiers, a nested tournament, an opening, nothing."""

Reason = Literal["silent", "malformed", "refuted", "undefended"]
"""Why a claim fell: it owed a move and did not make it in time; it commits to something that is no
record, digest or fold state; the referee computed something else; all its sub-claims fell."""

Index = Annotated[int, Between(-1, 2**62)]
"""An index, or -1 for none."""

TREE_DOMAINS = {"log": domains.RUN_LOG, "trace": domains.TRACE, "terms": domains.TERMS}
"""Domain of each RFC 9162 tree; the tree of chunks is BLAKE3's own."""


@dataclass(frozen=True)
class Place:
    """How far a match is located: -1 where it is not yet.  ``step`` counts from 1."""

    step: Index = -1
    node: Index = -1
    chunk: Index = -1
    element: Index = -1
    block: Index = -1

    def describe(self) -> str:
        """For people: "step 7, node 12, chunk 0, element 5"."""
        parts = [("step", self.step), ("node", self.node), ("chunk", self.chunk)]
        parts += [("element", self.element), ("block", self.block)]
        return ", ".join(f"{name} {index}" for name, index in parts if index >= 0)


@dataclass(frozen=True)
class Fall:
    """How a claim fell: in which match, where, and when."""

    reason: Reason
    match: Count
    place: Place
    at: Count


@dataclass(frozen=True)
class Entry:
    """A claim in a tournament.  It belongs to its root; ``backers`` are who may move for it.

    ``side`` is the side of the parent match that a sub-claim supports.
    """

    root: Digest
    side: Annotated[int, Between(0, 1)]
    backers: tuple[Digest, ...]
    fall: Fall | None = None


@dataclass(frozen=True)
class Tournament:
    """Claims about one thing, of which at most one is true: trees of ``size`` leaves each.

    ``parent`` is the match that waits for it (-1: the game itself); new claims may come before
    ``closes``; ``round`` counts from 0, the time of joining; ``matches`` are those of the round.
    ``winner`` is an entry, -1 while it goes on or when no claim stands.
    """

    tree: Tree
    parent: Index
    size: Count
    closes: Count
    entries: tuple[Entry, ...] = ()
    round: Count = 0
    matches: tuple[Count, ...] = ()
    winner: Index = -1
    over: Annotated[int, Between(0, 1)] = 0

    def standing(self) -> list[int]:
        """Entries that have not fallen."""
        return [i for i, entry in enumerate(self.entries) if entry.fall is None]

    def find(self, root: bytes) -> int:
        """The entry with this root, or -1."""
        return next((i for i, entry in enumerate(self.entries) if entry.root == root), -1)

    def backed_by(self, party: bytes) -> int:
        """The entry that ``party`` stands behind, or -1."""
        return next((i for i, entry in enumerate(self.entries) if party in entry.backers), -1)


Items = tuple[bytes, ...]


@dataclass(frozen=True)
class Match:
    """Two claims of a tournament, on the way down to the leftmost leaf in which they differ.

    ``sides`` are entries of the tournament.  Leaves [start, end) of the ``tree``, which has
    ``size``, hold the difference; ``hashes`` are what each side has there; ``revealed`` the
    frontiers of this ``round``.  ``left`` are the sides' clocks, running since ``since`` for
    whoever owes a move.  ``leaves`` are the two contents found last; ``nested`` the tournament
    that decides the match.
    """

    tournament: Count
    sides: tuple[Count, Count]
    stage: Stage
    tree: Tree
    size: Count
    start: Count
    end: Count
    hashes: tuple[bytes, bytes]
    left: tuple[Count, Count]
    since: Count
    round: Count = 0
    revealed: tuple[Items, Items] = ((), ())
    place: Place = Place()
    site: Site | None = None
    leaves: tuple[bytes, bytes] = (b"", b"")
    nested: Index = -1

    def owes(self, side: int) -> bool:
        """Must this side move?  Either side may open, and both owe it."""
        return self.stage == "open" or (self.stage == "reveal" and not self.revealed[side])

    def deadline(self, side: int) -> int:
        """When the clock of a side that owes a move runs out."""
        return self.since + self.left[side]


@dataclass(frozen=True)
class Game:
    """A dispute at time ``now``, after ``moves`` moves; ``id`` is the hash of its genesis."""

    id: Digest
    genesis: Genesis
    now: Count
    moves: Count
    tournaments: tuple[Tournament, ...]
    matches: tuple[Match, ...]
    barred: tuple[Digest, ...] = ()

    @property
    def over(self) -> bool:
        """Is there a verdict?"""
        return bool(self.tournaments[0].over)


@dataclass(frozen=True)
class Verdict:
    """How a game ended.  ``standing`` is the log root that stands, empty when none does.

    ``solver`` is how the solver's own claim fell, None when it stands.  ``barred`` signed moves
    that contradict each other.
    """

    game: Digest
    standing: bytes
    solver: Fall | None
    entries: tuple[Entry, ...]
    barred: tuple[Digest, ...]


def get_base_step(commit_every: int, step: int) -> int:
    """The last step before ``step`` whose record has a state root (0: the initial state)."""
    return (step - 1) // commit_every * commit_every


def compute_game_id(genesis: Genesis) -> bytes:
    """H_game(canonical encoding of the genesis)."""
    return compute_domain_hash(domains.GAME, structs.encode(genesis))


def compute_position(game: Game, move: Move) -> bytes:
    """What a move answers, as its signer must name it (see ``SignedMove.position``).

    A bond answers a tournament, a reveal a round of a match, an opening a match; each with what is
    disputed there, so that an answer is to one question also where a game has two histories (at
    two services, or at one restored from an older copy).  Two different bonds, or two different
    reveals, signed by one party at one position contradict each other.
    """
    about: dict[str, cbor.Value] = {"game": game.id, "kind": type(move).__name__}
    if isinstance(move, Bond):
        about |= {"tournament": move.tournament}
        if move.tournament < len(game.tournaments):
            parent = game.tournaments[move.tournament].parent
            if parent >= 0:
                about |= _describe(game.matches[parent])
    elif isinstance(move, Reveal | Open):
        about |= {"match": move.match}
        if move.match < len(game.matches):
            about |= _describe(game.matches[move.match])
    return compute_domain_hash(domains.POSITION, cbor.encode(about))


def _describe(match: Match) -> dict[str, cbor.Value]:
    """What is disputed in a match, and how far it has come."""
    return {
        "hashes": list(match.hashes),
        "leaves": list(match.leaves),
        "place": structs.to_value(match.place),
        "round": match.round,
        "tree": match.tree,
    }
