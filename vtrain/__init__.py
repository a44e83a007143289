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
from types import ModuleType
from typing import TYPE_CHECKING, Any

import vtrain.train  # noqa: F401 - the room, bound first: `train` below takes its name here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from matplotlib.figure import Figure

    from vtrain.audit.beacon import BeaconDraw
    from vtrain.audit.plan import Wanted
    from vtrain.errors import UnsupportedError, VtrainError
    from vtrain.graph.calibration import Calibration
    from vtrain.train.deliver import Evaluation
    from vtrain.train.history import Entry
    from vtrain.train.inspect import RunInfo
    from vtrain.train.runner import RunSummary
    from vtrain.train.task import CompiledTask
    from vtrain.train.torch_hooks.attest import AttestCallback
    from vtrain.train.torch_hooks.back import StateDict
    from vtrain.train.torch_hooks.front import Module
    from vtrain.train.watch import Callback, Progress
    from vtrain.wire.report import Report

    __version__: str

__all__ = [
    "Callback",
    "CompiledTask",
    "TensorBoard",
    "UnsupportedError",
    "VtrainError",
    "WeightsAndBiases",
    "__version__",
    "attest_callback",
    "compile",
    "evaluate",
    "export",
    "from_torch",
    "inspect",
    "load_key",
    "plot",
    "profile",
    "read_history",
    "state_dict",
    "train",
    "verify",
]

# The imports below are inside the functions so that `import vtrain` and `vtrain --help` stay quick,
# and so that the command line can say what it lacks where they fail.


_LATE = {
    "Callback": "vtrain.train.watch",
    "CompiledTask": "vtrain.train.task",
    "TensorBoard": "vtrain.train.loggers",
    "UnsupportedError": "vtrain.errors",
    "VtrainError": "vtrain.errors",
    "WeightsAndBiases": "vtrain.train.loggers",
    "__version__": "vtrain._core",
}
"""Names that other rooms have, and those rooms."""


def __dir__() -> list[str]:
    rooms = {name for name, value in globals().items() if isinstance(value, ModuleType)}
    own = {name for name in globals() if name.startswith("__")}
    return sorted(own | {*__all__} | (rooms - {"vtrain"}))


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'vtrain' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)


def compile(
    task: str | Path | Mapping[str, Any], *, progress: Callable[[str, int, int], None] | None = None
) -> CompiledTask:
    """Turn a task into its step graph and canonical spec; proves every range on the way.

    ``task`` is the path of a TOML file (docs/tasks.md) that has its exponents, or a dict of what
    such a file says: paths in it are relative to the working directory, and exponents that it does
    not have are calibrated (``progress`` as of :func:`from_torch`).  Raises TaskError, ModelError,
    DataError or RangeError, each naming the place.
    """
    from dataclasses import replace

    from vtrain.engines.registry import choose_evaluator
    from vtrain.prove.backend.kzg import CommitKey
    from vtrain.train.progress import show_progress
    from vtrain.train.task import compile_task, load_task, profile_task, task_from_dict

    if isinstance(task, str | Path):
        return compile_task(load_task(Path(task)), CommitKey)
    file = task_from_dict(task)
    if not file.exponents:
        with show_progress(progress) as show:
            total = file.calibration_steps
            calibration = profile_task(
                file,
                lambda done: show("calibrating", done, total),
                open_evaluator=choose_evaluator("auto"),
            )
        file = replace(file, exponents=dict(calibration.exponents))
    return compile_task(file, CommitKey)


def from_torch(
    module: Module,
    example_inputs: object,
    *,
    data: object,
    loss: object,
    optimizer: object,
    scheduler: object = None,
    batch: int | None = None,
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
    calibration_steps: int | None = None,
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
    stepped once a step.  ``batch`` is how many samples a step has, and ``steps`` or ``epochs`` says
    how long.  The others are keys of a task file (docs/tasks.md).  Parameters that require no
    gradient, or are in no group, stay frozen.

    The exponents are calibrated unless ``exponents`` gives them; ``progress`` (what, done, total)
    hears of it (default: a bar on stderr, where that is a terminal).

    Needs the extra torch.  UnsupportedError lists everything that cannot be had of the module and
    of any other argument, each with its path or name, the reason and what would do instead.
    ModelError, DataError or RangeError as of :func:`compile`.
    """
    _require_torch("from_torch")
    from vtrain.train.progress import show_progress
    from vtrain.train.torch_hooks.front import from_torch as make
    from vtrain.train.torch_hooks.tables import Settings

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


def evaluate(
    run: RunSummary | str | Path,
    *,
    task: CompiledTask | str | Path | None = None,
    data: str | Path | None = None,
    step: int | None = None,
) -> Evaluation:
    """Loss and accuracy of a checkpoint of a run, the last unless ``step`` names one: on the test
    data of ``task``, on a file ``data`` of the run's own form, or else on its training data.

    The checkpoint is held against the run's signed claim first.  Errors as of
    :func:`vtrain.train.deliver.load_held_out` and :func:`vtrain.train.deliver.export_run`.
    """
    from vtrain.train.deliver import evaluate_run, load_held_out

    folder = _path_of(run)
    named = Path(task) if isinstance(task, str | Path) else task
    samples, _ = load_held_out(folder, named, None if data is None else Path(data))
    return evaluate_run(folder, samples, step)


def export(
    run: RunSummary | str | Path,
    out: str | Path,
    *,
    step: int | None = None,
    hub: bool = False,
    module: Module | None = None,
    name: str | None = None,
) -> tuple[Path, Path]:
    """Write the weights of a run as floats into the folder ``out``: an ONNX model and safetensors
    under the module's names; the paths of the two.

    With ``hub`` the folder is new, and ready for a hub of models: with a model card that says task
    id, root and how to verify, the claim, and the configuration of ``module`` where that is one of
    transformers.  The card's title is ``name``, by default that of the task, and of the folder for
    a run that is given by its path.  Errors as of :func:`vtrain.train.deliver.export_run`.
    """
    from vtrain.train.deliver import export_run
    from vtrain.train.hub import export_hub

    if hub or module is not None:
        title = name or ("" if isinstance(run, str | Path) else run.name)
        return export_hub(_path_of(run), Path(out), step, module=module, name=title)
    return export_run(_path_of(run), Path(out), step)


def inspect(run: RunSummary | str | Path) -> RunInfo:
    """What a run directory says of itself; nothing is checked, which is what verify does.  Errors
    as of :func:`vtrain.train.inspect.inspect_run`."""
    from vtrain.train.inspect import inspect_run

    return inspect_run(_path_of(run))


def read_history(run: RunSummary | str | Path) -> tuple[Entry, ...]:
    """Each step of a run, finished or still going on: loss, learning rate, time, saturation, and
    the loss of held-out data where that was measured.  Errors as of
    :func:`vtrain.train.history.read_history`."""
    from vtrain.train.history import read_history as read

    return read(_path_of(run))


def plot(*runs: RunSummary | str | Path, out: str | Path | None = None) -> Figure:
    """Loss, learning rate, saturation and time of a step of several runs, as a figure of matplotlib
    (extra plot), written to ``out`` (.png or .svg) if that is given.  Errors as of
    :func:`vtrain.train.plot.draw_runs` and :func:`vtrain.train.plot.save_figure`."""
    from vtrain.train.plot import draw_runs, save_figure

    figure = draw_runs([_path_of(run) for run in runs])
    if out is not None:
        save_figure(figure, Path(out))
    return figure


def _path_of(run: RunSummary | str | Path) -> Path:
    return Path(run) if isinstance(run, str | Path) else run.path


def _require_torch(where: str) -> None:
    from importlib.util import find_spec

    from vtrain.errors import MissingExtraError

    if find_spec("torch") is None:
        raise MissingExtraError('needs torch: pip install "vtrain[torch]"', where=where)


def attest_callback(
    out: str | Path | None = None, *, key: Ed25519PrivateKey | str | Path | None = None
) -> AttestCallback:
    """A callback of Hugging Face's ``Trainer`` that signs what an ordinary run in floats was given,
    in which order, and what came out: ``Trainer(..., callbacks=[vtrain.attest_callback()])``.

    It writes into ``out``, by default ``attested`` in the trainer's output folder; ``key`` as of
    :func:`train`.  Such a run is attested, not replayable: :func:`verify` of the folder says so,
    and is conditional at best (docs/attested.md).  MissingExtraError without transformers.
    """
    from importlib.util import find_spec

    from vtrain.cli.train import load_or_make_key
    from vtrain.errors import MissingExtraError
    from vtrain.train.runner import check_key

    if find_spec("transformers") is None or find_spec("torch") is None:
        raise MissingExtraError(
            'needs transformers and torch: pip install "vtrain[transformers]"',
            where="attest_callback",
        )
    from vtrain.train.torch_hooks.attest import AttestCallback

    if key is None or isinstance(key, str | Path):
        key = load_or_make_key(None if key is None else Path(key))
    check_key(key)
    return AttestCallback(key, None if out is None else Path(out))


def profile(task: str | Path | Mapping[str, Any], *, write: bool = True) -> Calibration:
    """Calibrate the exponents of a task by its first steps; ``write`` them into the file, where it
    is one."""
    from vtrain.engines.registry import choose_evaluator
    from vtrain.train.task import load_task, profile_task, task_from_dict, write_exponents

    if not isinstance(task, str | Path):
        return profile_task(task_from_dict(task), open_evaluator=choose_evaluator("auto"))
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
    task: CompiledTask | str | Path | Mapping[str, Any],
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
    callbacks: Sequence[Callback] = (),
    eval_every: int = 0,
) -> RunSummary:
    """Train ``task`` into the run directory ``out``, or go on with the run that is there.

    ``task`` is a compiled one, or what :func:`compile` takes.  ``steps`` stops early (default: the
    task's). ``threads`` = 0 takes every core; RunError for more than
    ``vtrain.limits.most_threads``. With engine cuda, ``selfcheck_every`` > 0 repeats the
    self-check of its kernels after so many steps.  ``accumulate`` does each batch in so many equal
    parts, and ``recompute`` the forward pass twice: both take less memory and change no bit.
    GraphError for a batch that has no such parts.
    Without ``keep_data`` the samples stay out of the run, and its auditor brings them.  Raises
    RunError when ``out`` holds a run of another task or another process trains into it,
    StorageError when a file cannot be written; what was committed by then stays valid, and the same
    call resumes.  MissingExtraError, DeviceError or KernelError when engine cuda cannot be used
    here, and nothing in ``out`` has changed; KernelError also when a GPU fails later.
    ``progress`` (steps done, steps in all, loss, samples a second) and ``callbacks`` hear of each
    step (``vtrain.Callback``, ``vtrain.TensorBoard``, ``vtrain.WeightsAndBiases``); without
    ``progress`` a bar is drawn on stderr where that is a terminal, a table in a notebook.
    ``eval_every`` > 0 measures on the task's test data after so many steps and after the last:
    ``run.history`` has it all, and so has ``history.jsonl`` in ``out`` while the run goes on.
    None of it is a part of what is committed to.

    ``key`` is a key as of :func:`load_key` or the path of its file; without one it is the user's
    own, as on the command line, which is made on first use.  SignatureError for any other.
    """
    from vtrain.cli.train import load_or_make_key
    from vtrain.engines.saving import Saving
    from vtrain.train.progress import choose_display
    from vtrain.train.runner import check_key
    from vtrain.train.runner import train as run
    from vtrain.train.task import CompiledTask

    if key is None or isinstance(key, str | Path):
        key = load_or_make_key(None if key is None else Path(key))
    check_key(key)
    display = choose_display() if progress is None else None
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
        callbacks=[*([] if display is None else [display]), *callbacks],
        eval_every=eval_every,
    )


def verify(
    run: RunSummary | str | Path,
    *,
    samples: int | None = None,
    all: bool = False,
    seed: bytes | str | None = None,
    claim: bytes | str | Path | None = None,
    solver: bytes | str | None = None,
    task_id: bytes | str | None = None,
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

    ``task_id`` is the id agreed on and ``solver`` the key that must have signed (32 bytes each, or
    64 hexadecimal digits, as of ``seed``);
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

    Algebraic checks and those of proofs are of the command line alone (``vtrain verify --mode``).

    A run in floats that :func:`attest_callback` signed is attested, not replayable: its files are
    held against what was signed, and the verdict is conditional at best.

    A found fraud is a verdict, not an exception: ``report.verdict``, or ``report.exit_code`` (0
    verified, 10 fraud, 3 inconclusive, 4 conditional); a report is true only when verified, and
    ``report.raise_for_verdict()`` raises for any other.  RunError for an argument that is none (an
    id or seed that is not bytes, an unknown engine, no such folder); NotProducedError,
    EncodingError, SignatureError for a file that holds no claim; BeaconError and TimestampError for
    a beacon or a token that is not of this claim; MissingExtraError, DeviceError or KernelError
    when engine cuda cannot be used here, MissingExtraError for what a beacon or a store needs.
    """
    from contextlib import ExitStack

    from vtrain.audit.attested import is_attested, make_attested_pin, verify_attested
    from vtrain.audit.pin import make_pin
    from vtrain.audit.verify import verify as audit
    from vtrain.commit.store import refuse_published
    from vtrain.engines.saving import Saving
    from vtrain.errors import RunError
    from vtrain.prove.backend.kzg import CommitKey

    key = _read_hex(solver, "solver")
    with ExitStack() as stack:
        published = None
        if isinstance(run, str) and "://" in run:
            from vtrain.audit.published import open_published

            published = stack.enter_context(open_published(run, store_options))
        folder = _path_of(run) if published is None else published.root
        if published is None:
            refuse_published(folder)
        if published is None and is_attested(folder):
            asked: dict[str, object] = {
                "task_id": task_id,
                "samples": samples,
                "all": all or None,
                "seed": seed,
            }
            asked |= {"data": data, "srs": srs, "beacon": beacon, "wanted": wanted}
            for name, value in asked.items():
                if value is not None:
                    raise RunError(
                        "has no meaning: an attested run, in floats, has no task, and nothing of "
                        "it can be done again",
                        where=name,
                    )
            pinned = None if claim is None else make_attested_pin(folder, claim)
            return verify_attested(folder, solver=key, claim=pinned)
        return audit(
            folder,
            samples=samples,
            all_=all,
            seed=_read_hex(seed, "seed"),
            pin=None if claim is None else make_pin(claim),
            solver=key,
            task_id=_read_hex(task_id, "task_id"),
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


def _read_hex(value: bytes | str | None, where: str) -> bytes | None:
    """Bytes, or text of hexadecimal digits; RunError for any other text."""
    if not isinstance(value, str):
        return value
    from vtrain.errors import RunError

    try:
        return bytes.fromhex(value.removeprefix("0x"))
    except ValueError as error:
        raise RunError(
            f"is not hexadecimal, of which an id, a key or a seed has 64 digits: {error}",
            where=where,
        ) from None
