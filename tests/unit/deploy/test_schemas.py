"""A typo in any overlay's output is found, with the object, the field and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deploy.schemas import Mistake, mistakes
from tests.unit.deploy.stored import NAMES, container, of_kind, pod, stored

Objects = list[dict[str, Any]]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_is_valid(name: str) -> None:
    assert mistakes(stored(name)) == []


def found(name: str, spoil: Callable[[Objects], object]) -> Mistake:
    objects = stored(name)
    spoil(objects)
    [mistake] = mistakes(objects)
    return mistake


def rename(thing: dict[str, Any], old: str, new: str) -> None:
    thing[new] = thing.pop(old)


AT = "spec.template.spec.containers[0]"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "kserve"])
def test_a_misspelt_field_of_a_container(name: str) -> None:
    mistake = found(name, lambda objects: rename(container(objects), "readinessProbe", "readinesProbe"))
    assert mistake == Mistake("Deployment tscpu", f"{AT}.readinesProbe", "no such field", "readinessProbe, perhaps")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "kserve"])
def test_a_number_as_text(name: str) -> None:
    mistake = found(name, lambda objects: container(objects)["startupProbe"].update(failureThreshold="90"))
    assert mistake == Mistake("Deployment tscpu", f"{AT}.startupProbe.failureThreshold", "found '90'", "integer")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "kserve"])
def test_a_word_that_the_field_does_not_have(name: str) -> None:
    mistake = found(name, lambda objects: container(objects).update(imagePullPolicy="IfNotPresnt"))
    assert mistake == Mistake("Deployment tscpu", f"{AT}.imagePullPolicy", "found 'IfNotPresnt'",
                              "IfNotPresent, perhaps")


def service(objects: Objects) -> dict[str, Any]:
    return of_kind(objects, "InferenceService")["spec"]["predictor"]  # type: ignore[no-any-return]


def mirroring(objects: Objects) -> dict[str, Any]:
    return of_kind(objects, "TraefikService")["spec"]["mirroring"]  # type: ignore[no-any-return]


def route(objects: Objects) -> dict[str, Any]:
    return of_kind(objects, "IngressRoute")["spec"]["routes"][0]  # type: ignore[no-any-return]


CASES: dict[str, tuple[str, Callable[[Objects], object], str, str]] = {
    "runtime, field": ("kserve", lambda o: rename(container(o), "readinessProbe", "readinesProbe"),
                       "ServingRuntime tscpu: spec.containers[0].readinesProbe: no such field",
                       "readinessProbe, perhaps"),
    "runtime, type": ("kserve", lambda o: of_kind(o, "ServingRuntime")["spec"].update(multiModel="no"),
                      "ServingRuntime tscpu: spec.multiModel: found 'no'", "boolean"),
    "runtime, word": ("kserve", lambda o: of_kind(o, "ServingRuntime")["spec"].update(protocolVersions=["v3"]),
                      "ServingRuntime tscpu: spec.protocolVersions[0]: found 'v3'", "one of ['v1', 'v2'"),
    "inference, field": ("kserve", lambda o: rename(service(o), "minReplicas", "minReplica"),
                         "InferenceService tscpu: spec.predictor.minReplica: no such field", "minReplicas, perhaps"),
    "inference, type": ("kserve", lambda o: service(o).update(minReplicas="2"),
                        "InferenceService tscpu: spec.predictor.minReplicas: found '2'", "integer"),
    "inference, word": ("kserve", lambda o: service(o).update(scaleMetric="CPU"),
                        "InferenceService tscpu: spec.predictor.scaleMetric: found 'CPU'", "one of ['cpu'"),
    "mirror, field": ("mirroring", lambda o: rename(mirroring(o)["mirrors"][0], "percent", "percentage"),
                      "TraefikService tscpu-mirrored: spec.mirroring.mirrors[0].percentage: no such field",
                      "percent, perhaps"),
    "mirror, type": ("mirroring", lambda o: mirroring(o).update(mirrorBody="true"),
                     "TraefikService tscpu-mirrored: spec.mirroring.mirrorBody: found 'true'", "boolean"),
    "mirror, more than all": ("mirroring", lambda o: mirroring(o)["mirrors"][0].update(percent=110),
                              "TraefikService tscpu-mirrored: spec.mirroring.mirrors[0].percent: found 110",
                              "at most 100"),
    "mirror, missing": ("mirroring", lambda o: mirroring(o).pop("mirrors"),
                        "TraefikService tscpu-mirrored: spec.mirroring.mirrors: missing", "has to be given"),
    "route, field": ("mirroring", lambda o: rename(route(o), "match", "matches"),
                     "IngressRoute tscpu-mirrored: spec.routes[0].matches: no such field", "match, perhaps"),
    "route, word": ("mirroring", lambda o: route(o)["services"][0].update(kind="TraefikServices"),
                    "IngressRoute tscpu-mirrored: spec.routes[0].services[0].kind: found 'TraefikServices'",
                    "one of ['Service', 'TraefikService']"),
    "autoscaler, field": ("shared-node", lambda o: rename(of_kind(o, "HorizontalPodAutoscaler")["spec"], "minReplicas",
                                                          "minReplica"),
                          "HorizontalPodAutoscaler tscpu: spec.minReplica: no such field", "minReplicas, perhaps"),
    "autoscaler, word": ("exclusive-cores", lambda o: of_kind(o, "HorizontalPodAutoscaler")["spec"]["metrics"][0][
        "resource"]["target"].update(type="Utilisation"),
                         "HorizontalPodAutoscaler tscpu: spec.metrics[0].resource.target.type: found 'Utilisation'",
                         "Utilization, perhaps"),
    "policy, word": ("shared-node", lambda o: of_kind(o, "NetworkPolicy")["spec"].update(policyTypes=["ingress"]),
                     "NetworkPolicy tscpu: spec.policyTypes[0]: found 'ingress'", "Ingress, perhaps"),
    "budget, field": ("shared-node", lambda o: rename(of_kind(o, "PodDisruptionBudget")["spec"], "maxUnavailable",
                                                      "maxUnavailible"),
                      "PodDisruptionBudget tscpu: spec.maxUnavailible: no such field", "maxUnavailable, perhaps"),
    "service, word": ("shared-node", lambda o: of_kind(o, "Service")["spec"].update(type="Cluster"),
                      "Service tscpu: spec.type: found 'Cluster'", "ClusterIP, perhaps"),
    "amount": ("local", lambda o: container(o)["resources"]["limits"].update(memory="8GB"),
               f"Deployment tscpu: {AT}.resources.limits.memory: found '8GB'", "8Gi"),
    "volume": ("local", lambda o: pod(o)["volumes"][1]["emptyDir"].update(sizeLimit="2 Gi"),
               "Deployment tscpu: spec.template.spec.volumes[1].emptyDir.sizeLimit: found '2 Gi'", "8Gi"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_planted_typo_is_named_with_what_would_be_right(case: str) -> None:
    name, spoil, words, remedy = CASES[case]
    objects = stored(name)
    spoil(objects)
    first = next(each for each in mistakes(objects) if f"{each.where}: {each.field}: {each.why}" == words)
    assert remedy in first.remedy


@pytest.mark.parametrize(("api", "kind"), [("example.com/v1", "Thing"), ("traefik.io/v1", "TraefikService"),
                                           ("autoscaling/v1beta9", "HorizontalPodAutoscaler")])
def test_a_kind_that_nobody_knows_is_an_error(api: str, kind: str) -> None:
    [mistake] = mistakes([{"apiVersion": api, "kind": kind, "metadata": {"name": "x"}}])
    assert mistake.why == f"nobody knows the kind {kind} of {api}"
    assert "TraefikService" in mistake.remedy


def test_an_object_without_a_kind() -> None:
    [mistake] = mistakes([{"metadata": {"name": "x"}}])
    assert mistake.where == "object without kind x"
