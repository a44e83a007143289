"""The folder of an attested run: written beside a float training run, step by step.

config.json                 what the loop was told, and by which versions it ran
log.bin                     a framed record for each step
checkpoints/%012d.cbor      the listing of the checkpoint saved after that step
attestation.cbor            what is signed, written last
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from vtrain.attest.attested import compute_attested_root, sign_attestation
from vtrain.attest.claims import generate_run_id
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.commit.files import open_file, read_entry, read_file, storing, write_atomic
from vtrain.commit.log import frame, iterate_frames
from vtrain.errors import EncodingError, RunError, VtrainError
from vtrain.limits import LIMITS
from vtrain.train.layout import ATTESTATION, RunPaths
from vtrain.wire import structs
from vtrain.wire.attested import (
    ATTESTED_HEADER,
    MAX_FILES,
    MAX_RECORD,
    Attestation,
    AttestedFile,
    AttestedStep,
    Listing,
    decode_step,
)
from vtrain.wire.json_text import decode_json

_MOST_CONFIG: Final = 1 << 24


@dataclass(frozen=True)
class AttestedPaths:
    """Paths of an attested run's files; nothing is read."""

    root: Path

    @property
    def config(self) -> Path:
        """What the loop was told."""
        return self.root / "config.json"

    @property
    def log(self) -> Path:
        """Framed records."""
        return self.root / "log.bin"

    @property
    def attestation(self) -> Path:
        """What is signed; absent while the run goes on."""
        return self.root / ATTESTATION

    def listing(self, step: int) -> Path:
        """The files of the checkpoint saved after ``step``."""
        return self.root / "checkpoints" / f"{step:012d}.cbor"

    def is_there(self) -> bool:
        """Whether the folder holds an attested run, or the beginning of one, and no other."""
        if os.path.lexists(RunPaths(self.root).task):
            return False
        if os.path.lexists(self.attestation):
            return True
        try:
            with open_file(self.log, LIMITS.log_bytes, root=self.root, growing=True) as file:
                return file.read(len(ATTESTED_HEADER)) == ATTESTED_HEADER
        except VtrainError:
            return False

    def read_config(self) -> bytes:
        """The bytes of config.json."""
        return read_file(self.config, _MOST_CONFIG, root=self.root)

    def read_records(self) -> list[bytes]:
        """The encoded records; EncodingError names one that is cut off."""
        with open_file(self.log, LIMITS.log_bytes, root=self.root) as file:
            frames = iterate_frames(file, header=ATTESTED_HEADER, longest=MAX_RECORD)
            return [data for _, data in frames]

    def read_whole_records(self) -> tuple[list[bytes], EncodingError | None]:
        """The encoded records up to the first fault, as a torn write leaves it, and the fault."""
        found: list[bytes] = []
        with open_file(self.log, LIMITS.log_bytes, root=self.root) as file:
            try:
                for _, data in iterate_frames(file, header=ATTESTED_HEADER, longest=MAX_RECORD):
                    found.append(data)
            except EncodingError as fault:
                return found, fault
        return found, None

    def read_listing(self, step: int) -> bytes:
        """The encoded listing of a checkpoint."""
        return read_file(self.listing(step), LIMITS.manifest_bytes, root=self.root)


class AttestedRun:
    """An attested run while it is written; the records of the first ``begun`` steps are kept, and
    what is said of its beginning: ``config`` and ``initial`` are then of what goes on.

    What is after them in the log is dropped, whole or torn.  RunError for a folder that has another
    run, or less of it than ``begun`` steps; EncodingError, NotProducedError for what is no
    beginning of one.
    """

    def __init__(self, root: Path, config: Mapping[str, Any], initial: bytes, begun: int) -> None:
        self.paths = AttestedPaths(root)
        self._records = self._recall(begun)
        self._initial, config = self._begin(config, initial, begun)
        self._last: AttestedStep | None = None
        self._place: int | None = None
        """Where in the log the record of the last step begins, once it is there."""
        with storing(root):
            root.mkdir(parents=True, exist_ok=True)
            (root / "checkpoints").mkdir(exist_ok=True)
            self.paths.attestation.unlink(missing_ok=True)
        text = json.dumps(config, sort_keys=True, indent=2, default=str) + "\n"
        self._config = text.encode()
        write_atomic(self.paths.config, [self._config])
        write_atomic(self.paths.log, [ATTESTED_HEADER, *map(frame, self._records)])
        with storing(self.paths.log):
            self._file = self.paths.log.open("ab")

    def _recall(self, begun: int) -> list[bytes]:
        where = str(self.paths.root)
        if not self.paths.is_there():
            if begun:
                raise RunError(
                    f"has no record of the {begun} steps before this call: attest a run from its "
                    "first step, into one folder",
                    where=where,
                )
            if self.paths.root.exists() and any(self.paths.root.iterdir()):
                raise RunError("holds other files: name a new folder", where=where)
            return []
        if not begun:
            raise RunError(
                "has an attested run already: name a new folder, or resume that run from a "
                "checkpoint",
                where=where,
            )
        records, fault = self.paths.read_whole_records()
        if len(records) < begun:
            torn = f" ({fault.where}: {fault.message})" if fault else ""
            raise RunError(
                f"has the records of {len(records)} steps{torn}, and the run goes on after "
                f"{begun}: resume from a checkpoint of no later step than {len(records)}, or "
                "attest the run again from its first step",
                where=where,
            )
        decode_records(records[:begun])  # nobody signs for what is none
        return records[:begun]

    def _begin(
        self, config: Mapping[str, Any], weights: bytes, begun: int
    ) -> tuple[bytes, dict[str, Any]]:
        """The digest of the weights before the first step, and the configuration of all steps."""
        if not begun:
            return weights, {**config, "initial": weights.hex(), "resumed": []}
        error = EncodingError(
            "does not say what the run began with: attest it again from its first step",
            where=str(self.paths.config),
        )
        try:
            kept = decode_json(self.paths.read_config(), str(self.paths.config))
            initial = bytes.fromhex(kept["initial"])
            earlier = [item for item in kept["resumed"] if item["after"] < begun]
        except (ValueError, KeyError, TypeError):
            raise error from None
        if len(initial) != len(weights):
            raise error
        here = {**config, "after": begun, "weights": weights.hex()}
        return initial, {**kept, "resumed": [*earlier, here]}

    def append(self, batch: bytes) -> None:
        """A step was done, on a batch of this digest."""
        self._flush()
        self._last, self._place = AttestedStep(self._steps + 1, batch, b""), None

    @property
    def _steps(self) -> int:
        """Steps that were done."""
        return len(self._records) + (self._last is not None and self._place is None)

    def add_checkpoint(self, folder: Path) -> None:
        """A checkpoint of the run, as it is now, was saved in ``folder``: whoever resumes from it
        finds the record of its step, whenever this process ends."""
        listing = structs.encode(list_files(folder))
        if self._last is None:
            raise RunError("was saved before any step of this call", where=str(folder))
        write_atomic(self.paths.listing(self._steps), [listing])
        digest = blake3(listing).digest()
        if self._last.checkpoint and self._last.checkpoint != digest:
            self._take_back()  # saved again, after the same step
        self._last = AttestedStep(self._last.step, self._last.batch, digest)
        self._flush()

    def _take_back(self) -> None:
        """Drop the record of the last step from the log."""
        if self._place is not None:
            self._records.pop()
            with storing(self.paths.log):
                self._file.truncate(self._place)
                self._file.seek(0, os.SEEK_END)
            self._place = None

    def _flush(self) -> None:
        if self._last is None or self._place is not None:
            return
        data = structs.encode(self._last)
        self._records.append(data)
        with storing(self.paths.log):
            self._place = self._file.tell()
            self._file.write(frame(data))
            self._file.flush()

    def close(self) -> None:
        """Write what is known; nothing is signed."""
        self._flush()
        self._file.close()

    def sign(self, final: bytes, key: PrivateKey) -> Attestation:
        """The run is done, and its weights have the digest ``final``: sign it."""
        self.close()
        attestation = Attestation(
            run_id=generate_run_id(),
            solver=public_key(key),
            config=blake3(self._config).digest(),
            initial=self._initial,
            final=final,
            steps=len(self._records),
            log_root=compute_attested_root(self._records),
        )
        signed = sign_attestation(attestation, key)
        write_atomic(self.paths.attestation, [structs.encode(signed)])
        return attestation


def list_files(folder: Path) -> Listing:
    """The regular files in a folder and below, with their digests.

    RunError for more than ``MAX_FILES``, NotProducedError for a file that changes while it is read.
    """
    names = sorted(_walk(folder))
    if len(names) > MAX_FILES:
        raise RunError(f"has more than {MAX_FILES} files", where=str(folder))
    files = []
    for name in names:
        entry = read_entry(folder / name, root=folder)
        files.append(AttestedFile(name, entry.size, entry.digest))
    return Listing(tuple(files))


def _walk(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if stat.S_ISREG(path.lstat().st_mode):
            yield path.relative_to(folder).as_posix()


def decode_records(records: list[bytes]) -> list[AttestedStep]:
    """The steps of an attested run; EncodingError names the record, or the step that does not
    follow."""
    steps = []
    for index, data in enumerate(records):
        try:
            found = decode_step(data)
        except EncodingError as error:
            raise EncodingError(error.message, where=f"record {index}: {error.where}") from None
        if found.step != index + 1:
            raise EncodingError(
                f"is of step {found.step}, not {index + 1}", where=f"record {index}"
            )
        steps.append(found)
    return steps
