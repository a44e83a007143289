"""What checking a step by its trace costs, and whether it errs.

``square``: one linear layer with as many samples as features (forward and both gradients), its
values in memory.  Checking hashes every value and checks the products; checking without hashing is
of a trace that was hashed as it arrived.  ``gpt``: a whole step of the GPT of examples/shakespeare,
from a folder, with the memory that it takes.  ``errors``: honest steps, and steps with one wrong
element, of each operator of the law and dtype, in each way.

Predicted before the first run at these sizes, from one core's processor time at 2048 on a machine
that others kept busy (a product 146 ms, its check 5.6 to 8.6 ms, hashing its result 7.5 ms).  The
GPT's was predicted at 1.5 and came out at 8.6, node by node with a buffer of its own for each
value.  3.0 is what was then predicted of whole steps in buffers that are used again: hashing 1.7 GB
takes as long as a replayed step, all else without its products and without fusion 1.5 times that,
products and the bytes that are read half of it.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import _harness as harness
import numpy as np
import numpy.typing as npt
from _harness import ROOT, Result, at_most, at_most_here, main
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.tasks import make_tiny_task
from vtrain import _core
from vtrain.audit.traces import Arithmetic, TraceChecker, WrongValue, choose_arithmetic
from vtrain.bench.alone import measure_alone
from vtrain.commit.digest import compute_tensor_digest, compute_tensor_digests
from vtrain.commit.traces import TraceFolder
from vtrain.engines.cpu import CpuSession
from vtrain.engines.registry import open_session
from vtrain.errors import NotProducedError
from vtrain.graph.values import PRODUCTS
from vtrain.ops import TABLE
from vtrain.spec.algebraic import PRIME, compute_vector
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask, compile_task, load_task
from vtrain.train.traces import write_traces
from vtrain.wire.graph import StepGraph, TensorType
from vtrain.wire.traces import TensorTrace

Array = npt.NDArray[Any]
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
THREADS: Final = 2
PREDICTED: Final = {
    "2048: check / hashing": 1.7,
    "4096: check / hashing": 1.7,
    "8192: check / hashing": 1.7,
    "2048: check / replay": 0.14,
    "4096: check / replay": 0.07,
    "8192: check / replay": 0.035,
    "4096: check without hashing / replay": 0.03,
    "gpt: check / replay": 3.0,
    "alarms in honest steps": 0,
    "faults missed": 0,
    "operators of which no fault was tried": 0,
}
"""What was expected of each figure, before it was measured."""
LIMITS: Final = {2048: 1 / 2, 4096: 1 / 4, 8192: 1 / 8}
"""Time of a check over that of a replay, by width."""
STEPS: Final = 10_000
FAULTS: Final = 10_000


# --- one linear layer


@dataclass(frozen=True)
class Layer:
    """y = x w^T, dx = g w and dw = g^T x, of ``width`` samples and features."""

    width: int
    x: Array
    w: Array
    g: Array
    results: tuple[Array, Array, Array]

    @property
    def products(self) -> Sequence[tuple[Array, Array, bool, bool, Array]]:
        """Operands, whether they are stored the other way round, and results."""
        y, dx, dw = self.results
        return (
            (self.x, self.w, False, True, y),
            (self.g, self.w, False, False, dx),
            (self.g, self.x, True, False, dw),
        )

    @property
    def values(self) -> Sequence[Array]:
        """All of the trace."""
        return (self.x, self.w, self.g, *self.results)

    def replay(self) -> None:
        """The products again."""
        for a, b, turn_a, turn_b, out in self.products:
            _core.gemm_i64(a, b, turn_a, turn_b, threads=THREADS, out=out)

    def hash(self) -> None:
        """Every value, read and hashed once."""
        for value in self.values:
            compute_tensor_digest(value, THREADS)

    def check(self) -> None:
        """The products, by vectors that are drawn now."""
        bound = self.width * 2**30
        vector = compute_vector(b"any", bytes(32), 0, self.width)
        for a, b, turn_a, turn_b, out in self.products:
            found = _core.find_wrong_product(
                a, b, out, turn_a, turn_b, -bound, bound, [vector], THREADS
            )
            assert found is None

    def hash_and_check(self) -> None:
        """All that an auditor does."""
        self.hash()
        self.check()


def make_layer(width: int) -> Layer:
    """Operands over the whole range that they may have."""
    rng = np.random.default_rng(width)
    x, w, g = (rng.integers(-32639, 32640, (width, width), np.int16) for _ in range(3))
    layer = Layer(width, x, w, g, tuple(np.zeros((width, width), np.int64) for _ in range(3)))  # type: ignore[arg-type]
    layer.replay()
    return layer


def measure_square(quick: bool) -> Iterator[Result]:
    """By width: against hashing, and against doing the products again."""
    result = Result()
    for width in (256, 512) if quick else (2048, 4096, 8192):
        layer = make_layer(width)
        seconds = 1.0 if quick else width / 160
        hashing = harness.compare(layer.hash_and_check, layer.hash, seconds=seconds)
        replay = harness.compare(layer.hash_and_check, layer.replay, seconds=seconds)
        size = sum(value.nbytes for value in layer.values)
        saved = replay["theirs"]["median"] - replay["ours"]["median"]
        ratio = replay["ratio"]["median"]
        targets = {f"{width}: check / hashing": at_most(hashing["ratio"]["median"], 2)}
        if width in LIMITS:
            targets[f"{width}: check / replay"] = at_most_here(ratio, avx512_vnni=LIMITS[width])
        own: dict[str, Any] = {
            "check over hashing": hashing,
            "check over replay": replay,
            "bytes of the trace": size,
            # Below this, moving the trace takes longer than what the check saves.
            "bandwidth from which it pays, MB/s": size / saved / 1e6 if saved > 0 else None,
        }
        if width < 8192:  # at that width a replay takes many seconds
            alone = harness.compare(layer.check, layer.replay, seconds=seconds)
            own["check without hashing, over replay"] = alone
            if width == 4096:
                without = alone["ratio"]["median"]
                name = "4096: check without hashing / replay"
                targets[name] = at_most_here(without, avx512_vnni=1 / 12)
        figures = {f"{width}": own}
        result = result.join(Result(figures, targets))
        yield result
    yield result.join(Result(list_predictions()))


def list_predictions() -> dict[str, Any]:
    """What was expected, for the page."""
    return {"predicted": [{"figure": name, "value": value} for name, value in PREDICTED.items()]}


# --- a whole step


class Counting(TraceFolder):
    """A folder that counts what is read of it."""

    read = 0

    def read_chunk(self, digest: bytes, kind: TensorType) -> Array:
        type(self).read += kind.byte_length
        return super().read_chunk(digest, kind)


def measure_gpt(quick: bool) -> Result:
    """A step of the GPT as it is, from the solver's folder, against doing the step again."""
    from _shakespeare import Variant

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "task").mkdir()
        both = Variant().open(folder / "task")
        task = compile_task(replace(both.file, steps=2, commit_every=1, checkpoint_every=1))
        run, traces = folder / "run", folder / "traces"
        train(task, run, key=KEY)
        begin = time.perf_counter()
        signed = write_traces(run, (2,), key=KEY, out=traces)
        writing = time.perf_counter() - begin
        trace = signed.traces.traces[0]
        leaves = TraceFolder(traces).read_leaves(trace)
        session = CpuSession(task.graph, task.samples, threads=THREADS)
        session.load_state(task.initial_state)
        session.step()
        state = session.read_state()

        def replay() -> None:
            session.load_state(state)
            session.step()

        store, arithmetic = Counting(traces, THREADS), keep_session(task, THREADS)

        def check() -> None:
            assert find_wrong(task, store, trace, leaves, arithmetic) is None

        check()
        read, Counting.read = Counting.read, 0
        compared = harness.compare(check, replay, seconds=2 if quick else 30)
        sizes = [node.outputs[0].byte_length for node in task.graph.nodes]
        stored = sum(path.stat().st_size for path in (traces / "chunks").iterdir())
        peak = measure_alone(
            "algebraic",
            run,
            every=1,
            engine="cpu",
            threads=THREADS,
            beside=traces,
            processes=1 if quick else 3,
        )
    return Result(
        {
            "gpt": {
                "check over replay": compared,
                "bytes read": read,
                "bytes of all values": sum(sizes),
                "bytes of the largest value": max(sizes),
                "bytes of the folder, each tensor once": stored,
                "bytes of the buffers of the check": session.check_memory,
                "peak memory of a process that checks it, beyond its imports, bytes": peak,
                "seconds to write and sign": writing,
            }
        },
        {"gpt: check / replay": at_most_here(compared["ratio"]["median"])},
    )


def keep_session(task: CompiledTask, threads: int = 0) -> Arithmetic:
    """The cpu engine's arithmetic, whose session serves all checks of a task, as in an audit."""
    arithmetic = choose_arithmetic("cpu", threads)
    assert arithmetic.open_session is not None
    session = arithmetic.open_session(task.graph, task.samples)
    return replace(arithmetic, open_session=lambda graph, samples: session)


def find_wrong(
    task: CompiledTask,
    store: Any,
    trace: TensorTrace,
    leaves: Sequence[bytes],
    arithmetic: Arithmetic,
    randomness: bytes = b"any",
) -> WrongValue | None:
    """The check of one trace, with vectors as long as they have to be."""
    widths = [n.outputs[0].shape[-1] for n in task.graph.nodes if n.op in PRODUCTS]
    vectors = [compute_vector(randomness, bytes(32), 0, max(widths))]
    checker = TraceChecker(task.graph, task.samples, store, vectors, arithmetic, 1 << 32, THREADS)
    return checker.check(trace, leaves)


# --- errors


class Memory:
    """Tensors by their digests, hashed as they came."""

    def __init__(self, values: Mapping[bytes, Array]) -> None:
        self._values = dict(values)

    def holds(self, digest: bytes) -> bool:
        return digest in self._values

    def read_chunk(self, digest: bytes, kind: TensorType) -> Array:
        if digest not in self._values:
            raise NotProducedError("is not there", where=digest.hex())
        # The same bytes may stand for tensors of other forms.
        data = self._values[digest].reshape(-1).view(np.uint8)
        return data.view(NUMPY_DTYPES[kind.dtype]).reshape(kind.shape)

    def put(self, value: Array) -> bytes:
        digest = compute_tensor_digest(value)
        self._values[digest] = value
        return digest


TASKS: Final = {
    "mlp": ROOT / "examples" / "mnist" / "tiny.toml",
    "cnn": ROOT / "examples" / "mnist" / "cnn.toml",
    "chars": ROOT / "examples" / "text" / "chars.toml",
}
"""Tasks whose steps are checked..."""
SMALL: Final = {
    "gpt": ("adamw", "cross_entropy"),
    "dropout": ("sgd", "cross_entropy"),
    "packed gpt": ("sgd", "cross_entropy"),
    "llama": ("lion", "cross_entropy"),
    "averages": ("sgd", "mse"),
}
"""... and small ones, transformers of one block among them, by kind, with optimizer and loss: with
those above all operators of the law."""
GIVEN: Final = frozenset({"state"})
"""What a step begins with is held against the log, and has no part in it."""


def alter(value: Array, kind: str, element: int) -> Array | None:
    """The value with one element wrong, or two that changed places; None where that is the same, or
    no value of the dtype."""
    flat = value.reshape(-1).copy()
    old, info = int(flat[element]), np.iinfo(value.dtype)
    if kind == "permuted":
        other = np.flatnonzero(flat != old)
        if not len(other):
            return None
        flat[element], flat[other[0]] = flat[other[0]], old
    else:
        shift = {"+1": 1, "-1": -1, "sign": -2 * old, "+p": PRIME, "-p": -PRIME}[kind]
        if not shift or not info.min <= old + shift <= info.max:
            return None
        flat[element] = old + shift
    return flat.reshape(value.shape)


KINDS: Final = ("+1", "-1", "sign", "+p", "-p", "permuted")


def measure_errors(quick: bool) -> Iterator[Result]:
    """Alarms in honest steps, and misses among wrong elements."""
    tasks = [compile_task(load_task(path)) for path in TASKS.values()]
    tasks += [
        make_tiny_task(kind, batch=4, steps=STEPS, commit_every=1, optimizer=optimizer, loss=loss)
        for kind, (optimizer, loss) in SMALL.items()
    ]
    steps, faults = (30, 60) if quick else (STEPS, FAULTS)
    alarms, misses = 0, 0
    tried: Counter[str] = Counter()
    rng = np.random.default_rng(0)
    for number, task in enumerate(tasks):
        session = open_session("cpu", task.graph, task.samples)
        session.load_state(task.initial_state)
        arithmetic = keep_session(task)
        nodes = range(len(task.graph.nodes))
        strata = list_strata(task.graph)
        share = -(-steps // len(tasks))
        per_step = -(-max(-(-faults // len(tasks)), len(strata)) // share)
        turns = itertools.cycle(strata.values())
        for step in range(1, share + 1):
            values = session.evaluate_all(nodes)
            leaves = compute_tensor_digests(values)
            store = Memory(dict(zip(leaves, values, strict=True)))
            trace = TensorTrace(step, len(leaves), bytes(32))
            seed = step.to_bytes(4, "little")
            alarms += find_wrong(task, store, trace, leaves, arithmetic, seed) is not None
            for stratum in itertools.islice(turns, per_step):
                index, kind, wrong = draw_fault(stratum, values, rng)
                tried[f"{task.graph.nodes[index].op} {wrong.dtype} {kind}"] += 1
                changed = [*leaves]
                changed[index] = store.put(wrong)
                found = find_wrong(task, store, trace, changed, arithmetic, seed)
                place = int(np.flatnonzero(wrong.reshape(-1) != values[index].reshape(-1))[0])
                right = found is not None and (found.index, found.element) == (index, place)
                misses += not right
            session.step()
        yield Result(
            {"tasks done": number + 1, "faults tried": sum(tried.values()), "kinds": dict(tried)}
        )
    untried = list_untried(tried)
    yield Result(
        {
            "honest steps": share * len(tasks),
            "faults tried": sum(tried.values()),
            "operators": len({name.split()[0] for name in tried}),
            "operators of which no fault was tried": ", ".join(untried) or "none",
            "faults of each operator, dtype and kind": dict(sorted(tried.items())),
        },
        {
            "alarms in honest steps": at_most(alarms, 0),
            "faults missed": at_most(misses, 0),
            "operators of which no fault was tried": at_most(len(untried), 0),
        },
    )


def list_strata(graph: StepGraph) -> dict[tuple[str, str], list[int]]:
    """The nodes by operator and dtype of the output, but for those of ``GIVEN``."""
    strata: dict[tuple[str, str], list[int]] = {}
    for index, node in enumerate(graph.nodes):
        if node.op not in GIVEN:
            strata.setdefault((node.op, node.outputs[0].dtype), []).append(index)
    return strata


def list_untried(tried: Iterable[str]) -> list[str]:
    """The operators of the law that no fault, by "OPERATOR DTYPE KIND", was of."""
    return sorted(set(TABLE) - GIVEN - {name.split()[0] for name in tried})


def draw_fault(
    stratum: Sequence[int], values: Sequence[Array], rng: np.random.Generator
) -> tuple[int, str, Array]:
    """A node of a stratum, a way to be wrong, and its output.  Strata take turns, so that each
    operator and dtype of a task is tried, and as often as the others."""
    while True:
        index, kind = int(rng.choice(stratum)), str(rng.choice(KINDS))
        wrong = alter(values[index], kind, int(rng.integers(values[index].size)))
        if wrong is not None:
            return index, kind, wrong


if __name__ == "__main__":
    main(
        "algebraic",
        {"square": measure_square, "gpt": measure_gpt, "errors": measure_errors},
        about=(__doc__ or "").partition("\n")[0],
    )
