"""serving/client.py: typed answers, and errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from configs.errors import ServerError
from serving.client import Answer, Client, UnauthorizedError, UnknownModelError

Handler = Callable[[httpx.Request], httpx.Response]

# as TorchServe 0.12 answers, without the fields that nobody reads
DESCRIPTION = [{
    "modelName": "food", "modelVersion": "1.0", "modelUrl": "food.mar", "runtime": "python", "minWorkers": 2,
    "maxWorkers": 2, "batchSize": 1, "loadedAtStartup": True,
    "workers": [{"id": "9000", "startTime": "2026-12-02T06:39:01.246Z", "status": "READY", "memoryUsage": 4096,
                 "pid": 4294, "gpu": False, "gpuUsage": "N/A"},
                {"id": "9001", "startTime": "2026-12-02T06:39:01.246Z", "status": "UNLOADING", "memoryUsage": 0,
                 "pid": -1, "gpu": False, "gpuUsage": "N/A"}],
    "jobQueueStatus": {"remainingCapacity": 97, "pendingRequests": 3}}]
NO_KEY = {"code": 400, "type": "InvalidKeyException",
          "message": "Token Authorization failed. Token either incorrect, expired, or not provided correctly"}


def client(handler: Handler, **more: Any) -> Client:
    return Client(transport=httpx.MockTransport(handler), **more)


def answering(status: int, value: object) -> Handler:
    return lambda request: httpx.Response(status, json=value)


def failing(error: Exception) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    return handler


def test_describe() -> None:
    status = client(answering(200, DESCRIPTION)).describe("food")
    assert (status.name, status.version, status.min_workers, status.max_workers) == ("food", "1.0", 2, 2)
    assert (status.pending_requests, status.remaining_capacity) == (3, 97)
    assert [(each.id, each.pid, each.status, each.memory) for each in status.workers] == \
        [("9000", 4294, "READY", 4096), ("9001", -1, "UNLOADING", 0)]
    assert status.ready_workers == 1


def test_describe_an_old_server_without_queue_status() -> None:
    old = [{key: value for key, value in DESCRIPTION[0].items() if key != "jobQueueStatus"}]
    assert client(answering(200, old)).describe("food").pending_requests is None


def test_describe_what_is_not_there() -> None:
    gone = answering(404, {"code": 404, "type": "ModelNotFoundException", "message": "Model not found: food"})
    with pytest.raises(UnknownModelError, match="no model 'food'") as caught:
        client(gone).describe("food")
    assert caught.value.why == "Model not found: food"


@pytest.mark.parametrize("value", [[], {}, "hello", [{"modelName": "food"}]], ids=["empty", "object", "text", "short"])
def test_another_server_on_the_port(value: object) -> None:
    with pytest.raises(ServerError, match="does not answer like TorchServe"):
        client(answering(200, value)).describe("food")


def test_predict_sends_bytes_and_parses_json() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b'{"espresso": 0.9}')

    answer = client(handler).predict("a model/x", b"\xff\xd8", "image/jpeg")
    assert isinstance(answer, Answer)
    assert (answer.status, answer.body) == (200, {"espresso": 0.9})
    assert answer.seconds >= 0
    assert seen[0].url.raw_path == b"/predictions/a%20model%2Fx"
    assert (seen[0].content, seen[0].headers["content-type"]) == (b"\xff\xd8", "image/jpeg")


def test_predict_returns_errors_and_text_as_they_are() -> None:
    refused = client(lambda request: httpx.Response(503, text="busy")).predict("food", b"")
    assert (refused.status, refused.body) == (503, "busy")


def test_models_over_several_pages() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.params["next_page_token"] == "0":
            return httpx.Response(200, json={"nextPageToken": "1", "models": [{"modelName": "score"}]})
        return httpx.Response(200, json={"models": [{"modelName": "food"}]})

    assert client(handler).models() == ("food", "score")


def test_scale_asks_for_equal_bounds() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(202, json={"status": "Processing worker updates..."})

    client(handler).scale("food", 3, synchronous=False)
    assert (seen[0].method, dict(seen[0].url.params)) == \
        ("PUT", {"min_worker": "3", "max_worker": "3", "synchronous": "false"})


def test_scale_refused() -> None:
    with pytest.raises(ServerError, match="refused") as caught:
        client(answering(405, {"code": 405, "message": "not allowed"})).scale("food", 1)
    assert caught.value.why == "status 405: not allowed"


@pytest.mark.parametrize(("handler", "healthy"), [
    (answering(200, {"status": "Healthy"}), True), (answering(500, {"status": "Unhealthy"}), False),
    (failing(httpx.ConnectError("refused")), False)], ids=["healthy", "unhealthy", "down"])
def test_ping(handler: Handler, healthy: bool) -> None:
    assert client(handler).ping() is healthy


def test_unreachable_names_the_command() -> None:
    with pytest.raises(ServerError, match="cannot be reached") as caught:
        client(failing(httpx.ConnectError("Connection refused"))).models()
    assert "tscpu serve" in caught.value.remedy
    assert caught.value.where == "http://127.0.0.1:8081/models"


def test_slow_is_not_unreachable() -> None:
    with pytest.raises(ServerError, match="in time") as caught:
        client(failing(httpx.ReadTimeout("")), timeout=2).predict("food", b"")
    assert caught.value.why == "no answer in 2 s"


@pytest.mark.parametrize("call", [lambda it: it.predict("food", b""), lambda it: it.describe("food"),
                                  lambda it: it.models(), lambda it: it.scale("food", 1), lambda it: it.ping()],
                         ids=["predict", "describe", "models", "scale", "ping"])
def test_p17_missing_key_is_authorization_not_the_model(call: Callable[[Client], object]) -> None:
    with pytest.raises(UnauthorizedError, match="authorization, not the model") as caught:
        call(client(answering(400, NO_KEY)))
    assert "key_file.json" in caught.value.remedy


def test_a_bad_request_is_no_missing_key() -> None:
    bad = answering(400, {"code": 400, "type": "BadRequestException", "message": "no image"})
    assert client(bad).predict("food", b"").status == 400


def test_keys_are_sent_and_renewed_when_they_expire(tmp_path: Path) -> None:
    path = tmp_path / "key_file.json"
    path.write_text(json.dumps({"management": {"key": "old"}, "inference": {"key": "inf"}, "API": {"key": "api"}}))

    def handler(request: httpx.Request) -> httpx.Response:
        key = request.headers["authorization"]
        if request.url.path == "/token":
            assert (key, request.url.params["type"]) == ("Bearer api", "management")
            keys = json.loads(path.read_text())
            path.write_text(json.dumps({**keys, "management": {"key": "new"}}))
            return httpx.Response(200)
        return httpx.Response(200, json=DESCRIPTION) if key == "Bearer new" else httpx.Response(400, json=NO_KEY)

    assert client(handler, key_file=path).describe("food").name == "food"


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(ServerError) as caught:
        Client(management="http://127.0.0.1:1").models()
    assert "refused" in caught.value.why
