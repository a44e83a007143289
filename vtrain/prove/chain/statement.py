"""What the contract ``StatementVerifier`` is told of a circuit, and what is asked of it.

The contract draws the challenge c by keccak256, as :func:`vtrain.prove.verifier.derive_challenge`
does, and puts it into the commitment to the ``computed`` columns: P + c L, where P is the
commitment with zero in the challenge's place and L the point of its row.  P holds the constants of
the circuit and the parameters of the statement, and names them as a commitment names a given
column.

- A circuit without parameters has one P, a constant of the contract.
- Else who asks names P; :func:`commit_parameters` computes it.  For few parameters the contract
  does so too (``commitParameters``), as constants and parameters add up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import numpy as np

from vtrain.errors import CircuitError
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import PinnedCircuit
from vtrain.prove.backend.srs import SRS_POINT
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import COLUMNS, Ints
from vtrain.prove.verifier import (
    commit_answers,
    commit_columns,
    keccak256,
    require_given,
)
from vtrain.spec.domains import PROOF_CHALLENGE
from vtrain.wire.proof import Hash

STATEMENT: Final = "StatementVerifier"

MAX_PARAMETERS: Final = 8
"""The most for which a contract commits itself, at 6,500 gas and 70 bytes of code each: a whole
step has 2, tiles that have any have more than 200."""

_CONSTANT: Final = r"(constant %s\s*=\s*)[^;]+;"


@dataclass(frozen=True)
class Binding:
    """What a contract knows of a circuit.  Commitments and points have 64 bytes each.

    ``given``, ``private``, ``computed``, ``late`` are the numbers of columns of each kind, in the
    order of their commitments in a proof, before the ``answers``.
    """

    circuit: bytes
    given: int
    private: int
    computed: int
    late: int
    answers: tuple[bytes, ...]
    fixed: tuple[bytes, ...]
    """Of a circuit without parameters, the commitments to ``computed`` but for the challenge."""
    points: tuple[bytes, ...]
    """Of a circuit with few parameters, the commitment to its constants, and each one's point."""
    challenge: bytes | None
    """The point of the challenge's row."""
    drawn_from_computed: bool

    @property
    def columns(self) -> int:
        """How many commitments a proof begins with."""
        return self.given + self.private + self.computed + self.late + len(self.answers)


def require_drawable(hash: Hash, circuit: Circuit | None = None) -> None:
    """CircuitError for a hash, or a circuit, by which no contract of ours draws a challenge."""
    if hash != "keccak256":
        raise CircuitError(
            f"is {hash}, and contracts draw challenges by keccak256 alone: "
            'a task says so by hash = "keccak256" under [proof]',
            where="proof.hash",
        )
    if circuit is not None and circuit.length("challenge") > 1:
        raise CircuitError(
            f"has {circuit.length('challenge') - 1} elements that the verifier computes from the "
            "challenge, too many for a contract: audits off chain verify such proofs",
            where="challenge",
        )


def bind_circuit(
    circuit: Circuit, pinned: PinnedCircuit, commit_key: CommitKey, *, threads: int = 0
) -> Binding:
    """What the contract for a circuit is to know; CircuitError as of :func:`require_drawable`."""
    require_drawable("keccak256", circuit)

    def count(kind: str) -> int:
        return sum(name.partition(" ")[0] == kind for name in circuit.inputs[len(circuit.given) :])

    shapes = {name: shape for name, _, shape in circuit.parameters}
    constants = commit_public(
        circuit,
        {name: np.zeros(shape, dtype=object) for name, shape in shapes.items()},
        commit_key,
        threads=threads,
    )
    rows = [
        start + offset
        for _, start, shape in circuit.parameters
        for offset in range(int(np.prod(shape, dtype=np.int64)))
    ]
    points: list[bytes] = []
    if 1 <= len(rows) <= MAX_PARAMETERS and len(constants) == 1:
        points = [*constants, *map(commit_key.find_point, rows)]
    challenge = None
    if circuit.length("challenge"):
        last = [name for name in circuit.inputs if name.partition(" ")[0] == "computed"][-1]
        challenge = commit_key.find_point(circuit.length(last) - 1)
    return Binding(
        circuit=pinned.digest,
        given=len(circuit.given),
        private=count("private"),
        computed=count("computed"),
        late=count("late"),
        answers=tuple(commit_answers(circuit, commit_key, threads=threads).values()),
        fixed=() if shapes else constants,
        points=tuple(points),
        challenge=challenge,
        drawn_from_computed=circuit.length("public") > 0,
    )


def commit_public(
    circuit: Circuit, parameters: Mapping[str, Ints], commit_key: CommitKey, *, threads: int = 0
) -> tuple[bytes, ...]:
    """The commitments to the ``computed`` columns, with zero in the challenge's place."""
    groups = COLUMNS["computed"]
    values = {name: np.zeros(circuit.length(name), dtype=object) for name in groups}
    values["public"] = circuit.compute_public(parameters)
    columns = circuit.lay_out({name: value for name, value in values.items() if value.size})
    return tuple(commit_columns(circuit, commit_key, columns, threads=threads).values())


def commit_parameters(
    circuit: Circuit, parameters: Mapping[str, Ints], commit_key: CommitKey, *, threads: int = 0
) -> bytes:
    """What ``StatementVerifier.verify`` takes as the parameters of a statement.

    Empty for a circuit that has none.
    """
    if not circuit.parameters:
        return b""
    return b"".join(commit_public(circuit, parameters, commit_key, threads=threads))


def join_given(circuit: Circuit, expected: Mapping[str, bytes]) -> bytes:
    """What ``StatementVerifier.verify`` takes as the given columns: their commitments in order.

    CircuitError for other names than the given.
    """
    require_given(circuit, expected)
    return b"".join(expected[name] for name in circuit.given)


def flatten_parameters(circuit: Circuit, parameters: Mapping[str, Ints]) -> tuple[int, ...]:
    """What ``StatementVerifier.commitParameters`` takes: the integers of a statement, in order."""
    return tuple(
        int(value) for name, _, _ in circuit.parameters for value in np.ravel(parameters[name])
    )


def write_statement_verifier(binding: Binding, verifier_code: bytes) -> str:
    """The source of the contract for a circuit and its deployed verifier of this code."""
    counts = (binding.given, binding.private, binding.computed, binding.late, len(binding.answers))
    ends = [SRS_POINT * end for end in np.cumsum(counts).tolist()]
    x, y = (0, 0) if binding.challenge is None else _read_point(binding.challenge)
    values = {
        "CIRCUIT": _hex(binding.circuit),
        "GIVEN_END": ends[0],
        "PRIVATE_END": ends[1],
        "COMPUTED_END": ends[2],
        "LATE_END": ends[3],
        "ANSWERS_END": ends[4],
        "ANSWERS": _hex(keccak256(b"".join(binding.answers))),
        "FIXED": f'hex"{b"".join(binding.fixed).hex()}"',
        "POINTS": f'hex"{b"".join(binding.points).hex()}"',
        "CHALLENGE_X": x,
        "CHALLENGE_Y": y,
        "DRAWN_FROM_COMPUTED": str(binding.drawn_from_computed).lower(),
        "VERIFIER_CODE": _hex(keccak256(verifier_code)),
        "DOMAIN": _hex(keccak256(PROOF_CHALLENGE.encode())),
    }
    source = files("vtrain.prove.chain").joinpath(f"contracts/{STATEMENT}.sol").read_text()
    for name, value in values.items():
        source = re.sub(_CONSTANT % name, rf"\g<1>{value};", source, count=1)
    return source


def _hex(data: bytes) -> str:
    return f"0x{data.hex()}"


def _read_point(point: bytes) -> tuple[int, int]:
    return int.from_bytes(point[:32]), int.from_bytes(point[32:])
