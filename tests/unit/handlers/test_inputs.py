"""Whatever a client sends: a photo, a tensor, or an InputError that names the field."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save as safetensors

from handlers.errors import InputError
from handlers.inputs import Request, decode, parse, unbase64
from handlers.transforms import InputSpec

SPEC = InputSpec(32, 36, "bicubic", (0.5,) * 3, (0.5,) * 3, True, (255, 255, 255), 100_000)
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, kind, **options)
    return stream.getvalue()


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


PHOTO = encoded(PIXELS)
B64 = base64.b64encode(PHOTO).decode()


def ask(body: Any, kind: str = "application/octet-stream") -> Request:
    data = json.dumps(body).encode() if isinstance(body, dict | list) else body
    return parse({"body": bytearray(data)}, {"Content-Type": "application/json" if data is not body else kind}, SPEC)


@pytest.mark.parametrize("row", [{"body": PHOTO}, {"data": PHOTO}, {"anything": PHOTO}, {"x": b"1", "image": PHOTO}])
def test_p26_a_body_or_any_single_field(row: dict[str, bytes]) -> None:
    assert np.array_equal(parse(row, {}, SPEC).items[0], PIXELS)


@pytest.mark.parametrize("header", ["Content-Type", "content-type", "CONTENT-TYPE"])
def test_p26_a_form_by_mistake_is_explained(header: str) -> None:
    with pytest.raises(InputError, match="application/octet-stream"):
        parse({"\x89PNG": b"x"}, {header: "application/x-www-form-urlencoded"}, SPEC)


@pytest.mark.parametrize(("body", "kind", "words"), [
    (b"", "application/octet-stream", "empty"),
    (b"", "application/json", "empty"),
    (b'{"data": "\xe9"}', "application/json", "UTF-8"),
    (b"{", "application/json; charset=utf-8", "JSON"),
    (b"[1]", "application/json", "JSON object"),
    (PHOTO[:200], "image/png", "truncated"),
    (b"ten bytes!", "", "not a JPEG"),
], ids=["empty", "empty json", "latin-1", "broken json", "a list", "truncated", "text"])
def test_p26_what_is_no_photo_is_named(body: bytes, kind: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ask(body, kind)


@pytest.mark.parametrize("key", ["data", "body", "image", "image_bytes", "b64"])
def test_p27_keys(key: str) -> None:
    assert np.array_equal(ask({key: B64}).items[0], PIXELS)
    assert np.array_equal(ask({"instances": [{key: B64}, {"image": {"b64": B64}}, B64]}).items[2], PIXELS)


@pytest.mark.parametrize("dialect", [
    lambda text: "\n".join(text[i:i + 76] for i in range(0, len(text), 76)),
    lambda text: text.replace("+", "-").replace("/", "_"), lambda text: text.rstrip("="),
    lambda text: "data:image/png;base64," + text], ids=["lines", "url-safe", "no padding", "data:"])
def test_p27_base64_dialects(dialect: Any) -> None:
    for payload in (PHOTO, PHOTO + b"\0", PHOTO + b"\0\0"):
        assert unbase64(dialect(base64.b64encode(payload).decode()), "data") == payload


@pytest.mark.parametrize(("body", "field"), [
    ({"instances": [{"data": B64}, {"data": "!"}]}, r"instances\[1\]\.data"),
    ({"instances": []}, "instances"), ({"instances": [{"x": 1}]}, r"instances\[0\]"), ({"x": 1}, "data, body"),
    ({"data": 7}, "data"), ({"inputs": []}, "inputs"),
    ({"inputs": [{"datatype": "INT64", "shape": [1], "data": [1]}]}, "datatype"),
    ({"inputs": [{"datatype": "FP32", "shape": [2], "data": [1]}]}, r"inputs\[0\]\.data"),
    ({"inputs": [{"datatype": "UINT8", "shape": [1, 1, 3], "data": [1, 2, 300]}]}, r"inputs\[0\]\.data"),
])
def test_p27_errors_name_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        ask(body)


def test_kserve_v2_carries_bytes_pixels_and_floats() -> None:
    text = {"id": "a", "inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "data": [B64, B64]}]}
    pixels = {"inputs": [{"datatype": "UINT8", "shape": [1, *PIXELS.shape], "data": PIXELS.ravel().tolist()}]}
    floats = {"inputs": [{"datatype": "FP32", "shape": [2, 3, 32, 32], "data": [0.5] * 6144}]}
    found = ask(text)
    assert (found.protocol, found.id, len(found.items)) == ("v2", "a", 2)
    assert np.array_equal(ask(pixels).items[0], PIXELS)
    assert [item.shape for item in ask(floats).items] == [(3, 32, 32)] * 2


@pytest.mark.parametrize("array", [PIXELS, np.asfortranarray(PIXELS)], ids=["C", "Fortran"])
def test_npy_pixels(array: Any) -> None:
    assert np.array_equal(ask(npy(array)).items[0], PIXELS)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
def test_npy_and_safetensors_floats(dtype: str) -> None:
    floats = np.full((3, 32, 32), 0.25, dtype)
    assert ask(npy(floats)).items[0].dtype == np.float32
    assert np.array_equal(ask(safetensors({"x": floats.astype(np.float32)})).items[0], floats.astype(np.float32))


@pytest.mark.parametrize("body", [
    npy(np.full((3, 32, 32), np.nan, np.float32)), npy(np.zeros((3, 16, 16), np.float32)), npy(np.zeros(4)),
    npy(PIXELS)[:-1], npy(PIXELS).replace(b"(40, 60, 3)", b"(99999, 9, 9)"[:11]), npy(np.array([{}], dtype=object)),
    safetensors({"a": PIXELS, "b": PIXELS}), safetensors({"a": PIXELS})[:-5], npy(np.zeros((65, 1, 1, 3), np.uint8)),
], ids=["nan", "another size", "a vector", "cut off", "promises more", "objects", "two tensors", "damaged", "too many"])
def test_tensors_that_are_none(body: bytes) -> None:
    with pytest.raises(InputError):
        ask(body)


def test_p28_too_many_pixels_are_refused_before_decoding() -> None:
    with pytest.raises(InputError, match="100000") as refused:
        ask(encoded(Image.new("1", (4000, 4000))))
    assert refused.value.code == 413
    with pytest.raises(InputError, match="longer side"):
        ask(encoded(Image.new("L", (1000, 2))))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
def test_p29_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.fromarray((np.arange(1200, dtype=np.uint16) * 50).reshape(30, 40)) if mode == "I;16" \
        else Image.fromarray(PIXELS).convert(mode)
    found = decode(encoded(image, "JPEG" if mode == "CMYK" else "PNG"), SPEC)
    assert found.ndim == 3 and found.shape[2] == 3 and found.dtype == np.uint8


def test_p29_grey_equals_its_triple_and_transparency_is_laid_on_the_background() -> None:
    grey = PIXELS[..., 0]
    assert np.array_equal(decode(encoded(grey), SPEC), decode(encoded(np.repeat(grey[..., None], 3, 2)), SPEC))
    assert (decode(encoded(np.zeros((4, 4, 4), np.uint8)), SPEC) == 255).all()
    deep = Image.fromarray(np.full((4, 4), 0x8040, np.uint16))
    assert (decode(encoded(deep), SPEC) == 0x80).all()


def test_p29_animations_give_their_first_frame_and_exif_turns() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP"):
        found = decode(encoded(frames[0], kind, save_all=True, append_images=frames[1:]), SPEC)
        assert found[0, 0, 0] > 200 > 50 > found[0, 0, 2]
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded(PIXELS, "JPEG", exif=exif), SPEC).shape == (60, 40, 3)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_answered(data: bytes) -> None:
    for prefix in (b"", b"\x93NUMPY\x01\x00", PHOTO[:30], b"\xff\xd8\xff", b"RIFF\x20\0\0\0WEBP"):
        with contextlib.suppress(InputError):
            parse({"body": prefix + data}, {}, SPEC)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.integers(),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
                        st.sampled_from(["instances", "inputs", "data", "b64", "shape", "datatype", "id"]), inner,
                        max_size=4), max_leaves=12))
@settings(max_examples=200, deadline=None)
def test_any_json_is_answered(value: Any) -> None:
    with contextlib.suppress(InputError):
        parse({"body": json.dumps(value).encode()}, {"content-type": "application/json"}, SPEC)
