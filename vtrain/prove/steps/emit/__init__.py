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
    rescale,
    softmax,
    source,
)

EMITTERS: Final[Emitters] = {
    op: emit
    for family in (
        source,
        linear,
        arithmetic,
        rescale,
        activation,
        layout,
        softmax,
        optimizer,
    )
    for op, emit in family.EMITTERS.items()
}
"""By operator."""
