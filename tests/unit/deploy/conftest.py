"""kubectl's stand-in, the server behind it, and schemas that are read once for all tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.deploy.stored import RENDERED

SCRIPT = """#!/bin/sh
# answers each verb from files, and writes down how it was called
if [ "$1" = --namespace ]; then namespace="$1 $2 "; shift 2; fi
echo "$namespace$*" >> "{folder}/calls"
case $1 in rollout) verb=$1-$2;; get) verb=$1-$(echo "$2" | cut -d/ -f1);; *) verb=$1;; esac
case " $* " in *" --filename=- "*) cat > "{folder}/$verb.in";; esac
test -f "{folder}/$verb.out" && cat "{folder}/$verb.out"
test -f "{folder}/$verb.err" && cat "{folder}/$verb.err" >&2
test -f "{folder}/$verb.rc" && exit "$(cat "{folder}/$verb.rc")"
if [ "$verb" = port-forward ]; then exec sleep 60; fi
exit 0
"""


@pytest.fixture(scope="session", autouse=True)
def _schemas_are_read_once() -> Iterator[None]:
    utils = pytest.importorskip("kubernetes_validate.utils", reason="pip install -e '.[deploy]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield


class StandIn:
    """A kubectl that answers what it is told, and remembers what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def answers(self, verb: str, out: str = "", err: str = "", code: int = 0) -> None:
        """What a verb, such as "diff" or "rollout-status", comes to."""
        for name, text in (("out", out), ("err", err), ("rc", str(code) if code else "")):
            path = self.folder / f"{verb}.{name}"
            path.write_text(text) if text else path.unlink(missing_ok=True)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def given(self, verb: str) -> str:
        """What it read from standard input."""
        return (self.folder / f"{verb}.in").read_text()


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A cluster in which everything goes well and nothing was there before."""
    path = tmp_path / "bin" / "kubectl"
    path.parent.mkdir()
    path.write_text(SCRIPT.replace("{folder}", str(path.parent)))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    made = StandIn(path.parent)
    made.answers("kustomize", (RENDERED / "shared-node.yaml").read_text())
    made.answers("config", "kind-here\n")
    made.answers("diff", "+  name: tscpu\n", code=1)
    made.answers("apply", "configmap/tscpu-serving-1 created\nservice/tscpu unchanged\ndeployment.apps/tscpu created\n")
    made.answers("rollout-status", 'deployment "tscpu" successfully rolled out\n')
    made.answers("rollout-undo", "deployment.apps/tscpu rolled back\n")
    made.answers("get-pods", json.dumps({"items": [
        {"metadata": {"name": "tscpu-old", "creationTimestamp": "2026-01-01T00:00:00Z"},
         "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"metadata": {"name": "tscpu-new", "creationTimestamp": "2026-01-02T00:00:00Z"},
         "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [
             {"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}}]}}]}))
    made.answers("get-events", json.dumps({"items": [
        {"reason": "BackOff", "message": "Back-off restarting failed", "lastTimestamp": "2026-01-02T00:02:00Z"},
        {"reason": "Pulled", "message": "Image is present", "lastTimestamp": "2026-01-02T00:00:01Z"}]}))
    made.answers("logs", "error: the memory limit leaves no room for one worker of each model\n")
    return made


class Pods:
    """What answers behind port-forward: /ready with the models, and predictions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        pods = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pods.answer(self, 200, {"models": [{"name": "food_recognizer"}, {"name": "image_scorer"}]})

            def do_POST(self) -> None:
                assert self.rfile.read(int(self.headers["Content-Length"])).startswith(b"\xff\xd8")  # a JPEG
                pods.asked.append(self.path)
                pods.answer(self, pods.status, {"score": 7.5} if pods.status == 200 else {"message": "no worker"})

            def log_message(self, format: str, *args: object) -> None:
                """No line for a request."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @staticmethod
    def answer(handler: BaseHTTPRequestHandler, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)


@pytest.fixture
def pods(kubectl: StandIn) -> Iterator[Pods]:
    made = Pods()
    kubectl.answers("port-forward", f"Forwarding from 127.0.0.1:{made.server.server_address[1]} -> 8080\n")
    yield made
    made.server.shutdown()
    made.server.server_close()
