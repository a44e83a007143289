"""The first minutes on a GPU: what works there, one thing a process.

Whatever crashes, hangs or gives wrong bits costs a line and its own time limit, and the rest goes
on.  A line of JSON is written when it is known, with device, driver, date and commit, to stdout and
to the file of --out.  In all it ends within six minutes.  It needs the wheels of the cuda extra
and the NVIDIA driver, no toolkit and no torch; the speed against torch is ``gpu.py``'s part.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import _harness as harness
import _language as language
import click
import numpy as np
import numpy.typing as npt
from gpu import Bench, Step, Trainable, find_missing, make_cnn, make_mlp, open_cuda

from vtrain.engines.cpu import CpuSession
from vtrain.engines.cuda import sources
from vtrain.engines.cuda.compile import Compiler
from vtrain.engines.cuda.cubin import read_resources
from vtrain.engines.cuda.device import Call, Device, Pointer
from vtrain.engines.cuda.digest import plan_tensor_digest
from vtrain.engines.cuda.gemm import LEAST_PRODUCTS, Epilogue, Factor, find_choice, plan_matmul
from vtrain.engines.cuda.kernels import Kernels
from vtrain.engines.cuda.launch import Arg, Operand, Output
from vtrain.engines.cuda.selfcheck import KernelWarning
from vtrain.errors import RunError, VtrainError
from vtrain.spec.commitment import compute_tensor_digest

Array = npt.NDArray[Any]
DEVICE = "vtrain.engines.cuda.gpu:CudaDevice"
MOST_SECONDS = 350.0
"""All ends within these: a part has its own limit, or what is left of them."""
TRIES = 3
"""Of the steps: a kernel that crashes a process is left out by the next."""
TAIL = 1500
"""Characters of what a process that failed said on stderr."""


LANGUAGE = language.Sizes(layers=2, features=32, heads=4, context=32, batch=8)
TIMED = language.Sizes(layers=4, features=128, heads=4, context=128, batch=16)


@dataclass(frozen=True)
class Sizes:
    """How much is done.  ``tokens`` are the small language models, ``speed`` the one that is
    timed."""

    products: tuple[int, ...] = (256, 4096, 8192)
    by_mma: int = 256
    hashed: int = 2**30
    steps: int = 50
    tokens: language.Sizes = LANGUAGE
    speed: language.Sizes = TIMED
    timed: int = 30
    """Steps of it."""
    files: tuple[str, ...] = ()
    """Files of kernels; none stands for all."""


FULL, QUICK = Sizes(), Sizes(products=(256, 4096), hashed=2**28)
TINY = language.Sizes(1, 8, 2, 6, 4, 12, 500)
SMALL = Sizes((40,), 40, 5000, 3, TINY, TINY, 2, ("relu.cu", "matmul.cu"))
"""For the tests, which have the kernels on the CPU."""
ALL_SIZES = {"full": FULL, "quick": QUICK, "small": SMALL}


@dataclass(frozen=True)
class Desk:
    """What a part works with: ``report`` writes a line at once."""

    device: Device
    folder: Path
    sizes: Sizes
    report: Callable[..., None]


class WrongBitsError(Exception):
    """What a device gave is not what it must give; the line says where."""


def require_equal(found: Array, expected: Array, what: str) -> None:
    """WrongBitsError with the number of differences and the first of them."""
    wrong = np.argwhere(found != expected)
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise WrongBitsError(
            f"{what}: {len(wrong)} of {found.size} differ, the first at {at}: "
            f"{found[at]}, not {expected[at]}"
        )


# --- the parts


def do_open(desk: Desk) -> None:
    """The device, its memory, a first kernel."""
    device = desk.device
    memory = device.memory()
    desk.report(info=vars(device.info), memory=memory._asdict())
    count = 3 * 2**20 + 5
    data = np.random.default_rng(1).integers(-(2**15), 2**15, count, dtype=np.int16)
    first, second = device.allocate(data.nbytes), device.allocate(data.nbytes)
    device.write(first, data.view(np.uint8))
    device.copy(second, first, data.nbytes)
    back = np.frombuffer(device.read(second, data.nbytes), np.int16)
    require_equal(back, data, "what was written, copied and read back")
    device.zero(first, data.nbytes)
    require_equal(
        np.frombuffer(device.read(first, data.nbytes), np.int16), np.zeros_like(data), "zeros"
    )
    device.launch(_relu(count, second, first))
    found = np.frombuffer(device.read(first, data.nbytes), np.int16)
    require_equal(found, np.maximum(data, 0), "relu")
    desk.report(memory="written, copied, zeroed, read", kernel="relu gives the law's bits")


def _relu(count: int, source: int, target: int) -> Call:
    slots = (count, Pointer(source), 2, Pointer(target), 2)
    return Call("relu.cu", "relu", (-(-count // 256), 1, 1), (256, 1, 1), slots)


def do_graphs(desk: Desk) -> None:
    """What is recorded runs when it is replayed, each time; what is forked is joined."""
    device, count = desk.device, 1000
    data = np.arange(-500, 500, dtype=np.int16)
    source, target, other = (device.allocate(data.nbytes) for _ in range(3))
    device.prepare([("relu.cu", "relu")])

    def work() -> None:
        join = device.fork(partial(device.copy, other, source, data.nbytes))
        device.launch(_relu(count, source, target))
        join()

    replay = device.record(work)
    for factor in (1, -3):
        device.write(source, (factor * data).view(np.uint8))
        for address in (target, other):
            device.zero(address, data.nbytes)
        replay()
        found, forked = (
            np.frombuffer(device.read(at, data.nbytes), np.int16) for at in (target, other)
        )
        require_equal(found, np.maximum(factor * data, 0), "a replayed kernel")
        require_equal(forked, factor * data, "a copy that was forked in a graph")
    seconds = [device.time(replay) for _ in range(20)]
    desk.report(graphs="replayed, with a fork", replay_us=1e6 * float(np.median(seconds)))


def do_compile(desk: Desk) -> None:
    """Every file; those that are slow or take much, with what they take."""
    files = desk.sizes.files or tuple(path.name for path in sources.list_kernel_files())
    architecture = desk.device.info.architecture
    begin = time.perf_counter()
    desk.device.prepare([(file, Path(file).stem) for file in files])
    desk.report(files=len(files), compile_seconds=round(time.perf_counter() - begin, 1))
    if not architecture.startswith("sm_") or desk.device.info.emulated:
        return
    compiler = Compiler(architecture, folder=desk.folder)
    resources = read_resources(compiler.compile("matmul.cu"))
    spilt = sorted(name for name, found in resources.items() if found.stack)
    left_out = {file: str(error)[:TAIL] for file, error in compiler.failures.items()}
    desk.report(
        registers={name: found.registers for name, found in resources.items()},
        spilt=spilt,
        without_fast_kernels=left_out,
    )
    if left_out:
        raise WrongBitsError(f"fast kernels do not compile: {', '.join(left_out)}")


def do_product(desk: Desk, size: int, disabled: frozenset[str] = frozenset()) -> None:
    """int16 and int8, each bit, then the speed."""
    device, rng = desk.device, np.random.default_rng(size)
    for name, dtype, low in (("i16", np.int16, -32639), ("i8", np.int8, -127)):
        a, b = (rng.integers(low, -low, (size, size), dtype=dtype, endpoint=True) for _ in "ab")
        places: dict[Arg, int] = {}
        for index, values in enumerate((a, b)):
            places[Operand(index)] = device.allocate(values.nbytes)
            device.write(places[Operand(index)], values.reshape(-1).view(np.uint8))
        places[Output()] = device.allocate(8 * size * size)
        launches = plan_matmul(
            Factor(Operand(0), name, size, size, True, low, -low),
            Factor(Operand(1), name, size, size, False, low, -low),
            Epilogue(Output()),
            device.info.architecture,
            processors=device.info.processors,
            disabled=disabled,
            least_products=0,
        )
        if launches is None:
            raise RunError("has no tensor cores for us", where=f"device {device.info.name}")
        kernel = find_choice(launches).kernel
        bench = Bench(device, launches, places)
        bench.launch()
        sums = np.frombuffer(device.read(places[Output()], 8 * size * size), "<i8")
        # Every partial sum is below 2^53: exact in binary64, in whatever order.
        exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
        require_equal(sums.reshape(size, size), exact, f"{kernel}, {size} cubed")
        desk.report(product=f"{name}, {size} cubed", kernel=kernel, bits="equal")
        seconds = bench.time(5)["median"]
        rate = 2 * size**3 / seconds / 1e12
        desk.report(product=f"{name}, {size} cubed", ms=1e3 * seconds, tera_products=rate)
        bench.close()
        for address in places.values():
            device.free(address)


MMA_ONLY = frozenset(
    f"matmul_wgmma_{windows}{names}{narrow}"
    for names in ("i16_i16", "i16_i8", "i16_u8", "i8_i16", "u8_i16", "i8_i8")
    for windows in ("", "windows_")
    for narrow in ("", "_narrow")
)
"""Without these, products are those of every tensor core since 8.0: right bits there and wrong ones
with them clear packing and epilogue."""


def do_hash(desk: Desk) -> None:
    """BLAKE3 where the bytes lie."""
    device, nbytes = desk.device, desk.sizes.hashed
    data = np.random.default_rng(3).integers(0, 256, nbytes, dtype=np.uint8)
    places: dict[Arg, int] = {Operand(0): device.allocate(nbytes), Output(): device.allocate(32)}
    device.write(places[Operand(0)], data)
    bench = Bench(device, plan_tensor_digest(nbytes), places)
    bench.launch()
    found = np.frombuffer(device.read(places[Output()], 32), np.uint8)
    require_equal(found, np.frombuffer(compute_tensor_digest(data), np.uint8), "BLAKE3")
    desk.report(hashed=nbytes, bits="equal")
    seconds = bench.time(5)["median"]
    desk.report(hashed=nbytes, ms=1e3 * seconds, gb_per_second=nbytes / seconds / 1e9)


def do_steps(desk: Desk, model: str) -> None:
    """The self-check of all kernels that a model needs, then its steps against the cpu engine's."""
    small = desk.sizes is SMALL
    made = {
        "mlp": lambda: make_mlp((12, 8, 10) if small else (96, 64, 48, 10)),
        "cnn": lambda: make_cnn(
            4 if small else 8, (4, 4) if small else (8, 12), int(not small), 10
        ),
    }[model]()
    task = Trainable(made, classes=10, samples=64 if small else 500)
    compare_steps(desk, model, task.make_step(8 if small else 32, 10), desk.sizes.steps)


def do_tokens(desk: Desk, model: str) -> None:
    """The same of a language model on windows of tokens."""
    step = make_language_step(model, desk.sizes.tokens)
    compare_steps(desk, model, step, desk.sizes.steps)


def do_speed(desk: Desk, model: str) -> None:
    """Seconds a step of a language model of a size that people try things with, on both sides."""
    step = make_language_step(model, desk.sizes.speed)
    compare_steps(desk, model, step, desk.sizes.timed, least_products=LEAST_PRODUCTS)


def make_language_step(model: str, sizes: language.Sizes) -> Step:
    """A task of :mod:`_language`."""
    with tempfile.TemporaryDirectory() as folder:
        task = language.make_task(model, sizes, Path(folder))
    return Step(task.graph, task.samples, task.initial_state)


def compare_steps(desk: Desk, model: str, step: Step, steps: int, least_products: int = 0) -> None:
    """The self-check of all kernels of a step, then so many steps against the cpu engine's, with
    the median seconds of each."""
    # On tensor cores, however small a product is; but for the emulated ones, which take hours.
    kernels = (
        Kernels(desk.device, fast=False, folder=desk.folder)
        if desk.sizes is SMALL
        else Kernels(desk.device, folder=desk.folder, least_products=least_products)
    )
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", KernelWarning)
        cuda = open_cuda(step, desk.device, kernels)
    why = [str(one.message) for one in said if issubclass(one.category, KernelWarning)]
    seconds = round(time.perf_counter() - begin, 1)
    desk.report(self_check_seconds=seconds, disabled=sorted(kernels.disabled), why=why)
    cpu = CpuSession(step.graph, step.samples)
    cpu.load_state(step.state)
    seconds_of: dict[str, list[float]] = {"cpu": [], "cuda": []}
    for number in range(steps):
        records = []
        for name, session in (("cpu", cpu), ("cuda", cuda)):
            begin = time.perf_counter()
            records.append(session.step())
            seconds_of[name].append(time.perf_counter() - begin)
        if records[0] != records[1]:
            raise WrongBitsError(f"{model}, step {number + 1}: {records[1]}, not {records[0]}")
    desk.report(
        steps=steps,
        bits="equal",
        **{f"{name}_ms": 1e3 * float(np.median(all_)) for name, all_ in seconds_of.items()},
    )
    if why or kernels.disabled:
        names = ", ".join(sorted(kernels.disabled))
        raise WrongBitsError(f"{model}: kernels do not serve: {names or '; '.join(why)}")


@dataclass(frozen=True)
class Part:
    """A process: what it does, and the seconds after which it is ended."""

    name: str
    seconds: float
    work: Callable[[Desk], None]
    tries: int = 1


def list_parts(sizes: Sizes) -> list[Part]:
    """The most telling first."""
    return [
        Part("open", 30, do_open),
        Part("graphs", 20, do_graphs),
        Part("compile", 90, do_compile),
        *(Part(f"product {n}", 60, partial(do_product, size=n)) for n in sizes.products),
        Part(
            f"product {sizes.by_mma} by mma",
            30,
            partial(do_product, size=sizes.by_mma, disabled=MMA_ONLY),
        ),
        Part("hash", 40, do_hash),
        Part("steps mlp", 90, partial(do_steps, model="mlp"), TRIES),
        Part("steps cnn", 90, partial(do_steps, model="cnn"), TRIES),
        Part("steps gpt", 90, partial(do_tokens, model="gpt"), TRIES),
        Part("steps llama", 90, partial(do_tokens, model="llama"), TRIES),
        Part("speed gpt", 120, partial(do_speed, model="gpt"), TRIES),
    ]


# --- a process of a part


def open_device(name: str, folder: Path) -> Device:
    """The device that MODULE:NAME opens; a GPU's keeps what is compiled in ``folder``."""
    module, _, attribute = name.partition(":")
    opener: Any = getattr(importlib.import_module(module), attribute)
    device: Device = opener(folder=folder) if name == DEVICE else opener()
    return device


def run_part(name: str, sizes: Sizes, folder: Path, device: str) -> int:
    """Do one part here; its lines go to stdout."""
    begin = time.perf_counter()
    known: dict[str, Any] = {}

    def report(**figures: Any) -> None:
        line = {**known, "seconds": round(time.perf_counter() - begin, 2), **figures}
        click.echo(json.dumps(line))
        sys.stdout.flush()

    if device == DEVICE and (missing := find_missing(torch=False)):
        report(status="missing", reason=missing)
        return harness.NOTHING_MEASURED
    try:
        opened = open_device(device, folder)
        known |= {"device": opened.info.name, "driver": opened.info.driver}
        part = next(part for part in list_parts(sizes) if part.name == name)
        part.work(Desk(opened, folder, sizes, report))
    except WrongBitsError as error:
        report(status="wrong", reason=str(error))
        return 1
    except (VtrainError, RuntimeError, MemoryError, OSError) as error:
        report(status="failed", reason=f"{type(error).__name__}: {error}"[:TAIL])
        return 1
    report(status="ok")
    return 0


# --- the course


def watch(command: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Run a process: its lines as they come, then how it ended, if it did not say so itself.

    It is ended after so many seconds, with all that it started."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        late = threading.Event()

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        clock = threading.Timer(seconds, end)
        clock.start()
        status = ""
        try:
            for raw in process.stdout or ():
                line = _read_line(raw)
                status = str(line.get("status", status))
                if line:
                    yield line
            code = process.wait()
        finally:
            clock.cancel()
            if process.poll() is None:
                end()
                process.wait()
        if status:
            return
        if late.is_set():
            yield {"status": "hung", "reason": f"has not ended after {seconds:.0f} seconds"}
            return
        errors.seek(0)
        tail = errors.read().decode(errors="replace")[-TAIL:]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        yield {"status": "crashed", "reason": how, "stderr": tail}


def _read_line(raw: bytes) -> dict[str, Any]:
    """A line of a part; nothing for what somebody else has put on its stdout."""
    try:
        line = json.loads(raw)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


PROGRAM = (sys.executable, "-u", __file__)


def run_all(
    parts: Sequence[Part],
    options: Sequence[str],
    program: Sequence[str] = PROGRAM,
    most: float = MOST_SECONDS,
) -> Iterator[dict[str, Any]]:
    """The lines of all parts, as they come, each with what is known of the device."""
    known = {"device": "unknown", "driver": "unknown"}
    end = time.monotonic() + most
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            for number in range(1, part.tries + 1):
                left = end - time.monotonic()
                if left < 1:
                    yield {"part": part.name, **known, "status": "left out", "reason": "no time"}
                    break
                status = ""
                command = [*program, "--part", part.name, "--folder", folder, *options]
                for line in watch(command, min(part.seconds, left)):
                    known |= {name: line[name] for name in known if name in line}
                    status = str(line.get("status", ""))
                    yield {"part": part.name, "try": number, **known, **line}
                if status == "missing":
                    return
                if status not in ("crashed", "hung", "failed"):
                    break


@click.command("first_gpu", help=__doc__)
@click.option("--quick", is_flag=True, help="Neither 8192 cubed nor a whole GiB of BLAKE3.")
@click.option("--json", "as_json", is_flag=True, help="Nothing more: lines are JSON in any case.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write them here too.")
@click.option("--sizes", type=click.Choice([*ALL_SIZES]), default="full", hidden=True)
@click.option("--device", default=DEVICE, hidden=True, help="MODULE:NAME of what opens a device.")
@click.option("--part", hidden=True, help="Do this one part, in this process.")
@click.option("--folder", type=click.Path(path_type=Path), hidden=True, help="Of its kernels.")
def command(
    quick: bool,
    as_json: bool,
    out: Path | None,
    sizes: str,
    device: str,
    part: str | None,
    folder: Path | None,
) -> None:
    """Do all parts, each in a process, or one part here."""
    sizes = "quick" if quick else sizes
    if part is not None and folder is not None:
        # What a broken context would do on its way out, and for how long, nobody knows.
        os._exit(run_part(part, ALL_SIZES[sizes], folder, device))
    commit = harness.read_commit()
    bad, missing = set[str](), ""
    parts = list_parts(ALL_SIZES[sizes])
    file = _open_out(out)
    try:
        # The last line of a part that was tried again is the one that counts.
        last: dict[str, str] = {}
        for line in run_all(parts, ["--sizes", sizes, "--device", device]):
            text = json.dumps({"date": harness.read_date(), "commit": commit, **line})
            for stream in (sys.stdout, file):
                if stream is not None:
                    stream.write(f"{text}\n")
                    stream.flush()
            last[line["part"]] = str(line.get("status", ""))
            missing = line["reason"] if last[line["part"]] == "missing" else missing
        bad = {name for name, status in last.items() if status != "ok"}
    finally:
        if file is not None:
            file.close()
    if missing:
        click.echo(f"first_gpu: {missing}", err=True)
        sys.exit(harness.NOTHING_MEASURED)
    sys.exit(1 if bad else 0)


def _open_out(out: Path | None) -> TextIO | None:
    if out is None:
        return None
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.open("a")


if __name__ == "__main__":
    command()
