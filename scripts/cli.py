"""tscpu: one command line for all of it."""

from __future__ import annotations

import typer

from scripts import bench, build, demo, lint, plan, predict, serve
from scripts import inspect as inspect_

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False,
                  help="Serve PyTorch vision models on CPUs with TorchServe, planned from the pod.")
app.command()(build.build)
app.command()(build.package)
app.command()(plan.plan)
app.command()(plan.config)
app.command()(lint.lint)
app.command()(serve.serve)
app.command()(predict.predict)
app.command("inspect")(inspect_.inspect)
app.command()(bench.bench)
app.command()(demo.demo)

if __name__ == "__main__":
    app()
