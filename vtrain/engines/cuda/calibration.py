"""Calibration steps on the device: each node as it is emitted, its value kept until the step ends.

What follows a node is not known yet, so nothing is fused and no memory is planned; products and
reductions are done by fast kernels that agree with their readable twins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.engines.base import State
from vtrain.engines.cuda.device import Call, Device, Pointer, Slot
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.launch import (
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
from vtrain.engines.cuda.session import open_kernels
from vtrain.errors import KernelError, VtrainError
from vtrain.graph.evaluate import apply_node
from vtrain.graph.values import HASHES, VIEWS
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.spec.samples import Samples
from vtrain.wire.graph import Node, Ref, TensorType

_LARGEST: Final = Node("largest", "largest", {}, (), (TensorType("i64", (), 0, 0, 0),))
_SKIPPED: Final = HASHES | {"batch_digest"}
"""Nothing but hashes reads a hash, and calibration looks at none."""


class DeviceEvaluator:
    """``vtrain.graph.calibration.Evaluator`` on a ``device``, by the kernels that serve there.

    DeviceError when a step's values do not fit the device's memory: all of them are kept at once.
    """

    def __init__(
        self, state: State, samples: Samples, *, device: Device, kernels: Kernels | None = None
    ) -> None:
        self._device = device
        self._kernels = Kernels(device) if kernels is None else kernels
        self._samples = samples
        self._nodes: list[Node] = []
        self._addresses: list[int] = []
        self._blocks: set[int] = set()
        self._states: dict[str, int] = {}
        try:
            for name, value in state.items():
                self._states[name] = self._place(value)
        except VtrainError:
            self.close()
            raise

    def evaluate(self, node: Node) -> None:
        self._addresses.append(self._compute(node))
        self._nodes.append(node)

    def largest(self, value: int) -> int:
        out = self._compute_on_device(_LARGEST, [value])
        return int.from_bytes(self._device.read(out, 8), "little")

    def advance(self, next_states: Mapping[str, Ref]) -> None:
        self._states = {name: self._addresses[ref.node] for name, ref in next_states.items()}
        self._nodes, self._addresses = [], []
        for block in self._blocks - set(self._states.values()):
            self._free(block)

    def close(self) -> None:
        for block in list(self._blocks):
            self._free(block)

    def _compute(self, node: Node) -> int:
        """Address of the node's output; 0 for a hash."""
        inputs = [ref.node for ref in node.inputs]
        if node.op in _SKIPPED:
            return 0
        if node.op in VIEWS:
            return self._addresses[inputs[0]]
        if node.op == "state":
            return self._states[str(node.attrs["name"])]
        if node.op == "gather_samples":
            # A batch of the samples is all that the device needs of them.
            return self._place(apply_node(node, [self._read(i) for i in inputs], {}, self._samples))
        return self._compute_on_device(node, inputs)

    def _compute_on_device(self, node: Node, inputs: Sequence[int]) -> int:
        types = [self._nodes[value].outputs[0] for value in inputs]
        out = self._allocate(node.outputs[0].byte_length)
        pointers: dict[Arg, int] = {Operand(i): self._addresses[at] for i, at in enumerate(inputs)}
        pointers[Output()] = out
        for launch in self._kernels.serve_checked(node, types):
            self._launch(launch, pointers)
        for arg, address in pointers.items():
            if not isinstance(arg, Operand | Output):
                self._free(address)
        return out

    def _launch(self, launch: Launch, pointers: dict[Arg, int]) -> None:
        slots: list[Slot] = []
        for arg in launch.args:
            if isinstance(arg, int):
                slots.append(arg)
                continue
            if arg not in pointers:
                pointers[arg] = self._make_room(arg, launch)
            slots.append(Pointer(pointers[arg]))
        call = Call(
            launch.file, launch.kernel, launch.grid, launch.block, tuple(slots), launch.shared
        )
        self._device.launch(call)

    def _make_room(self, arg: Arg, launch: Launch) -> int:
        match arg:
            case Scratch(nbytes):
                return self._allocate(nbytes)
            case Constant(data):
                return self._place(np.frombuffer(data, np.uint8))
            case Saturated():
                # Counted and not looked at.
                return self._place(np.zeros(1, np.uint64))
            case Operand() | Output() | SamplePart() | SampleForm() | int():
                raise KernelError(f"asks for {arg}", where=f"{launch.file}: {launch.kernel}")

    def _read(self, value: int) -> npt.NDArray[Any]:
        tensor = self._nodes[value].outputs[0]
        raw = self._device.read(self._addresses[value], tensor.byte_length)
        return np.frombuffer(raw, NUMPY_DTYPES[tensor.dtype]).reshape(tensor.shape)

    def _allocate(self, nbytes: int) -> int:
        address = self._device.allocate(max(nbytes, 1))
        self._blocks.add(address)
        return address

    def _place(self, value: npt.NDArray[Any]) -> int:
        address = self._allocate(value.nbytes)
        if value.nbytes:
            raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            self._device.write(address, raw)
        return address

    def _free(self, block: int) -> None:
        self._blocks.remove(block)
        self._device.free(block)


def open_evaluator(state: State, samples: Samples) -> DeviceEvaluator:
    """An evaluator on the first GPU, with the verdicts of the self-check in the user's cache."""
    device, kernels = open_kernels()
    return DeviceEvaluator(state, samples, device=device, kernels=kernels)
