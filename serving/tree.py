"""The processes below this one: started, found, signalled, reaped, and in the end none left.

Only the process tree lives here; `supervisor` decides when to do what.

TorchServe is a chain: the command's Python parent, which swallows every signal, its JVM, and the JVM's workers (with
the CPU launcher, one more parent each). When one of them is killed, its children go to the nearest subreaper: this
process. So everything stays findable below it, and can be ended and reaped, even what has changed its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from configs.errors import ServerError
from serving.processes import ENDED, alive, command_line, descendants

SERVER_CLASS = "org.pytorch.serve.ModelServer"  # the JVM's main class: how it is told from other Java processes
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 5.0  # for killed processes to be gone; only one stuck in the kernel takes longer
LOOK_SECONDS = 0.05


class Tree:
    """One command and everything that descends from it.

    While it is in use, all children of this process are taken for its own: whatever ends is reaped here, and `end`
    leaves no child alive.
    """

    def __init__(self) -> None:
        self.command = 0  # pid
        self.command_ended = ""  # how, in words
        self._jvm = 0
        self._jvm_ended = ""
        _become_subreaper()

    def start(self, command: list[str], environment: dict[str, str], folder: Path) -> int:
        """Starts the command in a session of its own, so that a terminal's Ctrl-C reaches only the supervisor.

        Returns:
            A file descriptor from which its standard output and error can be read.

        Raises:
            ServerError: it cannot be started.
        """
        reading, writing = os.pipe()
        try:
            started = subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=writing,
                                       stderr=writing, start_new_session=True)
        except OSError as error:
            os.close(reading)
            raise ServerError("TorchServe cannot be started", where=command[0], why=str(error),
                              remedy="install torchserve into the environment that runs this, or mend PATH") from error
        finally:
            os.close(writing)
        self.command = started.pid
        started.returncode = 0  # it is reaped here: without this, Popen would wait for a pid that is not its own
        return reading

    @property
    def jvm(self) -> int:
        """The pid of TorchServe's JVM; 0 before it has started. It stays what it was after its end."""
        if not self._jvm:
            candidates = [each.pid for each in descendants(os.getpid()) if each.state not in ENDED]
            self._jvm = next((pid for pid in candidates if SERVER_CLASS in command_line(pid)), 0)
        return self._jvm

    def reap(self) -> None:
        """Takes the exit status of everything that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.command:
                self.command_ended = _words(status)
            if pid == self._jvm:
                self._jvm_ended = _words(status)

    def ended(self) -> str:
        """How TorchServe has ended, in words; empty while the command and its JVM run."""
        self.reap()
        if self.jvm and not alive(self.jvm):
            return "the JVM " + (self._jvm_ended or "ended")
        if self.command_ended:
            return "the command " + self.command_ended
        return ""

    def end(self, patience: float, hurry: Callable[[], bool]) -> int:
        """Ends everything: the JVM by its own shutdown if it can, the rest by SIGKILL. Reaps it all.

        Args:
            patience: seconds that the JVM gets.
            hurry: asked again and again; True ends the patience at once.

        Returns:
            How many processes are left, which the kernel cannot end: zero but for broken devices.
        """
        if self.jvm and alive(self.jvm):
            _signal(self.jvm, signal.SIGTERM)
            deadline = time.monotonic() + patience
            while alive(self.jvm) and time.monotonic() < deadline and not hurry():
                time.sleep(LOOK_SECONDS)
                self.reap()
        return self._kill()

    def _kill(self) -> int:
        deadline = time.monotonic() + KILL_SECONDS
        while True:
            # again each time: a process that was being forked during the last look is there now
            below = descendants(os.getpid())
            if not below or time.monotonic() > deadline:
                return len(below)
            for each in below:
                if each.state not in ENDED:
                    _signal(each.pid, signal.SIGKILL)
            time.sleep(LOOK_SECONDS / 5)
            self.reap()


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise ServerError("cannot become the parent of orphaned processes", why=os.strerror(number),
                          remedy="the sandbox forbids prctl(PR_SET_CHILD_SUBREAPER): allow it, since without it a "
                                 "killed TorchServe would leave processes behind")


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _words(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by signal {number} ({signal.strsignal(number) or 'unknown'})"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"
