"""A fast kernel that gives wrong bits is found, named and replaced; the run's bits stay right."""

from __future__ import annotations

import itertools
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_device import HostDevice
from tests.cuda.single import count_matrices
from tests.engines.steps import Step, make_step
from vtrain.engines.cuda import dense, dense_cases, fuse, gemm, kernels, lowering, sources
from vtrain.engines.cuda.device import Call, DeviceInfo
from vtrain.engines.cuda.kernels import CASES, Kernels
from vtrain.engines.cuda.launch import DTYPE_CODES, Constant, Launch
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.plan import Planned, find_groups
from vtrain.engines.cuda.program import Program
from vtrain.engines.cuda.selfcheck import (
    LONGEST_WAIT,
    Case,
    Checker,
    Clock,
    KernelWarning,
    Subject,
    TerminalProgress,
    agrees,
    boundary_values,
    make_kind,
    node_case,
)
from vtrain.engines.cuda.session import CudaSession
from vtrain.engines.numpy_engine import NumpySession
from vtrain.errors import KernelError
from vtrain.spec.number import STORAGE
from vtrain.wire.graph import Attrs, Node, TensorType


class BrokenDevice(HostDevice):
    """Changes one bit of what some kernels write to their argument ``output``, once it is broken.

    ``kernels`` are the beginnings of their names.
    """

    def __init__(self, kernels: tuple[str, ...], output: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self._kernels, self._output = kernels, output
        self.broken = True
        self.launched: list[str] = []

    def launch(self, call: Call) -> None:
        super().launch(call)
        self.launched.append(call.kernel)
        if self.broken and call.kernel.startswith(self._kernels):
            slot = call.slots[self._output]
            assert not isinstance(slot, int)
            [byte] = self.read(slot.address, 1)
            self.write(slot.address, bytes([byte ^ 1]))


def run(step: Step, session: CudaSession, steps: int = 6) -> None:
    """Steps that must be those of the law."""
    law = NumpySession(step.graph, step.samples)
    for either in (session, law):
        either.load_state(step.state)
    for _ in range(steps):
        assert session.step() == law.step()
    for name, value in law.read_state().items():
        np.testing.assert_array_equal(session.read_state()[name], value, err_msg=name)
    assert session.saturation() == law.saturation()


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are tried on few terms."""
    for name in ("SMALL", "WHOLE"):
        monkeypatch.setattr(dense_cases, name, (5, 9, 6))


def open_on(device: HostDevice, step: Step, folder: Path | None = None) -> CudaSession:
    chosen = Kernels(device, folder=folder)
    return CudaSession(step.graph, step.samples, device=device, kernels=chosen)


@pytest.mark.parametrize(
    ("kernel", "output"), [("sum_parts", 3), ("digest_chunks", 4), ("column_sum_parts", 4)]
)
def test_a_broken_kernel_is_named_and_does_not_serve(kernel: str, output: int) -> None:
    step = make_step("mlp")
    device = BrokenDevice((kernel,), output)
    with pytest.warns(KernelWarning) as caught:
        session = open_on(device, step)
    # Those that go on from what it gives are seen to give wrong bits as well.
    start = f"kernel {kernel} gives wrong bits on CPU (cpu, driver "
    assert any(str(warning.message).startswith(start) for warning in caught)
    launches = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    assert kernel not in launches
    run(step, session)
    session.close()
    device.close()


def test_a_chain_that_is_generated_wrongly_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """relu_grad with its operands exchanged: right types, wrong bits."""
    wrong = replace(fuse.POINTWISE["relu_grad"], order=(1, 0))
    monkeypatch.setattr(fuse, "POINTWISE", {**fuse.POINTWISE, "relu_grad": wrong})
    step = make_step("mlp")
    device = HostDevice()
    with pytest.warns(KernelWarning, match="kernel chain_[0-9a-f]{16} gives wrong bits"):
        session = open_on(device, step)
    kernels_used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    # Its nodes are done one by one, those of other chains together.
    assert "relu_grad" in kernels_used
    assert any(name.startswith("chain_") for name in kernels_used)
    run(step, session)
    session.close()
    device.close()


@pytest.mark.parametrize(
    ("broken", "serves"),
    [(("matmul_wgmma",), "matmul_mma_i16_i16"), (("matmul_wgmma", "matmul_mma"), "matmul")],
)
def test_a_broken_product_gives_way_to_the_next(
    broken: tuple[str, ...], serves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgmma fails, mma serves; both fail, and the readable kernel serves."""
    make_small(monkeypatch)
    step = make_step("mlp", batch=4)
    device = BrokenDevice(broken, 10, architecture="sm_90a")
    chosen = Kernels(device, least_products=0)
    with pytest.warns(KernelWarning) as caught:
        session = CudaSession(step.graph, step.samples, device=device, kernels=chosen)
    named = [str(warning.message).split()[1] for warning in caught]
    assert [name for name in broken if any(kernel.startswith(name) for kernel in named)] == [
        *broken
    ]
    assert all(kernel.startswith(broken) for kernel in named)
    used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    assert serves in used
    assert not any(name.startswith(broken) for name in used)
    run(step, session, steps=2)
    session.close()
    device.close()


class Wide(BrokenDevice):
    """Has processors to spare, so that several blocks add up a sum."""

    @property
    def info(self) -> DeviceInfo:
        return replace(super().info, processors=64)


def open_split(device: HostDevice, monkeypatch: pytest.MonkeyPatch) -> CudaSession:
    """A session in which sums of two tiles are split already."""
    make_small(monkeypatch)
    monkeypatch.setattr(gemm, "_LEAST_SPLIT", 1)
    step = make_step("wide", batch=3)
    chosen = Kernels(device, least_products=0)
    return CudaSession(step.graph, step.samples, device=device, kernels=chosen)


@pytest.mark.parametrize("broken", [(), ("matmul_finish",)])
def test_split_sums_are_tried_and_so_is_what_narrows_them(
    broken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what narrows them, sums are those of one block; the products stay where they are."""
    device = Wide(broken, 4)
    if broken:
        with pytest.warns(KernelWarning) as caught:
            session = open_split(device, monkeypatch)
        assert [str(warning.message).split()[1] for warning in caught] == [*broken]
    else:
        session = open_split(device, monkeypatch)
    used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    assert "matmul_mma_i16_i16" in used
    assert ("matmul_finish" in used) is not bool(broken)
    assert "matmul_clear" in device.launched
    run(make_step("wide", batch=3), session, steps=1)
    session.close()
    device.close()


class Forgetful(Wide):
    """Its products take every output for the first of its sum, where several blocks add."""

    def launch(self, call: Call) -> None:
        adds, flags = 2, FLAGS
        if call.kernel.startswith("matmul_mma") and call.grid[1] > 1:
            slot = call.slots[flags]
            assert isinstance(slot, int)
            assert slot & adds
            slots = (*call.slots[:flags], slot & ~adds | 1, *call.slots[flags + 1 :])
            call = replace(call, slots=slots)
        super().launch(call)


def test_a_kernel_that_does_not_add_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is right for as long as one block has the whole sum, as in a session before."""
    device = Forgetful(())
    with pytest.warns(KernelWarning, match="kernel matmul_mma_i16_i16"):
        session = open_split(device, monkeypatch)
    run(make_step("wide", batch=3), session, steps=1)
    session.close()
    device.close()


@pytest.mark.parametrize(
    ("operand", "turned", "channels", "kernel"),
    [
        (0, False, 128, "matmul_mma_i16_i16"),
        (0, False, 128, "matmul_wgmma_windows_i16_i16_narrow"),
        (0, False, 3, "matmul_mma_i16_i16"),
        (0, True, 3, "matmul_mma_i16_i16"),
        (1, False, 5, "matmul_mma_i16_i16"),
    ],
)
def test_long_products_of_windows_are_split(
    operand: int, turned: bool, channels: int, kernel: str, host_device: HostDevice
) -> None:
    """Many channels, or many images, make them long; what narrows their sums is left out."""
    window: Attrs = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
    image = TensorType("i16", (64, 12, 12, channels), 0, *STORAGE["i16"])
    pixels, terms = 64 * 12 * 12, 9 * channels
    shapes = {(0, False): (terms, 8), (0, True): (pixels, 8), (1, False): (8, pixels)}
    matrix = TensorType("i16", shapes[operand, turned], 0, *STORAGE["i16"])
    patches = Node("patches", "im2col", window, (), ())
    turns: Attrs = {"transpose_a": int(turned), "transpose_b": 0}
    narrow: Attrs = {"dtype": "i16", "multiplier": 1, "shift": 20}
    form = dense.Form(
        Node("product", "matmul", turns, (), ()),
        (image, matrix) if operand == 0 else (matrix, image),
        (patches, None) if operand == 0 else (None, patches),
        (Node("out", "rescale", narrow, (), (TensorType("i16", (), 0, 0, 0),)),),
    )
    architecture = "sm_90a" if "wgmma" in kernel else "sm_80"
    case = dense_cases.long_case(
        form,
        partial(gemm.plan_matmul, architecture=architecture, processors=1 << 20, least_products=0),
    )
    assert case is not None
    [product] = [launch for launch in case.fast if launch.kernel == kernel]
    assert product.grid[1] == 2
    assert agrees(host_device, case)


def test_what_passed_is_not_tried_again(tmp_path: Path) -> None:
    step = make_step("mlp")
    first = BrokenDevice(())
    open_on(first, step, tmp_path).close()
    assert "sum_parts" in first.launched
    second = BrokenDevice(())
    open_on(second, step, tmp_path).close()
    assert second.launched == []
    [path] = tmp_path.iterdir()
    content = json.loads(path.read_text())
    assert content["identity"]["uuid"] == "cpu"
    assert "sum_parts:sum" in content["passed"]


def spoil(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


def rename_driver(path: Path) -> None:
    path.write_text(re.sub(r'"driver": "[^"]*"', '"driver": "older"', path.read_text()))


def rename_compiler(path: Path) -> None:
    path.write_text(re.sub(r'"compiler": "[^"]*"', '"compiler": "older"', path.read_text()))


@pytest.mark.parametrize("change", [spoil, rename_driver, rename_compiler, Path.unlink])
def test_verdicts_of_another_driver_or_damaged_ones_do_not_count(
    change: Callable[[Path], object], verdicts: Path, tmp_path: Path
) -> None:
    step = make_step("mlp")
    change(verdicts)
    again = BrokenDevice(())
    open_on(again, step, tmp_path).close()
    assert "sum_parts" in again.launched


def change_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "compute_hash", lambda: "0" * 40)


def change_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "__version__", "0.0.0")


@pytest.mark.parametrize("change", [change_sources, change_version])
def test_other_sources_are_tried_anew(
    change: Callable[[pytest.MonkeyPatch], None],
    verdicts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = make_step("mlp")
    change(monkeypatch)
    again = BrokenDevice(())
    open_on(again, step, tmp_path).close()
    assert "sum_parts" in again.launched


def forget(path: Path, start: str) -> None:
    """Of a file of verdicts: these kernels are tried again, and they alone."""
    content = json.loads(path.read_text())
    kept = [name for name in content["passed"] if not name.startswith(start)]
    assert len(kept) < len(content["passed"])
    path.write_text(json.dumps({**content, "passed": kept}))


def test_a_failure_is_told_at_every_start(verdicts: Path, tmp_path: Path) -> None:
    step = make_step("mlp")
    forget(verdicts, "sum_parts")
    for _ in range(2):
        device = BrokenDevice(("sum_parts",), 3)
        with pytest.warns(KernelWarning, match="kernel sum_parts"):
            open_on(device, step, tmp_path).close()


def test_a_kernel_that_breaks_during_the_run_is_replaced() -> None:
    """--selfcheck-every: right at first, wrong after the third step, found after the fourth."""
    step = make_step("mlp", commit_every=1)
    device = BrokenDevice(("sum_parts",), 3)
    device.broken = False
    session = CudaSession(step.graph, step.samples, device=device, check_every=2)
    session.load_state(step.state)
    law = NumpySession(step.graph, step.samples)
    law.load_state(step.state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            assert session.step() == law.step()
    device.broken = True
    with pytest.warns(KernelWarning, match="kernel sum_parts"):
        assert session.step() == law.step()
    assert session.step() == law.step()
    used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    assert "sum_parts" not in used
    assert session.saturation() == law.saturation()
    session.close()


def test_every_fast_kernel_has_cases() -> None:
    assert CASES.keys() == lowering.FAST.keys()


@pytest.mark.parametrize("dtype", STORAGE)
def test_boundary_values_reach_the_ends_of_their_range(dtype: str) -> None:
    values = boundary_values(TensorType(dtype, (4000,), 0, 0, 0), seed=1)
    lo, hi = STORAGE[dtype] if dtype != "i64" else (-(2**60), 2**60)
    assert (int(values.min()), int(values.max())) == (lo, hi)
    assert {0, 1} <= set(values.tolist())


def test_devices_are_told_apart(verdicts: Path, tmp_path: Path) -> None:
    """Two GPUs of one kind have verdicts of their own."""
    step = make_step("mlp")

    class Other(HostDevice):
        @property
        def info(self) -> DeviceInfo:
            return replace(super().info, uuid="other")

    open_on(Other(), step, tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 2


STORES, NARROWS, FLAGS = 1, 4, 9
"""Of a product: two flags, and the argument that has them."""


class Choosy(HostDevice):
    """Changes what calls that are ``meant`` write to their argument ``output``."""

    def __init__(self, meant: Callable[[Call], bool], output: int) -> None:
        super().__init__()
        self._meant, self._output = meant, output
        self._is_changed = False

    def launch(self, call: Call) -> None:
        super().launch(call)
        slot = call.slots[self._output] if self._meant(call) else 0
        if not isinstance(slot, int):
            [byte] = self.read(slot.address, 1)
            self.write(slot.address, bytes([byte ^ 1]))
            self._is_changed = True

    def close(self) -> None:
        super().close()
        assert self._is_changed, "no call that was meant has an output there"


def find_numbers(call: Call) -> list[int]:
    return [slot if isinstance(slot, int) else 0 for slot in call.slots]


def multiplies(call: Call) -> bool:
    return call.kernel.startswith("matmul_mma")


def narrows(call: Call) -> bool:
    return multiplies(call) and bool(find_numbers(call)[FLAGS] & NARROWS)


def serve_product(chosen: Kernels, rows: int, terms: int, columns: int) -> tuple[Launch, ...]:
    turns: Attrs = {"transpose_a": 0, "transpose_b": 0}
    a, b = (TensorType("i16", s, 0, *STORAGE["i16"]) for s in ((rows, terms), (terms, columns)))
    node = Node("m", "matmul", turns, (), (TensorType("i64", (rows, columns), 0, 0, 0),))
    return chosen.serve_checked(node, (a, b))


def test_a_use_of_a_kernel_is_tried_though_another_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain product is checked and remembered; the same kernel narrows wrongly in a session."""
    make_small(monkeypatch)
    device, output = Choosy(narrows, 11), "matmul_mma_i16_i16"
    chosen = Kernels(device, folder=tmp_path, least_products=0)
    assert output in {launch.kernel for launch in serve_product(chosen, 5, 9, 6)}
    step = make_step("mlp", batch=4)
    chosen = Kernels(device, folder=tmp_path, least_products=0)
    with pytest.warns(KernelWarning, match=f"kernel {output} gives wrong bits"):
        session = CudaSession(step.graph, step.samples, device=device, kernels=chosen)
    run(step, session, steps=1)
    session.close()
    device.close()


def stores_whole_packs(call: Call) -> bool:
    """Without a remainder, other code stores the sums."""
    numbers = find_numbers(call)
    return multiplies(call) and numbers[FLAGS] == STORES and numbers[3] % 4 == 0


def loads_whole_packs(call: Call) -> bool:
    """A tile that is filled, of rows whose every eight elements are aligned."""
    stride, extent, inner = 2, 4, 5
    numbers = find_numbers(call)
    return (
        call.kernel.startswith("matmul_pack")
        and numbers[stride] % 8 == 0
        and min(numbers[extent], numbers[inner]) >= gemm.TILE
    )


def goes_round(call: Call) -> bool:
    """A block has more tiles than stages."""
    return multiplies(call) and call.grid[1] == 1 and find_numbers(call)[4] > 4 * gemm.TILE


@pytest.mark.parametrize(
    ("meant", "output"), [(stores_whole_packs, 10), (loads_whole_packs, 8), (goes_round, 10)]
)
def test_products_are_tried_in_whole_packs_and_tiles(
    meant: Callable[[Call], bool], output: int
) -> None:
    device = Choosy(meant, output)
    chosen = Kernels(device, least_products=0)
    with pytest.warns(KernelWarning, match="kernel matmul_mma_i16_i16 gives wrong bits"):
        launches = serve_product(chosen, 300, 64, 200)
    assert [launch.kernel for launch in launches] == ["matmul"]
    device.close()


@pytest.mark.parametrize(
    ("operand", "turned", "channels", "side", "pack"),
    [
        (0, False, 64, 3, 16),
        (0, False, 64, 1, 16),
        (0, True, 256, 1, 16),
        (1, False, 24, 3, 8),
        (1, False, 256, 1, 16),
        (1, False, 5, 3, 1),
    ],
)
def test_windows_are_tried_in_whole_packs_and_tiles(
    operand: int, turned: bool, channels: int, side: int, pack: int
) -> None:
    pads = (side // 2,) * 4
    window: Attrs = {"kernel": (side, side), "strides": (1, 1), "pads": pads}
    image = TensorType("i16", (64, 12, 12, channels), 0, *STORAGE["i16"])
    pixels, places = 64 * 12 * 12, side * side * channels
    terms = pixels if turned or operand == 1 else places
    matrix = TensorType("i16", (terms, 200) if operand == 0 else (200, terms), 0, -9, 9)
    patches = Node("patches", "im2col", window, (), ())
    turns: Attrs = {"transpose_a": int(turned), "transpose_b": 0}
    form = dense.Form(
        Node("product", "matmul", turns, (), ()),
        (image, matrix) if operand == 0 else (matrix, image),
        (patches, None) if operand == 0 else (None, patches),
        (),
    )
    tried: list[gemm.Factor] = []

    def plan(a: gemm.Factor, b: gemm.Factor, epilogue: gemm.Epilogue, *, batch: int) -> None:
        tried.extend((a, b))

    assert dense_cases.whole_case(form, plan) is None
    for factor in tried:
        assert factor.inner >= dense_cases.WHOLE[1]
        assert factor.extent >= gemm.TILE or pack == 1
    windows = tried[operand].windows
    assert windows is not None
    # The third number of the struct Window.
    drawn = int.from_bytes(windows.data[16:24], "little")
    assert next(size for size in (16, 8, 1) if drawn % size == 0) == pack


def test_digests_that_share_launches_are_tried() -> None:
    """Wrong only where there are several tensors."""
    tensors, values = 1, 4
    device = Choosy(
        lambda call: call.kernel == "digest_chunks" and find_numbers(call)[tensors] > 1, values
    )
    digest = TensorType("u8", (32,), 0, 0, 255)
    node = Node("d", "tensor_digest", {}, (), (digest,))
    with pytest.warns(KernelWarning) as caught:
        Kernels(device).serve_checked(node, [TensorType("i32", (9,), 0, 0, 0)])
    assert any("kernel digest_chunks gives wrong" in str(warning.message) for warning in caught)
    device.close()


@pytest.mark.parametrize("reached", [64, 65, 200])
def test_what_is_written_beside_a_result_is_seen(reached: int, host_device: HostDevice) -> None:
    """64 elements fill what is aligned; the next value is not far."""
    whole = TensorType("i32", (64,), 0, 0, 0)

    def write_more(node: Node, inputs: Any) -> tuple[Launch, ...]:
        [launch] = lower(node, inputs)
        assert launch.args[0] == 64
        return (replace(launch, args=(reached, *launch.args[1:])),)

    case = node_case("relu", {}, [whole], whole, write_more)
    assert agrees(host_device, case) is (reached == 64)


def test_what_is_written_to_an_operand_is_seen(host_device: HostDevice) -> None:
    whole = TensorType("i32", (64,), 0, 0, 0)

    def spoil_operand(node: Node, inputs: Any) -> tuple[Launch, ...]:
        [launch] = lower(node, inputs)
        places = [at for at, arg in enumerate(launch.args) if not isinstance(arg, int)]
        args = list(launch.args)
        args[places[1]] = args[places[0]]
        return (launch, replace(launch, args=tuple(args)))

    case = node_case("relu", {}, [whole], whole, spoil_operand)
    assert not agrees(host_device, case)


class Failing(HostDevice):
    """What a launch of ``kernel`` does to a GPU: it is refused, or the context is lost, or it never
    comes to its end."""

    def __init__(self, kernel: str, how: str, **options: Any) -> None:
        super().__init__(**options)
        self._kernel, self._how = kernel, how
        self.is_abandoned = self._is_lost = self._hangs = False
        self.launched: list[str] = []
        self.prepared: set[tuple[str, str]] = set()

    def _require_context(self) -> None:
        if self._is_lost:
            raise KernelError("an illegal memory access (CUDA_ERROR_ILLEGAL_ADDRESS)")

    def prepare(self, kernels: Sequence[tuple[str, str]]) -> None:
        super().prepare(kernels)
        self.prepared.update(kernels)

    def launch(self, call: Call) -> None:
        self._require_context()
        self.launched.append(call.kernel)
        if call.kernel == self._kernel and self._how == "refused":
            raise KernelError("too many resources (CUDA_ERROR_X)", where=f"x.cu: {call.kernel}")
        self._is_lost |= call.kernel == self._kernel and self._how == "lost"
        self._hangs |= call.kernel == self._kernel and self._how == "hangs"
        super().launch(call)

    def is_done(self) -> bool:
        self._require_context()
        return not self._hangs

    def read(self, address: int, nbytes: int) -> bytes:
        self._wait()
        return super().read(address, nbytes)

    def synchronize(self) -> None:
        self._wait()
        super().synchronize()

    def free(self, address: int) -> None:
        if not self.is_abandoned:
            self._wait()
            super().free(address)

    def abandon(self) -> None:
        self.is_abandoned = True

    def _wait(self) -> None:
        self._require_context()
        assert not self._hangs, "waits for ever"


class Hours:
    """A clock on which nothing takes time but waiting."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.seconds, self.sleep)


def open_failing(
    device: HostDevice, step: Step, folder: Path | None, hours: Hours | None = None
) -> CudaSession:
    chosen = Kernels(device, folder=folder, clock=(hours or Hours()).clock)
    return CudaSession(step.graph, step.samples, device=device, kernels=chosen)


def test_a_kernel_that_cannot_be_launched_is_replaced(verdicts: Path, tmp_path: Path) -> None:
    """Once more at the next start: it may have been another program that took the resources."""
    step = make_step("mlp")
    forget(verdicts, "sum_parts")
    for _ in range(2):
        device = Failing("sum_parts", "refused")
        message = (
            r"kernel sum_parts does not run on CPU \(cpu, driver .*\): it is disabled, and the "
            r"readable kernel serves in its place \(x.cu: sum_parts: too many resources"
        )
        with pytest.warns(KernelWarning, match=message):
            session = open_failing(device, step, tmp_path)
        used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
        assert "sum_parts" not in used
        assert "digest_chunks" in used
        run(step, session)
        session.close()
        device.close()


@pytest.mark.parametrize("how", ["refused", "lost", "hangs"])
def test_a_readable_kernel_that_fails_is_an_error(how: str, tmp_path: Path) -> None:
    device = Failing("sum", how)
    with pytest.raises(KernelError, match=r"readable kernels do not run on CPU .*engine cpu") as no:
        open_failing(device, make_step("mlp"), tmp_path)
    assert no.value.where == "self-check"
    assert device.is_abandoned is (how != "refused")
    for path in tmp_path.iterdir():
        assert json.loads(path.read_text())["fatal"] == {}


@pytest.mark.parametrize(
    ("how", "said"),
    [("lost", "fails and leaves the device unusable to this process on CPU"), ("hangs", "hangs")],
)
def test_the_next_start_goes_on_without_a_kernel_that_ended_this_one(
    how: str, said: str, verdicts: Path, tmp_path: Path
) -> None:
    step, hours = make_step("mlp"), Hours()
    forget(verdicts, "sum_parts")
    device = Failing("sum_parts", how)
    with pytest.raises(KernelError, match=f"{said} .*start again: that is remembered") as caught:
        open_failing(device, step, tmp_path, hours)
    assert caught.value.where == "kernel sum_parts"
    assert device.is_abandoned
    assert (hours.seconds > LONGEST_WAIT) is (how == "hangs")
    assert hours.seconds < LONGEST_WAIT + 1
    again = Failing("sum_parts", how)
    with pytest.warns(KernelWarning, match="kernel sum_parts did not run .* delete ") as warned:
        session = open_failing(again, step, tmp_path)
    assert len(warned) == 1
    assert str(next(tmp_path.iterdir())) in str(warned[0].message)
    assert "sum_parts" not in again.launched
    run(step, session)
    session.close()
    again.close()


def test_what_cannot_be_remembered_is_said() -> None:
    with pytest.raises(KernelError, match=r"hangs on CPU .*could not be remembered: take"):
        open_failing(Failing("sum_parts", "hangs"), make_step("mlp"), None)


def test_what_another_process_found_fatal_stays(tmp_path: Path) -> None:
    """Both began before either had a verdict."""
    step = make_step("mlp")
    slow = HostDevice()
    chosen = Kernels(slow, folder=tmp_path)
    with pytest.raises(KernelError, match="hangs"):
        open_failing(Failing("sum_parts", "hangs"), step, tmp_path)
    CudaSession(step.graph, step.samples, device=slow, kernels=chosen).close()
    [path] = tmp_path.iterdir()
    content = json.loads(path.read_text())
    assert content["fatal"].keys() == {"sum_parts"}
    assert "digest_chunks:tensor_digest" in content["passed"]


def test_a_kernel_that_hangs_during_the_run_is_an_error(verdicts: Path, tmp_path: Path) -> None:
    step, device = make_step("mlp"), Failing("none", "hangs")
    chosen = Kernels(device, folder=tmp_path, clock=Hours().clock)
    session = CudaSession(step.graph, step.samples, device=device, kernels=chosen, check_every=1)
    session.load_state(step.state)
    session.step()
    device._kernel = "sum_parts"
    with pytest.raises(KernelError, match="hangs"):
        session.step()
    session.close()


def test_all_that_is_tried_is_compiled_at_one_time(tmp_path: Path) -> None:
    first: list[tuple[str, set[tuple[str, str]]]] = []

    class Watched(Failing):
        def launch(self, call: Call) -> None:
            if not first:
                first.append((call.kernel, set(self.prepared)))
            assert (call.file, call.kernel) in self.prepared
            super().launch(call)

    step, said = make_step("mlp"), list[tuple[str, int, int]]()
    device = Watched("none", "")
    chosen = Kernels(device, folder=tmp_path, progress=lambda *given: said.append(given))
    chosen.plan_step(Program(step.graph))
    [(_, prepared)] = first
    assert {kernel for _, kernel in prepared} == set(device.launched)
    assert {"sum", "sum_parts", "state_root_levels"} <= {kernel for _, kernel in prepared}
    assert re.fullmatch(r"compiling \d+ files", said[0][0])
    assert [done for _, done, _ in said] == [0, *range(len(said) - 2), len(said) - 2]
    assert {total for _, _, total in said} == {len(said) - 2}
    said.clear()
    Kernels(device, folder=tmp_path, progress=lambda *given: said.append(given)).plan_step(
        Program(step.graph)
    )
    assert said == []


class Screen:
    def __init__(self, is_terminal: bool) -> None:
        self.text, self._is_terminal = "", is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


@pytest.mark.parametrize("is_terminal", [False, True])
def test_long_work_is_shown_on_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, hours = Screen(is_terminal), Hours()
    monkeypatch.setattr(sys, "stderr", screen)
    show = TerminalProgress(hours.clock.now)
    show("compiling 3 files", 0, 9)
    show("first", 0, 9)
    line = "self-check of the GPU's kernels: compiling 3 files (0/9)"
    assert screen.text == (f"\r{line}\r" if is_terminal else "")
    screen.text = ""
    hours.sleep(5)
    show("second", 1, 9)
    show("third", 2, 9)
    show("", 9, 9)
    text = "self-check of the GPU's kernels: second (1/9)"
    lines = [text.ljust(len(line)), " " * len(text)]
    assert screen.text == ("".join(f"\r{each}\r" for each in lines) if is_terminal else "")


def test_a_kernel_that_no_case_launches_does_not_serve(host_device: HostDevice) -> None:
    whole = TensorType("i32", (64,), 0, 0, 0)
    case = node_case("relu", {}, [whole], whole, lower)
    checker = Checker(host_device, key="", folder=None)
    with pytest.warns(KernelWarning, match="kernel other is not tried"):
        assert checker.check([Subject("other", lambda seed: [case], {})]) == {"other"}
    assert checker.check([Subject("relu", lambda seed: [case], {})]) == set()


def test_chains_are_tried_with_all_their_numbers(verdicts: Path, tmp_path: Path) -> None:
    """Updates share two kernels, by the sign of their shift; with one shift each is wrong."""
    step = make_step("mlp")
    groups = find_groups(Program(step.graph))
    uses = {(chain.name, chain.numbers[1]) for chain in groups if len(chain.results) == 2}
    shifts = {shift for _, shift in uses}
    assert min(shifts) < 0 < max(shifts)
    assert len({name for name, _ in uses}) == 2 < len(uses)
    for update, shift in uses:

        def is_meant(call: Call, update: str = update, shift: int = shift) -> bool:
            return call.kernel == update and shift in find_numbers(call)

        device = Choosy(is_meant, -3)
        forget(verdicts, "chain_")
        with pytest.warns(KernelWarning, match=f"kernel {update} gives wrong bits"):
            Kernels(device, folder=tmp_path).plan_step(Program(step.graph))
        device.close()


def test_chains_are_tried_in_place(verdicts: Path, tmp_path: Path) -> None:
    """As they are launched on the state: a result lies where an operand was."""

    def is_in_place(call: Call) -> bool:
        pointers = [slot for slot in call.slots if not isinstance(slot, int)]
        return call.kernel.startswith("chain_") and len(set(pointers)) < len(pointers)

    device = Choosy(is_in_place, -3)
    forget(verdicts, "chain_")
    with pytest.warns(KernelWarning, match="kernel chain_.* gives wrong bits"):
        Kernels(device, folder=tmp_path).plan_step(Program(make_step("mlp").graph))
    device.close()


@pytest.mark.parametrize("kernel", [(3, 3), (1, 1), (2, 3)])
def test_what_turns_a_kernel_is_tried(kernel: tuple[int, int], host_device: HostDevice) -> None:
    down, across = kernel
    product = make_gradient(kernel, (down - 1, 0, 0, across - 1))
    [case] = dense_cases.turn_cases(product)
    assert agrees(host_device, case)
    device = BrokenDevice((dense.TURN,), 6)
    assert not agrees(device, case)
    device.close()


def make_gradient(kernel: tuple[int, int], pads: tuple[int, ...]) -> dense.Product:
    """Of an image that a convolution of 64 channels with 32 outputs had."""
    gradients = TensorType("i16", (8, 12, 12, 32), 0, *STORAGE["i16"])
    area = kernel[0] * kernel[1]
    turned = TensorType("i16", (area * 32, 64), 0, *STORAGE["i16"])
    window: Attrs = {"kernel": kernel, "strides": (1, 1), "pads": pads}
    turns: Attrs = {"transpose_a": 0, "transpose_b": 0}
    form = dense.Form(
        Node("product", "matmul", turns, (), ()),
        (gradients, turned),
        (Node("patches", "im2col", window, (), ()), None),
        (),
    )
    return dense.Product((0,), (0, 1), None, form, dense.Turn("i16", 32, area, 64))


def test_without_what_turns_kernels_gradients_are_scattered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_small(monkeypatch)
    monkeypatch.setattr(kernels, "long_case", lambda form, plan, seed: None)
    step = make_step("cnn", batch=4)
    device = BrokenDevice((dense.TURN,), 6)
    chosen = Kernels(device, least_products=2**40)
    with pytest.warns(KernelWarning) as caught:
        session = CudaSession(step.graph, step.samples, device=device, kernels=chosen)
    assert [str(warning.message).split()[1] for warning in caught] == [dense.TURN]
    used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    assert "col2im" in used
    assert dense.TURN not in used
    run(step, session, steps=1)
    session.close()
    device.close()


class First(HostDevice):
    """Of a stack it does the first matrix alone, whatever ``kernels`` do."""

    def __init__(self, kernels: str) -> None:
        super().__init__()
        self._kernels = kernels

    def launch(self, call: Call) -> None:
        if call.kernel.startswith(self._kernels):
            call = replace(call, grid=(*call.grid[:2], 1))
        super().launch(call)


@pytest.mark.parametrize("kernels", ["matmul_mma_i16_i16", "matmul_pack_along", ""])
def test_stacks_of_matrices_are_tried_as_such(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    narrow: Attrs = {"dtype": "i16", "multiplier": 1, "shift": 20}
    rescale = Node("out", "rescale", narrow, (), (TensorType("i16", (), 0, 0, 0),))
    a, b = (TensorType("i16", (4, 2, *shape), 0, *STORAGE["i16"]) for shape in ((20, 30), (10, 30)))
    device = First(kernels) if kernels else HostDevice()
    plan = partial(gemm.plan_matmul, architecture="sm_80", least_products=0)
    for followers in ((), (rescale,)):
        case = dense_cases.small_case(make_stacks(a, b, (0, 1), followers), plan)
        assert case is not None
        assert agrees(device, case) is not bool(kernels)
    # One matrix is none the worse.
    left, right = (replace(x, shape=x.shape[2:]) for x in (a, b))
    single = make_form(left, right, (0, 1), (None, None), (rescale,))
    case = dense_cases.small_case(single, plan)
    assert case is not None
    assert agrees(device, case)
    device.close()


# --- every way in which a product can be launched is tried


def list_forms() -> Iterator[dense.Form]:
    """Products of all kinds, in sizes on either side of what tells one way from another."""
    narrow: Attrs = {"dtype": "i16", "multiplier": 1, "shift": 20}
    rescale = Node("out", "rescale", narrow, (), (TensorType("i16", (), 0, 0, 0),))
    wide = STORAGE["i16"]
    ranges = [
        (wide, wide),
        ((0, 255), wide),
        (wide, (-9, 9)),
        ((-9, 9), (0, 200)),
        ((-9, 9), (-100, 100)),
    ]
    followers: list[tuple[Node, ...]] = [(), (rescale,)]
    turns = list(itertools.product((0, 1), (0, 1)))
    sizes = [(400, 264, 300), (60, 300, 200), (130, 130, 41), (4096, 4096, 64), (300, 9000, 96)]
    for (rows, terms, columns), (left, right), turned, last in itertools.product(
        sizes, ranges, turns, followers
    ):
        shapes = (rows, terms)[:: 1 - 2 * turned[0]], (terms, columns)[:: 1 - 2 * turned[1]]
        a, b = (
            TensorType("i16", shape, 0, *between)
            for shape, between in zip(shapes, (left, right), strict=True)
        )
        yield make_form(a, b, turned, (None, None), last)
    for (rows, terms, columns), stack, turned, last in itertools.product(
        [(128, 32, 128), (130, 130, 41), (200, 1200, 264)], [(2, 3), (4,)], turns, followers
    ):
        shapes = (rows, terms)[:: 1 - 2 * turned[0]], (terms, columns)[:: 1 - 2 * turned[1]]
        a, b = (TensorType("i16", (*stack, *shape), 0, *wide) for shape in shapes)
        yield make_stacks(a, b, turned, last)
    for channels, side, position, images, other, turn, last in itertools.product(
        (3, 4, 12, 16, 80, 72, 256), (1, 3), (0, 1), (2, 40), (10, 200), (0, 1), followers
    ):
        window: Attrs = {"kernel": (side, side), "strides": (1, 1), "pads": (side // 2,) * 4}
        image = TensorType("i16", (images, 8, 8, channels), 0, *wide)
        pixels, places = images * 64, side * side * channels
        patches = Node("patches", "im2col", window, (), ())
        terms = (pixels if turn else places) if position == 0 else (places if turn else pixels)
        matrix = TensorType("i16", (terms, other) if position == 0 else (other, terms), 0, *wide)
        if position == 0:
            yield make_form(image, matrix, (turn, 0), (patches, None), last)
        else:
            yield make_form(matrix, image, (0, turn), (None, patches), last)


def make_form(
    a: TensorType,
    b: TensorType,
    turned: tuple[int, int],
    windows: tuple[Node | None, Node | None],
    followers: tuple[Node, ...],
) -> dense.Form:
    attrs: Attrs = {"transpose_a": turned[0], "transpose_b": turned[1]}
    return dense.Form(Node("product", "matmul", attrs, (), ()), (a, b), windows, followers)


def make_stacks(
    a: TensorType, b: TensorType, turned: tuple[int, int], followers: tuple[Node, ...]
) -> dense.Form:
    """The products of two stacks of matrices."""
    attrs: Attrs = {"transpose_a": turned[0], "transpose_b": turned[1]}
    node = Node("product", "batched_matmul", attrs, (), ())
    return dense.Form(node, (a, b), (None, None), followers)


def find_ways(launches: Sequence[Launch] | Sequence[Planned]) -> set[tuple[object, ...]]:
    """What of the code of their kernels these launches go through."""
    return {way for launch in launches for way in find_way(launch.kernel, launch.args)}


def find_way(kernel: str, args: Sequence[object]) -> Iterator[tuple[object, ...]]:
    if kernel.startswith(gemm.MULTIPLYING):
        n, flags = args[-15], args[-9]
        assert isinstance(n, int)
        assert isinstance(flags, int)
        yield kernel, flags, n % 4 == 0, args[-6]
    elif kernel.startswith("matmul_pack_"):
        dtype, inner, extent, planes = args[1], args[-4], args[-5], args[-3]
        assert isinstance(inner, int)
        assert isinstance(extent, int)
        pack = args[2]
        if isinstance(pack, Constant):
            pack = int.from_bytes(pack.data[16:24], "little")
        assert isinstance(pack, int)
        is_whole = pack % 8 == 0 and dtype == DTYPE_CODES["i16"]
        if is_whole and min(inner, extent) >= gemm.TILE:
            yield kernel, dtype, planes, True
        if not is_whole or inner % gemm.TILE or extent % gemm.TILE:
            yield kernel, dtype, planes, False
    else:
        yield (kernel,)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_every_way_to_launch_a_product_is_tried(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the self-check launches for a form goes where the launches of a plan for it go."""
    for name in ("boundary_values", "_draw"):
        monkeypatch.setattr(dense_cases, name, lambda tensor, seed: np.zeros(1))
    device = HostDevice(architecture=architecture)
    chosen = Kernels(device)
    cases: dict[str, list[Case]] = {}
    seen: set[str] = set()
    for form in list_forms():
        launches = form.plan(
            partial(gemm.plan_matmul, architecture=architecture, processors=device.info.processors)
        )
        if launches is None:
            continue
        choice = gemm.find_choice(launches)
        subjects = {subject.name: subject for subject in chosen.product_subjects([form])}
        kind = make_kind((dense_cases.describe(form, launches), choice.is_turned))
        name = f"{choice.kernel}:{kind}"
        assert name in subjects
        # A verdict serves all forms of the kind: the first of them has to do for each.
        if name not in cases:
            cases[name] = list(subjects[name].cases(0))
        tried = {way for case in cases[name] for way in find_ways(case.fast)}
        assert find_ways(launches) - {("matmul_finish",)} <= tried, form
        for case in cases[name]:
            assert all(
                count_matrices(launch) == (dense_cases.STACK[0] if form.batch > 1 else 1)
                for launch in case.fast
                if launch.kernel.startswith((*gemm.MULTIPLYING, "matmul_pack"))
            )
        if any(launch.kernel == "matmul_finish" for launch in launches):
            assert "matmul_finish" in subjects
        seen.add(f"{choice.kernel} {choice.is_turned}")
    expected = {"matmul_mma_i16_i16", "matmul_mma_i8_i8"} if architecture == "sm_80" else WGMMA
    assert expected <= {name.split()[0] for name in seen}
    assert any(name.endswith("True") for name in seen) is (architecture == "sm_90a")


WGMMA = {
    "matmul_wgmma_i16_i16",
    "matmul_wgmma_i8_i8",
    "matmul_wgmma_i16_i8",
    "matmul_wgmma_u8_i16",
    "matmul_wgmma_i8_i16",
    "matmul_wgmma_i16_i16_narrow",
    "matmul_wgmma_windows_i16_i16",
    "matmul_wgmma_windows_i16_i16_narrow",
}


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_every_kernel_of_a_plan_is_readable_or_tried(kind: str, architecture: str) -> None:
    """A device on which all is zero finds everything equal; it tells what was launched."""

    class Idle(HostDevice):
        def prepare(self, kernels: Sequence[tuple[str, str]]) -> None: ...

        def launch(self, call: Call) -> None:
            launched.add(call.kernel)

        def read(self, address: int, nbytes: int) -> bytes:
            return bytes(nbytes)

    launched: set[str] = set()
    device, program = Idle(architecture=architecture), Program(make_step(kind, batch=8).graph)
    plan = Kernels(device, least_products=0).plan_step(program)
    readable = {
        launch.kernel
        for index, node in enumerate(program.graph.nodes)
        for launch in lower(node, program.types(index))
    }
    used = {launch.kernel for job in plan.jobs for launch in job.launches}
    assert used - readable <= launched
    assert any(name.startswith("matmul_w" if "90" in architecture else "matmul_m") for name in used)
    assert any(name.startswith("chain_") for name in used)
