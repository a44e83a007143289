"""The examples run as their pages say, and come to what they promise."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vtrain
import vtrain.dispute
from tests.cli.calls import TASK as TINY
from tests.dispute.log_claims import Hands
from tests.dispute.service.live import serving
from tests.dispute.service.logs import (
    LEAST,
    SERVICE_KEY,
    get_documents,
    make_log,
    make_log_genesis,
    make_players,
)
from tests.examples.plain import load_plain_verifier
from tests.examples.running import run
from tests.tasks import make_mlp_onnx, make_samples
from vtrain import _core, cli
from vtrain.attest.keys import generate_key, load_key, public_key
from vtrain.demo.cheats import alter_gradient, train_falsely
from vtrain.dispute import Arbiter, Player, compute_game_id, find_verdict, service
from vtrain.dispute.client import Follower, connect
from vtrain.dispute.market import MemoryMarket
from vtrain.dispute.service.limits import LIMITS
from vtrain.dispute.statement import decode_ruling

pytestmark = pytest.mark.slow


def test_a_dispute_over_http_finds_the_cheat(repository: Path, tmp_path: Path) -> None:
    statement, kept = tmp_path / "statement.cbor", tmp_path / "game"
    out = run(repository, "dispute/run.py", "--statement", statement, "--transcript", kept)
    place = r"step 87, node 40, chunk \d+, element (\d+), block (\d+)"
    fell = re.search(rf"(?m)^The solver's claim fell: refuted at {place}$", out)
    assert fell, out
    assert "That node is 'fc1/acc/grad_b', a matmul of shape (16, 784)." in out
    assert "What stands is the root of the honest run." in out
    assert "replayed here: the same verdict." in out
    ruling = decode_ruling(_core.referee_judge(statement.read_bytes()))
    assert sum(ruling.right) == 1
    plain = load_plain_verifier().judge(statement.read_bytes())
    assert (plain.after, plain.blocks) == (ruling.after, ruling.blocks)
    element, block = fell.groups()
    what = f"node fc1/acc/grad_b (matmul) element {element} block {block} of {ruling.blocks} step 0"
    assert ruling.what == what
    assert f"judged     {what}" in out
    assert play_plainly(kept) == f"refuted at {fell[0].split(' at ')[1]}"


def play_plainly(folder: Path) -> str:
    """How a game of which the pages and the graph lie in a folder ended, by the plain verifier's
    own rules, which come to the verdict that the host signed."""
    plain = load_plain_verifier()
    pages = [plain.decode(path.read_bytes()) for path in sorted(folder.glob("page-*.cbor"))]
    events = [
        (event["body"], event["signed"]["receipt"]) for page in pages for event in page["events"]
    ]
    (genesis,) = [body for body, receipt in events if receipt["kind"] == "opened"]
    moves = [
        (receipt["at"], body if receipt["kind"] == "move" else None)
        for body, receipt in events
        if receipt["kind"] in ("move", "verdict")
    ]
    game = plain.play(genesis, (folder / "graph.cbor").read_bytes(), moves)
    assert [body for body, receipt in events if receipt["kind"] == "verdict"] == [
        plain.encode(game.verdict())
    ]
    fall = game.log_roots[game.genesis["log_root"]]
    if fall is None:
        return ""
    named = zip(plain.PLACE_FIELDS, fall.place, strict=True)
    return f"{fall.reason} at {', '.join(f'{name} {at}' for name, at in named)}"


def test_a_dispute_without_its_extra_says_what_to_install(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repository / "examples" / "dispute")
    monkeypatch.setattr(service, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    with pytest.raises(SystemExit, match=r"^\[server\]: .* -m pip install 'vtrain\[server\]'"):
        importlib.import_module("run").main()


def test_the_recipe_replays_a_transcript(repository: Path, tmp_path: Path) -> None:
    """The two blocks of docs/service.md: curl saves a game, and the script replays it."""
    page = (repository / "docs" / "service.md").read_text()
    section = page.split("## Replaying a transcript")[1].split("\n## ")[0]
    fetch, show = re.findall(r"```(?:bash|python)\n(.*?)```", section, re.DOTALL)
    script = repository / "examples" / "dispute" / "replay.py"
    assert show.strip() in script.read_text()
    limits = replace(LIMITS, least=LEAST, beat=20)
    clocks = replace(LEAST, join=1000, trace=200, terms=100, budget=60_000, grace=1000)
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
    play_plainly(tmp_path)
    other = subprocess.run(
        [sys.executable, str(script), game.hex(), bytes(32).hex(), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode != 0
    assert "of another" in other.stderr


def test_the_loop_of_the_page_plays_a_dispute(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/dispute.md: a false run, first with a silent solver, then with one that defends it."""
    page = (repository / "docs" / "dispute.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.syspath_prepend(repository / "examples" / "dispute")
    solver = importlib.import_module("solver")
    monkeypatch.chdir(tmp_path)
    keys = [Path(f"{name}.pem") for name in ("solver", "challenger", "host")]
    for key in keys:
        generate_key(key)
    task = vtrain.compile(repository / "examples" / "mnist" / "tiny.toml")
    false_run = tmp_path / "runs" / "false"
    train_falsely(
        task, false_run, key=load_key(keys[0]), cheat=alter_gradient, step=solver.FALSE_STEP
    )
    hands = Hands()
    monkeypatch.setattr(time, "monotonic_ns", lambda: hands.at * 1_000_000)
    monkeypatch.setattr(time, "sleep", hands.sleep)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/dispute.md", "exec"), names)  # noqa: S102 - our own page
    assert names["verdict"].solver.reason == "silent"
    assert f"\n{names['verdict'].standing.hex()} Fall(reason='silent', " in page, "as it says"
    assert names["market"].balances[names["challenger"].party] == 1_000
    defender = Player(solver.FalseProvider(names["run"]), load_key(keys[0]))
    market = MemoryMarket({names["challenger"].party: 1_000})
    arbiter = Arbiter(load_key(keys[2]), market)
    verdict = names["play"](arbiter, names["run"], [names["challenger"], defender])
    assert verdict.solver.reason == "refuted"
    assert verdict.solver.place.step == solver.FALSE_STEP


def test_what_a_dispute_needs_is_importable_from_its_room() -> None:
    for name in vtrain.dispute.__all__:
        assert callable(getattr(vtrain.dispute, name))
    command = "import sys, vtrain.dispute; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(vtrain.dispute, "no_such_name")  # noqa: B009 - mypy knows that it is not there


@pytest.mark.exhaustive
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


def test_a_module_of_pytorch(repository: Path) -> None:
    out = run(repository, "from_torch.py")
    assert "features.1: aten.softplus of Softplus: is not supported" in out
    assert "task.toml has the same id: True" in out
    assert "60 steps, one stretch replayed: verified" in out
    right = re.search(r"in torch again: (\d+) % right", out)
    assert right is not None
    assert int(right[1]) >= 75


def test_the_ten_lines_of_the_readme(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand there, with a text and a home of its own: ten besides the imports, of which
    each has a line of its own, as a formatter leaves them."""
    monkeypatch.syspath_prepend(repository / "examples")
    ten_lines = importlib.import_module("ten_lines")
    block = ten_lines.read_lines()
    imports, body = block.split("\n\n")
    assert all(
        re.fullmatch(r"import [^,;]+|from \S+ import [^;]+", one) for one in imports.splitlines()
    )
    assert len(body.splitlines()) == 10
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "-"],
        input=block,
        capture_output=True,
        text=True,
        check=True,
    )
    assert formatted.stdout == block
    done = subprocess.run(
        [sys.executable, str(ten_lines.__file__)],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "50 steps of 8" in done.stdout
    assert "made a solver key" in done.stderr
    assert (tmp_path / "config" / "vtrain" / "solver.pem").exists()
    assert vtrain.verify(tmp_path / "runs" / "gpt2", samples=1)


def test_the_python_api(repository: Path) -> None:
    out = run(repository, "python_api.py")
    assert "three stretches replayed: verified" in out
    assert "one bit of the log flipped: inconclusive" in out
