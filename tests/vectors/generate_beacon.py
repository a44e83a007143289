"""Writes beacon.json: ``python -m tests.vectors.generate_beacon``.

``--check`` compares and exits 1 when it differs.  The tokens are signed by an authority of the
tests' own, at random: those that are there are kept.  What must come of a draw is written here by
hand from docs/format.md ("Draws by a beacon"); no auditor is asked.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.attest.authority import (
    FORMS,
    LAST_FORMS,
    LATER_FORMS,
    LATER_PATHS,
    PATHS,
    STAMPED,
    der_of,
    make_authority,
    make_path,
)
from vtrain.attest.der import read_der
from vtrain.spec.domains import TASK_ID, compute_domain_hash
from vtrain.wire.task import BeaconRule, decode_task, encode_task

FOLDER = Path(__file__).resolve().parent
FILE = FOLDER / "beacon.json"
Json = Any
CLAIM = bytes(range(32))
DRAND = json.loads((FOLDER.parent / "audit" / "drand.json").read_text())
ROUND, DELAY = 1000, 60
AT = DRAND["chains"]["quicknet"]["genesis_time"] + 3 * (ROUND - 1)
"""When that round of quicknet was made."""
DUE = AT - DELAY
"""The latest claim that gets it."""


def make_tokens() -> Json:
    """Root certificates, and responses about :data:`CLAIM`: random."""
    good, other = make_authority("a clock"), make_authority("another clock")
    code = make_authority("no clock", usage="code")

    def at(seconds: int) -> datetime:
        return datetime.fromtimestamp(seconds, UTC)

    tokens = {
        "a minute before the round": good.stamp(CLAIM, at(DUE)),
        "two seconds earlier": good.stamp(CLAIM, at(DUE - 2)),
        "three seconds earlier": good.stamp(CLAIM, at(DUE - 3)),
        "a second later": good.stamp(CLAIM, at(DUE + 1)),
        "after the round": good.stamp(CLAIM, at(AT + 3600)),
        "a second earlier, or one later than that": good.stamp(CLAIM, at(DUE - 1), accuracy=1),
        "a minute before, or one second later": good.stamp(CLAIM, at(DUE), accuracy=1),
        "of another claim": good.stamp(CLAIM[::-1], at(DUE)),
        "not granted": good.stamp(CLAIM, at(DUE), status=2),
        "of another authority": other.stamp(CLAIM, at(DUE)),
        "of a certificate that is not for time stamps": code.stamp(CLAIM, at(DUE)),
    }
    return {
        "roots": {
            name: one.root.public_bytes(Encoding.DER).hex()
            for name, one in (("clock", good), ("other", other), ("code", code))
        },
        "tokens": {name: token.hex() for name, token in tokens.items()},
    }


LATE: Final = AT - int(STAMPED.timestamp())
"""The delay by which the round is that of a claim of the time of :func:`make_more_tokens`."""
HALF: Final = "half a second later"


def make_more_tokens(kept: Json) -> Json:
    """Root certificates, and responses about :data:`CLAIM`, of the forms and the paths that
    docs/format.md ("Time") takes and refuses, as far as they are not ``kept``: random."""
    roots, tokens = {}, {}
    first = {**FORMS, HALF: ({"fraction": b".5"}, False)}
    lists = (("forms", first), ("later forms", LATER_FORMS), ("last forms", LAST_FORMS))
    for key, forms in lists:
        if key in kept["roots"]:
            continue
        count = {"forms": "many", "later forms": "more"}.get(key, "the last")
        clock = make_authority(f"a clock of {count} forms")
        root = clock.root.public_bytes(Encoding.DER)
        roots[key] = root.hex()
        for name, (parts, _) in forms.items():
            status = parts.get("status", 0)
            token = clock.stamp(CLAIM, STAMPED, status=status, others=(root,), parts=parts)
            tokens[f"form: {name}"] = token.hex()
    for name, (given, _) in (PATHS | LATER_PATHS).items():
        if f"path: {name}" in kept["roots"]:
            continue
        signer, middle = make_path(**given)
        roots[f"path: {name}"] = signer.root.public_bytes(Encoding.DER).hex()
        between = middle.public_bytes(Encoding.DER)
        tokens[f"path: {name}"] = signer.stamp(CLAIM, STAMPED, others=(between,)).hex()
    return {"roots": roots, "tokens": tokens}


def describe_chain(name: str) -> Json:
    """What a relay serves of a chain."""
    about = DRAND["chains"][name]
    return {
        "public_key": about["public_key"],
        "period": about["period"],
        "genesis_time": about["genesis_time"],
        "groupHash": about["groupHash"],
        "schemeID": about["scheme"],
        "hash": about["hash"],
        "metadata": {"beaconID": name},
    }


def get_round(name: str) -> Json:
    """A real round as a relay serves it."""
    (found,) = (item for item in DRAND["beacons"] if item["chain"] == name)
    return {key: item for key, item in found.items() if key not in ("chain", "valid")}


def make_rounds() -> list[Json]:
    """Rounds that hold, and rounds that do not."""
    quick, late = get_round("quicknet"), get_round("default")
    no_point = "c0" + "00" * 47
    rounds = [
        ("a round", "quicknet", {}),
        ("with a field that says nothing", "quicknet", {"more": 1}),
        ("without its randomness", "quicknet", {"randomness": ""}),
        ("a chained round", "default", {}),
    ]
    refused = [
        ("of another number", "quicknet", {"round": 1001}),
        ("its signature is that of another chain", "quicknet", {"signature": late["signature"]}),
        ("its signature is infinity", "quicknet", {"signature": no_point, "randomness": ""}),
        ("its randomness is another", "quicknet", {"randomness": "00" * 32}),
        ("in capital letters", "quicknet", {"signature": quick["signature"].upper()}),
        ("its number is a text", "quicknet", {"round": "1000"}),
        ("a chained round of another number", "default", {"round": late["round"] + 1}),
        ("after another round", "default", {"previous_signature": late["signature"]}),
        ("after none", "default", {"previous_signature": ""}),
        (
            "a byte of the round before it left out",
            "default",
            {"previous_signature": late["previous_signature"][:-2]},
        ),
    ]
    cases = []
    for holds, some in ((True, rounds), (False, refused)):
        for about, name, changes in some:
            served = {"quicknet": quick, "default": late}[name] | changes
            value = hashlib.sha256(bytes.fromhex(served["signature"])).hexdigest()
            found = value if holds else None
            cases.append({"about": about, "chain": name, "round": served, "randomness": found})
    return cases


def make_texts() -> list[Json]:
    """Texts of a round's file, and whether they are one (docs/format.md, *Files*)."""
    whole = json.dumps(get_round("quicknet"))

    def beside(value: str) -> str:
        return f'{whole[:-1]}, "more": {value}}}'

    nested = "[" * 63 + "]" * 63
    texts = [
        ("as it is served", whole, True),
        ("with white space around", f"\r\n\t {whole} \n", True),
        ("with a number of 5,000 digits beside", beside("9" * 5000), True),
        ("with a number beyond all floats beside", beside("1e999"), True),
        ("with half a surrogate pair beside", beside('"\\ud800"'), True),
        ("with 64 arrays and objects in each other", beside(nested), True),
        ("with 65 of them", beside(f"[{nested}]"), False),
        ("with NaN beside", beside("NaN"), False),
        ("with Infinity beside", beside("-Infinity"), False),
        ("with a number that begins with 0", beside("01"), False),
        ("with a line end in a string", beside('"\n"'), False),
        ("with a field twice", beside('1, "more": 1'), False),
        ("with a field twice, once by an escape", beside('1, "\\u006dore": 1'), False),
        ("with a field twice further in", beside('[{"a": 1, "a": 1}]'), False),
        ("with a byte order mark", f"\ufeff{whole}", False),
        ("with a comma at its end", f"{whole[:-1]},}}", False),
        ("with something behind it", f"{whole} {{}}", False),
        ("in an array", f"[{whole}]", False),
        ("with a point in its number", whole.replace("1000", "1000.0", 1), False),
        ("with an exponent in its number", whole.replace("1000", "1e3", 1), False),
    ]
    return [{"about": about, "text": text, "holds": holds} for about, text, holds in texts]


def make_draws(roots: dict[str, str]) -> list[Json]:
    """What an auditor brings, and whether it draws."""
    digest = {name: hashlib.sha256(bytes.fromhex(root)).hexdigest() for name, root in roots.items()}
    names = {name: DRAND["chains"][name]["hash"] for name in ("quicknet", "default")}

    def draw(
        token: str | None,
        holds: bool,
        *,
        pinned: bool = False,
        root: str = "clock",
        chain: str = "quicknet",
        delay: int = DELAY,
        authorities: tuple[str, ...] = (),
    ) -> Json:
        return {
            "token": token,
            "root": None if token is None else root,
            "pinned": pinned,
            "rule": {
                "chain": names[chain],
                "delay": delay,
                "authorities": [digest[name] for name in authorities],
            },
            "draws": holds,
            "predictable": holds and token is None,
            "chosen": holds and token is not None and not pinned,
        }

    due = "a minute before the round"
    forms = {**{name: holds for name, (_, holds) in FORMS.items()}, HALF: False}
    return [
        draw(due, True),
        draw(due, True, pinned=True),
        draw(None, True),
        draw(None, True, pinned=True),
        draw("two seconds earlier", True),
        draw("three seconds earlier", False),
        draw("a second later", False),
        draw("after the round", False),
        draw("a second earlier, or one later than that", True),
        draw("a minute before, or one second later", False),
        draw("of another claim", False),
        draw("not granted", False),
        draw("of another authority", False),
        draw("of another authority", True, root="other"),
        draw("of another authority", False, root="other", authorities=("clock",)),
        draw("of a certificate that is not for time stamps", False, root="code"),
        draw(due, True, authorities=("other", "clock")),
        draw(due, False, authorities=("other",)),
        draw(due, False, delay=61),
        draw("three seconds earlier", True, delay=61),
        draw(None, False, chain="default"),
        *(draw(f"form: {name}", holds, root="forms", delay=LATE) for name, holds in forms.items()),
        *(
            draw(f"path: {name}", holds, root=f"path: {name}", delay=LATE)
            for name, (_, holds) in PATHS.items()
        ),
        *(
            draw(f"form: {name}", holds, root="later forms", delay=LATE)
            for name, (_, holds) in LATER_FORMS.items()
        ),
        *(
            draw(f"path: {name}", holds, root=f"path: {name}", delay=LATE)
            for name, (_, holds) in LATER_PATHS.items()
        ),
        *(
            draw(f"form: {name}", holds, root="last forms", delay=LATE)
            for name, (_, holds) in LAST_FORMS.items()
        ),
    ]


def make_root_files(roots: dict[str, str]) -> list[Json]:
    """Files of root certificates, and the SHA-256 of those in them that can serve; None for a file
    of another form (docs/format.md, *Files*)."""
    root, other = (bytes.fromhex(roots[name]) for name in ("clock", "other"))
    begin, end = b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n"

    def write(data: bytes) -> bytes:
        return begin + base64.encodebytes(data) + end

    pem, both, body = write(root), (root, other), base64.b64encode(root)
    lists = base64.b64encode(b"\x30\x00")
    fields, algorithm, signature = (item.raw for item in read_der(root).items)
    longer = der_of(0x30, algorithm[2:], b"\5\0")
    odd = der_of(0x30, fields, longer, signature)
    cases: list[tuple[str, bytes, tuple[bytes, ...] | None]] = [
        ("one in DER", root, (root,)),
        ("two in PEM", pem + write(other), both),
        ("white space before them", b"\n \t" + pem, (root,)),
        ("text between them", pem + b"another:\n" + write(other), both),
        ("lines that end in CR LF", pem.replace(b"\n", b"\r\n"), (root,)),
        ("spaces around lines", pem.replace(b"\n", b" \n "), (root,)),
        ("one long line", begin + body + b"\n" + end, (root,)),
        ("a block of another label", b"-----BEGIN KEY-----\n!\n-----END KEY-----\n" + pem, (root,)),
        ("an empty list beside it", write(b"\x30\x00") + pem, (root,)),
        ("an empty list in DER", b"\x30\x00", ()),
        ("text before them", b"one:\n" + pem, None),
        ("something behind DER", root + b"\0", None),
        ("something behind DER in a block", write(root + b"\0") + pem, None),
        ("a block that is cut off", pem + pem[:-9], None),
        ("a block of another end", pem.replace(b"END CERT", b"END KERT") + pem, None),
        ("a block with a header", begin + b"Proc-Type: 4\n\n" + body + b"\n" + end, None),
        ("no base64", pem + begin + b"!!!!\n" + end, None),
        ("base64 without its end", pem + begin + lists.rstrip(b"=") + b"\n" + end, None),
        ("base64 with bits to spare", pem + begin + b"MAB=\n" + end, None),
        ("all in one line", begin[:-1] + body + end, None),
        ("one that names its signature's algorithm in two ways", write(odd) + pem, (root,)),
        ("no block", b"-----BEGIN KEY-----\nMAA=\n-----END KEY-----\n", None),
        ("nothing", b"", None),
    ]
    return [
        {
            "about": about,
            "file": file.hex(),
            "roots": None if found is None else [hashlib.sha256(one).hexdigest() for one in found],
        }
        for about, file, found in cases
    ]


def make(kept: Json) -> Json:
    """The file; ``kept`` are the parts that are random."""
    plain = decode_task(bytes.fromhex(json.loads((FOLDER / "graphs.json").read_text())["task"]))
    root = bytes.fromhex(kept["roots"]["clock"])
    chain = bytes.fromhex(DRAND["chains"]["quicknet"]["hash"])
    rule = BeaconRule(chain, DELAY, (hashlib.sha256(root).digest(),))
    task = encode_task(replace(plain, beacon=rule))
    name = x509.load_der_x509_certificate(root).subject.rfc4514_string()
    return {
        "chains": {name: describe_chain(name) for name in ("quicknet", "default")},
        "rounds": make_rounds(),
        "task": {
            "encoding": task.hex(),
            "task_id": compute_domain_hash(TASK_ID, task).hex(),
            "chain": chain.hex(),
            "delay": DELAY,
            "authorities": [hashlib.sha256(root).hexdigest()],
        },
        "claim": CLAIM.hex(),
        "round": get_round("quicknet"),
        "at": AT,
        "authority": name,
        **{key: kept[key] for key in ("roots", "tokens")},
        "draws": make_draws(kept["roots"]),
        "texts": make_texts(),
        "root_files": make_root_files(kept["roots"]),
    }


def main() -> int:
    """Write or compare the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    text = FILE.read_text() if FILE.is_file() else ""
    kept = json.loads(text) if text else make_tokens()
    more = make_more_tokens(kept)
    kept |= {key: kept[key] | more[key] for key in ("roots", "tokens")}
    made = json.dumps(make(kept), indent=1) + "\n"
    if not check:
        FILE.write_text(made)
        return 0
    if made != text:
        sys.stderr.write("beacon.json is not what the rules give\n")
    return int(made != text)


if __name__ == "__main__":
    sys.exit(main())
