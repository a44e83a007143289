"""Hostile files and folders, through the real command line: a report or an error, and soon."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from tests.attacks.campaign import bombs
from tests.attacks.campaign.bases import in_a_fork, make_rng
from tests.attacks.campaign.bench import Bench, Say, show
from tests.attacks.campaign.bombs import ESCAPES, GIB, MIB, Kind, Trap
from tests.attacks.campaign.judge import (
    ANY,
    NOBODY,
    NOT_FRAUD,
    Fault,
    Result,
    judge,
    judge_verdict,
)
from tests.attacks.campaign.privileges import lose_sight
from tests.audit.runs import KEY, refit_manifest
from vtrain import profile
from vtrain.attest.claims import sign_claim
from vtrain.spec.commitment import compute_graph_root, compute_task_id
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.train.signed import read_graph, read_task
from vtrain.wire.claim import decode_signed_claim, encode_signed_claim
from vtrain.wire.graph import StepGraph, encode_graph
from vtrain.wire.task import TaskSpec, encode_task

NOWHERE: Final = "http://127.0.0.1:9"
"""Nobody listens there."""
MANY: Final = 100_000


@dataclass
class Attack:
    """A command and what lies in its way.  ``verdicts`` are those that verify may come to."""

    name: str
    arguments: list[str]
    verdicts: frozenset[str] = NOBODY
    trap: Trap = field(default_factory=Trap)
    folder: Path | None = None


@dataclass
class Yard:
    """Where an attack is laid out."""

    bench: Bench
    work: Path
    rng: Random

    def copy_run(self, command: str, place: str = "", base: str = "mlp") -> Path:
        """A run that the command goes into: training goes on with one of its own task alone."""
        if command.startswith("train"):
            base = "filed"
        if place == "kzg.bin" or command.startswith("proofs"):
            base = "kzg"
        return Path(shutil.copytree(self.bench.bases[base].run, self.work / "run"))

    def copy_task(self) -> Path:
        return Path(shutil.copytree(self.bench.folder / "task", self.work / "task")) / "task.toml"

    @property
    def key(self) -> str:
        return str(self.bench.folder / "key.pem")

    @property
    def srs(self) -> str:
        return str(self.bench.folder / "srs")


Layout = Callable[[Yard], Attack]

# --- the commands


RUN_COMMANDS: Final = (
    *("verify", "inspect", "eval", "export", "graph", "train", "claim"),
    *("prove", "jobs", "proofs", "dispute", "join"),
)
TASK_COMMANDS: Final = ("train", "profile", "check", "graph", "batches", "eval")
AS_TEXT: Final = " as text"
"""The same command without --json."""


def write_as_text(commands: Mapping[str, list[str]], name: str) -> list[str]:
    """The command of that name, or what it is without --json."""
    command = commands[name.removesuffix(AS_TEXT)]
    if not name.endswith(AS_TEXT):
        return command
    return [word for word in command if word != "--json"]


def command_on_run(yard: Yard, run: Path, name: str) -> list[str]:
    """A command that reads a run."""
    there, out = str(run), str(yard.work / "out")
    commands: dict[str, list[str]] = {
        "verify": ["verify", there, "--all", "--threads", "1", "--json"],
        "inspect": ["inspect", there, "--json"],
        "eval": ["eval", there, "--json"],
        "export": ["export", there, "--out", out, "--json"],
        "graph": ["graph", "export-onnx", there, "--out", out, "--json"],
        "train": [
            "train",
            str(yard.bench.folder / "task" / "task.toml"),
            *("--out", there, "--key", yard.key, "--threads", "1", "--json"),
        ],
        "claim": ["claim", there, "--json"],
        "prove": [
            *("prove", "run", there, "--steps", "1", "--srs", yard.srs, "--json"),
            *("--cache", str(yard.work / "cache"), "--timeout", "5"),
        ],
        "jobs": ["prove", "jobs", there, "--json"],
        "proofs": [
            *("verify", there, "--mode", "proof", "--private", "--samples", "1", "--seed", "00"),
            *("--srs", yard.srs, "--cache", str(yard.work / "cache"), "--json"),
        ],
        "dispute": ["dispute", "open", there, "--url", NOWHERE, "--json"],
        "join": [
            *("dispute", "join", "00" * 32, there, "--url", NOWHERE, "--key", yard.key),
            *("--defend", "--json"),
        ],
    }
    return write_as_text(commands, name)


def command_on_task(yard: Yard, task: Path, name: str) -> list[str]:
    """A command that reads a task file."""
    there, out = str(task), str(yard.work / "out")
    commands = {
        "train": ["train", there, "--out", out, "--key", yard.key, "--threads", "1", "--json"],
        "profile": ["profile", there, "--json"],
        "check": ["task", "check", there, "--json"],
        "graph": ["graph", "export-onnx", there, "--out", out, "--json"],
        "batches": [
            *("prove", "batches", there, "--out", out, "--key", yard.key, "--srs", yard.srs),
            "--json",
        ],
        "eval": [
            *("eval", str(yard.bench.bases["mlp"].run), "--task", there, "--json"),
        ],
    }
    return write_as_text(commands, name)


# --- files of a run


PLACES: Final = (
    "task.cbor",
    "graph.cbor",
    "model.onnx",
    "data/samples.bin",
    "log.bin",
    "kzg.bin",
    "claim.cbor",
    "manifest.json",
    "checkpoints/000000000000.safetensors",
    "checkpoints/000000000008.safetensors",
    "checkpoints/000000000012.safetensors",
    "checkpoints",
    "data",
    ".lock",
    "proofs/traces.cbor",
    "proofs/step-000000000001.cbor",
    "proofs/jobs.db",
    "proofs",
    "note",
)
UNSIGNED: Final = frozenset({"manifest.json", ".lock", "note"})


def judge_place(place: str, *, harmless: bool) -> frozenset[str]:
    """What may be said of a run in which the file ``place`` is spoiled."""
    if harmless or place in UNSIGNED or place.startswith(("checkpoints", "proofs")):
        return NOT_FRAUD
    return NOBODY


def lay_node(place: str, kind: Kind, command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        run = yard.copy_run(command, place)
        trap = kind(run / place, yard.rng) or Trap()
        whole = trap.harmless or kind in (bombs.growing, bombs.shrinking)  # for a while at least
        verdicts = judge_place(place, harmless=whole)
        arguments = command_on_run(yard, run, command)
        return Attack(f"{command}: {place} is {kind.__name__}", arguments, verdicts, trap)

    return lay


def lay_content(place: str, name: str, make: Callable[[], bytes], command: str) -> Layout:
    """Content of the right form for the place, or nearly; sometimes the manifest lists it."""

    def lay(yard: Yard) -> Attack:
        run = yard.copy_run(command, place)
        (run / place).parent.mkdir(exist_ok=True)
        (run / place).write_bytes(make())
        if place != "manifest.json" and yard.rng.random() < 0.5:
            refit_manifest(run)
        verdicts = judge_place(place, harmless=False)
        arguments = command_on_run(yard, run, command)
        return Attack(f"{command}: {place} with {name}", arguments, verdicts)

    return lay


FORMS: Final[Mapping[str, Mapping[str, Callable[[], bytes]]]] = {
    "task.cbor": bombs.CBOR,
    "graph.cbor": bombs.CBOR,
    "claim.cbor": bombs.CBOR,
    "proofs/traces.cbor": bombs.CBOR,
    "manifest.json": bombs.JSON,
    "log.bin": bombs.LOG,
    "kzg.bin": bombs.LOG,
    "model.onnx": bombs.ONNX,
    "checkpoints/000000000012.safetensors": bombs.TENSORS,
    "checkpoints/000000000000.safetensors": bombs.TENSORS,
}

# --- a manifest in canonical form, which says strange things


def lay_manifest(name: str, change: Callable[[dict[str, object]], None], command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        run = yard.copy_run(command)
        manifest = read_manifest(RunPaths(run))
        entry = next(iter(manifest.files.values()))
        fields: dict[str, object] = {"files": dict(manifest.files), "entry": entry}
        change(fields)
        del fields["entry"]
        path = RunPaths(run).manifest
        path.write_bytes(encode_manifest(replace(manifest, **fields)))  # type: ignore[arg-type]
        arguments = command_on_run(yard, run, command)
        return Attack(f"{command}: manifest with {name}", arguments, NOT_FRAUD)

    return lay


def list_files(names: Callable[[], Sequence[str]]) -> Callable[[dict[str, object]], None]:
    def change(fields: dict[str, object]) -> None:
        files = fields["files"]
        if isinstance(files, dict):
            files.update(dict.fromkeys(names(), fields["entry"]))

    return change


MANIFESTS: Final[Mapping[str, Callable[[dict[str, object]], None]]] = {
    "a name of 1 MiB": list_files(lambda: ["n" * MIB]),
    "a name of 10 MiB": list_files(lambda: ["n" * 10 * MIB]),
    "a name of line ends": list_files(lambda: ["\n" * 1000]),
    "a name of escapes": list_files(lambda: [ESCAPES]),
    "100,000 names": list_files(
        lambda: [f"checkpoints/{i:012d}.safetensors" for i in range(90_000)]
    ),
    "100,000 strange names": list_files(lambda: [f"{ESCAPES}{i}" for i in range(80_000)]),
    "names of folders above": list_files(
        lambda: ["../../../etc/passwd", "/dev/zero", "a/../b", ""]
    ),
    "an engine of escapes": lambda fields: fields.update(engine=ESCAPES),
    "software of 1 MiB": lambda fields: fields.update(software="s" * MIB),
    "software of escapes": lambda fields: fields.update(software=ESCAPES),
    "saturation by escapes": lambda fields: fields.update(saturation={ESCAPES: 2**62}),
    "saturation of 100,000": lambda fields: fields.update(
        saturation={f"{i}": 2**62 for i in range(100_000)}
    ),
}

# --- task and graph that the solver has signed


def sign_task(run: Path, spec: TaskSpec) -> None:
    paths = RunPaths(run)
    paths.task.write_bytes(encode_task(spec))
    claim = decode_signed_claim(paths.claim.read_bytes()).claim
    claim = replace(claim, task_id=compute_task_id(spec))
    paths.claim.write_bytes(encode_signed_claim(sign_claim(claim, KEY)))
    manifest = replace(read_manifest(paths), task_id=claim.task_id)
    paths.manifest.write_bytes(encode_manifest(manifest))
    refit_manifest(run)


GraphChange = Callable[[StepGraph, Random], StepGraph]


def change_node(**changes: Callable[[StepGraph, int], object]) -> GraphChange:
    def change(graph: StepGraph, rng: Random) -> StepGraph:
        nodes = list(graph.nodes)
        at = rng.randrange(len(nodes))
        fields = {name: make(graph, at) for name, make in changes.items()}
        nodes[at] = replace(nodes[at], **fields)  # type: ignore[arg-type]
        return StepGraph(tuple(nodes))

    return change


def _shape(shape: tuple[int, ...]) -> Callable[[StepGraph, int], object]:
    return lambda graph, at: (replace(graph.nodes[at].outputs[0], shape=shape),)


def _attribute(key: str, value: int | str | bytes | tuple[int, ...]) -> GraphChange:
    return change_node(attrs=lambda graph, at: {**graph.nodes[at].attrs, key: value})


GRAPHS: Final[Mapping[str, GraphChange]] = {
    "500 extents of 2^32": change_node(outputs=_shape((2**32,) * 500)),
    "100,000 extents": change_node(outputs=_shape((1,) * 100_000)),
    "extents of zero": change_node(outputs=_shape((0, 0))),
    "extents of 2^63": change_node(outputs=_shape((2**63, 2**63))),
    "a node name of escapes": change_node(name=lambda graph, at: ESCAPES),
    "a node name of 1 MiB": change_node(name=lambda graph, at: "n" * MIB),
    "an operator of escapes": change_node(op=lambda graph, at: ESCAPES),
    "an operator of 1 MiB": change_node(op=lambda graph, at: "o" * MIB),
    "an attribute key of 1 MiB": _attribute("k" * MIB, 1),
    "an attribute key of escapes": _attribute(ESCAPES, 1),
    "an attribute of 1 MiB": _attribute("shift", "v" * MIB),
    "an attribute of escapes": _attribute("name", ESCAPES),
    "an attribute of 2^64 - 1": _attribute("shift", 2**64 - 1),
    "a shape attribute": _attribute("shape", (2**32,) * 500),
    "a kernel attribute": _attribute("kernel", (2**40, 2**40)),
    "50,000 nodes more": lambda graph, rng: StepGraph(
        (*graph.nodes, *(replace(graph.nodes[0], name=f"{i}") for i in range(50_000)))
    ),
    "no node": lambda graph, rng: StepGraph(()),
    "all types of 2^40 elements": lambda graph, rng: StepGraph(
        tuple(
            replace(node, outputs=tuple(replace(o, shape=(2**20, 2**20)) for o in node.outputs))
            for node in graph.nodes
        )
    ),
}


def lay_graph(name: str, change: GraphChange, command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        run = yard.copy_run(command, base=yard.rng.choice(("mlp", "cnn")))
        paths = RunPaths(run)
        spec = read_task(paths)
        graph = change(read_graph(paths, spec), yard.rng)
        paths.graph.write_bytes(encode_graph(graph))
        sign_task(run, replace(spec, graph_root=compute_graph_root(graph)))
        arguments = command_on_run(yard, run, command)
        return Attack(f"{command}: graph with {name}", arguments, NOT_FRAUD)

    return lay


TASKS: Final[Mapping[str, Callable[[TaskSpec], TaskSpec]]] = {
    "a site of escapes": lambda t: replace(t, exponents={**t.exponents, ESCAPES: 1}),
    "a site of 500 KB": lambda t: replace(t, exponents={**t.exponents, "s" * 500_000: 1}),
    "30,000 sites": lambda t: replace(t, exponents={f"{i}": 1 for i in range(30_000)}),
    "a law of escapes": lambda t: replace(t, law=ESCAPES),
    "steps of 2^40": lambda t: replace(t, steps=2**40, checkpoint_every=1),
    "checkpoints of 2^40": lambda t: replace(t, checkpoint_every=2**40),
    "a batch of 2^32": lambda t: replace(t, batch=2**32),
    "samples of 2^40": lambda t: replace(t, data=replace(t.data, samples=2**40)),
    "500 extents of data": lambda t: replace(t, data=replace(t.data, x_shape=(2**32,) * 500)),
    "a sample of 2^40": lambda t: replace(t, data=replace(t.data, x_shape=(2**32, 256))),
    "commitments of escapes": lambda t: replace(t, commitments=(ESCAPES,)),
    "a type of escapes": lambda t: replace(t, data=replace(t.data, x_dtype=ESCAPES)),
}


def lay_task(name: str, change: Callable[[TaskSpec], TaskSpec], command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        run = yard.copy_run(command)
        sign_task(run, change(read_task(RunPaths(run))))
        arguments = command_on_run(yard, run, command)
        # "30,000 sites": what is signed contradicts itself, which is the task's fault.
        return Attack(f"{command}: task with {name}", arguments, NOT_FRAUD)

    return lay


def huge_claim(yard: Yard) -> Attack:
    """Says 2^48 steps; signed."""
    run = yard.copy_run("verify")
    paths = RunPaths(run)
    claim = decode_signed_claim(paths.claim.read_bytes()).claim
    claim = replace(claim, log_size=2**48)
    paths.claim.write_bytes(encode_signed_claim(sign_claim(claim, KEY)))
    arguments = command_on_run(yard, run, "verify")
    return Attack("verify: a claim of 2^48 steps", arguments, ANY - {"verified"})


# --- folders


def lay_name(name: bytes, command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        run = yard.copy_run(command)
        other = Path(os.fsdecode(os.fsencode(yard.work) + b"/" + name))
        run.rename(other)
        arguments = command_on_run(yard, other, command)
        return Attack(f"{command}: a run called {name!r}", arguments, NOT_FRAUD)

    return lay


NAMES: Final = (
    b"\x1b[2J\x1b[31mVERIFIED",
    b"a\nVerdict: VERIFIED",
    b"\xff\xfe\x80",
    b"[bold red]x[blink]",
    "\u202e\x9b31m".encode(),
    b"n" * 250,
    b"--json",
    b" ",
)


def lay_extra(name: bytes, command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        run = yard.copy_run(command)
        for place in (b"", b"checkpoints/", b"proofs/"):
            (run / "proofs").mkdir(exist_ok=True)
            extra = Path(os.fsdecode(os.fsencode(run) + b"/" + place + name))
            extra.write_bytes(name)
        arguments = command_on_run(yard, run, command)
        return Attack(f"{command}: extra files called {name!r}", arguments, NOT_FRAUD)

    return lay


def lay_deep(command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        run = yard.copy_run(command)
        here = Path.cwd()
        try:
            os.chdir(run / yard.rng.choice(("checkpoints", ".", "data")))
            for _ in range(3000):
                Path("d").mkdir()
                os.chdir("d")
        finally:
            os.chdir(here)
        arguments = command_on_run(yard, run, command)
        return Attack(f"{command}: folders in folders", arguments, NOT_FRAUD)

    return lay


def lay_many(where: str, command: str) -> Layout:
    """100,000 names more: links to one file, which is quick to make."""

    def lay(yard: Yard) -> Attack:
        many = yard.bench.folder / "many"
        if not many.exists():
            many.mkdir()
            (many / "000000000000").write_bytes(b"")
            for i in range(1, MANY):
                suffix = ".safetensors" if i % 2 else ""
                (many / f"{i + 10**9:012d}{suffix}").symlink_to("000000000000")
        run = yard.copy_run(command)
        if where == "checkpoints":
            for path in (run / "checkpoints").iterdir():
                shutil.copy(path, many / path.name)
            shutil.rmtree(run / "checkpoints")
            (run / "checkpoints").symlink_to(many)
        else:
            (run / where).rename(run / f"{where}.was") if (run / where).exists() else None
            many.rename(run / where)
        trap = Trap(undo=lambda: None if many.exists() else _put_back(run / where, many))
        arguments = command_on_run(yard, run, command)
        return Attack(f"{command}: 100,000 names in {where}", arguments, NOT_FRAUD, trap)

    return lay


def _put_back(path: Path, many: Path) -> None:
    path.rename(many)


def lay_as_run(kind: Kind, command: str) -> Layout:
    """What is named as the run is none."""

    def lay(yard: Yard) -> Attack:
        path = yard.work / "run"
        trap = kind(path, yard.rng) or Trap()
        arguments = command_on_run(yard, path, command)
        return Attack(f"{command}: the run is {kind.__name__}", arguments, NOBODY | {"error"}, trap)

    return lay


# --- task files and what they name


def lay_task_content(name: str, make: Callable[[], bytes], command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        task = yard.copy_task()
        text = task.read_bytes()
        task.write_bytes(make() if yard.rng.random() < 0.5 else text + b"\n[more]\n" + make())
        arguments = command_on_task(yard, task, command)
        return Attack(f"{command}: a task file with {name}", arguments)

    return lay


TEXT_CHANGES: Final[Mapping[str, tuple[str, str]]] = {
    "a name of escapes": ('name = "campaign"', 'name = "{escapes}"'),
    "a name of 900 KB": ('name = "campaign"', f'name = "{"n" * 900_000}"'),
    "a model of escapes": ('onnx = "model.onnx"', 'onnx = "{escapes}"'),
    "a model at /dev/zero": ('onnx = "model.onnx"', 'onnx = "/dev/zero"'),
    "a loss of escapes": ('loss = "cross_entropy"', 'loss = "{escapes}"'),
    "data at /dev/zero": ('x = "x.npy"', 'x = "/dev/zero"'),
    "data at /proc/self/mem": ('x = "x.npy"', 'x = "/proc/self/mem"'),
    "data of escapes": ('x = "x.npy"', 'x = "{escapes}"'),
    "data of a folder": ('x = "x.npy"', 'x = "."'),
    "data with a NUL": ('x = "x.npy"', 'x = "a\\u0000b"'),
    "a kind of escapes": ('kind = "npy"', 'kind = "{escapes}"'),
    "steps of 2^62": ("steps = 12", "steps = 4611686018427387904"),
    "a batch of 2^40": ("batch = 4", "batch = 1099511627776"),
    "a batch of 2^31": ("batch = 4", "batch = 2147483648"),
    "a rate of 1e999": ("learning_rate = 0.1", "learning_rate = 1e999"),
    "a rate of nan": ("learning_rate = 0.1", "learning_rate = nan"),
    "a schedule of 100,000": (
        "learning_rate = 0.1",
        "learning_rate = [" + ",".join(f"[{i}, 0.1]" for i in range(60_000)) + "]",
    ),
    "a scale of many digits": ('scale = "1/255"', f'scale = "1/{"9" * 90}"'),
    "text with a context of 2^40": (
        'kind = "npy"\nx = "x.npy"\ny = "y.npy"\n[data.prepare]',
        'kind = "text"\npath = "x.npy"\ncontext = 1099511627776\n[data.prepare]',
    ),
    "an exponent by escapes": ("[exponents]", '[exponents]\n"{escapes}" = 1'),
    "exponents by the thousand": (
        "[exponents]",
        "[exponents]\n" + "\n".join(f"k{i} = 1" for i in range(30_000)),
    ),
    "an unknown key of escapes": ("batch = 4", 'batch = 4\n"{escapes}" = 1'),
}


def lay_text(name: str, change: tuple[str, str], command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        task = yard.copy_task()
        quoted = "".join(f"\\u{ord(character):04x}" for character in ESCAPES)
        text = task.read_text()
        if change[0] not in text:
            raise RuntimeError(f"nothing to change: {change[0]}")
        task.write_text(text.replace(change[0], change[1].replace("{escapes}", quoted), 1))
        arguments = command_on_task(yard, task, command)
        return Attack(f"{command}: a task file with {name}", arguments)

    return lay


def lay_named(place: str, kind: Kind, command: str) -> Layout:
    """A file that the task file names, or itself, is no file."""

    def lay(yard: Yard) -> Attack:
        task = yard.copy_task()
        trap = kind(task.parent / place, yard.rng) or Trap()
        arguments = command_on_task(yard, task, command)
        return Attack(f"{command}: {place} of the task is {kind.__name__}", arguments, trap=trap)

    return lay


def lay_model(name: str, make: Callable[[], bytes], command: str) -> Layout:
    def lay(yard: Yard) -> Attack:
        task = yard.copy_task()
        (task.parent / "model.onnx").write_bytes(make())
        arguments = command_on_task(yard, task, command)
        return Attack(f"{command}: a model with {name}", arguments)

    return lay


def _profile(task: Path) -> None:
    profile(task)


def saturating_sites(yard: Yard) -> Attack:
    """Sites with names of escapes that clamp: training warns about them by name."""
    task = yard.copy_task()
    (task.parent / "model.onnx").write_bytes(bombs.name_by_escapes())
    in_a_fork(partial(_profile, task))
    head, table, tail = task.read_text().partition("[exponents]")
    raised = re.sub(r"= (\d+)", lambda found: f"= {int(found[1]) + 4}", tail)
    task.write_text(head + table + raised)
    arguments = command_on_task(yard, task, yard.rng.choice(("train", "train as text")))
    return Attack(f"{arguments[0]}: sites of escapes that clamp", arguments)


def lay_data(
    kind: str, name: str, write: Callable[[Path], None], command: str, *, cached: bool
) -> Layout:
    """Data of another kind; what takes long to make is made once."""

    def lay(yard: Yard) -> Attack:
        task = yard.copy_task()
        file = task.parent / "x.npy"
        if cached:
            store = yard.bench.folder / f"{kind}-{name.replace(' ', '-')}"
            if not store.exists():
                write(store)
            shutil.copy(store, file)
        else:
            write(file)
        text = task.read_text()
        if kind == "npz":
            text = text.replace(
                'kind = "npy"\nx = "x.npy"\ny = "y.npy"', 'kind = "npz"\npath = "x.npy"'
            )
        elif kind == "idx":
            text = text.replace('kind = "npy"', 'kind = "idx"')
        task.write_text(text)
        arguments = command_on_task(yard, task, command)
        return Attack(f"{command}: {kind} data with {name}", arguments)

    return lay


@cache
def list_data() -> list[tuple[str, str, Callable[[Path], None], bool]]:
    found: list[tuple[str, str, Callable[[Path], None], bool]] = [
        ("npz", "a bomb of 300 MiB", partial(bombs.npz_bomb, size=304 * MIB), True),
        ("npz", "a bomb of 1.2 GiB", partial(bombs.npz_bomb, size=1216 * MIB), True),
        ("npz", "lies", bombs.npz_of_lies, True),
        ("npz", "noise", partial(_write, make=lambda: b"PK\3\4" + bytes(1000)), False),
        ("idx", "a bomb of 1.2 GiB", partial(bombs.idx_bomb, size=1216 * MIB), True),
    ]
    for kind, contents in (("npy", bombs.NPY), ("idx", bombs.IDX)):
        for name, make in contents.items():
            found.append((kind, name, partial(_write, make=make), False))
    return found


def _write(path: Path, make: Callable[[], bytes]) -> None:
    path.write_bytes(make())


# --- single files as arguments


def lay_argument(option: str, kind: Kind) -> Layout:
    def lay(yard: Yard) -> Attack:
        path = yard.work / "file"
        run = str(yard.bench.bases["mlp"].run)
        logged = str(yard.bench.bases["kzg"].run)
        task = str(yard.bench.folder / "task" / "task.toml")
        proof = ["verify", logged, "--mode", "proof", "--private", "--json"]
        commands: dict[str, tuple[list[str], Path | None]] = {
            "--data": (
                ["verify", run, "--all", "--json", "--data", str(path)],
                Path(run) / "data" / "samples.bin",
            ),
            "--srs": (["verify", logged, "--all", "--json", "--srs", str(path)], Path(yard.srs)),
            "--claim": (
                ["verify", run, "--all", "--json", "--claim", str(path)],
                Path(run) / "claim.cbor",
            ),
            "--batches": (
                [
                    *(*proof, "--srs", yard.srs, "--batches", str(path), "--owner", "00" * 32),
                    *("--cache", str(yard.work / "cache")),
                ],
                None,
            ),
            "referee": (["referee", str(path), "--json"], None),
            "srs check": (["srs", "check", str(path), "--json"], Path(yard.srs)),
            "key show": (["key", "show", str(path), "--json"], Path(yard.key)),
            "eval --data": (
                ["eval", run, "--data", str(path), "--json"],
                Path(run) / "data" / "samples.bin",
            ),
            "--key": (
                ["train", task, "--out", str(yard.work / "out"), "--key", str(path), "--json"],
                Path(yard.key),
            ),
            "train --srs": (
                [
                    *("train", task, "--out", str(yard.work / "out"), "--key", yard.key),
                    *("--srs", str(path), "--json"),
                ],
                Path(yard.srs),
            ),
        }
        arguments, honest = commands[option]
        path.write_bytes(honest.read_bytes() if honest is not None else b"x" * 200)
        trap = kind(path, yard.rng) or Trap()
        name = f"{option} {kind.__name__}"
        kept = trap.harmless or kind in (bombs.growing, bombs.shrinking)  # for a while at least
        allowed = (NOT_FRAUD if kept else NOBODY) | {"error"}
        return Attack(name, arguments, allowed, trap)

    return lay


ARGUMENTS: Final = (
    *("--data", "--srs", "--claim", "--batches", "referee", "srs check", "key show"),
    *("eval --data", "--key", "train --srs"),
)

# --- all of it


Family = tuple[Layout, ...]
"""The same thing before one command after another."""


def add_texts(commands: Sequence[str]) -> tuple[str, ...]:
    return (*commands, *(f"{command}{AS_TEXT}" for command in commands))


def spread(lay: partial[Layout], commands: Sequence[str]) -> Family:
    """Before each command; where it is about escapes, before those that write text."""
    if any(each == "escapes" or f"{each}".endswith(" escapes") for each in lay.args):
        commands = [command for command in commands if command.endswith(AS_TEXT)]
    return tuple(lay(command) for command in commands)


@cache
def list_groups() -> tuple[tuple[str, tuple[Family, ...]], ...]:
    """All layouts, in groups of families.

    A campaign takes from each group in turn, from each of its families in turn, one layout after
    another, all in an order of its seed: so that few attempts see much.
    """
    run, task = add_texts(RUN_COMMANDS), add_texts(TASK_COMMANDS)
    readers = add_texts(
        ("verify", "inspect", "eval", "export", "train", "claim", "dispute", "graph")
    )
    short = add_texts(("verify", "inspect", "eval", "export", "train"))
    nodes = bombs.NODES
    groups: dict[str, list[Family]] = {
        "nodes before verify": [
            tuple(lay_node(place, kind, "verify") for place in PLACES) for kind in nodes
        ],
        "nodes": [
            tuple(lay_node(place, kind, command) for kind in nodes for command in run)
            for place in PLACES
        ],
        "content": [
            spread(partial(lay_content, place, name, make), readers)
            for place, form in FORMS.items()
            for name, make in form.items()
        ],
        "signed": [
            *(spread(partial(lay_graph, n, change), readers) for n, change in GRAPHS.items()),
            *(spread(partial(lay_task, n, alter), readers) for n, alter in TASKS.items()),
            (huge_claim,),
        ],
        "manifest": [
            spread(partial(lay_manifest, n, change), short) for n, change in MANIFESTS.items()
        ],
        "names": [
            *(spread(partial(lay_name, name), run) for name in NAMES),
            *(spread(partial(lay_extra, name), readers) for name in NAMES),
        ],
        "folders": [
            tuple(lay_as_run(kind, command) for kind in nodes for command in readers),
            spread(partial(lay_deep), run),
            *(spread(partial(lay_many, w), run) for w in ("checkpoints", "more", "proofs", "data")),
        ],
        "task files": [
            *(spread(partial(lay_task_content, n, m), task) for n, m in bombs.TOML.items()),
            *(spread(partial(lay_text, n, change), task) for n, change in TEXT_CHANGES.items()),
        ],
        "named files": [
            tuple(
                lay_named(place, kind, command)
                for place in ("model.onnx", "x.npy", "y.npy", "task.toml")
                for command in task
            )
            for kind in nodes
        ],
        "models": [
            *(spread(partial(lay_model, n, m), task) for n, m in bombs.ONNX.items()),
            (saturating_sites,),
        ],
        "data": [spread(partial(lay_data, k, n, w, cached=c), task) for k, n, w, c in list_data()],
        "arguments": [tuple(lay_argument(o, kind) for kind in nodes) for o in ARGUMENTS],
    }
    return tuple((name, tuple(families)) for name, families in groups.items())


def choose(seed: int, number: int) -> Layout:
    """Layout ``number`` of a campaign."""
    groups = list_groups()
    name, families = groups[number % len(groups)]
    turn, nth = divmod(number // len(groups), len(families))
    family = shuffled(families, seed, name)[nth]
    return shuffled(family, seed, name, nth)[turn % len(family)]


T = TypeVar("T")


def shuffled(items: Sequence[T], *seed: object) -> list[T]:
    found = list(items)
    make_rng("hostile", *seed).shuffle(found)
    return found


class Hostile:
    """Hostile files and folders."""

    def count(self, asked: int) -> int:
        return asked

    def attempt(self, bench: Bench, number: int, work: Path, say: Say) -> Result:
        layout = choose(bench.seed, number)
        yard = Yard(bench, work, make_rng(bench.seed, "hostile", number))
        attack = layout(yard)
        result = Result(attack.name)
        try:
            prepare = lose_sight if attack.trap.unprivileged else (lambda: None)
            child = bench.start(attack.arguments, prepare=prepare, folder=work)
            outcome = child.wait(bench.seconds, attack.trap.during)
        finally:
            with suppress(OSError):
                attack.trap.undo()
        show(say, attack.arguments, outcome)
        as_json = "--json" in attack.arguments
        faults = judge(outcome, as_json=as_json, seconds=bench.seconds)
        if attack.arguments[0] == "verify":
            if as_json:
                faults += judge_verdict(outcome, attack.verdicts)
            elif outcome.code == 0 and "verified" not in attack.verdicts:
                faults.append(Fault("WRONG: verified", "as text"))
        if outcome.code == 10 and "fraud" not in attack.verdicts:
            faults.append(Fault("WRONG: fraud", f"exit code 10 of {attack.arguments[0]}"))
        if outcome.code == 4 and attack.arguments[0] not in ("verify", "srs"):
            faults.append(Fault("an exit code of verify alone", "4"))
        result.add(outcome, faults)
        return result


__all__ = ["GIB", "Hostile"]
