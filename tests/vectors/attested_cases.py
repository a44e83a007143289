"""attested.json: an attested run (docs/attested.md) and runs near it, with what is to be reported.

What is reported is written here by hand and by the page's table; no auditor is asked.
"""

from __future__ import annotations

from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain.spec import merkle
from vtrain.spec.domains import (
    ATTESTATION,
    ATTESTED_BATCH,
    ATTESTED_DOMAINS,
    ATTESTED_LOG,
    ATTESTED_WEIGHTS,
    compute_domain_hash,
)
from vtrain.wire import cbor

Json = Any
Tensor = dict[str, Any]


def fill(length: int) -> bytes:
    """0, 1, 2, ..."""
    return bytes(range(length))


SECRET = bytes(range(32))
KEY = Ed25519PrivateKey.from_private_bytes(SECRET)
SOLVER = KEY.public_key().public_bytes_raw()


def make_tensor(name: str, dtype: str, shape: list[int], data: bytes) -> Tensor:
    """A tensor with its bytes."""
    return {"name": name, "dtype": dtype, "shape": shape, "data": data}


def pin(tensors: list[Tensor]) -> list[cbor.Value]:
    """Tensors as they are hashed."""
    return [
        {key: item for key, item in tensor.items() if key != "data"}
        | {"digest": blake3(tensor["data"]).digest()}
        for tensor in tensors
    ]


WEIGHTS = [
    [
        make_tensor("layer.bias", "bfloat16", [2], fill(4 + more)[more:]),
        make_tensor("layer.weight", "float32", [2, 3], fill(24 + more)[more:]),
    ]
    for more in (0, 1)
]
CALLS = [
    [
        make_tensor("0", "int64", [2], fill(16)),
        make_tensor("past.0.key", "bool", [0, 2], b""),
        make_tensor("scale", "float32", [], fill(4)),
    ],
    [make_tensor("0", "int64", [1], fill(8))],
]
BATCHES = [CALLS, CALLS[:1], CALLS[::-1]]
GIVEN = [
    compute_domain_hash(ATTESTED_BATCH, cbor.encode([pin(call) for call in batch]))
    for batch in BATCHES
]
INITIAL, FINAL = (
    compute_domain_hash(ATTESTED_WEIGHTS, cbor.encode(pin(tensors))) for tensors in WEIGHTS
)
CONFIG = b'{"arguments": {"max_steps": 3}}\n'
BESIDE = {"a/model.bin": fill(5), "state.pt": b""}


def list_files(*names: str) -> list[Any]:
    """Files of the checkpoint as they are listed."""
    return [
        {"name": name, "size": len(BESIDE[name]), "digest": blake3(BESIDE[name]).digest()}
        for name in names
    ]


def write(
    listing: cbor.Value | None = None, more: dict[int, dict[str, cbor.Value]] | None = None
) -> dict[str, bytes]:
    """The folder of a run with this listing, and other fields in some records: all signed."""
    listed = cbor.encode({"files": list_files(*BESIDE)} if listing is None else listing)
    records = []
    for index, batch in enumerate(GIVEN):
        checkpoint = blake3(listed).digest() if index == 1 else b""
        record: dict[str, cbor.Value] = {"batch": batch, "checkpoint": checkpoint}
        records.append(cbor.encode(record | {"step": index + 1} | (more or {}).get(index, {})))
    said: dict[str, cbor.Value] = {
        "run_id": fill(32),
        "solver": SOLVER,
        "config": blake3(CONFIG).digest(),
        "initial": INITIAL,
        "final": FINAL,
        "steps": len(records),
        "log_root": merkle.compute_root(ATTESTED_LOG, records),
    }
    frames = b"".join(len(record).to_bytes(4, "little") + record for record in records)
    return {
        "config.json": CONFIG,
        "log.bin": b"vtrain attested log\0\1" + frames,
        "checkpoints/000000000002.cbor": listed,
        "attestation.cbor": sign(said),
        **{f"../checkpoint-2/{name}": data for name, data in BESIDE.items()},
    }


def sign(said: dict[str, cbor.Value]) -> bytes:
    """The file of an attestation."""
    signature = KEY.sign(compute_domain_hash(ATTESTATION, cbor.encode(said)))
    return cbor.encode({"attestation": said, "signature": signature})


WHOLE = write()
SIGNED: Any = cbor.decode(WHOLE["attestation.cbor"])
SAID = SIGNED["attestation"]
DIGEST = compute_domain_hash(ATTESTATION, cbor.encode(SAID))
PLACES = {
    "attestation": "attestation.cbor",
    "configuration": "config.json",
    "records": "log.bin",
    "checkpoints": "checkpoints",
}
NEEDS = {"configuration": "attestation", "records": "attestation", "checkpoints": "records"}


def case(
    about: str,
    changes: dict[str, bytes | None] | None = None,
    *failed: tuple[str, str, str],
    **arguments: str,
) -> Json:
    """``failed``: (check, fault, place) of those that fail; what follows is the table's."""
    faults = {name: (fault, place) for name, fault, place in failed}
    checks = []
    lost: set[str] = set()
    for name, place in PLACES.items():
        status, fault, where = "passed", "", place
        if NEEDS.get(name) in lost:
            status = "not_done"
        elif name in faults:
            status, (fault, where) = "failed", faults[name]
        if status != "passed":
            lost.add(name)
        checks.append({"name": name, "status": status, "fault": fault, "place": where})
    verdict = "inconclusive" if lost else "conditional"
    if any(check["fault"] == "solver" for check in checks):
        verdict = "fraud"
    kept = {name: data and data.hex() for name, data in (changes or {}).items()}
    return {
        "about": about,
        "changes": kept,
        "arguments": arguments,
        "verdict": verdict,
        "checks": checks,
    }


def differ(files: dict[str, bytes]) -> dict[str, bytes | None]:
    """What another run has that the whole one has not."""
    return {name: data for name, data in files.items() if data != WHOLE[name]}


def list_cases() -> list[Json]:
    """The whole run, and runs near it."""
    unsigned = ("attestation", "nobody", "attestation.cbor")
    no_log = ("records", "nobody", "log.bin")
    listing, log = "checkpoints/000000000002.cbor", WHOLE["log.bin"]
    flipped = bytearray(WHOLE["attestation.cbor"])
    flipped[-1] ^= 1
    no_listing = ("checkpoints", "nobody", listing)
    two = list_files(*BESIDE)
    return [
        case("the run as it is"),
        case("of the solver asked for", solver=SOLVER.hex()),
        case("of another solver", None, unsigned, solver=bytes(32).hex()),
        case("the attestation that was kept", claim=DIGEST.hex()),
        case("another than was kept", None, unsigned, claim=bytes(32).hex()),
        case("unfinished", {"attestation.cbor": None}, unsigned),
        case("the signature does not hold", {"attestation.cbor": bytes(flipped)}, unsigned),
        case(
            "signed with one field more",
            {"attestation.cbor": sign(SAID | {"more": 0})},
            unsigned,
        ),
        case(
            "the configuration is missing",
            {"config.json": None},
            ("configuration", "nobody", "config.json"),
        ),
        case(
            "another configuration",
            {"config.json": CONFIG + b" "},
            ("configuration", "nobody", "config.json"),
        ),
        case("the log is missing", {"log.bin": None}, no_log),
        case(
            "the log's header is of another version",
            {"log.bin": log[:20] + b"\2" + log[21:]},
            no_log,
        ),
        case("the log ends within a record", {"log.bin": log[:-1]}, no_log),
        case("a record of 257 bytes", {"log.bin": log + b"\1\1\0\0" + bytes(257)}, no_log),
        case("one record more", {"log.bin": log + b"\0\0\0\0"}, no_log),
        case("a byte of a record is another", {"log.bin": log[:-1] + bytes([log[-1] ^ 1])}, no_log),
        case(
            "signed records of which one is of another step",
            differ(write(more={1: {"step": 3}})),
            ("records", "solver", "record 1"),
        ),
        case(
            "signed records of which one has a field more",
            differ(write(more={2: {"more": 0}})),
            ("records", "solver", "record 2"),
        ),
        case(
            "signed records that are none, and no configuration",
            differ(write(more={0: {"batch": b"none"}})) | {"config.json": None},
            ("configuration", "nobody", "config.json"),
            ("records", "solver", "record 0"),
        ),
        case("the listing is missing", {listing: None}, no_listing),
        case("another listing", {listing: cbor.encode({"files": []})}, no_listing),
        case("a signed listing of no files", differ(write({"files": []}))),
        *(
            case(
                f"a signed listing {about}",
                differ(write({"files": files})),
                ("checkpoints", "solver", listing),
            )
            for about, files in (
                ("has a file twice", [two[0], two[0]]),
                ("is out of order", two[::-1]),
                ("leads out of the folder", [two[0] | {"name": "../x"}]),
                ("has an empty name", [two[0] | {"name": ""}]),
                ("has a field more in a file", [two[0] | {"more": 0}]),
                ("has a name of 1025 bytes", [two[0] | {"name": "x" * 1025}]),
            )
        ),
        case(
            "a file of the checkpoint is missing",
            {"../checkpoint-2/state.pt": None},
            ("checkpoints", "nobody", "checkpoints"),
        ),
        case(
            "a file of the checkpoint is another",
            {"../checkpoint-2/a/model.bin": fill(6)[1:]},
            ("checkpoints", "nobody", "checkpoints"),
        ),
        case("the checkpoint is not there", dict.fromkeys(f"../checkpoint-2/{x}" for x in BESIDE)),
        case("a file that nobody signed for", {"../checkpoint-2/more": b"x"}),
    ]


def show(tensors: list[Tensor]) -> Json:
    """Tensors in JSON."""
    return [tensor | {"data": tensor["data"].hex()} for tensor in tensors]


def make() -> Json:
    """attested.json."""
    return {
        "secret_key": SECRET.hex(),
        "weights": [
            {"tensors": show(tensors), "digest": found.hex()}
            for tensors, found in zip(WEIGHTS, (INITIAL, FINAL), strict=True)
        ],
        "batches": [
            {"calls": [show(call) for call in batch], "digest": found.hex()}
            for batch, found in zip(BATCHES, GIVEN, strict=True)
        ],
        "domains": {
            domain: {
                "empty": compute_domain_hash(domain, b"").hex(),
                "abc": compute_domain_hash(domain, b"abc").hex(),
            }
            for domain in ATTESTED_DOMAINS
        },
        "digest": DIGEST.hex(),
        "files": {name: data.hex() for name, data in WHOLE.items()},
        "cases": list_cases(),
    }
