"""A solver who knows seed and size of the sample beforehand, and moves the draw off its false step.

Only order protects: whoever pins the claim before the randomness exists is not moved by any of
this, and whoever does not can come to no verdict that passes.  Signatures must not matter at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.attacks.campaign import signing
from tests.attacks.campaign.bases import make_rng
from tests.attacks.campaign.bench import Bench, Say, show
from tests.attacks.campaign.judge import (
    FRAUD,
    NOBODY,
    VERIFIED,
    Fault,
    Result,
    judge,
    judge_verdict,
)
from tests.attacks.campaign.watch import Child
from tests.audit.runs import KEY, read_kzg_leaves, read_leaves, write_kzg_leaves, write_leaves
from vtrain.attest.claims import compute_claim_digest, sign_claim
from vtrain.attest.keys import public_key
from vtrain.audit import plan
from vtrain.commit.openings import compute_root
from vtrain.spec import domains
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.wire import cbor, structs
from vtrain.wire.claim import SignedClaim, decode_signed_claim, encode_signed_claim
from vtrain.wire.proof import decode_kzg_record, encode_kzg_record
from vtrain.wire.record import decode_record, encode_record
from vtrain.wire.tiles import SignedTraceClaim, TileTrace, TraceClaim

TRIES: Final = 2000
Draw = Callable[[bytes, SignedClaim, str, int, int], tuple[int, ...]]


def draw_today(
    randomness: bytes, signed: SignedClaim, domain: str, population: int, count: int
) -> tuple[int, ...]:
    """The draw of the code as it is: from the digest of the claim's body."""
    return plan.draw(randomness, compute_claim_digest(signed.claim), domain, population, count)


def draw_by_signature(
    randomness: bytes, signed: SignedClaim, domain: str, population: int, count: int
) -> tuple[int, ...]:
    """A draw without the defence: it hashes the signature too, which the signer chooses."""
    seed = cbor.encode(
        {
            "claim": encode_signed_claim(signed),
            "domain": domain,
            "population": population,
            "randomness": randomness,
        }
    )
    stream = blake3(seed, derive_key_context=domains.SAMPLING).digest(length=8 * population)
    words = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8)]
    order = sorted(range(population), key=words.__getitem__)
    return tuple(order[:count])


@dataclass
class Cheat:
    """A false run that is published in one of many forms."""

    run: Path
    rng: Random
    segments: int
    step: int
    """The false step; every segment is one step, or as many as the checkpoints have it."""
    every: int

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.run)

    @property
    def segment(self) -> int:
        return (self.step - 1) // self.every

    def read(self) -> SignedClaim:
        return decode_signed_claim(self.paths.claim.read_bytes())


@dataclass(frozen=True)
class Form:
    """One form: the claim, the key, and what else must be written for it; where its lie is."""

    signed: SignedClaim
    segment: int
    leaves: Sequence[bytes] | None = None
    kzg_leaves: Sequence[bytes] | None = None


def falsify(leaves: Sequence[bytes], step: int, change: int) -> list[bytes]:
    record = decode_record(leaves[step - 1])
    false = encode_record(replace(record, loss=record.loss + change))
    return [*leaves[: step - 1], false, *leaves[step:]]


def publish(cheat: Cheat, form: Form) -> None:
    """Write a form into the folder."""
    if form.leaves is not None:
        write_leaves(cheat.run, form.leaves)
    if form.kzg_leaves is not None:
        write_kzg_leaves(cheat.run, form.kzg_leaves)
    cheat.paths.claim.write_bytes(encode_signed_claim(form.signed))
    claim = form.signed.claim
    manifest = replace(read_manifest(cheat.paths), run_id=claim.run_id, steps=claim.log_size)
    cheat.paths.manifest.write_bytes(encode_manifest(manifest))


# --- what may vary


def by_run_id(cheat: Cheat) -> Iterator[Form]:
    claim = cheat.read().claim
    while True:
        changed = replace(claim, run_id=cheat.rng.randbytes(32))
        yield Form(sign_claim(changed, KEY), cheat.segment)


def by_log(cheat: Cheat) -> Iterator[Form]:
    """The lie itself is free: any loss but the true one will do."""
    claim, leaves = cheat.read().claim, read_leaves(cheat.run)
    while True:
        other = falsify(leaves, cheat.step, cheat.rng.randrange(1, 2**30))
        root = compute_root(domains.RUN_LOG, other)
        yield Form(sign_claim(replace(claim, log_root=root), KEY), cheat.segment, other)


def by_order(cheat: Cheat) -> Iterator[Form]:
    """Which step is false is free too."""
    claim, leaves = cheat.read().claim, read_leaves(cheat.run)
    honest = falsify(leaves, cheat.step, -LIE)
    while True:
        step = cheat.rng.randrange(1, len(leaves) + 1)
        other = falsify(honest, step, cheat.rng.randrange(1, 2**30))
        root = compute_root(domains.RUN_LOG, other)
        signed = sign_claim(replace(claim, log_root=root), KEY)
        yield Form(signed, (step - 1) // cheat.every, other)


def by_secret(cheat: Cheat) -> Iterator[Form]:
    claim = cheat.read().claim
    while True:
        key = Ed25519PrivateKey.from_private_bytes(cheat.rng.randbytes(32))
        yield Form(sign_claim(replace(claim, solver=public_key(key)), key), cheat.segment)


def by_signature(cheat: Cheat) -> Iterator[Form]:
    claim = cheat.read().claim
    digest = compute_claim_digest(claim)
    while True:
        signature = signing.sign(KEY, digest, cheat.rng.randbytes(32))
        yield Form(SignedClaim(claim, signature), cheat.segment)


def by_kzg_root(cheat: Cheat) -> Iterator[Form]:
    """Commitments to batches can be any points: here those of other batches."""
    claim, leaves = cheat.read().claim, read_kzg_leaves(cheat.run)
    records = [decode_kzg_record(leaf) for leaf in leaves]
    points = [point for record in records for point in (*record.batch, *record.after)]
    while True:
        other = list(leaves)
        for at, record in enumerate(records):
            batch = tuple(cheat.rng.choice(points) for _ in record.batch)
            other[at] = encode_kzg_record(replace(record, batch=batch))
        root = compute_root(domains.KZG_LOG, other)
        signed = sign_claim(replace(claim, kzg_root=root), KEY)
        yield Form(signed, cheat.segment, kzg_leaves=other)


LIE: Final = 77
"""What the false loss is off by, before any grinding."""
Vary = Callable[[Cheat], Iterator[Form]]
KINDS: Final[dict[str, Vary]] = {
    "run id": by_run_id,
    "log": by_log,
    "order": by_order,
    "secret": by_secret,
    "signature": by_signature,
    "kzg root": by_kzg_root,
}
SAME_RUN: Final = frozenset({"log", "order", "kzg root"})
"""Kinds in which one key signs two logs of one run: evidence against the signer."""


def grind(
    cheat: Cheat, vary: Vary, seed: bytes, count: int, draw: Draw = draw_today, tries: int = TRIES
) -> tuple[Form | None, int, bool]:
    """The first form whose lie is not drawn, how many were tried, and whether a draw ever moved."""
    draws: set[tuple[int, ...]] = set()
    tried = 0
    for tried, form in enumerate(islice(vary(cheat), tries), start=1):
        drawn = draw(seed, form.signed, plan.REPLAY_DOMAIN, cheat.segments, count)
        draws.add(drawn)
        if form.segment not in drawn:
            return form, tried, len(draws) > 1
    return None, tried, len(draws) > 1


def lay_out(bench: Bench, kind: str, rng: Random, run: Path) -> Cheat:
    """A run with a false loss, signed: what the solver has before the seed is known."""
    base = bench.bases["kzg" if kind == "kzg root" else "dense"]
    shutil.copytree(base.run, run)
    every = 4 if kind == "kzg root" else 1
    steps = len(base.leaves)
    cheat = Cheat(run, rng, steps // every, rng.randrange(1, steps + 1), every)
    leaves = falsify(base.leaves, cheat.step, LIE)
    claim = cheat.read().claim
    root = compute_root(domains.RUN_LOG, leaves)
    publish(cheat, Form(sign_claim(replace(claim, log_root=root), KEY), cheat.segment, leaves))
    return cheat


class Grinding:
    """Each kind so many times: ``asked`` is a number for each."""

    names: Final = (*KINDS, "trace root", "trace signature", "honest")
    """The last is a control: whoever refuses everything is no auditor."""

    def count(self, asked: int) -> int:
        return asked * len(self.names)

    def attempt(self, bench: Bench, number: int, work: Path, say: Say) -> Result:
        kind = self.names[number % len(self.names)]
        rng = make_rng(bench.seed, "grind", number)
        if kind.startswith("trace"):
            return grind_traces(bench, kind, rng, work, say)
        if kind == "honest":
            return judge_honest(bench, rng, say)
        seed, run, note = rng.randbytes(32), work / "run", work / "note.json"
        kept = work / "kept.cbor"
        samples = 2 if kind == "kzg root" else 11

        def make(_: Sequence[str]) -> None:
            cheat = lay_out(bench, kind, rng, run)
            before = cheat.read()
            kept.write_bytes(encode_signed_claim(before))
            tries = 100 if kind == "signature" else TRIES
            form, tried, moved = grind(cheat, KINDS[kind], seed, samples, tries=tries)
            if kind == "signature":
                draws = {
                    draw_today(seed, each.signed, plan.REPLAY_DOMAIN, cheat.segments, samples)
                    for each in islice(by_signature(cheat), 20)
                }
                moved = len(draws) > 1
            if form is None:  # whatever form it has, the draw is the same
                form = next(KINDS[kind](cheat))
                found = False
            else:
                found = True
            publish(cheat, form)
            drawn = draw_today(seed, before, plan.REPLAY_DOMAIN, cheat.segments, samples)
            digest = compute_claim_digest(before.claim).hex()
            caught = cheat.segment in drawn
            note.write_text(json.dumps([found, tried, moved, digest, caught]))

        made = Child([], auditor=make, environment=bench.environment).wait(60)
        if made.code:
            raise RuntimeError(made.err.decode("utf-8", "replace")[-500:])
        found, tried, moved, digest, caught = json.loads(note.read_text())
        result = Result(f"{kind}: {'found' if found else 'not found'} after {tried}")
        if kind == "signature" and moved:
            result.faults.append(Fault("signatures move the draw", f"after {tried}"))
        if kind != "signature" and not found:
            result.faults.append(Fault("the campaign itself failed", "no form was found"))
        base = ["verify", str(run), "--json", "--threads", "1"]
        base += ["--samples", str(samples), "--seed", seed.hex()]
        # What the kept claim and its digest are worth: the same body is not refused.
        same = FRAUD if caught else frozenset({"verified"})
        expected: Expected = [
            (base, frozenset({"fraud", "inconclusive", "conditional"})),
            ([*base, "--claim", digest], same if kind == "signature" else NOBODY),
            (
                [*base, "--claim", str(kept)],
                same if kind == "signature" else FRAUD if kind in SAME_RUN else NOBODY,
            ),
        ]
        audit(bench, kind, expected, result, say)
        return result


Expected = list[tuple[list[str], frozenset[str]]]


def audit(bench: Bench, kind: str, expected: Expected, result: Result, say: Say) -> None:
    """Each command, held against what it may come to."""
    for arguments, allowed in expected:
        outcome = bench.call(arguments)
        show(say, arguments, outcome)
        faults = judge(outcome, seconds=bench.seconds) + judge_verdict(outcome, allowed)
        how = "pinned" if "--claim" in arguments else "unpinned"
        result.add(outcome, [Fault(f"{kind}, {how}: {f.kind}", f.detail) for f in faults])


def judge_honest(bench: Bench, rng: Random, say: Say) -> Result:
    """An honest run: what it takes to verify it, and what a solver who goes on has to fear."""
    name = rng.choice(("dense", "mlp", "cnn", "mse"))
    run = bench.bases[name].run
    signed = decode_signed_claim(RunPaths(run).claim.read_bytes())
    digest = compute_claim_digest(signed.claim).hex()
    kept = bench.folder / f"kept-{name}.cbor"
    kept.write_bytes(encode_signed_claim(signed))
    base = ["verify", str(run), "--json", "--threads", "1", "--samples", "2"]
    seed = ["--seed", rng.randbytes(32).hex()]
    solver = ["--solver", signed.claim.solver.hex()]
    unfinished, continued = bench.bases["unfinished"].run, bench.folder / "continued" / "run"
    whole = ["verify", str(continued), "--json", "--threads", "1", "--all"]
    part = ["verify", str(unfinished), "--json", "--threads", "1", "--all"]
    result = Result(f"honest: {name}")
    expected: Expected = [
        (base, VERIFIED),
        ([*base, *seed], frozenset({"conditional"})),
        ([*base, *solver], VERIFIED),
        ([*base, *seed, "--claim", digest], VERIFIED),
        ([*base, *seed, "--claim", str(kept), *solver], VERIFIED),
        (whole, VERIFIED),
        # The claim before it went on: another one, and no contradiction.
        ([*whole, "--claim", str(RunPaths(unfinished).claim)], NOBODY),
        ([*part, "--claim", str(RunPaths(continued).claim)], NOBODY),
    ]
    audit(bench, "honest", expected, result, say)
    return result


# --- traces of tiles


STATEMENTS: Final = 40
"""As many statements about a step as a small tiling has."""


def draw_statements_today(randomness: bytes, traces: TraceClaim, count: int) -> tuple[int, ...]:
    """Numbers of the statements that the code as it is draws."""
    from vtrain.prove.tiles.protocol import draw_statements

    tiling: Any = range(STATEMENTS)  # of which only the length counts
    drawn = draw_statements(randomness, traces, tiling, count)
    return tuple(number for _, number in drawn)


def grind_traces(bench: Bench, kind: str, rng: Random, work: Path, say: Say) -> Result:
    """The root of a trace, or the signature under it, until the false statement is not drawn."""
    from vtrain.prove.tiles.protocol import compute_trace_claim_digest, draw_steps

    base = bench.bases["tiles"]
    run = Path(shutil.copytree(base.run, work / "run"))
    signed = decode_signed_claim(RunPaths(run).claim.read_bytes())
    first, second = rng.randbytes(32), rng.randbytes(32)
    digest = compute_claim_digest(signed.claim)
    steps = draw_steps(first, signed.claim, 1, 1)
    false, samples = rng.randrange(STATEMENTS), STATEMENTS - 3

    def make(root: bytes) -> TraceClaim:
        return TraceClaim(digest, first, tuple(TileTrace(step, root, 50) for step in steps))

    before = traces = make(rng.randbytes(32))
    drawn = draw_statements_today(second, before, samples)
    tried, escaped = 0, False
    while tried < TRIES and not escaped:
        tried += 1
        traces = make(rng.randbytes(32)) if kind == "trace root" else before
        escaped = false not in draw_statements_today(second, traces, samples)
        if kind == "trace signature":
            break
    result = Result(f"{kind}: {'found' if escaped else 'not found'} after {tried}")
    if kind == "trace root" and not escaped:
        result.faults.append(Fault("the campaign itself failed", "no root was found"))
    nonce = rng.randbytes(32)
    body = compute_trace_claim_digest(traces)
    made = SignedTraceClaim(traces, signing.sign(KEY, body, nonce))
    again = draw_statements_today(second, made.trace_claim, samples)
    if kind == "trace signature" and again != drawn:
        result.faults.append(Fault("signatures move the draw of statements"))
    (run / "proofs").mkdir(exist_ok=True)
    (run / "proofs" / "traces.cbor").write_bytes(structs.encode(made))
    arguments = [
        *("verify", str(run), "--mode", "proof", "--private", "--json", "--threads", "1"),
        *("--samples", "3", "--seed", second.hex(), "--trace-seed", first.hex()),
        *("--trace-samples", "1", "--srs", str(bench.folder / "srs15"), "--allow-insecure-srs"),
        *("--cache", str(work / "cache"), "--task-id", signed.claim.task_id.hex()),
    ]
    pins = [[], ["--trace-claim", compute_trace_claim_digest(before).hex()]]
    for pin in pins[1:] if kind == "trace root" else pins[:1]:
        outcome = bench.call([*arguments, *pin])
        show(say, [*arguments, *pin], outcome)
        faults = judge(outcome, seconds=bench.seconds)
        if outcome.code in (0, 4):
            faults.append(Fault("WRONG: verified", "a trace without proofs"))
        if pin and compute_trace_claim_digest(traces) != compute_trace_claim_digest(before):
            said = json.dumps((outcome.report or {}).get("checks", []))
            if "the trace claim is" not in said and "pinned" not in said:
                faults.append(Fault("the moved trace claim was not refused", said[-300:]))
        result.add(outcome, [Fault(f"{kind}: {f.kind}", f.detail) for f in faults])
    return result
