"""Request bytes → arrays: photos, tensors, and the JSON bodies that carry either.

What is accepted:
  photos    JPEG, PNG, WebP, GIF (the first frame of an animation), as a raw body or the one file of a form
  tensors   .npy and safetensors: uint8 [H, W, 3] or [N, H, W, 3] pixels (any size: they are resized like a photo),
            float32 [3, S, S] or [N, 3, S, S], normalised as the model wants it (S: the network's size)
  JSON      {"data": BASE64} (also body, image, image_bytes, b64), where BASE64 encodes any of the above;
            KServe V1 {"instances": […]} and V2 {"inputs": […]} with BYTES, UINT8 or FP32

Everything else is an InputError that names the field. No format that can run code is read: .npy only without
objects in it.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags
from PIL import Image as PILImage

from handlers import jpeg
from handlers.errors import InputError
from handlers.transforms import InputSpec

KEYS = ("data", "body", "image", "image_bytes", "b64")
MAX_ITEMS = 64
MAX_ASPECT = jpeg.MAX_ASPECT
# Pixels are counted below, before anything is decoded, against the model's own limit.
PILImage.MAX_IMAGE_PIXELS = None
# Pillow's of damaged files that it can read all the same: each repeats the file's own numbers, so no filter stops them
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

Array = NDArray[Any]
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
_V2_TYPES = {"UINT8": np.uint8, "FP32": np.float32}
_UPRIGHT = {2: PILImage.Transpose.FLIP_LEFT_RIGHT, 3: PILImage.Transpose.ROTATE_180,
            4: PILImage.Transpose.FLIP_TOP_BOTTOM, 5: PILImage.Transpose.TRANSPOSE, 6: PILImage.Transpose.ROTATE_270,
            7: PILImage.Transpose.TRANSVERSE, 8: PILImage.Transpose.ROTATE_90}
_HOW = "send the file's bytes with -H 'Content-Type: application/octet-stream', or as a form with -F data=@FILE"


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Attributes:
        items: uint8 [H, W, 3] photos, or float32 [3, S, S] normalised tensors.
        protocol: "plain", "v1" or "v2": how the answer is wrapped.
        many: whether a list of answers is expected (plain tensors with a batch dimension).
        id: KServe V2's request id, handed back.
    """

    items: list[Array]
    protocol: str = "plain"
    many: bool = False
    id: str | None = None


def parse(row: Mapping[str, Any], headers: Mapping[str, str], spec: InputSpec) -> Request:
    """One row of TorchServe's batch → its photos and tensors.

    Args:
        row: "body", or the fields of a form.
        headers: as the client sent them, in any case.

    Raises:
        InputError: with a message for the client.
    """
    kind = next((value for name, value in headers.items()
                 if isinstance(value, str) and name.lower() == "content-type"), "")
    if kind.lower().startswith("application/x-www-form-urlencoded"):
        # what curl says of -d and --data-binary unless told otherwise; the bytes are already mangled
        raise InputError(f"the body was sent as {kind[:60]}: {_HOW}")
    field, body = _field(row)
    if isinstance(body, bytes | bytearray) and kind.lower().startswith("application/json"):
        body = _json(bytes(body))
    if isinstance(body, bytes | bytearray):
        items, many = _binary(bytes(body), spec, field)
        return Request(items, many=many)
    if isinstance(body, str):
        raise InputError(f"{field}: text is no photo and no tensor: {_HOW}")
    if isinstance(body, dict):
        if "instances" in body:
            return Request(_instances(body["instances"], spec), "v1")
        if "inputs" in body:
            identity = body.get("id")
            return Request(_v2_inputs(body["inputs"], spec), "v2", id=None if identity is None else str(identity))
        items, many = _encoded(body, spec, "")
        return Request(items, many=many)
    raise InputError(f"{field}: a JSON object with one of {', '.join(KEYS)}, instances or inputs is expected, "
                     f"not {_named(body)}")


def _named(value: Any) -> str:
    """A value as a message shows it. Lists and objects by their kind only: they may be nested without end."""
    text = repr(value) if value is None or isinstance(value, str | int | float) else ""
    return text if 0 < len(text) <= 40 else f"a {type(value).__name__}"


def _names(names: Iterable[str]) -> str:
    """Names that a client gave, as a message repeats them: not many, and none long."""
    chosen = [name[:40] for name in sorted(names)]
    return ", ".join(chosen[:5] + ["…"] * (len(chosen) > 5))


def _field(row: Mapping[str, Any]) -> tuple[str, Any]:
    if "body" in row:
        return "body", row["body"]
    if len(row) == 1:
        field, value = next(iter(row.items()))
        return field[:40], value
    for key in KEYS:
        if key in row:
            return key, row[key]
    raise InputError("the form has no fields" if not row else
                     f"the form has the fields {_names(row)}: send one, or name the photo's field data")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"body: not JSON in UTF-8: {error}" if body else "body: empty") from None


def _binary(data: bytes, spec: InputSpec, field: str) -> tuple[list[Array], bool]:
    if not data:
        raise InputError(f"{field}: empty")
    if data[:6] == b"\x93NUMPY":
        return _tensor(_npy(data, field), spec, field)
    if _looks_like_safetensors(data):
        return _tensor(_safetensors(data, field), spec, field)
    return [decode(data, spec, field)], False


def decode(data: bytes, spec: InputSpec, field: str = "body") -> NDArray[np.uint8]:
    """A photo's bytes → uint8 RGB [height, width, 3].

    Grey becomes three equal channels, 16-bit grey its high byte, transparency is laid on spec.background, an
    animation gives its first frame, CMYK is converted.

    Raises:
        InputError: no such photo, truncated, too large, or thinner than one in MAX_ASPECT.
    """
    pixels = jpeg.decode(data, spec)
    if pixels is not None:
        return pixels
    try:
        with PILImage.open(io.BytesIO(data), formats=_FORMATS) as opened:
            image: PILImage.Image = opened
            width, height = image.size
            if width * height > spec.max_pixels:
                raise InputError(f"{field}: {width}×{height} pixels; at most {spec.max_pixels} are accepted", 413)
            _check_aspect(height, width, field)
            by = jpeg.divisor(height, width, spec)
            if by > 1 and opened.format in ("JPEG", "MPO"):
                opened.draft(None, (width // by, height // by))
            if spec.exif and opened.format in ("JPEG", "MPO"):  # MPO: a JPEG with more JPEGs after it, as phones write
                image = _upright(image)
            # asarray of an RGB image copies once; convert("RGB") would copy a second time
            return np.asarray(image if image.mode == "RGB" and "transparency" not in image.info
                              else _to_rgb(image, spec.background))
    except InputError:
        raise
    except Exception as error:
        # Pillow's decoders raise whatever a damaged file makes of them: OSError, SyntaxError, struct.error, …
        known = isinstance(error, OSError | SyntaxError | ValueError)
        reason = "truncated or damaged" if known and "cannot identify" not in str(error) else \
            "not a JPEG, PNG, WebP, GIF, .npy or safetensors"
        raise InputError(f"{field}: {reason} ({len(data)} bytes)") from None


def _upright(image: PILImage.Image) -> PILImage.Image:
    """Turned as its EXIF orientation says.

    ImageOps.exif_transpose would copy a photo that needs no turning, and fail where it cannot write the tags again.
    """
    method = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if method is None else image.transpose(method)


def _check_aspect(height: int, width: int, field: str) -> None:
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise InputError(f"{field}: {width}×{height} pixels; the longer side may be {MAX_ASPECT} times the shorter")


def _to_rgb(image: PILImage.Image, background: tuple[int, int, int]) -> PILImage.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        levels = np.asarray(image).astype(np.int64)
        pixels = np.repeat(np.clip(levels >> 8, 0, 255).astype(np.uint8)[..., None], 3, axis=2)
        if "transparency" in image.info:
            pixels[levels == image.info["transparency"]] = background
        return PILImage.fromarray(pixels)
    if image.mode == "F":
        return image.convert("L").convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        canvas = PILImage.new("RGBA", rgba.size, (*background, 255))
        return PILImage.alpha_composite(canvas, rgba).convert("RGB")
    return image.convert("RGB")


def _npy(data: bytes, field: str) -> Array:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        # before anything is allocated: a header may promise terabytes
        expected = math.prod(shape) * dtype.itemsize
        found = len(data) - stream.tell()
        if dtype.hasobject or expected != found:
            raise ValueError(f"{found} bytes of data for {dtype} {list(shape)}")
        return np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")
    except Exception as error:
        # numpy reads the header as a Python literal and raises what the parser does: TokenError, IndexError, …
        raise InputError(f"{field}: not a .npy file that can be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def _looks_like_safetensors(data: bytes) -> bool:
    return len(data) > 9 and data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data) - 8


def _safetensors(data: bytes, field: str) -> Array:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
    except KeyError as error:  # a type that numpy has not
        raise InputError(f"{field}: safetensors of type {error.args[0]}; F32 or U8 is expected") from None
    except (SafetensorError, ValueError) as error:
        raise InputError(f"{field}: not safetensors that can be read: {_first_line(error)}") from None
    if len(tensors) != 1:
        raise InputError(f"{field}: the file holds {len(tensors)} tensors ({_names(tensors)}); one is expected")
    array: Array = next(iter(tensors.values()))
    return array


def _tensor(array: Array, spec: InputSpec, field: str) -> tuple[list[Array], bool]:
    """A tensor → its items, and whether it had a batch dimension."""
    many = array.ndim == 4
    items = list(array) if many else [array]
    if many and not 1 <= len(items) <= MAX_ITEMS:
        raise InputError(f"{field}: {len(items)} images; 1 to {MAX_ITEMS} are accepted")
    size = spec.size
    if array.dtype == np.uint8 and array.ndim in (3, 4) and array.shape[-1] == 3 and min(array.shape) > 0:
        height, width = array.shape[-3:-1]
        if height * width > spec.max_pixels:
            raise InputError(f"{field}: {width}×{height} pixels; at most {spec.max_pixels} are accepted", 413)
        _check_aspect(height, width, field)
        return items, many
    if array.dtype.kind == "f" and array.shape[-3:] == (3, size, size) and array.ndim in (3, 4):
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused with it
            floats = [np.ascontiguousarray(item, dtype=np.float32) for item in items]
        if not all(np.isfinite(item).all() for item in floats):
            raise InputError(f"{field}: the tensor holds NaN or infinity")
        return floats, many
    raise InputError(f"{field}: {str(array.dtype)[:40]} {list(array.shape)} is no image: uint8 [H, W, 3] pixels or "
                     f"float32 [3, {size}, {size}] normalised are expected, with or without a batch dimension before "
                     "them")


def _instances(instances: Any, spec: InputSpec) -> list[Array]:
    items: list[Array] = []
    for index, instance in enumerate(_list(instances, "instances")):
        field = f"instances[{index}]"
        if isinstance(instance, str):
            instance = {"": instance}  # noqa: PLW2901
        found, many = _encoded(instance, spec, field) if isinstance(instance, dict) else _numbers(instance, spec, field)
        _add(items, found, many, field, spec)
    return items


def _add(items: list[Array], found: list[Array], many: bool, field: str, spec: InputSpec) -> None:
    """Adds one image of several to the others. Together they are held to one photo's limit: small files can be huge."""
    if many:
        raise InputError(f"{field}: one image is expected here, not a batch of {len(found)}")
    items += found
    pixels = sum(item.shape[0] * item.shape[1] for item in items if item.dtype == np.uint8)
    if pixels > spec.max_pixels:
        raise InputError(f"{field}: {pixels} pixels up to here; at most {spec.max_pixels} are accepted in one request",
                         413)


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_ITEMS:
        raise InputError(f"{field}: a list of 1 to {MAX_ITEMS} is expected, not "
                         + (f"one of {len(value)}" if isinstance(value, list) else _named(value)))
    return value


def _encoded(holder: Mapping[str, Any], spec: InputSpec, prefix: str, nested: bool = False) -> tuple[list[Array], bool]:
    """{"data": BASE64}, {"data": {"b64": BASE64}} or {"data": nested numbers}."""
    key = next((key for key in (*KEYS, "") if key in holder), None)
    if key is None:
        raise InputError(f"{prefix or 'body'}: one of {', '.join(KEYS)} is expected"
                         + (f", not {_names(holder)}" if holder else ""))
    field = ".".join(part for part in (prefix, key) if part)
    value = holder[key]
    if isinstance(value, dict) and not nested:
        return _encoded(value, spec, field, nested=True)
    if isinstance(value, list):
        return _numbers(value, spec, field)
    if not isinstance(value, str):
        raise InputError(f"{field}: base64 text is expected, not {_named(value)}")
    return _binary(unbase64(value, field), spec, field)


def unbase64(text: str, field: str) -> bytes:
    """Base64 in the dialects that clients send: line breaks, URL-safe alphabet, no padding, a data: prefix.

    Raises:
        InputError: naming the field.
    """
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise InputError(f"{field}: a data: address is expected to say ;base64, before its content")
    compact = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{field}: not base64: {error}") from None


def _numbers(value: Any, spec: InputSpec, field: str) -> tuple[list[Array], bool]:
    """Nested lists: whole numbers 0..255 in [H, W, 3] are pixels, [3, S, S] is a normalised tensor."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "iuf" or array.size == 0 or array.ndim == 0:
        raise InputError(f"{field}: nested lists of numbers of equal lengths are expected")
    if array.dtype.kind in "iu" and array.shape[-1] == 3:
        if array.min() < 0 or array.max() > 255:
            raise InputError(f"{field}: pixels from 0 to 255 are expected")
        return _tensor(array.astype(np.uint8), spec, field)
    return _tensor(array.astype(np.float64), spec, field)  # JavaScript writes 1.0 as 1


def _v2_inputs(inputs: Any, spec: InputSpec) -> list[Array]:
    entries = _list(inputs, "inputs")
    if len(entries) != 1 or not isinstance(entries[0], dict):
        raise InputError("inputs: one tensor object is expected; several images go into its first dimension")
    entry, field = entries[0], "inputs[0]"
    datatype, shape, data = entry.get("datatype"), entry.get("shape"), entry.get("data")
    if not isinstance(data, list) or not data:
        raise InputError(f"{field}.data: a list is expected"
                         + ("; the binary extension is not supported" if data is None else ""))
    if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in shape):
        raise InputError(f"{field}.shape: a list of whole numbers is expected, not {_named(shape)}")
    if datatype == "BYTES":
        if math.prod(shape) != len(data):
            raise InputError(f"{field}.data: {len(data)} texts do not fit shape {shape}")
        items: list[Array] = []
        for index, text in enumerate(_list(data, f"{field}.data")):
            name = f"{field}.data[{index}]"
            _add(items, *_encoded({"": text}, spec, name), name, spec)
        return items
    if not isinstance(datatype, str) or datatype not in _V2_TYPES:
        raise InputError(f"{field}.datatype: {_named(datatype)}; one of BYTES, UINT8, FP32 is expected")
    return _tensor(_v2_array(data, shape, datatype, f"{field}.data"), spec, field)[0]


def _v2_array(data: list[Any], shape: list[int], datatype: str, field: str) -> Array:
    try:
        array = np.asarray(data)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in ("iu" if datatype == "UINT8" else "iuf"):
        raise InputError(f"{field}: {'whole ' if datatype == 'UINT8' else ''}numbers are expected for {datatype}")
    if datatype == "UINT8" and (array.min() < 0 or array.max() > 255):
        raise InputError(f"{field}: numbers from 0 to 255 are expected for UINT8")
    if array.size != math.prod(shape):
        raise InputError(f"{field}: {array.size} numbers do not fit shape {shape}")
    with np.errstate(over="ignore"):  # see _tensor
        return array.astype(_V2_TYPES[datatype]).reshape(shape)
