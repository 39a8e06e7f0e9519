"""Why a run of TorchServe ends with 1, told so that the reader need not search the log.

Only words live here; `watch` and `supervisor` decide that something has failed, and `logs` finds the exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.logs import Tail
from serving.watch import ModelWatch


@dataclass(frozen=True)
class Failure:
    """What has failed: the models to blame, if any, and whether TorchServe's log may tell more."""

    text: str
    models: tuple[ModelWatch, ...] = ()
    log_tells: bool = True


def explain(failure: Failure, tail: Tail) -> tuple[str, ...]:
    """The failure, then the exception behind it, or else the lines of the log that come nearest to one."""
    lines = failure.text.splitlines()
    if not failure.log_tells:
        return tuple(lines)
    explained = False
    for watch in failure.models:
        name = watch.plan.name
        exception, shared = tail.exception(name, watch.plan.version), tail.exception_of_somebody()
        if exception:
            explained = True
            lines += _block(f"the last exception of a worker of {name}:", exception)
        elif shared:
            explained = True
            lines += _block(f"the last exception of a worker, of {name} or another model (log4j2's pattern has no %t, "
                            "so the log does not tell):", shared)
        elif watch.listed_workers:
            lines.append(f"the log holds no exception of a worker of {name}: it hangs, or was killed (out of memory, "
                         "an instruction that this CPU lacks), or log4j2 drops MODEL_LOG below WARN")
    if explained:
        return tuple(lines)
    if not failure.models:
        lines += _block("the last exception in the log:", tail.exception())
    trouble = tail.trouble()
    if trouble:
        lines += _block("the last lines of the log that speak of trouble:", trouble)
    else:
        lines += _block("nothing in the log speaks of trouble (was it killed, out of memory?); its last lines:",
                        tail.last_lines())
    return tuple(lines)


def _block(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"    {line}".rstrip() for line in lines)] if lines else []
