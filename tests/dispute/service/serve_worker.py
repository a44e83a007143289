"""A service as ``vtrain serve`` runs it, with clocks short enough for a test: DB KEY PORT.

It imports no more than that does: a test waits for it to start, again and again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from vtrain.attest.keys import load_key, public_key
from vtrain.dispute.market import MemoryMarket
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.service.run import serve
from vtrain.wire.dispute import Clocks

if __name__ == "__main__":
    key = load_key(Path(sys.argv[2]))
    least = Clocks(join=1, trace=1, terms=1, budget=1, grace=1, answer=0, opening=0, replay=0)
    serve(
        sys.argv[1],
        key,
        market=MemoryMarket(),
        free=True,
        port=int(sys.argv[3]),
        limits=replace(LIMITS, least=least),
        ready=lambda url: print(url, public_key(key).hex(), flush=True),  # noqa: T201
    )
