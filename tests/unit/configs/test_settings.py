"""What `configs.settings` promises: a sound default for everything, and errors that name field and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import SettingsError
from configs.settings import ModelSettings, Settings, read_settings


def read(folder: Path, text: str) -> Settings:
    path = folder / "serving.yaml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path)


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "{}", "models:\n", "models:\nslo:\nports:\nbind:\n"])
def test_an_empty_file_is_the_defaults(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == Settings() == read_settings(None)


def test_defaults_keep_to_the_loopback_address_and_say_so_of_tokens() -> None:
    assert (Settings().bind, Settings().token_authorization, Settings().placement) == ("127.0.0.1", False, "auto")


def test_a_whole_file(tmp_path: Path) -> None:
    found = read(tmp_path, """
models:
  image_scorer: {share: 3, workers: 2, threads: 4}
  food_recognizer:
slo: {p99_ms: 250}
placement: exclusive
launcher: off
bind: 0.0.0.0
ports: {inference: 9080, health: 9090}
drain: {notice_seconds: 5, grace_seconds: 60}
""")
    assert found.models == {"image_scorer": ModelSettings(share=3, workers=2, threads=4),
                            "food_recognizer": ModelSettings()}
    assert (found.slo.p99_ms, found.placement, found.launcher, found.bind) == (250, "exclusive", "off", "0.0.0.0")
    assert (found.ports.inference, found.ports.health, found.ports.management) == (9080, 9090, 8081)
    assert found.drain.grace_seconds == 60


@pytest.mark.parametrize(("text", "words"), [
    ("models: {a: {share: 0}}", "models.a.share: Input should be greater than 0 (found 0)"),
    ("models: {a: {share: .inf}}", "models.a.share: Input should be a finite number (found inf)"),
    ("models: {a: {workers: 0}}", "models.a.workers: Input should be greater than or equal to 1 (found 0)"),
    ("models: {a: {workers: two}}", "models.a.workers: Input should be a valid integer"),
    ("models: {a: {threads: 1.5}}", "models.a.threads: Input should be a valid integer"),
    ("models: {a: {shares: 2}}", "models.a.shares: no such key; share perhaps? (found 2)"),
    ("models: {a: 3}", "models.a: Input should be keys and values (found 3)"),
    ("models: [a]", "models: Input should be keys and values (found ['a'])"),
    ("models: {1: {}}", "models.1.[key]: Input should be a valid string (found 1)"),
    ("slo: {p99_ms: -5}", "slo.p99_ms: Input should be greater than 0 (found -5)"),
    ("slo: {p99: 5}", "slo.p99: no such key; p99_ms perhaps? (found 5)"),
    ("placement: pinned", "placement: Input should be 'auto', 'exclusive' or 'shared' (found 'pinned')"),
    ("launcher: on", "launcher: Input should be 'auto' or 'off' (found True)"),
    ("bind: '::'", "bind: must be an IPv4 address: TorchServe takes no other (found '::')"),
    ("bind: '0.0.0.0 '", "bind: must be an IPv4 address"),
    ("bind: example.org", "(found 'example.org')"),
    ("ports: {inference: 0}", "ports.inference: Input should be greater than or equal to 1 (found 0)"),
    ("ports: {inference: 65535}", "ports.inference: Input should be less than or equal to 65534 (found 65535)"),
    ("drain: {grace_seconds: -1}", "drain.grace_seconds: Input should be greater than or equal to 0 (found -1)"),
    ("job_queue_size: 0", "job_queue_size: Input should be greater than or equal to 1 (found 0)"),
    ("max_request_mb: 2000", "max_request_mb: Input should be less than or equal to 1024 (found 2000)"),
    ("modles:", "modles: no such key; models perhaps?"), ("zzz: 1", "zzz: no such key (found 1)")])
def test_errors_name_field_and_value(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError, match="the serving file is wrong") as caught:
        read(tmp_path, text)
    assert words in caught.value.why
    assert caught.value.where == str(tmp_path / "serving.yaml")


def test_all_errors_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, "job_queue_size: 0\nmax_request_mb: 0\nslo: {p99_ms: x}\n")
    assert [field for field in ("job_queue_size", "max_request_mb", "slo.p99_ms") if field in caught.value.why] == [
        "job_queue_size", "max_request_mb", "slo.p99_ms"]


def test_ports_are_distinct(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, "ports: {inference: 8082}")
    assert "ports: metrics and inference are both 8082" in caught.value.why


@pytest.mark.parametrize("text", ["- a", "just words", "3"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="a serving file holds keys and values"):
        read(tmp_path, text)


def test_a_file_that_is_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the serving file") as caught:
        read(tmp_path, "models:\n  a: [1\n")
    assert "line 3" in caught.value.why


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("bind: caf\xe9".encode("latin-1"))
    for path in (tmp_path / "missing.yaml", tmp_path, tmp_path / "latin.yaml"):
        with pytest.raises(SettingsError, match="cannot read the serving file") as caught:
            read_settings(path)
        assert caught.value.where == str(path)
