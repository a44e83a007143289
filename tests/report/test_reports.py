"""Reports that are handed on: one form with a schema, signatures that hold, attacks on both."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import time
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema_rs
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf import json_format  # type: ignore[import-untyped]
from in_toto_attestation.v1 import statement_pb2
from rich.console import Console

from tests.attest.test_bls import load_py_ecc
from tests.audit.runs import KEY
from tests.audit.spoil import Spoiler
from tests.docs.test_cddl import make_report
from tests.tasks import make_tiny_task
from vtrain.attest.bls import Possessed, aggregate, open_library, prove_possession, sign
from vtrain.attest.envelope import (
    PAYLOAD_TYPE,
    Envelope,
    Signature,
    decode_envelope,
    encode_envelope,
    make_statement,
    merge_envelopes,
    read_statement,
    sign_payload,
    verify_envelope,
)
from vtrain.attest.keys import (
    BlsSecret,
    generate_bls_key,
    load_key,
    load_signing_key,
    public_key,
)
from vtrain.audit.algebraic import draw_steps
from vtrain.audit.verify import verify
from vtrain.cli.root import cli
from vtrain.commit.store import FolderStore
from vtrain.errors import EncodingError, SignatureError, VtrainWarning
from vtrain.report.document import (
    CODES,
    Document,
    decode_document,
    document_from_value,
    document_to_dict,
    encode_document,
    explain,
    make_document,
)
from vtrain.report.html import join_columns, render_html
from vtrain.report.terminal import print_report
from vtrain.train.layout import RunPaths, encode_manifest, read_manifest
from vtrain.train.publish import publish_run
from vtrain.train.runner import train
from vtrain.train.signed import read_graph, read_task
from vtrain.train.traces import write_traces
from vtrain.wire.report import (
    Assumption,
    BeaconUse,
    Check,
    Clamped,
    Coverage,
    Detection,
    LossPoint,
    Pictures,
    Randomness,
    Report,
    Strength,
    Traced,
    compute_loss_points,
)

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)
NOW = datetime(2026, 11, 25, 12, 0, 0, 999, tzinfo=UTC)
ALICE, BOB = BlsSecret(5), BlsSecret(7)
PAYLOAD = make_statement("a root", {"vtrainStateRoot": "00" * 32}, "urn:a", {"b": [1]})


@cache
def sign_as(key: Ed25519PrivateKey | BlsSecret) -> Envelope:
    return sign_payload(PAYLOAD, key)


@cache
def get_public(key: Ed25519PrivateKey | BlsSecret) -> bytes:
    return prove_possession(key.scalar).public if isinstance(key, BlsSecret) else public_key(key)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = make_tiny_task(steps=12, commit_every=2, checkpoint_every=4, samples=10, batch=4)
    folder = tmp_path_factory.mktemp("reported") / "run"
    train(task, folder, key=KEY)
    return folder


@pytest.fixture(scope="session")
def document(run: Path) -> Document:
    return make_document(verify(run, samples=1), NOW, "1.2.3", "vtrain law 1")


def list_documents(document: Document) -> list[Document]:
    """Reports of every form."""
    beacon = BeaconUse(bytes(32), 9, bytes(48), b"", 100, 60, 30, "CN=a")
    value = hashlib.sha256(bytes(48)).digest()
    drawn = Randomness(value, "round 9", predictable=False, beacon=beacon)
    late = replace(beacon, previous=bytes(96), claimed=None, authority="")
    undated = Randomness(value, "round 9", predictable=True, beacon=late)
    passed = (Check("claim", "passed", "holds"),)
    reports = [
        make_report(),
        make_report(
            randomness=None,
            traced=None,
            detections=(),
            segments=(),
            root=b"",
            coverage=(Coverage("structure", 1, 2), Coverage("replay", 0, 12)),
        ),
        make_report(
            randomness=drawn, traced=None, checks=passed, assumptions=(), verdict="verified"
        ),
        make_report(randomness=undated, traced=None),
        make_report(
            randomness=drawn,
            traced=None,
            segments=((1, 3),),
            detections=(Detection(None, 1, 1, 12, 1),),
            checks=passed,
            assumptions=(Assumption("chosen-claim", "one"), Assumption("insecure-srs", "x", True)),
            verdict="conditional",
            coverage=(Coverage("structure", 1, 1), Coverage("algebraic", 3, 12)),
            pictures=Pictures(
                compute_loss_points([-5, 3, 2]),
                16,
                (Clamped("<b>", 1, 9),),
                counted=3,
                impossible=2,
            ),
        ),
        make_report(checks=(Check("log", "failed", "no", "step 1", "solver"),), verdict="fraud"),
    ]
    return [document, *(replace(document, report=report) for report in reports)]


# --- one form


def test_every_report_is_of_the_schema_and_is_read_back(document: Document) -> None:
    for made in list_documents(document):
        value = json.loads(encode_document(made))
        assert list(VALIDATOR.iter_errors(value)) == []
        again = decode_document(encode_document(made))
        assert document_to_dict(again) == value
        assert again.report.verdict == made.report.verdict
    assert document.date == "2026-11-25T12:00:00Z"
    assert value["tool"] == {"name": "vtrain", "version": "1.2.3"}


def test_no_run_makes_a_report_that_cannot_be_read(run: Path, tmp_path: Path) -> None:
    """Its manifest, which nothing vouches for, says how many steps were counted."""
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    paths = RunPaths(folder)
    manifest = read_manifest(paths)
    site = next(n.name for n in read_graph(paths, read_task(paths)).nodes if n.op == "rescale")
    many = replace(manifest, counted_steps=2**62, saturation={site: 5})
    paths.manifest.write_bytes(encode_manifest(many))
    made = make_document(verify(folder, samples=1), NOW, "1.2.3", "vtrain law 1")
    again = decode_document(encode_document(made))
    assert again.report.verdict == "verified"
    assert again.report.pictures is not None
    # Of so many steps no count can be: that is not to say that nothing was clamped.
    assert (again.report.pictures.clamped, again.report.pictures.impossible) == ((), 1)
    words = Page(render_html(again)).words
    assert "What the solver says of 1 site cannot be right" in words
    assert "No element was clamped" not in words
    lowest = replace(again.report.pictures, losses=(LossPoint(1, 1, -(2**63), -(2**63), 0),))
    least = replace(made, report=replace(made.report, pictures=lowest))
    assert decode_document(encode_document(least)) == replace(
        again, report=replace(again.report, pictures=lowest)
    )


NOT_KNOWN = "Not known: this report has no count of the solver's."


def lose(run: Path, out: Path, how: str) -> str:
    """The run or its URL, with no count of what was clamped."""
    folder = Path(shutil.copytree(run, out / "run"))
    paths = RunPaths(folder)
    if how == "store":
        publish_run(folder, FolderStore(out / "store"))
        return f"file://{out / 'store'}"
    manifest = read_manifest(paths)
    changed = {
        "another": replace(manifest, run_id=bytes(32)),
        "uncounted": replace(manifest, counted_steps=0),
    }
    paths.manifest.unlink()
    if how != "lost":
        paths.manifest.write_bytes(encode_manifest(changed[how]))
    return str(folder)


@pytest.mark.parametrize("how", ["store", "lost", "another", "uncounted"])
def test_what_nobody_counted_is_not_called_none(run: Path, tmp_path: Path, how: str) -> None:
    """Of a run in a store there is no count, and in a folder it may be missing or be of another
    run."""
    plain, page = tmp_path / "report.json", tmp_path / "page.html"
    assert call("verify", lose(run, tmp_path, how), "--samples", 1, "--report", plain)[0] == (
        0 if how in ("store", "uncounted") else 3
    )
    value = json.loads(plain.read_text())
    assert VALIDATOR.is_valid(value)
    assert value["pictures"].keys() == {"loss_exponent", "losses", "clamped"}
    assert call("report", "show", plain, "--html", page)[0] == 0
    words = Page(page.read_text()).words
    assert NOT_KNOWN in words
    assert "No element was clamped" not in words


def test_what_was_clamped_is_shown(tmp_path: Path) -> None:
    """And that nothing was, where that is so; what cannot be is left out and told."""
    words = {}
    for name, margin, told in (("calm", 4, {}), ("loud", 0, {}), ("liar", 0, {"nowhere": 3})):
        folder = tmp_path / name
        task = make_tiny_task(steps=20, commit_every=2, checkpoint_every=4, margin=margin)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VtrainWarning)
            sites = train(task, folder, key=KEY).saturation
        paths = RunPaths(folder)
        manifest = read_manifest(paths)
        counts = {**manifest.saturation, **told}
        paths.manifest.write_bytes(encode_manifest(replace(manifest, saturation=counts)))
        made = make_document(verify(folder, samples=0), NOW, "1.2.3", "vtrain law 1")
        value = json.loads(encode_document(made))
        assert VALIDATOR.is_valid(value)
        assert decode_document(encode_document(made)).report.pictures == made.report.pictures
        pictures = value["pictures"]
        assert pictures["counted_steps"] == 20
        assert pictures.get("impossible_counts", 0) == len(told)
        sizes = {node.name: node.outputs[0].size for node in task.graph.nodes}
        assert pictures["clamped"] == [
            {"site": site.site, "count": site.count, "elements": 20 * sizes[site.site]}
            for site in sites
        ]
        words[name] = Page(render_html(made)).words
        for site in sites:
            assert site.site in words[name]
            assert site.ppm > 100
            assert f"{site.ppm:,.0f} of a million ({site.count})" in words[name]
    none, wrong = (
        "No element was clamped, in 20 steps that it counted.",
        "of 1 site cannot be right",
    )
    assert {name: (none in said, wrong in said) for name, said in words.items()} == {
        "calm": (True, False),
        "loud": (False, False),
        "liar": (False, True),
    }
    assert not any(NOT_KNOWN in said for said in words.values())


def test_a_report_from_before_steps_were_counted_is_read(document: Document) -> None:
    """It does not tell what nobody counted from none, and so says neither."""
    value = json.loads(encode_document(document))
    assert value["pictures"]["counted_steps"] == 12
    del value["pictures"]["counted_steps"]
    assert VALIDATOR.is_valid(value)
    old = document_from_value(value)
    assert NOT_KNOWN in Page(render_html(old)).words
    site = {"site": "a", "count": 1, "elements": 9}
    loud = document_from_value(change(value, ("pictures", "clamped"), [site]))
    words = Page(render_html(loud)).words
    assert "111,111 of a million (1)" in words
    assert NOT_KNOWN not in words
    with pytest.raises(EncodingError, match="counts that are not known cannot be wrong"):
        document_from_value(change(value, ("pictures", "impossible_counts"), 1))


def test_what_a_report_may_assume_is_what_there_is() -> None:
    assert set(CODES) == set(get_args(get_type_hints(Assumption)["code"]))


def change(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return copy


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("format",), 2),
        (("date",), "2026-11-25"),
        (("date",), "2026-13-25T12:00:00Z"),
        (("verdict",), "fraud"),
        (("verdict",), "good"),
        (("exit_code",), 4),
        (("checks", 0, "status"), "failed"),
        (("checks", 0, "status"), "well"),
        (("steps",), -1),
        (("steps",), True),
        (("steps",), 12.0),
        (("steps",), 2**63),
        (("root",), "AA" * 32),
        (("root",), "aa"),
        (("claim",), 0),
        (("randomness", "value"), ""),
        (("randomness", "value"), "00" * 65),
        (("randomness", "predictable"), 0),
        (("detection", 0, "percent"), "99.00"),
        (("detection", 0, "probability"), "1"),
        (("detection", 0, "drawn"), 3),
        (("detection", 0, "drawn"), 10**9),
        (("detection", 1, "fraction"), "1e999999999"),
        (("detection",), "none"),
        (("plain", 0), "Everything is right."),
        (("coverage", 1, "done"), 12),
        (("coverage", 1, "rung"), "magic"),
        (("replayed", 0, "last"), 13),
        (("replayed",), [{"first": 1, "last": 2}, {"first": 2, "last": 3}]),
        (("assumptions",), [{"code": "chosen-claim", "detail": "one", "accepted": True}]),
        (("pictures", "losses", 0), [1, 1, 1, 1]),
        (("pictures", "losses", 0), [0, 1, 1, 1, 1]),
        (("pictures", "losses", 0), [5, 1, 1, 1, 1]),
        (("pictures", "losses", 0), [1, 1, 3, 2, 1]),
        (("pictures", "losses"), [[i, i, 1, 1, 1] for i in range(1, 402)]),
        (("pictures", "loss_exponent"), 63),
        (("pictures", "loss_exponent"), 2**40),
        (("pictures", "clamped"), [{"site": "a", "count": 0, "elements": 0}]),
        (("pictures", "clamped"), [{"site": "a", "count": 0, "elements": 9}]),
        (("pictures", "clamped"), [{"site": "a", "count": 9, "elements": 8}]),
        (("pictures", "clamped"), [{"site": "a", "count": 1, "elements": 9}] * 21),
        (("pictures", "clamped"), [{"site": "a", "count": 1, "elements": 9}]),
        (("pictures", "counted_steps"), 0),
        (("pictures", "counted_steps"), None),
        (("pictures", "impossible_counts"), 0),
        (("pictures", "impossible_counts"), -1),
        (("strength", "unchecked"), "nothing"),
        (("tool",), []),
        (("more",), 1),
    ],
)
def test_a_report_in_which_something_does_not_follow_is_refused(
    document: Document, path: tuple[Any, ...], to: Any
) -> None:
    value = json.loads(encode_document(document))
    with pytest.raises(EncodingError) as caught:
        document_from_value(change(value, path, to))
    assert caught.value.where.startswith("report")


def test_more_was_not_looked_at_than_is_listed(document: Document) -> None:
    """Coverage and chances that agree with the sentences, and not with the steps."""
    report, structure = document.report, Coverage("structure", 17, 17)
    for changes, place in (
        ({"coverage": (structure, Coverage("replay", 12, 12))}, "coverage"),
        ({"coverage": (structure, Coverage("replay", 4, 4))}, "coverage"),
        ({"coverage": (Coverage("structure", 18, 17),)}, "coverage"),
        ({"detections": (Detection(None, 1, 1, 3, 2),)}, "detection"),
        ({"detections": (Detection(Fraction(1, 10), 3, 3, 3, 1),)}, "detection"),
    ):
        more = replace(document, report=replace(report, **changes))
        with pytest.raises(EncodingError) as caught:
            decode_document(encode_document(more))
        assert caught.value.where == f"report.{place}"


def test_a_round_in_a_report_is_as_late_as_it_says(document: Document) -> None:
    good = list_documents(document)[3].report
    assert good.randomness is not None
    use = good.randomness.beacon
    assert use is not None
    changed_to: list[tuple[dict[str, Any], str]] = [
        ({"value": bytes(32)}, "value"),
        ({"beacon": replace(use, signature=bytes(49))}, "value"),
        ({"beacon": replace(use, claimed=None)}, "predictable"),
        ({"predictable": True}, "predictable"),
        ({"beacon": replace(use, claimed=41)}, "beacon.at"),
    ]
    for changes, place in changed_to:
        drawn = replace(good.randomness, **changes)
        for name, changed in (
            ("randomness", {"randomness": drawn}),
            ("traced.randomness", {"traced": Traced((1,), drawn)}),
        ):
            made = replace(document, report=replace(good, **changed))
            with pytest.raises(EncodingError) as caught:
                decode_document(encode_document(made))
            assert caught.value.where == f"report.{name}.{place}"


def test_no_part_may_be_missing(document: Document) -> None:
    value = json.loads(encode_document(document))
    for key in value.keys() - {"pictures"}:
        less = {name: item for name, item in value.items() if name != key}
        assert not VALIDATOR.is_valid(less), key
        with pytest.raises(EncodingError):
            document_from_value(less)
    for text in (b"[]", b"null", b"{}", b"5", b"{", b'"a"'):
        with pytest.raises(EncodingError):
            decode_document(text)


def test_chances_that_would_take_for_ever_are_refused(document: Document) -> None:
    value = json.loads(encode_document(document))
    many = {"bad_segments": 10**9, "segments": 2**60, "drawn": 10**9}
    huge = change(value, ("detection", 0), {**value["detection"][0], **many})
    start = time.monotonic()
    with pytest.raises(EncodingError, match="more than can be computed"):
        document_from_value(huge)
    with pytest.raises(EncodingError, match="too long"):
        document_from_value(change(value, ("detection",), value["detection"] * 9))
    assert time.monotonic() - start < 5
    chance = document.report.detections[0]
    assert chance.probability is chance.probability, "one of a million bits is computed once"


def test_plain_words(document: Document) -> None:
    lines = explain(document.report)
    assert lines[0] == "Nothing that was looked at is wrong."
    assert "4 of the 12 steps claimed were done again, and every bit was compared." in lines
    assert "If a single step were false, this would have shown it in 33.33 %." in lines
    assert lines[-1] == "Nobody who made the run could know what would be looked at."
    *_, chosen, fraud = (explain(made.report) for made in list_documents(document))
    assert "its maker could have made several" in chosen[-1]
    assert "3 of the 12 steps claimed were checked by their equations." in chosen
    assert fraud[0] == "Something that the solver signed is false."
    assert "took on trust that nobody forges proofs" in chosen[1]


def test_plain_words_say_where_nothing_was_looked_at(document: Document) -> None:
    """Neither of a run whose structure alone was checked, nor of steps that cannot be proven."""
    report = document.report
    none = (report.coverage[0], Coverage("replay", 0, 12))
    said = explain(replace(report, randomness=None, detections=(), segments=(), coverage=none))
    assert said[1:] == ("None of the 12 steps claimed was done again.",)
    chances = tuple(Detection(fraction, 1, 1, 2, 1, "step") for fraction in (None, Fraction(1, 10)))
    proven = replace(
        report,
        detections=chances,
        segments=((5, 5),),
        coverage=(report.coverage[0], Coverage("proof", 1, 12)),
    )
    said = explain(proven)
    assert said[1:4] == (
        "1 of the 12 steps claimed were shown by proofs, as a whole.",
        "If a single step of the 2 that can be proven were false, this would have shown it in "
        "50.00 %.",
        "If a tenth of the 2 that can be proven were false, this would have shown it in 50.00 % or "
        "more.",
    )
    words = Page(render_html(replace(document, report=proven))).words
    assert "a single false step of the 2 that can be proven" in words
    assert "10.00 % of the 2 that can be proven false (1)" in words


def test_plain_words_say_no_more_of_a_draw_than_is_so(document: Document) -> None:
    """Of two draws both count, and randomness that drew no steps says nothing of them."""
    late, fresh = Randomness(b"s", "a seed", True), Randomness(bytes(32), "fresh", False)
    report = replace(document.report, randomness=fresh)
    foreseen, nobody = "could have known what would be", "Nobody who made the run"
    assumed = (Assumption("predictable-sample", "which steps would be named"),)
    for changes, words in (
        ({"traced": Traced((4,), late)}, foreseen),
        ({"traced": Traced((4,), fresh)}, nobody),
        ({"assumptions": assumed, "verdict": "conditional", "detections": ()}, foreseen),
        ({"detections": ()}, ""),
    ):
        said = " ".join(explain(replace(report, **changes)))
        assert (foreseen in said, nobody in said) == (words == foreseen, words == nobody), changes


# --- a page


class Page(HTMLParser):
    """What a page has: its tags and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_is_whole_and_needs_nothing_else(document: Document) -> None:
    text = render_html(document, ["00" * 32])
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    assert names.count("svg") >= 3, "coverage, steps, losses"
    assert {"polyline", "polygon", "rect"} <= set(names)
    # Pictures are stretched to whatever width there is: no word in them would stay legible.
    assert "text" not in names
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(names)
    assert not re.search(r"url\(|@import|https?://", text)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    for part in ("VERIFIED", document.report.root.hex(), "Not checked", "33.33 %", document.date):
        assert part in page.words
    *_, last = list_documents(document)
    assert "nobody: this page shows what a file says" in Page(render_html(last)).words


def test_what_a_stranger_chose_stays_text(document: Document) -> None:
    hostile = "</table><script>alert(1)</script>\u202e\n"
    report = replace(
        document.report,
        checks=(Check(hostile, "failed", hostile, hostile, "nobody"),),
        verdict="inconclusive",
        pictures=Pictures((), 16, (Clamped(hostile, 1, 2),)),
        engine=hostile,
    )
    text = render_html(replace(document, report=report, law=hostile), [hostile])
    assert "<script" not in text
    assert "\u202e" not in text
    assert "alert(1)" in Page(text).words


def show_on_a_terminal(report: Report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, force_terminal=True, width=200))
    return out.getvalue()


@pytest.mark.parametrize("hostile", ["[/bold]", "\x1b[2J\x1b[8m", "\u202e", "a\nVerdict: VERIFIED"])
def test_no_word_of_a_report_is_obeyed_by_a_terminal(document: Document, hostile: str) -> None:
    """A report may be anybody's: whatever it says is shown, and the verdict is the last line."""
    drawn = Randomness(b"s", hostile, True)
    made = replace(
        document.report,
        checks=(Check(hostile, "failed", hostile, hostile, "solver"),),
        strength=Strength((hostile,), (hostile,)),
        assumptions=(Assumption("predictable-sample", hostile),),
        randomness=drawn,
        traced=Traced((1,), drawn),
        verdict="fraud",
    )
    for report in (
        made,
        replace(made, verdict="conditional", checks=(Check(hostile, "passed", hostile),)),
    ):
        text = show_on_a_terminal(report)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert "\x1b" not in plain
        assert "\x1b[8m" not in text
        assert "\u202e" not in text
        verdicts = [line for line in plain.splitlines() if line.startswith("Verdict")]
        assert verdicts == [f"Verdict: {report.verdict.upper()}"]
        assert plain.count(hostile if hostile == "[/bold]" else ascii(hostile)[1:-1]) >= 6


def test_a_long_run_makes_a_small_page_in_no_time(document: Document) -> None:
    """A report of 100,000 steps is to take less than 2 s and 50 MB."""
    steps = 100_000
    start = time.process_time()
    report = replace(
        document.report,
        steps=steps,
        segments=tuple((i, i) for i in range(1, steps, 2)),
        pictures=Pictures(compute_loss_points([steps - i for i in range(steps)]), 16, ()),
    )
    text = render_html(replace(document, report=report))
    assert time.process_time() - start < 1
    assert len(text) < 200_000
    points = compute_loss_points(range(steps))
    assert (len(points), points[0].first, points[-1].last) == (400, 1, steps)
    assert (points[1].least, points[1].mean, points[1].most) == (250, 374, 499)
    assert compute_loss_points([]) == ()


def test_columns_of_the_strip() -> None:
    assert join_columns([(1, 10)], 10) == [(0, 1000)]
    assert join_columns([(1, 1), (10, 10)], 10) == [(0, 100), (900, 1000)]
    assert join_columns([(6, 10), (1, 5)], 10) == [(0, 1000)]
    assert join_columns([(7, 7)], 10**6) == [(0, 1)], "one of very many is seen"
    assert join_columns([(10**6, 10**6)], 10**6) == [(999, 1000)]


# --- signatures


def test_statements_are_those_of_in_toto() -> None:
    message = json_format.Parse(PAYLOAD, statement_pb2.Statement())
    assert message.type == "https://in-toto.io/Statement/v1"
    assert dict(message.subject[0].digest) == {"vtrainStateRoot": "00" * 32}
    assert read_statement(PAYLOAD).predicate == {"b": [1]}
    value = json.loads(PAYLOAD)
    for broken in (
        b"{}",
        b"[]",
        PAYLOAD + b"\n",
        json.dumps({**value, "_type": "other"}).encode(),
        json.dumps({**value, "subject": value["subject"] * 2}).encode(),
        json.dumps({**value, "more": 1}, separators=(",", ":"), sort_keys=True).encode(),
    ):
        with pytest.raises(EncodingError):
            read_statement(broken)


def test_envelopes_are_those_of_dsse() -> None:
    """Ed25519 over DSSE's own encoding, written out here by its specification."""
    envelope = sign_as(KEY)
    kind = PAYLOAD_TYPE.encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(PAYLOAD), PAYLOAD)
    assert envelope.signed_bytes == signed
    value = json.loads(encode_envelope(envelope))
    (entry,) = value["signatures"]
    KEY.public_key().verify(b64decode(entry["sig"]), signed)
    assert b64decode(value["payload"]) == PAYLOAD
    assert decode_envelope(encode_envelope(envelope)) == envelope


def test_several_auditors_sign_one_report() -> None:
    alone = [sign_as(key) for key in (KEY, ALICE, BOB)]
    merged = merge_envelopes(alone)
    assert [len(entry.publics) for entry in merged.signatures] == [1, 2]
    assert decode_envelope(encode_envelope(merged)) == merged
    publics = [get_public(key) for key in (BOB, KEY, ALICE)]
    assert verify_envelope(merged, publics) == tuple(publics)
    assert merge_envelopes([alone[2], alone[1], alone[0]]) == merged, "in whatever order"
    stranger = public_key(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    with pytest.raises(SignatureError, match="have signed, not 4"):
        verify_envelope(merged, [*publics, stranger])
    assert verify_envelope(merged, [stranger, *publics], threshold=3) == tuple(publics)
    for threshold in (0, 5):
        with pytest.raises(SignatureError, match="cannot be asked for"):
            verify_envelope(merged, [stranger, *publics], threshold=threshold)


def spoil(text: str) -> list[str]:
    """Ways to write base64 that ends in ``=`` other than the one of RFC 4648, section 4."""
    assert text.endswith("=")
    return [text[:-1], text + "=", text + "\n", " " + text, f"-{text[1:]}", f"_{text[1:]}"]


def test_why_an_envelope_is_none_is_said_in_words() -> None:
    value = json.loads(encode_envelope(sign_as(KEY)))
    padded = b64encode(PAYLOAD + b" " * (-len(PAYLOAD) % 3 + 1)).decode()
    assert padded.endswith("==")
    (entry,) = value["signatures"]
    twice = [entry, {**entry, "sig": b64encode(bytes(64)).decode()}]
    longer = decode_envelope(json.dumps({**value, "payload": padded}).encode())
    assert longer.payload.rstrip() == PAYLOAD
    cases: list[tuple[object, str, str]] = [
        ([], "", "its fields are not payload, payloadType and signatures"),
        ({**value, "signatures": twice}, ": signature 1: keyid", "signs twice"),
        ({**value, "signatures": {"a": entry}}, ": signatures", "are not 1 to 256"),
        ({**value, "signatures": ["a"]}, ": signature 0", "names no key"),
        ({**value, "signatures": [{"sig": entry["sig"]}]}, ": signature 0", "names no key"),
        ({**value, "signatures": [{**entry, "keyid": 1}]}, ": signature 0", "names no key"),
        ({**value, "signatures": [{"keyid": ""}]}, ": signature 0: sig", "is not base64"),
        ({**value, "payload": None}, ": payload", "is not base64"),
        ({**value, "payload": "é"}, ": payload", "is not base64"),
    ]
    spoiled = [({**value, "payload": text}, ": payload") for text in spoil(padded)]
    spoiled += [
        ({**value, "signatures": [{**entry, "sig": text}]}, ": signature 0: sig")
        for text in spoil(entry["sig"])
    ]
    cases += [(broken, place, "is not base64 .RFC 4648") for broken, place in spoiled]
    for broken, place, reason in cases:
        with pytest.raises(EncodingError, match=reason) as error:
            decode_envelope(json.dumps(broken).encode())
        assert error.value.where == f"envelope{place}"


def forge(envelope: Envelope, **changes: Any) -> Envelope:
    (entry,) = envelope.signatures
    return replace(envelope, signatures=(replace(entry, **changes),))


@pytest.mark.parametrize("key", [KEY, ALICE], ids=["ed25519", "bls"])
def test_an_altered_report_is_signed_by_nobody(key: Any) -> None:
    envelope = sign_as(key)
    public = get_public(key)
    assert verify_envelope(envelope, [public]) == (public,)
    altered = [
        replace(envelope, payload=PAYLOAD.replace(b"1", b"2")),
        replace(envelope, payload=PAYLOAD + b" "),
        forge(envelope, signature=sign_payload(PAYLOAD + b" ", key).signatures[0].signature),
        forge(envelope, signature=bytes(len(envelope.signatures[0].signature))),
    ]
    for forged in altered:
        with pytest.raises(SignatureError):
            verify_envelope(forged, [public])


def test_a_signature_that_fails_is_not_passed_over() -> None:
    """Though another, of an auditor who was asked for, holds."""
    good, bad = sign_as(KEY), sign_payload(PAYLOAD + b" ", ALICE)
    both = Envelope(PAYLOAD, (*good.signatures, *bad.signatures))
    with pytest.raises(SignatureError, match="does not verify"):
        verify_envelope(both, [public_key(KEY)])


def test_a_rogue_key_in_an_envelope() -> None:
    """Its holder signs alone for itself and Alice, if nobody asks for a proof of possession."""
    curve, points = load_py_ecc()
    alice, own = prove_possession(ALICE.scalar), 1234567
    point = curve.add(
        points.pubkey_to_G1(prove_possession(own).public),
        curve.neg(points.pubkey_to_G1(alice.public)),
    )
    rogue = bytes(points.G1_to_pubkey(point))
    signature = sign(own, Envelope(PAYLOAD, ()).signed_bytes)
    keys = sorted((alice, Possessed(rogue, alice.possession)), key=lambda key: key.public)
    entry = Signature(signature, tuple(key.public for key in keys), tuple(keys))
    with pytest.raises(SignatureError, match="no proof of possession"):
        verify_envelope(Envelope(PAYLOAD, (entry,)), [alice.public])


def test_nobody_signs_twice() -> None:
    alice, bob = sign_as(ALICE), sign_as(BOB)
    with pytest.raises(SignatureError, match="signs twice"):
        merge_envelopes([alice, alice])
    with pytest.raises(SignatureError, match="signs twice"):
        merge_envelopes([sign_as(KEY)] * 2)
    with pytest.raises(SignatureError, match="signs twice"):
        merge_envelopes([merge_envelopes([alice, bob]), bob])
    apart = Envelope(PAYLOAD, alice.signatures + merge_envelopes([alice, bob]).signatures)
    with pytest.raises(SignatureError, match="signs twice"):
        verify_envelope(apart, [get_public(ALICE)])
    (entry,) = alice.signatures
    doubled = aggregate([entry.signature] * 2, open_library())
    twice = Signature(doubled, entry.publics * 2, entry.keys * 2)
    with pytest.raises(SignatureError, match="signs twice"):
        verify_envelope(Envelope(PAYLOAD, (twice,)), [get_public(ALICE)])
    with pytest.raises(EncodingError, match="in rising order, each once"):
        decode_envelope(encode_envelope(Envelope(PAYLOAD, (twice,))))
    with pytest.raises(SignatureError, match="of different reports"):
        merge_envelopes([alice, sign_payload(PAYLOAD + b" ", BOB)])


def test_no_more_signers_than_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever carries a report can add signatures of its own, each of which takes time: nothing is
    verified of too many, in however few entries they are."""
    verified: list[object] = []
    monkeypatch.setattr(
        "vtrain.attest.envelope.verify_aggregate", lambda *given: verified.append(given)
    )
    many = [Possessed(bytes([1, i]) + bytes(46), bytes(96)) for i in range(129)]
    other = [Possessed(key.public[::-1], key.possession) for key in many[1:]]
    entries = [
        Signature(bytes(96), tuple(key.public for key in keys), tuple(keys))
        for keys in (many, other)
    ]
    with pytest.raises(SignatureError, match="are by 257, not 1 to 256"):
        verify_envelope(Envelope(PAYLOAD, tuple(entries)), [many[0].public])
    with pytest.raises(SignatureError, match="are by 257, not 1 to 256"):
        merge_envelopes([Envelope(PAYLOAD, (entry,)) for entry in entries])
    assert not verified


def alter(change_it: Callable[[Any], Any]) -> bytes:
    merged = merge_envelopes([sign_as(KEY), sign_as(ALICE)])
    value = json.loads(encode_envelope(merged))
    change_it(value)
    return json.dumps(value).encode()


BROKEN: dict[str, Callable[[Any], Any]] = {
    "other fields": lambda v: v.update(more=1),
    "no payload": lambda v: v.pop("payload"),
    "another type": lambda v: v.update(payloadType="text/plain"),
    "not base64": lambda v: v.update(payload="*"),
    "nobody": lambda v: v.update(signatures=[]),
    "no list": lambda v: v.update(signatures=5),
    "no entry": lambda v: v.update(signatures=[5]),
    "twice": lambda v: v["signatures"].append(v["signatures"][0]),
    "a short signature": lambda v: v["signatures"][0].update(sig=b64encode(b"a").decode()),
    "no key id": lambda v: v["signatures"][0].update(keyid="alice"),
    "more in an entry": lambda v: v["signatures"][0].update(cert="x"),
    "another key id": lambda v: v["signatures"][1].update(keyid="00" * 32),
    "no keys": lambda v: v["signatures"][1].update(keys=[]),
    "no proof": lambda v: v["signatures"][1]["keys"][0].pop("possession"),
    "a short key": lambda v: v["signatures"][1]["keys"][0].update(public="00"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_envelopes_that_are_none(name: str) -> None:
    with pytest.raises(EncodingError) as caught:
        decode_envelope(alter(BROKEN[name]))
    assert caught.value.where.startswith("envelope")


def test_keys_on_disk(tmp_path: Path) -> None:
    made = generate_bls_key(tmp_path / "bls")
    assert load_signing_key(tmp_path / "bls") == made
    assert (tmp_path / "bls").stat().st_mode & 0o777 == 0o600
    assert str(made.scalar) not in repr(made)
    with pytest.raises(SignatureError):
        load_key(tmp_path / "bls")
    for secret in ("00" * 32, "ff" * 32, "00", "zz" * 32):
        (tmp_path / "bad").write_text(f"vtrain bls12-381 secret 1\n{secret}\n")
        with pytest.raises(SignatureError, match="no BLS secret"):
            load_signing_key(tmp_path / "bad")


# --- the command line


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    if isinstance(result.exception, Exception):
        return 2, str(result.exception)
    return result.return_value or 0, result.output


def test_the_way_of_a_report(run: Path, tmp_path: Path) -> None:
    solver, alice, bob = (tmp_path / name for name in ("solver", "alice", "bob"))
    publics = [
        json.loads(call("key", "new", path, "--kind", kind, "--json")[1])["public"]
        for path, kind in ((solver, "ed25519"), (alice, "bls"), (bob, "bls"))
    ]
    plain, first, second, both, page = (
        tmp_path / name for name in ("r.json", "1.json", "2.json", "both.json", "r.html")
    )
    assert call("verify", run, "--samples", 1, "--report", plain)[0] == 0
    assert call("verify", run, "--samples", 1, "--report", plain)[0] == 2, "nothing is replaced"
    assert VALIDATOR.is_valid(json.loads(plain.read_text()))
    assert VALIDATOR.is_valid(json.loads(call("verify", run, "--all", "--json")[1]))
    assert call("report", "sign", plain, "--key", solver, "--out", first)[0] == 0
    assert call("report", "sign", plain, "--key", alice, "--out", second)[0] == 0
    assert call("report", "sign", first, second, "--key", bob, "--out", both)[0] == 0
    asked = [word for public in publics for word in ("--auditor", public)]
    code, text = call("report", "verify", both, *asked, "--json")
    assert (code, json.loads(text)["signers"]) == (0, publics)
    root = json.loads(plain.read_text())["root"]
    code, text = call("report", "verify", both, "--auditor", publics[1], "--root", root)
    assert (code, text.splitlines()[-1]) == (0, "Verdict: VERIFIED")
    assert "and by 2 whom you did not name" in text
    wrong: list[tuple[list[object], str]] = [
        (["verify", first, *asked], "of the auditors asked for have signed"),
        (["verify", plain, *asked], "nobody signed it"),
        (["verify", both, *asked, "--root", "00" * 32], "another than asked for"),
        (["verify", both, *asked, "--threshold", 4], "more than the auditors named"),
        (["verify", both, "--auditor", "00" * 40], "needs 32 bytes"),
        (["sign", plain, "--out", tmp_path / "x"], "nothing to do"),
        (["sign", plain, first, "--out", tmp_path / "x"], "one form"),
        (["sign", first, "--key", solver, "--out", tmp_path / "x"], "signs twice"),
        (["sign", first, "--key", alice, "--out", both], "is not replaced"),
    ]
    for words, message in wrong:
        code, text = call("report", *words)
        assert (code, message in text) == (2, True), text
    assert call("report", "show", both, "--html", page)[0] == 0
    assert publics[0] in page.read_text()
    shown = call("report", "show", plain)[1]
    assert "signed by  nobody" in shown
    assert shown.splitlines()[-1] == "Verdict: VERIFIED"


def test_an_algebraic_audit_is_handed_on(run: Path, tmp_path: Path) -> None:
    """Draw, trace, check, sign, verify, show: the report says by what the steps were checked."""
    kept, traces, auditor = tmp_path / "kept.cbor", tmp_path / "traces", tmp_path / "auditor"
    plain, signed, page = (tmp_path / name for name in ("r.json", "s.json", "r.html"))
    public = json.loads(call("key", "new", auditor, "--json")[1])["public"]
    assert call("claim", run, "--out", kept)[0] == 0
    write_traces(run, draw_steps(run, b"drawn after", 2), key=KEY, out=traces)
    seed = b"drawn after".hex()
    words = ("--mode", "algebraic", "--traces", traces, "--claim", kept, "--samples", 2)
    assert call("verify", run, *words, "--seed", seed, "--report", plain)[0] == 0
    found = json.loads(plain.read_text())
    assert VALIDATOR.is_valid(found)
    coverage = {item["rung"]: (item["done"], item["total"]) for item in found["coverage"]}
    assert coverage["algebraic"] == (4, 12)
    assert "replay" not in coverage
    said = "4 of the 12 steps claimed were checked by their equations."
    assert said in found["plain"]
    assert found["traced"]["randomness"]["value"] == seed  # the first draw; the second was fresh
    assert found["randomness"]["value"] != seed
    assert call("report", "sign", plain, "--key", auditor, "--out", signed)[0] == 0
    code, text = call("report", "verify", signed, "--auditor", public, "--root", found["root"])
    assert (code, text.splitlines()[-1]) == (0, "Verdict: VERIFIED")
    assert call("report", "show", signed, "--html", page)[0] == 0
    assert "algebraic" in page.read_text()
    # Both draws are there: whoever wants to do them again needs either.
    assert seed in page.read_text()
    assert found["randomness"]["value"] in page.read_text()
    # A false value, and what its report says to whoever has the report alone.
    spoiler = Spoiler(run, traces, tmp_path / "false")
    product = next(i for i, n in enumerate(spoiler.graph.nodes) if n.op == "matmul")
    spoiler.sign(spoiler.alter(spoiler.leaves(), product, lambda value: value + 1))
    words = (*words[:3], spoiler.folder.root, *words[4:])
    fraud = tmp_path / "f.json"
    assert call("verify", run, *words, "--seed", seed, "--report", fraud)[0] == 10
    assert call("report", "sign", fraud, "--key", auditor, "--out", tmp_path / "f")[0] == 0
    code, text = call("report", "verify", tmp_path / "f", "--auditor", public)
    assert (code, text.splitlines()[-1]) == (10, "Verdict: FRAUD")


def test_a_signed_report_is_about_its_own_root(document: Document, tmp_path: Path) -> None:
    """A statement whose subject is another run's root carries no report over to it."""
    value = document_to_dict(document)
    file = tmp_path / "signed.json"
    for name, digests, kind, said in (
        ("state", {"vtrainStateRoot": "00" * 32}, "urn:vtrain:report:1", value),
        ("state", {"vtrainStateRoot": value["root"]}, "urn:vtrain:report:2", value),
        ("state", {"vtrainStateRoot": value["root"]}, "urn:vtrain:report:1", {}),
    ):
        payload = make_statement(name, digests, kind, said)
        file.write_bytes(encode_envelope(sign_payload(payload, KEY)))
        code, text = call("report", "verify", file, "--auditor", public_key(KEY).hex())
        assert code == 2
        assert "VERIFIED" not in text
    nothing: Report = replace(document.report, root=b"")
    plain = tmp_path / "plain.json"
    plain.write_bytes(encode_document(replace(document, report=nothing)))
    key = tmp_path / "alice"
    generate_bls_key(key)
    code, text = call("report", "sign", plain, "--key", key, "--out", tmp_path / "x")
    assert (code, "names no final root" in text) == (2, True)
