"""Disclosing steps: the keys of what their commitments hide, for an auditor who may see them."""

from __future__ import annotations

from collections.abc import Collection

from vtrain.commit.hiding import identify_key
from vtrain.errors import RunError
from vtrain.prove.runs import SignedRun, StepSource, require_logged_keys
from vtrain.prove.steps.builder import AFTER, BATCH, BEFORE
from vtrain.wire.hiding import Hiding, HidingKey, Kind


def disclose_steps(run: SignedRun, source: StepSource, steps: Collection[int]) -> Hiding:
    """The keys of the states before and after these steps, and of their batches.

    RunError for a step without a record in the KZG log, and where a key is not the one in it;
    NotProducedError where tensors or secrets are missing; StepDiffersError.
    """
    proof = run.task.kzg
    if proof is None:
        raise RunError("logs no KZG commitments: nothing is hidden", where="task.commitments")
    found: dict[tuple[Kind, int], bytes] = {}
    for step in sorted(set(steps)):
        if step % proof.every or not 1 <= step <= len(run.records):
            raise RunError(
                f"has no KZG record: these are of every {proof.every} steps up to "
                f"{len(run.records)}",
                where=f"step {step}",
            )
        keys = source.keys(step)
        require_logged_keys(run, step, {name: identify_key(key) for name, key in keys.items()})
        found["batch", step] = keys[BATCH]
        found["state", step] = keys[AFTER]
        if step > 1:  # whoever holds the initial state has its key
            found["state", step - 1] = keys[BEFORE]
    keys_in_order = (HidingKey(kind, index, key) for (kind, index), key in sorted(found.items()))
    return Hiding(keys=tuple(keys_in_order))
