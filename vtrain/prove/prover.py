"""From vectors to a proof.

Before ezkl sees a witness, every condition was evaluated here and those that fail were named; so
its own evaluation (``gen_witness``) and its mock prover, together as dear as half a proof, have
nothing to add and are left out.  A proof is handed out only after our own verifier took it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from vtrain.commit.files import storing
from vtrain.errors import CircuitError, ProverError
from vtrain.prove.backend.ezkl import (
    Call,
    Limits,
    Proof,
    ProofShape,
    encode_witness,
    open_secret,
    read_proof,
    run_ezkl,
    secret_path,
)
from vtrain.prove.backend.keys import Keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import PinnedCircuit
from vtrain.prove.backend.srs import Progress, quiet
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
    progress: Progress = quiet,
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
