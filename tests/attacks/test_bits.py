"""Inputs at the edges of the number format, through every engine: the same bits or a refusal."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from vtrain import _core
from vtrain.graph.onnx_export import export_step_graph
from vtrain.wire.graph import Node, Ref, StepGraph, TensorType

EXTREMES = np.array([-32768, 32767, -32639, 32639, 255, 256, -256, -129, 128, 0], np.int16)


@pytest.mark.parametrize("path", _core.gemm_paths())
@pytest.mark.parametrize("inner", [1, 2, 31, 33, 129, 513, 1025, 4097])
def test_raw_int16_beyond_saturation_multiplies_exactly(path: str, inner: int) -> None:
    """Gathered samples may hold -32768 and 32767, whose limbs no saturated operand has."""
    rng = np.random.default_rng(inner)
    pairs = [
        (np.full((5, inner), first, np.int16), np.full((inner, 17), second, np.int16))
        for first in (-32768, 32767, 32639)
        for second in (-32768, 32767, -32639)
    ]
    pairs.append((rng.choice(EXTREMES, (15, inner)), rng.choice(EXTREMES, (inner, 33))))
    for a, b in pairs:
        exact = a.astype(np.int64) @ b.astype(np.int64)
        for threads in (1, 2):
            found = _core.gemm_i64(a, b, path=path, threads=threads)
            np.testing.assert_array_equal(found, exact)
            turned = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
            found = _core.gemm_i64(*turned, True, True, path, threads)
            np.testing.assert_array_equal(found, exact)


def test_the_transpose_of_a_scalar_is_exported() -> None:
    scalar = TensorType("i64", (), 0, 0, 2**40)
    graph = StepGraph(
        (
            Node("in", "state", {"name": "in"}, (), (scalar,)),
            Node("turned", "transpose", {"perm": ()}, (Ref(0),), (scalar,)),
            Node("out", "next_state", {"name": "out"}, (Ref(1),), (scalar,)),
        )
    )
    session = onnxruntime.InferenceSession(export_step_graph(graph).SerializeToString())
    [found] = session.run(["next/out"], {"state/in": np.array(2**40, np.int64)})
    assert int(found) == 2**40
