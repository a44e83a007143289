"""Mutated runs under audit: whole, by a sample, and with a claim that was pinned before."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.attacks.campaign.bases import make_rng
from tests.attacks.campaign.bench import Bench, Say, show
from tests.attacks.campaign.judge import (
    FRAUD,
    NOBODY,
    NOT_VERIFIED,
    Fault,
    Result,
    judge,
    judge_verdict,
)
from tests.attacks.campaign.mutate import Truth, make_mutant
from tests.attacks.campaign.watch import Child, Outcome
from vtrain.attest.claims import compute_claim_digest, verify_claim
from vtrain.errors import VtrainError
from vtrain.wire.claim import SignedClaim, decode_signed_claim

_PLACE = re.compile(r"steps? (\d+)(?: to (\d+))?")
SAMPLED = "sampled"
"""Note of an audit that looks at one segment: its verdict must fit what it replayed."""
UNSEEN = ("skip_step", "alter_gradient", "nudge_state", "loss_alone", "forget_momentum")
"""Cheats of one step that nothing but a replay of that step shows."""


class Mutants:
    """Mutated runs."""

    def count(self, asked: int) -> int:
        return asked

    def attempt(self, bench: Bench, number: int, work: Path, say: Say) -> Result:
        rng = make_rng(bench.seed, "mutants", number)
        run, note = work / "run", work / "truth.json"

        def make(_: Sequence[str]) -> None:
            name, truth = make_mutant(bench.bases, number, rng, run)
            base = bench.bases[name.rpartition(" of ")[2]].run
            how = ["--all"]
            if any(f": {cheat} of" in name for cheat in UNSEEN) and rng.random() < 0.4:
                how = ["--samples", "1"]
                truth = replace(truth, allowed=frozenset({"verified", "fraud"}), note=SAMPLED)
            elif rng.random() < 0.25 and "--solver" not in truth.options:
                pin, truth = pin_claim(base, run, truth, rng)
                how += ["--claim", pin]
            data = [name, sorted(truth.allowed), [*how, *truth.options], truth.step, truth.note]
            note.write_text(json.dumps(data))

        made = Child([], auditor=make, environment=bench.environment).wait(60)
        if made.code:
            raise RuntimeError(made.err.decode("utf-8", "replace")[-500:])
        name, allowed, options, step, remark = json.loads(note.read_text())
        result = Result(f"{name} ({remark})" if remark else name)
        engine = "numpy" if number % 5 == 4 else "cpu"
        arguments = ["verify", str(run), "--json", "--threads", "1", "--engine", engine, *options]
        say(f"{name}: {remark}; allowed: {', '.join(allowed)}")
        outcome = bench.call(arguments)
        show(say, arguments, outcome)
        faults = judge(outcome, seconds=bench.seconds) + judge_verdict(outcome, allowed)
        if step is not None and not {"--srs", "--claim"} & set(options):
            faults += judge_place(outcome, step)
        if remark == SAMPLED:
            faults += judge_sample(outcome, step)
        result.add(outcome, faults)
        return result


def pin_claim(base: Path, run: Path, truth: Truth, rng: Random) -> tuple[str, Truth]:
    """Pin the honest claim, by its digest or as it was kept; what may be said then."""
    kept = decode_signed_claim((base / "claim.cbor").read_bytes())
    as_file = rng.random() < 0.5
    pin = str(base / "claim.cbor") if as_file else compute_claim_digest(kept.claim).hex()
    found = read_valid_claim(run)
    note = f"{truth.note}, pinned by {'file' if as_file else 'digest'}"
    if found is not None and found.claim == kept.claim:
        return pin, replace(truth, note=note)
    refused = NOT_VERIFIED if "fraud" in truth.allowed else NOBODY
    allowed = refused
    if as_file and found is not None and is_same_run(kept, found):
        # Two claims of one size by one key about one run contradict each other; of others one may
        # go on from the other, and whether it does the log shows or nobody knows.
        same_size = kept.claim.log_size == found.claim.log_size
        allowed = FRAUD if same_size else NOT_VERIFIED
    return pin, replace(truth, allowed=allowed, note=note)


def is_same_run(one: SignedClaim, other: SignedClaim) -> bool:
    return (one.claim.solver, one.claim.task_id, one.claim.run_id) == (
        other.claim.solver,
        other.claim.task_id,
        other.claim.run_id,
    )


def read_valid_claim(run: Path) -> SignedClaim | None:
    """The claim in a run, if there is one and its signature holds."""
    try:
        signed = decode_signed_claim((run / "claim.cbor").read_bytes())
        verify_claim(signed)
    except (VtrainError, OSError):
        return None
    return signed


def judge_place(outcome: Outcome, step: int) -> list[Fault]:
    """A fraud that is located anywhere but at the false step."""
    reason: Mapping[str, Any] = (outcome.report or {}).get("reason") or {}
    found = _PLACE.match(str(reason.get("where")))
    if outcome.verdict != "fraud" or not found:
        return []
    first, last = int(found[1]), int(found[2] or found[1])
    if first <= step <= last:
        return []
    return [Fault("fraud at the wrong place", f"{reason.get('where')}, false is step {step}")]


def judge_sample(outcome: Outcome, step: int) -> list[Fault]:
    """Fraud if the false step was replayed, verified if not; nothing else is true."""
    replayed = (outcome.report or {}).get("replayed")
    if not isinstance(replayed, list) or outcome.verdict not in ("verified", "fraud"):
        return []
    hit = any(each["first"] <= step <= each["last"] for each in replayed)
    if hit == (outcome.verdict == "fraud"):
        return []
    what = f"{outcome.verdict}, replayed {replayed}, false is step {step}"
    return [Fault("WRONG: not what was replayed", what)]
