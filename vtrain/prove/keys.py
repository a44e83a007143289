"""From a circuit to bytes that pin it, to what it will cost, and to its keys.

A circuit is pinned by its ONNX graph and its settings.  The settings are not those that
``gen_settings`` writes, which differ from run to run and count cells that the layout does not
have (an input is already assigned in the column that commits to it): :func:`make_settings` writes
them, as a function of the circuit, and whoever makes keys compares them with what ezkl sees in
the graph.  Everything that soundness rests on stands in them (docs/proofs.md): no Freivalds of
ezkl's, no range check of ezkl's, the one look-up table with its exponent and range (none without
limbs), scales zero, every input and output committed to.

Keys are a function of pinned circuit, SRS and version of ezkl, and are cached under these names.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from blake3 import blake3

from vtrain.commit.files import FileEntry, read_entry, read_file, storing, sync_folder, write_atomic
from vtrain.errors import (
    CircuitError,
    EncodingError,
    NotProducedError,
    ProverError,
    SrsError,
)
from vtrain.limits import LIMITS
from vtrain.prove.circuit import Circuit, find_step_exponent
from vtrain.prove.ezkl_adapter import EZKL_VERSION, Call, Limits, Proof, run_ezkl, verify_proof
from vtrain.prove.srs import SRS_POINT, Progress, Srs, open_srs
from vtrain.spec.domains import CIRCUIT, compute_domain_hash
from vtrain.wire import cbor
from vtrain.wire.fields import Fields
from vtrain.wire.json_text import decode_json

BLINDING: Final = 5
"""halo2's blinding factors of these circuits: no column is read at more than three places."""
_TABLE_PAD: Final = 3
"""Rows that ezkl keeps free below a look-up table, beside the blinding factors."""
MAX_BLOCKS: Final = 9
"""Of columns, as many as the largest tile fills; more make proofs longer than a larger k does."""
_FREE_ROWS: Final = 8
"""Rows that stay free: ezkl begins some operations in a row of their own, which no count of cells
sees, and makes a second block of columns just before the first is full."""


def count_usable(k: int) -> int:
    """The most elements of one committed vector: see ``ProofSpec.usable``."""
    return (1 << k) - BLINDING - 3


@dataclass(frozen=True)
class PinnedCircuit:
    """What a circuit is to everyone: ONNX graph and settings as bytes, k, a digest (32 bytes)."""

    onnx: bytes
    settings: bytes
    k: int
    digest: bytes


def pin(circuit: Circuit, k: int) -> PinnedCircuit:
    """Pin a circuit for 2^k rows; the same for the same circuit, everywhere and without ezkl.

    CircuitError for what does not fit: a table or a vector of more than one column, more than
    ``MAX_BLOCKS`` blocks of cells.
    """
    _check_size(circuit, k)
    onnx, settings = circuit.to_onnx(), encode_settings(circuit, k)
    digest = compute_domain_hash(
        CIRCUIT,
        cbor.encode(
            {
                "ezkl": EZKL_VERSION,
                "onnx": blake3(onnx).digest(),
                "settings": blake3(settings).digest(),
            }
        ),
    )
    return PinnedCircuit(onnx, settings, k, digest)


def _check_size(circuit: Circuit, k: int) -> None:
    most = (1 << k) - BLINDING - _TABLE_PAD
    if circuit.span > most:
        raise CircuitError(
            f"a table of {circuit.span} entries needs more than one column of {most}", where="k"
        )
    for name in circuit.columns:
        if not 1 <= circuit.length(name) <= count_usable(k):
            raise CircuitError(
                f"has {circuit.length(name)} elements; a column takes 1 to {count_usable(k)}",
                where=name,
            )
    if count_blocks(circuit, k) > MAX_BLOCKS:
        raise CircuitError(
            f"{circuit.cells} cells take {count_blocks(circuit, k)} blocks of "
            f"{circuit.inner_columns} columns, more than {MAX_BLOCKS}; a larger k takes fewer",
            where="k",
        )


def count_blocks(circuit: Circuit, k: int) -> int:
    """Blocks of ``inner_columns`` columns that the cells of a circuit fill at 2^k rows."""
    return -(-circuit.cells // _count_cells(circuit, k))


def _count_cells(circuit: Circuit, k: int) -> int:
    return circuit.inner_columns * ((1 << k) - BLINDING - 1 - _FREE_ROWS)


_VISIBILITY: Final = {"Fixed": "fixed", "KZGCommit": "polycommit"}
_MEASURED: Final = frozenset(
    {"einsum_params", "num_rows", "timestamp", "total_assignments", "total_const_size"}
)
"""Settings in which ours differ from what ``gen_settings`` measures, on purpose."""


def make_settings(circuit: Circuit, k: int) -> dict[str, Any]:
    """The settings of a circuit, as ezkl reads them.

    ``total_assignments`` decides nothing but the number of blocks of columns: it is the circuit's
    own count of cells, or just under what its blocks hold.  A layout that needs more has no place
    for it, in ``setup`` already.
    ``einsum_params`` serve only the Freivalds that is off.  One column takes all constants, which
    are there where rows are filled up with them.
    """
    inputs, outputs = circuit.inputs, circuit.outputs
    lookups = []
    if circuit.span:
        # As serde writes a binary32: the shortest decimal that gives it back.
        exponent = float(str(np.float32(find_step_exponent(circuit.span))))
        lookups.append({"Pow": {"scale": 1.0, "a": exponent}})
    blocks = count_blocks(circuit, k)
    assigned = circuit.cells if blocks == 1 else blocks * _count_cells(circuit, k)
    return {
        "run_args": {
            "input_scale": 0,
            "param_scale": 0,
            "rebase_scale": None,
            "scale_rebase_multiplier": 1,
            "lookup_range": [1, max(1, circuit.span)],
            "logrows": k,
            "num_inner_cols": circuit.inner_columns,
            "variables": [["batch_size", 1]],
            "input_visibility": "KZGCommit",
            "output_visibility": "KZGCommit",
            "param_visibility": "Fixed",
            "rebase_frac_zero_constants": False,
            "check_mode": "UNSAFE",
            "decomp_base": 256,
            "decomp_legs": 2,
            "bounded_log_lookup": False,
            "ignore_range_check_inputs_outputs": True,
            "epsilon": 2.220446049250313e-16,
            "disable_freivalds": True,
        },
        "num_rows": assigned // circuit.inner_columns + 1,
        "total_assignments": assigned,
        "total_const_size": int(circuit.pads),
        "total_dynamic_col_size": 0,
        "max_dynamic_input_len": 0,
        "num_dynamic_lookups": 0,
        "num_shuffles": 0,
        "total_shuffle_col_size": 0,
        "einsum_params": {"equations": [], "total_einsum_col_size": 0},
        "model_instance_shapes": [],
        "model_output_scales": [0] * len(outputs),
        "model_input_scales": [0] * len(inputs),
        "module_sizes": {
            "polycommit": [circuit.length(name) for name in circuit.columns],
            "poseidon": [0, [0]],
        },
        "required_lookups": lookups,
        "required_range_checks": [],
        "check_mode": "UNSAFE",
        "version": EZKL_VERSION,
        "num_blinding_factors": None,
        "timestamp": 0,
        "input_types": ["F64"] * len(inputs),
        "output_types": ["F64"] * len(outputs),
    }


def encode_settings(circuit: Circuit, k: int) -> bytes:
    """The one text of :func:`make_settings`."""
    return _encode_json(make_settings(circuit, k))


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def check_settings(settings: bytes, circuit: Circuit, k: int) -> None:
    """CircuitError, naming the field, for settings that are not those of the circuit."""
    if settings == encode_settings(circuit, k):
        return
    try:
        found = decode_json(settings, "settings")
    except EncodingError:
        raise CircuitError("are not JSON", where="settings") from None
    if not isinstance(found, dict):
        raise CircuitError("are not an object", where="settings")
    _compare(found, make_settings(circuit, k), "settings")
    raise CircuitError("are not in the canonical form", where="settings")


def check_measured(measured: Mapping[str, Any], settings: bytes) -> None:
    """CircuitError, naming the field, unless ezkl sees in the graph what the settings pin.

    ``measured`` is what ``gen_settings`` writes.  That the one look-up of a circuit with limbs is
    still in the graph, and that nothing else needs a table, is seen here.
    """
    pinned = json.loads(settings)
    _compare(
        {name: value for name, value in measured.items() if name not in _MEASURED},
        {name: value for name, value in pinned.items() if name not in _MEASURED},
        "gen_settings",
    )
    most = count_usable(pinned["run_args"]["logrows"]) if pinned["total_const_size"] else 0
    if measured["total_const_size"] > most:
        raise CircuitError(
            f"{measured['total_const_size']} constants have columns for {most}",
            where="gen_settings.total_const_size",
        )
    if measured["einsum_params"]["total_einsum_col_size"]:
        raise CircuitError("there are columns of Freivalds", where="gen_settings.einsum_params")


def _compare(found: Any, expected: Any, where: str) -> None:
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted({*found, *expected}):
            if name not in found or name not in expected:
                word = "missing" if name in expected else "unknown"
                raise CircuitError(f"the field is {word}", where=f"{where}.{name}")
            _compare(found[name], expected[name], f"{where}.{name}")
    elif type(found) is not type(expected) or found != expected:
        raise CircuitError(f"is {found!r}, not {expected!r}", where=where)


# --- what it will cost


@dataclass(frozen=True)
class Estimate:
    """What a circuit takes: ``memory`` and ``proving_key`` in bytes, ``columns`` committed to.

    ``memory`` is the resident memory of setup and of proving, whichever is more.
    """

    cells: int
    rows: int
    columns: int
    memory: int
    proving_key: int

    def __str__(self) -> str:
        return (
            f"{self.cells} cells in {self.rows} rows, {self.columns} committed columns: "
            f"about {self.memory / 2**30:.1f} GiB of memory, "
            f"{self.proving_key / 2**30:.1f} GiB of proving key"
        )


_MEMORY_FIXED: Final = 64 << 20
_MEMORY_PER_KEY: Final = 2.5


def estimate(circuit: Circuit, k: int) -> Estimate:
    """What setting up and proving at 2^k rows takes, by a formula fitted to measurements.

    Whole steps take the blocks of columns that it finds least for: another formula may mean other
    circuits, with other digests.

    halo2 keeps each fixed and each permuted column three times: values, coefficients, and values on
    a domain as many times as large as the gates' degree asks for, which is 2 more than there are
    inner columns.  So 3 inner columns are the cheapest for each cell, and 4 take twice 3: rather
    take several blocks of up to 3.
    """
    columns, inner = len(circuit.columns), circuit.inner_columns
    extension = max(4, 1 << inner.bit_length())
    kept = columns + count_blocks(circuit, k) * (4 * inner + 5) + 6
    key = ((2 + extension) * kept + 3 * extension) * (32 << k)
    return Estimate(
        circuit.cells,
        -(-circuit.cells // inner),
        columns,
        _MEMORY_FIXED + int(_MEMORY_PER_KEY * key),
        key,
    )


def require_fits(estimated: Estimate, memory: int) -> None:
    """CircuitError with the estimate unless it fits ``memory`` bytes."""
    if estimated.memory > memory:
        raise CircuitError(
            f"{estimated}; {memory / 2**30:.1f} GiB are allowed (--memory)", where="memory"
        )


# --- keys


@dataclass(frozen=True)
class Keys:
    """Keys in a folder: of the pinned circuit ``circuit`` (digest), over the SRS of this SHA-256.

    ``vk_digest`` is the BLAKE3 of the verifying key; ``proof_length`` the exact bytes of a proof.
    """

    folder: Path
    circuit: bytes
    srs: bytes
    vk_digest: bytes
    proof_length: int

    @property
    def settings(self) -> Path:
        """The pinned settings."""
        return self.folder / "settings.json"

    @property
    def compiled(self) -> Path:
        """The circuit as ezkl compiled it; there beside a proving key only."""
        return self.folder / "circuit"

    @property
    def vk(self) -> Path:
        """The verifying key."""
        return self.folder / "vk"

    @property
    def pk(self) -> Path:
        """The proving key, unless these are keys to verify with."""
        return self.folder / "pk"

    @property
    def verifier_srs(self) -> Path:
        """What verifying needs of the SRS: :func:`cut_srs`."""
        return self.folder / "srs"


_MANIFEST: Final = "keys"
_NAMES: Final[Mapping[bool, tuple[str, ...]]] = {
    True: ("circuit", "pk", "settings.json", "srs", "vk"),
    False: ("settings.json", "srs", "vk"),
}
"""Files of a folder with a proving key and of one without."""

_quiet: Final[Progress] = lambda what, done, total: None  # noqa: E731 - named for the signatures


def default_cache() -> Path:
    """Where keys are kept unless told otherwise."""
    return Path.home() / ".cache" / "vtrain" / "keys"


def load_keys(
    pinned: PinnedCircuit,
    srs: Path,
    cache: Path,
    limits: Limits,
    *,
    check: Callable[[], None] = lambda: None,
    progress: Progress = _quiet,
    cancelled: threading.Event | None = None,
) -> Keys:
    """Keys to prove and verify with, made once and then found in ``cache``.

    ``check`` is called before keys are made, if they are: what it raises prevents that.  Safe for
    several processes at once; what is broken or half made is made anew.  SrsError for a file that
    is no SRS or too small for the circuit; CircuitError when ezkl sees in the graph something else
    than is pinned; ProverError when it fails; StorageError.
    """
    return _load(pinned, srs, cache, limits, True, check, progress, cancelled)


def load_verifying_key(
    pinned: PinnedCircuit,
    srs: Path,
    cache: Path,
    limits: Limits,
    *,
    check: Callable[[], None] = lambda: None,
    progress: Progress = _quiet,
    cancelled: threading.Event | None = None,
) -> Keys:
    """As :func:`load_keys`, but the proving key, which is large, is not kept."""
    return _load(pinned, srs, cache, limits, False, check, progress, cancelled)


def _load(
    pinned: PinnedCircuit,
    srs: Path,
    cache: Path,
    limits: Limits,
    proving: bool,
    check: Callable[[], None],
    progress: Progress,
    cancelled: threading.Event | None,
) -> Keys:
    small, identity = cut_srs(srs)
    if identity.k < pinned.k:
        raise SrsError(
            f"is for k up to {identity.k}, not {pinned.k}: take a file for that k", where=str(srs)
        )
    stem = f"{pinned.digest.hex()}-{identity.sha256.hex()}-{EZKL_VERSION}"
    whole, target = cache / f"{stem}-prove", cache / f"{stem}-{'prove' if proving else 'verify'}"
    for folder in (whole, target):
        found = _read(folder, pinned, identity, folder == whole)
        if found is not None:
            return found
    with storing(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with _hold(cache / f".{target.name}.lock", cancelled):
        found = _read(target, pinned, identity, proving)  # another process may have made it
        if found is not None:
            return found
        check()
        making = cache / f".{target.name}.tmp"
        with storing(making):
            for leftover in (making, target):
                if leftover.exists():
                    shutil.rmtree(leftover)
            making.mkdir()
        try:
            _make(making, pinned, srs, small, identity, proving, limits, progress, cancelled)
            with storing(target):
                making.rename(target)
                sync_folder(cache)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        found = _read(target, pinned, identity, proving)
        if found is None:
            raise ProverError("cannot be read back", where=str(target))
        return found


def _make(
    folder: Path,
    pinned: PinnedCircuit,
    srs: Path,
    small: bytes,
    identity: Srs,
    proving: bool,
    limits: Limits,
    progress: Progress,
    cancelled: threading.Event | None,
) -> None:
    """Fill a folder with keys and their manifest, durably."""
    keys = Keys(folder, pinned.digest, identity.sha256, b"", 0)
    model, measured = folder / "model.onnx", folder / "measured.json"
    with storing(folder):
        model.write_bytes(pinned.onnx)
    write_atomic(keys.settings, [pinned.settings])
    write_atomic(keys.verifier_srs, [small])
    arguments = dict(json.loads(pinned.settings)["run_args"])
    for name in ("check_mode", "epsilon", "rebase_scale", "variables"):
        del arguments[name]  # as they are by default, which the comparison sees
    for name in ("input_visibility", "output_visibility", "param_visibility"):
        arguments[name] = _VISIBILITY[arguments[name]]
    steps = [
        Call(
            "gen_settings",
            {"model": str(model), "output": str(measured), "py_run_args": arguments},
        ),
        Call(
            "compile_circuit",
            {
                "model": str(model),
                "compiled_circuit": str(keys.compiled),
                "settings_path": str(keys.settings),
            },
        ),
        Call(
            "setup",
            {
                "model": str(keys.compiled),
                "vk_path": str(keys.vk),
                "pk_path": str(keys.pk),
                "srs_path": str(srs),
            },
        ),
    ]
    total = len(steps) + 1
    progress("keys", 0, total)
    run_ezkl(steps, limits, cancelled=cancelled, watch=lambda done: progress("keys", done, total))
    with storing(measured):
        check_measured(json.loads(measured.read_bytes()), pinned.settings)
    length = _find_proof_length(keys, pinned, limits)
    with storing(folder):
        for path in folder.iterdir():
            if path.name not in _NAMES[proving]:
                path.unlink()
                continue
            with path.open("rb") as file:
                os.fsync(file.fileno())
    entries = {name: read_entry(folder / name, sys.maxsize) for name in _NAMES[proving]}
    write_atomic(folder / _MANIFEST, [_encode_manifest(pinned, identity, length, entries)])
    progress("keys", total, total)


def _encode_manifest(
    pinned: PinnedCircuit, identity: Srs, length: int, entries: Mapping[str, FileEntry]
) -> bytes:
    files: dict[str, cbor.Value] = {
        name: {"digest": entry.digest, "size": entry.size} for name, entry in entries.items()
    }
    body = cbor.encode(
        {
            "circuit": pinned.digest,
            "ezkl": EZKL_VERSION,
            "files": files,
            "proof_length": length,
            "srs": identity.sha256,
        }
    )
    return body + blake3(body).digest()


def find_srs(folder: Path) -> bytes | None:
    """SHA-256 of the SRS that the keys in a folder were made with; None where it does not say."""
    try:
        data = read_file(folder / _MANIFEST, LIMITS.key_manifest_bytes)
        body = data[:-32]
        if blake3(body).digest() != data[-32:]:
            return None
        return Fields(cbor.decode(body), "keys").bytes("srs", 32)
    except (EncodingError, NotProducedError):
        return None


def _read(folder: Path, pinned: PinnedCircuit, identity: Srs, proving: bool) -> Keys | None:
    """The keys in a folder; none where a byte of them is not as it was made.

    Of the proving key only the size is looked at: what a broken one proves does not verify.
    """
    try:
        data = read_file(folder / _MANIFEST, LIMITS.key_manifest_bytes)
        body, digest = data[:-32], data[-32:]
        if blake3(body).digest() != digest:
            return None
        fields = Fields(cbor.decode(body), "keys")
        length = fields.int("proof_length", 1, 1 << 32)
        files, entries = fields.map("files"), {}
        for name in _NAMES[proving]:
            entry = files.map(name)
            entries[name] = FileEntry(entry.int("size", 0, 1 << 48), entry.bytes("digest"))
        same = {
            "circuit": pinned.digest,
            "ezkl": EZKL_VERSION,
            "srs": identity.sha256,
        }
        if any(fields.take(name) != value for name, value in same.items()):
            return None
        for name, made in entries.items():
            path = folder / name
            if name == "pk":
                with storing(path):
                    if not path.is_file() or path.stat().st_size != made.size:
                        return None
            elif read_entry(path, made.size) != made:
                return None
    except (EncodingError, NotProducedError):
        return None
    return Keys(folder, pinned.digest, identity.sha256, entries["vk"].digest, length)


@contextmanager
def _hold(path: Path, cancelled: threading.Event | None) -> Iterator[None]:
    """Hold an exclusive lock, waiting for whoever holds it; ProverError when cancelled."""
    pause = cancelled or threading.Event()
    with storing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        while True:
            with storing(path):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    pass
            if pause.wait(_LOCK_SECONDS):
                raise ProverError("cancelled", where=str(path))
        yield
    finally:
        os.close(handle)


_LOCK_SECONDS: Final = 0.1


def cut_srs(path: Path) -> tuple[bytes, Srs]:
    """An SRS of k = 1 from a larger one, enough to verify with, and which file it was.

    Verifying uses the generator and the two points of the second group (halo2's
    ``VerifierSHPLONK``).  The Lagrange points are never used: the powers stand in their place.
    SrsError for a file of another length.
    """
    with open_srs(path) as reader:
        powers = reader.read(2 * SRS_POINT)
        reader.skip(reader.left - _TAIL)
        tail = reader.read(_TAIL)
        return (1).to_bytes(4, "little") + powers + powers + tail, reader.finish()


_TAIL: Final = 256

# --- the exact length of a proof

_WORD: Final = 32
_LAST_POINTS: Final = 128
"""A proof ends with the two points of SHPLONK's opening."""
_MOST_WORDS: Final = 1 << 16
_EOF: Final = "Transcript error"


def _find_proof_length(keys: Keys, pinned: PinnedCircuit, limits: Limits) -> int:
    """How long a proof is to the byte, which ezkl tells nobody and does not check.

    A text of the point (1, 2) over and over reads as points and as numbers alike.  Too short, it
    ends while ezkl reads it; else it gets as far as the last two points, and fails there.
    """

    def is_short(words: int) -> bool:
        data = bytes(31) + b"\1" + bytes(31) + b"\2"
        fake = (data * (words // 2 + 1))[: words * _WORD]
        found = verify_proof(
            Proof(fake, ()),
            settings=keys.settings,
            vk=keys.vk,
            srs=keys.verifier_srs,
            limits=limits,
        )
        if found.holds:
            raise ProverError(
                "ezkl takes a proof of made-up bytes: it cannot be relied on", where="verify"
            )
        return _EOF in found.reason

    low = 2 * len(json.loads(pinned.settings)["module_sizes"]["polycommit"])
    high = 4 * low
    while is_short(high):
        low, high = high, 2 * high
        if high > _MOST_WORDS:
            raise ProverError("finds no length of proofs", where="verify")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_short(middle) else (low, middle)
    return high * _WORD + _LAST_POINTS
