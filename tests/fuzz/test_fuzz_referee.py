"""The referee under hostile statements: a canonical ruling, or RefusalError with a place.

``corpus/statement`` holds statements of real disputes; they are cut, spliced and changed, as bytes
and part by part.  ``python -m tests.fuzz.test_fuzz_referee SECONDS`` fuzzes for that long, prints
how many were tried, and adds to the corpus each that was refused in a new way.
"""

from __future__ import annotations

import random
import re
import sys
import time
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.test_fuzz_wire import CORPUS, VALUES, load_corpus, mutate
from vtrain import _core
from vtrain.dispute.statement import decode_ruling
from vtrain.errors import RefusalError
from vtrain.wire import cbor, structs

SEEDS = load_corpus("statement")


def judge(data: bytes) -> str:
    """Hold the referee to its promise; how it refuses, without numbers, or "" when it rules."""
    refusal = None
    try:
        ruling = decode_ruling(_core.referee_judge(data))
    except RefusalError as error:
        refusal = error
    if refusal is not None:
        assert refusal.where, "refused without a place"
        return re.sub(r"\d+|'.*'", "#", f"{refusal.where}: {refusal.message}", flags=re.DOTALL)
    assert _core.referee_judge(data) == structs.encode(ruling), "the same again"
    claims = cbor.decode(data)
    assert isinstance(claims, dict)
    sides = claims["claims"]
    assert isinstance(sides, list)
    for right, claim in zip(ruling.right, sides, strict=True):
        assert bool(right) == (ruling.after != b"" and claim == ruling.after)
    return ""


def change_part(chance: random.Random, value: cbor.Value) -> cbor.Value:
    """One part, somewhere, is another one, or is changed a little."""
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value))
        return {**value, key: change_part(chance, value[key])}
    if isinstance(value, list) and value and chance.randrange(5):
        at = chance.randrange(len(value))
        return [*value[:at], change_part(chance, value[at]), *value[at + 1 :]]
    other: list[cbor.Value]
    match value:
        case list():
            other = [[], value * 2, value[::-1], [b""], [bytes(32)] * 70]
            return chance.choice(other)
        case int():
            edges = [0, -1, 2**31, 2**62, 2**64 - 1, -(2**63), value + 1, value - 1, value * 2]
            return min(max(chance.choice(edges), -(2**63)), 2**64 - 1)
        case bytes():
            inner = mutate(chance, value, bytes(40))
            return chance.choice([b"", inner, inner, value[:-1], value + b"\0", bytes(32)])
        case _:
            other = ["", b"", 0, [], {}]
            return chance.choice(other)


def test_corpus() -> None:
    refusals = [judge(seed) for seed in SEEDS]
    assert "" in refusals
    assert any(refusals)


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    assert judge(data)


@given(VALUES)
def test_any_value(value: cbor.Value) -> None:
    assert judge(cbor.encode(value))


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_mutated_statements(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    data, other = chance.choice(SEEDS), chance.choice(SEEDS)
    judge(mutate(chance, data, other))


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_statements_with_other_parts(seed: int) -> None:
    judge(change_statement(random.Random(seed)))  # noqa: S311


WHOLE = [seed for seed in SEEDS if not judge(seed)]


def change_statement(chance: random.Random) -> bytes:
    """A statement that is ruled on, with one part or two changed."""
    statement = cbor.decode(chance.choice(WHOLE))
    for _ in range(chance.choice((1, 1, 2))):
        statement = change_part(chance, statement)
    return cbor.encode(statement)


@pytest.mark.parametrize("part", ["graph", "trace", "base", "samples", "node", "inputs", "rows"])
def test_every_part_is_bound(part: str) -> None:
    """Whatever a ruling rests on cannot be another thing and be ruled on all the same."""
    chance, tried = random.Random(7), 0  # noqa: S311
    for seed in SEEDS:
        if judge(seed):
            continue
        statement = cbor.decode(seed)
        assert isinstance(statement, dict)
        if not statement[part]:
            continue
        for _ in range(20):
            changed = {**statement, part: change_part(chance, statement[part])}
            if changed == statement:
                continue
            tried += 1
            if judge(cbor.encode(changed)) == "":
                # Agreed things of which this block uses nothing: free, as is no other.
                assert part in {"samples", "base", "graph", "trace"}
                both = (seed, cbor.encode(changed))
                before, after = (decode_ruling(_core.referee_judge(data)) for data in both)
                assert before.right == after.right
    assert tried


def fuzz(seconds: float) -> None:
    """Change statements for ``seconds``; keep what was refused in a new way."""
    chance = random.Random(time.time_ns())  # noqa: S311
    seen, tried, ruled, kept = {judge(seed) for seed in SEEDS}, 0, 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if chance.randrange(3):
            data = change_statement(chance)
        else:
            data = mutate(chance, chance.choice(SEEDS), chance.choice(SEEDS))
        refusal = judge(data)
        tried += 1
        ruled += refusal == ""
        if refusal not in seen:
            seen.add(refusal)
            SEEDS.append(data)
            (CORPUS / "statement" / sha256(data).hexdigest()[:16]).write_bytes(data)
            kept += 1
    sys.stdout.write(f"{seconds:g} s, {tried} statements, {ruled} ruled on, {kept} new kept\n")


if __name__ == "__main__":
    fuzz(float(sys.argv[1]))
