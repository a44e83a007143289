"""An independent verifier of vtrain runs, written from the specification alone.

It reads strangers' bytes, checks a run as `docs/auditing.md` says, executes the training step by
`docs/operators.md`, judges leaves of disputes by `docs/leaf-rules.md` and keeps the rules of the
game by `docs/dispute.md`.  It needs numpy and blake3 and nothing of vtrain.  It favours being read
over being fast.

    python plain_verifier.py audit RUN [--all | --samples N] [--seed HEX] [--claim HEX|FILE]
        [--solver HEX] [--task-id HEX] [--data FILE] [--srs FILE] [--hiding FILE]
        [--mode proof [--private] [--steps N,N-N] [--batches FILE --owner HEX]
        [--trace-seed HEX --trace-samples N [--trace-claim HEX|FILE]] [--allow-insecure-srs]]
        [--mode algebraic [--steps N,N-N] [--traces DIR] [--trace-claim HEX|FILE]
        [--challenge HEX] [--derived] [--rows N [--rows-above BYTES]]] [--json]

RUN is a folder, or the file:// URL of a folder that is a store.  An audit by proofs goes as far as
there is no need of ezkl: it says which proofs are none, and of others that it cannot tell.

Exit codes of an audit: 0 verified, 10 fraud, 3 inconclusive, 4 conditional, 2 bad usage.

Sections of this file:

 1. canonical encoding            6. operators: types and ranges  11. folds (leaf rules)
 2. structures                    7. operators: what they compute 12. statements about leaves
 3. hashes and trees              8. executing a step             13. disputes: ids, frontiers
 4. signatures and points         9. when a graph is legal        14. disputes: the game
 5. sample order and draws       10. the audit                    15. the command line
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from blake3 import blake3

# ----------------------------------------------------------------------------------------------
# 1. Canonical encoding (format.md, section 5)
# ----------------------------------------------------------------------------------------------

MAX_DOCUMENT = 64 * 2**20
MAX_ITEMS = 2**21
MAX_NESTING = 32
UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)


class Refused(Exception):
    """Bytes or a value that the specification refuses: `where`, and `why` in words."""

    def __init__(self, where: str, why: str):
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why


class NotCanonical(Refused):
    """Bytes that are no canonical CBOR, with the offset that must be reported."""

    def __init__(self, offset: int, why: str):
        super().__init__(f"byte {offset}", why)
        self.offset = offset


def encode(value: Any) -> bytes:
    """The canonical encoding of integers, bytes, text, lists and maps with text keys."""
    if isinstance(value, int):
        return _head(UNSIGNED, value) if value >= 0 else _head(NEGATIVE, -1 - value)
    if isinstance(value, bytes):
        return _head(BYTES, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _head(TEXT, len(text)) + text
    if isinstance(value, list | tuple):
        return _head(ARRAY, len(value)) + b"".join(encode(item) for item in value)
    entries = sorted((encode(key), encode(item)) for key, item in value.items())
    return _head(MAP, len(entries)) + b"".join(key + item for key, item in entries)


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << 8 * size:
            return bytes([major << 5 | code]) + argument.to_bytes(size, "big")
    raise ValueError("integer is beyond 64 bits")


def decode(data: bytes) -> Any:
    """The value whose canonical encoding `data` is; NotCanonical if there is none."""
    if len(data) > MAX_DOCUMENT:
        raise NotCanonical(MAX_DOCUMENT, "document is too long")
    decoder = _Decoder(data)
    value = decoder.item(0)
    if decoder.at != len(data):
        raise NotCanonical(decoder.at, "trailing bytes")
    return value


class _Decoder:
    """Reads items one after the other; the order of checks is that of the vectors' README."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = 0
        self.items = 0

    def head(self) -> tuple[int, int, int]:
        """Offset, major type and argument of the next item."""
        start = self.at
        if start >= len(self.data):
            raise NotCanonical(len(self.data), "an item is missing")
        self.items += 1
        if self.items > MAX_ITEMS:
            raise NotCanonical(start, "too many items")
        major, code = self.data[start] >> 5, self.data[start] & 31
        if major == TAG:
            raise NotCanonical(start, "tags are not allowed")
        if major == SIMPLE:
            raise NotCanonical(start, "floats and simple values are not allowed")
        if code == 31:
            raise NotCanonical(start, "indefinite lengths are not allowed")
        if code > 27:
            raise NotCanonical(start, "reserved additional information")
        self.at += 1
        if code < 24:
            return start, major, code
        size = 1 << code - 24
        if self.at + size > len(self.data):
            raise NotCanonical(start, "item head is cut off")
        argument = int.from_bytes(self.data[self.at : self.at + size], "big")
        self.at += size
        if argument < (24 if size == 1 else 1 << 4 * size):
            raise NotCanonical(start, "not the shortest form")
        return start, major, argument

    def check_length(self, start: int, least: int) -> None:
        if least > len(self.data) - self.at:
            raise NotCanonical(start, "length is over the bytes that remain")

    def text(self, start: int, length: int) -> str:
        self.check_length(start, length)
        self.at += length
        try:
            return self.data[self.at - length : self.at].decode()
        except UnicodeDecodeError:
            raise NotCanonical(start, "text is not UTF-8") from None

    def item(self, depth: int) -> Any:
        start, major, argument = self.head()
        if major == UNSIGNED:
            return argument
        if major == NEGATIVE:
            if argument >= 2**63:
                raise NotCanonical(start, "integer is under -2^63")
            return -1 - argument
        if major == BYTES:
            self.check_length(start, argument)
            self.at += argument
            return self.data[self.at - argument : self.at]
        if major == TEXT:
            return self.text(start, argument)
        self.check_length(start, argument if major == ARRAY else 2 * argument)
        if depth == MAX_NESTING:
            raise NotCanonical(start, "nested too deeply")
        if major == ARRAY:
            return [self.item(depth + 1) for _ in range(argument)]
        entries: dict[str, Any] = {}
        previous = b""
        for _ in range(argument):
            start, major, length = self.head()
            if major != TEXT:
                raise NotCanonical(start, "map key is not text")
            key = self.text(start, length)
            encoded = self.data[start : self.at]
            if encoded == previous:
                raise NotCanonical(start, "duplicate map key")
            if encoded < previous:
                raise NotCanonical(start, "map keys out of order")
            previous = encoded
            entries[key] = self.item(depth + 1)
        return entries


# ----------------------------------------------------------------------------------------------
# 2. Structures (format.cddl)
#
# A structure is kept as the plain value that was decoded: a map is a dict.  A rule is a function
# that refuses a value at a place; the rules below are put together from the few that come first.
# ----------------------------------------------------------------------------------------------

Rule = Callable[[Any, str], None]


def require(condition: bool, where: str, why: str) -> None:
    """Refuse unless the condition holds."""
    if not condition:
        raise Refused(where, why)


def integer(least: int, most: int) -> Rule:
    """An integer of these bounds."""

    def check(value: Any, where: str) -> None:
        require(type(value) is int, where, "not an integer")
        require(least <= value <= most, where, f"not within {least} to {most}")

    return check


def byte_string(*lengths: int, most: int | None = None) -> Rule:
    """Bytes of one of these lengths, or of lengths[0] to `most`."""

    def check(value: Any, where: str) -> None:
        require(isinstance(value, bytes), where, "not bytes")
        if most is None:
            require(len(value) in lengths, where, f"not of {lengths} bytes")
        else:
            require(lengths[0] <= len(value) <= most, where, "not of a length that is allowed")

    return check


def text(least: int = 0, most: int = 4096) -> Rule:
    """Text of so many bytes of UTF-8."""

    def check(value: Any, where: str) -> None:
        require(isinstance(value, str), where, "not text")
        require(least <= len(value.encode()) <= most, where, "not of a length that is allowed")

    return check


def word(*words: Any) -> Rule:
    """One of these values."""

    def check(value: Any, where: str) -> None:
        same = [value == other and type(value) is type(other) for other in words]
        require(any(same), where, f"none of {words}")

    return check


def array(rule: Rule, most: int, least: int = 0) -> Rule:
    """An array of so many items that each obey the rule."""

    def check(value: Any, where: str) -> None:
        require(isinstance(value, list), where, "not an array")
        require(least <= len(value) <= most, where, "not of a length that is allowed")
        for index, item in enumerate(value):
            rule(item, f"{where}[{index}]")

    return check


def plain_array(rule: Rule, most: int, least: int = 0) -> Rule:
    """The same of items that are no maps: their place is that of the field."""
    return array(lambda value, where: rule(value, where.rpartition("[")[0]), most, least)


def mapping(key: Rule, rule: Rule, most: int = MAX_ITEMS) -> Rule:
    """A map of any keys that obey a rule to values that obey another."""

    def check(value: Any, where: str) -> None:
        require(isinstance(value, dict), where, "not a map")
        require(len(value) <= most, where, "too many entries")
        for name, item in value.items():
            key(name, f"{where}.{name}")
            rule(item, f"{where}.{name}")

    return check


def structure(fields: dict[str, Rule], optional: Sequence[str] = ()) -> Rule:
    """A map of just these fields, of which the optional ones may be left out."""

    def check(value: Any, where: str) -> None:
        require(isinstance(value, dict), where, "not a map")
        for name, rule in fields.items():
            if name in value:
                rule(value[name], f"{where}.{name}")
            else:
                require(name in optional, f"{where}.{name}", "the field is missing")
        for name in sorted(set(value) - set(fields), key=str.encode):
            raise Refused(f"{where}.{name}", "a field that is not known")

    return check


def each(names: str, rule: Rule) -> dict[str, Rule]:
    """The same rule for each of these fields."""
    return dict.fromkeys(names.split(), rule)


def read(rule: Rule, data: bytes, name: str) -> Any:
    """Decode a document and check that it is the structure of this name."""
    value = decode(data)
    rule(value, name)
    return value


_NAMES = {"u8": "u1", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}
DTYPES: dict[str, np.dtype] = {name: np.dtype(own) for name, own in _NAMES.items()}
HASH = byte_string(32)
SIGNATURE = byte_string(64)
POINT = byte_string(64)
POINTS = array(POINT, 8192)
ANY_BYTES = byte_string(0, most=MAX_DOCUMENT)
I64 = integer(-(2**63), 2**63 - 1)
U64 = integer(0, 2**64 - 1)
STEP_NUMBER = integer(1, 2**48)
STEP_COUNT = integer(1, 2**40)
ITEM_COUNT = integer(0, 2**62)
ELEMENT_TYPE = word(*DTYPES)
EXPONENT = integer(-512, 512)
PATH = plain_array(HASH, 64)


def size_of(shape: Sequence[int]) -> int:
    """How many elements a tensor of this shape has."""
    return math.prod(shape)


def shape_rule(least: int, most: int, axes: int) -> Rule:
    """Extents of a tensor of so many axes, and of 2^32 elements, at most."""
    extents = array(integer(least, most), axes)

    def check(value: Any, where: str) -> None:
        extents(value, where)
        require(size_of(value) <= 2**32, where, "too many elements")

    return check


SAMPLE_SHAPE = shape_rule(1, 2**32, 7)
TOKEN_BYTES = {"u16": 2, "u32": 4, "u64": 8}
_TOKEN_WINDOWS = structure(
    {"dtype": word(*TOKEN_BYTES), "tokens": integer(1, 2**44), "context": integer(1, 2**32)}
    | {"stride": integer(1, 2**44), "shift": integer(0, 2**44)}
)
_DATA_FIELDS = structure(
    {"root": HASH, "samples": STEP_COUNT, "windows": _TOKEN_WINDOWS}
    | each("x_dtype y_dtype", ELEMENT_TYPE)
    | each("x_shape y_shape", SAMPLE_SHAPE)
    | each("x_exponent y_exponent", integer(-64, 64)),
    optional=["windows"],
)


def count_windows(form: dict) -> int:
    """Windows that lie in the file of tokens, labels too."""
    last = form["tokens"] - form["context"] - form["shift"]
    return last // form["stride"] + 1 if last >= 0 else 0


def check_data(value: Any, where: str) -> None:
    """The structure `task-data`."""
    _DATA_FIELDS(value, where)
    windows = value.get("windows")
    if windows is not None:
        due: dict[str, Any] = {"samples": count_windows(windows)}
        for part in ("x", "y"):
            due[f"{part}_dtype"], due[f"{part}_exponent"] = "i32", 0
            due[f"{part}_shape"] = [windows["context"]]
        same = all(value[name] == item for name, item in due.items())
        require(same, f"{where}.windows", "make other samples")


LAYOUT = word("step", "tiles")
_PROOF_FIELDS = structure(
    {"circuit": LAYOUT, "srs": HASH, "k": integer(1, 28), "blinding": integer(0, 1024)}
    | {"every": STEP_COUNT, "initial": POINTS, "initial_key": HASH}
    | {"hash": word("blake3", "keccak256")}
    | {"circuits": mapping(text(1, 256), structure({"circuit": HASH, "key": HASH}), 256)}
)


def column_length(proof: dict) -> int:
    """How many values a column holds: U of format.md, section 4a."""
    return 2 ** proof["k"] - proof["blinding"] - 67


def check_proof(value: Any, where: str) -> None:
    """The structure `task-proof`."""
    _PROOF_FIELDS(value, where)
    least = 1 if value["circuit"] == "step" else 16384
    require(column_length(value) >= least, f"{where}.k", "columns are too short")


_BEACON = structure(
    {"chain": HASH, "delay": integer(60, 31_622_400), "authorities": array(HASH, 8)}
)
_TASK_FIELDS = structure(
    each("graph_root initial_state_root model_digest", HASH)
    | each("steps commit_every checkpoint_every", STEP_COUNT)
    | {"law": word("vtrain law 1"), "data": check_data, "exponents": mapping(text(), EXPONENT)}
    | {"seed": U64, "batch": integer(1, 2**20), "proof": check_proof, "beacon": _BEACON}
    | {"commitments": word(["blake3"], ["blake3", "kzg"])},
    optional=["beacon", "proof"],
)


def logs_kzg(task: dict) -> bool:
    """Does the task ask for a KZG log?"""
    return "kzg" in task["commitments"]


def check_task(value: Any, where: str) -> None:
    """The structure `task`."""
    _TASK_FIELDS(value, where)
    every = value["commit_every"]
    require(value["steps"] % every == 0, f"{where}.steps", "commit_every does not divide it")
    divides = value["checkpoint_every"] % every == 0
    require(divides, f"{where}.checkpoint_every", "commit_every does not divide it")
    if "windows" in value["data"] and "proof" in value:
        by_tiles = value["proof"]["circuit"] == "tiles"
        require(by_tiles, f"{where}.proof.circuit", "windows are proven by tiles alone")
    if logs_kzg(value):
        require("proof" in value, f"{where}.proof", "a task with KZG commitments has a proof")
        initial = value["proof"]["initial"]
        require(len(initial) > 0, f"{where}.proof.initial", "no commitments to the initial state")


def attribute(value: Any, where: str) -> None:
    """An attribute of a node: an integer, text, bytes or a list of integers."""
    if isinstance(value, list):
        require(all(isinstance(item, int) for item in value), where, "a list of other things")
    elif isinstance(value, str):
        text()(value, where)
    else:
        require(isinstance(value, int | bytes), where, "not an attribute")


TENSOR_TYPE = structure(
    {"dtype": ELEMENT_TYPE, "shape": shape_rule(0, 2**48, 8), "exponent": EXPONENT}
    | {"lo": I64, "hi": I64}
)


def edge(value: Any, where: str) -> None:
    """An input of a node: which output of which node."""
    require(isinstance(value, list) and len(value) == 2, where, "not a pair")
    integer(0, 2097151)(value[0], where)
    integer(0, 65535)(value[1], where)


NODE = structure(
    {"name": text(), "op": text(), "attrs": mapping(text(), attribute)}
    | {"inputs": array(edge, 2**20), "outputs": array(TENSOR_TYPE, 2**20)}
)


def check_graph(value: Any, where: str) -> None:
    """The structure `graph`: nodes whose inputs are outputs of nodes before them."""
    array(NODE, MAX_ITEMS)(value, where)
    for index, node in enumerate(value):
        for number, (source, output) in enumerate(node["inputs"]):
            place = f"{where}[{index}].inputs[{number}]"
            require(source < index, place, "not a node before it")
            require(output < len(value[source]["outputs"]), place, "not an output of that node")


RECORD = structure(
    {"step": STEP_NUMBER, "batch_digest": HASH, "loss": I64, "state_root": byte_string(0, 32)}
)
KZG_RECORD = structure(
    {"step": STEP_NUMBER}
    | each("before batch after", POINTS)
    | each("before_key batch_key after_key", HASH)
)
KEY_OR_NONE = byte_string(0, 32)
HIDING_KEY = structure({"kind": word("batch", "state"), "index": integer(0, 2**48), "key": HASH})
_HIDING_FIELDS = structure(
    {"states": KEY_OR_NONE, "batches": KEY_OR_NONE, "keys": array(HIDING_KEY, 65536)}
)


def check_hiding(value: Any, where: str) -> None:
    """The structure `hiding`."""
    _HIDING_FIELDS(value, where)
    places = [(item["kind"], item["index"]) for item in value["keys"]]
    require(places == sorted(set(places)), f"{where}.keys", "not in order, each once")


CLAIM_FIELDS = each("run_id solver task_id log_root kzg_root", HASH)
CLAIM_FIELDS |= {"log_size": integer(0, 2**48)}
CLAIM = structure(CLAIM_FIELDS, optional=["kzg_root"])
SIGNED_CLAIM = structure({"claim": CLAIM, "signature": SIGNATURE})
MANIFEST_HASH = re.compile("[0-9a-f]{64}")


def hex_hash(value: Any, where: str) -> None:
    """A hash as 64 hexadecimal digits (of the manifest)."""
    good = isinstance(value, str) and MANIFEST_HASH.fullmatch(value) is not None
    require(good, where, "not 64 hexadecimal digits")


AMOUNT = integer(0, 2**63 - 1)
MANIFEST = structure(
    {"format": word(1), "run_id": hex_hash, "task_id": hex_hash, "steps": AMOUNT}
    | {"software": text(), "engine": text(), "counted_steps": AMOUNT}
    | {"saturation": mapping(text(), AMOUNT)}
    | {"files": mapping(text(), structure({"blake3": hex_hash, "size": AMOUNT}))}
)


def read_manifest(data: bytes) -> dict:
    """The manifest from JSON text in its one form (format.md, "The manifest")."""
    try:
        value = json.loads(data.decode())
        written = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        same = written.encode() == data
    except (ValueError, RecursionError):
        raise Refused("manifest", "not JSON") from None
    require(same, "manifest", "not in the one form that a manifest has")
    MANIFEST(value, "manifest")
    return value


# ----------------------------------------------------------------------------------------------
# 3. Hashes and trees (format.md, section 4)
# ----------------------------------------------------------------------------------------------

STATE_TREE, RUN_LOG, KZG_LOG = "state tree v1", "run log v1", "kzg log v2"
GRAPH_TREE, SAMPLES_TREE = "graph v1", "samples v1"
TRACE_TREE, TERMS_TREE = "trace v1", "terms v1"
TASK_ID, BATCH, CLAIM_DIGEST, SAMPLING = "task id v1", "batch v1", "claim v1", "sampling v2"
POSITION, MOVE, GAME = "dispute position v1", "dispute move v1", "dispute game v1"


def derive(domain: str, data: bytes, length: int = 32) -> bytes:
    """H_D(data): BLAKE3 in derive_key mode under a domain of the table in section 4."""
    return blake3(data, derive_key_context=f"vtrain 2026 {domain}").digest(length=length)


def bytes_of(kind: dict) -> int:
    """How many bytes a tensor has that has this dtype and shape."""
    return size_of(kind["shape"]) * DTYPES[kind["dtype"]].itemsize


def plain_digest(data: bytes) -> bytes:
    """Plain BLAKE3: the tensor digest, and the digest of files."""
    return blake3(data).digest()


def tensor_bytes(tensor: np.ndarray, dtype: str) -> bytes:
    """Little-endian, row-major bytes."""
    return np.ascontiguousarray(tensor, dtype=DTYPES[dtype]).tobytes()


def leaf_hash(domain: str, data: bytes) -> bytes:
    """The hash of a leaf of a tree."""
    return derive(domain, b"\x00" + data)


def node_hash(domain: str, left: bytes, right: bytes) -> bytes:
    """The hash of an inner node of a tree."""
    return derive(domain, b"\x01" + left + right)


def root_of_hashes(domain: str, hashes: list[bytes]) -> bytes:
    """The root over leaf hashes.  Pairing level by level, the odd one passed up, gives the tree
    of RFC 9162, which is split at the largest power of two below its size."""
    if not hashes:
        return derive(domain, b"")
    while len(hashes) > 1:
        pairs = zip(hashes[::2], hashes[1::2], strict=False)
        odd = hashes[-1:] if len(hashes) % 2 else []
        hashes = [node_hash(domain, left, right) for left, right in pairs] + odd
    return hashes[0]


def tree_root(domain: str, leaves: Sequence[bytes]) -> bytes:
    """The root of a tree over these leaf data."""
    return root_of_hashes(domain, [leaf_hash(domain, leaf) for leaf in leaves])


Join = Callable[[bytes, bytes, bool], bytes]


def joining(domain: str) -> Join:
    """How two nodes of a tree are joined."""
    return lambda left, right, last: node_hash(domain, left, right)


def root_from_path(join: Join, hash: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root that a path leads to from leaf `index` of `size`: RFC 9162, section 2.1.3.2.

    `join(left, right, last)` makes the hash of a node, `last` being true of the root alone."""
    require(0 <= index < size, "index", "there is no such leaf")
    fn, sn = index, size - 1
    for number, sibling in enumerate(path):
        require(sn > 0, "path", "too long")
        last = number == len(path) - 1
        if fn & 1 or fn == sn:
            hash = join(sibling, hash, last)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            hash = join(hash, sibling, last)
        fn, sn = fn >> 1, sn >> 1
    require(sn == 0, "path", "too short")
    return hash


def opens(domain: str, root: bytes, size: int, index: int, leaf: bytes, path: list[bytes]) -> bool:
    """Is this the data of leaf `index` of the tree with this root and size?"""
    try:
        hash = leaf_hash(domain, leaf)
        return root_from_path(joining(domain), hash, index, size, path) == root
    except Refused:
        return False


# BLAKE3's own tree, whose inner chaining values its library does not give out.

CHUNK = 1024
_IV = (
    *(0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A),
    *(0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19),
)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_COLUMNS_AND_DIAGONALS = (
    *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8


def _compress(chaining: Sequence[int], block: bytes, counter: int, flags: int) -> list[int]:
    """BLAKE3's compression function: the eight words of the new chaining value."""
    message = [int.from_bytes(block.ljust(64, b"\0")[i : i + 4], "little") for i in range(0, 64, 4)]
    state = [*chaining, *_IV[:4], counter & 0xFFFFFFFF, counter >> 32, len(block), flags]

    def rotate(word: int, count: int) -> int:
        return (word >> count | word << 32 - count) & 0xFFFFFFFF

    for _ in range(7):
        for number, (a, b, c, d) in enumerate(_COLUMNS_AND_DIAGONALS):
            for added, first, second in (
                (message[2 * number], 16, 12),
                (message[2 * number + 1], 8, 7),
            ):
                state[a] = (state[a] + state[b] + added) & 0xFFFFFFFF
                state[d] = rotate(state[d] ^ state[a], first)
                state[c] = (state[c] + state[d]) & 0xFFFFFFFF
                state[b] = rotate(state[b] ^ state[c], second)
        message = [message[i] for i in _PERMUTATION]
    return [state[i] ^ state[i + 8] for i in range(8)]


def _words(chaining: Sequence[int]) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in chaining)


def chunk_value(chunk: bytes, index: int) -> bytes:
    """The chaining value of chunk `index` of data of more than one chunk."""
    chaining: Sequence[int] = _IV
    blocks = [chunk[i : i + 64] for i in range(0, len(chunk), 64)] or [b""]
    for number, block in enumerate(blocks):
        flags = _CHUNK_START * (number == 0) | _CHUNK_END * (number == len(blocks) - 1)
        chaining = _compress(chaining, block, index, flags)
    return _words(chaining)


def parent_value(left: bytes, right: bytes, last: bool) -> bytes:
    """The chaining value of two, or (`last`) the digest of all."""
    return _words(_compress(_IV, left + right, 0, _PARENT | _ROOT * last))


def chunk_count(length: int) -> int:
    """Chunks of so many bytes; of none, one that is empty."""
    return max(1, -(-length // CHUNK))


def chunk_length(length: int, index: int) -> int:
    """The bytes of chunk `index` of so many bytes."""
    return min(CHUNK, length - index * CHUNK)


def chunk_opens(digest: bytes, length: int, index: int, chunk: bytes, path: list[bytes]) -> bool:
    """Is this chunk `index` of the tensor of so many bytes that has this digest?"""
    count = chunk_count(length)
    if not 0 <= index < count or len(chunk) != chunk_length(length, index):
        return False
    if count == 1:
        return not path and plain_digest(chunk) == digest
    try:
        return root_from_path(parent_value, chunk_value(chunk, index), index, count, path) == digest
    except Refused:
        return False


def task_id_of(task: dict) -> bytes:
    """The id of a task."""
    return derive(TASK_ID, encode(task))


def claim_digest(claim: dict) -> bytes:
    """The digest of a claim's body, which the solver signs."""
    return derive(CLAIM_DIGEST, encode(claim))


def batch_digest(x: bytes, y: bytes) -> bytes:
    """The digest of a batch from the bytes of x and y as gathered."""
    return derive(BATCH, plain_digest(x) + plain_digest(y))


# ----------------------------------------------------------------------------------------------
# 4. Signatures and points (format.md, sections 4c and 4a)
# ----------------------------------------------------------------------------------------------

ED_P = 2**255 - 19
ED_L = 2**252 + 27742317777372353535851937790883648493
ED_D = -121665 * pow(121666, -1, ED_P) % ED_P
_ORDER_8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
SMALL_ORDER_Y = {0, 1, ED_P - 1, _ORDER_8, ED_P - _ORDER_8}
EdPoint = tuple[int, int, int, int]  # extended coordinates X, Y, Z, T = XY / Z


def _ed_add(a: EdPoint, b: EdPoint) -> EdPoint:
    """The complete addition of RFC 8032, section 5.1.4; a point may be added to itself."""
    p = (a[1] - a[0]) * (b[1] - b[0]) % ED_P
    q = (a[1] + a[0]) * (b[1] + b[0]) % ED_P
    r = 2 * a[3] * b[3] * ED_D % ED_P
    s = 2 * a[2] * b[2] % ED_P
    e, f, g, h = q - p, s - r, s + r, q + p
    return e * f % ED_P, g * h % ED_P, f * g % ED_P, e * h % ED_P


def _ed_times(scalar: int, point: EdPoint) -> EdPoint:
    result: EdPoint = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = _ed_add(result, point)
        point = _ed_add(point, point)
        scalar >>= 1
    return result


def _ed_point(encoded: bytes) -> EdPoint | None:
    """The point of an encoding with y < p (RFC 8032, section 5.1.3), if there is one."""
    value = int.from_bytes(encoded, "little")
    sign, y = value >> 255, value & 2**255 - 1
    square = (y * y - 1) * pow(ED_D * y * y + 1, -1, ED_P) % ED_P
    x = pow(square, (ED_P + 3) // 8, ED_P)
    if x * x % ED_P != square:
        x = x * pow(2, (ED_P - 1) // 4, ED_P) % ED_P
    if x * x % ED_P != square or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = ED_P - x
    return x, y, 1, x * y % ED_P


def _ed_encode(point: EdPoint) -> bytes:
    inverse = pow(point[2], -1, ED_P)
    x, y = point[0] * inverse % ED_P, point[1] * inverse % ED_P
    return (y | (x & 1) << 255).to_bytes(32, "little")


ED_BASE = _ed_point((4 * pow(5, -1, ED_P) % ED_P).to_bytes(32, "little"))


def broken_step(key: bytes, message: bytes, signature: bytes) -> str:
    """What of the rule of section 4c a signature breaks: "" where it holds."""
    if len(key) != 32 or len(signature) != 64:
        return "length"
    for name, encoded in (("key", key), ("R", signature[:32])):
        y = int.from_bytes(encoded, "little") & 2**255 - 1
        if y >= ED_P or y in SMALL_ORDER_Y:
            return name
    scalar = int.from_bytes(signature[32:], "little")
    if scalar >= ED_L:
        return "S"
    point = _ed_point(key)
    if point is None:
        return "key"
    hashed = hashlib.sha512(signature[:32] + key + message).digest()
    challenge = int.from_bytes(hashed, "little") % ED_L
    negative = (ED_P - point[0], point[1], 1, ED_P - point[3])
    sum_ = _ed_add(_ed_times(scalar, ED_BASE), _ed_times(challenge, negative))
    return "" if _ed_encode(sum_) == signature[:32] else "equation"


def signature_holds(key: bytes, message: bytes, signature: bytes) -> bool:
    """Does the signature of the message by the key hold?"""
    return broken_step(key, message, signature) == ""


BN254_P = 21888242871839275222246405745257275088696311157297823662689037894645226208583


def is_point(encoded: bytes) -> bool:
    """A finite point of BN254, y^2 = x^3 + 3, with reduced coordinates (section 4a)."""
    x, y = int.from_bytes(encoded[:32], "big"), int.from_bytes(encoded[32:], "big")
    return on_curve((x, y))


def on_curve(point: tuple[int, int]) -> bool:
    """A finite point of the curve, with reduced coordinates."""
    x, y = point
    return x < BN254_P and y < BN254_P and (y * y - x**3 - 3) % BN254_P == 0


BN254_R = 21888242871839275222246405745257275088548364400416034343698204186575808495617
FROM_MONTGOMERY = pow(2, -256, BN254_P)
Point = tuple[int, int, int]  # X, Y and Z of x = X / Z, y = Y / Z; Z is 0 at infinity
INFINITY: Point = (0, 1, 0)


def add_points(a: Point, b: Point) -> Point:
    """The sum of two points of BN254, whichever they are: algorithm 7 of Renes, Costello and Batina
    (ePrint 2015/1060)."""
    (ax, ay, az), (bx, by, bz) = a, b
    x, y, z = ax * bx, ay * by, 9 * az * bz
    xy, yz, xz = ax * by + ay * bx, ay * bz + az * by, 9 * (ax * bz + az * bx)
    return (
        (xy * (y - z) - yz * xz) % BN254_P,
        ((y - z) * (y + z) + 3 * x * xz) % BN254_P,
        (yz * (y + z) + 3 * x * xy) % BN254_P,
    )


def sum_multiples(factors: list[int], points: list[tuple[int, int]]) -> Point:
    """The sum of `factor * point`, in digits of four bits: points of one digit are added first."""
    pairs = [
        (f, (p[0], p[1], 1)) if f >= 0 else (-f, (p[0], -p[1], 1))
        for f, p in zip(factors, points, strict=True)
        if f
    ]
    total = INFINITY
    for shift in reversed(range(0, max((f.bit_length() for f, _ in pairs), default=0) + 1, 4)):
        for _ in range(4):
            total = add_points(total, total)
        at_least = INFINITY  # the points whose digit is not smaller
        for digit in range(15, 0, -1):
            for point in (p for f, p in pairs if f >> shift & 15 == digit):
                at_least = add_points(at_least, point)
            total = add_points(total, at_least)
    return total


def hiding_key(secret: bytes, task: bytes, kind: str, index: int, digest: bytes) -> bytes:
    """The key of a state or batch (format.md, "What hides a commitment")."""
    material = {"digest": digest, "index": index, "kind": kind, "secret": secret, "task": task}
    return derive("hiding key v1", encode(material))


def own_key(proof: dict, kind: str, index: int, digest: bytes, tensors: bytes) -> bytes:
    """The key of a state or batch that is its own secret."""
    place = encode({name: proof[name] for name in ("circuit", "k", "srs")})
    secret = derive("hiding own v1", tensors)
    return hiding_key(secret, derive("hiding own v1", place), kind, index, digest)


def trace_key(before: bytes, batch: bytes) -> bytes:
    """The key of a step's trace."""
    return derive("hiding key v1", encode({"batch": batch, "kind": "tiling 1", "state": before}))


def key_id(key: bytes) -> bytes:
    """What a log has of a key."""
    return derive("hiding key id v1", key)


def hiding_elements(key: bytes, column: int) -> list[int]:
    """The 64 elements behind a column of what the key hides."""
    stream = derive("hiding v1", encode({"column": column, "key": key}), 48 * 64)
    words = [stream[at : at + 48] for at in range(0, 48 * 64, 48)]
    return [int.from_bytes(word, "little") % BN254_R for word in words]


class Commitments:
    """Commits to columns by the SRS file that a task's `proof` names (format.md, section 4a)."""

    def __init__(self, data: bytes, proof: dict):
        require(hashlib.sha256(data).digest() == proof["srs"], "srs", "not the task's")
        self.proof, self.rows = proof, 2 ** proof["k"]
        file_k = int.from_bytes(data[:4], "little")
        require(1 <= file_k <= 28, "srs", "no k")
        require(len(data) == 4 + 2**file_k * 128 + 256, "srs", "not as long as its k says")
        require(proof["k"] <= file_k, "srs", "for a smaller k")
        self.in_powers = proof["k"] < file_k
        start = 4 if self.in_powers else 4 + 64 * self.rows
        self.points = [self.load(data, start + 64 * i) for i in range(self.rows)]

    @staticmethod
    def load(data: bytes, at: int) -> tuple[int, int]:
        """The point that is stored there."""
        stored = [int.from_bytes(data[i : i + 32], "little") for i in (at, at + 32)]
        require(max(stored) < BN254_P, "srs", "a coordinate is not reduced")
        x, y = (value * FROM_MONTGOMERY % BN254_P for value in stored)
        require(on_curve((x, y)), "srs", "no point of the curve")
        return x, y

    def commit(self, values: list[int], key: bytes = b"", number: int = 0) -> bytes:
        """The commitment to a column, that of this number of what the key hides, if one does."""
        ones = self.proof["blinding"] + 1
        values = values + (hiding_elements(key, number) if key else [])
        column = values + [0] * (self.rows - ones - len(values)) + [1] * ones
        if self.in_powers:  # the coefficients of the polynomial that has these values
            root = pow(pow(7, (BN254_R - 1) // self.rows, BN254_R), -1, BN254_R)
            unit = pow(self.rows, -1, BN254_R)
            powers = [pow(root, i, BN254_R) for i in range(self.rows)]
            column = [
                sum(v * powers[i * j % self.rows] for i, v in enumerate(column)) * unit % BN254_R
                for j in range(self.rows)
            ]
        x, y, z = sum_multiples(column, self.points)
        require(z != 0, "commitment", "is of nothing")
        scale = pow(z, -1, BN254_P)
        return b"".join((value * scale % BN254_P).to_bytes(32, "big") for value in (x, y))

    def commit_all(self, tensors: list[np.ndarray], key: bytes) -> list[bytes]:
        """Those to the columns of tensors that a key hides; with the layout `tiles` the tensors
        are matrices."""
        columns: list[list[int]] = []
        if self.proof["circuit"] == "step":
            length, values = column_length(self.proof), [v for t in tensors for v in t.ravel()]
            columns = [values[at : at + length] for at in range(0, len(values), length)]
        else:
            for tensor in tensors:
                matrix = tensor.reshape(-1, tensor.shape[-1] if tensor.shape else 1)
                down, across = (-(-extent // 128) for extent in matrix.shape)
                padded = np.zeros((down * 128, across * 128), dtype=np.int64)
                padded[: matrix.shape[0], : matrix.shape[1]] = matrix
                for i, j in np.ndindex(down, across):
                    block = padded[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
                    columns.append(list(block.ravel()))
        numbered = enumerate([int(value) for value in column] for column in columns)
        return [self.commit(values, key, number) for number, values in numbered]


# ----------------------------------------------------------------------------------------------
# 5. Sample order and draws (format.md, section 3 and "Draws" of section 4)
# ----------------------------------------------------------------------------------------------

MASK32 = np.uint64(0xFFFFFFFF)


def philox(counter: Sequence[Any], key: Sequence[int]) -> list[np.ndarray]:
    """Philox4x32-10: four words of 32 bits, as uint64, from a counter of four words or arrays."""
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        product0 = c0 * np.uint64(0xD2511F53)
        product1 = c2 * np.uint64(0xCD9E8D57)
        c0 = (product1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
        c2 = (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & MASK32, product0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def batch_indices(seed: int, samples: int, batch: int, step: int) -> np.ndarray:
    """Which samples step `step` (from 0) takes."""
    half = 1
    while 4**half < samples:
        half += 1
    mask = np.uint64(2**half - 1)
    place = step * batch + np.arange(batch, dtype=np.uint64)
    epoch, value = place // np.uint64(samples), place % np.uint64(samples)
    key = (seed % 2**32, seed >> 32)

    def permute(value: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        left, right = value >> np.uint64(half), value & mask
        for number in range(8):
            words = [right, np.full_like(right, number), epoch & MASK32, epoch >> np.uint64(32)]
            left, right = right, left ^ (philox(words, key)[0] & mask)
        return left << np.uint64(half) | right

    outside = np.ones(batch, dtype=bool)
    while outside.any():  # cycle-walking: what falls beyond the samples is permuted again
        value[outside] = permute(value[outside], epoch[outside])
        outside = value >= samples
    return value.astype(np.int64)


def dropout_draws(seed: int, step: int, site: int, elements: Any) -> np.ndarray:
    """16 random bits for each element of the mask number `site`, by the elements' numbers."""
    elements = np.asarray(elements, dtype=np.uint64)
    block, half = elements >> np.uint64(3), elements & np.uint64(7)
    high = np.uint64(step >> 32) + (block >> np.uint64(32) << np.uint64(16))
    words = philox(
        [block & MASK32, 2**31 + site, step & 2**32 - 1, high], (seed % 2**32, seed >> 32)
    )
    word = np.choose(
        (half >> np.uint64(1)).astype(np.int64), np.broadcast_arrays(*words, block)[:4]
    )
    return word >> (half & np.uint64(1)) * np.uint64(16) & np.uint64(0xFFFF)


def draw_material(claim: bytes, domain: str, population: int, randomness: bytes) -> bytes:
    """The key material of a draw."""
    names = {"claim": claim, "domain": domain, "population": population, "randomness": randomness}
    return encode(names)


def draw(material: bytes, population: int, count: int) -> list[int]:
    """The entries drawn, in the order of the draw."""
    stream = blake3(material, derive_key_context=f"vtrain 2026 {SAMPLING}")
    entries: dict[int, int] = {}  # those that are not in their own place any more
    drawn: list[int] = []
    offset = 0
    while len(drawn) < min(count, population):
        i = len(drawn)
        left = population - i
        word = int.from_bytes(stream.digest(length=8, seek=offset), "little")
        offset += 8
        if word >= 2**64 // left * left:
            continue
        j = i + word % left
        drawn.append(entries.get(j, j))
        entries[j] = entries.get(i, i)
    return drawn


# ----------------------------------------------------------------------------------------------
# 6. Operators: attributes, types and ranges (operators.md)
#
# Each function derives the type of an operator's output from attributes and input types, and
# refuses what "Requires" does not allow.
# ----------------------------------------------------------------------------------------------

BOUNDS = {"u8": (0, 2**8 - 1), "i8": (-(2**7), 2**7 - 1), "i16": (-(2**15), 2**15 - 1)}
BOUNDS |= {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}
SATURATED = {"i16": (-32639, 32639), "i32": (-(2**31) + 1, 2**31 - 1), "i64": BOUNDS["i64"]}
ANY = tuple(DTYPES)
LAST_STEP = 2**40
Type = dict[str, Any]
Attributes = dict[str, Any]
Numbers = Any  # an integer, or an int64 array of them


def rs(x: Numbers, shift: int) -> Numbers:
    """floor((x + 2^(shift - 1)) / 2^shift): format.md, section 1.  Of integers and int64 arrays."""
    if shift <= 0:
        return x << -shift
    if not isinstance(x, int) and shift >= 64:
        return np.zeros_like(x)
    return (x >> shift) + (x >> shift - 1 & 1)


def clamp(x: Numbers, lo: int, hi: int) -> Numbers:
    """The nearest of lo to hi."""
    return max(lo, min(x, hi)) if isinstance(x, int) else np.clip(x, lo, hi)


def saturate(x: Numbers, dtype: str) -> Numbers:
    """`sat` of format.md, section 1; nothing is clamped for i64."""
    return x if dtype == "i64" else clamp(x, *SATURATED[dtype])


def must(condition: bool, why: str) -> None:
    """Refuse a node unless the condition holds."""
    require(condition, "node", why)


def must_fit(*values: int) -> None:
    """Refuse a node whose intermediates may leave int64."""
    must(all(-(2**63) <= value < 2**63 for value in values), "does not fit int64")


def tensor(dtype: str, shape: Sequence[int], exponent: int, lo: int, hi: int) -> Type:
    """The type of an output, if an output may have it ("What holds for all")."""
    least, most = BOUNDS[dtype]
    must(least <= lo and hi <= most, "range is beyond the dtype")
    must(dtype != "i64" or (-lo < 2**60 and hi < 2**60), "range reaches 2^60")
    must(abs(exponent) <= 512, "exponent is out of bounds")
    must(all(extent >= 1 for extent in shape), "an extent is below 1")
    must(len(shape) <= 8 and size_of(shape) <= 2**32, "too large")
    shape = list(shape)
    return {"dtype": dtype, "shape": shape, "exponent": exponent, "lo": lo, "hi": hi}


def like(x: Type, **changes: Any) -> Type:
    """The type x with some fields changed."""
    fields = x | changes
    names = ("dtype", "shape", "exponent", "lo", "hi")
    return tensor(*(fields[name] for name in names))


def corners(a: Type, b: Type) -> tuple[int, int]:
    """Least and greatest product of an end of a and an end of b."""
    products = [x * y for x in (a["lo"], a["hi"]) for y in (b["lo"], b["hi"])]
    return min(products), max(products)


def with_zero(lo: int, hi: int) -> tuple[int, int]:
    """The range, with 0 added to it."""
    return min(lo, 0), max(hi, 0)


def is_counter(t: Type) -> bool:
    """Is this the type of a step counter?"""
    return t["exponent"] == 0 and t["lo"] >= 0 and t["hi"] <= LAST_STEP


@dataclass
class Windows:
    """Windows over an image (operators.md, "Windows")."""

    attrs: Attributes
    image: Sequence[int]

    def __post_init__(self) -> None:
        self.n, self.h, self.w, self.channels = self.image
        self.kh, self.kw = self.attrs["kernel"]
        self.sh, self.sw = self.attrs["strides"]
        self.top, self.left, bottom, right = self.attrs["pads"]
        self.height, self.width = self.h + self.top + bottom, self.w + self.left + right
        must(min(self.kh, self.kw, self.sh, self.sw) >= 1, "kernel or strides are below 1")
        must(max(self.sh, self.sw) <= 2**32, "strides are too large")
        must(min(self.top, bottom) >= 0 and max(self.top, bottom) < self.kh, "pads")
        must(min(self.left, right) >= 0 and max(self.left, right) < self.kw, "pads")
        fits = self.height >= self.kh and self.width >= self.kw
        must(fits, "the kernel is larger than the image")
        self.area = self.kh * self.kw
        must(self.area <= 2**16, "the kernel is too large")
        self.oh = (self.height - self.kh) // self.sh + 1
        self.ow = (self.width - self.kw) // self.sw + 1
        padded = self.n * self.height * self.width * self.channels
        must(padded <= 2**32, "the padded image is too large")
        self.patch_shape = [self.n * self.oh * self.ow, self.area * self.channels]
        must(size_of(self.patch_shape) <= 2**32, "the patches are too large")
        self.out_shape = [self.n, self.oh, self.ow, self.channels]
        self.overlap = -(-self.kh // self.sh) * -(-self.kw // self.sw)

    def pixel(self, r: int, c: int, offset: int) -> tuple[int, int] | None:
        """The pixel at an offset of window (r, c), or None for padding."""
        y = r * self.sh + offset // self.kw - self.top
        x = c * self.sw + offset % self.kw - self.left
        return (y, x) if 0 <= y < self.h and 0 <= x < self.w else None

    def window(self, y: int, x: int, offset: int) -> tuple[int, int] | None:
        """The window that has pixel (y, x) at an offset, if there is one."""
        down, across = y + self.top - offset // self.kw, x + self.left - offset % self.kw
        r, c = down // self.sh, across // self.sw
        if down % self.sh or across % self.sw or not (0 <= r < self.oh and 0 <= c < self.ow):
            return None
        return r, c


WINDOW_ATTRIBUTES = {
    name: array(I64, size, size) for name, size in (("pads", 4), ("kernel", 2), ("strides", 2))
}
EXTENTS = array(I64, MAX_ITEMS)
IMAGE = array(I64, 4, 4)
SWITCH = integer(0, 1)
SHIFT = integer(-62, 64)
LEFT_SHIFT = integer(0, 62)
NAMED = text(1)
I16, I32, I64_ONLY, U8 = ("i16",), ("i32",), ("i64",), ("u8",)
SHAPE = shape_rule(1, 2**32, 8)  # of a state and of its leaf
STATE = {"name": NAMED, "dtype": word("i32", "i64"), "shape": SHAPE, "exponent": EXPONENT}
SHIFTS = {"shift_a": LEFT_SHIFT, "shift_b": LEFT_SHIFT}
FRACTION = integer(-64, 64)
AXIS, PLACE, PLACES = integer(0, 7), integer(0, 2**32 - 1), integer(1, 2**31 - 1)
Input = tuple[tuple[str, ...], int | None]  # its dtypes, and how many axes (None for any number)
X: Input = (ANY, None)
SCALAR, INDICES, HASHED = (I64_ONLY, 0), (I64_ONLY, 1), (U8, 1)
ROW, SUMS, LABELS, PATCHES, POOLED = (I32, 1), (I64_ONLY, 1), (ANY, 1), (ANY, 2), (ANY, 4)
MATRIX, LOGITS, PICTURE = (I16, 2), (I32, 2), (I16, 4)


@dataclass
class Operator:
    """How the type of an operator's output is derived, its inputs (one alone, outside a list, for
    any number of such), and the rule of its attributes."""

    derive: Callable[..., Type]
    inputs: list[Input] | Input
    attributes: Rule


OPERATORS: dict[str, Operator] = {}


def operator(name: str, inputs: list[Input] | Input, /, **attributes: Rule) -> Callable:
    """What follows derives the type of this operator's output."""

    def keep(derive: Callable[..., Type]) -> Callable[..., Type]:
        OPERATORS[name] = Operator(derive, inputs, structure(attributes))
        return derive

    return keep


@operator("state", [], **STATE)
def type_state(a: Attributes) -> Type:
    lo, hi = SATURATED["i32"]
    if a["dtype"] == "i64":
        lo, hi = 0, 2**46 if a["name"].startswith("square/") else LAST_STEP
    return tensor(a["dtype"], a["shape"], a["exponent"], lo, hi)


@operator("next_state", [X], name=NAMED)
def type_next_state(a: Attributes, x: Type) -> Type:
    return like(x)


@operator("increment", [SCALAR])
def type_increment(a: Attributes, t: Type) -> Type:
    must(is_counter(t), "not a counter")
    return tensor("i64", [], 0, 0, LAST_STEP)


@operator(
    "sample_index",
    [SCALAR],
    seed=byte_string(8),
    batch=integer(1, 2**20),
    samples=integer(1, 2**40),
)
def type_sample_index(a: Attributes, t: Type) -> Type:
    must(is_counter(t), "not a counter")
    return tensor("i64", [a["batch"]], 0, 0, a["samples"] - 1)


@operator(
    "dropout_mask",
    [SCALAR],
    seed=byte_string(8),
    site=integer(0, 2**31 - 1),
    keep=integer(1, 2**16 - 1),
    value=integer(1, 2**15 - 1),
    exponent=integer(0, 14),
    shape=EXTENTS,
)
def type_dropout_mask(a: Attributes, t: Type) -> Type:
    must(is_counter(t), "not a counter")
    return tensor("i16", a["shape"], a["exponent"], 0, a["value"])


@operator(
    "gather_samples",
    [INDICES],
    part=word("x", "y"),
    dtype=word("u8", "i8", "i16", "i32"),
    shape=EXTENTS,
    exponent=FRACTION,
)
def type_gather_samples(a: Attributes, index: Type) -> Type:
    return tensor(a["dtype"], index["shape"] + a["shape"], a["exponent"], *BOUNDS[a["dtype"]])


def normalized(a: Attributes, x: Numbers) -> Numbers:
    return saturate(rs(x * a["multiplier"] + a["offset"], a["shift"]), "i16")


@operator(
    "normalize",
    [X],
    shift=integer(0, 64),
    offset=integer(-(2**60), 2**60),
    exponent=FRACTION,
    multiplier=integer(1, 2**31),
)
def type_normalize(a: Attributes, x: Type) -> Type:
    for end in (x["lo"], x["hi"]):
        must_fit(end * a["multiplier"], end * a["multiplier"] + a["offset"])
    lo, hi = normalized(a, x["lo"]), normalized(a, x["hi"])
    return tensor("i16", x["shape"], a["exponent"], lo, hi)


@operator("one_hot", [X], depth=integer(1, 2**20))
def type_one_hot(a: Attributes, x: Type) -> Type:
    must(len(x["shape"]) >= 2, "fewer than two axes")
    columns = size_of(x["shape"][1:]) * a["depth"]
    return tensor("i16", [x["shape"][0], columns], 14, 0, 2**14)


def product_extents(attrs: Attributes, a: Type, b: Type) -> tuple[int, int, int]:
    """m, k and n of a matrix product."""
    m, k = a["shape"][:-3:-1] if attrs["transpose_a"] else a["shape"][-2:]
    other, n = b["shape"][:-3:-1] if attrs["transpose_b"] else b["shape"][-2:]
    must(k == other and k <= 2**23, "the inner extents")
    return m, k, n


@operator("matmul", [MATRIX, MATRIX], transpose_a=SWITCH, transpose_b=SWITCH)
def type_matmul(attrs: Attributes, a: Type, b: Type) -> Type:
    m, k, n = product_extents(attrs, a, b)
    lo, hi = corners(a, b)
    return tensor("i64", [m, n], a["exponent"] + b["exponent"], *with_zero(k * lo, k * hi))


@operator("batched_matmul", [(I16, None), (I16, None)], transpose_a=SWITCH, transpose_b=SWITCH)
def type_batched_matmul(attrs: Attributes, a: Type, b: Type) -> Type:
    same = a["shape"][:-2] == b["shape"][:-2] and len(a["shape"]) == len(b["shape"]) >= 3
    must(same, "not stacks of as many matrices")
    m, k, n = product_extents(attrs, a, b)
    lo, hi = corners(a, b)
    shape = [*a["shape"][:-2], m, n]
    return tensor("i64", shape, a["exponent"] + b["exponent"], *with_zero(k * lo, k * hi))


@operator("add_bias", [(I64_ONLY, None), ROW], shift=SHIFT)
def type_add_bias(a: Attributes, acc: Type, bias: Type) -> Type:
    must(len(acc["shape"]) >= 1 and acc["shape"][-1:] == bias["shape"], "shapes do not fit")
    must(a["shift"] == bias["exponent"] - acc["exponent"], "shift is not that of the exponents")
    lo, hi = rs(bias["lo"], a["shift"]), rs(bias["hi"], a["shift"])
    must_fit(lo, hi)
    return like(acc, lo=acc["lo"] + lo, hi=acc["hi"] + hi)


@operator("column_sum", [X])
def type_column_sum(a: Attributes, x: Type) -> Type:
    must(len(x["shape"]) >= 1, "a scalar")
    rows = size_of(x["shape"][:-1])
    lo, hi = with_zero(rows * x["lo"], rows * x["hi"])
    return tensor("i64", x["shape"][-1:], x["exponent"], lo, hi)


def aligned(attrs: Attributes, a: Type, b: Type) -> tuple[int, int, int, int]:
    """The ends of two inputs that are shifted to one exponent."""
    must(a["shape"] == b["shape"], "shapes differ")
    same = a["exponent"] + attrs["shift_a"] == b["exponent"] + attrs["shift_b"]
    must(same, "exponents are not aligned")
    ends = [
        x[end] << attrs[shift]
        for x, shift in ((a, "shift_a"), (b, "shift_b"))
        for end in ("lo", "hi")
    ]
    must_fit(*ends)
    return ends[0], ends[1], ends[2], ends[3]


@operator("add", [X, X], **SHIFTS)
def type_add(attrs: Attributes, a: Type, b: Type) -> Type:
    a_lo, a_hi, b_lo, b_hi = aligned(attrs, a, b)
    exponent = a["exponent"] + attrs["shift_a"]
    return tensor("i64", a["shape"], exponent, a_lo + b_lo, a_hi + b_hi)


@operator("sub", [X, X], **SHIFTS)
def type_sub(attrs: Attributes, a: Type, b: Type) -> Type:
    a_lo, a_hi, b_lo, b_hi = aligned(attrs, a, b)
    exponent = a["exponent"] + attrs["shift_a"]
    return tensor("i64", a["shape"], exponent, a_lo - b_hi, a_hi - b_lo)


@operator("mul", [X, X])
def type_mul(attrs: Attributes, a: Type, b: Type) -> Type:
    must(a["shape"] == b["shape"], "shapes differ")
    return tensor("i64", a["shape"], a["exponent"] + b["exponent"], *corners(a, b))


@operator(
    "rescale",
    [X],
    dtype=word("i16", "i32", "i64"),
    shift=SHIFT,
    multiplier=integer(1, 65535),
    multiplier_exponent=integer(0, 32),
)
def type_rescale(a: Attributes, x: Type) -> Type:
    scaled = [x[end] * a["multiplier"] for end in ("lo", "hi")]
    shifted = [rs(end, a["shift"]) for end in scaled]
    must_fit(*scaled, *shifted)
    lo, hi = (saturate(end, a["dtype"]) for end in shifted)
    exponent = x["exponent"] + a["multiplier_exponent"] - a["shift"]
    return tensor(a["dtype"], x["shape"], exponent, lo, hi)


@operator("relu", [(I16, None)])
def type_relu(a: Attributes, x: Type) -> Type:
    return like(x, lo=max(x["lo"], 0), hi=max(x["hi"], 0))


@operator("relu_grad", [(I16, None), (I16, None)])
def type_relu_grad(a: Attributes, grad: Type, output: Type) -> Type:
    must(grad["shape"] == output["shape"], "shapes differ")
    lo, hi = with_zero(grad["lo"], grad["hi"])
    return like(grad, lo=lo, hi=hi)


@operator("im2col", [PICTURE], **WINDOW_ATTRIBUTES)
def type_im2col(a: Attributes, x: Type) -> Type:
    lo, hi = with_zero(x["lo"], x["hi"])
    return like(x, shape=Windows(a, x["shape"]).patch_shape, lo=lo, hi=hi)


def overlapped(x: Type, windows: Windows) -> Type:
    """What col2im and the gradients of pools put out."""
    lo, hi = with_zero(windows.overlap * x["lo"], windows.overlap * x["hi"])
    return tensor("i64", windows.image, x["exponent"], lo, hi)


@operator("col2im", [PATCHES], shape=IMAGE, **WINDOW_ATTRIBUTES)
def type_col2im(a: Attributes, x: Type) -> Type:
    windows = Windows(a, a["shape"])
    must(x["shape"] == windows.patch_shape, "not the shape of the patches")
    return overlapped(x, windows)


@operator("reshape", [X], shape=EXTENTS)
def type_reshape(a: Attributes, x: Type) -> Type:
    must(size_of(a["shape"]) == size_of(x["shape"]), "another number of elements")
    return like(x, shape=a["shape"])


@operator("transpose", [X], perm=EXTENTS)
def type_transpose(a: Attributes, x: Type) -> Type:
    must(sorted(a["perm"]) == list(range(len(x["shape"]))), "not a permutation of the axes")
    return like(x, shape=[x["shape"][axis] for axis in a["perm"]])


def along(a: Attributes, x: Type, extent: int) -> list[int]:
    """The shape of x with another extent along the axis of the attributes."""
    return [*x["shape"][: a["axis"]], extent, *x["shape"][a["axis"] + 1 :]]


@operator("slice", [X], axis=AXIS, start=PLACE, stop=integer(1, 2**32))
def type_slice(a: Attributes, x: Type) -> Type:
    must(a["axis"] < len(x["shape"]), "no such axis")
    must(a["start"] < a["stop"] <= x["shape"][a["axis"]], "not a part of the axis")
    return like(x, shape=along(a, x, a["stop"] - a["start"]))


@operator("pad", [X], axis=AXIS, before=PLACE, after=PLACE)
def type_pad(a: Attributes, x: Type) -> Type:
    must(a["axis"] < len(x["shape"]), "no such axis")
    lo, hi = with_zero(x["lo"], x["hi"])
    extent = a["before"] + x["shape"][a["axis"]] + a["after"]
    return like(x, shape=along(a, x, extent), lo=lo, hi=hi)


@operator("concat", X, axis=AXIS)
def type_concat(a: Attributes, *parts: Type) -> Type:
    must(len(parts) >= 2, "fewer than two parts")
    first = parts[0]
    must(a["axis"] < len(first["shape"]), "no such axis")
    for x in parts:
        same = all(x[name] == first[name] for name in ("dtype", "exponent"))
        must(same and len(x["shape"]) == len(first["shape"]), "parts of different kinds")
        must(along(a, x, 0) == along(a, first, 0), "extents beside the axis differ")
    whole = along(a, first, sum(x["shape"][a["axis"]] for x in parts))
    lo, hi = min(x["lo"] for x in parts), max(x["hi"] for x in parts)
    return like(first, shape=whole, lo=lo, hi=hi)


@operator("max_pool", [PICTURE], **WINDOW_ATTRIBUTES)
def type_max_pool(a: Attributes, x: Type) -> Type:
    return like(x, shape=Windows(a, x["shape"]).out_shape)


@operator("max_pool_grad", [PICTURE, PICTURE], **WINDOW_ATTRIBUTES)
def type_max_pool_grad(a: Attributes, grad: Type, x: Type) -> Type:
    windows = Windows(a, x["shape"])
    must(grad["shape"] == windows.out_shape, "not the shape of the windows")
    return overlapped(grad, windows)


@operator("sum_pool", [PICTURE], **WINDOW_ATTRIBUTES)
def type_sum_pool(a: Attributes, x: Type) -> Type:
    windows = Windows(a, x["shape"])
    lo, hi = with_zero(windows.area * x["lo"], windows.area * x["hi"])
    return like(x, dtype="i64", shape=windows.out_shape, lo=lo, hi=hi)


@operator("sum_pool_grad", [POOLED], shape=IMAGE, **WINDOW_ATTRIBUTES)
def type_sum_pool_grad(a: Attributes, grad: Type) -> Type:
    windows = Windows(a, a["shape"])
    must(grad["shape"] == windows.out_shape, "not the shape of the windows")
    return overlapped(grad, windows)


@operator("row_max", [LOGITS])
def type_row_max(a: Attributes, z: Type) -> Type:
    return like(z, shape=z["shape"][:1])


def must_be_of_rows(matrix: Type, *vectors: Type) -> None:
    """Refuse vectors that have not one element for each row."""
    must(all(vector["shape"] == matrix["shape"][:1] for vector in vectors), "shapes do not fit")


@operator("exp2_diff", [LOGITS, ROW])
def type_exp2_diff(a: Attributes, z: Type, most: Type) -> Type:
    must_be_of_rows(z, most)
    must(z["exponent"] == most["exponent"] == 10, "exponents are not 10")
    return tensor("i32", z["shape"], 16, 0, 2**16)


@operator("row_sum", [LOGITS])
def type_row_sum(a: Attributes, x: Type) -> Type:
    rows, classes = x["shape"]
    return tensor("i64", [rows], x["exponent"], classes * x["lo"], classes * x["hi"])


@operator("gather_rows", [X, X])
def type_gather_rows(a: Attributes, x: Type, ids: Type) -> Type:
    must(len(x["shape"]) == 2 and len(ids["shape"]) == 1, "no table, or no list of numbers")
    return like(x, shape=[ids["shape"][0], x["shape"][1]])


@operator("scatter_add", [X, X], rows=integer(1, 2**32))
def type_scatter_add(a: Attributes, x: Type, ids: Type) -> Type:
    must(len(x["shape"]) == 2 and ids["shape"] == x["shape"][:1], "no number for each row")
    n, columns = x["shape"]
    lo, hi = with_zero(n * x["lo"], n * x["hi"])
    return tensor("i64", [a["rows"], columns], x["exponent"], lo, hi)


@operator("divide", [LOGITS, SUMS])
def type_divide(a: Attributes, e: Type, total: Type) -> Type:
    must_be_of_rows(e, total)
    must(e["exponent"] == total["exponent"], "exponents differ")
    must(e["lo"] >= 0 and total["lo"] >= 0, "an input may be negative")
    return tensor("i16", e["shape"], 14, 0, 2**14)


@operator("causal_spans", [], queries=PLACES, window=PLACES)
def type_causal_spans(a: Attributes) -> Type:
    return tensor("i32", [a["queries"], 2], 0, 0, a["queries"])


TOKENS = {"before": PLACES, "after": PLACES, "end_of_text": integer(0, 2**31)}


@operator("token_spans", [(ANY, 2)], **TOKENS, padding=integer(0, 2**31))
def type_token_spans(a: Attributes, ids: Type) -> Type:
    n, places = ids["shape"]
    must(places <= 2**31 - 1, "rows are too long")
    return tensor("i32", [n, places, 2], 0, 0, places)


def row_of(x: Type) -> int:
    """How long the rows of x are."""
    must(len(x["shape"]) >= 1 and x["shape"][-1] > 0, "no rows")
    return int(x["shape"][-1])


@operator("center", [(I16, None)], shift=integer(0, 32))
def type_center(a: Attributes, x: Type) -> Type:
    most = (row_of(x) - 1) * (x["hi"] - x["lo"])
    ends = rs(-most, a["shift"]), rs(most, a["shift"])
    return tensor("i32", x["shape"], x["exponent"] - a["shift"], *ends)


@operator("row_dot", [X, X])
def type_row_dot(attrs: Attributes, a: Type, b: Type) -> Type:
    must("i64" not in (a["dtype"], b["dtype"]), "an input is i64")
    must(a["shape"] == b["shape"], "shapes differ")
    lo, hi = (row_of(a) * end for end in corners(a, b))
    return tensor("i64", a["shape"][:-1], a["exponent"] + b["exponent"], lo, hi)


@operator(
    "inverse_root",
    [(I64_ONLY, None)],
    epsilon=integer(1, 2**60),
    lift=integer(0, 30),
    numerator=integer(1, 2**62),
    numerator_exponent=FRACTION,
)
def type_inverse_root(a: Attributes, s: Type) -> Type:
    must(s["exponent"] % 2 == 0, "the exponent is odd")
    most = max(s["hi"], 0) + a["epsilon"]
    must(most <= (2**62 - 1) >> 2 * a["lift"], "the sum is beyond what has a root here")
    exponent = a["numerator_exponent"] - a["lift"] - s["exponent"] // 2
    return tensor("i64", s["shape"], exponent, inverse_root(a, s["hi"]), inverse_root(a, s["lo"]))


@operator("row_scale", [X, X])
def type_row_scale(attrs: Attributes, x: Type, r: Type) -> Type:
    row_of(x)
    must(r["shape"] == x["shape"][:-1], "not a number for each row")
    return tensor("i64", x["shape"], x["exponent"] + r["exponent"], *corners(x, r))


@operator("column_scale", [X, X])
def type_column_scale(attrs: Attributes, x: Type, w: Type) -> Type:
    row_of(x)
    must(w["shape"] == x["shape"][-1:], "not a number for each column")
    return tensor("i64", x["shape"], x["exponent"] + w["exponent"], *corners(x, w))


@operator("keep_span", [(ANY, 2), (I32, 2)], fill=integer(1 - 2**60, 2**60 - 1))
def type_keep_span(a: Attributes, x: Type, spans: Type) -> Type:
    must(spans["shape"][1] == 2, "not a begin and an end")
    must(x["shape"][0] % spans["shape"][0] == 0, "not so many spans over and over")
    return like(x, lo=min(x["lo"], a["fill"]), hi=max(x["hi"], a["fill"]))


@operator("softmax_grad", [MATRIX, MATRIX])
def type_softmax_grad(a: Attributes, p: Type, grad: Type) -> Type:
    must(p["shape"] == grad["shape"], "shapes differ")
    must(p["exponent"] == 14, "not probabilities")
    lo, hi = corners(p, grad)
    least = grad["lo"] * 2**14 - p["shape"][1] * hi
    most = grad["hi"] * 2**14 - p["shape"][1] * lo
    must_fit(least, most)
    ends = [x * y for x in (p["lo"], p["hi"]) for y in (least, most)]
    exponent = p["exponent"] + grad["exponent"] + 14
    return tensor("i64", p["shape"], exponent, min(ends), max(ends))


@operator("sub_one_hot", [MATRIX, LABELS])
def type_sub_one_hot(a: Attributes, p: Type, label: Type) -> Type:
    must_be_of_rows(p, label)
    must(p["exponent"] == 14, "the exponent is not 14")
    return like(p, lo=p["lo"] - 2**14)


@operator("logit_grad", [LOGITS, SUMS, LABELS])
def type_logit_grad(a: Attributes, e: Type, total: Type, label: Type) -> Type:
    must_be_of_rows(e, total, label)
    must(e["exponent"] == total["exponent"], "exponents differ")
    must(e["lo"] >= 0 and total["lo"] >= 0, "an input may be negative")
    return tensor("i32", e["shape"], 29, -(2**29), 2**29)


@operator("cross_entropy", [LOGITS, ROW, SUMS, LABELS])
def type_cross_entropy(a: Attributes, z: Type, most: Type, total: Type, label: Type) -> Type:
    must_be_of_rows(z, most, total, label)
    must(z["exponent"] == 10 and total["exponent"] == 16, "exponents are not 10 and 16")
    lo = (most["lo"] - z["hi"]) * 2**6 - 16 * 2**16
    hi = (most["hi"] - z["lo"]) * 2**6 + 64 * 2**16
    return tensor("i64", z["shape"][:1], 16, lo, hi)


@operator("square_sum", [(I16, None)], shift=SHIFT)
def type_square_sum(a: Attributes, x: Type) -> Type:
    shift = a["shift"]
    must(shift == 2 * x["exponent"] - 16, "shift is not that of the exponent")
    most = size_of(x["shape"]) * max(x["lo"] ** 2, x["hi"] ** 2)
    must(most < 2**62, "the sum may be too large")
    return tensor("i64", [], 16, 0, most << -shift if shift <= 0 else (most >> shift) + 1)


@operator("sum", [X])
def type_sum(a: Attributes, x: Type) -> Type:
    count = size_of(x["shape"])
    return tensor("i64", [], x["exponent"], *with_zero(count * x["lo"], count * x["hi"]))


@operator("momentum", [(I32, None), (I64_ONLY, None)], decay=integer(0, 2**16), shift=SHIFT)
def type_momentum(a: Attributes, v: Type, g: Type) -> Type:
    must(v["exponent"] == 16 and v["shape"] == g["shape"], "V is not like g")
    must(a["shift"] == g["exponent"] - 16, "shift is not that of the exponent")
    g_lo, g_hi = rs(g["lo"], a["shift"]), rs(g["hi"], a["shift"])
    lo = v["lo"] + g_lo - rs(v["hi"] * a["decay"], 16)
    hi = v["hi"] + g_hi - rs(v["lo"] * a["decay"], 16)
    must_fit(g_lo, g_hi, v["lo"] + g_lo, v["hi"] + g_hi, lo, hi)
    return like(v, lo=saturate(lo, "i32"), hi=saturate(hi, "i32"))


@operator("sgd_update", [(I32, None), (I32, None), SCALAR], shift=SHIFT)
def type_sgd_update(a: Attributes, w: Type, v: Type, rate: Type) -> Type:
    must(w["exponent"] == 24 and w["shape"] == v["shape"], "w is not like V")
    must(a["shift"] == v["exponent"] + rate["exponent"] - 24, "shift is not that of the exponents")
    products = corners(v, rate)
    lo_step, hi_step = (rs(product, a["shift"]) for product in products)
    lo, hi = w["lo"] - hi_step, w["hi"] - lo_step
    must_fit(*products, lo_step, hi_step, lo, hi)
    return like(w, lo=saturate(lo, "i32"), hi=saturate(hi, "i32"))


@operator(
    "schedule_linear",
    [SCALAR],
    rates=array(integer(0, 65535), MAX_ITEMS),
    starts=EXTENTS,
    exponent=integer(-64, 128),
)
@operator(
    "schedule",
    [SCALAR],
    rates=array(integer(0, 65535), MAX_ITEMS),
    starts=EXTENTS,
    exponent=integer(-64, 128),
)
def type_schedule(a: Attributes, t: Type) -> Type:
    starts, rates = a["starts"], a["rates"]
    must(len(starts) == len(rates) >= 1 and starts[0] == 0, "starts and rates do not fit")
    must(starts == sorted(set(starts)) and starts[-1] <= LAST_STEP, "starts do not rise")
    return tensor("i64", [], a["exponent"], min(rates), max(rates))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def normal(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def tanh_gate(x: float) -> float:
    return (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def tanh_gate_slope(x: float) -> float:
    gate, inner = tanh_gate(x), math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return gate + x * gate * (1 - gate) * inner


# Function, bits of the grid, last point, and what f(-x) is besides f(x): (constant, factor).
FUNCTIONS: dict[str, tuple[Callable[[float], float], int, int, tuple[int, int]]] = {
    "sigmoid": (sigmoid, 8, 2662, (2**14, -1)),
    "sigmoid_slope": (lambda x: sigmoid(x) * (1 - sigmoid(x)), 8, 2662, (0, 1)),
    "tanh": (math.tanh, 10, 5679, (0, -1)),
    "tanh_slope": (lambda x: 1 - math.tanh(x) ** 2, 8, 1509, (0, 1)),
    "gelu_gate": (normal, 8, 1027, (2**14, -1)),
    "gelu_slope": (lambda x: normal(x) + x * density(x), 8, 1200, (2**14, -1)),
    "gelu_tanh_gate": (tanh_gate, 8, 996, (2**14, -1)),
    "gelu_tanh_slope": (tanh_gate_slope, 8, 1151, (2**14, -1)),
    "silu_slope": (
        lambda x: sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x)), 8, 3296, (2**14, -1)
    ),
}  # fmt: skip
TABLES: dict[str, np.ndarray] = {}


def table_of(name: str) -> np.ndarray:
    """T[-last] .. T[last]: doubles give them, no entry is near a half."""
    if name not in TABLES:
        function, grid, last, (constant, factor) = FUNCTIONS[name]
        right = [math.floor(2**14 * function(j / 2**grid) + 0.5) for j in range(last + 1)]
        left = [constant + factor * right[j] for j in range(last, 0, -1)]
        TABLES[name] = np.array([*left, *right], dtype=np.int64)
    return TABLES[name]


def place_in(a: Attributes, x: Numbers) -> Numbers:
    """The place among T[-last] .. T[last] of rs(x, shift)."""
    last = FUNCTIONS[a["table"]][2]
    return clamp(rs(x, a["shift"]), -last, last) + last


def is_function(value: Any, where: str) -> None:
    require(isinstance(value, str) and value in FUNCTIONS, where, "not the name of a function")


@operator("look_up", [(I16, None)], table=is_function, shift=integer(-40, 64))
def type_look_up(a: Attributes, x: Type) -> Type:
    must(a["shift"] == x["exponent"] - FUNCTIONS[a["table"]][1], "the shift is not that of x")
    first, final = (place_in(a, x[end]) for end in ("lo", "hi"))
    part = table_of(a["table"])[first : final + 1]
    return tensor("i16", x["shape"], 14, int(part.min()), int(part.max()))


@operator("sign", [X])
def type_sign(a: Attributes, x: Type) -> Type:
    return tensor("i32", x["shape"], 0, clamp(x["lo"], -1, 1), clamp(x["hi"], -1, 1))


@operator("capped_square", [X], bits=integer(0, 59), shift=SHIFT)
def type_capped_square(a: Attributes, x: Type) -> Type:
    ends = [rs(x[end], a["shift"]) for end in ("lo", "hi")]
    must_fit(*ends)
    hi = min(max(end * end for end in ends), 2 ** a["bits"])
    return tensor("i64", x["shape"], 2 * x["exponent"] - 2 * a["shift"], 0, hi)


@operator("clip_factor", [SCALAR], limit=integer(1, 2**31))
def type_clip_factor(a: Attributes, total: Type) -> Type:
    must(total["exponent"] % 2 == 0, "the exponent is odd")
    return tensor("i64", [], 15, clip_of(a, total["hi"]), clip_of(a, total["lo"]))


@operator("scale_by", [X, SCALAR], shift=SHIFT)
def type_scale_by(a: Attributes, x: Type, factor: Type) -> Type:
    products = corners(x, factor)
    must_fit(*products)
    lo, hi = (rs(product, a["shift"]) for product in products)
    return tensor("i64", x["shape"], x["exponent"] + factor["exponent"] - a["shift"], lo, hi)


SHARE = {"rate": integer(0, 2**16), "shift": integer(0, 46)}
BETA = integer(0, 2**31 - 1)


def blend(a: Attributes, old: Numbers, new: Numbers) -> Numbers:
    """The moving average of `adam_mean` and `adam_square`."""
    return old + rs((new - old) * a["rate"], a["shift"])


@operator("adam_mean", [(I32, None), (I16, None)], lift=integer(0, 15), **SHARE)
def type_adam_mean(a: Attributes, m: Type, g: Type) -> Type:
    must(a["rate"] <= 2 ** a["shift"], "the share of the new is more than 1")
    must(m["shape"] == g["shape"], "m is not like g")
    must(m["exponent"] == g["exponent"] + a["lift"], "lift is not that of the exponents")
    lo, hi = (blend(a, m[end], g[end] << a["lift"]) for end in ("lo", "hi"))
    return like(m, lo=saturate(lo, "i32"), hi=saturate(hi, "i32"))


@operator("adam_square", [(I64_ONLY, None), (I16, None)], **SHARE)
def type_adam_square(a: Attributes, v: Type, g: Type) -> Type:
    must(a["rate"] <= 2 ** a["shift"], "the share of the new is more than 1")
    must(v["shape"] == g["shape"], "v is not like g")
    must(v["exponent"] == 2 * g["exponent"] + 16, "exponents do not fit")
    must(v["lo"] >= 0 and v["hi"] <= 2**46, "v is out of bounds")
    return like(v, lo=0, hi=max(v["hi"], max(g["lo"] ** 2, g["hi"] ** 2) << 16))


@operator(
    "adam_direction",
    [(I32, None), (I64_ONLY, None)],
    shift=integer(0, 31),
    epsilon=integer(1, 2**31),
)
def type_adam_direction(a: Attributes, m: Type, v: Type) -> Type:
    must(m["shape"] == v["shape"], "v is not like m")
    must(v["lo"] >= 0 and v["exponent"] % 2 == 0, "v is negative or its exponent odd")
    ends = [direction(a, m[of], v[by]) for of in ("lo", "hi") for by in ("lo", "hi")]
    exponent = m["exponent"] + a["shift"] - v["exponent"] // 2
    lo, hi = saturate(min(ends), "i32"), saturate(max(ends), "i32")
    return tensor("i32", m["shape"], exponent, lo, hi)


@operator("adam_correction", [SCALAR], beta1=BETA, beta2=BETA)
def type_adam_correction(a: Attributes, t: Type) -> Type:
    must(is_counter(t), "not a counter")
    return tensor("i64", [], 24, 0, 2**32)


@operator("tensor_digest", [X])
def type_hash(a: Attributes, x: Type | None = None) -> Type:
    return tensor("u8", [32], 0, 0, 255)


@operator("batch_digest", [HASHED, HASHED])
@operator("state_leaf", [HASHED], **(STATE | {"name": text()}))
@operator("state_root", HASHED)
def type_of_digests(a: Attributes, *digests: Type) -> Type:
    must(all(digest["shape"] == [32] for digest in digests), "an input is no hash")
    return type_hash(a)


@operator("record", [SCALAR, HASHED, SCALAR, HASHED], commit_every=integer(1, 2**40))
def type_record(a: Attributes, step: Type, batch: Type, loss: Type, root: Type) -> Type:
    return type_of_digests(a, batch, root)


def derive_type(op: str, attrs: Attributes, inputs: list[Type]) -> Type:
    """The type that an operator puts out; Refused where its node is illegal."""
    must(op in OPERATORS, "no such operator")
    known = OPERATORS[op]
    known.attributes(attrs, "attrs")
    expected = known.inputs if isinstance(known.inputs, list) else [known.inputs] * len(inputs)
    must(len(inputs) == len(expected), "wrong number of inputs")
    for given, (dtypes, axes) in zip(inputs, expected, strict=True):
        must(given["dtype"] in dtypes, "wrong dtype of an input")
        must(axes is None or len(given["shape"]) == axes, "wrong number of axes of an input")
    return known.derive(attrs, *inputs)


# ----------------------------------------------------------------------------------------------
# 7. Operators: what they compute (operators.md)
#
# A law maps attributes and int64 arrays to an int64 array.  That nothing overflows follows from
# the types of a legal graph.
# ----------------------------------------------------------------------------------------------

# T and L of format.md, section 1.  No entry is nearer than 0.001 to a half, so that floats, which
# err by 10^-10 here, round as exact numbers do.
EXP_TABLE = [round(2.0 ** (16 - i / 1024)) for i in range(1024)]
LOG_TABLE = [round(2.0**16 * math.log2(1 + (2 * i + 1) / 2048)) for i in range(1024)]
PADDING = -(2**15)  # what padding counts as where a maximum is taken


@dataclass
class Context:
    """What nodes without inputs put out: the state before the step, and the sample table."""

    state: dict[str, np.ndarray]
    parts: dict[str, np.ndarray]  # x and y of all samples, [samples, ...]


def turned(matrix: np.ndarray, transposed: int) -> np.ndarray:
    """The matrix as it enters a product."""
    return matrix.swapaxes(-1, -2) if transposed else matrix


def law_one_hot(a: Attributes, x: np.ndarray) -> np.ndarray:
    places = x.reshape(len(x), -1, 1) == np.arange(a["depth"])
    return (places * 2**14).reshape(len(x), -1)


def offsets(w: Windows) -> Iterator[tuple[int, slice, slice]]:
    """Each offset of a window, with the rows and columns of the padded image that all windows
    have there."""
    for offset in range(w.area):
        dy, dx = divmod(offset, w.kw)
        down = slice(dy, dy + (w.oh - 1) * w.sh + 1, w.sh)
        yield offset, down, slice(dx, dx + (w.ow - 1) * w.sw + 1, w.sw)


def patches(w: Windows, x: np.ndarray, padding: int) -> np.ndarray:
    """The pixels of all windows: [n, oh, ow, area, channels]."""
    padded = np.full([w.n, w.height, w.width, w.channels], padding, dtype=np.int64)
    padded[:, w.top : w.top + w.h, w.left : w.left + w.w] = x
    return np.stack([padded[:, down, across] for _, down, across in offsets(w)], axis=3)


def unpatch(w: Windows, x: np.ndarray) -> np.ndarray:
    """The adjoint of `patches`: each pixel is the sum of what came from it."""
    padded = np.zeros([w.n, w.height, w.width, w.channels], dtype=np.int64)
    for offset, down, across in offsets(w):
        padded[:, down, across] += x[:, :, :, offset]
    return padded[:, w.top : w.top + w.h, w.left : w.left + w.w]


def law_im2col(a: Attributes, x: np.ndarray) -> np.ndarray:
    w = Windows(a, x.shape)
    return patches(w, x, 0).reshape(w.patch_shape)


def law_col2im(a: Attributes, x: np.ndarray) -> np.ndarray:
    w = Windows(a, a["shape"])
    return unpatch(w, x.reshape(w.n, w.oh, w.ow, w.area, w.channels))


def law_max_pool_grad(a: Attributes, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    w = Windows(a, x.shape)
    first = patches(w, x, PADDING).argmax(axis=3)[:, :, :, None]
    is_first = first == np.arange(w.area)[:, None]
    return unpatch(w, is_first * grad[:, :, :, None])


def law_sum_pool_grad(a: Attributes, grad: np.ndarray) -> np.ndarray:
    w = Windows(a, a["shape"])
    return unpatch(w, np.repeat(grad[:, :, :, None], w.area, axis=3))


def exp2_diff(z: int, most: int) -> int:
    """One element of `exp2_diff`."""
    if z > most:
        return 0
    d = min(most - z, 31 * 2**10)
    return rs(EXP_TABLE[d & 1023], d >> 10)


def quotient(e: int, total: int) -> int:
    """One element of `divide`."""
    divisor = max(total, 1)
    value = (e * 2**14 + divisor // 2) // divisor & 0xFFFF
    return value - 2**16 if value >= 2**15 else value


def cross_entropy(z: int, most: int, total: int) -> int:
    """One element of `cross_entropy`, z being that of the label."""
    x = max(total, 1)
    bits = x.bit_length() - 1
    log2 = bits * 2**16 + LOG_TABLE[(x << 10 >> bits) - 2**10]
    return (most - z) * 2**6 + log2 - 16 * 2**16


def of_rows(formula: Callable[[int, int], int]) -> Callable[..., np.ndarray]:
    """The law of a formula of an element and what its row has."""

    def law(a: Attributes, matrix: np.ndarray, column: np.ndarray) -> np.ndarray:
        rows = zip(matrix.tolist(), column.tolist(), strict=True)
        return np.array([[formula(x, y) for x in row] for row, y in rows], dtype=np.int64)

    return law


def causal_span(a: Attributes, place: int) -> tuple[int, int]:
    return max(place + 1 - a["window"], 0), place + 1


def spans_of_row(a: Attributes, ids: list[int]) -> list[list[int]]:
    """Begins and ends, from the left and then from the right."""
    places, begins, ends = len(ids), [], []
    tokens = [i for i, token in enumerate(ids) if token != a["padding"]] or [places, -1]
    start, stop = 0, places
    for i, token in enumerate(ids):
        begins.append(max(start, tokens[0], i + 1 - a["before"]))
        start = i + 1 if token == a["end_of_text"] else start
    for i in reversed(range(places)):
        stop = i + 1 if ids[i] == a["end_of_text"] else stop
        ends.append(min(stop, tokens[-1] + 1, i + a["after"]))
    return [list(span) for span in zip(begins, ends[::-1], strict=True)]


def law_keep_span(a: Attributes, x: np.ndarray, spans: np.ndarray) -> np.ndarray:
    begin, end = (spans[np.arange(len(x)) % len(spans), side][:, None] for side in (0, 1))
    column = np.arange(x.shape[1])
    return np.where((begin <= column) & (column < end), x, a["fill"])


def law_scatter_add(a: Attributes, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    total = np.zeros((a["rows"], x.shape[1]), np.int64)
    for row, number in zip(x.astype(np.int64), ids.tolist(), strict=True):
        total[clamp(number, 0, a["rows"] - 1)] += row
    return total


def law_sub_one_hot(a: Attributes, p: np.ndarray, label: np.ndarray) -> np.ndarray:
    result = p.copy()
    result[np.arange(len(p)), np.clip(label, 0, p.shape[1] - 1)] -= 2**14
    return result


def logit_grad(e: int, total: int, hot: bool) -> int:
    total = max(total, 1)
    share = (e * 2**29 + total // 2) // total - 2**29 * hot
    return (share + 2**31) % 2**32 - 2**31


def law_logit_grad(
    a: Attributes, e: np.ndarray, total: np.ndarray, label: np.ndarray
) -> np.ndarray:
    chosen = np.clip(label, 0, e.shape[1] - 1).tolist()
    rows = zip(e.tolist(), total.tolist(), chosen, strict=True)
    shares = [[logit_grad(x, y, i == c) for i, x in enumerate(row)] for row, y, c in rows]
    return np.array(shares, dtype=np.int64)


def law_cross_entropy(
    a: Attributes, z: np.ndarray, most: np.ndarray, total: np.ndarray, label: np.ndarray
) -> np.ndarray:
    chosen = z[np.arange(len(z)), np.clip(label, 0, z.shape[1] - 1)]
    columns = (column.tolist() for column in (chosen, most, total))
    return np.array([cross_entropy(*row) for row in zip(*columns, strict=True)], dtype=np.int64)


def law_pad(a: Attributes, x: np.ndarray) -> np.ndarray:
    widths = [(0, 0)] * x.ndim
    widths[a["axis"]] = (a["before"], a["after"])
    return np.pad(x, widths)


def rate_of(a: Attributes, t: int) -> int:
    """One element of `schedule`."""
    begun = [rate for rate, start in zip(a["rates"], a["starts"], strict=True) if start <= t]
    return begun[-1] if begun else a["rates"][0]


def rate_on_line(a: Attributes, t: int) -> int:
    """One element of `schedule_linear`."""
    starts, rates = a["starts"], a["rates"]
    t = clamp(t, 0, starts[-1])
    i = max(i for i, start in enumerate(starts) if start <= t)
    if i == len(starts) - 1:
        return rates[i]
    n = starts[i + 1] - starts[i]
    return rates[i] + (2 * (rates[i + 1] - rates[i]) * (t - starts[i]) + n) // (2 * n)


def capped_square(a: Attributes, x: int) -> int:
    """One element of `capped_square`."""
    return min(rs(int(x), a["shift"]) ** 2, 2 ** a["bits"])


def law_capped_square(a: Attributes, x: np.ndarray) -> np.ndarray:
    found = [capped_square(a, value) for value in x.ravel().tolist()]
    return np.array(found, dtype=np.int64).reshape(x.shape)


def clip_of(a: Attributes, total: int) -> int:
    """One element of `clip_factor`."""
    return min(2**15, a["limit"] * 2**15 // math.isqrt(max(int(total), 1)))


def direction(a: Attributes, m: int, v: int) -> int:
    """One element of `adam_direction` before it is saturated."""
    return (int(m) << a["shift"]) // (math.isqrt(max(int(v), 0)) + a["epsilon"])


def correction_of(a: Attributes, t: int) -> int:
    """One element of `adam_correction`."""
    rests = []
    for beta in (a["beta1"], a["beta2"]):
        power = 2**31
        for digit in bin(clamp(t, 0, LAST_STEP) + 1)[2:]:
            power = rs(power * power, 31)
            if digit == "1":
                power = rs(power * beta, 31)
        rests.append(2**31 - power)
    return min((math.isqrt(rests[1] << 31) << 24) // rests[0], 2**32)


def squared_average(a: Attributes, v: Numbers, g: Numbers) -> Numbers:
    """`adam_square`, of an integer or of an array."""
    return blend(a, clamp(v, 0, 2**46), g * g << 16)


def law_adam_direction(a: Attributes, m: np.ndarray, v: np.ndarray) -> np.ndarray:
    pairs = zip(m.ravel().tolist(), v.ravel().tolist(), strict=True)
    found = [saturate(direction(a, x, y), "i32") for x, y in pairs]
    return np.array(found, dtype=np.int64).reshape(m.shape)


def sampled(a: Attributes, t: int) -> np.ndarray:
    """The law of `sample_index`."""
    seed = int.from_bytes(a["seed"], "little")
    return batch_indices(seed, a["samples"], a["batch"], clamp(t, 0, LAST_STEP))


def masked(a: Attributes, t: int, elements: Any) -> np.ndarray:
    """The law of `dropout_mask`, of some elements."""
    seed, step = int.from_bytes(a["seed"], "little"), clamp(t, 0, LAST_STEP)
    kept = dropout_draws(seed, step, a["site"], elements) < a["keep"]
    return np.where(kept, a["value"], 0)


def law_dropout_mask(a: Attributes, t: Any) -> np.ndarray:
    return masked(a, int(t), np.arange(math.prod(a["shape"]))).reshape(a["shape"])


def state_leaf(a: Attributes, digest: bytes) -> bytes:
    """The data of a leaf of the state tree, from the attributes of a state."""
    fields = {name: a[name] for name in ("name", "dtype", "shape", "exponent")}
    return encode(fields | {"digest": digest})


def make_record(commit_every: int, step: int, batch: bytes, loss: int, root: bytes) -> bytes:
    """The data of a leaf of the run log."""
    root = root if step % commit_every == 0 else b""
    return encode({"step": step, "batch_digest": batch, "loss": loss, "state_root": root})


def hash_of(op: str, a: Attributes, inputs: list[bytes]) -> bytes:
    """What the operators put out that hash their inputs' bytes (all but `tensor_digest`)."""
    if op == "batch_digest":
        return derive(BATCH, inputs[0] + inputs[1])
    if op == "state_leaf":
        return leaf_hash(STATE_TREE, state_leaf(a, inputs[0]))
    if op == "state_root":
        return root_of_hashes(STATE_TREE, inputs)
    step, loss = (int.from_bytes(inputs[i], "little", signed=True) for i in (0, 2))
    return leaf_hash(RUN_LOG, make_record(a["commit_every"], step, inputs[1], loss, inputs[3]))


HASHING = {"batch_digest", "state_leaf", "state_root", "record"}


def inverse_root(a: Attributes, total: int) -> int:
    """A whole numerator over the floor of a root."""
    radicand = min(max(total, 0) + a["epsilon"], (2**62 - 1) >> 2 * a["lift"])
    return int(a["numerator"]) // math.isqrt(radicand << 2 * a["lift"])


def low32(value: Any) -> Any:
    """The low 32 bits, with their sign."""
    return (value + 2**31) % 2**32 - 2**31


def law_center(a: Attributes, x: np.ndarray) -> np.ndarray:
    apart = x * x.shape[-1] - x.sum(axis=-1, keepdims=True)
    return np.asarray(low32(rs(apart, a["shift"])))


def law_inverse_root(a: Attributes, s: np.ndarray) -> np.ndarray:
    return np.array([inverse_root(a, int(each)) for each in s.flat]).reshape(s.shape)


LAWS: dict[str, Callable[..., Any]] = {
    "next_state": lambda a, x: x,
    "increment": lambda a, t: np.minimum(t + 1, LAST_STEP),
    "sample_index": lambda a, t: sampled(a, int(t)),
    "dropout_mask": law_dropout_mask,
    "normalize": normalized,
    "one_hot": law_one_hot,
    "matmul": lambda a, x, y: turned(x, a["transpose_a"]) @ turned(y, a["transpose_b"]),
    "batched_matmul": lambda a, x, y: turned(x, a["transpose_a"]) @ turned(y, a["transpose_b"]),
    "gather_rows": lambda a, x, ids: x[[clamp(n, 0, len(x) - 1) for n in ids.tolist()]],
    "scatter_add": law_scatter_add,
    "slice": lambda a, x: x.take(range(a["start"], a["stop"]), a["axis"]),
    "pad": law_pad,
    "concat": lambda a, *parts: np.concatenate(parts, a["axis"]),
    "add_bias": lambda a, acc, bias: acc + rs(bias, a["shift"]),
    "column_sum": lambda a, x: x.reshape(-1, x.shape[-1]).sum(axis=0),
    "add": lambda a, x, y: (x << a["shift_a"]) + (y << a["shift_b"]),
    "sub": lambda a, x, y: (x << a["shift_a"]) - (y << a["shift_b"]),
    "mul": lambda a, x, y: x * y,
    "center": law_center,
    "row_dot": lambda a, x, y: (x * y).sum(axis=-1),
    "inverse_root": law_inverse_root,
    "row_scale": lambda a, x, r: x * r[..., None],
    "column_scale": lambda a, x, w: x * w,
    "rescale": lambda a, x: saturate(rs(x * a["multiplier"], a["shift"]), a["dtype"]),
    "relu": lambda a, x: clamp(x, 0, 2**15),
    "relu_grad": lambda a, grad, output: grad * (output > 0),
    "im2col": law_im2col,
    "col2im": law_col2im,
    "reshape": lambda a, x: x.reshape(a["shape"]),
    "transpose": lambda a, x: x.transpose(a["perm"]),
    "max_pool": lambda a, x: patches(Windows(a, x.shape), x, PADDING).max(axis=3),
    "max_pool_grad": law_max_pool_grad,
    "sum_pool": lambda a, x: patches(Windows(a, x.shape), x, 0).sum(axis=3),
    "sum_pool_grad": law_sum_pool_grad,
    "row_max": lambda a, z: z.max(axis=1),
    "exp2_diff": of_rows(exp2_diff),
    "row_sum": lambda a, x: x.sum(axis=1),
    "divide": of_rows(quotient),
    "causal_spans": lambda a: np.array([causal_span(a, i) for i in range(a["queries"])]),
    "token_spans": lambda a, ids: np.array([spans_of_row(a, row) for row in ids.tolist()]),
    "keep_span": law_keep_span,
    "softmax_grad": lambda a, p, g: p * (g * 2**14 - (p * g).sum(axis=1, keepdims=True)),
    "sub_one_hot": law_sub_one_hot,
    "logit_grad": law_logit_grad,
    "cross_entropy": law_cross_entropy,
    "square_sum": lambda a, x: rs((x * x).sum(), a["shift"]),
    "sum": lambda a, x: x.sum(),
    "momentum": lambda a, v, g: saturate(v + rs(g, a["shift"]) - rs(v * a["decay"], 16), "i32"),
    "sgd_update": lambda a, w, v, rate: saturate(w - rs(v * rate, a["shift"]), "i32"),
    "schedule": lambda a, t: rate_of(a, int(t)),
    "schedule_linear": lambda a, t: rate_on_line(a, int(t)),
    "sign": lambda a, x: clamp(x, -1, 1),
    "look_up": lambda a, x: table_of(a["table"])[place_in(a, x)],
    "capped_square": law_capped_square,
    "clip_factor": lambda a, total: clip_of(a, int(total)),
    "scale_by": lambda a, x, factor: rs(x * factor, a["shift"]),
    "adam_mean": lambda a, m, g: saturate(blend(a, m, g << a["lift"]), "i32"),
    "adam_square": squared_average,
    "adam_direction": law_adam_direction,
    "adam_correction": lambda a, t: correction_of(a, int(t)),
}


# ----------------------------------------------------------------------------------------------
# 8. Executing a step (operators.md; the task's parts: format.md, section 6)
# ----------------------------------------------------------------------------------------------


def execute_node(
    node: dict, types: list[Type], inputs: list[np.ndarray], context: Context
) -> np.ndarray:
    """What a node of a legal graph puts out, of inputs with these types."""
    op, attrs, shape = node["op"], node["attrs"], node["outputs"][0]["shape"]
    if op == "state":
        return context.state[attrs["name"]]
    if op == "gather_samples":
        return context.parts[attrs["part"]][inputs[0]].reshape(shape)
    if op in HASHING or op == "tensor_digest":
        raw = [tensor_bytes(x, t["dtype"]) for x, t in zip(inputs, types, strict=True)]
        value = plain_digest(raw[0]) if op == "tensor_digest" else hash_of(op, attrs, raw)
        return np.frombuffer(value, dtype=np.uint8).astype(np.int64)
    with np.errstate(all="raise"):
        return np.asarray(LAWS[op](attrs, *inputs), dtype=np.int64).reshape(shape)


@dataclass
class StepResult:
    """What a step comes to."""

    state: dict[str, np.ndarray]  # after the step
    record: dict[str, Any]
    outputs: list[np.ndarray]


def execute_step(graph: list[dict], context: Context) -> StepResult:
    """Execute a step of a legal graph: every node, in order."""
    outputs: list[np.ndarray] = []
    state: dict[str, np.ndarray] = {}
    record: dict[str, Any] = {}
    for node in graph:
        sources = [source for source, _ in node["inputs"]]
        types = [graph[source]["outputs"][0] for source in sources]
        inputs = [outputs[source] for source in sources]
        outputs.append(execute_node(node, types, inputs, context))
        if node["op"] == "next_state":
            state[node["attrs"]["name"]] = outputs[-1]
        if node["op"] == "record":
            step, batch, loss, root = (values.tolist() for values in inputs)
            every = node["attrs"]["commit_every"]
            record = decode(make_record(every, step, bytes(batch), loss, bytes(root)))
    return StepResult(state, record, outputs)


def trace_digests(graph: list[dict], outputs: list[np.ndarray]) -> list[bytes]:
    """The leaves of a step's trace: the digest of each node's output."""
    dtypes = [node["outputs"][0]["dtype"] for node in graph]
    pairs = zip(outputs, dtypes, strict=True)
    return [plain_digest(tensor_bytes(output, dtype)) for output, dtype in pairs]


def states_of(graph: list[dict]) -> dict[str, dict]:
    """Attributes of all states, in UTF-8 order of their names."""
    states = [node["attrs"] for node in graph if node["op"] == "state"]
    return {a["name"]: a for a in sorted(states, key=lambda a: a["name"].encode())}


def state_root(graph: list[dict], state: dict[str, np.ndarray]) -> bytes:
    """The root of the state tree."""
    leaves = [
        state_leaf(a, plain_digest(tensor_bytes(state[name], a["dtype"])))
        for name, a in states_of(graph).items()
    ]
    return tree_root(STATE_TREE, leaves)


def row_bytes(data: dict, part: str) -> int:
    """The bytes of x or y in a row of the sample table."""
    return size_of(data[f"{part}_shape"]) * DTYPES[data[f"{part}_dtype"]].itemsize


class TokenWindows:
    """x or y of samples that are windows of tokens, by their indices."""

    def __init__(self, windows: dict, tokens: np.ndarray, first: int):
        self.first, self.stride, self.tokens = first, windows["stride"], tokens
        self.places = np.arange(windows["context"])

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        starts = np.asarray(index)[:, None] * self.stride + self.first
        return self.tokens[starts + self.places].astype(np.uint32).view(np.int32).astype(np.int64)


def split_samples(data: dict, table: bytes) -> dict[str, Any]:
    """x and y of all samples from the sample table, or from the tokens."""
    windows = data.get("windows")
    if windows is not None:
        tokens = np.frombuffer(table, dtype=f"<u{TOKEN_BYTES[windows['dtype']]}")
        firsts = {"x": 0, "y": windows["shift"]}
        return {part: TokenWindows(windows, tokens, first) for part, first in firsts.items()}
    rows = np.frombuffer(table, dtype=np.uint8).reshape(data["samples"], -1)
    x_bytes = row_bytes(data, "x")
    parts = {"x": rows[:, :x_bytes], "y": rows[:, x_bytes:]}
    for part, raw in parts.items():
        values = np.ascontiguousarray(raw).view(DTYPES[data[f"{part}_dtype"]])
        parts[part] = values.reshape([data["samples"], *data[f"{part}_shape"]]).astype(np.int64)
    return parts


def columns_of(proof: dict, shapes: list[list[int]], layout: str) -> int:
    """How many KZG columns tensors of these shapes take (format.md, section 4a).

    For the layout `tiles` a shape is that of the matrix, or of a vector, that the tensor is."""
    if layout == "step":
        return -(-sum(size_of(shape) for shape in shapes) // column_length(proof))
    blocks = 0
    for shape in shapes:
        last = shape[-1] if shape else 1
        blocks += -(-size_of(shape) // last // 128) * -(-last // 128)
    return blocks


def state_columns(proof: dict, graph: list[dict]) -> int:
    """How many columns the state has: all states but the counter."""
    shapes = [a["shape"] for name, a in states_of(graph).items() if name != "step"]
    return columns_of(proof, shapes, proof["circuit"])


def batch_columns(task: dict) -> int:
    """How many columns a batch has: x, then y, as matrices [batch, values of a sample]."""
    sizes = [size_of(task["data"][f"{part}_shape"]) for part in ("x", "y")]
    shapes = [[task["batch"], size] if size > 1 else [task["batch"]] for size in sizes]
    return columns_of(task["proof"], shapes, task["proof"]["circuit"])


# ----------------------------------------------------------------------------------------------
# 9. When a graph is legal, and that of a task (format.md, section 2)
# ----------------------------------------------------------------------------------------------

MAX_NODES = 100_000


def place_of(node: dict) -> str:
    """How a report names a node."""
    return f"node {node['name']} ({node['op']})"


def graph_root(graph: list[dict]) -> bytes:
    """The root of the graph tree."""
    return tree_root(GRAPH_TREE, [encode(node) for node in graph])


def check_nodes(graph: list[dict]) -> None:
    """Rules 1 and 2."""
    require(len(graph) <= MAX_NODES, "graph", "too many nodes")
    names: set[str] = set()
    for node in graph:
        place = place_of(node)
        require(node["name"] != "" and node["name"] not in names, place, "the name")
        names.add(node["name"])
        require(all(output == 0 for _, output in node["inputs"]), place, "not output 0")
        inputs = [graph[source]["outputs"][0] for source, _ in node["inputs"]]
        try:
            derived = derive_type(node["op"], node["attrs"], inputs)
        except Refused as error:
            raise Refused(place, f"{error.where}: {error.why}") from None
        require(node["outputs"] == [derived], place, "the type claimed is not the one derived")


class LegalGraph:
    """The nodes of a graph by what they are for; making one checks rules 3 to 9."""

    def __init__(self, graph: list[dict]):
        self.graph = graph
        self.sample_index = self.only("sample_index")
        self.batch = self.only("batch_digest")
        self.root = self.only("state_root")
        self.record = self.only("record")
        self.check_states()
        self.check_counter()
        self.check_batch()
        self.check_root()
        self.check_softmax()
        self.check_masks()

    def nodes(self, op: str) -> list[int]:
        return [index for index, node in enumerate(self.graph) if node["op"] == op]

    def only(self, op: str) -> int:
        """Rule 3."""
        found = self.nodes(op)
        require(len(found) == 1, "graph", f"{len(found)} nodes {op}")
        return found[0]

    def inputs(self, index: int) -> list[int]:
        return [source for source, _ in self.graph[index]["inputs"]]

    def op(self, index: int) -> str:
        return self.graph[index]["op"]

    def attr(self, index: int, name: str) -> Any:
        return self.graph[index]["attrs"][name]

    def output(self, index: int) -> Type:
        return self.graph[index]["outputs"][0]

    def expect(self, condition: bool, index: int, why: str) -> None:
        """Refuse at the place of a node unless the condition holds."""
        require(condition, place_of(self.graph[index]), why)

    def check_states(self) -> None:
        """Rule 4."""
        before = {self.attr(i, "name"): i for i in self.nodes("state")}
        after = {self.attr(i, "name"): i for i in self.nodes("next_state")}
        counts = len(self.nodes("state")), len(self.nodes("next_state"))
        once = counts == (len(before), len(after))
        require(once and set(before) == set(after), "graph", "names of states")
        self.states = dict(sorted(before.items(), key=lambda item: item[0].encode()))
        self.read_by_next = {name: self.inputs(after[name])[0] for name in self.states}
        for name, index in before.items():  # in the order of nodes
            old, new = self.output(index), self.output(after[name])
            same = all(old[key] == new[key] for key in ("dtype", "shape", "exponent"))
            within = old["lo"] <= new["lo"] and new["hi"] <= old["hi"]
            require(same and within, f"state {name}", "the types before and after")

    def check_counter(self) -> None:
        """Rule 5."""
        require("step" in self.states, "graph", "no state named step")
        self.counter = self.states["step"]
        kind = self.output(self.counter)
        good = (kind["dtype"], kind["shape"], kind["exponent"]) == ("i64", [], 0)
        require(good, "graph", "the state named step is no counter")
        increment = self.read_by_next["step"]
        counts = self.op(increment) == "increment" and self.inputs(increment) == [self.counter]
        self.expect(counts, increment, "not the increment of the counter")
        self.expect(self.inputs(self.record)[0] == increment, self.record, "the step")

    def check_batch(self) -> None:
        """Rule 6."""
        by_counter = self.inputs(self.sample_index) == [self.counter]
        self.expect(by_counter, self.sample_index, "not by the counter")
        gathered: dict[str, int] = {}
        for index in self.nodes("gather_samples"):
            indexed = self.inputs(index) == [self.sample_index]
            self.expect(indexed, index, "not by the sample_index")
            part = self.attr(index, "part")
            self.expect(part not in gathered, index, "gathered twice")
            gathered[part] = index
        self.expect(self.inputs(self.record)[1] == self.batch, self.record, "the batch digest")
        for part, index in zip("xy", self.inputs(self.batch), strict=True):
            digest = self.op(index) == "tensor_digest"
            good = digest and part in gathered and self.inputs(index) == [gathered[part]]
            self.expect(good, index, f"not the digest of {part}")
        self.gathered = gathered

    def check_root(self) -> None:
        """Rule 7."""
        self.expect(self.inputs(self.record)[3] == self.root, self.record, "the state root")
        for index in range(len(self.graph)):
            for source in self.inputs(index):
                read_rightly = source != self.root or index == self.record
                self.expect(source != self.record and read_rightly, index, "what it reads")
        leaves = self.inputs(self.root)
        self.expect(len(leaves) == len(self.states), self.root, "the number of leaves")
        for leaf, (name, index) in zip(leaves, self.states.items(), strict=True):
            is_leaf = self.op(leaf) == "state_leaf"
            same = is_leaf and self.graph[leaf]["attrs"] == self.graph[index]["attrs"]
            self.expect(same, leaf, f"not the leaf of the state {name}")
            digest = self.inputs(leaf)[0]
            read = self.op(digest) == "tensor_digest"
            read = read and self.inputs(digest) == [self.read_by_next[name]]
            self.expect(read, digest, f"not the digest of the state {name}")

    def check_softmax(self) -> None:
        """Rule 8."""
        reducers = dict.fromkeys(("exp2_diff", "cross_entropy"), "row_max")
        reducers |= dict.fromkeys(("divide", "logit_grad"), "row_sum")
        for index in range(len(self.graph)):
            if self.op(index) in reducers:
                matrix, reduced = self.inputs(index)[:2]
                good = self.op(reduced) == reducers[self.op(index)]
                good = good and self.inputs(reduced) == [matrix]
                self.expect(good, index, "the maximum or sum of other rows")

    def check_masks(self) -> None:
        """Rule 9."""
        sites: set[int] = set()
        for index in self.nodes("dropout_mask"):
            self.expect(self.inputs(index) == [self.counter], index, "not by the counter")
            drawn = self.attr(self.sample_index, "seed")
            self.expect(self.attr(index, "seed") == drawn, index, "not by the seed of the batch")
            site = self.attr(index, "site")
            self.expect(site not in sites, index, "a site twice")
            sites.add(site)


def check_graph_of_task(legal: LegalGraph, task: dict) -> None:
    """The rules of "When a graph is that of a task"."""
    seed = int.from_bytes(legal.attr(legal.sample_index, "seed"), "little")
    require(seed == task["seed"], "task.seed", "not that of the graph")
    batch = legal.attr(legal.sample_index, "batch")
    require(batch == task["batch"], "task.batch", "not that of the graph")
    samples = legal.attr(legal.sample_index, "samples")
    require(samples == task["data"]["samples"], "task.data.samples", "not that of the graph")
    every = legal.attr(legal.record, "commit_every")
    require(every == task["commit_every"], "task.commit_every", "not that of the graph")
    if logs_kzg(task):
        initial = task["proof"]["initial"]
        good = len(initial) == state_columns(task["proof"], legal.graph)
        good = good and all(is_point(point) for point in initial)
        require(good, "task.proof.initial", "not commitments to the state")
    for part, gather in legal.gathered.items():  # in the order of nodes
        for name in ("dtype", "shape", "exponent"):
            same = legal.attr(gather, name) == task["data"][f"{part}_{name}"]
            require(same, f"task.data.{part}", f"{name} is not that of the graph")
    rescales = {node["name"]: node for node in legal.graph if node["op"] == "rescale"}
    for name, exponent in task["exponents"].items():
        good = name in rescales and rescales[name]["outputs"][0]["exponent"] == exponent
        require(good, f"task.exponents.{name}", "not that of a rescale node")


# ----------------------------------------------------------------------------------------------
# 10. The audit (auditing.md)
# ----------------------------------------------------------------------------------------------

LOG_HEADER, MAX_RECORD = b"vtrain run log\0\1", 256
KZG_HEADER, MAX_KZG_RECORD = b"vtrain kzg log\0\2", 1_622_272
MAX_FILE = 4 * 2**30  # what this auditor takes of a file
MAX_STEP = 2**32  # and how many bytes a step may have: numbers of 8 bytes
LISTED_FAILURES = 5
CHECKPOINT_NAME = re.compile(r"checkpoints/[1-9]?\d{12}\.safetensors", re.ASCII)
SAMPLES = "data/samples.bin"
EXIT_CODES = {"verified": 0, "inconclusive": 3, "conditional": 4, "fraud": 10}


NEEDED = {
    "task": "the task is not known",
    "claim": "there is no valid claim to hold it against",
    "manifest": "there is no manifest to go by",
    "graph": "the graph is not known",
    "legal": "there is no legal graph of this task",
    "samples": "the samples are not known",
    "leaves": "there is no log that the solver signed",
    "records": "the signed log is not one of this task",
    "kzg_root": "the claim has no root of it",
    "kzg_leaves": "there is no KZG log that the solver signed",
    "segments": "the log commits to no state",
}


class Failed(Exception):
    """A condition of a check that does not hold; no place means that of the check."""

    def __init__(self, why: str, fault: str = "nobody", where: str = ""):
        super().__init__(why)
        self.why = why
        self.fault = fault
        self.where = where


def hold(condition: bool, why: str, fault: str = "nobody", where: str = "") -> None:
    """Fail the check unless the condition holds."""
    if not condition:
        raise Failed(why, fault, where)


@dataclass
class Check:
    """What became of a check: a `check-result` of format.cddl."""

    name: str
    status: str
    where: str
    detail: str = ""
    fault: str = ""


@dataclass
class Question:
    """What an auditor is asked."""

    run: Path
    segments: int | None  # None for all
    seed: bytes | None = None
    pin: bytes | dict | None = None  # the digest of a claim, or a signed claim
    solver: bytes | None = None
    task_id: bytes | None = None
    data: str | None = None  # named as it was given
    srs: str | None = None
    hiding: str | None = None


@dataclass
class ProofQuestion(Question):
    """What an auditor by proofs is asked besides: `segments` is how many steps to draw."""

    private: bool = False
    steps: list[int] | None = None  # named, in place of a draw
    batches: dict | None = None  # what the data's owner signed
    owner: bytes = b""
    first: tuple[bytes, int] | None = None  # of tiles: the draw of steps, and how many
    tiles_pin: bytes | dict | None = None  # of tiles: what was signed, as it was kept


@dataclass
class AlgebraicQuestion(Question):
    """What an auditor by signed values is asked besides: `segments` is how many intervals."""

    traces: Path = Path()
    steps: list[int] | None = None  # named, in place of a draw
    traces_pin: bytes | dict | None = None
    challenge: bytes | None = None  # the randomness of vectors and rows, if it is handed in
    rows: int | None = None  # of the outputs of nodes with a tensor of more than so many bytes
    rows_above: int = 64 * 2**20


def read_regular(folder: Path, name: str, size: int | None = None) -> bytes:
    """The bytes of a regular file below a folder, of just this size if one is given; a link, be it
    the file or a folder on the way, is refused (format.md, "Writing and reading")."""
    path = folder
    try:
        for part in name.split("/"):
            path = path / part
            hold(not path.is_symlink(), f"{name} is a link")
        status = path.lstat()
        hold(stat.S_ISREG(status.st_mode), f"{name} is not a regular file")
        hold(size is None or status.st_size == size, f"{name} is not of {size} bytes")
        hold(status.st_size <= MAX_FILE, f"{name} is larger than this auditor takes")
        data = path.read_bytes()
    except (OSError, ValueError):
        raise Failed(f"{name} cannot be read") from None
    hold(len(data) == status.st_size, f"{name} changed while it was read")
    return data


def read_frames(data: bytes, header: bytes, most: int) -> list[bytes]:
    """The records of a log file (format.md, section 6)."""
    hold(data[:16] == header, "does not begin with its 16 bytes")
    frames, at = [], 16
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        hold(at + 4 <= len(data) and length <= most, "a frame's length is cut off or too large")
        frames.append(data[at + 4 : at + 4 + length])
        hold(len(frames[-1]) == length, "a frame is cut off")
        at += 4 + length
    return frames


def checkpoint_header(states: dict[str, dict]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """How a checkpoint begins, and where the bytes of each state are after that (format.md,
    section 6, "A checkpoint, byte for byte")."""
    offsets: dict[str, tuple[int, int]] = {}
    header: dict[str, dict] = {}
    end = 0
    by_size = sorted(states, key=lambda name: -DTYPES[states[name]["dtype"]].itemsize)
    for name in by_size:  # a stable sort: of one size, in UTF-8 order still
        a = states[name]
        begin, end = end, end + bytes_of(a)
        offsets[name] = begin, end
        entry = {"dtype": a["dtype"].upper(), "shape": a["shape"], "data_offsets": [begin, end]}
        header[name] = entry
    words = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    words += b" " * (-len(words) % 8)
    return len(words).to_bytes(8, "little") + words, offsets


def shorten(failures: list[Failed], place: str) -> list[Failed]:
    """The first failures, after them what has another fault than nobody, and one for the rest."""
    listed, rest = failures[:LISTED_FAILURES], failures[LISTED_FAILURES:]
    listed += [failure for failure in rest if failure.fault != "nobody"]
    return listed + [Failed(f"{len(failures)} in all", where=place)] * bool(rest)


class Audit:
    """An audit of a run: makes the checks in their order and keeps what they establish."""

    def __init__(self, question: Question):
        self.question = question
        self.run = question.run
        self.checks: list[Check] = []
        self.replayed: list[tuple[int, int]] = []
        self.randomness: bytes | None = None  # of the draw, where there was one
        # what checks establish; None where they did not
        self.claim: dict | None = None
        self.task: dict | None = None
        self.manifest: dict | None = None
        self.graph: list[dict] | None = None
        self.legal: LegalGraph | None = None
        self.samples: bytes | None = None
        self.leaves: list[bytes] | None = None
        self.records: list[dict] | None = None
        self.kzg_leaves: list[bytes] | None = None
        self.kzg_records: list[dict] | None = None
        self.checkpoints: dict[int, dict[str, np.ndarray]] = {}
        # to hold KZG records against: what commits, what is known of keys, how many records were
        # compared, and the places of what was not
        self.commitments: Commitments | None = None
        self.hiding: dict = {"states": b"", "batches": b"", "keys": []}
        self.compared = 0
        self.hidden: list[str] = []

    # --- making checks

    def check(
        self, name: str, place: str, needs: str, conditions: Callable[[], list[Failed] | None]
    ) -> None:
        """Make a check: it is not done where something it needs was not established."""
        for word in needs.split():
            if not self.knows(word):
                self.checks.append(Check(name, "not_done", place, NEEDED[word]))
                return
        try:
            failures = conditions() or []
        except Failed as found:
            failures = [found]
        for failure in failures:
            where = failure.where or place
            self.checks.append(Check(name, "failed", where, failure.why, failure.fault))
        if not failures:
            self.checks.append(Check(name, "passed", place))

    def read_structure(self, file: str, rule: Rule, name: str) -> Any:
        """A file of the run that is the canonical encoding of a structure."""
        try:
            return read(rule, read_regular(self.run, file), name)
        except Refused as error:
            raise Failed(str(error)) from None

    def audit(self) -> None:
        """All checks, in their order."""
        claim, task = self.run / "claim.cbor", self.run / "task.cbor"
        if not os.path.lexists(claim) and os.path.lexists(task):
            self.checks.append(Check("claim", "not_done", "claim.cbor", "the run is unfinished"))
            if self.question.segments != 0:
                kinds = {ProofQuestion: "proofs", AlgebraicQuestion: "algebraic"}
                name = kinds.get(type(self.question), "replay")
                self.checks.append(Check(name, "not_done", "", "the run is unfinished"))
            return
        self.check_structure()
        if self.task and logs_kzg(self.task) and self.question.srs is not None:
            self.prepare_kzg()
        before = len(self.checks)
        if self.question.segments != 0:
            self.replay()
        if all(check.name != "kzg" for check in self.checks):
            if self.hidden:
                why = "a key is not known, or not the one in the log"
                self.checks.insert(before, Check("kzg", "not_done", self.hidden[0], why))
            elif self.compared:
                self.checks.insert(before, Check("kzg", "passed", ""))

    def check_structure(self) -> None:
        """The checks 1 to 16."""
        self.check("claim", "claim.cbor", "", self.check_claim)
        self.check("task", "task.cbor", "", self.check_task)
        self.check("complete", "claim.cbor", "task claim", self.check_complete)
        self.check("manifest", "manifest.json", "", self.check_manifest)
        self.check("index", "manifest.json", "claim manifest", self.check_index)
        self.check("graph", "graph.cbor", "task", self.check_graph)
        self.check("legality", "graph.cbor", "graph", self.check_legality)
        self.check("files", "", "manifest", self.check_files)
        self.check("model", "model.onnx", "task", self.check_model)
        self.check("samples", self.question.data or SAMPLES, "task", self.check_samples)
        self.check("log", "log.bin", "task claim", self.check_log)
        self.check("records", "log.bin", "legal leaves", self.check_records)
        self.check("batches", "log.bin", "legal leaves records samples", self.check_batches)
        if self.task and logs_kzg(self.task):
            self.check("kzg_log", "kzg.bin", "legal claim kzg_root", self.check_kzg_log)
            self.check("kzg_records", "kzg.bin", "legal claim kzg_leaves", self.check_kzg_records)
        needs = "legal leaves records segments"
        self.check("checkpoints", "checkpoints", needs, self.check_checkpoints)

    def knows(self, word: str) -> bool:
        """Was this established?"""
        if word == "kzg_root":
            return self.claim is not None and "kzg_root" in self.claim
        if word == "segments":
            return self.records is not None and self.last_root() > 0
        return getattr(self, word) is not None

    # --- claim, task, manifest

    def check_claim(self) -> None:
        """1. `claim`"""
        signed = self.read_structure("claim.cbor", SIGNED_CLAIM, "claim")
        claim = signed["claim"]
        digest = claim_digest(claim)
        holds = signature_holds(claim["solver"], digest, signed["signature"])
        hold(holds, "the signature does not hold")
        asked = self.question.solver
        hold(asked is None or claim["solver"] == asked, "signed by another solver")
        pin = self.question.pin
        if isinstance(pin, dict):
            contradicts = self.contradict(pin["claim"], claim)
            hold(not contradicts, "contradicts the claim that was kept", "solver")
            pin = claim_digest(pin["claim"])
        hold(pin is None or digest == pin, "not the claim that was pinned")
        self.claim = claim

    def contradict(self, kept: dict, claim: dict) -> bool:
        """Do a claim that was kept and this one contradict each other?  ("A kept claim".)"""
        same = all(kept[name] == claim[name] for name in ("solver", "task_id", "run_id"))
        size = kept["log_size"]
        if not same or kept == claim or size > claim["log_size"]:
            return False
        if size == claim["log_size"]:
            return True
        try:
            if tree_root(RUN_LOG, self.signed_log(claim)[:size]) != kept["log_root"]:
                return True
            task = self.read_structure("task.cbor", check_task, "task")
            if task_id_of(task) != claim["task_id"] or not logs_kzg(task):
                return False
            first = self.signed_kzg_log(claim, task)[: size // task["proof"]["every"]]
            return tree_root(KZG_LOG, first) != kept.get("kzg_root")
        except Failed:
            return False

    def check_task(self) -> None:
        """2. `task`"""
        task = self.read_structure("task.cbor", check_task, "task")
        task_id = task_id_of(task)
        same = self.claim is None or self.claim["task_id"] == task_id
        hold(same, "the claim is about another task")
        asked = self.question.task_id
        hold(asked is None or task_id == asked, "not the task asked for")
        self.task = task

    def check_complete(self) -> None:
        """3. `complete`"""
        claim, task = self.claim, self.task
        rooted = ("kzg_root" in claim) == logs_kzg(task)
        hold(rooted, "has a root where it has no KZG log, or none", "solver", "claim.kzg_root")
        size = claim["log_size"]
        hold(size <= task["steps"], "more steps than the task has", "solver", "claim.log_size")
        place = "claim.cbor: claim.log_size"
        hold(size % task["commit_every"] == 0, "no state root is due there", where=place)
        whole = self.question.task_id is None or size == task["steps"]
        hold(whole, "not all steps of the task", where=place)

    def check_manifest(self) -> None:
        """4. `manifest`"""
        try:
            self.manifest = read_manifest(read_regular(self.run, "manifest.json"))
        except Refused as error:
            raise Failed(str(error)) from None

    def check_index(self) -> None:
        """5. `index`"""
        for name in ("run_id", "task_id"):
            same = self.manifest[name] == self.claim[name].hex()
            hold(same, "not the claim's", where=f"manifest.json: manifest.{name}")
        same = self.manifest["steps"] == self.claim["log_size"]
        hold(same, "not the claim's", where="manifest.json: manifest.steps")

    # --- graph and files

    def check_graph(self) -> None:
        """6. `graph`"""
        graph = self.read_structure("graph.cbor", check_graph, "graph")
        hold(graph_root(graph) == self.task["graph_root"], "not the graph of the task")
        self.graph = graph

    def check_legality(self) -> None:
        """7. `legality`"""
        try:
            check_nodes(self.graph)
            legal = LegalGraph(self.graph)
            check_graph_of_task(legal, self.task)
        except Refused as error:
            raise Failed(error.why, "task", error.where) from None
        numbers = sum(size_of(node["outputs"][0]["shape"]) for node in self.graph)
        hold(8 * numbers <= MAX_STEP, "a step is larger than this auditor takes")
        self.legal = legal

    def samples_size(self) -> int:
        """The bytes of the task's sample table."""
        data = self.task["data"]
        if "windows" in data:
            return data["windows"]["tokens"] * TOKEN_BYTES[data["windows"]["dtype"]]
        return data["samples"] * (row_bytes(data, "x") + row_bytes(data, "y"))

    def checkpoint_size(self) -> int:
        """The bytes of a checkpoint of the legal graph."""
        header, offsets = checkpoint_header(states_of(self.graph))
        return len(header) + max(end for _, end in offsets.values())

    def check_files(self) -> list[Failed]:
        """8. `files`"""
        files = self.manifest["files"]
        required = {"task.cbor", "graph.cbor", "model.onnx", "log.bin"}
        if self.task and logs_kzg(self.task):
            required.add("kzg.bin")
        missing = sorted(required - set(files))
        failures = [Failed("the manifest does not list it", where=name) for name in missing]
        for name in sorted(files):
            try:
                self.check_file(name, files[name], required)
            except Failed as failure:
                failures.append(Failed(failure.why, where=failure.where or name))
        return shorten(failures, "manifest.json")

    def check_file(self, name: str, listed: dict, required: set[str]) -> None:
        """One file that the manifest lists."""
        size = None
        if name == SAMPLES:
            if self.task is None or self.question.data is not None:
                return
            size = self.samples_size()
        elif CHECKPOINT_NAME.fullmatch(name):
            if self.legal is None:
                return
            size = self.checkpoint_size()
        elif name not in required:
            raise Failed(f"lists a file that no run has: {name}", where="manifest.json")
        hold(size in (None, listed["size"]), "listed with another size than it has to have")
        data = read_regular(self.run, name, listed["size"])
        hold(plain_digest(data).hex() == listed["blake3"], "not the BLAKE3 that is listed")

    def check_model(self) -> None:
        """9. `model`"""
        digest = plain_digest(read_regular(self.run, "model.onnx"))
        hold(digest == self.task["model_digest"], "not the model of the task")

    def check_samples(self) -> None:
        """10. `samples`"""
        own = self.question.data  # it may be reached by links
        folder, name = os.path.split(os.path.realpath(own)) if own else (self.run, SAMPLES)
        table = read_regular(Path(folder), name, self.samples_size())
        if "windows" in self.task["data"]:
            root = plain_digest(table)
        else:
            length = len(table) // self.task["data"]["samples"]
            rows = [table[i : i + length] for i in range(0, len(table), length)]
            root = tree_root(SAMPLES_TREE, rows)
        same = root == self.task["data"]["root"]
        hold(same, "not the samples of the task")
        self.samples = table

    # --- logs

    def signed_log(self, claim: dict) -> list[bytes]:
        """The records of log.bin, if they are those that a claim signs: 11. `log`"""
        leaves = read_frames(read_regular(self.run, "log.bin"), LOG_HEADER, MAX_RECORD)
        hold(len(leaves) == claim["log_size"], "not as many records as claimed")
        hold(tree_root(RUN_LOG, leaves) == claim["log_root"], "not the log that was signed")
        return leaves

    def signed_kzg_log(self, claim: dict, task: dict) -> list[bytes]:
        """The records of kzg.bin, if they are those that a claim signs: 14. `kzg_log`"""
        leaves = read_frames(read_regular(self.run, "kzg.bin"), KZG_HEADER, MAX_KZG_RECORD)
        count = claim["log_size"] // task["proof"]["every"]
        hold(len(leaves) == count, "not as many records as steps that are logged")
        hold(tree_root(KZG_LOG, leaves) == claim.get("kzg_root"), "not the log that was signed")
        return leaves

    def check_log(self) -> None:
        self.leaves = self.signed_log(self.claim)

    def check_kzg_log(self) -> None:
        self.kzg_leaves = self.signed_kzg_log(self.claim, self.task)

    def read_leaves(self, rule: Rule, leaves: list[bytes], every: int) -> Iterator[tuple]:
        """The place and the value of each record of a log, which is of every so many steps."""
        for number, leaf in enumerate(leaves, 1):
            place = f"step {number * every}"
            try:
                record = read(rule, leaf, "record")
            except Refused as error:
                raise Failed(str(error), "solver", place) from None
            same = record["step"] == number * every
            hold(same, "the record is of another step", "solver", place)
            yield place, record

    def check_records(self) -> None:
        """12. `records`"""
        records = []
        for place, record in self.read_leaves(RECORD, self.leaves, 1):
            due = record["step"] % self.task["commit_every"] == 0
            right = (record["state_root"] != b"") == due
            hold(right, "a state root too many or too few", "solver", place)
            records.append(record)
        self.records = records

    def check_batches(self) -> None:
        """13. `batches`"""
        self.check_batches_of(range(1, len(self.records) + 1))

    def check_batches_of(self, steps: Iterable[int]) -> None:
        """The batches of these steps."""
        task, data = self.task, self.task["data"]
        parts = split_samples(data, self.samples)
        for step in steps:
            record = self.records[step - 1]
            rows = batch_indices(task["seed"], data["samples"], task["batch"], step - 1)
            digest = batch_digest(
                *(tensor_bytes(parts[part][rows], data[f"{part}_dtype"]) for part in ("x", "y"))
            )
            same = digest == record["batch_digest"]
            hold(same, "not the samples that seed and step dictate", "solver", f"step {step}")

    def check_kzg_records(self) -> None:
        """15. `kzg_records`"""
        proof = self.task["proof"]
        in_state, in_batch = state_columns(proof, self.graph), batch_columns(self.task)
        counts = {"before": in_state, "batch": in_batch, "after": in_state}
        records: list[dict] = []
        for place, record in self.read_leaves(KZG_RECORD, self.kzg_leaves, proof["every"]):
            for name, count in counts.items():
                good = len(record[name]) == count and all(map(is_point, record[name]))
                hold(good, "not one point for each column", "solver", f"{place}: {name}")
            begins = record["before"], record["before_key"]
            if record["step"] == 1:
                same = begins == (proof["initial"], proof["initial_key"])
            else:
                ended = (records[-1]["after"], records[-1]["after_key"]) if records else None
                same = proof["every"] > 1 or begins == ended
            hold(same, "does not go on from the state before", "solver", f"{place}: before")
            records.append(record)
        self.kzg_records = records

    # --- checkpoints

    def last_root(self) -> int:
        """S: the last step claimed that has a state root."""
        return self.claim["log_size"] - self.claim["log_size"] % self.task["commit_every"]

    def logged_root(self, step: int) -> bytes:
        """The state root after a step, as the log or the task has it."""
        return self.records[step - 1]["state_root"] if step else self.task["initial_state_root"]

    def check_checkpoints(self) -> list[Failed]:
        """16. `checkpoints`"""
        last = self.last_root()
        failures = []
        for step in [*range(0, last, self.task["checkpoint_every"]), last]:
            name = f"checkpoints/{step:012d}.safetensors"
            try:
                self.checkpoints[step] = self.read_checkpoint(name, step)
            except Failed as failure:
                failures.append(Failed(failure.why, failure.fault, failure.where or name))
        return shorten(failures, "checkpoints")

    def read_checkpoint(self, name: str, step: int) -> dict[str, np.ndarray]:
        """The state of a checkpoint that passes its check."""
        states = states_of(self.graph)
        header, offsets = checkpoint_header(states)
        data = read_regular(self.run, name, self.checkpoint_size())
        hold(data.startswith(header), "not the header that the graph gives")
        state = {}
        for state_name, (begin, end) in offsets.items():
            a = states[state_name]
            raw = data[len(header) + begin : len(header) + end]
            values = np.frombuffer(raw, dtype=DTYPES[a["dtype"]])
            state[state_name] = values.astype(np.int64).reshape(a["shape"])
        same = state_root(self.graph, state) == self.logged_root(step)
        hold(same, "not the state that was committed to")
        self.check_state(name, step, state)
        return state

    def check_state(self, name: str, step: int, state: dict[str, np.ndarray]) -> None:
        """Conditions 3 and 4 of `checkpoints`."""
        fault = "solver" if step else "task"
        for state_name, index in self.legal.states.items():
            kind, values = self.legal.output(index), state[state_name]
            within = kind["lo"] <= int(values.min()) and int(values.max()) <= kind["hi"]
            hold(within, "an element is out of range", fault, f"{name}: state.{state_name}")
        hold(int(state["step"]) == step, "the counter", fault, f"{name}: state.step")

    # --- KZG commitments (auditing.md, "The replay")

    def prepare_kzg(self) -> None:
        """17. `kzg`, as far as no step is needed."""
        words = ("task", "legal", "samples", "records", "segments", "kzg_records")
        if not all(map(self.knows, words)):
            self.checks.append(Check("kzg", "not_done", "", "nothing can be compared"))
            return
        try:
            commitments = Commitments(Path(self.question.srs).read_bytes(), self.task["proof"])
            self.hiding = self.read_hiding()
        except (OSError, Refused, Failed) as error:
            self.checks.append(Check("kzg", "not_done", "", str(error)))
            return
        start, proof = self.checkpoints.get(0), self.task["proof"]
        if start is not None:
            key = self.state_key(0, start)
            found = commitments.commit_all(self.committed(start), key), key_id(key)
            if found != (proof["initial"], proof["initial_key"]):
                why = "other commitments to the initial state, or another key"
                self.checks.append(Check("kzg", "failed", "task.proof.initial", why, "task"))
                return
        self.commitments = commitments

    def read_hiding(self) -> dict:
        """What is known of keys: the file that was given, or the solver's own."""
        if self.question.hiding is not None:
            return read(check_hiding, Path(self.question.hiding).read_bytes(), "hiding")
        if not os.path.lexists(self.run / "hiding.key"):
            return self.hiding
        return read(check_hiding, read_regular(self.run, "hiding.key"), "hiding")

    def find_key(self, kind: str, index: int, digest: bytes) -> bytes:
        """The key of a state or batch; no bytes where it is not known."""
        secret = self.hiding["states" if kind == "state" else "batches"]
        if secret:
            return hiding_key(secret, task_id_of(self.task), kind, index, digest)
        told = {(item["kind"], item["index"]): item["key"] for item in self.hiding["keys"]}
        return told.get((kind, index), b"")

    def state_key(self, step: int, state: dict[str, np.ndarray]) -> bytes:
        """The key of the state after so many steps."""
        root = state_root(self.graph, state)
        if step > 0:
            return self.find_key("state", step, root)
        states = states_of(self.graph)
        names = [name for name in states if name != "step"]
        data = b"".join(tensor_bytes(state[name], states[name]["dtype"]) for name in names)
        return own_key(self.task["proof"], "state", 0, root, data)

    def committed(self, state: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The tensors of a state that are committed to."""
        return [state[name] for name in states_of(self.graph) if name != "step"]

    def gathered(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        """x, then y, of a step's batch, as matrices [batch, values of a sample]."""
        found = {
            node["attrs"]["part"]: outputs[index]
            for index, node in enumerate(self.graph)
            if node["op"] == "gather_samples"
        }
        parts = [found[part].reshape(self.task["batch"], -1) for part in ("x", "y")]
        return [part.ravel() if part.shape[1] == 1 else part for part in parts]

    def list_parts(
        self, step: int, before: dict[str, np.ndarray], result: StepResult
    ) -> list[tuple[str, bytes, list[np.ndarray]]]:
        """What a step's KZG record commits to: each part, its key, and its tensors."""
        of_batch = self.find_key("batch", step, result.record["batch_digest"])
        return [
            ("before", self.state_key(step - 1, before), self.committed(before)),
            ("batch", of_batch, self.gathered(result.outputs)),
            ("after", self.state_key(step, result.state), self.committed(result.state)),
        ]

    def compare_kzg(
        self, step: int, agreed: int, before: dict[str, np.ndarray], result: StepResult
    ) -> Failed | None:
        """What of a step's KZG record is not as logged, where it has one."""
        if self.commitments is None or step % self.task["proof"]["every"]:
            return None
        every = self.task["proof"]["every"]
        record, hidden = self.kzg_records[step // every - 1], len(self.hidden)
        place = f"step {step}"
        since = place if agreed >= step - 1 else f"steps {agreed + 1} to {step}"
        for part, key, tensors in self.list_parts(step, before, result):
            if not key or key_id(key) != record[f"{part}_key"]:
                self.hidden.append(f"{place}: {part}")
            elif self.commitments.commit_all(tensors, key) != record[part]:
                where = place if part == "batch" else since
                return Failed(f"other commitments: {part}", "solver", where)
        self.compared += len(self.hidden) == hidden
        return None

    # --- the replay (auditing.md, "The replay")

    def replay(self) -> None:
        """18. `replay`"""
        if not all(map(self.knows, ("task", "legal", "samples", "records", "segments"))):
            self.checks.append(Check("replay", "not_done", "", "nothing can be done again"))
            return
        parts = split_samples(self.task["data"], self.samples)
        undone = 0
        state: dict[str, np.ndarray] = {}
        at = -1  # the step after which `state` stands
        for first, last in self.chosen_segments():
            start = self.find_start(first, at)
            if start > at:
                at, state = start, self.checkpoints[start]
            if start < 0:
                undone += 1
                place = f"steps {first} to {last}"
                self.checks.append(Check("replay", "not_done", place, "no state to begin with"))
                continue
            begun, agreed = at + 1, at
            for step in range(at + 1, last + 1):
                before, result = state, execute_step(self.graph, Context(state, parts))
                state, at = result.state, step
                name, failure = "replay", self.compare(step, agreed, result.record)
                if failure is None:
                    agreed = step if self.records[step - 1]["state_root"] else agreed
                    name, failure = "kzg", self.compare_kzg(step, agreed, before, result)
                if failure is not None:
                    self.replayed.append((begun, step))
                    where, why, fault = failure.where, failure.why, failure.fault
                    self.checks.append(Check(name, "failed", where, why, fault))
                    return
            self.replayed.append((begun, last))
        if not undone:
            self.checks.append(Check("replay", "passed", ""))

    def find_start(self, first: int, at: int) -> int:
        """The step after which the replay of a segment begins, or goes on; -1 where it cannot."""
        return max((step for step in self.checkpoints if step < first), default=at)

    def compare(self, step: int, agreed: int, record: dict) -> Failed | None:
        """What of a step is not as logged; `agreed` is the last step whose state root was."""
        logged = self.records[step - 1]
        place = f"step {step}"
        if record["batch_digest"] != logged["batch_digest"]:
            return Failed("the batch digest is another", "nobody", place)
        if agreed < step - 1:
            place = f"steps {agreed + 1} to {step}"
        for name in ("loss", "state_root"):
            if record[name] != logged[name]:
                return Failed(f"the {name} is another", "solver", place)
        return None

    def chosen_segments(self) -> list[tuple[int, int]]:
        """First and last step of the segments to replay, in rising order."""
        last, length = self.last_root(), self.task["checkpoint_every"]
        count = -(-last // length)
        chosen = list(range(count))
        asked = self.question.segments
        if asked is not None and asked < count:
            self.randomness = self.question.seed or os.urandom(32)
            digest = claim_digest(self.claim)
            material = draw_material(digest, "replay segments", count, self.randomness)
            chosen = sorted(draw(material, count, asked))
        return [(i * length + 1, min((i + 1) * length, last)) for i in chosen]

    # --- verdict and report (auditing.md, "Verdicts"; format.cddl, `report`)

    def is_predictable(self) -> bool:
        """Was the draw made with randomness that was handed in, and no claim pinned?"""
        handed_in = self.randomness is not None and self.question.seed is not None
        return handed_in and self.question.pin is None

    def verdict(self) -> str:
        """The verdict that follows from all checks."""
        if any(check.fault == "solver" for check in self.checks):
            return "fraud"
        if any(check.status != "passed" for check in self.checks):
            return "inconclusive"
        return "conditional" if any(self.doubts()) else "verified"

    def doubts(self) -> list[dict[str, Any]]:
        """The assumptions that nobody accepted."""
        detail = "the solver could not foresee the sample"
        found = {"code": "predictable-sample", "accepted": False, "detail": detail}
        return [found] if self.is_predictable() else []

    def reason(self) -> Check | None:
        """The check that the verdict rests on."""
        for fault in ("solver", "task", "nobody"):
            for check in self.checks:
                if check.fault == fault:
                    return check
        return next((check for check in self.checks if check.status == "not_done"), None)

    def report(self) -> dict[str, Any]:
        """A `report` of format.cddl; it leaves out the chances of detection."""
        verdict, reason, claim = self.verdict(), self.reason(), self.claim or {}
        made: dict[str, Any] | None = None
        if self.randomness is not None:
            source = "handed in" if self.question.seed else "drawn now"
            made = {"value": self.randomness.hex(), "source": source}
            made["predictable"] = self.is_predictable()

        def told(name: str) -> str:
            return claim[name].hex() if claim else ""

        def of_status(status: str) -> list[str]:
            return [check.name for check in self.checks if check.status == status]

        return {
            "verdict": verdict,
            "exit_code": EXIT_CODES[verdict],
            "claim": claim_digest(claim).hex() if claim else "",
            **{name: told(name) for name in ("task_id", "run_id", "solver", "log_root")},
            "steps": claim.get("log_size", 0),
            "root": self.records[-1]["state_root"].hex() if self.records else "",
            "engine": "plain_verifier",
            "reason": vars(reason) if reason else None,
            "assumptions": self.doubts(),
            "checks": [vars(check) for check in self.checks],
            "replayed": [{"first": first, "last": last} for first, last in self.replayed],
            "randomness": made,
            "traced": None,
            "detection": [],
            "strength": {"checked": of_status("passed"), "unchecked": of_status("not_done")},
        }


# --- an audit by proofs of whole steps (auditing.md, "Proofs of whole steps")

PUBLIC_CHECKS = (
    *("claim", "task", "complete", "graph", "legality", "log", "records"),
    *("kzg_log", "kzg_records"),
)
STEP_CIRCUITS = ("step", "step-clamps")
LEAST_STEP_K = 17
EZKL = "23.0.5"
CEREMONY = {  # SHA-256 of the SRS files of the ceremony, k = 1 to 26 (format.md, section 4a)
    "cafb2aa72c200ddc4e28aacabb8066e829207e2484b8d17059a566232f8a297b",
    "8194ec51da5d332d2e17283ade34920644774452c2fadf33742e8c739e275d8e",
    "0729e815bce2ac4dfad7819982c6479c3b22c32b71f64dca05e8fdd90e8535ef",
    "2c0785da20217fcafd3b12cc363a95eb2529037cc8a9bddf8fb15025cbc8cdc9",
    "5b950e3b76e7a9923d69f6d6585ce6b5f9458e5ec57a71c9de5005d32d544692",
    "85030b2924111fc60acaf4fb8a7bad89531fbe0271aeab0c21e545f71eee273d",
    "e65f95150519fe01c2bedf8f832f5249822ef84c9c017307419e10374ff9eeb1",
    "446092fd1d6030e5bb2f2a8368267d5ed0fbdb6a766f6c5e4a4841827ad3106f",
    "493d088951882ad81af11e08c791a38a37c0ffff14578cf2c7fb9b7bca654d8b",
    "9705d450e5dfd06adb673705f7bc34418ec86339203198beceb2ae7f1ffefedb",
    "257fa566ed9bc0767d3e63e92b5e966829fa3347d320a32055dc31ee7d33f8a4",
    "28b151069f41abc121baa6d2eaa8f9e4c4d8326ddbefee2bd9c0776b80ac6fad",
    "d5d94bb25bdc024f649213593027d861042ee807cafd94b49b54f1663f8f267d",
    "c09129f064c08ecb07ea3689a2247dcc177de6837e7d2f5f946e30453abbccef",
    "90807800a1c3b248a452e1732c45ee5099f38b737356f5542c0584ec9c3ebb45",
    "2a1a494630e71bc026dd5c0eab4c1b9a5dbc656228c1f0d48f5dbd3909b161d3",
    "41509f380362a8d14401c5ae92073154922fe23e45459ce6f696f58607655db7",
    "d0148475717a2ba269784a178cb0ab617bc77f16c58d4a3cbdfe785b591c7034",
    "d1a1655b4366a766d1578beb257849a92bf91cb1358c1a2c37ab180c5d3a204d",
    "54ef75911da76d7a6b7ea341998aaf66cb06c679c53e0a88a4fe070dd3add963",
    "486e044cf98704e07f41137d2b89698dc03d1fbf34d13b60902fea19a6013b4b",
    "1ee9b4396db3e4e2516ac5016626ab6ba967f091d5d23afbdb7df122a0bb9d0c",
    "748e48b9b6d06f9c82d26bf551d0af43ee2e801e4be56d7ccb20312e267fd1d6",
    "f94fa4afa2f5147680f907d4dd96a8826206c26bd3328cd379feaed614b234de",
    "dec49a69893fbcd66cd06296b2d936a6aceb431c130b2e52675fe4274b504f57",
    "b198a51d48b88181508d8e4ea9dea39db285e4585663b29b7e4ded0c22a94875",
}
LABEL = text(0, 256)
BUNDLE = structure(
    {"format": word(1), "kind": word("step", "tile"), "step": STEP_NUMBER, "k": integer(1, 28)}
    | each("task_id run_id claim circuit key srs", HASH)
    | each("name circuit_name ezkl", LABEL)
    | {"index": integer(0, 2**40), "insecure": integer(0, 1)}
    | {"parameters": mapping(LABEL, array(I64, 2**20), 1024)}
    | {"proof": byte_string(64, most=2**20)}
)
_BATCHES_BODY = structure(
    each("data_root srs owner", HASH)
    | {"seed": U64, "batch": integer(1, 2**20), "steps": STEP_NUMBER, "every": STEP_COUNT}
    | {"circuit": word("step", "tiles"), "k": integer(1, 28), "blinding": integer(0, 1024)}
    | {"commitments": array(byte_string(64, most=524288), 2**20), "windows": _TOKEN_WINDOWS},
    optional=["windows"],
)
_SIGNED_BATCHES = structure({"batches": _BATCHES_BODY, "signature": SIGNATURE})


def check_signed_batches(value: Any, where: str) -> None:
    """The structure `signed-batches`."""
    _SIGNED_BATCHES(value, where)
    body = value["batches"]
    whole = all(len(found) % 64 == 0 for found in body["commitments"])
    place = f"{where}.batches.commitments"
    require(whole, place, "not of commitments")
    require(len(body["commitments"]) == body["steps"] // body["every"], place, "not all batches")


TILE_TRACE = structure({"step": STEP_NUMBER, "root": HASH, "count": integer(0, 2**62)})
_TILES_BODY = structure(
    {"claim": HASH, "randomness": byte_string(0, most=64), "traces": array(TILE_TRACE, 4096)}
)
SIGNED_TILES = structure({"trace_claim": _TILES_BODY, "signature": SIGNATURE})


def tiles_digest(signed: dict) -> bytes:
    """What is signed of tiles."""
    return derive("trace claim v1", encode(signed["trace_claim"]))


def srs_k(data: bytes) -> int:
    """The k that an SRS file is for; ValueError where it is none (format.md, section 4a)."""
    k = int.from_bytes(data[:4], "little")
    if not 1 <= k <= 28 or len(data) != 4 + 2**k * 128 + 256:
        raise ValueError("not the length of an SRS")
    return k


class ProofAudit(Audit):
    """An audit by proofs, without circuits, keys and ezkl: a proof that takes these is not done,
    nor is what takes the statements into which tiles fall."""

    question: ProofQuestion

    def __init__(self, question: ProofQuestion):
        super().__init__(question)
        self.whole = False  # are all steps that can be proven looked at?

    def replay(self) -> None:
        """What follows on the structure."""
        asked = self.question
        if asked.private:
            told = [check for check in self.checks if check.fault in ("solver", "task")]
            self.checks = [c for c in self.checks if c.name in PUBLIC_CHECKS or c in told]
        if not all(map(self.knows, ("task", "legal", "records"))) or not self.records:
            self.checks.append(Check("proofs", "not_done", "", "no log of a known task"))
            return
        before = len(self.checks)
        self.check("srs", asked.srs, "", self.check_srs)
        if self.checks[before].status == "failed":
            return
        self.checks[before].where = ""
        if asked.batches is not None:
            self.check("owner", "", "", self.check_owner)
        of_tiles = self.task.get("proof", {}).get("circuit") == "tiles"
        if of_tiles != (asked.first is not None):
            raise ValueError("two draws are of tiles, and tiles take two draws")
        if of_tiles:
            self.check("tiles", "", "", self.check_tiles)
            if self.checks[-1].status == "passed":
                self.checks[-1] = Check("tiles", "not_done", "", "this takes the statements")
            return
        steps = self.chosen_steps()
        if why := self.why_none(steps):
            self.checks.append(Check("proof", "not_done", why[0], why[1]))
            return
        for step in steps:
            self.check_proof(step)

    def prepare_kzg(self) -> None:
        """Nothing is compared with the SRS alone."""

    def check_srs(self) -> None:
        """22. `srs`"""
        data = Path(self.question.srs).read_bytes()
        self.srs, self.srs_k = hashlib.sha256(data).digest(), srs_k(data)
        named = self.task.get("proof", {"srs": self.srs})["srs"]
        hold(self.srs == named, "not the SRS that the task names")

    def check_owner(self) -> None:
        """23. `owner`"""
        signed, task = self.question.batches, self.task
        body, place = signed["batches"], "batches"
        hold(body["owner"] == self.question.owner, "of another owner", where=place)
        message = derive("batch commitments v2", encode(body))
        holds = signature_holds(body["owner"], message, signed["signature"])
        hold(holds, "the signature does not hold", where=place)
        hold(logs_kzg(task), "the task has no commitments to batches", where=place)
        order = {name: task[name] for name in ("seed", "batch", "steps")}
        order |= {name: task["proof"][name] for name in ("circuit", "srs", "k")}
        order |= {name: task["proof"][name] for name in ("blinding", "every")}
        order |= {"data_root": task["data"]["root"], "windows": task["data"].get("windows")}
        same = all(body.get(name) == value for name, value in order.items())
        hold(same, "of other batches", where=place)
        for record, batch in zip(self.kzg_records or [], body["commitments"], strict=False):
            same = b"".join(record["batch"]) == batch
            hold(same, "the batch logged is another", where=f"step {record['step']}")

    def chosen_steps(self) -> list[int]:
        """The steps to look at, in rising order."""
        asked = self.question
        every = self.task["proof"]["every"] if logs_kzg(self.task) else 1
        there = range(every, self.claim["log_size"] + 1, every)
        if asked.steps is not None:
            steps = sorted(set(asked.steps))
            if not set(steps) <= set(there):
                raise ValueError("a step that cannot be proven")
        else:
            self.randomness = asked.seed or os.urandom(32)
            material = draw_material(
                claim_digest(self.claim), "proof steps", len(there), self.randomness
            )
            steps = sorted(there[i] for i in draw(material, len(there), asked.segments))
            if steps and asked.segments > len(there):
                self.checks.append(Check("sample", "passed", ""))
        self.whole = len(steps) == len(there)
        return steps

    def why_none(self, steps: list[int]) -> tuple[str, str] | None:
        """The place and the reason where no step is looked at."""
        if self.question.private and not logs_kzg(self.task):
            return "task.commitments", "there is nothing to hold proofs against"
        if "proof" in self.task and self.srs_k < self.task["proof"]["k"]:
            return self.question.srs, "the SRS is too small for the task's k"
        return None if steps else ("", "no step was asked for")

    def check_proof(self, step: int) -> None:
        """25. `proof`"""
        place = f"step {step}"
        self.check("proof", place, "", lambda: self.check_bundle(step))
        if self.checks[-1].status == "passed":
            untold = Check("proof", "not_done", place, "this takes its circuit, and ezkl")
            wrong = None if self.question.private else self.check_tensors(step)
            self.checks[-1] = wrong or untold

    def check_tensors(self, step: int) -> Check | None:
        """Condition 7 of `proof`, 26. `replay`, 27. `kzg`: what is wrong in a run that lies there
        whole."""
        start = max((at for at in self.checkpoints if at < step), default=-1)
        if self.samples is None or start < 0:
            why = "there is nothing to do it again with"
            return Check("proof", "failed", f"step {step}", why, "nobody")
        parts, state = split_samples(self.task["data"], self.samples), self.checkpoints[start]
        for at in range(start + 1, step + 1):
            before, result = state, execute_step(self.graph, Context(state, parts))
            state, logged = result.state, self.records[at - 1]
            if any(result.record[name] != logged[name] for name in logged):
                why = "done again it is not the step logged"
                return Check("replay", "failed", f"step {at}", why, "solver")
        if not logs_kzg(self.task):
            return None
        return self.check_commitments(step, self.list_told(step, before, result))

    def list_told(
        self, step: int, before: dict[str, np.ndarray], result: StepResult
    ) -> list[tuple[str, bytes, list[np.ndarray]]] | None:
        """The parts of a step with their keys; None where the file of these is none."""
        try:
            self.hiding = self.read_hiding()
        except (OSError, Refused, Failed):
            return None
        return self.list_parts(step, before, result)

    def check_commitments(
        self, step: int, parts: list[tuple[str, bytes, list[np.ndarray]]] | None
    ) -> Check | None:
        """27. `kzg`"""
        proof, place = self.task["proof"], f"step {step}"
        record = self.kzg_records[step // proof["every"] - 1]
        known = parts is not None and all(
            key and key_id(key) == record[f"{part}_key"] for part, key, _ in parts
        )
        if not known:
            why = "a key is not known, or not the one in the log"
            return Check("proof", "failed", place, why, "nobody")
        commitments = Commitments(Path(self.question.srs).read_bytes(), proof)
        for part, key, tensors in parts:
            if commitments.commit_all(tensors, key) != record[part]:
                fault = "task" if (part, step) == ("before", 1) else "solver"
                return Check("kzg", "failed", place, f"other commitments: {part}", fault)
        return None

    def check_tiles(self) -> None:
        """What rows 1, 2 and 4 to 7 of tiling.md, section 7, say.  Row 3 is taken to hold: whether
        a graph is refused takes the statements."""
        place, pin = "proofs/traces.cbor", self.question.tiles_pin
        hold(os.path.lexists(self.run / place), "nothing is signed of tiles", where=place)
        known = self.kzg_records is not None
        hold(known, "there are no commitments that it could be of", where="kzg.bin")
        try:
            signed = self.read_structure(place, SIGNED_TILES, "traces")
        except Failed as failure:
            raise Failed(failure.why, where=place) from None
        digest = tiles_digest(signed)
        hold(self.is_of_claim(signed), "not signed by the solver for this claim", where=place)
        if isinstance(pin, dict) and tiles_digest(pin) != digest:
            hold(self.is_of_claim(pin), "what was kept is not of this claim", where=place)
            kept = {trace["step"]: trace for trace in pin["trace_claim"]["traces"]}
            traces = signed["trace_claim"]["traces"]
            same = all(kept.get(trace["step"], trace) == trace for trace in traces)
            hold(same, "contradicts what was kept", "solver", place)
        pin = tiles_digest(pin) if isinstance(pin, dict) else pin
        hold(pin in (None, digest), "not what was pinned", where=place)
        large = self.srs_k >= self.task["proof"]["k"]
        hold(large, "too small for the task's k", where=self.question.srs)

    def is_of_claim(self, signed: dict) -> bool:
        """Is it signed of tiles, by the solver, for this claim?"""
        solver, body = self.claim["solver"], signed["trace_claim"]
        holds = signature_holds(solver, tiles_digest(signed), signed["signature"])
        return holds and body["claim"] == claim_digest(self.claim)

    def check_bundle(self, step: int) -> None:
        """What can be said of the file of a proof without its circuit."""
        name = f"proofs/step-{step:012d}.cbor"
        bundle = self.read_structure(name, BUNDLE, "bundle")
        proof = self.task.get("proof", {"k": self.srs_k, "circuits": {}})
        pinned = proof["circuits"].get(bundle["circuit_name"])
        known = bundle["circuit_name"] in STEP_CIRCUITS and (pinned or not proof["circuits"])
        hold(bool(known), "by a circuit that the task does not allow")
        (schedule,) = (node for node in self.graph if node["op"] == "schedule")
        loss = self.records[step - 1]["loss"]
        parameters = {"loss": [loss], "rate": [rate_of(schedule["attrs"], step - 1)]}
        claim = {name: self.claim[name] for name in ("task_id", "run_id")}
        due = claim | {"kind": "step", "name": "step", "index": 0, "step": step, "ezkl": EZKL}
        due |= {"claim": claim_digest(self.claim), "srs": self.srs, "k": proof["k"]}
        due |= {"insecure": int(self.srs.hex() not in CEREMONY), "parameters": parameters}
        for name, value in (due | (pinned or {})).items():
            hold(bundle[name] == value, f"{name} is not that of this step")
        hold(proof["k"] >= LEAST_STEP_K, "no circuit of a whole step has so few rows")
        known = self.kzg_records is not None or not logs_kzg(self.task)
        hold(known, "there are no commitments that it could be of")

    def is_predictable(self) -> bool:
        """Were the steps named, or drawn with what was handed in, and no claim pinned?"""
        handed_in = self.question.steps is not None or self.question.seed is not None
        return handed_in and self.question.pin is None and not self.whole


# --- an algebraic audit (auditing.md, "The algebraic check")

TENSOR_TRACE = structure({"step": STEP_NUMBER, "size": integer(1, 2**62), "root": HASH})
_TRACES_BODY = structure({"claim": HASH, "traces": array(TENSOR_TRACE, 4096)})
_SIGNED_TRACES = structure({"traces": _TRACES_BODY, "signature": SIGNATURE})
PRODUCTS = ("matmul", "batched_matmul")


def check_signed_traces(value: Any, where: str) -> None:
    """The structure `signed-tensor-traces`."""
    _SIGNED_TRACES(value, where)
    steps = [trace["step"] for trace in value["traces"]["traces"]]
    require(steps == sorted(set(steps)), f"{where}.traces.traces", "the steps do not rise")


def traces_digest(signed: dict) -> bytes:
    """What is signed of traces."""
    return derive("tensor traces v1", encode(signed["traces"]))


class AlgebraicAudit(Audit):
    """An audit by the values that the solver signed.  It multiplies products again, exactly, in
    place of drawing vectors for them: what passes is the same, but for a chance of 2^-60."""

    question: AlgebraicQuestion

    def __init__(self, question: AlgebraicQuestion):
        super().__init__(question)
        self.whole = False  # are all intervals looked at?
        self.traces: list[list[bytes]] = []  # the leaves of each interval chosen
        self.signed = b""  # the digest of what is signed of them

    def prepare_kzg(self) -> None:
        """Nothing is compared with an SRS."""

    def replay(self) -> None:
        """What follows on the structure."""
        known = all(map(self.knows, ("task", "legal", "records"))) and self.may_have_samples()
        if not known or not self.records:
            self.checks.append(Check("algebraic", "not_done", "", "nothing can be looked at"))
        elif self.last_root() == 0:
            self.checks.append(Check("trace", "not_done", "", NEEDED["segments"]))
        else:
            chosen = self.chosen_intervals()
            self.check("trace", "", "", lambda: self.check_traces(chosen))
            if self.checks[-1].status == "failed":
                return
            if self.bring_samples(chosen):
                self.check("algebraic", "", "", lambda: self.check_values(chosen))
            else:
                self.checks.append(Check("algebraic", "not_done", "", NEEDED["samples"]))

    def may_have_samples(self) -> bool:
        """Are the samples known, or yet to be brought?"""
        return self.samples is not None

    def bring_samples(self, chosen: list[tuple[int, int]]) -> bool:
        """Are the samples of these steps there now?"""
        return self.samples is not None

    def chosen_intervals(self) -> list[tuple[int, int]]:
        """First and last step of the intervals to look at, in rising order."""
        every, asked = self.task["commit_every"], self.question
        count = self.last_root() // every
        if asked.steps is not None:
            if not all(1 <= step <= self.last_root() for step in asked.steps):
                raise ValueError("a step after the last state root")
            chosen = sorted({(step - 1) // every for step in asked.steps})
        else:
            self.randomness = asked.seed or os.urandom(32)
            digest = claim_digest(self.claim)
            material = draw_material(digest, "algebraic intervals", count, self.randomness)
            chosen = sorted(draw(material, count, asked.segments))
        self.whole = len(chosen) == count
        return [(i * every + 1, (i + 1) * every) for i in chosen]

    def is_predictable(self) -> bool:
        """Were the steps named, or drawn with what was handed in, and no claim pinned; or were the
        vectors to follow from what was handed in?"""
        handed_in = self.question.steps is not None or self.question.seed is not None
        of_draw = handed_in and self.question.pin is None and not self.whole
        given = self.question.challenge is not None
        return of_draw or (given and self.question.traces_pin is None)

    def check_traces(self, chosen: list[tuple[int, int]]) -> None:
        """19. `trace`"""
        folder, place, pin = self.question.traces, "traces/traces.cbor", self.question.traces_pin
        hold(os.path.lexists(folder / "traces.cbor"), "there are none", where=place)
        try:
            signed = read(check_signed_traces, read_regular(folder, "traces.cbor"), "traces")
        except (Refused, Failed) as error:
            raise Failed(str(error), where=place) from None
        body, digest = signed["traces"], traces_digest(signed)
        of_claim = body["claim"] == claim_digest(self.claim)
        hold(of_claim, "of another claim", where=place)
        holds = signature_holds(self.claim["solver"], digest, signed["signature"])
        hold(holds, "the signature does not hold", where=place)
        there = {trace["step"]: trace for trace in body["traces"]}
        if isinstance(pin, dict):
            kept = pin["traces"]
            same = kept["claim"] == body["claim"] and all(
                there.get(trace["step"], trace) == trace for trace in kept["traces"]
            )
            ours = signature_holds(self.claim["solver"], traces_digest(pin), pin["signature"])
            hold(same or not ours, "contradicts what was kept", "solver", place)
            pin = traces_digest(pin)
        hold(pin in (None, digest), "not what was pinned", where=place)
        self.signed = digest
        hold(all(last in there for _, last in chosen), "a trace is missing", where=place)
        for first, last in chosen:
            self.traces.append(self.check_trace(there[last], first, last))

    def check_trace(self, trace: dict, first: int, last: int) -> list[bytes]:
        """Conditions 7 to 9 of `trace`: the leaves of an interval."""
        nodes = len(self.graph)
        size = nodes * (last - first + 1)
        hold(trace["size"] == size, "of another size", "solver", f"step {last}")
        name = f"step-{last:012d}.leaves"
        place = f"traces/{name}"
        try:
            data = read_regular(self.question.traces, name, 32 * size)
        except Failed as failure:
            raise Failed(failure.why, where=place) from None
        leaves = [data[at : at + 32] for at in range(0, len(data), 32)]
        hold(tree_root(TRACE_TREE, leaves) == trace["root"], "other leaves", where=place)
        node = self.legal.only("record")
        for step in range(first, last + 1):
            due = plain_digest(leaf_hash(RUN_LOG, self.leaves[step - 1]))
            same = leaves[(step - first) * nodes + node] == due
            hold(same, "another record than in the log", "solver", f"step {step}")
        return leaves

    def check_values(self, chosen: list[tuple[int, int]]) -> None:
        """20. `algebraic`"""
        parts = split_samples(self.task["data"], self.samples)
        by_rows = DrawnRows(self, parts) if self.question.rows else None
        for (first, last), leaves in zip(chosen, self.traces, strict=True):
            place = f"step {first}" if first == last else f"steps {first} to {last}"
            self.check_first(first, leaves, place)
            if by_rows and by_rows.plan:
                by_rows.check(first, last, leaves, place)
                self.replayed.append((first, last))
                continue
            state = self.first_state(first, leaves, place)
            for step in range(first, last + 1):
                signed = leaves[(step - first) * len(self.graph) :]
                result = execute_step(self.graph, Context(state, parts))
                for index, right in enumerate(result.outputs):
                    if self.legal.op(index) in PRODUCTS:
                        hold(self.value(index, signed[index]) is not None, "is owed", where=place)
                    self.compare_value(step, index, signed[index], right)
                state = result.state
            self.replayed.append((first, last))

    def check_first(self, step: int, leaves: list[bytes], place: str) -> None:
        """Condition 1: the digests of the state that an interval begins with."""
        states = states_of(self.graph)
        signed = {name: leaves[self.legal.states[name]] for name in states}
        root = tree_root(STATE_TREE, [state_leaf(a, signed[name]) for name, a in states.items()])
        if root != self.logged_root(step - 1):
            for name, index in sorted(self.legal.states.items(), key=lambda item: item[1]):
                if step - 1 in self.checkpoints:
                    self.compare_value(step, index, signed[name], self.checkpoints[step - 1][name])
            raise Failed("other states than the log commits to", "solver", place)

    def first_state(self, step: int, leaves: list[bytes], place: str) -> dict[str, np.ndarray]:
        """Conditions 2 and 3: the state that an interval begins with."""
        in_order = sorted(self.legal.states.items(), key=lambda item: item[1])
        return {name: self.read_value(step, i, leaves[i], place) for name, i in in_order}

    def read_value(self, step: int, index: int, digest: bytes, place: str) -> np.ndarray:
        """What was signed of a node, which must be there, and within its range."""
        value = self.value(index, digest)
        hold(value is not None, f"the output of node {index} is owed", where=place)
        self.check_range(step, index, value.reshape(-1), 0)
        return value

    def check_range(self, step: int, index: int, values: np.ndarray, first: int) -> None:
        """Are these elements, from `first` on, in the range of the node?"""
        kind = self.legal.output(index)
        wrong = np.flatnonzero((values < kind["lo"]) | (values > kind["hi"]))
        fault = "task" if step == 1 and self.legal.op(index) == "state" else "solver"
        if wrong.size:
            raise Failed("out of range", fault, self.element(step, index, first + int(wrong[0])))

    def value(self, index: int, digest: bytes) -> np.ndarray | None:
        """The tensor that was signed of a node, if its bytes are there."""
        kind = self.legal.output(index)
        try:
            data = self.read_tensor(digest, bytes_of(kind))
        except Failed:
            return None
        values = np.frombuffer(data, dtype=DTYPES[kind["dtype"]])
        return values.astype(np.int64).reshape(kind["shape"])

    def read_tensor(self, digest: bytes, length: int) -> bytes:
        """The bytes of a tensor."""
        data = read_regular(self.question.traces, f"chunks/{digest.hex()}", length)
        hold(plain_digest(data) == digest, "other bytes")
        return data

    def compare_value(self, step: int, index: int, signed: bytes, right: np.ndarray) -> None:
        """Convict where a digest is not that of the right value, at the first element."""
        if signed == plain_digest(tensor_bytes(right, self.legal.output(index)["dtype"])):
            return
        value, place = self.value(index, signed), f"step {step}, node {index}"
        if value is not None:
            place = self.element(step, index, int(np.flatnonzero(value != right)[0]))
        raise Failed("another value", "solver", place)

    def element(self, step: int, index: int, at: int) -> str:
        """The place of an element."""
        chunk = at * DTYPES[self.legal.output(index)["dtype"]].itemsize // 1024
        return f"step {step}, node {index}, chunk {chunk}, element {at}"


# --- runs in a store (publishing.md)

PIECE = 2**20


def fold_pieces(join: Callable[[bytes, bytes, bool], bytes], hashes: list[bytes]) -> bytes:
    """The hash of a whole from those of its pieces."""

    def fold(part: list[bytes], whole: bool) -> bytes:
        if len(part) == 1:
            return part[0]
        middle = 1 << (len(part) - 1).bit_length() - 1
        return join(fold(part[:middle], False), fold(part[middle:], False), whole)

    return fold(hashes, True)


def hash_of_chunks(first: int, data: bytes) -> bytes:
    """The chaining value of a piece of a tensor that has several, from this chunk on."""
    chunks = [data[at : at + 1024] for at in range(0, len(data), 1024)]
    return fold_pieces(
        lambda left, right, _: parent_value(left, right, False),
        [chunk_value(chunk, first + i) for i, chunk in enumerate(chunks)],
    )


class Store(Audit):
    """What an audit of a run in a store does otherwise; the store is a folder."""

    def audit(self) -> None:
        """All checks, in their order."""
        self.check_structure()
        self.replay()

    def check_structure(self) -> None:
        """What is checked before the draw."""
        own = self.question.data
        self.check("claim", "claim.cbor", "", self.check_claim)
        self.check("task", "task.cbor", "claim", self.check_task)
        self.check("complete", "claim.cbor", "task claim", self.check_complete)
        self.check("graph", "graph.cbor", "task", self.check_graph)
        self.check("legality", "graph.cbor", "graph", self.check_legality)
        if own is not None:
            self.check("samples", own, "task", self.check_samples)
        self.check("log", "log.bin", "task claim", self.check_log)
        self.check("records", "log.bin", "legal leaves", self.check_records)
        if own is not None:
            self.check("batches", "log.bin", "legal leaves records samples", self.check_batches)
        if self.task and logs_kzg(self.task):
            self.check("kzg_log", "kzg.bin", "legal claim kzg_root", self.check_kzg_log)
            self.check("kzg_records", "kzg.bin", "legal claim kzg_leaves", self.check_kzg_records)

    def read_pieces(
        self,
        root: bytes,
        length: int,
        unit: int,
        join: Callable[[bytes, bytes, bool], bytes],
        hash_of: Callable[[int, bytes, bool], bytes],
        wanted: Callable[[int, int], bool] = lambda begin, end: True,
    ) -> bytes:
        """A whole of so many bytes in units, from its pieces: those that begin and end where it is
        wanted, and zeros in place of the others."""
        size = unit
        while 2 * size <= PIECE:
            size *= 2
        begins = range(0, max(length, 1), size)
        hashes = [root]
        if len(begins) > 1:
            name = f"lists/{root.hex()}"
            data = read_regular(self.run, name, 32 * len(begins))
            hashes = [data[at : at + 32] for at in range(0, len(data), 32)]
            hold(fold_pieces(join, hashes) == root, f"{name} is of another whole")
        found = bytearray(length)
        for begin, due in zip(begins, hashes, strict=True):
            end = min(begin + size, length)
            if wanted(begin, end):
                data = read_regular(self.run, f"chunks/{due.hex()}", end - begin)
                same = hash_of(begin // unit, data, len(begins) == 1) == due
                hold(same, f"chunks/{due.hex()} has another hash")
                found[begin:end] = data
        return bytes(found)

    def read_chunked(
        self, digest: bytes, length: int, wanted: Callable[[int, int], bool] = lambda a, b: True
    ) -> bytes:
        """The bytes of a tensor, or of tokens."""

        def hash_of(first: int, data: bytes, whole: bool) -> bytes:
            return plain_digest(data) if whole else hash_of_chunks(first, data)

        return self.read_pieces(digest, length, 1024, parent_value, hash_of, wanted)

    def fetch_samples(self, steps: Iterable[int]) -> None:
        """The samples of these steps."""
        task, data = self.task, self.task["data"]
        rows: set[int] = set()
        for step in steps:
            drawn = batch_indices(task["seed"], data["samples"], task["batch"], step - 1)
            rows |= set(drawn.tolist())
        form = data.get("windows")
        width = row_bytes(data, "x") + row_bytes(data, "y")
        spans = [(row * width, (row + 1) * width) for row in sorted(rows)]
        if form is not None:
            size = TOKEN_BYTES[form["dtype"]]
            firsts = [i * form["stride"] + shift for i in rows for shift in (0, form["shift"])]
            spans = [(at * size, (at + form["context"]) * size) for at in firsts]

        def wanted(begin: int, end: int) -> bool:
            return any(first < end and begin < after for first, after in spans)

        root, length = data["root"], self.samples_size()
        if form is not None:
            self.samples = self.read_chunked(root, length, wanted)
            return
        hold(1 <= width <= 2**26, "rows of such a length are not published")

        def hash_of(first: int, piece: bytes, whole: bool) -> bytes:
            pieces = [piece[at : at + width] for at in range(0, len(piece), width)]
            return tree_root(SAMPLES_TREE, pieces)

        def join(left: bytes, right: bytes, whole: bool) -> bytes:
            return node_hash(SAMPLES_TREE, left, right)

        self.samples = self.read_pieces(root, length, width, join, hash_of, wanted)

    def bring_samples(self, chosen: list[tuple[int, int]]) -> bool:
        """Make the checks `samples` and `batches` of these steps; are the samples there now?"""
        if self.question.data is not None:
            return self.samples is not None
        steps = [step for first, last in chosen for step in range(first, last + 1)]
        after, self.checks = self.checks, []
        self.check("samples", SAMPLES, "", lambda: self.fetch_samples(steps))
        if self.checks[-1].status == "passed":
            self.check("batches", "log.bin", "", lambda: self.check_batches_of(steps))
        at = next((i for i, check in enumerate(after) if check.name == "trace"), len(after))
        self.checks = after[:at] + self.checks + after[at:]
        return self.samples is not None


class StoredReplay(Store):
    """A replay of a run in a store."""

    def __init__(self, question: Question):
        super().__init__(question)
        self.asked = 0  # states that a segment began with
        self.missing: list[Failed] = []

    def replay(self) -> None:
        """What follows on the structure."""
        if self.question.segments == 0:
            return
        known = all(map(self.knows, ("task", "legal", "records", "segments")))
        chosen = self.chosen_segments() if known else []
        if not known or not self.bring_samples(chosen):
            self.checks.append(Check("replay", "not_done", "", "nothing can be done again"))
            return
        self.chosen_segments = lambda: chosen  # type: ignore[method-assign]
        before = len(self.checks)
        super().replay()
        found = [Check("checkpoints", "failed", f.where, f.why, f.fault) for f in self.missing]
        if self.asked and not found:
            found = [Check("checkpoints", "passed", "checkpoints")]
        self.checks[before:before] = found

    def find_start(self, first: int, at: int) -> int:
        """The state before a segment, unless the replay stands there; -1 where it is not there."""
        step = first - 1
        if at == step:
            return at
        self.asked += 1
        name = f"checkpoints/{step:012d}.safetensors"
        try:
            self.checkpoints[step] = self.fetch_state(name, step)
        except Failed as failure:
            self.missing.append(Failed(failure.why, failure.fault, failure.where or name))
            return -1
        return step

    def fetch_state(self, name: str, step: int) -> dict[str, np.ndarray]:
        """The state after a step."""
        states, root = states_of(self.graph), self.logged_root(step)
        data = read_regular(self.run, f"states/{root.hex()}", 32 * len(states))
        digests = [data[at : at + 32] for at in range(0, len(data), 32)]
        pairs = list(zip(states.values(), digests, strict=True))
        leaves = [state_leaf(a, digest) for a, digest in pairs]
        hold(tree_root(STATE_TREE, leaves) == root, "other digests")
        state = {}
        for a, digest in pairs:
            raw = self.read_chunked(digest, bytes_of(a))
            values = np.frombuffer(raw, dtype=DTYPES[a["dtype"]])
            state[a["name"]] = values.astype(np.int64).reshape(a["shape"])
        self.check_state(name, step, state)
        return state


class StoredValues(Store, AlgebraicAudit):
    """An algebraic audit of a run in a store."""

    question: AlgebraicQuestion

    def may_have_samples(self) -> bool:
        """Are the samples known, or yet to be brought?"""
        return self.question.data is None or self.samples is not None

    def read_tensor(self, digest: bytes, length: int) -> bytes:
        """The bytes of a tensor."""
        return self.read_chunked(digest, length)


# ----------------------------------------------------------------------------------------------
# 11. Folds (leaf-rules.md)
# ----------------------------------------------------------------------------------------------

MAX_CHUNKS = 32  # that the terms of a block touch
FoldState = tuple[int, ...]


class Inputs:
    """What a leaf reads.  Subclasses say where chunks and rows come from."""

    def __init__(self, types: list[Type]):
        self.types = types

    def chunk(self, number: int, index: int) -> bytes:
        """Chunk `index` of input `number`."""
        raise NotImplementedError

    def row(self, index: int) -> bytes | None:
        """A row of the sample table; None where there is no such sample."""
        raise NotImplementedError

    windows: dict | None = None  # where samples are windows of tokens

    def token_bytes(self, at: int) -> bytes:
        """Token `at` of the file, as it stands there."""
        raise NotImplementedError

    def digest(self, number: int) -> bytes:
        """The tensor digest of an input."""
        raise NotImplementedError

    def element(self, number: int, index: int) -> int:
        """An element of an input, by its flat index."""
        dtype = self.types[number]["dtype"]
        size = DTYPES[dtype].itemsize
        chunk = self.chunk(number, index * size // CHUNK)
        at = index * size % CHUNK
        return int.from_bytes(chunk[at : at + size], "little", signed=dtype != "u8")

    def whole(self, number: int) -> bytes:
        """All bytes of an input that is a hash or a number."""
        return self.chunk(number, 0)[: bytes_of(self.types[number])]


@dataclass
class Fold:
    """How an element is computed: `step(state, i, inputs)` over terms in blocks."""

    terms: int
    length: int
    start: FoldState
    step: Callable[[FoldState, int, Inputs], FoldState]
    finish: Callable[[FoldState], int] = field(default=lambda state: state[0])

    @property
    def blocks(self) -> int:
        return -(-self.terms // self.length)

    def run_block(self, block: int, before: FoldState, inputs: Inputs) -> FoldState:
        """The state after a block."""
        state = before
        for i in range(block * self.length, min((block + 1) * self.length, self.terms)):
            state = self.step(state, i, inputs)
        return state


def encode_state(state: FoldState) -> bytes | None:
    """The encoding of a fold state, if it has one."""
    if any(not -(2**63) <= entry < 2**63 for entry in state):
        return None
    return b"".join(entry.to_bytes(8, "little", signed=True) for entry in state)


def decode_state(data: bytes) -> FoldState:
    """The fold state of an encoding."""
    entries = range(0, len(data), 8)
    return tuple(int.from_bytes(data[i : i + 8], "little", signed=True) for i in entries)


def encode_element(value: int, dtype: str) -> bytes | None:
    """The bytes of an element, if its dtype holds it."""
    lo, hi = BOUNDS[dtype]
    if not lo <= value <= hi:
        return None
    return value.to_bytes(DTYPES[dtype].itemsize, "little", signed=dtype != "u8")


SCATTERED = -1


def block_length(terms: int, streams: Sequence[tuple[int, int]]) -> int:
    """The most terms that touch at most 32 chunks by the bound of section "Blocks".  A stream is
    the bytes of its elements and the distance between its reads."""

    def bound(n: int) -> int:
        total = 0
        for size, distance in streams:
            if distance == 0:
                total += 1
            elif distance == SCATTERED:
                total += n
            else:
                total += min(n, (n - 1) * distance * size // CHUNK + 2)
        return total

    low, high = 1, terms
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bound(middle) <= MAX_CHUNKS else (low, middle - 1)
    return low


# --- rows that are drawn (algebraic.md, "Rows")

FOLLOW = ("next_state", "reshape", "tensor_digest")  # their digests follow from digests
MOST_TERMS = 2**27


class DrawnInputs(Inputs):
    """What elements of one node are made of: tensors as they were signed or computed, and samples.
    Of a large tensor what has not been read yet is zeros, and it is noted that it is asked for."""

    def __init__(self, audit: AlgebraicAudit, step: int, refs: list[int], large: list[bool]):
        super().__init__([audit.legal.output(ref) for ref in refs])
        self.audit, self.step, self.refs, self.large = audit, step, refs, large
        self.tensors: list[np.ndarray | None] = [None] * len(refs)  # None: zeros
        self.digests = [bytes(32)] * len(refs)
        self.known: list[set[int]] = [set() for _ in refs]  # chunks that have been read
        self.asked: list[set[int]] = [set() for _ in refs]
        self.windows = audit.task["data"].get("windows")

    def chunk(self, number: int, index: int) -> bytes:
        """A chunk of an input."""
        value = self.tensors[number]
        if value is None or (self.large[number] and index not in self.known[number]):
            self.asked[number].add(index)
            return bytes(CHUNK)
        return tensor_bytes(self.elements(number, index), self.types[number]["dtype"])

    def elements(self, number: int, index: int) -> np.ndarray:
        """The elements of a chunk of an input that is there."""
        per = CHUNK // DTYPES[self.types[number]["dtype"]].itemsize
        return self.tensors[number].reshape(-1)[index * per : (index + 1) * per]

    def read_asked(self) -> bool:
        """Read what is asked for, each element within its range; was there anything?"""
        asked, self.asked = self.asked, [set() for _ in self.refs]
        for number, chunks in enumerate(asked):
            for index in sorted(chunks):
                found = self.elements(number, index)
                first = index * CHUNK // DTYPES[self.types[number]["dtype"]].itemsize
                self.audit.check_range(self.step, self.refs[number], found, first)
                self.known[number].add(index)
        return any(asked)

    def row(self, index: int) -> bytes | None:
        """A row of the sample table."""
        data, table = self.audit.task["data"], self.audit.samples
        length = row_bytes(data, "x") + row_bytes(data, "y")
        there = 0 <= index < data["samples"]
        return table[index * length : (index + 1) * length] if there else None

    def token_bytes(self, at: int) -> bytes:
        """A token of the file."""
        size = TOKEN_BYTES[self.windows["dtype"]]
        return self.audit.samples[at * size : (at + 1) * size]

    def digest(self, number: int) -> bytes:
        """The digest that was signed of an input."""
        return self.digests[number]


class DrawnRows:
    """Checks the values of steps, of which it looks at some rows where tensors are large."""

    def __init__(self, audit: AlgebraicAudit, parts: dict[str, np.ndarray]):
        self.audit, self.graph, self.parts = audit, audit.graph, parts
        self.asked = audit.question
        self.randomness = self.asked.challenge or os.urandom(32)
        self.plan = {}  # of each node that goes by rows: elements of a row, rows, rows drawn
        for index, node in enumerate(self.graph):
            if node["op"] not in (*FOLLOW, "sample_index") and (cut := self.cut(index)):
                self.plan[index] = cut

    def is_large(self, index: int) -> bool:
        """Has the output of this node more bytes than are read whole?"""
        return bytes_of(self.audit.legal.output(index)) > self.asked.rows_above

    def sources(self, index: int) -> list[int]:
        """The nodes that a node reads."""
        return [source for source, _ in self.graph[index]["inputs"]]

    def cut(self, index: int) -> tuple[int, int, int] | None:
        """How a node goes by rows, if it does."""
        out, op = self.audit.legal.output(index), self.graph[index]["op"]
        tensors = [index, *self.sources(index)]
        large = sum(bytes_of(self.audit.legal.output(i)) for i in tensors if self.is_large(i))
        size, width = size_of(out["shape"]), DTYPES[out["dtype"]].itemsize
        length = CHUNK // width
        if op in PRODUCTS and CHUNK <= out["shape"][-1] * width <= 2**20:
            length = out["shape"][-1]
        count = -(-size // length)
        drawn = min(self.asked.rows, count)
        evenly = {i * (count - 1) // max(1, drawn - 1) for i in range(drawn)}
        spans = [(i * length, min((i + 1) * length, size)) for i in sorted(evenly)]
        if not large or 2 * self.count_read(index, spans) > large:
            return None
        return length, count, drawn

    def count_read(self, index: int, spans: list[tuple[int, int]]) -> float:
        """The bytes of large tensors that elements take."""
        out, op = self.audit.legal.output(index), self.graph[index]["op"]
        elements = sum(end - first for first, end in spans)
        read = elements * DTYPES[out["dtype"]].itemsize if self.is_large(index) else 0
        if op == "state":
            return read
        inputs = self.inputs_of(index, 1)
        if op in PRODUCTS:
            spans = [self.in_whole_rows(out["shape"][-1], *span) for span in spans]
        elif elements * self.fold(index, inputs, 0).terms > MOST_TERMS:
            return math.inf
        self.compute(index, inputs, spans)  # of zeros, which are all that is read here
        chunks = [len(found) for found, is_ in zip(inputs.asked, inputs.large, strict=True) if is_]
        return read + CHUNK * sum(chunks)

    @staticmethod
    def in_whole_rows(width: int, first: int, end: int) -> tuple[int, int]:
        """A part of a product, or all rows that it touches where these are several."""
        if first // width == (end - 1) // width:
            return first, end
        return first // width * width, -(-end // width) * width

    def inputs_of(self, index: int, step: int) -> DrawnInputs:
        """The inputs of a node, zeros yet."""
        refs = self.sources(index)
        return DrawnInputs(self.audit, step, refs, [self.is_large(ref) for ref in refs])

    def fold(self, index: int, inputs: DrawnInputs, element: int) -> Fold:
        """How an element is computed."""
        node = self.graph[index]
        out = self.audit.legal.output(index)
        return make_fold(node["op"], node["attrs"], inputs.types, out, element)

    def element(self, index: int, inputs: DrawnInputs, element: int) -> int:
        """An element of a node's output."""
        fold = self.fold(index, inputs, element)
        state = fold.start
        for block in range(fold.blocks):
            state = fold.run_block(block, state, inputs)
        return fold.finish(state)

    def check(self, first: int, last: int, leaves: list[bytes], place: str) -> None:
        """The values of an interval that begins with the right digests."""
        count, audit = len(self.graph), self.audit
        after: dict[str, bytes] = {}  # the digests of the states that the step before ended with
        for step in range(first, last + 1):
            signed = leaves[(step - first) * count :][:count]
            values: dict[int, np.ndarray] = {}  # what was looked at whole
            for index, node in enumerate(self.graph):
                op, refs = node["op"], self.sources(index)
                if op in FOLLOW or (op == "state" and step > first):
                    due = after[node["attrs"]["name"]] if op == "state" else signed[refs[0]]
                    self.check_digest(step, index, signed[index], due)
                elif index in self.plan:
                    self.check_rows(step, index, signed, values, place)
                elif op == "state":
                    values[index] = audit.read_value(step, index, signed[index], place)
                else:
                    inputs = [self.read(step, ref, signed, values, place) for ref in refs]
                    types = [audit.legal.output(ref) for ref in refs]
                    right = execute_node(node, types, inputs, Context({}, self.parts))
                    if op in PRODUCTS:
                        there = audit.value(index, signed[index]) is not None
                        hold(there, f"the output of node {index} is owed", where=place)
                    audit.compare_value(step, index, signed[index], right)
                    values[index] = right
            ended = [node for node in self.graph if node["op"] == "next_state"]
            after = {node["attrs"]["name"]: signed[node["inputs"][0][0]] for node in ended}

    def read(
        self, step: int, index: int, signed: list[bytes], values: dict[int, np.ndarray], place: str
    ) -> np.ndarray:
        """The output of a node, whole: as it was computed, or else as it was signed."""
        if index not in values:
            values[index] = self.audit.read_value(step, index, signed[index], place)
        return values[index]

    def check_digest(self, step: int, index: int, signed: bytes, due: bytes) -> None:
        """A node of whose output the digest follows from digests."""
        if self.graph[index]["op"] == "tensor_digest":
            right = np.frombuffer(due, np.uint8).astype(np.int64)
            self.audit.compare_value(step, index, signed, right)
        elif signed != due:
            value, right = self.audit.value(index, signed), self.audit.value(index, due)
            place = f"step {step}, node {index}"
            if value is not None and right is not None:
                place = self.audit.element(step, index, int(np.flatnonzero(value != right)[0]))
            raise Failed("another value", "solver", place)

    def check_rows(
        self, step: int, index: int, signed: list[bytes], values: dict[int, np.ndarray], place: str
    ) -> None:
        """The rows that are drawn of a node."""
        length, count, drawn = self.plan[index]
        domain = f"algebraic rows of step {step}, node {index}"
        material = draw_material(self.audit.signed, domain, count, self.randomness)
        rows = sorted(draw(material, count, drawn))
        claimed = self.audit.value(index, signed[index])
        hold(claimed is not None, f"the output of node {index} is owed", where=place)
        flat = claimed.reshape(-1)
        spans = [(row * length, min((row + 1) * length, flat.size)) for row in rows]
        per = CHUNK // DTYPES[self.audit.legal.output(index)["dtype"]].itemsize
        for first, end in spans:  # chunk by chunk, of which a row of a product may touch parts
            begin, stop = first // per * per, -(-end // per) * per
            self.audit.check_range(step, index, flat[begin:stop], begin)
        if self.graph[index]["op"] == "state":
            return
        inputs = self.inputs_of(index, step)
        for number, ref in enumerate(inputs.refs):
            inputs.digests[number] = signed[ref]
            inputs.large[number] = self.is_large(ref) and ref not in values
            if inputs.large[number]:
                inputs.tensors[number] = self.audit.value(ref, signed[ref])
                hold(inputs.tensors[number] is not None, f"node {ref} is owed", where=place)
            else:
                inputs.tensors[number] = self.read(step, ref, signed, values, place)
        while True:  # what is read may say what else is read
            computed = self.compute(index, inputs, spans)
            if not inputs.read_asked():
                break
        for element, value in computed.items():
            if value != flat[element]:
                where = self.audit.element(step, index, element)
                raise Failed("another value", "solver", where)

    def compute(
        self, index: int, inputs: DrawnInputs, spans: list[tuple[int, int]]
    ) -> dict[int, int | None]:
        """The elements of a node's output, as far as its inputs have been read; None for none."""
        found: dict[int, int | None] = {}
        for first, end in spans:
            for element in range(first, end):
                try:
                    found[element] = self.element(index, inputs, element)
                except ArithmeticError:
                    found[element] = None
        return found


Term = Callable[[int, Inputs], int]


def fold_sum(terms: int, streams: Sequence[tuple[int, int]], term: Term) -> Fold:
    """A fold that adds up `term(i, inputs)`."""
    length = block_length(terms, streams)
    return Fold(terms, length, (0,), lambda state, i, inputs: (state[0] + term(i, inputs),))


def fold_max(terms: int, streams: Sequence[tuple[int, int]], term: Term) -> Fold:
    """A fold that takes the greatest `term(i, inputs)`."""
    length, least = block_length(terms, streams), -(2**63)
    return Fold(terms, length, (least,), lambda state, i, inputs: (max(*state, term(i, inputs)),))


def fold_matmul(attrs: Attributes, types: list[Type], element: int) -> Fold:
    m, k, n = product_extents(attrs, *types)
    i, j = divmod(element, n)
    # index of term p is start + p * distance
    a_start, a_distance = (i, m) if attrs["transpose_a"] else (i * k, 1)
    b_start, b_distance = (j * k, 1) if attrs["transpose_b"] else (j, n)

    def term(p: int, inputs: Inputs) -> int:
        a = inputs.element(0, a_start + p * a_distance)
        return a * inputs.element(1, b_start + p * b_distance)

    return fold_sum(k, [(2, a_distance), (2, b_distance)], term)


def fold_batched_matmul(attrs: Attributes, types: list[Type], element: int) -> Fold:
    """Of two stacks: that of one pair of matrices, which begin somewhere in them."""
    m, k, n = product_extents(attrs, *types)
    matrix, within = divmod(element, m * n)
    i, j = divmod(within, n)
    a_start, a_distance = (i, m) if attrs["transpose_a"] else (i * k, 1)
    b_start, b_distance = (j * k, 1) if attrs["transpose_b"] else (j, n)

    def term(p: int, inputs: Inputs) -> int:
        a = inputs.element(0, matrix * m * k + a_start + p * a_distance)
        return a * inputs.element(1, matrix * k * n + b_start + p * b_distance)

    return fold_sum(k, [(2, a_distance), (2, b_distance)], term)


def fold_scatter_add(attrs: Attributes, types: list[Type], element: int) -> Fold:
    """Over the rows of x: what has another number is not read."""
    n, columns = types[0]["shape"]
    row, column = divmod(element, columns)

    def term(i: int, inputs: Inputs) -> int:
        number = clamp(inputs.element(1, i), 0, attrs["rows"] - 1)
        return inputs.element(0, i * columns + column) if number == row else 0

    sizes = [DTYPES[x["dtype"]].itemsize for x in types]
    return fold_sum(n, [(sizes[0], columns), (sizes[1], 1)], term)


def fold_sums(op: str, attrs: Attributes, x: Type, element: int) -> Fold:
    """`column_sum`, `row_sum`, `row_max`, `sum` and `square_sum`."""
    size, last = size_of(x["shape"]), x["shape"][-1] if x["shape"] else 1
    if op == "column_sum":
        terms, start, distance = size // last, element, last
    elif op in ("row_sum", "row_max"):
        terms, start, distance = last, element * last, 1
    else:
        terms, start, distance = size, 0, 1
    streams = [(DTYPES[x["dtype"]].itemsize, distance)]

    def term(i: int, inputs: Inputs) -> int:
        value = inputs.element(0, start + i * distance)
        return value * value if op == "square_sum" else value

    fold = (fold_max if op == "row_max" else fold_sum)(terms, streams, term)
    if op == "square_sum":
        fold.finish = lambda state: rs(state[0], attrs["shift"])
    return fold


def fold_softmax_grad(p: Type, element: int) -> Fold:
    columns = p["shape"][1]
    first = element // columns * columns

    def term(i: int, inputs: Inputs) -> int:
        p, grad = inputs.element(0, first + i), inputs.element(1, first + i)
        own = inputs.element(0, element)
        return own * ((grad * 2**14 if first + i == element else 0) - p * grad)

    return fold_sum(columns, [(2, 1), (2, 1), (2, 0)], term)


def fold_token_spans(a: Attributes, ids: Type, element: int) -> Fold:
    """Over the ids of a row: (where the document starts, paddings at first) of a begin, (where the
    document ends, if it did, and the last token) of an end; at last the one that counts."""
    places = ids["shape"][1]
    (row, place), is_end = divmod(element // 2, places), element % 2

    def step(state: FoldState, i: int, inputs: Inputs) -> FoldState:
        own, bound = state
        token = inputs.element(0, row * places + i)
        ends, pads, last = token == a["end_of_text"], token == a["padding"], i == places - 1
        if is_end:
            own = i + 1 if ends and i >= place and own == 0 else own
            bound = bound if pads else i + 1
            return (min(own or places, bound, place + a["after"]) if last else own), bound
        own = i + 1 if ends and i < place else own
        bound = i + 1 if pads and bound == i else bound
        return (max(own, bound, place + 1 - a["before"]) if last else own), bound

    length = block_length(places, [(DTYPES[ids["dtype"]].itemsize, 1)])
    return Fold(places, length, (0, 0), step)


def fold_center(attrs: Attributes, x: Type, element: int) -> Fold:
    width = x["shape"][-1]
    first = element // width * width

    def term(i: int, inputs: Inputs) -> int:
        return inputs.element(0, element) - inputs.element(0, first + i)

    fold = fold_sum(width, [(2, 0), (2, 1)], term)
    fold.finish = lambda state: low32(rs(state[0], attrs["shift"]))
    return fold


def fold_row_dot(types: list[Type], element: int) -> Fold:
    width = types[0]["shape"][-1]

    def term(i: int, inputs: Inputs) -> int:
        return inputs.element(0, element * width + i) * inputs.element(1, element * width + i)

    return fold_sum(width, [(DTYPES[x["dtype"]].itemsize, 1) for x in types], term)


def unravel(index: int, shape: Sequence[int]) -> list[int]:
    """The place of a flat index."""
    place = []
    for extent in reversed(shape):
        index, at = divmod(index, extent)
        place.append(at)
    return place[::-1]


def ravel(place: Sequence[int], shape: Sequence[int]) -> int:
    """The flat index of a place."""
    index = 0
    for at, extent in zip(place, shape, strict=True):
        index = index * extent + at
    return index


def fold_pool(op: str, attrs: Attributes, x: Type, element: int) -> Fold:
    """`sum_pool` and `max_pool`: over the pixels of window `element`."""
    w = Windows(attrs, x["shape"])
    s, r, c, channel = unravel(element, w.out_shape)
    padding, make = (0, fold_sum) if op == "sum_pool" else (PADDING, fold_max)

    def term(offset: int, inputs: Inputs) -> int:
        pixel = w.pixel(r, c, offset)
        return inputs.element(0, ravel([s, *pixel, channel], w.image)) if pixel else padding

    return make(w.area, [(2, SCATTERED)], term)


def fold_unpool(op: str, attrs: Attributes, element: int) -> Fold:
    """`col2im` and `sum_pool_grad`: over the windows that have pixel `element`."""
    w = Windows(attrs, attrs["shape"])
    s, y, x, channel = unravel(element, w.image)

    def term(offset: int, inputs: Inputs) -> int:
        window = w.window(y, x, offset)
        if window is None:
            return 0
        if op == "col2im":
            shape = [w.n, w.oh, w.ow, w.area, w.channels]
            return inputs.element(0, ravel([s, *window, offset, channel], shape))
        return inputs.element(0, ravel([s, *window, channel], w.out_shape))

    return fold_sum(w.area, [(0, SCATTERED)], term)


def fold_max_pool_grad(attrs: Attributes, types: list[Type], element: int) -> Fold:
    """Terms o * area + q: is pixel `element`, at offset o of a window, its first maximum?"""
    w = Windows(attrs, types[1]["shape"])
    s, y, x, channel = unravel(element, w.image)

    def step(state: FoldState, i: int, inputs: Inputs) -> FoldState:
        o, q = divmod(i, w.area)
        window = w.window(y, x, o)
        if window is None:
            return state
        total, alive = state
        if q == 0:
            alive = 1
        if q != o:
            pixel = w.pixel(*window, q)
            other = inputs.element(1, ravel([s, *pixel, channel], w.image)) if pixel else PADDING
            own = inputs.element(1, element)
            if other > own or (other == own and q < o):
                alive = 0
        if q == w.area - 1 and alive:
            total += inputs.element(0, ravel([s, *window, channel], w.out_shape))
        return total, alive

    terms = w.area**2
    length = block_length(terms, [(2, SCATTERED), (2, SCATTERED), (2, 0)])
    if (2 * w.kh - 1) * (2 * w.kw - 1) + w.area <= MAX_CHUNKS:
        length = terms
    return Fold(terms, length, (0, 1), step)


@dataclass
class Leaf:
    """Element e of the output of an operator of one term, and what it is computed of."""

    op: str
    a: Attributes
    types: list[Type]
    out: Type
    e: int
    inputs: Inputs

    def read(self, number: int = 0, index: int | None = None) -> int:
        """An element of an input: this one, or another."""
        return self.inputs.element(number, self.e if index is None else index)

    def row(self) -> int:
        """The row of this element in a matrix."""
        return self.e // self.out["shape"][-1]


def windowed_token(inputs: Inputs, index: int, part: str, place: int) -> int:
    """An element of a sample that is a window of tokens; 0 where it is not there."""
    form: Any = inputs.windows
    if not 0 <= index < count_windows(form) or place >= form["context"]:
        return 0
    first = index * form["stride"] + (form["shift"] if part == "y" else 0)
    token = inputs.token_bytes(first + place)
    value = int.from_bytes(token[:4], "little")
    return value - 2**32 if value >= 2**31 else value


def leaf_gather_samples(x: Leaf) -> int:
    count, size = size_of(x.a["shape"]), DTYPES[x.a["dtype"]].itemsize
    slot, place = divmod(x.e, count)
    if x.inputs.windows is not None:
        return windowed_token(x.inputs, x.read(0, slot), x.a["part"], place)
    row = x.inputs.row(x.read(0, slot))
    if row is None:
        return 0
    begin = len(row) - count * size if x.a["part"] == "y" else 0
    at = begin + place * size
    if at < 0 or at + size > len(row):
        return 0
    return int.from_bytes(row[at : at + size], "little", signed=x.a["dtype"] != "u8")


def leaf_one_hot(x: Leaf) -> int:
    slot, place = divmod(x.e, x.a["depth"])
    return 2**14 * (x.read(0, slot) == place)


def leaf_im2col(x: Leaf) -> int:
    w = Windows(x.a, x.types[0]["shape"])
    s, r, c, offset, channel = unravel(x.e, [w.n, w.oh, w.ow, w.area, w.channels])
    pixel = w.pixel(r, c, offset)
    return x.read(0, ravel([s, *pixel, channel], w.image)) if pixel else 0


def leaf_transpose(x: Leaf) -> int:
    indices = dict(zip(x.a["perm"], unravel(x.e, x.out["shape"]), strict=True))
    return x.read(0, ravel([indices[axis] for axis in sorted(indices)], x.types[0]["shape"]))


def leaf_part(x: Leaf) -> int:
    """`slice`, `pad` and `concat`: the one element that comes to this place."""
    axis = x.a["axis"]
    place, number = unravel(x.e, x.out["shape"]), 0
    if x.op == "slice":
        place[axis] += x.a["start"]
    elif x.op == "pad":
        place[axis] -= x.a["before"]
        if not 0 <= place[axis] < x.types[0]["shape"][axis]:
            return 0
    else:
        while place[axis] >= x.types[number]["shape"][axis]:
            place[axis] -= x.types[number]["shape"][axis]
            number += 1
    return x.read(number, ravel(place, x.types[number]["shape"]))


def leaf_gather_rows(x: Leaf) -> int:
    rows, columns = x.types[0]["shape"]
    row = clamp(x.read(1, x.e // columns), 0, rows - 1)
    return x.read(0, row * columns + x.e % columns)


def leaf_sub_one_hot(x: Leaf) -> int:
    p, classes = x.read(), x.out["shape"][1]
    return p - 2**14 * (clamp(x.read(1, x.row()), 0, classes - 1) == x.e % classes)


def leaf_logit_grad(x: Leaf) -> int:
    classes = x.out["shape"][1]
    e, total, label = x.read(), x.read(1, x.row()), x.read(2, x.row())
    return logit_grad(e, total, clamp(label, 0, classes - 1) == x.e % classes)


def leaf_cross_entropy(x: Leaf) -> int:
    classes = x.types[0]["shape"][1]
    z = x.read(0, x.e * classes + clamp(x.read(3), 0, classes - 1))
    return cross_entropy(z, x.read(1), x.read(2))


def leaf_keep_span(x: Leaf) -> int:
    span = x.row() % x.types[1]["shape"][0]
    value, begin, end = x.read(), x.read(1, 2 * span), x.read(1, 2 * span + 1)
    return value if begin <= x.e % x.out["shape"][1] < end else x.a["fill"]


def leaf_of_hash(x: Leaf) -> int:
    return hash_of(x.op, x.a, [x.inputs.whole(number) for number in range(len(x.types))])[x.e]


LEAVES: dict[str, Callable[[Leaf], int]] = {
    **dict.fromkeys(("state", "next_state", "reshape"), Leaf.read),
    **dict.fromkeys(("normalize", "rescale", "relu", "sign"), lambda x: LAWS[x.op](x.a, x.read())),
    "look_up": lambda x: int(LAWS[x.op](x.a, x.read())),
    "inverse_root": lambda x: inverse_root(x.a, x.read()),
    "row_scale": lambda x: x.read() * x.read(1, x.row()),
    "column_scale": lambda x: x.read() * x.read(1, x.e % x.out["shape"][-1]),
    **dict.fromkeys(
        ("add", "sub", "mul", "relu_grad", "momentum", "adam_mean", "adam_square"),
        lambda x: LAWS[x.op](x.a, x.read(), x.read(1)),
    ),
    **dict.fromkeys(HASHING, leaf_of_hash),
    "increment": lambda x: min(x.read(0, 0) + 1, LAST_STEP),
    "schedule": lambda x: rate_of(x.a, x.read(0, 0)),
    "schedule_linear": lambda x: rate_on_line(x.a, x.read(0, 0)),
    "capped_square": lambda x: capped_square(x.a, x.read()),
    "clip_factor": lambda x: clip_of(x.a, x.read(0, 0)),
    "scale_by": lambda x: rs(x.read() * x.read(1, 0), x.a["shift"]),
    "adam_direction": lambda x: saturate(direction(x.a, x.read(), x.read(1)), "i32"),
    "adam_correction": lambda x: correction_of(x.a, x.read(0, 0)),
    "sample_index": lambda x: int(sampled(x.a, x.read(0, 0))[x.e]),
    "dropout_mask": lambda x: int(masked(x.a, x.read(0, 0), x.e)),
    "gather_samples": leaf_gather_samples,
    "one_hot": leaf_one_hot,
    "im2col": leaf_im2col,
    "transpose": leaf_transpose,
    **dict.fromkeys(("slice", "pad", "concat"), leaf_part),
    "gather_rows": leaf_gather_rows,
    "add_bias": lambda x: x.read() + rs(x.read(1, x.e % x.out["shape"][-1]), x.a["shift"]),
    "sgd_update": lambda x: LAWS[x.op](x.a, x.read(), x.read(1), x.read(2, 0)),
    "exp2_diff": lambda x: exp2_diff(x.read(), x.read(1, x.row())),
    "divide": lambda x: quotient(x.read(), x.read(1, x.row())),
    "causal_spans": lambda x: causal_span(x.a, x.e // 2)[x.e % 2],
    "keep_span": leaf_keep_span,
    "sub_one_hot": leaf_sub_one_hot,
    "logit_grad": leaf_logit_grad,
    "cross_entropy": leaf_cross_entropy,
    "tensor_digest": lambda x: x.inputs.digest(0)[x.e],
}


def make_fold(op: str, attrs: Attributes, types: list[Type], out: Type, element: int) -> Fold:
    """The fold that gives an element of a node's output."""
    if op == "matmul":
        return fold_matmul(attrs, types, element)
    if op == "batched_matmul":
        return fold_batched_matmul(attrs, types, element)
    if op == "softmax_grad":
        return fold_softmax_grad(types[0], element)
    if op == "scatter_add":
        return fold_scatter_add(attrs, types, element)
    if op == "token_spans":
        return fold_token_spans(attrs, types[0], element)
    if op == "center":
        return fold_center(attrs, types[0], element)
    if op == "row_dot":
        return fold_row_dot(types, element)
    if op in ("column_sum", "row_sum", "row_max", "sum", "square_sum"):
        return fold_sums(op, attrs, types[0], element)
    if op in ("sum_pool", "max_pool"):
        return fold_pool(op, attrs, types[0], element)
    if op in ("col2im", "sum_pool_grad"):
        return fold_unpool(op, attrs, element)
    if op == "max_pool_grad":
        return fold_max_pool_grad(attrs, types, element)

    def step(state: FoldState, i: int, inputs: Inputs) -> FoldState:
        return (LEAVES[op](Leaf(op, attrs, types, out, element, inputs)),)

    return Fold(1, 1, (0,), step)


# ----------------------------------------------------------------------------------------------
# 12. Statements about leaves (dispute.md, "The statement")
# ----------------------------------------------------------------------------------------------

MAX_STATEMENT = 2**24
SIZED_ROOT = structure({"root": HASH, "size": U64})
OPENED_NODE = structure({"data": ANY_BYTES, "path": PATH})
CHUNK_OPENING = structure({"index": U64, "chunk": ANY_BYTES, "path": PATH})
OPENED_INPUT = structure({"digest": HASH, "path": PATH, "chunks": array(CHUNK_OPENING, 32)})
OPENED_ROW = structure({"index": U64, "row": ANY_BYTES, "path": PATH})
OPENED_LEAF = structure({"leaf": ANY_BYTES, "index": U64, "size": U64, "path": PATH})


def opened_leaf(value: Any, where: str) -> None:
    """A leaf of the state tree, or an empty map."""
    if value != {}:
        OPENED_LEAF(value, where)


def statement_rule(windows: dict[str, Rule], tokens: dict[str, Rule]) -> Rule:
    """A statement, whose fields are read in this order, with these two where there are windows."""
    return structure(
        {"graph": SIZED_ROOT, "trace": SIZED_ROOT, "position": U64, "base": byte_string(0, 32)}
        | {"samples": SIZED_ROOT}
        | windows
        | {"node": OPENED_NODE, "sources": array(OPENED_NODE, 65536), "source_index": U64}
        | {"inputs": array(OPENED_INPUT, 65536), "state_leaf": opened_leaf}
        | {"rows": array(OPENED_ROW, 32)}
        | tokens
        | {"element": U64, "block": U64, "before": ANY_BYTES}
        | {"claims": plain_array(ANY_BYTES, 2, 2)}
    )


STATEMENT_OF_ROWS = statement_rule({}, {})
STATEMENT_OF_WINDOWS = statement_rule(
    {"windows": _TOKEN_WINDOWS}, {"tokens": array(CHUNK_OPENING, 32)}
)


def check_statement(value: Any, where: str) -> None:
    """The structure `statement`."""
    windowed = isinstance(value, dict) and "windows" in value
    (STATEMENT_OF_WINDOWS if windowed else STATEMENT_OF_ROWS)(value, where)


def require_rising(opened: list[dict], where: str) -> None:
    """Refuse openings that are not in the order of their indices, or twice there."""
    indices = [one["index"] for one in opened]
    require(indices == sorted(set(indices)), where, "not in rising order")


class OpenedInputs(Inputs):
    """Inputs of which a statement opens what is read.  Everything opened must verify."""

    def __init__(self, types: list[Type], statement: dict):
        super().__init__(types)
        self.statement = statement
        self.unread: dict[tuple[str, int], str] = {}  # openings that nothing has read yet
        self.chunks: list[dict[int, bytes]] = []
        for number, given in enumerate(statement["inputs"]):
            require_rising(given["chunks"], f"inputs[{number}].chunks")
            for count, opened in enumerate(given["chunks"]):
                place = f"inputs[{number}].chunks[{count}]"
                index, chunk, path = (opened[name] for name in ("index", "chunk", "path"))
                good = chunk_opens(given["digest"], bytes_of(types[number]), index, chunk, path)
                require(good, place, "does not verify")
                self.unread[f"inputs[{number}]", index] = place
            self.chunks.append({one["index"]: one["chunk"] for one in given["chunks"]})
        root, self.samples = (statement["samples"][name] for name in ("root", "size"))
        self.windows = statement.get("windows")
        self.tokens: dict[int, bytes] = {}
        if self.windows is not None:
            self.open_tokens(self.windows, root)
        require_rising(statement["rows"], "rows")
        for count, opened in enumerate(statement["rows"]):
            index, row, path = (opened[name] for name in ("index", "row", "path"))
            good = opens(SAMPLES_TREE, root, self.samples, index, row, path)
            require(good, f"rows[{count}]", "does not verify")
            self.unread["rows", index] = f"rows[{count}]"
        self.rows = {one["index"]: one["row"] for one in statement["rows"]}

    def open_tokens(self, form: dict, root: bytes) -> None:
        """Chunks of the file of tokens, of which the root is the plain BLAKE3."""
        require(count_windows(form) == self.samples, "windows", "make other samples")
        require(not self.statement["rows"], "rows", "the samples are no rows")
        require_rising(self.statement["tokens"], "tokens")
        length = form["tokens"] * TOKEN_BYTES[form["dtype"]]
        for count, opened in enumerate(self.statement["tokens"]):
            index, chunk, path = (opened[name] for name in ("index", "chunk", "path"))
            good = chunk_opens(root, length, index, chunk, path)
            require(good, f"tokens[{count}]", "does not verify")
            self.tokens[index] = chunk
            self.unread["tokens", index] = f"tokens[{count}]"

    def token_bytes(self, at: int) -> bytes:
        size = TOKEN_BYTES[self.statement["windows"]["dtype"]]
        index, begin = at * size // CHUNK, at * size % CHUNK
        require(index in self.tokens, "tokens", f"chunk {index} is missing")
        self.unread.pop(("tokens", index), None)
        return self.tokens[index][begin : begin + size]

    def chunk(self, number: int, index: int) -> bytes:
        place = f"inputs[{number}]"
        require(index in self.chunks[number], place, f"chunk {index} is missing")
        self.unread.pop((place, index), None)
        return self.chunks[number][index]

    def row(self, index: int) -> bytes | None:
        if not 0 <= index < self.samples:
            return None
        require(index in self.rows, "rows", f"row {index} is missing")
        self.unread.pop(("rows", index), None)
        return self.rows[index]

    def digest(self, number: int) -> bytes:
        return self.statement["inputs"][number]["digest"]

    def check_all_read(self) -> None:
        """Refuse what was opened and not read."""
        for place in self.unread.values():
            raise Refused(place, "nothing reads it")


@dataclass
class Ruling:
    """What a referee says."""

    what: str
    blocks: int
    after: bytes  # what comes out: the state, or the element where there is one block
    right: list[bool]  # of the two claims


class AnyExponent(int):
    """An exponent that is as any other: of inputs a referee knows dtypes and shapes alone."""

    def __add__(self, other: Any) -> AnyExponent:
        return self

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __add__

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def same_tensor(a: Type, b: Type) -> bool:
    """Have they one dtype and one shape?"""
    return (a["dtype"], a["shape"]) == (b["dtype"], b["shape"])


def check_rule(node: dict, sources: list[dict]) -> list[Type]:
    """Refuse a node that has no rule; the types of its inputs.  Exponents and ranges, which no
    leaf depends on, are not looked at."""
    outputs = [output for _, output in node["inputs"]]
    single = all(len(one["outputs"]) == 1 for one in [node, *sources])
    single = single and len(outputs) == len(sources)
    must(single and not any(outputs), "not one output each")
    types = [source["outputs"][0] for source in sources]
    must(all(0 not in given["shape"] for given in types), "an axis of an input is empty")
    bare = [given | {"exponent": AnyExponent(), "lo": 0, "hi": 0} for given in types]
    try:
        derived = derive_type(node["op"], node["attrs"], bare)
    except Refused as error:
        raise Refused("node", str(error)) from None
    must(same_tensor(node["outputs"][0], derived), "not the type that is derived")
    return types


class Referee:
    """Judges a statement: its methods make the checks of "The statement", in their order."""

    def __init__(self, statement: dict):
        self.statement = statement
        self.graph, self.trace = statement["graph"], statement["trace"]
        self.inputs, self.sources = statement["inputs"], statement["sources"]
        require(self.graph["size"] > 0, "graph", "has no nodes")
        require(statement["position"] < self.trace["size"], "position", "beyond the trace")
        self.index = statement["position"] % self.graph["size"]
        self.begin = statement["position"] - self.index  # of the step in the trace
        self.node = self.open_node(statement["node"], self.index, "node")
        if self.node["op"] != "state":
            self.types = self.open_inputs()
        elif self.begin == 0:
            self.types = self.open_first_state()
        else:
            self.types = self.open_later_state()

    def open_node(self, opened: dict, index: int, place: str) -> dict:
        """A node of the graph from its opening."""
        root, size = self.graph["root"], self.graph["size"]
        good = opens(GRAPH_TREE, root, size, index, opened["data"], opened["path"])
        require(good, place, "does not verify")
        try:
            return read(NODE, opened["data"], place)
        except Refused as error:
            raise Refused(place, str(error)) from None

    def open_digest(self, number: int, leaf: int) -> None:
        """The digest of an input is a leaf of the trace."""
        root, size, given = self.trace["root"], self.trace["size"], self.inputs[number]
        good = opens(TRACE_TREE, root, size, leaf, given["digest"], given["path"])
        require(good, f"inputs[{number}]", "does not verify")

    def check_state_rule(self) -> list[Type]:
        """The type of what a state reads, which is that of its output."""
        check_rule(self.node, [])
        return self.node["outputs"]

    def open_first_state(self) -> list[Type]:
        """7 to 15: a state in the first step, opened under the agreed state root."""
        opened, base = self.statement["state_leaf"], self.statement["base"]
        for name, kind in (("name", str), ("dtype", str), ("shape", list), ("exponent", int)):
            require(isinstance(self.node["attrs"].get(name), kind), "node", f"no {name}")
        require(abs(self.node["attrs"]["exponent"]) <= 512, "node", "the exponent")
        require(not self.sources, "sources", "a state in the first step has none")
        require(len(self.inputs) == 1, "inputs", "not one")
        require(not self.inputs[0]["path"], "inputs[0]", "not in the trace")
        require(base != b"", "base", "missing")
        require(opened != {}, "state_leaf", "missing")
        leaf, index, size, path = (opened[name] for name in ("leaf", "index", "size", "path"))
        expected = state_leaf(self.node["attrs"], self.inputs[0]["digest"])
        require(leaf == expected, "state_leaf", "not the leaf of this state with this digest")
        require(opens(STATE_TREE, base, size, index, leaf, path), "state_leaf", "does not verify")
        return self.check_state_rule()

    def open_later_state(self) -> list[Type]:
        """16 to 21: a state in a later step, which is what its `next_state` put out."""
        types, number = self.check_state_rule(), self.statement["source_index"]
        require(len(self.sources) == 1, "sources", "not one")
        source = self.open_node(self.sources[0], number, "sources[0]")
        good = source["op"] == "next_state" and len(source["outputs"]) == 1
        good = good and source["attrs"].get("name") == self.node["attrs"]["name"]
        good = good and same_tensor(source["outputs"][0], types[0])
        require(good, "sources[0]", "not the next_state of this state")
        require(len(self.inputs) == 1, "inputs", "not one")
        self.open_digest(0, self.begin - self.graph["size"] + number)
        return types

    def open_inputs(self) -> list[Type]:
        """22 to 27: any other node."""
        indices = [source for source, _ in self.node["inputs"]]
        require(len(self.sources) == len(indices), "sources", "not one for each input")
        sources = []
        for number, index in enumerate(indices):
            must(index < self.index, "reads no node before it")
            sources.append(self.open_node(self.sources[number], index, f"sources[{number}]"))
        types = check_rule(self.node, sources)
        require(len(self.inputs) == len(indices), "inputs", "not one for each input")
        for number, index in enumerate(indices):
            self.open_digest(number, self.begin + index)
        return types

    def judge(self) -> Ruling:
        """28 to 43, and the ruling."""
        statement, out, op = self.statement, self.node["outputs"][0], self.node["op"]
        element, block, before = (statement[name] for name in ("element", "block", "before"))
        first = op == "state" and self.begin == 0
        later = op == "state" and self.begin > 0
        require(first or statement["state_leaf"] == {}, "state_leaf", "nothing reads it")
        require(later or statement["source_index"] == 0, "source_index", "nothing reads it")
        require(element < size_of(out["shape"]), "element", "there is no such element")
        fold = make_fold(op, self.node["attrs"], self.types, out, element)
        require(block < fold.blocks, "block", "there is no such block")
        width = 8 * len(fold.start)
        require(len(before) == (width if block else 0), "before", "not a state before the block")
        size = width if fold.blocks > 1 else DTYPES[out["dtype"]].itemsize
        for claim in statement["claims"]:
            require(len(claim) in (0, size), "claims", "not of the length of what is claimed")
        inputs = OpenedInputs(self.types, statement)
        state = fold.run_block(block, decode_state(before) or fold.start, inputs)
        inputs.check_all_read()
        after = encode_state(state)
        if fold.blocks == 1:
            after = encode_element(fold.finish(state), out["dtype"])
        what = f"{place_of(self.node)} element {element} block {block} of {fold.blocks}"
        right = [after is not None and claim == after for claim in statement["claims"]]
        step = self.begin // self.graph["size"]
        return Ruling(f"{what} of step {step} of the trace", fold.blocks, after or b"", right)


def judge(data: bytes) -> Ruling:
    """The ruling on a statement; Refused, at the place that all must name, where there is none."""
    require(len(data) <= MAX_STATEMENT, "statement", "too long")
    return Referee(read(check_statement, data, "statement")).judge()


# ----------------------------------------------------------------------------------------------
# 13. Disputes: ids and frontiers (format.md, section 7)
# ----------------------------------------------------------------------------------------------

MAX_BONDS = 2**22  # of a game
AMOUNTS = structure(each("log trace terms", integer(0, 2**40)))
CLOCKS = structure(
    each("join trace terms budget grace", integer(1, 2**36))
    | each("answer opening replay", integer(0, 2**36))
)


def power_of_two(value: Any, where: str) -> None:
    """The arity of a game."""
    integer(2, 256)(value, where)
    require(value & (value - 1) == 0, where, "not a power of two")


GENESIS = structure(
    CLAIM_FIELDS
    | each("host graph_root initial_state_root samples_root nonce", HASH)
    | {"record_node": ITEM_COUNT, "opened": integer(0, 2**53)}
    | each("samples commit_every", STEP_COUNT)
    | {"log_size": STEP_NUMBER, "signature": SIGNATURE, "nodes": integer(1, 2**24)}
    | {"leaf_bytes": integer(1, 2**22), "arity": power_of_two, "group": integer(2, 4096)}
    | {"clocks": CLOCKS, "bonds": AMOUNTS, "windows": _TOKEN_WINDOWS},
    optional=["kzg_root", "windows"],
)
SIGNED_MOVE = structure(
    each("game party about", HASH) | {"move": byte_string(0, most=2**22), "signature": SIGNATURE}
)
MOVED_CHUNK = structure({"index": ITEM_COUNT, "chunk": byte_string(0, most=CHUNK), "path": PATH})
MOVED_INPUT = structure({"digest": HASH, "path": PATH, "chunks": array(MOVED_CHUNK, 4096)})
MOVED_ROW = structure({"index": ITEM_COUNT, "row": byte_string(0, most=2**20), "path": PATH})
MEMBER = structure(
    each("index size", ITEM_COUNT) | {"data": byte_string(0, most=65536), "path": PATH}
)
MOVE_FIELDS: dict[str, Rule] = {
    "bond": structure({"root": HASH, "leaf": byte_string(0, most=1024), "path": PATH}),
    "reveal": structure({"items": array(byte_string(0, most=1024), 256)}),
    "open": structure(
        {"log": HASH, "trace": HASH, "inputs": array(MOVED_INPUT, 65536)}
        | each("state_leaf base before", array(MEMBER, 1))
        | {"rows": array(MOVED_ROW, 4096), "terms": array(HASH, 1)}
        | {"tokens": array(MOVED_CHUNK, 4096, 1)},
        optional=["tokens"],
    ),
}


def check_move(value: Any, where: str) -> None:
    """What a party signs: its kind and the fields of that."""
    structure({"kind": word(*MOVE_FIELDS), "move": lambda value, where: None})(value, where)
    MOVE_FIELDS[value["kind"]](value["move"], f"{where}.move")


def longest_opening(task: dict, graph: list[dict]) -> int:
    """The `leaf_bytes` of a genesis of this task and graph; Refused where there is none."""
    path = 34 * (len(graph) * task["commit_every"]).bit_length()

    def chunk(length: int) -> int:
        return min(CHUNK, length) + 76 + 34 * chunk_count(length).bit_length()

    windows = task["data"].get("windows")
    if windows is not None:
        sample = chunk(windows["tokens"] * TOKEN_BYTES[windows["dtype"]])
    else:
        sample = sum(row_bytes(task["data"], part) for part in "xy")
        require(sample <= 2**20, "task.data", "samples are too long")
    sizes = [len(encode(node)) for node in graph]
    most = 0
    for node, size in zip(graph, sizes, strict=True):
        inputs = node["inputs"]
        chunks = [chunk(bytes_of(graph[source]["outputs"][out])) for source, out in inputs]
        opened = len(inputs) * path + sample + max(32 * max(chunks, default=0), sum(chunks))
        nodes = size + sum(sizes[source] for source, _ in inputs) + (len(inputs) + 1) * path
        good = size <= 2**18 and max(nodes, opened) <= 2**21
        require(good, f"node {node['name']}", "its opening would be too long")
        most = max(most, opened)
    return min(2 * most + 65536, 2**22)


def game_id_of(genesis: dict) -> bytes:
    """The id of a game."""
    return derive(GAME, encode(genesis))


def group_id(game: bytes, round_: int, roots: Sequence[bytes]) -> bytes:
    """The id of a group of claims of the log."""
    fields = {"game": game, "kind": "group", "round": round_, "roots": sorted(roots)}
    return derive(POSITION, encode(fields))


def dispute_id(above: bytes, tree: str, start: int, end: int, agreed: Sequence[bytes]) -> bytes:
    """The id of a dispute about leaves start to end."""
    fields = {"above": above, "kind": "dispute", "tree": tree, "start": start, "end": end}
    return derive(POSITION, encode(fields | {"agreed": list(agreed)}))


def side_id(dispute: bytes, value: bytes) -> bytes:
    """The id of the claims that have a value in a dispute."""
    return derive(POSITION, encode({"kind": "side", "dispute": dispute, "value": value}))


@dataclass(frozen=True)
class Fact:
    """What is under a hash: leaves start to end of a tree.  Of chunks, `length` is that of the
    tensor in bytes, and `whole` says that these are all of it."""

    tree: str
    start: int
    end: int
    hash: bytes
    length: int = 0

    @property
    def whole(self) -> bool:
        chunks = self.tree == "chunks"
        return chunks and self.start == 0 and self.end == chunk_count(self.length)

    def id(self) -> bytes:
        fields = {"kind": "fact", "tree": self.tree, "start": self.start, "end": self.end}
        fields |= {"hash": self.hash, "length": self.length, "root": int(self.whole)}
        return derive(POSITION, encode(fields))

    def parts(self, arity: int) -> list[tuple[int, int]]:
        """The ranges that an answer cuts this one into."""
        return cut(self.start, self.end, arity.bit_length() - 1)

    def is_shown_by(self, items: list[bytes], arity: int) -> bool:
        """Do these items of the parts give the hash?  An item is the hash of its part, and the data
        of a single leaf; of chunks it is the chaining value, and the chunk itself only where the
        whole range is one chunk."""
        parts = self.parts(arity)
        if len(items) != len(parts):
            return False
        join: Join = parent_value
        if self.tree != "chunks":
            domain = TREES[self.tree]
            pairs = zip(items, parts, strict=True)
            items = [leaf_hash(domain, x) if end - start == 1 else x for x, (start, end) in pairs]
            join = joining(domain)
        elif len(parts) == 1:
            if len(items[0]) != chunk_length(self.length, self.start):
                return False
            hash = plain_digest(items[0]) if self.whole else chunk_value(items[0], self.start)
            return hash == self.hash
        if any(len(item) != 32 for item in items):
            return False
        depth = arity.bit_length() - 1
        return combine(self.start, self.end, depth, iter(items), join, self.whole) == self.hash


TREES = {"log": RUN_LOG, "trace": TRACE_TREE, "terms": TERMS_TREE}


def middle_of(start: int, end: int) -> int:
    """Where a tree cuts a range of more than one leaf: at the largest power of two below its
    size."""
    return start + (1 << (end - start - 1).bit_length() - 1)


def cut(start: int, end: int, depth: int) -> list[tuple[int, int]]:
    """The ranges `depth` cuts below a range, or single leaves above that."""
    if depth == 0 or end - start == 1:
        return [(start, end)]
    middle = middle_of(start, end)
    return cut(start, middle, depth - 1) + cut(middle, end, depth - 1)


def combine(
    start: int, end: int, depth: int, hashes: Iterator[bytes], join: Join, whole: bool
) -> bytes:
    """The hash of a range from those of the ranges that `cut` gives."""
    if depth == 0 or end - start == 1:
        return next(hashes)
    middle = middle_of(start, end)
    left = combine(start, middle, depth - 1, hashes, join, False)
    right = combine(middle, end, depth - 1, hashes, join, False)
    return join(left, right, whole)


def move_digest(signed: dict) -> bytes:
    """What a party signs of a move."""
    fields = {name: signed[name] for name in ("about", "game", "move", "party")}
    return derive(MOVE, encode(fields))


# ----------------------------------------------------------------------------------------------
# 14. Disputes: the game (dispute.md, "The rules")
# ----------------------------------------------------------------------------------------------

Place = tuple[int, int, int, int, int]
PLACE_FIELDS = ("step", "node", "chunk", "element", "block")
NOWHERE: Place = (-1, -1, -1, -1, -1)
MAX_BOND = 8192  # bytes of a move where nothing is asked


class MoveRefused(Exception):
    """A move that the rules do not allow, with the code and place that all agree on."""

    def __init__(self, code: str, place: str = ""):
        super().__init__(f"{code} {place}")
        self.code = code
        self.place = place


def allow(condition: bool, place: str, code: str = "move-refused") -> None:
    """Refuse a move unless the condition holds."""
    if not condition:
        raise MoveRefused(code, place)


@dataclass
class Fall:
    """Why, where and when a claim fell."""

    reason: str
    place: Place
    at: int


@dataclass(eq=False)
class Claim:
    """A claim of a contest.  Its clock runs after `mark`; `budget` is what is left of it."""

    contest: Contest
    root: bytes
    side: Side | None
    budget: int
    mark: int
    fall: Fall | None = None

    @property
    def lives(self) -> bool:
        return self.fall is None


def living(claims: Sequence[Claim]) -> list[Claim]:
    """Those that have not fallen."""
    return [claim for claim in claims if claim.lives]


def cross(some: Sequence[Claim], others: Sequence[Claim]) -> bool:
    """Is a living claim of one a rival of a living claim of the other?"""
    return any(
        one is not other and (one.contest.level == "log" or one.side is not other.side)
        for one in living(some)
        for other in living(others)
    )


@dataclass(eq=False)
class Side:
    """A class of the dispute that a contest decides, for which sub-claims are bonded."""

    id: bytes
    contest: Contest
    value: bytes
    window: int | None = None  # when it ends
    begun_for: list[Claim] = field(default_factory=list)  # the claims for which it began

    @property
    def parents(self) -> list[Claim]:
        """The claims of the class."""
        return self.contest.decides.classes[self.value]

    def sub_claims(self) -> list[Claim]:
        return [claim for claim in self.contest.claims if claim.side is self]


@dataclass(eq=False)
class Contest:
    """Claims about one tree: of the log (a group), of a trace, or of the terms of a fold."""

    id: bytes
    level: str
    leaves: int
    place: Place
    decides: Dispute | None  # the dispute of the contest above; None of a group
    backing: dict[bytes, bytes]  # who backs which root, in the order of backing
    until: int = 0  # when the last of its windows ends
    claims: list[Claim] = field(default_factory=list)
    sides: dict[bytes, Side] = field(default_factory=dict)  # by value
    disputes: dict[bytes, Dispute] = field(default_factory=dict)
    below: list[Contest] = field(default_factory=list)  # in the order in which they began

    @property
    def above(self) -> Contest | None:
        return self.decides.contest if self.decides else None

    @property
    def group(self) -> Contest:
        return self.above.group if self.above else self

    def claim_of(self, root: bytes) -> Claim | None:
        """The claim of a root: the last one."""
        found = [claim for claim in self.claims if claim.root == root]
        return found[-1] if found else None

    def whole(self) -> Iterator[Contest]:
        """This contest and all below it."""
        yield self
        for contest in self.below:
            yield from contest.whole()


@dataclass(eq=False)
class Dispute:
    """A range of leaves in which claims differ: its classes, and what is asked of them."""

    id: bytes
    contest: Contest
    tree: str
    start: int
    end: int
    place: Place
    leaf: str = ""  # "record", "digest", "element", "state", or "" for a range
    tensor: Dispute | None = None  # the dispute about the whole tensor, of chunks
    length: int = 0  # of the tensor in bytes
    own_ready: int = 0
    classes: dict[bytes, list[Claim]] = field(default_factory=dict)
    known: set[bytes] = field(default_factory=set)  # classes whose items are known in it
    asked: dict[bytes, dict[Claim, int]] = field(default_factory=dict)  # class: claim: due
    ruling: tuple[bytes | None] | None = None

    @property
    def ready(self) -> int:
        return self.tensor.own_ready if self.tensor else 0

    def others(self, value: bytes) -> list[Claim]:
        others = [claims for other, claims in self.classes.items() if other != value]
        return [claim for claims in others for claim in claims]

    def needs(self, value: bytes) -> bool:
        return cross(self.classes[value], self.others(value))

    def fact(self, value: bytes) -> Fact:
        """What is under the hash of a class."""
        return Fact(self.tree, self.start, self.end, value, self.length)


@dataclass
class Bond:
    """A bond that was accepted."""

    party: bytes
    contest: Contest | None  # None of the log
    root: bytes
    amount: int


@dataclass
class Work:
    """An answer, an opening or a sub-claim: what it was for decides what it is worth."""

    party: bytes
    worth: int
    classes: list[list[Claim]] = field(default_factory=list)
    sub_claim: tuple[Contest, bytes] | None = None


class Game:
    """A game, at a time.  `apply` makes a move, `advance` lets time go on."""

    def __init__(self, genesis: dict, graph: list[dict]):
        claim = {name: genesis[name] for name in CLAIM_FIELDS if name in genesis}
        digest = claim_digest(claim)
        holds = signature_holds(genesis["solver"], digest, genesis["signature"])
        require(holds, "genesis.signature", "does not hold")
        require(graph_root(graph) == genesis["graph_root"], "genesis.graph_root", "another graph")
        require(len(graph) == genesis["nodes"], "genesis.nodes", "not those of the graph")
        records = [index for index, node in enumerate(graph) if node["op"] == "record"]
        same = records == [genesis["record_node"]]
        require(same, "genesis.record_node", "not that of the graph")
        require(all(len(node["outputs"]) == 1 for node in graph), "graph", "not one output each")
        self.genesis, self.graph = genesis, graph
        self.clocks = genesis["clocks"]
        self.arity, self.nodes = genesis["arity"], genesis["nodes"]
        self.graph_leaves = [encode(node) for node in graph]
        self.id = game_id_of(genesis)
        self.now = genesis["opened"]
        self.by_time = False  # is what happens brought about by time alone?
        self.round = 0
        self.over = False
        self.standing: bytes | None = None
        self.ended = 0
        self.log = {genesis["solver"]: genesis["log_root"]}  # who backs which root
        self.log_roots: dict[bytes, Fall | None] = {genesis["log_root"]: None}
        self.groups: list[Contest] = []  # of this round
        self.past_groups: list[Contest] = []
        self.sides: dict[bytes, Side] = {}
        self.facts: dict[bytes, list[bytes]] = {}
        self.waiting: dict[bytes, list[tuple[Dispute, bytes]]] = {}
        self.touched: dict[Dispute, None] = {}
        self.falling: list[tuple[Claim, str, Place]] = []
        self.bonds: list[Bond] = []
        self.works: list[Work] = []

    # --- what there is

    def base_step(self, step: int) -> int:
        """b(t): the last step before t that has a state root, or 0."""
        every = self.genesis["commit_every"]
        return (step - 1) // every * every

    def strength(self, contest: Contest) -> tuple[int, int]:
        """S and R of the group of a contest."""
        alive = sum(len(living(one.claims)) for one in contest.group.whole())
        return alive, len(living(contest.group.claims)) - 1

    def fold(self, dispute: Dispute) -> Fold:
        """The fold of the element that a dispute is about."""
        node = self.graph[dispute.place[1]]
        types = [self.graph[source]["outputs"][0] for source, _ in node["inputs"]]
        out = node["outputs"][0]
        types = types or [out]
        return make_fold(node["op"], node["attrs"], types, out, dispute.place[3])

    def width(self, dispute: Dispute) -> int:
        """Bytes of an element of the tensor that a dispute is about."""
        return DTYPES[self.graph[dispute.place[1]]["outputs"][0]["dtype"]].itemsize

    def items(self, dispute: Dispute, value: bytes) -> list[bytes]:
        """The items of a class: of a single chunk, its elements."""
        items = self.facts[dispute.fact(value).id()]
        if dispute.tree == "chunks" and dispute.end - dispute.start == 1:
            chunk, width = items[0], self.width(dispute)
            return [chunk[i : i + width] for i in range(0, len(chunk), width)]
        return items

    # --- time

    def advance(self, to: int) -> None:
        """Let whatever is due before a time take effect, each at its own time."""
        while not self.over:
            due = self.next_due()
            if due is None or due >= to:
                break
            self.pass_to(due)
            self.by_time = True
            self.find_due()
            self.settle()
            self.by_time = False
        self.pass_to(max(to, self.now))

    def next_due(self) -> int | None:
        """The first time at which time alone brings something about."""
        if self.round == 0:
            return self.genesis["opened"] + self.clocks["join"]
        dues = self.first_dues().items()
        times = [max(claim.mark, due) + claim.budget for claim, due in dues]
        for contest in self.all_contests():
            times += [
                max(side.window, self.now)
                for side in contest.sides.values()
                if side.window is not None and self.undefended(side)
            ]
        return min(times, default=None)

    def all_contests(self) -> Iterator[Contest]:
        for group in self.groups:
            yield from group.whole()

    def all_disputes(self) -> Iterator[Dispute]:
        """All disputes of the round, in ascending order of contest, then of dispute."""
        for contest in sorted(self.all_contests(), key=lambda contest: contest.id):
            yield from (contest.disputes[id] for id in sorted(contest.disputes))

    def first_dues(self) -> dict[Claim, int]:
        """When the first of what is asked of a living claim is due."""
        first: dict[Claim, int] = {}
        for dispute in self.all_disputes():
            for dues in dispute.asked.values():
                for claim, due in dues.items():
                    if claim.lives:
                        first[claim] = min(due, first.get(claim, due))
        return first

    def pass_to(self, time: int) -> None:
        """Take what clocks run until a time off the budgets."""
        for claim, due in self.first_dues().items():
            claim.budget -= max(0, time - max(claim.mark, due))
            claim.mark = max(claim.mark, time)
        self.now = time

    def find_due(self) -> None:
        """What time brings about now."""
        if self.round == 0:
            self.begin_round()
            return
        for contest in sorted(self.all_contests(), key=lambda contest: contest.id):
            for side in sorted(contest.sides.values(), key=lambda side: side.id):
                self.look_for_fall(side)
        for dispute in self.all_disputes():
            for value in sorted(dispute.asked):
                for claim, due in dispute.asked[value].items():
                    if claim.lives and claim.budget == 0 and due <= self.now >= claim.mark:
                        self.falling.append((claim, "silent", dispute.place))

    # --- rounds

    def begin_round(self) -> None:
        """The next round, or the end."""
        roots = sorted(root for root, fall in self.log_roots.items() if fall is None)
        self.round += 1
        self.past_groups += self.groups
        self.groups = []
        self.waiting.clear()
        if len(roots) <= 1:
            self.over = True
            self.ended = self.now
            self.standing = roots[0] if roots else None
            return
        count = -(-len(roots) // self.genesis["group"])
        for number in range(count):
            dealt = roots[number::count]
            id = group_id(self.id, self.round, dealt)
            group = Contest(id, "log", self.genesis["log_size"], NOWHERE, None, self.log)
            self.groups.append(group)
            self.open_first(group)
        for number, group in enumerate(self.groups):
            for root in roots[number::count]:
                self.come_to_contest(group, root, None)

    def open_first(self, contest: Contest) -> Dispute:
        """The first dispute of a contest: about all leaves of its tree."""
        id = dispute_id(contest.id, contest.level, 0, contest.leaves, [])
        dispute = Dispute(id, contest, contest.level, 0, contest.leaves, contest.place)
        contest.disputes[id] = dispute
        return dispute

    # --- coming and parting

    def come_to_contest(self, contest: Contest, root: bytes, side: Side | None) -> None:
        claim = Claim(contest, root, side, self.clocks["budget"], self.now)
        contest.claims.append(claim)
        first = dispute_id(contest.id, contest.level, 0, contest.leaves, [])
        self.come(contest.disputes[first], root, [claim])

    def come(self, dispute: Dispute, value: bytes, claims: list[Claim]) -> None:
        """Claims come to a dispute with a value."""
        members = dispute.classes.setdefault(value, [])
        new = [claim for claim in claims if claim not in members]
        if not new:
            return
        members += new
        if dispute.tensor is dispute:
            rivals = self.strength(dispute.contest)[1]
            dispute.own_ready = self.now + self.clocks["replay"] * (max(1, rivals) + 1)
        self.touched.setdefault(dispute)
        if dispute.leaf:
            if not self.is_sound(dispute, value):
                self.falling += [(claim, "malformed", dispute.place) for claim in living(members)]
            elif dispute.leaf == "digest":
                self.come(self.tensor_below(dispute), value, claims)
        elif dispute.fact(value).id() in self.facts:
            dispute.known.add(value)
            self.part(dispute, value)

    def is_sound(self, dispute: Dispute, value: bytes) -> bool:
        """Can the item of a leaf be one at all?"""
        if dispute.leaf == "record":
            try:
                record = read(RECORD, value, "record")
            except Refused:
                return False
            due = record["step"] % self.genesis["commit_every"] == 0
            return record["step"] == dispute.place[0] and (record["state_root"] != b"") == due
        if dispute.leaf == "digest":
            return len(value) == 32
        if dispute.leaf == "state":
            return len(value) == 8 * len(self.fold(dispute).start)
        return True

    def part(self, dispute: Dispute, value: bytes) -> None:
        """A class parts from the others whose items are known: on to what differs first."""
        members = living(dispute.classes[value])
        if not members:
            return
        items = self.items(dispute, value)
        found: dict[int, dict[bytes, list[Claim]]] = {}
        for other in sorted(dispute.classes):
            if other == value or other not in dispute.known:
                continue
            theirs = self.items(dispute, other)
            if theirs == items or not cross(members, dispute.classes[other]):
                continue
            i = next(i for i, item in enumerate(items) if item != theirs[i])
            coming = found.setdefault(i, {}).setdefault(theirs[i], [])
            coming += living(dispute.classes[other])
        for i, rivals in found.items():
            below = self.dispute_below(dispute, items, i)
            self.come(below, items[i], members)
            for item, claims in rivals.items():
                self.come(below, item, claims)

    def dispute_below(self, dispute: Dispute, items: list[bytes], i: int) -> Dispute:
        """The dispute about item i of a range."""
        tree, contest = dispute.tree, dispute.contest
        step, node, chunk, element, block = dispute.place
        leaf = ""
        if tree == "chunks" and dispute.end - dispute.start == 1:
            chunk = dispute.start
            start = element = chunk * (CHUNK // self.width(dispute)) + i
            end, leaf = start + 1, "element"
        else:
            start, end = dispute.fact(b"").parts(self.arity)[i]
            if end - start == 1 and tree == "log":
                leaf, step = "record", start + 1
            elif end - start == 1 and tree == "trace":
                leaf, node = "digest", start % self.nodes
                step = self.base_step(contest.place[0]) + 1 + start // self.nodes
            elif end - start == 1 and tree == "terms":
                leaf, block = "state", start
        id = dispute_id(dispute.id, tree, start, end, items[:i])
        if id not in contest.disputes:
            place = (step, node, chunk, element, block)
            contest.disputes[id] = Dispute(
                id, contest, tree, start, end, place, leaf, dispute.tensor, dispute.length
            )
        return contest.disputes[id]

    def tensor_below(self, dispute: Dispute) -> Dispute:
        """The dispute about a whole tensor, below that about its digest."""
        length = bytes_of(self.graph[dispute.place[1]]["outputs"][0])
        chunks = chunk_count(length)
        id = dispute_id(dispute.id, "chunks", 0, chunks, [])
        contest = dispute.contest
        if id not in contest.disputes:
            below = Dispute(id, contest, "chunks", 0, chunks, dispute.place, length=length)
            below.tensor = below
            contest.disputes[id] = below
        return contest.disputes[id]

    # --- what is asked

    def due(self, dispute: Dispute) -> int:
        """When what is asked now in a dispute is due."""
        alive = self.strength(dispute.contest)[0]
        each = self.clocks["opening" if dispute.leaf else "answer"]
        begin = max(self.now, dispute.contest.until, dispute.ready)
        return begin + self.clocks["grace"] + alive * each

    def about(self, dispute: Dispute, value: bytes) -> bytes:
        """The id at which something is asked of a class: a fact, or the opening."""
        return dispute.id if dispute.leaf else dispute.fact(value).id()

    def ask(self, dispute: Dispute, value: bytes) -> None:
        """Ask a class for its fact, or for the opening."""
        dues = dispute.asked.setdefault(value, {})
        if not dues:
            self.waiting.setdefault(self.about(dispute, value), []).append((dispute, value))
        for claim in living(dispute.classes[value]):
            if claim not in dues:
                dues[claim] = self.due(dispute)

    def stop_asking(self, dispute: Dispute, value: bytes) -> None:
        """Something is not asked of a class any more."""
        if dispute.asked.pop(value, None) is not None:
            about = self.about(dispute, value)
            self.waiting[about].remove((dispute, value))
            if not self.waiting[about]:
                del self.waiting[about]

    def bytes_allowed(self, about: bytes) -> int:
        """How long a move about this may be."""
        if about not in self.waiting:
            return MAX_BOND
        dispute, value = self.waiting[about][0]
        if dispute.leaf:
            return self.genesis["leaf_bytes"]
        parts = dispute.fact(value).parts(self.arity)
        return 64 + sum(34 if end - start > 1 else 1027 for start, end in parts)

    def look(self, dispute: Dispute) -> None:
        """Look at a dispute that was touched."""
        if dispute.leaf == "record":
            self.look_at_sides(dispute, "trace")
        elif dispute.leaf == "element" and self.fold(dispute).blocks > 1:
            self.look_at_sides(dispute, "terms")
        elif dispute.ruling is not None:
            for value in sorted(dispute.classes):
                if value != dispute.ruling[0]:
                    fallen = living(dispute.classes[value])
                    self.falling += [(claim, "refuted", dispute.place) for claim in fallen]
        elif dispute.leaf != "digest":
            self.look_at_classes(dispute)

    def look_at_classes(self, dispute: Dispute) -> None:
        """Ask the classes that are needed and have not answered."""
        needed = [value for value in sorted(dispute.classes) if dispute.needs(value)]
        for value in sorted(dispute.asked):
            if value not in needed:
                self.stop_asking(dispute, value)
        for value in needed:
            if value in dispute.known:
                continue
            if not dispute.leaf and dispute.fact(value).id() in self.facts:
                self.stop_asking(dispute, value)
                dispute.known.add(value)
                self.part(dispute, value)
            else:
                self.ask(dispute, value)

    # --- sides

    def look_at_sides(self, dispute: Dispute, level: str) -> None:
        """Look at the sides of a record or of an element of more than one block."""
        needed = [value for value in dispute.classes if dispute.needs(value)]
        above = dispute.contest
        contest = next((one for one in above.below if one.decides is dispute), None)
        if contest is None:
            if not needed:
                return
            step = dispute.place[0]
            leaves = (step - self.base_step(step)) * self.nodes
            if level == "terms":
                leaves = self.fold(dispute).blocks
            contest = Contest(dispute.id, level, leaves, dispute.place, dispute, {})
            above.below.append(contest)
            self.open_first(contest)
        begun: list[Side] = []
        for value in sorted(dispute.classes):
            side = contest.sides.get(value)
            if value not in needed:
                if side is not None:
                    side.window = None
                continue
            if side is None:
                side = Side(side_id(dispute.id, value), contest, value)
                contest.sides[value] = self.sides[side.id] = side
            members = living(dispute.classes[value])
            if side.window is None or any(claim not in side.begun_for for claim in members):
                side.window = self.window_end(dispute, level)
                side.begun_for = members
                contest.until = max(contest.until, side.window)
                begun.append(side)
        mark = contest.until + self.clocks["grace"]
        mark += self.strength(contest)[0] * self.clocks["answer"]
        for side in begun:
            for claim in living(side.sub_claims()):
                claim.budget, claim.mark = self.clocks["budget"], mark

    def window_end(self, dispute: Dispute, level: str) -> int:
        """When a window that begins now ends."""
        alive, rivals = self.strength(dispute.contest)
        begin = max(self.now, dispute.contest.until, dispute.ready)
        if level == "trace":
            return begin + self.clocks["trace"] + self.clocks["replay"] * max(0, rivals - 1)
        return begin + self.clocks["terms"] + alive * self.clocks["answer"]

    def undefended(self, side: Side) -> list[Claim]:
        """The claims that fall once the side's window is over, as things stand."""
        return [] if living(side.sub_claims()) else living(side.begun_for)

    def look_for_fall(self, side: Side) -> None:
        """A side whose window is over falls without a living sub-claim."""
        if side.window is None or side.window > self.now:
            return
        if side.window == self.now and not self.by_time:
            return
        for claim in self.undefended(side):
            self.falling.append((claim, "undefended", side.contest.place))

    # --- falls

    def settle(self) -> None:
        """Let everything follow that follows."""
        while not self.over:
            if self.falling:
                self.fall_together()
            elif self.touched:
                dispute = next(iter(self.touched))
                del self.touched[dispute]
                self.look(dispute)
            elif self.round and all(len(living(group.claims)) <= 1 for group in self.groups):
                self.begin_round()
            else:
                break

    def fall_together(self) -> None:
        """The claims that were found to fall do."""
        found, self.falling = self.falling, []
        contests: dict[Contest, list[Claim]] = {}
        falls: list[tuple[Claim, Fall]] = []
        for claim, why, at in found:
            if not claim.lives or claim in contests.get(claim.contest, []):
                continue
            contests.setdefault(claim.contest, []).append(claim)
            reason, place = self.why_undefended(claim, at) if why == "undefended" else (why, at)
            falls.append((claim, Fall(reason, place, self.now)))
        for claim, fall in falls:
            claim.fall = fall
            if claim.contest.level == "log":
                self.log_roots[claim.root] = fall
        for contest, fallen in contests.items():
            for id in sorted(contest.disputes):
                dispute = contest.disputes[id]
                members = [claim for claims in dispute.classes.values() for claim in claims]
                if dispute.asked and any(claim in fallen for claim in members):
                    self.touched.setdefault(dispute)
            for side in sorted(contest.sides.values(), key=lambda side: side.id):
                self.look_for_fall(side)
            for below in contest.below:
                self.touched.setdefault(below.decides)
                for claim in living(below.claims):
                    if not living(claim.side.parents):
                        self.falling.append((claim, "moot", below.decides.place))

    def why_undefended(self, claim: Claim, place: Place) -> tuple[str, Place]:
        """The reason and place of a sub-claim, if there is one, for a claim that falls with it."""
        backing = claim.contest.backing
        author = next((party for party, root in backing.items() if root == claim.root), None)
        found = []
        for order, contest in enumerate(claim.contest.below):
            for side in contest.sides.values():
                if claim not in side.parents or living(side.sub_claims()):
                    continue
                for number, sub in enumerate(contest.claims):
                    if sub.side is side and sub.fall.reason != "moot":
                        others = contest.backing.get(author) != sub.root
                        rank = (others, sub.fall.reason != "refuted", order, number)
                        found.append((rank, sub.fall))
        if not found:
            return "undefended", place
        first = min(found, key=lambda entry: entry[0])[1]
        return first.reason, first.place

    # --- moves

    def apply(self, data: bytes, time: int) -> None:
        """Make a move at a time; MoveRefused where the rules do not allow it."""
        try:
            signed = read(SIGNED_MOVE, data, "move")
        except Refused:  # by whoever receives it: no time passes
            raise MoveRefused("encoding") from None
        allow(time >= self.now, "now")
        self.advance(time)
        party, about = signed["party"], signed["about"]
        allow(signed["game"] == self.id, "game")
        allow(not self.over, "game")
        waiting = self.waiting.get(about, [])
        side = self.sides.get(about)
        if waiting:
            asked = [claim for dispute, value in waiting for claim in dispute.asked[value]]
            backing = [claim.contest.backing.get(party) == claim.root for claim in asked]
            allow(any(backing), "party")
        else:
            allow(about == self.id or side is not None, "about")
            backed = self.log if side is None else side.contest.backing
            allow(party not in backed, "party")
            allow(len(self.bonds) < MAX_BONDS, "game")
        allow(len(signed["move"]) <= self.bytes_allowed(about), "move")
        holds = signature_holds(party, move_digest(signed), signed["signature"])
        allow(holds, "", "signature")
        try:
            move = read(check_move, signed["move"], "move")
        except Refused:
            raise MoveRefused("encoding") from None
        opening = bool(waiting) and waiting[0][0].leaf != ""
        kind = "bond" if not waiting else "open" if opening else "reveal"
        allow(move["kind"] == kind, "about")
        if kind == "bond" and side is None:
            self.bond_log(party, move["move"])
        elif kind == "bond":
            self.bond_side(party, move["move"], side)
        elif kind == "reveal":
            self.reveal(party, move["move"]["items"], about)
        else:
            self.open_leaf(party, move["move"], waiting[0][0])
        self.settle()

    def bond_log(self, party: bytes, move: dict) -> None:
        """Rules 10 to 12."""
        root = move["root"]
        allow(move["leaf"] == b"" and move["path"] == [], "bond")
        allow(root in self.log_roots or self.round == 0, "game")
        allow(self.log_roots.get(root) is None, "root")
        self.log_roots.setdefault(root, None)
        self.bonds.append(Bond(party, None, root, self.genesis["bonds"]["log"]))
        self.log[party] = root

    def bond_side(self, party: bytes, move: dict, side: Side) -> None:
        """Rules 13 to 17."""
        contest, root = side.contest, move["root"]
        claim = contest.claim_of(root)
        if claim is not None:
            allow(claim.side is side, "about")
            allow(claim.lives or claim.fall.reason not in ("malformed", "refuted"), "root")
        new = claim is None or not claim.lives
        if new:
            allow(side.window is not None and side.window >= self.now, "about")
            self.check_end(side, move)
        parents = [claim.root for claim in living(side.parents)]
        free = contest.above.backing.get(party) in parents
        amount = 0 if free else self.genesis["bonds"][contest.level]
        self.bonds.append(Bond(party, contest, root, amount))
        contest.backing[party] = root
        if new:
            kind = "replay" if contest.level == "trace" else "answer"
            self.works.append(Work(party, max(1, self.clocks[kind]), sub_claim=(contest, root)))
            self.come_to_contest(contest, root, side)

    def check_end(self, side: Side, move: dict) -> None:
        """Rules 16 and 17: a sub-claim ends in what its side claims."""
        contest, leaf = side.contest, move["leaf"]
        index = contest.leaves - 1
        if contest.level == "trace":
            index = contest.leaves - self.nodes + self.genesis["record_node"]
            allow(leaf == plain_digest(leaf_hash(RUN_LOG, side.value)), "leaf")
        else:
            fold = self.fold(contest.decides)
            allow(len(leaf) == 8 * len(fold.start), "leaf")
            dtype = self.graph[contest.place[1]]["outputs"][0]["dtype"]
            allow(encode_element(fold.finish(decode_state(leaf)), dtype) == side.value, "leaf")
        domain = TREES[contest.level]
        good = opens(domain, move["root"], contest.leaves, index, leaf, move["path"])
        allow(good, "leaf")

    def reveal(self, party: bytes, items: list[bytes], about: bytes) -> None:
        """Rules 18 to 20."""
        waiting = list(self.waiting[about])
        fact = waiting[0][0].fact(waiting[0][1])
        allow(fact.is_shown_by(items, self.arity), "items")
        classes = [dispute.classes[value] for dispute, value in waiting]
        self.works.append(Work(party, max(1, self.clocks["answer"]), classes))
        self.facts[about] = items
        for dispute, value in waiting:
            self.stop_asking(dispute, value)
            dispute.known.add(value)
            self.part(dispute, value)

    # --- openings

    def open_leaf(self, party: bytes, move: dict, dispute: Dispute) -> None:
        """Rule 21."""
        statement = self.make_statement(move, dispute)
        try:
            ruling = judge(encode(statement))
        except Refused as error:
            raise MoveRefused("move-refused", error.where) from None
        classes = list(dispute.classes.values())
        self.works.append(Work(party, max(1, self.clocks["opening"]), classes))
        dispute.ruling = (ruling.after or None,)
        for value in list(dispute.asked):
            self.stop_asking(dispute, value)
        self.touched.setdefault(dispute)

    def make_statement(self, move: dict, dispute: Dispute) -> dict:
        """The statement about a leaf ("The statement")."""
        genesis, contest = self.genesis, dispute.contest
        of_element = dispute if dispute.leaf == "element" else contest.decides
        trace = of_element.contest
        step, index, _, element, block = dispute.place
        block = max(block, 0)
        before = b""
        if block == 0:
            allow(not move["terms"] and not move["before"], "before")
        else:
            allow(bool(move["terms"] and move["before"]), "before")
            terms, opened = move["terms"][0], move["before"][0]
            allow(terms in roots_in(dispute), "terms")
            before = opened["data"]
            good = (opened["index"], opened["size"]) == (block - 1, contest.leaves)
            allow(good and leaf_opens(TERMS_TREE, terms, opened), "before")
        allow(move["trace"] in roots_in(of_element), "trace")
        allow(move["log"] in roots_in(trace.decides), "log")
        begin = self.base_step(trace.place[0])
        base = b"" if begin else genesis["initial_state_root"]
        if begin == 0:
            allow(not move["base"], "base")
        elif move["base"]:
            opened = move["base"][0]
            good = (opened["index"], opened["size"]) == (begin - 1, genesis["log_size"])
            allow(good and leaf_opens(RUN_LOG, move["log"], opened), "base")
            try:
                base = read(RECORD, opened["data"], "record")["state_root"]
            except Refused:
                raise MoveRefused("move-refused", "base") from None
        node, offset = self.graph[index], step - begin - 1
        sources = [source for source, _ in node["inputs"]]
        source_index = 0
        if node["op"] == "state" and offset > 0:
            written = [(other["op"], other["attrs"].get("name")) for other in self.graph]
            source_index = written.index(("next_state", node["attrs"]["name"]))
            sources = [source_index]
        leaf: dict[str, Any] = {}
        for one in move["state_leaf"]:
            leaf = {"leaf": one["data"]} | {name: one[name] for name in ("index", "size", "path")}
        values = sorted(value for value, claims in dispute.classes.items() if living(claims))
        tokens = move.get("tokens", [])
        windowed: dict[str, Any] = {}
        if "windows" in genesis:
            windowed = {"windows": genesis["windows"], "tokens": tokens}
        else:
            allow(not tokens, "tokens")
        return windowed | {
            "graph": {"root": genesis["graph_root"], "size": self.nodes},
            "samples": {"root": genesis["samples_root"], "size": genesis["samples"]},
            "base": base,
            "trace": {"root": move["trace"], "size": trace.leaves},
            "position": offset * self.nodes + index,
            "node": self.opened_node(index),
            "sources": [self.opened_node(source) for source in sources],
            "source_index": source_index,
            "inputs": move["inputs"],
            "rows": move["rows"],
            "state_leaf": leaf,
            "element": element,
            "block": block,
            "before": before,
            "claims": [*values, b"", b""][:2],
        }

    def opened_node(self, index: int) -> dict:
        """A node, opened against the graph root."""
        path = path_to(GRAPH_TREE, self.graph_leaves, index)
        return {"data": self.graph_leaves[index], "path": path}

    # --- the end

    def verdict(self) -> dict:
        """The Verdict of a game that is over."""
        fall = self.log_roots[self.genesis["log_root"]]
        solver = []
        if fall is not None:
            place = dict(zip(PLACE_FIELDS, fall.place, strict=True))
            solver = [{"reason": fall.reason, "place": place, "at": fall.at}]
        return {
            "game": self.id,
            "standing": self.standing or b"",
            "solver": solver,
            "at": self.ended,
            "bonds": len(self.bonds),
            "outcomes": derive(GAME, encode(self.outcomes())),
        }

    def for_standing(self) -> tuple[set[Claim], set[Claim]]:
        """The claims that are for the standing claim, and those that are the only ones."""
        standing: set[Claim] = set()
        only: set[Claim] = set()

        def go(contest: Contest, above_only: bool) -> None:
            if contest.decides is None:
                mine = [claim for claim in contest.claims if claim.root == self.standing]
            else:
                alive = living(contest.claims)
                mine = [claim for claim in alive if standing.intersection(claim.side.parents)]
            standing.update(mine)
            alone = above_only and len(mine) == 1
            if alone:
                only.update(mine)
            for below in contest.below:
                go(below, alone)

        for group in self.past_groups:
            if self.standing is not None:
                go(group, True)
        return standing, only

    def losers(self) -> tuple[list[bool], set[bytes]]:
        """Which bonds are returned, and the parties of which one is not."""
        standing, _ = self.for_standing()
        stands, liars = [], set()
        for bond in self.bonds:
            if bond.contest is None:
                stands.append(bond.root == self.standing)
                continue
            claim = bond.contest.claim_of(bond.root)
            stands.append(claim in standing)
            if bond.amount == 0 and claim.fall is not None and claim.fall.reason != "moot":
                liars.add(bond.party)
        pairs = list(zip(self.bonds, stands, strict=True))
        returned = [good and bond.party not in liars for bond, good in pairs]
        return returned, {bond.party for bond, good in pairs if not good or bond.party in liars}

    def work(self) -> dict[bytes, int]:
        """Work for what stands by party, in the order of the first; that of nobody under b""."""
        standing, only = self.for_standing()
        _, lost = self.losers()
        sums: dict[bytes, int] = {}
        for work in self.works:
            backs = self.log.get(work.party, self.standing)
            if work.party in lost or backs != self.standing:
                continue
            claims = [claim for members in work.classes for claim in members]
            if work.sub_claim is not None:
                claims = [work.sub_claim[0].claim_of(work.sub_claim[1])]
            if any(claim in standing for claim in claims):
                party = work.party if any(claim in only for claim in claims) else b""
                sums[party] = sums.get(party, 0) + work.worth
        return sums

    def outcomes(self) -> dict:
        """What becomes of the bonds ("Money")."""
        returned, _ = self.losers()
        pairs = list(zip(self.bonds, returned, strict=True))
        pot = sum(bond.amount for bond, good in pairs if not good)
        work = self.work() if pot else {}
        total = sum(work.values())
        paid = {party: pot * worth // total for party, worth in work.items() if party}
        shares = [{"party": party, "amount": amount} for party, amount in paid.items()]
        outcomes = [
            {
                "party": bond.party,
                "level": bond.contest.level if bond.contest else "log",
                "scope": bond.contest.id if bond.contest else self.id,
                "root": bond.root,
                "amount": bond.amount,
                "returned": int(good),
            }
            for bond, good in pairs
        ]
        burnt = pot - sum(paid.values())
        return {"outcomes": outcomes, "shares": shares, "pot": pot, "burnt": burnt}


def roots_in(dispute: Dispute) -> set[bytes]:
    """The roots of all claims in a dispute, fallen or not."""
    return {claim.root for claims in dispute.classes.values() for claim in claims}


def leaf_opens(domain: str, root: bytes, opened: dict) -> bool:
    """Does an opening of a leaf verify?"""
    return opens(domain, root, opened["size"], opened["index"], opened["data"], opened["path"])


def path_to(domain: str, leaves: list[bytes], index: int) -> list[bytes]:
    """The path from a leaf upwards."""
    if len(leaves) == 1:
        return []
    middle = middle_of(0, len(leaves))
    if index < middle:
        return [*path_to(domain, leaves[:middle], index), tree_root(domain, leaves[middle:])]
    return [*path_to(domain, leaves[middle:], index - middle), tree_root(domain, leaves[:middle])]


def play(genesis: bytes, graph: bytes, moves: Sequence[tuple[int, bytes | None]]) -> Game:
    """The game that moves lead to, each at its time (or None, where time alone goes on).  A move
    that the rules refuse changes nothing but the time."""
    game = Game(read(GENESIS, genesis, "genesis"), read(check_graph, graph, "graph"))
    for time, move in moves:
        try:
            if move is None:
                game.advance(time)
            else:
                game.apply(move, time)
        except MoveRefused:
            continue
    return game


# ----------------------------------------------------------------------------------------------
# 15. The command line
# ----------------------------------------------------------------------------------------------


def from_hex(least: int, most: int) -> Callable[[str], bytes]:
    """An argument that is bytes in hexadecimal."""

    def parse(argument: str) -> bytes:
        if not re.fullmatch("([0-9a-fA-F]{2})*", argument):
            raise argparse.ArgumentTypeError("not hexadecimal")
        if not least <= len(argument) // 2 <= most:
            raise argparse.ArgumentTypeError(f"not {least} to {most} bytes")
        return bytes.fromhex(argument)

    return parse


def is_own(kept: Path, own: Path, folders: Sequence[Path]) -> bool:
    """Does a file lie below one of these folders, or is it the very file ``own``?  OSError where
    it is not there."""
    places = (kept.resolve(), kept.parent.resolve() / kept.name)
    if any(place.is_relative_to(folder.resolve()) for place in places for folder in folders):
        return True
    return own.exists() and kept.samefile(own)


def read_pin(argument: str, run: Path) -> bytes | dict:
    """A pin: the digest of a claim, or the file in which a signed claim was kept, which must lie
    outside of the run; ValueError where it is neither."""
    if re.fullmatch("[0-9a-fA-F]{64}", argument):
        return bytes.fromhex(argument)
    try:
        signed = read(SIGNED_CLAIM, Path(argument).read_bytes(), "claim")
        inside = is_own(Path(argument), run / "claim.cbor", [run])
    except (OSError, Refused) as error:
        raise ValueError(f"{argument}: {error}") from None
    if inside:
        raise ValueError(f"{argument} is a file of the run: it was not kept")
    claim = signed["claim"]
    if not signature_holds(claim["solver"], claim_digest(claim), signed["signature"]):
        raise ValueError(f"{argument}: the signature does not hold")
    return signed


def read_signed(argument: str | None, rule: Rule, *folders: Path) -> bytes | dict | None:
    """A pin of what was signed of traces or tiles, if there is one: its digest, or a copy, which
    must lie outside of ``folders``, the last of which has what was signed of traces."""
    if argument is None:
        return None
    if re.fullmatch("[0-9a-fA-F]{64}", argument):
        return bytes.fromhex(argument)
    try:
        signed = read(rule, Path(argument).read_bytes(), "traces")
        if folders and is_own(Path(argument), folders[-1] / "traces.cbor", folders):
            raise ValueError(f"{argument} is a file of the run: it was not kept")
    except (OSError, Refused) as error:
        raise ValueError(f"{argument}: {error}") from None
    return signed


def count_argument(argument: str) -> int:
    """A number that is not negative."""
    if not re.fullmatch("[0-9]+", argument):
        raise argparse.ArgumentTypeError("not a number")
    return int(argument)


def steps_argument(argument: str) -> list[int]:
    """Steps such as 3,7,20-24."""
    if not re.fullmatch("([0-9]+(-[0-9]+)?)(,[0-9]+(-[0-9]+)?)*", argument):
        raise argparse.ArgumentTypeError("no steps")
    pairs = [part.split("-") for part in argument.split(",")]
    return [step for pair in pairs for step in range(int(pair[0]), int(pair[-1]) + 1)]


def proof_question(given: argparse.Namespace, pin: bytes | dict | None) -> ProofQuestion:
    """What an auditor by proofs is asked; ValueError where it is bad usage."""
    if given.srs is None or given.all or given.samples == 0:
        raise ValueError("an audit by proofs takes an SRS, and some steps")
    if given.steps is not None and (given.samples is not None or given.seed is not None):
        raise ValueError("steps are named or drawn")
    if (given.batches is None) != (given.owner is None):
        raise ValueError("--batches and --owner belong together")
    srs_k(Path(given.srs).read_bytes())
    question = ProofQuestion(given.run, given.samples or 1, given.seed, pin, given.solver)
    if given.trace_seed is not None or given.trace_samples is not None:
        if None in (given.trace_seed, given.trace_samples, given.seed, given.samples):
            raise ValueError("an audit by tiles takes two draws, each with its number")
        if given.trace_seed == given.seed or given.trace_samples == 0:
            raise ValueError("both draws have one randomness, or the first draws nothing")
        question.first = given.trace_seed, given.trace_samples
        question.tiles_pin = read_signed(given.trace_claim, SIGNED_TILES)
    question.private, question.steps = given.private, given.steps
    if given.batches is not None:
        data = Path(given.batches).read_bytes()
        try:
            question.batches = read(check_signed_batches, data, "signed_batches")
        except Refused as error:
            raise ValueError(f"{given.batches}: {error}") from None
        question.owner = given.owner
    return question


def algebraic_question(given: argparse.Namespace, pin: bytes | dict | None) -> AlgebraicQuestion:
    """What an auditor by signed values is asked; ValueError where it is bad usage."""
    if given.srs is not None or given.all or given.samples == 0:
        raise ValueError("an algebraic audit takes no SRS, and some steps")
    if given.traces is not None and not Path(given.traces).is_dir():
        raise ValueError(f"{given.traces} is no folder")
    if given.rows_above is not None and given.rows is None:
        raise ValueError("only rows have a size above which they are drawn")
    if given.steps is not None and (given.samples is not None or given.seed is not None):
        raise ValueError("steps are named or drawn")
    if given.derived and (given.challenge is not None or given.rows is not None):
        raise ValueError("vectors are derived or drawn, and rows are drawn")
    if 0 in (given.rows, given.rows_above):
        raise ValueError("rows are drawn from 1 on")
    traces = Path(given.traces or given.run / "traces")
    question = AlgebraicQuestion(given.run, given.samples or 1, given.seed, pin, given.solver)
    question.traces, question.steps = traces, given.steps
    question.challenge, question.rows = given.challenge, given.rows
    question.rows_above = given.rows_above or question.rows_above
    question.traces_pin = read_signed(given.trace_claim, check_signed_traces, given.run, traces)
    return question


def make_parser() -> argparse.ArgumentParser:
    """What reads the arguments of the command `audit`."""
    parser = argparse.ArgumentParser(prog="plain_verifier.py audit", allow_abbrev=False)
    parser.add_argument("run")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--samples", type=count_argument)
    parser.add_argument("--seed", type=from_hex(1, 64))
    parser.add_argument("--claim")
    parser.add_argument("--solver", type=from_hex(32, 32))
    parser.add_argument("--task-id", type=from_hex(32, 32))
    parser.add_argument("--data")
    parser.add_argument("--srs")
    parser.add_argument("--hiding")
    parser.add_argument("--mode", choices=["replay", "proof", "algebraic"], default="replay")
    parser.add_argument("--private", action="store_true")
    parser.add_argument("--steps", type=steps_argument)
    parser.add_argument("--traces")
    parser.add_argument("--trace-claim")
    parser.add_argument("--challenge", type=from_hex(1, 64))
    parser.add_argument("--derived", action="store_true")
    parser.add_argument("--rows", type=count_argument)
    parser.add_argument("--rows-above", type=count_argument)
    parser.add_argument("--batches")
    parser.add_argument("--owner", type=from_hex(32, 32))
    parser.add_argument("--trace-seed", type=from_hex(1, 64))
    parser.add_argument("--trace-samples", type=count_argument)
    parser.add_argument("--allow-insecure-srs", action="store_true")  # of no proof that holds here
    parser.add_argument("--json", action="store_true")
    return parser


def find_run(parser: argparse.ArgumentParser, given: argparse.Namespace) -> bool:
    """Have the folder of a run, or of a store, in its place; is it a store?"""
    if given.run.startswith("file://"):
        given.run = Path(unquote(given.run.removeprefix("file://")))
        if given.mode == "proof" or given.srs is not None:
            parser.error("this verifier holds runs in stores against no SRS and no proofs")
        return True
    given.run = Path(given.run)
    if not given.run.is_dir():
        parser.error(f"{given.run} is no folder")
    names = ("task.cbor", "graph.cbor", "log.bin", "claim.cbor", "manifest.json")
    if not any(os.path.lexists(given.run / name) for name in names):
        parser.error(f"{given.run} has no file of a run")
    published = not any(
        os.path.lexists(given.run / name) for name in ("manifest.json", "checkpoints")
    )
    if published and all((given.run / name).is_dir() for name in ("chunks", "states")):
        parser.error(f"{given.run} is the folder of a store: give its URL")
    return False


def run_audit(arguments: Sequence[str]) -> dict[str, Any]:
    """The report of an audit with these arguments of the command `audit`."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    stored = find_run(parser, given)
    if given.all and given.samples is not None:
        parser.error("--all and --samples exclude each other")
    segments = None if given.all else 3 if given.samples is None else given.samples
    for name in (given.data, given.srs, given.hiding, given.batches):
        if name is not None and not Path(name).is_file():
            parser.error(f"{name} is no file")
    if given.hiding is not None and given.srs is None:
        parser.error("keys serve commitments, which take an SRS")
    try:
        pin = None if given.claim is None else read_pin(given.claim, given.run)
    except ValueError as error:
        parser.error(str(error))
    question = Question(given.run, segments, given.seed, pin, given.solver, given.task_id)
    draw = (given.trace_seed, given.trace_samples)
    proofs = (given.private, given.batches, given.owner, given.allow_insecure_srs, *draw)
    values = (given.traces, given.challenge, given.derived, given.rows, given.rows_above)
    all_ = (*proofs, *values, given.trace_claim)
    other = {"proof": values, "algebraic": proofs, "replay": all_}
    if any(other[given.mode]):
        parser.error("an argument of another mode")
    if given.mode == "replay" and given.steps is not None:
        parser.error("a replay draws segments")
    try:
        if given.mode == "proof":
            question = proof_question(given, pin)
        if given.mode == "algebraic":
            question = algebraic_question(given, pin)
        question.task_id, question.data = given.task_id, given.data
        question.srs, question.hiding = given.srs, given.hiding
        audits = {"proof": ProofAudit, "algebraic": AlgebraicAudit, "replay": Audit}
        if stored:
            audits |= {"algebraic": StoredValues, "replay": StoredReplay}
        audit = audits[given.mode](question)
        audit.audit()
    except ValueError as error:
        parser.error(str(error))
    return audit.report()


def main(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""
    if not arguments or arguments[0] != "audit":
        print(__doc__)
        return 2
    report = run_audit(arguments[1:])
    if "--json" in arguments:
        print(json.dumps(report))
    else:
        for check in report["checks"]:
            words = (check["status"], check["name"], check["where"], check["fault"])
            print(" ".join(repr(word)[1:-1].ljust(11) for word in words) + check["detail"])
        print(f"Verdict: {report['verdict'].upper()}")
    return report["exit_code"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
