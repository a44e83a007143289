"""Language models on windows of tokens by the cuda engine: what is gathered, and whole steps.

The kernels run on the CPU; ``test_gpu.py`` has such steps on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.host_device import HostDevice
from tests.cuda.single import run_launches
from tests.cuda.test_selfcheck import make_small
from tests.cuda.test_session import follow_the_law, open_cuda
from tests.engines.compare import assert_same_state, name_difference
from tests.engines.steps import Step
from tests.exhaustive import spare
from tests.tasks import CONTEXT, make_tiny_task, make_tokens
from vtrain.attest.keys import generate_key
from vtrain.audit.verify import verify
from vtrain.engines.cpu import CpuSession
from vtrain.engines.cuda import session as session_module
from vtrain.engines.cuda.calibration import DeviceEvaluator
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.session import CudaSession
from vtrain.engines.cuda.stored import find_stored
from vtrain.engines.registry import open_session, resolve_engine
from vtrain.engines.saving import Saving
from vtrain.errors import DataError
from vtrain.graph.calibration import NodeEvaluator
from vtrain.spec.number import STORAGE
from vtrain.spec.samples import Samples
from vtrain.train.runner import train
from vtrain.wire.graph import Attrs, Node, TensorType
from vtrain.wire.task import TOKEN_WIDTHS, Windows, describe_windows

# A fast kernel that fails its self-check has a substitute: the bits alone would not show it.
pytestmark = pytest.mark.filterwarnings("error::vtrain.engines.cuda.selfcheck.KernelWarning")
KINDS = [("gpt", "adamw"), ("llama", "adamw"), ("dropout", "lion"), ("packed gpt", "sgd")]


@pytest.fixture
def device(host_device: HostDevice) -> Iterator[HostDevice]:
    """The shared device, which every test leaves as empty as it found it."""
    free = host_device.memory().free
    yield host_device
    assert host_device.memory().free == free


@pytest.fixture
def only_device(monkeypatch: pytest.MonkeyPatch, device: HostDevice, tmp_path: Path) -> HostDevice:
    """It is the engine's GPU, with readable kernels alone."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(
        session_module, "open_kernels", lambda: (device, Kernels(device, fast=False))
    )
    return device


def make_language_step(kind: str, optimizer: str = "sgd") -> Step:
    task = make_tiny_task(kind, optimizer=optimizer, commit_every=3)
    return Step(task.graph, task.samples, task.initial_state)


def open_cpu(step: Step) -> CpuSession:
    session = CpuSession(step.graph, step.samples, threads=1)
    session.load_state(step.state)
    return session


# --- what is gathered


def draw_tokens(windows: Windows) -> Samples:
    """Windows of tokens of every value that the dtype holds, the extremes among them."""
    rng = np.random.default_rng(windows.tokens)
    most = 2 ** (8 * windows.width)
    tokens = rng.integers(0, most - 1, windows.tokens, np.uint64, endpoint=True)
    picked = rng.choice(np.array([0, 1, most // 2 - 1, most // 2, most - 1], np.uint64), 40)
    tokens[: len(picked)] = picked
    raw = tokens.astype(f"<u{windows.width}").tobytes()
    return Samples(describe_windows(windows), np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize("dtype", TOKEN_WIDTHS)
@pytest.mark.parametrize(
    ("context", "stride", "shift"), [(1, 1, 1), (6, 1, 1), (6, 6, 1), (7, 50, 0), (4, 3, 9)]
)
def test_windows_are_gathered_as_by_the_law(
    dtype: str, context: int, stride: int, shift: int, device: HostDevice
) -> None:
    """The first window, the last, which ends with the file, and zeros where there is none."""
    samples = draw_tokens(Windows(dtype, 203, context, stride, shift))
    last = samples.spec.samples - 1
    index = np.array([last, 0, last // 2, -1, last + 1, 1, 2**62, 0], np.int64)
    exists = (index >= 0) & (index <= last)
    given = TensorType("i64", index.shape, 0, 0, last)
    output = TensorType("i32", (len(index), context), 0, *STORAGE["i32"])
    for part in ("x", "y"):
        stored = find_stored(samples)
        attrs: Attrs = {"part": part, "dtype": "i32", "shape": (context,), "exponent": 0}
        launches = lower(Node("batch", "gather_samples", attrs, (), (output,)), [given])
        lies = stored.parts[part]
        found = run_launches(device, launches, [index, stored.blocks[lies.block]], output, lies)
        expected = np.zeros(output.shape, np.int32)
        expected[exists] = samples.gather(part, index[exists])
        np.testing.assert_array_equal(found.output, expected, strict=True)


def test_other_windows_are_refused(device: HostDevice) -> None:
    step = make_language_step("gpt")
    shorter = make_tokens(1200, 7, stride=6)
    with pytest.raises(DataError, match="the graph draws from"):
        CudaSession(step.graph, shorter, device=device)


# --- whole steps


@pytest.mark.parametrize(
    ("kind", "optimizer", "fast"),
    spare(
        [(*kind, fast) for fast in (False, True) for kind in KINDS],
        lambda case: not case[2] or case[0] in ("gpt", "llama"),
    ),
)
def test_steps_are_those_of_the_cpu(
    kind: str, optimizer: str, fast: bool, device: HostDevice
) -> None:
    """Attention, norms, rotations, gates, masks, AdamW and clipping: records, states, counts,
    traces, and every value by itself."""
    step = make_language_step(kind, optimizer)
    cuda, cpu = open_cuda(step, device, fast=fast), open_cpu(step)
    for _ in range(4):
        assert cuda.step() == cpu.step()
    assert_same_state(cuda, cpu)
    nodes = list(range(len(step.graph.nodes)))
    for node, mine, theirs in zip(
        step.graph.nodes, cuda.evaluate_all(nodes), cpu.evaluate_all(nodes), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs, err_msg=node.name, strict=True)
    found, expected = cuda.trace(), cpu.trace()
    assert name_difference(step.graph, found, expected) == ""
    assert found == expected
    snapshot = cuda.snapshot()
    assert cuda.step() == cpu.step()
    assert int(snapshot()["step"]) == 5
    assert cuda.saturation() == cpu.saturation()
    cuda.close()


def test_what_follows_attention_is_done_on_the_way(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every product of a GPT's step rounds its sums itself, though their shape changes before, and
    before they are reordered; masks and the gradient of a softmax are in chains."""
    make_small(monkeypatch)
    step = make_language_step("gpt", "adamw")
    chosen = Kernels(device, least_products=0)
    session = CudaSession(step.graph, step.samples, device=device, kernels=chosen)
    nodes, together = step.graph.nodes, [set[str]()]
    for job in session.plan.jobs:
        names = [nodes[node].op for node in job.nodes]
        kernels = {launch.kernel for launch in job.launches}
        if names[0] == "batched_matmul":
            assert names in (
                ["batched_matmul", "rescale"],
                ["batched_matmul", "transpose", "rescale"],
            )
            assert ("transpose_units" in kernels) is ("transpose" in names)
            together.append({*names})
        if {"keep_span", "softmax_grad"} & {*names}:
            assert kernels.isdisjoint({"keep_span", "softmax_grad", "softmax_grad_apply"})
            assert names != ["keep_span"]
        if "softmax_grad" in names:
            assert names[1:] != []
            together.append({*names})
        assert "transpose" not in kernels
    assert {"softmax_grad", "rescale"} in together
    assert {"batched_matmul", "transpose", "rescale"} in together
    session.load_state(step.state)
    cpu = open_cpu(step)
    for _ in range(3):
        assert session.step() == cpu.step()
    assert_same_state(session, cpu)
    assert session.saturation() == cpu.saturation()
    session.close()


@pytest.mark.parametrize("dtype", TOKEN_WIDTHS)
def test_tokens_of_every_width_train_alike(dtype: str, device: HostDevice) -> None:
    step = make_language_step("gpt")
    step = replace(step, samples=make_tokens(1200, 7, dtype=dtype))
    cuda, cpu = open_cuda(step, device, fast=False), open_cpu(step)
    for _ in range(2):
        assert cuda.step() == cpu.step()
    cuda.close()


@pytest.mark.parametrize("saving", [Saving(2), Saving(1, True), Saving(4, True)], ids=str)
@pytest.mark.parametrize("kind", ["gpt", "dropout"])
def test_saving_memory_changes_no_bit(kind: str, saving: Saving, only_device: HostDevice) -> None:
    step = make_language_step(kind, "adamw")
    cuda = open_session("cuda", step.graph, step.samples, saving=saving)
    cuda.load_state(step.state)
    cpu = open_cpu(step)
    for _ in range(3):
        assert cuda.step() == cpu.step()
    assert cuda.trace() == cpu.trace()
    assert_same_state(cuda, cpu)
    assert cuda.saturation() == cpu.saturation()


# --- where the tokens lie


def test_tokens_in_the_memory_of_the_host_are_fetched_a_step_ahead(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RESERVE", 2**62)
    shared: list[int] = []
    share = HostDevice.share

    def watch(self: HostDevice, data: np.ndarray) -> int:
        shared.append(data.nbytes)
        return share(self, data)

    monkeypatch.setattr(HostDevice, "share", watch)
    step = make_language_step("gpt")
    follow_the_law(open_cuda(step, device, fast=False), step)
    assert shared == [step.samples.table.nbytes], "the tokens, once"


def test_windows_are_not_expanded_on_the_device(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 windows that begin one token apart take the bytes of the tokens, in pieces."""
    monkeypatch.setattr(session_module, "UPLOAD", 4096)
    step, tokens = make_language_step("gpt"), 100_000
    table = make_tokens(tokens, 3, stride=1)
    nodes = tuple(
        replace(
            node,
            attrs={**node.attrs, "samples": table.spec.samples},
            outputs=(replace(node.outputs[0], hi=table.spec.samples - 1),),
        )
        if node.op == "sample_index"
        else node
        for node in step.graph.nodes
    )
    large = Step(replace(step.graph, nodes=nodes), table, step.state)
    held = []
    for each in (step, large):
        session = open_cuda(each, device, fast=False)
        held.append(session.memory_bytes - each.samples.table.nbytes)
        cpu = open_cpu(each)
        for _ in range(2):
            assert session.step() == cpu.step()
        session.close()
    assert held[0] == held[1]
    assert table.spec.samples * CONTEXT * 4 > 8 * table.table.nbytes


# --- runs


@pytest.mark.filterwarnings("ignore:.*elements were clamped:vtrain.errors.VtrainWarning")
def test_runs_on_tokens_change_their_engine_and_are_audited_by_it(
    tmp_path: Path, only_device: HostDevice
) -> None:
    task, key = make_tiny_task("gpt", steps=20), generate_key(tmp_path / "key.pem")
    for steps, engine in ((10, "cuda"), (20, "cpu")):
        mixed = train(task, tmp_path / "mixed", key=key, engine=engine, steps=steps)
    alone = train(task, tmp_path / "alone", key=key, engine="cuda")
    assert alone.engine == "cuda"
    assert (mixed.root, mixed.log_root) == (alone.root, alone.log_root)
    for run in ("mixed", "alone"):
        assert verify(tmp_path / run, all_=True, engine="cuda").exit_code == 0


def test_auto_takes_a_gpu_for_tokens_too(
    only_device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtrain.engines.cuda.gpu.has_driver", lambda: True)
    monkeypatch.setattr("vtrain.engines.cuda.gpu.find_obstacle", lambda: None)
    assert resolve_engine("auto") == "cuda"
    step = make_language_step("gpt")
    assert isinstance(open_session("auto", step.graph, step.samples), CudaSession)


def test_calibration_on_the_device_gives_the_exponents_of_the_law(device: HostDevice) -> None:
    """Every magnitude that a rule may ask for, of two steps; a hash has none."""
    step, kernels = make_language_step("llama"), Kernels(device, fast=False)
    mine = DeviceEvaluator(step.state, step.samples, device=device, kernels=kernels)
    law = NodeEvaluator(step.state, step.samples)
    for _ in range(2):
        for at, node in enumerate(step.graph.nodes):
            for either in (mine, law):
                either.evaluate(node)
            if node.outputs[0].dtype != "u8":
                assert mine.largest(at) == law.largest(at), node.name
        for either in (mine, law):
            either.advance(step.graph.next_states())
    mine.close()
