"""The kernels on the CPU: ``HostDevice`` is a device that runs them as plain C++.

Each file of ``reference_kernels`` becomes a shared library, by the compiler of ``ziglang``, when it
is first used; libraries are kept in pytest's cache folder under the hash of what went into them.
Operations that C++ leaves undefined (a signed overflow, a shift by 64) and writes beside an
allocation are errors here: on a GPU they would be silent.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from vtrain.engines.cuda.device import Call, DeviceInfo, Memory, Pointer

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
KERNELS: Final = REPOSITORY / "reference_kernels"
CACHE: Final = REPOSITORY / ".pytest_cache" / "d" / "kernels_on_cpu"

FLAGS: Final = (
    "-std=c++17",
    "-O1",
    "-mllvm",
    "-inline-threshold=0",  # half the time to compile, and no more to run
    "-mllvm",
    "-pragma-unroll-threshold=0",  # and a third of the rest
    "-mcpu=baseline",  # a cache may move to another machine
    "-g0",
    "-shared",
    "-fPIC",
    "-nostdlib",  # the process that loads it has one
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero,bounds,alignment,null",
    "-fsanitize-minimal-runtime",
)
_KERNEL = re.compile(
    r'extern\s+"C"\s+__attribute__\(\(annotate\("kernel"\)\)\)\s+void\s+(?:\[\[.*?\]\]\s*)?(\w+)\s*\('
)
_ALIGNMENT: Final = 256
_GUARD: Final = 4096
"""Bytes before and after an allocation that nobody may write."""
GARBAGE: Final = 0xC7
"""What allocations hold at first, so that nothing relies on zeros."""
MOST_THREADS: Final = 1024


class HostDeviceError(Exception):
    """A kernel, a launch or an access that a GPU would not tell anything about, or refuse."""


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class Library:
    """The kernels of one file."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.undefined.restype = ctypes.c_char_p

    def kinds(self, kernel: str) -> str:
        """'p' or 'i' for each parameter: a pointer, an integer."""
        try:
            function = getattr(self._library, f"kinds_{kernel}")
        except AttributeError:
            raise HostDeviceError(f"there is no kernel {kernel}") from None
        function.restype = ctypes.c_char_p
        return bytes(function()).decode()

    def run_backwards(self, last_first: bool) -> None:
        """Let the last warp of a block run first: another legal schedule (host/fibers.h)."""
        self._library.run_backwards(int(last_first))

    def launch(
        self,
        kernel: str,
        slots: Sequence[int],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
    ) -> None:
        """Run the kernel to its end."""
        function = getattr(self._library, f"launch_{kernel}")
        values = (ctypes.c_uint64 * len(slots))(*(slot % 2**64 for slot in slots))
        done = function(values, _Dim3(*grid), _Dim3(*block), ctypes.c_uint64(shared))
        if done != 0:
            raise HostDeviceError(f"{kernel}: threads wait at barriers for each other")
        place = (ctypes.c_uint * 6)()
        kind = self._library.undefined(place)
        if kind is not None:
            where = f"block {tuple(place[:3])} thread {tuple(place[3:])}"
            raise HostDeviceError(f"{kernel}: {kind.decode()}, first in {where}")


def _find_compiler() -> Path:
    """The program of the wheel: started itself, and not by another Python."""
    package = find_spec("ziglang")
    if package is None or package.origin is None:
        raise HostDeviceError("ziglang, a dependency of the tests, is not installed")
    return Path(package.origin).with_name("zig")


def _run_compiler(arguments: Sequence[str], scratch: str) -> str:
    done = subprocess.run(
        [str(_find_compiler()), "cc", *arguments],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": scratch,
            "ZIG_GLOBAL_CACHE_DIR": scratch,
            "ZIG_LOCAL_CACHE_DIR": scratch,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise HostDeviceError(done.stderr)
    return done.stdout


def _find_included(text: str, place: Path, folder: Path, found: dict[Path, bytes]) -> None:
    """Put into ``found`` every file that ``text``, which stands in ``place``, includes."""
    for name in re.findall(r'(?m)^#include "([^"]+)"', text):
        path = next((p for p in (place / name, folder / name) if p.is_file()), None)
        if path is None:
            raise HostDeviceError(f"{name} is included and not there")
        if path not in found:
            found[path] = path.read_bytes()
            _find_included(found[path].decode(), path.parent, folder, found)


_START: Final = '#include "host/cuda_on_cpu.h"\n'
_END: Final = '#include "host/launcher.h"\n'


def build(file: str, text: str, folder: Path = KERNELS, cache_folder: Path = CACHE) -> Path:
    """The shared library of the kernels in ``text``, which stands in ``folder`` as ``file``.

    Several processes may do this at once: a library appears under its name when it is complete.
    """
    included: dict[Path, bytes] = {}
    _find_included(_START + text + "\n" + _END, folder, folder, included)
    parts = [repr((FLAGS, version("ziglang"), platform.platform(), file)).encode(), text.encode()]
    parts += [path.name.encode() + b"\0" + included[path] for path in sorted(included)]
    key = hashlib.sha256(b"\0\0".join(parts)).hexdigest()[:32]
    target = cache_folder / f"{Path(file).stem}-{key}.so"
    if target.exists():
        return target
    cache_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder) as scratch:
        kernel_file, whole = Path(scratch) / Path(file).name, Path(scratch) / "library.cpp"
        kernel_file.write_text(text)
        start = f'{_START}#include "{kernel_file}"\n'
        whole.write_text(start)
        include = ["-x", "c++", f"-I{folder}", str(whole)]
        kernels = _KERNEL.findall(_run_compiler(["-E", *FLAGS[:1], *include], scratch))
        exports = "".join(f"EXPORT_KERNEL({kernel})\n" for kernel in kernels)
        whole.write_text(f"{start}{_END}{exports}")
        finished = Path(scratch) / "library.so"
        _run_compiler([*FLAGS, *include, "-o", str(finished)], scratch)
        finished.replace(target)
    return target


@dataclass
class _Allocation:
    """Owns the bytes of an allocation and of what lies around it."""

    store: npt.NDArray[np.uint8]
    start: int
    nbytes: int
    mark: int
    """What the bytes around it hold, another than around the allocations next to it: a copy from
    beside one to beside another is seen."""

    def is_intact(self) -> bool:
        before, after = self.store[: self.start], self.store[self.start + self.nbytes :]
        return bool(np.all(before == self.mark) and np.all(after == self.mark))


class HostDevice:
    """``vtrain.engines.cuda.device.Device`` on the CPU, at once and in order.

    ``memory_bytes`` is what it claims to have: a smaller number shows how an engine takes its end.
    Kernels are those of ``folder``, libraries go to ``cache_folder``.
    """

    def __init__(
        self,
        memory_bytes: int = 2**34,
        architecture: str = "sm_80",
        *,
        folder: Path = KERNELS,
        cache_folder: Path = CACHE,
    ) -> None:
        self._folders = folder, cache_folder
        self._info = DeviceInfo(
            "CPU",
            "cpu",
            platform.release(),
            architecture,
            compiler=f"zig {version('ziglang')}",
            emulated=True,
        )
        self._total = memory_bytes
        self._allocations: dict[int, _Allocation] = {}
        self._allocated = 0
        self._shared: dict[int, npt.NDArray[np.uint8]] = {}
        self._libraries: dict[str, Library] = {}
        self._sources: dict[str, str] = {}

    @property
    def info(self) -> DeviceInfo:
        """Which device this is."""
        return self._info

    def memory(self) -> Memory:
        """What it claims to have, less what is allocated."""
        used = sum(allocation.nbytes for allocation in self._allocations.values())
        return Memory(self._total - used, self._total)

    def add_source(self, file: str, text: str) -> None:
        """Make a generated file launchable."""
        self._sources[file] = text
        self._libraries.pop(file, None)

    def prepare(self, kernels: Sequence[tuple[str, str]]) -> None:
        """Compile these files; HostDeviceError for a kernel that is not there."""
        for file, kernel in kernels:
            self.library(file).kinds(kernel)

    def library(self, file: str) -> Library:
        """The kernels of a file, compiled if they are not yet."""
        if file not in self._libraries:
            text = self._sources.get(file)
            if text is None:
                text = (self._folders[0] / file).read_text()
            self._libraries[file] = Library(build(file, text, *self._folders))
        return self._libraries[file]

    def allocate(self, nbytes: int) -> int:
        """Address of bytes that hold garbage."""
        free = self.memory().free
        if nbytes > free:
            raise HostDeviceError(f"{nbytes} bytes asked, {free} are free")
        self._allocated += 1
        mark = 1 + self._allocated % 127
        store = np.full(nbytes + 2 * _GUARD + _ALIGNMENT, mark, np.uint8)
        base = store.ctypes.data
        start = -(-(base + _GUARD) // _ALIGNMENT) * _ALIGNMENT - base
        store[start : start + nbytes] = GARBAGE
        self._allocations[base + start] = _Allocation(store, start, nbytes, mark)
        return base + start

    def free(self, address: int) -> None:
        """Give back an allocation; HostDeviceError if something was written beside it."""
        if self._shared.pop(address, None) is not None:
            return
        if address not in self._allocations:
            raise HostDeviceError(f"nothing is allocated at {address:#x}")
        allocation = self._allocations.pop(address)
        if not allocation.is_intact():
            raise HostDeviceError(f"written beside an allocation of {allocation.nbytes} bytes")

    def share(self, data: npt.NDArray[np.uint8]) -> int:
        """Address of host memory."""
        contiguous = np.ascontiguousarray(data)
        self._shared[contiguous.ctypes.data] = contiguous
        return contiguous.ctypes.data

    def _require_inside(self, address: int, nbytes: int) -> None:
        for start, allocation in list(self._allocations.items()):  # another thread may add some
            if start <= address and address + nbytes <= start + allocation.nbytes:
                return
        for start, data in self._shared.items():
            if start <= address and address + nbytes <= start + data.nbytes:
                return
        raise HostDeviceError(f"{nbytes} bytes at {address:#x} are not in one allocation")

    def write(self, address: int, data: bytes | npt.NDArray[np.uint8]) -> None:
        """Copy bytes into an allocation."""
        content = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        self._require_inside(address, len(content))
        ctypes.memmove(address, content, len(content))

    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of an allocation."""
        self._require_inside(address, nbytes)
        return ctypes.string_at(address, nbytes)

    def read_later(self, address: int, nbytes: int) -> Callable[[], bytearray]:
        """Bytes of an allocation, as late as may be: when they are asked for."""
        self._require_inside(address, nbytes)
        return lambda: bytearray(self.read(address, nbytes))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy within the device."""
        self._require_inside(target, nbytes)
        self._require_inside(source, nbytes)
        ctypes.memmove(target, source, nbytes)

    def zero(self, address: int, nbytes: int) -> None:
        """Set bytes to zero."""
        self._require_inside(address, nbytes)
        ctypes.memset(address, 0, nbytes)

    def launch(self, call: Call) -> None:
        """Run a kernel; HostDeviceError for arguments that are not those of its parameters."""
        library = self.library(call.file)
        wanted = library.kinds(call.kernel)
        found = "".join("p" if isinstance(slot, Pointer) else "i" for slot in call.slots)
        where = f"{call.file}: {call.kernel}"
        if wanted != found:
            raise HostDeviceError(f"{where} takes {wanted!r}, is launched with {found!r}")
        threads = call.block[0] * call.block[1] * call.block[2]
        blocks = call.grid[0] * call.grid[1] * call.grid[2]
        if min(*call.grid, *call.block) < 1 or threads > MOST_THREADS or blocks > 2**31 - 1:
            raise HostDeviceError(f"{where} cannot have grid {call.grid} and block {call.block}")
        if not 0 <= call.shared <= 227 * 1024:
            raise HostDeviceError(f"{where} cannot have {call.shared} bytes of shared memory")
        slots = [slot.address if isinstance(slot, Pointer) else slot for slot in call.slots]
        library.launch(call.kernel, slots, call.grid, call.block, call.shared)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself."""
        return work

    def fork(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as early as it may be: now.  The driver of these tests has it as late as it may
        be, and knows of joins that are missing."""
        work()
        return lambda: None

    def time(self, work: Callable[[], None]) -> float:
        """Seconds that the work takes."""
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def synchronize(self) -> None:
        """Check that nothing was written beside an allocation."""
        for allocation in self._allocations.values():
            if not allocation.is_intact():
                raise HostDeviceError(f"written beside an allocation of {allocation.nbytes} bytes")

    def is_done(self) -> bool:
        """Everything is done at once."""
        return True

    def abandon(self) -> None:
        """Nothing hangs here that could be left."""

    def close(self) -> None:
        """Give everything back, checking each allocation."""
        for address in list(self._allocations):
            self.free(address)
        self._shared.clear()
