"""The cuda engine on one GPU: checked first, then timed against torch on the same card.

``--part images`` has products, hashes, an MLP and a CNN, ``--part gpt`` language models; each takes
two to five minutes on an H200.  What matters most comes first, and each model's figures are written
when it is done.  One for which the time that is left does not suffice is left out and named
(``PARTS`` has what each may take).
Without a GPU it says what is missing, and writes which targets wait and what is predicted of them.

Predicted, before any run on a GPU (the counts are in docs/cuda.md, "Counted"):

- int16 product at 4096 cubed: 0.34 to 0.39 of torch's bf16 rate (788 TFLOP/s on an H200), at 8192
  cubed 0.36 to 0.41.  Four int8 products at twice the rate of bf16 make 0.5 the ceiling; the main
  loop is taken to reach 65 to 75 percent of it, since it would need all of the shared memory's rate
  at the peak; packing both operands and the int64 sums are the rest.
- int8 product: 1.05 to 1.3 of bf16 at 4096 cubed, 1.15 to 1.4 at 8192, by L2's rate.  fp32 without
  TF32 runs at a fifteenth of bf16: 0.36 is 5.4 times that.
- Step of the MLP: 2.2 to 2.6 of compiled bf16.  Its eight products take 2.6 of bf16's; the update
  moves 32 bytes a weight, gradients of 8 bytes in them, where bf16 with fp32 weights moves 28.
- Step of the CNN: 2.5.  Gradients of images pass through int64 patches, the weak point here.
- BLAKE3: 0.9 to 1.2 TB/s.  A compression of 64 bytes is about 800 instructions of integers, of
  which 132 processors do 64 a cycle: 1.2 TB/s at 1.755 GHz is the ceiling; memory allows 4.
- Commitment: the state of the MLP is 0.4 GB, 0.4 ms at that rate, and the step takes 5.
- Step of GPT-2 small (124 million weights, 8 windows of 1024): 5 of compiled bf16, 0.9 of fp32.
  Linear layers take 2.2 of bf16's, as the MLP's; attention is not fused: each of 12 layers moves
  its (1024, 1024) weights of 96 heads, 200 MB in int16, a dozen times; and so do 0.8 GB of logits.
- Step of the small GPT (4 layers of 128, 16 windows of 128): 3 ms, launches above all; fp32 eager
  waits for the host even longer.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import _harness as harness
import _language as language
import numpy as np
import numpy.typing as npt

from vtrain.engines.base import Session, State
from vtrain.engines.cpu import CpuSession
from vtrain.engines.cuda.calibration import DeviceEvaluator
from vtrain.engines.cuda.compile import load_nvrtc
from vtrain.engines.cuda.device import Call, Device, Pointer, Slot
from vtrain.engines.cuda.digest import plan_tensor_digest
from vtrain.engines.cuda.gemm import Epilogue, Factor, find_choice, plan_matmul
from vtrain.engines.cuda.gpu import CudaDevice, load_driver
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.launch import Arg, Constant, Launch, Operand, Output, Scratch
from vtrain.engines.cuda.selfcheck import KernelWarning
from vtrain.engines.cuda.session import CudaSession
from vtrain.errors import KernelError, MissingExtraError, RunError, VtrainError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import NodeEvaluator, OpenEvaluator, calibrate
from vtrain.graph.model import Add, Conv, Layer, Linear, MaxPool, Model, Relu, Reshape
from vtrain.graph.step import Affine, Momentum, StepPlan, compute_initial_state, emit_step
from vtrain.ops.layout import Window
from vtrain.spec.commitment import compute_tensor_digest
from vtrain.spec.number import MASTER_EXPONENT, round_to_mantissa
from vtrain.spec.samples import Samples
from vtrain.train.data import build_samples
from vtrain.wire.graph import StepGraph

Array = npt.NDArray[Any]
NEVER = 2**40
GEMM_SIZES = (4096, 8192)
WIDTH, BATCH = 4096, 4096
CNN_BATCH = 256
CHANNELS = (64, 128, 256)
HASHED = 4 * 2**30
GPTS = {
    "small gpt": language.Sizes(layers=4, features=128, heads=4, context=128, batch=16),
    "gpt-2": language.Sizes(12, 768, 12, 1024, 8, vocabulary=50304, tokens=1_000_000),
}
"""The Shakespeare example's sizes, and those of GPT-2 small."""
CALIBRATED = 2
"""Windows of a step of their calibration, which keeps all values of one."""
EQUAL_STEPS = 1000

LIMITS = {
    **{f"int16 product, {n} cubed, of torch bf16": ("least", 0.35) for n in GEMM_SIZES},
    **{f"int8 product, {n} cubed, of torch bf16": ("least", 1.2) for n in GEMM_SIZES},
    **{f"int16 product, {n} cubed, of torch fp32": ("least", 5.0) for n in GEMM_SIZES},
    "mlp step, time over torch bf16 compiled": ("most", 2.5),
    "mlp step, time over torch fp32": ("most", 1.0),
    "cnn step, time over torch bf16 compiled": ("most", 2.5),
    "cnn step, time over torch fp32": ("most", 1.0),
    "gpt-2 step, time over torch bf16 compiled": ("most", 2.5),
    "gpt-2 step, time over torch fp32": ("most", 1.0),
    "small gpt step, time over torch bf16 compiled": ("most", 2.5),
    "small gpt step, time over torch fp32": ("most", 1.0),
    "BLAKE3 of 4 GiB, GB/s": ("least", 300.0),
    "committing every step, share of the mlp step": ("most", 0.35),
    "committing every 10 steps, share of the mlp step": ("most", 0.04),
    "equal roots after 1,000 steps, cpu and gpu, mlp and cnn": ("least", 1.0),
    "equal roots of a run that changes its engine half-way": ("least", 1.0),
}
PREDICTED = {
    "int16 product, 4096 cubed, of torch bf16": 0.36,
    "int16 product, 8192 cubed, of torch bf16": 0.38,
    "int8 product, 4096 cubed, of torch bf16": 1.15,
    "int8 product, 8192 cubed, of torch bf16": 1.25,
    "int16 product, 4096 cubed, of torch fp32": 5.4,
    "int16 product, 8192 cubed, of torch fp32": 5.7,
    "mlp step, time over torch bf16 compiled": 2.4,
    "mlp step, time over torch fp32": 0.25,
    "cnn step, time over torch bf16 compiled": 2.5,
    "cnn step, time over torch fp32": 0.6,
    "gpt-2 step, time over torch bf16 compiled": 5.0,
    "gpt-2 step, time over torch fp32": 0.9,
    "small gpt step, time over torch bf16 compiled": 1.0,
    "small gpt step, time over torch fp32": 0.5,
    "BLAKE3 of 4 GiB, GB/s": 1000.0,
    "committing every step, share of the mlp step": 0.08,
    "committing every 10 steps, share of the mlp step": 0.01,
}


EXAMPLE = harness.ROOT / "examples" / "shakespeare" / "gpt.py"


def judge(
    values: dict[str, float],
    failed: Sequence[str] = (),
    unfit: Set[str] = frozenset(),
    begun: tuple[str, ...] = ("",),
) -> dict[str, harness.Target]:
    """Every target whose name begins as one of ``begun``, those without a value as not run, or else
    as ``failed``; those whose values are ``unfit``, since other kernels gave them than are meant,
    as missed."""
    targets = {}
    for name, (kind, limit) in LIMITS.items():
        if not name.startswith(begun):
            continue
        if name not in values:
            targets[name] = harness.failed(limit) if name in failed else harness.not_run(limit)
        elif kind == "least":
            targets[name] = harness.at_least(values[name], limit)
        else:
            targets[name] = harness.at_most(values[name], limit)
        if name in unfit and name in values:
            targets[name] = harness.unfit(targets[name])
    return targets


# --- models and their tasks


@dataclass(frozen=True)
class Step:
    """A step graph with its samples and first state."""

    graph: StepGraph
    samples: Samples
    state: State


class Weights:
    """Random parameters."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.params: dict[str, npt.NDArray[np.int32]] = {}

    def add(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        """He's uniform initialisation."""
        values = self._rng.uniform(-1, 1, shape) * np.sqrt(6 / fan_in)
        self.params[name] = round_to_mantissa(values, MASTER_EXPONENT).astype(np.int32)
        return name


def make_mlp(sizes: Sequence[int]) -> Model:
    """Linear layers with biases, ReLU between them."""
    weights = Weights(1)
    layers: list[Layer] = []
    value = "x"
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        weight = weights.add(f"w{i}", (outputs, inputs), inputs)
        layers.append(
            Linear(f"fc{i}", value, weight, weights.add(f"b{i}", (outputs,), 6 * 10**6), True)
        )
        value = f"fc{i}"
        if i < len(sizes) - 2:
            layers.append(Relu(f"relu{i}", value))
            value = f"relu{i}"
    return Model("x", (sizes[0],), tuple(layers), value, weights.params)


def make_cnn(side: int, channels: Sequence[int], blocks: int, classes: int) -> Model:
    """3x3 convolutions: at each width one that widens, then residual blocks of two, then a pool."""
    weights = Weights(2)
    same = Window((3, 3), (1, 1), (1, 1, 1, 1))
    layers: list[Layer] = []

    def convolve(name: str, value: str, inputs: int, outputs: int) -> str:
        kernel = weights.add(f"{name}/k", (outputs, 3, 3, inputs), 9 * inputs)
        bias = weights.add(f"{name}/b", (outputs,), 6 * 10**6)
        layers.append(Conv(name, value, kernel, bias, same))
        return name

    def rectify(value: str) -> str:
        layers.append(Relu(f"{value}/relu", value))
        return f"{value}/relu"

    value, width = "x", 3
    for level, outputs in enumerate(channels):
        value = rectify(convolve(f"wide{level}", value, width, outputs))
        width = outputs
        for block in range(blocks):
            inner = rectify(convolve(f"a{level}.{block}", value, width, width))
            inner = convolve(f"b{level}.{block}", inner, width, width)
            layers.append(Add(f"sum{level}.{block}", inner, value))
            value = rectify(f"sum{level}.{block}")
        layers.append(MaxPool(f"pool{level}", value, Window((2, 2), (2, 2), (0, 0, 0, 0))))
        value = f"pool{level}"
        side //= 2
    flat = side * side * width
    layers.append(Reshape("flat", value, (flat,)))
    head = weights.add("head", (classes, flat), flat)
    layers.append(Linear("logits", "flat", head, weights.add("head/b", (classes,), 10**6), True))
    shape = (3, side * 2 ** len(channels), side * 2 ** len(channels))
    return Model("x", shape, tuple(layers), "logits", weights.params)


class Trainable:
    """A model with random samples, and exponents that a small batch gave."""

    def __init__(
        self,
        model: Model,
        *,
        classes: int,
        samples: int,
        open_evaluator: OpenEvaluator = NodeEvaluator,
    ) -> None:
        rng = np.random.default_rng(5)
        x = rng.integers(0, 256, (samples, *model.input_shape), dtype=np.uint8)
        self._model = model
        self._samples = build_samples(x, rng.integers(0, classes, samples, dtype=np.int32))
        self._state = compute_initial_state(model.params)
        measured = calibrate(
            lambda builder: self._emit(builder, 16, NEVER),
            self._state,
            self._samples,
            steps=2,
            margin=3,
            open_evaluator=open_evaluator,
        )
        self._exponents = measured.exponents

    def _emit(self, builder: GraphBuilder, batch: int, commit_every: int) -> None:
        plan = StepPlan(
            data=self._samples.spec,
            prepare=Affine(multiplier=257, offset=-(2**15), shift=1, exponent=15),
            loss="cross_entropy",
            optimizer=Momentum(decay=round(2**16 * 0.1), starts=(0,), rates=(32768,), exponent=30),
            seed=11,
            batch=batch,
            commit_every=commit_every,
        )
        emit_step(builder, plan, self._model)

    def make_step(self, batch: int, commit_every: int) -> Step:
        """The training step on batches of so many samples."""
        builder = GraphBuilder(FixedExponents(self._exponents))
        self._emit(builder, batch, commit_every)
        return Step(builder.graph(), self._samples, self._state)


# --- checks


def run_steps(session: Session, state: State, steps: int) -> list[Any]:
    """Records of so many steps from ``state``."""
    session.load_state(state)
    return [session.step() for _ in range(steps)]


def open_cuda(step: Step, device: Device, kernels: Kernels) -> CudaSession:
    """Our side."""
    session = CudaSession(step.graph, step.samples, device=device, kernels=kernels)
    session.load_state(step.state)
    return session


def small_steps() -> dict[str, Step]:
    """What is compared with the cpu engine."""
    mlp, cnn = make_mlp((96, 64, 48, 10)), make_cnn(8, (8, 12), 1, 10)
    models = {"mlp": mlp, "cnn": cnn}
    return {
        name: Trainable(model, classes=10, samples=500).make_step(32, 10)
        for name, model in models.items()
    }


def check_roots(device: Device, steps: int) -> dict[str, float]:
    """1.0 where the records of the cpu engine are found again, every product on tensor cores."""
    equal, mixed = 1.0, 1.0
    kernels = Kernels(device, least_products=0)
    for step in small_steps().values():
        cpu = CpuSession(step.graph, step.samples)
        expected = run_steps(cpu, step.state, steps)
        cuda = open_cuda(step, device, kernels)
        if run_steps(cuda, step.state, steps) != expected:
            equal = 0.0
        first = run_steps(cuda, step.state, steps // 2)
        second = run_steps(cpu, cuda.read_state(), steps - steps // 2)
        if [*first, *second] != expected:
            mixed = 0.0
        cuda.close()
    return {
        "equal roots after 1,000 steps, cpu and gpu, mlp and cnn": equal,
        "equal roots of a run that changes its engine half-way": mixed,
    }


def run_sanitized(device: Device) -> None:
    """What compute-sanitizer watches: a few steps of the small models.  Large cases of the
    self-check, which take a GPU milliseconds, would take the sanitizer hours."""
    kernels = Kernels(device, large=False, least_products=0)
    for step in small_steps().values():
        cpu = CpuSession(step.graph, step.samples)
        cuda = open_cuda(step, device, kernels)
        if run_steps(cuda, step.state, 3) != run_steps(cpu, step.state, 3):
            raise KernelError("gives other records than the cpu engine", where="step")
        cuda.close()


def check_sanitized(seconds: float) -> str:
    """What compute-sanitizer says of it, within so many seconds."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return "not on this machine"
    program = "import gpu; gpu.run_sanitized(gpu.CudaDevice())"
    try:
        done = subprocess.run(
            [sanitizer, "--error-exitcode", "9", sys.executable, "-c", program],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"not done in {seconds:.0f} seconds"
    if done.returncode == 0:
        return CLEAN
    return f"exit code {done.returncode}: {done.stdout[-500:]}"


CLEAN = "no errors"
SANITIZED_SECONDS = 540.0


def report_sanitized() -> int:
    """The whole of ``gpu.py sanitize``: a line, and the exit code."""
    missing = find_missing(torch=False)
    found = missing or check_sanitized(SANITIZED_SECONDS)
    print(f"compute-sanitizer: {found}")
    if missing or found == "not on this machine":
        return harness.NOTHING_MEASURED
    return 0 if found == CLEAN else 1


# --- timing


REPEATS = 10
"""Calls between two events: the 10 to 15 us of a launch, which the first waits for, are a tenth of
what they would be around one."""


def repeat(work: Callable[[], object]) -> None:
    """Queue it so often."""
    for _ in range(REPEATS):
        work()


class Bench:
    """Launches with memory of their own, to be checked and timed."""

    def __init__(self, device: Device, launches: Sequence[Launch], places: dict[Arg, int]) -> None:
        self._device, self._places = device, dict(places)
        self._own: list[int] = []
        for launch in launches:
            for arg in launch.args:
                if isinstance(arg, Scratch | Constant) and arg not in self._places:
                    nbytes = arg.nbytes if isinstance(arg, Scratch) else len(arg.data)
                    self._places[arg] = device.allocate(max(nbytes, 1))
                    self._own.append(self._places[arg])
                    if isinstance(arg, Constant):
                        device.write(self._places[arg], arg.data)
        device.prepare([(launch.file, launch.kernel) for launch in launches])
        self._calls = [self._resolve(launch) for launch in launches]
        self._replay = device.record(self.launch)

    def _resolve(self, launch: Launch) -> Call:
        slots: tuple[Slot, ...] = tuple(
            arg if isinstance(arg, int) else Pointer(self._places[arg]) for arg in launch.args
        )
        return Call(launch.file, launch.kernel, launch.grid, launch.block, slots, launch.shared)

    def launch(self) -> None:
        """Queue all of it once."""
        for call in self._calls:
            self._device.launch(call)

    def time(self, rounds: int = 20) -> harness.Spread:
        """Seconds of one, by the device's clock."""
        for _ in range(3):
            self._replay()
        replay = partial(repeat, self._replay)
        return harness.spread([self._device.time(replay) / REPEATS for _ in range(rounds)])

    def close(self) -> None:
        """Give the memory back."""
        for address in self._own:
            self._device.free(address)


def time_torch(work: Callable[[], object], rounds: int = 20) -> harness.Spread:
    """Seconds of a call, by torch's events, as many calls between two as ours have."""
    import torch

    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        repeat(work)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / REPEATS)
    return harness.spread(times)


def multiply_exactly(a: Array, b: Array) -> Array:
    """The product in binary64, exact below 2^53 in whatever order."""
    import torch

    exact = torch.from_numpy(a).cuda().double() @ torch.from_numpy(b).cuda().double()
    return np.asarray(exact.to(torch.int64).cpu().numpy())


def measure_products(device: Device, size: int, rounds: int) -> dict[str, Any]:
    """Seconds of int16 and int8 products of random data, which are checked, and by which kernel."""
    rng = np.random.default_rng(size)
    figures: dict[str, Any] = {}
    for dtype, low, high in ((np.int16, -32639, 32639), (np.int8, -127, 127)):
        a, b = (rng.integers(low, high, (size, size), dtype=dtype, endpoint=True) for _ in "ab")
        places: dict[Arg, int] = {}
        for index, values in enumerate((a, b)):
            places[Operand(index)] = device.allocate(values.nbytes)
            device.write(places[Operand(index)], values.reshape(-1).view(np.uint8))
        places[Output()] = device.allocate(8 * size * size)
        name = "i16" if dtype is np.int16 else "i8"
        launches = plan_matmul(
            Factor(Operand(0), name, size, size, True, low, high),
            Factor(Operand(1), name, size, size, False, low, high),
            Epilogue(Output()),
            device.info.architecture,
            processors=device.info.processors,
        )
        if launches is None:
            raise RunError("has no tensor cores for us", where=f"device {device.info.name}")
        bench = Bench(device, launches, places)
        bench.launch()
        sums = np.frombuffer(device.read(places[Output()], 8 * size * size), "<i8")
        if not np.array_equal(sums.reshape(size, size), multiply_exactly(a, b)):
            raise KernelError("gives a wrong product", where=launches[-1].kernel)
        figures[f"{name}, seconds"] = bench.time(rounds)
        figures[f"{name}, kernel"] = find_choice(launches).kernel
        bench.close()
        for address in places.values():
            device.free(address)
    return figures


def time_torch_products(size: int, rounds: int) -> dict[str, harness.Spread]:
    """Seconds of torch's products, without TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    figures = {}
    for kind in (torch.bfloat16, torch.float32):
        x, y = (torch.randn(size, size, device="cuda").to(kind) for _ in "xy")
        figures[f"torch {kind}, seconds"] = time_torch(partial(torch.matmul, x, y), rounds)
    return figures


def wall(step: Callable[[], object], finish: Callable[[], object], steps: int) -> harness.Spread:
    """Seconds a step, over several runs of ``steps``."""
    step()
    finish()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        finish()
        times.append((time.perf_counter() - begin) / steps)
    return harness.spread(times)


def make_torch(model: Model) -> Any:
    """The torch twin of ``model``, on the host."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict()
            # What the compiler traces is names and modules alone: it would break its graph at
            # layers of ours.
            self.plan: list[tuple[str, str, str, str]] = []
            for layer in model.layers:
                name, other = layer.name.replace(".", "_"), ""
                match layer:
                    case Linear():
                        outer, inner = model.params[layer.weight].shape
                        self.parts[name], kind = nn.Linear(inner, outer), "part"
                    case Conv():
                        outer, _, _, inner = model.params[layer.weight].shape
                        self.parts[name], kind = nn.Conv2d(inner, outer, 3, padding=1), "part"
                    case Relu():
                        kind = "relu"
                    case Add():
                        kind, other = "add", layer.right
                    case MaxPool():
                        kind = "pool"
                    case Reshape():
                        kind = "flatten"
                    case _:
                        raise RunError("has no twin in torch", where=f"layer {layer.name}")
                value = layer.left if isinstance(layer, Add) else layer.input
                self.plan.append((kind, layer.name, value, other))

        def forward(self, x: Any) -> Any:
            values = {model.input: x}
            for kind, name, value, other in self.plan:
                if kind == "part":
                    values[name] = self.parts[name.replace(".", "_")](values[value])
                elif kind == "relu":
                    values[name] = torch.relu(values[value])
                elif kind == "add":
                    values[name] = values[value] + values[other]
                elif kind == "pool":
                    values[name] = nn.functional.max_pool2d(values[value], 2)
                else:
                    values[name] = values[value].flatten(1)
            return values[model.output]

    return Network()


def compile_torch(network: Any, backend: str = "inductor") -> Any:
    """Compiled as one graph, or an error: a baseline in pieces would flatter us."""
    import torch

    return torch.compile(network, fullgraph=True, backend=backend)


def time_torch_steps(
    model: Model, batch: int, classes: int, steps: int
) -> dict[str, harness.Spread]:
    """Seconds of a step of an MLP or a CNN with momentum, as :func:`time_both_forms` says."""
    import torch

    def open_() -> tuple[Any, Any, Callable[[Any], Any]]:
        network = make_torch(model).cuda()
        x = torch.rand(batch, *model.input_shape, device="cuda")
        if len(model.input_shape) == 3:
            network = network.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        y = torch.randint(0, classes, (batch,), device="cuda")
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
        cross_entropy = torch.nn.functional.cross_entropy
        return network, optimizer, lambda forward: cross_entropy(forward(x), y)

    return time_both_forms(open_, lambda network: None, steps)


def time_both_forms(
    open_: Callable[[], tuple[Any, Any, Callable[[Any], Any]]],
    clip: Callable[[Any], object],
    steps: int,
) -> dict[str, harness.Spread]:
    """Seconds of a training step: compiled under bf16 autocast, and eager in fp32 without TF32.

    ``open_`` gives a module, its optimizer, and the loss by what computes the module.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    found = {}
    for name in ("bf16 compiled", "fp32"):
        network, optimizer, compute_loss = open_()
        half = name != "fp32"
        forward = compile_torch(network) if half else network

        def step(
            network: Any = network,
            forward: Any = forward,
            optimizer: Any = optimizer,
            compute_loss: Any = compute_loss,
            half: bool = half,
        ) -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = compute_loss(forward)
            loss.backward()
            clip(network)
            optimizer.step()

        for _ in range(3):
            step()
        found[name] = wall(step, torch.cuda.synchronize, steps)
    return found


def measure_step(
    device: Device,
    kernels: Kernels,
    model: Model,
    batch: int,
    classes: int,
    commits: Sequence[int],
    steps: int,
) -> dict[str, Any]:
    """Seconds of our step for each commitment interval, and where they go."""
    figures: dict[str, Any] = {}
    trainable = Trainable(
        model,
        classes=classes,
        samples=2 * batch,
        open_evaluator=partial(DeviceEvaluator, device=device, kernels=kernels),
    )
    for commit_every in commits:
        step = trainable.make_step(batch, commit_every)
        session = open_cuda(step, device, kernels)
        count = steps if commit_every == NEVER else -(-steps // commit_every) * commit_every
        name = "never" if commit_every == NEVER else f"every {commit_every}"
        figures[f"ours, committing {name}"] = wall(session.step, device.synchronize, count)
        if commit_every == NEVER:
            figures["phases, seconds a step"] = measure_phases(session, step.graph)
            figures["device memory, GB"] = session.memory_bytes / 1e9
        session.close()
    return figures


def make_language_step(device: Device, kernels: Kernels, sizes: language.Sizes) -> Step:
    """A step of a GPT, calibrated on the device."""
    evaluate = partial(DeviceEvaluator, device=device, kernels=kernels)
    with tempfile.TemporaryDirectory() as folder:
        task = language.make_task("gpt", sizes, Path(folder), evaluate, CALIBRATED)
    return Step(task.graph, task.samples, task.initial_state)


def measure_language_step(
    device: Device, kernels: Kernels, sizes: language.Sizes, steps: int
) -> dict[str, Any]:
    """Seconds of our step of a GPT that commits every 10 steps, and where they go."""
    step = make_language_step(device, kernels, sizes)
    session = open_cuda(step, device, kernels)
    found = {
        "ours": wall(session.step, device.synchronize, steps),
        "phases, seconds a step": measure_phases(session, step.graph),
        "device memory, GB": session.memory_bytes / 1e9,
    }
    session.close()
    return found


def make_torch_gpt(sizes: language.Sizes) -> Any:
    """The example's module in these sizes, on the host."""
    spec = spec_from_file_location("sized_gpt", EXAMPLE)
    if spec is None or spec.loader is None:
        raise RunError("is no module of Python", where=str(EXAMPLE))
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LAYERS, module.FEATURES = sizes.layers, sizes.features
    module.HEADS, module.CONTEXT = sizes.heads, sizes.context
    return module.GPT(sizes.vocabulary)


def time_torch_gpt(sizes: language.Sizes, steps: int) -> dict[str, harness.Spread]:
    """Seconds of a training step with AdamW and clipping, as :func:`time_both_forms` says."""
    import torch

    def open_() -> tuple[Any, Any, Callable[[Any], Any]]:
        network = make_torch_gpt(sizes).cuda()
        windows = (sizes.batch, sizes.context)
        x, y = (torch.randint(0, sizes.vocabulary, windows, device="cuda") for _ in "xy")
        optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.1, fused=True)
        cross_entropy = torch.nn.functional.cross_entropy
        return (
            network,
            optimizer,
            lambda forward: cross_entropy(forward(x).flatten(0, 1), y.flatten()),
        )

    def clip(network: Any) -> None:
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)

    return time_both_forms(open_, clip, steps)


def measure_phases(session: CudaSession, graph: StepGraph, steps: int = 5) -> dict[str, float]:
    """Where the time of our step goes, by operator of the last node of each job."""
    session.start_profile()
    for _ in range(steps):
        session.step()
    phases: dict[str, float] = {}
    spent = session.profile()
    for node in graph.nodes:
        if spent[node.name] > 0:
            phases[node.op] = phases.get(node.op, 0.0) + spent[node.name] / steps
    return dict(sorted(phases.items(), key=lambda item: -item[1]))


def measure_hash(device: Device, nbytes: int, rounds: int) -> harness.Spread:
    """Seconds for the digest of ``nbytes`` random bytes, which is checked."""
    data = np.random.default_rng(3).integers(0, 256, nbytes, dtype=np.uint8)
    places: dict[Arg, int] = {Operand(0): device.allocate(nbytes), Output(): device.allocate(32)}
    device.write(places[Operand(0)], data)
    bench = Bench(device, plan_tensor_digest(nbytes), places)
    bench.launch()
    if device.read(places[Output()], 32) != compute_tensor_digest(data):
        raise KernelError("gives a wrong digest", where="tensor_digest.cu")
    found = bench.time(rounds)
    bench.close()
    for address in places.values():
        device.free(address)
    return found


def find_missing(*, torch: bool = True) -> str:
    """What this machine lacks; nothing if all can be measured."""
    try:
        load_nvrtc()
        load_driver()
        return _find_missing_torch() if torch else ""
    except (MissingExtraError, RunError) as error:
        return str(error)


def _find_missing_torch() -> str:
    try:
        if find_spec("torch") is None:
            command = f"{sys.executable} -m pip install torch"
            raise MissingExtraError(f"torch is not installed: {command}", where="benchmark gpu")
        import torch

        if not torch.cuda.is_available():
            raise RunError(f"torch {torch.__version__} finds no GPU", where="benchmark gpu")
    except (MissingExtraError, RunError) as error:
        return str(error)
    return ""


def describe_waiting(missing: str) -> harness.Result:
    """What is written where there is no GPU."""
    rows = [
        {
            "target": name,
            "limit": f"at {kind} {limit:g}",
            "predicted": f"{PREDICTED[name]:g}" if name in PREDICTED else "holds",
        }
        for name, (kind, limit) in LIMITS.items()
    ]
    status = "not yet run: there was no NVIDIA GPU on this machine"
    return harness.Result({"status": status, "predicted": rows}, judge({}), missing)


class Course:
    """What is measured on one device: figures, and the values that are held against targets."""

    def __init__(self, device: Device, quick: bool, now: Callable[[], float]) -> None:
        self._device, self._now, self._begin = device, now, now()
        self._rounds, self._steps = (5, 5) if quick else (20, 20)
        self._kernels = Kernels(device)
        self.figures: dict[str, Any] = {"device": vars(device.info)}
        self.values: dict[str, float] = {}
        self._mlp = cache(lambda: make_mlp((WIDTH,) * 4))
        self._cnn = cache(lambda: make_cnn(32, CHANNELS, 2, 10))

    @property
    def left(self) -> float:
        """Seconds until all must be done."""
        return MOST_SECONDS - (self._now() - self._begin)

    def check_roots(self) -> None:
        """The same records as those of the cpu engine."""
        self.values |= check_roots(self._device, EQUAL_STEPS)

    @property
    def disabled(self) -> frozenset[str]:
        """Kernels that failed here: readable ones, or slower ones, were timed in their place."""
        return self._kernels.disabled

    def measure_products(self, size: int) -> None:
        """Products of square matrices, ours and torch's."""
        found = measure_products(self._device, size, self._rounds)
        found |= time_torch_products(size, self._rounds)
        self.figures[f"product, {size} cubed"] = found
        ours, bytes_ = found["i16, seconds"]["median"], found["i8, seconds"]["median"]
        half = found["torch torch.bfloat16, seconds"]["median"]
        single = found["torch torch.float32, seconds"]["median"]
        self.values[f"int16 product, {size} cubed, of torch bf16"] = half / ours
        self.values[f"int8 product, {size} cubed, of torch bf16"] = half / bytes_
        self.values[f"int16 product, {size} cubed, of torch fp32"] = single / ours

    def measure_hash(self) -> None:
        """BLAKE3 where the bytes lie."""
        found = measure_hash(self._device, HASHED, self._rounds)
        self.figures["BLAKE3 of 4 GiB, seconds"] = found
        self.values["BLAKE3 of 4 GiB, GB/s"] = HASHED / found["median"] / 1e9

    def measure_mlp(self) -> None:
        """Our step of the MLP, and what commitments add to it."""
        given = (self._mlp(), BATCH, WIDTH, (NEVER, 1, 10), self._steps)
        found = self.figures["mlp step"] = measure_step(self._device, self._kernels, *given)
        plain = found["ours, committing never"]["median"]
        for interval, name in ((1, "every step"), (10, "every 10 steps")):
            more = found[f"ours, committing every {interval}"]["median"] - plain
            self.values[f"committing {name}, share of the mlp step"] = more / plain

    def measure_cnn(self) -> None:
        """Our step of the CNN."""
        given = (self._cnn(), CNN_BATCH, 10, (NEVER,), self._steps)
        self.figures["cnn step"] = measure_step(self._device, self._kernels, *given)

    def time_torch_mlp(self) -> None:
        """torch's step of the MLP."""
        self._compare("mlp", time_torch_steps(self._mlp(), BATCH, WIDTH, self._steps))

    def time_torch_cnn(self) -> None:
        """torch's step of the CNN."""
        self._compare("cnn", time_torch_steps(self._cnn(), CNN_BATCH, 10, self._steps))

    def measure_gpt(self, name: str) -> None:
        """Our step of a GPT."""
        given = (GPTS[name], self._steps)
        self.figures[f"{name} step"] = measure_language_step(self._device, self._kernels, *given)

    def time_torch_gpt(self, name: str) -> None:
        """torch's step of it."""
        self._compare(name, time_torch_gpt(GPTS[name], self._steps), ours="ours")

    def _compare(
        self, model: str, theirs: dict[str, harness.Spread], ours: str = "ours, committing never"
    ) -> None:
        found = self.figures.setdefault(f"{model} step", {})
        found |= {f"torch {name}": seconds for name, seconds in theirs.items()}
        if ours in found:
            plain = found[ours]["median"]
            for name, seconds in theirs.items():
                ratio = plain / seconds["median"]
                self.values[f"{model} step, time over torch {name}"] = ratio


@dataclass(frozen=True)
class Part:
    """Some of the work: ``seconds`` is what it may take (an H100 took half of it or less);
    ``targets`` are the beginnings of the names of those that it gives values."""

    name: str
    seconds: float
    work: Callable[[Course], None]
    targets: tuple[str, ...]
    is_quick: bool = True
    serves: bool = True
    """It takes the kernels that passed the self-check: where one failed, others in its place."""


def _gpt_parts(name: str, ours: float, theirs: float, is_quick: bool = True) -> tuple[Part, Part]:
    """A GPT's step on both sides; most of torch's is its compiler."""
    targets = (f"{name} step",)
    mine, torchs = (
        partial(work, name=name) for work in (Course.measure_gpt, Course.time_torch_gpt)
    )
    return (
        Part(f"{name} step", ours, mine, targets, is_quick),
        Part(f"{name} step of torch", theirs, torchs, targets, is_quick),
    )


MOST_SECONDS = 450.0
"""A part must be expected to end within these, so that all is over in eight minutes."""
PARTS = (
    # 15 of them compile, 5 check kernels; then 3,000 steps of 1 ms.
    Part("equal roots", 40, Course.check_roots, ("equal roots",)),
    Part(
        "products, 4096 cubed",
        10,
        partial(Course.measure_products, size=4096),
        ("int16 product, 4096", "int8 product, 4096"),
        serves=False,
    ),
    # 50 million weights are drawn, calibrated, checked and placed three times.
    Part("mlp step", 35, Course.measure_mlp, ("committing", "mlp step")),
    # Most of it is torch's compiler.
    Part("mlp step of torch", 30, Course.time_torch_mlp, ("mlp step",)),
    # 4 GiB are drawn, copied and hashed on the host.
    Part("BLAKE3", 20, Course.measure_hash, ("BLAKE3",), serves=False),
    Part("cnn step", 25, Course.measure_cnn, ("cnn step",), is_quick=False),
    Part("cnn step of torch", 40, Course.time_torch_cnn, ("cnn step",), is_quick=False),
    Part(
        "products, 8192 cubed",
        20,
        partial(Course.measure_products, size=8192),
        ("int16 product, 8192", "int8 product, 8192"),
        is_quick=False,
        serves=False,
    ),
)
"""Products, hashes, and models of images, in the order of their importance."""
GPT_PARTS = (
    # Two thirds of it compile and check kernels.
    *_gpt_parts("small gpt", ours=90, theirs=40),
    # Half a GB of weights are drawn, calibrated, checked and placed.
    *_gpt_parts("gpt-2", ours=150, theirs=70, is_quick=False),
)
"""Language models: a course by itself."""


def run_parts(course: Course, parts: Sequence[Part]) -> Iterator[harness.Result]:
    """A result after each part.  One that fails is named and does not keep others from running.

    Where kernels failed, or did not serve, others were measured in their place: they are named in
    the figures, and the targets that these figures are held against are missed.
    """
    failed, unfit, said = list[str](), set[str](), list[str]()
    begun = tuple(start for part in parts for start in part.targets)
    for part in parts:
        if course.left < part.seconds:
            course.figures.setdefault("left out for lack of time", []).append(part.name)
            continue
        begin = course.left
        try:
            with watch_kernels(said):
                part.work(course)
        except (VtrainError, RuntimeError, MemoryError, OSError) as error:
            course.figures[f"{part.name}: failed"] = f"{type(error).__name__}: {error}"
            failed += [name for name in LIMITS if name.startswith(part.targets)]
        if said or (part.serves and course.disabled):
            unfit.update(name for name in LIMITS if name.startswith(part.targets))
            course.figures["disabled kernels"] = sorted(course.disabled)
            course.figures.setdefault("kernels that did not serve", []).extend(said)
            said.clear()
        course.figures[f"{part.name}: took, seconds"] = round(begin - course.left, 1)
        print(f"{MOST_SECONDS - course.left:7.1f} s  {part.name}", file=sys.stderr)
        yield harness.Result(dict(course.figures), judge(course.values, failed, unfit, begun))
    course.figures["predicted"] = [
        {"target": name, "value": value}
        for name, value in PREDICTED.items()
        if name.startswith(begun)
    ]
    yield harness.Result(dict(course.figures), judge(course.values, failed, unfit, begun))


@contextmanager
def watch_kernels(said: list[str]) -> Iterator[None]:
    """Put into ``said`` what is warned of kernels; other warnings go on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KernelWarning)
        try:
            yield
        finally:
            said += [str(one.message) for one in caught if issubclass(one.category, KernelWarning)]
    for one in caught:
        if not issubclass(one.category, KernelWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def measure(quick: bool, parts: Sequence[Part]) -> Iterator[harness.Result]:
    """So many parts, on the first GPU."""
    missing = find_missing()
    if missing:
        yield describe_waiting(missing)
        return
    with tempfile.TemporaryDirectory() as folder:
        device = CudaDevice(folder=Path(folder))
        course = Course(device, quick, time.perf_counter)
        yield from run_parts(course, [part for part in parts if part.is_quick or not quick])
        device.close()


ABOUT = """The cuda engine on the first GPU: the cpu engine's roots, and its speed against torch.

Each of its two parts takes up to eight minutes on an H200; what was measured is in the file of
--out after each model.
What compute-sanitizer says of small steps is a call of its own: `gpu.py sanitize`.
Exit codes: 0 all targets are met, 1 one is missed or failed, 3 there is no GPU, driver or torch to
measure with, and stderr says which."""

if __name__ == "__main__":
    if sys.argv[1:] == ["sanitize"]:
        sys.exit(report_sanitized())
    harness.main(
        "gpu",
        {"images": partial(measure, parts=PARTS), "gpt": partial(measure, parts=GPT_PARTS)},
        about=ABOUT,
        quick_help="Fewer rounds, and neither CNN nor 8192 cubed: about four minutes.",
    )
