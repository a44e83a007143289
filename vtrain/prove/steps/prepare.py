"""From a graph to a circuit of its step with keys."""

from __future__ import annotations

import threading

from vtrain.prove.backend.srs import Progress, quiet
from vtrain.prove.runs import StepValues
from vtrain.prove.setup import ProofSetup, ReadyCircuit, make_ready
from vtrain.prove.steps.circuits import build_step_circuit
from vtrain.prove.steps.probe import probe_step_circuit
from vtrain.wire.graph import StepGraph


def prepare_circuit(
    graph: StepGraph,
    setup: ProofSetup,
    name: str,
    *,
    proving: bool,
    values: StepValues | None = None,
    progress: Progress = quiet,
    cancelled: threading.Event | None = None,
) -> ReadyCircuit:
    """Build a step circuit and make or find its keys: see :func:`make_ready`.

    Before keys are made the circuit is tried (``vtrain.prove.steps.probe``) on the step that
    ``values`` are of, if any, and on others; CircuitError when it is at fault.
    """
    circuit = build_step_circuit(graph, setup.proof.k, name)

    def probe() -> None:
        real = None if values is None else (values.given, values.parameters)
        probe_step_circuit(graph, circuit, name, real, progress=progress, cancelled=cancelled)

    return make_ready(
        name,
        circuit,
        setup,
        proving=proving,
        check=probe,
        progress=progress,
        cancelled=cancelled,
    )
