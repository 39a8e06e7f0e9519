"""A handler answers every request of a batch, and only the bad ones with an error."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ts.context import Context, RequestProcessor

from handlers import inputs
from handlers.artifact import Artifact, NetworkFile
from handlers.classifier import Classifier
from handlers.food_recognizer import FoodRecognizer
from handlers.image_scorer import ImageScorer
from handlers.transforms import InputSpec
from handlers.vision import VisionHandler, v2_outputs

SPEC = InputSpec(8, 8, "bicubic", (0.0,) * 3, (1.0,) * 3, True, (255,) * 3, 10_000)


WHITE, GREY, NAVY = (255, 255, 255), (128, 128, 128), (0, 0, 255)


class Touchy(torch.nn.Module):
    """Channel means. Fails on a batch with a white image, leaves out the row of a grey one, makes NaN of a navy one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert bool(x.amin((1, 2, 3)).max() < 0.99), "white"
        navy = (x[:, 2].amin((1, 2)) > 0.99) & (x[:, 0].amax((1, 2)) < 0.01)
        means = 8.0 * x.mean((2, 3))
        means = torch.where(navy.unsqueeze(1), torch.full_like(means, float("nan")), means)
        grey = (x - 128.0 / 255.0).abs().amax((1, 2, 3)) < 0.01
        return means[~grey]


class Mean(torch.nn.Module):
    """One number an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((1, 2, 3)).log() if bool(x.mean() > 0.9) else x.mean((1, 2, 3)) / (1.0 - x.amax((1, 2, 3)))


def made(folder: Path, kind: type[VisionHandler], network: torch.nn.Module, **more: Any) -> Any:
    """An initialised handler, made as an archive's entry makes it."""
    torch.jit.script(network.eval()).save(str(folder / "model.pt"))
    Artifact(**{"name": "colours", "version": "1.0", "runtime": "eager",
                "files": {"eager": NetworkFile("model.pt")}, "input": SPEC, "batch_size": 2, "max_batch_delay_ms": 1,
                "handler": "classifier", "labels": ("red", "green", "blue"), "top_k": 1, **more}).write(folder)

    class Service(kind):  # type: ignore[misc,valid-type]
        pass

    service = Service()
    service.initialize(Context("colours", str(folder), {}, 2, None, "0", True))
    return service


@pytest.fixture(scope="module", autouse=True)
def logging_as_before() -> Iterator[None]:
    """A handler quietens its process for good, which here is that of all tests."""
    loggers = [logging.getLogger(name) for name in (None, "handlers", "ts.metrics")]
    levels = [one.level for one in loggers]
    yield
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return made(tmp_path_factory.mktemp("model"), Classifier, Touchy())


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def pixels(red: int, green: int, blue: int) -> bytes:
    return npy(np.full((8, 8, 3), (red, green, blue), np.uint8))


def ask(handler: Any, *bodies: Any, kind: str = "application/octet-stream") -> list[tuple[int, Any, bytes]]:
    context = Context("colours", "", {}, 2, None, "0", True)
    context.request_processor = [RequestProcessor({"content-type": kind}) for _ in bodies]
    rows = [{"body": json.dumps(body).encode() if isinstance(body, dict) else body} for body in bodies]
    answers = handler.handle(rows, context)
    assert len(answers) == len(bodies)
    assert all(context.get_response_content_type(index) == "application/json" for index in range(len(bodies)))
    return [(context.get_response_status(index)[0], json.loads(answer), answer) for index, answer in enumerate(answers)]


def label(answer: Any) -> str:
    found: str = answer["predictions"][0]["label"]
    return found


def test_p24_one_bad_item_fails_alone_and_order_is_kept(handler: Any) -> None:
    found = ask(handler, pixels(200, 0, 0), b"ten bytes!", pixels(0, 0, 200))
    assert [status for status, _, _ in found] == [200, 400, 200]
    assert (label(found[0][1]), label(found[2][1])) == ("red", "blue")
    assert found[1][1]["type"] == "InvalidInput" and found[1][1]["code"] == 400


def test_a_network_that_fails_on_one_item_fails_for_it_alone(handler: Any) -> None:
    found = ask(handler, pixels(200, 0, 0), pixels(255, 255, 255), pixels(0, 200, 0))
    assert [status for status, _, _ in found] == [200, 500, 200]
    assert b"Traceback" not in found[1][2] and b"white" not in found[1][2]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_p25_as_many_answers_as_requests_each_its_own(handler: Any, count: int) -> None:
    found = [answer for _, answer, _ in ask(handler, *(pixels(40 * index + 20, 0, 0) for index in range(count)))]
    chances = [answer["predictions"][0]["probability"] for answer in found]
    assert chances == sorted(chances) and len(set(chances)) == count


def test_answers_are_compact_and_wrapped_as_asked(handler: Any) -> None:
    image = np.full((8, 8, 3), (0, 0, 90), np.uint8).tolist()
    plain, = ask(handler, pixels(0, 0, 90))
    assert b": " not in plain[2] and b"\n" not in plain[2]
    v1, = ask(handler, {"instances": [image, image, image]}, kind="application/json")
    assert v1[1] == {"predictions": [plain[1]] * 3}
    v2, = ask(handler, {"id": "q", "inputs": [{"datatype": "UINT8", "shape": [1, 8, 8, 3], "data": image}]},
              kind="application/json")
    assert v2[1]["id"] == "q" and v2[1]["model_name"] == "colours"
    assert v2[1]["outputs"][0] == {"name": "label", "shape": [1, 1], "datatype": "BYTES", "data": ["blue"]}


@pytest.mark.parametrize("colour", [WHITE, GREY, NAVY], ids=["raises", "leaves a row out", "answers NaN"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_p24_whatever_goes_wrong_goes_wrong_for_one(handler: Any, colour: tuple[int, int, int], place: int) -> None:
    bodies = [pixels(200, 0, 0), pixels(0, 200, 0), pixels(0, 0, 200)]
    alone = [ask(handler, body)[0] for body in bodies]
    bodies[place] = pixels(*colour)
    found = ask(handler, *bodies)
    assert [status for status, _, _ in found] == [500 if index == place else 200 for index in range(3)]
    assert set(found[place][1]) == {"code", "type", "message"}
    assert found[place][1]["message"] == "the model failed on this input; the server's log says why"
    assert all(found[index] == alone[index] for index in range(3) if index != place)


def test_p24_a_request_of_several_fails_whole_and_alone(handler: Any) -> None:
    three = npy(np.stack([np.full((8, 8, 3), colour, np.uint8) for colour in ((200, 0, 0), WHITE, (0, 0, 200))]))
    found = ask(handler, pixels(0, 200, 0), three, pixels(0, 0, 200))
    assert [status for status, _, _ in found] == [200, 500, 200]
    assert (label(found[0][1]), label(found[2][1])) == ("green", "blue")


def test_p24_what_nobody_thought_of_fails_for_one(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = inputs.parse

    def stumbles(row: Any, headers: Any, spec: Any) -> Any:
        return parse(row, headers, spec) if row["body"] != b"stumble" else 1 / 0

    monkeypatch.setattr(inputs, "parse", stumbles)
    found = ask(handler, pixels(200, 0, 0), b"stumble", pixels(0, 0, 200))
    assert [status for status, _, _ in found] == [200, 500, 200]
    assert b"division" not in found[1][2]


def test_p23_all_bad(handler: Any) -> None:
    found = ask(handler, b"", b"ten bytes!", npy(np.zeros((200, 200, 3), np.uint8)), {"data": "?"},
                kind="application/json")
    assert [status for status, _, _ in found] == [400, 400, 400, 400]
    found = ask(handler, npy(np.zeros((200, 200, 3), np.uint8)))
    assert found[0][0] == 413
    assert found[0][1]["type"] == "InputTooLarge"


@pytest.mark.parametrize("header", ["Content-Type", "content-type", "CONTENT-TYPE"])
def test_p26_a_header_in_any_case_through_torchserves_context(handler: Any, header: str) -> None:
    context = Context("colours", "", {}, 2, None, "0", True)
    context.request_processor = [RequestProcessor({header: "application/x-www-form-urlencoded"})]
    answer, = handler.handle([{"photo": bytearray(b"x")}], context)
    assert context.get_response_status(0) == (400, "Bad Request")
    assert "application/octet-stream" in json.loads(answer)["message"]


def test_photos_and_normalised_tensors_in_one_batch(handler: Any) -> None:
    tensor = np.zeros((3, 8, 8), np.float32)
    tensor[1] = 200 / 255
    found = ask(handler, pixels(200, 0, 0), npy(tensor), pixels(0, 200, 0))
    assert [label(answer) for _, answer, _ in found] == ["red", "green", "green"]
    assert found[1][1] == found[2][1]


def test_a_batch_of_one_tensor_is_answered_with_a_list(handler: Any) -> None:
    one, = ask(handler, npy(np.full((1, 8, 8, 3), (0, 0, 90), np.uint8)))
    assert one[1] == [ask(handler, pixels(0, 0, 90))[0][1]]


def test_a_scorer(tmp_path: Path) -> None:
    scorer = made(tmp_path, ImageScorer, Mean(), labels=())
    found = ask(scorer, pixels(51, 51, 51), pixels(255, 0, 0), pixels(102, 102, 102))
    assert [status for status, _, _ in found] == [200, 500, 200]  # the second divides by zero
    assert found[0][1] == {"score": pytest.approx(0.25, abs=1e-6)}
    reply, = ask(scorer, {"inputs": [{"datatype": "UINT8", "shape": [2, 8, 8, 3], "data": [51] * 384}]},
                 kind="application/json")
    assert reply[1] == {"model_name": "colours", "model_version": "1.0", "outputs": [
        {"name": "score", "shape": [2], "datatype": "FP32", "data": [pytest.approx(0.25, abs=1e-6)] * 2}]}


def test_a_food_recognizer(tmp_path: Path) -> None:
    recognizer = made(tmp_path, FoodRecognizer, Touchy(), groups={"food": (0, 2)}, top_k=3)
    found = [answer for _, answer, _ in ask(recognizer, pixels(0, 0, 200), pixels(0, 200, 0), pixels(*NAVY))]
    assert [each["label"] for each in found[0]["predictions"]] == ["blue", "red"]
    assert found[0]["food_probability"] > 0.9 > 0.1 > found[1]["food_probability"]
    for each in found[:2]:
        shown = sum(one["probability"] for one in each["predictions"])
        assert each["food_probability"] == pytest.approx(shown, abs=2e-6)
    assert found[2]["code"] == 500


class Own(VisionHandler):
    """A user's own: a text for red, something that JSON does not know for blue."""

    def answer(self, output: torch.Tensor) -> dict[str, Any]:
        return {"name": ["red", "green", output][int(output.argmax())], "sure": round(float(output.max()), 3)}


def test_answers_of_a_users_own_handler(tmp_path: Path) -> None:
    own = made(tmp_path, Own, Touchy(), labels=())
    found = ask(own, pixels(51, 0, 0), pixels(0, 0, 51), pixels(0, 51, 0))
    assert [status for status, _, _ in found] == [200, 500, 200]
    assert found[0][1] == {"name": "red", "sure": 1.6}
    assert found[1][1]["message"] == "the answer to this input cannot be sent; the server's log says why"
    reply, = ask(own, {"inputs": [{"datatype": "UINT8", "shape": [1, 8, 8, 3], "data": [51, 0, 0] * 64}]},
                 kind="application/json")
    assert reply[1]["outputs"] == [{"name": "name", "shape": [1], "datatype": "BYTES", "data": ["red"]},
                                   {"name": "sure", "shape": [1], "datatype": "FP32", "data": [1.6]}]


def test_v2_outputs_of_several_answers() -> None:
    answers = [{"predictions": [{"label": name, "probability": 0.5}, {"label": "z", "probability": 0.25}]}
               for name in "ab"]
    assert v2_outputs(answers) == [
        {"name": "label", "shape": [2, 2], "datatype": "BYTES", "data": ["a", "z", "b", "z"]},
        {"name": "probability", "shape": [2, 2], "datatype": "FP32", "data": [0.5, 0.25, 0.5, 0.25]}]


class TooFewRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))[:2]


def test_p25_a_network_that_cannot_answer_its_batch_never_gets_ready(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a batch of 3 with 2 rows"):
        made(tmp_path, Classifier, TooFewRows(), batch_size=3)


def test_the_package_stands_alone(handler: Any) -> None:
    """What is packed into an archive is the folder of the handlers and nothing beside it."""
    import handlers

    assert {path.suffix for path in Path(handlers.__file__).parent.iterdir() if path.is_file()} == {".py"}
