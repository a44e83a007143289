"""What ezkl's mock prover says of witnesses, false ones as well, without keys or commitments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.prove.circuits import encode_inputs
from vtrain.prove.backend.ezkl import (
    Call,
    CallFailedError,
    Limits,
    Verification,
    encode_element,
    try_ezkl,
)
from vtrain.prove.backend.settings import PinnedCircuit
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints


def mock_many(
    circuit: Circuit,
    pinned: PinnedCircuit,
    witnesses: Sequence[Mapping[str, Ints]],
    limits: Limits,
) -> list[Verification]:
    """What ezkl's mock prover says of witnesses: given vectors and groups by name.

    One holds if every constraint does and the outputs are ones and zeros as the verifier demands.
    No keys and no commitments: neither the given vectors nor the challenge are compared with
    anything.  All in one process, with the circuit compiled once.  ProverError when it dies, or the
    circuit does not compile.
    """
    with TemporaryDirectory(prefix="vtrain-mock-") as temporary:
        folder = Path(temporary)
        model, settings, compiled = (str(folder / item) for item in ("model", "settings", "it"))
        Path(model).write_bytes(pinned.onnx)
        Path(settings).write_bytes(pinned.settings)
        calls = [
            Call(
                "compile_circuit",
                {"model": model, "compiled_circuit": compiled, "settings_path": settings},
            )
        ]
        for index, vectors in enumerate(witnesses):
            data, witness = folder / f"data {index}", str(folder / f"witness {index}")
            columns = circuit.lay_out(vectors)
            data.write_text(encode_inputs(*(columns[item] for item in circuit.inputs)))
            calls.append(
                Call("gen_witness", {"data": str(data), "model": compiled, "output": witness})
            )
            calls.append(Call("mock", {"witness": witness, "model": compiled}))
        compile_outcome, *outcomes = try_ezkl(calls, limits)
    if isinstance(compile_outcome, CallFailedError):
        raise compile_outcome
    return [
        _judge(circuit, made, held)
        for made, held in zip(outcomes[::2], outcomes[1::2], strict=True)
    ]


def _judge(circuit: Circuit, made: Any, held: Any) -> Verification:
    for outcome in (made, held):
        if isinstance(outcome, CallFailedError):
            return Verification(False, str(outcome))
    if held is not True:
        return Verification(False, "mock did not say that it holds")
    for (name, answers), values in zip(
        circuit.compute_answers().items(), made["outputs"], strict=True
    ):
        wanted = [encode_element(int(answer)) for answer in answers]
        if values != wanted:
            pairs = enumerate(zip(values, wanted, strict=True))
            places = [str(i) for i, (value, answer) in pairs if value != answer]
            return Verification(False, f"{name} has other values at {', '.join(places[:8])}")
    return Verification(True, "")
