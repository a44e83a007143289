"""A finished circuit: its columns, its witnesses, what its outputs must be."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from vtrain.errors import CircuitError
from vtrain.prove.circuit.onnx import Emitter
from vtrain.prove.circuit.values import (
    ANSWERS,
    COLUMNS,
    GROUPS,
    HIDDEN,
    HIDING_ELEMENTS,
    Ints,
    Random,
    Values,
    compute_part,
    cut_vector,
    draw_elements,
    reduce,
)
from vtrain.spec.field import SCALAR_FIELD
from vtrain.wire.proof import HIDING

if TYPE_CHECKING:
    from vtrain.prove.circuit.builder import CircuitBuilder


class Circuit:
    """A finished circuit: witnesses of it, its ONNX graph, what its outputs must be."""

    def __init__(
        self,
        builder: CircuitBuilder,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        ones: int,
        looked_up: npt.NDArray[np.int64],
    ) -> None:
        self._b = builder
        self._looked_up = looked_up
        self._inputs = dict(inputs)
        self._outputs = dict(outputs)
        self._ones = ones

    @property
    def cells(self) -> int:
        """Cells of the main area: rows are about cells / inner columns."""
        return sum(self._b.nodes[index].cells for index in self._order())

    @property
    def degree(self) -> int:
        """The degrees in the challenge of all random combinations, added up.

        A false statement that was settled before the challenge was drawn passes with a chance of
        degree / r at most.
        """
        return self._b._degree

    @property
    def inner_columns(self) -> int:
        """Cells beside each other in one row."""
        return self._b.inner_columns

    @property
    def pads(self) -> bool:
        """Whether ezkl fills rows up with constants, which then need a column."""
        return self._b.pads

    @property
    def span(self) -> int:
        """Values of a limb: entries of the look-up table; 0 for a circuit without limbs."""
        return self._b.span if self._b._lengths["limbs"] else 0

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the vectors given from outside, in order."""
        return tuple(self._b._given)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that are inputs of the ONNX graph, in its order."""
        return tuple(self._inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that are its outputs."""
        return tuple(self._outputs)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, in the order of their commitments in a proof."""
        return (*self.inputs, *self.outputs)

    @property
    def settled(self) -> tuple[str, ...]:
        """Names of the columns that the challenge is drawn from; ``computed`` without itself."""
        before = {name for name in GROUPS if self._b._lengths[name]} - {"challenge", "late"}
        shared = [
            name
            for column, groups in COLUMNS.items()
            if before.intersection(groups)
            for name, _, _ in self._b.cut(column)
        ]
        return (*self.given, *shared)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names of the columns that end with ``HIDING`` elements that no condition reads."""
        known = self._b._given
        return tuple(
            name for name in self._inputs if name in known or name.partition(" ")[0] in HIDDEN
        )

    def length(self, name: str) -> int:
        """Values of a column, or elements of one of ``GROUPS`` or of ``hiding``."""
        if name == HIDING_ELEMENTS:
            return HIDING * len(self.hidden)
        if name in self.columns:
            return self.size(name) - (HIDING if name in self.hidden else 0)
        return self._b._lengths[name]

    def size(self, name: str) -> int:
        """Elements of a column: values, and what hides them."""
        return self._b.nodes[(self._inputs | self._outputs)[name]].shape[0]

    @property
    def ones(self) -> int:
        """How many ones the outputs begin with; zeros follow."""
        return self._ones

    @property
    def zero_names(self) -> tuple[str, ...]:
        """For each element of ``zeros``, the condition it belongs to."""
        return tuple(self._b._zero_names)

    def parts(self, group: str) -> Iterable[tuple[str, int, int]]:
        """(name, start, stop) of each part of a group: hints, limbs, public values, challenges."""
        for part in self._b._parts[group]:
            yield part.name, part.start, part.start + part.tensor.size

    @property
    def parameters(self) -> tuple[tuple[str, int, tuple[int, ...]], ...]:
        """(name, start, shape) of each parameter, where it stands in ``public``."""
        return tuple(
            (part.name, part.start, part.tensor.shape)
            for part in self._b._parts["public"]
            if part.constant is None
        )

    def describe_computed(self) -> list[dict[str, Any]]:
        """The parts of ``computed`` in order: what a verifier computes, and not how.

        Each has a ``name``, a ``kind`` and a ``length``: a "constant" its ``values``, a list of
        integers, a "parameter" its ``shape``, a "challenge" neither.
        """
        found = []
        for group in COLUMNS["computed"]:
            for part in self._b._parts[group]:
                entry: dict[str, Any] = {"name": part.name, "length": part.tensor.size}
                if part.constant is not None:
                    values = [int(value) for value in part.constant.reshape(-1)]
                    entry |= {"kind": "constant", "values": values}
                elif group == "public":
                    entry |= {"kind": "parameter", "shape": list(part.tensor.shape)}
                else:
                    entry["kind"] = group
                found.append(entry)
        return found

    def compute_public(self, parameters: Mapping[str, Ints]) -> Ints:
        """The group ``public``: all that the verifier needs to know of a statement."""
        values = Values(self._b, parameters)
        parts = [compute_part(part, values) for part in self._b._parts["public"]]
        return np.concatenate([*parts, np.zeros(0, dtype=object)])

    def lay_out(self, vectors: Mapping[str, Ints]) -> dict[str, Ints]:
        """The columns of given vectors and groups, as far as any of theirs are in ``vectors``, with
        the elements of ``hiding`` behind them.

        Zeros stand for a group that is missing, and for ``hiding``.  CircuitError for one of
        another length.
        """
        b = self._b
        for name in (*b._given, *GROUPS, HIDING_ELEMENTS):
            if name in vectors and len(vectors[name]) != self.length(name):
                raise CircuitError(
                    f"has {len(vectors[name])} elements, not {self.length(name)}", where=name
                )
        found = {name: vectors[name] for name in b._given if name in vectors}
        for column, groups in COLUMNS.items():
            if any(name in vectors and b._lengths[name] for name in groups):
                missing = {name: np.zeros(b._lengths[name], dtype=object) for name in groups}
                whole = np.concatenate([(missing | dict(vectors))[name] for name in groups])
                found.update((name, whole[start:stop]) for name, start, stop in b.cut(column))
        hiding = vectors.get(HIDING_ELEMENTS, np.zeros(self.length(HIDING_ELEMENTS), dtype=object))
        for i, name in enumerate(self.hidden):
            if name in found:
                behind = hiding[HIDING * i : HIDING * (i + 1)]
                found[name] = np.concatenate([found[name], behind])
        return found

    def compute_answers(self) -> dict[str, Ints]:
        """What the outputs must be: ones, then zeros."""
        b = self._b
        wanted = np.zeros(self._ones + len(b._zero_names), dtype=np.int8)
        wanted[: self._ones] = 1
        return {
            name: wanted[start:stop]
            for name, start, stop in cut_vector(ANSWERS, wanted.size, b.rows)
        }

    def assign(
        self,
        given: Mapping[str, Ints],
        parameters: Mapping[str, Ints],
        challenge: Callable[[Mapping[str, Ints]], Sequence[int]],
        *,
        hiding: Mapping[str, Sequence[int]] = MappingProxyType({}),
        random: Random = secrets.token_bytes,
    ) -> dict[str, Ints]:
        """A whole witness, given vectors and groups by name: hints, the challenge drawn from them,
        late hints, and ``hiding``, what stands behind the values of the hidden columns.

        ``hiding`` has ``HIDING`` elements for given vectors by name, zeros where it has none.
        ``random`` is what those of the others and masks are drawn from, anew for each witness.

        ``challenge`` gets all but ``challenge`` and ``late`` and gives the one element of the
        challenge, and what follows from it where :meth:`length` of ``challenge`` says more.
        CircuitError for inputs that do not fit.
        """
        b = self._b
        values = Values(b, parameters, random=random)
        vectors: dict[str, Ints] = {}
        for name, tensor in b._given.items():
            if name not in given or np.size(given[name]) != tensor.size:
                raise CircuitError(f"needs {tensor.size} integers", where=name)
            vectors[name] = np.asarray(given[name], dtype=object).reshape(-1)
            values.put(tensor, vectors[name])
        whole = {group: np.zeros(b._lengths[group], dtype=object) for group in GROUPS}
        vectors[HIDING_ELEMENTS] = self._hide(hiding, random)

        def fill(groups: Sequence[str]) -> None:
            for group, part in b._order:
                if group in groups and part.compute is not None:
                    stop = part.start + part.tensor.size
                    whole[group][part.start : stop] = compute_part(part, values)
                    values.put(part.tensor, whole[group][part.start : stop])
            vectors.update((group, whole[group]) for group in groups if b._lengths[group])

        fill(("limbs", "hints", "public"))
        if b._lengths["challenge"]:
            whole["challenge"][:] = list(challenge(dict(vectors)))
            for part in b._parts["challenge"]:
                stop = part.start + part.tensor.size
                values.put(part.tensor, whole["challenge"][part.start : stop])
            vectors["challenge"] = whole["challenge"]
        fill(("late",))
        return vectors

    def _hide(self, given: Mapping[str, Sequence[int]], random: Random) -> Ints:
        """The elements behind the values of each hidden column."""
        for name, elements in given.items():
            if name not in self._b._given or len(elements) != HIDING:
                raise CircuitError(f"takes {HIDING} hiding elements of given vectors", where=name)
        found: list[Ints] = [np.zeros(0, dtype=object)]
        for name in self.hidden:
            if name not in self._b._given:
                found.append(draw_elements(random, HIDING))
            else:
                found.append(np.asarray(given.get(name, [0] * HIDING), dtype=object))
        return np.concatenate(found)

    def evaluate(self, vectors: Mapping[str, Ints]) -> dict[str, Ints]:
        """The outputs by name, computed from a witness in the field as ezkl would."""
        known = self._read(vectors)
        return {
            name: np.asarray(self._b.evaluate_node(index, known), dtype=object) % SCALAR_FIELD
            for name, index in self._outputs.items()
        }

    def _read(self, vectors: Mapping[str, Ints]) -> dict[int, Ints]:
        """The values of the nodes of given vectors and groups."""
        b = self._b
        roots = {name: root for name, root in b._roots.items() if b._lengths[name]}
        nodes = {**b._given, **roots}
        return {tensor.index: reduce(vectors[name]) for name, tensor in nodes.items()}

    def open(self, vectors: Mapping[str, Ints], parameters: Mapping[str, Ints]) -> Values:
        """A witness as what hints are computed from."""
        return Values(self._b, parameters, self._read(vectors))

    def find_broken(self, vectors: Mapping[str, Ints]) -> list[str]:
        """Names of the conditions that do not hold; none for a sound witness."""
        ones, zeros = np.split(np.concatenate(list(self.evaluate(vectors).values())), [self._ones])
        broken = [name for name, item in zip(self.zero_names, zeros, strict=True) if item != 0]
        limbs = list(self.parts("limbs"))
        for i in np.flatnonzero(ones != 1)[:100]:
            if i < self._looked_up.size:
                at = self._looked_up[i]
                place = next(name for name, start, stop in limbs if start <= at < stop)
            else:
                place = "an inverse"
            broken.append(f"ones: {place}")
        return broken

    def _order(self) -> list[int]:
        """The nodes that the outputs need, each after its inputs."""
        order: dict[int, None] = {}
        pending = [(index, False) for index in reversed(list(self._outputs.values()))]
        while pending:
            index, ready = pending.pop()
            if index in order:
                continue
            if ready:
                order[index] = None
            else:
                pending.append((index, True))
                pending.extend((item, False) for item in self._b.nodes[index].inputs)
        return list(order)

    def to_onnx(self) -> bytes:
        """The graph for ezkl: float64, opset 17, inputs and outputs flat vectors."""
        emitter = Emitter()
        names = {index: name for name, index in self._inputs.items()}
        for index in self._order():
            if index not in names:
                emitter.emit(index, self._b.nodes[index], names)
        for name, index in self._outputs.items():
            emitter.node("Identity", [f"n{index}"], name)
        inputs, outputs = (
            [
                helper.make_tensor_value_info(name, TensorProto.DOUBLE, [self.size(name)])
                for name in side
            ]
            for side in (self.inputs, self.outputs)
        )
        graph = helper.make_graph(emitter.nodes, "circuit", inputs, outputs, emitter.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString(deterministic=True))
