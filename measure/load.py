"""Closed-loop load: so many connections, each of which asks again as soon as it is answered, for so many seconds.

Two generators. wrk is one C process that costs next to nothing beside the server. Locust is what many readers know; it
runs in a process of its own, whose imports end before its window begins. Each says what it has cost in CPU seconds,
since generator and server share the cores here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from configs.errors import ServerError, SettingsError

ROOT = Path(__file__).resolve().parents[1]
GENERATORS = ("wrk", "locust")
Generator = Literal["wrk", "locust"]
# seconds that one answer may take: stock servers queue eight requests of half a second each
TIMEOUT_SECONDS = 120

_LUA = """\
-- one static request; statuses are counted, and all figures printed as one line of JSON
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(args)
  statuses = {}
  local file = assert(io.open(args[1], "rb"))
  wrk.method, wrk.body = "POST", file:read("*a")
  file:close()
  wrk.headers["Content-Type"] = args[2]
  request = function() return message end
  message = wrk.format()
end
function response(status, headers, body)
  local key = tostring(status)
  statuses[key] = (statuses[key] or 0) + 1
end
function done(summary, latency, requests)
  local counted = {}
  for _, thread in ipairs(threads) do
    for status, count in pairs(thread:get("statuses")) do counted[status] = (counted[status] or 0) + count end
  end
  local parts = {}
  for status, count in pairs(counted) do table.insert(parts, string.format('"%s":%d', status, count)) end
  local e = summary.errors
  io.write(string.format('{"requests":%d,"seconds":%.6f,"statuses":{%s},' ..
    '"errors":{"connect":%d,"read":%d,"write":%d,"timeout":%d},' ..
    '"latency_ms":{"p50":%.3f,"p90":%.3f,"p99":%.3f,"max":%.3f}}\\n',
    summary.requests, summary.duration / 1e6, table.concat(parts, ","), e.connect, e.read, e.write, e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
"""


@dataclass(frozen=True)
class Load:
    """What one window of load has seen.

    Attributes:
        requests: answered within the window, whatever their status.
        seconds: of the window, wall time.
        statuses: HTTP status → count.
        errors: connect, read, write, timeout → count.
        latency_ms: p50, p90, p99 and max.
        cpu_seconds: of the generator.
    """

    requests: int
    seconds: float
    statuses: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def trouble(self) -> str:
        """What makes these figures worthless, in words; empty when every request was answered with 200."""
        parts = [f"{count} answers with status {status}" for status, count in self.statuses.items() if status != "200"]
        parts += [f"{count} {kind} errors" for kind, count in self.errors.items() if count]
        return ", ".join(parts)


def cost_at(rate: float, seen: Sequence[Load]) -> float:
    """CPU-milliseconds a request that a generator would cost at a rate, from loads at one or two other rates.

    A generator has a cost a second (timers, statistics) and one a request: at 30 requests/s Locust costs four times as
    much a request as at 1,000. Two rates tell the two apart; of one, its own cost is taken.
    """
    costs = [(1 / load.rate, 1000 * load.cpu_seconds / load.requests) for load in seen if load.requests]
    if not costs:
        return 0.0
    (near, low), (far, high) = min(costs), max(costs)
    if far < 1.5 * near:
        return low
    a_second = max(0.0, (high - low) / (far - near))
    return max(0.0, low + a_second * (1 / rate - near))


def installed(name: str) -> bool:
    """Whether a generator can run here."""
    if name == "wrk":
        return shutil.which("wrk") is not None
    from importlib.util import find_spec

    return find_spec("locust") is not None


def candidates(wanted: str) -> list[Generator]:
    """The generators that the user's word leaves: both that are installed for "auto".

    Raises:
        SettingsError: not known, or not installed.
    """
    remedies = {"wrk": "apt-get install wrk", "locust": "pip install -e '.[bench]'"}
    if wanted not in (*GENERATORS, "auto"):
        raise SettingsError(f"there is no load generator {wanted!r}", where="--generator",
                            remedy="auto, wrk or locust")
    names: list[Generator] = [name for name in GENERATORS if wanted in (name, "auto") and installed(name)]  # type: ignore[misc]
    if not names:
        missing = GENERATORS if wanted == "auto" else (wanted,)
        raise SettingsError("no load generator is installed", where=f"--generator {wanted}",
                            why=f"{' and '.join(missing)}: not found",
                            remedy=" or ".join(remedies[name] for name in missing))
    return names


def start(generator: Generator, url: str, body: Path, content_type: str, clients: int, seconds: float,
          folder: Path) -> Callable[[], Load]:
    """Starts a window of load. The returned function waits for its end; it ends the generator if it is interrupted.

    Args:
        body: file with the request's body.
        clients: keep-alive connections.
        folder: for the generator's script.
    """
    if generator == "wrk":
        script = folder / "wrk.lua"
        script.write_text(_LUA)
        # wrk takes whole seconds; one thread, since it is not the one to be measured
        command = ["wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", f"--timeout={TIMEOUT_SECONDS}s",
                   "-s", str(script), url, "--", str(body), content_type]
    else:
        parts = urlsplit(url)
        command = [sys.executable, "-m", "measure.load_locust", f"{parts.scheme}://{parts.netloc}", parts.path,
                   str(body), content_type, str(clients), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                               cwd=ROOT, start_new_session=True)
    return lambda: _finish(process, generator, seconds)


def _finish(process: subprocess.Popen[bytes], generator: str, seconds: float) -> Load:
    before = os.times()
    try:
        out, err = process.communicate(timeout=seconds + TIMEOUT_SECONDS)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    after = os.times()
    if process.returncode != 0:
        raise ServerError(f"the load generator failed ({generator})", why=(err or out).decode(errors="replace")[-800:])
    # this process waits for one child at a time during a window, so the difference is the generator's own
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return parse(out.decode(errors="replace"), spent)


def parse(text: str, cpu_seconds: float) -> Load:
    """A generator's output → its figures.

    Args:
        cpu_seconds: of its process; a figure that the generator reports itself, without its start, goes before.

    Raises:
        ServerError: no figures in it.
    """
    line = next((line for line in reversed(text.splitlines()) if line.startswith("{")), "")
    try:
        data: dict[str, Any] = json.loads(line)
        return Load(int(data["requests"]), float(data["seconds"]),
                    {str(key): int(value) for key, value in sorted(data["statuses"].items())},
                    {str(key): int(value) for key, value in data["errors"].items()},
                    {str(key): float(value) for key, value in data["latency_ms"].items()},
                    float(data.get("cpu_seconds", cpu_seconds)))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ServerError("the load generator has printed no figures", why=text[-400:] or repr(error)) from error
