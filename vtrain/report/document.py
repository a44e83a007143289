"""A report that is handed on: what an audit found, with when, by what and under which law.

One model, in one form: docs/report.schema.json is its schema, `vtrain verify --json` prints it,
`--report` writes it with pictures, `vtrain report` signs and shows it.  Whatever follows from
something else in it (the verdict from the checks, a chance from its numbers) is in it for readers,
and a document in which it does not follow is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final, TypeVar, get_args

from vtrain.errors import EncodingError
from vtrain.printable import make_printable
from vtrain.report.json import format_percent, report_to_dict
from vtrain.wire.json_text import decode_json
from vtrain.wire.report import (
    EXIT_CODES,
    Assumption,
    BeaconUse,
    Blame,
    Check,
    Clamped,
    Coverage,
    Detection,
    LossPoint,
    Pictures,
    Randomness,
    Report,
    Rung,
    Status,
    Strength,
    Traced,
    compute_verdict,
)

FORMAT: Final = 1
"""Version of the document."""
PREDICATE_TYPE: Final = "urn:vtrain:report:1"
"""What a signed report is called in an in-toto statement."""
DIGEST: Final = "vtrainStateRoot"
"""What a state root is called among the digests of a subject."""
CODES: Final = ("chosen-claim", "insecure-srs", "predictable-sample")
"""What a report may assume."""
_DATE: Final = "%Y-%m-%dT%H:%M:%SZ"
_MOST: Final = 2**63 - 1
_MOST_ITEMS: Final = 1 << 20
_MOST_CHANCES: Final = 8
_MOST_BITS: Final = 2_000_000
"""Of the numbers that a chance is computed with, anew, when a report is read."""

T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    """A report, with the ``date`` in UTC (RFC 3339, whole seconds), the ``tool`` and its
    ``version`` that made it, and the version of the ``law``."""

    report: Report
    date: str
    tool: str
    version: str
    law: str


def make_document(report: Report, now: datetime, version: str, law: str) -> Document:
    """The document of a report that was made ``now``."""
    return Document(report, now.astimezone(UTC).strftime(_DATE), "vtrain", version, law)


def document_to_dict(document: Document) -> dict[str, Any]:
    """A tree of dicts, lists, text and integers that holds all of ``document``."""
    report = document.report
    value: dict[str, Any] = {
        "format": FORMAT,
        "date": document.date,
        "tool": {"name": document.tool, "version": document.version},
        "law": document.law,
        **report_to_dict(report),
        "plain": list(explain(report)),
        "coverage": [
            {"rung": item.rung, "done": item.done, "total": item.total} for item in report.coverage
        ],
    }
    if report.pictures is not None:
        value["pictures"] = _pictures_to_dict(report.pictures)
    return value


def encode_document(document: Document) -> bytes:
    """The document as a JSON text."""
    return (json.dumps(document_to_dict(document), indent=2) + "\n").encode()


def explain(report: Report) -> tuple[str, ...]:
    """How strong a report is, in plain sentences, for people who know nothing of the rest."""
    return tuple(_explain(report))


def _explain(report: Report) -> list[str]:
    said = {
        "verified": "Nothing that was looked at is wrong.",
        "conditional": "Nothing that was looked at is wrong, but that shows something only if what "
        "is listed as assumed is so.",
        "fraud": "Something that the solver signed is false.",
        "inconclusive": "Something is missing, damaged or could not be done, so that nothing is "
        "shown either way.",
    }
    lines = [said[report.verdict]]
    above = [item for item in report.coverage if item.rung != "structure"]
    for item in above:
        how = {
            "replay": "done again, and every bit was compared",
            "algebraic": "checked by their equations",
            "proof": "shown by proofs",
        }[item.rung]
        lines.append(f"{item.done} of {item.total} steps were {how}.")
    if report.verdict in ("verified", "conditional"):
        lines.extend(_explain_chances(report))
    if report.randomness is not None:
        assumed = {item.code for item in report.unaccepted}
        if report.randomness.predictable:
            lines.append("Whoever made the run could have known what would be looked at.")
        elif "chosen-claim" in assumed:
            lines.append(
                "Nobody knew what would be looked at when the claim was made; but its maker could "
                "have made several, and have shown the one that suits."
            )
        else:
            lines.append("Nobody who made the run could know what would be looked at.")
    return lines


def _explain_chances(report: Report) -> list[str]:
    done = {item.rung: item for item in report.coverage if item.rung != "structure"}
    if any(item.done == item.total > 0 for item in done.values()):
        return ["That is every step: nothing false among them was left to chance."]
    lines = []
    for detection in report.detections:
        percent = format_percent(detection.probability)
        if detection.fraction is None:
            lines.append(f"If a single step were false, this would have shown it in {percent} %.")
        elif detection.fraction == Fraction(1, 10):
            lines.append(
                f"If a tenth of the steps were false, this would have shown it in {percent} % or "
                "more."
            )
    return lines


def _pictures_to_dict(pictures: Pictures) -> dict[str, Any]:
    return {
        "loss_exponent": pictures.loss_exponent,
        "losses": [
            [point.first, point.last, point.least, point.mean, point.most]
            for point in pictures.losses
        ],
        "clamped": [
            {"site": item.site, "count": item.count, "elements": item.elements}
            for item in pictures.clamped
        ],
    }


# --- reading one


def decode_document(data: bytes, where: str = "report") -> Document:
    """Inverse of :func:`encode_document`, of any formatting; EncodingError names what is wrong."""
    return document_from_value(decode_json(data, where), where)


def document_from_value(value: Any, where: str = "report") -> Document:
    """The document that a JSON value is; EncodingError for one that is none, or in which something
    does not follow from the rest."""
    try:
        document = _read_document(value)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        reason = make_printable(f"{type(error).__name__}: {error}", 200)
        raise EncodingError(f"is no report: {reason}", where=where) from None
    again = document_to_dict(document)
    for key in {*value, *again}:
        if key not in value or key not in again or _text(value[key]) != _text(again[key]):
            shown = make_printable(str(key), 100)
            raise EncodingError("does not follow from the rest", where=f"{where}.{shown}")
    verdict = compute_verdict(document.report.checks, document.report.assumptions)
    if document.report.verdict != verdict:
        raise EncodingError(f"is not {verdict}, as checks have it", where=f"{where}.verdict")
    return document


def _text(value: object) -> str:
    """Told apart also where Python calls things equal that are not: true and 1, 1 and 1.0."""
    return json.dumps(value, sort_keys=True)


def _read_document(value: Any) -> Document:
    if value["format"] != FORMAT:
        raise ValueError(f"its format is not {FORMAT}, the one known here")
    date = _str(value["date"])
    if datetime.strptime(date, _DATE).replace(tzinfo=UTC).strftime(_DATE) != date:
        raise ValueError("its date is none")
    tool = value["tool"]
    report = _read_report(value)
    if "pictures" in value:
        report = replace(report, pictures=_read_pictures(value["pictures"]))
    law = _str(value["law"])
    return Document(report, date, _str(tool["name"]), _str(tool["version"]), law)


def _read_report(value: Any) -> Report:
    randomness, traced = value["randomness"], value["traced"]
    strength = value["strength"]
    return Report(
        verdict=_choice(value["verdict"], tuple(EXIT_CODES)),
        checks=_list(value["checks"], _read_check),
        strength=Strength(_list(strength["checked"], _str), _list(strength["unchecked"], _str)),
        randomness=None if randomness is None else _read_randomness(randomness),
        detections=_list(value["detection"], _read_detection, _MOST_CHANCES),
        segments=_list(value["replayed"], lambda item: (_int(item["first"]), _int(item["last"]))),
        engine=_str(value["engine"]),
        task_id=_hex(value["task_id"]),
        run_id=_hex(value["run_id"]),
        solver=_hex(value["solver"]),
        steps=_int(value["steps"]),
        root=_hex(value["root"]),
        log_root=_hex(value["log_root"]),
        claim=_hex(value["claim"]),
        traced=(
            None
            if traced is None
            else Traced(_list(traced["steps"], _int), _read_randomness(traced["randomness"]))
        ),
        assumptions=_list(value["assumptions"], _read_assumption),
        coverage=_list(value["coverage"], _read_coverage),
    )


def _read_check(item: Any) -> Check:
    return Check(
        _str(item["name"]),
        _choice(item["status"], get_args(Status)),
        _str(item["detail"]),
        _str(item["where"]),
        _choice(item["fault"], get_args(Blame)),
    )


def _read_assumption(item: Any) -> Assumption:
    if not isinstance(item["accepted"], bool):
        raise ValueError("accepted is neither true nor false")
    return Assumption(_choice(item["code"], CODES), _str(item["detail"]), item["accepted"])


def _read_randomness(item: Any) -> Randomness:
    if not isinstance(item["predictable"], bool):
        raise ValueError("predictable is neither true nor false")
    beacon = item.get("beacon")
    return Randomness(
        _hex(item["value"]),
        _str(item["source"]),
        item["predictable"],
        beacon=None if beacon is None else _read_beacon(beacon),
    )


def _read_beacon(item: Any) -> BeaconUse:
    return BeaconUse(
        chain=_hex(item["chain"]),
        round=_int(item["round"]),
        signature=_hex(item["signature"]),
        previous=_hex(item["previous"]),
        at=_int(item["at"]),
        delay=_int(item["delay"]),
        claimed=None if item["claimed"] is None else _int(item["claimed"]),
        authority=_str(item["authority"]),
    )


def _read_detection(item: Any) -> Detection:
    fraction = item["fraction"]
    found = Detection(
        None if fraction is None else _read_fraction(_str(fraction)),
        _int(item["bad_steps"]),
        _int(item["bad_segments"]),
        _int(item["segments"]),
        _int(item["drawn"]),
        _choice(item["unit"], ("segment", "step")),
    )
    # What a chance costs to compute grows with the smaller of two numbers.
    if not max(found.bad_segments, found.drawn) <= found.segments or found.segments == 0:
        raise ValueError("a chance is of more than there is")
    if min(found.bad_segments, found.drawn) * found.segments.bit_length() > _MOST_BITS:
        raise ValueError("a chance is of more than can be computed here")
    return found


def _read_fraction(text: str) -> Fraction:
    if not re.fullmatch("[0-9]{1,20}(?:/[0-9]{1,20})?", text):
        raise ValueError("a share is none")
    return Fraction(text)


def _read_coverage(item: Any) -> Coverage:
    return Coverage(_choice(item["rung"], get_args(Rung)), _int(item["done"]), _int(item["total"]))


def _read_pictures(item: Any) -> Pictures:
    return Pictures(
        _list(item["losses"], lambda point: LossPoint(*_list(point, _signed))),
        _int(item["loss_exponent"]),
        _list(
            item["clamped"],
            lambda site: Clamped(_str(site["site"]), _int(site["count"]), _int(site["elements"])),
        ),
    )


def _list(value: Any, read: Callable[[Any], T], most: int = _MOST_ITEMS) -> tuple[T, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise TypeError("a list is none, or is too long")
    return tuple(read(item) for item in value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is none")
    return value


def _signed(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -_MOST <= value <= _MOST:
        raise TypeError("a number is none, or is too large")
    return value


def _int(value: Any) -> int:
    if _signed(value) < 0:
        raise ValueError("a number is negative")
    return int(value)


def _hex(value: Any) -> bytes:
    if not re.fullmatch("(?:[0-9a-f]{2})*", _str(value)):
        raise ValueError("bytes are not lower-case hexadecimal")
    return bytes.fromhex(value)


def _choice(value: Any, choices: tuple[Any, ...]) -> Any:
    if value not in choices:
        raise ValueError(f"{value!r:.60} is none of {', '.join(map(repr, choices))}")
    return value


def describe_subject(report: Report) -> tuple[str, dict[str, str]]:
    """The subject of a signed report: the state after the last step of a run, and its root.

    EncodingError for a report that found no root.
    """
    if not report.root:
        raise EncodingError(
            "names no final root, so that there is nothing to sign about: the audit found no log "
            "that the solver signed",
            where="report.root",
        )
    name = f"state after step {report.steps} of run {report.run_id.hex()}"
    return name, {DIGEST: report.root.hex()}


def check_subject(name: str, digests: Mapping[str, str], report: Report) -> None:
    """EncodingError unless this is the subject that the report has."""
    if (name, dict(digests)) != describe_subject(report):
        raise EncodingError("is not the final root of the report", where="subject")
