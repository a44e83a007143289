"""A solver that does one false step and is honest in everything else.

It keeps the log, the checkpoints and the signature as an honest solver would, all consistent with
its false state: only doing the step again shows the fraud.  Each cheat is a function that does the
next step of a session falsely and returns what the solver logs of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.commit.state import compute_root_of_state
from vtrain.demo.lies import Lies, LyingSession, add_one
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session, resolve_engine
from vtrain.errors import RunError
from vtrain.graph.evaluate import apply_node
from vtrain.graph.step import STEP_STATE
from vtrain.train.kzg import KzgRecorder
from vtrain.train.store import Tally, open_run
from vtrain.wire.claim import Claim
from vtrain.wire.graph import Node
from vtrain.wire.record import StepRecord

if TYPE_CHECKING:
    from vtrain.train.task import CompiledTask

State = dict[str, npt.NDArray[Any]]
Cheat = Callable[["CompiledTask", Session], StepRecord]
_GRADIENT_READERS = frozenset({"adam_mean", "momentum"})


def skip_step(task: CompiledTask, session: Session) -> StepRecord:
    """Log the step, but leave the weights as they were: the work of the update is saved.

    Loss and batch digest are true; the state root is that of the old weights.
    """
    before = session.read_state()
    record = session.step()
    return _go_on(task, session, record, before)


def alter_gradient(task: CompiledTask, session: Session) -> StepRecord:
    """Add one unit in the last place to one element of one gradient.

    The gradient is what enters the optimizer: the exact int64 accumulator that SGD rounds to the 16
    fraction bits of a momentum, or the int16 gradient of AdamW and Lion.  In most elements of an
    accumulator one unit vanishes in that rounding: the step is then the honest step, and there is
    nothing to catch.  So the element is one where it does not: the first, in the order of the
    graph, that a single unit carries over a rounding boundary.
    """
    step = int(session.read_state()[STEP_STATE]) + 1
    for node in list_gradient_readers(task):
        average, gradient = (ref.node for ref in node.inputs)
        element = find_felt_element(task, node, *session.evaluate_all([average, gradient]))
        if element is not None:
            return LyingSession(task, Lies({(step, gradient): add_one(element)}), session).step()
    raise RunError("no element of a gradient feels one unit in this step", where="cheat")


def list_gradient_readers(task: CompiledTask) -> list[Node]:
    """The nodes, one for each parameter, that a gradient enters the optimizer by: with an average
    of those before it, which is their first input."""
    return [node for node in task.graph.nodes if node.op in _GRADIENT_READERS]


def find_felt_element(
    task: CompiledTask, node: Node, average: npt.NDArray[Any], gradient: npt.NDArray[Any]
) -> int | None:
    """The first element of ``gradient`` of which one unit more changes what ``node`` puts out.

    ``node`` is one of :func:`list_gradient_readers`, which the two enter.  None when all units
    vanish in its rounding.
    """
    moved = apply_node(node, [average, gradient + 1], {}, task.samples)
    felt = np.flatnonzero(moved != apply_node(node, [average, gradient], {}, task.samples))
    return int(felt[0]) if felt.size else None


def swap_batch(task: CompiledTask, session: Session) -> StepRecord:
    """Train on the batch of the step after, and log the digest of the batch that was due."""
    before = session.read_state()
    due = session.step()
    record, after = _train_on_next_batch(session, before)
    return _go_on(task, session, replace(record, batch_digest=due.batch_digest), after)


def swap_batch_openly(task: CompiledTask, session: Session) -> StepRecord:
    """Train on the batch of the step after, and log the digest of that batch."""
    before = session.read_state()
    record, after = _train_on_next_batch(session, before)
    return _go_on(task, session, record, after)


CHEATS: Mapping[str, Cheat] = {
    "a skipped step": skip_step,
    "one gradient element altered by one unit in the last place": alter_gradient,
    "a swapped batch": swap_batch,
}
"""The cheats that the demo shows."""


def train_falsely(
    task: CompiledTask,
    out: Path,
    *,
    key: PrivateKey,
    cheat: Cheat,
    step: int,
    engine: str = "auto",
) -> None:
    """Train ``task`` into the new folder ``out``, doing ``step`` (from 1) by ``cheat``.

    KZG commitments, where the task asks for them, are those to the false tensors.
    """
    spec = task.spec
    kzg = KzgRecorder(spec, task.graph, task.samples, task.kzg) if spec.kzg else None
    engine = resolve_engine(engine)
    session = open_session(engine, task.graph, task.samples)
    session.load_state(task.initial_state)
    with open_run(out, task) as run:
        if kzg is not None:
            kzg.keys.hiding = run.hiding
        for number in range(1, spec.steps + 1):
            logged = kzg if kzg is not None and kzg.is_due(number) else None
            before = logged.commit_before(number, session) if logged else None
            run.append(cheat(task, session) if number == step else session.step())
            if logged and before:
                run.append_kzg(logged.make_record(number, before, session))
            if number % spec.checkpoint_every == 0 or number == spec.steps:
                run.commit(session.read_state(), Tally(engine, number, {}))
        kzg_root = run.kzg.root() if run.kzg else b""
        solver, log = public_key(key), run.log
        claim = Claim(run.run_id, solver, task.task_id, log.size, log.root(), kzg_root)
        run.write_claim(sign_claim(claim, key))


def _go_on(
    task: CompiledTask, session: Session, record: StepRecord, state: Mapping[str, npt.NDArray[Any]]
) -> StepRecord:
    """Go on from a false ``state`` as if it were that after the step of ``record``."""
    after = {**state, STEP_STATE: np.asarray(record.step, dtype=np.int64)}
    session.load_state(after)
    commits = record.step % task.spec.commit_every == 0
    root = compute_root_of_state(task.graph, after) if commits else b""
    return replace(record, state_root=root)


def _train_on_next_batch(session: Session, before: State) -> tuple[StepRecord, State]:
    """The step from ``before`` on the batch of the following step: record and state."""
    step = int(before[STEP_STATE]) + 1
    session.load_state({**before, STEP_STATE: np.asarray(step, dtype=np.int64)})
    record = session.step()
    return replace(record, step=step), session.read_state()
