"""The dispute service: games over HTTP, kept in a database (docs/service.md).

``limits`` needs the base install alone; the rest needs
the extra ``server``, and is imported only after :func:`require_server`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from vtrain.errors import MissingExtraError

_SERVER: Final = ("alembic", "fastapi", "httpx", "sqlalchemy", "uvicorn")


def require_server() -> None:
    """MissingExtraError, with the command that installs it, unless the service can run here."""
    _require("server", _SERVER)


def require_client() -> None:
    """MissingExtraError unless an HTTP client is installed."""
    _require("server", ("httpx",))


def _require(extra: str, modules: tuple[str, ...]) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"{', '.join(missing)} missing: {sys.executable} -m pip install 'vtrain[{extra}]'",
            where=f"[{extra}]",
        )
