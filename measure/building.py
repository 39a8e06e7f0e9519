"""Builds one archive in a process of its own, so that the run itself stays free of torch.

    python -m measure.building model MODEL_FOLDER RUNTIME ARTIFACTS CACHE STORE
    python -m measure.building stock torchscript|eager MODEL_FOLDER STORE

Prints nothing on success. An error raised on purpose goes to standard error as its message, with exit code 2.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from handlers.errors import ToolkitError
from measure.child import REFUSED
from models.archive import package
from models.export import build, read_labels
from models.networks import load_network
from models.spec import read_spec

STOCK = "stock"  # the stock archive's model name
_EAGER_SOURCE = '''"""The network for TorchServe's eager mode: one class, filled from a state dict."""

import timm
import torch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = timm.create_model("{architecture}", num_classes={classes})

    def forward(self, x):
        return self.net(x)
'''


def build_ours(folder: Path, runtime: str, artifacts: Path, cache: Path, store: Path) -> None:
    """The toolkit's own archive for a runtime, as `tscpu build` makes it, but beside what the user has built."""
    artifact = build(folder, artifacts, cache, lambda what, done, total: None, runtime)
    package(artifacts / artifact.name, read_spec(folder), store)


def build_stock(form: str, folder: Path, store: Path) -> None:
    """An archive of the same network and weights for TorchServe's image_classifier, as its documentation says.

    torchscript: torch.jit.trace and save, nothing else. eager: a model file and a state dict.
    """
    spec = read_spec(folder)
    section = spec.network
    assert section.architecture and section.weights and spec.labels
    network = load_network(section.architecture, section.weights, section.weights_by, section.classes, "logits", folder)
    store.mkdir(parents=True, exist_ok=True)
    labels, _ = read_labels(folder / spec.labels)
    names = store / "index_to_name.json"
    names.write_text(json.dumps({str(index): label for index, label in enumerate(labels)}))
    size = spec.input.size
    if form == "torchscript":
        network_file = store / "model.pt"
        with torch.inference_mode():
            graph = torch.jit.trace(network, torch.zeros(1, 3, size, size))  # type: ignore[no-untyped-call]
        torch.jit.save(graph, str(network_file))  # type: ignore[no-untyped-call]
        more: list[str] = []
    else:
        network_file, source = store / "weights.pth", store / "model.py"
        torch.save(nn.ModuleDict({"net": network}).state_dict(), network_file)
        source.write_text(_EAGER_SOURCE.format(architecture=section.architecture, classes=section.classes))
        more = ["--model-file", str(source)]
    subprocess.run([sys.executable, "-c",
                    "from model_archiver.model_packaging import generate_model_archive as run; run()",
                    "--model-name", STOCK, "--version", "1.0", "--handler", "image_classifier", "--serialized-file",
                    str(network_file), "--extra-files", str(names), "--export-path", str(store), "--force", *more],
                   check=True)


def main() -> None:
    what, *arguments = sys.argv[1:]
    try:
        if what == "model":
            folder, runtime, artifacts, cache, store = arguments
            build_ours(Path(folder), runtime, Path(artifacts), Path(cache), Path(store))
        else:
            form, folder, store = arguments
            build_stock(form, Path(folder), Path(store))
    except ToolkitError as error:
        print(error, file=sys.stderr)
        raise SystemExit(REFUSED) from None


if __name__ == "__main__":
    main()
