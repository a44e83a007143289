"""What it costs to verify a round of drand, and several auditors' signature under one report.

Real rounds of quicknet (key in G2) and of the default chain (key in G1), by py_ecc and by blst.  A
verification is everything from the bytes: points decoded, their groups looked at, the message
hashed to the curve, two pairings.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable

from _harness import ROOT, Result, at_most, main, spread

from vtrain.attest.bls import (
    LibraryName,
    Possessed,
    aggregate,
    generate_secret,
    open_library,
    prove_possession,
    sign,
    verify_aggregate,
)
from vtrain.audit.beacon import CHAINS, decode_beacon, verify_beacon

LIMITS: dict[LibraryName, float] = {"py_ecc": 1.0, "blst": 0.01}
"""Seconds for a round."""
ROUNDS = ROOT / "tests" / "audit" / "drand.json"
SIGNERS = 3


def time_each(call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of so many calls, after one that loads what is loaded once."""
    call()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def sign_together() -> tuple[list[Possessed], bytes, bytes]:
    """Keys of several auditors, what they sign, and their signatures in one."""
    made = [generate_secret(secrets.token_bytes(32)) for _ in range(SIGNERS)]
    message = b"a report"
    signature = aggregate([sign(secret, message) for secret in made], open_library())
    return [prove_possession(secret) for secret in made], message, signature


def measure(quick: bool) -> Result:
    """Times of both libraries, held against their limits."""
    figures, targets = {}, {}
    beacons = json.loads(ROUNDS.read_text())["beacons"]
    keys, message, signature = sign_together()
    for name, limit in LIMITS.items():
        times = {"py_ecc": 3 if quick else 20, "blst": 20 if quick else 200}[name]
        for value in beacons:
            if value["chain"] in CHAINS and value["valid"]:
                chain, beacon = CHAINS[value["chain"]], decode_beacon(json.dumps(value).encode())
                seconds = spread(
                    time_each(lambda: verify_beacon(chain, beacon, name), times)  # noqa: B023
                )
                what = f"a round of {chain.name}: {name}, s"
                figures[what] = seconds
                targets[what] = at_most(seconds["median"], limit)
        library = open_library(name)
        together = time_each(
            lambda: verify_aggregate(keys, message, signature, library),  # noqa: B023
            max(2, times // 4),
        )
        what = f"a signature by {SIGNERS} auditors, with their proofs of possession"
        figures[f"{what}: {name}, s"] = spread(together)
    return Result(figures, targets)


if __name__ == "__main__":
    main("beacon", measure)
