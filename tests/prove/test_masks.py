"""Random limbs among those that are looked up: where they are, and that they are random."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from tests.prove.step_law import make_graph
from vtrain.prove.backend.settings import BLINDING, count_usable
from vtrain.prove.circuit.builder import MASKS, CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import MASKS_PART
from vtrain.prove.steps.builder import Size
from vtrain.prove.steps.circuits import build_with
from vtrain.prove.tiles.circuits import TILE_CIRCUITS, TILE_K, build_tile_circuit

Bools = npt.NDArray[np.bool_]


def make(count: int, inner_columns: int, rows: int, masks: int | None = None) -> Circuit:
    """``count`` limbs, each an element of a given vector, and a limb by itself."""
    b = CircuitBuilder(inner_columns, 255, rows, masks)
    x = b.vector("x", count)
    b.zero("range", b.limb("range", (count,), lambda values: values[x]) - x.lin())
    alone = b.limb("alone", (1,), lambda values: np.asarray([7]))
    b.zero("alone", alone - 7)
    return b.build()


def find_masks(circuit: Circuit) -> Bools:
    """Of the limbs in the order in which they are looked up, which are masks."""
    bounds = {name: (start, stop) for name, start, stop in circuit.parts("limbs")}
    start, stop = bounds[MASKS_PART]
    return (circuit._looked_up >= start) & (circuit._looked_up < stop)


def count_least(masks: Bools, inner_columns: int, block_rows: int, offset: int) -> int:
    """The fewest masks in a column of cells that any other limb is in, where the first look-up is
    in cell ``offset``."""
    cells = offset + np.arange(masks.size)
    block = inner_columns * block_rows
    column = cells // block * inner_columns + cells % inner_columns
    hidden = np.bincount(column, masks)
    others = np.bincount(column, ~masks)
    return int(hidden[others > 0].min())


def check_layout(circuit: Circuit, block_rows: int, at_least: int) -> None:
    masks, inner = find_masks(circuit), circuit.inner_columns
    block = inner * block_rows
    ends = {at * inner for at in (0, 1, at_least - 1, at_least, at_least + 1)}
    offsets = {*ends, *(block - end for end in ends), *(block - end - 1 for end in ends)}
    offsets |= {*np.random.default_rng(1).integers(0, block, 40).tolist()}
    for offset in sorted(offsets):
        assert count_least(masks, inner, block_rows, offset) >= at_least, offset


@pytest.mark.parametrize("inner_columns", [1, 2, 3, 4])
@pytest.mark.parametrize("masks", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 7, 40, 41, 300, 1000])
def test_every_column_of_cells_has_masks(inner_columns: int, masks: int, count: int) -> None:
    """Wherever the first of them is, in blocks of as many rows as a column has values or more."""
    for rows in (20, 21, 64):
        circuit = make(count, inner_columns, rows, masks)
        found = find_masks(circuit)
        for block_rows in (rows, rows + 1, rows + 7, 2 * rows):
            for offset in range(0, inner_columns * block_rows, 1 if count < 100 else 3):
                assert count_least(found, inner_columns, block_rows, offset) >= masks, offset


@pytest.mark.parametrize("name", TILE_CIRCUITS)
def test_tiles_have_masks_enough(name: str) -> None:
    circuit = build_tile_circuit(name)
    if circuit.span:
        for k in (TILE_K, TILE_K + 1):
            check_layout(circuit, (1 << k) - BLINDING - 1, MASKS)


@pytest.mark.parametrize("inner_columns", [1, 2, 3])
def test_steps_have_masks_enough(inner_columns: int) -> None:
    """Of fewer rows than they are proven with, so that there are many blocks."""
    rows = 1000
    circuit = build_with(make_graph("mse", "some"), Size(inner_columns, rows), clamps=True)
    assert circuit.cells > 2 * inner_columns * rows
    check_layout(circuit, rows + 66, MASKS)


def test_rows_of_cells_are_no_fewer_than_a_column_has_values() -> None:
    for k in (8, TILE_K, 18):
        assert count_usable(k) <= (1 << k) - BLINDING - 1


def test_masks_are_drawn_anew_and_all_looked_up() -> None:
    circuit = make(300, 2, 1 << 20)
    assert sorted(circuit._looked_up) == list(range(circuit.length("limbs")))
    (start, stop) = next((a, b) for name, a, b in circuit.parts("limbs") if name == MASKS_PART)
    assert stop - start == 4 * MASKS
    x = np.arange(300) % 255
    assign = partial(circuit.assign, {"x": x}, {}, lambda _: [5])
    first, second = (assign()["limbs"][start:stop] for _ in range(2))
    assert not np.array_equal(first, second)
    for drawn in (first, second):
        assert 1 <= drawn.min() < 10
        assert 245 < drawn.max() <= 255
    third, fourth = (assign(random=lambda count: b"\7" * count)["limbs"] for _ in range(2))
    assert np.array_equal(third, fourth)


def test_limbs_are_told_apart_in_their_order() -> None:
    """Also where masks stand between them."""
    circuit = make(300, 2, 20, 3)
    vectors = circuit.assign({"x": np.arange(300) % 255}, {}, lambda _: [12345])
    assert circuit.find_broken(vectors) == []
    for name, start, stop in circuit.parts("limbs"):
        for at in {start, stop - 1, (start + stop) // 2}:
            limbs = vectors["limbs"].copy()
            limbs[at] = 256
            found = circuit.find_broken({**vectors, "limbs": limbs})
            assert [item for item in found if item.startswith("ones")] == [f"ones: {name}"], at
            assert (name in found) == (name != MASKS_PART)
            if name == MASKS_PART:
                limbs[at] = 255
                assert circuit.find_broken({**vectors, "limbs": limbs}) == []


def test_a_mask_has_more_bits_than_a_proof_tells() -> None:
    """The least entropy of so many draws without their order, against what is told of it."""
    from math import lgamma, log, log2

    from vtrain.prove.tiles.circuits import TILE_SPAN

    order = lgamma(MASKS + 1) / log(2)
    for span in (TILE_SPAN, 1 << 16):
        assert MASKS * log2(span) - order > 5 * 254 + 2 * 128


def test_circuits_without_limbs_have_none() -> None:
    assert build_tile_circuit("matmul-nn", 4).length("limbs") == 0
