"""The training step as one graph: batch, forward, loss, backward, update, commitment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtrain.errors import TaskError
from vtrain.graph.activation import LOG2_E, LOG2_E_EXPONENT
from vtrain.graph.autodiff import compute_gradients
from vtrain.graph.builder import GraphBuilder
from vtrain.graph.model import Masks, Model, emit_forward
from vtrain.graph.update import (
    Clip,
    Momentum,
    Optimizer,
    Parameter,
    State,
    momentum_state,
    param_state,
)
from vtrain.spec.number import (
    LOG2_EXPONENT,
    LOSS_EXPONENT,
    MASTER_EXPONENT,
)
from vtrain.wire.graph import Ref, StepGraph
from vtrain.wire.task import DataSpec

__all__ = [
    "APART",
    "FEW_CLASSES",
    "LOSSES",
    "STEP_STATE",
    "Affine",
    "Ids",
    "Momentum",
    "OneHot",
    "State",
    "StepPlan",
    "compute_initial_state",
    "count_terms",
    "emit_batch",
    "emit_log2_logits",
    "emit_prepare",
    "emit_state_root",
    "emit_step",
    "find_ignored",
    "momentum_state",
    "param_state",
]


@dataclass(frozen=True)
class Affine:
    """Preparation of samples: x -> sat16(rs(x * multiplier + offset, shift)) at ``exponent``."""

    multiplier: int
    offset: int
    shift: int
    exponent: int


@dataclass(frozen=True)
class OneHot:
    """Preparation of tokens: each becomes ``depth`` elements, 1.0 at its place."""

    depth: int


@dataclass(frozen=True)
class Ids:
    """No preparation: samples are whole numbers, which the model looks up in tables."""


@dataclass(frozen=True)
class StepPlan:
    """What a step graph is built from, besides exponents and the model.

    Parameters that are ``frozen`` stay as they are, or as the forward pass leaves them: they have
    no gradient and no state but their weights.  Weight decay leaves those in ``no_decay`` alone.
    Labels that are ``ignored`` have no loss and no gradient; the cross-entropy alone may have such.
    ``symmetric_gradients``, ``fine_gradients`` and ``wide_sums`` as
    :class:`~vtrain.graph.builder.GraphBuilder` has them.
    """

    data: DataSpec
    prepare: Affine | OneHot | Ids
    loss: str
    optimizer: Optimizer
    seed: int
    batch: int
    commit_every: int
    no_decay: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()
    clip: Clip | None = None
    ignored: int | None = None
    symmetric_gradients: bool = False
    fine_gradients: bool = False
    wide_sums: bool = False


def count_terms(loss: str, data: DataSpec, batch: int) -> int:
    """Terms of a batch that the mean gradient is the mean of: labels, or for MSE samples."""
    return batch * (math.prod(data.y_shape) if loss == "cross_entropy" else 1)


FEW_CLASSES = 1024
"""With more, a gradient of 14 fraction bits has under 4 bits of an equal share, and there is one of
29."""
APART = "loss/apart_from_ignored"
"""Name of the node that has the differences of labels and the one that is ignored: of them the sign
alone counts, so that it may clamp as it likes."""
STEP_STATE = "step"
"""State name of the step counter."""


def compute_initial_state(
    params: Mapping[str, npt.NDArray[np.int32]],
    optimizer: Optimizer | None = None,
    frozen: Set[str] = frozenset(),
) -> State:
    """State before step 0: master weights as imported, the rest and the counter zero.

    Without an ``optimizer`` it is that of :class:`Momentum`.
    """
    kind = Momentum(0, (0,), (0,), 0) if optimizer is None else optimizer
    state: State = {STEP_STATE: np.zeros((), dtype=np.int64)}
    for name, values in params.items():
        state[param_state(name)] = values
        if name not in frozen:
            state |= kind.make_states(name, values)
    return state


def emit_step(b: GraphBuilder, plan: StepPlan, model: Model) -> None:
    """Emit the whole step into ``b``: state, batch, forward, loss, backward, update, record."""
    b.fine_gradients = plan.fine_gradients
    b.wide_sums = plan.wide_sums
    t = b.emit("state", STEP_STATE, (), name=STEP_STATE, dtype="i64", shape=(), exponent=0)
    params: dict[str, Ref] = {}
    early: dict[str, Ref | None] = {}
    for name, values in model.params.items():
        state = param_state(name)
        params[name] = b.emit(
            "state",
            state,
            (),
            name=state,
            dtype="i32",
            shape=values.shape,
            exponent=MASTER_EXPONENT,
        )
        if name not in plan.frozen:
            early[name] = plan.optimizer.read_early(b, name, params[name])

    x, y = emit_batch(b, plan, t)
    batch_digest = b.emit(
        "batch_digest",
        "batch_digest",
        [b.emit("tensor_digest", f"{part}/digest", (ref,)) for part, ref in (("x", x), ("y", y))],
    )
    masks = Masks(t, _encode_seed(plan))
    statistics: dict[str, Ref] = {}
    prepared = emit_prepare(b, plan.prepare, x)
    logits = emit_forward(b, model, prepared, params, masks, x, statistics)
    loss, seed = _LOSSES[plan.loss](b, logits, y, plan.ignored)
    b.symmetric_gradients = plan.symmetric_gradients
    found = compute_gradients(b, logits, seed, [params[name] for name in early])
    gradients = {name: found[params[name]] for name in early}
    if plan.clip is not None:
        gradients = plan.clip.emit(b, gradients)

    rate = plan.optimizer.schedule.emit(b, t)
    after: dict[str, Ref] = {STEP_STATE: b.emit("increment", "step/next", (t,))}
    trained = [
        Parameter(name, params[name], gradients[name], name not in plan.no_decay, ref)
        for name, ref in early.items()
    ]
    after |= plan.optimizer.emit(b, t, rate, trained)
    kept = params | statistics
    after |= {param_state(name): kept[name] for name in sorted(plan.frozen)}
    for name, ref in after.items():
        b.emit("next_state", f"next/{name}", (ref,), name=name)
    root = emit_state_root(b, after)
    inputs = (after[STEP_STATE], batch_digest, loss, root)
    b.emit("record", "record", inputs, commit_every=plan.commit_every)


def _encode_seed(plan: StepPlan) -> bytes:
    return plan.seed.to_bytes(8, "little")


def emit_batch(b: GraphBuilder, plan: StepPlan, t: Ref) -> tuple[Ref, Ref]:
    """Raw samples of step ``t``: x [batch, ...] and y [batch, ...] as committed."""
    data = plan.data
    index = b.emit(
        "sample_index",
        "sample_index",
        (t,),
        seed=_encode_seed(plan),
        samples=data.samples,
        batch=plan.batch,
    )
    parts = (
        ("x", data.x_dtype, data.x_shape, data.x_exponent),
        ("y", data.y_dtype, data.y_shape, data.y_exponent),
    )
    x, y = (
        b.emit(
            "gather_samples", part, (index,), part=part, dtype=dtype, shape=shape, exponent=exponent
        )
        for part, dtype, shape, exponent in parts
    )
    return x, y


def emit_prepare(b: GraphBuilder, prepare: Affine | OneHot | Ids, x: Ref) -> Ref:
    """Raw samples -> int16 operands, or what they are."""
    if isinstance(prepare, Ids):
        return x
    if isinstance(prepare, OneHot):
        return b.emit("one_hot", "x/prepared", (x,), depth=prepare.depth)
    return b.emit(
        "normalize",
        "x/prepared",
        (x,),
        multiplier=prepare.multiplier,
        offset=prepare.offset,
        shift=prepare.shift,
        exponent=prepare.exponent,
    )


def emit_log2_logits(b: GraphBuilder, logits: Ref) -> Ref:
    """int16 logits in nats -> int32 in the base-2 log domain with 10 fraction bits."""
    return b.rescale(
        "loss/log2_logits",
        logits,
        LOG2_EXPONENT,
        dtype="i32",
        multiplier=LOG2_E,
        multiplier_exponent=LOG2_E_EXPONENT,
    )


def find_ignored(graph: StepGraph) -> int | None:
    """The label that the loss of a step ignores, if any."""
    found = next((node for node in graph.nodes if node.name == APART), None)
    return None if found is None else -int(str(found.attrs["offset"]))


def _emit_counted(b: GraphBuilder, labels: Ref, ignored: int) -> Ref:
    """1 for each label that counts, 0 for one that is ignored: the square of a sign."""
    apart = b.emit(
        "normalize", APART, (labels,), multiplier=1, offset=-ignored, shift=0, exponent=0
    )
    sign = b.emit("sign", "loss/side", (apart,))
    return b.emit("mul", "loss/counted", (sign, sign))


def _emit_cross_entropy(
    b: GraphBuilder, logits: Ref, labels: Ref, ignored: int | None = None
) -> tuple[Ref, Ref]:
    """Loss = sum over all labels; a sample may have many, as each place of a sequence has."""
    shape, labels_type = b.type_of(logits).shape, b.type_of(labels)
    if len(shape) < 2 or labels_type.shape != shape[:-1]:
        raise TaskError(
            f"cross-entropy needs logits [batch, ..., classes] and a label [batch, ...] each; "
            f"logits are {shape}, labels {labels_type.shape}",
            where="loss",
        )
    many = len(shape) > 2
    if many:
        rows = labels_type.size
        logits = b.emit("reshape", "loss/logits", (logits,), shape=(rows, shape[-1]))
        labels = b.emit("reshape", "loss/labels", (labels,), shape=(rows,))
    z = emit_log2_logits(b, logits)
    maximum = b.emit("row_max", "loss/max", (z,))
    e = b.emit("exp2_diff", "loss/exp", (z, maximum))
    total = b.emit("row_sum", "loss/sum", (e,))
    if shape[-1] <= FEW_CLASSES:
        p = b.emit("divide", "loss/probabilities", (e, total))
    terms = b.emit("cross_entropy", "loss/rows", (z, maximum, total, labels))
    counted = None
    if ignored is not None:
        counted = _emit_counted(b, labels, ignored)
        terms = b.emit("mul", "loss/counted_rows", (terms, counted))
    loss = b.emit("sum", "loss", (terms,))
    if shape[-1] > FEW_CLASSES:
        gradient = b.emit("logit_grad", "loss/grad", (e, total, labels))
    else:
        gradient = b.emit("sub_one_hot", "loss/grad", (p, labels))
    if counted is not None:
        dtype, exponent = b.type_of(gradient).dtype, b.type_of(gradient).exponent
        kept = b.emit("row_scale", "loss/grad_kept", (gradient, counted))
        gradient = b.rescale("loss/grad_counted", kept, exponent, dtype=dtype)
    if many:
        gradient = b.emit("reshape", "loss/grad_places", (gradient,), shape=shape)
    return loss, gradient


def keeps_order(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether elements of one shape may be taken, in their order, for those of another: the axes
    are the same but for extents of 1, or one of the two is a row of all elements."""
    one, other = (tuple(extent for extent in shape if extent != 1) for shape in (found, wanted))
    return one == other or (math.prod(one) == math.prod(other) and min(len(one), len(other)) <= 1)


def _emit_mse(
    b: GraphBuilder, outputs: Ref, targets: Ref, ignored: int | None = None
) -> tuple[Ref, Ref]:
    """Loss = sum of (out - target)^2; the gradient is out - target (the 2 is in the rate)."""
    if ignored is not None:
        raise TaskError("cross_entropy alone ignores labels", where="model.ignore")
    out, target = b.type_of(outputs), b.type_of(targets)
    if out.size != target.size:
        raise TaskError(
            f"MSE needs targets as large as the outputs; {target.shape} and {out.shape}",
            where="loss",
        )
    if not keeps_order(target.shape[1:], out.shape[1:]):
        raise TaskError(
            f"MSE needs targets with the axes of the outputs, in their order: {target.shape} and "
            f"{out.shape} have as many elements, and which belongs to which is not clear",
            where="loss",
        )
    aligned = b.emit("reshape", "loss/targets", (targets,), shape=out.shape)
    finest = max(out.exponent, target.exponent)
    difference = b.emit(
        "sub",
        "loss/difference",
        (outputs, aligned),
        shift_a=finest - out.exponent,
        shift_b=finest - target.exponent,
    )
    gradient = b.as_operand(difference, "loss/grad")
    shift = 2 * b.type_of(gradient).exponent - LOSS_EXPONENT
    return b.emit("square_sum", "loss", (gradient,), shift=shift), gradient


_LOSSES = {"cross_entropy": _emit_cross_entropy, "mse": _emit_mse}
LOSSES = tuple(_LOSSES)
"""Names of the losses a task may ask for."""


def emit_state_root(b: GraphBuilder, states: Mapping[str, Ref]) -> Ref:
    """Digest, leaf and root over the named tensors, in UTF-8 order of their names."""
    leaves = []
    for name in sorted(states, key=lambda text: text.encode()):
        tensor = b.type_of(states[name])
        digest = b.emit("tensor_digest", f"digest/{name}", (states[name],))
        leaves.append(
            b.emit(
                "state_leaf",
                f"leaf/{name}",
                (digest,),
                name=name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                exponent=tensor.exponent,
            )
        )
    return b.emit("state_root", "state_root", leaves)
