"""The values of one step, node by node: which are views of others, and how long each is needed."""

from __future__ import annotations

from typing import Final

from vtrain.wire.graph import StepGraph

VIEWS: Final = frozenset({"next_state", "reshape"})
"""Operators whose output is their input, perhaps in another shape: its bytes are the same."""
PRODUCTS: Final = frozenset({"matmul", "batched_matmul"})
"""Operators whose output is a matrix product, or a stack of them."""
HASHES: Final = frozenset({"tensor_digest", "state_leaf", "state_root", "record"})
"""Operators that hash what others computed, but for the batch."""


def list_last_uses(graph: StepGraph) -> list[list[int]]:
    """For each node, the values that no node after it reads; those that become the next state are
    in no list."""
    last = {index: index for index in range(len(graph.nodes))}
    for index, node in enumerate(graph.nodes):
        last.update({ref.node: index for ref in node.inputs})
    for ref in graph.next_states().values():
        del last[ref.node]
    done: list[list[int]] = [[] for _ in graph.nodes]
    for value, index in last.items():
        done[index].append(value)
    return done
