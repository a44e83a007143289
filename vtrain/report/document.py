"""A report that is handed on: what an audit found, with when, by what and under which law.

One model, in one form: docs/report.schema.json is its schema, `vtrain verify --json` prints it,
`--report` writes it with pictures, `vtrain report` signs and shows it.  Whatever follows from
something else in it (the verdict from the checks, a chance from its numbers) is in it for readers,
and a document in which it does not follow is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, TypeVar, get_args

from vtrain.errors import EncodingError
from vtrain.printable import make_printable
from vtrain.report.json import format_percent, report_to_dict
from vtrain.wire.json_text import decode_json
from vtrain.wire.report import (
    EXIT_CODES,
    MOST_POINTS,
    MOST_SITES,
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
    SampledNode,
    SampledRows,
    Status,
    Strength,
    Traced,
    compute_verdict,
    format_percent_up,
)

FORMAT: Final = 1
"""Version of the document."""
PREDICATE_TYPE: Final = "urn:vtrain:report:1"
"""What a signed report is called in an in-toto statement."""
DIGEST: Final = "vtrainStateRoot"
"""What a state root is called among the digests of a subject."""
CODES: Final = ("attested", "chosen-claim", "insecure-srs", "predictable-sample")
"""What a report may assume."""
ACCEPTED: Final = frozenset({"insecure-srs"})
"""What an auditor can accept of that."""
_DATE: Final = "%Y-%m-%dT%H:%M:%SZ"
_DIGITS: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
_MOST_ROUND: Final = 2**53 - 1
_MOST: Final = 2**63 - 1
_MOST_ITEMS: Final = 1 << 20
_MOST_CHANCES: Final = 8
_MOST_BITS: Final = 1 << 20
"""Of the numbers that a chance is computed with, anew, when a report is read."""
_MOST_EXPONENT: Final = 62
"""Fraction bits of a loss, which has 64 bits."""

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


@dataclass(frozen=True)
class Sentence:
    """One that a report may have: ``when``, in words of docs/reports.md, and its ``text``, with
    names in braces for what is put there."""

    when: str
    text: str


SENTENCES: Final[Mapping[str, Sentence]] = {
    "verified": Sentence("the verdict is verified", "Nothing that was looked at is wrong."),
    "conditional": Sentence(
        "it is conditional",
        "Nothing that was looked at is wrong, but that shows something only if what is listed as "
        "assumed is so.",
    ),
    "fraud": Sentence("it is fraud", "Something that the solver signed is false."),
    "inconclusive": Sentence(
        "it is inconclusive",
        "Something is missing, damaged or could not be done, so that nothing is shown either way.",
    ),
    "attested": Sentence(
        "an assumption is `attested`",
        "The run is attested, not replayable: it was trained in floats, and that its steps are "
        "right is the word of whoever signed it.",
    ),
    "accepted": Sentence(
        "an assumption is accepted",
        "The auditor took on trust that nobody forges proofs with an SRS of no known ceremony.",
    ),
    "replay": Sentence(
        "of each entry of `coverage` but `structure`, in order, with `done` above 0: the `rung` is "
        "replay",
        "{done} of the {total} steps claimed were done again, and every bit was compared.",
    ),
    "algebraic": Sentence(
        "it is algebraic",
        "{done} of the {total} steps claimed were checked by their equations.",
    ),
    "rows": Sentence(
        "it is rows",
        "{done} of the {total} steps claimed were checked by rows of their values, drawn when "
        "these were signed.",
    ),
    "proof": Sentence(
        "it is proof",
        "{done} of the {total} steps claimed were shown by proofs, as a whole.",
    ),
    "no replay": Sentence(
        "the same, with `done` 0: it is replay", "None of the {total} steps claimed was done again."
    ),
    "no algebraic": Sentence(
        "it is algebraic", "None of the {total} steps claimed was checked by their equations."
    ),
    "no rows": Sentence(
        "it is rows",
        "None of the {total} steps claimed was checked by rows of their values.",
    ),
    "no proof": Sentence("it is proof", "None of the {total} steps claimed was shown by proofs."),
    "sampled": Sentence(
        "`sampled` is there: it has so many `nodes`; `drawn` and `units` are `drawn` and `of` of "
        "the one with the greatest share of rows not drawn, the first of several, and `one` and "
        "`ten` the chances that one and ten false rows are missed (above)",
        "Of {nodes} kinds of values only some rows were looked at, at least {drawn} of {units}: a "
        "single false row in such a step was missed with a chance of up to {one} %, ten with up to "
        "{ten} %.",
    ),
    "whole": Sentence(
        "the verdict is verified or conditional, and of an entry of `coverage` but `structure` "
        "and rows `done` is `total`, above 0",
        "That is every step claimed: no false one among them was left out.",
    ),
    "one": Sentence(
        "the verdict is one of these and no entry is such: of each entry of `detection`, in order, "
        "with the `fraction` null and the `unit` segment",
        "If a single step were false, this would have shown it in {percent} %.",
    ),
    "one proven": Sentence(
        "with the `fraction` null and the `unit` step",
        "If a single step of the {segments} that can be proven were false, this would have shown "
        "it in {percent} %.",
    ),
    "tenth": Sentence(
        "with the `fraction` 1/10 and the `unit` segment",
        "If a tenth of the steps were false, this would have shown it in {percent} % or more.",
    ),
    "tenth proven": Sentence(
        "with the `fraction` 1/10 and the `unit` step",
        "If a tenth of the {segments} that can be proven were false, this would have shown it in "
        "{percent} % or more.",
    ),
    "predictable": Sentence(
        "`randomness` is not null, and an assumption that is not accepted is `predictable-sample`, "
        "or `randomness`, or that of `traced`, is `predictable`",
        "Whoever made the run could have known what would be looked at.",
    ),
    "chosen": Sentence(
        "else, with `randomness`, an assumption that is not accepted is `chosen-claim`",
        "Nobody knew what would be looked at when the claim was made; but its maker could have "
        "made several, and have shown the one that suits.",
    ),
    "drawn": Sentence(
        "else, with `randomness`, `traced` is not null or `detection` has an entry",
        "Nobody who made the run could know what would be looked at.",
    ),
}
"""All of them, in the order in which a report has those that apply; docs/reports.md lists them."""


def explain(report: Report) -> tuple[str, ...]:
    """How strong a report is, in plain sentences, for people who know nothing of the rest."""
    return tuple(SENTENCES[key].text.format(**values) for key, values in _explain(report))


def _explain(report: Report) -> Iterator[tuple[str, dict[str, object]]]:
    yield report.verdict, {}
    if any(item.code == "attested" for item in report.assumptions):
        yield "attested", {}
    if any(item.accepted for item in report.assumptions):
        yield "accepted", {}
    for item in report.coverage:
        if item.rung != "structure":
            key = item.rung if item.done else f"no {item.rung}"
            yield key, {"done": item.done, "total": item.total}
    if report.sampled is not None:
        one, ten = (format_percent_up(report.sampled.bound_missed(false)) for false in (1, 10))
        worst = report.sampled.worst
        values = {"nodes": len(report.sampled.nodes), "one": one, "ten": ten}
        yield "sampled", {**values, "drawn": worst.drawn, "units": worst.units}
    if report.verdict in ("verified", "conditional"):
        yield from _explain_chances(report)
    if report.randomness is not None:
        assumed = {item.code for item in report.unaccepted}
        draws = [report.randomness, *([report.traced.randomness] if report.traced else [])]
        if "predictable-sample" in assumed or any(drawn.predictable for drawn in draws):
            yield "predictable", {}
        elif "chosen-claim" in assumed:
            yield "chosen", {}
        elif report.traced is not None or report.detections:  # else no step was drawn by it
            yield "drawn", {}


def _explain_chances(report: Report) -> Iterator[tuple[str, dict[str, object]]]:
    done = {item.rung: item for item in report.coverage if item.rung not in ("structure", "rows")}
    if any(item.done == item.total > 0 for item in done.values()):
        yield "whole", {}
        return
    known: dict[Fraction | None, str] = {None: "one", Fraction(1, 10): "tenth"}
    for detection in report.detections:
        if detection.fraction in known:
            # Of a run of which only some steps can be proven the others are never looked at.
            proven = " proven" * (detection.unit == "step")
            percent = format_percent(detection.probability)
            values = {"percent": percent, "segments": detection.segments}
            yield known[detection.fraction] + proven, values


def _pictures_to_dict(pictures: Pictures) -> dict[str, Any]:
    value: dict[str, Any] = {
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
    if pictures.counted is not None:
        value["counted_steps"] = pictures.counted
    if pictures.impossible:
        value["impossible_counts"] = pictures.impossible
    return value


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
    report = document.report
    verdict = compute_verdict(report.checks, report.assumptions)
    if report.verdict != verdict:
        raise EncodingError(f"is not {verdict}, as checks have it", where=f"{where}.verdict")
    _check_steps(report, where)
    for name, randomness in (
        ("randomness", report.randomness),
        ("traced.randomness", report.traced and report.traced.randomness),
    ):
        if randomness and randomness.beacon:
            _check_beacon(randomness, randomness.beacon, f"{where}.{name}")
    return document


def _check_steps(report: Report, where: str) -> None:
    """That the steps which were looked at are steps of the run, each once, and are counted."""
    before = 0
    for first, last in report.segments:
        if not before < first <= last <= report.steps:
            place = f"{where}.replayed"
            raise EncodingError("are no steps of the run, in their order", where=place)
        before = last
    done = sum(last - first + 1 for first, last in report.segments)
    _check_coverage(report, done, where)
    caught = 1 - report.sampled.bound_missed(1) if report.sampled else Fraction(1)
    if report.detections and report.randomness is None:
        raise EncodingError("is of a draw, and nothing was drawn", where=f"{where}.detection")
    for chance in report.detections:
        if chance.caught != caught:
            raise EncodingError("is not what the rows come to", where=f"{where}.detection")
        if chance.drawn > len(report.segments):
            raise EncodingError("is of more than was looked at", where=f"{where}.detection")
        if reason := _doubt_packing(chance, report.steps):
            raise EncodingError(reason, where=f"{where}.detection")


def _check_coverage(report: Report, done: int, where: str) -> None:
    """That it is of the structure, and of the rung on which ``done`` steps were looked at."""
    replayable = not any(item.code == "attested" for item in report.assumptions)
    rungs = [item.rung for item in report.coverage]
    more = rungs[1:]
    if rungs[:1] != ["structure"] or len(more) != (report.steps > 0 and replayable):
        raise EncodingError(
            "is not the structure, and then one rung where steps of a replayable run are claimed",
            where=f"{where}.coverage",
        )
    if "structure" in more:
        raise EncodingError("has the structure twice", where=f"{where}.coverage")
    for item in report.coverage:
        if item.rung != "structure" and (item.done, item.total) != (done, report.steps):
            raise EncodingError(
                f"is not {done} of {report.steps} steps, which were looked at",
                where=f"{where}.coverage",
            )
        if item.done > item.total:
            raise EncodingError("is of more than there is", where=f"{where}.coverage")
    if ("rows" in rungs) != (report.sampled is not None):
        raise EncodingError(
            "is not there just where steps are checked by rows", where=f"{where}.sampled"
        )


def _doubt_packing(chance: Detection, steps: int) -> str:
    """Why these cannot be the false steps of a share, or the segments that they fit into; "" where
    they can.  How long a segment is a report does not say."""
    bad, packed = chance.bad_steps, chance.bad_segments
    if chance.fraction is None and bad != 1:
        return "is not of one step, though it names no share"
    if chance.fraction is not None and not 0 < chance.fraction <= 1:
        return "is of a share that is none: it lies above 0 and is at most 1"
    if chance.fraction is not None and bad > math.ceil(steps * chance.fraction):
        return "is of more false steps than the share has of all that are claimed"
    if not 1 <= packed <= bad or max(bad, chance.segments) > steps:
        return "is of no segment, or of more than there are steps"
    due = 1 if chance.fraction is None else math.ceil(chance.segments * chance.fraction)
    if chance.unit == "step" and not bad == packed == due:
        return f"is not of {due} steps, each by itself"
    return ""


def _check_beacon(randomness: Randomness, use: BeaconUse, where: str) -> None:
    """That a round gives the randomness, and is as late as it says."""
    if randomness.value != hashlib.sha256(use.signature).digest():
        raise EncodingError("is not that of the round's signature", where=f"{where}.value")
    if randomness.predictable != (use.claimed is None):
        raise EncodingError(
            "a round is predictable just where nothing dates the claim",
            where=f"{where}.predictable",
        )
    if use.claimed is not None and use.claimed + use.delay > use.at:
        raise EncodingError("is too early for the claim", where=f"{where}.beacon.at")


def _text(value: object) -> str:
    """Told apart also where Python calls things equal that are not: true and 1, 1 and 1.0."""
    return json.dumps(value, sort_keys=True)


def _read_document(value: Any) -> Document:
    if value["format"] != FORMAT:
        raise ValueError(f"its format is not {FORMAT}, the one known here")
    date = _str(value["date"])
    if not re.fullmatch(_DIGITS, date):
        raise ValueError("its date is none")
    datetime.strptime(date, _DATE).replace(tzinfo=UTC)
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
        task_id=_digest(value["task_id"]),
        run_id=_digest(value["run_id"]),
        solver=_digest(value["solver"]),
        steps=_int(value["steps"]),
        root=_digest(value["root"]),
        log_root=_digest(value["log_root"]),
        claim=_digest(value["claim"]),
        traced=(
            None
            if traced is None
            else Traced(_list(traced["steps"], _int), _read_randomness(traced["randomness"]))
        ),
        assumptions=_list(value["assumptions"], _read_assumption),
        coverage=_list(value["coverage"], _read_coverage),
        sampled=_read_sampled(value["sampled"]) if "sampled" in value else None,
    )


def _read_sampled(item: Any) -> SampledRows:
    found = SampledRows(
        _int(item["rows"]),
        _int(item["above"]),
        _list(item["nodes"], _read_sampled_node),
        _list(item["whole"], _str),
    )
    if not found.nodes:
        raise ValueError("no node was looked at by rows")
    return found


def _read_sampled_node(item: Any) -> SampledNode:
    unit = _choice(item["unit"], ("row", "chunk"))
    drawn, units = _int(item["drawn"]), _int(item["of"])
    if not 0 < drawn <= units:
        raise ValueError("rows are drawn of fewer")
    return SampledNode(_int(item["node"]), _str(item["name"]), _str(item["op"]), unit, drawn, units)


def _read_check(item: Any) -> Check:
    found = Check(
        _str(item["name"]),
        _choice(item["status"], get_args(Status)),
        _str(item["detail"]),
        _str(item["where"]),
        _choice(item["fault"], get_args(Blame)),
    )
    if (found.status == "failed") != (found.fault != ""):
        raise ValueError("a check has a fault just where it failed")
    return found


def _read_assumption(item: Any) -> Assumption:
    if not isinstance(item["accepted"], bool):
        raise ValueError("accepted is neither true nor false")
    code = _choice(item["code"], CODES)
    if item["accepted"] and code not in ACCEPTED:
        raise ValueError(f"nobody can accept {code}")
    return Assumption(code, _str(item["detail"]), item["accepted"])


def _read_randomness(item: Any) -> Randomness:
    if not isinstance(item["predictable"], bool):
        raise ValueError("predictable is neither true nor false")
    beacon = item.get("beacon")
    return Randomness(
        _hex(item["value"], 1, 64),
        _str(item["source"]),
        item["predictable"],
        beacon=None if beacon is None else _read_beacon(beacon),
    )


def _read_beacon(item: Any) -> BeaconUse:
    if not 1 <= _int(item["round"]) <= _MOST_ROUND:
        raise ValueError(f"a round is not 1 to {_MOST_ROUND}")
    return BeaconUse(
        chain=_hex(item["chain"], 32, 32),
        round=_int(item["round"]),
        signature=_hex(item["signature"], 48, 96),
        previous=_hex(item["previous"], 0, 96),
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
        _read_fraction(_str(item["caught"])) if "caught" in item else Fraction(1),
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
    losses = _list(item["losses"], _read_point, MOST_POINTS)
    exponent = _int(item["loss_exponent"])
    if exponent > _MOST_EXPONENT:
        raise ValueError("a loss has more fraction bits than bits")
    if any(after.first <= before.last for before, after in pairwise(losses)):
        raise ValueError("losses are not in the order of the steps")
    clamped = _list(item["clamped"], _read_clamped, MOST_SITES)
    # Reports of before there were these fields have neither: what was counted is not known.
    counted = _positive(item["counted_steps"]) if "counted_steps" in item else None
    impossible = _positive(item["impossible_counts"]) if "impossible_counts" in item else 0
    if impossible and counted is None:
        raise ValueError("counts that are not known cannot be wrong")
    if counted is not None and any(site.elements % counted for site in clamped):
        raise ValueError("a site put out another number of elements in each step")
    return Pictures(losses, exponent, clamped, counted, impossible)


def _read_point(item: Any) -> LossPoint:
    point = LossPoint(*_list(item, _signed))
    if not (0 < point.first <= point.last and point.least <= point.mean <= point.most):
        raise ValueError("a stretch of losses is none")
    return point


def _read_clamped(item: Any) -> Clamped:
    found = Clamped(_str(item["site"]), _int(item["count"]), _int(item["elements"]))
    if not 0 < found.count <= found.elements:
        raise ValueError("more was clamped than there is, or nothing")
    return found


def _list(value: Any, read: Callable[[Any], T], most: int = _MOST_ITEMS) -> tuple[T, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise TypeError("a list is none, or is too long")
    return tuple(read(item) for item in value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is none")
    return value


def _signed(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -_MOST - 1 <= value <= _MOST:
        raise TypeError("a number is none, or is too large")
    return value


def _int(value: Any) -> int:
    if _signed(value) < 0:
        raise ValueError("a number is negative")
    return int(value)


def _positive(value: Any) -> int:
    if _int(value) == 0:
        raise ValueError("a number is zero, which is left out")
    return int(value)


def _hex(value: Any, least: int, most: int) -> bytes:
    if not re.fullmatch(f"(?:[0-9a-f]{{2}}){{{least},{most}}}", _str(value)):
        raise ValueError(f"bytes are not {least} to {most} in lower-case hexadecimal")
    return bytes.fromhex(value)


def _digest(value: Any) -> bytes:
    """32 bytes, or none."""
    return _hex(value, 32, 32) if value else _hex(value, 0, 0)


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
