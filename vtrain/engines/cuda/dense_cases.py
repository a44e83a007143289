"""Small and large products on which the kernels of ``vtrain.engines.cuda.dense`` are tried.

A case has the launches that serve, and readable ones that give the same from the same operands;
``vtrain.engines.cuda.selfcheck`` runs both and compares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from vtrain.engines.cuda.dense import (
    BIAS,
    COUNTER,
    OUT,
    TURNED,
    Form,
    PlanProduct,
    Product,
    bind_operands,
    make_narrow,
)
from vtrain.engines.cuda.gemm import CLEAR, FINISH, GATHERED, LONGEST_SUM, SUMS, TILE, plan_finish
from vtrain.engines.cuda.launch import Arg, Launch, Operand, Scratch
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.plan import Counter, Planned, PlannedArg, Value, bind
from vtrain.engines.cuda.selfcheck import Case, Drawn, boundary_values, draw_later
from vtrain.errors import GraphError
from vtrain.ops.layout import Window
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.wire.graph import Attrs, Node, TensorType

Array = npt.NDArray[Any]

SMALL = (131, 261, 139)
"""Rows, terms and columns of the products that kernels are tried on: no tile is whole."""
WHOLE = (136, 1416, 144)
"""The same where whole tiles and packs of eight elements are: other loads and stores do those, and
one block goes round its stages more than once."""
LONG = 1061
"""Terms, at least, of those that several blocks add up: nine tiles."""
AREA = (1288, 104, 1032)
"""Rows, terms and columns of a product of many tiles each way, more than 2^20 sums in all."""
DEEP = (1160, 4200, 400)
"""The same of many terms, where a block goes round its stages many times.  Of the last tiles of
both, each of the four parts has terms."""
SPLIT = (131, 4168, 139)
"""The same of which several blocks add up the terms; three parts of the last tile have some."""
EXTREME, EXTREME_ODD = (45, LONGEST_SUM, 48), (45, LONGEST_SUM, 45)
"""The same of as many terms as a block adds, all operands at :data:`EDGES`; in the second, packs of
results are not whole."""
STACK, LARGE_STACK = (3,), (2,)
"""The stack of matrices that small products are tried with, and large ones, where the product is
one of stacks."""
EDGES = (-32513, 32767, -1, -32768, 255, 127, 1, -32640, -128)
"""Operands whose bytes are extreme, and the sums of their products with them.  They are nine: in
rows of them each stands at every place of a pack."""
SUMS_SHAPES = ((37, 7), (301, 7))
"""Rows and columns of sums that are narrowed by themselves."""
LARGE_SUMS_SHAPES = (*SUMS_SHAPES, (1201, 907))
"""The same where kernels are fast."""
SMALL_IMAGE = (2, 9, 10, 5)
"""The most of an image whose patches are tried; at least its window fits."""
LARGE_IMAGE = (66, 5, 3)
"""Images, height and width of larger ones, whose windows are at most 3 x 3."""
MOST_PATCHES = 1 << 26
"""Elements of patches that a case may have."""


class _Twin:
    """The readable launches of a case, and what they work on.

    Values: 0 and 1 are the operands, 2 is the bias, then comes what each node puts out.  Inputs are
    drawn with ``seed``; ``extreme``: operands are :data:`EDGES`.
    """

    def __init__(self, seed: int, *, extreme: bool = False) -> None:
        self._seed, self._extreme = seed, extreme
        self.arrays: dict[int, Drawn] = {}
        self.sizes: dict[int, int] = {}
        self.launches: list[Planned] = []
        self.counted: tuple[int, ...] = ()
        self._last = 2

    def add(
        self, node: Node, inputs: Sequence[int], types: Sequence[TensorType], out: TensorType
    ) -> int:
        """The value that ``node`` puts out."""
        self._last += 1
        self.sizes[self._last] = out.byte_length
        step = replace(node, outputs=(out,))
        self.launches += (bind(launch, self._last, inputs) for launch in lower(step, types))
        return self._last

    def multiply(self, form: Form) -> tuple[int, TensorType]:
        """The sums of the product alone, of drawn operands."""
        for position, operand in enumerate(form.operands):
            make = (
                partial(_draw_edges, form, position)
                if self._extreme
                else partial(_draw, operand, self._seed + position)
            )
            self.arrays[position] = Drawn(operand.byte_length, make)
        matrices, types = [], []
        for position in (0, 1):
            window, operand = form.windows[position], form.operands[position]
            if window is None:
                matrices.append(position)
                types.append(operand)
            else:
                types.append(form.matrix(position))
                matrices.append(self.add(window, [position], [operand], types[-1]))
        out = TensorType("i64", (*form.stack, form.rows, form.columns), 0, 0, 0)
        return self.add(form.matmul, matrices, types, out), out

    def follow(self, followers: Sequence[Node], value: int, out: TensorType) -> int:
        """What ``followers`` make of the sums ``value``."""
        for node in followers:
            inputs, seen = [value], [out]
            if node.op == "add_bias":
                bias = TensorType("i32", out.shape[-1:], 0, 0, 0)
                self.arrays[2] = draw_later(bias, self._seed + 2)
                inputs, seen = [value, 2], [out, bias]
            out = replace(out, dtype=node.outputs[0].dtype)
            value = self.add(node, inputs, seen, out)
            if node.op == "rescale":
                self.counted = (value,)
        return value

    def compare(
        self, launches: Sequence[Launch], value: int, also: Mapping[Arg, PlannedArg] | None = None
    ) -> Case:
        """The case in which ``launches`` give ``value`` at :data:`OUT`; ``also``: more places."""
        pointers: dict[Arg, PlannedArg] = {
            Operand(0): Value(0),
            Operand(1): Value(1),
            BIAS: Value(2),
            COUNTER: Counter(self.counted[0] if self.counted else 0),
            OUT: Value(value),
            **(also or {}),
        }
        fast = tuple(bind_operands(launch, pointers) for launch in launches)
        readable = tuple(self.launches)
        return Case(self.arrays, self.sizes, fast, readable, (value,), self.counted)


def small_case(form: Form, plan: PlanProduct, seed: int = 0) -> Case | None:
    """The product on small operands of boundary values, by ``plan`` and by readable kernels.

    None where ``plan`` has nothing for it.  GraphError, here and below, for windows that no case
    can have (:func:`can_be_tried`).
    """
    return _compare_all(_shrink(form, SMALL), plan, _Twin(seed))


def whole_case(form: Form, plan: PlanProduct, seed: int = 0) -> Case | None:
    """The same with the extents :data:`WHOLE`."""
    return _compare_all(_shrink(form, WHOLE, whole=True), plan, _Twin(seed))


def large_cases(
    form: Form, plan: PlanProduct, plan_split: PlanProduct, seed: int = 0
) -> Iterator[Case]:
    """The same by a device, which takes milliseconds for it: with :data:`AREA`, :data:`EXTREME`,
    :data:`EXTREME_ODD` and :data:`DEEP`, and with :data:`SPLIT` by ``plan_split``, for a device of
    many processors.

    Windows are others, small ones of many images: how large a product is, is tried here.
    """
    cases = [
        _compare_all(_enlarge(form, AREA), plan, _Twin(seed)),
        _compare_all(_enlarge(form, EXTREME), plan, _Twin(seed, extreme=True)),
        _compare_all(_enlarge(form, EXTREME_ODD), plan, _Twin(seed, extreme=True)),
        _compare_sums(_enlarge(form, SPLIT), plan_split, seed),
        _compare_all(_enlarge(form, DEEP), plan, _Twin(seed)),
    ]
    yield from (case for case in cases if case is not None)


def _compare_all(small: Form, plan: PlanProduct, twin: _Twin) -> Case | None:
    launches = small.plan(plan)
    if launches is None:
        return None
    value = twin.follow(small.followers, *twin.multiply(small))
    return twin.compare(launches, value)


def long_case(form: Form, plan: PlanProduct, seed: int = 0) -> Case | None:
    """The sums of a product so long that ``plan``, for a device of many processors, has several
    blocks add them up.  None where it has nothing for it, or one block does it all.

    What becomes of the sums is left out: another kernel does that (:func:`finish_cases`).
    """
    rows, _, columns = SMALL
    return _compare_sums(_shrink(form, (rows, LONG, columns)), plan, seed)


def _compare_sums(small: Form, plan: PlanProduct, seed: int) -> Case | None:
    twin = _Twin(seed)
    launches = small.plan(plan)
    if launches is None or all(launch.kernel != CLEAR for launch in launches):
        return None
    value, _ = twin.multiply(small)
    product = [launch for launch in launches if launch.kernel != FINISH]
    sums = Scratch(8 * small.batch * small.rows * small.columns, SUMS)
    # Where they are not narrowed, they are the result.
    return twin.compare(product, value, {sums: Value(value)})


def finish_cases(large: bool = False, seed: int = 0) -> Iterator[Case]:
    """What narrows the sums of several blocks, on sums of boundary values."""
    ways = [("i16", None, 1, 20, False), ("i16", -9, 1, 46, True), ("i32", 3, 29_127, 38, False)]
    shapes = LARGE_SUMS_SHAPES if large else SUMS_SHAPES
    for shape, (dtype, bias_shift, multiplier, shift, relu) in itertools.product(shapes, ways):
        rows, columns = shape
        out = TensorType("i64", shape, 0, 0, 0)
        attrs: Attrs = {"dtype": dtype, "multiplier": multiplier, "shift": shift}
        narrow_type = replace(out, dtype=dtype)
        followers = [Node("rescale", "rescale", attrs, (), (narrow_type,))]
        if bias_shift is not None:
            followers.insert(0, Node("bias", "add_bias", {"shift": bias_shift}, (), (out,)))
        if relu:
            followers.append(Node("relu", "relu", {}, (), (narrow_type,)))
        twin = _Twin(seed)
        twin.arrays[0] = draw_later(out, seed)
        value = twin.follow(followers, 0, out)
        launch = plan_finish(rows * columns, columns, Operand(0), make_narrow(followers))
        yield twin.compare([launch], value)


def turn_cases(gradient: Product, seed: int = 0) -> Iterator[Case]:
    """What turns a convolution's kernel (``gradient.turn``), as part of the gradient of an image:
    by readable kernels from what was turned, and by ``col2im`` from what was not."""
    turn, turned = gradient.turn, gradient.form.windows[0]
    if turn is None or turned is None:
        return
    window = Window.from_attrs(turned.attrs)
    (down, across), (top, left, bottom, right) = window.kernel, window.pads
    extents = [((2, down + 3, across + 4), (6, 5)), ((1, *_find_least(window)), (2, 2))]
    images, outputs, channels = next(
        (
            (images, min(turn.outputs, most[0]), min(turn.channels, most[1]))
            for images, most in extents
            if _count_patches(window, (*images, most[0])) <= MOST_PATCHES
            # Of the other way there are sums, of int64.
            and 4 * math.prod(images) * window.area * most[1] <= MOST_PATCHES
        ),
        ((), 0, 0),
    )
    if not images:
        raise _make_too_large()
    gradients = TensorType("i16", (*images, outputs), 0, *STORAGE["i16"])
    _, height, width, _ = window.pooled_shape(gradients.shape)
    shape = (images[0], height, width, channels)
    rows, terms = gradients.size // outputs, window.area * outputs
    kernel = TensorType(turn.dtype, (outputs, window.area * channels), 0, *STORAGE[turn.dtype])
    pads = (down - 1 - top, across - 1 - left, down - 1 - bottom, across - 1 - right)
    scatter: Attrs = {"kernel": window.kernel, "strides": (1, 1), "pads": pads, "shape": shape}
    matmul = Node("product", "matmul", {"transpose_a": 0, "transpose_b": 0}, (), ())

    def multiply(a: TensorType, b: TensorType) -> tuple[Node, tuple[TensorType, TensorType]]:
        out = TensorType("i64", (a.shape[0], b.shape[1]), 0, 0, 0)
        return replace(matmul, outputs=(out,)), (a, b)

    flat = replace(gradients, shape=(rows, outputs))
    sums = TensorType("i64", (rows, kernel.shape[1]), 0, 0, 0)
    image = TensorType("i64", shape, 0, 0, 0)
    matrix = replace(gradients, shape=(image.size // channels, terms))
    small = replace(turn, outputs=outputs, channels=channels)
    result = replace(kernel, shape=(terms, channels))
    # Values: the gradients, the kernel; the turned one, patches, the image; the sums.
    pointers: dict[Arg, PlannedArg] = {TURNED: Value(1), small.result: Value(2)}
    patches = replace(turned, outputs=(matrix,))
    back = Node("back", "col2im", scatter, (), (image,))
    fast = [
        bind_operands(small.launch(), pointers),
        *(bind(launch, 3, (0,)) for launch in lower(patches, [gradients])),
        *(bind(launch, 4, (3, 2)) for launch in lower(*multiply(matrix, result))),
    ]
    readable = [
        *(bind(launch, 5, (0, 1)) for launch in lower(*multiply(flat, kernel))),
        *(bind(launch, 4, (5,)) for launch in lower(back, [sums])),
    ]
    values = (result, matrix, image, sums)
    sizes = {at: tensor.byte_length for at, tensor in enumerate(values, 2)}
    arrays = {0: draw_later(gradients, seed), 1: draw_later(kernel, seed + 1)}
    yield Case(arrays, sizes, tuple(fast), tuple(readable), (4,))


def _shrink(form: Form, most: tuple[int, int, int], *, whole: bool = False) -> Form:
    """The same product with at most the rows and columns of ``most``, so that a narrow one is still
    narrow, and its terms.

    An image has them at least if there are more than those of :data:`SMALL`; ``whole``: its patches
    have a whole tile where those of ``form`` have one.
    """
    rows, terms, columns = most
    rows, columns = min(rows, form.rows), min(columns, form.columns)
    least = terms if terms > SMALL[1] else 1
    operands = list(form.operands)
    windowed = [position for position in (0, 1) if form.windows[position] is not None]
    for position in windowed:
        extent = (form.rows, form.columns)[position]
        operands[position] = _shrink_image(
            form, position, least, TILE if whole and extent >= TILE else 1
        )
        matrix = replace(form, operands=(operands[0], operands[1])).matrix(position)
        along = matrix.shape[::-1] if form.is_turned(position) else matrix.shape
        if position == 0:
            rows, terms = along
        elif windowed == [1]:
            terms, columns = along
    for position, (down, across) in ((0, (rows, terms)), (1, (terms, columns))):
        if position not in windowed:
            operands[position] = _reshape(form, position, (down, across), STACK)
    small = replace(form, operands=(operands[0], operands[1]))
    if small.terms(0) != small.terms(1):
        raise GraphError("windows of both operands do not fit each other", where="self-check")
    return small


def _reshape(
    form: Form, position: int, extents: tuple[int, int], stack: tuple[int, ...]
) -> TensorType:
    """The operand as a matrix of these extents, stored as it is; of more than one in a stack, as
    ``stack``."""
    matrix = extents[::-1] if form.is_turned(position) else extents
    leading = stack if form.batch > 1 else tuple(1 for _ in form.stack)
    return replace(form.operands[position], shape=(*leading, *matrix))


def can_be_tried(found: Product) -> bool:
    """Are there cases for its form, and for what turns its kernel?  Windows may be so large that
    the patches of a single one of them are too many."""
    try:
        for most, whole in ((SMALL, False), (WHOLE, True), ((SMALL[0], LONG, SMALL[2]), False)):
            _shrink(found.form, most, whole=whole)
        list(turn_cases(found))
    except GraphError:
        return False
    return True


def _enlarge(form: Form, extents: tuple[int, int, int]) -> Form:
    """A product of these rows, terms and columns that is done as ``form`` is.

    What has no more than a tile of rows, or columns, keeps them: there may be another kernel for
    it.  Of patches there are as many or a few more, and one operand of two has them.
    """
    rows, terms, columns = extents
    rows = rows if form.rows > TILE else min(rows, form.rows)
    columns = columns if form.columns > TILE else min(columns, form.columns)
    windowed = next((at for at in (0, 1) if form.windows[at] is not None), None)
    large = form
    if windowed is not None:
        large = _enlarge_image(form, windowed, (rows, columns)[windowed], terms)
        terms = large.terms(windowed)
        if windowed == 0:
            rows = large.rows
        else:
            columns = large.columns
    operands, windows = list(large.operands), list(large.windows)
    for position, (down, across) in ((0, (rows, terms)), (1, (terms, columns))):
        if position != windowed:
            operands[position] = _reshape(form, position, (down, across), LARGE_STACK)
            windows[position] = None
    return replace(form, operands=(operands[0], operands[1]), windows=(windows[0], windows[1]))


def _enlarge_image(form: Form, position: int, extent: int, terms: int) -> Form:
    """``form`` with an image of as many windows, and places in one, as these are."""
    node, image = form.windows[position], form.operands[position]
    if node is None:
        return form
    images, height, width = LARGE_IMAGE
    given = Window.from_attrs(node.attrs)
    kernel = (min(given.kernel[0], 3), min(given.kernel[1], 3))
    pads = tuple(min(pad, kernel[at % 2] - 1) for at, pad in enumerate(given.pads))
    strides = (min(given.strides[0], 2), min(given.strides[1], 2))
    window = Window.from_attrs({"kernel": kernel, "strides": strides, "pads": pads})
    pack = _find_pack(image.shape[3])
    _, down, across, _ = window.pooled_shape((1, height, width, pack))
    if form.is_turned(position) == (position == 0):
        # Terms are windows.
        images = _count_terms(down * across, terms, 1 if terms == LONGEST_SUM else images)
        channels = _count_channels(-(-extent // window.area), pack)
    else:
        few, least = extent // 4, max(images, -(-extent // (down * across)))
        images = few if terms == LONGEST_SUM else least + -least % 4
        channels = _count_terms(window.area, terms, pack, pack)
    attrs: Attrs = {"kernel": kernel, "strides": strides, "pads": pads}
    operands, windows = list(form.operands), list(form.windows)
    operands[position] = replace(image, shape=(images, height, width, channels))
    windows[position] = replace(node, attrs=attrs)
    return replace(form, operands=(operands[0], operands[1]), windows=(windows[0], windows[1]))


def _count_terms(each: int, terms: int, least: int, pack: int | None = None) -> int:
    """How many times ``each`` make ``terms``: just as many if a block adds no more, else a few
    more, so that the last tile has terms in all of its four parts, if that can be.

    ``pack``: the number is one of channels of which so many are loaded at a time.
    """
    if terms == LONGEST_SUM:
        numbers = range(max(least, terms // each), 0, -1)
    else:
        first = max(least, -(-terms // each))
        numbers = range(first, first + 2 * TILE)
    fitting = [number for number in numbers if pack in (None, _find_pack(number))]
    full = (number for number in fitting if number * each % TILE > TILE * 3 // 4)
    return fitting[0] if terms == LONGEST_SUM else next(full, fitting[0])


def _count_channels(needed: int, pack: int) -> int:
    """At least so many channels of which ``pack`` are loaded at a time."""
    channels = pack
    while channels < needed or _find_pack(channels) != pack:
        channels += pack
    return channels


def _find_least(window: Window) -> tuple[int, int]:
    """Height and width of the smallest image that has a window."""
    (down, across), (top, left, bottom, right) = window.kernel, window.pads
    return max(1, down - top - bottom), max(1, across - left - right)


def _count_patches(window: Window, image: tuple[int, ...]) -> int:
    """Elements of an image's patches, however many they are."""
    images, height, width, channels = image
    (down, across), (top, left, bottom, right) = window.kernel, window.pads
    rows = (height + top + bottom - down) // window.strides[0] + 1
    columns = (width + left + right - across) // window.strides[1] + 1
    return images * rows * columns * window.area * channels


def _make_too_large() -> GraphError:
    return GraphError("has too many patches for a case", where="self-check")


def _shrink_image(form: Form, position: int, terms: int, extent: int) -> TensorType:
    """An image of :data:`SMALL_IMAGE`, with more images or channels if ``terms`` or ``extent`` of
    its matrix need them."""
    window = Window.from_attrs(form.windows[position].attrs)  # type: ignore[union-attr]
    images, height, width, few = SMALL_IMAGE
    height, width = max(height, window.kernel[0]), max(width, window.kernel[1])
    image = form.operands[position]
    pack = _find_pack(image.shape[3])
    # Of a matrix, one side is windows and the other is what is in one.
    along = form.is_turned(position) == (position == 0)
    windows, places = (terms, extent) if along else (extent, terms)
    channels = pack if pack > 1 else min(few, image.shape[3])
    channels = _count_channels(max(channels, -(-places // window.area)), pack)
    for size in ((images, height, width, channels), (1, *_find_least(window), channels)):
        each = _count_patches(window, (1, *size[1:])) // (window.area * channels)
        shape = (max(size[0], -(-windows // each)), *size[1:])
        if _count_patches(window, shape) <= MOST_PATCHES:
            return replace(image, shape=shape)
    raise _make_too_large()


def _find_pack(channels: int) -> int:
    """Channels that are loaded at a time, or columns that are stored: kernels take other ways for
    each."""
    return next(pack for pack in (GATHERED, 8, 4, 1) if channels % pack == 0)


def _draw(tensor: TensorType, seed: int) -> Array:
    values = boundary_values(tensor, seed)
    return np.asarray(np.clip(values, tensor.lo, tensor.hi).astype(values.dtype))


def _draw_edges(form: Form, position: int) -> Array:
    """Every row of A, and every column of B, is one of :data:`EDGES`; where it is patches, but for
    padding."""
    tensor, turned = form.operands[position], form.is_turned(position)
    if form.windows[position] is None:
        axis = (position if not turned else 1 - position) + len(tensor.shape) - 2
    else:
        # Rows or columns are windows of an image, or else places in one.
        axis = 3 if turned == (position == 0) else 0
    extent = tensor.shape[axis]
    edges = np.clip(EDGES, tensor.lo, tensor.hi).astype(NUMPY_DTYPES[tensor.dtype])
    shape = [extent if at == axis else 1 for at in range(len(tensor.shape))]
    row = edges[np.arange(extent) % len(edges)].reshape(shape)
    return np.ascontiguousarray(np.broadcast_to(row, tensor.shape))


def describe_way(form: Form, launches: Sequence[Launch]) -> tuple[object, ...]:
    """What of a product's kernels :func:`large_cases` go through: which they are, and which of the
    ways that they tell apart."""
    followers = tuple((node.op, node.outputs[0].dtype) for node in form.followers)
    channels = tuple(
        None if node is None else _find_pack(tensor.shape[3])
        for node, tensor in zip(form.windows, form.operands, strict=True)
    )
    return (
        tuple(dict.fromkeys(launch.kernel for launch in launches)),
        tuple(tensor.dtype for tensor in form.operands),
        (form.is_turned(0), form.is_turned(1)),
        followers,
        channels,
        (min(form.rows, TILE + 1), min(form.columns, TILE + 1)),
        form.batch > 1,
    )


def describe(form: Form, launches: Sequence[Launch]) -> tuple[object, ...]:
    """What the bits of a product's kernels depend on, sizes apart: the same cases serve all alike.

    Multiples of what is loaded or stored at a time are no part of it, because every form is tried
    with them and without; only of an image's channels they are.
    """
    followers = tuple((node.op, tuple(sorted(node.attrs.items()))) for node in form.followers)
    windows = tuple(
        None if node is None else tuple(sorted(node.attrs.items())) for node in form.windows
    )
    turned = (form.is_turned(0), form.is_turned(1))
    ranges = tuple((tensor.dtype, tensor.lo, tensor.hi) for tensor in form.operands)
    kernels = tuple(dict.fromkeys(launch.kernel for launch in launches))
    extents = (min(form.rows, WHOLE[0]), min(form.columns, WHOLE[2]))
    channels = tuple(
        None if node is None else (_find_pack(tensor.shape[3]), min(tensor.shape[3], GATHERED))
        for node, tensor in zip(form.windows, form.operands, strict=True)
    )
    return kernels, turned, ranges, followers, windows, channels, extents, form.batch > 1
