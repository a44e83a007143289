"""A captured program as an ONNX file: a node of ATen becomes one of ONNX, or a few.

Nothing is judged here that ``vtrain.graph.onnx_import`` judges: what it cannot have it refuses by
the name of the node, which is that of the module's path, and :func:`translate` says so of all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import fx

from vtrain.errors import Problem
from vtrain.graph.from_torch.capture import PLAIN_WEIGHT, UNCHANGED, Capture
from vtrain.graph.from_torch.constants import BATCHES, Constant, compute, evaluate_extent
from vtrain.graph.from_torch.patterns import find_gelus
from vtrain.graph.onnx_file import ROW_KEY

OPSET: Final = 21
"""The first that has GroupNormalization with a scale for each channel."""
IR_VERSION: Final = 10
_REFUSED: Final = "Refused"
"""The operator of a node that stands for one that cannot be had."""
_TO_END: Final = 2**63 - 1
_MOST_NAMED: Final = 5
_LINE_AXES: Final = 3
"""[batch, channels, length]."""
_SCALES: Final = {3: ("scales",), 4: ("scales_h", "scales_w")}
"""By the axes of an image: the factors that an upsampling is asked for."""
_SELU_ALPHA: Final = 1.6732632423543772
_SELU_SCALE: Final = 1.0507009873554805
"""Of Klambauer et al., arXiv:1706.02515, as torch has them."""
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS: Final = "one of the layers that docs/benchmarks.md (imports) has as working"
_RANDOM: Final = "draws random numbers, of which dropout's alone can be had"
_TENSOR: Final = "a tensor of the input, a parameter, a buffer, or a number"
_FIRST: Final = "the batch as the first axis: x.expand(batch, ...)"
_ONE_NUMBER: Final = (
    "[batch, 1]: keepdim=True, or no squeeze(-1); targets [batch] are taken element by element"
)
_LARGEST: Final = "x.max(dim=1).values, of an axis other than the batch"
_FIXED: Final = "a place that is the same whatever the size of the batch"
_OF_SHAPES = frozenset(
    f"aten.{name}"
    for name in (
        *("zeros_like", "ones_like", "full_like", "empty_like"),
        *("new_zeros", "new_ones", "new_full", "new_empty", "sym_size"),
    )
)
"""They read a tensor's shape alone."""
_SAME = frozenset(
    f"aten.{name}"
    for name in ("alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh", "positive")
)


@dataclass(frozen=True)
class Origin:
    """Where an ONNX node comes from: the module's path, and its class with the operator."""

    path: str
    what: str


@dataclass(frozen=True)
class Value:
    """What an ONNX name stands for: a value of the input or, ``stored``, a tensor of the module."""

    name: str
    stored: bool = False


class _RefusedError(Exception):
    """A node that cannot be had: reason, and what would do instead."""

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(reason)
        self.reason, self.instead = reason, instead


@dataclass(frozen=True)
class Translation:
    """``graph`` has no tensors of the module yet; ``stored`` are those that its nodes read, and
    ``origins`` the places of its nodes, by name.  ``refused`` are nodes that stand for what
    ``problems`` are of."""

    graph: onnx.GraphProto
    stored: frozenset[str]
    origins: Mapping[str, Origin]
    problems: tuple[Problem, ...]
    refused: frozenset[str]


def translate(captured: Capture, *, classes_last: bool = False) -> Translation:
    """The nodes of a captured program that its output depends on, as ONNX.

    ``classes_last``: of the output [batch, classes, ...] the classes become the last axis.
    """
    return _Translator(captured, classes_last=classes_last).run()


class _Translator:
    """Walks the program in order.

    A node is a constant (``_constants``), a value or a stored tensor (``_values``), or several
    values (``_parts``).  Of ``_swapped`` values the first two axes stand the other way round,
    ``_empty`` ones have no elements, and ``_factors`` are a parameter plus a number, each.  What
    was refused is a node that stands for it, so that what follows is looked at too, or is in
    ``_lost``: what reads that is passed over.
    """

    def __init__(self, captured: Capture, *, classes_last: bool) -> None:
        self._captured, self._classes_last = captured, classes_last
        self._program = captured.program
        self._constants: dict[fx.Node, Constant] = {}
        self._values: dict[fx.Node, Value] = {}
        self._parts: dict[fx.Node, list[Value]] = {}
        self._lost: set[fx.Node] = set()
        self._nodes: list[onnx.NodeProto] = []
        self._infos: dict[str, onnx.ValueInfoProto] = {}
        self._made: dict[tuple[Any, ...], str] = {}
        self._names: Counter[str] = Counter()
        self._origins: dict[str, Origin] = {}
        self._stored: set[str] = set()
        self._problems: list[Problem] = []
        self._refused: set[str] = set()
        self._batch: Any = None
        self._node: fx.Node = captured.output
        self._changing: dict[fx.Node, str] = {}
        self._swapped: set[fx.Node] = set()
        self._used: list[str] = []
        self._factors: dict[fx.Node, tuple[fx.Node, float]] = {}
        self._empty: set[fx.Node] = set()
        self._tensors = dict(captured.module.named_parameters()) | dict(
            captured.module.named_buffers()
        )
        self._gelus = find_gelus(self._program.graph)

    def run(self) -> Translation:
        needed = self._find_needed()
        for name in self._tensors:
            self._names[name] += 1
        for node in self._program.graph.nodes:
            if node in needed or node is self._captured.input:
                self._node = node
                self._take(node)
        if self._classes_last:
            self._move_classes()
        self._note_used()
        output = self._values.get(self._captured.output)
        graph = onnx.GraphProto(name="model")
        graph.node.extend(self._nodes)
        graph.input.append(self._describe_input())
        if output is not None and not output.stored:
            info = self._infos.get(output.name) if self._classes_last else None
            info = info or self._describe(output.name, self._captured.output)
            graph.output.append(info or onnx.ValueInfoProto(name=output.name))
        elif not self._problems:
            self._problems.append(
                Problem("", "output", "does not depend on the input", "train by another output")
            )
        graph.value_info.extend(self._infos.values())
        return Translation(
            graph,
            frozenset(self._stored),
            self._origins,
            tuple(self._problems),
            frozenset(self._refused),
        )

    def _note_used(self) -> None:
        """Say which norms keep their statistics."""
        used = [*dict.fromkeys(path.partition("@")[0] for path in self._used)]
        if used:
            more = len(used) - _MOST_NAMED
            self._captured.note(
                "running statistics are constants, and stay, of BatchNorm in eval mode: "
                + ", ".join(used[:_MOST_NAMED])
                + (f" and {more} more" if more > 0 else "")
            )

    def _move_classes(self) -> None:
        """The value of the output becomes its transpose."""
        node = self._node = self._captured.output
        value = self._values.get(node)
        if value is None or value.stored:
            return
        rank = len(self._shape(node))
        perm = [0, *range(2, rank), 1]
        name = self._emit_inner("Transpose", [value.name], "classes_last", perm=perm)
        self._values[node] = Value(name)
        self._infos[name] = _make_info(name, node.meta["val"].permute(perm))

    def _find_needed(self) -> set[fx.Node]:
        """Nodes that the output depends on; of what is overwritten in place, which is refused,
        those of the value before alone: what one line writes is refused once."""
        needed: set[fx.Node] = set()
        waiting = [self._captured.output]
        while waiting:
            node = waiting.pop()
            if node in needed:
                continue
            needed.add(node)
            if node.op == "call_function" and _name_operator(node) in _OVERWRITING:
                waiting += node.all_input_nodes[:1]
                continue
            gelu = self._gelus.get(node)
            waiting += node.all_input_nodes if gelu is None else [gelu.source]
        return needed

    # --- one node

    def _take(self, node: fx.Node) -> None:
        try:
            if node.op == "placeholder":
                self._take_placeholder(node)
            elif node.op == "call_function":
                self._take_call(node)
            elif node.op == "get_attr":
                value = getattr(self._program.graph_module, str(node.target))
                self._constants[node] = Constant((value, value))
        except _RefusedError as error:
            origin = self._find_origin(node)
            self._problems.append(Problem(origin.path, origin.what, error.reason, error.instead))
            if isinstance(node.meta.get("val"), torch.Tensor):
                self._emit(_REFUSED, [])
                self._refused.add(self._values[node].name)
            else:
                self._lost.add(node)

    def _take_placeholder(self, node: fx.Node) -> None:
        captured = self._captured
        if node is captured.input:
            self._values[node] = Value(self._unique(node.name))
        elif node.name in captured.parameters:
            self._values[node] = Value(captured.parameters[node.name], stored=True)
        elif node.name in captured.changing:
            self._values[node] = Value(captured.buffers[node.name], stored=True)
            self._changing[node] = captured.buffers[node.name]
        elif node.name in captured.buffers:
            tensor = self._tensors[captured.buffers[node.name]].detach()
            self._values[node] = Value(captured.buffers[node.name], stored=True)
            self._constants[node] = Constant((tensor, tensor))
        elif node.name in captured.constants:
            tensor = captured.constants[node.name].detach()
            self._constants[node] = Constant((tensor, tensor))
        else:
            self._constants[node] = Constant((node.meta.get("val"), node.meta.get("val")))

    def _take_call(self, node: fx.Node) -> None:
        if any(source in self._lost for source in node.all_input_nodes):
            self._lost.add(node)
            return
        name = _name_operator(node)
        if name not in _JOINING and any(one in self._empty for one in node.all_input_nodes):
            if not self._is_empty(node):
                raise _RefusedError("computes with a part of no elements", "leave that part out")
            self._empty.add(node)
            return
        if name not in _OF_STATISTICS and self._is_of_changing(node):
            return
        if node in self._gelus:
            gelu = self._gelus[node]
            self._emit("Gelu", [self._read(gelu.source)], approximate=gelu.form)
            return
        if name == "getitem":
            self._take_item(node)
            return
        if name in _OF_SHAPES or all(source in self._constants for source in node.all_input_nodes):
            self._compute(node)
            return
        if name in _SAME:
            self._alias(node, node.args[0])
            return
        value = node.meta.get("val")
        shape = list(value.shape) if isinstance(value, torch.Tensor) else []
        if (
            len(shape) == 1
            and getattr(value, "dtype", None) in _FLOATS
            and self._is_batch(shape[0])
        ):
            raise _RefusedError(
                "gives one number for each sample, without an axis beside the batch", _ONE_NUMBER
            )
        handler = _HANDLERS.get(name)
        if handler is None:
            drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if drawn and name not in _INSTEAD:
                raise _RefusedError(_RANDOM, "use nn.Dropout")
            if name in _OVERWRITING:
                raise _RefusedError(
                    "overwrites a part of a value in place",
                    "torch.cat of the parts, or torch.where with a constant",
                )
            raise _RefusedError("is not supported", _INSTEAD.get(name, OTHERS))
        handler(self, _bind(node))

    def _is_of_changing(self, node: fx.Node) -> bool:
        """Whether a call makes the next value of a buffer that changes, which is left out.

        Any other that reads such a buffer, or its next value, is refused: it is no constant.
        """
        read = [self._changing[one] for one in node.all_input_nodes if one in self._changing]
        if not read:
            return False
        signature = self._program.graph_signature
        if node.name in signature.buffers_to_mutate:
            self._changing[node] = read[0]
            return True
        raise _RefusedError(
            f"reads {read[0]}, which each step changes, as a constant",
            "compute it of the input, or keep a copy as a buffer of its own",
        )

    def _take_item(self, node: fx.Node) -> None:
        source, number = node.args
        if not isinstance(source, fx.Node) or source not in self._parts:
            self._compute(node)
        elif isinstance(number, int) and number < len(self._parts[source]):
            self._values[node] = self._parts[source][number]
        elif "batch_norm" in _name_operator(source):
            raise _RefusedError(
                "is used in training mode in several places, and its running statistics are of one",
                "a norm for each place",
            )
        else:
            raise _RefusedError(
                "reads a second result, which cannot be had",
                "the first alone: nn.ConvTranspose2d or nn.Upsample goes back without indices",
            )

    def _compute(self, node: fx.Node) -> None:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise _RefusedError(_RANDOM, "use nn.Dropout")
        shapes_only = _name_operator(node) in _OF_SHAPES

        def find(source: fx.Node) -> Constant:
            if source in self._constants:
                return self._constants[source]
            if not shapes_only:
                raise _RefusedError("mixes constants and values", "one or the other alone")
            tensor = source.meta["val"]
            one, two = (
                torch.empty(
                    [evaluate_extent(extent, batch) for extent in tensor.shape], dtype=tensor.dtype
                )
                for batch in BATCHES
            )
            return Constant((one, two))

        try:
            self._constants[node] = compute(node.target, node.args, node.kwargs, find)  # type: ignore[arg-type]
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise _RefusedError(
                f"cannot be computed of constants: {error}",
                "its result as a buffer: self.register_buffer",
            ) from error

    # --- names, constants, nodes

    def _find_origin(self, node: fx.Node) -> Origin:
        stack = node.meta.get("nn_module_stack") or {}
        path, kind = "", type(self._captured.module).__name__
        for entry in stack.values():
            path = str(entry[0]).removeprefix("L['self']").lstrip(".")
            kind = str(entry[1]).rsplit(".", 1)[-1]
        return Origin(path, f"{_name_operator(node)} of {kind}")

    def _unique(self, name: str) -> str:
        """``name``, or with a number where that is taken."""
        self._names[name] += 1
        if self._names[name] == 1:
            return name
        return self._unique(f"{name}/{self._names[name]}")

    def _name_output(self, node: fx.Node) -> str:
        """The path of a module that is one operator; for others, with the operator's name."""
        origin = self._find_origin(node)
        operator = _name_operator(node).rpartition(".")[2]
        if origin.path and self._is_alone(node, origin.path):
            return self._unique(origin.path)
        return self._unique(f"{origin.path}/{operator}" if origin.path else operator)

    def _is_alone(self, node: fx.Node, path: str) -> bool:
        """Whether a module of torch's own makes this value and no other."""
        clean = path.partition("@")[0]
        try:
            module = self._captured.module.get_submodule(clean)
        except AttributeError:
            return False
        return type(module).__module__.startswith("torch.nn.modules") and not any(
            self._find_origin(user).path == path and _name_operator(user) != "getitem"
            for user in node.users
        )

    def _read(self, item: Any) -> str:
        """The ONNX name of an argument: a node or a number."""
        if isinstance(item, fx.Node):
            if item in self._factors:
                name = self._values[self._factors[item][0]].name
                reason = f"computes with the parameter {name!r}, which would not be trained"
                raise _RefusedError(reason, UNCHANGED)
            value = self._values.get(item)
            if value is not None:
                if value.stored:
                    self._stored.add(value.name)
                return value.name
            if item in self._constants:
                return self._store(self._constants[item])
            raise _RefusedError("reads what is no tensor", _TENSOR)
        if isinstance(item, bool | int | float):
            return self._store(Constant((item, item)))
        raise _RefusedError(f"reads {type(item).__name__}, which is no tensor", _TENSOR)

    def _store(self, constant: Constant) -> str:
        tensor = constant.reduce()
        if tensor is None:
            raise _RefusedError(
                "computes with the size of the batch, or with a sample's place in it",
                "give every sample the same constant",
            )
        return self._store_array(_to_array(tensor))

    def _store_array(self, array: np.ndarray[Any, Any]) -> str:
        if array.dtype.kind == "i" and array.dtype != np.int64:
            array = array.astype(np.int64)
        key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._made:
            name = self._unique(f"constant/{len(self._made)}")
            tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
            self._nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
            self._origins[name] = self._find_origin(self._node)
            self._made[key] = name
        return self._made[key]

    def _ints(self, *numbers: int) -> str:
        return self._store_array(np.array(numbers, np.int64))

    def _emit(self, op: str, inputs: Sequence[str], **attrs: Any) -> None:
        """The ONNX node that makes the value of the node at hand."""
        name = self._name_output(self._node)
        self._add(op, inputs, name, **attrs)
        self._declare(self._node, name)

    def _declare(self, node: fx.Node, name: str) -> None:
        self._values[node] = Value(name)
        info = self._describe(name, node)
        if info is not None:
            self._infos[name] = info

    def _emit_inner(self, op: str, inputs: Sequence[str], what: str, **attrs: Any) -> str:
        """An ONNX node on the way to the value of the node at hand; its name."""
        origin = self._find_origin(self._node)
        name = self._unique(f"{origin.path}/{what}" if origin.path else what)
        self._add(op, inputs, name, **attrs)
        return name

    def _add(self, op: str, inputs: Sequence[str], *names: str, **attrs: Any) -> None:
        given = {key: value for key, value in attrs.items() if value is not None}
        self._nodes.append(helper.make_node(op, list(inputs), list(names), name=names[0], **given))
        self._origins[names[0]] = self._find_origin(self._node)

    def _alias(self, node: fx.Node, source: Any) -> None:
        if source in self._parts:
            self._parts[node] = self._parts[source]
        elif source in self._values:
            self._values[node] = self._values[source]
        elif source in self._factors:
            self._factors[node] = self._factors[source]
        else:
            self._constants[node] = self._constants[source]

    # --- shapes

    def _describe_input(self) -> onnx.ValueInfoProto:
        node = self._captured.input
        tensor = node.meta["val"]
        return _make_info(self._values[node].name, tensor)

    def _describe(self, name: str, node: fx.Node) -> onnx.ValueInfoProto | None:
        """Type and shape of a value of floats that has the batch as its first axis and no other."""
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in _FLOATS or tensor.ndim < 2:
            return None
        if not self._is_batch(tensor.shape[0]) or not all(
            isinstance(extent, int) for extent in tensor.shape[1:]
        ):
            return None
        return _make_info(name, tensor)

    def _is_batch(self, extent: Any) -> bool:
        return not isinstance(extent, int) and [
            evaluate_extent(extent, batch) for batch in BATCHES
        ] == [*BATCHES]

    def _shape(self, node: Any) -> list[Any]:
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor):
            return list(node.meta["val"].shape)
        raise _RefusedError("reads what is no tensor", _TENSOR)

    def _is_empty(self, node: fx.Node) -> bool:
        """Whether a value has no elements."""
        value = node.meta.get("val")
        extents: list[Any] = [*value.shape] if isinstance(value, torch.Tensor) else []
        return any(isinstance(extent, int) and extent == 0 for extent in extents)

    def _axis(self, node: Any, axis: int) -> int:
        return axis % len(self._shape(node))

    def _asked(self, node: fx.Node) -> str:
        """The shape of a value as ONNX's Reshape takes it: -1 where the batch is."""
        shape = [extent if isinstance(extent, int) else -1 for extent in self._shape(node)]
        if shape.count(-1) > 1:
            raise _RefusedError("has the batch in two axes", "the batch as the first axis, alone")
        return self._ints(*shape)

    # --- operators

    def linear(self, a: _Args) -> None:
        weight, bias = a["weight"], a["bias"]
        x = self._read(a["input"])
        if len(self._shape(a["input"])) == 2:
            inputs = [x, self._read(weight), *([self._read(bias)] if bias is not None else [])]
            self._emit("Gemm", inputs, transB=1)
            return
        turned = self._transpose_once(weight)
        if bias is None:
            self._emit("MatMul", [x, turned])
            return
        product = self._emit_inner("MatMul", [x, turned], "product")
        self._emit("Add", [product, self._read(bias)])

    def _transpose_once(self, weight: fx.Node) -> str:
        """A matrix with its axes swapped; one of the module is so once."""
        name = self._read(weight)
        key = ("transposed", name)
        if key not in self._made:
            made = self._unique(f"{name}/transposed")
            self._add("Transpose", [name], made, perm=[1, 0])
            self._made[key] = made
        return self._made[key]

    def addmm(self, a: _Args) -> None:
        if a["beta"] != 1 or a["alpha"] != 1:
            raise _RefusedError(
                "has factors beta and alpha other than 1", "nn.Linear, or a product and a sum"
            )
        bias = a.get("input", a.get("self"))
        self._emit("Gemm", [self._read(a["mat1"]), self._read(a["mat2"]), self._read(bias)])

    def matmul(self, a: _Args) -> None:
        left, right = list(a.values())[:2]
        self._emit("MatMul", [self._read(left), self._read(right)])

    def add(self, a: _Args) -> None:
        """A parameter plus a number is kept for the product that it is a factor of."""
        parameter, number = a["self"], a["other"]
        if isinstance(number, int | float) and a.get("alpha", 1) == 1 and self._trains(parameter):
            self._factors[self._node] = (parameter, float(number))
            return
        self._emit("Add", self._both(a))

    def _trains(self, item: Any) -> bool:
        value = self._values.get(item) if isinstance(item, fx.Node) else None
        return value is not None and value.stored and self._tensors[value.name].requires_grad

    def subtract(self, a: _Args) -> None:
        self._emit("Sub", self._both(a))

    def subtract_from(self, a: _Args) -> None:
        """other - alpha * self."""
        self._emit("Sub", self._both(a, ("other", "self")))

    def _both(self, a: _Args, keys: tuple[str, str] = ("self", "other")) -> list[str]:
        """Both operands, the second times ``alpha``."""
        one, other = (self._float(a, key) for key in keys)
        alpha = float(a.get("alpha", 1))
        if isinstance(other, int | float):
            return [self._read(one), self._read(other * alpha if alpha != 1 else other)]
        left, right = self._read(one), self._read(other)
        if alpha != 1:
            right = self._emit_inner("Mul", [right, self._read(alpha)], "times_alpha")
        return [left, right]

    def multiply(self, a: _Args) -> None:
        """x (w + c) is x w + c x."""
        for one, other in ((a["self"], a["other"]), (a["other"], a["self"])):
            if isinstance(other, fx.Node) and other in self._factors:
                parameter, number = self._factors[other]
                x = self._read(one)
                scaled = self._emit_inner("Mul", [x, self._read(parameter)], "scaled")
                rest = x
                if number != 1:
                    rest = self._emit_inner("Mul", [x, self._read(number)], "rest")
                self._emit("Add", [scaled, rest])
                return
        self._emit("Mul", [self._read(self._float(a, key)) for key in ("self", "other")])

    def divide(self, a: _Args) -> None:
        if a.get("rounding_mode") is not None:
            raise _RefusedError("rounds the quotient", "a division without rounding_mode")
        self._emit("Div", [self._read(self._float(a, key)) for key in ("self", "other")])

    def _float(self, a: _Args, key: str) -> Any:
        """An operand; a whole number as the float that it is beside floats."""
        item = a[key]
        is_floating = self._node.meta["val"].dtype in _FLOATS
        return float(item) if is_floating and isinstance(item, int) else item

    def negate(self, a: _Args) -> None:
        self._emit("Neg", [self._read(a["self"])])

    def power(self, a: _Args) -> None:
        if not isinstance(a["exponent"], int | float):
            raise _RefusedError("has an exponent that is computed", "a number as the exponent")
        self._emit("Pow", [self._read(a["self"]), self._read(float(a["exponent"]))])

    def square(self, a: _Args) -> None:
        self._emit("Pow", [self._read(a["self"]), self._read(2.0)])

    def rsqrt(self, a: _Args) -> None:
        root = self._emit_inner("Sqrt", [self._read(a["self"])], "root")
        self._emit("Reciprocal", [root])

    def mean(self, a: _Args) -> None:
        axes = a.get("dim")
        if axes is None:
            raise _RefusedError("takes the mean of the whole batch", "name the axes")
        axes = [axes] if isinstance(axes, int) else list(axes)
        numbers = self._ints(*(self._axis(a["self"], axis) for axis in axes))
        self._emit("ReduceMean", [self._read(a["self"]), numbers], keepdims=int(a["keepdim"]))

    def sum(self, a: _Args) -> None:
        """A mean times the number of its terms."""
        axes = a.get("dim")
        if axes is None or axes == []:
            raise _RefusedError("takes the sum of the whole batch", "name the axes")
        axes = [axes] if isinstance(axes, int) else list(axes)
        numbers = [self._axis(a["self"], axis) for axis in axes]
        shape = self._shape(a["self"])
        inputs = [self._read(a["self"]), self._ints(*numbers)]
        mean = self._emit_inner("ReduceMean", inputs, "mean", keepdims=int(a["keepdim"]))
        if not all(isinstance(shape[axis], int) for axis in numbers):
            raise _RefusedError("takes the sum over the batch", "leave the batch as it is")
        count = float(math.prod(int(shape[axis]) for axis in numbers))
        self._emit("Mul", [mean, self._read(count)])

    def absolute(self, a: _Args) -> None:
        """What is above 0, and the opposite of what is below."""
        x = self._read(a["self"])
        above = self._emit_inner("Relu", [x], "above")
        opposite = self._emit_inner("Neg", [x], "opposite")
        below = self._emit_inner("Relu", [opposite], "below")
        self._emit("Add", [above, below])

    def elu(self, a: _Args) -> None:
        """``scale`` times an ELU of x times ``input_scale``: SELU too."""
        x = self._read(a["self"])
        if a["input_scale"] != 1:
            x = self._emit_inner("Mul", [x, self._read(float(a["input_scale"]))], "scaled")
        self._emit_elu(x, float(a["alpha"]), float(a["scale"]))

    def selu(self, a: _Args) -> None:
        self._emit_elu(self._read(a["self"]), _SELU_ALPHA, _SELU_SCALE)

    def celu(self, a: _Args) -> None:
        """alpha times the ELU of x over alpha."""
        x, alpha = self._read(a["self"]), float(a["alpha"])
        if alpha <= 0:
            raise _RefusedError(f"has an alpha of {alpha}", "an alpha above 0")
        if alpha != 1:
            x = self._emit_inner("Mul", [x, self._read(1 / alpha)], "scaled")
        self._emit_elu(x, 1.0, alpha)

    def _emit_elu(self, x: str, alpha: float, scale: float) -> None:
        if scale == 1:
            self._emit("Elu", [x], alpha=alpha)
            return
        bent = self._emit_inner("Elu", [x], "bent", alpha=alpha)
        self._emit("Mul", [bent, self._read(scale)])

    def prelu(self, a: _Args) -> None:
        """What is above 0, plus the rest times the parameter, one of each channel or of all."""
        x, weight = self._read(a["self"]), self._read(a["weight"])
        shape, count = self._shape(a["self"]), self._shape(a["weight"])[0]
        if count != 1 and len(shape) > 2:
            axes = self._ints(*range(1, len(shape) - 1))
            weight = self._emit_inner("Unsqueeze", [weight, axes], "slopes")
        above = self._emit_inner("Relu", [x], "above")
        below = self._emit_inner("Sub", [x, above], "below")
        bent = self._emit_inner("Mul", [below, weight], "bent")
        self._emit("Add", [above, bent])

    def hard_sigmoid(self, a: _Args) -> None:
        self._emit("Mul", [self._open_gate(a["self"]), self._read(1 / 6)])

    def hard_swish(self, a: _Args) -> None:
        inputs = [self._open_gate(a["self"]), self._read(1 / 6)]
        gate = self._emit_inner("Mul", inputs, "gate")
        self._emit("Mul", [self._read(a["self"]), gate])

    def _open_gate(self, source: Any) -> str:
        """min(max(x + 3, 0), 6)."""
        bounds = [self._read(-3.0), self._read(3.0)]
        held = self._emit_inner("Clip", [self._read(source), *bounds], "held")
        return self._emit_inner("Add", [held, self._read(3.0)], "above")

    def upsample_nearest(self, a: _Args) -> None:
        """Each place so many times: along each axis as often as that of the output is longer.

        A factor that is no whole number may give as many places, and repeats others."""
        source = a["self"] if "self" in a else a["input"]
        shape, wanted = self._shape(source), self._shape(self._node)
        extents = [int(extent) for extent in shape[1:]]
        asked = a.get("scale_factors") or [a.get(key) for key in _SCALES[len(shape)]]
        x = self._read(source)
        for axis, factor in zip(range(2, len(shape)), asked, strict=True):
            times, rest = divmod(int(wanted[axis]), extents[axis - 1])
            if rest or times < 1 or (factor is not None and factor != times):
                raise _RefusedError(
                    f"makes {wanted[axis]} places of {extents[axis - 1]}",
                    "a whole scale factor",
                )
            if times == 1:
                continue
            apart = self._emit_inner("Unsqueeze", [x, self._ints(axis + 1)], "apart")
            wide = [1, *extents]
            wide.insert(axis + 1, times)
            copies = self._emit_inner("Expand", [apart, self._ints(*wide)], "copies")
            extents[axis - 1] *= times
            x = self._emit_inner("Reshape", [copies, self._ints(-1, *extents)], "longer")
        self._emit("Identity", [x])

    def pixel_shuffle(self, a: _Args) -> None:
        """Channels become places."""
        channels, height, width = self._read_image_shape(a["self"])
        r = int(a["upscale_factor"])
        split = (channels // (r * r), r, r, height, width)
        self._regroup(a["self"], split, (0, 1, 4, 2, 5, 3))

    def pixel_unshuffle(self, a: _Args) -> None:
        """Places become channels."""
        channels, height, width = self._read_image_shape(a["self"])
        r = int(a["downscale_factor"])
        split = (channels, height // r, r, width // r, r)
        self._regroup(a["self"], split, (0, 1, 3, 5, 2, 4))

    def channel_shuffle(self, a: _Args) -> None:
        channels, *places = (int(extent) for extent in self._shape(a["self"])[1:])
        groups = int(a["groups"])
        split = (groups, channels // groups, *places)
        self._regroup(a["self"], split, (0, 2, 1, *range(3, 1 + len(split))))

    def _read_image_shape(self, source: Any) -> list[int]:
        shape = self._shape(source)
        if len(shape) != _LINE_AXES + 1:
            raise _RefusedError("is of other than images", "give it [batch, channels, h, w]")
        return [int(extent) for extent in shape[1:]]

    def _regroup(self, source: Any, split: Sequence[int], perm: Sequence[int]) -> None:
        """The elements of the axes ``split`` in another order of these, and in the shape asked."""
        apart = self._emit_inner("Reshape", [self._read(source), self._ints(-1, *split)], "apart")
        turned = self._emit_inner("Transpose", [apart], "turned", perm=list(perm))
        self._emit("Reshape", [turned, self._asked(self._node)])

    def gelu(self, a: _Args) -> None:
        self._emit("Gelu", [self._read(a["self"])], approximate=a["approximate"])

    def silu(self, a: _Args) -> None:
        x = self._read(a["self"])
        gate = self._emit_inner("Sigmoid", [x], "gate")
        self._emit("Mul", [x, gate])

    def softmax(self, a: _Args) -> None:
        axis = self._axis(a["self"], a["dim"])
        name = "Softmax" if "log" not in _name_operator(self._node) else "LogSoftmax"
        rank = len(self._shape(a["self"]))
        if axis == rank - 1 or axis == 0 or name != "Softmax":
            self._emit(name, [self._read(a["self"])], axis=-1 if axis == rank - 1 else axis)
            return
        perm = list(range(rank))
        perm[axis], perm[-1] = perm[-1], perm[axis]
        turned = self._emit_inner("Transpose", [self._read(a["self"])], "turned", perm=perm)
        rows = self._emit_inner("Softmax", [turned], "rows", axis=-1)
        self._emit("Transpose", [rows], perm=perm)

    def layer_norm(self, a: _Args) -> None:
        features = [int(extent) for extent in a["normalized_shape"]]
        scale = (
            self._store_array(np.ones(features, np.float32))
            if a["weight"] is None
            else self._read(a["weight"])
        )
        inputs = [self._read(a["input"]), scale]
        if a["bias"] is not None:
            inputs.append(self._read(a["bias"]))
        self._emit("LayerNormalization", inputs, axis=-len(features), epsilon=float(a["eps"]))

    def rms_norm(self, a: _Args) -> None:
        """In parts: no opset below 23 has an operator for it."""
        if len(a["normalized_shape"]) != 1:
            raise _RefusedError("normalises over several axes", "flatten them first")
        x, eps = self._read(a["input"]), a["eps"]
        if eps is None:
            eps = torch.finfo(a["input"].meta["val"].dtype).eps
        square = self._emit_inner("Pow", [x, self._read(2.0)], "square")
        mean = self._emit_inner("ReduceMean", [square, self._ints(-1)], "mean", keepdims=1)
        shifted = self._emit_inner("Add", [mean, self._read(float(eps))], "mean_and_epsilon")
        root = self._emit_inner("Sqrt", [shifted], "root")
        if a["weight"] is None:
            self._emit("Div", [x, root])
            return
        normalized = self._emit_inner("Div", [x, root], "normalized")
        self._emit("Mul", [normalized, self._read(a["weight"])])

    def group_norm(self, a: _Args) -> None:
        inputs = [self._read(a["input"]), *self._read_affine(a)]
        self._emit(
            "GroupNormalization", inputs, num_groups=a["num_groups"], epsilon=float(a["eps"])
        )

    def instance_norm(self, a: _Args) -> None:
        if not a["use_input_stats"] or a["running_mean"] is not None:
            raise _RefusedError("has running statistics", "track_running_stats=False")
        inputs = [self._read(a["input"]), *self._read_affine(a)]
        self._emit("InstanceNormalization", inputs, epsilon=float(a["eps"]))

    def glu(self, a: _Args) -> None:
        """The first half times the sigmoid of the second."""
        axis = self._axis(a["self"], a["dim"])
        half = int(self._shape(self._node)[axis])
        halves = [
            self._emit_inner(
                "Slice",
                [self._read(a["self"]), *(self._ints(one) for one in (start, start + half, axis))],
                "half",
            )
            for start in (0, half)
        ]
        gate = self._emit_inner("Sigmoid", [halves[1]], "gate")
        self._emit("Mul", [halves[0], gate])

    def batch_norm(self, a: _Args) -> None:
        """Of the forms that give more than the values, the rest is left out: a step makes running
        statistics of its own."""
        statistics = [a.get(key) for key in ("running_mean", "running_var")]
        if not all(isinstance(one, fx.Node) for one in statistics):
            raise _RefusedError(
                "has no running statistics, by which a trained model would be used",
                "track_running_stats=True",
            )
        inputs = [self._read(a["input"]), *self._read_affine(a), *map(self._read, statistics)]
        if a.get("training", _name_operator(self._node) in _BATCH_NORMS_IN_TRAINING):
            self._captured.note(
                "num_batches_tracked of BatchNorm stays as it is: it is no part of what is computed"
            )
            how = {"momentum": 1 - float(a["momentum"]), "training_mode": 1}
        else:
            changing = [self._changing[one] for one in statistics if one in self._changing]
            if changing:
                raise _RefusedError(
                    f"is in eval mode, and {changing[0]} changes where it is used in training mode",
                    "one mode in all its places, or a norm for each",
                )
            self._used.append(self._find_origin(self._node).path or "the module itself")
            how = {}
        self._emit("BatchNormalization", inputs, epsilon=float(a["eps"]), **how)
        self._keep_first()

    def _read_affine(self, a: _Args) -> list[str]:
        """Scale and bias of the channels; without them ones and zeros."""
        channels = int(self._shape(a["input"])[1])
        return [
            self._store_array(np.full(channels, neutral, np.float32))
            if a[key] is None
            else self._read(a[key])
            for key, neutral in (("weight", 1), ("bias", 0))
        ]

    def _keep_first(self) -> None:
        """Where the node at hand gives several results, the value is the first, and the only one
        that can be read."""
        kinds = self._node.meta["val"]
        if not isinstance(kinds, tuple | list):
            return
        value = self._values.pop(self._node)
        self._parts[self._node] = [value]
        if not value.stored:
            self._inform(value.name, kinds[0])

    def dropout(self, a: _Args) -> None:
        """Of the form that gives a mask too, the mask is left out."""
        source, share = a["input"], float(a["p"])
        if not a["train"] or share == 0:
            self._alias(self._node, source)
        else:
            self._emit("Dropout", [self._read(source), self._read(share), self._read(True)])
        self._keep_first()

    def feature_dropout(self, a: _Args) -> None:
        if a["train"] and float(a["p"]) > 0:
            raise _RefusedError("drops whole channels", "nn.Dropout, which drops elements")
        self._alias(self._node, a["input"])

    def embedding(self, a: _Args) -> None:
        weight, ids = a["weight"], a["indices"]
        if a["scale_grad_by_freq"]:
            raise _RefusedError("scales gradients by frequency", "scale_grad_by_freq=False")
        row = int(a["padding_idx"])
        if ids in self._constants:
            if row >= 0:
                raise _RefusedError(f"does not train row {row} (padding_idx)", "padding_idx=None")
            self._gather_constant_rows(weight, self._constants[ids])
            return
        self._emit("Gather", [self._read(weight), self._read(ids)], axis=0)
        if row >= 0:
            self._nodes[-1].metadata_props.add(key=ROW_KEY, value=str(row))

    def _gather_constant_rows(self, weight: fx.Node, ids: Constant) -> None:
        """Positions: without the axes of extent 1 before them."""
        found = ids.reduce()
        if found is None:
            raise _RefusedError(
                "looks up numbers that differ along the batch",
                "the same positions in every sample, or ids as the input",
            )
        if max(found.shape[:-1], default=1) > 1:
            raise _RefusedError(
                "looks up rows of a trained table along another axis than that of the places",
                "positions that are added to the input, or rotary ones",
            )
        numbers = found.reshape(-1)
        if numbers.tolist() == [*range(int(self._shape(weight)[0]))]:
            self._alias(self._node, weight)  # all of them, in order
            return
        # One for all places, as of a kind of tokens that every sample has: once.
        numbers = numbers[:1] if bool((numbers == numbers[0]).all()) else numbers
        rows = self._store_array(_to_array(numbers))
        self._emit("Gather", [self._read(weight), rows], axis=0)

    def _open_image(self, source: Any) -> tuple[str, int | None]:
        """An image [batch, channels, height, width]; of a line, with a height of 1, and the axis
        that is more."""
        x, rank = self._read(source), len(self._shape(source))
        if rank == _LINE_AXES and "2d" in _name_operator(self._node):
            raise _RefusedError(
                "takes the batch for the channels of one image",
                "images [batch, channels, height, width]: x.unsqueeze(1), and squeeze(1) after it",
            )
        if rank == _LINE_AXES:
            return self._emit_inner("Unsqueeze", [x, self._ints(2)], "image"), 2
        if rank != _LINE_AXES + 1:
            raise _RefusedError(
                f"is over {rank - 2} axes", "a layer over one axis or two, of the same kind"
            )
        return x, None

    def _emit_image(self, op: str, inputs: Sequence[str], more: int | None, **attrs: Any) -> None:
        """An operator of images, without the axis that :meth:`_open_image` added."""
        if more is None:
            self._emit(op, inputs, **attrs)
            return
        made = self._emit_inner(op, inputs, "line", **attrs)
        self._emit("Squeeze", [made, self._ints(more)])

    def conv(self, a: _Args) -> None:
        weight = a["weight"]
        if a.get("transposed"):
            self.conv_transpose(a)
            return
        x, more = self._open_image(a["input"])
        padding = a["padding"]
        kernel = _pair([int(extent) for extent in self._shape(weight)[2:]], more)
        dilation, stride = (_pair(a[key], more) for key in ("dilation", "stride"))
        if isinstance(padding, str):
            around = [
                d * (k - 1) if padding == "same" else 0
                for d, k in zip(dilation, kernel, strict=True)
            ]
            pads = [*(one // 2 for one in around), *(one - one // 2 for one in around)]
        else:
            pads = _pair(padding, more, 0) * 2
        inputs = self._read_filters(a, x, more)
        self._emit_image(
            "Conv",
            inputs,
            more,
            kernel_shape=kernel,
            strides=stride,
            pads=pads,
            dilations=None if dilation == [1, 1] else dilation,
            group=None if a["groups"] == 1 else a["groups"],
        )

    def _read_filters(self, a: _Args, x: str, more: int | None) -> list[str]:
        """The inputs of a convolution of ``x``: the image, its filters, its bias if it has one."""
        filters = self._read(a["weight"])
        if more is not None:
            filters = self._emit_inner("Unsqueeze", [filters, self._ints(more)], "filters")
        return [x, filters, *([] if a["bias"] is None else [self._read(a["bias"])])]

    def conv_transpose(self, a: _Args) -> None:
        """Pads of both sides are the same; with an output padding the last side has less."""
        weight = a["weight"]
        x, more = self._open_image(a["input"])
        kernel = _pair([int(extent) for extent in self._shape(weight)[2:]], more)
        dilation, stride = (_pair(a[key], more) for key in ("dilation", "stride"))
        padding, beyond = (_pair(a[key], more, 0) for key in ("padding", "output_padding"))
        if a["groups"] != 1 or dilation != [1, 1]:
            raise _RefusedError(
                "is transposed with groups or dilation",
                "groups=1 and dilation=1, or nn.Upsample and a convolution",
            )
        inputs = self._read_filters(a, x, more)
        self._emit_image(
            "ConvTranspose",
            inputs,
            more,
            kernel_shape=kernel,
            strides=stride,
            pads=padding * 2,
            output_padding=beyond if any(beyond) else None,
        )

    def max_pool(self, a: _Args) -> None:
        """Windows that ``ceil_mode`` lets begin inside and end outside have padding there."""
        x, more = self._open_image(a["self"])
        kernel, dilation = (_pair(a[key], more) for key in ("kernel_size", "dilation"))
        strides = _pair(a["stride"], more) or kernel
        before = _pair(a["padding"], more, 0)
        kinds = self._node.meta["val"]
        made = kinds[0] if isinstance(kinds, tuple | list) else kinds
        sizes, counts = (
            [1, *shape[2:]] if more is not None else shape[2:]
            for shape in (self._shape(a["self"]), list(made.shape))
        )
        ends = [
            max((count - 1) * stride + apart * (size - 1) + 1 - extent - pad, pad)
            for count, stride, apart, size, extent, pad in zip(
                counts, strides, dilation, kernel, sizes, before, strict=True
            )
        ]
        self._emit_image(
            "MaxPool",
            [x],
            more,
            kernel_shape=kernel,
            strides=strides,
            pads=[*before, *ends],
            dilations=None if dilation == [1, 1] else dilation,
        )
        self._keep_first()

    def largest(self, a: _Args) -> None:
        """The largest along an axis: a pool of all its places, of values that are channels."""
        if "dim" not in a:
            raise _RefusedError("takes the largest of all values, or of two", _LARGEST)
        shape, axis = self._shape(a["self"]), self._axis(a["self"], a["dim"])
        if axis == 0:
            raise _RefusedError("takes the largest over the batch", _LARGEST)
        made = list(self._node.meta["val"][0].shape)
        if len(made) < 2:
            raise _RefusedError(
                "gives one number for each sample, without an axis beside the batch", _ONE_NUMBER
            )
        others = [other for other in range(1, len(shape)) if other != axis]
        perm = [0, *others, axis]
        x = self._read(a["self"])
        if perm != sorted(perm):
            x = self._emit_inner("Transpose", [x], "turned", perm=perm)
        count = math.prod(int(shape[other]) for other in others)
        places = int(shape[axis])
        apart = self._emit_inner("Reshape", [x, self._ints(-1, count, 1, places)], "places")
        pooled = self._emit_inner("MaxPool", [apart], "pooled", kernel_shape=[1, places])
        self._emit("Reshape", [pooled, self._ints(-1, *(int(extent) for extent in made[1:]))])
        self._keep_first()

    def average_pool(self, a: _Args) -> None:
        x, more = self._open_image(a["self"])
        kernel = _pair(a["kernel_size"], more)
        if a.get("divisor_override") is not None:
            raise _RefusedError(
                "divides by another number than the window has elements",
                "divisor_override=None, and a product with a number",
            )
        pads = _pair(a["padding"], more, 0) * 2
        self._emit_image(
            "AveragePool",
            [x],
            more,
            kernel_shape=kernel,
            strides=_pair(a["stride"], more) or kernel,
            pads=pads,
            ceil_mode=int(a["ceil_mode"]) or None,
            count_include_pad=int(a["count_include_pad"]) if any(pads) else None,
        )

    def adaptive_pool(self, a: _Args) -> None:
        """Windows of one size and stride as a pool; others one by one, along either axis."""
        op = "MaxPool" if "max" in _name_operator(self._node) else "AveragePool"
        kinds = self._node.meta["val"]
        made = kinds[0] if isinstance(kinds, tuple | list) else kinds
        x, more = self._open_image(a["self"])
        size, wanted = (
            [1, *shape[2:]] if more is not None else shape[2:]
            for shape in (self._shape(a["self"]), list(made.shape))
        )
        windows = [
            _find_adaptive_windows(int(have), int(want))
            for have, want in zip(size, wanted, strict=True)
        ]
        strides = [_find_stride(each) for each in windows]
        if all(strides):
            kernel = [stop - start for (start, stop), *_ in windows]
            self._emit_image(op, [x], more, kernel_shape=kernel, strides=strides)
        else:
            for axis, each in enumerate(windows, start=2):
                x = self._pool_windows(op, x, axis, each)
            self._emit_image("Identity", [x], more)
        self._keep_first()

    def _pool_windows(self, op: str, x: str, axis: int, windows: list[tuple[int, int]]) -> str:
        """``x`` with each window along an image's axis as one place."""
        if windows == [(number, number + 1) for number in range(len(windows))]:
            return x
        parts: dict[tuple[int, int], str] = {}
        for start, stop in windows:
            if (start, stop) not in parts:
                lists = [self._ints(number) for number in (start, stop, axis, 1)]
                part = self._emit_inner("Slice", [x, *lists], "window")
                kernel = [1, 1]
                kernel[axis - 2] = stop - start
                if stop - start > 1:
                    part = self._emit_inner(op, [part], "pooled", kernel_shape=kernel)
                parts[start, stop] = part
        return self._emit_inner("Concat", [parts[each] for each in windows], "places", axis=axis)

    def reshape(self, a: _Args) -> None:
        source = a.get("self", a.get("input"))
        if self._shape(source) == self._shape(self._node):
            self._alias(self._node, source)
            return
        self._emit("Reshape", [self._read(source), self._asked(self._node)])

    def permute(self, a: _Args) -> None:
        """Parts that are put before the batch, and then taken one by one, stay after it."""
        rank = len(self._shape(a["self"]))
        perm = [axis % rank for axis in a["dims"]]
        of_batch = self._is_batch(self._shape(a["self"])[0]) and perm[1:2] == [0]
        if of_batch and all(_takes_parts(user, rank) for user in self._node.users):
            perm[:2] = 0, perm[0]
            self._swapped.add(self._node)
        self._transpose(a["self"], perm)

    def _place(self, source: fx.Node, axis: int) -> int:
        """Where an axis of a value is in what stands for it."""
        return 1 - axis if source in self._swapped and axis < 2 else axis

    def transpose(self, a: _Args) -> None:
        rank = len(self._shape(a["self"]))
        perm = list(range(rank))
        if rank > 1:
            one, two = (
                int(a.get(key, number)) % rank for number, key in enumerate(("dim0", "dim1"))
            )
            perm[one], perm[two] = perm[two], perm[one]
        self._transpose(a["self"], perm)

    def _transpose(self, source: fx.Node, perm: list[int]) -> None:
        value = self._values[source]
        if value.stored and perm == [1, 0]:
            self._values[self._node] = Value(self._transpose_once(source))
            return
        self._emit("Transpose", [self._read(source)], perm=perm)

    def expand(self, a: _Args) -> None:
        if self._is_stored(a["self"]):
            self._spread(a["self"])
            return
        asked = [extent if isinstance(extent, int) else 1 for extent in self._shape(self._node)]
        self._emit("Expand", [self._read(a["self"]), self._ints(*asked)])

    def _is_stored(self, item: Any) -> bool:
        return isinstance(item, fx.Node) and item in self._values and self._values[item].stored

    def _spread(self, source: fx.Node) -> None:
        """A tensor of the module once for each sample of the batch, or along other axes."""
        batch, *shape = self._shape(self._node)
        if not self._is_batch(batch) or not all(isinstance(extent, int) for extent in shape):
            shape = self._shape(self._node)
            if not all(isinstance(extent, int) for extent in shape):
                raise _RefusedError(
                    "spreads a tensor along the batch as other than the first axis", _FIRST
                )
            self._emit("Expand", [self._read(source), self._ints(*shape)])
            return
        key = ("batch", *shape)
        if key not in self._made:
            # Its extent, as a list of one, before the others.
            count = self._unique("batch")
            self._add("Shape", [self._values[self._captured.input].name], count, start=0, end=1)
            self._made[key] = self._emit_inner(
                "Concat", [count, self._ints(*shape)], "whole", axis=0
            )
        self._emit("Expand", [self._read(source), self._made[key]])

    def repeat(self, a: _Args) -> None:
        counts = [count if isinstance(count, int) else -1 for count in a["repeats"]]
        rank = len(self._shape(a["self"]))
        if self._is_stored(a["self"]) and counts[1:] == [1] * (rank - 1) and len(counts) == rank:
            self._spread(a["self"])
            return
        if min(counts) < 1 or len(counts) != rank:
            raise _RefusedError(
                "repeats along the batch, or along a new axis",
                "copies along the axes that there are: x.repeat(1, 2)",
            )
        self._emit("Tile", [self._read(a["self"]), self._ints(*counts)])

    def repeat_interleave(self, a: _Args) -> None:
        source, axis = a["self"], a.get("dim")
        if axis is None or not isinstance(a["repeats"], int):
            raise _RefusedError(
                "repeats by other than one number along one axis",
                "one number, and dim=: x.repeat_interleave(2, dim=1)",
            )
        shape = [1 if not isinstance(extent, int) else extent for extent in self._shape(source)]
        axis = self._axis(source, axis)
        apart = self._emit_inner("Unsqueeze", [self._read(source), self._ints(axis + 1)], "apart")
        wide = [*shape[: axis + 1], a["repeats"], *shape[axis + 1 :]]
        copies = self._emit_inner("Expand", [apart, self._ints(*wide)], "copies")
        self._emit("Reshape", [copies, self._asked(self._node)])

    def concat(self, a: _Args) -> None:
        """Along the first axis after the batch, as hstack does, unless another is named."""
        parts = [part for part in a["tensors"] if part not in self._empty]
        if len(parts) == 1:
            self._alias(self._node, parts[0])
            return
        axis = self._axis(parts[0], a.get("dim", 1))
        self._emit("Concat", [self._read(part) for part in parts], axis=axis)

    def stack(self, a: _Args) -> None:
        axis = a["dim"] % len(self._shape(self._node))
        parts = [
            self._emit_inner("Unsqueeze", [self._read(part), self._ints(axis)], "apart")
            for part in a["tensors"]
        ]
        self._emit("Concat", parts, axis=axis)

    def split(self, a: _Args) -> None:
        source = a["self"]
        axis = self._axis(source, a.get("dim", 0))
        kinds = self._node.meta["val"]
        sizes = [kind.shape[axis] for kind in kinds]
        if not all(isinstance(size, int) for size in sizes):
            raise _RefusedError("splits the batch", "a split along another axis")
        base = self._name_output(self._node)
        names = [self._unique(f"{base}/part_{number}") for number in range(len(sizes))]
        self._add("Split", [self._read(source), self._ints(*sizes)], *names, axis=axis)
        self._parts[self._node] = [Value(name) for name in names]
        for name, kind in zip(names, kinds, strict=True):
            self._inform(name, kind)

    def _inform(self, name: str, kind: torch.Tensor) -> None:
        if kind.ndim > 1 and self._is_batch(kind.shape[0]):
            self._infos[name] = _make_info(name, kind)

    def unbind(self, a: _Args) -> None:
        axis = self._place(a["self"], self._axis(a["self"], a["dim"]))
        base, parts = self._name_output(self._node), []
        for number, kind in enumerate(self._node.meta["val"]):
            name = self._unique(f"{base}/part_{number}")
            place = self._store_array(np.array(number, np.int64))
            self._add("Gather", [self._read(a["self"]), place], name, axis=axis)
            self._inform(name, kind)
            parts.append(Value(name))
        self._parts[self._node] = parts

    def select(self, a: _Args) -> None:
        axis, index = self._axis(a["self"], a["dim"]), a["index"]
        if not isinstance(index, int):
            raise _RefusedError("picks a place that depends on the batch", _FIXED)
        extent = self._shape(a["self"])[axis]
        if index < 0 and isinstance(extent, int):
            index += extent
        place = self._store_array(np.array(index, np.int64))
        axis = self._place(a["self"], axis)
        self._emit("Gather", [self._read(a["self"]), place], axis=axis)

    def slice(self, a: _Args) -> None:
        if self._shape(a["self"]) == self._shape(self._node):
            self._alias(self._node, a["self"])
            return
        if self._is_empty(self._node):
            self._empty.add(self._node)
            return
        axis = self._axis(a["self"], a["dim"])
        start, end = a["start"] or 0, _TO_END if a["end"] is None else a["end"]
        if not isinstance(start, int) or not isinstance(end, int):
            raise _RefusedError("cuts at a place that depends on the batch", _FIXED)
        lists = (self._ints(number) for number in (start, end, axis, a["step"]))
        self._emit("Slice", [self._read(a["self"]), *lists])

    def cast(self, a: _Args) -> None:
        """Of floats to floats; masks of ids may become anything."""
        source = a["self"]
        before, after = source.meta["val"].dtype, self._node.meta["val"].dtype
        if before == after or (before in _FLOATS and after in _FLOATS):
            self._alias(self._node, source)
            return
        if source is self._captured.input or before in _FLOATS:
            raise _RefusedError(
                f"casts {before} to {after}", "floats throughout; ids are the input, and stay whole"
            )
        kind = helper.np_dtype_to_tensor_dtype(_to_array(torch.empty(0, dtype=after)).dtype)
        self._emit("Cast", [self._read(source)], to=kind)

    def masked_fill(self, a: _Args) -> None:
        value = a["value"]
        filled = self._read(float(value) if isinstance(value, int | float) else value)
        self._emit("Where", [self._read(a["mask"]), filled, self._read(a["self"])])

    def where(self, a: _Args) -> None:
        keys = ("condition", "self", "other") if "condition" in a else ("cond", "self", "other")
        self._emit("Where", [self._read(self._float(a, key)) for key in keys])

    def equal(self, a: _Args) -> None:
        self._emit("Equal", [self._read(a["self"]), self._read(a["other"])])

    def differ(self, a: _Args) -> None:
        same = self._emit_inner("Equal", [self._read(a["self"]), self._read(a["other"])], "equal")
        self._emit("Not", [same])

    def pad(self, a: _Args) -> None:
        if a.get("mode", "constant") != "constant" or a.get("value") not in (None, 0):
            raise _RefusedError("pads with other than zeros", _ZEROS)
        rank, pads = len(self._shape(self._node)), [int(one) for one in a["pad"]]
        before, after = [0] * rank, [0] * rank
        for number in range(len(pads) // 2):
            before[rank - 1 - number], after[rank - 1 - number] = pads[2 * number : 2 * number + 2]
        source = self._read(a.get("self", a.get("input")))
        self._emit("Pad", [source, self._ints(*before, *after)])

    def attention(self, a: _Args) -> None:
        """In parts, which may have dropout between them."""
        query, key, value = (a[name] for name in ("query", "key", "value"))
        shape, others = self._shape(query), self._shape(key)
        if len(shape) != 4:
            raise _RefusedError(
                f"is of tensors of {len(shape)} axes", "give it [batch, heads, places, features]"
            )
        copies = int(shape[1]) // int(others[1]) if a["enable_gqa"] else 1
        k, v = (self._share_heads(node, copies) for node in (key, value))
        turned = self._emit_inner("Transpose", [k], "keys", perm=[0, 1, 3, 2])
        scores = self._emit_inner("MatMul", [self._read(query), turned], "scores")
        scale = 1 / math.sqrt(int(shape[-1])) if a["scale"] is None else float(a["scale"])
        scores = self._emit_inner("Mul", [scores, self._read(scale)], "scaled")
        mask, causal = a["attn_mask"], bool(a["is_causal"])
        if causal:
            square = torch.ones((int(shape[-2]), int(others[-2])), dtype=torch.bool).tril()
            scores = self._hide(scores, self._store_array(_to_array(square)))
        if mask is not None:
            kind = mask.meta["val"].dtype
            name = self._read(mask)
            if kind == torch.bool:
                scores = self._hide(scores, name)
            else:
                scores = self._emit_inner("Add", [scores, name], "masked")
        weights = self._emit_inner("Softmax", [scores], "weights", axis=-1)
        if a["dropout_p"] > 0:
            inputs = [weights, self._read(float(a["dropout_p"])), self._read(True)]
            weights = self._emit_inner("Dropout", inputs, "dropout")
        self._emit("MatMul", [weights, v])

    def _hide(self, scores: str, kept: str) -> str:
        """Scores that are minus infinity where a mask does not keep them."""
        hidden = self._read(-math.inf)
        return self._emit_inner("Where", [kept, scores, hidden], "masked")

    def _share_heads(self, node: fx.Node, copies: int) -> str:
        """Each head so many times, one after the other."""
        name = self._read(node)
        if copies == 1:
            return name
        _, heads, places, features = self._shape(node)
        apart = self._emit_inner("Unsqueeze", [name, self._ints(2)], "apart")
        wide = self._ints(1, int(heads), copies, int(places), int(features))
        shared = self._emit_inner("Expand", [apart, wide], "copies")
        shape = self._ints(-1, int(heads) * copies, int(places), int(features))
        return self._emit_inner("Reshape", [shared, shape], "shared")

    def refuse_detach(self, a: _Args) -> None:
        raise _RefusedError(
            "stops the gradient of a value, which then would have one", "train without detach()"
        )

    def plain(self, a: _Args) -> None:
        """One operator of one operand, with the same meaning."""
        name = _PLAIN[_name_operator(self._node)]
        self._emit(name, [self._read(a.get("self", a.get("input")))])

    def logical(self, a: _Args) -> None:
        name = _LOGICAL[_name_operator(self._node)]
        operands = [self._read(a[key]) for key in ("self", "other") if key in a]
        self._emit(name, operands)

    def leaky_relu(self, a: _Args) -> None:
        self._emit("LeakyRelu", [self._read(a["self"])], alpha=float(a["negative_slope"]))

    def clip(self, a: _Args) -> None:
        lo, hi = (a.get(one, a.get(two)) for one, two in (("min_val", "min"), ("max_val", "max")))
        self._hold(a, lo, hi)

    def relu6(self, a: _Args) -> None:
        self._hold(a, 0.0, 6.0)

    def _hold(self, a: _Args, lo: Any, hi: Any) -> None:
        if not all(bound is None or isinstance(bound, int | float) for bound in (lo, hi)):
            raise _RefusedError("has bounds that are computed", "numbers as bounds")
        bounds = ["" if bound is None else self._read(float(bound)) for bound in (lo, hi)]
        self._emit("Clip", [self._read(a["self"]), *bounds])


_Args = dict[str, Any]


def _name_operator(node: fx.Node) -> str:
    """As "aten.linear", without the overload."""
    if node.op != "call_function":
        return node.op
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet) if packet is not None else str(getattr(node.target, "__name__", node.target))


def _takes_parts(node: fx.Node, rank: int) -> bool:
    """Whether a node takes parts of a value along its first axis alone."""
    if _name_operator(node) not in ("aten.select", "aten.unbind"):
        return False
    return int(_bind(node)["dim"]) % rank == 0


def _bind(node: fx.Node) -> _Args:
    """Arguments by their names, with defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    bound: _Args = {}
    for number, argument in enumerate(schema.arguments):
        if number < len(node.args):
            bound[argument.name] = node.args[number]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
        else:
            bound[argument.name] = None
    return bound


def _make_info(name: str, tensor: torch.Tensor) -> onnx.ValueInfoProto:
    """Of a value [batch, ...]."""
    kind = TensorProto.FLOAT if tensor.dtype in _FLOATS else TensorProto.INT64
    shape: list[str | int | None] = ["batch", *(int(extent) for extent in tensor.shape[1:])]
    return helper.make_tensor_value_info(name, kind, shape)


def _find_adaptive_windows(have: int, want: int) -> list[tuple[int, int]]:
    """Start and stop of the window of each place of an adaptive pool, as torch has them."""
    return [(i * have // want, -((i + 1) * have // -want)) for i in range(want)]


def _find_stride(windows: list[tuple[int, int]]) -> int:
    """The stride of windows that a pool has; 0 where theirs or their sizes differ."""
    sizes = {stop - start for start, stop in windows}
    strides = {later - start for (start, _), (later, _) in pairwise(windows)} or sizes
    return strides.pop() if len(sizes) == len(strides) == 1 else 0


def _pair(value: Any, more: int | None, beside: int = 1) -> list[int]:
    """One number for both axes, or one each; [] where there is none.  Of a line (``more`` is an
    axis), ``beside`` is that of its height."""
    numbers = [value] if isinstance(value, int) else [int(one) for one in value]
    if len(numbers) != 1:
        return numbers
    return numbers * 2 if more is None else [beside, *numbers]


def _to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.contiguous().numpy()


_T = _Translator
_BATCH_NORMS_IN_TRAINING = frozenset(
    ("aten._batch_norm_with_update", "aten._batch_norm_with_update_functional")
)
"""Forms that are of training, without an argument that says so."""
_OF_STATISTICS = frozenset(
    (
        *("aten.batch_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit"),
        *("aten._native_batch_norm_legit_functional", "aten._batch_norm_no_update"),
        *("aten._native_batch_norm_legit_no_training", *_BATCH_NORMS_IN_TRAINING),
    )
)
"""What reads running statistics, and may leave others in their place."""
_JOINING: Final = ("aten.cat", "aten.concat", "aten.concatenate", "aten.hstack")
_PLAIN: Final = {
    "aten.relu": "Relu",
    "aten.sigmoid": "Sigmoid",
    "aten.tanh": "Tanh",
    "aten.sqrt": "Sqrt",
    "aten.reciprocal": "Reciprocal",
    "aten.erf": "Erf",
}
_LOGICAL: Final = {
    "aten.logical_not": "Not",
    "aten.bitwise_not": "Not",
    "aten.logical_and": "And",
    "aten.bitwise_and": "And",
    "aten.__and__": "And",
    "aten.logical_or": "Or",
    "aten.bitwise_or": "Or",
    "aten.__or__": "Or",
}
_HANDLERS: Final[Mapping[str, Callable[[_Translator, _Args], None]]] = {
    **dict.fromkeys(_PLAIN, _T.plain),
    **dict.fromkeys(_LOGICAL, _T.logical),
    **dict.fromkeys(
        (
            *("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unflatten"),
            *("aten.unsqueeze", "aten.squeeze"),
        ),
        _T.reshape,
    ),
    **dict.fromkeys(("aten.matmul", "aten.mm", "aten.bmm"), _T.matmul),
    **dict.fromkeys(
        ("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax"), _T.softmax
    ),
    **dict.fromkeys(("aten.transpose", "aten.swapaxes", "aten.t", "aten.numpy_T"), _T.transpose),
    **dict.fromkeys(("aten.to", "aten._to_copy", "aten.type_as", "aten.float"), _T.cast),
    **dict.fromkeys(("aten.pad", "aten.constant_pad_nd"), _T.pad),
    **dict.fromkeys(("aten.split", "aten.split_with_sizes", "aten.chunk"), _T.split),
    **dict.fromkeys(("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution"), _T.conv),
    **dict.fromkeys(
        ("aten.hardtanh", "aten.clamp", "aten.clamp_max", "aten.clamp_min", "aten.clip"), _T.clip
    ),
    **dict.fromkeys(("aten.abs", "aten.absolute"), _T.absolute),
    **dict.fromkeys(_JOINING, _T.concat),
    **dict.fromkeys(("aten.div", "aten.divide", "aten.true_divide"), _T.divide),
    **dict.fromkeys(("aten.mul", "aten.multiply"), _T.multiply),
    **dict.fromkeys(("aten.neg", "aten.negative"), _T.negate),
    **dict.fromkeys(("aten.sub", "aten.subtract"), _T.subtract),
    **dict.fromkeys(("aten.detach", "aten.detach_"), _T.refuse_detach),
    **dict.fromkeys(_OF_STATISTICS, _T.batch_norm),
    **dict.fromkeys(
        (
            *("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten._adaptive_avg_pool2d"),
            *("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d"),
        ),
        _T.adaptive_pool,
    ),
    **dict.fromkeys(("aten.upsample_nearest1d", "aten.upsample_nearest2d"), _T.upsample_nearest),
    **dict.fromkeys(
        ("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d"),
        _T.conv_transpose,
    ),
    "aten._fused_rms_norm": _T.rms_norm,
    "aten.add": _T.add,
    "aten.addmm": _T.addmm,
    "aten.avg_pool1d": _T.average_pool,
    "aten.avg_pool2d": _T.average_pool,
    "aten.celu": _T.celu,
    "aten.channel_shuffle": _T.channel_shuffle,
    "aten.dropout": _T.dropout,
    "aten.elu": _T.elu,
    "aten.embedding": _T.embedding,
    "aten.eq": _T.equal,
    "aten.expand": _T.expand,
    "aten.feature_dropout": _T.feature_dropout,
    "aten.gelu": _T.gelu,
    "aten.glu": _T.glu,
    "aten.group_norm": _T.group_norm,
    "aten.hardsigmoid": _T.hard_sigmoid,
    "aten.hardswish": _T.hard_swish,
    "aten.instance_norm": _T.instance_norm,
    "aten.layer_norm": _T.layer_norm,
    "aten.leaky_relu": _T.leaky_relu,
    "aten.linear": _T.linear,
    "aten.masked_fill": _T.masked_fill,
    "aten.max_pool1d": _T.max_pool,
    "aten.max_pool1d_with_indices": _T.max_pool,
    "aten.max_pool2d": _T.max_pool,
    "aten.max_pool2d_with_indices": _T.max_pool,
    "aten.max": _T.largest,
    "aten.mean": _T.mean,
    "aten.ne": _T.differ,
    "aten.native_dropout": _T.dropout,
    "aten.permute": _T.permute,
    "aten.pixel_shuffle": _T.pixel_shuffle,
    "aten.pixel_unshuffle": _T.pixel_unshuffle,
    "aten.pow": _T.power,
    "aten.prelu": _T.prelu,
    "aten.repeat": _T.repeat,
    "aten.repeat_interleave": _T.repeat_interleave,
    "aten.rms_norm": _T.rms_norm,
    "aten.rsqrt": _T.rsqrt,
    "aten.relu6": _T.relu6,
    "aten.rsub": _T.subtract_from,
    "aten.scaled_dot_product_attention": _T.attention,
    "aten.select": _T.select,
    "aten.selu": _T.selu,
    "aten.silu": _T.silu,
    "aten.slice": _T.slice,
    "aten.square": _T.square,
    "aten.stack": _T.stack,
    "aten.sum": _T.sum,
    "aten.unbind": _T.unbind,
    "aten.where": _T.where,
}
_OVERWRITING = frozenset(
    f"aten.{name}"
    for name in (
        *("copy", "fill", "index_fill", "index_put", "masked_scatter", "scatter", "scatter_add"),
        *("select_scatter", "slice_scatter"),
    )
)
_BY_PLACES: Final = "a layer over one axis or two, of the same kind"
_ZEROS: Final = "zeros: nn.ZeroPad2d, or the padding of the convolution"
_SMOOTH: Final = "nn.SiLU or nn.ELU"
_NEAREST: Final = 'nn.Upsample(mode="nearest") with a whole scale factor'
_INSTEAD: Final = {
    **dict.fromkeys(("aten.softplus", "aten.mish", "aten.softsign"), _SMOOTH),
    "aten.log_sigmoid": "nn.Sigmoid, or logits as the output, of which the loss is",
    **dict.fromkeys(("aten.threshold", "aten.hardshrink", "aten.le", "aten.gt"), "nn.ReLU"),
    **dict.fromkeys(("aten.softshrink", "aten.sign"), "nn.ReLU, or a clip: nn.Hardtanh"),
    **dict.fromkeys(
        (
            *("aten.adaptive_avg_pool3d", "aten.adaptive_max_pool3d", "aten.avg_pool3d"),
            *("aten.max_pool3d", "aten.max_pool3d_with_indices", "aten.upsample_nearest3d"),
        ),
        _BY_PLACES,
    ),
    **dict.fromkeys(
        (
            *("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_bicubic2d"),
            *("aten._upsample_nearest_exact1d", "aten._upsample_nearest_exact2d"),
        ),
        _NEAREST,
    ),
    **dict.fromkeys(
        ("aten.max_unpool2d", "aten.max_unpool3d", "aten.col2im"),
        "nn.ConvTranspose2d, or nn.Upsample and a convolution",
    ),
    "aten.fractional_max_pool2d": "nn.MaxPool2d or nn.AdaptiveMaxPool2d",
    "aten.im2col": "nn.Conv2d, or a reshape and a permutation for patches that do not overlap",
    "aten.bilinear": "nn.Linear of both joined by torch.cat",
    **dict.fromkeys(
        ("aten.cosine_similarity", "aten.pairwise_distance", "aten.linalg_vector_norm"),
        "torch.matmul of values that nn.RMSNorm has scaled",
    ),
    "aten.embedding_bag": "nn.Embedding, and a mean over its places: embedding(ids).mean(1)",
    **dict.fromkeys(
        (
            *("aten.gru", "aten.gru_cell", "aten.lstm", "aten.lstm_cell"),
            *("aten.rnn_tanh", "aten.rnn_tanh_cell", "aten.rnn_relu", "aten.rnn_relu_cell"),
        ),
        "attention, or layers without a state of their own",
    ),
    **dict.fromkeys(
        ("aten.min", "aten.amin"), "the opposite of the largest opposite: -(-x).max(dim=1).values"
    ),
    "aten.amax": "x.max(dim=1).values, whose gradient goes to one place",
    "aten.maximum": "a + torch.relu(b - a), whose gradient of equals goes to a",
    "aten.minimum": "a - torch.relu(a - b), whose gradient of equals goes to a",
    **dict.fromkeys(("aten.topk", "aten.sort"), "the largest alone: x.max(dim=1).values"),
    **dict.fromkeys(("aten.roll", "aten.flip"), "torch.cat of slices, as x[:, -1:] and x[:, :-1]"),
    "aten.item": "a number that does not depend on the input",
    "aten.argmax": "one place of all samples (x[:, -1]), or x.mean(1) or x.max(1).values of them",
    **dict.fromkeys(("aten._weight_norm", "aten._weight_norm_interface"), PLAIN_WEIGHT),
    "aten.cumsum": "make positions of torch.arange",
    "aten.index": "slices, a place that all samples have, or an embedding by the model's input",
    "aten.einsum": "torch.matmul of operands with the same leading axes",
}
