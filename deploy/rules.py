"""What schemas cannot know: whether the objects fit each other, serving.yaml and the archives.

Each rule is one function: what is wrong (a problem for each), or, where nothing is, a few words with the numbers.
Nothing here reads a cluster. `rules_pod` has those about one pod; here are those about what must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from configs.errors import ToolkitError
from deploy import rules_pod
from deploy.manifests import Object
from deploy.problem import Found, Problem
from deploy.schemas import mistakes, named
from deploy.workload import Case, config_map, read_case

Verdict = Literal["OK", "WRONG", "NOT CHECKED"]


@dataclass(frozen=True)
class Check:
    """One line of the table of checks."""

    title: str
    verdict: Verdict
    where: str = ""
    why: str = ""
    remedy: str = ""


def check(objects: Sequence[Object], model_store: Path | None = None) -> list[Check]:
    """Everything that is checked before anything is applied. Wrong fields first: nothing else is asked then.

    Args:
        model_store: the archives that are in the image, for what they cost; without them that is assumed.

    Raises:
        SettingsError: nothing among the objects runs the server.
    """
    wrong = [Check("fields", "WRONG", f"{each.where}: {each.field}", each.why, each.remedy)
             for each in mistakes(objects)]
    if wrong:
        return wrong
    case = read_case(objects, model_store)
    return [Check("fields", "OK", why=f"{len(objects)} objects"),
            *(each for title, rule in RULES.items() for each in _apply(title, rule, case))]


def _apply(title: str, rule: Callable[[Case], Found], case: Case) -> Iterator[Check]:
    try:
        found = rule(case)
    except ToolkitError as error:
        yield Check(title, "WRONG", error.where, f"{error.what}: {error.why}", error.remedy)
        return
    if found is None:
        yield Check(title, "NOT CHECKED", case.workload.name, case.settings_why or case.models_why or "no CPU limit")
    elif isinstance(found, str):
        yield Check(title, "OK", case.workload.name, found)
    else:
        for each in found:
            yield Check(title, "WRONG", each.where, each.why, each.remedy)


def serving_file(case: Case) -> Found:
    """serving.yaml is mounted and valid, listens on all addresses, and says its word on keys."""
    if case.settings is None:
        return [Problem(case.workload.name, case.settings_why, "a ConfigMap with a serving.yaml that `tscpu plan "
                                                               "--serving` takes")]
    where = named(config_map(case.objects, case.workload) or {})
    problems = []
    if case.settings.bind != "0.0.0.0":
        problems.append(Problem(where, f"bind is {case.settings.bind}: nothing outside the container reaches it",
                                "bind: 0.0.0.0"))
    if "token_authorization" not in case.explicit:
        problems.append(Problem(where, "token_authorization is not given: whether requests need keys is left to chance",
                                "token_authorization: false, or true"))
    return problems or f"bind {case.settings.bind}, keys {'on' if case.keys else 'off'}"


def ports(case: Case) -> Found:
    """serving.yaml, container, probes, services, policies and mirrors mean the same ports; management is nowhere."""
    if case.settings is None:
        return None
    workload, wanted = case.workload, case.settings.ports
    open_ports = {"inference": wanted.inference, "health": wanted.health, "metrics": wanted.metrics}
    problems = []
    numbers = [each["containerPort"] for each in workload.ports]
    for name in ("inference", "health"):
        if open_ports[name] not in numbers:
            problems.append(Problem(workload.name, f"serving.yaml's {name} port {open_ports[name]} is no containerPort",
                                    f"containerPort: {open_ports[name]}, or ports.{name} in serving.yaml"))
    for each in workload.ports:
        if each["containerPort"] not in open_ports.values():
            what = "management: it is for the pod alone" if each["containerPort"] == wanted.management else \
                "none that the server opens"
            problems.append(Problem(f"{workload.name}: containerPort {each['containerPort']}", what,
                                    "one of " + ", ".join(map(str, open_ports.values()))))
        if "hostPort" in each and each.get("hostIP") != "127.0.0.1":
            problems.append(Problem(f"{workload.name}: hostPort {each['hostPort']}", "open to the node's whole network",
                                    "hostIP: 127.0.0.1"))
    problems += [*_service_ports(case, wanted.inference), *_mirrors(case)]
    for each in case.of_kind("NetworkPolicy"):
        allowed = {port.get("port") for rule in each["spec"].get("ingress", []) for port in rule.get("ports", [{}])}
        for port in sorted(allowed, key=str):
            if port is None or (workload.port(port) or port) not in open_ports.values():
                problems.append(Problem(named(each), f"it lets traffic to port {port} in" if port else
                                        "it lets traffic to all ports in", "only to " + ", ".join(
                                            f"{number} ({name})" for name, number in open_ports.items())))
    return problems or ", ".join(f"{name} {number}" for name, number in open_ports.items())


def _service_ports(case: Case, inference: int) -> Iterator[Problem]:
    for each in case.of_kind("Service"):
        for port in each["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            number = case.workload.port(target) or target
            if case.workload.port(target) is None:
                have = ", ".join(f"{one.get('name', '')} ({one['containerPort']})" for one in case.workload.ports)
                yield Problem(named(each), f"its targetPort {target} is no port of the container", f"one of {have}")
            elif number != inference:
                yield Problem(named(each), f"it offers port {number}", f"the inference port {inference} only")


def _mirrors(case: Case) -> Iterator[Problem]:
    """Ours is a mirror and never answers, at a port that its Service has, and is sent no more than it takes."""
    offered = {each["metadata"]["name"]: {name for port in each["spec"]["ports"]
                                          for name in (port["port"], port.get("name"))}
               for each in case.of_kind("Service")}
    most = (case.settings.max_request_mb if case.settings else 0) * 2**20
    for each in case.of_kind("TraefikService"):
        main = each["spec"]["mirroring"]
        if main["name"] in offered:
            yield Problem(named(each), f"{main['name']} is meant to be the mirror, and would answer",
                          "mirroring.name: the service that answers today")
        if not 0 <= main.get("maxBodySize", -1) <= most:
            yield Problem(named(each), f"maxBodySize is {main.get('maxBodySize', 'unlimited')}, and serving.yaml takes "
                          f"{most} bytes: larger bodies would be kept in memory to be refused", f"at most {most}")
        mirrors = [mirror for mirror in main["mirrors"] if mirror["name"] in offered]
        for mirror in mirrors:
            if mirror.get("port") not in offered[mirror["name"]]:
                yield Problem(named(each), f"Service {mirror['name']} has no port {mirror.get('port')}",
                              f"one of {sorted(map(str, offered[mirror['name']]))}")
        if not mirrors:
            yield Problem(named(each), "none of its mirrors is a Service of these objects",
                          f"mirrors: [{{name: {next(iter(offered), '…')}, …}}]")


def labels(case: Case) -> Found:
    """Whoever selects pods selects these, and nobody selects all of a namespace."""
    workload = case.workload
    selectors: list[tuple[str, Object]] = []
    if workload.spec:
        selectors.append((f"{workload.name}: selector", workload.spec["selector"].get("matchLabels", {})))
    selectors += [(f"{workload.name}: topologySpreadConstraints", each.get("labelSelector", {}).get("matchLabels", {}))
                  for each in workload.pod.get("topologySpreadConstraints", [])]
    selectors += [(named(each), each["spec"].get("selector", {})) for each in case.of_kind("Service")]
    selectors += [(named(each), each["spec"].get("selector", {}).get("matchLabels", {}))
                  for each in case.of_kind("PodDisruptionBudget")]
    selectors += [(named(each), each["spec"].get("podSelector", {}).get("matchLabels", {}))
                  for each in case.of_kind("NetworkPolicy")]
    problems = []
    for where, wanted in selectors:
        if not wanted:
            problems.append(Problem(where, "it selects nothing by name: all pods of the namespace, or none",
                                    f"the labels {workload.labels}"))
        problems += [Problem(where, f"it selects {key}={value}, and the pods have {workload.labels.get(key)!r}",
                             f"{key}: {workload.labels.get(key)}")
                     for key, value in wanted.items() if workload.labels.get(key) != value]
    for each in case.of_kind("HorizontalPodAutoscaler"):
        target = "{kind} {name}".format(**each["spec"]["scaleTargetRef"])
        if target != workload.name:
            problems.append(Problem(named(each), f"it scales {target}, which is not here", workload.name))
    return problems or f"{len(selectors)} selectors"


def references(case: Case) -> Found:
    """What the pod names is among the objects."""
    problems = []
    for kind, name in [("ServiceAccount", case.workload.pod.get("serviceAccountName")),
                       *(("ConfigMap", each["configMap"]["name"]) for each in case.workload.pod.get("volumes", [])
                         if "configMap" in each)]:
        if name and name not in [each["metadata"]["name"] for each in case.of_kind(kind)]:
            problems.append(Problem(case.workload.name, f"{kind} {name} is not among the objects",
                                    "add it to the overlay, or correct the name"))
    return problems or "all there"


RULES: dict[str, Callable[[Case], Found]] = {
    "image": rules_pod.image,
    "serving.yaml": serving_file,
    "ports": ports,
    "labels": labels,
    "references": references,
    "hardening": rules_pod.hardening,
    "folders": rules_pod.folders,
    "CPUs": rules_pod.cpus,
    "memory": rules_pod.memory,
    "start": rules_pod.start,
    "liveness": rules_pod.liveness,
    "readiness": rules_pod.readiness,
    "end": rules_pod.end,
}
