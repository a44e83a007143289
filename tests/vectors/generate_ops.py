"""Writes the vectors of operators, ``ops/NAME.json``, and of a whole step, ``step.json``.

``python tests/vectors/generate_ops.py`` writes them from the law alone (vtrain/ops and its node
evaluator, never an optimised engine); ``--check`` only compares and exits 1 when one differs.
An operator without cases is named, and nothing is written.  README.md documents the formats.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from generate import FOLDER, Json, tagged  # type: ignore[import-not-found]  # beside this file

from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.evaluate import apply_node
from vtrain.graph.legality import check_graph
from vtrain.graph.model import Conv, Linear, MaxPool, Model, Relu, Reshape
from vtrain.graph.step import Affine, Momentum, StepPlan, compute_initial_state, emit_step
from vtrain.ops import TABLE
from vtrain.ops.layout import Window
from vtrain.spec import domains, merkle
from vtrain.spec.commitment import (
    compute_graph_root,
    compute_state_leaf,
    compute_state_root,
    compute_tensor_digest,
    compute_trace_root,
)
from vtrain.spec.curves import CURVES
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.spec.philox import compute_philox
from vtrain.spec.samples import Samples
from vtrain.wire.graph import (
    Attrs,
    AttrValue,
    Node,
    Ref,
    StepGraph,
    TensorType,
    encode_graph,
    encode_node,
)
from vtrain.wire.opening import StateLeaf
from vtrain.wire.record import StepRecord, encode_record
from vtrain.wire.task import DataSpec

Array = npt.NDArray[Any]
DTYPE_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def draw(key: int, dtype: str, *shape: int, lo: int | None = None, hi: int | None = None) -> Array:
    """Numbers in [lo, hi] from Philox with the key ``key``; the first two are lo and hi."""
    least, most = STORAGE[dtype]
    least, most = least if lo is None else lo, most if hi is None else hi
    count = int(np.prod(shape))
    values = [least, most][:count]
    for i in range(len(values), count):
        a, b, c, _ = compute_philox((i, 0, 0, 0), (key, 0))
        values.append(least + ((a << 64 | b << 32 | c) * (most - least + 1) >> 96))
    return np.array(values, NUMPY_DTYPES[dtype]).reshape(shape)


def a(dtype: str, *values: Any) -> Array:
    """An array of these values; one value alone is a scalar."""
    listed = values[0] if len(values) == 1 else list(values)
    return np.array(listed, NUMPY_DTYPES[dtype])


class Case:
    """One application: inputs are arrays, or (array, exponent); ranges are those of the values.

    ``bound`` is the array that an engine binds to a node without such an input.
    """

    def __init__(
        self,
        name: str,
        attrs: Attrs,
        *inputs: Array | tuple[Array, int],
        bound: Array | None = None,
    ) -> None:
        self.name, self.attrs, self.bound = name, attrs, bound
        pairs = [item if isinstance(item, tuple) else (item, 0) for item in inputs]
        self.arrays = [array for array, _ in pairs]
        self.types = [
            TensorType(
                DTYPE_NAMES[array.dtype], array.shape, exponent, int(array.min()), int(array.max())
            )
            for array, exponent in pairs
        ]

    def to_json(self, op: str) -> Json:
        claim = TABLE[op].infer(self.attrs, self.types)
        bound = [] if self.bound is None else [self.bound]
        out = TABLE[op].law(self.attrs, [*self.arrays, *bound])
        refs = tuple(Ref(i) for i in range(len(self.types)))
        content = {
            "name": self.name,
            "attrs": {key: tagged_attr(value) for key, value in sorted(self.attrs.items())},
            "inputs": [tensor_to_json(t, v) for t, v in zip(self.types, self.arrays, strict=True)],
            "output": tensor_to_json(claim, out),
            "node": encode_node(Node(self.name, op, self.attrs, refs, (claim,))).hex(),
        }
        if self.bound is not None:
            content["bound"] = array_to_json(self.bound)
        return content


def tagged_attr(value: AttrValue) -> Json:
    return tagged(list(value) if isinstance(value, tuple) else value)


def array_to_json(array: Array) -> Json:
    """Elements in row-major order; those of int64 as text, since JSON readers round them."""
    values = array.ravel().tolist()
    dtype = DTYPE_NAMES[array.dtype]
    return {
        "dtype": dtype,
        "shape": list(array.shape),
        "values": [str(v) for v in values] if dtype == "i64" else values,
    }


def tensor_to_json(tensor: TensorType, array: Array) -> Json:
    return {
        **array_to_json(array),
        "exponent": tensor.exponent,
        "lo": str(tensor.lo),
        "hi": str(tensor.hi),
    }


# --- operators


def window(kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]) -> Attrs:
    return {"kernel": tuple(kernel), "strides": tuple(strides), "pads": tuple(pads)}


WINDOWS = {
    "2x2 blocks": ((1, 4, 4, 2), (1, 2, 2, 2), window((2, 2), (2, 2), (0, 0, 0, 0))),
    "3x3 padded, overlapping": ((2, 3, 4, 1), (2, 3, 4, 1), window((3, 3), (1, 1), (1, 1, 1, 1))),
    "uneven": ((1, 5, 4, 2), (1, 3, 4, 2), window((3, 2), (2, 1), (2, 0, 0, 1))),
    "a remainder is left out": ((1, 5, 5, 1), (1, 2, 1, 1), window((2, 3), (3, 4), (0, 0, 0, 0))),
}
OPERAND = 32639


def state_cases() -> Iterator[Case]:
    for dtype, value in (("i32", a("i32", [1 - 2**31, 0, 2**31 - 1])), ("i64", a("i64", 2**40))):
        attrs: Attrs = {"name": "w", "dtype": dtype, "shape": value.shape, "exponent": 24}
        yield Case(dtype, attrs, bound=value)
    attrs = {"name": "square/w", "dtype": "i64", "shape": (2,), "exponent": 24}
    yield Case("squares", attrs, bound=a("i64", [0, 2**46]))


def next_state_cases() -> Iterator[Case]:
    yield Case("i32", {"name": "w"}, (a("i32", [-7, 8]), 24))


def increment_cases() -> Iterator[Case]:
    for t in (0, 41, 2**40 - 1, 2**40):
        yield Case(f"t = {t}", {}, a("i64", t))


def schedule_cases() -> Iterator[Case]:
    attrs: Attrs = {"starts": (0, 3, 10), "rates": (65535, 0, 7), "exponent": 22}
    for t in (0, 2, 3, 9, 10, 2**40):
        yield Case(f"t = {t}", attrs, a("i64", t))


def schedule_linear_cases() -> Iterator[Case]:
    attrs: Attrs = {"starts": (0, 3, 10, 2**40), "rates": (0, 65535, 7, 8), "exponent": 22}
    for t in (0, 1, 2, 3, 4, 9, 10, 11, 2**39 + 4, 2**39 + 5, 2**40):
        yield Case(f"t = {t}", attrs, a("i64", t))
    one: Attrs = {"starts": (0,), "rates": (9,), "exponent": 0}
    yield Case("one start", one, a("i64", 5))


def sign_cases() -> Iterator[Case]:
    yield Case("int32", {}, (a("i32", [-(2**31), -1, 0, 1, 2**31 - 1]), 17))
    yield Case("bytes", {}, a("u8", [0, 255]))


def capped_square_cases() -> Iterator[Case]:
    x = a("i64", [0, 1, -1, 3, -5, 2**29, -(2**30), 2**40])
    for shift in (-9, 0, 1, 2, 30, 64):
        for bits in (0, 20, 59):
            yield Case(f"shift {shift}, {bits} bits", {"shift": shift, "bits": bits}, (x, 20))


def clip_factor_cases() -> Iterator[Case]:
    for limit in (1, 65535, 2**31):
        for total in (0, 1, 2, 3, 4, 65535**2 - 1, 65535**2, 65536**2, 2**59, 2**60 - 1):
            yield Case(f"limit {limit}, sum {total}", {"limit": limit}, (a("i64", total), 32))


def scale_by_cases() -> Iterator[Case]:
    x = a("i64", [0, 1, -1, 3, -3, 2**44, -(2**44)])
    for shift in (0, 1, 15, 64):
        for factor in (0, 1, 12345, 2**15):
            inputs = (x, 20), (a("i64", factor), 15)
            yield Case(f"shift {shift}, factor {factor}", {"shift": shift}, *inputs)
    yield Case("int16", {"shift": 3}, (a("i16", [-32768, 32767]), 4), (a("i64", -77), 15))


def adam_correction_cases() -> Iterator[Case]:
    betas = (1932735283, 2145336164), (0, 0), (2**31 - 1, 0), (0, 2**31 - 1), (2**31 - 1, 2**31 - 1)
    for beta1, beta2 in betas:
        attrs: Attrs = {"beta1": beta1, "beta2": beta2}
        for t in (0, 1, 2, 9, 6930, 2**40):
            yield Case(f"beta1 {beta1}, beta2 {beta2}, t = {t}", attrs, a("i64", t))


def sample_index_cases() -> Iterator[Case]:
    for samples, batch, t in ((1, 3, 0), (7, 3, 2), (9000, 5, 1799), (2**40, 2, 2**40)):
        attrs: Attrs = {"seed": bytes(range(8)), "samples": samples, "batch": batch}
        yield Case(f"{samples} samples, batch {batch}, t = {t}", attrs, a("i64", t))


def dropout_mask_cases() -> Iterator[Case]:
    for t, site, keep, shape in (
        (0, 0, 58982, (3, 7)),
        (2**32 + 5, 2**31 - 1, 32768, (2, 2, 4)),
        (2**40, 7, 1, (9,)),
        (1, 1, 65535, (1,)),
        (3, 2, 6554, ()),
    ):
        attrs: Attrs = {
            "seed": bytes(range(8)), "site": site, "keep": keep, "shape": shape,
            "value": round(2**30 / keep) if keep > 2**15 else 2**15 - 1, "exponent": 14,
        }  # fmt: skip
        yield Case(f"t = {t}, site {site}, keep {keep}, {shape}", attrs, a("i64", t))


def gather_samples_cases() -> Iterator[Case]:
    index = a("i64", [2, 0, 2])
    of_x: list[tuple[str, tuple[int, ...]]]
    of_x = [("u8", (2, 2)), ("i8", ()), ("i16", (3,)), ("i32", (1,))]
    of_y: list[tuple[str, tuple[int, ...]]]
    of_y = [("u8", ()), ("i8", (2,)), ("i16", (2, 2)), ("i32", (3,))]
    for dtype, shape in of_x:
        attrs: Attrs = {"part": "x", "dtype": dtype, "shape": shape, "exponent": 7}
        yield Case(dtype, attrs, index, bound=draw(1, dtype, 3, *shape))
    for key, (dtype, shape) in enumerate(of_y, 70):
        attrs = {"part": "y", "dtype": dtype, "shape": shape, "exponent": 0}
        yield Case(f"y, {dtype}", attrs, index, bound=draw(key, dtype, 3, *shape))


def normalize_cases() -> Iterator[Case]:
    attrs: Attrs = {"multiplier": 257, "offset": 0, "shift": 1, "exponent": 15}
    yield Case("bytes to 15 fraction bits: halves", attrs, a("u8", [0, 1, 2, 127, 254, 255]))
    attrs = {"multiplier": 2**31, "offset": -(2**60), "shift": 30, "exponent": 3}
    yield Case("saturates at both ends", attrs, a("i32", [-(2**29), 0, 2**29, 2**29 + 1]))
    attrs = {"multiplier": 1, "offset": 1, "shift": 64, "exponent": 0}
    yield Case("shift 64", attrs, a("i32", [-(2**31), 2**31 - 1]))
    attrs = {"multiplier": 3, "offset": -1, "shift": 0, "exponent": 0}
    yield Case("shift 0", attrs, a("i8", [-128, -1, 0, 127]))


def one_hot_cases() -> Iterator[Case]:
    yield Case("tokens", {"depth": 3}, a("u8", [[0, 1], [2, 3]]))
    yield Case("none below zero", {"depth": 2}, a("i16", [[-1], [1]]))


def im2col_cases() -> Iterator[Case]:
    for name, (image, _, attrs) in WINDOWS.items():
        yield Case(name, attrs, draw(2, "i16", *image))


def col2im_cases() -> Iterator[Case]:
    for name, (image, (n, rows, columns, channels), attrs) in WINDOWS.items():
        area = Window.from_attrs(attrs).area
        patches = draw(3, "i64", n * rows * columns, area * channels, lo=-(2**55), hi=2**55)
        yield Case(name, {**attrs, "shape": image}, patches)
        if name == "uneven":
            narrow = draw(4, "i16", *patches.shape)
            yield Case(f"{name}, int16", {**attrs, "shape": image}, narrow)


def max_pool_cases() -> Iterator[Case]:
    for name, (image, _, attrs) in WINDOWS.items():
        yield Case(name, attrs, draw(5, "i16", *image, lo=-OPERAND, hi=OPERAND))
    image, _, attrs = WINDOWS["3x3 padded, overlapping"]
    yield Case("padding never wins", attrs, np.full(image, -OPERAND, np.int16))


def max_pool_grad_cases() -> Iterator[Case]:
    for name, (image, pooled, attrs) in WINDOWS.items():
        grad = draw(6, "i16", *pooled)
        yield Case(name, attrs, grad, draw(5, "i16", *image, lo=-OPERAND, hi=OPERAND))
        yield Case(f"{name}, ties", attrs, grad, draw(7, "i16", *image, lo=0, hi=1))


def sum_pool_cases() -> Iterator[Case]:
    for name, (image, _, attrs) in WINDOWS.items():
        yield Case(name, attrs, draw(8, "i16", *image))


def sum_pool_grad_cases() -> Iterator[Case]:
    for name, (image, pooled, attrs) in WINDOWS.items():
        grad = draw(9, "i64", *pooled, lo=-(2**55), hi=2**55)
        yield Case(name, {**attrs, "shape": image}, grad)


def reshape_cases() -> Iterator[Case]:
    yield Case("2x3 to 3x1x2", {"shape": (3, 1, 2)}, a("i16", [[1, 2, 3], [4, 5, 6]]))
    yield Case("to a scalar", {"shape": ()}, a("i64", [-9]))


def transpose_cases() -> Iterator[Case]:
    x = np.arange(24, dtype=np.int16).reshape(1, 2, 3, 4)
    yield Case("NHWC to NCHW", {"perm": (0, 3, 1, 2)}, x)
    yield Case("NCHW to NHWC", {"perm": (0, 2, 3, 1)}, x)
    yield Case("a matrix", {"perm": (1, 0)}, a("i32", [[1, 2, 3], [4, 5, 6]]))


def slice_cases() -> Iterator[Case]:
    x = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    for axis, start, stop in ((0, 1, 2), (1, 0, 2), (2, 1, 3), (2, 0, 4)):
        yield Case(
            f"axis {axis}, {start} to {stop}", {"axis": axis, "start": start, "stop": stop}, x
        )
    yield Case("a vector", {"axis": 0, "start": 2, "stop": 3}, a("i64", [-(2**59), 1, 2**59]))
    yield Case("its exponent", {"axis": 0, "start": 0, "stop": 1}, (a("u8", [0, 255]), 8))


def pad_cases() -> Iterator[Case]:
    x = np.arange(1, 7, dtype=np.int16).reshape(1, 2, 3)
    for axis, before, after in ((0, 1, 0), (1, 0, 2), (2, 2, 1), (2, 0, 0)):
        attrs: Attrs = {"axis": axis, "before": before, "after": after}
        yield Case(f"axis {axis}, {before} before, {after} after", attrs, x)
    ends = a("i64", [-(2**59), -1])
    yield Case("a vector below zero", {"axis": 0, "before": 1, "after": 1}, ends)
    yield Case("its exponent", {"axis": 0, "before": 0, "after": 1}, (a("i32", [7, 9]), -3))


def concat_cases() -> Iterator[Case]:
    parts = [np.arange(n * 6, dtype=np.int16).reshape(2, n, 3) - n for n in (1, 2, 3)]
    yield Case("the middle axis", {"axis": 1}, *parts)
    yield Case("the first axis", {"axis": 0}, parts[1], parts[1] + 1)
    yield Case("the last axis", {"axis": 2}, (parts[2], 5), (parts[2][:, :, :1].copy(), 5))
    yield Case("vectors", {"axis": 0}, a("i64", [2**59, 1]), a("i64", [-(2**59)]), a("i64", [3]))


def gather_rows_cases() -> Iterator[Case]:
    x = np.arange(12, dtype=np.int16).reshape(4, 3)
    yield Case("rows, some twice", {}, (x, 5), a("i32", [3, 0, 0, 2]))
    yield Case("beyond the table", {}, x, a("i64", [-1, 4, -(2**59), 2**59, 1]))
    yield Case("numbers of one byte", {}, draw(64, "i32", 2, 2), a("u8", [255, 1, 0]))


def scatter_add_cases() -> Iterator[Case]:
    x = np.arange(12, dtype=np.int16).reshape(4, 3) - 6
    yield Case("rows, some twice", {"rows": 5}, (x, 5), a("i32", [3, 0, 3, 2]))
    yield Case("beyond the table", {"rows": 2}, x, a("i64", [-1, 4, -(2**59), 2**59]))
    yield Case("one row", {"rows": 1}, a("i64", [[2**50], [-3], [2**50]]), a("u8", [255, 1, 0]))


def matmul_cases() -> Iterator[Case]:
    left, right = draw(10, "i16", 3, 5), draw(11, "i16", 5, 2)
    for ta in (0, 1):
        for tb in (0, 1):
            x, y = left.T.copy() if ta else left, right.T.copy() if tb else right
            attrs: Attrs = {"transpose_a": ta, "transpose_b": tb}
            yield Case(f"transpose_a {ta}, transpose_b {tb}", attrs, (x, 9), (y, 12))
    k = 300  # beyond 2^32 and 255 in either limb
    plain: Attrs = {"transpose_a": 0, "transpose_b": 0}
    for value in (-32768, -32639, 32639, 32640, 32767, 255, -256):
        row = np.full((1, k), value, np.int16)
        yield Case(f"all {value}", plain, row, np.full((k, 2), (value, -1), np.int16))


def batched_matmul_cases() -> Iterator[Case]:
    left, right = draw(60, "i16", 2, 3, 4), draw(61, "i16", 2, 4, 2)
    for ta in (0, 1):
        for tb in (0, 1):
            x = left.swapaxes(1, 2).copy() if ta else left
            y = right.swapaxes(1, 2).copy() if tb else right
            attrs: Attrs = {"transpose_a": ta, "transpose_b": tb}
            yield Case(f"transpose_a {ta}, transpose_b {tb}", attrs, (x, 9), (y, 12))
    plain: Attrs = {"transpose_a": 0, "transpose_b": 1}
    yield Case("two leading axes", plain, draw(62, "i16", 2, 3, 2, 1), draw(63, "i16", 2, 3, 2, 1))
    for value in (-32768, 32767):
        rows = np.full((1, 2, 300), value, np.int16)
        yield Case(f"all {value}", plain, rows, np.full((1, 1, 300), (value), np.int16))


def add_bias_cases() -> Iterator[Case]:
    for shift in (-28, 0, 1, 5, 31, 32, 33, 64):
        acc = a("i64", [[0, 1, -1, 2**40], [5, -5, 2**59, -(2**59)]])
        bias = a("i32", [1 - 2**31, 2**31 - 1, 16, -16])
        yield Case(f"shift {shift}", {"shift": shift}, (acc, 24 - shift), (bias, 24))


def column_sum_cases() -> Iterator[Case]:
    yield Case("matrix", {}, draw(12, "i16", 4, 3))
    yield Case("image", {}, draw(13, "i64", 2, 3, 2, 2, lo=-(2**56), hi=2**56))
    yield Case("vector", {}, draw(14, "i32", 3))


def rescale_cases() -> Iterator[Case]:
    halves = [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6]
    ends = [2**59, -(2**59), 2**47, -(2**47), OPERAND, OPERAND + 1, -OPERAND, -OPERAND - 1]
    for dtype in ("i16", "i32", "i64"):
        for shift in (0, 1, 2, 16, 31, 32, 44, 62, 63, 64):
            attrs: Attrs = {"dtype": dtype, "multiplier": 1, "multiplier_exponent": 0}
            yield Case(
                f"{dtype}, shift {shift}", {**attrs, "shift": shift}, a("i64", halves + ends)
            )
        for shift in (-20, -62):
            small = a("i16", [-1, 0, 1] if shift == -62 else halves)
            if (dtype, shift) != ("i64", -62):
                yield Case(f"{dtype}, shift {shift}", {**attrs, "shift": shift}, small)
    attrs = {"dtype": "i32", "multiplier": 47274, "multiplier_exponent": 15, "shift": 12}
    yield Case("nats to bits", attrs, (draw(15, "i16", 8, lo=-OPERAND, hi=OPERAND), 7))
    attrs = {"dtype": "i16", "multiplier": 29127, "multiplier_exponent": 18, "shift": 18}
    yield Case("a ninth", attrs, (a("i64", [9 * 32639, 9, 5, 4, -4, -5, -9]), 9))


def align_cases() -> Iterator[Case]:
    for shift_a, shift_b in ((0, 0), (7, 0), (0, 40)):
        x = (draw(16, "i16", 5), shift_b)
        y = (draw(17, "i16" if shift_b else "i64", 5, lo=-(2**15), hi=2**15 - 1), shift_a)
        yield Case(f"shifts {shift_a}, {shift_b}", {"shift_a": shift_a, "shift_b": shift_b}, x, y)


def mul_cases() -> Iterator[Case]:
    ends = a("i16", [-32639, 32639, -32639, 0, -1])
    yield Case("ends of int16", {}, (ends, 12), (a("i16", [-32639, 32639, 32639, 5, 1]), -3))
    wide = draw(67, "i64", 2, 3, lo=-(2**44), hi=2**44)
    yield Case("wide by narrow", {}, (wide, 20), (draw(68, "u8", 2, 3, lo=0, hi=255), 0))
    yield Case("a scalar", {}, a("i32", -(2**31)), a("i8", 127))


def relu_cases() -> Iterator[Case]:
    yield Case("signs", {}, a("i16", [-32768, -1, 0, 1, 32767]))


def relu_grad_cases() -> Iterator[Case]:
    yield Case("zero passes nothing", {}, a("i16", [5, -6, 7, -8]), a("i16", [0, 1, -1, 32639]))


def look_up_cases() -> Iterator[Case]:
    """Each table: all of the middle, its end and both ends of int16; and every kind of shift."""
    for name, curve in CURVES.items():
        end = [sign * (curve.last + off) for sign in (-1, 1) for off in (-1, 0, 1)]
        x = a("i16", sorted([-32768, *range(-40, 41, 8), *end, 32767]))
        yield Case(name, {"table": name, "shift": 0}, (x, curve.grid))
    edges = a("i16", [-32768, -32639, -25, -24, -23, -9, -8, -7, 0, 7, 8, 9, 23, 24, 25, 32767])
    for shift in (4, 15, 16, 63, 64):
        attrs: Attrs = {"table": "silu_slope", "shift": shift}
        yield Case(f"shift {shift}", attrs, (edges, 8 + shift))
    for shift in (-1, -40):
        attrs = {"table": "gelu_gate", "shift": shift}
        yield Case(f"shift {shift}", attrs, (edges, 8 + shift))
    negative = a("i16", [[-600, -300], [-100, -5]])
    yield Case("a part of the range", {"table": "gelu_slope", "shift": 0}, (negative, 8))


def logits() -> Array:
    edges = [0, 1, 1023, 1024, 1025, 16 * 1024, 17 * 1024 - 1, 17 * 1024, 18 * 1024]
    below = [*edges, 31 * 1024 - 1, 31 * 1024, 31 * 1024 + 1, 2**32 - 2]
    deep = [2**31 - 1 - d for d in below]
    return np.array([deep, [5000 - 77 * i for i in range(len(deep))]], np.int32)


def row_max_cases() -> Iterator[Case]:
    yield Case("rows", {}, (logits(), 10))
    yield Case("one class", {}, (a("i32", [[-5], [5]]), 10))


def exp2_diff_cases() -> Iterator[Case]:
    z = logits()
    yield Case("edges of the table and of the depth", {}, (z, 10), (z.max(axis=1), 10))
    whole = np.arange(0, -1024, -1, dtype=np.int32).reshape(1, -1)
    yield Case("the whole table", {}, (whole, 10), (whole.max(axis=1), 10))
    yield Case("above the maximum given", {}, (a("i32", [[3, 4, 5]]), 10), (a("i32", [4]), 10))


def row_sum_cases() -> Iterator[Case]:
    yield Case("rows", {}, (draw(18, "i32", 2, 5), 16))


def divide_cases() -> Iterator[Case]:
    e = a("i32", [[65536, 0, 0], [65536, 65536, 65536], [65536, 1, 2], [65536, 32768, 3]])
    yield Case("probabilities", {}, (e, 16), (e.sum(axis=1, dtype=np.int64), 16))
    tie = a("i32", [[1, 3], [5, 27]])  # 2^14 e / S = k + 1/2 for S = 2^15: rounded up
    yield Case("halves", {}, (tie, 16), (a("i64", [2**15, 2**15]), 16))
    yield Case("a sum of zero counts as one", {}, (a("i32", [[0, 0]]), 16), (a("i64", [0]), 16))


def causal_spans_cases() -> Iterator[Case]:
    yield Case("all before", {"queries": 5, "window": 5})
    yield Case("a window of 2", {"queries": 5, "window": 2})
    yield Case("a window that nothing fills", {"queries": 2, "window": 2**31 - 1})
    yield Case("one place", {"queries": 1, "window": 1})


def token_spans_cases() -> Iterator[Case]:
    none: Attrs = {"before": 2**31 - 1, "after": 2**31 - 1, "end_of_text": 2**31, "padding": 2**31}
    causal: Attrs = {**none, "after": 1}
    packed = a("i32", [[5, 0, 6, 7, 8, 0, 9], [0, 0, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 0]])
    yield Case("documents, causal", {**causal, "end_of_text": 0}, packed)
    yield Case("documents, both ways", {**none, "end_of_text": 0}, packed)
    window: Attrs = {**none, "end_of_text": 0, "before": 2, "after": 3}
    yield Case("documents, 2 places back and 3 ahead", window, packed)
    padded = a("u8", [[9, 9, 9, 9, 9], [1, 2, 9, 9, 9], [9, 9, 1, 2, 3], [9, 1, 9, 2, 9]])
    yield Case("padding, both ways", {**none, "padding": 9}, padded)
    yield Case("padding, causal", {**causal, "padding": 9}, padded)
    both = a("i16", [[7, 0, 7, 7, 7, 9, 9], [9, 0, 7, 0, 0, 9, 9], [9, 9, 9, 9, 9, 9, 0]])
    for kind, attrs in (("causal", causal), ("both ways", none)):
        yield Case(f"both, {kind}", {**attrs, "end_of_text": 0, "padding": 9}, both)
    yield Case("one id for both", {**causal, "end_of_text": 0, "padding": 0}, packed)
    yield Case("neither", causal, packed)
    yield Case("only ends", {**causal, "end_of_text": 3}, a("u8", [[3, 3, 3]]))
    yield Case("one place", {**causal, "end_of_text": 3, "padding": 4}, a("u8", [[3], [4], [5]]))
    yield Case("ids beyond int32", causal, a("i64", [[2**31, -(2**63), 2**63 - 1, -1]]))


def keep_span_cases() -> Iterator[Case]:
    x = draw(64, "i32", 6, 4)
    spans = a("i32", [0, 1], [1, 4], [2, 2])
    yield Case("spans of every other row", {"fill": -(2**31)}, (x, 10), spans)
    yield Case("one span", {"fill": 0}, (x, 16), a("i32", [[1, 3]]))
    wide = a("i32", [-5, 2], [3, 99], [4, 1], [-(2**31), 2**31 - 1], [0, 0], [4, 4])
    yield Case("spans beyond the row, and empty ones", {"fill": 7}, x, wide)
    yield Case("bytes", {"fill": 255}, a("u8", [[1, 2, 3]]), a("i32", [[1, 2]]))
    yield Case("int64", {"fill": 1 - 2**60}, a("i64", [[1, 2, 3]]), a("i32", [[0, 2]]))


def softmax_grad_cases() -> Iterator[Case]:
    p = a("i16", [16384, 0, 0], [5461, 5461, 5462], [0, 0, 0], [8192, 8191, 1])
    yield Case("probabilities", {}, (p, 14), (draw(65, "i16", 4, 3), 9))
    yield Case("one class", {}, (a("i16", [[16384]]), 14), (a("i16", [[-32639]]), -3))
    ends = draw(66, "i16", 2, 5)
    yield Case("any numbers", {}, (ends, 14), (draw(67, "i16", 2, 5), 0))


def sub_one_hot_cases() -> Iterator[Case]:
    p = draw(19, "i16", 5, 3, lo=0, hi=2**14)
    for dtype, labels in (("u8", [0, 1, 2, 3, 255]), ("i32", [-1, -(2**31), 2**31 - 1, 1, 2])):
        yield Case(f"labels of {dtype}, clamped", {}, (p, 14), a(dtype, labels))


def logit_grad_cases() -> Iterator[Case]:
    e = a("i32", [[65536, 0, 0], [65536, 65536, 65536], [65536, 1, 2], [65536, 32768, 3]])
    sums = e.sum(axis=1, dtype=np.int64)
    for dtype, labels in (("u8", [0, 1, 2, 255]), ("i32", [-1, -(2**31), 2**31 - 1, 1])):
        yield Case(f"labels of {dtype}, clamped", {}, (e, 16), (sums, 16), a(dtype, labels))
    tie = a("i32", [[1, 3], [5, 27]])  # 2^29 e / S = k + 1/2 for S = 2^30: rounded up
    inputs = (tie, 16), (a("i64", [2**30, 2**30]), 16), a("u8", [0, 1])
    yield Case("halves", {}, *inputs)
    inputs = (a("i32", [[0, 0]]), 16), (a("i64", [0]), 16), a("u8", [1])
    yield Case("a sum of zero counts as one", {}, *inputs)
    # Shares of 4, and of 4 less 1 at the label, which alone is within 32 bits.
    inputs = (a("i32", [[4, 4, 3]]), 16), (a("i64", [1]), 16), a("u8", [1])
    yield Case("more than the sum", {}, *inputs)
    many = np.full((1, 3000), 65536, np.int32)
    inputs = (many, 16), (many.sum(axis=1, dtype=np.int64), 16), a("i64", [2999])
    yield Case("many classes", {}, *inputs)


def cross_entropy_cases() -> Iterator[Case]:
    totals = [0, 1, 2, 1023, 1024, 1025, 2**11 - 1, 65536, 98304, 2**20 + 2**9, 2**59, 2**60 - 1]
    z = draw(20, "i32", len(totals), 3, lo=-(2**15), hi=2**15)
    labels = a("u8", [i % 4 for i in range(len(totals))])
    inputs = (z, 10), (z.max(axis=1), 10), (a("i64", totals), 16), labels
    yield Case("sums of every size", {}, *inputs)


def square_sum_cases() -> Iterator[Case]:
    for exponent in (-3, 0, 8, 9, 15, 40):
        x = draw(21, "i16", 2, 4)
        yield Case(f"exponent {exponent}", {"shift": 2 * exponent - 16}, (x, exponent))


def sum_cases() -> Iterator[Case]:
    yield Case("int64", {}, draw(22, "i64", 6, lo=-(2**57), hi=2**57))
    yield Case("an image of int16", {}, draw(23, "i16", 2, 3, 2))


def center_cases() -> Iterator[Case]:
    ends = a("i16", [[-32768, 32767, 0, 5], [7, 7, 7, 7]])
    for shift in (0, 1, 2, 32):
        yield Case(f"shift {shift}", {"shift": shift}, (ends, 12))
    yield Case("one column", {"shift": 0}, (a("i16", [[-32768], [32767], [3]]), -3))
    yield Case("three axes", {"shift": 1}, (draw(71, "i16", 2, 2, 3), 9))
    yield Case("a vector", {"shift": 3}, (draw(72, "i16", 7, lo=-9, hi=9), 0))


def row_dot_cases() -> Iterator[Case]:
    x = draw(73, "i16", 2, 3, 5)
    yield Case("squares", {}, (x, 12), (x, 12))
    yield Case("ends of int32", {}, a("i32", [[-(2**31), 2**31 - 1]]), a("i32", [[1, -1]]))
    yield Case("narrow", {}, (draw(74, "u8", 3, 4), 1), (draw(75, "i8", 3, 4), -2))
    yield Case("one column", {}, a("i16", [[-32768], [3]]), a("i16", [[-32768], [-5]]))
    yield Case("a vector", {}, a("i32", [1, 2, 3]), a("i16", [4, 5, -6]))


def inverse_root_cases() -> Iterator[Case]:
    def attrs(epsilon: int, lift: int, numerator: int, exponent: int = 30) -> Attrs:
        return {
            "epsilon": epsilon,
            "lift": lift,
            "numerator": numerator,
            "numerator_exponent": exponent,
        }

    # Roots around squares: 2^30 - 1 squared, one less and one more, and the largest radicand.
    near = [0, 3, 8, 15, (2**30 - 1) ** 2 - 1, (2**30 - 1) ** 2, 2**60 - 1]
    yield Case("squares and their neighbours", attrs(1, 0, 2**59), (a("i64", near), 2))
    small = a("i64", [[-5, 0, 1], [2, 2**20, 2**36 - 1]])
    yield Case("lifted", attrs(1, 12, 2**44), (small, 24))
    yield Case("epsilon of a norm", attrs(168 * 64, 9, 2**50 + 1), (small, -6))
    yield Case("the largest of all", attrs(3, 30, 2**62), (a("i64", [0]), 0))
    yield Case("a quotient of zero", attrs(2**60, 0, 1, -64), (a("i64", 2**59), 0))


def row_scale_cases() -> Iterator[Case]:
    ends = a("i16", [[-32768, 32767, 1], [0, -1, 5]])
    yield Case("ends of int16", {}, (ends, 12), (a("i64", [2**44, -(2**44)]), 30))
    yield Case("three axes", {}, (draw(76, "i32", 2, 2, 3), 5), (draw(77, "i8", 2, 2), -1))
    yield Case("a vector", {}, a("u8", [0, 255, 7]), a("i32", -(2**31)))


def column_scale_cases() -> Iterator[Case]:
    ends = a("i16", [[-32768, 32767, 1], [0, -1, 5]])
    yield Case("ends of int16", {}, (ends, 12), (a("i16", [-32768, 32767, 3]), 13))
    wide = draw(78, "i64", 2, 2, 3, lo=-(2**40), hi=2**40)
    yield Case("three axes", {}, (wide, 5), (draw(79, "i8", 3), -1))
    yield Case("a vector", {}, a("u8", [0, 255, 7]), a("i32", [-(2**31), 2**31 - 1, 3]))


def momentum_cases() -> Iterator[Case]:
    edges = [1 - 2**31, 2**31 - 1, 0, 1, -1, 5, -5, 7]
    for decay in (0, 1, 6554, 65536):
        for shift in (-20, 0, 1, 4, 64):
            grad = draw(24, "i64", 8, lo=-(2**38), hi=2**38)
            attrs: Attrs = {"decay": decay, "shift": shift}
            inputs = (a("i32", edges), 16), (grad, 16 + shift)
            yield Case(f"decay {decay}, shift {shift}", attrs, *inputs)


def sgd_update_cases() -> Iterator[Case]:
    weight = a("i32", [1 - 2**31, 2**31 - 1, 0, 1, -1])
    velocity = a("i32", [2**31 - 1, 1 - 2**31, 3, -3, 2**20])
    for shift in (-8, 0, 1, 14, 16, 64):
        for rate in (0, 1, 65535):
            inputs = (weight, 24), (velocity, 16), (a("i64", rate), 8 + shift)
            yield Case(f"shift {shift}, rate {rate}", {"shift": shift}, *inputs)


SHARES = ((0, 0), (1, 0), (1, 1), (6554, 16), (65536, 16), (33554, 25), (1, 46))


def adam_mean_cases() -> Iterator[Case]:
    mean = a("i32", [1 - 2**31, 2**31 - 1, 0, 1, -1, 5, -5, 2**20])
    grad = a("i16", [-32639, 32639, 1, 0, 0, 7, 7, -32639])
    for lift in (0, 8, 15):
        for rate, shift in SHARES:
            attrs: Attrs = {"lift": lift, "rate": rate, "shift": shift}
            yield Case(f"lift {lift}, {rate} of 2^{shift}", attrs, (mean, 9 + lift), (grad, 9))


def adam_square_cases() -> Iterator[Case]:
    square = a("i64", [0, 2**46, 1, 499, 500, 501, 2**46, 2**30])
    grad = a("i16", [32639, 0, -1, 0, 0, 0, -32639, 128])
    for rate, shift in SHARES:
        attrs: Attrs = {"rate": rate, "shift": shift}
        yield Case(f"{rate} of 2^{shift}", attrs, (square, 34), (grad, 9))


def adam_direction_cases() -> Iterator[Case]:
    mean = a("i32", [1 - 2**31, 2**31 - 1, 1, -1, -1, 12345, -12345, 2**31 - 1])
    square = a("i64", [0, 2**46, 0, 0, 1, 99, 100, 2**46 - 1])
    for epsilon in (1, 1000, 2**31):
        for shift in (0, 17, 31):
            attrs: Attrs = {"epsilon": epsilon, "shift": shift}
            yield Case(f"epsilon {epsilon}, shift {shift}", attrs, (mean, 24), (square, 34))


def tensor_digest_cases() -> Iterator[Case]:
    for count in (1, 1023, 1024, 1025, 3 * 1024 + 1):
        yield Case(f"{count} bytes", {}, draw(25, "u8", count))
    yield Case("little-endian", {}, a("i64", [[1, -1], [2**40, -(2**40)]]))
    yield Case("a scalar", {}, a("i64", 7))


def digest(key: int) -> Array:
    return draw(key, "u8", 32)


def batch_digest_cases() -> Iterator[Case]:
    yield Case("x, y", {}, digest(26), digest(27))


def state_leaf_cases() -> Iterator[Case]:
    attrs: Attrs = {"name": "param/größe", "dtype": "i32", "shape": (3, 2), "exponent": 24}
    yield Case("a tensor", attrs, digest(28))
    yield Case("a scalar", {**attrs, "shape": (), "dtype": "i64", "exponent": -1}, digest(29))


def state_root_cases() -> Iterator[Case]:
    for count in (0, 1, 2, 3, 5):
        yield Case(f"{count} leaves", {}, *[digest(30 + i) for i in range(count)])


def record_cases() -> Iterator[Case]:
    for step in (1, 2, 3, 2**40, 0, -6, -7, 2**48 + 1, -(2**63)):
        inputs = a("i64", step), digest(40), a("i64", -(2**50) + step % 2**40), digest(41)
        yield Case(f"step {step}, every 3", {"commit_every": 3}, *inputs)


OPERATORS: dict[str, Callable[[], Iterator[Case]]] = {
    name.removesuffix("_cases"): value
    for name, value in list(globals().items())
    if name.endswith("_cases") and name != "align_cases"
} | {"add": align_cases, "sub": align_cases}


def make_operator(op: str) -> Json:
    return {"op": op, "cases": [case.to_json(op) for case in OPERATORS[op]()]}


# --- a whole step

STEPS = 5
EXPONENTS = {
    "conv.weight": 14, "conv/rows": 12, "fc.weight": 13, "fc": 11, "pool/grad": 13, "relu/grad": 13,
}  # fmt: skip


def make_step_graph() -> tuple[StepGraph, Samples, dict[str, Array]]:
    """A 5x5 image, a 2x2 convolution to two channels, ReLU, 2x2 max pooling, three classes."""
    params = {
        "conv.weight": draw(50, "i32", 2, 2, 2, 1, lo=-(2**23), hi=2**23),
        "conv.bias": draw(51, "i32", 2, lo=-(2**20), hi=2**20),
        "fc.weight": draw(52, "i32", 3, 8, lo=-(2**23), hi=2**23),
        "fc.bias": np.zeros(3, np.int32),
    }
    layers = (
        Conv("conv", "image", "conv.weight", "conv.bias", Window((2, 2), (1, 1), (0, 0, 0, 0))),
        Relu("relu", "conv"),
        MaxPool("pool", "relu", Window((2, 2), (2, 2), (0, 0, 0, 0))),
        Reshape("flat", "pool", (8,)),
        Linear("fc", "flat", "fc.weight", "fc.bias", True),
    )
    x, y = draw(53, "u8", 7, 25), draw(54, "u8", 7, 1, lo=0, hi=2)
    table = np.concatenate([x, y], axis=1)
    root = merkle.compute_root(domains.SAMPLES, [row.tobytes() for row in table])
    data = DataSpec(root, 7, "u8", (1, 5, 5), 0, "u8", (), 0)
    plan = StepPlan(
        data=data,
        prepare=Affine(multiplier=257, offset=-(2**15), shift=1, exponent=15),
        loss="cross_entropy",
        optimizer=Momentum(decay=6554, starts=(0, 3), rates=(54613, 5461), exponent=21),
        seed=2**63 + 5,
        batch=3,
        commit_every=2,
    )
    builder = GraphBuilder(FixedExponents(EXPONENTS))
    emit_step(builder, plan, Model("image", (1, 5, 5), layers, "fc", params))
    graph = builder.graph()
    check_graph(graph)
    return graph, Samples(data, table), dict(compute_initial_state(params))


def state_to_json(graph: StepGraph, state: dict[str, Array]) -> Json:
    leaves, tensors = [], []
    for name in sorted(state, key=str.encode):
        tensor, value = graph.type_of(graph.states()[name]), state[name]
        leaf = StateLeaf(
            name=name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            exponent=tensor.exponent,
            digest=compute_tensor_digest(value),
        )
        leaves.append(compute_state_leaf(leaf))
        tensors.append({"name": name, "exponent": tensor.exponent, **array_to_json(value)})
    return {"root": compute_state_root(leaves).hex(), "tensors": tensors}


def make_step() -> Json:
    graph, samples, state = make_step_graph()
    content: dict[str, Json] = {
        "graph": encode_graph(graph).hex(),
        "graph_root": compute_graph_root(graph).hex(),
        "samples": {
            "root": samples.spec.root.hex(),
            "x": {"dtype": samples.spec.x_dtype, "shape": list(samples.spec.x_shape)},
            "y": {"dtype": samples.spec.y_dtype, "shape": list(samples.spec.y_shape)},
            "rows": [row.tobytes().hex() for row in samples.table],
        },
        "initial_state": state_to_json(graph, state),
        "records": [],
        "traces": [],
    }
    node = graph.nodes[graph.find("record")]
    records = []
    for _ in range(STEPS):
        values: list[Array] = []
        for other in graph.nodes:
            inputs = [values[ref.node] for ref in other.inputs]
            values.append(apply_node(other, inputs, state, samples))
        count, batch_digest, loss, root = (values[ref.node] for ref in node.inputs)
        record = StepRecord(int(count), batch_digest.tobytes(), int(loss), root.tobytes())
        commits = record.step % int(str(node.attrs["commit_every"])) == 0
        records.append(record if commits else replace(record, state_root=b""))
        digests = [compute_tensor_digest(value) for value in values]
        content["records"].append(record_to_json(records[-1]))
        content["traces"].append(
            {"root": compute_trace_root(digests).hex(), "digests": [d.hex() for d in digests]}
        )
        state = {name: values[ref.node] for name, ref in graph.next_states().items()}
    leaves = [encode_record(record) for record in records]
    content["log_root"] = merkle.compute_root(domains.RUN_LOG, leaves).hex()
    content["final_state"] = state_to_json(graph, state)
    return content


def record_to_json(record: StepRecord) -> Json:
    return {
        "step": record.step,
        "batch_digest": record.batch_digest.hex(),
        "loss": str(record.loss),
        "state_root": record.state_root.hex(),
        "encoding": encode_record(record).hex(),
    }


def format_json(value: Json, indent: str = "") -> str:
    """JSON with lists of numbers or texts, and maps of them, on one line where they fit one."""
    line = json.dumps(value)
    children = value if isinstance(value, list) else [value[k] for k in value]
    is_flat = not any(isinstance(child, list | dict) for child in children)
    if (isinstance(value, list) and is_flat) or len(line) + len(indent) <= 100:
        return line
    inner = indent + " "

    def entry(child: Json) -> str:
        return format_json(child, inner) if isinstance(child, list | dict) else json.dumps(child)

    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + entry(child) for child in value) + f"\n{indent}]"
    pairs = (f"{inner}{json.dumps(key)}: {entry(child)}" for key, child in value.items())
    return "{\n" + ",\n".join(pairs) + f"\n{indent}}}"


def main() -> int:
    """Write or compare every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    missing = sorted(TABLE.keys() - OPERATORS.keys())
    for op in missing:
        sys.stderr.write(f"{op} has no cases: define {op}_cases() in {__file__}\n")
    if missing:
        return 1
    files = {
        FOLDER / "ops" / f"{op}.json": format_json(make_operator(op)) + "\n" for op in OPERATORS
    }
    files[FOLDER / "step.json"] = format_json(make_step()) + "\n"
    stale = [path for path in (FOLDER / "ops").glob("*.json") if path not in files]
    if not check:
        (FOLDER / "ops").mkdir(exist_ok=True)
        for path in stale:
            path.unlink()
        for path, text in files.items():
            path.write_text(text)
        return 0
    stale += [p for p, text in files.items() if not p.is_file() or p.read_text() != text]
    for path in stale:
        sys.stderr.write(f"{path.relative_to(FOLDER)} is not what the law gives\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
