"""The reviewed output of each overlay. To store it again after a change, and read the difference:

    for name in shared-node exclusive-cores kserve mirroring local; do
        tscpu deploy --overlay $name --dry-run > tests/unit/deploy/rendered/$name.yaml; done
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deploy.manifests import OVERLAYS

RENDERED = Path(__file__).parent / "rendered"
NAMES = sorted(path.name for path in OVERLAYS.iterdir())


def stored(name: str) -> list[dict[str, Any]]:
    """The objects of an overlay, new at each call."""
    return list(yaml.safe_load_all((RENDERED / f"{name}.yaml").read_text(encoding="utf-8")))


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one object of a kind."""
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The Deployment's pod."""
    found: dict[str, Any] = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The server's container, of a Deployment or a ServingRuntime."""
    kinds = [each["kind"] for each in objects]
    spec = pod(objects) if "Deployment" in kinds else of_kind(objects, "ServingRuntime")["spec"]
    found: dict[str, Any] = spec["containers"][0]
    return found


def set_serving(objects: list[dict[str, Any]], old: str, new: str) -> None:
    """Edits serving.yaml in its ConfigMap."""
    data = of_kind(objects, "ConfigMap")["data"]
    assert old in data["serving.yaml"]
    data["serving.yaml"] = data["serving.yaml"].replace(old, new)
