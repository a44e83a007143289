"""Hostile traffic: connections of every kind that ask as much of a service as they can.

``flood`` holds so many connections of one kind at a service until it is told to stop.  All come
from the address of the honest parties, which is the worst that an address can do to them.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from tests.dispute.service.logs import HONEST, get_documents, make_bond, make_log
from vtrain.attest.keys import PrivateKey, public_key
from vtrain.dispute.game import compute_move_digest
from vtrain.dispute.receipts import Opening
from vtrain.wire import structs
from vtrain.wire.dispute import Genesis, SignedMove

Kind = Literal[
    "idle",
    "slow heads",
    "slow bodies",
    "bombs",
    "large",
    "forged",
    "stale",
    "bonds",
    "openings",
    "pages",
    "views",
    "polls",
    "garbage",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_PAUSE: Final = 0.2


@dataclass
class Target:
    """Where the flood goes: a game that goes on, with the honest party's bond in it."""

    url: str
    genesis: Genesis
    game: bytes
    requests: int = 0
    """How many were answered."""
    statuses: dict[int, int] = field(default_factory=dict)


@contextmanager
def flooding(target: Target, kind: Kind, connections: int) -> Iterator[Target]:
    """A flood of a kind, from a thread of its own."""
    stop = threading.Event()
    thread = threading.Thread(target=flood, args=(target, kind, connections, stop))
    thread.start()
    try:
        yield target
    finally:
        stop.set()
        thread.join()


def flood(target: Target, kind: Kind, connections: int, stop: threading.Event) -> None:
    """Hold ``connections`` until ``stop``."""
    asyncio.run(_flood(target, kind, connections, stop))


async def _flood(target: Target, kind: Kind, connections: int, stop: threading.Event) -> None:
    tasks = [asyncio.create_task(_attack(target, kind, number)) for number in range(connections)]
    while not stop.is_set():
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _attack(target: Target, kind: Kind, number: int) -> None:
    """One connection, made again whenever it is closed."""
    bodies = _make_bodies(target, kind, number)
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, ValueError):
            place = urlsplit(target.url)
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            try:
                await _talk(target, kind, bodies, reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(0.01)


async def _talk(
    target: Target,
    kind: Kind,
    bodies: Iterator[bytes],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    moves, game = f"/v1/games/{target.game.hex()}/moves", f"/v1/games/{target.game.hex()}"
    match kind:
        case "idle":
            await reader.read(1)
        case "slow heads":
            writer.write(b"GET /v1/info HTTP/1.1\r\nHost: h\r\n")
            await _drip(writer, b"X: y\r\n")
        case "slow bodies":
            writer.write(_head("POST", "/v1/games", 16 << 20))
            await _drip(writer, b"\0")
        case "garbage":
            while True:
                writer.write(secrets.token_bytes(4096) + b"\r\n\r\n")
                await writer.drain()
                if not await reader.read(4096):
                    return
        case "pages" | "views" | "polls":
            paths = {"pages": "/transcript?after=0&limit=256", "views": ""}
            path = game + paths.get(kind, "/transcript?after=9&wait=1")
            while True:
                writer.write(_head("GET", path))
                await _read_answer(target, reader)
        case _:
            path = "/v1/games" if kind == "openings" else moves
            for body in bodies:
                writer.write(_head("POST", path, len(body)))
                writer.write(body)
                await writer.drain()
                await _read_answer(target, reader)


def _head(method: str, path: str, length: int = -1) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: h"]
    if length >= 0:
        lines += ["Content-Type: application/cbor", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    while not writer.is_closing():
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(_PAUSE)


async def _read_answer(target: Target, reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    length = next(int(value) for name, _, value in lines if name == b"content-length")
    await reader.readexactly(length)
    target.requests += 1
    target.statuses[status] = target.statuses.get(status, 0) + 1


def _make_bodies(target: Target, kind: Kind, number: int) -> Iterator[bytes]:
    """What a connection sends, over and over."""
    stranger = PrivateKey.generate()
    bond = make_bond(target.game, make_log().root, HONEST)
    match kind:
        case "bombs":
            yield from _repeat(_sign(bond, stranger, b"\x99\xff\xff" + b"\x80" * 65535))
        case "large":
            yield from _repeat(_sign(bond, stranger, bytes(4 << 20)))
        case "forged":
            yield from _repeat(structs.encode(replace(bond, signature=bytes(64))))
        case "stale":
            yield from _repeat(structs.encode(bond))
        case "bonds":
            while True:
                key = PrivateKey.generate()
                yield structs.encode(make_bond(target.game, secrets.token_bytes(32), key))
        case "openings":
            while True:
                genesis = replace(target.genesis, nonce=secrets.token_bytes(32))
                yield structs.encode(Opening(genesis, *get_documents()))


def _sign(bond: SignedMove, key: PrivateKey, move: bytes) -> bytes:
    unsigned = replace(bond, party=public_key(key), move=move)
    return structs.encode(replace(unsigned, signature=key.sign(compute_move_digest(unsigned))))


def _repeat(body: bytes) -> Iterator[bytes]:
    while True:
        yield body
