"""An auditor of answers about tiles, written from docs/tiling.md, section 7, for its vectors.

Draws, signatures, inclusion and encodings are vtrain's, and have vectors of their own; commitments
are made with tau (``kzg_rule``), statements by ``tiling_rule``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from tests.vectors import kzg_rule
from tests.vectors.tiling_rule import Rules
from vtrain.attest.keys import verify_signature
from vtrain.audit.plan import draw
from vtrain.commit.openings import verify_inclusion
from vtrain.errors import SignatureError
from vtrain.spec.domains import CLAIM, TILES, TRACE_CLAIM, compute_domain_hash
from vtrain.wire import cbor
from vtrain.wire.graph import decode_graph
from vtrain.wire.opening import InclusionProof

Json = Any
bn128 = kzg_rule.bn128


def is_point(data: bytes) -> bool:
    """Finite, on the curve, reduced."""
    x, y = (int.from_bytes(data[at : at + 32], "big") for at in (0, 32))
    return max(x, y) < kzg_rule.P and (x, y) != (0, 0) and (y * y - x**3 - 3) % kzg_rule.P == 0


def load(data: bytes) -> Any:
    x, y = (bn128.FQ(int.from_bytes(data[at : at + 32], "big")) for at in (0, 32))
    return x, y, bn128.FQ.one()


def store(point: Any) -> bytes:
    if bn128.is_inf(point):
        return bytes(64)
    return b"".join(int(c).to_bytes(32, "big") for c in bn128.normalize(point))


class Auditor:
    """What it knows before any answer."""

    def __init__(self, vector: Json) -> None:
        self._vector = vector
        self._graph = decode_graph(bytes.fromhex(vector["graph"]))
        self._claim: Any = cbor.decode(bytes.fromhex(vector["claim"]))["claim"]  # type: ignore[call-overload,index]
        self._digest = compute_domain_hash(CLAIM, cbor.encode(self._claim))
        self._zero = self._commit([])

    def _commit(self, values: list[int]) -> bytes:
        vector = self._vector
        return kzg_rule.commit(vector["tau"], vector["k"], vector["blinding"], values)

    def _combine(self, terms: list[tuple[int, bytes]]) -> bytes:
        rest = 1 - sum(factor for factor, _ in terms)
        total = bn128.multiply(load(self._zero), rest % kzg_rule.R)
        for factor, point in terms:
            total = bn128.add(total, bn128.multiply(load(point), factor % kzg_rule.R))
        return store(total)

    def find_fault(self, case: Json) -> tuple[str, int | None]:
        """The row that does not hold, "" where all do; of row 13, which of the statements."""
        vector = self._vector
        signed: Any = cbor.decode(bytes.fromhex(case["traces"]))
        said = signed["trace_claim"]
        digest = compute_domain_hash(TRACE_CLAIM, cbor.encode(said))
        if said["claim"] != self._digest:
            return "5", None
        try:
            verify_signature(self._claim["solver"], digest, signed["signature"])
        except SignatureError:
            return "5", None
        every, first = vector["every"], bytes.fromhex(vector["first"]["randomness"])
        logged = self._claim["log_size"] // every
        steps = draw(first, self._digest, "trace steps", logged, vector["first"]["steps"])
        wanted = [(i + 1) * every for i in steps]
        if said["randomness"] != first or [trace["step"] for trace in said["traces"]] != wanted:
            return "9", None
        loss = int(case["loss"])
        rules = {step: Rules(self._graph, vector["side"], step, loss) for step in wanted}
        if any(t["count"] != rules[t["step"]].counts["trace"] for t in said["traces"]):
            return "10", None
        each = len(rules[wanted[0]].statements)
        second = bytes.fromhex(vector["second"])
        population = each * len(said["traces"])
        drawn = draw(second, digest, "tile statements", population, case["samples"])
        if not drawn:
            return "11", None
        asked = [(said["traces"][i // each], i % each) for i in drawn]
        proofs: Any = [cbor.decode(bytes.fromhex(proof)) for proof in case["proofs"]]
        if [(proof["step"], proof["statement"]) for proof in proofs] != [
            (trace["step"], number) for trace, number in asked
        ]:
            return "12", None
        record: Any = cbor.decode(bytes.fromhex(case["record"]))
        for place, ((trace, number), proof) in enumerate(zip(asked, proofs, strict=True)):
            row = self._judge(rules[trace["step"]], trace, number, proof, record)
            if row:
                return f"13.{row}", place
        return "", None

    def _judge(self, rules: Rules, trace: Json, number: int, proof: Json, record: Json) -> str:
        for source in ("before", "batch", "after"):
            tiles = sum(tensor.count for tensor in rules.tensors if tensor.source == source)
            if len(record[source]) != tiles:
                return "1"
        statement = rules.statements[number]
        openings = proof["openings"]
        if [opening["index"] for opening in openings] != rules.find_leaves(statement):
            return "2"
        for opening in openings:
            path = InclusionProof(opening["index"], trace["count"], tuple(opening["path"]))
            if not verify_inclusion(TILES, trace["root"], opening["commitment"], path):
                return "3"
        opened = {opening["index"]: opening["commitment"] for opening in openings}

        def find(tile: tuple[int, int]) -> bytes:
            tensor = rules.tensors[tile[0]]
            place = tensor.first + tile[1]
            if tensor.source == "public":
                return self._commit(rules.public_tile(*tile))
            return bytes(
                opened[place] if tensor.source == "trace" else record[tensor.source][place]
            )

        given = {}
        for name, combination in statement.given.items():
            terms = [(factor, find(tile)) for tile, factor in combination.items()]
            if not all(is_point(point) for _, point in terms):
                return "4"
            given[name] = self._combine(terms)
        return "" if proof["proof"] == stand_in(rules.describe(statement), given) else "5"


def stand_in(said: Mapping[str, Any], given: Mapping[str, bytes]) -> bytes:
    """What takes the place of a proof in the vectors."""
    named: list[cbor.Value] = [[name, point] for name, point in given.items()]
    kept = {name: said[name] for name in ("circuit", "linear", "parameters")}
    return blake3(cbor.encode({**kept, "given": named})).digest()
