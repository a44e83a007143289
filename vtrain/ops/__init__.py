"""The law of every operator, and the one table that names them all."""

from __future__ import annotations

from collections.abc import Mapping

from vtrain.ops import (
    activation,
    arithmetic,
    attention,
    commitment,
    dropout,
    gather,
    layout,
    linear,
    lookup,
    norm,
    optimizer,
    parts,
    pool,
    rescale,
    softmax,
    source,
)
from vtrain.ops.base import Operator

TABLE: Mapping[str, Operator] = {
    **source.OPERATORS,
    **layout.OPERATORS,
    **linear.OPERATORS,
    **rescale.OPERATORS,
    **arithmetic.OPERATORS,
    **activation.OPERATORS,
    **lookup.OPERATORS,
    **parts.OPERATORS,
    **gather.OPERATORS,
    **pool.OPERATORS,
    **softmax.OPERATORS,
    **attention.OPERATORS,
    **norm.OPERATORS,
    **dropout.OPERATORS,
    **optimizer.OPERATORS,
    **commitment.OPERATORS,
}
"""Operators by name."""
