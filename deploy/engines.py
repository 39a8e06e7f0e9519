"""The container engine of this machine: docker, podman or buildah, and what it needs here.

Nothing is imported that talks to an engine: each is its command.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.errors import ServerError, SettingsError

ENGINES = ("docker", "podman", "buildah")
FOLDER = Path(__file__).resolve().parent.parent / "build" / "deploy"
_WANTED_FILES = 1_048_576  # open files that podman asks for by itself
_PROCESSES = 4096  # processes and threads, of which a pod of many workers has hundreds
_ANSWER_SECONDS = 20


@dataclass(frozen=True)
class Engine:
    """A command that builds images.

    Attributes:
        name: one of ENGINES.
        environment: what it is to be run with.
    """

    name: str
    environment: Mapping[str, str]

    def said(self, *arguments: str) -> tuple[int, str]:
        """The exit code of a command, and both of its streams as one text."""
        done = subprocess.run([self.name, *arguments], env=dict(self.environment), text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def run(self, *arguments: str, capture: bool = True) -> str:
        """Runs the engine's command, and gives its standard output; without `capture` both streams are shown.

        Raises:
            ServerError: it failed, with the last lines that it wrote.
        """
        command = [self.name, *arguments]
        done = subprocess.run(command, env=dict(self.environment), text=True, check=False,
                              stdout=subprocess.PIPE if capture else None, stderr=subprocess.PIPE if capture else None)
        if done.returncode:
            said = (done.stderr or done.stdout or "") if capture else "see above"
            raise ServerError(f"{self.name} {arguments[0]} failed with exit code {done.returncode}",
                              where=" ".join(command), why=last_lines(said))
        return done.stdout or ""


def last_lines(text: str, count: int = 5) -> str:
    """The last lines that are not empty."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def find_engine(wanted: str, folder: Path = FOLDER) -> Engine:
    """The engine that was asked for, or the first that works here.

    Args:
        wanted: a name, or "auto".
        folder: where a configuration for podman may be written, should it need one.

    Raises:
        SettingsError: there is none, or not the wanted one.
    """
    names = ENGINES if wanted == "auto" else (wanted,)
    found = []
    for name in names:
        if name not in ENGINES:
            raise SettingsError(f"there is no engine {name!r}", where="--engine", remedy="one of " + ", ".join(ENGINES))
        if shutil.which(name) is None:
            found.append(f"{name}: not installed")
            continue
        if name != "docker":
            return Engine(name, _environment(folder))
        trouble = _docker_trouble()
        if not trouble:
            # the classic builder, the default of docker before 23, knows no cache mounts
            return Engine(name, {**os.environ, "DOCKER_BUILDKIT": "1"})
        found.append(f"docker: {trouble}")
    raise SettingsError("there is no container engine that works here", where="PATH", why="; ".join(found),
                        remedy="install podman or buildah (Debian: apt-get install podman buildah), or start docker")


def _docker_trouble() -> str:
    """Why docker's command has no daemon behind it; empty where it has."""
    try:
        done = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True,
                              check=False, timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return "its daemon does not answer"
    return "" if done.returncode == 0 else (last_lines(done.stderr, 1) or "no daemon")


def _environment(folder: Path) -> dict[str, str]:
    """This process's, for podman and buildah; with a configuration where they would ask for more than it may have.

    Podman raises a container's limits to values of its own, which a root user without CAP_SYS_RESOURCE (a container
    itself, say) is refused; it prefers crun, and asks systemd for cgroups.
    """
    variables = dict(os.environ)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if os.geteuid() != 0 or "CONTAINERS_CONF" in variables or not 0 <= files < _WANTED_FILES:  # -1 is infinity
        return variables
    lines = ["[containers]", f'default_ulimits = ["nofile={files}:{files}", "nproc={_PROCESSES}:{_PROCESSES}"]',
             "[engine]", 'events_logger = "file"']
    if shutil.which("crun") is None:
        lines.append('runtime = "runc"')
    if not Path("/run/systemd/system").is_dir():
        lines.append('cgroup_manager = "cgroupfs"')
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "containers.conf"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {**variables, "CONTAINERS_CONF": str(path)}
