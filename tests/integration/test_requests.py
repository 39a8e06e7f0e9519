"""Requests to a real server: every way in, bad neighbours, and the same numbers as in process."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save as save_safetensors

from handlers.artifact import Artifact
from handlers.runtimes import open_runtime
from handlers.transforms import Preprocess
from models.datasets import load_photo

from .conftest import Server, plan_of, tscpu

OCTETS = {"content-type": "application/octet-stream"}


def encoded(image: Any, kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, kind, **({"quality": 95} if kind == "JPEG" else {"lossless": True}
                                                 if kind == "WEBP" else {}))
    return stream.getvalue()


def plain(colour: tuple[int, int, int], size: int = 32) -> bytes:
    return encoded(np.full((size, size, 3), colour, np.uint8), "PNG")


def test_demo_models_answer_as_promised(server: Server, coffee: bytes) -> None:
    answer = server.post("food_recognizer", content=coffee, headers=OCTETS).json()
    assert answer["predictions"][0]["label"] == "espresso"
    assert answer["food_probability"] > 0.8
    cat = server.post("food_recognizer", content=encoded(load_photo("chelsea")), headers=OCTETS).json()
    assert cat["food_probability"] < 0.2


def test_served_prediction_equals_the_artifact_in_process(server: Server, store: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(store / "image_scorer.mar") as archive:
        archive.extractall(tmp_path)
    artifact = Artifact.read(tmp_path)
    file = artifact.files[artifact.runtime].file
    network = open_runtime(artifact.runtime, tmp_path / file, 1, artifact.input)
    preprocess = Preprocess(artifact.input)
    for photo in ("coffee", "chelsea", "china"):
        image = load_photo(photo)
        with torch.inference_mode():
            network(preprocess([image]))
            expected = network(preprocess([image])).item()
        served = server.post("image_scorer", content=encoded(image, "PNG"), headers=OCTETS).json()["score"]
        assert served == pytest.approx(expected, abs=1e-5)


def test_p26_every_way_in_gives_the_same_answer(server: Server, coffee: bytes) -> None:
    b64 = base64.b64encode(coffee).decode()
    v2 = {"id": "7", "inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [b64]}]}
    ways = {
        "octets": {"content": coffee, "headers": OCTETS},
        "image/jpeg": {"content": coffee, "headers": {"Content-Type": "image/jpeg"}},
        "no content type": {"content": coffee},
        "form, data": {"files": {"data": coffee}},
        "form, any field": {"files": {"picture": ("coffee.jpg", coffee, "image/jpeg")}},
        "json": {"json": {"data": b64}},
        "json with charset": {"content": json.dumps({"image": b64}),
                              "headers": {"content-type": "application/json; charset=utf-8"}},
    }
    answers = {way: server.post("food_recognizer", **request).json() for way, request in ways.items()}
    assert all(answer == answers["octets"] for answer in answers.values()), answers
    v1 = server.post("food_recognizer", json={"instances": [{"data": b64}, {"b64": b64}]}).json()
    assert v1 == {"predictions": [answers["octets"]] * 2}
    v2_answer = server.post("food_recognizer", json=v2).json()
    assert v2_answer["id"] == "7" and v2_answer["outputs"][0]["data"] == [answers["octets"]["food_probability"]]


def test_kserve_addresses_reach_the_handler(server: Server, coffee: bytes) -> None:
    b64 = base64.b64encode(coffee).decode()
    v1 = httpx.post(server.url("inference", "/v1/models/image_scorer:predict"), json={"instances": [{"data": b64}]},
                    timeout=30, trust_env=False)
    v2 = httpx.post(server.url("inference", "/v2/models/image_scorer/infer"), timeout=30, trust_env=False,
                    json={"inputs": [{"name": "i", "shape": [1], "datatype": "BYTES", "data": [b64]}]})
    assert v1.json()["predictions"][0]["score"] == pytest.approx(v2.json()["outputs"][0]["data"][0], abs=1e-6)


def test_tensors_of_an_app_server(server: Server) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    normalised = ((pixels / 255.0 - 0.5) / 0.5).astype(np.float32)
    # safetensors writes a transposed view in memory order: a client has to make it contiguous first
    normalised = np.ascontiguousarray(normalised.transpose(2, 0, 1))
    npy = io.BytesIO()
    np.save(npy, pixels)
    scores = [server.post("image_scorer", content=body, headers=OCTETS).json()["score"]
              for body in (npy.getvalue(), save_safetensors({"x": pixels}), save_safetensors({"x": normalised}))]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-3)


def test_what_curl_sends_without_a_header_is_explained(server: Server, coffee: bytes, tmp_path: Path) -> None:
    photo = tmp_path / "coffee.jpg"
    photo.write_bytes(coffee)
    address = server.url("inference", "/predictions/food_recognizer")
    for how, expected in ((["-T", str(photo)], 200), (["--data-binary", "a=b"], 400),
                          (["-H", "Content-Type: application/octet-stream", "--data-binary", f"@{photo}"], 200)):
        done = subprocess.run(["curl", "-s", "-w", "\n%{http_code}", "-X", "POST", address, *how], capture_output=True,
                              text=True, check=True)
        body, code = done.stdout.rsplit("\n", 1)
        assert int(code) == expected, (how, body)
        if expected == 400:
            assert "application/octet-stream" in json.loads(body)["message"]


def test_p24_one_bad_image_fails_alone(server: Server) -> None:
    bodies = [plain((255, 0, 0)), b"ten bytes!", plain((0, 0, 255))]
    with ThreadPoolExecutor(3) as pool:  # the batch waits 300 ms for three
        answers = list(pool.map(lambda body: server.post("colours", content=body, headers=OCTETS), bodies))
    assert [answer.status_code for answer in answers] == [200, 400, 200]
    assert answers[0].json()["predictions"][0]["label"] == "red"
    assert answers[2].json()["predictions"][0]["label"] == "blue"
    error = answers[1].json()
    assert error["code"] == 400 and error["type"] and "Traceback" not in error["message"]
    assert answers[1].headers["content-type"] == "application/json"


def test_p25_each_answer_is_matched_to_its_own_input(server: Server) -> None:
    reds = [40, 90, 140, 190, 240]
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda red: server.post("colours", content=plain((red, 0, 0)), headers=OCTETS).json(),
                                reds * 4))
    found = [answer["predictions"][0]["probability"] for answer in answers]
    alone = [server.post("colours", content=plain((red, 0, 0)), headers=OCTETS).json()["predictions"][0]["probability"]
             for red in reds]
    assert found == pytest.approx(alone * 4, abs=1e-5) and len(set(alone)) == 5


@pytest.mark.parametrize(("request_", "words"), [
    ({"content": b"", "headers": OCTETS}, "empty"),
    ({"content": b'{"data": "\xe9"}', "headers": {"content-type": "application/json"}}, "UTF-8"),
    ({"json": {"instances": [{"data": "!"}]}}, "instances[0].data"),
    ({"json": {"instances": []}}, "instances"),
    ({"json": ["x"]}, "JSON object"),
    ({"content": b"\xff\xd8\xff\xe0 cut off", "headers": OCTETS}, "body"),
], ids=["empty", "latin-1", "not base64", "no instances", "a list", "truncated"])
def test_p23_the_clients_fault_is_a_400(server: Server, request_: dict[str, Any], words: str) -> None:
    answer = server.post("food_recognizer", **request_)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["message"]


def test_planned_timeouts_and_batches_hold(server: Server) -> None:
    for model in plan_of(server)["models"]:
        found = httpx.get(server.url("management", f"/models/{model['name']}"), timeout=5, trust_env=False).json()[0]
        assert found["minWorkers"] == found["maxWorkers"] == model["workers"]
        assert found["batchSize"] == model["batch_size"]
        assert found["responseTimeout"] == model["response_timeout_s"]
        assert found["startupTimeout"] == model["startup_timeout_s"]


def test_stage_metrics_are_served(server: Server) -> None:
    import time

    server.post("colours", content=plain((1, 2, 3)), headers=OCTETS)
    time.sleep(1.2)  # timers are handed over once a second at most, with the next request
    server.post("colours", content=plain((1, 2, 3)), headers=OCTETS)
    text = httpx.get(server.url("metrics", "/metrics"), timeout=5, trust_env=False).text
    assert 'StageSeconds{ModelName="colours",Stage="infer"' in text
    assert "ts_inference_requests_total" in text


def test_predict_and_inspect_print_tables(server: Server, coffee: bytes, tmp_path: Path) -> None:
    photo = tmp_path / "coffee.jpg"
    photo.write_bytes(coffee)
    done = tscpu("predict", "food_recognizer", photo, "--address", server.url("inference", ""))
    assert "espresso" in done.stdout
    found = server.inspect()
    assert found.returncode == 0, found.stdout
    assert found.stdout.count("OK") >= 3
