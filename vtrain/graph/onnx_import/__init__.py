"""Any framework's forward pass, as an ONNX file -> :class:`vtrain.graph.model.Model`.

Nothing of the file is executed, and nothing outside it is read but the data that a file given by
its path keeps beside it (:mod:`vtrain.graph.onnx_external`).  The import knows the shape of
every value, and refuses by name and place whatever it does not know: a model that is accepted is a
model that the step graph computes.

Master weights: mantissa = floor(w * 2^24 + 1/2), int32; a weight that is not finite or does not fit
is refused (:func:`vtrain.spec.number.round_to_mantissa`).

:mod:`.walk` goes over the nodes in order and has the whole graph's ends; a family of operators has
a module with a handler each in its ``HANDLERS``; :class:`.importer.Importer` is what they share.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from vtrain.errors import ModelError
from vtrain.graph.model import Model
from vtrain.graph.onnx_file import is_named_exactly, load_model, separate_vectors
from vtrain.graph.onnx_import import walk
from vtrain.graph.onnx_import.importer import Importer
from vtrain.graph.onnx_import.masks import OF_MASKS
from vtrain.graph.onnx_import.node import DEFAULT_DOMAINS
from vtrain.limits import LIMITS

OLDEST_OPSET = 7
"""From opset 7 on Add and Gemm broadcast as they do today."""
NEWEST_OPSET = onnx.defs.onnx_opset_version()
OPERATORS = tuple(sorted({*walk.HANDLERS, *OF_MASKS}))
"""Names of the ONNX operators that an imported model may have."""


def import_onnx(source: bytes | Path | onnx.ModelProto) -> Model:
    """Import a forward pass: one float input [batch, ...], one output, opset 7 or later.

    ``params`` come in the order of their first use, under the names of their initialisers: linear
    weights as stored, convolution weights [O, I, kh, kw] as [O, kh, kw, I], biases as vectors.
    ModelError names the node or initialiser; StorageError when a path cannot be read.
    """
    return walk.run(_open(source))


def find_problems(source: bytes | Path | onnx.ModelProto) -> list[ModelError]:
    """All that :func:`import_onnx` and :func:`require_unfolded` would refuse of the nodes and
    weights of a file, in order.

    What a refused node would have made is taken to be a value of the shape that the file's
    ``value_info`` has for it, and what only fails because of that is left out.
    ModelError for what leaves nothing to look at: the header, the input.
    """
    return walk.find_problems(_open(source))


def require_unfolded(model: Model) -> None:
    """ModelError for a model that is to be trained, and has norms that its exporter folded away.

    It can be imported all the same: what was trained so is still exported.
    """
    if model.folded_norms:
        raise walk.refuse_folding(model.folded_norms)


def _open(source: bytes | Path | onnx.ModelProto) -> Importer:
    model = load_model(source)
    opset = _check_header(model)
    graph = model.graph if is_named_exactly(model) else separate_vectors(model.graph)
    return Importer(
        graph,
        opset,
        by_torch=model.producer_name == "pytorch",
        ties=not is_named_exactly(model),
    )


def _check_header(model: onnx.ModelProto) -> int:
    """The opset."""
    where = "ONNX file"
    if not model.HasField("graph"):
        raise ModelError("has no graph", where=where)
    if len(model.functions) > 0:
        raise ModelError("has functions of its own: export the model inlined", where=where)
    versions = [entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS]
    if len(versions) != 1:
        raise ModelError("must import the standard operators once", where=where)
    if not OLDEST_OPSET <= versions[0] <= NEWEST_OPSET:
        raise ModelError(
            f"uses opset {versions[0]}; known are {OLDEST_OPSET} to {NEWEST_OPSET}", where=where
        )
    if len(model.graph.sparse_initializer) > 0:
        raise ModelError("has sparse initialisers", where=where)
    if len(model.graph.node) > LIMITS.onnx_nodes:
        raise ModelError(f"has more than {LIMITS.onnx_nodes} nodes", where=where)
    return int(versions[0])
