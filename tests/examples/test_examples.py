"""The examples run as their pages say, and come to what they promise."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vtrain
import vtrain.dispute
from tests.cli.test_cli import TASK as TINY
from tests.dispute.arena import make_key
from tests.dispute.service.conftest import SERVICE_KEY
from tests.dispute.service.live import serving
from tests.dispute.service.logs import (
    CLOCKS,
    get_documents,
    get_task,
    make_log,
    make_log_genesis,
    make_players,
)
from tests.tasks import make_mlp_onnx, make_samples
from vtrain import _core, cli
from vtrain.attest.keys import generate_key, load_key, public_key
from vtrain.demo.cheats import alter_gradient, train_falsely
from vtrain.dispute import Clocks, Player, compute_game_id, find_verdict, service
from vtrain.dispute.client import Follower, connect
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.service.market import Settlement
from vtrain.dispute.service.problems import BondRefusedError
from vtrain.dispute.statement import decode_ruling

pytestmark = pytest.mark.slow


def run(repository: Path, script: str, *arguments: object) -> str:
    """What an example prints; it must end by itself and well."""
    command = [sys.executable, repository / "examples" / script, *arguments]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_dispute_over_http_finds_the_cheat(repository: Path, tmp_path: Path) -> None:
    statement = tmp_path / "statement.cbor"
    out = run(repository, "dispute/run.py", "--statement", statement)
    place = r"step 87, node 40, chunk \d+, element (\d+), block (\d+)"
    fell = re.search(rf"(?m)^The solver's claim fell: refuted at {place}$", out)
    assert fell, out
    assert "That node is 'fc1/acc/grad_b', a matmul of shape (16, 784)." in out
    assert "What stands is the root of the honest run." in out
    assert "replayed here: the same verdict." in out
    ruling = decode_ruling(_core.referee_judge(statement.read_bytes()))
    assert sum(ruling.right) == 1
    element, block = fell.groups()
    what = f"node fc1/acc/grad_b (matmul) element {element} block {block} of {ruling.blocks} step 0"
    assert ruling.what == what
    assert f"judged     {what}" in out


def test_a_dispute_without_its_extra_says_what_to_install(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repository / "examples" / "dispute")
    monkeypatch.setattr(service, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    with pytest.raises(SystemExit, match=r"^\[server\]: .* -m pip install 'vtrain\[server\]'"):
        importlib.import_module("run").main()


def test_a_market_settles_by_verdicts(repository: Path) -> None:
    out = run(repository, "marketplace/three_deliveries.py")
    ledgers = [
        {name: int(amount) for name, amount in re.findall(r"(\w+) (\d+)", line)}
        for line in out.splitlines()
        if line.startswith("   client ")
    ]
    assert all(sum(ledger.values()) == 2500 and ledger["escrow"] == 0 for ledger in ledgers)
    begin, believed, attacked, false = ledgers
    assert [ledger["burned"] for ledger in ledgers] == [0, 0, 0, 25]
    assert begin["solver"] == begin["client"] == 500
    assert (believed["solver"], believed["client"]) == (600, 400)
    assert attacked["solver"] > believed["solver"] + 100 - 1
    assert attacked["mallory"] < 500 > attacked["trudy"]
    assert attacked["alice"] == 500
    assert false["client"] == attacked["client"]
    assert false["solver"] < attacked["solver"] - 49
    assert false["alice"] >= 525
    assert false["trudy"] < attacked["trudy"]
    assert "fell: refuted at step 7," in out


@pytest.fixture
def market(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(repository / "examples" / "marketplace")
    return importlib.import_module("market")


def post(market: Any, clocks: Clocks = CLOCKS) -> Any:
    """An escrow on which client 9 pays the liar; 1 is the liar, 2 an honest key."""
    escrow = market.Escrow({public_key(make_key(number)): 200 for number in (1, 2, 9)})
    parties = public_key(make_key(9)), public_key(make_key(1))
    escrow.post(get_task().task_id, *parties, clocks)
    return escrow


def test_a_cheat_that_challenges_itself_loses_the_burn(market: Any) -> None:
    escrow = post(market)
    game = market.play(escrow, make_log_genesis(), make_players())
    verdict = find_verdict(game)
    assert verdict is not None
    assert verdict.standing == make_log().root
    liar, friend, client = (escrow.accounts[public_key(make_key(number))] for number in (1, 2, 9))
    assert client == 200
    assert liar + friend == 400 - market.BURN
    assert (escrow.held, escrow.burned) == (0, market.BURN)


def test_a_deal_has_one_game_with_its_own_clocks(market: Any) -> None:
    longer = replace(CLOCKS, grace=CLOCKS.grace + 1)
    escrow = post(market, longer)
    short, genesis = make_log_genesis(), make_log_genesis(clocks=longer)
    with pytest.raises(BondRefusedError, match=r"the deal has Clocks\(.*grace=5001\)"):
        escrow.open(compute_game_id(short), short)
    game = market.play(escrow, genesis, make_players())
    accounts = dict(escrow.accounts)
    again = make_log_genesis(2, clocks=longer)
    with pytest.raises(BondRefusedError, match=f"has game {game.id.hex()} already"):
        escrow.open(compute_game_id(again), again)
    verdict = find_verdict(game)
    assert verdict is not None
    escrow.settle(Settlement(verdict, (), game))
    assert dict(escrow.accounts) == accounts


def test_the_recipe_replays_a_transcript(repository: Path, tmp_path: Path) -> None:
    """The two blocks of docs/service.md: curl saves a game, and the script replays it."""
    page = (repository / "docs" / "service.md").read_text()
    section = page.split("## Replaying a transcript")[1].split("\n## ")[0]
    fetch, show = re.findall(r"```(?:bash|python)\n(.*?)```", section, re.DOTALL)
    script = repository / "examples" / "dispute" / "replay.py"
    assert show.strip() in script.read_text()
    limits = replace(LIMITS, least=Clocks(1, 1, 1, 1, 0), beat=20)
    clocks = Clocks(join=1000, trace=200, terms=100, match=60_000, grace=0)
    genesis, key = make_log_genesis(clocks=clocks), public_key(SERVICE_KEY)
    game = compute_game_id(genesis)
    with (
        serving(f"sqlite:///{tmp_path / 'games.db'}", SERVICE_KEY, limits=limits) as url,
        connect(url, key) as client,
    ):
        client.open(genesis, *get_documents())
        follower = Follower(client, game)
        while find_verdict(follower.game) is None:
            for player in make_players():
                for signed in player.moves(follower.game):
                    client.move(signed)
            follower.poll(0.1)
        if shutil.which("curl") is None:
            pytest.skip("needs curl")
        command = f"set -euo pipefail; url={url} game={game.hex()}\n{fetch}"
        subprocess.run(["/bin/bash", "-c", command], cwd=tmp_path, check=True, timeout=60)
    out = run(repository, "dispute/replay.py", game.hex(), key.hex(), tmp_path)
    assert f"{make_log().root.hex()} stands" in out
    other = subprocess.run(
        [sys.executable, str(script), game.hex(), bytes(32).hex(), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode != 0
    assert "of another service" in other.stderr


def test_the_loop_of_the_page_plays_a_dispute(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/dispute.md: a false run, first with a silent solver, then with one that defends it."""
    page = (repository / "docs" / "dispute.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.syspath_prepend(repository / "examples" / "dispute")
    solver = importlib.import_module("solver")
    monkeypatch.chdir(tmp_path)
    keys = [Path(f"{name}.pem") for name in ("solver", "challenger")]
    for key in keys:
        generate_key(key)
    task = vtrain.compile(repository / "examples" / "mnist" / "tiny.toml")
    false_run = tmp_path / "runs" / "false"
    train_falsely(
        task, false_run, key=load_key(keys[0]), cheat=alter_gradient, step=solver.FALSE_STEP
    )
    names: dict[str, Any] = {}
    exec(compile(code, "docs/dispute.md", "exec"), names)  # noqa: S102 - our own page
    assert names["verdict"].solver.reason == "silent"
    defender = Player(solver.FalseProvider(names["run"]), load_key(keys[0]))
    verdict = names["play"](names["genesis"], [names["challenger"], defender])
    assert verdict.solver.reason == "refuted"
    assert verdict.solver.place.step == solver.FALSE_STEP


def test_what_a_dispute_needs_is_importable_from_its_room() -> None:
    for name in vtrain.dispute.__all__:
        assert callable(getattr(vtrain.dispute, name))
    command = "import sys, vtrain.dispute; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(vtrain.dispute, "no_such_name")  # noqa: B009 - mypy knows that it is not there


def test_a_private_audit(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The script as it is, on the tiny MLP, whose circuit has fewer columns."""
    monkeypatch.syspath_prepend(repository / "examples" / "zk")
    script = importlib.import_module("run_audit")
    task = tmp_path / "task.toml"
    (tmp_path / "model.onnx").write_bytes(make_mlp_onnx(3))
    samples = make_samples((16,), 40, seed=3)
    for part in ("x", "y"):
        np.save(tmp_path / f"{part}.npy", samples.part(part))
    proof = (
        'commitments = ["blake3", "kzg"]\n[proof]\ncircuit = "step"\nsrs = "a"\nk = 17\nevery = 1\n'
    )
    task.write_text(TINY.replace("[model]", f"{proof}[model]"))
    assert cli.run(["profile", str(task)]) == 0
    capsys.readouterr()
    monkeypatch.setattr(script, "TASK", task)
    folder = tmp_path / "parties"
    folder.mkdir()
    script.play(folder)
    out = capsys.readouterr().out
    assert re.search(r"(?m)^ +12 steps; what it publishes has \d+ bytes$", out), out
    assert re.search(r"(?m)^ +verified$", out), out
    assert "the batches of what was proven are those that the data's owner signed" in out
    assert "without --allow-insecure-srs: conditional" in out
    refused = r"auditor +inconclusive: step \d+: .*commitment of after is not the one expected"
    assert re.search(refused, out), out
    held = {path.name for path in (folder / "auditor" / "run").iterdir()}
    assert held == {*importlib.import_module("parties").PUBLIC, "proofs"}


def test_a_private_audit_that_goes_wrong_ends_with_an_error(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repository / "examples" / "zk")
    script = importlib.import_module("run_audit")
    monkeypatch.setattr(script, "TASK", Path("nowhere"))
    with pytest.raises(SystemExit, match=r"prove batches nowhere .*exit code 2"):
        script.main()


def test_the_python_api(repository: Path) -> None:
    out = run(repository, "python_api.py")
    assert "three stretches replayed: verified" in out
    assert "one bit of the log flipped: inconclusive" in out
