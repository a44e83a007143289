"""docs/format.md and its kin are whole: no pointer into code, every domain, examples that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from blake3 import blake3

from tests.audit.runs import make_smallest_task
from vtrain.commit.checkpoint import encode_header
from vtrain.commit.kzg_log import KZG_HEADER
from vtrain.commit.log import LOG_HEADER
from vtrain.graph.legality import MAX_NODES
from vtrain.ops import TABLE
from vtrain.spec.domains import DOMAINS
from vtrain.spec.number import exp2_table, log2_table
from vtrain.wire.attested import ATTESTED_HEADER, MAX_RECORD
from vtrain.wire.cbor import LIMITS

DOCS = Path(__file__).resolve().parents[2] / "docs"
FORMAT = (DOCS / "format.md").read_text()
ATTESTED = (DOCS / "attested.md").read_text()
NORMATIVE = (
    "format.md", "operators.md", "format.cddl", "auditing.md", "leaf-rules.md", "tiling.md",
    "publishing.md", "algebraic.md", "attested.md", "reports.md", "dispute.md", "proofs.md",
)  # fmt: skip
SECTIONS = {
    "dispute.md": ("The rules",),
    "proofs.md": ("What is proven", "How a circuit says it", "Binding"),
}
"""Of these pages only what stands under these headings; the rest explains."""
EVIDENCE = r"\b(?:tests|examples|benchmarks)/[\w/.]+"
"""Where an attack is tried, or a figure was measured: no rule rests on it."""


@pytest.mark.parametrize("name", NORMATIVE)
def test_no_rule_is_a_pointer_into_code(name: str) -> None:
    text = (DOCS / name).read_text()
    if name in SECTIONS:
        cut = dict(re.findall(r"(?ms)^## (.+?)\n(.*?)(?=^## |\Z)", text))
        text = "\n".join(cut[heading] for heading in SECTIONS[name])
    rest = re.sub(r"(?m)^Written by .*(?:\n.+)*|<!--.*?-->", "", text)
    rest = re.sub(EVIDENCE, "", rest)
    names = r"\bvtrain[/.]\w+[/.][\w/{},.*]+|\b[A-Z]\w+\.[a-z]\w*_\w+"
    pointers = re.findall(rf"{names}|\b\w+\.(?:py|rs)\b|dataclass|\w+\.from_\w+", rest)
    assert pointers == []


def test_every_domain_has_its_row() -> None:
    section = FORMAT.split("## 4. Commitments")[1].split("## 4a.")[0]
    named = set(re.findall(r'"((?:\w+ )+v\d)"', section))
    named = {f"vtrain 2026 {name}" for name in named if not name.startswith("vtrain")}
    assert named == set(DOMAINS)


def test_the_header_of_a_checkpoint_is_the_example() -> None:
    found = re.search(r"begins with ((?:[0-9A-F]{2} )+)and `(\{.*\})` and two spaces", FORMAT)
    assert found is not None
    written = bytes.fromhex(found[1]) + found[2].encode() + b"  "
    assert encode_header(make_smallest_task().graph) == written


def test_digests_of_tables() -> None:
    for table in (exp2_table(), log2_table()):
        assert blake3(table.astype("<u4").tobytes()).hexdigest() in FORMAT


def test_headers_of_logs() -> None:
    for header, version in ((LOG_HEADER, 1), (KZG_HEADER, 2)):
        assert header[-2:] == bytes([0, version])
        assert f"16 bytes `{header[:-2].decode()}` 0x00 0x0{version}" in FORMAT
    header = ATTESTED_HEADER
    text = f"{len(header)} bytes `{header[:-2].decode()}` 0x00 0x0{header[-1]}"
    assert f"{text}, then each record: u32 length (little-endian, at most {MAX_RECORD})" in ATTESTED


def test_limits() -> None:
    assert f"at most {MAX_NODES:,} nodes" in FORMAT
    assert (
        f"at most {LIMITS.size >> 20} MiB with at most 2^{LIMITS.items.bit_length() - 1}" in FORMAT
    )


def test_what_is_named_in_code_font_as_a_rule_is_in_the_grammar() -> None:
    grammar = (DOCS / "format.cddl").read_text()
    rules = set(re.findall(r"(?m)^([a-z0-9-]+) =", grammar))
    named = set(re.findall(r"`([a-z]+-(?:body|material|record|claim|leaf))`", FORMAT))
    assert named
    assert named <= rules


def test_every_operator_is_on_the_page() -> None:
    text = (DOCS / "operators.md").read_text()
    assert [name for name in TABLE if f"\n### {name}\n" not in text] == []
