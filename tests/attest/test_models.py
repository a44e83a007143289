"""Exported weights in a bundle of OpenSSF's model signing, which its own verifier takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.attest.claims import compute_claim_digest
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.wire.claim import decode_signed_claim

SOLVER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def write_keys(folder: Path, name: str = "signer") -> tuple[Path, Path]:
    """A private key of P-256, and its public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def verify(folder: Path, public: Path) -> int:
    """What the library's own command says."""
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(folder)]
    command += ["--signature", str(folder / "model.sig"), "--public_key", str(public)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signed") / "run"
    train(make_tiny_task(steps=10), folder, key=SOLVER)
    return folder


def test_a_signed_export_is_verified_until_a_byte_changes(run: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    out = tmp_path / "out"
    assert cli.run(["export", str(run), "--out", str(out), "--sign", str(private)]) == 0
    assert verify(out, public) == 0
    told = json.loads((out / "vtrain.json").read_text())
    claim = decode_signed_claim(RunPaths(run).claim.read_bytes()).claim
    assert told["claim"] == compute_claim_digest(claim).hex()
    assert (told["step"], told["run_id"]) == (10, claim.run_id.hex())
    assert told["solver"] == claim.solver.hex()
    # Again, into the same folder: the old bundle is no part of the model.
    assert cli.run(["export", str(run), "--out", str(out), "--sign", str(private)]) == 0
    assert verify(out, public) == 0
    assert verify(out, write_keys(tmp_path, "other")[1]) != 0
    for name in ("model.safetensors", "vtrain.json"):
        path = out / name
        honest = path.read_bytes()
        path.write_bytes(honest[:-2] + bytes([honest[-2] ^ 1]) + honest[-1:])
        assert verify(out, public) != 0, name
        path.write_bytes(honest)
    assert verify(out, public) == 0


def test_other_keys_are_refused_before_anything_is_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "solver.pem"
    key.write_bytes(SOLVER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    none = tmp_path / "none.pem"
    none.write_text("no key")
    for path, message in ((key, "no key of an elliptic curve"), (none, "no private key in PEM")):
        assert cli.run(["export", str(run), "--out", str(tmp_path / "o"), "--sign", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
