"""TorchServe's inference and management API, as calls with typed answers.

Only speaking to the server lives here. `audit` and `supervisor` judge what it says; load tests bring their own
client, since this one sends one request at a time.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

from configs.errors import ServerError

INFERENCE = "http://127.0.0.1:8080"
MANAGEMENT = "http://127.0.0.1:8081"


class UnknownModelError(ServerError):
    """TorchServe has no model of that name."""


class UnauthorizedError(ServerError):
    """TorchServe wants a key: authorization, not the model."""


@dataclass(frozen=True)
class Answer:
    """What a prediction came back with.

    Attributes:
        status: HTTP status.
        body: the JSON value if the body is JSON, else its text.
        seconds: from sending the request to the last byte of the answer.
    """

    status: int
    body: Any
    seconds: float


@dataclass(frozen=True)
class WorkerStatus:
    """One worker as TorchServe sees it.

    Attributes:
        id: the number in its socket's name; it stays the same when the worker is started again.
        pid: process id; -1 before its first start has reported one. It stays the old one until the next has reported.
        status: READY once the model is loaded, else what TorchServe calls it (UNLOADING while it loads, too).
        memory: bytes, as far as TorchServe knows.
    """

    id: str
    pid: int
    status: str
    memory: int

    @property
    def ready(self) -> bool:
        """Whether it takes requests. TorchServe 0.6.0 calls a worker READY before it has a process, with the pid -1."""
        return self.status == "READY" and self.pid > 0


@dataclass(frozen=True)
class ModelStatus:
    """One model as TorchServe sees it.

    Attributes:
        pending_requests: requests that wait in its queue; those that a worker already holds are not among them.
        remaining_capacity: free places of the queue. Both are None where an old
            TorchServe does not say.
    """

    name: str
    version: str
    workers: tuple[WorkerStatus, ...]
    min_workers: int
    max_workers: int
    pending_requests: int | None
    remaining_capacity: int | None

    @property
    def ready_workers(self) -> int:
        return sum(worker.ready for worker in self.workers)


class Client:
    """Speaks to one TorchServe. Not for several threads at once: keep one each.

    Args:
        inference, management: base URLs.
        timeout: seconds that a connection, or a pause within an answer, may take.
        key_file: TorchServe's key_file.json, where token authorization is on. It is read before every call, since
            TorchServe writes new keys at each start, and an expired key is renewed through it.
        transport: another way to the server than the network, for tests.
    """

    def __init__(self, inference: str = INFERENCE, management: str = MANAGEMENT, timeout: float = 30.0, *,
                 key_file: Path | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self.inference, self.management, self.timeout = inference.rstrip("/"), management.rstrip("/"), timeout
        self.key_file = key_file
        # a proxy of the environment would swallow calls to the pod's own loopback
        self._http = httpx.Client(timeout=timeout, transport=transport, trust_env=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def predict(self, model: str, body: bytes, content_type: str = "application/octet-stream") -> Answer:
        """Sends one request to a model and returns the answer, whatever its status.

        Raises:
            ServerError: no connection, or no answer in time.
            UnauthorizedError: TorchServe wants a key.
        """
        begin = time.perf_counter()
        response = self._call("POST", self.inference, f"/predictions/{quote(model, safe='')}", content=body,
                              headers={"Content-Type": content_type})
        seconds = time.perf_counter() - begin
        try:
            answer = json.loads(response.content)
        except ValueError:
            answer = response.text
        return Answer(response.status_code, answer, seconds)

    def describe(self, model: str) -> ModelStatus:
        """The default version of a model, with its workers.

        Raises:
            UnknownModelError: TorchServe has not registered it.
            ServerError: no connection, no answer in time, or another error.
        """
        response = self._call("GET", self.management, f"/models/{quote(model, safe='')}")
        if response.status_code == 404:
            raise UnknownModelError(f"TorchServe has no model {model!r}", where=self.management, why=_message(response),
                               remedy="look for \"Failed to load model\" in its log: the archive is missing or broken")
        found = _json(self._checked(response))
        try:
            entry = found[0] if isinstance(found, list) else found
            queue = entry.get("jobQueueStatus", {})
            workers = tuple(WorkerStatus(str(worker["id"]), int(worker.get("pid", -1)), str(worker["status"]),
                                         int(worker.get("memoryUsage", 0))) for worker in entry["workers"])
            return ModelStatus(str(entry["modelName"]), str(entry["modelVersion"]), workers, int(entry["minWorkers"]),
                               int(entry["maxWorkers"]), queue.get("pendingRequests"), queue.get("remainingCapacity"))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _not_torchserve(response, error) from error

    def models(self) -> tuple[str, ...]:
        """The names of all registered models, sorted.

        Raises:
            ServerError: no connection, no answer in time, or another error.
        """
        names: list[str] = []
        token = "0"
        while token:
            response = self._checked(self._call("GET", self.management, "/models",
                                                params={"limit": "100", "next_page_token": token}))
            found = _json(response)
            try:
                names += [str(entry["modelName"]) for entry in found["models"]]
                token = str(found.get("nextPageToken") or "")
            except (LookupError, TypeError, AttributeError) as error:
                raise _not_torchserve(response, error) from error
        return tuple(sorted(names))

    def scale(self, model: str, workers: int, synchronous: bool = True, *, timeout: float = 300.0) -> None:
        """Sets a model's workers; synchronous waits, at most `timeout` seconds, until they are started.

        Raises:
            UnknownModelError: TorchServe has not registered it.
            ServerError: no connection, no answer in time, or refused.
        """
        response = self._call("PUT", self.management, f"/models/{quote(model, safe='')}",
                              params={"min_worker": str(workers), "max_worker": str(workers),
                                      "synchronous": "true" if synchronous else "false"},
                              timeout=timeout if synchronous else self.timeout)
        if response.status_code == 404:
            raise UnknownModelError(f"TorchServe has no model {model!r}", where=self.management, why=_message(response))
        self._checked(response)

    def ping(self) -> bool:
        """Whether TorchServe answers and calls itself healthy. That says nothing of models that are still loading.

        Raises:
            UnauthorizedError: TorchServe wants a key.
        """
        try:
            return self._call("GET", self.inference, "/ping").status_code == 200
        except UnauthorizedError:
            raise
        except ServerError:
            return False

    def _call(self, method: str, base: str, path: str, *, timeout: float | None = None,
              headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        which = "inference" if base == self.inference else "management"
        seconds = self.timeout if timeout is None else timeout
        response = self._send(method, base + path, which, seconds, headers or {}, more)
        if _refuses_key(response) and self._renew(which):
            response = self._send(method, base + path, which, seconds, headers or {}, more)
        if _refuses_key(response):
            raise UnauthorizedError("TorchServe refused the request: authorization, not the model", where=base + path,
                                    why=_message(response),
                                    remedy="send the key of key_file.json (they expire), or set "
                                           "disable_token_authorization=true in config.properties")
        return response

    def _send(self, method: str, url: str, which: str, seconds: float, headers: dict[str, str],
              more: dict[str, Any]) -> httpx.Response:
        try:
            return self._http.request(method, url, headers={**headers, **self._authorization(which)}, timeout=seconds,
                                      **more)
        except httpx.TimeoutException as error:
            raise ServerError("TorchServe did not answer in time", where=url, why=f"no answer in {seconds:g} s",
                              remedy="see its log and `tscpu inspect`: are the workers busy, or still loading?"
                              ) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServerError("TorchServe cannot be reached", where=url, why=str(error),
                              remedy="is it running? `tscpu serve` starts it") from error

    def _renew(self, which: str) -> bool:
        """Asks for a new key, which TorchServe writes into its key file. Keys last an hour unless it is told else."""
        api = self._authorization("API")
        if not api:
            return False
        try:
            return self._http.get(self.management + "/token", params={"type": which}, headers=api).is_success
        except httpx.HTTPError:
            return False

    def _authorization(self, which: str) -> dict[str, str]:
        if self.key_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {json.loads(self.key_file.read_text())[which]['key']}"}
        except (OSError, ValueError, LookupError, TypeError):
            return {}  # not written yet, or half written: TorchServe's refusal explains itself

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if not response.is_success:
            raise ServerError("TorchServe refused the request", where=str(response.url),
                              why=f"status {response.status_code}: {_message(response)}")
        return response


def _refuses_key(response: httpx.Response) -> bool:
    return response.status_code == 400 and _field(response, "type") == "InvalidKeyException"


def _json(response: httpx.Response) -> Any:
    try:
        return json.loads(response.content)
    except ValueError as error:
        raise _not_torchserve(response, error) from error


def _field(response: httpx.Response, name: str) -> str:
    """One field of TorchServe's error body, or an empty string."""
    try:
        body = json.loads(response.content)
    except ValueError:
        return ""
    return str(body.get(name, "")) if isinstance(body, dict) else ""


def _message(response: httpx.Response) -> str:
    return _field(response, "message") or response.text[:200]


def _not_torchserve(response: httpx.Response, error: Exception) -> ServerError:
    return ServerError("this does not answer like TorchServe", where=str(response.url), why=f"{error!r}",
                       remedy="is another server on this port?")
