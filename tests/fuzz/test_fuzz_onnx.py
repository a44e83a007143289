"""The ONNX import under hostile files: mutated bytes, and mutated messages that still parse.

Whatever the bytes, the import returns a model that the step graph can be built from (or refuses by
its own rules) and whose weights can be exported, or it raises ModelError with a place; never
another exception.  ``corpus/onnx`` holds inputs kept, one a file, tried at every run and used as
the seeds of the mutations.

``python tests/fuzz/test_fuzz_onnx.py SECONDS`` fuzzes for that long, prints how many inputs were
tried, and adds to the corpus each input that reached a new refusal.
"""

from __future__ import annotations

import random
import re
import sys
import time
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtrain.errors import GraphError, ModelError
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.model import Model, emit_forward, require_known_values
from vtrain.graph.onnx_import import import_onnx
from vtrain.graph.weights import export_onnx, export_safetensors
from vtrain.spec.number import MASTER_EXPONENT
from vtrain.wire.graph import Ref

CORPUS = Path(__file__).resolve().parent / "corpus" / "onnx"


@cache
def load_corpus() -> list[bytes]:
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


class _AnyExponent:
    """Every site at exponent 8: legality is what matters here, not precision."""

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        return 8


def check(data: bytes) -> ModelError | None:
    """Hold the import to its promise for ``data``; its refusal, if it refused."""
    refusal: ModelError | None = None
    try:
        model = import_onnx(data)
    except ModelError as error:
        refusal = error
    if refusal is not None:
        assert refusal.where, "refused without a place"
        assert str(refusal).encode(), "a message is text"
        return refusal
    require_known_values(model)
    emit_types(model)
    again = import_onnx(export_onnx(data, model, model.params))
    assert list(again.params) == list(model.params)
    for name, master in model.params.items():
        assert master.dtype == np.int32
        assert again.params[name].shape == master.shape
    assert export_safetensors(data, model, model.params)
    return None


def emit_types(model: Model) -> None:
    """Build the forward graph for a batch of two; nothing is computed."""
    builder = GraphBuilder(_AnyExponent())
    refusal: GraphError | None = None
    try:
        params = {
            name: builder.emit(
                "state",
                name,
                (),
                name=f"param/{name}",
                dtype="i32",
                shape=master.shape,
                exponent=MASTER_EXPONENT,
            )
            for name, master in model.params.items()
        }
        raw = builder.emit(
            "state", "x", (), name="x", dtype="i32", shape=(2, *model.input_shape), exponent=8
        )
        emit_forward(builder, model, builder.rescale("x16", raw, 8), params)
    except GraphError as error:
        refusal = error
    assert refusal is None or refusal.where, "refused without a place"


def test_corpus() -> None:
    refusals = [check(data) for data in load_corpus()]
    assert None in refusals, "the corpus has an input that is accepted"
    assert any(refusals), "the corpus has an input that is refused"


def test_every_prefix_of_a_model() -> None:
    data = max(load_corpus(), key=lambda seed: (check(seed) is None, -len(seed)))
    assert check(data) is None
    for length in range(len(data)):
        check(data[:length])


def test_every_flipped_bit_of_a_model() -> None:
    data = max(load_corpus(), key=lambda seed: (check(seed) is None, -len(seed)))
    for at in range(len(data)):
        for bit in range(8):
            check(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])


@given(data=st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    check(data)


@pytest.mark.parametrize("mutation", ["bytes", "message"])
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**64 - 1))
def test_mutated_corpus(mutation: str, seed: int) -> None:
    generator = random.Random(seed)  # noqa: S311
    corpus = load_corpus()
    mutate = mutate_bytes if mutation == "bytes" else mutate_message
    check(mutate(generator, generator.choice(corpus)))


INTEGERS = (0, 1, 2, 3, 4, 7, 16, -1, -2, 99, 2**20, 2**31 - 1, 2**31, 2**62, -(2**63), 2**63 - 1)


def mutate_message(generator: random.Random, data: bytes) -> bytes:
    """One to four changes of fields, anywhere in the message; ``data`` if it does not parse."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return data
    for _ in range(generator.choice((1, 1, 1, 2, 4))):
        with suppress(ValueError, TypeError):  # a value that the field's type does not take
            change_field(generator, model)
    return bytes(model.SerializeToString())


def change_field(generator: random.Random, model: Any) -> None:
    fields = list_fields(model)
    if not fields:
        return
    message, field = generator.choice(fields)
    if not field.is_repeated:
        if generator.random() < 0.3:
            message.ClearField(field.name)
        elif field.cpp_type != field.CPPTYPE_MESSAGE:
            value = make_value(generator, model, getattr(message, field.name))
            setattr(message, field.name, value)
        return
    items = getattr(message, field.name)
    if len(items) == 0:
        return
    at = generator.randrange(len(items))
    match generator.randrange(4):
        case 0:
            del items[at]
        case 1:
            items.append(items[at])
        case 2:
            moved = list(items)
            generator.shuffle(moved)
            del items[:]
            items.extend(moved)
        case _ if field.cpp_type != field.CPPTYPE_MESSAGE:
            items[at] = make_value(generator, model, items[at])


def list_fields(message: Any) -> list[tuple[Any, Any]]:
    """Every set field of a message and of those inside it."""
    found = []
    for field, value in message.ListFields():
        found.append((message, field))
        inner = value if field.is_repeated else [value]
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            for item in inner:
                found.extend(list_fields(item) if isinstance(item, Message) else [])
    return found


def make_value(generator: random.Random, model: Any, old: Any) -> Any:
    if isinstance(old, bool | int):
        return generator.choice((*INTEGERS, old + 1, old - 1))
    if isinstance(old, float):
        return generator.choice((0.0, 0.5, 1e30, float("nan"), float("inf"), -old))
    if isinstance(old, bytes):
        return mutate_bytes(generator, old)
    names = [
        name for node in model.graph.node for name in (*node.input, *node.output, node.op_type)
    ]
    return generator.choice((*names, "", "x", "Softmax", "Reshape", "VALID"))


def mutate_bytes(generator: random.Random, data: bytes) -> bytes:
    """A few byte changes, insertions, deletions or repeats."""
    out = bytearray(data)
    for _ in range(generator.choice((1, 1, 1, 2, 4, 8))):
        at = generator.randrange(len(out) + 1)
        length = generator.choice((1, 1, 2, 4, 16))
        match generator.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << generator.randrange(8)
            case 1 if at < len(out):
                out[at] = generator.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                out[at:at] = generator.randbytes(length)
            case 3:
                del out[at : at + length]
            case _:
                out[at:at] = out[at : at + length]
    return bytes(out)


def fuzz(seconds: float) -> None:
    """Mutate the corpus for ``seconds``; keep what was refused in a new way."""
    generator = random.Random(time.time_ns())  # noqa: S311
    corpus = [*load_corpus()]
    seen = {shape(check(data)) for data in corpus}
    tried, accepted, kept = 0, 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        mutate = generator.choice((mutate_bytes, mutate_message, mutate_message))
        data = mutate(generator, generator.choice(corpus))
        try:
            refusal = check(data)
        except Exception:
            (CORPUS / f"crash-{sha256(data).hexdigest()[:16]}").write_bytes(data)
            raise
        tried += 1
        accepted += refusal is None
        if shape(refusal) not in seen:
            seen.add(shape(refusal))
            corpus.append(data)
            (CORPUS / sha256(data).hexdigest()[:16]).write_bytes(data)
            kept += 1
    sys.stdout.write(f"{seconds:g} s, {tried} inputs, {accepted} accepted, {kept} new kept\n")


def shape(refusal: ModelError | None) -> str:
    """Why it was refused, without numbers, names and quotations."""
    if refusal is None:
        return ""
    variable = r"\bb['\"].*|attribute \w+|'[^']*'|\"[^\"]*\"|\[.*\]|\(.*\)|-?\d+|nan|inf"
    message = re.sub(variable, "#", refusal.message, flags=re.DOTALL)
    return f"{refusal.where.split(' ')[0]} {message}"


if __name__ == "__main__":
    fuzz(float(sys.argv[1]))
