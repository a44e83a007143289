"""Statements that auditors sign, and near each of them what is refused (docs/reports.md).

What holds is stated here by hand: a report of the classes below holds, and of what is changed in
one nothing does.  ``generate_report.py`` writes them into ``report.json``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import takewhile
from typing import Any, Final

from vtrain.attest.envelope import make_statement
from vtrain.report.document import (
    PREDICATE_TYPE,
    describe_subject,
    document_to_dict,
    make_document,
)
from vtrain.wire.report import (
    Assumption,
    BeaconUse,
    Check,
    Clamped,
    Coverage,
    Detection,
    LossPoint,
    Pictures,
    Randomness,
    Report,
    SampledNode,
    SampledRows,
    Strength,
    Traced,
)
from vtrain.wire.task import LAW_VERSION

Json = dict[str, Any]
DATE: Final = datetime(2026, 11, 26, 12, 0, 0, tzinfo=UTC)
_ODD: Final = 'as "\u00e9\\/\x7f\n\t\U0001f600\ud800'
"""A text with what a payload escapes, and what it does not."""


def make_whole_report() -> Report:
    """A run of four steps, all done again."""
    return Report(
        verdict="verified",
        checks=(
            Check("claim", "passed", "the signature holds", "claim.cbor"),
            Check("replay", "passed", "all steps were done again"),
        ),
        strength=Strength(("every step",), ("whether the model is any good",)),
        randomness=None,
        detections=(),
        segments=((1, 4),),
        engine="numpy",
        **{  # type: ignore[arg-type]
            name: bytes([number]) * 32
            for number, name in enumerate(
                ("task_id", "run_id", "solver", "root", "log_root", "claim"), start=0x21
            )
        },
        steps=4,
        coverage=(Coverage("structure", 1, 1), Coverage("replay", 4, 4)),
    )


def state(report: Report) -> bytes:
    """The payload that a report is signed as."""
    document = make_document(report, DATE, "1.0.0", LAW_VERSION)
    name, digests = describe_subject(report)
    return make_statement(name, digests, PREDICATE_TYPE, document_to_dict(document))


def make_reports() -> dict[str, Report]:
    """Reports of several kinds."""
    whole = make_whole_report()
    structure = whole.coverage[0]
    drawn = replace(
        whole,
        steps=11,
        checks=(*whole.checks, Check("batches", "passed", _ODD, "log.bin")),
        segments=((4, 6),),
        randomness=Randomness(b"seed", "a seed for the claim that was pinned", predictable=False),
        # 11 steps in segments of three, the last of two.
        detections=tuple(
            Detection(share, steps, segments, 4, 1)
            for share, steps, segments in (
                (None, 1, 1),
                (Fraction(1, 10), 2, 1),
                (Fraction(1, 3), 4, 2),
                (Fraction(10, 11), 10, 4),
                (Fraction(1), 11, 4),
            )
        ),
        coverage=(structure, Coverage("replay", 3, 11)),
        pictures=Pictures(
            (LossPoint(1, 6, -5, 2, 9), LossPoint(7, 11, 0, 0, 0)),
            16,
            (Clamped("clip", 3, 44),),
            counted=11,
            impossible=1,
        ),
    )
    quarter = SampledNode(7, "logits", "matmul", "row", 1, 4)
    nodes = (SampledNode(2, "hidden", "relu", "chunk", 3, 8), quarter)
    use = BeaconUse(bytes(32), 9, bytes(range(48)), b"", 100, 60, 30, "CN=a")
    value = hashlib.sha256(use.signature).digest()
    by_beacon = Randomness(value, "round 9", predictable=False, beacon=use)
    undated = replace(use, previous=bytes(96), claimed=None, authority="")
    failed = Check("log", "failed", "is another", "log.bin", "nobody")
    return {
        "whole": whole,
        "drawn": drawn,
        "rows": replace(
            drawn,
            sampled=SampledRows(
                3, 1024, (*nodes, replace(quarter, node=9, name="last")), ("loss",)
            ),
            detections=(Detection(None, 1, 1, 11, 3, caught=Fraction(1, 4)),),
            segments=((1, 1), (5, 5), (11, 11)),
            randomness=by_beacon,
            traced=Traced((1, 5, 11), by_beacon),
            coverage=(structure, Coverage("rows", 3, 11)),
        ),
        "steps": replace(
            drawn,
            verdict="conditional",
            assumptions=(
                Assumption("predictable-sample", "no token"),
                Assumption("insecure-srs", "taken", accepted=True),
            ),
            detections=(
                Detection(None, 1, 1, 5, 2, "step"),
                Detection(Fraction(1, 4), 2, 2, 5, 2, "step"),
            ),
            segments=((2, 2), (10, 10)),
            randomness=Randomness(value, "round 9", predictable=True, beacon=undated),
            coverage=(structure, Coverage("proof", 2, 11)),
        ),
        "attested": replace(
            whole,
            verdict="inconclusive",
            checks=(whole.checks[0], failed),
            segments=(),
            assumptions=(Assumption("attested", "floats"),),
            coverage=(Coverage("structure", 1, 2),),
        ),
    }


TEXTS: Final[dict[str, tuple[str, str, str]]] = {
    "with a space": ("whole", '"exit_code":0', '"exit_code": 0'),
    "with two keys that change places": (
        "whole",
        '{"first":1,"last":4}',
        '{"last":4,"first":1}',
    ),
    "with a field twice": ("whole", '"exit_code":0', '"exit_code":0,"exit_code":0'),
    "with a number that has a point": ("whole", '"exit_code":0', '"exit_code":0.0'),
    "with a number that has an exponent": ("whole", '"exit_code":0', '"exit_code":0e0'),
    "with a zero that has a sign": ("whole", '"exit_code":0', '"exit_code":-0'),
    "with a letter beyond ASCII as UTF-8": ("drawn", r"\u00e9", "\u00e9"),
    "with an escape in capitals": ("drawn", r"\u00e9", r"\u00E9"),
    "with a slash that is escaped": ("drawn", r"\\/", r"\\\/"),
    "with U+007F as it is": ("drawn", r"\u007f", "\x7f"),
    "with a line end by its number": ("drawn", r"\n\t", r"\u000a\t"),
    "with a letter by its number": ("whole", '"numpy"', r'"\u006eumpy"'),
    "of another version of in-toto": ("whole", "Statement/v1", "Statement/v2"),
    "of another kind of predicate": ("whole", "urn:vtrain:report:1", "urn:vtrain:report:2"),
}
"""Payloads with one place changed: which report's, what stands there and what does in its place."""


def _set(*path: Any) -> Callable[[Json], None]:
    """Something at a path becomes another: the last is the value."""
    *keys, last, value = path

    def alter(document: Json) -> None:
        at: Any = document
        for key in keys:
            at = at[key]
        at[last] = value

    return alter


_CHANCE: Final = ("predicate", "detection", 0)
VALUES: Final[dict[str, tuple[str, Callable[[Json], object]]]] = {
    "of a run of another length": ("whole", _set("subject", 0, "name", "state after step 5")),
    "of another root": ("whole", _set("subject", 0, "digest", "vtrainStateRoot", "00" * 32)),
    "of a root with another digest beside": ("whole", _set("subject", 0, "digest", "more", "00")),
    "of two subjects": ("whole", lambda v: v["subject"].append(v["subject"][0])),
    "with a field more": ("whole", _set("predicate", "more", 1)),
    "with a field more further in": ("whole", _set("predicate", "checks", 0, "more", 1)),
    "with a field less": ("whole", lambda v: v["predicate"].pop("traced")),
    "of a day that there is not": ("whole", _set("predicate", "date", "2026-02-29T12:00:00Z")),
    "of a second 60": ("whole", _set("predicate", "date", "2026-11-26T12:00:60Z")),
    "with another verdict": ("whole", _set("predicate", "verdict", "conditional")),
    "with another exit code": ("whole", _set("predicate", "exit_code", 4)),
    "with no reason": ("attested", _set("predicate", "reason", None)),
    "with a check that passed and is somebody's fault": (
        "whole",
        _set("predicate", "checks", 0, "fault", "solver"),
    ),
    "with an assumption accepted that nobody can accept": (
        "steps",
        _set("predicate", "assumptions", 0, "accepted", True),
    ),
    "with a sentence less": ("whole", lambda v: v["predicate"]["plain"].pop()),
    "with sentences that change places": ("whole", lambda v: v["predicate"]["plain"].reverse()),
    "with more structure than there is": (
        "whole",
        _set("predicate", "coverage", 0, "done", 2),
    ),
    "with a percentage that is rounded up": ("drawn", _set(*_CHANCE, "percent", "25.01")),
    "with a percentage of one digit": ("drawn", _set(*_CHANCE, "percent", "25.0")),
    "with a chance that is not in lowest terms": ("drawn", _set(*_CHANCE, "probability", "2/8")),
    "with a chance that is left out": ("drawn", _set(*_CHANCE, "probability", None)),
    "with a certainty that has a denominator": (
        "drawn",
        _set("predicate", "detection", 4, "probability", "1/1"),
    ),
    "with a formula of other numbers": (
        "drawn",
        _set(*_CHANCE, "formula", "1 - C(3,1)/C(5,1)"),
    ),
    "with a formula that has a space more": (
        "drawn",
        _set(*_CHANCE, "formula", "1 - C(3, 1)/C(4, 1)"),
    ),
    "with a share that is not in lowest terms": (
        "drawn",
        _set("predicate", "detection", 1, "fraction", "2/20"),
    ),
    "with a factor of 1": ("drawn", _set(*_CHANCE, "caught", "1")),
    "with a greatest share of rows rounded down": (
        "rows",
        _set("predicate", "sampled", "missed", "percent_of_ten", "5.63"),
    ),
    "with the last of the nodes of which most is missed": (
        "rows",
        _set("predicate", "sampled", "missed", "node", "last"),
    ),
    "with a round of number 0": (
        "steps",
        _set("predicate", "randomness", "beacon", "round", 0),
    ),
    "with the round of no number": (
        "steps",
        _set("predicate", "randomness", "beacon", "round", 2**53),
    ),
    "with a loss that is less than the least": (
        "drawn",
        _set("predicate", "pictures", "losses", 0, 3, -6),
    ),
    "with losses of steps that were there": (
        "drawn",
        _set("predicate", "pictures", "losses", 1, 0, 6),
    ),
    "with more clamped than there is": (
        "drawn",
        _set("predicate", "pictures", "clamped", 0, "count", 45),
    ),
    "with elements that are not as many in each step": (
        "drawn",
        _set("predicate", "pictures", "clamped", 0, "elements", 45),
    ),
    "with a count that cannot be of steps that nobody counted": (
        "drawn",
        lambda v: v["predicate"]["pictures"].pop("counted_steps"),
    ),
}
"""Payloads with one value changed, in the form that they must have."""


def list_reports(reports: dict[str, Report]) -> Iterator[tuple[str, str, Report]]:
    """(what it has, which of the reports it is near, a report that is none): all that follows from
    the rest follows, but for one thing."""
    whole, drawn, rows, steps, attested = reports.values()
    one = drawn.detections[0]
    structure = whole.coverage[0]
    chances: list[tuple[str, Detection]] = [
        ("a share of no step", replace(one, fraction=Fraction(0))),
        ("a share above 1", replace(one, fraction=Fraction(12, 11), bad_steps=11)),
        ("two steps as one", replace(one, bad_steps=2)),
        ("a false step in no segment", replace(one, bad_segments=0)),
        ("a false step in two segments", replace(one, bad_segments=2)),
        (
            "more false steps than there are",
            replace(one, fraction=Fraction(1), bad_steps=12, bad_segments=4),
        ),
        ("more segments than steps", replace(one, segments=12)),
        ("more drawn than was looked at", replace(one, drawn=2)),
        ("rows where there are none", replace(one, caught=Fraction(1, 2))),
    ]
    for about, chance in chances:
        yield f"a chance of {about}", "drawn", replace(drawn, detections=(chance,))
    nine = drawn.detections * 2
    yield "more than eight chances", "drawn", replace(drawn, detections=nine[:9])
    half = replace(rows.detections[0], caught=Fraction(1, 2))
    yield "a chance of other rows", "rows", replace(rows, detections=(half,))
    two = replace(steps.detections[1], bad_steps=3)
    yield "a share that is rounded once more", "steps", replace(steps, detections=(two,))
    yield "a chance without a draw", "drawn", replace(drawn, randomness=None)
    for about, report, coverage in (
        ("fewer steps than were done", drawn, (structure, Coverage("replay", 2, 11))),
        ("steps of a shorter run", drawn, (structure, Coverage("replay", 3, 10))),
        ("no structure", drawn, (Coverage("replay", 3, 11),)),
        ("the structure last", drawn, (Coverage("replay", 3, 11), structure)),
        ("the structure alone", drawn, (structure,)),
        ("the structure twice", drawn, (structure, structure)),
        ("two rungs", drawn, (structure, *(Coverage(r, 3, 11) for r in ("replay", "proof")))),
        ("rows that nobody drew", drawn, (structure, Coverage("rows", 3, 11))),
        ("steps of an attested run", attested, (structure, Coverage("replay", 0, 4))),
    ):
        near = next(name for name, other in reports.items() if other is report)
        yield f"a coverage of {about}", near, replace(report, coverage=coverage)
    again, later = (4, 6), (6, 6)
    for about, segments in (
        ("twice", (again, later)),
        ("the last first", ((6, 6), (4, 5))),
        ("backwards", ((6, 4),)),
        ("0", ((0, 2),)),
        ("beyond the last", ((10, 12),)),
    ):
        done = max(0, sum(last - first + 1 for first, last in segments))
        coverage = (structure, Coverage("replay", done, 11))
        changed = replace(drawn, segments=segments, coverage=coverage)
        yield f"steps done again, {about}", "drawn", changed
    assert rows.randomness is not None
    use = rows.randomness.beacon
    assert use is not None
    for about, changes in (
        ("another value", {"value": bytes(32)}),
        ("no claim before it that it calls unforeseen", {"beacon": replace(use, claimed=None)}),
        ("a claim before it that it calls foreseen", {"predictable": True}),
        ("a claim that came too late", {"beacon": replace(use, claimed=41)}),
    ):
        randomness = replace(rows.randomness, **changes)
        yield f"a round with {about}", "rows", replace(rows, randomness=randomness)


def count_alike(one: bytes, other: bytes) -> int:
    """The bytes with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def splice(base: bytes, payload: bytes) -> Json:
    """What of ``base`` is left at both ends, and what stands between."""
    head = count_alike(base, payload)
    tail = count_alike(base[head:][::-1], payload[head:][::-1])
    return {
        "head": head,
        "middle": payload[head : len(payload) - tail].decode(),
        "tail": tail,
    }


def make_statements() -> Json:
    """``payloads`` that hold, by name, and those ``refused``."""
    reports = make_reports()
    payloads = {name: state(report) for name, report in reports.items()}
    refused: list[tuple[str, str, bytes]] = []
    for about, (name, old, new) in TEXTS.items():
        text = payloads[name].decode()
        if text.count(old) != 1:
            raise ValueError(f"{about}: {old!r} is there {text.count(old)} times")
        refused.append((about, name, text.replace(old, new).encode()))
    refused.append(("with a line end behind it", "whole", payloads["whole"] + b"\n"))
    for about, (name, alter) in VALUES.items():
        value = json.loads(payloads[name])
        alter(value)
        changed = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        refused.append((about, name, changed))
    refused += [
        (f"with {about}", name, state(report)) for about, name, report in list_reports(reports)
    ]
    if len({about for about, _, _ in refused}) < len(refused):
        raise ValueError("two statements have one name")
    return {
        "payloads": {name: payload.decode() for name, payload in payloads.items()},
        "refused": [
            {"about": about, "payload": name, **splice(payloads[name], payload)}
            for about, name, payload in refused
        ],
    }
