"""kubectl, as a command: run, watched, its errors in one line each. Which calls are made is `cluster`'s business."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

from configs.errors import ServerError, SettingsError, ToolkitError

ANSWER = "--request-timeout=30s"
FORWARD_SECONDS = 20.0
# what kubectl writes → what is wrong, and what to do; the first that fits
_TROUBLE: tuple[tuple[str, str, str], ...] = (
    (r"connection refused|connection to the server .* was refused|[Uu]nable to connect to the server|no such host"
     r"|i/o timeout|dial tcp|context deadline exceeded|TLS handshake timeout",
     "no cluster answers", "`kubectl cluster-info`: is the right context set (kubectl config use-context NAME)?"),
    (r"no configuration has been provided|context .* does not exist|context was not found",
     "kubectl knows no cluster", "kubectl config get-contexts; use-context NAME"),
    (r"must be logged in|Unauthorized|provide credentials|getting credentials", "the cluster does not know you",
     "log in again: credentials expire"),
    (r"\(Forbidden\)|[Ff]orbidden", "the cluster does not allow this",
     "ask for that permission in this namespace, or take another (--namespace)"),
    (r"namespaces? \"([^\"]+)\" not found", "there is no such namespace", "kubectl create namespace NAME"),
    (r"no matches for kind|resource mapping not found|ensure CRDs are installed",
     "the cluster does not know a kind", "install what brings it (KServe, Traefik) first, or take another overlay"),
    (r"[Ii]s invalid|field is immutable|[Ii]nvalid value|strict decoding error", "the cluster refuses an object",
     "a field that cannot change: `tscpu undeploy` first"),
)


@dataclass(frozen=True)
class Done:
    """What a call of kubectl came to."""

    code: int
    out: str
    err: str


class Kubectl:
    """kubectl in one namespace.

    Args:
        namespace: None for that of the context.

    Raises:
        SettingsError: it is not installed.
    """

    def __init__(self, namespace: str | None = None) -> None:
        if shutil.which("kubectl") is None:
            raise SettingsError("kubectl is not installed", where="PATH",
                                remedy="install kubectl 1.27 or later, or deploy here: --target podman")
        self.namespace = namespace

    def run(self, *arguments: str, given: str = "", allowed: Sequence[int] = (0,)) -> Done:
        """Runs a call to its end.

        Args:
            given: standard input.
            allowed: exit codes that are no failure.

        Raises:
            ToolkitError: it failed.
        """
        done = self.attempt(*arguments, given=given)
        if done.code not in allowed:
            raise self.trouble(done, arguments)
        return done

    def attempt(self, *arguments: str, given: str = "") -> Done:
        """Runs a call to its end, whatever comes of it."""
        done = subprocess.run(self._command(arguments), input=given, capture_output=True, text=True, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    def trouble(self, done: Done, arguments: Sequence[str]) -> ToolkitError:
        """A failed call as an error of ours."""
        lines = [line.removeprefix("error: ") for line in done.err.splitlines() if line.strip()]
        # its own log comes before the message, and says the same at length
        lines = [line for line in lines if not re.match(r"[EWI]\d{4} ", line)] or lines
        where = "kubectl " + " ".join(each for each in arguments if not each.startswith("--"))
        for pattern, what, remedy in _TROUBLE:
            line = next((line for line in lines if re.search(pattern, line)), None)
            if line is not None:
                name = self.namespace if "namespace" in what else None
                return SettingsError(what, where=where, why=line, remedy=remedy.replace("NAME", name or "NAME"))
        return ServerError("kubectl failed", where=where, why=lines[-1] if lines else f"exit code {done.code}")

    @contextmanager
    def forwarded(self, target: str, port: int) -> Iterator[str]:
        """The address of a port of a service or deployment, on this machine's loopback while the block runs.

        Raises:
            ToolkitError: it cannot be reached.
        """
        arguments = ("port-forward", "--address=127.0.0.1", target, f":{port}")
        with subprocess.Popen(self._command(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, text=True) as process:
            try:
                yield f"http://127.0.0.1:{self._local_port(process, arguments)}"
            finally:
                process.terminate()

    def _local_port(self, process: subprocess.Popen[str], arguments: Sequence[str]) -> int:
        lines: SimpleQueue[str] = SimpleQueue()
        stdout, stderr = process.stdout, process.stderr
        assert stdout is not None and stderr is not None

        def read() -> None:  # to the end, or kubectl would block on a full pipe
            for line in stdout:
                lines.put(line)
            lines.put("")

        Thread(target=read, daemon=True).start()
        try:
            line = lines.get(timeout=FORWARD_SECONDS)
        except Empty:
            raise ServerError("the service cannot be reached", where="kubectl " + " ".join(arguments),
                              why=f"no connection within {FORWARD_SECONDS:g} s") from None
        match = re.search(r"127\.0\.0\.1:(\d+)", line)
        if match is None:
            process.terminate()
            raise self.trouble(Done(process.wait(), line, stderr.read()), arguments)
        return int(match[1])

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return ["kubectl", *(["--namespace", self.namespace] if self.namespace else []), *arguments]
