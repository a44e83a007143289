"""Forms of GELU that modules write in parts, found in a captured program.

They are x / 2 times 1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)), or times 1 + erf(x / sqrt(2)), with
the factors in any order: what is compared are polynomials of x.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import fx

_CLOSE: Final = 1e-4
"""How far a coefficient may be from its own, relatively: modules write some of its digits."""
_MOST_DEGREE: Final = 3
_ROOT: Final = math.sqrt(2 / math.pi)
_INNER: Final[Mapping[str, Mapping[int, float]]] = {
    "erf": {1: math.sqrt(0.5)},
    "tanh": {1: _ROOT, 3: _ROOT * 0.044715},
}
"""Coefficients, by the power of x, of what the function is of."""
_FORMS: Final = {"erf": "none", "tanh": "tanh"}

Polynomial = dict[int, float]


@dataclass(frozen=True)
class Gelu:
    """GELU of ``source``, of the form "none" or "tanh"."""

    source: fx.Node
    form: str


def find_gelus(graph: fx.Graph) -> dict[fx.Node, Gelu]:
    """The last node of each GELU that is written in parts."""
    found: dict[fx.Node, Gelu] = {}
    for gate in graph.nodes:
        function = _find_function(gate)
        if function is not None:
            found |= _match(gate, function)
    return found


def _find_function(node: fx.Node) -> fx.Node | None:
    """What 1 is added to, where that is tanh or erf."""
    if _is_operator(node, "add"):
        for one, other in _both_ways(node.args):
            if _is_number(one) and one == 1 and any(_is_operator(other, f) for f in _INNER):
                return other  # type: ignore[no-any-return]
    return None


def _match(gate: fx.Node, function: fx.Node) -> dict[fx.Node, Gelu]:
    """Products of the gate, a half and x, where the function is of the polynomial of x."""
    name = "erf" if _is_operator(function, "erf") else "tanh"
    for product in _walk_products(gate):
        for x in dict.fromkeys(_list_factors(product)):
            if x is gate or not _agree(_expand(function.args[0], x), _INNER[name]):
                continue
            whole = _multiply_out(product, x, gate)
            if whole is not None and math.isclose(whole, 0.5):
                return {product: Gelu(x, _FORMS[name])}
    return {}


def _walk_products(gate: fx.Node) -> Iterator[fx.Node]:
    """Products that the gate goes into, each of the one before."""
    node = gate
    while len(node.users) == 1:
        (node,) = node.users
        if not (_is_operator(node, "mul") or _is_operator(node, "div")):
            return
        yield node


def _list_factors(node: Any) -> Iterator[fx.Node]:
    """Nodes that are multiplied with each other, and the products of some of them."""
    if isinstance(node, fx.Node):
        yield node
        if _is_operator(node, "mul") or _is_operator(node, "div"):
            for one in node.args:
                yield from _list_factors(one)


def _multiply_out(node: Any, x: fx.Node, gate: fx.Node) -> float | None:
    """The number that ``node`` is, times x, times the gate."""
    number, counts = 1.0, Counter[str]()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one is x or one is gate:
            counts["x" if one is x else "gate"] += 1
        elif _is_number(one):
            number *= one
        elif _is_operator(one, "mul"):
            waiting += one.args
        elif _is_operator(one, "div") and _is_number(one.args[1]):
            number /= one.args[1]
            waiting.append(one.args[0])
        else:
            return None
    return number if counts == {"x": 1, "gate": 1} else None


def _expand(node: Any, x: fx.Node) -> Polynomial | None:
    """Coefficients of ``node`` as a polynomial of x, by the power of x."""
    if node is x:
        return {1: 1.0}
    if _is_number(node):
        return {0: float(node)}
    if not isinstance(node, fx.Node) or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    if _is_operator(node, "pow"):
        whole = _is_number(right) and right in range(1, _MOST_DEGREE + 1)
        return _raise(_expand(left, x), int(right)) if whole else None  # type: ignore[arg-type]
    if _is_operator(node, "div") and _is_number(right):
        right = 1 / right  # type: ignore[operator]
    elif not (_is_operator(node, "add") or _is_operator(node, "mul")):
        return None
    a, b = _expand(left, x), _expand(right, x)
    if a is None or b is None:
        return None
    if _is_operator(node, "add"):
        return {power: a.get(power, 0) + b.get(power, 0) for power in {*a, *b}}
    return _multiply(a, b)


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial | None:
    product: Polynomial = {}
    for one, first in a.items():
        for two, second in b.items():
            product[one + two] = product.get(one + two, 0) + first * second
    return product if max(product, default=0) <= _MOST_DEGREE else None


def _raise(base: Polynomial | None, exponent: int) -> Polynomial | None:
    result: Polynomial | None = {0: 1.0}
    for _ in range(exponent):
        result = None if base is None or result is None else _multiply(result, base)
    return result


def _agree(found: Polynomial | None, wanted: Mapping[int, float]) -> bool:
    return (
        found is not None
        and {power for power, value in found.items() if value} == set(wanted)
        and all(math.isclose(found[p], wanted[p], rel_tol=_CLOSE) for p in wanted)
    )


def _both_ways(args: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    return [(args[0], args[1]), (args[1], args[0])] if len(args) == 2 else []


def _is_number(item: Any) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)


def _is_operator(node: Any, name: str) -> bool:
    packet = getattr(getattr(node, "target", None), "overloadpacket", None)
    return isinstance(node, fx.Node) and str(packet) == f"aten.{name}" and not node.kwargs
