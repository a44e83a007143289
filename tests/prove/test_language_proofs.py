"""Proofs by ezkl of what steps of language models need and others do not.

Of runs, from the solver's tensors to what an auditor has: rows with more classes than a circuit has
columns and the fine gradient of their logits, spans that follow from ids which stay hidden, AdamW,
and gradients clipped by the norm of all of them.  One statement about each operator, by a circuit
that has been seen least so far, and about the last block, in which most is padding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.audit.runs import KEY
from tests.kzg import add_kzg, make_key, make_srs_fixture
from tests.prove.steps import uncounted
from tests.prove.test_tile_runs import FIRST, K, make_setup, open_prover, publish
from tests.tasks import make_tiny_task
from vtrain.attest.claims import compute_claim_digest
from vtrain.prove.proof_files import Item
from vtrain.prove.runs import SignedRun, read_run
from vtrain.prove.tiles.protocol import LoggedStep, verify_statement
from vtrain.prove.tiles.ready import TileCircuits
from vtrain.prove.tiles.statements import LINEAR, StepFacts
from vtrain.prove.tiles.tiling import Tiling
from vtrain.prove.tiles.verifier import read_traces
from vtrain.train.runner import train
from vtrain.train.signed import read_kzg_record
from vtrain.wire import structs
from vtrain.wire.tiles import TileProof, TileTrace

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

UPDATE = ("capped_square", "clip_factor", "scale_by", "adam_mean", "adam_square", "adam_direction")
ABOUT = {
    "llama": ("row_max", "exp2_diff", "row_sum", "logit_grad", "cross_entropy", *UPDATE),
    "packed gpt": ("token_spans", "keep_span", "row_max", "exp2_diff", "row_sum", "divide"),
}
"""1,030 classes with a fine gradient, and AdamW; attention within hidden documents."""

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
        claim, step = self.run.signed.claim, self.trace.step
        record = read_kzg_record(self.run.paths, self.run.task, claim, step)
        return verify_statement(
            self.tiling,
            LoggedStep(record, self.run.records[step - 1].loss),
            self.trace,
            structs.decode(TileProof, data, "proof"),
            key=make_key(self.srs, K),
            verify=self.circuits.verify,
        ).holds


def make_run(kind: str, srs: Path, folder: Path) -> Path:
    """Two steps of a tiny model by AdamW, with the solver's trace of one of them."""
    task = make_tiny_task(
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


def list_statements(tiling: Tiling, op: str, facts: StepFacts) -> dict[str, int]:
    """By circuit, the last statement about nodes of this operator."""
    names = {node.name for node in tiling.graph.nodes if node.op == op}
    about = (tiling.statement(index, facts) for index in range(len(tiling)))
    return {found.circuit: i for i, found in enumerate(about) if found.node in names}


def choose_statements(
    tiling: Tiling, ops: Iterable[str], facts: StepFacts
) -> Iterator[tuple[str, str, int]]:
    """(operator, circuit, statement), one an operator; ranges and images, which all have, last."""
    seen = Counter[str]()
    for op in ops:
        found = list_statements(tiling, op, facts)
        circuit = min(found, key=lambda name: (seen[name], name.startswith((LINEAR, "range"))))
        seen[circuit] += 1
        yield op, circuit, found[circuit]


@pytest.mark.parametrize("kind", ABOUT)
def test_statements_about_each_operator_are_proven(kind: str, srs: Path, tmp_path: Path) -> None:
    run = make_run(kind, srs, tmp_path / "run")
    prover, auditor = open_prover(run, srs), open_auditor(publish(run, tmp_path / "public"), srs)
    facts = StepFacts(auditor.trace.step, auditor.run.records[auditor.trace.step - 1].loss)
    before = None
    for op, circuit, index in choose_statements(auditor.tiling, ABOUT[kind], facts):
        data = prover.prove(Item("tile", facts.step, index), uncounted)
        assert auditor.takes(data), f"{op}: {circuit}"
        proof = structs.decode(TileProof, data, "proof")
        if before is not None and len(before.proof) == len(proof.proof):
            other = structs.encode(TileProof(facts.step, index, proof.openings, before.proof))
            assert not auditor.takes(other), f"{op}: {circuit}, by the proof before"
        before = proof
