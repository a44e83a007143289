"""Whole steps of the cuda engine, its kernels run on the CPU: the bits of the other engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.cuda.host_device import CACHE, GARBAGE, HostDevice
from tests.cuda.single import count_matrices
from tests.engines.compare import assert_same_state, name_difference, open_law
from tests.engines.random_graphs import make_random_step
from tests.engines.steps import CENTRED, Step, make_step
from tests.exhaustive import spare
from tests.tasks import make_tiny_task
from vtrain.engines.base import Session, Snapshot, SnapshotSession, State
from vtrain.engines.cpu import CpuSession
from vtrain.engines.cuda import dense_cases
from vtrain.engines.cuda import session as session_module
from vtrain.engines.cuda.device import Call, Device
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.program import Program
from vtrain.engines.cuda.session import Accumulator, CudaSession
from vtrain.errors import DataError, DeviceError, KernelError, RunError
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import calibrate
from vtrain.graph.model import Conv, Linear, Model, Reshape
from vtrain.graph.step import Momentum, StepPlan, compute_initial_state, emit_step
from vtrain.ops.base import attr_int
from vtrain.ops.layout import Window
from vtrain.spec.number import rs
from vtrain.train.data import build_samples

# A fast kernel that fails its self-check has a substitute: the bits alone would not show it.
pytestmark = pytest.mark.filterwarnings("error::vtrain.engines.cuda.selfcheck.KernelWarning")
KINDS = [
    *(("mlp", "cross_entropy"), ("mlp", "mse"), ("cnn", "cross_entropy"), ("cnn", "mse")),
    ("attention", "cross_entropy"),
    ("gates", "cross_entropy"),
    ("convnet", "cross_entropy"),
    ("upnet", "cross_entropy"),
]


@pytest.fixture
def device(host_device: HostDevice) -> Iterator[HostDevice]:
    """The shared device, which every test leaves as empty as it found it."""
    free = host_device.memory().free
    yield host_device
    assert host_device.memory().free == free


def open_cuda(step: Step, device: Device, *, fast: bool = True) -> CudaSession:
    # What passed its self-check is not tried in every test: test_selfcheck.py is about that.
    kernels = Kernels(device, fast=fast, folder=CACHE)
    session = CudaSession(step.graph, step.samples, device=device, kernels=kernels)
    session.load_state(step.state)
    return session


@pytest.mark.parametrize(
    ("kind", "loss", "fast"),
    spare(
        [(*kind, fast) for fast in (False, True) for kind in KINDS],
        lambda case: case[2] or case[:2] not in {("mlp", "mse"), ("cnn", "mse")},
    ),
)
def test_steps_follow_the_law(kind: str, loss: str, fast: bool, device: HostDevice) -> None:
    step = make_step(kind, loss)
    cuda, law = open_cuda(step, device, fast=fast), open_law(step)
    for _ in range(12 if kind == "mlp" else 6):
        assert cuda.step() == law.step()
    assert_same_state(cuda, law)
    assert cuda.saturation() == law.saturation()
    found, expected = cuda.trace(), law.trace()
    assert name_difference(step.graph, found, expected) == ""
    assert found == expected
    assert cuda.step() == law.step()
    cuda.close()


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    spare(
        [(kind, optimizer) for kind in ("mlp", "cnn") for optimizer in ("adamw", "lion")],
        {("mlp", "lion"), ("cnn", "adamw")}.__contains__,
    ),
)
def test_other_updates_follow_the_law(kind: str, optimizer: str, device: HostDevice) -> None:
    """States of int64, roots, the norm of all gradients, rates on lines."""
    step = make_step(kind, optimizer=optimizer)
    cuda, law = open_cuda(step, device), open_law(step)
    for _ in range(5):
        assert cuda.step() == law.step()
    assert_same_state(cuda, law)
    assert cuda.saturation() == law.saturation()
    assert name_difference(step.graph, cuda.trace(), law.trace()) == ""
    cuda.close()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_run_may_change_its_engine_at_any_step(kind: str, device: HostDevice) -> None:
    """cpu, cuda, numpy, cuda in turn: the records of the cpu engine alone."""
    task = make_tiny_task(kind, batch=4)
    step = Step(task.graph, task.samples, task.initial_state)
    whole = CpuSession(task.graph, task.samples)
    whole.load_state(task.initial_state)
    expected = [whole.step() for _ in range(40)]
    cuda, law = open_cuda(step, device), open_law(step)
    cpu = CpuSession(task.graph, task.samples)
    turns: list[Session] = [cpu, cuda, law, cuda]
    state, found = dict(task.initial_state), []
    for session in turns:
        session.load_state(state)
        found += [session.step() for _ in range(10)]
        state = session.read_state()
    assert found == expected
    assert found[-1].state_root
    cuda.close()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_every_node_can_be_evaluated(kind: str, device: HostDevice) -> None:
    step = make_step(kind)
    cuda, law = open_cuda(step, device), open_law(step)
    cuda.step()
    law.step()
    nodes = list(range(len(step.graph.nodes)))
    for found, expected in zip(cuda.evaluate_all(nodes), law.evaluate_all(nodes), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)
    last = nodes[-1]
    np.testing.assert_array_equal(cuda.evaluate(last), law.evaluate(last), strict=True)
    assert cuda.evaluate_all([]) == []
    assert cuda.saturation() == law.saturation()
    assert cuda.step() == law.step()
    with pytest.raises(RunError, match="no node"):
        cuda.evaluate(10**6)
    cuda.close()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("fast", [False, True])
def test_every_saturation_is_counted(kind: str, fast: bool, device: HostDevice) -> None:
    step = make_step(kind, margin=0, decay=0, prepare=replace(CENTRED, shift=0))
    rng, most = np.random.default_rng(1), 2**31 - 1
    full = {
        name: np.asarray(rng.choice([-most, most], value.shape), np.int32)
        for name, value in step.state.items()
        if value.dtype == np.int32
    }
    step = replace(step, state={**step.state, **full})
    cuda, law = open_cuda(step, device, fast=fast), open_law(step)
    for _ in range(3):
        assert cuda.step() == law.step()
        assert cuda.saturation() == law.saturation()
    counted = {node.op for node in step.graph.nodes if node.name in cuda.saturation()}
    assert counted == {"normalize", "rescale", "momentum", "sgd_update"}
    assert_same_state(cuda, law)
    cuda.close()


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_follow_the_law(seed: int, device: HostDevice) -> None:
    """Any wiring of values and states, readable kernels: order, places, copies."""
    compare_random(seed, device, fast=False)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_follow_the_law_fused(seed: int, device: HostDevice) -> None:
    compare_random(seed, device, fast=True)


def compare_random(seed: int, device: Device, *, fast: bool) -> None:
    step = make_random_step(seed)
    cuda, law = open_cuda(step, device, fast=fast), open_law(step)
    with np.errstate(over="ignore"):
        for i in range(4):
            if i == 2:
                found, expected = cuda.trace(), law.trace()
                assert name_difference(step.graph, found, expected) == ""
                assert found == expected
            else:
                assert cuda.step() == law.step()
            assert_same_state(cuda, law)
    assert cuda.saturation() == law.saturation()
    cuda.close()


def test_comparison_catches_one_unit_in_the_last_place(device: HostDevice) -> None:
    step = make_step("mlp")
    altered = {name: value.copy() for name, value in step.state.items()}
    altered["momentum/w1"][3, 4] += 1
    cuda, law = open_cuda(step, device), open_law(step)
    cuda.load_state(altered)
    assert name_difference(step.graph, cuda.trace(), law.trace()) == "momentum/w1 (state)"
    with pytest.raises(AssertionError):
        assert_same_state(cuda, law)
    cuda.close()


def test_gradients_can_be_reduced_between_devices(device: HostDevice) -> None:
    """Doubling every accumulator is what two devices with equal batches would add up to."""
    step = make_step("mlp")
    names: list[set[str]] = []

    def double(found: Mapping[str, Accumulator]) -> None:
        names.append(set(found))
        for one in found.values():
            values = np.frombuffer(device.read(one.address, one.count * 8), "<i8")
            device.write(one.address, (2 * values).tobytes())

    kernels = Kernels(device, folder=CACHE)
    doubled = CudaSession(step.graph, step.samples, device=device, kernels=kernels, reduce=double)
    doubled.load_state(step.state)
    velocities = {name for name in step.state if name.startswith("momentum/")}
    law = open_law(step)
    # A zero velocity takes the gradient as it is.
    gradients = {
        name: law.evaluate(node.inputs[1].node)
        for node in step.graph.nodes
        if node.op == "momentum"
        for name in [str(step.graph.nodes[node.inputs[0].node].attrs["name"])]
    }
    shifts = {
        node.name: attr_int(node.attrs, "shift")
        for node in step.graph.nodes
        if node.op == "momentum"
    }
    doubled.step()
    assert names == [velocities]
    after = doubled.read_state()
    for name in velocities:
        expected = rs(2 * gradients[name], shifts[f"{name}/next"])
        np.testing.assert_array_equal(after[name], expected.astype(np.int32), err_msg=name)
    doubled.close()


def test_a_reduction_that_changes_nothing_changes_no_bit(device: HostDevice) -> None:
    step, kernels = make_step("cnn"), Kernels(device, folder=CACHE)
    session = CudaSession(
        step.graph, step.samples, device=device, kernels=kernels, reduce=lambda found: None
    )
    session.load_state(step.state)
    law = open_law(step)
    for _ in range(4):
        assert session.step() == law.step()
    session.close()


def test_accumulators_are_those_of_a_session_that_reduces(device: HostDevice) -> None:
    """Others may have no place for them: a chain keeps its sums in registers."""
    for fast in (False, True):
        session = open_cuda(make_step("mlp"), device, fast=fast)
        with pytest.raises(RunError, match="with ``reduce`` alone"):
            session.accumulators()
        session.close()


def equals(found: State, expected: State) -> bool:
    return found.keys() == expected.keys() and all(
        value.dtype == expected[name].dtype
        and value.shape == expected[name].shape
        and value.tobytes() == expected[name].tobytes()
        for name, value in found.items()
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_is_the_state_as_it_was(seed: int, device: HostDevice) -> None:
    """However late it is asked for: after further steps, a trace, another snapshot, the end."""
    step = make_random_step(seed)
    session = open_cuda(step, device, fast=False)
    assert isinstance(session, SnapshotSession)
    taken: list[tuple[Snapshot, State]] = []
    with np.errstate(over="ignore"):
        for _ in range(2):
            session.step()
            taken.append((session.snapshot(), session.read_state()))
            session.step()
            session.trace()
        assert not equals(taken[0][1], taken[1][1])
        session.close()
    for snapshot, expected in reversed(taken):
        assert equals(snapshot(), expected)
        assert snapshot() is snapshot()


def test_a_snapshot_that_nobody_holds_is_not_read(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_cuda(make_step("mlp"), device)
    session.snapshot()
    monkeypatch.setattr(HostDevice, "read", None)
    session.snapshot()
    session.close()


def test_a_snapshot_without_a_place_of_its_own_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HostDevice, "read_later", None)
    step = make_step("mlp")
    small = HostDevice(memory_bytes=2**23)  # less than is to be left free
    session = open_cuda(step, small)
    before = session.read_state()
    snapshot = session.snapshot()
    session.step()
    assert equals(snapshot(), before)
    session.close()
    small.close()


class Strict(HostDevice):
    """Sees bytes that nobody wrote on their way to the host, as ``compute-sanitizer`` does."""

    def read(self, address: int, nbytes: int) -> bytes:
        raw = super().read(address, nbytes)
        assert bytes([GARBAGE]) * 16 not in raw
        return raw


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_nothing_is_read_that_was_never_written(kind: str) -> None:
    step = make_step(kind)
    device = Strict()
    session, law = open_cuda(step, device), open_law(step)
    assert session.saturation() == {}
    assert session.step() == law.step()
    assert session.trace() == law.trace()
    assert equals(session.snapshot()(), law.read_state())
    session.close()
    device.close()


def test_self_checks_come_at_steps_that_their_interval_divides(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was resumed checks where it would have checked in one go."""
    checked: list[int] = []

    def check_again(kernels: Kernels, program: Program, **options: object) -> bool:
        checked.append(int(session.read_state()["step"]))
        return False

    monkeypatch.setattr(Kernels, "check_again", check_again)
    step = make_step("mlp")
    found: list[list[int]] = []
    for first in (0, 3, 4, 5):
        kernels = Kernels(device, fast=False)
        session = CudaSession(
            step.graph, step.samples, device=device, kernels=kernels, check_every=4
        )
        session.load_state({**step.state, "step": np.array(first, np.int64)})
        checked = []
        for _ in range(first, 10):
            session.step()
        found.append(checked)
        session.close()
    assert found == [[4, 8], [4, 8], [4, 8], [8]]


def test_a_profile_names_the_nodes_that_were_run(device: HostDevice) -> None:
    step = make_step("mlp")
    cuda, law = open_cuda(step, device), open_law(step)
    cuda.start_profile()
    assert cuda.step() == law.step()
    spent = cuda.profile()
    assert spent.keys() == {node.name for node in step.graph.nodes}
    assert spent["loss/rows"] > 0
    # Merged into the rest of its chain, and a hash of a step that commits to nothing.
    assert spent["momentum/w0/next"] == spent["state_root"] == 0
    cuda.close()


def test_samples_that_do_not_fit_stay_on_the_host() -> None:
    step = make_step("mlp")
    roomy = HostDevice()
    session = open_cuda(step, roomy)
    held = session.memory_bytes
    session.close()
    # Room for the step and its trace, not for the reserve that samples must leave.
    small = HostDevice(memory_bytes=held + 2**22)
    session, law = open_cuda(step, small), open_law(step)
    assert session.memory_bytes < held
    for _ in range(4):
        assert session.step() == law.step()
    assert session.trace() == law.trace()
    session.close()
    small.close()


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples stay in the memory of the host, whatever the device has."""
    monkeypatch.setattr(session_module, "RESERVE", 2**62)


def follow_the_law(session: CudaSession, step: Step) -> None:
    """Steps with all between them that may come between a batch and the step it is for."""
    law = open_law(step)
    session.load_state(step.state)

    def take(steps: int) -> None:
        for _ in range(steps):
            assert session.step() == law.step()

    take(4)
    before = law.read_state()
    last = len(step.graph.nodes) - 1
    np.testing.assert_array_equal(session.evaluate(last), law.evaluate(last), strict=True)
    take(2)
    assert session.trace() == law.trace()
    take(2)
    # Back, on the spot, and to a step that none of the two has seen.
    for number in (4, 6, 6, 30):
        for either in (session, law):
            either.load_state({**before, "step": np.array(number, np.int64)})
        take(2)
    session.start_profile()
    take(2)
    assert_same_state(session, law)
    session.close()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_batches_that_are_prefetched_are_those_of_the_law(
    kind: str, device: HostDevice, hosted: None
) -> None:
    step = make_step(kind)
    follow_the_law(open_cuda(step, device), step)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_with_samples_on_the_host_follow_the_law(
    seed: int, device: HostDevice, hosted: None
) -> None:
    compare_random(seed, device, fast=seed % 2 == 0)


def test_a_session_that_reduces_prefetches(device: HostDevice, hosted: None) -> None:
    step = make_step("mlp")
    kernels = Kernels(device, folder=CACHE)
    follow_the_law(
        CudaSession(
            step.graph, step.samples, device=device, kernels=kernels, reduce=lambda found: None
        ),
        step,
    )


def test_a_session_that_plans_anew_fetches_anew(
    device: HostDevice, hosted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is another, which holds no batch."""
    monkeypatch.setattr(Kernels, "check_again", lambda kernels, program, **options: True)
    step = make_step("mlp")
    kernels = Kernels(device, fast=False)
    session = CudaSession(step.graph, step.samples, device=device, kernels=kernels, check_every=2)
    follow_the_law(session, step)


def test_a_step_that_failed_leaves_no_batch(
    device: HostDevice, hosted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was about to be replaced by the next one."""
    step = make_step("mlp")
    session, law = open_cuda(step, device, fast=False), open_law(step)
    for _ in range(2):
        assert session.step() == law.step()
    before, launch = session.read_state(), HostDevice.launch

    def fail(self: HostDevice, call: Call) -> None:
        if call.kernel == "matmul":
            raise KernelError("no", where="matmul")
        launch(self, call)

    with monkeypatch.context() as broken:
        broken.setattr(HostDevice, "launch", fail)
        with pytest.raises(KernelError):
            session.step()
    session.load_state(before)
    for _ in range(2):
        assert session.step() == law.step()
    session.close()


def test_a_batch_is_gathered_once_and_a_step_ahead(
    device: HostDevice, hosted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_step("mlp")
    session, launch = open_cuda(step, device), HostDevice.launch
    gathered: list[str] = []

    def watch(self: HostDevice, call: Call) -> None:
        gathered.extend([call.kernel] if call.kernel == "gather_samples" else [])
        launch(self, call)

    monkeypatch.setattr(HostDevice, "launch", watch)

    def count(work: Callable[[], object]) -> int:
        gathered.clear()
        work()
        return len(gathered)

    own, ahead = 2, 2  # x and y
    assert count(session.step) == own + ahead
    assert [count(session.step) for _ in range(4)] == [ahead] * 4
    assert count(lambda: session.load_state(session.read_state())) == 0
    assert count(session.step) == ahead
    assert count(session.trace) == own
    assert count(session.step) == own + ahead
    session.close()


def test_all_but_the_beginning_of_a_step_is_beside_the_prefetch(
    device: HostDevice, hosted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_step("mlp")
    session, done = open_cuda(step, device), list[str]()
    session.step()
    launch, copy, fork = HostDevice.launch, HostDevice.copy, HostDevice.fork

    def log_launch(self: HostDevice, call: Call) -> None:
        done.append(call.kernel)
        launch(self, call)

    def log_copy(self: HostDevice, target: int, source: int, nbytes: int) -> None:
        done.append("copy")
        copy(self, target, source, nbytes)

    def log_fork(self: HostDevice, work: Callable[[], None]) -> Callable[[], None]:
        done.append("fork")
        fork(self, work)
        done.append("forked")
        return lambda: done.append("join")

    monkeypatch.setattr(HostDevice, "launch", log_launch)
    monkeypatch.setattr(HostDevice, "copy", log_copy)
    monkeypatch.setattr(HostDevice, "fork", log_fork)
    session.step()
    forked = ["fork", "sample_index", "gather_samples", "gather_samples", "forked"]
    assert done[:9] == ["increment", "sample_index", "copy", "copy", *forked]
    assert "join" not in done[:-1]
    assert done[-1] == "join"
    session.close()


def test_samples_that_fit_are_not_staged(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostDevice, "fork", None)
    step = make_step("mlp")
    session, law = open_cuda(step, device), open_law(step)
    for _ in range(2):
        assert session.step() == law.step()
    session.close()


def test_the_place_of_a_batch_is_part_of_what_a_step_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is refused where a byte of it is missing."""
    step = make_step("mlp", batch=40)
    x, y = (step.samples.part(part) for part in ("x", "y"))
    monkeypatch.setattr(session_module, "RESERVE", 0)
    roomy = HostDevice()
    session = open_cuda(step, roomy, fast=False)
    without = session.memory_bytes - x.nbytes - y.nbytes - session.plan.states
    session.close()
    monkeypatch.setattr(session_module, "RESERVE", 2**40)
    # Its number, its 40 indices, 800 bytes of x and 40 of y.
    need = without + 256 + 512 + 1024 + 256
    session = open_cuda(step, roomy, fast=False)
    assert session.memory_bytes == need
    session.close()
    roomy.close()
    exact = HostDevice(memory_bytes=need)
    session = open_cuda(step, exact, fast=False)
    assert session.step() == open_law(step).step()
    session.close()
    short = HostDevice(memory_bytes=need - 1)
    with pytest.raises(DeviceError, match="a step needs"):
        open_cuda(step, short, fast=False)


def test_memory_that_is_too_small_is_told_before_the_run() -> None:
    step = make_step("mlp")
    device = HostDevice(memory_bytes=20_000)
    with pytest.raises(RunError, match=r"a step needs 0\.000 GB more of device memory") as caught:
        CudaSession(step.graph, step.samples, device=device, kernels=Kernels(device, fast=False))
    assert "0.000 of 0.000 GB are free" in caught.value.message
    assert caught.value.where == "device CPU"
    device.close()


def test_a_trace_that_does_not_fit_leaves_the_session_as_it_was() -> None:
    step = make_step("mlp")
    device = HostDevice(memory_bytes=2**23)
    session, law = open_cuda(step, device), open_law(step)
    other = device.allocate(device.memory().free - 1000)
    with pytest.raises(RunError, match="a trace needs"):
        session.trace()
    device.free(other)
    assert session.trace() == law.trace()
    session.close()
    device.close()


def test_a_session_needs_a_state_that_fits(device: HostDevice) -> None:
    step = make_step("mlp")
    kernels = Kernels(device, folder=CACHE)
    session = CudaSession(step.graph, step.samples, device=device, kernels=kernels)
    with pytest.raises(RunError, match="no state is loaded"):
        session.step()
    with pytest.raises(RunError, match="missing tensors"):
        session.load_state({"step": np.zeros((), np.int64)})
    turned = {
        name: np.asfortranarray(value) if value.ndim else value
        for name, value in step.state.items()
    }
    session.load_state(turned)
    assert session.step() == open_law(step).step()
    session.close()
    with pytest.raises(RunError, match="no state is loaded"):
        session.step()


def test_other_samples_are_refused(device: HostDevice) -> None:
    with pytest.raises(DataError, match="samples are"):
        CudaSession(make_step("mlp").graph, make_step("cnn").samples, device=device)


def test_a_session_that_is_forgotten_gives_its_memory_back(device: HostDevice) -> None:
    free = device.memory().free
    session = open_cuda(make_step("mlp"), device)
    assert device.memory().free < free
    del session
    assert device.memory().free == free


def make_lopsided_step() -> Step:
    """Two convolutions whose windows are padded otherwise on each side, the second strided too."""
    rng = np.random.default_rng(4)
    shapes = {"k1": (5, 2, 3, 2), "k2": (4, 3, 2, 5), "k3": (3, 3, 3, 4), "w": (4, 12)}
    params = {
        name: rng.integers(-(2**22), 2**22, shape, dtype=np.int32) for name, shape in shapes.items()
    }
    layers = (
        Conv("c1", "x", "k1", None, Window((2, 3), (1, 1), (1, 0, 0, 2))),
        Conv("c2", "c1", "k2", None, Window((3, 2), (1, 1), (0, 1, 2, 0))),
        Conv("c3", "c2", "k3", None, Window((3, 3), (3, 3), (1, 0, 0, 1))),
        Reshape("flat", "c3", (12,)),
        Linear("out", "flat", "w", None, True),
    )
    model = Model("x", (2, 6, 5), layers, "out", params)
    samples = build_samples(
        rng.integers(0, 256, (20, 2, 6, 5), dtype=np.uint8),
        rng.integers(0, 4, 20, dtype=np.uint8),
    )
    plan = StepPlan(
        data=samples.spec,
        prepare=CENTRED,
        loss="cross_entropy",
        optimizer=Momentum(decay=6554, starts=(0,), rates=(40960,), exponent=22),
        seed=1,
        batch=3,
        commit_every=1,
    )
    state = compute_initial_state(params)

    def emit(builder: GraphBuilder) -> None:
        emit_step(builder, plan, model)

    exponents = calibrate(emit, state, samples, steps=2, margin=1).exponents
    builder = GraphBuilder(FixedExponents(exponents))
    emit(builder)
    return Step(builder.graph(), samples, state)


def test_lopsided_convolutions_follow_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_cases, "SMALL", (5, 20, 9))
    monkeypatch.setattr(dense_cases, "SMALL_IMAGE", (1, 3, 4, 2))
    step = make_lopsided_step()
    device = HostDevice()
    session = CudaSession(
        step.graph, step.samples, device=device, kernels=Kernels(device, least_products=0)
    )
    launched = [launch.kernel for job in session.plan.jobs for launch in job.launches]
    # The strided one has patches of its own to be added up, the other one with a gradient has not.
    assert launched.count("col2im_turn_kernel") == launched.count("col2im") == 1
    session.load_state(step.state)
    law = open_law(step)
    for _ in range(3):
        assert session.step() == law.step()
    session.close()
    device.close()


@pytest.mark.parametrize(
    ("kind", "architecture"), [("mlp", "sm_80"), ("mlp", "sm_90a"), ("cnn", "sm_80")]
)
def test_steps_on_tensor_cores_follow_the_law(
    kind: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every product, however small, on emulated tensor cores, with bias, rescale and relu."""
    monkeypatch.setattr(dense_cases, "SMALL", (5, 20, 9))
    monkeypatch.setattr(dense_cases, "SMALL_IMAGE", (1, 3, 4, 2))
    step = make_step(kind, batch=3, margin=0)
    device = HostDevice(architecture=architecture)
    kernels = Kernels(device, least_products=0)
    session = CudaSession(step.graph, step.samples, device=device, kernels=kernels)
    assert kernels.disabled == frozenset()
    launched = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    product = "matmul_wgmma" if architecture == "sm_90a" else "matmul_mma"
    assert any(name.startswith(product) for name in launched)
    assert launched.isdisjoint({"matmul", "im2col", "col2im"})
    assert ("col2im_turn_kernel" in launched) is (kind == "cnn")
    law = open_law(step)
    loud = {
        name: value * 6 if name.startswith("param/") else value
        for name, value in step.state.items()
    }
    for either in (session, law):
        either.load_state(loud)
    for _ in range(3):
        assert session.step() == law.step()
    assert session.saturation() == law.saturation()
    assert session.saturation()["fc0" if kind == "mlp" else "c1/rows"] > 0
    session.close()
    device.close()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_attention_on_tensor_cores_follows_the_law(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of stacks of matrices too, each with what is rounded after it."""
    monkeypatch.setattr(dense_cases, "SMALL", (5, 20, 9))
    monkeypatch.setattr(dense_cases, "WHOLE", (5, 20, 9))
    step = make_step("attention", batch=2)
    device = HostDevice(architecture=architecture)
    kernels = Kernels(device, least_products=0)
    session = CudaSession(step.graph, step.samples, device=device, kernels=kernels)
    assert kernels.disabled == frozenset()
    launched = [launch for job in session.plan.jobs for launch in job.launches]
    assert {launch.kernel for launch in launched}.isdisjoint({"matmul", "batched_matmul"})
    multiplying = [launch for launch in launched if launch.kernel.startswith("matmul_")]
    # Two samples, three heads.
    stacks = [launch for launch in multiplying if count_matrices(launch) == 6]
    products = [node for node in step.graph.nodes if node.op == "batched_matmul"]
    assert len(stacks) == 3 * len(products)
    law = open_law(step)
    for either in (session, law):
        either.load_state(step.state)
    for _ in range(3):
        assert session.step() == law.step()
    assert session.trace() == law.trace()
    assert_same_state(session, law)
    assert session.saturation() == law.saturation()
    session.close()
    device.close()
