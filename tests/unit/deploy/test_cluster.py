"""What is asked of kubectl when a deployment goes well, fails at a step, or meets a cluster that will not have it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.errors import ServerError, SettingsError
from deploy.cluster import down, rollout_seconds, up
from deploy.workload import read_case
from tests.unit.deploy.conftest import Pods, StandIn
from tests.unit.deploy.stored import of_kind, set_serving, stored

SELECTOR = "app.kubernetes.io/name=torchserve-cpu-toolkit,app.kubernetes.io/instance=tscpu"


def deploy(name: str = "shared-node", models: tuple[str, ...] = (), namespace: str | None = None,
           spoil: Callable[[list[dict[str, Any]]], object] = len) -> list[str]:
    """The lines that a deployment says."""
    objects = stored(name)
    spoil(objects)
    lines: list[str] = []
    try:
        up(read_case(objects, None), namespace, models, lines.append)
    except (ServerError, SettingsError) as error:
        error.add_note("\n".join(lines))
        raise
    return lines


def there_before(kubectl: StandIn) -> None:
    kubectl.answers("get-deployment", json.dumps(
        {"metadata": {"annotations": {"deployment.kubernetes.io/revision": "7"}}}))
    kubectl.answers("apply", "configmap/tscpu-serving-2 created\ndeployment.apps/tscpu configured\n")


def test_success_shows_what_changes_applies_waits_and_asks_every_model(kubectl: StandIn, pods: Pods) -> None:
    lines = deploy(namespace="vision")
    verbs = [call.removeprefix("--namespace vision ").split()[0] for call in kubectl.calls]
    assert verbs == ["config", "get", "diff", "apply", "rollout", "port-forward", "port-forward"]
    assert all(call.startswith("--namespace vision ") for call in kubectl.calls)
    assert "context kind-here, namespace vision" in lines and "+  name: tscpu" in lines
    assert pods.asked == ["/predictions/food_recognizer", "/predictions/image_scorer"]
    assert any(line.startswith("image_scorer: 200 in ") for line in lines)
    assert kubectl.given("apply") == kubectl.given("diff") and "kind: Deployment" in kubectl.given("apply")


def test_the_request_goes_through_the_service(kubectl: StandIn, pods: Pods) -> None:
    deploy(models=("image_scorer",))
    assert kubectl.calls[-1] == "port-forward --address=127.0.0.1 service/tscpu :8080"
    assert pods.asked == ["/predictions/image_scorer"]


def test_the_namespace_of_the_overlay_is_asked_too(kubectl: StandIn, pods: Pods) -> None:
    deploy(spoil=lambda objects: [each["metadata"].update(namespace="mine") for each in objects])
    assert all(call.startswith("--namespace mine ") for call in kubectl.calls)


def test_nothing_to_change_is_said_and_still_tried(kubectl: StandIn, pods: Pods) -> None:
    kubectl.answers("diff")
    kubectl.answers("apply", "deployment.apps/tscpu unchanged\n")
    assert "no differences" in deploy()
    assert len(pods.asked) == 2


def test_no_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"(?s)kubectl is not installed.*--target podman"):
        deploy()


TROUBLE = {
    "connection refused": ("The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or "
                           "port?", "no cluster answers"),
    "no route": ("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout", "no cluster answers"),
    "logged out": ("error: You must be logged in to the server (Unauthorized)", "the cluster does not know you"),
    "forbidden": ('Error from server (Forbidden): deployments.apps "tscpu" is forbidden: User "dev" cannot get it',
                  "the cluster does not allow this"),
    "no namespace": ('Error from server (NotFound): namespaces "vision" not found', "there is no such namespace"),
    "no such kind": ('error: resource mapping not found for name: "tscpu" namespace: "" from "STDIN": no matches for '
                     'kind "InferenceService" in version "serving.kserve.io/v1beta1"',
                     "the cluster does not know a kind"),
    "anything else": ("error: something new", "kubectl failed"),
}


@pytest.mark.parametrize("case", TROUBLE)
def test_a_cluster_that_will_not_have_it_is_one_message_and_nothing_is_applied(kubectl: StandIn, case: str) -> None:
    said, what = TROUBLE[case]
    log = 'E1202 16:16:51.040580   20051 memcache.go:265] "Unhandled Error" err="dial tcp"'
    kubectl.answers("diff", err=f"{log}\n{said}\n", code=1)
    with pytest.raises((SettingsError, ServerError)) as caught:
        deploy(namespace="vision")
    assert caught.value.what == what and caught.value.where == "kubectl diff"
    assert caught.value.why in said
    assert not any(" apply " in call for call in kubectl.calls)
    if case == "no namespace":
        assert caught.value.remedy == "kubectl create namespace vision"


def test_a_rollout_that_times_out_goes_back_to_the_revision_it_had(kubectl: StandIn) -> None:
    there_before(kubectl)
    kubectl.answers("rollout-status", err="error: timed out waiting for the condition\n", code=1)
    with pytest.raises(ServerError, match="the rollout failed") as caught:
        deploy()
    assert "timed out" in caught.value.why
    assert kubectl.calls[-1] == "rollout undo deployment/tscpu --to-revision=7"
    assert not any(call.startswith("delete") for call in kubectl.calls)
    said = "\n".join(caught.value.__notes__)
    assert "pod tscpu-new: CrashLoopBackOff back-off 40s" in said and "tscpu-old" not in said
    assert said.index("event: Pulled") < said.index("event: BackOff: Back-off restarting failed")
    assert "log of the run before: error: the memory limit leaves no room" in said
    assert "Deployment tscpu is back at revision 7; as applied stay: ServiceAccount tscpu, Service tscpu" in said


def test_a_request_that_fails_goes_back_to_the_revision_it_had(kubectl: StandIn, pods: Pods) -> None:
    there_before(kubectl)
    pods.status = 503
    with pytest.raises(ServerError, match="food_recognizer answers 503"):
        deploy()
    assert kubectl.calls[-1] == "rollout undo deployment/tscpu --to-revision=7"


def test_a_service_that_cannot_be_reached_goes_back_too(kubectl: StandIn) -> None:
    there_before(kubectl)
    kubectl.answers("port-forward", err="error: unable to forward port because pod is not running\n", code=1)
    with pytest.raises(ServerError, match="unable to forward port"):
        deploy(models=("a",))
    assert kubectl.calls[-1].startswith("rollout undo")


def test_a_first_deployment_that_fails_is_deleted_and_nothing_else_is(kubectl: StandIn, pods: Pods) -> None:
    pods.status = 500
    with pytest.raises(ServerError, match="answers 500"):
        deploy()
    assert kubectl.calls[-1] == ("delete --ignore-not-found --wait=false configmap/tscpu-serving-1 "
                                 "deployment.apps/tscpu")


def test_an_apply_that_fails_half_way_deletes_what_it_created(kubectl: StandIn) -> None:
    kubectl.answers("apply", "configmap/tscpu-serving-1 created\n",
                    'Error from server (Forbidden): error when creating "STDIN": deployments.apps is forbidden\n', 1)
    with pytest.raises(SettingsError, match="the cluster does not allow this"):
        deploy()
    assert kubectl.calls[-1] == "delete --ignore-not-found --wait=false configmap/tscpu-serving-1"


def test_an_undo_that_fails_says_what_to_do_by_hand_and_keeps_the_first_error(kubectl: StandIn) -> None:
    there_before(kubectl)
    kubectl.answers("rollout-status", err="error: exceeded its progress deadline\n", code=1)
    kubectl.answers("rollout-undo", err="error: unable to find specified revision 7\n", code=1)
    with pytest.raises(ServerError, match="progress deadline") as caught:
        deploy()
    assert "by hand: kubectl rollout undo deployment/tscpu" in "\n".join(caught.value.__notes__)


def test_no_request_is_sent_where_it_would_need_a_key(kubectl: StandIn, pods: Pods) -> None:
    lines = deploy(spoil=lambda objects: set_serving(objects, "authorization: false", "authorization: true"))
    assert any(line.startswith("token_authorization is on") for line in lines)
    assert not pods.asked


def test_kserve_is_waited_for_and_asked_through_its_predictor(kubectl: StandIn, pods: Pods) -> None:
    deploy("kserve")
    assert "wait --for=condition=Ready inferenceservice/tscpu" in "\n".join(kubectl.calls)
    assert kubectl.calls[-2:] == ["port-forward --address=127.0.0.1 deployment/tscpu-predictor :8090",
                                  "port-forward --address=127.0.0.1 service/tscpu-predictor :80"]


def test_the_rollout_may_take_as_long_as_its_steps_may() -> None:
    case = read_case(stored("shared-node"), None)
    assert rollout_seconds(case) == 8 * (450 + 60 + 5) + 300  # one pod more at a time, up to the autoscaler's 8

    objects = stored("shared-node")
    of_kind(objects, "Deployment")["spec"]["strategy"]["rollingUpdate"] = {"maxSurge": "50%", "maxUnavailable": "25%"}
    assert rollout_seconds(read_case(objects, None)) == 2 * 515 + 300


def test_undeploy_deletes_what_is_rendered_and_earlier_config_maps(kubectl: StandIn) -> None:
    kubectl.answers("delete", "deployment.apps \"tscpu\" deleted\n")
    lines: list[str] = []
    down(stored("shared-node"), "vision", lines.append)
    assert kubectl.calls[1:] == [
        "--namespace vision delete --filename=- --ignore-not-found",
        f"--namespace vision delete configmap --selector={SELECTOR} --ignore-not-found"]
    assert "kind: Deployment" in kubectl.given("delete")
