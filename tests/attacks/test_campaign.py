"""A small share of the campaign, and that its judge can find what it looks for.

All of it: ``python -m tests.attacks.campaign``, with 1,000 mutants, 300 hostile and 200 starved
audits, and 50 of each kind of grinding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.attacks.campaign import signing
from tests.attacks.campaign.bases import make_rng
from tests.attacks.campaign.bench import Bench
from tests.attacks.campaign.grind import (
    KINDS,
    Cheat,
    draw_by_signature,
    draw_today,
    grind,
    lay_out,
)
from tests.attacks.campaign.judge import find_controls, judge
from tests.attacks.campaign.watch import ROOT, Child, make_environment, run
from tests.audit.runs import KEY
from vtrain.attest.keys import public_key, verify_signature

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the bases are, made once, by a campaign of no attempts."""
    path = tmp_path_factory.mktemp("campaign")
    command = [sys.executable, "-m", "tests.attacks.campaign", "--folder", str(path)]
    done = subprocess.run(
        [*command, "--only", "mutants", "--mutants", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path


def attack(folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Run a campaign: exit code, output, results by part."""
    results, said = folder / "results.json", folder / "said.txt"
    given = ["--folder", str(folder), "--results", str(results), *arguments]
    results.unlink(missing_ok=True)
    code = forked.run(call_main, given, said)
    return code, said.read_text(), json.loads(results.read_text())


def call_main(arguments: list[str], said: Path) -> None:
    """The campaign as its command has it, with what it and its children say in a file."""
    from tests.attacks.campaign.__main__ import main  # which sets variables of its process

    with said.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
    sys.exit(main(arguments))


@pytest.mark.parametrize(
    ("part", "count"), [("mutants", 12), ("hostile", 2), ("starved", 4), ("grind", 1)]
)
def test_a_share_of_the_campaign_finds_nothing(folder: Path, part: str, count: int) -> None:
    code, output, results = attack(folder, "--only", part, f"--{part}", str(count), "--seed", "2")
    assert code == 0, output
    assert len(results[part]) >= count


# --- the judge can fail


@pytest.mark.parametrize(
    ("fake", "kinds"),
    [
        ("always_verified", {"WRONG: verified"}),
        ("always_fraud", {"WRONG: fraud"}),
        (
            "always_inconclusive",
            {"harmless, yet inconclusive", "signed falsehood, yet inconclusive"},
        ),
        ("traceback", {"traceback", "exit code 1", "no JSON"}),
        ("code_one", {"exit code 1", "no JSON"}),
        ("code_zero_for_fraud", {"code and verdict differ"}),
        ("no_json", {"no JSON"}),
        ("escapes", {"control character"}),
        ("floods", {"flood"}),
        ("crashes", {"killed by a signal"}),
    ],
)
def test_a_bad_auditor_is_caught(folder: Path, fake: str, kinds: set[str]) -> None:
    count = "12" if fake.startswith("always") else "1"
    code, output, results = attack(
        folder, "--only", "mutants", "--mutants", count, "--fake", fake, "--list", "99"
    )
    assert code == 1
    found = {fault["kind"] for _, result in results["mutants"] for fault in result["faults"]}
    assert kinds <= found
    assert "--seed 1 --only mutants --number " in output


@pytest.mark.parametrize(("fake", "kind"), [("never_ends", "hang"), ("bloats", "memory")])
def test_a_slow_or_a_large_auditor_is_caught(folder: Path, fake: str, kind: str) -> None:
    seconds = "0.5" if fake == "never_ends" else "20"
    code, _, results = attack(
        folder, "--only", "mutants", "--mutants", "1", "--fake", fake, "--seconds", seconds
    )
    assert code == 1
    ((_, result),) = results["mutants"]
    assert kind in {fault["kind"] for fault in result["faults"]}


@pytest.mark.parametrize(
    ("part", "fake", "kind"),
    [
        ("hostile", "always_verified", "WRONG: verified"),
        ("hostile", "traceback", "traceback"),
        ("starved", "always_fraud", "WRONG: fraud"),
        ("starved", "always_verified", "WRONG: verified"),
        ("grind", "always_verified", "run id, unpinned: WRONG: verified"),
        ("grind", "always_verified", "log, unpinned: WRONG: verified"),
    ],
)
def test_the_other_parts_catch_them_too(folder: Path, part: str, fake: str, kind: str) -> None:
    count = "1" if part == "grind" else "3" if part == "starved" else "12"
    code, _, results = attack(folder, "--only", part, f"--{part}", count, "--fake", fake)
    assert code == 1
    assert kind in {fault["kind"] for _, result in results[part] for fault in result["faults"]}


def test_a_python_that_does_not_start_is_told_from_one_that_fails(folder: Path) -> None:
    """A descriptor too few for the interpreter itself, and a command that there is not."""
    import resource

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 20, 8 << 20))

    environment = make_environment(folder / "environment")
    outcome = run(["--version"], prepare=prepare, environment=environment)
    assert not outcome.started
    assert outcome.code != 0
    assert judge(outcome, starved=True) == []
    outcome = run(["no-such-command"], environment=environment)
    assert outcome.started
    assert outcome.code == 2


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b31m", "a\rb", "\x08", "\u202e", "\x7f", "\0"])
def test_what_steers_a_terminal_is_found(text: str) -> None:
    assert find_controls(f"x{text}".encode())
    assert not find_controls("a line\n\tand another, ü, \ufffd\n".encode())


def leave_a_child_behind() -> None:
    def fork(_: object) -> None:
        if os.fork() == 0:
            time.sleep(60)

    began = time.monotonic()
    outcome = Child([], auditor=fork).wait(5)
    assert outcome.code == 0
    assert time.monotonic() - began < 5


def test_what_a_child_leaves_behind_is_ended() -> None:
    """A process of its own may not outlive the attempt."""
    assert forked.run(leave_a_child_behind) == 0


# --- grinding works where there is no defence


def test_any_nonce_makes_a_signature() -> None:
    message = bytes(range(32))
    made = {signing.sign(KEY, message, bytes([i])) for i in range(20)}
    assert len(made) == 20
    for signature in made:
        verify_signature(public_key(KEY), message, signature)
    assert signing.sign(KEY, message, b"a") == signing.sign(KEY, message, b"a")


def grind_without_defence(folder: Path, run: Path, kind: str) -> None:
    bench = Bench(folder, 1)
    cheat = lay_out(bench, kind, make_rng("no defence", kind), run)
    count = cheat.segments - 1
    for turn in range(10):
        seed = bytes([turn]) * 32
        form, tried, _ = grind(cheat, KINDS[kind], seed, count, draw_by_signature)
        assert form is not None
        assert tried < 500
        drawn = draw_by_signature(seed, form.signed, "replay segments", cheat.segments, count)
        assert form.segment not in drawn


@pytest.mark.parametrize("kind", KINDS)
def test_grinding_beats_a_draw_that_hashes_what_the_signer_chooses(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    """Ten of ten seeds, against a draw that is unpinned and hashes the signature."""
    assert forked.run(grind_without_defence, folder, tmp_path / "run", kind) == 0


def grind_without_a_pin(folder: Path, run: Path, kind: str) -> None:
    bench = Bench(folder, 1)
    cheat = lay_out(bench, kind, make_rng("unpinned", kind), run)
    for turn in range(5):
        form, _, _ = grind(cheat, KINDS[kind], bytes([turn]) * 32, cheat.segments - 1)
        assert form is not None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "signature"])
def test_grinding_beats_an_unpinned_draw(folder: Path, tmp_path: Path, kind: str) -> None:
    """Of the claim's body alone: what the solver may still choose in it moves the draw.  So it is
    the pin that protects, and the verdict of a draw without one is never VERIFIED."""
    assert forked.run(grind_without_a_pin, folder, tmp_path / "run", kind) == 0


def sign_often(folder: Path, run: Path) -> None:
    cheat: Cheat = lay_out(Bench(folder, 1), "signature", make_rng("signatures"), run)
    forms = KINDS["signature"](cheat)
    drawn = {draw_today(b"seed", next(forms).signed, "replay segments", 12, 3) for _ in range(50)}
    assert len(drawn) == 1


def test_signatures_do_not_move_the_draw(folder: Path, tmp_path: Path) -> None:
    assert forked.run(sign_often, folder, tmp_path / "run") == 0
