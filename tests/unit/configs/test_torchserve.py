"""What `configs.torchserve` promises: the launcher of each version, and the keys of config.properties."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from configs.errors import MachineError
from configs.plan import Slot
from configs.torchserve import (
    BOOLEAN_KEYS,
    INTEGER_KEYS,
    KEYS,
    MODEL_KEYS,
    PYTHON_KEYS,
    YAML_KEYS,
    installed_version,
    key_of_variable,
    knows_startup_timeout,
    launcher_of,
)

XEON, INTEL = "torch.backends.xeon.run_cpu", "intel_extension_for_pytorch.cpu.launch"


@pytest.mark.parametrize(("version", "module", "numbers"), [
    ("0.6.0", INTEL, False), ("0.6.1", INTEL, True), ("0.7.0", INTEL, True), ("0.7.1", INTEL, True),
    ("0.8.0", XEON, True), ("0.8.1", XEON, True), ("0.8.2", XEON, True), ("0.9.0", XEON, True), ("0.10.0", XEON, True),
    ("0.12.0", XEON, True), ("0.12", XEON, True), ("1.0", XEON, True), ("0.12.0b20240930", XEON, True),
    ("0.8.2rc1", XEON, True)])
def test_launcher_of_each_version(version: str, module: str, numbers: bool) -> None:
    launcher = launcher_of(version)
    assert launcher is not None
    assert (launcher.module, launcher.numbers_workers) == (module, numbers)


@pytest.mark.parametrize("version", ["0.1.0", "0.5.3", "0.5"])
def test_no_launcher_before_0_6_0(version: str) -> None:
    assert launcher_of(version) is None


@pytest.mark.parametrize("version", ["", "latest", "v0.12.0"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(MachineError, match="this is no TorchServe version"):
        launcher_of(version)


@pytest.mark.parametrize(("version", "knows"), [
    ("0.6.0", False), ("0.11.1", False), ("0.12.0", True), ("0.12", True), ("1.0", True)])
def test_only_0_12_has_a_timeout_for_loading(version: str, knows: bool) -> None:
    assert knows_startup_timeout(version) is knows


def test_p9_arguments_have_commas_and_single_blanks_only() -> None:
    launcher = launcher_of("0.12.0")
    assert launcher is not None
    assert launcher.arguments([Slot((12, 13), 1, 1), Slot((0, 1), 0, 0)], 2) == (
        "--core-list 12,13,0,1 --ncores-per-instance 2")


@pytest.mark.parametrize(("version", "file"), [
    ("0.12.0", "torch:backends/xeon/run_cpu.py"),
    ("0.6.1", "intel_extension_for_pytorch:cpu/launch/launcher_multi_instances.py"),
    ("0.6.1", "intel_extension_for_pytorch:cpu/launch/launcher_base.py")])
def test_p8_the_installed_launcher_knows_these_arguments(version: str, file: str) -> None:
    """An argument that it does not know makes TorchServe start its workers unpinned, with a line in the log."""
    package, path = file.split(":")
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    launcher = launcher_of(version)
    assert launcher is not None
    options = [word for word in launcher.arguments([Slot((0,), 0, 0)], 1).split() if word.startswith("--")]
    source = (Path(found.origin).parent / path).read_text()
    here = [option for option in options if f'"{option}"' in source]
    # Intel's launcher has the width in a file of its own
    assert here == ([option for option in options if ("ncores" in option) == ("base" in file)] if "intel" in file
                    else options)


def test_the_version_that_is_installed() -> None:
    assert launcher_of(installed_version()) is not None


# --- keys --------------------------------------------------------------------------------------------------------

def test_no_key_is_of_two_kinds() -> None:
    assert not BOOLEAN_KEYS & INTEGER_KEYS
    assert KEYS > BOOLEAN_KEYS | INTEGER_KEYS | PYTHON_KEYS
    assert not MODEL_KEYS & YAML_KEYS
    assert not KEYS & (MODEL_KEYS | YAML_KEYS)
    assert len(KEYS) == 74


def test_every_key_is_in_torchserves_own_code() -> None:
    """The names are constants of the compiled frontend; the Python part reads the rest."""
    found = importlib.util.find_spec("ts")
    assert found is not None and found.origin is not None
    import zipfile

    home = Path(found.origin).parent
    with zipfile.ZipFile(home / "frontend" / "model-server.jar") as jar:
        compiled = jar.read("org/pytorch/serve/util/ConfigManager.class")
    python = (home / "model_server.py").read_text()
    assert [key for key in sorted(KEYS) if key.encode() not in compiled and f'"{key}"' not in python] == []


@pytest.mark.parametrize(("variable", "key"), [
    ("TS_NUMBER_OF_GPU", "number_of_gpu"), ("TS_JOB_QUEUE_SIZE", "job_queue_size"),
    ("TS_OPEN_INFERENCE_PROTOCOL", "ts_open_inference_protocol"),
    ("TS_HEADER_KEY_SEQUENCE_ID", "ts_header_key_sequence_id"),
    ("TS_TOKEN_EXPIRATION_TIME_MIN", "token_expiration_min"),
    ("TS_TOKEN_EXPIRATION_MIN", None), ("TS_USE_NATIVE_IO", None), ("TS_MODELS", None), ("TS_VMARGS", None),
    ("TS_SOMETHING", None), ("NUMBER_OF_GPU", None), ("PATH", None), ("TS_CONFIG_FILE", None)])
def test_p13_variables_that_stand_for_a_key(variable: str, key: str | None) -> None:
    assert key_of_variable(variable) == key
