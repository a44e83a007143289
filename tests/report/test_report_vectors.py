"""The vectors of a signed report: what an outsider needs to verify one, held against ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from vtrain.attest.envelope import decode_envelope, read_statement, verify_envelope
from vtrain.errors import EncodingError, SignatureError
from vtrain.report.document import PREDICATE_TYPE, check_subject, document_from_value

ROOT = Path(__file__).parents[2]
VECTORS: dict[str, Any] = json.loads((ROOT / "tests" / "vectors" / "report.json").read_text())


def test_the_file_is_what_the_generator_gives() -> None:
    command = [sys.executable, "-m", "tests.vectors.generate_report", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_signed_is_made_by_hand() -> None:
    """DSSE's pre-authentication encoding, without its library."""
    kind, payload = VECTORS["payload_type"].encode(), VECTORS["payload"].encode()
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    assert signed.hex() == VECTORS["signed"]


def test_the_payload_is_a_report() -> None:
    payload = VECTORS["payload"]
    statement = read_statement(payload.encode())
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    assert jsonschema_rs.validator_for(schema).is_valid(statement.predicate)
    document = document_from_value(statement.predicate)
    check_subject(statement.name, statement.digests, document.report)
    again = json.dumps(json.loads(payload), sort_keys=True, separators=(",", ":"))
    assert again == payload


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["about"])
def test_an_envelope_holds_or_not(case: dict[str, Any]) -> None:
    data = json.dumps(case["envelope"]).encode()
    asked = [bytes.fromhex(key) for key in case.get("signers", [VECTORS["ed25519"][0]["public"]])]
    if case["holds"]:
        envelope = decode_envelope(data)
        assert envelope.payload == VECTORS["payload"].encode()
        assert verify_envelope(envelope, asked) == tuple(asked)
        assert len(envelope.signers) == len(asked)
        return
    with pytest.raises((EncodingError, SignatureError)):
        verify_envelope(decode_envelope(data), asked, threshold=1)


def read_payload(payload: bytes) -> None:
    """EncodingError unless a payload is a statement about a report, in which all follows."""
    statement = read_statement(payload)
    if statement.kind != PREDICATE_TYPE:
        raise EncodingError("is another")
    check_subject(
        statement.name, statement.digests, document_from_value(statement.predicate).report
    )


@pytest.mark.parametrize("name", VECTORS["payloads"])
def test_a_payload_holds(name: str) -> None:
    payload = VECTORS["payloads"][name].encode()
    read_payload(payload)
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    assert list(validator.iter_errors(json.loads(payload)["predicate"])) == []


@pytest.mark.parametrize("case", VECTORS["refused"], ids=lambda case: case["about"])
def test_a_payload_in_which_something_does_not_follow_is_refused(case: dict[str, Any]) -> None:
    base = VECTORS["payloads"][case["payload"]].encode()
    payload = base[: case["head"]] + case["middle"].encode() + base[len(base) - case["tail"] :]
    assert payload != base
    with pytest.raises(EncodingError):
        read_payload(payload)


def test_every_key_of_the_file_signs_in_some_case() -> None:
    keys = {key["public"] for kind in ("ed25519", "bls") for key in VECTORS[kind]}
    assert keys == {key for case in VECTORS["cases"] for key in case.get("signers", [])}
