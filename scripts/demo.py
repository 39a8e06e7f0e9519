"""tscpu demo: both demo models from weights to answers, in one go."""

from __future__ import annotations

import io
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from scripts.console import ARTIFACTS, BUILD, MODEL_STORE, MODELS, err, errors_as_messages, out, table

DEMO_MODELS = ("food_recognizer", "image_scorer")
SEVERITIES = (0.0, 0.35, 0.7, 1.0)
READY_SECONDS = 300.0


def demo(
    rebuild: bool = typer.Option(False, "--rebuild", help="Build the models even if their archives are there."),
) -> None:
    """Build both demo models, serve them on this machine, and let them answer on photos.

    Example: tscpu demo
    """
    with errors_as_messages():
        from models import datasets
        from scripts import plan
        from scripts.build import archives_table, build_one, folders

        store, run = MODEL_STORE, BUILD / "demo"
        stale = [name for name in DEMO_MODELS if rebuild or out_of_date(name)]
        if stale:
            out.print(archives_table([build_one(folder, store, None, None) for folder in folders(stale)]))
        else:
            out.print("Both archives are up to date; `tscpu demo --rebuild` builds them again.")
        serving = BUILD / "demo.yaml"
        serving.write_text("models:\n" + "".join(f"  {name}: {{}}\n" for name in DEMO_MODELS))
        plan.plan(serving=serving, model_store=store, machine=Path("/"), explain=True, as_json=False)
        with _server(serving, run):
            photos = {"coffee": _jpeg(datasets.load_photo("coffee")), "a cat": _jpeg(datasets.load_photo("chelsea"))}
            food = {name: _ask("food_recognizer", body) for name, body in photos.items()}
            scores = [_ask("image_scorer", body)["score"] for body in _degraded_photo()]
            _show(food, scores)
            from scripts import inspect

            inspect.inspect(folder=run, management="http://127.0.0.1:8081", as_json=False, watch=False, every=0)
        _judge(food, scores)
        out.print("[bold green]The demo did what it should.[/] Next: `tscpu serve`, and from another terminal "
                  "`tscpu predict food_recognizer PHOTO.jpg`.")


def out_of_date(name: str) -> bool:
    """Whether an archive is missing or older than anything it is made of."""
    archive = MODEL_STORE / f"{name}.mar"
    if not archive.is_file() or not (ARTIFACTS / name).is_dir():
        return True
    sources = [*(MODELS / name).rglob("*"), *MODELS.glob("*.py"), *(MODELS.parent / "handlers").glob("*.py")]
    return any(path.is_file() and path.stat().st_mtime > archive.stat().st_mtime for path in sources
               if "__pycache__" not in path.parts)


@contextmanager
def _server(serving: Path, run: Path) -> Iterator[None]:
    """`tscpu serve` as a process of its own, until it is ready; stopped as a person would, with SIGINT."""
    log_path = BUILD / "demo.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "scripts.cli", "serve", "--serving", str(serving),
                                    "--run-dir", str(run)], stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(process, log_path)
        yield
    finally:
        if process.poll() is None:
            err.print("stopping the server …")
            process.send_signal(signal.SIGINT)
        code = process.wait(timeout=60)
    if code != 0:
        raise _failure(f"the server stopped with exit code {code}", log_path)
    err.print("the server stopped cleanly (exit code 0)")


def _wait_until_ready(process: subprocess.Popen[bytes], log_path: Path) -> None:
    import httpx

    started = time.monotonic()
    with err.status("starting TorchServe; its workers load their models …"):
        while time.monotonic() - started < READY_SECONDS:
            if process.poll() is not None:
                raise _failure("TorchServe could not serve the models", log_path)
            try:
                if httpx.get("http://127.0.0.1:8090/ready", timeout=2, trust_env=False).status_code == 200:
                    err.print(f"ready after {time.monotonic() - started:.0f} s")
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.3)
    raise _failure(f"the models were not ready within {READY_SECONDS:.0f} s", log_path)


def _failure(what: str, log_path: Path) -> Exception:
    from configs.errors import ServerError

    lines = log_path.read_text(errors="replace").splitlines()
    return ServerError(what, where=str(log_path), why="\n".join(["its last lines:", *lines[-25:]]))


def _jpeg(image: Any) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def _degraded_photo() -> list[bytes]:
    """A photo that the scorer's training never saw, at its input size, blurred more and more; PNG, to add no damage."""
    import numpy as np
    from PIL import Image

    from models import datasets

    photo = datasets.square_crop(datasets.load_photo("coffee"), 224, np.random.default_rng(1))
    bodies = []
    for severity in SEVERITIES:
        stream = io.BytesIO()
        blurred = datasets.degrade(photo, "blur", severity, np.random.default_rng(0))
        Image.fromarray(blurred).save(stream, "PNG")
        bodies.append(stream.getvalue())
    return bodies


def _ask(model: str, body: bytes) -> Any:
    from configs.errors import ServerError
    from serving.client import Client

    answer = Client().predict(model, body)
    if answer.status != 200:
        raise ServerError(f"{model} answered with {answer.status}", why=json.dumps(answer.body))
    return answer.body


def _show(food: dict[str, Any], scores: list[float]) -> None:
    from scripts.predict import answer_text

    out.print(table("food_recognizer", ["photo", "answer"],
                    [[name, answer_text(answer)] for name, answer in food.items()]))
    out.print(table("image_scorer (1 to 10)", ["the coffee photo, blurred", "score"],
                    [[f"severity {severity:.2f}", f"{score:.2f}"]
                     for severity, score in zip(SEVERITIES, scores, strict=True)]))


def _judge(food: dict[str, Any], scores: list[float]) -> None:
    """The demo's own acceptance."""
    wrong = []
    if food["coffee"]["predictions"][0]["label"] != "espresso":
        wrong.append("the coffee photo's first label is not espresso")
    if not food["coffee"]["food_probability"] > 0.8:
        wrong.append("the coffee photo's food probability is not above 0.8")
    if not food["a cat"]["food_probability"] < 0.2:
        wrong.append("the cat photo's food probability is not below 0.2")
    if not all(left > right for left, right in itertools.pairwise(scores)):
        wrong.append("the scores do not fall with the blur")
    if wrong:
        err.print("[bold red]error:[/] " + "; ".join(wrong))
        raise typer.Exit(1)
