"""Traces of sampled steps, and answers about sampled tiles: what is taken and what is refused.

Proofs are stand-ins here, that bind circuit, parameters and commitments as real ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.kzg import make_key
from tests.prove.tile_law import holds
from tests.prove.tile_steps import Altered, make_contents
from vtrain._core import MerkleTree
from vtrain.attest.claims import compute_claim_digest, sign_claim
from vtrain.attest.keys import public_key
from vtrain.commit.hiding import derive_elements, identify_key
from vtrain.errors import CircuitError, EncodingError, RunError, SignatureError
from vtrain.prove.backend.ezkl import Verification
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.tiles.circuits import build_tile_circuit
from vtrain.prove.tiles.protocol import (
    LoggedStep,
    TileAudit,
    TileChances,
    TraceCommitments,
    compute_trace_claim_digest,
    draw_statements,
    draw_steps,
    find_leaves,
    list_logged,
    sign_trace_claim,
    verify_tile_answer,
    verify_trace_claim,
)
from vtrain.prove.tiles.statements import ZERO, Tile, TileContents, TileStatement
from vtrain.prove.verifier import commit_given, commit_vector
from vtrain.spec.domains import TILES
from vtrain.wire import structs
from vtrain.wire.claim import Claim, SignedClaim
from vtrain.wire.proof import KzgRecord
from vtrain.wire.tiles import (
    SignedTraceClaim,
    TileAnswer,
    TileOpening,
    TileProof,
    TileTrace,
    TraceClaim,
    decode_signed_trace_claim,
    decode_tile_answer,
)

SIDE = 8
FIRST, SECOND = b"first draw", b"second draw"
KEYS = {name: bytes([number]) * 32 for number, name in enumerate(("before", "batch", "after"))}
SOLVER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)


def make_proof(statement: TileStatement, commitments: Mapping[str, bytes]) -> bytes:
    """What stands for a proof: a hash of all that a proof is bound to."""
    hasher = blake3(statement.circuit.encode())
    for name, commitment in commitments.items():
        hasher.update(name.encode() + commitment)
    for name, value in sorted(statement.parameters.items()):
        hasher.update(f"{name} {np.asarray(value).tolist()}".encode())
    if statement.linear is not None:
        for part in (statement.linear.outputs, statement.linear.inputs, statement.linear.factors):
            hasher.update(np.asarray(part, np.int64).tobytes())
    return hasher.digest()


def verify_proof(
    statement: TileStatement, commitments: Mapping[str, bytes], proof: bytes
) -> Verification:
    good = proof == make_proof(statement, commitments)
    return Verification(good, "" if good else "the proof does not hold")


@dataclass
class Case:
    """A solver's whole part for one step, and the auditor's."""

    key: CommitKey
    contents: TileContents
    commitments: TraceCommitments
    audit: TileAudit
    trace_claim: SignedTraceClaim
    answer: TileAnswer

    def verify(
        self,
        *,
        audit: TileAudit | None = None,
        trace_claim: SignedTraceClaim | None = None,
        answer: TileAnswer | None = None,
    ) -> Verification:
        return verify_tile_answer(
            audit or self.audit,
            trace_claim or self.trace_claim,
            answer or self.answer,
            key=self.key,
            verify=verify_proof,
        )

    def sign(self, **changes: Any) -> SignedTraceClaim:
        """Another trace claim by the same solver."""
        said = replace(self.trace_claim.trace_claim, **changes)
        return SignedTraceClaim(said, sign_any(said, self.audit.claim.claim))


def sign_any(said: TraceClaim, claim: Claim) -> bytes:
    """The solver's signature, whatever the trace claim says."""
    bound = replace(said, claim=compute_claim_digest(claim))
    if bound == said:
        return sign_trace_claim(said, claim, SOLVER).signature
    return SOLVER.sign(compute_trace_claim_digest(said))


def make_claim(log_size: int = 3) -> SignedClaim:
    digest = b"\7" * 32
    claim = Claim(digest, public_key(SOLVER), digest, log_size, digest, kzg_root=digest)
    return sign_claim(claim, SOLVER)


def make_record(contents: TileContents, key: CommitKey) -> KzgRecord:
    columns = {name: [b""] * n for name, n in contents.tiling.pinned_counts.items()}
    for number, tensor in enumerate(contents.tiling.tensors):
        if tensor.source in columns:
            for block in range(tensor.count):
                tile = Tile(number, block)
                _, place = contents.tiling.place(tile)
                hiding = derive_elements(KEYS[tensor.source], place)
                columns[tensor.source][place] = commit_vector(key, contents.tile(tile), hiding)
    before, batch, after = (tuple(columns[name]) for name in ("before", "batch", "after"))
    ids = (identify_key(KEYS[name]) for name in ("before", "batch", "after"))
    return KzgRecord(contents.facts.step, before, batch, after, *ids)


def commit_trace(contents: TileContents, key: CommitKey) -> TraceCommitments:
    return TraceCommitments(contents, key, list_logged(make_record(contents, key)), KEYS)


def make_case(contents: TileContents, key: CommitKey, samples: int = 10**6) -> Case:
    """A run of which the third step alone is logged: all of it is drawn."""
    claim = make_claim()
    commitments = commit_trace(contents, key)
    assert draw_steps(FIRST, claim.claim, 3, 1) == (3,) == (contents.facts.step,)
    said = TraceClaim(compute_claim_digest(claim.claim), FIRST, (commitments.trace,))
    signed = sign_trace_claim(said, claim.claim, SOLVER)
    logged = {3: LoggedStep(make_record(contents, key), contents.facts.loss)}
    tiling = contents.tiling
    audit = TileAudit(tiling, claim, 3, FIRST, 1, SECOND, samples, logged)

    drawn = draw_statements(SECOND, said, tiling, samples)
    case = Case(key, contents, commitments, audit, signed, TileAnswer(()))
    case.answer = TileAnswer(tuple(prove_one(case, number) for _, number in drawn))
    return case


def prove_one(case: Case, number: int) -> TileProof:
    def prove(
        statement: TileStatement,
        given: Mapping[str, Any],
        hiding: Mapping[str, Sequence[int]],
        opened: Collection[bytes],
    ) -> bytes:
        return make_proof(statement, commit_given(case.key, given, hiding))

    return case.commitments.prove(number, prove)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> CommitKey:
    """Always the same one: what is drawn depends on it."""
    return make_key(tmp_path_factory.mktemp("srs") / "k8.srs")


@pytest.fixture(scope="module")
def case(key: CommitKey) -> Case:
    """Every statement about a step of the tiny MLP, answered honestly.  Tests only read it."""
    return make_case(make_contents("mlp", SIDE), key)


@pytest.fixture(scope="module")
def small(key: CommitKey) -> Case:
    """Six of them."""
    return make_case(make_contents("mlp", SIDE), key, 6)


def test_an_honest_answer_is_taken(case: Case) -> None:
    assert len(case.answer.proofs) == len(case.contents.tiling)
    assert case.verify() == Verification(True, "")
    assert all(proof.proof for proof in case.answer.proofs)


@pytest.mark.parametrize("kind", ["mse", "pools", "tokens"])
def test_answers_about_other_steps_are_taken(kind: str, key: CommitKey) -> None:
    assert make_case(make_contents(kind, SIDE), key, 60).verify() == Verification(True, "")


def test_encodings_are_each_others_inverse(case: Case) -> None:
    data = structs.encode(case.answer)
    assert decode_tile_answer(data) == case.answer
    data = structs.encode(case.trace_claim)
    assert decode_signed_trace_claim(data) == case.trace_claim


# --- a solver that lies


def test_a_false_tile_is_found_by_a_statement_about_it(key: CommitKey) -> None:
    """A solver that alters one tile, proves what is true of it, and puts anything for the rest."""
    honest = make_contents("mlp", SIDE)
    for leaf in range(0, honest.tiling.leaf_count, 5):
        tile = honest.tiling.find_leaf(leaf)
        value = honest.tile(tile).copy()
        value[9] += 1
        altered = Altered(honest, tile, value)
        commitments = commit_trace(altered, key)
        refused = []
        for number in range(len(honest.tiling)):
            statement = honest.tiling.statement(number, honest.facts)
            if leaf in find_leaves(honest.tiling, statement) and not holds(statement, altered):
                refused.append(number)
        assert refused
        assert commitments.trace.root != commit_trace(honest, key).trace.root


def test_tiles_that_do_not_add_up_are_refused(key: CommitKey) -> None:
    """The loss in the log is not the sum of the rows."""
    case = make_case(make_contents("mlp", SIDE), key)
    number = next(
        i
        for i in range(len(case.contents.tiling))
        if case.contents.tiling.statement(i, case.contents.facts).circuit == ZERO
    )
    entry = replace(case.audit.logged[3], loss=case.contents.facts.loss + 1)
    verdict = case.verify(audit=replace(case.audit, logged={3: entry}))
    assert not verdict.holds
    assert verdict.reason.startswith(f"step 3, statement {number}: ")
    facts = replace(case.contents.facts, loss=entry.loss)
    lying = TileContents(case.contents.tiling, facts, case.contents.outputs)
    false = lying.tiling.statement(number, facts)
    given = {name: lying.combine(parts) for name, parts in false.given.items()}
    circuit = build_tile_circuit(false.circuit, SIDE)
    assert circuit.find_broken(circuit.assign(given, {}, lambda _: [12345])) == ["zero"]


def change_record(record: KzgRecord, name: str, column: tuple[bytes, ...]) -> KzgRecord:
    match name:
        case "before":
            return replace(record, before=column)
        case "batch":
            return replace(record, batch=column)
        case _:
            return replace(record, after=column)


def test_another_state_batch_or_step_in_the_log_is_refused(case: Case) -> None:
    """Whichever commitment in the log is another, a statement drawn speaks of it."""
    entry = case.audit.logged[3]
    for name in ("before", "batch", "after"):
        column = getattr(entry.record, name)
        for i in range(len(column)):
            other = (
                case.key.zero
                if column[i] != case.key.zero
                else case.key.commit(np.ones(1, np.int8))
            )
            changed = (*column[:i], other, *column[i + 1 :])
            record = change_record(entry.record, name, changed)
            audit = replace(case.audit, logged={3: replace(entry, record=record)})
            assert not case.verify(audit=audit).holds, f"{name} {i}"
        short = change_record(entry.record, name, column[:-1])
        audit = replace(case.audit, logged={3: replace(entry, record=short)})
        assert f"commitments {name}" in case.verify(audit=audit).reason


def test_every_statement_needs_a_proof(case: Case) -> None:
    """Also one about a sum that commitments alone would show, were they not hidden."""
    proofs = case.answer.proofs
    for at, proof in enumerate(proofs):
        fewer = (*proofs[:at], replace(proof, proof=b""), *proofs[at + 1 :])
        verdict = case.verify(answer=TileAnswer(fewer))
        place = f"step {proof.step}, statement {proof.statement}: "
        assert (verdict.holds, verdict.reason.startswith(place)) == (False, True)


def test_a_tree_with_other_leaves_than_there_are_tiles_is_refused(small: Case) -> None:
    """Though all that is opened is right, and the answer is to what was drawn."""
    tiling, facts = small.contents.tiling, small.contents.facts
    tree = MerkleTree(TILES)
    leaves = [small.commitments.open(i).commitment for i in range(tiling.leaf_count)]
    for leaf in (*leaves, bytes(64)):
        tree.append(leaf)
    signed = small.sign(traces=(TileTrace(3, tree.root(tree.size), tree.size),))
    proofs = []
    for _, number in draw_statements(SECOND, signed.trace_claim, tiling, 6):
        opened = tuple(
            TileOpening(i, leaves[i], tuple(tree.inclusion_path(i, tree.size)))
            for i in find_leaves(tiling, tiling.statement(number, facts))
        )
        proofs.append(replace(prove_one(small, number), openings=opened))
    verdict = small.verify(trace_claim=signed, answer=TileAnswer(tuple(proofs)))
    assert verdict.reason == f"the trace of step 3 has {tree.size} tiles, not {tree.size - 1}"


@pytest.mark.parametrize("garbage", [bytes(64), b"\xff" * 64, b"\1" * 64])
def test_what_is_no_point_is_refused_not_raised(garbage: bytes, small: Case) -> None:
    """A solver may sign a tree over anything of the right length."""
    tiling, facts = small.contents.tiling, small.contents.facts
    tree = MerkleTree(TILES)
    for _ in range(tiling.leaf_count):
        tree.append(garbage)
    signed = small.sign(traces=(TileTrace(3, tree.root(tree.size), tree.size),))
    drawn = draw_statements(SECOND, signed.trace_claim, tiling, 6)
    proofs = []
    for _, number in drawn:
        leaves = find_leaves(tiling, tiling.statement(number, facts))
        opened = (
            TileOpening(leaf, garbage, tuple(tree.inclusion_path(leaf, tree.size)))
            for leaf in leaves
        )
        proofs.append(TileProof(3, number, tuple(opened), b"x"))
    verdict = small.verify(trace_claim=signed, answer=TileAnswer(tuple(proofs)))
    assert "no point" in verdict.reason or "does not hold" in verdict.reason
    assert not verdict.holds


@pytest.mark.parametrize("garbage", [bytes(64), b"\xff" * 64, b"\1" * 64])
def test_what_is_no_point_is_not_added_up(garbage: bytes, small: Case) -> None:
    """A statement of which a vector is a sum of tiles: the sum is never begun."""
    tiling, facts = small.contents.tiling, small.contents.facts
    tree = MerkleTree(TILES)
    for _ in range(tiling.leaf_count):
        tree.append(garbage)
    signed = small.sign(traces=(TileTrace(3, tree.root(tree.size), tree.size),))

    def adds_up(number: int) -> bool:
        parts = tiling.statement(number, facts).given.values()
        places = ([tiling.place(tile)[0] for _, tile in part] for part in parts)
        return any(len(place) > 1 and "trace" in place for place in places)

    for i in range(1000):
        second = i.to_bytes(4)
        ((_, number),) = draw_statements(second, signed.trace_claim, tiling, 1)
        if adds_up(number):
            break
    leaves = find_leaves(tiling, tiling.statement(number, facts))
    opened = (
        TileOpening(leaf, garbage, tuple(tree.inclusion_path(leaf, tree.size))) for leaf in leaves
    )
    verdict = small.verify(
        audit=replace(small.audit, second=second, samples=1),
        trace_claim=signed,
        answer=TileAnswer((TileProof(3, number, tuple(opened), b""),)),
    )
    assert (verdict.holds, "has no point of the curve" in verdict.reason) == (False, True)


# --- altered answers and claims


def alter(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, int):
        return value + 1
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
    if isinstance(value, tuple):
        return value[:-1] if value else (b"x" * 32,)
    raise AssertionError(value)


def alterations(value: Any) -> list[Any]:
    """Copies of a dataclass, each with one field changed, anywhere inside it."""
    found = []
    for item in fields(value):
        inner = getattr(value, item.name)
        if is_dataclass(inner):
            found += [replace(value, **{item.name: changed}) for changed in alterations(inner)]
            continue
        found.append(replace(value, **{item.name: alter(inner)}))
        if isinstance(inner, tuple):
            if inner:
                found.append(replace(value, **{item.name: (*inner, inner[-1])}))
            if len(inner) > 1 and inner[0] != inner[-1]:
                found.append(replace(value, **{item.name: inner[::-1]}))
            for i, part in enumerate(inner):
                changed = alterations(part) if is_dataclass(part) else [alter(part)]
                found += [
                    replace(value, **{item.name: (*inner[:i], other, *inner[i + 1 :])})
                    for other in changed
                ]
    return found


def test_an_answer_with_a_field_altered_is_refused(small: Case) -> None:
    altered = alterations(small.answer)
    assert len(altered) > 60
    for answer in altered:
        assert not small.verify(answer=answer).holds
    assert small.verify().holds


def test_a_trace_claim_with_a_field_altered_is_refused(small: Case) -> None:
    """Unsigned it is nobody's; signed anew by the solver it does not fit the draws."""
    for changed in alterations(small.trace_claim):
        with pytest.raises(SignatureError):
            small.verify(trace_claim=changed)
    for said in alterations(small.trace_claim.trace_claim):
        signed = SignedTraceClaim(said, sign_any(said, small.audit.claim.claim))
        if said.claim != small.trace_claim.trace_claim.claim:
            with pytest.raises(SignatureError, match="another claim"):
                small.verify(trace_claim=signed)
        else:
            assert not small.verify(trace_claim=signed).holds


def test_flipped_bits_are_refused(small: Case) -> None:
    data = structs.encode(small.answer)
    random = np.random.default_rng(4)
    for bit in random.choice(8 * len(data), 400, replace=False).tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            answer = decode_tile_answer(bytes(flipped))
        except EncodingError:
            continue
        assert not small.verify(answer=answer).holds


def test_an_auditor_that_knows_otherwise_refuses(small: Case) -> None:
    audit = small.audit
    other = TileAudit(
        make_contents("mse", SIDE).tiling, *[getattr(audit, f.name) for f in fields(audit)[1:]]
    )
    for changed in (
        replace(audit, first=b"another"),
        replace(audit, second=b"another"),
        replace(audit, samples=5),
        replace(audit, samples=7),
        replace(audit, every=2),
        replace(audit, steps=0),
        other,
    ):
        assert not small.verify(audit=changed).holds
    forged = replace(audit.claim, signature=OTHER.sign(compute_claim_digest(audit.claim.claim)))
    for claim in (make_claim(4), forged):
        with pytest.raises(SignatureError):
            small.verify(audit=replace(audit, claim=claim))
    with pytest.raises(CircuitError, match="entry is missing"):
        small.verify(audit=replace(audit, logged={}))


def test_an_audit_of_nothing_shows_nothing(small: Case) -> None:
    """Neither without samples nor without steps is anything verified."""
    nothing = replace(small.audit, samples=0)
    assert small.verify(audit=nothing, answer=TileAnswer(())).reason == "no statement is drawn"
    no_steps = replace(small.audit, steps=0)
    verdict = small.verify(audit=no_steps, trace_claim=small.sign(traces=()), answer=TileAnswer(()))
    assert verdict == Verification(False, "no statement is drawn")


def test_only_the_solver_of_the_claim_signs_for_it(small: Case) -> None:
    claim, said = small.audit.claim.claim, small.trace_claim.trace_claim
    with pytest.raises(SignatureError, match="another solver"):
        sign_trace_claim(said, claim, OTHER)
    with pytest.raises(SignatureError, match="another claim"):
        sign_trace_claim(replace(said, claim=bytes(32)), claim, SOLVER)
    forged = replace(small.trace_claim, signature=OTHER.sign(bytes(32)))
    with pytest.raises(SignatureError):
        verify_trace_claim(forged, claim)


# --- draws and chances


def test_draws_depend_on_all_that_they_should(small: Case) -> None:
    said, tiling = small.trace_claim.trace_claim, small.contents.tiling
    claim = make_claim(100).claim
    assert draw_steps(FIRST, claim, 5, 100) != draw_steps(SECOND, claim, 5, 100)
    assert sorted(draw_steps(FIRST, make_claim(103).claim, 5, 100)) == list(range(5, 101, 5))
    drawn = draw_statements(SECOND, said, tiling, 20)
    assert len(set(drawn)) == 20
    others: list[Callable[[], Any]] = [
        lambda: draw_statements(FIRST, said, tiling, 20),
        lambda: draw_statements(SECOND, replace(said, claim=bytes(32)), tiling, 20),
        lambda: draw_statements(
            SECOND,
            replace(said, traces=(replace(said.traces[0], root=bytes(32)),)),
            tiling,
            20,
        ),
    ]
    for other in others:
        assert [number for _, number in other()] != [number for _, number in drawn]
    with pytest.raises(RunError):
        draw_statements(b"", said, tiling, 20)


def test_chances_are_those_of_enumeration() -> None:
    total, samples = 9, 3
    chances = TileChances(logged=10, steps=2, statements=total, samples=samples)
    for false in (1, 2, 5):
        escaped = sum(
            not set(chosen) & set(range(false)) for chosen in combinations(range(total), samples)
        )
        assert chances.escape_statements(false) == Fraction(escaped, comb(total, samples))
    assert chances.escape_statements() == 1 - Fraction(samples, total)
    assert chances.escape_statements(7) == 0
    assert chances.escape_steps == Fraction(8, 10)
    assert chances.escape == 1 - Fraction(2, 10) * Fraction(3, 9)
    assert "probability 2/3" in chances.sentence
    assert TileChances(1, 5, 4, 9).escape == 0
    assert TileChances(0, 0, 0, 9).escape == 1


def test_openings_are_of_leaves_that_exist(small: Case) -> None:
    count = small.contents.tiling.leaf_count
    assert isinstance(small.commitments.open(count - 1), TileOpening)
    for number in (-1, count):
        with pytest.raises(CircuitError):
            small.commitments.open(number)
