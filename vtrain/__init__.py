"""vtrain: training runs in exact integers, committed to and checkable by anyone.

The three calls of a notebook::

    task = vtrain.compile("examples/mnist/mlp.toml")
    run = vtrain.train(task, "runs/mlp", key=vtrain.load_key("solver.pem"))
    report = vtrain.verify("runs/mlp", samples=5)

They do what the commands of the same names do.  Everything below them is importable from its room:
``vtrain.graph``, ``vtrain.engines``, ``vtrain.commit``, ``vtrain.audit``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import vtrain.train  # noqa: F401 - the room, bound first: `train` below takes its name here

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from vtrain.audit.beacon import BeaconDraw
    from vtrain.audit.plan import Wanted
    from vtrain.graph.calibration import Calibration
    from vtrain.train.runner import Progress, RunSummary
    from vtrain.train.task import CompiledTask
    from vtrain.wire.report import Report

    __version__: str

__all__ = ["__version__", "compile", "load_key", "profile", "train", "verify"]

# The imports below are inside the functions so that `import vtrain` and `vtrain --help` stay quick,
# and so that the command line can say what it lacks where they fail.


def __getattr__(name: str) -> str:
    """``vtrain.__version__``, which the compiled core has."""
    if name != "__version__":
        raise AttributeError(f"module 'vtrain' has no attribute {name!r}")
    from vtrain._core import __version__ as version

    return version


def compile(task: str | Path) -> CompiledTask:
    """Turn a task file into its step graph and canonical spec; proves every range on the way.

    ``task`` is the path of a TOML file (docs/tasks.md) that has its exponents.  Raises TaskError,
    ModelError, DataError or RangeError, each naming the place.
    """
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.train.task import compile_task, load_task

    return compile_task(load_task(Path(task)), CommitKey)


def profile(task: str | Path, *, write: bool = True) -> Calibration:
    """Calibrate the exponents of a task file by its first steps; ``write`` them into the file."""
    from vtrain.engines.registry import choose_evaluator
    from vtrain.train.task import load_task, profile_task, write_exponents

    path = Path(task)
    calibration = profile_task(load_task(path), open_evaluator=choose_evaluator("auto"))
    if write:
        write_exponents(path, calibration.exponents)
    return calibration


def load_key(path: str | Path) -> Ed25519PrivateKey:
    """The solver's signing key from a PEM file (`vtrain key new` makes one); SignatureError."""
    from vtrain.attest.keys import load_key as load

    return load(Path(path))


def train(
    task: CompiledTask | str | Path,
    out: str | Path,
    *,
    key: Ed25519PrivateKey,
    engine: str = "auto",
    steps: int | None = None,
    threads: int = 0,
    selfcheck_every: int = 0,
    accumulate: int = 1,
    recompute: bool = False,
    keep_data: bool = True,
    progress: Progress | None = None,
) -> RunSummary:
    """Train ``task`` into the run directory ``out``, or go on with the run that is there.

    ``steps`` stops early (default: the task's). ``threads`` = 0 takes every core; RunError for more
    than ``vtrain.limits.most_threads``. With engine cuda, ``selfcheck_every`` > 0 repeats the
    self-check of its kernels after so many steps.  ``accumulate`` does each batch in so many equal
    parts, and ``recompute`` the forward pass twice: both take less memory and change no bit.
    GraphError for a batch that has no such parts.
    Without ``keep_data`` the samples stay out of the run, and its auditor brings them.  Raises
    RunError when ``out`` holds a run of another task or another process trains into it,
    StorageError when a file cannot be written; what was committed by then stays valid, and the same
    call resumes.  MissingExtraError, DeviceError or KernelError when engine cuda cannot be used
    here, and nothing in ``out`` has changed; KernelError also when a GPU fails later.
    SignatureError when ``key`` is anything but a key as of :func:`load_key`.
    """
    from vtrain.engines.saving import Saving
    from vtrain.train.runner import check_key
    from vtrain.train.runner import train as run
    from vtrain.train.task import CompiledTask

    check_key(key)
    compiled = task if isinstance(task, CompiledTask) else compile(task)
    return run(
        compiled,
        Path(out),
        key=key,
        engine=engine,
        steps=steps,
        threads=threads,
        selfcheck_every=selfcheck_every,
        saving=Saving(accumulate, recompute),
        keep_data=keep_data,
        progress=progress,
    )


def verify(
    run: str | Path,
    *,
    samples: int | None = None,
    all: bool = False,
    seed: bytes | None = None,
    claim: bytes | str | Path | None = None,
    solver: bytes | None = None,
    task_id: bytes | None = None,
    data: str | Path | None = None,
    engine: str = "auto",
    threads: int = 0,
    accumulate: int = 1,
    recompute: bool = False,
    srs: str | Path | None = None,
    beacon: BeaconDraw | None = None,
    wanted: Wanted | None = None,
) -> Report:
    """Audit a run directory: structure in full, then replay of sampled stretches (or ``all``; with
    ``samples`` = 0 of none).

    ``task_id`` is the id agreed on and ``solver`` the key that must have signed (32 bytes each);
    without them the report says that they were taken from the run.  ``claim`` pins the claim: the
    digest that `vtrain claim` shows, or the file in which it kept the claim.  ``seed`` replaces
    fresh randomness; without a claim pinned before it existed it is predictable, and so the verdict
    at most "conditional".  ``data`` names the sample table when the run does not carry it.  ``srs``
    is the SRS file of a task with KZG commitments: those of replayed steps are then compared with
    the tensors.  ``accumulate`` and ``recompute`` save memory as in :func:`train`.  ``beacon``
    (``vtrain.audit.beacon.make_draw``) draws by a round of drand in place of a seed, and ``wanted``
    (``vtrain.audit.plan.Wanted``) as many stretches as a probability takes in place of ``samples``.

    A found fraud is a verdict, not an exception: ``report.verdict``, or ``report.exit_code`` (0
    verified, 10 fraud, 3 inconclusive, 4 conditional); a report is true only when verified, and
    ``report.raise_for_verdict()`` raises for any other.  RunError for an argument that is none (an
    id or seed that is not bytes, an unknown engine, no such folder); NotProducedError,
    EncodingError, SignatureError for a file that holds no claim; BeaconError and TimestampError for
    a beacon or a token that is not of this claim; MissingExtraError, DeviceError or KernelError
    when engine cuda cannot be used here, MissingExtraError for what a beacon needs.
    """
    from vtrain.audit.pin import make_pin
    from vtrain.audit.verify import verify as audit
    from vtrain.engines.saving import Saving
    from vtrain.prove.backend.kzg import CommitKey

    return audit(
        Path(run),
        samples=samples,
        all_=all,
        seed=seed,
        pin=None if claim is None else make_pin(claim),
        solver=solver,
        task_id=task_id,
        data=Path(data) if data is not None else None,
        engine=engine,
        threads=threads,
        saving=Saving(accumulate, recompute),
        srs=Path(srs) if srs is not None else None,
        open_key=CommitKey,
        beacon=beacon,
        wanted=wanted,
    )
