"""Which operators the forward passes of imported models have, and whether those compute what the
files say: the models are those of ``tests/graph``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from onnx import helper, numpy_helper

from tests.graph.test_dropout import DROPOUT_CASES, KEPT
from tests.graph.test_onnx_import import (
    EXAMPLES,
    Example,
    Integers,
    assert_close,
    run_floats,
)
from vtrain.errors import VtrainError
from vtrain.graph.onnx_import import import_onnx
from vtrain.ops.base import attr_int
from vtrain.wire.graph import Node

MOST_ALIKE = 8
"""Models of an operator that are all tried; of more, those with another ONNX operator each."""
MASKED: Mapping[str, Example] = {name: Example(*case, [5]) for name, case in DROPOUT_CASES.items()}
assert not MASKED.keys() & EXAMPLES.keys()


@cache
def find_imported() -> Mapping[str, frozenset[str]]:
    """Operators of each model's forward pass, by the model's name; none where it is refused."""
    found = {}
    for name, example in {**EXAMPLES, **MASKED}.items():
        try:
            nodes = _compute(example).nodes
        except VtrainError:
            nodes = []
        found[name] = frozenset(node.op for node in nodes if not _is_given(node))
    return found


def _compute(example: Example) -> Integers:
    return Integers(import_onnx(example.make()), example.draw(), drops=True)


def _is_given(node: Node) -> bool:
    """What stands for parameters, samples and the counter, and makes int16 of samples."""
    return node.op == "state" or node.name == "x16"


def find_wrong_models(op: str) -> list[str]:
    """Models with the operator that do not compute what the file says, and how."""
    examples = {**EXAMPLES, **MASKED}
    having = [name for name, ops in find_imported().items() if op in ops]
    having.sort(key=lambda name: len(examples[name].nodes))
    chosen, met = [], set[str]()
    for name in having:
        kinds = {item.op_type for item in examples[name].nodes}
        if len(having) <= MOST_ALIKE or not kinds <= met:
            chosen.append(name)
            met |= kinds
    found = ((name, _try_model(name)) for name in chosen)
    return [f"the model {name!r} {complaint}" for name, complaint in found if complaint]


@cache
def _try_model(name: str) -> str:
    """What is wrong with a model, or nothing."""
    try:
        if name in MASKED:
            _check_masked(name)
        else:
            EXAMPLES[name].check()
    except (AssertionError, VtrainError) as error:
        return f"computes something else than onnxruntime: {str(error).splitlines()[0]}"
    return ""


def _check_masked(name: str) -> None:
    """Against a model that multiplies by the masks which the integers have drawn."""
    example = MASKED[name]
    proto, x, integers = example.make(), example.draw(), _compute(example)
    values = integers.evaluate(x)
    masks = {
        node.name: (node, np.ldexp(value.astype(np.float32), -node.outputs[0].exponent))
        for node, value in zip(integers.nodes, values, strict=True)
        if node.op == "dropout_mask"
    }
    kept = [attr_int(node.attrs, "keep") for node, _ in masks.values()]
    assert kept == KEPT.get(name, []), f"of 2^16 elements {kept} are kept"
    for share, (_, mask) in zip(kept, masks.values(), strict=True):
        factor = float(mask.max())
        assert abs(factor * share / 2**16 - 1) < 2**-14, f"what is kept is multiplied by {factor}"
    for item in proto.graph.node:
        where = f"{item.output[0]}/mask"
        if where in masks:
            item.CopyFrom(helper.make_node("Mul", [item.input[0], where], [item.output[0]]))
            proto.graph.initializer.append(numpy_helper.from_array(masks[where][1], where))
    assert_close(integers.run(x), run_floats(proto, x))
