"""``vtrain report``: reports that are handed on: signed, verified, shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtrain.cli import echo, print_json
from vtrain.cli.common import (
    HexBytes,
    VtrainCommand,
    existing_file,
    existing_path,
    json_option,
    make_console,
    print_pairs,
    require_new,
)

if TYPE_CHECKING:
    from vtrain.attest.envelope import Envelope
    from vtrain.report.document import Document


@click.group("report")
def command() -> None:
    """Sign, verify and show reports of audits, as `vtrain verify --report FILE` writes them.

    A signed report is an in-toto statement about the run's final root, in a DSSE envelope.
    """


class Auditor(click.ParamType[bytes]):
    """A public key: 32 bytes of Ed25519 or 48 of BLS, in hexadecimal."""

    name = "key"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        data = HexBytes(32, 48).convert(value, param, ctx)
        if len(data) not in (32, 48):
            message = f"needs 32 bytes (Ed25519) or 48 (BLS), has {len(data)}: take all digits"
            self.fail(f"{message} of `vtrain key show`", param, ctx)
        return data


@command.command("sign", cls=VtrainCommand)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@existing_path("--key", "Your key, Ed25519 or BLS (`vtrain key new --kind bls`).")
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The new file with the signed report.",
)
@json_option
def sign(files: tuple[Path, ...], key: Path | None, out: Path, as_json: bool) -> None:
    """Sign a report, or put signatures of one report together.

    FILES are a report, a signed report, or several signed ones of the same report: --key adds its
    signature to those that are there.  BLS signatures become one, whatever their number.  Whose
    they are is for `vtrain report verify` to say: nothing but the report itself is checked here.
    """
    from vtrain.attest.envelope import encode_envelope, merge_envelopes, sign_payload
    from vtrain.attest.keys import load_signing_key
    from vtrain.commit.files import write_atomic

    if key is None and len(files) < 2:
        raise click.UsageError("nothing to do: give --key, or several signed reports")
    require_new(out)
    found = [_read(file) for file in files]
    envelopes = [envelope for _, envelope in found if envelope is not None]
    plain = [document for document, envelope in found if envelope is None]
    if plain and (envelopes or len(plain) > 1):
        raise click.UsageError(
            "give one report, or signed ones: a report that was signed has one "
            "form, and another is not added to it"
        )
    payload = _make_payload(plain[0]) if plain else envelopes[0].payload
    if key is not None:
        envelopes.append(sign_payload(payload, load_signing_key(key)))
    merged = merge_envelopes(envelopes)
    write_atomic(out, [encode_envelope(merged)])
    signers = [public.hex() for public in merged.signers]
    if as_json:
        print_json({"report": str(out), "signers": signers})
    else:
        print_pairs({"report": out, **{f"signer {i + 1}": name for i, name in enumerate(signers)}})


@command.command("verify", cls=VtrainCommand)
@existing_file("file")
@click.option(
    "--auditor",
    "auditors",
    type=Auditor(),
    multiple=True,
    required=True,
    metavar="HEX",
    help="Public key of an auditor whom you trust, as `vtrain key show` shows it; may be repeated.",
)
@click.option(
    "--threshold",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many of them must have signed.  [default: all]",
)
@click.option(
    "--root", type=HexBytes(32, 32), metavar="HEX", help="The final root that it must be about."
)
@click.option(
    "--task-id", type=HexBytes(32, 32), metavar="HEX", help="The task that it must be about."
)
@json_option
def verify(
    file: Path,
    auditors: tuple[bytes, ...],
    threshold: int | None,
    root: bytes | None,
    task_id: bytes | None,
    as_json: bool,
) -> int:
    """Verify that the auditors whom you trust signed the report in FILE, and say what it says.

    The exit code is that of the report, as if `vtrain verify` had ended so: 0 verified, 10 fraud, 3
    inconclusive, 4 conditional.  2: a signature does not hold, or one that was asked for is not
    there.  The run itself is not looked at.
    """
    from vtrain.attest.envelope import verify_envelope
    from vtrain.errors import SignatureError

    document, envelope = _read(file)
    if envelope is None:
        raise SignatureError("nobody signed it (vtrain report sign)", where=str(file))
    if threshold is not None and threshold > len(set(auditors)):
        raise click.UsageError(f"--threshold {threshold} is more than the auditors named")
    signers = verify_envelope(envelope, auditors, threshold=threshold)
    for name, wanted in (("root", root), ("task_id", task_id)):
        found = getattr(document.report, name)
        if wanted not in (None, found):
            raise SignatureError(
                f"is {found.hex()}, another than asked for", where=f"report.{name}"
            )
    lines = [public.hex() for public in signers]
    others = len(envelope.signers) - len(signers)
    if as_json:
        print_json({"signers": lines, "other_signers": others, "report": _to_dict(document)})
        return document.report.exit_code
    from vtrain.report.document import explain
    from vtrain.report.terminal import print_verdict

    for line in lines:
        echo(f"signed by {line}")
    if others:
        echo(f"and by {others} whom you did not name")
    print_pairs(
        {
            "date": document.date,
            "made by": f"{document.tool} {document.version}, {document.law}",
            "task": document.report.task_id.hex(),
            "root": document.report.root.hex(),
            "steps": document.report.steps,
        }
    )
    for sentence in explain(document.report):
        echo(sentence)
    print_verdict(document.report, make_console())
    return document.report.exit_code


@command.command("show", cls=VtrainCommand)
@existing_file("file")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it as one page with pictures to the new FILE.",
)
@json_option
def show(file: Path, html: Path | None, as_json: bool) -> None:
    """Show the report in FILE, signed or not.

    Signatures are verified, so that the keys shown did sign; whose keys they are is for you to
    know, or for `vtrain report verify` to say.  Ends with 0 whatever the report says.
    """
    from vtrain.attest.envelope import verify_envelope
    from vtrain.commit.files import write_atomic

    document, envelope = _read(file)
    signers = () if envelope is None else verify_envelope(envelope, envelope.signers)
    names = [public.hex() for public in signers]
    if html is not None:
        from vtrain.report.html import render_html

        require_new(html)
        write_atomic(html, [render_html(document, names).encode()])
    if as_json:
        page = {} if html is None else {"html": str(html)}
        print_json({"signers": names, "report": _to_dict(document), **page})
    elif html is not None:
        print_pairs({"html": html})
    else:
        from vtrain.report.terminal import print_report

        pairs = {"date": document.date, "law": document.law}
        pairs["made by"] = f"{document.tool} {document.version}"
        pairs["signed by"] = ", ".join(names) or "nobody"
        print_pairs(pairs)
        echo()
        print_report(document.report, make_console())


def _to_dict(document: Document) -> dict[str, Any]:
    from vtrain.report.document import document_to_dict

    return document_to_dict(document)


def _make_payload(document: Document) -> bytes:
    from vtrain.attest.envelope import make_statement
    from vtrain.report.document import PREDICATE_TYPE, describe_subject, document_to_dict

    name, digests = describe_subject(document.report)
    return make_statement(name, digests, PREDICATE_TYPE, document_to_dict(document))


def _read(file: Path) -> tuple[Document, Envelope | None]:
    """The report in a file, and the envelope that it is in; every form is checked, no signature."""
    from vtrain.attest.envelope import decode_envelope, is_envelope, read_statement
    from vtrain.commit.files import read_file
    from vtrain.errors import EncodingError, StorageError
    from vtrain.limits import LIMITS
    from vtrain.report.document import PREDICATE_TYPE, check_subject, document_from_value
    from vtrain.wire.json_text import decode_json

    where = str(file)
    data = read_file(file, LIMITS.report_bytes, error=StorageError)
    value = decode_json(data, where)
    if not is_envelope(value):
        return document_from_value(value, where), None
    envelope = decode_envelope(data, where)
    statement = read_statement(envelope.payload, where)
    if statement.kind != PREDICATE_TYPE:
        raise EncodingError(f"is not {PREDICATE_TYPE}", where=f"{where}: predicateType")
    document = document_from_value(statement.predicate, f"{where}: predicate")
    check_subject(statement.name, statement.digests, document.report)
    return document, envelope
