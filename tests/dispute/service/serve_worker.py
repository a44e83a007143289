"""A service as ``vtrain serve`` runs it, with clocks short enough for a test: DB KEY PORT."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.dispute.service.logs import LEAST
from vtrain.attest.keys import load_key, public_key
from vtrain.dispute.market import MemoryMarket
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.service.run import serve

if __name__ == "__main__":
    key = load_key(Path(sys.argv[2]))
    serve(
        sys.argv[1],
        key,
        market=MemoryMarket(),
        free=True,
        port=int(sys.argv[3]),
        limits=replace(LIMITS, least=LEAST),
        ready=lambda url: print(url, public_key(key).hex(), flush=True),  # noqa: T201
    )
