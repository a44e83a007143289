"""The audit of an attested run: that what was signed is what is there.

Nothing is done again, since floats give other bits on other machines.  So no verdict is better than
conditional, and its report says what that rests on: the word of whoever signed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from blake3 import blake3

from vtrain.attest.attested import (
    compute_attestation_digest,
    compute_attested_root,
    verify_attestation,
)
from vtrain.audit.pin import refuse_own_file
from vtrain.audit.structure import FindingError, Ledger
from vtrain.commit.files import read_entry, read_file, storing
from vtrain.errors import EncodingError, NotProducedError, RunError
from vtrain.limits import LIMITS
from vtrain.train.attested import AttestedPaths, decode_records
from vtrain.wire.attested import (
    Attestation,
    AttestedStep,
    Listing,
    SignedAttestation,
    decode_attestation,
    decode_listing,
)
from vtrain.wire.report import Assumption, Coverage, Report, Strength, compute_verdict

ATTESTED: Final = (
    "the run is attested, not replayable: whoever signed did the steps in floats, which nobody can "
    "do again bit by bit, and that they were done as the configuration says is that one's word"
)
_SHOWN: Final = 5
"""Names that a report lists one by one."""
_UNCHECKED: Final = (
    "whether any step was done as it should be: an attested run cannot be replayed",
    "whether the data are those that the configuration means: an auditor who has them computes the "
    "digest of each batch (docs/attested.md)",
)


def is_attested(run: Path) -> bool:
    """Whether a folder holds an attested run."""
    return AttestedPaths(run).is_there()


def make_attested_pin(run: Path, value: bytes | str | Path) -> bytes:
    """The digest of the attestation that a caller holds: its 32 bytes, 64 hexadecimal digits, or
    the file of a kept copy.

    RunError for what is none of these, or is a file of the run itself; NotProducedError or
    EncodingError for a file that is no attestation.
    """
    if isinstance(value, str) and len(value) == 64:
        with suppress(ValueError):
            value = bytes.fromhex(value)
    if isinstance(value, bytes):
        if len(value) != 32:
            raise RunError(
                f"needs 32 bytes, has {len(value)}: give all of the digest of the attestation, or "
                "the file of a kept copy",
                where="claim",
            )
        return value
    path = Path(value)
    refuse_own_file(run, AttestedPaths(run).attestation, path, "it pins nothing")
    kept = decode_attestation(read_file(path, LIMITS.claim_bytes))
    verify_attestation(kept)
    return compute_attestation_digest(kept.attestation)


def verify_attested(
    run: Path,
    *,
    solver: bytes | None = None,
    claim: bytes | None = None,
    checkpoints: Path | None = None,
) -> Report:
    """Hold the files of an attested run against what was signed; whatever they are ends in a
    report.

    ``solver`` is the key that must have signed, ``claim`` the digest of the attestation that the
    auditor holds (``vtrain.attest.attested.compute_attestation_digest``); what they do not allow is
    refused.  ``checkpoints`` is where the loop's ``checkpoint-N`` are, by default the folder above
    ``run``: those that are there are held against their listings.  RunError for a folder that holds
    no attested run.
    """
    paths = AttestedPaths(run)
    if not paths.is_there():
        raise RunError(
            "holds no attested run: name the folder that the callback wrote, with attestation.cbor "
            "and log.bin (docs/attested.md)",
            where=str(run),
        )
    ledger = Ledger(run)
    signed = ledger.attempt(
        "attestation", paths.attestation.name, lambda: _check_signed(paths, solver, claim)
    )
    found = None if signed is None else signed.attestation
    missing = "" if found else "there is no attestation that counts"
    ledger.attempt(
        "configuration", paths.config.name, lambda: _check_config(paths, found), unless=missing
    )
    steps = ledger.attempt(
        "records", paths.log.name, lambda: _check_log(paths, found), unless=missing
    )
    missing = "" if steps is not None else "there is no log that was signed"
    where = checkpoints or run.resolve().parent
    seen = ledger.attempt(
        "checkpoints", "checkpoints", lambda: _check_all(paths, steps, where), unless=missing
    )
    checks = tuple(ledger.checks)
    assumed = (Assumption("attested", ATTESTED),)
    held = [check.name for check in checks if check.status == "passed"]
    complete = len(held) == len(checks)
    checked = ["every file of the attested run, against what was signed"] if complete else []
    if held and not complete:
        checked = [f"of the attested run, against what was signed: {', '.join(held)}"]
    unchecked = list(_UNCHECKED)
    if seen is not None:
        if seen.there:
            checked.append(f"{seen.there} of {seen.known} checkpoints, file by file")
        if seen.known > seen.there:
            unchecked.append(f"{seen.known - seen.there} checkpoints that are not there")
        if seen.unlisted:
            shown = ", ".join(repr(name) for name in seen.unlisted[:_SHOWN])
            more = " and more" if len(seen.unlisted) > _SHOWN else ""
            unchecked.append(f"files in checkpoints that nobody signed for: {shown}{more}")
    passed = sum(check.status == "passed" for check in checks)
    return Report(
        verdict=compute_verdict(checks, assumed),
        checks=checks,
        strength=Strength(tuple(checked), tuple(unchecked)),
        randomness=None,
        detections=(),
        segments=(),
        engine="none",
        task_id=b"",
        run_id=found.run_id if found else b"",
        solver=found.solver if found else b"",
        steps=found.steps if found else 0,
        root=found.final if found else b"",
        log_root=found.log_root if found else b"",
        claim=compute_attestation_digest(found) if found else b"",
        assumptions=assumed,
        coverage=(Coverage("structure", passed, len(checks)),),
    )


def _check_signed(
    paths: AttestedPaths, solver: bytes | None, claim: bytes | None
) -> tuple[str, SignedAttestation]:
    data = read_file(paths.attestation, LIMITS.claim_bytes, root=paths.root)
    signed = decode_attestation(data)
    verify_attestation(signed)
    found = signed.attestation
    if solver not in (None, found.solver):
        raise FindingError(f"is signed by {found.solver.hex()}, another than asked for")
    digest = compute_attestation_digest(found)
    if claim not in (None, digest):
        raise FindingError(f"has the digest {digest.hex()}, another than the one you hold")
    return "the signature holds; the run is attested, not replayable", signed


def _known(found: Attestation | None) -> Attestation:
    if found is None:  # what needs it is not attempted then
        raise FindingError("is not known")
    return found


def _check_config(paths: AttestedPaths, found: Attestation | None) -> tuple[str, bytes]:
    data = paths.read_config()
    if blake3(data).digest() != _known(found).config:
        raise FindingError("is not the file that was signed for: its BLAKE3 differs")
    return "arguments, model, optimizer and versions, as signed", data


def _check_log(paths: AttestedPaths, found: Attestation | None) -> tuple[str, list[AttestedStep]]:
    attestation, records = _known(found), paths.read_records()
    if len(records) != attestation.steps:
        raise FindingError(f"has {len(records)} records, {attestation.steps} were signed for")
    if compute_attested_root(records) != attestation.log_root:
        raise FindingError("is not the log that was signed for: its root differs")
    try:
        steps = decode_records(records)
    except EncodingError as error:
        raise FindingError(error.message, error.where, "solver") from None
    return f"what the model was given in each of {len(steps)} steps, as signed", steps


@dataclass(frozen=True)
class _Seen:
    """How many checkpoints are ``there``, of how many that are ``known`` by signed listings, and
    some of the files in them that no listing has."""

    there: int
    known: int
    unlisted: tuple[str, ...]


def _check_all(
    paths: AttestedPaths, steps: list[AttestedStep] | None, where: Path
) -> tuple[str, _Seen]:
    known = [step for step in steps or [] if step.checkpoint]
    there, unlisted = 0, list[str]()
    for step in known:
        data = paths.read_listing(step.step)
        place = f"checkpoints/{paths.listing(step.step).name}"
        if blake3(data).digest() != step.checkpoint:
            raise FindingError("is not the listing that was signed for", place)
        try:
            listing = decode_listing(data)
        except EncodingError as error:
            raise FindingError(error.message, f"{place}: {error.where}", "solver") from None
        folder = where / f"checkpoint-{step.step}"
        if folder.is_dir():
            _check_files(folder, listing)
            unlisted += [f"{folder.name}/{name}" for name in _find_unlisted(folder, listing)]
            there += 1
    detail = f"{len(known)} listings as signed; {there} checkpoints are there, as listed"
    return detail, _Seen(there, len(known), tuple(unlisted))


def _find_unlisted(folder: Path, listing: Listing) -> list[str]:
    """Some of the names in a checkpoint that its listing does not have: nobody signed for them, and
    a library may well load them."""
    known = {file.name for file in listing.files}
    with storing(folder):
        names = (
            path.relative_to(folder).as_posix()
            for path in islice(folder.rglob("*"), LIMITS.entries)
            if path.is_symlink() or not path.is_dir()
        )
        return sorted(islice((name for name in names if name not in known), _SHOWN + 1))


def _check_files(folder: Path, listing: Listing) -> None:
    for file in listing.files:
        place = f"checkpoints: {folder.name}/{file.name}"
        path = folder / file.name
        try:
            entry = read_entry(path, LIMITS.samples_bytes, root=folder)
        except NotProducedError as error:
            raise FindingError(error.message, place) from None
        if (entry.size, entry.digest) != (file.size, file.digest):
            raise FindingError("is not the file that was signed for: its BLAKE3 differs", place)
