"""A call that ezkl's verifier accepts without a proof: see ``GUARD`` in vtrain/prove/chain/evm.py.

The verifier draws its challenges from the proof that the call points to, and computes with the
bytes at fixed places.  Here the call points past these, to a proof of points and numbers of no
meaning, which settles every challenge.  At the fixed places every point is infinity.  Then the last
check, e(L, G) = e(W', tau G), asks for L = 0, where L = R - c W with R and c settled: W = R / c.
Neither witness nor proving key nor SRS is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.prove.chain import Chain
from tests.prove.circuits import LIMITS
from tests.prove.compiler import install_solc
from vtrain.prove.backend.srs import load_curve
from vtrain.prove.chain.evm import VERIFIER, compile_contracts
from vtrain.spec.field import SCALAR_FIELD

SELECTOR = bytes.fromhex("1e8e1e13")


def word(value: int) -> bytes:
    return value.to_bytes(32)


def forge_call(source: str, length: int, instances: Sequence[int] = ()) -> bytes:
    """Data of a call that a verifier without the guard accepts, for any public values."""
    points, last = count_points(source), length - 128
    drawn = (word(1) + word(2)) * points
    drawn += word(5) * ((last - len(drawn)) // 32)
    drawn += (word(1) + word(2)) * 2  # W and W'

    def lay_out(w: bytes) -> bytes:
        fixed = bytes(last) + w + bytes(64)
        at = 0x60 + length
        numbers = word(len(instances)) + b"".join(map(word, instances))
        head = word(at) + word(at + 32 + length) + word(0)
        return SELECTOR + head + fixed + word(length) + drawn + numbers

    # What L and c are is read from a verifier that returns them where this one would decide.
    [factor] = re.findall(r"ec_mul_tmp\(success, sub\([Rr], mload\((0x[0-9a-f]+)\)\)\)", source)
    probe = source.replace(
        "// Perform pairing\n",
        f"mstore(0x80, mload({factor})) mstore(0x40, mload(PAIRING_LHS_X_MPTR)) "
        "mstore(0x60, mload(PAIRING_LHS_Y_MPTR)) return(0x40, 0x60)\n",
    )
    assert probe != source
    chain = Chain()
    made = compile_contracts({VERIFIER: probe}, install_solc(), LIMITS)[VERIFIER]
    address, _ = chain.deploy(made.creation)
    seen = chain.call(address, lay_out(bytes(64))).output
    assert seen is not None
    x, y, c = (int.from_bytes(seen[at : at + 32]) for at in (0, 32, 64))
    curve = load_curve()
    rest = (curve.FQ(x), curve.FQ(y), curve.FQ(1))
    w = curve.normalize(curve.multiply(rest, pow(c, -1, SCALAR_FIELD)))
    return lay_out(word(int(w[0])) + word(int(w[1])))


def count_points(source: str) -> int:
    """Points of a proof before its numbers: the bytes of all phases."""
    [phases, _] = source.split("// Read evaluations")
    found = re.findall(r"proof_cptr_end := add\(proof_cptr, (0x[0-9a-f]+)\)", phases)
    return sum(int(size, 16) for size in found) // 64
