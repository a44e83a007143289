"""The state of a game: contests of claims, and the disputes in which they differ.

All of it is immutable, and shares with the state before it whatever did not change; what changes it
is in ``vtrain.dispute.game``.  Times are milliseconds of the game's injected clock.

Everything is named by a hash of its content (an *id*), never by a number in order of arrival, so
that what a move is about does not depend on what others do meanwhile.  Sets of a contest's claims
are integers: bit i stands for its claim i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from immutables import Map

from vtrain import _core
from vtrain.errors import EncodingError, GraphError, MoveRefusedError
from vtrain.spec import domains
from vtrain.spec.blake3_tree import compute_chunk_count
from vtrain.spec.domains import compute_domain_hash
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire import cbor, structs
from vtrain.wire.dispute import Genesis, NodeOpening
from vtrain.wire.graph import Node, StepGraph, encode_node
from vtrain.wire.structs import Between, Count, Digest, LengthOrNone

if TYPE_CHECKING:
    from vtrain.dispute.agenda import Agenda

Tree = Literal["log", "trace", "chunks", "terms"]
"""The trees of a dispute, from the outermost in: step records; digests of every node's output in
the steps since the last agreed state; chunks of one tensor; fold states of one element."""

Level = Literal["log", "trace", "terms"]
"""The trees that claims are made about; the chunks of a tensor are committed to by its digest."""

Leaf = Literal["", "record", "digest", "element", "state"]
"""What the classes of a dispute are: hashes of a range of its tree (""), or contents of a leaf."""

Reason = Literal["silent", "malformed", "refuted", "undefended", "moot"]
"""Why a claim fell: its budget ran out while it owed an answer; it commits to something that is no
record, digest or fold state; the referee computed something else; all its sub-claims fell; what it
stood for fell."""

Index = Annotated[int, Between(-1, 2**62)]
"""An index, or -1 for none."""

TREE_DOMAINS = {"log": domains.RUN_LOG, "trace": domains.TRACE, "terms": domains.TERMS}
"""Domain of each RFC 9162 tree; the tree of chunks is BLAKE3's own."""


@dataclass(frozen=True)
class Place:
    """How far a dispute is located: -1 where it is not yet.  ``step`` counts from 1."""

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
    """How a claim fell: why, where, and when."""

    reason: Reason
    place: Place
    at: Count


class Event(NamedTuple):
    """Something that is to happen at ``at``, should it still be due then.

    ``kind``: "join" closes the window for claims of the log, "window" that of side ``key``; "due"
    is when the class ``value`` of dispute ``key`` must have answered.
    """

    at: int
    kind: Literal["due", "join", "window"]
    contest: bytes
    key: bytes
    value: bytes


@dataclass(frozen=True)
class Claim:
    """A claim of a contest.  ``left`` of its budget is left at ``mark``, before which none runs."""

    root: bytes
    side: bytes
    left: int
    mark: int
    fall: Fall | None = None

    @property
    def is_open(self) -> bool:
        """Has nothing shown it to be false?

        What fell because nobody was there to answer, or to need it, may be claimed anew as long as
        its side takes claims: by whoever comes to the side later, and can answer.
        """
        return self.fall is None or self.fall.reason in {"silent", "undefended", "moot"}


@dataclass(frozen=True)
class Side:
    """What sub-claims are needed for: the claims that have ``value`` where a dispute arrived.

    ``members`` are the sub-claims, of its own contest; ``backed`` the live claims above that have
    had a window.  ``closes`` is the end of the last one, -1 while no rival asks.
    """

    value: bytes
    members: int = 0
    backed: int = 0
    closes: int = -1


@dataclass(frozen=True)
class Class:
    """Claims that have the same hash, or the same content, where a dispute is.

    ``asked`` are sets of them with when their answer is due: whoever comes later has more time.
    ``items`` are what they have below, once that is known.
    """

    mask: int
    asked: tuple[tuple[int, int], ...] = ()
    items: tuple[bytes, ...] | None = None

    @property
    def known(self) -> bool:
        """Is the answer there?"""
        return self.items is not None

    @property
    def owing(self) -> int:
        """The claims that an answer is asked of."""
        return sum(claims for claims, _ in self.asked)  # disjoint sets


@dataclass(frozen=True)
class Dispute:
    """Leaves [start, end) of a tree, before which its claims agree, and in which they may differ.

    ``size`` are the leaves of the tree, ``length`` the bytes of a tensor (0: not of chunks).  A
    dispute that has arrived at a ``leaf`` has contents as the values of its classes; ``ruling`` is
    what the referee computed for it (empty when no value comes out).  ``tensor`` is the dispute
    about the whole tensor, of which ``ready`` says when each of its claims may be expected to have
    traced it.
    """

    id: bytes
    contest: bytes
    tree: Tree
    size: int
    length: int
    start: int
    end: int
    leaf: Leaf
    place: Place
    classes: Map[bytes, Class] = field(default_factory=Map)
    ruling: bytes | None = None
    tensor: bytes = b""
    ready: int = 0

    @property
    def is_root(self) -> bool:
        """Is it about the whole tree?"""
        return self.end - self.start == self.size

    @property
    def asks(self) -> bool:
        """Is anything asked in it?"""
        return any(found.asked for found in self.classes.values())


@dataclass(frozen=True)
class Contest:
    """Claims about one thing, of which at most one is true: trees of ``size`` leaves each.

    ``above`` is the contest that waits for it ("" at the top), in which dispute ``id`` is; a
    contest at the top is a group of claims of the log.  ``live`` are the claims that have not
    fallen, ``asking`` the disputes in which something is asked, ``below`` the contests that decide
    disputes of this one, ``tensors`` the disputes about whole tensors.  ``until`` is the end of its
    windows for sub-claims: before it nothing is overdue, since whoever made a claim need not be who
    can answer for it.
    """

    id: bytes
    level: Level
    group: bytes
    above: bytes
    size: int
    place: Place
    root: bytes
    claims: tuple[Claim, ...] = ()
    index: Map[bytes, int] = field(default_factory=Map)
    live: int = 0
    sides: Map[bytes, Side] = field(default_factory=Map)
    disputes: Map[bytes, Dispute] = field(default_factory=Map)
    asking: Map[bytes, bool] = field(default_factory=Map)
    below: tuple[bytes, ...] = ()
    tensors: tuple[bytes, ...] = ()
    until: int = 0

    def find_allies(self, claims: int) -> int:
        """The claims that no one of these ``claims`` (some) is a rival of: those of their side."""
        if self.level == "log":
            return 0
        first = (claims & -claims).bit_length() - 1
        members = self.sides[self.claims[first].side].members
        return 0 if claims & ~members else members

    def crosses(self, first: int, second: int) -> bool:
        """Is there a claim of each set that the other's contradicts?  Those of a side do not."""
        return bool(first and second & ~self.find_allies(first))

    def find_due(self, claims: int, before: int) -> dict[int, int]:
        """When each of these ``claims`` first owed what it still owes, if that is before a time."""
        found: dict[int, int] = {}
        for dispute in self.asking:
            for owed in self.disputes[dispute].classes.values():
                for owing, due in owed.asked:
                    if due < before:
                        for claim in list_bits(owing & claims):
                            found[claim] = min(found.get(claim, before), due)
        return found


@dataclass(frozen=True)
class LogClaim:
    """A claim of the log: number ``order`` of the game, and how it fell, if it did."""

    order: int
    fall: Fall | None = None


class Question(NamedTuple):
    """What is asked at an id: the hash of a range or (``value`` empty) the opening of a dispute.

    ``where`` are the (contest, dispute) that wait for it; ``limit`` the bytes of an answer.
    """

    value: bytes
    where: tuple[tuple[bytes, bytes], ...]
    limit: int


class Answer(NamedTuple):
    """An accepted move that did work: who made it, what it was, and where it counted.

    ``where`` are (contest, dispute, class), of an opening and of a sub-claim (contest, id, root).
    """

    party: bytes
    kind: Literal["answer", "opening", "log", "trace", "terms"]
    where: tuple[tuple[bytes, bytes, bytes], ...]


class BondRecord(NamedTuple):
    """An accepted bond: ``amount`` is 0 where the bond of a claim above it serves."""

    party: bytes
    level: Level
    scope: bytes
    root: bytes
    amount: int


class Chain(NamedTuple):
    """A list that grows at its end and shares all before it."""

    last: Answer | BondRecord
    before: Chain | None


def list_chain(chain: Chain | None) -> list[Answer | BondRecord]:
    """Its items, the first first."""
    found: list[Answer | BondRecord] = []
    while chain is not None:
        found.append(chain.last)
        chain = chain.before
    return found[::-1]


class DisputedGraph:
    """The step graph that a game is about, with what its rules ask of it.

    MoveRefusedError when it is not the one under ``root``, or a node has several outputs.
    """

    def __init__(self, graph: StepGraph, root: bytes) -> None:
        self.nodes = graph.nodes
        self._graph = graph
        self._encoded = [encode_node(node) for node in graph.nodes]
        self._tree = _core.MerkleTree(domains.GRAPH)
        for data in self._encoded:
            self._tree.append(data)
        if self._tree.root(len(self.nodes)) != root:
            raise MoveRefusedError("is not the one that the genesis names", where="graph")
        if any(len(node.outputs) != 1 for node in graph.nodes):
            raise MoveRefusedError("has a node with several outputs", where="graph")

    @cached_property
    def record_node(self) -> int:
        """The node that puts out the record."""
        return self._graph.find("record")

    @cached_property
    def _sources(self) -> dict[str, int]:
        return {name: ref.node for name, ref in self._graph.next_states().items()}

    def open_node(self, index: int) -> NodeOpening:
        """A node with its place under the graph root."""
        path = self._tree.inclusion_path(index, len(self.nodes))
        return NodeOpening(index, self._encoded[index], tuple(path))

    def get_source_of_state(self, index: int) -> int:
        """The ``next_state`` node that the ``state`` node ``index`` gets its value from."""
        return self._sources[str(self.nodes[index].attrs["name"])]

    def get_node(self, index: int) -> Node:
        """Node ``index``."""
        return self.nodes[index]

    def get_length(self, index: int) -> int:
        """Bytes of a node's output."""
        return self.nodes[index].outputs[0].byte_length

    def get_width(self, index: int) -> int:
        """Bytes of an element of a node's output."""
        return int(NUMPY_DTYPES[self.nodes[index].outputs[0].dtype].itemsize)

    def count_chunks(self, index: int) -> int:
        """Chunks of a node's output."""
        return compute_chunk_count(self.get_length(index))

    def encode_site(self, index: int) -> tuple[bytes, list[bytes]]:
        """A node and what puts out its inputs, as leaf rules take them."""
        return self._encoded[index], [self._encoded[ref.node] for ref in self.nodes[index].inputs]

    def measure_fold(self, index: int) -> tuple[int, int]:
        """(blocks, int64 words of a state) of the fold that gives an element of a node's output.

        MoveRefusedError for a node that has no leaf rule.
        """
        try:
            terms, length, width = _core.leaf_fold(*self.encode_site(index))
        except (GraphError, EncodingError) as error:
            raise MoveRefusedError(str(error), where=f"node {index}") from error
        return -(-terms // length), width


@dataclass(frozen=True)
class Game:
    """A dispute at time ``now``, after ``moves`` moves; ``id`` is the hash of its genesis.

    ``logs`` are the claims of the log by root; ``backers`` of each (scope, root) with the order in
    which they came, ``stands`` the root that each (scope, party) stands behind; the scope is the
    game's id for claims of the log and the contest for others.  ``groups`` are the contests of
    this ``round``, ``loads`` the live claims and sub-claims of each.  ``facts`` are revealed items
    by id, ``asked`` the questions, ``sides`` the contest of each side.  ``ends`` is -1 until it is
    over.
    """

    id: bytes
    genesis: Genesis
    graph: DisputedGraph = field(compare=False, repr=False)
    now: int
    moves: int = 0
    round: int = 0
    ends: int = -1
    logs: Map[bytes, LogClaim] = field(default_factory=Map)
    groups: tuple[bytes, ...] = ()
    loads: Map[bytes, int] = field(default_factory=Map)
    contests: Map[bytes, Contest] = field(default_factory=Map)
    sides: Map[bytes, bytes] = field(default_factory=Map)
    facts: Map[bytes, tuple[bytes, ...]] = field(default_factory=Map)
    asked: Map[bytes, Question] = field(default_factory=Map)
    backers: Map[tuple[bytes, bytes], Map[bytes, int]] = field(default_factory=Map)
    stands: Map[tuple[bytes, bytes], bytes] = field(default_factory=Map)
    agenda: Agenda | None = None
    answers: Chain | None = None
    bonds: Chain | None = None

    @property
    def over(self) -> bool:
        """Is there a verdict?"""
        return self.ends >= 0

    def get_scope(self, contest: Contest) -> bytes:
        """Where backers of its claims are kept."""
        return self.id if contest.level == "log" else contest.id

    def find_own(self, contest: Contest, party: bytes) -> int:
        """The claim of a contest that ``party`` stands behind, as a set; 0 for none."""
        root = self.stands.get((self.get_scope(contest), party))
        index = None if root is None else contest.index.get(root)
        return 0 if index is None else 1 << index


@dataclass(frozen=True)
class Verdict:
    """How a game ended at ``at``.  ``standing`` is the log root that stands, empty when none does.

    ``solver`` is how the solver's own claim fell, None when it stands.  ``bonds`` counts all bonds,
    and ``outcomes`` is the hash of what became of each (``vtrain.dispute.money``).
    """

    game: Digest
    standing: Annotated[bytes, LengthOrNone(32)]
    solver: Fall | None
    at: Count
    bonds: Count
    outcomes: Digest


def list_bits(mask: int) -> Iterator[int]:
    """The members of a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def get_base_step(commit_every: int, step: int) -> int:
    """The last step before ``step`` whose record has a state root (0: the initial state)."""
    return (step - 1) // commit_every * commit_every


def compute_game_id(genesis: Genesis) -> bytes:
    """H_game(canonical encoding of the genesis)."""
    return compute_domain_hash(domains.GAME, structs.encode(genesis))


def _compute_id(kind: str, about: dict[str, cbor.Value]) -> bytes:
    return compute_domain_hash(domains.POSITION, cbor.encode({"kind": kind, **about}))


def compute_group_id(game: bytes, round_: int, roots: list[bytes]) -> bytes:
    """Of a group of claims of the log: the game, the round and the roots in ascending order."""
    roots = sorted(roots)
    return _compute_id("group", {"game": game, "roots": [*roots], "round": round_})


def compute_dispute_id(
    above: bytes, tree: Tree, start: int, end: int, agreed: list[bytes]
) -> bytes:
    """Of leaves [start, end) of ``tree``, in the dispute or contest ``above``.

    ``agreed`` is what the claims have to the left of it within the dispute above, so that the id
    binds all that they agree on.
    """
    about: dict[str, cbor.Value] = {"above": above, "agreed": [*agreed]}
    return _compute_id("dispute", {**about, "end": end, "start": start, "tree": tree})


@lru_cache(1 << 12)
def compute_side_id(dispute: bytes, value: bytes) -> bytes:
    """Of the claims that have ``value`` in a dispute."""
    return _compute_id("side", {"dispute": dispute, "value": value})


def compute_fact_id(dispute: Dispute, value: bytes) -> bytes:
    """Of what has the hash ``value`` over a dispute's range: the same in every dispute there."""
    is_root = dispute.is_root and dispute.tree == "chunks"
    span = dispute.start, dispute.end
    return _compute_fact_id(dispute.tree, dispute.length, span, is_root, value)


@lru_cache(1 << 12)
def _compute_fact_id(
    tree: Tree, length: int, span: tuple[int, int], is_root: bool, value: bytes
) -> bytes:
    start, end = span
    about: dict[str, cbor.Value] = {"end": end, "hash": value, "length": length, "start": start}
    return _compute_id("fact", {**about, "root": int(is_root), "tree": tree})
