"""What notices a change of a witness, without evaluating all of it anew."""

from __future__ import annotations

from bisect import bisect_right
from collections import ChainMap, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from vtrain.errors import CircuitError
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import (
    OPS,
    Ints,
    Part,
    Values,
    compute_part,
    look_up_limbs,
    reduce,
)
from vtrain.spec.field import SCALAR_FIELD

if TYPE_CHECKING:
    from vtrain.prove.circuit.builder import CircuitBuilder


Change = Mapping[tuple[str, int], Sequence[int] | Ints]
"""(group or given vector, first index) -> what stands there instead, within one part."""


class Trial:
    """A witness that holds, of which elements are altered: what follows from them is evaluated
    anew, and nothing else.

    Says the same as :meth:`Circuit.find_broken` of the whole altered witness, in far less time.
    """

    def __init__(
        self, circuit: Circuit, vectors: Mapping[str, Ints], parameters: Mapping[str, Ints]
    ) -> None:
        """CircuitError names the conditions that do not hold."""
        b = self._b = circuit._b
        self._parameters = parameters
        values = circuit.open(vectors, parameters)
        self._known = values._of
        self._conditions = _list_conditions(b)
        for index in self._conditions:
            b.evaluate_node(index, self._known)
        self._parts: dict[int, tuple[str, Part]] = {}
        self._starts: dict[str, tuple[list[int], list[int]]] = {
            name: ([0], [tensor.index]) for name, tensor in b._given.items()
        }
        for group, parts in b._parts.items():
            self._starts[group] = [part.start for part in parts], []
            for part in parts:
                b.evaluate_node(part.tensor.index, self._known)
                self._parts[part.tensor.index] = group, part
                self._starts[group][1].append(part.tensor.index)
        broken = self._list_broken(self._known, [*self._conditions, *self._parts])
        if broken:
            raise CircuitError(f"the conditions do not hold: {', '.join(broken[:3])}")
        self._followers = self._find_followers(values)

    def _find_followers(self, values: Values) -> dict[int, list[int]]:
        """Nodes that a node's value goes into, also by way of how hints are computed."""
        followers = defaultdict(list)
        for index, (group, part) in self._parts.items():
            if part.compute is not None and group not in ("public", "challenge"):
                values.read.clear()
                part.compute(values)
                for item in values.read:
                    followers[item].append(index)
        for index in self._known:
            for item in self._b.nodes[index].inputs:
                followers[item].append(index)
        return followers

    def value(self, group: str, index: int) -> int:
        """An element of a given vector or of a group."""
        node, place = self._locate(group, index)
        return int(self._known[node].reshape(-1)[place])

    def _locate(self, group: str, index: int) -> tuple[int, int]:
        """The node of the part that an element is in, and its place there."""
        starts, nodes = self._starts[group]
        found = bisect_right(starts, index) - 1
        return nodes[found], index - starts[found]

    def find_broken(self, change: Change, adapting: Collection[str] = ("late",)) -> list[str]:
        """Names of the conditions that notice a change.

        Parts of the groups ``adapting`` that are not altered themselves are computed anew where
        they follow from what is altered; where one cannot be, it stays what it was.
        """
        known = ChainMap(dict[int, Ints](), self._known)
        changed: set[int] = set()
        queue: list[int] = []
        queued: set[int] = set()

        def set_value(index: int, value: Ints) -> None:
            if np.array_equal(value, known[index]):
                return
            known[index] = value
            changed.add(index)
            for item in self._followers.get(index, ()):
                if item not in queued:
                    queued.add(item)
                    heappush(queue, item)

        altered: dict[int, Ints] = {}
        for (group, start), values in change.items():
            index, place = self._locate(group, start)
            value = altered.setdefault(index, known[index].copy())
            value.reshape(-1)[place : place + len(values)] = reduce(values)
        for index, value in altered.items():
            set_value(index, value)
        while queue:
            index = heappop(queue)
            queued.discard(index)
            if index not in self._parts:
                node = self._b.nodes[index]
                set_value(index, OPS[node.op](node, [known[item] for item in node.inputs]))
                continue
            group, part = self._parts[index]
            if group not in adapting or index in altered:
                continue
            try:
                made = compute_part(part, Values(self._b, self._parameters, known))
            except (ValueError, IndexError, OverflowError, ZeroDivisionError):
                continue
            set_value(index, reduce(made).reshape(part.tensor.shape))
        return self._list_broken(known, sorted(changed))

    def _list_broken(self, known: Mapping[int, Ints], indices: Iterable[int]) -> list[str]:
        """Names of the conditions of these nodes that do not hold; limbs have a range."""
        broken = []
        for index in indices:
            if index in self._conditions:
                wanted, name = self._conditions[index]
                if ((known[index] - wanted) % SCALAR_FIELD).any():
                    broken.append(name)
            group, part = self._parts.get(index, ("", None))
            if part is not None and group == "limbs" and not self._is_in_range(known[index]):
                broken.append(f"ones: {part.name}")
        return broken

    def _is_in_range(self, limbs: Ints) -> bool:
        return bool((look_up_limbs(limbs, self._b.span) == 1).all())


def _list_conditions(b: CircuitBuilder) -> dict[int, tuple[int, str]]:
    """Node -> what each of its elements must be, name; all but the ranges of limbs."""
    found, place = {}, 0
    for tensor in b._zeros:
        found[tensor.index] = 0, b._zero_names[place]
        place += tensor.size
    for tensor in b._ones:
        found[tensor.index] = 1, "ones: an inverse"
    return found
