"""The short way from a JPEG to pixels gives what the long one gives, or leaves the photo to it."""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image as PILImage

from handlers import inputs, jpeg
from handlers.errors import InputError
from handlers.transforms import InputSpec, Preprocess
from models.datasets import load_photo

pytestmark = [pytest.mark.skipif(jpeg._library() is None, reason="simplejpeg is not installed"),
              pytest.mark.filterwarnings("ignore::UserWarning")]  # pytest lifts the handlers' own filter

SPEC = InputSpec(size=48, resize=56, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5,) * 3, exif=True,
                 background=(255,) * 3, max_pixels=1_000_000)
FAST = dataclasses.replace(SPEC, decode="fast")
COFFEE = PILImage.fromarray(load_photo("coffee"))
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
Pixels = NDArray[np.uint8]


def photo(width: int, height: int, mode: str = "RGB", kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    COFFEE.resize((width, height)).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


@contextmanager
def without_simplejpeg() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jpeg, "_library", lambda: None)
        yield


def by_pillow(data: bytes, spec: InputSpec = SPEC) -> Pixels:
    with without_simplejpeg():
        assert jpeg.decode(data, spec) is None
        return inputs.decode(data, spec)


def outcome(data: bytes, spec: InputSpec) -> tuple[Any, ...]:
    """What comes of a photo: shape and pixels, or the refusal's code and words."""
    try:
        pixels = inputs.decode(data, spec)
    except InputError as error:
        return error.code, str(error)
    return pixels.shape, pixels.tobytes()


def same_by_either(data: bytes, spec: InputSpec = SPEC) -> None:
    with without_simplejpeg():
        expected = outcome(data, spec)
    assert outcome(data, spec) == expected


def with_segments(data: bytes, *segments: tuple[int, bytes]) -> bytes:
    """A JPEG with more segments right after its start."""
    made = b"".join(struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body for marker, body in segments)
    return data[:2] + made + data[2:]


def exif(orientation: int, order: str = "<", kind: int = 3, count: int = 1, before: bytes = b"") -> bytes:
    """An EXIF block with one entry, or with what stands before it."""
    head = b"Exif\0\0" + (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    entry = struct.pack(order + "HHI", 0x0112, kind, count) + (
        struct.pack(order + "HH", orientation, 0) if kind == 3 else struct.pack(order + "I", orientation))
    return head + struct.pack(order + "H", 1 + len(before) // 12) + before + entry + struct.pack(order + "I", 0)


def xmp(orientation: int) -> bytes:
    return (b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="'
            + str(orientation).encode() + b'"/></x:xmpmeta>')


PHOTO = photo(60, 40)


# pixels

@pytest.mark.parametrize("size", [(1, 1), (7, 9), (8, 8), (33, 31), (60, 40), (17, 64), (301, 200)])
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.parametrize("subsampling", [0, 1, 2, "grey"])
def test_p29_pixels_are_exactly_pillows(size: tuple[int, int], progressive: bool, subsampling: int | str) -> None:
    for quality in (5, 50, 75, 90, 100):
        options = {"mode": "L"} if subsampling == "grey" else {"subsampling": subsampling}
        data = photo(*size, quality=quality, progressive=progressive, **options)
        found = jpeg.decode(data, SPEC)
        assert found is not None and found.dtype == np.uint8 and found.flags.c_contiguous
        assert np.array_equal(found, by_pillow(data))


@pytest.mark.parametrize("order", ["<", ">"], ids=["II", "MM"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_p29_exif_orientation_is_pillows_business(orientation: int, order: str) -> None:
    data = with_segments(PHOTO, (0xE1, exif(orientation, order)))
    assert jpeg.orientation(data) == orientation
    assert (jpeg.decode(data, SPEC) is None) == (orientation != 1)
    assert inputs.decode(data, SPEC).shape[:2] == ((40, 60) if orientation < 5 else (60, 40))
    for spec in (SPEC, FAST, dataclasses.replace(SPEC, exif=False)):
        same_by_either(data, spec)
    assert jpeg.decode(data, dataclasses.replace(SPEC, exif=False)) is not None  # nobody asks for it


TURNED = {
    "two colour profiles before it": [(0xE2, b"ICC_PROFILE\0\1\2" + bytes(60_000)),
                                      (0xE2, b"ICC_PROFILE\0\2\2" + bytes(60_000)), (0xE1, exif(6))],
    "previews before it": [(0xE4, bytes(65_000)), (0xE5, bytes(65_000)), (0xE1, exif(6))],
    "the word in a comment before it": [(0xFE, b"Exif\0\0II*\0\x08\0\0\0\0\0"), (0xE1, exif(6))],
    "in two blocks": [(0xE1, exif(1)), (0xE1, exif(6))],
    "by XMP alone": [(0xE1, xmp(6))],
    "by XMP, EXIF silent": [(0xE1, exif(1).replace(b"\x12\x01", b"\x13\x01")), (0xE1, xmp(6))],
    "by XMP before a broken EXIF": [(0xE1, xmp(6)), (0xE1, b"Exif\0\0II*\0\xff\xff\0\0")],
    "EXIF against XMP": [(0xE1, exif(1)), (0xE1, xmp(6))],
    "as a long": [(0xE1, exif(6, kind=4))],
    "as two shorts": [(0xE1, exif(6, count=2))],
    "as three shorts, elsewhere": [(0xE1, exif(1, count=3))],
    "twice": [(0xE1, exif(6, before=struct.pack("<HHIHH", 0x0112, 3, 1, 1, 0)))],
    "after an entry that cannot be read": [(0xE1, exif(1, before=struct.pack("<HHII", 0x010F, 2, 99, 2**30)))],
    "in a block of another kind": [(0xE1, exif(6).replace(b"II*\0", b"II+\0"))],
    "in a block of no kind": [(0xE1, exif(6).replace(b"II*\0", b"IX*\0"))],
    "with the block's name twice": [(0xE1, b"Exif\0\0" + exif(6))],
}


@pytest.mark.parametrize("case", TURNED)
def test_p29_wherever_a_photo_says_how_it_is_turned(case: str) -> None:
    """It must never come out turned by one decoder and not by the other."""
    data = with_segments(PHOTO, *TURNED[case])
    assert jpeg.orientation(data) in range(9)
    for spec in (SPEC, FAST):
        same_by_either(data, spec)


@pytest.mark.parametrize("case", ["two colour profiles before it", "previews before it", "by XMP alone",
                                  "the word in a comment before it"])
def test_p29_these_are_turned(case: str) -> None:
    assert inputs.decode(with_segments(PHOTO, *TURNED[case]), SPEC).shape == (60, 40, 3)


def test_an_upright_photo_with_much_before_it_takes_the_short_way() -> None:
    data = with_segments(PHOTO, (0xE4, bytes(65_000)), (0xE1, xmp(1)), (0xE1, exif(1)))
    assert jpeg.orientation(data) == 1
    assert jpeg.decode(data, SPEC) is not None


@pytest.mark.parametrize("data", [
    photo(60, 40, mode="CMYK"), PHOTO[:200], PHOTO[:-len(PHOTO) // 3], PHOTO[:2] + PHOTO[200:], b"\xff\xd8\xff",
    photo(60, 40, kind="PNG"), photo(51, 1), photo(1, 51), b""],
    ids=["CMYK", "head alone", "cut", "headless", "start alone", "PNG", "wide", "high", "nothing"])
def test_p29_what_is_not_ordinary_is_left_to_pillow(data: bytes) -> None:
    assert jpeg.decode(data, SPEC) is None
    same_by_either(data)


def test_p28_pixels_are_counted_before_they_are_decoded() -> None:
    small = dataclasses.replace(SPEC, max_pixels=60 * 40 - 1)
    assert jpeg.decode(PHOTO, small) is None
    with pytest.raises(InputError, match="60×40 pixels; at most 2399") as caught:
        inputs.decode(PHOTO, small)
    assert caught.value.code == 413
    assert jpeg.decode(PHOTO, dataclasses.replace(SPEC, max_pixels=60 * 40)) is not None


@pytest.mark.parametrize("size", [(50, 1), (1, 50)])
def test_p29_the_thinnest_that_is_accepted(size: tuple[int, int]) -> None:
    assert np.array_equal(inputs.decode(photo(*size), SPEC), by_pillow(photo(*size)))


@pytest.mark.parametrize("tail", [b"\0", b"\xff\xd9", b"a trailer of some camera", PHOTO], ids=repr)
def test_bytes_after_the_photo_do_not_matter(tail: bytes) -> None:
    assert np.array_equal(inputs.decode(PHOTO + tail, SPEC), by_pillow(PHOTO))
    same_by_either(PHOTO + tail)


@pytest.mark.parametrize("spec", [SPEC, FAST], ids=["exact", "fast"])
def test_p29_a_phones_jpeg_with_another_behind_it(spec: InputSpec) -> None:
    data = photo(640, 480, kind="MPO", save_all=True, append_images=[COFFEE.resize((60, 40))])
    same_by_either(data, spec)
    assert jpeg.decode(data, spec) is not None


# whatever comes

@MANY
@given(st.data())
def test_p29_fuzz_exif_blocks(data: st.DataObject) -> None:
    order = data.draw(st.sampled_from("<>"))
    numbers = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 0x0112, 2**15, 2**16 - 1])
    entries = data.draw(st.lists(st.tuples(st.sampled_from([0x0112, 0x010F, 0x011A, 0x8769]), numbers,
                                           numbers | st.just(2**32 - 1), numbers, numbers), max_size=4))
    body = b"".join(struct.pack(order + "HHIHH", *entry) for entry in entries)
    block = bytearray(exif(data.draw(st.integers(0, 9)), order, data.draw(st.sampled_from([3, 4, 9])),
                           data.draw(st.sampled_from([0, 1, 2, 3])), body))
    for _ in range(data.draw(st.integers(0, 2))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    block = block[:data.draw(st.just(len(block)) | st.integers(0, len(block)))]
    more = [(0xE1, xmp(data.draw(st.integers(0, 9))))] if data.draw(st.booleans()) else []
    segments = data.draw(st.permutations([(0xE1, bytes(block)), *more]))
    whole = with_segments(PHOTO, *segments)
    assert jpeg.orientation(whole) in range(2**16)
    same_by_either(whole)


@MANY
@given(st.integers(0, 2), st.lists(st.tuples(st.integers(0, len(PHOTO) - 1) | st.integers(0, 640), st.integers(0, 255)),
                                   min_size=1, max_size=4), st.sampled_from([SPEC, FAST]))
def test_p29_fuzz_damaged_photos(kind: int, damage: list[tuple[int, int]], spec: InputSpec) -> None:
    whole = bytearray((PHOTO, with_segments(PHOTO, (0xE1, exif(1))), with_segments(PHOTO, (0xE1, xmp(1))))[kind])
    for place, value in damage:
        whole[place] = value
    jpeg.orientation(bytes(whole))
    same_by_either(bytes(whole), spec)


@MANY
@given(st.binary(max_size=60))
def test_orientation_of_any_bytes(rest: bytes) -> None:
    for data in (rest, b"\xff\xd8\xff\xe1" + rest, b"\xff\xd8\xff\xe1\0\x30Exif\0\0" + rest,
                 b"\xff\xd8\xff\xe1\0\x30Exif\0\0II*\0\x08\0\0\0" + rest):
        assert jpeg.orientation(data) in range(2**16)


# decode: fast

SIDES = [(56, 56), (57, 90), (111, 150), (112, 112), (113, 130), (150, 111), (223, 300), (224, 301), (447, 448),
         (449, 449), (500, 901), (40, 700)]


@pytest.mark.parametrize("size", SIDES)
def test_fast_still_only_shrinks(size: tuple[int, int]) -> None:
    width, height = size
    by = jpeg.divisor(height, width, FAST)
    found = jpeg.decode(photo(width, height), FAST)
    assert found is not None
    assert by in (1, 2, 4, 8)
    assert found.shape == (-(-height // by), -(-width // by), 3)
    assert by == 1 or min(found.shape[:2]) >= FAST.resize
    assert by == 8 or 2 * by * FAST.resize > min(size)  # and no more is decoded than needed


@pytest.mark.parametrize("size", SIDES)
def test_fast_is_the_same_by_either(size: tuple[int, int]) -> None:
    same_by_either(photo(*size), FAST)
    same_by_either(with_segments(photo(*size), (0xE1, exif(6))), FAST)


@pytest.mark.parametrize("size", [(60, 40), (111, 150), (400, 100)])
def test_fast_leaves_small_photos_exact(size: tuple[int, int]) -> None:
    assert np.array_equal(inputs.decode(photo(*size), FAST), inputs.decode(photo(*size), SPEC))


@pytest.mark.parametrize("name", ["coffee", "chelsea", "astronaut"])
def test_fast_is_close_to_exact(name: str) -> None:
    stream = io.BytesIO()
    PILImage.fromarray(load_photo(name)).save(stream, "JPEG", quality=92)
    fast, exact = (Preprocess(SPEC).pixels(inputs.decode(stream.getvalue(), spec)).float() for spec in (FAST, SPEC))
    assert float((fast - exact).abs().mean()) < 5.0
    assert not bool((fast == exact).all())


def test_exact_never_shrinks() -> None:
    assert inputs.decode(photo(600, 400), SPEC).shape == (400, 600, 3)
    assert jpeg.divisor(5000, 5000, SPEC) == 1


# without simplejpeg

def test_without_simplejpeg_everything_is_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(jpeg.importlib, "import_module", missing)
    jpeg._library.cache_clear()
    try:
        assert jpeg._library() is None
        assert jpeg.decode(PHOTO, SPEC) is None
        assert inputs.decode(PHOTO, SPEC).shape == (40, 60, 3)
        assert inputs.decode(photo(640, 480), FAST).shape == (60, 80, 3)
        with pytest.raises(InputError, match="truncated or damaged"):
            inputs.decode(PHOTO[:300], SPEC)
    finally:
        jpeg._library.cache_clear()
