"""``vtrain serve`` and ``vtrain dispute``: a run that lies is disputed over HTTP and falls."""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.audit.runs import read_leaves, sign_again, write_leaves
from tests.dispute.arena import make_key
from tests.dispute.service.live import Skipping, serving
from tests.dispute.service.logs import LEAST, SERVICE_KEY
from tests.tasks import make_tiny_task
from vtrain.attest.keys import generate_key, public_key
from vtrain.cli import run as call
from vtrain.cli.dispute import _Waits, show_verdict
from vtrain.commit import database
from vtrain.dispute import client as clients
from vtrain.dispute import service as package
from vtrain.dispute.client import connect
from vtrain.dispute.players import Player
from vtrain.dispute.problems import BusyError
from vtrain.dispute.receipts import Event, Receipt
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.state import Fall, Game, Place, Reason, Verdict
from vtrain.dispute.waits import Wait
from vtrain.errors import MissingExtraError
from vtrain.train.runner import train
from vtrain.wire.record import decode_record, encode_record


@pytest.fixture
def clock() -> Skipping:
    return Skipping()


@pytest.fixture
def base(tmp_path: Path, clock: Skipping) -> Iterator[str]:
    limits, db = replace(LIMITS, least=LEAST, beat=20), f"sqlite:///{tmp_path}/games.db"
    with serving(db, SERVICE_KEY, limits=limits, ticks=clock) as url:
        yield url


@pytest.fixture
def hurried(clock: Skipping, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of whatever a command says that it waits for comes at once."""
    tell, ends = _Waits.tell, set[int]()

    def hurry(waits: _Waits, game: Game, wait: Wait) -> None:
        tell(waits, game, wait)
        if wait.until is not None and wait.until not in ends:
            ends.add(wait.until)
            clock.skip(wait.until - game.now)

    monkeypatch.setattr(_Waits, "tell", hurry)
    monkeypatch.setattr(clients, "_QUIET", 0.1)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "honest"
    train(make_tiny_task(steps=12, commit_every=2, checkpoint_every=4), path, key=make_key(1))
    return path


def lie(honest: Path, path: Path) -> Path:
    """The run with one record's loss altered, signed again."""
    shutil.copytree(honest, path)
    leaves = read_leaves(path)
    record = decode_record(leaves[2])
    leaves[2] = encode_record(replace(record, loss=record.loss + 1))
    write_leaves(path, leaves)
    sign_again(path, make_key(1))
    return path


def read(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def open_game(base: str, run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    quick = ("--replay-seconds", 0.1, "--least-seconds", 2, "--json")
    assert call([str(a) for a in ("dispute", "open", run, "--url", base, *quick)]) == 0
    return str(read(capsys)["game"])


@pytest.mark.usefixtures("hurried")
def test_a_lying_run_falls(
    base: str, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lie(honest, tmp_path / "liar")
    key = tmp_path / "challenger.pem"
    generate_key(key)
    game = open_game(base, run, capsys)
    service = ("--url", base, "--service", public_key(SERVICE_KEY).hex(), "--json")
    assert call(["dispute", "join", game, str(run), "--key", str(key), *service]) == 0
    assert read(capsys)["bonds"] == 1
    assert call(["dispute", "play", game, str(run), "--key", str(key), *service]) == 3
    told = capsys.readouterr()
    played = json.loads(told.out)
    assert "training anew" in told.err.splitlines()[0]
    waits = re.findall(
        r"(?m)^ *(\d+) ms     -  waits for (.*), until (\d+) ms: \d+ s left$", told.err
    )
    assert [what for _, what, _ in waits] == ["others to join", "an answer in the log"]
    assert all(int(now) < int(until) for now, _, until in waits)
    fall = played["solver"]
    assert isinstance(fall, dict)
    assert set(fall) == {"reason", "step", "node", "chunk", "element", "block"}
    assert fall["reason"] == "silent", "which proves nothing: no fraud is found"
    assert played["bonds"] == 1
    assert call(["dispute", "watch", game, *service]) == 3
    watched = capsys.readouterr()
    assert json.loads(watched.out) == played
    root = str(played["standing"])[:8]
    bond = rf" *\d+ ms     2  move  [0-9a-f]{{8}}  bond {root} of the log"
    assert re.fullmatch(bond, watched.err.splitlines()[1])
    assert call(["dispute", "watch", game, *service[:-1]]) == 3
    assert "\nbonds in the game  1\n" in capsys.readouterr().out
    assert call(["dispute", "join", game, str(run), "--key", str(key), *service]) == 2
    assert "the game is over" in capsys.readouterr().err


@pytest.mark.usefixtures("hurried")
def test_an_honest_run_stands(
    base: str, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    game = open_game(base, honest, capsys)
    assert call(["dispute", "watch", game, "--url", base, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["solver"] is None
    assert "waits for others to join, until " in told.err


def test_a_terminal_counts_down(
    base: str, honest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    game, lines = open_game(base, honest, capsys), []
    shown = _Waits()

    def hear(game: Game, event: Event) -> None:
        shown.hear(game, event)
        lines.append(shown._describe())

    def tell(game: Game, wait: Wait) -> None:
        shown.tell(game, wait)
        lines.append(shown._describe())

    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with connect(base) as client, shown.showing():
        clients.watch(clients.Follower(client, bytes.fromhex(game), hear=hear), waiting=tell)
    assert re.fullmatch(r"waits for others to join, until \d+ ms: \d s left", lines[1])
    assert lines[0] == lines[-1] == "", "an event ends the wait"
    assert lines[1][:-8] in terminal.getvalue()
    assert "ms     -" not in terminal.getvalue()


def refuse_folder(*_: object, **__: object) -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


def test_a_claim_is_joined_once(
    base: str,
    honest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Path(shutil.copytree(lie(honest, tmp_path / "liar"), tmp_path / "no data"))
    table = (run / "data" / "samples.bin").rename(tmp_path / "samples.bin")
    key = tmp_path / "key.pem"
    generate_key(key)
    arguments = ["dispute", "open", run, "--url", base, "--replay-seconds", 60, "--json"]
    assert call([str(a) for a in arguments]) == 0
    game = str(read(capsys)["game"])
    join = ["dispute", "join", game, str(run), "--key", str(key), "--url", base, "--json"]
    assert call(join) == 2
    join += ["--data", str(table)]
    capsys.readouterr()
    assert call([*join, "--keep-folder", str(key / "kept")]) == 2
    told = capsys.readouterr()
    assert "vtrain dispute join: give another place by --keep-folder\n" in told.err
    error = json.loads(told.out)["error"]
    assert error["message"] == "Not a directory; give another place by --keep-folder"
    assert error["where"].startswith(str(key / "kept"))
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "mkdtemp", refuse_folder)
        assert call(join) == 2
    told = capsys.readouterr()
    assert "temporary folder: No usable temporary directory found [storage]\n" in told.err
    assert "--keep-folder" in json.loads(told.out)["error"]["message"]
    for bonds in (1, 0):
        assert call(join) == 0
        assert read(capsys)["bonds"] == bonds
    assert call([*join, "--defend"]) == 2
    assert re.search("this key stands behind [0-9a-f]{64} already", capsys.readouterr().err)


def test_what_open_says_and_refuses(
    honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(f"sqlite:///{tmp_path}/games.db", SERVICE_KEY) as url, connect(url) as client:
        line = ["dispute", "open", str(honest), "--url", url, "--json"]
        assert call([*line, "--service", "00" * 32]) == 2
        assert call([*line, "--least-seconds", "5"]) == 2
        assert "needs --replay-seconds" in capsys.readouterr().err
        assert call([*line, "--replay-seconds", "1", "--least-seconds", "5"]) == 2
        told = capsys.readouterr().err
        assert "--least-seconds" in told
        assert "serve --least-clock" in told
        assert client.list_games() == []
        assert call(line) == 0
        assert read(capsys)["clocks"] == {
            **{"join": 3600, "trace": 3600, "terms": 600, "budget": 3600, "grace": 300},
            **{"answer": 0.04, "opening": 2.136, "replay": 300},
        }


def test_a_claim_that_cannot_be_defended(
    base: str,
    honest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = lie(honest, tmp_path / "liar")
    key = tmp_path / "key.pem"
    generate_key(key)

    def ask(follower: object, client: object, player: Player, **_: object) -> None:
        player._provider.trace(3)  # as a challenger would have it do

    game = open_game(base, run, capsys)
    monkeypatch.setattr(clients, "play", ask)
    arguments = ["dispute", "play", game, str(run), "--key", str(key), "--url", base, "--defend"]
    assert call(arguments) == 2
    wanted = "this claim cannot be defended: step 3 does not come out as the log says"
    assert wanted in capsys.readouterr().err


def test_a_service_that_is_away_or_lies_is_inconclusive(
    base: str,
    honest: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    game = open_game(base, honest, capsys)
    assert call(["dispute", "watch", game, "--url", base, "--service", "00" * 32]) == 3
    assert "[service-fault]" in capsys.readouterr().err
    monkeypatch.setattr(clients, "_ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert call(["dispute", "watch", game, "--url", f"http://127.0.0.1:{port}"]) == 3
    assert f"127.0.0.1:{port}/v1/games/{game}/genesis: does not answer" in capsys.readouterr().err


@pytest.mark.usefixtures("hurried")
def test_watch_outlives_a_service_that_is_away(
    base: str,
    honest: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    game, poll, away = open_game(base, honest, capsys), clients.Follower.poll, [1, 2]

    def flaky(follower: clients.Follower, wait: float = 0, **more: Any) -> list[Receipt]:
        if away:
            raise BusyError(f"away {away.pop()}")
        return poll(follower, wait, **more)

    monkeypatch.setattr(clients.Follower, "poll", flaky)
    monkeypatch.setattr(clients, "_RETRY", 0)
    assert call(["dispute", "watch", game, "--url", base]) == 0
    told = capsys.readouterr().err
    assert told.count("no answer: away") == 2


def test_a_game_about_another_run_is_not_joined(
    base: str, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    game = open_game(base, honest, capsys)
    run = lie(honest, tmp_path / "liar")
    key = tmp_path / "key.pem"
    generate_key(key)
    arguments = ["dispute", "join", game, str(run), "--key", str(key), "--url", base]
    assert call(arguments) == 2
    assert "another run" in capsys.readouterr().err


def test_serve_until_told_to_stop(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    public = public_key(generate_key(key))
    process = subprocess.Popen(
        [
            *(Path(sys.executable).with_name("vtrain"), "serve", "--port", "0"),
            *("--db", f"sqlite:///{tmp_path}/games.db", "--key", str(key), "--free-bonds"),
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        url, shown = process.stdout.readline().decode().split()
        assert url.startswith("http://127.0.0.1:")
        assert shown == public.hex()
        assert call(["dispute", "watch", "00" * 32, "--url", url, "--service", shown]) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_serve_refuses_what_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, token = tmp_path / "key.pem", tmp_path / "token"
    generate_key(key)
    token.write_text("short")
    db = f"sqlite:///{tmp_path}/games.db"
    for arguments in (
        ("--db", "nonsense"),
        ("--db", db, "--host", "192.0.2.1"),
        ("--db", db, "--token", str(token)),
    ):
        assert call(["serve", "--key", str(key), "--port", "0", "--free-bonds", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err
    none = tmp_path / "none" / "games.db"
    assert call(["serve", "--key", str(key), "--free-bonds", "--db", f"sqlite:///{none}"]) == 2
    told = capsys.readouterr().err
    assert f"{none}: unable to open database file" in told
    assert "vtrain serve: give another place by --db\n" in told
    line = ["serve", "--key", str(key), "--db", db, "--deposits", f"sqlite:///{none}"]
    token.write_text("a token of the operator")
    assert call([*line, "--token", str(token)]) == 2
    told = capsys.readouterr().err
    assert f"{none}: unable to open database file" in told
    assert "vtrain serve: give another place by --deposits\n" in told


def test_a_postgres_that_never_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("psycopg")
    key = tmp_path / "key.pem"
    generate_key(key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        db = f"postgresql://me:secret@{address}/games"
        assert (
            call(["serve", "--key", str(key), "--free-bonds", "--db", f"{db}?connect_timeout=2"])
            == 2
        )
    told = capsys.readouterr().err
    assert f"database games at {address}: " in told
    assert "secret" not in told
    assert database.make_engine(db).url.query == {"connect_timeout": "10"}


def test_a_missing_extra_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (package, database):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    for require, extra in (
        (package.require_server, "server"),
        (package.require_client, "server"),
        (database.require_postgres, "postgres"),
    ):
        with pytest.raises(MissingExtraError, match=rf"pip install 'vtrain\[{extra}\]'"):
            require()


@pytest.mark.parametrize(
    ("reason", "standing", "code"),
    [
        ("refuted", True, 10),
        ("malformed", True, 10),
        ("silent", True, 3),
        ("undefended", True, 3),
        ("refuted", False, 3),
        (None, True, 0),
    ],
)
def test_only_what_was_shown_is_fraud(
    capsys: pytest.CaptureFixture[str], reason: Reason | None, standing: bool, code: int
) -> None:
    fall = None if reason is None else Fall(reason, Place(), 5)
    root = bytes(range(32)) if standing else b""
    verdict = Verdict(bytes(32), root, fall, 5, 0, bytes(32))
    assert show_verdict(verdict, as_json=True) == code
    assert read(capsys)["standing"] == (root.hex() or None)
