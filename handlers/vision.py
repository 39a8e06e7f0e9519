"""VisionHandler: decode → preprocess → infer → postprocess, timed stage by stage; isolates bad items of a batch.

A model's own handler adds what its outputs mean (`answer`); see image_scorer.py for the smallest.
"""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import torch

logging.getLogger("ts.torch_handler.base_handler").setLevel(logging.ERROR)  # it warns of packages nobody asked for
from ts.torch_handler.base_handler import BaseHandler  # noqa: E402

from handlers import inputs, placement, runtimes  # noqa: E402
from handlers.artifact import Artifact  # noqa: E402
from handlers.errors import InputError  # noqa: E402
from handlers.metrics import StageTimer  # noqa: E402
from handlers.transforms import Preprocess  # noqa: E402

logger = logging.getLogger(__name__)

_PHRASES = {400: "Bad Request", 413: "Payload Too Large", 500: "Internal Server Error"}
_TYPES = {400: "InvalidInput", 413: "InputTooLarge", 500: "InternalError"}


class VisionHandler(BaseHandler):  # type: ignore[misc]
    """Answers photos and tensors with whatever `answer` makes of the network's outputs.

    TorchServe's BaseHandler gives the class its place in the model loader; its loading, its eager ipex.optimize
    and its all-or-nothing handling of a batch are replaced.
    """

    artifact: Artifact
    network: runtimes.Network
    runtime: str
    preprocessing: Preprocess

    def initialize(self, context: Any) -> None:
        """Claims a place, opens the network, and runs every batch size that may come, before the worker is READY."""
        folder = Path(context.system_properties["model_dir"])
        self.artifact = Artifact.read(folder)
        place = placement.take_place(context.model_name)
        self.runtime = self.artifact.serving_runtime(place.runtime)
        self.network = runtimes.open_runtime(self.runtime, folder / self.artifact.files[self.runtime].file,
                                             place.threads, self.artifact.input)
        self.preprocessing = Preprocess(self.artifact.input)
        self.timer = StageTimer()
        self._warm_up()
        if place.slot is not None:
            placement.pin(place.cpus)
        logger.info("ready: model=%s version=%s runtime=%s batch=%d threads=%d", self.artifact.name,
                    self.artifact.version, self.runtime, self.artifact.batch_size, torch.get_num_threads())
        # From here on a line for every batch would cost more than the handler's own overhead.
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("handlers").setLevel(logging.INFO)
        self.timer.quieten()
        self.initialized = True

    def answer(self, output: torch.Tensor) -> dict[str, Any]:
        """One row of the network's outputs → what the client is told. A subclass's only duty."""
        raise NotImplementedError

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        """TorchServe's entry point: exactly one answer for each request of the batch, in order."""
        requests: list[inputs.Request | InputError] = []
        with self.timer.stage("decode"):
            for index, row in enumerate(data):
                try:
                    requests.append(inputs.parse(row, context.get_all_request_header(index), self.artifact.input))
                except InputError as error:
                    requests.append(error)
                except Exception:
                    logger.exception("a request could not be read")
                    requests.append(InputError("this request could not be read; the server's log says why", 500))
        items = [item for request in requests if isinstance(request, inputs.Request) for item in request.items]
        answers = self._answers(items)
        replies: list[bytes] = []
        taken = 0
        with self.timer.stage("postprocess"):
            for index, request in enumerate(requests):
                reply: bytes | InputError
                if isinstance(request, InputError):
                    reply = request
                else:
                    own = answers[taken:taken + len(request.items)]
                    taken += len(request.items)
                    failed = next((answer for answer in own if isinstance(answer, InputError)), None)
                    reply = failed or self._reply(request, own)
                context.set_response_content_type(index, "application/json")
                replies.append(_refuse(reply, index, context) if isinstance(reply, InputError) else reply)
        self.timer.images += len(items)
        self.timer.hand_over(context.metrics, self.artifact.name)
        return replies

    def _answers(self, items: list[inputs.Array]) -> list[dict[str, Any] | InputError]:
        """One answer an item; if a batch fails, each of its items is tried alone, so that only the bad one fails."""
        answers: list[dict[str, Any] | InputError] = []
        for start in range(0, len(items), self.artifact.batch_size):
            chunk = items[start:start + self.artifact.batch_size]
            try:
                answers += self._infer(chunk)
            except Exception:
                logger.exception("a batch of %d failed", len(chunk))
                answers += [self._alone(item) for item in chunk]
        return answers

    def _alone(self, item: inputs.Array) -> dict[str, Any] | InputError:
        try:
            return self._infer([item])[0]
        except Exception:
            logger.exception("the model failed on %s %s", item.dtype, list(item.shape))
            return InputError("the model failed on this input; the server's log says why", 500)

    def _infer(self, items: list[inputs.Array]) -> list[dict[str, Any]]:
        with torch.inference_mode():
            with self.timer.stage("preprocess"):
                batch = self.tensor(items)
            with self.timer.stage("infer"):
                outputs = self.network(batch)
            if len(outputs) != len(items):
                raise RuntimeError(f"the network answers a batch of {len(items)} with {len(outputs)} rows")
            with self.timer.stage("postprocess"):
                return [self.answer(row) for row in outputs]

    def tensor(self, items: list[inputs.Array]) -> torch.Tensor:
        """Photos (uint8 [H, W, 3]) and normalised tensors (float32 [3, S, S]) → one batch [N, 3, S, S], channels-last:
        uint8 where all are photos and the network normalises them itself, else float32.
        """
        pixels = self.preprocessing.pixels
        if all(item.dtype == "uint8" for item in items):
            batch = pixels(items[0]) if len(items) == 1 else torch.cat([pixels(item) for item in items])
            return batch if self.network.pixels is not None else self.preprocessing.normalise(batch)
        rows = [self.preprocessing.normalise(pixels(item)) if item.dtype == "uint8" else torch.from_numpy(item)[None]
                for item in items]
        return torch.cat(rows).contiguous(memory_format=torch.channels_last)

    def _reply(self, request: inputs.Request, answers: list[Any]) -> bytes | InputError:
        try:
            return _dumps(self._wrap(request, answers))
        except Exception:
            logger.exception("an answer cannot be sent as JSON (%s)", request.protocol)
            return InputError("the answer to this input cannot be sent; the server's log says why", 500)

    def _wrap(self, request: inputs.Request, answers: list[Any]) -> Any:
        if request.protocol == "v1":
            return {"predictions": answers}
        if request.protocol == "v2":
            reply = {"model_name": self.artifact.name, "model_version": self.artifact.version,
                     "outputs": v2_outputs(answers)}
            return reply if request.id is None else {**reply, "id": request.id}
        return answers if request.many else answers[0]

    def _warm_up(self) -> None:
        """Twice for each batch size: the first run profiles the graph, the second compiles it."""
        size, largest = self.artifact.input.size, self.artifact.batch_size
        # beyond 8 the powers of two: a graph specialises on few shapes before it settles on any
        sizes = [count for count in range(1, largest + 1) if count <= 8 or count in (16, 32, 64, 128, largest)]
        with torch.inference_mode():
            kinds = [torch.float32, *([torch.uint8] if self.network.pixels is not None else [])]
            for count, kind in itertools.product(sizes, kinds):
                batch = torch.zeros(count, 3, size, size, dtype=kind).contiguous(memory_format=torch.channels_last)
                for _ in range(3):
                    outputs = self.network(batch)
                if len(outputs) != count:
                    raise RuntimeError(f"the network answers a batch of {count} with {len(outputs)} rows")
            self.answer(outputs[0])


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _refuse(error: InputError, index: int, context: Any) -> bytes:
    context.set_response_status(error.code, _PHRASES[error.code], index)
    return _dumps({"code": error.code, "type": _TYPES[error.code], "message": str(error)})


def v2_outputs(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers as KServe V2 tensors: a number becomes FP32 [N], a text BYTES [N], a list of labels and probabilities
    two of [N, k].
    """
    outputs: list[dict[str, Any]] = []
    for key, first in answers[0].items():
        column = [answer[key] for answer in answers]
        if isinstance(first, list):
            shape = [len(answers), len(first)]
            for name, datatype in (("label", "BYTES"), ("probability", "FP32")):
                flat = [entry[name] for row in column for entry in row]
                outputs.append({"name": name, "shape": shape, "datatype": datatype, "data": flat})
        else:
            datatype = "BYTES" if isinstance(first, str) else "FP32"
            outputs.append({"name": key, "shape": [len(answers)], "datatype": datatype, "data": column})
    return outputs
