"""Every hash domain of vtrain, in one place.

All hashes but the plain tensor digest are BLAKE3 in derive_key mode (BLAKE3 paper, section 2.3)
under one of these context strings, so that bytes hashed for one purpose never serve another.
"""

from __future__ import annotations

from typing import Final

from blake3 import blake3

STATE_TREE: Final = "vtrain 2026 state tree v1"
RUN_LOG: Final = "vtrain 2026 run log v1"
KZG_LOG: Final = "vtrain 2026 kzg log v2"
GRAPH: Final = "vtrain 2026 graph v1"
SAMPLES: Final = "vtrain 2026 samples v1"
TRACE: Final = "vtrain 2026 trace v1"
TERMS: Final = "vtrain 2026 terms v1"
TILES: Final = "vtrain 2026 tiles v1"

TASK_ID: Final = "vtrain 2026 task id v1"
BATCH: Final = "vtrain 2026 batch v1"
CLAIM: Final = "vtrain 2026 claim v1"
RUN_ID: Final = "vtrain 2026 run id v1"
SAMPLING: Final = "vtrain 2026 sampling v2"
POSITION: Final = "vtrain 2026 dispute position v1"
MOVE: Final = "vtrain 2026 dispute move v1"
GAME: Final = "vtrain 2026 dispute game v1"
RECEIPT: Final = "vtrain 2026 dispute receipt v1"
SRS_TAU: Final = "vtrain 2026 srs tau v1"
CIRCUIT: Final = "vtrain 2026 circuit v2"
PROOF_CHALLENGE: Final = "vtrain 2026 proof challenge v2"
TRACE_CLAIM: Final = "vtrain 2026 trace claim v1"
TENSOR_TRACES: Final = "vtrain 2026 tensor traces v1"
ALGEBRAIC: Final = "vtrain 2026 algebraic v1"
BATCHES: Final = "vtrain 2026 batch commitments v2"
HIDING_KEY: Final = "vtrain 2026 hiding key v1"
HIDING: Final = "vtrain 2026 hiding v1"
HIDING_ID: Final = "vtrain 2026 hiding key id v1"
HIDING_OWN: Final = "vtrain 2026 hiding own v1"

ATTESTATION: Final = "vtrain 2026 attestation v1"
ATTESTED_LOG: Final = "vtrain 2026 attested log v1"
ATTESTED_BATCH: Final = "vtrain 2026 attested batch v1"
ATTESTED_WEIGHTS: Final = "vtrain 2026 attested weights v1"
"""Of runs in floats (docs/attested.md): no part of the law, no engine and no referee meets them."""

TREE_DOMAINS: Final = (STATE_TREE, RUN_LOG, GRAPH, SAMPLES, TRACE, TERMS, KZG_LOG, TILES)
DIGEST_DOMAINS: Final = (
    TASK_ID,
    BATCH,
    CLAIM,
    RUN_ID,
    SAMPLING,
    POSITION,
    MOVE,
    GAME,
    RECEIPT,
    SRS_TAU,
    CIRCUIT,
    PROOF_CHALLENGE,
    TRACE_CLAIM,
    BATCHES,
    HIDING_KEY,
    HIDING,
    HIDING_ID,
    HIDING_OWN,
    TENSOR_TRACES,
    ALGEBRAIC,
)
ATTESTED_DOMAINS: Final = (ATTESTATION, ATTESTED_LOG, ATTESTED_BATCH, ATTESTED_WEIGHTS)
DOMAINS: Final = (*TREE_DOMAINS, *DIGEST_DOMAINS, *ATTESTED_DOMAINS)
"""All of them."""


def compute_domain_hash(domain: str, data: bytes) -> bytes:
    """H_domain(data), 32 bytes: BLAKE3 derive_key with ``domain`` as its context string."""
    return blake3(data, derive_key_context=domain).digest()
