"""``vtrain serve`` and ``vtrain dispute``: a run that lies is disputed over HTTP and falls."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.audit.runs import read_leaves, sign_again, write_leaves
from tests.dispute.arena import make_key
from tests.dispute.service.conftest import SERVICE_KEY
from tests.dispute.service.live import serving
from tests.tasks import make_tiny_task
from vtrain.attest.keys import generate_key, public_key
from vtrain.cli import run as call
from vtrain.dispute import service as package
from vtrain.dispute.service.limits import LIMITS
from vtrain.errors import MissingExtraError
from vtrain.train.runner import train
from vtrain.wire.dispute import Clocks
from vtrain.wire.record import decode_record, encode_record


@pytest.fixture
def base(tmp_path: Path) -> Iterator[str]:
    limits = replace(LIMITS, least=Clocks(1, 1, 1, 1, 0), beat=20)
    with serving(f"sqlite:///{tmp_path}/games.db", SERVICE_KEY, limits=limits) as url:
        yield url


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
    assert call(["dispute", "play", game, str(run), "--key", str(key), *service]) == 1
    played = read(capsys)
    assert str(played["solver"]).startswith("fell: silent")
    assert call(["dispute", "watch", game, *service]) == 1
    assert read(capsys) == played
    assert list(tmp_path.glob("challenger.pem.*.journal"))


def test_an_honest_run_stands(
    base: str, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    game = open_game(base, honest, capsys)
    assert call(["dispute", "watch", game, "--url", base, "--json"]) == 0
    assert read(capsys)["solver"] == "stands"


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
            *("--db", f"sqlite:///{tmp_path}/games.db", "--key", str(key)),
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
        assert call(["serve", "--key", str(key), "--port", "0", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_missing_extra_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "find_spec", lambda name: None)
    for require, extra in (
        (package.require_server, "server"),
        (package.require_client, "server"),
        (package.require_postgres, "postgres"),
    ):
        with pytest.raises(MissingExtraError, match=rf"pip install 'vtrain\[{extra}\]'"):
            require()
