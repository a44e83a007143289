"""Somebody else's loop: an ordinary Trainer's run is attested, and every report says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import vtrain
from vtrain import cli
from vtrain.attest.attested import (
    compute_attestation_digest,
    compute_attested_root,
    compute_batch_digest,
    compute_weights_digest,
    describe_array,
    sign_attestation,
)
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.commit.log import frame
from vtrain.errors import EncodingError, RunError
from vtrain.report.document import explain
from vtrain.train.attested import AttestedPaths, AttestedRun, decode_records, list_files
from vtrain.train.torch_hooks import attest
from vtrain.wire import structs
from vtrain.wire.attested import (
    ATTESTED_HEADER,
    Attestation,
    AttestedFile,
    AttestedStep,
    Listing,
    SignedAttestation,
    decode_attestation,
)
from vtrain.wire.report import Report

pytestmark = pytest.mark.slow

Ids = list[dict[str, torch.Tensor]]


def make_rows() -> Ids:
    rows = torch.arange(48).reshape(12, 4) ** 2 // 3 % 16
    return [{"input_ids": row, "labels": row} for row in rows]


class Recorder(Trainer):
    """Keeps what it is given to compute losses of."""

    given: list[dict[str, Any]]

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        count = {"num_items_in_batch": more["num_items_in_batch"]}
        self.given.append(dict(inputs) | count)
        return super().compute_loss(model, inputs, *rest, **more)


def fit(folder: Path, key: PrivateKey, *, steps: int = 6, resume: bool = False) -> Recorder:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=4, n_embd=8, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    callback = vtrain.attest_callback(key=key)
    trainer = Recorder(model, arguments, train_dataset=make_rows(), callbacks=[callback])
    trainer.given = []
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, key: PrivateKey) -> tuple[Path, Recorder]:
    folder = tmp_path_factory.mktemp("attested") / "out"
    return folder, fit(folder, key)


@pytest.fixture
def run(whole: tuple[Path, Recorder], tmp_path: Path) -> Path:
    """A copy, to be spoiled: the attested run in the trainer's folder."""
    return Path(shutil.copytree(whole[0], tmp_path / "out")) / "attested"


def read_attestation(run: Path) -> Attestation:
    return decode_attestation(AttestedPaths(run).attestation.read_bytes()).attestation


def read_steps(run: Path) -> list[AttestedStep]:
    return decode_records(AttestedPaths(run).read_records())


def test_a_run_is_attested_and_never_more(
    whole: tuple[Path, Recorder], key: PrivateKey, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, trainer = whole
    run = folder / "attested"
    found = read_attestation(run)
    report = vtrain.verify(run, solver=public_key(key).hex())
    assert [(check.name, check.status) for check in report.checks] == [
        ("attestation", "passed"), ("configuration", "passed"), ("records", "passed"),
        ("checkpoints", "passed"),
    ]  # fmt: skip
    assert (report.verdict, report.exit_code, bool(report)) == ("conditional", 4, False)
    assert [item.code for item in report.assumptions] == ["attested"]
    assert "attested, not replayable" in " ".join(explain(report))
    assert any("cannot be replayed" in line for line in report.strength.unchecked)
    assert (report.steps, report.root, report.log_root) == (6, found.final, found.log_root)
    capfd.readouterr()
    assert cli.run(["verify", str(run)]) == 4
    out = capfd.readouterr().out
    assert "attested, not replayable" in out
    assert "Verdict: CONDITIONAL" in out
    file = str(run / "config.json")
    for words in (
        ["--all"],
        ["--samples", "2"],
        ["--mode", "algebraic"],
        ["--task-id", "00" * 32],
        ["--chain", file],
        ["--token", file, "--authority", file],
        ["--rows", "1"],
        ["--threads", "1"],
    ):
        assert cli.run(["verify", str(run), *words]) == 2, words
    for asked in ({"samples": 0}, {"all": True}, {"seed": b"1"}, {"data": file}):
        with pytest.raises(RunError, match="has no meaning"):
            vtrain.verify(run, **asked)
    with pytest.raises(RunError, match="holds an attested run"):
        vtrain.inspect(run)
    # The weights that are signed for are those of the module, whoever computes their digest.
    model: Any = trainer.model
    weights = {name: describe_array(tensor.numpy()) for name, tensor in model.state_dict().items()}
    assert compute_weights_digest(weights) == found.final != found.initial
    config = json.loads(AttestedPaths(run).config.read_text())
    assert config["arguments"]["max_steps"] == 6
    assert config["model"]["n_embd"] == 8
    assert config["optimizer"]["class"] == "AdamW"


def test_the_order_of_the_data_is_what_the_model_was_given(whole: tuple[Path, Recorder]) -> None:
    folder, trainer = whole
    steps = read_steps(folder / "attested")
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [bool(step.checkpoint) for step in steps] == [False, False, True] * 2
    # Who has the data computes the same: a step is two batches of two rows.
    calls = [
        {name: describe_array(np.asarray(value)) for name, value in given.items()}
        for given in trainer.given
    ]
    parts = [calls[at : at + 2] for at in range(0, 12, 2)]
    assert [step.batch for step in steps] == [compute_batch_digest(part) for part in parts]
    assert steps[0].batch != compute_batch_digest(parts[0][::-1]), "in order"
    rows = [tuple(row) for given in trainer.given[:6] for row in given["input_ids"].tolist()]
    assert sorted(rows) == sorted(tuple(row["input_ids"].tolist()) for row in make_rows())


def test_a_resumed_run_has_the_records_of_one(
    whole: tuple[Path, Recorder], key: PrivateKey, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    fit(folder, key)
    # As a process leaves it that was killed in step 6, with the checkpoint of step 3.
    shutil.rmtree(folder / "checkpoint-6")
    AttestedPaths(folder / "attested").attestation.unlink()
    report = vtrain.verify(folder / "attested")
    assert (report.verdict, report.reason and report.reason.name) == ("inconclusive", "attestation")
    fit(folder, key, resume=True)
    assert vtrain.verify(folder / "attested").verdict == "conditional"
    assert [step.batch for step in read_steps(folder / "attested")] == [
        step.batch for step in read_steps(whole[0] / "attested")
    ]
    with pytest.raises(RunError, match="has an attested run already"):
        fit(folder, key)
    shutil.rmtree(folder / "attested")
    with pytest.raises(RunError, match="from its first step"):
        fit(folder, key, steps=7, resume=True)


def spoil(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return change


def drop(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def cut_log(run: Path) -> None:
    path = AttestedPaths(run).log
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (spoil("attestation.cbor"), "attestation"),
        (drop("attestation.cbor"), "attestation"),
        (spoil("config.json"), "configuration"),
        (drop("config.json"), "configuration"),
        (spoil("log.bin"), "records"),
        (cut_log, "records"),
        (spoil("checkpoints/000000000003.cbor"), "checkpoints"),
        (spoil("../checkpoint-6/model.safetensors"), "checkpoints"),
        (drop("../checkpoint-6/optimizer.pt"), "checkpoints"),
    ],
)
def test_what_is_not_what_was_signed_is_inconclusive(
    run: Path, change: Callable[[Path], None], name: str
) -> None:
    change(run)
    report = vtrain.verify(run)
    assert report.verdict == "inconclusive"
    assert report.reason is not None
    assert (report.reason.name, report.reason.fault) == (name, "nobody")


def test_checkpoints_that_are_not_there_are_said(run: Path) -> None:
    shutil.rmtree(run.parent / "checkpoint-3")
    report = vtrain.verify(run)
    assert report.verdict == "conditional"
    assert "1 checkpoints that are not there" in report.strength.unchecked


def test_another_signer_or_another_claim_is_refused(
    whole: tuple[Path, Recorder], run: Path, tmp_path: Path
) -> None:
    kept = Path(shutil.copy(AttestedPaths(run).attestation, tmp_path / "kept"))
    digest = compute_attestation_digest(read_attestation(run))
    for claim in (digest, digest.hex(), kept):
        assert vtrain.verify(run, claim=claim).verdict == "conditional"
    assert verdict_of(vtrain.verify(run, claim=bytes(32))) == "attestation"
    assert verdict_of(vtrain.verify(run, solver=bytes(32))) == "attestation"
    with pytest.raises(RunError, match="pins nothing"):
        vtrain.verify(run, claim=AttestedPaths(run).attestation)


def verdict_of(report: Report) -> str:
    assert report.verdict == "inconclusive"
    return report.reason.name if report.reason else ""


def test_records_that_are_none_convict_who_signed_them(run: Path, key: PrivateKey) -> None:
    paths = AttestedPaths(run)
    records = paths.read_records()
    records[2], records[3] = records[3], records[2]
    paths.log.write_bytes(ATTESTED_HEADER + b"".join(map(frame, records)))
    false = replace(read_attestation(run), log_root=compute_attested_root(records))
    paths.attestation.write_bytes(structs.encode(sign_attestation(false, key)))
    report = vtrain.verify(run)
    assert (report.verdict, report.reason and report.reason.where) == ("fraud", "record 2")


def sign_listing(run: Path, files: tuple[AttestedFile, ...], key: PrivateKey) -> None:
    """Sign for a checkpoint of step 3 with these files."""
    paths = AttestedPaths(run)
    listing = structs.encode(Listing(files))
    paths.listing(3).write_bytes(listing)
    steps = read_steps(run)
    steps[2] = replace(steps[2], checkpoint=blake3(listing).digest())
    records = [structs.encode(step) for step in steps]
    paths.log.write_bytes(ATTESTED_HEADER + b"".join(map(frame, records)))
    false = replace(read_attestation(run), log_root=compute_attested_root(records))
    paths.attestation.write_bytes(structs.encode(sign_attestation(false, key)))


@pytest.mark.parametrize(
    "name", ["", ".", "/", "a\0b", "../x", "/etc/passwd", "a//b", "a/./b", "x" * 300]
)
def test_names_in_a_listing_lead_nowhere(run: Path, key: PrivateKey, name: str) -> None:
    sign_listing(run, (AttestedFile(name, 1, bytes(32)),), key)
    report = vtrain.verify(run)
    assert report.verdict == ("fraud" if len(name) < 300 else "inconclusive")
    assert cli.run(["verify", str(run)]) == report.exit_code


def test_a_listing_names_no_file_twice(run: Path, key: PrivateKey) -> None:
    """Each would be hashed again."""
    folder = run.parent / "checkpoint-3"
    file = list_files(folder).files[0]
    sign_listing(run, (file, file), key)
    report = vtrain.verify(run)
    assert (report.verdict, report.reason and report.reason.name) == ("fraud", "checkpoints")
    shutil.rmtree(folder)  # what was signed is what it is, whoever keeps the files
    assert vtrain.verify(run).verdict == "fraud"


def test_files_that_no_listing_has_are_said(run: Path) -> None:
    (run.parent / "checkpoint-3" / "adapter_model.safetensors").write_bytes(b"x")
    report = vtrain.verify(run)
    assert report.verdict == "conditional"
    assert any("checkpoint-3/adapter_model.safetensors" in it for it in report.strength.unchecked)


@pytest.mark.parametrize("name", ["log.bin", "config.json", "checkpoints/000000000003.cbor"])
def test_a_report_says_no_more_than_was_checked(run: Path, name: str) -> None:
    (run / name).unlink()
    assert not any("every file" in it for it in vtrain.verify(run).strength.checked)


def test_what_a_run_began_with_is_signed_after_it_was_resumed(
    whole: tuple[Path, Recorder], key: PrivateKey, tmp_path: Path
) -> None:
    """Else weights of its middle would be signed for as those before its first step, and another
    configuration as the one of all steps."""
    folder = tmp_path / "out"
    fit(folder, key, steps=3)
    first = read_attestation(folder / "attested")
    fit(folder, key, resume=True)
    found = read_attestation(folder / "attested")
    assert found.initial == first.initial == read_attestation(whole[0] / "attested").initial
    config = json.loads(AttestedPaths(folder / "attested").config.read_text())
    assert config["arguments"]["max_steps"] == 3
    assert [(item["after"], item["arguments"]["max_steps"]) for item in config["resumed"]] == [
        (3, 6)
    ]
    assert vtrain.verify(folder / "attested").verdict == "conditional"


@pytest.mark.parametrize("torn", [1, 3, 4, 40])
def test_a_torn_log_is_gone_on_with_from_its_last_whole_record(run: Path, torn: int) -> None:
    """A process may end within a write."""
    paths = AttestedPaths(run)
    records = paths.read_records()
    whole = ATTESTED_HEADER + b"".join(map(frame, records[:4]))
    paths.log.write_bytes(whole + frame(records[4])[:torn])
    AttestedRun(run, {}, bytes(32), 4).close()
    assert paths.read_records() == records[:4]
    paths.log.write_bytes(whole + frame(records[4])[:torn])
    with pytest.raises(RunError, match="no later step than 4") as error:
        AttestedRun(run, {}, bytes(32), 5)
    assert "ends within the record" in error.value.message


def test_whoever_resumes_from_a_checkpoint_finds_the_record_of_its_step(
    tmp_path: Path,
) -> None:
    """Also where the process ended right after it was saved; a step is saved once or twice."""
    paths, saved = AttestedPaths(tmp_path / "run"), tmp_path / "checkpoint-2"
    saved.mkdir()
    run = AttestedRun(paths.root, {}, bytes(32), 0)
    run.append(bytes(32))
    run.append(bytes(31) + b"\1")
    for data in (b"one", b"two", b"two"):
        (saved / "weights").write_bytes(data)
        run.add_checkpoint(saved)
        steps = decode_records(paths.read_records())
        assert [step.step for step in steps] == [1, 2]
        assert steps[1].checkpoint == blake3(paths.read_listing(2)).digest()
        assert paths.read_listing(2) == structs.encode(list_files(saved))
    run.append(bytes(30) + b"\1\2")
    run.close()
    assert [step.step for step in decode_records(paths.read_records())] == [1, 2, 3]
    AttestedRun(paths.root, {}, bytes(32), 2).close()


def test_no_two_tensors_of_a_batch_have_one_name() -> None:
    """Else one of them would not be signed."""
    x, y = torch.zeros(1), torch.ones(1)
    pairs: list[tuple[dict[Any, Any], dict[Any, Any]]] = [
        ({"a.b": x}, {"a": {"b": x}}),
        ({"a": {"b": x}, "a.b": y}, {"a": {"b": y}, "a.b": x}),
        ({"": {"a": x}}, {"a": x}),
        ({"a": [x, y]}, {"a": {"0": x, "1": y}}),
        ({"a\\.b": x}, {"a\\": {"b": x}}),
        ({0: x}, {"0": x}),
    ]
    for one, other in pairs:
        named = [attest._collect(attest._describe_all(None, given)) for given in (one, other)]
        assert compute_batch_digest([named[0]]) != compute_batch_digest([named[1]]), (one, other)
    plain = attest._collect(attest._describe_all(None, {"input_ids": x, 0: y, "more": [x]}))
    assert set(plain) == {"input_ids", "0", "more.0"}
    with pytest.raises(RunError, match="two tensors"):
        attest._collect(attest._describe_all(None, {(1,): x, "(1,)": y}))


def lose_beginning(paths: AttestedPaths) -> None:
    paths.config.write_text("{}")


def lose_record(paths: AttestedPaths) -> None:
    paths.log.write_bytes(ATTESTED_HEADER + frame(b"none") * 6)


@pytest.mark.parametrize("change", [lose_beginning, lose_record])
def test_a_run_whose_beginning_was_lost_is_not_gone_on_with(
    run: Path, change: Callable[[AttestedPaths], None]
) -> None:
    """Whoever signed for it would be convicted, or sign for weights that they never had."""
    AttestedRun(run, {}, bytes(32), 3).close()
    change(AttestedPaths(run))
    with pytest.raises(EncodingError):
        AttestedRun(run, {}, bytes(32), 3)


def test_every_structure_is_read_back(key: PrivateKey) -> None:
    digest = blake3(b"x").digest()
    attestation = Attestation(digest, public_key(key), digest, digest, digest, 6, digest)
    signed = sign_attestation(attestation, key)
    data = structs.encode(signed)
    assert decode_attestation(data) == signed
    assert isinstance(signed, SignedAttestation)


def test_a_model_that_is_called_around_its_hooks_is_refused(
    tmp_path: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = vtrain.attest_callback(tmp_path / "a", key=key)
    model = torch.nn.Linear(2, 1)

    class Given:
        world_size, output_dir, global_step = 1, str(tmp_path), 0

        def to_dict(self) -> dict[str, Any]:
            return {}

    given: Any = Given()
    callback.on_train_begin(given, given, given, model=model)
    model.eval()
    model(torch.zeros(1, 2))  # an evaluation is not trained on
    with pytest.raises(RunError, match="around the hooks"):
        callback.on_step_end(given, given, given)
    given.world_size = 2
    with pytest.raises(RunError, match="processes"):
        vtrain.attest_callback(tmp_path / "b", key=key).on_train_begin(given, given, given, model)
