"""JSON of strangers: read, or refused with its place; never the end of the process."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from vtrain.errors import EncodingError
from vtrain.wire.json_text import MAX_DEPTH, decode_json

HOSTILE = (
    "b'[' * 100_000",
    "b'{\"a\":' * 100_000",
    "b'\"' + b'[' * 100_000",
    "b'[\"\\\\\",' + b'[' * 100_000",
    "b'[' * 100_000 + b']' * 100_000",
)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nesting_ends_no_process_whatever_its_recursion_limit(hostile: str) -> None:
    """Libraries raise that limit: a process that imported one ended here."""
    code = (
        "import sys; sys.setrecursionlimit(1_000_000)\n"
        "from vtrain.errors import EncodingError\n"
        "from vtrain.wire.json_text import decode_json\n"
        f"try: decode_json({hostile}, 'here')\n"
        "except EncodingError as error: print(error.where)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "here\n")


def test_a_text_that_does_not_end_takes_no_time() -> None:
    """Each of its quotation marks could be one that begins a text: sought from all of them, 8 MB
    of a manifest would take days."""
    for unit, end in ((b'\\"', b""), (b'\\"', b"\\"), (b'\\\\\\"[', b"")):
        start = time.process_time()
        with pytest.raises(EncodingError, match="is not JSON"):
            decode_json(b'["' + unit * 60_000 + end, "here")
        assert time.process_time() - start < 1


@pytest.mark.parametrize("text", [b'{"a":1,"a":1}', b'[{"b":{"a":1,"\\u0061":2}}]'])
def test_of_two_values_none_is_taken(text: bytes) -> None:
    with pytest.raises(EncodingError, match="names a field twice") as caught:
        decode_json(text, "here")
    assert caught.value.where == "here"


def test_what_is_in_strings_nests_nothing() -> None:
    text = b'["' + b"[{" * 1000 + b'", "\\"[[' + b"[" * 1000 + b'"]'
    assert len(decode_json(text, "here")) == 2


def test_the_deepest_is_read() -> None:
    most = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    decode_json(most, "here")
    with pytest.raises(EncodingError, match="deeper than") as caught:
        decode_json(b"[" + most + b"]", "here")
    assert caught.value.where == "here"
    assert decode_json(b"[[], []" + b", [[]]" * 1000 + b"]", "here")[2] == [[]]


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff", b"\xef\xbb\xbf{}", b"{", b"nul", b"NaN", b"[-Infinity]", b"01", b'"\x00"'],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(EncodingError, match="is not JSON"):
        decode_json(text, "here")


def test_what_nobody_looks_at_is_json_however_odd() -> None:
    """Numbers of any length, and halves of pairs of surrogates, are in its grammar."""
    text = b'{"a":' + b"9" * 5000 + b',"b":-0,"c":1e999,"d":"\\ud800"}'
    found = decode_json(text, "here")
    assert (found["b"], type(found["a"])) == (0, float)
