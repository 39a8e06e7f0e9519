"""/live, /startup and /ready on one small port, for the probes of the pod; /metrics beside them, for Prometheus.

Only answering lives here: what it answers is handed in by whoever knows, such as `supervisor`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Literal

from configs.errors import ServerError

State = Literal["starting", "ready", "draining", "failed"]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus's text format
SILENCE_SECONDS = 5.0  # after which a probe that connects and says nothing is dropped


@dataclass(frozen=True)
class ModelHealth:
    """One model: its workers that are READY, and those that the plan wants."""

    name: str
    ready: int
    planned: int
    state: State


@dataclass(frozen=True)
class Health:
    """The pod at one moment.

    Attributes:
        live: the supervisor and TorchServe run, and nothing has failed.
        started: every planned model has had all its workers at least once.
        ready: every planned model has all its workers now, and requests are wanted.
    """

    live: bool
    started: bool
    ready: bool
    state: State
    models: tuple[ModelHealth, ...]

    def body(self, yes: bool) -> bytes:
        """The JSON that a probe gets: {"ok", "state", "models": [{"name", "ready", "planned", "state"}]}."""
        models = [{"name": model.name, "ready": model.ready, "planned": model.planned, "state": model.state}
                  for model in self.models]
        return json.dumps({"ok": yes, "state": self.state, "models": models}, separators=(",", ":")).encode() + b"\n"


class HealthServer:
    """Answers probes in threads of its own until it is closed.

    Args:
        address: an IP address to bind to; "0.0.0.0" or "::" for all.
        port: TCP port; 0 for any free one.
        read: gives the present health. Called from several threads.
        metrics: gives the text of /metrics. Called from several threads.

    Raises:
        ServerError: the address or port cannot be had.
    """

    def __init__(self, address: str, port: int, read: Callable[[], Health],
                 metrics: Callable[[], bytes] = bytes) -> None:
        try:
            self._server = _Server(address, port, read, metrics)
        except (OSError, OverflowError) as error:
            raise ServerError("the health port cannot be opened", where=f"{address}:{port}", why=str(error),
                              remedy="stop the other server on it, or choose another port in serving.yaml") from error
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="health", daemon=True)
        self._thread.start()

    def __enter__(self) -> HealthServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a probe that never speaks must not hold up the end
    request_queue_size = 64

    def __init__(self, address: str, port: int, read: Callable[[], Health], metrics: Callable[[], bytes]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.read, self.metrics = read, metrics
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own looks its host name up, which can take seconds in a pod without DNS
        socket_address = self.server_address
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(socket_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A probe that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SILENCE_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, self.server.metrics(), METRICS_TYPE)
            return
        health = self.server.read()
        answers = {"/live": health.live, "/startup": health.started, "/ready": health.ready}
        yes = answers.get(path)
        if yes is None:
            self._answer(404, b'{"code":404,"message":"there are /live, /startup, /ready and /metrics"}\n')
        else:
            self._answer(200 if yes else 503, health.body(yes))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds: no line for any of them."""
