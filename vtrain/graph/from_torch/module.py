"""From a module to the ONNX file that its task has, or to all that stands in the way."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import onnx
import torch
from onnx import helper
from torch import nn

from vtrain.errors import ModelError, Problem, UnsupportedError, VtrainError
from vtrain.graph.evaluate import Apply, apply_node
from vtrain.graph.from_torch.capture import UNCHANGED, capture, drop_named, list_tensors
from vtrain.graph.from_torch.constants import store
from vtrain.graph.from_torch.hold import hold
from vtrain.graph.from_torch.translate import (
    IR_VERSION,
    OPSET,
    OTHERS,
    Origin,
    translate,
)
from vtrain.graph.model import Model
from vtrain.graph.onnx_file import EXACT_PRODUCER, NAMES_KEY, save_model
from vtrain.graph.onnx_import import find_problems, import_onnx

_NODE: Final = re.compile(r"node (.*) \(\w+\)", re.DOTALL)
_INSTEAD: Final = (
    ("the root of its mean square", "w * (x * torch.rsqrt(...)), or nn.RMSNorm"),
    ("is part of the loss", "logits as the output: nn.CrossEntropyLoss has the logarithm"),
    ("at most two axes more", "a layer over one axis or two, of the same kind"),
    ("is only supported with exponent 2", "a product of the value with itself"),
    ("shapes differ", "values of one shape, or with extents of 1 where the other has more"),
    ("copies, more than", "a mean or a product in place of copies"),
    ("only a Gather of a table", "nn.Embedding of the input, or an example of floats"),
    ("the batch must stay", "batch_first=True, and axes other than the first"),
    ("batch merged", "the batch as the first axis, alone"),
    ("does not keep the batch", "x.flatten(1), or a view that begins with x.shape[0]"),
    ("must be 0 to", "a table with as many rows as places, looked up by torch.arange"),
    ("first rows", "a parameter of its own for each part"),
    ("the factor must be", "a factor that is not 0"),
    ("a constant that is added", "a tensor of the last axes, of the channels, or a number"),
    ("a parameter that multiplies", "a parameter of the last axes, of the channels, or a number"),
    (
        "is not a value that the model computes",
        "an output [batch, ..., classes], with the batch as it is: no view(-1, classes)",
    ),
    ("only supported on a table", "one nn.Embedding of the whole input, whose columns share it"),
    ("momentum must be", "a momentum above 0, and at most 1"),
    ("ratio must be", "a p of 0, or from 2^-16 to 1 - 2^-14"),
    ("or one of floats", "a buffer of floats: mask.float()"),
    ("computes with the parameter", UNCHANGED),
    ("running statistics must", "a larger eps, or running_var.clamp_(min=1e-4)"),
    ("used in two ways", "a parameter of its own for each use"),
    ("computed from the model's input", "a parameter that is read as it is stored"),
    ("must be a constant", "a division by a number, or nn.RMSNorm for one by a size"),
    ("ceil_mode", "ceil_mode=False, and padding"),
    ("count_include_pad", "count_include_pad=True, or padding=0"),
    ("only supported as a mask", "a product with a mask, or nn.ReLU"),
    ("is only supported of the", "nn.LayerNorm or nn.RMSNorm"),
    ("a mask of ids", "nn.Embedding(padding_idx=...), whose row is 0, and a mean over all places"),
    ("the bounds", "a clip around 0, as nn.ReLU or nn.Hardtanh"),
    ("mask", "is_causal=True, or a mask of padding: ids != 0"),
    ("larger batch", "batch=2 at least, or nn.GroupNorm, which takes none"),
    ("may reach", "fewer elements in a sum, smaller weights, or a norm before it"),
)
"""Words of what the importer or the step refuses, and what would do instead."""
_PLAIN: Final = "a tensor of floats, as torch.nn has its parameters"
_STORED: Final = re.compile(r"initialiser (.*)", re.DOTALL)


@dataclass(frozen=True)
class Imported:
    """A module as an ONNX file, ``data``, and as the ``model`` that it stands for.

    ``trainable`` are the parameters that require a gradient, by their first names; all others of
    ``model.trained`` are to be frozen.  ``notes`` say what was changed on the way, ``origins``
    where layers are in the module.  ``output_shape`` is that of the module, without the batch.
    """

    data: bytes
    model: Model
    trainable: frozenset[str]
    notes: tuple[str, ...]
    origins: Mapping[str, Origin]
    output_shape: tuple[int, ...]

    def place(self, error: VtrainError) -> Problem | None:
        """What was refused of the step, by the layer whose node or value the error names."""
        name = error.where.removeprefix("node ").partition(" (")[0]
        while name not in self.origins:
            name, slash, _ = name.rpartition("/")
            if not slash:
                return None
        origin = self.origins[name]
        return Problem(origin.path, origin.what, error.message, _find_fix(error.message))


def import_module(
    module: nn.Module,
    example_inputs: object,
    output: str | int | None = None,
    *,
    classes_last: bool = False,
    apply: Apply = apply_node,
) -> Imported:
    """Import a module as it is trained, from its values at hand.

    ``example_inputs`` and ``output`` as of :func:`~vtrain.graph.from_torch.capture.capture`,
    ``classes_last`` as of :func:`~vtrain.graph.from_torch.translate.translate`.
    ``apply`` computes what is held against the module, and changes no result.
    UnsupportedError has every problem, each with the path of its module.
    """
    captured = capture(module, example_inputs, output)
    module = captured.module
    translated = translate(captured, classes_last=classes_last)
    if classes_last:
        captured.note(
            "the classes are the last axis of the task's output, as of the exported ONNX model: "
            "the module has them before the places"
        )
    problems = [*captured.problems, *drop_named(translated.problems, captured.named)]
    tensors, entries = list_tensors(module)
    proto, unstored = _write(translated.graph, tensors, entries, translated.stored)
    problems += unstored
    model = None
    try:
        model = import_onnx(proto)
    except ModelError as error:
        try:
            found = find_problems(proto)
        except ModelError as first:
            found = [first]
        # Where something is missing already, what follows from that is not said again.
        told = [one for one in found or [error] if _find_node(one) not in translated.refused]
        placed = [
            _place(one, translated.origins)
            for one in told
            if not (problems and (one.where == "graph" or one.where.startswith("output")))
        ]
        problems += drop_named(placed, captured.named)
    if model is not None and not problems:
        problems += hold(captured, proto, model, apply, classes_last=classes_last)
    if problems or model is None:
        raise UnsupportedError(_sort(problems, module), where="from_torch")
    trainable = {name for name, tensor in tensors.items() if tensor.requires_grad}
    unused = sorted(
        name
        for name, tensor in tensors.items()
        if tensor.requires_grad and name not in model.params
    )
    if unused:
        captured.notes.append(f"the output does not depend on {', '.join(unused)}: never trained")
    _note_types(captured.notes, [tensors[name] for name in trainable & set(model.trained)])
    return Imported(
        data=save_model(proto),
        model=model,
        trainable=frozenset(trainable & set(model.trained)),
        notes=tuple(captured.notes),
        origins=translated.origins,
        output_shape=tuple(int(extent) for extent in captured.output.meta["val"].shape[1:]),
    )


def _note_types(notes: list[str], trained: list[torch.Tensor]) -> None:
    """Say what comes back of parameters that are not float32."""
    for dtype in sorted({str(one.dtype).removeprefix("torch.") for one in trained} - {"float32"}):
        back = "float32" if dtype == "bfloat16" else dtype
        rounded = ", which rounds them" if dtype == "float16" else ""
        notes.append(
            f"parameters are {dtype}, and are trained with 24 fraction bits: state_dict() gives "
            f"them as {back}{rounded}, exported files have float32"
        )


def _write(
    graph: onnx.GraphProto,
    tensors: Mapping[str, torch.Tensor],
    entries: list[tuple[str, str]],
    stored: frozenset[str],
) -> tuple[onnx.ModelProto, list[Problem]]:
    """The file: what is trained are initialisers, all else are constants, and its metadata have the
    names of the module's state_dict."""
    problems = []
    kept = {first for _, first in entries} | stored
    constants = []
    for name in tensors:
        tensor = tensors[name]
        if name not in kept:
            continue
        try:
            proto = store(tensor, name)
        except (TypeError, ValueError) as error:
            reason = f"cannot be stored: {error}"
            problems.append(Problem(name, f"tensor of {tensor.dtype}", reason, _PLAIN))
            continue
        if tensor.requires_grad:
            graph.initializer.append(proto)
        else:
            constants.append(helper.make_node("Constant", [], [name], name=name, value=proto))
    nodes = [*constants, *(onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node)]
    del graph.node[:]
    graph.node.extend(nodes)
    model = helper.make_model(
        graph,
        producer_name=EXACT_PRODUCER,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, {NAMES_KEY: json.dumps(entries)})
    return model, problems


def _find_node(error: ModelError) -> str:
    """The name of the node that an error is of; "" of others."""
    found = _NODE.fullmatch(error.where)
    return found[1] if found else ""


def _find_fix(message: str) -> str:
    """What would do instead of what is refused so."""
    return next((fix for words, fix in _INSTEAD if words in message), OTHERS)


def _place(error: ModelError, origins: Mapping[str, Origin]) -> Problem:
    """What the importer refused, where the module has it."""
    fix = _find_fix(error.message)
    origin = origins.get(_find_node(error))
    if origin is not None:
        message = error.message.replace("only a Gather of a table reads", "only nn.Embedding reads")
        return Problem(origin.path, origin.what, message, fix)
    stored = _STORED.fullmatch(error.where)
    if stored is not None:
        what = "parameter"
        if "does not fit" in error.message or "finite" in error.message:
            fix = "clamp or rescale it: weights are numbers below 128 in magnitude"
            return Problem(stored[1], what, error.message, fix)
        return Problem(stored[1], what, error.message, _PLAIN if fix == OTHERS else fix)
    return Problem("", error.where, error.message, fix)


def _sort(problems: list[Problem], module: nn.Module) -> list[Problem]:
    """Each once, in the order of the module's parts."""
    order = {path: number for number, (path, _) in enumerate(module.named_modules())}
    once = dict.fromkeys(problems)
    return sorted(once, key=lambda problem: order.get(problem.path.partition("@")[0], len(order)))
