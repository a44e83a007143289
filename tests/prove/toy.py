"""A small circuit with a vector of every kind, its keys, and a proof: what the tests share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.prove.circuits import LIMITS, encode_inputs
from vtrain.prove.backend.ezkl import Call, run_ezkl
from vtrain.prove.backend.keys import Keys, load_keys
from vtrain.prove.backend.kzg import CommitKey
from vtrain.prove.backend.settings import BLINDING, PinnedCircuit, count_usable, pin
from vtrain.prove.backend.srs import generate_srs
from vtrain.prove.circuit.builder import CircuitBuilder
from vtrain.prove.circuit.circuit import Circuit
from vtrain.prove.circuit.values import Ints
from vtrain.prove.prover import prove
from vtrain.prove.verifier import commit_columns, commit_vector, draw_challenge

K = 9
SPAN = 255
MASKS = 4
"""So few that they fit so few rows; what they are for is tested elsewhere."""
TABLE = np.arange(-4, 5)
GIVEN = {
    "a": np.array([1, -2, 3, -4]),
    "b": np.array([127, -127, 5, 0]),
    "c": np.array([117, -127, 361, -381]),
}
PARAMETERS = {"total": np.array([-30])}
CHOSEN = 12345
"""A challenge that nobody drew."""
CANCELLED = np.array([CHOSEN, -1, -CHOSEN, 1])
"""Errors in ``c`` that a^T c b does not see where the challenge is that one: b = (c, c^2)."""


def make_circuit(inner_columns: int = 2, span: int = SPAN) -> Circuit:
    """c = a b for 2 x 2 matrices, a from a table, |b| <= 127, the sum of c is ``total``."""
    b = CircuitBuilder(inner_columns, span, masks=MASKS)
    left, right, product = (b.reshape(b.vector(name, 4), (2, 2)) for name in ("a", "b", "c"))
    b.matmul("product", left, right, product.lin())
    b.member("table", [left], [TABLE])
    shifted = b.limb("range", right.shape, lambda values: values[right] + 127)
    b.zero("range", shifted - 127 - right.lin())
    total = b.parameter("total", (1,))
    b.zero_sum("total", [(product, None, 1), (total, None, -1)])
    return b.build()


def make_long_circuit(limbs: int, inner_columns: int = 2) -> Circuit:
    """``limbs`` limbs, each an element of the given vector ``a``; no masks."""
    b = CircuitBuilder(inner_columns, SPAN, count_usable(K), masks=0)
    given = b.vector("a", limbs)
    b.zero("range", b.limb("range", (limbs,), lambda values: values[given]) - given.lin())
    return b.build()


@dataclass(frozen=True)
class Toy:
    """:func:`make_circuit` with keys, and a proof of ``given``."""

    circuit: Circuit
    pinned: PinnedCircuit
    srs: Path
    keys: Keys
    commit_key: CommitKey
    proof: bytes

    @property
    def expected(self) -> dict[str, bytes]:
        return {name: self.commit(values) for name, values in GIVEN.items()}

    def commit(self, values: Ints) -> bytes:
        return commit_vector(self.commit_key, values)

    def assign(
        self,
        given: Mapping[str, Ints] = GIVEN,
        parameters: Mapping[str, Ints] = PARAMETERS,
        cheat: Callable[[list[int]], list[int]] = list,
        **drawn: Any,
    ) -> dict[str, Ints]:
        """A witness, with ``cheat`` of the challenge as it should be."""

        def draw(before: Any) -> list[int]:
            columns = self.circuit.lay_out(before)
            commitments = commit_columns(self.circuit, self.commit_key, columns)
            return cheat(list(draw_challenge(self.circuit, self.pinned, commitments, **drawn)))

        drawn = {"claim": b""} | drawn
        return self.circuit.assign(given, parameters, draw)

    def prove(self, **drawn: Any) -> bytes:
        """The proof of ``GIVEN`` and ``PARAMETERS``."""
        return prove(
            self.circuit,
            self.pinned,
            self.keys,
            given=GIVEN,
            hiding={},
            count=lambda: None,
            parameters=PARAMETERS,
            srs=self.srs,
            commit_key=self.commit_key,
            limits=LIMITS,
            **({"claim": b""} | drawn),
        ).data

    def prove_anything(self, vectors: dict[str, Ints]) -> bytes:
        """What ezkl itself makes of a witness, sound or not."""
        with TemporaryDirectory() as folder:
            data, witness, proof = (str(Path(folder) / name) for name in ("data", "w", "proof"))
            columns = self.circuit.lay_out(vectors)
            Path(data).write_text(encode_inputs(*(columns[n] for n in self.circuit.inputs)))
            model, srs = str(self.keys.compiled), str(self.srs)
            shared = {"model": model, "srs_path": srs}
            run_ezkl(
                [
                    Call(
                        "gen_witness",
                        {"data": data, "output": witness, "vk_path": str(self.keys.vk)} | shared,
                    ),
                    Call(
                        "prove",
                        {"witness": witness, "pk_path": str(self.keys.pk), "proof_path": proof}
                        | shared,
                    ),
                ],
                replace(LIMITS, seconds=30),
            )
            return bytes(json.loads(Path(proof).read_bytes())["proof"])


def make_toy(folder: Path) -> Toy:
    circuit, srs = make_circuit(), folder / "srs"
    generate_srs(srs, K)
    pinned = pin(circuit, K)
    keys = load_keys(pinned, srs, folder / "cache", LIMITS)
    commit_key = CommitKey(srs, K, BLINDING)
    made = Toy(circuit, pinned, srs, keys, commit_key, b"")
    return replace(made, proof=made.prove())


if __name__ == "__main__":
    print(pin(make_circuit(), K).digest.hex())  # noqa: T201 - for a test to read
