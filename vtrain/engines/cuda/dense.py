"""Products of a step with what follows them, as one job each for the tensor cores.

``matmul -> add_bias? -> rescale -> relu?``, or with the products of two stacks of matrices
(``batched_matmul``) for the first, is one job where nobody reads what lies between; so is ``matmul
-> transpose -> rescale``, in which the sums are rounded before they are reordered; the
patches of a convolution (``im2col``) are not stored as int16 where only products read them: kernels
gather them from the image, or take them from there into packed tiles of bytes.  So it is with those
of its gradient: ``matmul -> col2im`` over windows that move by one pixel is the convolution of the
gradients with the turned kernel, the same integers added in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, Protocol

import numpy.typing as npt

from vtrain.engines.cuda.gemm import (
    MOST_MATRICES,
    Epilogue,
    Factor,
    Narrow,
)
from vtrain.engines.cuda.launch import (
    DTYPE_CODES,
    Arg,
    Launch,
    Operand,
    Output,
    Scratch,
    one_thread_each,
)
from vtrain.engines.cuda.lower.layout import pack_window, transpose_units
from vtrain.engines.cuda.plan import Counter, Job, Planned, PlannedArg, Value
from vtrain.engines.cuda.program import Program
from vtrain.errors import GraphError
from vtrain.graph.values import PRODUCTS
from vtrain.ops.base import attr_int, attr_ints, attr_text
from vtrain.ops.layout import Window
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import Attrs, Node, TensorType

Array = npt.NDArray[Any]


class PlanProduct(Protocol):
    """``vtrain.engines.cuda.gemm.plan_matmul`` for a device; None: readable kernels serve."""

    def __call__(
        self, a: Factor, b: Factor, epilogue: Epilogue, /, *, batch: int
    ) -> tuple[Launch, ...] | None:
        """The launches of ``batch`` products."""
        ...


BIAS, COUNTER, OUT, TURNED = Operand(2), Operand(3), Operand(4), Operand(5)
"""What stands for pointers while a product is planned, after its two operands."""
_ANY_SHAPE: Final = ("rescale", "relu", "transpose")
"""Followers to which the shape of a product does not matter."""
TURN = "col2im_turn_kernel"
"""The kernel that lays out a convolution's kernel for the gradient of its image."""


def make_narrow(followers: Sequence[Node]) -> Narrow:
    """add_bias?, rescale, relu? as an epilogue, with :data:`BIAS`, :data:`COUNTER`, :data:`OUT`."""
    by_op = {node.op: node for node in followers}
    rescale, bias = by_op["rescale"], by_op.get("add_bias")
    return Narrow(
        out=OUT,
        dtype=attr_text(rescale.attrs, "dtype"),
        multiplier=attr_int(rescale.attrs, "multiplier"),
        shift=attr_int(rescale.attrs, "shift"),
        saturated=COUNTER,
        bias=None if bias is None else BIAS,
        bias_shift=0 if bias is None else attr_int(bias.attrs, "shift"),
        relu="relu" in by_op,
    )


@dataclass(frozen=True)
class Form:
    """What a product is, or one of each two matrices of two stacks, apart from where its tensors
    lie.

    ``operands`` are the types of what is read: a matrix, a stack of them, or with ``windows`` (an
    im2col node) the image whose patches the matrix is.  ``followers`` are add_bias?, rescale,
    relu?, or nothing.
    """

    matmul: Node
    operands: tuple[TensorType, TensorType]
    windows: tuple[Node | None, Node | None]
    followers: tuple[Node, ...]

    def matrix(self, position: int) -> TensorType:
        """Type of an operand as a matrix, one of its stack; padding makes 0 one of its values."""
        tensor, window = self.operands[position], self.windows[position]
        if window is None:
            return replace(tensor, shape=tensor.shape[-2:])
        images, rows, columns, channels = Window.from_attrs(window.attrs).pooled_shape(tensor.shape)
        area = Window.from_attrs(window.attrs).area
        shape = (images * rows * columns, area * channels)
        return replace(tensor, shape=shape, lo=min(tensor.lo, 0), hi=max(tensor.hi, 0))

    def is_turned(self, position: int) -> bool:
        """Is the operand transposed?"""
        return bool(self.matmul.attrs[("transpose_a", "transpose_b")[position]])

    @property
    def stack(self) -> tuple[int, ...]:
        """The axes along which matrices are stacked: none of a product of two matrices."""
        return self.operands[0].shape[:-2] if self.matmul.op == "batched_matmul" else ()

    @property
    def batch(self) -> int:
        """Products of two matrices."""
        return prod(self.stack)

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return self.matrix(1).shape[0 if self.is_turned(1) else 1]

    @property
    def rows(self) -> int:
        """Rows of the product."""
        return self.matrix(0).shape[1 if self.is_turned(0) else 0]

    def terms(self, position: int) -> int:
        """Terms of the product, as an operand has them."""
        return self.matrix(position).shape[0 if self.is_turned(position) == (position == 0) else 1]

    def plan(self, plan: PlanProduct) -> tuple[Launch, ...] | None:
        """Launches, with :data:`BIAS`, :data:`COUNTER` and :data:`OUT` for pointers."""
        narrow = make_narrow(self.followers) if self.followers else None
        epilogue = Epilogue(OUT if narrow is None else None, narrow)
        if self.batch > MOST_MATRICES:
            return None
        return plan(self._factor(0), self._factor(1), epilogue, batch=self.batch)

    def _factor(self, position: int) -> Factor:
        matrix, window = self.matrix(position), self.windows[position]
        rows, columns = matrix.shape
        # Terms run along the rows of A, and down the columns of B.
        inner_last = self.is_turned(position) == (position == 1)
        return Factor(
            data=Operand(position),
            dtype=matrix.dtype,
            extent=rows if inner_last else columns,
            inner=columns if inner_last else rows,
            inner_last=inner_last,
            lo=matrix.lo,
            hi=matrix.hi,
            windows=None if window is None else pack_window(window, self.operands[position].shape),
        )


@dataclass(frozen=True)
class Turn:
    """A kernel [outputs, area * channels] to be laid out as [area * outputs, channels], the area
    backwards."""

    dtype: str
    outputs: int
    area: int
    channels: int

    @property
    def result(self) -> Scratch:
        """Where the turned kernel lies."""
        return Scratch(self.count * NUMPY_DTYPES[self.dtype].itemsize, "turned")

    @property
    def count(self) -> int:
        """Elements."""
        return self.outputs * self.area * self.channels

    def launch(self) -> Launch:
        """The launch that turns :data:`TURNED`."""
        numbers = (DTYPE_CODES[self.dtype], self.outputs, self.area, self.channels)
        return one_thread_each("col2im.cu", TURN, self.count, TURNED, *numbers, self.result)


@dataclass(frozen=True)
class Reorder:
    """A transpose of a rounded product, which lies in ``before``."""

    rounded: TensorType
    perm: tuple[int, ...]

    @property
    def before(self) -> Scratch:
        """Where the product lies as it was multiplied."""
        return Scratch(self.rounded.byte_length, "rounded")

    def launches(self) -> tuple[Launch, ...] | None:
        """From there to :data:`OUT`; None where the fast kernel cannot."""
        x = self.rounded
        found = transpose_units(x.shape, x.dtype, self.perm, self.before, OUT)
        return None if found is None else (found,)


@dataclass(frozen=True)
class Product:
    """A product of a graph, of :data:`PRODUCTS`, with its followers: ``nodes``, ascending.

    ``operands`` and ``bias`` are the values that are read, ``form`` says what they are.  With
    ``turn``, the second is a convolution's kernel that has to be turned first; with ``reorder``,
    the rounded product is transposed.
    """

    nodes: tuple[int, ...]
    operands: tuple[int, int]
    bias: int | None
    form: Form
    turn: Turn | None = None
    reorder: Reorder | None = None

    def make_job(self, plan: PlanProduct) -> Job | None:
        """The job; None where readable kernels serve."""
        launches = self.form.plan(plan)
        last = () if self.reorder is None else self.reorder.launches()
        if launches is None or last is None:
            return None
        pointers: dict[Arg, PlannedArg] = {
            Operand(0): Value(self.operands[0]),
            Operand(1): Value(self.operands[1]),
            OUT: Value(self.nodes[-1]) if self.reorder is None else self.reorder.before,
        }
        if self.turn is not None:
            pointers[Operand(1)] = self.turn.result
            launches = (self.turn.launch(), *launches)
            pointers[TURNED] = Value(self.operands[1])
        reads = [*self.operands]
        if self.bias is not None:
            pointers[BIAS] = Value(self.bias)
            reads.append(self.bias)
        # Followers are the last of the nodes.
        for node, follower in zip(
            reversed(self.nodes), reversed(self.form.followers), strict=False
        ):
            if follower.op == "rescale":
                pointers[COUNTER] = Counter(node)
        after: dict[Arg, PlannedArg] = {OUT: Value(self.nodes[-1])}
        return Job(
            nodes=self.nodes,
            launches=(
                *(bind_operands(launch, pointers) for launch in launches),
                *(bind_operands(launch, after) for launch in last),
            ),
            reads=tuple(dict.fromkeys(reads)),
            writes=self.nodes[-1:],
        )


def as_node(launches: Sequence[Launch]) -> tuple[Launch, ...]:
    """The launches of a product by itself as those of its node, with Output() for :data:`OUT`."""
    return tuple(
        replace(launch, args=tuple(Output() if arg == OUT else arg for arg in launch.args))
        for launch in launches
    )


def find_products(
    program: Program, *, may_turn: Callable[[Product], bool], may_reorder: bool = True
) -> list[Product]:
    """Every product of the graph with what can be done on its way out; a convolution's kernel is
    turned only in products that ``may_turn`` says yes to, sums are rounded before a transpose only
    if one ``may_reorder`` them."""
    patches = _find_patches(program)
    return [
        _find_turned(program, index, patches, may_turn)
        or _extend(program, index, patches, may_reorder)
        for index, node in enumerate(program.graph.nodes)
        if node.op in PRODUCTS
    ]


def _find_turned(
    program: Program, matmul: int, patches: Set[int], may_turn: Callable[[Product], bool]
) -> Product | None:
    found = _find_scatter(program, matmul, patches)
    return found if found is not None and may_turn(found) else None


def _find_scatter(program: Program, matmul: int, patches: Set[int]) -> Product | None:
    """The gradient of a convolution's image, if the matmul's patches go into one.

    Not of operands that are ``patches`` themselves: those are never written as a matrix.
    """
    node = program.node(matmul)
    if node.op != "matmul" or not patches.isdisjoint(program.inputs[matmul]):
        return None
    scatter = _find_follower(program, matmul, "col2im")
    if scatter is None or node.attrs["transpose_a"] or node.attrs["transpose_b"]:
        return None
    attrs = program.node(scatter).attrs
    window = Window.from_attrs(attrs)
    if window.strides != (1, 1):
        return None
    image = attr_ints(attrs, "shape", 4)
    images, rows, columns, channels = window.pooled_shape(image)
    gradients, kernel = program.types(matmul)
    outputs = kernel.shape[0]
    (down, across), (top, left, bottom, right) = window.kernel, window.pads
    turned: Attrs = {
        "kernel": window.kernel,
        "strides": (1, 1),
        "pads": (down - 1 - top, across - 1 - left, down - 1 - bottom, across - 1 - right),
    }
    try:
        Window.from_attrs(turned).pooled_shape((images, rows, columns, outputs))
    except GraphError:
        # Patches of the gradients may be more than a tensor may have, where those of the image are
        # not.
        return None
    rescale = _find_follower(program, scatter, "rescale")
    nodes = [matmul, scatter, *([] if rescale is None else [rescale])]
    form = Form(
        matmul=node,
        operands=(
            replace(gradients, shape=(images, rows, columns, outputs)),
            replace(kernel, shape=(window.area * outputs, channels)),
        ),
        windows=(replace(node, op="im2col", attrs=turned), None),
        followers=() if rescale is None else (program.node(rescale),),
    )
    turn = Turn(kernel.dtype, outputs, window.area, channels)
    a, b = program.inputs[matmul]
    return Product(tuple(nodes), (a, b), None, form, turn)


def _find_patches(program: Program) -> set[int]:
    """im2col nodes that nobody but products reads, as the matrices that they are."""
    return {
        index
        for index, node in enumerate(program.graph.nodes)
        if node.op == "im2col"
        and index not in program.kept
        and all(
            program.node(reader).op == "matmul" and _reads_itself(program, reader, index)
            for reader in program.readers[index]
        )
    }


def _reads_itself(program: Program, reader: int, value: int) -> bool:
    """Does ``reader`` read ``value`` under its own shape, not an alias of another?"""
    refs = zip(program.node(reader).inputs, program.inputs[reader], strict=True)
    return all(ref.node == value for ref, root in refs if root == value)


def _extend(program: Program, matmul: int, patches: Set[int], may_reorder: bool) -> Product:
    a, b = program.inputs[matmul]
    windows = (a if a in patches else None, b if b in patches else None)
    operands = (
        a if windows[0] is None else program.inputs[a][0],
        b if windows[1] is None else program.inputs[b][0],
    )
    types = program.types(matmul)
    seen = (
        types[0] if windows[0] is None else program.types(windows[0])[0],
        types[1] if windows[1] is None else program.types(windows[1])[0],
    )
    nodes, bias = [matmul], None
    biased = _find_follower(program, matmul, "add_bias")
    if biased is not None:
        bias = program.inputs[biased][1]
        nodes.append(biased)
    rescale = _find_follower(program, nodes[-1], "rescale")
    transpose = _find_follower(program, matmul, "transpose") if may_reorder else None
    reordered = None if transpose is None else _find_follower(program, transpose, "rescale")
    reorder = None
    if rescale is not None:
        nodes.append(rescale)
        relu = _find_follower(program, rescale, "relu")
        nodes += [] if relu is None else [relu]
    elif transpose is not None and reordered is not None:
        nodes += [transpose, reordered]
        [sums], dtype = program.types(transpose), program.type_of(reordered).dtype
        perm = attr_ints(program.node(transpose).attrs, "perm")
        reorder = Reorder(replace(sums, dtype=dtype), tuple(perm))
    else:
        # A bias alone is left to a chain.
        nodes, bias = nodes[:1], None
    form = Form(
        matmul=program.node(matmul),
        operands=seen,
        windows=(
            None if windows[0] is None else program.node(windows[0]),
            None if windows[1] is None else program.node(windows[1]),
        ),
        followers=tuple(program.node(node) for node in nodes[1:] if node != transpose),
    )
    return Product(tuple(nodes), operands, bias, form, reorder=reorder)


def _find_follower(program: Program, value: int, op: str) -> int | None:
    """The one node that reads ``value``, as its first operand alone, if its operator is ``op``.

    What takes elements one by one, or by its own shape, may read them under another, as an alias
    has it."""
    if value in program.kept or len(program.readers[value]) != 1:
        return None
    [reader] = program.readers[value]
    inputs = program.inputs[reader]
    fits = (
        program.node(reader).op == op
        and inputs[0] == value
        and inputs.count(value) == 1
        and (op in _ANY_SHAPE or program.node(reader).inputs[0].node == value)
    )
    return reader if fits else None


def find_absorbed(program: Program, jobs: Sequence[Job]) -> set[int]:
    """im2col nodes whose every reader is done by one of ``jobs``, which read the image."""
    done = {node for job in jobs for node in job.nodes}
    return {index for index in _find_patches(program) if done.issuperset(program.readers[index])}


def bind_operands(launch: Launch, pointers: Mapping[Arg, PlannedArg]) -> Planned:
    """A launch with the operands that it was planned with in their places."""
    args = tuple(
        pointers[arg] if isinstance(arg, Operand) else pointers.get(arg, arg) for arg in launch.args
    )
    return Planned(launch.file, launch.kernel, launch.grid, launch.block, args, launch.shared)  # type: ignore[arg-type]
