"""Only order protects a sample: attacks by solvers that know the seed, and pins that stop them.

Each kind of grinding is shown to work on an auditor who pins nothing: every check passes.  That is
why such a verdict is never "verified".
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import vtrain
from tests.audit.runs import KEY, read_leaves, reason_of, refit_manifest, sign_again, write_leaves
from tests.tasks import make_tiny_task
from vtrain.attest.claims import compute_claim_digest, sign_claim, verify_claim
from vtrain.attest.keys import public_key
from vtrain.audit.pin import make_pin
from vtrain.audit.plan import REPLAY_DOMAIN, draw
from vtrain.audit.verify import verify
from vtrain.demo import cheats
from vtrain.errors import NotProducedError, RunError, SignatureError
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask
from vtrain.wire.claim import Claim, SignedClaim, decode_signed_claim, encode_signed_claim
from vtrain.wire.record import decode_record, encode_record

SEED = b"a seed that the solver knows"
FALSE = 6
"""The false step, which skips its update."""
ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.fixture(scope="session")
def task() -> CompiledTask:
    return make_tiny_task(steps=12, commit_every=1, checkpoint_every=2, samples=10, batch=4)


@pytest.fixture(scope="session")
def honest(task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("honest") / "run"
    train(task, run, key=KEY)
    return run


@pytest.fixture(scope="session")
def false(task: CompiledTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a false step that ``SEED`` draws: only another claim helps its solver."""
    run = tmp_path_factory.mktemp("false") / "run"
    cheats.train_falsely(task, run, key=KEY, cheat=cheats.skip_step, step=FALSE)
    for _ in grind_run_id(run):
        if verify(run, samples=1, seed=SEED).verdict == "fraud":
            break
    return run


def read_claim(run: Path) -> SignedClaim:
    return decode_signed_claim(RunPaths(run).claim.read_bytes())


def claim_anew(run: Path, key: Ed25519PrivateKey = KEY, **changes: bytes) -> None:
    """Sign the run's claim again, with other fields; the manifest follows."""
    paths = RunPaths(run)
    claim = replace(read_claim(run).claim, solver=public_key(key), **changes)  # type: ignore[arg-type]
    manifest = replace(read_manifest(paths), run_id=claim.run_id)
    paths.manifest.write_bytes(encode_manifest(manifest))
    paths.claim.write_bytes(encode_signed_claim(sign_claim(claim, key)))


def sign_with_nonce(claim: Claim, secret: bytes, nonce: bytes) -> SignedClaim:
    """A valid signature (RFC 8032) whose nonce is the signer's choice, not the hash of the message.

    R is the public key of ``nonce``, whose scalar its holder knows as that of any key.
    """

    def expand(seed: bytes) -> int:
        scalar = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
        return (scalar & ((1 << 254) - 8)) | (1 << 254)

    point = public_key(Ed25519PrivateKey.from_private_bytes(nonce))
    message = compute_claim_digest(claim)
    hashed = hashlib.sha512(point + claim.solver + message).digest()
    challenge = int.from_bytes(hashed, "little")
    s = (expand(nonce) + challenge * expand(secret)) % ORDER
    return SignedClaim(claim, point + s.to_bytes(32, "little"))


# --- grinding


def grind_run_id(run: Path) -> Iterator[None]:
    for i in range(1000):
        claim_anew(run, run_id=i.to_bytes(32))
        yield


def grind_key(run: Path) -> Iterator[None]:
    for i in range(1000):
        claim_anew(run, Ed25519PrivateKey.from_private_bytes(i.to_bytes(32)))
        yield


def grind_log(run: Path) -> Iterator[None]:
    """The loss of the false step may be anything: nothing else follows from it."""
    leaves = read_leaves(run)
    record = decode_record(leaves[FALSE - 1])
    for i in range(1, 1000):
        false = encode_record(replace(record, loss=record.loss + i))
        write_leaves(run, [*leaves[: FALSE - 1], false, *leaves[FALSE:]])
        sign_again(run)
        yield


GRINDERS: dict[str, Callable[[Path], Iterator[None]]] = {
    "run id": grind_run_id,
    "key": grind_key,
    "log": grind_log,
}


@pytest.mark.parametrize("name", GRINDERS)
def test_grinding_moves_a_draw_that_is_not_pinned_and_is_refused_by_a_pin(
    false: Path, tmp_path: Path, name: str
) -> None:
    run = Path(shutil.copytree(false, tmp_path / "run"))
    pin = make_pin(compute_claim_digest(read_claim(run).claim))
    kept = make_pin(read_claim(run))
    attempts = 0
    for _ in GRINDERS[name](run):
        attempts += 1
        report = verify(run, samples=1, seed=SEED)
        if report.verdict != "fraud":
            break
    assert attempts < 100
    assert all(check.status == "passed" for check in report.checks), "the attack works"
    assert (report.verdict, report.exit_code, bool(report)) == ("conditional", 4, False)
    assert [item.code for item in report.assumptions] == ["predictable-sample"]
    refused = verify(run, samples=1, seed=SEED, pin=pin)
    assert (refused.verdict, reason_of(refused).name) == ("inconclusive", "claim")
    assert refused.segments == ()
    convicted = verify(run, samples=1, seed=SEED, pin=kept)
    assert convicted.verdict == ("fraud" if name == "log" else "inconclusive")
    assert verify(run, all_=True).verdict == "fraud"


def test_signatures_are_many_and_move_nothing(false: Path, tmp_path: Path) -> None:
    """The finding: with draws over the signature, some twenty of them moved one of six segments."""
    run = Path(shutil.copytree(false, tmp_path / "run"))
    claim, secret = read_claim(run).claim, bytes(range(32))
    digests, encoded = set(), set()
    for i in range(50):
        signed = sign_with_nonce(claim, secret, i.to_bytes(32))
        verify_claim(signed)
        RunPaths(run).claim.write_bytes(encode_signed_claim(signed))
        encoded.add(encode_signed_claim(signed))
        digests.add(compute_claim_digest(read_claim(run).claim))
        assert verify(run, samples=1, seed=SEED).verdict == "fraud"
    assert (len(encoded), len(digests)) == (50, 1)
    moved = {draw(SEED, hashlib.sha256(item).digest(), REPLAY_DOMAIN, 6, 1) for item in encoded}
    assert len(moved) == 6, "without the defence every segment can be had"


# --- pins


def test_a_seed_needs_a_pin_unless_it_leaves_nothing_out(honest: Path) -> None:
    pin = make_pin(read_claim(honest))
    loose = verify(honest, samples=2, seed=SEED)
    assert (loose.verdict, loose.exit_code) == ("conditional", 4)
    tied = verify(honest, samples=2, seed=SEED, pin=pin)
    assert (tied.verdict, tied.assumptions) == ("verified", ())
    assert tied.segments == loose.segments
    assert any("the one that was pinned" in line for line in tied.strength.checked)
    assert any("pinned before the seed existed" in line for line in tied.strength.unchecked)
    assert verify(honest, samples=2).verdict == "verified", "fresh, of what is at hand"
    assert verify(honest, samples=6, seed=SEED).verdict == "verified", "nothing is left out"
    assert verify(honest, all_=True, seed=SEED).verdict == "verified"
    assert verify(honest, samples=0, seed=SEED).verdict == "verified", "nothing is drawn"


def test_a_pin_is_a_digest_a_file_or_a_claim(honest: Path, tmp_path: Path) -> None:
    signed = read_claim(honest)
    digest = compute_claim_digest(signed.claim)
    kept = tmp_path / "kept"
    shutil.copy(RunPaths(honest).claim, kept)
    assert make_pin(digest) == make_pin(digest.hex()) == make_pin(f"0x{digest.hex()}")
    assert make_pin(kept) == make_pin(str(kept)) == replace(make_pin(signed), source=kept)
    for claim in (digest, digest.hex(), kept, str(kept)):
        assert vtrain.verify(honest, samples=1, seed=SEED, claim=claim)
    with pytest.raises(RunError, match="a digest has 32 bytes, not 31"):
        make_pin(digest[1:])
    with pytest.raises(RunError, match="neither the 64 hexadecimal digits"):
        make_pin("c0ffee")
    with pytest.raises(NotProducedError):
        make_pin(tmp_path / "none")
    kept.write_bytes(encode_signed_claim(replace(signed, signature=bytes(64))))
    with pytest.raises(SignatureError):
        make_pin(kept)


def test_a_run_that_went_on_is_told_from_one_that_was_rewritten(
    task: CompiledTask, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(task, run, key=KEY, steps=4)
    early = make_pin(read_claim(run))
    train(task, run, key=KEY)
    late = make_pin(read_claim(run))
    report = verify(run, pin=early)
    assert (report.verdict, "went on from that one" in reason_of(report).detail) == (
        "inconclusive",
        True,
    )
    leaves = read_leaves(run)
    false = encode_record(replace(decode_record(leaves[1]), loss=7))
    rewritten = Path(shutil.copytree(run, tmp_path / "rewritten"))
    write_leaves(rewritten, [leaves[0], false, *leaves[2:]])
    sign_again(rewritten)
    report = verify(rewritten, pin=early)
    assert (report.verdict, reason_of(report).where) == ("fraud", "claim.cbor")
    assert "does not go on from that of 4 steps" in reason_of(report).detail
    assert verify(rewritten, pin=late).verdict == "fraud"
    # A log that is lost, and a claim that is older, show nothing against anyone.
    RunPaths(rewritten).log.unlink()
    report = verify(rewritten, pin=early)
    assert (report.verdict, "cannot be told" in reason_of(report).detail) == ("inconclusive", True)
    write_leaves(run, leaves[:4])
    sign_again(run)
    report = verify(run, pin=late)
    assert (report.verdict, "it has 4 steps, that one 12" in reason_of(report).detail) == (
        "inconclusive",
        True,
    )


def test_two_claims_of_one_size_contradict_each_other_without_a_log(
    honest: Path, tmp_path: Path
) -> None:
    """Who signs two logs of one run cannot hide behind not producing either."""
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    kept = make_pin(read_claim(run))
    claim_anew(run, log_root=bytes(32))
    RunPaths(run).log.unlink()
    report = verify(run, pin=kept)
    assert (report.verdict, reason_of(report).where) == ("fraud", "claim.cbor")
    assert "both of 12 steps" in reason_of(report).detail


def test_the_solver_asked_for_is_the_one_who_signed(honest: Path, false: Path) -> None:
    """A stranger's fraud, put in place of an honest run, convicts nobody whom one asked about."""
    report = verify(honest, solver=public_key(KEY))
    assert report.verdict == "verified"
    assert any("signed by the key asked for" in line for line in report.strength.checked)
    other = public_key(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    for run in (honest, false):
        report = verify(run, solver=other, all_=True)
        assert (report.verdict, reason_of(report).name) == ("inconclusive", "claim")
    with pytest.raises(RunError, match="needs 32 bytes"):
        verify(honest, solver=b"me")


def test_refitting_is_no_part_of_a_claim(honest: Path, tmp_path: Path) -> None:
    """The manifest and files that belong to no run may differ under one pin."""
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    (run / "note.txt").write_text("hello")
    refit_manifest(run)
    assert verify(run, samples=1, seed=SEED, pin=make_pin(read_claim(honest)))


def test_a_file_of_the_run_itself_pins_nothing(false: Path, tmp_path: Path) -> None:
    """Its solver made it, after the seed if it likes: with it a false run was VERIFIED."""
    run = Path(shutil.copytree(false, tmp_path / "run"))
    for _ in grind_run_id(run):
        if verify(run, samples=1, seed=SEED).verdict == "conditional":
            break
    link, hard = tmp_path / "link", tmp_path / "hard"
    link.symlink_to(RunPaths(run).claim)
    hard.hardlink_to(RunPaths(run).claim)
    (run / "mine.cbor").write_bytes(RunPaths(run).claim.read_bytes())
    for source in (RunPaths(run).claim, link, hard, run / "mine.cbor"):
        with pytest.raises(RunError, match="is a file of the run: it pins nothing"):
            vtrain.verify(run, samples=1, seed=SEED, claim=source)
    copy = tmp_path / "copy"
    shutil.copy(RunPaths(run).claim, copy)
    assert vtrain.verify(run, samples=1, seed=SEED, claim=copy), "as the auditor's own word"
