"""A report as JSON: bytes in hex, exact fractions as text, nothing rounded but ``percent``."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from vtrain.wire.report import (
    Assumption,
    BeaconUse,
    Check,
    Detection,
    Randomness,
    Report,
    SampledRows,
    Traced,
    format_percent_up,
)

MAX_EXACT_DIGITS = 100
"""Digits up to which the exact fraction is written out; ``formula`` is exact at any size."""


def report_to_dict(report: Report) -> dict[str, Any]:
    """A tree of dicts, lists, text and integers that holds all of ``report``."""
    value: dict[str, Any] = {
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "claim": report.claim.hex(),
        "task_id": report.task_id.hex(),
        "run_id": report.run_id.hex(),
        "solver": report.solver.hex(),
        "steps": report.steps,
        "root": report.root.hex(),
        "log_root": report.log_root.hex(),
        "engine": report.engine,
        "reason": None if report.reason is None else _check_to_dict(report.reason),
        "assumptions": [_assumption_to_dict(item) for item in report.assumptions],
        "checks": [_check_to_dict(check) for check in report.checks],
        "replayed": [{"first": first, "last": last} for first, last in report.segments],
        "randomness": None if report.randomness is None else _randomness(report.randomness),
        "traced": None if report.traced is None else _traced_to_dict(report.traced),
        "detection": [_detection_to_dict(detection) for detection in report.detections],
        "strength": {
            "checked": list(report.strength.checked),
            "unchecked": list(report.strength.unchecked),
        },
    }
    if report.sampled is not None:
        value["sampled"] = _sampled_to_dict(report.sampled)
    return value


def format_report(report: Report) -> str:
    """:func:`report_to_dict` as JSON text."""
    return json.dumps(report_to_dict(report), indent=2)


def _check_to_dict(check: Check) -> dict[str, str]:
    return {
        "name": check.name,
        "status": check.status,
        "detail": check.detail,
        "where": check.where,
        "fault": check.fault,
    }


def _assumption_to_dict(assumption: Assumption) -> dict[str, Any]:
    return {
        "code": assumption.code,
        "detail": assumption.detail,
        "accepted": assumption.accepted,
    }


def _randomness(randomness: Randomness) -> dict[str, Any]:
    value = {
        "value": randomness.value.hex(),
        "source": randomness.source,
        "predictable": randomness.predictable,
    }
    if randomness.beacon is not None:
        value["beacon"] = _beacon_to_dict(randomness.beacon)
    return value


def _beacon_to_dict(use: BeaconUse) -> dict[str, Any]:
    return {
        "chain": use.chain.hex(),
        "round": use.round,
        "signature": use.signature.hex(),
        "previous": use.previous.hex(),
        "at": use.at,
        "delay": use.delay,
        "claimed": use.claimed,
        "authority": use.authority,
    }


def _traced_to_dict(traced: Traced) -> dict[str, Any]:
    return {"steps": list(traced.steps), "randomness": _randomness(traced.randomness)}


def _sampled_to_dict(sampled: SampledRows) -> dict[str, Any]:
    return {
        "rows": sampled.rows,
        "above": sampled.above,
        "missed": {
            "node": sampled.worst.name,
            "percent_of_one": format_percent_up(sampled.bound_missed(1)),
            "percent_of_ten": format_percent_up(sampled.bound_missed(10)),
        },
        "nodes": [
            {
                "node": item.node,
                "name": item.name,
                "op": item.op,
                "unit": item.unit,
                "drawn": item.drawn,
                "of": item.units,
            }
            for item in sampled.nodes
        ],
        "whole": list(sampled.whole),
    }


def _detection_to_dict(detection: Detection) -> dict[str, Any]:
    probability = detection.probability
    short = max(probability.denominator, 1) < 10**MAX_EXACT_DIGITS
    value: dict[str, Any] = {
        "fraction": None if detection.fraction is None else str(detection.fraction),
        "bad_steps": detection.bad_steps,
        "bad_segments": detection.bad_segments,
        "segments": detection.segments,
        "unit": detection.unit,
        "drawn": detection.drawn,
        "formula": detection.formula,
        "probability": str(probability) if short else None,
        "percent": format_percent(probability),
    }
    if detection.caught != 1:
        value["caught"] = str(detection.caught)
    return value


def format_percent(probability: Fraction) -> str:
    """Two decimals, rounded down, so that a chance is never overstated."""
    hundredths = probability.numerator * 10_000 // probability.denominator
    return f"{hundredths // 100}.{hundredths % 100:02d}"
