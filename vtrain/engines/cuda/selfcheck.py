"""Trust no silicon: a fast kernel serves on a device only if it agrees with its readable twin.

Each fast kernel is a :class:`Subject` with cases: small inputs of boundary values, the launches of
the fast way and those of the readable one.  Results and counts of saturation must be equal, byte
for byte.  What has passed is remembered by device, driver, compiler and kernel sources; so is a
kernel that hangs or destroys the context, which this process cannot go on from but the next can.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vtrain.engines.cuda.arena import ALIGNMENT
from vtrain.engines.cuda.compile import write_whole
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
from vtrain.errors import EncodingError, GraphError, KernelError, VtrainWarning
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.wire.graph import Attrs, Node, TensorType
from vtrain.wire.json_text import decode_json

Array = npt.NDArray[Any]
CHAIN_SHAPES: Final = ((37, 7), (770, 12), (1201, 7))
"""Rows and columns of the values that a chain is tried on: the first and the last do not divide
into whole packs, rows of the second do; the larger ones take nine and ten blocks."""
FULL_CHAIN_SHAPES: Final = (*CHAIN_SHAPES, (7, 40_009))
"""The same where kernels are fast."""
CHAIN_SPANS: Final = 5
"""Spans of the lists that such a chain reads: rows take them in turns."""
LONGEST_WAIT: Final = 60.0
"""Seconds after which a kernel that should take milliseconds is taken to hang."""
_INTERVAL: Final = 1.0
"""Seconds between two lines of progress."""
_SEEDS: Final = 1 << 20
"""Seeds of the inputs of one check: each is drawn by its own."""
_LARGEST: Final = 2**60
"""Accumulators of legal graphs are smaller."""
_MOST_BYTES: Final = 1 << 22
"""A file of verdicts is smaller; what is larger is none."""

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done and how much there is; all of it at the end."""


class KernelWarning(VtrainWarning):
    """A fast kernel fails on this device and does not serve; the readable one does."""


@dataclass(frozen=True)
class Clock:
    """Seconds that only go up, and how to let some of them pass."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class TerminalProgress:
    """A line on the terminal, if stderr is one: at once, and every second while work goes on."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last: float | None = None
        self._width = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if done >= total:
            self._put("")
            self._last = None
        elif self._last is None or self._now() - self._last >= _INTERVAL:
            self._last = self._now()
            self._put(f"self-check of the GPU's kernels: {what} ({done}/{total})")

    def _put(self, line: str) -> None:
        if line or self._width:
            sys.stderr.write(f"\r{line:<{self._width}}\r")
            sys.stderr.flush()
        self._width = len(line)


class _HangError(KernelError):
    """Launches have not come to their end in time."""


@dataclass(frozen=True)
class Drawn:
    """An array of ``nbytes`` that is made when it is needed: a case may be planned and not run."""

    nbytes: int
    make: Callable[[], Array]


@dataclass(frozen=True)
class Case:
    """One comparison.  Values are named by numbers: ``inputs`` are given, ``sizes`` has the bytes
    of the others; ``results`` are compared, and the counters of ``counted``.

    ``in_place`` are results that the fast launches put where an input was (result -> input).
    """

    inputs: Mapping[int, Array | Drawn]
    sizes: Mapping[int, int]
    fast: tuple[Planned, ...]
    readable: tuple[Planned, ...]
    results: tuple[int, ...]
    counted: tuple[int, ...] = ()
    in_place: Mapping[int, int] = field(default_factory=dict)

    def draw(self) -> Case:
        """The same with all its inputs made."""
        made = {
            value: given.make() if isinstance(given, Drawn) else given
            for value, given in self.inputs.items()
        }
        return replace(self, inputs=made)


@dataclass(frozen=True)
class Subject:
    """A fast kernel in one of its uses, and the cases that try it.

    ``cases`` takes the seed that inputs are drawn with: other values, the same launches.
    ``sources`` are generated files that it needs.  ``kind`` tells the use from others of the same
    kernel: what passed in one has not passed in another.
    """

    kernel: str
    cases: Callable[[int], Iterable[Case]]
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


def peaked_values(tensor: TensorType, seed: int) -> Array:
    """Small values, and a large one in each row, the last of it or any: what passes over it is
    seen, which among many large ones is not."""
    rng = np.random.default_rng(seed)
    values = boundary_values(tensor, seed) >> (NUMPY_DTYPES[tensor.dtype].itemsize * 6)
    rows = values.reshape(-1, tensor.shape[-1])
    count, columns = rows.shape
    places = rng.integers(0, columns, count) if seed % 2 else columns - 1
    rows[np.arange(count), places] = STORAGE[tensor.dtype][1]
    return rows.reshape(tensor.shape)


Draw = Callable[[TensorType, int], Array]
"""Values of a type, by a seed."""


def draw_later(tensor: TensorType, seed: int, draw: Draw = boundary_values) -> Drawn:
    """What ``draw`` gives, made when it is needed."""
    return Drawn(tensor.byte_length, partial(draw, tensor, seed))


def node_case(
    op: str,
    attrs: Attrs,
    inputs: Sequence[TensorType],
    output: TensorType,
    fast: Callable[[Node, Sequence[TensorType]], tuple[Launch, ...]],
    seed: int = 0,
    draw: Draw = boundary_values,
) -> Case:
    """One node by itself, on values of ``draw``."""
    at = len(inputs)
    node, operands = Node("case", op, attrs, (), (output,)), range(at)
    return Case(
        inputs={i: draw_later(tensor, seed + i, draw) for i, tensor in enumerate(inputs)},
        sizes={at: output.byte_length},
        fast=tuple(bind(launch, at, operands) for launch in fast(node, inputs)),
        readable=tuple(bind(launch, at, operands) for launch in lower(node, inputs)),
        results=(at,),
        counted=(at,),
    )


def digests_case(sizes: Sequence[int], seed: int = 0) -> Case:
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
        inputs={i: draw_later(tensor, seed + i) for i, tensor in enumerate(tensors)},
        sizes=dict.fromkeys(outputs, digest.byte_length),
        fast=fast,
        readable=readable,
        results=tuple(outputs),
    )


def chain_cases(
    program: Program,
    chain: Chain,
    file: str,
    sizes_tried: Sequence[tuple[int, int]] = CHAIN_SHAPES,
    seed: int = 0,
) -> Iterator[Case]:
    """A generated kernel against the readable kernels of its nodes, one after the other."""
    for at, (rows, columns) in enumerate(sizes_tried):
        shapes = {"same": (rows, columns), "column": (columns,), "row": (rows,), "one": ()}
        shapes["span"] = (CHAIN_SPANS, 2)
        small = chain.resize(rows, columns, CHAIN_SPANS)
        arrays: dict[int, Drawn] = {}
        for value, reach in chain.operands:
            if value in arrays and reach != "same":
                # Read in two ways: its first elements serve as the short operand.
                continue
            tensor = replace(program.type_of(value), shape=shapes[reach])
            arrays[value] = draw_later(tensor, seed + at * len(program.inputs) + value)
        readable: list[Planned] = []
        for index in chain.nodes:
            node, inputs = program.node(index), program.inputs[index]
            reaches = POINTWISE[node.op].reach
            types = [
                replace(tensor, shape=shapes[reach])
                for reach, tensor in zip(reaches, program.types(index), strict=True)
            ]
            output = replace(node.outputs[0], shape=(rows, columns))
            launches = lower(replace(node, outputs=(output,)), types)
            readable += (bind(launch, index, inputs) for launch in launches)
        sizes = {
            index: rows * columns * NUMPY_DTYPES[program.type_of(index).dtype].itemsize
            for index in chain.nodes
        }
        job = chain_job(program, small, file)
        case = Case(arrays, sizes, job.launches, tuple(readable), chain.results, chain.counters)
        yield case
        if job.replaces:
            yield replace(case, in_place=_choose_places(job.replaces))


def _choose_places(replaces: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """For each result one of the values that it may replace, no two the same."""
    chosen: dict[int, int] = {}
    for result, values in replaces.items():
        free = [value for value in values if value not in chosen.values()]
        if free:
            chosen[result] = free[0]
    return chosen


def agrees(device: Device, case: Case) -> bool:
    """Whether fast and readable launches give the same bytes and counts, and the fast ones write
    nothing else."""
    case = case.draw()
    found = _run(device, case, case.fast, case.in_place)
    expected = _run(device, case, case.readable)
    return found.is_intact and found.results == expected.results


def _wait(device: Device, clock: Clock) -> None:
    """Until the device has done everything, but no longer than :data:`LONGEST_WAIT`."""
    begin, pause = clock.now(), 1e-4
    while not device.is_done():
        if clock.now() - begin > LONGEST_WAIT:
            # Whoever waits for it from now on, such as for memory to be free, waits for ever.
            device.abandon()
            raise _HangError(f"has not ended after {LONGEST_WAIT:.0f} seconds")
        clock.sleep(pause)
        pause = min(2 * pause, 0.05)


def _run(
    device: Device,
    case: Case,
    launches: Sequence[Planned],
    in_place: Mapping[int, int] | None = None,
    clock: Clock | None = None,
) -> _Outcome:
    """What the launches put out and count, from fresh memory."""
    sizes = _measure(case, launches)
    # There is a gap before and after everything, which nobody may write.
    offsets, total = {}, ALIGNMENT
    for key, nbytes in sizes.items():
        offsets[key] = total
        total += (-(-nbytes // ALIGNMENT) + 1) * ALIGNMENT
    for result, value in (in_place or {}).items():
        offsets[Value(result)] = offsets[Value(value)]
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
        _wait(device, clock or Clock())
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
    for value, given in case.inputs.items():
        array = given.make() if isinstance(given, Drawn) else given
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

    def __init__(
        self,
        device: Device,
        *,
        key: str,
        folder: Path | None,
        clock: Clock | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._device = device
        self._clock = clock or Clock()
        self._progress = progress or TerminalProgress()
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
        self._passed, self._fatal = self._load()
        self.disabled: frozenset[str] = frozenset()
        """Kernels that failed; each was warned of."""

    def check(
        self, subjects: Iterable[Subject], *, again: bool = False, seed: int = 0
    ) -> frozenset[str]:
        """Kernels of ``subjects`` that fail now, on inputs drawn with ``seed``.  Without ``again``,
        a use that has passed on this device, by these sources, is not tried anew.

        KernelError when a readable kernel fails, and when a fast one hangs or destroys the context:
        that is remembered, and the next process goes on without the kernel.
        """
        failed: set[str] = set()
        due: list[Subject] = []
        for subject in subjects:
            if subject.kernel in self.disabled:
                continue
            if subject.kernel in self._fatal:
                if subject.kernel not in failed:
                    failed.add(subject.kernel)
                    self._warn(subject.kernel, *self._remember(subject.kernel))
            elif again or subject.name not in self._passed:
                due.append(subject)
        # A check during a run is a moment among steps, whose progress others show.
        show: Progress = (lambda what, done, total: None) if again else self._progress
        try:
            for subject, cases in self._prepare(due, show, seed):
                if subject.kernel not in failed:
                    fault = self._find_fault(subject, cases, seed)
                    if fault is None:
                        self._passed.add(subject.name)
                    else:
                        failed.add(subject.kernel)
                        self._passed.discard(subject.name)
                        self._warn(subject.kernel, *fault)
        finally:
            self.disabled |= failed
            if due:
                show("", len(due), len(due))
                self._save()
        return frozenset(failed)

    def _prepare(
        self, due: Sequence[Subject], show: Progress, seed: int
    ) -> Iterator[tuple[Subject, list[Case]]]:
        """The subjects with their cases, when all that these launch was compiled: at one time,
        since a file takes seconds and processors are many."""
        for subject in due:
            for file, text in subject.sources.items():
                self._device.add_source(file, text)
        cases = [_list_cases(subject, seed) for subject in due]
        launches = (
            launch for some in cases for case in some for launch in (*case.fast, *case.readable)
        )
        kernels = list(dict.fromkeys((launch.file, launch.kernel) for launch in launches))
        if kernels:
            files = len({file for file, _ in kernels})
            show(f"compiling {files} files", 0, len(due))
            # What does not compile is found again when its turn comes, and judged there.
            with suppress(KernelError):
                self._device.prepare(kernels)
        for done, subject in enumerate(due):
            show(subject.kernel, done, len(due))
            yield subject, cases[done]
            cases[done] = []

    def _find_fault(
        self, subject: Subject, cases: Sequence[Case], seed: int
    ) -> tuple[str, str] | None:
        """What is wrong with a kernel, and why, if that is known; None if it may serve."""
        launched = {launch.kernel for case in cases for launch in case.fast}
        if subject.kernel not in launched:
            return "is not tried", "no case of the self-check launches it"
        for planned in cases:
            case = planned.draw()
            expected = self._run_readable(case)
            try:
                found = _run(self._device, case, case.fast, case.in_place, self._clock)
            except KernelError as error:
                self._require_alive(subject.kernel, error)
                return "does not run", _shorten(error)
            if not found.is_intact or found.results != expected.results:
                return "gives wrong bits", f"on inputs of seed {seed}"
        return None

    def _run_readable(self, case: Case) -> _Outcome:
        try:
            return _run(self._device, case, case.readable, None, self._clock)
        except KernelError as error:
            self._is_alive(error)
            raise KernelError(
                f"readable kernels do not run on {self._describe()}, and nothing can take their "
                f"place: take engine cpu ({_shorten(error)})",
                where="self-check",
            ) from error

    def _is_alive(self, error: KernelError) -> bool:
        """Is the device of use to this process after ``error``?  If not, it is left alone."""
        if isinstance(error, _HangError):
            return False
        try:
            self._device.synchronize()
        except KernelError:
            self._device.abandon()
            return False
        return True

    def _require_alive(self, kernel: str, error: KernelError) -> None:
        """KernelError if the device is of no use to this process after ``error``."""
        if self._is_alive(error):
            return
        what = (
            "hangs"
            if isinstance(error, _HangError)
            else "fails and leaves the device unusable to this process"
        )
        self._fatal[kernel] = f"{what}: {_shorten(error)}"
        next_time = (
            "start again: that is remembered, and the readable kernel serves in its place"
            if self._save()
            else "that could not be remembered: take engine cpu"
        )
        raise KernelError(
            f"{what} on {self._describe()}; {next_time} ({_shorten(error)})",
            where=f"kernel {kernel}",
        ) from error

    def _remember(self, kernel: str) -> tuple[str, str]:
        """The fault of a kernel that an earlier process could not go on from."""
        return "did not run", f"{self._fatal[kernel]}; to try it again, delete {self._path}"

    def _describe(self) -> str:
        info = self._device.info
        return f"{info.name} ({info.uuid}, driver {info.driver})"

    def _warn(self, kernel: str, what: str, why: str) -> None:
        warnings.warn(
            f"kernel {kernel} {what} on {self._describe()}: "
            "it is disabled, and the readable kernel serves in its place"
            + (f" ({why})" if why else ""),
            KernelWarning,
            stacklevel=2,
        )

    def _load(self) -> tuple[set[str], dict[str, str]]:
        """What passed, and what no process must try again, with the reason."""
        if self._path is None:
            return set(), {}
        try:
            content = decode_json(_read_small(self._path), "verdicts")
            if content["identity"] == self._identity:
                passed = {str(name) for name in content["passed"]}
                return passed, {str(name): str(why) for name, why in content["fatal"].items()}
        except (OSError, EncodingError, KeyError, TypeError, AttributeError):
            # Missing, of another driver, or damaged: all is tried anew.
            return set(), {}
        return set(), {}

    def _save(self) -> bool:
        """Keep the verdicts; whether that succeeded."""
        if self._path is None:
            return False
        # Another process may have learnt what this one did not.
        self._fatal = {**self._load()[1], **self._fatal}
        content = {
            "identity": self._identity,
            "passed": sorted(self._passed),
            "fatal": self._fatal,
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(content, indent=2).encode())
        except OSError:
            # The next session tries the kernels again.
            return False
        return True


def _list_cases(subject: Subject, seed: int) -> list[Case]:
    """The cases of a subject; none, with which it does not pass, where one cannot be made."""
    try:
        return list(subject.cases(seed * _SEEDS))
    except GraphError:
        return []


def _read_small(path: Path) -> bytes:
    """A regular file of at most :data:`_MOST_BYTES`; OSError for anything else, without
    waiting for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise OSError(f"{path} is no file of verdicts")
        return file.read(_MOST_BYTES)


def _shorten(error: KernelError) -> str:
    """An error without most of what a compiler says."""
    lines = error.message.splitlines()
    return f"{error.where}: {' '.join(lines[:2])}" if error.where else " ".join(lines[:2])
