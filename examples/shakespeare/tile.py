"""Prove one tile of a step of the GPT to an auditor who is given neither weights nor text: tile.py.

It needs what gpt.py writes, the extra zk (make zk), 4 GiB of memory, 2 GiB of disk, and ten minutes
or so of two idle cores, nearly all of them for the commitments to some 32,000 tiles.

- The solver trains a few steps of gpt.toml, with commitments to the tiles of state and batch of the
  last one in the run's log, and publishes the log without a tensor in it.
- The auditor keeps the claim and draws a step.  The solver commits to every tile of that step, and
  signs the root of these commitments; the auditor keeps that, too.
- The auditor draws one of all statements about the tiles of the step, whichever operator it is
  about.  The solver proves it; the auditor checks the proof with public files alone.

Last, the proof is altered, which is refused: a proof that does not hold blames nobody.

The SRS is made here, so that whoever made it could forge proofs (docs/proofs.md).
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import vtrain
from vtrain.attest.keys import PrivateKey, generate_key
from vtrain.audit.pin import make_pin
from vtrain.commit.files import read_text
from vtrain.errors import RunError, VtrainError
from vtrain.limits import LIMITS
from vtrain.prove.audit import ProofAudit, verify_proofs
from vtrain.prove.backend.ezkl import Limits
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.jobs import JobQueue
from vtrain.prove.proof_files import Item, proof_path, write_proof_file
from vtrain.prove.runs import read_run
from vtrain.prove.setup import ProofSetup
from vtrain.prove.tiles.prover import TileProver
from vtrain.prove.tiles.statements import StepFacts
from vtrain.prove.tiles.verifier import make_trace_pin, read_traces, traces_path
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask, compile_task, parse_task
from vtrain.wire import structs
from vtrain.wire.report import Report
from vtrain.wire.task import TaskSpec
from vtrain.wire.tiles import TileProof

TASK = Path(__file__).with_name("gpt.toml")
K = 15
MEMORY = 4 << 30
"""Bytes that a proof of a tile may take."""
COMMITMENTS = 'commitments = ["blake3", "kzg"]'


def say(who: str, what: str) -> None:
    """What a party does."""
    print(f"{who:8} {what}", flush=True)


def make_task(file: Path, steps: int, srs: Path) -> CompiledTask:
    """The task of ``file`` for so many steps, the last of which logs commitments to tiles."""
    generate_srs(srs, K)
    text = read_text(file, LIMITS.task_file_bytes).replace("[task]", f"[task]\n{COMMITMENTS}", 1)
    text += f'\n[proof]\ncircuit = "tiles"\nsrs = "{srs.resolve()}"\nk = {K}\nevery = {steps}\n'
    found = parse_task(text, file)
    return compile_task(
        replace(found, steps=steps, commit_every=1, checkpoint_every=steps), CommitKey
    )


class Solver:
    """Has the run, and hides its tensors."""

    def __init__(self, run: Path, setup: ProofSetup, key: PrivateKey) -> None:
        self.run, self._key = run, key
        self._signed = read_run(run)
        self._prover = TileProver(self._signed, setup)

    def describe(self, step: int, index: int) -> str:
        """What a statement is about."""
        facts = StepFacts(step, self._signed.records[step - 1].loss)
        statement = self._prover.tiling.statement(index, facts)
        nodes = {node.name: node for node in self._signed.graph.nodes}
        node = nodes.get(statement.node)
        about = f"{statement.node}, a {node.op}" if node else statement.node
        return f"{statement.circuit}, about {about}"

    def tell_statements(self) -> None:
        """How a step falls into statements."""
        tiling = self._prover.tiling
        leaves = tiling.leaf_count
        say("solver", f"commits to {leaves} tiles; {len(tiling)} statements say all of the step")

    def claim(self, randomness: bytes) -> None:
        """Commit to all tiles of the step drawn."""
        self._prover.claim_traces(randomness, 1, self._key)

    def prove(self, randomness: bytes) -> Item:
        """Prove the statement drawn, and count what that opens."""
        (item,) = self._prover.statements(read_traces(self.run), randomness, 1)
        say("auditor", f"draws statement {item.index}: {self.describe(item.step, item.index)}")
        began = time.monotonic()
        with JobQueue(f"sqlite:///{self.run.resolve()}/proofs/jobs.db") as queue:
            proof = self._prover.prove(item, queue.count_openings)
        write_proof_file(self.run, item, proof)
        took = time.monotonic() - began
        length = len(structs.decode(TileProof, proof, "proof").proof)
        say("solver", f"makes keys and proves it: {length} bytes, {took:.0f} s")
        return item


def publish(run: Path, folder: Path) -> Path:
    """What the solver hands over: logs and claims, and no tensor."""
    folder.mkdir()
    for name in ("task.cbor", "graph.cbor", "log.bin", "kzg.bin", "claim.cbor"):
        (folder / name).write_bytes((run / name).read_bytes())
    return folder


def keep(file: Path, folder: Path) -> Path:
    """A copy of the auditor's own: what lies in the run pins nothing."""
    kept = folder / f"{file.name}.kept"
    kept.write_bytes(file.read_bytes())
    return kept


def prove_tile(file: Path, steps: int, folder: Path) -> None:
    """All parties; RunError when something is not as it should be."""
    task = make_task(file, steps, folder / "srs")
    generate_key(folder / "solver.pem")
    key = vtrain.load_key(folder / "solver.pem")
    run = folder / "run"
    train(task, run, key=key)
    say("solver", f"trains {steps} steps and signs the log")
    limits = Limits(2 * MEMORY, 3600)

    def make_setup(spec: TaskSpec) -> ProofSetup:
        return ProofSetup.for_task(spec, folder / "srs", folder / "keys", limits, MEMORY)

    solver = Solver(run, make_setup(task.spec), key)
    public = publish(run, folder / "public")
    pin = make_pin(keep(public / RunPaths(run).claim.name, folder))
    first = secrets.token_bytes(16)
    say("auditor", "keeps the claim, and draws a step")
    solver.tell_statements()
    began = time.monotonic()
    solver.claim(first)
    say("solver", f"signs the root of their commitments: {time.monotonic() - began:.0f} s")
    (public / "proofs").mkdir()
    traces_path(public).write_bytes(traces_path(run).read_bytes())
    trace_pin = make_trace_pin(keep(traces_path(public), folder))
    second = secrets.token_bytes(16)
    item = solver.prove(second)
    proof = proof_path(run, item).read_bytes()

    def audit() -> Report:
        asked = ProofAudit(
            make_setup, traces=(first, 1), seed=second, sample=1, private=True, pin=pin,
            trace_pin=trace_pin, task_id=task.task_id, allow_insecure_srs=True,
        )  # fmt: skip
        return verify_proofs(public, asked)

    proof_path(public, item).write_bytes(proof)
    report = audit()
    say("auditor", f"verifies it with public files alone: {report.verdict}")
    if report.verdict != "verified":
        raise RunError("does not show the statement", where="proof")
    said = structs.decode(TileProof, proof, "proof")
    other = replace(said, proof=said.proof[:-32] + bytes(31) + b"\x01")
    proof_path(public, item).write_bytes(structs.encode(other))
    verdict = audit().verdict
    say("auditor", f"and of a proof with another end: {verdict}")
    if verdict != "inconclusive":
        raise RunError("shows a statement with another end as well", where="proof")
    print()
    for line in report.strength.checked:
        print(f"- checked: {line}")
    for line in report.strength.unchecked:
        print(f"- not checked: {line}")


def main() -> None:
    """Everything in a folder that goes away."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", type=Path, default=TASK, help="a task file with its exponents")
    parser.add_argument("--steps", type=int, default=4, help="of the run")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            prove_tile(given.task, given.steps, Path(folder))
    except VtrainError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
