"""Hashing as nodes: a record that disagrees with its own trace is isolated like any other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Operator,
    Reason,
    attr_int,
    attr_ints,
    attr_text,
    integer_type,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.spec import commitment
from vtrain.wire.graph import Attrs, TensorType
from vtrain.wire.opening import StateLeaf

_NO_HASH_IN_ONNX = Reason("ONNX has no BLAKE3; the exported graph ends at the values hashed here")
_DIGEST = TensorType("u8", (32,), 0, 0, 255)


def _as_array(digest: bytes) -> Array:
    return np.frombuffer(digest, dtype=np.uint8)


def _is_digest(tensor: TensorType) -> bool:
    return tensor.dtype == "u8" and tensor.shape == (32,)


def _tensor_digest_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return _as_array(commitment.compute_tensor_digest(inputs[0]))


def _tensor_digest_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """BLAKE3 of the little-endian row-major bytes: what b3sum prints."""
    require_keys(attrs)
    require_inputs(inputs, "int")
    return _DIGEST


def _batch_digest_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, y = inputs
    return _as_array(commitment.compute_batch_digest(x.tobytes(), y.tobytes()))


def _batch_digest_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """H_batch(digest of x || digest of y), of the raw gathered samples."""
    require_keys(attrs)
    require(len(inputs) == 2 and all(map(_is_digest, inputs)), "needs the digests of x and y")
    return _DIGEST


def _state_leaf_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    leaf = StateLeaf(
        name=attr_text(attrs, "name"),
        dtype=attr_text(attrs, "dtype"),
        shape=attr_ints(attrs, "shape"),
        exponent=attr_int(attrs, "exponent"),
        digest=inputs[0].tobytes(),
    )
    return _as_array(commitment.compute_state_leaf(leaf))


def _state_leaf_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Leaf hash of one state tensor: name, dtype, shape, exponent and digest."""
    require_keys(attrs, "dtype", "exponent", "name", "shape")
    attr_text(attrs, "name")
    attr_text(attrs, "dtype", ("i32", "i64"))
    exponent, shape = attr_int(attrs, "exponent"), attr_ints(attrs, "shape")
    integer_type("i64", shape, exponent, 0, 0)
    require(len(inputs) == 1 and _is_digest(inputs[0]), "needs a digest")
    return _DIGEST


def _state_root_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return _as_array(commitment.compute_state_root([leaf.tobytes() for leaf in inputs]))


def _state_root_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Root over the leaf hashes, which come in the UTF-8 order of their names."""
    require_keys(attrs)
    require(all(map(_is_digest, inputs)), "needs leaf hashes")
    return _DIGEST


def _record_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    step, batch_digest, loss, root = inputs
    commits = int(step) % attr_int(attrs, "commit_every") == 0
    state_root = root.tobytes() if commits else b""
    return _as_array(
        commitment.compute_record_leaf(int(step), batch_digest.tobytes(), int(loss), state_root)
    )


def _record_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """Leaf hash of the step record (step, batch digest, loss, state root): the run log's leaf.

    Every ``commit_every`` steps the record has the state root, otherwise none (empty bytes).
    """
    require_keys(attrs, "commit_every")
    attr_int(attrs, "commit_every", 1, 2**40)
    require(len(inputs) == 4, "needs step, batch digest, loss and state root")
    step, batch_digest, loss, root = inputs
    require(_is_digest(batch_digest) and _is_digest(root), "needs digests")
    scalars = all(x.dtype == "i64" and x.shape == () for x in (step, loss))
    require(scalars, "step and loss are int64 scalars")
    return _DIGEST


OPERATORS = table(
    Operator("tensor_digest", _tensor_digest_law, _tensor_digest_infer, onnx=_NO_HASH_IN_ONNX),
    Operator("batch_digest", _batch_digest_law, _batch_digest_infer, onnx=_NO_HASH_IN_ONNX),
    Operator("state_leaf", _state_leaf_law, _state_leaf_infer, onnx=_NO_HASH_IN_ONNX),
    Operator("state_root", _state_root_law, _state_root_infer, onnx=_NO_HASH_IN_ONNX),
    Operator("record", _record_law, _record_infer, onnx=_NO_HASH_IN_ONNX),
)
