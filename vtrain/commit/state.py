"""The state root: one hash that binds every tensor of the training state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from vtrain.commit.digest import DTYPE_NAMES, Tensor, compute_tensor_digests
from vtrain.commit.openings import compute_inclusion_proof, compute_root, verify_inclusion
from vtrain.errors import EncodingError
from vtrain.spec.domains import STATE_TREE
from vtrain.wire.graph import StepGraph
from vtrain.wire.opening import StateLeaf, StateOpening, encode_state_leaf


def compute_state_leaves(
    state: Mapping[str, Tensor], exponents: Mapping[str, int], threads: int = 0
) -> list[StateLeaf]:
    """A leaf for each tensor of ``state``, in the order of the tree.

    EncodingError for a dtype that the law lacks and for a tensor without an exponent.
    """
    digests = compute_tensor_digests(state.values(), threads)
    missing = [name for name in state if name not in exponents]
    if missing:
        raise EncodingError("the tensor has no exponent", where=f"state.{missing[0]}")
    leaves = [
        StateLeaf(
            name=name,
            dtype=DTYPE_NAMES[tensor.dtype.str],
            shape=tuple(tensor.shape),
            exponent=exponents[name],
            digest=digest,
        )
        for (name, tensor), digest in zip(state.items(), digests, strict=True)
    ]
    return sort_state_leaves(leaves)


def sort_state_leaves(leaves: Iterable[StateLeaf]) -> list[StateLeaf]:
    """Leaves by the UTF-8 bytes of their names; EncodingError when a name comes twice."""
    ordered = sorted(leaves, key=lambda leaf: leaf.name.encode())
    for before, after in pairwise(ordered):
        if before.name == after.name:
            raise EncodingError("the name comes twice", where=f"state.{after.name}")
    return ordered


def compute_state_root(leaves: Iterable[StateLeaf]) -> bytes:
    """Root (32 bytes) of the RFC 9162 tree over the leaves, given in any order.

    A state without tensors has the root of the empty tree.  EncodingError for a name given twice.
    """
    return compute_root(STATE_TREE, _encode_leaves(leaves))


def compute_root_of_state(graph: StepGraph, state: Mapping[str, Tensor], threads: int = 0) -> bytes:
    """State root (32 bytes) of ``state``, whose exponents are those of the graph's state nodes.

    EncodingError when its tensors are not those of the graph by name, dtype and shape.
    """
    types = {name: graph.type_of(ref) for name, ref in graph.states().items()}
    for name in sorted(types.keys() ^ state.keys()):
        owner = "graph" if name in types else "state"
        raise EncodingError(f"only the {owner} has the tensor", where=f"state.{name}")
    for name, tensor in state.items():
        expected = types[name]
        if DTYPE_NAMES.get(tensor.dtype.str) != expected.dtype or tensor.shape != expected.shape:
            raise EncodingError(
                f"the tensor is {tensor.dtype}{list(tensor.shape)}, in the graph "
                f"{expected.dtype}{list(expected.shape)}",
                where=f"state.{name}",
            )
    exponents = {name: tensor.exponent for name, tensor in types.items()}
    return compute_state_root(compute_state_leaves(state, exponents, threads))


def open_state_leaf(leaves: Iterable[StateLeaf], name: str) -> StateOpening:
    """Opening of the tensor ``name``; EncodingError when the state has no such tensor."""
    ordered = sort_state_leaves(leaves)
    for index, leaf in enumerate(ordered):
        if leaf.name == name:
            encoded = _encode_leaves(ordered)
            return StateOpening(leaf, compute_inclusion_proof(STATE_TREE, encoded, index))
    raise EncodingError("the state has no such tensor", where=f"state.{name}")


def verify_state_opening(root: bytes, opening: StateOpening) -> bool:
    """Whether the opened leaf is in the state under ``root``; takes hostile input."""
    return verify_inclusion(STATE_TREE, root, encode_state_leaf(opening.leaf), opening.proof)


def _encode_leaves(leaves: Iterable[StateLeaf]) -> list[bytes]:
    return [encode_state_leaf(leaf) for leaf in sort_state_leaves(leaves)]
