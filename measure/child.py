"""One of our modules in a process of its own, run to its end: it may pin itself, and holds torch while its parent does
not.

The other side of the bargain: an error raised on purpose is printed as its message, and ends the process with 2.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from configs.errors import ServerError

ROOT = Path(__file__).resolve().parents[1]
REFUSED = 2  # exit code
_LAST_LINES = 6  # of a traceback


def run(module: str, *arguments: object, what: str, where: str, variables: Mapping[str, str] | None = None) -> str:
    """`python -m module arguments…`, and what it printed.

    Args:
        what, where: of the error, should it fail.
        variables: of its environment, beside this process's own.

    Raises:
        ServerError: it failed; with its message, or the end of its traceback.
    """
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT,
                          env={**os.environ, **(variables or {})}, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ServerError(what, where=where, why="\n".join(lines if done.returncode == REFUSED
                                                            else lines[-_LAST_LINES:]))
    return done.stdout
