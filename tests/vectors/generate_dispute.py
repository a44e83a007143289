"""Writes the vectors of disputes, ``dispute.json``: a genesis, signed moves and frontier folds.

``python tests/vectors/generate_dispute.py`` writes it; ``--check`` only compares and exits 1
when it differs.  README.md documents the format.
"""

from __future__ import annotations

import argparse
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from generate import FOLDER, Json, fill, render  # type: ignore[import-not-found]  # beside this file

from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import public_key
from vtrain.dispute.game import advance, apply, compute_move_digest, sign, start
from vtrain.dispute.state import Game, compute_game_id, compute_position
from vtrain.spec import frontier, merkle
from vtrain.spec.blake3_tree import compute_chunk_value, compute_parent_value
from vtrain.spec.domains import RUN_LOG, TERMS
from vtrain.wire import structs
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import Accuse, Bond, Clocks, Genesis, Move, Open, Reveal

SOLVER, CHALLENGER = (
    Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big")) for number in (1, 2)
)
LEAVES = [b"record %d" % index for index in range(5)]
FALSE = [*LEAVES[:3], b"false 3", b"false 4"]


def make_genesis() -> Genesis:
    """Of a log of five leaves, with every field other than the others."""
    claim = Claim(
        run_id=b"r" * 32,
        solver=public_key(SOLVER),
        task_id=b"t" * 32,
        log_size=len(LEAVES),
        log_root=merkle.compute_root(RUN_LOG, LEAVES),
    )
    return Genesis(
        run_id=claim.run_id,
        solver=claim.solver,
        task_id=claim.task_id,
        log_size=claim.log_size,
        log_root=claim.log_root,
        signature=sign_claim(claim, SOLVER).signature,
        graph_root=b"g" * 32,
        nodes=9,
        record_node=8,
        initial_state_root=b"i" * 32,
        samples_root=b"s" * 32,
        samples=60,
        commit_every=2,
        arity=4,
        clocks=Clocks(join=1, trace=2, terms=3, match=4000, grace=5),
        opened=1_700_000_000_000,
        nonce=b"n" * 32,
    )


def describe(game: Game, name: str, move: Move, key: Ed25519PrivateKey) -> Json:
    """A move, signed."""
    signed = sign(game, move, key)
    return {
        "name": name,
        "position": compute_position(game, move).hex(),
        "move": signed.move.hex(),
        "digest": compute_move_digest(signed).hex(),
        "signature": signed.signature.hex(),
        "encoding": structs.encode(signed).hex(),
    }


def make_dispute() -> Json:
    """The content of the file."""
    genesis = make_genesis()
    game = start(genesis)
    bond = Bond(0, merkle.compute_root(RUN_LOG, FALSE), 0, b"", ())
    other = Bond(0, b"o" * 32, 0, b"", ())
    accuse = Accuse(sign(game, bond, CHALLENGER), sign(game, other, CHALLENGER))
    moves = [
        describe(game, "bond", bond, CHALLENGER),
        describe(game, "contradiction of it", other, CHALLENGER),
        describe(game, "accusation", accuse, SOLVER),
    ]
    joined = apply(game, sign(game, bond, CHALLENGER), genesis.opened)
    joined = advance(joined, genesis.opened + genesis.clocks.join)
    hashes = [merkle.compute_leaf_hash(RUN_LOG, leaf) for leaf in LEAVES]
    ranges = frontier.compute_ranges(0, len(LEAVES), 2)
    items = tuple(
        LEAVES[a] if b - a == 1 else merkle.compute_root_of_hashes(RUN_LOG, hashes[a:b])
        for a, b in ranges
    )
    moves.append(describe(joined, "reveal", Reveal(0, items, None), SOLVER))
    moves.append(describe(joined, "opening", Open(0, (), (), None, None, None, None), SOLVER))
    return {
        "genesis": structs.encode(genesis).hex(),
        "game_id": compute_game_id(genesis).hex(),
        "state": structs.encode(joined).hex(),
        "moves": moves,
        "frontiers": [make_frontier(*case) for case in FRONTIERS],
        "chunk_frontiers": [make_chunk_frontier(*case) for case in CHUNK_FRONTIERS],
    }


FRONTIERS = [(7, 0, 7, 0), (7, 0, 7, 1), (7, 0, 7, 4), (7, 4, 7, 1), (13, 8, 13, 2), (1, 0, 1, 3)]
CHUNK_FRONTIERS = [
    (0, 0, 1, 2), (1, 0, 1, 2), (3000, 0, 3, 1), (3000, 0, 3, 4), (3000, 0, 2, 1), (3000, 2, 3, 1),
    (7000, 4, 7, 1),
]  # fmt: skip


def make_frontier(size: int, start: int, end: int, depth: int) -> Json:
    """Part of a tree over the leaves 0, 1, ... as single bytes."""
    hashes = [merkle.compute_leaf_hash(TERMS, bytes([index])) for index in range(size)]
    ranges = frontier.compute_ranges(start, end, depth)
    items = [merkle.compute_root_of_hashes(TERMS, hashes[a:b]) for a, b in ranges]
    return {
        "domain": TERMS,
        "start": start,
        "end": end,
        "depth": depth,
        "ranges": [list(pair) for pair in ranges],
        "items": [item.hex() for item in items],
        "hash": frontier.fold_frontier(TERMS, start, end, depth, items).hex(),
    }


def compute_value(data: bytes, start: int, end: int, root: bool) -> bytes:
    """Chaining value of chunks, or the digest."""
    if end - start == 1:
        return compute_chunk_value(data[start * 1024 : end * 1024], start, root)
    middle = start + merkle.compute_split(end - start)
    left, right = compute_value(data, start, middle, False), compute_value(data, middle, end, False)
    return compute_parent_value(left, right, root)


def make_chunk_frontier(length: int, start: int, end: int, depth: int) -> Json:
    """Part of the tree of chunks of fill(length)."""
    data = fill(length)
    chunks = max(1, -(-length // 1024))
    whole = (start, end) == (0, chunks)
    ranges = frontier.compute_ranges(start, end, depth)
    if end - start == 1:
        items = [data[start * 1024 : end * 1024]]
    else:
        items = [compute_value(data, a, b, whole and len(ranges) == 1) for a, b in ranges]
    folded = frontier.fold_chunk_frontier(start, end, depth, items, whole)
    return {
        "length": length,
        "start": start,
        "end": end,
        "depth": depth,
        "items": [item.hex() for item in items],
        "hash": folded.hex(),
    }


def main() -> int:
    """Write or compare the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    path, text = FOLDER / "dispute.json", render(make_dispute())
    if not parser.parse_args().check:
        path.write_text(text)
        return 0
    if path.is_file() and path.read_text() == text:
        return 0
    sys.stderr.write("dispute.json is not what the spec gives\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
