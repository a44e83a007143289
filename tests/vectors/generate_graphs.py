"""Writes ``graphs.json``: a small legal step graph, and faults of graphs and of tasks near it.

``python -m tests.vectors.generate_graphs`` writes it with types from vtrain/ops; places of faults
are stated here: nothing is asked of vtrain/graph/legality.py.  ``--check`` compares and exits 1
when it differs.  README.md documents the format.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.vectors.files import format_cases, write_or_compare
from tests.vectors.generate_statements import splice
from vtrain.ops import TABLE
from vtrain.spec.commitment import compute_graph_root
from vtrain.wire import cbor
from vtrain.wire.graph import (
    Attrs,
    Node,
    Ref,
    StepGraph,
    TensorType,
    encode_graph,
    encode_node,
)
from vtrain.wire.proof import ProofSpec
from vtrain.wire.task import BLAKE3_ONLY, LAW_VERSION, WITH_KZG, DataSpec, TaskSpec, encode_task

PATH = Path(__file__).with_name("graphs.json")
Json = dict[str, Any]
Edit = tuple[int, int, str]


@dataclass(frozen=True)
class Draft:
    """A node whose inputs are names; its type is the derived one where none is claimed."""

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    attrs: Attrs | None = None
    claims: tuple[TensorType, ...] | None = None


Drafts = tuple[Draft, ...]


def build(drafts: Drafts) -> StepGraph:
    """Of two nodes of one name, the first is read."""
    nodes: list[Node] = []
    places: dict[str, Ref] = {}
    for draft in drafts:
        inputs = tuple(places[name] for name in draft.inputs)
        attrs, claims = draft.attrs or {}, draft.claims
        if claims is None:
            claims = (TABLE[draft.op].infer(attrs, [nodes[r.node].outputs[0] for r in inputs]),)
        places.setdefault(draft.name, Ref(len(nodes)))
        nodes.append(Node(draft.name, draft.op, attrs, inputs, claims))
    return StepGraph(tuple(nodes))


def state(node: str, name: str, dtype: str, shape: tuple[int, ...], exponent: int) -> Draft:
    attrs: Attrs = {"name": name, "dtype": dtype, "shape": shape, "exponent": exponent}
    return Draft(node, "state", (), attrs)


def gather(node: str, part: str, shape: tuple[int, ...], exponent: int) -> Draft:
    attrs: Attrs = {"part": part, "dtype": "u8", "shape": shape, "exponent": exponent}
    return Draft(node, "gather_samples", ("index",), attrs)


def rescale(node: str, source: str, dtype: str, shift: int, multiplier: int = 1) -> Draft:
    attrs: Attrs = {
        "dtype": dtype,
        "multiplier": multiplier,
        "multiplier_exponent": 0,
        "shift": shift,
    }
    return Draft(node, "rescale", (source,), attrs)


STATES = {
    "v": ("momentum/w", "i32", (2, 2), 16),
    "w": ("param/w", "i32", (2, 2), 24),
    "step": ("step", "i64", (), 0),
    "wide": ("\uff5a", "i64", (), 0),
    "astral": ("\U00010000", "i32", (2,), 10),
}
"""By their nodes, in UTF-8 order of their names (which is not that of UTF-16)."""
NEXT = {"v": "v/next", "w": "w/next", "step": "step/next", "wide": "wide", "astral": "astral"}
SEED = bytes(range(1, 9))


def make_leaf(node: str) -> Draft:
    name, dtype, shape, exponent = STATES[node]
    attrs: Attrs = {"name": name, "dtype": dtype, "shape": shape, "exponent": exponent}
    return Draft(f"{node}/leaf", "state_leaf", (f"{node}/digest",), attrs)


def make_softmax(prefix: str, z: str) -> Drafts:
    return (
        Draft(f"{prefix}max", "row_max", (z,)),
        Draft(f"{prefix}exp", "exp2_diff", (z, f"{prefix}max")),
        Draft(f"{prefix}sum", "row_sum", (f"{prefix}exp",)),
    )


BASE: Drafts = (
    *(state(node, *STATES[node]) for node in ("step", "w", "v", "astral", "wide")),
    Draft("index", "sample_index", ("step",), {"seed": SEED, "batch": 2, "samples": 3}),
    gather("x", "x", (2,), 8),
    gather("y", "y", (), 0),
    Draft("x/digest", "tensor_digest", ("x",)),
    Draft("y/digest", "tensor_digest", ("y",)),
    Draft("batch", "batch_digest", ("x/digest", "y/digest")),
    Draft("x/in", "normalize", ("x",),
          {"multiplier": 257, "offset": 0, "shift": 1, "exponent": 15}),
    rescale("w/in", "w", "i16", 10),
    Draft("acc", "matmul", ("x/in", "w/in"), {"transpose_a": 0, "transpose_b": 0}),
    rescale("z", "acc", "i32", 19),
    rescale("other/z", "acc", "i32", 19, 3),
    *make_softmax("other/", "other/z"),
    *make_softmax("", "z"),
    Draft("p", "divide", ("exp", "sum")),
    Draft("rows", "cross_entropy", ("z", "max", "sum", "y")),
    Draft("loss", "sum", ("rows",)),
    Draft("g", "sub_one_hot", ("p", "y")),
    Draft("grad", "matmul", ("x/in", "g"), {"transpose_a": 1, "transpose_b": 0}),
    Draft("rate", "schedule", ("step",), {"starts": (0, 3), "rates": (5, 7), "exponent": 22}),
    Draft("v/next", "momentum", ("v", "grad"), {"decay": 6554, "shift": 13}),
    Draft("w/next", "sgd_update", ("w", "v/next", "rate"), {"shift": 14}),
    Draft("step/next", "increment", ("step",)),
    Draft("wide/more", "increment", ("wide",)),
    *(Draft(f"next/{node}", "next_state", (NEXT[node],), {"name": STATES[node][0]})
      for node in ("step", "w", "v", "astral", "wide")),
    *(Draft(f"{node}/digest", "tensor_digest", (NEXT[node],)) for node in STATES),
    *map(make_leaf, STATES),
    Draft("root", "state_root", tuple(f"{node}/leaf" for node in STATES)),
    Draft("record", "record", ("step/next", "batch", "loss", "root"), {"commit_every": 2}),
)  # fmt: skip
GRAPH = build(BASE)
TYPES = {node.name: node.outputs[0] for node in GRAPH.nodes}


# --- alterations


def put(name: str, drafts: Drafts = BASE, /, **changes: Any) -> Drafts:
    """Fields of one node changed."""
    return tuple(replace(d, **changes) if d.name == name else d for d in drafts)


def add(*more: Draft, before: str | None = None, drafts: Drafts = BASE) -> Drafts:
    """Nodes before the one named, or after all."""
    at = len(drafts) if before is None else [d.name for d in drafts].index(before)
    return (*drafts[:at], *more, *drafts[at:])


def change(name: str, drafts: Drafts = BASE, /, **attrs: Any) -> Drafts:
    """Attributes of one node changed."""
    old = next(d.attrs for d in drafts if d.name == name) or {}
    return put(name, drafts, attrs={**old, **attrs})


def claim(name: str, drafts: Drafts = BASE, /, **fields: Any) -> Drafts:
    """Fields of the type that one node claims changed; nodes after it are as if that were so."""
    return put(name, drafts, claims=(replace(TYPES[name], **fields),))


def restate(node: str, drafts: Drafts = BASE, /, **fields: Any) -> Drafts:
    """Attributes of a state changed, and of its leaf."""
    return change(f"{node}/leaf", change(node, drafts, **fields), **fields)


def uncounted(**fields: Any) -> Drafts:
    """What reads the counter reads another, and the counter is of another type."""
    drafts = restate("step", **fields)
    for name in ("index", "rate", "step/next"):
        drafts = put(name, drafts, inputs=("wide",))
    drafts = put("next/step", drafts, inputs=("step",))
    drafts = put("step/digest", drafts, inputs=("step",))
    return tuple(sorted(drafts, key=lambda d: d.name != "wide"))


def continued(node: str, source: str, drafts: Drafts = BASE) -> Drafts:
    """Another value goes on as the state, and is hashed as that."""
    drafts = put(f"next/{node}", drafts, inputs=(source,))
    return put(f"{node}/digest", drafts, inputs=(source,))


def leaves(*nodes: str) -> tuple[str, ...]:
    return tuple(f"{node}/leaf" for node in nodes)


def hashed(name: str, source: str) -> Draft:
    return Draft(name, "tensor_digest", (source,))


Case = tuple[str, Drafts, str | None]
"""What it is, the graph, and the place that is reported; None where the graph is legal."""
DIGEST = TYPES["root"]
RAW: Attrs = {"part": "x", "dtype": "i32", "shape": (), "exponent": 10}
SUM: Attrs = {"shift_a": 0, "shift_b": 0}
READS = ("step/next", "batch", "loss", "root")
"""Inputs of the record."""
HALF = Draft(
    "half",
    "rescale",
    ("astral",),
    {"dtype": "i32", "multiplier": 1, "multiplier_exponent": 1, "shift": 1},
)
SPARE = state("spare", "spare", "i32", (), 0)


def list_legal() -> Iterator[Case]:
    for about, drafts in {
        "the graph itself": BASE,
        "a value that nothing reads": add(hashed("more", "x")),
        "the loss is another scalar": put("record", inputs=("step/next", "batch", "rate", "root")),
        "a state goes on as it is": continued("w", "w"),
        "a range becomes narrower": continued("astral", "half", add(HALF, before="next/step")),
        "the sum of a loss is that of other rows": put(
            "rows", inputs=("z", "max", "other/sum", "y")
        ),
        "the labels of a loss are other numbers": put(
            "rows", add(Draft("label", "column_sum", ("w",)), before="rows"),
            inputs=("z", "max", "sum", "label"),
        ),
        "a schedule by another counter": put("rate", inputs=("wide",)),
        "a second maximum of the same rows": put(
            "exp", add(Draft("again", "row_max", ("z",)), before="exp"), inputs=("z", "again")
        ),
    }.items():  # fmt: skip
        yield about, drafts, None


def list_nodes() -> Iterator[Case]:
    """Rules 1 and 2."""
    yield (
        "1: a name is empty",
        put("w/next", put("rate", name=""), inputs=("w", "v/next", "")),
        "node  (schedule)",
    )
    yield "1: two nodes have one name", add(hashed("x", "y")), "node x (tensor_digest)"
    yield (
        "1: two nodes have one name, the record the later",
        put("record", name="x"),
        "node x (record)",
    )
    yield (
        "2: an operator that there is not",
        put("loss", op="summ", claims=(TYPES["loss"],)),
        "node loss (summ)",
    )
    yield (
        "2: an operator's name in capitals",
        put("loss", op="Sum", claims=(TYPES["loss"],)),
        "node loss (Sum)",
    )
    yield (
        "2: an attribute more",
        put("loss", attrs={"more": 0}, claims=(TYPES["loss"],)),
        "node loss (sum)",
    )
    yield (
        "2: an attribute less",
        put("v/next", attrs={"shift": 13}, claims=(TYPES["v/next"],)),
        "node v/next (momentum)",
    )
    yield (
        "2: an attribute beyond its bound",
        put("v/next", attrs={"decay": 65537, "shift": 13}, claims=(TYPES["v/next"],)),
        "node v/next (momentum)",
    )
    yield (
        "2: an input of another dtype",
        put("p", inputs=("w/in", "sum"), claims=(TYPES["p"],)),
        "node p (divide)",
    )
    yield "2: an input too few", put("p", inputs=("exp",), claims=(TYPES["p"],)), "node p (divide)"
    yield "2: no output", put("record", claims=()), "node record (record)"
    yield "2: two outputs", put("loss", claims=(TYPES["loss"],) * 2), "node loss (sum)"
    yield "2: dtype claimed", claim("record", dtype="i32"), "node record (record)"
    yield "2: shape claimed", claim("other/sum", shape=(2, 1)), "node other/sum (row_sum)"
    yield "2: exponent claimed", claim("other/sum", exponent=17), "node other/sum (row_sum)"
    for field in ("lo", "hi"):
        for by in (-1, 1):
            value = getattr(TYPES["acc"], field) + by
            about = f"2: {field} claimed is {by} off, and what reads it is derived from that"
            yield about, claim("acc", **{field: value}), "node acc (matmul)"
    narrow = claim("acc", hi=TYPES["acc"].hi - 2**25)
    true = tuple(
        d if d.name == "acc" or d.claims else replace(d, claims=(TYPES[d.name],)) for d in narrow
    )
    yield "2: hi claimed is less, all else as before", true, "node acc (matmul)"
    later = put("z", claims=(replace(TYPES["z"], hi=TYPES["z"].hi - 1),))
    yield "2: hi of a later node is less", later, "node z (rescale)"
    wide = rescale("reach", "w", "i64", -30)
    claimed = replace(TYPES["loss"], shape=(2, 2), exponent=54, lo=-1, hi=1)
    legal = rescale("reach", "w", "i64", -29)
    yield "2: below 2^60", add(legal), None
    yield (
        "2: 2^60 may be reached, and the claim says otherwise",
        add(replace(wide, claims=(claimed,))),
        "node reach (rescale)",
    )
    yield (
        "2: 2^60 may be reached, as the claim says",
        add(replace(wide, claims=(replace(claimed, lo=(1 - 2**31) << 30, hi=(2**31 - 1) << 30),))),
        "node reach (rescale)",
    )
    yield (
        "node by node: rule 2 of one before rule 1 of the next",
        put("wide/more", claim("step/next", hi=2**40 - 1), name="x"),
        "node step/next (increment)",
    )
    yield (
        "node by node: a name comes before an earlier one's type",
        add(
            replace(hashed("x", "y"), claims=(TYPES["x"],)),
            replace(hashed("", "y"), claims=(TYPES["x"],)),
        ),
        "node x (tensor_digest)",
    )
    yield (
        "node by node: a later name, an earlier type",
        add(hashed("x", "y"), drafts=put("loss", claims=(TYPES["rate"],))),
        "node loss (sum)",
    )


def list_once() -> Iterator[Case]:
    """Rule 3."""
    index = next(d for d in BASE if d.name == "index")
    yield "3: two sample_index", add(replace(index, name="more")), "graph"
    for name in ("batch", "root", "record"):
        twin = next(d for d in BASE if d.name == name)
        yield f"3: two {twin.op}", add(replace(twin, name="more")), "graph"
        none = put(name, op="tensor_digest", inputs=("x",), attrs={})
        yield f"3: no {twin.op}", none, "graph"
    yield "3: no sample_index", put("index", op="column_sum", inputs=("astral",), attrs={}), "graph"


def list_states() -> Iterator[Case]:
    """Rule 4."""
    yield "4: a state is not written", add(SPARE), "graph"
    yield (
        "4: what is written is no state",
        add(Draft("next/spare", "next_state", ("astral",), {"name": "spare"})),
        "graph",
    )
    yield "4: two states have one name", add(state("more", *STATES["w"])), "graph"
    yield (
        "4: a state is written twice",
        add(Draft("more", "next_state", ("w",), {"name": "param/w"})),
        "graph",
    )
    yield "4: a state is written under another name", change("next/w", name="param/W"), "graph"
    before = "next/step"
    yield (
        "4: another dtype",
        continued("wide", "narrow", add(rescale("narrow", "wide", "i32", 0), before=before)),
        f"state {STATES['wide'][0]}",
    )
    yield (
        "4: another shape",
        continued(
            "astral",
            "w/flat",
            add(Draft("w/flat", "reshape", ("astral",), {"shape": (1, 2)}), before=before),
        ),
        f"state {STATES['astral'][0]}",
    )
    yield "4: another exponent", continued("v", "w"), "state momentum/w"
    yield (
        "4: hi beyond that of the state",
        continued(
            "wide", "double", add(Draft("double", "add", ("wide", "wide"), SUM), before=before)
        ),
        f"state {STATES['wide'][0]}",
    )
    yield (
        "4: lo beyond that of the state",
        continued(
            "wide", "nothing", add(Draft("nothing", "sub", ("wide", "wide"), SUM), before=before)
        ),
        f"state {STATES['wide'][0]}",
    )
    raw = Draft("more", "gather_samples", ("index",), RAW)
    yield (
        "4: lo is -2^31, before rule 6",
        continued("astral", "more", add(raw, before=before)),
        f"state {STATES['astral'][0]}",
    )


def list_counter() -> Iterator[Case]:
    """Rule 5."""
    renamed = restate("step", change("next/step", name="steq"), name="steq")
    yield "5: no state is named step", renamed, "graph"
    types: dict[str, Json] = {
        "i32": {"dtype": "i32"},
        "a vector": {"shape": (1,)},
        "of exponent 1": {"exponent": 1},
    }
    for about, fields in types.items():
        yield f"5: step is {about}", uncounted(**fields), "graph"
    yield "5: the counter stays", continued("step", "step"), "node step (state)"
    yield (
        "5: the counter is another's increment",
        continued("step", "wide/more"),
        "node wide/more (increment)",
    )
    yield (
        "5: the counter goes on by two",
        continued(
            "step", "two", add(Draft("two", "increment", ("step/next",)), before="next/step")
        ),
        "node two (increment)",
    )
    yield "5: the counter is another state", continued("step", "wide"), "node wide (state)"
    for op, attrs in {"reshape": {"shape": ()}, "sum": {}}.items():
        same = Draft("same", op, ("step",), attrs)
        yield (
            f"5: the counter goes through a {op}",
            continued("step", "same", add(same, before="next/step")),
            f"node same ({op})",
        )
    again = add(Draft("again", "increment", ("step",)), before="root")
    for about, name in {
        "the counter before the step": "step",
        "another's increment": "wide/more",
        "a second increment": "again",
        "the next_state of the counter": "next/step",
    }.items():
        drafts = put("record", again if name == "again" else BASE, inputs=(name, *READS[1:]))
        yield f"5: the record has {about}", drafts, "node record (record)"


def list_batch() -> Iterator[Case]:
    """Rule 6."""
    index = "node index (sample_index)"
    yield "6: the samples of another counter", put("index", inputs=("wide",)), index
    early = Draft("early", "increment", ("step",))
    yield (
        "6: the samples of the next step",
        put("index", add(early, before="index"), inputs=("early",)),
        index,
    )
    computed = add(Draft("drawn", "column_sum", ("w",)), before="x")
    for part in ("x", "y"):
        yield (
            f"6: {part} of samples by computed numbers",
            put(part, computed, inputs=("drawn",)),
            f"node {part} (gather_samples)",
        )
    for part in ("x", "y"):
        more = replace(next(d for d in BASE if d.name == part), name="more")
        yield f"6: {part} is gathered twice", add(more), "node more (gather_samples)"
        yield (
            f"6: {part} is gathered before, of another dtype",
            add(replace(more, attrs={**RAW, "part": part}), before=part),
            f"node {part} (gather_samples)",
        )
    yield (
        "6: more samples by computed numbers",
        add(
            replace(next(d for d in computed if d.name == "x"), name="more", inputs=("drawn",)),
            drafts=computed,
        ),
        "node more (gather_samples)",
    )
    record = "node record (record)"
    yield (
        "6: the record has another digest",
        put("record", inputs=("step/next", "x/digest", "loss", "root")),
        record,
    )
    yield (
        "6: the record has a digest of the batch digest",
        put(
            "record",
            add(hashed("more", "batch"), before="record"),
            inputs=("step/next", "more", "loss", "root"),
        ),
        record,
    )
    yield (
        "6: y before x",
        put("batch", inputs=("y/digest", "x/digest")),
        "node y/digest (tensor_digest)",
    )
    yield "6: x twice", put("batch", inputs=("x/digest",) * 2), "node x/digest (tensor_digest)"
    yield "6: y twice", put("batch", inputs=("y/digest",) * 2), "node y/digest (tensor_digest)"
    yield (
        "6: of x, the digest of other values",
        put(
            "x/digest",
            add(Draft("same", "reshape", ("x",), {"shape": (4,)}), before="x/digest"),
            inputs=("same",),
        ),
        "node x/digest (tensor_digest)",
    )
    yield (
        "6: of y, a hash that is no tensor_digest",
        put(
            "batch",
            add(Draft("hash", "state_leaf", ("y/digest",), make_leaf("w").attrs), before="batch"),
            inputs=("x/digest", "hash"),
        ),
        "node hash (state_leaf)",
    )
    drafts = add(
        Draft("label", "column_sum", ("w",)), before="rows", drafts=change("y", shape=(16,))
    )
    drafts = add(Draft("bytes", "reshape", ("y",), {"shape": (32,)}), before="batch", drafts=drafts)
    drafts = put("rows", drafts, inputs=("z", "max", "sum", "label"))
    drafts = put("g", drafts, inputs=("p", "label"))
    yield (
        "6: of y, its own 32 bytes",
        put("batch", drafts, inputs=("x/digest", "bytes")),
        "node bytes (reshape)",
    )
    yield (
        "6: of x, the digest of its digest",
        put(
            "batch", add(hashed("twice", "x/digest"), before="batch"), inputs=("twice", "y/digest")
        ),
        "node twice (tensor_digest)",
    )
    yield (
        "6: y is not gathered, and of it other values are hashed",
        tuple(
            replace(d, op="transpose", inputs=("index",), attrs={"perm": (0,)})
            if d.name == "y"
            else d
            for d in BASE
        ),
        "node y/digest (tensor_digest)",
    )


def list_root() -> Iterator[Case]:
    """Rule 7."""
    yield (
        "7: the record has another root",
        put("record", inputs=(*READS[:3], "step/leaf")),
        "node record (record)",
    )
    yield "7: a node reads the record", add(hashed("more", "record")), "node more (tensor_digest)"
    yield "7: a node reads the state root", add(hashed("more", "root")), "node more (tensor_digest)"
    yield (
        "7: a node reads the state root before the record",
        add(Draft("more", "reshape", ("root",), {"shape": (32,)}), before="record"),
        "node more (reshape)",
    )
    root = "node root (state_root)"
    order = tuple(STATES)
    for about, nodes in {
        "a state is left out": order[:-1],
        "no state at all": (),
        "a state twice": (*order, order[-1]),
    }.items():
        yield f"7: {about}", put("root", inputs=leaves(*nodes)), root
    for about, nodes, place in (
        ("the order of UTF-16", ("v", "w", "step", "astral", "wide"), "astral"),
        ("that of the state nodes", ("step", "w", "v", "astral", "wide"), "step"),
        ("that of map keys: shorter names first", ("wide", "step", "astral", "w", "v"), "wide"),
        ("a leaf twice, another never", ("v", "w", "step", "wide", "wide"), "wide"),
    ):
        drafts = put("root", inputs=leaves(*nodes))
        yield f"7: not in UTF-8 order of names: {about}", drafts, f"node {place}/leaf (state_leaf)"
    for key, value in {"name": "param/v", "dtype": "i64", "shape": (4,), "exponent": 23}.items():
        drafts = change("w/leaf", **{key: value})
        yield f"7: {key} of a leaf", drafts, "node w/leaf (state_leaf)"
    yield (
        "7: a hash that is no state_leaf",
        put("root", inputs=("v/leaf", "w/digest", *leaves("step", "wide", "astral"))),
        "node w/digest (tensor_digest)",
    )
    digest = "node w/digest (tensor_digest)"
    yield "7: of a state, the digest before the step", put("w/digest", inputs=("w",)), digest
    yield "7: of a state, the digest of its next_state", put("w/digest", inputs=("next/w",)), digest
    yield "7: of a state, the digest of another", put("w/digest", inputs=("v/next",)), digest
    yield (
        "7: a leaf of another state's digest",
        put("w/leaf", inputs=("v/digest",)),
        "node v/digest (tensor_digest)",
    )
    yield (
        "7: a leaf of a hash that is no tensor_digest",
        put("w/leaf", inputs=("v/leaf",)),
        "node v/leaf (state_leaf)",
    )


def list_softmax() -> Iterator[Case]:
    """Rule 8."""
    for name, op, reads, more in (
        ("exp", "exp2_diff", ("z",), ()),
        ("rows", "cross_entropy", ("z",), ("sum", "y")),
    ):
        place = f"node {name} ({op})"
        yield (
            f"8: {op}: the maximum of other rows",
            put(name, inputs=(*reads, "other/max", *more)),
            place,
        )
        yield (
            f"8: {op}: rows that are not those of the maximum",
            put(name, inputs=("other/z", "max", *more)),
            place,
        )
        yield (
            f"8: {op}: a state in place of a maximum",
            put(name, inputs=(*reads, "astral", *more)),
            place,
        )
        same = Draft("same", "reshape", ("max",), {"shape": (2,)})
        yield (
            f"8: {op}: the maximum passed on",
            put(name, add(same, before="exp"), inputs=(*reads, "same", *more)),
            place,
        )
    place = "node p (divide)"
    yield "8: divide: the sum of other rows", put("p", inputs=("exp", "other/sum")), place
    yield (
        "8: divide: rows that are not those of the sum",
        put("p", inputs=("other/exp", "sum")),
        (place),
    )
    halved = rescale("half", "sum", "i64", 0)
    yield (
        "8: divide: the sum passed on",
        put("p", add(halved, before="p"), inputs=("exp", "half")),
        place,
    )
    columns = Draft("columns", "column_sum", ("exp",))
    yield (
        "8: divide: the sum of columns",
        put("p", add(columns, before="p"), inputs=("exp", "columns")),
        place,
    )


def mask(name: str, source: str = "step", **changed: Any) -> Draft:
    attrs: Attrs = {
        "seed": SEED, "site": 0, "keep": 58982, "value": 18205, "exponent": 14, "shape": (2, 2)
    }  # fmt: skip
    return Draft(name, "dropout_mask", (source,), {**attrs, **changed})


def list_masks() -> Iterator[Case]:
    """Rule 9."""
    first, second = "node mask (dropout_mask)", "node more (dropout_mask)"
    both = add(mask("mask"), mask("more", site=7))
    yield "9: two masks, which is legal", both, None
    yield "9: the masks of another counter", add(mask("mask", "wide")), first
    early = Draft("early", "increment", ("step",))
    yield "9: the masks of the next step", add(early, mask("mask", "early")), first
    yield "9: another seed", add(mask("mask", seed=bytes(8))), first
    yield "9: the seed, big-endian", add(mask("mask", seed=SEED[::-1])), first
    yield "9: two masks of one site", add(mask("mask"), mask("more")), second
    yield (
        "9: one site, whatever the shape and the share",
        add(mask("mask"), mask("more", shape=(3,), keep=1)),
        second,
    )
    yield (
        "9: a site twice, and after it another seed",
        add(mask("mask"), mask("more"), mask("last", site=1, seed=bytes(8))),
        second,
    )
    softmax = put("p", inputs=("exp", "other/sum"))
    yield "9 and 8", add(mask("mask", "wide"), drafts=softmax), "node p (divide)"


def list_orders() -> Iterator[Case]:
    """Two faults each: the rule that comes first gives the place."""
    double = add(Draft("double", "add", ("wide", "wide"), SUM), before="next/step")
    yield (
        "4: two states, the first in the order of nodes",
        continued(
            "wide",
            "double",
            continued(
                "astral",
                "half",
                add(
                    replace(HALF, attrs={**(HALF.attrs or {}), "multiplier_exponent": 0}),
                    before="next/step",
                    drafts=double,
                ),
            ),
        ),
        f"state {STATES['astral'][0]}",
    )
    softmax = put("p", inputs=("exp", "other/sum"))
    yield "8 and 7", put("w/digest", softmax, inputs=("w",)), "node w/digest (tensor_digest)"
    root = put("w/digest", inputs=("w",))
    yield "7 and 6", put("index", root, inputs=("wide",)), "node index (sample_index)"
    batch = put("index", inputs=("wide",))
    counter = put("record", batch, inputs=("step", *READS[1:]))
    yield "6 and 5", counter, "node record (record)"
    yield (
        "5 and 4",
        continued("v", "w", put("record", inputs=("step", *READS[1:]))),
        ("state momentum/w"),
    )
    yield (
        "4, types, and 3",
        add(Draft("more", "batch_digest", ("x/digest", "y/digest")), drafts=continued("v", "w")),
        "graph",
    )
    yield "4, types and names", add(SPARE, drafts=continued("v", "w")), "graph"
    last = put("record", name="x")
    yield (
        "3 and 1",
        add(Draft("more", "batch_digest", ("x/digest", "y/digest")), before="root", drafts=last),
        "node x (record)",
    )
    yield "8 and 2", claim("record", softmax, hi=254), "node record (record)"
    yield (
        "6: the samples and the record",
        put(
            "index",
            put("record", inputs=("step/next", "x/digest", "loss", "root")),
            inputs=("wide",),
        ),
        "node index (sample_index)",
    )
    yield (
        "6: a part twice, and the record",
        add(
            replace(next(d for d in BASE if d.name == "x"), name="more"),
            before="record",
            drafts=put("record", inputs=("step/next", "x/digest", "loss", "root")),
        ),
        "node more (gather_samples)",
    )
    yield (
        "6: the record, and what is hashed",
        put(
            "batch",
            put("record", inputs=("step/next", "x/digest", "loss", "root")),
            inputs=("y/digest", "x/digest"),
        ),
        "node record (record)",
    )
    yield (
        "7: the record, and the number of states",
        put("root", put("record", inputs=(*READS[:3], "step/leaf")), inputs=leaves("v", "w")),
        "node record (record)",
    )
    yield (
        "7: what reads the root, and the number of states",
        add(hashed("more", "root"), drafts=put("root", inputs=leaves("v", "w"))),
        "node more (tensor_digest)",
    )


def list_cases() -> Iterator[Case]:
    for cases in (
        list_legal, list_nodes, list_once, list_states, list_counter, list_batch, list_root,
        list_softmax, list_masks, list_orders,
    ):  # fmt: skip
        yield from cases()


# --- tasks


DATA = DataSpec(bytes(32), 3, "u8", (2,), 8, "u8", (), 0)
TASK = TaskSpec(
    law=LAW_VERSION,
    graph_root=compute_graph_root(GRAPH),
    initial_state_root=bytes(32),
    model_digest=bytes(32),
    data=DATA,
    exponents={"z": 10, "w/in": 14},
    seed=int.from_bytes(SEED, "little"),
    steps=4,
    batch=2,
    commit_every=2,
    checkpoint_every=4,
    commitments=BLAKE3_ONLY,
)
P = 21888242871839275222246405745257275088696311157297823662689037894645226208583
"""Coordinates of points are below it."""


def point(x: int, y: int) -> bytes:
    return x.to_bytes(32, "big") + y.to_bytes(32, "big")


GENERATOR = point(1, 2)


def commit(*points: bytes, circuit: str = "step", k: int = 7, blinding: int = 56) -> TaskSpec:
    """A task with KZG commitments to the initial state, in columns of 5 values if not said."""
    proof = ProofSpec(circuit, bytes(32), k, blinding, 2, points, {})
    return replace(TASK, commitments=WITH_KZG, proof=proof)


TaskCase = tuple[str, TaskSpec, str | None]


def list_tasks() -> Iterator[TaskCase]:
    yield "the task itself", TASK, None
    yield "without exponents", replace(TASK, exponents={}), None
    yield "another initial state", replace(TASK, initial_state_root=bytes([1]) * 32), None
    for field, value in {"seed": TASK.seed + 1, "batch": 3, "commit_every": 1}.items():
        changed = replace(TASK, **{field: value})  # type: ignore[arg-type]
        yield f"1: another {field}", changed, f"task.{field}"
    big = int.from_bytes(SEED, "big")
    yield "1: the seed, big-endian", replace(TASK, seed=big), "task.seed"
    more = replace(TASK, data=replace(DATA, samples=4))
    yield "1: more samples", more, "task.data.samples"
    yield from list_commitments()
    forms: Json = {"dtype": "i8", "shape": (2, 1), "exponent": 7}
    for part in ("x", "y"):
        for field, form in forms.items():
            data = replace(DATA, **{f"{part}_{field}": form})
            yield f"3: another {field} of {part}", replace(TASK, data=data), f"task.data.{part}"
    for about, name, exponent in (
        ("another exponent", "z", 11),
        ("a node that there is not", "zz", 10),
        ("a node of another operator", "acc", 29),
        ("a state", "param/w", 24),
    ):
        exponents = {"z": 10, name: exponent}
        yield f"4: {about}", replace(TASK, exponents=exponents), f"task.exponents.{name}"
    keys = {"b": 0, "aa": 0}
    yield (
        "4: keys in the order of their encodings",
        replace(TASK, exponents=keys),
        ("task.exponents.b"),
    )
    both = replace(DATA, x_dtype="i8", samples=4)
    yield "1 and 3", replace(TASK, data=both), "task.data.samples"
    yield "1: seed and batch", replace(TASK, seed=0, batch=1), "task.seed"
    yield (
        "3 and 4",
        replace(TASK, data=replace(DATA, y_dtype="i8"), exponents={"z": 1}),
        ("task.data.y"),
    )
    yield (
        "2 and 3",
        replace(commit(GENERATOR), data=replace(DATA, y_dtype="i8")),
        ("task.proof.initial"),
    )
    yield "1 and 2", replace(commit(GENERATOR), batch=1), "task.batch"


def list_commitments() -> Iterator[TaskCase]:
    """The state has 11 numbers besides the counter, in four tensors: columns hold 5 of them."""
    place = "task.proof.initial"
    minus = point(1, P - 2)
    yield "2: three columns", commit(GENERATOR, minus, GENERATOR), None
    yield "2: one column too few", commit(*[GENERATOR] * 2), place
    yield "2: one column too many", commit(*[GENERATOR] * 4), place
    yield "2: columns of 11", commit(GENERATOR, blinding=50), None
    yield "2: columns of 10", commit(GENERATOR, blinding=51), place
    yield (
        "2: a proof, but nothing logged",
        replace(commit(GENERATOR), commitments=BLAKE3_ONLY),
        None,
    )
    yield (
        "2: tiles: one column for each tensor",
        commit(*[GENERATOR] * 4, circuit="tiles", k=15, blinding=5),
        None,
    )
    yield "2: tiles: one column in all", commit(GENERATOR, circuit="tiles", k=15, blinding=5), place
    for about, false in {
        "not on the curve": point(1, 3),
        "x not reduced": point(P + 1, 2),
        "y not reduced": point(1, P + 2),
        "zeros": bytes(64),
        "little-endian": GENERATOR[31::-1] + GENERATOR[:31:-1],
    }.items():
        yield f"2: a point: {about}", commit(GENERATOR, false, GENERATOR), place


# --- the file


def find_edits(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[Edit]:
    """What turns the items of one encoding, joined, into those of another."""
    starts = [sum(map(len, old[:i])) for i in range(len(old) + 1)]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "replace" and b - a == d - c:
            for i, (before, after) in enumerate(zip(old[a:b], new[c:d], strict=True)):
                yield shift_splice(starts[a + i], before, after)
        elif tag != "equal":
            yield shift_splice(starts[a], b"".join(old[a:b]), b"".join(new[c:d]))


def shift_splice(start: int, before: bytes, after: bytes) -> Edit:
    found = splice(before, after)
    head, tail = found["head"], found["tail"]
    return start + head, len(before) - head - tail, str(found["middle"])


def list_items(graph: StepGraph) -> list[bytes]:
    """The head of the array, and the nodes."""
    nodes = [encode_node(node) for node in graph.nodes]
    return [encode_graph(graph)[: -sum(map(len, nodes))], *nodes]


def make_case(about: str, drafts: Drafts, place: str | None) -> Json:
    edits = list(find_edits(list_items(GRAPH), list_items(build(drafts))))
    return {"about": about, "edits": edits, "place": place}


def make_task(about: str, task: TaskSpec, place: str | None) -> Json:
    edits = list(find_edits([encode_task(TASK)], [encode_task(task)]))
    return {"about": about, "edits": edits, "place": place}


NOTHING: Mapping[str, cbor.Value] = {
    "attrs": {}, "inputs": [], "name": "", "op": "", "outputs": []
}  # fmt: skip


def make_file() -> Json:
    many = {"node": cbor.encode(dict(NOTHING)).hex(), "times": 100_001, "place": "graph"}
    few = {**many, "times": 100_000, "place": "node  ()"}
    return {
        "graph": encode_graph(GRAPH).hex(),
        "root": compute_graph_root(GRAPH).hex(),
        "task": encode_task(TASK).hex(),
        "cases": [make_case(*case) for case in list_cases()],
        "tasks": [make_task(*case) for case in list_tasks()],
        "repeated": [few, many],
    }


def format_file() -> str:
    """Cases on a line each."""
    return format_cases(make_file())


if __name__ == "__main__":
    sys.exit(write_or_compare(PATH, format_file(), __doc__))
