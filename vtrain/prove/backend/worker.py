"""The process that ezkl runs in: a program of its own, started by ``vtrain.prove.backend.ezkl``.

It reads the calls from one file and answers line by line into another.  It imports nothing of
vtrain, which would take longer than a proof takes to verify.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOST_WORDS = 1000
_PR_SET_PDEATHSIG = 1
_ASYNCHRONOUS = frozenset({"create_evm_verifier"})


def main() -> None:
    """Make the calls of the request, an object of ``calls``, ``memory``, ``seconds`` and ``all``.

    Without ``all``, the first call that fails is the last.
    """
    _end_with_parent()
    asked, answer = map(Path, sys.argv[1:])
    request = json.loads(asked.read_bytes())
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory = request["memory"] if most == resource.RLIM_INFINITY else min(request["memory"], most)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Should whoever waits for it be killed, it still ends.
    seconds = int(request["seconds"]) * (os.cpu_count() or 1) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    os.environ["HOME"] = str(answer.parent)  # here, as Python finds its own packages by it
    with answer.open("w") as file:
        for name, arguments in request["calls"]:
            try:
                line = {"result": _call(name, arguments)}
            except (RuntimeError, OSError, ValueError, TypeError) as error:
                line = {"failed": f"{type(error).__name__}: {error}"[:_MOST_WORDS]}
            file.write(json.dumps(line, default=_encode_result) + "\n")
            file.flush()
            if "failed" in line and not request["all"]:
                break
    # ezkl's threads outlive a call that awaits, and crash an interpreter that ends in good order.
    os._exit(0)


def _end_with_parent() -> None:
    """Have the system end this process when the one that waits for it is gone (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before
            os._exit(1)


def _call(name: str, arguments: dict[str, Any]) -> Any:
    import ezkl

    function = getattr(ezkl, name)
    if "py_run_args" in arguments:
        arguments["py_run_args"] = _make_settings(ezkl.PyRunArgs(), arguments["py_run_args"])
    if name not in _ASYNCHRONOUS:
        return function(**arguments)
    import asyncio

    async def wait() -> Any:
        return await function(**arguments)

    return asyncio.run(wait())


def _make_settings(settings: Any, attributes: Mapping[str, Any]) -> Any:
    for name, value in attributes.items():
        setattr(settings, name, tuple(value) if name == "lookup_range" else value)
    return settings


def _encode_result(value: Any) -> Any:
    """Points as [x, y], as ezkl writes field elements: little-endian hexadecimal."""
    return [value.x, value.y]


if __name__ == "__main__":
    main()
