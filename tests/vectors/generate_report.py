"""Writes ``report.json``: a signed report, by Ed25519 and BLS, envelopes with faults, and the
statements of ``report_statements.py``.

``python -m tests.vectors.generate_report`` writes it; ``--check`` compares and exits 1 when it
differs.  Whether an envelope holds is stated here by hand; ``tests/report/test_report_vectors.py``
holds the verifier to it.  README.md documents the format.
"""

from __future__ import annotations

import hashlib
import json
import string
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.vectors.files import format_cases, write_or_compare
from tests.vectors.report_statements import make_statements, make_whole_report, state
from vtrain.attest.bls import prove_possession, sign
from vtrain.attest.envelope import (
    PAYLOAD_TYPE,
    Envelope,
    encode_envelope,
    merge_envelopes,
    sign_payload,
)
from vtrain.attest.keys import BlsSecret, public_key

PATH: Final = Path(__file__).with_name("report.json")
Json = dict[str, Any]
ED25519: Final = tuple(Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
BLS: Final = tuple(map(BlsSecret, (5, 7, 11)))


def to_json(envelope: Envelope) -> Json:
    """The file of an envelope, read."""
    value: Json = json.loads(encode_envelope(envelope))
    return value


def change(value: Json, alter: Callable[[Json], object]) -> Json:
    """A copy in which something is another."""
    copy: Json = json.loads(json.dumps(value))
    alter(copy)
    return copy


def flip(text: str) -> str:
    """Base64 of the same bytes but for the lowest bit of the last."""
    data = b64decode(text)
    return b64encode(data[:-1] + bytes([data[-1] ^ 1])).decode()


def spare(text: str) -> str:
    """The same bytes in base64 with another bit to spare: a letter further before the padding."""
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    head, padding = text.rstrip("="), text[len(text.rstrip("=")) :]
    return head[:-1] + letters[letters.index(head[-1]) + 1] + padding


def list_cases(payload: bytes) -> Iterator[tuple[str, Json, bool]]:
    """(what it is, the envelope, whether it is one of which every signature holds)."""
    keys: list[Ed25519PrivateKey | BlsSecret] = [*ED25519, *BLS]
    apart = [sign_payload(payload, key) for key in keys]
    one, other, *bls = apart
    plain, together = to_json(one), to_json(merge_envelopes(bls))
    whole = to_json(merge_envelopes(apart))
    yield "an Ed25519 signature", plain, True
    yield "two Ed25519 signatures", to_json(merge_envelopes([one, other])), True
    yield "a BLS signature", to_json(bls[0]), True
    yield "a BLS signature of three together", together, True
    yield "both Ed25519 signatures and that of three together", whole, True

    def of_entry(base: Json, **parts: Any) -> Json:
        return change(base, lambda value: value["signatures"][0].update(parts))

    (entry,) = plain["signatures"]
    yield (
        "the last bit of the Ed25519 signature is another",
        of_entry(plain, sig=flip(entry["sig"])),
        False,
    )
    yield (
        "another key is said to have signed",
        of_entry(plain, keyid=public_key(ED25519[1]).hex()),
        False,
    )
    changed = change(plain, lambda value: value.update(payload=flip(plain["payload"])))
    yield "the last bit of the payload is another", changed, False
    yield (
        "the signature is of the payload alone, without its type",
        of_entry(plain, sig=b64encode(ED25519[0].sign(payload)).decode()),
        False,
    )
    yield (
        "the payload is of another type",
        change(plain, lambda value: value.update(payloadType="application/json")),
        False,
    )
    yield (
        "a key has signed twice",
        change(plain, lambda value: value["signatures"].append(entry)),
        False,
    )
    yield "nobody has signed", change(plain, lambda value: value.update(signatures=[])), False
    yield "the envelope has a field more", change(plain, lambda value: value.update(more=1)), False
    yield "an entry has a field more", of_entry(plain, more=1), False
    yield "bits to spare in a signature", of_entry(plain, sig=spare(entry["sig"])), False
    (joint,) = together["signatures"]
    yield (
        "the last bit of the joint signature is another",
        of_entry(together, sig=flip(joint["sig"])),
        False,
    )
    fewer = joint["keys"][:2]
    yield (
        "one of three who signed together is left out",
        of_entry(together, keys=fewer, keyid=name_keys(fewer)),
        False,
    )
    swapped = [fewer[1], fewer[0], joint["keys"][2]]
    yield (
        "the keys of a joint signature are in another order",
        of_entry(together, keys=swapped, keyid=name_keys(swapped)),
        False,
    )
    yield "a joint signature has the id of other keys", of_entry(together, keyid="00" * 32), False
    stolen = [{**joint["keys"][0], "possession": joint["keys"][1]["possession"]}, *fewer[1:]]
    stolen.append(joint["keys"][2])
    yield "a proof of possession is that of another key", of_entry(together, keys=stolen), False
    (first,) = to_json(bls[0])["signatures"]
    yield (
        "a BLS key has signed alone and together with others",
        change(together, lambda value: value["signatures"].append(first)),
        False,
    )
    alone = sign(BLS[0].scalar, payload)
    yield (
        "a BLS signature is of the payload alone, without its type",
        of_entry(to_json(bls[0]), sig=b64encode(alone).decode()),
        False,
    )


def name_keys(keys: list[Json]) -> str:
    """What an entry of these keys is called."""
    return hashlib.sha256(b"".join(bytes.fromhex(key["public"]) for key in keys)).hexdigest()


def make_file() -> Json:
    payload = state(make_whole_report())
    cases = [
        {"about": about, "envelope": envelope, "holds": holds, "signers": list_signers(envelope)}
        for about, envelope, holds in list_cases(payload)
    ]
    possessed = [prove_possession(secret.scalar) for secret in BLS]
    return {
        "ed25519": [
            {"secret": key.private_bytes_raw().hex(), "public": public_key(key).hex()}
            for key in ED25519
        ],
        "bls": [
            {
                "secret": str(secret.scalar),
                "public": key.public.hex(),
                "possession": key.possession.hex(),
            }
            for secret, key in zip(BLS, possessed, strict=True)
        ],
        "payload_type": PAYLOAD_TYPE,
        "payload": payload.decode(),
        "signed": Envelope(payload, ()).signed_bytes.hex(),
        "cases": [
            case if case["holds"] else {key: case[key] for key in ("about", "envelope", "holds")}
            for case in cases
        ],
        **make_statements(),
    }


def list_signers(envelope: Json) -> list[str]:
    """The public keys that an envelope names, in its order."""
    return [
        public
        for entry in envelope["signatures"]
        for public in [key["public"] for key in entry.get("keys", [])] or [entry["keyid"]]
    ]


if __name__ == "__main__":
    sys.exit(write_or_compare(PATH, format_cases(make_file()), __doc__))
