"""serving/output.py: every line passes, whole and in order, and the pipe is read whatever happens to the output."""

from __future__ import annotations

import io
import os

from serving.logs import Tail
from serving.output import Forwarder


class Gone(io.BytesIO):
    """An output whose reader has left."""

    def write(self, _: object) -> int:
        raise BrokenPipeError


def test_lines_are_passed_on_at_once_and_whole() -> None:
    reading, writing = os.pipe()
    output, tail = io.BytesIO(), Tail()
    forwarder = Forwarder(reading, tail, output)
    for part in (b"one\ntw", b"o\nthr", b"ee \xff"):
        os.write(writing, part)
    os.close(writing)
    forwarder.join(2.0)
    assert output.getvalue() == b"one\ntwo\nthree \xff\n"
    assert tail.last_lines() == ("one", "two", "three \N{REPLACEMENT CHARACTER}")


def test_output_that_is_gone_stops_nothing() -> None:
    reading, writing = os.pipe()
    tail = Tail()
    forwarder = Forwarder(reading, tail, Gone())
    for number in range(5000):  # more than a pipe holds
        os.write(writing, f"line {number:>20}\n".encode())
    os.close(writing)
    forwarder.join(2.0)
    assert tail.last_lines(1)[0].endswith("4999")
