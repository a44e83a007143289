"""The run log: tree, file, recovery, and every kind of damage with its place."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtrain.commit import log
from vtrain.commit.openings import verify_consistency
from vtrain.errors import EncodingError
from vtrain.spec import commitment, merkle
from vtrain.spec.domains import RUN_LOG
from vtrain.wire import cbor
from vtrain.wire.record import MAX_STEP, StepRecord, decode_record, encode_record

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "log.json").read_text())
RECORDS = [
    StepRecord(
        step=item["step"],
        batch_digest=bytes.fromhex(item["batch_digest"]),
        loss=int(item["loss"]),
        state_root=bytes.fromhex(item["state_root"]),
    )
    for item in VECTORS["records"]
]
FILE = bytes.fromhex(VECTORS["file"])
ENDS = [len(log.encode_log(RECORDS[:count])) for count in range(len(RECORDS) + 1)]
HEADER = len(log.LOG_HEADER)

digests = st.binary(min_size=32, max_size=32)
records = st.builds(
    StepRecord,
    step=st.integers(1, MAX_STEP),
    batch_digest=digests,
    loss=st.integers(-(2**63), 2**63 - 1),
    state_root=digests | st.just(b""),
)


def test_record_vectors() -> None:
    for item, record in zip(VECTORS["records"], RECORDS, strict=True):
        assert encode_record(record).hex() == item["encoding"]
        assert decode_record(bytes.fromhex(item["encoding"])) == record


@given(records)
def test_records_round_trip(record: StepRecord) -> None:
    assert decode_record(encode_record(record)) == record


def changed_map(**changes: cbor.Value) -> bytes:
    content = cbor.decode(encode_record(RECORDS[0]))
    assert isinstance(content, dict)
    return cbor.encode({**content, **changes})


@pytest.mark.parametrize(
    ("data", "where", "message"),
    [
        (changed_map(step=0), "record.step", "0 is not in"),
        (changed_map(step=MAX_STEP + 1), "record.step", f"{MAX_STEP + 1} is not in"),
        (changed_map(loss=2**63), "record.loss", f"{2**63} is not in"),
        (changed_map(loss=b""), "record.loss", "expected an integer"),
        (changed_map(batch_digest=b""), "record.batch_digest", "expected 32 bytes, found 0"),
        (changed_map(state_root=bytes(31)), "record.state_root", "expected 32 bytes, found 31"),
        (changed_map(other=0), "record.other", "unknown field"),
        (cbor.encode({"step": 1}), "record.batch_digest", "the field is missing"),
        (cbor.encode([1]), "record", "expected a map, found list"),
        (b"\xa1", "byte 0", "length is over"),
    ],
)
def test_malformed_records_are_refused(data: bytes, where: str, message: str) -> None:
    with pytest.raises(EncodingError) as caught:
        decode_record(data)
    assert caught.value.where == where
    assert caught.value.message.startswith(message)


def test_log_vectors() -> None:
    assert log.encode_log(RECORDS) == FILE
    assert log.decode_log(FILE) == RECORDS
    run_log = log.RunLog(RECORDS)
    assert run_log.records == tuple(RECORDS)
    assert run_log.size == len(RECORDS)
    for size, root in enumerate(VECTORS["roots"]):
        assert run_log.root(size).hex() == root
        assert log.RunLog(RECORDS[:size]).root().hex() == root


def test_log_leaves_are_those_of_the_law() -> None:
    hashes = [
        commitment.compute_record_leaf(r.step, r.batch_digest, r.loss, r.state_root)
        for r in RECORDS
    ]
    assert log.RunLog(RECORDS).root() == merkle.compute_root_of_hashes(RUN_LOG, hashes)


def test_proofs() -> None:
    run_log = log.RunLog(RECORDS)
    for size in range(1, run_log.size + 1):
        root = run_log.root(size)
        for record in RECORDS[:size]:
            proof = run_log.inclusion_proof(record.step, size)
            assert log.verify_record(root, record, proof)
            assert not log.verify_record(root, replace(record, loss=record.loss ^ 1), proof)
            assert not log.verify_record(root, replace(record, step=record.step + 1), proof)
            assert not log.verify_record(root, record, replace(proof, index=proof.index + 1))
            moved = replace(record, step=record.step + 1)
            assert not log.verify_record(root, moved, replace(proof, index=proof.index + 1))
        for old in range(size + 1):
            prefix = run_log.consistency_proof(old, size)
            assert verify_consistency(RUN_LOG, run_log.root(old), root, prefix)
    assert run_log.inclusion_proof(1).size == run_log.consistency_proof(1).new_size == run_log.size


def test_a_rewritten_past_is_inconsistent() -> None:
    honest = log.RunLog(RECORDS)
    for step in range(1, 5):
        forged = log.RunLog(
            replace(record, loss=record.loss ^ 1) if record.step == step else record
            for record in RECORDS
        )
        proof = forged.consistency_proof(4)
        assert not verify_consistency(RUN_LOG, honest.root(4), forged.root(), proof)


@pytest.mark.parametrize(
    "ask",
    [
        lambda run_log: run_log.root(-1),
        lambda run_log: run_log.root(8),
        lambda run_log: run_log.inclusion_proof(0),
        lambda run_log: run_log.inclusion_proof(8),
        lambda run_log: run_log.inclusion_proof(3, 2),
        lambda run_log: run_log.inclusion_proof(1, 8),
        lambda run_log: run_log.consistency_proof(-1),
        lambda run_log: run_log.consistency_proof(3, 2),
        lambda run_log: run_log.consistency_proof(3, 8),
        lambda run_log: run_log.append(RECORDS[0]),
        lambda run_log: run_log.append(replace(RECORDS[0], step=9)),
    ],
)
def test_what_the_log_does_not_have_is_refused(ask: Callable[[log.RunLog], Any]) -> None:
    run_log = log.RunLog(RECORDS)
    before = run_log.root()
    with pytest.raises(EncodingError):
        ask(run_log)
    assert run_log.root() == before
    assert run_log.size == len(RECORDS)


def check_survey(found: log.LogSurvey, records: Sequence[StepRecord]) -> None:
    """That it is of just these records."""
    roots = [record.state_root for record in records if record.state_root]
    assert (found.size, found.root) == (len(records), log.RunLog(records).root())
    assert found.state_root == (roots[-1] if roots else b"")


def test_every_truncation_is_refused_with_its_record() -> None:
    for length in range(len(FILE)):
        whole = sum(end <= length for end in ENDS) - 1
        found = log.survey_log(io.BytesIO(FILE[:length]))
        check_survey(found, RECORDS[: max(whole, 0)])
        if length in ENDS:
            assert found.fault is None
            assert log.decode_log(FILE[:length]) == RECORDS[:whole]
            continue
        with pytest.raises(EncodingError) as caught:
            log.decode_log(FILE[:length])
        if length < HEADER:
            assert (caught.value.where, caught.value.message) == (
                "byte 0",
                "the header is cut off",
            )
        else:
            assert caught.value.where == f"record {whole} at byte {ENDS[whole]}"
            assert caught.value.message == "the file ends within the record"
        assert str(found.fault) == str(caught.value)


def test_every_bit_flip_is_refused_in_place_or_changes_the_root() -> None:
    root = log.RunLog(RECORDS).root()
    refused = 0
    for bit in range(8 * len(FILE)):
        changed = bytearray(FILE)
        changed[bit // 8] ^= 1 << bit % 8
        found = log.survey_log(io.BytesIO(changed))
        if found.fault is None:
            assert found.root != root
            continue
        refused += 1
        in_header = bit // 8 < HEADER
        index = 0 if in_header else sum(end <= bit // 8 for end in ENDS) - 1
        place = "byte 0" if in_header else f"record {index} at byte {ENDS[index]}"
        assert found.fault.where.startswith(place), bit
        check_survey(found, RECORDS[:index])
        with pytest.raises(EncodingError) as caught:
            log.decode_log(bytes(changed))
        assert str(caught.value) == str(found.fault)
    assert refused > 2000


@pytest.mark.parametrize(
    ("data", "where", "message"),
    [
        (b"", "byte 0", "the header is cut off"),
        (b"vtrain run log\x00\x02", "byte 0", "the header is not that of a run log"),
        (b"\x00" * 64, "byte 0", "the header is not that of a run log"),
        (log.encode_log(RECORDS[1:]), "record 0 at byte 16: record.step", "expected step 1"),
        (
            log.encode_log([*RECORDS[:2], RECORDS[1]]),
            f"record 2 at byte {ENDS[2]}: record.step",
            "expected step 3, found 2",
        ),
        (
            log.encode_log([RECORDS[0], RECORDS[2]]),
            f"record 1 at byte {ENDS[1]}: record.step",
            "expected step 2, found 3",
        ),
        (
            log.LOG_HEADER + b"\xff\xff\xff\xff",
            "record 0 at byte 16",
            "a record of 4294967295 bytes is too long",
        ),
        (log.LOG_HEADER + b"\x00\x00\x00\x00", "record 0 at byte 16: byte 0", "an item is missing"),
        (FILE + b"\x00", f"record 7 at byte {len(FILE)}", "the file ends within the record"),
        (FILE + FILE, f"record 7 at byte {len(FILE)}", "a record of"),
    ],
)
def test_malformed_files_are_refused(data: bytes, where: str, message: str) -> None:
    with pytest.raises(EncodingError) as caught:
        log.decode_log(data)
    assert caught.value.where == where
    assert caught.value.message.startswith(message)


def test_a_file_is_read_record_by_record() -> None:
    stream = io.BytesIO(FILE + b"garbage that is never reached")
    reader = log.iterate_log(stream)
    assert next(reader) == RECORDS[0]
    assert stream.tell() == ENDS[1]


def test_appended_frames_make_the_file() -> None:
    assert log.LOG_HEADER + b"".join(map(log.encode_frame, RECORDS)) == FILE


@given(st.lists(records, max_size=6))
def test_files_round_trip(items: list[StepRecord]) -> None:
    numbered = [replace(record, step=i + 1) for i, record in enumerate(items)]
    data = log.encode_log(numbered)
    assert log.decode_log(data) == numbered
    found = log.survey_log(io.BytesIO(data))
    check_survey(found, numbered)
    assert found.fault is None
