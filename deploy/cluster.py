"""Objects → a cluster: what changes is shown, applied, waited for and asked a real question; or taken back.

Nothing counts as deployed before every model has answered through the Service. If the rollout or a request fails, the
failing pod's last words are shown and the Deployment goes back to the revision it had; what had not been there before
is deleted. KServe rolls a Deployment of its own: there a service that had been there before stays as applied.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from configs.errors import ServerError, ToolkitError
from deploy.kubectl import ANSWER, Kubectl
from deploy.manifests import Object, to_yaml
from deploy.request import Echo, ask, served
from deploy.rules_pod import pre_stop_seconds, startup_seconds
from deploy.schemas import named
from deploy.workload import Case, Workload

PULL_SECONDS = 300  # for nodes that pull the image and pods that wait for a place
LOG_LINES, EVENTS, PODS = 15, 8, 2
KSERVE_PORT = 80
REVISION = "deployment.kubernetes.io/revision"


def up(case: Case, namespace: str | None, models: Sequence[str], echo: Echo) -> None:
    """Deploys, and returns once every model has answered.

    Args:
        namespace: None for the objects' own, or that of kubectl's context.
        models: to be asked; empty for those that the pods say they serve.

    Raises:
        SettingsError: no kubectl, no cluster, no permission, no namespace, or a kind that the cluster lacks.
        ServerError: the rollout failed or a model did not answer; what could be taken back has been.
    """
    kubectl = Kubectl(namespace or _own_namespace(case.objects))
    _say_where(kubectl, echo)
    before = _revision(kubectl, case.workload)
    text = to_yaml(list(case.objects))
    difference = kubectl.run("diff", "--filename=-", given=text, allowed=(0, 1))
    if difference.code == 1 and not difference.out:
        raise kubectl.trouble(difference, ("diff",))
    echo(difference.out.rstrip() or "no differences")
    applied = kubectl.attempt("apply", "--filename=-", ANSWER, given=text)
    lines = applied.out.splitlines()
    for line in lines:
        echo(line)
    created = [line.removesuffix(" created") for line in lines if line.endswith(" created")]
    try:
        if applied.code:
            raise kubectl.trouble(applied, ("apply",))
        _wait(kubectl, case, echo)
        _request(kubectl, case, models, echo)
    except ToolkitError:
        _last_words(kubectl, case.workload, echo)
        _take_back(kubectl, case, before, created, echo)
        raise


def down(objects: Sequence[Object], namespace: str | None, echo: Echo) -> None:
    """Deletes the objects, and the ConfigMaps of earlier revisions; what is not there is no mistake.

    Raises:
        SettingsError: no kubectl, no cluster or no permission.
    """
    kubectl = Kubectl(namespace or _own_namespace(objects))
    _say_where(kubectl, echo)
    echo(kubectl.run("delete", "--filename=-", "--ignore-not-found", given=to_yaml(list(objects))).out.rstrip())
    for each in objects:
        labels = each["metadata"].get("labels", {})
        mine = {key: labels[key] for key in ("app.kubernetes.io/name", "app.kubernetes.io/instance") if key in labels}
        if each["kind"] == "ConfigMap" and len(mine) == 2:
            selector = ",".join(f"{key}={value}" for key, value in mine.items())
            echo(kubectl.run("delete", "configmap", f"--selector={selector}", "--ignore-not-found").out.rstrip())


def _own_namespace(objects: Sequence[Object]) -> str | None:
    """The namespace that an overlay gives its objects."""
    return next((str(each["metadata"]["namespace"]) for each in objects if "namespace" in each["metadata"]), None)


def _say_where(kubectl: Kubectl, echo: Echo) -> None:
    context = kubectl.attempt("config", "current-context").out.strip()  # a pod of the cluster has none, and needs none
    echo(f"context {context or 'none'}, namespace {kubectl.namespace or 'of the context'}")


def rollout_seconds(case: Case) -> int:
    """How long a rollout may take: as many steps as the strategy makes of it, each of which starts and ends pods."""
    workload = case.workload
    replicas = max([int(workload.spec.get("replicas", 1)), int(workload.pod.get("maxReplicas", 1)),
                    *(int(each["spec"]["maxReplicas"]) for each in case.of_kind("HorizontalPodAutoscaler"))])
    rolling = workload.spec.get("strategy", {}).get("rollingUpdate", {})
    at_once = max(1, _part(rolling.get("maxSurge", "25%"), replicas, math.ceil)
                  + _part(rolling.get("maxUnavailable", "25%"), replicas, math.floor))
    ending = int(workload.pod.get("terminationGracePeriodSeconds", 30)) + math.ceil(pre_stop_seconds(workload) or 0)
    return math.ceil(replicas / at_once) * (startup_seconds(workload) + ending) + PULL_SECONDS


def _part(given: int | str, replicas: int, rounded: Callable[[float], int]) -> int:
    return given if isinstance(given, int) else rounded(int(given.removesuffix("%")) * replicas / 100)


def _target(workload: Workload) -> str:
    """As kubectl names it."""
    kind, name = workload.name.split()
    return f"{kind.lower()}/{name}"


def _revision(kubectl: Kubectl, workload: Workload) -> str:
    """The revision that a Deployment has now; "" where it is not there, or no Deployment."""
    if not workload.spec:
        return ""
    found = kubectl.run("get", _target(workload), "--output=json", "--ignore-not-found", ANSWER).out
    return str(json.loads(found)["metadata"].get("annotations", {}).get(REVISION, "")) if found.strip() else ""


def _wait(kubectl: Kubectl, case: Case, echo: Echo) -> None:
    seconds, target = rollout_seconds(case), _target(case.workload)
    echo(f"waiting for {case.workload.name} (at most {seconds} s) …")
    if case.workload.spec:
        done = kubectl.attempt("rollout", "status", target, f"--timeout={seconds}s")
    else:
        done = kubectl.attempt("wait", "--for=condition=Ready", target, f"--timeout={seconds}s")
    if done.code:
        lines = (done.err.strip() or done.out.strip()).splitlines()
        raise ServerError("the rollout failed", where=case.workload.name, why=lines[-1] if lines else "no reason given",
                          remedy="the pod's events and log are above")
    echo(done.out.strip().rpartition("\n")[2])


def _request(kubectl: Kubectl, case: Case, models: Sequence[str], echo: Echo) -> None:
    if case.keys:
        echo("token_authorization is on: no request is sent, since each pod has a key of its own")
        return
    service, port = _service(case)
    names = models or _served(kubectl, case)
    with kubectl.forwarded(f"service/{service}", port) as address:
        for line in ask(address, names):
            echo(line)


def _service(case: Case) -> tuple[str, int]:
    """The name and port that requests are sent to."""
    for each in case.of_kind("Service"):
        return str(each["metadata"]["name"]), int(each["spec"]["ports"][0]["port"])
    return f"{case.workload.name.split()[1]}-predictor", KSERVE_PORT


def _served(kubectl: Kubectl, case: Case) -> list[str]:
    """The models that a pod says it serves."""
    kind, name = case.workload.name.split()
    target = f"deployment/{name}" if kind == "Deployment" else f"deployment/{name}-predictor"
    port = case.settings.ports.health if case.settings else 8090
    with kubectl.forwarded(target, port) as address:
        return served(address, target)


def _last_words(kubectl: Kubectl, workload: Workload, echo: Echo) -> None:
    """Events and log of the newest pods that are not ready, or of the newest pod. Failing to get them is no failure."""
    selector = ",".join(f"{key}={value}" for key, value in sorted(workload.labels.items()))
    found = kubectl.attempt("get", "pods", f"--selector={selector}", "--output=json", ANSWER)
    try:
        pods = sorted(json.loads(found.out)["items"], key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    except (ValueError, LookupError, TypeError):
        return
    for pod in ([each for each in pods if not _is_ready(each)] or pods)[-PODS:]:
        name = str(pod["metadata"]["name"])
        echo(f"pod {name}: {', '.join(_states(pod)) or pod.get('status', {}).get('phase', 'unknown')}")
        events = kubectl.attempt("get", "events", f"--field-selector=involvedObject.name={name}", "--output=json",
                                 ANSWER)
        _say(echo, "event", list(_events(events.out))[-EVENTS:])
        restarted = any(each.get("restartCount") for each in pod.get("status", {}).get("containerStatuses", []))
        for previous in ([("--previous",)] if restarted else []) + [()]:
            log = kubectl.attempt("logs", name, f"--tail={LOG_LINES}", *previous, ANSWER)
            _say(echo, "log of the run before" if previous else "log", log.out.splitlines())


def _say(echo: Echo, what: str, lines: Iterable[str]) -> None:
    for line in lines:
        echo(f"  {what}: {line}")


def _is_ready(pod: Any) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _states(pod: Any) -> Iterable[str]:
    """Why its containers do not run."""
    for each in pod.get("status", {}).get("containerStatuses", []):
        for state in each.get("state", {}).values():
            if "reason" in state:
                yield f"{state['reason']} {state.get('message', '')}".strip()


def _events(text: str) -> Iterable[str]:
    try:
        items = json.loads(text)["items"]
    except (ValueError, LookupError, TypeError):
        return
    for each in sorted(items, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")):
        yield f"{each.get('reason', '')}: {each.get('message', '')}"


def _take_back(kubectl: Kubectl, case: Case, before: str, created: list[str], echo: Echo) -> None:
    """The Deployment as it was, and nothing that was not there. Failures are told: there is one already."""
    target = _target(case.workload)
    if before:
        # by its number: where only labels have changed, "the one before" would be one too many
        done = kubectl.attempt("rollout", "undo", target, f"--to-revision={before}")
        echo(done.out.strip() or done.err.strip())
        if done.code:
            echo(f"{case.workload.name} could not be taken back to revision {before}; by hand: kubectl rollout undo "
                 f"{target}")
            return
        others = [named(each) for each in case.objects if each["kind"] not in ("Deployment", "ConfigMap")]
        echo(f"{case.workload.name} is back at revision {before}; as applied stay: {', '.join(others)}")
    elif created:
        done = kubectl.attempt("delete", "--ignore-not-found", "--wait=false", *created)
        echo(done.out.strip() or done.err.strip())
    else:
        echo(f"{case.workload.name} was there before and stays as applied")
