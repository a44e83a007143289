"""Whether the model that is trained computes what the module does, in the integers that it has.

Everything between the two is held at once: what ``torch.export`` captured, its translation to an
ONNX file, the import of that file, and the lowering to operators.  Both compute a few samples of
noise, with noise in what is trained, each sample as if nothing were dropped.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import torch

from vtrain.errors import Problem, UnsupportedError, VtrainError
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.calibration import OPERAND_BITS, NodeEvaluator, calibrate
from vtrain.graph.evaluate import Apply
from vtrain.graph.from_torch.capture import Capture
from vtrain.graph.from_torch.compare import WithoutDropout, keep_attributes, with_noise
from vtrain.graph.from_torch.constants import store
from vtrain.graph.model import BatchNorm, Embedding, Model, emit_forward
from vtrain.graph.onnx_import import import_onnx
from vtrain.spec.number import MASTER_EXPONENT
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Ref
from vtrain.wire.task import DataSpec

CLOSE: Final = 1e-2
"""How far the integers may be from the module's floats, of the largest of these."""
_MARGIN: Final = 1
_COARSE: Final = 3
"""Bits kept free, by which a result has rounding errors four times as large."""
_SIZES: Final = (1.0, 1.0, 4.0, 4.0)
"""Of the noise, sample by sample: what is cut off at 6 is reached too."""
_TIMES: Final = (1, 4, 16)
"""So many times as many samples, while rounding explains more than is ``_SURE`` to tell anything: a
norm over few values makes much of it."""
_SURE: Final = 0.1
_REPORT: Final = "this is a fault of the import: please report it with the module"
_LARGE: Final = 1 << 24
"""Parameters of a module that computes fewer samples."""
_HALF: Final = (torch.float16, torch.bfloat16)
_NO_SAMPLES: Final = Samples(
    DataSpec(b"", 1, "u8", (1,), 0, "u8", (1,), 0), np.zeros((1, 2), np.uint8)
)


def hold(
    captured: Capture, proto: onnx.ModelProto, model: Model, apply: Apply, *, classes_last: bool
) -> list[Problem]:
    """A problem where ``model``, which is that of ``proto``, gives other values than the module,
    for every number of samples that is tried.

    A model that is refused with that noise is not compared, and a note says so.
    """
    norms = any(isinstance(layer, BatchNorm) for layer in model.layers)
    apart, allowed, agrees = math.inf, 0.0, False
    try:
        for times in _TIMES if norms else _TIMES[:1]:
            x = _make_samples(captured, model, times)
            apart, allowed = _measure_model(captured, proto, model, apply, x, classes_last)
            agrees = agrees or apart <= allowed
            if apart <= allowed <= _SURE:
                break
    except _OtherModelError:
        reason = "is imported as another model where its parameters have other values"
        return [Problem("", type(captured.module).__name__, reason, _REPORT)]
    except UnsupportedError as error:
        return list(error.problems)
    except VtrainError as error:
        captured.notes.append(f"what is trained was not held against the module: {error}")
        return []
    low, instead = _find_low(captured), _REPORT
    if agrees:
        if low:
            captured.note(f"{low}, whose rounding a task does not have")
        return []
    if allowed > _SURE:
        instead = (
            "norms over more values than the example has (larger images, longer sequences, "
            "nn.GroupNorm): what is trained would be rounding, mostly"
        )
    if low:
        instead = (
            f"{low}, whose rounding a task does not have: leave out torch.autocast and casts to "
            "half precision, or give module.float(). If that changes nothing, it is a fault of the "
            "import: please report it with the module"
        )
    reason = (
        f"the model that would be trained gives other values than the module: {apart:.2g} of the "
        f"largest apart, of samples of noise, where rounding explains {allowed:.2g}"
    )
    return [Problem("", type(captured.module).__name__, reason, instead)]


class _OtherModelError(Exception):
    """The file with noise in its parameters is imported as another model."""


def _measure_model(
    captured: Capture,
    proto: onnx.ModelProto,
    model: Model,
    apply: Apply,
    x: torch.Tensor,
    classes_last: bool,
) -> tuple[float, float]:
    """How far the integers are from the module's floats for samples ``x``, with noise in what is
    trained, and how far they may be."""
    module = captured.module
    dropless = WithoutDropout()  # type: ignore[no-untyped-call]
    with keep_attributes(module), with_noise(module), dropless:
        trained = dict(module.named_parameters())
        disturbed = onnx.ModelProto()
        disturbed.CopyFrom(proto)
        for one in disturbed.graph.initializer:
            one.CopyFrom(store(trained[one.name], one.name))
        expected = captured.call(x).double().numpy()
    if classes_last:
        expected = np.moveaxis(expected, 1, -1)
    again = import_onnx(disturbed)
    if again.layers != model.layers or [*again.params] != [*model.params]:
        raise _OtherModelError
    found = _compute(again, x.double().numpy(), apply, _MARGIN)
    apart = _measure(found, expected)
    if apart <= CLOSE:
        return apart, CLOSE
    # Rounding counts for more in a deep network: as much as a coarser one shows.
    coarse = _compute(again, x.double().numpy(), apply, _COARSE)
    return apart, CLOSE + _measure(found, coarse)


def _find_low(captured: Capture) -> str:
    """What the module computes in half precision, by its first operator; "" if nothing."""
    for node in captured.program.graph.nodes:
        value = node.meta.get("val")
        is_computed = node.op == "call_function"
        if is_computed and isinstance(value, torch.Tensor) and value.dtype in _HALF:
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            place = f"{stack[-1][0] or 'the module itself'}" if stack else node.name
            return f"{place} computes in {str(value.dtype).removeprefix('torch.')}"
    return ""


def _measure(found: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> float:
    """How far apart they are, of the largest; what is not finite says nothing."""
    if found.shape != expected.shape:
        return math.inf
    largest = float(np.abs(expected).max(initial=0.0))
    if not math.isfinite(largest) or largest == 0.0:
        return 0.0 if largest or not found.any() else math.inf
    return float(np.abs(found - expected).max()) / largest


def _make_samples(captured: Capture, model: Model, times: int) -> torch.Tensor:
    """Noise about the example, of numbers that integers have; ids of the tables that are read."""
    leaves = (*captured.example[0], *captured.example[1].values())
    example = next(one for one in leaves if isinstance(one, torch.Tensor))
    generator = torch.Generator().manual_seed(3)
    large = sum(one.numel() for one in captured.module.parameters()) > _LARGE
    sizes = torch.tensor((_SIZES[::2] if large else _SIZES) * times)
    shape = (len(sizes), *example.shape[1:])
    if model.takes_ids:
        rows = [
            len(model.params[layer.weight])
            for layer in model.layers
            if isinstance(layer, Embedding) and layer.input == model.input
        ]
        return torch.randint(min(rows), shape, generator=generator).to(example.dtype)
    noise = torch.randn(shape, generator=generator) * sizes.view(-1, *[1] * (len(shape) - 1))
    given = example.repeat_interleave(len(sizes), 0)[: len(sizes)] + noise
    exponent = _find_exponent(given.double().numpy())
    whole = torch.round(torch.ldexp(given.double(), torch.tensor(exponent)))
    return torch.ldexp(whole, torch.tensor(-exponent)).to(example.dtype)


def _find_exponent(x: npt.NDArray[np.float64]) -> int:
    """The finest at which the largest is an operand."""
    return OPERAND_BITS - 1 - int(np.frexp(np.abs(x).max(initial=0.0))[1])


def _compute(
    model: Model, x: npt.NDArray[np.float64], apply: Apply, margin: int
) -> npt.NDArray[np.float64]:
    """The forward pass of a step, at exponents of these samples, with so many bits free."""
    exponent = 0 if model.takes_ids else _find_exponent(x)
    state: dict[str, npt.NDArray[Any]] = dict(model.params)
    # A name that no parameter has: it would be no name in a module.
    given = "the input"
    state[given] = np.round(np.ldexp(x, exponent)).astype(np.int32)
    values: list[npt.NDArray[Any]] = []
    ends: list[tuple[Ref, int]] = []

    def keep(*arguments: Any) -> npt.NDArray[Any]:
        values.append(apply(*arguments))
        return values[-1]

    def emit(builder: GraphBuilder) -> None:
        def read(name: str, at: int) -> Ref:
            shape = state[name].shape
            return builder.emit(
                "state", f"in/{name}", (), name=name, dtype="i32", shape=shape, exponent=at
            )

        params = {name: read(name, MASTER_EXPONENT) for name in model.params}
        samples = read(given, exponent)
        if not model.takes_ids:
            samples = builder.rescale("in/operand", samples, exponent)
        end = emit_forward(builder, model, samples, params)
        ends.append((end, builder.type_of(end).exponent))

    def open_evaluator(state: Any, samples: Samples) -> NodeEvaluator:
        return NodeEvaluator(state, samples, apply=keep)

    calibrate(emit, state, _NO_SAMPLES, steps=1, margin=margin, open_evaluator=open_evaluator)
    ((end, found),) = ends
    return np.ldexp(values[end.node].astype(np.float64), -found)
