"""Locust as a closed-loop generator, driven as a library: one window, its figures as one line of JSON.

    python -m measure.load_locust HOST PATH BODY CONTENT_TYPE CLIENTS SECONDS

Locust's own command would count its start-up (a second of CPU) into every window. FastHttpUser, since the ordinary
one, on requests, costs five times as much a request.
"""

import importlib
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


def main() -> None:
    host, path, body_path, content_type, clients, seconds = sys.argv[1:7]
    # the import patches sockets, and so comes before anything that opens one
    gevent: Any = importlib.import_module("gevent")
    locust: Any = importlib.import_module("locust")
    environments: Any = importlib.import_module("locust.env")

    body = Path(body_path).read_bytes()
    statuses: Counter[str] = Counter()
    errors: Counter[str] = Counter({"connect": 0, "read": 0, "write": 0, "timeout": 0})
    latencies: list[float] = []

    class Client(locust.FastHttpUser):  # type: ignore[misc]
        wait_time = locust.constant(0)
        network_timeout = connection_timeout = 120.0

        @locust.task  # type: ignore[untyped-decorator]
        def ask(self) -> None:
            self.client.post(path, data=body, headers={"Content-Type": content_type}, name="ask")

    def count(response_time: float, exception: object = None, response: Any = None, **_: object) -> None:
        status = getattr(response, "status_code", 0)
        if status:
            statuses[str(status)] += 1
            latencies.append(response_time)
        else:
            errors["timeout" if "imeout" in repr(exception) else "read"] += 1

    Client.host = host
    environment = environments.Environment(user_classes=[Client], stop_timeout=None)
    runner = environment.create_local_runner()
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    environment.events.request.add_listener(count)
    runner.start(int(clients), spawn_rate=int(clients))
    gevent.sleep(float(seconds))
    lasted, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    counted, failed, times = dict(statuses), dict(errors), sorted(latencies)  # before the users are stopped
    runner.quit()

    def percentile(share: float) -> float:
        return round(times[min(len(times) - 1, int(share * len(times)))], 3) if times else 0.0

    print(json.dumps({
        "requests": sum(counted.values()), "seconds": lasted, "statuses": counted, "errors": failed,
        "latency_ms": {"p50": percentile(0.5), "p90": percentile(0.9), "p99": percentile(0.99), "max": percentile(1.0)},
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}), flush=True)


if __name__ == "__main__":
    main()
