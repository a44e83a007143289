"""Errors of the service, and every error as problem+json (RFC 9457) and back.

A problem has our stable code: ``code``; ``where`` and ``fault`` are those of the error, and
``type`` is ``urn:vtrain:problem:CODE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vtrain.errors import VtrainError

MEDIA_TYPE: Final = "application/problem+json"
_TYPE: Final = "urn:vtrain:problem:"


class NotFoundError(VtrainError):
    """There is no such game, webhook, verdict or page."""

    code = "not-found"
    fault = "user"


class TooLargeError(VtrainError):
    """A body, or what a game holds, is over a limit of the service."""

    code = "too-large"
    fault = "user"


class RequestError(VtrainError):
    """A request is not one of the API's: a parameter, a media type, a method."""

    code = "request"
    fault = "user"


class ConflictError(VtrainError):
    """An idempotency key was used for something else before."""

    code = "idempotency"
    fault = "user"


class ForbiddenError(VtrainError):
    """Only the service's operator may do this."""

    code = "forbidden"
    fault = "user"


class TermsError(VtrainError):
    """A game has terms that this service does not host, such as clocks that nobody could keep."""

    code = "terms"
    fault = "user"


class BondRefusedError(VtrainError):
    """The market does not lock the bond for a claim, or does not take the game."""

    code = "bond-refused"
    fault = "user"


class BusyError(VtrainError):
    """Too much at once, or the database is away; the same request may be sent again."""

    code = "busy"


class ServiceFaultError(VtrainError):
    """A service contradicts its own receipts, or the game's rules."""

    code = "service-fault"


STATUS: Final[Mapping[str, int]] = {
    "encoding": 400,
    "request": 422,
    "bond-refused": 402,
    "signature": 403,
    "forbidden": 401,
    "not-found": 404,
    "idempotency": 409,
    "move-refused": 409,
    "refusal": 409,
    "too-large": 413,
    "data": 422,
    "graph": 422,
    "model": 422,
    "range": 422,
    "run": 422,
    "task": 422,
    "terms": 422,
    "busy": 503,
    "storage": 503,
}
"""HTTP status of each code; others, which are defects, are 500."""


def to_problem(error: VtrainError, status: int | None = None) -> dict[str, Any]:
    """The members of a problem document."""
    return {
        "type": _TYPE + error.code,
        "title": (type(error).__doc__ or error.code).partition("\n")[0],
        "status": STATUS.get(error.code, 500) if status is None else status,
        "detail": error.message,
        "code": error.code,
        "where": error.where,
        "fault": error.fault,
    }


def from_problem(problem: Mapping[str, Any]) -> VtrainError:
    """The error that a problem document tells of, of its own class where we know that."""
    code = str(problem.get("code", ""))
    found = next((cls for cls in _all_errors(VtrainError) if cls.code == code), VtrainError)
    return found(str(problem.get("detail", "")), where=str(problem.get("where", "")))


def _all_errors(base: type[VtrainError]) -> Iterator[type[VtrainError]]:
    yield base
    for cls in base.__subclasses__():
        yield from _all_errors(cls)
