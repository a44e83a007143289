"""Hashing as nodes: a record that disagrees with its own trace is isolated like any other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtrain.ops.base import (
    Array,
    Operator,
    Site,
    attr_int,
    attr_ints,
    attr_text,
    integer_type,
    pointwise,
    require,
    require_inputs,
    require_keys,
    table,
)
from vtrain.spec import commitment
from vtrain.wire.graph import Attrs, TensorType
from vtrain.wire.opening import StateLeaf
from vtrain.wire.record import MAX_STEPS

DIGEST = TensorType("u8", (32,), 0, 0, 255)


def _as_array(digest: bytes) -> Array:
    return np.frombuffer(digest, dtype=np.uint8)


def _is_digest(tensor: TensorType) -> bool:
    return tensor.dtype == "u8" and tensor.shape == (32,)


def _tensor_digest_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return _as_array(commitment.compute_tensor_digest(inputs[0]))


def _tensor_digest_leaf(site: Site, e: int) -> int:
    return site.reader.digest(0)[e]


def _tensor_digest_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The tensor digest: BLAKE3 of the little-endian row-major bytes, what b3sum prints of them.

    Inputs: x any [...].
    Output: u8 [32], exponent 0.
    Range: 0 to 255.
    """
    require_keys(attrs)
    require_inputs(inputs, "int")
    return DIGEST


def _batch_digest_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    x, y = inputs
    return _as_array(commitment.compute_batch_digest(x.tobytes(), y.tobytes()))


def _batch_digest_leaf(site: Site, e: int) -> int:
    return commitment.compute_batch_digest(site.read_bytes(0), site.read_bytes(1))[e]


def _batch_digest_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """H_batch(dx || dy), where dx and dy are the digests of the raw gathered samples.

    Inputs: dx u8 [32]; dy u8 [32].
    Output: u8 [32], exponent 0.
    Range: 0 to 255.
    """
    require_keys(attrs)
    require(len(inputs) == 2 and all(map(_is_digest, inputs)), "needs the digests of x and y")
    return DIGEST


def _hash_state(attrs: Attrs, digest: bytes) -> bytes:
    leaf = StateLeaf(
        name=attr_text(attrs, "name"),
        dtype=attr_text(attrs, "dtype"),
        shape=attr_ints(attrs, "shape"),
        exponent=attr_int(attrs, "exponent"),
        digest=digest,
    )
    return commitment.compute_state_leaf(leaf)


def _state_leaf_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return _as_array(_hash_state(attrs, inputs[0].tobytes()))


def _state_leaf_leaf(site: Site, e: int) -> int:
    return _hash_state(site.attrs, site.read_bytes(0))[e]


def _state_leaf_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The hash of one leaf of the state tree: H_state(0x00 || encoding of the state leaf).

    Attributes:
        name: text; the name of the state.
        dtype: text, one of i32, i64.
        shape: integers, the extents of the state: up to eight, each 1 or more, of 2^32 elements at
            most.
        exponent: integer, -512 to 512.
    Inputs: digest u8 [32].
    Output: u8 [32], exponent 0.
    Range: 0 to 255.
    """
    require_keys(attrs, "dtype", "exponent", "name", "shape")
    attr_text(attrs, "name")
    attr_text(attrs, "dtype", ("i32", "i64"))
    exponent, shape = attr_int(attrs, "exponent"), attr_ints(attrs, "shape")
    integer_type("i64", shape, exponent, 0, 0)
    require(len(inputs) == 1 and _is_digest(inputs[0]), "needs a digest")
    return DIGEST


def _state_root_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    return _as_array(commitment.compute_state_root([leaf.tobytes() for leaf in inputs]))


def _state_root_leaf(site: Site, e: int) -> int:
    leaves = [site.read_bytes(i) for i in range(len(site.types))]
    return commitment.compute_state_root(leaves)[e]


def _state_root_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The state root over the leaf hashes, in the order of the inputs.

    Inputs: any number of leaf hashes u8 [32].
    Output: u8 [32], exponent 0.
    Range: 0 to 255.
    Requires: in a legal graph the leaves are those of all states, in the UTF-8 order of their
        names.
    """
    require_keys(attrs)
    require(all(map(_is_digest, inputs)), "needs leaf hashes")
    return DIGEST


def _hash_record(attrs: Attrs, step: int, batch_digest: bytes, loss: int, root: bytes) -> bytes:
    commits = step % attr_int(attrs, "commit_every") == 0
    return commitment.compute_record_leaf(step, batch_digest, loss, root if commits else b"")


def _record_law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
    step, batch_digest, loss, root = inputs
    return _as_array(
        _hash_record(attrs, int(step), batch_digest.tobytes(), int(loss), root.tobytes())
    )


def _record_leaf(site: Site, e: int) -> int:
    batch_digest, root = site.read_bytes(1), site.read_bytes(3)
    return _hash_record(site.attrs, site.read(0), batch_digest, site.read(2), root)[e]


def _record_infer(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    """The hash of the step's leaf in the run log: H_log(0x00 || encoding of the step record).

    The record's state_root is the root where commit_every divides the step, and empty elsewhere.

    Attributes:
        commit_every: integer, 1 to 2^40.
    Inputs: step i64 []; batch digest u8 [32]; loss i64 []; root u8 [32].
    Output: u8 [32], exponent 0.
    Range: 0 to 255.
    Outside: a step that is no step's number (a disputed one may be 0 or negative) is encoded as it
        is; commit_every divides 0, and -6 where it divides 6.
    """
    require_keys(attrs, "commit_every")
    attr_int(attrs, "commit_every", 1, MAX_STEPS)
    require(len(inputs) == 4, "needs step, batch digest, loss and state root")
    step, batch_digest, loss, root = inputs
    require(_is_digest(batch_digest) and _is_digest(root), "needs digests")
    scalars = all(x.dtype == "i64" and x.shape == () for x in (step, loss))
    require(scalars, "step and loss are int64 scalars")
    return DIGEST


OPERATORS = table(
    Operator(
        "tensor_digest",
        _tensor_digest_law,
        _tensor_digest_infer,
        leaf=pointwise(_tensor_digest_leaf),
    ),
    Operator(
        "batch_digest",
        _batch_digest_law,
        _batch_digest_infer,
        leaf=pointwise(_batch_digest_leaf),
    ),
    Operator(
        "state_leaf",
        _state_leaf_law,
        _state_leaf_infer,
        leaf=pointwise(_state_leaf_leaf),
    ),
    Operator(
        "state_root",
        _state_root_law,
        _state_root_infer,
        leaf=pointwise(_state_root_leaf),
    ),
    Operator(
        "record",
        _record_law,
        _record_infer,
        leaf=pointwise(_record_leaf),
    ),
)
