"""A private audit: steps of a run are proven to an auditor who has neither weights nor data.

Run it from the project's root:  .venv/bin/python examples/zk/run_audit.py
It needs the extra zk, 8 GiB of memory and 4 GiB of disk, and two to four minutes of two idle cores.

Three parties, each with a folder of its own, and a fresh process for each thing that they do:

- the data's owner signs commitments to the batches of the task: what the solver is to train on;
- the solver trains MLP 784-16-10 on MNIST and publishes five small files: task, graph, two logs,
  and the claim that it signs.  Then it proves the step that the auditor draws;
- the auditor keeps the claim, so that no other will do; only then it draws a step.  It checks the
  proof with nothing but these files, the owner's, and a verifying key that it makes by itself.

Then the solver sells a false run, with one unit too much in one element of one gradient.  Its proof
of that step is a good one: of the step done right, which is not the one that its log commits to.

The SRS is made here, so that whoever made it could forge proofs: an audit that means it takes one
of a public ceremony (docs/proofs.md), and no --allow-insecure-srs.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from parties import call, find_refusal, keep_claim, keep_secrets, play_all, publish, say, stage

from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.keys import load_key
from vtrain.demo.cheats import alter_gradient, train_falsely
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.proof_files import Item, proof_path
from vtrain.prove.runs import read_run
from vtrain.train.task import compile_task, load_task
from vtrain.wire.bundle import decode_bundle, encode_bundle

TASK = Path(__file__).with_name("task.toml")
K = "17"


def pass_off(honest: Path, false: Path, step: int) -> None:
    """Put the honest run's proof into the false run, stated to be of the false run."""
    item = Item("step", step)
    bundle = decode_bundle(proof_path(honest, item).read_bytes())
    signed = read_run(false)
    claim = signed.signed.claim
    said = replace(bundle.statement, run_id=claim.run_id, claim=compute_claim_digest(claim))
    target = proof_path(false, item)
    target.parent.mkdir()
    target.write_bytes(encode_bundle(replace(bundle, statement=said)))


def cheat(solver: Path, srs: Path, step: int) -> None:
    """Make the false run, with the honest one's proof in it."""
    task = compile_task(load_task(TASK, srs=srs), CommitKey)
    key = load_key(solver / "key.pem")
    keep_secrets(solver / "run", solver / "false")
    train_falsely(task, solver / "false", key=key, cheat=alter_gradient, step=step)
    pass_off(solver / "run", solver / "false", step)


def play(folder: Path) -> None:
    """The whole audit; RunError as soon as something is not as it should be."""
    owner, solver, auditor = (folder / name for name in ("owner", "solver", "auditor"))
    for party in (owner, solver, auditor):
        party.mkdir()
    srs = folder / "srs"  # public: each has the same
    call("srs", "generate", "--k", K, "--out", srs)

    with stage("owner", "signs the batches of the task"):
        public = call("key", "new", owner / "key.pem")["public"]
        signing = ("--key", owner / "key.pem", "--out", owner / "batches.cbor")
        call("prove", "batches", TASK, "--srs", srs, "--hiding", owner / "hiding.key", *signing)
    shutil.copy(owner / "batches.cbor", auditor)
    shutil.copy(owner / "hiding.key", solver)  # for this solver alone

    with stage("solver", "trains, and logs commitments to each step"):
        call("key", "new", solver / "key.pem")
        training = ("--srs", srs, "--key", solver / "key.pem")
        hidden = ("--batch-hiding", solver / "hiding.key")
        made = call("train", TASK, "--out", solver / "run", *training, *hidden)
    size = publish(solver / "run", auditor / "run")
    say(f"{made['steps']} steps; what it publishes has {size} bytes")

    kept = keep_claim(auditor / "run")
    say("keeps the claim: from now on no other will do", "auditor")
    seed = secrets.token_hex(32)  # drawn now that the claim is kept
    say(f"draws one of the steps with fresh randomness {seed[:16]}...", "auditor")
    draw = ("--srs", srs, "--seed", seed)
    with stage("solver", "makes keys, and proves the step drawn"):
        answer = call("prove", solver / "run", *draw, "--sample", 1, "--cache", solver / "keys")
    (proof,) = map(Path, answer["proofs"])
    step = int(proof.stem.removeprefix("step-"))
    say(f"step {step}, {proof.stat().st_size} bytes")
    publish(solver / "run", auditor / "run")

    how: list[object] = ["--mode", "proof", "--private", "--srs", srs, "--cache", auditor / "keys"]
    how += ["--batches", auditor / "batches.cbor", "--owner", public, "--task-id", made["task_id"]]
    drawn = ("--claim", kept, "--samples", 1, "--seed", seed)
    with stage("auditor", "makes the verifying key itself, and checks the proof"):
        report = call("verify", auditor / "run", *how, *drawn, "--allow-insecure-srs")
    say(report["verdict"])
    for line in report["strength"]["checked"]:
        say(f"  {line}")
    report = call("verify", auditor / "run", *how, *drawn, code=4)
    say(f"without --allow-insecure-srs: {report['verdict']}")

    say(f"sells a run with a false step {step}, and a proof of it done right", "solver")
    cheat(solver, srs, step)
    publish(solver / "false", auditor / "false")
    named = ("--claim", keep_claim(auditor / "false"), "--steps", step, "--allow-insecure-srs")
    report = call("verify", auditor / "false", *how, *named, code=3)
    refused = find_refusal(report, "commitment of after is not the one expected")
    say(f"{report['verdict']}: {refused}", "auditor")


def main() -> None:
    """Play it in a folder that goes away."""
    play_all(play)


if __name__ == "__main__":
    main()
