"""Reverse-mode differentiation: emits the backward nodes by the rule of each operator or block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vtrain.errors import GraphError
from vtrain.graph.builder import Block, GraphBuilder
from vtrain.ops import TABLE
from vtrain.ops.base import Builder
from vtrain.ops.facets import Facet, find_reason
from vtrain.wire.graph import Ref


def _needs_gradient(builder: GraphBuilder, wrt: Iterable[Ref], until: Ref) -> set[Ref]:
    """Values at or before ``until`` that depend on one of ``wrt``."""
    reached = set(wrt)
    for index in range(until.node + 1):
        if any(ref in reached for ref in builder.nodes[index].inputs):
            reached.add(Ref(index))
    return reached


def _accumulate(builder: GraphBuilder, parts: list[Ref], name: str) -> Ref:
    """Sum of several contributions: int16 each, aligned exactly to the finest exponent.

    With ``fine_gradients`` none of them is rounded, but for one of many classes, which is refused.
    """
    if len(parts) == 1:
        return parts[0]
    if builder.fine_gradients:
        total = parts[0]
        for ref in parts:
            if builder.is_fine(ref):
                builder.as_operand(ref, f"{name}/grad_part")
        for part in parts[1:]:
            total = builder.add_aligned(f"{name}/grad_sum", total, part)
        if not builder.deep.isdisjoint(parts):
            builder.deep.add(total)
        return total
    total = builder.as_operand(parts[0], f"{name}/grad_part")
    for count, part in enumerate(parts[1:], start=2):
        other = builder.as_operand(part, f"{name}/grad_part")
        f_total, f_other = builder.type_of(total).exponent, builder.type_of(other).exponent
        finest = max(f_total, f_other)
        total = builder.emit(
            "add",
            f"{name}/grad_sum",
            (total, other),
            shift_a=finest - f_total,
            shift_b=finest - f_other,
        )
        if count < len(parts):
            total = builder.as_operand(total, f"{name}/grad_part")
    return total


_KEEP_DEEP: Final = frozenset(
    ("reshape", "transpose", "slice", "pad", "concat", "add", "rescale", "column_scale", "add_bias")
) | {"batched_matmul"}
"""Operators behind which a deep gradient is as deep as before."""


def _keeps_deep(builder: GraphBuilder, ref: Ref) -> bool:
    return ref not in builder.blocks and builder.nodes[ref.node].op in _KEEP_DEEP


def _deepen(builder: GraphBuilder, part: Ref) -> Ref:
    """A gradient as a deep one, of at most 40 bits."""
    part = builder.narrow(f"{builder.nodes[part.node].name}_cut", part)
    builder.deep.add(part)
    return part


def _take_alone(builder: GraphBuilder, ref: Ref) -> Block:
    """A node as a block of its own, with its operator's rule."""
    node = builder.nodes[ref.node]

    def differentiate(b: Builder, out: Ref, gradient: Ref) -> Sequence[Ref | None]:
        backward = TABLE[node.op].backward
        if backward is None:
            why = find_reason(node.op, Facet.BACKWARD)
            raise GraphError(f"{node.op} has no backward rule: {why}", where=node.name)
        return backward(b, node, out, gradient)

    return Block(node.inputs, differentiate)


def compute_gradients(
    builder: GraphBuilder, output: Ref, seed: Ref, wrt: Iterable[Ref]
) -> Mapping[Ref, Ref]:
    """Gradient of each of ``wrt``, given the gradient ``seed`` of ``output``.

    A gradient has the shape of its tensor and an exponent of its own.  GraphError names a node on
    the way that has no backward rule, or a tensor that ``output`` does not depend on.
    """
    wanted = list(wrt)
    needed = _needs_gradient(builder, wanted, output)
    builder.differentiate(needed)
    parts: dict[Ref, list[Ref]] = {output: [seed]}
    gradients: dict[Ref, Ref] = {}
    for index in range(output.node, -1, -1):
        ref = Ref(index)
        if ref not in parts or ref not in needed:
            continue
        gradient = _accumulate(builder, parts.pop(ref), builder.nodes[index].name)
        if ref in wanted:
            name = builder.nodes[ref.node].name
            fine = builder.fine_gradients
            gradients[ref] = builder.narrow(f"{name}/grad_cut", gradient) if fine else gradient
        block = builder.blocks.get(ref) or _take_alone(builder, ref)
        if not any(source in needed for source in block.inputs):
            continue
        found = block.backward(builder, ref, gradient)
        if block.deep or (builder.is_deep(gradient) and _keeps_deep(builder, ref)):
            found = [part and _deepen(builder, part) for part in found]
        for source, part in zip(block.inputs, found, strict=True):
            if part is not None and source in needed:
                parts.setdefault(source, []).append(part)
    for ref in wanted:
        if ref not in gradients:
            name = builder.nodes[ref.node].name
            raise GraphError("the loss does not depend on this parameter", where=name)
    return gradients
