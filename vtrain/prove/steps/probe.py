"""A look at the circuit of a whole step before keys are made for it: a faulty one gets none.

Three things are tried with the very circuit of a graph, evaluated by our own code in the field:

1. *True statements*, by the law (``vtrain.ops``) node by node: from the real step, where one is at
   hand, and from random and extreme states, batches and rates.  The circuit must hold of them
   (``step`` of those that its text covers), and what its witness has for the output of a node must
   be the law's integers.
2. *The catalogue*: every named part of a witness (a tensor of the given vectors, a hint, a
   remainder, a mask, an inverse; rate and loss) with its first, its last and a random element off
   by one unit, both ways.  What depends on the challenge is computed anew; for given vectors, rate
   and loss, all hints and limbs are as well.
3. *False nodes*: one element of a node's output off by one unit, or its mask turned round, and all
   that follows made to fit by the law: state after, loss, hints, limbs.  The conditions of this
   node alone can tell.

What passes and is not true by the law is named by a CircuitError.  Of more than :data:`MOST` parts
or nodes so many are drawn: nobody's graph is to cost an auditor hours.

Circuits over tiles serve every model and are pinned by their digests (``circuits/*/circuit.json``).
Their catalogue runs where they are made, in the tests of this package.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vtrain.commit.kzg_layout import state_names
from vtrain.errors import CircuitError, ProverError
from vtrain.graph.step import STEP_STATE
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int, attr_ints
from vtrain.prove.backend.srs import Progress, quiet
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.gadgets import can_hold
from vtrain.prove.circuit.trial import Change, Trial
from vtrain.prove.circuit.values import MASKS_PART, Ints
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE, LOSS, RATE
from vtrain.prove.steps.circuits import STEP_CIRCUITS
from vtrain.spec.number import (
    LOG2_EXPONENT,
    LOSS_EXPONENT,
    NUMPY_DTYPES,
    PROBABILITY_EXPONENT,
    SATURATION,
    STORAGE,
)
from vtrain.wire.graph import Node, Ref, StepGraph

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class Probed:
    """What was tried: true ``statements``; ``changes`` of elements; ``false_nodes``."""

    statements: int
    changes: int
    false_nodes: int


def probe_step_circuit(
    graph: StepGraph,
    circuit: Circuit,
    name: str,
    real: tuple[Tensors, Mapping[str, Ints]] | None = None,
    *,
    progress: Progress = quiet,
    cancelled: threading.Event | None = None,
    seed: int | None = None,
) -> Probed:
    """Try the circuit ``name`` of ``graph``'s step as this module's text says.

    ``real`` are the given vectors and the parameters of a step that the circuit holds of; without
    one the catalogue is of a step drawn at random.  CircuitError names what the circuit gets wrong;
    ProverError when cancelled.
    """
    drawn = int.from_bytes(os.urandom(8), "little") if seed is None else seed
    return _Probe(graph, circuit, name, drawn, progress, cancelled).run(real)


@dataclass(frozen=True)
class _Step:
    """A step by the law: ``found`` are the outputs of nodes by their index."""

    states: Tensors
    batch: Tensors
    rate: int
    found: Mapping[int, Array]


@dataclass(frozen=True)
class _Part:
    """A named piece of a vector: elements ``start`` to ``stop`` - 1 of ``vector``, all columns."""

    name: str
    vector: str
    start: int
    stop: int

    def __bool__(self) -> bool:
        return self.stop > self.start


_NONE: Final = _Part("", "", 0, 0)


@dataclass(frozen=True)
class _Cheat:
    """False ``outputs`` of nodes, and what of the witness is set, not computed."""

    what: str
    outputs: Mapping[int, Array]
    change: Change


_GIVEN: Final = (BEFORE, BATCH, AFTER)
_PRIVATE: Final = ("limbs", "hints", "late")
_OUTSIDE: Final = frozenset(
    {"batch_digest", "record", "sample_index", "state_leaf", "state_root", "tensor_digest"}
)
_UPDATES: Final = ("momentum", "sgd_update")
_FACTORS: Final = (2, 3, 5, 7)
"""By which an output that pretends to be clamped is too small."""
_STATES: Final = ("random", "mixed", "zero")
MOST: Final = 500
"""Most parts that are altered, and most nodes that are false; of more they are drawn at random."""
_MODERATE: Final = 10
"""Bits below the most that a state of a step without clamps, and with all else lively, has."""


class _Probe:
    def __init__(
        self,
        graph: StepGraph,
        circuit: Circuit,
        name: str,
        seed: int,
        progress: Progress,
        cancelled: threading.Event | None,
    ) -> None:
        self.graph, self.circuit, self.name = graph, circuit, name
        self.random = np.random.default_rng(seed)
        self.progress, self.cancelled = progress, cancelled
        self.gathers = {
            str(node.attrs["part"]): node for node in graph.nodes if node.op == "gather_samples"
        }
        self.schedule = graph.nodes[graph.find("schedule")]
        self.loss = graph.nodes[graph.find("record")].inputs[2]
        self.parts = [*self._list_given(), *self._list_private()]
        self.named = {(part.vector, part.name): part for part in self.parts}
        self.done = 0
        self.total = len(_STATES) + 1 + min(len(self.parts), MOST) + min(len(graph.nodes), MOST)

    def run(self, real: tuple[Tensors, Mapping[str, Ints]] | None) -> Probed:
        self.progress("probe", 0, self.total)
        step = self.draw("random", _MODERATE) if real is None else self.read(*real)
        if step is None:
            raise CircuitError("finds no step that it is of", where=f"circuit {self.name}")
        if real is not None and not self.agrees(step, *real):
            raise CircuitError("is not by the law", where="the step at hand")
        trial = self.check_true(step, "the step at hand" if real is not None else "a random state")
        statements = 1
        self.advance()
        for state in _STATES:
            drawn = self.draw(state, 0)
            if drawn is not None:
                self.check_true(drawn, f"a {state} state")
                statements += 1
            self.advance()
        changes = 0
        for at in self._choose(len(self.parts)):
            changes += self.check_part(step, trial, self.parts[at])
            self.advance()
        false_nodes = 0
        for index in self._choose(len(self.graph.nodes)):
            false_nodes += self.check_node(step, trial, index)
            self.advance()
        return Probed(statements, changes, false_nodes)

    def _choose(self, count: int) -> list[int]:
        """All of ``count`` places, or so many drawn that a huge graph costs no hours."""
        if count <= MOST:
            return list(range(count))
        return sorted(self.random.choice(count, MOST, replace=False).tolist())

    def advance(self) -> None:
        if self.cancelled is not None and self.cancelled.is_set():
            raise ProverError("cancelled", where="probe")
        self.done += 1
        self.progress("probe", self.done, self.total)

    # --- the law

    def follow(self, states: Tensors, batch: Tensors, rate: int) -> _Step:
        """The step of these."""
        found: dict[int, Array] = {}
        for index, node in enumerate(self.graph.nodes):
            if node.op in _OUTSIDE:
                continue
            if node.op == "state":
                name = str(node.attrs["name"])
                value = np.asarray(0) if name == STEP_STATE else states[name]
            elif node.op == "gather_samples":
                value = batch[str(node.attrs["part"])]
            elif node.op == "schedule":
                value = np.asarray(rate)
            else:
                value = self._apply(index, found)
            found[index] = np.asarray(value).astype(NUMPY_DTYPES[node.outputs[0].dtype])
        return _Step(states, batch, rate, found)

    def follow_false(self, step: _Step, false: Mapping[int, Array]) -> _Step:
        """``step`` with ``false`` outputs of nodes, and all that follows from them."""
        found = dict(step.found) | dict(false)
        changed = set(false)
        for index in range(min(false), len(self.graph.nodes)):
            node = self.graph.nodes[index]
            if index in found and changed.intersection(ref.node for ref in node.inputs):
                if index not in false:
                    value = self._apply(index, found)
                    found[index] = value.astype(NUMPY_DTYPES[node.outputs[0].dtype])
                changed.add(index)
        return _Step(step.states, step.batch, step.rate, found)

    def _apply(self, index: int, found: Mapping[int, Array]) -> Array:
        node = self.graph.nodes[index]
        inputs = [found[ref.node] for ref in node.inputs]
        return np.asarray(TABLE[node.op].law(node.attrs, inputs))

    def after(self, step: _Step) -> dict[str, Array]:
        ends = self.graph.next_states()
        return {name: step.found[ends[name].node] for name in state_names(self.graph)}

    def columns(self, step: _Step) -> dict[str, Ints]:
        """The given vectors of a step."""
        names = state_names(self.graph)
        after = self.after(step)
        whole = {
            BEFORE: [step.states[name] for name in names],
            BATCH: [step.batch[part] for part in ("x", "y")],
            AFTER: [after[name] for name in names],
        }
        found = {}
        for vector, tensors in whole.items():
            flat = np.concatenate([tensor.reshape(-1).astype(object) for tensor in tensors])
            for column, start, stop in self._list_columns(vector):
                found[column] = flat[start:stop]
        return found

    def parameters(self, step: _Step) -> dict[str, Ints]:
        loss = int(step.found[self.loss.node])
        return {RATE: np.asarray([step.rate], object), LOSS: np.asarray([loss], object)}

    def read(self, given: Tensors, parameters: Mapping[str, Ints]) -> _Step:
        """The step of these, what it makes of them being the law's."""
        tensors: dict[str, dict[str, Array]] = {BEFORE: {}, BATCH: {}}
        kinds = {name: self.graph.type_of(ref) for name, ref in self.graph.states().items()}
        kinds |= {part: node.outputs[0] for part, node in self.gathers.items()}
        for part in self._list_given():
            if part.vector in tensors:
                flat = np.concatenate(
                    [given[name] for name, _, _ in self._list_columns(part.vector)]
                )
                name = part.name.removeprefix(f"{part.vector}/")
                kind = kinds[name]
                values = flat[part.start : part.stop].astype(NUMPY_DTYPES[kind.dtype])
                tensors[part.vector][name] = values.reshape(kind.shape)
        return self.follow(tensors[BEFORE], tensors[BATCH], int(parameters[RATE][0]))

    def agrees(self, step: _Step, given: Tensors, parameters: Mapping[str, Ints]) -> bool:
        """Whether this is what the law makes of a step's inputs."""
        columns, own = self.columns(step), self.parameters(step)
        return all(np.array_equal(columns[name], given[name]) for name in columns) and all(
            int(own[name][0]) == int(parameters[name][0]) for name in own
        )

    # --- true statements

    def draw(self, state: str, shift: int) -> _Step | None:
        """A step that the circuit is of: the state as large as may be, from ``shift`` bits less."""
        for lost in range(shift, 32):
            states = {
                name: self._draw_state(state, self.graph.states()[name], lost)
                for name in state_names(self.graph)
            }
            rate = int(self.random.choice(attr_ints(self.schedule.attrs, "rates")))
            step = self.follow(states, self._draw_batch(extreme=state == "mixed"), rate)
            if STEP_CIRCUITS[self.name] or self.is_covered(step):
                return step
        return None

    def _draw_state(self, what: str, ref: Ref, lost: int) -> Array:
        """A state's values, ``lost`` bits from int32, which its type may claim less than."""
        kind = self.graph.type_of(ref)
        least, most = (bound >> lost for bound in STORAGE["i32"])
        if what == "random":
            drawn = self.random.integers(least, most, kind.shape, endpoint=True)
        elif what == "mixed":
            drawn = self.random.choice([least, -most, most, -1, 0, 1], kind.shape)
        else:
            drawn = np.zeros(kind.shape, dtype=np.int64)
        return np.asarray(drawn).astype(NUMPY_DTYPES[kind.dtype])

    def _draw_batch(self, *, extreme: bool) -> dict[str, Array]:
        """Values of the samples' dtypes, labels being classes."""
        found = {}
        for part, node in self.gathers.items():
            kind = node.outputs[0]
            lo, hi = STORAGE[kind.dtype]
            lo, hi = max(lo, kind.lo), min(hi, kind.hi)
            for reader in self.graph.nodes:
                if reader.op == "sub_one_hot" and self.graph.nodes[reader.inputs[1].node] is node:
                    lo, hi = 0, min(hi, self.graph.type_of(reader.inputs[0]).shape[1] - 1)
            drawn = (
                self.random.choice([lo, hi], kind.shape)
                if extreme
                else self.random.integers(lo, hi, kind.shape, endpoint=True)
            )
            found[part] = np.asarray(drawn).astype(NUMPY_DTYPES[kind.dtype])
        return found

    def is_covered(self, step: _Step) -> bool:
        """Whether ``step`` (docs/proofs.md) says that it is of this: nothing of the size of the
        parameters saturates, or comes close."""
        states = set(self.graph.states().values())
        for index, node in enumerate(self.graph.nodes):
            if node.op in _UPDATES:
                most = (1 << 31) - (1 << 15)
            elif (
                node.op in ("normalize", "rescale")
                and node.inputs[0] in states
                and node.outputs[0].dtype in SATURATION
            ):
                shift = attr_int(node.attrs, "shift")
                close = 1 << shift if can_hold(shift) else 1
                most = SATURATION[node.outputs[0].dtype][1] - close
            else:
                continue
            if np.abs(step.found[index].astype(object)).max(initial=0) > most:
                return False
        return True

    def check_true(self, step: _Step, what: str) -> Trial:
        """CircuitError unless the circuit holds of a step, with the law's integers."""
        circuit, parameters = self.circuit, self.parameters(step)
        vectors = circuit.assign(self.columns(step), parameters, draw_locally(circuit))
        try:
            trial = Trial(circuit, vectors, parameters)
        except CircuitError as error:
            raise CircuitError(
                f"does not hold of a true step from {what}: {error}", where=f"circuit {self.name}"
            ) from error
        for index, node in enumerate(self.graph.nodes):
            part = self._find("hints", node.name)
            if part and self._values(trial, part) != step.found[index].reshape(-1).tolist():
                raise CircuitError(f"has not the law's integers in {what}", where=node.name)
        return trial

    # --- the catalogue

    def check_part(self, step: _Step, trial: Trial, part: _Part) -> int:
        """Elements of one part off by one; how many changes were tried."""
        places = {part.start, part.stop - 1, int(self.random.integers(part.start, part.stop))}
        outside = part.vector in (*_GIVEN, "public")
        tried = 0
        for place in sorted(places):
            group, index = self._locate(part.vector, place)
            for unit in (1, -1):
                change = {(group, index): [trial.value(group, index) + unit]}
                for adapting in (("late",), _PRIVATE) if outside else (("late",),):
                    tried += 1
                    if trial.find_broken(change, adapting):
                        continue
                    if outside and self._is_true(trial, change):
                        continue
                    where = f"{part.name}[{place - part.start}]"
                    self._refuse(f"{where} {unit:+d}")
        if part.vector == "late" and part.stop - part.start > 1:
            # Their sum stays what it was.
            first, last = part.start, part.stop - 1
            change = {
                ("late", first): [trial.value("late", first) + 1],
                ("late", last): [trial.value("late", last) - 1],
            }
            tried += 1
            if not trial.find_broken(change):
                self._refuse(f"{part.name}[0] +1 and [{last - first}] -1")
        return tried

    def _refuse(self, change: str) -> None:
        raise CircuitError(
            f"a false witness satisfies it, {change}: it is not to be used",
            where=f"circuit {self.name}",
        )

    def _is_true(self, trial: Trial, change: Change) -> bool:
        """Whether the altered statement is one that the law makes true as well."""

        def value(group: str, index: int) -> int:
            return int(change.get((group, index), [trial.value(group, index)])[0])

        given = {
            name: np.asarray(
                [value(name, index) for index in range(self.circuit.length(name))], object
            )
            for name in self.circuit.given
        }
        parameters = {
            part.name: np.asarray([value("public", part.start)], object)
            for part in self.parts
            if part.vector == "public"
        }
        try:
            return self.agrees(self.read(given, parameters), given, parameters)
        except OverflowError:  # beyond the dtype
            return False

    # --- false nodes

    def check_node(self, step: _Step, trial: Trial, index: int) -> int:
        """Outputs of a node are false, and all that follows is made to fit; how many were tried."""
        tried = 0
        for cheat in self._list_cheats(step, trial, index):
            followed = self.follow_false(step, cheat.outputs)
            columns, change = self.columns(followed), dict(cheat.change)
            for name, _, _ in self._list_columns(AFTER):
                change[name, 0] = columns[name]
            loss = self._find("public", LOSS)
            change["public", loss.start] = self.parameters(followed)[LOSS]
            tried += 1
            if not trial.find_broken(change, _PRIVATE):
                self._refuse(f"node {self.graph.nodes[index].name}: {cheat.what}")
        return tried

    def _list_cheats(self, step: _Step, trial: Trial, index: int) -> Iterator[_Cheat]:
        node, size = self.graph.nodes[index], self.graph.type_of(Ref(index)).size
        if self._find("hints", f"{node.name}/mask", size):
            yield from self._turn_masks(step, trial, index)
        elif node.op == "sub_one_hot":
            yield from self._move_labels(step, index)
        elif node.op == "cross_entropy":
            yield from self._choose_wrongly(step, trial, index)
        if self._find("hints", node.name, size) or node.op in _UPDATES:
            yield from self._miss_by_one(step, trial, index)
            yield from self._borrow(step, trial, index)
        if self._find("hints", f"{node.name}/excess", size):
            yield from self._pretend_to_clamp(step, trial, index)
        if node.op == "momentum" and self._find("limbs", f"{node.name}/decayed", size):
            yield from self._lose_more(step, trial, index)

    def _miss_by_one(self, step: _Step, trial: Trial, index: int) -> Iterator[_Cheat]:
        """An output off by one unit; once with what it clamps as it was, too."""
        node, true = self.graph.nodes[index], step.found[index]
        lo, hi = SATURATION.get(node.outputs[0].dtype, STORAGE[node.outputs[0].dtype])
        clamped = self._find("hints", f"{node.name}/excess", true.size)
        kept: dict[tuple[str, int], Sequence[int] | Ints] = {
            (part.vector, part.start): self._values(trial, part)
            for part in ([clamped, *self._find_digits(node, true.size)] if clamped else [])
        }
        for place in sorted({0, true.size - 1, int(self.random.integers(true.size))}):
            unit = int(self.random.choice([-1, 1]))
            value = int(true.reshape(-1)[place])
            value += unit if lo <= value + unit <= hi else -unit
            for more in (kept, {}) if kept else ({},):
                yield self._cheat(index, true, place, value, more)

    def _cheat(self, index: int, true: Array, place: int, value: int, more: Change) -> _Cheat:
        """One element of a node's output is ``value``, and so it is in its hint."""
        node, false = self.graph.nodes[index], true.copy()
        false.reshape(-1)[place] = value
        change, hint = dict(more), self._find("hints", node.name, true.size)
        if hint:
            change["hints", hint.start + place] = [value]
        was = int(true.reshape(-1)[place])
        return _Cheat(f"{value} for {was} in element {place}", {index: false}, change)

    def _borrow(self, step: _Step, trial: Trial, index: int) -> Iterator[_Cheat]:
        """An output off by one unit, and a remainder beyond its range in exchange."""
        node, true = self.graph.nodes[index], step.found[index]
        if node.op not in (*_UPDATES, "rescale") or attr_int(node.attrs, "shift") <= 0:
            return
        shift, name = attr_int(node.attrs, "shift"), f"{node.name}/remainder"
        lowest, scale = self._find("limbs", f"{name}/scaled", true.size), -shift % 16
        if not lowest:
            lowest, scale = self._find("limbs", f"{name}/bits 0 to 15", true.size), 0
        above = self._find("limbs", f"{node.name}/from above", true.size)
        place = int(self.random.integers(true.size))
        value = int(true.reshape(-1)[place])
        unit = -1 if value > 0 else 1
        more = {}
        for part, lent in ((lowest, -unit << shift + scale), (above, unit * ((1 << shift) - 1))):
            if part:
                at = part.start + place
                more["limbs", at] = [trial.value("limbs", at) + lent]
        if lowest:
            yield self._cheat(index, true, place, value + unit, more)

    def _turn_masks(self, step: _Step, trial: Trial, index: int) -> Iterator[_Cheat]:
        """A mask of 0 or 1 off by one unit: turned round, or none."""
        node = self.graph.nodes[index]
        mask = self._find("hints", f"{node.name}/mask")
        passed = step.found[node.inputs[0].node].reshape(-1).astype(np.int64)
        masks = np.asarray(self._values(trial, mask))
        # Where 0 passes, nothing changes; and twice the value is to be in its dtype.
        sound = (passed != 0) & (2 * np.abs(passed) <= SATURATION["i16"][1])
        for kind in (0, 1):
            places = np.flatnonzero(sound & (masks == kind))
            for unit in (-1, 1) if places.size else ():
                place = int(self.random.choice(places))
                more = {("hints", mask.start + place): [kind + unit]}
                value = (kind + unit) * int(passed[place])
                yield self._cheat(index, step.found[index], place, value, more)

    def _pretend_to_clamp(self, step: _Step, trial: Trial, index: int) -> Iterator[_Cheat]:
        """y / c in place of y, for a small c, and as excess what fits to that: M (c - 1)."""
        node, true = self.graph.nodes[index], step.found[index]
        if node.outputs[0].dtype not in SATURATION:
            return  # the hint is that of another node, which is called so
        excess = self._find("hints", f"{node.name}/excess", true.size)
        digits = self._find_digits(node, true.size)
        flat = true.reshape(-1).astype(np.int64)
        free = (np.asarray(self._values(trial, excess)) == 0) & (flat != 0)
        for factor in _FACTORS:
            places = np.flatnonzero(free & (flat % factor == 0))
            pretended = SATURATION[node.outputs[0].dtype][1] * (factor - 1)
            if not places.size or pretended >= self.circuit.span ** len(digits):
                continue
            place = int(self.random.choice(places))
            change = {("hints", excess.start + place): [pretended]}
            for position, part in enumerate(digits):
                digit = pretended // self.circuit.span**position % self.circuit.span
                change["limbs", part.start + place] = [digit + 1]
            yield self._cheat(index, true, place, int(flat[place]) // factor, change)
            return

    def _lose_more(self, step: _Step, trial: Trial, index: int) -> Iterator[_Cheat]:
        """A momentum taken for another where a share of it is lost."""
        node, true = self.graph.nodes[index], step.found[index]
        high, most = self._find("limbs", f"{node.name}/high"), SATURATION["i32"][1]
        place = int(self.random.integers(true.size))
        decay = attr_int(node.attrs, "decay")
        for unit in (-1, 1):
            value = int(true.reshape(-1)[place]) - unit * decay
            stored = trial.value("limbs", high.start + place) + unit
            if abs(value) <= most and 1 <= stored <= self.circuit.span:
                more = {("limbs", high.start + place): [stored]}
                yield self._cheat(index, true, place, value, more)

    def _move_labels(self, step: _Step, index: int) -> Iterator[_Cheat]:
        """Rows that are not the label's: another's, of no label or two, of no zeros and ones."""
        node, hot = self.graph.nodes[index], self._find("hints", "labels")
        p, labels = (step.found[ref.node] for ref in node.inputs)
        rows, classes = p.shape
        row = int(self.random.integers(rows))
        label = int(labels[row])
        other = (label + 1) % classes
        moved = np.zeros((3 if classes > 3 else 2, classes), dtype=np.int64)
        moved[0, [label, other]] = -1, 1
        moved[1, 0] = -1 if label == 0 else 1
        moved[2:, :4] = 1, -1, -1, 1
        for delta in moved:
            false = {index: step.found[index].copy()}
            false[index][row] -= (delta << PROBABILITY_EXPONENT).astype(false[index].dtype)
            at = hot.start + row * classes
            change = {("hints", at): [int(delta[j]) + int(j == label) for j in range(classes)]}
            for number, reader in enumerate(self.graph.nodes):
                if reader.op == "cross_entropy" and reader.inputs[3] == node.inputs[1]:
                    z = step.found[reader.inputs[0].node][row].astype(np.int64)
                    more = int(z @ delta) << LOSS_EXPONENT - LOG2_EXPONENT
                    lo, hi = STORAGE[reader.outputs[0].dtype]
                    false[number] = step.found[number].copy()
                    # Never cut where logits are such as training has.
                    false[number][row] = min(max(int(false[number][row]) - more, lo), hi)
                    hint = self._find("hints", reader.name)
                    change["hints", hint.start + row] = [int(false[number][row])]
            yield _Cheat(f"{delta.tolist()} more in the label of row {row}", false, change)

    # --- the parts of vectors

    def _choose_wrongly(self, step: _Step, trial: Trial, index: int) -> Iterator[_Cheat]:
        """The label's logit off by one unit."""
        true = step.found[index]
        chosen = self._find("hints", f"{self.graph.nodes[index].name}/chosen")
        place = int(self.random.integers(true.size))
        for unit in (-1, 1):
            at = chosen.start + place
            more = {("hints", at): [trial.value("hints", at) + unit]}
            value = int(true[place]) - (unit << LOSS_EXPONENT - LOG2_EXPONENT)
            yield self._cheat(index, true, place, value, more)

    def _find(self, vector: str, name: str, size: int | None = None) -> _Part:
        """The part of a name, and of a size: names are the graph's author's, and what is called so
        may be something else.  One that is false where there is none."""
        part = self.named.get((vector, name), _NONE)
        return part if size in (None, part.stop - part.start) else _NONE

    def _find_digits(self, node: Node, size: int) -> list[_Part]:
        """The limbs of what a node clamps, from the lowest."""
        names = (f"{node.name}/excess/digit {position}" for position in count())
        return list(takewhile(bool, (self._find("limbs", name, size) for name in names)))

    def _values(self, trial: Trial, part: _Part) -> list[int]:
        return [trial.value(part.vector, place) for place in range(part.start, part.stop)]

    def _list_given(self) -> Iterator[_Part]:
        """Each tensor in the given vectors."""
        states = [
            (name, self.graph.type_of(self.graph.states()[name]).size)
            for name in state_names(self.graph)
        ]
        batch = [(part, self.gathers[part].outputs[0].size) for part in ("x", "y")]
        for vector, tensors in ((BEFORE, states), (BATCH, batch), (AFTER, states)):
            start = 0
            for name, size in tensors:
                yield _Part(f"{vector}/{name}", vector, start, start + size)
                start += size

    def _list_private(self) -> Iterator[_Part]:
        for group in (*_PRIVATE, "public"):
            for name, start, stop in self.circuit.parts(group):
                if group == "limbs" and name == MASKS_PART:
                    continue  # any limb will do
                if group != "public" or name in (RATE, LOSS):
                    yield _Part(name, group, start, stop)

    def _list_columns(self, vector: str) -> list[tuple[str, int, int]]:
        """(column, start, stop) of a given vector."""
        found, start = [], 0
        for name in self.circuit.given:
            if name.split(" ")[0] == vector:
                found.append((name, start, start + self.circuit.length(name)))
                start += self.circuit.length(name)
        return found

    def _locate(self, vector: str, place: int) -> tuple[str, int]:
        """The column of an element, and its place there."""
        for name, start, stop in self._list_columns(vector):
            if start <= place < stop:
                return name, place - start
        return vector, place


def draw_locally(circuit: Circuit) -> Callable[[Mapping[str, Ints]], Sequence[int]]:
    """A challenge for our own look at a witness, which nobody has to trust."""
    count = circuit.length("challenge")
    return lambda before: [int.from_bytes(os.urandom(31), "little") for _ in range(count)]
