"""Making runs, honest and not, and bringing them into a consistent false form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain import _core
from vtrain.attest.claims import sign_claim
from vtrain.commit.files import read_entry
from vtrain.commit.log import LOG_HEADER, iterate_frames
from vtrain.spec.domains import RUN_LOG
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.wire.claim import Claim, decode_signed_claim, encode_signed_claim
from vtrain.wire.report import Check, Report

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def refit_manifest(run: Path) -> None:
    """Let the manifest list the files as they are: nothing in it is authority."""
    paths = RunPaths(run)
    manifest = read_manifest(paths)
    files = {name: read_entry(run / name) for name in manifest.files}
    paths.manifest.write_bytes(encode_manifest(replace(manifest, files=files)))


def read_leaves(run: Path) -> list[bytes]:
    """The log's leaves, undecoded."""
    with RunPaths(run).log.open("rb") as file:
        return [leaf for _, leaf in iterate_frames(file)]


def write_leaves(run: Path, leaves: Sequence[bytes]) -> None:
    """Replace the log, and refit the manifest; the claim stays as it is."""
    framed = b"".join(len(leaf).to_bytes(4, "little") + leaf for leaf in leaves)
    RunPaths(run).log.write_bytes(LOG_HEADER + framed)
    refit_manifest(run)


def sign_again(run: Path, key: Ed25519PrivateKey = KEY) -> None:
    """Sign the log as it is, as the solver would."""
    paths, leaves = RunPaths(run), read_leaves(run)
    tree = _core.MerkleTree(RUN_LOG)
    for leaf in leaves:
        tree.append(leaf)
    old = decode_signed_claim(paths.claim.read_bytes()).claim
    claim = Claim(old.run_id, old.solver, old.task_id, len(leaves), tree.root(len(leaves)))
    paths.claim.write_bytes(encode_signed_claim(sign_claim(claim, key)))
    manifest = replace(read_manifest(paths), steps=len(leaves))
    paths.manifest.write_bytes(encode_manifest(manifest))


def failed(report: Report) -> list[Check]:
    """The checks that failed."""
    return [check for check in report.checks if check.status == "failed"]


def reason_of(report: Report) -> Check:
    """The check that the verdict rests on."""
    assert report.reason is not None
    return report.reason
