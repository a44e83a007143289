"""Audits of sampled tiles from a run's files: whatever stands there ends in a report.

Proofs are stand-ins, as in ``test_trace``; columns are shorter than tile circuits need.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.audit.runs import KEY, failed, read_kzg_leaves, sign_again, write_kzg_leaves
from tests.kzg import SECRET, add_kzg, make_key, make_srs_fixture, place_secrets
from tests.prove.steps import uncounted
from tests.prove.test_audit import PUBLIC
from tests.prove.test_trace import OTHER, make_proof, verify_proof
from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.attest.keys import public_key
from vtrain.audit.pin import Pin, make_pin
from vtrain.demo.cheats import skip_step, train_falsely
from vtrain.errors import CircuitError, RunError, SignatureError, StorageError, VtrainError
from vtrain.limits import Limits as Bounds
from vtrain.prove import audit as audit_module
from vtrain.prove.audit import ProofAudit, verify_proofs
from vtrain.prove.backend.ezkl import Limits
from vtrain.prove.backend.keys import Keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, pin
from vtrain.prove.backend.srs import Progress
from vtrain.prove.batches import sign_batches
from vtrain.prove.circuit.values import Ints
from vtrain.prove.proof_files import Item, write_proof_file
from vtrain.prove.runs import StepDiffersError, read_run
from vtrain.prove.setup import ProofSetup
from vtrain.prove.tiles import prover as tile_prover
from vtrain.prove.tiles import verifier as tile_verifier
from vtrain.prove.tiles.circuits import TILE_K, build_tile_circuit
from vtrain.prove.tiles.protocol import compute_trace_claim_digest, draw_statements, draw_steps
from vtrain.prove.tiles.prover import TileProver
from vtrain.prove.tiles.ready import TileCircuits
from vtrain.prove.tiles.statements import TileStatement
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.tiles.verifier import TracePin, read_traces, traces_path
from vtrain.prove.verifier import commit_given
from vtrain.report.json import report_to_dict
from vtrain.report.terminal import print_report
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.signed import read_claim
from vtrain.train.task import CompiledTask
from vtrain.wire import structs
from vtrain.wire.proof import CircuitPin, decode_kzg_record, encode_kzg_record
from vtrain.wire.report import Report
from vtrain.wire.task import TaskSpec
from vtrain.wire.tiles import SignedTraceClaim, TileProof, TileTrace

K = 15
"""The least at which a column holds a tile."""
FIRST, SECOND = b"first", b"second"
STEPS, DRAWN, SAMPLES = 4, 2, 12
LIMITS = Limits(memory=16 << 30, seconds=600, threads=1)
MEMORY = 12 << 30


class FakeCircuits(TileCircuits):
    """Tile circuits whose proofs are hashes of all that a proof is bound to."""

    def prove(
        self,
        statement: TileStatement,
        given: Mapping[str, Ints],
        hiding: Mapping[str, Sequence[int]],
        count: Callable[[], None],
        *others: Any,
        **options: Any,
    ) -> bytes:
        count()
        return make_proof(statement, commit_given(self._key, given, hiding))

    def verify(
        self,
        statement: TileStatement,
        expected: Mapping[str, bytes],
        proof: bytes,
        progress: Progress = lambda what, done, total: None,
    ) -> Any:
        progress("keys", 0, 1)
        return verify_proof(statement, expected, proof)


def fake_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    for side in (tile_prover, tile_verifier):
        monkeypatch.setattr(side, "TileCircuits", FakeCircuits)
    monkeypatch.setattr(audit_module, "require_extra", lambda *modules: None)


_fake = pytest.fixture(autouse=True)(fake_circuits)


srs = make_srs_fixture()


def make_task(srs: Path, every: int = 1, **proof: Any) -> CompiledTask:
    task = make_tiny_task(steps=STEPS, commit_every=1, checkpoint_every=2, samples=10, batch=4)
    task = add_kzg(task, make_key(srs, K), every, "tiles")
    assert task.spec.proof is not None
    return replace(task, spec=replace(task.spec, proof=replace(task.spec.proof, **proof)))


def make_setup(task: TaskSpec, srs: Path) -> ProofSetup:
    return ProofSetup.for_task(task, srs, srs.parent / "cache", LIMITS, MEMORY)


def open_prover(run: Path, srs: Path) -> TileProver:
    signed = read_run(run)
    return TileProver(signed, make_setup(signed.task, srs), engine="numpy")


def answer(run: Path, srs: Path, first: bytes, second: bytes, steps: int, samples: int) -> Path:
    """Claim traces and put the proofs of what is drawn into ``run``."""
    prover = open_prover(run, srs)
    prover.claim_traces(first, steps, KEY)
    for statement in prover.statements(read_traces(run), second, samples):
        write_proof_file(run, statement, prover.prove(statement, uncounted))
    return run


@pytest.fixture(scope="module")
def task(srs: Path) -> CompiledTask:
    return make_task(srs)


@pytest.fixture(scope="module")
def trained(task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without proofs.  Tests copy it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    train(task, run, key=KEY, engine="numpy", batch_secret=SECRET)
    return run


@pytest.fixture(scope="module")
def whole(trained: Path, srs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, the draws answered.  Tests copy it."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        fake_circuits(patch)
        return answer(run, srs, FIRST, SECOND, DRAWN, SAMPLES)


@pytest.fixture
def public(whole: Path, tmp_path: Path) -> Path:
    """What a private auditor has."""
    return publish(whole, tmp_path / "public")


def publish(run: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in PUBLIC:
        shutil.copy(run / name, folder / name)
    shutil.copytree(run / "proofs", folder / "proofs")
    return folder


def pins_of(run: Path) -> dict[str, Any]:
    """The pins of an auditor who had kept both claims that lie in the run, if they are any."""
    pins: dict[str, Any] = {}
    with suppress(VtrainError):
        pins["pin"] = make_pin(read_claim(RunPaths(run)))
        traces = read_traces(run)
        pins["trace_pin"] = TracePin(compute_trace_claim_digest(traces.trace_claim), traces)
    return pins


def audit(run: Path, srs: Path, *listeners: Progress, **options: Any) -> Report:
    def tell(what: str, done: int, total: int) -> None:
        for listener in listeners:
            listener(what, done, total)

    wanted: dict[str, Any] = {
        "traces": (FIRST, DRAWN),
        "seed": SECOND,
        "sample": SAMPLES,
        "private": True,
        "allow_insecure_srs": True,
        **pins_of(run),
        **options,
    }
    asked = ProofAudit(lambda task: make_setup(task, srs), **wanted)
    return verify_proofs(run, asked, progress=tell)


def check_refused(report: Report, detail: str) -> None:
    (found,) = failed(report)
    assert (found.name, found.fault) == ("tiles", "nobody")
    assert detail in found.detail
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)
    assert not any("escapes" in line for line in report.strength.checked)


def first_proof(run: Path) -> Path:
    return min((run / "proofs").glob("tile-*"))


# --- what a verdict says


def test_an_honest_answer_is_verified_and_says_what_it_rests_on(public: Path, srs: Path) -> None:
    told: list[str] = []
    report = audit(public, srs, lambda what, done, total: told.append(what))
    assert "keys" in told, "the circuits tell what they do"
    assert (report.verdict, report.exit_code) == ("verified", 0)
    assert report.randomness is not None
    assert (report.randomness.value, report.randomness.predictable) == (SECOND, False)
    assert report.checks[-1].detail == f"all {SAMPLES} statements drawn are shown"
    check_first_draw(report, public)
    digest = compute_trace_claim_digest(read_traces(public).trace_claim).hex()
    assert f"the trace claim is the one pinned, {digest}" in report.strength.checked
    for words in (
        "whether the claim was pinned before the seed existed",
        "whether the trace claim was pinned before the second seed existed",
        f"the arithmetic of {STEPS - DRAWN} steps that were not drawn; of them {STEPS - DRAWN}",
        "KZG and BLAKE3 roots were not compared",
        "where the batches came from",
    ):
        assert any(words in line for line in report.strength.unchecked), words


def check_first_draw(report: Report, run: Path) -> None:
    """Which steps, and what drew them, for people and for programs."""
    steps = draw_steps(FIRST, read_run(run).signed.claim, 1, DRAWN)
    traced = report_to_dict(report)["traced"]
    assert traced["steps"] == [*steps]
    assert traced["randomness"]["value"] == FIRST.hex()
    assert not traced["randomness"]["predictable"], "the claim was pinned before"
    console = Console(record=True, width=200, file=io.StringIO())
    print_report(report, console)
    said = console.export_text()
    given, named = (
        "drawn with a seed that was given, for the claim that was pinned before:\n",
        ", ".join(map(str, steps)),
    )
    assert f"\nSteps traced: {named}; {given}  {FIRST.hex()}\n" in said
    assert f"\nOf the traces {given}  {SECOND.hex()}\n" in said


def test_the_draws_are_told_where_nothing_is_shown(public: Path, srs: Path) -> None:
    first_proof(public).unlink()
    report = audit(public, srs)
    assert report.verdict == "inconclusive"
    check_first_draw(report, public)


def test_both_draws_need_a_pin(public: Path, srs: Path) -> None:
    """Who knows a seed while it can still change what is drawn chooses the sample."""
    pins = pins_of(public)
    for missing in ("pin", "trace_pin"):
        report = audit(public, srs, **{missing: None})
        assert (report.verdict, report.exit_code) == ("conditional", 4)
        assert [item.code for item in report.unaccepted] == ["predictable-sample"]
    digest = pins["trace_pin"].digest
    assert audit(public, srs, trace_pin=TracePin(digest)).verdict == "verified"
    report = audit(public, srs, trace_pin=TracePin(b"\1" * 32))
    check_refused(report, f"is the trace claim {digest.hex()}, not {'01' * 32} as pinned")
    report = audit(public, srs, pin=Pin(b"\1" * 32))
    assert (report.verdict, [check.name for check in failed(report)]) == ("inconclusive", ["claim"])


def test_traces_ground_after_the_second_seed_are_refused_and_convict(
    public: Path, srs: Path
) -> None:
    """Whoever knows the second seed makes trace claims until nothing false is drawn: with as many
    roots as it likes, each of which moves the draw."""
    pins = pins_of(public)
    tiling = Tiling(read_run(public).graph)
    traces = read_traces(public).trace_claim.traces
    drawn = set()
    for i in range(50):
        sign(public, traces=(replace(traces[0], root=i.to_bytes(32)), *traces[1:]))
        said = read_traces(public).trace_claim
        drawn.add(tuple(index for _, index in draw_statements(SECOND, said, tiling, SAMPLES)))
        report = audit(public, srs, **{**pins, "trace_pin": TracePin(pins["trace_pin"].digest)})
        check_refused(report, "as pinned")
        report = audit(public, srs, **pins)
        assert (report.verdict, report.exit_code) == ("fraud", 10)
        assert "with two traces of step" in failed(report)[0].detail
    assert len(drawn) == 50, "without the defence the draw moves as the solver likes"


def test_trace_claims_of_other_steps_contradict_nothing(public: Path, srs: Path) -> None:
    pins = pins_of(public)
    sign(public, traces=read_traces(public).trace_claim.traces[:1], randomness=b"another draw")
    check_refused(audit(public, srs, **pins), "as pinned")


def _unchecked(report: Report) -> tuple[str, ...]:
    return report.strength.unchecked


def test_more_samples_than_statements_are_all_of_them(
    trained: Path, tmp_path: Path, srs: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    answer(run, srs, FIRST, SECOND, 10**6, 10**6)
    report = audit(run, srs, traces=(FIRST, 10**6), sample=10**6)
    assert report.verdict == "verified"
    count = STEPS * len(open_prover(run, srs).tiling)
    assert report.checks[-1].detail == f"all {count} statements drawn are shown"
    assert any(f"escapes {count} samples with probability 0;" in x for x in report.strength.checked)
    assert not any("not drawn;" in line for line in _unchecked(report))


@pytest.mark.parametrize(("every", "logged"), [(2, 2), (3, 1)])
def test_steps_without_commitments_are_not_drawn_and_counted(
    tmp_path: Path, srs: Path, every: int, logged: int
) -> None:
    run = tmp_path / "run"
    train(make_task(srs, every), run, key=KEY, engine="numpy", batch_secret=SECRET)
    answer(run, srs, FIRST, SECOND, DRAWN, 3)
    assert {trace.step for trace in read_traces(run).trace_claim.traces} <= {2, 4, 3}
    report = audit(run, srs, sample=3)
    assert report.verdict == "verified"
    assert any(
        f"{STEPS - logged} steps that were not drawn; of them 0 have" in x
        for x in _unchecked(report)
    )


# --- a solver that is wrong


def test_traces_of_a_step_that_was_not_logged_are_not_signed(
    task: CompiledTask, tmp_path: Path, srs: Path
) -> None:
    """The checkpoint after a false step is that of the log: only doing the step shows it."""
    run = tmp_path / "run"
    train_falsely(task, run, key=KEY, cheat=skip_step, step=2, engine="numpy")
    prover = open_prover(run, srs)
    with pytest.raises(
        StepDiffersError, match="step 2: was done again, and is not the step logged"
    ):
        prover.claim_traces(FIRST, STEPS, KEY)
    assert not traces_path(run).exists()
    prover.trace(3)


def test_traces_hidden_by_other_secrets_are_not_signed(
    trained: Path, tmp_path: Path, srs: Path
) -> None:
    """They would be other traces of the same steps, which convict whoever signs both."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    kept = (run / "hiding.key").read_bytes()
    place_secrets(run)
    prover = open_prover(run, srs)
    for work in (lambda: prover.claim_traces(FIRST, STEPS, KEY), lambda: prover.trace(3)):
        with pytest.raises(RunError, match="follows from other secrets") as caught:
            work()
        assert caught.value.where == str(run / "hiding.key")
    assert not traces_path(run).exists()
    (run / "hiding.key").write_bytes(kept)
    open_prover(run, srs).trace(3)


# --- draws


def test_one_seed_for_both_draws_is_a_bad_argument(public: Path, srs: Path) -> None:
    with pytest.raises(RunError, match="seed: is that of the first draw"):
        audit(public, srs, seed=FIRST)


def test_a_solver_does_not_answer_one_seed_twice(whole: Path, srs: Path) -> None:
    with pytest.raises(RunError, match="seed: is that of the first draw"):
        open_prover(whole, srs).statements(read_traces(whole), FIRST, 3)


@pytest.mark.parametrize("missing", ["traces", "seed", "sample"])
def test_both_draws_are_needed(public: Path, srs: Path, missing: str) -> None:
    with pytest.raises(RunError, match="needs the randomness and sizes of both draws"):
        audit(public, srs, **{missing: None})


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"sample": 0}, "no statement is drawn"),
        ({"sample": SAMPLES + 1}, "the file is missing"),
        ({"seed": b"another"}, "the file is missing"),
        ({"traces": (b"another", DRAWN)}, "not of the steps drawn"),
        ({"traces": (FIRST, DRAWN + 1)}, "not of the steps drawn"),
        ({"traces": (FIRST, 1)}, "not of the steps drawn"),
        ({"traces": (FIRST, 0)}, "not of the steps drawn"),
        ({"sample": -1}, "cannot draw -1"),
    ],
)
def test_other_draws_are_not_answered(
    public: Path, srs: Path, changed: dict[str, Any], detail: str
) -> None:
    check_refused(audit(public, srs, **changed), detail)


def test_a_first_draw_that_is_none(public: Path, srs: Path) -> None:
    for traces in ((FIRST, -1), (b"", DRAWN), (bytes(65), DRAWN)):
        with pytest.raises(RunError, match=r"cannot draw -1|1 to 64 bytes"):
            audit(public, srs, traces=traces)


def test_a_prefix_of_the_draw_is_answered(public: Path, srs: Path) -> None:
    report = audit(public, srs, sample=SAMPLES - 5)
    assert report.verdict == "verified"
    assert any(f"escapes {SAMPLES - 5} samples" in line for line in report.strength.checked)


# --- hostile trace claims


def sign(run: Path, key: Any = KEY, **changes: Any) -> None:
    """Replace the trace claim of ``run`` by an altered one."""
    said = replace(read_traces(run).trace_claim, **changes)
    signature = key.sign(compute_trace_claim_digest(said))
    traces_path(run).write_bytes(structs.encode(SignedTraceClaim(said, signature)))


def _other_steps(found: tuple[TileTrace, ...]) -> tuple[TileTrace, ...]:
    taken = {trace.step for trace in found}
    left = next(step for step in range(1, STEPS + 1) if step not in taken)
    return (replace(found[0], step=left), *found[1:])


@pytest.mark.parametrize(
    ("alter", "detail"),
    [
        (_other_steps, "not of the steps drawn"),
        (lambda found: (), "not of the steps drawn"),
        (lambda found: found[::-1], "not of the steps drawn"),
        (lambda found: (*found, found[0]), "not of the steps drawn"),
        (lambda found: (replace(found[0], count=found[0].count + 1), *found[1:]), "tiles, not"),
    ],
)
def test_a_solver_does_not_choose_the_traces(
    public: Path,
    srs: Path,
    alter: Callable[[tuple[TileTrace, ...]], tuple[TileTrace, ...]],
    detail: str,
) -> None:
    sign(public, traces=alter(read_traces(public).trace_claim.traces))
    report = audit(public, srs)
    # What is drawn depends on the trace claim: the proofs there are mostly of other statements.
    (found,) = failed(report)
    assert report.verdict == "inconclusive"
    assert detail in found.detail or found.detail == "the file is missing"


def test_traces_claimed_anew_change_what_is_drawn(public: Path, srs: Path) -> None:
    found = read_traces(public).trace_claim.traces
    sign(public, traces=(replace(found[0], root=b"\5" * 32), *found[1:]))
    check_refused(audit(public, srs), "the file is missing")


def test_traces_are_of_this_claim_and_signed_by_its_solver(
    public: Path, srs: Path, whole: Path
) -> None:
    sign(public, key=OTHER)
    check_refused(audit(public, srs), "signature")
    shutil.copy(traces_path(whole), traces_path(public))
    sign(public, claim=b"\3" * 32)
    check_refused(audit(public, srs), "is of another claim")


# --- hostile files


def _put(data: bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(data)

    return put


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _long(path: Path) -> None:
    os.truncate(path, 1 << 40)


SPOILED: list[tuple[Callable[[Path], None], str]] = [
    (Path.unlink, "the file is missing"),
    (_fifo, "is not a regular file"),
    (_folder, "is not a regular file"),
    (_loop, "is taken as it lies"),
    (_device, "is not a regular file"),
    (_long, "more than"),
    (_put(b""), ""),
    (_put(b"\x81" * 60_000), ""),
    (_put(b"\xa1\x61a" * 60_000), ""),
    (_put(b"\x9b" + b"\xff" * 8), ""),
    (_put(b"\x5b\x00\x00\x00\xff\xff\xff\xff\xff"), ""),
    (_put(b"\xa0"), ""),
    (_put(b"\xff" * 1000), ""),
]


@pytest.mark.parametrize(("spoil", "detail"), SPOILED)
@pytest.mark.parametrize("find", [traces_path, first_proof])
def test_spoiled_files_end_in_a_report(
    public: Path,
    srs: Path,
    find: Callable[[Path], Path],
    spoil: Callable[[Path], None],
    detail: str,
) -> None:
    spoil(find(public))
    report = audit(public, srs)
    check_refused(report, detail)
    assert not failed(report)[0].where.startswith("/")


@pytest.mark.parametrize("find", [traces_path, first_proof])
def test_every_other_byte_of_a_file_counts(
    public: Path, srs: Path, find: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read_run(public)
    setup = make_setup(run.task, srs)
    key = setup.open_key()
    monkeypatch.setattr(ProofSetup, "open_key", lambda self: key)
    path = find(public)
    data = path.read_bytes()
    for at in [*range(0, len(data), max(len(data) // 20, 1)), len(data) - 1]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        report = audit(public, srs)
        assert report.verdict == "inconclusive", at
    path.write_bytes(data + b"\0")
    check_refused(audit(public, srs), "")


def test_proofs_that_are_too_long_together_are_not_held_in_memory(
    public: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(path.stat().st_size for path in (public / "proofs").glob("tile-*"))
    monkeypatch.setattr(tile_verifier, "LIMITS", Bounds(answer_bytes=total))
    assert audit(public, srs).verdict == "verified"
    monkeypatch.setattr(tile_verifier, "LIMITS", Bounds(answer_bytes=total - 1))
    check_refused(audit(public, srs), f"more than {total - 1} bytes together")


def test_a_proof_of_another_statement_is_refused(public: Path, srs: Path) -> None:
    first, *others = sorted((public / "proofs").glob("tile-*"))
    own = structs.decode(TileProof, first.read_bytes(), "it")
    # What sums show of the same tiles has no proof that could be another's.
    proofs = (structs.decode(TileProof, path.read_bytes(), "it") for path in others)
    said = next(it for it in proofs if (it.openings, it.proof) != (own.openings, own.proof))
    first.write_bytes(structs.encode(said))
    check_refused(audit(public, srs), "not of the statements drawn")
    first.write_bytes(structs.encode(replace(said, step=own.step, statement=own.statement)))
    report = audit(public, srs)
    (found,) = failed(report)
    assert found.name == "tiles"


def test_swapped_openings_are_refused(public: Path, srs: Path) -> None:
    for path in sorted((public / "proofs").glob("tile-*")):
        proof = structs.decode(TileProof, path.read_bytes(), "it")
        if len(proof.openings) > 1:
            break
    a, b = proof.openings[:2]
    swapped = (replace(a, index=b.index), replace(b, index=a.index))[::-1]
    path.write_bytes(structs.encode(replace(proof, openings=swapped + proof.openings[2:])))
    check_refused(audit(public, srs), "is not in the trace")
    path.write_bytes(structs.encode(replace(proof, openings=proof.openings[::-1])))
    check_refused(audit(public, srs), "other tiles are opened")


# --- the logs


def test_a_log_of_other_commitments_does_not_fit_the_traces(
    whole: Path, tmp_path: Path, srs: Path
) -> None:
    """The solver logs another batch from the start: its traces are of another claim then, and
    claimed anew they do not agree with the log."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    other = make_key(srs, K).zero
    leaves = [decode_kzg_record(leaf) for leaf in read_kzg_leaves(run)]
    altered = [replace(record, batch=(other,) * len(record.batch)) for record in leaves]
    write_kzg_leaves(run, [encode_kzg_record(record) for record in altered])
    sign_again(run)
    shutil.rmtree(run / "proofs")
    answer(run, srs, FIRST, SECOND, DRAWN, 10**6)
    check_refused(audit(run, srs, sample=10**6), "")


def test_a_missing_kzg_log_is_not_guessed(public: Path, srs: Path) -> None:
    (public / "kzg.bin").unlink()
    report = audit(public, srs)
    assert report.verdict == "inconclusive"
    assert any(c.name == "tiles" and "no signed commitments" in c.detail for c in failed(report))


def test_batches_are_compared_with_those_that_the_owner_signed(
    public: Path, srs: Path, task: CompiledTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = sign_batches(task.spec, task.graph, task.samples, make_key(srs, K), OTHER, SECRET)
    options: dict[str, Any] = {"batches": signed, "owner": public_key(OTHER)}
    report = audit(public, srs, **options)
    assert report.verdict == "verified"
    assert any("are those that the data's owner signed" in x for x in report.strength.checked)
    forged = replace(signed, commitments=signed.commitments[::-1])
    monkeypatch.setattr(audit_module, "verify_batches", lambda *others: None)
    options["batches"] = forged
    report = audit(public, srs, **options)
    (found,) = failed(report)
    assert (found.name, report.verdict) == ("owner", "inconclusive")
    assert "not the one that its owner signed" in found.detail


# --- circuits


def make_circuits(task: CompiledTask, srs: Path, k: int = TILE_K, **changes: Any) -> TileCircuits:
    assert task.spec.proof is not None
    proof = replace(task.spec.proof, k=k, **changes)
    setup = ProofSetup(proof, srs, srs.parent / "cache", LIMITS, MEMORY)
    return TileCircuits(setup, CommitKey(srs, K, BLINDING), b"", proving=False)


def test_circuits_are_those_that_the_task_pins(
    task: CompiledTask, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(pinned: Any, *others: Any, **options: Any) -> Keys:
        return Keys(srs.parent, pinned.digest, b"\2" * 32, b"\7" * 32, 1000)

    monkeypatch.setattr("vtrain.prove.setup.load_verifying_key", load)
    digest = pin(build_tile_circuit("square"), TILE_K).digest
    good = {"square": CircuitPin(digest, b"\7" * 32)}
    assert make_circuits(task, srs).ready("square").pinned.digest == digest
    assert make_circuits(task, srs, circuits=good).ready("square").pinned.digest == digest
    for circuits, message in (
        ({"square": CircuitPin(b"\1" * 32, b"\7" * 32)}, "is not the circuit that the task pins"),
        ({"square": CircuitPin(digest, b"\6" * 32)}, "its key is not the one that the task pins"),
        ({"gate": good["square"]}, "is none that the task pins"),
    ):
        with pytest.raises(CircuitError, match=message):
            make_circuits(task, srs, circuits=circuits).ready("square")
    with pytest.raises(CircuitError, match="needs more than one column"):
        make_circuits(task, srs, k=TILE_K - 1).ready("range-1")
    with pytest.raises(CircuitError, match="GiB are allowed"):
        make_circuits(task, srs, k=28).ready("square")


def test_circuits_that_cannot_be_had_end_in_a_report(
    public: Path, srs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real ones, whichever is drawn first: the columns here are too short for their table; and
    for those without a table there is no memory."""
    for side in (tile_prover, tile_verifier):
        monkeypatch.setattr(side, "TileCircuits", TileCircuits)
    monkeypatch.setattr(f"{__name__}.MEMORY", 1)
    report = audit(public, srs)
    (found,) = failed(report)
    words = ("entries needs more than one column", "GiB are allowed")
    check_refused(report, next(word for word in words if word in found.detail))


def test_another_number_of_blinding_factors_ends_in_a_report(
    public: Path, srs: Path, monkeypatch: pytest.MonkeyPatch, task: CompiledTask
) -> None:
    assert task.spec.proof is not None
    proof = replace(task.spec.proof, blinding=BLINDING + 1)
    monkeypatch.setattr(
        ProofSetup, "for_task", lambda *others: ProofSetup(proof, srs, srs.parent, LIMITS, MEMORY)
    )
    check_refused(audit(public, srs), f"circuits have {BLINDING} blinding factors")


# --- the solver


def test_traces_are_claimed_once(trained: Path, tmp_path: Path, srs: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    prover = open_prover(run, srs)
    claimed = prover.claim_traces(FIRST, 1, KEY)
    assert prover.claim_traces(FIRST, 1, KEY) == claimed == read_traces(run)
    for randomness, count in ((FIRST, 2), (SECOND, 1)):
        with pytest.raises(RunError, match="has claimed other traces already"):
            prover.claim_traces(randomness, count, KEY)
    assert read_traces(run) == claimed


def test_the_key_is_looked_at_before_tiles_are_committed_to(trained: Path, srs: Path) -> None:
    told: list[str] = []
    with pytest.raises(SignatureError, match="is not the solver's"):
        open_prover(trained, srs).claim_traces(FIRST, 1, OTHER, lambda what, *_: told.append(what))
    assert told == []


def test_a_run_that_takes_no_files_is_an_error_of_storage(
    trained: Path, tmp_path: Path, srs: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "proofs").write_bytes(b"")
    with pytest.raises(StorageError, match="proofs"):
        open_prover(run, srs).claim_traces(FIRST, 1, KEY)


def test_what_is_no_statement_of_the_run_is_not_proven(whole: Path, srs: Path) -> None:
    prover = open_prover(whole, srs)
    with pytest.raises(RunError, match=f"the steps 1 to {STEPS}"):
        prover.prove(Item("tile", STEPS + 1, 0), uncounted)
    with pytest.raises(CircuitError, match=f"there are {len(prover.tiling)}"):
        prover.prove(Item("tile", 1, len(prover.tiling)), uncounted)
    with pytest.raises(CircuitError, match="no statement about tiles"):
        prover.prove(Item("step", 1), uncounted)


def test_a_prover_keeps_few_steps(whole: Path, srs: Path) -> None:
    prover = open_prover(whole, srs)
    traces = {step: prover.trace(step).trace for step in range(1, STEPS + 1)}
    assert len(prover._traces) == 2
    assert prover.trace(STEPS) is prover.trace(STEPS)
    assert prover.trace(1).trace == traces[1]
    asked = prover.statements(read_traces(whole), SECOND, SAMPLES)
    assert [item.step for item in asked] == sorted(item.step for item in asked)


# --- the command


def test_the_command_pins_both_claims(
    public: Path, srs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["claim", str(public), "--out", str(tmp_path / "kept"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["trace_claim"] == pins_of(public)["trace_pin"].digest.hex()
    traces = tmp_path / "traces"
    shutil.copy(traces_path(public), traces)
    arguments = ["verify", str(public), "--mode", "proof", "--private", "--srs", str(srs)]
    arguments += ["--trace-seed", FIRST.hex(), "--trace-samples", str(DRAWN)]
    arguments += ["--seed", SECOND.hex(), "--samples", str(SAMPLES), "--allow-insecure-srs"]
    assert cli.run(arguments) == 4
    for claim in (shown["claim"], str(tmp_path / "kept")):
        assert cli.run([*arguments, "--claim", claim]) == 4
        for claimed, code in ((shown["trace_claim"], 0), (str(traces), 0), ("11" * 32, 3)):
            assert cli.run([*arguments, "--claim", claim, "--trace-claim", claimed]) == code
    assert cli.run([*arguments, "--claim", "11" * 32]) == 3
