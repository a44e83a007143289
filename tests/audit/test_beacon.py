"""Samples drawn by drand: real rounds, the time of a claim, and attacks on either."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import Encoding

import vtrain
from tests.attest.authority import Authority, make_authority
from tests.audit.runs import KEY, reason_of
from tests.audit.test_pin import claim_anew, read_claim
from tests.tasks import make_tiny_task
from vtrain.attest.bls import NUL_G1
from vtrain.attest.claims import compute_claim_digest
from vtrain.attest.timestamp import ProvenTime, identify_root
from vtrain.audit.algebraic import AlgebraicAudit, verify_algebraic
from vtrain.audit.beacon import (
    CHAINS,
    DEFAULT,
    QUICKNET,
    RULE,
    Beacon,
    BeaconDraw,
    Chain,
    compute_randomness,
    decode_beacon,
    decode_chain,
    draw_from_beacon,
    find_chain,
    find_due_round,
    make_draw,
    parse_round,
    verify_beacon,
)
from vtrain.audit.pin import make_pin
from vtrain.audit.plan import Segments, Wanted, compute_detections, compute_sample_size
from vtrain.audit.verify import verify
from vtrain.cli.root import cli
from vtrain.demo import cheats
from vtrain.errors import BeaconError, EncodingError, RunError, TaskError, TimestampError
from vtrain.report.json import report_to_dict
from vtrain.train.layout import RunPaths
from vtrain.train.runner import train
from vtrain.train.task import CompiledTask, load_task
from vtrain.wire.report import Report
from vtrain.wire.task import BeaconRule, decode_task, encode_task

DRAND = json.loads((Path(__file__).parent / "drand.json").read_text())
ROUND = 1000
AT = QUICKNET.compute_time(ROUND)
"""When that round of quicknet was made."""
CLAIMED = AT - 60


def read_chain_of(name: str) -> Chain:
    about = DRAND["chains"][name]
    return Chain(
        name,
        about["scheme"],
        bytes.fromhex(about["public_key"]),
        about["period"],
        about["genesis_time"],
        bytes.fromhex(about.get("groupHash", "00" * 32)),
    )


def read_beacon_of(value: dict[str, Any]) -> Beacon:
    return decode_beacon(
        json.dumps({key: item for key, item in value.items() if key != "randomness"}).encode()
    )


def get_beacon(chain: str, valid: bool = True) -> Beacon:
    (found,) = (b for b in DRAND["beacons"] if b["chain"] == chain and b["valid"] is valid)
    return read_beacon_of(found)


@pytest.fixture(scope="session")
def authority() -> Authority:
    return make_authority()


def draw_with(authority: Authority, run: Path, time: int = CLAIMED, **changes: Any) -> BeaconDraw:
    """What an auditor brings, with a token of the run's claim."""
    digest = compute_claim_digest(read_claim(run).claim)
    token = authority.stamp(digest, datetime.fromtimestamp(time, UTC))
    given = BeaconDraw(ROUND, get_beacon("quicknet"), token, (authority.trusted,))
    return replace(given, **changes)


def list_assumed(report: Report) -> list[str]:
    return [item.code for item in report.assumptions]


# --- rounds


@pytest.mark.parametrize("name", CHAINS)
def test_the_hash_of_a_chain_is_that_of_what_is_known_of_it(name: str) -> None:
    assert CHAINS[name].hash.hex() == DRAND["chains"][name]["hash"]
    assert CHAINS[name] == read_chain_of(name)


@pytest.mark.parametrize("library", ["py_ecc", "blst"])
@pytest.mark.parametrize("value", DRAND["beacons"], ids=lambda b: f"{b['chain']}-{b['round']}")
def test_real_rounds(value: dict[str, Any], library: Any) -> None:
    chain, beacon = read_chain_of(value["chain"]), read_beacon_of(value)
    if not value["valid"]:
        with pytest.raises(BeaconError, match="does not verify"):
            verify_beacon(chain, beacon, library)
        return
    randomness = verify_beacon(chain, beacon, library)
    assert randomness.hex() == value.get("randomness", compute_randomness(beacon).hex())


def test_a_round_holds_for_its_chain_number_and_predecessor_alone() -> None:
    quick, late = get_beacon("quicknet"), get_beacon("default")
    walk = get_beacon("walkthrough")
    refused: list[tuple[Chain, Beacon]] = [
        (QUICKNET, walk),
        (read_chain_of("walkthrough"), quick),
        (QUICKNET, replace(quick, round=ROUND + 1)),
        (QUICKNET, replace(quick, signature=walk.signature)),
        (QUICKNET, late),
        (DEFAULT, quick),
        (DEFAULT, replace(late, round=late.round + 1)),
        (DEFAULT, replace(late, previous=late.signature)),
        (DEFAULT, replace(late, previous=b"")),
        (DEFAULT, replace(late, previous=late.previous[:-1])),
        (replace(DEFAULT, scheme=QUICKNET.scheme), late),
    ]
    for chain, beacon in refused:
        with pytest.raises(BeaconError) as caught:
            verify_beacon(chain, beacon)
        assert caught.value.where == f"round {beacon.round} of {chain.name}"
    # Without a fixed length, bytes could go from the one to the other, and make another round.
    for chain in (QUICKNET, DEFAULT):
        beacon = {QUICKNET: quick, DEFAULT: late}[chain]
        assert verify_beacon(chain, beacon) == compute_randomness(beacon)


def test_which_round_a_time_gives() -> None:
    for chain in (QUICKNET, DEFAULT):
        assert [chain.find_round(chain.genesis + at) for at in (-9, 0)] == [1, 1]
        for round_ in (2, 3, 1000):
            time = chain.compute_time(round_)
            assert chain.find_round(time) == chain.find_round(time - chain.period + 1) == round_
            assert chain.find_round(time + 1) == round_ + 1
    proven = ProvenTime(datetime.fromtimestamp(CLAIMED, UTC), "", b"")
    assert find_due_round(RULE, QUICKNET, proven) == ROUND
    later = replace(proven, latest=datetime.fromtimestamp(CLAIMED + 0.001, UTC))
    assert find_due_round(RULE, QUICKNET, later) == ROUND + 1, "never rounded to its favour"


def test_names_and_files_that_are_none(tmp_path: Path) -> None:
    assert parse_round("drand:1000") == 1000
    for text in ("1000", "drand:", "drand:0", "drand:-1", "drand:01", f"drand:{2**53}", "drand:1 "):
        with pytest.raises(BeaconError, match="drand:1000"):
            parse_round(text)
    good = next(b for b in DRAND["beacons"] if b["chain"] == "quicknet")
    assert decode_beacon(json.dumps({**good, "more": 1}).encode()) == get_beacon("quicknet")
    for changes, place in (
        ({"round": "1000"}, "round"),
        ({"round": True}, "round"),
        ({"round": 0}, "round"),
        ({"signature": good["signature"].upper()}, "signature"),
        ({"signature": ""}, "signature"),
        ({"signature": None}, "signature"),
        ({"randomness": "00" * 32}, "randomness"),
        ({"previous_signature": 5}, "previous_signature"),
        ({"round": 1000.0}, "round"),
    ):
        with pytest.raises(BeaconError) as caught:
            decode_beacon(json.dumps({**good, **changes}).encode())
        assert caught.value.where == f"beacon: {place}"
    for spared in ("", None):
        text = json.dumps({**good, "randomness": spared})
        assert decode_beacon(text.encode()) == get_beacon("quicknet")
    marked = b"\xef\xbb\xbf" + json.dumps(good).encode()
    twice = json.dumps(good).replace("{", '{"round": 1000, ', 1).encode()
    for data in (b"", b"[]", b"{", b"[" * 10_000, b"\xff", marked, twice):
        with pytest.raises(BeaconError):
            decode_beacon(data)
    file = tmp_path / "round.json"
    file.write_text(json.dumps(good))
    with pytest.raises(TimestampError, match="belong together"):
        make_draw(tmp_path / "run", "drand:1000", file, token=file)


# --- a chain of one's own


SECRET = 987654321


def make_own_chain(period: int = 5) -> dict[str, Any]:
    """What a relay would serve of a chain whose secret is known."""
    import pyblst

    from vtrain.attest.bls import _G2

    generator = pyblst.BlstP2Element().uncompress(bytes.fromhex(_G2))
    public = bytes(generator.scalar_mul(SECRET).compress())
    chain = Chain("own", "bls-unchained-g1-rfc9380", public, period, 1_700_000_000, b"s" * 32)
    return {
        "public_key": public.hex(),
        "period": period,
        "genesis_time": 1_700_000_000,
        "groupHash": chain.seed.hex(),
        "schemeID": chain.scheme,
        "hash": chain.hash.hex(),
        "metadata": {"beaconID": "own"},
    }


def sign_own(round_: int) -> dict[str, Any]:
    import hashlib

    import pyblst

    message = hashlib.sha256(round_.to_bytes(8)).digest()
    point = pyblst.BlstP1Element().hash_to_group(message, NUL_G1).scalar_mul(SECRET)
    return {"round": round_, "signature": bytes(point.compress()).hex()}


def test_a_chain_that_is_not_known_is_given_and_follows_from_its_hash() -> None:
    about = make_own_chain()
    chain = decode_chain(json.dumps(about).encode())
    verify_beacon(chain, decode_beacon(json.dumps(sign_own(7)).encode()))
    rule = BeaconRule(chain.hash)
    assert find_chain(rule, chain) == chain
    assert find_chain(RULE) == QUICKNET
    with pytest.raises(BeaconError, match="is not known here"):
        find_chain(rule)
    with pytest.raises(BeaconError, match="and the rule names"):
        find_chain(BeaconRule(bytes(32)), chain)
    for changes, place in (
        ({"period": 6}, "hash"),
        ({"genesis_time": 1_700_000_001}, "hash"),
        ({"metadata": {"beaconID": "other"}}, "hash"),
        ({"public_key": DRAND["chains"]["quicknet"]["public_key"]}, "hash"),
        ({"groupHash": "00" * 32}, "hash"),
        ({"groupHash": "00"}, "groupHash"),
        ({"public_key": "80" * 48}, "public_key"),
        ({"schemeID": "bls-unchained-on-g1"}, "schemeID"),
        ({"metadata": 5}, "metadata.beaconID"),
        ({"metadata": {"beaconID": "\ud800"}}, "metadata.beaconID"),
        ({"metadata": {"beaconID": "a\n"}}, "metadata.beaconID"),
    ):
        with pytest.raises(BeaconError) as caught:
            decode_chain(json.dumps({**about, **changes}).encode())
        assert caught.value.where == f"chain: {place}"


def test_a_round_beyond_all_calendars_is_none() -> None:
    """A chain of one's own may name any period; its rounds are of times that can be written."""
    about = make_own_chain(period=2**32 - 1)
    chain = decode_chain(json.dumps(about).encode())
    beacon = decode_beacon(json.dumps(sign_own(2**40)).encode())
    given = BeaconDraw(2**40, beacon, chain=chain)
    with pytest.raises(BeaconError, match="after the year 9998") as caught:
        draw_from_beacon(given, BeaconRule(chain.hash), bytes(32), pinned=True)
    assert caught.value.where == f"round {2**40}"


# --- audits


def test_a_round_after_a_stamped_and_pinned_claim_is_full_strength(
    honest: Path, authority: Authority
) -> None:
    given, pin = draw_with(authority, honest), make_pin(read_claim(honest))
    report = verify(honest, samples=1, beacon=given, pin=pin)
    assert (report.verdict, list_assumed(report)) == ("verified", [])
    randomness = report.randomness
    assert randomness is not None
    assert randomness.value == compute_randomness(given.beacon)
    use = report_to_dict(report)["randomness"]["beacon"]
    assert (use["round"], use["at"], use["claimed"], use["delay"]) == (ROUND, AT, CLAIMED, 60)
    assert use["authority"] == "CN=a test's clock"
    assert any("first 60 s or more after the claim" in line for line in report.strength.checked)
    assert any("clock and key of the authority" in line for line in report.strength.unchecked)
    assert any("names no beacon" in line for line in report.strength.unchecked)
    assert vtrain.verify(honest, samples=1, beacon=given).segments == report.segments


def test_a_claim_of_unknown_time_is_never_full_strength(honest: Path, authority: Authority) -> None:
    given = replace(draw_with(authority, honest), token=None, roots=())
    for pin in (None, make_pin(read_claim(honest))):
        report = verify(honest, samples=1, beacon=given, pin=pin)
        assert (report.verdict, report.exit_code) == ("conditional", 4)
        assert list_assumed(report) == ["predictable-sample"]
        assert "no token shows" in report.assumptions[0].detail
    assert verify(honest, all_=True, beacon=given).verdict == "verified", "nothing is drawn"


def test_a_token_that_does_not_precede_the_round(honest: Path, authority: Authority) -> None:
    """Neither later than the round, nor within the delay, nor so early that the rule gives another
    round, among which a solver could choose."""
    for time, words in (
        (AT + 3600, "which is after it"),
        (AT, "which is after it"),
        (CLAIMED + 1, "gives round 1001"),
        (CLAIMED - 3, "gives round 999"),
        (CLAIMED - 86400, "which is before it"),
    ):
        with pytest.raises(BeaconError, match=words) as caught:
            verify(honest, samples=1, beacon=draw_with(authority, honest, time))
        assert (caught.value.code, caught.value.where) == ("beacon", "round")
    for time in (CLAIMED - 2, CLAIMED):
        report = verify(honest, samples=1, beacon=draw_with(authority, honest, time))
        assert list_assumed(report) == ["chosen-claim"]


def test_what_an_auditor_brings_must_fit(honest: Path, authority: Authority) -> None:
    good, other = draw_with(authority, honest), make_authority("another")
    digest = compute_claim_digest(read_claim(honest).claim)
    foreign = authority.stamp(digest[::-1], datetime.fromtimestamp(CLAIMED, UTC))
    cases: list[tuple[BeaconDraw, type[Exception], str]] = [
        (replace(good, beacon=replace(good.beacon, round=999), round=999), BeaconError, "verify"),
        (replace(good, token=foreign), TimestampError, "is of other bytes"),
        (replace(good, roots=(other.trusted,)), TimestampError, "does not hold"),
        (replace(good, roots=()), TimestampError, "no root certificate"),
        (replace(good, chain=read_chain_of("walkthrough")), BeaconError, ""),
    ]
    for given, kind, message in cases[:-1]:
        with pytest.raises(kind, match=message):
            verify(honest, samples=1, beacon=given)
    assert verify(honest, samples=1, beacon=cases[-1][0]).verdict == "conditional", "not asked for"
    with pytest.raises(RunError, match="and so does a seed"):
        verify(honest, seed=b"x", beacon=good)
    with pytest.raises(BeaconError, match="is of round 1000, and 999 was named"):
        replace(good, round=999)  # whatever the run is
    bad = replace(good, token=foreign)
    for sample in (None, 1000):  # also where nothing is drawn
        with pytest.raises(TimestampError, match="is of other bytes"):
            verify_algebraic(honest, AlgebraicAudit(beacon=bad, sample=sample))


def test_a_solver_with_many_stamped_claims_shows_the_one_that_is_missed(
    tmp_path: Path, authority: Authority
) -> None:
    """Each was there before the round, so its token is good; only a pin knows which one counts."""
    task = make_tiny_task(steps=12, commit_every=1, checkpoint_every=2, samples=10, batch=4)
    run = tmp_path / "run"
    cheats.train_falsely(task, run, key=KEY, cheat=cheats.skip_step, step=6)
    pin = make_pin(compute_claim_digest(read_claim(run).claim))
    for i in range(100):
        claim_anew(run, run_id=i.to_bytes(32))
        report = verify(run, samples=1, beacon=draw_with(authority, run))
        if report.verdict != "fraud":
            break
    assert all(check.status == "passed" for check in report.checks), "the attack works"
    assert (report.verdict, list_assumed(report)) == ("conditional", ["chosen-claim"])
    refused = verify(run, samples=1, beacon=draw_with(authority, run), pin=pin)
    assert (refused.verdict, reason_of(refused).name) == ("inconclusive", "claim")


def test_one_claim_is_stamped_many_times_for_many_rounds(honest: Path, tmp_path: Path) -> None:
    """Each token gives another round, so a token out of the run folder is its solver's choice."""
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    own, link = run / "claim.tsr", tmp_path / "link"
    own.write_bytes(b"a token")
    link.symlink_to(own)
    for token in (own, link):
        with pytest.raises(RunError, match="its solver may have had many made"):
            make_draw(run, "drand:1000", own, token=token, authority=own)
    other = tmp_path / "token"
    other.write_bytes(b"a token")
    with pytest.raises(RunError, match="its solver may be the authority"):
        make_draw(run, "drand:1000", own, token=other, authority=own)


# --- tasks that name a beacon


def name_beacon(task: CompiledTask, rule: BeaconRule) -> CompiledTask:
    return replace(task, spec=replace(task.spec, beacon=rule))


def test_a_task_names_chain_delay_and_authority(
    task: CompiledTask, tmp_path: Path, authority: Authority
) -> None:
    chain = decode_chain(json.dumps(make_own_chain()).encode())
    rule = BeaconRule(chain.hash, 600, (identify_root(authority.trusted),))
    run, other = tmp_path / "run", make_authority("another")
    train(name_beacon(task, rule), run, key=KEY)
    claimed = chain.genesis + 5000
    beacon = decode_beacon(json.dumps(sign_own(1121)).encode())
    given = draw_with(authority, run, claimed, round=1121, beacon=beacon, chain=chain)
    pin = make_pin(read_claim(run))
    report = verify(run, samples=1, beacon=given, pin=pin)
    assert report.verdict == "verified"
    assert not any("agreed on: the task" in line for line in report.strength.unchecked)
    sooner = decode_beacon(json.dumps(sign_own(1120)).encode())
    with pytest.raises(BeaconError, match="gives round 1121"):
        verify(run, samples=1, beacon=replace(given, round=1120, beacon=sooner))
    with pytest.raises(TimestampError, match="is one that the task names"):
        verify(run, samples=1, beacon=replace(given, roots=(other.trusted,)))
    with pytest.raises(BeaconError, match="not known here"):
        verify(run, samples=1, beacon=replace(given, chain=None))
    quick = replace(get_beacon("quicknet"), round=1121)
    with pytest.raises(BeaconError, match="does not verify"):
        verify(run, samples=1, beacon=replace(given, beacon=quick))
    fresh = verify(run, samples=1)
    assert fresh.verdict == "verified"
    assert any("was drawn otherwise" in line for line in fresh.strength.unchecked)


def test_a_task_without_a_beacon_is_encoded_as_before(task: CompiledTask) -> None:
    plain = encode_task(task.spec)
    assert b"beacon" not in plain
    named = encode_task(replace(task.spec, beacon=RULE))
    assert decode_task(plain) == task.spec
    assert decode_task(named) == replace(task.spec, beacon=RULE)
    for rule in (
        BeaconRule(bytes(31)),
        replace(RULE, delay=59),
        replace(RULE, delay=366 * 86400 + 1),
        replace(RULE, authorities=(bytes(32),) * 9),
        replace(RULE, authorities=(bytes(20),)),
    ):
        with pytest.raises(EncodingError) as caught:
            decode_task(encode_task(replace(task.spec, beacon=rule)))
        assert caught.value.where.startswith("task.beacon.")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ('chain = "quicknet"', RULE),
        ('chain = "default"\ndelay = 90', BeaconRule(DEFAULT.hash, 90)),
        (f'chain = "{"ab" * 32}"', BeaconRule(bytes([0xAB]) * 32)),
        (
            f'chain = "quicknet"\nauthorities = ["{"01" * 32}"]',
            replace(RULE, authorities=(b"\1" * 32,)),
        ),
        ("", "beacon.chain"),
        ('chain = "slownet"', "beacon.chain"),
        ('chain = "quicknet"\ndelay = 59', "beacon.delay"),
        ('chain = "quicknet"\nauthorities = "any"', "beacon.authorities"),
        ('chain = "quicknet"\nauthorities = [5]', "beacon.authorities"),
        ('chain = "quicknet"\nround = 5', "beacon.round"),
    ],
)
def test_a_task_file_names_a_beacon(
    repository: Path, tmp_path: Path, lines: str, found: BeaconRule | str
) -> None:
    text = (repository / "examples" / "mnist" / "mlp.toml").read_text()
    file = tmp_path / "task.toml"
    file.write_text(text.replace("[optimizer]", f"[beacon]\n{lines}\n\n[optimizer]", 1))
    if isinstance(found, BeaconRule):
        assert load_task(file).beacon == found
        return
    with pytest.raises(TaskError) as caught:
        load_task(file)
    assert caught.value.where == found


# --- how many to draw


@pytest.mark.parametrize(("steps", "every"), [(9, 1), (40, 4), (1400, 100), (101, 2)])
@pytest.mark.parametrize("fraction", [None, Fraction(1, 20), Fraction(1, 4)])
def test_the_sample_is_the_smallest_that_suffices(
    steps: int, every: int, fraction: Fraction | None
) -> None:
    segments = Segments(steps, every)
    chances = {
        drawn: next(
            case.probability
            for case in compute_detections(segments, drawn)
            if case.fraction == fraction
        )
        for drawn in range(segments.count + 1)
    }
    for wanted in (Fraction(1, 2), Fraction(99, 100), Fraction(1), chances[2]):
        size = compute_sample_size(segments, Wanted(wanted, fraction))
        assert size == min(drawn for drawn, chance in chances.items() if chance >= wanted)


def test_sizes_of_large_runs_cost_little() -> None:
    segments = Segments(7_000_000, 1)
    assert compute_sample_size(segments, Wanted(Fraction(99, 100), Fraction(1, 100))) == 459
    assert compute_sample_size(segments, Wanted(Fraction(1, 2))) == 3_500_000
    for wanted in (Wanted(Fraction(0)), Wanted(Fraction(2)), Wanted(Fraction(1, 2), Fraction(0))):
        with pytest.raises(RunError, match="must be above 0"):
            compute_sample_size(segments, wanted)


def test_an_audit_draws_as_many_as_are_wanted(honest: Path) -> None:
    assert len(verify(honest, wanted=Wanted(Fraction(1, 3))).segments) == 1
    assert len(verify(honest, wanted=Wanted(Fraction(34, 100))).segments) == 2
    with pytest.raises(RunError, match="name no number"):
        verify(honest, samples=1, wanted=Wanted(Fraction(1, 3)))


# --- the command line


@pytest.fixture
def files(honest: Path, tmp_path: Path, authority: Authority) -> dict[str, str]:
    """What an auditor has on disk."""
    given = draw_with(authority, honest)
    assert given.token is not None
    served = next(b for b in DRAND["beacons"] if b["chain"] == "quicknet")
    contents = {
        "round.json": json.dumps(served).encode(),
        "claim.tsr": given.token,
        "root.pem": authority.root.public_bytes(Encoding.PEM),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    shutil.copy(RunPaths(honest).claim, tmp_path / "kept.cbor")
    return {name: str(tmp_path / name) for name in (*contents, "kept.cbor")}


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words), standalone_mode=False)
    if isinstance(result.exception, Exception):
        return 2, str(result.exception)
    return result.return_value or 0, result.output


def test_the_way_of_an_auditor(honest: Path, tmp_path: Path, files: dict[str, str]) -> None:
    dated = ["--token", files["claim.tsr"], "--authority", files["root.pem"]]
    code, text = call(
        "claim", str(honest), "--request", str(tmp_path / "claim.tsq"), *dated, "--json"
    )
    shown = json.loads(text)
    assert (code, shown["beacon"], shown["claimed"]) == (0, "drand:1000", "2023-08-23T15:58:24Z")
    assert shown["beacon_url"].endswith(f"/{QUICKNET.hash.hex()}/public/1000")
    assert (tmp_path / "claim.tsq").stat().st_size > 50
    drawn = ["--beacon", "drand:1000", "--beacon-file", files["round.json"]]
    words = ["verify", str(honest), "--probability", "33%", *drawn, *dated]
    assert call(*words, "--json")[0] == 4
    code, text = call(*words, "--claim", files["kept.cbor"], "--json")
    assert (code, json.loads(text)["randomness"]["beacon"]["round"]) == (0, 1000)


def test_a_token_is_put_in_order(
    honest: Path, tmp_path: Path, files: dict[str, str], authority: Authority
) -> None:
    """What an authority sends with its root before its own certificate."""
    digest = compute_claim_digest(read_claim(honest).claim)
    sent, ordered = tmp_path / "sent.tsr", tmp_path / "ordered.tsr"
    time, others = datetime.fromtimestamp(CLAIMED, UTC), (authority.trusted,)
    sent.write_bytes(authority.stamp(digest, time, others=others, parts={"unsorted": True}))
    words = ["claim", str(honest), "--authority", files["root.pem"], "--token"]
    code, text = call(*words, str(sent))
    assert (code, "--ordered NEW puts it in order" in text) == (2, True)
    code, text = call(*words, str(sent), "--ordered", str(ordered), "--json")
    shown = json.loads(text)
    assert (code, shown["ordered"], shown["beacon"]) == (0, str(ordered), "drand:1000")
    again = json.loads(call(*words, str(ordered), "--json")[1])
    assert again == {key: value for key, value in shown.items() if key != "ordered"}
    code, text = call("claim", str(honest), "--ordered", str(ordered))
    assert (code, "--token alone" in text) == (2, True)
    code, text = call(*words, str(sent), "--ordered", str(ordered))
    assert (code, "exists already" in text) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--beacon", "drand:1000"], "--beacon needs --beacon-file"),
        (["--beacon-file", "round.json"], "has a meaning with --beacon alone"),
        (["--token", "claim.tsr"], "has a meaning with --beacon alone"),
        (
            ["--beacon", "drand:1000", "--beacon-file", "round.json", "--token", "claim.tsr"],
            "belong together",
        ),
        (["--beacon", "drand:1000", "--beacon-file", "round.json", "--seed", "00"], "both draw"),
        (["--probability", "99%", "--samples", "1"], "--samples has no meaning"),
        (["--probability", "99%", "--all"], "--probability has no meaning"),
        (["--share", "1%"], "with --probability alone"),
        (["--probability", "1.1"], "is no number above 0"),
        (["--probability", "1/0"], "is no number above 0"),
        (["--beacon", "seed", "--beacon-file", "round.json"], "drand:1000"),
    ],
)
def test_wrong_calls(honest: Path, files: dict[str, str], words: list[str], message: str) -> None:
    code, text = call("verify", str(honest), *(files.get(word, word) for word in words))
    assert (code, message in text) == (2, True)
