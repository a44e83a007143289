"""docs/format.cddl is the encoders' and decoders' own grammar.

Whatever an encoder writes is valid.  Of mutated documents the decoder takes none that the grammar
refuses, and refuses none that the grammar takes, but for what the grammar's comments say in words.
"""

from __future__ import annotations

import json
import logging
import operator
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from cddl_verifier import Validator

import vtrain.attest.attested
import vtrain.commit.hiding
import vtrain.dispute.game
import vtrain.dispute.state
import vtrain.prove.backend.settings
import vtrain.prove.verifier
import vtrain.spec.domains
from tests.audit.runs import KEY, make_smallest_task
from tests.exhaustive import spare
from tests.prove.toy import K, make_circuit
from vtrain import _core
from vtrain.attest.attested import (
    compute_attestation_digest,
    compute_batch_digest,
    compute_weights_digest,
    describe_array,
)
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import public_key
from vtrain.dispute.game import compute_move_digest
from vtrain.dispute.money import BondOutcome, Settled, Share
from vtrain.dispute.receipts import (
    Event,
    Opening,
    Page,
    Receipt,
    Refusal,
    SignedReceipt,
    SignedRefusal,
    SignedTime,
    Time,
)
from vtrain.dispute.state import (
    Dispute,
    Fall,
    Place,
    Verdict,
    compute_dispute_id,
    compute_fact_id,
    compute_group_id,
    compute_side_id,
)
from vtrain.dispute.statement import Ruling
from vtrain.errors import EncodingError, RefusalError, VtrainError
from vtrain.report.json import report_to_dict
from vtrain.train.layout import decode_manifest
from vtrain.train.runner import train
from vtrain.wire import cbor, structs
from vtrain.wire.attested import (
    Attestation,
    AttestedFile,
    AttestedStep,
    Listing,
    SignedAttestation,
    decode_attestation,
    decode_listing,
    decode_step,
)
from vtrain.wire.batches import BatchOrder, SignedBatches, decode_batches, encode_batches
from vtrain.wire.bundle import BundleHeader, ProofBundle, decode_bundle, encode_bundle
from vtrain.wire.claim import Claim, SignedClaim, decode_signed_claim, encode_signed_claim
from vtrain.wire.dispute import (
    Bond,
    Bonds,
    Chunk,
    Clocks,
    Genesis,
    InputOpening,
    Member,
    Open,
    Reveal,
    Row,
    SignedMove,
    decode_move,
    encode_move,
)
from vtrain.wire.graph import StepGraph, decode_graph, decode_node, encode_graph, encode_node
from vtrain.wire.hiding import Hiding, HidingKey, decode_hiding
from vtrain.wire.opening import (
    ChunkOpening,
    ConsistencyProof,
    InclusionProof,
    StateLeaf,
    StateOpening,
    decode_chunk_opening,
    decode_consistency,
    decode_inclusion,
    decode_state_opening,
    encode_chunk_opening,
    encode_consistency,
    encode_inclusion,
    encode_state_leaf,
    encode_state_opening,
)
from vtrain.wire.proof import CircuitPin, KzgRecord, ProofSpec, decode_kzg_record, encode_kzg_record
from vtrain.wire.record import StepRecord, decode_record, encode_record
from vtrain.wire.report import (
    Assumption,
    BeaconUse,
    Check,
    Coverage,
    Detection,
    Randomness,
    Report,
    Strength,
    Traced,
)
from vtrain.wire.task import (
    WITH_KZG,
    BeaconRule,
    Windows,
    decode_task,
    describe_windows,
    encode_task,
)
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
from vtrain.wire.traces import (
    SignedTensorTraces,
    TensorTrace,
    TensorTraces,
    decode_signed_tensor_traces,
)

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
GRAMMAR = ROOT / "docs" / "format.cddl"
VALIDATOR = Validator(GRAMMAR)
logging.getLogger("cddl_verifier").setLevel(logging.CRITICAL + 1)  # it writes of each refusal
Decode = Callable[[bytes], object]
D = bytes(range(32))
POINT = bytes(64)
SIGNATURE = bytes(range(64))


def takes(rule: str, value: object) -> bool:
    return bool(VALIDATOR.validate(value, root_type=rule).valid)


def why(rule: str, value: object) -> str:
    found = VALIDATOR.validate(value, root_type=rule).diagnostics
    return "; ".join(f"{item.path_text}: {item.message}" for item in found)


@dataclass(frozen=True)
class Sample:
    """One document of a rule: its encoding, its decoder, and what the comments say in words: parts
    of the messages with which the decoder refuses what the grammar takes.  Of fields in ``known``
    the parts are not mutated: another sample has them."""

    rule: str
    encoded: bytes
    decode: Decode
    words: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


def make_samples() -> Iterator[Sample]:
    smallest = make_smallest_task()
    proof = ProofSpec("step", D, 17, 5, 1, (POINT,), {"step": CircuitPin(D, D)})
    plain = smallest.spec
    with_proof = replace(plain, commitments=WITH_KZG, proof=proof, exponents={"a": -3})
    task_words = (
        "not a multiple of commit_every",
        "is needed for kzg",
        "room for",
        "is of more than",
        "make other samples than",
    )
    windows = Windows("u16", tokens=100, context=6, stride=2, shift=1)
    of_tokens = replace(plain, data=describe_windows(windows, D))
    drawn = replace(plain, beacon=BeaconRule(D, 60, (D, D[::-1])))
    for task in (plain, with_proof, of_tokens, drawn):
        yield Sample("task", encode_task(task), decode_task, task_words)
    node_words = ("an input is [earlier node", "over 4294967296 elements", "no output")
    graph = smallest.graph
    few = StepGraph(graph.nodes[:1])
    yield Sample("graph", encode_graph(few), decode_graph, node_words)
    for index in (0, graph.find("sample_index"), graph.find("record")):
        data = encode_node(graph.nodes[index])
        yield Sample("node", data, lambda data, at=index: decode_node(data, at), node_words)  # type: ignore[misc]
    for root in (b"", D):
        record = encode_record(StepRecord(3, D, -5, root))
        yield Sample("record", record, decode_record)
    kzg = KzgRecord(2, (POINT, POINT), (POINT,), (POINT,), D, D, D)
    yield Sample("kzg-record", encode_kzg_record(kzg), decode_kzg_record)
    for secrets in (Hiding(states=D), Hiding(batches=D)):
        yield Sample("hiding", structs.encode(secrets), decode_hiding)
    keys = Hiding(keys=(HidingKey("batch", 1, D), HidingKey("state", 0, D)))
    yield Sample("hiding", structs.encode(keys), decode_hiding, ("are not in order",))
    for kzg_root in (b"", D):
        signed = sign_claim(Claim(D, public_key(KEY), D, 7, D, kzg_root), KEY)
        yield Sample("signed-claim", encode_signed_claim(signed), decode_signed_claim)
    inclusion = InclusionProof(1, 2, (D,))
    yield Sample("inclusion", encode_inclusion(inclusion), decode_inclusion)
    consistency = ConsistencyProof(1, 2, (D,))
    yield Sample("consistency", encode_consistency(consistency), decode_consistency)
    chunk = ChunkOpening(1, bytes(1024), (D,))
    yield Sample("chunk-opening", encode_chunk_opening(chunk), decode_chunk_opening)
    opening = StateOpening(StateLeaf("w", "i32", (2, 3), 24, D), inclusion)
    yield Sample("state-opening", encode_state_opening(opening), decode_state_opening)
    order = BatchOrder(D, 1, 2, 3, 2, "tiles", D, 15, 5)
    batches = SignedBatches(order, ((POINT, POINT),), D, SIGNATURE)
    batch_words = ("batches, not", "no list of commitments")
    yield Sample("signed-batches", encode_batches(batches), decode_batches, batch_words)
    windowed = replace(batches, order=replace(order, windows=Windows("u16", 300, 8, 3, 1)))
    yield Sample("signed-batches", encode_batches(windowed), decode_batches, batch_words)
    statement = BundleHeader(
        *("step", D, D, D, 2, "step", 0, "step", D, D, D, True, 17, "23.0.5", {"rate": (1, -2)})
    )
    yield Sample("bundle", encode_bundle(ProofBundle(statement, POINT)), decode_bundle)
    traces = SignedTraceClaim(TraceClaim(D, b"r", (TileTrace(4, D, 9),)), SIGNATURE)
    yield Sample("signed-trace-claim", structs.encode(traces), decode_signed_trace_claim)
    values = TensorTraces(D, (TensorTrace(4, 9, D), TensorTrace(8, 9, D)))
    rising = ("do not rise",)
    yield Sample(
        "signed-tensor-traces",
        structs.encode(SignedTensorTraces(values, SIGNATURE)),
        decode_signed_tensor_traces,
        rising,
    )
    answer = TileAnswer((TileProof(4, 1, (TileOpening(3, POINT, (D,)),), b"p"),))
    yield Sample("tile-answer", structs.encode(answer), decode_tile_answer)


def make_attested_samples() -> Iterator[Sample]:
    attestation = Attestation(D, public_key(KEY), D, D, D, 6, D)
    signed_run = structs.encode(SignedAttestation(attestation, SIGNATURE))
    yield Sample("signed-attestation", signed_run, decode_attestation)
    for listed in (b"", D):
        step = structs.encode(AttestedStep(3, D, listed))
        yield Sample("attested-record", step, decode_step)
    files = (AttestedFile("a/b", 5, D), AttestedFile("c", 0, D))
    listing_words = ("does not come after", "is no path below")
    listing = structs.encode(Listing(files))
    yield Sample("attested-listing", listing, decode_listing, listing_words)


def make_dispute_samples() -> Iterator[Sample]:
    def sample(rule: str, item: object, known: tuple[str, ...] = ()) -> Sample:
        kind, data = type(item), structs.encode(item)
        return Sample(rule, data, lambda data: structs.decode(kind, data, rule), known=known)

    clocks = Clocks(join=1, trace=2, terms=3, budget=4, grace=5, answer=0, opening=7, replay=8)
    genesis = Genesis(
        host=D,
        run_id=D,
        solver=D,
        task_id=D,
        log_size=5,
        log_root=D,
        signature=SIGNATURE,
        graph_root=D,
        nodes=9,
        record_node=8,
        leaf_bytes=100,
        initial_state_root=D,
        samples_root=D,
        samples=60,
        commit_every=2,
        arity=4,
        group=16,
        clocks=clocks,
        bonds=Bonds(log=3, trace=2, terms=1),
        opened=0,
        nonce=D,
    )
    yield sample("genesis", replace(genesis, kzg_root=D))
    windowed = replace(genesis, windows=Windows("u16", 304, 4, 5, 1))
    yield sample("genesis", windowed)
    move = encode_move(Bond(D, b"leaf", (D,)))
    yield sample("signed-move", SignedMove(D, D, D, move, SIGNATURE))
    inputs = InputOpening(D, (D,), (Chunk(1, b"chunk", (D,)),))
    member = Member(b"leaf", 3, 4, (D,))
    rows = (Row(2, b"row", (D,)),)
    opening = Open(D, D, (inputs,), rows, member, None, D, member)
    of_tokens = replace(opening, rows=(), tokens=(Chunk(1, b"chunk", (D,)),))
    for made in (Bond(D, b"leaf", (D,)), Reveal((D, b"leaf")), opening, of_tokens):
        yield Sample("move", encode_move(made), decode_move)
    place = Place(step=4, node=7)
    verdict = Verdict(D, D, Fall("refuted", place, 5), 6, 2, D)
    yield sample("verdict", verdict)
    yield sample("verdict", replace(verdict, standing=b"", solver=None))
    bond = BondOutcome(D, "log", D, D, 1000, 0)
    yield sample("outcomes", Settled((bond,), (Share(D, 999),), 1000, 1))
    receipt = Receipt(D, 1, "move", 5, D, bytes(32), D)
    signed = SignedReceipt(receipt, SIGNATURE)
    time = SignedTime(Time(D, 1, D, 6, D), SIGNATURE)
    yield sample("game-opening", Opening(genesis, b"task", b"graph"), ("genesis",))
    yield sample("signed-receipt", signed)
    yield sample("signed-time", time)
    yield sample("signed-refusal", SignedRefusal(Refusal(D, D, 1, 7, "encoding", D), SIGNATURE))
    yield sample("event", Event(b"body", signed), ("signed",))
    yield sample("page", Page(D, time, 1, (Event(b"body", signed),)), ("time", "signed"))
    yield sample("ruling", Ruling(b"after", 3, (1, 0), "words"))
    leaf: cbor.Value = {"leaf": b"x", "index": 1, "size": 2, "path": [D]}
    yield Sample("statement", cbor.encode(make_statement({}, b"")), decode_statement)
    known = ("graph", "trace", "samples", "node", "sources", "inputs", "rows")
    statement = make_statement(leaf, D)
    yield Sample("statement", cbor.encode(statement), decode_statement, known=known)


def make_statement(state_leaf: cbor.Value, base: bytes) -> cbor.Value:
    """One of a statement's form, of which a referee will say that it does not hold."""
    tree: cbor.Value = {"root": D, "size": 3}
    node: cbor.Value = {"data": b"node", "path": [D]}
    chunk: cbor.Value = {"index": 0, "chunk": b"chunk", "path": [D]}
    whole = dict.fromkeys(("graph", "trace", "samples"), tree)
    whole |= dict.fromkeys(("position", "source_index", "element", "block"), 0)
    return {
        **whole,
        "base": base,
        "node": node,
        "sources": [node],
        "inputs": [{"digest": D, "path": [D], "chunks": [chunk]}],
        "rows": [{"index": 1, "row": b"row", "path": [D]}],
        "state_leaf": state_leaf,
        "before": b"",
        "claims": [b"one", b"other"],
    }


@cache
def get_statements() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / "statements.json").read_text())
    return found


def decode_statement(data: bytes) -> None:
    """EncodingError where the referee refuses the form of a statement, not what it says."""
    try:
        _core.referee_judge(data)
    except RefusalError as error:
        if error.where.startswith(("statement", "byte")):
            raise EncodingError(error.message, where=error.where) from error


SAMPLES = [*make_samples(), *make_attested_samples(), *make_dispute_samples()]
IDS = [f"{sample.rule}-{index}" for index, sample in enumerate(SAMPLES)]


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_what_an_encoder_writes_is_valid(sample: Sample) -> None:
    assert why(sample.rule, sample.encoded) == ""
    sample.decode(sample.encoded)


# --- mutations

BOUNDS = sorted(
    {
        int(number) + more
        for number in re.findall(r"-?\d+", re.sub(r"(?m);.*$", "", GRAMMAR.read_text()))
        for more in (-1, 0, 1)
        if -(2**63) <= int(number) + more < 2**64
    }
)
"""Every number in the grammar, and its neighbours."""
SHORT = 1025
LENGTHS = sorted(
    {
        max(0, int(number) + more)
        for found in re.findall(r"\.size \(?(\d+)(?:\.\.(\d+))?", GRAMMAR.read_text())
        for number in found
        if number and int(number) < 1 << 23
        for more in ((-1, 0, 1) if int(number) < SHORT else (0, 1))
    }
)
"""Every length that the grammar gives to bytes and texts, and its neighbours; none of 64 MiB."""
TEXTS = (
    "",
    "x",
    "x" * 64,
    "x" * 65,
    "é" * 33,
    "x" * 256,
    "x" * 257,
    "é" * 128,
    "é" * 129,
    "x" * 4096,
    "x" * 4097,
)
MOST_ITEMS = 8193
Path_ = tuple[str | int, ...]


def walk(
    value: cbor.Value, path: Path_ = (), known: Collection[str] = ()
) -> Iterator[tuple[Path_, cbor.Value]]:
    """The parts of a document, but for those of fields in ``known``."""
    yield path, value
    if path and path[-1] in known:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key), known)
    elif isinstance(value, list):
        for index, item in enumerate(value[:2]):
            yield from walk(item, (*path, index), known)


def list_shared(one: cbor.Value, other: cbor.Value) -> set[Path_]:
    """The places below the top where two documents have the same."""
    parts = dict(walk(other))
    return {path for path, part in walk(one) if path and parts.get(path, ...) == part}


def put(value: Any, path: Path_, new: cbor.Value) -> Any:
    """A copy with another part at ``path``."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def alter(value: cbor.Value) -> Iterator[cbor.Value]:
    """Other values for one part: of another type, of another size, with more or less in it."""
    others: list[cbor.Value] = [0, "x", b"x", [], [0], {"x": 0}]
    yield from (other for other in others if type(other) is not type(value) or other != value)
    if isinstance(value, str):
        yield from TEXTS
    elif isinstance(value, list):
        yield value[:-1]
        most = (MOST_ITEMS - 1, MOST_ITEMS) if value[:1] == [POINT] else ()
        some = () if value and isinstance(value[0], dict) else (9, 17, 64, 65, 128, 129, 256, 257)
        for count in (len(value) + 1, *some, *most):
            yield [*value, *(value[-1:] or [0]) * (count - len(value))]
        yield value[::-1]
    elif isinstance(value, dict):
        yield {}
        for key in value:
            yield {name: item for name, item in value.items() if name != key}
        for text in TEXTS:
            yield value | {text: 0}
        for item in list(value.values())[:1]:
            yield value | {"another": item}


Ask = Callable[[cbor.Value], str]
"""What a decoder says of a document: "" where it takes it."""


def list_edges(value: cbor.Value, ask: Ask) -> Iterator[cbor.Value]:
    """Of numbers and of lengths in rising order: the first, the last, and each beside which the
    decoder says something else.  What the grammar takes of them is one range (or a length and
    none), so that it is no other unless it differs at one of these."""
    scale: Iterator[cbor.Value] = iter(())
    if isinstance(value, int):
        scale = iter(BOUNDS)
    elif isinstance(value, bytes):
        scale = map(bytes, LENGTHS)
    last: tuple[cbor.Value, str] | None = None
    shown = True
    for new in scale:
        said = re.sub(r"-?\d+", "#", ask(new))
        if last is None or last[1] != said:
            if last is not None and not shown:
                yield last[0]
            yield new
            shown = True
        else:
            shown = False
        last = new, said
        if isinstance(new, bytes) and len(new) >= SHORT and said:
            break  # longer ones are refused too
    if last is not None and not shown:
        yield last[0]


def mutate(
    whole: Any, ask: Ask, known: Collection[str] = (), but: Collection[Path_] = ()
) -> Iterator[tuple[Path_, cbor.Value]]:
    """Other documents, each with another value in one place that is none of ``but``."""
    for path, part in walk(whole, known=known):
        if path in but:
            continue

        def ask_there(new: cbor.Value, path: Path_ = path) -> str:
            return ask(put(whole, path, new))

        for new in (*alter(part), *list_edges(part, ask_there)):
            yield path, put(whole, path, new)


FIRST: dict[str, Sample] = {}
for _sample in SAMPLES:
    FIRST.setdefault(_sample.rule, _sample)


@pytest.mark.slow
@pytest.mark.parametrize("again", spare([False, True], operator.not_))
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_decoder_and_grammar_agree_on_mutated_documents(sample: Sample, again: bool) -> None:
    """What the first document of a rule has in the same place is mutated there, and in the others
    ``again`` for ``make test-all`` alone."""

    def ask(changed: cbor.Value) -> str:
        try:
            sample.decode(cbor.encode(changed))
        except EncodingError as error:
            return error.message or "no"
        return ""

    first, whole, refused = FIRST[sample.rule], cbor.decode(sample.encoded), 0
    shared = set() if sample is first or again else list_shared(whole, cbor.decode(first.encoded))
    for path, changed in mutate(whole, ask, sample.known, shared):
        try:
            encoded = cbor.encode(changed)
        except EncodingError:
            continue
        said = ask(changed)
        valid = takes(sample.rule, encoded)
        refused += bool(said)
        place = f"{sample.rule}{list(path)}"
        if not said:
            assert valid, f"{place}: the decoder takes it; {why(sample.rule, encoded)}"
        elif valid:
            assert any(word in said for word in sample.words), f"{place}: only the decoder: {said}"
    assert refused > 20


def test_numbers_and_lengths_of_the_grammar_are_ranges() -> None:
    """What the numbers at which documents are mutated rest on."""
    text = re.sub(r"(?m);.*$|\"[^\"]*\"", "", GRAMMAR.read_text())
    text = text[: text.index("manifest = ")]
    assert not re.findall(r"\d\.\.-?\d+ */|/ *-?\d+\.\.", text)
    for choice in re.findall(r"-?\d+(?: / -?\d+)+", text):
        numbers = [int(number) for number in choice.split(" / ")]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), choice


def _get_first_map(sample: Sample) -> dict[str, cbor.Value]:
    value = cbor.decode(sample.encoded)
    first = value[0] if isinstance(value, list) else value
    assert isinstance(first, dict)
    return first


ORDERED = [sample for sample in SAMPLES if len(_get_first_map(sample)) > 1]
"""A map of one field has one order."""


@pytest.mark.parametrize("sample", ORDERED, ids=lambda sample: sample.rule)
def test_a_map_in_another_order_is_refused(sample: Sample) -> None:
    """The grammar knows no order: it is the canonical encoding's (format.md, section 5)."""
    value, first = cbor.decode(sample.encoded), _get_first_map(sample)
    parts = [cbor.encode(key) + cbor.encode(item) for key, item in first.items()]
    swapped = bytes([0xA0 + len(parts)]) + b"".join([parts[1], parts[0], *parts[2:]])
    data = swapped if isinstance(value, dict) else b"\x81" + swapped
    with pytest.raises(EncodingError, match="out of order"):
        sample.decode(data)


# --- what is hashed and never read, and JSON


def test_a_state_leaf() -> None:
    for leaf in (StateLeaf("", "i64", (), 0, D), StateLeaf("w", "i32", (3, 0), -512, D)):
        assert why("state-leaf", encode_state_leaf(leaf)) == ""


def test_a_listing_has_as_many_files_as_the_grammar_says() -> None:
    found = re.search(r"\[\*(\d+) attested-file\]", GRAMMAR.read_text())
    assert found is not None
    for more, allowed in ((0, True), (1, False)):
        files: list[cbor.Value] = [
            {"name": f"{i:06}", "size": i, "digest": D} for i in range(int(found[1]) + more)
        ]
        encoded = cbor.encode({"files": files})
        assert takes("attested-listing", encoded) == allowed
        if allowed:
            assert len(decode_listing(encoded).files) == len(files)
            continue
        with pytest.raises(EncodingError):
            decode_listing(encoded)


def test_what_a_model_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def catch(domain: str, data: bytes) -> bytes:
        hashed.append(data)
        return D

    monkeypatch.setattr(vtrain.attest.attested, "compute_domain_hash", catch)
    tensors = {name: describe_array(np.zeros((2, 3), np.int64)) for name in ("x", "labels")}
    compute_batch_digest([tensors, tensors])
    compute_weights_digest(tensors)
    compute_attestation_digest(Attestation(D, D, D, D, D, 6, D))
    rules = ("attested-batch", "attested-tensors", "attestation")
    assert [why(rule, data) for rule, data in zip(rules, hashed, strict=True)] == [""] * 3


def test_a_draw() -> None:
    cases = json.loads((VECTORS / "plan.json").read_text())["cases"]
    for case in cases:
        assert why("draw-material", bytes.fromhex(case["seed"])) == ""


def test_what_a_vector_is_drawn_from() -> None:
    cases = json.loads((VECTORS / "algebraic.json").read_text())["vectors"]
    for case in cases:
        assert why("vector-material", bytes.fromhex(case["material"])) == ""


def test_what_pins_a_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def catch(domain: str, data: bytes) -> bytes:
        hashed.append(data)
        return D

    monkeypatch.setattr(vtrain.prove.backend.settings, "compute_domain_hash", catch)
    vtrain.prove.backend.settings.pin(make_circuit(), K)
    assert [why("circuit-material", data) for data in hashed] == [""]


def test_what_hiding_elements_are_derived_from(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def catch(data: bytes, **options: Any) -> Any:
        hashed.append(data)
        return blake3(data, **options)

    monkeypatch.setattr(vtrain.spec.domains, "blake3", catch)
    monkeypatch.setattr(vtrain.commit.hiding, "blake3", catch)
    before = vtrain.commit.hiding.derive_key(D, D, "state", 3, D)
    batch = vtrain.commit.hiding.derive_key(D, D, "batch", 4, D)
    vtrain.commit.hiding.derive_trace_key(before, batch)
    vtrain.commit.hiding.derive_elements(batch, 7)
    proof = ProofSpec("tiles", D, 15, 5, 1, (), {})
    vtrain.commit.hiding.derive_own_key(proof, "state", 0, D, ())
    rules = ["hiding-material", "hiding-material", "hiding-trace-material"]
    rules += ["hiding-column-material", "", "hiding-place", "hiding-material"]
    assert len(hashed) == len(rules)
    pairs = zip(rules, hashed, strict=True)
    assert not any(why(rule, data) for rule, data in pairs if rule)


def test_manifests(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(make_smallest_task(), run, key=KEY, threads=1)
    written = json.loads((run / "manifest.json").read_text())
    assert why("manifest", written) == ""

    def render(changed: cbor.Value) -> str:
        return json.dumps(changed, sort_keys=True, indent=2, ensure_ascii=False, default=str)

    def ask(changed: cbor.Value) -> str:
        try:
            decode_manifest((render(changed) + "\n").encode())
        except VtrainError as error:
            return error.message or "no"
        return ""

    for path, changed in mutate(written, ask):
        value = json.loads(render(changed))
        if ask(changed):
            assert not takes("manifest", value), (path, value)
        else:
            assert takes("manifest", value), (path, why("manifest", value))


def make_report(**changes: Any) -> Report:
    failed = Check("log", "failed", "is not so", "log.bin", "nobody")
    given = Randomness(b"r", "a seed", predictable=True)
    whole: dict[str, Any] = {
        "verdict": "inconclusive",
        "checks": (Check("claim", "passed", "holds"), failed),
        "strength": Strength(("a",), ()),
        "randomness": given,
        "detections": (Detection(None, 1, 1, 3, 2), Detection(Fraction(1, 10), 2, 1, 3, 2)),
        "segments": ((1, 4), (6, 6)),
        "engine": "cpu",
        **dict.fromkeys(("task_id", "run_id", "solver", "root", "log_root", "claim"), D),
        "steps": 12,
        "traced": Traced((1,), given),
        "assumptions": (Assumption("predictable-sample", "why"),),
        "coverage": (Coverage("structure", 1, 2), Coverage("replay", 5, 12)),
    }
    return Report(**whole | changes)


def test_reports() -> None:
    empty = dict.fromkeys(("task_id", "run_id", "solver", "root", "log_root", "claim"), b"")
    nothing: dict[str, Any] = {
        "checks": (Check("claim", "not_done", "is unfinished", "claim.cbor"),),
        **{"randomness": None, "traced": None, "detections": (), "assumptions": (), "segments": ()},
    }
    use = BeaconUse(D, 9, bytes(48), b"", 100, 60, 30, "CN=a")
    by_beacon = Randomness(D, "round 9", predictable=False, chosen=True, beacon=use)
    undated = replace(by_beacon, beacon=replace(use, previous=bytes(96), claimed=None))
    for report in (
        make_report(),
        make_report(**empty, **nothing),
        make_report(randomness=by_beacon),
        make_report(randomness=undated),
    ):
        written = report_to_dict(report)
        assert why("report", written) == ""
        for key in written:
            assert not takes("report", {k: v for k, v in written.items() if k != key})
        assert not takes("report", written | {"more": 0})


def test_signed_reports() -> None:
    """Envelopes that hold are of the grammar, and what breaks the form alone is not."""
    content = json.loads((VECTORS / "report.json").read_text())
    assert why("report-statement", json.loads(content["payload"])) == ""
    forms = ("of another type", "nobody has signed", "a field more", "bits to spare")
    for case in content["cases"]:
        broken = any(word in case["about"] for word in forms)
        assert (why("report-envelope", case["envelope"]) == "") == (not broken), case["about"]
    for case in content["cases"][:5]:
        envelope = case["envelope"]
        for entry in envelope["signatures"]:
            for key in entry:
                less = {name: item for name, item in entry.items() if name != key}
                taken = takes("report-envelope", envelope | {"signatures": [less]})
                assert not taken, (case["about"], key)
        assert not takes("report-envelope", {k: v for k, v in envelope.items() if k != "payload"})
    statement = json.loads(content["payload"])
    for key in statement:
        assert not takes("report-statement", {k: v for k, v in statement.items() if k != key})
    assert not takes("report-statement", statement | {"subject": []})


def test_whole_graphs_are_valid() -> None:
    assert why("graph", encode_graph(make_smallest_task().graph)) == ""
    content = json.loads((VECTORS / "step.json").read_text())
    assert why("graph", bytes.fromhex(content["graph"])) == ""


def test_a_claim_of_the_vectors() -> None:
    content = json.loads((VECTORS / "claim.json").read_text())
    assert why("signed-claim", bytes.fromhex(content["signed_encoding"])) == ""
    assert why("claim-body", bytes.fromhex(content["encoding"])) == ""


def test_disputes_of_the_vectors() -> None:
    content = json.loads((VECTORS / "dispute.json").read_text())
    for key, rule in (("genesis", "genesis"), ("verdict", "verdict"), ("settled", "outcomes")):
        assert why(rule, bytes.fromhex(content[key])) == ""
    for move in content["moves"]:
        assert why("signed-move", bytes.fromhex(move["encoding"])) == ""
        assert why("move", bytes.fromhex(move["move"])) == ""


def test_statements_of_the_vectors() -> None:
    for entry in get_statements():
        data = bytes.fromhex(entry["statement"])
        assert why("statement", data) == ""
        assert why("ruling", _core.referee_judge(data)) == ""


def test_what_ids_are_hashes_of(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def catch(domain: str, data: bytes) -> bytes:
        hashed.append(data)
        return D

    monkeypatch.setattr(vtrain.dispute.state, "compute_domain_hash", catch)
    monkeypatch.setattr(vtrain.dispute.game, "compute_domain_hash", catch)
    compute_group_id(D, 1, [D, D[::-1]])
    compute_dispute_id(D, "log", 0, 3, [b"item", D])
    # These are kept once they are made: not of a game's own values.
    compute_side_id(D, b"of no game")
    for tree, length in (("trace", 0), ("chunks", 3000)):
        place = Dispute(D, D, tree, 3, length, 0, 3, "", Place())  # type: ignore[arg-type]
        compute_fact_id(place, b"of no game")
    compute_move_digest(SignedMove(D, D, D, b"move", SIGNATURE))
    rules = ["group", "dispute", "side", "fact", "fact", "move"]
    assert [why(f"{rule}-material", data) for rule, data in zip(rules, hashed, strict=True)] == [
        ""
    ] * len(rules)


def test_what_a_receipt_is_a_hash_of() -> None:
    """The body that is signed is the first field of what is sent."""
    for field, rule in (("receipt", "receipt"), ("time", "host-time"), ("refusal", "refusal")):
        sample = next(sample for sample in SAMPLES if sample.rule == f"signed-{field}")
        value = cbor.decode(sample.encoded)
        assert isinstance(value, dict)
        assert why(rule, cbor.encode(value[field])) == ""


PRELUDE = """
    any uint nint int bstr bytes tstr text tdate time number biguint bignint bigint integer
    unsigned decfrac bigfloat eb64url eb64legacy eb16 encoded-cbor uri b64url b64legacy regexp
    mime-message cbor-any float16 float32 float64 float16-32 float32-64 float false true bool nil
    null undefined
"""
"""What every grammar has: RFC 8610, appendix D."""


def test_the_grammar_names_no_rule_twice() -> None:
    """The file as it is, with the prelude that belongs to every file: other readers refuse it
    whole where a name is there twice."""
    rules = re.findall(r"(?m)^([A-Za-z$@_][\w.$@-]*) =", GRAMMAR.read_text())
    assert len(rules) > 100
    assert sorted(rules) == sorted(set(rules) - set(PRELUDE.split()))


def test_every_rule_of_the_grammar_is_used() -> None:
    text = re.sub(r"(?m);.*$", "", GRAMMAR.read_text())
    rules = re.findall(r"(?m)^([a-z][a-z0-9-]*) =", text)
    roots = {sample.rule for sample in SAMPLES} | {
        *("state-leaf", "draw-material", "circuit-material", "manifest", "vector-material"),
        *("hiding-material", "hiding-place", "hiding-trace-material", "hiding-column-material"),
        *("report", "group-material", "dispute-material", "side-material", "fact-material"),
        *("move-material", "attested-batch", "report-envelope", "report-statement"),
    }
    for rule in rules:
        used = re.findall(rf"(?<![\w-]){rule}(?![\w-]|:)", text)
        assert rule in roots or len(used) > 1, f"nothing is a {rule}"


def test_a_signed_claim_has_no_more_than_it_says() -> None:
    whole = SignedClaim(Claim(D, D, D, 0, D), SIGNATURE)
    assert takes("signed-claim", encode_signed_claim(whole))
