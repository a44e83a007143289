"""Statements about tiles for each operator: one file a family, as in ``vtrain.ops``."""

from __future__ import annotations

from typing import Final

from vtrain.prove.tiles.builder import Emitters
from vtrain.prove.tiles.emit import (
    activation,
    arithmetic,
    attention,
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

EMITTERS: Final[Emitters] = {
    **source.EMITTERS,
    **linear.EMITTERS,
    **arithmetic.EMITTERS,
    **rescale.EMITTERS,
    **activation.EMITTERS,
    **layout.EMITTERS,
    **parts.EMITTERS,
    **pool.EMITTERS,
    **softmax.EMITTERS,
    **attention.EMITTERS,
    **gather.EMITTERS,
    **norm.EMITTERS,
    **lookup.EMITTERS,
    **dropout.EMITTERS,
    **optimizer.EMITTERS,
}
"""By operator."""
