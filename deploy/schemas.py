"""Whether every field of the objects exists, with a value of its type: what an API server would say, without one.

Built-in kinds are judged by kubernetes-validate's strict schemas. These leave out which words a field may hold and what
an amount looks like: both are here. Custom kinds have schemas of ours in `schemas/`, with the fields that we use and no
others. A kind that nobody knows is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from configs.errors import SettingsError
from deploy.manifests import Object

KUBERNETES = "1.31"
FOLDER = Path(__file__).resolve().parent / "schemas"
QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
# the end of a field's path → the words that it may hold
WORDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("imagePullPolicy",): ("Always", "IfNotPresent", "Never"),
    ("seccompProfile", "type"): ("RuntimeDefault", "Localhost", "Unconfined"),
    ("whenUnsatisfiable",): ("DoNotSchedule", "ScheduleAnyway"),
    ("strategy", "type"): ("RollingUpdate", "Recreate"),
    ("metrics", "[]", "type"): ("Resource", "ContainerResource", "Pods", "Object", "External"),
    ("target", "type"): ("Utilization", "AverageValue", "Value"),
    ("policies", "[]", "type"): ("Pods", "Percent"),
    ("policyTypes", "[]"): ("Ingress", "Egress"),
    ("protocol",): ("TCP", "UDP", "SCTP"),
    ("scheme",): ("HTTP", "HTTPS"),
    ("restartPolicy",): ("Always",),
    ("unhealthyPodEvictionPolicy",): ("IfHealthyBudget", "AlwaysAllow"),
    ("medium",): ("", "Memory"),
}
SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")


@dataclass(frozen=True)
class Mistake:
    """A field that no API server would take.

    Attributes:
        where: the object, as "Deployment tscpu".
        field: its path, as "spec.template.spec.containers[0].image"; empty for the whole object.
        why: what is wrong, with the value.
    """

    where: str
    field: str
    why: str
    remedy: str = ""


def named(thing: Object) -> str:
    """An object in two words."""
    return f"{thing.get('kind', 'object without kind')} {(thing.get('metadata') or {}).get('name', 'without a name')}"


def mistakes(objects: Sequence[Object]) -> list[Mistake]:
    """Everything that is wrong with the fields of some objects.

    Raises:
        SettingsError: kubernetes-validate is not installed.
    """
    return [mistake for each in objects for mistake in (*_against_schema(each), *_against_words(each))]


def _against_schema(thing: Object) -> Iterator[Mistake]:
    own = custom_kinds().get((str(thing.get("apiVersion")), str(thing.get("kind"))))
    if own is not None:
        from jsonschema import Draft202012Validator

        for error in sorted(Draft202012Validator(own).iter_errors(thing), key=lambda error: list(error.absolute_path)):
            yield _mistake(thing, error)
        return
    try:
        import kubernetes_validate
    except ImportError as error:
        raise SettingsError("the manifests cannot be checked", where="kubernetes-validate", why=str(error),
                            remedy="pip install -e '.[deploy]'") from error
    if not all(isinstance(thing.get(key), str) for key in ("apiVersion", "kind")):
        yield Mistake(named(thing), "", "apiVersion and kind are missing, or no text")
        return
    try:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        known = ", ".join(sorted(kind for _, kind in custom_kinds()))
        yield Mistake(named(thing), "apiVersion", f"nobody knows the kind {thing['kind']} of {thing['apiVersion']}",
                      f"a kind of Kubernetes {KUBERNETES}, or one with a schema in deploy/schemas ({known})")
    except kubernetes_validate.ValidationError as error:
        yield _mistake(thing, error)


@cache
def custom_kinds() -> dict[tuple[str, str], dict[str, Any]]:
    """The schemas of `schemas/`, by apiVersion and kind."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    return {(each["properties"]["apiVersion"]["const"], each["properties"]["kind"]["const"]): each for each in found}


def _mistake(thing: Object, error: Any) -> Mistake:
    """A jsonschema error in our words."""
    path: list[str | int] = list(error.absolute_path)
    wanted: Any = error.validator_value
    if error.validator == "additionalProperties":
        fields = sorted(error.schema.get("properties", {}))
        unknown = [key for key in error.instance if key not in fields]
        near = get_close_matches(str(unknown[0]), fields, 1)
        return Mistake(named(thing), _path([*path, unknown[0]]), "no such field",
                       f"{near[0]}, perhaps" if near else "one of " + ", ".join(fields))
    if error.validator == "required":
        missing = [key for key in wanted if key not in error.instance]
        return Mistake(named(thing), _path([*path, missing[0]]), "missing", "it has to be given")
    if error.validator == "type":
        remedy = " or ".join(name for name in ([wanted] if isinstance(wanted, str) else wanted) if name != "null")
    else:
        words = {"enum": "one of {}", "const": "{!r}", "minimum": "at least {}", "maximum": "at most {}"}
        remedy = words[error.validator].format(wanted) if error.validator in words else str(error.message)
    return Mistake(named(thing), _path(path), f"found {error.instance!r}", remedy)


def _against_words(thing: Object) -> Iterator[Mistake]:
    for path, value in _leaves(thing, []):
        names = tuple("[]" if isinstance(step, int) else step for step in path)
        words = next((words for end, words in WORDS.items() if names[-len(end):] == end), None)
        if thing.get("kind") == "Service" and names == ("spec", "type"):
            words = SERVICE_TYPES
        if words is not None and value not in words:
            near = get_close_matches(str(value), words, 1)
            yield Mistake(named(thing), _path(path), f"found {value!r}",
                          f"{near[0]}, perhaps" if near else "one of " + ", ".join(words))
        amount = len(names) > 1 and (names[-2] in ("limits", "requests") or names[-1] == "sizeLimit")
        if amount and not QUANTITY.fullmatch(str(value)):
            yield Mistake(named(thing), _path(path), f"found {value!r}", "an amount, such as 500m, 4 or 8Gi")


def _leaves(value: Any, path: list[str | int]) -> Iterator[tuple[list[str | int], Any]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, [*path, key])
    else:
        yield path, value


def _path(steps: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
