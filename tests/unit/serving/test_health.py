"""serving/health.py on a real port: what each probe answers."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest

from configs.errors import ServerError
from serving.health import Health, HealthServer, ModelHealth, State


def health(state: State, ready: int, live: bool = True, started: bool = True) -> Health:
    return Health(live=live, started=started, ready=state == "ready", state=state,
                  models=(ModelHealth("food", ready, 2, state),))


@pytest.mark.parametrize(("now", "live", "startup", "ready"), [
    (health("starting", 1, started=False), 200, 503, 503),
    (health("ready", 2), 200, 200, 200),
    (health("starting", 1), 200, 200, 503),
    (health("draining", 2), 200, 200, 503),
    (health("failed", 0, live=False, started=False), 503, 503, 503),
], ids=["starting", "ready", "worker lost", "draining", "failed"])
def test_probes(now: Health, live: int, startup: int, ready: int) -> None:
    with HealthServer("127.0.0.1", 0, lambda: now) as server:
        answers = {path: httpx.get(f"http://127.0.0.1:{server.port}{path}", trust_env=False)
                   for path in ("/live", "/startup", "/ready")}
    assert [each.status_code for each in answers.values()] == [live, startup, ready]
    assert answers["/ready"].json() == {
        "ok": ready == 200, "state": now.state,
        "models": [{"name": "food", "ready": now.models[0].ready, "planned": 2, "state": now.state}]}
    assert b" " not in answers["/ready"].content


def test_anything_else_is_not_found(capfd: pytest.CaptureFixture[str]) -> None:
    with HealthServer("127.0.0.1", 0, lambda: health("ready", 2)) as server:
        base = f"http://127.0.0.1:{server.port}"
        assert httpx.get(f"{base}/", trust_env=False).status_code == 404
        assert httpx.get(f"{base}/ready?verbose", trust_env=False).status_code == 200
        assert httpx.head(f"{base}/ready", trust_env=False).status_code == 200
    assert capfd.readouterr() == ("", ""), "no access log"


def test_answer_follows_what_is_handed_in() -> None:
    states = [health("starting", 0), health("ready", 2)]
    with HealthServer("127.0.0.1", 0, lambda: states.pop(0)) as server:
        url = f"http://127.0.0.1:{server.port}/ready"
        assert [httpx.get(url, trust_env=False).status_code for _ in range(2)] == [503, 200]


def test_silent_connection_holds_nobody_up() -> None:
    server = HealthServer("127.0.0.1", 0, lambda: health("ready", 2))
    with socket.create_connection(("127.0.0.1", server.port)):
        assert json.loads(httpx.get(f"http://127.0.0.1:{server.port}/live", trust_env=False).content)["ok"]
        begin = time.monotonic()
        server.close()
    assert time.monotonic() - begin < 2


def test_port_that_is_taken() -> None:
    with (HealthServer("127.0.0.1", 0, lambda: health("ready", 2)) as first,
          pytest.raises(ServerError, match="health port cannot be opened") as caught):
        HealthServer("127.0.0.1", first.port, lambda: health("ready", 2))
    assert caught.value.where == f"127.0.0.1:{first.port}"
