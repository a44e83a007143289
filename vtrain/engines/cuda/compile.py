"""Compiling kernels at run time with NVRTC, and keeping what was compiled.

No CUDA toolkit and no GPU is needed for it, only the wheels of the ``cuda`` extra.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from vtrain.engines.cuda import sources
from vtrain.errors import KernelError, MissingExtraError

OPTIONS: Final = ("-std=c++17", "--no-source-include")
"""Headers come from the kernels' folder alone: NVRTC would else look in the working directory
first, and keep what it made of whatever lies there under the key of the true sources."""
INSTALL: Final = f"{sys.executable} -m pip install 'vtrain[cuda]'"
MOST_BYTES: Final = 1 << 28
"""Bytes of compiled kernels that the cache keeps; the longest unused go first."""
_PARTIAL: Final = ".part-"
"""Begins the name of a file that is being written."""
_PARTIAL_SECONDS: Final = 86_400
"""Nobody writes a file for so long."""
_DIGEST_BYTES: Final = 32
_FAST: Final = "\n// --- fast"
"""Begins what follows the readable kernels of a file."""
_PLACE = re.compile(r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): (?:catastrophic )?error", re.MULTILINE)


def load_nvrtc() -> Any:
    """The NVRTC binding; MissingExtraError says how to install it."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"the cuda engine needs NVRTC and its binding ({error}): {INSTALL}",
            where="engine cuda",
        ) from None
    return nvrtc


def find_default_cache() -> Path | None:
    """The user's folder for compiled kernels and verdicts of the self-check, if there is a home."""
    try:
        return Path.home() / ".cache" / "vtrain" / "cuda"
    except RuntimeError:
        return None


def list_architectures() -> list[str]:
    """What kernels are compiled for in tests: sm_75, the least that NVRTC knows, without tensor
    cores; of data centres sm_80, sm_90a and sm_100a; of desks sm_86, sm_89 and sm_120a; the
    newest."""
    nvrtc = load_nvrtc()
    newest = max(_check(nvrtc, *nvrtc.nvrtcGetSupportedArchs()))
    return [_name_architecture(number) for number in (75, 80, 86, 89, 90, 100, 120, newest)]


def choose_architecture(major: int, minor: int) -> str:
    """What to compile for on a device of this compute capability.

    Hopper and later have instructions of their own ("a").  A device that is newer than NVRTC gets
    machine code of the newest that NVRTC knows in its generation, which every later device of that
    generation runs; where there is none, PTX of the newest known ("compute_..."), which its driver
    compiles: only if NVRTC is no newer than that driver.
    """
    nvrtc = load_nvrtc()
    known = _check(nvrtc, *nvrtc.nvrtcGetSupportedArchs())
    wanted = 10 * major + minor
    if wanted in known:
        return _name_architecture(wanted)
    older = [number for number in known if number < wanted]
    if not older:
        raise KernelError(
            f"NVRTC compiles for no GPU as old as this one (compute capability {major}.{minor})",
            where="engine cuda",
        )
    # Without the "a": what has it runs on that one chip alone.
    same = [number for number in older if number // 10 == major]
    return f"sm_{max(same)}" if same else f"compute_{max(older)}"


def _name_architecture(number: int) -> str:
    return f"sm_{number}{'a' if number >= 90 else ''}"


class Compiler:
    """Compiles files of the kernels' folder, or generated ones, for one architecture.

    ``folder`` keeps what was compiled (None: nothing is kept), by a digest of all sources, the
    options, the architecture and NVRTC's version; a damaged or foreign entry is compiled anew.
    """

    def __init__(
        self, architecture: str, *, folder: Path | None, kernels: Path | None = None
    ) -> None:
        self._nvrtc = load_nvrtc()
        self._architecture = architecture
        self._folder = folder
        self._kernels = kernels if kernels is not None else sources.find_folder()
        self._hash = sources.compute_hash(self._kernels)
        self._version = ".".join(map(str, _check(self._nvrtc, *self._nvrtc.nvrtcVersion())))
        self.compiled = 0
        """Files that were compiled and not taken from the cache."""
        self.failures: dict[str, KernelError] = {}
        """Files whose fast kernels do not compile: only their readable ones are in the code."""
        self._refused: dict[str, KernelError] = {}

    @property
    def version(self) -> str:
        """NVRTC's version."""
        return self._version

    def compile(self, file: str, text: str | None = None) -> bytes:
        """Machine code (PTX for "compute_...") of ``file``, or of ``text`` under that name.

        A file whose fast kernels do not compile is compiled without them, and ``failures`` has the
        reason.  KernelError has the compiler's messages, and in ``where`` the file and line of the
        first.
        """
        if text is not None:
            return self._take(file, text)
        try:
            text = (self._kernels / file).read_text()
        except OSError as error:
            raise KernelError(f"cannot be read: {error.strerror}", where=file) from None
        try:
            return self._take(file, text)
        except KernelError as error:
            readable, mark, _ = text.partition(_FAST)
            if not mark:
                raise
            code = self._take(file, f"{readable}\n")
            self.failures[file] = error
            return code

    def _take(self, file: str, text: str) -> bytes:
        """The code of a text, from the cache if it is there; what failed once fails at once."""
        key = self._make_key(file, text)
        if key in self._refused:
            raise self._refused[key]
        code = self._load(key)
        if code is None:
            try:
                code = self._run(file, text)
            except KernelError as error:
                self._refused[key] = error
                raise
            self.compiled += 1
            self._store(key, code)
        return code

    def _make_key(self, file: str, text: str) -> str:
        parts = (
            self._hash,
            file,
            text,
            repr(OPTIONS),
            self._architecture,
            self._version,
        )
        digest = hashlib.blake2b(digest_size=20)
        for part in parts:
            digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
        return digest.hexdigest()

    def _run(self, file: str, text: str) -> bytes:
        nvrtc = self._nvrtc
        options = [
            option.encode()
            for option in (
                f"--gpu-architecture={self._architecture}",
                f"-I{self._kernels}",
                *OPTIONS,
            )
        ]
        program = _check(nvrtc, *nvrtc.nvrtcCreateProgram(text.encode(), file.encode(), 0, [], []))
        try:
            (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                size = _check(nvrtc, *nvrtc.nvrtcGetProgramLogSize(program))
                log = b" " * size
                _check(nvrtc, *nvrtc.nvrtcGetProgramLog(program, log))
                raise _explain(file, log.rstrip(b"\0 ").decode(errors="replace"))
            if self._architecture.startswith("compute_"):
                size = _check(nvrtc, *nvrtc.nvrtcGetPTXSize(program))
                code = b" " * size
                _check(nvrtc, *nvrtc.nvrtcGetPTX(program, code))
            else:
                size = _check(nvrtc, *nvrtc.nvrtcGetCUBINSize(program))
                code = b" " * size
                _check(nvrtc, *nvrtc.nvrtcGetCUBIN(program, code))
            return bytes(code)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _path(self, key: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{key}.kernel"

    def _load(self, key: str) -> bytes | None:
        path = self._path(key)
        if path is None:
            return None
        try:
            content = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return code if digest == _digest(key, code) else None

    def _store(self, key: str, code: bytes) -> None:
        """Keep ``code``: whole or not at all, also when several processes do it at once."""
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, _digest(key, code) + code)
            prune(path.parent)
        except OSError:
            # A cache that cannot be written only costs time.
            return


def _digest(key: str, code: bytes) -> bytes:
    return hashlib.blake2b(key.encode() + code, digest_size=_DIGEST_BYTES).digest()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file: whole or not at all, and nothing is left of what fails (OSError)."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=_PARTIAL, delete=False) as file:
        part = Path(file.name)
        try:
            file.write(content)
            file.flush()
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def prune(folder: Path, most: int = MOST_BYTES) -> None:
    """Delete the longest unused entries of the cache until it has at most ``most`` bytes, and what
    processes that were killed have left half written."""
    for path in folder.glob(f"{_PARTIAL}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _PARTIAL_SECONDS:
                path.unlink()
    entries = sorted(
        ((path.stat().st_mtime, path.stat().st_size, path) for path in folder.glob("*.kernel")),
        reverse=True,
    )
    total = 0
    for _, size, path in entries:
        total += size
        if total > most:
            path.unlink(missing_ok=True)


def _explain(file: str, log: str) -> KernelError:
    found = _PLACE.search(log)
    where = file if found is None else f"{Path(found['file']).name}:{found['line']}"
    return KernelError(f"does not compile:\n{log}", where=where)


def _check(nvrtc: Any, result: Any, *values: Any) -> Any:
    """The value of a call, or KernelError."""
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, text = nvrtc.nvrtcGetErrorString(result)
        raise KernelError(f"NVRTC: {text.decode()}", where="engine cuda")
    return values[0] if len(values) == 1 else values
