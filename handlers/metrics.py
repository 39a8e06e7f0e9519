"""Stage timers as TorchServe metrics.

TorchServe's metrics travel as lines of a worker's standard output, each of which costs a write, a regular
expression and a log event. So seconds are summed here and handed over once a second at most, as counters:
rate(StageSeconds) over rate(StageImages) is the mean time of a stage.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STAGES = ("decode", "preprocess", "infer", "postprocess")
SECONDS_METRIC, CPU_METRIC, IMAGES_METRIC = "StageSeconds", "StageCpuSeconds", "StageImages"
_INTERVAL = 1.0


class StageTimer:
    """Sums seconds per stage, on the clock and of the process's CPU time, and images, until they are handed over."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.cpu_seconds: dict[str, float] = defaultdict(float)
        self.images = 0
        self._handed_over = time.perf_counter()
        # The logger that carries TorchServe's metrics. Its own per-batch gauge would cost more than it tells.
        self._logger = logging.getLogger("ts.metrics")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to a stage."""
        start, cpu_start = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.cpu_seconds[name] += time.process_time() - cpu_start
            self.seconds[name] += time.perf_counter() - start

    def quieten(self) -> None:
        """Silences TorchServe's own metrics of every batch."""
        self._logger.setLevel(logging.WARNING)

    def hand_over(self, metrics: Any, model: str) -> None:
        """Emits what has been summed, if a second has passed; `metrics` is TorchServe's context.metrics."""
        now = time.perf_counter()
        if now - self._handed_over < _INTERVAL or metrics is None:
            return
        from ts.metrics.dimension import Dimension

        self._logger.setLevel(logging.INFO)
        try:
            for metric, sums in ((SECONDS_METRIC, self.seconds), (CPU_METRIC, self.cpu_seconds)):
                for name, seconds in sums.items():
                    # Not add_metric: before 0.8.2 that declares a metric and takes no value. Units are in metrics.yaml.
                    # Fixed point: TorchServe's parser knows no exponent with a plus sign.
                    metrics.add_counter(metric, round(seconds, 6),
                                        dimensions=[Dimension("ModelName", model), Dimension("Stage", name)])
            metrics.add_counter(IMAGES_METRIC, self.images, dimensions=[Dimension("ModelName", model)])
        finally:
            self._logger.setLevel(logging.WARNING)
        self.seconds.clear()
        self.cpu_seconds.clear()
        self.images, self._handed_over = 0, now
