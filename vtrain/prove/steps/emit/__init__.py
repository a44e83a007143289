"""Circuits of whole steps, operator by operator: one file a family, as in ``vtrain.ops``."""

from __future__ import annotations

from typing import Final

from vtrain.prove.steps.builder import Emitters
from vtrain.prove.steps.emit import (
    activation,
    arithmetic,
    layout,
    linear,
    optimizer,
    parts,
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
    **softmax.EMITTERS,
    **optimizer.EMITTERS,
}
"""By operator."""
