"""serving/logs.py on lines that TorchServe 0.12 wrote (shortened in the middle of long tracebacks)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serving.logs import Line, Tail, last_exception, parse_line

EXCERPTS = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "excerpts").glob("*.txt"))}


def tail_of(name: str) -> Tail:
    tail = Tail()
    for line in EXCERPTS[name].splitlines():
        tail.feed(line)
    return tail


def test_prefix_is_taken_off() -> None:
    line = "2026-12-02T06:39:06,209 [INFO ] W-9000-bad_1.0-stdout MODEL_LOG - ValueError: a - b\n"
    assert parse_line(line) == Line("ValueError: a - b", "INFO", "W-9000-bad_1.0-stdout", "MODEL_LOG")


@pytest.mark.parametrize(("line", "parsed"), [
    ("2026-12-02T06:39:01,230 [INFO ] main org.pytorch.serve.wlm.ModelManager - Model bad loaded.",
     Line("Model bad loaded.", "INFO", "main", "org.pytorch.serve.wlm.ModelManager")),
    ("2026-12-02T06:39:06,281 [WARN ] BatchAggregator - Load model failed: bad - x",
     Line("Load model failed: bad - x", "WARN", "", "BatchAggregator")),
    ("2026-12-02T06:39:06,281 [INFO ] W-9000-bad_1.0-stdout MODEL_LOG - ",
     Line("", "INFO", "W-9000-bad_1.0-stdout", "MODEL_LOG"))], ids=["plain", "no thread", "no text"])
def test_patterns_of_the_log(line: str, parsed: Line) -> None:
    assert parse_line(line) == parsed


def test_without_threads_in_the_pattern_nobody_is_named() -> None:
    tail = Tail()
    for line in EXCERPTS["raises_in_initialize"].splitlines():
        tail.feed(re.sub(r"(\[\w+ ?\]) \S+ ", r"\1 ", line))
    assert tail.exception("bad", "1.0") == ()
    assert tail.exception_of_somebody()[-1].startswith("ValueError: weights do not fit")
    assert tail.failed_starts("bad", "1.0") == 1


@pytest.mark.parametrize("line", ["Model server started.", "\tat java.lang.Thread.run(Thread.java:840) [?:?]",
                                  "", "a - b"])
def test_line_without_prefix_stays(line: str) -> None:
    assert parse_line(line) == Line(line)


def test_exception_of_a_handler_that_raises() -> None:
    found = tail_of("raises_in_initialize").exception("bad", "1.0")
    assert found[0] == "Traceback (most recent call last):"
    assert found[-2] == ('    raise ValueError("weights do not fit the network: expected 1280 features, found 512")')
    assert found[-1] == "ValueError: weights do not fit the network: expected 1280 features, found 512"
    assert not any("Worker disconnected" in line for line in found), "lines of others in between are left out"


def test_torchserves_own_summary_is_passed_over_and_a_chain_kept() -> None:
    found = tail_of("runtime_error_in_initialize").exception("badrt", "1.0")
    assert found[-2:] == ("RuntimeError: Error(s) in loading state_dict for Net:",
                          '\tMissing key(s) in state_dict: "fc.weight".')
    assert "KeyError: 'fc.weight'" in found
    assert "The above exception was the direct cause of the following exception:" in found
    assert not any("500 - Unknown exception" in line for line in found)


def test_second_attempt_to_import_a_handler_is_passed_over() -> None:
    found = tail_of("import_error").exception("badimp", "1.0")
    assert found[-1] == "ModuleNotFoundError: No module named 'nosuchmodule_xyz'"


def test_worker_that_was_killed_has_no_exception_but_failed_starts() -> None:
    tail = tail_of("killed_in_initialize")
    assert tail.exception("badkill", "1.0") == ()
    assert tail.failed_starts("badkill", "1.0") == 2
    assert tail.trouble()[-1] == "Auto recovery failed again"


def test_worker_that_dies_before_it_loads() -> None:
    tail = tail_of("metrics_file_broken")
    assert tail.failed_starts("good", "1.0") == 1
    assert tail.exception("good", "1.0")[-1].startswith("ts.metrics.metric_cache_errors.MetricsCacheKeyError: ")


def test_p21_slow_request_is_no_failed_start() -> None:
    tail = tail_of("request_too_slow")
    assert (tail.failed_starts("good", "1.0"), tail.overdue("good", "1.0")) == (0, 1)


def test_slow_load_is_one_failed_start() -> None:
    assert tail_of("load_too_slow").failed_starts("good", "1.0") == 1


def test_archive_that_is_missing() -> None:
    assert tail_of("archive_missing").trouble() == (
        "Failed to load model: missing.mar",
        "org.pytorch.serve.archive.model.ModelNotFoundException: Model not found at: missing.mar")


def test_configuration_that_java_refuses() -> None:
    tail = tail_of("bad_number")
    assert tail.trouble() == ('Invalid configuration: For input string: "1oo"',)
    assert tail.exception() == ()


def test_models_are_told_apart() -> None:
    tail = tail_of("raises_in_initialize")
    for line in EXCERPTS["import_error"].splitlines():
        tail.feed(line)
    assert tail.exception("bad", "1.0")[-1].startswith("ValueError")
    assert tail.exception("badimp", "1.0")[-1].startswith("ModuleNotFoundError")
    assert tail.exception()[-1].startswith("ModuleNotFoundError"), "without a model, the one heard last"
    assert tail.exception("other", "1.0") == ()


def test_exception_outlives_the_lines_of_others() -> None:
    tail = tail_of("raises_in_initialize")
    for number in range(1000):
        tail.feed(f"2026-12-02T06:40:00,000 [INFO ] epollEventLoopGroup-3-1 ACCESS_LOG - request {number}")
    assert tail.exception("bad", "1.0") != ()
    assert tail.last_lines(1) == ("request 999",)


def test_message_of_several_lines_is_kept_and_what_follows_is_not() -> None:
    texts = ["Traceback (most recent call last):", '  File "handler.py", line 3, in initialize', "    check()",
             "ValidationError: 2 errors", "size", "  must be positive", "Backend worker process died.", "more"]
    assert last_exception(texts)[-3:] == ("ValidationError: 2 errors", "size", "  must be positive")


@pytest.mark.parametrize("texts", [[], ["Torch worker started."], ["Traceback (most recent call last):"]],
                         ids=["nothing", "none", "cut off"])
def test_no_whole_exception(texts: list[str]) -> None:
    assert last_exception(texts) in ((), tuple(texts))
