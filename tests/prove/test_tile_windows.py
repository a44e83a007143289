"""Tiles of steps over windows of tokens: what is said of a token, and whose windows they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.audit.runs import KEY, failed
from tests.kzg import SECRET, add_kzg, make_key, make_srs_fixture
from tests.prove.test_tile_runs import (
    FIRST,
    SECOND,
    K,
    answer,
    audit,
    fake_circuits,
    publish,
)
from tests.prove.test_trace import OTHER
from tests.prove.tile_law import holds
from tests.prove.tile_steps import Altered, Refitted, choose_side, make_contents
from tests.tasks import VOCABULARY, make_tiny_task
from vtrain.attest.keys import public_key
from vtrain.errors import EncodingError
from vtrain.prove import audit as proof_audit
from vtrain.prove.batches import index_batches, make_order, sign_batches, verify_batches
from vtrain.prove.tiles.statements import Tile, TileStatement
from vtrain.spec.samples import Samples
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask
from vtrain.wire.batches import SignedBatches, decode_batches, encode_batches
from vtrain.wire.task import describe_windows

STEPS = 2
OWNER = public_key(OTHER)


_fake = pytest.fixture(autouse=True)(fake_circuits)


srs = make_srs_fixture()


@pytest.fixture(scope="module")
def task(srs: Path) -> CompiledTask:
    made = make_tiny_task(
        "gpt", optimizer="adamw", steps=STEPS, batch=2, commit_every=1, checkpoint_every=2
    )
    return add_kzg(made, make_key(srs, K), circuit="tiles")


def move(task: CompiledTask, **changes: Any) -> CompiledTask:
    """The same task over other windows of the same tokens."""
    windows = task.spec.data.windows
    assert windows is not None
    data = describe_windows(replace(windows, **changes), task.spec.data.root)
    samples = Samples(replace(data, samples=task.spec.data.samples), task.samples.table)
    return replace(task, spec=replace(task.spec, data=samples.spec), samples=samples)


def sign(task: CompiledTask, srs: Path) -> SignedBatches:
    key = make_key(srs, K)
    return sign_batches(task.spec, task.graph, task.samples, key, OTHER, SECRET)


def test_steps_over_windows_are_audited_with_the_owners_batches(
    task: CompiledTask, srs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(task, tmp_path / "run", key=KEY, engine="numpy", batch_secret=SECRET)
    run = answer(tmp_path / "run", srs, FIRST, SECOND, 1, 5)
    public = publish(run, tmp_path / "public")
    signed = sign(task, srs)
    assert decode_batches(encode_batches(signed)) == signed
    options: dict[str, Any] = {"traces": (FIRST, 1), "sample": 5, "owner": OWNER}
    report = audit(public, srs, batches=signed, **options)
    assert (report.verdict, failed(report)) == ("verified", [])
    assert any("are those that the data's owner signed" in x for x in report.strength.checked)
    # The commitments to other windows, under the words of the right ones: as a run would have
    # that trained on windows which the order does not have.
    others = replace(signed, commitments=sign(move(task, stride=4), srs).commitments)
    assert index_batches(others) != index_batches(signed)
    monkeypatch.setattr(proof_audit, "verify_batches", lambda *others: None)
    report = audit(public, srs, batches=others, **options)
    (found,) = failed(report)
    assert (found.name, report.verdict) == ("owner", "inconclusive")
    assert "not the one that its owner signed" in found.detail


@pytest.mark.parametrize("changes", [{"stride": 4}, {"shift": 2}, {"context": 5}], ids=str)
def test_an_order_is_of_its_windows(
    task: CompiledTask, srs: Path, changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root of the data binds the tokens, not which windows of them a sample is."""
    signed, other = sign(task, srs), move(task, **changes)
    assert other.spec.data.root == task.spec.data.root
    verify_batches(signed, OWNER, task.spec)
    with pytest.raises(EncodingError, match="about other batches than the task's"):
        verify_batches(signed, OWNER, other.spec)
    # Without them in it, one who signed for some windows has signed for all.
    bare = replace(make_order(task.spec), windows=None)
    assert bare == replace(make_order(other.spec), windows=None)
    unbound = sign_unbound(task, srs, monkeypatch)
    verify_batches(unbound, OWNER, other.spec)


def sign_unbound(task: CompiledTask, srs: Path, monkeypatch: pytest.MonkeyPatch) -> SignedBatches:
    """What the owner would sign if orders had no windows."""
    from vtrain.prove import batches

    monkeypatch.setattr(batches, "make_order", lambda spec: replace(make_order(spec), windows=None))
    return sign(task, srs)


def test_an_order_of_rows_is_encoded_as_before(srs: Path) -> None:
    """So that what owners have signed stays signed."""
    rows = make_tiny_task(steps=STEPS, commit_every=1, checkpoint_every=2, samples=10, batch=4)
    signed = sign(add_kzg(rows, make_key(srs, K), circuit="tiles"), srs)
    assert signed.order.windows is None
    assert b"windows" not in encode_batches(signed)


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "u8"), ("context", 0), ("stride", 0), ("more", 1)]
)
def test_other_windows_are_refused(task: CompiledTask, srs: Path, field: str, value: Any) -> None:
    from vtrain.wire import cbor

    outer: Any = cbor.decode(encode_batches(sign(task, srs)))
    outer["batches"]["windows"][field] = value
    with pytest.raises(EncodingError) as caught:
        decode_batches(cbor.encode(outer))
    assert caught.value.where == f"signed_batches.batches.windows.{field}"


# --- what is said of a token


def find_token(part: str) -> tuple[Any, Tile, list[TileStatement]]:
    """(the tiles of a step, that of x or y in the batch, the statements about it)."""
    contents = make_contents("gpt", choose_side("gpt"))
    tiling = contents.tiling
    number = next(i for i, x in enumerate(tiling.tensors) if x.name == f"batch/{part}")
    tile = Tile(number, 0)
    statements = [tiling.statement(i, contents.facts) for i in range(len(tiling))]
    return (
        contents,
        tile,
        [s for s in statements if any(t == tile for g in s.given.values() for _, t in g)],
    )


@pytest.mark.parametrize("part", ["x", "y"])
def test_another_token_makes_a_statement_false(part: str) -> None:
    """Another id of the vocabulary: what the step made is of the one committed to."""
    contents, tile, about = find_token(part)
    honest = contents.tile(tile)
    for place in (0, 1, 5):
        value = honest.copy()
        value[place] = (value[place] + 3) % VOCABULARY
        false = [s for s in about if not holds(s, Altered(contents, tile, value))]
        # An id of x spreads out into its row of zeros and a one; one of y is a label.
        assert {s.circuit for s in false} >= {"linear"}


def test_an_id_beyond_the_vocabulary_has_no_statement() -> None:
    """The rows of zeros and a one of such an id are zeros, and all that is made of it fits: its
    range alone says no.  Without that, an embedding of 0 would be proven, which the law never
    makes."""
    contents, tile, _ = find_token("x")
    tiling = contents.tiling
    node = next(n for n in tiling.graph.nodes if n.op == "gather_rows")
    mine = [
        statement
        for i in range(len(tiling))
        if (statement := tiling.statement(i, contents.facts)).node == node.name
    ]
    for token in (VOCABULARY, VOCABULARY + 1000, -1):
        value = contents.tile(tile).copy()
        value[0] = token
        false = [s for s in mine if not holds(s, Refitted(contents, tile, value))]
        assert [s.circuit for s in false] == ["range-1"]
        assert [int(false[0].parameters[name][0]) for name in ("lo", "hi")] == [0, VOCABULARY - 1]
    assert {s.circuit for s in mine} == {"range-1", "linear", "gate", "matmul-nn"}
