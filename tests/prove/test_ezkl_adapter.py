"""The adapter: the process of its own with its limits, and proofs read strictly."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prove.circuits import LIMITS, Circuit
from vtrain.errors import MissingExtraError, ProofError, ProverError, StorageError, VtrainError
from vtrain.prove.backend.ezkl import (
    CALLS,
    EZKL_VERSION,
    Call,
    CallFailedError,
    Limits,
    Proof,
    ProofShape,
    TimeLimitError,
    encode_element,
    encode_proof,
    open_secret,
    read_proof,
    require_extra,
    run_ezkl,
    secret_path,
    try_ezkl,
    verify_proof,
)
from vtrain.spec.field import SCALAR_FIELD

HASH = Call("poseidon_hash", {"message": [encode_element(1), encode_element(2)]})
SHAPE = ProofShape(4, 2)
PROOF = Proof(bytes([1, 2, 3, 255]), (0, SCALAR_FIELD - 1))

# --- the process


def test_results_come_back_in_order() -> None:
    other = Call("poseidon_hash", {"message": [encode_element(3)]})
    first, second, third = run_ezkl([HASH, other, HASH], LIMITS)
    assert first == third != second
    assert len(bytes.fromhex(first[0])) == 32


@pytest.mark.parametrize("operators", [None, "glibc.malloc.hugetlb=0"])
def test_large_pages_are_asked_for_unless_the_operator_says_otherwise(
    operators: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a name that is there twice, glibc takes the last."""
    seen: list[str] = []

    def start(*_: Any, env: dict[str, str], **__: Any) -> None:
        seen.append(env["GLIBC_TUNABLES"])
        raise OSError("no process")

    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if operators is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", operators)
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(StorageError, match="no process"):
        run_ezkl([HASH], LIMITS)
    (found,) = seen
    assert found.split(":")[-1] == (operators or "glibc.malloc.hugetlb=1")


def test_failed_call_is_named_with_ezkls_words(tmp_path: Path) -> None:
    absent = Call("compile_circuit", {"model": str(tmp_path / "absent")})
    with pytest.raises(CallFailedError, match="RuntimeError: ") as caught:
        run_ezkl([HASH, absent, HASH], LIMITS)
    assert caught.value.where == "compile_circuit"


def test_every_call_is_made_when_failures_are_allowed(tmp_path: Path) -> None:
    absent = Call("compile_circuit", {"model": str(tmp_path / "absent")})
    first, failed, last = try_ezkl([HASH, absent, HASH], LIMITS)
    assert first == last
    assert isinstance(failed, CallFailedError)
    assert failed.where == "compile_circuit"


def test_calls_done_are_told() -> None:
    seen: list[int] = []
    run_ezkl([HASH, HASH, HASH], LIMITS, watch=seen.append)
    assert seen[-1] == 3
    assert seen == sorted(set(seen))


def test_memory_limit_is_never_above_that_of_the_parent() -> None:
    """Where the parent itself is limited to less, that holds."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)); " + (
        "from tests.prove.test_ezkl_adapter import *; print(run_ezkl([HASH], LIMITS))"
    )
    assert LIMITS.memory > 6 << 30
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_wrong_arguments_are_a_typed_error() -> None:
    with pytest.raises(CallFailedError, match="TypeError"):
        run_ezkl([Call("poseidon_hash", {"massage": []})], LIMITS)


def test_unknown_calls_are_refused_before_any_work() -> None:
    assert "get_srs" not in CALLS
    with pytest.raises(ProverError, match="no such call"):
        run_ezkl([Call("__import__", {})], LIMITS)


def test_time_limit_ends_the_process(tmp_path: Path) -> None:
    slow = Call("gen_srs", {"srs_path": str(tmp_path / "big"), "logrows": 20})
    with pytest.raises(
        TimeLimitError, match=r"took more than 0\.5 seconds.*\(--timeout\)"
    ) as caught:
        run_ezkl([slow], Limits(8 << 30, 0.5, threads=1))
    assert caught.value.where == "gen_srs"


def test_memory_limit_ends_the_process(tmp_path: Path) -> None:
    big = Call("gen_srs", {"srs_path": str(tmp_path / "big"), "logrows": 24})
    with pytest.raises(ProverError, match=r"the process died \(SIG") as caught:
        run_ezkl([big], Limits(1 << 30, 120, threads=1))
    assert "memory allocation" in caught.value.message
    assert caught.value.where == "gen_srs"


def test_cancelled_process_ends(tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    slow = Call("gen_srs", {"srs_path": str(tmp_path / "big"), "logrows": 20})
    with pytest.raises(ProverError, match="cancelled"):
        run_ezkl([slow], LIMITS, cancelled=cancelled)


_WAITER = """
import sys
from tests.prove.test_ezkl_adapter import HASH, LIMITS, Call, open_secret, run_ezkl
files = ("model", "compiled_circuit", "settings_path")
stuck = Call("compile_circuit", dict.fromkeys(files, sys.argv[1]))
with open_secret("secret " * 10_000) as secret:
    run_ezkl([HASH, stuck], LIMITS, watch=lambda done: print(done, flush=True), secrets=[secret])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system's own signal, of Linux")
def test_process_ends_with_its_parent_even_a_killed_one(tmp_path: Path) -> None:
    """It is stuck in a call, reading a pipe that nobody writes to, when its parent is killed.  The
    secret that was handed to it is then nowhere."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [sys.executable, "-c", _WAITER, str(pipe)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "1\n", "the first call is done"
            (worker,) = find_children(parent.pid)
            handle = os.pidfd_open(worker)  # a name that no later process can have
        finally:
            parent.kill()
    try:
        ended, _, _ = select.select([handle], [], [], 20)
        assert ended, "it lives on"
        left = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert left, "this is where its files were"
        assert not any(b"secret" in path.read_bytes() for path in left)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def find_children(parent: int) -> list[int]:
    """The processes that ``parent`` started, as the system lists them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # number (name) state parent: the name may hold anything
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def test_a_secret_is_read_by_the_process_that_it_is_for(proven: Circuit, tmp_path: Path) -> None:
    with open_secret(Path(proven.at("witness.json")).read_text()) as secret:
        files = {"witness": secret_path(secret), "proof_path": str(tmp_path / "proof")}
        keys = {"model": proven.at("circuit"), "pk_path": proven.at("pk")}
        call = Call("prove", files | keys | {"srs_path": str(proven.srs)})
        run_ezkl([call], LIMITS, secrets=[secret])
    assert proven.verify(tmp_path / "proof") is True


def test_panic_is_a_typed_error(tmp_path: Path) -> None:
    """halo2 asserts that k is small; the panic takes the process with it."""
    with pytest.raises(ProverError, match="the process died") as caught:
        run_ezkl([Call("gen_srs", {"srs_path": str(tmp_path / "x"), "logrows": 40})], LIMITS)
    assert not isinstance(caught.value, CallFailedError)


# --- the extra


def test_missing_module_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs ezkl: \S+ -m pip install 'vtrain\[zk\]'"):
        run_ezkl([HASH], LIMITS)
    with pytest.raises(MissingExtraError, match="needs py_ecc"):
        require_extra("py_ecc")


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "23.0.6")
    with pytest.raises(MissingExtraError, match=rf"needs ezkl {EZKL_VERSION}, not 23\.0\.6"):
        run_ezkl([HASH], LIMITS)


def test_pin_is_the_same_everywhere(repository: Path) -> None:
    assert f'"ezkl=={EZKL_VERSION}"' in (repository / "pyproject.toml").read_text()
    assert f"\nezkl=={EZKL_VERSION} " in (repository / "requirements-dev.lock").read_text()
    assert metadata.version("ezkl") == EZKL_VERSION


def test_ezkl_is_loaded_in_no_process_of_ours(tmp_path: Path) -> None:
    """Neither by the adapter nor by commands that have no use for it."""
    program = (
        "import sys\n"
        "import vtrain.prove.backend.ezkl, vtrain.prove.backend.srs\n"
        "from vtrain import cli\n"
        "for words in (['srs', 'check', '--help'], ['srs', 'generate', '--k', '1', '--out', "
        "sys.argv[1]], ['verify', '--help'], ['key', '--help']):\n"
        "    assert cli.run(words) == 0\n"
        "print(sorted({'ezkl', 'py_ecc'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "srs"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


# --- proofs


def test_proof_survives_both_ways() -> None:
    assert read_proof(encode_proof(PROOF), SHAPE) == PROOF


def altered(change: Callable[[dict[str, Any]], object]) -> bytes:
    fields = json.loads(encode_proof(PROOF))
    change(fields)
    return json.dumps(fields).encode()


HOSTILE = {
    "empty": (b"", "is not JSON"),
    "not UTF-8": (b'{"proof": "\xff"}', "is not JSON"),
    "deep": (b"[" * 50_000, "nested deeper"),
    "long": (b" " * (1 << 20), "bytes, more than"),
    "huge number": (b'{"proof": [' + b"9" * 5000 + b"]}", "proof: is not a list of bytes"),
    "a list": (b"[]", "is not a JSON object"),
    "no proof": (altered(lambda fields: fields.pop("proof")), "proof: is not a list of bytes"),
    "no instances": (altered(lambda fields: fields.pop("instances")), "instances: is not a list"),
    "a byte more": (altered(lambda fields: fields["proof"].append(0)), "has 5 bytes, not 4"),
    "a byte less": (altered(lambda fields: fields["proof"].pop()), "has 3 bytes, not 4"),
    "a byte of 256": (
        altered(lambda fields: fields.update(proof=[0, 0, 0, 256])),
        "proof: is not a list of bytes",
    ),
    "true for 1": (
        altered(lambda fields: fields.update(proof=[True, 2, 3, 255])),
        "proof: is not a list of bytes",
    ),
    "1.0 for 1": (
        altered(lambda fields: fields.update(proof=[1.0, 2, 3, 255])),
        "proof: is not a list of bytes",
    ),
    "text": (altered(lambda fields: fields.update(proof="0102")), "proof: is not a list of bytes"),
    "two columns": (
        altered(lambda fields: fields["instances"].append([])),
        "instances: is not a list of one list",
    ),
    "an instance more": (
        altered(lambda fields: fields["instances"][0].append(encode_element(1))),
        "has 3 values, not 2",
    ),
    "the field's prime": (
        altered(
            lambda fields: fields["instances"][0].__setitem__(
                1, SCALAR_FIELD.to_bytes(32, "little").hex()
            )
        ),
        "instance 1: is not reduced",
    ),
    "upper case": (
        altered(lambda fields: fields["instances"][0].__setitem__(0, "A" * 64)),
        "instance 0: is not 64 hexadecimal digits",
    ),
    "a number": (
        altered(lambda fields: fields["instances"][0].__setitem__(0, 1)),
        "instance 0: is not 64 hexadecimal digits",
    ),
    "a field twice": (
        encode_proof(PROOF)[:-1] + b', "proof": [1, 2, 3, 4]}',
        "names a field twice",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_proof_is_a_typed_error(name: str) -> None:
    data, message = HOSTILE[name]
    with pytest.raises(ProofError, match=message):
        read_proof(data, SHAPE)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.binary() | st.fixed_dictionaries({"proof": json_values, "instances": json_values}))
def test_garbage_never_ends_in_another_error(value: bytes | dict[str, Any]) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(ProofError):
        read_proof(data, SHAPE)


def test_commitments_are_the_first_bytes() -> None:
    proof = Proof(bytes(range(200)), ())
    assert proof.commitments(2) == (bytes(range(64)), bytes(range(64, 128)))
    assert proof.commitments(0) == ()
    for count in (-1, 4):
        with pytest.raises(ProofError, match="no room"):
            proof.commitments(count)


def test_good_proof_holds_and_other_inputs_do_not(proven: Circuit, tmp_path: Path) -> None:
    proof = read_proof((proven.folder / "proof.json").read_bytes(), ProofShape(3840, 0))
    files = {
        "settings": proven.folder / "settings.json",
        "vk": proven.folder / "vk",
        "srs": proven.srs,
    }
    verdict = verify_proof(proof, **files, limits=LIMITS)
    assert (verdict.holds, verdict.reason) == (True, "")
    more = Proof(proof.data, (1,))
    assert not verify_proof(more, **files, limits=LIMITS).holds
    assert not verify_proof(Proof(b"", ()), **files, limits=LIMITS).holds
    with pytest.raises(StorageError, match="absent"):
        verify_proof(proof, **files | {"vk": tmp_path / "absent"}, limits=LIMITS)


def test_verifier_given_garbage_for_files_says_no_or_dies_alone(
    proven: Circuit, tmp_path: Path
) -> None:
    proof = read_proof((proven.folder / "proof.json").read_bytes(), ProofShape(3840, 0))
    files = {
        "settings": proven.folder / "settings.json",
        "vk": proven.folder / "vk",
        "srs": proven.srs,
    }
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\xff" * 64)
    for name in files:
        try:
            holds = verify_proof(proof, **files | {name: garbage}, limits=LIMITS).holds
        except VtrainError:
            continue
        assert not holds
