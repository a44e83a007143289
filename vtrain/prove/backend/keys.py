"""Keys of pinned circuits, made once and cached.

Keys are a function of pinned circuit, SRS and version of ezkl, and are cached under these names.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from vtrain.commit.files import (
    FileEntry,
    making_folder,
    read_entry,
    read_file,
    storing,
    write_atomic,
)
from vtrain.errors import EncodingError, NotProducedError, ProverError, SrsError
from vtrain.limits import LIMITS
from vtrain.prove.backend.ezkl import EZKL_VERSION, Call, Limits, Proof, run_ezkl, verify_proofs
from vtrain.prove.backend.settings import PinnedCircuit, check_measured, make_run_arguments
from vtrain.prove.backend.srs import SRS_POINT, Progress, Srs, open_srs, quiet
from vtrain.wire import cbor
from vtrain.wire.fields import Fields


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
    progress: Progress = quiet,
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
    progress: Progress = quiet,
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
        with storing(target):
            if target.exists():  # broken
                shutil.rmtree(target)
        with making_folder(target) as making:
            _make(making, pinned, srs, small, identity, proving, limits, progress, cancelled)
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
    arguments = {
        "model": str(model),
        "output": str(measured),
        "py_run_args": make_run_arguments(pinned.settings),
    }
    steps = [
        Call("gen_settings", arguments),
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


_WORD: Final = 32


_LAST_POINTS: Final = 128
"""A proof ends with the two points of SHPLONK's opening."""


_MOST_WORDS: Final = 1 << 16


_TRIED: Final = 16
"""Lengths for each process."""


_EOF: Final = "Transcript error"


def _find_proof_length(keys: Keys, pinned: PinnedCircuit, limits: Limits) -> int:
    """How long a proof is to the byte, which ezkl tells nobody and does not check.

    A text of the point (1, 2) over and over reads as points and as numbers alike.  Too short, it
    ends while ezkl reads it; else it gets as far as the last two points, and fails there.  Many
    lengths are tried at a time, as a process takes longer to start than to try them.
    """
    data = bytes(31) + b"\1" + bytes(31) + b"\2"

    def count_short(lengths: Sequence[int]) -> int:
        """How many of these rising numbers of words are too few."""
        found = verify_proofs(
            [Proof((data * (words // 2 + 1))[: words * _WORD], ()) for words in lengths],
            settings=keys.settings,
            vk=keys.vk,
            srs=keys.verifier_srs,
            limits=limits,
        )
        if any(item.holds for item in found):
            raise ProverError(
                "ezkl takes a proof of made-up bytes: it cannot be relied on", where="verify"
            )
        return sum(_EOF in item.reason for item in found)

    low = 2 * len(json.loads(pinned.settings)["module_sizes"]["polycommit"])
    lengths = [low << doubled for doubled in range(1, 6)]
    while (short := count_short(lengths)) == len(lengths):
        low, lengths = lengths[-1], [words << 5 for words in lengths]
        if low > _MOST_WORDS:
            raise ProverError("finds no length of proofs", where="verify")
    while True:
        low, high = lengths[short - 1] if short else low, lengths[short]
        if high - low == 1:
            return high * _WORD + _LAST_POINTS
        apart = -(-(high - low) // _TRIED)
        lengths = [*range(low + apart, high, apart), high]
        short = count_short(lengths)
