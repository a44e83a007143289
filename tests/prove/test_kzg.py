"""Commitments are those of ezkl and of its proofs, bit for bit; what cannot be one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prove.circuits import LIMITS, Circuit, node, write_model
from vtrain.commit.hiding import derive_elements, encode_elements
from vtrain.errors import EncodingError, SrsError
from vtrain.prove.backend.ezkl import Call, ProofShape, encode_element, read_proof, run_ezkl
from vtrain.prove.backend.kzg import CommitKey, find_blinding
from vtrain.prove.backend.srs import generate_srs, identify_srs, load_curve
from vtrain.spec.field import SCALAR_FIELD

K = 8
BLINDING = 5
DTYPES = ("uint8", "int8", "int16", "int32", "int64")
SEED = b"tests of commitments"

curve = load_curve()


@pytest.fixture(scope="session")
def key(srs: Path) -> CommitKey:
    return CommitKey(srs, K, BLINDING)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CommitKey:
    """16 rows, of which 10 hold values."""
    path = tmp_path_factory.mktemp("tiny") / "k4.srs"
    generate_srs(path, 4, seed=SEED)
    return CommitKey(path, 4, 5)


def draw(dtype: str, size: int) -> np.ndarray[Any, Any]:
    """Values that look drawn, the extreme ones first."""
    limits = np.iinfo(dtype)
    extreme = [limits.min, limits.max, limits.min + 1, 0, 1]
    rng = np.random.default_rng(size)
    drawn = rng.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)
    drawn[: len(extreme)] = extreme[:size]
    return drawn


def commit_with_ezkl(circuit: Circuit, srs: Path, tensors: list[list[int]]) -> list[list[bytes]]:
    """The columns' commitments of each tensor, as ``ezkl.kzg_commit`` makes them."""
    paths = {
        "vk_path": circuit.at("vk"),
        "settings_path": circuit.at("settings.json"),
        "srs_path": str(srs),
    }
    calls = [
        Call("kzg_commit", {"message": [encode_element(value) for value in tensor]} | paths)
        for tensor in tensors
    ]
    return [
        [bytes.fromhex(x)[::-1] + bytes.fromhex(y)[::-1] for x, y in points]
        for points in run_ezkl(calls, LIMITS)
    ]


def commitments_in(proof: Path, count: int) -> tuple[bytes, ...]:
    fields = json.loads(proof.read_bytes())
    shape = ProofShape(len(fields["proof"]), len(fields["instances"][0]))
    return read_proof(proof.read_bytes(), shape).commitments(count)


# --- the same as ezkl's


def test_commitments_are_those_of_ezkl(proven: Circuit, srs: Path, key: CommitKey) -> None:
    """Every dtype, extreme values, and every length at which something changes."""
    assert key.rows == 2**K - key.blinding - 1
    lengths = (1, 2, 100, key.rows - 1, key.rows, key.rows + 1, 2 * key.rows, 2 * key.rows + 7)
    arrays = [draw(dtype, size) for dtype in DTYPES for size in lengths]
    expected = commit_with_ezkl(proven, srs, [array.tolist() for array in arrays])
    for array, columns in zip(arrays, expected, strict=True):
        assert key.commit_columns(array) == columns
        assert len(columns) == array.size // key.rows + 1
        if array.size <= key.rows:
            assert key.commit(array) == columns[0]
        if array.size % key.rows == 0:
            assert columns[-1] == key.zero


def test_scalars_of_the_whole_field_are_those_of_ezkl(
    proven: Circuit, srs: Path, key: CommitKey
) -> None:
    rng = np.random.default_rng(3)
    half = SCALAR_FIELD // 2
    values = [0, 1, SCALAR_FIELD - 1, half, half + 1, 2**253, 2**64, SCALAR_FIELD - 2**63]
    values += [int.from_bytes(rng.bytes(40)) % SCALAR_FIELD for _ in range(key.rows - len(values))]
    (expected,) = commit_with_ezkl(proven, srs, [values])
    assert key.commit_scalars(b"".join(v.to_bytes(32, "little") for v in values)) == expected[0]


def test_commitments_are_those_in_a_proof(proven: Circuit, key: CommitKey) -> None:
    found = commitments_in(proven.folder / "proof.json", 2)
    assert found == (key.commit(np.array([1, 2, 3, 4])), key.commit(np.array([11, 22, 33, 44])))


@pytest.mark.parametrize(("spare", "columns"), [(2, 1), (1, 2)])
def test_columns_of_a_circuit_are_one_more_already_at_a_row_less(
    circuit: Circuit, spare: int, columns: int
) -> None:
    """The trap of the module's docstring: ``kzg_commit`` makes one column of both tensors."""
    k = 10
    generate_srs(circuit.folder / "srs", k, seed=SEED)
    made = Circuit(circuit.folder, circuit.folder / "srs")
    rows = 2**k - 6
    values = [index * (-1) ** index for index in range(rows - spare)]
    write_model(
        made.folder / "model.onnx",
        [node("Identity", ["x"], ["seen"])],
        {"x": [len(values)]},
        {"seen": [len(values)]},
    )
    made.build(k=k, visibility="polycommit")
    key = CommitKey(made.srs, k, BLINDING)
    assert key.rows == rows
    made.witness(values)
    found = commitments_in(made.prove(), 2)
    ours = key.commit_columns(np.array(values, dtype=np.int16))
    assert ours == [found[0]]
    assert (found[1] == key.zero) == (columns == 2)


def test_larger_srs_serves_as_its_own_small_one_and_as_in_a_proof(
    proven: Circuit, tmp_path: Path
) -> None:
    large = Circuit(tmp_path, tmp_path / "k9.srs")
    generate_srs(large.srs, K + 1, seed=SEED)
    (tmp_path / "model.onnx").write_bytes((proven.folder / "model.onnx").read_bytes())
    large.build(k=K, visibility="polycommit")
    large.witness([1, 2, 3, 4], [10, 20, 30, 40])
    proof = large.prove()
    assert large.verify(proof) is True
    key = CommitKey(large.srs, K, BLINDING)
    x = np.array([1, 2, 3, 4])
    assert commitments_in(proof, 2) == (key.commit(x), key.commit(11 * x))
    assert key.srs == identify_srs(large.srs)

    # The trap: kzg_commit takes the file's own k.
    own = CommitKey(large.srs, K + 1, BLINDING)
    (by_ezkl,) = commit_with_ezkl(large, large.srs, [x.tolist()])
    assert by_ezkl == [own.commit(x)]
    assert by_ezkl != [key.commit(x)]

    generate_srs(tmp_path / "k8.srs", K, seed=SEED)
    small = CommitKey(tmp_path / "k8.srs", K, BLINDING)
    y = draw("int64", key.rows)
    assert small.commit(y) == key.commit(y)
    assert small.zero == key.zero


def test_number_of_blinding_factors_is_found(proven: Circuit, srs: Path, tmp_path: Path) -> None:
    assert proven.settings()["num_blinding_factors"] is None  # ezkl leaves it out
    ((zero,),) = commit_with_ezkl(proven, srs, [[0]])
    assert find_blinding(srs, K, zero) == BLINDING
    path = tmp_path / "k4.srs"
    generate_srs(path, 4, seed=SEED)
    for blinding in range(15):
        assert find_blinding(path, 4, CommitKey(path, 4, blinding).zero) == blinding
    with pytest.raises(EncodingError, match="no number of blinding factors"):
        find_blinding(path, 4, zero)


def test_ezkls_own_file_serves_alike(tmp_path: Path) -> None:
    path = tmp_path / "ezkl.srs"
    run_ezkl([Call("gen_srs", {"srs_path": str(path), "logrows": 6})], LIMITS)
    data = path.read_bytes()
    values = draw("int32", 20)
    direct = CommitKey(path, 6, 5).commit(values)
    points = [data[4 + 64 * (64 + i) : 4 + 64 * (65 + i)] for i in range(64)]
    total = curve.Z1
    for point, value in zip(points, values.tolist() + [0] * 38 + [1] * 6, strict=True):
        total = curve.add(total, curve.multiply(read_point(point), value % SCALAR_FIELD))
    x, y = curve.normalize(total)
    assert direct == int(x).to_bytes(32) + int(y).to_bytes(32)


def read_point(raw: bytes) -> Any:
    montgomery = pow(2**256, -1, curve.field_modulus)
    x, y = (int.from_bytes(part, "little") * montgomery for part in (raw[:32], raw[32:]))
    return curve.FQ(x), curve.FQ(y), curve.FQ(1)


# --- sums


small = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=10)


@given(
    tensors=st.lists(st.tuples(st.integers(-(2**70), 2**70), small), max_size=4),
)
def test_combination_commits_to_the_combination(
    tiny: CommitKey, tensors: list[tuple[int, list[int]]]
) -> None:
    terms = [(c, tiny.commit(np.array(x, dtype=np.int64))) for c, x in tensors]
    total = [0] * tiny.rows
    for c, x in tensors:
        for i, value in enumerate(x):
            total[i] += c * value
    scalars = b"".join((value % SCALAR_FIELD).to_bytes(32, "little") for value in total)
    assert tiny.combine(terms) == tiny.commit_scalars(scalars)


@given(data=st.data(), dtype=st.sampled_from(DTYPES), threads=st.integers(1, 3))
def test_columns_of_any_size_agree_with_scalars(
    tiny: CommitKey, data: st.DataObject, dtype: str, threads: int
) -> None:
    limits = np.iinfo(dtype)
    values = data.draw(st.lists(st.integers(int(limits.min), int(limits.max)), max_size=10))
    scalars = b"".join((value % SCALAR_FIELD).to_bytes(32, "little") for value in values)
    array = np.array(values, dtype=dtype)
    assert tiny.commit(array, threads=threads) == tiny.commit_scalars(scalars, threads=threads)


def test_threads_and_chunks_change_nothing(key: CommitKey, tmp_path: Path) -> None:
    generate_srs(tmp_path / "srs", 12, seed=SEED)
    large = CommitKey(tmp_path / "srs", 12, 5)
    arrays = [draw("int32", large.rows), draw("int8", 3000), np.zeros(2000, np.int64)]
    arrays.append(np.full(large.rows, -7, np.int16))
    alone = large.commit_many(arrays, [b""] * 4, threads=1)
    assert large.commit_many(arrays, [b""] * 4, threads=3) == alone
    assert [large.commit(array, threads=2) for array in arrays] == alone
    wide = b"".join((int(v) % SCALAR_FIELD).to_bytes(32, "little") for v in arrays[0])
    assert large.commit_scalars(wide, threads=3) == alone[0]
    assert alone[2] == large.zero == large.commit(np.zeros((), np.uint8)) == large.combine([])


def test_shape_and_strides_do_not_matter(tiny: CommitKey) -> None:
    square = np.arange(9, dtype=np.int32).reshape(3, 3)
    assert tiny.commit(square) == tiny.commit(square.ravel())
    assert tiny.commit(square.T) == tiny.commit(np.ascontiguousarray(square.T))
    assert tiny.commit(square.T) != tiny.commit(square)
    assert tiny.commit_columns(np.arange(25, dtype=np.int16)[::2]) == [
        tiny.commit(np.arange(0, 20, 2)),
        tiny.commit(np.array([20, 22, 24])),
    ]
    assert tiny.commit_many([], []) == []


# --- what is refused


@pytest.mark.parametrize("dtype", ["float32", "uint16", "uint64", "bool", ">i4", "complex64", "U1"])
def test_tensor_of_another_dtype_is_refused(tiny: CommitKey, dtype: str) -> None:
    with pytest.raises(EncodingError, match="cannot be committed to"):
        tiny.commit(np.zeros(3, dtype=dtype))


def test_more_values_than_rows_are_refused(tiny: CommitKey) -> None:
    tiny.commit(np.zeros(10, np.int8))
    with pytest.raises(EncodingError, match="11 values for 10 rows"):
        tiny.commit(np.zeros(11, np.int8))
    with pytest.raises(EncodingError, match="11 values for 10 rows"):
        tiny.commit_scalars(bytes(11 * 32))


def test_scalars_out_of_range_are_refused(tiny: CommitKey) -> None:
    good = (SCALAR_FIELD - 1).to_bytes(32, "little")
    tiny.commit_scalars(good)
    with pytest.raises(EncodingError, match="scalar 1 is not reduced"):
        tiny.commit_scalars(good + SCALAR_FIELD.to_bytes(32, "little"))
    with pytest.raises(EncodingError, match="33 bytes are no whole number"):
        tiny.commit_scalars(good + b"\0")


def test_what_is_no_commitment_is_refused(tiny: CommitKey) -> None:
    good = tiny.zero
    for bad, message in (
        (good[:-1], "commitment 1 has 63 bytes"),
        (good + b"\0", "commitment 1 has 65 bytes"),
        (good[:-1] + bytes([good[-1] ^ 1]), "point 1 is not on the curve"),
        (b"\xff" * 64, "point 1 has a coordinate that is not reduced"),
    ):
        with pytest.raises(EncodingError, match=message):
            tiny.combine([(1, good), (2, bad)])


def test_file_that_serves_no_key_is_refused(srs: Path, tmp_path: Path) -> None:
    for k in (-1, 0, 9, 29):
        with pytest.raises(SrsError, match=f"is for k up to 8, not {k}"):
            CommitKey(srs, k, 5)
    for blinding in (-1, 255, 256, 2**70):
        with pytest.raises(EncodingError, match="leave no row of 256"):
            CommitKey(srs, 8, blinding)
    assert CommitKey(srs, 8, 254).rows == 1
    with pytest.raises(SrsError, match="missing"):
        CommitKey(tmp_path / "none", 8, 5)
    data = bytearray(srs.read_bytes())
    data[4 + 64 * (256 + 17)] ^= 1
    data[4 + 64 * 18] ^= 1
    spoiled = tmp_path / "spoiled"
    spoiled.write_bytes(data)
    with pytest.raises(SrsError, match="Lagrange points: point 17 is not on the curve"):
        CommitKey(spoiled, 8, 5)
    with pytest.raises(SrsError, match="powers: point 18 is not on the curve"):
        CommitKey(spoiled, 7, 5)
    assert CommitKey(spoiled, 4, 5).rows == 10  # the points that this reads are whole
    spoiled.write_bytes(data[:-1])
    with pytest.raises(SrsError, match="has 33027 bytes"):
        CommitKey(spoiled, 8, 5)


def test_commitments_are_those_of_the_vectors(tmp_path: Path) -> None:
    """Of a file whose tau is known, worked out by the formulas of docs/format.md alone."""
    vectors = json.loads((Path(__file__).parent.parent / "vectors/kzg.json").read_text())
    path = tmp_path / "srs"
    path.write_bytes(bytes.fromhex(vectors["srs"]))
    for case in vectors["commitments"]:
        values = np.array([int(value) for value in case["values"]], np.int64)
        key, hiding = bytes.fromhex(case["key"]), b""
        if key:
            hiding = encode_elements(derive_elements(key, case["column"]))
        found = CommitKey(path, case["k"], case["blinding"]).commit_many([values], [hiding])
        assert [item.hex() for item in found] == [case["commitment"]]
