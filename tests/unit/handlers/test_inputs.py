"""What `handlers.inputs` promises: every sensible way to send a photo works, every other is a 400 that says how."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageOps

from handlers.errors import InputError
from handlers.inputs import KEYS, MAX_ASPECT, MAX_ITEMS, Request, decode, parse, unbase64
from handlers.transforms import InputSpec
from models.datasets import load_photo

SIZE = 16
SPEC = InputSpec(size=SIZE, resize=18, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), exif=True,
                 background=(10, 200, 30), max_pixels=10_000)
RAW, JSON, FORM = "application/octet-stream", "application/json", "multipart/form-data; boundary=x"
PHOTO = load_photo("coffee")[100:140, 200:260].copy()  # 40 high, 60 wide
RGB = PILImage.fromarray(PHOTO)
GREY = RGB.convert("L")
FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def encoded(image: PILImage.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


PNG, JPEG = encoded(RGB), encoded(RGB, "JPEG", quality=90)
PNG64 = base64.b64encode(PNG).decode()


def ask(body: Any, kind: str = RAW, field: str = "body", spec: InputSpec = SPEC) -> Request:
    return parse({field: body}, {"Content-Type": kind}, spec)


def refused(body: Any, kind: str = RAW, field: str = "body", code: int = 400, spec: InputSpec = SPEC) -> str:
    """The message of the refusal."""
    with pytest.raises(InputError) as caught:
        ask(body, kind, field, spec)
    assert caught.value.code == code
    return str(caught.value)


def only(request: Request) -> NDArray[Any]:
    """The one item of a request."""
    assert len(request.items) == 1
    return request.items[0]


def v1(*instances: Any) -> dict[str, Any]:
    return {"instances": list(instances)}


def v2(datatype: Any, shape: Any, data: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "image", "datatype": datatype, "shape": shape, "data": data}], **more}


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_of(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """A .npy file with this header, whatever it says."""
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + length + header.encode() + data


def header_of(shape: str, descr: str = "'|u1'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"


# P26: content types

@pytest.mark.parametrize("kind", [RAW, "image/jpeg", "image/png", "text/plain", "application/x-unheard-of", ""])
def test_p26_raw_body_of_any_type(kind: str) -> None:
    assert np.array_equal(only(ask(bytearray(JPEG), kind)), only(ask(JPEG)))


def test_p26_raw_body_without_any_header() -> None:
    assert np.array_equal(only(parse({"body": bytearray(PNG)}, {}, SPEC)), PHOTO)


@pytest.mark.parametrize("field", ["data", "body", "image", "file", "my photo", "content-type"])
def test_p26_form_with_one_field_of_any_name(field: str) -> None:
    headers: Mapping[str, Any] = {"Content-Type": FORM, field: {"content-type": "image/png"}}
    assert np.array_equal(only(parse({field: bytearray(PNG)}, headers, SPEC)), PHOTO)


@pytest.mark.parametrize("named", KEYS)
def test_p26_form_with_several_fields(named: str) -> None:
    row = {"comment": bytearray(b"my lunch"), named: bytearray(PNG)}
    assert np.array_equal(only(parse(row, {"content-type": FORM}, SPEC)), PHOTO)


def test_p26_form_with_several_unknown_fields_names_them() -> None:
    with pytest.raises(InputError, match=r"fields left, right: send one, or name the photo's field data"):
        parse({"left": PNG, "right": PNG}, {"content-type": FORM}, SPEC)


def test_p26_form_without_fields() -> None:
    with pytest.raises(InputError, match="no fields"):
        parse({}, {"content-type": FORM}, SPEC)


@pytest.mark.parametrize("header", ["Content-Type", "content-type", "CONTENT-TYPE", "cOnTeNt-TyPe"])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded",
                                  "Application/X-WWW-Form-URLEncoded; charset=utf-8"])
def test_p26_curl_without_a_header_is_told_how(header: str, kind: str) -> None:
    with pytest.raises(InputError) as caught:
        parse({"\x89PNG": bytearray(b"")}, {header: kind}, SPEC)
    assert caught.value.code == 400
    assert "-H 'Content-Type: application/octet-stream'" in str(caught.value)
    assert "-F data=@FILE" in str(caught.value)


@pytest.mark.parametrize("header", ["Content-Type", "content-type", "CONTENT-TYPE"])
@pytest.mark.parametrize("kind", [JSON, "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"])
def test_p26_json_still_in_bytes(header: str, kind: str) -> None:
    body = bytearray(json.dumps({"data": PNG64}).encode())
    assert np.array_equal(only(parse({"body": body}, {header: kind}, SPEC)), PHOTO)


def test_p26_json_that_the_server_has_parsed() -> None:
    assert np.array_equal(only(ask({"data": PNG64}, JSON)), PHOTO)


@pytest.mark.parametrize("body", [b'{"data": "caf\xe9"}', b'{"data"', b"[1, 2", b"{'data': 1}", b"\xff\xfe{\x00}\x00",
                                  b"[" * 100_000], ids=["latin-1", "cut", "open list", "quotes", "utf-16", "deep"])
def test_p26_json_that_is_none(body: bytes) -> None:
    assert "not JSON in UTF-8" in refused(body, JSON)


@pytest.mark.parametrize("kind", [RAW, JSON, "image/jpeg"])
def test_p26_empty_body(kind: str) -> None:
    assert refused(bytearray(b""), kind) == "body: empty"


def test_p26_empty_field_of_a_form() -> None:
    assert refused(bytearray(b""), FORM, "photo") == "photo: empty"


@pytest.mark.parametrize("text", [PNG64, "hello", ""])
def test_p26_text_is_told_how(text: str) -> None:
    assert "-F data=@FILE" in refused(text, "text/plain")


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], [PNG64], "x" * 10_000])
def test_p26_json_that_is_no_object(value: Any) -> None:
    message = refused(json.dumps(value).encode(), JSON)
    assert message.startswith("body: ")
    assert len(message) < 500


# P27: base64

@pytest.mark.parametrize("key", KEYS)
def test_p27_every_key(key: str) -> None:
    assert np.array_equal(only(ask({key: PNG64}, JSON)), PHOTO)
    assert np.array_equal(only(ask(v1({key: PNG64}), JSON)), PHOTO)
    assert np.array_equal(only(ask(v1({key: {"b64": PNG64}}), JSON)), PHOTO)


DIALECTS = {
    "plain": PNG64,
    "lines of 76": base64.encodebytes(PNG).decode(),
    "CRLF": base64.encodebytes(PNG).decode().replace("\n", "\r\n"),
    "URL-safe": base64.urlsafe_b64encode(PNG).decode(),
    "no padding": PNG64.rstrip("="),
    "URL-safe, no padding": base64.urlsafe_b64encode(PNG).decode().rstrip("="),
    "address": f"data:image/png;base64,{PNG64}",
    "address with a parameter": f"data:image/png;name=a.png;base64,{PNG64}",
    "address of nothing": f"data:;base64,{PNG64}",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_p27_every_dialect(dialect: str) -> None:
    assert np.array_equal(only(ask(v1({"data": DIALECTS[dialect]}), JSON)), PHOTO)


@given(st.binary(max_size=100))
def test_p27_every_length_and_alphabet(data: bytes) -> None:
    for text in (base64.b64encode(data), base64.urlsafe_b64encode(data), base64.encodebytes(data)):
        assert unbase64(text.decode(), "data") == data
        assert unbase64(text.decode().replace("=", ""), "data") == data


@pytest.mark.parametrize("text", ["not base64!", "A", "AAAAA", "AA=A", "AAAA====B", "päper", "AAA\x00", "\ud800"])
def test_p27_wrong_base64_names_the_field(text: str) -> None:
    assert refused(v1({"data": text}), JSON).startswith("instances[0].data: not base64")
    assert refused({"image": text}, JSON).startswith("image: not base64")


def test_p27_the_field_of_the_second_instance_is_named() -> None:
    assert refused(v1(PNG64, {"data": {"b64": "?"}}), JSON).startswith("instances[1].data.b64: ")


@pytest.mark.parametrize("text", ["data:image/png,abc", "data:image/png;base64", "data:"])
def test_p27_an_address_that_is_not_base64(text: str) -> None:
    assert refused({"data": text}, JSON).startswith("data: a data: address is expected to say ;base64")


@pytest.mark.parametrize("value", [None, 5, True, {}, {"url": "http://x"}, {"data": {"data": PNG64}}])
def test_p27_something_else_than_text(value: Any) -> None:
    assert refused({"data": value}, JSON).startswith("data")


def test_p27_nesting_ends_after_one_level() -> None:
    deep: Any = PNG64
    for _ in range(5_000):
        deep = {"data": deep}
    assert len(refused(deep, JSON)) < 200


def test_p27_empty_text() -> None:
    assert refused({"data": ""}, JSON) == "data: empty"


def test_p27_unknown_key_is_named_beside_the_known() -> None:
    message = refused({"picture": PNG64}, JSON)
    assert message == "body: one of data, body, image, image_bytes, b64 is expected, not picture"


def test_p27_base64_of_any_file() -> None:
    pixels = base64.b64encode(npy(np.zeros((5, 4, 3), np.uint8))).decode()
    assert only(ask({"data": pixels}, JSON)).shape == (5, 4, 3)


# KServe V1

def test_v1_mixes_text_objects_and_numbers() -> None:
    request = ask(v1(PNG64, {"image": PNG64}, PHOTO.tolist()), JSON)
    assert request.protocol == "v1"
    assert len(request.items) == 3
    assert all(np.array_equal(item, PHOTO) for item in request.items)


def test_v1_floats_are_a_normalised_tensor() -> None:
    tensor = np.random.default_rng(0).normal(size=(3, SIZE, SIZE)).astype(np.float32)
    item = only(ask(v1(tensor.tolist()), JSON))
    assert item.dtype == np.float32
    assert np.array_equal(item, tensor)


def test_v1_whole_numbers_may_be_a_normalised_tensor() -> None:
    """JavaScript writes 1.0 as 1."""
    item = only(ask(v1([[[1] * SIZE] * SIZE] * 3), JSON))
    assert item.dtype == np.float32
    assert (item == 1.0).all()


@pytest.mark.parametrize("instances", [[], {}, None, "text", 5, [PNG64] * (MAX_ITEMS + 1)],
                         ids=["empty", "object", "null", "text", "number", "too many"])
def test_v1_p27_a_list_of_some_instances_is_expected(instances: Any) -> None:
    message = refused({"instances": instances}, JSON)
    assert message.startswith(f"instances: a list of 1 to {MAX_ITEMS} is expected")
    assert len(message) < 200


@pytest.mark.parametrize("instance", [None, 5, 5.5, True, [], [[]], [1, 2, 3], [[[1, 2], [3]]], [["a"]], [[[None]]],
                                      [[[256, 0, 0]]], [[[-1, 0, 0]]], [[[0.5, 0.5, 0.5]]], [[[10**400, 1.5, 1]]],
                                      [[[float("nan")] * SIZE] * SIZE] * 3, [[[1e300] * SIZE] * SIZE] * 3],
                         ids=repr)
def test_v1_wrong_instance_is_named(instance: Any) -> None:
    assert refused(v1(PNG64, instance), JSON).startswith("instances[1]: ")


def test_v1_one_image_an_instance() -> None:
    batch = base64.b64encode(npy(np.zeros((2, 4, 4, 3), np.uint8))).decode()
    assert "instances[0]: one image is expected here, not a batch of 2" in refused(v1(batch), JSON)


# KServe V2

def test_v2_bytes() -> None:
    request = ask(v2("BYTES", [2], [PNG64, PNG64], id="seven"), JSON)
    assert (request.protocol, request.id, len(request.items)) == ("v2", "seven", 2)
    assert np.array_equal(request.items[1], PHOTO)


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("batched", [False, True], ids=["one", "batch"])
def test_v2_uint8(nested: bool, batched: bool) -> None:
    pixels = np.stack([PHOTO[:5], PHOTO[5:10]]) if batched else PHOTO[:5]
    request = ask(v2("UINT8", list(pixels.shape), (pixels if nested else pixels.ravel()).tolist()), JSON)
    assert [item.dtype for item in request.items] == [np.uint8] * (2 if batched else 1)
    assert np.array_equal(np.stack(request.items), pixels.reshape(-1, 5, 60, 3))


def test_v2_fp32() -> None:
    tensor = np.random.default_rng(0).normal(size=(2, 3, SIZE, SIZE)).astype(np.float32)
    request = ask(v2("FP32", [2, 3, SIZE, SIZE], tensor.ravel().tolist()), JSON)
    assert request.items[0].dtype == np.float32
    assert np.array_equal(np.stack(request.items), tensor)


@pytest.mark.parametrize("identity, expected", [(None, None), ("", ""), ("a-1", "a-1"), (7, "7")])
def test_v2_id_is_handed_back(identity: Any, expected: str | None) -> None:
    assert ask(v2("BYTES", [1], [PNG64], id=identity), JSON).id == expected


PIXELS = [10, 20, 30]
WRONG_V2 = {
    "no inputs": {"inputs": []},
    "inputs is no list": {"inputs": {"data": []}},
    "two tensors": {"inputs": v2("UINT8", [1, 1, 3], PIXELS)["inputs"] * 2},
    "tensor is no object": {"inputs": [5]},
    "empty tensor object": {"inputs": [{}]},
    "no data": {"inputs": [{"datatype": "UINT8", "shape": [1, 1, 3]}]},
    "data is text": v2("BYTES", [1], PNG64),
    "data is empty": v2("BYTES", [0], []),
    "datatype unknown": v2("INT64", [1, 1, 3], PIXELS),
    "datatype in lower case": v2("uint8", [1, 1, 3], PIXELS),
    "datatype is a list": v2(["UINT8"], [1, 1, 3], PIXELS),
    "datatype is an object": v2({}, [1, 1, 3], PIXELS),
    "no datatype": v2(None, [1, 1, 3], PIXELS),
    "no shape": v2("UINT8", None, PIXELS),
    "shape is text": v2("UINT8", "1,1,3", PIXELS),
    "shape is a number": v2("UINT8", 3, PIXELS),
    "shape with a fraction": v2("UINT8", [1, 1, 3.0], PIXELS),
    "shape below zero": v2("UINT8", [-1, 1, 3], PIXELS),
    "shape with true": v2("UINT8", [True, 1, 3], PIXELS),
    "shape nested": v2("UINT8", [[1, 1, 3]], PIXELS),
    "shape of terabytes": v2("UINT8", [10**30, 1, 3], PIXELS),
    "shape does not fit": v2("UINT8", [1, 2, 3], PIXELS),
    "BYTES shape does not fit": v2("BYTES", [5], [PNG64]),
    "UINT8 above 255": v2("UINT8", [1, 1, 3], [256, 0, 0]),
    "UINT8 below 0": v2("UINT8", [1, 1, 3], [-1, 0, 0]),
    "UINT8 with fractions": v2("UINT8", [1, 1, 3], [0.1, 0.5, 0.9]),
    "UINT8 of texts": v2("UINT8", [1, 1, 3], ["1", "2", "3"]),
    "UINT8 of truths": v2("UINT8", [1, 1, 3], [True, False, True]),
    "UINT8 ragged": v2("UINT8", [1, 1, 3], [[1, 2], [3]]),
    "UINT8 channels first": v2("UINT8", [3, 8, 8], [0] * 192),
    "FP32 of texts": v2("FP32", [3, SIZE, SIZE], ["0.5"] * (3 * SIZE * SIZE)),
    "FP32 of another size": v2("FP32", [3, 8, 8], [0.5] * 192),
    "FP32 beyond float32": v2("FP32", [3, SIZE, SIZE], [1e300] * (3 * SIZE * SIZE)),
    "BYTES of numbers": v2("BYTES", [1], [5]),
    "BYTES of null": v2("BYTES", [1], [None]),
    "BYTES wrong": v2("BYTES", [1], ["?"]),
    "BYTES with a batch inside": v2("BYTES", [1], [base64.b64encode(npy(np.zeros((2, 4, 4, 3), np.uint8))).decode()]),
    "too many": v2("BYTES", [MAX_ITEMS + 1], [PNG64] * (MAX_ITEMS + 1)),
    "too many in a tensor": v2("UINT8", [MAX_ITEMS + 1, 1, 1, 3], PIXELS * (MAX_ITEMS + 1)),
}


@pytest.mark.parametrize("case", WRONG_V2)
def test_v2_wrong_is_named(case: str) -> None:
    message = refused(WRONG_V2[case], JSON)
    assert message.startswith("inputs")
    assert len(message) < 300


@pytest.mark.parametrize("case, field", [("datatype is a list", "inputs[0].datatype"), ("no shape", "inputs[0].shape"),
                                         ("UINT8 with fractions", "inputs[0].data"),
                                         ("BYTES wrong", "inputs[0].data[0]"),
                                         ("BYTES shape does not fit", "inputs[0].data")])
def test_v2_names_the_very_field(case: str, field: str) -> None:
    assert refused(WRONG_V2[case], JSON).startswith(f"{field}: ")


# tensors in .npy

def test_npy_pixels_of_any_size() -> None:
    assert np.array_equal(only(ask(npy(PHOTO))), PHOTO)


def test_npy_fortran_order() -> None:
    assert np.array_equal(only(ask(npy(np.asfortranarray(PHOTO)))), PHOTO)


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", ">f8", "<f2"])
def test_npy_floats_become_native_float32(kind: str) -> None:
    tensor = np.random.default_rng(0).integers(-8, 8, (3, SIZE, SIZE)).astype(np.float32)
    item = only(ask(npy(tensor.astype(kind))))
    assert item.dtype == np.float32
    assert item.dtype.isnative
    assert np.array_equal(item, tensor)


def test_npy_batch() -> None:
    request = ask(npy(np.stack([PHOTO, PHOTO])))
    assert request.many
    assert len(request.items) == 2
    assert not ask(npy(PHOTO)).many
    assert ask(npy(PHOTO[None])).many  # a batch of one is answered with a list of one


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_every_version(version: tuple[int, int]) -> None:
    assert only(ask(npy_of(header_of("(1, 1, 3)"), b"\1\2\3", version))).tolist() == [[[1, 2, 3]]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_npy_nan_and_infinity(value: float) -> None:
    tensor = np.zeros((3, SIZE, SIZE), np.float32)
    tensor[1, 2, 3] = value
    assert "NaN or infinity" in refused(npy(tensor))


@pytest.mark.filterwarnings("error")  # no warning for the worker's log either
def test_npy_float64_beyond_float32() -> None:
    assert "NaN or infinity" in refused(npy(np.full((3, SIZE, SIZE), 1e300)))


class _MakesAFile:
    """Something that writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_npy_objects_are_refused_without_unpickling(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    array = np.empty((1, 1, 3), dtype=object)
    array[:] = _MakesAFile(trace)
    message = refused(npy(array))
    assert ".npy" in message
    assert not trace.exists()
    np.load(io.BytesIO(npy(array)), allow_pickle=True)
    assert trace.exists()  # so the trap works


@pytest.mark.parametrize("shape", ["(1000000, 1000000, 3)", "(4, 9999999999999999999999, 3)"])
def test_npy_header_that_promises_terabytes(shape: str) -> None:
    assert ".npy" in refused(npy_of(header_of(shape), b"\1\2\3"))


BROKEN_NPY = {
    "magic alone": b"\x93NUMPY",
    "no length": b"\x93NUMPY\1\0",
    "header cut": npy(PHOTO)[:40],
    "data cut": npy(PHOTO)[:-1],
    "data too long": npy(PHOTO) + b"\0",
    "version": npy_of("{}", version=(9, 9)),
    "no dictionary": npy_of("5"),
    "open bracket": npy_of("{'descr': ("),
    "many brackets": npy_of("(" * 5_000),
    "many signs": npy_of("-" * 9_000 + "1"),
    "header of 64 kB": npy_of(" " * 65_000),
    "null byte": npy_of("\0\0"),
    "empty type": npy_of(header_of("(3,)", "()")),
    "type of types": npy_of(header_of("(3,)", "[()]")),
    "type is a number": npy_of(header_of("(3,)", "5")),
    "type with fields": npy_of(header_of("(1,)", "[('r', '|u1'), ('g', '|u1'), ('b', '|u1')]"), b"\1\2\3"),
    "type of no bytes": npy_of(header_of("(3,)", "'|S0'")),
    "shape below zero": npy_of(header_of("(-1, -1, 3)"), b"\1\2\3"),
    "shape of nothing": npy_of(header_of("(0, 1, 3)")),
    "shape is text": npy_of(header_of("'abc'")),
    "call": npy_of("__import__('os').system('true')"),
}


@pytest.mark.parametrize("case", BROKEN_NPY)
def test_npy_broken(case: str) -> None:
    message = refused(BROKEN_NPY[case])
    assert message.startswith("body: ")
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("array", [
    np.zeros((SIZE, SIZE), np.uint8), np.zeros((3, SIZE, SIZE), np.uint8), np.zeros((4, 4, 4), np.uint8),
    np.zeros((0, 4, 3), np.uint8), np.zeros((0, 4, 4, 3), np.uint8), np.zeros((SIZE, SIZE, 3), np.float32),
    np.zeros((3, SIZE, SIZE + 1), np.float32), np.zeros((3, SIZE, SIZE), np.int64), np.zeros((4, 4, 3), bool),
    np.zeros((1, 1, 4, 4, 3), np.uint8), np.array(7, np.uint8), np.array(7.0), np.zeros((4, 4, 3), "S1"),
    np.zeros((4, 4, 3), np.complex64), np.zeros((4, 4, 3), "M8[s]")],
    ids=lambda array: f"{array.dtype} {array.shape}")
def test_npy_of_another_shape_or_type(array: NDArray[Any]) -> None:
    assert refused(npy(array)).startswith("body: ")


# tensors in safetensors

def test_safetensors() -> None:
    assert np.array_equal(only(ask(safetensors.numpy.save({"image": PHOTO}))), PHOTO)
    tensor = np.random.default_rng(0).normal(size=(2, 3, SIZE, SIZE)).astype(np.float32)
    request = ask(safetensors.numpy.save({"x": tensor}))
    assert request.many
    assert np.array_equal(np.stack(request.items), tensor)


def test_safetensors_with_two_tensors_names_them() -> None:
    data = safetensors.numpy.save({"left": PHOTO, "right": PHOTO})
    assert "2 tensors (left, right); one is expected" in refused(data)


def test_safetensors_of_a_type_that_numpy_has_not() -> None:
    data = safetensors.torch.save({"x": torch.zeros(3, SIZE, SIZE, dtype=torch.bfloat16)})
    assert refused(data) == "body: safetensors of type BF16; F32 or U8 is expected"


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"\0",
                                    lambda data: data[:9] + b"?" + data[10:], lambda data: data.replace(b"U8", b"Z9")],
                         ids=["cut", "too long", "header", "type"])
def test_safetensors_damaged(damage: Any) -> None:
    message = refused(damage(safetensors.numpy.save({"image": PHOTO})))
    assert "safetensors" in message
    assert "\n" not in message


# P28: sizes

def test_p28_pixels_are_counted_before_they_are_decoded() -> None:
    size = 100 * 100
    assert only(ask(encoded(PILImage.new("L", (100, 100))))).size == 3 * size
    message = refused(encoded(PILImage.new("L", (101, 100))), code=413)
    assert message == f"body: 101×100 pixels; at most {size} are accepted"


def test_p28_a_bomb_costs_nothing() -> None:
    bomb = encoded(PILImage.new("1", (10_000, 10_000)))
    assert len(bomb) < 30_000
    assert "10000×10000" in refused(bomb, code=413)


def test_p28_tensors_count_too() -> None:
    assert "101×100" in refused(npy(np.zeros((100, 101, 3), np.uint8)), code=413)


@pytest.mark.parametrize("wrap", [lambda texts: v1(*texts), lambda texts: v2("BYTES", [len(texts)], texts)],
                         ids=["v1", "v2"])
def test_p28_small_files_that_are_large_together(wrap: Any) -> None:
    text = base64.b64encode(encoded(PILImage.new("1", (60, 60)))).decode()
    assert len(ask(wrap([text] * 2), JSON).items) == 2
    message = refused(wrap([text] * MAX_ITEMS), JSON, code=413)
    assert "[2]" in message  # and not the last: nothing after the limit is decoded
    assert "10800 pixels up to here; at most 10000 are accepted in one request" in message


@pytest.mark.parametrize("count, many", [(1, True), (MAX_ITEMS, True)])
def test_p28_items(count: int, many: bool) -> None:
    assert len(ask(npy(np.zeros((count, 2, 2, 3), np.uint8))).items) == count


def test_p28_too_many_items() -> None:
    assert f"1 to {MAX_ITEMS}" in refused(npy(np.zeros((MAX_ITEMS + 1, 2, 2, 3), np.uint8)))


# P29: image modes

def laid_on(colour: NDArray[Any], alpha: NDArray[Any]) -> NDArray[Any]:
    """Colour and alpha on SPEC.background, in exact arithmetic."""
    weight = alpha[..., None] / 255.0
    return np.asarray(colour * weight + np.asarray(SPEC.background) * (1.0 - weight))


ALPHA = np.linspace(0, 255, PHOTO.shape[1]).astype(np.uint8)[None].repeat(PHOTO.shape[0], 0)


def test_p29_rgb_is_what_pillow_says() -> None:
    assert np.array_equal(decode(PNG, SPEC), PHOTO)
    with PILImage.open(io.BytesIO(JPEG)) as image:
        assert np.array_equal(decode(JPEG, SPEC), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_p29_grey_equals_its_rgb_triple(kind: str) -> None:
    grey = decode(encoded(GREY, kind), SPEC)
    assert grey.shape == (*PHOTO.shape[:2], 3)
    assert np.array_equal(grey[..., 0], grey[..., 1])
    assert np.array_equal(grey[..., 0], grey[..., 2])
    if kind == "PNG":
        assert np.array_equal(grey, decode(encoded(GREY.convert("RGB")), SPEC))


@pytest.mark.parametrize("kind, options", [("PNG", {}), ("WEBP", {"lossless": True, "exact": True})])
def test_p29_rgba_on_the_background(kind: str, options: dict[str, Any]) -> None:
    image = PILImage.fromarray(np.dstack([PHOTO, ALPHA]))
    found = decode(encoded(image, kind, **options), SPEC)
    assert np.abs(found - laid_on(PHOTO, ALPHA)).max() <= 1


def test_p29_la_on_the_background() -> None:
    grey = np.asarray(GREY)
    image = PILImage.merge("LA", [GREY, PILImage.fromarray(ALPHA)])
    found = decode(encoded(image), SPEC)
    assert np.abs(found - laid_on(grey[..., None], ALPHA)).max() <= 1


def test_p29_transparent_pixels_hide_their_colour() -> None:
    image = PILImage.fromarray(np.dstack([PHOTO, np.zeros_like(ALPHA)]))
    assert (decode(encoded(image), SPEC) == SPEC.background).all()


def test_p29_palette() -> None:
    palette = RGB.quantize(16)
    assert np.array_equal(decode(encoded(palette), SPEC), np.asarray(palette.convert("RGB")))


def test_p29_palette_with_transparency() -> None:
    palette = RGB.quantize(16)
    hidden = np.asarray(palette) == 3
    assert 0 < hidden.sum() < hidden.size
    found = decode(encoded(palette, transparency=3), SPEC)
    assert (found[hidden] == SPEC.background).all()
    assert np.array_equal(found[~hidden], np.asarray(palette.convert("RGB"))[~hidden])
    steps = bytes(range(0, 256, 16))  # one alpha a colour
    found = decode(encoded(palette, transparency=steps), SPEC)
    alpha = np.frombuffer(steps, np.uint8)[np.asarray(palette)]
    assert np.abs(found - laid_on(np.asarray(palette.convert("RGB")), alpha)).max() <= 1


@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
def test_p29_one_transparent_colour(mode: str) -> None:
    levels = np.asarray(GREY).astype(np.uint16) * 257
    image = PILImage.fromarray(levels) if mode == "I;16" else RGB.convert(mode)
    chosen = image.getpixel((0, 0))
    found = decode(encoded(image, transparency=chosen), SPEC)
    assert tuple(found[0, 0]) == SPEC.background
    hidden = (np.asarray(image).reshape(*PHOTO.shape[:2], -1) == np.asarray(chosen)).all(-1)
    assert np.array_equal((found == SPEC.background).all(-1), hidden)


def test_p29_one_bit() -> None:
    image = GREY.convert("1")
    expected = np.asarray(image).astype(np.uint8)[..., None].repeat(3, -1) * 255
    assert np.array_equal(decode(encoded(image), SPEC), expected)


def test_p29_sixteen_bits_give_their_high_byte() -> None:
    levels = np.arange(0, 65_536, 16, dtype=np.uint16).reshape(64, 64)
    found = decode(encoded(PILImage.fromarray(levels)), SPEC)
    assert np.array_equal(found, (levels >> 8).astype(np.uint8)[..., None].repeat(3, -1))


def test_p29_cmyk_jpeg() -> None:
    data = encoded(RGB.convert("CMYK"), "JPEG", quality=95, subsampling=0)
    assert np.abs(decode(data, SPEC).astype(int) - PHOTO).mean() < 5


@pytest.mark.parametrize("kind, options", [("WEBP", {"lossless": True}), ("GIF", {}), ("PNG", {})])
def test_p29_an_animation_gives_its_first_frame(kind: str, options: dict[str, Any]) -> None:
    frames = [RGB.quantize(64).convert("RGB"), PILImage.new("RGB", RGB.size, (255, 0, 0)), RGB.transpose(
        PILImage.Transpose.FLIP_LEFT_RIGHT)]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=100, **options)
    assert np.array_equal(decode(data, SPEC), np.asarray(frames[0]))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "MPO"])
def test_p29_exif_orientation(orientation: int, kind: str) -> None:
    exif = PILImage.Exif()
    exif[0x0112] = orientation
    # MPO, with a second picture in it, is what many phones write into a .jpg
    more = {"save_all": True, "append_images": [RGB]} if kind == "MPO" else {}
    data = encoded(RGB, kind, exif=exif, **more)
    with PILImage.open(io.BytesIO(data)) as image:
        as_it_lies, upright = np.asarray(image), np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(decode(data, SPEC), upright)
    assert np.array_equal(decode(data, dataclasses.replace(SPEC, exif=False)), as_it_lies)


@pytest.mark.filterwarnings("ignore::UserWarning")  # pytest lifts the handlers' own filter
def test_p29_a_damaged_exif_spoils_no_photo() -> None:
    exif = PILImage.Exif()
    exif.update({0x0112: 6, 0x010F: "a camera maker", 0x011A: 72.0, 0x0131: "software"})
    whole, generator = exif.tobytes(), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for place in generator.integers(6, len(whole), 3):
            damaged[place] = generator.integers(256)
        data = encoded(RGB, "JPEG", exif=bytes(damaged))
        assert decode(data, SPEC).shape in ((40, 60, 3), (60, 40, 3))


@pytest.mark.parametrize("kind, options", [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}),
                                           ("WEBP", {"lossless": True}), ("GIF", {})])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.95])
def test_p29_truncated(kind: str, options: dict[str, Any], kept: float) -> None:
    data = encoded(RGB, kind, **options)
    assert f"({int(len(data) * kept)} bytes)" in refused(data[:int(len(data) * kept)])


@pytest.mark.parametrize("data", [b"ten bytes!", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF", b"GIF89a",
                                  b"BM" + b"\0" * 60, b"%PDF-1.7", b"\0" * 100, b"{}"],
                         ids=["text", "PNG", "JPEG", "WebP", "GIF", "BMP", "PDF", "zeros", "JSON"])
def test_p23_what_is_no_photo(data: bytes) -> None:
    assert f"({len(data)} bytes)" in refused(data)


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "ICO", "PPM"])
def test_other_formats_are_refused_by_naming_the_known(kind: str) -> None:
    assert "not a JPEG, PNG, WebP, GIF, .npy or safetensors" in refused(encoded(RGB, kind))


def test_p29_extreme_aspect() -> None:
    assert decode(encoded(RGB.resize((MAX_ASPECT, 1))), SPEC).shape == (1, MAX_ASPECT, 3)
    assert f"the longer side may be {MAX_ASPECT} times" in refused(encoded(RGB.resize((MAX_ASPECT + 1, 1))))
    assert f"the longer side may be {MAX_ASPECT} times" in refused(npy(np.zeros((MAX_ASPECT + 1, 1, 3), np.uint8)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_p29_a_photo_of_one_pixel(kind: str) -> None:
    assert decode(encoded(RGB.resize((1, 1)), kind), SPEC).shape == (1, 1, 3)


# whatever comes

def never_anything_but_input_error(body: Any, kind: str) -> None:
    try:
        request = ask(body, kind)
    except InputError as error:
        assert error.code in (400, 413)
        assert 0 < len(str(error)) < 2_000
        json.dumps(str(error)).encode()
        return
    assert 1 <= len(request.items) <= MAX_ITEMS
    for item in request.items:
        pixels = item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] == 3 and item.size > 0
        assert pixels or (item.dtype == np.float32 and item.shape == (3, SIZE, SIZE))


STARTS = [b"", PNG[:60], JPEG[:200], b"GIF89a\x05\0\x05\0", encoded(RGB, "WEBP")[:40],
          b"\x93NUMPY\1\0\x50\0{'descr': '|u1',", b"\x93NUMPY\2\0", b"\x20\0\0\0\0\0\0\0{\"a\":"]


@FEW
@given(st.sampled_from(STARTS), st.binary(max_size=300), st.sampled_from([RAW, JSON, "image/png", ""]))
def test_fuzz_bytes(start: bytes, rest: bytes, kind: str) -> None:
    never_anything_but_input_error(start + rest, kind)


@FEW
@given(st.sampled_from([PNG, JPEG, encoded(RGB, "GIF"), encoded(RGB, "WEBP"), npy(PHOTO), encoded(RGB.quantize(8)),
                        safetensors.numpy.save({"image": PHOTO})]), st.data())
def test_fuzz_damaged_files(whole: bytes, data: st.DataObject) -> None:
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        # headers are where it hurts
        place = data.draw(st.integers(0, min(200, len(damaged) - 1)) | st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    never_anything_but_input_error(bytes(damaged), RAW)


@FEW
@given(st.text(alphabet="{}()[]'\":,-+ \n\0abcu1<f48descrshapefortran_orderTrueFalse0123456789", max_size=80))
@example("{'descr': (")
@example("-" * 9_000 + "1")
def test_fuzz_npy_headers(header: str) -> None:
    never_anything_but_input_error(npy_of(header, b"\1\2\3"), RAW)


WORDS = st.sampled_from(["data", "instances", "inputs", "b64", "image", "datatype", "shape", "id", "BYTES", "UINT8",
                         "FP32", "", PNG64, "data:;base64,AAAA"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) |
                      st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4), max_leaves=12)
BODIES = (VALUES | VALUES.map(lambda value: {"instances": [value]}) | VALUES.map(lambda value: {"data": value}) |
          st.fixed_dictionaries({"inputs": st.lists(st.fixed_dictionaries(
              {}, optional={"datatype": VALUES, "shape": VALUES | st.lists(st.integers(-2, 4), max_size=4),
                            "data": VALUES | st.lists(SCALARS, max_size=6)}), max_size=2)}))


@FEW
@given(BODIES)
@example({"instances": [5]})
@example({"inputs": [{"datatype": [], "shape": [1], "data": [1]}]})
@example({"inputs": [{"datatype": "BYTES", "shape": [1], "data": [{"data": {"data": 1}}]}]})
@example({"\ud800": "\ud800"})
def test_fuzz_json(body: Any) -> None:
    never_anything_but_input_error(body, JSON)
    never_anything_but_input_error(json.dumps(body).encode(), JSON)


@pytest.mark.parametrize("row", [{"x" * 10_000: b""}, {f"{index}" * 10_000: b"" for index in range(20)}],
                         ids=["one field", "many fields"])
def test_a_message_repeats_no_long_name(row: dict[str, bytes]) -> None:
    for kind in (FORM, "application/x-www-form-urlencoded; boundary=" + "x" * 10_000):
        with pytest.raises(InputError) as caught:
            parse(row, {"Content-Type": kind}, SPEC)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("depth", [10, 100, 500, 900, 960, 990, 100_000])
@pytest.mark.parametrize("around", [('{"data":', "}"), ("[", "]"), ('{"instances":[', "]}")])
def test_nested_json_of_any_depth(depth: int, around: tuple[str, str]) -> None:
    never_anything_but_input_error((around[0] * depth + "1" + around[1] * depth).encode(), JSON)
