"""What hides the values behind KZG commitments: secret field elements after those of each column.

A commitment alone binds and does not hide: tensors of few possible values can be guessed, and each
proof opens the columns that it is of at one public point.  So ``HIDING`` elements stand behind the
values of a column, derived from a *key* of the one state, batch or trace that the column is of.  A
key is derived from a secret and from what it hides: a run that is resumed has the same log, and a
run that takes another course never has the same elements behind other values.

A log holds the ids of keys, so that a solver who discloses a key shows it to be the right one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from vtrain.commit.digest import compute_tensor_digest
from vtrain.commit.files import read_file, storing, write_atomic
from vtrain.commit.kzg_layout import state_names
from vtrain.commit.state import compute_root_of_state
from vtrain.errors import EncodingError
from vtrain.limits import LIMITS
from vtrain.spec import domains
from vtrain.spec.commitment import compute_batch_digest
from vtrain.spec.domains import compute_domain_hash
from vtrain.spec.field import DRAWN, SCALAR_FIELD
from vtrain.wire import cbor, structs
from vtrain.wire.graph import StepGraph
from vtrain.wire.hiding import Hiding, Kind, decode_hiding
from vtrain.wire.proof import HIDING, KEY_LENGTH, ProofSpec

Array = npt.NDArray[Any]

TILING: Final = "tiling 1"
"""The rules by which a step falls into tiles (docs/tiling.md).  Others have another name: the same
elements behind other tiles would show how these differ."""


def draw_hiding(batches: bytes = b"") -> Hiding:
    """New secrets of a solver's; ``batches`` is that of the batches' owner, if there is one."""
    return Hiding(secrets.token_bytes(KEY_LENGTH), batches or secrets.token_bytes(KEY_LENGTH))


class KeyFinder:
    """Finds the keys of the states and batches of a run.

    ``task`` is the digest of its task, and ``proof`` says how columns are committed to.  ``hiding``
    is what is known of its secrets; None where its log has no commitments, so that proofs are for
    those alone who hold the tensors: :func:`derive_own_key`.
    """

    def __init__(
        self,
        task: bytes,
        proof: ProofSpec,
        graph: StepGraph,
        hiding: Hiding | None,
        threads: int = 0,
    ) -> None:
        self._task, self._proof, self._graph, self._threads = task, proof, graph, threads
        self.hiding = hiding

    def of_state(self, step: int, state: Mapping[str, Array]) -> bytes | None:
        """The key of the state after ``step`` steps; None where it is not known."""
        if step == 0 or self.hiding is None:
            return _derive_own_state_key(self._proof, self._graph, step, state, self._threads)
        root = compute_root_of_state(self._graph, state, self._threads)
        return _find(self.hiding, self._task, "state", step, root)

    def of_batch(self, step: int, x: Array, y: Array) -> bytes | None:
        """The key of the batch of ``step`` (from 1), as gathered; None where it is not known."""
        digest = compute_batch_digest(compute_tensor_digest(x), compute_tensor_digest(y))
        if self.hiding is None:
            return derive_own_key(self._proof, "batch", step, digest, (x, y))
        return _find(self.hiding, self._task, "batch", step, digest)


def _find(hiding: Hiding, task: bytes, kind: Kind, index: int, digest: bytes) -> bytes | None:
    """The key of the state or batch of this index, of this state root or batch digest."""
    secret = hiding.states if kind == "state" else hiding.batches
    if secret:
        return derive_key(secret, task, kind, index, digest)
    places = ((found.kind, found.index, found.key) for found in hiding.keys)
    return next((key for of, at, key in places if (of, at) == (kind, index)), None)


def derive_key(secret: bytes, task: bytes, kind: Kind, index: int, digest: bytes) -> bytes:
    """The key (32 bytes) of what ``digest`` is of, in runs of the task of this digest.

    Commitments to the same tensors in another layout or over another SRS are of another task.
    """
    material: dict[str, cbor.Value] = {
        "digest": digest,
        "index": index,
        "kind": kind,
        "secret": secret,
        "task": task,
    }
    return compute_domain_hash(domains.HIDING_KEY, cbor.encode(material))


def derive_trace_key(before: bytes, batch: bytes) -> bytes:
    """The key of a step's trace, from those of the state before the step and of its batch."""
    material: dict[str, cbor.Value] = {"batch": batch, "kind": TILING, "state": before}
    return compute_domain_hash(domains.HIDING_KEY, cbor.encode(material))


def derive_initial_key(
    proof: ProofSpec, graph: StepGraph, state: Mapping[str, Array], threads: int = 0
) -> bytes:
    """The key of a task's initial state, which all solvers begin with: :func:`derive_own_key`."""
    return _derive_own_state_key(proof, graph, 0, state, threads)


def _derive_own_state_key(
    proof: ProofSpec, graph: StepGraph, step: int, state: Mapping[str, Array], threads: int
) -> bytes:
    root = compute_root_of_state(graph, state, threads)
    tensors = [state[name] for name in state_names(graph)]
    return derive_own_key(proof, "state", step, root, tensors)


def derive_own_key(
    proof: ProofSpec, kind: Kind, index: int, digest: bytes, tensors: Sequence[Array]
) -> bytes:
    """The key of what has no secret but itself: whoever holds the ``tensors`` has it.

    They come in the order of commitments.  In place of a task, which is not known before its
    initial state is committed to, the key names layout, k and SRS of ``proof``.
    """
    place = cbor.encode({"circuit": proof.circuit, "k": proof.k, "srs": proof.srs})
    data = b"".join(np.ascontiguousarray(tensor).tobytes() for tensor in tensors)
    secret = compute_domain_hash(domains.HIDING_OWN, data)
    return derive_key(secret, compute_domain_hash(domains.HIDING_OWN, place), kind, index, digest)


def identify_key(key: bytes) -> bytes:
    """What a log says of a key: 32 bytes that tell nothing else of it."""
    return compute_domain_hash(domains.HIDING_ID, key)


def derive_elements(key: bytes, column: int) -> tuple[int, ...]:
    """The ``HIDING`` elements behind column number ``column`` of what ``key`` hides."""
    material = cbor.encode({"column": column, "key": key})
    stream = blake3(material, derive_key_context=domains.HIDING).digest(length=DRAWN * HIDING)
    return tuple(
        int.from_bytes(stream[at : at + DRAWN], "little") % SCALAR_FIELD
        for at in range(0, DRAWN * HIDING, DRAWN)
    )


def encode_elements(elements: Iterable[int]) -> bytes:
    """Elements as commitments take them: modulo the order, 32 bytes each, little-endian."""
    return b"".join((element % SCALAR_FIELD).to_bytes(32, "little") for element in elements)


def read_hiding(path: Path, root: Path | None = None) -> Hiding:
    """What a file says of hiding; NotProducedError, EncodingError."""
    data = read_file(path, LIMITS.hiding_bytes, root=root)
    try:
        return decode_hiding(data)
    except EncodingError as error:
        raise EncodingError(
            f"is no file of hiding secrets or keys: {error.where}: {error.message}", where=str(path)
        ) from None


def read_batch_secret(path: Path) -> bytes:
    """What hides the batches that their owner signed, 32 bytes; NotProducedError, EncodingError."""
    found = read_hiding(path)
    if not found.batches or found.states or found.keys:
        raise EncodingError("is not what an owner of batches hands over", where=str(path))
    return found.batches


def make_batch_secret(path: Path) -> bytes:
    """The secret in a file of an owner's, or a new one that is written there."""
    with storing(path):
        if os.path.lexists(path):
            return read_batch_secret(path)
    made = Hiding(batches=secrets.token_bytes(KEY_LENGTH))
    write_atomic(path, [structs.encode(made)], secret=True)
    return made.batches
