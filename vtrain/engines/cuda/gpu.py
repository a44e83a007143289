"""``Device`` on an NVIDIA GPU, through the driver's own interface.

One stream for kernels; large copies to the host go beside it, in pieces through pinned memory, so
that they are as fast as the bus.  Steps are CUDA graphs.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.engines.cuda.compile import (
    INSTALL,
    OPTIONS,
    Compiler,
    choose_architecture,
    find_default_cache,
)
from vtrain.engines.cuda.device import Call, DeviceInfo, Memory, Pointer
from vtrain.errors import KernelError, MissingExtraError, RunError

PIECE: Final = 1 << 23
"""Bytes of each of the two pinned buffers that copies go through."""
OLDEST: Final = 13000
"""The least version of CUDA that the driver must know: that of the bindings and of NVRTC."""
STATIC_SHARED: Final = 48 * 1024
"""Shared memory that a block gets without asking for more."""
COMPILERS: Final = 8
"""Files that are compiled at one time."""


def load_driver() -> Any:
    """The binding of the driver; MissingExtraError without the extra, RunError without a driver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingExtraError(
            f"the cuda engine needs cuda-bindings ({error}): {INSTALL}", where="engine cuda"
        ) from None
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError as error:
        raise RunError(
            f"there is no NVIDIA driver on this machine ({error}): install one, or take engine cpu",
            where="engine cuda",
        ) from None
    if result == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise RunError(
            "the driver finds no NVIDIA GPU: `nvidia-smi` must list one, or take engine cpu",
            where="engine cuda",
        )
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RunError(f"the NVIDIA driver does not start: {result.name}", where="engine cuda")
    result, version = driver.cuDriverGetVersion()
    if result != driver.CUresult.CUDA_SUCCESS or version < OLDEST:
        raise RunError(
            f"the NVIDIA driver is of CUDA {version // 1000}.{version % 1000 // 10}: kernels need "
            "one of CUDA 13 (580 or newer), or take engine cpu",
            where="engine cuda",
        )
    return driver


def is_available() -> bool:
    """Whether the extra, a driver and a GPU that kernels can be compiled for are there."""
    try:
        # Where there is no driver, this says so without the bindings, which are slow to load.
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    try:
        driver = load_driver()
        result, count = driver.cuDeviceGetCount()
        if result != driver.CUresult.CUDA_SUCCESS or count == 0:
            return False
        choose_architecture(*_read_capability(driver, 0))
    except (KernelError, MissingExtraError, RunError):
        return False
    return True


def _read_capability(driver: Any, ordinal: int) -> tuple[int, int]:
    """Compute capability of a GPU that is there; KernelError when the driver does not say."""
    result, device = driver.cuDeviceGet(ordinal)
    wanted = driver.CUdevice_attribute
    found = []
    for attribute in (
        wanted.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        wanted.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    ):
        if result == driver.CUresult.CUDA_SUCCESS:
            result, value = driver.cuDeviceGetAttribute(attribute, device)
            found.append(int(value))
    if result != driver.CUresult.CUDA_SUCCESS:
        raise KernelError(f"the driver does not describe it: {result.name}", where=f"GPU {ordinal}")
    return found[0], found[1]


class CudaDevice:
    """``vtrain.engines.cuda.device.Device`` on GPU number ``ordinal``.

    ``folder`` keeps compiled kernels (None: the user's cache).  MissingExtraError without the
    extra, RunError without driver or GPU, KernelError when a kernel fails.
    """

    def __init__(self, ordinal: int = 0, *, folder: Path | None = None) -> None:
        self._driver = load_driver()
        driver = self._driver
        count = self._check(*driver.cuDeviceGetCount())
        if not 0 <= ordinal < count:
            raise RunError(f"there are {count} GPUs", where=f"GPU {ordinal}")
        self._ordinal = ordinal
        self._device = self._check(*driver.cuDeviceGet(ordinal))
        self._info = self._describe()
        self._context = self._check(*driver.cuDevicePrimaryCtxRetain(self._device))
        self._enter()
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        self._stream = self._check(*driver.cuStreamCreate(flags))
        self._aside = self._check(*driver.cuStreamCreate(flags))
        timed = driver.CUevent_flags.CU_EVENT_DEFAULT.value
        untimed = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        self._begin, self._end = (self._check(*driver.cuEventCreate(timed)) for _ in range(2))
        self._reached = self._check(*driver.cuEventCreate(untimed))
        self._pieces = [self._make_piece(untimed) for _ in range(2)]
        self._compiler = Compiler(
            self._info.architecture, folder=find_default_cache() if folder is None else folder
        )
        compiler = " ".join(("NVRTC", self._compiler.version, *OPTIONS))
        self._info = replace(self._info, compiler=compiler)
        self._sources: dict[str, str] = {}
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str], Any] = {}
        self._allocated: set[int] = set()
        self._shared: dict[int, int] = {}
        self._graphs: list[Any] = []

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def memory(self) -> Memory:
        self._enter()
        return Memory(*self._check(*self._driver.cuMemGetInfo()))

    def add_source(self, file: str, text: str) -> None:
        if self._sources.get(file) != text:
            self._sources[file] = text
            self._modules.pop(file, None)
            self._functions = {key: f for key, f in self._functions.items() if key[0] != file}

    def prepare(self, kernels: Sequence[tuple[str, str]]) -> None:
        files = [file for file in dict.fromkeys(f for f, _ in kernels) if file not in self._modules]
        with ThreadPoolExecutor(COMPILERS) as pool:
            codes = list(pool.map(self._compile, files))
        self._enter()
        for file, code in zip(files, codes, strict=True):
            self._modules[file] = self._load(code)
        for file, kernel in kernels:
            self._function(file, kernel)

    def allocate(self, nbytes: int) -> int:
        self._enter()
        result, address = self._driver.cuMemAlloc(max(nbytes, 1))
        if result == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free, total = self.memory()
            raise RunError(
                f"needs {nbytes / 1e9:.3f} GB of device memory, {free / 1e9:.3f} of "
                f"{total / 1e9:.3f} GB are free",
                where=f"device {self._info.name}",
            )
        self._check(result)
        self._allocated.add(int(address))
        return int(address)

    def free(self, address: int) -> None:
        self._enter()
        host = self._shared.pop(address, None)
        if host is None:
            self._allocated.remove(address)
        (result,) = self._driver.cuStreamSynchronize(self._stream)
        if result != self._driver.CUresult.CUDA_SUCCESS:
            # The device failed, which whoever launched is told; its memory is gone with it.
            return
        if host is None:
            self._check(*self._driver.cuMemFree(address))
        else:
            self._check(*self._driver.cuMemFreeHost(host))

    def share(self, data: npt.NDArray[np.uint8]) -> int:
        self._enter()
        host = int(self._check(*self._driver.cuMemHostAlloc(data.nbytes, _MAPPED)))
        rows = data.reshape(len(data), -1)
        width = rows[:1].nbytes
        step = max(1, PIECE // max(1, width))
        for first in range(0, len(rows), step):
            piece = np.ascontiguousarray(rows[first : first + step])
            ctypes.memmove(host + first * width, piece.ctypes.data, piece.nbytes)
        address = int(self._check(*self._driver.cuMemHostGetDevicePointer(host, 0)))
        self._shared[address] = host
        return address

    def write(self, address: int, data: bytes | npt.NDArray[np.uint8]) -> None:
        self._enter()
        content = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        content = np.ascontiguousarray(content).reshape(-1)
        driver = self._driver
        for at in range(0, content.nbytes, PIECE):
            part = content[at : at + PIECE]
            host, done = self._pieces[at // PIECE % 2]
            self._check(*driver.cuEventSynchronize(done))
            ctypes.memmove(host, part.ctypes.data, part.nbytes)
            self._check(*driver.cuMemcpyHtoDAsync(address + at, host, part.nbytes, self._stream))
            self._check(*driver.cuEventRecord(done, self._stream))

    def read(self, address: int, nbytes: int) -> bytes:
        self._enter()
        driver = self._driver
        self._check(*driver.cuEventRecord(self._reached, self._stream))
        self._check(*driver.cuStreamWaitEvent(self._aside, self._reached, 0))
        result = bytearray(nbytes)
        pieces = range(0, nbytes, PIECE)
        for at in pieces[:2]:
            self._fetch(address, nbytes, at)
        for at in pieces:
            host, done = self._pieces[at // PIECE % 2]
            self._check(*driver.cuEventSynchronize(done))
            target = ctypes.c_char.from_buffer(result, at)
            ctypes.memmove(ctypes.addressof(target), host, min(PIECE, nbytes - at))
            if at + 2 * PIECE < nbytes:
                self._fetch(address, nbytes, at + 2 * PIECE)
        if nbytes == 0:
            self.synchronize()
        return bytes(result)

    def _fetch(self, address: int, nbytes: int, at: int) -> None:
        """Begin to copy the piece at ``at`` to its pinned buffer."""
        driver, (host, done) = self._driver, self._pieces[at // PIECE % 2]
        # What was written through this buffer must have left it.
        self._check(*driver.cuStreamWaitEvent(self._aside, done, 0))
        size = min(PIECE, nbytes - at)
        self._check(*driver.cuMemcpyDtoHAsync(host, address + at, size, self._aside))
        self._check(*driver.cuEventRecord(done, self._aside))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._check(*self._driver.cuMemcpyDtoDAsync(target, source, nbytes, self._stream))

    def zero(self, address: int, nbytes: int) -> None:
        self._enter()
        self._check(*self._driver.cuMemsetD8Async(address, 0, nbytes, self._stream))

    def launch(self, call: Call) -> None:
        function = self._function(call.file, call.kernel)
        if call.shared > STATIC_SHARED:
            attribute = self._driver.CUfunction_attribute
            most = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(*self._driver.cuFuncSetAttribute(function, most, call.shared))
        values = (ctypes.c_uint64 * len(call.slots))(
            *((slot.address if isinstance(slot, Pointer) else slot) % 2**64 for slot in call.slots)
        )
        start = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(call.slots))(
            *(start + 8 * at for at in range(len(call.slots)))
        )
        launched = self._driver.cuLaunchKernel(
            function,
            *call.grid,
            *call.block,
            call.shared,
            self._stream,
            ctypes.addressof(pointers),
            0,
        )
        self._check(*launched, where=f"{call.file}: {call.kernel}")

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self._enter()
        driver = self._driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._check(*driver.cuStreamBeginCapture(self._stream, mode))
        try:
            work()
        finally:
            result, graph = driver.cuStreamEndCapture(self._stream)
        self._check(result)
        executable = self._check(*driver.cuGraphInstantiate(graph, 0))
        self._check(*driver.cuGraphDestroy(graph))
        self._graphs.append(executable)

        def replay() -> None:
            self._enter()
            self._check(*driver.cuGraphLaunch(executable, self._stream))

        weakref.finalize(replay, self._drop_graph, executable).atexit = False
        return replay

    def _drop_graph(self, executable: Any) -> None:
        """Give back a graph that nobody can launch any more."""
        if any(other is executable for other in self._graphs):
            self._graphs = [other for other in self._graphs if other is not executable]
            self._enter()
            self._driver.cuGraphExecDestroy(executable)

    def time(self, work: Callable[[], None]) -> float:
        self._enter()
        driver = self._driver
        self._check(*driver.cuEventRecord(self._begin, self._stream))
        work()
        self._check(*driver.cuEventRecord(self._end, self._stream))
        self._check(*driver.cuEventSynchronize(self._end))
        milliseconds = self._check(*driver.cuEventElapsedTime(self._begin, self._end))
        return float(milliseconds) / 1e3

    def synchronize(self) -> None:
        self._enter()
        self._check(*self._driver.cuStreamSynchronize(self._stream))
        self._check(*self._driver.cuStreamSynchronize(self._aside))

    def close(self) -> None:
        self.synchronize()
        driver = self._driver
        for executable in list(self._graphs):
            self._drop_graph(executable)
        for module in self._modules.values():
            self._check(*driver.cuModuleUnload(module))
        for address in [*self._allocated, *self._shared]:
            self.free(address)
        for host, done in self._pieces:
            self._check(*driver.cuMemFreeHost(host))
            self._check(*driver.cuEventDestroy(done))
        for event in (self._begin, self._end, self._reached):
            self._check(*driver.cuEventDestroy(event))
        for stream in (self._stream, self._aside):
            self._check(*driver.cuStreamDestroy(stream))
        self._check(*driver.cuDevicePrimaryCtxRelease(self._device))

    def _enter(self) -> None:
        """Make the context that of this thread."""
        self._check(*self._driver.cuCtxSetCurrent(self._context))

    def _describe(self) -> DeviceInfo:
        driver, device = self._driver, self._device
        name = self._check(*driver.cuDeviceGetName(256, device))
        uuid = self._check(*driver.cuDeviceGetUuid(device))
        attribute = driver.CUdevice_attribute

        def read(wanted: Any) -> int:
            return int(self._check(*driver.cuDeviceGetAttribute(wanted, device)))

        return DeviceInfo(
            name=name.split(b"\0")[0].decode(errors="replace"),
            uuid=bytes(uuid.bytes).hex(),
            driver=self._read_driver_version(),
            architecture=choose_architecture(*_read_capability(driver, self._ordinal)),
            processors=read(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        )

    def _read_driver_version(self) -> str:
        """The driver's own version, as nvidia-smi shows it; else the CUDA version it offers."""
        from cuda.bindings import nvml

        try:
            nvml.init_v2()
            return str(nvml.system_get_driver_version())
        except (RuntimeError, nvml.NvmlError):
            version = int(self._check(*self._driver.cuDriverGetVersion()))
            return f"CUDA {version // 1000}.{version % 1000 // 10}"

    def _make_piece(self, flags: int) -> tuple[int, Any]:
        host = int(self._check(*self._driver.cuMemHostAlloc(PIECE, 0)))
        return host, self._check(*self._driver.cuEventCreate(flags))

    def _compile(self, file: str) -> bytes:
        return self._compiler.compile(file, self._sources.get(file))

    def _load(self, code: bytes) -> Any:
        image = np.frombuffer(code, np.uint8)
        return self._check(*self._driver.cuModuleLoadData(image.ctypes.data))

    def _function(self, file: str, kernel: str) -> Any:
        found = self._functions.get((file, kernel))
        if found is None:
            if file not in self._modules:
                self._modules[file] = self._load(self._compile(file))
            name, where = kernel.encode(), f"{file}: {kernel}"
            found = self._check(
                *self._driver.cuModuleGetFunction(self._modules[file], name), where=where
            )
            # Loaded at once: a lazy load in the middle of a capture would be an error.
            self._check(*self._driver.cuFuncLoad(found), where=where)
            self._functions[file, kernel] = found
        return found

    def _check(self, result: Any, *values: Any, where: str = "") -> Any:
        """The value of a call of the driver, or KernelError."""
        if result != self._driver.CUresult.CUDA_SUCCESS:
            _, text = self._driver.cuGetErrorString(result)
            said = text.decode(errors="replace") if text else result.name
            name = getattr(self, "_info", None)
            place = where or (f"device {name.name}" if name is not None else "engine cuda")
            raise KernelError(
                f"{said} ({result.name}); the run can go on from its last checkpoint", where=place
            )
        return values[0] if len(values) == 1 else values


_MAPPED: Final = 3
"""CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP"""
