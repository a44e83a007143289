"""Statements that auditors sign: in-toto statements in DSSE envelopes.

An envelope (https://github.com/secure-systems-lab/dsse) holds bytes, their type, and signatures
over both.  The bytes are an in-toto statement (v1): subjects, each with a digest, and what is said
of them, the predicate.  A signature is Ed25519, or BLS with proofs of possession by one auditor or
several: BLS signatures of the same bytes add up to one.

An entry of the envelope is {"keyid", "sig"}: of Ed25519 the key id is the public key.  A BLS entry
has "keys" besides, the public keys with their proofs of possession, in rising order; its key id is
the SHA-256 of the public keys one after the other.  Nobody signs twice.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import util
from typing import Any, Final

from vtrain.attest.bls import (
    G1_LENGTH,
    G2_LENGTH,
    Library,
    Possessed,
    aggregate,
    open_library,
    prove_possession,
    sign,
    verify_aggregate,
)
from vtrain.attest.keys import BlsSecret, PrivateKey, public_key, verify_signature
from vtrain.errors import EncodingError, MissingExtraError, SignatureError
from vtrain.wire.claim import PUBLIC_KEY_LENGTH, SIGNATURE_LENGTH
from vtrain.wire.json_text import decode_json

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
MOST_SIGNATURES: Final = 256
"""Signers of an envelope."""
_BASE64: Final = re.compile(
    r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"
)
"""Bits to spare are zero, so that no two texts are of the same bytes."""


@dataclass(frozen=True)
class Signature:
    """One entry: Ed25519 by ``publics[0]`` (32 bytes), or BLS by all ``keys`` together."""

    signature: bytes
    publics: tuple[bytes, ...]
    keys: tuple[Possessed, ...] = ()

    @property
    def key_id(self) -> str:
        """What names the signers in an envelope."""
        if not self.keys:
            return self.publics[0].hex()
        return hashlib.sha256(b"".join(self.publics)).hexdigest()


@dataclass(frozen=True)
class Envelope:
    """What is signed, and the signatures."""

    payload: bytes
    signatures: tuple[Signature, ...]

    @property
    def signed_bytes(self) -> bytes:
        """What each signature is of: type and payload, each with its length (DSSE's PAE)."""
        dsse = _load_dsse()
        return bytes(dsse.Envelope(self.payload, PAYLOAD_TYPE, {}).pae())

    @property
    def signers(self) -> tuple[bytes, ...]:
        """The public keys that have signed, if their signatures hold (:func:`verify_envelope`)."""
        return tuple(public for entry in self.signatures for public in entry.publics)


def _load_dsse() -> Any:
    if util.find_spec("securesystemslib") is None:
        command = f"{sys.executable} -m pip install 'vtrain[report]'"
        raise MissingExtraError(f"needs securesystemslib: {command}", where="securesystemslib")
    from securesystemslib import dsse

    return dsse


# --- statements


def make_statement(name: str, digests: dict[str, str], kind: str, predicate: object) -> bytes:
    """The JSON of an in-toto statement that says ``predicate``, of type ``kind``, of a subject."""
    return json.dumps(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": digests}],
            "predicateType": kind,
            "predicate": predicate,
        },
        separators=(",", ":"),
        sort_keys=True,
    ).encode()


@dataclass(frozen=True)
class InTotoStatement:
    """A statement about one subject."""

    name: str
    digests: dict[str, str]
    kind: str
    predicate: Any


def read_statement(payload: bytes, where: str = "payload") -> InTotoStatement:
    """Inverse of :func:`make_statement`; EncodingError for what is no statement of one subject."""
    value = decode_json(payload, where)
    try:
        ((subject,), kind, predicate) = value["subject"], value["predicateType"], value["predicate"]
        found = InTotoStatement(subject["name"], dict(subject["digest"]), kind, predicate)
    except (KeyError, TypeError, ValueError):
        raise EncodingError("is no in-toto statement of one subject", where=where) from None
    if make_statement(found.name, found.digests, found.kind, found.predicate) != payload:
        raise EncodingError("is not written as a statement is written here", where=where)
    return found


# --- envelopes


def encode_envelope(envelope: Envelope) -> bytes:
    """The JSON of an envelope."""
    dsse = _load_dsse()
    entries = {
        item.key_id: dsse.Signature(
            item.key_id,
            item.signature.hex(),
            {
                "keys": [
                    {"public": key.public.hex(), "possession": key.possession.hex()}
                    for key in item.keys
                ]
            }
            if item.keys
            else None,
        )
        for item in envelope.signatures
    }
    value = dsse.Envelope(envelope.payload, PAYLOAD_TYPE, entries).to_dict()
    return (json.dumps(value, indent=2) + "\n").encode()


def decode_envelope(data: bytes, where: str = "envelope") -> Envelope:
    """Inverse of :func:`encode_envelope`; EncodingError for what is none, for a payload of another
    type, and for entries of another form.  No signature is verified."""
    dsse = _load_dsse()
    value = decode_json(data, where)
    _check_form(value, where)
    found = dsse.Envelope.from_dict(value)
    entries = found.signatures.values()
    return Envelope(
        bytes(found.payload),
        tuple(_read_entry(item, f"{where}: signature {i}") for i, item in enumerate(entries)),
    )


def _check_form(value: Any, where: str) -> None:
    """EncodingError for what the library would raise anything for, or would take more freely:
    base64 of another alphabet or without its padding."""
    if not isinstance(value, dict) or value.keys() != {"payload", "payloadType", "signatures"}:
        raise EncodingError(
            "is no envelope: its fields are not payload, payloadType and signatures", where=where
        )
    if value["payloadType"] != PAYLOAD_TYPE:
        raise EncodingError(f"is not {PAYLOAD_TYPE}", where=f"{where}: payloadType")
    entries = value["signatures"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_SIGNATURES:
        raise EncodingError(f"are not 1 to {MOST_SIGNATURES}", where=f"{where}: signatures")
    _check_base64(value["payload"], f"{where}: payload")
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        place = f"{where}: signature {i}"
        if not isinstance(entry, dict) or not isinstance(key_id := entry.get("keyid"), str):
            raise EncodingError("names no key: it has no text as its keyid", where=place)
        _check_base64(entry.get("sig"), f"{place}: sig")
        if key_id in seen:
            raise EncodingError("signs twice: leave one of the entries", where=f"{place}: keyid")
        seen.add(key_id)


def _check_base64(value: object, where: str) -> None:
    if not isinstance(value, str) or not _BASE64.fullmatch(value):
        raise EncodingError(
            "is not base64 (RFC 4648, section 4) with its padding, without white space and with "
            "zeros as the bits to spare",
            where=where,
        )


def is_envelope(value: object) -> bool:
    """Whether a JSON value looks like an envelope, be it good or not."""
    return isinstance(value, dict) and "payload" in value


def _read_entry(item: Any, where: str) -> Signature:
    more = item.unrecognized_fields
    if more.keys() - {"keys"}:
        raise EncodingError("has fields that are not known", where=where)
    signature = bytes.fromhex(item.signature)
    if "keys" not in more:
        _check_length(signature, SIGNATURE_LENGTH, f"{where}: sig")
        public = _take_hex(item.keyid, PUBLIC_KEY_LENGTH, f"{where}: keyid")
        return Signature(signature, (public,))
    _check_length(signature, G2_LENGTH, f"{where}: sig")
    keys = more["keys"]
    if not isinstance(keys, list) or not keys:
        raise EncodingError("are no keys", where=f"{where}: keys")
    found = []
    for i, key in enumerate(keys):
        place = f"{where}: keys[{i}]"
        if not isinstance(key, dict) or key.keys() != {"public", "possession"}:
            raise EncodingError("is no public key with its proof of possession", where=place)
        public = _take_hex(key["public"], G1_LENGTH, f"{place}.public")
        found.append(Possessed(public, _take_hex(key["possession"], G2_LENGTH, place)))
    entry = Signature(signature, tuple(key.public for key in found), tuple(found))
    if list(entry.publics) != sorted(set(entry.publics)):
        raise EncodingError("are not in rising order, each once", where=f"{where}: keys")
    if entry.key_id != item.keyid:
        raise EncodingError("is not that of the keys", where=f"{where}: keyid")
    return entry


def _check_length(data: bytes, length: int, where: str) -> None:
    if len(data) != length:
        raise EncodingError(f"has {len(data)} bytes, not {length}", where=where)


def _take_hex(value: object, length: int, where: str) -> bytes:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{2 * length}}}", value):
        raise EncodingError(f"is not {2 * length} lower-case hexadecimal digits", where=where)
    return bytes.fromhex(value)


# --- signing and verifying


def sign_payload(payload: bytes, key: PrivateKey | BlsSecret) -> Envelope:
    """An envelope with one signature."""
    message = Envelope(payload, ()).signed_bytes
    if isinstance(key, BlsSecret):
        made = prove_possession(key.scalar)
        entry = Signature(sign(key.scalar, message), (made.public,), (made,))
    else:
        entry = Signature(key.sign(message), (public_key(key),))
    return Envelope(payload, (entry,))


def merge_envelopes(envelopes: Sequence[Envelope], library: Library | None = None) -> Envelope:
    """One envelope with all signatures of several of one payload, the BLS ones in one.

    SignatureError where they are of different bytes, or where somebody signs twice.
    """
    first = envelopes[0]
    for other in envelopes[1:]:
        if other.payload != first.payload:
            raise SignatureError(
                "the envelopes are of different reports: only signatures of one go together",
                where="payload",
            )
    entries = [entry for envelope in envelopes for entry in envelope.signatures]
    plain = [entry for entry in entries if not entry.keys]
    together = [entry for entry in entries if entry.keys]
    _check_signers(entries)
    if len(together) > 1:
        keys = sorted((key for entry in together for key in entry.keys), key=lambda k: k.public)
        total = aggregate([e.signature for e in together], library or open_library())
        together = [Signature(total, tuple(key.public for key in keys), tuple(keys))]
    plain.sort(key=lambda entry: entry.publics)
    return Envelope(first.payload, (*plain, *together))


def _check_signers(entries: Sequence[Signature]) -> None:
    """SignatureError for somebody who signs twice, and for more than are taken: whoever carries a
    report can add signatures of keys of its own, and each takes time to verify."""
    count = sum(len(entry.publics) for entry in entries)
    if count > MOST_SIGNATURES:
        raise SignatureError(f"are by {count}, not 1 to {MOST_SIGNATURES}", where="signatures")
    seen: set[bytes] = set()
    for entry in entries:
        for public in entry.publics:
            if public in seen:
                raise SignatureError("signs twice", where=f"key {public.hex()}")
            seen.add(public)


def verify_envelope(
    envelope: Envelope,
    auditors: Sequence[bytes],
    *,
    threshold: int | None = None,
    library: Library | None = None,
) -> tuple[bytes, ...]:
    """Which of the public keys ``auditors`` have signed, in their order.

    SignatureError unless every signature of the envelope holds, nobody signs twice, there are no
    more than :data:`MOST_SIGNATURES`, and at least
    ``threshold`` of the ``auditors`` (by default all) are among the signers.
    """
    wanted = tuple(dict.fromkeys(auditors))
    least = len(wanted) if threshold is None else threshold
    if not 1 <= least <= len(wanted):
        raise SignatureError(
            f"{least} of {len(wanted)} auditors cannot be asked for", where="auditors"
        )
    _check_signers(envelope.signatures)
    message = envelope.signed_bytes
    for entry in envelope.signatures:
        if entry.keys:
            library = library or open_library()
            verify_aggregate(entry.keys, message, entry.signature, library)
            continue
        try:
            verify_signature(entry.publics[0], message, entry.signature)
        except SignatureError as error:
            place = f"key {entry.publics[0].hex()}"
            raise SignatureError(f"{error.where}: {error.message}", where=place) from None
    found = tuple(public for public in wanted if public in envelope.signers)
    if len(found) < least:
        missing = ", ".join(public.hex() for public in wanted if public not in found)
        raise SignatureError(
            f"{len(found)} of the auditors asked for have signed, not {least}; without: {missing}",
            where="signatures",
        )
    return found
