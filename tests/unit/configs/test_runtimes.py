"""Which runtime serves an archive in a pod, and why."""

from __future__ import annotations

import pytest
from made_up import plan, topology, why

from configs.archives import Built, ServedModel
from configs.errors import SettingsError
from configs.runtimes import choose_runtime
from configs.topology import Topology

ALL = (Built("eager", inference_ms=30.0, measured=True),
       Built("ipex", "intel_extension_for_pytorch", "avx2", inference_ms=14.0, measured=True),
       Built("onnxruntime", "onnxruntime", inference_ms=13.0, measured=True),
       Built("openvino", "openvino", inference_ms=9.5, measured=True),
       Built("openvino-int8", "openvino", inference_ms=5.25, measured=True))
PACKAGES = {"intel_extension_for_pytorch", "onnxruntime", "openvino"}


def archive(runtime: str = "auto", *built: Built) -> ServedModel:
    return ServedModel(name="food", version="1.0", archive="food.mar", runtime=runtime, batch_size=1,
                       max_batch_delay_ms=1, built=built or ALL)


def machine(architecture: str = "x86_64", *flags: str) -> Topology:
    return Topology(topology().cpus, "A CPU", architecture, frozenset(flags))


MODERN = machine("x86_64", "lm", "avx2")
OLD = machine("x86_64", "lm", "avx")


def refused(model: ServedModel, wanted: str | None = None, where: Topology = MODERN,
            installed: set[str] | None = None) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        choose_runtime(model, wanted, where, installed)
    return caught.value


@pytest.mark.parametrize("name", [each.runtime for each in ALL])
def test_the_serving_files_word_wins(name: str) -> None:
    for own in ("auto", "eager", "openvino"):
        chosen, reason = choose_runtime(archive(own), name, MODERN, PACKAGES)
        assert (chosen.runtime, reason) == (name, "the serving file says so")
        built = next(each for each in ALL if each.runtime == name)
        assert (chosen.inference_ms, chosen.measured) == (built.inference_ms, True)  # planned by its own costs


def test_without_a_word_it_is_what_the_archive_was_built_for() -> None:
    chosen, reason = choose_runtime(archive("onnxruntime"), None, MODERN, PACKAGES)
    assert (chosen.runtime, chosen.inference_ms, reason) == ("onnxruntime", 13.0, "the archive was built for it")


def test_a_runtime_that_was_asked_for_is_not_left_out_for_its_package() -> None:
    """The preflight says what is missing, with how to install it; another runtime would be a silent surprise."""
    assert choose_runtime(archive(), "openvino", MODERN, set())[0].runtime == "openvino"


def test_an_archive_that_was_not_built_for_it_says_what_it_has() -> None:
    error = refused(archive("eager", *ALL[:2]), "openvino")
    assert error.what == "food cannot be served by openvino"
    assert error.where == "food.mar"
    assert error.why == "it was built for eager, ipex"
    assert error.remedy == "build it again: `tscpu build --runtime openvino food`"


@pytest.mark.parametrize("name", ["cuda", "", "Eager"])
def test_a_runtime_that_nobody_knows(name: str) -> None:
    if not name:  # an empty word is none
        assert choose_runtime(archive(), name, MODERN, PACKAGES)[0].runtime == "openvino-int8"
        return
    assert "it was built for eager" in refused(archive(), name).why


@pytest.mark.parametrize("wanted", [None, "auto"])
def test_auto_takes_the_fastest_and_shows_the_others(wanted: str | None) -> None:
    chosen, reason = choose_runtime(archive(), wanted, MODERN, PACKAGES)
    assert (chosen.runtime, chosen.inference_ms) == ("openvino-int8", 5.25)
    assert reason == ("the fastest within parity when the archive was built: 5.2 ms; openvino 9.5 ms, "
                      "onnxruntime 13.0 ms, ipex 14.0 ms, eager 30.0 ms")


def test_auto_in_the_serving_file_wins_over_the_archives_own() -> None:
    assert choose_runtime(archive("eager"), "auto", MODERN, PACKAGES)[0].runtime == "openvino-int8"


def test_auto_leaves_out_what_is_not_installed_and_says_so() -> None:
    chosen, reason = choose_runtime(archive(), None, MODERN, {"onnxruntime"})
    assert chosen.runtime == "onnxruntime"
    assert reason.startswith("the fastest within parity when the archive was built: 13.0 ms; eager 30.0 ms; not ")
    assert "not ipex: the package intel_extension_for_pytorch is not installed" in reason
    assert "not openvino: the package openvino is not installed" in reason
    assert "not openvino-int8: the package openvino is not installed" in reason


def test_p10_auto_leaves_out_what_the_cpu_cannot_run_and_says_so() -> None:
    fastest = Built("ipex", "intel_extension_for_pytorch", "avx2", inference_ms=1.0, measured=True)
    model = archive("auto", ALL[0], fastest)
    assert choose_runtime(model, None, MODERN, PACKAGES)[0].runtime == "ipex"
    chosen, reason = choose_runtime(model, None, OLD, PACKAGES)
    assert chosen.runtime == "eager"
    assert "not ipex: it needs AVX2, which the CPU has not" in reason
    assert "(it is an ARM CPU)" in choose_runtime(model, None, machine("aarch64", "asimd"), PACKAGES)[1]
    assert choose_runtime(model, None, machine("unknown"), PACKAGES)[0].runtime == "ipex"  # it says nothing of itself


def test_a_recorded_machine_is_taken_to_have_everything() -> None:
    assert choose_runtime(archive(), None, MODERN, None)[0].runtime == "openvino-int8"


@pytest.mark.parametrize("where", [OLD, machine("aarch64", "asimd")], ids=["x86", "ARM"])
def test_p10_a_runtime_that_the_cpu_cannot_run_is_refused(where: Topology) -> None:
    for model, wanted in ((archive("ipex"), None), (archive(), "ipex")):
        error = refused(model, wanted, where)
        assert error.what == "food cannot run on this CPU"
        assert error.where == "food.mar, runtime ipex"
        assert error.why.startswith("A CPU: it needs AVX2")
        assert error.remedy == "build it again: `tscpu build --runtime eager food`"


def test_nothing_possible_tells_every_reason() -> None:
    error = refused(archive("auto", *ALL[1:]), None, OLD, set())
    assert error.what == "food cannot be served here"
    assert error.why == ("ipex: it needs AVX2, which the CPU has not; "
                         "onnxruntime: the package onnxruntime is not installed; "
                         "openvino: the package openvino is not installed; "
                         "openvino-int8: the package openvino is not installed")
    assert error.remedy == "build it again: `tscpu build --runtime eager food`"


def test_what_was_measured_goes_before_what_was_not() -> None:
    unknown = Built("openvino", "openvino", inference_ms=1.0)
    chosen, reason = choose_runtime(archive("auto", unknown, ALL[0]), None, MODERN, PACKAGES)
    assert chosen.runtime == "eager"
    assert reason == "the fastest within parity when the archive was built: 30.0 ms"  # no number that nobody measured


def test_nothing_was_measured() -> None:
    model = archive("auto", Built("openvino", "openvino"), Built("eager"))
    chosen, reason = choose_runtime(model, None, MODERN, PACKAGES)
    assert (chosen.runtime, chosen.measured) == ("eager", False)
    assert reason == "nothing was measured of this archive"


def test_the_plan_says_which_runtime_and_why() -> None:
    models = {"food": {"runtime": "onnxruntime"}}
    decided = plan(MODERN, archives=[archive()], models=models)
    assert why(decided, "food: runtime") == "onnxruntime: the serving file says so"
    assert (decided.models[0].runtime, decided.ipex) == ("onnxruntime", False)
    decided = plan(MODERN, archives=[archive("auto", *ALL[:2])])
    assert why(decided, "food: runtime") == ("ipex: the fastest within parity when the archive was built: 14.0 ms; "
                                             "eager 30.0 ms")
    assert decided.ipex
