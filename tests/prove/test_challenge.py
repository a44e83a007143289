"""One element of the field is challenge enough: what is made of it, and how sound that is."""

from __future__ import annotations

import json
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from tests.prove.circuits import LIMITS
from tests.prove.degrees import find_degrees, find_late
from tests.prove.step_law import KINDS, make_circuit
from vtrain.errors import CircuitError
from vtrain.prove.backend.ezkl import Call, run_ezkl
from vtrain.prove.backend.settings import make_run_arguments, pin
from vtrain.prove.circuit import builder
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.tiles.circuits import TILE_CIRCUITS, TILE_K, build_tile_circuit
from vtrain.spec.field import SCALAR_FIELD

SHAPES = [(5,), (1, 7), (7, 1), (4, 4), (4, 5), (5, 4), (2, 3, 5), (1, 1), (1,), (6, 6)]


def test_vectors_are_powers_of_the_challenge() -> None:
    b = CircuitBuilder(2)
    vectors = [b.powers("vector", length) for length in (3, 1, 8, 7)]
    vectors += [b.power(exponent) for exponent in (1, 2, 3, 12345)]
    b.require_zero("none", b.sub(b.element, b.element))
    b.build()
    known = {b.element.index: np.asarray([9], dtype=object)}
    found = [b.evaluate_node(vector.index, known).reshape(-1) % SCALAR_FIELD for vector in vectors]
    exponents = [range(1, 4), [3], range(3, 27, 3), range(24, 169, 24), [1], [2], [3], [12345]]
    for values, wanted in zip(found, exponents, strict=True):
        assert list(values) == [pow(9, exponent, SCALAR_FIELD) for exponent in wanted]


def test_products_of_two_vectors_are_different_powers() -> None:
    """Of the vectors of every shape, in whatever order they were made."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        b = CircuitBuilder(2)
        for at in rng.permutation(len(SHAPES)):
            b.weights(SHAPES[at])
        b.require_zero("none", b.sub(b.element, b.element))
        degrees = find_degrees(b.build())
        for shape in SHAPES:
            left, right = (degrees(vector.index).tolist() for vector in b.weights(shape))
            powers = [i + j for i, j in product(left, right)]
            assert len({*powers}) == len(powers) == np.prod(shape)
            assert max(powers) == b.degree_of(*b.weights(shape))


def test_vectors_cost_little_more_than_their_length() -> None:
    for length in (1, 2, 3, 127, 128, 129, 784):
        b = CircuitBuilder(2)
        vector = b.powers("vector", length)
        b.require_zero("none", b.sub(b.slice(vector, 0, 1), b.element))
        b.require_zero("all", b.slice(vector, length - 1, length))
        assert b.build().cells <= 1 + length + length.bit_length()


def check_degree(circuit: Circuit) -> None:
    """The degree stated is at least that of every condition, all added up."""
    degrees, late = find_degrees(circuit), find_late(circuit)
    found = [
        int(degrees(tensor.index).max()) for tensor in circuit._b._zeros if tensor.index not in late
    ]
    # What speaks of inverses has the degree of its logUp; everything else is exact.
    lookups = sum(_bound_lookup(circuit, name) for name in _list_members(circuit))
    assert sum(found) <= circuit.degree - lookups
    assert circuit.degree < SCALAR_FIELD >> 200


def _list_members(circuit: Circuit) -> list[str]:
    suffix = "/multiplicities"
    names = [name for name, _, _ in circuit.parts("hints")]
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def _bound_lookup(circuit: Circuit, name: str) -> int:
    """(number of columns - 1)(values + rows) + 1 times values + rows."""
    sizes = {part: stop - start for part, start, stop in circuit.parts("late")}
    count = sizes[f"{name}/inverses of values"] + sizes[f"{name}/inverses of table"]
    tables = [part for part, _, _ in circuit.parts("public") if part.startswith(f"{name}/table ")]
    return ((len(tables) - 1) * count + 1) * count


@pytest.mark.parametrize("name", TILE_CIRCUITS)
def test_false_tiles_pass_with_next_to_no_chance(name: str) -> None:
    check_degree(build_tile_circuit(name))


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("clamps", [True, False])
def test_false_steps_pass_with_next_to_no_chance(loss: str, clamps: bool) -> None:
    check_degree(make_circuit(loss, "some", clamps))


def test_a_circuit_of_too_large_a_degree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Circuit:
        b = CircuitBuilder(2)
        x = b.reshape(b.vector("x", 6), (2, 3))
        b.zero("x", x.lin())
        return b.build()

    assert make().degree == 9  # c^3 c^(2 * 3)
    monkeypatch.setattr(builder, "MAX_DEGREE", 9)
    make()
    monkeypatch.setattr(builder, "MAX_DEGREE", 8)
    with pytest.raises(CircuitError, match="challenge: has conditions of degree 9"):
        make()


@pytest.mark.parametrize(("columns", "rows"), [(1, 5), (2, 5), (3, 9)])
def test_points_of_a_table_are_beyond_all_powers_that_fold(columns: int, rows: int) -> None:
    """X = c^E: in what is left without denominators no power of X meets one of another."""
    b, values = CircuitBuilder(2), 4
    given = [b.vector(f"x{i}", values) for i in range(columns)]
    b.member("m", given, [np.arange(rows)] * columns)
    circuit = b.build()
    degrees = find_degrees(circuit)
    gaps = [degrees(node) for node in _find_gaps(circuit)]
    exponent = {int(item) for gap in gaps for item in gap}
    assert exponent == {max(1, (columns - 1) * (values + rows) + 1)}
    folds = (columns - 1) * (values + rows - 1)
    taken = [(a * min(exponent), a * min(exponent) + folds) for a in range(values + rows)]
    assert all(last < first for (_, last), (first, _) in pairwise(taken))


def _find_gaps(circuit: Circuit) -> list[int]:
    """What inverses are of: the second factor of each product that must be 1."""
    b = circuit._b
    products = [b.nodes[tensor.index] for tensor in b._ones]
    return [node.inputs[1] for node in products]


@pytest.mark.parametrize("name", ["matmul-nt", "mul", "zero"])
def test_the_compiler_takes_no_vector_apart(name: str, tmp_path: Path) -> None:
    """It takes apart a contraction by a concatenation, piece by piece: ezkl then has more cells
    than we count.  It counts elements of columns twice, and private ones more often, so that this
    is of circuits without."""
    circuit = build_tile_circuit(name, 16)
    pinned = pin(circuit, TILE_K)
    model, settings = tmp_path / "model", tmp_path / "settings"
    model.write_bytes(pinned.onnx)
    arguments = {
        "model": str(model),
        "output": str(settings),
        "py_run_args": make_run_arguments(pinned.settings),
    }
    run_ezkl([Call("gen_settings", arguments)], LIMITS)
    measured = json.loads(settings.read_text())["total_assignments"]
    columns = 2 * sum(circuit.size(column) for column in circuit.columns)
    operations = sum(1 for index in circuit._order() if circuit._b.nodes[index].cells)
    assert measured - circuit.cells - columns <= 5 * operations
