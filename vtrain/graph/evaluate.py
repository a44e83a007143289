"""Applying the law of one node: the step that the reference engine and calibration repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vtrain.ops import TABLE
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Node


class Apply(Protocol):
    """:func:`apply_node`, or what gives the same bits."""

    def __call__(
        self,
        node: Node,
        inputs: Sequence[npt.NDArray[Any]],
        state: Mapping[str, npt.NDArray[Any]],
        samples: Samples,
        /,
    ) -> npt.NDArray[Any]:
        """Output of one node."""
        ...


def apply_node(
    node: Node,
    inputs: Sequence[npt.NDArray[Any]],
    state: Mapping[str, npt.NDArray[Any]],
    samples: Samples,
) -> npt.NDArray[Any]:
    """Output of one node by its law; state and samples are bound where the operator names them."""
    bound = list(inputs)
    if node.op == "state":
        bound.append(np.asarray(state[str(node.attrs["name"])]))
    elif node.op == "gather_samples":
        # Those asked for alone: a file of windows has no table of all.
        (index,) = inputs
        bound = [np.arange(len(index)), samples.gather(str(node.attrs["part"]), index)]
    return TABLE[node.op].law(node.attrs, bound)
