"""Writes ``tile_answers.json``: an answer about tiles, honest and with faults, and what is wrong.

``python -m tests.vectors.generate_tile_answers`` writes it; ``--check`` compares and exits 1 when
it differs.  Rows of docs/tiling.md, section 7, are stated here and held against the verdict of
vtrain/prove/tiles/protocol.py.  Proofs are stand-ins.  README.md documents the format.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.vectors import generate_tiling, kzg_rule
from tests.vectors.files import format_cases, write_or_compare
from vtrain._core import MerkleTree
from vtrain.attest.claims import compute_claim_digest, sign_claim
from vtrain.attest.keys import public_key
from vtrain.commit.hiding import derive_elements, identify_key
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import SignatureError
from vtrain.prove.backend.ezkl import Verification
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.tiles.protocol import (
    LoggedStep,
    TileAudit,
    TraceCommitments,
    compute_trace_claim_digest,
    draw_statements,
    draw_steps,
    find_leaves,
    list_logged,
    verify_tile_answer,
)
from vtrain.prove.tiles.statements import ZERO, StepFacts, Tile, TileContents, TileStatement
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.verifier import commit_given, commit_vector
from vtrain.spec.domains import TILES
from vtrain.train.data import build_samples
from vtrain.wire import cbor, structs
from vtrain.wire.claim import Claim, encode_signed_claim
from vtrain.wire.graph import encode_graph
from vtrain.wire.proof import KzgRecord, encode_kzg_record
from vtrain.wire.tiles import (
    SignedTraceClaim,
    TileAnswer,
    TileOpening,
    TileProof,
    TileTrace,
    TraceClaim,
)

PATH = Path(__file__).with_name("tile_answers.json")
Json = dict[str, Any]
SIDE, K, BLINDING, TAU, EVERY, LOGGED = 4, 7, 5, 123456789, 3, 2
FIRST = b"first draw"
SOLVER = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
DRAWN = ["gate", "linear", "matmul-nn", "range-1", "zero", "zero"]
"""The circuits of the statements that are drawn."""
KEYS = {"before": bytes([2]) * 32, "batch": bytes([3]) * 32, "after": bytes([4]) * 32}
"""Of what hides the tiles in the KZG record."""

ROWS = {
    "is of another claim": "5",
    "does not verify": "5",
    "the trace claim is not of the steps drawn": "9",
    " tiles, not ": "10",
    "no statement is drawn": "11",
    "the answer is not of the statements drawn": "12",
    "the log has": "1",
    "other tiles are opened": "2",
    "is not in the trace": "3",
    "no point of the curve": "4",
    "the proof does not hold": "5",
}
"""Words of the verdict -> row of section 7, or condition of a statement."""


def make_stand_in(
    tiling: Tiling, statement: TileStatement, commitments: Mapping[str, bytes]
) -> bytes:
    """What takes the place of a proof: a hash of what one is of."""
    said = generate_tiling.describe(tiling, statement)
    return blake3(
        cbor.encode(
            {
                "circuit": said["circuit"],
                "given": [[name, value] for name, value in commitments.items()],
                "linear": said["linear"],
                "parameters": said["parameters"],
            }
        )
    ).digest()


def judge(
    tiling: Tiling, statement: TileStatement, commitments: Mapping[str, bytes], proof: bytes
) -> Verification:
    good = proof == make_stand_in(tiling, statement, commitments)
    return Verification(good, "" if good else "the proof does not hold")


@dataclass(frozen=True)
class Case:
    """All that an auditor has."""

    claim: Claim
    logged: Mapping[int, LoggedStep]
    traces: SignedTraceClaim
    answer: tuple[TileProof, ...]
    second: bytes
    samples: int

    def find_fault(self, tiling: Tiling, key: CommitKey) -> tuple[str, int | None]:
        """(row, "" where all holds; the statement's place in the draw)."""
        audit = TileAudit(
            tiling, sign_claim(self.claim, SOLVER), EVERY, FIRST, 1, self.second, self.samples,
            self.logged,
        )  # fmt: skip
        try:
            verdict = verify_tile_answer(
                audit, self.traces, TileAnswer(self.answer), key=key, verify=partial(judge, tiling)
            )
        except SignatureError as error:
            return next(row for words, row in ROWS.items() if words in str(error)), None
        if verdict.holds:
            return "", None
        row = next(row for words, row in ROWS.items() if words in verdict.reason)
        if not verdict.reason.startswith("step "):
            return row, None
        number = int(verdict.reason.split("statement ")[1].split(":")[0])
        places = [proof.statement for proof in self.answer]
        return f"13.{row}", places.index(number)


def sign(said: TraceClaim) -> SignedTraceClaim:
    return SignedTraceClaim(said, SOLVER.sign(compute_trace_claim_digest(said)))


def make_contents(tiling: Tiling, step: int) -> TileContents:
    random = np.random.default_rng(4)
    samples = build_samples(
        random.integers(0, 7, (9, 3), dtype=np.uint8), random.integers(0, 4, 9, dtype=np.uint8)
    )
    session = NumpySession(tiling.graph, samples)
    weights = random.integers(-(2**23), 2**23, (15, 3)).astype(np.int32)
    session.load_state({"w": weights, "step": np.zeros((), dtype=np.int64)})
    for _ in range(step - 1):
        session.step()
    outputs = dict(enumerate(session.evaluate_all(range(len(tiling.graph.nodes)))))
    return TileContents(tiling, StepFacts(step, session.step().loss), outputs)


def make_record(contents: TileContents, key: CommitKey) -> KzgRecord:
    tiling = contents.tiling
    columns = {name: [b""] * size for name, size in tiling.pinned_counts.items()}
    for number, tensor in enumerate(tiling.tensors):
        for block in range(tensor.count if tensor.source in columns else 0):
            tile = Tile(number, block)
            column = tensor.first + block
            hiding = derive_elements(KEYS[tensor.source], column)
            columns[tensor.source][column] = commit_vector(key, contents.tile(tile), hiding)
    before, batch, after = (tuple(columns[name]) for name in ("before", "batch", "after"))
    ids = {f"{name}_key": identify_key(secret) for name, secret in KEYS.items()}
    return KzgRecord(contents.facts.step, before, batch, after, **ids)


class Solver:
    """Commits to one step and answers draws."""

    def __init__(self, tiling: Tiling, key: CommitKey) -> None:
        self.tiling, self.key = tiling, key
        digest = bytes(range(32))
        self.claim = Claim(
            digest, public_key(SOLVER), digest, EVERY * LOGGED, digest, kzg_root=digest
        )
        (step,) = draw_steps(FIRST, self.claim, EVERY, 1)
        self.contents = make_contents(tiling, step)
        record = make_record(self.contents, key)
        self.commitments = TraceCommitments(self.contents, key, list_logged(record), KEYS)
        self.said = TraceClaim(compute_claim_digest(self.claim), FIRST, (self.commitments.trace,))
        self.logged = {step: LoggedStep(record, self.contents.facts.loss)}

    def answer(self, said: TraceClaim, second: bytes) -> tuple[TileProof, ...]:
        drawn = draw_statements(second, said, self.tiling, len(DRAWN))
        return tuple(self.prove(number) for _, number in drawn)

    def prove(self, number: int) -> TileProof:
        def make(
            statement: TileStatement,
            given: Mapping[str, Any],
            hiding: Mapping[str, Sequence[int]],
            opened: Collection[bytes],
        ) -> bytes:
            commitments = commit_given(self.key, given, hiding)
            return make_stand_in(self.tiling, statement, commitments)

        return self.commitments.prove(number, make)

    def list_circuits(self, said: TraceClaim, second: bytes) -> list[str]:
        drawn = draw_statements(second, said, self.tiling, len(DRAWN))
        facts = self.contents.facts
        return [self.tiling.statement(number, facts).circuit for _, number in drawn]

    def make_case(self) -> Case:
        seeds = (number.to_bytes(4, "big") for number in count())
        second = next(s for s in seeds if sorted(self.list_circuits(self.said, s)) == DRAWN)
        answer = self.answer(self.said, second)
        return Case(self.claim, self.logged, sign(self.said), answer, second, len(DRAWN))


def change(items: Sequence[Any], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def list_cases(solver: Solver, honest: Case) -> Iterator[tuple[str, str, int | None, Case]]:
    """(what is wrong, row, which of the statements drawn, what the auditor has)."""
    yield "nothing is wrong", "", None, honest
    said, trace, proofs = solver.said, solver.commitments.trace, honest.answer
    flipped = bytes([honest.traces.signature[0] ^ 1]) + honest.traces.signature[1:]
    signed = replace(honest.traces, signature=flipped)
    yield "another signature", "5", None, replace(honest, traces=signed)
    for about, row, changes in (
        ("traces of another claim", "5", {"claim": bytes(32)}),
        ("another randomness", "9", {"randomness": b"third draw"}),
        ("a trace of another step", "9", {"traces": (replace(trace, step=9 - trace.step),)}),
        ("a trace too many", "9", {"traces": (trace, replace(trace, step=9 - trace.step))}),
        ("no trace", "9", {"traces": ()}),
        ("a leaf too many", "10", {"traces": (replace(trace, count=trace.count + 1),)}),
    ):
        other = sign(replace(said, **changes))
        yield about, row, None, replace(honest, traces=other)
    yield "no statement is asked for", "11", None, replace(honest, samples=0, answer=())
    yield (
        "two answers in the other order",
        "12",
        None,
        replace(honest, answer=(proofs[1], proofs[0], *proofs[2:])),
    )
    yield "an answer is missing", "12", None, replace(honest, answer=proofs[:-1])
    yield "an answer twice", "12", None, replace(honest, answer=(*proofs, proofs[-1]))
    moved = replace(proofs[2], step=9 - trace.step)
    yield (
        "an answer about another step",
        "12",
        None,
        replace(honest, answer=change(proofs, 2, moved)),
    )
    (step,) = solver.logged
    entry = solver.logged[step]
    for name in ("before", "batch", "after"):
        points = getattr(entry.record, name)
        for about, other_points in (("few", points[:-1]), ("many", (*points, points[0]))):
            record = KzgRecord(**{**vars(entry.record), name: other_points})
            logged = {step: replace(entry, record=record)}
            yield f"a commitment too {about}: {name}", "13.1", 0, replace(honest, logged=logged)
    circuits = solver.list_circuits(said, honest.second)
    places = {circuit: circuits.index(circuit) for circuit in circuits}
    at = places["matmul-nn"]
    proof = proofs[at]
    extra = solver.commitments.open(proof.openings[-1].index + 1)
    for about, openings in (
        ("an opening is missing", proof.openings[1:]),
        ("an opening too many", (*proof.openings, extra)),
        ("openings in the other order", proof.openings[::-1]),
    ):
        changed = change(proofs, at, replace(proof, openings=openings))
        yield about, "13.2", at, replace(honest, answer=changed)
    opening = proof.openings[0]
    for about, broken in (
        ("another commitment is opened", replace(opening, commitment=solver.key.zero)),
        ("a path is longer", replace(opening, path=(*opening.path, bytes(32)))),
        ("a path is shorter", replace(opening, path=opening.path[:-1])),
    ):
        changed = change(proofs, at, replace(proof, openings=change(proof.openings, 0, broken)))
        yield about, "13.3", at, replace(honest, answer=changed)
    yield from _list_trees(solver, honest)
    yield from _list_garbage(solver, honest)
    for circuit, place in places.items():
        for about, data in (("another proof", bytes(32)), ("no proof", b"")):
            changed = change(proofs, place, replace(proofs[place], proof=data))
            yield f"{about}: {circuit}", "13.5", place, replace(honest, answer=changed)
    facts = solver.contents.facts
    combined = [i for i, circuit in enumerate(circuits) if circuit == ZERO]
    for place in combined:
        node = solver.tiling.statement(proofs[place].statement, facts).node
        if node == "record":
            logged = {step: replace(entry, loss=entry.loss + 1)}
            yield "another loss in the record", "13.5", place, replace(honest, logged=logged)
        else:
            ((_, tile),) = [
                term
                for term in solver.tiling.statement(proofs[place].statement, facts).given["x"]
                if solver.tiling.place(term[1])[0] == "after"
            ]
            _, number = solver.tiling.place(tile)
            after = change(entry.record.after, number, solver.key.commit(np.ones(1, np.int8)))
            logged = {step: replace(entry, record=replace(entry.record, after=after))}
            yield "another state after", "13.5", place, replace(honest, logged=logged)


def _list_trees(solver: Solver, honest: Case) -> Iterator[tuple[str, str, int | None, Case]]:
    """Paths that are right by hashes alone, to a root that is not that of a tree of ``count``."""
    tiling, facts = solver.tiling, solver.contents.facts
    leaves = tiling.leaf_count
    part = 1 << leaves.bit_length() - 1
    points = [solver.commitments.open(number).commitment for number in range(leaves)]

    def claim(root: bytes) -> tuple[TraceClaim, set[int]]:
        """A trace claim, and the leaves that the statements then drawn are about."""
        said = replace(solver.said, traces=(TileTrace(facts.step, root, leaves),))
        drawn = draw_statements(honest.second, said, tiling, len(DRAWN))
        statements = [tiling.statement(number, facts) for _, number in drawn]
        return said, {leaf for item in statements for leaf in find_leaves(tiling, item)}

    def make(said: TraceClaim, alter: Callable[[TileOpening], TileOpening]) -> tuple[int, Case]:
        proofs = [
            replace(proof, openings=tuple(map(alter, proof.openings)))
            for proof in solver.answer(said, honest.second)
        ]
        fault = next(place for place, proof in enumerate(proofs) if proof.openings)
        return fault, replace(honest, traces=sign(said), answer=tuple(proofs))

    for number in count(1):  # the last leaf is changed until no leaf beyond it is drawn
        last = solver.key.commit(np.full(1, number, np.int8))
        tree = make_tree([*points[: part - 1], last])
        said, opened = claim(tree.root(part))
        if max(opened) < part - 1:
            break
    fault, case = make(said, lambda x: replace(x, path=tuple(tree.inclusion_path(x.index, part))))
    yield "a root of fewer leaves than count, with paths to it", "13.3", fault, case
    other = bytes(32)
    root = make_tree(points).root(leaves)
    above = blake3(b"\1" + other + root, derive_key_context=TILES).digest()
    fault, case = make(claim(above)[0], lambda x: replace(x, path=(*x.path, other)))
    yield "a root above that of the tree, with paths to it", "13.3", fault, case


def make_tree(leaves: Sequence[bytes]) -> MerkleTree:
    tree = MerkleTree(TILES)
    for leaf in leaves:
        tree.append(leaf)
    return tree


def _list_garbage(solver: Solver, honest: Case) -> Iterator[tuple[str, str, int | None, Case]]:
    """A tree over what is no point, signed."""
    tiling = solver.tiling
    for about, garbage in (
        ("the point at infinity", bytes(64)),
        ("a coordinate that is not reduced", b"\xff" * 64),
        ("no point of the curve", b"\1" * 64),
    ):
        tree = make_tree([garbage] * tiling.leaf_count)
        root = tree.root(tree.size)
        said = replace(
            solver.said, traces=(TileTrace(solver.contents.facts.step, root, tree.size),)
        )
        proofs = []
        for proof in solver.answer(said, honest.second):
            openings = tuple(
                replace(
                    opening,
                    commitment=garbage,
                    path=tuple(tree.inclusion_path(opening.index, tree.size)),
                )
                for opening in proof.openings
            )
            proofs.append(replace(proof, openings=openings))
        fault = next(place for place, proof in enumerate(proofs) if proof.openings)
        yield about, "13.4", fault, replace(honest, traces=sign(said), answer=tuple(proofs))


def encode_case(case: Case) -> Json:
    (entry,) = case.logged.values()
    return {
        "traces": structs.encode(case.traces).hex(),
        "proofs": [structs.encode(proof).hex() for proof in case.answer],
        "record": encode_kzg_record(entry.record).hex(),
        "loss": str(entry.loss),
        "samples": case.samples,
    }


def make_file() -> Json:
    graph = generate_tiling.TOKENS.graph()
    tiling = Tiling(graph, SIDE)
    srs = kzg_rule.make_srs(TAU, K)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "srs"
        path.write_bytes(srs)
        key = CommitKey(path, K, BLINDING)
        solver = Solver(tiling, key)
        honest = solver.make_case()
        base, cases = encode_case(honest), []
        for about, row, place, case in list_cases(solver, honest):
            found = case.find_fault(tiling, key)
            if found != (row, place):
                raise ValueError(f"{about}: {found}, not {(row, place)}")
            encoded = encode_case(case)
            changed: Json = {}
            for name, value in encoded.items():
                if name != "proofs" and value != base[name]:
                    changed[name] = value
            proofs = encoded["proofs"]
            kept = [base["proofs"].index(x) if x in base["proofs"] else x for x in proofs]
            if kept != [*range(len(base["proofs"]))]:
                changed["proofs"] = kept
            cases.append({"about": about, **changed, "row": row, "statement": place})
    return {
        "side": SIDE,
        "k": K,
        "blinding": BLINDING,
        "srs": srs.hex(),
        "tau": TAU,
        "keys": {name: secret.hex() for name, secret in KEYS.items()},
        "graph": encode_graph(graph).hex(),
        "claim": encode_signed_claim(sign_claim(honest.claim, SOLVER)).hex(),
        "every": EVERY,
        "first": {"randomness": FIRST.hex(), "steps": 1},
        "second": honest.second.hex(),
        "honest": base,
        "cases": cases,
    }


def format_file() -> str:
    """Cases on a line each."""
    return format_cases(make_file())


if __name__ == "__main__":
    sys.exit(write_or_compare(PATH, format_file(), __doc__))
