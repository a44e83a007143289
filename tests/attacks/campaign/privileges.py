"""Root reads every file and starts any number of threads: so that limits hold, a process gives that
up before it executes the command."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

READ_ALL: Final = 2
"""CAP_DAC_READ_SEARCH: the interpreter may lie in root's own home."""
_VERSION: Final = 0x20080522
_DROP_FROM_BOUND, _KEEP, _AMBIENT, _RAISE = 24, 8, 47, 2
NOBODY: Final = 65534


def is_root() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


def lose_sight() -> None:
    """After the next exec, files that their modes forbid to read are forbidden to root too."""
    if is_root():
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, READ_ALL):
            libc.prctl(_DROP_FROM_BOUND, capability, 0, 0, 0)


def become_nobody() -> None:
    """Another user, for whom limits on processes hold; it can read what root can."""
    if not is_root():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_KEEP, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    data = (ctypes.c_uint32 * 6)(1 << READ_ALL, 1 << READ_ALL, 1 << READ_ALL, 0, 0, 0)
    if libc.capset(header, data) or libc.prctl(_AMBIENT, _RAISE, READ_ALL, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot keep the right to read")
