"""Every error that crosses a public boundary of vtrain: one tree, each with a stable code.

A found fraud is a result (``vtrain.wire.report``); it becomes an exception only where a caller asks
for one (``Report.raise_for_verdict``).  Any other exception says that something could not be done,
where, and at whose door it lies.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeVar

from vtrain.printable import cut

Fault = Literal["user", "solver", "nobody"]
_OWN: Final = "vtrain"
T = TypeVar("T")


class VtrainError(Exception):
    """Base of all errors.

    ``code`` is stable across releases and safe to match on; ``where`` names the place (a file, a
    field, a node, a byte offset); ``fault`` says who is answerable: the caller's input (``user``),
    whoever produced the run under audit (``solver``), or the surroundings (``nobody``).

    Both texts may quote a stranger, and are cut to ``vtrain.limits.LIMITS.text_characters``; they
    may have control characters: ``vtrain.printable.make_printable`` shows them.
    """

    code: ClassVar[str] = "error"
    fault: ClassVar[Fault] = "nobody"

    def __init__(self, message: str, *, where: str = "") -> None:
        self.message, self.where = cut(message), cut(where)
        super().__init__(self.message)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.message} [{self.code}]"


class EncodingError(VtrainError):
    """Bytes are not the canonical encoding of anything we accept; ``where`` has the byte offset."""

    code = "encoding"
    fault = "user"


class TaskError(VtrainError):
    """A task file or TaskSpec is incomplete or contradicts itself; ``where`` names the key.

    ``meant`` is the key or the value that an unknown one seems to stand for, and ``also`` what goes
    with it; they are empty where none is like it.
    """

    code = "task"
    fault = "user"

    def __init__(self, message: str, *, where: str = "", meant: str = "", also: str = "") -> None:
        super().__init__(message, where=where)
        self.meant, self.also = meant, also


class ModelError(VtrainError):
    """An ONNX model is malformed or uses something vtrain does not support; names the node."""

    code = "model"
    fault = "user"


_MOST_LISTED: Final = 50
"""Problems that the text of one error lists."""


@dataclass(frozen=True)
class Problem:
    """One thing that cannot be had: its ``path`` (of a module, a parameter, an argument), what it
    is there, why not, and what would do ``instead``, which every problem says."""

    path: str
    what: str
    reason: str
    instead: str

    def __str__(self) -> str:
        place = self.path or "the module itself"
        return f"{place}: {self.what}: {self.reason}. Instead: {self.instead}"


class UnsupportedError(VtrainError):
    """A module, its optimizer, loss or data has things that cannot be had: all of them at once,
    each a :class:`Problem`."""

    code = "unsupported"
    fault = "user"

    def __init__(self, problems: Sequence[Problem], *, where: str = "") -> None:
        self.problems = tuple(problems)
        reasons = "one reason" if len(problems) == 1 else f"{len(problems)} reasons"
        super().__init__(f"cannot be had, for {reasons}", where=where)

    def __str__(self) -> str:
        listed = [f"  {cut(str(problem))}" for problem in self.problems[:_MOST_LISTED]]
        if len(self.problems) > _MOST_LISTED:
            listed.append("  ... (all of them are in the error's problems)")
        return "\n".join((f"{super().__str__()}:", *listed))


def gather(problems: list[Problem], part: Callable[[], T]) -> T | None:
    """What ``part`` gives; None where it is refused, and then its reasons are among ``problems``:
    what else is wrong is looked at too."""
    try:
        return part()
    except UnsupportedError as error:
        problems.extend(error.problems)
        return None


class DataError(VtrainError):
    """A dataset is malformed or is not the one its root commits to; names the file or sample."""

    code = "data"
    fault = "user"


class GraphError(VtrainError):
    """A step graph is not legal (shapes, dtypes, order, unknown operator); names the node."""

    code = "graph"
    fault = "user"


class RangeError(GraphError):
    """Interval analysis could not prove that an accumulator fits; names the node and the range."""

    code = "range"


class SignatureError(VtrainError):
    """A key or signature is malformed or does not verify."""

    code = "signature"
    fault = "user"


class TimestampError(VtrainError):
    """A time-stamping authority's token does not show when the bytes existed; says what fails."""

    code = "timestamp"
    fault = "user"


class BeaconError(VtrainError):
    """A beacon is not of the chain and round that the rule asks for, or its signature does not
    hold; names the field."""

    code = "beacon"
    fault = "user"


class StorageError(VtrainError):
    """Reading or writing a file failed (full disk, read-only folder, ...); names the path."""

    code = "storage"


class RunError(VtrainError):
    """A run directory is not usable for what was asked (locked, of another task, not begun)."""

    code = "run"
    fault: ClassVar[Fault] = "user"


class DeviceError(RunError):
    """The machine lacks what an engine needs; says what: a driver, one that is new enough, a GPU,
    memory."""

    code = "device"
    fault = "nobody"


class ResourcesError(RunError):
    """This machine has no more of something that the work takes: threads, memory."""

    code = "resources"
    fault = "nobody"


class NotProducedError(VtrainError):
    """Committed bytes are missing or are not those that the commitment names."""

    code = "not-produced"
    fault: ClassVar[Fault] = "solver"


class StoreError(NotProducedError):
    """A store that strangers keep refuses, fails, dawdles, or gives what it was not asked for;
    names the object."""

    code = "store"
    fault = "nobody"


class MissingExtraError(VtrainError):
    """An optional dependency is not installed; the message has the install command."""

    code = "missing-extra"
    fault = "user"


class KernelError(VtrainError):
    """A CUDA kernel does not compile, or a GPU failed in it; names file and line, or the device."""

    code = "kernel"


class MoveRefusedError(VtrainError):
    """A move that the rules of a dispute do not allow here; the game is as it was before."""

    code = "move-refused"
    fault = "user"


class ClocksError(RunError):
    """A player could lose by the clocks of a game, however true its claim is; names the clock, what
    is needed, and what would help."""

    code = "clocks"


class RefusalError(VtrainError):
    """The referee was not given a statement it can judge; names the opening at fault."""

    code = "refusal"
    fault = "user"


class SrsError(VtrainError):
    """An SRS file is malformed or is no list of powers; names the byte or the point."""

    code = "srs"
    fault = "user"


class ProofError(VtrainError):
    """Bytes are no proof of the shape that the circuit fixes; names the field or the byte."""

    code = "proof"
    fault = "user"


class CircuitError(VtrainError):
    """A circuit cannot be built, is too large, or was given what does not fit; names the part."""

    code = "circuit"
    fault = "user"


class ProverError(VtrainError):
    """ezkl failed, died or went over its limits; names the call."""

    code = "prover"


class VerdictError(VtrainError):
    """An audit did not end in "verified", and its caller asked for an exception
    (``Report.raise_for_verdict``); ``where`` is the place of the check that the verdict rests on.

    ``report`` is the ``vtrain.wire.report.Report``.
    """

    code = "verdict"

    def __init__(self, message: str, *, report: object, where: str = "") -> None:
        super().__init__(message, where=where)
        self.report = report


class FraudError(VerdictError):
    """The audit proved fraud: the solver's own signature stands under something false."""

    code = "fraud"
    fault = "solver"


class InconclusiveError(VerdictError):
    """The audit could not tell: bytes are missing, are not those signed for, or ask too much."""

    code = "inconclusive"


class ConditionalError(VerdictError):
    """Every check passed, and the verdict rests on an assumption that nobody accepted."""

    code = "conditional"
    fault = "user"


class VtrainWarning(UserWarning):
    """Something that changes no result, but that people should know of: one line of text, which
    ends with what would do ``instead``, where something would."""

    instead: str = ""


def warn(reason: str, instead: str) -> None:
    """A VtrainWarning at the line outside of vtrain that called it, however deep it was found: a
    line in vtrain's own sources tells nobody anything, and one warning that is found on two ways
    is shown once."""
    message = VtrainWarning(f"{reason}; {instead}")
    message.instead = instead
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == _OWN:
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        VtrainWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
