"""The same Deployment on this machine, without a cluster: `podman kube play`.

What podman does otherwise than Kubernetes, and what is done about it here: it waits for nothing (the health port is
asked), it runs no startup or readiness probes, and `kube down` gives nobody time to end (the pod is stopped first,
with the manifest's grace period).
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx
import yaml

from configs.errors import ServerError, SettingsError, ToolkitError
from deploy.engines import FOLDER, Engine, find_engine, last_lines
from deploy.manifests import Object
from deploy.request import Echo, ask, served
from deploy.rules_pod import startup_seconds
from deploy.workload import Case, Workload, find_workload

KINDS = ("Deployment", "ConfigMap")  # all that podman does anything with
MANIFEST = FOLDER / "podman.yaml"
LOOK_SECONDS = 0.5
LOG_LINES = 40


def up(case: Case, cpus: str | None, models: Sequence[str], echo: Echo) -> None:
    """Plays the Deployment, waits until it is ready, and asks every model a real question. Ends it if that fails.

    Args:
        cpus: CPU limit in place of the manifest's.
        models: to be asked; empty for all that are served.

    Raises:
        SettingsError: no podman, or no Deployment among the objects.
        ServerError: it did not start, or a model does not answer.
    """
    podman = find_engine("podman")
    chosen = [_local(each, cpus) for each in case.objects if each["kind"] in KINDS]
    workload = find_workload(chosen)
    inference, health = (f"http://127.0.0.1:{_host_port(workload, name)}" for name in ("http", "health"))
    _all_on_loopback(workload)
    image = workload.container["image"]
    if not _exists(podman, "image", image):
        raise SettingsError("podman has no such image", where=image, why="root and each user have images of their own, "
                            "and docker others again", remedy="build it: make image ENGINE=podman")
    if MANIFEST.exists():
        down(echo)
    FOLDER.mkdir(parents=True, exist_ok=True)
    MANIFEST.write_text(yaml.safe_dump_all(chosen, sort_keys=False), encoding="utf-8")
    limits = workload.container["resources"]["limits"]
    echo(f"podman kube play: {image}, {limits['cpu']} CPU, {limits['memory']}")
    try:
        podman.run("kube", "play", str(MANIFEST))
        _wait_until_ready(podman, workload, health, echo)
        if case.keys:
            echo("token_authorization is on: no request is sent, its key is in /run/tscpu/key_file.json")
        else:
            for line in ask(inference, models or served(health, _pod(podman, workload))):
                echo(line)
        # it informs and does not decide: on a busy machine a worker may look crowded for a moment
        echo(podman.said("exec", _name(podman, workload), "tscpu", "inspect", "--run-dir", "/run/tscpu")[1].rstrip())
    except BaseException:
        try:
            down(echo)
        except ToolkitError as error:  # what went wrong first is what counts
            echo(str(error))
        raise
    echo(f"serving on {inference}; end it with: make undeploy TARGET=podman")


def down(echo: Echo) -> None:
    """Ends the pod gracefully, and removes it and its volumes; nothing is done where nothing runs."""
    if not MANIFEST.exists():
        echo("nothing is deployed here")
        return
    podman = find_engine("podman")
    objects = [each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")) if each]
    workload = find_workload(objects)
    pod, grace = _pod(podman, workload), workload.pod.get("terminationGracePeriodSeconds", 30)
    if pod:
        echo(f"stopping {pod} (at most {grace} s)")
        began = time.monotonic()
        podman.said("pod", "stop", "--time", str(grace), pod)
        failed, exit_code = podman.said("inspect", "--type", "container", "--format", "{{.State.ExitCode}}",
                                        _name(podman, workload))
        # a pod that was given up half made has no container
        with_code = "" if failed else f" with exit code {exit_code.strip()}"
        echo(f"ended after {time.monotonic() - began:.1f} s{with_code}")
        podman.run("pod", "rm", "--force", pod)
    names = [volume["name"] for volume in workload.pod.get("volumes", [])]
    names += [each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap"]
    for name in names:  # podman keeps them, and hands them to the next pod that has one of that name
        if _exists(podman, "volume", name):
            podman.run("volume", "rm", "--force", name)
    MANIFEST.unlink()


def _local(manifest: Object, cpus: str | None) -> Object:
    """The object as podman takes it."""
    found = copy.deepcopy(manifest)
    found["metadata"].pop("namespace", None)
    if found["kind"] == "Deployment":
        workload = find_workload([found])
        # or podman starts what has failed again and again, and nobody hears why
        workload.pod["restartPolicy"] = "Never"
        container = workload.container
        if "/" not in container["image"]:
            container["image"] = "localhost/" + container["image"]
        if cpus:
            container["resources"]["limits"]["cpu"] = cpus
            container["resources"].get("requests", {}).pop("cpu", None)
    return found


def _host_port(workload: Workload, name: str) -> int:
    for port in workload.ports:
        if port.get("name") == name and "hostPort" in port:
            return int(port["hostPort"])
    raise SettingsError(f"the port {name} is not published on this machine", where=workload.name,
                        remedy="give it a hostPort on hostIP 127.0.0.1, as the overlay local does")


def _all_on_loopback(workload: Workload) -> None:
    for port in workload.ports:
        if port.get("hostIP") != "127.0.0.1":
            raise SettingsError(f"port {port['containerPort']} would be open to everybody", where="ports",
                                why="podman publishes each containerPort on all addresses, and no network policy",
                                remedy="give it hostIP 127.0.0.1, as the overlay local does")


def _pod(podman: Engine, workload: Workload) -> str:
    """The pod's name, which older podmans number; empty where there is none."""
    name = workload.name.split()[1]
    return next((pod for pod in (f"{name}-pod", f"{name}-pod-0") if _exists(podman, "pod", pod)), "")


def _name(podman: Engine, workload: Workload) -> str:
    return f"{_pod(podman, workload)}-{workload.container['name']}"


def _exists(podman: Engine, kind: str, name: str) -> bool:
    """Raises ServerError where podman itself fails."""
    code, said = podman.said(kind, "exists", name)
    if code not in (0, 1):
        raise ServerError(f"podman {kind} exists fails", where=name, why=last_lines(said))
    return code == 0


def _state(podman: Engine, name: str) -> dict[str, Any]:
    state = podman.run("inspect", "--type", "container", "--format", "{{json .State}}", name)
    found: dict[str, Any] = json.loads(state)
    return found


def _wait_until_ready(podman: Engine, workload: Workload, health: str, echo: Echo) -> None:
    """Until /ready says so, at most as long as the startup probe would wait."""
    patience, name, began = startup_seconds(workload), _name(podman, workload), time.monotonic()
    while time.monotonic() - began < patience:
        state = _state(podman, name)
        if not state["Running"]:
            raise _failed(podman, name, f"it ended with exit code {state['ExitCode']}")
        try:
            if httpx.get(f"{health}/ready", timeout=2, trust_env=False).status_code == 200:
                echo(f"ready after {time.monotonic() - began:.1f} s")
                return
        except httpx.HTTPError:
            pass
        time.sleep(LOOK_SECONDS)
    raise _failed(podman, name, f"not ready after {patience} s")


def _failed(podman: Engine, name: str, why: str) -> ServerError:
    log = podman.said("logs", "--tail", str(LOG_LINES), name)[1]
    return ServerError("the pod does not serve", where=name, why=f"{why}\n{last_lines(log, LOG_LINES)}",
                       remedy="the log above says why; `tscpu serve --check` finds most of it beforehand")
