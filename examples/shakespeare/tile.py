"""Prove one tile of a step of a trained model: tile.py RUN [--step N] [--node NAME].

It needs the extra zk (make zk), 4 GiB of memory, 1 GiB of disk, and a minute or two of two idle
cores.  Attention, norms and AdamW have nodes without a circuit, so that no step of these models is
proven as a whole, and their tasks commit to no tiles.  What can be had is a statement about a
single node, a product of matrices, say:

- the solver commits to the tiles of the node's inputs and output, hidden by a secret, and publishes
  the root of the tree of these commitments;
- the auditor draws a statement about one or a few tiles of them;
- the solver proves it; the auditor checks the proof, which tells nothing of the values.

That these tiles are those of the run is not proven: an auditor who is given the secret does the
step again and compares the root.  Whoever is not has to take the word of one who was.

The SRS is made here, so that whoever made it could forge proofs (docs/proofs.md).
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from vtrain.attest.claims import compute_claim_digest
from vtrain.audit.structure import read_state
from vtrain.dispute.run_provider import DisputedRun, load_run
from vtrain.engines.registry import open_session
from vtrain.errors import RunError, VtrainError
from vtrain.prove.backend.ezkl import Limits
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.setup import ProofSetup
from vtrain.prove.tiles.protocol import LoggedStep, TraceCommitments, verify_statement
from vtrain.prove.tiles.ready import TileCircuits
from vtrain.prove.tiles.statements import StepFacts, TileContents
from vtrain.prove.tiles.tiling import Tiling
from vtrain.wire.proof import KzgRecord, ProofSpec
from vtrain.wire.tiles import StepTrace, TileProof

K = 15
MEMORY = 4 << 30
"""Bytes that a proof of a tile may take."""
OP = "batched_matmul"


@dataclass(frozen=True)
class Target:
    """A node of one step of a run."""

    run: DisputedRun
    step: int
    node: int

    def find_facts(self) -> StepFacts:
        """What everybody knows of the step, from the log."""
        return StepFacts(self.step, self.run.evidence.records[self.step - 1].loss)

    def redo(self) -> dict[int, npt.NDArray[Any]]:
        """The node's inputs and output, by doing the run again from the checkpoint before."""
        task, evidence = self.run.task, self.run.evidence
        start = max((at for at in evidence.checkpoints if at < self.step), default=0)
        state = read_state(self.run.paths, task.spec, task.graph, evidence.records, start)
        session = open_session("auto", task.graph, task.samples)
        session.load_state(state)
        for _ in range(start + 1, self.step):
            session.step()
        wanted = [*(ref.node for ref in task.graph.nodes[self.node].inputs), self.node]
        return dict(zip(wanted, session.evaluate_all(wanted), strict=True))

    def commit(
        self, tiling: Tiling, key: CommitKey, hiding: Mapping[str, bytes]
    ) -> TraceCommitments:
        """The commitments to the tiles of the node, from doing the step."""
        contents = TileContents(tiling, self.find_facts(), self.redo())
        return TraceCommitments(contents, key, {}, hiding)


def find_node(run: DisputedRun, name: str | None) -> int:
    """The node of this name, or the first product of a stack of matrices."""
    for index, node in enumerate(run.task.graph.nodes):
        if node.name == name or (name is None and node.op == OP):
            return index
    raise RunError("is no node of the graph: `vtrain graph` lists them", where=f"--node {name}")


def make_setup(folder: Path) -> ProofSetup:
    """SRS and keys for tiles, in ``folder``."""
    made = generate_srs(folder / "srs", K)
    spec = ProofSpec("tiles", made.sha256, K, BLINDING, 1, (), {})
    return ProofSetup(spec, folder / "srs", folder / "keys", Limits(2 * MEMORY, 3600), MEMORY)


@dataclass(frozen=True)
class Auditor:
    """Knows the run's graph and log, the root of the tiles, and makes the verifying keys itself."""

    target: Target
    tiling: Tiling
    root: StepTrace
    key: CommitKey
    circuits: TileCircuits

    def holds(self, proof: TileProof) -> bool:
        """Whether the proof shows its statement about tiles under the root."""
        facts = self.target.find_facts()
        logged = LoggedStep(KzgRecord(facts.step, (), (), (), b"", b"", b""), facts.loss)
        verify = self.circuits.verify
        verdict = verify_statement(
            self.tiling, logged, self.root, proof, key=self.key, verify=verify
        )
        return verdict.holds


def prove_tile(target: Target, folder: Path) -> None:
    """Both parties; RunError when something is not as it should be."""
    graph, facts = target.run.task.graph, target.find_facts()
    tiling, node = Tiling(graph, only=target.node), graph.nodes[target.node]
    statements = [tiling.statement(index, facts) for index in range(len(tiling))]
    kinds = Counter(statement.circuit for statement in statements)
    print(f"step {target.step}, node {node.name}: {node.op} of shape {node.outputs[0].shape}")
    about = ", ".join(f"{count} {name}" for name, count in sorted(kinds.items()))
    print(f"{tiling.leaf_count} tiles, and {len(tiling)} statements about them: {about}")

    setup, claim = make_setup(folder), compute_claim_digest(target.run.signed.claim)
    key = setup.open_key()
    secret = {source: secrets.token_bytes(32) for source in ("before", "batch")}
    trace = target.commit(tiling, key, secret)
    print(f"solver   commits to the tiles: root {trace.trace.root.hex()[:16]}...", flush=True)

    own = [i for i, statement in enumerate(statements) if statement.node == node.name]
    at = secrets.randbelow(len(own))
    print(f"auditor  draws statement {own[at]}, one of {len(own)} about the node itself")

    began = time.monotonic()
    solver = TileCircuits(setup, key, claim, proving=True)
    proof = trace.prove(
        own[at],
        lambda statement, given, hiding, opened: solver.prove(
            statement,
            given,
            hiding,
            lambda: None,  # one proof opens nothing 64 times
        ),
    )
    took = time.monotonic() - began
    print(f"solver   makes keys and proves it: {len(proof.proof)} bytes, {took:.0f} s", flush=True)

    circuits = TileCircuits(setup, key, claim, proving=False)
    auditor = Auditor(target, tiling, trace.trace, key, circuits)
    if not auditor.holds(proof):
        raise RunError("does not show the statement", where="proof")
    moved = trace.prove(own[at - 1], lambda statement, given, hiding, opened: proof.proof)
    if len(own) > 1 and auditor.holds(moved):
        raise RunError("shows a statement about other tiles as well", where="proof")
    print("auditor  finds that it holds, and that it is no proof of the statement before")

    if target.commit(tiling, key, secret).trace != trace.trace:
        raise RunError("is not that of the run's step", where="root")
    print("auditor  is given the secret, does the step again, and finds the same root")
    print(f"""
Proven: statement {own[at]} about {node.name} in step {target.step}, of the tiles committed to.
Compared by doing the step again: that these are the tiles of the run.
Not proven: what the other {len(statements) - 1} statements about this node and its operands say,
such as that these are in their ranges; every other node; every other step.""")


def main() -> None:
    """Everything but the run in a folder that goes away."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--step", type=int, default=1, help="of the run, from 1")
    parser.add_argument("--node", help=f"its name; the first {OP} if none is given")
    given = parser.parse_args()
    try:
        run = load_run(given.run)
        steps = run.signed.claim.log_size
        if not 1 <= given.step <= steps:
            raise RunError(f"is none of the {steps} steps of the run", where="--step")
        target = Target(run, given.step, find_node(run, given.node))
        with tempfile.TemporaryDirectory() as folder:
            prove_tile(target, Path(folder))
    except VtrainError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
