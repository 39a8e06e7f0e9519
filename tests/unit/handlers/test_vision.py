"""A handler answers every request of a batch, and only the bad ones with an error."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ts.context import Context, RequestProcessor

from handlers.artifact import Artifact
from handlers.classifier import Classifier
from handlers.transforms import InputSpec

SPEC = InputSpec(8, 8, "bicubic", (0.0,) * 3, (1.0,) * 3, True, (255,) * 3, 10_000)


class Touchy(torch.nn.Module):
    """Channel means; fails on a batch in which any image is white."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert bool(x.amin((1, 2, 3)).max() < 0.99), "white"
        return 8.0 * x.mean((2, 3))


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    torch.jit.script(Touchy().eval()).save(str(folder / "model.pt"))
    Artifact(name="colours", version="1.0", runtime="eager", file="model.pt", input=SPEC, batch_size=2,
             max_batch_delay_ms=1, handler="classifier", labels=("red", "green", "blue"), top_k=1).write(folder)
    made = Classifier()
    made.initialize(Context("colours", str(folder), {}, 2, None, "0", True))
    return made


def pixels(red: int, green: int, blue: int) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.full((8, 8, 3), (red, green, blue), np.uint8))
    return stream.getvalue()


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


def test_the_package_stands_alone(handler: Any) -> None:
    """What is packed into an archive is the folder of the handlers and nothing beside it."""
    import handlers

    assert {path.suffix for path in Path(handlers.__file__).parent.iterdir() if path.is_file()} == {".py"}
