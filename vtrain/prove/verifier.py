"""Whether a proof shows a statement: the commitments in it, then the proof itself.

``ezkl.verify`` says that some witness of the circuit is behind the commitments that a proof begins
with; what it is a proof *of* is said by comparing each of them.  A circuit's columns are

- given: their commitments are known from outside, such as from a run's log;
- ``private`` (limbs, hints) and ``late``: the prover's own;
- ``computed``: the verifier computes it and commits to it itself.  It ends with the challenge, one
  element, which is drawn from the commitments to the given columns, to ``private`` and to
  ``computed`` as it is before (with zeros for the challenge), and from the claim, by a hash (Fiat
  and Shamir): all of these were settled before it was known; and
- ``answers``: ones and zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from blake3 import blake3

from vtrain.commit.hiding import encode_elements
from vtrain.errors import CircuitError
from vtrain.prove.backend.ezkl import Limits, Proof, Verification, require_extra, verify_proof
from vtrain.prove.backend.keys import Keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, PinnedCircuit, check_settings
from vtrain.prove.backend.srs import SRS_POINT
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.spec.domains import PROOF_CHALLENGE
from vtrain.spec.field import DRAWN, SCALAR_FIELD
from vtrain.wire.proof import Hash

Expansion = Callable[[int], Sequence[int]]
"""A circuit's challenge from the element drawn: this first, then what the verifier computes from it
and from what it knows of the statement.  That the conditions are sound with such a challenge is for
the circuit to say."""


def commit_given(
    commit_key: CommitKey,
    given: Mapping[str, Ints],
    hiding: Mapping[str, Sequence[int]],
    *,
    threads: int = 0,
) -> dict[str, bytes]:
    """The commitments to given vectors, each with what hides it."""
    return {
        name: commit_vector(commit_key, values, hiding.get(name, ()), threads=threads)
        for name, values in given.items()
    }


def verify(
    circuit: Circuit,
    pinned: PinnedCircuit,
    keys: Keys,
    proof: bytes,
    *,
    expected: Mapping[str, bytes],
    parameters: Mapping[str, Ints],
    commit_key: CommitKey,
    limits: Limits,
    claim: bytes,
    expansion: Expansion | None = None,
    hash: Hash = "blake3",
) -> Verification:
    """Whether ``proof`` shows that the circuit's conditions hold of what is committed to.

    ``expected`` has the commitments to the given vectors, ``parameters`` what the verifier knows of
    the one statement, ``claim`` the digest of the claim that it must have been made for, ``hash``
    what the challenge is drawn by.  The proof
    may be any bytes: what is wrong with it is the reason in the verdict.  CircuitError when the
    other arguments do not belong together; StorageError and ProverError are no verdict.
    """
    check_fit(circuit, pinned, keys, commit_key)
    require_given(circuit, expected)
    if len(proof) != keys.proof_length or len(proof) < SRS_POINT * len(circuit.columns):
        reason = f"the proof has {len(proof)} bytes, not {keys.proof_length}"
        return Verification(False, reason)
    read = Proof(proof, ())
    found = read_commitments(circuit, read)
    wanted = dict(expected)
    if wrong := _find_difference(found, wanted):
        return Verification(False, f"commitment of {wrong} is not the one expected")
    own = commit_known(
        circuit,
        pinned,
        found,
        parameters,
        commit_key,
        expansion,
        claim=claim,
        hash=hash,
        threads=limits.threads,
    )
    if wrong := _find_difference(found, own):
        return Verification(False, f"commitment of {wrong} is not the one computed")
    return verify_proof(
        read, settings=keys.settings, vk=keys.vk, srs=keys.verifier_srs, limits=limits
    )


def check_fit(circuit: Circuit, pinned: PinnedCircuit, keys: Keys, commit_key: CommitKey) -> None:
    """CircuitError unless all four belong to one circuit at one k over one SRS."""
    if keys.circuit != pinned.digest:
        raise CircuitError("the keys are of another circuit", where=str(keys.folder))
    if keys.srs != commit_key.srs.sha256:
        raise CircuitError("the keys are over another SRS", where=str(keys.folder))
    if (commit_key.k, commit_key.blinding) != (pinned.k, BLINDING):
        raise CircuitError(
            f"commits to columns for k = {commit_key.k} with {commit_key.blinding} blinding "
            f"factors, not {pinned.k} with {BLINDING}",
            where="commit key",
        )
    check_settings(pinned.settings, circuit, pinned.k)


def require_given(circuit: Circuit, expected: Mapping[str, bytes]) -> None:
    """CircuitError unless ``expected`` has a commitment to each vector given to ``circuit``."""
    for name in circuit.given:
        if name not in expected:
            raise CircuitError(
                "is given to the circuit, and has no expected commitment", where=name
            )
    for name in expected:
        if name not in circuit.given:
            raise CircuitError(
                "is no vector given to the circuit: expect nothing of it", where=name
            )


def read_commitments(circuit: Circuit, proof: Proof) -> dict[str, bytes]:
    """The commitments that a proof begins with, by column; ProofError for too short a proof."""
    names = circuit.columns
    return dict(zip(names, proof.commitments(len(names)), strict=True))


def _find_difference(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> str | None:
    return next((name for name, value in wanted.items() if found[name] != value), None)


def commit_known(
    circuit: Circuit,
    pinned: PinnedCircuit,
    found: Mapping[str, bytes],
    parameters: Mapping[str, Ints],
    commit_key: CommitKey,
    expansion: Expansion | None = None,
    *,
    claim: bytes,
    hash: Hash = "blake3",
    threads: int = 0,
) -> dict[str, bytes]:
    """The commitments to what the verifier computes: ``computed`` and ``answers``; the challenge
    follows from the commitments ``found`` in a proof and the claim."""
    public = {"public": circuit.compute_public(parameters)}
    before = commit_columns(circuit, commit_key, circuit.lay_out(public), threads=threads)
    settled = {**found, **before}
    drawn = draw_challenge(circuit, pinned, settled, expansion, claim=claim, hash=hash)
    columns = circuit.lay_out({**public, "challenge": np.asarray(drawn, dtype=object)})
    return {
        **commit_columns(circuit, commit_key, columns, threads=threads),
        **commit_answers(circuit, commit_key, threads=threads),
    }


def commit_columns(
    circuit: Circuit, commit_key: CommitKey, columns: Mapping[str, Ints], *, threads: int = 0
) -> dict[str, bytes]:
    """The commitment to each column of a circuit, as :meth:`Circuit.lay_out` has them."""
    found = {}
    for name, column in columns.items():
        values, hiding = np.split(column, [circuit.length(name)])
        found[name] = commit_vector(commit_key, values, hiding.tolist(), threads=threads)
    return found


def commit_vector(
    commit_key: CommitKey, values: Ints, hiding: Sequence[int] = (), *, threads: int = 0
) -> bytes:
    """The commitment to integers of any size, as elements of the field, and to those that hide
    them in the rows behind."""
    behind = encode_elements(hiding)
    try:
        narrow = np.asarray(values).reshape(-1).astype(np.int64)
    except OverflowError:
        scalars = encode_elements(int(value) for value in np.reshape(values, -1))
        return commit_key.commit_scalars(scalars + behind, threads=threads)
    fitting = (
        kind
        for kind in (np.int8, np.int16, np.int32)
        if narrow.size and np.iinfo(kind).min <= narrow.min() and narrow.max() <= np.iinfo(kind).max
    )
    # Narrow ones take a fraction of the time.
    narrow = narrow.astype(next(fitting, np.int64))
    (commitment,) = commit_key.commit_many([narrow], [behind], threads=threads)
    return commitment


def draw_challenge(
    circuit: Circuit,
    pinned: PinnedCircuit,
    commitments: Mapping[str, bytes],
    expansion: Expansion | None = None,
    *,
    claim: bytes,
    hash: Hash = "blake3",
) -> tuple[int, ...]:
    """A circuit's challenge, from the commitments to the columns ``circuit.settled`` and the claim.

    ``computed`` is there as it is before the challenge is known.  CircuitError for an expansion to
    another number of elements than the circuit has.
    """
    length = circuit.length("challenge")
    if not length:
        return ()
    settled = (commitments[name] for name in circuit.settled)
    drawn = derive_challenge(pinned.digest, settled, claim=claim, hash=hash)
    found = (drawn,) if expansion is None else tuple(expansion(drawn))
    if len(found) != length or found[0] != drawn:
        raise CircuitError(
            f"expands to {len(found)} elements, not to itself and {length - 1} more",
            where="challenge",
        )
    return found


def derive_challenge(
    circuit: bytes,
    commitments: Iterable[bytes],
    *,
    claim: bytes,
    hash: Hash = "blake3",
) -> int:
    """The field element drawn from a circuit's digest (32 bytes) and commitments (64 bytes each).

    ``claim`` is the digest of the claim that the proof is made for (32 bytes), empty only for a
    proof that is of no run: what one solver proves serves no other who copies the log.

    The message m is digest, claim and commitments, one after the other; the circuit says how many
    there are, and of which columns.  "blake3": 48 bytes of the extended output in derive_key mode,
    little-endian.  "keccak256": keccak256(0x00 || D || m) and keccak256(0x01 || D || m), 64 bytes,
    big-endian, where D is the keccak256 of the domain.  Both modulo the prime.
    """
    message = circuit + claim + b"".join(commitments)
    if hash == "blake3":
        stream = blake3(message, derive_key_context=PROOF_CHALLENGE).digest(length=DRAWN)
        return int.from_bytes(stream, "little") % SCALAR_FIELD
    domain = keccak256(PROOF_CHALLENGE.encode())
    halves = (keccak256(bytes([half]) + domain + message) for half in (0, 1))
    return int.from_bytes(b"".join(halves), "big") % SCALAR_FIELD


def keccak256(data: bytes) -> bytes:
    """Keccak with the padding of Ethereum, which is not that of SHA-3."""
    require_extra("Crypto")
    from Crypto.Hash import keccak

    return bytes(keccak.new(data=data, digest_bits=256).digest())


def commit_answers(
    circuit: Circuit, commit_key: CommitKey, *, threads: int = 0
) -> dict[str, bytes]:
    """The commitments to what the outputs must be."""
    return {
        name: commit_key.commit_ones(int(wanted.sum(dtype=np.int64)), threads=threads)
        for name, wanted in circuit.compute_answers().items()
    }
