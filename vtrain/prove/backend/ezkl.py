"""The only door to ezkl: its calls in a process of their own, its proofs read strictly.

ezkl holds the GIL while it proves, aborts the process when memory runs out, may hang on a witness
that breaks a lookup, and keeps lookup tables in a cache that it reads back unchecked.  So calls
run in a fresh process with limits on memory and time and an empty cache; whatever happens to that
process is a :class:`~vtrain.errors.ProverError` here.  The formats of keys and proofs follow ezkl's
version, which is pinned exactly.

What ``ezkl.verify`` leaves open (docs/proofs.md) is settled before it sees a proof:
:func:`read_proof` takes only what the proof system authenticates, at its exact length.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata, util
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from typing import IO, Any, Final, Literal

from vtrain.commit.files import require_file, storing
from vtrain.errors import EncodingError, MissingExtraError, ProofError, ProverError, StorageError
from vtrain.spec.field import SCALAR_FIELD
from vtrain.threads import check_threads
from vtrain.wire.json_text import decode_json

EZKL_VERSION: Final = "23.0.5"

CALLS: Final = frozenset(
    {
        "compile_circuit",
        "create_evm_verifier",
        "gen_settings",
        "gen_srs",
        "gen_witness",
        "kzg_commit",
        "mock",
        "poseidon_hash",
        "prove",
        "setup",
        "verify",
    }
)
"""What may be called.  ``get_srs`` is not among them: it deletes files that it does not know."""


_ELEMENT: Final = re.compile("[0-9a-f]{64}")


class CallFailedError(ProverError):
    """ezkl answered a call with an exception of its own; the process was well."""


class TimeLimitError(ProverError):
    """A process took longer than it was allowed, and was ended."""


@dataclass(frozen=True)
class Limits:
    """What one process may use: ``memory`` bytes of address space, ``seconds`` of wall-clock time.

    Address space is what the system can limit; it exceeds the memory in use by the code and the
    stacks, some 1 GiB with few threads.  ``threads``: 0 takes every core;
    RunError for too many.
    """

    memory: int
    seconds: float
    threads: int = 0

    def __post_init__(self) -> None:
        check_threads(self.threads)


@dataclass(frozen=True)
class Call:
    """One function of ezkl with its arguments by name: JSON values, paths as text.

    ``py_run_args`` is a mapping of the attributes of ``PyRunArgs``.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def require_extra(*modules: str) -> None:
    """MissingExtraError, with the command that installs it, unless the extra ``zk`` is there.

    ``modules`` are the ones needed, of "ezkl" and "py_ecc"; ezkl must be of the pinned version.
    """
    command = f"{sys.executable} -m pip install 'vtrain[zk]'"
    for module in modules:
        if util.find_spec(module) is None:
            raise MissingExtraError(f"needs {module}: {command}", where=module)
    if "ezkl" in modules:
        found = metadata.version("ezkl")
        if found != EZKL_VERSION:
            raise MissingExtraError(
                f"needs ezkl {EZKL_VERSION}, not {found}, whose proofs may differ: {command}",
                where="ezkl",
            )


Watcher = Callable[[int], None]
"""Told how many calls are done, whenever that grew."""


def run_ezkl(
    calls: Sequence[Call],
    limits: Limits,
    *,
    cancelled: threading.Event | None = None,
    watch: Watcher = lambda done: None,
    secrets: Sequence[IO[bytes]] = (),
) -> list[Any]:
    """Make the calls, one after the other, in one process of their own; their results as JSON.

    ``secrets`` are open files without a name, which the process may read by :func:`secret_path`.

    ProverError names the call that failed (ezkl's own words follow) or that was being made when the
    process died, was cancelled, or ran out of time (TimeLimitError); it has then ended, with every
    process it started.  MissingExtraError without the pinned ezkl.
    """
    outcomes = _run(calls, limits, False, cancelled, watch, secrets)
    for outcome in outcomes:
        if isinstance(outcome, CallFailedError):
            raise outcome
    return outcomes


def try_ezkl(
    calls: Sequence[Call],
    limits: Limits,
    *,
    cancelled: threading.Event | None = None,
    watch: Watcher = lambda done: None,
) -> list[Any]:
    """As :func:`run_ezkl`, but make every call; in place of a result, the CallFailedError."""
    return _run(calls, limits, True, cancelled, watch)


def _run(
    calls: Sequence[Call],
    limits: Limits,
    every: bool,
    cancelled: threading.Event | None,
    watch: Watcher,
    secrets: Sequence[IO[bytes]] = (),
) -> list[Any]:
    require_extra("ezkl")
    for call in calls:
        if call.name not in CALLS:
            raise ProverError("no such call is allowed", where=call.name)
    request = json.dumps(
        {
            "all": every,
            "calls": [[call.name, dict(call.arguments)] for call in calls],
            "memory": limits.memory,
            "seconds": limits.seconds,
        }
    ).encode()
    with TemporaryDirectory(prefix="vtrain-ezkl-") as folder, TemporaryFile() as noise:
        reply = _run_process(request, limits, Path(folder), noise, cancelled, watch, secrets)
        return _read_reply(reply, calls, limits, noise)


@contextmanager
def open_secret(text: str) -> Iterator[IO[bytes]]:
    """A file of this text that has no name: it is gone with the processes that have it open,
    however they end."""
    with TemporaryFile() as file:
        with storing(Path(gettempdir())):
            file.write(text.encode())
            file.flush()
            file.seek(0)
        yield file


def secret_path(file: IO[bytes]) -> str:
    """By which a process that inherited the open ``file`` reads it, from its beginning."""
    return f"/dev/fd/{file.fileno()}"


@dataclass(frozen=True)
class ProofShape:
    """What a circuit's proofs look like: bytes of the proof, number of public instances."""

    length: int
    instances: int


@dataclass(frozen=True)
class Proof:
    """What the proof system authenticates and nothing else: proof bytes, public field elements."""

    data: bytes
    instances: tuple[int, ...]

    def commitments(self, count: int) -> tuple[bytes, ...]:
        """The KZG commitments of the first ``count`` committed tensors, inputs before outputs.

        Each is x and y of a point, big-endian, 64 bytes.  ezkl compares them with nothing.
        """
        if not 0 <= count * 64 <= len(self.data):
            raise ProofError(f"has no room for {count} commitments", where="proof")
        return tuple(self.data[64 * i : 64 * i + 64] for i in range(count))


def read_proof(data: bytes, shape: ProofShape) -> Proof:
    """The proof in a proof file of ezkl's, of exactly this shape; ProofError names the field.

    ezkl writes more fields (a hexadecimal copy, public inputs in words) that nothing authenticates;
    they are not read.  Never raises anything else, whatever the bytes.
    """
    limit = (64 << 10) + 16 * shape.length + 512 * shape.instances
    if len(data) > limit:
        raise ProofError(f"the file has {len(data)} bytes, more than {limit}")
    try:
        fields = decode_json(data, "")
    except EncodingError as error:
        raise ProofError(error.message) from None
    if not isinstance(fields, dict):
        raise ProofError("is not a JSON object")
    octets = fields.get("proof")
    if not isinstance(octets, list) or not all(
        type(octet) is int and 0 <= octet < 256 for octet in octets
    ):
        raise ProofError("is not a list of bytes", where="proof")
    if len(octets) != shape.length:
        raise ProofError(f"has {len(octets)} bytes, not {shape.length}", where="proof")
    columns = fields.get("instances")
    if not isinstance(columns, list) or len(columns) != 1 or not isinstance(columns[0], list):
        raise ProofError("is not a list of one list", where="instances")
    if len(columns[0]) != shape.instances:
        raise ProofError(f"has {len(columns[0])} values, not {shape.instances}", where="instances")
    values = tuple(_read_element(text, index) for index, text in enumerate(columns[0]))
    return Proof(bytes(octets), values)


def encode_proof(proof: Proof) -> bytes:
    """A proof as ``ezkl.verify`` reads it; the inverse of :func:`read_proof`."""
    return json.dumps(
        {
            "protocol": None,
            "instances": [[encode_element(value) for value in proof.instances]],
            "proof": list(proof.data),
        }
    ).encode()


def encode_witness(inputs: Iterable[Iterable[int]], outputs: Iterable[Iterable[int]]) -> str:
    """Input and output vectors as ``gen_witness`` would write them, without commitments.

    ``prove`` and ``mock`` read these two fields; the others serve visibilities that are not ours.
    """
    kept = {
        name: [[encode_element(int(value)) for value in vector] for vector in vectors]
        for name, vectors in (("inputs", inputs), ("outputs", outputs))
    }
    unused = ("pretty_elements", "processed_inputs", "processed_params", "processed_outputs")
    bounds = dict.fromkeys(("max_lookup_inputs", "min_lookup_inputs", "max_range_size"), 0)
    return json.dumps(kept | dict.fromkeys(unused) | bounds | {"version": EZKL_VERSION})


def encode_element(value: int) -> str:
    """An integer as ezkl writes field elements: modulo the field's prime, 32 bytes, little-endian.

    JSON inputs in this form are exact at every size, unlike JSON numbers.
    """
    return (value % SCALAR_FIELD).to_bytes(32, "little").hex()


def _read_element(text: object, index: int) -> int:
    if not isinstance(text, str) or not _ELEMENT.fullmatch(text):
        raise ProofError("is not 64 hexadecimal digits", where=f"instance {index}")
    value = int.from_bytes(bytes.fromhex(text), "little")
    if value >= SCALAR_FIELD:
        raise ProofError("is not reduced", where=f"instance {index}")
    return value


@dataclass(frozen=True)
class Verification:
    """Whether a proof holds and, if not, ezkl's words."""

    holds: bool
    reason: str


def verify_proof(
    proof: Proof, *, settings: Path, vk: Path, srs: Path, limits: Limits
) -> Verification:
    """Verify a proof under settings, a verifying key and an SRS that the caller has checked.

    Holds only if ezkl says so in as many words; it says no by an exception.  What it does not look
    at is the caller's: the shape (:func:`read_proof`), the commitments in the proof
    (:meth:`Proof.commitments`), the settings, key and SRS themselves.  StorageError for a file that
    cannot be read, ProverError when the process died, which is no verdict.
    """
    (verification,) = verify_proofs([proof], settings=settings, vk=vk, srs=srs, limits=limits)
    return verification


def verify_proofs(
    proofs: Sequence[Proof], *, settings: Path, vk: Path, srs: Path, limits: Limits
) -> list[Verification]:
    """As :func:`verify_proof`, of each by itself, in one process."""
    for path in (settings, vk, srs):
        require_file(path, error=StorageError)
    with TemporaryDirectory(prefix="vtrain-proof-") as folder:
        named = {"settings_path": str(settings), "vk_path": str(vk), "srs_path": str(srs)}
        calls = []
        for number, proof in enumerate(proofs):
            path = Path(folder) / f"proof-{number}.json"
            with storing(path):
                path.write_bytes(encode_proof(proof))
            calls.append(Call("verify", named | {"proof_path": str(path)}))
        return [_judge(answer) for answer in try_ezkl(calls, limits)]


def _judge(answer: Any) -> Verification:
    if isinstance(answer, CallFailedError):
        return Verification(False, answer.message)
    return Verification(answer is True, "" if answer is True else "ezkl did not say that it holds")


_Ended = Literal["", "cancelled", "late"]
_POLL_SECONDS: Final = 0.05
_WORKER: Final = Path(__file__).with_name("worker.py")
_NOISE_BYTES: Final = 1000

_COMPILER: Final = ".svm/0.8.20/solc-0.8.20"
_NO_COMPILER: Final = """#!/bin/sh
cat > /dev/null
echo '{"contracts":{"":{"Halo2Verifier":{"abi":[]}}}}'
"""
"""``create_evm_verifier`` compiles what it wrote, only for an ABI, with a compiler that it looks
for under the home directory and else fetches from the web and runs.  This one stands there."""


def _run_process(
    request: bytes,
    limits: Limits,
    folder: Path,
    noise: IO[bytes],
    cancelled: threading.Event | None,
    watch: Watcher,
    secrets: Sequence[IO[bytes]],
) -> tuple[int, bytes, _Ended]:
    """Exit status, reply, and why the process was ended, if it was."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EZKL_")}
    for name in ("ICICLE_BACKEND_INSTALL_DIR", "RAYON_NUM_THREADS", "RUST_BACKTRACE", "RUST_LOG"):
        inherited.pop(name, None)
    # Pages of 2 MiB where the system leaves that to programs: a tenth less time for a whole step,
    # and half of what the system itself takes of it.  Others than glibc do not know the name.
    tunables = ["glibc.malloc.hugetlb=1", inherited.get("GLIBC_TUNABLES", "")]  # the last one wins
    inherited["GLIBC_TUNABLES"] = ":".join(filter(None, tunables))
    threads = {"RAYON_NUM_THREADS": str(limits.threads)} if limits.threads else {}
    asked, answer = folder / "request", folder / "answer"
    with storing(folder):
        asked.write_bytes(request)
        compiler = folder / _COMPILER
        compiler.parent.mkdir(parents=True)
        compiler.write_text(_NO_COMPILER)
        compiler.chmod(0o700)
        # The end of a pipe that only the process has the other end of is readable when it is gone.
        life, held = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, on a file of ours
            [sys.executable, "-P", str(_WORKER), str(asked), str(answer)],
            stdin=subprocess.DEVNULL,
            stdout=noise,
            stderr=noise,
            env=inherited | threads | {"EZKL_REPO_PATH": str(folder / "ezkl")},
            start_new_session=True,
            pass_fds=[held, *(file.fileno() for file in secrets)],
        )
    except OSError as error:
        os.close(life)
        raise StorageError(error.strerror or str(error), where=str(folder)) from error
    finally:
        os.close(held)
    ended: _Ended = ""
    deadline = time.monotonic() + limits.seconds
    lines = _Lines(answer)
    try:
        while process.poll() is None:
            # Popen.wait alone sleeps between looks, for up to a fifth of what verifying takes.
            if wait([life], _POLL_SECONDS):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                    break
            if lines.grew():
                watch(lines.count)
            if cancelled is not None and cancelled.is_set():
                ended = "cancelled"
                break
            if time.monotonic() > deadline:
                ended = "late"
                break
    finally:
        # Also after an exception, such as an interrupt from the keyboard.
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        os.close(life)
    if lines.grew():
        watch(lines.count)
    return status, answer.read_bytes() if answer.exists() else b"", ended


class _Lines:
    """Counts the lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.count = 0

    def grew(self) -> bool:
        """Whether there are more lines than when last asked."""
        before = self.count
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
            self._read += len(fresh)
            self.count += fresh.count(b"\n")
        return self.count > before


def _read_reply(
    reply: tuple[int, bytes, _Ended], calls: Sequence[Call], limits: Limits, noise: IO[bytes]
) -> list[Any]:
    status, answer, ended = reply
    lines = [json.loads(line) for line in answer.splitlines(keepends=True) if line.endswith(b"\n")]
    outcomes = [
        CallFailedError(line["failed"], where=call.name) if "failed" in line else line["result"]
        for call, line in zip(calls, lines, strict=False)
    ]
    name = calls[len(outcomes)].name if len(outcomes) < len(calls) else "ezkl"
    if ended == "late":
        raise TimeLimitError(
            f"took more than {limits.seconds:g} seconds, the limit (--timeout)", where=name
        )
    if ended == "cancelled":
        raise ProverError("cancelled", where=name)
    has_failed = bool(outcomes) and isinstance(outcomes[-1], CallFailedError)
    if status != 0 or (len(outcomes) != len(calls) and not has_failed):
        noise.seek(max(0, noise.seek(0, os.SEEK_END) - _NOISE_BYTES))
        words = noise.read().decode(errors="replace").strip().splitlines() or ["no word of it"]
        # A signal ends ezkl after a line or two of its own; a panic ends in Python's last line.
        said = " ".join(words) if status < 0 else words[-1]
        how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        raise ProverError(f"the process died ({how}): {said}", where=name)
    return outcomes
