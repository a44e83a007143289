"""From vectors to a proof, and what ezkl says of false witnesses.

Before ezkl sees a witness, every condition was evaluated here and those that fail were named; so
its own evaluation (``gen_witness``) and its mock prover, together as dear as half a proof, have
nothing to add and are left out.  A proof is handed out only after our own verifier took it.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vtrain.commit.files import storing
from vtrain.errors import CircuitError, ProverError
from vtrain.prove.backend.ezkl import (
    Call,
    CallFailedError,
    Limits,
    Proof,
    ProofShape,
    Verification,
    encode_element,
    encode_witness,
    open_secret,
    read_proof,
    run_ezkl,
    secret_path,
    try_ezkl,
)
from vtrain.prove.backend.keys import Keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import PinnedCircuit
from vtrain.prove.backend.srs import Progress
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints, Random
from vtrain.prove.verifier import (
    Expansion,
    check_fit,
    commit_columns,
    draw_challenge,
    read_commitments,
    verify,
)
from vtrain.wire.proof import Hash


def prove(
    circuit: Circuit,
    pinned: PinnedCircuit,
    keys: Keys,
    *,
    given: Mapping[str, Ints],
    hiding: Mapping[str, Sequence[int]],
    count: Callable[[], None],
    parameters: Mapping[str, Ints],
    srs: Path,
    commit_key: CommitKey,
    limits: Limits,
    expansion: Expansion | None = None,
    claim: bytes,
    hash: Hash = "blake3",
    random: Random = secrets.token_bytes,
    progress: Progress = lambda what, done, total: None,
    cancelled: threading.Event | None = None,
) -> Proof:
    """Prove that the circuit's conditions hold of the ``given`` vectors and ``parameters``.

    ``hiding`` are the elements behind the values of given vectors by name, zeros where it has none;
    ``count`` counts that the vectors are opened, or refuses it, before anything is.
    What else hides the witness is drawn from ``random``.
    ``keys`` have a proving key, ``srs`` is the file that they were made with; the proof answers for
    the claim of the digest ``claim`` alone.  CircuitError names
    the conditions that do not hold, or what does not belong together; ProverError when ezkl fails,
    or when its proof is none or of something else.
    """
    check_fit(circuit, pinned, keys, commit_key)
    total = 4
    progress("witness", 0, total)
    commitments: dict[str, bytes] = {}

    def draw(before: Mapping[str, Ints]) -> Sequence[int]:
        columns = circuit.lay_out(before)
        commitments.update(commit_columns(circuit, commit_key, columns, threads=limits.threads))
        return draw_challenge(circuit, pinned, commitments, expansion, claim=claim, hash=hash)

    vectors = circuit.assign(given, parameters, draw, hiding=hiding, random=random)
    columns = circuit.lay_out(vectors)
    left = {name: columns[name] for name in circuit.given if name not in commitments}
    commitments.update(commit_columns(circuit, commit_key, left, threads=limits.threads))
    progress("witness", 1, total)
    if broken := circuit.find_broken(vectors):
        names = ", ".join(dict.fromkeys(broken))
        raise CircuitError(f"the conditions do not hold: {names[:_MOST_NAMES]}")
    progress("prove", 2, total)
    count()
    text = encode_witness(
        [columns[name] for name in circuit.inputs],
        circuit.compute_answers().values(),  # all conditions hold, so these are the outputs
    )
    # The witness is weights and data of the solver: it stays nowhere, even if all are killed.
    with open_secret(text) as witness, TemporaryDirectory(prefix="vtrain-prove-") as folder:
        file = Path(folder) / "proof"
        call = Call(
            "prove",
            {"witness": secret_path(witness), "model": str(keys.compiled), "proof_path": str(file)}
            | {"pk_path": str(keys.pk), "srs_path": str(srs)},
        )
        run_ezkl([call], limits, cancelled=cancelled, secrets=[witness])
        with storing(file):
            proof = read_proof(file.read_bytes(), ProofShape(keys.proof_length, 0))
    progress("verify", 3, total)
    found = read_commitments(circuit, proof)
    for name in circuit.given:
        if found[name] != commitments[name]:
            raise ProverError("ezkl committed to something else than we did", where=name)
    verdict = verify(
        circuit,
        pinned,
        keys,
        proof.data,
        expected={name: commitments[name] for name in circuit.given},
        parameters=parameters,
        commit_key=commit_key,
        limits=limits,
        expansion=expansion,
        claim=claim,
        hash=hash,
    )
    if not verdict.holds:
        raise ProverError(f"the proof does not hold: {verdict.reason}", where="verify")
    progress("verify", total, total)
    return proof


_MOST_NAMES = 1000


def mock_many(
    circuit: Circuit,
    pinned: PinnedCircuit,
    witnesses: Sequence[Mapping[str, Ints]],
    limits: Limits,
    *,
    cancelled: threading.Event | None = None,
) -> list[Verification]:
    """What ezkl's mock prover says of witnesses: given vectors and groups by name.

    One holds if every constraint does and the outputs are ones and zeros as the verifier demands.
    No keys and no commitments: neither the given vectors nor the challenge are compared with
    anything.  All in one process, with the circuit compiled once.  ProverError when it dies, or the
    circuit does not compile.
    """
    with TemporaryDirectory(prefix="vtrain-mock-") as name:
        folder = Path(name)
        model, settings, compiled = (str(folder / item) for item in ("model", "settings", "it"))
        with storing(folder):
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
            with storing(data):
                data.write_text(encode_inputs(circuit, vectors))
            calls.append(
                Call("gen_witness", {"data": str(data), "model": compiled, "output": witness})
            )
            calls.append(Call("mock", {"witness": witness, "model": compiled}))
        compile_outcome, *outcomes = try_ezkl(calls, limits, cancelled=cancelled)
    if isinstance(compile_outcome, CallFailedError):
        raise compile_outcome
    return [
        _judge(circuit, made, held)
        for made, held in zip(outcomes[::2], outcomes[1::2], strict=True)
    ]


def encode_inputs(circuit: Circuit, vectors: Mapping[str, Ints]) -> str:
    """The input file of ezkl: every integer as a field element."""
    columns = circuit.lay_out(vectors)
    return json.dumps(
        {"input_data": [[encode_element(int(v)) for v in columns[n]] for n in circuit.inputs]}
    )


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
