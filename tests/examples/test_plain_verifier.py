"""Holds examples/plain_verifier.py to the conformance vectors (tests/vectors/README.md), to all but
those that ``NOT_READ`` names.

It was written blind to the code, so that what both agree on is what the pages say.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.examples.plain import load_plain_verifier
from tests.tasks import make_tiny_task
from tests.vectors.generate_audit import find_srs
from vtrain.attest.keys import PrivateKey
from vtrain.audit.verify import verify
from vtrain.demo.cheats import alter_gradient, train_falsely
from vtrain.train.runner import train

ROOT = Path(__file__).parent.parent.parent
VECTORS = ROOT / "tests" / "vectors"
v: Any = load_plain_verifier()
NOT_READ = {
    "algebraic.json": "it draws no vectors: it multiplies again",
    "audit_token.json": "what the cases of `audit` about a beacon are made with",
    "attested.json": "it audits what is replayed, and attested runs are not",
    "beacon.json": "Python's library has no curve of the beacons",
    "tiling.json": "it checks no proofs",
    "tile_answers.json": "it checks no proofs",
    "report.json": "it makes reports, and reads none",
    "proofs.json": "it has no circuits: of proofs it tells those that are none without them",
}
"""The vectors that it is not held to, and why; of `audit` those of beacons, those of stores with
KZG commitments, which it holds against no SRS, and those in ``NEED_EZKL`` and ``NEED_TILES`` in
part."""


def load(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


def unhex(value: Any) -> Any:
    """Bytes for hexadecimal text, in lists and maps too."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    if isinstance(value, list):
        return [unhex(item) for item in value]
    return value


def untag(value: dict) -> Any:
    """The value of a tagged one."""
    ((kind, inner),) = value.items()
    if kind == "int":
        return int(inner)
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "list":
        return [untag(item) for item in inner]
    if kind == "map":
        return {key: untag(item) for key, item in inner.items()}
    return inner


def spliced(original: bytes, change: dict) -> bytes:
    tail = original[len(original) - change["tail"] :]
    return original[: change["head"]] + bytes.fromhex(change["middle"]) + tail


def edited(original: bytes, edits: list) -> bytes:
    """The bytes with others put in place of some."""
    for at, cut, put in reversed(edits):
        original = original[:at] + bytes.fromhex(put) + original[at + cut :]
    return original


def fill(n: int) -> bytes:
    return bytes(i % 251 for i in range(n))


def named(cases: list[dict], *keys: str) -> list:
    """Parameters with ids from some of their fields."""
    ids = ["-".join(str(case[key])[:30] for key in keys) or str(i) for i, case in enumerate(cases)]
    return [
        pytest.param(case, id=f"{i}-{name}")
        for i, (case, name) in enumerate(zip(cases, ids, strict=True))
    ]


# --- primitives


@pytest.mark.parametrize("case", named(load("cbor.json")["accept"], "name"))
def test_cbor_accept(case):
    data = bytes.fromhex(case["hex"])
    assert v.decode(data) == untag(case["value"])
    assert v.encode(untag(case["value"])) == data


@pytest.mark.parametrize("case", named(load("cbor.json")["reject"], "name"))
def test_cbor_reject(case):
    with pytest.raises(v.NotCanonical) as caught:
        v.decode(bytes.fromhex(case["hex"]))
    assert (caught.value.offset, caught.value.why) == (case["offset"], case["reason"])


def test_cbor_flips():
    flips = load("cbor.json")["flips"]
    for number, verdict in enumerate(flips["verdicts"]):
        data = bytearray.fromhex(flips["hex"])
        data[number // 8] ^= 1 << number % 8
        try:
            assert v.encode(v.decode(bytes(data))) == bytes(data)
            assert verdict is None
        except v.NotCanonical as error:
            assert verdict == {"offset": error.offset, "reason": error.why}  # noqa: PT017


@pytest.mark.parametrize("domain", load("domains.json"))
def test_domains(domain):
    case = load("domains.json")[domain]
    name = domain.removeprefix("vtrain 2026 ")
    assert v.derive(name, b"").hex() == case["empty"]
    assert v.derive(name, b"abc").hex() == case["abc"]


@pytest.mark.parametrize("case", named(load("blake3.json")["cases"], "input_len"))
def test_blake3(case):
    data = fill(case["input_len"])
    if len(data) <= 8192:  # by the tree of our own
        hashes = [v.chunk_value(data[i : i + 1024], i // 1024) for i in range(0, len(data), 1024)]
        while len(hashes) > 1:
            last = len(hashes) == 2
            pairs = zip(hashes[::2], hashes[1::2], strict=False)
            odd = hashes[-1:] if len(hashes) % 2 else []
            hashes = [v.parent_value(a, b, last) for a, b in pairs] + odd
        if len(data) > 1024:
            assert hashes[0].hex() == case["hash"][:64]
    assert v.plain_digest(data).hex() == case["hash"][:64]


@pytest.mark.parametrize("case", named(load("chunk_opening.json"), "length"))
def test_chunk_opening(case):
    data, digest = fill(case["length"]), bytes.fromhex(case["digest"])
    assert len(case["paths"]) == v.chunk_count(len(data))
    step = max(1, len(case["paths"]) // 8)
    for index in range(0, len(case["paths"]), step):
        path = unhex(case["paths"][index])
        chunk = data[index * 1024 : (index + 1) * 1024]
        assert v.chunk_opens(digest, len(data), index, chunk, path)
        assert not v.chunk_opens(digest, len(data), index + 1, chunk, path)
        assert not v.chunk_opens(digest, len(data), index, chunk, [*path, digest])
        if path:
            assert not v.chunk_opens(digest, len(data), index, chunk, path[:-1])


MERKLE = load("merkle.json")
DOMAIN = MERKLE["domain"].removeprefix("vtrain 2026 ")
LEAVES = unhex(MERKLE["leaves"])
ROOTS = unhex(MERKLE["roots"])


def test_merkle_roots():
    assert [v.tree_root(DOMAIN, LEAVES[:n]) for n in range(len(ROOTS))] == ROOTS
    for domain, root in MERKLE["roots_of_five_by_domain"].items():
        assert v.tree_root(domain.removeprefix("vtrain 2026 "), LEAVES[:5]).hex() == root
    fixed = MERKLE["fixed"]
    data, n = fill(fixed["rows"] * fixed["row_length"]), fixed["row_length"]
    rows = [data[i : i + n] for i in range(0, len(data), n)]
    assert v.tree_root(fixed["domain"].removeprefix("vtrain 2026 "), rows).hex() == fixed["root"]


@pytest.mark.parametrize("case", named(MERKLE["inclusion"], "size", "index"))
def test_merkle_inclusion(case):
    size, index, path = case["size"], case["index"], unhex(case["path"])
    assert v.opens(DOMAIN, ROOTS[size], size, index, LEAVES[index], path)
    assert not v.opens(DOMAIN, ROOTS[size], size, index, LEAVES[index] + b"x", path)
    assert not v.opens(DOMAIN, ROOTS[size], size, index, LEAVES[index], [*path, ROOTS[0]])


def is_consistent(
    domain: str, old: bytes, old_size: int, new: bytes, new_size: int, path: list[bytes]
) -> bool:
    """Does the new tree begin with the old one?  RFC 9162, section 2.1.4.2."""
    if old_size > new_size:
        return False
    if old_size == 0:
        return not path and old == v.tree_root(domain, [])
    if old_size == new_size:
        return not path and old == new
    if old_size & (old_size - 1) == 0:
        path = [old, *path]
    if not path:
        return False
    fn, sn = old_size - 1, new_size - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    first = second = path[0]
    for sibling in path[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            first = v.node_hash(domain, sibling, first)
            second = v.node_hash(domain, sibling, second)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            second = v.node_hash(domain, second, sibling)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and first == old and second == new


@pytest.mark.parametrize("case", named(MERKLE["consistency"], "old_size", "new_size"))
def test_merkle_consistency(case):
    old, new, path = case["old_size"], case["new_size"], unhex(case["path"])
    assert is_consistent(DOMAIN, ROOTS[old], old, ROOTS[new], new, path)
    assert not is_consistent(DOMAIN, ROOTS[old], old, ROOTS[new], new, [*path, ROOTS[0]])


@pytest.mark.parametrize(
    "case", named(load("philox.json")["random123"] + load("philox.json")["more"], "counter")
)
def test_philox(case):
    assert [int(word) for word in v.philox(case["counter"], case["key"])] == case["output"]


@pytest.mark.parametrize("case", named(load("order.json")["batches"], "n", "batch", "step"))
def test_order(case):
    indices = v.batch_indices(int(case["seed"]), case["n"], case["batch"], int(case["step"]))
    assert indices.tolist() == case["indices"]


def test_state():
    case = load("state.json")
    encodings = []
    for leaf in case["leaves"]:
        length = v.size_of(leaf["shape"]) * v.DTYPES[leaf["dtype"]].itemsize
        assert v.plain_digest(fill(length)).hex() == leaf["digest"]
        encodings.append(v.state_leaf(leaf, bytes.fromhex(leaf["digest"])))
        assert encodings[-1].hex() == leaf["encoding"]
    roots = [v.tree_root(v.STATE_TREE, encodings[:n]).hex() for n in range(len(case["roots"]))]
    assert roots == case["roots"]


def test_log():
    case = load("log.json")
    encodings = []
    for record in case["records"]:
        value = {
            "step": record["step"],
            "batch_digest": bytes.fromhex(record["batch_digest"]),
            "loss": int(record["loss"]),
            "state_root": bytes.fromhex(record["state_root"]),
        }
        encodings.append(v.encode(value))
        assert encodings[-1].hex() == record["encoding"]
        assert v.read(v.RECORD, encodings[-1], "record") == value
    roots = [v.tree_root(v.RUN_LOG, encodings[:n]).hex() for n in range(len(case["roots"]))]
    assert roots == case["roots"]
    assert v.read_frames(bytes.fromhex(case["file"]), v.LOG_HEADER, v.MAX_RECORD) == encodings


def test_claim():
    case = load("claim.json")
    signed = v.read(v.SIGNED_CLAIM, bytes.fromhex(case["signed_encoding"]), "claim")
    claim = signed["claim"]
    assert v.encode(claim).hex() == case["encoding"]
    assert claim["log_size"] == case["log_size"]
    assert v.claim_digest(claim).hex() == case["digest"]
    assert signed["signature"].hex() == case["signature"]
    digest = bytes.fromhex(case["digest"])
    assert v.signature_holds(claim["solver"], digest, signed["signature"])


@pytest.mark.parametrize("case", named(load("ed25519.json")["cases"], "name"))
def test_ed25519(case):
    broken = v.broken_step(*(bytes.fromhex(case[key]) for key in ("key", "message", "signature")))
    assert (broken == "") == case["holds"]
    if not case["holds"]:
        assert broken == case["broken"] or broken in case["broken"]


@pytest.mark.parametrize("case", named(load("ed25519_speccheck.json")["cases"]))
def test_speccheck(case, request):
    number = int(request.node.callspec.id.split("-")[0])
    parts = (bytes.fromhex(case[key]) for key in ("pub_key", "message", "signature"))
    assert v.signature_holds(*parts) == (number == 3)


def test_kzg():
    case = load("kzg.json")
    encodings = []
    for record in case["records"]:
        names = ("before", "batch", "after", "before_key", "batch_key", "after_key")
        value = {key: unhex(record[key]) for key in names}
        value["step"] = record["step"]
        encodings.append(v.encode(value))
        assert encodings[-1].hex() == record["encoding"]
        assert v.read(v.KZG_RECORD, encodings[-1], "record") == value
        points = value["before"] + value["batch"] + value["after"]
        assert all(v.is_point(point) for point in points)
    roots = [v.tree_root(v.KZG_LOG, encodings[:n]).hex() for n in range(len(case["roots"]))]
    assert roots == case["roots"]
    file = bytes.fromhex(case["file"])
    assert v.read_frames(file, v.KZG_HEADER, v.MAX_KZG_RECORD) == encodings
    for encoding, task_id in zip(case["tasks"], case["task_ids"], strict=True):
        task = v.read(v.check_task, bytes.fromhex(encoding), "task")
        assert v.task_id_of(task).hex() == task_id
    assert "kzg_root" in v.read(v.CLAIM, bytes.fromhex(case["claim"]), "claim")
    srs = bytes.fromhex(case["srs"])
    for given in case["commitments"]:
        pinned = {"srs": hashlib.sha256(srs).digest(), "k": given["k"]}
        commitments = v.Commitments(srs, pinned | {"blinding": given["blinding"]})
        values = [int(value) for value in given["values"]]
        found = commitments.commit(values, unhex(given["key"]), given["column"])
        assert found.hex() == given["commitment"]


def test_hiding():
    case = load("kzg.json")
    for given in case["keys"]["secret"]:
        secret, task, digest = (unhex(given[name]) for name in ("secret", "task", "digest"))
        key = v.hiding_key(secret, task, given["kind"], given["index"], digest)
        assert (key.hex(), v.key_id(key).hex()) == (given["key"], given["id"])
    for given in case["keys"]["own"]:
        proof = {"circuit": given["circuit"], "k": given["k"], "srs": unhex(given["srs"])}
        digest, tensors = unhex(given["digest"]), unhex(given["tensors"])
        key = v.own_key(proof, given["kind"], given["index"], digest, tensors)
        assert (key.hex(), v.key_id(key).hex()) == (given["key"], given["id"])
    given = case["keys"]["trace"]
    key = v.trace_key(unhex(given["before"]), unhex(given["batch"]))
    assert (key.hex(), v.key_id(key).hex()) == (given["key"], given["id"])
    for given in case["keys"]["elements"]:
        found = v.hiding_elements(unhex(given["key"]), given["column"])
        assert [str(element) for element in found] == given["elements"]
    for data in map(unhex, case["hiding"]):
        assert v.encode(v.read(v.check_hiding, data, "hiding")) == data
    unsorted = v.read(v.check_hiding, unhex(case["hiding"][-1]), "hiding")
    unsorted["keys"].reverse()
    with pytest.raises(v.Refused):
        v.read(v.check_hiding, v.encode(unsorted), "hiding")


def test_pieces():
    for tensor in load("pieces.json")["tensors"]:
        data, pieces = fill(tensor["length"]), unhex(tensor["pieces"])
        if len(pieces) == 1:
            assert [v.plain_digest(data)] == pieces
            continue
        assert v.fold_pieces(v.parent_value, pieces).hex() == tensor["digest"]
        before = len(pieces) - 1  # whose hashes take long here
        assert v.hash_of_chunks(before * 1024, data[before * v.PIECE :]) == pieces[-1]
    for table in load("pieces.json")["tables"]:
        row, count = table["row"], 1
        data = fill(row * table["rows"])
        while 2 * count * row <= v.PIECE:
            count *= 2
        rows = [data[at : at + row] for at in range(0, len(data), row)]
        parts = [rows[at : at + count] for at in range(0, len(rows), count)]
        found = [v.tree_root(v.SAMPLES_TREE, part) for part in parts]
        assert found == unhex(table["pieces"])

        def join(left, right, whole):
            return v.node_hash(v.SAMPLES_TREE, left, right)

        assert v.fold_pieces(join, found).hex() == table["root"]


@pytest.mark.parametrize("case", named(load("plan.json")["cases"], "population", "count"))
def test_plan(case):
    claim, randomness = bytes.fromhex(load("plan.json")["claim"]), unhex(case["randomness"])
    material = v.draw_material(claim, case["domain"], case["population"], randomness)
    assert material.hex() == case["seed"]
    assert v.draw(material, case["population"], case["count"]) == case["indices"]


# --- operators and steps


def tensor_of(case: dict) -> np.ndarray:
    values = np.array([int(value) for value in case["values"]], dtype=np.int64)
    return values.reshape(case["shape"])


def type_of(case: dict) -> dict:
    kept = {key: case[key] for key in ("dtype", "shape", "exponent")}
    return kept | {"lo": int(case["lo"]), "hi": int(case["hi"])}


OPS = [case | {"op": op} for op in v.OPERATORS for case in load(f"ops/{op}.json")["cases"]]


def test_all_operators_have_vectors():
    assert {path.stem for path in (VECTORS / "ops").iterdir()} == set(v.OPERATORS)


@pytest.mark.parametrize("case", named(OPS, "op", "name"))
def test_ops(case):
    attrs = {key: untag(value) for key, value in case["attrs"].items()}
    types = [type_of(tensor) for tensor in case["inputs"]]
    derived = v.derive_type(case["op"], attrs, types)
    assert derived == type_of(case["output"])
    node = v.decode(bytes.fromhex(case["node"]))
    v.NODE(node, "node")
    inputs = [[index, 0] for index in range(len(types))]
    made = {"name": case["name"], "op": case["op"], "attrs": attrs, "inputs": inputs}
    assert v.encode(made | {"outputs": [derived]}).hex() == case["node"]
    bound = tensor_of(case["bound"]) if "bound" in case else None
    context = v.Context({attrs.get("name", ""): bound}, {attrs.get("part", ""): bound})
    output = v.execute_node(node, types, [tensor_of(x) for x in case["inputs"]], context)
    assert output.tolist() == tensor_of(case["output"]).tolist()


def test_step():
    case = load("step.json")
    graph = v.read(v.check_graph, bytes.fromhex(case["graph"]), "graph")
    assert v.graph_root(graph).hex() == case["graph_root"]
    v.check_nodes(graph)
    v.LegalGraph(graph)
    rows = unhex(case["samples"]["rows"])
    assert v.tree_root(v.SAMPLES_TREE, rows).hex() == case["samples"]["root"]
    data = {"samples": len(rows)}
    for part in ("x", "y"):
        data |= {f"{part}_{key}": value for key, value in case["samples"][part].items()}
    parts = v.split_samples(data, b"".join(rows))
    state = {x["name"]: tensor_of(x) for x in case["initial_state"]["tensors"]}
    assert v.state_root(graph, state).hex() == case["initial_state"]["root"]
    records = []
    for record, trace in zip(case["records"], case["traces"], strict=True):
        result = v.execute_step(graph, v.Context(state, parts))
        state = result.state
        records.append(v.encode(result.record))
        assert records[-1].hex() == record["encoding"]
        digests = v.trace_digests(graph, result.outputs)
        assert [digest.hex() for digest in digests] == trace["digests"]
        assert v.tree_root(v.TRACE_TREE, digests).hex() == trace["root"]
    assert v.state_root(graph, state).hex() == case["final_state"]["root"]
    for tensor in case["final_state"]["tensors"]:
        assert state[tensor["name"]].tolist() == tensor_of(tensor).tolist()
    assert v.tree_root(v.RUN_LOG, records).hex() == case["log_root"]


# --- nodes, graphs and tasks that are not legal

REFUSED_NODES = [case | {"op": op} for op, cases in load("refused.json").items() for case in cases]


def check_node(data: bytes, inputs: list[dict]) -> None:
    """Refuse a node that is not legal, of inputs with these types."""
    node = v.read(v.NODE, data, "node")
    v.require(node["inputs"] == [[k, 0] for k in range(len(inputs))], "node", "other inputs")
    derived = v.derive_type(node["op"], node["attrs"], [type_of(kind) for kind in inputs])
    v.require(node["outputs"] == [derived], "node", "the type claimed is not the one derived")


def test_all_operators_have_refused_nodes():
    assert set(load("refused.json")) == set(v.OPERATORS)


@pytest.mark.parametrize("case", named(REFUSED_NODES, "op"))
def test_refused_nodes(case):
    node, inputs = bytes.fromhex(case["node"]), case["inputs"]
    check_node(node, inputs)
    for change in case["refused"]:
        with pytest.raises(v.Refused):
            check_node(spliced(node, change), change.get("inputs", inputs))


GRAPHS = load("graphs.json")
GRAPH, TASK = bytes.fromhex(GRAPHS["graph"]), bytes.fromhex(GRAPHS["task"])


def place_of_fault(graph: bytes, task: bytes | None = None) -> str | None:
    """Where a graph is not legal, or not that of a task."""
    nodes = v.read(v.check_graph, graph, "graph")
    try:
        v.check_nodes(nodes)
        legal = v.LegalGraph(nodes)
        if task is not None:
            v.check_graph_of_task(legal, v.read(v.check_task, task, "task"))
    except v.Refused as error:
        return error.where
    return None


@pytest.mark.parametrize("case", named(GRAPHS["cases"], "about"))
def test_graphs(case):
    assert place_of_fault(edited(GRAPH, case["edits"])) == case["place"]


@pytest.mark.parametrize("case", named(GRAPHS["tasks"], "about"))
def test_tasks(case):
    assert v.graph_root(v.decode(GRAPH)).hex() == GRAPHS["root"]
    assert place_of_fault(GRAPH, edited(TASK, case["edits"])) == case["place"]


@pytest.mark.parametrize("case", named(GRAPHS["repeated"], "times"))
def test_number_of_nodes(case):
    head = b"\x9a" + case["times"].to_bytes(4, "big")  # an array of so many
    assert place_of_fault(head + bytes.fromhex(case["node"]) * case["times"]) == case["place"]


# --- audits

NEED_EZKL = {
    f"{name}": "it has no circuit, and no ezkl: of this proof it cannot tell"
    for name in (
        *(f"private-whole-{name}" for name in ("honest", "end", "after")),
        "proof-whole-honest",
    )
}
"""Cases in which it says of the last check, the proof, that it is not done."""
NEED_TILES = {
    f"tiles-{name}": "it has no statements about tiles: of the answer it cannot tell"
    for name in (
        *("refused-graph", "unanswered", "answer-trailing-byte", "another-draw", "count"),
        *("another-statement", "no-opening", "another-tile", "infinity", "circuit-not-pinned"),
    )
}
"""The same of tiles."""
CASES = sorted(
    path.parent
    for path in (VECTORS / "audit").glob("*/*/expected.json")
    if not path.parent.name.startswith(("beacon-", "store-kzg"))
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_audit(case, monkeypatch):
    expected = json.loads((case / "expected.json").read_text())
    monkeypatch.chdir(case)
    run = f"file://{case}/store" if case.name.startswith("store-") else "run"
    if expected["verdict"] is None:  # bad usage: there is no report
        with pytest.raises(SystemExit) as caught:
            v.run_audit([run, *expected["arguments"]])
        assert caught.value.code == 2
        return
    arguments = expected["arguments"]
    arguments = [str(find_srs(item) or item) for item in arguments]
    report = v.run_audit([run, *arguments])
    checks = [
        {"name": c["name"], "status": c["status"], "fault": c["fault"]}
        | {"place": c["where"].split(": ")[0]}
        for c in report["checks"]
    ]
    if case.name in NEED_TILES:
        assert checks[:-1] == expected["checks"][:-1]
        assert checks[-1] == {"name": "tiles", "status": "not_done", "fault": "", "place": ""}
        return
    if case.name in NEED_EZKL:
        assert checks[:-1] == expected["checks"][:-1]
        assert checks[-1] == expected["checks"][-1] | {"status": "not_done", "fault": ""}
        return
    assert checks == expected["checks"]
    assert report["verdict"] == expected["verdict"]
    assert report["replayed"] == expected["replayed"]
    reason = report["reason"]
    if reason is not None:
        reason = {"check": reason["name"], "fault": reason["fault"]} | {
            "place": reason["where"].split(": ")[0]
        }
    assert reason == expected["reason"]


def test_bad_usage(tmp_path):
    """What docs/auditing.md calls bad usage, and no run of the vectors asks for."""
    run = VECTORS / "audit" / "open" / "honest" / "run"
    (tmp_path / "kept.cbor").symlink_to(run / "claim.cbor")
    for arguments in (
        ["--all", "--samples", "1"],
        ["--samples", "-1"],
        ["--seed", ""],
        ["--seed", "00" * 65],
        ["--solver", "00" * 31],
        ["--claim", str(tmp_path / "kept.cbor")],
        ["--claim", str(tmp_path / "missing.cbor")],
        ["--claim", str(run / "task.cbor")],
        ["--data", str(run)],
        ["--srs", str(tmp_path)],
        ["--hiding", str(run / "task.cbor")],
        ["--mode", "algebraic", "--hiding", str(run / "task.cbor")],
        ["--mode", "algebraic", "--rows-above", "5"],
        ["--mode", "algebraic", "--traces", str(tmp_path / "missing")],
    ):
        with pytest.raises(SystemExit) as caught:
            v.run_audit([str(run), *arguments])
        assert caught.value.code == 2
    (tmp_path / "kept.cbor").unlink()
    (tmp_path / "kept.cbor").write_bytes((run / "claim.cbor").read_bytes())
    kept = ["--claim", str(tmp_path / "kept.cbor")]
    assert v.run_audit([str(run), "--all", *kept])["verdict"] == "verified"


def test_a_copy_of_what_was_signed_of_traces_is_none_of_the_runs_own(tmp_path):
    """Below the run, below the folder of traces, or as another name of its file."""
    run = tmp_path / "run"
    shutil.copytree(VECTORS / "audit" / "open" / "algebraic-honest-derived" / "run", run)
    own = run / "traces" / "traces.cbor"
    os.link(own, tmp_path / "linked.cbor")
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(own, tmp_path / "elsewhere" / "kept.cbor")
    algebraic = [str(run), "--mode", "algebraic", "--steps", "1", "--trace-claim"]
    for arguments in (
        [str(own)],
        [str(tmp_path / "linked.cbor")],
        [str(tmp_path / "elsewhere" / "kept.cbor"), "--traces", str(tmp_path / "elsewhere")],
    ):
        with pytest.raises(SystemExit) as caught:
            v.run_audit([*algebraic, *arguments])
        assert caught.value.code == 2
    assert v.run_audit([*algebraic, str(tmp_path / "elsewhere" / "kept.cbor")])["checks"]


def test_the_folder_of_a_store_is_no_run(tmp_path):
    for name in ("chunks", "states"):
        (tmp_path / name).mkdir()
    (tmp_path / "claim.cbor").write_bytes(b"")
    with pytest.raises(SystemExit) as caught:
        v.run_audit([str(tmp_path)])
    assert caught.value.code == 2
    (tmp_path / "manifest.json").write_bytes(b"")
    assert v.run_audit([str(tmp_path)])["verdict"] != "verified"


# --- leaves


class WholeInputs(v.Inputs):
    """Inputs that are all there; it keeps what was read."""

    def __init__(self, types, tensors, rows):
        super().__init__(types)
        self.tensors, self.rows = tensors, rows
        self.begin()

    def begin(self):
        self.read_chunks: list = [set() for _ in self.types]
        self.read_rows = set()

    def chunk(self, number, index):
        self.read_chunks[number].add(index)
        return self.tensors[number][index * 1024 : (index + 1) * 1024]

    def row(self, index):
        if not 0 <= index < len(self.rows):
            return None
        self.read_rows.add(index)
        return self.rows[index]

    def token_bytes(self, at):
        size = v.TOKEN_BYTES[self.windows["dtype"]]
        self.read_tokens.add(at * size // 1024)
        return self.tokens[at * size :][:size]

    def digest(self, number):
        return v.plain_digest(self.tensors[number])


def drawn_tensor(kind: dict, number: int) -> bytes:
    """The inputs of `folds`, by the formula of the README."""
    i = np.arange(v.size_of(kind["shape"]), dtype=np.uint64)
    words = (i * np.uint64(2654435761) + np.uint64(40503 * number)) % np.uint64(2**32)
    span = kind["hi"] - kind["lo"] + 1
    values = [kind["lo"] + (int(word) * span >> 32) for word in words]
    return v.tensor_bytes(np.array(values, dtype=np.int64), kind["dtype"])


LEAF = load("leaf.json")
OPS_BY_NAME = {(case["op"], case["name"]): case for case in OPS}


def check_folds(case, types, tensors):
    node = v.decode(bytes.fromhex(case["node"]))
    out = node["outputs"][0]
    inputs = WholeInputs(types, tensors, unhex(case.get("rows", [])))
    for expected in case["elements"]:
        fold = v.make_fold(node["op"], node["attrs"], types, out, expected["element"])
        assert (fold.terms, fold.length) == (case["terms"], case["block_length"])
        assert len(fold.start) == case["width"]
        state, states, reads = fold.start, [], []
        for block in range(fold.blocks):
            inputs.begin()
            state = fold.run_block(block, state, inputs)
            states.append(v.encode_state(state))
            chunks = [sorted(indices) for indices in inputs.read_chunks]
            reads.append({"chunks": chunks, "rows": sorted(inputs.read_rows)})
        assert b"".join(states).hex() == expected["states"]
        assert reads == expected["reads"]
        yield expected["element"], v.encode_element(fold.finish(state), out["dtype"])


@pytest.mark.parametrize("case", named(LEAF["operators"], "op", "case"))
def test_leaf_operators(case):
    given = OPS_BY_NAME[case["op"], case["case"]]
    types = [v.decode(bytes.fromhex(source))["outputs"][0] for source in case["sources"]]
    assert types == [type_of(tensor) for tensor in given["inputs"]]
    tensors = [v.tensor_bytes(tensor_of(x), x["dtype"]) for x in given["inputs"]]
    if case["op"] == "state":
        types = [type_of(given["output"])]
        tensors = [v.tensor_bytes(tensor_of(given["bound"]), given["bound"]["dtype"])]
    output = tensor_of(given["output"]).reshape(-1)
    for element, value in check_folds(case, types, tensors):
        assert value == v.encode_element(int(output[element]), given["output"]["dtype"])


@pytest.mark.parametrize("case", named(LEAF["folds"], "name"))
def test_leaf_folds(case):
    types = [v.decode(bytes.fromhex(source))["outputs"][0] for source in case["sources"]]
    tensors = [drawn_tensor(kind, number) for number, kind in enumerate(types)]
    assert list(check_folds(case, types, tensors))


@pytest.mark.parametrize("case", named(LEAF["gathers"]))
def test_leaf_gathers(case):
    node = v.decode(bytes.fromhex(case["node"]))
    types = [v.decode(bytes.fromhex(source))["outputs"][0] for source in case["sources"]]
    out = node["outputs"][0]
    index = v.tensor_bytes(np.array([int(i) for i in case["index"]], dtype=np.int64), "i64")
    inputs = WholeInputs(types, [index], unhex(case["rows"]))
    values = []
    for element in range(v.size_of(out["shape"])):
        fold = v.make_fold(node["op"], node["attrs"], types, out, element)
        assert fold.blocks == 1
        values.append(fold.finish(fold.run_block(0, fold.start, inputs)))
    assert values == case["values"]


@pytest.mark.parametrize("case", named(LEAF["windows"]))
def test_leaf_windows(case):
    node = v.decode(bytes.fromhex(case["node"]))
    types = [v.decode(bytes.fromhex(source))["outputs"][0] for source in case["sources"]]
    out = node["outputs"][0]
    index = v.tensor_bytes(np.array([int(i) for i in case["index"]], dtype=np.int64), "i64")
    inputs = WholeInputs(types, [index], [])
    inputs.windows, inputs.tokens = case["windows"], bytes.fromhex(case["tokens"])
    for element in range(v.size_of(out["shape"])):
        fold = v.make_fold(node["op"], node["attrs"], types, out, element)
        inputs.read_tokens = set()
        assert fold.finish(fold.run_block(0, fold.start, inputs)) == case["values"][element]
        assert sorted(inputs.read_tokens) == case["reads"][element]


@pytest.mark.parametrize("case", named(load("statements.json"), "name"))
def test_statements(case):
    statement = bytes.fromhex(case["statement"])
    ruling = v.judge(statement)
    right = [int(one) for one in ruling.right]
    expected = {key: value for key, value in case["ruling"].items() if key != "what"}
    assert {"blocks": ruling.blocks, "after": ruling.after.hex(), "right": right} == expected
    for change in case["also"]:
        assert [int(one) for one in v.judge(spliced(statement, change)).right] == change["right"]


REFUSED = [
    {
        "name": case["name"],
        "where": change["where"],
        "data": spliced(bytes.fromhex(case["statement"]), change),
    }
    for case in load("statements.json")
    for change in case["refused"]
]


@pytest.mark.parametrize("case", named(REFUSED, "name", "where"))
def test_statements_refused(case):
    with pytest.raises(v.Refused) as caught:
        v.judge(case["data"])
    assert caught.value.where == case["where"]


# --- disputes: ids, frontiers, moves

DISPUTE = load("dispute.json")


def test_genesis():
    genesis = v.read(v.GENESIS, bytes.fromhex(DISPUTE["genesis"]), "genesis")
    assert v.game_id_of(genesis).hex() == DISPUTE["game_id"]
    claim = {name: genesis[name] for name in v.CLAIM_FIELDS if name in genesis}
    assert v.signature_holds(genesis["solver"], v.claim_digest(claim), genesis["signature"])


def test_genesis_of_windows():
    case = DISPUTE["windowed"]
    genesis = v.read(v.GENESIS, bytes.fromhex(case["genesis"]), "genesis")
    assert v.game_id_of(genesis).hex() == case["game_id"]
    assert genesis == v.decode(bytes.fromhex(DISPUTE["genesis"])) | {"windows": genesis["windows"]}


@pytest.mark.parametrize("case", named(DISPUTE["openings"], "name"))
def test_longest_openings(case):
    graph = v.read(v.check_graph, unhex(load(case["graph"])["graph"]), "graph")
    task = v.decode(unhex(case["task"]))
    if case["leaf_bytes"] is not None:
        assert v.longest_opening(task, graph) == case["leaf_bytes"]
        return
    with pytest.raises(v.Refused):
        v.longest_opening(task, graph)


@pytest.mark.parametrize("case", named(DISPUTE["groups"], "round"))
def test_group_ids(case):
    game = bytes.fromhex(DISPUTE["game_id"])
    assert v.group_id(game, case["round"], unhex(case["roots"])).hex() == case["id"]


@pytest.mark.parametrize("case", named(DISPUTE["disputes"], "tree", "start"))
def test_dispute_ids(case):
    above, agreed = unhex(case["above"]), unhex(case["agreed"])
    assert v.dispute_id(above, case["tree"], case["start"], case["end"], agreed).hex() == case["id"]


@pytest.mark.parametrize("case", named(DISPUTE["sides"], "value"))
def test_side_ids(case):
    assert v.side_id(unhex(case["dispute"]), unhex(case["value"])).hex() == case["id"]


@pytest.mark.parametrize("case", named(DISPUTE["facts"], "tree", "start", "end"))
def test_fact_ids(case):
    given = [case[key] for key in ("tree", "start", "end")]
    assert v.Fact(*given, unhex(case["hash"]), case["length"]).id().hex() == case["id"]


@pytest.mark.parametrize("case", named(DISPUTE["frontiers"], "start", "end", "depth"))
def test_frontiers(case):
    start, end, depth = case["start"], case["end"], case["depth"]
    assert v.cut(start, end, depth) == [tuple(part) for part in case["ranges"]]
    hashes = iter(unhex(case["items"]))

    def join(left, right, last):
        return v.node_hash(v.TERMS_TREE, left, right)

    assert v.combine(start, end, depth, hashes, join, False).hex() == case["hash"]
    if depth:
        fact = v.Fact("terms", start, end, unhex(case["hash"]))
        items = [
            bytes([first]) if last - first == 1 else unhex(item)
            for (first, last), item in zip(case["ranges"], case["items"], strict=True)
        ]
        assert fact.is_shown_by(items, 2**depth)


@pytest.mark.parametrize("case", named(DISPUTE["chunk_frontiers"], "length", "start", "end"))
def test_chunk_frontiers(case):
    start, end = case["start"], case["end"]
    fact = v.Fact("chunks", start, end, unhex(case["hash"]), case["length"])
    items = unhex(case["items"])
    assert fact.is_shown_by(items, 2 ** case["depth"])
    assert not fact.is_shown_by([*items[:-1], items[-1] + b"x"], 2 ** case["depth"])


@pytest.mark.parametrize("case", named(DISPUTE["moves"], "name"))
def test_moves(case):
    signed = v.read(v.SIGNED_MOVE, bytes.fromhex(case["encoding"]), "move")
    assert signed["move"].hex() == case["move"]
    assert signed["about"].hex() == case["about"]
    assert signed["signature"].hex() == case["signature"]
    v.read(v.check_move, signed["move"], "move")
    digest = v.move_digest(signed)
    assert digest.hex() == case["digest"]
    assert v.signature_holds(signed["party"], digest, signed["signature"])


def test_settled():
    settled = v.derive(v.GAME, bytes.fromhex(DISPUTE["settled"]))
    assert v.decode(bytes.fromhex(DISPUTE["verdict"]))["outcomes"] == settled


# --- games

GAMES = VECTORS / "games"


def spliced_moves(entries: list[dict]) -> list[bytes | None]:
    """The encoded moves, some of which are spliced of earlier ones."""
    moves: list[bytes | None] = []
    for entry in entries:
        move = entry.get("move")
        if isinstance(move, dict):
            before = moves[move["of"]][:-64]
            tail = before[len(before) - move["tail"] :]
            made = before[: move["head"]] + unhex(move["middle"]) + tail + unhex(move["signature"])
            moves.append(made)
        else:
            moves.append(move and unhex(move))
    return moves


class Observed:
    """A game and what it shows, in the form of the vectors."""

    def __init__(self, case):
        file = case.get("graph", "graph.json")
        graph = v.decode(unhex(load(f"games/{file}")["graph"]))
        self.game = v.Game(v.read(v.GENESIS, unhex(case["genesis"]), "genesis"), graph)
        self.game.advance(self.game.now)
        self.seen, self.asked, self.sides = set(), [], []

    def contests(self):
        for group in [*self.game.past_groups, *self.game.groups]:
            yield from group.whole()

    def next(self):
        due = self.game.next_due()
        return None if self.game.over else due + 1

    def falls(self):
        found = []
        for contest in self.contests():
            for claim in contest.claims:
                if claim.fall is not None and claim not in self.seen:
                    self.seen.add(claim)
                    fall = claim.fall
                    found.append(
                        (
                            fall.at,
                            contest.id.hex(),
                            claim.root.hex(),
                            contest.level,
                            fall.reason,
                            list(fall.place),
                        )
                    )
        return [
            {
                "level": level,
                "contest": contest,
                "root": root,
                "reason": reason,
                "place": place,
                "at": at,
            }
            for at, contest, root, level, reason, place in sorted(found)
        ]

    def all_asked(self):
        game = self.game
        return sorted(
            [
                about.hex(),
                game.bytes_allowed(about),
                min(
                    due
                    for dispute, value in waiting
                    for claim, due in dispute.asked[value].items()
                    if claim.lives
                ),
            ]
            for about, waiting in game.waiting.items()
        )

    def open_sides(self):
        if self.game.over:
            return []
        return sorted(
            [side.id.hex(), side.window]
            for side in self.game.sides.values()
            if side.window is not None and side.window >= self.game.now
        )

    def check(self, entry):
        assert self.game.round == entry["round"]
        assert self.falls() == entry["falls"]
        self.asked = entry.get("asked", self.asked)
        assert self.all_asked() == self.asked
        self.sides = entry.get("sides", self.sides)
        assert self.open_sides() == self.sides
        assert self.next() == entry["next"]


@pytest.mark.parametrize("name", sorted(path.stem for path in GAMES.glob("game-*.json")))
def test_games(name, monkeypatch):
    case = load(f"games/{name}.json")
    seen = Observed(case)
    game = seen.game
    assert game.id.hex() == case["game"]
    seen.check(case["start"])
    judged = []
    judge = v.judge

    def listening(data):
        judged.append({"digest": v.plain_digest(data).hex()})
        try:
            ruling = judge(data)
        except v.Refused as error:
            judged[-1]["place"] = error.where
            raise
        judged[-1]["after"] = ruling.after.hex()
        return ruling

    monkeypatch.setattr(v, "judge", listening)
    for entry, move in zip(case["entries"], spliced_moves(case["entries"]), strict=True):
        judged.clear()
        refused = None
        if move is None:
            game.advance(entry["at"])
        else:
            try:
                game.apply(move, entry["at"])
            except v.MoveRefused as error:
                refused = {"code": error.code}
                if error.code == "move-refused":
                    refused["place"] = error.place
        assert refused == entry.get("refused")
        expected = dict(entry.get("judged", {}))
        expected.pop("statement", None)
        assert judged == ([expected] if expected else [])
        seen.check(entry)
    verdict = v.encode(game.verdict())
    assert game.outcomes() == v.decode(unhex(case["settled"]))
    assert [[party.hex(), ms] for party, ms in game.work().items()] == case["work"]
    assert verdict.hex() == case["verdict"]
    assert v.derive("dispute receipt v1", verdict).hex() == case["digest"]


def test_play():
    case = load("games/game-product.json")
    entries = case["entries"]
    times = [entry["at"] for entry in entries]
    moves = list(zip(times, spliced_moves(entries), strict=True))
    game = v.play(unhex(case["genesis"]), unhex(load("games/graph.json")["graph"]), moves)
    assert v.encode(game.verdict()).hex() == case["verdict"]


def test_no_vector_is_left_out_unnamed():
    """Whoever adds vectors holds it to them, or says why not."""
    source = Path(__file__).read_text()
    files = {path.name for path in VECTORS.glob("*.json")}
    assert NOT_READ.keys() <= files
    assert {name for name in files if f'load("{name}")' not in source} == NOT_READ.keys()


# --- runs that it has never seen


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_it_audits_our_runs_as_we_do(kind, loss, tmp_path):
    """The honest run is verified; of the false one it names the step that `vtrain verify` names."""
    task = make_tiny_task(kind, loss=loss, steps=6, commit_every=2, checkpoint_every=4)
    key = PrivateKey.from_private_bytes(bytes(range(32)))
    train(task, tmp_path / "honest", key=key)
    train_falsely(task, tmp_path / "false", key=key, cheat=alter_gradient, step=5)
    for name, verdict in (("honest", "verified"), ("false", "fraud")):
        ours = verify(tmp_path / name, all_=True)
        theirs = v.run_audit([str(tmp_path / name), "--all"])
        assert theirs["verdict"] == ours.verdict == verdict
        told = [(c["name"], c["status"], c["where"].split(": ")[0]) for c in theirs["checks"]]
        assert told == [(c.name, c.status, c.where.split(": ")[0]) for c in ours.checks]
