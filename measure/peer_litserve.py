"""LitServe with the same network, the same decode and preprocess code, the same pins and the same allocator settings.

    python -m measure.peer_litserve FOLDER PORT WORKERS

Only the server differs, and it is given what was fastest for it: as many workers as TorchServe has, pinned by the same
plan; the photo as the file of a form (as raw bytes, FastAPI's body validation costs two CPU-milliseconds more);
answers as finished JSON, which spares it pydantic's encoder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import litserve
from fastapi import Response

from measure.pipeline import Pipeline

FOLDER = "TSCPU_PEER_FOLDER"  # workers are spawned: of this process they see the environment only


class Peer(litserve.LitAPI):  # type: ignore[misc]
    """The handlers' pipeline behind LitServe's three calls."""

    def setup(self, device: str) -> None:
        self.pipeline = Pipeline(Path(os.environ[FOLDER]))

    def decode_request(self, request) -> Any:  # type: ignore[no-untyped-def]  # an annotation would ask for JSON
        return self.pipeline.tensor(self.pipeline.decode({"body": request["data"].file.read()}))

    def predict(self, x: Any) -> dict[str, Any]:
        return self.pipeline.answer(self.pipeline.infer(x))

    def encode_response(self, output: dict[str, Any]) -> Response:
        return Response(json.dumps(output, separators=(",", ":")).encode(), media_type="application/json")


# annotations are texts here, and LitServe hands them to FastAPI as they are
Peer.encode_response.__annotations__["return"] = Response


def main() -> None:
    folder, port, workers = sys.argv[1:4]
    os.environ[FOLDER] = folder
    server = litserve.LitServer(Peer(), accelerator="cpu", devices=1, workers_per_device=int(workers), timeout=120)
    server.run(host="127.0.0.1", port=int(port), log_level="warning", generate_client_file=False, access_log=False)


if __name__ == "__main__":
    main()
