"""Run in a process of its own, inside an unpacked archive: loads it with TorchServe's loader and lets it answer.

Prints what that cost as one line of JSON. Imports nothing of ours but what the archive brings.
"""

import importlib
import io
import json
import os
import statistics
import sys
import time

START = time.perf_counter()
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != os.path.dirname(os.path.realpath(__file__))]


def main(name: str) -> None:
    import numpy as np
    from PIL import Image
    from ts.context import RequestProcessor
    from ts.model_loader import ModelLoaderFactory

    folder = os.getcwd()
    with open("artifact.json") as file:
        artifact = json.load(file)
    largest, size = artifact["batch_size"], artifact["input"]["size"]
    with open("MAR-INF/MANIFEST.json") as file:
        handler = json.load(file)["model"]["handler"]
    # the loader hides an ImportError behind a second one, of a handler of its own that was never meant
    importlib.import_module(handler.removesuffix(".py"))
    service = ModelLoaderFactory.get_model_loader().load(name, folder, handler, None, largest)

    import handlers

    if os.path.dirname(os.path.dirname(os.path.realpath(handlers.__file__))) != os.path.realpath(folder):
        raise SystemExit(f"the worker would import handlers from {handlers.__file__}, not from its archive")

    def photo(index: int) -> bytes:
        pixels = np.random.default_rng(index).integers(0, 256, (size + 32, size + 64, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG")
        return stream.getvalue()

    def predict(bodies: list[bytes]) -> list[bytes]:
        context = service.context
        context.request_ids = {index: str(index) for index in range(len(bodies))}
        context.request_processor = [RequestProcessor({}) for _ in bodies]
        answers: list[bytes] = service._entry_point([{"body": bytearray(body)} for body in bodies], context)
        if len(answers) != len(bodies):
            raise SystemExit(f"a batch of {len(bodies)} gets {len(answers)} answers")
        for index, answer in enumerate(answers):
            status, _ = context.get_response_status(index)
            if status != 200:
                raise SystemExit(f"a batch of {len(bodies)}: item {index} is answered with {status}: {answer!r}")
        return answers

    alone = [json.loads(predict([photo(index)])[0]) for index in range(2)]
    load_seconds = time.perf_counter() - START
    for count in sorted({1, 2, largest}):
        answers = [json.loads(answer) for answer in predict([photo(index % 2) for index in range(count)])]
        for index, answer in enumerate(answers):
            if not close(answer, alone[index % 2]):
                raise SystemExit(f"in a batch of {count}, photo {index} is answered with {answer}, "
                                 f"and alone with {alone[index % 2]}")

    pixels = io.BytesIO()
    np.save(pixels, np.zeros((size, size, 3), np.uint8))
    times = []
    for _ in range(60):
        # CPU time: on a pinned core it is what the clock shows, unless something else runs there
        begin = time.process_time()
        predict([pixels.getvalue()])
        times.append(time.process_time() - begin)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    print(json.dumps({"resident_bytes": resident, "load_seconds": round(load_seconds, 2),
                      "inference_ms": round(statistics.median(times) * 1000, 2)}))


def close(left: object, right: object) -> bool:
    """Equal, with numbers to 1e-3: a batch may be summed in another order."""
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) <= 1e-3 * max(1.0, abs(right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(close, left, right))
    return left == right or isinstance(left, str)  # labels of equal probability may swap


if __name__ == "__main__":
    main(sys.argv[1])
