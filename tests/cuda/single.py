"""One node by itself on a device: what its launches put out and what they count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.engines.operator_cases import DTYPE_NAMES, Case
from vtrain.engines.cuda.device import Call, Device, Pointer, Slot
from vtrain.engines.cuda.gemm import MULTIPLYING
from vtrain.engines.cuda.launch import (
    DTYPE_CODES,
    Arg,
    Constant,
    Launch,
    Operand,
    Output,
    SampleForm,
    SamplePart,
    Saturated,
    Scratch,
)
from vtrain.engines.cuda.lowering import lower
from vtrain.engines.cuda.plan import Planned
from vtrain.engines.cuda.stored import StoredPart
from vtrain.spec.number import NUMPY_DTYPES, STORAGE
from vtrain.wire.graph import Node, Ref, TensorType

Array = npt.NDArray[Any]


def count_matrices(launch: Launch | Planned) -> int:
    """Of a launch of products, or of what packs their operands."""
    matrices = launch.args[-12] if launch.kernel.startswith(MULTIPLYING) else launch.grid[2]
    assert isinstance(matrices, int)
    return matrices


@dataclass(frozen=True)
class Result:
    """The output and the number of saturated elements."""

    output: Array
    saturated: int


def claim(value: Array) -> TensorType:
    """The type of an array of any values."""
    dtype = DTYPE_NAMES[value.dtype.newbyteorder("<")]
    return TensorType(dtype, value.shape, 0, *STORAGE[dtype])


def to_node(case: Case, output: TensorType) -> tuple[Node, list[TensorType]]:
    """The node of a case, and the types of its own inputs: what is bound is none."""
    own = case.inputs[: len(case.inputs) - (case.op in ("state", "gather_samples"))]
    refs = tuple(Ref(i) for i in range(len(own)))
    return Node("case", case.op, case.attrs, refs, (output,)), [claim(value) for value in own]


def run_case(device: Device, case: Case, output: TensorType) -> Result:
    """Lower the case's node and launch it."""
    node, inputs = to_node(case, output)
    return run_launches(device, lower(node, inputs), case.inputs, output)


def rows_of(samples: Array) -> StoredPart:
    """How the rows of a part lie, one after the other."""
    stride = samples.size // max(1, len(samples))
    return StoredPart(0, DTYPE_CODES[claim(samples).dtype], stride, 0)


def run_launches(
    device: Device,
    launches: Sequence[Launch],
    inputs: Sequence[Array],
    output: TensorType,
    stored: StoredPart | None = None,
) -> Result:
    """Launch with ``inputs``, of which the last is what samples are read from where they are: rows
    of a part, one after the other, unless ``stored`` says how else they lie there."""
    pointers: dict[Arg, int] = {}

    def place(value: Array) -> int:
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        address = device.allocate(max(data.size, 1))
        if data.size > 0:
            device.write(address, data)
        return address

    def resolve(arg: Arg) -> Slot:
        if isinstance(arg, int):
            return arg
        if isinstance(arg, SampleForm):
            return (stored or rows_of(inputs[-1])).read(arg)
        if arg not in pointers:
            match arg:
                case Operand(index):
                    pointers[arg] = place(inputs[index])
                case Output():
                    pointers[arg] = device.allocate(max(output.byte_length, 1))
                case Saturated():
                    pointers[arg] = place(np.zeros(1, np.uint64))
                case SamplePart():
                    pointers[arg] = place(inputs[-1])
                case Constant(data):
                    pointers[arg] = place(np.frombuffer(data, np.uint8))
                case Scratch(nbytes):
                    pointers[arg] = device.allocate(nbytes)
        return Pointer(pointers[arg])

    for launch in launches:
        slots = tuple(resolve(arg) for arg in launch.args)
        device.launch(
            Call(launch.file, launch.kernel, launch.grid, launch.block, slots, launch.shared)
        )
    device.synchronize()
    content = device.read(pointers[Output()], max(output.byte_length, 1))[: output.byte_length]
    counted = 0
    if Saturated() in pointers:
        counted = int.from_bytes(device.read(pointers[Saturated()], 8), "little")
    for address in pointers.values():
        device.free(address)
    array = np.frombuffer(content, NUMPY_DTYPES[output.dtype]).reshape(output.shape)
    return Result(array, counted)
