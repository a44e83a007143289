"""Errors of the service, and every error as problem+json (RFC 9457) and back.

A problem has our stable code: ``code``; ``where`` and ``fault`` are those of the error, and
``type`` is ``urn:vtrain:problem:CODE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
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


class LimitedError(VtrainError):
    """One address or key has too much under way; the same request may be sent again."""

    code = "limited"


class ProblemError(VtrainError):
    """A service answers with a problem that it has no business to name, or names none."""

    code = "problem"


class StallError(VtrainError):
    """A service answers, but time does not go on, or what is due does not come."""

    code = "stall"


class ServiceFaultError(VtrainError):
    """A service contradicts what it signed, or the game's rules.

    ``proof`` is what it signed, in canonical encoding, which shows it to anyone; empty where it
    signed nothing.
    """

    code = "service-fault"

    def __init__(self, message: str, *, where: str = "", proof: tuple[bytes, ...] = ()) -> None:
        super().__init__(message, where=where)
        self.proof = proof


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
    "limited": 429,
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
        "refusal": find_refusal(error).hex(),
    }


def from_problem(problem: Mapping[str, Any]) -> VtrainError:
    """The error that a problem document tells of, of its own class where it has a status.

    ProblemError otherwise: nobody else's word is a verdict, or a fault that we have found.
    """
    code = str(problem.get("code", ""))
    known = _all_errors(VtrainError) if code in STATUS else ()
    found = next((cls for cls in known if cls.code == code), ProblemError)
    error = found(str(problem.get("detail", "")), where=str(problem.get("where", "")))
    with suppress(ValueError):
        attach_refusal(error, bytes.fromhex(str(problem.get("refusal", ""))))
    return error


def attach_refusal(error: VtrainError, refusal: bytes) -> None:
    """Have an error carry the service's signed word on it: an encoded ``SignedRefusal``."""
    vars(error)["refusal"] = refusal


def find_refusal(error: VtrainError) -> bytes:
    """The encoded ``SignedRefusal`` that an error carries; empty when none does."""
    found = vars(error).get("refusal", b"")
    return found if isinstance(found, bytes) else b""


def _all_errors(base: type[VtrainError]) -> Iterator[type[VtrainError]]:
    yield base
    for cls in base.__subclasses__():
        yield from _all_errors(cls)
