"""The cuda engine's session: state and step live on the device, 80 bytes a step come back."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.engines.base import Snapshot, State, Trace, check_state
from vtrain.engines.cuda.arena import ALIGNMENT
from vtrain.engines.cuda.device import Call, Device, Pointer, Slot
from vtrain.engines.cuda.digest import encode_places
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.launch import Constant, SampleForm, SamplePart, Scratch
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.plan import (
    GATHER,
    RECORD_BYTES,
    RECORD_OFFSETS,
    Copy,
    Counter,
    Digest,
    Place,
    Places,
    Plan,
    Planned,
    PlannedArg,
    Value,
    find_split,
    plan_prefetch,
)
from vtrain.engines.cuda.program import Program
from vtrain.engines.cuda.stored import StoredPart, StoredSamples, find_stored
from vtrain.engines.numpy_engine import check_samples
from vtrain.errors import DeviceError, GraphError, RunError, VtrainError, VtrainWarning
from vtrain.graph.step import STEP_STATE
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.spec.samples import Samples
from vtrain.wire.graph import StepGraph
from vtrain.wire.record import StepRecord

Array = npt.NDArray[Any]
COUNTER_BYTES = 8
DIGEST_BYTES = 32
UPLOAD = 1 << 24
"""Bytes of samples that go to the device at a time."""
RESERVE = 1 << 28
"""Bytes that samples and the place of snapshots leave free on the device: for traces of small
graphs, for self-checks during a run, and for other programs."""


class SkippedCheckWarning(VtrainWarning):
    """A self-check that was due during a run was left out, since the device lacks the memory."""


@dataclass(frozen=True)
class Accumulator:
    """Where the int64 gradient of a parameter lies on the device: ``count`` elements."""

    address: int
    count: int


Reduce = Callable[[Mapping[str, Accumulator]], None]
"""Called in each step between the gradients, which are there, and the updates, to add up those of
several devices; what it does must be done when it returns."""


class CudaSession:
    """``vtrain.engines.base.Session`` on a ``device`` (:func:`open_cuda`); needs a legal graph.

    ``kernels`` says which kernels serve; without it, all fast ones that pass the self-check.
    ``check_every`` repeats the self-check after each step whose number it divides (0: never).  With
    ``reduce``, a step stops when its gradients are complete and calls it with :meth:`accumulators`.

    DeviceError when memory is too small (what is needed and what there is), KernelError
    when the device fails: the state is then lost, and the run goes on from its last checkpoint.
    """

    name = "cuda"

    def __init__(
        self,
        graph: StepGraph,
        samples: Samples,
        *,
        device: Device,
        kernels: Kernels | None = None,
        check_every: int = 0,
        reduce: Reduce | None = None,
    ) -> None:
        check_samples(graph, samples)
        self._graph = graph
        self._program = Program(graph)
        self._device = device
        self._kernels = kernels if kernels is not None else Kernels(device)
        self._check_every = check_every
        self._reduce = reduce
        self._stored = find_stored(samples)
        self._memory = _Memory(self._device)
        self._loaded = False
        self._done = 0
        self._prefetch: _Prefetch | None = None
        self._prefetched: int | None = None
        """The step, by the number of steps before it, whose batch is prefetched."""
        self._snapshot: weakref.ref[_Snapshot] | None = None
        self._profile: dict[str, float] | None = None
        # Sessions are rarely closed by hand, and the device's memory is not Python's.
        self._release = weakref.finalize(self, self._memory.close)
        self._release.atexit = False
        try:
            self._plan_step()
        except VtrainError:
            self.close()
            raise

    def close(self) -> None:
        """Give the device's memory back; the session is not usable afterwards."""
        self._loaded = False
        try:
            self._finish_snapshot()
        finally:
            self._release()

    def load_state(self, state: State) -> None:
        check_state(self._graph, state)
        self._loaded = False
        for name, value in state.items():
            raw = np.asarray(value, order="C").reshape(-1).view(np.uint8)
            self._device.write(self._state_address(name), raw)
        self._done = int(state["step"])
        self._loaded = True

    def read_state(self) -> dict[str, Array]:
        self._require_state()
        return {name: self._read_state(name) for name in self._program.states}

    def snapshot(self) -> Snapshot:
        """The state as it is now, copied aside on the device and from there to the host while
        further steps are done.  Where no place was left for it, it is read at once.

        A snapshot that nobody holds any more is forgotten; one that is held is finished before the
        next is taken.
        """
        self._require_state()
        if self._memory.aside == 0:
            state = self.read_state()
            return lambda: state
        self._finish_snapshot()
        nbytes = self._plan.states
        self._device.copy(self._memory.aside, self._memory.states, nbytes)
        found = _Snapshot(self, self._device.read_later(self._memory.aside, nbytes))
        self._snapshot = weakref.ref(found)
        return found

    def _finish_snapshot(self) -> None:
        """Have the last snapshot on the host: its place on the device is needed."""
        last = None if self._snapshot is None else self._snapshot()
        if last is not None:
            last()

    def step(self) -> StepRecord:
        self._require_state()
        self._check_again()
        commits = self._commits()
        self._loaded = False
        if self._profile is not None:
            self._run_timed(commits)
            return self._finish_step(commits)
        stale, self._prefetched = self._prefetched != self._done, None
        if self._prefetch is not None and stale:
            self._prefetch.fetch(self._device)
        for part in self._steps[commits]:
            part()
        record = self._finish_step(commits)
        self._prefetched = self._done
        return record

    def trace(self) -> Trace:
        self._require_state()
        commits = self._commits()
        plan = self._unfused
        with self._borrow(plan) as bound:
            self._loaded = False
            for calls in bound.jobs:
                _launch(self._device, calls)
            _copy(self._device, [*bound.records, *bound.advance])
            record = self._finish_step(commits)
            raw = self._device.read(bound.digests, len(self._graph.nodes) * DIGEST_BYTES)
        digests = [raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)]
        return Trace(record, tuple(digests[root] for root in self._program.roots))

    def evaluate(self, node: int) -> Array:
        return self.evaluate_all([node])[0]

    def evaluate_all(self, nodes: Sequence[int]) -> list[Array]:
        self._require_state()
        for node in nodes:
            if not 0 <= node < len(self._graph.nodes):
                raise RunError("is no node of the graph", where=f"node {node}")
        roots = {self._program.roots[node] for node in nodes}
        needed = self._ancestors(roots)
        plan, found = self._unfused, dict[int, bytes]()
        counts = self._device.read(self._memory.counters, self._counter_bytes)
        with self._borrow(plan) as bound:
            for job, calls in zip(plan.jobs, bound.jobs, strict=True):
                if job.node not in needed or not job.writes:
                    continue
                _launch(self._device, calls)
                if job.node in roots:
                    found[job.node] = self._read_value(bound, job.node)
            for root in roots - found.keys():
                found[root] = self._read_value(bound, root)
        self._device.write(self._memory.counters, counts)
        return [self._as_array(node, found[self._program.roots[node]]) for node in nodes]

    def saturation(self) -> dict[str, int]:
        raw = self._device.read(self._memory.counters, self._counter_bytes)
        counts = np.frombuffer(raw, "<u8")
        return {self._graph.nodes[i].name: int(counts[i]) for i in np.flatnonzero(counts)}

    def start_profile(self) -> None:
        """Measure, from zero, where the time of the coming steps goes; they get slower by it."""
        self._profile = {node.name: 0.0 for node in self._graph.nodes}

    def profile(self) -> Mapping[str, float]:
        """Seconds spent by node name; nodes done together count under the last of them."""
        return dict(self._profile or {})

    def accumulators(self) -> dict[str, Accumulator]:
        """Exact gradient sums (int64) by the name of the momentum that takes them.

        Each sum is there once, by the first momentum that takes it.  They are complete, and may be
        changed, while ``reduce`` is called; at other times their memory may hold something else.
        RunError in a session without ``reduce``: its kernels may never store them.
        """
        if self._reduce is None:
            raise RunError("has accumulators in a session with ``reduce`` alone", where="session")
        found, seen = {}, set()
        for index, node in enumerate(self._graph.nodes):
            if node.op == "momentum":
                velocity, gradient = self._program.inputs[index]
                if gradient in seen:
                    continue
                seen.add(gradient)
                address = self._fused.address(self._plan.places[gradient])
                count = self._program.type_of(gradient).size
                name = str(self._graph.nodes[velocity].attrs.get("name", node.name))
                found[name] = Accumulator(address, count)
        return found

    @property
    def plan(self) -> Plan:
        """What a step runs."""
        return self._plan

    @property
    def memory_bytes(self) -> int:
        """Bytes of device memory that the session holds."""
        return self._memory.held

    def _plan_step(self) -> None:
        program, kernels = self._program, self._kernels
        self._plan = kernels.plan_step(program, split=self._reduce is not None)
        self._split = len(self._plan.jobs)
        if self._reduce is not None:
            split = find_split(program, self._plan)
            if split is None:
                raise GraphError("updates a parameter before all gradients are there")
            self._split = split
        self._unfused = kernels.plan_trace(program)
        self._counter_bytes = len(self._graph.nodes) * COUNTER_BYTES
        self._ahead = plan_prefetch(program, self._plan, lower)
        constants = _find_constants((self._plan, self._unfused, self._ahead))
        digests = len(self._graph.nodes) * DIGEST_BYTES
        spare = max(RESERVE, _round_up(self._unfused.arena) + digests)
        self._memory.reserve(
            self._plan, constants, self._counter_bytes, self._stored, self._ahead.arena, spare
        )
        self._rebind()

    def _rebind(self) -> None:
        """Compile what the plan launches and record the two kinds of steps."""
        for file, text in self._plan.sources.items():
            self._device.add_source(file, text)
        self._device.prepare(self._plan.kernels())
        self._fused = _Bound(self._plan, self._memory, self._memory.arena, 0)
        self._prefetch, self._prefetched = self._bind_prefetch(), None
        self._steps = {commits: self._record_step(commits) for commits in (False, True)}

    def _bind_prefetch(self) -> _Prefetch | None:
        """How a batch gets to its staging place; None where the samples are on the device."""
        program, plan, ahead, memory = self._program, self._plan, self._ahead, self._memory
        if memory.staging == 0:
            return None
        self._device.prepare(ahead.kernels())
        bound = _Bound(ahead, memory, memory.staging, 0)
        (number, *batch), staged = bound.jobs, ahead.places
        step = program.next_states[STEP_STATE]
        return _Prefetch(
            number,
            [call for calls in batch for call in calls],
            {
                at: (
                    self._fused.address(plan.places[job.node]),
                    bound.address(staged[job.node]),
                    program.nbytes(job.node),
                )
                for at, job in enumerate(plan.jobs)
                if program.node(job.node).op == GATHER
            },
            (bound.address(staged[step]), self._state_address(STEP_STATE), program.nbytes(step)),
        )

    def _record_step(self, commits: bool) -> list[Callable[[], None]]:
        """The parts of a step, to be called in order.  None refers to the session: one that is
        forgotten must give its memory back at once."""
        device, bound, reduce = self._device, self._fused, self._reduce
        prefetch = self._prefetch
        due = [
            calls if commits or not job.commit_only else []
            for job, calls in zip(self._plan.jobs, bound.jobs, strict=True)
        ]

        def run(part: range, copies: Sequence[tuple[int, int, int]]) -> None:
            join = None
            if prefetch is not None and part.start == 0:
                # Later on the state may be that of the next step already.
                _launch(device, prefetch.number)
            for at in part:
                if prefetch is None or at not in prefetch.rows:
                    _launch(device, due[at])
                    continue
                _copy(device, [prefetch.rows[at]])
                if at == max(prefetch.rows):
                    join = prefetch.begin(device)
            _copy(device, copies)
            if join is not None:
                join()

        split, end, copies = self._split, len(due), [*bound.records, *bound.advance]
        if reduce is None:
            return [device.record(lambda: run(range(end), copies))]
        accumulators = self.accumulators()
        return [
            device.record(lambda: run(range(split), ())),
            lambda: _reduce(device, reduce, accumulators),
            device.record(lambda: run(range(split, end), copies)),
        ]

    def _run_timed(self, commits: bool) -> None:
        device, profile = self._device, self._profile
        if profile is None:
            return
        for at, (job, calls) in enumerate(zip(self._plan.jobs, self._fused.jobs, strict=True)):
            if at == self._split and self._reduce is not None:
                _reduce(device, self._reduce, self.accumulators())
            if commits or not job.commit_only:
                name = self._graph.nodes[job.node].name
                profile[name] += device.time(partial(_launch, device, calls))
        _copy(device, [*self._fused.records, *self._fused.advance])

    def _check_again(self) -> None:
        """Repeat the self-check if it is due; without the kernels that fail it from then on.

        Where its vectors do not fit beside the step, the step's memory makes room for them.
        """
        if self._check_every == 0 or self._done == 0 or self._done % self._check_every != 0:
            return
        check = partial(
            self._kernels.check_again,
            self._program,
            split=self._reduce is not None,
            seed=self._done,
        )
        try:
            fits, failed = True, check()
        except DeviceError:
            fits = failed = False
        if fits and not failed:
            return
        with self._moved_out():
            if not fits:
                self._check_alone(check)

    def _check_alone(self, check: Callable[[], bool]) -> None:
        """The self-check on a device that the session has left.

        That memory is short even so, since others hold it, is a warning and no end of the run.
        """
        try:
            check()
        except DeviceError as error:
            warnings.warn(
                f"the self-check after step {self._done} was left out: {error}",
                SkippedCheckWarning,
                stacklevel=4,
            )

    @contextmanager
    def _moved_out(self) -> Iterator[None]:
        """Leave the device for the block, then come back with a new plan."""
        self._finish_snapshot()
        state = self.read_state()
        counts = self._device.read(self._memory.counters, self._counter_bytes)
        self._loaded = False
        self._memory.close()
        yield
        self._plan_step()
        self._device.write(self._memory.counters, counts)
        self.load_state(state)

    def _finish_step(self, commits: bool) -> StepRecord:
        """The record, once all work is done; the state is then that of the next step."""
        raw = self._device.read(self._memory.record, RECORD_BYTES)
        parts = {name: raw[at:] for name, at in RECORD_OFFSETS.items()}
        step, loss = (
            int.from_bytes(parts[name][:8], "little", signed=True) for name in ("step", "loss")
        )
        self._done += 1
        self._loaded = True
        return StepRecord(
            step=step,
            batch_digest=parts["batch_digest"][:DIGEST_BYTES],
            loss=loss,
            state_root=parts["root"][:DIGEST_BYTES] if commits else b"",
        )

    def _require_state(self) -> None:
        if not self._loaded:
            raise RunError("no state is loaded", where="state")

    def _commits(self) -> bool:
        """Will the coming step's record have a state root?"""
        return (self._done + 1) % self._program.commit_every == 0

    def _ancestors(self, values: set[int]) -> set[int]:
        """``values`` and all that they are computed from."""
        found: set[int] = set()
        rest = list(values)
        while rest:
            value = rest.pop()
            if value not in found:
                found.add(value)
                rest += self._program.inputs[value]
        return found

    def _state_address(self, name: str) -> int:
        return self._memory.states + self._plan.state_places[name].offset

    def _read_state(self, name: str) -> Array:
        node = self._program.states[name]
        return self._as_array(
            node, self._device.read(self._state_address(name), self._program.nbytes(node))
        )

    def split_states(self, raw: bytearray) -> dict[str, Array]:
        """The tensors in a copy of the region of states, which they share the memory of."""
        found = {}
        for name, node in self._program.states.items():
            tensor, place = self._program.type_of(node), self._plan.state_places[name]
            flat = np.frombuffer(raw, NUMPY_DTYPES[tensor.dtype], tensor.size, place.offset)
            found[name] = flat.reshape(tensor.shape)
        return found

    def _read_value(self, bound: _Bound, value: int) -> bytes:
        return self._device.read(
            bound.address(self._unfused.places[value]), self._program.nbytes(value)
        )

    def _as_array(self, node: int, raw: bytes) -> Array:
        tensor = self._graph.nodes[node].outputs[0]
        return np.frombuffer(raw, NUMPY_DTYPES[tensor.dtype]).reshape(tensor.shape).copy()

    @contextmanager
    def _borrow(self, plan: Plan) -> Iterator[_Bound]:
        """``plan`` with memory of its own beside that of the steps, given back afterwards."""
        digests = len(self._graph.nodes) * DIGEST_BYTES
        self._memory.require(plan.arena + digests, "a trace")
        block = self._device.allocate(_round_up(plan.arena) + digests)
        try:
            # An alias has no digest of its own, and all of them are read.
            self._device.zero(block + _round_up(plan.arena), digests)
            yield _Bound(plan, self._memory, block, block + _round_up(plan.arena))
        finally:
            self._device.free(block)


class _Snapshot:
    """The state of ``session``, read when it is called for the first time; from any thread."""

    def __init__(self, session: CudaSession, read: Callable[[], bytearray]) -> None:
        # The session holds the memory that is read.
        self._session, self._read = session, read
        self._lock = threading.Lock()
        self._state: State | None = None

    def __call__(self) -> State:
        with self._lock:
            if self._state is None:
                self._state = self._session.split_states(self._read())
            return self._state


class _Memory:
    """What a session holds on the device, all of it reserved before the first step."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.states = self.record = self.counters = self.arena = self.staging = self.aside = 0
        self.samples: dict[str, int] = {}
        """Address of what each part is read from."""
        self.forms: Mapping[str, StoredPart] = {}
        self.constants: dict[bytes, int] = {}
        self.held = 0
        self._blocks: list[int] = []

    def reserve(
        self,
        plan: Plan,
        constants: Sequence[bytes],
        counter_bytes: int,
        samples: StoredSamples,
        staging: int,
        spare: int,
    ) -> None:
        """All but the samples in one block; DeviceError says how much that is if it does not fit.

        Samples that do not fit beside it stay in the memory of the host, all of them, and the block
        has ``staging`` bytes more for a batch of them; the place of that name is 0 where they
        fit.  ``aside``, a place for snapshots of the states, is 0 where it would not leave
        ``spare`` bytes free.
        """
        self.close()
        sizes = [
            plan.states,
            RECORD_BYTES,
            counter_bytes,
            plan.arena,
            *map(len, constants),
        ]
        wanted = sum(map(_round_up, sizes)) + samples.nbytes
        fits = wanted + RESERVE <= self.device.memory().free
        if not fits:
            sizes.append(staging)
        offsets = [sum(map(_round_up, sizes[:at])) for at in range(len(sizes) + 1)]
        self.require(offsets[-1], "a step")
        block = self._keep(self.device.allocate(offsets[-1]), offsets[-1])
        self.states, self.record, self.counters, self.arena, *places = (
            block + offset for offset in offsets[:-1]
        )
        self.staging = 0 if fits else places.pop()
        self.constants = dict(zip(constants, places, strict=True))
        for data, place in self.constants.items():
            self.device.write(place, data)
        self.device.zero(self.counters, counter_bytes)
        # Its root is read before the first commitment writes it.
        self.device.zero(self.record, RECORD_BYTES)
        # Snapshots copy what lies between the states, too.
        self.device.zero(self.states, plan.states)
        held = [
            self._place_samples(rows) if fits else self._keep(self.device.share(rows), 0)
            for rows in samples.blocks
        ]
        self.forms = samples.parts
        self.samples = {name: held[part.block] for name, part in samples.parts.items()}
        if plan.states + spare <= self.device.memory().free:
            self.aside = self._keep(self.device.allocate(plan.states), plan.states)

    def _place_samples(self, rows: Array) -> int:
        address = self._keep(self.device.allocate(max(rows.nbytes, 1)), rows.nbytes)
        step = max(1, UPLOAD // max(1, rows[:1].nbytes))
        for first in range(0, len(rows), step):
            piece = np.ascontiguousarray(rows[first : first + step]).reshape(-1)
            self.device.write(address + first * rows[:1].nbytes, piece)
        return address

    def _keep(self, address: int, nbytes: int) -> int:
        self._blocks.append(address)
        self.held += nbytes
        return address

    def keep_bytes(self, data: bytes) -> int:
        """Address of a copy of ``data`` that stays."""
        address = self._keep(self.device.allocate(len(data)), len(data))
        self.device.write(address, data)
        return address

    def require(self, nbytes: int, what: str) -> None:
        """DeviceError unless so many bytes are free."""
        free, total = self.device.memory()
        if nbytes > free:
            raise DeviceError(
                f"{what} needs {nbytes / 1e9:.3f} GB more of device memory, {free / 1e9:.3f} of "
                f"{total / 1e9:.3f} GB are free: take a smaller batch, or engine cpu",
                where=f"device {self.device.info.name}",
            )

    def close(self) -> None:
        for block in self._blocks:
            self.device.free(block)
        self._blocks.clear()
        self.held = self.aside = 0


class _Bound:
    """A plan whose launches have addresses: ``jobs`` in order, copies as (to, from, bytes)."""

    def __init__(self, plan: Plan, memory: _Memory, arena: int, digests: int) -> None:
        self._plan, self._memory, self._arena = plan, memory, arena
        self.digests = digests
        self.jobs = [
            [self._resolve(at, launch) for launch in job.launches]
            for at, job in enumerate(plan.jobs)
        ]
        self.records = [self._move(copy) for copy in plan.records]
        self.advance = [self._move(copy) for copy in plan.advance]

    def address(self, place: Place) -> int:
        """Where a place is."""
        base = {
            "arena": self._arena,
            "state": self._memory.states,
            "record": self._memory.record,
        }
        return base[place.region] + place.offset

    def _move(self, copy: Copy) -> tuple[int, int, int]:
        return self.address(copy.target), self.address(copy.source), copy.nbytes

    def _resolve(self, at: int, launch: Planned) -> Call:
        slots = tuple(self._slot(at, arg) for arg in launch.args)
        return Call(launch.file, launch.kernel, launch.grid, launch.block, slots, launch.shared)

    def _slot(self, at: int, arg: PlannedArg) -> Slot:
        match arg:
            case int():
                return arg
            case Value(node):
                return Pointer(self.address(self._plan.places[node]))
            case Counter(node):
                return Pointer(self._memory.counters + node * COUNTER_BYTES)
            case Digest(node):
                return Pointer(self.digests + node * DIGEST_BYTES)
            case SamplePart(part):
                return Pointer(self._memory.samples[part])
            case SampleForm(part):
                return self._memory.forms[part].read(arg)
            case Constant(data):
                return Pointer(self._memory.constants[data])
            case Scratch():
                return Pointer(self.address(self._plan.scratch[at, arg]))
            case Places(pairs):
                return Pointer(self._table(pairs))

    def _table(self, pairs: Sequence[tuple[int, int]]) -> int:
        places = self._plan.places
        rows = [(self.address(places[a]), self.address(places[b])) for a, b in pairs]
        data = encode_places(rows)
        return self._memory.keep_bytes(data)


@dataclass(frozen=True)
class _Prefetch:
    """How the next step's batch gets from the host to the ``staging`` of a session's memory."""

    number: Sequence[Call]
    """Put the next step's number there, as long as the state is the one before it."""
    calls: Sequence[Call]
    """Gather the batch of the step of that number."""
    rows: Mapping[int, tuple[int, int, int]]
    """Position of a job that gathers samples -> the copy (to, from, bytes) in its place."""
    current: tuple[int, int, int]
    """The copy that puts the coming step's own number there."""

    def begin(self, device: Device) -> Callable[[], None]:
        """Fetch the batch beside what is queued until the result is called."""
        return device.fork(partial(_launch, device, self.calls))

    def fetch(self, device: Device) -> None:
        """Fetch the coming step's own batch."""
        _copy(device, [self.current])
        _launch(device, self.calls)


def _reduce(device: Device, reduce: Reduce, accumulators: Mapping[str, Accumulator]) -> None:
    """Call ``reduce`` when the gradients are there: what it does, it may do on another stream."""
    device.synchronize()
    reduce(accumulators)


def _launch(device: Device, calls: Sequence[Call]) -> None:
    for call in calls:
        device.launch(call)


def _copy(device: Device, copies: Sequence[tuple[int, int, int]]) -> None:
    for target, source, nbytes in copies:
        device.copy(target, source, nbytes)


def _round_up(nbytes: int) -> int:
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


def _find_constants(plans: Sequence[Plan]) -> list[bytes]:
    """Every constant that the plans' launches point to, once."""
    found = (
        arg.data
        for plan in plans
        for job in plan.jobs
        for launch in job.launches
        for arg in launch.args
        if isinstance(arg, Constant)
    )
    return list(dict.fromkeys(found))


def open_cuda(graph: StepGraph, samples: Samples, *, check_every: int = 0) -> CudaSession:
    """A session on the first GPU."""
    device, kernels = open_kernels()
    return CudaSession(graph, samples, device=device, kernels=kernels, check_every=check_every)


def open_kernels() -> tuple[Device, Kernels]:
    """The first GPU and its kernels, with the verdicts of the self-check in the user's cache."""
    from vtrain.engines.cuda.compile import find_default_cache

    device = _open_device()
    return device, Kernels(device, folder=find_default_cache())


@cache
def _open_device() -> Device:
    """The first GPU, once a process: its compiled kernels serve all sessions."""
    from vtrain.engines.cuda.gpu import CudaDevice

    return CudaDevice()
