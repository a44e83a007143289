"""What lies where in a run directory, and its manifest: an index for people and tools.

Nothing in the manifest is authority: a claim signs the log's root, and all else follows from that.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vtrain.commit.files import FileEntry, read_file, refuse_link, storing
from vtrain.errors import EncodingError, NotProducedError, RunError
from vtrain.limits import LIMITS
from vtrain.wire.fields import Fields
from vtrain.wire.json_text import decode_json

FORMAT: Final = 1
"""Version of the directory's layout and of the manifest."""
ATTESTATION: Final = "attestation.cbor"
"""What an attested run has in place of a claim (``vtrain.train.attested``)."""
CHECKPOINT_NAME: Final = r"([0-9]{12}|[1-9][0-9]{12})\.safetensors"
"""Of a checkpoint's name, with the step: twelve digits, or thirteen, as 2^40 has."""


@dataclass(frozen=True)
class RunPaths:
    """Paths of a run directory's files; nothing is read."""

    root: Path

    @property
    def task(self) -> Path:
        """The canonical TaskSpec."""
        return self.root / "task.cbor"

    @property
    def graph(self) -> Path:
        """The canonical StepGraph."""
        return self.root / "graph.cbor"

    @property
    def model(self) -> Path:
        """The ONNX file as given."""
        return self.root / "model.onnx"

    @property
    def samples(self) -> Path:
        """The canonical sample table; may be left out."""
        return self.root / "data" / "samples.bin"

    @property
    def log(self) -> Path:
        """Framed step records."""
        return self.root / "log.bin"

    @property
    def kzg(self) -> Path:
        """Framed KZG records; only where the task asks for them."""
        return self.root / "kzg.bin"

    @property
    def hiding(self) -> Path:
        """The solver's secrets behind the KZG commitments; no part of what it publishes."""
        return self.root / "hiding.key"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.root / "checkpoints"

    @property
    def claim(self) -> Path:
        """The SignedClaim; absent while the run goes on."""
        return self.root / "claim.cbor"

    @property
    def manifest(self) -> Path:
        """The index."""
        return self.root / "manifest.json"

    @property
    def history(self) -> Path:
        """A line for each step, for people (``vtrain.train.history``)."""
        return self.root / "history.jsonl"

    @property
    def earlier_claim(self) -> Path:
        """The claim that a run had before it was gone on with, while it goes on."""
        return self.root / ".claim.earlier.cbor"

    @property
    def lock(self) -> Path:
        """Locked by the one process that writes."""
        return self.root / ".lock"

    def list_unlisted(self) -> tuple[Path, ...]:
        """The files of a run that its manifest does not list."""
        claims = (self.claim, self.earlier_claim)
        return (self.manifest, *claims, self.hiding, self.history, self.lock)

    def checkpoint(self, step: int) -> Path:
        """The state after ``step`` steps."""
        return self.checkpoints / f"{step:012d}.safetensors"

    def list_checkpoints(self) -> list[int]:
        """Steps of the checkpoints that are there, ascending; none where there is no such folder.

        NotProducedError when the folder is a link, or holds more names than are looked at.
        """
        refuse_link(self.checkpoints)
        most = LIMITS.entries
        with storing(self.checkpoints):
            if not self.checkpoints.is_dir():
                return []
            with os.scandir(self.checkpoints) as entries:
                names = [entry.name for entry in itertools.islice(entries, most + 1)]
        if len(names) > most:
            raise NotProducedError(
                f"holds more than {most} files, the most that are read: "
                "move away what are no checkpoints",
                where=str(self.checkpoints),
            )
        found = (re.fullmatch(CHECKPOINT_NAME, name) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def require_run(self) -> None:
        """RunError for what is no run directory: no folder, or one without any of the files that
        every run has."""
        if not self.root.is_dir():
            raise RunError("is not a run directory", where=str(self.root))
        if os.path.lexists(self.root / ATTESTATION) and not os.path.lexists(self.task):
            raise RunError(
                "holds an attested run, in floats: `vtrain verify` says what was signed of it, and "
                "nothing else is known (docs/attested.md)",
                where=str(self.root),
            )
        wanted = (self.task, self.graph, self.log, self.claim, self.manifest)
        if not any(os.path.lexists(path) for path in wanted):
            names = [path.name for path in wanted]
            raise RunError(
                f"is not a run directory: it has neither {', '.join(names[:-1])} nor {names[-1]}; "
                "name the folder that `vtrain train TASK --out RUN` wrote",
                where=str(self.root),
            )

    def name_of(self, path: Path) -> str:
        """Name of a file in the manifest: its path from the root, with slashes."""
        return path.relative_to(self.root).as_posix()


@dataclass(frozen=True)
class Manifest:
    """The index: where the run stands after ``steps`` steps, and every file with size and BLAKE3.

    ``saturation`` counts clamped elements by node over ``counted_steps`` executed steps (steps
    redone after a crash count again).  ``files`` lists all but the manifest, the claim (which is
    written after it and is its own proof) and the lock.
    """

    run_id: bytes
    task_id: bytes
    software: str
    engine: str
    steps: int
    counted_steps: int
    saturation: Mapping[str, int]
    files: Mapping[str, FileEntry]


def encode_manifest(manifest: Manifest) -> bytes:
    """The one JSON text of a manifest: sorted keys, two-space indent, trailing newline."""
    value = {
        "counted_steps": manifest.counted_steps,
        "engine": manifest.engine,
        "files": {
            name: {"blake3": entry.digest.hex(), "size": entry.size}
            for name, entry in manifest.files.items()
        },
        "format": FORMAT,
        "run_id": manifest.run_id.hex(),
        "saturation": dict(manifest.saturation),
        "software": manifest.software,
        "steps": manifest.steps,
        "task_id": manifest.task_id.hex(),
    }
    return _encode(value)


def decode_manifest(data: bytes) -> Manifest:
    """Inverse of :func:`encode_manifest`; EncodingError names the field, or the first byte that
    is not as :func:`encode_manifest` writes it."""
    value = decode_json(data, "manifest")
    try:
        again = _encode(value)
    except ValueError as error:  # half of a surrogate pair
        raise EncodingError(f"is not JSON: {error}", where="manifest") from None
    if again != data:
        pairs = enumerate(zip(data, again, strict=False))
        byte = next((i for i, (a, b) in pairs if a != b), min(len(data), len(again)))
        raise EncodingError("is not in canonical form", where=f"manifest: byte {byte}")
    fields = Fields(value, "manifest")
    version = _count(fields, "format")
    if version != FORMAT:
        fields.refuse("format", f"version {version} is not {FORMAT}, the one known here")
    manifest = Manifest(
        run_id=_digest(fields, "run_id"),
        task_id=_digest(fields, "task_id"),
        software=fields.text("software"),
        engine=fields.text("engine"),
        steps=_count(fields, "steps"),
        counted_steps=_count(fields, "counted_steps"),
        saturation=_counts(fields.take("saturation")),
        files=_files(fields.take("files")),
    )
    fields.done()
    return manifest


def read_manifest(paths: RunPaths) -> Manifest:
    """The manifest of a run directory; NotProducedError when it is missing, EncodingError when
    damaged."""
    try:
        return decode_manifest(read_file(paths.manifest, LIMITS.manifest_bytes, root=paths.root))
    except EncodingError as error:
        raise EncodingError(error.message, where=f"{paths.manifest}: {error.where}") from None


def _encode(value: object) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


def _count(fields: Fields, name: str) -> int:
    value = fields.int(name, 0, 2**63 - 1)
    if isinstance(value, bool):  # JSON has booleans, which Python counts among the integers
        fields.refuse(name, "expected an integer, found a boolean")
    return value


def _digest(fields: Fields, name: str) -> bytes:
    text = fields.text(name)
    if not re.fullmatch("[0-9a-f]{64}", text):
        fields.refuse(name, "is not 64 lower-case hexadecimal digits")
    return bytes.fromhex(text)


def _counts(value: Any) -> dict[str, int]:
    fields = Fields(value, "manifest.saturation")
    return {name: _count(fields, name) for name in value}


def _files(value: Any) -> dict[str, FileEntry]:
    fields, entries = Fields(value, "manifest.files"), {}
    for name in value:
        entry = fields.map(name)
        entries[name] = FileEntry(_count(entry, "size"), _digest(entry, "blake3"))
        entry.done()
    return entries
