"""Stores: where a published run lies, a folder or an object store, made and kept by strangers.

A store is asked for names that its reader derives from hashes that it knows, never for names that
the store chooses.  It is told how many bytes there may be before any is read, and gives no more.
What it gives is for the reader to compare (``vtrain.commit.pieces``).
"""

from __future__ import annotations

import os
import re
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from vtrain.commit.files import open_file, read_file, storing, write_atomic
from vtrain.errors import NotProducedError, RunError, StoreError
from vtrain.limits import LIMITS, Limits

T = TypeVar("T")
_NAME: Final = re.compile(r"(?:[a-z]+/)?[a-z0-9][a-z0-9.-]*")
_BLOCK: Final = 1 << 16
OWED: Final = "whoever published the run owes it"
"""What is said of all that a store does not give, for whatever reason."""


class TransientError(StoreError):
    """A store failed in a way that may pass: it is asked again."""


def check_name(name: str) -> str:
    """The name of an object, as it is: at most one folder, and no way out of it; RunError."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise RunError("is no name of an object", where=name)
    return name


class Sink(Protocol):
    """What is published to."""

    def put(self, name: str, data: bytes) -> None:
        """Hold ``data`` under ``name``, all of it or nothing; StorageError, StoreError."""
        ...


class Shelf(Sink, Protocol):
    """What a run is published to, which may have been published to before."""

    def locate(self, name: str) -> str:
        """Where an object is, for messages."""
        ...

    def find(self, name: str, most: int) -> bytes | None:
        """What is under ``name`` already, of at most ``most`` bytes; None where there is nothing.
        NotProducedError for what is larger, or no file; StorageError, StoreError."""
        ...


@dataclass
class Traffic:
    """What was read of a store: requests, bytes of the bodies that came, and the seconds that were
    waited for them, of all threads together."""

    requests: int = 0
    bytes: int = 0
    seconds: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def count(self, *, size: int = 0, requests: int = 0, seconds: float = 0.0) -> None:
        """Add to each."""
        with self._lock:
            self.bytes += size
            self.requests += requests
            self.seconds += seconds


class Source(ABC):
    """A store that is read.  Its methods may be called by several threads.

    ``ranges``: whether parts of an object are to be had without the rest of it, as far as is known.
    """

    ranges: bool = True

    def __init__(
        self,
        limits: Limits = LIMITS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._sleep, self._clock = limits, sleep, clock
        self.traffic = Traffic()

    @abstractmethod
    def locate(self, name: str) -> str:
        """Where an object is, for messages."""

    def shorten(self, where: str) -> str:
        """A place without the address of the store, which is each reader's own."""
        return where.removeprefix(self.locate("x")[:-1])

    @abstractmethod
    def stream(
        self, name: str, most: int, *, exact: bool = False, span: tuple[int, int] | None = None
    ) -> Iterator[bytes]:
        """The bytes of an object in turn; see :meth:`read`."""

    def read(
        self, name: str, most: int, *, exact: bool = False, span: tuple[int, int] | None = None
    ) -> bytes:
        """The object of this name, of at most ``most`` bytes, or ``exact``ly so many; of it the
        ``span`` (first byte, bytes), where one is given.

        NotProducedError where there is none, StoreError for a store that gives something else, or
        gives it too slowly, or refuses.
        """

        def join() -> bytes:
            return b"".join(self._check(name, most, exact, span))

        return self._try(join)

    def save(self, name: str, path: Path, most: int) -> None:
        """Write an object of at most ``most`` bytes to a file; errors as of :meth:`read`, and
        StorageError."""
        self._try(lambda: write_atomic(path, self._check(name, most, False, None), durable=False))

    def close(self) -> None:  # noqa: B027 - a folder holds nothing open
        """Let go of what is held open."""

    def _check(
        self, name: str, most: int, exact: bool, span: tuple[int, int] | None
    ) -> Iterator[bytes]:
        """What comes, counted: no stream gives a byte more, and none that gives fewer passes."""
        due = span[1] if span is not None else most
        done, since = 0, self._clock()
        self.traffic.count(requests=1)
        self._refuse_dawdling(name)
        try:
            for block in self.stream(check_name(name), most, exact=exact, span=span):
                done += len(block)
                if done > due:
                    raise StoreError(
                        f"gives more than the {due} bytes that it can have", where=self.locate(name)
                    )
                self.traffic.count(size=len(block))
                yield block
        finally:
            self.traffic.count(seconds=self._clock() - since)
        if done < due and (exact or span is not None):
            raise StoreError(f"gives {done} bytes, not {due}", where=self.locate(name))

    def _refuse_dawdling(self, name: str) -> None:
        """StoreError for a store that takes long for each of many small things."""
        limits, traffic = self._limits, self.traffic
        most = limits.store_total_seconds + traffic.requests
        if traffic.seconds > most + traffic.bytes / limits.store_least_rate:
            raise StoreError(
                f"has taken {traffic.seconds:.0f} s for {traffic.bytes} bytes: it is not asked for "
                "more",
                where=self.locate(name),
            )

    def _try(self, work: Callable[[], T]) -> T:
        """``work``, again where it fails in a way that may pass; errors say whose debt it is."""
        try:
            return self._repeat(work)
        except NotProducedError as error:
            if error.message.endswith(OWED):
                raise
            raise type(error)(f"{error.message}; {OWED}", where=error.where) from None

    def _repeat(self, work: Callable[[], T]) -> T:
        for again in range(self._limits.store_tries - 1):
            try:
                return work()
            except TransientError:
                self._sleep(0.25 * 4**again)
        try:
            return work()
        except TransientError as error:
            raise StoreError(error.message, where=error.where) from None


class FolderStore(Source):
    """A folder: to publish to, and, where strangers made it, to read."""

    def __init__(self, root: Path, limits: Limits = LIMITS) -> None:
        super().__init__(limits)
        self.root = root

    def locate(self, name: str) -> str:
        return str(self.root / name)

    def stream(
        self, name: str, most: int, *, exact: bool = False, span: tuple[int, int] | None = None
    ) -> Iterator[bytes]:
        path = self.root / name
        with open_file(path, most, root=self.root) as file:
            if exact and file.size != most:
                raise NotProducedError(f"has {file.size} bytes, not {most}", where=str(path))
            start, left = span if span is not None else (0, file.size)
            file.seek(start)
            while left and (block := file.read(min(left, _BLOCK))):
                left -= len(block)
                yield block

    def find(self, name: str, most: int) -> bytes | None:
        path = self.root / check_name(name)
        return read_file(path, most, root=self.root) if os.path.lexists(path) else None

    def put(self, name: str, data: bytes) -> None:
        path = self.root / check_name(name)
        self._require_folder(path.parent)
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not what a link leads to: whoever reads the store follows none.
            found = path.lstat() if os.path.lexists(path) else None
        there = found is not None and stat.S_ISREG(found.st_mode) and found.st_size == len(data)
        if not (there and is_content(name)):
            write_atomic(path, [data])

    def require_folders(self) -> None:
        """RunError where a folder that is published to cannot be one: before anything is there."""
        for folder in (self.root, *(self.root / name for name in (*_CONTENT, "traces"))):
            self._require_folder(folder)

    def _require_folder(self, folder: Path) -> None:
        """RunError for what is there and is no folder, or, below the store's own, a link: files
        would go to where it leads, and who reads the store would refuse it."""
        with storing(folder):
            if not os.path.lexists(folder):
                return
            if folder != self.root and folder.is_symlink():
                what = "is a link, and nothing is written to where one leads: remove it"
            elif not folder.is_dir():
                what = "is no folder, and files are to go into it: move it away"
            else:
                return
        raise RunError(f"{what}, or publish to a place of its own", where=str(folder))


_CONTENT: Final = ("chunks", "lists", "states")
"""Folders of a store in which a name says what its bytes are."""


def is_content(name: str) -> bool:
    """Whether a name says what its bytes are, so that those that are there need not be replaced."""
    return name.startswith(tuple(f"{folder}/" for folder in _CONTENT))


def open_source(
    url: str, options: Mapping[str, str] | None = None, limits: Limits = LIMITS
) -> Source:
    """The store at ``url`` for reading: a folder (file://), a web server (http://, https://) or an
    object store (s3://, gs://, az://), of which ``options`` are those of obstore.

    RunError for a URL that is none; MissingExtraError.
    """
    scheme = parse_url(url).scheme
    if scheme == "file":
        return FolderStore(read_file_url(url), limits)
    if scheme in ("http", "https"):
        if options:
            raise RunError("takes no options: they are of object stores", where=url)
        from vtrain.commit.http_store import HttpStore

        return HttpStore(url, limits)
    from vtrain.commit.object_store import ObjectStore

    return ObjectStore(url, options or {}, limits)


def open_sink(url: str, options: Mapping[str, str] | None = None) -> Shelf:
    """The store at ``url`` for publishing: a folder, by its path or URL, or an object store.

    RunError for a URL that is none, or of a web server, which takes nothing; MissingExtraError.
    """
    if "://" not in url:
        return FolderStore(Path(url))
    scheme = parse_url(url).scheme
    if scheme == "file":
        return FolderStore(read_file_url(url))
    if scheme in ("http", "https"):
        raise RunError(
            "a web server takes no files: publish to the folder that it serves, or to an object "
            "store (s3://, gs://, az://)",
            where=url,
        )
    from vtrain.commit.object_store import ObjectStore

    return ObjectStore(url, options or {})


def get_url(place: str) -> str:
    """The URL of what was given as the path of a folder, or is one already."""
    return place if "://" in place else Path(place).absolute().as_uri()


def refuse_published(folder: Path) -> None:
    """RunError for a folder in which a run was published: its states lie in pieces, and as a run
    directory nearly all of it is missing."""
    if (
        not any(os.path.lexists(folder / name) for name in ("manifest.json", "checkpoints"))
        and (folder / "chunks").is_dir()
        and (folder / "states").is_dir()
    ):
        raise RunError(
            f"holds a published run, in pieces: name it by its URL, {get_url(str(folder))}",
            where=str(folder),
        )


@dataclass(frozen=True)
class Place:
    """Where a URL leads."""

    scheme: str
    host: str
    port: int | None
    path: str


_SCHEMES: Final = ("file", "http", "https", "s3", "gs", "az")


def split_url(url: str) -> Place:
    """The parts of any URL; RunError for what is none."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError as error:
        raise RunError(f"is no URL: {error}", where=url) from None
    if any(character <= " " or character > "~" for character in url):
        raise RunError("has characters that a URL writes as %XX", where=url)
    if found.username is not None or found.password is not None:
        raise RunError("has a name or a password in it", where=url)
    if found.scheme != "file" and not found.hostname:
        raise RunError("names no host or bucket", where=url)
    return Place(found.scheme, found.hostname or "", port, found.path)


def parse_url(url: str) -> Place:
    """The parts of the URL of a store; RunError for what is none."""
    found = split_url(url)
    if found.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise RunError(f"is no URL of a store: it begins with none of {known}", where=url)
    if "?" in url or "#" in url:
        raise RunError("has a query or a fragment, which no store has", where=url)
    return found


def read_file_url(url: str) -> Path:
    """The folder that a file:// URL names; RunError for one on another host."""
    found = parse_url(url)
    if found.host not in ("", "localhost") or not found.path.startswith("/"):
        raise RunError("names another host: write file:///folder", where=url)
    path = unquote(found.path)
    if "\0" in path:
        raise RunError("names no folder", where=url)
    return Path(path)
