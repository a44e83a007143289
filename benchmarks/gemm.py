"""The exact int16 product (int64 sums) against torch's fp32 matmul, two threads, in one run.

Predicted before optimising: 0.36 / 0.34 / 0.34 of torch's time at 512, 1024 and 2048 cubed with
data that fill all 16 bits (3 VNNI instructions for 64 products where four int8 products take 4),
and 0.25 with 12-bit data, for which 2 instructions do.

With AVX2 alone a multiply-add of words and its addition are two instructions for 16 products, and
full-range data need two such pairs: the ports allow 1.4 and 0.7 of torch's time.  Predicted before
the rewriting of its loops and its packing (2.07 and 1.19 before, on Zen 3): 1.5 and 0.85.
Predicted at 1024 cubed before A's groups had 8 lanes and the loop its order (1.57 and 0.97 before,
on Zen 4, whose ports take 7.4 cycles for six rows of 32 products where the loop took 8.6, and the
loop three quarters of the time): 1.35 and 0.75.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import _harness as harness
import numpy as np
import numpy.typing as npt
import torch

from vtrain import _core

FULL_LIMITS = {"avx512_vnni": 0.48, "avx_vnni": 1.0, "avx2": 1.6}
TRAINED_LIMITS = {"avx512_vnni": 0.35, "avx_vnni": 0.5, "avx2": 0.9}
CUBES = (512, 1024, 2048)
LARGEST = 32639  # what the number format saturates to
# (m, n, k), A and B stored transposed: the products of a step of 784-512-512-10 at batch 128,
# and of layers of 2048 at batch 16.
STEP_SHAPES = {
    "forward 784": (128, 512, 784, False, True),
    "forward 512": (128, 512, 512, False, True),
    "forward 10": (128, 10, 512, False, True),
    "input gradient": (128, 512, 512, False, False),
    "weight gradient 784": (512, 784, 128, True, False),
    "weight gradient 512": (512, 512, 128, True, False),
    "forward 2048, thin": (16, 2048, 2048, False, True),
    "input gradient 2048, thin": (16, 2048, 2048, False, False),
    "weight gradient 2048, thin": (2048, 2048, 16, True, False),
}

Matrix = npt.NDArray[np.int16]


def draw(rows: int, cols: int, kind: str) -> Matrix:
    """Random operands: ``full`` fills +-32639 evenly, ``trained`` is normal, held to 12 bits."""
    random = np.random.default_rng(rows * 10_007 + cols)
    if kind == "full":
        return random.integers(-LARGEST, LARGEST + 1, (rows, cols), dtype=np.int16)
    return np.clip(random.normal(0, 512, (rows, cols)), -2047, 2047).astype(np.int16)


def measure_shape(
    shape: tuple[int, int, int, bool, bool], kind: str, threads: int, seconds: float
) -> dict[str, Any]:
    """Both sides of one product, outputs allocated beforehand."""
    m, n, k, transpose_a, transpose_b = shape
    a = draw(*((k, m) if transpose_a else (m, k)), kind)
    b = draw(*((n, k) if transpose_b else (k, n)), kind)
    out = np.zeros((m, n), dtype=np.int64)
    ours = partial(
        _core.gemm_i64, a, b, transpose_a, transpose_b, path="auto", threads=threads, out=out
    )
    ours()
    exact = (a.T if transpose_a else a).astype(np.float64) @ (b.T if transpose_b else b)
    assert (out == exact.astype(np.int64)).all()  # |sum| < 2^53: float64 is exact here
    torch.set_num_threads(threads)
    x, y = torch.from_numpy(a.astype(np.float32)), torch.from_numpy(b.astype(np.float32))
    x, y = (x.T if transpose_a else x), (y.T if transpose_b else y)
    result = torch.empty((m, n))
    theirs = partial(torch.mm, x, y, out=result)
    figure: dict[str, Any] = dict(harness.compare(ours, theirs, seconds=seconds))
    figure["gmac_per_second"] = m * n * k / figure["ours"]["median"] / 1e9
    return figure


def measure_rescaled(size: int, seconds: float) -> dict[str, Any]:
    """The product with its sums rescaled to int16 on the fly, as a layer's forward pass has it."""
    a, b = draw(size, size, "full"), draw(size, size, "full")
    out = np.zeros((size, size), dtype=np.int16)
    x, y = torch.from_numpy(a.astype(np.float32)), torch.from_numpy(b.astype(np.float32))
    result = torch.empty((size, size))
    torch.set_num_threads(2)
    return dict(
        harness.compare(
            lambda: _core.gemm_rescale_i16(a, b, 24, None, True, threads=2, out=out),
            lambda: torch.relu_(torch.mm(x, y, out=result)),
            seconds=seconds,
        )
    )


def measure(quick: bool) -> harness.Result:
    """Cubes of both kinds of data, one thread, the products of a step, numpy's float64."""
    seconds = 1.0 if quick else 6.0
    figures: dict[str, Any] = {"paths": _core.gemm_paths(), "threads": 2}
    targets: dict[str, harness.Target] = {}
    for size in CUBES:
        cube = (size, size, size, False, False)
        for kind in ("full", "trained"):
            figures[f"{size} cubed, {kind}"] = measure_shape(cube, kind, 2, seconds)
        for kind, name, limits in (
            ("full", "full-range", FULL_LIMITS),
            ("trained", "trained", TRAINED_LIMITS),
        ):
            ratio = figures[f"{size} cubed, {kind}"]["ratio"]["median"]
            target = harness.at_most_here(ratio, **limits)
            targets[f"{size} cubed, {name} data, of torch fp32"] = target
        figures[f"{size} cubed, full, rescaled to int16"] = measure_rescaled(size, seconds)
    one_thread = (1024, 1024, 1024, False, False)
    figures["1024 cubed, full, one thread"] = measure_shape(one_thread, "full", 1, seconds)
    for name, shape in STEP_SHAPES.items():
        for kind in ("full", "trained"):
            figures[f"{name}, {kind}"] = measure_shape(shape, kind, 2, seconds / 4)
    a, b = draw(1024, 1024, "full"), draw(1024, 1024, "full")
    x, y = a.astype(np.float64), b.astype(np.float64)
    figures["1024 cubed, full, against numpy float64"] = dict(
        harness.compare(
            lambda: _core.gemm_i64(a, b, threads=2), lambda: np.matmul(x, y), seconds=seconds
        )
    )
    return harness.Result(figures, targets)


if __name__ == "__main__":
    harness.main("gemm", measure)
