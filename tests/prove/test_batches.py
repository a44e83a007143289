"""What the data's owner signs: commitments to each batch of a task, and to no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.audit.runs import KEY, read_kzg_leaves
from tests.kzg import SECRET, make_key, make_kzg_task, make_srs_fixture
from tests.tasks import make_tiny_task
from vtrain.attest.keys import public_key
from vtrain.errors import EncodingError, NotProducedError, SignatureError, TaskError, VtrainError
from vtrain.prove.batches import (
    index_batches,
    make_order,
    read_batches,
    sign_batches,
    verify_batches,
)
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask
from vtrain.wire import cbor
from vtrain.wire.batches import SignedBatches, decode_batches, encode_batches
from vtrain.wire.proof import decode_kzg_record
from vtrain.wire.task import TaskSpec

OWNER = public_key(KEY)


srs = make_srs_fixture()


@pytest.fixture(scope="module")
def task(srs: Path) -> CompiledTask:
    return make_kzg_task(srs, steps=8)


@pytest.fixture(scope="module")
def batches(task: CompiledTask, srs: Path) -> SignedBatches:
    return sign(task, srs)


def sign(task: CompiledTask, srs: Path, **options: Any) -> SignedBatches:
    key = make_key(srs)
    return sign_batches(task.spec, task.graph, task.samples, key, KEY, SECRET, **options)


@pytest.mark.parametrize("every", [1, 3, 8, 9])
def test_they_are_those_that_a_run_logs(srs: Path, tmp_path: Path, every: int) -> None:
    """The owner knows them before the run begins, and never sees a weight."""
    task = make_kzg_task(srs, every=every, steps=8)
    seen: list[tuple[str, int, int]] = []
    signed = sign(task, srs, progress=lambda *news: seen.append(news))
    assert seen == [("batches", done, 8 // every) for done in range(8 // every)]
    verify_batches(signed, OWNER, task.spec)
    train(task, tmp_path / "run", key=KEY, batch_secret=SECRET)
    logged = [decode_kzg_record(leaf) for leaf in read_kzg_leaves(tmp_path / "run")]
    assert index_batches(signed) == {record.step: record.batch for record in logged}


def test_a_task_without_commitments_has_no_batches_to_sign(srs: Path) -> None:
    bare = make_tiny_task()
    with pytest.raises(TaskError, match="asks for no KZG commitments"):
        sign(bare, srs)
    with pytest.raises(TaskError, match="asks for no KZG commitments"):
        make_order(bare.spec)


def test_a_key_over_another_srs(task: CompiledTask, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="the task has"):
        sign_batches(task.spec, task.graph, task.samples, make_key(tmp_path / "a", 9), KEY, SECRET)


def test_they_survive_both_ways(batches: SignedBatches, task: CompiledTask, tmp_path: Path) -> None:
    file = tmp_path / "batches"
    file.write_bytes(encode_batches(batches))
    assert read_batches(file) == batches
    assert decode_batches(encode_batches(batches)) == batches
    with pytest.raises(NotProducedError):
        read_batches(tmp_path / "none")
    with file.open("wb") as handle:
        handle.truncate(1 << 40)
    with pytest.raises(NotProducedError, match="more than"):
        read_batches(file)


def test_another_owner(batches: SignedBatches, task: CompiledTask) -> None:
    """One whose key is expected, one who signed, one who only says so."""
    other = Ed25519PrivateKey.generate()
    with pytest.raises(EncodingError, match="another key than the owner's"):
        verify_batches(batches, public_key(other), task.spec)
    with pytest.raises(SignatureError):
        verify_batches(replace(batches, owner=public_key(other)), public_key(other), task.spec)
    with pytest.raises(EncodingError, match="another key than the owner's"):
        verify_batches(replace(batches, owner=public_key(other)), OWNER, task.spec)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 8},
        {"batch": 5},
        {"steps": 10},
        {"proof": {"srs": bytes(32)}},
        {"proof": {"k": 9}},
        {"proof": {"every": 2}},
        {"proof": {"blinding": 4}},
        {"proof": {"circuit": "tiles"}},
        {"data": {"root": bytes(32)}},
    ],
    ids=str,
)
def test_another_task(batches: SignedBatches, task: CompiledTask, changes: dict[str, Any]) -> None:
    spec: TaskSpec = task.spec
    fields = {
        name: replace(getattr(spec, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    with pytest.raises(EncodingError, match="about other batches than the task's"):
        verify_batches(batches, OWNER, replace(spec, **fields))
    order = make_order(replace(spec, **fields))
    with pytest.raises(SignatureError):
        verify_batches(replace(batches, order=order), OWNER, replace(spec, **fields))


def test_a_task_that_differs_elsewhere_has_the_same_batches(
    batches: SignedBatches, task: CompiledTask
) -> None:
    """They are of the data's owner: another model may be trained on them."""
    verify_batches(batches, OWNER, replace(task.spec, model_digest=bytes(32)))


def test_no_commitment_can_be_changed(batches: SignedBatches, task: CompiledTask) -> None:
    first, second, *rest = batches.commitments
    for commitments in ((second, first, *rest), (first, first, *rest), (second, *rest)):
        altered = replace(batches, commitments=commitments)
        with pytest.raises(SignatureError):
            verify_batches(altered, OWNER, task.spec)


def test_no_flipped_bit_is_signed(batches: SignedBatches, task: CompiledTask) -> None:
    data = encode_batches(batches)
    bits = np.random.default_rng(0).choice(8 * len(data), 400, replace=False)
    for bit in map(int, bits):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(VtrainError):
            verify_batches(decode_batches(bytes(changed)), OWNER, task.spec)
    for length in (*range(0, len(data), 7), len(data) - 1):
        with pytest.raises(EncodingError):
            decode_batches(data[:length])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 0, "steps"),
        ("every", 0, "every"),
        ("every", 2, r"has 8 batches, not 4"),
        ("k", 29, "k"),
        ("circuit", "step-clamps", "circuit"),
        ("owner", b"", "owner"),
        ("commitments", 1, "commitments"),
        ("commitments", [b""] * 8, "no list of commitments"),
        ("commitments", [bytes(63)] * 8, "no list of commitments"),
        ("commitments", [1] * 8, "no list of commitments"),
        ("commitments", [bytes(64 * 8193)] * 8, "too many commitments"),
        ("commitments", [bytes(64)] * 9, "has 9 batches, not 8"),
        ("more", 1, "unknown field"),
    ],
)
def test_other_forms_are_refused(
    batches: SignedBatches, name: str, value: cbor.Value, message: str
) -> None:
    outer = cbor.decode(encode_batches(batches))
    assert isinstance(outer, dict)
    inner = outer["batches"]
    assert isinstance(inner, dict)
    with pytest.raises(EncodingError, match=message):
        decode_batches(cbor.encode({**outer, "batches": {**inner, name: value}}))
