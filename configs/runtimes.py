"""Which of the runtimes that an archive was built for serves it in this pod: the user's word, or the fastest that can.

What a runtime is lives in `handlers.runtimes`; an archive says what each of its own needs.
"""

from __future__ import annotations

from collections.abc import Container

from configs.archives import Built, ServedModel
from configs.errors import SettingsError
from configs.topology import Topology

AUTO = "auto"


def choose_runtime(model: ServedModel, wanted: str | None, topology: Topology,
                   installed: Container[str] | None = None) -> tuple[ServedModel, str]:
    """The archive with its runtime, and a sentence for why.

    Args:
        wanted: the serving file's word; None leaves it to the archive.
        installed: packages that workers can import; None where that is not known, as for a recorded machine.

    Raises:
        SettingsError: the archive was not built for that runtime, or none of its runtimes can run here.
    """
    name = wanted or model.runtime
    whose = "the serving file says so" if wanted else "the archive was built for it"
    if name != AUTO:
        built = next((each for each in model.built if each.runtime == name), None)
        if built is None:
            raise SettingsError(f"{model.name} cannot be served by {name}", where=model.archive,
                                why="it was built for " + _listed(model.built), remedy=_build(name, model))
        lacking = _lacking(built, topology, None)  # a package that is not there is the preflight's to tell
        if lacking:
            # an instruction that the CPU lacks ends a worker with SIGILL, which nothing in Python can catch
            raise SettingsError(f"{model.name} cannot run on this CPU", where=f"{model.archive}, runtime {name}",
                                why=f"{topology.model}: {lacking}", remedy=_build("eager", model))
        return model.served_by(built), whose
    able, not_able = [], []
    for each in model.built:
        lacking = _lacking(each, topology, installed)
        if lacking:
            not_able.append(f"{each.runtime}: {lacking}")
        else:
            able.append(each)
    if not able:
        raise SettingsError(f"{model.name} cannot be served here", where=model.archive, why="; ".join(not_able),
                            remedy=_build("eager", model))
    able.sort(key=lambda each: (not each.measured, each.inference_ms, each.runtime))
    others = ", ".join(f"{each.runtime} {each.inference_ms:.1f} ms" for each in able[1:] if each.measured)
    why = (f"the fastest within parity when the archive was built: {able[0].inference_ms:.1f} ms"
           + (f"; {others}" if others else "")) if able[0].measured else "nothing was measured of this archive"
    return model.served_by(able[0]), why + "".join(f"; not {reason}" for reason in not_able)


def _lacking(built: Built, topology: Topology, installed: Container[str] | None) -> str:
    """What keeps a runtime from running here, or "". A CPU that does not say what it has passes."""
    if built.cpu_flag and topology.flags and built.cpu_flag not in topology.flags:
        kind = " (it is an ARM CPU)" if topology.architecture == "aarch64" else ""
        return f"it needs {built.cpu_flag.upper()}, which the CPU has not{kind}"
    if built.package and installed is not None and built.package not in installed:
        return f"the package {built.package} is not installed"
    return ""


def _listed(built: tuple[Built, ...]) -> str:
    return ", ".join(each.runtime for each in built) or "nothing"


def _build(runtime: str, model: ServedModel) -> str:
    return f"build it again: `tscpu build --runtime {runtime} {model.name}`"
