"""Each rule, kept by every overlay and broken: what is said names the object, the value and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.errors import SettingsError
from deploy.rules import RULES, Check, check
from deploy.workload import quantity
from tests.unit.configs.made_up import archive
from tests.unit.deploy.stored import NAMES, container, of_kind, pod, set_serving, stored

Objects = list[dict[str, Any]]
Spoil = Callable[[Objects], object]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two archives with 1 GB a worker, 20 s to load."""
    for name in ("a", "b"):
        archive(tmp_path, name, measured={"eager": {"resident_bytes": 1e9, "load_seconds": 20, "inference_ms": 50}})
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_every_overlay_keeps_every_rule(name: str, store: Path) -> None:
    checks = check(stored(name), store)
    assert {each.verdict for each in checks} == {"OK"}
    assert [each.title for each in checks] == ["fields", *RULES]


def deployment(objects: Objects) -> dict[str, Any]:
    found: dict[str, Any] = of_kind(objects, "Deployment")["spec"]
    return found


def cpu(kind: str, value: str) -> Spoil:
    return lambda objects: container(objects)["resources"][kind].update(cpu=value)


def serving(old: str, new: str) -> Spoil:
    return lambda objects: set_serving(objects, old, new)


def both(*spoils: Spoil) -> Spoil:
    return lambda objects: [spoil(objects) for spoil in spoils]


def without(kind: str) -> Spoil:
    return lambda objects: objects.remove(of_kind(objects, kind))


# rule → (overlay, what is done to it, words of the problem, words of the remedy)
BROKEN: dict[str, tuple[str, str, Spoil, str, str]] = {
    "no tag": ("image", "shared-node", lambda o: container(o).update(image="registry.example:5000/server"),
               "has no tag", "NAME:TAG"),
    "the tag latest": ("image", "kserve", lambda o: container(o).update(image="server:latest"), "the tag latest",
                       "NAME@sha256"),
    "a serving.yaml with a typo": ("serving.yaml", "shared-node", serving("access_log", "acess_log"),
                                   "acess_log: no such key; access_log perhaps?", "tscpu plan"),
    "no serving.yaml": ("serving.yaml", "local", lambda o: of_kind(o, "ConfigMap")["data"].clear(),
                        "no ConfigMap with serving.yaml is mounted at /etc/tscpu", "a ConfigMap"),
    "bound to loopback": ("serving.yaml", "kserve", serving("0.0.0.0", "127.0.0.1"), "bind is 127.0.0.1",
                          "bind: 0.0.0.0"),
    "keys left to chance": ("serving.yaml", "shared-node", serving("token_authorization: false", ""),
                            "token_authorization is not given", "false, or true"),
    "another inference port": ("ports", "shared-node", serving("inference: 8080", "inference: 9090"),
                               "inference port 9090 is no containerPort", "containerPort: 9090"),
    "the management port in the container's list": (
        "ports", "exclusive-cores", lambda o: container(o)["ports"].append({"containerPort": 8081}), "management",
        "one of 8080"),
    "the management port let in": (
        "ports", "shared-node",
        lambda o: of_kind(o, "NetworkPolicy")["spec"]["ingress"][0]["ports"].append({"port": 8081}),
        "lets traffic to port 8081 in", "8080 (inference)"),
    "all ports let in": ("ports", "shared-node",
                         lambda o: of_kind(o, "NetworkPolicy")["spec"]["ingress"][0].pop("ports"), "all ports", "8080"),
    "a service on the health port": (
        "ports", "shared-node", lambda o: of_kind(o, "Service")["spec"]["ports"][0].update(targetPort="health"),
        "it offers port 8090", "inference port 8080"),
    "a service on no port": (
        "ports", "shared-node", lambda o: of_kind(o, "Service")["spec"]["ports"][0].update(targetPort="web"),
        "targetPort web is no port", "http (8080)"),
    "published on all addresses": ("ports", "local", lambda o: container(o)["ports"][0].pop("hostIP"),
                                   "open to the node's whole network", "hostIP: 127.0.0.1"),
    "the mirror answers": ("ports", "mirroring",
                           lambda o: of_kind(o, "TraefikService")["spec"]["mirroring"].update(name="tscpu"),
                           "tscpu is meant to be the mirror, and would answer", "the service that answers today"),
    "mirrored to a port that is not there": (
        "ports", "mirroring",
        lambda o: of_kind(o, "TraefikService")["spec"]["mirroring"]["mirrors"][0].update(port=80),
        "Service tscpu has no port 80", "8080"),
    "larger bodies mirrored than taken": ("ports", "mirroring", serving("max_request_mb: 16", "max_request_mb: 8"),
                                          "maxBodySize is 16777216, and serving.yaml takes 8388608", "at most 8388608"),
    "mirrored to somebody else": (
        "ports", "mirroring",
        lambda o: of_kind(o, "TraefikService")["spec"]["mirroring"]["mirrors"][0].update(name="tscpa"),
        "none of its mirrors", "tscpu"),
    "a service that selects others": (
        "labels", "shared-node", lambda o: of_kind(o, "Service")["spec"]["selector"].update({
            "app.kubernetes.io/instance": "other"}), "app.kubernetes.io/instance=other", "tscpu"),
    "pods without the selector's label": (
        "labels", "local", lambda o: deployment(o)["template"]["metadata"]["labels"].pop("app.kubernetes.io/name"),
        "the pods have None", "app.kubernetes.io/name"),
    "a fence around the whole namespace": (
        "labels", "kserve", lambda o: of_kind(o, "NetworkPolicy")["spec"].update(podSelector={}),
        "all pods of the namespace", "the labels"),
    "an autoscaler of something else": (
        "labels", "shared-node",
        lambda o: of_kind(o, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"].update(name="other"),
        "it scales Deployment other", "Deployment tscpu"),
    "no service account": ("references", "kserve", without("ServiceAccount"),
                           "ServiceAccount tscpu is not among the objects", "add it"),
    "a writable root": ("hardening", "shared-node",
                        lambda o: container(o)["securityContext"].update(readOnlyRootFilesystem=False),
                        "readOnlyRootFilesystem is False", "true"),
    "a capability": ("hardening", "kserve",
                     lambda o: container(o)["securityContext"]["capabilities"].update(add=["SYS_NICE"]), "SYS_NICE",
                     "[]"),
    "root": ("hardening", "local", lambda o: pod(o)["securityContext"].update(runAsUser=0), "runAsUser is 0", "10001"),
    "a token in pods": ("hardening", "shared-node", lambda o: pod(o).pop("automountServiceAccountToken"),
                        "automountServiceAccountToken is None", "false"),
    "a token of the account": ("hardening", "shared-node",
                               lambda o: of_kind(o, "ServiceAccount").pop("automountServiceAccountToken"),
                               "its token is mounted", "false"),
    "no seccomp": ("hardening", "shared-node", lambda o: pod(o)["securityContext"].pop("seccompProfile"),
                   "seccompProfile.type is None", "RuntimeDefault"),
    "nowhere to write": ("folders", "shared-node", lambda o: container(o)["volumeMounts"].pop(1),
                         "nothing can be written to /run/tscpu", "emptyDir"),
    "a folder without a limit": ("folders", "kserve",
                                 lambda o: of_kind(o, "ServingRuntime")["spec"]["volumes"][1]["emptyDir"].clear(),
                                 "no sizeLimit", "2Gi"),
    "folders larger than the pod's storage": (
        "folders", "local", lambda o: container(o)["resources"]["limits"].update({"ephemeral-storage": "2Gi"}),
        "2Gi + 1Gi do not fit an ephemeral-storage limit of 2Gi", "their sum"),
    "no CPU limit": ("CPUs", "shared-node", lambda o: container(o)["resources"]["limits"].pop("cpu"),
                     "would plan for the whole node", "limits"),
    "a request beyond the limit": ("CPUs", "shared-node", cpu("requests", "6"), "requests 6, limits 4", "no higher"),
    "half a core of its own": ("CPUs", "exclusive-cores", both(cpu("requests", "3500m"), cpu("limits", "3500m")),
                               "3500m CPUs", "a whole number"),
    "exclusive, but Burstable": ("CPUs", "exclusive-cores", cpu("requests", "2"), "not Guaranteed",
                                 "requests equal to limits"),
    "exclusive, but with less memory asked for": (
        "CPUs", "exclusive-cores", lambda o: container(o)["resources"]["requests"].update(memory="4Gi"),
        "requests 4Gi, limits 8Gi: not Guaranteed", "equal"),
    "an autoscaler that never scales": (
        "CPUs", "exclusive-cores", lambda o: of_kind(o, "HorizontalPodAutoscaler")["spec"]["metrics"][0]["resource"][
            "target"].update(averageUtilization=140), "140 % of the request", "below 100"),
    "KServe's autoscaler that never scales": (
        "CPUs", "kserve", both(cpu("requests", "4"), lambda o: of_kind(o, "InferenceService")["spec"][
            "predictor"].update(scaleTarget=100)), "100 % of the request", "below 100"),
    "KServe's service with half of the memory": (
        "memory", "kserve", lambda o: of_kind(o, "InferenceService")["spec"]["predictor"]["model"].update(
            resources={"limits": {"memory": "4Gi"}}), "the limit is 4.00 GiB", "at least 5Gi"),
    "memory for fewer workers": ("memory", "shared-node",
                                 lambda o: container(o)["resources"]["limits"].update(memory="3Gi"),
                                 "2 × a of 0.93 GiB, 2 × b of 0.93 GiB and the JVM take 4.35 GiB (measured); the limit "
                                 "is 3.00 GiB", "at least 5Gi, or fewer CPUs"),
    "no memory limit": ("memory", "local", lambda o: container(o)["resources"]["limits"].pop("memory"),
                        "no memory limit", "8Gi"),
    "more workers than CPUs": ("memory", "shared-node", serving("models: {}", "models: {a: {workers: 9}}"),
                               "do not fit", "workers × threads"),
    "no startup probe": ("start", "kserve", lambda o: container(o).pop("startupProbe"), "no startupProbe", "/startup"),
    "a startup probe that gives up first": (
        "start", "shared-node", lambda o: container(o)["startupProbe"].update(failureThreshold=20),
        "= 100 s: the supervisor itself waits up to 170 s", "failureThreshold: 34"),
    "a rollout that is given up first": ("start", "shared-node", lambda o: deployment(o).update(
        progressDeadlineSeconds=300), "300 s: a rollout is given up", "more than 450"),
    "a hasty liveness probe": ("liveness", "shared-node", lambda o: container(o)["livenessProbe"].update(
        failureThreshold=1), "= 10 s", "at least 30 s"),
    "liveness by readiness": ("liveness", "kserve", lambda o: container(o)["livenessProbe"]["httpGet"].update(
        path="/ready"), "it asks for /ready", "path: /live"),
    "no readiness probe": ("readiness", "local", lambda o: container(o).pop("readinessProbe"), "no readinessProbe",
                           "/ready"),
    "readiness by ping": ("readiness", "shared-node", lambda o: container(o)["readinessProbe"].update(
        httpGet={"path": "/ping", "port": "http"}), "it asks port http", "health port, 8090"),
    "killed while it drains": ("end", "shared-node", serving("grace_seconds: 40", "grace_seconds: 90"),
                               "60 s, and preStop 5 s + drain.grace_seconds 90 s + 5 s = 100 s", "at least 100"),
    "no time for load balancers": ("end", "kserve", lambda o: container(o).pop("lifecycle"), "none, or no sleep",
                                   "sleep"),
    "all grace is notice": ("end", "shared-node", serving("notice_seconds: 5", "notice_seconds: 40"),
                            "leaves nothing of it", "longer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named_with_what_would_be_right(name: str, store: Path) -> None:
    rule, overlay, spoil, words, remedy = BROKEN[name]
    objects = stored(overlay)
    spoil(objects)
    wrong = [each for each in check(objects, store) if each.verdict == "WRONG" and each.title == rule]
    assert any(words in each.why and remedy in each.remedy and each.where for each in wrong), wrong


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, *_ in BROKEN.values()} == set(RULES)


def test_wrong_fields_are_all_that_is_said_about_wrong_fields(store: Path) -> None:
    objects = stored("shared-node")
    container(objects)["imagePullPolicy"] = "Sometimes"
    container(objects)["image"] = "server:latest"
    [only] = check(objects, store)
    assert only.title == "fields" and only.where.endswith("containers[0].imagePullPolicy")


def named(checks: list[Check], title: str) -> Check:
    return next(each for each in checks if each.title == title)


def test_without_archives_and_names_memory_is_not_checked(tmp_path: Path) -> None:
    checks = check(stored("shared-node"), tmp_path)
    assert named(checks, "memory").verdict == "NOT CHECKED"
    assert named(checks, "memory").why == "serving.yaml names no models, and no archives are at hand"


def test_without_archives_what_named_models_take_is_assumed() -> None:
    objects = stored("shared-node")
    set_serving(objects, "models: {}", "models: {a: {}, b: {runtime: openvino}}")
    assert "assumed" in named(check(objects), "memory").why
    assert named(check(objects), "start").why == "450 s; the supervisor gives up after 250 s at most"


def test_archives_that_cannot_be_read_are_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "a.mar").write_text("no archive")
    found = named(check(stored("shared-node"), tmp_path), "memory")
    assert found.verdict == "NOT CHECKED" and "a.mar" in found.why


def test_the_same_limits_plan_pins_on_exclusive_cores_only(store: Path) -> None:
    from deploy.sizing import size
    from deploy.workload import read_case

    plans = {}
    for name in ("shared-node", "exclusive-cores"):
        found = size(read_case(stored(name), store))
        assert found is not None
        plans[name] = found.plan.placement
    assert plans == {"shared-node": "shared", "exclusive-cores": "exclusive"}


def test_nothing_that_runs_the_server() -> None:
    with pytest.raises(SettingsError, match=r"(?s)nothing here runs the server.*Service tscpu"):
        check([of_kind(stored("shared-node"), "Service")])


def test_a_service_of_kserve_without_its_runtime() -> None:
    objects = [each for each in stored("kserve") if each["kind"] != "ServingRuntime"]
    with pytest.raises(SettingsError, match="the service's runtime is not among the objects"):
        check(objects)


@pytest.mark.parametrize(("text", "value"), [
    ("500m", 0.5), ("4", 4), (4, 4), ("8Gi", 8 * 2**30), ("1.5Gi", 1.5 * 2**30), ("2G", 2e9), ("100k", 1e5),
    ("3Mi", 3 * 2**20)])
def test_amounts_are_read_as_kubernetes_reads_them(text: str | int, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["8GB", "", "m", "-1", "4 Gi"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="this is no amount"):
        quantity(text)
