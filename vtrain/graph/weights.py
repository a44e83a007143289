"""Trained master weights back into float: the model a solver delivers.

A weight's value is mantissa * 2^-24.  In float32 it is rounded to nearest, ties to even; that is
exact for |mantissa| <= 2^24, that is for |w| <= 1, and within 2^-18 for every master weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from safetensors.numpy import save

from vtrain.errors import ModelError
from vtrain.graph.model import Model
from vtrain.graph.onnx_file import (
    drop_nothing,
    drop_stored_shapes,
    find_stored_tensors,
    is_named_exactly,
    load_model,
    read_dims,
    read_state_names,
    read_tensor,
    save_model,
    separate_vectors,
    store_copies,
    use_single,
    use_statistics,
    write_floats,
)
from vtrain.spec.number import MASTER_EXPONENT

Masters = Mapping[str, npt.NDArray[np.signedinteger[Any]]]
"""Master weights by initialiser name, int32, in step-graph layout (as ``Model.params``)."""


def compute_float_weights(model: Model, params: Masters) -> dict[str, npt.NDArray[np.float64]]:
    """Exact values of the trained weights, convolutions as ONNX has them: [O, I, kh, kw].

    Constants of the model, which no step changes, are left as the file has them.

    ModelError unless ``params`` are just those of ``model``.
    """
    if set(params) != set(model.params):
        raise ModelError(
            f"has parameters {sorted(model.params)}, given are {sorted(params)}", where="model"
        )
    weights: dict[str, npt.NDArray[np.float64]] = {}
    for name, initial in model.params.items():
        master = params[name]
        if master.dtype != np.int32 or master.shape != initial.shape:
            raise ModelError(
                f"needs int32 {initial.shape}, has {master.dtype} {master.shape}",
                where=f"parameter {name}",
            )
        if name in model.constants:
            continue
        values = np.ldexp(master.astype(np.float64), -MASTER_EXPONENT)
        weights[name] = values.transpose(0, 3, 1, 2) if values.ndim == 4 else values
    return weights


def export_onnx(original: bytes, model: Model, params: Masters) -> bytes:
    """The file ``original``, from which ``model`` was imported, with the weights ``params``.

    Initialisers keep their names, shapes and data types (rounded to nearest, ties to even), but
    that a file made of a module of torch has float32 throughout, whatever the module had, and
    declares no shape of what is made of stored tensors alone; everything else of the file stays as
    it is, but that a ``Dropout`` in training mode becomes an ``Identity``, that a
    ``BatchNormalization`` takes its running statistics, that an ``Identity`` or a ``Gather`` of an
    initialiser, which is a parameter of its own, becomes an initialiser, and so does each use of a
    vector that :func:`separate_vectors` takes apart.
    """
    return save_model(_fill(original, model, params, single=True))


def _fill(original: bytes, model: Model, params: Masters, *, single: bool) -> onnx.ModelProto:
    """The file with other weights; ``single``: in float32 where it was made of a module."""
    exported = load_model(original)
    if single and is_named_exactly(exported):
        use_single(exported.graph)
    drop_nothing(exported.graph)
    use_statistics(exported.graph)
    if not is_named_exactly(exported):
        exported.graph.CopyFrom(separate_vectors(exported.graph))
    store_copies(exported.graph, model.params)
    if is_named_exactly(exported):
        drop_stored_shapes(exported.graph)
    tensors = find_stored_tensors(exported.graph)
    weights = compute_float_weights(model, params)
    turned = {copy: weights[name].T for copy, name in model.copies.items()}
    for name, values in (weights | turned).items():
        where = f"initialiser {name}"
        if name not in tensors:
            raise ModelError("is not in the original file", where=where)
        tensor = tensors[name]
        if values.size != int(np.prod(read_dims(tensor, where), dtype=np.int64)):
            raise ModelError("has another shape in the original file", where=where)
        write_floats(tensor, values, where)
    return exported


def compute_state_dict(
    original: bytes, model: Model, params: Masters, *, single: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """Trained weights by name, as the framework that wrote the file ``original`` has them.

    Of a module of torch these are all entries of its ``state_dict``, tied ones and buffers
    included, in the types that they had (bfloat16 as float32), or with ``single`` floats as
    float32.  Of another file they are the initialisers that were trained, as float32.
    """
    file = load_model(original)
    if not is_named_exactly(file):
        weights = compute_float_weights(model, params)
        return {name: np.ascontiguousarray(one, np.float32) for name, one in weights.items()}
    tensors = find_stored_tensors(_fill(original, model, params, single=single).graph)
    found: dict[str, npt.NDArray[Any]] = {}
    for name, stored in read_state_names(file):
        where = f"initialiser {stored}"
        if stored not in tensors:
            raise ModelError("is not in the file, whose metadata name it", where=where)
        found[name] = np.ascontiguousarray(read_tensor(tensors[stored], where))
        found[name] = found[name].reshape(read_dims(tensors[stored], where))
    return found


def export_safetensors(
    original: bytes, model: Model, params: Masters, *, kind: str | None = None
) -> bytes:
    """A safetensors file of what :func:`compute_state_dict` gives, floats as float32 whatever the
    module had: a shorter type would lose bits that were trained.  ``kind`` says in its metadata
    whose tensors they are ("pt": of torch), which some loaders ask for."""
    weights = compute_state_dict(original, model, params, single=True)
    if "__metadata__" in weights:
        raise ModelError("safetensors reserves this name", where="parameter __metadata__")
    return save(weights, None if kind is None else {"format": kind})
