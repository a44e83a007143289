"""Launches of the kernels of ``vtrain.ops.activation``: non-linearities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vtrain.engines.cuda.lower.common import Lowering, elementwise

LOWERINGS: Final[Mapping[str, Lowering]] = {"relu": elementwise, "relu_grad": elementwise}
"""Readable kernels."""
