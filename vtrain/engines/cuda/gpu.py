"""``Device`` on an NVIDIA GPU, through the driver's own interface.

One stream for kernels and one for what is forked off, which takes the processors that the first
leaves free.  Large copies to the host go beside both, in pieces through pinned memory, so that they
are as fast as the bus: what somebody waits for on one stream, checkpoints on another, so that
neither waits for the other.  Steps are CUDA graphs.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

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
from vtrain.errors import DeviceError, KernelError, MissingExtraError, RunError, VtrainError

PIECE: Final = 1 << 23
"""Bytes of each of the two pinned buffers that copies go through."""
OLDEST: Final = 13000
"""The least version of CUDA that the driver must know: that of the bindings and of NVRTC."""
STATIC_SHARED: Final = 48 * 1024
"""Shared memory that a block gets without asking for more."""
COMPILERS: Final = 8
"""Files that are compiled at one time."""


class _Lane(NamedTuple):
    """A way to the host: pieces (pinned buffer, event of its last use) that take turns."""

    stream: Any
    pieces: tuple[tuple[int, Any], tuple[int, Any]]


def load_driver() -> Any:
    """The binding of the driver; MissingExtraError without the extra, DeviceError without a driver
    that serves."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingExtraError(
            f"the cuda engine needs cuda-bindings ({error}): {INSTALL}", where="engine cuda"
        ) from None
    try:
        (result,) = driver.cuInit(0)
    except RuntimeError as error:
        raise DeviceError(
            f"there is no NVIDIA driver on this machine ({error}): install one, or take engine cpu",
            where="engine cuda",
        ) from None
    if result == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise DeviceError(
            "the driver finds no NVIDIA GPU: `nvidia-smi` must list one, or take engine cpu",
            where="engine cuda",
        )
    if result != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"the NVIDIA driver does not start: {result.name}", where="engine cuda")
    result, version = driver.cuDriverGetVersion()
    if result != driver.CUresult.CUDA_SUCCESS or version < OLDEST:
        raise DeviceError(
            f"the NVIDIA driver is of CUDA {name_version(version)}: kernels need "
            "one of CUDA 13 (580 or newer), or take engine cpu",
            where="engine cuda",
        )
    return driver


def name_version(version: int) -> str:
    """A version of CUDA as people write it: 13020 is 13.2."""
    return f"{version // 1000}.{version % 1000 // 10}"


def has_driver() -> bool:
    """Whether an NVIDIA driver is installed, of whatever age; without the bindings, which are slow
    to load."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def find_obstacle() -> VtrainError | None:
    """Why the first GPU cannot be used, nothing being opened on it; None where it can.

    The extra, a driver and a GPU that kernels can be compiled for must be there.
    """
    if not has_driver():
        return DeviceError("there is no NVIDIA driver on this machine", where="engine cuda")
    try:
        driver = load_driver()
        result, count = driver.cuDeviceGetCount()
        if result != driver.CUresult.CUDA_SUCCESS or count == 0:
            return DeviceError("the driver finds no NVIDIA GPU", where="engine cuda")
        choose_architecture(*_read_capability(driver, 0))
    except (KernelError, MissingExtraError, RunError) as error:
        return error
    return None


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


def read_host_memory() -> Memory:
    """Bytes of the host's memory: available now, and in all."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {line[0]: int(line[1]) * 1024 for line in lines}
    return Memory(sizes["MemAvailable:"], sizes["MemTotal:"])


class CudaDevice:
    """``vtrain.engines.cuda.device.Device`` on GPU number ``ordinal``.

    ``folder`` keeps compiled kernels (None: the user's cache).  MissingExtraError without the
    extra, RunError without driver or GPU, KernelError when a kernel fails.
    """

    _opened = False

    def __init__(self, ordinal: int = 0, *, folder: Path | None = None) -> None:
        self._driver = load_driver()
        self._abandoned = False
        driver = self._driver
        count = self._check(*driver.cuDeviceGetCount())
        if not 0 <= ordinal < count:
            raise RunError(
                f"is not there: the driver has {count} of them, counted from 0",
                where=f"GPU {ordinal}",
            )
        self._ordinal = ordinal
        self._device = self._check(*driver.cuDeviceGet(ordinal))
        self._info = self._describe()
        self._context = self._check(*driver.cuDevicePrimaryCtxRetain(self._device))
        self._enter()
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        # Blocks of a kernel that waits for the bus would keep those of a step from the processors.
        least, greatest = self._check(*driver.cuCtxGetStreamPriorityRange())
        self._stream, self._side = (
            self._check(*driver.cuStreamCreateWithPriority(flags, priority))
            for priority in (greatest, least)
        )
        self._queue = self._stream
        timed = driver.CUevent_flags.CU_EVENT_DEFAULT.value
        untimed = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        self._begin, self._end = (self._check(*driver.cuEventCreate(timed)) for _ in range(2))
        self._reached, self._forked, self._joined = (
            self._check(*driver.cuEventCreate(untimed)) for _ in range(3)
        )
        self._near, self._far = (self._make_lane(flags, untimed) for _ in range(2))
        self._far_free = threading.Lock()
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
        self._recording = threading.RLock()
        self._capturing = False
        self._late: list[Callable[[], None]] = []
        self._opened = True

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
            self._modules[file] = self._load(file, code)
        for file, kernel in kernels:
            self._function(file, kernel)

    def allocate(self, nbytes: int) -> int:
        self._enter()
        result, address = self._driver.cuMemAlloc(max(nbytes, 1))
        if result == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free, total = self.memory()
            raise DeviceError(
                f"needs {nbytes / 1e9:.3f} GB of device memory, {free / 1e9:.3f} of "
                f"{total / 1e9:.3f} GB are free",
                where=f"device {self._info.name}",
            )
        self._check(result)
        self._allocated.add(int(address))
        return int(address)

    def free(self, address: int) -> None:
        if not self._abandoned:
            self._do_uncaptured(partial(self._free, address))

    def _free(self, address: int) -> None:
        self._enter()
        host = self._shared.pop(address, None)
        if host is None:
            self._allocated.remove(address)
        for stream in (self._side, self._stream):
            (result,) = self._driver.cuStreamSynchronize(stream)
            if result != self._driver.CUresult.CUDA_SUCCESS:
                # The device failed, which whoever launched is told; its memory is gone with it.
                return
        if host is None:
            self._check(*self._driver.cuMemFree(address))
        else:
            self._check(*self._driver.cuMemFreeHost(host))

    def share(self, data: npt.NDArray[np.uint8]) -> int:
        self._enter()
        host = self._pin(data.nbytes, _MAPPED)
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
            host, done = self._near.pieces[at // PIECE % 2]
            self._check(*driver.cuEventSynchronize(done))
            ctypes.memmove(host, part.ctypes.data, part.nbytes)
            self._check(*driver.cuMemcpyHtoDAsync(address + at, host, part.nbytes, self._stream))
            self._check(*driver.cuEventRecord(done, self._stream))

    def read(self, address: int, nbytes: int) -> bytes:
        self._enter()
        self._follow(self._near)
        if nbytes == 0:
            self.synchronize()
        return bytes(self._fetch(self._near, address, nbytes))

    def read_later(self, address: int, nbytes: int) -> Callable[[], bytearray]:
        self._enter()
        self._follow(self._far)

        def finish() -> bytearray:
            with self._far_free:
                self._enter()
                return self._fetch(self._far, address, nbytes)

        return finish

    def _follow(self, lane: _Lane) -> None:
        """What goes through ``lane`` from now on comes after all work queued until now."""
        self._check(*self._driver.cuEventRecord(self._reached, self._stream))
        self._check(*self._driver.cuStreamWaitEvent(lane.stream, self._reached, 0))

    def _fetch(self, lane: _Lane, address: int, nbytes: int) -> bytearray:
        """Bytes of the device, as the work that the lane follows leaves them."""
        result = bytearray(nbytes)
        pieces = range(0, nbytes, PIECE)
        for at in pieces[:2]:
            self._fetch_piece(lane, address, nbytes, at)
        for at in pieces:
            host, done = lane.pieces[at // PIECE % 2]
            self._check(*self._driver.cuEventSynchronize(done))
            target = ctypes.c_char.from_buffer(result, at)
            ctypes.memmove(ctypes.addressof(target), host, min(PIECE, nbytes - at))
            if at + 2 * PIECE < nbytes:
                self._fetch_piece(lane, address, nbytes, at + 2 * PIECE)
        return result

    def _fetch_piece(self, lane: _Lane, address: int, nbytes: int, at: int) -> None:
        """Begin to copy the piece at ``at`` to its pinned buffer."""
        driver, (host, done) = self._driver, lane.pieces[at // PIECE % 2]
        # What was written through this buffer must have left it.
        self._check(*driver.cuStreamWaitEvent(lane.stream, done, 0))
        size = min(PIECE, nbytes - at)
        self._check(*driver.cuMemcpyDtoHAsync(host, address + at, size, lane.stream))
        self._check(*driver.cuEventRecord(done, lane.stream))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._enter()
        self._check(*self._driver.cuMemcpyDtoDAsync(target, source, nbytes, self._queue))

    def zero(self, address: int, nbytes: int) -> None:
        self._enter()
        self._check(*self._driver.cuMemsetD8Async(address, 0, nbytes, self._queue))

    def launch(self, call: Call) -> None:
        function = self._function(call.file, call.kernel)
        if call.shared > STATIC_SHARED:
            attribute = self._driver.CUfunction_attribute
            most = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            allowed = self._driver.cuFuncSetAttribute(function, most, call.shared)
            self._check(*allowed, where=f"{call.file}: {call.kernel}")
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
            self._queue,
            ctypes.addressof(pointers),
            0,
        )
        self._check(*launched, where=f"{call.file}: {call.kernel}")

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self._enter()
        driver, graph = self._driver, None
        try:
            with self._recording:
                graph = self._capture(work)
            executable = self._check(*driver.cuGraphInstantiate(graph, 0))
        finally:
            if graph is not None:
                driver.cuGraphDestroy(graph)
        self._graphs.append(executable)

        def replay() -> None:
            self._enter()
            self._check(*driver.cuGraphLaunch(executable, self._stream))

        weakref.finalize(replay, self._drop_graph, executable).atexit = False
        return replay

    def _capture(self, work: Callable[[], None]) -> Any:
        """What ``work`` queues, as a graph; the stream is as it was, whatever ``work`` raises."""
        driver = self._driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._check(*driver.cuStreamBeginCapture(self._stream, mode))
        self._capturing, done = True, False
        try:
            work()
            done = True
        finally:
            result, graph = driver.cuStreamEndCapture(self._stream)
            self._capturing = False
            if graph is not None and not done:
                driver.cuGraphDestroy(graph)
            while self._late:
                self._late.pop()()
        self._check(result)
        return graph

    def _do_uncaptured(self, work: Callable[[], None]) -> None:
        """Do what frees something: now, or at the end of the recording that is going on.

        A collection of garbage may come at any moment and in any thread, and would make the
        recording invalid.
        """
        with self._recording:
            if self._capturing:
                self._late.append(work)
            else:
                work()

    def _drop_graph(self, executable: Any) -> None:
        """Give back a graph that nobody can launch any more."""
        self._do_uncaptured(partial(self._destroy_graph, executable))

    def _destroy_graph(self, executable: Any) -> None:
        if not self._abandoned and any(other is executable for other in self._graphs):
            self._graphs = [other for other in self._graphs if other is not executable]
            self._enter()
            self._driver.cuGraphExecDestroy(executable)

    def fork(self, work: Callable[[], None]) -> Callable[[], None]:
        self._enter()
        driver = self._driver
        self._check(*driver.cuEventRecord(self._forked, self._stream))
        self._check(*driver.cuStreamWaitEvent(self._side, self._forked, 0))
        self._queue = self._side
        try:
            work()
        finally:
            self._queue = self._stream
        self._check(*driver.cuEventRecord(self._joined, self._side))

        def join() -> None:
            self._enter()
            self._check(*driver.cuStreamWaitEvent(self._stream, self._joined, 0))

        return join

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
        for stream in (self._side, self._stream, self._near.stream):
            self._check(*self._driver.cuStreamSynchronize(stream))

    def is_done(self) -> bool:
        self._enter()
        (result,) = self._driver.cuStreamQuery(self._stream)
        if result == self._driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._check(result)
        return True

    def abandon(self) -> None:
        self._abandoned = True

    def close(self) -> None:
        if self._abandoned:
            return
        self.synchronize()
        driver = self._driver
        self._check(*driver.cuStreamSynchronize(self._far.stream))
        for executable in list(self._graphs):
            self._drop_graph(executable)
        for module in self._modules.values():
            self._check(*driver.cuModuleUnload(module))
        for address in [*self._allocated, *self._shared]:
            self.free(address)
        for host, done in (*self._near.pieces, *self._far.pieces):
            self._check(*driver.cuMemFreeHost(host))
            self._check(*driver.cuEventDestroy(done))
        for event in (self._begin, self._end, self._reached, self._forked, self._joined):
            self._check(*driver.cuEventDestroy(event))
        for stream in (self._stream, self._side, self._near.stream, self._far.stream):
            self._check(*driver.cuStreamDestroy(stream))
        self._check(*driver.cuDevicePrimaryCtxRelease(self._device))

    def _enter(self) -> None:
        """Make the context that of this thread."""
        if self._abandoned:
            raise KernelError(
                "a kernel failed that leaves it unusable for this process: start again",
                where=f"device {self._info.name}",
            )
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
        try:
            # The bindings have it from 13.2 on.
            from cuda.bindings import nvml
        except (ImportError, RuntimeError):
            return f"CUDA {self._read_cuda_version()}"
        try:
            nvml.init_v2()
            return str(nvml.system_get_driver_version())
        except (RuntimeError, nvml.NvmlError):
            return f"CUDA {self._read_cuda_version()}"

    def _read_cuda_version(self) -> str:
        """The newest CUDA that the driver knows."""
        return name_version(int(self._check(*self._driver.cuDriverGetVersion())))

    def _make_lane(self, stream_flags: int, event_flags: int) -> _Lane:
        stream = self._check(*self._driver.cuStreamCreate(stream_flags))
        return _Lane(stream, (self._make_piece(event_flags), self._make_piece(event_flags)))

    def _make_piece(self, flags: int) -> tuple[int, Any]:
        return self._pin(PIECE, 0), self._check(*self._driver.cuEventCreate(flags))

    def _pin(self, nbytes: int, flags: int) -> int:
        """Address of host memory that stays in place."""
        result, host = self._driver.cuMemHostAlloc(nbytes, flags)
        if result == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free, total = read_host_memory()
            raise DeviceError(
                f"needs {nbytes / 1e9:.3f} GB of pinned host memory, {free / 1e9:.3f} of "
                f"{total / 1e9:.3f} GB are available",
                where=f"device {self._info.name}",
            )
        return int(self._check(result, host))

    def _compile(self, file: str) -> bytes:
        return self._compiler.compile(file, self._sources.get(file))

    def _load(self, file: str, code: bytes) -> Any:
        image = np.frombuffer(code, np.uint8)
        result, module = self._driver.cuModuleLoadData(image.ctypes.data)
        if result != self._driver.CUresult.CUDA_SUCCESS:
            raise self._explain_load(file, result)
        return module

    def _explain_load(self, file: str, result: Any) -> KernelError:
        """Why compiled kernels do not load; of what driver and compiler do not agree on, the
        versions of both, which are the way out."""
        name, kinds = self._info.architecture, self._driver.CUresult
        disagree = (
            kinds.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            kinds.CUDA_ERROR_INVALID_PTX,
            kinds.CUDA_ERROR_INVALID_IMAGE,
            kinds.CUDA_ERROR_NO_BINARY_FOR_GPU,
        )
        why = ""
        if result in disagree:
            cuda = self._read_cuda_version()
            what = "PTX" if name.startswith("compute_") else "machine code"
            why = (
                f"the driver knows CUDA {cuda} ({self._info.driver}) and does not take the {what} "
                f"for {name} that NVRTC {self._compiler.version} makes: install a newer driver, or "
                f"an NVRTC no newer than the driver's CUDA: {sys.executable} -m pip install "
                f"'nvidia-cuda-nvrtc=={cuda}.*'; "
            )
        _, text = self._driver.cuGetErrorString(result)
        said = text.decode(errors="replace") if text else result.name
        return KernelError(f"{why}{said} ({result.name})", where=file)

    def _function(self, file: str, kernel: str) -> Any:
        found = self._functions.get((file, kernel))
        if found is None:
            if file not in self._modules:
                self._modules[file] = self._load(file, self._compile(file))
            name, where = kernel.encode(), f"{file}: {kernel}"
            result, found = self._driver.cuModuleGetFunction(self._modules[file], name)
            if result == self._driver.CUresult.CUDA_ERROR_NOT_FOUND:
                failure = self._compiler.failures.get(file)
                if failure is not None:
                    raise failure
            self._check(result, where=where)
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
            resume = "a run goes on from its last checkpoint, if it has one"
            after = resume if self._opened else "nothing was begun"
            raise KernelError(f"{said} ({result.name}); {after}", where=place)
        return values[0] if len(values) == 1 else values


_MAPPED: Final = 3
"""CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP"""
