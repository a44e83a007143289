"""Every decoder of wire/, commit/, attest/ and dispute/ under hostile bytes.

Whatever the bytes, a decoder returns a value whose encoding is those very bytes, or it raises
EncodingError with a place; never another exception.  ``corpus/NAME`` holds inputs kept for the
decoder NAME, one a file, tried at every run and used as the seeds of the mutations.

``python tests/fuzz/test_fuzz_wire.py SECONDS`` fuzzes for that long, prints how many inputs were
tried, and adds to the corpus each input that reached a new refusal.
"""

from __future__ import annotations

import io
import random
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtrain.attest.claims import verify_claim
from vtrain.commit import log
from vtrain.dispute.money import Settled
from vtrain.dispute.state import Verdict
from vtrain.dispute.statement import Ruling
from vtrain.errors import EncodingError, SignatureError
from vtrain.wire import (
    cbor,
    claim,
    dispute,
    graph,
    hiding,
    opening,
    proof,
    record,
    structs,
    task,
    tiles,
    traces,
)

CORPUS = Path(__file__).resolve().parent / "corpus"


@dataclass(frozen=True)
class Target:
    """A decoder with its inverse."""

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


def structs_of(cls: type[Any], data: bytes) -> Any:
    return structs.decode(cls, data, cls.__name__)


TARGETS = {
    "cbor": Target(cbor.decode, cbor.encode),
    "record": Target(record.decode_record, record.encode_record),
    "signed_claim": Target(claim.decode_signed_claim, claim.encode_signed_claim),
    "inclusion": Target(opening.decode_inclusion, opening.encode_inclusion),
    "consistency": Target(opening.decode_consistency, opening.encode_consistency),
    "chunk_opening": Target(opening.decode_chunk_opening, opening.encode_chunk_opening),
    "state_opening": Target(opening.decode_state_opening, opening.encode_state_opening),
    "kzg_record": Target(proof.decode_kzg_record, proof.encode_kzg_record),
    "hiding": Target(hiding.decode_hiding, structs.encode),
    "log": Target(log.decode_log, log.encode_log),
    "graph": Target(graph.decode_graph, graph.encode_graph),
    "task": Target(task.decode_task, task.encode_task),
    "move": Target(dispute.decode_move, dispute.encode_move),
    "signed_move": Target(partial(structs_of, dispute.SignedMove), structs.encode),
    "genesis": Target(partial(structs_of, dispute.Genesis), structs.encode),
    "verdict": Target(partial(structs_of, Verdict), structs.encode),
    "settled": Target(partial(structs_of, Settled), structs.encode),
    "signed_trace_claim": Target(tiles.decode_signed_trace_claim, structs.encode),
    "signed_tensor_traces": Target(traces.decode_signed_tensor_traces, structs.encode),
    "tile_answer": Target(tiles.decode_tile_answer, structs.encode),
    "ruling": Target(partial(structs_of, Ruling), structs.encode),
}


@cache
def load_corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def check(name: str, data: bytes) -> EncodingError | None:
    """Hold the decoder ``name`` to its promise for ``data``; its refusal, if it refused."""
    target = TARGETS[name]
    value: Any = None
    refusal: EncodingError | None = None
    try:
        value = target.decode(data)
    except EncodingError as error:
        refusal = error
    if refusal is None:
        assert target.encode(value) == data, "accepted, though not canonical"
    else:
        assert refusal.where, "refused without a place"
    if name == "log":
        found = log.survey_log(io.BytesIO(data))
        assert str(found.fault) == str(refusal)
        assert refusal is not None or found.root == log.RunLog(value).root()
    if name == "signed_claim" and refusal is None:
        with suppress(SignatureError):
            verify_claim(value)
    return refusal


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str) -> None:
    corpus = load_corpus(name)
    refusals = [check(name, data) for data in corpus]
    assert None in refusals, "the corpus has an input that is accepted"
    assert any(refusals), "the corpus has an input that is refused"


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=200))
def test_any_bytes(name: str, data: bytes) -> None:
    check(name, data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_corpus(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(load_corpus(name)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(seed)))
        cut = data.draw(st.integers(0, 3))
        seed = seed[:at] + data.draw(st.binary(max_size=4)) + seed[at + cut :]
    check(name, seed)


VALUES: st.SearchStrategy[cbor.Value] = st.recursive(
    st.integers(cbor.INT_MIN, cbor.INT_MAX) | st.binary(max_size=33) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("name", sorted(TARGETS.keys() - {"log", "cbor"}))
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_canonical_bytes_of_another_form(name: str, data: st.DataObject) -> None:
    """One part of a valid document is replaced by any other value, canonically encoded."""
    document = cbor.decode(data.draw(st.sampled_from(list_accepted(name))))
    check(name, cbor.encode(replace_part(document, data)))


@cache
def list_accepted(name: str) -> list[bytes]:
    """The valid documents of a corpus."""
    return [seed for seed in load_corpus(name) if check(name, seed) is None]


def replace_part(value: cbor.Value, data: st.DataObject) -> cbor.Value:
    if isinstance(value, list | dict) and value and data.draw(st.integers(0, 4)):
        if isinstance(value, list):
            at = data.draw(st.integers(0, len(value) - 1))
            return [*value[:at], replace_part(value[at], data), *value[at + 1 :]]
        key = data.draw(st.sampled_from(sorted(value)))
        return {**value, key: replace_part(value[key], data)}
    return data.draw(VALUES)


def fuzz(seconds: float) -> None:
    """Mutate the corpus for ``seconds``; keep what was refused in a new way."""
    generator = random.Random(time.time_ns())  # noqa: S311
    inputs = {name: [*load_corpus(name)] for name in TARGETS}
    seen = {name: {shape(check(name, data)) for data in inputs[name]} for name in TARGETS}
    tried, accepted, kept = 0, 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, corpus in inputs.items():
            data = mutate(generator, generator.choice(corpus), generator.choice(corpus))
            refusal = check(name, data)
            tried += 1
            accepted += refusal is None
            if shape(refusal) not in seen[name]:
                seen[name].add(shape(refusal))
                corpus.append(data)
                (CORPUS / name / sha256(data).hexdigest()[:16]).write_bytes(data)
                kept += 1
    sys.stdout.write(f"{seconds:g} s, {tried} inputs, {accepted} accepted, {kept} new kept\n")


def shape(refusal: EncodingError | None) -> str:
    """What is refused and in which field, without numbers, quotations and made-up names."""
    if refusal is None:
        return ""
    if refusal.message == "unknown field":
        return refusal.message
    place = re.sub(r"^(node \d+)\..*", r"\1", refusal.where, flags=re.DOTALL)
    return re.sub(r"'.*'|\d+", "#", f"{place} {refusal.message}", flags=re.DOTALL)


def mutate(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """A few byte changes, insertions, deletions, repeats, or a splice with ``other``."""
    out = bytearray(data)
    for _ in range(generator.choice((1, 1, 1, 2, 4, 8))):
        at = generator.randrange(len(out) + 1)
        length = generator.choice((1, 1, 2, 4, 16))
        match generator.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << generator.randrange(8)
            case 1 if at < len(out):
                out[at] = generator.choice((0, 0x17, 0x18, 0x3B, 0x5B, 0x7F, 0x80, 0xA0, 0xFF))
            case 2:
                out[at:at] = generator.randbytes(length)
            case 3:
                del out[at : at + length]
            case 4:
                out[at:at] = out[at : at + length]
            case _:
                start = generator.randrange(len(other) + 1)
                out[at : at + length] = other[start : start + length]
    return bytes(out)


if __name__ == "__main__":
    fuzz(float(sys.argv[1]))
