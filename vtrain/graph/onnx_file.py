"""Reading and writing the bytes of an ONNX file: limits, protobuf, stored tensors.

``onnx.checker`` and ``onnx.load`` are not used: both may follow external-data paths of a hostile
file.  What we accept is narrower than ONNX, and everything accepted is checked here or by the
importer.  Data outside the file are read by :mod:`.onnx_external`, and only for a path that a user
gave: bytes, and what a run has, are one file or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from vtrain.commit.files import read_file
from vtrain.errors import EncodingError, ModelError, VtrainError
from vtrain.graph.onnx_external import inline_data
from vtrain.limits import LIMITS, limits_here
from vtrain.wire.graph import MAX_RANK
from vtrain.wire.json_text import decode_json

_FLOATS: Mapping[int, npt.DTypeLike] = {
    onnx.TensorProto.FLOAT: "<f4",
    onnx.TensorProto.DOUBLE: "<f8",
    onnx.TensorProto.FLOAT16: "<f2",
    onnx.TensorProto.BFLOAT16: "<u2",  # widened to float32 below
}
_INTS: Mapping[int, npt.DTypeLike] = {
    onnx.TensorProto.BOOL: "|u1",
    onnx.TensorProto.INT8: "|i1",
    onnx.TensorProto.UINT8: "|u1",
    onnx.TensorProto.INT16: "<i2",
    onnx.TensorProto.INT32: "<i4",
    onnx.TensorProto.INT64: "<i8",
}


def load_model(source: bytes | Path | onnx.ModelProto) -> onnx.ModelProto:
    """Parse an ONNX file: its bytes, its path (as of :func:`read_onnx`), or the message itself.

    ModelError when it is not one, is too large or cannot be read.
    """
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, Path):
        source = read_onnx(source)
    limit = limits_here().onnx_bytes
    if len(source) > limit:
        raise ModelError(f"is larger than {limit} bytes", where="ONNX file")
    return _parse(source)


def read_onnx(path: Path, *, error: type[VtrainError] = ModelError) -> bytes:
    """The bytes of an ONNX file, or where it keeps data in files beside it, those of the same model
    saved in one file.

    ``error`` when the file cannot be read; ModelError for what it names, and where it is no ONNX
    file and looks as if it named something.
    """
    limit = limits_here().onnx_bytes
    data = read_file(path, limit, error=error)
    if b"location" not in data:  # the key by which a tensor names a file
        return data
    model = _parse(data)
    return save_model(model) if inline_data(model, path.parent, limit - len(data)) else data


def _parse(source: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(source)
    except DecodeError as error:
        raise ModelError(f"is not an ONNX file: {error}", where="ONNX file") from error
    return model


def save_model(model: onnx.ModelProto) -> bytes:
    """The bytes of an ONNX file, the same for equal messages."""
    try:
        data: bytes = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise ModelError(f"cannot be written as protobuf: {error}", where="ONNX file") from error
    return data


EXACT_PRODUCER: Final = "vtrain"
"""Names the writer of files in which each parameter has one tensor under its own name."""
NAMES_KEY: Final = "vtrain.state_dict"
"""Of a file's metadata: JSON, a list of [name in the module's state_dict, name of the tensor]."""

ROW_KEY: Final = "vtrain.row_without_gradient"
"""Of a node's metadata: the row of a table that what the node reads of it does not train."""


def is_named_exactly(model: onnx.ModelProto) -> bool:
    """Whether one tensor of the file is one parameter: torch's exporters write equal ones once,
    and a table that is used transposed twice."""
    return bool(model.producer_name == EXACT_PRODUCER)


def find_stored_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Tensors in the file, by value name: initialisers, and the ``value`` of Constant nodes."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and len(node.output) == 1:
            tensors.update(
                (node.output[0], attribute.t)
                for attribute in node.attribute
                if attribute.name == "value" and attribute.HasField("t")
            )
    return tensors


def store_copies(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Replace each ``Identity`` of a stored tensor, and each ``Gather`` of all its rows in order,
    that makes one of ``names`` by a tensor of that name: a copy, which can then have values of its
    own.  (No other ``Gather`` makes a parameter.)  A tensor that nothing reads any more goes."""
    tensors = find_stored_tensors(graph)
    kept, replaced = [], set[str]()
    for node in graph.node:
        source = tensors.get(node.input[0]) if node.input else None
        rows = node.op_type == "Gather" and set(node.output) <= set(names)
        if not (rows or node.op_type == "Identity") or len(node.output) != 1 or source is None:
            kept.append(node)
            continue
        copy = onnx.TensorProto()
        copy.CopyFrom(source)
        copy.name = node.output[0]
        tensors[copy.name] = copy
        if copy.name in names:
            graph.initializer.append(copy)
            replaced.update(node.input)
        else:
            kept.append(node)
    idle = replaced - {name for node in kept for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in idle]:
        graph.initializer.remove(tensor)
    kept = [node for node in kept if not node.output or not set(node.output) <= idle]
    if len(kept) < len(graph.node):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(nodes)


def drop_nothing(graph: onnx.GraphProto) -> None:
    """Make each ``Dropout`` that may be in training mode an ``Identity``; constants that it alone
    read go with it."""
    turned = [node for node in graph.node if node.op_type == "Dropout" and len(node.input) > 1]
    read = {name for node in turned for name in node.input[1:]}
    for node in turned:
        node.op_type = "Identity"
        del node.input[1:], node.output[1:], node.attribute[:]
    idle = read - {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in idle]:
        graph.initializer.remove(tensor)
    for node in [node for node in graph.node if node.output and set(node.output) <= idle]:
        graph.node.remove(node)


def use_statistics(graph: onnx.GraphProto) -> None:
    """Make each ``BatchNormalization`` take its running statistics, not those of a batch."""
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0


def drop_stored_shapes(graph: onnx.GraphProto) -> None:
    """Remove the shapes that a graph declares of what its nodes make of stored tensors alone.

    A file of a module declares them as the module has them, with the batch along which they are
    repeated, where the file's own nodes have them once.
    """
    stored = set(find_stored_tensors(graph))
    for node in graph.node:
        if set(node.input) <= stored:
            stored.update(node.output)
    kept = [info for info in graph.value_info if info.name not in stored]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def separate_vectors(graph: onnx.GraphProto) -> onnx.GraphProto:
    """``graph``, or a copy in which nodes that share a vector of equal numbers read one each.

    torch's exporter stores equal initial values once: the ones of every norm's scale, the zeros of
    biases.  They are parameters of their own: of each norm, and of each product by another weight.
    Every owner but the first reads an ``Identity`` of the vector, under a name of its own.
    """
    vectors = {tensor.name for tensor in graph.initializer if _is_uniform(tensor)}
    columns = {
        tensor.name
        for tensor in graph.initializer
        if tensor.name in vectors and len(tensor.dims) > 1 and tensor.dims[-1] == 1
    }
    stored = {tensor.name for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    owned: dict[str, dict[str, str]] = {name: {} for name in vectors}
    taken = stored | set(makers) | {value.name for value in graph.input}
    nodes, renamed = [], False
    for number, original in enumerate(graph.node):
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for at, name in enumerate(node.input):
            owner = _find_owner(node, at, number, makers, stored) if name in vectors else None
            if name in columns and node.op_type == "Add":
                owner = f"node {number}"  # a bias of channels
            if owner is None:
                continue
            if owner not in owned[name]:
                copy = name if not owned[name] else f"{name}/{len(owned[name]) + 1}"
                owned[name][owner] = copy
                if copy != name:
                    if copy in taken:
                        raise ModelError(f"the name {copy!r} is taken", where="graph")
                    nodes.append(
                        onnx.NodeProto(op_type="Identity", name=copy, input=[name], output=[copy])
                    )
            node.input[at] = owned[name][owner]
            renamed = renamed or node.input[at] != name
        nodes.append(node)
    if not renamed:
        return graph
    separate = onnx.GraphProto()
    separate.CopyFrom(graph)
    del separate.node[:]
    separate.node.extend(nodes)
    return separate


_NORMS = (
    *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
)


def _is_uniform(tensor: onnx.TensorProto) -> bool:
    """Whether it is one row of floats that are all equal."""
    if tensor.data_type not in _FLOATS or not tensor.dims:
        return False
    size = count_elements(read_dims(tensor, f"initialiser {tensor.name}"), tensor.name)
    if size == 0 or max(tensor.dims) != size:
        return False
    values = read_floats(tensor, f"initialiser {tensor.name}").reshape(-1)
    return bool((values == values[0]).all())


def _find_owner(
    node: onnx.NodeProto,
    at: int,
    number: int,
    makers: Mapping[str, onnx.NodeProto],
    stored: Set[str],
) -> str | None:
    """Whose the vector at an input of a node is; None where it may be anything."""
    if node.op_type == "BatchNormalization":
        return f"node {number} input {at}" if at else None
    if node.op_type in _NORMS or node.op_type == "Mul":
        return f"node {number}" if at or node.op_type == "Mul" else None
    if node.op_type in ("Gemm", "Conv"):
        return node.input[1] if at == 2 else None
    if node.op_type != "Add" or len(node.input) != 2:
        return None
    maker = makers.get(node.input[1 - at])
    weights = list(maker.input) if maker is not None and maker.op_type == "MatMul" else []
    return next((name for name in weights if name in stored), None)


def read_dims(tensor: onnx.TensorProto, where: str) -> tuple[int, ...]:
    """Shape of a stored tensor.  ModelError: negative or huge extents, data outside the file."""
    if tensor.data_location != onnx.TensorProto.DEFAULT or tensor.external_data:
        raise ModelError(
            "keeps its data outside the file, which is read only where a task file, or "
            "import_onnx, names the model by its path: name it so, or save the model in one file "
            "(torch.onnx.export: external_data=False)",
            where=where,
        )
    if tensor.HasField("segment"):
        raise ModelError("is a segment of a tensor", where=where)
    dims = tuple(tensor.dims)
    if len(dims) > MAX_RANK:
        raise ModelError(f"has {len(dims)} axes, more than {MAX_RANK}", where=where)
    if any(extent < 0 for extent in dims):
        raise ModelError(f"has a negative extent: {list(dims)}", where=where)
    count_elements(dims, where)
    return dims


def count_elements(shape: tuple[int, ...], where: str) -> int:
    """Number of elements of a shape; ModelError when beyond the limit."""
    count = 1
    for extent in shape:
        count *= extent
        if count > LIMITS.onnx_elements:
            raise ModelError(
                f"shape {list(shape)} is beyond {LIMITS.onnx_elements} elements", where=where
            )
    return count


def read_floats(tensor: onnx.TensorProto, where: str) -> npt.NDArray[np.floating[Any]]:
    """Elements of a stored tensor of float32, float64, float16 or bfloat16 (given as float32)."""
    values = _read_elements(tensor, _FLOATS, "a float tensor", where)
    if tensor.data_type == onnx.TensorProto.BFLOAT16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def read_tensor(tensor: onnx.TensorProto, where: str) -> npt.NDArray[Any]:
    """Elements of a stored tensor of any type that is taken."""
    if tensor.data_type in _FLOATS:
        return read_floats(tensor, where)
    values = read_ints(tensor, where)
    return values.astype(np.bool_) if tensor.data_type == onnx.TensorProto.BOOL else values


def read_state_names(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """(name in the module's state_dict, name of the tensor in the file), as its metadata have it.

    ModelError where they do not.
    """
    where = f"metadata {NAMES_KEY}"
    texts = [entry.value for entry in model.metadata_props if entry.key == NAMES_KEY]
    if len(texts) != 1:
        raise ModelError(f"is there {len(texts)} times", where=where)
    try:
        found = decode_json(texts[0].encode(), where)
    except EncodingError:
        found = None
    if not isinstance(found, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        for pair in found
    ):
        raise ModelError("is no list of pairs of names", where=where)
    return [(one, other) for one, other in found]


def read_ints(tensor: onnx.TensorProto, where: str) -> npt.NDArray[np.integer[Any]]:
    """Elements of a stored tensor of int64, int32, int16, int8, uint8 or bool."""
    return _read_elements(tensor, _INTS, "an integer tensor", where)


def _read_elements(
    tensor: onnx.TensorProto, dtypes: Mapping[int, npt.DTypeLike], kind: str, where: str
) -> npt.NDArray[Any]:
    if tensor.data_type not in dtypes:
        raise ModelError(f"is not {kind} (ONNX data type {tensor.data_type})", where=where)
    dtype = np.dtype(dtypes[tensor.data_type])
    dims = read_dims(tensor, where)
    expected = count_elements(dims, where)
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != expected * dtype.itemsize:
            raise ModelError(
                f"shape {list(dims)} needs {expected * dtype.itemsize} bytes of data, "
                f"has {len(tensor.raw_data)}",
                where=where,
            )
        return np.frombuffer(tensor.raw_data, dtype=dtype).reshape(dims)
    typed = _typed_data(tensor)
    if len(typed) != expected:
        raise ModelError(
            f"shape {list(dims)} needs {expected} elements, has {len(typed)}", where=where
        )
    if tensor.data_type in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16):
        # Sixteen-bit floats travel as their bit patterns in int32_data.
        patterns = np.array(typed, dtype=np.int64)
        if ((patterns < 0) | (patterns > 0xFFFF)).any():
            raise ModelError("has a bit pattern beyond 16 bits", where=where)
        return patterns.astype("<u2").view(dtype).reshape(dims)
    return np.array(typed).astype(dtype).reshape(dims)


def _typed_data(tensor: onnx.TensorProto) -> Any:
    """The repeated field that holds the elements when ``raw_data`` does not."""
    match tensor.data_type:
        case onnx.TensorProto.FLOAT:
            return tensor.float_data
        case onnx.TensorProto.DOUBLE:
            return tensor.double_data
        case onnx.TensorProto.INT64:
            return tensor.int64_data
        case _:
            return tensor.int32_data


def use_single(graph: onnx.GraphProto) -> None:
    """Make every float of a graph float32: its stored tensors, and what its casts give.

    The inputs of a file that is named exactly are float32 whatever the module's type was, and a
    runtime takes operands of one type alone.
    """
    for tensor in find_stored_tensors(graph).values():
        if tensor.data_type not in _FLOATS or tensor.data_type == onnx.TensorProto.FLOAT:
            continue
        where = f"initialiser {tensor.name}"
        values = read_floats(tensor, where).astype(np.float64)
        tensor.data_type = onnx.TensorProto.FLOAT
        write_floats(tensor, values, where)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = onnx.TensorProto.FLOAT


def write_floats(tensor: onnx.TensorProto, values: npt.NDArray[np.float64], where: str) -> None:
    """Replace the elements of a stored float tensor, keeping its name, shape and data type.

    ``values`` are rounded to the nearest value of that type, ties to even.
    """
    if tensor.data_type not in _FLOATS:
        raise ModelError(f"is not a float tensor (data type {tensor.data_type})", where=where)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    data = values.astype(dtype).reshape(tuple(tensor.dims))
    for field in ("float_data", "double_data", "int32_data"):
        tensor.ClearField(field)
    tensor.raw_data = data.astype(data.dtype.newbyteorder("<")).tobytes()
