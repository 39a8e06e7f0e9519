"""TorchServe's output on its way through: forwarded at once, and its end kept for the moment something fails.

Only moving bytes lives here; `logs` understands the lines.
"""

from __future__ import annotations

import os
import sys
from threading import Thread
from typing import BinaryIO

from serving.logs import Tail

CHUNK = 1 << 16  # bytes: what a pipe holds
LONGEST_LINE = 1 << 20  # bytes, after which a line without an end is taken for one


class Forwarder:
    """Copies a pipe to an output, whole lines at a time, until the pipe ends.

    The pipe is always read, even when the output is gone: a full pipe would stop the JVM.

    Args:
        descriptor: the pipe's reading end; it is closed at its end.
        tail: is fed every line.
        output: where to; by default this process's standard output.
    """

    def __init__(self, descriptor: int, tail: Tail, output: BinaryIO | None = None) -> None:
        self._descriptor, self._tail = descriptor, tail
        self._output: BinaryIO | None = output if output is not None else getattr(sys.stdout, "buffer", None)
        self._thread = Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Waits until the pipe has ended, at most so long."""
        self._thread.join(seconds)

    def _run(self) -> None:
        rest = b""
        with open(self._descriptor, "rb", buffering=0) as pipe:
            while chunk := os.read(pipe.fileno(), CHUNK):
                lines, newline, rest = (rest + chunk).rpartition(b"\n")
                if len(rest) > LONGEST_LINE:
                    lines, newline, rest = lines + newline + rest, b"\n", b""
                if newline:
                    self._pass_on(lines + newline)
            if rest:
                self._pass_on(rest + b"\n")

    def _pass_on(self, lines: bytes) -> None:
        if self._output is not None:
            try:
                self._output.write(lines)
                self._output.flush()
            except (OSError, ValueError):  # nobody reads any more
                self._output = None
        for line in lines.splitlines():
            self._tail.feed(line.decode(errors="replace"))
