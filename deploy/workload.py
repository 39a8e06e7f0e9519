"""What the rules look at: the objects of a deployment, and what they say of pods, amounts and serving.yaml.

A Deployment says all of its pods. With KServe a ServingRuntime says what the container is, and the InferenceService
that names it the rest: here both are one workload.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from configs.archives import Built, ServedModel, read_model_store
from configs.errors import SettingsError, ToolkitError
from configs.settings import Settings, read_settings
from deploy.manifests import CONFIG_FILE, Object
from deploy.schemas import named

CONFIG_FOLDER, RUN_FOLDER, TMP_FOLDER = "/etc/tscpu", "/run/tscpu", "/tmp"
CORES = "tscpu/cores"  # annotation of pods; "exclusive": they are to be Guaranteed, with whole CPUs
_UNITS = {"": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(1000),
          **{unit: Fraction(1000 ** power) for power, unit in enumerate("MGTP", 2)},
          **{f"{unit}i": Fraction(1024 ** power) for power, unit in enumerate("KMGTP", 1)}}


@dataclass(frozen=True)
class Workload:
    """What runs the server.

    Attributes:
        name: as "Deployment tscpu".
        spec: the Deployment's own spec; empty for KServe.
        pod: the pod's spec.
        container: the server's.
        labels, annotations: of its pods.
    """

    name: str
    spec: Object
    pod: Object
    container: Object
    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def exclusive(self) -> bool:
        return self.annotations.get(CORES) == "exclusive"

    @property
    def ports(self) -> list[Object]:
        found: list[Object] = self.container.get("ports", [])
        return found

    def amount(self, kind: str, resource: str) -> Fraction | None:
        """An amount of `limits` or `requests`; None where it is not given."""
        found = self.container.get("resources", {}).get(kind, {}).get(resource)
        return None if found is None else quantity(found)

    def port(self, wanted: str | int) -> int | None:
        """The number of a container port, given by its name or number; None where there is none."""
        for each in self.ports:
            if wanted in (each.get("name"), each["containerPort"]):
                return int(each["containerPort"])
        return None


@dataclass(frozen=True)
class Case:
    """All that is known of a deployment.

    Attributes:
        settings: None where serving.yaml is missing or wrong.
        settings_why: what is wrong with it.
        explicit: the keys that serving.yaml gives.
        models: None where nobody knows them; models_why says why.
    """

    objects: Sequence[Object]
    workload: Workload
    settings: Settings | None
    settings_why: str
    explicit: frozenset[str]
    models: tuple[ServedModel, ...] | None
    models_why: str

    @property
    def keys(self) -> bool:
        """Whether requests need one, as far as serving.yaml can be read."""
        return self.settings is not None and self.settings.token_authorization

    def of_kind(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]


def read_case(objects: Sequence[Object], model_store: Path | None) -> Case:
    """Puts together what the objects and the archives at hand say.

    Args:
        model_store: the folder whose archives are in the image, if it is at hand.

    Raises:
        SettingsError: nothing among the objects runs the server.
    """
    workload = find_workload(objects)
    settings, settings_why, explicit = _settings(objects, workload)
    models, models_why = _models(settings, model_store) if settings else (None, settings_why)
    return Case(objects, workload, settings, settings_why, explicit, models, models_why)


def find_workload(objects: Sequence[Object]) -> Workload:
    """What runs the server among some objects.

    Raises:
        SettingsError: nothing does.
    """
    for each in objects:
        if each["kind"] == "Deployment":
            template = each["spec"]["template"]
            meta = template.get("metadata", {})
            return Workload(named(each), each["spec"], template["spec"], template["spec"]["containers"][0],
                            meta.get("labels", {}), meta.get("annotations", {}))
    runtimes = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "ServingRuntime"}
    for each in objects:
        if each["kind"] == "InferenceService":
            predictor = each["spec"]["predictor"]
            runtime = runtimes.get(predictor["model"].get("runtime", ""))
            if runtime is None:
                raise SettingsError("the service's runtime is not among the objects", where=named(each),
                                    why=f"it names {predictor['model'].get('runtime', 'none')!r}",
                                    remedy="name one of: " + (", ".join(runtimes) or "none is there"))
            container = runtime["containers"][0]
            resources = {kind: {**container.get("resources", {}).get(kind, {}),
                                **predictor["model"].get("resources", {}).get(kind, {})}
                         for kind in ("requests", "limits")}
            return Workload(named(each), {}, {**runtime, **predictor}, {**container, "resources": resources},
                            {**runtime.get("labels", {}), **each["metadata"].get("labels", {})},
                            {**runtime.get("annotations", {}), **each["metadata"].get("annotations", {})})
    raise SettingsError("nothing here runs the server", where="the rendered objects",
                        why="they are " + (", ".join(named(each) for each in objects) or "none"),
                        remedy="an overlay has a Deployment, or a ServingRuntime and an InferenceService")


def quantity(text: str | int | float) -> Fraction:
    """An amount as Kubernetes writes it, in CPUs or bytes.

    Raises:
        SettingsError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(text))
    if match is None or match[2] not in _UNITS:
        raise SettingsError("this is no amount", where=str(text), remedy="such as 500m, 4 or 8Gi")
    return Fraction(match[1]) * _UNITS[match[2]]


def config_map(objects: Sequence[Object], workload: Workload) -> Object | None:
    """The ConfigMap that is mounted where the server looks for serving.yaml."""
    volume = next((mount["name"] for mount in workload.container.get("volumeMounts", [])
                   if mount["mountPath"].rstrip("/") == CONFIG_FOLDER), None)
    name = next((each["configMap"]["name"] for each in workload.pod.get("volumes", [])
                 if each["name"] == volume and "configMap" in each), None)
    return next((each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name), None)


def _settings(objects: Sequence[Object], workload: Workload) -> tuple[Settings | None, str, frozenset[str]]:
    found = config_map(objects, workload)
    text = (found or {}).get("data", {}).get(CONFIG_FILE)
    if found is None or text is None:
        return None, f"no ConfigMap with {CONFIG_FILE} is mounted at {CONFIG_FOLDER}", frozenset()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CONFIG_FILE
        path.write_text(text, encoding="utf-8")
        try:
            settings = read_settings(path)
        except SettingsError as error:
            return None, f"{named(found)}: {error.why}", frozenset()
    return settings, "", frozenset(settings.model_fields_set)


def _models(settings: Settings, model_store: Path | None) -> tuple[tuple[ServedModel, ...] | None, str]:
    if model_store is not None and any(model_store.glob("*.mar")):
        try:
            return tuple(read_model_store(model_store, list(settings.models))), ""
        except ToolkitError as error:
            return None, f"{error.where}: {error.what}: {error.why}"
    if not settings.models:
        return None, "serving.yaml names no models, and no archives are at hand"
    assumed = []
    for name, own in settings.models.items():
        runtime = own.runtime or "eager"
        built = Built(runtime)
        assumed.append(ServedModel(name=name, version="1.0", archive=f"{name}.mar", runtime=runtime, batch_size=1,
                                   max_batch_delay_ms=0, built=(built,)).served_by(built))
    return tuple(assumed), ""
