"""What TorchServe's log says about its workers: prefixes stripped, failed starts counted, the last exception found.

Only understanding lines lives here. `supervisor` reads and forwards them.

TorchServe runs each worker's output through log4j, line by line and mixed with that of all others, as
`2026-01-31T12:00:00,000 [INFO ] W-9000-name_1.0-stdout MODEL_LOG - ...`. The thread's name tells whose line it is.
A traceback therefore counts only within the lines of one worker. Where the log4j2 pattern leaves the thread (%t) out,
all workers share one stream: nobody can tell whose an exception is, and two at once garble each other. The worker
writes its traceback at INFO: a configuration that drops MODEL_LOG below WARN drops the exceptions too.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

KEPT = 400  # lines of the whole log
KEPT_OF_A_WORKER = 150  # more than the longest traceback that TorchServe wraps around a handler's own
MESSAGE_LINES = 12  # of one exception

_PREFIX = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* +\[? *(?P<level>TRACE|DEBUG|INFO|WARN|ERROR|FATAL) *\]? +")
_WORKER = re.compile(r"W-(?P<port>\d+)-(?P<tag>.+?)(?P<stream>-stdout|-stderr)?")
_LOAD_FAILED = re.compile(r"Load model failed: (?P<name>.+?), error: ")
_TELLING = ("MODEL_LOG - ", "Load model failed", "Backend worker error")  # all that `Tail` looks at when a line comes
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct cause of the following exception:",
            "During handling of the above exception, another exception occurred:")
# what TorchServe raises after a handler's own exception, and about it
_SUMMARY = re.compile(r"RuntimeError: \d{3} - ")
_RETRIED_IMPORT = re.compile(r"ModuleNotFoundError: No module named 'ts\.torch_handler\.")
# what TorchServe's worker says of its own accord, so that it cannot belong to a message of several lines
_OWN_WORDS = re.compile(r"$|s_name_part0=|Listening on |Successfully loaded |\[PID\]|\[METRICS\]|Torch worker |"
                        r"Python runtime|Connection accepted|model_name: |Backend |Frontend |Failed to load model |"
                        r"Invoking custom ")
_TROUBLE = re.compile(r"(?!nvidia-smi|java\.lang\.InterruptedException).*(exception|error|invalid|fail|cannot|unable|"
                      r"not found|already running)", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One line of the log; level, thread and logger are empty where it has no prefix (stack traces, banners)."""

    text: str
    level: str = ""
    thread: str = ""
    logger: str = ""


def parse_line(line: str) -> Line:
    """Takes TorchServe's prefix off a line, if it has one."""
    line = line.rstrip("\r\n")
    found = _PREFIX.match(line)
    if found is None:
        return Line(line)
    names, _, text = line[found.end():].partition(" - ")
    thread, _, logger = names.rpartition(" ")
    return Line(text, found["level"], thread.strip(), logger)


def last_exception(texts: Sequence[str]) -> tuple[str, ...]:
    """The last Python exception in the lines of one worker, from its "Traceback" to its message; empty without one.

    A chain of exceptions stays together. What TorchServe itself raises about a handler's exception ("500 - Unknown
    exception") is passed over, and so is its second attempt to import a handler, whose message misleads.
    """
    blocks = _blocks(texts)
    telling = [block for block in blocks if not _SUMMARY.match(_message(block[-1]))]
    if not blocks:
        return ()
    chain = (telling or blocks)[-1]
    if len(chain) > 1 and _RETRIED_IMPORT.match(_message(chain[-1])):
        chain = chain[:-1]
    return tuple(line for part in chain for line in part)


class Tail:
    """The end of the log, and how often each model's workers failed to start. Fed by one thread, asked by another."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._workers: dict[str, deque[str]] = {}  # by thread; the one heard last comes last
        self._load_failures: Counter[str] = Counter()  # by model name
        self._start_failures: Counter[str] = Counter()  # by tag
        self._overdue: Counter[str] = Counter()  # by tag
        self._erring = ""  # the tag whose "Backend worker error" the next line explains

    def feed(self, line: str) -> None:
        """Takes one line in. Called for every request's lines, so only those that matter are looked at closely."""
        with self._lock:
            self._lines.append(line)
            if self._erring or any(word in line for word in _TELLING):
                parsed = parse_line(line)
                worker = _WORKER.fullmatch(parsed.thread)
                self._count(parsed, worker["tag"] if worker is not None else "")
                if parsed.logger == "MODEL_LOG":
                    stream = parsed.thread if worker is not None else ""
                    lines = self._workers.pop(stream, None) or deque(maxlen=KEPT_OF_A_WORKER)
                    lines.append(parsed.text)
                    self._workers[stream] = lines

    def failed_starts(self, model: str, version: str) -> int:
        """How often TorchServe said that a worker of this model could not start, since the log began."""
        with self._lock:
            return self._load_failures[model] + sum(self._start_failures[tag] for tag in _tags(model, version))

    def overdue(self, model: str, version: str) -> int:
        """How often TorchServe killed a worker of this model because an answer took longer than its timeout."""
        with self._lock:
            return sum(self._overdue[tag] for tag in _tags(model, version))

    def exception(self, model: str = "", version: str = "") -> tuple[str, ...]:
        """The last exception of this model's workers; without a model, of any worker or the launcher; or empty."""
        with self._lock:
            everything = list(self._lines)
            workers = [(name, list(lines)) for name, lines in self._workers.items()]
        for name, lines in reversed(workers):
            worker = _WORKER.fullmatch(name)
            if not model or (worker is not None and worker["tag"] in _tags(model, version)):
                found = last_exception(lines)
                if found:
                    return found
        if model:
            return ()
        return last_exception([line.text for line in map(parse_line, everything) if not line.level])

    def exception_of_somebody(self) -> tuple[str, ...]:
        """The last exception among lines that do not tell whose they are; empty where they do."""
        with self._lock:
            lines = list(self._workers.get("", ()))
        return last_exception(lines)

    def trouble(self, count: int = 12) -> tuple[str, ...]:
        """The last lines, of anybody, that speak of trouble; empty when none does."""
        with self._lock:
            lines = [parse_line(line) for line in self._lines]
        told = [line.text for line in lines if not line.text.startswith(("\tat ", "\t... "))
                and (line.level in ("ERROR", "FATAL") or (line.level in ("", "WARN") and _TROUBLE.match(line.text)))]
        return tuple(told[-count:])

    def last_lines(self, count: int = 8) -> tuple[str, ...]:
        """The last lines at all, without their prefixes."""
        with self._lock:
            lines = list(self._lines)[-count:]
        return tuple(parse_line(line).text for line in lines)

    def _count(self, line: Line, tag: str) -> None:
        failed = _LOAD_FAILED.match(line.text)
        if failed is not None:
            self._load_failures[failed["name"]] += 1
        elif not line.thread and self._erring and "WorkerInitializationException" in line.text:
            # without a reply in time, a failed load is counted by its own line; else a request was too slow
            counter = self._overdue if "did not respond in given time" in line.text else self._start_failures
            counter[self._erring] += 1
        self._erring = tag if line.text == "Backend worker error" else ""


def _tags(model: str, version: str) -> set[str]:
    """What a worker's thread calls this model; old versions of TorchServe cut it at 25 characters."""
    tag = f"{model}_{version}"
    return {tag, tag[:25]}


def _blocks(texts: Sequence[str]) -> list[list[list[str]]]:
    """All exceptions in these lines: each a chain of parts, each part the lines from its traceback to its message."""
    blocks: list[list[list[str]]] = []
    link = ""
    index = 0
    while index < len(texts):
        if texts[index] in _CHAINED:
            link = texts[index]
        elif _TRACEBACK in texts[index]:
            end = _end_of_part(texts, index)
            part = list(texts[index:end])
            if link and blocks:
                blocks[-1].append(["", link, "", *part])
            else:
                blocks.append([part])
            link, index = "", end - 1
        index += 1
    return blocks


def _end_of_part(texts: Sequence[str], start: int) -> int:
    """The index after the message, which may go on over several lines, indented or not."""
    end = start + 1
    while end < len(texts) and texts[end][:1].isspace():
        end += 1
    last = min(end + MESSAGE_LINES, len(texts))
    end += 1
    while end < last and not _begins_anew(texts[end]):
        end += 1
    return min(end, len(texts))


def _begins_anew(text: str) -> bool:
    return text in _CHAINED or _TRACEBACK in text or _OWN_WORDS.match(text) is not None


def _message(part: Sequence[str]) -> str:
    """The first line of a part's message: the first after its traceback that is not indented."""
    begin = next((index for index, line in enumerate(part) if _TRACEBACK in line), 0)
    return next((line for line in part[begin + 1:] if line and not line[:1].isspace()), "")
