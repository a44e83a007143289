"""vtrain: training runs in exact integers, committed to and checkable by anyone.

The three calls of a notebook::

    task = vtrain.compile("examples/mnist/mlp.toml")
    run = vtrain.train(task, "runs/mlp", key=vtrain.load_key("solver.pem"))
    report = vtrain.verify("runs/mlp", samples=5)

They do what the commands of the same names do.  ``vtrain.from_torch`` makes a task of a PyTorch
module, and ``run.state_dict()`` gives its weights back.  Everything below them is importable from
its room:
``vtrain.graph``, ``vtrain.engines``, ``vtrain.commit``, ``vtrain.audit``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import vtrain.train  # noqa: F401 - the room, bound first: `train` below takes its name here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from vtrain.audit.beacon import BeaconDraw
    from vtrain.audit.plan import Wanted
    from vtrain.errors import UnsupportedError
    from vtrain.graph.calibration import Calibration
    from vtrain.train.runner import Progress, RunSummary
    from vtrain.train.task import CompiledTask
    from vtrain.train.torch_hooks.back import StateDict
    from vtrain.train.torch_hooks.front import Module
    from vtrain.wire.report import Report

    __version__: str

__all__ = [
    "CompiledTask",
    "UnsupportedError",
    "__version__",
    "compile",
    "from_torch",
    "load_key",
    "profile",
    "state_dict",
    "train",
    "verify",
]

# The imports below are inside the functions so that `import vtrain` and `vtrain --help` stay quick,
# and so that the command line can say what it lacks where they fail.


_LATE = {
    "CompiledTask": "vtrain.train.task",
    "UnsupportedError": "vtrain.errors",
    "__version__": "vtrain._core",
}
"""Names that other rooms have, and those rooms."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'vtrain' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)


def compile(task: str | Path) -> CompiledTask:
    """Turn a task file into its step graph and canonical spec; proves every range on the way.

    ``task`` is the path of a TOML file (docs/tasks.md) that has its exponents.  Raises TaskError,
    ModelError, DataError or RangeError, each naming the place.
    """
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.train.task import compile_task, load_task

    return compile_task(load_task(Path(task)), CommitKey)


def from_torch(
    module: Module,
    example_inputs: object,
    *,
    data: object,
    loss: object,
    optimizer: object,
    scheduler: object = None,
    batch: int,
    steps: int | None = None,
    epochs: int | None = None,
    test: object | None = None,
    validation: float | None = None,
    stride: int = 1,
    columns: tuple[str, str] | None = None,
    vocabulary: int | None = None,
    output: str | int | None = None,
    name: str | None = None,
    seed: int = 0,
    commit_every: int = 1,
    checkpoint_every: int | None = None,
    clip_norm: float | None = None,
    end_of_text: int | None = None,
    attention_crosses: bool = False,
    padding: int | None = None,
    margin: int = 3,
    gradient_margin: int | None = None,
    symmetric_gradients: bool | None = None,
    fine_gradients: bool | None = None,
    wide_sums: bool | None = None,
    calibration_steps: int = 20,
    exponents: Mapping[str, int] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> CompiledTask:
    """Make a task of a PyTorch module, as it stands: its weights are the initial state.

    ``example_inputs`` is a tensor [batch, ...], a tuple, or a dict of arguments by name, of which
    one is a tensor; ``output`` names the output to train by where there are several.  ``data`` and
    ``test`` are (inputs, targets), one array of tokens (of which samples are windows, ``stride``
    apart, and ``validation`` holds a share out), a dict of arrays, or a Dataset of torch or Hugging
    Face, of which ``columns`` names inputs and targets.  ``loss`` is ``nn.CrossEntropyLoss()``,
    ``nn.MSELoss()``, a function of torch.nn.functional or a name of docs/tasks.md; ``optimizer`` an
    instance of SGD or AdamW, with groups; ``scheduler`` one of torch.optim.lr_scheduler that is
    stepped once a step.  ``steps`` or ``epochs`` says how long.  The others are keys of a task file
    (docs/tasks.md).  Parameters that require no gradient, or are in no group, stay frozen.

    The exponents are calibrated unless ``exponents`` gives them; ``progress`` (what, done, total)
    hears of it (default: a bar on stderr, where that is a terminal).

    Needs the extra torch.  UnsupportedError lists everything that cannot be had, each with its
    path, the reason and what would do instead.  TaskError, ModelError, DataError or RangeError as
    of :func:`compile`.
    """
    _require_torch("from_torch")
    from vtrain.train.progress import show_progress
    from vtrain.train.torch_hooks.front import Settings
    from vtrain.train.torch_hooks.front import from_torch as make

    with show_progress(progress) as show:
        return make(
            module,
            example_inputs,
            data=data,
            loss=loss,
            optimizer=optimizer,
            scheduler=scheduler,
            batch=batch,
            steps=steps,
            epochs=epochs,
            test=test,
            validation=validation,
            stride=stride,
            columns=columns,
            vocabulary=vocabulary,
            output=output,
            exponents=exponents,
            settings=Settings(
                name=name,
                seed=seed,
                commit_every=commit_every,
                checkpoint_every=checkpoint_every,
                clip_norm=clip_norm,
                end_of_text=end_of_text,
                attention_crosses=attention_crosses,
                padding=padding,
                margin=margin,
                gradient_margin=gradient_margin,
                symmetric_gradients=symmetric_gradients,
                fine_gradients=fine_gradients,
                wide_sums=wide_sums,
                calibration_steps=calibration_steps,
            ),
            progress=show,
        )


def state_dict(run: str | Path, step: int | None = None) -> StateDict:
    """The trained weights in a run directory, for the ``load_state_dict`` of the module that its
    task was made of; of the last checkpoint unless ``step`` names one.

    They are those that the run's signed claim commits to.  Needs the extra torch.  Raises as of
    :func:`vtrain.train.deliver.export_run`.
    """
    _require_torch("state_dict")
    from vtrain.train.torch_hooks.back import read_state_dict

    return read_state_dict(Path(run), step)


def _require_torch(where: str) -> None:
    from importlib.util import find_spec

    from vtrain.errors import MissingExtraError

    if find_spec("torch") is None:
        raise MissingExtraError('needs torch: pip install "vtrain[torch]"', where=where)


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
    key: Ed25519PrivateKey | str | Path | None = None,
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
    ``key`` is a key as of :func:`load_key` or the path of its file; without one it is the user's
    own, as on the command line, which is made on first use.  SignatureError for any other.
    """
    from vtrain.cli.train import load_or_make_key
    from vtrain.engines.saving import Saving
    from vtrain.train.runner import check_key
    from vtrain.train.runner import train as run
    from vtrain.train.task import CompiledTask

    if key is None or isinstance(key, str | Path):
        key = load_or_make_key(None if key is None else Path(key))
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
    store_options: Mapping[str, str] | None = None,
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
    ``run`` may be the URL of a store in which a run was published (docs/publishing.md), with
    ``store_options`` of an object store: then only what the draw asks for is fetched and checked.

    A found fraud is a verdict, not an exception: ``report.verdict``, or ``report.exit_code`` (0
    verified, 10 fraud, 3 inconclusive, 4 conditional); a report is true only when verified, and
    ``report.raise_for_verdict()`` raises for any other.  RunError for an argument that is none (an
    id or seed that is not bytes, an unknown engine, no such folder); NotProducedError,
    EncodingError, SignatureError for a file that holds no claim; BeaconError and TimestampError for
    a beacon or a token that is not of this claim; MissingExtraError, DeviceError or KernelError
    when engine cuda cannot be used here, MissingExtraError for what a beacon or a store needs.
    """
    from contextlib import ExitStack

    from vtrain.audit.pin import make_pin
    from vtrain.audit.verify import verify as audit
    from vtrain.engines.saving import Saving
    from vtrain.prove.backend.kzg import CommitKey

    with ExitStack() as stack:
        published = None
        if isinstance(run, str) and "://" in run:
            from vtrain.audit.published import open_published

            published = stack.enter_context(open_published(run, store_options))
        return audit(
            published.root if published is not None else Path(run),
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
            published=published,
        )
