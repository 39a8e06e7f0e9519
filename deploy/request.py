"""One real request to every model: the last word on whether a deployment serves."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

import httpx

from configs.errors import ServerError
from serving.client import Client

Echo = Callable[[str], None]  # takes a line that is to be shown


def photo() -> bytes:
    """A JPEG that any image model takes: a gradient, 320 × 240."""
    from PIL import Image

    stream = io.BytesIO()
    Image.merge("RGB", [Image.linear_gradient("L").resize((320, 240)).rotate(angle) for angle in (0, 90, 180)]).save(
        stream, "JPEG", quality=90)
    return stream.getvalue()


def served(health: str, pod: str) -> list[str]:
    """The models that a pod says it serves.

    Args:
        health: the address of its health port.
        pod: what an error calls it.

    Raises:
        ServerError: it does not say.
    """
    try:
        body = httpx.get(f"{health}/ready", timeout=10, trust_env=False).json()
        return [str(each["name"]) for each in body["models"]]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ServerError("the pods do not say which models they serve", where=f"{pod}, {health}/ready",
                          why=repr(error), remedy="name them: --model NAME") from error


def ask(address: str, models: Iterable[str]) -> Iterator[str]:
    """Sends each model a photo, and gives a line for each answer.

    Raises:
        ServerError: one of them did not answer with 200.
    """
    body = photo()
    with Client(inference=address) as client:
        for name in models:
            answer = client.predict(name, body)
            if answer.status != 200:
                raise ServerError(f"{name} answers {answer.status}", where=f"{address}/predictions/{name}",
                                  why=str(answer.body))
            yield f"{name}: 200 in {answer.seconds * 1000:.0f} ms: {str(answer.body)[:120]}"
