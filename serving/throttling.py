"""How often, and for how long, the quota has stopped the pod's threads since somebody looked last.

Only the difference between two looks lives here; `configs.limits` reads the counters. The last look is kept in the run
folder, so that `tscpu inspect` can be called now and then.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.limits import Throttling, read_throttling
from configs.plan import Plan

FILE = "throttling.json"


@dataclass(frozen=True)
class Throttled:
    """What happened between two looks.

    Attributes:
        source: the cpu.stat file.
        seconds: between the looks; None when there was none before: then the counters are those of the group's life.
        periods, throttled_periods: of the quota; a period counts only while something in the group wants to run.
        throttled_seconds: for which threads were stopped; the kernel may add up its CPUs, so it can outrun the clock.
    """

    source: str
    seconds: float | None
    periods: int
    throttled_periods: int
    throttled_seconds: float

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        span = "since its group was made" if self.seconds is None else f"in the last {self.seconds:.1f} s"
        share = f" ({100 * self.throttled_periods / self.periods:.1f} %)" if self.periods else ""
        of_time = f" ({100 * self.throttled_seconds / self.seconds:.1f} % of the time)" if self.seconds else ""
        return (f"CFS throttling {span}: {self.throttled_periods} of {self.periods} periods{share}, threads stopped "
                f"for {self.throttled_seconds:.2f} s{of_time}; {self.source}")


def look(plan: Plan, run_dir: Path) -> Throttled | None:
    """The throttling since the last look at this run folder; None without a quota. Remembers this look.

    Raises:
        MachineError: the counters cannot be read.
    """
    if not plan.pod.cpu_stat:
        return None
    source = Path(plan.pod.cpu_stat)
    counters, now = read_throttling(source), time.time()
    last, then = _last(run_dir / FILE, plan.pod.cpu_stat)
    with suppress(OSError):  # a folder that may only be read: then each look is the first
        temporary = run_dir / f"{FILE}.tmp"
        temporary.write_text(json.dumps({"source": plan.pod.cpu_stat, "at": now, **asdict(counters)}) + "\n")
        temporary.replace(run_dir / FILE)
    if then is None or last.periods > counters.periods or now < then:  # another group under the same name
        last, then = Throttling(0, 0, 0.0), None
    return Throttled(plan.pod.cpu_stat, None if then is None else now - then, counters.periods - last.periods,
                     counters.throttled_periods - last.throttled_periods,
                     counters.throttled_seconds - last.throttled_seconds)


def _last(path: Path, source: str) -> tuple[Throttling, float | None]:
    nothing = Throttling(0, 0, 0.0)
    try:
        data = json.loads(path.read_text())
        if data.pop("source") != source:
            return nothing, None
        return Throttling(int(data["periods"]), int(data["throttled_periods"]),
                          float(data["throttled_seconds"])), float(data["at"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return nothing, None
