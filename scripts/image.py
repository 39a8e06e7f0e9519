"""tscpu image: the container image, by docker, podman or buildah."""

from __future__ import annotations

import typer

from scripts.console import ROOT, err, errors_as_messages, out, table


def image(
    name: str = typer.Option("", "--image", help="Name and tag; empty: that of the manifests."),
    engine: str = typer.Option("auto", help="docker, podman or buildah; auto: the first that works here."),
    base: str = typer.Option("", help="Base image, a Debian 12; empty: that of the Dockerfile."),
    torch_index_url: str | None = typer.Option(None, help=(
        "Wheel index of torch without CUDA, in place of the Dockerfile's. \"\": the default index only, 6 GB more.")),
    runtimes: str = typer.Option("", help="More runtimes' packages: openvino, onnxruntime, or both."),
    option: list[str] = typer.Option([], help="Passed on to the engine's build command, as it is."),
) -> None:
    """Build the image with every archive of the model store in it, and say its size by layer.

    Example: tscpu image --runtimes openvino
    """
    with errors_as_messages():
        from deploy import image as images
        from deploy.engines import find_engine

        found = find_engine(engine)
        name = name or images.IMAGE
        arguments = {"BASE": base} if base else {}
        if torch_index_url is not None:
            arguments["TORCH_INDEX_URL"] = torch_index_url
        if runtimes:
            arguments["RUNTIMES"] = runtimes.replace(",", " ")
        err.print(f"building {name} with {found.name}")
        images.build(found, ROOT, name, arguments, list(option))
        rows = [[layer.what, f"{layer.size / 1e6:.0f} MB"] for layer in images.layers(found, name)]
        title = f"{name}: {images.size(found, name) / 1e6:.0f} MB"
        out.print(table(title, ["layer", "size"], rows) if rows else title)
