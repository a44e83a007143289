"""Audits of published runs: what is drawn is fetched, and nothing that the claim does not bind is
believed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

import vtrain
from tests.attest.authority import make_authority
from tests.audit.runs import KEY, failed, read_leaves, reason_of, sign_again, write_leaves
from tests.audit.test_beacon import CLAIMED, DRAND, ROUND, draw_with
from tests.stores import Site, answer, read_folder, serving
from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.attest.claims import compute_claim_digest
from vtrain.audit import structure
from vtrain.audit.algebraic import AlgebraicAudit, make_traces_pin, verify_algebraic
from vtrain.audit.pin import make_pin
from vtrain.audit.plan import REPLAY_DOMAIN, draw
from vtrain.audit.published import Published, list_sample_units, open_published
from vtrain.audit.verify import verify
from vtrain.commit.store import FolderStore
from vtrain.errors import EncodingError, NotProducedError, RunError
from vtrain.limits import limits_here
from vtrain.train import signed
from vtrain.train.layout import RunPaths
from vtrain.train.publish import name_state, publish_run
from vtrain.train.runner import train
from vtrain.train.traces import write_traces
from vtrain.wire.claim import decode_signed_claim
from vtrain.wire.record import decode_record, encode_record
from vtrain.wire.report import Report
from vtrain.wire.task import Windows

SEED = b"drawn after"


@pytest.fixture(scope="module")
def published(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The honest run, with the traces of steps 3 and 4, in a folder; not to be changed."""
    folder = tmp_path_factory.mktemp("published")
    run = Path(shutil.copytree(honest, folder / "run"))
    write_traces(run, (4,), key=KEY, out=run / "traces")
    publish_run(run, FolderStore(folder / "store"))
    return folder / "store"


@pytest.fixture
def site(published: Path) -> Iterator[Site]:
    with serving(Site(read_folder(published))) as found:
        yield found


def pin_of(published: Path) -> Any:
    return make_pin(decode_signed_claim((published / "claim.cbor").read_bytes()))


def audit(url: str, **given: Any) -> Report:
    with open_published(url) as found:
        return verify(found.root, published=found, **given)


def audit_traces(url: str, published: Path, **given: Any) -> Report:
    given = {"steps": (4,), "pin": pin_of(published)} | given
    with open_published(url) as found:
        return verify_algebraic(found.root, AlgebraicAudit(published=found, **given))


def publish_false(run: Path, change: Callable[[Path], None], store: Path) -> str:
    """Publish a run that its solver falsified, piece by piece as honest ones are."""
    change(run)
    publish_run(run, FolderStore(store))
    return f"file://{store}"


def spoil(site: Site, start: str) -> str:
    """Change a bit of the first object whose name begins so; its name."""
    name = min(name for name in site.objects if name.startswith(start))
    data = bytearray(site.objects[name])
    data[-1] ^= 1
    site.objects[name] = bytes(data)
    return name


# --- honest


@pytest.mark.parametrize("ranges", [True, False])
def test_an_honest_run_is_verified_over_http(site: Site, ranges: bool) -> None:
    site.ranges = ranges
    report = audit(site.url, samples=1)
    assert report.verdict == "verified", report.reason
    assert len(report.segments) == 1
    assert [check.name for check in report.checks] == [
        *("claim", "task", "complete", "graph", "legality", "log", "records"),
        *("samples", "batches", "checkpoints", "replay"),
    ]
    assert "4 of 12 batch digests" in " ".join(check.detail for check in report.checks)
    said = " ".join(report.strength.unchecked)
    assert "beyond what was drawn" in said
    assert "batches and order were checked" not in said


def test_only_what_is_drawn_is_fetched(site: Site, published: Path) -> None:
    """One segment: the claim, task, graph and log; one state; the batches' samples; and no name
    twice."""
    pin = pin_of(published)
    seeds = (bytes([i]) for i in range(100))
    seed = next(seed for seed in seeds if draw(seed, pin.digest, REPLAY_DOMAIN, 3, 1) != (0,))
    report = audit(site.url, samples=1, seed=seed, pin=pin)
    assert report.verdict == "verified"
    assert report.segments[0][0] in (5, 9)
    names = list(site.names)
    assert len(names) == len(set(names))
    assert sum(name.startswith("states/") for name in names) == 1
    assert not any(name.startswith("traces/") for name in names)
    other = audit(site.url, all_=True)
    assert other.verdict == "verified"
    assert sum(name.startswith("states/") for name in site.names[len(names) :]) == 1


def test_one_state_lies_here_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is brought when its segment's turn comes, and let go after it."""
    task = make_tiny_task("mlp", steps=12, commit_every=2, checkpoint_every=2)
    train(task, tmp_path / "run", key=KEY)
    publish_run(tmp_path / "run", FolderStore(tmp_path / "store"))
    here: list[int] = []
    bring = Published.bring_state

    def look(self: Published, *given: Any) -> None:
        bring(self, *given)
        here.append(len(list(RunPaths(self.root).checkpoints.iterdir())))

    monkeypatch.setattr(Published, "bring_state", look)
    pin = pin_of(tmp_path / "store")
    seeds = (bytes([i]) for i in range(100))
    apart = next(
        seed
        for seed in seeds
        if np.diff(sorted(draw(seed, pin.digest, REPLAY_DOMAIN, 6, 3))).min() > 1
    )
    with open_published(f"file://{tmp_path / 'store'}") as found:
        report = verify(found.root, published=found, samples=3, seed=apart, pin=pin)
        assert not list(RunPaths(found.root).checkpoints.iterdir())
    assert report.verdict == "verified", report.reason
    assert here == [1, 1, 1]
    assert "3 that the draw begins at" in " ".join(check.detail for check in report.checks)


def test_a_state_that_is_not_there_is_one_fault(published: Path, tmp_path: Path) -> None:
    """Although two ask for it, commitments to weights (``srs``) and the replay."""
    shutil.copytree(published, tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "states")
    (srs := tmp_path / "srs").touch()
    pin = pin_of(published)
    with open_published(f"file://{tmp_path / 'store'}") as found:
        options: dict[str, Any] = {"srs": srs, "open_key": pytest.fail}
        report = verify(found.root, published=found, all_=True, pin=pin, **options)
    places = [item.where for item in failed(report) if item.name == "checkpoints"]
    assert len(places) == len(set(places)) > 1


def test_rows_are_fetched_alone(tmp_path: Path) -> None:
    """Of a tensor of several pieces the grains that the rows take; whole pieces of a store that has
    no hashes of grains, and the same verdict."""
    task = make_tiny_task("wide", steps=1, batch=1024, commit_every=1, checkpoint_every=1)
    run, store = tmp_path / "run", tmp_path / "store"
    train(task, run, key=KEY)
    write_traces(run, (1,), key=KEY, out=run / "traces")
    publish_run(run, FolderStore(store))
    large = max(node.outputs[0].byte_length for node in task.graph.nodes)
    with serving(Site(read_folder(store))) as site:

        def read(**given: Any) -> tuple[Report, int]:
            with open_published(site.url) as found:
                audit = AlgebraicAudit(published=found, steps=(1,), pin=pin_of(store), **given)
                report = verify_algebraic(found.root, audit)
                return report, found.source.traffic.bytes

        assert large > 1 << 20
        some, few = read(rows=1, rows_above=large - 1)
        assert some.verdict == "verified", some.reason
        assert some.sampled is not None
        for name in [name for name in site.objects if name.startswith("lists/")]:
            if len(site.objects[name]) > 32 * -(-large // (1 << 20)):  # of grains
                del site.objects[name]
        again, more = read(rows=1, rows_above=large - 1)
        assert again.verdict == "verified", again.reason
        assert few < more


def test_a_folder_is_audited_by_its_url(published: Path, honest: Path) -> None:
    with pytest.raises(RunError, match="by its URL"):
        vtrain.verify(published)
    report = vtrain.verify(f"file://{published}", samples=2)
    assert report.verdict == "verified", report.reason
    local = vtrain.verify(honest, samples=2)
    assert (report.root, report.claim, report.task_id) == (local.root, local.claim, local.task_id)


def test_the_draw_is_that_of_the_folder(site: Site, published: Path, honest: Path) -> None:
    given = {"samples": 1, "seed": SEED, "pin": pin_of(published)}
    assert audit(site.url, **given).segments == verify(honest, **given).segments


def test_structure_alone_fetches_neither_states_nor_samples(site: Site) -> None:
    report = audit(site.url, samples=0)
    assert report.verdict == "verified"
    assert set(site.names) == {"claim.cbor", "task.cbor", "graph.cbor", "log.bin"}


def test_an_auditor_who_has_the_samples_checks_all_batches(site: Site, honest: Path) -> None:
    report = audit(site.url, samples=1, data=RunPaths(honest).samples)
    assert report.verdict == "verified", report.reason
    assert "all 12 batch digests" in " ".join(check.detail for check in report.checks)


@pytest.mark.parametrize("engine", ["cpu", "numpy"])
def test_honest_traces_are_verified_over_http(site: Site, published: Path, engine: str) -> None:
    report = audit_traces(site.url, published, engine=engine)
    assert report.verdict == "verified", report.reason
    assert report.segments == ((3, 4),)
    # The states that a trace begins with are among its own values.
    assert not any(name.startswith("states/") for name in site.names)


def test_a_round_of_a_beacon_draws_of_a_published_run(
    site: Site, published: Path, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Store, round, token and pin together are full strength; without the token nothing shows that
    the claim came before the round."""
    authority = make_authority()
    given = draw_with(authority, published)
    assert given.token is not None
    kept, served, token, root = (tmp_path / name for name in ("kept", "round", "token", "root.pem"))
    kept.write_bytes((published / "claim.cbor").read_bytes())
    served.write_text(json.dumps(next(b for b in DRAND["beacons"] if b["chain"] == "quicknet")))
    token.write_bytes(given.token)
    root.write_bytes(authority.root.public_bytes(Encoding.PEM))
    words = ["verify", site.url, "--samples", "1", "--claim", str(kept), "--json"]
    words += ["--beacon", f"drand:{ROUND}", "--beacon-file", str(served)]
    assert cli.run([*words, "--token", str(token), "--authority", str(root)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["assumptions"]) == ("verified", [])
    use = report["randomness"]["beacon"]
    assert (use["round"], use["claimed"], use["authority"]) == (ROUND, CLAIMED, "CN=a test's clock")
    local = verify(honest, samples=1, beacon=given, pin=pin_of(published))
    assert [(item["first"], item["last"]) for item in report["replayed"]] == [*local.segments]
    assert cli.run(words) == 4
    report = json.loads(capsys.readouterr().out)
    assert [item["code"] for item in report["assumptions"]] == ["predictable-sample"]


def test_the_command_checks_traces_over_http(
    site: Site, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = shutil.copy(published / "claim.cbor", tmp_path / "kept.cbor")
    words = ["verify", site.url, "--mode", "algebraic", "--steps", "4", "--claim", str(kept)]
    for more in ([], ["--derived"]):
        assert cli.run([*words, *more, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["verdict"], report["replayed"]) == ("verified", [{"first": 3, "last": 4}])
        assert "algebraic" in {item["rung"] for item in report["coverage"]}
    leaves = (published / "traces" / "step-000000000004.leaves").read_bytes()
    values = {f"chunks/{leaves[at : at + 32].hex()}" for at in range(0, len(leaves), 32)}
    assert values & {*site.names}
    del site.objects["traces/traces.cbor"]
    assert cli.run(words) == 3
    assert "the solver owes the traces of these steps: 4" in capsys.readouterr().out


def test_traces_that_are_not_there_are_owed(site: Site, published: Path) -> None:
    report = audit_traces(site.url, published, steps=(12,))
    assert report.verdict == "inconclusive"
    assert "the solver owes the traces of these steps: 12" in reason_of(report).detail


def test_windows_of_tokens_are_fetched_alone(tmp_path: Path) -> None:
    task = make_tiny_task("gpt", steps=4, commit_every=1, checkpoint_every=2)
    assert task.spec.data.windows is not None
    train(task, tmp_path / "run", key=KEY)
    publish_run(tmp_path / "run", FolderStore(tmp_path / "store"))
    report = audit(f"file://{tmp_path / 'store'}", samples=1)
    assert report.verdict == "verified", report.reason


def test_units_of_windows_are_the_chunks_that_they_lie_in() -> None:
    task = make_tiny_task("gpt", steps=1)
    windows = Windows("u16", tokens=10_000, context=100, stride=7, shift=1)
    data = replace(task.spec.data, windows=windows, samples=windows.count)
    units = list_sample_units(data, [0, 1, 100])
    # Of 2 bytes each: tokens 0 to 107, and 700 to 800.
    assert units == [(0, 2)]
    assert list_sample_units(data, [200]) == [(2, 3)]
    assert list_sample_units(data, [windows.count - 1]) == [(19, 20)]


def test_what_lies_between_x_and_y_is_not_fetched() -> None:
    task = make_tiny_task("gpt", steps=1)
    windows = Windows("u16", tokens=10_000, context=100, stride=7, shift=3000)
    data = replace(task.spec.data, windows=windows, samples=windows.count)
    # Tokens 0 to 99 and 3,000 to 3,099; 700 to 799 and 3,700 to 3,799.
    assert list_sample_units(data, [0]) == [(0, 1), (5, 7)]
    assert list_sample_units(data, [0, 100]) == [(0, 2), (5, 8)]


# --- a solver that cheats


def test_a_false_step_is_fraud(run: Path, tmp_path: Path) -> None:
    """Its checkpoints and its log agree: only doing it again tells."""

    def falsify(run: Path) -> None:
        leaves = read_leaves(run)
        record = decode_record(leaves[6])
        leaves[6] = encode_record(replace(record, loss=record.loss + 1))
        write_leaves(run, leaves)
        sign_again(run)

    url = publish_false(run, falsify, tmp_path / "store")
    report = audit(url, all_=True)
    assert report.verdict == "fraud"
    assert reason_of(report).where == "steps 7 to 7" or "7" in reason_of(report).where


def test_a_state_that_is_not_there_shields_no_false_step_after_the_next(
    run: Path, tmp_path: Path
) -> None:
    """A segment whose neighbour before it was drawn too is replayed from its own state then."""
    store = tmp_path / "store"

    def falsify(run: Path) -> None:
        leaves = read_leaves(run)
        record = decode_record(leaves[6])
        leaves[6] = encode_record(replace(record, loss=record.loss + 1))
        write_leaves(run, leaves)
        sign_again(run)

    url = publish_false(run, falsify, store)
    root = signed.read_task(RunPaths(run)).initial_state_root
    (store / name_state(root)).unlink()
    report = audit(url, all_=True)
    assert (report.verdict, reason_of(report).where) == ("fraud", "step 7")


def test_a_false_batch_is_fraud_where_it_is_drawn(run: Path, tmp_path: Path) -> None:
    def falsify(run: Path) -> None:
        leaves = read_leaves(run)
        record = decode_record(leaves[6])
        leaves[6] = encode_record(
            replace(record, batch_digest=decode_record(leaves[7]).batch_digest)
        )
        write_leaves(run, leaves)
        sign_again(run)

    url = publish_false(run, falsify, tmp_path / "store")
    report = audit(url, all_=True)
    assert (report.verdict, reason_of(report).name) == ("fraud", "batches")
    assert reason_of(report).where == "step 7"


def test_a_claim_other_than_the_one_pinned_is_refused(site: Site) -> None:
    report = audit(site.url, samples=1, pin=make_pin(bytes(32)))
    assert report.verdict == "inconclusive"
    assert site.names == ["claim.cbor"]  # nothing of another claim is asked for


# --- a store that keeps back or spoils


@pytest.mark.parametrize(
    ("start", "check"),
    [
        ("claim.cbor", "claim"),
        ("task.cbor", "task"),
        ("graph.cbor", "graph"),
        ("log.bin", "log"),
        ("states/", "checkpoints"),
        ("chunks/", None),
    ],
)
@pytest.mark.parametrize("how", ["keep", "spoil", "empty", "long"])
def test_what_is_kept_back_or_spoiled_convicts_nobody(
    site: Site, start: str, check: str | None, how: str
) -> None:
    for name in [name for name in site.objects if name.startswith(start)]:
        data = site.objects[name]
        changed = {"spoil": bytes([*data[:-1], data[-1] ^ 1]), "empty": b"", "long": data + b"x"}
        if how == "keep":
            del site.objects[name]
        else:
            site.objects[name] = changed[how]
    report = audit(site.url, samples=1)
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)
    found = failed(report)
    assert found[0].fault == "nobody"
    if check is not None:
        assert found[0].name == check
    if start in ("states/", "chunks/"):
        assert "whoever published the run owes" in found[0].detail
        # Who keeps bytes back has no other draw for it.
        assert any("--seed" in item.detail for item in report.checks)


@pytest.mark.parametrize("kept", ["states", "chunks"])
@pytest.mark.parametrize("how", ["keep", "short", "spoil"])
def test_of_a_folder_too_it_is_said_who_owes_what(
    published: Path, tmp_path: Path, kept: str, how: str
) -> None:
    store = Path(shutil.copytree(published, tmp_path / "store"))
    for path in (store / kept).iterdir():
        data = path.read_bytes()
        path.unlink()
        if how != "keep":
            path.write_bytes(data[:-1] if how == "short" else bytes([*data[:-1], data[-1] ^ 1]))
    found = failed(audit(store.as_uri(), samples=1))[0]
    assert (found.fault, "whoever published the run owes" in found.detail) == ("nobody", True)
    assert f"{kept}/" in f"{found.where}: {found.detail}"


@pytest.mark.parametrize("how", ["keep", "spoil"])
def test_a_tensor_of_a_trace_that_is_kept_back_or_spoiled_convicts_nobody(
    site: Site, published: Path, how: str
) -> None:
    for name in [name for name in site.objects if name.startswith("chunks/")]:
        if how == "keep":
            del site.objects[name]
        else:
            spoil(site, name)
    report = audit_traces(site.url, published, data=None)
    assert report.verdict == "inconclusive"


def test_no_word_of_a_store_takes_the_way_back_to_the_draw_away(
    honest: Path, tmp_path: Path
) -> None:
    """What errors quote of an answer is the store's to choose: it has no word of our own for us."""

    def speak(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"come back with --seed 00 or --claim\r\n\r\n")
        handler.close_connection = True

    run, store = Path(shutil.copytree(honest, tmp_path / "run")), tmp_path / "store"
    write_traces(run, (2, 4, 6, 8, 10, 12), key=KEY, out=run / "traces")
    publish_run(run, FolderStore(store))
    leaves = b"".join(path.read_bytes() for path in (store / "traces").glob("*.leaves"))
    values = {leaves[at : at + 32].hex() for at in range(0, len(leaves), 32)}
    names = {f"chunks/{value}": speak for value in values}
    with serving(Site(read_folder(store), misbehave=names)) as site:
        pin, seed = pin_of(store), bytes(32)
        with open_published(site.url) as found:
            asked = AlgebraicAudit(published=found, sample=5, pin=pin)
            report = verify_algebraic(found.root, asked, random=lambda size: seed[:size])
    assert report.verdict == "inconclusive"
    detail = reason_of(report).detail
    assert "--seed 00 or" in detail
    assert f"--claim {pin.digest.hex()} --seed {seed.hex()}" in detail


def test_a_task_or_graph_that_is_not_bound_is_never_decoded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a record: decoders see bytes that were compared, or the claim."""

    def refuse(data: bytes) -> Any:
        raise AssertionError("a decoder was given what nothing vouches for")

    for start, room, name in (
        ("task.cbor", signed, "decode_task"),
        ("graph.cbor", signed, "decode_graph"),
        ("log.bin", structure, "decode_record"),
    ):
        kept = site.objects[start]
        spoil(site, start)
        with monkeypatch.context() as patch:
            patch.setattr(room, name, refuse)
            assert audit(site.url, samples=1).verdict == "inconclusive"
        site.objects[start] = kept


def test_what_changes_between_two_reads_is_refused_or_never_read_again(
    site: Site, published: Path
) -> None:
    """A store that shows one claim, and then files of another run; or another claim to whoever asks
    again."""
    claims: list[bytes] = [site.objects["claim.cbor"]]
    other = decode_signed_claim(claims[0])
    answers = iter([claims[0], b"another claim"])
    site.misbehave = {"claim.cbor": lambda handler: answer(handler, 200, next(answers))}
    report = audit(site.url, samples=1)
    assert report.verdict == "verified"
    assert site.names.count("claim.cbor") == 1
    assert report.claim == compute_claim_digest(other.claim)


def test_a_store_that_serves_one_piece_for_another_is_refused(site: Site) -> None:
    chunks = sorted(name for name in site.objects if name.startswith("chunks/"))
    turned = {name: site.objects[chunks[i - 1]] for i, name in enumerate(chunks)}
    site.objects |= turned
    assert audit(site.url, samples=1).verdict == "inconclusive"


def test_names_of_states_lead_nowhere(tmp_path: Path) -> None:
    """Names that a stranger chose are in leaves and headers; no file is called by them."""
    from tests.audit.runs import make_smallest_task

    task = make_smallest_task()
    train(task, tmp_path / "run", key=KEY)
    publish_run(tmp_path / "run", FolderStore(tmp_path / "store"))
    known = {"claim.cbor", "task.cbor", "graph.cbor", "log.bin"}
    names = set(read_folder(tmp_path / "store")) - known
    assert all(name.split("/")[0] in {"chunks", "lists", "states"} for name in names)
    assert all(len(name.split("/")[1]) == 64 for name in names)


def test_samples_of_more_than_this_machine_takes_are_no_crash(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(limits_here(), samples_bytes=10)
    url = f"file://{published}"
    for samples in (1, 0):  # the last check of the structure, whatever is drawn
        with open_published(url, limits=small) as found:
            report = verify(found.root, published=found, samples=samples)
        assert report.verdict == "inconclusive"
        assert reason_of(report).name == "samples"
        assert [check.name for check in report.checks][-2:][samples ^ 1] == "samples"
    with open_published(url, limits=small) as found:
        report = verify_algebraic(found.root, AlgebraicAudit(published=found, steps=(999,)))
    assert [(check.name, check.status) for check in report.checks[-2:]] == [
        ("samples", "failed"),
        ("algebraic", "not_done"),
    ]


def test_samples_that_an_auditor_brings_are_not_mended_by_the_store(
    published: Path, tmp_path: Path
) -> None:
    other = tmp_path / "samples.bin"
    other.write_bytes(b"other")
    report = audit(f"file://{published}", samples=1, data=other)
    checks = [(check.name, check.status, check.where) for check in report.checks]
    assert [check for check in checks if check[0] == "samples"] == [
        ("samples", "failed", str(other))
    ]
    assert checks[-1] == ("replay", "not_done", "")


def test_what_the_publisher_wrote_pins_nothing(
    published: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A store that is a folder here is its solver's, as a run's folder is, by whatever way."""
    url, link = f"file://{published}", tmp_path / "kept"
    link.symlink_to(published)
    for source in (published / "claim.cbor", link / "claim.cbor"):
        with pytest.raises(RunError, match="file of the run"):
            vtrain.verify(url, claim=source, samples=0)
    traces = make_traces_pin(published / "traces" / "traces.cbor")
    with pytest.raises(RunError, match="file of the run"):
        audit_traces(url, published, traces_pin=traces)
    own, other = published / "claim.cbor", tmp_path / "other"
    other.write_bytes(b"{}")
    drawn = ["--beacon", "drand:1", "--beacon-file", str(other)]
    for token, authority in ((own, other), (other, own)):
        dated = ["--token", str(token), "--authority", str(authority)]
        assert cli.run(["verify", url, *drawn, *dated]) == 2
        assert "file of the run" in capfd.readouterr().err


# --- publishing


def test_publishing_again_writes_what_was_added(honest: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    store = FolderStore(tmp_path / "store")
    first = publish_run(run, store)
    assert (first.states, first.traces, first.samples) == (4, 0, True)
    before = {path: path.stat().st_mtime_ns for path in store.root.glob("chunks/*")}
    write_traces(run, (4,), key=KEY, out=run / "traces")
    assert publish_run(run, store).traces == 1
    after = {path: path.stat().st_mtime_ns for path in store.root.glob("chunks/*")}
    assert before.items() <= after.items()
    assert len(after) > len(before)


def test_what_is_missing_of_a_trace_is_written_again(honest: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    write_traces(run, (4,), key=KEY, out=run / "traces")
    before = read_folder(run / "traces")
    gone = run / "traces" / "step-000000000004.leaves"
    short = max((run / "traces" / "chunks").iterdir(), key=lambda path: path.stat().st_size)
    for path in (gone, short):
        path.unlink()
        with pytest.raises(NotProducedError, match=r"vtrain trace .* --step 4. writes it again"):
            publish_run(run, FolderStore(tmp_path / "store"))
        write_traces(run, (4,), key=KEY, out=run / "traces")
        assert read_folder(run / "traces") == before
    assert publish_run(run, FolderStore(tmp_path / "store")).traces == 1


def test_secrets_and_proofs_are_not_published(honest: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    (run / "hiding.key").write_bytes(b"a secret of the solver's")
    (run / "proofs").mkdir()
    (run / "proofs" / "x").write_bytes(b"a secret of the solver's")
    publish_run(run, FolderStore(tmp_path / "store"))
    assert not any(b"a secret" in data for data in read_folder(tmp_path / "store").values())


def test_what_is_not_as_claimed_is_not_published(honest: Path, tmp_path: Path) -> None:
    for name in ("checkpoints/000000000004.safetensors", "data/samples.bin", "model.onnx"):
        run = Path(shutil.copytree(honest, tmp_path / name.replace("/", "-")))
        data = bytearray((run / name).read_bytes())
        data[-1] ^= 1
        (run / name).write_bytes(data)
        store = FolderStore(tmp_path / f"store-{name.replace('/', '-')}")
        with pytest.raises((EncodingError, NotProducedError)):
            publish_run(run, store)
        assert not (store.root / "claim.cbor").exists()


def test_a_run_is_not_published_over_another(honest: Path, tmp_path: Path) -> None:
    """Its claim and its log would be gone."""
    other = Path(shutil.copytree(honest, tmp_path / "other"))
    before = read_folder(other)
    with pytest.raises(RunError, match="holds a run"):
        publish_run(honest, FolderStore(other))
    assert read_folder(other) == before


def test_a_run_is_not_published_over_what_another_published(
    honest: Path, published: Path, tmp_path: Path
) -> None:
    """Its claim, log, task and graph would be gone, and whoever holds the claim has nothing to
    audit; a claim of this run that is longer, or of another log, is as dear."""
    store = FolderStore(Path(shutil.copytree(published, tmp_path / "store")))
    before = read_folder(store.root)
    other, fewer = tmp_path / "other", Path(shutil.copytree(honest, tmp_path / "fewer"))
    train(make_tiny_task(steps=4, commit_every=2, checkpoint_every=4), other, key=KEY)
    write_leaves(fewer, read_leaves(fewer)[:8])
    sign_again(fewer)
    for run, said in ((other, "of another run"), (fewer, "of this run, which it does not go on")):
        digests = [
            compute_claim_digest(signed.read_claim(RunPaths(at)).claim).hex()
            for at in (honest, run)
        ]
        with pytest.raises(RunError, match=said) as error:
            publish_run(run, store)
        assert all(digest in error.value.message for digest in digests)
        assert "publish to a place of its own" in error.value.message
        assert error.value.where == store.locate("claim.cbor")
        assert read_folder(store.root) == before
    # What is longer goes on from what is shorter, and what was removed is in nobody's way.
    (store.root / "claim.cbor").unlink()
    with pytest.raises(RunError, match="without a claim") as error:
        publish_run(fewer, store)
    assert error.value.where == store.locate("log.bin")
    (store.root / "log.bin").unlink()
    publish_run(fewer, store)
    publish_run(honest, store)
    assert audit(f"file://{store.root}", all_=True).verdict == "verified"
    (store.root / "claim.cbor").write_bytes(b"a list for the shop")
    with pytest.raises(RunError, match="is no claim that could be replaced"):
        publish_run(honest, store)


@pytest.mark.parametrize("name", ["chunks", "lists", "states", "traces"])
def test_nothing_is_published_through_a_link_or_over_a_file(
    published: Path, tmp_path: Path, name: str
) -> None:
    """Where a link leads is somebody else's, and whoever reads a store follows none: it is refused
    before anything is written."""
    run, store, victim = (
        published.parent / "run",
        FolderStore(tmp_path / "pub"),
        tmp_path / "victim",
    )
    store.root.mkdir()
    victim.mkdir()
    place = store.root / name
    for target in (victim, tmp_path / "nowhere"):
        place.symlink_to(target)
        for work in (lambda: publish_run(run, store), lambda: store.put(f"{name}/aa", b"x")):
            with pytest.raises(RunError, match=r"is a link, .*: remove it, or publish") as error:
                work()
            assert error.value.where == str(place)
        place.unlink()
    place.write_bytes(b"a list for the shop")
    with pytest.raises(RunError, match=r"is no folder, .*: move it away, or publish") as error:
        publish_run(run, store)
    assert error.value.where == str(place)
    assert (list(victim.iterdir()), list(store.root.iterdir())) == ([], [place])
    with pytest.raises(RunError, match="is no folder"):
        publish_run(run, FolderStore(place))
    place.unlink()
    # The folder itself may be reached by a link, as when it is read.
    (tmp_path / "way").symlink_to(store.root)
    publish_run(run, FolderStore(tmp_path / "way"))
    assert audit(f"file://{store.root}", all_=True).verdict == "verified"


def test_a_link_in_place_of_a_piece_is_replaced_by_the_piece(
    published: Path, tmp_path: Path
) -> None:
    """Even where what it leads to has the right bytes: nobody who reads the store would take it."""
    store = FolderStore(Path(shutil.copytree(published, tmp_path / "pub")))
    piece = next((store.root / "chunks").iterdir())
    away = piece.rename(tmp_path / "away")
    piece.symlink_to(away)
    publish_run(published.parent / "run", store)
    assert not piece.is_symlink()
    assert piece.read_bytes() == away.read_bytes()


@pytest.mark.parametrize(
    "name",
    ["task.cbor", "graph.cbor", "log.bin", "traces/traces.cbor", "traces/step-000000000004.leaves"],
)
def test_files_of_somebody_elses_are_not_replaced(
    published: Path, tmp_path: Path, name: str
) -> None:
    """Also where no claim is beside them, which says of which run they are."""
    run, store = published.parent / "run", FolderStore(tmp_path / "store")
    honest = (published / name).read_bytes()
    for content in (b"a list for the shop", honest[:-1] + b"!", honest + b"!", b""):
        (store.root / name).parent.mkdir(parents=True, exist_ok=True)
        (store.root / name).write_bytes(content)
        with pytest.raises(RunError, match="publish to a place of its own, or remove") as error:
            publish_run(run, store)
        assert error.value.where == store.locate(name)
        assert read_folder(store.root) == {name: content}
    (store.root / name).unlink()
    publish_run(run, store)


def test_leaves_that_nobody_signed_for_are_nobodys(run: Path, tmp_path: Path) -> None:
    """Beside no ``traces.cbor``: no audit looks at them, nobody publishes them, and whoever signs
    traces of these steps writes them anew; in a store they stay where they are."""
    leaves, store = run / "traces" / "step-000000000004.leaves", tmp_path / "store"
    bare = verify(run, all_=True)
    steps = AlgebraicAudit(steps=(4,))
    owed = verify_algebraic(run, steps).checks
    leaves.parent.mkdir()
    leaves.write_bytes(b"of somebody else")
    found = verify(run, all_=True)
    assert (found.verdict, found.checks) == ("verified", bare.checks)
    assert any(line.startswith("what lies in traces/: ") for line in found.strength.unchecked)
    assert verify_algebraic(run, steps).checks == owed
    publish_run(run, FolderStore(store))
    assert not (store / "traces").exists()
    foreign = store / "traces" / "step-000000000012.leaves"
    foreign.parent.mkdir()
    foreign.write_bytes(b"of somebody else")
    write_traces(run, (4,), key=KEY, out=run / "traces")
    assert verify(run).verdict == "verified"
    assert verify_algebraic(run, replace(steps, pin=pin_of(store))).verdict == "verified"
    publish_run(run, FolderStore(store))
    assert foreign.read_bytes() == b"of somebody else"
    assert audit_traces(f"file://{store}", store).verdict == "verified"
    owed_there = audit_traces(f"file://{store}", store, steps=(12,)).checks
    foreign.unlink()
    assert audit_traces(f"file://{store}", store, steps=(12,)).checks == owed_there


def test_a_publication_that_was_interrupted_is_gone_on_with(honest: Path, tmp_path: Path) -> None:
    """All but the claim was there, of fewer steps; or of fewer traces."""
    store, fewer = FolderStore(tmp_path / "store"), Path(shutil.copytree(honest, tmp_path / "few"))
    write_leaves(fewer, read_leaves(fewer)[:8])
    sign_again(fewer)
    publish_run(fewer, store)
    (store.root / "claim.cbor").unlink()
    publish_run(honest, store)
    run = Path(shutil.copytree(honest, tmp_path / "run"))
    for step in (4, 8):
        (store.root / "claim.cbor").unlink()
        write_traces(run, (step,), key=KEY, out=run / "traces")
        publish_run(run, store)
    url = f"file://{store.root}"
    assert audit(url, all_=True).verdict == "verified"
    assert audit_traces(url, store.root, steps=(4, 8)).verdict == "verified"


def test_samples_may_be_kept_back(honest: Path, tmp_path: Path) -> None:
    publish_run(honest, FolderStore(tmp_path / "store"), samples=False)
    url = f"file://{tmp_path / 'store'}"
    report = audit(url, samples=1)
    assert report.verdict == "inconclusive"
    assert "--data" in reason_of(report).detail
    root = signed.read_task(RunPaths(honest)).data.root.hex()
    assert reason_of(report).detail.startswith(("chunks/", "lists/"))
    assert root in reason_of(report).detail
    assert audit(url, samples=1, data=RunPaths(honest).samples).verdict == "verified"


def test_a_log_of_other_bytes_has_no_number_of_steps(site: Site) -> None:
    """Nothing is known of it, and no wrong number is said."""
    spoil(site, "log.bin")
    said = " ".join(audit(site.url, samples=1).strength.unchecked)
    assert "the batches of other steps, the model" in said


def test_an_unfinished_run_is_called_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunPaths(run).claim.unlink()
    out = str(tmp_path / "out")
    for words in (["eval"], ["export", "--out", out], ["claim"]):
        assert cli.run([words[0], str(run), *words[1:]]) == 2
        assert "the run is unfinished" in capsys.readouterr().err
    with pytest.raises(NotProducedError, match="signs a claim at the end"):
        publish_run(run, FolderStore(tmp_path / "store"))


# --- the commands


def test_the_commands(honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert cli.run(["publish", str(honest), str(store), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["checkpoints"] == 4
    # What is printed is what verify takes; the folder itself looks like a run of which all is gone.
    assert cli.run(["verify", shown["url"], "--samples", "1"]) == 0
    capsys.readouterr()
    assert cli.run(["verify", str(store)]) == 2
    assert f"by its URL, {shown['url']}" in capsys.readouterr().err
    with serving(Site(read_folder(store))) as site:
        words = ["verify", site.url, "--samples", "1", "--json", "--claim", shown["claim"]]
        assert cli.run(words) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["verdict"] == "verified"
        del site.objects["log.bin"]
        assert cli.run(["verify", site.url, "--json"]) == 3
        capsys.readouterr()
        assert cli.run(["verify", site.url, "--mode", "proof"]) == 2
        assert cli.run(["verify", f"{site.url}?x"]) == 2
        assert cli.run(["verify", str(honest), "--store-option", "region=x"]) == 2
        assert cli.run(["publish", str(honest), site.url]) == 2
