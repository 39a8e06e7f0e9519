"""Every runtime answers as the eager network does, in a worker that may hold nothing but its own CPUs."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from handlers.errors import ArtifactError
from handlers.runtimes import RUNTIMES, Network, open_runtime
from handlers.transforms import Preprocess
from models.formats import write
from tests.unit.small_network import CLASSES, SPEC, batch, photo, small_network

WRITERS = {"onnx": "onnx", "onnx-int8": "onnx", "openvino-int8": "nncf"}  # what a format's file is written with
NETWORK = small_network()
PREPROCESS = Preprocess(SPEC)


def answers(images: torch.Tensor) -> torch.Tensor:
    """The eager reference's."""
    with torch.inference_mode():
        found: torch.Tensor = NETWORK(images)
    return found


def called(network: Network, images: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return network(images)


def near(name: str, images: torch.Tensor) -> float:
    """How far a runtime's outputs may be from the reference's: eight channels a layer average no rounding away."""
    return float(answers(images).abs().max()) * (0.2 if "int8" in name else 1e-5)


class Files:
    """The network's file for each runtime, written when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, str] = {}

    def path(self, name: str) -> Path:
        runtime = RUNTIMES[name]
        for package in (runtime.package, WRITERS.get(runtime.format, "")):
            if package and importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
        if name not in self._names:
            self._names[name] = write(runtime.format, NETWORK, batch(2), lambda: [
                PREPROCESS([photo(seed)]) for seed in range(12)], self.folder)
        return self.folder / self._names[name]

    def copy(self, name: str, folder: Path) -> Path:
        """The file and what belongs to it, to be damaged."""
        path = self.path(name)
        for each in path.parent.glob(f"{path.stem}.*"):
            shutil.copy(each, folder)
        return folder / path.name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("networks"))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


every_runtime = pytest.mark.parametrize("name", RUNTIMES)


@every_runtime
def test_p25_batches_of_any_size_equal_the_reference(files: Files, name: str) -> None:
    network = open_runtime(name, files.path(name), 1, SPEC)
    for count in (1, 2, 3, 4, 1, 3):  # back and forth: a graph may have settled on a shape
        images = batch(count, seed=count)
        found = called(network, images)
        assert found.shape == (count, CLASSES) and found.dtype == torch.float32
        assert float((found - answers(images)).abs().max()) <= near(name, images)


@every_runtime
def test_layouts_of_memory_do_not_change_the_answer(files: Files, name: str) -> None:
    network = open_runtime(name, files.path(name), 1, SPEC)
    images = batch(2)
    expected = called(network, images)
    wide = torch.nn.functional.pad(images, (3, 3, 3, 3))[..., 3:-3, 3:-3]
    for same in (images.contiguous(), wide, images.flip(0).flip(0)):
        assert torch.allclose(called(network, same), expected, atol=near("eager", images))


@every_runtime
def test_pixels_are_normalised_as_training_did(files: Files, name: str) -> None:
    network = open_runtime(name, files.path(name), 1, SPEC)
    for count in (1, 2, 4):
        pixels = torch.cat([PREPROCESS.pixels(photo(seed)) for seed in range(count)])
        if network.pixels is None:
            with pytest.raises(TypeError, match="float32 only"):
                called(network, pixels)
            continue
        images = PREPROCESS.normalise(pixels)
        by_floats = network.floats(images)
        cropped = torch.nn.functional.pad(pixels, (2, 2, 2, 2))[..., 2:-2, 2:-2]  # as a centre crop lies in memory
        for same in (pixels, pixels.contiguous(), cropped):
            found = called(network, same)
            assert float((found - by_floats).abs().max()) <= near("eager", images)
            assert float((found - answers(images)).abs().max()) <= near(name, images)


def test_openvino_takes_pixels(files: Files) -> None:
    assert open_runtime("openvino", files.path("openvino"), 1, SPEC).pixels is not None


@every_runtime
def test_p25_answers_outlive_the_next_call_and_inputs_are_not_written(files: Files, name: str) -> None:
    network = open_runtime(name, files.path(name), 1, SPEC)
    kinds = [batch(2, seed=1), *([torch.cat([PREPROCESS.pixels(photo(seed)) for seed in (1, 2)])] * (
        network.pixels is not None))]
    for images in kinds:
        before, other = images.clone(), images.flip(0)
        first = called(network, images)
        kept = first.clone()
        second = called(network, other)
        assert torch.equal(first, kept)
        assert not torch.equal(first, second)
        assert first.data_ptr() != second.data_ptr()
        assert torch.equal(images, before)


def masks() -> dict[str, str]:
    """The CPUs that each thread of this process may run on, by thread."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        found[task.name] = next(line for line in lines if line.startswith("Cpus_allowed_list"))
    return found


@every_runtime
def test_p11_no_thread_leaves_the_cpus_that_the_worker_was_given(files: Files, name: str) -> None:
    path = files.path(name)
    before, own = masks(), masks()[str(threading.get_native_id())]
    network = open_runtime(name, path, 2, SPEC)
    assert torch.get_num_threads() == 2
    stop, seen = threading.Event(), [masks()]

    def ask() -> None:
        while not stop.is_set():
            called(network, batch(4))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(20):
            seen.append(masks())
            stop.wait(0.01)
    finally:
        stop.set()
        asking.join()
    seen.append(masks())
    assert len(set().union(*seen)) > 1
    for each in seen:
        # a thread that an earlier quantization has pinned may come back to the process's mask: that is no escape
        assert {task: mask for task, mask in each.items() if mask not in (own, before.get(task))} == {}


# what cannot be opened

def test_an_unknown_runtime_is_named_beside_the_known(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no runtime 'cuda'") as caught:
        open_runtime("cuda", tmp_path / "x.pt", 1, SPEC)
    assert caught.value.remedy == "one of " + ", ".join(RUNTIMES)


def unopened(name: str, path: Path) -> ArtifactError:
    with pytest.raises(ArtifactError, match="cannot open the network") as caught:
        open_runtime(name, path, 1, SPEC)
    assert caught.value.where == str(path)
    assert caught.value.why and "\n" not in caught.value.why
    assert "tscpu build" in caught.value.remedy
    return caught.value


@every_runtime
@pytest.mark.parametrize("kept", [0.0, 0.5, -10, None], ids=["nothing", "half", "cut", "other bytes"])
def test_p34_a_broken_file_is_refused(files: Files, tmp_path: Path, name: str, kept: float | None) -> None:
    path = files.copy(name, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(b"no network at all" if kept is None else
                     whole[:int(len(whole) * kept) if isinstance(kept, float) else int(kept)])
    unopened(name, path)


@every_runtime
def test_a_missing_file_is_refused(files: Files, tmp_path: Path, name: str) -> None:
    unopened(name, files.copy(name, tmp_path).with_name(f"gone{files.path(name).suffix}"))


@pytest.mark.parametrize("name", ["openvino", "openvino-int8"])
@pytest.mark.parametrize("kept", [None, 0, 0.5], ids=["none", "empty", "half"])
def test_weights_that_were_lost_on_the_way(files: Files, tmp_path: Path, name: str, kept: float | None) -> None:
    path = files.copy(name, tmp_path)
    weights = path.with_suffix(".bin")
    if kept is None:
        weights.unlink()
    else:
        whole = weights.read_bytes()
        weights.write_bytes(whole[:int(len(whole) * kept)])
    unopened(name, path)


@pytest.mark.parametrize("name", [name for name, runtime in RUNTIMES.items() if runtime.package])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    package = RUNTIMES[name].package
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArtifactError, match="not usable here") as caught:
        open_runtime(name, tmp_path / "x", 1, SPEC)
    assert caught.value.where == package and package in caught.value.why
    assert "install" in caught.value.remedy
