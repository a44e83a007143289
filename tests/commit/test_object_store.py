"""Object stores: a run is published to a local S3 server and audited there, keys and all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from obstore.exceptions import PermissionDeniedError

from tests.audit.runs import KEY, reason_of
from tests.tasks import make_tiny_task
from vtrain import cli
from vtrain.audit.published import open_published
from vtrain.audit.verify import verify
from vtrain.commit.object_store import ObjectStore
from vtrain.commit.pieces import RowsForm, read_units, write_whole
from vtrain.errors import NotProducedError, RunError, StoreError
from vtrain.train.publish import publish_run
from vtrain.train.runner import train
from vtrain.wire.report import Report

KEYS = {
    "access_key_id": "AKIAEXAMPLE",
    "secret_access_key": "of the tests alone",
    "region": "us-east-1",
}
BUCKET = "runs"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """Options of a store in a server of S3's protocol, which has one empty bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    try:
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=KEYS["region"],
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
        )
        client.create_bucket(Bucket=BUCKET)
        yield {**KEYS, "endpoint": endpoint}
    finally:
        server.stop()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    train(make_tiny_task(steps=8, commit_every=2, checkpoint_every=4), folder, key=KEY)
    return folder


def audit(url: str, options: dict[str, str]) -> Report:
    with open_published(url, options) as published:
        return verify(published.root, published=published, samples=1)


def test_a_run_is_published_and_audited(run: Path, options: dict[str, str], tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/audited"
    store = ObjectStore(url, options)
    publish_run(run, store)
    report = audit(url, options)
    assert report.verdict == "verified", report.reason
    # Publishing again, to the same place, replaces what leads to the rest, and writes no piece.
    publish_run(run, ObjectStore(url, options))
    other = tmp_path / "other"
    train(make_tiny_task(steps=2, commit_every=2, checkpoint_every=2), other, key=KEY)
    with pytest.raises(RunError, match="of another run"):
        publish_run(other, ObjectStore(url, options))
    with pytest.raises(NotProducedError, match="more than the 9"):
        store.find("claim.cbor", 9)
    assert audit(url, options).verdict == "verified"


def test_what_is_kept_back_is_owed(run: Path, options: dict[str, str], tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/withheld"
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    publish_run(copy, ObjectStore(url, options), samples=False)
    report = audit(url, options)
    assert report.verdict == "inconclusive"
    assert "owes it" in reason_of(report).detail


def test_parts_of_pieces_are_read(options: dict[str, str]) -> None:
    url = f"s3://{BUCKET}/parts"
    store, form = ObjectStore(url, options), RowsForm(3000, 300)
    data = bytes(range(250)) * 3600
    root = write_whole(store, form, lambda part: data[part.start : part.stop], grains=True)
    found = dict(read_units(store, root, form, [(7, 8), (2000, 2001)]))
    assert sum(map(len, found.values())) < 2 * 8192
    assert all(data[start : start + len(part)] == part for start, part in found.items())
    assert store.ranges
    store.close()


def test_what_cannot_be_had_is_a_typed_error(options: dict[str, str]) -> None:
    store = ObjectStore(f"s3://{BUCKET}/empty", options)
    with pytest.raises(NotProducedError, match="owes it") as error:
        store.read("claim.cbor", 10)
    assert error.value.where == f"s3://{BUCKET}/empty/claim.cbor"
    store.close()
    with pytest.raises(StoreError, match="cannot be"):
        ObjectStore("s3://no-such-bucket/x", options).put("claim.cbor", b"x")
    with pytest.raises(RunError, match="cannot be opened"):
        ObjectStore(f"s3://{BUCKET}/x", {"no_such_option": "x"})


@pytest.mark.parametrize(("absent", "closed"), [("", "claim.cbor"), ("claim.cbor", "task.cbor")])
def test_a_store_without_access_is_told_apart_from_files_of_anothers(
    run: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, absent: str, closed: str
) -> None:
    """Nobody knows what is there: the store's reason in one line, and what helps."""

    def deny(store: object, name: str) -> None:
        if name == absent:
            raise FileNotFoundError
        raise PermissionDeniedError("Generic S3 error: 403 Forbidden\n\nDebug source:\nStatus {}")

    monkeypatch.setattr("vtrain.commit.object_store.obstore.get", deny)
    with pytest.raises(StoreError) as error:
        publish_run(run, ObjectStore(f"s3://{BUCKET}/closed", options))
    assert error.value.where == f"s3://{BUCKET}/closed/{closed}"
    message = error.value.message
    assert message.startswith("cannot be read: Generic S3 error: 403 Forbidden; see that the ")
    assert "credentials, region and endpoint are right" in message
    assert "\n" not in message


def test_the_commands(
    run: Path, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{BUCKET}/commands"
    given = [
        word for key, value in options.items() for word in ("--store-option", f"{key}={value}")
    ]
    assert cli.run(["publish", str(run), url, *given, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert cli.run(["verify", url, *given, "--samples", "1", "--claim", shown["claim"]]) == 0
    assert "bytes in" in capsys.readouterr().out
