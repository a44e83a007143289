"""A web server on loopback for tests: it serves objects, honestly or not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Misbehave = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Site:
    """What a server serves, and what it was asked for: names, with the range where one was."""

    objects: dict[str, bytes]
    ranges: bool = True
    misbehave: Mapping[str, Misbehave] = field(default_factory=dict)
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the server closes: whoever waits waits for this."""

    @property
    def names(self) -> list[str]:
        """The names asked for."""
        return [name for name, _ in self.asked]


def read_folder(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve ``site`` at its ``url`` meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name, span = self.path.lstrip("/"), self.headers.get("Range", "")
            site.asked.append((name, span))
            for start, act in site.misbehave.items():
                if name.startswith(start):
                    act(self)
                    return
            data = site.objects.get(name)
            if data is None:
                answer(self, 404, b"not here")
            elif span and site.ranges:
                first, last = map(int, span.removeprefix("bytes=").split("-"))
                where = f"bytes {first}-{last}/{len(data)}"
                answer(self, 206, data[first : last + 1], ("Content-Range", where))
            else:
                answer(self, 200, data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        over = site.over
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield site
        finally:
            site.over.set()
            server.shutdown()
            thread.join()


def answer(
    handler: BaseHTTPRequestHandler, status: int, data: bytes, *headers: tuple[str, str]
) -> None:
    """A plain answer."""
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
