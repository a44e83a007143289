"""One node of the file, with its attributes read strictly."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import onnx

from vtrain.errors import ModelError
from vtrain.graph.onnx_file import read_floats, read_ints
from vtrain.graph.onnx_import import fold
from vtrain.limits import LIMITS
from vtrain.wire.graph import MAX_RANK

DEFAULT_DOMAINS = ("", "ai.onnx")
FLOAT_TYPES = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)


def require_text(value: str | bytes, what: str) -> str:
    """A name as text: protobuf hands over as bytes what is not UTF-8."""
    if isinstance(value, bytes):
        raise ModelError(f"{what} {value[:40]!r} is not UTF-8", where="ONNX file")
    if len(value.encode()) > LIMITS.onnx_name_bytes:
        raise ModelError(
            f"{what} {value[:40]!r}... is longer than {LIMITS.onnx_name_bytes} bytes",
            where="ONNX file",
        )
    return value


class Node:
    """One node, with its attributes read strictly: each is known, of its type, and there once."""

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.op = require_text(proto.op_type, "operator")
        self.inputs = [require_text(name, "value name") for name in proto.input]
        self.outputs = [require_text(name, "value name") for name in proto.output]
        label = require_text(proto.name, "node name") or next(filter(None, self.outputs), "?")
        self.where = f"node {label} ({self.op})"
        for names in (self.inputs, self.outputs):  # optional trailing ones may be given as ""
            while names and not names[-1]:
                names.pop()
        if require_text(proto.domain, "domain") not in DEFAULT_DOMAINS:
            self.refuse(f"operators of domain {proto.domain!r} are not supported")
        self.metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self._attributes: dict[str, onnx.AttributeProto] = {}
        for attribute in proto.attribute:
            name = require_text(attribute.name, "attribute")
            if name in self._attributes:
                self.refuse(f"has attribute {name} twice")
            self._attributes[name] = attribute

    def refuse(self, message: str) -> NoReturn:
        raise ModelError(message, where=self.where)

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            self.refuse(message)

    def require_arity(self, least: int, most: int) -> None:
        """``least`` to ``most`` inputs, all given, and one output."""
        self.require(
            least <= len(self.inputs) <= most and all(self.inputs),
            f"needs {least} to {most} inputs, has {len(self.inputs)}",
        )
        self.require(len(self.outputs) == 1, f"must have one output, has {len(self.outputs)}")

    def require_inputs(self, least: int, most: int) -> None:
        """``least`` to ``most`` inputs, those after the first ``least`` may be left out."""
        self.require(
            least <= len(self.inputs) <= most and all(self.inputs[:least]),
            f"needs {least} to {most} inputs, has {len(self.inputs)}",
        )

    def has(self, name: str) -> bool:
        return name in self._attributes

    def take(self, name: str, kind: int) -> onnx.AttributeProto | None:
        attribute = self._attributes.pop(name, None)
        if attribute is not None and (attribute.type != kind or attribute.ref_attr_name):
            self.refuse(f"attribute {name} is of another type")
        return attribute

    def take_int(self, name: str, default: int) -> int:
        attribute = self.take(name, onnx.AttributeProto.INT)
        return default if attribute is None else attribute.i

    def take_float(self, name: str, default: float) -> float:
        attribute = self.take(name, onnx.AttributeProto.FLOAT)
        return default if attribute is None else attribute.f

    def take_text(self, name: str, default: str) -> str:
        attribute = self.take(name, onnx.AttributeProto.STRING)
        return default if attribute is None else attribute.s.decode(errors="replace")

    def take_ints(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        attribute = self.take(name, onnx.AttributeProto.INTS)
        if attribute is None:
            return default
        self.require(len(attribute.ints) <= MAX_RANK, f"attribute {name} is too long")
        return tuple(attribute.ints)

    def widen(self, name: str, beside: tuple[int, ...]) -> None:
        """Put each of ``beside`` before an equal share of the integers of an attribute: what is
        said of a line as of an image of height 1."""
        attribute = self._attributes.get(name)
        if attribute is None or attribute.type != onnx.AttributeProto.INTS:
            return
        size = len(beside)
        self.require(
            len(attribute.ints) == size,
            f"attribute {name} is {list(attribute.ints)}, of a line it has {size}",
        )
        wide = onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
        for one, given in zip(beside, attribute.ints, strict=True):
            wide.ints.extend((one, given))
        self._attributes[name] = wide

    def take_all(self) -> dict[str, Any]:
        """All attributes left, as constants have them."""
        found: dict[str, Any] = {}
        for name, attribute in self._attributes.items():
            where = f"{self.where} {name}"
            match attribute.type:
                case onnx.AttributeProto.INT:
                    found[name] = attribute.i
                case onnx.AttributeProto.FLOAT:
                    found[name] = attribute.f
                case onnx.AttributeProto.STRING:
                    found[name] = attribute.s.decode(errors="replace")
                case onnx.AttributeProto.INTS:
                    found[name] = tuple(attribute.ints)
                case onnx.AttributeProto.TENSOR:
                    found[name] = read_constant(attribute.t, where)
                case _:
                    self.refuse(f"attribute {name} is of another type")
        self._attributes.clear()
        return found

    def require_no_more_attributes(self) -> None:
        self.require(not self._attributes, f"has unknown attributes {sorted(self._attributes)}")


def read_constant(tensor: onnx.TensorProto, where: str) -> fold.Constant:
    """A stored tensor in the form of :mod:`.fold`."""
    if tensor.data_type in FLOAT_TYPES:
        return fold.as_constant(read_floats(tensor, where))
    values = read_ints(tensor, where)
    is_bool = tensor.data_type == onnx.TensorProto.BOOL
    return fold.as_constant(values.astype(np.bool_) if is_bool else values)
