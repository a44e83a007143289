"""docs/format.cddl is the encoders' and decoders' own grammar.

Whatever an encoder writes is valid.  Of mutated documents the decoder takes none that the grammar
refuses, and refuses none that the grammar takes, but for what the grammar's comments say in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from cddl_verifier import Validator

import vtrain.prove.keys
import vtrain.prove.verifier
from tests.audit.runs import KEY, make_smallest_task
from tests.prove.toy import K, make_circuit
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import public_key
from vtrain.errors import EncodingError, VtrainError
from vtrain.report.json import report_to_dict
from vtrain.train.layout import decode_manifest
from vtrain.train.runner import train
from vtrain.wire import cbor, structs
from vtrain.wire.batches import BatchOrder, SignedBatches, decode_batches, encode_batches
from vtrain.wire.bundle import ProofBundle, Statement, decode_bundle, encode_bundle
from vtrain.wire.claim import Claim, SignedClaim, decode_signed_claim, encode_signed_claim
from vtrain.wire.graph import StepGraph, decode_graph, decode_node, encode_graph, encode_node
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
    Check,
    Detection,
    Randomness,
    Report,
    Strength,
    Traced,
)
from vtrain.wire.task import WITH_KZG, decode_task, encode_task
from vtrain.wire.tiles import (
    SignedTraceClaim,
    StepTrace,
    TileAnswer,
    TileOpening,
    TileProof,
    TraceClaim,
    decode_signed_trace_claim,
    decode_tile_answer,
)

ROOT = Path(__file__).resolve().parents[2]
GRAMMAR = ROOT / "docs" / "format.cddl"
VALIDATOR = Validator(GRAMMAR)
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
    of the messages with which the decoder refuses what the grammar takes."""

    rule: str
    encoded: bytes
    decode: Decode
    words: tuple[str, ...] = ()


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
    )
    for task in (plain, with_proof):
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
    kzg = KzgRecord(2, (POINT, POINT), (POINT,), (POINT,))
    yield Sample("kzg-record", encode_kzg_record(kzg), decode_kzg_record)
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
    statement = Statement(
        *("step", D, D, D, 2, "step", 0, "step", D, D, D, True, 17, "23.0.5", {"rate": (1, -2)})
    )
    yield Sample("bundle", encode_bundle(ProofBundle(statement, POINT)), decode_bundle)
    traces = SignedTraceClaim(TraceClaim(D, b"r", (StepTrace(4, D, 9),)), SIGNATURE)
    yield Sample("signed-trace-claim", structs.encode(traces), decode_signed_trace_claim)
    answer = TileAnswer((TileProof(4, 1, (TileOpening(3, POINT, (D,)),), b"p"),))
    yield Sample("tile-answer", structs.encode(answer), decode_tile_answer)


SAMPLES = list(make_samples())
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
LENGTHS = (0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 1023, 1024, 1025)
TEXTS = ("", "x", "x" * 256, "x" * 257, "é" * 128, "é" * 129, "x" * 4096, "x" * 4097)
MOST_ITEMS = 8193
Path_ = tuple[str | int, ...]


def walk(value: cbor.Value, path: Path_ = ()) -> Iterator[tuple[Path_, cbor.Value]]:
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:2]):
            yield from walk(item, (*path, index))


def put(value: Any, path: Path_, new: cbor.Value) -> Any:
    """A copy with another part at ``path``."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def alter(value: cbor.Value) -> Iterator[cbor.Value]:
    """Other values for one part: of another type, of another size, with more or less in it."""
    others: list[cbor.Value] = [0, -1, "x", b"", b"x", [], {}, [0], {"x": 0}]
    yield from others
    if isinstance(value, int):
        yield from BOUNDS
    elif isinstance(value, bytes):
        yield from (bytes(length) for length in LENGTHS)
        yield value[:-1]
        yield value + b"\0"
    elif isinstance(value, str):
        yield from TEXTS
    elif isinstance(value, list):
        yield value[:-1]
        most = (MOST_ITEMS - 1, MOST_ITEMS) if value[:1] == [POINT] else ()
        some = () if value and isinstance(value[0], dict) else (9, 17, 64, 65, 128, 129)
        for count in (len(value) + 1, *some, *most):
            yield [*value, *(value[-1:] or [0]) * (count - len(value))]
        yield value[::-1]
    else:
        for key in value:
            yield {name: item for name, item in value.items() if name != key}
        for text in TEXTS:
            yield value | {text: 0}
        for item in list(value.values())[:1]:
            yield value | {"another": item}


def mutate(sample: Sample) -> Iterator[tuple[Path_, cbor.Value]]:
    whole = cbor.decode(sample.encoded)
    for path, part in walk(whole):
        for new in alter(part):
            yield path, put(whole, path, new)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_decoder_and_grammar_agree_on_mutated_documents(sample: Sample) -> None:
    refused = 0
    for path, changed in mutate(sample):
        try:
            encoded = cbor.encode(changed)
        except EncodingError:
            continue
        try:
            sample.decode(encoded)
            said = ""
        except EncodingError as error:
            said = error.message
        valid = takes(sample.rule, encoded)
        refused += bool(said)
        place = f"{sample.rule}{list(path)}"
        if not said:
            assert valid, f"{place}: the decoder takes it; {why(sample.rule, encoded)}"
        elif valid:
            assert any(word in said for word in sample.words), f"{place}: only the decoder: {said}"
    assert refused > 20


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


def test_a_draw() -> None:
    cases = json.loads((ROOT / "tests" / "vectors" / "plan.json").read_text())["cases"]
    for case in cases:
        assert why("draw-material", bytes.fromhex(case["seed"])) == ""


def test_what_pins_a_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def catch(domain: str, data: bytes) -> bytes:
        hashed.append(data)
        return D

    monkeypatch.setattr(vtrain.prove.keys, "compute_domain_hash", catch)
    vtrain.prove.keys.pin(make_circuit(), K)
    assert [why("circuit-material", data) for data in hashed] == [""]


@pytest.mark.parametrize("claim", [D, b""])
def test_what_a_challenge_is_drawn_from(monkeypatch: pytest.MonkeyPatch, claim: bytes) -> None:
    hashed: list[bytes] = []

    def catch(data: bytes, **options: Any) -> Any:
        hashed.append(data)
        return blake3(data, **options)

    monkeypatch.setattr(vtrain.prove.verifier, "blake3", catch)
    vtrain.prove.verifier.derive_challenge(D, {"x": POINT}, 1, claim=claim)
    assert [why("challenge-material", data) for data in hashed] == [""]


def test_manifests(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(make_smallest_task(), run, key=KEY, threads=1)
    written = json.loads((run / "manifest.json").read_text())
    assert why("manifest", written) == ""
    for path, part in walk(written):
        for new in alter(part):
            changed = put(written, path, new)
            text = json.dumps(changed, sort_keys=True, indent=2, ensure_ascii=False, default=str)
            try:
                decode_manifest((text + "\n").encode())
                taken = True
            except VtrainError:
                taken = False
            value = json.loads(text)
            if taken:
                assert takes("manifest", value), (path, why("manifest", value))
            else:
                assert not takes("manifest", value), (path, new)


def make_report(**changes: Any) -> Report:
    failed = Check("log", "failed", "is not so", "log.bin", "nobody")
    given = Randomness(b"r", "a seed", predictable=True)
    whole: dict[str, Any] = {
        "verdict": "inconclusive",
        "checks": (Check("claim", "passed", "holds"), failed),
        "strength": Strength(("a",), ()),
        "randomness": given,
        "detections": (Detection(None, 1, 1, 3, 2), Detection(Fraction(1, 10), 1, 1, 300, 150)),
        "segments": ((1, 4),),
        "engine": "cpu",
        **dict.fromkeys(("task_id", "run_id", "solver", "root", "log_root", "claim"), D),
        "steps": 12,
        "traced": Traced((1,), given),
        "assumptions": (Assumption("predictable-sample", "why"),),
    }
    return Report(**whole | changes)


def test_reports() -> None:
    empty = dict.fromkeys(("task_id", "run_id", "solver", "root", "log_root", "claim"), b"")
    nothing: dict[str, Any] = {
        "checks": (Check("claim", "not_done", "is unfinished", "claim.cbor"),),
        **{"randomness": None, "traced": None, "detections": (), "assumptions": (), "segments": ()},
    }
    for report in (make_report(), make_report(**empty, **nothing)):
        written = report_to_dict(report)
        assert why("report", written) == ""
        for key in written:
            assert not takes("report", {k: v for k, v in written.items() if k != key})
        assert not takes("report", written | {"more": 0})


def test_whole_graphs_are_valid() -> None:
    assert why("graph", encode_graph(make_smallest_task().graph)) == ""
    content = json.loads((ROOT / "tests" / "vectors" / "step.json").read_text())
    assert why("graph", bytes.fromhex(content["graph"])) == ""


def test_a_claim_of_the_vectors() -> None:
    content = json.loads((ROOT / "tests" / "vectors" / "claim.json").read_text())
    assert why("signed-claim", bytes.fromhex(content["signed_encoding"])) == ""
    assert why("claim-body", bytes.fromhex(content["encoding"])) == ""


def test_every_rule_of_the_grammar_is_used() -> None:
    text = re.sub(r"(?m);.*$", "", GRAMMAR.read_text())
    rules = re.findall(r"(?m)^([a-z][a-z0-9-]*) =", text)
    roots = {sample.rule for sample in SAMPLES} | {
        *("state-leaf", "draw-material", "circuit-material", "challenge-material", "manifest"),
        "report",
    }
    for rule in rules:
        used = re.findall(rf"(?<![\w-]){rule}(?![\w-]|:)", text)
        assert rule in roots or len(used) > 1, f"nothing is a {rule}"


def test_a_signed_claim_has_no_more_than_it_says() -> None:
    whole = SignedClaim(Claim(D, D, D, 0, D), SIGNATURE)
    assert takes("signed-claim", encode_signed_claim(whole))
