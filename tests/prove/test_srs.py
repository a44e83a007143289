"""SRS files: each way in which a file can be none is refused, and the place is named."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples.plain import load_plain_verifier
from tests.prove.circuits import LIMITS, Circuit
from vtrain import cli
from vtrain.errors import SrsError, StorageError
from vtrain.prove.backend import srs as module
from vtrain.prove.backend.ezkl import Call, CallFailedError, run_ezkl
from vtrain.prove.backend.srs import (
    CEREMONY,
    Srs,
    check_srs,
    generate_srs,
    identify_srs,
    load_curve,
)

curve = load_curve()
N = 256
POWERS = 4
LAGRANGE = POWERS + 64 * N
TAIL = LAGRANGE + 64 * N
P: int = curve.field_modulus


@pytest.fixture(scope="module")
def data(srs: Path) -> bytes:
    return srs.read_bytes()


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes], str]:
    """Checks bytes that are no SRS; what the error says."""

    def check(data: bytes) -> str:
        path = tmp_path / "hostile.srs"
        path.write_bytes(data)
        with pytest.raises(SrsError) as caught:
            check_srs(path, threads=1)
        assert str(path) in caught.value.where
        return str(caught.value)

    return check


def put(data: bytes, at: int, part: bytes) -> bytes:
    return data[:at] + part + data[at + len(part) :]


def coordinate(value: int) -> bytes:
    return (value * 2**256 % P).to_bytes(32, "little")


def first_group(scalar: int) -> bytes:
    """scalar G as a file has it."""
    point = curve.multiply(curve.G1, scalar)
    if curve.is_inf(point):
        return bytes(64)
    x, y = curve.normalize(point)
    return coordinate(int(x)) + coordinate(int(y))


def second_group(scalar: int) -> bytes:
    return _second(curve.multiply(curve.G2, scalar))


def _second(point: Any) -> bytes:
    x, y = curve.normalize(point)
    return b"".join(coordinate(int(part)) for value in (x, y) for part in value.coeffs)


def make_srs(scalars: list[int], tau: int) -> bytes:
    """A file of these multiples of G, with the Lagrange basis that belongs to them."""
    n, order = len(scalars), curve.curve_order
    root, inverse = pow(7, (order - 1) // n, order), pow(n, -1, order)
    basis = [
        inverse * sum(scalar * pow(root, -i * j, order) for j, scalar in enumerate(scalars)) % order
        for i in range(n)
    ]
    points = b"".join(map(first_group, scalars + basis))
    return (n.bit_length() - 1).to_bytes(4, "little") + points + second_group(1) + second_group(tau)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_file_made_from_the_definition_is_sound(tmp_path: Path, k: int) -> None:
    path = tmp_path / "own.srs"
    path.write_bytes(make_srs([123**j for j in range(1 << k)], 123))
    found = check_srs(path, threads=1)
    assert found == identify_srs(path)
    assert found.k == k
    assert not found.is_ceremony


def test_generated_file_is_sound_and_insecure(srs: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    found = check_srs(srs, progress=lambda *now: seen.append(now))
    assert found.k == 8
    assert not found.is_ceremony
    assert seen == [("powers", N, N), ("Lagrange points", N, N)]


def test_blocks_join(srs: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(module, "_BLOCK", 100)
    assert check_srs(srs) == identify_srs(srs)
    other = srs.with_name("other.srs")
    other.write_bytes(put(data, LAGRANGE + 64 * 201, bytes(64)))
    with pytest.raises(SrsError, match="Lagrange points: point 201 is the point at infinity"):
        check_srs(other)


PLACES = {
    "k": (0, "has .* bytes; with k = 9 it would have"),
    "power 0": (POWERS, "powers: point 0 is not on the curve"),
    "a power": (POWERS + 64 * 77 + 32, "powers: point 77 is not on the curve"),
    "last power": (LAGRANGE - 1, "powers: point 255 "),
    "Lagrange point 0": (LAGRANGE, "Lagrange points: point 0 is not on the curve"),
    "last Lagrange point": (TAIL - 1, "Lagrange points: point 255 "),
    "H": (TAIL, "point H: the point is not on the curve"),
    "H, end": (TAIL + 127, "point H: "),
    "tau H": (TAIL + 128, "point tau H: the point is not on the curve"),
    "last byte": (TAIL + 255, "point tau H: "),
}


@pytest.mark.parametrize("place", PLACES)
def test_flipped_bit_is_caught(data: bytes, refused: Callable[[bytes], str], place: str) -> None:
    at, message = PLACES[place]
    assert re.search(message, refused(put(data, at, bytes([data[at] ^ 1]))))


SPOILED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "byte 0: the file ends here"),
    "k cut": (lambda data: data[:3], "byte 3: the file ends here"),
    "k of 0": (lambda data: put(data, 0, bytes(4)), "k is 0, not 1 to 28"),
    "k beyond": (lambda data: put(data, 0, b"\xff" * 4), "k is 4294967295, not 1 to 28"),
    "cut in the powers": (lambda data: data[:100], "byte 100: has 100 bytes"),
    "a byte short": (lambda data: data[:-1], f"byte {TAIL + 255}: has {TAIL + 255} bytes"),
    "a byte too many": (lambda data: data + b"\0", f"byte {TAIL + 256}: has {TAIL + 257} bytes"),
    "power at infinity": (
        lambda data: put(data, POWERS + 64 * 3, bytes(64)),
        "powers: point 3 is the point at infinity",
    ),
    "power not reduced": (
        lambda data: put(data, POWERS + 64 * 3, b"\xff" * 32),
        "powers: point 3 has a coordinate that is not reduced",
    ),
    "x plus the prime": (
        lambda data: put(
            data, POWERS + 64, (int.from_bytes(data[68:100], "little") + P).to_bytes(32, "little")
        ),
        "powers: point 1 has a coordinate that is not reduced",
    ),
    "other generator": (
        lambda data: put(data, POWERS, first_group(2)),
        "power 0: is not the generator",
    ),
    "a false power": (
        lambda data: put(data, POWERS + 64 * 200, first_group(5)),
        "Lagrange points: they are not the Lagrange basis",
    ),
    "two powers swapped": (
        lambda data: data[:580] + data[644:708] + data[580:644] + data[708:],
        "Lagrange points: they are not the Lagrange basis",
    ),
    "a false Lagrange point": (
        lambda data: put(data, LAGRANGE + 64 * 9, first_group(5)),
        "Lagrange points: they are not the Lagrange basis",
    ),
    "halves swapped": (
        lambda data: data[:POWERS] + data[LAGRANGE:TAIL] + data[POWERS:LAGRANGE] + data[TAIL:],
        "power 0: is not the generator",
    ),
    "Lagrange half rotated": (
        lambda data: (
            data[:LAGRANGE]
            + data[LAGRANGE + 64 : TAIL]
            + data[LAGRANGE : LAGRANGE + 64]
            + data[TAIL:]
        ),
        "Lagrange points: they are not the Lagrange basis",
    ),
    "other H": (lambda data: put(data, TAIL, second_group(2)), "point H: is not the generator"),
    "H at infinity": (lambda data: put(data, TAIL, bytes(128)), "point H: the point is not on"),
    "other tau in tau H": (
        lambda data: put(data, TAIL + 128, second_group(7)),
        "powers: they are not the powers of the tau in tau H",
    ),
    "tau H not reduced": (
        lambda data: put(data, TAIL + 128 + 96, b"\xff" * 32),
        "point tau H: a coordinate is not reduced",
    ),
    "multiples that are no powers": (
        lambda data: make_srs([1, 3, 5, 7], 3),
        "powers: they are not the powers of the tau in tau H",
    ),
    "powers of another tau": (
        lambda data: make_srs([1, 3, 9, 27], 4),
        "powers: they are not the powers of the tau in tau H",
    ),
    "last power false": (
        lambda data: make_srs([1, 3, 9, 28], 3),
        "powers: they are not the powers of the tau in tau H",
    ),
    "tau of 1": (
        lambda data: make_srs([1, 1, 1, 1], 1),
        "Lagrange points: point 1 is the point at infinity",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_false_file_is_refused(data: bytes, refused: Callable[[bytes], str], name: str) -> None:
    spoil, message = SPOILED[name]
    assert message in refused(spoil(data))


def test_point_of_the_twist_outside_the_group_is_refused(
    data: bytes, refused: Callable[[bytes], str]
) -> None:
    assert "point tau H: the point is not in the group" in refused(
        put(data, TAIL + 128, _second(find_point_outside()))
    )


def find_point_outside() -> Any:
    """A point of the twist that is not in the group: nearly every one is."""
    for x in range(1, 50):
        first = curve.FQ2((x, 0))
        square = first * first * first + curve.b2
        root = square ** ((P * P + 15) // 32)
        for candidate in (root * eighth**i for eighth in [find_eighth_root()] for i in range(8)):
            if candidate * candidate == square:
                point = (first, candidate, curve.FQ2.one())
                if not curve.is_inf(curve.multiply(point, curve.curve_order)):
                    return point
    raise LookupError("no such point")


def find_eighth_root() -> Any:
    return curve.FQ2((9, 1)) ** ((P * P - 1) // 16)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=900), k=st.integers(0, 3))
def test_garbage_ends_in_a_typed_error(tmp_path: Path, raw: bytes, k: int) -> None:
    path = tmp_path / "garbage.srs"
    body = raw.ljust(128 * 2**k + 256, b"\1")[: 128 * 2**k + 256]
    for content in (raw, k.to_bytes(4, "little") + body):
        path.write_bytes(content)
        with pytest.raises(SrsError):
            check_srs(path, threads=1)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SrsError, match="missing"):
        check_srs(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SrsError, match="regular"):
        identify_srs(tmp_path / "pipe")


def test_generate_writes_a_new_file_of_a_legal_size_only(srs: Path, tmp_path: Path) -> None:
    before = srs.read_bytes()
    with pytest.raises(StorageError, match="exists"):
        generate_srs(srs, 8)
    assert srs.read_bytes() == before
    for k in (0, 29):
        with pytest.raises(SrsError, match="not 1 to 28"):
            generate_srs(tmp_path / "new", k)
    assert list(tmp_path.iterdir()) == []


def test_seed_makes_the_same_bytes_on_any_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []

    def make(name: str, seed: bytes | None, threads: int = 1) -> bytes:
        seen.clear()
        path = tmp_path / name
        made = generate_srs(
            path, 6, seed=seed, threads=threads, progress=lambda *now: seen.append(now)
        )
        assert made == identify_srs(path)
        return path.read_bytes()

    first = make("a", b"seed")
    assert seen == [("powers", 64, 64), ("Lagrange points", 64, 64)]
    assert make("b", b"seed", 3) == first
    monkeypatch.setattr(module, "_BLOCK", 25)
    assert make("c", b"seed", 2) == first
    assert seen[:3] == [("powers", 25, 64), ("powers", 50, 64), ("powers", 64, 64)]
    assert len({first, make("d", b"seed\0"), make("e", None), make("f", None)}) == 4
    assert check_srs(tmp_path / "a") == identify_srs(tmp_path / "a")


def test_tau_of_a_seed_is_as_documented(tmp_path: Path) -> None:
    generate_srs(tmp_path / "own", 2, seed=b"seed")
    digest = blake3(b"seed", derive_key_context="vtrain 2026 srs tau v1").digest(64)
    tau = int.from_bytes(digest, "little") % curve.curve_order
    expected = make_srs([pow(tau, j, curve.curve_order) for j in range(4)], tau)
    assert (tmp_path / "own").read_bytes() == expected


def test_secrets_that_hide_nothing_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new"
    with pytest.raises(SrsError, match="seed: is empty"):
        generate_srs(path, 3, seed=b"")
    order = curve.curve_order
    eighth, sixteenth = (pow(7, (order - 1) // n, order) for n in (8, 16))
    for tau in (0, 1, order - 1, eighth, eighth**3 % order):
        monkeypatch.setattr(module, "_derive_tau", lambda seed, tau=tau: tau)
        with pytest.raises(SrsError, match="seed: the secret is 0, a root of unity"):
            generate_srs(path, 3)
        assert not path.exists()
    monkeypatch.setattr(module, "_derive_tau", lambda seed: sixteenth)
    generate_srs(path, 3)
    assert check_srs(path).k == 3


def test_interrupted_generation_leaves_nothing(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_srs(tmp_path / "new", 3, progress=stop)
    with pytest.raises(StorageError):
        generate_srs(tmp_path / "none" / "new", 3)
    assert list(tmp_path.iterdir()) == []


def test_ezkl_proves_and_verifies_over_our_file_and_no_other(
    proven: Circuit, srs: Path, tmp_path: Path
) -> None:
    proof = proven.folder / "proof.json"
    assert proven.srs == srs
    assert proven.verify(proof) is True
    other = replace(proven, srs=tmp_path / "other")
    generate_srs(other.srs, 8, seed=b"other")
    with pytest.raises(CallFailedError):
        other.verify(proof)


def test_ezkls_own_file_is_of_the_same_kind(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    run_ezkl([Call("gen_srs", {"srs_path": str(theirs), "logrows": 5})], LIMITS)
    assert check_srs(theirs).k == 5
    generate_srs(ours, 5)
    a, b = theirs.read_bytes(), ours.read_bytes()
    assert len(a) == len(b)
    assert a[:68] == b[:68]  # k and the generator
    assert a[-256:-128] == b[-256:-128]  # the other generator


def test_ceremony_is_told_by_digest_and_size() -> None:
    assert sorted(CEREMONY) == list(range(1, 27))
    assert Srs(17, bytes.fromhex(CEREMONY[17])).is_ceremony
    assert not Srs(16, bytes.fromhex(CEREMONY[17])).is_ceremony
    assert not Srs(27, bytes(32)).is_ceremony


def test_the_page_and_the_plain_verifier_have_the_digests_of_the_ceremony() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "format.md").read_text()
    listed = page.split("### The files of the ceremony")[1].split("\n### ")[0]
    assert re.findall(r"[0-9a-f]{64}", listed) == [CEREMONY[k] for k in range(1, 27)]
    assert set(CEREMONY.values()) == load_plain_verifier().CEREMONY


def test_digests_of_the_ceremony_are_those_of_the_pinned_ezkl() -> None:
    """ezkl's list is compiled in, its digests one after the other."""
    found = importlib.util.find_spec("ezkl")
    assert found is not None
    assert found.origin is not None
    (library,) = Path(found.origin).parent.glob("ezkl*.so")
    code = library.read_bytes()
    places = [code.find(CEREMONY[k].encode()) for k in sorted(CEREMONY)]
    assert places[0] > 0
    assert places == [places[0] + 64 * i for i in range(len(places))]


def call(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = cli.run(["srs", *map(str, arguments)])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_command_generates_and_checks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.srs"
    code, out, err = call(capfd, "generate", "--k", 3, "--out", path, "--json")
    assert (code, err) == (0, "")
    made = json.loads(out)
    assert made == {
        "file": str(path),
        "k": 3,
        "sha256": identify_srs(path).sha256.hex(),
        "insecure": True,
    }
    code, out, err = call(capfd, "check", path)
    assert (code, err) == (4, "")
    assert "INSECURE" in out
    code, out, _ = call(capfd, "check", path, "--json", "--allow-insecure-srs")
    assert (code, json.loads(out)) == (0, made)
    digests = set()
    for threads in (1, 2):
        seeded = ("--seed", "00ff", "--threads", threads, "--json")
        code, out, _ = call(capfd, "generate", "--k", 3, "--out", tmp_path / f"{threads}", *seeded)
        assert code == 0
        digests.add(json.loads(out)["sha256"])
    assert len(digests) == 1
    path.write_bytes(path.read_bytes()[:-1])
    code, out, err = call(capfd, "check", path, "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "srs"
    assert "byte 1283" in err


def test_command_trusts_a_file_on_the_list(
    srs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CEREMONY", {8: identify_srs(srs).sha256.hex()})
    code, out, _ = call(capfd, "check", srs)
    assert code == 0
    assert "public ceremony" in out


def test_the_recursion_limit_stays_as_it_is() -> None:
    """py_ecc raises it on import, and hostile documents would end the process."""
    code = (
        "import sys; from vtrain.prove.backend.srs import load_curve; "
        "load_curve(); print(sys.getrecursionlimit())"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "1000"
