"""Proofs of sampled tiles of sampled steps: who says what, in which order, and what it shows.

1. The solver has signed its claim on the run, the log of KZG commitments included.
2. A first draw (:func:`draw_steps`) picks steps among those logged.
3. The solver commits to every tile of these steps (:class:`TraceCommitments`) and signs the roots.
4. A second draw (:func:`draw_statements`) picks among all ``vtrain.prove.tiles.statements`` about
   these steps.
5. The solver opens the tiles that they speak of and proves the statements.
6. :func:`verify_tile_answer` holds all of it against the graph, the claim and the run's logs.

The tiles of the state before, of the batch and of the state after a step are those in the run's
own log; all others are leaves of the trace's tree.  Statements fix the latter, given the former: if
any tile is not what the law makes of the tiles that it depends on, a statement is false.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from vtrain import _core
from vtrain.attest.claims import compute_claim_digest, verify_claim
from vtrain.attest.keys import PrivateKey, public_key, verify_signature
from vtrain.audit.plan import draw
from vtrain.commit.hiding import derive_elements, derive_trace_key
from vtrain.commit.kzg_log import is_point
from vtrain.commit.openings import verify_inclusion
from vtrain.errors import CircuitError, SignatureError
from vtrain.prove.backend.ezkl import Verification
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.circuit.values import Ints
from vtrain.prove.tiles.statements import (
    Combination,
    StepFacts,
    Tile,
    TileContents,
    TileStatement,
)
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.verifier import commit_vector
from vtrain.spec.domains import TILES, TRACE_CLAIM, compute_domain_hash
from vtrain.wire import structs
from vtrain.wire.claim import Claim, SignedClaim
from vtrain.wire.opening import InclusionProof
from vtrain.wire.proof import HIDING, KzgRecord
from vtrain.wire.tiles import (
    SignedTraceClaim,
    TileAnswer,
    TileOpening,
    TileProof,
    TileTrace,
    TraceClaim,
)

STEP_DOMAIN: Final = "trace steps"
"""Domain under which steps are drawn."""
STATEMENT_DOMAIN: Final = "tile statements"
"""Domain under which statements are drawn."""

Prove = Callable[
    [TileStatement, Mapping[str, Ints], Mapping[str, Sequence[int]], Collection[bytes]], bytes
]
"""(statement, values of its given vectors, what hides each, the commitments that a proof opens) ->
proof."""
Verify = Callable[[TileStatement, Mapping[str, bytes], bytes], Verification]
"""(statement, commitments to its given vectors, proof) -> whether the proof shows it."""

# --- draws


def draw_steps(randomness: bytes, claim: Claim, every: int, count: int) -> tuple[int, ...]:
    """``count`` of the steps that the KZG log has records of, every ``every`` steps.

    RunError as of :func:`vtrain.audit.plan.draw`.
    """
    logged, digest = claim.log_size // every, compute_claim_digest(claim)
    return tuple((i + 1) * every for i in draw(randomness, digest, STEP_DOMAIN, logged, count))


def draw_statements(
    randomness: bytes, trace_claim: TraceClaim, tiling: Tiling, count: int
) -> tuple[tuple[TileTrace, int], ...]:
    """``count`` of all statements about the traces claimed: (trace, number of the statement).

    The trace claim's digest binds the claim on the run too, which it names.
    """
    traces, each = trace_claim.traces, len(tiling)
    digest = compute_trace_claim_digest(trace_claim)
    drawn = draw(randomness, digest, STATEMENT_DOMAIN, len(traces) * each, count)
    return tuple((traces[i // each], i % each) for i in drawn)


@dataclass(frozen=True)
class TileChances:
    """What a verdict on sampled tiles rests on: exact chances.

    ``steps`` of the ``logged`` steps were drawn, then ``samples`` of the ``statements`` about them.
    """

    logged: int
    steps: int
    statements: int
    samples: int

    @property
    def escape_steps(self) -> Fraction:
        """The chance that one false step is not among the steps drawn."""
        if not self.logged:
            return Fraction(1)
        return 1 - Fraction(min(self.steps, self.logged), self.logged)

    def escape_statements(self, false: int = 1) -> Fraction:
        """The chance that ``false`` false statements about drawn steps all escape the second draw.

        1 - s/n for one among n where s are drawn; C(n - f, s) / C(n, s) for f (hypergeometric).
        """
        total, drawn = self.statements, min(self.samples, self.statements)
        chance = Fraction(1)
        for i in range(min(false, total)):
            chance *= Fraction(max(total - drawn - i, 0), total - i)
        return chance

    @property
    def escape(self) -> Fraction:
        """The chance that a run with one false step, in it one false statement, passes."""
        return 1 - (1 - self.escape_steps) * (1 - self.escape_statements())

    @property
    def sentence(self) -> str:
        """The same in words."""
        samples = "1 sample" if self.samples == 1 else f"{self.samples} samples"
        return (
            f"one false tile among the {self.statements} statements about the steps drawn escapes "
            f"{samples} with probability {self.escape_statements()}; one false step "
            f"among the {self.logged} logged is not drawn with probability {self.escape_steps}"
        )


# --- the trace claim


def compute_trace_claim_digest(trace_claim: TraceClaim) -> bytes:
    """What is signed: 32 bytes."""
    return compute_domain_hash(TRACE_CLAIM, structs.encode(trace_claim))


def sign_trace_claim(trace_claim: TraceClaim, claim: Claim, key: PrivateKey) -> SignedTraceClaim:
    """Sign; SignatureError unless ``key`` is that of the solver of ``claim``, the claim named."""
    if claim.solver != public_key(key):
        raise SignatureError("the claim names another solver than the key's", where="claim.solver")
    if trace_claim.claim != compute_claim_digest(claim):
        raise SignatureError("is of another claim", where="trace_claim.claim")
    return SignedTraceClaim(trace_claim, key.sign(compute_trace_claim_digest(trace_claim)))


def verify_trace_claim(signed: SignedTraceClaim, claim: Claim) -> None:
    """SignatureError unless the solver of ``claim`` has signed the trace claim, and for it."""
    if signed.trace_claim.claim != compute_claim_digest(claim):
        raise SignatureError("is of another claim", where="trace_claim.claim")
    digest = compute_trace_claim_digest(signed.trace_claim)
    verify_signature(claim.solver, digest, signed.signature)


def find_contradiction(kept: SignedTraceClaim, found: SignedTraceClaim, claim: Claim) -> str:
    """How two trace claims about one claim exclude each other, which convicts who signed both;
    empty where they do not.

    A step has one trace, whatever drew it.  ``found`` is known to be signed by the solver of
    ``claim``; SignatureError unless ``kept`` is.
    """
    verify_trace_claim(kept, claim)
    roots = {trace.step: trace for trace in kept.trace_claim.traces}
    for trace in found.trace_claim.traces:
        if roots.get(trace.step, trace) != trace:
            return f"both are signed by {claim.solver.hex()}, with two traces of step {trace.step}"
    return ""


# --- the solver


class TraceCommitments:
    """The commitments to all tiles of one step's trace, in the tiling's order, and their tree.

    ``logged`` are those to the tiles of the state before, the batch and the state after, and
    ``keys`` what hides these, by source.  Making them takes a commitment for each tile:
    ``progress`` is told (done, all).
    """

    def __init__(
        self,
        contents: TileContents,
        key: CommitKey,
        logged: Mapping[str, Sequence[bytes]],
        keys: Mapping[str, bytes],
        *,
        threads: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.contents = contents
        tiling = contents.tiling
        self._tree = _core.MerkleTree(TILES)
        self._logged = logged
        self._keys = {**keys, "trace": derive_trace_key(keys["before"], keys["batch"])}
        self._commitments: list[bytes] = []
        for number in range(tiling.leaf_count):
            tile = tiling.find_leaf(number)
            hiding = self._hide(tile)
            commitment = commit_vector(key, contents.tile(tile), hiding, threads=threads)
            self._commitments.append(commitment)
            self._tree.append(self._commitments[-1])
            progress(number + 1, tiling.leaf_count)
        self.trace: Final = TileTrace(
            contents.facts.step, self._tree.root(tiling.leaf_count), tiling.leaf_count
        )

    def _hide(self, tile: Tile) -> Sequence[int]:
        """What hides a tile; nothing does where everybody knows it."""
        source, number = self.contents.tiling.place(tile)
        return () if source == "public" else derive_elements(self._keys[source], number)

    def _combine_hiding(self, combination: Combination) -> list[int]:
        """What hides a combination, as the commitments of its tiles add up."""
        total = [0] * HIDING
        for factor, tile in combination:
            for i, element in enumerate(self._hide(tile)):
                total[i] += factor * element
        return total

    def _list_opened(self, statement: TileStatement) -> set[bytes]:
        """The commitments to all tiles of a statement that are secret."""
        places = (
            self.contents.tiling.place(tile)
            for combination in statement.given.values()
            for _, tile in combination
        )
        return {
            self._commitments[number] if source == "trace" else self._logged[source][number]
            for source, number in places
            if source != "public"
        }

    def open(self, number: int) -> TileOpening:
        """The opening of a leaf; CircuitError when there is none."""
        if not 0 <= number < len(self._commitments):
            raise CircuitError(
                f"is none of this trace: there are {len(self._commitments)}, counted from 0",
                where=f"leaf {number}",
            )
        path = self._tree.inclusion_path(number, len(self._commitments))
        return TileOpening(number, self._commitments[number], tuple(path))

    def prove(self, number: int, prove: Prove) -> TileProof:
        """The proof of statement ``number``; errors are those of ``prove``."""
        contents = self.contents
        statement = contents.tiling.statement(number, contents.facts)
        openings = tuple(self.open(leaf) for leaf in find_leaves(contents.tiling, statement))
        given = {name: contents.combine(parts) for name, parts in statement.given.items()}
        hiding = {name: self._combine_hiding(parts) for name, parts in statement.given.items()}
        proof = prove(statement, given, hiding, self._list_opened(statement))
        return TileProof(contents.facts.step, number, openings, proof)


def find_leaves(tiling: Tiling, statement: TileStatement) -> list[int]:
    """The leaves of the trace's tree that a statement speaks of, rising."""
    places = (tiling.place(tile) for part in statement.given.values() for _, tile in part)
    return sorted({number for source, number in places if source == "trace"})


def list_logged(record: KzgRecord) -> dict[str, tuple[bytes, ...]]:
    """The commitments that a record has, by source of tiles."""
    return {"before": record.before, "batch": record.batch, "after": record.after}


# --- the verifier


@dataclass(frozen=True)
class LoggedStep:
    """What the run's logs say of one step: taken from logs that were held against the claim."""

    record: KzgRecord
    loss: int


@dataclass(frozen=True)
class TileAudit:
    """All that a verifier knows before it sees an answer.

    ``every`` is the task's; ``first`` and ``second`` are the randomness of the two draws, of
    ``steps`` steps and ``samples`` statements; ``logged`` the logs' entries of the steps drawn.
    """

    tiling: Tiling
    claim: SignedClaim
    every: int
    first: bytes
    steps: int
    second: bytes
    samples: int
    logged: Mapping[int, LoggedStep]

    @property
    def chances(self) -> TileChances:
        """What the verdict rests on."""
        logged = self.claim.claim.log_size // self.every
        drawn = min(self.steps, logged)
        statements = drawn * len(self.tiling)
        return TileChances(logged, drawn, statements, min(self.samples, statements))


def verify_tile_answer(
    audit: TileAudit,
    trace_claim: SignedTraceClaim,
    answer: TileAnswer,
    *,
    key: CommitKey,
    verify: Verify,
    threads: int = 0,
) -> Verification:
    """Whether the answer shows every statement drawn, of the tiles in the traces claimed.

    Refuses anything else, extra or missing, with the reason in the verdict.  SignatureError when
    claim or trace claim are not signed by the solver: there is nothing to judge then.  CircuitError
    when ``audit`` lacks the log's entry of a step.
    """
    verify_claim(audit.claim)
    verify_trace_claim(trace_claim, audit.claim.claim)
    said = trace_claim.trace_claim
    steps = draw_steps(audit.first, audit.claim.claim, audit.every, audit.steps)
    if said.randomness != audit.first or tuple(trace.step for trace in said.traces) != steps:
        return Verification(False, "the trace claim is not of the steps drawn")
    for trace in said.traces:
        if trace.count != audit.tiling.leaf_count:
            reason = f"the trace of step {trace.step} has {trace.count} tiles"
            return Verification(False, f"{reason}, not {audit.tiling.leaf_count}")
    drawn = draw_statements(audit.second, said, audit.tiling, audit.samples)
    if not drawn:
        return Verification(False, "no statement is drawn")
    asked = [(trace.step, number) for trace, number in drawn]
    if [(proof.step, proof.statement) for proof in answer.proofs] != asked:
        return Verification(False, "the answer is not of the statements drawn")
    for (trace, _), proof in zip(drawn, answer.proofs, strict=True):
        logged = audit.logged.get(trace.step)
        if logged is None or logged.record.step != trace.step:
            raise CircuitError("its log's entry is missing", where=f"step {trace.step}")
        verdict = verify_statement(
            audit.tiling, logged, trace, proof, key=key, verify=verify, threads=threads
        )
        if not verdict.holds:
            place = f"step {proof.step}, statement {proof.statement}"
            return Verification(False, f"{place}: {verdict.reason}")
    return Verification(True, "")


def verify_statement(
    tiling: Tiling,
    logged: LoggedStep,
    trace: TileTrace,
    proof: TileProof,
    *,
    key: CommitKey,
    verify: Verify,
    threads: int = 0,
) -> Verification:
    """Whether a proof shows a statement about a trace that was committed to before it was drawn."""
    facts = StepFacts(trace.step, logged.loss)
    statement = tiling.statement(proof.statement, facts)
    columns = list_logged(logged.record)
    for source, count in tiling.pinned_counts.items():
        if len(columns[source]) != count:
            reason = f"the log has {len(columns[source])} commitments {source}, not {count}"
            return Verification(False, reason)
    if [opening.index for opening in proof.openings] != find_leaves(tiling, statement):
        return Verification(False, "other tiles are opened than it speaks of")
    for opening in proof.openings:
        included = InclusionProof(opening.index, trace.count, opening.path)
        if not verify_inclusion(TILES, trace.root, opening.commitment, included):
            return Verification(False, f"tile {opening.index} is not in the trace")
    known = _Known(tiling, facts, columns, proof.openings, key, threads)
    expected = {}
    for name, parts in statement.given.items():
        terms = [(factor, known.find(tile)) for factor, tile in parts]
        if not all(is_point(commitment) for _, commitment in terms):
            return Verification(False, f"a tile of {name} has no point of the curve")
        expected[name] = _combine(key, terms)
    return verify(statement, expected, proof.proof)


def _combine(key: CommitKey, terms: Sequence[tuple[int, bytes]]) -> bytes:
    if not terms:
        return key.zero
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1 else key.combine(terms)


class _Known:
    """The commitments to a statement's tiles, each from where it is authentic."""

    def __init__(
        self,
        tiling: Tiling,
        facts: StepFacts,
        columns: Mapping[str, Sequence[bytes]],
        openings: Sequence[TileOpening],
        key: CommitKey,
        threads: int,
    ) -> None:
        self._tiling, self._key, self._threads = tiling, key, threads
        self._columns = columns
        self._opened = {opening.index: opening.commitment for opening in openings}
        self._public = TileContents(tiling, facts, {})

    def find(self, tile: Tile) -> bytes:
        """The commitment to a tile."""
        source, number = self._tiling.place(tile)
        if source == "trace":
            return self._opened[number]
        if source == "public":
            return commit_vector(self._key, self._public.tile(tile), threads=self._threads)
        return self._columns[source][number]
