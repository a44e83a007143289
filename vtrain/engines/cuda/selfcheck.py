"""Trust no silicon: a fast kernel serves on a device only if it agrees with its readable twin.

Each fast kernel is a :class:`Subject` with cases: small inputs of boundary values, the launches of
the fast way and those of the readable one.  Results and counts of saturation must be equal, byte
for byte.  What has passed is remembered by device, driver, compiler and kernel sources.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vtrain.engines.cuda.arena import ALIGNMENT
from vtrain.engines.cuda.device import Call, Device, Pointer, Slot
from vtrain.engines.cuda.digest import encode_places, plan_digests
from vtrain.engines.cuda.fuse import POINTWISE, Chain
from vtrain.engines.cuda.launch import Constant, Launch, Scratch
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.plan import (
    Counter,
    Places,
    Planned,
    PlannedArg,
    Value,
    bind,
    chain_job,
)
from vtrain.engines.cuda.program import Program
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.wire.graph import Attrs, Node, TensorType

Array = npt.NDArray[Any]
ROWS, COLUMNS = 37, 7
"""Form of the values that a chain is tried on: neither divides into whole packs."""
_LARGEST: Final = 2**60
"""Accumulators of legal graphs are smaller."""


class KernelWarning(UserWarning):
    """A fast kernel gave wrong bits on this device and does not serve; the readable one does."""


@dataclass(frozen=True)
class Case:
    """One comparison.  Values are named by numbers: ``inputs`` are given, ``sizes`` has the bytes
    of the others; ``results`` are compared, and the counters of ``counted``."""

    inputs: Mapping[int, Array]
    sizes: Mapping[int, int]
    fast: tuple[Planned, ...]
    readable: tuple[Planned, ...]
    results: tuple[int, ...]
    counted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A fast kernel in one of its uses, and the cases that try it.

    ``sources`` are generated files that it needs.  ``kind`` tells the use from others of the same
    kernel: what passed in one has not passed in another.
    """

    kernel: str
    cases: Callable[[], Iterable[Case]]
    sources: Mapping[str, str]
    kind: str = ""

    @property
    def name(self) -> str:
        """What a verdict is kept by."""
        return f"{self.kernel}:{self.kind}" if self.kind else self.kernel


def make_kind(description: object) -> str:
    """A short name of a use that ``repr`` of the description tells from all others."""
    return hashlib.blake2b(repr(description).encode(), digest_size=8).hexdigest()


class _Outcome(NamedTuple):
    """What launches left: the results and counts, and whether all that they may only read, and what
    lies between their tensors, is as it was."""

    results: tuple[bytes, ...]
    is_intact: bool


def boundary_values(tensor: TensorType, seed: int) -> Array:
    """Values of a type: its extremes and their neighbours, all magnitudes, and uniform ones."""
    rng = np.random.default_rng(seed)
    dtype, (lo, hi) = NUMPY_DTYPES[tensor.dtype], STORAGE[tensor.dtype]
    if tensor.dtype == "i64":
        lo, hi = -_LARGEST, _LARGEST
    edges = [lo, lo + 1, hi - 1, hi, 0, 1, max(lo, -1)]
    edges += [e for e in (-32768, -32640, -32639, 32639, 32640, 2**31 - 1) if lo <= e <= hi]
    count = tensor.size
    wide = rng.integers(lo, hi, count, dtype=dtype, endpoint=True)
    shifts = rng.integers(0, dtype.itemsize * 8, count).astype(dtype)
    style = rng.integers(0, 3, count)
    picked = rng.choice(np.array(edges, dtype), count)
    values = np.where(style == 0, picked, np.where(style == 1, wide, wide >> shifts))
    return np.asarray(values.astype(dtype).reshape(tensor.shape))


def node_case(
    op: str,
    attrs: Attrs,
    inputs: Sequence[TensorType],
    output: TensorType,
    fast: Callable[[Node, Sequence[TensorType]], tuple[Launch, ...]],
    seed: int = 0,
) -> Case:
    """One node by itself, on boundary values."""
    at = len(inputs)
    node, operands = Node("case", op, attrs, (), (output,)), range(at)
    return Case(
        inputs={i: boundary_values(tensor, seed + i) for i, tensor in enumerate(inputs)},
        sizes={at: output.byte_length},
        fast=tuple(bind(launch, at, operands) for launch in fast(node, inputs)),
        readable=tuple(bind(launch, at, operands) for launch in lower(node, inputs)),
        results=(at,),
        counted=(at,),
    )


def digests_case(sizes: Sequence[int]) -> Case:
    """Tensors of ``sizes`` elements that are digested by shared launches."""
    count, table = len(sizes), Scratch(0, "places")
    tensors = [TensorType("i32", (size,), 0, 0, 0) for size in sizes]
    digest = TensorType("u8", (32,), 0, 0, 0)
    node = Node("case", "tensor_digest", {}, (), (digest,))
    places = Places(tuple((value, count + value) for value in range(count)))
    shared = plan_digests([tensor.byte_length for tensor in tensors], table)
    bound = (bind(launch, count, ()) for launch in shared)
    fast = tuple(
        replace(launch, args=tuple(places if arg == table else arg for arg in launch.args))
        for launch in bound
    )
    readable = tuple(
        bind(launch, count + value, (value,))
        for value, tensor in enumerate(tensors)
        for launch in lower(node, [tensor])
    )
    outputs = range(count, 2 * count)
    return Case(
        inputs={value: boundary_values(tensor, value) for value, tensor in enumerate(tensors)},
        sizes=dict.fromkeys(outputs, digest.byte_length),
        fast=fast,
        readable=readable,
        results=tuple(outputs),
    )


def chain_cases(program: Program, chain: Chain, file: str) -> Iterator[Case]:
    """A generated kernel against the readable kernels of its nodes, one after the other."""
    shapes = {"same": (ROWS, COLUMNS), "column": (COLUMNS,), "row": (ROWS,), "one": ()}
    small = replace(chain, count=ROWS * COLUMNS, columns=COLUMNS)
    for seed in range(2):
        arrays: dict[int, Array] = {}
        for value, reach in chain.operands:
            if value in arrays and reach != "same":
                # Read in two ways: its first elements serve as the short operand.
                continue
            tensor = replace(program.type_of(value), shape=shapes[reach])
            arrays[value] = boundary_values(tensor, seed * 100 + value)
        readable: list[Planned] = []
        for index in chain.nodes:
            node, inputs = program.node(index), program.inputs[index]
            reaches = POINTWISE[node.op].reach
            types = [
                replace(tensor, shape=shapes[reach])
                for reach, tensor in zip(reaches, program.types(index), strict=True)
            ]
            output = replace(node.outputs[0], shape=(ROWS, COLUMNS))
            launches = lower(replace(node, outputs=(output,)), types)
            readable += (bind(launch, index, inputs) for launch in launches)
        sizes = {
            index: ROWS * COLUMNS * NUMPY_DTYPES[program.type_of(index).dtype].itemsize
            for index in chain.nodes
        }
        fast = chain_job(program, small, file).launches
        yield Case(arrays, sizes, fast, tuple(readable), chain.results, chain.counters)


def agrees(device: Device, case: Case) -> bool:
    """Whether fast and readable launches give the same bytes and counts, and the fast ones write
    nothing else."""
    found, expected = _run(device, case, case.fast), _run(device, case, case.readable)
    return found.is_intact and found.results == expected.results


def _run(device: Device, case: Case, launches: Sequence[Planned]) -> _Outcome:
    """What the launches put out and count, from fresh memory."""
    sizes = _measure(case, launches)
    # There is a gap before and after everything, which nobody may write.
    offsets, total = {}, ALIGNMENT
    for key, nbytes in sizes.items():
        offsets[key] = total
        total += (-(-nbytes // ALIGNMENT) + 1) * ALIGNMENT
    block = device.allocate(total)
    try:
        # Neither zeros nor all alike: what is left out, written beside or moved by one is seen.
        device.write(block, np.random.default_rng(0).integers(0, 256, total, np.uint8))
        at = {key: block + offset for key, offset in offsets.items()}
        _fill(device, case, at)
        before = np.frombuffer(device.read(block, total), np.uint8)
        for launch in launches:
            slots: tuple[Slot, ...] = tuple(
                arg if isinstance(arg, int) else Pointer(at[arg]) for arg in launch.args
            )
            device.launch(
                Call(launch.file, launch.kernel, launch.grid, launch.block, slots, launch.shared)
            )
        after = np.frombuffer(device.read(block, total), np.uint8)
    finally:
        device.free(block)
    keys: list[PlannedArg] = [Value(value) for value in case.results]
    keys += [Counter(node) for node in case.counted]
    results = tuple(after[offsets[key] : offsets[key] + sizes[key]].tobytes() for key in keys)
    fixed = np.ones(total, bool)
    for key in _find_written(case, sizes):
        fixed[offsets[key] : offsets[key] + sizes[key]] = False
    return _Outcome(results, bool(np.array_equal(before[fixed], after[fixed])))


def _find_written(case: Case, keys: Iterable[PlannedArg]) -> list[PlannedArg]:
    """What launches may write: all but inputs, constants and tables."""
    return [
        key
        for key in keys
        if not isinstance(key, Constant | Places)
        and not (isinstance(key, Value) and key.node in case.inputs)
    ]


def _measure(case: Case, launches: Sequence[Planned]) -> dict[PlannedArg, int]:
    """Bytes of everything that a launch points to."""
    sizes: dict[PlannedArg, int] = {
        **{Value(value): array.nbytes for value, array in case.inputs.items()},
        **{Value(value): nbytes for value, nbytes in case.sizes.items()},
        **{Counter(node): 8 for node in case.counted},
    }
    for launch in launches:
        for arg in launch.args:
            match arg:
                case Constant(data):
                    sizes[arg] = len(data)
                case Scratch(nbytes):
                    sizes[arg] = nbytes
                case Places(pairs):
                    sizes[arg] = 16 * len(pairs)
    return sizes


def _fill(device: Device, case: Case, at: Mapping[PlannedArg, int]) -> None:
    """Write what launches read: inputs, constants, tables; counters begin at zero."""
    for value, array in case.inputs.items():
        if array.nbytes:
            device.write(at[Value(value)], np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    for key, address in at.items():
        match key:
            case Counter():
                device.zero(address, 8)
            case Constant(data):
                device.write(address, data)
            case Places(pairs):
                rows = [(at[Value(a)], at[Value(b)]) for a, b in pairs]
                device.write(address, encode_places(rows))


class Checker:
    """Judges fast kernels on one device; remembers in ``folder`` (None: nowhere) what passed.

    ``key`` names everything that a verdict depends on beside the device, its driver and compiler:
    the sources of kernels, and the version that launches them.
    """

    def __init__(self, device: Device, *, key: str, folder: Path | None) -> None:
        self._device = device
        info = device.info
        self._identity = {
            "device": info.name,
            "uuid": info.uuid,
            "driver": info.driver,
            "compiler": info.compiler,
            "architecture": info.architecture,
            "key": key,
        }
        name = "-".join(part for part in (info.uuid, key[:16]) if part)
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
        self._path = None if folder is None else folder / f"selfcheck-{safe}.json"
        self._passed = self._load()
        self.disabled: frozenset[str] = frozenset()
        """Kernels that failed; each was warned of."""

    def check(self, subjects: Iterable[Subject], *, again: bool = False) -> frozenset[str]:
        """Kernels of ``subjects`` that fail now.  Without ``again``, a use that has passed on this
        device, by these sources, is not tried anew."""
        failed: set[str] = set()
        tried = False
        for subject in subjects:
            if subject.kernel in self.disabled | failed:
                continue
            if not again and subject.name in self._passed:
                continue
            tried = True
            if self._holds(subject):
                self._passed.add(subject.name)
            else:
                failed.add(subject.kernel)
                self._passed.discard(subject.name)
                self._warn(subject.kernel)
        self.disabled |= failed
        if tried:
            self._save()
        return frozenset(failed)

    def _holds(self, subject: Subject) -> bool:
        for file, text in subject.sources.items():
            self._device.add_source(file, text)
        return all(agrees(self._device, case) for case in subject.cases())

    def _warn(self, kernel: str) -> None:
        info = self._device.info
        warnings.warn(
            f"kernel {kernel} gives wrong bits on {info.name} ({info.uuid}, driver {info.driver}): "
            "it is disabled, and the readable kernel serves in its place",
            KernelWarning,
            stacklevel=2,
        )

    def _load(self) -> set[str]:
        if self._path is None:
            return set()
        try:
            content = json.loads(self._path.read_text())
            if content["identity"] == self._identity:
                return {str(name) for name in content["passed"]}
        except (OSError, ValueError, KeyError, TypeError):
            # Missing, of another driver, or damaged: all is tried anew.
            return set()
        return set()

    def _save(self) -> None:
        if self._path is None:
            return
        content = {"identity": self._identity, "passed": sorted(self._passed)}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self._path.parent, prefix=".selfcheck-", delete=False
            ) as file:
                json.dump(content, file, indent=2)
            Path(file.name).replace(self._path)
        except OSError:
            # Nothing depends on it: the next session tries the kernels again.
            return
