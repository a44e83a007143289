"""State leaves and roots: vectors, order of names, and that every field is bound."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vtrain.commit.digest import Tensor, compute_tensor_digest
from vtrain.commit.openings import compute_chunk_opening, verify_chunk_opening
from vtrain.commit.state import (
    compute_root_of_state,
    compute_state_leaves,
    compute_state_root,
    open_state_leaf,
    sort_state_leaves,
    verify_state_opening,
)
from vtrain.errors import EncodingError
from vtrain.spec import commitment
from vtrain.wire.graph import Node, StepGraph, TensorType
from vtrain.wire.opening import StateLeaf, encode_state_leaf

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "state.json").read_text())
LEAVES = [
    StateLeaf(
        name=item["name"],
        dtype=item["dtype"],
        shape=tuple(item["shape"]),
        exponent=item["exponent"],
        digest=bytes.fromhex(item["digest"]),
    )
    for item in VECTORS["leaves"]
]
ROOT = bytes.fromhex(VECTORS["roots"][-1])

STATE: dict[str, Tensor] = {
    "w": np.arange(6, dtype=np.int32).reshape(2, 3),
    "é": np.array(7, np.int64),
    "b": np.zeros((0, 4), np.int16),
}
EXPONENTS = {"w": 24, "é": 0, "b": -3}


def graph_of(state: dict[str, Tensor]) -> StepGraph:
    dtypes = {"int32": "i32", "int64": "i64", "int16": "i16"}
    return StepGraph(
        tuple(
            Node(
                name=f"state {name}",
                op="state",
                attrs={"name": name},
                inputs=(),
                outputs=(
                    TensorType(dtypes[tensor.dtype.name], tensor.shape, EXPONENTS[name], 0, 9),
                ),
            )
            for name, tensor in state.items()
        )
    )


def test_vectors() -> None:
    for item, leaf in zip(VECTORS["leaves"], LEAVES, strict=True):
        assert encode_state_leaf(leaf).hex() == item["encoding"]
    for size, root in enumerate(VECTORS["roots"]):
        assert compute_state_root(LEAVES[:size]).hex() == root
        hashes = [commitment.compute_state_leaf(leaf) for leaf in LEAVES[:size]]
        assert commitment.compute_state_root(hashes).hex() == root


def test_the_root_does_not_depend_on_the_order_given() -> None:
    shuffled = LEAVES[1::2] + LEAVES[::-2]
    assert shuffled != LEAVES
    assert sort_state_leaves(shuffled) == LEAVES
    assert compute_state_root(shuffled) == ROOT


def test_names_are_unique() -> None:
    with pytest.raises(EncodingError, match="comes twice") as caught:
        compute_state_root([*LEAVES, replace(LEAVES[1], exponent=3)])
    assert caught.value.where == "state.fc1.bias"


def test_every_field_is_bound() -> None:
    for i, leaf in enumerate(LEAVES):
        for changed in (
            replace(leaf, name=leaf.name + "x"),
            replace(leaf, dtype="i64" if leaf.dtype != "i64" else "i32"),
            replace(leaf, shape=(*leaf.shape, 1)),
            replace(leaf, exponent=leaf.exponent + 1),
            *(replace(leaf, digest=flip(leaf.digest, bit)) for bit in range(256)),
        ):
            assert compute_state_root([*LEAVES[:i], changed, *LEAVES[i + 1 :]]) != ROOT
        assert compute_state_root([*LEAVES[:i], *LEAVES[i + 1 :]]) != ROOT


def flip(data: bytes, bit: int) -> bytes:
    out = bytearray(data)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def test_openings() -> None:
    for leaf in LEAVES:
        opening = open_state_leaf(LEAVES[::-1], leaf.name)
        assert opening.leaf == leaf
        assert verify_state_opening(ROOT, opening)
        assert not verify_state_opening(flip(ROOT, 100), opening)
        for changed in (
            replace(leaf, name=leaf.name + "x"),
            replace(leaf, digest=flip(leaf.digest, 0)),
            replace(leaf, exponent=leaf.exponent + 1),
        ):
            assert not verify_state_opening(ROOT, replace(opening, leaf=changed))
        for level, item in enumerate(opening.proof.path):
            path = [*opening.proof.path]
            path[level] = flip(item, level)
            proof = replace(opening.proof, path=tuple(path))
            assert not verify_state_opening(ROOT, replace(opening, proof=proof))
    with pytest.raises(EncodingError, match="no such tensor"):
        open_state_leaf(LEAVES, "other")


def test_leaves_of_a_state() -> None:
    leaves = compute_state_leaves(STATE, EXPONENTS)
    assert [(leaf.name, leaf.dtype, leaf.shape, leaf.exponent) for leaf in leaves] == [
        ("b", "i16", (0, 4), -3),
        ("w", "i32", (2, 3), 24),
        ("é", "i64", (), 0),
    ]
    for leaf in leaves:
        assert leaf.digest == compute_tensor_digest(STATE[leaf.name])
        assert leaf.byte_length == STATE[leaf.name].nbytes
    assert compute_state_leaves({}, {}) == []
    with pytest.raises(EncodingError, match="no exponent") as caught:
        compute_state_leaves(STATE, {"w": 0, "b": 0})
    assert caught.value.where == "state.é"


def test_from_root_to_element() -> None:
    """One element is shown to be in a state: root -> leaf -> chunk, lengths from the shape."""
    tensor = np.arange(1000, dtype=np.int32)
    leaves = compute_state_leaves({**STATE, "big": tensor}, {**EXPONENTS, "big": 1})
    opening = open_state_leaf(leaves, "big")
    chunk = compute_chunk_opening(tensor, 3)
    assert verify_state_opening(compute_state_root(leaves), opening)
    assert verify_chunk_opening(opening.leaf.digest, opening.leaf.byte_length, chunk)
    assert np.frombuffer(chunk.chunk, "<i4")[0] == 768
    tensor[770] += 1
    changed = compute_chunk_opening(tensor, 3)
    assert not verify_chunk_opening(opening.leaf.digest, opening.leaf.byte_length, changed)


def test_root_of_a_state_under_its_graph() -> None:
    graph = graph_of(STATE)
    root = compute_root_of_state(graph, STATE)
    assert root == compute_state_root(compute_state_leaves(STATE, EXPONENTS))
    changed = {**STATE, "w": STATE["w"] + 1}
    assert compute_root_of_state(graph, changed) != root


@pytest.mark.parametrize(
    ("changed", "where", "message"),
    [
        ({"x": np.zeros(1, np.int32)}, "state.x", "only the state has the tensor"),
        ({"w": None}, "state.w", "only the graph has the tensor"),
        ({"w": np.zeros((3, 2), np.int32)}, "state.w", "the tensor is int32[3, 2]"),
        ({"w": np.zeros((2, 3), np.int64)}, "state.w", "the tensor is int64[2, 3]"),
        ({"w": np.zeros((2, 3), np.float32)}, "state.w", "the tensor is float32[2, 3]"),
    ],
)
def test_a_state_of_another_graph_is_refused(
    changed: dict[str, Tensor | None], where: str, message: str
) -> None:
    merged = {**STATE, **changed}
    state = {name: tensor for name, tensor in merged.items() if tensor is not None}
    with pytest.raises(EncodingError) as caught:
        compute_root_of_state(graph_of(STATE), state)
    assert caught.value.where == where
    assert caught.value.message.startswith(message)
