"""False runs, spoiled runs and runs that only look so, each with the verdicts that are right.

Three levels.  *Bytes*: files are spoiled and nobody signs it; never fraud.  *Signed*: the solver
makes root, manifest and claim fit what it changed; never verified.  *Deep*: the solver trains
falsely and all it publishes agrees with that; fraud, at that step.

The truth behind all of them: a finished run is a function of its task, so a log other than the
honest one, under a signature, is false, and no other log is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.attacks.campaign import signing
from tests.attacks.campaign.bases import Base
from tests.attacks.campaign.judge import (
    FRAUD,
    NOBODY,
    NOT_FRAUD,
    NOT_VERIFIED,
    VERIFIED,
)
from tests.audit.runs import (
    KEY,
    read_kzg_leaves,
    read_leaves,
    refit_manifest,
    sign_again,
    write_kzg_leaves,
    write_leaves,
)
from vtrain.attest.claims import compute_claim_digest, sign_claim
from vtrain.attest.keys import public_key
from vtrain.commit.checkpoint import read_checkpoint, write_checkpoint
from vtrain.commit.files import read_entry
from vtrain.commit.hiding import draw_hiding, read_hiding
from vtrain.commit.state import compute_root_of_state
from vtrain.demo import cheats
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session
from vtrain.errors import RunError, VtrainError
from vtrain.graph.step import STEP_STATE
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.train.data import compute_samples_root, read_samples
from vtrain.train.kzg import KzgRecorder
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.train.signed import read_graph, read_task
from vtrain.train.task import CompiledTask
from vtrain.wire import cbor, structs
from vtrain.wire.claim import Claim, SignedClaim, decode_signed_claim, encode_signed_claim
from vtrain.wire.graph import Node, StepGraph, encode_graph
from vtrain.wire.hiding import Hiding, HidingKey
from vtrain.wire.proof import KzgRecord, decode_kzg_record, encode_kzg_record
from vtrain.wire.record import StepRecord, decode_record, encode_record
from vtrain.wire.task import TaskSpec, encode_task

State = dict[str, npt.NDArray[Any]]
Level = Literal["bytes", "signed", "deep"]
OTHER_KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))


class UnfitError(Exception):
    """This mutation says nothing about this run: another is drawn."""


@dataclass
class Subject:
    """A copy of an honest run, to be spoiled."""

    base: Base
    run: Path
    rng: Random

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.run)

    def pick_step(self) -> int:
        return self.rng.randrange(1, len(self.base.leaves) + 1)

    def records(self) -> list[StepRecord]:
        return [decode_record(leaf) for leaf in read_leaves(self.run)]

    def publish(self, records: list[StepRecord]) -> None:
        write_leaves(self.run, [encode_record(record) for record in records])
        sign_again(self.run)

    def spec(self) -> TaskSpec:
        return read_task(self.paths)

    def claim(self) -> Claim:
        return decode_signed_claim(self.paths.claim.read_bytes()).claim

    def sign(self, claim: Claim, key: Ed25519PrivateKey = KEY) -> None:
        self.paths.claim.write_bytes(encode_signed_claim(sign_claim(claim, key)))


@dataclass(frozen=True)
class Truth:
    """What an audit of everything may say; ``step`` is where a fraud must be located."""

    allowed: frozenset[str]
    options: tuple[str, ...] = ()
    step: int | None = None
    note: str = ""


Mutation = Callable[[Subject], Truth]


@dataclass
class Registry:
    """All mutations, by level and name."""

    level: dict[Level, dict[str, Mutation]] = field(
        default_factory=lambda: {"bytes": {}, "signed": {}, "deep": {}}
    )

    def add(self, level: Level) -> Callable[[Mutation], Mutation]:
        def enter(mutation: Mutation) -> Mutation:
            self.level[level][mutation.__name__] = mutation
            return mutation

        return enter


ALL: Final = Registry()
of = ALL.add

# --- bytes: nobody signs


AUTHORITY: Final = ("task.cbor", "graph.cbor", "model.onnx", "data/samples.bin", "log.bin")


def pick_file(s: Subject, *, manifest: bool = False) -> Path:
    """A file that the signature covers, in the end."""
    names = [*AUTHORITY, "claim.cbor", *(["kzg.bin"] if s.base.srs else [])]
    names += [f"checkpoints/{path.name}" for path in (s.run / "checkpoints").iterdir()]
    if manifest:
        names.append("manifest.json")
    return s.run / s.rng.choice(sorted(names))


def spoil(s: Subject, path: Path, content: bytes) -> Truth:
    """Write other bytes, with or without a manifest that lists them."""
    if content == path.read_bytes():
        raise UnfitError
    path.write_bytes(content)
    fitted = s.rng.random() < 0.5
    if fitted:
        refit_manifest(s.run)
    return Truth(NOBODY, note=f"{path.name}, manifest {'fitted' if fitted else 'as it was'}")


@of("bytes")
def flip_bits(s: Subject) -> Truth:
    path = pick_file(s)
    content = bytearray(path.read_bytes())
    for _ in range(s.rng.choice((1, 1, 2, 8))):
        content[s.rng.randrange(len(content))] ^= 1 << s.rng.randrange(8)
    return spoil(s, path, bytes(content))


@of("bytes")
def cut_file(s: Subject) -> Truth:
    path = pick_file(s)
    content = path.read_bytes()
    return spoil(s, path, content[: s.rng.choice((0, 1, len(content) - 1, len(content) // 2))])


@of("bytes")
def append_bytes(s: Subject) -> Truth:
    path = pick_file(s)
    return spoil(s, path, path.read_bytes() + s.rng.randbytes(s.rng.choice((1, 4, 100))))


@of("bytes")
def insert_bytes(s: Subject) -> Truth:
    path = pick_file(s)
    content, more = path.read_bytes(), s.rng.randbytes(s.rng.choice((1, 4, 16)))
    at = s.rng.randrange(len(content))
    return spoil(s, path, content[:at] + more + content[at:])


@of("bytes")
def remove_bytes(s: Subject) -> Truth:
    path = pick_file(s)
    content = path.read_bytes()
    at = s.rng.randrange(len(content))
    return spoil(s, path, content[:at] + content[at + s.rng.choice((1, 4, 16)) :])


@of("bytes")
def zero_file(s: Subject) -> Truth:
    path = pick_file(s)
    return spoil(s, path, bytes(path.stat().st_size))


@of("bytes")
def random_file(s: Subject) -> Truth:
    path = pick_file(s)
    return spoil(s, path, s.rng.randbytes(path.stat().st_size))


@of("bytes")
def exchange_files(s: Subject) -> Truth:
    one, other = pick_file(s), pick_file(s)
    first, second = one.read_bytes(), other.read_bytes()
    if first == second:
        raise UnfitError
    one.write_bytes(second)
    return spoil(s, other, first)


@of("bytes")
def drop_file(s: Subject) -> Truth:
    path = pick_file(s)
    path.unlink()
    # Missing checkpoints: whatever can be computed all the same is not false.
    return Truth(NOT_FRAUD if path.parent.name == "checkpoints" else NOBODY, note=path.name)


@of("bytes")
def drop_checkpoints(s: Subject) -> Truth:
    for path in sorted((s.run / "checkpoints").iterdir())[s.rng.choice((0, 1)) :]:
        if s.rng.random() < 0.7:
            path.unlink()
    return Truth(NOT_FRAUD)


@of("bytes")
def change_manifest(s: Subject) -> Truth:
    """It has no authority: whatever it says, nobody is guilty, and nothing false is verified."""
    path = s.paths.manifest
    content = bytearray(path.read_bytes())
    content[s.rng.randrange(len(content))] ^= 1 << s.rng.randrange(7)
    path.write_bytes(bytes(content))
    return Truth(NOT_FRAUD)


@of("bytes")
def change_manifest_fields(s: Subject) -> Truth:
    manifest = read_manifest(s.paths)
    files = dict(manifest.files)
    name = s.rng.choice(sorted(files))
    changed: dict[str, Any] = s.rng.choice(
        [
            {"run_id": bytes(32)},
            {"task_id": bytes(32)},
            {"steps": manifest.steps + s.rng.choice((-1, 1, 2**40))},
            {"files": {k: v for k, v in files.items() if k != name}},
            {"files": {**files, name: replace(files[name], size=files[name].size + 1)}},
            {"files": {**files, name: replace(files[name], digest=bytes(32))}},
            {"files": {**files, f"../{name}": files[name]}},
            {"files": {**files, "/etc/passwd": files[name]}},
            {"files": {}},
        ]
    )
    s.paths.manifest.write_bytes(encode_manifest(replace(manifest, **changed)))
    return Truth(NOT_FRAUD, note=",".join(changed))


@of("bytes")
def other_saturation(s: Subject) -> Truth:
    manifest = read_manifest(s.paths)
    changed = replace(manifest, saturation={"a": 2**62}, software="x" * 50, engine="abacus")
    s.paths.manifest.write_bytes(encode_manifest(changed))
    return Truth(VERIFIED)


@of("bytes")
def same_bytes_again(s: Subject) -> Truth:
    path = pick_file(s, manifest=True)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    return Truth(VERIFIED)


@of("bytes")
def unrelated_file(s: Subject) -> Truth:
    name = s.rng.choice(("note", "checkpoints/x", "data/y", "proofs/z", "000.safetensors", ".tmp"))
    (s.run / name).parent.mkdir(exist_ok=True)
    (s.run / name).write_bytes(s.rng.randbytes(100))
    return Truth(VERIFIED)


@of("bytes")
def a_file_by_a_link(s: Subject) -> Truth:
    path = pick_file(s, manifest=True)
    other = s.run.parent / "elsewhere"
    path.rename(other)
    path.symlink_to(other)
    return Truth(NOBODY)


@of("bytes")
def rename_checkpoint(s: Subject) -> Truth:
    path = s.rng.choice(sorted((s.run / "checkpoints").iterdir()))
    path.rename(path.with_name(f"{s.rng.choice((0, 1, 5, 10**11)):012d}.safetensors"))
    return Truth(NOT_FRAUD)


@of("bytes")
def spoiled_signature(s: Subject) -> Truth:
    signed = decode_signed_claim(s.paths.claim.read_bytes())
    signature = bytearray(signed.signature)
    signature[s.rng.randrange(64)] ^= 1 << s.rng.randrange(8)
    s.paths.claim.write_bytes(encode_signed_claim(SignedClaim(signed.claim, bytes(signature))))
    return Truth(NOBODY)


@of("bytes")
def another_form_of_the_signature(s: Subject) -> Truth:
    """S + L instead of S: an old verifier takes it, and a stranger could make it."""
    signed = decode_signed_claim(s.paths.claim.read_bytes())
    scalar = int.from_bytes(signed.signature[32:], "little") + signing.ORDER
    signature = signed.signature[:32] + scalar.to_bytes(32, "little")
    s.paths.claim.write_bytes(encode_signed_claim(SignedClaim(signed.claim, signature)))
    return Truth(NOBODY)


@of("bytes")
def claim_of_somebody_else(s: Subject) -> Truth:
    """The claim's fields are changed, and the old signature stays under them."""
    signed = decode_signed_claim(s.paths.claim.read_bytes())
    claim = replace(signed.claim, **change_claim(s, signed.claim))
    s.paths.claim.write_bytes(encode_signed_claim(SignedClaim(claim, signed.signature)))
    return Truth(NOBODY)


@of("bytes")
def false_log_unsigned(s: Subject) -> Truth:
    """Somebody on the way makes the log false, and the manifest fit it."""
    records = s.records()
    at = s.pick_step() - 1
    records[at] = replace(records[at], loss=records[at].loss + s.rng.choice((-1, 1, 2**20)))
    write_leaves(s.run, [encode_record(record) for record in records])
    return Truth(NOBODY)


@of("bytes")
def false_log_signed_by_another(s: Subject) -> Truth:
    """And signs in the solver's name with a key of its own."""
    false_log_unsigned(s)
    claim = s.claim()
    body = compute_claim_digest(claim)
    s.paths.claim.write_bytes(encode_signed_claim(SignedClaim(claim, OTHER_KEY.sign(body))))
    return Truth(NOBODY)


def change_claim(s: Subject, claim: Claim) -> dict[str, Any]:
    """One field of a claim with another value."""
    choices: list[dict[str, Any]] = [
        {"run_id": s.rng.randbytes(32)},
        {"solver": public_key(OTHER_KEY)},
        {"task_id": s.rng.randbytes(32)},
        {"log_root": s.rng.randbytes(32)},
        {"log_size": claim.log_size + s.rng.choice((-1, 1, 2**30))},
    ]
    if claim.kzg_root:
        choices.append({"kzg_root": s.rng.randbytes(32)})
    return s.rng.choice(choices)


# --- signed: the claim fits what was changed


@of("signed")
def wrong_loss(s: Subject) -> Truth:
    records, step = s.records(), s.pick_step()
    change = s.rng.choice((-1, 1, 1 << 16, -(2**40)))
    records[step - 1] = replace(records[step - 1], loss=records[step - 1].loss + change)
    s.publish(records)
    return Truth(FRAUD, step=step)


@of("signed")
def loss_of_another_step(s: Subject) -> Truth:
    records, step, other = s.records(), s.pick_step(), s.pick_step()
    if records[step - 1].loss == records[other - 1].loss:
        raise UnfitError
    records[step - 1] = replace(records[step - 1], loss=records[other - 1].loss)
    s.publish(records)
    return Truth(FRAUD, step=step)


@of("signed")
def wrong_batch_digest(s: Subject) -> Truth:
    records, step = s.records(), s.pick_step()
    other = s.rng.choice((s.rng.randbytes(32), bytes(32), records[s.pick_step() - 1].batch_digest))
    if other == records[step - 1].batch_digest:
        raise UnfitError
    records[step - 1] = replace(records[step - 1], batch_digest=other)
    s.publish(records)
    return Truth(FRAUD, step=step)


@of("signed")
def short_digest(s: Subject) -> Truth:
    """A leaf that is no record of the law."""
    leaves, step = read_leaves(s.run), s.pick_step()
    record = decode_record(leaves[step - 1])
    value: dict[str, cbor.Value] = {
        "batch_digest": record.batch_digest,
        "loss": record.loss,
        "state_root": record.state_root,
        "step": record.step,
    }
    value.update(
        s.rng.choice(
            [
                {"batch_digest": b""},
                {"batch_digest": bytes(31)},
                {"state_root": bytes(33)},
                {"loss": "1"},
                {"loss": 2**63},
                {"step": 0},
                {"step": [step]},
                {"more": 1},
            ]
        )
    )
    leaves[step - 1] = cbor.encode(value)
    write_leaves(s.run, leaves)
    sign_again(s.run)
    return Truth(FRAUD, step=step)


@of("signed")
def leaf_of_noise(s: Subject) -> Truth:
    leaves, step = read_leaves(s.run), s.pick_step()
    leaves[step - 1] = s.rng.choice((b"", b"\xff", s.rng.randbytes(80), leaves[step - 1] + b"\0"))
    write_leaves(s.run, leaves)
    sign_again(s.run)
    return Truth(FRAUD, step=step)


def committed_steps(s: Subject) -> list[int]:
    return [record.step for record in s.records() if record.state_root]


@of("signed")
def wrong_state_root(s: Subject) -> Truth:
    records, step = s.records(), s.rng.choice(committed_steps(s))
    other = s.rng.choice((s.rng.randbytes(32), records[committed_steps(s)[0] - 1].state_root))
    if other == records[step - 1].state_root:
        raise UnfitError
    records[step - 1] = replace(records[step - 1], state_root=other)
    s.publish(records)
    return Truth(FRAUD, step=step)


@of("signed")
def no_state_root(s: Subject) -> Truth:
    records, step = s.records(), s.rng.choice(committed_steps(s))
    records[step - 1] = replace(records[step - 1], state_root=b"")
    s.publish(records)
    return Truth(FRAUD, step=step)


@of("signed")
def a_state_root_too_many(s: Subject) -> Truth:
    bare = [record.step for record in s.records() if not record.state_root]
    if not bare:
        raise UnfitError
    records, step = s.records(), s.rng.choice(bare)
    records[step - 1] = replace(records[step - 1], state_root=s.rng.randbytes(32))
    s.publish(records)
    return Truth(FRAUD, step=step)


@of("signed")
def wrong_step_number(s: Subject) -> Truth:
    records, step = s.records(), s.pick_step()
    number = s.rng.choice((step + 1, max(1, step - 1), 1, 2**48))
    if number == step:
        raise UnfitError
    records[step - 1] = replace(records[step - 1], step=number)
    s.publish(records)
    return Truth(FRAUD, step=step)


@of("signed")
def swapped_records(s: Subject) -> Truth:
    records, one, other = s.records(), s.pick_step() - 1, s.pick_step() - 1
    if one == other:
        raise UnfitError
    records[one], records[other] = records[other], records[one]
    if s.rng.random() < 0.7:
        records[one] = replace(records[one], step=one + 1)
        records[other] = replace(records[other], step=other + 1)
    s.publish(records)
    return Truth(FRAUD)


@of("signed")
def missing_record(s: Subject) -> Truth:
    records, step = s.records(), s.rng.randrange(1, len(s.base.leaves))
    if len(records) < 3:
        raise UnfitError
    del records[step - 1]
    if s.rng.random() < 0.6:
        records = [replace(record, step=i) for i, record in enumerate(records, start=1)]
    s.publish(records)
    return Truth(FRAUD)


@of("signed")
def records_too_many(s: Subject) -> Truth:
    """More than the task has steps; an unfinished run just gets false ones."""
    records = s.records()
    for _ in range(s.rng.choice((1, 2, 20))):
        records.append(replace(records[-1], step=len(records) + 1))
    s.publish(records)
    return Truth(FRAUD)


@of("signed")
def doubled_record(s: Subject) -> Truth:
    records, step = s.records(), s.pick_step()
    records.insert(step, records[step - 1])
    if s.rng.random() < 0.5:
        records = [replace(record, step=i) for i, record in enumerate(records, start=1)]
    s.publish(records)
    return Truth(FRAUD)


@of("signed")
def honest_beginning(s: Subject) -> Truth:
    """Fewer steps are claimed; what is claimed is true."""
    records = s.records()
    s.publish(records[: s.rng.randrange(1, len(records))])
    return Truth(NOT_FRAUD)


@of("signed")
def false_end_without_a_root(s: Subject) -> Truth:
    """The log ends between two state roots, with a lie that no state root follows."""
    every = s.spec().commit_every
    if every == 1:
        raise UnfitError
    records = s.records()[: every * s.rng.randrange(0, len(s.base.leaves) // every) + 1]
    records[-1] = replace(records[-1], loss=records[-1].loss + 1)
    s.publish(records)
    return Truth(NOT_VERIFIED)


@of("signed")
def claim_of_nothing(s: Subject) -> Truth:
    s.publish([])
    return Truth(NOBODY)


@of("signed")
def claim_fields(s: Subject) -> Truth:
    """Signed for what is not there: who says whether the rest was lost on the way?"""
    claim = s.claim()
    changed = change_claim(s, claim)
    if "solver" in changed or "run_id" in changed:
        raise UnfitError
    s.sign(replace(claim, **changed))
    return Truth(NOT_VERIFIED, note=",".join(changed))


@of("signed")
def another_run_id(s: Subject) -> Truth:
    """The same run under another name, or by another signer: as true as before."""
    key = s.rng.choice((KEY, OTHER_KEY))
    claim = replace(s.claim(), run_id=s.rng.randbytes(32), solver=public_key(key))
    s.sign(claim, key)
    manifest = replace(read_manifest(s.paths), run_id=claim.run_id)
    s.paths.manifest.write_bytes(encode_manifest(manifest))
    return Truth(VERIFIED)


@of("signed")
def another_signer_than_asked_for(s: Subject) -> Truth:
    s.sign(replace(s.claim(), solver=public_key(OTHER_KEY)), OTHER_KEY)
    return Truth(NOBODY, options=("--solver", public_key(KEY).hex()))


@of("signed")
def another_nonce(s: Subject) -> Truth:
    claim = s.claim()
    signature = signing.sign(KEY, compute_claim_digest(claim), s.rng.randbytes(32))
    s.paths.claim.write_bytes(encode_signed_claim(SignedClaim(claim, signature)))
    return Truth(VERIFIED)


@of("signed")
def kzg_root_where_none_is_due(s: Subject) -> Truth:
    claim = s.claim()
    s.sign(replace(claim, kzg_root=b"" if claim.kzg_root else s.rng.randbytes(32)))
    return Truth(FRAUD)


def alter(s: Subject, state: State, size: int = 1) -> None:
    """Other values in some elements of one tensor."""
    name = s.rng.choice([name for name in sorted(state) if name != STEP_STATE])
    flat = state[name].reshape(-1)
    for _ in range(size):
        at = s.rng.randrange(flat.size)
        flat[at] = np.clip(int(flat[at]) + s.rng.choice((-1, 1, 1000)), -(2**31) + 1, 2**31 - 1)


def copy_state(state: Mapping[str, npt.NDArray[Any]]) -> State:
    return {name: np.array(value) for name, value in state.items()}


def pick_checkpoint(s: Subject, *, first: bool = False) -> int:
    steps = [step for step in s.paths.list_checkpoints() if step or first]
    return s.rng.choice(steps)


def load_graph(s: Subject) -> StepGraph:
    return read_graph(s.paths, s.spec())


@of("signed")
def other_checkpoint_unsigned(s: Subject) -> Truth:
    """The manifest fits, the log does not: bytes that nobody signed for."""
    graph, step = load_graph(s), pick_checkpoint(s, first=True)
    state = copy_state(read_checkpoint(s.paths.checkpoint(step), graph))
    alter(s, state, s.rng.choice((1, 5)))
    write_checkpoint(s.paths.checkpoint(step), graph, state)
    refit_manifest(s.run)
    sign_again(s.run)
    return Truth(NOBODY)


@of("signed")
def other_state_signed(s: Subject) -> Truth:
    """One checkpoint is of another state, and the log has its root."""
    graph, step = load_graph(s), pick_checkpoint(s)
    state = copy_state(read_checkpoint(s.paths.checkpoint(step), graph))
    alter(s, state, s.rng.choice((1, 5)))
    return adopt_state(s, graph, step, state)


def adopt_state(s: Subject, graph: StepGraph, step: int, state: State) -> Truth:
    write_checkpoint(s.paths.checkpoint(step), graph, state)
    records = s.records()
    root = compute_root_of_state(graph, state)
    if root == records[step - 1].state_root:
        raise UnfitError
    records[step - 1] = replace(records[step - 1], state_root=root)
    refit_manifest(s.run)
    s.publish(records)
    return Truth(FRAUD)


@of("signed")
def a_state_that_cannot_be(s: Subject) -> Truth:
    """Out of the range of its tensor, or of another step: signed all the same."""
    graph, step = load_graph(s), pick_checkpoint(s)
    state = copy_state(read_checkpoint(s.paths.checkpoint(step), graph))
    if s.rng.random() < 0.5:
        state[STEP_STATE][...] = s.rng.choice((0, step + 1, -1, 2**62))
    else:
        name = s.rng.choice([name for name in sorted(state) if name != STEP_STATE])
        state[name].reshape(-1)[0] = -(2**31)
    return adopt_state(s, graph, step, state)


@of("signed")
def an_older_state_again(s: Subject) -> Truth:
    graph, step = load_graph(s), pick_checkpoint(s)
    older = s.rng.choice([at for at in s.paths.list_checkpoints() if at < step])
    state = copy_state(read_checkpoint(s.paths.checkpoint(older), graph))
    state[STEP_STATE][...] = step
    return adopt_state(s, graph, step, state)


def adopt_task(s: Subject, spec: TaskSpec) -> None:
    """Make the run one of another task, signed and listed by its solver."""
    s.paths.task.write_bytes(encode_task(spec))
    claim = replace(s.claim(), task_id=compute_task_id(spec))
    s.sign(claim)
    manifest = replace(read_manifest(s.paths), task_id=claim.task_id)
    s.paths.manifest.write_bytes(encode_manifest(manifest))
    refit_manifest(s.run)


def pin_task(s: Subject) -> tuple[str, ...]:
    """The auditor names the task that was agreed on."""
    return "--task-id", compute_task_id(read_task(RunPaths(s.base.run))).hex()


@of("signed")
def other_task_fields(s: Subject) -> Truth:
    """The task says something else than what was done; with the agreed id, never verified."""
    spec = s.spec()
    changed: dict[str, Any] = s.rng.choice(
        [
            {"seed": spec.seed + 1},
            {"batch": spec.batch + 1},
            {"steps": spec.steps * s.rng.choice((2, 1000))},
            {"steps": spec.commit_every},
            {"commit_every": spec.commit_every * 2},
            {"checkpoint_every": spec.checkpoint_every * 2},
            {"checkpoint_every": spec.commit_every},
            {"graph_root": bytes(32)},
            {"model_digest": bytes(32)},
            {"initial_state_root": bytes(32)},
            {"data": replace(spec.data, root=bytes(32))},
            {"data": replace(spec.data, samples=spec.data.samples - 1)},
            {"exponents": {}},
            {"exponents": {**spec.exponents, "nowhere": 3}},
        ]
    )
    if all(getattr(spec, name) == value for name, value in changed.items()):
        raise UnfitError
    pinned = s.rng.random() < 0.5
    harmless = "exponents" in changed or changed.get("steps", 0) > spec.steps
    harmless |= "checkpoint_every" in changed  # some of the same checkpoints may do
    adopt_task(s, replace(spec, **changed))
    options = pin_task(s) if pinned else ()
    allowed = NOT_VERIFIED if pinned or not harmless else NOT_FRAUD
    return Truth(allowed, options, note=f"{changed}"[:60] + (", pinned" if pinned else ""))


@of("signed")
def other_samples(s: Subject) -> Truth:
    """Another training set, which the task commits to; the log is that of the old one."""
    spec, path = s.spec(), s.paths.samples
    content = bytearray(path.read_bytes())
    content[s.rng.randrange(len(content))] ^= 1
    path.write_bytes(bytes(content))
    read = read_samples(path, spec.data)
    data = replace(spec.data, root=compute_samples_root(read))
    adopt_task(s, replace(spec, data=data))
    return Truth(NOT_VERIFIED, pin_task(s) if s.rng.random() < 0.5 else ())


@of("signed")
def other_model(s: Subject) -> Truth:
    content = s.rng.choice((b"", s.rng.randbytes(50), s.paths.model.read_bytes() + b"\0"))
    s.paths.model.write_bytes(content)
    from vtrain.spec.commitment import compute_tensor_digest

    digest = compute_tensor_digest(np.frombuffer(content, np.uint8))
    adopt_task(s, replace(s.spec(), model_digest=digest))
    return Truth(NOBODY, pin_task(s))


@of("signed")
def other_graph(s: Subject) -> Truth:
    """An attribute, a range, a name or a node of the graph is another; the task pins it."""
    spec, graph = s.spec(), load_graph(s)
    other, renamed = change_graph(s, graph)
    s.paths.graph.write_bytes(encode_graph(other))
    adopt_task(s, replace(spec, graph_root=compute_graph_root(other)))
    pinned = s.rng.random() < 0.7
    if not pinned and not renamed:
        # Another law of the step that gives the same bits in these steps is no lie.
        return Truth(NOT_FRAUD | FRAUD, note="unpinned: no crash is asked for alone")
    return Truth(NOT_VERIFIED if pinned else NOT_FRAUD, pin_task(s) if pinned else ())


def change_graph(s: Subject, graph: StepGraph) -> tuple[StepGraph, bool]:
    """Another graph, and whether it differs in names alone."""
    nodes = list(graph.nodes)
    at = s.rng.randrange(len(nodes))
    node = nodes[at]
    kind = s.rng.choice(("attr", "range", "name", "drop", "double", "input", "dtype", "shape"))
    if kind == "name":
        if node.op == "rescale":
            raise UnfitError
        nodes[at] = replace(node, name=f"{node.name} again")
        return StepGraph(tuple(nodes)), True
    if kind == "attr":
        found = [key for key, value in node.attrs.items() if isinstance(value, int)]
        if not found:
            raise UnfitError
        key = s.rng.choice(sorted(found))
        value = node.attrs[key]
        more = value + 1 if isinstance(value, int) else 0
        nodes[at] = replace(node, attrs={**node.attrs, key: more})
    elif kind in ("range", "dtype", "shape"):
        output = node.outputs[0]
        changed = {
            "range": replace(output, hi=output.hi + 1),
            "dtype": replace(output, dtype="i64" if output.dtype != "i64" else "i32"),
            "shape": replace(output, shape=(*output.shape, 2**32)),
        }[kind]
        nodes[at] = replace(node, outputs=(changed, *node.outputs[1:]))
    elif kind == "drop":
        del nodes[at]
    elif kind == "double":
        nodes.insert(at, node)
    else:
        if not node.inputs:
            raise UnfitError
        ref = node.inputs[0]
        nodes[at] = replace(node, inputs=(ref._replace(node=at + 5), *node.inputs[1:]))
    return StepGraph(tuple(nodes)), False


# --- signed: the log of KZG commitments


def find_kzg_leaves(s: Subject) -> list[bytes]:
    if s.base.srs is None:
        raise UnfitError
    return read_kzg_leaves(s.run)


def change_kzg(s: Subject) -> tuple[list[bytes], int]:
    """The KZG log with one false record, and its index."""
    leaves = find_kzg_leaves(s)
    at = s.rng.randrange(len(leaves))
    record = decode_kzg_record(leaves[at])
    point = (1).to_bytes(32) + (2).to_bytes(32)
    part = s.rng.choice(("before", "batch", "after"))
    old: tuple[bytes, ...] = getattr(record, part)
    other = s.rng.choice(
        [
            old[:-1],
            (*old, point),
            (point, *old[1:]),
            (*old[:-1], old[-1][:-1] + bytes([old[-1][-1] ^ 1])),
            (bytes(64), *old[1:]),
            tuple(reversed(old)),
        ]
    )
    if other == old:
        raise UnfitError
    changed: dict[str, Any] = {part: other}
    leaves[at] = encode_kzg_record(replace(record, **changed))
    return leaves, at


@of("signed")
def other_commitments(s: Subject) -> Truth:
    leaves, _ = change_kzg(s)
    write_kzg_leaves(s.run, leaves)
    sign_again(s.run)
    return Truth(FRAUD)


@of("bytes")
def other_commitments_unsigned(s: Subject) -> Truth:
    leaves, _ = change_kzg(s)
    write_kzg_leaves(s.run, leaves)
    return Truth(NOBODY)


@of("bytes")
def other_secrets(s: Subject) -> Truth:
    """What hides the commitments is lost, spoilt or another's: nothing is compared, or found."""
    if s.base.srs is None:
        raise UnfitError
    path, own = s.paths.hiding, read_hiding(s.paths.hiding)
    kind = s.rng.choice(("lost", "flipped", "noise", "drawn", "none", "one", "keys"))
    if kind == "lost":
        path.unlink()
        return Truth(NOBODY, note=kind)
    flipped = bytearray(path.read_bytes())
    flipped[s.rng.randrange(len(flipped))] ^= 1 << s.rng.randrange(8)
    record = decode_kzg_record(s.base.kzg_leaves[0])
    content = {
        "flipped": bytes(flipped),
        "noise": s.rng.randbytes(s.rng.randrange(200)),
        "drawn": structs.encode(draw_hiding()),
        "none": structs.encode(Hiding()),
        "one": structs.encode(replace(own, states=b"")),
        "keys": structs.encode(
            Hiding(keys=(HidingKey("batch", record.step, s.rng.randbytes(32)),))
        ),
    }
    path.write_bytes(content[kind])
    return Truth(NOBODY, note=kind)


@of("signed")
def other_ids_of_keys(s: Subject) -> Truth:
    """Commitments as they should be, by a key that the record says is another."""
    leaves = find_kzg_leaves(s)
    at = s.rng.randrange(len(leaves))
    record = decode_kzg_record(leaves[at])
    part = s.rng.choice(("before_key", "batch_key", "after_key"))
    changed: dict[str, Any] = {part: s.rng.choice((bytes(32), record.step.to_bytes(32)))}
    leaves[at] = encode_kzg_record(replace(record, **changed))
    write_kzg_leaves(s.run, leaves)
    sign_again(s.run)
    return Truth(NOT_VERIFIED, note=part)


@of("signed")
def a_chain_of_other_commitments(s: Subject) -> Truth:
    """Every record goes on where the one before ended, and all are of other tensors."""
    records = [decode_kzg_record(leaf) for leaf in find_kzg_leaves(s)]
    at, point = s.rng.randrange(len(records)), records[0].batch[0]
    false: list[KzgRecord] = records[:at]
    for record in records[at:]:
        linked = bool(false) and false[-1].step == record.step - 1
        before = false[-1].after if linked else record.before
        false.append(replace(record, before=before, after=(point, *record.after[1:])))
    write_kzg_leaves(s.run, [encode_kzg_record(record) for record in false])
    sign_again(s.run)
    return Truth(FRAUD)


@of("signed")
def kzg_records_moved(s: Subject) -> Truth:
    leaves = find_kzg_leaves(s)
    kind = s.rng.choice(("swap", "drop", "add", "noise"))
    if kind == "swap":
        leaves[0], leaves[-1] = leaves[-1], leaves[0]
    elif kind == "drop":
        del leaves[s.rng.randrange(len(leaves))]
    elif kind == "add":
        leaves.append(leaves[-1])
    else:
        leaves[s.rng.randrange(len(leaves))] = s.rng.randbytes(90)
    write_kzg_leaves(s.run, leaves)
    sign_again(s.run)
    return Truth(FRAUD if kind in ("swap", "noise") else NOT_VERIFIED, note=kind)


# --- deep: trained falsely, and all that is published agrees with it


Cheat = Callable[[Subject, CompiledTask, Session, list[State]], StepRecord]
"""Does the next step of a session falsely; the states before each step so far are given."""


def go_on(task: CompiledTask, session: Session, record: StepRecord, state: State) -> StepRecord:
    """Go on from a false state as if it were that after the step of ``record``."""
    after = {**state, STEP_STATE: np.asarray(record.step, dtype=np.int64)}
    session.load_state(after)
    due = record.step % task.spec.commit_every == 0
    root = compute_root_of_state(task.graph, after) if due else b""
    return replace(record, state_root=root)


def train_falsely(s: Subject, cheat: Cheat, steps: set[int]) -> None:
    """Write the run anew, with ``steps`` done by ``cheat``."""
    task = s.base.load()
    session = open_session("cpu", task.graph, task.samples, threads=1)
    session.load_state(task.initial_state)
    records: list[StepRecord] = []
    states: list[State] = [copy_state(session.read_state())]
    for step in range(1, len(s.base.leaves) + 1):
        records.append(cheat(s, task, session, states) if step in steps else session.step())
        states.append(copy_state(session.read_state()))
    publish_states(s, task, records, states)


def publish_states(
    s: Subject, task: CompiledTask, records: list[StepRecord], states: list[State]
) -> None:
    for step in s.paths.list_checkpoints():
        if step:
            write_checkpoint(s.paths.checkpoint(step), task.graph, states[step])
    proof = task.spec.kzg
    if proof is not None and task.kzg is not None:
        recorder = KzgRecorder(
            *(task.spec, task.graph, task.samples, task.kzg), hiding=read_hiding(s.paths.hiding)
        )
        out = []
        for leaf in s.base.kzg_leaves:
            step = decode_kzg_record(leaf).step
            record = recorder.compute_record(step, states[step - 1], states[step])
            out.append(encode_kzg_record(record))
        write_kzg_leaves(s.run, out)
    refit_manifest(s.run)
    s.publish(records)
    if read_leaves(s.run) == s.base.leaves:
        raise UnfitError


def old(cheat: cheats.Cheat) -> Cheat:
    return lambda s, task, session, states: cheat(task, session)


def reuse_old_state(
    s: Subject, task: CompiledTask, session: Session, states: list[State]
) -> StepRecord:
    record = session.step()
    return go_on(task, session, record, copy_state(s.rng.choice(states[:-1] or states)))


def nudge_state(
    s: Subject, task: CompiledTask, session: Session, states: list[State]
) -> StepRecord:
    """The state is changed by a hand, between two steps; all that follows is computed from it."""
    record = session.step()
    state = copy_state(session.read_state())
    alter(s, state, s.rng.choice((1, 1, 10)))
    return go_on(task, session, record, state)


def forget_momentum(
    s: Subject, task: CompiledTask, session: Session, states: list[State]
) -> StepRecord:
    record = session.step()
    state = copy_state(session.read_state())
    for name in state:
        if name.startswith("momentum/"):
            state[name][...] = 0
    return go_on(task, session, record, state)


def freeze_tensor(
    s: Subject, task: CompiledTask, session: Session, states: list[State]
) -> StepRecord:
    record = session.step()
    state = copy_state(session.read_state())
    name = s.rng.choice([name for name in sorted(state) if name.startswith("param/")] or ["w"])
    state[name] = np.array(states[-1][name])
    return go_on(task, session, record, state)


def do_it_twice(
    s: Subject, task: CompiledTask, session: Session, states: list[State]
) -> StepRecord:
    record = session.step()
    session.load_state({**session.read_state(), STEP_STATE: states[-1][STEP_STATE]})
    session.step()
    return go_on(task, session, record, copy_state(session.read_state()))


def other_hyper_parameter(
    s: Subject, task: CompiledTask, session: Session, states: list[State]
) -> StepRecord:
    """The rate, the decay, a shift or a multiplier is another than in the graph agreed on."""
    nodes = list(task.graph.nodes)
    found = [
        (at, key)
        for at, node in enumerate(nodes)
        for key in ("rates", "decay", "shift", "multiplier")
        if key in node.attrs
    ]
    if not found:
        raise UnfitError
    at, key = s.rng.choice(found)
    value = nodes[at].attrs[key]
    more = tuple(v * 2 for v in value) if isinstance(value, tuple) else value
    if isinstance(more, int):
        more += 1
    nodes[at] = replace(nodes[at], attrs={**nodes[at].attrs, key: more})
    try:
        other = open_session("numpy", StepGraph(tuple(nodes)), task.samples, threads=1)
    except VtrainError:
        raise UnfitError from None
    other.load_state(states[-1])
    record = other.step()
    return go_on(task, session, record, copy_state(other.read_state()))


def wrong_initial_state(
    s: Subject, task: CompiledTask, session: Session, states: list[State]
) -> StepRecord:
    state = copy_state(states[-1])
    alter(s, state, 3)
    session.load_state(state)
    return session.step()


def loss_alone(s: Subject, task: CompiledTask, session: Session, states: list[State]) -> StepRecord:
    record = session.step()
    return replace(record, loss=record.loss + s.rng.choice((-1, 1)))


CHEATS: Final[dict[str, Cheat]] = {
    "skip_step": old(cheats.skip_step),
    "alter_gradient": old(cheats.alter_gradient),
    "swap_batch": old(cheats.swap_batch),
    "swap_batch_openly": old(cheats.swap_batch_openly),
    "reuse_old_state": reuse_old_state,
    "nudge_state": nudge_state,
    "forget_momentum": forget_momentum,
    "freeze_tensor": freeze_tensor,
    "do_it_twice": do_it_twice,
    "other_hyper_parameter": other_hyper_parameter,
    "loss_alone": loss_alone,
}


def make_deep(cheat: Cheat, name: str) -> Mutation:
    def mutate(s: Subject) -> Truth:
        step = s.pick_step()
        train_falsely(s, cheat, {step})
        return Truth(FRAUD, step=step)

    mutate.__name__ = name
    return mutate


for _name, _cheat in CHEATS.items():
    of("deep")(make_deep(_cheat, _name))


@of("deep")
def wrong_beginning(s: Subject) -> Truth:
    train_falsely(s, wrong_initial_state, {1})
    return Truth(FRAUD)


@of("deep")
def several_cheats(s: Subject) -> Truth:
    steps = {s.pick_step() for _ in range(3)}
    train_falsely(s, s.rng.choice(list(CHEATS.values())), steps)
    return Truth(FRAUD)


@of("deep")
def two_swapped_steps(s: Subject) -> Truth:
    """Steps t and t + 1 are done in the other order; both log the batch that they were given."""
    first = s.rng.randrange(1, len(s.base.leaves))

    def swap(s: Subject, task: CompiledTask, session: Session, states: list[State]) -> StepRecord:
        state = session.read_state()
        counter = int(state[STEP_STATE])
        other = counter + 1 if counter + 1 == first else counter - 1
        session.load_state({**state, STEP_STATE: np.asarray(other, dtype=np.int64)})
        record = replace(session.step(), step=counter + 1)
        return go_on(task, session, record, copy_state(session.read_state()))

    train_falsely(s, swap, {first, first + 1})
    return Truth(FRAUD)


@of("deep")
def other_weights_at_the_end(s: Subject) -> Truth:
    """The model delivered is another than the one trained."""
    last = len(s.base.leaves)

    def replace_model(
        s: Subject, task: CompiledTask, session: Session, states: list[State]
    ) -> StepRecord:
        record = session.step()
        state = copy_state(states[0])
        return go_on(task, session, record, state)

    train_falsely(s, replace_model, {last})
    return Truth(FRAUD)


@of("deep")
def honest_after_all(s: Subject) -> Truth:
    """The same path without a cheat: the makers of false runs make true ones too."""
    try:
        train_falsely(s, loss_alone, set())
    except UnfitError:
        return Truth(VERIFIED)
    return Truth(frozenset(), note="an honest log came out differently")


# --- one attempt


LEVELS: Final[tuple[Level, ...]] = ("bytes", "signed", "signed", "deep")


def make_mutant(
    bases: Mapping[str, Base], number: int, rng: Random, out: Path
) -> tuple[str, Truth]:
    """Make mutant ``number`` in ``out``; its name and what may be said of it."""
    level = LEVELS[number % len(LEVELS)]
    names = sorted(ALL.level[level])
    for attempt in range(200):
        turn = number // len(LEVELS) * LEVELS.count(level) + LEVELS[: number % len(LEVELS)].count(
            level
        )
        name = names[turn % len(names)] if attempt < 50 else rng.choice(names)
        base = bases[rng.choice(sorted(bases.keys() - {"tiles"}))]
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(base.run, out)
        subject = Subject(base, out, rng)
        try:
            truth = ALL.level[level][name](subject)
        except (UnfitError, IndexError, RunError):
            continue
        return f"{level}: {name} of {base.name}", adapt(truth, subject)
    raise RuntimeError(f"no mutation of level {level} fits")


def adapt(truth: Truth, s: Subject) -> Truth:
    """With the SRS where there is one; its maker is not trusted, so "conditional" will do."""
    if s.base.srs is None:
        return truth
    allowed = truth.allowed | {"conditional"} if "verified" in truth.allowed else truth.allowed
    return replace(truth, allowed=allowed, options=(*truth.options, "--srs", str(s.base.srs)))


def list_files(run: Path) -> list[Path]:
    """All files of a run, by name."""
    return sorted(Path(root) / name for root, _, names in os.walk(run) for name in names)


__all__ = ["ALL", "Node", "Subject", "Truth", "list_files", "make_mutant", "read_entry"]
