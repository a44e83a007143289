"""200 games at once through ``vtrain serve``: moves a second, and none lost when it is killed.

The service is a process of its own on the loopback, as the command runs it.  Two more processes of
four threads each are the parties: all liars, and all honest challengers.  The games are about logs
made by hand (tests/dispute/service/logs.py) that differ in a record which is none: five reveals a
side after the bond, no engine.  A thread goes round its games, follows each by its receipts, which
it checks, and makes the moves it owes; so a move costs the service a POST and about one GET, and
the machine the work of both parties.  All games are open before the first reveal.

The rate is that of the first half of the moves.  In the second half the server is killed by SIGKILL
in mid-traffic and started again, several times, and once more before the audit, which compares
every answer that anybody got with the transcripts.

The version before (``BEFORE``) plays the same games by its own rules, from a work tree of its own,
right before each round, so that both are measured on one machine at one time.

Then 64 hostile connections of each kind (tests/dispute/service/hostile.py), one kind after the
other, from the address of the honest parties, while these play games to their verdicts: what
their moves wait for is measured, and that no claim of theirs falls.

Predicted before this version was written, from what the parts of the one before cost by themselves
(a request 0.5 ms of HTTP, a statement 0.1 to 0.2, a signature 0.07 to make and 0.14 to check, the
rules 0.2, a change of thread 0.1): a move 2.2 ms of the server's CPU, the reading that goes with it
0.9 where memory has what is read, hence 3.1 in place of 5.3 with SQLite (58 %), and with PostgreSQL
3.6 of 6.4.  Of a flood every request costs less than 1 ms, so that an honest move waits for 64 of
them: 0.1 s at the median, 0.3 at the 99th percentile.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import _harness as harness

from tests.dispute.arena import play
from tests.dispute.service.hostile import KINDS, Kind, Target, flooding
from tests.dispute.service.logs import (
    HONEST,
    LogPlayer,
    get_documents,
    get_graph,
    make_bond,
    make_log,
    make_log_genesis,
    make_players,
)
from vtrain.attest.keys import generate_key
from vtrain.dispute.client import DisputeClient, Follower
from vtrain.dispute.game import find_verdict
from vtrain.dispute.problems import BusyError, ServiceFaultError
from vtrain.dispute.state import compute_game_id
from vtrain.wire import structs
from vtrain.wire.dispute import Clocks, Genesis, SignedMove

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier, Event, Semaphore

    from tests.dispute.service.postgres import PostgresServer

COMMAND = (sys.executable, "-c", "from vtrain.cli import main; main()", "serve")
GAMES = 200
KILLS, QUICK_KILLS = 4, 1
THREADS = 4
"""Of each party."""
ARITY, QUICK_ARITY = 4, 64
CLOCKS = Clocks(
    join=1_000,
    trace=60_000,
    terms=15_000,
    budget=600_000,
    grace=60_000,
    answer=0,
    opening=0,
    replay=0,
)
BEFORE = "a37cd57"
CPU_SHARE = 0.6
"""Of the version before, at most."""
HOSTILE, FLOODED_GAMES = 64, 10
MEDIAN_FLOOR, TAIL_FLOOR = 1.0, 5.0
"""Seconds of an honest move under flood."""
LEAST_CLOCK = "1"
DEADLINE = 240.0
RATE_FLOOR = 100.0

T = TypeVar("T")


# --- the service


class Server:
    """``vtrain serve``, killed and started again at the same port."""

    def __init__(self, db: str, key: Path) -> None:
        self._db, self._key, self._port = db, key, "0"
        self.start()

    def start(self) -> None:
        """Return once it listens."""
        options = ("--db", self._db, "--key", str(self._key), "--port", self._port)
        self._process = subprocess.Popen(
            [*COMMAND, *options, "--least-clock", LEAST_CLOCK, "--free-bonds"],
            stdout=subprocess.PIPE,
            cwd=harness.ROOT,
        )
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(DEADLINE), "the service does not start"
        self.url, key = self._process.stdout.readline().decode().split()
        self.key = bytes.fromhex(key)
        self._port = self.url.rpartition(":")[2]

    def kill(self) -> None:
        """At once: nothing is stored, answered or closed any more."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def restart(self) -> float:
        """Kill it and start it again; seconds that it was away."""
        begin = time.monotonic()
        self.kill()
        self.start()
        return time.monotonic() - begin

    def read_cpu(self) -> float:
        """Seconds that the process has worked; 0 where the system does not tell."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        if not stat.exists():
            return 0.0
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def start_postgres() -> tuple[PostgresServer | None, str]:
    """A PostgreSQL server as the tests have one, or why there is none."""
    if importlib.util.find_spec("psycopg") is None:
        return None, "psycopg is not installed"
    from tests.dispute.service.postgres import PostgresServer, find_binaries

    binaries, why = find_binaries()
    if binaries is None:
        return None, why
    try:
        return PostgresServer(binaries), ""
    except (AssertionError, OSError, subprocess.CalledProcessError) as error:
        return None, f"PostgreSQL does not start: {error}"


# --- the parties


@dataclass(frozen=True)
class Answer:
    """A move that was accepted: its bytes, its receipt's, and when, in seconds."""

    game: bytes
    party: bytes
    move: bytes
    receipt: bytes
    sequence: int
    asked: float
    answered: float


@dataclass
class Played:
    """What a party remembers of its games."""

    answers: list[Answer] = field(default_factory=list)
    reads: int = 0
    resent: int = 0
    """Requests that were sent again because no answer came."""
    contradictions: int = 0
    """Times that the service contradicted itself: the game was followed anew."""


@dataclass(frozen=True)
class Job:
    """One thread's games, for a party."""

    url: str
    key: bytes
    games: tuple[bytes, ...]
    player: LogPlayer


@dataclass(frozen=True)
class _Shared:
    """Between the processes: the start, a count of the moves, and whether a thread failed."""

    start: Barrier
    moves: Semaphore
    failed: Event


_shared: list[_Shared] = []


def _share(start: Barrier, moves: Semaphore, failed: Event) -> None:
    _shared.append(_Shared(start, moves, failed))


def insist(function: Callable[..., T], *arguments: Any) -> T:
    """Ask until there is an answer: the service comes back."""
    until = time.monotonic() + DEADLINE
    while True:
        try:
            return function(*arguments)
        except BusyError:
            if time.monotonic() > until:
                raise


def make_move(client: DisputeClient, signed: SignedMove) -> Answer:
    """Make a move, and note the answer."""
    asked = time.monotonic()
    found = insist(client.move, signed)
    answered = time.monotonic()
    move, receipt = structs.encode(signed), structs.encode(found)
    sequence = found.receipt.sequence
    return Answer(signed.game, signed.party, move, receipt, sequence, asked, answered)


class Thread:
    """The games of one thread of a party."""

    def __init__(self, job: Job) -> None:
        self._job, self.played = job, Played()
        (self._shared,) = _shared

    def run(self) -> Played:
        """Play all games to their verdicts, unless another thread fails."""
        try:
            with closing(DisputeClient(self._job.url, self._job.key, pause=self._pause)) as client:
                self._play(client)
        except BaseException:
            self._shared.failed.set()
            self._shared.start.abort()
            raise
        return self.played

    def _pause(self, seconds: float) -> None:
        self.played.resent += 1
        time.sleep(seconds)

    def _play(self, client: DisputeClient) -> None:
        followers = {game: self._follow(client, game) for game in self._job.games}
        self._shared.start.wait(DEADLINE)
        wait = 0.0
        while followers and not self._shared.failed.is_set():
            before = len(self.played.answers)
            for game, follower in list(followers.items()):
                self.played.reads += 1
                try:
                    insist(follower.poll, wait)
                except ServiceFaultError:
                    self.played.contradictions += 1
                    followers[game] = self._follow(client, game)
                    continue
                wait = 0.0
                for signed in self._job.player.moves(follower.game):
                    self.played.answers.append(make_move(client, signed))
                    self._shared.moves.release()
                if follower.verdict is not None:
                    del followers[game]
            # When nothing was owed in any game, wait for news in the first.
            wait = 1.0 if len(self.played.answers) == before else 0.0

    @staticmethod
    def _follow(client: DisputeClient, game: bytes) -> Follower:
        return insist(partial(Follower, client, game, graph=get_graph()))


def play_party(jobs: Sequence[Job]) -> list[Played]:
    """A process: a thread for each job."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(Thread.run, map(Thread, jobs)))


# --- a round of games


@dataclass
class Round:
    """All games of a service from opening to verdict; ``calm`` is what came before any kill."""

    games: list[bytes]
    bonds: list[Answer]
    opening: float
    """Seconds that it took to open all games."""
    begun: float
    calm_until: float
    calm_cpu: float
    """Seconds that the server worked until then."""
    away: list[float]
    """Seconds of each restart."""
    played: list[Played]

    @property
    def answers(self) -> list[Answer]:
        """All that was accepted, but for the bonds."""
        return [answer for played in self.played for answer in played.answers]


def make_games(count: int, arity: int, host: bytes, first: int = 0) -> list[Genesis]:
    """Distinct games about the liar's log."""
    return [
        make_log_genesis(number, arity=arity, clocks=CLOCKS, host=host)
        for number in range(first, first + count)
    ]


def count_moves(arity: int) -> int:
    """Of a game, the bond among them."""
    return play(make_games(1, arity, bytes(32))[0], get_graph(), make_players()).game.moves


def open_games(
    server: Server, genesis: Sequence[Genesis]
) -> tuple[list[bytes], list[Answer], float]:
    """Open all games, each joined by its challenger; returns when nobody can join any more."""
    begin = time.monotonic()
    games: list[bytes] = []
    bonds: list[Answer] = []
    documents = get_documents()
    with closing(DisputeClient(server.url, server.key)) as client:
        for each in genesis:
            games.append(client.open(each, *documents).receipt.game)
            bonds.append(make_move(client, make_bond(games[-1], make_log().root, HONEST)))
        opening = time.monotonic() - begin
        while not client.view(games[-1])["round"]:
            time.sleep(0.05)
    return games, bonds, opening


def split(games: Sequence[bytes], server: Server, player: LogPlayer) -> list[Job]:
    """A party's jobs."""
    parts = [tuple(games[index::THREADS]) for index in range(THREADS)]
    return [Job(server.url, server.key, part, player) for part in parts]


def play_round(server: Server, count: int, arity: int, kills: int) -> Round:
    """Open so many games and play them, with the server killed so often in the second half."""
    context = multiprocessing.get_context("spawn")
    players = make_players()
    barrier = context.Barrier(1 + THREADS * len(players))
    moves = context.Semaphore(0)
    shared = (barrier, moves, context.Event())
    with ProcessPoolExecutor(len(players), context, _share, shared) as pool:
        pool.submit(os.getpid)  # has the processes start meanwhile
        games, bonds, opening = open_games(server, make_games(count, arity, server.key))
        parties = [pool.submit(play_party, split(games, server, player)) for player in players]
        with suppress(threading.BrokenBarrierError):  # a party failed, as its result says
            barrier.wait(DEADLINE)
        cpu, begun = server.read_cpu(), time.monotonic()
        half = count * (count_moves(arity) - 1) // 2
        wait_for(moves, half, parties)
        cpu, calm_until = server.read_cpu() - cpu, time.monotonic()
        away = []
        for _ in range(kills):
            away.append(server.restart())
            wait_for(moves, half // (kills + 1), parties)
        played = [each for party in parties for each in party.result()]
    return Round(games, bonds, opening, begun, calm_until, cpu, away, played)


def wait_for(moves: Semaphore, count: int, parties: Sequence[Future[list[Played]]]) -> None:
    """Until so many more moves were answered."""
    for _ in range(count):
        while not moves.acquire(timeout=1.0):
            if any(party.done() for party in parties):
                return


# --- the audit


def audit(server: Server, found: Round) -> dict[str, int]:
    """Answers against transcripts, which are replayed from their receipts; how much is wrong."""
    wrong = dict.fromkeys(
        ("lost", "doubled", "never sent", "out of order", "contradicted", "honest claim fell"), 0
    )
    wrong["contradicted"] = sum(played.contradictions for played in found.played)
    answers: dict[bytes, list[Answer]] = {game: [] for game in found.games}
    for answer in [*found.bonds, *found.answers]:
        answers[answer.game].append(answer)
    with closing(DisputeClient(server.url, server.key)) as client:
        for game in found.games:
            try:
                follower = Follower(client, game, graph=get_graph())
                follower.poll()
                verdict, _ = client.verdict(game)
            except ServiceFaultError:
                wrong["contradicted"] += 1
                continue
            wrong["contradicted"] += verdict != find_verdict(follower.game)
            wrong["honest claim fell"] += verdict.standing != make_log().root
            moves = [event for event in follower.events if event.signed.receipt.kind == "move"]
            stored = {event.body: structs.encode(event.signed) for event in moves}
            given = {answer.move: answer for answer in answers[game]}
            wrong["lost"] += sum(stored.get(a.move) != a.receipt for a in given.values())
            wrong["doubled"] += len(moves) - len(stored) + len(answers[game]) - len(given)
            wrong["never sent"] += len(stored.keys() - given.keys())
            for party in {answer.party for answer in answers[game]}:
                order = [a.sequence for a in answers[game] if a.party == party]
                wrong["out of order"] += order != sorted(order)
    return wrong


def describe(found: Round) -> dict[str, Any]:
    """A row of figures."""
    calm = [answer for answer in found.answers if answer.answered <= found.calm_until]
    waits = [1000 * (answer.answered - answer.asked) for answer in calm]
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {
        "games": len(found.games),
        "moves": len(found.answers),
        "reads": sum(played.reads for played in found.played),
        "moves/s": round(len(calm) / (found.calm_until - found.begun), 1),
        "p50, ms": round(cuts[49], 1),
        "p99, ms": round(cuts[98], 1),
        "server's CPU, ms a move": round(1000 * found.calm_cpu / len(calm), 2),
        "opening a game, ms": round(1000 * found.opening / len(found.games), 1),
        "kills": len(found.away) + 1,
        "away, s": round(statistics.median(found.away), 2),
        "sent again": sum(played.resent for played in found.played),
    }


@contextmanager
def serve(db: str, folder: Path) -> Iterator[Server]:
    """A service with a key of its own."""
    folder.mkdir()
    generate_key(folder / "service.pem")
    server = Server(db, folder / "service.pem")
    try:
        yield server
    finally:
        server.kill()


def read_sync(url: str) -> str:
    """Does this database sync its commits to disk?  The tests' PostgreSQL is told not to."""
    if url.startswith("sqlite"):
        return "on"  # see vtrain/dispute/service/store.py
    import psycopg

    with psycopg.connect(url) as connection:
        (row,) = connection.execute("SHOW fsync").fetchall()
    return str(row[0])


# --- the version before


@contextmanager
def check_out_before(folder: Path) -> Iterator[tuple[Path | None, str]]:
    """A work tree of the version before, with the core that is built here; or why there is none."""
    tree = folder / "before"
    git = ["git", "-C", str(harness.ROOT), "worktree"]
    made = subprocess.run(
        [*git, "add", "--detach", str(tree), BEFORE], capture_output=True, text=True, check=False
    )
    if made.returncode:
        yield None, f"no work tree of {BEFORE}: {made.stderr.strip()}"
        return
    try:
        core = harness.ROOT / "vtrain" / "_core.abi3.so"
        (tree / "vtrain" / core.name).write_bytes(core.read_bytes())
        yield tree, ""
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=False, capture_output=True)


def measure_before(tree: Path, store: str, url: str, arity: int, folder: Path) -> float:
    """The server's CPU of the version before, ms a move."""
    folder.mkdir()
    code = BEFORE_CODE.format(url=url, folder=str(folder / store), count=GAMES, arity=arity)
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree}:{tree / 'benchmarks'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(found.stdout.split()[-1])


BEFORE_CODE = """
from pathlib import Path
import service
service.harness.ROOT = Path.cwd()
if __name__ == "__main__":
    with service.serve({url!r}, Path({folder!r})) as server:
        found = service.play_round(server, {count}, {arity}, 0)
        calm = sum(answer.answered <= found.calm_until for answer in found.answers)
        print(1000 * found.calm_cpu / calm)
"""


# --- hostile connections


def play_flooded(server: Server, kind: Kind, first: int) -> dict[str, Any]:
    """Play games under a flood of a kind; what the honest moves waited for."""
    waits: list[float] = []
    fallen = 0
    with closing(DisputeClient(server.url, server.key)) as client:
        genesis = make_games(FLOODED_GAMES, ARITY, server.key, first)
        long = replace(CLOCKS, join=3_600_000)
        aim = make_log_genesis(first + FLOODED_GAMES, clocks=long, host=server.key)
        games, _, _ = open_games(server, genesis)
        client.open(aim, *get_documents())
        game = compute_game_id(aim)
        client.move(make_bond(game, make_log().root, HONEST))
        context = multiprocessing.get_context("spawn")
        stop, ready = context.Event(), context.Event()
        hostile = context.Process(target=run_flood, args=(server.url, aim, kind, stop, ready))
        hostile.start()
        ready.wait(DEADLINE)
        try:
            for each in games:
                follower = Follower(client, each, graph=get_graph())
                while follower.verdict is None:
                    insist(follower.poll, 0)
                    for signed in (m for p in make_players() for m in p.moves(follower.game)):
                        answer = make_move(client, signed)
                        waits.append(answer.answered - answer.asked)
                fallen += follower.verdict.standing != make_log().root
        finally:
            stop.set()
            hostile.join()
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {
        "kind": kind,
        "moves": len(waits),
        "p50, s": round(cuts[49], 3),
        "p99, s": round(cuts[98], 3),
        "honest claim fell": fallen,
    }


def run_flood(url: str, aim: Genesis, kind: Kind, stop: Event, ready: Event) -> None:
    """A process of hostile connections."""
    done = threading.Event()
    target = Target(url, aim, compute_game_id(aim))
    with flooding(target, kind, HOSTILE):
        time.sleep(1.0)  # until all are there
        ready.set()
        stop.wait()
    done.set()


def measure(quick: bool) -> harness.Result:
    """All figures; see the module's text."""
    arity, kills = (QUICK_ARITY, QUICK_KILLS) if quick else (ARITY, KILLS)
    rows: list[dict[str, Any]] = []
    floods: list[dict[str, Any]] = []
    figures: dict[str, Any] = {"by store": rows, "under flood": floods}
    targets: dict[str, harness.Target] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        before, why = stack.enter_context(check_out_before(folder))
        if before is None:
            figures["before"] = f"not measured: {why}"
        databases = {
            "SQLite": (f"sqlite:///{folder}/games.db", f"sqlite:///{folder}/before.db"),
        }
        postgres, why = start_postgres()
        if postgres is not None:
            stack.enter_context(closing(postgres))
            databases["PostgreSQL"] = (postgres.make_database(), postgres.make_database())
        else:
            figures["PostgreSQL"] = f"not measured: {why}"
            targets["PostgreSQL, moves a second"] = harness.at_least(0.0, RATE_FLOOR)
        for store, (url, other) in databases.items():
            row: dict[str, Any] = {"store": store, "fsync": read_sync(url)}
            if before is not None:
                row["CPU before, ms a move"] = measure_before(
                    before, store, other, arity, folder / f"{store} before"
                )
            with serve(url, folder / store) as server:
                found = play_round(server, GAMES, arity, kills)
                server.restart()
                wrong = audit(server, found)
            row |= describe(found)
            rows.append(row | wrong)
            targets[f"{store}, moves a second"] = harness.at_least(row["moves/s"], RATE_FLOOR)
            if before is not None:
                share = row["server's CPU, ms a move"] / row["CPU before, ms a move"]
                targets[f"{store}, CPU a move of before"] = harness.at_most(
                    round(share, 3), CPU_SHARE
                )
            for what, number in wrong.items():
                targets[f"{store}, {what}"] = harness.at_most(number, 0)
        with serve(f"sqlite:///{folder}/flooded.db", folder / "flooded") as server:
            for number, kind in enumerate(KINDS):
                found_row = play_flooded(server, kind, 1000 * number)
                floods.append(found_row)
                for what, most in (("p50, s", MEDIAN_FLOOR), ("p99, s", TAIL_FLOOR)):
                    targets[f"{kind}, {what}"] = harness.at_most(found_row[what], most)
                fallen = found_row["honest claim fell"]
                targets[f"{kind}, honest claim fell"] = harness.at_most(fallen, 0)
    return harness.Result(figures, targets)


if __name__ == "__main__":
    harness.main("service", measure)
