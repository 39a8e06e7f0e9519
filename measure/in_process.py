"""One pinned process that decodes, preprocesses and infers in a loop, without any server: what this core can do.

    python -m measure.in_process FOLDER BODY

Prints "ready" once the model is loaded. Then each line "SECONDS" on its standard input makes it work for that long
and print what it did as one line of JSON: images, wall seconds, and CPU seconds of each stage.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from measure.pipeline import Pipeline


def work(pipeline: Pipeline, body: bytes, seconds: float) -> dict[str, object]:
    """Runs for so many seconds of wall time."""
    stages = {"decode": 0.0, "preprocess": 0.0, "infer": 0.0}
    clock, images = time.thread_time, 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = clock()
        item = pipeline.decode({"body": bytearray(body)})
        decoded = clock()
        batch = pipeline.tensor(item)
        preprocessed = clock()
        pipeline.infer(batch)
        stages["infer"] += clock() - preprocessed
        stages["preprocess"] += preprocessed - decoded
        stages["decode"] += decoded - start
        images += 1
    return {"images": images, "seconds": time.perf_counter() - begin, "cpu_seconds": stages}


def main() -> None:
    pipeline = Pipeline(Path(sys.argv[1]))
    body = Path(sys.argv[2]).read_bytes()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(work(pipeline, body, float(line))), flush=True)


if __name__ == "__main__":
    main()
