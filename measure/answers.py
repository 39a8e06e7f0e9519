"""Whether answers under load are the right ones.

fp32 runtimes are held against the eager reference; INT8 against the same server's own answer while it was idle, and
its most probable label against the reference's where the reference is sure; stock handlers, which transform and answer
in their own way, against their own idle answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PROBABILITY, SCORE = 2e-3, 0.02  # how far fp32 may be from the reference
SURE = 0.2  # a lead of the first label over the second that INT8 may not turn round
EVERY_SECONDS = 0.5
TIMEOUT_SECONDS = 120.0


def differs(found: Any, expected: Any, probability: float = PROBABILITY, score: float = SCORE) -> str:
    """In words what is different about an answer; empty when it is right.

    Numbers under "score" may be `score` apart, all others `probability`. Labels may change places with others whose
    probabilities are as near to theirs.
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        if "predictions" in expected and "predictions" in found:
            one, two = (_probabilities(answer["predictions"]) for answer in (found, expected))
            rest = [{key: value for key, value in answer.items() if key != "predictions"}
                    for answer in (found, expected)]
            return differs(rest[0], rest[1], probability, score) or _labels(one, two, probability)
        if found.keys() != expected.keys():
            return _labels(found, expected, probability) if _numbers(found) and _numbers(expected) else \
                f"it has {', '.join(sorted(found))}; {', '.join(sorted(expected))} is expected"
        for key, value in expected.items():
            if why := differs(found[key], value, score if key == "score" else probability, score):
                return f"{key}: {why}"
        return ""
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return "" if abs(found - expected) <= probability else f"{found}; {expected} ± {probability:g} is expected"
    return "" if found == expected else f"{str(found)[:200]}; {str(expected)[:200]} is expected"


def sure_label(answer: Any) -> str:
    """The first label of a recognizer's answer if it leads by more than SURE, else an empty text."""
    predictions = answer.get("predictions", []) if isinstance(answer, dict) else []
    if len(predictions) < 2 or predictions[0]["probability"] - predictions[1]["probability"] <= SURE:
        return ""
    return str(predictions[0]["label"])


def _labels(found: dict[str, float], expected: dict[str, float], probability: float) -> str:
    """Top-k tables of label → probability; a label that only one has must be as improbable as the other's last."""
    for label in {*found, *expected}:
        one = found.get(label, min(found.values(), default=0.0))
        two = expected.get(label, min(expected.values(), default=0.0))
        # beyond a half, no other label can have the same
        changed = label not in found or label not in expected
        if abs(one - two) > probability or (changed and one > 0.5):
            return f"{label}: {one}; {two} ± {probability:g} is expected"
    return ""


def _probabilities(predictions: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {str(each["label"]): float(each["probability"]) for each in predictions}


def _numbers(table: dict[str, Any]) -> bool:
    return bool(table) and all(isinstance(value, float) for value in table.values())


@dataclass(frozen=True)
class Question:
    """A body and its right answer."""

    body: bytes
    expected: Any


@dataclass
class Checked:
    """What a checker has seen.

    Attributes:
        asked: answers that came, right or wrong.
        wrong: the first few of the wrong ones, in words.
        failed: requests without an answer of status 200, in words.
    """

    asked: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def ask(url: str, body: bytes, content_type: str, timeout: float = TIMEOUT_SECONDS) -> tuple[int, bytes]:
    """One request on a connection of its own → status and body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("POST", parts.path, body, {"Content-Type": content_type})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Checker(threading.Thread):
    """Asks every half second, one question after the other, until it is stopped. Plain sockets: it costs next to
    nothing beside the load."""

    def __init__(self, url: str, content_type: str, questions: Sequence[Question]) -> None:
        super().__init__(daemon=True)
        self._url, self._type, self._questions = url, content_type, questions
        self._stopped = threading.Event()
        self.result = Checked()

    def run(self) -> None:
        index, due = 0, time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due += EVERY_SECONDS
            question = self._questions[index % len(self._questions)]
            index += 1
            self._ask(question)
            due = max(due, time.monotonic())  # a slow server is asked again when it has answered

    def _ask(self, question: Question) -> None:
        try:
            status, raw = ask(self._url, question.body, self._type)
        except (OSError, http.client.HTTPException) as error:
            self.result.failed.append(f"{type(error).__name__}: {error}")
            return
        if status != 200:
            self.result.failed.append(f"status {status}: {raw[:200]!r}")
            return
        self.result.asked += 1
        answer: Any = raw
        with contextlib.suppress(ValueError):
            answer = json.loads(raw)
        if why := differs(answer, question.expected):
            self.result.wrong.append(why)

    def stop(self) -> Checked:
        """No further questions; waits for the answer to the last one."""
        self._stopped.set()
        self.join(TIMEOUT_SECONDS + 5)
        return self.result
