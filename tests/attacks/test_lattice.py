"""What proofs tell of columns: all of it where nothing hides it, and nothing where something does.

Each attack runs against columns, or proofs of the real circuits, with and without hiding elements
(zeros in their place) and masks (none).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flint", reason="python-flint has no wheel for this machine")
from tests.attacks.lattice import (
    Bounds,
    Seen,
    Table,
    combine,
    commit_values,
    count_limbs,
    eliminate,
    find_hidden,
    find_limbs,
    find_values,
    fits,
    guess_labels,
    guess_values,
    meet_points,
    place_limbs,
    solve,
)
from tests.attacks.transcript import Domain, Layout, Opening, Reading, keccak256
from tests.prove.circuits import LIMITS
from tests.prove.conftest import srs
from tests.prove.step_law import evaluate
from tests.prove.toy import GIVEN, PARAMETERS, SPAN, TABLE, Toy
from tests.tasks import CLASSES
from vtrain.commit.kzg_layout import state_names
from vtrain.prove.backend.ezkl import Proof, verify_proof
from vtrain.prove.backend.keys import load_keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.chain.evm import write_verifier
from vtrain.prove.circuit.builder import MASKS, CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove
from vtrain.prove.runs import read_run
from vtrain.prove.steps.builder import BATCH, BEFORE, RATE
from vtrain.prove.tiles.circuits import build_tile_circuit
from vtrain.prove.verifier import commit_columns, draw_challenge
from vtrain.spec.field import SCALAR_FIELD
from vtrain.train.data import gather_batch
from vtrain.train.task import CompiledTask
from vtrain.wire.graph import Ref
from vtrain.wire.proof import HIDING

__all__ = ["srs"]

DOMAIN = Domain(8)
Rng = np.random.Generator
LABELS = tuple(range(10))


@dataclass(frozen=True)
class Column:
    """Values, and what is put behind them."""

    domain: Domain
    values: list[int]
    hidden: list[int]

    @property
    def hidden_rows(self) -> range:
        return range(len(self.values), len(self.values) + len(self.hidden))

    def open(self, points: Sequence[int]) -> tuple[Opening, ...]:
        column = [*self.values, *self.hidden]
        return tuple(Opening(x, self.domain.evaluate(column, x, fill=1)) for x in points)

    def show(self, unknown: Sequence[int], points: Sequence[int]) -> Seen:
        """All values but those of the unknown rows are known."""
        known = {row: value for row, value in enumerate(self.values) if row not in unknown}
        return Seen(self.domain, self.open(points), known)

    def commit(self, key: CommitKey) -> bytes:
        return commit_values(key, [*self.values, *self.hidden])


def draw_column(rng: Rng, values: list[int], hiding: int) -> Column:
    return Column(DOMAIN, values, draw_points(rng, hiding))


def draw_points(rng: Rng, count: int) -> list[int]:
    return [int.from_bytes(rng.bytes(48)) % SCALAR_FIELD for _ in range(count)]


def draw_elements(count: int) -> list[int]:
    """As for a proof: nobody can draw them again."""
    return [secrets.randbelow(SCALAR_FIELD) for _ in range(count)]


def draw(rng: Rng, low: int, high: int, count: int) -> list[int]:
    """Integers from ``low`` to ``high``."""
    return [int(value) for value in rng.integers(low, high, count, endpoint=True)]


def draw_weights(rng: Rng, size: int, bits: int, count: int) -> tuple[list[int], dict[int, Bounds]]:
    """``size`` values of 16 bits but for ``count`` of ``bits`` bits, and the rows of these."""
    half = 1 << (bits - 1)
    values = draw(rng, -(1 << 15), (1 << 15) - 1, size)
    rows = [int(row) for row in rng.choice(size, count, replace=False)]
    for row, value in zip(rows, draw(rng, 1 - half, half - 1, count), strict=True):
        values[row] = value
    return values, dict.fromkeys(rows, (1 - half, half - 1))


def pick(values: Sequence[int], rows: Sequence[int]) -> list[int]:
    return [values[row] for row in rows]


@pytest.fixture(scope="session")
def key(srs: Path) -> CommitKey:
    return CommitKey(srs, DOMAIN.k, BLINDING)


# --- One opening.


@pytest.mark.parametrize("hiding", [0, HIDING])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("count", "bits"),
    [(10, 22), (9, 16), (12, 20), (7, 32), (24, 9)],
    ids=["biases", "kernel", "more", "wide", "narrow"],
)
def test_few_values_follow_from_one_opening(count: int, bits: int, seed: int, hiding: int) -> None:
    rng = np.random.default_rng([count, bits, seed])
    values, unknown = draw_weights(rng, 120, bits, count)
    column = draw_column(rng, values, hiding)
    found = find_values(column.show([*unknown], draw_points(rng, 1)), unknown)
    assert (found == pick(values, [*unknown])) == (not hiding)


@pytest.mark.parametrize("hiding", [0, HIDING])
@pytest.mark.parametrize(("count", "bits", "openings"), [(20, 32, 3), (40, 8, 2), (30, 31, 4)])
def test_more_openings_tell_of_more_values(
    count: int, bits: int, openings: int, hiding: int
) -> None:
    """Every proof opens a column at another point."""
    rng = np.random.default_rng([count, bits])
    values, unknown = draw_weights(rng, 120, bits, count)
    column = draw_column(rng, values, hiding)
    points = draw_points(rng, openings)
    truth = pick(values, [*unknown])
    assert find_values(column.show([*unknown], points[:1]), unknown) != truth
    found = find_values(column.show([*unknown], points), unknown)
    assert (found == truth) == (not hiding)


@pytest.mark.parametrize("hiding", ["none", "own", "shared"])
def test_two_columns_of_a_proof_tell_of_their_difference(hiding: str) -> None:
    """The state before and after a step is opened at one point: the update has few bits, however
    many weights have.  Hiding elements that the two share would cancel."""
    rng = np.random.default_rng(4)
    before = draw(rng, -(1 << 31), (1 << 31) - 1, 20)
    update = draw(rng, -1023, 1023, 20)
    after = [old + change for old, change in zip(before, update, strict=True)]
    one = draw_column(rng, before, 0 if hiding == "none" else HIDING)
    other = draw_column(rng, after, len(one.hidden))
    if hiding == "shared":
        other = Column(DOMAIN, after, one.hidden)
    points = draw_points(rng, 1)
    seen = other.show(range(20), points).minus(one.show(range(20), points))
    found = find_values(seen, dict.fromkeys(range(20), (-1023, 1023)))
    assert (found == update) == (hiding != "own")


@pytest.mark.parametrize("hiding", [0, HIDING])
@pytest.mark.parametrize("seed", [1, 2])
def test_labels_follow_from_commitment_or_opening(key: CommitKey, seed: int, hiding: int) -> None:
    """Images are known, as of a public set; which label each has is not."""
    rng = np.random.default_rng(seed)
    images = draw(rng, -127, 127, 100)
    labels = draw(rng, 0, 9, 6)
    column = draw_column(rng, images + labels, hiding)
    rows = dict.fromkeys(range(100, 106), LABELS)
    by_commitment = meet_points(key, column.commit(key), images, rows)
    assert by_commitment == (None if hiding else labels)
    by_opening = guess_values(column.show(range(100, 106), draw_points(rng, 1)), rows)
    assert by_opening == (None if hiding else labels)


@pytest.mark.parametrize("hiding", [0, HIDING])
def test_columns_of_zeros_are_seen(key: CommitKey, hiding: int) -> None:
    """As of dead units; so are columns that did not change between two steps."""
    column = draw_column(np.random.default_rng(5), [0] * 100, hiding)
    assert (column.commit(key) == key.zero) == (not hiding)


@pytest.mark.parametrize("step", [1, 2, 12])
def test_labels_follow_from_the_digest_of_their_batch(
    honest: Path, task: CompiledTask, step: int
) -> None:
    """No hiding element helps here: the run log has a plain hash of the same labels."""
    x, y = gather_batch(task.samples, task.spec.seed, task.spec.batch, step)
    digest = read_run(honest).records[step - 1].batch_digest
    assert guess_labels(digest, x, np.zeros_like(y), range(CLASSES)) == y.tolist()


def test_labels_follow_from_the_loss_where_weights_are_known(
    honest: Path, task: CompiledTask
) -> None:
    """As before the first step: every log has the exact loss, which hardly two labellings share."""
    graph = task.graph
    x, y = gather_batch(task.samples, task.spec.seed, task.spec.batch, 1)
    before = np.concatenate([task.initial_state[name].reshape(-1) for name in state_names(graph)])
    [loss] = [Ref(index) for index, node in enumerate(graph.nodes) if node.name == "loss"]

    def compute_loss(labels: tuple[int, ...]) -> int:
        batch = np.concatenate([x.reshape(-1), np.asarray(labels)]).astype(object)
        given = {BEFORE: before.astype(object), BATCH: batch, RATE: np.ones(1, np.int64)}
        return int(evaluate(graph, given)[loss])

    logged = read_run(honest).records[0].loss
    guesses = product(range(CLASSES), repeat=y.size)
    found = [guess for guess in guesses if compute_loss(guess) == logged]
    assert tuple(y.tolist()) in found
    assert len(found) <= 2


# --- Look-ups.


def draw_m(rng: Rng, table: Table, limbs: list[int], masks: int) -> tuple[Opening, list[int]]:
    """m of an inner column at a point, and the masks in it."""
    drawn = draw(rng, 1, table.span, masks)
    counts = table.count(limbs + drawn)
    [x] = draw_points(rng, 1)
    weights = table.domain.weigh(counts, x)
    value = sum(count * weight for count, weight in zip(counts.values(), weights, strict=True))
    return Opening(x, value % SCALAR_FIELD), drawn


@pytest.mark.parametrize("masks", [0, MASKS])
@pytest.mark.parametrize(("k", "span", "unknown"), [(15, 32640, 2), (9, 255, 4)])
def test_limbs_follow_from_their_multiplicities(
    k: int, span: int, unknown: int, masks: int
) -> None:
    rng, table = np.random.default_rng(k), Table(Domain(k), span)
    limbs = draw(rng, 1, span, min(1000, span))
    m, drawn = draw_m(rng, table, limbs, masks)
    found = find_limbs(table, m, limbs[unknown:], unknown)
    assert found == (None if masks else sorted(limbs[:unknown]))
    # Who knows the masks, too, would know the rest.
    assert find_limbs(table, m, limbs[unknown:] + drawn, unknown) == sorted(limbs[:unknown])


@pytest.mark.parametrize("masks", [0, MASKS])
def test_counts_of_limbs_follow_from_their_multiplicities(masks: int) -> None:
    """A histogram, such as of the classes in a batch."""
    rng, table = np.random.default_rng(6), Table(Domain(15), 32640)
    values = [2 + int(value) for value in rng.choice(32638, 10, replace=False)]
    limbs = [values[index] for index in draw(rng, 0, 9, 20_000)]
    m, _ = draw_m(rng, table, limbs, masks)
    found = count_limbs(table, m, values)
    assert found == (None if masks else [limbs.count(value) for value in values])


# --- As many openings as hiding elements, and more.


@pytest.mark.parametrize("openings", [HIDING - 1, HIDING, HIDING + 1, HIDING + 3])
def test_hiding_ends_with_as_many_openings_as_elements(key: CommitKey, openings: int) -> None:
    """One fewer, with the commitment, tells nothing; as many tell whether a guess of all values is
    right; more give the values."""
    rng = np.random.default_rng(7)
    values, unknown = draw_weights(rng, 100, 22, 10)
    column, points = draw_column(rng, values, HIDING), draw_points(rng, openings)
    found = find_hidden(column.show([*unknown], points), unknown, column.hidden_rows)
    assert found == (None if openings <= HIDING else pick(values, [*unknown]))
    right = column.show((), points)
    wrong = Seen(DOMAIN, right.openings, {**right.known, 0: values[0] + 1})
    verdicts = [fits(key, column.commit(key), it, column.hidden_rows) for it in (right, wrong)]
    assert verdicts == ([None, None] if openings < HIDING else [True, False])


@pytest.mark.parametrize("count", [1, 2, 8])
def test_fewer_elements_hide_from_fewer_openings(count: int) -> None:
    """Lattices find no way around the elements."""
    rng = np.random.default_rng(count)
    values, unknown = draw_weights(rng, 50, 16, 9)
    column, points = draw_column(rng, values, count), draw_points(rng, count + 1)
    for openings in range(1, count + 2):
        seen = column.show([*unknown], points[:openings])
        found = find_hidden(seen, unknown, column.hidden_rows)
        assert (found is not None) == (openings > count)
        assert openings > count or find_values(seen, unknown) is None


@pytest.mark.parametrize("shared", [False, True])
def test_elements_hide_one_column_alone(shared: bool) -> None:
    """The same elements behind a second column, in other rows: 33 openings of each are 66
    equations.  So what elements are derived from has to name all that a column is."""
    rng = np.random.default_rng(9)
    made = [draw_weights(rng, size, 22, 5) for size in (60, 100)]
    one = draw_column(rng, made[0][0], HIDING)
    other = draw_column(rng, made[1][0], HIDING)
    if shared:
        other = Column(DOMAIN, other.values, one.hidden)
    hidden: list[list[int]] = []
    weights: list[list[int]] = []
    totals: list[int] = []
    for index, column in enumerate((one, other)):
        rows = [*made[index][1]]
        seen = column.show(rows, draw_points(rng, 33))
        found, rests = seen.equations(rows)
        weights += [[0] * (5 * index) + row + [0] * (5 - 5 * index) for row in found]
        hidden += seen.equations(column.hidden_rows)[0]
        totals += rests
    bounds = [bound for _, unknown in made for bound in unknown.values()]
    found_all = solve(*combine(eliminate(hidden), weights, totals), bounds)
    truth = [value for values, unknown in made for value in pick(values, [*unknown])]
    assert (found_all == truth) == shared


@pytest.mark.parametrize(("apart", "together"), [(HIDING - 1, 3), (HIDING - 4, 3)])
def test_openings_of_a_sum_count_for_its_parts(apart: int, together: int) -> None:
    """A combination of two tiles has their hiding elements, combined.  63 openings of each and
    three of a + 2 b are 129 equations with 128 hiding elements."""
    rng = np.random.default_rng(8)
    made = [draw_weights(rng, 60, 22, 5) for _ in range(2)]
    columns = [draw_column(rng, values, HIDING) for values, _ in made]
    hidden: list[list[int]] = []
    weights: list[list[int]] = []
    totals: list[int] = []

    def add(points: list[int], factors: tuple[int, int]) -> None:
        seen = [
            column.show([*unknown], points)
            for column, (_, unknown) in zip(columns, made, strict=True)
        ]
        for part, group in ((0, hidden), (1, weights)):
            sides = [
                it.equations([*unknown] if part else column.hidden_rows)[0]
                for it, column, (_, unknown) in zip(seen, columns, made, strict=True)
            ]
            group.extend(
                [
                    factor * weight
                    for factor, row in zip(factors, rows, strict=True)
                    for weight in row
                ]
                for rows in zip(*sides, strict=True)
            )
        rests = [it.equations([])[1] for it in seen]
        totals.extend(
            sum(factor * rest for factor, rest in zip(factors, pair, strict=True)) % SCALAR_FIELD
            for pair in zip(*rests, strict=True)
        )

    add(draw_points(rng, apart), (1, 0))
    add(draw_points(rng, apart), (0, 1))
    add(draw_points(rng, together), (1, 2))
    combinations = eliminate(hidden)
    assert bool(combinations) == (apart + together > HIDING)
    if combinations:
        bounds = [bound for _, unknown in made for bound in unknown.values()]
        truth = [value for values, unknown in made for value in pick(values, [*unknown])]
        assert solve(*combine(combinations, weights, totals), bounds) == truth


# --- Proofs.


@dataclass(frozen=True)
class Proven:
    """What is public of two proofs of one statement, and what the tests know."""

    toy: Toy
    hiding: int
    readings: tuple[Reading, Reading]
    columns: tuple[dict[str, list[int]], dict[str, list[int]]]
    """Values as integers, by column."""

    @property
    def domain(self) -> Domain:
        return Domain(TOY_K)

    def see(self, name: str, unknown: Sequence[int], proof: int = 0) -> Seen:
        """All but the unknown rows is known, masks too, but for hiding elements."""
        values = self.columns[proof][name][: self.toy.circuit.length(name)]
        known = {row: value for row, value in enumerate(values) if row not in unknown}
        _, opening = self.readings[proof].column(self.toy.circuit.columns.index(name))
        return Seen(self.domain, (opening,), known)

    def expect(self, found: object, truth: object) -> None:
        """Found where nothing is hidden, and not where something is."""
        assert (found == truth) == (not self.hiding)


def make_masked_circuit(masks: int) -> Circuit:
    """That of ``toy``, with so many masks."""
    b = CircuitBuilder(2, SPAN, masks=masks)
    vectors = (b.vector(name, 4) for name in GIVEN)
    left, right, product_ = (b.reshape(vector, (2, 2)) for vector in vectors)
    b.matmul("product", left, right, product_.lin())
    shifted = b.limb("range", right.shape, lambda values: values[right] + 127)
    b.zero("range", shifted - 127 - right.lin())
    b.member("table", [left], [TABLE])
    total = b.parameter("total", (1,))
    b.zero_sum("total", [(product_, None, 1), (total, None, -1)])
    return b.build()


@dataclass(frozen=True)
class Product:
    """A proof of c = a b, 8 x 8, of values of 15 bits."""

    circuit: Circuit
    hiding: int
    reading: Reading
    given: dict[str, list[int]]


@pytest.fixture(scope="session", params=[0, HIDING])
def multiplied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Product:
    hiding: int = request.param
    folder = tmp_path_factory.mktemp("product")
    circuit, path = build_tile_circuit("matmul-nn", 8), folder / "srs"
    generate_srs(path, 10)
    pinned = pin(circuit, 10)
    keys = load_keys(pinned, path, folder / "cache", LIMITS)
    rng = np.random.default_rng(10)
    a, b = (rng.integers(-(1 << 14), 1 << 14, (8, 8)) for _ in range(2))
    given = {name: tile.reshape(-1) for name, tile in (("a", a), ("b", b), ("c", a @ b))}
    proof = prove(
        circuit,
        pinned,
        keys,
        given=given,
        hiding={name: draw_elements(hiding) for name in given if hiding},
        count=lambda: None,
        parameters={},
        srs=path,
        commit_key=CommitKey(path, 10, BLINDING),
        limits=LIMITS,
        claim=b"",
    )
    source = write_verifier(settings=keys.settings, vk=keys.vk, srs=path, limits=LIMITS)
    values = {name: tile.tolist() for name, tile in given.items()}
    return Product(circuit, hiding, Layout.read(source).open(proof.data), values)


def test_columns_of_a_product_tell_of_each_other(multiplied: Product) -> None:
    """Of weights b all that is unknown are three rows; inputs a are known.  b and c = a b are two
    equations of them: 24 values of 15 bits from one proof, more than an evaluation has."""
    domain, x = Domain(10), multiplied.reading.x
    names = multiplied.circuit.columns
    unknown = [(row, column) for row in (1, 4, 6) for column in range(8)]
    a, b = (np.asarray(multiplied.given[name], object).reshape(8, 8) for name in "ab")
    seen_b = b.copy()
    for place in unknown:
        seen_b[place] = 0
    weights, totals = [], []
    at = np.asarray(domain.weigh(range(64), x), object).reshape(8, 8)
    for name, known, parts in (
        ("b", seen_b, [at[place] for place in unknown]),
        ("c", a @ seen_b, [a[:, row] @ at[:, column] for row, column in unknown]),
    ):
        _, opening = multiplied.reading.column(names.index(name))
        seen = Seen(domain, (opening,), dict(enumerate(known.reshape(-1).tolist())))
        weights.append([int(part) % SCALAR_FIELD for part in parts])
        totals.append(seen.rest(opening))
    bounds = [(-(1 << 14), 1 << 14)] * len(unknown)
    truth = [b[place] for place in unknown]
    assert (solve(weights, totals, bounds) == truth) == (not multiplied.hiding)
    assert solve(weights[:1], totals[:1], bounds) != truth


TOY_K = 10
"""Has room for the masks."""


@pytest.fixture(scope="session", params=[0, HIDING])
def proven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Proven:
    hiding: int = request.param
    folder = tmp_path_factory.mktemp("proven")
    circuit, path = make_masked_circuit(MASKS if hiding else 0), folder / "srs"
    generate_srs(path, TOY_K)
    pinned = pin(circuit, TOY_K)
    keys = load_keys(pinned, path, folder / "cache", LIMITS)
    made = Toy(circuit, pinned, path, keys, CommitKey(path, TOY_K, BLINDING), b"")
    elements = {name: draw_elements(hiding) for name in GIVEN if hiding}
    source = write_verifier(settings=keys.settings, vk=keys.vk, srs=path, limits=LIMITS)

    def draw(before: Mapping[str, Ints]) -> Sequence[int]:
        columns = commit_columns(circuit, made.commit_key, circuit.lay_out(before))
        return draw_challenge(circuit, pinned, columns, claim=b"")

    def prove_once() -> tuple[Reading, dict[str, list[int]]]:
        vectors = circuit.assign(
            GIVEN,
            PARAMETERS,
            draw,
            hiding=elements,
            random=secrets.token_bytes if hiding else bytes,
        )
        proof = made.prove_anything(vectors)
        held = verify_proof(
            Proof(proof, ()), settings=keys.settings, vk=keys.vk, srs=path, limits=LIMITS
        )
        assert held.holds
        columns = circuit.lay_out(vectors) | circuit.compute_answers()
        plain = {name: [int(value) for value in values] for name, values in columns.items()}
        return Layout.read(source).open(proof), plain

    first, second = prove_once(), prove_once()
    return Proven(made, hiding, (first[0], second[0]), (first[1], second[1]))


def test_keccak_is_ethereums() -> None:
    empty = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert keccak256(b"").hex() == empty
    transfer = keccak256(b"transfer(address,uint256)")
    assert transfer[:4].hex() == "a9059cbb"
    assert len({keccak256(bytes(size)) for size in range(130, 280)}) == 150


def test_words_of_a_proof_are_read(proven: Proven) -> None:
    """Each column's commitment and evaluation are those that we compute from its values."""
    for reading, columns in zip(proven.readings, proven.columns, strict=True):
        for index, name in enumerate(proven.toy.circuit.columns):
            commitment, opening = reading.column(index)
            assert commitment == commit_values(proven.toy.commit_key, columns[name])
            assert opening.point == reading.x
            assert opening.value == proven.domain.evaluate(columns[name], reading.x, fill=1), name


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_proof_tells_a_small_tensor(proven: Proven, name: str) -> None:
    """All four values, from nothing but the proof."""
    rows = dict.fromkeys(range(4), (-(1 << 17), 1 << 17))
    proven.expect(find_values(proven.see(name, range(4)), rows), GIVEN[name].tolist())


def test_openings_of_two_proofs_go_together(proven: Proven) -> None:
    """A given column is the same in both, and opened at two points."""
    rows = dict.fromkeys(range(4), (-(1 << 60), 1 << 60))
    one, other = (proven.see("c", range(4), proof) for proof in range(2))
    both = replace(one, openings=one.openings + other.openings)
    proven.expect(find_values(both, rows), GIVEN["c"].tolist())


def test_a_proof_tells_limbs_and_hints(proven: Proven) -> None:
    private = proven.columns[0]["private"]
    stop = proven.toy.circuit.length("private")
    unknown = [*range(4), *range(stop - 9, stop)]
    found = find_values(proven.see("private", unknown), dict.fromkeys(unknown, (0, 1 << 16)))
    proven.expect(found, pick(private, unknown))


def find_places(proven: Proven) -> tuple[list[list[int]], range]:
    """The limbs of each inner column, row by row, and the rows of those that are no masks: limbs
    are the first cells, side by side, masks before and after the others."""
    circuit, inner = proven.toy.circuit, proven.toy.circuit.inner_columns
    limbs = pick(proven.columns[0]["private"], circuit._looked_up.tolist())
    first = MASKS if proven.hiding else 0
    return [limbs[column::inner] for column in range(inner)], range(first, first + 2)


def test_a_proof_tells_which_limbs_there_are(proven: Proven) -> None:
    table = Table(proven.domain, SPAN)
    sides, rows = find_places(proven)
    for index, side in enumerate(sides):
        m, truth = proven.readings[0].lookup(index).m, sorted(pick(side, rows))
        masks = [limb for row, limb in enumerate(side) if row not in rows]
        proven.expect(find_limbs(table, m, (), 2), truth)
        assert find_limbs(table, m, masks, 2) == truth


def test_a_proof_tells_where_limbs_stand(proven: Proven) -> None:
    reading = proven.readings[0]
    looked_up = [reading.lookup(index) for index in range(2)]
    phis = [(it.phi, it.phi_next) for it in looked_up]
    sides, rows = find_places(proven)
    choices = [dict.fromkeys(rows, range(1, SPAN + 1)) for _ in sides]
    known = [
        choice | {row: [limbs[row]] for row in range(len(limbs)) if row not in rows}
        for choice, limbs in zip(choices, sides, strict=True)
    ]

    def place(places: Sequence[Mapping[int, Sequence[int]]]) -> list[list[int]] | None:
        found = place_limbs(
            Table(proven.domain, SPAN),
            reading.challenges,
            (phis[0], phis[1]),
            (places[0], places[1]),
        )
        return None if found is None else [side[:2] for side in found]

    truth = [pick(side, rows) for side in sides]
    proven.expect(place(choices), truth)
    assert place(known) == truth


def test_proofs_of_one_statement_have_words_in_common(proven: Proven) -> None:
    """All that halo2 blinds is fresh.  The rest is alike: anybody sees what two proofs share."""
    first, second = proven.readings
    points = range(sum(first.layout.points))
    same = {index for index in points if first.point(index) == second.point(index)}
    names = proven.toy.circuit.columns
    shared = {*GIVEN, "answers"} if proven.hiding else set(names)
    columns = {index for index, name in enumerate(names) if name in shared}
    start = first.layout.points[0]
    multiplicities = {*range(start, start + first.layout.lookups)}
    assert same == (columns if proven.hiding else columns | multiplicities)
    pairs = [(first.number(i), second.number(i)) for i in range(first.layout.numbers)]
    assert not [pair for pair in pairs if pair[0] == pair[1] != 0]  # a fixed column may be empty
