"""One finding of the preflight, and how probes are run.

Only what all checks share lives here. `preflight_probes`, `preflight_pod` and `preflight_archives` look; `preflight`
runs them.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from configs.errors import ToolkitError

Severity = Literal["error", "warning"]
LAST_LINES = 4  # of a probe's output: a traceback ends with what counts


@dataclass(frozen=True)
class Problem:
    """Something that would fail, or work otherwise than the plan says, without a word.

    Attributes:
        severity: "error" where the pod would not serve as planned; "warning" where it would, and this is to be known.
        what: one sentence, with the file, field or address concerned.
        why: the value found, or a probe's own words.
        remedy: what to do.
    """

    severity: Severity
    what: str
    why: str
    remedy: str


def from_error(error: ToolkitError) -> Problem:
    """An error as a finding."""
    return Problem("error", error.what + (f": {error.where}" if error.where else ""), error.why, error.remedy)


@dataclass(frozen=True)
class Ran:
    """How a probe ended.

    Attributes:
        code: its exit code, -N if signal N ended it, None if it had not ended in time.
        out, err: its standard output and error.
    """

    code: int | None
    out: str
    err: str

    @property
    def ended(self) -> str:
        """The end in words."""
        if self.code is None:
            return "it did not end in time"
        if self.code < 0:
            return f"signal {-self.code} ({signal_name(-self.code)})"
        return f"exit code {self.code}"

    @property
    def last_words(self) -> str:
        """How it ended and the last lines it wrote; errors count more than output."""
        lines = [line.strip() for line in (self.err.strip() or self.out).strip().splitlines()]
        return "\n".join([self.ended, *lines[-LAST_LINES:]])


def run(command: Sequence[str | Path], environment: Mapping[str, str], folder: Path, seconds: float) -> Ran:
    """Runs a probe to its end, or for so many seconds.

    Raises:
        OSError: it cannot be started.
    """
    try:
        done = subprocess.run(list(map(str, command)), env=dict(environment), cwd=folder, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        return Ran(None, _text(late.stdout), _text(late.stderr))
    return Ran(done.returncode, _text(done.stdout), _text(done.stderr))


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def signal_name(number: int) -> str:
    """Such as SIGILL for 4."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
