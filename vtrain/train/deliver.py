"""What a solver hands over: how good the model is, and its weights as floats.

The forward pass of an evaluation is the step graph's own: the nodes between batch and loss are run
with other samples in place of the batch, so that what is measured is what was trained.  Masks of
dropout are 1 in all places: what is handed over drops nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtrain.attest.claims import compute_claim_digest
from vtrain.commit.files import compute_entry, read_file, storing, write_atomic
from vtrain.engines.base import check_state
from vtrain.engines.registry import choose_apply
from vtrain.errors import DataError, EncodingError, RunError, TaskError
from vtrain.graph.evaluate import Apply
from vtrain.graph.norms import find_batch_norms, use_mean, use_variance
from vtrain.graph.step import STEP_STATE, find_ignored, param_state
from vtrain.limits import limits_here
from vtrain.ops import TABLE
from vtrain.ops.base import attr_int
from vtrain.spec.number import LOSS_EXPONENT
from vtrain.spec.samples import Samples, count_in_file
from vtrain.train.data import (
    check_ids,
    check_labels,
    check_padding,
    compute_samples_root,
    read_samples,
)
from vtrain.train.layout import RunPaths
from vtrain.train.signed import (
    check_size,
    read_claim,
    read_claimed_state,
    read_leaves,
    read_task,
)
from vtrain.wire.graph import Ref, StepGraph, TensorType
from vtrain.wire.record import decode_record

if TYPE_CHECKING:
    from vtrain.graph.model import Model
    from vtrain.train.task import CompiledTask

State = Mapping[str, npt.NDArray[Any]]

EXPORT_ONNX = "model.onnx"
EXPORT_SAFETENSORS = "model.safetensors"
_BATCH_SUMS = frozenset({"sum", "square_sum"})


@dataclass(frozen=True)
class Evaluation:
    """Over ``count`` samples, of the state after ``step`` steps: the mean loss in ``loss_unit``
    ("nats a label" for cross-entropy, "squared error a sample" for MSE, which is torch's mean times
    the elements of a target) and the share of right
    classes, None for a task without classes."""

    accuracy: float | None
    loss: float
    loss_unit: str
    count: int
    step: int


def has_classes(graph: StepGraph) -> bool:
    """Whether the loss is of classes: cross-entropy."""
    return any(node.op == "cross_entropy" for node in graph.nodes)


def compute_mean_loss(graph: StepGraph, total: int, count: int) -> float:
    """Integer loss of ``count`` samples -> a mean: nats a label, for MSE squared error a sample."""
    unit = math.log(2) if has_classes(graph) else 1.0
    return math.ldexp(total, -LOSS_EXPONENT) * unit / (count * count_labels(graph))


def count_labels(graph: StepGraph) -> int:
    """Labels that each sample of a task with classes has; 1 for a task without."""
    labels = {"gather_samples": 1, "cross_entropy": 1}
    for node in graph.nodes:
        if node.op in labels and node.attrs.get("part", "y") == "y":
            labels[node.op] = node.outputs[0].shape[0]
    return labels["cross_entropy"] // labels["gather_samples"] if has_classes(graph) else 1


def evaluate(
    graph: StepGraph, state: State, samples: Samples, *, engine: str = "auto"
) -> Evaluation:
    """Forward pass of ``state`` over all ``samples``, in integers.

    ``engine`` changes no bit: "numpy" is the law, every other the cpu engine.

    ``samples`` have the form (dtypes, shapes, exponents) of the task's own, any number of them.
    RunError when the state is not the graph's; DataError when the samples do not fit.
    """
    check_state(graph, state)
    forward = _Forward(graph, state, samples, choose_apply(engine))
    check_fit(graph, samples)
    correct = total = ignored = 0
    for start in range(0, samples.spec.samples, forward.batch):
        batch_loss, batch_correct, batch_ignored = forward.run(start)
        ignored += batch_ignored
        total += batch_loss
        correct += batch_correct
    count = samples.spec.samples
    labels = count * count_labels(graph)
    counted = max(labels - ignored, 1)
    return Evaluation(
        accuracy=None if forward.classes is None else correct / counted,
        loss=compute_mean_loss(graph, total, count) * (labels / counted),
        loss_unit="nats a label" if has_classes(graph) else "squared error a sample",
        count=count,
        step=int(state[STEP_STATE]),
    )


def check_fit(graph: StepGraph, samples: Samples, name: str = "") -> None:
    """DataError, which calls the samples ``name``, unless a graph can be run on them: their form is
    that which it gathers, and labels and ids are those that it has."""
    try:
        for node in graph.nodes:
            if node.op == "gather_samples":
                _check_form(str(node.attrs["part"]), node.outputs[0], samples)
        for node in graph.nodes:
            if node.op == "cross_entropy":
                classes = graph.type_of(node.inputs[0]).shape[1]
                check_labels(samples, classes, find_ignored(graph))
            elif node.op == "gather_rows":
                check_ids(samples, graph.type_of(node.inputs[0]).shape[0])
            elif node.op == "token_spans":
                check_padding(samples, attr_int(node.attrs, "padding"))
    except DataError as error:
        if not name:
            raise
        raise DataError(error.message, where=f"{name}: {error.where}") from None


def _check_form(part: str, wanted: TensorType, samples: Samples) -> None:
    spec = samples.spec
    found = (
        (spec.x_dtype, spec.x_shape, spec.x_exponent)
        if part == "x"
        else (spec.y_dtype, spec.y_shape, spec.y_exponent)
    )
    if found != (wanted.dtype, wanted.shape[1:], wanted.exponent):
        raise DataError(
            f"are {found[0]} {found[1]} with exponent {found[2]}; the task has "
            f"{wanted.dtype} {wanted.shape[1:]} with exponent {wanted.exponent}",
            where=f"samples.{part}",
        )


def evaluate_run(run: Path, samples: Samples, step: int | None = None) -> Evaluation:
    """:func:`evaluate` of a checkpoint of a run directory, the last unless ``step`` names one.

    The state is the one that the run's signed claim commits to; errors as of
    :func:`vtrain.train.signed.read_claimed_state`.
    """
    _, graph, state = read_claimed_state(RunPaths(run), step)
    check_size(graph, limits_here().by_law(), str(RunPaths(run).graph))
    return evaluate(graph, state, samples)


def export_run(run: Path, out: Path, step: int | None = None) -> tuple[Path, Path]:
    """Write a checkpoint's weights as floats into the folder ``out``: the ONNX model that the task
    was given with its initialisers replaced, and safetensors by the initialisers' names.

    Masters have 24 fraction bits; a float32 keeps 24 significant ones.  Returns the two paths.  The
    state is the one that the run's signed claim commits to, the model the one that its task pins;
    errors as of :func:`vtrain.train.signed.read_claimed_state`.
    """
    from vtrain.graph.weights import export_onnx, export_safetensors

    if RunPaths(out).task.exists():
        raise RunError("is a run directory: export into a folder of its own", where=str(out))
    original, model, params = read_model(run, step)
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
    onnx, safetensors = out / EXPORT_ONNX, out / EXPORT_SAFETENSORS
    write_atomic(onnx, [export_onnx(original, model, params)])
    write_atomic(safetensors, [export_safetensors(original, model, params)])
    return onnx, safetensors


def describe_weights(run: Path, step: int) -> dict[str, str | int]:
    """What weights are of that :func:`export_run` wrote: run, task, step and the state root there,
    with the digest of the claim that commits to it, in hexadecimal digits.

    Errors as of :func:`vtrain.train.signed.read_claim` and :func:`read_leaves`.
    """
    paths = RunPaths(run)
    claim = read_claim(paths).claim
    records = [decode_record(leaf) for leaf in read_leaves(paths, claim)]
    root = records[step - 1].state_root if step else read_task(paths).initial_state_root
    return {
        "claim": compute_claim_digest(claim).hex(),
        "run_id": claim.run_id.hex(),
        "solver": claim.solver.hex(),
        "state_root": root.hex(),
        "step": step,
        "task_id": claim.task_id.hex(),
    }


def load_held_out(
    run: Path, task: CompiledTask | Path | None, data: Path | None
) -> tuple[Samples, str]:
    """What a checkpoint of ``run`` is measured on, and what that is called: the test data of
    ``task``, a table or tokens ``data`` of the run's own form, or else the run's training data.

    RunError for both, TaskError for a task without test data, DataError for what does not fit.
    """
    from vtrain.train.task import load_task
    from vtrain.train.written import load_test

    if task is not None and data is not None:
        raise RunError("and data both name what to measure on: give one", where="task")
    if task is not None:
        file = load_task(task) if isinstance(task, Path) else task.file
        test = None if file is None else load_test(file)
        if test is None:
            name = str(task) if isinstance(task, Path) else task.name
            raise TaskError("the task has no test data: a table [test], or test=", where=name)
        return test, f"test data of {task if isinstance(task, Path) else task.name}"
    paths = RunPaths(run)
    paths.require_run()
    spec = read_task(paths).data
    if data is None:
        samples = read_samples(paths.samples, spec, root=paths.root)
        if compute_samples_root(samples) != spec.root:
            raise DataError(
                "are not the samples that the task commits to", where=str(paths.samples)
            )
        return samples, "the run's training data"
    with storing(data):
        size = data.stat().st_size
    try:
        found = count_in_file(spec, size)
    except DataError as error:
        raise DataError(error.message, where=str(data)) from None
    return read_samples(data, found), str(data)


def read_weights(run: Path, step: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """A checkpoint's weights as floats by name: for a task from torch, the module's ``state_dict``.

    Errors as of :func:`export_run`.
    """
    from vtrain.graph.weights import compute_state_dict

    return compute_state_dict(*read_model(run, step))


def read_model(run: Path, step: int | None = None) -> tuple[bytes, Model, State]:
    """The model that a run's task pins, as given and as imported, and its weights; errors as of
    :func:`export_run`."""
    from vtrain.graph.onnx_import import import_onnx

    paths = RunPaths(run)
    task, _, state = read_claimed_state(paths, step)
    original = read_file(paths.model, limits_here().onnx_bytes, root=paths.root)
    if compute_entry([original]).digest != task.model_digest:
        raise EncodingError("is not the file that the task names", where=str(paths.model))
    model = import_onnx(original)
    missing = [name for name in model.params if param_state(name) not in state]
    if missing:
        raise RunError("the model's parameter is not in the state", where=missing[0])
    return original, model, {name: state[param_state(name)] for name in model.params}


class _Forward:
    """The part of a step graph from its batch to its loss, on samples of one's own."""

    def __init__(self, graph: StepGraph, state: State, samples: Samples, apply: Apply) -> None:
        self._graph = graph
        self._state = state
        self._samples = samples
        self._apply_node = apply
        record = graph.nodes[graph.find("record")]
        loss = record.inputs[2].node
        if graph.nodes[loss].op not in _BATCH_SUMS:
            raise RunError(
                "is the loss, and no sum over the batch: a model of this graph cannot be evaluated",
                where=graph.nodes[loss].name,
            )
        self._loss = graph.nodes[loss]
        self._terms = self._loss.inputs[0]
        self._logits, self.classes = self._find_logits()
        self._parts = {
            str(node.attrs["part"]): Ref(index)
            for index, node in enumerate(graph.nodes)
            if node.op == "gather_samples"
        }
        self.batch = graph.type_of(self._parts["x"]).shape[0]
        wanted = [self._terms] if self._logits is None else [self._terms, self._logits]
        needed = self._ancestors(wanted)
        varying = self._descendants()
        self._nodes = [index for index in needed if index in varying]
        norms = find_batch_norms(graph)
        self._means = {norm.deviations: norm.mean for norm in norms}
        self._variances = {norm.squares: norm.variance for norm in norms}
        self._fixed: dict[int, npt.NDArray[Any]] = {}
        for index in needed:
            if index not in varying and index not in {ref.node for ref in self._parts.values()}:
                self._fixed[index] = self._apply(index, self._fixed)

    def run(self, start: int) -> tuple[int, int, int]:
        """(loss, right classes, labels that are ignored) of up to ``batch`` samples from ``start``.

        The last batch is filled up with its first sample, whose repeats are not counted.
        """
        count = min(self.batch, self._samples.spec.samples - start)
        rows = np.full(self.batch, start)
        rows[:count] += np.arange(count)
        values = dict(self._fixed)
        for part, ref in self._parts.items():
            values[ref.node] = self._samples.gather(part, rows)
        for index in self._nodes:
            values[index] = self._apply(index, values)
        terms = values[self._terms.node]
        counted = len(terms) // self.batch * count
        loss = TABLE[self._loss.op].law(self._loss.attrs, [terms[:counted]])
        if self._logits is None:
            return int(loss), 0, 0
        guesses = np.argmax(values[self._logits.node][:counted], axis=1)
        labels = values[self._parts["y"].node].reshape(-1)[:counted]
        ignored = find_ignored(self._graph)
        kept = labels != ignored if ignored is not None else np.ones(len(labels), np.bool_)
        right = int(np.count_nonzero((guesses == labels) & kept))
        return int(loss), right, int(np.count_nonzero(~kept))

    def _apply(self, index: int, values: Mapping[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        node = self._graph.nodes[index]
        if node.op == "dropout_mask":
            kind = node.outputs[0]
            return np.full(kind.shape, 1 << kind.exponent, np.int16)
        inputs = [values[ref.node] for ref in node.inputs]
        if index in self._means:
            return use_mean(self._graph, index, inputs[0], self._state[self._means[index]])
        if index in self._variances:
            return use_variance(self._graph, index, self._state[self._variances[index]])
        return self._apply_node(node, inputs, self._state, self._samples)

    def _find_logits(self) -> tuple[Ref | None, int | None]:
        """The int16 logits under a cross-entropy, and how many classes they are of."""
        for node in self._graph.nodes:
            if node.op == "cross_entropy":
                logits = self._graph.nodes[node.inputs[0].node].inputs[0]
                return logits, self._graph.type_of(logits).shape[1]
        return None, None

    def _ancestors(self, wanted: Iterable[Ref]) -> list[int]:
        """Nodes that ``wanted`` depend on, in order, not going back beyond the batch."""
        needed = {ref.node for ref in wanted}
        batch = {ref.node for ref in self._parts.values()}
        for index in range(max(needed), -1, -1):
            if index in needed and index not in batch:
                needed.update(ref.node for ref in self._graph.nodes[index].inputs)
        return sorted(needed)

    def _descendants(self) -> set[int]:
        """Nodes that depend on the batch, itself left out."""
        batch = {ref.node for ref in self._parts.values()}
        varying: set[int] = set()
        for index, node in enumerate(self._graph.nodes):
            if any(ref.node in varying or ref.node in batch for ref in node.inputs):
                varying.add(index)
        return varying
