"""Overlays render to what was reviewed; image, namespace and serving.yaml are laid over them, and nothing is edited."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from configs.errors import SettingsError
from deploy.image import IMAGE
from deploy.manifests import OVERLAYS, find_overlay, render, to_yaml
from tests.unit.deploy.stored import NAMES, RENDERED, container, of_kind, pod, stored

needs_kustomize = pytest.mark.skipif(not (shutil.which("kubectl") or shutil.which("kustomize")),
                                     reason="neither kubectl nor kustomize is installed")


@needs_kustomize
@pytest.mark.parametrize("name", NAMES)
def test_each_overlay_renders_to_what_was_reviewed(name: str) -> None:
    assert to_yaml(render(OVERLAYS / name)) == (RENDERED / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_printed_reads_back_as_the_same_objects(name: str) -> None:
    assert list(yaml.safe_load_all(to_yaml(stored(name)))) == stored(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_overlay_runs_the_image_that_make_image_builds(name: str) -> None:
    assert container(stored(name))["image"] == IMAGE


@needs_kustomize
@pytest.mark.parametrize("name", NAMES)
def test_another_image_and_namespace_reach_every_object(name: str) -> None:
    objects = render(OVERLAYS / name, "registry.example:5000/vision/server:2.1", "vision")
    assert container(objects)["image"] == "registry.example:5000/vision/server:2.1"
    assert {each["metadata"]["namespace"] for each in objects} == {"vision"}


@needs_kustomize
def test_an_image_by_digest() -> None:
    image = "registry.example/server@sha256:" + "0" * 64
    assert container(render(OVERLAYS / "shared-node", image))["image"] == image


@pytest.mark.parametrize("image", ["server", "registry.example:5000/server"])
def test_an_image_without_a_tag_is_refused(image: str) -> None:
    with pytest.raises(SettingsError, match="needs a tag or a digest"):
        render(OVERLAYS / "local", image)


@needs_kustomize
@pytest.mark.parametrize("name", NAMES)
def test_another_serving_file_gets_a_name_of_its_own_that_the_pods_mount(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("bind: 0.0.0.0\n")
    objects = render(OVERLAYS / name, serving=mine)
    map = of_kind(objects, "ConfigMap")
    assert map["data"] == {"serving.yaml": "bind: 0.0.0.0\n"}
    assert map["metadata"]["name"] != of_kind(stored(name), "ConfigMap")["metadata"]["name"]
    volumes = (pod(objects) if name != "kserve" else of_kind(objects, "ServingRuntime")["spec"])["volumes"]
    assert volumes[0]["configMap"]["name"] == map["metadata"]["name"]


@needs_kustomize
def test_an_overlay_of_the_users_own(tmp_path: Path) -> None:
    base = OVERLAYS / "shared-node"
    mine = tmp_path / "mine"
    mine.mkdir()
    up = "../" * len(mine.resolve().parts[1:])
    (mine / "kustomization.yaml").write_text(f"resources: [{up}{base.resolve().relative_to('/')}]\nnamePrefix: my-\n")
    assert of_kind(render(find_overlay(str(mine))), "Deployment")["metadata"]["name"] == "my-tscpu"


@needs_kustomize
def test_what_kustomize_says_of_a_broken_overlay_is_shown(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [nowhere.yaml]\n")
    with pytest.raises(SettingsError, match=r"(?s)kustomize refuses the overlay.*nowhere\.yaml"):
        render(tmp_path)


def test_no_overlay_of_that_name() -> None:
    with pytest.raises(SettingsError, match="exclusive-cores, kserve, local, mirroring, shared-node"):
        find_overlay("share-node")


def test_neither_kubectl_nor_kustomize(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"(?s)neither kubectl nor kustomize is there.*install kubectl"):
        render(OVERLAYS / "local")


def test_podman_publishes_nothing_beyond_loopback() -> None:
    ports = container(stored("local"))["ports"]
    assert {port["hostIP"] for port in ports} == {"127.0.0.1"}
    assert {port["hostPort"] for port in ports} == {8080, 8090}


def test_no_egress_and_only_our_pods_are_fenced_in() -> None:
    policy = of_kind(stored("shared-node"), "NetworkPolicy")["spec"]
    assert policy["egress"] == [] and "Egress" in policy["policyTypes"]
    assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "tscpu"
