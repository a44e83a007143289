"""The canonical task: everything that parties must agree on before a run, and its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Final

from vtrain.errors import EncodingError
from vtrain.wire import cbor, structs
from vtrain.wire.fields import Fields, check_names
from vtrain.wire.graph import DTYPES, MAX_ELEMENTS, MAX_RANK
from vtrain.wire.proof import ProofSpec, proof_from_fields, proof_to_map
from vtrain.wire.record import MAX_STEPS
from vtrain.wire.structs import AtMost, Between, Digest, OneOf

LAW_VERSION = "vtrain law 1"
"""Names the arithmetic, the operators and the trees; any change of bits changes it."""
BLAKE3_ONLY: Final = ("blake3",)
WITH_KZG: Final = ("blake3", "kzg")
"""What ``commitments`` may be: the run log alone, or a log of KZG commitments beside it."""


TOKEN_WIDTHS: Final = {"u16": 2, "u32": 4, "u64": 8}
"""Bytes of a token by its dtype in the file, little-endian."""
MAX_TOKENS: Final = 2**44
MAX_SAMPLES: Final = 2**40


@dataclass(frozen=True)
class Windows:
    """Samples that are windows of one file of ``tokens`` tokens, and overlap in it.

    Token p of x of sample i is token i * ``stride`` + p of the file, that of y is ``shift`` tokens
    further; p is below ``context``.  Elements are the low 32 bits of a token, as i32.
    """

    dtype: Annotated[str, OneOf(tuple(TOKEN_WIDTHS))]
    tokens: Annotated[int, Between(1, MAX_TOKENS)]
    context: Annotated[int, Between(1, MAX_ELEMENTS)]
    stride: Annotated[int, Between(1, MAX_TOKENS)]
    shift: Annotated[int, Between(0, MAX_TOKENS)]

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return TOKEN_WIDTHS[self.dtype]

    @property
    def count(self) -> int:
        """Windows that lie in the file wholly, labels too; 0 where it is too short for one."""
        last = self.tokens - self.context - self.shift
        return last // self.stride + 1 if last >= 0 else 0

    @property
    def byte_length(self) -> int:
        """Bytes of the file."""
        return self.tokens * self.width

    def find_token(self, part: str, index: int, within: int) -> int | None:
        """Which token of the file is element ``within`` of part "x" or "y" of sample ``index``;
        None where there is no such sample or element."""
        if not 0 <= index < self.count or not 0 <= within < self.context:
            return None
        return index * self.stride + (self.shift if part == "y" else 0) + within

    def read_token(self, data: bytes, at: int) -> int:
        """Token ``at`` of these bytes, as an element: its low 32 bits, in two's complement."""
        token = int.from_bytes(data[at * self.width :][: min(self.width, 4)], "little")
        return token - 2**32 if token >= 2**31 else token


@dataclass(frozen=True)
class DataSpec:
    """Form and commitment of a dataset: ``samples`` samples, each x then y, little-endian.

    ``root`` is the RFC 9162 root over x bytes || y bytes of each sample; shapes are per sample.
    With ``windows`` it is the plain BLAKE3 of the token bytes.
    """

    root: bytes
    samples: int
    x_dtype: str
    x_shape: tuple[int, ...]
    x_exponent: int
    y_dtype: str
    y_shape: tuple[int, ...]
    y_exponent: int
    windows: Windows | None = None


def describe_windows(windows: Windows, root: bytes = bytes(32)) -> DataSpec:
    """The data of a task whose samples are ``windows`` of the tokens that ``root`` is of."""
    shape = (windows.context,)
    return DataSpec(root, windows.count, "i32", shape, 0, "i32", shape, 0, windows)


MIN_DELAY: Final = 60
MAX_DELAY: Final = 366 * 86400
"""Seconds from a claim's proven time to the round: a minute, as clocks differ, to a year."""
MAX_AUTHORITIES: Final = 8


@dataclass(frozen=True)
class BeaconRule:
    """What an audit's sample is drawn with: the first round of a drand ``chain`` (its hash) whose
    time is ``delay`` seconds or more after the time that is proven for the claim.

    ``authorities`` are those whose word for that time is taken: SHA-256 of the DER of their root
    certificates; none leaves it to the auditor.
    """

    chain: Digest
    delay: Annotated[int, Between(MIN_DELAY, MAX_DELAY)] = MIN_DELAY
    authorities: Annotated[tuple[Digest, ...], AtMost(MAX_AUTHORITIES)] = ()


@dataclass(frozen=True)
class TaskSpec:
    """What a task pins; its canonical encoding's hash is the task id.

    Attributes of nodes (learning rate, preprocessing, loss, sample order) are pinned through
    ``graph_root``.  ``model_digest`` is the plain BLAKE3 of the ONNX file: provenance only.
    ``commit_every``: steps between state roots in the log; ``checkpoint_every``: steps between
    stored checkpoints, a multiple of it.  ``proof`` is there where proofs are to be made, and where
    ``commitments`` has "kzg"; ``beacon`` where parties agreed on how audits draw.
    """

    law: str
    graph_root: bytes
    initial_state_root: bytes
    model_digest: bytes
    data: DataSpec
    exponents: Mapping[str, int]
    seed: int
    steps: int
    batch: int
    commit_every: int
    checkpoint_every: int
    commitments: tuple[str, ...]
    proof: ProofSpec | None = None
    beacon: BeaconRule | None = None

    @property
    def kzg(self) -> ProofSpec | None:
        """What KZG commitments are logged by; None where a run has none."""
        return self.proof if self.commitments == WITH_KZG else None


def _data_to_map(data: DataSpec) -> dict[str, cbor.Value]:
    value: dict[str, cbor.Value] = {
        "root": data.root,
        "samples": data.samples,
        "x_dtype": data.x_dtype,
        "x_exponent": data.x_exponent,
        "x_shape": list(data.x_shape),
        "y_dtype": data.y_dtype,
        "y_exponent": data.y_exponent,
        "y_shape": list(data.y_shape),
    }
    if data.windows is not None:
        value["windows"] = windows_to_map(data.windows)
    return value


def windows_to_map(windows: Windows) -> dict[str, cbor.Value]:
    """The map that stands for windows, in a task and in what an owner of data signs."""
    return {
        "context": windows.context,
        "dtype": windows.dtype,
        "shift": windows.shift,
        "stride": windows.stride,
        "tokens": windows.tokens,
    }


def _take_shape(fields: Fields, name: str) -> tuple[int, ...]:
    """The shape of one sample: a batch of samples has one axis more."""
    shape = fields.ints(name, 1, 2**32, MAX_RANK - 1)
    if prod(shape) > MAX_ELEMENTS:
        fields.refuse(name, f"is of more than {MAX_ELEMENTS} elements")
    return shape


def _data_from_fields(fields: Fields) -> DataSpec:
    data = DataSpec(
        root=fields.bytes("root", 32),
        samples=fields.int("samples", 1, MAX_SAMPLES),
        x_dtype=fields.choice("x_dtype", DTYPES),
        x_shape=_take_shape(fields, "x_shape"),
        x_exponent=fields.int("x_exponent", -64, 64),
        y_dtype=fields.choice("y_dtype", DTYPES),
        y_shape=_take_shape(fields, "y_shape"),
        y_exponent=fields.int("y_exponent", -64, 64),
        windows=take_windows(fields),
    )
    fields.done()
    if data.windows is not None and data != describe_windows(data.windows, data.root):
        fields.refuse("windows", "make other samples than those that are described")
    return data


def take_windows(outer: Fields) -> Windows | None:
    """The field ``windows``, which is left out where samples are rows of a table."""
    if not outer.has("windows"):
        return None
    fields = outer.map("windows")
    windows = Windows(
        dtype=fields.choice("dtype", tuple(TOKEN_WIDTHS)),
        tokens=fields.int("tokens", 1, MAX_TOKENS),
        context=fields.int("context", 1, MAX_ELEMENTS),
        stride=fields.int("stride", 1, MAX_TOKENS),
        shift=fields.int("shift", 0, MAX_TOKENS),
    )
    fields.done()
    return windows


def encode_task(task: TaskSpec) -> bytes:
    """Canonical encoding (the file ``task.cbor``); the keys "proof" and "beacon" are left out where
    they are None."""
    value: dict[str, cbor.Value] = {
        "batch": task.batch,
        "checkpoint_every": task.checkpoint_every,
        "commit_every": task.commit_every,
        "commitments": list(task.commitments),
        "data": _data_to_map(task.data),
        "exponents": dict(task.exponents),
        "graph_root": task.graph_root,
        "initial_state_root": task.initial_state_root,
        "law": task.law,
        "model_digest": task.model_digest,
        "seed": task.seed,
        "steps": task.steps,
    }
    if task.proof is not None:
        value["proof"] = proof_to_map(task.proof)
    if task.beacon is not None:
        value["beacon"] = structs.to_value(task.beacon)
    return cbor.encode(value)


def decode_task(data: bytes) -> TaskSpec:
    """Inverse of :func:`encode_task`; EncodingError names the field."""
    fields = Fields(cbor.decode(data), "task")
    exponents = fields.take("exponents")
    if not isinstance(exponents, dict):
        fields.refuse("exponents", f"expected a map, found {cbor.kind_of(exponents)}")
    check_names(exponents, "task.exponents")
    if not all(isinstance(item, int) and -512 <= item <= 512 for item in exponents.values()):
        fields.refuse("exponents", "an exponent is an integer in [-512, 512]")
    task = TaskSpec(
        law=fields.text("law"),
        graph_root=fields.bytes("graph_root", 32),
        initial_state_root=fields.bytes("initial_state_root", 32),
        model_digest=fields.bytes("model_digest", 32),
        data=_data_from_fields(fields.map("data")),
        exponents={key: item for key, item in exponents.items() if isinstance(item, int)},
        seed=fields.int("seed", 0, 2**64 - 1),
        steps=fields.int("steps", 1, MAX_STEPS),
        batch=fields.int("batch", 1, 2**20),
        commit_every=fields.int("commit_every", 1, MAX_STEPS),
        checkpoint_every=fields.int("checkpoint_every", 1, MAX_STEPS),
        commitments=fields.texts("commitments", max_items=2),
        proof=proof_from_fields(fields.map("proof")) if fields.has("proof") else None,
        beacon=(
            structs.from_value(BeaconRule, fields.take("beacon"), "task.beacon")
            if fields.has("beacon")
            else None
        ),
    )
    fields.done()
    if task.law != LAW_VERSION:
        raise EncodingError(f"written for {task.law!r}; this is {LAW_VERSION!r}", where="task.law")
    if task.commitments not in (BLAKE3_ONLY, WITH_KZG):
        raise EncodingError(
            "is neither blake3 nor blake3 and kzg, in this order", where="task.commitments"
        )
    if task.commitments == WITH_KZG and (task.proof is None or not task.proof.initial):
        raise EncodingError(
            "is needed for kzg, with commitments to the initial state", where="task.proof"
        )
    if task.proof is not None and task.data.windows is not None and task.proof.circuit != "tiles":
        raise EncodingError(
            f"is {task.proof.circuit}: steps over windows of tokens are proven by tiles alone",
            where="task.proof.circuit",
        )
    if task.steps % task.commit_every != 0:
        raise EncodingError("is not a multiple of commit_every", where="task.steps")
    if task.checkpoint_every % task.commit_every != 0:
        raise EncodingError("is not a multiple of commit_every", where="task.checkpoint_every")
    return task
