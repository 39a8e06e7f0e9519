"""tscpu: one command line for all of it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

# A short command is mostly imports: a hundred thousand objects that all stay, which the collector would look through
# again and again, and a search of every installed package for plugins that nobody has. Together a fifth of its time.
gc.set_threshold(50_000)
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")

import typer  # noqa: E402

# command → module and function. Only the module of the command that runs is imported: describing all of them takes as
# long as planning a pod does.
COMMANDS = {
    "build": ("scripts.build", "build"),
    "package": ("scripts.build", "package"),
    "plan": ("scripts.plan", "plan"),
    "config": ("scripts.plan", "config"),
    "lint": ("scripts.lint", "lint"),
    "serve": ("scripts.serve", "serve"),
    "predict": ("scripts.predict", "predict"),
    "inspect": ("scripts.inspect", "inspect"),
    "bench": ("scripts.bench", "bench"),
    "image": ("scripts.image", "image"),
    "demo": ("scripts.demo", "demo"),
    "distill": ("scripts.distill", "distill"),
    "deploy": ("scripts.deploy", "deploy"),
    "undeploy": ("scripts.deploy", "undeploy"),
}


def application(arguments: Sequence[str]) -> typer.Typer:
    """The command line that can run these arguments: with the one command that they name, else with all."""
    made = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False,
                       help="Serve PyTorch vision models on CPUs with TorchServe, planned from the pod.")
    made.callback()(lambda: None)  # or a single command would be the whole line
    for name in [arguments[0]] if arguments and arguments[0] in COMMANDS else COMMANDS:
        module, function = COMMANDS[name]
        made.command(name)(getattr(import_module(module), function))
    return made


def app() -> None:
    """The entry point."""
    application(sys.argv[1:])()


if __name__ == "__main__":
    app()
