"""What is wrong with a facet of an operator: one function a facet, each a generator of complaints.

``find_complaints`` is the one entrance.  A facet that is not there, and for whose absence
``vtrain.ops.facets.LACKS`` has no reason, is a complaint; so is a reason for a facet that is there;
of what is there, the facet's own function says what is wrong with it.  A new operator is asked for
everything: the only ones named here are those that a step is given, and ``next_state``.
"""

from __future__ import annotations

import json
import re
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.cuda.fused import assert_chain_follows_law
from tests.cuda.host_device import HostDevice, HostDeviceError
from tests.cuda.test_readable import assert_follows_law as assert_kernel_follows_law
from tests.engines import operator_cases
from tests.engines.test_cpu_operators import assert_follows_law as assert_engine_follows_law
from tests.engines.test_leaf_twin import check_twin
from tests.examples.plain import load_plain_verifier
from tests.facets.floats import FLOATS
from tests.facets.gradients import find_wrong_gradients
from tests.facets.imports import find_imported, find_wrong_models
from tests.ops import cases
from tests.ops.leaf_cases import draw_leaf, read_operator_fold, read_vectors, run_fold
from tests.ops.reference import DEFINITIONS, define
from tests.prove import step_law
from tests.prove.forging import find_broken
from tests.prove.tile_claims import find_open, list_alone
from tests.prove.tile_law import holds
from tests.prove.tile_steps import STEPS, Altered, choose_side, make_contents
from vtrain import _core
from vtrain.engines.cuda import fuse
from vtrain.engines.cuda.lowering import LOWERINGS as LAUNCHES
from vtrain.errors import GraphError, RangeError, VtrainError
from vtrain.graph import onnx_export
from vtrain.ops import TABLE
from vtrain.ops.base import LeafRule
from vtrain.ops.facets import GUIDE, LACKS, Facet, find_reason
from vtrain.ops.leaf import finish
from vtrain.prove.steps import emit as step_emit
from vtrain.prove.steps.builder import AFTER, LOSS
from vtrain.prove.tiles import emit as tile_emit
from vtrain.prove.tiles.grid import cut_block
from vtrain.prove.tiles.statements import Tile, TileContents, TileStatement
from vtrain.spec.number import NUMPY_DTYPES
from vtrain.wire.graph import Node, Ref, StepGraph, TensorType, encode_node

Array = npt.NDArray[Any]
ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "reference_kernels"
VECTORS = ROOT / "tests" / "vectors" / "ops"
DOCS = ROOT / "docs"
GUIDE_PAGE = DOCS / "adding-an-operator.md"

Complaints = Iterator[str]
NO_CASE = "is held against nothing: tests/ops/cases.py cannot draw a case"
NO_NODE = "is held against nothing: tests/engines/operator_cases.py cannot draw a node"


def find_complaints(op: str, facet: Facet) -> list[str]:
    """What a reader of the test is told, each with operator, facet and the guide's step."""
    step_of_guide = f"docs/{GUIDE_PAGE.name}, step {GUIDE[facet]}"
    try:
        found = list(dict.fromkeys(_find(op, facet)))
    except Exception as error:  # noqa: BLE001 - an operator that is half there may raise anything
        found = [f"fails with {type(error).__name__} in {_find_place(error)}: {_shorten(error)}"]
    return [f"{op}, {facet}: it {complaint} ({step_of_guide})" for complaint in found]


def _find(op: str, facet: Facet) -> Complaints:
    there, reason = IS_THERE[facet](op), find_reason(op, facet)
    if there and reason is not None:
        yield (
            f"is there, but vtrain/ops/facets.py says that it is not, because {reason!r}: "
            "take the operator out of that list"
        )
    elif there:
        yield from CHECKS[facet](op)
    elif reason is None:
        more = ", or give a reason in vtrain/ops/facets.py" if facet in LACKS else ""
        yield f"is missing; {WHERE[facet].format(op=op)}{more}"


def _shorten(error: Exception) -> str:
    """What it says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3]) or type(error).__name__


def _find_place(error: Exception) -> str:
    """The innermost line of vtrain that it went through, or of all."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT / "vtrain")]
    frame = (inside or frames)[-1]
    path = Path(frame.filename)
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{frame.lineno}"


def _draw(count: int, check: Callable[[st.DataObject], None]) -> None:
    """Runs a check on so many drawn cases; what it raises, the first time, passes."""

    @settings(
        deadline=None,
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(data)

    run()


def _try(count: int, check: Callable[[st.DataObject], None]) -> Complaints:
    yield from _hold(lambda: _draw(count, check))


def _hold(check: Callable[[], None]) -> Complaints:
    """What a comparison with the law says."""
    try:
        check()
    except (AssertionError, VtrainError, HostDeviceError) as error:
        yield f"is not what the law says: {_shorten(error)}"


# --- ranges


def _has_ranges(op: str) -> bool:
    return callable(getattr(TABLE[op], "infer", None))


def _check_ranges(op: str) -> Complaints:
    if op not in cases.CASES:
        yield NO_CASE
        return
    if op not in DEFINITIONS and op != "tensor_digest":
        yield "is held against nothing: tests/ops/reference.py has no second definition of the law"
        return
    complaints: list[str] = []

    def check(data: st.DataObject) -> None:
        case = cases.CASES[op](cases.Draw(data))
        try:
            claim = TABLE[op].infer(case.attrs, case.types)
        except RangeError:
            assume(False)
            raise
        out = TABLE[op].law(case.attrs, case.arrays)
        if (out.dtype, out.shape) != (NUMPY_DTYPES[claim.dtype], claim.shape):
            complaints.append("has another dtype or shape than the law's output")
        elif int(out.min()) < claim.lo or int(out.max()) > claim.hi:
            complaints.append("does not hold the law's output")
        if out.tolist() != define(op, case.attrs, case.arrays).tolist():
            complaints.append("is of a law that is not its second definition")

    _draw(12, check)
    yield from complaints


# --- backward


def _check_backward(op: str) -> Complaints:
    if op not in FLOATS:
        yield "is held against nothing: tests/facets/floats.py has no definition in real numbers"
        return
    if op not in cases.CASES:
        yield NO_CASE
        return
    complaints: list[str] = []
    seeds = iter(range(10**6))

    def check(data: st.DataObject) -> None:
        case = cases.CASES[op](cases.Draw(data))
        complaints.extend(find_wrong_gradients(op, case, next(seeds)))

    _draw(20, check)
    yield from (f"is wrong: {complaint}" for complaint in complaints)


# --- leaves


def _check_leaf(op: str) -> Complaints:
    if op not in cases.CASES:
        yield NO_CASE
        return

    def check(data: st.DataObject) -> None:
        item = draw_leaf(op, data)
        for element in {0, item.out.size // 2, item.out.size - 1}:
            *_, (state, _) = run_fold(item, element, item.reader())
            found = finish(item.node, item.types, state)
            assert found == int(item.out.flat[element]), f"element {element}"

    yield from _try(15, check)


def _has_twin(op: str) -> bool:
    """Whether the compiled core knows the rule.  A rule that has no arm there does not compile."""
    try:
        CORE.leaf_fold(_ask_for(op), [])
    except GraphError as error:
        return "unknown operator" not in error.message
    return True


def _ask_for(op: str) -> bytes:
    """A node that is refused: because the operator is unknown, or because it has no inputs."""
    return encode_node(Node("asked", op, {}, (), (TensorType("i64", (), 0, 0, 0),)))


def _check_twin(op: str) -> Complaints:
    if op not in cases.CASES:
        yield NO_CASE
        return

    def check(data: st.DataObject) -> None:
        item = draw_leaf(op, data)
        for element in {0, item.out.size - 1}:
            check_twin(item, element)

    yield from _try(10, check)


# --- engines


CORE: Any = _core


def _is_in_core(op: str) -> bool:
    """Whether the Rust engine knows the operator."""
    try:
        CORE.apply_node(_ask_for(op), [])
    except GraphError as error:
        return "unknown operator" not in error.message
    return True


def _check_engine(op: str) -> Complaints:
    """The numpy engine runs the law itself; what differs from it is the engine in Rust."""
    if op not in operator_cases.CASES:
        yield NO_NODE
        return

    def check(data: st.DataObject) -> None:
        assert_engine_follows_law(operator_cases.CASES[op](operator_cases.Draw(data)))

    yield from _try(5, check)


@cache
def _host_device() -> HostDevice:
    return HostDevice()


def _has_kernel(op: str) -> bool:
    path = KERNELS / f"{op}.cu"
    declared = f'extern "C" __global__ void {op}('
    return op in LAUNCHES and path.is_file() and declared in path.read_text()


def _check_kernel(op: str) -> Complaints:
    if op not in operator_cases.CASES:
        yield NO_NODE
        return

    def check(data: st.DataObject) -> None:
        case = operator_cases.CASES[op](operator_cases.Draw(data))
        assume(case.expected().size < 2**16)
        assert_kernel_follows_law(_host_device(), case)

    yield from _try(4, check)


def _has_fusion(op: str) -> bool:
    return op in fuse.POINTWISE


def _check_fusion(op: str) -> Complaints:
    row, path = fuse.POINTWISE[op], KERNELS / f"{op}.cu"
    if f"{op}_value(" not in path.read_text() if path.is_file() else True:
        yield f"calls {op}_value, which reference_kernels/{op}.cu does not define"
    operands = [item for item in row.order if isinstance(item, int)]
    if sorted(operands) != list(range(len(row.reach))):
        yield f"has operands {operands}, and a reach for {len(row.reach)}"
        return
    if op not in operator_cases.CASES:
        yield NO_NODE
        return
    yield from _hold(lambda: assert_chain_follows_law(op, _host_device()))


# --- ONNX


def _is_exported(op: str) -> bool:
    return op in onnx_export.LOWERINGS or op == "state"  # a state is an input of the graph


def _check_export(op: str) -> Complaints:
    """By onnxruntime, on the operator's vectors: those have what a legal graph may."""
    if op == "state":
        return
    path = VECTORS / f"{op}.json"
    if not path.is_file():
        yield f"is held against nothing: there is no tests/vectors/ops/{op}.json"
        return
    sessions: Sessions = {}
    for content in read_vectors()["operators"]:
        if content["op"] == op:
            item = read_operator_fold(content)
            given = item.node, item.types, item.arrays, item.out
            yield from _compare_with_onnxruntime(*given, sessions)


Sessions = dict[bytes, onnxruntime.InferenceSession]
"""By file: several vectors of a node differ in its inputs alone."""


def _compare_with_onnxruntime(
    node: Node,
    types: tuple[TensorType, ...],
    arrays: tuple[Array, ...],
    out: Array,
    sessions: Sessions,
) -> Complaints:
    sources = [Node(f"in{i}", "state", {"name": f"in{i}"}, (), (t,)) for i, t in enumerate(types)]
    end = Node("out", "next_state", {"name": "out"}, (Ref(len(sources)),), node.outputs)
    proto = onnx_export.export_step_graph(StepGraph((*sources, node, end)))
    file = proto.SerializeToString()
    session = sessions[file] = sessions.get(file) or onnxruntime.InferenceSession(file)
    wanted = {value.name for value in session.get_inputs()}
    feeds = {f"state/in{i}": array for i, array in enumerate(arrays)}
    (found,) = session.run(["next/out"], {name: feeds[name] for name in wanted})
    if found.dtype != out.dtype or found.shape != out.shape or found.tobytes() != out.tobytes():
        yield f"computes something else than the law of the vector {node.name!r}"


def _is_imported(op: str) -> bool:
    return any(op in ops for ops in find_imported().values())


def _check_import(op: str) -> Complaints:
    """By onnxruntime, on the forward passes that have the operator."""
    yield from (f"is imported wrongly: {complaint}" for complaint in find_wrong_models(op))


# --- proofs


def _has_tiles(op: str) -> bool:
    return op in tile_emit.EMITTERS


def _distinct(inputs: list[Array]) -> bool:
    """Whether no input could be taken for another."""
    return all(
        not np.array_equal(inputs[i], inputs[j]) for i in range(len(inputs)) for j in range(i)
    )


def _has_statements(node: Node) -> bool:
    return node.op != "next_state" and node.attrs.get("name") != "step"


class _Cut:
    """The tiles of one step, and which statements are false of the law's values."""

    def __init__(self, kind: str) -> None:
        self.contents: TileContents = make_contents(kind, choose_side(kind))
        self.tiling = self.contents.tiling
        self.statements: list[TileStatement] = [
            self.tiling.statement(i, self.contents.facts) for i in range(len(self.tiling))
        ]
        self.users: dict[Tile, list[TileStatement]] = defaultdict(list)
        for statement in self.statements:
            for parts in statement.given.values():
                for _, tile in parts:
                    self.users[tile].append(statement)
        self.false = {s.node: s.circuit for s in self.statements if not holds(s, self.contents)}


@cache
def _cut(kind: str) -> _Cut:
    return _Cut(kind)


def _check_tiles(op: str) -> Complaints:
    found = False
    for kind in STEPS:
        tiling = make_contents(kind, choose_side(kind)).tiling
        for index, node in enumerate(tiling.graph.nodes):
            if node.op != op or not _has_statements(node):
                continue
            if index not in tiling.outputs:
                continue  # a public number, or part of what another node has: no tile is read
            cut = _cut(kind)
            inputs = [cut.contents.output(ref.node) for ref in node.inputs]
            found |= _distinct(inputs)
            yield from _check_tiles_of(cut, index, node)
    for alone in list_alone(op):
        yield from find_open(alone)
    if op == "next_state":
        return  # it is its input, under the name of the state after the step
    if not found:
        yield (
            "is held against nothing: no step of tests/prove/tile_steps.py has the operator with "
            "inputs of different values"
        )


def _check_tiles_of(cut: _Cut, index: int, node: Node) -> Complaints:
    if node.name in cut.false:
        yield f"says what the law does not: {cut.false[node.name]} is false of {node.name}"
    value, output = cut.tiling.outputs[index], cut.contents.output(index)
    for block in range(value.grid.count):
        expected = cut_block(output, value.grid, block)
        if not np.array_equal(cut.contents.combine(value.at(block)), expected):
            yield f"makes other tiles than the law of {node.name}"
            return
    for _, tile in value.at(0):
        if cut.tiling.place(tile)[0] in ("before", "batch", "public"):
            continue
        altered = cut.contents.tile(tile).copy()
        altered[0] += 1
        other = Altered(cut.contents, tile, altered)
        if all(holds(statement, other) for statement in cut.users[tile]):
            yield f"leaves {node.name} open: a tile with another value passes every statement"


def _has_step(op: str) -> bool:
    return op in step_emit.EMITTERS


def _check_step(op: str) -> Complaints:
    found = False
    for kind in step_law.KINDS:
        graph = step_law.make_graph(kind, "some")
        statement = step_law.make_statement(kind, "some")
        inputs = {**statement.given, **statement.parameters}
        values = step_law.evaluate(graph, inputs)
        for index, node in enumerate(graph.nodes):
            if node.op != op or node.attrs.get("name") == "step":
                continue
            found |= _distinct([values[ref] for ref in node.inputs if ref in values])
            broken = _find_broken_of_the_law(kind)
            mine = [name for name in broken if name.startswith((node.name, "no witness"))]
            if broken:
                yield (
                    f"says what the law does not: {', '.join(mine or broken)} is false of {kind}"
                )
                return
            yield from _check_step_of(kind, node, values[Ref(index)])
    if not found:
        yield (
            "is held against nothing: no step of tests/prove/step_law.py has the operator with "
            "inputs of different values"
        )


@cache
def _find_broken_of_the_law(kind: str) -> tuple[str, ...]:
    statement = step_law.make_statement(kind, "some")
    circuit = step_law.make_circuit(kind, "some", True)
    return tuple(find_broken(circuit, statement.given, statement.parameters))


def _check_step_of(kind: str, node: Node, true: Array) -> Complaints:
    """One element is false, and all that follows is the law's: the node's conditions must tell."""
    graph = step_law.make_graph(kind, "some")
    honest = step_law.make_statement(kind, "some")
    inputs = {**honest.given, **honest.parameters}
    if node.op in ("state", "gather_samples", "schedule"):
        return  # given: there is nothing that it could be computed from
    for false in _draw_falsehoods(true):
        statement = step_law.conclude(graph, inputs, {node.name: false})
        if any(not np.array_equal(statement.get(name), honest.get(name)) for name in (AFTER, LOSS)):
            break
    else:
        yield f"is held against nothing: nothing depends on {node.name}"
        return
    circuit = step_law.make_circuit(kind, "some", True)
    hints = {part for part, _, _ in circuit.parts("hints")}
    change = {node.name: lambda value: false.astype(object)} if node.name in hints else {}
    if not find_broken(circuit, statement.given, statement.parameters, change):
        yield f"leaves {node.name} open: another value passes, with what follows from it"


def _draw_falsehoods(true: Array) -> Iterator[Array]:
    """One element changed, by as little as may be seen behind roundings and masks, never to one of
    a larger size."""
    flat = true.reshape(-1)
    largest = np.argsort(-np.abs(flat.astype(np.int64)))[:16]
    for place in largest.tolist():
        value = int(flat[place])
        for bits in range(max(2 * abs(value), 1).bit_length()):
            false = true.copy()
            false.reshape(-1)[place] = value - (1 << bits) if value > 0 else value + (1 << bits)
            yield false


# --- vectors and docs


def _has_vectors(op: str) -> bool:
    return (VECTORS / f"{op}.json").is_file()


def _check_vectors(op: str) -> Complaints:
    content = json.loads((VECTORS / f"{op}.json").read_text())
    folds = [item for item in read_vectors()["operators"] if item["op"] == op]
    if {item["name"] for item in content["cases"]} != {item["case"] for item in folds}:
        yield "has other cases in tests/vectors/leaf.json: run tests/vectors/generate_leaf.py"
        return
    for item in folds:
        try:
            read_operator_fold(item)
        except (AssertionError, GraphError):
            yield f"is not what the law gives of {item['case']!r}: run generate_ops.py"
    if op not in load_plain_verifier().OPERATORS:
        yield "is in no vector that examples/plain_verifier.py can read: write its rule there"


def _has_docs(op: str) -> bool:
    return bool((TABLE[op].infer.__doc__ or "").strip())


def _check_docs(op: str) -> Complaints:
    rows = [row for row in (DOCS / "leaf-rules.md").read_text().splitlines() if row.startswith("|")]
    if op not in {name for row in rows for name in re.findall(r"\w+", row.split("|")[1])}:
        yield "is incomplete: no table of docs/leaf-rules.md has the operator"
    if f"### {op}\n" not in (DOCS / "operators.md").read_text():
        yield "is incomplete: docs/operators.md lacks it: run docs/make_operators.py"
    if f"`{op}`" not in (DOCS / "accuracy.md").read_text():
        yield "is incomplete: docs/accuracy.md does not say whether it rounds"
    rule = re.compile(rf"^(\| |\d+\. For each )[^|]*`{op}`", re.MULTILINE)
    if _has_tiles(op) and not rule.search((DOCS / "tiling.md").read_text()):
        yield "is incomplete: docs/tiling.md, section 4, has no row of it"


IS_THERE: Mapping[Facet, Callable[[str], bool]] = {
    Facet.RANGES: _has_ranges,
    Facet.BACKWARD: lambda op: TABLE[op].backward is not None,
    Facet.LEAF: lambda op: isinstance(TABLE[op].leaf, LeafRule),
    Facet.LEAF_TWIN: _has_twin,
    Facet.ENGINES: _is_in_core,
    Facet.CUDA: _has_kernel,
    Facet.FUSION: _has_fusion,
    Facet.ONNX_EXPORT: _is_exported,
    Facet.ONNX_IMPORT: _is_imported,
    Facet.TILES: _has_tiles,
    Facet.STEPS: _has_step,
    Facet.VECTORS: _has_vectors,
    Facet.DOCS: _has_docs,
}
CHECKS: Mapping[Facet, Callable[[str], Complaints]] = {
    Facet.RANGES: _check_ranges,
    Facet.BACKWARD: _check_backward,
    Facet.LEAF: _check_leaf,
    Facet.LEAF_TWIN: _check_twin,
    Facet.ENGINES: _check_engine,
    Facet.CUDA: _check_kernel,
    Facet.FUSION: _check_fusion,
    Facet.ONNX_EXPORT: _check_export,
    Facet.ONNX_IMPORT: _check_import,
    Facet.TILES: _check_tiles,
    Facet.STEPS: _check_step,
    Facet.VECTORS: _check_vectors,
    Facet.DOCS: _check_docs,
}
WHERE: Mapping[Facet, str] = {
    Facet.RANGES: "write infer in the family's file under vtrain/ops",
    Facet.BACKWARD: "give the operator's row in vtrain/ops a rule",
    Facet.LEAF: "give the operator's row in vtrain/ops a LeafRule",
    Facet.LEAF_TWIN: "write its arm in rust/vtrain-core/src/referee/fold.rs",
    Facet.ENGINES: "write its arms in rust/vtrain-core/src/ops/kernel.rs",
    Facet.CUDA: "write reference_kernels/{op}.cu and its launch under vtrain/engines/cuda/lower",
    Facet.FUSION: "write its row of POINTWISE in vtrain/engines/cuda/fuse.py",
    Facet.ONNX_EXPORT: "write its lowering in vtrain/graph/onnx_export.py",
    Facet.ONNX_IMPORT: (
        "let vtrain/graph/onnx_import make it of an ONNX operator, and give "
        "tests/graph/test_onnx_import.py a model with that"
    ),
    Facet.TILES: "write its emitter of statements about tiles",
    Facet.STEPS: "write its emitter for circuits of whole steps",
    Facet.VECTORS: "write its cases in tests/vectors/generate_ops.py and run that",
    Facet.DOCS: "its infer has no docstring",
}
