"""Stored tensors as the parameters of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from vtrain.errors import ModelError
from vtrain.graph.model import (
    AddWeight,
    BatchNorm,
    Conv,
    ConvTranspose,
    Embedding,
    FixedNorm,
    GroupNorm,
    Layer,
    LayerNorm,
    Linear,
    Modulate,
    MulWeight,
    RMSNorm,
)
from vtrain.graph.onnx_file import read_floats
from vtrain.graph.onnx_import.importer import Importer, strip
from vtrain.spec.number import MASTER_EXPONENT, SATURATION, round_to_mantissa

_NORMS = (LayerNorm, GroupNorm, BatchNorm, FixedNorm)
_BIASED = (Linear, Conv, ConvTranspose, *_NORMS)
_LINE_RANK: Final = 3
"""Of the filters of a convolution over one axis."""


def tie(importer: Importer, layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], dict[str, str]]:
    """Linear layers whose weight is the transpose of an embedding's table, in every bit, read
    the table: exporters store what was one tensor in torch as two."""
    tables = {layer.weight for layer in layers if isinstance(layer, Embedding)}
    tied: list[Layer] = []
    copies: dict[str, str] = {}
    for layer in layers:
        if isinstance(layer, Linear) and layer.weight not in tables:
            table = next((t for t in sorted(tables) if _turns(importer, t, layer.weight)), None)
            if table is not None:
                copies[layer.weight] = table
                tied.append(replace(layer, weight=table, transposed=not layer.transposed))
                continue
        tied.append(layer)
    return tuple(tied), copies


def _turns(importer: Importer, table: str, weight: str) -> bool:
    """Whether ``weight`` is the transpose of ``table``."""
    if importer.tensors[table].dims[::-1] != list(importer.tensors[weight].dims):
        return False
    a, b = (read_floats(importer.tensors[name], f"initialiser {name}") for name in (table, weight))
    return np.array_equal(a.T, b)


def find_roles(importer: Importer, layers: Sequence[Layer]) -> dict[str, str]:
    """What each parameter is to the layers that have it, in the order of first use."""
    roles: dict[str, str] = {}
    for layer in layers:
        for name, use in _find_uses(layer):
            alone = use == "AddWeight" and len(strip(tuple(importer.tensors[name].dims))) == 1
            role = "bias" if alone else use
            if roles.setdefault(name, role) != role:
                raise ModelError("is used in two ways", where=f"initialiser {name}")
    if not roles:
        raise ModelError("has no weights to train", where="graph")
    return roles


def read_params(importer: Importer, layers: Sequence[Layer]) -> dict[str, npt.NDArray[np.int32]]:
    """The master weights of the layers, and the constants, by name."""
    roles = find_roles(importer, layers)
    params = {name: read_master(importer, name, role) for name, role in roles.items()}
    for name in find_constants(layers):
        if name in params:
            raise ModelError("is both trained and constant", where=f"initialiser {name}")
        params[name] = importer.tables[name]
    return params


def read_master(importer: Importer, name: str, role: str) -> npt.NDArray[np.int32]:
    """One stored tensor as int32 mantissas, in the layout that its role asks for."""
    where = f"initialiser {name}"
    values = read_floats(importer.tensors[name], where)
    finite = np.isfinite(values)
    # No more than 2^8 can fit, and that much is scaled exactly.
    small = np.abs(np.where(finite, values, 0).astype(np.float64)) < 2.0**8
    mantissas = round_to_mantissa(np.where(finite & small, values, 0), MASTER_EXPONENT)
    lo, hi = SATURATION["i32"]
    for fits, complaint in (
        (finite, "is not finite"),
        (small & (lo <= mantissas) & (mantissas <= hi), "does not fit int32 at exponent 24"),
    ):
        if not fits.all():
            index = tuple(int(i) for i in np.argwhere(~fits)[0])
            found = float(values[index])
            raise ModelError(f"element {list(index)} {complaint}: {found}", where=where)
    master = mantissas.astype(np.int32)
    if role == "Conv":
        *filters, width = master.shape
        images = master if master.ndim > _LINE_RANK else master.reshape(*filters, 1, width)
        master = images.transpose(0, 2, 3, 1)
    if role in ("bias", "scale", "statistic"):
        master = master.reshape(-1)
    if role == "AddWeight":
        master = master.reshape(strip(master.shape))
    return np.ascontiguousarray(master)


def _find_uses(layer: Layer) -> list[tuple[str, str]]:
    """The parameters of a layer, in order, and what each is to it."""
    uses: list[tuple[str, str]] = []
    match layer:
        case Linear() | Conv():
            uses.append((layer.weight, type(layer).__name__))
        case ConvTranspose():
            uses.append((layer.weight, "Conv"))  # stored alike
        case Embedding():
            uses.append((layer.weight, "Linear"))  # stored alike: one table may be both
        case RMSNorm() | LayerNorm() | GroupNorm() | BatchNorm() | FixedNorm():
            uses += [] if layer.weight is None else [(layer.weight, "scale")]
        case AddWeight():
            uses.append((layer.weight, "bias" if layer.by_channels else "AddWeight"))
        case MulWeight():
            uses.append((layer.weight, "scale"))
    if isinstance(layer, _BIASED) and layer.bias is not None:
        if uses and layer.bias == uses[0][0]:
            raise ModelError("is both weight and bias", where=layer.name)
        uses.append((layer.bias, "bias"))
    if isinstance(layer, BatchNorm):
        uses += [(layer.mean, "statistic"), (layer.variance, "statistic")]
    return uses


def find_constants(layers: Sequence[Layer]) -> list[str]:
    """Names of the constants that layers have, in the order of first use."""
    found: dict[str, None] = {}
    for layer in layers:
        if isinstance(layer, Modulate):
            found[layer.constant] = None
        if isinstance(layer, FixedNorm):
            found |= dict.fromkeys((layer.power, layer.offset, layer.rest))
    return list(found)


def find_statistics(layers: Sequence[Layer]) -> list[str]:
    """Names of the running statistics, each of one norm alone."""
    found: list[str] = []
    for layer in layers:
        if isinstance(layer, BatchNorm):
            for name in (layer.mean, layer.variance):
                if name in found:
                    raise ModelError(
                        "is a running statistic twice: give each use of the norm its own",
                        where=f"initialiser {name}",
                    )
                found.append(name)
    return found
