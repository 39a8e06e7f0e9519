"""Milliseconds of built networks on one pinned thread, side by side in one process.

    python -m measure.timing RUNTIME ROUNDS CPU FOLDER…

Prints a JSON list: for each folder the milliseconds of one image in each round. A process of its own, so that whoever
asks keeps its affinity and its threads. An error raised on purpose goes to standard error as its message, with exit
code 2. Nothing here imports torch before the process is pinned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from configs.errors import SettingsError
from measure import child
from measure.ratios import Ratio, spread

INFERENCES = 8  # of a network's turn; the first finds the caches full of the others' weights, the median does not
WARM_UP = 10


def side_by_side(folders: Sequence[Path], runtime: str, rounds: int = 15, cpu: int | None = None) -> list[list[float]]:
    """For each artifact folder the milliseconds of one image (batch 1) in each round.

    Network and head are in the figure. Decoding, resizing and, for networks that take no pixels, normalising are not:
    they are the same for every network of one input size.

    Args:
        folders: each with artifact.json and the network's file for `runtime`.
        rounds: in each of them every network has its turn; figures of one round are to be divided by each other.
        cpu: where to pin; None takes the first that this process may use.

    Raises:
        SettingsError: this process may not use that CPU.
        ServerError: a network cannot be opened or asked, with the runtime's own words.
    """
    allowed = sorted(os.sched_getaffinity(0))
    chosen = allowed[0] if cpu is None else cpu
    if chosen not in allowed:
        raise SettingsError(f"CPU {chosen} may not be used here", where="cpu",
                            remedy="one of " + ", ".join(map(str, allowed)))
    printed = child.run("measure.timing", runtime, rounds, chosen, *(folder.resolve() for folder in folders),
                        what="the networks cannot be timed", where=", ".join(map(str, folders)),
                        variables={"OMP_NUM_THREADS": "1"})
    found: list[list[float]] = json.loads(printed.splitlines()[-1])  # runtimes may print before it
    return found


def speedup(reference: Sequence[float], other: Sequence[float]) -> Ratio:
    """How many times as fast `other` is.

    Args:
        reference, other: milliseconds of the same rounds, at least one.
    """
    found = spread(one / two for one, two in zip(reference, other, strict=True))
    if found is None:
        raise ValueError("there is no round to compare")
    return found


def _asker(folder: Path, runtime: str) -> Callable[[], object]:
    """An opened network with an image to ask it for, as a worker would hand it over."""
    import torch

    from handlers.artifact import Artifact
    from handlers.runtimes import open_runtime
    from handlers.transforms import Preprocess

    artifact = Artifact.read(folder)
    file = artifact.files[artifact.serving_runtime(runtime)].file
    network = open_runtime(runtime, folder / file, 1, artifact.input)
    size = artifact.input.size
    rows = torch.randint(0, 256, (1, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = rows.permute(0, 3, 1, 2)  # channels last in memory
    batch = pixels if network.pixels is not None else Preprocess(artifact.input).normalise(pixels)

    def ask() -> object:
        with torch.inference_mode():
            return network(batch)

    return ask


def in_turns(askers: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Milliseconds of each asker in each round; whoever was first in a round is last in the next."""
    for ask in askers:
        for _ in range(WARM_UP):
            ask()
    found: list[list[float]] = [[] for _ in askers]
    for number in range(rounds):
        for place in range(len(askers)):
            turn = (place + number) % len(askers)
            found[turn].append(1000 * median(_seconds(askers[turn]) for _ in range(INFERENCES)))
    return found


def _seconds(ask: Callable[[], object]) -> float:
    # CPU time: what else runs on this core is not the network's doing. Of the process and not of the thread, which
    # would miss a runtime that infers in a thread of its own. None does: with one thread of their own, the calling one
    # does all the work of every runtime here, and the two clocks differ by microseconds.
    begin = time.process_time()
    ask()
    return time.process_time() - begin


def main() -> None:
    runtime, rounds, cpu, *folders = sys.argv[1:]
    os.sched_setaffinity(0, {int(cpu)})  # before anything starts threads, which inherit it
    from handlers.errors import ToolkitError

    try:
        askers = [_asker(Path(folder), runtime) for folder in folders]
    except ToolkitError as error:
        print(error, file=sys.stderr)
        raise SystemExit(child.REFUSED) from None
    print(json.dumps(in_turns(askers, int(rounds))))


if __name__ == "__main__":
    main()
