"""From the TOML file that people write to the TaskSpec that parties sign.

Decimals in the file are taken as exact fractions and become integers by one rule, round half up;
nothing that is hashed was ever a float.  See docs/tasks.md for the keys.
"""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import tomlkit
from tomlkit.exceptions import TOMLKitError

from vtrain.commit.files import read_text
from vtrain.commit.hiding import derive_initial_key, identify_key
from vtrain.commit.kzg_log import Committer, OpenKey, StepCommitter, count_commitments
from vtrain.commit.state import compute_root_of_state
from vtrain.errors import EncodingError, TaskError, VtrainError, warn
from vtrain.graph.builder import FixedExponents, GraphBuilder
from vtrain.graph.calibration import (
    OPERAND_BITS,
    Calibration,
    Evaluator,
    NodeEvaluator,
    OpenEvaluator,
    calibrate,
)
from vtrain.graph.legality import check_graph
from vtrain.graph.model import Embedding, Model, confine_attention
from vtrain.graph.onnx_file import read_onnx
from vtrain.graph.onnx_import import import_onnx, require_unfolded
from vtrain.graph.step import (
    LOSSES,
    Affine,
    Ids,
    OneHot,
    State,
    StepPlan,
    compute_initial_state,
    count_terms,
    emit_step,
    find_ignored,
    keeps_order,
)
from vtrain.graph.update import find_clip_reach, floor_log2, round_half_up
from vtrain.limits import LIMITS
from vtrain.ops.base import attr_int
from vtrain.printable import make_html_table
from vtrain.spec.commitment import (
    compute_graph_root,
    compute_task_id,
    compute_tensor_digest,
)
from vtrain.spec.number import SATURATION, STORAGE
from vtrain.spec.samples import Samples
from vtrain.train.data import (
    MAX_VOCABULARY,
    DataSource,
    TextSource,
    TokenSource,
    check_ids,
    check_labels,
    check_padding,
    load_samples,
    parse_source,
)
from vtrain.train.names import refuse_unknown_keys
from vtrain.train.optimizers import (
    OptimizerTable,
    choose_parameters,
    compute_clip,
    compute_optimizer,
    parse_optimizer,
)
from vtrain.train.table import Table, parse_number
from vtrain.wire.graph import Node, Ref, StepGraph
from vtrain.wire.proof import (
    CIRCUIT_NAMES,
    CIRCUITS,
    HASHES,
    LEAST_STEP_K,
    MAX_BLINDING,
    MAX_COMMITMENTS,
    MAX_K,
    CircuitPin,
    Hash,
    ProofSpec,
    check_proof,
)
from vtrain.wire.record import MAX_STEPS
from vtrain.wire.task import (
    BLAKE3_ONLY,
    LAW_VERSION,
    MAX_AUTHORITIES,
    MAX_DELAY,
    MIN_DELAY,
    WITH_KZG,
    BeaconRule,
    DataSpec,
    TaskSpec,
)

if TYPE_CHECKING:
    from vtrain.train.summary import Estimate, TaskSummary

PREPARE_SHIFT = 16
"""Extra fraction bits of the multiplier that prepares samples."""
MOST_CALIBRATION_STEPS: Final = 10_000

DEFAULT_BLINDING = 5
"""Blinding factors of most circuits (``vtrain.prove.backend.kzg``)."""

_TABLES = (
    *("task", "model", "data", "test", "optimizer", "schedule", "format", "proof", "beacon"),
    "exponents",
)


@dataclass(frozen=True)
class Prepare:
    """How raw samples become values: (x * scale - mean) / std, or one-hot of ``depth`` if given; or
    not at all, where they are ``ids``."""

    scale: Fraction
    mean: Fraction
    std: Fraction
    depth: int | None
    ids: bool = False


@dataclass(frozen=True)
class AttentionTable:
    """What the table ``model`` says of ids: the last of each document, whether attention crosses
    it, and which one is no token."""

    end_of_text: int | None = None
    crosses: bool = False
    padding: int | None = None

    @property
    def confines(self) -> bool:
        """Whether it leaves places out that the model attends to."""
        return self.padding is not None or (self.end_of_text is not None and not self.crosses)


@dataclass(frozen=True)
class ProofTable:
    """The table ``proof`` of a task file; ``sha256`` is what the file ``srs`` must have, if any."""

    circuit: str
    srs: Path
    sha256: bytes | None
    k: int
    blinding: int
    every: int
    hash: Hash
    circuits: Mapping[str, CircuitPin]


@dataclass(frozen=True)
class Held:
    """What a task has in memory instead of in the files that it names."""

    model: bytes
    samples: Samples
    test: Samples | None = None


@dataclass(frozen=True, repr=False)
class TaskFile:
    """A task file as read, before data and model are looked at.

    ``exponents`` is empty before `vtrain profile`.  ``text`` is the file's, and ``held`` has what
    its names stand for where there are no such files yet.
    """

    path: Path
    text: str
    name: str
    seed: int
    steps: int
    batch: int
    commit_every: int
    checkpoint_every: int
    model: Path
    data: DataSource
    test: DataSource | None
    prepare: Prepare
    loss: str
    ignored: int | None
    attention: AttentionTable
    optimizer: OptimizerTable
    margin: int
    gradient_margin: int
    symmetric_gradients: bool
    fine_gradients: bool
    wide_sums: bool
    calibration_steps: int
    exponents: Mapping[str, int]
    commitments: tuple[str, ...] = BLAKE3_ONLY
    proof: ProofTable | None = None
    beacon: BeaconRule | None = None
    held: Held | None = None

    def __repr__(self) -> str:
        return f"<task file {str(self.path)!r}: {self.name!r}, {self.steps:,} steps>"


@dataclass(frozen=True, repr=False)
class CompiledTask:
    """A task ready to run: the canonical spec and everything that it pins.

    ``kzg`` commits by the SRS that the spec pins; a run that logs KZG commitments needs it.
    ``file`` is what it was compiled from, and ``notes`` say what was changed to have it.
    """

    spec: TaskSpec
    graph: StepGraph
    samples: Samples
    initial_state: Mapping[str, npt.NDArray[Any]]
    model: bytes
    name: str = "task"
    kzg: Committer | None = field(default=None, compare=False)
    file: TaskFile | None = field(default=None, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def task_id(self) -> bytes:
        """H_task of the canonical spec, 32 bytes."""
        return compute_task_id(self.spec)

    def __repr__(self) -> str:
        spec, count = self.spec, sum(values.size for values in self.initial_state.values())
        notes = len(self.notes)
        noted = f", {notes} {'note' if notes == 1 else 'notes'}" if notes else ""
        return (
            f"<task {self.name!r} {self.task_id.hex()[:16]}: {len(self.graph.nodes)} nodes, "
            f"{count:,} numbers of state, {spec.steps:,} steps of {spec.batch} of "
            f"{spec.data.samples:,} samples{noted}>"
        )

    def _repr_html_(self) -> str:
        from vtrain.train.summary import describe

        return make_html_table(f"task {self.name}", describe(self).items())

    def estimate(self, engine: str = "auto") -> Estimate:
        """How long a step takes here, and all of them: some are done, and forgotten.

        Errors as of :func:`vtrain.train.summary.estimate`.
        """
        from vtrain.train.summary import estimate

        return estimate(self, engine=engine)

    def summary(self) -> TaskSummary:
        """What the graph is made of, its parameters, and the memory of a step."""
        from vtrain.train.summary import summarize

        return summarize(self)

    def write(self, folder: str | Path) -> Path:
        """Write the task into ``folder``: ``task.toml``, its model, its data.  Compiled from there
        it has the same id.  Returns the path of ``task.toml``.

        RunError where the folder has a task already: nothing is replaced.
        """
        from vtrain.train.written import write_task

        return write_task(self, Path(folder))


_TOML_TOKEN = re.compile(r"""[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\S\n]+|.|\n""")
"""A part of a key, white space, or any other character."""


def _require_short_keys(text: str, path: Path) -> None:
    """TaskError for a dotted key of very many parts, before a parser spends its time on it."""
    parts, joined = 0, False
    for token in _TOML_TOKEN.finditer(text):
        word = token[0]
        if word == ".":
            joined = True
        elif not word.isspace() or word == "\n":
            is_part = len(word) > 1 or word.isalnum() or word in "_-"
            parts = 0 if not is_part else parts + 1 if joined else 1
            joined = False
        if parts > LIMITS.key_parts:
            line = text.count("\n", 0, token.start()) + 1
            raise TaskError(
                f"line {line} has a key of more than {LIMITS.key_parts} parts", where=str(path)
            )


def load_task(path: Path, *, srs: Path | None = None) -> TaskFile:
    """Read a task file; TaskError names the key at fault.

    ``srs`` stands in for the SRS file that it names.
    """
    return parse_task(read_task_text(path), path, srs=srs)


def read_task_text(path: Path) -> str:
    """The text of a task file; TaskError for what is none, which says what was expected."""
    if path.is_dir():
        raise TaskError(
            "cannot be read: it is a folder, and a task is a TOML file: name the file, as "
            f"{path / 'task.toml'} (of a run that is done, `vtrain inspect` shows the task)",
            where=str(path),
        )
    try:
        return read_text(path, LIMITS.task_file_bytes, error=TaskError)
    except TaskError as error:
        if not path.is_file():
            raise
        raise TaskError(f"{error.message}; {_EXPECTED}", where=error.where) from None


_EXPECTED: Final = "a task file (TOML) was expected: `vtrain init MODEL.onnx DATA` writes one"


def parse_task(
    text: str, path: Path, *, srs: Path | None = None, held: Held | None = None
) -> TaskFile:
    """The text of a task file, which is at ``path``, or would be; ``held`` is in memory."""
    return parse_tables(decode_toml(text, path), text, path, srs=srs, held=held)


def decode_toml(text: str, path: Path) -> dict[str, Any]:
    """The tables of a TOML text, with decimals as they stand; TaskError for what is none."""
    _require_short_keys(text, path)
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:  # ValueError: of an integer too long, too
        end = "" if "=" in text else f"; {_EXPECTED}"
        raise TaskError(f"is not TOML: {error}{end}", where=str(path)) from None


def task_from_dict(tables: Mapping[str, Any], base: Path | None = None) -> TaskFile:
    """The task of a dict of what a task file says; paths are relative to ``base``, or to the
    working directory.  TaskError names the key at fault.

    Numbers of numpy and fractions are taken too; a float is what its shortest decimal says.
    """
    path = (base or Path()) / "task.toml"
    try:
        text = tomlkit.dumps(_as_toml(tables))
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"has no form in TOML: {error}", where="task") from None
    return parse_task(text, path)


def _as_toml(value: Any) -> Any:
    match value:
        case Mapping():
            kept = {key: _as_toml(item) for key, item in value.items() if item is not None}
            if not all(isinstance(key, str) for key in kept):
                raise TypeError("a key is no text")
            return kept
        case list() | tuple():
            return [_as_toml(item) for item in value]
        case Path() | Fraction() | Decimal():
            return str(value)
        case np.generic():
            return value.item()
    return value


def parse_tables(
    values: Mapping[str, Any],
    text: str,
    path: Path,
    *,
    srs: Path | None = None,
    held: Held | None = None,
) -> TaskFile:
    """What the tables of a task file say; see :func:`parse_task`."""
    base = path.parent
    top = Table(values, _TABLES, "")
    task = top.table(
        "task",
        *("name", "seed", "steps", "batch", "commit_every", "checkpoint_every", "commitments"),
    )
    known = ("onnx", "loss", "ignore", "end_of_text", "attention_crosses", "padding")
    model = top.table("model", *known)
    fmt = top.table(
        "format",
        *("margin", "gradient_margin", "calibration_steps"),
        *("symmetric_gradients", "fine_gradients", "wide_sums"),
    )
    prepare = top.mapping("data").get("prepare", {})
    margin = fmt.integer("margin", 0, 12, 3)
    exponents = _parse_exponents(top.mapping("exponents"))
    source, test = _parse_data(top, base)
    found = TaskFile(
        path=path,
        text=text,
        name=task.text("name"),
        seed=task.integer("seed", 0, 2**64 - 1),
        steps=task.integer("steps", 1, MAX_STEPS),
        batch=task.integer("batch", 1, 2**20),
        commit_every=task.integer("commit_every", 1, MAX_STEPS, 1),
        checkpoint_every=task.integer("checkpoint_every", 1, MAX_STEPS),
        model=base / model.text("onnx"),
        data=source,
        test=test,
        prepare=_parse_prepare(prepare),
        loss=model.choice("loss", LOSSES),
        ignored=model.integer("ignore", -(2**31), 2**31 - 1) if model.has("ignore") else None,
        attention=_parse_attention(model),
        optimizer=parse_optimizer(top, task.integer("steps", 1, MAX_STEPS)),
        margin=margin,
        gradient_margin=fmt.integer("gradient_margin", 0, 12, margin),
        symmetric_gradients=fmt.boolean("symmetric_gradients", False),
        fine_gradients=fmt.boolean("fine_gradients", False),
        wide_sums=fmt.boolean("wide_sums", False),
        calibration_steps=fmt.integer("calibration_steps", 1, MOST_CALIBRATION_STEPS, 20),
        exponents=exponents,
        commitments=_parse_commitments(task),
        proof=_parse_proof(top, base, srs) if top.has("proof") else None,
        beacon=_parse_beacon(top) if top.has("beacon") else None,
        held=held,
    )
    if srs is not None and found.proof is None:
        raise TaskError(
            "is missing, yet an SRS was given: leave --srs out, or add a table [proof]",
            where="proof",
        )
    if found.commitments == WITH_KZG and found.proof is None:
        raise TaskError(
            "is missing: commitments by kzg need a table [proof] that names an SRS", where="proof"
        )
    if found.checkpoint_every % found.commit_every:
        raise TaskError("must be a multiple of commit_every", where="task.checkpoint_every")
    if found.steps % found.commit_every:
        raise TaskError("must be a multiple of commit_every", where="task.steps")
    return found


def _parse_data(top: Table, base: Path) -> tuple[DataSource, DataSource | None]:
    """What to train on and what to measure on: a table of its own, or a share of the tokens."""
    where, data = "data.validation", top.mapping("data")
    share = data.get("validation")
    source = parse_source(data, base, beside=("prepare", "validation"))
    test = top.mapping("test")
    if share is None:
        return source, parse_source(test, base, "test") if test else None
    if not isinstance(source, TokenSource):
        raise TaskError(
            "holds out a share of tokens, and the data are of another kind: give a table [test]",
            where=where,
        )
    if test:
        raise TaskError(
            "is there beside a table [test]: both say what to measure on, leave one out",
            where=where,
        )
    number = parse_number(share, where)
    if not 0 < number < 1:
        raise TaskError("must lie between 0 and 1, as 0.1 or 1/10", where=where)
    return source.hold_out(number)


def _parse_attention(table: Table) -> AttentionTable:
    end_of_text, padding = (
        table.integer(key, 0, MAX_VOCABULARY - 1) if table.has(key) else None
        for key in ("end_of_text", "padding")
    )
    if end_of_text is None and table.has("attention_crosses"):
        raise TaskError(
            "needs end_of_text: without it nothing says where a document ends",
            where=table.place("attention_crosses"),
        )
    if padding is not None and padding == end_of_text:
        raise TaskError(
            "is end_of_text too: name it as end_of_text alone, each further one is then a document "
            "of one token",
            where=table.place("padding"),
        )
    crosses = table.boolean("attention_crosses", False)
    return AttentionTable(end_of_text, crosses, padding)


def _parse_commitments(table: Table) -> tuple[str, ...]:
    value = table.value("commitments") if table.has("commitments") else list(BLAKE3_ONLY)
    if value not in (list(BLAKE3_ONLY), list(WITH_KZG)):
        raise TaskError('must be ["blake3"] or ["blake3", "kzg"]', where=table.place("commitments"))
    return tuple(value)


def _parse_proof(top: Table, base: Path, srs: Path | None) -> ProofTable:
    known = ("circuit", "srs", "sha256", "k", "blinding", "every", "hash", "circuits")
    table = top.table("proof", *known)
    circuit = table.choice("circuit", CIRCUITS)
    pins = table.mapping("circuits") if table.has("circuits") else {}
    # Else a misspelt pin is signed, and no proof fits the task.
    refuse_unknown_keys(pins, CIRCUIT_NAMES[circuit], "proof.circuits")
    circuits = {}
    for name, values in pins.items():
        if not isinstance(values, dict):
            raise TaskError("must be a table", where=f"proof.circuits.{name}")
        pin = Table(values, ("circuit", "key"), f"proof.circuits.{name}")
        circuits[name] = CircuitPin(pin.digest("circuit"), pin.digest("key"))
    k = table.integer("k", 1, MAX_K)
    if circuit == "step" and k < LEAST_STEP_K:
        warn(
            f"proof.k = {k}: proofs of whole steps need {LEAST_STEP_K} at least, so that none can "
            "be made of a run of this task",
            f"write k = {LEAST_STEP_K}, or more",
        )
    return ProofTable(
        circuit=circuit,
        srs=srs or base / table.text("srs"),
        sha256=table.digest("sha256") if table.has("sha256") else None,
        k=k,
        blinding=table.integer("blinding", 0, MAX_BLINDING, DEFAULT_BLINDING),
        every=table.integer("every", 1, MAX_STEPS, 1),
        hash=table.choice("hash", HASHES, HASHES[0]),
        circuits=circuits,
    )


_CHAIN_NAMES = {
    "quicknet": "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971",
    "default": "8990e7a9aaed2ffed73dbd7092123d6f289930540d7651336225dc172e51b2ce",
}
"""drand chains that a task may name by a word: their hashes (``vtrain.audit.beacon``)."""


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _parse_beacon(top: Table) -> BeaconRule:
    table = top.table("beacon", "chain", "delay", "authorities")
    name = table.text("chain")
    text = _CHAIN_NAMES.get(name, name)
    if not _is_hash(text):
        raise TaskError(
            f"must be {', '.join(_CHAIN_NAMES)} or the hash of a chain (64 lower-case hexadecimal "
            "digits)",
            where=table.place("chain"),
        )
    found = table.value("authorities") if table.has("authorities") else []
    if not isinstance(found, list) or len(found) > MAX_AUTHORITIES or not all(map(_is_hash, found)):
        raise TaskError(
            f"must be a list of at most {MAX_AUTHORITIES} SHA-256 of root certificates (DER), each "
            "64 lower-case hexadecimal digits",
            where=table.place("authorities"),
        )
    return BeaconRule(
        bytes.fromhex(text),
        table.integer("delay", MIN_DELAY, MAX_DELAY, MIN_DELAY),
        tuple(bytes.fromhex(item) for item in found),
    )


def _parse_exponents(table: Mapping[str, Any]) -> dict[str, int]:
    for site, value in table.items():
        if not isinstance(value, int) or isinstance(value, bool) or not -64 <= value <= 64:
            raise TaskError("must be an integer in [-64, 64]", where=f"exponents.{site}")
    return dict(table)


def _parse_prepare(values: object) -> Prepare:
    if not isinstance(values, dict):
        raise TaskError("must be a table", where="data.prepare")
    known = {"one_hot": ("depth",), "ids": ()}.get(
        str(values.get("kind")), ("scale", "mean", "std")
    )
    table = Table(values, ("kind", *known), "data.prepare")
    kind = table.choice("kind", ("affine", "one_hot", "ids"), "affine")
    depth = table.integer("depth", 1, 2**20) if kind == "one_hot" else None
    one, zero = Fraction(1), Fraction(0)
    if kind != "affine":
        prepare = Prepare(one, zero, one, depth, ids=kind == "ids")
    else:
        prepare = Prepare(
            table.number("scale", one), table.number("mean", zero), table.number("std", one), None
        )
    if prepare.std <= 0 or prepare.scale <= 0:
        raise TaskError("scale and std must be positive", where="data.prepare")
    return prepare


def compute_prepare(prepare: Prepare, data: DataSpec) -> Affine | OneHot | Ids:
    """Integer constants of the preparation, at the finest exponent that no sample saturates."""
    if prepare.ids:
        return Ids()
    if prepare.depth is not None:
        return OneHot(prepare.depth)
    slope = prepare.scale / prepare.std / Fraction(2) ** data.x_exponent
    offset = -prepare.mean / prepare.std
    lo, hi = STORAGE[data.x_dtype]
    largest = max(abs(slope * lo + offset), abs(slope * hi + offset))
    exponent = floor_log2(Fraction(SATURATION["i16"][1]) / largest)
    scale = Fraction(2) ** (exponent + PREPARE_SHIFT)
    multiplier = round_half_up(slope * scale)
    if not 1 <= multiplier <= 2**31:
        raise TaskError("scale and std leave no usable multiplier", where="data.prepare")
    return Affine(multiplier, round_half_up(offset * scale), PREPARE_SHIFT, exponent)


def _check_tokens(file: TaskFile) -> None:
    """TaskError for what windows of tokens cannot have, before anything of them is read."""
    if not isinstance(file.data, TokenSource):
        return
    if file.proof is not None and file.proof.circuit != "tiles":
        raise TaskError(
            f"is {file.proof.circuit}, and no circuit is of a whole step over windows of tokens: "
            'take "tiles"',
            where="proof.circuit",
        )
    depth = file.prepare.depth
    if file.prepare.ids:
        return  # held against the model's table, once that is known
    if depth is None:
        raise TaskError(
            "data of kind tokens are ids: they need a preparation of kind ids or one_hot",
            where="data.prepare",
        )
    if file.data.vocabulary > depth:
        raise TaskError(
            f"{depth} is less than the vocabulary, {file.data.vocabulary}",
            where="data.prepare.depth",
        )


def _require_form(model: Model, file: TaskFile, samples: Samples) -> None:
    """TaskError unless a sample is as long as what the model takes, its table of positions is, and
    has its elements in that order."""
    shape = samples.spec.x_shape
    found, wanted = math.prod(shape), math.prod(model.input_shape)
    depth = file.prepare.depth or 1
    if found * depth == wanted:
        whole = shape if file.prepare.depth is None else (*shape, depth)
        if keeps_order(whole, model.input_shape):
            return
        raise TaskError(
            f"has samples of shape {whole}, and the model takes {model.input_shape}: as many "
            "elements, and in another order: give x with the axes of the model "
            "(np.transpose), or as rows of all elements that are in the model's order",
            where="data",
        )
    is_window = isinstance(file.data, TokenSource | TextSource)
    fix = f"set context = {wanted // depth}" if is_window else f"give samples of {wanted // depth}"
    raise TaskError(
        f"has samples of {found} elements, and the model takes {wanted // depth}: {fix}, or export "
        f"the model for {found}",
        where="data.context" if is_window else "data",
    )


def _confine_attention(model: Model, file: TaskFile) -> Model:
    """The model as the table ``model`` of the file wants it: TaskError for an id that no sample can
    have."""
    table = file.attention
    known = _count_ids(model, file)
    for key, number in (("end_of_text", table.end_of_text), ("padding", table.padding)):
        if number is None:
            continue
        if known is None:
            raise TaskError(
                'is an id, and samples are none: data.prepare needs kind = "ids" or "one_hot"',
                where=f"model.{key}",
            )
        if number >= known:
            raise TaskError(
                f"{number} is no id: those of the samples are in [0, {known})",
                where=f"model.{key}",
            )
    if not table.confines:
        return model
    end_of_text = None if table.crosses else table.end_of_text
    return confine_attention(model, end_of_text=end_of_text, padding=table.padding)


def _count_ids(model: Model, file: TaskFile) -> int | None:
    """Below what all ids of the samples are; None where samples are no ids."""
    counts = [
        model.params[layer.weight].shape[0]
        for layer in model.layers
        if isinstance(layer, Embedding) and layer.input == model.input
    ]
    if isinstance(file.data, TokenSource):
        counts.append(file.data.vocabulary)
    if file.prepare.depth is not None:
        counts.append(file.prepare.depth)
    return min(counts, default=None)


@dataclass(frozen=True)
class _Parts:
    """What both profiling and compiling need."""

    model: Model
    model_bytes: bytes
    samples: Samples
    plan: StepPlan


def _load_parts(file: TaskFile, model: Model | None = None) -> _Parts:
    held = file.held
    model_bytes = read_onnx(file.model, error=TaskError) if held is None else held.model
    if model is None:
        model = import_onnx(model_bytes)
        require_unfolded(model)
        _warn_of_export(model, file.model)
    _check_tokens(file)
    _require_agreement(model, file.prepare)
    model = _confine_attention(model, file)
    samples = load_samples(file.data) if held is None else held.samples
    _require_form(model, file, samples)
    terms = count_terms(file.loss, samples.spec, file.batch)
    plan = StepPlan(
        data=samples.spec,
        prepare=compute_prepare(file.prepare, samples.spec),
        loss=file.loss,
        optimizer=compute_optimizer(file.optimizer, terms),
        seed=file.seed,
        batch=file.batch,
        commit_every=file.commit_every,
        no_decay=choose_parameters("no_decay", file.optimizer.no_decay, model.trained),
        frozen=choose_parameters("frozen", file.optimizer.frozen, model.trained) | model.untrained,
        clip=compute_clip(file.optimizer, terms),
        ignored=file.ignored,
        symmetric_gradients=file.symmetric_gradients,
        fine_gradients=file.fine_gradients,
        wide_sums=file.wide_sums,
    )
    return _Parts(model, model_bytes, samples, plan)


def _warn_of_export(model: Model, path: Path) -> None:
    """A VtrainWarning where the module that a file was exported of had dropout, and it has none; or
    where several parameters became one."""
    if model.merged:
        warn(
            f"in {path} the parameter {model.merged}: it is trained as one, and what the module "
            "computes of those (a norm of the weight, an adapter, a mask) is no part of the steps",
            "vtrain.from_torch keeps a module's parameters as they are, or refuses them by name",
        )
    if model.lost_dropout:
        warn(
            f"{path} was exported at inference, so that nothing is dropped in training, yet "
            f"{model.lost_dropout} tells of dropout",
            "if the model is to have it, export after model.train() (the older exporter of torch: "
            "with training=TrainingMode.TRAINING)",
        )


def _compute_initial_state(parts: _Parts) -> State:
    return compute_initial_state(parts.model.params, parts.plan.optimizer, parts.plan.frozen)


class _AnyExponents:
    """An exponent policy for a graph of which the shapes alone count."""

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        return min(OPERAND_BITS, exponent)


class _AllSites(_AnyExponents):
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.sites: set[str] = set()

    def choose(self, site: str, source: Ref, exponent: int) -> int:
        self.sites.add(site)
        return super().choose(site, source, exponent)


def list_sites(file: TaskFile, model: Model | None = None) -> tuple[Model, set[str]]:
    """The model of a task, and the sites that need exponents; all but those is looked at.

    ``model`` is taken in place of the one that the file names.  TaskError, ModelError, DataError as
    of :func:`profile_task`.
    """
    parts, policy = _load_parts(file, model), _AllSites()
    builder = GraphBuilder(policy)
    emit_step(builder, parts.plan, parts.model)
    _check_numbers(file, builder.graph(), parts.samples)
    return parts.model, policy.sites


def _check_numbers(file: TaskFile, graph: StepGraph, samples: Samples) -> None:
    """That labels are classes, and that ids have rows: those that are there, and all that there may
    be in windows of tokens."""
    for node in graph.nodes:
        if node.op == "cross_entropy":
            count, what = graph.type_of(node.inputs[0]).shape[1], "classes"
        elif node.op == "gather_rows":
            count, what = graph.type_of(node.inputs[0]).shape[0], "rows of the table"
        else:
            if node.op == "token_spans":
                check_padding(samples, attr_int(node.attrs, "padding"))
            continue
        if isinstance(file.data, TokenSource) and file.data.vocabulary > count:
            raise TaskError(
                f"is {file.data.vocabulary}, of a model with {count} {what}: it may be smaller, "
                "not larger",
                where="data.vocabulary",
            )
        if node.op == "cross_entropy":
            check_labels(samples, count, find_ignored(graph))
        else:
            check_ids(samples, count)


def _require_agreement(model: Model, prepare: Prepare) -> None:
    """TaskError unless whole numbers go where whole numbers are taken."""
    if model.takes_ids and not prepare.ids:
        raise TaskError(
            'must have kind = "ids": the model takes whole numbers', where="data.prepare"
        )
    if prepare.ids and not model.takes_ids:
        raise TaskError(
            'has kind = "ids", and the model takes floats: "affine" or "one_hot" makes such',
            where="data.prepare",
        )


def _warn_of_calibration(file: TaskFile) -> None:
    """A VtrainWarning where calibration ends while the learning rate still rises."""
    peak = file.optimizer.curve.peak
    needed = min(peak + 1, file.steps, MOST_CALIBRATION_STEPS)
    if file.calibration_steps >= needed:
        return
    enough = f"calibration_steps = {min(2 * needed, MOST_CALIBRATION_STEPS)}"
    mend = (
        f"set {enough} in [format] of {file.path} and run `{_name_command('profile', file.path)}`"
        if file.held is None
        else f"give vtrain.from_torch {enough}"
    )
    warn(
        f"calibration_steps = {file.calibration_steps} lies within the warm-up, whose rate is at "
        f"its largest in step {peak}: the exponents are those of weights that hardly moved, and "
        "gradients that grow or shrink later are clamped or lose their bits",
        mend,
    )


def _name_mend(file: TaskFile) -> str:
    """What writes the exponents of a task."""
    if file.held is not None:
        return "vtrain.from_torch without exponents="
    return f"`{_name_command('profile', file.path)}`"


def _name_command(command: str, path: Path) -> str:
    """The command on a task file, as a shell takes it."""
    return f"vtrain {command} {shlex.quote(str(path))}"


def profile_task(
    file: TaskFile,
    progress: Callable[[int], None] = lambda done: None,
    *,
    open_evaluator: OpenEvaluator = NodeEvaluator,
    model: Model | None = None,
) -> Calibration:
    """Calibrate the exponents of a task; the file's own ``exponents`` are not looked at.

    ``open_evaluator`` (``vtrain.engines.registry.choose_evaluator``) changes no result.  ``model``
    is taken in place of the one that the file names.
    TaskError, ModelError, DataError (a label out of range, for one) as their parts find; a
    VtrainWarning where calibration ends within a warm-up.
    """
    parts = _load_parts(file, model)
    _warn_of_calibration(file)
    shapes = GraphBuilder(_AnyExponents())
    emit_step(shapes, parts.plan, parts.model)
    _check_numbers(file, shapes.graph(), parts.samples)
    watches: list[_ClipWatch] = []

    def open_watched(state: Mapping[str, npt.NDArray[Any]], samples: Samples) -> Evaluator:
        watches.append(_ClipWatch(open_evaluator(state, samples)))
        return watches[-1]

    calibration = calibrate(
        lambda builder: emit_step(builder, parts.plan, parts.model),
        _compute_initial_state(parts),
        parts.samples,
        steps=file.calibration_steps,
        margin=file.margin,
        gradient_margin=file.gradient_margin,
        progress=progress,
        open_evaluator=open_evaluator if parts.plan.clip is None else open_watched,
    )
    for watch in watches:
        _warn_of_clip(watch)
    return calibration


def _warn_of_clip(watch: _ClipWatch) -> None:
    if watch.most > 0:
        warn(
            f"clip_norm: in calibration an element of a gradient was {watch.most:,.4g} times "
            f"clip_norm, and beyond {watch.whole:,.4g} times it squares are held: gradients are "
            "left longer than clip_norm (docs/tasks.md)",
            "give a larger clip_norm, or data and targets of a smaller scale",
        )


def write_exponents(path: Path, exponents: Mapping[str, int]) -> None:
    """Replace the [exponents] table of a task file; the rest, comments too, stays as it is."""
    try:
        document = tomlkit.parse(read_text(path, LIMITS.task_file_bytes, error=TaskError))
        table = tomlkit.table()
        table.comment("written by `vtrain profile`: fraction bits of each int16 site")
        for site in sorted(exponents):
            table[site] = exponents[site]
        document["exponents"] = table
        path.write_text(tomlkit.dumps(document))
    except TOMLKitError as error:
        raise TaskError(f"is not TOML: {error}", where=str(path)) from None
    except OSError as error:
        raise TaskError(f"cannot be written: {error.strerror}", where=str(path)) from None


def compile_task(
    file: TaskFile, open_key: OpenKey | None = None, *, model: Model | None = None
) -> CompiledTask:
    """Build the step graph, prove its ranges, and pin everything in a TaskSpec.

    ``open_key`` opens the SRS of a task that has one: ``vtrain.prove.backend.kzg.CommitKey``.
    ``model`` is taken in place of the one that the file names, to measure what it costs: its digest
    stays that of the file.
    TaskError when exponents are missing or name no site, or for an SRS that cannot be used;
    ModelError, DataError, RangeError as their parts find; a VtrainWarning where exponents were
    calibrated within a warm-up.
    """
    parts = _load_parts(file, model)
    _warn_of_calibration(file)
    mend = _name_mend(file)
    policy = FixedExponents(file.exponents, mend)
    builder = GraphBuilder(policy)
    emit_step(builder, parts.plan, parts.model)
    for site in file.exponents:
        if site not in policy.used:
            raise TaskError(
                f"is not a site of this model: {mend} writes the exponents anew",
                where=f"exponents.{site}",
            )
    graph = builder.graph()
    check_graph(graph)
    _check_numbers(file, graph, parts.samples)
    state = _compute_initial_state(parts)
    key = None if file.proof is None else _open_key(file.proof, open_key)
    spec = TaskSpec(
        law=LAW_VERSION,
        graph_root=compute_graph_root(graph),
        initial_state_root=compute_root_of_state(graph, state),
        model_digest=compute_tensor_digest(np.frombuffer(parts.model_bytes, dtype=np.uint8)),
        data=parts.samples.spec,
        exponents=file.exponents,
        seed=file.seed,
        steps=file.steps,
        batch=file.batch,
        commit_every=file.commit_every,
        checkpoint_every=file.checkpoint_every,
        commitments=file.commitments,
        proof=None if file.proof is None or key is None else _pin_proof(file.proof, key),
        beacon=file.beacon,
    )
    if spec.kzg is not None and key is not None:
        spec = replace(spec, proof=_commit_initial(spec.kzg, spec, graph, state, key))
    return CompiledTask(
        *(spec, graph, parts.samples, state, parts.model_bytes, file.name, key, file),
        notes=_note_clip(graph),
    )


def _note_clip(graph: StepGraph) -> tuple[str, ...]:
    reach = find_clip_reach(graph)
    if reach is None:
        return ()
    return (
        f"clip_norm: with {reach.parameters:,} parameters trained, gradients are clipped to it up "
        f"to {reach.whole:,.4g} times clip_norm; beyond, squares of single elements are held, and "
        f"gradients of R times clip_norm may be left R / {reach.whole:,.4g} times as long as it. "
        "The factor, and so the clipped gradient, is within 1 % where gradients are at most "
        f"{reach.precise:,.0f} times clip_norm (docs/tasks.md)",
    )


class _ClipWatch:
    """An evaluator that looks at what is clipped: ``most`` is the largest element of a gradient
    whose square was held, as a multiple of the norm that gradients are clipped to, and ``whole``
    that up to which none is."""

    def __init__(self, inner: Evaluator) -> None:
        self.most = self.whole = 0.0
        self._inner = inner
        self._count = 0
        self._held: list[tuple[float, float]] = []

    def evaluate(self, node: Node) -> None:
        self._inner.evaluate(node)
        if node.op == "capped_square":
            cap = 1 << attr_int(node.attrs, "bits")
            if self._inner.largest(self._count) == cap:
                size = self._inner.largest(node.inputs[0].node)
                aligned = math.ldexp(size, -attr_int(node.attrs, "shift"))
                self._held.append((aligned, math.sqrt(cap)))
        elif node.op == "clip_factor":
            limit = attr_int(node.attrs, "limit")
            for element, root in self._held:
                self.most = max(self.most, element / limit)
                self.whole = root / limit
        self._count += 1

    def largest(self, value: int) -> int:
        return self._inner.largest(value)

    def advance(self, next_states: Mapping[str, Ref]) -> None:
        self._inner.advance(next_states)
        self._count, self._held = 0, []

    def close(self) -> None:
        self._inner.close()


def _open_key(table: ProofTable, open_key: OpenKey | None) -> Committer:
    where = "proof.srs"
    if open_key is None:
        raise TaskError(
            "cannot be opened: call compile_task with open_key=vtrain.prove.backend.kzg.CommitKey",
            where=where,
        )
    try:
        key = open_key(table.srs, table.k, table.blinding)
    except VtrainError as error:
        raise TaskError(f"cannot be used: {error}", where=where) from None
    if table.sha256 not in (None, key.srs.sha256):
        raise TaskError(
            f"has the SHA-256 {key.srs.sha256.hex()}, not that of proof.sha256: "
            "give that file, or correct proof.sha256",
            where=where,
        )
    return key


def _pin_proof(table: ProofTable, key: Committer) -> ProofSpec:
    proof = ProofSpec(
        circuit=table.circuit,
        srs=key.srs.sha256,
        k=table.k,
        blinding=table.blinding,
        every=table.every,
        initial=(),
        circuits=table.circuits,
        hash=table.hash,
    )
    try:
        check_proof(proof)
    except EncodingError as error:
        raise TaskError(error.message, where=error.where.removeprefix("task.")) from None
    return proof


def _commit_initial(
    proof: ProofSpec,
    spec: TaskSpec,
    graph: StepGraph,
    state: Mapping[str, npt.NDArray[Any]],
    key: Committer,
) -> ProofSpec:
    count = max(count_commitments(proof, graph, spec.data, spec.batch))
    if count > MAX_COMMITMENTS:
        raise TaskError(f"makes {count} columns, more than {MAX_COMMITMENTS}", where="proof.k")
    hiding = derive_initial_key(proof, graph, state)
    initial = StepCommitter(proof, graph, key).commit_state(state, hiding)
    return replace(proof, initial=initial, initial_key=identify_key(hiding))
