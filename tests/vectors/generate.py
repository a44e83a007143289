"""Writes the conformance vectors of encodings, trees, randomness and order, from the spec alone.

``python tests/vectors/generate.py`` writes the files beside this one; ``--check`` only compares and
exits 1 when one differs.  README.md documents the formats.  ``blake3.json`` and
``ed25519_speccheck.json`` are other people's and are not written here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import attested_cases  # type: ignore[import-not-found]  # beside this file
import ed25519_rule  # type: ignore[import-not-found]  # beside this file
import kzg_rule  # type: ignore[import-not-found]  # beside this file
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.errors import EncodingError
from vtrain.spec import blake3_tree, merkle, order, philox
from vtrain.spec.algebraic import PRIME
from vtrain.spec.domains import (
    ALGEBRAIC,
    CLAIM,
    DIGEST_DOMAINS,
    KZG_LOG,
    RUN_LOG,
    SAMPLES,
    SAMPLING,
    STATE_TREE,
    TASK_ID,
    TENSOR_TRACES,
    TREE_DOMAINS,
    compute_domain_hash,
)
from vtrain.wire import cbor, structs
from vtrain.wire.claim import Claim, SignedClaim, claim_to_map, encode_signed_claim
from vtrain.wire.hiding import Hiding, HidingKey
from vtrain.wire.opening import StateLeaf, encode_state_leaf
from vtrain.wire.proof import CircuitPin, KzgRecord, ProofSpec, encode_kzg_record
from vtrain.wire.record import StepRecord, encode_record
from vtrain.wire.task import (
    BLAKE3_ONLY,
    LAW_VERSION,
    WITH_KZG,
    DataSpec,
    TaskSpec,
    encode_task,
)
from vtrain.wire.traces import SignedTensorTraces, TensorTrace, TensorTraces

FOLDER = Path(__file__).resolve().parent
Json = Any


def fill(length: int) -> bytes:
    """The input of BLAKE3's own vectors: 0, 1, ..., 250, 0, 1, ..."""
    return bytes(i % 251 for i in range(length))


# --- cbor.json


def tagged(value: cbor.Value) -> Json:
    """A value in JSON with its type: integers as text, since JSON readers round them."""
    match value:
        case int():
            return {"int": str(value)}
        case bytes():
            return {"bytes": value.hex()}
        case str():
            return {"text": value}
        case list():
            return {"list": [tagged(item) for item in value]}
        case _:
            return {"map": {key: tagged(item) for key, item in value.items()}}


def nested(depth: int) -> cbor.Value:
    """``depth`` arrays inside one another."""
    value: cbor.Value = []
    for _ in range(depth - 1):
        value = [value]
    return value


INT_EDGES = [
    0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1,
    -1, -24, -25, -256, -257, -65536, -65537, -(2**32), -(2**32) - 1, -(2**63),
]  # fmt: skip

CBOR_ACCEPT: dict[str, cbor.Value] = {
    **{f"int {value}": value for value in INT_EDGES},
    **{f"bytes of length {n}": fill(n) for n in (0, 1, 23, 24, 255, 256)},
    **{f"text of length {n}": "a" * n for n in (0, 1, 23, 24, 255, 256)},
    "text beyond ASCII": "épée π 漢 🜁",
    "text with NUL": "a\x00b",
    "text, decomposed, is not normalised": "e\u0301",
    "empty array": [],
    "array of 24": [*range(24)],
    "array of kinds": [1, -1, b"\x00", "a", [], {}],
    "empty map": {},
    "map keys: shorter first, then bytewise": {"b": 1, "a": 2, "aa": 3, "": 4, "é": 5, "z": 6},
    "map in map": {"a": {"a": {"a": 0}}},
    "deepest nesting": nested(cbor.LIMITS.depth),
}

CBOR_REJECT: dict[str, str] = {
    "nothing at all": "",
    "int 23 in one more byte": "1817",
    "int 0 in one more byte": "1800",
    "int 255 in two bytes": "1900ff",
    "int 65535 in four bytes": "1a0000ffff",
    "int 2^32-1 in eight bytes": "1b00000000ffffffff",
    "negative int -1 in one more byte": "3800",
    "int under -2^63": "3b8000000000000000",
    "least CBOR int -2^64": "3bffffffffffffffff",
    "head cut off, one byte": "18",
    "head cut off, two bytes": "1901",
    "head cut off, four bytes": "1a010000",
    "head cut off, eight bytes": "1b01000000000000",
    "reserved 28": "1c",
    "reserved 29 on bytes": "5d00",
    "reserved 30 on map": "be",
    "indefinite bytes": "5f4100ff",
    "indefinite text": "7f6161ff",
    "indefinite array": "9fff",
    "indefinite map": "bfff",
    "indefinite int": "1f",
    "break alone": "ff",
    "false": "f4",
    "true": "f5",
    "null": "f6",
    "undefined": "f7",
    "simple value 255": "f8ff",
    "half float 0.0": "f90000",
    "single float 1.0": "fa3f800000",
    "double float 1.1": "fb3ff199999999999a",
    "float inside an array": "8201f90000",
    "tag 0": "c0613a",
    "bignum tag": "c249010000000000000000",
    "self-described CBOR": "d9d9f700",
    "tag inside a map": "a16161c100",
    "bytes longer than the data": "420a",
    "bytes of 2^64-1": "5bffffffffffffffff",
    "text longer than the data": "6361",
    "text length not the shortest": "780161",
    "bytes length not the shortest": "580100",
    "array length not the shortest": "980100",
    "map length not the shortest": "b801616100",
    "array longer than the data": "8201",
    "array of 2^64-1": "9bffffffffffffffff",
    "array of 2^32-1 with some items": "9affffffff0000",
    "map longer than the data": "a2616100",
    "map of 2^63": "bb8000000000000000",
    "map of 2^64-1": "bbffffffffffffffff",
    "map without its value": "a162ffff",
    "array item missing": "828101",
    "map value missing": "82a16161",
    "map key is an int": "a10000",
    "map key is bytes": "a1416100",
    "map key is an array": "a18000",
    "map key is a tag": "a1c06100",
    "duplicate key": "a2616100616101",
    "duplicate empty key": "a260006001",
    "keys out of order": "a2616200616101",
    "longer key before shorter": "a262616100616201",
    "keys out of order, deep": "a16161a2616200616101",
    "UTF-8: lone continuation": "6180",
    "UTF-8: overlong NUL": "62c080",
    "UTF-8: surrogate": "63eda080",
    "UTF-8: above U+10FFFF": "64f4908080",
    "UTF-8: cut off": "61c3",
    "UTF-8: in a key": "a161ff00",
    "UTF-8: in an array": "820061ff",
    "trailing byte": "0000",
    "trailing document": "a0a0",
    "trailing break": "80ff",
    "nested too deeply, arrays": "81" * cbor.LIMITS.depth + "80",
    "nested too deeply, maps": "a160" * cbor.LIMITS.depth + "a0",
    "nested beyond every stack": "81" * 5000,
}

FLIP_BASE: cbor.Value = {"a": -7, "bc": [300, b"\x01\x02", "é"], "d": {"": 2**40}}


def judge(data: bytes) -> Json:
    """The refusal of ``data``, as {"offset", "reason"}; None when it is accepted."""
    try:
        value = cbor.decode(data)
    except EncodingError as error:
        return {"offset": int(error.where.removeprefix("byte ")), "reason": error.message}
    if cbor.encode(value) != data:
        sys.exit(f"decode accepts {data.hex()}, which is not canonical")
    return None


def make_cbor() -> Json:
    """cbor.json."""
    accept = [
        {"name": name, "hex": cbor.encode(value).hex(), "value": tagged(value)}
        for name, value in CBOR_ACCEPT.items()
    ]
    reject = []
    for name, data in CBOR_REJECT.items():
        verdict = judge(bytes.fromhex(data))
        if verdict is None:
            sys.exit(f"the reject vector {name!r} is accepted")
        reject.append({"name": name, "hex": data, **verdict})
    base = cbor.encode(FLIP_BASE)
    flips = []
    for bit in range(8 * len(base)):
        changed = bytearray(base)
        changed[bit // 8] ^= 1 << bit % 8
        flips.append(judge(bytes(changed)))
    return {"accept": accept, "reject": reject, "flips": {"hex": base.hex(), "verdicts": flips}}


# --- the trees


def make_domains() -> Json:
    """domains.json."""
    return {
        domain: {
            "empty": compute_domain_hash(domain, b"").hex(),
            "abc": compute_domain_hash(domain, b"abc").hex(),
        }
        for domain in (*TREE_DOMAINS, *DIGEST_DOMAINS)
    }


def make_chunk_opening() -> Json:
    """chunk_opening.json."""
    cases = []
    for length in (0, 1, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 3073, 5121, 7168, 8193):
        data = fill(length)
        chunks = blake3_tree.compute_chunk_count(length)
        openings = [blake3_tree.compute_chunk_opening(data, i) for i in range(chunks)]
        cases.append(
            {
                "length": length,
                "digest": blake3_tree.compute_hash(data).hex(),
                "paths": [[item.hex() for item in opening.path] for opening in openings],
            }
        )
    return cases


def make_merkle() -> Json:
    """merkle.json."""
    leaves = [fill(3 * i) for i in range(33)]
    roots = [merkle.compute_root(RUN_LOG, leaves[:size]).hex() for size in range(34)]
    inclusion, consistency = [], []
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33):
        tree = leaves[:size]
        for index in range(size):
            proof = merkle.compute_inclusion_proof(RUN_LOG, tree, index)
            path = [item.hex() for item in proof.path]
            inclusion.append({"size": size, "index": index, "path": path})
        for old_size in range(size + 1):
            prefix = merkle.compute_consistency_proof(RUN_LOG, tree, old_size)
            path = [item.hex() for item in prefix.path]
            consistency.append({"old_size": old_size, "new_size": size, "path": path})
    other = {domain: merkle.compute_root(domain, leaves[:5]).hex() for domain in TREE_DOMAINS}
    return {
        "domain": RUN_LOG,
        "leaves": [leaf.hex() for leaf in leaves],
        "roots": roots,
        "inclusion": inclusion,
        "consistency": consistency,
        "roots_of_five_by_domain": other,
        "fixed": {
            "domain": SAMPLES,
            "rows": 70,
            "row_length": 13,
            "root": merkle.compute_root(
                SAMPLES, [fill(910)[13 * i : 13 * i + 13] for i in range(70)]
            ).hex(),
        },
    }


# --- randomness and order

# Random123, tests/kat_vectors, the three lines "philox4x32 10": counter, key, output.
PHILOX_KNOWN_ANSWERS = (
    "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
)


def make_philox() -> Json:
    """philox.json."""
    known = []
    for line in PHILOX_KNOWN_ANSWERS:
        c0, c1, c2, c3, k0, k1, *output = (int(word, 16) for word in line.split())
        if [*philox.compute_philox((c0, c1, c2, c3), (k0, k1))] != output:
            sys.exit(f"the spec contradicts the known answer {line}")
        known.append({"counter": [c0, c1, c2, c3], "key": [k0, k1], "output": output})
    more = []
    for i in range(8):
        counter, key = (i, 7 * i, 1 << 4 * i, 0xFFFFFFFF - i), (i << 28, 3 * i)
        output = [*philox.compute_philox(counter, key)]
        more.append({"counter": [*counter], "key": [*key], "output": output})
    return {"random123": known, "more": more}


def make_order() -> Json:
    """order.json."""
    batches = []
    for seed, n, batch, step in (
        (0, 1, 4, 0), (7, 2, 3, 1), (7, 3, 3, 0), (1, 10, 4, 2), (1, 10, 25, 0),
        (2**64 - 1, 100, 16, 5), (123456789, 9000, 16, 562), (5, 65536, 8, 3), (5, 65537, 8, 9000),
        (42, 2**40, 4, 2**40), (42, 2**48, 4, 2**60),
    ):  # fmt: skip
        indices = order.compute_batch_indices(seed, n, batch, step).tolist()
        batches.append(
            {"seed": str(seed), "n": n, "batch": batch, "step": str(step), "indices": indices}
        )
    return {"batches": batches}


# --- state, log, claim


def make_state() -> Json:
    """state.json."""

    def leaf(name: str, dtype: str, shape: tuple[int, ...], exponent: int) -> StateLeaf:
        empty = StateLeaf(name, dtype, shape, exponent, b"")
        return StateLeaf(
            name, dtype, shape, exponent, blake3_tree.compute_hash(fill(empty.byte_length))
        )

    # In UTF-8 order of names, which is not the order of UTF-16 code units.
    leaves = [
        leaf("", "u8", (), 0),
        leaf("fc1.bias", "i32", (128,), 24),
        leaf("fc1.weight", "i32", (128, 5), 24),
        leaf("fc10.weight", "i16", (3, 1, 7), -3),
        leaf("fc2.weight", "i64", (2, 0), 512),
        leaf("\uff5e", "i8", (1,), 1),
        leaf("🜁", "i8", (1023,), 1),
    ]
    encoded = [encode_state_leaf(item) for item in leaves]
    return {
        "leaves": [
            {
                "name": item.name,
                "dtype": item.dtype,
                "shape": [*item.shape],
                "exponent": item.exponent,
                "digest": item.digest.hex(),
                "encoding": data.hex(),
            }
            for item, data in zip(leaves, encoded, strict=True)
        ],
        "roots": [
            merkle.compute_root(STATE_TREE, encoded[:size]).hex() for size in range(len(leaves) + 1)
        ],
    }


def make_log() -> Json:
    """log.json."""
    losses = (0, 1, -1, 24, 2**40, 2**63 - 1, -(2**63))
    records = [
        StepRecord(i + 1, fill(32 + i)[i:], loss, b"" if i % 3 else fill(64)[32 - i : 64 - i])
        for i, loss in enumerate(losses)
    ]
    encoded = [encode_record(record) for record in records]
    frames = b"".join(len(data).to_bytes(4, "little") + data for data in encoded)
    return {
        "records": [
            {
                "step": record.step,
                "batch_digest": record.batch_digest.hex(),
                "loss": str(record.loss),
                "state_root": record.state_root.hex(),
                "encoding": data.hex(),
            }
            for record, data in zip(records, encoded, strict=True)
        ],
        "roots": [
            merkle.compute_root(RUN_LOG, encoded[:size]).hex() for size in range(len(encoded) + 1)
        ],
        "file": (b"vtrain run log\x00\x01" + frames).hex(),
    }


def make_claim() -> Json:
    """claim.json."""
    # The secret key of RFC 8032, section 7.1, test 1: public, and here for its determinism.
    secret = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"  # noqa: S105
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    claim = Claim(
        run_id=fill(32),
        solver=key.public_key().public_bytes_raw(),
        task_id=fill(64)[32:],
        log_size=1000,
        log_root=fill(96)[64:],
    )
    encoded = cbor.encode(claim_to_map(claim))
    digest = compute_domain_hash(CLAIM, encoded)
    signature = key.sign(digest)
    return {
        "secret_key": secret,
        "run_id": claim.run_id.hex(),
        "solver": claim.solver.hex(),
        "task_id": claim.task_id.hex(),
        "log_size": claim.log_size,
        "log_root": claim.log_root.hex(),
        "encoding": encoded.hex(),
        "digest": digest.hex(),
        "signature": signature.hex(),
        "signed_encoding": encode_signed_claim(SignedClaim(claim, signature)).hex(),
    }


# --- ed25519.json

RFC_8032 = (
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
)
"""Section 7.1, tests 1 and 2: public key, message, signature."""


def list_small_encodings() -> list[bytes]:
    """Every string of 32 bytes that a lenient decoder takes for a point of order 1, 2, 4 or 8."""
    eighth = ed25519_rule.decode(
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
    )
    assert eighth is not None
    points = [ed25519_rule.multiply(i, eighth) for i in range(8)]
    words = {
        y | sign << 255
        for x, least in points
        for y in (least, least + ed25519_rule.P)
        for sign in ((0, 1) if x == 0 else (x & 1,))
        if y < 2**255
    }
    return [word.to_bytes(32, "little") for word in sorted(words)]


def make_ed25519() -> Json:
    """ed25519.json."""
    key, message, signature = (bytes.fromhex(item) for item in RFC_8032[1])
    scalar = int.from_bytes(signature[32:], "little")
    cases: list[tuple[str, bytes, bytes, bytes]] = []
    for number, items in enumerate(RFC_8032, start=1):
        a, b, c = (bytes.fromhex(item) for item in items)
        cases.append((f"RFC 8032, test {number}", a, b, c))
    speccheck = json.loads((FOLDER / "ed25519_speccheck.json").read_text())["cases"]
    for index, case in enumerate(speccheck):
        a, b, c = (bytes.fromhex(case[part]) for part in ("pub_key", "message", "signature"))
        cases.append((f"speccheck {index}", a, b, c))
    for point in list_small_encodings():
        name = point.hex()
        cases.append((f"key of small order {name}", point, message, point + bytes(32)))
        cases.append((f"R of small order {name}", key, message, point + signature[32:]))
    for multiple in (1, 2, 14):
        more = (scalar + multiple * ed25519_rule.L).to_bytes(32, "little")
        cases.append((f"S + {multiple} L", key, message, signature[:32] + more))
    high = bytearray(key)
    high[31] ^= 0x80
    cases += [
        ("another message", key, message + b"\0", signature),
        ("the key's x negated", bytes(high), message, signature),
        ("y of no point", (2).to_bytes(32, "little"), message, signature),
        ("y not reduced", (2**255 - 1).to_bytes(32, "little"), message, signature),
        ("a key of 31 bytes", key[:31], message, signature),
        ("a signature of 63 bytes", key, message, signature[:63]),
        ("a signature of 65 bytes", key, message, signature + b"\0"),
    ]
    return {
        "cases": [
            {
                "name": name,
                "key": a.hex(),
                "message": b.hex(),
                "signature": c.hex(),
                "holds": ed25519_rule.judge(a, b, c) == "holds",
                "broken": ed25519_rule.judge(a, b, c).replace("holds", ""),
                "openssl": len(a) == 32 and len(c) == 64 and ed25519_rule.is_equation_met(a, b, c),
            }
            for name, a, b, c in cases
        ]
    }


# --- kzg.json

GENERATOR = (1).to_bytes(32) + (2).to_bytes(32)
"""(1, 2) is on y^2 = x^3 + 3; the second point is its double."""
DOUBLE = bytes.fromhex(
    "030644e72e131a029b85045b68181585d97816a916871ca8d3c208c16d87cfd3"
    "15ed738c0e0a7c92e7845f96b2ae9c0a68a6a449e3538fc7ff3ebf7a5a18a2c4"
)


TAU = int.from_bytes(fill(31))


KEY = fill(32)[::-1]
HIDINGS = (
    Hiding(),
    Hiding(states=fill(32), batches=fill(64)[32:]),
    Hiding(batches=fill(64)[32:]),
    Hiding(keys=(HidingKey("batch", 3, KEY), HidingKey("state", 2, KEY[::-1]))),
)
"""Files of secrets and keys."""


def hide(key: bytes, column: int) -> list[int]:
    """The elements behind a column, none without a key."""
    found: list[int] = kzg_rule.derive_elements(key, column) if key else []
    return found


def make_keys() -> Json:
    """Keys of states, batches and a trace, and what follows from them."""

    def show(key: bytes) -> Json:
        return {"key": key.hex(), "id": kzg_rule.identify(key).hex()}

    found, own = [], []
    for secret, kind, index, digest in (
        (fill(32), "state", 4, fill(33)[1:]),
        (fill(32), "state", 5, fill(33)[1:]),
        (fill(64)[32:], "batch", 5, fill(34)[2:]),
        (fill(64)[32:], "batch", 2**48, fill(34)[2:]),
    ):
        key = kzg_rule.derive_key(secret, fill(40)[8:], kind, index, digest)
        about = {"kind": kind, "index": index, "digest": digest.hex()}
        found.append({"secret": secret.hex(), "task": fill(40)[8:].hex(), **about, **show(key)})
    digest = fill(33)[1:]
    for layout, kind, index, tensors in (
        ("step", "state", 0, fill(100)),
        ("tiles", "batch", 7, b""),
    ):
        key = kzg_rule.derive_own_key(layout, 15, fill(32), kind, index, digest, tensors)
        place = {"circuit": layout, "k": 15, "srs": fill(32).hex()}
        about = {"kind": kind, "index": index, "digest": digest.hex(), "tensors": tensors.hex()}
        own.append({**place, **about, **show(key)})
    before, batch = (bytes.fromhex(found[i]["key"]) for i in (0, 2))
    trace = kzg_rule.derive_trace_key(before, batch)
    return {
        "secret": found,
        "own": own,
        "trace": {"before": before.hex(), "batch": batch.hex()} | show(trace),
        "elements": [
            {
                "key": KEY.hex(),
                "column": column,
                "elements": [str(element) for element in kzg_rule.derive_elements(KEY, column)],
            }
            for column in (0, 1, 8191)
        ],
    }


def make_kzg() -> Json:
    """kzg.json."""
    keys = make_keys()
    found = (*keys["secret"], *keys["own"], keys["trace"])
    ids = [bytes.fromhex(item["id"]) for item in found][:6]
    records = [
        KzgRecord(5, (GENERATOR, DOUBLE), (DOUBLE,), (DOUBLE, GENERATOR), *ids[:3]),
        KzgRecord(10, (DOUBLE, GENERATOR), (GENERATOR,), (GENERATOR, GENERATOR), *ids[3:]),
    ]
    encoded = [encode_kzg_record(record) for record in records]
    frames = b"".join(len(data).to_bytes(4, "little") + data for data in encoded)
    proof = ProofSpec(
        circuit="step",
        srs=fill(32),
        k=17,
        blinding=5,
        every=5,
        initial=(GENERATOR, DOUBLE),
        circuits={"step": CircuitPin(fill(64)[32:], fill(96)[64:])},
        initial_key=ids[0],
        hash="keccak256",
    )
    task = TaskSpec(
        law=LAW_VERSION,
        graph_root=fill(33)[1:],
        initial_state_root=fill(34)[2:],
        model_digest=fill(35)[3:],
        data=DataSpec(fill(36)[4:], 100, "u8", (28, 28), 0, "u8", (), 0),
        exponents={"fc1.weight": 14},
        seed=2**64 - 1,
        steps=10,
        batch=8,
        commit_every=5,
        checkpoint_every=5,
        commitments=WITH_KZG,
        proof=proof,
    )
    bare = replace(proof, initial=(), circuits={}, initial_key=bytes(32), hash="blake3")
    spared = replace(task, commitments=BLAKE3_ONLY, proof=bare)
    plain = replace(spared, proof=None)
    root = merkle.compute_root(KZG_LOG, encoded)
    claim = Claim(fill(32), fill(64)[32:], fill(96)[64:], 10, fill(128)[96:], root)
    return {
        "records": [
            {
                "step": record.step,
                **{
                    part: [item.hex() for item in getattr(record, part)]
                    for part in ("before", "batch", "after")
                },
                **{
                    part: getattr(record, part).hex()
                    for part in ("before_key", "batch_key", "after_key")
                },
                "encoding": data.hex(),
            }
            for record, data in zip(records, encoded, strict=True)
        ],
        "roots": [merkle.compute_root(KZG_LOG, encoded[:size]).hex() for size in range(3)],
        "file": (b"vtrain kzg log\x00\x02" + frames).hex(),
        "tasks": [encode_task(item).hex() for item in (task, spared, plain)],
        "task_ids": [
            compute_domain_hash(TASK_ID, encode_task(item)).hex() for item in (task, spared, plain)
        ],
        "claim": cbor.encode(claim_to_map(claim)).hex(),
        "tau": str(TAU),
        "srs": kzg_rule.make_srs(TAU, 7).hex(),
        "keys": keys,
        "hiding": [structs.encode(item).hex() for item in HIDINGS],
        "commitments": [
            {
                "k": k,
                "blinding": blinding,
                "values": [str(value) for value in values],
                "key": key.hex(),
                "column": column,
                "commitment": kzg_rule.commit(TAU, k, blinding, values, hide(key, column)).hex(),
            }
            for k, blinding, values, key, column in (
                (7, 5, [3, -4, 5], KEY, 0),
                (7, 5, [3, -4, 5], KEY, 1),
                (7, 5, [3, -4, 5], KEY[::-1], 0),
                (7, 5, [3, -4, 5, 0], KEY, 0),
                (7, 5, list(range(-28, 28)), KEY, 8191),
                (7, 0, [0], KEY, 0),
                (7, 0, [], b"", 0),
                (3, 0, [1, -1, 2**31 - 1, -(2**31)], b"", 0),
                (3, 5, [7, 0], b"", 0),
                (2, 0, [-5, 2**40], b"", 0),
                (2, 1, [0, 3], b"", 0),
                (1, 0, [-(2**63)], b"", 0),
            )
        ],
    }


# --- plan.json


def draw_plainly(seed: bytes, population: int, count: int) -> list[int]:
    """The sampler of vtrain.audit.plan as its text says it, with the whole array in memory."""
    stream = blake3(seed, derive_key_context=SAMPLING).digest(length=1 << 16)
    words = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8)]
    array = list(range(population))
    for i in range(min(count, population)):
        left = population - i
        while words[0] >= 2**64 - 2**64 % left:
            words.pop(0)
        j = i + words.pop(0) % left
        array[i], array[j] = array[j], array[i]
    return array[: min(count, population)]


def make_plan() -> Json:
    """plan.json."""
    claim = make_claim()["digest"]
    cases = []
    for randomness, domain, population, count in (
        ("00", "replay segments", 1, 1),
        ("00", "replay segments", 14, 3),
        ("00", "replay segments", 14, 14),
        ("01", "replay segments", 14, 3),
        ("00", "another check", 14, 3),
        ("00", "replay segments", 15, 3),
        ("00", "replay segments", 14, 0),
        ("00", "replay segments", 0, 3),
        ("00", "replay segments", 5, 9),
        (bytes(range(32)).hex(), "replay segments", 1000, 200),
        (bytes(range(64)).hex(), "", 65536, 7),
    ):
        seed = cbor.encode(
            {
                "claim": bytes.fromhex(claim),
                "domain": domain,
                "population": population,
                "randomness": bytes.fromhex(randomness),
            }
        )
        cases.append(
            {
                "randomness": randomness,
                "domain": domain,
                "population": population,
                "count": count,
                "seed": seed.hex(),
                "indices": draw_plainly(seed, population, count),
            }
        )
    return {"claim": claim, "cases": cases}


# --- algebraic.json


def draw_vector(material: bytes, count: int) -> list[int]:
    """The vector of vtrain.spec.algebraic as its text says it."""
    stream = blake3(material, derive_key_context=ALGEBRAIC).digest(length=16 * count + 64)
    words = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8)]
    return [word % 2**61 for word in words if word % 2**61 != PRIME][:count]


def make_algebraic() -> Json:
    """algebraic.json."""
    secret = str(make_claim()["secret_key"])
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    claim = bytes.fromhex(make_claim()["digest"])
    traces = TensorTraces(
        claim, (TensorTrace(2, 50, fill(32)), TensorTrace(12, 100, fill(64)[32:]))
    )
    encoded = structs.encode(traces)
    digest = compute_domain_hash(TENSOR_TRACES, encoded)
    signature = key.sign(digest)
    vectors = []
    for randomness, repetition, length in (("", 0, 3), ("", 1, 3), ("00", 0, 5), ("ff" * 64, 0, 1)):
        material = cbor.encode(
            {
                "randomness": bytes.fromhex(randomness),
                "repetition": repetition,
                "traces": digest,
            }
        )
        vectors.append(
            {
                "randomness": randomness,
                "repetition": repetition,
                "material": material.hex(),
                "vector": [str(x) for x in draw_vector(material, length)],
            }
        )
    return {
        "claim": claim.hex(),
        "traces": [
            {"step": trace.step, "size": trace.size, "root": trace.root.hex()}
            for trace in traces.traces
        ],
        "encoding": encoded.hex(),
        "digest": digest.hex(),
        "signature": signature.hex(),
        "signed_encoding": structs.encode(SignedTensorTraces(traces, signature)).hex(),
        "vectors": vectors,
    }


# --- pieces.json

MIB = 1 << 20
GRAIN = 1 << 13


def cut(length: int, unit: int, size: int) -> list[tuple[int, int]]:
    """(first byte, byte after the last) of the parts of a whole, as docs/publishing.md has them."""
    units = 1
    while 2 * units * unit <= size:
        units *= 2
    starts = range(0, max(length, 1), units * unit)
    return [(start, min(start + units * unit, length)) for start in starts]


def list_tensor_parts(data: bytes, within: tuple[int, int], size: int) -> list[str]:
    """The values of the parts of a part of a tensor."""
    parts = cut(within[1] - within[0], 1024, size)
    spans = [(within[0] + start, within[0] + end) for start, end in parts]
    return [
        blake3_tree.compute_part_value(
            data[start:end], start // 1024, (start, end) == (0, len(data))
        ).hex()
        for start, end in spans
    ]


def make_pieces() -> Json:
    """pieces.json."""
    tensors = []
    for length in (0, 1025, GRAIN + 1, MIB + 1):
        data = fill(length)
        pieces = cut(length, 1024, MIB)
        tensors.append(
            {
                "length": length,
                "digest": blake3_tree.compute_hash(data).hex(),
                "pieces": list_tensor_parts(data, (0, length), MIB),
                "grains": [list_tensor_parts(data, piece, GRAIN) for piece in pieces[-1:]],
            }
        )
    tables = []
    for rows, row in ((1, 1), (20, 1000), (1500, 1000), (2, 600_000)):
        data = fill(rows * row)
        leaves = [data[at : at + row] for at in range(0, len(data), row)]
        pieces = cut(len(data), row, MIB)

        def compute(span: tuple[int, int], leaves: list[bytes] = leaves, row: int = row) -> str:
            return merkle.compute_root(SAMPLES, leaves[span[0] // row : span[1] // row]).hex()

        last = pieces[-1]
        tables.append(
            {
                "rows": rows,
                "row": row,
                "root": compute((0, len(data))),
                "pieces": [compute(piece) for piece in pieces],
                "grains": [
                    [
                        compute((last[0] + start, last[0] + end))
                        for start, end in cut(last[1] - last[0], row, GRAIN)
                    ]
                ],
            }
        )
    return {"tensors": tensors, "tables": tables}


FILES: dict[str, Callable[[], Json]] = {
    "cbor.json": make_cbor,
    "domains.json": make_domains,
    "chunk_opening.json": make_chunk_opening,
    "merkle.json": make_merkle,
    "philox.json": make_philox,
    "order.json": make_order,
    "state.json": make_state,
    "log.json": make_log,
    "claim.json": make_claim,
    "ed25519.json": make_ed25519,
    "kzg.json": make_kzg,
    "plan.json": make_plan,
    "algebraic.json": make_algebraic,
    "pieces.json": make_pieces,
    "attested.json": attested_cases.make,
}


def render(content: Json) -> str:
    """JSON text of a vector file, the same on every machine."""
    return json.dumps(content, indent=1, ensure_ascii=True) + "\n"


def main() -> int:
    """Write or compare every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    stale = 0
    for name, make in FILES.items():
        path, text = FOLDER / name, render(make())
        if check and (not path.is_file() or path.read_text() != text):
            sys.stderr.write(f"{name} is not what the spec gives\n")
            stale += 1
        if not check:
            path.write_text(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
