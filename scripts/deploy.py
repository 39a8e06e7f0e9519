"""tscpu deploy and tscpu undeploy: manifests checked, applied and tried; on a cluster, or here by podman."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from scripts.console import MODEL_STORE, err, errors_as_messages, out, table

if TYPE_CHECKING:
    from deploy.rules import Check

Target = Literal["kubernetes", "podman"]
OVERLAY = typer.Option("", help="shared-node, exclusive-cores, kserve, mirroring, local, or a folder of yours. Empty: "
                                "shared-node, and local for podman.")
TARGET = typer.Option("kubernetes", help="kubernetes: kubectl's context. podman: this machine.")
NAMESPACE = typer.Option("", help="Empty: that of kubectl's context.")
SERVING = typer.Option(None, help="A serving.yaml in place of the overlay's.")


def deploy(
    overlay: str = OVERLAY,
    image: str = typer.Option("", help="NAME:TAG in your registry. Empty: that of the manifests."),
    namespace: str = NAMESPACE,
    serving: Path | None = SERVING,
    model_store: Path = typer.Option(MODEL_STORE, help="The archives that are in the image: what they were measured to "
                                                       "take. Where there are none, that is assumed."),
    model: list[str] = typer.Option([], help="Ask only these models in the end. Empty: all that the pods serve."),
    target: Target = TARGET,
    cpus: str = typer.Option("", help="CPU limit in place of the manifest's, for podman."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Check, print the YAML, and apply nothing."),
) -> None:
    """Check the manifests, show what changes, apply it, wait, and send every model a photo; take it back if that fails.

    Example: tscpu deploy --overlay shared-node --image REGISTRY/torchserve-cpu-toolkit:0.1.0 --dry-run

    Exit code 1 if a check fails, 2 if the deployment does.
    """
    with errors_as_messages():
        from configs.errors import SettingsError
        from deploy.manifests import find_overlay, render, to_yaml
        from deploy.rules import check
        from deploy.workload import read_case

        if cpus and target != "podman":
            raise SettingsError("--cpus is for podman", where=f"--target {target}", why="a cluster's pods have the "
                                "limit that their overlay gives", remedy="change resources in an overlay of yours")
        folder = find_overlay(overlay or _usual(target))
        objects = render(folder, image or None, namespace or None, serving)
        checks = check(objects, model_store)
        wrong = sum(each.verdict == "WRONG" for each in checks)
        (err if dry_run else out).print(_table(f"Checks of {folder.name}: {wrong} wrong", checks))
        if wrong:
            raise typer.Exit(1)
        if dry_run:
            sys.stdout.write(to_yaml(objects))
            return
        case = read_case(objects, model_store)
        if target == "podman":
            from deploy import local

            local.up(case, cpus or None, model, _echo)
        else:
            from deploy import cluster

            cluster.up(case, namespace or None, model, _echo)


def undeploy(
    overlay: str = OVERLAY,
    namespace: str = NAMESPACE,
    serving: Path | None = SERVING,
    target: Target = TARGET,
) -> None:
    """Delete what an overlay renders, and the ConfigMaps of its earlier revisions.

    Example: tscpu undeploy --overlay shared-node --namespace vision
    """
    with errors_as_messages():
        if target == "podman":
            from deploy import local

            local.down(_echo)
        else:
            from deploy import cluster
            from deploy.manifests import find_overlay, render

            cluster.down(render(find_overlay(overlay or _usual(target)), None, namespace or None, serving),
                         namespace or None, _echo)


def _usual(target: Target) -> str:
    return "local" if target == "podman" else "shared-node"


def _table(title: str, checks: list[Check]) -> object:
    return table(title, ["", "check", "where", "why", "remedy"],
                 [[each.verdict, each.title, each.where, each.why, each.remedy] for each in checks])


def _echo(line: str) -> None:
    """Lines of other commands, as they are."""
    out.print(line, markup=False, highlight=False)
