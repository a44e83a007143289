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
    from vtrain.dispute.state import Game


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


def compose(game: Game, index: int, side: int, move: Open) -> bytes:
    """The statement about match ``index``, which waits for an opening, as canonical CBOR.

    Agreed leaves are opened in the trees of the claims that ``side``, the mover's, stands for: the
    other side's have the same leaves there, under other roots.  MoveRefusedError when the move
    lacks what the match needs or has what it does not.
    """
    genesis, match = game.genesis, game.matches[index]
    before = b""
    trace = match
    if match.tree == "terms":
        tournament = game.tournaments[match.tournament]
        entry = tournament.entries[match.sides[side]]
        before = _take_before(move.before, entry.root, match.place.block, match.size)
        trace, side = game.matches[tournament.parent], entry.side
    elif move.before is not None:
        raise MoveRefusedError("is not asked for", where="before")
    traces = game.tournaments[trace.tournament]
    claim = traces.entries[trace.sides[side]]
    log = game.matches[traces.parent]
    site, place = trace.site, trace.place
    if site is None:
        raise MoveRefusedError("no node is opened yet", where="match")
    base_step = get_base_step(genesis.commit_every, log.place.step)
    base = genesis.initial_state_root
    if base_step > 0:
        log_root = game.tournaments[0].entries[log.sides[claim.side]].root
        base = _take_base(move.base, log_root, base_step, genesis.log_size)
    elif move.base is not None:
        raise MoveRefusedError("is not asked for", where="base")
    sources = site.sources if move.source is None else (move.source,)
    return cbor.encode(
        {
            "graph": {"root": genesis.graph_root, "size": genesis.nodes},
            "trace": {"root": claim.root, "size": traces.size},
            "position": (place.step - base_step - 1) * genesis.nodes + place.node,
            "base": base,
            "samples": {"root": genesis.samples_root, "size": genesis.samples},
            "node": _node(site.node),
            "sources": [_node(source) for source in sources],
            "source_index": 0 if move.source is None else move.source.index,
            "inputs": [structs.to_value(opening) for opening in move.inputs],
            "state_leaf": _leaf(move.state_leaf),
            "rows": [structs.to_value(row) for row in move.rows],
            "element": place.element,
            "block": max(match.place.block, 0),
            "before": before,
            "claims": list(match.leaves),
        }
    )


def _take_before(member: Member | None, root: bytes, block: int, size: int) -> bytes:
    """The agreed fold state before ``block``, empty for the first."""
    if block == 0:
        if member is not None:
            raise MoveRefusedError("is not asked for", where="before")
        return b""
    if member is None:
        raise MoveRefusedError("the state before the block is needed", where="before")
    proof = InclusionProof(member.index, member.size, member.path)
    holds = (member.index, member.size) == (block - 1, size) and verify_inclusion(
        TERMS, root, member.data, proof
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
