"""Proofs by ezkl of what steps of language models need and others do not.

Of runs, from the solver's tensors to what an auditor has: rows with more classes than a circuit has
columns and the fine gradient of their logits, spans that follow from ids which stay hidden, AdamW,
and gradients clipped by the norm of all of them.  Statements are about the last block, in which
most is padding.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.audit.runs import KEY
from tests.kzg import add_kzg, make_key, make_srs_fixture
from tests.prove.steps import uncounted
from tests.prove.test_tile_runs import FIRST, K, make_setup, open_prover, publish
from tests.tasks import make_tiny_task
from vtrain.attest.claims import compute_claim_digest
from vtrain.graph import step
from vtrain.prove.proof_files import Item
from vtrain.prove.runs import SignedRun, read_run
from vtrain.prove.tiles.protocol import LoggedStep, verify_statement
from vtrain.prove.tiles.ready import TileCircuits
from vtrain.prove.tiles.statements import StepFacts
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.tiles.verifier import read_traces
from vtrain.train.runner import train
from vtrain.train.signed import read_kzg_record
from vtrain.wire import structs
from vtrain.wire.tiles import TileProof, TileTrace

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ABOUT = {
    "llama": (
        *(("row_max", "matmul-tn"), ("exp2_diff", "look-up"), ("row_sum", "matmul-nt")),
        *(("cross_entropy", "look-up"), ("logit_grad", "range-3"), ("capped_square", "mul")),
        *(("clip_factor", "gate"), ("scale_by", "rescale-i64-2"), ("adam_mean", "rescale-i32-2")),
        *(("adam_square", "rescale-i64-2"), ("adam_direction", "rescale-i32-0")),
    ),
    "packed gpt": (
        *(("token_spans", "gate"), ("token_spans", "linear"), ("keep_span", "mul")),
        *(("row_max", "mul"), ("exp2_diff", "gate"), ("row_sum", "matmul-nt")),
        ("divide", "range-1"),
    ),
    "gpt": (("rescale", "softmax-16"), ("logit_grad", "mul"), ("logit_grad", "matmul-tn")),
}
"""Operators and circuits.  The first has 1,030 classes with a fine gradient, and AdamW; the second
attends within documents that stay hidden; the third has 12 classes with a fine gradient."""

srs = make_srs_fixture()


@dataclass(frozen=True)
class Auditor:
    """What an auditor has of a run, and how it looks at a proof."""

    run: SignedRun
    tiling: Tiling
    trace: TileTrace
    circuits: TileCircuits
    srs: Path

    def takes(self, data: bytes) -> bool:
        """Whether a proof shows its statement."""
        claim, number = self.run.signed.claim, self.trace.step
        record = read_kzg_record(self.run.paths, self.run.task, claim, number)
        return verify_statement(
            self.tiling,
            LoggedStep(record, self.run.records[number - 1].loss),
            self.trace,
            structs.decode(TileProof, data, "proof"),
            key=make_key(self.srs, K),
            verify=self.circuits.verify,
        ).holds


def make_run(kind: str, srs: Path, folder: Path) -> Path:
    """Two steps of a tiny model by AdamW, with the solver's trace of one of them."""
    with patch.object(step, "FEW_CLASSES", 0 if kind == "gpt" else step.FEW_CLASSES):
        task = make_tiny_task.__wrapped__(
            kind, optimizer="adamw", steps=2, batch=2, commit_every=1, checkpoint_every=2
        )
    train(add_kzg(task, make_key(srs, K), 1, "tiles"), folder, key=KEY)
    open_prover(folder, srs).claim_traces(FIRST, 1, KEY)
    return folder


def open_auditor(public: Path, srs: Path) -> Auditor:
    run = read_run(public)
    (trace,) = read_traces(public).trace_claim.traces
    setup, claim = make_setup(run.task, srs), compute_claim_digest(run.signed.claim)
    circuits = TileCircuits(setup, make_key(srs, K), claim, proving=False)
    return Auditor(run, Tiling(run.graph), trace, circuits, srs)


def choose_statements(
    tiling: Tiling, about: Collection[tuple[str, str]], facts: StepFacts
) -> dict[tuple[str, str], int]:
    """The last statement about a node of the operator, by the circuit."""
    ops = {node.name: node.op for node in tiling.graph.nodes}
    every = (tiling.statement(index, facts) for index in range(len(tiling)))
    found = {(ops.get(made.node), made.circuit): index for index, made in enumerate(every)}
    return {wanted: found[wanted] for wanted in about}


@pytest.mark.parametrize("kind", ABOUT)
def test_statements_about_each_operator_are_proven(kind: str, srs: Path, tmp_path: Path) -> None:
    run = make_run(kind, srs, tmp_path / "run")
    prover, auditor = open_prover(run, srs), open_auditor(publish(run, tmp_path / "public"), srs)
    facts = StepFacts(auditor.trace.step, auditor.run.records[auditor.trace.step - 1].loss)
    before = None
    chosen = choose_statements(auditor.tiling, ABOUT[kind], facts)
    for (op, circuit), index in chosen.items():
        data = prover.prove(Item("tile", facts.step, index), uncounted)
        assert auditor.takes(data), f"{op}: {circuit}"
        proof = structs.decode(TileProof, data, "proof")
        if before is not None and len(before.proof) == len(proof.proof):
            other = structs.encode(TileProof(facts.step, index, proof.openings, before.proof))
            assert not auditor.takes(other), f"{op}: {circuit}, by the proof before"
        before = proof
