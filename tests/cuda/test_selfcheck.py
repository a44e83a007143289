"""A fast kernel that gives wrong bits is found, named and replaced; the run's bits stay right."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_device import HostDevice
from tests.engines.steps import Step, make_step
from vtrain.engines.cuda import dense, fuse, gemm, kernels, lower_rows, sources
from vtrain.engines.cuda.device import Call, DeviceInfo
from vtrain.engines.cuda.kernels import CASES, Kernels
from vtrain.engines.cuda.launch import Launch
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.selfcheck import KernelWarning, agrees, boundary_values, node_case
from vtrain.engines.cuda.session import CudaSession
from vtrain.engines.numpy_engine import NumpySession
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
        monkeypatch.setattr(dense, name, (5, 9, 6))


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
        adds, flags = 2, 8
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
    case = dense.long_case(
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
    change: Callable[[Path], object], tmp_path: Path
) -> None:
    step = make_step("mlp")
    device = HostDevice()
    open_on(device, step, tmp_path).close()
    [path] = tmp_path.iterdir()
    change(path)
    again = BrokenDevice(())
    open_on(again, step, tmp_path).close()
    assert "sum_parts" in again.launched


def change_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "compute_hash", lambda: "0" * 40)


def change_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "__version__", "0.0.0")


@pytest.mark.parametrize("change", [change_sources, change_version])
def test_other_sources_are_tried_anew(
    change: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_step("mlp")
    open_on(HostDevice(), step, tmp_path).close()
    change(monkeypatch)
    again = BrokenDevice(())
    open_on(again, step, tmp_path).close()
    assert "sum_parts" in again.launched


def test_a_failure_is_told_at_every_start(tmp_path: Path) -> None:
    step = make_step("mlp")
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
    for _ in range(4):
        assert session.step() == law.step()
    used = {launch.kernel for job in session.plan.jobs for launch in job.launches}
    assert "sum_parts" not in used
    assert session.saturation() == law.saturation()
    session.close()


def test_every_fast_kernel_has_cases() -> None:
    assert CASES.keys() == lower_rows.FAST.keys()


@pytest.mark.parametrize("dtype", STORAGE)
def test_boundary_values_reach_the_ends_of_their_range(dtype: str) -> None:
    values = boundary_values(TensorType(dtype, (4000,), 0, 0, 0), seed=1)
    lo, hi = STORAGE[dtype] if dtype != "i64" else (-(2**60), 2**60)
    assert (int(values.min()), int(values.max())) == (lo, hi)
    assert {0, 1} <= set(values.tolist())


def test_devices_are_told_apart(tmp_path: Path) -> None:
    """Two GPUs of one kind have verdicts of their own."""
    step = make_step("mlp")

    class Other(HostDevice):
        @property
        def info(self) -> DeviceInfo:
            return replace(super().info, uuid="other")

    open_on(HostDevice(), step, tmp_path).close()
    open_on(Other(), step, tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 2


STORES, NARROWS, FLAGS = 1, 4, 8
"""Of a product: two flags, and the argument that has them."""


class Choosy(HostDevice):
    """Changes what calls that are ``meant`` write to their argument ``output``."""

    def __init__(self, meant: Callable[[Call], bool], output: int) -> None:
        super().__init__()
        self._meant, self._output = meant, output

    def launch(self, call: Call) -> None:
        super().launch(call)
        slot = call.slots[self._output] if self._meant(call) else 0
        if not isinstance(slot, int):
            [byte] = self.read(slot.address, 1)
            self.write(slot.address, bytes([byte ^ 1]))


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
    device, output = Choosy(narrows, 10), "matmul_mma_i16_i16"
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
    ("meant", "output"), [(stores_whole_packs, 9), (loads_whole_packs, 8), (goes_round, 9)]
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

    def plan(a: gemm.Factor, b: gemm.Factor, epilogue: gemm.Epilogue) -> None:
        tried.extend((a, b))

    assert dense.whole_case(form, plan) is None
    for factor in tried:
        assert factor.inner >= dense.WHOLE[1]
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
