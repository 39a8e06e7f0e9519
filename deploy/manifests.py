"""Overlay → objects, by kustomize; and objects → YAML.

What the user changes at the command line (image, namespace, serving.yaml) is laid over the overlay in a temporary
kustomization, so that no file of the repository is edited, and the names of generated ConfigMaps change with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from configs.errors import SettingsError
from deploy.image import IMAGE

OVERLAYS = Path(__file__).resolve().parent / "overlays"
CONFIG_MAP, CONFIG_FILE = "tscpu-serving", "serving.yaml"
Object = dict[str, Any]


def find_overlay(name: str) -> Path:
    """The folder of an overlay: one of ours by its name, or any folder with a kustomization.

    Raises:
        SettingsError: neither.
    """
    for folder in (OVERLAYS / name, Path(name)):
        if name and (folder / "kustomization.yaml").is_file():
            return folder.resolve()
    ours = ", ".join(sorted(path.parent.name for path in OVERLAYS.glob("*/kustomization.yaml")))
    raise SettingsError(f"there is no overlay {name!r}", where=str(OVERLAYS), why=f"it has {ours}",
                        remedy="give one of these, or a folder with a kustomization.yaml")


def render(overlay: Path, image: str | None = None, namespace: str | None = None,
           serving: Path | None = None) -> list[Object]:
    """The objects of an overlay, in kustomize's order.

    Args:
        image: in place of the manifests', as NAME:TAG or NAME@DIGEST.
        namespace: for all objects; None leaves it to kubectl's context.
        serving: a serving.yaml in place of the overlay's.

    Raises:
        SettingsError: neither kubectl nor kustomize is there, or the overlay cannot be rendered.
    """
    with tempfile.TemporaryDirectory() as temporary:
        # kustomize wants relative paths, and counts them from the real folder
        folder = Path(temporary).resolve()
        top: Object = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                       "resources": [os.path.relpath(overlay.resolve(), folder)]}
        if namespace:
            top["namespace"] = namespace
        if image:
            top["images"] = [{"name": _split(IMAGE)["newName"], **_split(image)}]
        if serving:
            (folder / CONFIG_FILE).write_bytes(_bytes(serving))
            top["configMapGenerator"] = [{"name": CONFIG_MAP, "behavior": "replace", "files": [CONFIG_FILE]}]
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(top), encoding="utf-8")
        text = _kustomize(folder, overlay)
    objects = [each for each in yaml.safe_load_all(text) if each]
    if image and image not in text:
        raise SettingsError("the image cannot be replaced", where=str(overlay),
                            why=f"no container of it runs {_split(IMAGE)['newName']}",
                            remedy="name the image in the overlay itself, under images:")
    return objects


def to_yaml(objects: list[Object]) -> str:
    """One document an object: the same objects give the same text, and texts of several lines stay legible."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    pass


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def tag_of(image: str) -> str:
    """The tag of an image's name; empty where it has none. A registry may have a port, and so a colon, too."""
    return image.rpartition("/")[2].partition(":")[2]


def _split(image: str) -> dict[str, str]:
    """An image's name, and its tag or digest, as kustomize wants them."""
    name, _, digest = image.partition("@")
    if digest:
        return {"newName": name, "digest": digest}
    tag = tag_of(name)
    if not tag:
        raise SettingsError("an image needs a tag or a digest", where="--image", why=f"found {image!r}",
                            remedy="NAME:TAG: a node that has pulled the name once would never look again")
    return {"newName": name.removesuffix(f":{tag}"), "newTag": tag}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError("cannot read the serving file", where=str(path), why=error.strerror or "") from error


def _kustomize(folder: Path, overlay: Path) -> str:
    commands = [command for command in (["kubectl", "kustomize"], ["kustomize", "build"]) if shutil.which(command[0])]
    if not commands:
        raise SettingsError("the manifests cannot be rendered", where="PATH",
                            why="neither kubectl nor kustomize is there", remedy="install kubectl 1.27 or later")
    done = subprocess.run([*commands[0], str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        old = "unknown field" in done.stderr
        raise SettingsError("kustomize refuses the overlay", where=str(overlay), why=done.stderr.strip(),
                            remedy="kubectl 1.27 or later knows these fields" if old else "")
    return done.stdout
