"""The statement put to the referee: the disputed block, what is agreed, and its openings.

What is agreed comes from the game's state, everything else from the move and is checked by the
referee (``rust/vtrain-core/src/referee``).  docs/dispute.md has the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from vtrain.commit.openings import verify_inclusion
from vtrain.dispute.state import get_base_step
from vtrain.errors import EncodingError, MoveRefusedError
from vtrain.spec.domains import RUN_LOG, TERMS
from vtrain.wire import cbor, structs
from vtrain.wire.dispute import Member, NodeOpening, Open
from vtrain.wire.opening import InclusionProof
from vtrain.wire.record import decode_record
from vtrain.wire.structs import AtMost, Between, Count

if TYPE_CHECKING:
    from vtrain.dispute.state import Contest, Dispute, Game


@dataclass(frozen=True)
class Ruling:
    """What the referee computed: the element or fold state after the block, and who had it right.

    ``after`` is empty when no value of the law's range comes out.
    """

    after: Annotated[bytes, AtMost(65536)]
    blocks: Count
    right: tuple[Annotated[int, Between(0, 1)], Annotated[int, Between(0, 1)]]
    what: str


def decode_ruling(data: bytes) -> Ruling:
    """The referee's answer from its canonical encoding."""
    return structs.decode(Ruling, data, "ruling")


def compose(game: Game, contest_id: bytes, dispute_id: bytes, move: Open) -> bytes:
    """The statement about a dispute that waits for an opening, as canonical CBOR.

    Agreed leaves are opened in the trees of claims that meet in the dispute, of which the move says
    the roots: all of them have the same leaves there.  MoveRefusedError when the move lacks what
    the dispute needs or has what it does not.
    """
    genesis, graph = game.genesis, game.graph
    contest = game.contests[contest_id]
    dispute = contest.disputes[dispute_id]
    trace, before = contest, b""
    if contest.level == "terms":
        trace = game.contests[contest.above]
        before = _take_before(move, contest, dispute)
    elif move.terms is not None or move.before is not None:
        raise MoveRefusedError("is not asked for", where="before")
    place, log = dispute.place, game.contests[trace.above]
    _check_meets(trace, contest.id if contest is not trace else dispute_id, move.trace, "trace")
    _check_meets(log, trace.id, move.log, "log")
    base_step = get_base_step(genesis.commit_every, trace.place.step)
    base = genesis.initial_state_root
    if base_step > 0:
        base = _take_base(move.base, move.log, base_step, genesis.log_size)
    elif move.base is not None:
        raise MoveRefusedError("is not asked for", where="base")
    node = graph.get_node(place.node)
    sources = [ref.node for ref in node.inputs]
    offset = place.step - base_step - 1
    if node.op == "state" and offset > 0:
        sources = [graph.get_source_of_state(place.node)]
    # What has fallen, a content of the wrong form say, is not asked about.
    live = sorted(value for value, found in dispute.classes.items() if found.mask & contest.live)
    claims: list[cbor.Value] = [*live, b"", b""]
    windowed: dict[str, cbor.Value] = {}
    if genesis.windows is not None:
        windowed["windows"] = structs.to_value(genesis.windows)
        windowed["tokens"] = [structs.to_value(chunk) for chunk in move.tokens]
    elif move.tokens:
        raise MoveRefusedError("is not asked for", where="tokens")
    return cbor.encode(
        {
            **windowed,
            "graph": {"root": genesis.graph_root, "size": genesis.nodes},
            "trace": {"root": move.trace, "size": trace.size},
            "position": offset * genesis.nodes + place.node,
            "base": base,
            "samples": {"root": genesis.samples_root, "size": genesis.samples},
            "node": _node(graph.open_node(place.node)),
            "sources": [_node(graph.open_node(source)) for source in sources],
            "source_index": sources[0] if node.op == "state" and offset > 0 else 0,
            "inputs": [structs.to_value(opening) for opening in move.inputs],
            "state_leaf": _leaf(move.state_leaf),
            "rows": [structs.to_value(row) for row in move.rows],
            "element": place.element,
            "block": max(place.block, 0),
            "before": before,
            "claims": claims[:2],
        }
    )


def _check_meets(contest: Contest, dispute_id: bytes, root: bytes, where: str) -> None:
    """Refuse a root that is not of a claim in the dispute: others need not agree."""
    index = contest.index.get(root)
    classes = contest.disputes[dispute_id].classes.values()
    if index is None or not any(found.mask >> index & 1 for found in classes):
        raise MoveRefusedError("is no claim that meets in this dispute", where=where)


def _take_before(move: Open, contest: Contest, dispute: Dispute) -> bytes:
    """The agreed fold state before the block, empty for the first."""
    block, member = dispute.place.block, move.before
    if block == 0:
        if member is not None or move.terms is not None:
            raise MoveRefusedError("is not asked for", where="before")
        return b""
    if member is None or move.terms is None:
        raise MoveRefusedError("the state before the block is needed", where="before")
    _check_meets(contest, dispute.id, move.terms, "terms")
    proof = InclusionProof(member.index, member.size, member.path)
    holds = (member.index, member.size) == (block - 1, contest.size) and verify_inclusion(
        TERMS, move.terms, member.data, proof
    )
    if not holds:
        raise MoveRefusedError("is not the state before the block", where="before")
    return member.data


def _take_base(member: Member | None, root: bytes, step: int, size: int) -> bytes:
    """The agreed state root after ``step``, empty when it is not opened."""
    if member is None:
        return b""
    proof = InclusionProof(member.index, member.size, member.path)
    holds = (member.index, member.size) == (step - 1, size) and verify_inclusion(
        RUN_LOG, root, member.data, proof
    )
    if not holds:
        raise MoveRefusedError(f"is not the record of step {step}", where="base")
    try:
        return decode_record(member.data).state_root
    except EncodingError as error:
        raise MoveRefusedError(str(error), where="base") from error


def _node(opening: NodeOpening) -> dict[str, cbor.Value]:
    return {"data": opening.data, "path": list(opening.path)}


def _leaf(member: Member | None) -> dict[str, cbor.Value]:
    if member is None:
        return {}
    return {
        "index": member.index,
        "leaf": member.data,
        "path": list(member.path),
        "size": member.size,
    }
