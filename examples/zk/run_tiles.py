"""A private audit of a model that is too large for one proof: tiles of a step, drawn and proven.

Run it from the project's root:  .venv/bin/python examples/zk/run_tiles.py --model mlp
(MLP 784-512-512-10 at batch 128; --model cnn is the CNN of examples/mnist at batch 32.)  It needs
the extra zk, 4 GiB of memory, up to 1 GiB of disk for each circuit drawn, and two to eight minutes
of two idle cores.

A step falls into some hundreds or thousands of statements about blocks of 128 x 128.  Three
parties, each with a folder of its own, and a fresh process for each thing that they do:

- the data's owner signs commitments to the batches that can be asked for;
- the solver trains on MNIST and publishes five small files.  The auditor keeps the claim, and draws
  twice: a step, to all of whose tiles the solver commits; and, once the auditor has kept that trace
  claim too, statements about these tiles, which the solver proves;
- the auditor checks these proofs with nothing but public files and verifying keys of its own.

Then the solver answers with the right proofs in the wrong places.  Last, it sells a false run, with
one unit too much in one element of one gradient, and commits to the tiles of that step done right:
not those that its log has, which the statements about them show.  Few of all statements are about
them; what chance the draw had is printed, and here the auditor's luck is arranged.

The SRS is made here, so that whoever made it could forge proofs: an audit that means it takes one
of a public ceremony (docs/proofs.md), and no --allow-insecure-srs.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

from parties import call, find_refusal, keep_claim, keep_secrets, play_all, publish, say, stage

from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.keys import PrivateKey, load_key
from vtrain.demo.cheats import alter_gradient, train_falsely
from vtrain.prove.backend.ezkl import Limits
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.proof_files import Item, write_proof_file
from vtrain.prove.runs import SignedRun, read_run
from vtrain.prove.setup import ProofSetup
from vtrain.prove.tiles.protocol import draw_statements, draw_steps, sign_trace_claim
from vtrain.prove.tiles.prover import TileProver
from vtrain.prove.tiles.statements import StepFacts
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.tiles.verifier import traces_path
from vtrain.train.signed import read_kzg_record
from vtrain.train.task import compile_task, load_task
from vtrain.wire import structs
from vtrain.wire.tiles import TileProof, TraceClaim

HERE = Path(__file__).parent
WIDE = HERE / "wide.onnx"
K = "15"
MEMORY = 4 << 30
"""Bytes that a proof of a tile may take."""


def make_wide() -> None:
    """Write MLP 784-512-512-10, which is too large to lie here, unless that was done before."""
    if WIDE.exists():
        return
    script = HERE.parent / "mnist" / "make_models.py"
    command = [sys.executable, script, "--kind", "wide", "--out", HERE]
    subprocess.run([str(part) for part in command], check=True)


def exchange(run: Path, first: Path, second: Path) -> None:
    """Put what proves each of two statements in the place of the other, as if it proved that."""
    proofs = [structs.decode(TileProof, path.read_bytes(), path.name) for path in (first, second)]
    for path, proof, other in zip((first, second), proofs, reversed(proofs), strict=True):
        altered = replace(proof, proof=other.proof)
        (run / "proofs" / path.name).write_bytes(structs.encode(altered))


def find_false(honest: SignedRun, false: SignedRun, step: int) -> list[int]:
    """The statements about ``step`` that read a tile of the state after it which differs."""
    columns = [
        read_kzg_record(run.paths, run.task, run.signed.claim, step).after
        for run in (honest, false)
    ]
    differ = {i for i, (a, b) in enumerate(zip(*columns, strict=True)) if a != b}
    tiling, facts = Tiling(false.graph), StepFacts(step, false.records[step - 1].loss)
    found = []
    for index in range(len(tiling)):
        given = tiling.statement(index, facts).given.values()
        places = {tiling.place(tile) for parts in given for _, tile in parts}
        if any(("after", number) in places for number in differ):
            found.append(index)
    return found


def search(wanted: Callable[[bytes], bool]) -> bytes:
    """Randomness that is wanted: the auditor's luck, arranged."""
    seeds = (number.to_bytes(8, "big") for number in count())
    return next(seed for seed in seeds if wanted(seed))


def pass_off(
    honest: SignedRun, false: SignedRun, step: int, key: PrivateKey, setup: ProofSetup
) -> list[str]:
    """Claim the honest trace of ``step`` for the false run, and prove a statement that is false of
    it as it is of the honest one; what the auditor drew with, as options of its command."""
    claim, prover = false.signed.claim, TileProver(honest, setup)
    first = search(lambda seed: draw_steps(seed, claim, setup.proof.every, 1) == (step,))
    traces = (prover.trace(step).trace,)
    said = TraceClaim(compute_claim_digest(claim), first, traces)
    signed = sign_trace_claim(said, claim, key)

    def draw(seed: bytes) -> int:
        ((_, index),) = draw_statements(seed, said, prover.tiling, 1)
        return index

    wrong = find_false(honest, false, step)
    second = search(lambda seed: seed != first and draw(seed) in wrong)
    say(f"{len(wrong)} of {len(prover.tiling)} statements about step {step} are false")
    item = Item("tile", step, draw(second))
    proof = prover.prove(item, lambda opened: None)  # who cheats counts nothing
    path = traces_path(false.paths.root)
    path.parent.mkdir()
    path.write_bytes(structs.encode(signed))
    write_proof_file(false.paths.root, item, proof)
    drawn = ["--trace-seed", first.hex(), "--trace-samples", "1"]
    return [*drawn, "--seed", second.hex(), "--samples", "1"]


class Audit:
    """Three parties with their folders, and what they tell each other."""

    def __init__(self, folder: Path, task: Path, samples: int) -> None:
        self.task, self.samples = task, samples
        self.owner, self.solver, self.auditor = (
            folder / name for name in ("owner", "solver", "auditor")
        )
        for party in (self.owner, self.solver, self.auditor):
            party.mkdir()
        self.srs = folder / "srs"  # public: each has the same
        self.run, self.public = self.solver / "run", self.auditor / "run"
        self.kept = self.auditor / "kept"
        self.how: list[object] = ["--mode", "proof", "--private", "--srs", self.srs]
        self.how += ["--cache", self.auditor / "keys", "--allow-insecure-srs"]

    def prepare(self) -> None:
        """The owner signs, the solver trains and publishes."""
        call("srs", "generate", "--k", K, "--out", self.srs)
        with stage("owner", "signs the batches of the task"):
            key, batches = self.owner / "key.pem", self.owner / "batches.cbor"
            name = call("key", "new", key)["public"]
            hiding = self.owner / "hiding.key"
            signing = ("--key", key, "--out", batches, "--hiding", hiding)
            call("prove", "batches", self.task, "--srs", self.srs, *signing)
        shutil.copy(batches, self.auditor)
        shutil.copy(hiding, self.solver)  # for this solver alone
        with stage("solver", "trains, and logs commitments to the tiles of some steps"):
            key = self.solver / "key.pem"
            call("key", "new", key)
            training = ("--srs", self.srs, "--key", key)
            hidden = ("--batch-hiding", self.solver / "hiding.key")
            made = call("train", self.task, "--out", self.run, *training, *hidden)
        size = publish(self.run, self.public)
        say(f"{made['steps']} steps; what it publishes has {size} bytes")
        self.kept = keep_claim(self.public)
        say("keeps the claim: from now on no other will do", "auditor")
        self.how += ["--batches", self.auditor / "batches.cbor", "--owner", name]
        self.how += ["--task-id", made["task_id"]]

    def prove(self) -> tuple[int, list[Path], list[object]]:
        """Both draws, and the solver's answers: the step, the proofs, and how it was drawn."""
        proving = ("--srs", self.srs, "--cache", self.solver / "keys")
        first = secrets.token_hex(32)
        say(f"draws one of the steps with fresh randomness {first[:16]}...", "auditor")
        with stage("solver", "commits to every tile of that step"):
            drawing = ("--sample", 1, "--seed", first, "--key", self.solver / "key.pem")
            traces = call("prove", "traces", self.run, *drawing, *proving)
        (step,) = traces["steps"]
        say(f"step {step}: {traces['tiles']} tiles, {traces['statements']} statements")
        publish(self.run, self.public)
        pinned = self.auditor / "traces.cbor"
        shutil.copy(traces_path(self.public), pinned)
        second = secrets.token_hex(32)
        say(f"draws {self.samples} of them with other randomness {second[:16]}...", "auditor")
        with stage("solver", "makes keys, and proves the statements drawn"):
            asked = ("--sample", self.samples, "--seed", second)
            files = call("prove", self.run, *asked, *proving)["proofs"]
        tiling, proofs = Tiling(read_run(self.run).graph), [Path(file) for file in files]
        for path in proofs:
            proof = structs.decode(TileProof, path.read_bytes(), path.name)
            statement = tiling.statement(proof.statement, StepFacts(proof.step, 0))
            said = f"{statement.node}: {statement.circuit}, {len(proof.proof)} bytes"
            say(f"  statement {proof.statement}, of {said}")
        publish(self.run, self.public)
        drawn: list[object] = ["--claim", self.kept, "--trace-seed", first, "--trace-samples", 1]
        drawn += ["--trace-claim", pinned]
        return step, proofs, [*drawn, "--seed", second, "--samples", self.samples]

    def check(self, proofs: list[Path], drawn: list[object]) -> None:
        """The auditor verifies, and refuses right proofs in wrong places."""
        with stage("auditor", "makes the verifying keys itself, and checks the proofs"):
            report = call("verify", self.public, *self.how, *drawn)
        say(report["verdict"])
        for line in report["strength"]["checked"]:
            say(f"  {line}")
        say("exchanges two of the proofs", "solver")
        exchange(self.public, *proofs[:2])
        report = call("verify", self.public, *self.how, *drawn, code=3)
        say(f"{report['verdict']}: {find_refusal(report, 'statement')}", "auditor")

    def cheat(self, step: int) -> None:
        """The false run is sold, and refused."""
        out, key = self.solver / "false", load_key(self.solver / "key.pem")
        with stage("solver", f"sells a run with a false step {step}, and proofs of it done right"):
            task = compile_task(load_task(self.task, srs=self.srs), CommitKey)
            keep_secrets(self.run, out)
            train_falsely(task, out, key=key, cheat=alter_gradient, step=step)
            limits = Limits(memory=2 * MEMORY, seconds=3600)
            cache = self.solver / "keys"
            setup = ProofSetup.for_task(task.spec, self.srs, cache, limits, MEMORY)
            drawn = pass_off(read_run(self.run), read_run(out), step, key, setup)
        publish(out, self.auditor / "false")
        kept = ("--claim", keep_claim(self.auditor / "false"))
        report = call("verify", self.auditor / "false", *self.how, *kept, *drawn, code=3)
        refused = find_refusal(report, "is not the one expected")
        say(f"{report['verdict']}: {refused}", "auditor")


def play(folder: Path, task: Path, samples: int) -> None:
    """The whole audit; RunError as soon as something is not as it should be."""
    audit = Audit(folder, task, samples)
    audit.prepare()
    step, proofs, drawn = audit.prove()
    audit.check(proofs, drawn)
    audit.cheat(step)


def main() -> None:
    """Play it in a folder that goes away."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument(
        "--samples", type=int, default=3, metavar="N", help="statements drawn, 2 or more"
    )
    given = parser.parse_args()
    if given.samples < 2:
        parser.error("--samples: an exchange takes two proofs")
    if given.model == "mlp":
        make_wide()
    task = HERE / f"tiles-{given.model}.toml"
    play_all(lambda folder: play(folder, task, given.samples))


if __name__ == "__main__":
    main()
