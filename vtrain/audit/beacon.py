"""Public randomness: rounds of drand, held against the time that is proven for a claim.

Every round of a drand chain is a BLS signature by a threshold of its network over the round's
number, made at a time that the chain fixes; its SHA-256 is the randomness.  Nobody can know it
before that many members sign, and nobody can choose it.  It is checked offline here, from the bytes
that any relay serves.

The rule (:class:`vtrain.wire.task.BeaconRule`) leaves nothing to choose: the first round whose
time is some delay or more after the time by which a time-stamping authority says that the claim
existed.  Without such a token nothing shows that the claim came first, and the sample is
predictable.  A token shows that a claim existed, not that no other did: a solver can have many
stamped, and show the one whose sample misses.  Only who held the claim, or a list of claims, before
the round can exclude that: that is what a pin is for (:mod:`vtrain.audit.pin`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, get_args

from vtrain.attest.bls import (
    G1_LENGTH,
    G2_LENGTH,
    NUL_G1,
    NUL_G2,
    LibraryName,
    open_library,
    verify_in_g1,
    verify_in_g2,
)
from vtrain.attest.timestamp import (
    ProvenTime,
    identify_root,
    load_roots,
    read_token,
    verify_token,
)
from vtrain.audit.pin import refuse_own_file
from vtrain.commit.files import read_file
from vtrain.errors import BeaconError, EncodingError, SignatureError, StorageError, TimestampError
from vtrain.limits import LIMITS
from vtrain.wire.json_text import decode_json
from vtrain.wire.report import BeaconUse, Randomness
from vtrain.wire.task import BeaconRule

Scheme = Literal["bls-unchained-g1-rfc9380", "pedersen-bls-chained"]
_SCHEMES: Final[tuple[Scheme, ...]] = get_args(Scheme)
MAX_ROUND: Final = 2**53 - 1
"""The greatest whole number that every reader of JSON has."""
_LATEST: Final = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())


@dataclass(frozen=True)
class Chain:
    """A drand chain: round r is made ``period`` * (r - 1) seconds after ``genesis`` (seconds since
    1970).  ``seed`` is the hash of the group at its genesis, ``name`` the beacon id."""

    name: str
    scheme: Scheme
    public: bytes
    period: int
    genesis: int
    seed: bytes

    @property
    def hash(self) -> bytes:
        """The chain's hash, as drand computes it: what names the chain, and binds key and times."""
        parts = [
            self.period.to_bytes(4),
            self.genesis.to_bytes(8),
            self.public,
            self.seed,
            b"" if self.name in ("", "default") else self.name.encode(),
        ]
        return hashlib.sha256(b"".join(parts)).digest()

    def compute_time(self, round_: int) -> int:
        """When a round is made, in seconds since 1970; BeaconError for one beyond all calendars."""
        time = self.genesis + (round_ - 1) * self.period
        if time > _LATEST:
            raise BeaconError("would be made after the year 9998", where=f"round {round_}")
        return time

    def find_round(self, time: int) -> int:
        """The first round made at ``time`` or later."""
        return max(1, -((self.genesis - time) // self.period) + 1)


QUICKNET: Final = Chain(
    "quicknet",
    "bls-unchained-g1-rfc9380",
    bytes.fromhex(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d1064"
        "510d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ec"
        "e45a"
    ),
    3,
    1692803367,
    bytes.fromhex("f477d5c89f21a17c863a7f937c6a6d15859414d2be09cd448d4279af331c5d3e"),
)
DEFAULT: Final = Chain(
    "default",
    "pedersen-bls-chained",
    bytes.fromhex(
        "868f005eb8e6e4ca0a47c8a77ceaa5309a47978a7c71bc5cce96366b5d7a569937c529eeda66c7293784a9402801af"
        "31"
    ),
    30,
    1595431050,
    bytes.fromhex("176f93498eac9ca337150b46d21dd58673ea4e3581185f869672e59fa4cb390a"),
)
CHAINS: Final[Mapping[str, Chain]] = {chain.name: chain for chain in (QUICKNET, DEFAULT)}
"""The chains of the League of Entropy's main network, by name."""
_LEFT_BY_SOLVER: Final = (
    "its solver may have had many made, and left the one whose round suits. Take the token that "
    "came with the claim, or have the claim stamped yourself (vtrain claim RUN --request FILE)"
)
_MADE_BY_SOLVER: Final = (
    "its solver may be the authority. Take certificates that you trust from elsewhere"
)
RULE: Final = BeaconRule(QUICKNET.hash)
"""What an audit goes by whose task names no beacon: quicknet, a minute, any authority."""


@dataclass(frozen=True)
class Beacon:
    """One round of a chain; ``previous`` is the signature of the round before, where the scheme
    signs it too."""

    round: int
    signature: bytes
    previous: bytes = b""


@dataclass(frozen=True)
class BeaconDraw:
    """What an auditor brings to draw by a beacon: the round that it names, the round's bytes, the
    token of the claim's time with the ``roots`` that it trusts, and the ``chain``, where it is none
    of :data:`CHAINS`."""

    round: int
    beacon: Beacon
    token: bytes | None = None
    roots: tuple[bytes, ...] = ()
    chain: Chain | None = None
    library: LibraryName = "auto"

    def __post_init__(self) -> None:
        """BeaconError for another round than the one that is named, whatever the run is."""
        if self.beacon.round != self.round:
            raise BeaconError(
                f"is of round {self.beacon.round}, and {self.round} was named", where="beacon"
            )


def make_draw(
    run: Path,
    name: str,
    file: Path,
    *,
    token: Path | None = None,
    authority: Path | None = None,
    chain: Path | None = None,
) -> BeaconDraw:
    """What an auditor of ``run`` brings, from files: ``name`` is ``drand:ROUND``, ``file`` the
    round as a relay serves it, ``token`` the response of a time-stamping authority of which
    ``authority`` has root certificates, ``chain`` a relay's description of a chain that is not
    known here.

    BeaconError, TimestampError, StorageError as they are read; TimestampError for a token without
    an authority to hold it against; RunError for either that is a file of the run.
    """
    if (token is None) != (authority is None):
        raise TimestampError(
            "a token and the root certificates of its authority belong together: give both, or "
            "neither",
            where="token",
        )
    refuse_own_file(run, run / "claim.tsr", token, _LEFT_BY_SOLVER)
    refuse_own_file(run, run / "claim.tsr", authority, _MADE_BY_SOLVER)
    return BeaconDraw(
        round=parse_round(name),
        beacon=read_beacon(file),
        token=None if token is None else read_token(token),
        roots=() if authority is None else load_roots(authority),
        chain=None if chain is None else read_chain(chain),
    )


# --- reading what drand serves


def parse_round(text: str) -> int:
    """The round that ``drand:ROUND`` names; BeaconError for any other text."""
    found = re.fullmatch(r"drand:([1-9][0-9]{0,15})", text)
    if found is None or int(found[1]) > MAX_ROUND:
        raise BeaconError("is no round of drand: name it as drand:1000", where=text)
    return int(found[1])


def read_beacon(path: Path) -> Beacon:
    """A round as a relay serves it (``/CHAIN/public/ROUND``), from a file.

    BeaconError for what is none; StorageError where it cannot be read.
    """
    return decode_beacon(read_file(path, LIMITS.beacon_bytes, error=StorageError), str(path))


def decode_beacon(data: bytes, where: str = "beacon") -> Beacon:
    """A round from its JSON: round, signature, previous_signature, and randomness, if there, which
    must follow from the signature.  Other fields say nothing here."""
    value = _decode_object(data, where)
    beacon = Beacon(
        _take_int(value, "round", 1, MAX_ROUND, where),
        _take_bytes(value, "signature", where),
        _take_bytes(value, "previous_signature", where, absent=b""),
    )
    said = _take_bytes(value, "randomness", where, absent=b"")
    if said not in (b"", compute_randomness(beacon)):
        raise BeaconError("is not the SHA-256 of the signature", where=f"{where}: randomness")
    return beacon


def read_chain(path: Path) -> Chain:
    """A chain as a relay describes it (``/CHAIN/info``), from a file.

    BeaconError for what is none, or for one whose hash does not follow from it; StorageError where
    it cannot be read.
    """
    return decode_chain(read_file(path, LIMITS.beacon_bytes, error=StorageError), str(path))


def decode_chain(data: bytes, where: str = "chain") -> Chain:
    """A chain from its JSON: public_key, period, genesis_time, groupHash, schemeID, hash and
    metadata.beaconID."""
    value = _decode_object(data, where)
    metadata = value.get("metadata", {})
    name = metadata.get("beaconID", "") if isinstance(metadata, dict) else None
    # ASCII alone: which other characters are printed changes with every version of Unicode.
    printed = isinstance(name, str) and name.isascii() and name.isprintable()
    if not isinstance(name, str) or len(name) > 100 or not printed:
        raise BeaconError("is no name", where=f"{where}: metadata.beaconID")
    scheme = next((known for known in _SCHEMES if known == value.get("schemeID")), None)
    if scheme is None:
        raise BeaconError(
            f"is none of the schemes known here, {' and '.join(_SCHEMES)}",
            where=f"{where}: schemeID",
        )
    chain = Chain(
        name,
        scheme,
        _take_bytes(value, "public_key", where),
        _take_int(value, "period", 1, 2**32 - 1, where),
        _take_int(value, "genesis_time", 0, _LATEST, where),
        _take_bytes(value, "groupHash", where),
    )
    length = G2_LENGTH if scheme == "bls-unchained-g1-rfc9380" else G1_LENGTH
    if len(chain.public) != length:
        raise BeaconError(f"has not {length} bytes", where=f"{where}: public_key")
    if len(chain.seed) != hashlib.sha256().digest_size:
        raise BeaconError("has not 32 bytes", where=f"{where}: groupHash")
    if chain.hash != _take_bytes(value, "hash", where):
        raise BeaconError(f"is not {chain.hash.hex()}, that of the rest", where=f"{where}: hash")
    return chain


def _decode_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = decode_json(data, where)
    except EncodingError as error:
        raise BeaconError(error.message, where=where) from None
    if not isinstance(value, dict):
        raise BeaconError("is no JSON object", where=where)
    return value


def _take_int(value: Mapping[str, Any], name: str, lo: int, hi: int, where: str) -> int:
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not lo <= found <= hi:
        raise BeaconError(f"is no whole number in [{lo}, {hi}]", where=f"{where}: {name}")
    return found


def _take_bytes(
    value: Mapping[str, Any], name: str, where: str, absent: bytes | None = None
) -> bytes:
    found = value.get(name)
    if found in (None, "") and absent is not None:
        return absent
    if not isinstance(found, str) or not re.fullmatch("(?:[0-9a-f]{2}){1,96}", found):
        raise BeaconError("is not bytes in lower-case hexadecimal", where=f"{where}: {name}")
    return bytes.fromhex(found)


# --- checking it


def compute_randomness(beacon: Beacon) -> bytes:
    """SHA-256 of the round's signature, 32 bytes."""
    return hashlib.sha256(beacon.signature).digest()


def verify_beacon(chain: Chain, beacon: Beacon, library: LibraryName = "auto") -> bytes:
    """The randomness (32 bytes) of a round; BeaconError unless ``chain``'s key signed this round.

    A signature by another chain, on another round, or after another one where the scheme chains
    rounds, is of another message or key, and does not hold.
    """
    where = f"round {beacon.round} of {chain.name or chain.hash.hex()}"
    number = beacon.round.to_bytes(8)
    try:
        if chain.scheme == "bls-unchained-g1-rfc9380":
            message = hashlib.sha256(number).digest()
            found = open_library(library)
            verify_in_g1(chain.public, message, beacon.signature, NUL_G1, found)
        else:
            # Of another length it could not be told where it ends and the number begins.
            if len(beacon.previous) != (G2_LENGTH if beacon.round > 1 else len(chain.seed)):
                raise SignatureError("is not that of a round", where="previous_signature")
            message = hashlib.sha256(beacon.previous + number).digest()
            verify_in_g2(chain.public, message, beacon.signature, NUL_G2, open_library(library))
    except SignatureError as error:
        raise BeaconError(f"{error.where}: {error.message}", where=where) from None
    return compute_randomness(beacon)


def find_chain(rule: BeaconRule, given: Chain | None = None) -> Chain:
    """The chain that a rule names; BeaconError where it is neither known nor given."""
    known = list(CHAINS.values()) if given is None else [*CHAINS.values(), given]
    for chain in known:
        if chain.hash == rule.chain:
            return chain
    if given is not None:
        raise BeaconError(
            f"is the chain {given.hash.hex()}, and the rule names {rule.chain.hex()}", where="chain"
        )
    raise BeaconError(
        f"the rule names the chain {rule.chain.hex()}, which is not known here: give what a relay "
        "serves as its /info (--chain)",
        where="chain",
    )


def find_due_round(rule: BeaconRule, chain: Chain, proven: ProvenTime) -> int:
    """The round that the rule gives a claim of this time."""
    return chain.find_round(ceil_time(proven.latest) + rule.delay)


def ceil_time(time: datetime) -> int:
    """A time in whole seconds since 1970, never earlier than it is."""
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return -(-since // timedelta(seconds=1))  # exactly: a float has no microseconds of far years


def prove_time(
    rule: BeaconRule, token: bytes, message: bytes, roots: tuple[bytes, ...]
) -> ProvenTime:
    """The time that ``token`` proves for ``message`` (a claim's digest), by one of ``roots`` that
    the rule takes; TimestampError."""
    taken = tuple(
        root for root in roots if not rule.authorities or identify_root(root) in rule.authorities
    )
    if roots and not taken:
        raise TimestampError(
            "none of the root certificates given is one that the task names: "
            + ", ".join(item.hex() for item in rule.authorities),
            where="authority",
        )
    return verify_token(token, message, taken)


def draw_from_beacon(
    given: BeaconDraw, rule: BeaconRule, digest: bytes, *, pinned: bool
) -> Randomness:
    """The randomness of the round that an auditor names, for the claim of this ``digest``.

    BeaconError unless the round is signed by the chain of the ``rule`` and is, where the claim's
    time is proven, the one that the rule gives; TimestampError for a token that proves nothing
    about this claim.  Without a token it is predictable: nobody can tell what was first.
    ``pinned``: the auditor, or a list that it goes by, held this claim and its token before the
    round.
    """
    chain = find_chain(rule, given.chain)
    value = verify_beacon(chain, given.beacon, given.library)
    use = BeaconUse(
        chain=chain.hash,
        round=given.round,
        signature=given.beacon.signature,
        previous=given.beacon.previous if chain.scheme == "pedersen-bls-chained" else b"",
        at=chain.compute_time(given.round),
        delay=rule.delay,
    )
    name = f"round {given.round} of drand's chain {chain.name or chain.hash.hex()}"
    if given.token is None:
        source = f"{name}; no token shows that the claim existed before it"
        return Randomness(value, source, predictable=True, beacon=use)
    proven = prove_time(rule, given.token, digest, given.roots)
    due, claimed = find_due_round(rule, chain, proven), ceil_time(proven.latest)
    if due != given.round:
        order = "after" if claimed >= use.at else "before"
        raise BeaconError(
            f"round {given.round} is of {format_time(use.at)}, and the claim is proven to have "
            f"existed at {format_time(claimed)} at the latest, which is {order} it: the rule (the "
            f"first round {rule.delay} s or more after the claim) gives round {due}",
            where="round",
        )
    source = (
        f"{name}, the first {rule.delay} s or more after the claim, of {format_time(claimed)} by "
        f"the authority {proven.authority!r:.200}"
    )
    use = replace(use, claimed=claimed, authority=proven.authority)
    return Randomness(value, source, predictable=False, chosen=not pinned, beacon=use)


def format_time(seconds: int) -> str:
    """A time in seconds since 1970 as RFC 3339 has it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
