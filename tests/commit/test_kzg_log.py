"""The KZG log: vectors, wire formats and their strictness, points, and the file."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vtrain.commit.kzg_log import (
    KZG_HEADER,
    KzgLog,
    encode_kzg_frame,
    encode_kzg_log,
    is_point,
    iterate_kzg_frames,
    iterate_kzg_log,
)
from vtrain.errors import EncodingError
from vtrain.spec.commitment import compute_task_id
from vtrain.wire import cbor
from vtrain.wire.claim import claim_to_map, decode_signed_claim
from vtrain.wire.proof import (
    CircuitPin,
    KzgRecord,
    ProofSpec,
    check_proof,
    decode_kzg_record,
    encode_kzg_record,
)
from vtrain.wire.task import decode_task, encode_task

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "kzg.json").read_text())
RECORDS = [
    KzgRecord(
        item["step"],
        tuple(map(bytes.fromhex, item["before"])),
        tuple(map(bytes.fromhex, item["batch"])),
        tuple(map(bytes.fromhex, item["after"])),
        *(bytes.fromhex(item[part]) for part in ("before_key", "batch_key", "after_key")),
    )
    for item in VECTORS["records"]
]
TASKS = [decode_task(bytes.fromhex(item)) for item in VECTORS["tasks"]]
PRIME = 21888242871839275222246405745257275088696311157297823662689037894645226208583


def test_vectors() -> None:
    kzg = KzgLog(5)
    assert kzg.root().hex() == VECTORS["roots"][0]
    for record, item, root in zip(RECORDS, VECTORS["records"], VECTORS["roots"][1:], strict=True):
        assert encode_kzg_record(record).hex() == item["encoding"]
        assert decode_kzg_record(bytes.fromhex(item["encoding"])) == record
        kzg.append(record)
        assert kzg.root().hex() == root
    assert kzg.records == tuple(RECORDS)
    file = bytes.fromhex(VECTORS["file"])
    assert encode_kzg_log(RECORDS) == file == KZG_HEADER + b"".join(map(encode_kzg_frame, RECORDS))
    assert list(iterate_kzg_log(io.BytesIO(file))) == RECORDS


def test_task_vectors() -> None:
    """The key "proof" is there where a task has one; a task without has the id it always had."""
    with_kzg, spared, plain = TASKS
    for task, item, task_id in zip(TASKS, VECTORS["tasks"], VECTORS["task_ids"], strict=True):
        assert encode_task(task).hex() == item
        assert compute_task_id(task).hex() == task_id
    assert with_kzg.kzg == with_kzg.proof is not None
    assert spared.kzg is None
    assert spared.proof is not None
    assert plain.proof is None
    assert b"proof" not in encode_task(plain)


def test_a_claim_has_the_key_where_it_has_the_root() -> None:
    value = cbor.decode(bytes.fromhex(VECTORS["claim"]))
    data = cbor.encode({"claim": value, "signature": bytes(64)})
    claim = decode_signed_claim(data).claim
    assert claim.kzg_root.hex() == VECTORS["roots"][2]
    assert claim_to_map(claim) == value
    assert "kzg_root" not in claim_to_map(replace(claim, kzg_root=b""))


@pytest.mark.parametrize("root", [b"", bytes(31), bytes(33), 0, []])
def test_no_claim_has_another_root(root: cbor.Value) -> None:
    value = cbor.decode(bytes.fromhex(VECTORS["claim"]))
    assert isinstance(value, dict)
    data = cbor.encode({"claim": {**value, "kzg_root": root}, "signature": bytes(64)})
    with pytest.raises(EncodingError) as caught:
        decode_signed_claim(data)
    assert caught.value.where == "signed_claim.claim.kzg_root"


def change(document: str, *path: str, to: Any = None) -> bytes:
    """A document with the field at ``path`` replaced, or dropped."""
    value: Any = cbor.decode(bytes.fromhex(document))
    inner = value
    for name in path[:-1]:
        inner = inner[name]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return cbor.encode(value)


POINT = bytes.fromhex(VECTORS["records"][0]["batch"][0])


@pytest.mark.parametrize(
    ("path", "to", "where"),
    [
        (("step",), 0, "kzg_record.step"),
        (("step",), 2**48 + 1, "kzg_record.step"),
        (("step",), b"", "kzg_record.step"),
        (("before",), None, "kzg_record.before"),
        (("before",), POINT, "kzg_record.before"),
        (("batch",), [POINT[:63]], "kzg_record.batch[0]"),
        (("after",), [POINT, POINT + b"\0"], "kzg_record.after[1]"),
        (("after",), [1], "kzg_record.after[0]"),
        (("after",), [POINT] * 8193, "kzg_record.after"),
        (("before_key",), None, "kzg_record.before_key"),
        (("batch_key",), b"", "kzg_record.batch_key"),
        (("after_key",), bytes(33), "kzg_record.after_key"),
        (("more",), 1, "kzg_record.more"),
    ],
)
def test_a_record_of_another_form_is_refused(path: tuple[str], to: Any, where: str) -> None:
    with pytest.raises(EncodingError) as caught:
        decode_kzg_record(change(VECTORS["records"][0]["encoding"], *path, to=to))
    assert caught.value.where == where


PIN = {"circuit": bytes(32), "key": bytes(32)}


@pytest.mark.parametrize(
    ("path", "to", "where"),
    [
        (("proof",), None, "task.proof"),
        (("proof",), [], "task.proof"),
        (("commitments",), ["kzg"], "task.commitments"),
        (("commitments",), ["kzg", "blake3"], "task.commitments"),
        (("commitments",), ["blake3", "kzg", "kzg"], "task.commitments"),
        (("commitments",), ["blake3", 1], "task.commitments[1]"),
        (("proof", "initial"), [], "task.proof"),
        (("proof", "initial"), [POINT[1:]], "task.proof.initial[0]"),
        (("proof", "circuit"), "steps", "task.proof.circuit"),
        (("proof", "circuit"), "tiles", None),
        (("proof", "k"), 0, "task.proof.k"),
        (("proof", "k"), 29, "task.proof.k"),
        (("proof", "k"), 6, "task.proof.k"),
        (("proof", "k"), 7, None),
        (("proof", "blinding"), -1, "task.proof.blinding"),
        (("proof", "blinding"), 1025, "task.proof.blinding"),
        (("proof", "every"), 0, "task.proof.every"),
        (("proof", "srs"), bytes(31), "task.proof.srs"),
        (("proof", "srs"), None, "task.proof.srs"),
        (("proof", "circuits"), [], "task.proof.circuits"),
        (("proof", "circuits"), {"": PIN}, "task.proof.circuits"),
        (("proof", "circuits"), {"a" * 257: PIN}, "task.proof.circuits"),
        (("proof", "circuits"), {f"{i}": PIN for i in range(257)}, "task.proof.circuits"),
        (("proof", "circuits"), {"a": {"key": bytes(32)}}, "task.proof.circuits.a.circuit"),
        (("proof", "circuits"), {"a": {**PIN, "key": b""}}, "task.proof.circuits.a.key"),
        (("proof", "circuits"), {"a": {**PIN, "more": 1}}, "task.proof.circuits.a.more"),
        (("proof", "initial_key"), None, "task.proof.initial_key"),
        (("proof", "initial_key"), bytes(31), "task.proof.initial_key"),
        (("proof", "hash"), None, "task.proof.hash"),
        (("proof", "hash"), "sha256", "task.proof.hash"),
        (("proof", "hash"), "blake3", None),
        (("proof", "more"), 1, "task.proof.more"),
    ],
)
def test_a_task_of_another_form_is_refused(path: tuple[str], to: Any, where: str | None) -> None:
    """Those without a place are accepted: they are at the edge."""
    data = change(VECTORS["tasks"][0], *path, to=to)
    if where is None:
        assert encode_task(decode_task(data)) == data
        return
    with pytest.raises(EncodingError) as caught:
        decode_task(data)
    assert caught.value.where == where


@pytest.mark.parametrize(("k", "fits"), [(14, False), (15, True)])
def test_a_tile_fits_into_a_column(k: int, fits: bool) -> None:
    proof = ProofSpec("tiles", bytes(32), k, 5, 1, (), {"": CircuitPin(b"", b"")})
    with pytest.raises(EncodingError) as caught:
        check_proof(proof)
    assert caught.value.where == ("task.proof.circuits" if fits else "task.proof.k")


def test_every_bit_of_a_record_counts() -> None:
    data = encode_kzg_record(RECORDS[0])
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with suppress(EncodingError):
            assert decode_kzg_record(bytes(changed)) != RECORDS[0]


def test_points() -> None:
    x, y = (int.from_bytes(part) for part in (POINT[:32], POINT[32:]))

    def join(x: int, y: int) -> bytes:
        return x.to_bytes(32) + y.to_bytes(32)

    assert is_point(POINT)
    assert is_point(join(x, PRIME - y))
    assert not is_point(join(x, y + 1))
    assert not is_point(join(y, x))
    assert not is_point(join(x + PRIME, y))
    assert not is_point(join(x, y + PRIME))
    assert not is_point(bytes(64)), "the point at infinity"
    assert not is_point(POINT + b"\0")


@pytest.mark.parametrize("step", [1, 4, 6, 10])
def test_only_the_next_step_due_is_appended(step: int) -> None:
    kzg = KzgLog(5)
    with pytest.raises(EncodingError, match=f"expected step 5, found {step}"):
        kzg.append(replace(RECORDS[0], step=step))
    assert kzg.last is None


@pytest.mark.parametrize(
    ("data", "where", "message"),
    [
        (b"vtrain kzg", "byte 0", "the header is cut off"),
        (b"vtrain run log\x00\x01", "byte 0", "the header is not that of a kzg log"),
        (b"vtrain kzg log\x00\x01", "byte 0", "the header is not that of a kzg log"),
        (KZG_HEADER + b"\0", "record 0 at byte 16", "ends within"),
        (KZG_HEADER + b"\xff\xff\xff\x7f", "record 0 at byte 16", "too long"),
        (bytes.fromhex(VECTORS["file"])[:-1], "record 1 at byte", "ends within"),
    ],
)
def test_damaged_files(data: bytes, where: str, message: str) -> None:
    with pytest.raises(EncodingError, match=message) as caught:
        list(iterate_kzg_frames(io.BytesIO(data)))
    assert caught.value.where.startswith(where)


def test_a_file_whose_leaf_is_no_record() -> None:
    data = KZG_HEADER + b"\1\0\0\0" + b"\0"
    assert [leaf for _, leaf in iterate_kzg_frames(io.BytesIO(data))] == [b"\0"]
    with pytest.raises(EncodingError, match="expected a map") as caught:
        list(iterate_kzg_log(io.BytesIO(data)))
    assert caught.value.where == "record 0 at byte 16: kzg_record"
