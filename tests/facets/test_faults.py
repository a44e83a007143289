"""The test of the facets sees what is taken away, what is wrong, and reasons that nobody needs.

``mul`` has every facet: each fault here is of its, and the message must name operator, facet and
the guide's step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from tests.cuda.host_device import HostDevice
from tests.examples.plain import load_plain_verifier
from tests.facets import checks, imports
from tests.facets.checks import find_complaints
from tests.prove import step_law, tile_claims, tile_steps
from vtrain.engines.cuda import fuse
from vtrain.errors import GraphError
from vtrain.graph import model, onnx_export, onnx_import
from vtrain.graph.model import find_mask_factor
from vtrain.ops import TABLE, facets
from vtrain.ops.base import Array, Builder, Site, pointwise
from vtrain.ops.facets import GUIDE, Facet
from vtrain.prove.steps import emit as step_emit
from vtrain.prove.tiles import emit as tile_emit
from vtrain.prove.tiles.builder import TileBuilder
from vtrain.prove.tiles.emit import norm
from vtrain.wire.graph import Attrs, Node, Ref, TensorType

Patch = pytest.MonkeyPatch
OP = "mul"


@pytest.fixture(autouse=True)
def _forget() -> Any:
    """What was worked out of the tables as they were."""
    _clear()
    yield
    _clear()


def _clear() -> None:
    for cached in (
        *(imports.find_imported, imports._try_model),
        *(checks._cut, checks._find_broken_of_the_law, tile_claims.list_alone),
        *(tile_steps.make_contents, step_law.make_circuit),
    ):
        cached.cache_clear()


def expect(facet: Facet, message: str, op: str = OP) -> None:
    found = find_complaints(op, facet)
    assert found, f"{op} lost {facet}, and nobody complains"
    assert all(text.startswith(f"{op}, {facet}: it ") for text in found)
    assert all(
        text.endswith(f"(docs/adding-an-operator.md, step {GUIDE[facet]})") for text in found
    )
    assert any(message in text for text in found), found


class _ForgetfulCore:
    """The compiled core without an operator."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*args: object) -> None:
            raise GraphError(f'unknown operator "{OP}"')

        return refuse


def _take_row(patch: Patch, **changes: Any) -> None:
    patch.setitem(TABLE, OP, replace(TABLE[OP], **changes))


def _without_docstring(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
    raise NotImplementedError


TAKEN: dict[Facet, Callable[[Patch, Path], None]] = {
    Facet.RANGES: lambda patch, folder: _take_row(patch, infer=None),
    Facet.BACKWARD: lambda patch, folder: _take_row(patch, backward=None),
    Facet.LEAF: lambda patch, folder: _take_row(patch, leaf=None),
    Facet.LEAF_TWIN: lambda patch, folder: patch.setattr(checks, "CORE", _ForgetfulCore()),
    Facet.ENGINES: lambda patch, folder: patch.setattr(checks, "CORE", _ForgetfulCore()),
    Facet.CUDA: lambda patch, folder: patch.setattr(checks, "KERNELS", folder),
    Facet.FUSION: lambda patch, folder: patch.delitem(fuse.POINTWISE, OP),
    Facet.ONNX_EXPORT: lambda patch, folder: patch.delitem(onnx_export.LOWERINGS, OP),
    Facet.ONNX_IMPORT: lambda patch, folder: patch.setattr(onnx_import.walk, "HANDLERS", {}),
    Facet.TILES: lambda patch, folder: patch.delitem(tile_emit.EMITTERS, OP),
    Facet.STEPS: lambda patch, folder: patch.delitem(step_emit.EMITTERS, OP),
    Facet.VECTORS: lambda patch, folder: patch.setattr(checks, "VECTORS", folder),
    Facet.DOCS: lambda patch, folder: _take_row(patch, infer=_without_docstring),
}


def _read_told() -> dict[str, tuple[str, str]]:
    """By step, the files of ``mul`` and what is said without them: the guide's last section."""
    section = checks.GUIDE_PAGE.read_text().split("## What `mul` touches")[1].split("\n## ")[0]
    rows = (line.split("|")[1:4] for line in section.splitlines() if re.match(r"\| \d", line))
    return {step.strip(): (files, told.strip()) for step, files, told in rows}


TOLD = _read_told()


@pytest.mark.parametrize("facet", Facet, ids=lambda facet: facet.name.lower())
def test_a_facet_that_is_taken_away_is_missed(
    facet: Facet, monkeypatch: Patch, tmp_path: Path
) -> None:
    TAKEN[facet](monkeypatch, tmp_path)
    expect(facet, TOLD[GUIDE[facet].split(".")[0]][1])


def test_the_guide_names_files_that_there_are() -> None:
    files = [file for files, _ in TOLD.values() for file in re.findall(r"`(.+?)`", files)]
    assert all((checks.ROOT / file).is_file() for file in files)
    own = [file for files, _ in TOLD.values() for file in re.findall(r"\*`(.+?)`\*", files)]
    assert f"touches {len(files)} files today, {len(own)} of which" in checks.GUIDE_PAGE.read_text()


@pytest.mark.parametrize("facet", facets.LACKS, ids=lambda facet: facet.name.lower())
def test_a_reason_that_nobody_needs_is_seen(facet: Facet, monkeypatch: Patch) -> None:
    more = {**facets.LACKS[facet], "nobody came to it": (OP,)}
    monkeypatch.setitem(facets.LACKS, facet, more)
    expect(facet, "is there, but")


@pytest.mark.parametrize("facet", facets.LACKS, ids=lambda facet: facet.name.lower())
def test_a_reason_excuses(facet: Facet, monkeypatch: Patch, tmp_path: Path) -> None:
    TAKEN[facet](monkeypatch, tmp_path)
    more = {**facets.LACKS[facet], "nobody came to it": (OP,)}
    monkeypatch.setitem(facets.LACKS, facet, more)
    assert find_complaints(OP, facet) == []


# --- facets that are there, and wrong


def test_a_range_too_narrow_is_seen(monkeypatch: Patch) -> None:
    infer = TABLE[OP].infer

    def narrow(attrs: Attrs, inputs: Sequence[TensorType]) -> TensorType:
        claim = infer(attrs, inputs)
        return replace(claim, hi=max(claim.lo, claim.hi - 1))

    _take_row(monkeypatch, infer=narrow)
    expect(Facet.RANGES, "does not hold the law's output")


def test_a_law_that_is_another_is_seen(monkeypatch: Patch) -> None:
    def square(attrs: Attrs, inputs: Sequence[Array]) -> Array:
        return np.asarray(inputs[1].astype(np.int64) * inputs[1])

    _take_row(monkeypatch, law=square)
    expect(Facet.RANGES, "second definition")


@pytest.mark.parametrize("op", ["mul", "matmul", "add_bias"])
def test_two_gradients_that_are_swapped_are_seen(op: str, monkeypatch: Patch) -> None:
    rule = TABLE[op].backward
    assert rule is not None

    def swapped(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
        return tuple(reversed(rule(b, node, out, grad)))

    monkeypatch.setitem(TABLE, op, replace(TABLE[op], backward=swapped))
    expect(Facet.BACKWARD, "gradient", op)


@pytest.mark.parametrize(
    "op", [op for op, operator in TABLE.items() if operator.backward is not None]
)
def test_a_gradient_twice_as_large_is_seen(op: str, monkeypatch: Patch) -> None:
    """Of every operator that has a rule."""
    rule = TABLE[op].backward
    assert rule is not None

    def doubled(b: Builder, node: Node, out: Ref, grad: Ref) -> Sequence[Ref | None]:
        twice: Attrs = {"dtype": "i64", "multiplier": 2, "multiplier_exponent": 0, "shift": 0}
        parts = rule(b, node, out, grad)
        return [part and b.emit("rescale", "wrong", (part,), **twice) for part in parts]

    monkeypatch.setitem(TABLE, op, replace(TABLE[op], backward=doubled))
    expect(Facet.BACKWARD, "is not the derivative", op)


@pytest.mark.parametrize(
    ("facet", "message"),
    [(Facet.LEAF, "not what the law says"), (Facet.LEAF_TWIN, "not what the law says")],
)
def test_a_leaf_of_another_operator_is_seen(facet: Facet, message: str, monkeypatch: Patch) -> None:
    def square(site: Site, e: int) -> int:
        return site.read(1, e) * site.read(1, e)

    _take_row(monkeypatch, leaf=pointwise(square))
    expect(facet, message)


def test_an_engine_and_a_kernel_of_another_law_are_seen(monkeypatch: Patch) -> None:
    """As if both computed b b: the law of the table is the one that is another."""
    law = TABLE[OP].law
    _take_row(monkeypatch, law=lambda attrs, x: law(attrs, [x[1], x[1]]))
    expect(Facet.ENGINES, "not what the law says")
    expect(Facet.CUDA, "not what the law says")


def test_a_lowering_of_another_law_is_seen(monkeypatch: Patch) -> None:
    monkeypatch.setitem(onnx_export.LOWERINGS, OP, lambda g, node, x, t: g.mul(x[1], x[1]))
    expect(Facet.ONNX_EXPORT, "something else than the law")


def test_a_rule_that_reads_beyond_its_input_is_named(monkeypatch: Patch) -> None:
    def beyond(site: Site, e: int) -> int:
        return site.read(0, e) * site.read(1, e + 1)

    _take_row(monkeypatch, leaf=pointwise(beyond))
    expect(Facet.LEAF, "not what the law says: ")


def test_whatever_an_operator_raises_is_named_with_its_place(monkeypatch: Patch) -> None:
    def law(attrs: Attrs, inputs: Sequence[Array]) -> Array:
        raise KeyError("nobody thought of it")

    _take_row(monkeypatch, law=law)
    for facet in (Facet.RANGES, Facet.LEAF, Facet.ENGINES, Facet.VECTORS):
        expect(facet, "fails with KeyError in ")


@pytest.mark.parametrize(
    ("op", "name", "order"),
    [
        ("mul", "Mul", (0, 0)),
        ("add", "Sub", (1, 0)),
        ("add", "Add", (0, 0)),
        ("concat", "Concat", (1, 0)),
    ],
)
def test_an_operator_imported_with_other_operands_is_seen(
    op: str, name: str, order: tuple[int, int], monkeypatch: Patch
) -> None:
    real = onnx_import.walk.HANDLERS[name]

    def wrong(importer: Any, node: Any) -> None:
        real(importer, _with_inputs(node, order))

    monkeypatch.setitem(onnx_import.walk.HANDLERS, name, wrong)
    expect(Facet.ONNX_IMPORT, "is imported wrongly: the model ", op)


def _with_inputs(node: Any, order: tuple[int, int]) -> Any:
    """The first two inputs in another order."""
    if len(node.inputs) < 2:
        return node
    changed = copy(node)
    changed.inputs = [*(node.inputs[i] for i in order), *node.inputs[2:]]
    return changed


def test_a_mask_that_keeps_another_share_is_seen(monkeypatch: Patch) -> None:
    monkeypatch.setattr(model, "find_mask_factor", lambda keep: find_mask_factor(keep // 2))
    expect(Facet.ONNX_IMPORT, "is imported wrongly: the model ", "dropout_mask")


def test_a_fusion_row_without_an_operand_is_seen(monkeypatch: Patch) -> None:
    wrong = fuse.Pointwise((0, 0), ("same", "same"))
    monkeypatch.setitem(fuse.POINTWISE, OP, wrong)
    expect(Facet.FUSION, "has operands [0, 0]")


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("sub", {"order": (1, "shift_b", 0, "shift_a")}),
        ("row_scale", {"reach": ("same", "column")}),
        ("keep_span", {"reach": ("same", "row")}),
        ("divide", {"divisors": (), "quick": False, "reach": ("same", "one")}),
    ],
)
def test_a_fusion_row_that_computes_something_else_is_seen(
    op: str, wrong: dict[str, Any], monkeypatch: Patch
) -> None:
    monkeypatch.setitem(fuse.POINTWISE, op, replace(fuse.POINTWISE[op], **wrong))
    expect(Facet.FUSION, "is not what the law says", op)


def test_a_quick_function_that_is_wrong_is_seen(monkeypatch: Patch, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    copytree(checks.KERNELS, folder)
    path = folder / "adam_direction.cu"
    readable, quick = path.read_text().split("adam_direction_quick(")
    wrong = quick.replace("root + epsilon", "root")
    assert wrong != quick
    path.write_text(f"{readable}adam_direction_quick({wrong}")
    device = HostDevice(folder=folder, cache_folder=tmp_path / "built")
    monkeypatch.setattr(checks, "_host_device", lambda: device)
    expect(Facet.FUSION, "is not what the law says", "adam_direction")


def test_tiles_of_b_b_for_a_b_are_seen(monkeypatch: Patch) -> None:
    emit = tile_emit.EMITTERS[OP]

    def of_one(s: TileBuilder, ref: Ref, node: Node) -> Any:
        return emit(s, ref, replace(node, inputs=(node.inputs[1], node.inputs[1])))

    monkeypatch.setitem(tile_emit.EMITTERS, OP, of_one)
    expect(Facet.TILES, "says what the law does not: mul is false of product/product")


def test_tiles_that_no_statement_makes_are_seen(monkeypatch: Patch) -> None:
    def commit_only(s: TileBuilder, ref: Ref, node: Node) -> Any:
        return s.commit(ref, s.own_grid(ref))

    monkeypatch.setitem(tile_emit.EMITTERS, OP, commit_only)
    expect(Facet.TILES, "")
    assert any("another value" in text for text in find_complaints(OP, Facet.TILES))


def test_a_statement_left_out_is_named(monkeypatch: Patch) -> None:
    """The range of a quotient, in the test of the facets."""
    monkeypatch.setattr(norm, "hold", lambda *args: None)
    expect(Facet.TILES, "no statement says that", "inverse_root")


def test_an_operator_in_no_step_of_the_tests_is_seen(monkeypatch: Patch) -> None:
    monkeypatch.setattr(checks, "STEPS", ("mlp",))
    monkeypatch.setattr(step_law, "KINDS", ("mse",))
    expect(Facet.TILES, "is held against nothing")
    expect(Facet.STEPS, "is held against nothing")


def test_a_whole_step_of_b_b_for_a_b_is_seen(monkeypatch: Patch) -> None:
    emit = step_emit.EMITTERS[OP]

    def of_one(s: Any, ref: Ref, node: Node) -> None:
        emit(s, ref, replace(node, inputs=(node.inputs[1], node.inputs[1])))

    monkeypatch.setitem(step_emit.EMITTERS, OP, of_one)
    expect(Facet.STEPS, "says what the law does not")


def test_a_hint_that_nothing_holds_is_seen(monkeypatch: Patch) -> None:
    def hint_only(s: Any, ref: Ref, node: Node) -> None:
        s.values[ref] = s.hint_output(ref, node)

    monkeypatch.setitem(step_emit.EMITTERS, OP, hint_only)
    expect(Facet.STEPS, "leaves product/product open")


def test_vectors_of_another_law_are_seen(monkeypatch: Patch) -> None:
    law = TABLE[OP].law
    _take_row(monkeypatch, law=lambda attrs, x: law(attrs, [x[1], x[1]]))
    expect(Facet.VECTORS, "not what the law gives")


def test_a_page_without_the_operator_is_seen(monkeypatch: Patch, tmp_path: Path) -> None:
    (tmp_path / "leaf-rules.md").write_text("| op |\n|---|\n| add |\n")
    (tmp_path / "operators.md").write_text("### add\n")
    (tmp_path / "accuracy.md").write_text("`add`\n")
    (tmp_path / "tiling.md").write_text("| `add` | `mul` |\n")
    monkeypatch.setattr(checks, "DOCS", tmp_path)
    expect(Facet.DOCS, "no table of docs/leaf-rules.md")
    expect(Facet.DOCS, "docs/operators.md lacks it")
    expect(Facet.DOCS, "docs/accuracy.md does not say")
    expect(Facet.DOCS, "docs/tiling.md, section 4, has no row")


def test_an_operator_that_the_plain_verifier_lacks_is_seen(monkeypatch: Patch) -> None:
    plain = load_plain_verifier()
    fewer = {name: rule for name, rule in plain.OPERATORS.items() if name != OP}
    monkeypatch.setattr(plain, "OPERATORS", fewer)
    expect(Facet.VECTORS, "examples/plain_verifier.py")
