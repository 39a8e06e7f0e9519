"""What a checker asks each setup, and what is right: see `answers` for how near an answer has to be.

fp32 runtimes are held against the eager network. INT8 is held against the server's own answer while it is idle, once
its first label agrees with the reference where that is sure; so are stock handlers, which transform in their own way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import ServerError
from measure import answers
from measure.answers import Question
from measure.archives import Store
from measure.bodies import Body
from measure.servers import Server
from measure.setups import INT8, Setup

ROOT = Path(__file__).resolve().parents[1]
References = Mapping[str, Mapping[str, Any]]  # model → path of a body → the eager network's answer


def references(ready: Sequence[Setup], everything: Sequence[Body], store: Store,
               say: Callable[[str], None]) -> References:
    """The eager fp32 network's answers, for every model that takes part.

    Raises:
        ServerError: the reference cannot be built, or does not answer.
    """
    found = {}
    for model in sorted({setup.model for setup in ready if setup.runtime}):
        say(f"reference answers of {model}, from the eager fp32 network …")
        paths = [str(body.path) for body in everything if body.plain == body.path]
        # the archive that has these runtimes has the reference too
        taken = {setup.runtime for setup in ready if setup.model == model and setup.runtime} - {"eager"}
        folder = store.ours(model, min(taken, default="eager"))
        command = [sys.executable, "-m", "measure.reference", str(folder), *paths]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL)
        if done.returncode:
            raise ServerError("the reference cannot answer", where=model, why=done.stderr[-800:])
        found[model] = json.loads(done.stdout.splitlines()[-1])
    return found


def questions(setup: Setup, server: Server, own: Sequence[Body], known: References) -> list[Question]:
    """A setup's bodies with their right answers; the server must be idle.

    Raises:
        ServerError: it does not answer, or INT8 gives another label where the reference is sure.
    """
    found = []
    for body in own:
        expected: Any = known.get(setup.model, {}).get(str(body.plain))
        if not setup.runtime or setup.runtime in INT8:
            status, raw = answers.ask(server.url, body.read(), server.content_type)
            if status != 200:
                raise ServerError(f"{setup.name} does not answer", where=server.url, why=f"{status}: {raw[:300]!r}")
            idle, sure = json.loads(raw), answers.sure_label(expected) if setup.runtime else ""
            if sure and idle["predictions"][0]["label"] != sure:
                raise ServerError(f"{setup.name} answers wrongly", where=body.name,
                                  why=f"{idle['predictions'][0]['label']}, where the reference is sure of {sure}")
            expected = idle
        found.append(Question(body.read(), expected))
    return found
