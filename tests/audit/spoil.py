"""Traces of a run as a cheat would sign them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.audit.runs import KEY
from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.traces import compute_traces_digest, sign_traces
from vtrain.commit.traces import TraceFolder, compute_trace_root
from vtrain.train import signed as evidence
from vtrain.train.layout import RunPaths
from vtrain.wire.claim import Claim
from vtrain.wire.graph import StepGraph
from vtrain.wire.traces import SignedTensorTraces, TensorTrace, TensorTraces

Array = npt.NDArray[Any]


class Spoiler:
    """The folder of traces of an honest run, copied, with one value of one trace at a time altered
    and all of it signed again.  The run and the folder that it comes from stay as they are."""

    def __init__(self, run: Path, traces: Path, out: Path) -> None:
        shutil.copytree(traces, out)
        self.folder = TraceFolder(out)
        paths = RunPaths(run)
        self.claim: Claim = evidence.read_claim(paths).claim
        self.graph: StepGraph = evidence.read_graph(paths, evidence.read_task(paths))
        self.honest = TraceFolder(traces).read_claim().traces

    @property
    def trace(self) -> TensorTrace:
        """The trace that is altered, the first."""
        return self.honest.traces[0]

    @property
    def first(self) -> int:
        """The first step of that trace."""
        return self.trace.step - self.trace.size // len(self.graph.nodes) + 1

    def leaves(self) -> list[bytes]:
        """The digests of that trace as they ought to be."""
        return TraceFolder(self.folder.root).read_leaves(self.trace)

    def read(self, node: int, offset: int = 0, leaves: list[bytes] | None = None) -> Array:
        """The output of a node in a step of that trace."""
        found = (leaves or self.leaves())[offset * len(self.graph.nodes) + node]
        return self.folder.read_chunk(found, self.graph.nodes[node].outputs[0])

    def alter(
        self,
        leaves: list[bytes],
        node: int,
        change: Callable[[Array], Array],
        offset: int = 0,
    ) -> list[bytes]:
        """The digests with another output of a node, whose bytes are in the folder."""
        value = np.ascontiguousarray(change(self.read(node, offset, leaves).copy()))
        changed = list(leaves)
        changed[offset * len(self.graph.nodes) + node] = self.folder.write_chunk(value)
        return changed

    def sign(
        self, leaves: list[bytes], *, key: Ed25519PrivateKey = KEY, claim: bytes | None = None
    ) -> SignedTensorTraces:
        """Write and sign the digests, as that trace or for another ``claim`` or by another
        ``key``."""
        self.folder.write_leaves(self.trace.step, leaves)
        trace = TensorTrace(self.trace.step, len(leaves), compute_trace_root(leaves))
        digest = compute_claim_digest(self.claim) if claim is None else claim
        traces = TensorTraces(digest, (trace, *self.honest.traces[1:]))
        if key is KEY and claim is None:
            signed = sign_traces(traces, self.claim, key)
        else:
            signed = SignedTensorTraces(traces, key.sign(compute_traces_digest(traces)))
        self.folder.write_claim(signed)
        return signed
