"""What hides commitments: derivations, files of secrets, and the secrets of runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.exhaustive import spare
from tests.kzg import SECRETS, make_kzg_task, place_secrets
from tests.train.test_faults import InTurn, Killed, Saboteur
from vtrain.attest.claims import verify_claim
from vtrain.commit.hiding import (
    KeyFinder,
    derive_elements,
    derive_key,
    derive_own_key,
    derive_trace_key,
    draw_hiding,
    encode_elements,
    identify_key,
    make_batch_secret,
    read_batch_secret,
    read_hiding,
)
from vtrain.commit.kzg_log import iterate_kzg_log
from vtrain.demo.cheats import skip_step, train_falsely
from vtrain.errors import EncodingError, NotProducedError, RunError
from vtrain.train import background
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask
from vtrain.wire import structs
from vtrain.wire.claim import decode_signed_claim
from vtrain.wire.hiding import Hiding, HidingKey, decode_hiding
from vtrain.wire.proof import HIDING, KzgRecord, ProofSpec

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "kzg.json").read_text())
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ORDER = 21888242871839275222246405745257275088548364400416034343698204186575808495617
D = bytes(range(32))


# --- derivations


def test_keys_of_the_vectors() -> None:
    for case in VECTORS["keys"]["secret"]:
        secret, task, digest = (bytes.fromhex(case[name]) for name in ("secret", "task", "digest"))
        key = derive_key(secret, task, case["kind"], case["index"], digest)
        assert (key.hex(), identify_key(key).hex()) == (case["key"], case["id"])
    for case in VECTORS["keys"]["own"]:
        srs, digest, tensors = (bytes.fromhex(case[name]) for name in ("srs", "digest", "tensors"))
        proof = ProofSpec(case["circuit"], srs, case["k"], 5, 1, (), {})
        tensor = np.frombuffer(tensors, np.uint8)
        key = derive_own_key(proof, case["kind"], case["index"], digest, [tensor])
        assert (key.hex(), identify_key(key).hex()) == (case["key"], case["id"])
    case = VECTORS["keys"]["trace"]
    key = derive_trace_key(bytes.fromhex(case["before"]), bytes.fromhex(case["batch"]))
    assert (key.hex(), identify_key(key).hex()) == (case["key"], case["id"])


def test_elements_of_the_vectors() -> None:
    for case in VECTORS["keys"]["elements"]:
        found = derive_elements(bytes.fromhex(case["key"]), case["column"])
        assert [str(element) for element in found] == case["elements"]
        assert len(found) == HIDING
        assert max(found) < ORDER
        data = encode_elements(found)
        assert [int.from_bytes(data[at : at + 32], "little") for at in range(0, 64 * 32, 32)] == [
            *found
        ]


def test_whatever_is_hidden_has_a_key_of_its_own() -> None:
    """No two parts of runs are hidden by the same elements, so that no openings add up."""
    found = {
        derive_key(secret, task, kind, index, digest)
        for secret in (D, D[::-1])
        for task in (D, D[::-1])
        for kind in ("state", "batch")
        for index in (1, 2)
        for digest in (D, D[::-1])
    }
    assert len(found) == 32
    key = found.pop()
    assert len({derive_elements(key, column)[0] for column in range(100)}) == 100


# --- files


@pytest.mark.parametrize("data", VECTORS["hiding"])
def test_files_of_the_vectors(data: str) -> None:
    assert structs.encode(decode_hiding(bytes.fromhex(data))).hex() == data


FIRST, SECOND = HidingKey("batch", 7, D), HidingKey("state", 2, D)


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ((FIRST, SECOND), ""),
        ((SECOND, FIRST), "hiding.keys"),
        ((FIRST, FIRST), "hiding.keys"),
        ((FIRST, replace(FIRST, key=D[::-1])), "hiding.keys"),
        ((FIRST, replace(FIRST, index=6)), "hiding.keys"),
        ((replace(FIRST, index=-1),), "hiding.keys[0].index"),
        ((replace(FIRST, key=D[:31]),), "hiding.keys[0].key"),
        ((replace(FIRST, kind="trace"),), "hiding.keys[0].kind"),  # type: ignore[arg-type]
    ],
)
def test_keys_are_in_order(tmp_path: Path, keys: tuple[HidingKey, ...], where: str) -> None:
    data, path = structs.encode(Hiding(keys=keys)), tmp_path / "file"
    path.write_bytes(data)
    if not where:
        assert read_hiding(path).keys == keys
        return
    with pytest.raises(EncodingError) as caught:
        decode_hiding(data)
    assert caught.value.where == where
    with pytest.raises(EncodingError) as caught:
        read_hiding(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("data", [b"", b"\xa0", structs.encode(SECRETS)[:-1], b"\0" * 100])
def test_what_is_no_file_of_secrets(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    with pytest.raises(NotProducedError):
        read_hiding(path)
    path.write_bytes(data)
    for read in (read_hiding, read_batch_secret):
        with pytest.raises(EncodingError) as caught:
            read(path)
        assert caught.value.where == str(path)


def test_the_secret_of_an_owner(tmp_path: Path) -> None:
    path = tmp_path / "owner.key"
    made = make_batch_secret(path)
    assert (len(made), path.stat().st_mode & 0o777) == (32, 0o600)
    assert make_batch_secret(path) == read_batch_secret(path) == made
    assert read_hiding(path) == Hiding(batches=made)
    assert make_batch_secret(tmp_path / "other") != made
    for other in (SECRETS, Hiding(), Hiding(batches=made, keys=(FIRST,))):
        path.write_bytes(structs.encode(other))
        for read in (read_batch_secret, make_batch_secret):
            with pytest.raises(EncodingError, match="is not what an owner of batches hands over"):
                read(path)
        assert path.read_bytes() == structs.encode(other)


# --- runs


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> CompiledTask:
    path = tmp_path_factory.mktemp("srs") / "srs"
    return make_kzg_task(path, steps=8, commit_every=1, checkpoint_every=2)


@pytest.fixture(scope="module")
def honest(task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("honest") / "run"
    train(task, run, key=SIGNER)
    return run


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def read_records(run: Path) -> list[KzgRecord]:
    with RunPaths(run).kzg.open("rb") as file:
        return list(iterate_kzg_log(file))


def list_commitments(run: Path, first: int = 1) -> Iterator[bytes]:
    """Those of what the run alone hides: of all but the initial state."""
    for record in read_records(run):
        if record.step >= first:
            yield from (*record.batch, *record.after)


def test_runs_of_other_secrets_have_nothing_in_common(
    tmp_path: Path, task: CompiledTask, honest: Path
) -> None:
    other = train(task, tmp_path / "run", key=SIGNER)
    assert RunPaths(other.path).log.read_bytes() == RunPaths(honest).log.read_bytes()
    assert read_records(other.path)[0].before == read_records(honest)[0].before
    assert set(list_commitments(other.path)).isdisjoint(list_commitments(honest))
    assert len(set(list_commitments(honest))) == len([*list_commitments(honest)])
    for path in (other.path, honest):
        assert (path / "hiding.key").stat().st_mode & 0o777 == 0o600
        assert "hiding" not in (path / "manifest.json").read_text()


def test_secrets_may_lie_in_a_new_folder(tmp_path: Path, task: CompiledTask, honest: Path) -> None:
    run = place_secrets(tmp_path / "run", read_hiding(honest / "hiding.key"))
    train(task, run, key=SIGNER, steps=5)
    train(task, run, key=SIGNER)
    assert (run / "kzg.bin").read_bytes() == (honest / "kzg.bin").read_bytes()


def test_a_fork_has_other_elements_from_where_it_parts(
    tmp_path: Path, task: CompiledTask, honest: Path
) -> None:
    """Openings of two courses of one run do not add up to what they open of other values."""
    run = place_secrets(tmp_path / "run", read_hiding(honest / "hiding.key"))
    train_falsely(task, run, key=SIGNER, cheat=skip_step, step=4)
    ours, theirs = read_records(run), read_records(honest)
    assert ours[:3] == theirs[:3]
    for mine, other in zip(ours[3:], theirs[3:], strict=True):
        assert (mine.batch, mine.batch_key) == (other.batch, other.batch_key)
        assert mine.after_key != other.after_key
    after = [set(list_commitments(path, 4)) for path in (run, honest)]
    assert after[0] & after[1] == {c for record in ours[3:] for c in record.batch}


@pytest.mark.usefixtures("quick_sync")
@pytest.mark.parametrize("stride", spare([3, 1], (3).__eq__))
def test_a_run_killed_at_any_call_keeps_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: CompiledTask, stride: int
) -> None:
    """It draws them once something is in the folder, and never again once they hid anything."""
    monkeypatch.setattr(background, "ThreadPoolExecutor", InTurn)
    counter = Saboteur(0, None)
    with counter.at_work(monkeypatch):
        train(task, tmp_path / "counted", key=SIGNER, threads=1, steps=4)
    for first in range(1, counter.calls + 1, stride):
        out = tmp_path / str(first)
        with Saboteur(first, None).at_work(monkeypatch), pytest.raises(Killed):
            train(task, out, key=SIGNER, threads=1, steps=4)
        path = out / "hiding.key"
        kept = path.read_bytes() if path.exists() else b""
        train(task, out, key=SIGNER, threads=1, steps=4)
        assert kept in (b"", path.read_bytes())
        assert path.stat().st_mode & 0o777 == 0o600
        verify_claim(decode_signed_claim((out / "claim.cbor").read_bytes()))
        again = place_secrets(tmp_path / "again", read_hiding(path))
        train(task, again, key=SIGNER, threads=1, steps=4)
        assert (again / "kzg.bin").read_bytes() == (out / "kzg.bin").read_bytes()
        shutil.rmtree(again)
        shutil.rmtree(out)


@pytest.fixture
def quick_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)


def lose(run: Path) -> None:
    (run / "hiding.key").unlink()


def lose_with_log(run: Path) -> None:
    """The claim is left, which signs commitments that nobody can make again."""
    for name in ("hiding.key", "kzg.bin", "log.bin", "manifest.json"):
        (run / name).unlink()


def exchange(run: Path) -> None:
    place_secrets(run, draw_hiding())


def exchange_states(run: Path) -> None:
    place_secrets(run, draw_hiding(read_hiding(run / "hiding.key").batches))


def exchange_batches(run: Path) -> None:
    place_secrets(run, replace(draw_hiding(), states=read_hiding(run / "hiding.key").states))


def take_the_owners(run: Path) -> None:
    place_secrets(run, Hiding(batches=read_hiding(run / "hiding.key").batches))


def leave_the_owners(run: Path) -> None:
    place_secrets(run, Hiding(states=read_hiding(run / "hiding.key").states))


@pytest.mark.parametrize("steps", [4, 8])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lose, "is missing, and the run's commitments are hidden by it"),
        (lose_with_log, "is missing, and the run's commitments are hidden by it"),
        (exchange, "has other secrets than the run goes on with"),
        (exchange_states, "has other secrets than the run goes on with"),
        (exchange_batches, "has other secrets than the run goes on with"),
        (take_the_owners, "has other secrets than the run goes on with"),
        (leave_the_owners, "has other secrets than the run goes on with"),
    ],
)
def test_a_run_without_its_secrets_does_not_go_on(
    tmp_path: Path, task: CompiledTask, spoil: Callable[[Path], None], reason: str, steps: int
) -> None:
    """Nothing is lost: with the file in its place the run goes on."""
    run = tmp_path / "run"
    train(task, run, key=SIGNER, steps=steps)
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    spoil(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=reason) as caught:
        train(task, run, key=SIGNER)
    assert caught.value.where == str(run / "hiding.key")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    for path, data in kept.items():
        path.write_bytes(data)
    assert train(task, run, key=SIGNER).resumed_from == steps


def test_records_now_and_then_tell_the_secrets_too(tmp_path: Path) -> None:
    """Of the last record no state root may be in the log; that of its batch is."""
    task = make_kzg_task(tmp_path / "srs", every=3, steps=12, commit_every=2, checkpoint_every=4)
    run = tmp_path / "run"
    train(task, run, key=SIGNER, steps=4)
    exchange(run)
    with pytest.raises(RunError, match="has other secrets"):
        train(task, run, key=SIGNER)


def test_a_log_that_is_spoilt_is_done_again_with_the_same_secrets(
    run: Path, task: CompiledTask, honest: Path
) -> None:
    (run / "kzg.bin").unlink()
    train(task, run, key=SIGNER)
    assert (run / "kzg.bin").read_bytes() == (honest / "kzg.bin").read_bytes()


def test_the_secret_of_an_owner_hides_the_batches_of_a_run(
    tmp_path: Path, task: CompiledTask
) -> None:
    run = tmp_path / "run"
    train(task, run, key=SIGNER, steps=4, batch_secret=D)
    assert read_hiding(run / "hiding.key").batches == D
    train(task, run, key=SIGNER, steps=6)
    with pytest.raises(RunError, match="has another secret of batches than the one given"):
        train(task, run, key=SIGNER, batch_secret=D[::-1])
    train(task, run, key=SIGNER, batch_secret=D)


def test_a_run_without_commitments_has_no_secrets(tmp_path: Path, task: CompiledTask) -> None:
    plain = replace(task, spec=replace(task.spec, commitments=("blake3",), proof=None), kzg=None)
    train(plain, tmp_path / "run", key=SIGNER, steps=2)
    assert not (tmp_path / "run" / "hiding.key").exists()


def test_keys_are_found_by_kind_and_index_where_they_are_disclosed(task: CompiledTask) -> None:
    proof = task.spec.proof
    assert proof is not None
    state, told = task.initial_state, Hiding(keys=(HidingKey("state", 3, D),))
    finder = KeyFinder(D, proof, task.graph, told)
    assert finder.of_state(3, state) == D
    assert finder.of_state(2, state) is None
    initial = finder.of_state(0, state)
    assert initial is not None
    assert identify_key(initial) == proof.initial_key
    x = np.zeros(3, np.uint8)
    assert finder.of_batch(3, x, x) is None
    finder.hiding = Hiding(batches=D, keys=(HidingKey("batch", 3, D),))
    assert finder.of_batch(3, x, x) not in (None, D), "a secret says more than a key"
