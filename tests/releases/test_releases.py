"""What earlier releases left behind still verifies, with the same verdicts, places and roots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.dispute.test_games import find_fault
from tests.dispute.test_statements import check_ruling
from tests.prove.test_proof_vectors import check_proofs
from tests.releases.make import judge, main, read
from tests.srs import place_srs
from vtrain import cli
from vtrain.prove.backend.srs import identify_srs

HERE = Path(__file__).parent
RELEASES = sorted(path for path in HERE.iterdir() if (path / "report.json").is_file())
RUNS = [path.parent for release in RELEASES for path in release.glob("runs/*/expected.json")]


def name(path: Path) -> str:
    return str(path.relative_to(HERE))


each_release = pytest.mark.parametrize("release", RELEASES, ids=name)


def test_there_are_releases() -> None:
    assert len(RUNS) >= 6 * len(RELEASES) > 0


@pytest.mark.parametrize("folder", sorted(RUNS), ids=name)
def test_a_run_is_judged_as_it_was(folder: Path) -> None:
    expected = read(folder / "expected.json")
    arguments = expected.pop("arguments")
    assert judge(folder, arguments) == expected


@each_release
def test_a_release_has_honest_runs_and_one_that_is_not(release: Path) -> None:
    verdicts = {path.parent.name: read(path)["verdict"] for path in release.glob("runs/*/*.json")}
    assert verdicts.pop("false-loss") == "fraud"
    assert set(verdicts.values()) == {"verified"}


@each_release
def test_a_report_is_held_to_its_auditor(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auditor = (release / "auditor.txt").read_text().strip()
    question = ["report", "verify", str(release / "report.json"), "--auditor", auditor, "--json"]
    assert cli.run(question) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    run = read(release / "runs" / "mlp-sgd" / "expected.json")
    assert (report["root"], report["task_id"]) == (run["root"], run["task_id"])
    question[4] = auditor[::-1]
    assert cli.run(question) == 2


@each_release
def test_statements_have_the_same_rulings(release: Path) -> None:
    for entry in read(release / "statements.json")["statements"]:
        check_ruling(entry)


@each_release
def test_games_end_in_the_same_way(release: Path) -> None:
    games = release / "games"
    names = [path.stem.removeprefix("game-") for path in games.glob("game-*.json")]
    assert names
    assert {game: find_fault(game, games) for game in names} == dict.fromkeys(names, "")


@each_release
def test_proofs_hold_and_broken_ones_do_not(release: Path, tmp_path: Path) -> None:
    content, srs = read(release / "proofs" / "proofs.json"), tmp_path / "srs"
    place_srs(srs, content["srs"]["k"], bytes.fromhex(content["srs"]["seed"]))
    assert identify_srs(srs).sha256.hex() == content["srs"]["sha256"]
    for number, case in enumerate(content["cases"]):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        check_proofs(case, content["srs"]["k"], release / "proofs", srs, scratch)


def test_a_run_of_another_law_is_told_apart_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS[0] / "run", run)
    data = (run / "task.cbor").read_bytes()
    assert data.count(b"vtrain law 1") == 1
    (run / "task.cbor").write_bytes(data.replace(b"vtrain law 1", b"vtrain law 9"))
    assert cli.run(["verify", str(run)]) == 3
    out = capsys.readouterr()
    assert "vtrain law 9" in out.out + out.err


def test_what_was_released_is_never_written_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.releases.make.__version__", RELEASES[-1].name)
    assert main() == 1
    assert "stays as it is" in capsys.readouterr().err
