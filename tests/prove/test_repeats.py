"""What two proofs of one witness have in common tells nothing of it.

A proof is a list of words of 32 bytes: coordinates of commitments, and evaluations.  The SRS and a
verifier's own columns apart, a word that depends on the witness must depend on fresh randomness
too, or be of the commitment to a given vector, which everyone has.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.prove.circuits import LIMITS
from tests.prove.step_law import make_graph, make_statement
from tests.prove.test_tiles import CATALOGUE, OF_SOFTMAX, SIDE, example_softmax, tile
from tests.prove.toy import GIVEN, PARAMETERS, TABLE, K
from vtrain.prove.backend.keys import load_keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, count_blocks, count_usable, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.tiles.circuits import (
    TILE_K,
    build_tile_circuit,
    linear_challenge,
    range_parameters,
)
from vtrain.prove.verifier import Expansion
from vtrain.wire.proof import HIDING

WORD = 32
PATIENT = replace(LIMITS, memory=16 << 30, seconds=1200)
"""For whole steps on a machine that others use too."""
Places = set[int]
Vectors = Mapping[str, Ints]


@dataclass(frozen=True)
class Case:
    """A circuit, two witnesses of it that have as little as possible in common, each by its given
    vectors and its parameters."""

    circuit: Circuit
    k: int
    one: tuple[Vectors, Vectors]
    other: tuple[Vectors, Vectors]
    expansion: Expansion | None = None
    random: Callable[[int], bytes] = field(default=secrets.token_bytes)


def find_repeats(case: Case, srs: Path, folder: Path) -> Places:
    """The words in which two proofs of one witness are the same, but for those that one of another
    witness has there too and those of the commitments to given vectors."""
    circuit, pinned = case.circuit, pin(case.circuit, case.k)
    keys = load_keys(pinned, srs, folder, PATIENT)
    key = CommitKey(srs, case.k, BLINDING)

    def make(witness: tuple[Vectors, Vectors], seed: int) -> list[bytes]:
        rng = np.random.default_rng(seed)
        hiding = {
            name: [int.from_bytes(rng.bytes(31)) for _ in range(HIDING)] for name in circuit.given
        }
        data = prove(
            circuit,
            pinned,
            keys,
            given=witness[0],
            hiding=hiding,
            count=lambda: None,
            parameters=witness[1],
            srs=srs,
            commit_key=key,
            limits=PATIENT,
            expansion=case.expansion,
            claim=b"",
            random=case.random,
        ).data
        assert len(data) % WORD == 0
        return [data[at : at + WORD] for at in range(0, len(data), WORD)]

    first, second, other = make(case.one, 1), make(case.one, 1), make(case.other, 2)
    same = {at for at, word in enumerate(first) if word == second[at]}
    always = {at for at in same if first[at] == other[at]}
    given = find_places(circuit, circuit.given)
    assert given <= same - always
    return same - always - given


def find_places(circuit: Circuit, columns: tuple[str, ...]) -> Places:
    """The words of the commitments to columns."""
    starts = (2 * circuit.columns.index(name) for name in columns)
    return {at for start in starts for at in (start, start + 1)}


def check(case: Case, srs: Path, folder: Path) -> None:
    """Nothing is repeated but what the verifier computes: the same where no random column precedes
    the challenge."""
    circuit = case.circuit
    kinds = {name: name.partition(" ")[0] for name in circuit.columns}
    computed = tuple(name for name, kind in kinds.items() if kind == "computed")
    drawn_from = {kinds[name] for name in circuit.settled}
    allowed = set() if "private" in drawn_from else find_places(circuit, computed)
    assert find_repeats(case, srs, folder) == allowed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repeats")


@pytest.fixture(scope="module")
def small_srs(folder: Path) -> Path:
    generate_srs(folder / "small", K)
    return folder / "small"


@pytest.fixture(scope="module")
def tile_srs(folder: Path) -> Path:
    generate_srs(folder / "tiles", TILE_K)
    return folder / "tiles"


# --- the toy, and what it would repeat


def make_toy_case(masks: int, random: Callable[[int], bytes] = secrets.token_bytes) -> Case:
    """As the shared toy, with an element of the table that is another one's witness."""
    b = CircuitBuilder(2, 255, masks=masks)
    left, right, product = (b.reshape(b.vector(name, 4), (2, 2)) for name in GIVEN)
    b.matmul("product", left, right, product.lin())
    b.member("table", [left], [TABLE])
    shifted = b.limb("range", right.shape, lambda values: values[right] + 127)
    b.zero("range", shifted - 127 - right.lin())
    total = b.parameter("total", (1,))
    b.zero_sum("total", [(product, None, 1), (total, None, -1)])
    a, c = np.array([[4, 3], [0, 2]]), np.array([[100, 2], [-3, 50]])
    other = {"a": a.reshape(-1), "b": c.reshape(-1), "c": (a @ c).reshape(-1)}
    return Case(
        b.build(),
        K,
        (GIVEN, PARAMETERS),
        (other, {"total": np.asarray([(a @ c).sum()])}),
        random=random,
    )


def test_proofs_of_one_witness_repeat_nothing_of_it(small_srs: Path, folder: Path) -> None:
    check(make_toy_case(40), small_srs, folder)


def test_without_masks_the_counts_of_limbs_are_repeated(small_srs: Path, folder: Path) -> None:
    """A commitment for each column of cells that has look-ups; here two."""
    case = make_toy_case(0)
    found = find_repeats(case, small_srs, folder)
    assert len(found) == 2 * case.circuit.inner_columns
    assert min(found) >= 2 * len(case.circuit.columns)


def test_without_hiding_elements_columns_are_repeated(small_srs: Path, folder: Path) -> None:
    """No masks, which are in ``private`` too and would make a difference: all that the prover
    commits to is the same, and so is the challenge."""
    case = make_toy_case(0, random=bytes)
    found = find_repeats(case, small_srs, folder)
    columns = find_places(case.circuit, ("private", "computed", "late"))
    assert columns < found
    assert len(found - columns) == 2 * case.circuit.inner_columns
    hidden = find_repeats(make_toy_case(0), small_srs, folder)
    assert not hidden & columns


# --- every circuit over tiles, small


def make_tile_case(name: str) -> Case:
    """The example of the tests of tiles, and what the law makes of zeros."""
    example = (CATALOGUE | OF_SOFTMAX)[name]()
    circuit = build_tile_circuit(example.name, SIDE)
    if name in OF_SOFTMAX:
        other = example_softmax(int(name.removeprefix("softmax-")), "equal").given
    else:
        other = {key: np.zeros_like(values) for key, values in example.given.items()}
        other |= {key: tile(values) for key, values in (example.law(other) or {}).items()}
    parameters = example.parameters
    expansion = None
    if example.image is not None:
        image = example.image
        expansion = partial(linear_challenge, SIDE, image=image)
    return Case(circuit, TILE_K, (example.given, parameters), (other, parameters), expansion)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(CATALOGUE | OF_SOFTMAX))
def test_proofs_of_tiles_repeat_nothing(name: str, tile_srs: Path, folder: Path) -> None:
    check(make_tile_case(name), tile_srs, folder)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_proofs_of_whole_tiles_repeat_nothing(tile_srs: Path, folder: Path) -> None:
    """In two blocks of columns of cells, both of which have look-ups."""
    circuit = build_tile_circuit("range-1")
    assert count_blocks(circuit, TILE_K) == 2
    parameters = range_parameters(128, lo=-128, hi=127, rows=128, columns=128)
    rng = np.random.default_rng(1)
    one, other = ({"x": values} for values in rng.integers(-128, 128, (2, 128 * 128)))
    check(Case(circuit, TILE_K, (one, parameters), (other, parameters)), tile_srs, folder)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_proofs_of_steps_repeat_nothing(loss: str, folder: Path) -> None:
    k, srs = 17, folder / "steps"
    if not srs.exists():
        generate_srs(srs, k)
    circuit = build_step_circuit(make_graph(loss, "some"), k, "step-clamps")
    assert count_usable(k) > circuit.length("before")
    one, other = (make_statement(loss, "some", state) for state in ("trained", "extreme"))
    case = Case(circuit, k, (one.given, one.parameters), (other.given, other.parameters))
    check(case, srs, folder)
