"""Writes the vectors of disputes, ``dispute.json``: genesis, ids, moves, verdict, frontiers.

``python tests/vectors/generate_dispute.py`` writes it; ``--check`` only compares and exits 1
when it differs.  README.md documents the format.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from generate import FOLDER, Json, fill, render  # type: ignore[import-not-found]  # beside this file

from tests.vectors.generate_games import IMAGES, LANGUAGE, Subject
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import public_key
from vtrain.dispute.game import compute_move_digest, sign
from vtrain.dispute.genesis import measure_openings
from vtrain.dispute.money import BondOutcome, Settled, Share, compute_outcomes_digest
from vtrain.dispute.state import (
    Dispute,
    Fall,
    Place,
    Tree,
    Verdict,
    compute_dispute_id,
    compute_fact_id,
    compute_game_id,
    compute_group_id,
    compute_side_id,
)
from vtrain.errors import RunError
from vtrain.spec import frontier, merkle
from vtrain.spec.blake3_tree import compute_chunk_value, compute_parent_value
from vtrain.spec.domains import RUN_LOG, TERMS
from vtrain.wire import structs
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import (
    Bond,
    Bonds,
    Chunk,
    Clocks,
    Genesis,
    InputOpening,
    Member,
    Move,
    Open,
    Reveal,
    Row,
)
from vtrain.wire.task import Windows, encode_task

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
        host=b"h" * 32,
        run_id=claim.run_id,
        solver=claim.solver,
        task_id=claim.task_id,
        log_size=claim.log_size,
        log_root=claim.log_root,
        signature=sign_claim(claim, SOLVER).signature,
        graph_root=b"g" * 32,
        nodes=9,
        record_node=8,
        leaf_bytes=100_000,
        initial_state_root=b"i" * 32,
        samples_root=b"s" * 32,
        samples=60,
        commit_every=2,
        arity=4,
        group=16,
        clocks=Clocks(
            join=1, trace=2, terms=3, budget=4000, grace=5, answer=6, opening=7, replay=8
        ),
        bonds=Bonds(log=1000, trace=100, terms=10),
        opened=1_700_000_000_000,
        nonce=b"n" * 32,
    )


def describe(game: bytes, name: str, about: bytes, move: Move, key: Ed25519PrivateKey) -> Json:
    """A move, signed."""
    signed = sign(game, about, move, key)
    return {
        "name": name,
        "about": about.hex(),
        "move": signed.move.hex(),
        "digest": compute_move_digest(signed).hex(),
        "signature": signed.signature.hex(),
        "encoding": structs.encode(signed).hex(),
    }


def make_fact(tree: Tree, size: int, length: int, start: int, end: int, value: bytes) -> Json:
    """The id of what has a hash over a range of a tree."""
    dispute = Dispute(bytes(32), bytes(32), tree, size, length, start, end, "", Place())
    return {
        "tree": tree,
        "size": size,
        "length": length,
        "start": start,
        "end": end,
        "hash": value.hex(),
        "id": compute_fact_id(dispute, value).hex(),
    }


def make_dispute() -> Json:
    """The content of the file."""
    genesis = make_genesis()
    game = compute_game_id(genesis)
    root, false = (merkle.compute_root(RUN_LOG, leaves) for leaves in (LEAVES, FALSE))
    group = compute_group_id(game, 1, [root, false])
    whole = compute_dispute_id(group, "log", 0, len(LEAVES), [])
    ranges = frontier.compute_ranges(0, len(LEAVES), 2)
    hashes = [merkle.compute_leaf_hash(RUN_LOG, leaf) for leaf in LEAVES]
    items = tuple(
        LEAVES[a] if b - a == 1 else merkle.compute_root_of_hashes(RUN_LOG, hashes[a:b])
        for a, b in ranges
    )
    record = compute_dispute_id(whole, "log", 3, 4, [items[0]])
    side = compute_side_id(record, LEAVES[3])
    fact = make_fact("log", len(LEAVES), 0, 0, len(LEAVES), root)
    opening = Open(
        log=root,
        trace=b"T" * 32,
        inputs=(InputOpening(b"d" * 32, (b"p" * 32,), (Chunk(1, b"chunk", (b"q" * 32,)),)),),
        rows=(Row(2, b"row", ()),),
        state_leaf=Member(b"leaf", 3, 4, (b"u" * 32,)),
        base=None,
        terms=b"F" * 32,
        before=Member(bytes(8), 5, 6, ()),
    )
    moves = [
        describe(game, "bond behind a log", game, Bond(false, b"", ()), CHALLENGER),
        describe(
            game, "bond behind a sub-claim", side, Bond(b"T" * 32, b"leaf", (b"p" * 32,)), SOLVER
        ),
        describe(game, "reveal", bytes.fromhex(fact["id"]), Reveal(items), SOLVER),
        describe(game, "opening", record, opening, SOLVER),
        describe(
            game,
            "opening of tokens",
            record,
            replace(opening, rows=(), tokens=(Chunk(7, b"tokens", (b"q" * 32,)),)),
            SOLVER,
        ),
    ]
    windowed = replace(genesis, windows=Windows("u16", 304, 4, 5, 1))
    settled = Settled(
        outcomes=(
            BondOutcome(public_key(CHALLENGER), "log", game, false, 1000, 0),
            BondOutcome(public_key(SOLVER), "trace", record, b"T" * 32, 0, 1),
        ),
        shares=(Share(public_key(SOLVER), 999),),
        pot=1000,
        burnt=1,
    )
    verdict = Verdict(
        game=game,
        standing=root,
        solver=Fall("refuted", Place(step=4, node=7, chunk=0, element=3), 5),
        at=1_700_000_004_000,
        bonds=2,
        outcomes=compute_outcomes_digest(settled),
    )
    return {
        "genesis": structs.encode(genesis).hex(),
        "game_id": game.hex(),
        "windowed": {
            "genesis": structs.encode(windowed).hex(),
            "game_id": compute_game_id(windowed).hex(),
        },
        "groups": [
            {"round": 1, "roots": [root.hex(), false.hex()], "id": group.hex()},
            {
                "round": 2,
                "roots": [false.hex(), root.hex()],
                "id": compute_group_id(game, 2, [false, root]).hex(),
            },
        ],
        "disputes": [
            make_id(group, "log", 0, len(LEAVES), []),
            make_id(whole, "log", 3, 4, [items[0]]),
            make_id(record, "trace", 0, 18, []),
            make_id(b"c" * 32, "chunks", 2, 4, [b"a" * 32, b"b" * 32]),
            make_id(b"c" * 32, "terms", 1, 2, [b"state"]),
        ],
        "sides": [{"dispute": record.hex(), "value": LEAVES[3].hex(), "id": side.hex()}],
        "facts": [
            fact,
            make_fact("log", 5, 0, 0, 4, b"v" * 32),
            make_fact("chunks", 3, 3000, 0, 3, b"v" * 32),
            make_fact("chunks", 3, 3000, 0, 2, b"v" * 32),
            make_fact("chunks", 1, 1000, 0, 1, b"v" * 32),
            make_fact("terms", 7, 0, 4, 7, b"v" * 32),
        ],
        "moves": moves,
        "settled": structs.encode(settled).hex(),
        "verdict": structs.encode(verdict).hex(),
        "frontiers": [make_frontier(*case) for case in FRONTIERS],
        "openings": measure_all(),
        "chunk_frontiers": [make_chunk_frontier(*case) for case in CHUNK_FRONTIERS],
    }


def measure(name: str, subject: Subject, *, row: int = 0, every: int = 0, tokens: int = 0) -> Json:
    """The longest opening of a leaf of a task like the subject's: with samples of ``row`` bytes,
    this often a state root, and so many tokens."""
    compiled = subject.task()
    task = compiled.spec
    if row:
        shape = (row - 4,)
        task = replace(task, data=replace(task.data, x_dtype="u8", x_shape=shape, y_dtype="i32"))
        task = replace(task, data=replace(task.data, y_shape=()))
    if tokens:
        assert task.data.windows is not None
        windows = replace(task.data.windows, tokens=tokens)
        task = replace(task, data=replace(task.data, windows=windows, samples=windows.count))
    if every:
        task = replace(task, steps=every, commit_every=every, checkpoint_every=every)
    found = {"name": name, "task": encode_task(task).hex(), "graph": f"games/{subject.file}"}
    try:
        return {**found, "leaf_bytes": measure_openings(task, compiled.graph)}
    except RunError:
        return {**found, "leaf_bytes": None}


def measure_all() -> list[Json]:
    """Tasks in which each term of the sum counts."""
    return [
        measure("samples of a table", IMAGES),
        measure("windows", LANGUAGE),
        measure("a state root in every 2^20th step", IMAGES, every=1 << 20),
        measure("windows of 2^40 tokens", LANGUAGE, tokens=1 << 40),
        measure("samples of 1 MiB", IMAGES, row=1 << 20),
        measure("samples of over 1 MiB", IMAGES, row=(1 << 20) + 1),
    ]


def make_id(above: bytes, tree: Tree, start: int, end: int, agreed: list[bytes]) -> Json:
    """The id of a dispute."""
    return {
        "above": above.hex(),
        "tree": tree,
        "start": start,
        "end": end,
        "agreed": [item.hex() for item in agreed],
        "id": compute_dispute_id(above, tree, start, end, agreed).hex(),
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
