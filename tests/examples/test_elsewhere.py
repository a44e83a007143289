"""vtrain in other people's systems: BOINC's script_validator and a GitHub Action."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.tasks import make_tiny_task
from vtrain.attest.claims import compute_claim_digest
from vtrain.demo.cheats import skip_step, train_falsely
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.wire.claim import decode_signed_claim

TASK = {"steps": 12, "commit_every": 2, "checkpoint_every": 4}
SCRIPT = "vtrain_validate.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two honest runs of one task by two hosts, a false one, and one of another task."""
    folder, task = tmp_path_factory.mktemp("hosts"), make_tiny_task(**TASK)
    for name in ("alice", "bob"):
        train(task, folder / name, key=Ed25519PrivateKey.generate())
    train_falsely(task, folder / "false", key=Ed25519PrivateKey.generate(), cheat=skip_step, step=6)
    train(make_tiny_task(**TASK, seed=9), folder / "other", key=Ed25519PrivateKey.generate())
    return folder


# --- BOINC


@pytest.fixture(scope="module")
def project(runs: Path, repository: Path) -> Path:
    """A project as script_validator sees it: scripts in bin/, outputs elsewhere."""
    project = runs / "project"
    for name in ("bin", "tmp", "upload"):
        (project / name).mkdir(parents=True)
    script = project / "bin" / SCRIPT
    text = (repository / "examples" / "boinc" / SCRIPT).read_text()
    script.write_text(text.replace("/usr/bin/env python3", sys.executable, 1))
    script.chmod(0o755)
    settings = {
        "task_id": make_tiny_task(**TASK).task_id.hex(),
        "segments": 3,
        "most_bytes": 1_000_000,
    }
    script.with_suffix(".json").write_text(json.dumps(settings))
    for run in ("alice", "bob", "false", "other"):
        with tarfile.open(project / "upload" / run, "w") as tar:
            tar.add(runs / run, ".")
    return project


def call_script(project: Path, *outputs: str) -> subprocess.CompletedProcess[str]:
    """What script_validator does: system("../bin/SCRIPT f1 ... fn"), in a folder beside bin/."""
    files = " ".join(str(project / "upload" / output) for output in outputs)
    command = f"../bin/{SCRIPT} {files}"
    return subprocess.run(  # noqa: S602
        command, shell=True, cwd=project / "tmp", check=False, capture_output=True, text=True
    )


def is_taken(project: Path, *outputs: str) -> bool:
    """What script_validator makes of the exit code."""
    return call_script(project, *outputs).returncode == 0


def test_boinc_takes_honest_runs_and_no_others(project: Path) -> None:
    assert is_taken(project, "alice")
    assert is_taken(project, "bob")
    assert not is_taken(project, "false")
    assert not is_taken(project, "other")  # of another task than was agreed on
    assert is_taken(project, "alice", "bob")
    assert not is_taken(project, "alice", "false")
    assert not is_taken(project, "missing")


def test_boinc_unpacks_nothing_hostile(project: Path, tmp_path: Path) -> None:
    upload = project / "upload"

    def write(name: str, member: tarfile.TarInfo, data: bytes = b"") -> None:
        with tarfile.open(upload / name, "w") as tar:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

    write("above", tarfile.TarInfo(f"../../../{tmp_path.name}-out"), b"x")
    link = tarfile.TarInfo("task.cbor")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    write("link", link)
    write("large", tarfile.TarInfo("task.cbor"), bytes(1_000_001))
    (upload / "none").write_bytes(b"no archive")
    folder = tarfile.TarInfo("checkpoints")
    folder.type, folder.size = tarfile.DIRTYPE, -(10**9)
    large = tarfile.TarInfo("task.cbor")
    large.size = 1_000_001
    room = folder.tobuf(tarfile.GNU_FORMAT) + large.tobuf() + bytes(large.size + 511 + 1024)
    (upload / "room").write_bytes(room)
    late = tarfile.TarInfo("task.cbor")
    late.pax_headers = {"mtime": "1e300"}
    write("late", late, b"x")
    nul = tarfile.TarInfo("task.cbor")
    nul.pax_headers = {"path": "task\0cbor"}
    write("nul", nul)
    none, much = "is no archive of a run", "has more than 1000000 bytes"
    reasons = {"above": none, "link": "has a link", "large": much, "none": none}
    for name, reason in (reasons | {"room": much, "late": none, "nul": none}).items():
        done = call_script(project, name)
        assert (done.returncode, done.stderr.count("Traceback")) == (1, 0), name
        assert reason in done.stderr
    assert not list(tmp_path.parent.glob("*-out"))


# --- GitHub


def read_action(repository: Path) -> Any:
    return yaml.safe_load((repository / "examples" / "github-action" / "action.yml").read_text())


def run_action(repository: Path, folder: Path, **given: str) -> tuple[int, dict[str, str], str]:
    """The steps of the action as a runner does them, up to the first that fails: exit code,
    outputs, summary; what they say lies in ``folder / "said"``."""
    action = read_action(repository)
    inputs: dict[str, Any] = {
        name: given.get(name.replace("-", "_"), value.get("default", ""))
        for name, value in action["inputs"].items()
    }
    output, summary = folder / "output", folder / "summary"
    for path in (output, summary):
        path.write_text("")
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    code = 0
    for step in action["runs"]["steps"]:
        if not evaluate(step.get("if", "true"), inputs):
            continue
        variables = {
            name: inputs[text.removeprefix("${{ inputs.").removesuffix(" }}")]
            for name, text in step["env"].items()
        }
        # What pip installs lies here, and nothing is looked up on an index.
        pip = {"PIP_TARGET": str(folder / "installed"), "PIP_NO_INDEX": "1"}
        env = os.environ | pip | variables
        env |= {"PATH": search, "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)
        (folder / "said").write_bytes(done.stdout)
        code = done.returncode
        if code:
            break
    found = dict(line.split("=", 1) for line in output.read_text().splitlines())
    return code, found, summary.read_text()


def evaluate(condition: str, inputs: dict[str, Any]) -> bool:
    """The conditions that the action has."""
    if condition == "true":
        return True
    name, _, value = condition.removeprefix("inputs.").partition(" != ")
    return bool(inputs[name] != value.strip("'"))


def make_wheel(path: Path) -> Path:
    """A wheel of nothing, called vtrain."""
    wheel, about = path / "vtrain-9.9-py3-none-any.whl", "vtrain-9.9.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: vtrain\nVersion: 9.9\n")
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{about}/WHEEL", tag)
        archive.writestr(f"{about}/RECORD", "")
    return wheel


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_action_installs_what_its_user_chose(
    runs: Path, repository: Path, tmp_path: Path
) -> None:
    """Bytes that are at hand or whose hash is named; whatever an index has under a name may be
    anybody's, and gives no verdict."""
    wheel = make_wheel(tmp_path)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    given = {"task_id": make_tiny_task(**TASK).task_id.hex(), "run": str(runs / "alice")}
    installed = tmp_path / "installed" / "vtrain-9.9.dist-info"
    for package, good in (
        (wheel.name, True),
        (f"{wheel.as_uri()}#sha256={digest}", True),
        (f"{wheel.as_uri()}#sha256={'0' * 64}", False),
        (wheel.as_uri(), False),
        ("vtrain", False),
        ("vtrain==9.9", False),
        (f"--find-links={tmp_path} vtrain", False),
        ("", False),
    ):
        code, found, _ = run_action(repository, tmp_path, package=package, **given)
        assert (code == 0, "verdict" in found, installed.is_dir()) == (good, good, good), package
        shutil.rmtree(tmp_path / "installed", ignore_errors=True)
        (tmp_path / "vtrain-report.json").unlink(missing_ok=True)


def test_no_package_is_installed_by_its_name(repository: Path) -> None:
    """Neither by default, nor in the example of the page."""
    action = read_action(repository)
    package = action["inputs"]["package"]
    assert package["required"] is True
    assert "default" not in package
    page = (repository / "examples" / "github-action" / "README.md").read_text()
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    for text in (page, package["description"]):
        assert re.search(rf"https://\S+/vtrain-{re.escape(version)}-\S+\.whl#sha256=", text)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_action_says_what_verify_says(runs: Path, repository: Path, tmp_path: Path) -> None:
    given = {"task_id": make_tiny_task(**TASK).task_id.hex(), "samples": "3", "package": "none"}
    code, found, summary = run_action(repository, tmp_path, run=str(runs / "alice"), **given)
    assert (code, found) == (0, {"verdict": "verified"})
    assert "vtrain verify: verified" in summary
    assert json.loads((tmp_path / "vtrain-report.json").read_text())["verdict"] == "verified"
    signed = decode_signed_claim(RunPaths(runs / "bob").claim.read_bytes())
    for name, more, code, verdict in (
        ("false", {}, 10, "fraud"),
        ("other", {}, 3, "inconclusive"),
        ("alice", {"claim": compute_claim_digest(signed.claim).hex()}, 3, "inconclusive"),
        ("alice; touch hacked", {}, 2, "inconclusive"),
        ("--help", {}, 2, "inconclusive"),
    ):
        (tmp_path / "vtrain-report.json").unlink(missing_ok=True)
        found_code, found, _ = run_action(
            repository,
            tmp_path,
            run=name if name.startswith("-") else str(runs / name),
            **given,
            **more,
        )
        assert (found_code, found) == (code, {"verdict": verdict}), name
    assert not (tmp_path / "hacked").exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_no_name_in_a_run_is_obeyed_by_the_runner(
    runs: Path, repository: Path, tmp_path: Path
) -> None:
    """The runner obeys ``::command::`` at the start of a line on stdout, and ``##[command]``
    anywhere in it, but not between these two lines; and a page's block ends at a line of marks."""
    run = Path(shutil.copytree(runs / "alice", tmp_path / "run"))
    hostile = "##[set-output name=verdict;]fraud"
    (run / hostile).write_text("")
    (tmp_path / "vtrain-verify.txt").symlink_to("elsewhere")
    given = {"task_id": make_tiny_task(**TASK).task_id.hex(), "samples": "1", "package": "none"}
    code, found, summary = run_action(repository, tmp_path, run=str(run), **given)
    assert (code, found) == (0, {"verdict": "verified"})
    first, *lines, last = (tmp_path / "said").read_text().splitlines()
    assert re.fullmatch("::stop-commands::[0-9a-f]{32}", first)
    assert last == f"::{first.removeprefix('::stop-commands::')}::"
    assert any(hostile in line for line in lines)
    title, empty, *block = summary.splitlines()
    assert (title, empty) == ("### vtrain verify: verified", "")
    assert all(line.startswith("    ") for line in block)
    assert not (tmp_path / "elsewhere").exists()
