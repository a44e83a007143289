"""Proof files: one encoding each, and no field that a verifier would not miss."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from vtrain.errors import EncodingError
from vtrain.wire import cbor
from vtrain.wire.bundle import (
    BundleHeader,
    ProofBundle,
    decode_bundle,
    encode_bundle,
    find_difference,
)
from vtrain.wire.proof import MAX_PROOF

STATEMENT = BundleHeader(
    kind="step",
    task_id=b"\1" * 32,
    run_id=b"\2" * 32,
    claim=b"\3" * 32,
    step=7,
    name="layer 1",
    index=2,
    circuit_name="step",
    circuit=b"\4" * 32,
    key=b"\5" * 32,
    srs=b"\6" * 32,
    insecure=True,
    k=17,
    ezkl="23.0.5",
    parameters={"rate": (3,), "loss": (-(2**63), 2**63)},
)
BUNDLE = ProofBundle(STATEMENT, bytes(range(64)))
OTHER: dict[str, Any] = {
    "kind": "tile",
    "task_id": b"\7" * 32,
    "run_id": b"\7" * 32,
    "claim": b"\7" * 32,
    "step": 8,
    "name": "layer 2",
    "index": 3,
    "circuit_name": "tile",
    "circuit": b"\7" * 32,
    "key": b"\7" * 32,
    "srs": b"\7" * 32,
    "insecure": False,
    "k": 16,
    "ezkl": "23.0.6",
    "parameters": {"rate": (3,), "loss": (0, 2**63)},
}


def test_survives_both_ways() -> None:
    assert decode_bundle(encode_bundle(BUNDLE)) == BUNDLE
    assert find_difference(STATEMENT, STATEMENT) is None


@pytest.mark.parametrize("name", [item.name for item in fields(BundleHeader)])
def test_every_field_is_compared(name: str) -> None:
    other = replace(STATEMENT, **{name: OTHER[name]})
    read = decode_bundle(encode_bundle(ProofBundle(other, BUNDLE.proof)))
    assert find_difference(read.statement, STATEMENT) == name


def test_no_flipped_bit_is_the_same_bundle() -> None:
    data = encode_bundle(BUNDLE)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_bundle(bytes(changed))
        except EncodingError:
            continue
        assert find_difference(found.statement, STATEMENT) or found.proof != BUNDLE.proof, bit


def test_no_prefix_is_a_bundle() -> None:
    data = encode_bundle(BUNDLE)
    for length in range(len(data)):
        with pytest.raises(EncodingError):
            decode_bundle(data[:length])
    with pytest.raises(EncodingError):
        decode_bundle(data + b"\0")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", 2, "bundle.format"),
        ("kind", "run", "bundle.kind"),
        ("task_id", b"\1" * 31, "bundle.task_id"),
        ("step", 0, "bundle.step"),
        ("index", -1, "bundle.index"),
        ("insecure", 2, "bundle.insecure"),
        ("k", 29, "bundle.k"),
        ("name", "x" * 257, "bundle.name"),
        ("parameters", [], "bundle.parameters"),
        ("parameters", {"rate": [b""]}, r"bundle.parameters.rate\[0\]"),
        ("parameters", {"x" * 257: []}, "bundle.parameters"),
        ("parameters", {str(i): [] for i in range(1025)}, "bundle.parameters"),
        ("proof", b"", "bundle.proof"),
        ("proof", bytes(MAX_PROOF + 1), "bundle.proof"),
        ("extra", 1, "bundle.extra: unknown field"),
    ],
)
def test_other_forms_are_refused_by_name(name: str, value: Any, message: str) -> None:
    found = cbor.decode(encode_bundle(BUNDLE))
    assert isinstance(found, dict)
    with pytest.raises(EncodingError, match=message):
        decode_bundle(cbor.encode(found | {name: value}))


@pytest.mark.parametrize("name", [*OTHER, "format", "proof"])
def test_missing_field_is_named(name: str) -> None:
    found = cbor.decode(encode_bundle(BUNDLE))
    assert isinstance(found, dict)
    del found[name]
    with pytest.raises(EncodingError, match=f"bundle.{name}: the field is missing"):
        decode_bundle(cbor.encode(found))
