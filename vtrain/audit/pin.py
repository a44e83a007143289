"""The pin: the claim that an auditor holds before the randomness of its draws exists.

A signer chooses its run id, its key and what is in its log, so it can make as many claims as it
likes until a sample that it foresees misses what is false.  Only order protects: the auditor keeps
the digest of one claim, then the randomness comes into being, and another claim is refused.  Who
keeps the signed claim itself, not its digest alone, can also show that a signer contradicts itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vtrain.attest.claims import compute_claim_digest, verify_claim
from vtrain.audit.plan import DIGEST_BYTES
from vtrain.errors import RunError, VtrainError
from vtrain.spec.commitment import compute_task_id
from vtrain.train import signed as evidence
from vtrain.train.layout import RunPaths
from vtrain.wire.claim import Claim, SignedClaim


@dataclass(frozen=True)
class Pin:
    """The ``digest`` (32 bytes) of a claim's body, and the signed claim where it was kept."""

    digest: bytes
    kept: SignedClaim | None = None
    source: Path | None = None
    """The file that it came from."""


_KEEP = "Keep a copy of your own before the seed exists (vtrain claim RUN --out FILE)"


def refuse_own_file(
    run: Path, own: Path, source: Path | None, what: str = f"it pins nothing. {_KEEP}"
) -> None:
    """RunError for a pin out of the file ``source`` when that lies in the run folder, or is the
    run's file ``own`` under another name: whoever made the run made it, at whatever time, and it
    pins nothing; or whatever else ``what`` says."""
    if source is None:
        return
    with suppress(OSError):
        inside = source.resolve().is_relative_to(run.resolve())
        if inside or (own.exists() and source.samefile(own)):
            raise RunError(
                f"is a file of the run: {what}",
                where=str(source),
            )


def make_pin(value: bytes | str | Path | SignedClaim) -> Pin:
    """The pin that a caller names: a digest (bytes, or 64 hexadecimal digits), the file of a kept
    claim, or the claim itself.

    RunError for a value that is none of these; NotProducedError, EncodingError, SignatureError for
    a file that is no signed claim.
    """
    if isinstance(value, SignedClaim):
        verify_claim(value)
        return Pin(compute_claim_digest(value.claim), value)
    if isinstance(value, str):
        value = parse_pin(value)
    if isinstance(value, Path):
        kept = evidence.read_claim_file(value)
        return Pin(compute_claim_digest(kept.claim), kept, value)
    if len(value) != DIGEST_BYTES:
        raise RunError(f"a digest has {DIGEST_BYTES} bytes, not {len(value)}", where="claim")
    return Pin(value)


def parse_pin(text: str) -> bytes | Path:
    """The digest that ``text`` is in hexadecimal, else the file that it names; RunError where there
    is none."""
    with suppress(ValueError):
        found = bytes.fromhex(text.removeprefix("0x"))
        if len(found) == DIGEST_BYTES:
            return found
    if not os.path.lexists(text):
        raise RunError(
            f"is neither the {2 * DIGEST_BYTES} hexadecimal digits of a digest nor a file in which "
            "the claim was kept (vtrain claim RUN shows the one and makes the other)",
            where=f"claim {text}",
        )
    return Path(text)


@dataclass(frozen=True)
class Mismatch:
    """How a claim is not the one pinned; ``contradicts``: one key signed two that exclude each
    other, which convicts its holder."""

    reason: str
    contradicts: bool = False


def compare_claims(pin: Pin, found: Claim, paths: RunPaths, limit: int) -> Mismatch | None:
    """What keeps ``found``, the claim of the run in ``paths``, from being the one pinned; None for
    the very claim.

    Two claims by one key about one task and run contradict each other unless the log of the one
    goes on from the log of the other, as it does for a run that was stopped, claimed and gone on
    with.  Whether it does is told where the pinned claim was kept and the run's log (of at most
    ``limit`` bytes) is the longer one.
    """
    digest = compute_claim_digest(found)
    if digest == pin.digest:
        return None
    reason = f"is the claim {digest.hex()}, not {pin.digest.hex()} as pinned"
    if pin.kept is None:
        return Mismatch(reason)
    kept = pin.kept.claim
    for name in ("solver", "task_id", "run_id"):
        if getattr(kept, name) != getattr(found, name):
            return Mismatch(f"{reason}: it has another {name}")
    if found.log_size < kept.log_size:
        return Mismatch(f"{reason}: it has {found.log_size} steps, that one {kept.log_size}")
    both = f"{reason}: both are signed by {found.solver.hex()} for one task and run"
    if found.log_size == kept.log_size:
        contradiction = f"both of {found.log_size} steps: they contradict each other"
        return Mismatch(f"{both}, {contradiction}", contradicts=True)
    try:
        extends = _extends(kept, found, paths, limit)
    except VtrainError as error:
        return Mismatch(f"{reason}; whether it goes on from it cannot be told: {error}")
    if extends:
        return Mismatch(
            f"{reason}: the run went on from that one, so pin the new claim, and draw anew after it"
        )
    return Mismatch(
        f"{both}, and they contradict each other: its log does not go on from that of "
        f"{kept.log_size} steps",
        contradicts=True,
    )


def _extends(kept: Claim, found: Claim, paths: RunPaths, limit: int) -> bool:
    """Whether the logs that ``found`` signs begin with those that ``kept`` signs."""

    def read_kzg() -> list[bytes] | None:
        if not kept.kzg_root and not found.kzg_root:
            return None
        task = evidence.read_task(paths)
        if compute_task_id(task) != found.task_id or task.kzg is None:
            raise RunError("is not the task that the claim is about", where=str(paths.task))
        every = task.kzg.every
        return evidence.read_kzg_leaves(paths, found, every, limit)[: kept.log_size // every]

    return evidence.goes_on(kept, evidence.read_leaves(paths, found, limit), read_kzg)
