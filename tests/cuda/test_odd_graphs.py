"""Legal graphs that no training step looks like: still the law's bits, and no kernel is accused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.cuda.host_device import CACHE, HostDevice
from tests.engines.compare import assert_same_state, name_difference, open_law
from tests.engines.steps import Step
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.session import Accumulator, CudaSession
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.legality import check_graph
from vtrain.graph.step import emit_state_root
from vtrain.ops.base import attr_int
from vtrain.spec.number import rs, saturate
from vtrain.train.data import build_samples
from vtrain.wire.graph import Ref

BATCH = 2
MOST = 2**31 - 1
Emit = Callable[[GraphBuilder, Ref, Ref], tuple[Ref, Mapping[str, Ref]]]

pytestmark = pytest.mark.filterwarnings("error::vtrain.engines.cuda.selfcheck.KernelWarning")


def make_step_of(
    image: tuple[int, ...], weights: tuple[int, ...], exponent: int, emit: Emit
) -> Step:
    """A step whose loss is the sum of what ``emit`` makes of pixels and weights, which stay as they
    are; what else it has as next states begins with zeros."""
    rng = np.random.default_rng(1)
    b = GraphBuilder(FixedExponents({}))
    pixels = rng.integers(0, 256, (20, *image), dtype=np.uint8)
    samples = build_samples(pixels, rng.integers(0, 4, 20, dtype=np.uint8))
    step = b.emit("state", "step", (), name="step", dtype="i64", shape=(), exponent=0)
    w = b.emit("state", "w", (), name="w", dtype="i32", shape=weights, exponent=exponent)
    facts = samples.spec
    index = b.emit("sample_index", "index", (step,), seed=bytes(8), samples=20, batch=BATCH)
    x, y = (
        b.emit("gather_samples", part, (index,), part=part, dtype=dtype, shape=shape, exponent=e)
        for part, dtype, shape, e in (
            ("x", facts.x_dtype, facts.x_shape, facts.x_exponent),
            ("y", facts.y_dtype, facts.y_shape, facts.y_exponent),
        )
    )
    digests = [b.emit("tensor_digest", f"digest/{name}", (r,)) for name, r in (("x", x), ("y", y))]
    batch = b.emit("batch_digest", "batch_digest", digests)
    made, more = emit(b, x, w)
    loss = b.emit("sum", "loss", (made,))
    after = {"w": w, "step": b.emit("increment", "increment", (step,)), **more}
    for name, ref in after.items():
        b.emit("next_state", f"next/{name}", (ref,), name=name)
    root = emit_state_root(b, after)
    b.emit("record", "record", (after["step"], batch, loss, root), commit_every=1)
    check_graph(b.graph())
    state: dict[str, npt.NDArray[Any]] = {
        "step": np.zeros((), np.int64),
        "w": rng.integers(-MOST, MOST, weights, endpoint=True).astype(np.int32),
        **{name: np.zeros(b.type_of(ref).shape, np.int32) for name, ref in more.items()},
    }
    return Step(b.graph(), samples, state)


def emit_scattered_patches(b: GraphBuilder, x: Ref, w: Ref) -> tuple[Ref, Mapping[str, Ref]]:
    """The product of patches goes back into an image: patches as the gradients of others."""
    window = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
    pixels = b.emit(
        "normalize", "pixels", (x,), multiplier=257, offset=-32768, shift=1, exponent=15
    )
    patches = b.emit("im2col", "patches", (pixels,), **window)
    kernel = b.rescale("kernel", w, -1)
    product = b.emit("matmul", "product", (patches, kernel), transpose_a=0, transpose_b=0)
    image = b.emit("col2im", "image", (product,), shape=(BATCH, 6, 5, 3), **window)
    return b.rescale("rounded", image, -6), {}


def emit_constant_operand(b: GraphBuilder, x: Ref, w: Ref) -> tuple[Ref, Mapping[str, Ref]]:
    """Pixels shifted by 64 bits are proven to be one value: the product takes one plane of them."""
    pixels = b.emit("normalize", "pixels", (x,), multiplier=1, offset=0, shift=64, exponent=0)
    kernel = b.rescale("kernel", w, 8)
    product = b.emit("matmul", "product", (pixels, kernel), transpose_a=0, transpose_b=1)
    return b.rescale("rounded", product, -6), {}


def emit_twin_velocities(b: GraphBuilder, x: Ref, w: Ref) -> tuple[Ref, Mapping[str, Ref]]:
    """Two velocities of one gradient, which is the product of outputs and pixels."""
    pixels = b.emit("normalize", "pixels", (x,), multiplier=257, offset=-32768, shift=1, exponent=7)
    kernel = b.rescale("kernel", w, 8)
    product = b.emit("matmul", "product", (pixels, kernel), transpose_a=0, transpose_b=1)
    rounded = b.rescale("rounded", product, 1)
    gradient = b.emit("matmul", "gradient", (rounded, pixels), transpose_a=1, transpose_b=0)
    shape, shift = b.type_of(w).shape, b.type_of(gradient).exponent - 16
    after = {}
    for name in ("v1", "v2"):
        v = b.emit("state", name, (), name=name, dtype="i32", shape=shape, exponent=16)
        after[name] = b.emit("momentum", f"{name}/next", (v, gradient), decay=100, shift=shift)
    return rounded, after


GRAPHS: dict[str, Callable[[], Step]] = {
    "scattered patches": lambda: make_step_of((6, 5, 3), (27, 27), 15, emit_scattered_patches),
    "constant operand": lambda: make_step_of((20,), (30, 20), 24, emit_constant_operand),
    "twin velocities": lambda: make_step_of((20,), (30, 20), 24, emit_twin_velocities),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_odd_graphs_follow_the_law(name: str, host_device: HostDevice) -> None:
    step = GRAPHS[name]()
    kernels = Kernels(host_device, least_products=0, folder=CACHE)
    cuda = CudaSession(step.graph, step.samples, device=host_device, kernels=kernels)
    cuda.load_state(step.state)
    law = open_law(step)
    for _ in range(3):
        assert cuda.step() == law.step()
    assert_same_state(cuda, law)
    assert cuda.saturation() == law.saturation()
    assert name_difference(step.graph, cuda.trace(), law.trace()) == ""
    assert not kernels.disabled
    cuda.close()


def test_each_gradient_is_reduced_once(host_device: HostDevice) -> None:
    """Though two velocities take it: doubled where it lies, it is doubled for both."""
    step = GRAPHS["twin velocities"]()
    found: list[str] = []

    def double(sums: Mapping[str, Accumulator]) -> None:
        found.extend(sums)
        for one in sums.values():
            values = np.frombuffer(host_device.read(one.address, 8 * one.count), "<i8")
            host_device.write(one.address, (2 * values).tobytes())

    kernels = Kernels(host_device, fast=False)
    cuda = CudaSession(step.graph, step.samples, device=host_device, kernels=kernels, reduce=double)
    cuda.load_state(step.state)
    law = open_law(step)
    (gradient,) = (node for node in step.graph.nodes if node.name == "v1/next")
    sums = law.evaluate(gradient.inputs[1].node)
    cuda.step()
    after = cuda.read_state()
    expected = saturate(rs(2 * sums, attr_int(gradient.attrs, "shift")), "i32")
    for name in ("v1", "v2"):
        np.testing.assert_array_equal(after[name], expected)
    assert found == ["v1"]
    cuda.close()
