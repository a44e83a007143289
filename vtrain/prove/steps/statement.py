"""What a proof of a whole step is of: its columns, its parameters, and the words of its bundle.

A statement about a step is of what its circuit is given (state before, batch, state after, as
columns of integers: ``vtrain.commit.kzg_layout``) and of its parameters (learning rate and loss).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vtrain.attest.claims import compute_claim_digest
from vtrain.ops import TABLE
from vtrain.prove.backend.ezkl import EZKL_VERSION
from vtrain.prove.circuit.values import Ints
from vtrain.prove.setup import ProofSetup
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE, LOSS, RATE
from vtrain.wire.bundle import BundleHeader
from vtrain.wire.graph import StepGraph
from vtrain.wire.proof import KzgRecord
from vtrain.wire.record import StepRecord

if TYPE_CHECKING:
    from vtrain.prove.runs import SignedRun


def describe_step(
    run: SignedRun, setup: ProofSetup, step: int, name: str, circuit: bytes, key: bytes
) -> BundleHeader:
    """What a proof of ``step`` says it is of: a circuit of this name, these digests."""
    claim = run.signed.claim
    parameters = compute_parameters(run.graph, run.records[step - 1])
    return BundleHeader(
        kind="step",
        task_id=claim.task_id,
        run_id=claim.run_id,
        claim=compute_claim_digest(claim),
        step=step,
        name="step",
        index=0,
        circuit_name=name,
        circuit=circuit,
        key=key,
        srs=setup.proof.srs,
        insecure=setup.is_insecure,
        k=setup.proof.k,
        ezkl=EZKL_VERSION,
        parameters={name: tuple(map(int, value)) for name, value in parameters.items()},
    )


def compute_parameters(graph: StepGraph, record: StepRecord) -> dict[str, Ints]:
    """Learning rate (mantissa) and loss of the step that ``record`` is of, each of shape [1]."""
    schedule = graph.nodes[graph.find("schedule")]
    rate = TABLE["schedule"].law(schedule.attrs, [np.asarray(record.step - 1, dtype=np.int64)])
    return {
        RATE: np.asarray([int(rate)], dtype=object),
        LOSS: np.asarray([record.loss], dtype=object),
    }


def expect(record: KzgRecord) -> dict[str, bytes]:
    """The commitments to the given columns of a step, as its record has them."""
    return name_columns({BEFORE: record.before, BATCH: record.batch, AFTER: record.after})


def name_columns(vectors: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Columns under the names that circuits give them: "before", or "before 0", "before 1" ..."""
    named = {}
    for name, columns in vectors.items():
        for index, column in enumerate(columns):
            named[name if len(columns) == 1 else f"{name} {index}"] = column
    return named
