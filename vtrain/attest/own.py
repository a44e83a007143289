"""The user's own key, made on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from vtrain.attest.keys import PrivateKey, generate_key, load_key
from vtrain.commit.files import storing


def find_own_key() -> Path:
    """Where the user's own key is, or would be."""
    return Path(click.get_app_dir("vtrain")) / "solver.pem"


def load_or_make_key(path: Path | None, say: Callable[[str], None]) -> PrivateKey:
    """The key in ``path``, or the user's own, which is made where there is none: ``say`` tells.

    SignatureError for a file that holds no key, StorageError for one that cannot be read or made.
    """
    if path is not None:
        return load_key(path)
    own = find_own_key()
    if own.exists():
        return load_key(own)
    with storing(own.parent):
        own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = generate_key(own)
    say(f"made a solver key: {own} (keep it; it signs your claims)")
    return key
