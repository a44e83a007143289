# ruff: noqa: N802 - the names are the driver's
"""A driver without a GPU: memory is the host's, kernels are those of ``HostDevice``.

It has the functions of ``cuda.bindings.driver`` that the engine calls, and refuses a call with
another number of arguments than the real one takes.  Work is as late as the interface allows: a
stream does nothing until somebody waits for it, so that a missing wait shows as wrong bytes; in a
graph, what was captured on another stream comes where the first one waits for it.  What may not be
called while a stream is captured fails and spoils the capture.  Any thread may call.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver as real

from tests.cuda.host_device import HostDevice, HostDeviceError

OK = real.CUresult.CUDA_SUCCESS
UNSAFE = {
    "cuMemAlloc": 2,
    "cuMemFree": 1,
    "cuMemHostAlloc": 2,
    "cuMemFreeHost": 1,
    "cuModuleLoadData": 2,
    "cuModuleUnload": 1,
    "cuGraphExecDestroy": 1,
}
"""Calls that may wait for the device, which a thread that captures must not make: length of what
they return."""


class Stream:
    """Operations in order, and how many of them are done."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], object]] = deque()
        self.done = self.asked = 0
        self.capture: list[Callable[[], object]] | None = None
        self.spoiled = False
        self.joined = 0
        """Of what is captured on a stream that joined the capture of another: how much that one
        waited for."""

    def push(self, work: Callable[[], object]) -> None:
        if self.capture is not None:
            self.capture.append(work)
        else:
            self.queue.append(work)
            self.asked += 1

    def run_to(self, count: int) -> None:
        while self.done < count:
            work = self.queue.popleft()
            self.done += 1
            work()


class Event:
    """A point of a stream."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.capture: list[Callable[[], object]] | None = None
        self.at = 0

    def wait(self) -> None:
        if self.stream is not None:
            self.stream.run_to(self.at)


class Uuid:
    bytes = bytes(range(16))


class FakeDriver:
    """``cuda.bindings.driver`` as far as the engine needs it, on the memory of ``device``."""

    def __init__(self, device: HostDevice, sources: dict[str, str]) -> None:
        self.device, self._sources = device, sources
        self._pinned: dict[int, Any] = {}
        self._lock = threading.RLock()
        self._captured: tuple[int, Stream] | None = None
        self._forked: list[Stream] = []
        """Streams that joined the capture."""
        self.graphs = self.captured = 0
        self.pinned_bytes = 2**28
        """What may be pinned in all."""
        self.largest_shared: dict[tuple[str, str], int] = {}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            found = object.__getattribute__(self, name)
            signature = re.match(rf"{name}\((.*)\)", getattr(real, name).__doc__.splitlines()[0])
            assert signature is not None, name
            wanted = len([part for part in signature[1].split(",") if part.strip()])

            @functools.wraps(found)
            def call(*arguments: Any) -> Any:
                assert len(arguments) == wanted, f"{name} takes {wanted}, not {len(arguments)}"
                with self._lock:
                    if name in UNSAFE and self._captured is not None:
                        thread, _ = self._captured
                        if thread == threading.get_ident():
                            return self._spoil(UNSAFE[name])
                    return found(*arguments)

            return call
        if name.startswith("CU"):
            return getattr(real, name)
        return object.__getattribute__(self, name)

    def _spoil(
        self, values: int, failed: Any = real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    ) -> Any:
        """End the use of a capture by a call that it forbids."""
        assert self._captured is not None
        self._captured[1].spoiled = True
        return (failed, *[None] * (values - 1))

    def cuInit(self, flags: int) -> Any:
        return (OK,)

    def cuDriverGetVersion(self) -> Any:
        return OK, 13020

    def cuGetErrorString(self, error: Any) -> Any:
        return OK, b"said so"

    def cuDeviceGetCount(self) -> Any:
        return OK, 1

    def cuDeviceGet(self, ordinal: int) -> Any:
        return OK, ordinal

    def cuDeviceGetName(self, length: int, device: Any) -> Any:
        return OK, b"Fake\0\0"

    def cuDeviceGetUuid(self, device: Any) -> Any:
        return OK, Uuid()

    def cuDeviceGetAttribute(self, attribute: Any, device: Any) -> Any:
        kind = real.CUdevice_attribute
        values = {
            kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 8,
            kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
            kind.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 4,
        }
        return OK, values[attribute]

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device: Any) -> Any:
        return (OK,)

    def cuCtxSetCurrent(self, context: Any) -> Any:
        assert context == "context"
        return (OK,)

    def cuStreamCreate(self, flags: int) -> Any:
        return OK, Stream()

    def cuCtxGetStreamPriorityRange(self) -> Any:
        return OK, 0, -5

    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> Any:
        assert -5 <= priority <= 0
        return OK, Stream()

    def cuStreamDestroy(self, stream: Stream) -> Any:
        assert not stream.queue
        return (OK,)

    def cuStreamSynchronize(self, stream: Stream) -> Any:
        if stream.capture is not None:
            return self._spoil(1)
        stream.run_to(stream.asked)
        return (OK,)

    def cuStreamQuery(self, stream: Stream) -> Any:
        """What is asked about is done the next time."""
        assert stream.capture is None, "asks while capturing"
        if stream.done == stream.asked:
            return (OK,)
        stream.run_to(stream.asked)
        return (real.CUresult.CUDA_ERROR_NOT_READY,)

    def cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> Any:
        if event.capture is None and stream.capture is None:
            point = Event()
            point.stream, point.at = event.stream, event.at
            stream.push(point.wait)
        elif event.capture is None:
            return self._spoil(1, real.CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
        elif stream.capture is None:
            assert event.stream is not None
            assert event.capture is event.stream.capture, "waits for what was captured before"
            stream.capture, stream.joined = [], 0
            self._forked.append(stream)
        elif event.stream is not stream:
            assert event.stream is not None
            stream.capture += event.capture[event.stream.joined : event.at]
            event.stream.joined = event.at
        return (OK,)

    def cuStreamBeginCapture(self, stream: Stream, mode: Any) -> Any:
        stream.capture, stream.spoiled = [], False
        self._captured = threading.get_ident(), stream
        return (OK,)

    def cuStreamEndCapture(self, stream: Stream) -> Any:
        graph, stream.capture, self._captured = stream.capture, None, None
        unjoined = any(len(other.capture or ()) > other.joined for other in self._forked)
        for other in self._forked:
            other.capture = None
        self._forked.clear()
        if unjoined and not stream.spoiled:
            return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, None
        if stream.spoiled:
            return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, None
        self.captured += 1
        return OK, graph

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        self.graphs += 1
        return OK, list(graph)

    def cuGraphDestroy(self, graph: Any) -> Any:
        graph.clear()
        self.captured -= 1
        return (OK,)

    def cuGraphExecDestroy(self, graph: Any) -> Any:
        self.graphs -= 1
        return (OK,)

    def cuGraphLaunch(self, graph: Any, stream: Stream) -> Any:
        for work in graph:
            stream.push(work)
        return (OK,)

    def cuEventCreate(self, flags: int) -> Any:
        return OK, Event()

    def cuEventDestroy(self, event: Event) -> Any:
        return (OK,)

    def cuEventRecord(self, event: Event, stream: Stream) -> Any:
        event.stream, event.capture = stream, stream.capture
        event.at = stream.asked if stream.capture is None else len(stream.capture)
        return (OK,)

    def cuEventSynchronize(self, event: Event) -> Any:
        assert event.capture is None, "waits for what is captured"
        event.wait()
        return (OK,)

    def cuEventElapsedTime(self, begin: Event, end: Event) -> Any:
        return OK, 1.5

    def cuMemGetInfo(self) -> Any:
        return OK, *self.device.memory()

    def cuMemAlloc(self, nbytes: int) -> Any:
        if nbytes > self.device.memory().free:
            return real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        return OK, self.device.allocate(nbytes)

    def cuMemFree(self, address: int) -> Any:
        self.device.free(address)
        return (OK,)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> Any:
        if nbytes + sum(data.nbytes for data in self._pinned.values()) > self.pinned_bytes:
            return real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        data = np.zeros(nbytes, np.uint8)
        self._pinned[data.ctypes.data] = data
        return OK, data.ctypes.data

    def cuMemHostGetDevicePointer(self, host: int, flags: int) -> Any:
        return OK, host

    def cuMemFreeHost(self, host: int) -> Any:
        del self._pinned[host]
        return (OK,)

    def _copy(self, target: int, source: int, nbytes: int, stream: Stream) -> Any:
        stream.push(lambda: ctypes.memmove(target, source, nbytes))
        return (OK,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> Any:
        assert source in self._pinned, "copies from pageable memory wait"
        return self._copy(target, source, nbytes, stream)

    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> Any:
        assert target in self._pinned, "copies to pageable memory wait"
        return self._copy(target, source, nbytes, stream)

    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> Any:
        return self._copy(target, source, nbytes, stream)

    def cuMemsetD8Async(self, target: int, value: int, nbytes: int, stream: Stream) -> Any:
        stream.push(lambda: ctypes.memset(target, value, nbytes))
        return (OK,)

    def cuModuleLoadData(self, image: int) -> Any:
        file = ctypes.string_at(image).decode()
        if file in self._sources:
            self.device.add_source(file, self._sources[file])
        return OK, file

    def cuModuleUnload(self, module: Any) -> Any:
        return (OK,)

    def cuModuleGetFunction(self, module: str, name: bytes) -> Any:
        try:
            self.device.library(module).kinds(name.decode())
        except HostDeviceError:
            return real.CUresult.CUDA_ERROR_NOT_FOUND, None
        return OK, (module, name.decode())

    def cuFuncLoad(self, function: Any) -> Any:
        return (OK,)

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> Any:
        self.largest_shared[function] = value
        return (OK,)

    def cuLaunchKernel(self, function: Any, *rest: Any) -> Any:
        grid, block, (shared, stream, parameters, extra) = rest[:3], rest[3:6], rest[6:]
        assert extra == 0
        module, kernel = function
        if block[0] * block[1] * block[2] > 1024:
            return (real.CUresult.CUDA_ERROR_INVALID_VALUE,)
        if shared > max(48 * 1024, self.largest_shared.get(function, 0)):
            return (real.CUresult.CUDA_ERROR_INVALID_VALUE,)
        library = self.device.library(module)
        count = len(library.kinds(kernel))
        pointers = (ctypes.c_void_p * count).from_address(parameters)
        # The driver takes the values at once: the caller's memory may be gone when it runs.
        values = [ctypes.c_uint64.from_address(pointer or 0).value for pointer in pointers]
        stream.push(lambda: library.launch(kernel, values, grid, block, shared))
        return (OK,)


class FakeCompiler:
    """A compiler whose code is the name of the file."""

    version = "13.2"

    def __init__(self, sources: dict[str, str], architecture: str, **options: Any) -> None:
        self._sources = sources
        self.failures: dict[str, Any] = {}

    def compile(self, file: str, text: str | None = None) -> bytes:
        if text is not None:
            self._sources[file] = text
        return file.encode() + b"\0"
