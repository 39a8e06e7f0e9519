"""Checked answers: what is right, what is not, and what a checker does with a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from measure.answers import Checker, Question, differs, sure_label


def food(first: str = "espresso", probability: float = 0.95, second: float = 0.01) -> dict[str, object]:
    return {"food_probability": 0.979, "predictions": [{"label": first, "probability": probability},
                                                       {"label": "cup", "probability": second}]}


@pytest.mark.parametrize(("found", "expected"), [
    (food(), food()), (food(probability=0.9515), food()), ({"score": 7.01}, {"score": 7.0}), ({}, {}),
    ({"cat": 0.9, "dog": 0.05}, {"dog": 0.0501, "cat": 0.9}),
    (food(second=0.0101), {**food(), "predictions": [food()["predictions"][0],  # type: ignore[index]
                                                     {"label": "consomme", "probability": 0.0102}]}),
], ids=["equal", "near", "score", "noop", "stock's table", "labels of equal probability change places"])
def test_right_answers(found: object, expected: object) -> None:
    assert differs(found, expected) == ""


@pytest.mark.parametrize(("found", "expected"), [
    (food("broccoli"), food()), (food(probability=0.9), food()), ({"score": 7.1}, {"score": 7.0}),
    ({"code": 500}, food()), ("text", food()), ({**food(), "food_probability": 0.5}, food()),
    ({"cat": 0.9}, {"dog": 0.9}),
], ids=["another label", "far", "score", "an error", "text", "food", "stock's table"])
def test_wrong_answers(found: object, expected: object) -> None:
    assert differs(found, expected)


def test_a_label_is_sure_if_it_leads() -> None:
    assert sure_label(food()) == "espresso"
    assert sure_label(food(probability=0.2)) == "" and sure_label({"score": 3.0}) == ""


class Echo(BaseHTTPRequestHandler):
    """Answers with the JSON it is sent, or with the status that it names."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(json.loads(body).get("status", 200))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize(("question", "wrong", "failed"), [
    (Question(b'{"score": 1.0}', {"score": 1.0}), False, False),
    (Question(b'{"score": 1.0}', {"score": 2.0}), True, False),
    (Question(b'{"status": 503}', {}), False, True)], ids=["right", "wrong", "refused"])
def test_a_checker_counts_what_it_sees(url: str, question: Question, wrong: bool, failed: bool) -> None:
    checker = Checker(url, "application/json", [question])
    checker.start()
    while not (checker.result.asked or checker.result.failed):
        threading.Event().wait(0.01)
    seen = checker.stop()
    assert (bool(seen.wrong), bool(seen.failed)) == (wrong, failed)
