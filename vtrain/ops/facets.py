"""What there is of an operator beside its law, and the one table that says what is missing.

Each facet is a step of docs/adding-an-operator.md.  An operator has every facet but those for which
``LACKS`` has a reason.  ``tests/facets`` holds both ways: a facet that is missing without a reason
fails there, and so does a reason for a facet that is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Facet(StrEnum):
    """A part of an operator that lies in a room of its own."""

    RANGES = "ranges"
    BACKWARD = "backward rule"
    LEAF = "leaf rule"
    LEAF_TWIN = "leaf rule in Rust"
    ENGINES = "cpu engine"
    CUDA = "CUDA kernel"
    FUSION = "fusion row"
    ONNX_EXPORT = "ONNX export"
    ONNX_IMPORT = "ONNX import"
    TILES = "tile emitter"
    STEPS = "whole-step emitter"
    VECTORS = "vectors"
    DOCS = "docs"


GUIDE: Final[Mapping[Facet, str]] = {
    Facet.RANGES: "2. Types and ranges",
    Facet.BACKWARD: "3. Backward rule",
    Facet.LEAF: "4. Leaf rule",
    Facet.LEAF_TWIN: "7. Leaf rule in Rust",
    Facet.ENGINES: "6. CPU engine",
    Facet.CUDA: "8. CUDA kernel",
    Facet.FUSION: "9. Fusion row",
    Facet.ONNX_EXPORT: "10. ONNX export",
    Facet.ONNX_IMPORT: "11. ONNX import",
    Facet.TILES: "12. Tile emitter",
    Facet.STEPS: "14. Whole-step emitter",
    Facet.VECTORS: "15. Vectors",
    Facet.DOCS: "16. Docs",
}
"""The heading of each facet's step in docs/adding-an-operator.md."""

_HASHES: Final = ("tensor_digest", "batch_digest", "state_leaf", "state_root", "record")
_IMAGES: Final = ("im2col", "col2im", "max_pool", "max_pool_grad", "sum_pool", "sum_pool_grad")
_SPANS: Final = ("causal_spans", "token_spans", "keep_span")
_SOFTMAX: Final = ("row_max", "exp2_diff", "row_sum", "divide", *_SPANS)
_LOSSES: Final = ("sub_one_hot", "logit_grad", "cross_entropy", "square_sum", "sum")
_GRADIENTS: Final = (
    *("column_sum", "sub", "relu_grad", "col2im", "max_pool_grad", "sum_pool_grad"),
    *("softmax_grad", "scatter_add"),
)
_ATTENTION: Final = (*_SPANS, "softmax_grad")
_CHOSEN_ROWS: Final = ("gather_rows", "scatter_add")
_BATCH: Final = ("increment", "sample_index", "gather_samples", "normalize", "one_hot")
_ADAM: Final = ("adam_mean", "adam_square", "adam_direction")
_MASKS: Final = ("dropout_mask",)
_CLIP: Final = ("capped_square", "clip_factor", "scale_by")
_RATES: Final = ("schedule", "schedule_linear", "adam_correction")
_UPDATE: Final = ("momentum", "sgd_update", *_RATES, *_ADAM, "sign", *_CLIP, "next_state")
_ROOTS: Final = ("row_dot", "inverse_root", "row_scale")
_NORMS: Final = ("center", *_ROOTS, "column_scale")

LACKS: Final[Mapping[Facet, Mapping[str, tuple[str, ...]]]] = {
    Facet.BACKWARD: {
        "a gradient ends here: it is the parameter": ("state",),
        "no weight comes before the batch and its preparation": _BATCH,
        "vtrain/graph/step.py emits the loss together with its gradient": _LOSSES,
        "no weight comes before a mask": _MASKS,
        "a softmax is one block of nodes with a gradient of its own": _SOFTMAX,
        "gradients and losses alone have it, and those are not differentiated again": _GRADIENTS,
        "the block that it is in has one gradient, by a table of the slope": ("look_up",),
        "it comes after the gradient": (*_UPDATE, *_HASHES),
        "the block of a norm has one gradient of the whole (vtrain/graph/norms.py)": _ROOTS,
    },
    Facet.FUSION: {
        "it computes nothing: another name, shape or place for what is there": (
            *("state", "next_state", "reshape", "transpose", "gather_samples", "im2col"),
            *("slice", "pad", "concat", "gather_rows"),
        ),
        "computed once of attributes alone": ("causal_spans",),
        "one element depends on many, or on one that its own values choose": (
            *(
                "sample_index",
                "one_hot",
                "matmul",
                "batched_matmul",
                "column_sum",
                "col2im",
                "max_pool",
                "scatter_add",
            ),
            *("max_pool_grad", "sum_pool", "sum_pool_grad", "row_max", "row_sum"),
            *("cross_entropy", "square_sum", "sum", "center", "row_dot"),
            "token_spans",
        ),
        "made of the step and an element's place: fused kernels are not told the place": _MASKS,
        "one number a step, which all elements share": (*_RATES, "clip_factor"),
        "a hash is no arithmetic": _HASHES,
    },
    Facet.ONNX_EXPORT: {
        "the sample order is a counter-based generator: the batch is an input": (
            *("sample_index", "gather_samples"),
        ),
        "ONNX has no BLAKE3; the exported graph ends at the values hashed here": _HASHES,
    },
    Facet.ONNX_IMPORT: {
        "the step around a model has it, a model's forward pass never": (
            *("state", *_UPDATE, *_LOSSES, *_HASHES),
            *(op for op in _BATCH if op != "normalize"),  # clips shift by it
        ),
        "gradients, losses and running statistics alone have it": (
            *(op for op in _GRADIENTS if op not in ("sub", "col2im")),
        ),
    },
    Facet.TILES: {
        "public, or a hash that is compared outside the circuits": (
            *("increment", "sample_index", "causal_spans", *_RATES, *_HASHES),
        ),
    },
    Facet.STEPS: {
        "public, or a hash that is compared outside the circuits": (
            *("increment", "sample_index", *_HASHES),
        ),
        "the circuit of rows is that of a loss: it has all elements of a row in it": _ATTENTION,
        "steps over images and tokens are too large for one circuit": ("one_hot", *_IMAGES),
        "a whole step takes no state in int64, and has no gadget for its square root": _ADAM,
        "whole steps have no mean of Lion, whose sign it is": ("sign",),
        "whole steps have no gadget for the root of a norm and a quotient by it": _CLIP,
        "a whole step takes its rate from a schedule of constant pieces": (
            *("schedule_linear", "adam_correction"),
        ),
        "whole steps have no table that a node chooses": ("look_up",),
        "the circuit of a loss has its gradient in 14 bits": ("logit_grad",),
        "it is public, and a whole step has no public numbers but rate and loss": _MASKS,
        "no gadget of whole steps chooses rows by numbers that stay hidden": _CHOSEN_ROWS,
        "no gadget for inverse roots exists, and a norm's parts are of use together": _NORMS,
    },
}
"""By facet and reason, the operators that lack it.  Facets that are not here, none may lack."""


def find_reason(op: str, facet: Facet) -> str | None:
    """Why operator ``op`` lacks ``facet``; None if it has it."""
    for reason, ops in LACKS.get(facet, {}).items():
        if op in ops:
            return reason
    return None
