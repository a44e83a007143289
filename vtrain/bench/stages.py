"""What each thing that can be done with a task takes on this machine: time, memory, bytes.

Two forms of the task are measured.  One has a state root and a checkpoint every few steps, and is
trained, replayed and disputed; of the other, with a state root every step, one step is traced and
checked.  How often a run commits changes neither what a step nor what a state root takes, so that
the figures hold for any: ``vtrain.bench.estimate`` puts them together.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeVar

import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vtrain import _core
from vtrain.attest.claims import sign_claim
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.audit.replay import replay_segment
from vtrain.audit.structure import check_structure, read_state
from vtrain.audit.traces import Store, TraceChecker, choose_arithmetic
from vtrain.bench.figures import STAGES, Figure
from vtrain.commit.checkpoint import write_checkpoint
from vtrain.commit.log import decode_log, encode_frame
from vtrain.commit.state import compute_root_of_state
from vtrain.commit.traces import TraceFolder
from vtrain.demo.lies import Lies, LyingProvider, LyingSession
from vtrain.dispute import statement
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.game import advance, apply, find_deadline, find_verdict, start
from vtrain.dispute.genesis import make_clocks, make_genesis
from vtrain.dispute.players import Player
from vtrain.dispute.state import DisputedGraph, Game
from vtrain.engines.base import Session
from vtrain.engines.registry import open_session
from vtrain.errors import RunError, VtrainError
from vtrain.graph.values import PRODUCTS
from vtrain.limits import limits_here
from vtrain.spec.algebraic import compute_vector
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.store import open_run
from vtrain.train.summary import measure_step
from vtrain.train.task import CompiledTask, TaskFile
from vtrain.train.traces import write_traces
from vtrain.train.watch import Watch
from vtrain.wire import structs
from vtrain.wire.claim import Claim
from vtrain.wire.dispute import Genesis, Open, SignedMove, decode_move
from vtrain.wire.graph import StepGraph, TensorType
from vtrain.wire.record import StepRecord
from vtrain.wire.task import BLAKE3_ONLY

EVERY: Final = 5
"""Steps between two state roots of the run that is measured."""
SECONDS: Final = 1.0
"""For a figure that is measured several times, which is at least three times."""
_LEAST: Final = 3
_TOO_MUCH: Final = 1 << 24
"""What a false gradient is too great by: more than rounding takes away."""
_CLOCKS: Final = make_clocks()
T = TypeVar("T")
Prove = Callable[[CompiledTask, Path], Sequence[Figure]]
"""Measures proofs of a run of a task."""


@dataclass(frozen=True)
class Setting:
    """How it is measured.

    Memory is that of so many ``processes``.  ``prove`` measures proofs of a run, and is None where
    none are; ``tell`` hears what is done.
    """

    engine: str = "auto"
    threads: int = 0
    every: int = EVERY
    seconds: float = SECONDS
    processes: int = 1
    prove: Prove | None = None
    tell: Callable[[str], None] = lambda what: None


@dataclass(frozen=True)
class Measured:
    """The figures of one task, and the stages that were not measured, with the reason."""

    figures: tuple[Figure, ...]
    skipped: dict[str, str]


def shorten(file: TaskFile, every: int, seed: int = 0) -> TaskFile:
    """The task with a state root and a checkpoint every so many steps and ``seed`` added to its
    own, without KZG commitments: what it costs to train on is the same."""
    steps = -(-max(file.steps, 2 * every) // every) * every
    return replace(
        file,
        seed=file.seed + seed,
        steps=steps,
        commit_every=every,
        checkpoint_every=every,
        commitments=BLAKE3_ONLY,
        proof=None,
    )


class Subject:
    """A task under measurement; what several stages need is made once.

    ``compile_`` makes the task, with so many steps between two state roots.  Files go into the new
    ``folder``.
    """

    def __init__(
        self, compile_: Callable[[int], CompiledTask], folder: Path, setting: Setting
    ) -> None:
        self._compile, self._folder, self._setting = compile_, folder, setting
        self._key = Ed25519PrivateKey.generate()

    def measure(self, stages: Sequence[str]) -> Measured:
        """All figures of these stages.

        What a stage refuses (a model without circuits, an extra that is missing) is a reason.
        """
        work: dict[str, Callable[[], Iterator[Figure]]] = {
            "training": self.train,
            "commitment": self.commit,
            "replay": self.replay,
            "algebraic": self.check,
            "dispute": self.dispute,
            "proof": self.prove,
        }
        figures: list[Figure] = []
        skipped: dict[str, str] = {}
        for stage in STAGES:
            if stage not in stages:
                continue
            self._setting.tell(stage)
            try:
                figures += work[stage]()
            except VtrainError as error:
                skipped[stage] = str(error)
        return Measured(tuple(figures), skipped)

    # --- what is measured

    def train(self) -> Iterator[Figure]:
        """A step without its state root, and the memory of a process that does steps."""
        setting, session = self._setting, self._session
        session.load_state(self.task.initial_state)
        # The steps that commit are fewer than half: the median is of one that does not.
        step = measure_step(session.step, setting.seconds, warm=1, least=2 * setting.every)
        yield Figure("training", "step", "s", step)
        yield from self._measure_memory("training", self.paths.root)

    def commit(self) -> Iterator[Figure]:
        """A state root, a checkpoint, a record of the log, and the memory of a process that makes
        the first two of them."""
        task, records = self.task, self._records
        state = self._read_state()
        threads = self._setting.threads
        root = self._repeat(lambda: compute_root_of_state(task.graph, state, threads))
        path = self._folder / "checkpoint.safetensors"
        settle_disk()
        written = self._repeat(lambda: write_checkpoint(path, task.graph, state))
        yield Figure("commitment", "state root", "s", root)
        yield Figure("commitment", "checkpoint", "s", written)
        yield Figure("commitment", "checkpoint", "bytes", path.stat().st_size)
        yield Figure(
            "commitment", "record", "bytes", len(encode_frame(records[self._setting.every - 1]))
        )
        yield from self._measure_memory("commitment", self.paths.root)

    def replay(self) -> Iterator[Figure]:
        """An interval replayed, by step; the structure check of the run, by step."""
        every, setting, session = self._setting.every, self._setting, self._session

        def replay() -> None:
            session.load_state(self._read_state())
            if replay_segment(session, self._records, every, 2 * every) is not None:
                raise RunError("does not replay on this machine", where=str(self.paths.root))

        settle_disk()
        yield Figure("replay", "step", "s", self._repeat(replay) / every)
        checkpoint = self.paths.checkpoint(every).stat().st_size
        yield Figure("replay", "read for an interval", "bytes", checkpoint)
        yield from self._measure_memory("replay", self.paths.root)
        structure = self._repeat(lambda: check_structure(self.paths.root, threads=setting.threads))
        yield Figure("replay", "structure check of the run", "s", structure)

    def check(self) -> Iterator[Figure]:
        """A trace of one step, and its check from the folder that it is in."""
        found = self.traced
        yield Figure("algebraic", "trace of a step", "s", found.writing)
        yield Figure("algebraic", "trace of a step", "bytes", found.stored)
        yield Figure("algebraic", "check of a step", "s", found.checking)
        yield Figure("algebraic", "read for a step", "bytes", found.read)
        yield from self._measure_memory("algebraic", *self._traced_in)

    def dispute(self) -> Iterator[Figure]:
        """A game about one element of the largest gradient of the last step: what it takes an
        honest challenger, who has the states of the run's checkpoints.  Memory is that of a
        process that plays the challenger's part in the same game."""
        played = self.play(self._setting.every)
        yield Figure("dispute", "challenger", "s", played.thinking)
        yield Figure("dispute", "host", "s", played.hosting)
        yield Figure("dispute", "rounds", "count", played.rounds)
        yield Figure("dispute", "all moves", "bytes", played.sent)
        judge = self._repeat(lambda: _core.referee_judge(played.statement))
        yield Figure("dispute", "referee's leaf", "s", judge)
        yield Figure("dispute", "statement", "bytes", len(played.statement))
        game = self._folder / "game"
        game.write_bytes(structs.encode(played.script))
        yield from self._measure_memory("dispute", self.paths.root, game)

    def prove(self) -> Iterator[Figure]:
        """A proof of a step, or of a part of one."""
        if self._setting.prove is None:
            raise RunError("was not asked for (--proof)", where="proof")
        yield from self._setting.prove(self.task, self.paths.root)

    # --- what a run and its audits are made of besides

    @cached_property
    def running(self) -> float:
        """Seconds of a run of two intervals, from nothing."""
        return statistics.median(sample(self._train, self._setting.seconds))

    @cached_property
    def committing(self) -> float:
        """Seconds of a step with its state root."""
        task, setting = self._compile(1), self._setting
        session = open_session(setting.engine, task.graph, task.samples, threads=setting.threads)
        session.load_state(task.initial_state)
        return measure_step(session.step, setting.seconds, warm=1, least=setting.every)

    @property
    def advancing(self) -> float:
        """Seconds of a step that is put into the log and the history, as a run does it."""
        return self._advanced[0]

    @cached_property
    def reading(self) -> float:
        """Seconds for each record of a log that is read, as whoever opens a run does."""
        _, log = self._advanced
        return self._repeat(lambda: decode_log(log)) / len(decode_log(log))

    @cached_property
    def _advanced(self) -> tuple[float, bytes]:
        """Seconds of a step as a run does it, and the log of such steps."""
        session, times = self._session, list[float]()
        session.load_state(self.task.initial_state)
        watch = Watch(self.task, engine=self._setting.engine)
        end = time.perf_counter() + self._setting.seconds
        with open_run(self._folder / "advanced", self.task, keep_data=False) as run:
            watch.begin(run.paths.root, run.paths.history, 0, self.task.spec.steps)

            def advance() -> None:
                record = session.step()
                run.append(record)
                watch.step(record, 1.0, None, session)

            # The steps that commit are fewer than half: the median is of one that does not.
            while len(times) < self.task.spec.steps and (
                len(times) < 2 * self._setting.every or time.perf_counter() < end
            ):
                times.append(time_once(advance))
            watch.end()
            log = run.paths.log
        return statistics.median(times), log.read_bytes()

    @cached_property
    def traced(self) -> Traced:
        """A step traced and checked."""
        return self._measure_trace(1, *self._traced_in)

    def trace(self, every: int) -> Traced:
        """An interval of so many steps traced and checked; its files are removed."""
        folder = self._folder / "interval"
        try:
            return self._measure_trace(every, folder / "traced", folder / "traces")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _measure_trace(self, every: int, run: Path, folder: Path) -> Traced:
        setting = self._setting
        return measure_trace(
            self._compile(every),
            2 * every,
            run,
            folder,
            key=self._key,
            engine=setting.engine,
            threads=setting.threads,
            seconds=setting.seconds,
        )

    def play(self, every: int) -> Played:
        """A game about the last step of two intervals of so many steps."""
        setting = self._setting
        return measure_dispute(
            self.task if every == setting.every else self._compile(every),
            2 * every,
            engine=setting.engine,
            threads=setting.threads,
            seconds=setting.seconds,
        )

    @cached_property
    def loading(self) -> float:
        """Seconds to read a checkpoint, to hash it, and to begin from it."""
        return self._repeat(lambda: self._session.load_state(self._read_state()))

    @cached_property
    def tracing(self) -> float:
        """Seconds of a step of which the digests of all values are computed."""
        self._session.load_state(self._read_state())
        return measure_step(self._session.trace, self._setting.seconds, warm=1, least=2)

    # --- what they need

    @cached_property
    def task(self) -> CompiledTask:
        """The form of it that has a state root every few steps."""
        return self._compile(self._setting.every)

    @property
    def _traced_in(self) -> tuple[Path, Path]:
        return self._folder / "traced", self._folder / "traces"

    @cached_property
    def paths(self) -> RunPaths:
        """Of a run of two intervals."""
        self._train()
        return RunPaths(self._folder / "run")

    def _train(self) -> float:
        """Do that run anew, which comes out the same, and say how long that took."""
        setting, run = self._setting, self._folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        settle_disk()
        return train(
            self.task,
            run,
            key=self._key,
            engine=setting.engine,
            steps=2 * setting.every,
            threads=setting.threads,
        ).seconds

    @cached_property
    def _records(self) -> list[StepRecord]:
        return decode_log(self.paths.log.read_bytes())

    def _read_state(self) -> Any:
        """The state after the first interval, from its checkpoint."""
        task, setting = self.task, self._setting
        paths, records = self.paths, self._records
        return read_state(paths, task.spec, task.graph, records, setting.every, setting.threads)

    @cached_property
    def _session(self) -> Session:
        task, setting = self.task, self._setting
        return open_session(setting.engine, task.graph, task.samples, threads=setting.threads)

    def _measure_memory(
        self, stage: str, run: Path, beside: Path | None = None
    ) -> Iterator[Figure]:
        """What a process of its own takes that reads the run, and what is ``beside`` it, and does
        this alone."""
        from vtrain.bench.alone import measure_alone  # which imports this module

        setting = self._setting
        peak = measure_alone(
            stage,
            run,
            every=setting.every,
            engine=setting.engine,
            threads=setting.threads,
            beside=beside,
            processes=setting.processes,
        )
        if peak is not None:
            yield Figure(stage, "memory", "bytes", peak)

    def _repeat(self, work: Callable[[], object]) -> float:
        return repeat(work, self._setting.seconds)


# --- time


def time_once(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def repeat(work: Callable[[], object], seconds: float = SECONDS) -> float:
    """The median of calls for about ``seconds``, three at least, after one that is not counted."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _LEAST or time.perf_counter() < end:
        times.append(time_once(work))
    return statistics.median(times)


def sample(work: Callable[[], T], seconds: float) -> list[T]:
    """What calls for about ``seconds`` give, one at least.

    The first, which finds nothing ready, is left out where there are others.
    """
    end = time.perf_counter() + seconds
    found = [work()]
    while time.perf_counter() < end:
        found.append(work())
    return found[1:] or found


def settle_disk() -> None:
    """Wait until what was written is on the disk: syncing a file would wait for it too."""
    os.sync()


# --- the check of a trace


class CountingStore:
    """Another store of tensors, with the bytes counted that are read of it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read = 0

    def holds(self, digest: bytes) -> bool:
        """As the store says."""
        return self._store.holds(digest)

    def read_chunk(self, digest: bytes, kind: TensorType) -> npt.NDArray[Any]:
        """As the store gives it."""
        self.read += kind.byte_length
        return self._store.read_chunk(digest, kind)


def make_checker(
    task: CompiledTask, store: Store, randomness: bytes, engine: str, threads: int
) -> TraceChecker:
    """What checks traces of a task, with one vector as long as it has to be."""
    widths = [n.outputs[0].shape[-1] for n in task.graph.nodes if n.op in PRODUCTS]
    vectors = [compute_vector(randomness, bytes(32), 0, max(widths, default=0))]
    name = "numpy" if engine == "numpy" else "cpu"
    arithmetic = choose_arithmetic(name, threads)
    held = limits_here().trace_held_bytes
    return TraceChecker(task.graph, task.samples, store, vectors, arithmetic, held, threads)


@dataclass(frozen=True)
class Traced:
    """An interval traced and checked: median seconds to write its values, their bytes, median
    seconds to check them, bytes read for that."""

    writing: float
    stored: int
    checking: float
    read: int


def measure_trace(
    task: CompiledTask,
    last: int,
    run: Path,
    folder: Path,
    *,
    key: Ed25519PrivateKey,
    engine: str,
    threads: int,
    seconds: float,
) -> Traced:
    """Train ``task`` up to the step ``last`` into the new ``run``; trace the interval that ends
    there into the new ``folder``, and check it, for about so many seconds each."""
    train(task, run, key=key, engine=engine, steps=last, threads=threads)

    def write() -> float:
        shutil.rmtree(folder, ignore_errors=True)
        settle_disk()
        return time_once(
            lambda: write_traces(run, (last,), key=key, out=folder, engine=engine, threads=threads)
        )

    writing = statistics.median(sample(write, seconds))
    signed = TraceFolder(folder).read_claim()
    stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    (trace,) = signed.traces.traces
    leaves = TraceFolder(folder).read_leaves(trace)
    store = CountingStore(TraceFolder(folder, threads))
    checker = make_checker(task, store, bytes(32), engine, threads)

    def check() -> None:
        if checker.check(trace, leaves) is not None:
            raise RunError("does not check on this machine", where=str(folder))

    check()
    read = store.read
    return Traced(writing, stored, repeat(check, seconds), read)


# --- a dispute


def measure_dispute(
    task: CompiledTask, step: int, *, engine: str, threads: int, seconds: float
) -> Played:
    """A game about one element of the largest gradient of ``step``: median times of games for
    about twice so many seconds, since a game is longer than what else is measured."""
    node = find_gradient(task.graph)

    def lie(value: npt.NDArray[Any], before: object) -> npt.NDArray[Any]:
        false = value.copy()
        false.flat[false.size // 2] += _TOO_MUCH
        return false

    def open_() -> Session:
        return open_session(engine, task.graph, task.samples, threads=threads)

    def play_once() -> Played:
        honest = EngineProvider(task, open_(), steps=step)
        lying = LyingSession(task, Lies({(step, node): lie}), open_())
        cheat = LyingProvider(task, lying, steps=step)
        try:
            return play(task, cheat, honest)
        finally:
            honest.close()
            cheat.close()

    games = sample(play_once, 2 * seconds)
    thinking, hosting = (
        statistics.median(getattr(game, name) for game in games) for name in ("thinking", "hosting")
    )
    return replace(games[-1], thinking=thinking, hosting=hosting)


def find_gradient(graph: StepGraph) -> int:
    """The node of the largest gradient that is a product, else the largest product; RunError where
    there is none."""
    products = [i for i, node in enumerate(graph.nodes) if node.op in PRODUCTS]
    gradients = [i for i in products if graph.nodes[i].attrs.get("transpose_a")]
    if not products:
        raise RunError("has no product that a dispute could be about", where="graph")
    return max(gradients or products, key=lambda i: graph.nodes[i].outputs[0].size)


@dataclass(frozen=True)
class Script:
    """A game as its challenger, who has the Ed25519 key ``key``, met it: ``turns`` are what the
    other side said, turn by turn.  With it the challenger's part can be played again alone."""

    genesis: Genesis
    key: Annotated[bytes, structs.Length(32)]
    turns: tuple[tuple[SignedMove, ...], ...]


@dataclass(frozen=True)
class Played:
    """A game to its end: seconds of the challenger and of who hosts it, rounds, bytes of all moves,
    what the referee was asked, and how to play it again."""

    thinking: float
    hosting: float
    rounds: int
    sent: int
    statement: bytes
    script: Script


class Side(Protocol):
    """Who has moves in a game."""

    def moves(self, game: Game) -> Iterable[SignedMove]:
        """What this side says now."""
        ...


class Recorded:
    """Says what a side said in a game before, turn by turn, and then nothing."""

    def __init__(self, turns: Iterable[tuple[SignedMove, ...]]) -> None:
        self._turns = iter(turns)

    def moves(self, game: Game) -> tuple[SignedMove, ...]:
        """What it said at this turn."""
        return next(self._turns, ())


def play(task: CompiledTask, cheat: EngineProvider, honest: EngineProvider) -> Played:
    """A false claim against an honest challenger, until it falls.

    RunError where both claims are the same, or the false one stands.
    """
    if cheat.log().root == honest.log().root:
        raise RunError("the wrong element is lost in rounding: there is no dispute", where="step")
    keys = [Ed25519PrivateKey.generate() for _ in range(2)]
    log = cheat.log()
    claim = Claim(bytes(32), public_key(keys[0]), task.task_id, log.size, log.root)
    host, signed = public_key(Ed25519PrivateKey.generate()), sign_claim(claim, keys[0])
    genesis = make_genesis(task.spec, task.graph, signed, host=host, opened=0, clocks=_CLOCKS)
    return play_out(task.graph, genesis, Player(cheat, keys[0]), honest, keys[1])


def play_out(
    graph: StepGraph, genesis: Genesis, liar: Side, honest: EngineProvider, key: PrivateKey
) -> Played:
    """A game from its genesis on, ``honest`` with ``key`` against ``liar``; RunError where it does
    not end in the referee's ruling for ``honest``."""
    game = start(genesis, DisputedGraph(graph, genesis.graph_root))
    sides: tuple[Side, Side] = (liar, Player(honest, key))
    thinking, hosting, rounds, sent, asked = [0.0, 0.0], 0.0, 0, 0, b""
    turns: list[tuple[SignedMove, ...]] = []
    while not game.over:
        accepted, now = 0, game.now + 1
        for number, side in enumerate(sides):
            begin = time.perf_counter()
            moves = tuple(side.moves(game))
            middle = time.perf_counter()
            thinking[number] += middle - begin
            if side is liar:
                turns.append(moves)
            for move in moves:
                sent += len(structs.encode(move))
                opened = decode_move(move.move)
                if isinstance(opened, Open):
                    ((contest, dispute),) = game.asked[move.about].where
                    asked = statement.compose(game, contest, dispute, opened)
                with suppress(VtrainError):  # overtaken by a move before it
                    game = apply(game, move, now)
                    accepted += 1
            hosting += time.perf_counter() - middle
        rounds += bool(accepted and game.round)
        due = find_deadline(game)
        if not accepted and not game.over and due is not None:
            game = advance(game, due)
    verdict = find_verdict(game)
    if verdict is None or verdict.standing != honest.log().root or not asked:
        raise RunError("the game did not end in the referee's ruling", where="dispute")
    script = Script(genesis, key.private_bytes_raw(), tuple(turns))
    return Played(thinking[1], hosting, rounds, sent, asked, script)
