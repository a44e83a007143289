"""The circuit of a whole gradient step: one statement for all arithmetic nodes of a step graph.

Given vectors are ``before``, ``batch`` and ``after`` (``vtrain.commit.kzg_layout``, kind "step");
parameters are ``rate``, the mantissa of the learning rate, and ``loss``, both of the step record's
own step.  What it says: the law (``vtrain.ops``) maps state and batch to the state after and to the
loss.  Nodes that choose samples or hash are not in it: sample order and rates are public, and
hashes are compared outside.  A graph may be any legal one, not only such as vtrain makes: what
would leave a value tied to nothing is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.errors import CircuitError
from vtrain.ops.facets import Facet, find_reason
from vtrain.prove.backend.cost import estimate
from vtrain.prove.backend.settings import MAX_BLOCKS, count_blocks, count_usable
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.steps.builder import OUTSIDE, Size, StepBuilder
from vtrain.prove.steps.emit import EMITTERS
from vtrain.wire.graph import Ref, StepGraph
from vtrain.wire.proof import LEAST_STEP_K

STEP_CIRCUITS: Final[Mapping[str, bool]] = {"step": False, "step-clamps": True}
"""Circuits of whole steps by name, and whether parameters and momenta may saturate in them.

Without clamps a circuit holds of no step in which a parameter, a momentum or a parameter's operand
saturates, or comes close to it, within 2^15 units of the former two, 2^13 of the last: smaller by
half, and enough for nearly every step.  What saturates elsewhere is proven by both.
"""
MAX_INNER_COLUMNS: Final = 3
"""More make the gates' degree larger and everything twice as dear: rather another block."""


def build_step_circuit(graph: StepGraph, k: int, name: str = "step") -> Circuit:
    """The circuit ``name`` of ``graph``'s step, in the blocks of columns that take least memory.

    CircuitError names a node that no circuit exists for, or says that k is too small.
    """
    if name not in STEP_CIRCUITS:
        raise CircuitError(f"is none of {', '.join(STEP_CIRCUITS)}", where=name)
    rows = count_usable(k)
    if k < LEAST_STEP_K:
        raise CircuitError(f"whole steps need k of {LEAST_STEP_K} at least, not {k}", where="k")
    _refuse_giants(graph, MAX_BLOCKS * MAX_INNER_COLUMNS * rows, name)
    best: Circuit | None = None
    for columns in range(1, MAX_INNER_COLUMNS + 1):
        circuit = build_with(graph, Size(columns, rows), clamps=STEP_CIRCUITS[name])
        blocks = count_blocks(circuit, k)
        if blocks <= MAX_BLOCKS and (
            best is None or estimate(circuit, k).memory < estimate(best, k).memory
        ):
            best = circuit
        if blocks == 1:  # wider ones are one block, too, and take more
            break
    if best is None:
        raise CircuitError(
            f"has {circuit.cells} cells: too many for {MAX_BLOCKS} blocks of "
            f"{MAX_INNER_COLUMNS} columns of 2^{k} rows",
            where=f"circuit {name}",
        )
    return best


def _refuse_giants(graph: StepGraph, cells: int, name: str) -> None:
    """CircuitError, before anything of the size of a tensor is made, for what never fits.

    Steps as vtrain makes them take four cells an element and more.
    """
    elements = sum(
        output.size for node in graph.nodes if node.op not in OUTSIDE for output in node.outputs
    )
    if elements > cells:
        raise CircuitError(
            f"a step of {elements} elements is too large for {cells} cells",
            where=f"circuit {name}",
        )


def build_with(graph: StepGraph, size: Size, *, clamps: bool) -> Circuit:
    """The circuit of ``graph``'s step in columns given; ``span`` below 2^16 is for trials."""
    for node in graph.nodes:
        if node.op not in OUTSIDE and node.op not in EMITTERS:
            reason = find_reason(node.op, Facet.STEPS) or "it is none of vtrain's"
            raise CircuitError(
                f"no circuit for the operator {node.op} in a whole step: {reason}; "
                'prove the step by tiles (circuit = "tiles" in the task)',
                where=node.name,
            )
    s = StepBuilder(graph, size, clamps=clamps)
    for index, node in enumerate(graph.nodes):
        if node.op not in OUTSIDE:
            EMITTERS[node.op](s, Ref(index), node)
    _refuse_loose_ends(s)
    return s.b.build()


def _refuse_loose_ends(s: StepBuilder) -> None:
    """CircuitError where a hint or the loss is tied to nothing: legal graphs need not be those that
    vtrain makes."""
    for index, node in enumerate(s.graph.nodes):
        if node.op in ("exp2_diff", "row_max", "row_sum") and Ref(index) not in s.softmaxes:
            raise CircuitError("is part of no softmax", where=node.name)
    if s.graph.nodes[s.logged_loss.node].op not in ("square_sum", "sum"):
        raise CircuitError("the loss logged is no sum", where="record")
