"""A whole exact training step against torch's eager fp32 step, same network, batch and threads.

MLP 784-512-512-10, batch 128, cross-entropy, SGD with momentum.  Our side is all of a step but the
state's digests (no commitment falls into the run): it draws the batch from the samples, prepares
and hashes it, and computes the loss.  Torch's side gets a batch that is ready and fixed.

Expected, written down after first rough timings, so no blind prediction: 0.5 of
torch's time at two threads.  The products should take 0.4 of
torch's (the exact int16 product alone is predicted at 0.35, packing costs more at batch 128), the
update as long as torch's (it reads and writes the same bytes, but is done while the gradient is
still in cache), and small serial parts a tenth of the step.

The small CNN has 100 M multiply-adds and 6 MB of activations and gradients: 2 to 3 ms, 0.2 of
torch's time, which was predicted before products read patches from the images
(docs/adr/0036-patches.md).  Expected after timings of its nodes on a busy machine: 0.55 with
AVX512-VNNI, 0.65 with AVX2 (1.06 and 2.08 before).

MLP 784-2048-2048-2048-10 at batch 16 has 10M weights and little to compute: memory is the limit.
Expected after the products write C row by row and pack what is read once in passing: torch's time
with AVX512-VNNI (ours was 2.9 of it), 1.2 of it with AVX2 (1.6 to 2.0 before).

``--part resnet``: ResNet-18 of torchvision at batch 32 (see _resnet.py).  Expected before any
timing: 0.9 of torch's time with AVX512-VNNI and 1.4 with AVX2, as of the small CNN, whose images
have fewer channels, and with BatchNorm beside it.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _harness as harness
import numpy as np

from vtrain.engines.cpu import CpuSession
from vtrain.spec.samples import Samples
from vtrain.train.task import CompiledTask
from vtrain.wire.graph import StepGraph, decode_graph, encode_graph
from vtrain.wire.task import decode_task, encode_task

THREADS = 2
BATCH = 128
THIN = 16
STEPS = 1_000_000
TIME_LIMITS = {
    "mlp": {"avx512_vnni": 1.0, "avx2": 1.1},
    "cnn": {"avx512_vnni": 0.7, "avx2": 1.4},
    "large": {"avx512_vnni": 1.0, "avx2": 1.3},
    "resnet": {"avx512_vnni": 1.0, "avx2": 1.6},
}
MEMORY_LIMIT = 2.0
PEAK_STEPS = 50
UPDATES = ("momentum", "sgd_update", "adam_mean", "adam_square", "adam_direction")
"""Operators that a weight's gradient ends in."""


def compile_step(name: str, batch: int = BATCH) -> tuple[CompiledTask, Any]:
    """The example model ``name`` as a task that never commits, and its torch twin."""
    from _models import EXAMPLES, compile_variant, load_make_models, make_torch_model

    from vtrain.train.task import load_task

    model = load_make_models().make_model(name, 0)
    file = load_task(EXAMPLES / ("cnn.toml" if name == "cnn" else "mlp.toml"))
    changes = {"batch": batch, "steps": STEPS, "commit_every": STEPS, "checkpoint_every": STEPS}
    _, task = compile_variant(file, model, calibration_steps=5, **changes)
    return task, make_torch_model(model)


def open_cpu(task: CompiledTask, threads: int) -> CpuSession:
    """Our side, ready to step."""
    session = CpuSession(task.graph, task.samples, threads=threads)
    session.load_state(task.initial_state)
    return session


def make_torch_step(network: Any, shape: tuple[int, ...], batch: int = BATCH) -> Callable[[], None]:
    """Torch's side on a fixed batch."""
    import torch

    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.rand(batch, *shape), torch.randint(0, 10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()

    return step


def compare_steps(
    task: CompiledTask, network: Any, shape: tuple[int, ...], threads: int, seconds: float
) -> dict[str, Any]:
    """Seconds a step of both sides, their ratio, and where ours goes."""
    import torch

    torch.set_num_threads(threads)
    session = open_cpu(task, threads)
    theirs = make_torch_step(network, shape, task.spec.batch)
    figure: dict[str, Any] = dict(harness.compare(session.step, theirs, seconds=seconds))
    figure["phases, seconds a step"] = measure_phases(task.graph, session)
    return figure


def name_phase(graph: StepGraph, index: int) -> str:
    """The part of a step that a node belongs to."""
    node = graph.nodes[index]
    if node.op in ("sample_index", "gather_samples", "normalize", "batch_digest", "tensor_digest"):
        return "batch: draw, prepare, hash"
    if node.op in UPDATES:
        return "weight gradients with their update"
    if node.op == "rescale" and graph.nodes[node.inputs[0].node].op == "state":
        return "weights to operands"
    if node.name.startswith("loss"):
        return "loss"
    return "backward" if "/grad" in node.name else "forward"


def measure_phases(graph: StepGraph, session: CpuSession, steps: int = 50) -> dict[str, float]:
    """Where the time of our step goes."""
    session.start_profile()
    for _ in range(steps):
        session.step()
    spent = session.profile()
    phases: dict[str, float] = defaultdict(float)
    for index, node in enumerate(graph.nodes):
        phases[name_phase(graph, index)] += spent[node.name] / steps
    return dict(phases)


def save_task(task: CompiledTask, folder: Path) -> None:
    """What the process whose memory is measured needs, and nothing that costs memory to make."""
    (folder / "graph.cbor").write_bytes(encode_graph(task.graph))
    np.save(folder / "table.npy", task.samples.table)
    for index, name in enumerate(sorted(task.initial_state)):
        np.save(folder / f"state{index}.npy", task.initial_state[name])
    (folder / "task.cbor").write_bytes(encode_task(task.spec))


def load_step(folder: Path) -> Callable[[], object]:
    """Our side from what :func:`save_task` wrote."""
    spec = decode_task((folder / "task.cbor").read_bytes()).data
    samples = Samples(spec, np.load(folder / "table.npy", mmap_mode="r"))
    graph = decode_graph((folder / "graph.cbor").read_bytes())
    session = CpuSession(graph, samples, threads=THREADS)
    names = enumerate(sorted(graph.states()))
    session.load_state({name: np.load(folder / f"state{index}.npy") for index, name in names})
    return session.step


def load_torch_step() -> Callable[[], object]:
    """Torch's side with its own weights: memory does not depend on them."""
    import torch

    torch.set_num_threads(THREADS)
    nn = torch.nn
    network = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    return make_torch_step(network, (784,))


def read_peak() -> float:
    """Largest resident set of this process so far, in MB.

    Not getrusage: that of a child begins with its parent's.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("this system does not tell the peak memory of a process")


def finish_imports() -> None:
    """Have torch load what it loads at an optimizer's first step: modules, 180 MB of them."""
    import torch

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        kind([weight], lr=0.1).step()


def run_peak(side: str, folder: str, steps: int = PEAK_STEPS) -> None:
    """What a process of its own does: print its peak memory before and after some steps."""
    if side == "torch":
        finish_imports()
    before = read_peak()
    step = load_torch_step() if side == "torch" else load_step(Path(folder))
    for _ in range(steps):
        step()
    print(json.dumps({"imports, MB": before, "peak, MB": read_peak()}))


def measure_peaks(task: CompiledTask) -> dict[str, Any]:
    """Peak memory of both sides, each in a process of its own."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_task(task, Path(folder))
        for side in ("vtrain", "torch"):
            code = f"import step; step.run_peak({side!r}, {folder!r})"
            figures[side] = harness.ask_process(code)
    mine, theirs = figures["vtrain"], figures["torch"]
    figures["whole process, ratio"] = mine["peak, MB"] / theirs["peak, MB"]
    grown = [side["peak, MB"] - side["imports, MB"] for side in (mine, theirs)]
    figures["beyond the imports, ratio"] = grown[0] / max(grown[1], 0.1)
    return figures


def measure(quick: bool) -> harness.Result:
    """The MLP at two threads and one, the small CNN, the large and thin MLP, peak memory."""
    seconds = 3.0 if quick else 12.0
    wide, wide_network = compile_step("wide")
    cnn, cnn_network = compile_step("cnn")
    figures: dict[str, Any] = {
        f"mlp 784-512-512-10, {threads} threads": compare_steps(
            wide, wide_network, (784,), threads, seconds
        )
        for threads in (THREADS, 1)
    }
    figures["small cnn, 2 threads"] = compare_steps(cnn, cnn_network, (1, 28, 28), THREADS, seconds)
    large, large_network = compile_step("large", THIN)
    thin = "mlp 784-2048-2048-2048-10 at batch 16, 2 threads"
    figures[thin] = compare_steps(large, large_network, (784,), THREADS, seconds)
    figures["memory"] = measure_peaks(wide)
    targets = {}
    for kind, title, figure in (
        ("mlp", "step", f"mlp 784-512-512-10, {THREADS} threads"),
        ("cnn", "step of the small CNN", "small cnn, 2 threads"),
        ("large", "step of 10M weights at batch 16", thin),
    ):
        ratio = figures[figure]["ratio"]["median"]
        target = harness.at_most_here(ratio, **TIME_LIMITS[kind])
        targets[f"{title}, two threads, of torch fp32"] = target
    for name in ("whole process, ratio", "beyond the imports, ratio"):
        value = figures["memory"][name]
        targets[f"peak memory, {name}"] = harness.at_most(value, MEMORY_LIMIT)
    return harness.Result(figures, targets)


def measure_resnet(quick: bool) -> harness.Result:
    """ResNet-18 at two threads."""
    from _resnet import make_both

    both = make_both(0, STEPS)
    title = "resnet-18, batch 32, 2 threads"
    seconds = 4.0 if quick else 20.0
    figure = compare_steps(both.task, both.copy_network(), (1, 28, 28), THREADS, seconds)
    ratio = figure["ratio"]["median"]
    target = harness.at_most_here(ratio, **TIME_LIMITS["resnet"])
    return harness.Result(
        {title: figure}, {"step of ResNet-18, two threads, of torch fp32": target}
    )


if __name__ == "__main__":
    harness.main("step", {"networks": measure, "resnet": measure_resnet})
