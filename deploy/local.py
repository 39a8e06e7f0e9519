"""The same Deployment on this machine, without a cluster: `podman kube play`.

What podman does otherwise than Kubernetes, and what is done about it here: it waits for nothing (the health port is
asked), it runs no startup or readiness probes, and `kube down` gives nobody time to end (the pod is stopped first,
with the manifest's grace period).
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from configs.errors import ServerError, SettingsError
from deploy.engines import Engine, find_engine, last_lines
from deploy.request import ask

Echo = Callable[[str], None]
KINDS = ("Deployment", "ConfigMap")  # all that podman does anything with
FOLDER = Path(__file__).resolve().parent.parent / "build" / "deploy"
MANIFEST = FOLDER / "podman.yaml"
LOOK_SECONDS = 0.5
LOG_LINES = 40


def up(objects: list[dict[str, Any]], cpus: str | None, echo: Echo) -> None:
    """Plays the Deployment, waits until it is ready, and asks every model a real question. Ends it if that fails.

    Args:
        objects: the rendered manifests.
        cpus: CPU limit in place of the manifest's.

    Raises:
        SettingsError: no podman, or no Deployment among the objects.
        ServerError: it did not start, or a model does not answer.
    """
    podman = find_engine("podman", FOLDER)
    chosen = [_local(each, cpus) for each in objects if each["kind"] in KINDS]
    deployment = _deployment(chosen)
    image = _container(deployment)["image"]
    if not _exists(podman, "image", image):
        raise SettingsError("podman has no such image", where=image, remedy="build it: make image")
    if MANIFEST.exists():
        down(echo)
    FOLDER.mkdir(parents=True, exist_ok=True)
    MANIFEST.write_text(yaml.safe_dump_all(chosen, sort_keys=False), encoding="utf-8")
    limits = _container(deployment)["resources"]["limits"]
    echo(f"podman kube play: {image}, {limits['cpu']} CPU, {limits['memory']}")
    try:
        podman.run("kube", "play", str(MANIFEST))
        _wait_until_ready(podman, deployment, echo)
        address = f"http://127.0.0.1:{_host_port(deployment, 'http')}"
        for line in ask(address, _models(f"http://127.0.0.1:{_host_port(deployment, 'health')}")):
            echo(line)
        echo(podman.run("exec", _name(deployment), "tscpu", "inspect", "--run-dir", "/run/tscpu").rstrip())
    except (ServerError, KeyboardInterrupt):
        down(echo)
        raise
    echo(f"serving on {address}; end it with: make undeploy TARGET=podman")


def down(echo: Echo) -> None:
    """Ends the pod gracefully, and removes it and its volumes; nothing is done where nothing runs."""
    if not MANIFEST.exists():
        echo("nothing is deployed here")
        return
    podman = find_engine("podman", FOLDER)
    objects = [each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")) if each]
    deployment = _deployment(objects)
    pod, grace = _pod(deployment), deployment["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
    if _exists(podman, "pod", pod):
        echo(f"stopping {pod} (at most {grace} s)")
        began = time.monotonic()
        podman.run("pod", "stop", "--time", str(grace), pod)
        code = _state(podman, _name(deployment)).get("ExitCode")
        echo(f"ended after {time.monotonic() - began:.1f} s with exit code {code}")
        podman.run("kube", "down", str(MANIFEST))
    names = [volume["name"] for volume in deployment["spec"]["template"]["spec"].get("volumes", [])]
    names += [each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap"]
    for name in names:  # podman keeps them, and hands them to the next pod that has one of that name
        if _exists(podman, "volume", name):
            podman.run("volume", "rm", "--force", name)
    MANIFEST.unlink()


def _local(manifest: dict[str, Any], cpus: str | None) -> dict[str, Any]:
    """The object as podman takes it."""
    found = copy.deepcopy(manifest)
    found["metadata"].pop("namespace", None)
    if found["kind"] == "Deployment":
        container = _container(found)
        if "/" not in container["image"]:
            container["image"] = "localhost/" + container["image"]
        if cpus:
            container["resources"]["limits"]["cpu"] = cpus
            container["resources"].get("requests", {}).pop("cpu", None)
    return found


def _deployment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    for each in objects:
        if each["kind"] == "Deployment":
            return each
    raise SettingsError("there is no Deployment to play", where="the rendered manifests",
                        remedy="take an overlay that has one: --overlay local")


def _container(deployment: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def _host_port(deployment: dict[str, Any], name: str) -> int:
    for port in _container(deployment).get("ports", []):
        if port.get("name") == name and "hostPort" in port:
            return int(port["hostPort"])
    raise SettingsError(f"the port {name} is not published on this machine", where=deployment["metadata"]["name"],
                        remedy="give it a hostPort on hostIP 127.0.0.1, as the overlay local does")


def _pod(deployment: dict[str, Any]) -> str:
    return f"{deployment['metadata']['name']}-pod-0"


def _name(deployment: dict[str, Any]) -> str:
    return f"{_pod(deployment)}-{_container(deployment)['name']}"


def _exists(podman: Engine, kind: str, name: str) -> bool:
    try:
        podman.run(kind, "exists", name)
    except ServerError:
        return False
    return True


def _state(podman: Engine, name: str) -> dict[str, Any]:
    state = podman.run("inspect", "--type", "container", "--format", "{{json .State}}", name)
    found: dict[str, Any] = json.loads(state)
    return found


def _wait_until_ready(podman: Engine, deployment: dict[str, Any], echo: Echo) -> None:
    """Until /ready says so, at most as long as the startup probe would wait."""
    probe = _container(deployment)["startupProbe"]
    patience = int(probe.get("failureThreshold", 3)) * int(probe.get("periodSeconds", 10))
    url, began = f"http://127.0.0.1:{_host_port(deployment, 'health')}/ready", time.monotonic()
    while time.monotonic() - began < patience:
        state = _state(podman, _name(deployment))
        if not state["Running"]:
            raise _failed(podman, deployment, f"it ended with exit code {state['ExitCode']}")
        try:
            if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                echo(f"ready after {time.monotonic() - began:.1f} s")
                return
        except httpx.HTTPError:
            pass
        time.sleep(LOOK_SECONDS)
    raise _failed(podman, deployment, f"not ready after {patience} s")


def _failed(podman: Engine, deployment: dict[str, Any], why: str) -> ServerError:
    log = podman.run("logs", "--tail", str(LOG_LINES), _name(deployment))
    return ServerError("the pod does not serve", where=_pod(deployment), why=f"{why}\n{last_lines(log, LOG_LINES)}",
                       remedy="the log above says why; `tscpu serve --check` finds most of it beforehand")


def _models(health: str) -> list[str]:
    return [each["name"] for each in httpx.get(f"{health}/ready", timeout=5, trust_env=False).json()["models"]]
