"""tests/vectors/attested.json: what an audit reports of a run in floats, and the digests of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtrain.attest.attested import (
    Described,
    compute_attestation_digest,
    compute_batch_digest,
    compute_weights_digest,
)
from vtrain.audit.attested import verify_attested
from vtrain.spec.blake3_tree import compute_derived_key
from vtrain.spec.domains import ATTESTED_DOMAINS, compute_domain_hash
from vtrain.train.attested import AttestedPaths
from vtrain.wire.attested import decode_attestation

CONTENT = json.loads((Path(__file__).parent.parent / "vectors" / "attested.json").read_text())
CASES = CONTENT["cases"]


def describe(tensors: list[dict[str, Any]]) -> dict[str, Described]:
    found: dict[str, Described] = {}
    for tensor in reversed(tensors):  # whatever their order
        data = np.frombuffer(bytes.fromhex(tensor["data"]), np.uint8)
        found[tensor["name"]] = (tensor["dtype"], tensor["shape"], data)
    return found


def lay_out(folder: Path, changes: dict[str, str | None]) -> Path:
    """The run's folder, with what lies beside it."""
    run = folder / "attested"
    (run / "checkpoints").mkdir(parents=True)
    for name, data in {**CONTENT["files"], **changes}.items():
        if data is not None:
            path = run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes.fromhex(data))
    return run


def test_domains() -> None:
    assert CONTENT["domains"].keys() == {*ATTESTED_DOMAINS}
    for domain, hashes in CONTENT["domains"].items():
        assert compute_derived_key(domain, b"").hex() == hashes["empty"]
        assert compute_domain_hash(domain, b"abc").hex() == hashes["abc"]


def test_digests() -> None:
    for item in CONTENT["weights"]:
        assert compute_weights_digest(describe(item["tensors"])).hex() == item["digest"]
    for item in CONTENT["batches"]:
        calls = [describe(call) for call in item["calls"]]
        assert compute_batch_digest(calls).hex() == item["digest"]
    signed = decode_attestation(bytes.fromhex(CONTENT["files"]["attestation.cbor"]))
    assert compute_attestation_digest(signed.attestation).hex() == CONTENT["digest"]
    found = [signed.attestation.initial.hex(), signed.attestation.final.hex()]
    assert found == [item["digest"] for item in CONTENT["weights"]]


@pytest.mark.parametrize("case", CASES, ids=[case["about"] for case in CASES])
def test_what_is_reported(case: dict[str, Any], tmp_path: Path) -> None:
    run = lay_out(tmp_path, case["changes"])
    assert AttestedPaths(run).is_there()
    asked = {name: bytes.fromhex(value) for name, value in case["arguments"].items()}
    report = verify_attested(run, **asked)  # type: ignore[arg-type]
    checks = [
        {
            "name": check.name,
            "status": check.status,
            "fault": check.fault or "",
            "place": check.where.partition(": ")[0],
        }
        for check in report.checks
    ]
    assert checks == case["checks"]
    assert report.verdict == case["verdict"]
