"""What an answer costs an honest player: counted in steps of the engine, not by a clock."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.dispute.claims import make_run
from tests.dispute.counting import CountingSession
from tests.tasks import make_tiny_task
from vtrain.attest.keys import PrivateKey
from vtrain.commit.digest import compute_tensor_digest
from vtrain.dispute import run_provider
from vtrain.dispute.engine_provider import EngineProvider, Pace
from vtrain.dispute.kept_states import DEFAULT_KEEP_BYTES, Keep, compute_replay_steps
from vtrain.dispute.provider import ClaimTree
from vtrain.engines.registry import open_session
from vtrain.errors import ClocksError, RunError, StorageError
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.wire.record import StepRecord, decode_record

STEPS, EVERY = 600, 20
FILE = 4096
KEY = PrivateKey.from_private_bytes(bytes(range(32)))
TASK = make_tiny_task(steps=STEPS, commit_every=EVERY, checkpoint_every=300)


def open_counting(engine: str = "cpu") -> CountingSession:
    return CountingSession(open_session(engine, TASK.graph, TASK.samples, threads=1))


def make_provider(keep: Keep | None = None) -> tuple[EngineProvider, CountingSession]:
    """The honest claim as ``redo`` makes it, and its session, counting from now on."""
    session = open_counting()
    provider = EngineProvider(TASK, session, keep=keep or Keep())
    session.stepped = 0
    return provider, session


def room_for(states: int) -> int:
    """``keep_bytes`` for just so many states."""
    return (states * FILE) * 4 // 3 + 3


@pytest.fixture(scope="module")
def truth() -> EngineProvider:
    return make_provider()[0]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 600 steps with checkpoints every 300; not to be changed."""
    path = tmp_path_factory.mktemp("runs") / "wide"
    train(TASK, path, key=KEY)
    return path


def cost(session: CountingSession, ask: Callable[[], object]) -> int:
    before = session.done
    ask()
    return session.done - before


# --- a trace costs its interval, wherever it is


def test_a_trace_of_a_late_step_costs_its_interval() -> None:
    """Without states it would be 595 steps: the window was shorter, and the liar stood."""
    provider, session = make_provider()
    assert provider.worst_replay == EVERY == compute_replay_steps(STEPS, EVERY, FILE)
    for step in (595, 1, 20, 21, 300, 600, 41, 595):
        assert cost(session, lambda step=step: provider.trace(step)) <= EVERY  # type: ignore[misc]
    assert session.traced <= 15 + 1 + 20 + 1 + 20 + 20 + 1


def test_a_disputed_step_costs_its_interval_at_every_stage() -> None:
    provider, session = make_provider()
    node = TASK.graph.find("state_root")
    assert cost(session, lambda: provider.trace(595)) == 15
    assert cost(session, lambda: provider.chunks(595, node)) <= EVERY
    assert cost(session, lambda: provider.open(595, node, 0, 0, first=False)) <= EVERY
    state = next(i for i, found in enumerate(TASK.graph.nodes) if found.op == "state")
    assert cost(session, lambda: provider.open(581, state, 0, 0, first=True)) <= EVERY
    assert provider.replays <= 4


@pytest.mark.parametrize("states", [0, 1, 2, 3, 9, 14, 28, 29])
def test_a_tight_limit_costs_the_distance_that_it_says(states: int, tmp_path: Path) -> None:
    keep = Keep(room_for(states), folder=tmp_path)
    provider, session = make_provider(keep)
    files = list(tmp_path.glob("state-*"))
    assert len(files) <= states
    assert sum(file.stat().st_size for file in files) <= keep.keep_bytes
    worst = provider.worst_replay
    assert worst == compute_replay_steps(STEPS, EVERY, FILE, keep.keep_bytes)
    assert worst == EVERY * -(-30 // (states + 1))
    costs = []
    for step in range(STEPS, 0, -EVERY // 2):
        provider.want([step])
        costs.append(cost(session, lambda step=step: provider.trace(step)))  # type: ignore[misc]
    assert max(costs) == worst


def test_the_trees_are_those_of_a_provider_that_keeps_nothing(truth: EngineProvider) -> None:
    poor, _ = make_provider(Keep(0, 0))
    node, fold = TASK.graph.find("state_root"), _find_fold()
    poor.want([595, 590], [(595, node), (581, 0)])
    for provider in (truth, poor):
        provider.want([], [(583, fold)])
    asks: list[Callable[[EngineProvider], ClaimTree]] = [
        lambda p: p.log(),
        lambda p: p.trace(595),
        lambda p: p.trace(590),
        lambda p: p.chunks(595, node),
        lambda p: p.terms(583, fold, 3),
    ]
    for ask in asks:
        first, second = ask(truth), ask(poor)
        assert (first.root, first.size) == (second.root, second.size)
        assert first.leaf(0) == second.leaf(0)
        assert first.path(first.size - 1) == second.path(first.size - 1)
    for step, at, first_step in ((595, node, False), (583, fold, False), (581, 0, True)):
        opening = truth.open(step, at, 3 if at == fold else 0, 0, first=first_step)
        assert opening == poor.open(step, at, 3 if at == fold else 0, 0, first=first_step)


def _find_fold() -> int:
    return next(i for i, node in enumerate(TASK.graph.nodes) if node.op == "matmul")


# --- damage, crashes, full disks


def test_a_damaged_state_is_replayed_from_an_earlier_one(tmp_path: Path) -> None:
    provider, session = make_provider(Keep(folder=tmp_path))
    root = provider.trace(595).root
    path = tmp_path / "state-000000000580.safetensors"
    fresh, session = make_provider(Keep(folder=tmp_path / "other"))
    spoiled = tmp_path / "other" / path.name
    data = bytearray(spoiled.read_bytes())
    data[-1] ^= 1
    spoiled.write_bytes(data)
    assert cost(session, lambda: fresh.trace(595)) == EVERY + 15
    assert fresh.trace(595).root == root
    # And it was kept again on the way.
    assert fresh.kept.damaged == 1
    assert spoiled.read_bytes() == path.read_bytes()
    assert fresh.worst_replay == EVERY


def test_all_that_is_kept_may_vanish(tmp_path: Path, truth: EngineProvider) -> None:
    """As when somebody clears the folder of temporary files: slower, and no less true."""
    folder = tmp_path / "kept"
    provider, session = make_provider(Keep(memory_bytes=0, folder=folder))
    provider.want([], [(595, node) for node in range(40)])
    provider.tensor(595, 3)
    shutil.rmtree(folder)
    assert cost(session, lambda: provider.trace(555)) <= 555
    assert provider.trace(555).root == truth.trace(555).root
    assert np.array_equal(provider.tensor(595, 3), truth.tensor(595, 3))


def test_a_disk_that_fills_while_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def fill_up(handle: int, data: memoryview) -> int:
        if len(list(tmp_path.glob("state-*"))) < 10:
            return write(handle, data)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fill_up)
    provider, session = make_provider(Keep(folder=tmp_path))
    assert provider.kept.steps == list(range(80, STEPS, 80))
    assert provider.worst_replay == 80
    assert cost(session, lambda: provider.trace(635 - 80)) == 75


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught:
        make_provider(Keep(folder=tmp_path / "file"))
    assert caught.value.where == str(tmp_path / "file")


# --- defending a run directory


@pytest.fixture
def defended(monkeypatch: pytest.MonkeyPatch) -> list[CountingSession]:
    """Sessions that ``run_provider`` opened."""
    opened: list[CountingSession] = []

    def open_one(*_: Any) -> CountingSession:
        opened.append(open_counting())
        return opened[-1]

    monkeypatch.setattr(run_provider, "open_session", open_one)
    return opened


def test_wide_checkpoints_are_filled_in_before_a_game(
    wide: Path, defended: list[CountingSession], truth: EngineProvider
) -> None:
    told: list[int] = []
    provider = run_provider.defend(run_provider.load_run(wide), progress=told.append)
    session = defended[0]
    assert session.done <= STEPS
    assert told == list(range(EVERY, STEPS, EVERY))
    assert provider.worst_replay == EVERY
    assert provider.kept.steps == [at for at in told if at != 300]
    for step in (295, 300, 301, 595):
        assert cost(session, lambda step=step: provider.trace(step)) <= EVERY  # type: ignore[misc]
        assert provider.trace(step).root == truth.trace(step).root


def test_without_room_it_is_ready_at_once_and_says_what_that_costs(
    wide: Path, defended: list[CountingSession]
) -> None:
    provider = run_provider.defend(run_provider.load_run(wide), keep=Keep(0))
    assert defended[0].done == 0
    assert provider.worst_replay == 300
    assert cost(defended[0], lambda: provider.trace(300)) == 300


def test_what_was_kept_before_is_taken_up(
    wide: Path, tmp_path: Path, defended: list[CountingSession]
) -> None:
    """A player that is stopped, with a file half written, goes on where it was."""
    run, keep = run_provider.load_run(wide), Keep(folder=tmp_path)
    run_provider.defend(run, keep=keep).close()
    (folder,) = tmp_path.iterdir()
    (folder / ".state-000000000440.safetensors.tmp").write_bytes(b"half")
    (folder / "state-000000000440.safetensors").unlink()
    path = folder / "state-000000000040.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    provider = run_provider.defend(run, keep=keep)
    assert defended[1].done == 2 * EVERY
    assert provider.worst_replay == EVERY
    assert not list(folder.glob(".*.tmp"))


def test_a_checkpoint_spoiled_since_is_no_loss(
    wide: Path, tmp_path: Path, defended: list[CountingSession], truth: EngineProvider
) -> None:
    run = Path(shutil.copytree(wide, tmp_path / "run"))
    provider = run_provider.defend(run_provider.load_run(run))
    RunPaths(run).checkpoint(300).write_bytes(b"spoiled")
    assert cost(defended[0], lambda: provider.trace(315)) == EVERY + 15
    assert provider.trace(315).root == truth.trace(315).root


def test_redo_keeps_while_it_trains(wide: Path, defended: list[CountingSession]) -> None:
    provider = run_provider.redo(run_provider.load_run(wide))
    assert defended[0].done == STEPS
    assert cost(defended[0], lambda: provider.trace(595)) == 15


def test_a_claim_that_does_not_come_out_is_not_defended(truth: EngineProvider) -> None:
    records = [decode_record(truth.log().leaf(at)) for at in range(STEPS)]
    false = records[432]
    records[432] = StepRecord(false.step, false.batch_digest, false.loss + 1, false.state_root)
    provider = EngineProvider(TASK, open_counting(), records=records)
    with pytest.raises(RunError) as caught:
        provider.fill()
    assert caught.value.where == "step 433"


# --- one replay for an interval


def test_what_is_wanted_in_an_interval_comes_of_one_replay(truth: EngineProvider) -> None:
    provider, session = make_provider()
    places = [(base + 1 + at % 13, 2 * at) for base in (40, 300, 580) for at in range(14)][:40]
    assert len(set(places)) == 40
    provider.want(tensors=places)
    assert (provider.replays, session.done) == (0, 0)
    for step, node in places:
        assert provider.chunks(step, node).root == compute_tensor_digest(truth.tensor(step, node))
    assert provider.replays == 3
    assert session.done <= 3 * EVERY
    assert session.evaluated == len({step for step, _ in places})
    before = provider.replays, session.done, session.evaluated
    for step, node in places:  # the inputs are there as well
        provider.open(step, node, 0, 0, first=False)
    assert (provider.replays, session.done, session.evaluated) == before


def test_traces_of_an_interval_come_of_one_replay(truth: EngineProvider) -> None:
    provider, session = make_provider()
    provider.want([583, 600, 585, 41], [(590, 7), (590, 8)])
    for step in (585, 583, 600, 590):
        assert provider.trace(step).root == truth.trace(step).root
    assert np.array_equal(provider.tensor(590, 7), truth.tensor(590, 7))
    assert (provider.replays, session.traced, session.evaluated) == (1, EVERY, 1)
    provider.trace(41)
    assert provider.replays == 2


def test_an_opening_of_a_first_state_is_wanted_with_it() -> None:
    """Also where no state is kept at the base of the interval, and none fits into memory."""
    run = make_run("wide", steps=8, commit_every=4, batch=40)
    session = CountingSession(open_session("cpu", run.task.graph, run.task.samples, threads=1))
    provider = EngineProvider(run.task, session, keep=Keep(0, 1 << 16))
    session.stepped = 0
    states = [i for i, node in enumerate(run.task.graph.nodes) if node.op == "state"]
    node = max(states, key=lambda node: run.tensor(5, node).nbytes)
    provider.want(tensors=[(5, node), (8, 0)])
    assert provider.open(5, node, 0, 0, first=True).state_leaf is not None
    provider.open(5, node, 1, 0, first=True)
    assert (provider.replays, session.done, session.evaluated) == (1, 7, 2)


def test_intervals_in_turn_are_not_gone_back_to_from_the_start() -> None:
    """Who asks for one after another, with nothing kept on disk, pays for each once."""
    provider, session = make_provider(Keep(0))
    for node in (3, 5, 9):
        for step in (595, 395, 195):
            provider.tensor(step, node)
    assert session.done <= 580 + 380 + 180 + 3 * 3 * 15


# --- bounds


def make_large() -> tuple[EngineProvider, CountingSession, EngineProvider]:
    """A task with gradients of 20 KiB; with 64 KiB of memory, and 256 KiB of disk for tensors."""
    run = make_run("wide", steps=8, commit_every=4, batch=40)
    session = CountingSession(open_session("cpu", run.task.graph, run.task.samples, threads=1))
    keep = Keep(keep_bytes=1 << 20, memory_bytes=1 << 16)
    return EngineProvider(run.task, session, keep=keep), session, run.truth


def test_memory_and_disk_are_bounded() -> None:
    provider, session, truth = make_large()
    nodes = range(len(truth._task.graph.nodes))
    sizes = {node: truth.tensor(5, node).nbytes for node in nodes}
    assert 4 * sum(sizes.values()) > (1 << 16) + (1 << 18)  # more than there is room for
    places = [(step, node) for step in (5, 6, 7, 8) for node in nodes]
    provider.want(tensors=places)
    for step, node in places:
        assert np.array_equal(provider.tensor(step, node), truth.tensor(step, node))
        assert provider.chunks(step, node).root == truth.chunks(step, node).root
        if node % 9 == 0:
            provider.open(step, node, 0, 0, first=step == 5)
        assert provider._scratch.memory_held <= 1 << 15
        assert provider._trees.held <= max(1 << 14, 2 * max(sizes.values()))
        assert provider._scratch.disk_held <= 1 << 18
    folder = provider.kept.make_folder()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 1 << 20
    assert session.most_bytes <= max(1 << 14, 3 * max(sizes.values()))


def test_a_step_is_evaluated_in_parts_that_memory_holds() -> None:
    provider, session, truth = make_large()
    nodes = range(len(truth._task.graph.nodes))
    limit = 1 << 14
    largest = max(truth.tensor(5, node).nbytes for node in nodes)
    provider.want(tensors=[(5, node) for node in nodes])
    provider.chunks(5, 0)
    assert session.evaluated > 1
    assert session.most_bytes <= max(limit, largest)
    assert provider.replays == 1


def test_more_than_is_held_comes_of_a_few_replays() -> None:
    """As many as there is room for at a time, and not one after the other."""
    provider, _, truth = make_large()
    places = [(step, node) for step in (5, 6, 7, 8) for node in range(len(truth._task.graph.nodes))]
    size = sum(truth.tensor(step, node).nbytes for step, node in places)
    capacity = 1 << 18
    assert size > 1.5 * capacity
    provider.want(tensors=places)
    for step, node in places:
        provider.tensor(step, node)
    assert provider.replays <= -(-size // capacity) + 2


def test_spilled_tensors_are_read_back_and_never_trusted() -> None:
    provider, _, truth = make_large()
    places = [(5, node) for node in range(40)]
    provider.want(tensors=places)
    for step, node in places:
        provider.tensor(step, node)
    files = sorted(provider.kept.make_folder().glob(".tensors-*"))
    assert files
    assert provider.replays == 1
    for step, node in places:
        provider.tensor(step, node)
    assert provider.replays == 1
    for file in provider.kept.make_folder().glob(".tensors-*"):
        file.write_bytes(bytes(file.stat().st_size))
    for step, node in places:
        assert np.array_equal(provider.tensor(step, node), truth.tensor(step, node))
    assert provider.replays > 1


# --- clocks


def test_clocks_that_cannot_be_kept_are_refused_before_a_game(wide: Path) -> None:
    pace = Pace(step_ms=3, traced_ms=6)
    poor = run_provider.defend(run_provider.load_run(wide), keep=Keep(0))
    ready = run_provider.defend(run_provider.load_run(wide))
    needed = 20 * 6 + 280 * 3
    assert poor.compute_replay_ms(pace) == needed
    assert ready.compute_replay_ms(pace) == 20 * 6
    poor.check_clocks(trace=needed, replay=needed, pace=pace, margin=1)
    for clock in ("trace", "replay"):
        clocks = {"trace": 10_000, "replay": 10_000, clock: 216}
        with pytest.raises(ClocksError) as caught:
            poor.check_clocks(**clocks, pace=pace, margin=1)
        assert caught.value.where == f"clocks.{clock}"
        for part in ("216 ms", "300 steps", f"{needed} ms", "--keep-bytes"):
            assert part in caught.value.message
        # What it says helps.
        (keep,) = (
            int(word)
            for word in caught.value.message.split()
            if word.isdigit() and int(word) > 10_000
        )
        helped = run_provider.defend(run_provider.load_run(wide), keep=Keep(keep))
        helped.check_clocks(**clocks, pace=pace, margin=1)
    with pytest.raises(ClocksError, match="may take 150 ms here: join a game"):
        ready.check_clocks(trace=140, replay=140, pace=pace)


def test_a_machine_is_measured_by_the_clock_that_is_given() -> None:
    provider, session = make_provider()
    ticks = count()

    def clock() -> float:
        return next(ticks) + session.stepped * 0.5 + session.traced * 0.75

    pace = provider.measure(clock)
    assert pace == Pace(step_ms=750.0, traced_ms=1000.0, load_ms=1000.0)
    assert provider.compute_replay_ms(pace) == EVERY * 1000 + 1000
    assert provider.trace(595).size == 15 * len(TASK.graph.nodes)


def test_the_default_limit_is_the_one_that_clocks_are_made_for() -> None:
    assert Keep().keep_bytes == DEFAULT_KEEP_BYTES
    assert Keep(100).state_bytes + Keep(100).tensor_bytes == 100
